"""Compiled code on disk, and what it is of: names of compiled functions, their sources, captured values."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(folder, code, *, cache=None, **more):
    """Run code in a new process that finds the modules of a folder; returns the words that it prints."""
    paths = f"{ROOT}{os.pathsep}{folder}"
    environment = os.environ | {"PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"} | more
    if cache is not None:
        environment["TAPEGRAD_CACHE"] = str(cache)
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment, cwd=folder, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.split()


# ---------------------------------------------------------------- what other processes have compiled


ALIKE = """
import numba, numpy as np, tapegrad as tg

@numba.njit
def squared(x):
    return x[0] * x[0]

@numba.njit
def cubed(x):
    return x[0] * x[0] * x[0]

of_square, of_cube = tg.func.grad(squared), tg.func.grad(cubed)

@numba.njit(cache=True)
def one(x):
    return of_square(x)

@numba.njit(cache=True)
def other(x):
    return of_cube(x)
"""


def test_functions_that_two_processes_have_compiled_are_two_functions(tmp_path):
    (tmp_path / "alike.py").write_text(ALIKE, "utf-8")
    code = "from alike import *; x = np.array([3.0]); print("
    run(tmp_path, code + "one(x))", NUMBA_CACHE_DIR=str(tmp_path / "elsewhere"))  # so what is ours is compiled
    assert run(tmp_path, code + "one(x))") == ["[6.]"]
    assert run(tmp_path, code + "other(x), one(x))") == ["[27.]", "[6.]"]


KALMAN = """
import numpy as np, numba, tapegrad as tg

@tg.njit(cache=True)
def loss(w, y):
    noise, drift = np.exp(w[0]), np.exp(w[1])
    mean, p, total = 0.0, 1.0, 0.0
    for k in range(y.size):
        p = p + drift
        v, e = p + noise, y[k] - mean
        total += 0.5 * (np.log(v) + e * e / v)
        gain = p / v
        mean = mean + gain * e
        p = p * (1 - gain)
    return total

of = tg.func
kinds = {
    "grad": (of.grad(loss), ()), "value_and_grad": (of.value_and_grad(loss), ()),
    "hessian": (of.hessian(loss), ()), "hvp": (of.hvp(loss), (1,)),
    "jvp": (of.jvp(loss), (1,)), "taylor": (of.taylor(loss, 3), (1,)),
}

def cached(f, direction):
    if direction:
        @numba.njit(cache=True)
        def of_direction(w, y):
            return f(w, y, np.array([0.3, -0.7]))
        return of_direction
    @numba.njit(cache=True)
    def plain(w, y):
        return f(w, y)
    return plain

random = np.random.default_rng(7)
y = np.cumsum(random.normal(size=100)) + random.normal(size=100)
w = np.array([0.1, -0.2])
d = np.array([0.3, -0.7])

{functions}

def show(names):
    for name in sorted(names):
        found = globals()["cached_" + name](w, y)
        rows = found if isinstance(found, tuple) else (found,)
        print(name, *(v.hex() for row in rows for v in np.ravel(row).tolist()))

def others():
    for f, more in kinds.values():
        f(w, y, *(d,) * len(more))
    x = tg.tensor(w, requires_grad=True)
    (g,) = tg.grad(loss(x, y), x, create_graph=True)
    tg.grad(g[0], x)
"""

OF_KIND = """
@numba.njit(cache=True)
def cached_{0}(w, y):
    return f_{0}(w, y{1})
"""


@pytest.mark.slow
def test_derivatives_in_cached_functions_are_the_same_in_each_process(tmp_path):
    """However each of them came to be: compiled here, loaded, after others, defined and called in another order."""
    names = ["grad", "value_and_grad", "hessian", "hvp", "jvp", "taylor"]
    functions = "".join(
        f"f_{name} = kinds['{name}'][0]" + OF_KIND.format(name, ", d" * (name in ("hvp", "jvp", "taylor")))
        for name in names
    )
    text = KALMAN.replace("{functions}", functions)
    assert text.count("def cached_") == 6
    (tmp_path / "kalman.py").write_text(text, "utf-8")
    first = "from kalman import *; show(kinds)"
    expected = run(tmp_path, "from kalman import *; others(); show(kinds)", NUMBA_CACHE_DIR=str(tmp_path / "a"))
    assert len(expected) == 6 + 2 + 3 + 4 + 2 + 2 + 4
    places = [tmp_path / "a", tmp_path / "b"]
    one_each = [f"from kalman import *; show(['{name}'])" for name in names]
    backwards = "from kalman import *; others(); [cached(*kinds[k])(w, y) for k in reversed(kinds)]; show(kinds)"
    for code in one_each:  # each compiled in a process of its own, so by the same numbers
        run(tmp_path, code, NUMBA_CACHE_DIR=str(places[1]))
    for place in places:
        for code in (first, "from kalman import *; others(); show(kinds)", backwards):
            assert run(tmp_path, code, NUMBA_CACHE_DIR=str(place)) == expected
