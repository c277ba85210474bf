"""Derivatives of solutions under bounds and constraints: by differences of SciPy's, and in closed form."""

import numpy as np
import pytest
import scipy.optimize as theirs

import tapegrad as tg
import tapegrad.scipy.optimize as ours
from tapegrad.autograd import gradcheck, gradgradcheck
from tapegrad.errors import GradientError
from tests.tensors import leaf
from tests.tiers import every

# SLSQP of older versions tells when it corrects a step by rounding
pytestmark = pytest.mark.filterwarnings("ignore:Values in x were outside bounds:RuntimeWarning")
START = np.array([0.3, -0.2, 0.4])
M = np.array([[3.0, 1.0, 0.5], [1.0, 4.0, -1.0], [0.5, -1.0, 5.0]])


def bowl(x, a):
    """Least where M x = a, but for a term of the fourth order."""
    return 0.5 * (x @ M @ x) - np.sum(a * x) + 0.1 * np.sum(x**4)


def disc(x, r=1.0):
    return r**2 - x[0] ** 2 - x[1] ** 2


def difference(solve, a, h=1e-4):
    """Central differences of a solution by what it depends on."""
    a = np.asarray(a, float)
    return np.stack([(solve(a + h * e) - solve(a - h * e)) / (2 * h) for e in np.eye(a.size)], axis=-1)


def rows(x, *params):
    found = [tg.grad(x[k], params, retain_graph=True, materialize_grads=True) for k in range(len(x))]
    return [np.stack([row[k].numpy() for row in found]) for k in range(len(params))]


BOUNDS = [(-0.5, 0.7), (None, 0.1), (0.2, None)]
LINE = theirs.LinearConstraint(np.array([[1.0, 1.0, 1.0]]), 0.5, 0.5)
HALF = theirs.LinearConstraint(np.array([[1.0, 0.0, 2.0], [0.0, 1.0, 0.0]]), [-np.inf, -9.0], [1.0, 9.0])
BALL = theirs.NonlinearConstraint(lambda x: [x[0] * x[1], np.sum(x**2)], [-9.0, -np.inf], [9.0, 0.6])
PROBLEMS = {
    "bounds": ({"bounds": BOUNDS}, ("L-BFGS-B", "SLSQP", "TNC", "trust-constr")),
    "Bounds": ({"bounds": theirs.Bounds([-0.5, -np.inf, 0.2], [0.7, 0.1, np.inf])}, ("L-BFGS-B",)),
    "equation": ({"constraints": LINE}, ("SLSQP", "trust-constr")),
    "linear": ({"constraints": [HALF]}, ("SLSQP", "trust-constr")),
    "nonlinear": ({"constraints": BALL}, ("SLSQP", "trust-constr")),
    "dict": ({"constraints": {"type": "ineq", "fun": disc, "args": (0.5,)}}, ("SLSQP",)),
    "two": ({"constraints": [LINE, {"type": "ineq", "fun": disc, "args": (0.5,)}]}, ("SLSQP",)),
    "both": ({"constraints": {"type": "ineq", "fun": disc, "args": (0.5,)}, "bounds": BOUNDS}, ("SLSQP",)),
    "none is active": (
        {"bounds": [(-9, 9)] * 3, "constraints": {"type": "ineq", "fun": disc, "args": (9.0,)}}, ("SLSQP",)),
}  # fmt: skip
ALL = [(name, method) for name, (_, methods) in PROBLEMS.items() for method in methods]
TIGHT = {"SLSQP": {"ftol": 1e-15}, "L-BFGS-B": {"ftol": 1e-16, "gtol": 1e-11}, "TNC": {"gtol": 1e-10}}
TIGHT["trust-constr"] = {"gtol": 1e-10, "xtol": 1e-14, "barrier_tol": 1e-12, "maxiter": 3000}
AT = np.array([2.9, 2.5, 1.9])


