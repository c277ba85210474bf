"""Functions of matrices inside compiled code: values NumPy's, derivatives those of Tensors or differences."""

import numpy as np
import pytest

import tapegrad as tg

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
    s += np.linalg.norm(v, 1) * np.linalg.norm(v, 3) + np.linalg.norm(v, np.inf) + np.linalg.norm(v, -np.inf)
    return s + np.linalg.norm(v, 2) + np.linalg.norm(v, 0) + np.linalg.matrix_rank(a)


CASES = [
    (cholesky, SPD), (slogdet, SQUARE), (slogdet, -SQUARE[:3, :3]), (det, SQUARE), (qr, TALL), (qr, SQUARE),
    (qr, TALL.T.copy()), (eigh, SPD), (eigvalsh, SPD), (pinv, TALL), (pinv, TALL.T.copy()),
    (matrix_power, SQUARE), (kron, TALL), (outer_and_trace, SQUARE), (norms, TALL),
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


SOME = [CASES[k] for k in (0, 2, 4, 7, 9, 14)]
OTHERS = [pytest.param(*c, marks=pytest.mark.slow) for c in CASES if not any(c is d for d in SOME)]


@pytest.mark.parametrize(("function", "a"), SOME + OTHERS, ids=lambda v: getattr(v, "__name__", ""))
def test_values_and_gradients(function, a):
    compiled, t = tg.njit(function), tg.tensor(a, requires_grad=True)
    y = compiled(t, B)
    assert y.item() == pytest.approx(function(a, B), rel=1e-12)
    (g,) = tg.grad(y, t)
    np.testing.assert_allclose(g, central(lambda x: function(x, B), a, 1e-6), rtol=1e-6, atol=2e-7)


@pytest.mark.slow
@pytest.mark.parametrize("function", [cholesky, slogdet, det, eigvalsh, eigh])
def test_derivatives_to_the_third_beside_tensors(function):
    results, u = [], RANDOM.normal(size=(3, 3))
    u = u + u.T
    for run in (tg.njit(function), function):
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
    compiled, t = tg.njit(function), tg.tensor(a, requires_grad=True)
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


@pytest.mark.parametrize(
    ("function", "a", "words"),
    [
        (cholesky, -np.eye(3), "not positive definite"),
        (cholesky, np.triu(np.ones((3, 3))), "symmetric"),
        (eigh, np.eye(3), "equal eigenvalues"),
        (qr, np.ones((3, 3)), "dependent"),
        (pinv, np.ones((3, 2)), "rank"),
    ],
)
def test_what_has_no_derivative_raises(function, a, words):
    with pytest.raises(np.linalg.LinAlgError, match=words):
        tg.njit(function)(tg.tensor(a, requires_grad=True), B)


def test_equal_eigenvalues_have_a_derivative():
    t = tg.tensor(2 * np.eye(3), requires_grad=True)
    np.testing.assert_allclose(tg.grad(tg.njit(total)(t), t)[0], np.eye(3), atol=1e-15)


def total(a):
    return np.linalg.eigvalsh(a).sum()
