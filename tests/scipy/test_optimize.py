"""Solvers of `tapegrad.scipy.optimize` beside SciPy's own, given derivatives written by hand."""

import inspect
import math

import numba
import numpy as np
import pytest
import scipy.optimize as theirs
from scipy import sparse, special
from scipy.sparse.linalg import aslinearoperator

import tapegrad as tg
import tapegrad.scipy as ts
import tapegrad.scipy.optimize as ours
from tapegrad.errors import GradientError, TapeError
from tapegrad.scipy.optimize import adapters, evaluations, minima

START = np.array([-1.2, 1.0, 0.7])
A = np.array([[3.0, 1.0, 0.5], [1.0, 4.0, -1.0], [0.5, -1.0, 5.0]])


def rosen(x):
    return np.sum(100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2)


def counted(f):
    """The function, and a list of the points it was called at and of their kinds."""
    points = []

    def call(x, *args):
        points.append((np.array(tg.Tensor.numpy(x.detach()) if isinstance(x, tg.Tensor) else x), type(x)))
        return f(x, *args)

    return call, points


def once(points):
    return len({x.tobytes() for x, _ in points}) == len(points)


# ---------------------------------------------------------------- names


@pytest.mark.parametrize("name", ours.__all__)
def test_a_solver_has_the_signature_of_scipys(name):
    assert inspect.signature(getattr(ours, name)) == inspect.signature(getattr(theirs, name))
    assert getattr(ours, name) is not getattr(theirs, name)
    assert getattr(ours, name).__name__ == name


def test_other_names_are_scipys():
    assert ours.linprog is theirs.linprog and ours.OptimizeResult is theirs.OptimizeResult
    assert set(theirs.__all__) <= set(dir(ours))
    with pytest.raises(AttributeError, match="no_such"):
        ours.no_such


def test_arguments_are_refused_as_by_scipy():
    with pytest.raises(TypeError, match="nonsense"):
        ours.minimize(rosen, START, nonsense=1)
    with pytest.raises(ValueError, match="Unknown solver"):
        ours.minimize(rosen, START, method="nonsense")


# ---------------------------------------------------------------- minimize


def by_hand(method):
    """What SciPy is given besides the function."""
    given = {"jac": theirs.rosen_der}
    if method in minima.MATRICES:
        given["hess"] = theirs.rosen_hess
    if method in minima.PRODUCTS:
        given["hessp"] = theirs.rosen_hess_prod
    return given


@pytest.mark.parametrize("method", minima.GRADIENTS)
def test_a_method_goes_the_way_it_goes_with_derivatives_by_hand(method):
    start = np.array([0.9, 0.85, 0.7])  # the Hessian is positive definite, as dogleg wants it
    call, points = counted(rosen)
    options = {"gtol": 1e-6} if method == "trust-constr" else {}
    found = ours.minimize(call, start, method=method, options=options)
    expected = theirs.minimize(theirs.rosen, start, method=method, options=options, **by_hand(method))
    assert type(found) is theirs.OptimizeResult and type(found.x) is np.ndarray
    assert found.success and isinstance(found.fun, float)
    np.testing.assert_allclose(found.x, expected.x, atol=1e-6)
    assert (found.nit, found.nfev, found.get("njev")) == (expected.nit, expected.nfev, expected.get("njev"))
    assert found.get("nhev") == expected.get("nhev")
    assert once(points)
    assert len(points) <= found.nfev


def test_the_hessian_is_used_where_it_may_be_indefinite():
    for method in ("trust-krylov", "trust-exact", "trust-ncg", "Newton-CG"):
        call, points = counted(rosen)
        found = ours.minimize(call, START, method=method, tol=1e-9)
        np.testing.assert_allclose(found.x, 1, atol=1e-6)
        assert once(points), method


def test_a_method_without_derivatives_gets_arrays():
    call, points = counted(rosen)
    found = ours.minimize(call, [0.9, 0.8], method="Nelder-Mead", options={"maxfev": 50})
    assert found.nfev == len(points) and {kind for _, kind in points} == {np.ndarray}
    assert (
        found.x.tolist()
        == theirs.minimize(rosen, [0.9, 0.8], method="Nelder-Mead", options={"maxfev": 50}).x.tolist()
    )


def test_a_gradient_that_is_given_is_used():
    call, points = counted(rosen)
    asked = []

    def slope(x):
        asked.append(x)
        return theirs.rosen_der(x)

    found = ours.minimize(call, START, jac=slope)
    assert len(asked) == found.njev and {kind for _, kind in points} == {np.ndarray}
    for jac in ("2-point", "3-point", False):
        call, points = counted(rosen)
        found = ours.minimize(call, START, jac=jac, method="BFGS")
        assert {kind for _, kind in points} == {np.ndarray} and found.nfev == len(points) > 2 * found.njev
    found = ours.minimize(lambda x: (theirs.rosen(x), theirs.rosen_der(x)), START, jac=True)
    np.testing.assert_allclose(found.x, 1, atol=1e-4)


