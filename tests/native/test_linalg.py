"""Functions of matrices inside compiled code: values NumPy's, derivatives those of Tensors or differences."""

import numpy as np
import pytest

import tapegrad as tg
from tests.native.test_expressions import once
from tests.tiers import every

RANDOM = np.random.default_rng(3)
SQUARE, TALL = RANDOM.normal(size=(4, 4)) + 3 * np.eye(4), RANDOM.normal(size=(5, 3))
SPD = SQUARE @ SQUARE.T
A, B = RANDOM.normal(size=(4, 4)), RANDOM.normal(size=(5, 5))


def cholesky(a, w):
    return (np.linalg.cholesky(a) * w[: a.shape[0], : a.shape[1]]).sum()


def slogdet(a, w):
    sign, log = np.linalg.slogdet(a)
    return sign * log


def det(a, w):
    return np.linalg.det(a)


def qr(a, w):
    q, r = np.linalg.qr(a)
    return (q * w[: q.shape[0], : q.shape[1]]).sum() + (r * r * w[: r.shape[0], : r.shape[1]]).sum()


def eigh(a, w):
    values, vectors = np.linalg.eigh(a)
    return (values * w[0, : values.size]).sum() + (vectors**2 * w[: a.shape[0], : a.shape[0]]).sum()


def eigvalsh(a, w):
    values = np.linalg.eigvalsh(a)
    return (values * w[0, : values.size]).sum()


def pinv(a, w):
    return (np.linalg.pinv(a) * w[: a.shape[1], : a.shape[0]]).sum()


def matrix_power(a, w):
    return np.linalg.matrix_power(a, 3).sum() + np.linalg.matrix_power(a, -2)[0, 1]


def kron(a, w):
    return (np.kron(a, w[:2, :2]) ** 2).sum() + np.kron(w[:1, :2], a)[0, 0]


def outer_and_trace(a, w):
    return (np.outer(a[0], a[1]) * w[: a.shape[1], : a.shape[1]]).sum() + np.trace(a) ** 2


def norms(a, w):
    s = np.linalg.norm(a) + np.linalg.norm(a, 1) * np.linalg.norm(a, np.inf) + np.linalg.norm(a, -1)
    v = a[0]
    s += np.linalg.norm(a, 2) + np.linalg.norm(a, -2) ** 2 + np.linalg.cond(a)
    s += np.linalg.norm(v, 1) * np.linalg.norm(v, 3) + np.linalg.norm(v, np.inf) + np.linalg.norm(v, -np.inf)
    return s + np.linalg.norm(v, 2) + np.linalg.norm(v, 0) + np.linalg.matrix_rank(a)


def svd(a, w):
    u, s, vt = np.linalg.svd(a, False)
    k = s.size
    total = (u**2 * w[: u.shape[0], :k]).sum() + (vt**2 * w[:k, : vt.shape[1]]).sum()
    return total + (s * w[0, :k]).sum() + u[0, 1] * vt[1, 0]


def svd_of_full_matrices(a, w):
    u, s, vt = np.linalg.svd(a)
    left, right = u[:, s.size :].copy(), vt[s.size :].copy()
    total = ((left @ left.T) * w[: u.shape[0], : u.shape[0]]).sum() + (right.T @ right)[0, 1]
    return total + u[0, 0] * vt[0, 0]


def eig(a, w):
    values, vectors = np.linalg.eig(a)
    return (values * w[0, : values.size]).sum() + (vectors**2 * w[: a.shape[0], : a.shape[0]]).sum()


def eigvals(a, w):
    values = np.linalg.eigvals(a)
    return (values**2 * w[0, : values.size]).sum()


def lstsq(a, w):
    x, left, rank, s = np.linalg.lstsq(a, w[: a.shape[0], :2].copy(), -1.0)
    total = (x * w[: x.shape[0], :2]).sum() + left.sum() + (s**2 * w[1, : s.size]).sum()
    y, least, _, _ = np.linalg.lstsq(a, a[:, 0] + w[: a.shape[0], 1], rcond=1e-9)
    return total + rank * y[0] * y[1] + least.sum()


def cond(a, w):
    return np.linalg.cond(a) + 2.0 * np.linalg.cond(a, -2)


def cond_by_norms(a, w):
    return np.linalg.cond(a, 1) + np.linalg.cond(a, -np.inf) + np.linalg.cond(a, 2)


