"""Linear algebra in compiled functions beside the same programs on Tensors: value and gradient.

    python -m tests.benchmarks.native_linalg [--sizes 3 10 40 100 200] [--only svd ...] [--compile]

Gradients are compared first. Every round calls each in turn, on one thread; printed are the best times in
microseconds and their ratio. Bar: from 10 rows on at most 1.3 times what Tensors take. With ``--compile``
also the seconds until the first gradient of the compiled function is there, with the caches as they are.
"""

import os

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")

import argparse
import sys
import time

import numpy as np

import tapegrad as tg

from .rounds import difference, in_turns


def product(a, w):
    return np.sum((a @ a) * w)


def solve(a, w):
    return np.sum(np.linalg.solve(a, w) * w)


def inv(a, w):
    return np.sum(np.linalg.inv(a) * w)


def det(a, w):
    return np.linalg.det(a / a[0, 0]) * w[0, 0]


def slogdet(a, w):
    return np.linalg.slogdet(a)[1] * w[0, 0]


def cholesky(a, w):
    return np.sum(np.linalg.cholesky(a) * w)


def eigh(a, w):
    values, vectors = np.linalg.eigh(a)
    return np.sum(values * w[0]) + np.sum(vectors * vectors * w)


def qr(a, w):
    q, r = np.linalg.qr(a)
    return np.sum(q * w) + np.sum(r * w)


def svd(a, w):
    u, s, vt = np.linalg.svd(a, False)
    return np.sum(s * w[0]) + np.sum(u * u * w) + np.sum(vt * vt * w)


def svd_values(a, w):
    return np.sum(np.linalg.svd(a, False)[1] * w[0])


def pinv(a, w):
    return np.sum(np.linalg.pinv(a) * w)


def lstsq(a, w):
    return np.sum(np.linalg.lstsq(a, w[0], -1.0)[0] * w[1])


def eig(a, w):
    values, vectors = np.linalg.eig(a)
    return np.sum(values * w[0]) + np.sum(vectors * vectors * w)


def eigvals(a, w):
    return np.sum(np.linalg.eigvals(a) * w[0])


def programs(n):
    """Functions of a matrix and of plain weights, with a matrix each of n rows."""
    rng = np.random.default_rng(n)
    square, w = rng.normal(size=(2, n, n))
    general = square + n**0.5 * 4 * np.eye(n)
    even = square @ square.T / n + np.eye(n)
    scales = np.exp(rng.uniform(size=n))
    similar = even * scales / scales[:, None]  # not symmetric, and its eigenvalues are real
    cases = dict.fromkeys((product, solve, inv, det, slogdet, qr, svd, svd_values, pinv, lstsq), general)
    return cases | {cholesky: even, eigh: even, eig: similar, eigvals: similar}, w


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="*", default=[3, 10, 40, 100, 200])
    parser.add_argument("--only", nargs="*", help="names of functions")
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--compile", action="store_true")
    args = parser.parse_args()
    runs = {}
    print("us, best: compiled, of Tensors; their ratio")
    for n in args.sizes:
        cases, w = programs(n)
        for f, a in cases.items():
            if args.only and f.__name__ not in args.only:
                continue
            if f not in runs:
                begin = time.perf_counter()
                runs[f] = tg.func.value_and_grad(tg.njit(f))
                runs[f](a, w)
                if args.compile:
                    print(f"      {f.__name__:12s} first gradient {time.perf_counter() - begin:6.2f} s")
            calls = {"compiled": runs[f], "Tensors": tg.func.value_and_grad(f)}
            (value, mine), (other, theirs) = (run(a, w) for run in calls.values())
            if not (abs(value - other) <= 1e-9 * abs(other) and difference(mine, theirs) < 1e-8):
                sys.exit(f"{f.__name__}: the compiled function differs from that of Tensors")
            rounds, inner = args.rounds or (60 if n < 100 else 15), 10 if n < 40 else 1
            times = in_turns(calls, rounds, inner, lambda a=a, w=w: (a, w))
            best = [1e6 * rows[:, 0].min() for rows in times.values()]
            met = "" if n < 10 else "met" if best[0] <= 1.3 * best[1] else "MISSED"
            row = f"{n:5d} {f.__name__:12s}{best[0]:10.1f}{best[1]:10.1f}{best[0] / best[1]:7.2f} {met}"
            print(row, flush=True)


if __name__ == "__main__":
    main()