def test_second_derivatives_that_are_given_are_used():
    for given in ({"hess": theirs.rosen_hess}, {"hessp": theirs.rosen_hess_prod}):
        (f,) = given.values()
        asked = []
        given = dict.fromkeys(given, lambda *args, f=f, asked=asked: asked.append(args) or f(*args))
        found = ours.minimize(rosen, START, method="Newton-CG", **given)
        np.testing.assert_allclose(found.x, 1, atol=1e-4)
        assert len(asked) == found.nhev
    found = ours.minimize(rosen, START, method="trust-constr", hess=theirs.BFGS())
    assert found.nhev == 0
    found = ours.minimize(rosen, START, method="trust-ncg", jac=theirs.rosen_der)  # products are ours
    np.testing.assert_allclose(found.x, 1, atol=1e-4)


def test_a_method_of_ones_own_gets_all_derivatives():
    def newton(fun, x0, args, jac, hess, hessp, **rest):
        x = x0
        for _ in range(8):
            np.testing.assert_allclose(hess(x, *args) @ x, hessp(x, x, *args), rtol=1e-12)
            x = x - np.linalg.solve(hess(x, *args), jac(x, *args))
        return theirs.OptimizeResult(x=x, fun=fun(x, *args), success=True)

    call, points = counted(lambda x, a: np.sum(np.exp(x) - a * x))
    found = ours.minimize(call, np.zeros(2), args=np.array([1.0, 3.0]), method=newton)
    np.testing.assert_allclose(found.x, np.log([1.0, 3.0]), rtol=1e-12, atol=1e-12)
    assert once(points)


def test_callback_and_tolerance_are_scipys():
    seen, other = [], []
    found = ours.minimize(rosen, START, tol=1e-3, callback=seen.append, options={"maxiter": 7})
    expected = theirs.minimize(
        rosen, START, jac=theirs.rosen_der, tol=1e-3, callback=other.append, options={"maxiter": 7}
    )
    np.testing.assert_allclose(seen, other, rtol=1e-9)
    assert found.nit == expected.nit == 7 and not found.success

    def stop(intermediate_result):
        raise StopIteration

    assert ours.minimize(rosen, START, callback=stop).nit == 1


def test_a_result_may_be_of_one_element_and_independent_of_x():
    assert ours.minimize(lambda x: x[:1] ** 2, [3.0]).fun == pytest.approx(0, abs=1e-9)
    assert ours.minimize(lambda x: 2.0, [3.0]).x == 3
    found = ours.minimize(lambda x: np.sum(x * [1.0, 0.0]) ** 2, [3.0, 4.0], method="trust-ncg")
    assert found.x[1] == 4 and abs(found.x[0]) < 1e-6
    assert ours.minimize(lambda x: np.sum(x), [1.0], method="trust-exact", options={"maxiter": 2}).fun < 0
    with pytest.raises(ValueError, match="scalar"):
        ours.minimize(lambda x: x, [1.0, 2.0])


@pytest.mark.full
def test_a_compiled_function():
    @tg.njit
    def f(x, a):
        s = 0.0
        for i in range(x.size):
            s += np.cosh(x[i] - a[i])
        return s

    a = np.array([1.0, -2.0])
    for method in ("BFGS", "trust-krylov", "trust-exact"):
        found = ours.minimize(f, np.zeros(2), args=(a,), method=method)
        np.testing.assert_allclose(found.x, a, atol=1e-4)


# ---------------------------------------------------------------- constraints


def circle(x):
    return 1 - x[0] ** 2 - x[1] ** 2


@pytest.mark.parametrize("method", ["SLSQP", "trust-constr"])
def test_constraints_that_are_plain_functions(method):
    """The smallest x + 2 y in the unit disc, and on the line y = x in it."""
    call, points = counted(circle)
    disc = {"type": "ineq", "fun": call}
    found = ours.minimize(lambda x: x[0] + 2 * x[1], [0.1, -0.2], method=method, constraints=disc, tol=1e-8)
    np.testing.assert_allclose(found.x, -np.array([1, 2]) / np.sqrt(5), atol=1e-3)
    assert {kind for _, kind in points} == {tg.Tensor} and once(points)
    line = {"type": "eq", "fun": lambda x, slope: [x[1] - slope * x[0]], "args": (1.0,)}
    both = ours.minimize(
        lambda x: x[0] + 2 * x[1], [0.1, 0.1], method=method, constraints=[disc, line], tol=1e-8
    )
    np.testing.assert_allclose(both.x, -np.ones(2) / np.sqrt(2), atol=1e-3)


def test_a_nonlinear_constraint_has_exact_derivatives():
    call, points = counted(lambda x: [x[0] ** 2 + x[1] ** 2, x[0] * x[1]])
    limit = theirs.NonlinearConstraint(call, [-np.inf, -1.0], [1.0, 1.0])
    given = {"method": "trust-constr", "options": {"gtol": 1e-9}}
    found = ours.minimize(lambda x: x[0] + 2 * x[1], [0.1, -0.2], constraints=limit, **given)
    np.testing.assert_allclose(found.x, -np.array([1, 2]) / np.sqrt(5), atol=1e-3)
    assert {kind for _, kind in points} == {tg.Tensor} and once(points)
    assert limit.fun is call and limit.jac == "2-point", "the user's own is not changed"
    assert found.constr_nhev[0] > 0


