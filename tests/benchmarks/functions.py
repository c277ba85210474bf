"""What a call of a Function costs: apply, then a gradient or backward, beside torch in the same run.

    python -m tests.benchmarks.functions [--rounds N]

The Function is ``x * y`` and saves both; a second one is made of functions compiled by Numba. Gradients are
compared first. Every round calls each in turn; printed are the best times in microseconds per call, and their
ratios: tapegrad's over torch's.
"""

import os

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")

import argparse

import numba
import numpy as np
import torch

import tapegrad as tg

from .rounds import in_turns

CALLS = 20


def product(function):
    """The Function of a tool."""

    class Product(function):
        @staticmethod
        def forward(ctx, x, y):
            ctx.save_for_backward(x, y)
            return x * y

        @staticmethod
        def backward(ctx, g):
            x, y = ctx.saved_tensors
            return g * y, g * x

    return Product.apply


class Compiled(tg.autograd.Function):
    """The same, compiled."""

    forward = staticmethod(numba.njit(lambda x, y: x * y))
    backward = staticmethod(numba.njit(lambda g, out, x, y: (g * y, g * x)))


def programs(apply, grad, tensors, ones):
    """What is timed: of two leaves, and the cotangent."""

    def backward():
        for x in tensors:
            x.grad = None
        apply(*tensors).backward(ones)
        return [x.grad for x in tensors]

    return {
        "apply": lambda: apply(*tensors),
        "apply, grad": lambda: grad(apply(*tensors), tensors, ones),
        "apply, backward": backward,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=300)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    for n in (0, 1000):
        values = [np.linspace(a, a + 1, n) if n else a for a in (1.5, 0.5)]
        ones = np.ones(n) if n else 1.0
        leaves = [tg.tensor(v, requires_grad=True) for v in values]
        ours, quick = (
            programs(apply, tg.grad, leaves, tg.tensor(ones))
            for apply in (product(tg.autograd.Function), Compiled.apply)
        )
        theirs = programs(
            product(torch.autograd.Function),
            torch.autograd.grad,
            [torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in values],
            torch.tensor(ones, dtype=torch.float64),
        )
        for name in ("apply, grad", "apply, backward"):
            for a, b, c in zip(ours[name](), quick[name](), theirs[name](), strict=True):
                np.testing.assert_array_equal(a.numpy(), c.numpy())
                np.testing.assert_array_equal(b.numpy(), c.numpy())
        for name in ours:
            ways = {"ours": ours[name], "quick": quick[name], "theirs": theirs[name]}
            best = [1e6 * rows.min() for rows in in_turns(ways, rounds, CALLS).values()]
            size = f"{n} elements" if n else "scalars"
            print(
                f"{name:16} {size:14} {best[0]:7.1f} us, compiled {best[1]:6.1f}, torch {best[2]:6.1f}: "
                f"{best[0] / best[2]:.2f}, {best[1] / best[2]:.2f}"
            )


if __name__ == "__main__":
    main()
