"""Copies of large arrays that lie in memory in another order."""

import itertools

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.ops import buffers

SHAPES = [  # of arrays of some hundred KiB, near the counts of elements and bytes that are copied at once
    (buffers.LINES - 1, 130), (buffers.LINES, 129), (buffers.LINES + 1, 128), (70_000, 2), (2, 70_000),
    (1, 40_000, 1), (576, 5, 16), (16, 64, 64), (1024, 16), (7, 1, 9, 300), (33, 1, 33, 33),
]  # fmt: skip


@pytest.mark.parametrize("dtype", ["f4", "f8", "c8", "c16", "i8", "?", "g"])
@pytest.mark.parametrize("shape", SHAPES)
def test_reshape_of_any_order_of_axes(shape, dtype):
    x = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    for axes in itertools.permutations(range(x.ndim)):
        for y in (x.transpose(axes), x.transpose(axes)[::-1], x.transpose(axes)[..., ::2]):
            found = buffers.reshape(y, (-1,))
            np.testing.assert_array_equal(found, y.reshape(-1))
            assert found.dtype == y.dtype
            assert found.flags.c_contiguous or np.shares_memory(found, y)
            np.testing.assert_array_equal(buffers.copied(y), y)


@pytest.mark.parametrize("n", [20, 300])
def test_views_stay_views(n):
    x = np.ones((n, n, 2))
    assert np.shares_memory(buffers.reshape(x[:, :, 0], (n, n, 1)), x)
    assert np.shares_memory(buffers.reshape(x[::2], (-1, n * 2)), x)
    assert not np.shares_memory(buffers.reshape(x.transpose(1, 0, 2), (-1,)), x)


@pytest.mark.parametrize("dtype", ["f", "d", "D"])
def test_gradients_of_large_transposes(dtype):
    x = tg.tensor(np.random.default_rng(0).standard_normal((3, 64, 600)).astype(dtype), requires_grad=True)
    w, numbers = np.cos(np.arange(x.size)).astype(dtype), np.arange(x.size).reshape(x.shape)
    for flat in (lambda x: x.T.reshape(-1), lambda x: np.ravel(x.transpose(2, 0, 1))):
        y, expected = flat(x), np.zeros(x.size, dtype)
        np.testing.assert_array_equal(y.detach().numpy(), flat(x.detach().numpy()))
        expected[flat(numbers)] = w
        np.testing.assert_array_equal(tg.grad(np.sum(np.real(y * w)), x)[0].numpy().reshape(-1), expected)


def test_products_of_stacks_and_dtypes():
    """As NumPy's to the last bit, in memory that is used again, whatever the stacks and dtypes are."""
    random, n = np.random.default_rng(0), 96
    a, b = random.normal(size=(n, n)), random.normal(size=(3, 3, 3, n, n - 1))
    single = a.astype("f")
    for x, y in ((a, b[0, 0]), (b[0, 0].mT, a), (b[0].mT, b), (single, b[0, 0, 0]), (a[:, :0], a[:0])):
        found, wanted = buffers.matmul(x, y), np.matmul(x, y)
        assert found.dtype == wanted.dtype
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("function", [buffers.add, buffers.subtract, buffers.multiply])
def test_arithmetic_of_shapes_and_dtypes(function):
    """As NumPy's to the last bit, of arrays that are small, large, or whose results are."""
    ufunc = getattr(np, next(k for k, f in vars(buffers).items() if f is function))
    n = buffers.LARGE // 8
    x = np.linspace(-1, 1, n + 1)
    for a in (x, x[1:], x[2:], x[:300, None], x[:5]):
        for b in (a, a.astype("f"), a * 1j, a[:1], a.reshape(-1)[:300, None]):
            found, wanted = function(a, b), ufunc(a, b)
            assert found.dtype == wanted.dtype
            np.testing.assert_array_equal(found, wanted)
