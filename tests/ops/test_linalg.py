"""numpy.linalg: edges, complex matrices, zero-size stacks, results beside torch, refusals."""

import itertools
import math
import tracemalloc
from contextlib import nullcontext

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.autograd import forward_ad as fw
from tapegrad.autograd.graph import saved_tensors_hooks
from tapegrad.errors import ShapeError, UnsupportedOpError
from tapegrad.ops import BY_OPCODE, REGISTRY, buffers, decompositions, lapack, triangles
from tapegrad.ops.buffers import LARGE
from tapegrad.ops.lapack import SMALL, solve_square, triangular_factor
from tapegrad.tape.pool import give_back
from tests.tiers import every, thinned

from . import checks

L = np.linalg
# One real and one complex, of double precision: the other two have the same text, and kernels of their own
LETTERS = thinned("fdFD", lambda dtype: dtype in "dD")


def leaf(x):
    return tg.tensor(np.array(x), requires_grad=True)


def gradient(function, x):
    x = leaf(x)
    return tg.grad(function(x), x)[0].numpy()


def higher(function, order):
    """The gradient of a weighed gradient, `order` times, as a function to be checked."""
    if order == 0:
        return function

    def derived(x):
        lower = higher(function, order - 1)
        with tg.enable_grad():
            out = lower(x)
            weights = np.sqrt(np.arange(out.size) + 1.0).reshape(out.shape)
            return tg.grad(np.sum(out * weights), x, create_graph=True)[0]

    return derived


# ---------------------------------------------------------------- determinants of singular matrices

RANDOM = np.random.default_rng(3)
G = RANDOM.normal(size=(4, 4))
SINGULAR = {
    "rank 1 of 2": [[1.0, 2.0], [2.0, 4.0]],
    "zero, 1": np.zeros((1, 1)),
    "zero, 2": np.zeros((2, 2)),
    "zero, 3": np.zeros((3, 3)),
    "rank 1 of 3": np.outer([1.0, 2.0, 3.0], [4.0, 5.0, 7.0]),
    "rank 2 of 3": G[:3, :2] @ G[:2, :3],
    "repeated singular values": np.diag([1.0, 1.0, 0.0]),
    "rank 2 of 4": G[:, :2] @ G[:2],
    "rank 3 of 4": G[:, :3] @ G[:3],
    "zero, 4": np.zeros((4, 4)),
    "rank 1 of 5": np.outer(np.arange(5.0), np.ones(5)),
    "nearly singular": np.diag([1.0, 1e-6, 1e-12]) + 1e-14,
    "a stack of ranks": np.stack([np.eye(3), np.zeros((3, 3)), np.diag([1.0, 0.0, 2.0]), G[:3, :3]]),
    "one of two of 4": np.stack([G, G[:, :3] @ G[:3]]),
    "permutation": np.eye(3)[[1, 0, 2]] * [1.0, 0.0, 2.0],
}


@pytest.mark.parametrize("name", SINGULAR)
def test_det_singular(name):
    """Derivatives of all orders are those of the polynomial."""
    x = leaf(SINGULAR[name])
    assert tg.gradcheck(L.det, [x])
    assert tg.gradgradcheck(L.det, [x])
    for order in range(2, min(len(x), 4)) if x.ndim == 2 else ():
        assert tg.gradcheck(higher(L.det, order), [x])


def test_det_singular_exactly():
    """The adjugate, and its derivative, of [[1, 2], [2, 4]]."""
    x = leaf([[1.0, 2.0], [2.0, 4.0]])
    (g,) = tg.grad(L.det(x), x, create_graph=True)
    np.testing.assert_allclose(g.detach().numpy(), [[4.0, -2.0], [-2.0, 1.0]], rtol=1e-15)
    hessian = np.stack([tg.grad(e, x, retain_graph=True)[0].numpy() for e in g.ravel()]).reshape(4, 4)
    np.testing.assert_allclose(hessian, np.array([[0, 0, 0, 1], [0, 0, -1, 0], [0, -1, 0, 0], [1, 0, 0, 0]]),
                               atol=1e-12)  # fmt: skip


def test_det_of_complex_singular_matrices():
    for x in ([[1.0, 2j], [2.0, 4j]], np.zeros((2, 2), complex), np.outer(G[0] + 1j, G[1] - 2j * G[2])):
        assert tg.gradcheck(L.det, [leaf(np.array(x))])
        assert tg.gradgradcheck(L.det, [leaf(np.array(x))])


def test_det_is_as_accurate_as_its_matrix_allows():
    """The gradient of an ill-conditioned determinant, against exact arithmetic."""
    mpmath = pytest.importorskip("mpmath")
    n = 7
    x = np.array([[1 / (i + j + 1) for j in range(n)] for i in range(n)])
    with mpmath.workdps(60):
        exact = mpmath.matrix(x.tolist())
        wanted = np.array((mpmath.det(exact) * exact**-1).T.tolist(), float)
    error = np.abs(gradient(L.det, x) - wanted).max()
    assert error <= 1e-6 * np.abs(wanted).max()


def test_slogdet_singular():
    x = leaf([[1.0, 2.0], [2.0, 4.0]])
    out = L.slogdet(x).logabsdet
    assert out.item() == -np.inf
    (g,) = tg.grad(out, x)
    np.testing.assert_array_equal(g.numpy(), [[np.inf, -np.inf], [-np.inf, np.inf]])


def test_slogdet_of_a_singular_matrix_that_is_not_symmetric():
    x = leaf([[4.0, 1.0, 2.0], [2.0, 3.0, 5.0], [1.0, -1.0, -1.5]])
    (g,) = tg.grad(L.slogdet(x).logabsdet, x)
    np.testing.assert_array_equal(np.abs(g.numpy()), np.inf)
    signs = np.sign(g.numpy())
    np.testing.assert_array_equal(signs * signs[0, 0], [[1, 1, -1], [-1, -1, 1], [-1, -1, 1]])


@pytest.mark.parametrize("n", [4, 5])
def test_all_derivatives_of_a_determinant_at_the_zero_matrix(n):
    """Of det(t B) = t**n det(B), at t = 0."""
    b = np.random.default_rng(n).normal(size=(n, n))
    t = tg.tensor(0.0, requires_grad=True)
    out = L.det(t * b)
    for order in range(1, n + 1):
        (out,) = tg.grad(out, t, create_graph=True)
        np.testing.assert_allclose(out.item(), math.factorial(n) * L.det(b) if order == n else 0, rtol=1e-12)


def test_the_sign_of_a_real_determinant_is_constant():
    assert not L.slogdet(leaf(np.eye(2))).sign.requires_grad


# ---------------------------------------------------------------- norms


def test_norm_at_0():
    """L2, Frobenius and p norms: derivative 0."""
    for p in (None, 2, 3, 2.5, 1, np.inf, 0, 0.5):
        np.testing.assert_array_equal(gradient(lambda x, p=p: L.norm(x, p), [0.0, 0.0]), [0.0, 0.0])
    np.testing.assert_array_equal(gradient(L.norm, np.zeros((2, 2))), np.zeros((2, 2)))
    np.testing.assert_array_equal(gradient(L.norm, np.zeros(2, complex)), np.zeros(2))


def test_second_derivative_of_norm_at_0():
    """There is none, and none is made up."""
    x = leaf([0.0, 0.0])
    (g,) = tg.grad(L.norm(x), x, create_graph=True)
    (h,) = tg.grad(g[0], x)
    assert np.isnan(h.numpy()[0])


SQUARED_NORMS = {
    "norm**2": lambda x: L.norm(x) ** 2,
    "norm norm": lambda x: L.norm(x) * L.norm(x),
    "n n": lambda x: (lambda n: n * n)(L.norm(x)),
    "Frobenius": lambda x: L.norm(x.reshape(2, 2)) ** 2,
    "vector_norm": lambda x: np.square(L.vector_norm(x)),
    "along an axis": lambda x: np.sum(L.norm(x.reshape(2, 2), axis=0) ** 2),
    "along an axis, kept": lambda x: np.sum(L.norm(x.reshape(2, 2), axis=1, keepdims=True) ** 2),
    "half of it, twice": lambda x: 0.5 * L.norm(x) ** 2 + L.norm(x) ** 2.0 / 2,
    "of complex numbers": lambda x: L.norm(x[:2] + 1j * x[2:]) ** 2,
    "spread": lambda x: (lambda r: r @ r)(np.array([0.8, 0.6]) * L.norm(x)),
    "spread, then summed": lambda x: np.sum(np.square(np.array([[0.6], [0.8]]) * (L.norm(x) / np.ones(1)))),
    "along an axis, spread": lambda x: np.sum(
        (np.array([[0.6], [-0.8]]) * L.norm(x.reshape(2, 2), axis=0)) ** 2
    ),
}


@pytest.mark.parametrize("name", SQUARED_NORMS)
@pytest.mark.parametrize("at", [np.zeros(4), [1.0, 2.0, -2.0, 4.0], [0.0, 0.0, 3.0, 4.0]], ids=str)
def test_second_derivative_of_a_squared_norm(name, at):
    """2 I, at 0 too."""
    x = leaf(at)
    y = SQUARED_NORMS[name](x)
    (g,) = tg.grad(y, x, create_graph=True)
    np.testing.assert_allclose(g.detach().numpy(), 2 * np.array(at), rtol=1e-15)
    hessian = [tg.grad(e, x, retain_graph=True)[0].numpy() for e in g]
    np.testing.assert_allclose(hessian, 2 * np.eye(4), rtol=0, atol=1e-15)
    np.testing.assert_allclose(
        tg.func.hessian(SQUARED_NORMS[name])(np.array(at)), hessian, rtol=0, atol=1e-15
    )


FAR = [[3e160, 4e160], [3e-170, 4e-170], [3e-161, 4e-161], [0.0, 0.0], [3.0, 4.0]]


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_norms_whose_squares_overflow_or_vanish(dtype):
    """Values are NumPy's, inf and 0 among them; derivatives are those of the lengths, of both orders."""
    at = np.array(FAR if dtype == "f8" else [[3e25, 4e25], [3e-25, 4e-25], [3e-22, 4e-22], *FAR[3:]], dtype)
    x, unit = leaf(at), np.array([0.6, 0.8], dtype)
    with np.errstate(all="ignore"):
        out = L.norm(x, axis=1)
        np.testing.assert_array_equal(out.detach().numpy(), L.norm(at, axis=1))
        (g,) = tg.grad(np.sum(out), x, create_graph=True)
        wanted = np.where(at == 0, 0, unit)
        np.testing.assert_allclose(g.detach().numpy(), wanted, rtol=1e-6 if dtype == "f4" else 1e-15)
        np.testing.assert_allclose(tg.func.jacfwd(L.norm)(at[1]), unit, rtol=1e-6)
        for row, found in zip(at, tg.grad(np.sum(g[:, 0]), x)[0].numpy(), strict=True):
            size = np.hypot(*row)
            second = [0.64 / size, -0.48 / size] if size else [np.nan, np.nan]
            np.testing.assert_allclose(found, second, rtol=1e-5 if dtype == "f4" else 1e-14)
        np.testing.assert_array_equal(tg.func.hessian(lambda x: L.norm(x) ** 2)(at[1]), 2 * np.eye(2))
        z = leaf(at[1] + 1j * at[1])
        np.testing.assert_allclose(tg.grad(L.norm(z), z)[0].numpy(), unit * (1 + 1j) / 2**0.5, rtol=1e-6)


