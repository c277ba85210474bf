"""Sweeps over operands of every layout, with last axes around each size at which the walk changes."""

import itertools
import subprocess
import sys

import numpy as np
import pytest

import tapegrad as tg
from tests.tiers import thinned

LAST = 1, 2, 3, 7, 8, 31, 32, 33, 64  # around SHORT_AXIS, and a pair as short as that
ROWS = 2, 3, 7, 8, 9, 16, 17, 170, 171, 260  # around FEW_ROWS, rows that fill a block, and those left over
DTYPES = np.float64, np.float32, np.complex128, np.complex64
# the walk is one for singles and doubles, but for the conversions at its ends
ENDS = thinned(itertools.product(LAST, DTYPES), lambda n, dtype: dtype in DTYPES[::2] or n in (1, 31, 32))
ALONG = (0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2)


def drawn(random, shape, dtype):
    x = random.normal(size=shape)
    return (x + 1j * random.normal(size=shape) if np.dtype(dtype).kind == "c" else x).astype(dtype)


def laid_out(x):
    """The same values dense, by columns, backwards and with gaps."""
    gaps = np.zeros([2 * n for n in x.shape], x.dtype)[tuple(slice(None, None, 2) for _ in x.shape)]
    gaps[...] = x
    return x, np.asfortranarray(x), np.flip(np.flip(x).copy()), gaps


def added_up(x, shape):
    axes = tuple(d for d, n in enumerate(shape) if n == 1 and x.shape[d] != 1)
    return x.astype(complex).sum(axis=axes, keepdims=True)


def check(found, expected, dtype):
    expected = np.asarray(expected if np.dtype(dtype).kind == "c" else np.real(expected))
    size = max(1.0, float(np.abs(expected).max(initial=0)))
    limit = (2e-6 if np.finfo(dtype).eps > 1e-10 else 1e-14) * size * 40
    assert found.shape == expected.shape and found.dtype == dtype
    assert np.abs(np.asarray(found) - expected).max(initial=0) <= limit


@pytest.mark.parametrize(("n", "dtype"), ENDS)
def test_products_of_broadcast_operands(n, dtype):
    random = np.random.default_rng(n)
    for rows in ROWS:
        shape = 3, rows, n
        for axes in ALONG:
            small = tuple(1 if d in axes else m for d, m in enumerate(shape))
            a, b, seed = (drawn(random, size, dtype) for size in (small, shape, shape))
            by_a, by_b = added_up(seed * np.conj(b), small), seed * np.conj(a)
            for a, b in zip(laid_out(a), laid_out(b), strict=True):
                x, y = tg.tensor(a, requires_grad=True), tg.tensor(b, requires_grad=True)
                dx, dy = tg.grad(x * y, [x, y], seed)
                check(dx, by_a, dtype)
                check(dy, by_b, dtype)


@pytest.mark.parametrize(("n", "dtype"), ENDS)
def test_sums_and_their_squares(n, dtype):
    random = np.random.default_rng(n)
    for rows in ROWS:
        for axes in ALONG:
            for a in laid_out(drawn(random, (3, rows, n), dtype)):
                x = tg.tensor(a, requires_grad=True)
                y = np.sum(x * x, axis=axes, keepdims=True)
                seed = drawn(random, y.shape, dtype)
                (dx,) = tg.grad(y, [x], seed)
                check(dx, 2 * np.conj(a) * seed, dtype)


@pytest.mark.parametrize(("n", "dtype"), ENDS)
def test_exchanged_axes_and_casts(n, dtype):
    random, other = np.random.default_rng(n), np.complex128 if np.dtype(dtype).kind == "c" else np.float64
    for rows in ROWS:
        shape, exchanges = (3, rows, n), ((0, 1), (0, 2), (1, 2))
        dense, scale = drawn(random, shape, dtype), drawn(random, (rows, 1), other)
        seeds = [drawn(random, np.swapaxes(dense, *axes).shape, dtype) for axes in exchanges]
        seed_of_cast = drawn(random, shape, other)
        for a in laid_out(dense):
            for axes, seed in zip(exchanges, seeds, strict=True):
                x = tg.tensor(a, requires_grad=True)
                (dx,) = tg.grad(np.swapaxes(x, *axes) * 3.0, [x], seed)
                check(dx, 3 * np.swapaxes(seed, *axes), dtype)
            x = tg.tensor(a, requires_grad=True)
            (dx,) = tg.grad(x * scale, [x], seed_of_cast)
            check(dx, seed_of_cast * np.conj(scale), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", (2, 7, 8, 31))
def test_sums_of_many_short_rows_are_rounded_once(n, dtype):
    """Added up in double precision, whatever the rows' layout."""
    seed = np.random.default_rng(n).uniform(0.5, 1.0, (30_000, n)).astype(dtype)
    exact = seed.astype(np.clongdouble).sum(axis=0)
    for rows in laid_out(seed):
        x = tg.tensor(np.zeros(n, dtype), requires_grad=True)
        (found,) = tg.grad(np.broadcast_to(x, seed.shape) * 2.0, x, rows)
        apart = np.abs(found.numpy() / 2 - exact) / np.abs(exact)
        assert apart.max() <= max(np.finfo(dtype).eps, 2e-15)


MANY_SHAPES = """
import tapegrad as tg

shapes = [(1,) * k + (2,) + (1,) * (62 - k) for k in (0, 3, 9, 20, 40)]
x = tg.tensor([1.0, 2.0], requires_grad=True)
for n in 100, 1000, 4000:
    for late in False, True:
        y = x * 1.0
        for k in range(n):
            y = y.reshape(shapes[k % 5])
        z = tg.tensor([3.0, 4.0], requires_grad=True)
        (g,) = tg.grad((y.reshape(2) * z).sum(), z if late else x)
        assert g.tolist() == ([1.0, 2.0] if late else [3.0, 4.0])
"""


def test_more_words_of_shapes_than_there_is_room_for():
    """Where an open tape is read in one call, to leaves before them and behind; in a process apart."""
    subprocess.run([sys.executable, "-c", MANY_SHAPES], check=True, timeout=600)