def parts(a, w):
    """Of memory that is not contiguous."""
    total = (np.linalg.svd(a[::2, 1:])[1] ** 3).sum() + np.linalg.lstsq(a[::-1, ::-2], w[0, ::-2], -1.0)[0][0]
    b = a[1:, ::-1]
    return total + np.linalg.pinv(a[:, ::2])[0, 0] + np.linalg.cond(a[::2]) + np.linalg.eigvals(b @ b.T)[0]


BASIS = RANDOM.normal(size=(4, 4))
REAL = BASIS @ np.diag([1.0, 2.5, -1.0, 0.3]) @ np.linalg.inv(BASIS)  # by its eigenvalues
WIDE = TALL.T.copy()
CASES = [
    (cholesky, SPD), (slogdet, SQUARE), (slogdet, -SQUARE[:3, :3]), (det, SQUARE), (qr, TALL), (qr, SQUARE),
    (qr, WIDE), (eigh, SPD), (eigvalsh, SPD), (pinv, TALL), (pinv, WIDE),
    (matrix_power, SQUARE), (kron, TALL), (outer_and_trace, SQUARE), (norms, TALL),
    (svd, TALL), (lstsq, TALL), (eig, REAL), (cond, SQUARE), (svd, SQUARE), (svd, WIDE),
    (svd_of_full_matrices, TALL), (svd_of_full_matrices, WIDE), (eigvals, REAL), (lstsq, WIDE),
    (lstsq, SQUARE), (cond, TALL), (cond, WIDE), (cond_by_norms, SQUARE), (parts, RANDOM.normal(size=(3, 6))),
]  # fmt: skip


def symmetric(a):
    return np.array_equal(a, a.T)


def central(f, x, h):
    out = np.empty(x.shape)
    for k in np.ndindex(x.shape):
        e = np.zeros(x.shape)
        e[k] = h
        if symmetric(x):  # what a factorisation reads one half of is moved in both
            e = (e + e.T) / 2
        out[k] = (f(x + e) - f(x - e)) / (2 * h)
    return out


SOME = [CASES[k] for k in (0, 2, 4, 7, 14)]  # of svd and eig test_spectra.py compiles more
OTHERS = [pytest.param(*c, marks=pytest.mark.slow) for c in CASES if not any(c is d for d in SOME)]


@pytest.mark.parametrize(("function", "a"), SOME + OTHERS, ids=lambda v: getattr(v, "__name__", ""))
def test_values_and_gradients(function, a):
    compiled, t = once(function), tg.tensor(a, requires_grad=True)
    y = compiled(t, B)
    assert y.item() == pytest.approx(function(a, B), rel=1e-12)
    (g,) = tg.grad(y, t)
    np.testing.assert_allclose(g, central(lambda x: function(x, B), a, 1e-6), rtol=1e-6, atol=2e-7)


@pytest.mark.slow
@pytest.mark.parametrize(
    "function", [cholesky, slogdet, det, eigvalsh, eigh, svd, eig, eigvals, lstsq, cond, pinv]
)
def test_derivatives_to_the_third_beside_tensors(function):
    results, u = [], RANDOM.normal(size=(3, 3))
    u = u + u.T
    for run in (once(function), function):
        t = tg.tensor(SPD[:3, :3], requires_grad=True)
        y, found = run(t, B), []
        for _ in range(3):
            (g,) = tg.grad(y, t, create_graph=True)
            found.append(g.detach().numpy())
            y = (g * u).sum()
        results.append(found)
    for found, expected in zip(*results, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-8 * abs(expected).max())


@pytest.mark.slow
@pytest.mark.parametrize(("function", "a"), CASES, ids=lambda v: getattr(v, "__name__", ""))
def test_second_derivatives(function, a):
    compiled, t = once(function), tg.tensor(a, requires_grad=True)
    u = RANDOM.normal(size=a.shape)
    u = u + u.T if symmetric(a) else u
    (g,) = tg.grad(compiled(t, B), t, create_graph=True)
    (h,) = tg.grad((g * u).sum(), t)

    def gradient(x):
        t = tg.tensor(x, requires_grad=True)
        return tg.grad(compiled(t, B), t)[0].numpy()

    expected = (gradient(a + 1e-6 * u) - gradient(a - 1e-6 * u)) / 2e-6
    np.testing.assert_allclose(h, expected, rtol=1e-5, atol=1e-5 * abs(expected).max())


