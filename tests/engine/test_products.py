"""Products of matrices in compiled sweeps: by NumPy's BLAS or SciPy's, into what a transpose was taken of."""

import ctypes

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.autograd import profiler
from tapegrad.kernels import abi, blas, table
from tapegrad.kernels.replay import layout
from tapegrad.kernels.replay.layout import SHORT_AXIS
from tapegrad.ops import REGISTRY
from tapegrad.ops.primitive import Primitive
from tests.tiers import every, thinned

pytestmark = pytest.mark.skipif(not abi.native(), reason="elsewhere rules run in Python")
SHAPES = [
    ((5, 7), (5, 3)), ((40, 70), (40, 30)), ((3, 5, 7), (3, 5, 4)), ((3, 40, 70), (3, 40, 50)),
    ((1, 5, 7), (3, 5, 4)), ((5, 7), (3, 5, 4)), ((2, 1, 5, 7), (3, 5, 4)), ((1, 1), (1, 1)),
    ((5, 1), (5, 1)), ((1, 6), (1, 3)), ((0, 3), (0, 2)), ((3, 0), (3, 2)),
    ((5, 7), (5, 1)), ((5, 1), (5, 7)), ((2, 5, 1), (2, 5, 7)), ((40, 70), (40, 1)), ((40, 1), (40, 70)),
    *(((5, n), (5, 1)) for n in (SHORT_AXIS - 1, SHORT_AXIS, SHORT_AXIS + 1)),
    *(((n, 5), (n, 1)) for n in (SHORT_AXIS - 1, SHORT_AXIS, SHORT_AXIS + 1)),
    ((2600, 20), (2600, 20)), ((20, 2600), (20, 20)), ((20, 20), (20, 2600)),  # in parts
]  # fmt: skip


@pytest.fixture(params=["numpys", "scipys"])
def library(request, monkeypatch):
    """Products by NumPy's library, and where that is not to be found by SciPy's."""
    table.blas()
    if request.param == "scipys":
        products = blas.scipys_products()
        known = [0, *(products[char].gemm for char in "dfDF"), *(products[char].gemv for char in "dfDF"), 0]
        before = table._blas.copy()
        table._blas[:] = known
        yield request.param
        table._blas[:] = before
    else:
        yield request.param


@pytest.fixture
def rules(monkeypatch):
    """Names of the ops whose rules run in Python."""
    found, before = [], Primitive.vjp

    def noting(self, *args):
        found.append(self.name)
        return before(self, *args)

    monkeypatch.setattr(Primitive, "vjp", noting)
    return found


def turned(x):
    return np.swapaxes(x, -1, -2)


def summed(x, shape):
    """To the shape of what was broadcast."""
    while x.ndim > len(shape):
        x = x.sum(0)
    stretched = tuple(d for d, n in enumerate(shape) if n == 1 and x.shape[d] != 1)
    return x.sum(stretched, keepdims=True)


def values(random, shape, dtype):
    found = random.normal(size=shape)
    if dtype in "FD":
        found = found + 1j * random.normal(size=shape)
    return found.astype(dtype)


def test_numpys_library_is_found_here():
    assert set(blas.numpys_products()) == set("fdFD")
    assert table.blas() is None
    assert table._blas[0] == 1
    says_threads = ctypes.CFUNCTYPE(ctypes.c_int)(int(table._blas[layout.THREADS]))
    assert 1 <= says_threads() <= 1024


@pytest.mark.parametrize("again", [False, True], ids=["once", "used elsewhere"])
@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("shapes", every([(pair,) for pair in SHAPES], 5), ids=str)
@pytest.mark.parametrize("dtype", thinned("fdFD", lambda dtype: dtype in "dF"))
def test_products_with_transposes(dtype, shapes, side, again, library, random):
    a, b = (values(random, shape, dtype) for shape in shapes)
    x, y = (tg.tensor(z, requires_grad=True) for z in (a, b))
    view = turned(x)
    found = view @ y if side == 0 else turned(y) @ x
    ct = values(random, found.shape, dtype)
    total = np.real(np.sum(found * np.conj(ct)))
    if again:
        total = total + np.real(np.sum(view * 3.0))
    for _ in range(2):
        by_x, by_y = tg.grad(total, [x, y], retain_graph=True)
        if side == 0:
            wanted = turned(ct @ np.conj(turned(b))), np.conj(a) @ ct
        else:
            wanted = np.conj(b) @ ct, turned(ct @ np.conj(turned(a)))
        wanted = summed(wanted[0], a.shape) + 3.0 * again, summed(wanted[1], b.shape)
        for mine, other, z in zip((by_x, by_y), wanted, (a, b), strict=True):
            assert mine.shape == z.shape
            assert mine.dtype == z.dtype
            scale = np.max(np.abs(other), initial=1.0)
            eps = np.finfo(dtype).eps
            np.testing.assert_allclose(mine.numpy(), other, rtol=0, atol=100 * eps * scale)


@pytest.mark.skipif(bool(layout.BOUNDS), reason="counts rules of the usual build")
def test_large_products_run_in_compiled_code(random, rules):
    """And are added where something is; none of their transposes is copied."""
    a, b = (tg.tensor(random.normal(size=(100, 100)), requires_grad=True) for _ in range(2))
    table.blas()

    def total():
        return np.sum(a.T @ b) + np.sum(b @ a) + np.sum(a @ b.T)

    for _ in range(3):
        rules.clear()
        by_a, by_b = tg.grad(total(), [a, b])
    assert rules == []
    x, y, one = a.detach().numpy(), b.detach().numpy(), np.ones((100, 100))
    np.testing.assert_allclose(by_a.numpy(), (one @ y.T).T + y.T @ one + one @ y, atol=1e-12)
    np.testing.assert_allclose(by_b.numpy(), x @ one + one @ x.T + (x.T @ one).T, atol=1e-12)