def test_a_constraints_jacobian_that_is_given_is_used():
    for jac in ("3-point", lambda x: -2 * x):
        call, points = counted(circle)
        limit = theirs.NonlinearConstraint(call, 0, np.inf, jac=jac)
        ours.minimize(lambda x: x[0], [0.1, 0.1], constraints=limit, method="SLSQP")
        assert {kind for _, kind in points} == {np.ndarray}
    call, points = counted(circle)
    ours.minimize(
        lambda x: x[0], [0.1, 0.1], constraints={"type": "ineq", "fun": call, "jac": lambda x: -2 * x}
    )
    assert {kind for _, kind in points} == {np.ndarray}


def test_a_sparse_jacobian_of_a_constraint():
    seen = []
    pattern = sparse.eye_array(3)
    limit = theirs.NonlinearConstraint(lambda x: x**2, -np.inf, 4, finite_diff_jac_sparsity=pattern)
    given = {"method": "trust-constr", "callback": lambda x, state: seen.append(state.jac[0])}
    found = ours.minimize(lambda x: np.sum(x), np.ones(3), constraints=limit, **given)
    np.testing.assert_allclose(found.x, -2, atol=2e-3)
    assert all(sparse.issparse(J) for J in seen)


# ---------------------------------------------------------------- derivatives of solutions


def quadratic(x, a, scale):
    """Minimal where A x = a."""
    return scale * (x @ A @ x / 2 - a @ x)


@pytest.mark.parametrize("method", ["BFGS", "trust-exact", "Nelder-Mead"])
def test_the_derivative_of_a_minimum(method):
    a = tg.tensor([1.0, 2.0, 3.0], requires_grad=True)
    options = {"xatol": 1e-10, "fatol": 1e-14, "maxiter": 5000} if method == "Nelder-Mead" else {"gtol": 1e-9}
    found = ours.minimize(quadratic, np.zeros(3), args=(a, 2.0), method=method, options=options)
    w = np.array([1.0, -1.0, 0.5])
    (g,) = tg.grad(found.x @ w, a, retain_graph=True)
    np.testing.assert_allclose(g.numpy(), np.linalg.solve(A, w), rtol=1e-10)
    (g,) = tg.grad(found.fun, a)  # - a A^-1 a
    np.testing.assert_allclose(g.numpy(), -2 * np.linalg.solve(A, [1.0, 2.0, 3.0]), rtol=1e-6)
    assert found.nfev > 0 and type(found.jac if method == "BFGS" else found.x._v) is np.ndarray


def test_further_derivatives_and_forward_mode_of_a_minimum():
    def x_of(a):
        return ours.minimize(lambda x, a: np.sum((x - a**3) ** 2), np.zeros(2), args=(a,)).x

    a = np.array([0.5, 2.0])
    np.testing.assert_allclose(
        tg.func.hessian(lambda a: np.sum(x_of(a)))(a), np.diag(6 * a), rtol=1e-6, atol=1e-9
    )
    _, moved = tg.func.jvp(x_of)(a, np.array([1.0, 10.0]))
    np.testing.assert_allclose(moved, 3 * a**2 * [1.0, 10.0], rtol=1e-6)


def test_a_tolerance_below_rounding_is_no_reason_to_refuse():
    a = tg.tensor([1.0, 2.0], requires_grad=True)

    def f(x, a):
        return np.sum((x - a**2) ** 2) + np.sum(np.cosh(x))

    for method in ("trust-exact", "BFGS"):
        found = ours.minimize(f, np.zeros(2), args=(a,), method=method, tol=1e-15)
        assert not found.success
        (g,) = tg.grad(np.sum(found.x), a)
        x = found.x.detach().numpy()
        np.testing.assert_allclose(g.numpy(), 4 * np.array([1.0, 2.0]) / (2 + np.cosh(x)), rtol=1e-7)


def test_a_minimum_of_many_numbers_that_is_none_in_some_directions():
    n = adapters.LARGE
    a = tg.tensor(np.ones(n), requires_grad=True)
    found = ours.minimize(
        lambda x, a: np.sum((x[:9] - a[:9]) ** 2), np.zeros(n), args=(a,), method="L-BFGS-B"
    )
    (g,) = tg.grad(found.x[2], a, retain_graph=True)
    assert g.numpy()[2] == pytest.approx(1) and np.count_nonzero(g.numpy()) == 1
    with pytest.raises(GradientError, match="conjugate gradients do not solve"):
        tg.grad(found.x[9], a)


def test_where_a_solver_begins_has_no_influence():
    start = tg.tensor([1.0, 2.0, 0.5], requires_grad=True)
    found = ours.minimize(quadratic, start, args=(np.ones(3), 1.0))
    assert tg.grad(np.sum(found.x), start)[0].tolist() == [0, 0, 0]
    with tg.no_grad():
        assert type(ours.minimize(quadratic, start, args=(np.ones(3), 1.0)).x) is np.ndarray


