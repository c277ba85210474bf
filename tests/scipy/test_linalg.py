"""Functions of `scipy.linalg` on Tensors: values are SciPy's, derivatives those of differences."""


import itertools

import numpy as np
import pytest
import scipy.linalg

import tapegrad as tg
import tapegrad.scipy as ts
from tapegrad.autograd import gradcheck, gradgradcheck
from tapegrad.errors import ShapeError, UnsupportedOpError
from tests.tiers import every, thinned

N = 3


def array(*shape, dtype=float, seed=0):
    random = np.random.default_rng([*shape, seed])
    found = random.normal(size=shape)
    return (found + 1j * random.normal(size=shape) if np.dtype(dtype).kind == "c" else found).astype(dtype)


def adjoint(a):
    return np.conj(np.swapaxes(a, -1, -2))


def regular(a):
    """A matrix of eigenvalues apart from another and from 0, of any small one."""
    return 0.3 * a + np.diag(np.arange(2.0, 2.0 + a.shape[-1]))


def hermitian(a):
    return 0.3 * (a + adjoint(a)) + np.diag(np.arange(0.0, 2.0 * a.shape[-1], 2.0))


def positive(a):
    square = a @ adjoint(a)  # symmetric but for rounding
    return 0.15 * (square + adjoint(square)) + np.diag(np.arange(1.0, 1.0 + a.shape[-1]))


def paired(a):
    """A Hermitian matrix whose factors have blocks of two rows."""
    return 0.1 * (a + adjoint(a)) + np.array([
        [0, 3, 0, 0, 0], [3, 0, 0, 0, 0], [0, 0, 2, 0, 0], [0, 0, 0, 0, 5], [0, 0, 0, 5, 0]])  # fmt: skip


def absolute(*xs):
    """What does not depend on phases."""
    return tuple(np.real(x) ** 2 + np.imag(x) ** 2 for x in xs)


def first(x):
    return x[0]