def test_programs_tell_of_norms_whose_squares_overflow_or_vanish():
    f = tg.compile(L.norm, wait=True)
    with np.errstate(all="ignore"):
        for x in [[3.0, 4.0]] * 3 + FAR[:2]:
            value, g = f.value_and_grad(np.array(x))
    np.testing.assert_array_equal((value, *g), (0, np.nan, np.nan))


@pytest.mark.parametrize(
    "f", [lambda x: L.norm(x) ** 2, lambda x: np.sum(np.abs(x) ** 2)], ids=["norm", "abs"]
)
def test_second_derivative_of_squares_along_several_cotangents(f):
    x = leaf([0.0, 0.0])
    (g,) = tg.grad(f(x), x, np.array([1.0, 2.0]), is_grads_batched=True, create_graph=True)
    np.testing.assert_array_equal(tg.grad(g[0, 0] + 3 * g[1, 1], x)[0].numpy(), [2.0, 12.0])


def test_powers_of_norms_that_are_0_here_and_there():
    """Derivatives by the exponent too; of n**4 at 0 the second is 0."""
    for exponent in (2.0, 4.0):
        x, e = leaf([[0.0, 0.0], [3.0, 4.0]]), leaf(exponent)
        (g,) = tg.grad(np.sum(L.norm(x, axis=1) ** e), x, create_graph=True)
        np.testing.assert_allclose(g.detach().numpy(), exponent * 5 ** (exponent - 2) * x.detach().numpy())
        h, mixed = tg.grad(np.sum(g[:, 0]), (x, e))
        scale = exponent * 5 ** (exponent - 2)
        row = np.array([1, 0]) + (exponent - 2) * np.array([9, 12]) / 25
        wanted = [[2.0 * (exponent == 2), 0.0], scale * row]
        np.testing.assert_allclose(h.numpy(), wanted, rtol=1e-13, atol=1e-13)
        by_both = 3 * 5 ** (exponent - 2) * (1 + exponent * np.log(5))
        np.testing.assert_allclose(mixed.item(), by_both, rtol=1e-13)


def test_second_derivative_of_other_functions_of_norms_at_0():
    """A norm, other norms times each other and a sum with one have none."""
    other = lambda x: L.norm(x, axis=0) * L.norm(x.T, axis=0)
    for f in (lambda x: L.norm(x) ** 2 + L.norm(x), lambda x: np.sqrt(L.norm(x) ** 2), other):
        x = leaf(np.zeros((2, 2)))
        (g,) = tg.grad(np.sum(f(x)), x, create_graph=True)
        assert np.isnan(tg.grad(g[0, 0], x)[0].numpy()[0, 0])


def test_L1_norm():
    np.testing.assert_array_equal(gradient(lambda x: L.norm(x, 1), [0.0, 1.0, -2.0]), [0.0, 1.0, -1.0])


def test_Linf_ties():
    np.testing.assert_array_equal(gradient(lambda x: L.norm(x, np.inf), [2.0, -2.0, 1.0]), [0.5, -0.5, 0.0])
    np.testing.assert_array_equal(gradient(lambda x: L.norm(x, -np.inf), [2.0, -1.0, 1.0]), [0.0, -0.5, 0.5])


def test_norm_p_0():
    np.testing.assert_array_equal(gradient(lambda x: L.norm(x, 0), [0.0, 3.0]), [0.0, 0.0])


def test_norm_with_zeros_among_the_elements():
    x = np.array([0.0, 2.0, -1.0])
    for p in (3, 2.5, 4):
        wanted = np.sign(x) * np.abs(x) ** (p - 1) / L.norm(x, p) ** (p - 1)
        np.testing.assert_allclose(gradient(lambda x, p=p: L.norm(x, p), x), wanted, rtol=1e-14)
    assert gradient(lambda x: L.norm(x, 0.5), x)[0] == 0


def test_cond_of_singular_matrices():
    x = leaf(np.stack([np.diag([1.0, 2.0]), np.ones((2, 2))]))
    for p in (1, "fro", np.inf):
        out = L.cond(x, p)
        np.testing.assert_array_equal(out.detach().numpy(), L.cond(x.detach().numpy(), p))
        assert np.isfinite(tg.grad(out[0], x)[0].numpy()).all()


# ---------------------------------------------------------------- repeated eigenvalues


def test_eigh_of_the_identity():
    """An eigenvalue is differentiated in the basis that was found; symmetric functions of them exactly."""
    np.testing.assert_array_equal(gradient(lambda x: L.eigh(x)[0][0], np.eye(2)), [[1.0, 0.0], [0.0, 0.0]])
    np.testing.assert_allclose(gradient(lambda x: np.sum(L.eigvalsh(x) ** 2), np.eye(3)), 2 * np.eye(3))
    q = L.qr(G)[0]
    x = q @ np.diag([2.0, 2.0, 2.0, 5.0]) @ q.T
    np.testing.assert_allclose(gradient(lambda x: np.sum(L.eigvalsh(x) ** 3), x), 3 * x @ x, atol=1e-13)


def test_vectors_and_second_derivatives_of_repeated_eigenvalues_are_not_made_up():
    found = gradient(lambda x: np.sum(L.eigh(x)[1] * [[1.0, 2.0], [3.0, 5.0]]), np.eye(2))
    assert not np.isfinite(found).all()
    x = leaf(np.eye(2))
    (g,) = tg.grad(np.sum(L.eigvalsh(x) ** 2), x, create_graph=True)
    (h,) = tg.grad(np.sum(g * [[1.0, 2.0], [3.0, 4.0]]), x)
    assert np.isnan(h.numpy()).any()


def test_svdvals_of_the_identity():
    np.testing.assert_array_equal(gradient(lambda x: L.svdvals(x)[0], np.eye(2)), [[1.0, 0.0], [0.0, 0.0]])


def test_nuclear_norm_of_rank_1():
    x = np.outer([1.0, 2.0], [2.0, 1.0])
    found = gradient(lambda x: L.norm(x, "nuc"), x)
    u, _, vh = L.svd(x)
    np.testing.assert_allclose(found, u @ vh, atol=1e-15)


def test_eigh_of_a_matrix_that_is_not_symmetric():
    """One triangle is read; the derivative goes to both halves."""
    x = np.array([[2.0, 9.0], [1.0, 3.0]])
    for function in (L.eigvalsh, lambda x, u="L": L.eigh(x, u)[0]):
        np.testing.assert_array_equal(function(leaf(x)).detach().numpy(), L.eigvalsh(x))
    found = gradient(lambda x: L.eigvalsh(x)[1], x)
    np.testing.assert_array_equal(found, found.T)
    np.testing.assert_allclose(found, gradient(lambda x: L.eigvalsh(x)[1], [[2.0, 1.0], [1.0, 3.0]]))
    upper = gradient(lambda x: L.eigh(x, "U").eigenvalues[1], x)
    np.testing.assert_allclose(upper, gradient(lambda x: L.eigvalsh(x)[1], [[2.0, 9.0], [9.0, 3.0]]))


def test_cholesky_and_hermitian_pinv_of_one_triangle():
    x, filled = np.array([[2.0, 9.0], [1.0, 3.0]]), np.array([[2.0, 1.0], [1.0, 3.0]])
    functions = [lambda x: L.cholesky(x)[1, 1], lambda x: np.sum(L.pinv(x, hermitian=True)[0])]
    for function in functions:
        found = gradient(function, x)
        np.testing.assert_array_equal(found, found.T)
        np.testing.assert_allclose(found, gradient(function, filled), rtol=1e-14)
        seconds = []
        for start in (x, filled):
            a = leaf(start)
            (g,) = tg.grad(function(a), a, create_graph=True)
            seconds.append(tg.grad(np.sum(g * [[1.0, 2.0], [2.0, 3.0]]), a)[0].numpy())
        np.testing.assert_allclose(*seconds, rtol=1e-13)
        np.testing.assert_allclose(seconds[0], seconds[0].T)


# ---------------------------------------------------------------- complex matrices


def drawn(*shape):
    random = np.random.default_rng(11)
    return random.normal(size=shape) + 1j * random.normal(size=shape)


def hermitian(x):
    return (x + np.conj(np.swapaxes(x, -1, -2))) / 2


def definite(x):
    return x @ np.conj(np.swapaxes(x, -1, -2)) + np.eye(3)


def ray(v):
    """The first column without its phase."""
    return v[..., :1] @ np.conj(np.swapaxes(v[..., :1], -1, -2))


def span(v):
    return v @ np.conj(np.swapaxes(v, -1, -2))


SPREAD = np.diag([1.0, 4.0, 9.0])
COMPLEX = {
    "cholesky": (lambda x: L.cholesky(definite(x)), (2, 3, 3)),
    "cholesky, upper": (lambda x: L.cholesky(definite(x), upper=True), (3, 3)),
    "eigh": (lambda x: L.eigh(hermitian(x))[0], (2, 3, 3)),
    "eigh, vectors": (lambda x: ray(L.eigh(hermitian(x), "U")[1]), (3, 3)),
    "eig": (lambda x: L.eig(x + SPREAD)[0], (2, 3, 3)),
    "eig, vectors": (lambda x: ray(L.eig(x + SPREAD)[1]), (3, 3)),
    "eigvals": (lambda x: L.eigvals(x), (3, 3)),
    "svd": (lambda x: (lambda u, s, vh: (u * s**2) @ vh)(*L.svd(x, full_matrices=False)), (3, 2)),
    "svd, pairs": (lambda x: (lambda u, s, vh: u[:, :1] @ vh[:1])(*L.svd(x)), (2, 3)),
    "svd, left": (lambda x: ray(L.svd(x)[0]), (3, 3)),
    "svd, right": (lambda x: ray(np.conj(L.svd(x)[2].mT)), (2, 3)),
    "svd, full": (lambda x: span(L.svd(x)[0][..., 2:]), (2, 1, 3, 2)),
    "svd, values": (L.svdvals, (2, 3, 2)),
    "svd, hermitian": (lambda x: L.svd(hermitian(x), hermitian=True)[1], (3, 3)),
    "qr": (lambda x: L.qr(x)[0], (2, 3, 2)),
    "qr, r": (lambda x: L.qr(x)[1], (3, 3)),
    "qr, wide": (lambda x: L.qr(x)[0] @ L.qr(x)[1][:, 2:] + L.qr(x, "r"), (2, 3)),
    "qr, complete": (lambda x: span(L.qr(x, "complete")[0][..., 2:]), (2, 1, 3, 2)),
    "det": (L.det, (2, 3, 3)),
    "slogdet": (lambda x: L.slogdet(x)[0] * L.slogdet(x)[1], (2, 3, 3)),
    "slogdet, one": (lambda x: L.slogdet(x)[0], (3, 3)),
    "inv": (lambda x: L.inv(x + SPREAD), (2, 3, 3)),
    "solve": (lambda x: L.solve(x + SPREAD, x[0]), (2, 3, 3)),
    "solve, vector": (lambda x: L.solve(x + SPREAD, x[0, 0]), (2, 3, 3)),
    "pinv": (L.pinv, (3, 2)),
    "pinv, hermitian": (lambda x: L.pinv(definite(x), hermitian=True), (3, 3)),
    "lstsq": (lambda x: L.lstsq(x[:, :2], x[:, 2])[0] * L.lstsq(x[:, :2], x[:, 2])[1], (4, 3)),
    "matrix_power": (lambda x: L.matrix_power(x, 3) + L.matrix_power(x + SPREAD, -1), (3, 3)),
    "multi_dot": (lambda x: L.multi_dot([x, x, x[0]]), (3, 3)),
    "norms": (lambda x: L.norm(x) * L.norm(x, 1, 0) + L.norm(x, np.inf, 0) * L.vector_norm(x, axis=0),
              (3, 3)),
    "norm, kept": (lambda x: L.norm(x, axis=1, keepdims=True) + L.norm(x, 3, 1, True), (3, 3)),
    "matrix norms": (lambda x: L.norm(x, "nuc") * L.norm(x, 2) + L.norm(x, 1) + L.cond(x), (3, 3)),
    "cross, vecdot": (lambda x: L.cross(x, x[0]) * L.vecdot(x, x[1])[:, None], (3, 3)),
    "tensordot, trace": (lambda x: L.tensordot(x, x, axes=1) * L.trace(x) + L.outer(x[0], x[1]), (3, 3)),
}  # fmt: skip


