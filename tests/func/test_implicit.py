"""Solutions of equations as functions of what is in them: against closed forms, other ways, differences."""

import gc
import weakref

import mpmath
import numpy as np
import pytest
import scipy.linalg
import scipy.optimize
import scipy.sparse
import scipy.sparse.linalg
from scipy.integrate import solve_ivp

import tapegrad as tg
from tapegrad.autograd import forward_ad as fw
from tapegrad.autograd.functional import hessian, jacobian
from tapegrad.errors import BorderError, GradientError, ShapeError
from tapegrad.func import custom_jvp, fixed_point, linear_solve, minimizer, root
from tapegrad.tape.tape import close, current
from tests.func.modes import every, forward, reverse

STRATEGIES = pytest.mark.parametrize("strategy", ["reverse-mode", "forward-mode"])


def leaf(data, **kwargs):
    return tg.tensor(data, requires_grad=True, **kwargs)


def newton(f, slope, x):
    for _ in range(60):
        x = x - f(x) / slope(x)
    return x


def gmres(matvec, b):
    operator = scipy.sparse.linalg.LinearOperator((b.size, b.size), matvec)
    return scipy.sparse.linalg.gmres(operator, b, rtol=1e-14, atol=0.0)[0]


SOLVERS = pytest.mark.parametrize("linear_solver", [None, gmres], ids=["dense", "gmres"])


# ---------------------------------------------------------------- root


sqrt = root(lambda x, a: x * x - a, lambda a: newton(lambda x: x * x - a, lambda x: 2 * x, 1.0), tol=1e-12)
lambert = root(
    lambda x, a: x * np.exp(x) - a,
    lambda a: newton(lambda x: x * np.exp(x) - a, lambda x: (1 + x) * np.exp(x), 0.5),
)


@pytest.mark.parametrize("order", [0, 1, 2, 3, 4])
def test_every_derivative_of_a_root_by_every_sequence_of_modes(order):
    for function, exact in ((sqrt, mpmath.sqrt), (lambert, mpmath.lambertw)):
        wanted = float(mpmath.diff(exact, 2, order).real)
        for modes, found in every(function, order):
            assert found(leaf(2.0)).item() == pytest.approx(wanted, rel=1e-12), modes
            if "reverse" not in modes:
                x = found(tg.tensor(2.0))
                assert x.item() == pytest.approx(wanted, rel=1e-12) and not x.requires_grad


def test_kepler_by_brentq():
    def kepler(E, M, e):
        return E - e * np.sin(E) - M

    def solve(M, e):
        return scipy.optimize.brentq(kepler, M - e, M + e, args=(M, e), xtol=1e-15, rtol=1e-15)

    anomaly = root(kepler, solve, tol=1e-13)
    M, e = leaf(1.0), leaf(0.3)
    E = anomaly(M, e)
    by_m, by_e = tg.grad(E, [M, e])
    k = 1 / (1 - 0.3 * np.cos(E.item()))
    np.testing.assert_allclose([by_m.item(), by_e.item()], [k, k * np.sin(E.item())], rtol=1e-14)
    assert tg.gradcheck(anomaly, (M, e), check_forward_ad=True, order=2)
    assert tg.gradgradcheck(anomaly, (M, e), check_fwd_over_rev=True)


def system(x, p):
    """Two equations for two unknowns in a tree, of params in a tree."""
    return [x["u"] ** 2 + p["a"][0] * x["v"] - 3.0, x["u"] * x["v"] - p["b"]]


def solve_system(p):
    assert type(p["a"][0]) is np.float64 and p["name"] == "a text"
    p = {"a": p["a"], "b": p["b"]}
    x = scipy.optimize.root(lambda z: system({"u": z[0], "v": z[1]}, p), [1.0, 1.0], tol=1e-14).x
    return {"u": x[0], "v": x[1]}


@SOLVERS
@STRATEGIES
def test_trees(linear_solver, strategy):
    """By hand, F_x dx = -F_p dp."""
    solve = root(system, solve_system, linear_solver=linear_solver, tol=1e-10)

    def f(a, b):
        x = solve({"a": [a, 7], "b": b, "name": "a text"})
        return np.stack([x["u"], x["v"]])

    a, b = leaf(1.0), leaf(0.5)
    u, v = f(a, b).detach().numpy()
    by_x = np.array([[2 * u, 1.0], [v, u]])
    exact = -np.linalg.solve(by_x, np.array([[v, 0.0], [0.0, -1.0]]))
    for column, found in enumerate(jacobian(f, (a, b), strategy=strategy)):
        np.testing.assert_allclose(found, exact[:, column], rtol=1e-9)
    assert tg.gradgradcheck(f, (a, b), check_fwd_over_rev=True)


