"""Random programs of arrays under `tg.njit`, by seeds: values, gradients and second derivatives are others'.

python -m tests.native.random_arrays FIRST END

Values and gradients are compared with those of Tensors and, where no edge is near, with differences; of every
third seed Hessian products as well, whose differences are those of gradients. What differs is printed.
"""

import sys
import time
import traceback
from random import Random

import numpy as np

import tapegrad as tg

from ..array_programs import differences, function_of, point, sizes_for, text_of


def close(found, wanted, tolerance):
    scale = max(1.0, *(np.abs(w).max() for w in wanted))
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * scale)


def inner(gradients, along):
    return sum(np.sum(g * v) for g, v in zip(gradients, along, strict=True))


def check(text, second=True):
    """Compare at each size; returns at how many, and for how many the differences were those of no edge."""
    plain = function_of(text)
    native = tg.njit(plain)
    gradients = tg.func.grad(native, (0, 1))
    sizes, smooth_at = sizes_for(text), 0
    for n in sizes:
        args, along = point(n)
        xs = [tg.tensor(np.copy(a), requires_grad=True) for a in args]
        first = tg.grad(plain(*xs), xs, create_graph=True, materialize_grads=True)
        value, found = tg.func.value_and_grad(native, (0, 1))(np.copy(args[0]), args[1])
        np.testing.assert_allclose(value, plain(np.copy(args[0]), args[1]), rtol=1e-11, atol=1e-12)
        close(found, [g.detach().numpy() for g in first], 1e-10)
        (by_steps,), (smooth,), size = differences(lambda *a: [plain(*a)], args, along)
        if smooth:
            smooth_at += 1
            assert abs(inner(found, along) - by_steps) < 1e-4 * size
        slope = inner(first, along)
        if second and slope.requires_grad:
            wanted = [h.numpy() for h in tg.grad(slope, xs, materialize_grads=True)]
            found = tg.func.hvp(native, (0, 1))(np.copy(args[0]), args[1], along)
            close(found, wanted, 1e-9)
            by_steps, smooth, size = differences(gradients, args, along)
            for a, b, where in zip(found, by_steps, smooth, strict=True):
                np.testing.assert_allclose(np.asarray(a)[where], b[where], rtol=0, atol=2e-4 * size)
    return len(sizes), smooth_at


def main(first, end):
    """Check the programs of these seeds."""
    programs = compared = of_second = different = 0
    for number in range(first, end):
        text, begun = text_of(Random(number)), time.process_time()
        second = number % 3 == 0
        programs, of_second = programs + 1, of_second + second
        try:
            sizes, smooth = check(text, second)
        except Exception:
            different += 1
            print(f"{number}: differs\n{text}\n{traceback.format_exc()}", flush=True)
            continue
        compared += smooth > 0
        seconds = time.process_time() - begun
        print(f"{number}: {sizes} sizes, {smooth} by differences, {seconds:.1f} s", flush=True)
    print(f"{programs} programs, {compared} by differences, {of_second} to order 2, {different} differ")
    return different > 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