def test_arguments_in_a_tree():
    p = {"a": tg.tensor([1.0, 4.0], requires_grad=True), "names": "unused"}
    x = ours.minimize(lambda x, p: np.sum((x**2 - p["a"]) ** 2), np.ones(2), args=(p,), tol=1e-12).x
    (g,) = tg.grad(np.sum(x), p["a"])
    np.testing.assert_allclose(g.numpy(), [0.5, 0.25], rtol=1e-5)


LINE = np.arange(3.0)
OUTSIDE = {  # of a Tensor from outside, 2.0: the solution, and what it is by that
    "BFGS": (lambda a: ours.minimize(lambda x: np.sum((x - a**2) ** 2), [1.0, 2.0]).x, 4),
    "trust-krylov": (lambda a: ours.minimize(lambda x: (x[0] - a) ** 4, [1.0], method="trust-krylov").x, 1),
    "Nelder-Mead": (lambda a: ours.minimize(lambda x: (x[0] - a) ** 2, [1.0], method="Nelder-Mead").x, 1),
    "bounds": (
        lambda a: ours.minimize(lambda x: np.sum((x - a) ** 2), [0, 1], bounds=[(0, 1), (0, 9)]).x[1], 1),
    "constraint": (lambda a: ours.minimize(
        lambda x: (x[0] - 5) ** 2, [1.0], constraints={"type": "ineq", "fun": lambda x: a**2 - x[0]}).x, 4),
    "minimize_scalar": (lambda a: ours.minimize_scalar(lambda x: (x - a**2) ** 2).x, 4),
    "least_squares": (lambda a: ours.least_squares(lambda x: np.stack([x[0] - a**2, a]), [1.0]).x, 4),
    "lsmr": (lambda a: ours.least_squares(lambda x: x - a**2, [1.0, 2.0], tr_solver="lsmr").x, 4),
    "curve_fit": (lambda a: ours.curve_fit(lambda t, p: a * t * p, LINE, LINE, [1.0])[0], -0.25),
    "root": (lambda a: ours.root(lambda x: [x[0] - a**2], [1.0]).x, 4),
    "broyden": (lambda a: ours.root(lambda x: [x[0] - a**2], [1.0], method="broyden1").x, 4),
    "fsolve": (lambda a: ours.fsolve(lambda x: x - a**2, [1.0]), 4),
    "newton": (lambda a: ours.newton(lambda x: x - a**2, 1.0), 4),
    "root_scalar": (lambda a: ours.root_scalar(lambda x: x - a**2, x0=1.0).root, 4),
    "brentq": (lambda a: ours.brentq(lambda x: x - a**2, 0.0, 5.0), 4),
    "fixed_point": (lambda a: ours.fixed_point(lambda x: x / 2 + a, 1.0), 2),
    "one in another": (
        lambda a: ours.brentq(lambda x: x - a - ours.brentq(lambda y: y - a * x / 4, 0, 9), 1, 5), 4),
}  # fmt: skip


@pytest.mark.parametrize("case", OUTSIDE)
def test_tensors_from_outside(case):
    """The solution has its derivative by them; they were refused."""
    solve, slope = OUTSIDE[case]
    a = tg.tensor(2.0, requires_grad=True)
    assert tg.grad(np.sum(solve(a)) / np.size(solve(a)), a)[0].item() == pytest.approx(slope, rel=1e-3)
    with tg.no_grad():
        assert not isinstance(solve(a), tg.Tensor)


def test_no_tangent_is_dropped_in_silence():
    with tg.autograd.forward_ad.dual_level():
        a = tg.autograd.forward_ad.make_dual(tg.tensor(2.0), tg.tensor(1.0))
        for solve in (
            lambda: ours.minimize(lambda x: np.sum((x - a) ** 2), [1.0]),
            lambda: ours.brentq(lambda x: x - a, 0.0, 4.0),
            lambda: ours.root(lambda x: [x[0] - a], [1.0], method="broyden1"),
        ):
            with pytest.raises(GradientError, match=r"optimize\.\w+.*none of its arguments.*args="):
                solve()