def test_an_equilibrium_by_solve_ivp():
    """What a differential equation comes to is the root of its right-hand side."""

    def rate(x, a):
        return a - x - x**3

    def equilibrium(a):
        solution = solve_ivp(
            lambda t, x: rate(x, a), (0, 60), np.zeros(3), method="LSODA", rtol=1e-11, atol=1e-13
        )
        return solution.y[:, -1]

    a = leaf([0.5, 1.0, 2.0])
    solve = root(rate, equilibrium, tol=1e-8)
    x = solve(a)
    value = x.detach().numpy()
    np.testing.assert_allclose(tg.grad(np.sum(x), a)[0], 1 / (1 + 3 * value**2), rtol=1e-9)
    second = -6 * value / (1 + 3 * value**2) ** 3
    np.testing.assert_allclose(reverse(reverse(solve))(a).detach(), second, rtol=1e-8)


def test_shooting():
    """y'' = -k y, y(0) = 0, y(1) = 1: the slope that an integrator inside the equation hits 1 with."""

    @custom_jvp
    def end(slope, k):
        solution = solve_ivp(lambda t, y: [y[1], -k * y[0]], (0, 1), [0.0, slope], rtol=1e-12, atol=1e-13)
        return solution.y[0, -1]

    @end.def_jvp
    def _(out, args, tangents):
        (slope, k), (ds, dk) = args, tangents
        w = np.sqrt(k)
        return ds * out / slope + dk * slope * (np.cos(w) - np.sin(w) / w) / (2 * k)

    def miss(slope, k):
        return end(slope, k) - 1.0

    shoot = root(miss, lambda k: scipy.optimize.brentq(miss, 0.1, 10.0, args=(k,), xtol=1e-14, rtol=1e-14))
    exact = lambda k: np.sqrt(k) / np.sin(np.sqrt(k))
    k = leaf(2.0)
    for order in (1, 2):
        for (modes, found), (_, wanted) in zip(every(shoot, order), every(exact, order), strict=True):
            assert found(k).item() == pytest.approx(wanted(k).item(), rel=1e-9), modes


def test_one_unknown_in_an_array_and_in_several_params():
    """One sweep does for the derivatives by x and by all params."""
    solve = root(lambda x, a, b: a * x - np.sum(b) + 0 * b[0], lambda a, b: np.full(1, np.sum(b) / a))
    a, b = leaf(2.0), leaf([1.0, 3.0])
    x = solve(a, b)
    assert x.shape == (1,)
    by_a, by_b = tg.grad(x, [a, b], np.full(1, 10.0))
    assert (by_a.item(), by_b.tolist()) == (-10.0, [5.0, 5.0])
    assert tg.gradgradcheck(solve, (a, b), check_fwd_over_rev=True)


def test_what_a_solution_does_not_depend_on():
    solve = root(
        lambda x, a, start: x * x - a, lambda a, start: newton(lambda x: x * x - a, lambda x: 2 * x, start)
    )
    a, start = leaf(2.0), leaf(1.0)
    assert tg.grad(solve(a, start), start)[0].item() == 0.0
    assert solve(4.0, 1.0) == 2.0 and type(solve(4.0, 1.0)) is float
    assert solve(tg.tensor(4), 1.0).item() == 2.0  # integers have no derivative
    assert root(lambda x, a: x - a, lambda a: 3)(leaf(3.0)).dtype == np.float64


def test_no_unknowns():
    a = leaf(2.0)
    x = root(lambda x, a: x * a, lambda a: np.zeros(0))(a)
    assert x.shape == (0,) and tg.grad(np.sum(x), a)[0].item() == 0.0


def test_single_precision_stays():
    a = leaf([2.0, 3.0], dtype=np.float32)
    solve = root(lambda x, a: x * x - a, np.sqrt)
    x = solve(a)
    (g,) = tg.grad(np.sum(x), a)
    assert x.dtype == g.dtype == forward(solve)(a).dtype == np.float32
    np.testing.assert_allclose(g, 0.5 / np.sqrt([2.0, 3.0]), rtol=1e-6)


