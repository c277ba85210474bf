"""Products and solutions with sparse matrices: by SciPy's matrices, and by values that are Tensors."""

import numpy as np
import pytest
import scipy.sparse
from scipy.sparse import linalg

import tapegrad as tg
import tapegrad.scipy as ts
from tapegrad.autograd import gradcheck, gradgradcheck
from tapegrad.errors import BorderError, GradientError, MutationError, ShapeError, UnsupportedOpError
from tests.tiers import every, thinned

from .test_linalg import array

FORMATS = [
    "csr_array", "csc_array", "coo_array", "bsr_array", "dia_array", "lil_array", "dok_array", "csr_matrix",
]  # fmt: skip
CONSTANT = scipy.sparse.csr_array(np.array([[1.0, 0, 2], [0, 0, 3], [4, 5, 0], [0, -1, 0]]))
EYE = 4 * scipy.sparse.eye_array(4)
ROWS, COLUMNS = np.array([0, 0, 1, 2, 3, 2, 1]), np.array([0, 2, 1, 2, 3, 0, 1])  # one place comes twice


def constant(kind="csr_array", dtype=float):
    dense = array(4, 3, dtype=dtype) * (array(4, 3, seed=1) > 0)
    return getattr(scipy.sparse, kind)(dense), dense


def square(data, dtype=float):
    """A matrix of values as they are given, and ones of a diagonal."""
    return ts.sparse.coo_array((data, (ROWS, COLUMNS)), shape=(4, 4)) + 4 * scipy.sparse.eye_array(4)


def dense_of(data):
    found = 4 * np.eye(4, dtype=data.dtype)
    np.add.at(found, (ROWS, COLUMNS), data)
    return found


# ---------------------------------------------------------------- SciPy's matrices


@pytest.mark.parametrize("kind", FORMATS)
def test_products_with_matrices_of_scipys(kind):
    matrix, dense = constant(kind)
    for x, ct in ((array(3), array(4)), (array(3, 2), array(4, 2))):
        leaf = tg.tensor(x, requires_grad=True)
        for y in (matrix @ leaf, *([] if kind == "coo_array" else [matrix.dot(leaf)])):  # its own asks first
            np.testing.assert_array_equal(y.detach().numpy(), matrix @ x)
            (g,) = tg.grad(y, leaf, ct)
            np.testing.assert_allclose(g.numpy(), dense.T @ ct, rtol=1e-14)
    left = tg.tensor(array(2, 4), requires_grad=True)
    np.testing.assert_allclose((left @ matrix).detach().numpy(), left.detach().numpy() @ dense, rtol=1e-14)
    (g,) = tg.grad(left @ matrix, left, array(2, 3))
    np.testing.assert_allclose(g.numpy(), array(2, 3) @ dense.T, rtol=1e-14)
    (g,) = tg.grad(np.sum(matrix.T @ left.T), left)
    np.testing.assert_allclose(g.numpy(), np.ones((2, 3)) @ dense.T, rtol=1e-14)


@pytest.mark.parametrize("dtype", every([(complex,), (float,)], 2))
def test_products_in_all_modes(dtype):
    matrix, _ = constant(dtype=dtype)
    x = tg.tensor(array(3, 2, dtype=dtype), requires_grad=True)
    assert gradcheck(lambda x: matrix @ x, [x], check_forward_ad=True, check_batched_grad=True)
    assert gradgradcheck(lambda x: (matrix @ x) ** 2, [x])


def test_a_product_is_a_tensor_where_no_derivative_is_asked_for():
    matrix, _ = constant()
    with tg.no_grad():
        y = matrix @ tg.tensor(array(3), requires_grad=True)
    assert isinstance(y, tg.Tensor)
    assert not y.requires_grad


@pytest.mark.parametrize(("name", "dense"), [("eigsh", "eigh"), ("svds", "svd"), ("inv", "inv")])
def test_functions_of_a_whole_matrix_say_what_has_a_derivative(name, dense):
    """SciPy's error of a Tensor was "type not understood"."""
    values = tg.tensor([1.0, 2.0, 3.0], requires_grad=True)
    for matrix in (np.diag(values), ts.sparse.diags_array(values)):
        with pytest.raises(UnsupportedOpError, match=rf"sparse\.linalg\.{name} .*numpy\.linalg\.{dense} "):
            getattr(ts.sparse.linalg, name)(matrix)
    plain = scipy.sparse.diags_array([1.0, 2.0, 3.0]).tocsc()
    assert np.isfinite(ts.sparse.linalg.eigsh(plain, k=1)[0]).all()