@pytest.mark.parametrize("name", COMPLEX)
def test_complex(name):
    function, shape = COMPLEX[name]
    x = leaf(drawn(*shape))
    out, wanted = function(x), function(x.detach().numpy())
    assert out.dtype == wanted.dtype
    np.testing.assert_allclose(out.detach().numpy(), wanted, rtol=1e-12, atol=1e-13)
    assert tg.gradcheck(function, [x], atol=1e-6)
    assert tg.gradgradcheck(function, [x], atol=1e-5)


VECTORS = {
    "eigh": (lambda x: L.eigh(x)[1], (2, 3, 3)), "eig": (lambda x: L.eig(x)[1], (2, 3, 3)),
    "svd, left": (lambda x: L.svd(x)[0], (2, 3, 2)), "svd, right": (lambda x: L.svd(x)[2], (2, 2, 3)),
    "svd, square": (lambda x: L.svd(x)[0], (3, 3)), "svd, reduced": (lambda x: L.svd(x, False)[0], (3, 2)),
    "qr": (lambda x: L.qr(x)[0], (2, 3, 2)), "qr, complete": (lambda x: L.qr(x, "complete")[0], (3, 2)),
}  # fmt: skip


@pytest.mark.parametrize("name", VECTORS)
def test_tangents_of_complex_vectors_are_adjoint_to_cotangents(name):
    """Whatever phases they keep."""
    function, shape = VECTORS[name]
    x, random = leaf(drawn(*shape)), np.random.default_rng(2)
    out = function(x)
    op, attrs, value = BY_OPCODE[checks.opcode(out)], checks.attributes(out), out.detach().numpy()
    u, v = (random.normal(size=(2, *s)) for s in (x.shape, out.shape))
    u, v = u[0] + 1j * u[1], v[0] + 1j * v[1]
    (pulled,) = tg.grad(out, x, v, retain_graph=True)
    pushed = op.jvp([u], value, [x.detach().numpy()], attrs)
    np.testing.assert_allclose(np.vdot(v, pushed).real, np.vdot(pulled.numpy(), u).real, rtol=1e-12)


@pytest.mark.parametrize("dtype", ["d", "F"])
def test_tangents_of_large_cholesky_factors_are_adjoint_to_cotangents(dtype, random):
    """Whose triangles are cut out a block at a time."""
    limits = decompositions.BLOCK + 1, 2 * decompositions.BLOCK + 1
    for n, upper in itertools.product(limits, (False, True)):
        a, u, v = (well_conditioned(random, dtype, n) for _ in range(3))
        x = leaf(a @ np.conj(a.T))
        out = L.cholesky(x, upper=upper)
        (pulled,) = tg.grad(out, x, v, retain_graph=True)
        values = out.detach().numpy(), [x.detach().numpy()]
        pushed = REGISTRY["cholesky"].jvp([u], *values, {"upper": upper})
        assert not (np.tril if upper else np.triu)(pushed, -1 if upper else 1).any()
        wanted = np.vdot(pulled.numpy(), u).real
        np.testing.assert_allclose(np.vdot(v, pushed).real, wanted, atol=1e3 * n * np.finfo(dtype).eps)


@pytest.mark.full  # its kernels, of the text that is compiled for complex128, compile for long
@pytest.mark.parametrize("name", COMPLEX)
def test_complex_in_single_precision(name):
    function, shape = COMPLEX[name]
    found = []
    for dtype in (np.complex64, np.complex128):
        x = leaf(drawn(*shape).astype(dtype))
        out = function(x)
        weights = np.arange(out.size).reshape(out.shape) + 1
        found.append(tg.grad(np.sum(np.real(out * np.conj(out)) * weights), x)[0])
        assert found[-1].dtype == dtype
    scale = np.abs(found[1].numpy()).max()
    np.testing.assert_allclose(found[0].numpy(), found[1].numpy(), atol=2e-3 * scale)


ROTATION = np.array([[0.3, -1.0, 0.2], [1.2, 0.1, 0.4], [0.0, 0.3, 2.0]])


@pytest.mark.parametrize(
    "function", [lambda x: L.eig(x)[0], L.eigvals, lambda x: span(L.eig(x).eigenvectors) * 2]
)
def test_complex_eigenvalues_of_a_real_matrix(function):
    x = leaf(ROTATION)
    assert function(x).dtype == complex
    assert tg.gradcheck(function, [x])
    assert tg.gradgradcheck(function, [x])
    assert tg.grad(np.sum(np.abs(function(x))), x)[0].dtype == float


# ---------------------------------------------------------------- beside torch

BESIDE = {
    "cholesky": lambda m, lin, x: lin.cholesky(m(x) @ m(x).mT.conj() + m(np.eye(3))),
    "eigh": lambda m, lin, x: lin.eigh(m(x) + m(x).mT.conj())[0],
    "eigh, vectors": lambda m, lin, x: abs(lin.eigh(m(x) + m(x).mT.conj())[1]) ** 2,
    "eig": lambda m, lin, x: lin.eig(m(x))[0],
    "eig, vectors": lambda m, lin, x: abs(lin.eig(m(x))[1]) ** 2,
    "svd, left": lambda m, lin, x: abs(lin.svd(m(x), full_matrices=False)[0]) ** 2,
    "svd, values": lambda m, lin, x: lin.svd(m(x), full_matrices=False)[1],
    "svd, right": lambda m, lin, x: abs(lin.svd(m(x), full_matrices=False)[2]) ** 2,
    "qr": lambda m, lin, x: lin.qr(m(x))[0] @ m(x)[..., :1, :].mT,
    "qr, r": lambda m, lin, x: lin.qr(m(x))[1],
    "slogdet": lambda m, lin, x: lin.slogdet(m(x))[1],
    "det": lambda m, lin, x: lin.det(m(x)),
    "pinv": lambda m, lin, x: lin.pinv(m(x)),
    "norm": lambda m, lin, x: lin.norm(m(x)) + lin.matrix_norm(m(x), ord=2),
}


@pytest.mark.full
@pytest.mark.parametrize("kind", ["real", "complex"])
@pytest.mark.parametrize("name", BESIDE)
def test_beside_torch(name, kind):
    """First and second derivatives of functions that do not depend on phases."""
    torch = pytest.importorskip("torch")
    x = drawn(2, 3, 3) + SPREAD
    x = x.real if kind == "real" else x
    mine, theirs = leaf(x), torch.tensor(x, requires_grad=True)
    weights = np.random.default_rng(1).normal(size=(20,))

    def loss(out, sqrt):
        flat = out.reshape(-1)
        terms = flat * flat.conj() if flat.dtype in (complex, torch.complex128) else flat * flat
        return (terms.real * sqrt(weights[: len(terms)])).sum()

    a = BESIDE[name](lambda x: x if isinstance(x, tg.Tensor) else tg.tensor(x), L, mine)
    b = BESIDE[name](lambda x: x if isinstance(x, torch.Tensor) else torch.tensor(x), torch.linalg, theirs)
    (first,) = tg.grad(loss(a, lambda w: w), mine, create_graph=True)
    (other,) = torch.autograd.grad(loss(b, torch.tensor), theirs, create_graph=True)
    np.testing.assert_allclose(first.detach().numpy(), other.detach().numpy(), rtol=1e-9, atol=1e-10)
    (second,) = tg.grad(np.sum(np.abs(first) ** 2), mine)
    (another,) = torch.autograd.grad((abs(other) ** 2).sum(), theirs)
    np.testing.assert_allclose(second.numpy(), another.numpy(), rtol=1e-7, atol=1e-7)


# ---------------------------------------------------------------- results, memory, sizes


@pytest.mark.parametrize("function", [L.eigh, L.eig, L.svd, L.qr, L.slogdet])
def test_results_are_named_as_by_numpy(function):
    x = leaf(SPREAD)
    found, wanted = function(x), function(SPREAD)
    assert type(found) is type(wanted)
    assert all(isinstance(part, tg.Tensor) for part in found)
    with tg.no_grad():
        assert type(function(x)) is type(wanted)
        assert not any(part.requires_grad for part in function(x))


@pytest.mark.parametrize("size", [3, 60])
def test_factors_may_be_written_to(size):
    """The derivative uses what was computed."""
    x = leaf(np.random.default_rng(2).normal(size=(size, size)))

    def gradients(change):
        w, v = L.eigh(x + x.T)
        loss = np.sum(w**3) + np.sum(v[:, 0] ** 4)
        if change:
            w[...] = 0.0
            v *= 2.0
        (first,) = tg.grad(loss, x, create_graph=True)
        return first.detach().numpy(), tg.grad(np.sum(first**2), x)[0].numpy()

    for changed, wanted in zip(gradients(True), gradients(False), strict=True):
        np.testing.assert_array_equal(changed, wanted)


def test_only_one_factorisation_is_computed(monkeypatch):
    """Neither the sweep nor its recording factorises again, which could choose other signs."""
    x = leaf(SPREAD + 0.1)
    w, v = L.eigh(x)

    def refuse(*args):
        raise AssertionError("factorised again")

    monkeypatch.setattr(np.linalg._linalg._umath_linalg, "eigh_lo", refuse)
    (g,) = tg.grad(np.sum(w * v[0]), x, create_graph=True)
    (h,) = tg.grad(np.sum(g * g), x)
    assert np.isfinite(h.numpy()).all()