@pytest.mark.parametrize("conjugate", [False, True])
def test_complex_unknowns(conjugate):
    """As pairs of real ones, so that equations need not be holomorphic."""

    def residual(z, a):
        return z * z - (np.conj(a) if conjugate else a) + 0.1 * (np.conj(z) if conjugate else 0.0)

    def solve(a):
        z = np.sqrt(a.conj() if conjugate else a)
        for _ in range(200):
            z = np.sqrt((a.conj() if conjugate else a) - 0.1 * (z.conj() if conjugate else 0.0))
        return z

    def steps(a):
        z = solve(a.detach().numpy())
        for _ in range(60):  # derivatives of the iterations come to those of the limit
            z = np.sqrt((np.conj(a) if conjugate else a) - 0.1 * (np.conj(z) if conjugate else 0.0))
        return z

    a = leaf([1.0 + 2.0j, 3.0 - 0.5j])
    weights = np.array([1.0 - 2.0j, 0.5j])
    f = lambda of: lambda a: np.sum((of(a) * weights).real + of(a).imag ** 2)
    solved = root(residual, solve, tol=1e-12)
    np.testing.assert_allclose(tg.grad(f(solved)(a), a)[0], tg.grad(f(steps)(a), a)[0], rtol=1e-10)
    with fw.dual_level():
        dual = fw.make_dual(a.detach(), tg.tensor(weights))
        np.testing.assert_allclose(*(fw.unpack_dual(of(dual)).tangent for of in (solved, steps)), rtol=1e-10)
    pair = [np.sum(np.abs(tg.grad(f(of)(a), a, create_graph=True)[0]) ** 2) for of in (solved, steps)]
    np.testing.assert_allclose(*(tg.grad(g, a)[0] for g in pair), rtol=1e-9)


def test_a_solver_may_differentiate():
    """Also where nothing is recorded outside, and within another one's solution."""

    def solve(a):
        x = leaf(1.0)
        for _ in range(8):
            (slope,) = tg.grad(x * x - a, x)
            x = leaf((x.detach() - (x.detach() ** 2 - a) / slope).item())
        return x.detach()

    own = root(lambda x, a: x * x - a, solve)
    a = leaf(2.0)
    assert tg.grad(own(a), a)[0].item() == pytest.approx(8**-0.5)
    with tg.no_grad():
        assert own(a).item() == pytest.approx(2**0.5)
    outside = root(lambda y: y * y - own(a), lambda: 2**0.25)  # the leaves of `solve` are no operands
    assert tg.grad(outside(), a)[0].item() == pytest.approx(0.25 * 2**-0.75)
    fourth = root(lambda y, a: y * y - own(a), lambda a: own(own(a)))
    for modes, found in every(fourth, 2):
        assert found(a).item() == pytest.approx(-0.1875 * 2**-1.75), modes


def checkpointed(a):
    return tg.autograd.checkpoint(cube, a)


def in_hooks(f):
    def called(a):
        with tg.autograd.graph.saved_tensors_hooks(lambda x: x.detach().numpy().copy(), tg.tensor):
            return f(a)

    return called


class InFunction(tg.autograd.Function):
    """The cube of a root, whose derivative is one of that root again."""

    @staticmethod
    def forward(ctx, a):
        ctx.save_for_backward(a)
        return sqrt(a) ** 3

    @staticmethod
    def backward(ctx, ct):
        return ct * 1.5 * sqrt(*ctx.saved_tensors)

    @staticmethod
    def jvp(ctx, t):
        return t * 1.5 * sqrt(*ctx.saved_tensors)


def cube(a):
    return sqrt(a) ** 3


@pytest.mark.parametrize(
    "surrounded",
    [
        in_hooks(cube),
        checkpointed,
        lambda a: tg.autograd.checkpoint_loop(lambda x: cube(x) ** (2 / 3), a, 3, slots=1) ** 1.5,
        InFunction.apply,
    ],
    ids=["hooks", "checkpoint", "checkpoint_loop", "Function"],
)
@pytest.mark.parametrize("order", [1, 2])
def test_within_what_keeps_or_computes_again(surrounded, order):
    exact = 1.5 * 2**0.5 if order == 1 else 0.75 * 2**-0.5
    for modes, found in every(surrounded, order):
        assert found(leaf(2.0)).item() == pytest.approx(exact, rel=1e-9), modes


# ---------------------------------------------------------------- fixed points and minimizers

RNG = np.random.default_rng(0)
W20, B20 = RNG.normal(size=(20, 20)) / 12, RNG.normal(size=20)


def cell(x, W, b):
    return np.tanh(W @ x + b)


def iterate(W, b):
    x = np.zeros(20)
    for _ in range(200):
        x = cell(x, W, b)
    return x


def unrolled(W, b):
    x = iterate(W.detach().numpy(), b.detach().numpy())
    for _ in range(60):
        x = cell(x, W, b)
    return x


