"""Products of arrays, and every form of einsum."""

import gc
import weakref

import numpy as np
import pytest

import tapegrad as tg
from tapegrad import errors
from tests.tiers import NUMPY_2_5

from .rows import check

A, B, V, S, T3, M = (2, 3), (3, 2), (3,), (), (2, 3, 2), (3, 3)

ROWS = [
    ("tensordot", lambda x, y: np.tensordot(x, y), [(2, 3, 2), (3, 2, 2)]),
    ("tensordot, 1", lambda x, y: np.tensordot(x, y, 1), [A, T3[1:]]),
    ("tensordot, 0", lambda x, y: np.tensordot(x, y, 0), [A, V]),
    ("tensordot of pairs", lambda x, y: np.tensordot(x, y, ([0, 2], [1, -1])), [T3, (3, 2, 2)]),
    ("tensordot of one pair", lambda x, y: np.tensordot(x, y, axes=(1, 0)), [A, V]),
    ("inner", lambda x, y: np.inner(x, y), [A, V]),
     ("inner of stacks", lambda x, y: np.inner(x, y), [T3, (2, 2)]),
    ("inner of a number", lambda x: np.inner(x, 2.0) + np.inner(3, x), [A]),
    ("vdot", lambda x, y: np.vdot(x, y), [A, A]), ("vdot of 0-d", lambda x, y: np.vdot(x, y), [S, S]),
    ("kron", lambda x, y: np.kron(x, y), [A, B]), ("kron of vectors", lambda x, y: np.kron(x, y), [V, (2,)]),
    ("kron of ranks", lambda x,
     y: np.kron(x, y) + np.kron(np.ones((1, 1, 3)), np.kron(y, x[:, :1]))[0, 0, 0], [A, V]),
    ("kron of numbers", lambda x: np.kron(x, 2.0) + np.kron(3.0, x), [A]),
    ("cross", lambda x, y: np.cross(x, y), [V, (2, 3)]),
    ("cross along axes", lambda x, y: np.cross(x, y, axisa=0, axisb=1, axisc=0), [(3, 2), (2, 3)]),
    ("cross along one axis", lambda x, y: np.cross(x, y, axis=0), [B, B]),
    ("outer", lambda x, y: np.outer(x, y), [A, V]),
    ("vecdot", lambda x, y: np.vecdot(x, y) * np.vecdot(x, x), [T3, (2,)]),
    ("vecdot along an axis", lambda x, y: np.vecdot(x, y, axis=0) * np.vecdot(x, y, axis=0, keepdims=True),
     [(3, 2), (3, 1)]),
    ("matvec", lambda x, y: np.matvec(x, y), [T3, (2,)]), ("vecmat", lambda x, y: np.vecmat(x, y), [V, T3]),
    ("dot of ranks", lambda x, y: np.dot(x, y), [(2, 2, 3), (2, 3, 2)]),
    ("einsum of stacks", lambda x, y: np.einsum("bij,bjk->bik", x, y), [(2, 3, 2), (2, 2, 3)]),
    ("einsum of stacks, transposed", lambda x, y: np.einsum("jbi,kjb->kbi", x, y), [(3, 2, 2), (2, 3, 2)]),
    ("einsum of stacks and vectors", lambda x, y: np.einsum("bij,bj->ib", x, y), [(2, 3, 2), (2, 2)]),
    ("einsum over two axes", lambda x, y: np.einsum("iabj,bkja->ki", x, y), [(2, 2, 3, 1), (3, 2, 1, 2)]),
    ("einsum, the second first", lambda x, y: np.einsum("ij,jk->ki", x, y), [A, B]),
    ("einsum of a vector and a matrix", lambda x, y: np.einsum("j,kj", x, y), [V, A]),
    ("einsum of vectors", lambda x, y: np.einsum("i,i", x, y), [V, V]),
    ("einsum, a sum of one", lambda x, y: np.einsum("ij,jk->k", x, y), [A, B]),
    ("einsum, a length that is stretched", lambda x, y: np.einsum("ij,jk->ik", x, y), [A, (1, 2)]),
    ("einsum of nothing", lambda x, y: np.einsum("ij,jk->ik", x, y), [(2, 0), (0, 3)]),
    ("einsum by lists", lambda x, y: np.einsum(x, [0, 1], y, [1, 2]), [A, B]),
    ("einsum by lists, output", lambda x, y: np.einsum(x, [0, 51], y, (51, 2), [2, 0]), [A, B]),
    ("einsum by lists, ellipsis", lambda x: np.einsum(x, [Ellipsis, 0, 1], [1, Ellipsis]), [T3]),
    ("einsum by lists, trace", lambda x: np.einsum(x, [0, 0]), [M]),
    ("einsum, ellipsis that broadcasts", lambda x, y: np.einsum("i...,...->i...", x, y), [(2, 1, 3), (2, 1)]),
    ("einsum, two ellipses that broadcast", lambda x, y: np.einsum("...i,...i", x, y),
     [(2, 1, 3), (1, 4, 3)]),
    ("einsum, ellipsis of nothing", lambda x: np.einsum("...ij->...ji", x), [A]),
    ("einsum, traces and ellipsis", lambda x: np.einsum("...ii->...", x), [(2, 3, 3)]),
    ("einsum, optimize", lambda x, y, z: np.einsum("ij,jk,kl->il", x, y, z, optimize=True), [A, B, A]),
    ("einsum, greedy", lambda x, y, z: np.einsum("ij,jk,k", x, y, z, optimize="greedy"), [A, B, (2,)]),
    ("einsum, a path", lambda x, y,
     z: np.einsum("ij,ji,ij->j", x, y, z, optimize=["einsum_path", (0, 2), (0, 1)]),
     [A, B, A]),
    ("einsum, four in pairs", lambda x, y: np.einsum("ij,jk,kl,li", x, y, x, y, optimize="optimal"), [A, B]),
    ("einsum, dtype", lambda x, y: np.einsum("ij,j", x, y, dtype=np.float64, order="C"), [A, V]),
    ("einsum of constants", lambda x: np.einsum("ij,j->i", np.arange(6).reshape(2, 3), x), [V]),
]  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_call(row, random):
    check(*row[1:], random)


