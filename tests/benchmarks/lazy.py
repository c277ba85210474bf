"""NumPy's most used functions and Tensor's methods inside `tapegrad.compile`, beside ordinary recording.

    python -m tests.benchmarks.lazy [WORD ...]

A function calls one of them 20 times and reads the clock before and after; what its results are computed by
comes behind. Printed, slowest first, are best times of a call in nanoseconds, beyond a call of a function of
Python's that returns its argument: where a program compares it (lazily), and where it is recorded. Words keep
calls that have one of them in their text.
"""

import os

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")

import sys
from time import perf_counter_ns

import numpy as np

import tapegrad as tg

CALLS, ROUNDS, LEARNED = 20, 60, 6
CASES = (
    "np.sin(x)", "np.exp(x)", "np.maximum(x, 0.0)", "np.abs(x)", "np.power(x, 2.0)", "np.clip(x, 0.1, 0.9)",
    "np.where(x > 0.5, x, 0.0)", "np.sum(x)", "np.sum(x, axis=0)", "np.mean(x, axis=1, keepdims=True)",
    "np.max(x, axis=0)", "np.prod(x)", "np.var(x)", "np.var(x, axis=0, ddof=1)", "np.std(x)",
    "np.std(x, axis=1, keepdims=True)", "np.ptp(x)", "np.average(x)", "np.average(x, weights=A)",
    "np.cov(x)", "np.corrcoef(x)", "np.median(x)", "np.percentile(x, 30.0)", "np.quantile(x, 0.3, axis=0)",
    "np.nansum(x)", "np.nanmean(x)", "np.diff(x)", "np.diff(x, axis=0)", "np.gradient(v)",
    "np.cumsum(x, axis=1)", "np.trapezoid(v)", "np.interp(v, P, Q)", "np.dot(x, x)", "np.matmul(x, x)",
    "np.outer(v, v)", "np.inner(v, v)", "np.tensordot(x, x)", "np.einsum('ij,jk->ik', x, x)",
    "np.kron(x, x)", "np.cross(w, w)", "np.trace(x)", "np.linalg.norm(x)", "np.linalg.norm(x, axis=1)",
    "np.linalg.solve(x, v)", "np.linalg.inv(x)", "np.linalg.det(x)", "np.concatenate([v, v])",
    "np.stack([v, v])", "np.hstack([v, v])", "np.reshape(x, (2, 8))", "np.transpose(x)",
    "np.expand_dims(x, 0)", "np.squeeze(x)", "np.broadcast_to(v, (4, 4))", "np.tile(v, 2)",
    "np.repeat(v, 2)", "np.roll(x, 1)", "np.flip(x)", "np.split(x, 2)", "np.diag(x)", "np.tril(x)",
    "np.pad(v, 1)", "np.take(v, I)", "np.sort(x)", "np.polyval(v, 0.5)", "np.convolve(v, v)",
    "np.zeros_like(x) * x", "np.sign(x) * x", "x.sum()", "x.mean(axis=0)", "x.var()", "x.std(axis=0, ddof=1)",
    "x.reshape(2, 8)", "x.dot(x)", "x.clip(0.1, 0.9)", "x.trace()", "x @ x", "x * 2.0", "x[1]", "x[1:, 0]",
)  # fmt: skip
FREE = "same(x)"
TEXT = """
def f(x):
    v, w = x[0], x[0, :3]
    begin = clock()
    {}
    took.append(clock() - begin)
    return np.sum(x * x)
"""
START = np.random.default_rng(0).uniform(0.2, 1.0, (4, 4)) + np.eye(4)


def timed(case):
    """The best nanoseconds of a call, lazily and recorded."""
    names = {"np": np, "clock": perf_counter_ns, "took": [], "same": lambda x: x, "A": START + 1.0,
             "P": np.linspace(0.0, 2.0, 5), "Q": np.arange(5.0), "I": np.array([2, 0])}  # fmt: skip
    exec(TEXT.format("\n    ".join([case] * CALLS)), names)
    compiled, recorded = tg.compile(names["f"], wait=True), tg.func.value_and_grad(names["f"])
    for k in range(LEARNED):
        compiled.value_and_grad(START + 0.01 * k)
    found = []
    for call in (compiled.value_and_grad, recorded):
        names["took"].clear()
        for _ in range(ROUNDS):
            call(START)
        found.append(min(names["took"]) / CALLS)
    ways = compiled.explain().kinds[0].ways
    return found, bool(ways) and ways[0].calls > ROUNDS // 2


def main():
    words = sys.argv[1:]
    (free, _), _ = timed(FREE)
    rows = []
    for case in CASES:
        if not words or any(word in case for word in words):
            found, served = timed(case)
            rows.append((*(t - free for t in found), case, "" if served else "no program serves it"))
    print(f"{'ns a call':36s}{'lazy':>10s}{'recorded':>10s}{'ratio':>8s}")
    for lazy, recorded, case, note in sorted(rows, reverse=True):
        print(f"{case:36s}{lazy:10.0f}{recorded:10.0f}{lazy / max(recorded, 1):8.2f}  {note}")


if __name__ == "__main__":
    main()