@SOLVERS
def test_a_fixed_point_of_20_unknowns(linear_solver):
    """Against derivatives of the iterations themselves, which come to those of the limit."""
    solve = fixed_point(cell, iterate, linear_solver=linear_solver, tol=1e-12)
    W, b, w = leaf(W20), leaf(B20), np.arange(20.0)

    def loss(of, W, b):
        return np.sum(of(W, b) ** 2 * w)

    for found, exact in zip(
        tg.grad(loss(solve, W, b), [W, b]), tg.grad(loss(unrolled, W, b), [W, b]), strict=True
    ):
        np.testing.assert_allclose(found, exact, rtol=1e-9, atol=1e-12)
    found, exact = (forward(lambda b, of=of: of(W.detach(), b))(b.detach()) for of in (solve, unrolled))
    np.testing.assert_allclose(found, exact, rtol=1e-9, atol=1e-12)
    for outer in (forward, reverse):
        for inner in (forward, reverse):
            found, exact = (
                outer(inner(lambda b, of=of: loss(of, W.detach(), b)))(b).detach() for of in (solve, unrolled)
            )
            np.testing.assert_allclose(found, exact, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("vectorize", [False, True])
@STRATEGIES
def test_jacobians_through_a_fixed_point(vectorize, strategy):
    solve = fixed_point(cell, iterate)
    b = tg.tensor(B20)
    x = solve(W20, b).detach().numpy()
    slope = np.diag(1 - x * x)
    found = jacobian(lambda b: solve(W20, b), b, strategy=strategy, vectorize=vectorize)
    np.testing.assert_allclose(found, np.linalg.solve(np.eye(20) - slope @ W20, slope), rtol=1e-9, atol=1e-12)


A, Y = RNG.normal(size=(8, 3)), RNG.normal(size=8)
HELD, HELD_Y = RNG.normal(size=(6, 3)), RNG.normal(size=6)


def ridge(w, weight):
    return np.sum((A @ w - Y) ** 2) + np.sum(weight * w * w)


def closed(weight):
    return np.linalg.solve(A.T @ A + np.diag(weight * np.ones(3)), A.T @ Y)


def fit(weight):
    """A user's solver that iterates: conjugate gradients on the normal equations."""
    return scipy.sparse.linalg.cg(A.T @ A + np.diag(weight * np.ones(3)), A.T @ Y, rtol=1e-15, atol=0.0)[0]


def held_out(of):
    return lambda weight: np.sum((HELD @ of(weight) - HELD_Y) ** 2)


@SOLVERS
@pytest.mark.parametrize("order", [1, 2])
def test_hyperparameters_of_ridge_regression(linear_solver, order):
    """The bilevel problem's gradient and second derivative, by every sequence of modes."""
    solve = minimizer(ridge, fit, linear_solver=linear_solver, tol=1e-10)

    def exact(weight):
        return np.linalg.solve(A.T @ A + weight * np.eye(3), A.T @ Y)

    wanted = [f(leaf(0.7)).item() for _, f in every(held_out(exact), order)]
    np.testing.assert_allclose(wanted, wanted[0], rtol=1e-11)
    for modes, found in every(held_out(solve), order):
        assert found(leaf(0.7)).item() == pytest.approx(wanted[0], rel=1e-10), modes


@STRATEGIES
def test_a_hessian_of_several_hyperparameters(strategy):
    solve = minimizer(ridge, fit)
    weight = leaf([0.5, 0.7, 0.9])

    def exact(weight):
        return np.linalg.solve(A.T @ A + weight * np.eye(3), A.T @ Y)

    found = hessian(held_out(solve), weight, outer_jacobian_strategy=strategy)
    np.testing.assert_allclose(found, hessian(held_out(exact), weight), rtol=1e-9)
    assert tg.gradcheck(held_out(solve), weight, check_forward_ad=True)


def test_a_minimizer_in_a_tree_by_scipy():
    def objective(x, a):
        return np.sum((x["u"] - a) ** 2) + (x["v"] - np.sum(x["u"])) ** 2 + np.sum(x["u"] ** 4)

    def solve(a):
        pack = lambda z: {"u": z[:2], "v": z[2]}
        options = {"gtol": 1e-12, "xrtol": 0}
        z = scipy.optimize.minimize(
            lambda z: objective(pack(z), a), np.ones(3), method="BFGS", options=options
        ).x
        u = pack(z)["u"]
        for _ in range(20):  # BFGS stops before
            u = u - (2 * (u - a) + 4 * u**3) / (2 + 12 * u**2)
        return {"u": u, "v": np.sum(u)}

    a = leaf([1.0, 2.0])
    x = minimizer(objective, solve, tol=1e-12)(a)
    u = x["u"].detach().numpy()
    (g,) = tg.grad(x["v"] + 2 * x["u"][0], a)
    np.testing.assert_allclose(g, np.array([3.0, 1.0]) / (1 + 6 * u * u), rtol=1e-12)


# ---------------------------------------------------------------- linear systems

M = RNG.normal(size=(5, 5)) + 4 * np.eye(5)
V = RNG.normal(size=5)


def check_linear(found, exact, args):
    """Both modes, second derivatives too, of two functions of the same arguments."""
    for strategy in ("reverse-mode", "forward-mode"):
        pairs = zip(jacobian(found, args, strategy=strategy), jacobian(exact, args), strict=True)
        for a, b in pairs:
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)
        total = lambda f: lambda *args: np.sum(f(*args) ** 3)
        rows = (hessian(total(f), args, outer_jacobian_strategy=strategy) for f in (found, exact))
        for mine, theirs in zip(*rows, strict=True):
            for a, b in zip(mine, theirs, strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-11)


