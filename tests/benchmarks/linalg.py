"""Gradients of linear algebra and contractions beside torch's, and the BLAS and LAPACK calls they need.

    python -m tests.benchmarks.linalg [--sizes 10 100 300] [--only cholesky ...] [--rounds N] [--calls N]

Gradients are compared first. In every round each has a turn, of calls for two milliseconds or --calls, on one
thread whose own time is taken, as the machine may be busy; printed are the best times in microseconds. (With
turns of one call a third of 0.2 ms would be for filling the processor's caches, more after one call than
after another.) A *sweep* is timed inside the call that records what it sweeps, the last of a turn; *calls*
are the bare ones that its rule needs, made in the same rounds. Bars:

* n of 100 and more: the sweep at most 1.1 times the slower of torch's and the calls; the whole gradient at
  most 1.3 times torch's, both over what the library takes for the value alone; products of stacks, and other
  contractions, at most 1.2 times torch's;
* n = 10: recording and sweep at most 1.1 times torch's.

Of stacks the products that value and gradients are made of are timed by themselves, by both libraries: what
these take decides where the matrices are large.
"""

import os

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")

import argparse
import sys
from time import thread_time
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.linalg import blas, lapack

import tapegrad as tg

from .rounds import difference, in_turns

TURN, LONGEST_TURN = 2e-3, 20  # seconds of a turn in a round, and calls at most


class Program(NamedTuple):
    """A function of a tool's namespace and arrays, its arrays, and the bare calls that its rule needs.

    Of stacks of products also those of value and gradients, as pairs of arrays.
    """

    function: Any
    arrays: list[Any]
    calls: dict[str, Any]
    products: Any = ()


def contraction(text):
    """A function of a namespace and arrays, plain ones by products too: NumPy's loops take seconds."""

    def contract(m, *arrays):
        given = {"optimize": True} if type(arrays[0]) is np.ndarray else {}
        return m.einsum(text, *arrays, **given)

    return contract


def programs(n):
    """By name, for matrices of n rows."""
    rng = np.random.default_rng(n)
    square, right = rng.normal(size=(2, n, n))
    general = square + n**0.5 * 4 * np.eye(n)
    even = square @ square.T / n + np.eye(n)
    scaled = general / (n**0.5 * 4)  # of which the determinant is no infinity
    a, b, low, one = map(np.asfortranarray, (general, right, np.linalg.cholesky(even), np.eye(n)))
    product, row = {"gemm": lambda: blas.dgemm(1.0, a, b)}, np.ones(n)
    inverse = {"gesv": lambda: lapack.dgesv(a, one)}
    twice = {
        "trsm": lambda: blas.dtrsm(1.0, low, b, lower=1),
        "trsm.": lambda: blas.dtrsm(1.0, low, b, lower=1),
    }
    products = dict.fromkeys(("gemm", "gemm.", "gemm.."), product["gemm"])
    pair = dict.fromkeys(("gemm", "gemm."), product["gemm"])
    stacks = x, y = rng.normal(size=(2, 16, n, n))
    three = rng.normal(size=(3, n, n))
    return {
        "cholesky": Program(lambda m, x: m.linalg.cholesky(x), [even], product | twice),
        "solve": Program(lambda m, x, y: m.linalg.solve(x, y), [general, right], inverse | product),
        "solve, vector": Program(
            lambda m, x, y: m.linalg.solve(x, y), [general, right[0]], {"gesv": lambda: lapack.dgesv(a, row)}
        ),
        "inv": Program(lambda m, x: m.linalg.inv(x), [general], pair),
        "det": Program(lambda m, x: m.linalg.det(x), [scaled], inverse),
        "slogdet": Program(lambda m, x: m.linalg.slogdet(x)[1], [general], inverse),
        "eigh, values": Program(lambda m, x: m.linalg.eigh(x)[0], [even], product),
        "eigh, vectors": Program(lambda m, x: m.linalg.eigh(x)[1] ** 2, [even], products),
        "tensordot": Program(lambda m, x, y: m.tensordot(x, y, 1), [general, right], pair),
        "tensordot, both": Program(lambda m, x, y: m.tensordot(x, y, ([0], [1])), [general, right], pair),
        "ij,jk->ik": Program(contraction("ij,jk->ik"), [general, right], {}),
        "bij,bjk->bik": Program(contraction("bij,bjk->bik"), [x, y], {}, [(x, y), (x, y.mT), (x.mT, y)]),
        "bij,bkj->bik": Program(contraction("bij,bkj->bik"), [x, y], {}, [(x, y.mT), (x, y), (x.mT, y)]),
        "bij,bj->bi": Program(contraction("bij,bj->bi"), [stacks[0], stacks[1, :, 0]], {}),
        "ij,jk,kl->il": Program(contraction("ij,jk,kl->il"), list(three), {}),
    }