@pytest.mark.skipif(NUMPY_2_5, reason="NumPy has no such product any more")
@pytest.mark.filterwarnings("ignore:Arrays of 2-dimensional vectors:DeprecationWarning")
def test_cross_of_vectors_of_a_plane(random):
    check(lambda x, y: np.cross(x, y) * np.cross(y, x, axisa=-1), [(3, 2), (2,)], random)


def test_einsum_of_one_operand_is_no_view_of_it():
    x = tg.tensor(np.arange(4.0).reshape(2, 2))
    assert np.einsum("ii->i", x).tolist() == [0.0, 3.0]
    out = np.zeros(2)
    assert np.einsum("ii->i", x, out=out) is out
    assert out.tolist() == [0.0, 3.0]


REFUSED = [
    ("tensordot", lambda x: np.tensordot(x, np.ones((2, 3)), 1), errors.ShapeError, "tensordot"),
    ("tensordot, axes", lambda x: np.tensordot(x, x, ((0, 1), (0,))), errors.ShapeError, "2 axes"),
    ("tensordot, axis", lambda x: np.tensordot(x, x, ([5], [0])), errors.AxisError, "axis 5"),
    ("inner", lambda x: np.inner(x, np.ones(2)), errors.ShapeError, "last axes"),
    ("vdot", lambda x: np.vdot(x, np.ones(2)), ValueError, "matmul"),
    ("kron", lambda x: np.kron(x, [x]), errors.BorderError, "list"),
    ("cross", lambda x: np.cross(x, np.ones(4)), errors.ShapeError, "two or three components"),
    ("cross, axis", lambda x: np.cross(x, x, axis=2), errors.AxisError, "axis 2"),
    ("cross, shapes", lambda x: np.cross(x, np.ones((3, 3))), ValueError, "multiply"),
    ("vecdot", lambda x: np.vecdot(x, np.ones(2)), errors.ShapeError, "different length"),
    ("vecdot of 0-d", lambda x: np.vecdot(x, 1.0), errors.ShapeError, "dimension"),
    ("matvec", lambda x: np.matvec(x[0], np.ones(3)), errors.ShapeError, "matrix"),
    ("vecmat", lambda x: np.vecmat(x, np.ones(3)), errors.ShapeError, "matrix"),
    ("einsum, out", lambda x: np.einsum(x, [0, 1], [0], out=np.zeros(2)), errors.UnsupportedOpError, "out="),
]  # fmt: skip


@pytest.mark.parametrize("row", REFUSED, ids=[row[0] for row in REFUSED])
def test_refusals(row):
    with pytest.raises(row[2], match=row[3]):
        row[1](tg.tensor([[0.5, 2.0, 3.0], [-1.5, 1.0, 0.2]], requires_grad=True))


PRODUCTS = (
    "ij,jk->ik", "ij,jk->ki", "ji,kj->ik", "bij,bjk->bik", "ibj,kjb->bki", "ij,j->i", "j,jk->k", "ijb,jib->b",
)  # fmt: skip