def test_a_matrix_with_a_direct_solver():
    seen = []

    def solver(matrix, b):
        seen.append(type(matrix))
        return scipy.linalg.lu_solve(scipy.linalg.lu_factor(matrix), b)

    check_linear(lambda A, b: linear_solve(A, b, solver=solver), np.linalg.solve, (leaf(M), leaf(V)))
    assert set(seen) == {np.ndarray}
    assert type(linear_solve(M, V, solver=solver)) is np.ndarray
    np.testing.assert_allclose(linear_solve(M, leaf(V)).detach(), np.linalg.solve(M, V))


def test_several_right_hand_sides():
    solver = lambda matrix, b: np.linalg.inv(matrix) @ b
    args = leaf(M), leaf(RNG.normal(size=(5, 2)))
    check_linear(lambda A, b: linear_solve(A, b, solver=solver), np.linalg.solve, args)


def test_complex_matrices():
    solver = lambda matrix, b: np.linalg.inv(matrix) @ b
    matrix, b = leaf(M + 1j * M.T), leaf(V + 0.5j)
    f = lambda solve: np.sum(solve(matrix, b).real * V) + np.sum(np.abs(solve(matrix, b)) ** 2)
    own = lambda A, b: linear_solve(A, b, solver=solver)
    by_map = lambda A, b: linear_solve(lambda v, A: A @ v, b, A)
    for solve in (own, by_map):
        for found, exact in zip(
            tg.grad(f(solve), [matrix, b]), tg.grad(f(np.linalg.solve), [matrix, b]), strict=True
        ):
            np.testing.assert_allclose(found, exact, rtol=1e-11)


def banded(v, low, diagonal, high):
    none = np.zeros(1)
    return diagonal * v + np.concatenate([high * v[1:], none]) + np.concatenate([none, low * v[:-1]])


def solve_banded(matvec, b, low, diagonal, high):
    bands = np.array([np.append(0.0, high), diagonal, np.append(low, 0.0)])
    return scipy.linalg.solve_banded((1, 1), bands, b)


def full(low, diagonal, high):
    return np.diag(diagonal) + np.diag(high, 1) + np.diag(low, -1)


def test_a_banded_solver_of_the_params():
    transpose = lambda matvec, b, low, diagonal, high: solve_banded(matvec, b, high, diagonal, low)
    args = leaf(V), leaf([0.5, -1.0, 0.3, 0.2]), leaf([3.0, 4.0, 5.0, 3.0, 4.0]), leaf([1.0, 0.5, -0.4, 0.7])
    check_linear(
        lambda b, *p: linear_solve(banded, b, *p, solver=solve_banded, transpose_solver=transpose),
        lambda b, *p: np.linalg.solve(full(*p), b),
        args,
    )
    check_linear(lambda b, *p: linear_solve(banded, b, *p), lambda b, *p: np.linalg.solve(full(*p), b), args)
    x = linear_solve(banded, args[0], *args[1:], solver=solve_banded)
    with pytest.raises(GradientError, match="transpose_solver"):
        tg.grad(np.sum(x), args[0])
    x = linear_solve(banded, args[0], *args[1:], solver=solve_banded, transpose_solver=solve_banded)
    with pytest.raises(GradientError, match=r"is no solution: the residual has norm"):
        tg.grad(np.sum(x), args[0])


def test_conjugate_gradients_of_a_symmetric_matrix():
    def cg(matvec, b, *params):
        operator = scipy.sparse.linalg.LinearOperator((5, 5), matvec)
        return scipy.sparse.linalg.cg(operator, b, rtol=1e-14, atol=0.0)[0]

    def product(v, factor, shift):
        return factor.T @ (factor @ v) + shift * v

    check_linear(
        lambda b, f, s: linear_solve(product, b, f, s, solver=cg, symmetric=True),
        lambda b, f, s: np.linalg.solve(f.T @ f + s * np.eye(5), b),
        (leaf(V), leaf(M), leaf(0.5)),
    )
    check_linear(
        lambda b, A: linear_solve(lambda v, A: A @ v, b, A, solver=gmres_of, transpose_solver=gmres_of),
        lambda b, A: np.linalg.solve(A, b),
        (leaf(V), leaf(M)),
    )