def test_other_operations_with_matrices_of_scipys_are_refused():
    matrix, _ = constant("csr_matrix")
    x = tg.tensor(array(3), requires_grad=True)
    one = scipy.sparse.eye_array(3, format="csr")
    for refused in (lambda: matrix * x, lambda: one * x):
        with pytest.raises(BorderError, match=r"asked for by scipy.sparse.*S @ x"):
            refused()
    with pytest.raises(BorderError, match=r"call tapegrad\.scipy\.sparse\.linalg\.spsolve"):
        linalg.spsolve(one, x)
    for wrong in (lambda: matrix @ x[:2], lambda: x @ matrix):
        with pytest.raises(ShapeError, match=r"sparse matrix of shape \(4, 3\)"):
            wrong()


def test_a_matrix_that_sorts_itself_later_does_no_harm():
    """As many of SciPy's functions let it do."""
    values, places = np.array([1.0, 2.0, 3.0, 4.0]), [2, 0, 1, 1]
    matrix = scipy.sparse.csr_array((values, places, [0, 3, 4]), shape=(2, 3))
    dense, x = matrix.toarray(), tg.tensor(array(3), requires_grad=True)
    y = matrix @ x
    matrix.sort_indices()
    (g,) = tg.grad(y, x, array(2))
    np.testing.assert_allclose(g.numpy(), dense.T @ array(2), rtol=1e-14)


def test_a_matrix_that_is_written_to_is_noticed():
    matrix = scipy.sparse.random_array((100, 100), density=0.5, format="csr", rng=np.random.default_rng(0))
    x = tg.tensor(array(100), requires_grad=True)
    y = np.sum((matrix @ x) ** 2)
    matrix.data[:] = 0
    with pytest.raises(MutationError):
        y.backward()


# ---------------------------------------------------------------- values that are Tensors


USES = {
    "product": lambda a, x: a @ x,
    "vector": lambda a, x: a @ x[:, 0],
    "before": lambda a, x: x.T @ a,
    "transpose": lambda a, x: a.T @ x,
    "scaled": lambda a, x: (2 * a * x[0, 0] / x[1, 1]) @ x,
    "difference": lambda a, x: (a - a.T * 0.5) @ x,
    "array": lambda a, x: a.toarray() @ x,
    "dense sum": lambda a, x: a + x @ x.T,
    "list": lambda a, x: (a - np.eye(4).tolist()) @ x,
    "sums": lambda a, x: (a.sum(), a.sum(0), a.sum(1), a.diagonal()),
    "sparse product": lambda a, x: (CONSTANT.T @ a @ a.T @ CONSTANT) @ x[:3],
    "by elements": lambda a, x: (a * (a.T @ a) + a.multiply(x[:, :1])).toarray(),
    "by elements of a constant": lambda a, x: (CONSTANT.T * a[:3]) @ x,
    "parts": lambda a, x: (a[1:, ::-1] @ x, a[[2, 0]].toarray(), a[0, 2] ** 2),
    "powers": lambda a, x: (abs(a.power(3)).sum(), a.trace(), a.mean(), a.mean(0)),
    "blocks": lambda a, x: ts.sparse.block_array([[a, None], [CONSTANT.T, a[:3]]]) @ np.tile(x, (2, 1)),
    "kron": lambda a, x: ts.sparse.kron(a, ts.sparse.kron(np.eye(1, 2), a[:2, :2])) @ np.tile(x, (4, 1)),
    "solve": lambda a, x: ts.sparse.linalg.spsolve(a, x),
    "solve vector": lambda a, x: ts.sparse.linalg.spsolve(a, x[:, :1]),
    "solve T": lambda a, x: ts.sparse.linalg.splu(a).solve(x, "T"),
    "solve H": lambda a, x: ts.sparse.linalg.splu(a).solve(x, "H"),
    "cg": lambda a, x: ts.sparse.linalg.cg(a + a.T.conj(), x[:, 0], rtol=1e-13)[0],
    "gmres": lambda a, x: ts.sparse.linalg.gmres(a, x[:, 0], rtol=1e-13, M=np.eye(4) / 4)[0],
    "bicgstab": lambda a, x: ts.sparse.linalg.bicgstab(a, x[:, 0], rtol=1e-13)[0],
    "bicg": lambda a, x: ts.sparse.linalg.bicg(a, x[:, 0], rtol=1e-13)[0],
    "minres": lambda a, x: ts.sparse.linalg.minres(a + a.T, x[:, 0], rtol=1e-14, shift=0.3)[0],
}


