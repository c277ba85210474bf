"""Without knowledge of CPython's structs the same gradients come out, bit by bit."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tapegrad as tg

PROGRAM = """
import json, numpy as np, tapegrad as tg
from tapegrad.kernels import abi
from tapegrad.tape import tape as tapes

def leaf(v, dtype=float):
    return tg.tensor(np.asarray(v, dtype), requires_grad=True)

def keep(*gradients):
    found.append([g.detach().numpy().astype(float).tobytes().hex() for g in gradients])

found = []
x, y, z = leaf(np.linspace(0.1, 1.0, 12).reshape(3, 4)), leaf([0.5, -1.0, 2.0, 0.25]), leaf(1.5)
keep(*tg.grad(np.sum(np.sin(x) * y + z ** 3), (x, y, z)))
keep(*tg.grad(np.sum((x @ x.T)[::2, ::-1] * np.exp(z)), (x, z)))
keep(*tg.grad(np.mean(np.concatenate([x.T, x.T * 2.0])[1:, [0, 2, 0]]), x))
keep(*tg.grad(np.cumsum(x, axis=1).sum() * np.where(y > 0, y, z).sum(), (x, y, z)))
a, b = leaf(np.ones((2, 3)), np.float32), leaf(np.full(3, 0.3))
keep(*tg.grad(np.sum(np.tanh(a * b) / (a + b)), (a, b)))
keep(*tg.grad(np.sum(a * np.arange(3) + np.array([True, False, True])), a))
e = leaf(np.zeros((0, 3)))
keep(*tg.grad(np.sum(np.exp(e)) + z * z, (e, z)))
(g,) = tg.grad(np.exp(np.sin(z)), z, create_graph=True)
(h,) = tg.grad(g, z, create_graph=True)
keep(g, h, *tg.grad(h, z))
before, tapes.MAX_RECORDS = tapes.MAX_RECORDS, 16
w = x
for k in range(200):
    w = np.sin(w) * y + 0.1
s = np.sum(w)
keep(*tg.grad(s, (x, y), retain_graph=True))
s.backward()
keep(x.grad, y.grad)
w = z
for k in range(5000):
    w = w * 1.0001
    if k % 1000 == 0:
        keep(*tg.grad(w, z, retain_graph=True))
keep(*tg.grad(w, z))
try:
    tg.grad(s, x)
    found.append("not freed")
except tg.errors.GraphFreedError:
    found.append("freed")
print(abi.layout_in_use())
print(json.dumps(found))
"""


def results(layout):
    environment = os.environ | {"PYTHONPATH": str(Path(tg.__file__).parents[1]), "TAPEGRAD_ABI": layout}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM],
        capture_output=True, text=True, timeout=300, check=False, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    used, found = done.stdout.splitlines()
    return used, json.loads(found)


@pytest.fixture(scope="module")
def portable():
    return results("portable")


def test_the_layout_asked_for_is_used(portable):
    assert portable[0] == "portable"


def test_the_same_bits(portable):
    used, found = results("")
    assert used == "native"
    assert found == portable[1]


def test_the_first_of_them_is_right(portable):
    x, y, z = np.linspace(0.1, 1.0, 12).reshape(3, 4), np.array([0.5, -1.0, 2.0, 0.25]), 1.5
    gradients = [np.frombuffer(bytes.fromhex(text)) for text in portable[1][0]]
    np.testing.assert_allclose(gradients[0], (np.cos(x) * y).ravel(), rtol=1e-14)
    np.testing.assert_allclose(gradients[1], np.sin(x).sum(axis=0), rtol=1e-14)
    np.testing.assert_allclose(gradients[2], [3 * z * z * 12], rtol=1e-14)