def gmres_of(matvec, b, *params):
    return gmres(matvec, b)


def test_a_sparse_matrix_is_constant():
    sparse, operator = scipy.sparse.csc_array(M), scipy.sparse.linalg.aslinearoperator(M)
    direct = lambda matrix, b: scipy.sparse.linalg.spsolve(scipy.sparse.csc_array(matrix), b)
    iterative = lambda matrix, b: scipy.sparse.linalg.gmres(matrix, b, rtol=1e-14, atol=0.0)[0]
    for matrix, solver in ((sparse, direct), (operator, iterative)):
        solve = lambda b: linear_solve(matrix, b, solver=solver)
        check_linear(solve, lambda b: np.linalg.solve(M, b), (leaf(V),))


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize("k", [2.0, 3.0], ids=["exactly", "rounded"])
def test_a_singular_derivative_is_refused(k):
    """Of equations of which one follows from the other."""
    matrix = np.array([[0.1, 0.3], [0.1 * k, 0.3 * k]])
    solve = root(lambda x, a: matrix @ x - a, lambda a: np.zeros(2))
    for derivative in (forward, reverse):
        with pytest.raises(GradientError, match=r"root of <lambda>.*2 x 2, is singular at the solution"):
            derivative(solve)(leaf([0.3, 0.1]))
    double = root(lambda x, a: (x - a) ** 2, lambda a: a)
    for derivative in (forward, reverse):
        with pytest.raises(GradientError, match="1 x 1, is singular"):
            derivative(double)(leaf(1.0))
    none = root(lambda x, a: a - 1.0, lambda a: a)
    with pytest.raises(GradientError, match="1 x 1, is singular"):
        reverse(none)(leaf(1.0))


def test_units_do_not_make_a_derivative_singular():
    scale, unit = np.array([1e-20, 1.0, 1e150]), np.array([1e-12, 1.0, 1e30])
    solve = root(
        lambda x, a: scale * (M[:3, :3] @ (unit * x) - a), lambda a: np.linalg.solve(M[:3, :3], a) / unit
    )
    a = leaf(V[:3])
    exact = np.linalg.inv(M[:3, :3]) / unit[:, None]
    for strategy in ("reverse-mode", "forward-mode"):
        np.testing.assert_allclose(jacobian(solve, a, strategy=strategy), exact, rtol=1e-10)


def test_growth_does_not_make_a_derivative_singular():
    """Steps of an unstable recurrence as one system: its inverse has 2**79, to the last digit."""
    n = 80
    follow = np.eye(n) - 2 * np.eye(n, k=-1)
    solve = root(lambda x, a: follow @ x - a * (np.arange(n) == 0), lambda a: a * 2.0 ** np.arange(n))
    for derivative in (forward, reverse):
        assert derivative(lambda a: solve(a)[-1])(leaf(3.0)).item() == 2.0**79


def test_a_number_of_equations_that_does_not_fit():
    a = leaf([1.0, 2.0])
    with pytest.raises(ShapeError, match=r"as many equations .* \(2, 2\) float64 for x of \(2,\) float64"):
        root(lambda x, a: np.outer(x, a), lambda a: a)(a)
    with pytest.raises(ShapeError, match="as many equations"):
        root(lambda x, a: x * (1 + 1j), lambda a: a)(a)
    with pytest.raises(ShapeError, match=r"fixed_point .* returned \(1,\) float64 for x of \(2,\)"):
        fixed_point(lambda x, a: a[:1], lambda a: a)(a)
    with pytest.raises(ShapeError, match="one real number"):
        minimizer(lambda x, a: x * a, lambda a: a)(a)
    with pytest.raises(TypeError, match="the solver returned str"):
        root(lambda x, a: a, lambda a: "text")(a)
    with pytest.raises(TypeError, match="second argument is a function"):
        root(lambda x, a: a, 3.0)