A, B, V = (N, N), (N, 2), (N,)
SPREAD = np.arange(0.0, 10.0, 2.0)
# A name, a function of the module and the operands, the shapes of these.
CASES = {
    "solve": (lambda s, a, b: s.solve(regular(a), b), A, B),
    "solve vector": (lambda s, a, b: s.solve(regular(a), b), A, V),
    "solve pos": (lambda s, a, b: s.solve(positive(a), b, assume_a="pos"), A, B),
    "solve pos lower": (lambda s, a, b: s.solve(positive(a), b, lower=True, assume_a="pos"), A, V),
    "solve her": (lambda s, a, b: s.solve(hermitian(a) + np.eye(N), b, assume_a="her"), A, B),
    "solve sym": (lambda s, a, b: s.solve(positive(a) + 0, b, assume_a="sym", lower=True), A, B),
    "solve upper": (lambda s, a, b: s.solve(regular(a), b, assume_a="upper triangular"), A, B),
    "solve lower": (lambda s, a, b: s.solve(regular(a), b, assume_a="lower triangular"), A, V),
    "solve diagonal": (lambda s, a, b: s.solve(regular(a), b, assume_a="diagonal"), A, V),
    "solve tridiagonal": (lambda s, a, b: s.solve(regular(a), b, assume_a="tridiagonal"), A, V),
    "solve_triangular": (lambda s, a, b: s.solve_triangular(regular(a), b), A, B),
    "solve_triangular lower": (lambda s, a, b: s.solve_triangular(regular(a), b, lower=True), A, V),
    "solve_triangular T": (lambda s, a, b: s.solve_triangular(regular(a), b, trans=1), A, V),
    "solve_triangular C": (lambda s, a, b: s.solve_triangular(regular(a), b, "C", lower=True), A, B),
    "solve_triangular unit": (
        lambda s, a, b: s.solve_triangular(a, b, unit_diagonal=True, lower=True), A, B),
    "inv": (lambda s, a: s.inv(regular(a)), A),
    "det": (lambda s, a: s.det(a), A),
    "pinv": (lambda s, a: s.pinv(a), (4, 2)),
    "pinv wide": (lambda s, a: s.pinv(a, return_rank=True)[0], (2, 3)),
    "lstsq": (lambda s, a, b: s.lstsq(a, b)[0], (4, 2), (4, 2)),
    "lstsq residual": (lambda s, a, b: s.lstsq(a, b)[1], (4, 2), (4,)),
    "norm": (lambda s, a: s.norm(a), A),
    "norm 1": (lambda s, a: s.norm(a, 1, axis=0), A),
    "cholesky": (lambda s, a: s.cholesky(positive(a)), A),
    "cholesky lower": (lambda s, a: s.cholesky(positive(a), lower=True), A),
    "cho_solve": (lambda s, a, b: s.cho_solve(s.cho_factor(positive(a)), b), A, B),
    "cho_solve lower": (lambda s, a, b: s.cho_solve(s.cho_factor(positive(a), True), b), A, V),
    "lu": (lambda s, a: s.lu(a)[1:], A),
    "lu tall": (lambda s, a: s.lu(a, permute_l=True), (4, 2)),
    "lu wide": (lambda s, a: s.lu(a, p_indices=True)[1:], (2, 4)),
    "lu_factor": (lambda s, a: s.lu_factor(a)[0], A),
    "lu_solve": (lambda s, a, b: s.lu_solve(s.lu_factor(a), b), A, B),
    "lu_solve T": (lambda s, a, b: s.lu_solve(s.lu_factor(a), b, 1), A, V),
    "lu_solve C": (lambda s, a, b: s.lu_solve(s.lu_factor(a), b, 2), A, B),
    "ldl": (lambda s, a: s.ldl(positive(a) - 2 * np.eye(N))[:2], A),
    "ldl upper": (lambda s, a: s.ldl(positive(a) - 2 * np.eye(N), lower=False)[:2], A),
    "ldl blocks": (lambda s, a: s.ldl(paired(a))[:2], (5, 5)),
    "ldl blocks upper": (lambda s, a: s.ldl(paired(a), lower=False)[:2], (5, 5)),
    "ldl symmetric": (lambda s, a: s.ldl(0.1 * (a + a.T) + paired(0 * a), hermitian=False)[:2], (5, 5)),
    "qr": (lambda s, a: absolute(*s.qr(a)), A),
    "qr economic": (lambda s, a: absolute(*s.qr(a, mode="economic")), (4, 2)),
    "qr r": (lambda s, a: absolute(*s.qr(a, mode="r")), (2, 3)),
    "qr pivoting": (lambda s, a: absolute(*s.qr(a, pivoting=True, mode="economic")[:2]), (4, 2)),
    "svd": (lambda s, a: absolute(*s.svd(a, full_matrices=False)), (4, 2)),
    "svd values": (lambda s, a: s.svd(a, compute_uv=False), A),
    "svdvals": (lambda s, a: s.svdvals(a), (2, 3)),
    "polar": (lambda s, a: s.polar(a), (4, 2)),
    "polar left": (lambda s, a: s.polar(a, "left"), A),
    "polar wide": (lambda s, a: s.polar(a), (2, 3)),
    "eigh": (lambda s, a: (lambda w, v: (w, *absolute(v)))(*s.eigh(hermitian(a))), A),
    "eigh subset": (lambda s, a: s.eigh(hermitian(a), eigvals_only=True, subset_by_index=[1, 2]), A),
    "eigh values": (
        lambda s, a: s.eigvalsh(hermitian(a), subset_by_value=(1.0, 99.0), lower=False), A),
    "eigh two": (
        lambda s, a, b: (lambda w, v: (w, *absolute(v)))(*s.eigh(hermitian(a), positive(b))), A, A),
    "eigh two 2": (
        lambda s, a, b: (lambda w, v: (w, *absolute(v)))(*s.eigh(hermitian(a), positive(b), type=2)), A, A),
    "eigh two 3": (
        lambda s, a, b: (lambda w, v: (w, *absolute(v)))(
            *s.eigh(hermitian(a), positive(b), type=3, lower=False)), A, A),
    "eigvalsh two": (lambda s, a, b: s.eigvalsh(hermitian(a), positive(b)), A, A),
    "eig": (lambda s, a: (lambda w, v: (w, *absolute(v)))(*s.eig(regular(a))), A),
    "eig left": (lambda s, a: absolute(*s.eig(regular(a), left=True)[1:]), A),
    "eig turning": (
        lambda s, a: (lambda w, v: (w, *absolute(v)))(*s.eig(0.1 * a + [[1, 2], [-2, 1.5]])), (2, 2)),
    "sqrtm negative": (lambda s, a: s.sqrtm(0.1 * a + np.diag([-2.0, 3.0, 4.0])), A),
    "power whole": (lambda s, a: s.fractional_matrix_power(regular(a), -2), A),
    "eig two": (lambda s, a, b: s.eig(regular(a), positive(b))[0], A, A),
    "eigvals": (lambda s, a: s.eigvals(regular(a)), A),
    "eig_banded": (
        lambda s, a: (lambda w, v: (w, *absolute(v)))(*s.eig_banded(a + [[0], [0], [1]] * SPREAD)), (3, 5)),
    "eig_banded lower": (
        lambda s, a: (lambda w, v: (w, *absolute(v)))(
            *s.eig_banded(a + [[1], [0]] * SPREAD, lower=True, select="i", select_range=(1, 3))), (2, 5)),
    "eig_banded part": (
        lambda s, a: s.eig_banded(
            a + [[1], [0]] * SPREAD, True, True, select="v", select_range=(1.5, 7.0)), (2, 5)),
    "eig_banded diagonal": (lambda s, a: s.eig_banded(a + SPREAD, eigvals_only=True), (1, 5)),
    "eigvals_banded": (
        lambda s, a: s.eigvals_banded(a + [[0], [1]] * SPREAD, select="v", select_range=(1.5, 9)), (2, 5)),
    "expm": (lambda s, a: s.expm(a), A),
    "expm batch": (lambda s, a: s.expm(a), (2, 2, 2)),
    "expm_frechet": (lambda s, a, b: s.expm_frechet(a, b), A, A),
    "logm": (lambda s, a: s.logm(regular(a)), A),
    "sqrtm": (lambda s, a: s.sqrtm(regular(a)), A),
    "power": (lambda s, a: s.fractional_matrix_power(regular(a), 0.7), A),
    "cosm": (lambda s, a: s.cosm(0.5 * a), A),
    "sinm": (lambda s, a: s.sinm(0.5 * a), A),
    "tanm": (lambda s, a: s.tanm(0.2 * a), A),
    "coshm": (lambda s, a: s.coshm(0.5 * a), A),
    "sinhm": (lambda s, a: s.sinhm(0.5 * a), A),
    "tanhm": (lambda s, a: s.tanhm(0.5 * a), A),
    "sylvester": (lambda s, a, b, q: s.solve_sylvester(regular(a), regular(b), q), A, (2, 2), B),
    "lyapunov": (lambda s, a, q: s.solve_continuous_lyapunov(regular(a), q), A, A),
    "discrete lyapunov": (lambda s, a, q: s.solve_discrete_lyapunov(0.3 * a, q), A, A),
    "continuous riccati": (
        lambda s, a, b, q, r: s.solve_continuous_are(0.6 * a, b, positive(q), positive(r)), A, B, A, (2, 2)),
    "continuous riccati e s": (
        lambda s, a, b, e, t: s.solve_continuous_are(
            0.6 * a, b, 4 * np.eye(N), np.eye(2), np.eye(N) + 0.2 * e, 0.2 * t), A, B, A, B),
    "discrete riccati": (
        lambda s, a, b, q, r: s.solve_discrete_are(0.6 * a, b, positive(q), positive(r)), A, B, A, (2, 2)),
    "discrete riccati e s": (
        lambda s, a, b, e, t: s.solve_discrete_are(
            0.6 * a, b, 4 * np.eye(N), np.eye(2), np.eye(N) + 0.2 * e, 0.2 * t), A, B, A, B),
    "bilinear lyapunov": (lambda s, a, q: s.solve_discrete_lyapunov(0.3 * a, q, "bilinear"), A, A),
    "banded": (lambda s, a, b: s.solve_banded((1, 2), a + np.array([[0], [0], [6], [0]]), b), (4, 5), (5, 2)),
    "banded vector": (lambda s, a, b: s.solve_banded((1, 0), a + np.array([[5], [0]]), b), (2, 4), (4,)),
    "bandedh": (lambda s, a, b: s.solveh_banded(0.4 * a + [[0], [0], [6]], b), (3, 5), (5, 2)),
    "bandedh lower": (
        lambda s, a, b: s.solveh_banded(0.4 * a + [[6], [0]], b, lower=True), (2, 4), (4,)),
    "solve_toeplitz": (
        lambda s, c, r, b: s.solve_toeplitz((c + np.eye(4)[0] * 5, r), b), (4,), (4,), (4, 2)),
    "solve_toeplitz c": (lambda s, c, b: s.solve_toeplitz(np.real(c) + np.eye(3)[0] * 5, b), V, V),
    "matmul_toeplitz": (lambda s, c, r, x: s.matmul_toeplitz((c, r), x), (4,), (3,), (3, 2)),
    "toeplitz": (lambda s, c, r: s.toeplitz(c, r), (4,), (3,)),
    "hankel": (lambda s, c, r: s.hankel(c, r), (4,), (3,)),
    "circulant": (lambda s, c: s.circulant(c), (4,)),
    "companion": (lambda s, a: s.companion(a + 3), (4,)),
    "block_diag": (lambda s, a, b: s.block_diag(a, b, a[0]), (2, 3), (1, 2)),
    "khatri_rao": (lambda s, a, b: s.khatri_rao(a, b), (2, 3), (3, 3)),
}  # fmt: skip
QUICK = {("solve_triangular C", complex), ("lu wide", float), ("sqrtm", float), ("banded", float)}
TWICE = [  # whose second derivatives CI looks at
    "solve pos", "lu_solve", "lu tall", "banded", "solve_toeplitz", "sqrtm", "expm", "polar",
    "sylvester", "eigh two", "qr pivoting", "lstsq", "eig left", "ldl", "ldl blocks", "eig_banded lower",
]  # fmt: skip
# Of complex numbers: what takes Hermitian ones, and a matrix of eigenvalues below 0.
NOT_COMPLEX = {"solve_toeplitz c", "solve sym", "eig turning", "sqrtm negative"}


