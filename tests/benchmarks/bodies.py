"""Bodies of loops as scientific programs have them, compiled by `tapegrad.compile` and recorded.

    python -m tests.benchmarks.bodies [WORD ...]

Thirty turns on five numbers, of which each goes from y to the next y. Shown, slowest first, are medians of
value and gradient, in turns, of calls that follow a program however long that takes, and what keeps a program
from serving the calls. Results are compared first. Of words, bodies with one of them in their text alone.
"""

import os

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")

import functools
import logging
import math
import sys
import textwrap
from dataclasses import dataclass

import numpy as np

import tapegrad as tg
from tapegrad.compilation import pace
from tests.benchmarks.rounds import in_turns

WARM, ROUNDS = 40, 60
TEXT = """
def f(x):
    y = x
    for k in range(30):
{}
    return np.sum(y)
"""
BODIES = """
y = np.sin(y) * x + 0.1
y = np.where(M, np.sin(y), y * 0.5)
y = np.where(M, np.sin(y), C)
y = np.concatenate([np.sin(y[:3]), C[3:] * 0.5])
y = np.concatenate([np.sin(y[:4]), C[:1]])
y = np.linalg.solve(A, np.sin(y))
y = y + 0.1 * np.sin(np.dot(C, y))
y = np.sin(y) + np.dot(A, y) * 0.01
y = np.maximum(np.sin(y), C)
y = np.clip(y * 1.1, 0.2, C)
y = np.einsum("ij,j->i", A, np.sin(y)) * 0.1
y = np.sin(y) + 0.1 * np.interp(0.3, C, y)
y = np.sin(y) + tg.zeros(5)
y = np.sin(y) + np.zeros(5)
y = np.sin(y) + np.zeros_like(y)
y = np.sin(y) * np.full_like(y, 0.9)
y = np.sin(y) * np.ones_like(y)
z = tg.zeros(5); z[1:] = np.sin(y[1:]); y = z + 0.1
z = np.zeros_like(y); z[1:] = np.sin(y[1:]); y = z + 0.1
a, b = np.broadcast_arrays(y[0], np.sin(y)); y = 0.5 * a + b
y = np.piecewise(y, [y < 0.5, y >= 0.5], [lambda v: np.sin(v), lambda v: 0.9 * v])
z = (y + 0.1j) * (0.1 - 0.2j * y); y = np.real(z) + 0.1
z = np.exp(1j * y); y = np.abs(z * z) * y * 0.99
m = y[np.asarray(y > 0.5)]; y = np.sin(y) + 0.01 * np.sum(m)
m = y[y > 0.5]; y = np.sin(y) + 0.01 * np.sum(m)
i = np.nonzero(y > 0.5)[0]; y = np.sin(y) + 0.01 * np.sum(y[i])
m = np.asarray(y > 0.5); y = np.where(m, np.sin(y), y * 0.5)
y = np.sin(y) if np.argmax(y) > 1 else 0.9 * y
i = int(np.argmax(y)); y = np.sin(y) + 0.1 * y[i]
i = np.argmax(y); y = np.sin(y) + 0.1 * y[i]
y = np.sin(y) if k % 3 == int(np.argmin(y)) else 0.9 * y
i = np.argsort(y); y = np.sin(y[i])
y = np.cumsum(y) * 0.2
y = np.maximum.accumulate(np.sin(y))
y = y / np.linalg.norm(y)
y = np.outer(y, y)[1] * 0.5 + 0.1
y = np.sin(y) * np.trapezoid(y)
y = np.sin(y) * np.trapezoid(y, C)
y = np.concatenate([np.diff(y), y[:1]]) + 0.1
y = np.sin(np.gradient(y) + y)
y = np.roll(y, 1) * 0.9 + 0.1 * y
y = np.stack([y, np.sin(y)]).mean(axis=0)
y = tg.array([y[0], y[1] * 0.9, y[2], np.sin(y[3]), y[4]])
y = P["a"] * np.sin(y) + P["b"][k % 3]
y = Q.rate * np.sin(y) + Q.shift
z = y.copy(); z[I] = np.sin(y[I]); y = z * 0.9
z = y.copy(); z[k % 5] = 0.5; y = np.sin(z)
z = y * 1.0; np.add.at(z, I, 0.1); y = np.sin(z)
y = np.sin(y) * F + y * 0.1
y = np.sin(y.astype(np.float32)).astype(np.float64) * 0.9
s = np.sum(y); y = np.sin(y) / (1.0 + s * s)
y = np.sin(y) * math.exp(-0.1 * k)
y = np.sin(y) * math.exp(-float(y[0].detach()))
y = np.sin(y) + 0.01 * R.normal(size=5)
y = np.sin(y) + 0.01 * R.uniform()
with np.errstate(divide="ignore", invalid="ignore"): y = np.sin(y) / (y + 1.0)
with np.errstate(all="raise"): y = np.sin(y) / (y + 1.0)
y = np.sin(y); t = f"{y[0].item():.3f}"
y = np.sin(y); t = f"{y[0]:.3f}"
y = np.sin(y); log.debug("y is %s", y)
y = np.sin(y) * x; e = np.max(np.abs(y - x)); y = 0.5 * y if e < 1e-12 else y
y = recursive(y, 2)
y = sum(y * w for w in weights()) + 0.1
try: y = np.sin(y) / W[k % 7]
except IndexError: y = 0.9 * y
y = np.stack([0.5 * v * v + 0.1 for v in y])
y = np.sin(y) * cached(k % 4)
y = np.sin(y) + 0.1 * np.polyval(C, np.sin(y[0]))
y = np.sin(y) + 0.1 * np.mean(y) / (1.0 + np.std(y))
y = np.sort(np.sin(y))
y = np.sin(y) + 0.1 * np.median(y)
y = np.sin(y).reshape(5, 1).sum(axis=1) * 0.9
y = np.tanh(A @ y) + B
y += 0.1 * np.sin(y)
y = np.sin(y); y[0] *= 0.5
y = np.sin(y) + 0.01 * sum(y)
y = np.sin(y) + 0.01 * max(y)
y = np.sin(y) + 0.01 * abs(y[0])
a, b, *_ = y; y = np.sin(y) * a + b
y = np.sin(y) * np.linalg.det(np.outer(y, y) + A)
y = np.sin(y) * np.linalg.slogdet(np.outer(y, y) + A)[0]
y = np.linalg.inv(np.diag(y + 2.0)) @ C
y = np.linalg.cholesky(np.outer(y, y) + A)[0] * 0.2
y = np.fft.irfft(np.fft.rfft(y), 5) * 0.9
y = np.convolve(y, C, mode="same") * 0.2
y = np.sin(y) * np.heaviside(y, 0.5)
y = np.sin(y) * np.sign(y) + np.floor(y)
y = np.sin(y) * (y > 0.5)
y = np.select([y < 0.4, y < 0.8], [np.sin(y), 0.9 * y], 0.5)
y = np.sin(y) if np.all(np.isfinite(y)) else x
y = np.sin(y) if not np.any(y < 0) else x
y = np.sin(y) if y.shape == (5,) and len(y) == 5 and y.ndim == 1 else x
y = np.sin(y); assert np.allclose(y, y)
y = np.linalg.lstsq(A, y)[0] * 0.5 + 0.1
t = y.detach(); y = np.sin(y) + 0.1 * t
t = y[0].detach(); y = np.sin(y) + 0.1 * t
y = y / np.max(np.abs(y.detach()))
y = np.sin(y); log.debug("y is %s", y.detach())
y = np.sin(y); seen[:] = y.detach().numpy()
with tg.no_grad(): t = np.sin(y) * 0.1; s = float(np.sum(t))
and then: y = np.sin(y) + s * t
""".strip().splitlines()