def test_what_is_no_solution():
    for make in (root, fixed_point):
        solve = make(lambda x, a: x * x - a, lambda a: np.array([1.0, 1.0]), tol=1e-6)
        with pytest.raises(GradientError, match=r"largest residual is \d\.?\d*, and tol is 1e-06"):
            solve(leaf([2.0, 3.0]))
    with pytest.raises(GradientError, match="largest residual is 2,"):
        minimizer(lambda x, a: (x - a) ** 2, lambda a: a + 1.0, tol=1e-6)(leaf(2.0))
    with pytest.raises(GradientError, match="largest residual is nan"):
        root(lambda x, a: x - a, lambda a: np.nan, tol=1.0)(2.0)
    solve = root(lambda x, a: M @ x - a, lambda a: np.linalg.solve(M, a), linear_solver=lambda matvec, b: b)
    for derivative in (forward, reverse):
        with pytest.raises(GradientError, match="what the linear solver returned is no solution"):
            derivative(solve)(leaf(V))
    with pytest.raises(ShapeError, match="returned tuple for a right-hand side"):
        linear_solve(M, leaf(V), solver=lambda matrix, b: (b, 0))
    with pytest.raises(ShapeError, match=r"returned ndarray \(4,\)"):
        linear_solve(M, leaf(V), solver=lambda matrix, b: b[1:])
    with pytest.raises(ShapeError, match=r"product with a vector .* has shape \(5, 5\)"):
        linear_solve(lambda v: M * v, leaf(V), solver=lambda matvec, b: b)
    with pytest.raises(TypeError, match="a matrix has no params"):
        linear_solve(M, V, 3.0)


@pytest.mark.parametrize("arg", [2.0, tg.tensor(2.0, requires_grad=True)], ids=["plain", "leaf"])
def test_tensors_from_outside_are_refused(arg):
    """In a solver, or where a solver gets what is linear; none is dropped."""
    c = leaf(3.0)
    plain = c.item()
    for solve in (
        root(lambda x, a: plain * x - a, lambda a: a / c),
        root(lambda x, a: c * x - a, lambda a: a / plain, linear_solver=gmres),
        lambda a: linear_solve(lambda v: c * v, a, solver=lambda matvec, b: b / plain),
        lambda a: linear_solve(lambda v: plain * v, a, solver=lambda matvec, b: b / c),
    ):
        with pytest.raises(GradientError, match="pass Tensors that it uses from outside as arguments"):
            solve(arg)
    with pytest.raises(BorderError, match="pass Tensors that it uses from outside as arguments"):
        root(lambda x, a: plain * x - a, lambda a: a / float(c))(arg)
    with fw.dual_level():
        d = fw.make_dual(tg.tensor(3.0), tg.tensor(1.0))
        with tg.no_grad(), pytest.raises(GradientError, match="carries a tangent"):
            root(lambda x, a: d * x - a, lambda a: a / plain)(arg)
    with tg.no_grad():
        assert float(root(lambda x, a: c * x - a, lambda a: a / plain)(arg)) == pytest.approx(2 / 3)


KINDS = {
    "root": (root, lambda x, a, c: c * x**3 - a * np.sin(c)),
    "fixed point": (fixed_point, lambda x, a, c: x - (c * x**3 - a * np.sin(c)) / 9),
    "minimizer": (minimizer, lambda x, a, c: np.sum(c * x**4 / 4 - a * np.sin(c) * x)),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(), (2,)], ids=str)