def parts(x):
    return x if isinstance(x, tuple) else (x,)


ALL = [p for p in itertools.product(CASES, (float, complex)) if p[1] is float or p[0] not in NOT_COMPLEX]


def operands(name, dtype):
    _, *shapes = CASES[name]
    return [array(*shape, dtype=dtype, seed=k) for k, shape in enumerate(shapes)]


@pytest.mark.parametrize("dtype", every([float, complex, np.float32], 3))
def test_values_are_scipys(dtype):
    """Where a derivative is asked for, and, to the last bit, where none is and of arrays."""
    for name, (function, *_) in CASES.items():
        if np.dtype(dtype).kind == "c" and name in NOT_COMPLEX:
            continue
        values = operands(name, dtype)
        wanted = parts(function(scipy.linalg, *values))
        found = parts(function(ts.linalg, *(tg.tensor(v, requires_grad=True) for v in values)))
        assert len(found) == len(wanted)
        for x, y in zip(found, wanted, strict=True):
            assert x.requires_grad, name
            assert x.shape == np.shape(y), name
            tolerance = 1e-3 if dtype is np.float32 else 1e-10
            np.testing.assert_allclose(x.detach().numpy(), y, rtol=tolerance, atol=tolerance, err_msg=name)
        for x, y in zip(parts(function(ts.linalg, *values)), wanted, strict=True):
            np.testing.assert_array_equal(x, y, err_msg=name)