@pytest.mark.parametrize(("name", "method"), every(ALL, 5))
def test_solutions(name, method):
    given = {**PROBLEMS[name][0], "method": method, "options": TIGHT[method]}
    exact = {**PROBLEMS[name][0], "method": "SLSQP", "options": {"ftol": 1e-16, "maxiter": 500}}
    a = leaf(AT)
    found = ours.minimize(bowl, START, args=(a,), **given)
    plain = ours.minimize(bowl, START, args=(AT,), **given)
    np.testing.assert_array_equal(found.x.detach().numpy(), plain.x)
    np.testing.assert_allclose(found.fun.item(), plain.fun, rtol=1e-12)
    wanted = difference(lambda a: ours.minimize(bowl, START, args=(a,), **exact).x, AT)
    near = {"rtol": 1e-3, "atol": 2e-4} if method == "trust-constr" else {"rtol": 1e-4, "atol": 2e-5}
    np.testing.assert_allclose(rows(found.x, a)[0], wanted, **near)
    slopes = difference(lambda a: np.array([ours.minimize(bowl, START, args=(a,), **exact).fun]), AT)[0]
    np.testing.assert_allclose(tg.grad(found.fun, a)[0].numpy(), slopes, **near)
    assert np.abs(wanted).max() > 0.01
    assert name == "none is active" or np.linalg.matrix_rank(wanted, 1e-3) < 3