def test_a_transpose_that_somebody_looks_at(random):
    """Kept by `retain_grad`, asked for, hooked, profiled, or looked through for nan."""
    a, b = random.normal(size=(30, 40)), random.normal(size=(30, 20))
    wanted = np.ones((40, 20)) @ b.T

    def graph():
        x = tg.tensor(a, requires_grad=True)
        view = x.T
        return x, view, np.sum(view @ b)

    x, view, y = graph()
    view.retain_grad()
    y.backward()
    np.testing.assert_allclose(view.grad.numpy(), wanted)
    np.testing.assert_allclose(x.grad.numpy(), wanted.T)
    x, view, y = graph()
    for g, other in zip(tg.grad(y, [view, x]), (wanted, wanted.T), strict=True):
        np.testing.assert_allclose(g.numpy(), other)
    x, view, y = graph()
    view.register_hook(lambda g: 2 * g)
    y.backward()
    np.testing.assert_allclose(x.grad.numpy(), 2 * wanted.T)
    x, view, y = graph()
    with profiler.profile() as profile:
        y.backward()
    np.testing.assert_allclose(x.grad.numpy(), wanted.T)
    assert "TransposeBackward" in [event.name for event in profile.function_events]
    x, view, y = graph()
    with pytest.warns(UserWarning, match="anomaly"), tg.autograd.detect_anomaly():
        y.backward()
    np.testing.assert_allclose(x.grad.numpy(), wanted.T)


VIEWS = {
    "axes in front": lambda x: np.swapaxes(x, 0, 1),
    "all axes": lambda x: np.transpose(x, (1, 2, 0)),
    "a flipped transpose": lambda x: np.swapaxes(x, 1, 2)[:, ::-1],
    "of a window": lambda x: np.swapaxes(x[:, 1:, :-1], -1, -2),
    "a window of one": lambda x: np.swapaxes(x, -1, -2)[:, :3],
    "nothing": lambda x: np.transpose(x, (0, 1, 2)),
    "axes in front and matrices": lambda x: np.transpose(np.reshape(x, (2, 3, 6, 6)), (1, 0, 3, 2)),
    "moved in front": lambda x: np.moveaxis(x, 2, 0),
}


@pytest.mark.parametrize("name", VIEWS)
def test_other_views_are_no_transposes(name, random):
    a, view = random.normal(size=(6, 6, 6)), VIEWS[name]
    part = view(a)
    b, ct = (random.normal(size=(*part.shape[:-2], n, 5)) for n in part.shape[:-3:-1])
    x = tg.tensor(a, requires_grad=True)
    (found,) = tg.grad(view(x) @ b, x, ct)
    places, wanted = view(np.arange(a.size).reshape(a.shape)), np.zeros(a.size)
    wanted[places] = ct @ turned(b)
    np.testing.assert_allclose(found.numpy(), wanted.reshape(a.shape), rtol=1e-12, atol=1e-12)


def test_the_product_is_that_of_its_rule(library, random):
    """Of three sizes on either side of where BLAS runs in threads."""
    op = REGISTRY["matmul"]
    n = round(layout.THREADED ** (1 / 3))
    for k in (n - 1, n, n + 1, 3 * n):
        a, b, ct = (random.normal(size=(k, k)) for _ in range(3))
        x, y = (tg.tensor(z, requires_grad=True) for z in (a, b))
        wanted = op.vjp(ct, None, (a, b), {}, (0, 1))
        for found, other in zip(tg.grad(x @ y, [x, y], ct), wanted.values(), strict=True):
            np.testing.assert_allclose(found.numpy(), other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("order", ["rows", "columns", "row of a larger one", "column of a larger one"])
@pytest.mark.parametrize("dtype", "fdFD")
def test_products_with_vectors_of_any_layout(dtype, order, library, rules, random):
    """Of a matrix and a vector, from the left and from the right; cotangents may be there before."""
    larger = values(random, (12, 14), dtype)
    a = {"rows": larger, "columns": larger.T.copy().T}.get(order, larger[1::2, 2:9])
    u, v = (values(random, (n, 3), dtype) for n in a.shape)
    u, v = (z[:, 0] if order.startswith("column") else z[:, 0].copy() for z in (u, v))
    for one, other in ((a, v), (a, v[:, None]), (u, a), (u[None], a)):
        x, y = (tg.from_numpy(z).requires_grad_() for z in (one, other))
        seed = values(random, (one @ other).shape, dtype)
        left, right = np.atleast_2d(one), other.reshape(len(other), -1)
        ct = seed.reshape(len(left), -1)
        for times in (1, 2):
            out = x @ y if times == 1 else x @ y + x @ y
            found = tg.grad(out, [x, y], tg.tensor(seed))
            wanted = times * ct @ np.conj(right.T), times * np.conj(left.T) @ ct
            for g, w in zip(found, wanted, strict=True):
                tolerance = 1e-5 if dtype in "fF" else 1e-13
                np.testing.assert_allclose(g.numpy(), w.reshape(g.shape), rtol=tolerance, atol=tolerance * 30)
    assert "matmul" not in rules