def check(name, dtype, once=True, fast_mode=True):
    """Compare first or second derivatives with differences, in all directions or in some."""
    function, *_ = CASES[name]
    leaves = [tg.tensor(v, requires_grad=True) for v in operands(name, dtype)]

    def f(*xs):
        return function(ts.linalg, *xs)

    same = {"nondet_tol": 1e-12, "fast_mode": fast_mode}  # SciPy estimates norms by random vectors
    if once:
        return gradcheck(f, leaves, check_forward_ad=True, check_batched_grad=True, **same)
    return gradgradcheck(f, leaves, atol=1e-4, rtol=1e-3, **same)


@pytest.mark.parametrize(("name", "dtype"), thinned(ALL, lambda *place: place in QUICK))
def test_derivatives(name, dtype):
    assert check(name, dtype)


@pytest.mark.full
@pytest.mark.parametrize("name", TWICE)
def test_second_derivatives(name):
    assert check(name, float, once=False)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "dtype"), ALL)
def test_derivatives_in_all_directions(name, dtype):
    assert check(name, dtype, fast_mode=False)
    assert check(name, dtype, once=False, fast_mode=False)


# ---------------------------------------------------------------- how it is computed


def test_a_triangle_is_solved_by_a_triangular_solver(monkeypatch):
    """Forward and in the rule: a general one would be called by `numpy.linalg.solve`."""
    a, b = np.tril(array(N, N)) + 3 * np.eye(N), tg.tensor(array(N), requires_grad=True)
    leaf = tg.tensor(a, requires_grad=True)
    monkeypatch.setattr(np.linalg, "solve", None)
    monkeypatch.setattr(np.linalg, "inv", None)
    tg.grad(np.sum(ts.linalg.solve_triangular(leaf, b, lower=True)), [leaf, b])