@pytest.mark.parametrize(("use", "dtype"), thinned(
    [(use, dtype) for use in USES for dtype in (float, complex) if (use, dtype) != ("minres", complex)],
    lambda use, dtype: dtype is complex and use in ("product", "solve")))  # fmt: skip
def test_derivatives(use, dtype):
    data = 0.3 * array(7, dtype=dtype)
    leaves = [tg.tensor(v, requires_grad=True) for v in (data, array(4, 2, dtype=dtype))]

    def f(data, x):
        return USES[use](square(data), x)

    assert gradcheck(f, leaves, check_forward_ad=True, check_batched_grad=True, fast_mode=True)
    assert gradgradcheck(f, leaves, atol=1e-4, fast_mode=True)


def test_values_are_scipys():
    data, x = 0.3 * array(7), array(4, 2)
    leaf, right = tg.tensor(data, requires_grad=True), tg.tensor(x, requires_grad=True)
    matrix, dense = square(leaf), dense_of(data)
    np.testing.assert_allclose(matrix.toarray().detach().numpy(), dense, rtol=1e-15)
    np.testing.assert_allclose(matrix.value().toarray(), dense, rtol=1e-15)
    known = scipy.sparse.csc_array(dense)
    for name in ("spsolve", "cg", "gmres", "bicgstab", "bicg", "minres"):
        given = x if name == "spsolve" else x[:, 0]
        wanted = getattr(linalg, name)(known, given)
        found = getattr(ts.sparse.linalg, name)(matrix, right if name == "spsolve" else right[:, 0])
        wanted, found = (v if name == "spsolve" else v[0] for v in (wanted, found))
        np.testing.assert_allclose(found.detach().numpy(), wanted, rtol=1e-10)
        own = getattr(ts.sparse.linalg, name)(known, given)
        np.testing.assert_array_equal(own if name == "spsolve" else own[0], wanted)


def test_products_of_sparse_matrices_are_scipys():
    """Bit by bit where one is a constant, as matrices of elements are assembled; also without elements."""
    random = np.random.default_rng(0)
    constant = scipy.sparse.random_array((7, 6), density=0.4, format="csr", rng=random)
    other = scipy.sparse.random_array((7, 5), density=0.4, format="csc", rng=random)
    for kind in ("csr", "csc", "coo", "dia"):
        left, right = constant.T.asformat(kind), other.tocoo()
        places = right.coords
        found = left @ ts.sparse.coo_array((tg.tensor(right.data), places), shape=right.shape)
        np.testing.assert_array_equal(found.value().toarray(), (left.tocsr() @ other.tocsr()).toarray())
        found = ts.sparse.coo_array((tg.tensor(right.data), places), shape=right.shape).T @ left.T
        np.testing.assert_allclose(found.value().toarray(), (other.T @ left.T).toarray(), rtol=1e-15)
    d = tg.tensor(random.normal(size=7), requires_grad=True)
    stiffness = constant.T @ ts.sparse.diags_array(d) @ constant
    dense = constant.toarray()
    wanted = (dense.T * d.detach().numpy()) @ dense
    np.testing.assert_allclose(stiffness.toarray().detach().numpy(), wanted, rtol=1e-14)
    (g,) = tg.grad(stiffness.toarray(), d, np.ones((6, 6)))
    np.testing.assert_allclose(g.numpy(), dense.sum(1) ** 2, rtol=1e-14)
    empty = ts.sparse.csr_array((d[:0], ([], [])), shape=(6, 7)) @ constant
    assert empty.shape == (6, 6) and empty.nnz == 0 and empty.sum().item() == 0
    single = ts.sparse.diags_array(tg.tensor(np.ones(7, np.float32))) @ constant.astype(np.float32)
    assert single.dtype == (single * single.sum()).dtype == np.float32