def test_factors_go_with_the_results():
    """A loop that records without a sweep does not keep the factors of what it has dropped."""
    x = leaf(np.random.default_rng(2).normal(size=(256, 4, 4)))  # small: BLAS starts no threads

    def repeat(count):
        for _ in range(count):
            L.eigvalsh(x)

    repeat(300)  # what pruning needs is loaded
    tracemalloc.start()
    try:
        repeat(1500)
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert size < 16 << 20  # of 58 MiB


EMPTY_FUNCTIONS = [
    "cholesky", "det", "eigh", "eigvalsh", "eig", "eigvals", "inv", "pinv", "qr", "slogdet", "svd", "svdvals",
    "norm", "matrix_norm", "trace", "diagonal",
]  # fmt: skip


@pytest.mark.parametrize("shape", [(0, 0), (0, 2, 2), (2, 0, 0), (0, 3), (3, 0)])
@pytest.mark.parametrize("name", EMPTY_FUNCTIONS)
def test_empty(name, shape):
    """As NumPy, in shapes, dtypes and refusals."""
    function, x = getattr(L, name), leaf(np.zeros(shape))
    try:
        wanted = function(np.zeros(shape))
    except ValueError as error:
        with pytest.raises(type(error)):
            function(x)
        return
    found = function(x)
    found, wanted = (r if isinstance(r, tuple) else (r,) for r in (found, wanted))
    for f, w in zip(found, wanted, strict=True):
        assert (f.shape, f.dtype) == (np.shape(w), w.dtype)
    for record in (False, True):
        total = sum(np.real(np.sum(f)) for f in found)  # of eigenvalues complex ones from NumPy 2.5 on
        (g,) = tg.grad(total, x, create_graph=record, retain_graph=True)
        assert g.shape == shape


LSTSQ = [
    ((3, 2), (3,)), ((2, 3), (2,)), ((3, 3), (3, 2)), ((3, 2), (3, 0)), ((3, 0), (3,)), ((3, 0), (3, 2)),
    ((0, 3), (0, 2)), ((0, 3), (0,)),
]  # fmt: skip


@pytest.mark.parametrize("rcond", [None, -1, 0.4])
@pytest.mark.parametrize("shapes", LSTSQ)
def test_lstsq_returns_what_numpy_does(shapes, rcond):
    random = np.random.default_rng(4)
    a, b = (random.normal(size=s) for s in shapes)
    for found, wanted in zip(L.lstsq(leaf(a), leaf(b), rcond), L.lstsq(a, b, rcond), strict=True):
        found = found.detach().numpy() if isinstance(found, tg.Tensor) else found
        np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-13)
        assert np.shape(found) == np.shape(wanted)