def test_what_a_solver_does_not_read_may_be_anything():
    a, b = array(N, N) + 3 * np.eye(N), array(N)
    for assume, lower in (
        ("upper triangular", False), ("lower triangular", False), ("pos", True), ("her", False),
    ):  # fmt: skip
        whole = positive(a) if assume in ("pos", "her") else a
        keep = np.tril if assume == "lower triangular" or lower else np.triu
        given = np.where(keep(np.ones((N, N))) == 1, whole, np.nan)
        leaf = tg.tensor(given, requires_grad=True)
        x = ts.linalg.solve(leaf, b, assume_a=assume, lower=lower, check_finite=False)
        wanted = np.linalg.solve(whole if assume in ("pos", "her") else keep(whole), b)
        np.testing.assert_allclose(x.detach().numpy(), wanted, rtol=1e-12)
        (g,) = tg.grad(np.sum(x), leaf)
        assert np.isfinite(g.numpy()).all()


def test_a_cholesky_factor_is_found_once(monkeypatch):
    a = tg.tensor(positive(array(N, N)), requires_grad=True)
    factor = ts.linalg.cho_factor(a)
    x = ts.linalg.cho_solve(factor, array(N))
    calls, own = [], np.linalg.cholesky
    monkeypatch.setattr(np.linalg, "cholesky", lambda *args, **kw: calls.append(1) or own(*args, **kw))
    y = ts.linalg.solve(a, array(N), assume_a="pos")
    tg.grad(np.sum(x) + np.sum(y), a, create_graph=True)
    assert len(calls) == 1


def test_derivatives_of_derivatives_and_series():
    """The third derivative of an exponential of a number times a matrix is known."""
    a = array(N, N)
    t = tg.tensor(0.5, requires_grad=True)
    y = np.sum(ts.linalg.expm(t * a))
    for _ in range(3):
        (y,) = tg.grad(y, t, create_graph=True)
    wanted = np.sum(np.linalg.matrix_power(a, 3) @ scipy.linalg.expm(0.5 * a))
    np.testing.assert_allclose(y.item(), wanted, rtol=1e-12)


@pytest.mark.parametrize("size", [1e-9, 1.0, 1e9])
def test_the_size_of_a_direction_does_no_harm(size):
    """The block matrix of a large direction would be scaled until nothing is left of the matrix."""
    a = tg.tensor(np.diag([1.0, 2.0, 3.0]), requires_grad=True)
    (g,) = tg.grad(np.sum(ts.linalg.expm(a)) * size, a)
    w = np.exp([1.0, 2.0, 3.0])
    (h,) = tg.grad(np.sum(ts.linalg.expm(a)) * size, a, create_graph=True)
    for found in (g, h.detach()):
        np.testing.assert_allclose(np.diag(found.numpy()) / size, w, rtol=1e-12)
        np.testing.assert_allclose(found.numpy()[0, 1] / size, w[1] - w[0], rtol=1e-12)


def test_equal_eigenvalues_are_no_obstacle():
    """Of functions of a matrix, and of polar factors, whose derivatives exist there."""
    leaf = tg.tensor(np.eye(N) * 2, requires_grad=True)
    ct = np.arange(9.0).reshape(3, 3)
    for function, slope in (
        (ts.linalg.logm, 0.5), (ts.linalg.sqrtm, 0.5 / np.sqrt(2)), (ts.linalg.expm, np.exp(2)),
    ):  # fmt: skip
        (g,) = tg.grad(np.sum(function(leaf) * ct), leaf)
        np.testing.assert_allclose(g.numpy(), slope * ct, rtol=1e-12, atol=1e-14)
    (g,) = tg.grad(ts.linalg.polar(leaf)[0][0, 1], leaf)
    np.testing.assert_allclose(g.numpy(), [[0, 0.25, 0], [-0.25, 0, 0], [0, 0, 0]], atol=1e-15)