def test_parts_and_blocks_are_scipys():
    """Where two values stand at one place, too."""
    matrix, plain = square(tg.tensor(array(7))), scipy.sparse.csr_array(dense_of(array(7)))
    for make in (
        lambda s, a: a[1:3, :2], lambda s, a: a[[2, 0], :], lambda s, a: a[:, [1]], lambda s, a: a[1, 1],
        lambda s, a: a[3, 0], lambda s, a: a[[[0], [2]], [0, 2]], lambda s, a: s.vstack([a, CONSTANT.T @ a]),
        lambda s, a: s.hstack([a, a]), lambda s, a: s.block_diag([a, np.eye(2)]), lambda s, a: s.kron(EYE, a),
        lambda s, a: s.bmat([[None, a], [EYE, None]]), lambda s, a: s.block_array([[a, EYE]]),
        lambda s, a: s.triu(a, 1), lambda s, a: s.tril(a), lambda s, a: s.vstack([a, a], dtype=np.float32),
        lambda s, a: s.hstack([a], dtype=bool), lambda s, a: s.block_diag([a, EYE], dtype=np.complex64),
    ):  # fmt: skip
        found, wanted = (make(s, a) for s, a in ((ts.sparse, matrix), (scipy.sparse, plain)))
        assert found.dtype == wanted.dtype
        if np.ndim(wanted):
            found, wanted = found.toarray(), wanted.toarray()
        np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-15)


def test_a_gradient_by_values_is_that_of_the_whole_matrix_on_its_pattern():
    data, b = 0.3 * array(7), array(4)
    leaf = tg.tensor(data, requires_grad=True)
    (g,) = tg.grad(np.sum(ts.sparse.linalg.spsolve(square(leaf), b) ** 2), leaf)
    dense = dense_of(data)
    x = np.linalg.solve(dense, b)
    w = np.linalg.solve(dense.T, 2 * x)
    np.testing.assert_allclose(g.numpy(), -w[ROWS] * x[COLUMNS], rtol=1e-12)


def test_a_matrix_is_factored_once(monkeypatch):
    calls, own = [], linalg.splu
    monkeypatch.setattr(linalg, "splu", lambda *args, **kwargs: calls.append(1) or own(*args, **kwargs))
    leaf = tg.tensor(0.3 * array(7), requires_grad=True)
    lu = ts.sparse.linalg.splu(square(leaf))
    y = np.sum(lu.solve(array(4)) * lu.solve(array(4, seed=1), "T"))
    (g,) = tg.grad(y, leaf, create_graph=True)
    tg.grad(np.sum(g), leaf)
    assert len(calls) == 1
    assert lu.shape == (4, 4)
    with tg.no_grad():
        leaf *= 2  # the factors stay what they were, and so do derivatives
    (again,) = tg.grad(np.sum(lu.solve(array(4)) * lu.solve(array(4, seed=1), "T")), leaf)
    np.testing.assert_allclose(again.numpy(), g.detach().numpy(), rtol=1e-12)
    with pytest.raises(UnsupportedOpError, match=r"scipy\.sparse\.linalg\.splu: its factors"):
        _ = lu.L
    solve = ts.sparse.linalg.factorized(scipy.sparse.csc_array(np.eye(4)))
    np.testing.assert_array_equal(solve(array(4)), array(4))


def test_operators_and_arrays_of_iterations():
    dense = np.eye(4) * 4 + 0.1 * array(4, 4)
    b, whole = tg.tensor(array(4), requires_grad=True), tg.tensor(dense, requires_grad=True)
    w = np.linalg.solve(dense.T, np.ones(4))
    for matrix in (dense, linalg.aslinearoperator(dense), whole, scipy.sparse.csr_array(dense)):
        x, info = ts.sparse.linalg.gmres(matrix, b, rtol=1e-12)
        assert info == 0
        (g,) = tg.grad(np.sum(x), b, retain_graph=True)
        np.testing.assert_allclose(g.numpy(), w, rtol=1e-9)
        if matrix is whole:
            (g,) = tg.grad(np.sum(x), whole)
            wanted = -np.outer(w, np.linalg.solve(dense, array(4)))
            np.testing.assert_allclose(g.numpy(), wanted, rtol=1e-9)


def test_an_adjoint_equation_that_is_not_solved_is_no_derivative():
    dense = np.diag(np.geomspace(1, 1e6, 30)) + np.triu(array(30, 30))
    b = tg.tensor(np.eye(30)[0], requires_grad=True)  # for which one iteration is enough
    x, info = ts.sparse.linalg.bicgstab(scipy.sparse.csr_array(dense), b, maxiter=2)
    assert info == 0
    with pytest.raises(GradientError, match=r"scipy\.sparse\.linalg\.bicgstab: the equation for a"):
        tg.grad(np.sum(x), b)


# ---------------------------------------------------------------- least squares

EXACT = {"atol": 1e-14, "btol": 1e-14}
SHAPES = {"tall": (5, 3), "wide": (3, 5), "square": (4, 4)}