def test_what_has_no_derivative_is_refused_by_name():
    a = tg.tensor([1.0, 2.0], requires_grad=True)
    with pytest.raises(GradientError, match=r"minimize.*no solution.*[Ii]terations"):
        ours.minimize(lambda x, a: rosen(x) * a[0], START, args=(a,), options={"maxiter": 2})
    for solve in (
        lambda f: ours.brentq(f, 0.0, 9.0), lambda f: ours.root_scalar(f, bracket=(0.0, 9.0)),
        lambda f: ours.bisect(lambda x, a: f(x), 0.0, 9.0, args=(a,)),
    ):  # fmt: skip
        with pytest.raises(GradientError, match="at 1 without being 0, as at a jump"):
            solve(lambda x: x - 5 * a[1] + 20 * (x > 1))
    assert ours.brentq(lambda x: x**2 - a[1], 0.0, 9.0, xtol=0.3).requires_grad  # roughly
    for solve in (
        lambda f: ours.minimize_scalar(f), lambda f: ours.minimize(lambda x: f(x[0]), [1.0], method="Powell"),
        lambda f: ours.minimize(lambda x, a: f(x[0]), [1.0], args=(a,), method="Nelder-Mead"),
    ):  # fmt: skip
        with pytest.raises(GradientError, match=r"minimize.*no solution.*gradient is .* kink"):
            solve(lambda x: np.abs(x - a[1]) + 0.1 * (x - a[0]) ** 2)
    with pytest.raises(GradientError, match=r"root.*no solution.*off by up to 1 "):
        ours.root(lambda x, a: np.stack([x[0] ** 2 + a[0], x[1] - a[1]]), [0.7, 0.6], args=(a,), method="lm")
    with pytest.raises(GradientError, match=r"least_squares.*loss"):
        ours.least_squares(lambda x, a: x - a, np.zeros(2), args=(a,), loss="huber")
    with pytest.raises(GradientError, match=r"newton.*no solution"):
        ours.newton(lambda x, a: x**2 + a[0], 0.3, args=(a,), maxiter=3, disp=False)


def test_a_function_that_takes_no_tensors_is_told_why():
    """And solved for with differences."""
    for f in (
        lambda x: math.cosh(x[0] - 1),
        lambda x: np.asarray(x)[0] ** 2,
        lambda x: special.agm(x[0], 2.0),
    ):
        with pytest.raises(
            TapeError, match=r"optimize\.minimize calls the function with Tensors.*jac='2-point'"
        ):
            ours.minimize(f, [0.5])
    assert ours.minimize(lambda x: math.cosh(x[0] - 1), [0.5], jac="2-point").x == pytest.approx(1, abs=1e-4)
    with pytest.raises(TapeError, match=r"curve_fit calls the function with Tensors"):
        ours.curve_fit(lambda t, a: math.exp(a) * t, T, Y, [1.0])


# ---------------------------------------------------------------- least squares

T = np.linspace(0, 1, 12)
Y = 3 * np.exp(-2 * T) + 0.01 * np.cos(20 * T)


def decay(p, y=Y):
    return p[0] * np.exp(-p[1] * T) - y


def decay_jacobian(p, y=Y):
    return np.stack([np.exp(-p[1] * T), -p[0] * T * np.exp(-p[1] * T)], 1)


@pytest.mark.parametrize("method", ["trf", "dogbox", "lm"])
def test_least_squares_by_columns(method):
    found = ours.least_squares(decay, [1.0, 1.0], method=method)
    expected = theirs.least_squares(decay, [1.0, 1.0], decay_jacobian, method=method)
    np.testing.assert_allclose(found.x, expected.x, rtol=1e-10)
    np.testing.assert_allclose(found.jac, expected.jac, rtol=1e-9)
    assert (found.nfev, found.njev) == (expected.nfev, expected.njev)


def test_least_squares_by_rows():
    points = []

    def f(x, scale, shift):
        points.append((np.array(x.detach()), type(x)))
        return np.stack([scale * (x[0] - 1), x[1] * x[2] - shift])

    found = ours.least_squares(f, [2.0, 3.0, 4.0], args=(2.0,), kwargs={"shift": 5.0})
    assert found.cost < 1e-12 and found.nfev == len(points) and once(points)


def test_a_jacobian_of_residuals_that_is_given_is_used():
    for jac in ("2-point", decay_jacobian):
        call, points = counted(decay)
        ours.least_squares(call, [1.0, 1.0], jac=jac)
        assert {kind for _, kind in points} == {np.ndarray}


def chain(x):
    return np.concatenate([x[:1] - 1, 3 * x[1:] - x[:-1] ** 2 - 2])


def chain_pattern(n):
    return sparse.diags_array([np.ones(n), np.ones(n - 1)], offsets=[0, -1])


@pytest.mark.parametrize("given", [{"tr_solver": "lsmr"}, {"jac_sparsity": chain_pattern(20)}])
def test_a_sparse_jacobian_of_residuals(given):
    found = ours.least_squares(chain, np.full(20, 0.9), **given)
    np.testing.assert_allclose(found.x, 1, rtol=1e-6)
    assert sparse.issparse(found.jac) and found.jac.nnz == 39


def test_a_pattern_that_leaves_elements_out_is_noticed():
    with pytest.raises(GradientError, match="pattern"):
        ours.least_squares(chain, np.full(20, 0.9), jac_sparsity=sparse.eye_array(20))


def test_when_a_jacobian_is_sparse_unasked():
    n = evaluations.MANY
    few, many = (ours.least_squares(chain, np.full(k, 0.9), max_nfev=2) for k in (n - 1, n))
    assert isinstance(few.jac, np.ndarray) and sparse.issparse(many.jac)
    full = ours.least_squares(lambda x: chain(x) + np.sum(x) - n, np.full(n, 0.9), max_nfev=2)
    assert isinstance(full.jac, np.ndarray)
    for given in ({"tr_solver": "exact"}, {"method": "lm"}):
        found = ours.least_squares(chain, np.full(n, 0.9), max_nfev=2, **given)
        assert isinstance(found.jac, np.ndarray)