def test_one_by_one_and_empty():
    x = tg.tensor([[2.0]], requires_grad=True)
    for function, slope in (
        (ts.linalg.expm, np.exp(2)), (ts.linalg.logm, 0.5), (ts.linalg.sqrtm, 0.5 / np.sqrt(2)),
        (ts.linalg.inv, -0.25), (ts.linalg.cholesky, 0.5 / np.sqrt(2)), (lambda a: ts.linalg.lu(a)[2], 1.0),
        (lambda a: ts.linalg.solve_triangular(a, [1.0]), -0.25), (ts.linalg.cosm, -np.sin(2)),
    ):  # fmt: skip
        (g,) = tg.grad(np.sum(function(x)), x)
        np.testing.assert_allclose(g.numpy(), [[slope]], rtol=1e-13)
    none = tg.tensor(np.zeros((0, 0)), requires_grad=True)
    solve = ts.linalg.solve_triangular
    for function in (ts.linalg.expm, ts.linalg.inv, lambda a: solve(a, np.zeros((0, 2)))):
        (g,) = tg.grad(np.sum(function(none)), none)
        assert g.shape == (0, 0)


def test_a_triangle_of_many_sizes():
    """Rows from 1 to 1e8 apart: what is small is not lost beside what is large."""
    scales = np.geomspace(1e-4, 1e4, 5)
    a = np.tril(array(5, 5) * 0.1 + np.eye(5)) * scales[:, None]
    leaf = tg.tensor(a, requires_grad=True)
    b = a @ np.ones(5)
    (g,) = tg.grad(np.sum(ts.linalg.solve_triangular(leaf, b, lower=True)), leaf)
    w = scipy.linalg.solve_triangular(a, np.ones(5), lower=True, trans=1)
    np.testing.assert_allclose(g.numpy(), np.tril(-np.outer(w, np.ones(5))), rtol=1e-9)


# ---------------------------------------------------------------- what is refused


def test_what_has_no_derivative_says_what_to_do():
    x = tg.tensor(array(N, N), requires_grad=True)
    for name in ts.linalg.REFUSED:
        if name == "funm":
            arguments = (x, np.sin)
        elif name == "subspace_angles":
            arguments = (x, x)
        else:
            arguments = (x,)
        with pytest.raises(UnsupportedOpError, match=rf"^scipy\.linalg\.{name} has no derivative here: "):
            getattr(ts.linalg, name)(*arguments)
    with pytest.raises(UnsupportedOpError, match=r"scipy\.linalg\.qr: mode 'raw'"):
        ts.linalg.qr(x, mode="raw")
    for function in (ts.linalg.logm, lambda a: ts.linalg.fractional_matrix_power(a, 0.5)):
        negative = tg.tensor(np.diag([-2.0, 1.0]), requires_grad=True)
        with pytest.raises(UnsupportedOpError, match=r"^scipy\.linalg\.\w+ of a matrix with a neg"):
            tg.grad(np.sum(np.real(function(negative))), negative)
    with tg.no_grad():
        assert ts.linalg.orth(x).shape == (N, N)


@pytest.mark.full
def test_blocks_of_two_rows():
    """Which has no triangular factors; derivatives to the third order."""
    a = tg.tensor([[0.0, 2.0], [2.0, 0.0]], requires_grad=True)
    low, d, order = ts.linalg.ldl(a)
    assert order.tolist() == [0, 1] and low.tolist() == [[1, 0], [0, 1]]
    (g,) = tg.grad(np.linalg.det(d), a, create_graph=True)
    np.testing.assert_allclose(g.detach().numpy(), [[0, -2], [-2, 0]], atol=1e-15)
    zero = tg.tensor(np.zeros((2, 2)), requires_grad=True)
    with pytest.raises(np.linalg.LinAlgError):
        tg.grad(ts.linalg.ldl(zero)[1].sum(), zero)