def normal_equations(a, b, damp, x0):
    """The solution by dense algebra, also where there are fewer rows than columns."""
    step = b - a @ x0
    if a.shape[0] < a.shape[1] and not value(damp):
        return x0 + a.T @ np.linalg.solve(a @ a.T, step)
    return x0 + np.linalg.solve(a.T @ a + damp**2 * np.eye(a.shape[1]), a.T @ step)


def value(x):
    return x.item() if isinstance(x, tg.Tensor) else x


@pytest.mark.parametrize("name", every(["lsqr", "lsmr"], 2))
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("damp", [0.0, 0.7])
def test_least_squares(name, shape, damp):
    """By all arguments; of a matrix, of its values at places, and of an operator."""
    m, n = SHAPES[shape]
    dense, b, x0, ct = array(m, n), array(m), array(n, seed=2), array(n, seed=3)
    solver, own = getattr(ts.sparse.linalg, name), getattr(linalg, name)
    wanted = own(dense, b, damp, x0=x0, **EXACT)
    given = [tg.tensor(v, requires_grad=True) for v in (dense, b, damp, x0)]
    active = given if damp else [given[0], given[1], given[3]]
    exact = normal_equations(*given[:2], given[2] if damp else 0.0, given[3])
    slopes = tg.grad(exact, active, ct, create_graph=True)
    np.testing.assert_allclose(wanted[0], exact.detach().numpy(), rtol=1e-9, atol=1e-9)
    curved = tg.grad(sum(np.sum(g**2) for g in slopes), active, retain_graph=True)
    rows, columns = (part.ravel() for part in np.indices((m, n)))
    places = ts.sparse.coo_array((np.reshape(given[0], -1), (rows, columns)), shape=(m, n))
    for a in (given[0], places):
        x, *others = solver(a, given[1], given[2] if damp else 0.0, x0=given[3], **EXACT)
        np.testing.assert_allclose(x.detach().numpy(), wanted[0], rtol=1e-12)
        assert len(others) == len(wanted) - 1 and others[0] in (1, 2, 3, 4, 5, 6, 7)
        found = tg.grad(x, active, ct, create_graph=True)
        for g, w in zip(found, slopes, strict=True):
            np.testing.assert_allclose(g.detach().numpy(), w.detach().numpy(), rtol=1e-7, atol=1e-8)
        again = tg.grad(sum(np.sum(g**2) for g in found), active)
        for g, w in zip(again, curved, strict=True):
            np.testing.assert_allclose(g.numpy(), w.numpy(), rtol=1e-6, atol=1e-7)
    x, *_ = solver(linalg.aslinearoperator(dense), *given[1:3], x0=given[3], **EXACT) if damp else solver(
        linalg.aslinearoperator(dense), given[1], x0=given[3], **EXACT)  # fmt: skip
    for g, w in zip(tg.grad(x, active[1:], ct), slopes[1:], strict=True):
        np.testing.assert_allclose(g.numpy(), w.detach().numpy(), rtol=1e-7, atol=1e-8)


@pytest.mark.full
def test_least_squares_in_forward_mode():
    data, b = tg.tensor(0.3 * array(7), requires_grad=True), tg.tensor(array(4), requires_grad=True)
    matrix = lambda data: ts.sparse.coo_array((data, (ROWS, COLUMNS)), shape=(4, 4)) + EYE
    f = lambda data, b: ts.sparse.linalg.lsqr(matrix(data), b, **EXACT)[0]
    assert gradcheck(f, [data, b], check_forward_ad=True)


@pytest.mark.full
def test_least_squares_that_have_no_derivative():
    b = tg.tensor(array(3), requires_grad=True)
    deficient = np.outer(array(3), array(2)) + 0.0
    for function in (ts.sparse.linalg.lsqr, ts.sparse.linalg.lsmr):
        a = tg.tensor(deficient, requires_grad=True)
        x, *_ = function(a, b, **EXACT)
        with pytest.raises(GradientError, match=r"scipy\.sparse\.linalg\.ls.*no solution"):
            tg.grad(x, a, np.array([1.0, -1.0]))
        with pytest.raises(UnsupportedOpError, match="complex numbers"):
            function(np.eye(3) * 1j, b)
    plain = ts.sparse.linalg.lsqr(deficient, array(3))
    np.testing.assert_array_equal(plain[0], linalg.lsqr(deficient, array(3))[0])