def of_tool(m, program, leaves, seed, grad, bare):
    """Calls that give the value alone, and the gradient with the seconds of recording and sweep."""

    def gradient():
        begin = thread_time()
        out = program.function(m, *leaves)
        recorded = thread_time()
        found = grad(out, leaves, seed)
        end = thread_time()
        return found, recorded - begin, end - recorded

    return {"value": lambda: program.function(m, *bare), "gradient": gradient}


def products_of(program):
    """Calls that compute a program's products alone, into memory that is there, by either library."""
    found = {}
    for library, of in ((np, np.asarray), (torch, torch.from_numpy)):
        out = of(np.empty(program.products[0][0].shape))
        pairs = [(of(a), of(b)) for a, b in program.products]
        call = lambda m=library, pairs=pairs, out=out: [m.matmul(a, b, out=out) for a, b in pairs]
        found[f"{library.__name__} products"] = call
    return found


def measure(name, program, rounds, inner=0):
    """Rows of best seconds by what was timed: of value, bare calls; of gradients (both, record, sweep)."""
    seed = np.asarray(np.random.default_rng(0).normal(size=np.shape(program.function(np, *program.arrays))))
    leaves = [tg.tensor(x, requires_grad=True) for x in program.arrays]
    ours = of_tool(np, program, leaves, tg.tensor(seed[()]), tg.grad, program.arrays)
    peers = [torch.tensor(x, requires_grad=True) for x in program.arrays]
    bare = [x.detach() for x in peers]
    theirs = of_tool(torch, program, peers, torch.tensor(seed), torch.autograd.grad, bare)
    for mine, other in zip(ours["gradient"]()[0], theirs["gradient"]()[0], strict=True):
        mine, other = mine.numpy(), other.numpy()
        if name.startswith("eigh"):  # torch's is not even
            mine, other = mine + mine.T, other + other.T
        if not difference(mine, other) < 1e-8:
            sys.exit(f"{name}: the gradient differs from torch's")
    calls = {f"ours {key}": call for key, call in ours.items()}
    calls |= {f"torch {key}": call for key, call in theirs.items()}
    calls |= program.calls
    if program.products:
        calls |= products_of(program)
    if not inner:
        once = in_turns(calls, 2, clock=thread_time)
        inner = {key: int(np.clip(TURN / rows[:, 0].min(), 1, LONGEST_TURN)) for key, rows in once.items()}
    times = in_turns(calls, rounds, inner, parts=seconds, clock=thread_time)
    return {key: 1e6 * rows.min(axis=0) for key, rows in times.items()}


def seconds(result):
    """What a gradient tells of its parts."""
    return result[1:] if type(result) is tuple and type(result[-1]) is float else ()


def verdict(ratio, bar):
    return f"{ratio:5.2f} {'met' if ratio <= bar else 'MISSED':6s}"


def report(name, n, program, best):
    mine, other = best["ours gradient"], best["torch gradient"]
    value, peer = best["ours value"][0], best["torch value"][0]
    text = f"{n:5d} {name:16s} both{mine[0]:9.1f}{other[0]:9.1f}"
    if n < 100:
        print(f"{text} {verdict(mine[0] / other[0], 1.1)}", flush=True)
        return
    text += f"  value{value:9.1f}{peer:9.1f}"
    if not program.calls:
        text = f"{text} {verdict(mine[0] / other[0], 1.2)}"
        if program.products:
            bare = [best[f"{name} products"][0] for name in ("numpy", "torch")]
            text += "  products alone {:.1f} {:.1f} {:5.2f}".format(*bare, bare[0] / bare[1])
        print(text, flush=True)
        return
    text += f" scaled {verdict(mine[0] / other[0] * peer / value, 1.3)}"
    calls = sum(best[key][0] for key in program.calls)
    text += (
        f"  sweep{mine[2]:9.1f}{other[2]:9.1f}{calls:9.1f} {verdict(mine[2] / max(other[2], calls), 1.1)} "
    )
    print(text + ", ".join(f"{key.rstrip('.')} {best[key][0]:.0f}" for key in program.calls), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="*", default=[10, 100, 300])
    parser.add_argument("--only", nargs="*", help="parts of names")
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--calls", type=int, default=0, help="of a turn")
    args = parser.parse_args()
    torch.set_num_threads(1)
    print("us, best: tapegrad, torch; of sweeps also the bare calls that are listed; ratio and bar")
    for n in args.sizes:
        rounds = 60 if n < 100 else 40 if n < 300 else 12
        for name, program in programs(n).items():
            if not args.only or any(part in name for part in args.only):
                report(name, n, program, measure(name, program, args.rounds or rounds, args.calls))


if __name__ == "__main__":
    main()