def test_a_rule_without_second_derivatives_will_do():
    @tg.func.custom_vjp
    def cube(x):
        return np.asarray(x) ** 3

    @cube.def_vjp
    def rule(out, args, ct):
        return ct * 3 * args[0] ** 2

    for f in (lambda x: cube(x) - 8.0, lambda x: np.concatenate([cube(x) - 8.0, cube(x) - 8.0])):
        np.testing.assert_allclose(ours.least_squares(f, [1.0, 1.5]).x, 2, rtol=1e-6)


@pytest.mark.full
def test_compiled_residuals():
    @tg.njit
    def f(p, y):
        out = np.empty(y.size)
        for i in range(y.size):
            out[i] = p[0] * y[i] + p[1] - y[i] ** 2
        return out

    found = ours.least_squares(f, np.ones(2), args=(T,))
    np.testing.assert_allclose(found.x, np.polyfit(T, T**2, 1), rtol=1e-9)


def test_the_derivative_of_a_least_squares_solution():
    M = np.random.default_rng(0).normal(size=(6, 2))
    y = tg.tensor(np.arange(6.0), requires_grad=True)
    found = ours.least_squares(
        lambda x, y, weight: weight * (M @ x - y), [0.0, 0.0], args=(y,), kwargs={"weight": 2.0}
    )
    rows = [tg.grad(found.x[k], y, retain_graph=True)[0].numpy() for k in range(2)]
    np.testing.assert_allclose(rows, np.linalg.pinv(M), rtol=1e-9)
    (g,) = tg.grad(found.cost, y)  # the residual is orthogonal to M
    np.testing.assert_allclose(g.numpy(), -2 * found.fun.detach().numpy(), rtol=1e-9, atol=1e-9)


def test_curve_fit_is_scipys_with_derivatives_by_hand():
    def f(t, a, b):
        return a * np.exp(-b * t)

    def jac(t, a, b):
        return np.stack([np.exp(-b * t), -a * t * np.exp(-b * t)], 1)

    sigma = 0.1 + T
    cov = np.diag(sigma) + 0.01
    for given in (
        {},
        {"sigma": sigma},
        {"sigma": cov, "absolute_sigma": True},
        {"bounds": (0, 5)},
        {"method": "dogbox"},
        {"sigma": sigma[:1]},
    ):
        found = ours.curve_fit(f, T, Y, **given)
        expected = theirs.curve_fit(f, T, Y, jac=jac, **given)
        for x, y in zip(found, expected, strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-7)
    seen = []
    ours.curve_fit(
        lambda t, a, b: seen.append(type(a)) or f(t, a, b), T, Y, [1.0, 1.0], jac="2-point", method="trf"
    )
    assert tg.Tensor not in seen
    assert len(ours.curve_fit(f, T, Y, full_output=True)) == 5


@pytest.mark.full
def test_curve_fit_of_a_compiled_function():
    @tg.njit
    def f(t, a, b):
        return a * np.exp(-b * t)

    found, _ = ours.curve_fit(f, T, 3 * np.exp(-2 * T), [1.0, 1.0])
    np.testing.assert_allclose(found, [3, 2], rtol=1e-9)


# ---------------------------------------------------------------- linear least squares

TALL = np.cos(np.arange(24.0).reshape(6, 4) ** 2)
RIGHT = np.array([1.0, -0.5, 0.3, 2.0, 0.1, -1.0])
LOW, HIGH = np.array([-0.5, -0.2, -0.1, -0.3]), np.array([0.3, 0.2, 0.4, 0.1])


def test_the_derivative_of_a_non_negative_solution():
    x, rnorm = theirs.nnls(TALL, RIGHT)
    free = np.flatnonzero(x)
    assert 0 < free.size < x.size
    A, b = tg.tensor(TALL, requires_grad=True), tg.tensor(RIGHT, requires_grad=True)
    found, norm = ours.nnls(A, b)
    assert np.array_equal(found.detach(), x) and norm.item() == pytest.approx(rnorm, rel=1e-14)
    expected = np.zeros((4, 6))
    expected[free] = np.linalg.pinv(TALL[:, free])
    np.testing.assert_allclose(tg.func.jacrev(lambda b: ours.nnls(TALL, b)[0])(RIGHT), expected, atol=1e-14)
    assert tg.autograd.gradgradcheck(lambda A, b: np.sum(ours.nnls(A, b)[0] ** 3), (A, b))
    np.testing.assert_array_equal(ours.nnls(A.detach(), RIGHT)[0], x)