@pytest.mark.parametrize("dtype", LETTERS)
@pytest.mark.parametrize("shapes", [((5, 3), (5,)), ((5, 3), (5, 2)), ((3, 5), (3,)), ((4, 4), (4, 2))])
def test_solutions_of_least_squares_are_numpys(shapes, dtype, random):
    """To the last bit, of matrices of full rank and of less, whichever operand moves."""
    a, b = (random.normal(size=(2, *shape)) for shape in shapes)
    a, b = ((x[0] + (1j * x[1] if dtype in "FD" else 0)).astype(dtype) for x in (a, b))
    for x in (a, np.array(a, order="F"), a[:, [0, 1] * (a.shape[1] // 2) + [0] * (a.shape[1] % 2)]):
        for rcond in (None, -1, 0.3):
            wanted = L.lstsq(x, b, rcond)
            for operands in ((leaf(x), leaf(b)), (x, leaf(b)), (leaf(x), b)):
                found = L.lstsq(*operands, rcond)
                assert found[0].requires_grad and found[0].detach().numpy().dtype == wanted[0].dtype
                np.testing.assert_array_equal(found[0].detach().numpy(), wanted[0])
                assert found[2] == wanted[2] and found[3].detach().numpy().dtype == wanted[3].dtype
                np.testing.assert_array_equal(found[3].detach().numpy(), wanted[3])


def tangent(function, primals, tangents):
    """In forward mode."""
    with fw.dual_level():
        pairs = zip(map(tg.tensor, primals), map(tg.tensor, tangents), strict=True)
        out = function(*(fw.make_dual(*pair) for pair in pairs))
        return fw.unpack_dual(out).tangent.numpy()


DEPENDENT = {
    "tall": ((6, 3), 3), "wide": ((3, 5), 3), "square": ((4, 4), 4), "dependent": ((6, 4), 2),
    "wide, dependent": ((4, 6), 3),
}  # fmt: skip


@pytest.mark.parametrize("kind", ["real", "complex"])
@pytest.mark.parametrize("columns", [None, 2])
@pytest.mark.parametrize("name", DEPENDENT)
def test_least_squares_are_a_product_with_the_pseudoinverse(name, columns, kind, random):
    """First and second derivatives, of both operands together and alone, and tangents, at constant rank."""
    (rows, width), rank = DEPENDENT[name]
    a = with_values(random, rows, width, 1.0 + np.arange(rank), kind)
    b = random.normal(size=(rows, columns) if columns else rows) * (1 + 1j if kind == "complex" else 1)
    u, v = (random.normal(size=x.shape).astype(x.dtype) for x in (a, b))
    weights = random.normal(size=(width, *b.shape[1:]))
    tolerance = {"rtol": 1e-9, "atol": 1e-9}

    def gradients(function, *operands):
        x, y = operands
        moving = [t for t in operands if isinstance(t, tg.Tensor)]
        out = function(x, y)
        total = np.sum(np.real(out * np.conj(out) * weights + out * (1 - 0.5j)))
        plain = tg.grad(total, moving, retain_graph=True)
        recorded = tg.grad(total, moving, create_graph=True)
        again = tg.grad(sum(np.sum(np.real(np.conj(g) * g)) for g in recorded), moving, allow_unused=True)
        return [g.detach().numpy() for g in (*plain, *recorded, *again) if g is not None]

    def by_pinv(x, y):
        return L.pinv(x) @ y

    def own(x, y):
        return L.lstsq(x, y)[0]

    for make in ((leaf, leaf), (leaf, np.array), (np.array, leaf)):
        pairs = [gradients(f, *(one(x) for one, x in zip(make, (a, b), strict=True))) for f in (own, by_pinv)]
        for found, wanted in zip(*pairs, strict=True):
            np.testing.assert_allclose(found, wanted, **tolerance)
    ways = ((lambda f: f, (a, b), (u, v)), (lambda f: lambda x: f(x, b), (a,), (u,)),
            (lambda f: lambda y: f(a, y), (b,), (v,)))  # fmt: skip
    for of, primals, tangents in ways:
        found, wanted = (tangent(of(f), primals, tangents) for f in (own, by_pinv))
        np.testing.assert_allclose(found, wanted, **tolerance)


@pytest.mark.parametrize("kind", ["real", "complex"])
@pytest.mark.parametrize(
    "names", [*((name,) for name in (*DEPENDENT, "one short")), ("square", "square"), ("all", "one short")]
)
def test_pseudoinverses_of_any_rank_have_the_derivative_of_a_recorded_sweep(names, kind, random):
    """Which leaves out nothing, as the other does where all rows, or all columns, are independent."""
    rows = DEPENDENT | {"all": ((6, 4), 4), "one short": ((6, 4), 3)}
    members = [(*rows[name][0], 1.0 + np.arange(rows[name][1])) for name in names]
    a = np.stack([with_values(random, *member, kind) for member in members])
    x = leaf(a if len(names) > 1 else a[0])
    y = L.pinv(x)
    ct = tg.tensor(random.normal(size=y.shape).astype(a.dtype))
    (found,) = tg.grad(y, x, ct, retain_graph=True)
    (wanted,) = tg.grad(y, x, ct, create_graph=True)
    np.testing.assert_allclose(found.numpy(), wanted.detach().numpy(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("shape", [(5, 3), (3, 5), (4, 4)])
def test_singular_vectors_are_computed_where_a_derivative_reads_them(shape, random, monkeypatch):
    """Of the solution at full rank none does: QR is enough."""
    a, b, svd, calls = leaf(random.normal(size=shape)), leaf(random.normal(size=shape[0])), L.svd, []
    monkeypatch.setattr(L, "svd", lambda *args, **kwargs: calls.append(1) or svd(*args, **kwargs))
    x, _, _, s = L.lstsq(a, b)
    tg.grad(np.sum(x * x), (a, b), retain_graph=True)
    assert not calls
    (g,) = tg.grad(np.sum(s), a)
    assert calls == [1]
    u, _, vh = svd(a.detach().numpy(), False)
    np.testing.assert_allclose(g.numpy(), u @ vh, rtol=1e-12, atol=1e-13)


def test_lstsq_of_dependent_columns():
    a = np.outer([1.0, 2.0, 3.0], [1.0, 2.0])
    found, left, rank, _ = L.lstsq(leaf(a), leaf([1.0, 0.0, 2.0]))
    np.testing.assert_allclose(found.detach().numpy(), L.lstsq(a, [1.0, 0.0, 2.0])[0], rtol=1e-13)
    assert rank == 1 and left.shape == (0,)


def test_integers():
    x = tg.tensor([[2, 1], [1, 3]])
    for name in ("cholesky", "det", "inv", "pinv", "eigvalsh", "norm", "cond", "svdvals"):
        found, wanted = getattr(L, name)(x), getattr(L, name)(x.numpy())
        assert found.dtype == wanted.dtype
        np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-14)


# ---------------------------------------------------------------- refusals

X, V = leaf(np.ones((2, 3))), leaf(np.ones(3))
REFUSED = [
    *((f"{name} of a vector", lambda f=getattr(L, name): f(V), ShapeError, "matrices")
      for name in ("cholesky", "det", "eigh", "eig", "eigvals", "eigvalsh", "inv", "pinv", "qr", "slogdet",
                   "svd", "cond", "diagonal", "matrix_norm")),
    *((f"{name} of an oblong", lambda f=getattr(L, name): f(X), L.LinAlgError, "square")
      for name in ("cholesky", "det", "eigh", "eig", "eigvals", "eigvalsh", "inv", "slogdet")),
    ("cholesky, indefinite", lambda: L.cholesky(leaf(-np.eye(2))), L.LinAlgError, "positive"),
    ("inv, singular", lambda: L.inv(leaf(np.ones((2, 2)))), L.LinAlgError, "ingular"),
    ("qr, raw", lambda: L.qr(X, "raw"), UnsupportedOpError, "Householder"),
    ("qr, unknown", lambda: L.qr(X, "thin"), ValueError, "thin"),
    ("eigh, triangle", lambda: L.eigh(leaf(np.eye(2)), "X"), ValueError, "UPLO"),
    ("norm, order of vectors", lambda: L.norm(V, "fro", 0), ValueError, "order"),
    ("norm, order of matrices", lambda: L.norm(X, 3), ValueError, "order 3"),
    ("norm of 3-d", lambda: L.norm(leaf(np.ones((1, 1, 1))), 2), ShapeError, "axis="),
    ("norm, axes", lambda: L.norm(X, axis=(0, 0)), ValueError, "twice"),
    ("norm, axis", lambda: L.norm(X, axis=2), IndexError, "axis 2"),
    ("norm, three axes", lambda: L.norm(X[None], axis=(0, 1, 2)), ShapeError, "two"),
    ("cond of an oblong", lambda: L.cond(X, 1), ShapeError, "square"),
    ("cond of nothing", lambda: L.cond(leaf(np.ones((0, 0)))), L.LinAlgError, "empty"),
    ("matrix_power, exponent", lambda: L.matrix_power(leaf(np.eye(2)), 0.5), TypeError, "0.5"),
    ("matrix_power of an oblong", lambda: L.matrix_power(X, 2), ShapeError, "square"),
    ("multi_dot of one", lambda: L.multi_dot([X]), ValueError, "two"),
    ("multi_dot, sizes", lambda: L.multi_dot([X, X]), ShapeError, "product"),
    ("tensorinv", lambda: L.tensorinv(X, ind=1), ShapeError, "square map"),
    ("tensorinv of a number", lambda: L.tensorinv(leaf(2.0)), ShapeError, "axis"),
    ("tensorinv, ind", lambda: L.tensorinv(X, ind=0), ValueError, "ind"),
    ("tensorsolve", lambda: L.tensorsolve(X, V), ShapeError, "tensorsolve"),
    ("tensorsolve, sizes", lambda: L.tensorsolve(leaf(np.ones((2, 2, 2))), leaf([1.0, 2.0])), ShapeError,
     "map"),
    ("lstsq, rows", lambda: L.lstsq(X, V), ShapeError, "rows"),
    ("lstsq of stacks", lambda: L.lstsq(leaf(np.ones((2, 2, 2))), X), ShapeError, "one matrix"),
    ("outer", lambda: L.outer(X, V), ShapeError, "two vectors"),
    ("cross", lambda: L.cross(X[:, :2], X[:, :2]), ShapeError, "3 elements"),
    ("cross, axis", lambda: L.cross(X, X, axis=2), IndexError, "axis 2"),
    ("vecdot", lambda: L.vecdot(X, X[:, :2]), ShapeError, "vecdot"),
    ("vecdot, axis", lambda: L.vecdot(X, X, axis=5), IndexError, "axis 5"),
    ("tensordot", lambda: L.tensordot(X, X, axes=1), ShapeError, "tensordot"),
    ("tensordot, axis", lambda: L.tensordot(X, X, axes=(4, 0)), IndexError, "axis 4"),
]  # fmt: skip


@pytest.mark.parametrize("row", REFUSED, ids=[row[0] for row in REFUSED])
def test_refusals(row):
    _, call, error, text = row
    with pytest.raises(error, match=text):
        call()


def with_values(random, rows, columns, s, kind):
    """A matrix with these singular values; Hermitian ones have eigenvalues of both signs."""

    def turned(n):
        x = random.normal(size=(n, n)) + (1j * random.normal(size=(n, n)) if kind == "complex" else 0.0)
        return L.qr(x)[0]

    d = np.zeros((rows, columns))
    d[range(len(s)), range(len(s))] = s
    if kind == "hermitian":
        q = turned(rows)
        return q @ (d * (-1.0) ** np.arange(rows)) @ q.T
    return turned(rows) @ d @ turned(columns)


CUT = [
    (4, 4, [4, 3, 1, 0.5], "real"), (5, 4, [4, 3, 1, 0.5], "real"), (3, 4, [4, 1, 0.5], "real"),
    (4, 4, [4, 4, 0.5, 0.5], "real"), (4, 4, [4, 3, 0.5, 0], "real"), (4, 3, [4, 3, 0], "real"),
    (3, 4, [4, 3, 0.5], "complex"), (4, 4, [4, 3, 0.5, 0.2], "hermitian"), (4, 4, [4, 1.4, 1, 0.5], "real"),
]  # fmt: skip


@pytest.mark.parametrize(("rows", "columns", "s", "kind"), CUT)
def test_pinv_that_leaves_out_singular_values(rows, columns, s, kind):
    """First derivative in reverse and forward mode, second, beside differences of what NumPy computes."""
    random = np.random.default_rng(3)
    a, u = with_values(random, rows, columns, s, kind), with_values(random, rows, columns, s, kind)
    w = random.normal(size=(columns, rows))
    how = {"hermitian": True} if kind == "hermitian" else {}
    u = u + u.T if how else u

    def f(x):
        return np.sum(np.real(L.pinv(x, 0.3, **how)) * w)

    def along(g):
        return np.sum(np.real(np.conj(np.asarray(g)) * u))

    def gradient(x):
        t = tg.tensor(x, requires_grad=True)
        return tg.grad(f(t), t)[0].numpy()

    step = 1e-5
    first = (f(a + step * u) - f(a - step * u)) / (2 * step)
    second = along(gradient(a + step * u) - gradient(a - step * u)) / (2 * step)
    t = tg.tensor(a, requires_grad=True)
    (g,) = tg.grad(f(t), t, create_graph=True)
    assert along(g.detach()) == pytest.approx(first, rel=1e-6)
    _, moved = tg.autograd.functional.jvp(f, tg.tensor(a), tg.tensor(u))
    assert moved.item() == pytest.approx(first, rel=1e-6)
    with fw.dual_level():
        moved = fw.unpack_dual(f(fw.make_dual(tg.tensor(a), tg.tensor(u)))).tangent
    assert moved.item() == pytest.approx(first, rel=1e-6)
    (h,) = tg.grad(np.sum(np.real(np.conj(g) * u)), t)
    assert along(h) == pytest.approx(second, rel=1e-6)


def test_pinv_that_leaves_out_values_not_much_smaller():
    """The series has as many terms as rounding asks for: beside the rule of the decomposition."""
    random = np.random.default_rng(6)
    x, w = leaf(with_values(random, 3, 3, [1, 0.32, 0.2775], "real")), random.normal(size=(3, 3))
    (found,) = tg.grad(np.sum(L.pinv(x, 0.3) * w), x)
    u, s, vh = L.svd(x)
    (wanted,) = tg.grad(np.sum((vh[:2].T / s[:2]) @ u[:, :2].T * w), x)
    np.testing.assert_allclose(found.numpy(), wanted.numpy(), rtol=0, atol=1e-11 * abs(wanted.numpy()).max())


def test_lstsq_that_leaves_out_singular_values():
    random = np.random.default_rng(4)
    a = with_values(random, 5, 3, [4, 3, 0.5], "real")
    u, b = random.normal(size=(5, 3)), random.normal(size=5)

    def f(x):
        return np.sum(L.lstsq(x, b, 0.3)[0] * np.arange(1.0, 4.0))

    t = tg.tensor(a, requires_grad=True)
    expected = (f(a + 1e-5 * u) - f(a - 1e-5 * u)) / 2e-5
    assert np.sum(tg.grad(f(t), t)[0].numpy() * u) == pytest.approx(expected, rel=1e-6)
    assert tangent(f, (a,), (u,)) == pytest.approx(expected, rel=1e-6)
    b, v = leaf(b), random.normal(size=5)
    expected = np.sum((L.lstsq(a, v, 0.3)[0]) * np.arange(1.0, 4.0))
    assert np.sum(tg.grad(f(t), b)[0].numpy() * v) == pytest.approx(expected, rel=1e-12)
    ways = (lambda x, y: L.lstsq(x, y, 0.3)[0]), (lambda x, y: L.pinv(x, 0.3) @ y)
    found, wanted = (tangent(way, (a, b.detach().numpy()), (u, v)) for way in ways)
    np.testing.assert_allclose(found, wanted, rtol=1e-10, atol=1e-10)


def test_pinv_of_a_batch_leaves_out_different_numbers():
    random = np.random.default_rng(5)
    parts = [with_values(random, 3, 3, s, "real") for s in ([4, 3, 2], [4, 3, 0.5], [4, 0.5, 0])]
    w = random.normal(size=(3, 3))
    t = tg.tensor(np.stack(parts), requires_grad=True)
    found = tg.grad(np.sum(L.pinv(t, 0.3) * w), t)[0].numpy()
    for one, part in zip(found, parts, strict=True):
        t = tg.tensor(part, requires_grad=True)
        np.testing.assert_allclose(one, tg.grad(np.sum(L.pinv(t, 0.3) * w), t)[0], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("dtype", LETTERS)
def test_a_triangular_solve_divides_by_what_has_no_reciprocal(dtype):
    limits = np.finfo(dtype)
    pivots = np.array(
        [limits.smallest_subnormal * 3, limits.tiny / 4, limits.max / 4, limits.max / 2, 0.5], dtype
    )
    for number in (1, 1j) if dtype in "FD" else (1,):
        found = triangles.solve_triangle(
            np.diag(pivots), pivots[:, None] * np.array([[number, -number]], dtype)
        )
        np.testing.assert_allclose(found, [[number, -number]] * len(pivots), rtol=4 * limits.eps)


@pytest.mark.parametrize("dtype", ["f", "d", "F", "D"])
@pytest.mark.parametrize("order", ["C", "F", "A"])  # the last between other numbers
@pytest.mark.parametrize("n", [0, 1, 5, SMALL, SMALL + 1, 3 * SMALL - 1])
def test_a_triangular_solve_is_an_elimination(dtype, order, n, random):
    r, x = (random.normal(size=(2, *shape)) for shape in ((n, n), (n, n + 3)))
    r, x = ((v[0] + (1j * v[1] if dtype in "FD" else 0)).astype(dtype) for v in (r, x))
    r = np.array(np.triu(r) / (n + 1) + np.eye(n), dtype, order=order)
    r = np.kron(r, np.array([[1, 9], [9, 9]], dtype))[::2, ::2] if order == "A" else r
    eps = np.finfo(dtype).eps
    for right in (np.array(x, order=order), np.stack([x, 2 * x]), x[:, ::-1], x.astype("D"), tg.tensor(x)):
        wanted = np.linalg.solve(r, np.asarray(right))
        found = np.asarray(triangles.solve_triangle(r, right))
        assert found.dtype == wanted.dtype and found.shape == wanted.shape
        np.testing.assert_allclose(found, wanted, rtol=0, atol=50 * eps * np.max(np.abs(wanted), initial=1))
        if type(right) is np.ndarray and n:
            with pytest.raises(ValueError):
                triangles.solve_triangle(r, right[..., 1:, :])
        if type(right) is np.ndarray:
            found, wanted = triangles.solve_triangle(r, right, True), np.linalg.solve(np.conj(r.T), right)
            close = 50 * eps * np.max(np.abs(wanted), initial=1)
            np.testing.assert_allclose(found, wanted, rtol=0, atol=close)


@pytest.mark.parametrize("dtype", LETTERS)
@pytest.mark.parametrize(
    ("order", "upper"),
    thinned(itertools.product("CF", [False, True]), lambda order, upper: upper == (order == "F")),
)
def test_the_reverse_of_cholesky_is_its_formula(order, upper, dtype, random, lapack_or_none):
    """On arrays the factorisation goes backwards; what is recorded is a formula by triangular systems."""
    for n in (1, 5, SMALL + 1, 3 * SMALL - 1):
        a = well_conditioned(random, dtype, n)
        a = np.array(a @ np.conj(a.T) + np.eye(n, dtype=dtype), order=order)
        for x in (leaf(a), leaf(np.stack([a, 2 * a])[None])):
            out = L.cholesky(x, upper=upper)
            seed = random.normal(size=out.shape) * (1 - 0.5j if dtype in "FD" else 1)
            seed = tg.tensor(np.array(seed, dtype, order=order))
            (found,) = tg.grad(out, x, seed, retain_graph=True)
            (wanted,) = tg.grad(out, x, seed, create_graph=True)
            tolerance = 100 * np.finfo(dtype).eps * abs(wanted.detach().numpy()).max()
            np.testing.assert_allclose(found.numpy(), wanted.detach().numpy(), rtol=0, atol=tolerance)
            np.testing.assert_array_equal(found.numpy(), np.conj(found.numpy().mT))
            lanes = np.stack([seed.numpy(), 1 - 2 * seed.numpy()])
            both = tg.grad(out, x, tg.tensor(lanes), is_grads_batched=True)[0].numpy()
            np.testing.assert_allclose(both[0], found.numpy(), rtol=0, atol=tolerance)
            at_once = triangles.through_cholesky(out.detach().numpy(), lanes, upper)
            if at_once is not None:
                np.testing.assert_array_equal(at_once[0], found.numpy())
                np.testing.assert_allclose(at_once, both, rtol=0, atol=4 * tolerance)


@pytest.mark.parametrize("dtype", LETTERS)
def test_the_reverse_of_cholesky_reads_its_triangle_alone(dtype, random):
    """What a cotangent has beside the triangle of the factor is no number here, and stays as it is."""
    a = well_conditioned(random, dtype, 40)
    a = a @ np.conj(a.T) + np.eye(40, dtype=dtype)
    for upper in (False, True):
        part = np.triu if upper else np.tril
        out = L.cholesky(leaf(a), upper=upper)
        seed = part(random.normal(size=a.shape)).astype(dtype)
        spoiled = np.where(part(np.ones(a.shape)), seed, np.nan).astype(dtype)
        kept = spoiled.copy()
        found = triangles.through_cholesky(out.detach().numpy(), spoiled, upper)
        np.testing.assert_array_equal(spoiled, kept)
        np.testing.assert_array_equal(found, triangles.through_cholesky(out.detach().numpy(), seed, upper))


@pytest.mark.parametrize("dtype", LETTERS)
@pytest.mark.parametrize("mode", ["reduced", "complete", "r"])
@pytest.mark.parametrize("way", ["ufuncs and LAPACK", "NumPy's function"])
def test_qr_is_numpys(way, mode, dtype, random, monkeypatch):
    """To the last bit, of small matrices, and of larger ones; they stay as they are."""
    if way == "NumPy's function":
        monkeypatch.setattr(lapack, "_ufuncs", lambda: None)
        monkeypatch.setattr(lapack, "_reflectors_proved", lambda char: False)
    for shape in (
        (3, 3), (5, 3), (3, 5), (1, 1), (SMALL, SMALL), (SMALL + 1, 4), (4, SMALL + 1), (2, 4, 3),
        (45, 40), (40, 75), (0, 3), (3, 0),
    ):  # fmt: skip
        a, imag = random.normal(size=(2, *shape)) * 1e3
        a = (a + (1j * imag if dtype in "FD" else 0)).astype(dtype)
        spoiled = np.where(np.arange(a.size).reshape(shape) == a.size // 2, np.nan, a).astype(dtype)
        for x in (a, np.array(a, order="F"), a[..., ::-1], a * 0, spoiled, np.full(shape, np.inf, dtype)):
            kept, wanted = x.copy(), L.qr(x, mode)
            with np.errstate(all="raise"):
                found = L.qr(tg.from_numpy(x).requires_grad_(), mode)
            for one, another in ((found, wanted),) if mode == "r" else zip(found, wanted, strict=True):
                assert one.detach().numpy().dtype == another.dtype
                assert one.detach().numpy().flags.c_contiguous or min(shape) <= SMALL
                np.testing.assert_array_equal(one.detach().numpy(), another)
            np.testing.assert_array_equal(x, kept)


STACKS = thinned(  # of factors, and of their cotangents
    [(((), ()),), (((), (3,)),), (((2,), (2,)),), (((2,), (3, 2)),)], lambda stacks: stacks[1] in ((), (3, 2))
)


@pytest.mark.parametrize("stacks", STACKS)
@pytest.mark.parametrize("dtype", LETTERS)
def test_the_rule_of_qr_is_the_same_without_lapack(dtype, stacks, random, monkeypatch):
    """Of q, of r and of both, of stacks and of several cotangents of the same factors, of any layout."""
    of, several = stacks
    for m, n in ((1, 1), (3, 3), (17, 16), (SMALL + 9, SMALL + 9), (90, 37)):
        a, by_q, by_r = (
            (x[0] + (1j * x[1] if dtype in "FD" else 0)).astype(dtype)
            for x in (random.normal(size=(2, *s)) for s in ((*of, m, n), (*several, m, n), (*several, n, n)))
        )
        q, r = L.qr(a)
        for pair in ((by_q, None), (None, by_r), (by_q, by_r), (by_q[..., ::-1], by_r.mT)):
            kept = [None if x is None else x.copy() for x in pair]
            found = decompositions._by_qr(*pair, q, r)
            with monkeypatch.context() as patch:
                patch.setattr(triangles, "kernel_of", lambda *names: None)
                wanted = decompositions._by_qr(*pair, q, r)
            assert found.dtype == wanted.dtype and found.shape == wanted.shape
            close = 1e3 * np.finfo(dtype).eps * np.linalg.cond(r).max() * abs(wanted).max()
            np.testing.assert_allclose(found, wanted, rtol=0, atol=close)
            for x, before in zip(pair, kept, strict=True):
                np.testing.assert_array_equal(x, before)


@pytest.mark.parametrize("stacks", STACKS)
@pytest.mark.parametrize("dtype", LETTERS)
def test_the_rule_of_svd_is_the_same_without_blas(dtype, stacks, random, monkeypatch):
    """Of left and right vectors, of stacks and of several cotangents of the same, of any layout."""
    of, several = stacks
    for m, n in ((1, 1), (3, 3), (5, 3), (3, 5), (SMALL + 9, SMALL), (90, 90)):
        a, left, right = (
            (x[0] + (1j * x[1] if dtype in "FD" else 0)).astype(dtype)
            for x in (
                random.normal(size=(2, *s))
                for s in ((*of, m, n), (*several, m, min(m, n)), (*several, min(m, n), n))
            )
        )
        factors = L.svd(a, full_matrices=False)
        factors = factors[0], np.arange(n, 0, -1, factors[1].dtype)[: min(m, n)] + 0 * factors[1], factors[2]
        for part, given in ((0, left), (0, left[..., ::-1]), (2, right), (2, np.asarray(right, order="F"))):
            kept, attrs = given.copy(), {"factors": lapack.Kept(factors), "part": part}
            found = REGISTRY["svd"].vjp(given, None, (a,), attrs, (0,))[0]
            with monkeypatch.context() as patch:
                patch.setattr(triangles, "kernel_of", lambda *names: None)
                wanted = REGISTRY["svd"].vjp(given, None, (a,), attrs, (0,))[0]
            assert found.dtype == wanted.dtype and found.shape == wanted.shape
            close = 1e3 * np.finfo(dtype).eps * max(abs(wanted).max(), abs(given).max())
            np.testing.assert_allclose(found, wanted, rtol=0, atol=close)
            np.testing.assert_array_equal(given, kept)


@pytest.mark.parametrize("dtype", LETTERS)
def test_singular_vectors_without_a_derivative_have_no_finite_one(dtype, random, monkeypatch):
    """Those of equal values; where a value is 0, complex left ones alone, whose phases it does not tell."""
    parts = random.normal(size=(4, 3, 3))
    ct, a = ((x + (1j * y if dtype in "FD" else 0)).astype(dtype) for x, y in (parts[:2], parts[2:]))
    for values in ([2, 2, 1], [2, 1, 1], [2, 1, 0], [2, 0, 0], [0, 0, 0]):
        factors = lapack.Kept((L.qr(a)[0], np.array(values, dtype.lower()), L.qr(ct)[0]))
        for part in (0, 2):
            with np.errstate(all="ignore"):
                found = REGISTRY["svd"].vjp(ct, None, (a,), {"factors": factors, "part": part}, (0,))[0]
                with monkeypatch.context() as patch:
                    patch.setattr(triangles, "kernel_of", lambda *names: None)
                    wanted = REGISTRY["svd"].vjp(ct, None, (a,), {"factors": factors, "part": part}, (0,))[0]
            assert np.isfinite(wanted).all() or not np.isfinite(wanted).any()
            np.testing.assert_array_equal(np.isfinite(found), np.isfinite(wanted))
            if np.isfinite(wanted).all():
                np.testing.assert_allclose(found, wanted, rtol=0, atol=1e3 * np.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", LETTERS)
def test_singular_vectors_of_huge_and_tiny_matrices(dtype, random):
    """Whose singular values have squares that are no numbers."""
    parts = random.normal(size=(4, 4, 4))
    ct, a = ((x + (1j * y if dtype in "FD" else 0)).astype(dtype) for x, y in (parts[:2], parts[2:]))
    known, high = L.svd(a), np.finfo(dtype).maxexp * 2 // 3
    for part in (0, 2):
        wanted, *found = (
            REGISTRY["svd"].vjp(ct, None, (a,), {"factors": lapack.Kept(factors), "part": part}, (0,))[0]
            * scale
            for scale in np.ldexp(known[1].dtype.type(1), [0, high, -high])
            for factors in [(known[0], known[1] * scale, known[2])]
        )
        for one in found:
            np.testing.assert_allclose(one, wanted, rtol=100 * np.finfo(dtype).eps)


@pytest.mark.parametrize("stacks", STACKS)
@pytest.mark.parametrize("dtype", LETTERS)
def test_the_rule_of_eigh_is_the_same_without_blas(dtype, stacks, random, monkeypatch):
    """Of eigenvalues and eigenvectors, of stacks and of several cotangents of the same, of any layout."""
    of, several = stacks
    for n in (1, 3, 16, SMALL + 9, 90):
        a, ct = (
            (x[0] + (1j * x[1] if dtype in "FD" else 0)).astype(dtype)
            for x in (random.normal(size=(2, *s, n, n)) for s in (of, several))
        )
        w, v = L.eigh(a)
        ones = np.broadcast_to(w.dtype.type(1), (*several, n))
        for part, given in ((0, ct[..., 0].real), (0, ones), (1, ct), (1, ct.mT)):
            kept, attrs = given.copy(), {"factors": lapack.Kept((w, v)), "part": part}
            found = REGISTRY["eigh"].vjp(given, None, (a,), attrs, (0,))[0]
            with monkeypatch.context() as patch:
                patch.setattr(triangles, "kernel_of", lambda *names: None)
                wanted = REGISTRY["eigh"].vjp(given, None, (a,), attrs, (0,))[0]
            assert found.dtype == wanted.dtype and found.shape == wanted.shape
            gap = np.abs(np.diff(w)).min(initial=1)
            close = 1e3 * np.finfo(dtype).eps * max(abs(wanted).max(), abs(given).max() / gap)
            np.testing.assert_allclose(found, wanted, rtol=0, atol=close)
            np.testing.assert_array_equal(found, np.conj(found.mT))
            np.testing.assert_array_equal(given, kept)


@pytest.mark.parametrize("found", [True, False])
@pytest.mark.parametrize("dtype", LETTERS)
def test_triangular_factors_in_rules_are_those_of_qr(dtype, found, random, monkeypatch):
    """To the precision of the matrix, which stays as it is, and zeros below the diagonal."""
    if not found:
        monkeypatch.setattr(lapack, "_reflectors", lambda char: None)
    for shape in ((4, 3), (SMALL, 5), (SMALL + 1, 5), (70, 40), (40, 40)):
        a, imag = random.normal(size=(2, *shape))
        for order in "CF":
            x = np.array(a + (1j * imag if dtype in "FD" else 0), dtype, order=order)
            kept, wanted = x.copy(), L.qr(x, "r")
            r = triangular_factor(x)
            assert r.dtype == x.dtype
            np.testing.assert_array_equal(x, kept)
            np.testing.assert_array_equal(np.tril(r, -1), 0)
            np.testing.assert_allclose(r, wanted, rtol=0, atol=200 * np.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", LETTERS)
@pytest.mark.parametrize("way", ["ufuncs", "NumPy's function"])
def test_eigh_is_numpys(way, dtype, random, monkeypatch):
    """To the last bit, of matrices that take the short way, and of larger ones; errors too."""
    if way != "ufuncs":
        monkeypatch.setattr(lapack, "_ufuncs", lambda: None)
    for shape in ((1, 1), (4, 4), (SMALL, SMALL), (SMALL + 1, SMALL + 1), (2, 3, 3), (0, 0)):
        a = random.normal(size=shape) + (1j * random.normal(size=shape) if dtype in "FD" else 0)
        for x in (a.astype(dtype), np.array(a, dtype, order="F"), a.astype(dtype)[..., ::-1]):
            for uplo in ("L", "U", "u"):
                kept, wanted = x.copy(), L.eigh(x, uplo)
                with np.errstate(all="raise"):
                    found = L.eigh(tg.from_numpy(x).requires_grad_(), uplo)
                for one, another in zip(found, wanted, strict=True):
                    assert one.detach().numpy().dtype == another.dtype
                    np.testing.assert_array_equal(one.detach().numpy(), another)
                np.testing.assert_array_equal(x, kept)
    for spoiled in (np.nan, np.inf):
        with pytest.raises(L.LinAlgError, match="Eigenvalues did not converge"), np.errstate(all="raise"):
            L.eigh(leaf(np.full((4, 4), spoiled, dtype)))


def test_the_rule_of_qr_says_that_columns_are_dependent(lapack_or_none):
    for n in (2, SMALL + 2):
        a = np.tri(n + 1, n) + 1
        a[:, 0] = 0
        for part in (0, 1):
            x = leaf(a)
            with pytest.raises(np.linalg.LinAlgError, match="Singular"):
                tg.grad(np.sum(L.qr(x)[part]), x)


# ---------------------------------------------------------------- LU factors that values leave behind

LARGER = SMALL + 9
BY_LU = {
    "solve": lambda a: L.solve(a, a[:, :3] + 1), "solve, vector": lambda a: L.solve(a, a[0]),
    "solve, constant": lambda a: L.solve(a, np.cos(np.arange(float(len(a))))),
    "solve, stack": lambda a: L.solve(a, np.stack([a, a + 1])[..., :2]),
    "solve, none": lambda a: np.sum(L.solve(a, a[:, :0])) + a[0, 0],
    "solve, other dtype": lambda a: L.solve(a, np.ones(len(a), complex)),
    "det": L.det, "slogdet": lambda a: L.slogdet(a)[1], "sign": lambda a: L.slogdet(a)[0] * L.slogdet(a)[1],
}  # fmt: skip


def well_conditioned(random, dtype, n=LARGER):
    a = random.normal(size=(n, n)) + (1j * random.normal(size=(n, n)) if dtype in "FD" else 0)
    return (a / 12 + np.eye(n)).astype(dtype)


@pytest.fixture(params=["kept", "not to be found"])
def lapack_or_none(request, monkeypatch):
    """LAPACK by address and, as where it is not to be found, NumPy's functions alone."""
    if request.param == "not to be found":
        monkeypatch.setattr(lapack, "functions", lambda char: None)
        monkeypatch.setattr(triangles, "kernel_of", lambda *names: None)


def test_lapack_is_found_here():
    """Else the tests below say nothing of it."""
    assert all(lapack.functions(char) is not None for char in "fdFD")
    assert all(triangles.kernel_of(char, name) for char in "dD" for name in triangles.KERNELS)
    assert lapack._logarithms(lapack.functions("d").integer) is not None
    assert all(lapack._reflectors_proved(char) for char in "dD")
    if hasattr(L._linalg._umath_linalg, "qr_r_raw"):  # older versions of NumPy have two of them
        assert lapack._ufuncs() is not None


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", LETTERS)
def test_systems_in_rules_are_numpys(dtype, order, random, lapack_or_none):
    """To the precision of the operands, which stay as they are."""
    for n in (0, SMALL, SMALL + 1, 3 * SMALL):
        a, b = (np.array(well_conditioned(random, dtype, n), order=order) for _ in range(2))
        for left, right in (
            (a, b),
            (a.T, b[:, :3]),
            (a, b[:, :0]),
            (a, b.astype("D")),
            (np.stack([a, b]), b),
        ):
            kept, found, wanted = left.copy(), solve_square(left, right), np.linalg.solve(left, right)
            assert found.dtype == wanted.dtype and found.shape == wanted.shape
            np.testing.assert_allclose(found, wanted, rtol=0, atol=1e3 * np.finfo(dtype).eps)
            np.testing.assert_array_equal(left, kept)
        with pytest.raises(np.linalg.LinAlgError, match="Singular") if n else nullcontext():
            solve_square(a * 0, b)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", LETTERS)
@pytest.mark.parametrize("name", BY_LU)
def test_values_that_leave_factors_behind_are_numpys(name, dtype, order, random):
    """To the last bit, of every shape, dtype and order."""
    a = np.array(well_conditioned(random, dtype), order=order)
    found, wanted = BY_LU[name](leaf(a)), BY_LU[name](a)
    assert found.dtype == wanted.dtype
    np.testing.assert_array_equal(found.detach().numpy(), wanted)


SYSTEMS = itertools.product([SMALL, SMALL + 1, 47, 96, 111], [1, 2, 7, 100, None])


@pytest.mark.parametrize(("n", "columns"), every(SYSTEMS, 3))  # each size and each number of columns once
def test_inverses_and_solutions_are_numpys(n, columns, random, lapack_or_none):
    """To the last bit, of every dtype and layout, of any number of right sides, and of what is not finite."""
    plain = random.normal(size=(n, n))
    for dtype in "fdFD":
        a = plain.astype(dtype) if dtype in "fd" else (plain + 1j * plain.T).astype(dtype)
        for x in (a, a.T, a[::-1], np.where(np.eye(n), np.nan, a), np.where(plain > 2, np.inf, a)):
            x = x.astype(dtype, copy=False)
            calls = [(L.solve, (b,)) for b in (x[:, :columns], a[:columns].T)] if columns else [(L.inv, ())]
            for function, right in calls:
                with np.errstate(all="ignore"):
                    found, wanted = function(leaf(x), *right).detach().numpy(), function(x, *right)
                assert found.dtype == wanted.dtype and found.flags.c_contiguous == wanted.flags.c_contiguous
                np.testing.assert_array_equal(found, wanted)
    for singular in (plain * 0, plain[:, [0] * n]):
        with pytest.raises(np.linalg.LinAlgError, match="Singular"):
            L.solve(leaf(singular), plain[:, :columns]) if columns else L.inv(leaf(singular))


@pytest.mark.parametrize("n", [47, 100, 111])
def test_inverses_and_solutions_are_numpys_by_any_number_of_threads(n, random):
    """To the last bit, where OpenBLAS has other factors, or other parts, by two threads than by one."""
    threadpoolctl = pytest.importorskip("threadpoolctl")
    a = random.normal(size=(n, n))
    for threads in (1, 2, 1):
        with threadpoolctl.threadpool_limits(threads, user_api="blas"):
            np.testing.assert_array_equal(L.inv(leaf(a)).detach().numpy(), L.inv(a))
            for b in (a[:, ::-1], a[:, :7], a[:, :1], np.stack([a, a.T]), np.stack([a[:, :1]] * 3)):
                np.testing.assert_array_equal(L.solve(leaf(a), b).detach().numpy(), L.solve(a, b))


@pytest.mark.parametrize("n", [SMALL, SMALL + 1, 100])
def test_determinants_are_numpys(n, random):
    """Of both signs, singular, too large, too small, and of what is not finite."""
    a = random.normal(size=(n, n))
    rows = [a, a[::-1], a[1:] @ a[1:].T, a * 1e30, a * 1e-30, a * np.eye(n), a[:, [0] * n], a * 0]
    rows += [np.where(np.eye(n), np.nan, a), np.full((n, n), np.inf)]
    for x in rows:
        with np.errstate(all="ignore"):
            for function in (L.det, lambda x: L.slogdet(x)[0], lambda x: L.slogdet(x)[1]):
                np.testing.assert_array_equal(function(leaf(x)).detach().numpy(), function(x))


def test_determinants_are_numpys_where_compiled_logarithms_are_not(random, monkeypatch):
    monkeypatch.setattr(lapack, "_logarithms", lambda integer: None)
    test_determinants_are_numpys(LARGER, random)
    test_derivatives_by_factors("det", "d", random, None)
    test_derivatives_by_factors("slogdet", "d", random, None)


@pytest.mark.parametrize("dtype", ["d", "D"])
@pytest.mark.parametrize("name", BY_LU)
def test_derivatives_by_factors(name, dtype, random, lapack_or_none):
    """First and second, reverse and forward, beside differences of what NumPy computes."""
    a, u = well_conditioned(random, dtype), well_conditioned(random, dtype)
    weights = np.asarray(np.cos(np.arange(np.size(BY_LU[name](a)))).reshape(np.shape(BY_LU[name](a))))

    def f(x):
        return np.sum(np.real(BY_LU[name](x) * weights * (1 + 0.5j)))

    def along(g):
        return np.sum(np.real(np.conj(np.asarray(g)) * u))

    step = 1e-5
    first = (f(a + step * u) - f(a - step * u)) / (2 * step)
    x = leaf(a)
    (plain,) = tg.grad(f(x), x)
    (g,) = tg.grad(f(x), x, create_graph=True)
    largest = abs(plain.numpy()).max()
    np.testing.assert_allclose(plain.numpy(), g.detach().numpy(), rtol=1e-12, atol=1e-13 * largest)
    assert along(plain) == pytest.approx(first, rel=1e-6, abs=1e-8)
    _, moved = tg.autograd.functional.jvp(f, tg.tensor(a), tg.tensor(u))
    assert moved.item() == pytest.approx(first, rel=1e-6, abs=1e-8)
    (h,) = tg.grad(np.sum(np.real(np.conj(g) * u)), x)
    both = [along(tg.grad(f(leaf_), leaf_)[0]) for leaf_ in (leaf(a + step * u), leaf(a - step * u))]
    assert along(h) == pytest.approx((both[0] - both[1]) / (2 * step), rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("name", BY_LU)
def test_many_cotangents_by_factors(name, random):
    x = leaf(well_conditioned(random, "d"))
    out = BY_LU[name](x)
    seeds = random.normal(size=(3, *out.shape))
    (found,) = tg.grad(out, x, tg.tensor(seeds), is_grads_batched=True, retain_graph=True)
    for one, seed in zip(found, seeds, strict=True):
        wanted = tg.grad(out, x, tg.tensor(np.asarray(seed)[()]), retain_graph=True)[0].numpy()
        np.testing.assert_allclose(one.numpy(), wanted, rtol=1e-11, atol=1e-12 * abs(wanted).max())


@pytest.mark.parametrize("dtype", ["f", "D"])
def test_factors_of_another_matrix_are_kept_apart(dtype, random):
    a, b = (well_conditioned(random, dtype) for _ in range(2))
    first = lapack.LU.of(a)
    other = first.fresh()
    for _ in range(2):
        for factors, left, right in ((first, a, b), (other, b, a)):
            wanted = np.linalg.solve(left, right)
            close = 1e3 * np.finfo(dtype).eps
            np.testing.assert_allclose(factors.solve(left, right), wanted, rtol=0, atol=close)


@pytest.mark.parametrize("name", ["solve", "solve, vector", "solve, constant", "det", "slogdet"])
def test_values_and_rules_share_one_factorisation(name, random, monkeypatch):
    """Also the sweep that is recorded, and that of what it has recorded."""
    x, calls = leaf(well_conditioned(random, "d")), []

    def counted(function):
        return lambda *args: calls.append(function.__name__) or function(*args)

    for key in ("_gesv", "_getrf"):
        monkeypatch.setattr(lapack, key, counted(getattr(lapack, key)))
    for key in ("solve", "inv", "det", "slogdet"):
        monkeypatch.setattr(L._linalg._umath_linalg, key, counted(getattr(L._linalg._umath_linalg, key)))
    if hasattr(L._linalg._umath_linalg, "solve1"):
        monkeypatch.setattr(L._linalg._umath_linalg, "solve1", counted(L._linalg._umath_linalg.solve1))
    (g,) = tg.grad(np.sum(BY_LU[name](x)), x, create_graph=True)
    tg.grad(np.sum(g * g), x)
    assert len(calls) == 1, calls


@pytest.mark.parametrize("dtype", ["d", "D"])
def test_released_factors_are_computed_again(dtype, random):
    """By a record of a sweep that was recorded, whose operand is the adjoint of the matrix."""
    n = 3 * LARGER  # of smaller ones they stay
    x, y, w = leaf(well_conditioned(random, dtype, n)), *map(leaf, random.normal(size=(2, n)).astype(dtype))
    out = L.solve(x, y)
    (g,) = tg.grad(out, y, w, create_graph=True)
    (h,) = tg.grad(np.sum(np.real(g * np.conj(g))), w, create_graph=True)
    totals = [np.sum(np.real(v * np.conj(v))) for v in (g, h)]
    wanted = [tg.grad(total, x, retain_graph=True)[0].numpy() for total in totals]
    tg.grad(out, x, w.detach())
    for total, one in zip(totals[::-1], wanted[::-1], strict=True):
        (found,) = tg.grad(total, x, retain_graph=total is totals[1])
        np.testing.assert_allclose(found.numpy(), one, rtol=1e-9, atol=1e-11 * abs(one).max())


def test_solutions_with_a_singular_matrix_are_refused():
    a = np.ones((LARGER, LARGER))
    for function in (L.solve, lambda a, b: L.inv(a)):
        with pytest.raises(L.LinAlgError, match="Singular"):
            function(leaf(a), a[0])
    with pytest.raises(ShapeError):
        L.solve(leaf(np.eye(LARGER)), np.ones((LARGER - 1, 2)))
    with pytest.raises(ShapeError):
        L.solve(leaf(np.eye(LARGER)), np.ones(LARGER - 1))


def test_derivatives_of_determinants_of_singular_large_matrices(random):
    """Of rank n - 1, where the cofactors are those of differences; the logarithm's is infinite."""
    a, u = random.normal(size=(2, LARGER, LARGER)) / np.sqrt(LARGER)
    a[-1] = a[0] - a[1]
    (g,) = tg.grad(L.det(x := leaf(a)), x)
    step = 1e-4
    wanted = (L.det(a + step * u) - L.det(a - step * u)) / (2 * step)
    assert np.sum(g.numpy() * u) == pytest.approx(wanted, rel=1e-5)
    a[:] = 1
    with np.errstate(all="ignore"):
        (g,) = tg.grad(L.slogdet(x := leaf(a))[1], x)
    assert not np.isfinite(g.numpy()).any()


FACTORISED = {
    "solve": lambda a: L.solve(a, np.ones(len(a))), "det": L.det, "slogdet": lambda a: L.slogdet(a)[1],
    "eigh": lambda a: (lambda w, v: w * v**2)(*L.eigh(a)), "eigvalsh": L.eigvalsh, "svdvals": L.svdvals,
    "svd": lambda a: (lambda u, s, vh: u * s * vh.T)(*L.svd(a)), "eigvals": lambda a: np.abs(L.eigvals(a)),
    "qr": lambda a: (lambda q, r: q * r)(*L.qr(a)), "lstsq": lambda a: L.lstsq(a, a[0])[0],
    "lstsq, values": lambda a: L.lstsq(a, a[0])[0] * L.lstsq(a, a[0])[3],
}  # fmt: skip


@pytest.mark.parametrize("name", FACTORISED)
def test_factors_are_saved_values(name, random):
    """They pass through hooks, and go with the sweep."""
    a = well_conditioned(random, "d")
    packed, unpacked = [], []

    def pack(x):
        packed.append(x.numpy().copy())
        return len(packed) - 1

    def unpack(k):
        unpacked.append(k)
        return tg.tensor(packed[k])

    x = leaf(a)
    with saved_tensors_hooks(pack, unpack):
        out = np.sum(FACTORISED[name](x))
    count = len(packed)
    assert sum(p.shape == a.shape for p in packed) >= 2  # the matrix, and at least one factor
    (found,) = tg.grad(out, x, retain_graph=True)
    assert len(packed) == count and unpacked
    np.testing.assert_array_equal(found.numpy(), tg.grad(np.sum(FACTORISED[name](x)), x)[0].numpy())
    if name not in BY_LU:  # which are recorded anew, and not by the factors
        return
    (recorded,) = tg.grad(out, x, create_graph=True)
    (second,) = tg.grad(np.sum(recorded**2), x)
    (again,) = tg.grad(np.sum(FACTORISED[name](x)), x, create_graph=True)
    np.testing.assert_allclose(second.numpy(), tg.grad(np.sum(again**2), x)[0].numpy(), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", every(["solve", "det", "slogdet", "eigvalsh", "svdvals", "eigvals"], 6))
def test_factors_are_released_by_a_sweep(name, random):
    """A result that is kept does not keep them."""
    n, size = 3 * LARGER, 8 * (3 * LARGER) ** 2
    x = leaf(well_conditioned(random, "d", n))
    held = []

    def step():
        out = np.sum(FACTORISED[name](x))
        tg.grad(out, x)
        held.append(out)

    step()
    give_back()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(6):
            step()
        give_back()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 3 * size  # of 6 or more


def test_products_of_large_stacks(random):
    """Of matrices that are not square, in memory that is used again."""
    a, b = leaf(random.normal(size=(3, 40, 30))), leaf(random.normal(size=(3, 30, 50)))
    ct = random.normal(size=(3, 40, 50))
    for found, wanted in zip(
        tg.grad(a @ b, (a, b), ct), (ct @ b.detach().numpy().mT, a.detach().numpy().mT @ ct), strict=True
    ):
        np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-12, atol=1e-12)
    left, right = random.normal(size=(5, 3, 1, 40, 30)), random.normal(size=(2, 30, 50))
    np.testing.assert_array_equal(buffers.matmul(left, right), left @ right)


OF_LARGE = {
    "cholesky": lambda a: L.cholesky(a), "inv": lambda a: L.inv(a), "solve": lambda a: L.solve(a, a[0] * a),
    "solve, vector": lambda a: L.solve(a, a[0]), "det": lambda a: L.det(a), "pinv": lambda a: L.pinv(a),
    "slogdet": lambda a: L.slogdet(a)[1], "eigenvalues": lambda a: L.eigh(a)[0],
    "matmul": lambda a: a @ a[0] * a, "eigenvectors": lambda a: abs(L.eigh(a)[1]) ** 2,
    "qr": lambda a: L.qr(a)[0] @ L.qr(a)[1] * a[0], "singular vectors": lambda a: abs(L.svd(a)[0]) ** 2,
    "stack": lambda a: L.inv(a * np.array([1, 2]).reshape(2, 1, 1)) * a,
    "singular vectors, tall": lambda a: abs(L.svd(np.concatenate([a, a * a]), full_matrices=False)[0]) ** 2,
}  # fmt: skip


@pytest.mark.parametrize(("name", "dtype"), [(name, "dD"[k % 2]) for k, name in enumerate(OF_LARGE)])
@pytest.mark.parametrize("more", [1, -1])
def test_first_derivatives_of_large_matrices_are_those_recorded(more, name, dtype, random):
    """Arrays are computed in memory that is used again; what was given out keeps its values."""
    n = math.isqrt(LARGE // np.dtype(dtype).itemsize) + more
    q = L.qr(random.normal(size=(n, n)) + (1j * random.normal(size=(n, n)) if dtype in "FD" else 0))[0]
    a = leaf((q * np.linspace(1, 1.5, n) @ np.conj(q.T) / 1.25).astype(dtype))
    out = OF_LARGE[name](a)
    seed = tg.tensor(np.reshape(random.normal(size=out.size), out.shape).astype(out.dtype))
    first = tg.grad(out, a, seed)[0].numpy()
    kept = first.copy()
    second = tg.grad(OF_LARGE[name](a), a, seed)[0].numpy()
    recorded = tg.grad(OF_LARGE[name](a), a, seed, create_graph=True)[0].detach().numpy()
    assert np.array_equal(first, kept) and np.array_equal(second, kept)
    scale = 2e4 * np.finfo(dtype).eps * np.max(np.abs(recorded))
    np.testing.assert_allclose(first, recorded, rtol=0, atol=scale)