@pytest.mark.slow
def test_power_series_of_eigenvalues():
    @tg.njit
    def moved(t):
        a = np.empty((3, 3))
        for i in range(3):
            for j in range(3):
                a[i, j] = SPD[i, j] + t * B[i, j] + t * B[j, i]
        return np.linalg.eigvalsh(a)[1]

    found = tg.func.taylor(moved, 5)(0.0, 1.0)
    from mpmath import mp

    with mp.workdps(60):
        m, b = mp.matrix(SPD[:3, :3].tolist()), mp.matrix((B + B.T)[:3, :3].tolist())
        expected = mp.taylor(lambda t: mp.eigsy(m + t * b, eigvals_only=True)[1], 0, 5)
    np.testing.assert_allclose(found, np.array([complex(v).real for v in expected]), rtol=1e-9)


def large(a, w):
    return np.linalg.slogdet(a)[1]


def test_a_determinant_out_of_range():
    t = tg.tensor(np.eye(3) * 1e200, requires_grad=True)
    y = tg.njit(large)(t, B)
    assert y.item() == pytest.approx(600 * np.log(10))
    np.testing.assert_allclose(tg.grad(y, t)[0], np.eye(3) / 1e200)


def all_counted(a, w):
    return np.linalg.pinv(a, 0.0)[0, 0]


def a_left_vector(a, w):
    return np.linalg.svd(a)[0][0, 0] ** 2


@pytest.mark.quick
@pytest.mark.parametrize(
    ("function", "a", "words"),
    every([
        (cholesky, -np.eye(3), "not positive definite"),
        (cholesky, np.triu(np.ones((3, 3))), "symmetric"),
        (qr, np.ones((3, 3)), "dependent"),
        (eig, np.triu(np.ones((3, 3))), "defective"),
        (all_counted, np.ones((3, 2)) * [1.0, 0.1], "rcond"),
        (a_left_vector, np.zeros((0, 3)), "empty"),
        (a_left_vector, np.full((2, 2), np.inf), "infs or NaNs"),
    ], 7),
)  # fmt: skip
def test_what_has_no_derivative_raises(function, a, words):
    with pytest.raises(np.linalg.LinAlgError, match=words):
        once(function)(tg.tensor(a, requires_grad=True), B)


def unknown(a, w):
    return np.linalg.norm(a, 3)


def test_a_norm_that_numba_does_not_have():
    with pytest.raises(ValueError, match="norm of a matrix: ord is"):
        tg.njit(unknown)(tg.tensor(SQUARE, requires_grad=True), B)


def gradients(function, a, order, *rest):
    """Derivatives of each order along one direction."""
    t, u, found = tg.tensor(a, requires_grad=True), np.cos(np.arange(a.size)).reshape(a.shape), []
    y = function(t, *rest)
    for k in range(order):
        (g,) = tg.grad(y, t, create_graph=True)
        found.append(g.detach().numpy())
        y = np.sum(g * u) if k + 1 < order else None
    return found


def test_equal_eigenvalues_have_a_derivative():
    t = tg.tensor(2 * np.eye(3), requires_grad=True)
    np.testing.assert_allclose(tg.grad(tg.njit(total)(t), t)[0], np.eye(3), atol=1e-15)


def total(a):
    return np.linalg.eigvalsh(a).sum()


def of_s(a):
    return np.linalg.svd(a)[1].sum()


def of_vectors(a):
    return np.linalg.eigh(a)[1][0, 0]


def test_equal_values_have_a_derivative_and_their_vectors_none():
    np.testing.assert_allclose(gradients(tg.njit(of_s), np.eye(3), 1)[0], np.eye(3), atol=1e-15)
    for function, *rest in ((once(a_left_vector), B), (tg.njit(of_vectors),)):
        assert not np.isfinite(gradients(function, np.eye(3), 1, *rest)[0]).any()


def of_the_single_one(a):
    u, s, vt = np.linalg.svd(a)
    k = 0 if s[0] - s[1] > 0.5 else 2
    return u[0, k] * vt[k, 1] + s[k] ** 2