def test_errors_name_the_function():
    x, y = (tg.tensor(array(*shape), requires_grad=True) for shape in ((2, 3), (2, 2)))
    for call, words in (
        (lambda: ts.linalg.solve_triangular(x, [1.0, 2.0]), r"scipy\.linalg\.solve_triangular: square"),
        (lambda: ts.linalg.solve_triangular(y, [1.0]), r"scipy\.linalg\.solve_triangular: incompatible"),
        (lambda: ts.linalg.expm(x), r"scipy\.linalg\.expm: square matrices are needed, found shape \(2, 3\)"),
        (lambda: ts.linalg.solve_banded((1, 1), x, [1.0]), r"scipy\.linalg\.solve_banded: ab has 2 rows"),
    ):  # fmt: skip
        with pytest.raises(ShapeError, match=words):
            call()
    with pytest.raises(ValueError, match=r"scipy\.linalg\.cholesky.*infinity or nan"):
        ts.linalg.cholesky(y * np.nan)
    with pytest.raises(np.linalg.LinAlgError, match=r"^scipy\.linalg\.solve: Matrix is not positive"):
        ts.linalg.solve(-y @ y.T, [1.0, 2.0], assume_a="pos")


def test_factors_of_a_singular_matrix_have_no_derivative():
    x = tg.tensor(np.ones((2, 2)), requires_grad=True)
    found = ts.linalg.lu(x)[2]
    with pytest.raises(np.linalg.LinAlgError, match=r"^scipy\.linalg\.lu: the factors of a singular matrix"):
        tg.grad(np.sum(found), x)
    with pytest.raises(ValueError, match=r"scipy\.linalg\.eigh.*foo"):
        ts.linalg.eigh(x, driver="foo")


def test_what_scipy_has_besides_is_its_own():
    assert ts.linalg.hilbert is scipy.linalg.hilbert
    assert {"hilbert", "expm", "schur"} <= set(dir(ts.linalg))
    a = array(N, N)
    np.testing.assert_array_equal(ts.linalg.schur(a)[0], scipy.linalg.schur(a)[0])
    assert isinstance(ts.linalg.expm(tg.tensor(a)), tg.Tensor)


# ---------------------------------------------------------------- batches, mixtures, memory

BATCHES = {
    "solve": (lambda s, a, b: s.solve(regular(a), b), (2, 1, *A), (3, *B)),
    "solve pos": (lambda s, a, b: s.solve(positive(a), b, assume_a="pos"), (2, *A), B),
    "solve_triangular": (lambda s, a, b: s.solve_triangular(regular(a), b, 1), A, (2, *B)),
    "cho_solve": (lambda s, a, b: s.cho_solve(s.cho_factor(positive(a)), b), (2, *A), B),
    "lu_solve": (lambda s, a, b: s.lu_solve(s.lu_factor(a), b), (2, *A), (2, *B)),
    "lu": (lambda s, a: s.lu(a)[1:], (2, 4, 2)),
    "ldl": (lambda s, a: s.ldl(hermitian(a))[:2], (2, *A)),
    "eig_banded": (lambda s, a: s.eigvals_banded(a + np.array([[0], [1]]) * SPREAD), (2, 2, 5)),
    "qr": (lambda s, a: absolute(*s.qr(a)), (2, 4, 2)),
    "svd": (lambda s, a: absolute(*s.svd(a)), (2, *A)),
    "eigh": (lambda s, a, b: s.eigh(hermitian(a), positive(b))[0], (2, *A), A),
    "pinv": (lambda s, a: s.pinv(a), (2, 4, 2)),
    "lstsq": (lambda s, a, b: s.lstsq(a, b)[:2], (2, 4, 2), (2, 4, 2)),
    "logm": (lambda s, a: s.logm(regular(a)), (2, *A)),
    "polar": (lambda s, a: s.polar(a), (2, *A)),
    "sylvester": (lambda s, a, b, q: s.solve_sylvester(regular(a), regular(b), q), A, (2, 2, 2), B),
    "banded": (lambda s, a, b: s.solve_banded((1, 0), a + np.array([[5], [0]]), b), (2, 2, 4), (4, 3)),
    "bandedh": (lambda s, a, b: s.solveh_banded(0.4 * a + np.array([[0], [6]]), b), (2, 2, 4), (4, 3)),
    "toeplitz": (lambda s, c, b: s.solve_toeplitz(c + np.eye(3)[0] * 5, b), (2, 3), (2, 3, 1)),
}  # fmt: skip