def test_by_bounds_and_arguments_of_constraints():
    low, r = leaf(0.2), leaf(0.5)
    found = ours.minimize(
        bowl, START, args=(AT,), bounds=[(None, None), (None, None), (None, low)], tol=1e-14,
        constraints={"type": "ineq", "fun": disc, "args": (r,)}, method="SLSQP",
    )  # fmt: skip
    assert found.x.detach().numpy()[2] == pytest.approx(0.2, rel=1e-14)

    def solve(p):
        limit = {"type": "ineq", "fun": disc, "args": (p[1],)}
        given = {"bounds": [(None, None), (None, None), (None, p[0])], "constraints": limit}
        return ours.minimize(bowl, START, args=(AT,), tol=1e-14, method="SLSQP", **given).x

    wanted = difference(solve, [0.2, 0.5])
    np.testing.assert_allclose(np.stack(rows(found.x, low, r), -1), wanted, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(np.hypot(*found.x.detach().numpy()[:2]), 0.5, rtol=1e-9)


@pytest.mark.full
def test_second_derivatives_and_forward_mode():
    def solve(a, r):
        limit = {"type": "ineq", "fun": disc, "args": (r,)}
        given = {"constraints": limit, "bounds": BOUNDS, "method": "SLSQP", "options": {"ftol": 1e-16}}
        return ours.minimize(bowl, START, args=(a,), **given).x

    inputs = [leaf(AT), leaf(0.5)]
    assert gradcheck(solve, inputs, check_forward_ad=True, eps=1e-4, atol=1e-5, rtol=1e-4)
    assert gradgradcheck(solve, inputs, eps=1e-4, atol=1e-4, rtol=1e-3)


@pytest.mark.full
def test_at_a_corner_nothing_moves_but_the_bounds():
    low, a = leaf([0.5, 0.6]), leaf([-1.0, -1.0])

    def f(x, a):
        return np.sum((x - a) ** 2)

    found = ours.minimize(f, [1.0, 1.0], args=(a,), bounds=[(b, 2.0) for b in low])
    by_a, by_low = rows(found.x, a, low)
    np.testing.assert_array_equal(by_a, 0.0)
    np.testing.assert_array_equal(by_low, np.eye(2))
    np.testing.assert_allclose(tg.grad(found.fun, [a, low])[1].numpy(), [3.0, 3.2])
    fixed = ours.minimize(f, [1.0, 1.0], args=(a,), bounds=[(0.5, 0.5), (-3, 2)])
    np.testing.assert_allclose(rows(fixed.x, a)[0], [[0, 0], [0, 1]], atol=1e-12)


@pytest.mark.full
def test_a_linear_program():
    """A vertex moves with its equations, whatever the curvature, which is 0."""
    r = leaf(1.0)
    found = ours.minimize(
        lambda x, r: -x[0] - 2 * x[1], [0.1, 0.1], args=(r,), method="SLSQP",
        constraints=[{"type": "ineq", "fun": lambda x, r: r - x[0] - x[1], "args": (r,)},
                     {"type": "ineq", "fun": lambda x: 0.5 - x[1] + 0.1 * x[0]}],
    )  # fmt: skip
    np.testing.assert_allclose(rows(found.x, r)[0], np.linalg.solve([[1, 1], [-0.1, 1]], [1, 0]), rtol=1e-9)


def test_where_there_is_no_derivative():
    a = leaf([0.0, 2.0])

    def f(x, a):
        return np.sum((x - a) ** 2)

    with pytest.raises(GradientError, match=r"at a bound with the multiplier 0.*strict complementarity"):
        ours.minimize(f, [1.0, 1.0], args=(a,), bounds=[(0.0, 5.0), (0.0, 5.0)])
    with pytest.raises(GradientError, match=r"at a constraint with the multiplier.*strict complementarity"):
        ours.minimize(
            f, [1.0, 1.0], args=(a,), constraints={"type": "ineq", "fun": lambda x: x[0]}, method="SLSQP"
        )
    twice = [{"type": "ineq", "fun": lambda x, k=k: k * (1 - x[0] - x[1])} for k in (1, 2)]
    found = ours.minimize(f, [0.5, 0.5], args=(a,), constraints=twice, method="SLSQP")
    with pytest.raises(GradientError, match="singular"):
        tg.grad(found.x[0], a)
    with pytest.raises(GradientError, match=r"of the gradient .* is left"):
        ours.minimize(f, [3.0, 1.0], args=(a,), bounds=[(-5, 5)] * 2, options={"maxiter": 0})
    b = leaf(1.0)
    found = ours.minimize(f, [1.0, 1.0], args=(a,), constraints={"type": "ineq", "fun": lambda x: x[0] - b})
    assert tg.grad(found.x[0], b)[0].item() == pytest.approx(1.0)


@pytest.mark.parametrize("off", [2e-3, 5e-4, 2e-6, 5e-7, 0.0])
def test_near_a_bound(off):
    """What does not hold it counts where it is at the bound, and nowhere else; what does holds it."""
    a = leaf(off)

    def f(x, a):
        return (x[0] - a) ** 2

    given = {"args": (a,), "bounds": [(0.0, 1.0)], "options": {"gtol": 1e-14}}
    if off < 1e-6:
        with pytest.raises(GradientError, match="strict complementarity"):
            ours.minimize(f, [0.5], **given)
    else:
        assert tg.grad(ours.minimize(f, [0.5], **given).x[0], a)[0].item() == 1.0
    for slope, moves in ((1e-6, None), (1e-3, 0.0)):  # a multiplier
        held = {**given, "args": (leaf(-slope / 2),)}
        if moves is None:
            with pytest.raises(GradientError, match="strict complementarity"):
                ours.minimize(f, [0.5], **held)
        else:
            assert tg.grad(ours.minimize(f, [0.5], **held).x[0], held["args"][0])[0].item() == moves


@pytest.mark.full
def test_many_unknowns_between_bounds():
    """No matrix of them is made; where a bound holds, nothing moves."""
    n = 20_000
    a = leaf(np.sin(np.arange(n)))
    x = ours.minimize(
        lambda x, a: np.sum((x - a) ** 2 + 0.1 * (x - a) ** 4), np.zeros(n), args=(a,), method="L-BFGS-B",
        bounds=theirs.Bounds(-0.5, 0.5), options={"gtol": 1e-10},
    ).x  # fmt: skip
    inner = np.abs(np.sin(np.arange(n))) < 0.5
    np.testing.assert_allclose(tg.grad(x.sum(), a)[0].numpy(), inner, atol=1e-8)


# ---------------------------------------------------------------- other solvers


def test_a_minimum_between_two_numbers():
    a, top = leaf(2.0), leaf(1.5)
    given = {"args": (a,), "options": {"xatol": 1e-9}}
    inner = ours.minimize_scalar(lambda x, a: np.cosh(x - a), bounds=(0.0, 5.0), **given)
    np.testing.assert_allclose(tg.grad(inner.x, a)[0].item(), 1.0, rtol=1e-9)
    at_end = ours.minimize_scalar(lambda x, a: np.cosh(x - a), bounds=(0.0, top), **given)
    assert [g.item() for g in tg.grad(at_end.x, [a, top], retain_graph=True)] == [0.0, 1.0]
    np.testing.assert_allclose(tg.grad(at_end.fun, a)[0].item(), np.sinh(0.5), rtol=1e-6)


T = np.linspace(0.0, 1.0, 8)
Y = 3 * np.exp(-2 * T) + 0.05 * np.cos(20 * T)


@pytest.mark.parametrize("method", every(["trf", "dogbox"], 2))
def test_least_squares_under_bounds(method):
    def off(p, y):
        return p[0] * np.exp(-p[1] * T) + p[2] - y

    given = {"bounds": ([0.0, 0.0, 0.1], [9.0, 9.0, 9.0]), "method": method}
    given |= {"xtol": 1e-15, "ftol": 1e-15, "gtol": 1e-15}
    y = leaf(Y)
    found = ours.least_squares(off, [1.0, 1.0, 0.5], args=(y,), **given)
    wanted = difference(lambda y: ours.least_squares(off, [1.0, 1.0, 0.5], args=(y,), **given).x, Y)
    np.testing.assert_allclose(rows(found.x, y)[0], wanted, rtol=1e-4, atol=1e-5)
    assert np.abs(wanted[2]).max() < 1e-9 < np.abs(wanted[:2]).max()


# ---------------------------------------------------------------- fits

SIGMA = 0.1 + T
COV = np.diag(SIGMA) + 0.01
SOME = [0, 3, 9, 20, 63]  # of its elements


def decay(t, a, b):
    return a * np.exp(-b * t)


FITS = {
    "plain": {}, "sigma": {"sigma": SIGMA}, "cov": {"sigma": COV, "absolute_sigma": True},
    "number": {"sigma": 0.3, "absolute_sigma": True}, "trf": {"method": "trf"},
    "bounds": {"bounds": ([0.0, 0.0], [9.0, 1.5])}, "free": {"bounds": (0.0, 9.0)},
}  # fmt: skip


@pytest.mark.parametrize("name", every(FITS, 4))
def test_a_fit_by_its_data(name):
    """Parameters and covariances by xdata, ydata and sigma, by differences of SciPy's."""
    given, tight = {"p0": [2.0, 1.0], **FITS[name]}, {"ftol": 1e-14, "xtol": 1e-14, "gtol": 1e-14}
    if name == "bounds":
        given["p0"] = [2.0, 1.0]
    data = {"xdata": T, "ydata": Y, **({"sigma": given.pop("sigma")} if "sigma" in given else {})}
    leaves = {key: leaf(x) for key, x in data.items()}
    popt, pcov = ours.curve_fit(decay, **leaves, **given, **tight)
    own = theirs.curve_fit(decay, **data, **given, **tight)
    np.testing.assert_allclose(popt.detach().numpy(), own[0], rtol=1e-6)
    np.testing.assert_allclose(pcov.detach().numpy(), own[1], rtol=1e-5)
    for key, x in leaves.items():

        def fitted(part, key=key):
            moved = {**data, key: np.reshape(part, np.shape(data[key]))}
            if key == "sigma" and name == "cov":
                moved[key] = (moved[key] + moved[key].T) / 2
            p, c = ours.curve_fit(decay, **moved, **given, **tight)
            return np.array([*p, c[0, 0], c[0, 1]])

        start = np.ravel(data[key])
        some = [k for k in SOME if k < start.size] if start.size > len(T) else range(start.size)

        def moved(part, fitted=fitted, start=start, some=some):
            start = start.copy()
            start[list(some)] = part
            return fitted(start)

        wanted = difference(moved, start[list(some)])
        mine = rows(np.stack([popt[0], popt[1], pcov[0, 0], pcov[0, 1]]), x)[0].reshape(4, -1)[:, list(some)]
        np.testing.assert_allclose(mine, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.full
def test_second_derivatives_of_a_fit():
    y = leaf(Y)
    fit = lambda y: ours.curve_fit(decay, T, y, p0=[2.0, 1.0], ftol=1e-14, xtol=1e-14)[0]
    assert gradcheck(fit, [y], check_forward_ad=True, eps=1e-4, atol=1e-4)
    assert gradgradcheck(fit, [y], eps=1e-4, atol=1e-4)


@pytest.mark.full
def test_what_a_fit_returns_besides():
    y, start = leaf(Y), leaf([2.0, 1.0])
    found = ours.curve_fit(decay, T, y, p0=start, full_output=True)
    assert len(found) == 5 and isinstance(found[2]["fvec"], np.ndarray)
    assert tg.grad(found[0].sum(), start)[0].tolist() == [0.0, 0.0]
    holes = np.where(T < 0.2, np.nan, Y)
    with pytest.raises(GradientError, match="omit"):
        ours.curve_fit(decay, T, leaf(holes), p0=[2.0, 1.0], nan_policy="omit")
    with pytest.warns(theirs.OptimizeWarning):
        popt, pcov = ours.curve_fit(decay, T[:2], leaf(Y[:2]), p0=[2.0, 1.0])
    assert popt.requires_grad and np.isinf(pcov).all()