def test_how_matrices_are_made():
    data = tg.tensor([1.0, 2.0, 3.0], requires_grad=True)
    for name, wanted in (("csr_array", [[1, 2], [0, 3]]), ("csc_array", [[1, 0], [2, 3]])):
        found = getattr(ts.sparse, name)((data, [0, 1, 1], [0, 2, 3]), shape=(2, 2))
        np.testing.assert_array_equal(found.toarray().detach().numpy(), wanted)
        np.testing.assert_array_equal(
            getattr(ts.sparse, name)(([1.0, 2.0, 3.0], [0, 1, 1], [0, 2, 3])).toarray(), wanted
        )
        assert getattr(ts.sparse, name)((data, [0, 1, 1], [0, 2, 3])).shape == (2, 2)
    for offsets in (0, 1, -2):
        found = ts.sparse.diags_array(data, offsets=offsets)
        wanted = scipy.sparse.diags_array([1.0, 2.0, 3.0], offsets=offsets)
        np.testing.assert_array_equal(found.toarray().detach().numpy(), wanted.toarray())
    found = ts.sparse.diags([data, -1.0, [5.0, 6.0]], [0, 1, -1])
    wanted = scipy.sparse.diags([[1.0, 2.0, 3.0], -1.0, [5.0, 6.0]], [0, 1, -1])
    np.testing.assert_array_equal(found.toarray().detach().numpy(), wanted.toarray())
    assert ts.sparse.diags([1.0, 2.0]).toarray().tolist() == [[1, 0], [0, 2]]
    assert isinstance(ts.sparse.csr_array(found), ts.sparse.SparseTensor)


def test_what_is_not_there_says_what_to_do():
    data = tg.tensor([1.0, 2.0, 3.0], requires_grad=True)
    a = ts.sparse.diags_array(data)
    for call, words in (
        (lambda: a / data, r"/ with anything but a number.*reciprocal"),
        (lambda: a[0], r"a single row or column.*a\[\[0\]\]"),
        (lambda: a.power(-1), r"power\(-1\).*a positive exponent"),
        (lambda: a + 1.0, r"\+ with a number"),
        (lambda: ts.sparse.csr_array(np.eye(3) * data), r"scipy\.sparse\.csr_array of a Tensor of all"),
        (lambda: ts.sparse.linalg.spsolve(np.eye(3), data), r"a sparse matrix is needed.*linalg\.solve"),
        (lambda: ts.sparse.linalg.spsolve(a, scipy.sparse.eye_array(3)), r"spsolve: a sparse right side"),
    ):  # fmt: skip
        with pytest.raises(UnsupportedOpError, match=words):
            call()
    for call, words in (
        (lambda: a @ data[:2], r"shape \(3, 3\).*shape \(2,\)"),
        (lambda: a @ scipy.sparse.eye_array(2), r"shapes \(3, 3\) and \(2, 2\) have no product"),
        (lambda: scipy.sparse.eye_array(2) @ a, r"shapes \(2, 2\) and \(3, 3\) have no product"),
        (lambda: a * data[:2], r"shape \(3, 3\) has no product by elements .* shape \(2,\)"),
        (lambda: a * scipy.sparse.eye_array(2), r"shapes \(3, 3\) and \(2, 2\) have no product by elem"),
        (lambda: ts.sparse.coo_array((data, ([0, 1], [0, 1]))), r"scipy\.sparse\.coo_array: \(3,\) values"),
        (lambda: ts.sparse.coo_array((data, ([0, 1, 2], [0, 1, 2])), shape=(2, 3)), r"places up to 2"),
        (lambda: ts.sparse.linalg.spsolve(a, data[:2]), r"spsolve: a matrix of 3 rows"),
    ):  # fmt: skip
        with pytest.raises(ShapeError, match=words):
            call()
    with pytest.raises(np.linalg.LinAlgError, match=r"scipy\.sparse\.linalg\.spsolve: .*singular"):
        ts.sparse.linalg.spsolve(ts.sparse.diags_array(data * [1, 0, 1]), np.ones(3))


def test_what_scipy_has_besides_is_its_own():
    assert ts.sparse.eye_array is scipy.sparse.eye_array
    assert ts.sparse.linalg.expm_multiply is linalg.expm_multiply
    assert {"eye_array", "csr_array"} <= set(dir(ts.sparse))
    assert {"eigsh", "splu"} <= set(dir(ts.sparse.linalg))
    assert "4 values" in repr(ts.sparse.diags_array(tg.tensor(np.ones(4))))