@pytest.mark.parametrize("name", every(sorted(BATCHES), 19))
def test_batches_are_what_one_after_the_other_is(name):
    function, *shapes = BATCHES[name]
    values = [array(*shape, seed=k) for k, shape in enumerate(shapes)]
    leaves = [tg.tensor(v, requires_grad=True) for v in values]
    found = parts(function(ts.linalg, *leaves))
    axes = [1 if name == "toeplitz" and k == 0 else 2 for k in range(len(values))]
    front = np.broadcast_shapes(*(v.shape[: v.ndim - n] for v, n in zip(values, axes, strict=True)))
    spread = [np.broadcast_to(v, front + v.shape[v.ndim - n :]) for v, n in zip(values, axes, strict=True)]
    total, wanted = sum(np.sum(x * x) for x in found), [np.zeros(v.shape) for v in spread]
    for k in np.ndindex(front):
        ones = [tg.tensor(v[k], requires_grad=True) for v in spread]
        single = parts(function(ts.linalg, *ones))
        for x, y in zip(found, single, strict=True):
            np.testing.assert_allclose(x.detach().numpy()[k], y.detach().numpy(), rtol=1e-12, atol=1e-14)
        for g, one in zip(tg.grad(sum(np.sum(x * x) for x in single), ones), wanted, strict=True):
            one[k] = g.numpy()
    for g, v, w in zip(tg.grad(total, leaves), values, wanted, strict=True):
        extra = w.ndim - v.ndim
        w = w.sum(axis=tuple(range(extra)))
        stretched = tuple(d for d in range(v.ndim) if v.shape[d] == 1 != w.shape[d])
        np.testing.assert_allclose(g.numpy(), w.sum(axis=stretched, keepdims=True), rtol=1e-9, atol=1e-11)


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "mixed"),
    [(n, m) for n in CASES for m in range(len(CASES[n]) - 1) if len(CASES[n]) > 2 and n not in NOT_COMPLEX],
)
def test_real_operands_beside_complex_ones(name, mixed):
    """Each operand complex alone: cotangents of the others are real."""
    function, *shapes = CASES[name]
    leaves = [
        tg.tensor(array(*shape, dtype=complex if k == mixed else float, seed=k), requires_grad=True)
        for k, shape in enumerate(shapes)
    ]
    assert gradcheck(lambda *xs: function(ts.linalg, *xs), leaves, check_forward_ad=True, fast_mode=True)


def test_memory_of_tensors_is_not_overwritten():
    a = tg.tensor(np.asfortranarray(positive(array(N, N))))
    before = a.numpy().copy()
    ts.linalg.cholesky(a, False, True)
    ts.linalg.lu_factor(a, overwrite_a=True)
    ts.linalg.null_space(a, overwrite_a=True)
    ts.fft.fft(a, overwrite_x=True)
    np.testing.assert_array_equal(a.numpy(), before)


PARTS = [{}, {"select": "i", "select_range": (1, 3)}, {"select": "v", "select_range": (-1.0, 1.0)}]


@pytest.mark.parametrize("part", PARTS, ids=str)
def test_eigenvalues_of_three_diagonals(part):
    d, e = array(5), array(4, seed=1)
    values, vectors = scipy.linalg.eigh_tridiagonal(d, e, **part)
    leaves = [tg.tensor(x, requires_grad=True) for x in (d, e)]
    w, v = ts.linalg.eigh_tridiagonal(*leaves, **part)
    np.testing.assert_allclose(w.detach().numpy(), values, rtol=1e-12)
    np.testing.assert_allclose(np.abs(v.detach().numpy()), np.abs(vectors), atol=1e-12)
    ours = ts.linalg.eigh_tridiagonal, ts.linalg.eigvalsh_tridiagonal
    f = lambda d, e: (ours[1](d, e, **part), ours[0](d, e, **part)[1] ** 2)
    assert gradcheck(f, leaves, check_forward_ad=True, fast_mode=True)
    assert gradgradcheck(f, leaves, fast_mode=True)
    np.testing.assert_array_equal(ours[1](d, e, **part), scipy.linalg.eigvalsh_tridiagonal(d, e, **part))
    with pytest.raises(ShapeError, match=r"scipy\.linalg\.eigh_tridiagonal: d is a vector and e one"):
        ts.linalg.eigh_tridiagonal(leaves[0], leaves[0])