@pytest.mark.parametrize("dtypes", ["ff", "dd", "FF", "DD", "fd", "fD", "dg", "dl"])
@pytest.mark.parametrize("text", PRODUCTS)
def test_einsum_as_a_product_of_matrices(text, dtypes, random):
    """Value, dtype and gradients are those of sums written out, also where BLAS does not know the dtype."""
    inputs, output = text.split("->")
    size = dict(zip("bijk", (2, 3, 4, 5), strict=True))
    arrays = []
    for labels, dtype in zip(inputs.split(","), dtypes, strict=True):
        drawn = random.normal(size=(2, *(size[c] for c in labels))) * 3
        arrays.append((drawn[0] + (1j * drawn[1] if dtype in "FD" else 0)).astype(dtype))
    expected = np.einsum(text, *arrays)
    leaves = [tg.tensor(x, requires_grad=x.dtype.kind != "i") for x in arrays]
    moving = [x for x in leaves if x.requires_grad]
    found = np.einsum(text, *leaves)
    assert found.dtype == expected.dtype and found.shape == expected.shape
    eps = max(np.finfo(x.dtype).eps for x in arrays if x.dtype.kind != "i")
    np.testing.assert_allclose(found.detach().numpy(), expected, rtol=0, atol=1e3 * eps)
    assert np.array_equal(np.einsum(text, *(x.detach() for x in leaves)).numpy(), found.detach().numpy())
    seed = np.conj(expected)
    gradients = tg.grad(found, moving, tg.tensor(seed))
    for k, (gradient, x) in enumerate(zip(gradients, moving, strict=True)):
        others = [np.conj(y) if j != k else seed for j, y in enumerate(arrays)]
        labels = [s if j != k else output for j, s in enumerate(inputs.split(","))]
        wanted = np.einsum(f"{','.join(labels)}->{inputs.split(',')[k]}", *others)
        wanted = wanted if x.dtype.kind == "c" else np.real(wanted)
        assert gradient.dtype == x.dtype
        np.testing.assert_allclose(gradient.numpy(), wanted, rtol=0, atol=1e4 * eps)


def test_multi_dot_keeps_its_operands_no_longer_than_its_result():
    gc.disable()
    try:
        y = tg.tensor(np.eye(3), requires_grad=True) * 1.0
        note = weakref.ref(y)
        z = np.linalg.multi_dot([y, y, y, np.ones(3)])
        del y, z
        assert note() is None
    finally:
        gc.enable()


PAIRS = {  # rows of x and of y, whose products are summed
    "dense": lambda x: x, "reversed": lambda x: x[:, ::-1], "steps": lambda x: x[:, ::2],
    "columns": lambda x: x.T, "one row": lambda x: x[:1], "one element": lambda x: x[:, :1],
}  # fmt: skip


@pytest.mark.parametrize("dtype", ["d", "f", "D", "F"])
@pytest.mark.parametrize("n", [1, 3, 70])
@pytest.mark.parametrize("layout", PAIRS)
def test_products_of_vectors_one_by_one(layout, n, dtype):
    """The cotangent of each vector is a multiple of the other one; with a part that is there already."""
    random = np.random.default_rng(n)
    given = random.standard_normal((2, n, n)) + 1j * random.standard_normal((2, n, n))
    x, y = (tg.tensor((g if dtype in "DF" else g.real).astype(dtype), requires_grad=True) for g in given)
    p, q = PAIRS[layout](x), PAIRS[layout](y)
    w = np.cos(np.arange(p.shape[0])).astype(dtype)
    for found in (
        np.vecdot(p, q),
        np.einsum("ij,ij->i", np.conj(p), q),
        (np.conj(p)[:, None, :] @ q[..., None])[:, 0, 0],
    ):
        gradients = tg.grad(np.sum(np.real(found * w)) + np.sum(np.real(p)) * 2, (x, y), retain_graph=True)
        wanted = tg.grad(
            np.sum(np.real(np.conj(p) * q * w[:, None])) + np.sum(np.real(p)) * 2, (x, y), retain_graph=True
        )
        for g, expected in zip(gradients, wanted, strict=True):
            np.testing.assert_allclose(g.numpy(), expected.numpy(), rtol=1e-4 if dtype in "fF" else 1e-12)


def test_products_of_vectors_keep_what_is_not_finite():
    x = tg.tensor(np.array([[1.0, np.inf, np.nan], [1.0, 2.0, 3.0]]), requires_grad=True)
    y = tg.tensor(np.ones((2, 3)), requires_grad=True)
    _, g = tg.grad(np.vecdot(x, y), (x, y), np.array([0.0, 2.0]))
    np.testing.assert_array_equal(g.numpy(), [[0.0, np.nan, np.nan], [2.0, 4.0, 6.0]])


@pytest.mark.parametrize("n", [20, 200])
def test_a_copy_of_an_array_has_the_values_of_its_use(n):
    """The array may be written to meanwhile: what is read later is the copy in another order of axes."""
    a, x = np.random.default_rng(0).standard_normal((n, n, 3)), tg.tensor(np.ones((n, 2)), requires_grad=True)
    before = a.copy()
    y = np.einsum("kpi,pj->kij", a, x), np.tensordot(a, x, ((1,), (0,)))
    a[...] = 0.0
    for found in y:
        (g,) = tg.grad(np.sum(found), x)
        np.testing.assert_allclose(g.numpy(), np.repeat(before.sum((0, 2))[:, None], 2, 1), atol=1e-10)