@pytest.mark.parametrize("kind", ["array", "sparse", "of tensors"])
def test_the_derivative_of_a_linear_solution_between_bounds(kind):
    """As of the free elements by the normal equations, the others at their bounds."""
    x = theirs.lsq_linear(TALL, RIGHT, (LOW, HIGH)).x
    places = [np.isclose(x, side, atol=1e-9) for side in (LOW, HIGH)]
    assert all(map(np.any, places)) and not (places[0] | places[1]).all()

    def direct(A, b, low, high):
        fixed = places[0] * low + places[1] * high
        free = np.flatnonzero(~(places[0] | places[1]))
        part = A[:, free]
        x = fixed + np.eye(4)[:, free] @ np.linalg.solve(part.T @ part, part.T @ (b - A @ fixed))
        return np.sum(np.sin(x)) + np.sum((A @ x - b) ** 2) / 2 + (A @ x - b)[1]

    def by_solver(A, b, low, high):
        of = sparse.csr_array(TALL)
        if kind == "sparse":
            A = of
        elif kind == "of tensors":
            A = ts.sparse.csr_array((np.reshape(A, -1), of.indices, of.indptr), shape=of.shape)
        found = ours.lsq_linear(A, b, theirs.Bounds(low, high) if kind == "sparse" else (low, high))
        return np.sum(np.sin(found.x)) + found.cost + found.fun[1]

    of = (1, 2, 3) if kind == "sparse" else (0, 1, 2, 3)
    found, expected = (tg.func.grad(f, of)(TALL, RIGHT, LOW, HIGH) for f in (by_solver, direct))
    for found, expected in zip(found, expected, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-7, atol=1e-9)


def test_linear_solutions_without_a_derivative_are_refused():
    b = tg.tensor(RIGHT, requires_grad=True)
    with pytest.raises(GradientError, match="LinearOperator"):
        ours.lsq_linear(aslinearoperator(TALL), b)
    with pytest.raises(GradientError, match="no strict complementarity"):
        ours.nnls(np.eye(2), tg.tensor([1.0, 0.0], requires_grad=True))
    with pytest.raises(GradientError, match="nnls"):
        tg.grad(np.sum(ours.nnls(np.ones((6, 2)), b)[0]), b)


# ---------------------------------------------------------------- roots


def crossing(x, a):
    return [x[0] ** 2 + x[1] ** 2 - a**2, x[0] - x[1]]


@pytest.mark.parametrize("method", ["hybr", "lm", "broyden1", "df-sane"])
def test_the_derivative_of_a_root(method):
    a = tg.tensor(2.0, requires_grad=True)
    found = ours.root(crossing, [1.0, 1.5], args=a, method=method, tol=1e-12)
    (g,) = tg.grad(found.x[1], a)
    assert g.item() == pytest.approx(np.sqrt(0.5), rel=1e-8)
    assert type(ours.root(crossing, [1.0, 1.5], args=(2.0,), method=method).x) is np.ndarray


def test_root_takes_the_jacobian():
    call, points = counted(lambda x: np.stack(crossing(x, 2.0)))
    found = ours.root(call, [1.0, 1.5])
    expected = theirs.root(
        lambda x: crossing(x, 2.0), [1.0, 1.5], jac=lambda x: [[2 * x[0], 2 * x[1]], [1, -1]]
    )
    np.testing.assert_allclose(found.x, expected.x, rtol=1e-12)
    assert (found.nfev, found.njev) == (expected.nfev, expected.njev) and once(points)
    for jac in (lambda x: [[2 * x[0], 2 * x[1]], [1, -1]], False):
        call, points = counted(lambda x: crossing(x, 2.0))
        assert ours.root(call, [1.0, 1.5], jac=jac).success and {kind for _, kind in points} == {np.ndarray}
    pair = ours.root(lambda x: (x**2 - 2, np.diag(2 * x)), [1.0], jac=True)
    assert pair.x[0] == pytest.approx(np.sqrt(2))
    np.testing.assert_allclose(
        ours.root(crossing, [1.0, 1.5], args=(2.0,), options={"col_deriv": 1}).x, np.sqrt(2)
    )


def test_fsolve():
    found, info, status, _ = ours.fsolve(crossing, [1.0, 1.5], args=(2.0,), full_output=True, col_deriv=1)
    np.testing.assert_allclose(found, np.sqrt(2), rtol=1e-12)
    assert info["njev"] > 0 and status == 1
    a = tg.tensor(2.0, requires_grad=True)
    x, info, _, _ = ours.fsolve(crossing, [1.0, 1.5], args=a, full_output=True)
    assert tg.grad(x[0], a)[0].item() == pytest.approx(np.sqrt(0.5)) and info["nfev"] > 0


def square(x, a):
    return x**2 - a