def test_tensors_from_outside_have_the_derivatives_of_arguments(kind, shape):
    """To order 3; a Tensor and what is computed of it, of which each has its part."""
    of, equation = KINDS[kind]

    def derivatives(outside):
        a, c = leaf(np.full(shape, 2.0)), leaf(np.full(shape, 0.7))
        z = c * a + 1
        solve = lambda *_: np.cbrt(2.0 * np.sin(np.full(shape, 2.4)) / 2.4)[()]
        if outside:
            x = of(lambda x, a: equation(x, a, z) + 0 * np.sum(c), solve)(a)
        else:
            x = of(equation, solve)(a, z)
        found = [x]
        for _ in range(3):
            found += tg.grad(np.sum(found[-1]), [a, c], create_graph=True)
        return [y.detach().numpy() for y in found]

    for one, other in zip(derivatives(True), derivatives(False), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("a", [0.0, 2.0])
def test_equations_that_are_others_by_now_have_no_derivative(kind, a):
    """They were differentiated as they are in the last turn of a loop, in silence; with 0 = 0 too."""
    of, equation = KINDS[kind]
    a, one = leaf(a), leaf(1.0)
    for other in (1.0, one):
        k = 1.0
        x = of(lambda x, a: equation(x + 1, a * k * other, 1.0), lambda a: np.cbrt(a * np.sin(1.0)) - 1)(a)
        k = 2.0
        with pytest.raises(GradientError, match=r"others than when they were solved.*lambda x, k=k"):
            tg.grad(x, a)


def test_a_linear_map_that_is_another_by_now_has_no_derivative():
    """By the matrix or its derivative alone, in both modes."""
    for first in (lambda v, a, k: a * v + k * v, lambda v, a, k: v + k * a * v):
        k, a, b = 1.0, leaf(0.0 if first(1.0, 0.0, 1.0) == 1 else 2.0), leaf(np.ones(2))
        solve = lambda a, b: linear_solve(
            lambda v, a: first(v, a, k), b, a, solver=lambda apply, b, a: b / first(1.0, a, k), symmetric=True
        )
        x = solve(a, b)
        (g,) = tg.grad(np.sum(x), a, retain_graph=True)
        assert g.item() == pytest.approx(-2 if a.item() == 0 else -2 / 9)
        k = 2.0
        for by in (a, b):
            with pytest.raises(GradientError, match=r"linear_solve.*others than when they were solved"):
                tg.grad(np.sum(x), by, retain_graph=True)


def test_a_tensor_from_outside_that_was_written_to():
    for write in (lambda z: z.__iadd__(1.0), lambda z: None):
        z = leaf(2.0) * 2
        x = root(lambda x: x - z**2, lambda: 16.0)()
        write(z)
        if z.item() == 4:
            assert tg.grad(x, z)[0].item() == 8
        else:
            with pytest.raises(GradientError, match="others than when they were solved"):
                tg.grad(x, z)


def test_a_linear_map_with_a_matrix_may_use_what_it_likes():
    c = leaf(4.0)
    x = linear_solve(lambda v: c * v, np.ones(2))
    assert tg.grad(np.sum(x), c)[0].item() == -0.125
    assert type(linear_solve(lambda v: 4.0 * v, np.ones(2))) is np.ndarray


def test_exceptions_pass_unchanged():
    class Mine(Exception):
        pass

    error = Mine("text")

    def fail(*args):
        raise error

    a = leaf(2.0)
    for solve in (root(lambda x, a: x - a, fail), root(fail, lambda a: a), minimizer(fail, lambda a: a)):
        with pytest.raises(Mine) as caught:
            solve(a)
        assert caught.value is error
    x = root(lambda x, a: x - a, lambda a: np.full(2, a), linear_solver=fail)(a)
    with pytest.raises(Mine) as caught:
        tg.grad(np.sum(x), a)
    assert caught.value is error
    assert tg.is_grad_enabled() and tg.grad(a * a, a)[0].item() == 4.0


@SOLVERS
def test_nothing_outlives_the_results(linear_solver):
    """Without a collection of cycles, as there are none."""
    W, b = leaf(W20), leaf(B20)
    solve = fixed_point(cell, iterate, linear_solver=linear_solver)
    gc.collect()
    gc.disable()
    try:
        x = solve(W, b)
        kept = weakref.ref(x._tape)
        tg.grad(np.sum(x * x), [W, b])
        close(current())
        assert kept() is not None
        del x
        assert kept() is None
    finally:
        gc.enable()


def test_writing_to_what_is_given_changes_no_solution():
    """Solvers may write to what they get, and equations too: these see what a solver was given."""

    def residual(x, a, scale):
        found = x * scale - a
        if isinstance(x, np.ndarray):
            x += 100.0
        return found

    def solve(a, scale):
        x = a / scale
        a += 1.0
        scale += 1.0
        return x

    a = leaf([2.0, 3.0])
    x = root(residual, solve, tol=1e-12)(a, np.full(2, 4.0))
    assert (x.tolist(), a.tolist(), tg.grad(np.sum(x), a)[0].tolist()) == (
        [0.5, 0.75],
        [2.0, 3.0],
        [0.25, 0.25],
    )


def test_linear_solvers_may_write_to_what_they_get():
    def solver(matrix, b):
        x = np.linalg.solve(matrix, b).tolist()
        matrix.fill(0.0)
        b.fill(0.0)
        return x

    def by_params(matvec, b, matrix):
        matrix += 1e-300  # it is this one that is written to
        return solver(matrix, b)

    matrix, b = leaf(M), leaf(V)
    exact = tg.grad(np.sum(np.linalg.solve(matrix, b)), [matrix, b])
    transpose = lambda vecmat, b, matrix: solver(matrix.T, b)
    for x in (
        linear_solve(matrix, b, solver=solver),
        linear_solve(lambda v, A: A @ v, b, matrix, solver=by_params, transpose_solver=transpose),
    ):
        assert isinstance(x, tg.Tensor)
        for g, wanted in zip(tg.grad(np.sum(x), [matrix, b]), exact, strict=True):
            np.testing.assert_allclose(g, wanted, rtol=1e-12)
    plain = M.copy()
    assert type(linear_solve(plain, V, solver=solver)) is np.ndarray
    np.testing.assert_array_equal(plain, M)
