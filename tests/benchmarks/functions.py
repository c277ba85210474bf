"""What a call of a Function costs: apply, then a gradient or backward, beside torch in the same run.

    python -m tests.benchmarks.functions [--rounds N]

The Function is ``x * y`` and saves both. Gradients are compared first. Every round calls each tool in turn;
printed are the best times in microseconds per call, and their ratio: tapegrad's over torch's.
"""

import os

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")

import argparse
from time import perf_counter

import numpy as np
import torch

import tapegrad as tg

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
        ours = programs(
            product(tg.autograd.Function),
            tg.grad,
            [tg.tensor(v, requires_grad=True) for v in values],
            tg.tensor(ones),
        )
        theirs = programs(
            product(torch.autograd.Function),
            torch.autograd.grad,
            [torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in values],
            torch.tensor(ones, dtype=torch.float64),
        )
        for name in ("apply, grad", "apply, backward"):
            for a, b in zip(ours[name](), theirs[name](), strict=True):
                np.testing.assert_array_equal(a.numpy(), b.numpy())
        for name in ours:
            best = [np.inf, np.inf]
            for _ in range(rounds):
                for k, run in enumerate((ours[name], theirs[name])):
                    begin = perf_counter()
                    for _ in range(CALLS):
                        run()
                    best[k] = min(best[k], (perf_counter() - begin) / CALLS * 1e6)
            size = f"{n} elements" if n else "scalars"
            print(f"{name:16} {size:14} {best[0]:7.1f} us, torch {best[1]:6.1f}: {best[0] / best[1]:.2f}")


if __name__ == "__main__":
    main()