@dataclass
class Parameters:
    """As programs hand them around."""

    rate: float
    shift: np.ndarray


def recursive(y, depth):
    return np.sin(y) if depth == 0 else 0.9 * recursive(y, depth - 1) + 0.1


def weights():
    yield from (0.2, 0.3, 0.4)


@functools.lru_cache
def cached(k):
    return np.linspace(0.5, 0.9, 5) + 0.01 * k


def names():
    plain = np.linspace(0.4, 0.8, 5)
    matrix = np.eye(5) * 2.0 + 0.1
    return {
        "np": np, "tg": tg, "math": math, "log": logging.getLogger(__name__), "recursive": recursive,
        "weights": weights, "cached": cached, "A": tg.tensor(matrix), "B": tg.tensor(0.1 * plain),
        "C": tg.tensor(plain), "M": tg.tensor(plain > 0.6), "F": np.float32(0.75), "I": np.array([3, 1]),
        "P": {"a": 0.9, "b": [0.1, 0.2, 0.3]}, "Q": Parameters(0.9, plain), "W": [1.1, 1.2, 1.3, 1.4],
        "R": None, "seen": np.zeros(5),
    }  # fmt: skip


def program(body):
    """The function that has a body, with numbers of its own that are drawn anew at each call."""
    spaces = names()
    body = body.replace("; assert", "\nassert")
    lines = textwrap.indent(body, " " * 8)
    exec(TEXT.format(lines), spaces)

    def f(x):
        spaces["R"] = np.random.default_rng(0)
        return spaces["f"](x)

    return f


def bodies():
    """Their texts; what begins with `except`, or `and then:`, belongs to the line before it."""
    found = []
    for line in BODIES:
        if line.startswith(("except", "and then: ")):
            found[-1] += "\n" + line.removeprefix("and then: ")
        else:
            found.append(line)
    return found


def measured(body):
    """Medians of the recorded and the compiled call, in microseconds, and what is known of the latter."""
    f, x = program(body), np.linspace(0.3, 0.9, 5)
    compiled, recorded = tg.compile(f, wait=True), tg.func.value_and_grad(f)
    for _ in range(WARM):
        found = compiled.value_and_grad(x)
    wanted = recorded(x)
    assert np.allclose(found[0], wanted[0], rtol=1e-12, atol=0), body
    assert np.allclose(found[1], wanted[1], rtol=1e-9, atol=1e-300), body
    times = in_turns({"mine": compiled.value_and_grad, "theirs": recorded}, ROUNDS, arguments=lambda: (x,))
    mine, theirs = (1e6 * np.median(times[key]) for key in ("mine", "theirs"))
    [kind] = compiled.explain().kinds
    notes = [f"{n} left: {why}" for why, n in kind.left.items()] + [kind.not_learned]
    for way in kind.ways[:1]:
        if way.compared < way.operations:
            notes.append(f"{way.compared} of {way.operations} compared")
        notes.append(", ".join(way.by_python))
    return mine / theirs, theirs, mine, "; ".join(filter(None, notes))


def main():
    pace.BEFORE = sys.maxsize
    words, rows = sys.argv[1:], []
    for body in bodies():
        if not words or any(word in body for word in words):
            try:
                rows.append((*measured(body), body))
            except Exception as error:
                print(f"{body}: {type(error).__name__}: {error}")
    print(f"{'us':84s}{'recorded':>10s}{'compiled':>10s}{'ratio':>8s}")
    for ratio, theirs, mine, note, body in sorted(rows, reverse=True):
        print(f"{body.splitlines()[0]:84s}{theirs:10.0f}{mine:10.0f}{ratio:8.2f}  {note}", flush=True)


if __name__ == "__main__":
    main()