SQUARE_ROOTS = {
    "newton": lambda a: ours.newton(square, 1.0, args=(a,)),
    "secant": lambda a: ours.newton(square, 1.0, x1=2.0, args=(a,)),
    "brentq": lambda a: ours.brentq(square, 0.0, 9.0, args=(a,)),
    "bisect": lambda a: ours.bisect(square, 0.0, 9.0, args=(a,)),
    "ridder": lambda a: ours.ridder(square, 0.0, 9.0, (a,)),
    "brenth": lambda a: ours.brenth(square, 0.0, 9.0, (a,)),
    "toms748": lambda a: ours.toms748(square, 0.0, 9.0, (a,)),
    "root_scalar": lambda a: ours.root_scalar(square, a, x0=1.0).root,
    "halley": lambda a: ours.root_scalar(square, (a,), "halley", x0=1.0).root,
    "bracket": lambda a: ours.root_scalar(square, (a,), bracket=[0.0, 9.0]).root,
    "full output": lambda a: ours.brentq(square, 0.0, 9.0, args=(a,), full_output=True)[0],
    "newton's full output": lambda a: ours.newton(square, 1.0, args=(a,), full_output=True)[1].root,
    "minimum": lambda a: ours.minimize_scalar(lambda x, a: (x - a**0.5) ** 2, args=(a,)).x,
    "fixed point": lambda a: ours.fixed_point(lambda x, a: (x + a / x) / 2, 1.0, args=(a,)),
}


@pytest.mark.parametrize("name", SQUARE_ROOTS)
def test_the_derivative_of_a_square_root(name):
    f = SQUARE_ROOTS[name]
    assert not isinstance(f(4.0), tg.Tensor) and f(4.0) == pytest.approx(2, rel=1e-6)
    a = tg.tensor(4.0, requires_grad=True)
    (g,) = tg.grad(f(a), a, create_graph=True)
    assert g.item() == pytest.approx(0.25, rel=1e-6)
    assert tg.grad(g, a)[0].item() == pytest.approx(-1 / 32, rel=1e-5)


def test_newton_takes_derivatives():
    slopes = []
    found = ours.root_scalar(square, (2.0,), x0=1.0, method="newton")
    expected = theirs.root_scalar(square, (2.0,), x0=1.0, method="newton", fprime=lambda x, a: 2 * x)
    assert (found.root, found.function_calls) == (expected.root, expected.function_calls)
    found = ours.root_scalar(square, (2.0,), x0=1.0, method="halley")
    expected = theirs.root_scalar(
        square, (2.0,), "halley", x0=1.0, fprime=lambda x, a: 2 * x, fprime2=lambda x, a: 2.0
    )
    assert (found.root, found.iterations) == (expected.root, expected.iterations)
    ours.newton(square, 1.0, lambda x, a: slopes.append(type(x)) or 2 * x, (2.0,))
    assert slopes and tg.Tensor not in slopes
    assert ours.newton(lambda z: z**2 + 1, 1 + 1j) == pytest.approx(1j)


def test_newton_of_arrays():
    a = tg.tensor([2.0, 4.0], requires_grad=True)
    x = ours.newton(square, np.ones(2), args=(a,))
    np.testing.assert_allclose(tg.grad(np.sum(x), a)[0].numpy(), 0.5 / np.sqrt([2, 4]), rtol=1e-9)
    found = ours.newton(square, np.ones(2), args=(a,), full_output=True)
    assert found.converged.all() and tg.grad(found.root[0], a)[0].numpy()[1] == 0


@pytest.mark.full
def test_roots_of_compiled_functions():
    f, bowl = numba.njit(lambda x, a: x * x - a), numba.njit(lambda x, a: (x * x - a) ** 2)
    for solve in (
        lambda a: ours.newton(f, 1.0, args=(a,)),
        lambda a: ours.root_scalar(f, (a,), "halley", x0=1.0).root,
        lambda a: ours.brentq(f, 0.0, 3.0, args=(a,)),
        lambda a: ours.minimize_scalar(bowl, (0.5, 1.0), args=(a,)).x,
    ):
        a = tg.tensor(4.0, requires_grad=True)
        assert solve(4.0) == pytest.approx(2) and tg.grad(solve(a), a)[0].item() == pytest.approx(0.25)


# ---------------------------------------------------------------- the call itself


def test_a_solver_leaves_nothing_behind():
    """What is recorded before and after a solver is on one graph; gradients of leaves stay as they are."""
    a = tg.tensor([1.0, 2.0], requires_grad=True)
    y = a * 2.0
    x = ours.minimize(lambda x: np.sum((x - 1.0) ** 2), np.zeros(2), method="trust-ncg").x
    assert tg.grad(np.sum(y * x), a)[0].tolist() == pytest.approx([2, 2], rel=1e-6) and a.grad is None


@pytest.mark.parametrize("mode", [tg.no_grad, tg.inference_mode])
def test_derivatives_are_found_where_nothing_is_recorded(mode):
    with mode():
        for method in ("BFGS", "trust-krylov", "trust-exact"):
            np.testing.assert_allclose(ours.minimize(rosen, START, method=method, tol=1e-8).x, 1, atol=1e-5)
        np.testing.assert_allclose(ours.least_squares(decay, [1.0, 1.0]).x, [3, 2], rtol=0.1)
        np.testing.assert_allclose(
            ours.least_squares(chain, np.ones(5) / 2, tr_solver="lsmr").x, 1, rtol=1e-5
        )
        np.testing.assert_allclose(ours.root(crossing, [1.0, 2.0], args=(2.0,)).x, np.sqrt(2))