@pytest.mark.parametrize("values", [[3.0, 1.0, 1.0], [3.0, 1.0 + 1e-15, 1.0], [2.0, 2.0, 1.0]])
@pytest.mark.parametrize("order", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_a_vector_beside_equal_values(values, order):
    """By differences, which do not know of the equality."""
    q, r = np.linalg.qr(A)[0][:3, :3], np.linalg.qr(B)[0][:3, :3]
    a = np.linalg.qr(q)[0] @ np.diag(values) @ np.linalg.qr(r)[0]
    compiled = once(of_the_single_one)
    found, u = gradients(compiled, a, order), np.cos(np.arange(9)).reshape(3, 3)
    expected = [central(compiled.primal, a, 1e-6)]
    for k in range(1, order):
        ahead, behind = (gradients(compiled, a + h * u, k)[-1] for h in (1e-5, -1e-5))
        expected.append((ahead - behind) / 2e-5)
    for g, e in zip(found, expected, strict=True):
        np.testing.assert_allclose(g, e, rtol=1e-6, atol=1e-7 * abs(e).max())


def null_vector(a):
    return np.linalg.svd(a, False)[2][2, 0] ** 2


def null_vector_by_squares(a):
    return np.linalg.eigh(a.T @ a)[1][0, 0] ** 2


@pytest.mark.slow
def test_a_singular_value_of_zero_does_not_cost_digits():
    a = RANDOM.normal(size=(5, 2)) @ RANDOM.normal(size=(2, 3))
    pairs = (gradients(tg.njit(f), a, 3) for f in (null_vector, null_vector_by_squares))
    for found, expected in zip(*pairs, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-10 * abs(expected).max())


def cut(a, w, rcond):
    x, left, rank, s = np.linalg.lstsq(a, w[: a.shape[0], 0].copy(), rcond)
    total = (x**2).sum() + np.linalg.pinv(a, rcond)[0, 1]
    return total + left.sum() * rank + (s[:rank] * w[1, :rank]).sum()


@pytest.mark.slow
def test_singular_values_that_are_cut():
    """The derivative of what is computed: of the matrix of that rank that is closest."""
    compiled, a = tg.njit(cut), RANDOM.normal(size=(5, 4))
    s = np.linalg.svd(a)[1]
    for rcond in (1e-9, (s[1] + s[2]) / 2 / s[0]):
        (found,) = gradients(compiled, a, 1, B, rcond)
        expected = central(lambda x, cut=rcond: compiled.primal(x, B, cut), a, 1e-6)
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-8)
    for b in (a[:, :2] @ a[:2], a[:, :2] @ a[:2] @ a.T[:, :2] @ a[:2] @ a.T[:, :3]):
        (found,), (expected,) = (gradients(f, b, 1, B, 1e-9) for f in (compiled, cut))
        np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-10 * abs(expected).max())


@pytest.mark.slow
def test_second_derivatives_where_singular_values_are_cut():
    compiled, a = tg.njit(cut), RANDOM.normal(size=(5, 4))
    s, u = np.linalg.svd(a)[1], np.cos(np.arange(20)).reshape(5, 4)
    rcond = (s[1] + s[2]) / 2 / s[0]
    found = gradients(compiled, a, 2, B, rcond)[1]
    ahead, behind = (gradients(compiled, a + h * u, 1, B, rcond)[0] for h in (1e-5, -1e-5))
    np.testing.assert_allclose(found, (ahead - behind) / 2e-5, rtol=1e-6, atol=1e-7 * abs(found).max())


def spectral(a):
    return np.linalg.norm(a, 2)


def condition(a):
    return np.linalg.cond(a)


def length(a):
    return np.linalg.norm(a)


def test_where_norms_have_no_derivative_they_do_as_those_of_tensors():
    for a in (np.eye(3), np.zeros((2, 3)), np.outer([1.0, 2.0], [3.0, 1.0])):
        (found,), (expected,) = (gradients(f, a, 1) for f in (tg.njit(spectral), spectral))
        np.testing.assert_allclose(found, expected, atol=1e-15)
    t = tg.tensor(np.diag([1.0, 0.0]), requires_grad=True)
    y = tg.njit(condition)(t)
    assert y.item() == np.inf
    assert not np.isfinite(tg.grad(y, t)[0].numpy()).any()
    for scale in (0.0, 1e200, 1e-200):
        t = tg.tensor(scale * np.array([[3.0], [4.0]]), requires_grad=True)
        y = tg.njit(length)(t)
        assert y.item() == pytest.approx(5 * scale, rel=1e-15)
        expected = [[0.6], [0.8]] if scale else np.zeros((2, 1))
        np.testing.assert_allclose(tg.grad(y, t)[0], expected, rtol=1e-15)


def test_derivatives_of_lengths_whose_squares_overflow_or_vanish():
    a, v, native = np.array([0.0, 3.0, -4.0]), np.array([1.0, 2.0, 3.0]), tg.njit(length)
    for scale in (1e300, 1e-170, 1e-300):
        np.testing.assert_allclose(tg.func.grad(native)(scale * a), [0.0, 0.6, -0.8], rtol=1e-14)
        np.testing.assert_allclose(tg.func.hvp(native)(scale * a, v) * scale, [0.2, 0.544, 0.408], rtol=1e-14)
    np.testing.assert_allclose(tg.func.grad(native)(1e-310 * a), [0.0, 0.6, -0.8], rtol=1e-12)
