"""What Ipopt is told of a nonlinear program."""

import numpy as np
import pytest
from scipy import sparse
from scipy.optimize import Bounds, NonlinearConstraint, minimize

import tapegrad as tg
from tapegrad.errors import ShapeError


def cost(x):
    return x[0] * x[3] * (x[0] + x[1] + x[2]) + x[2]


def limits(x):
    return np.stack([x[0] * x[1] * x[2] * x[3], np.sum(x**2)])


X0 = np.array([1.0, 5.0, 5.0, 1.0])


def full(problem, x, lagrange, factor):
    """The Hessian from its lower triangle."""
    lower = sparse.coo_array(
        (problem.hessian(x, lagrange, factor), problem.hessianstructure()), (4, 4)
    ).toarray()
    return lower + np.tril(lower, -1).T


def test_derivatives_are_those_of_the_lagrangian():
    problem = tg.interop.IpoptProblem(cost, limits, x0=X0)
    x, lagrange = np.array([1.1, 4.0, 3.9, 1.5]), np.array([0.3, -2.0])
    assert (problem.n, problem.m) == (4, 2)
    assert problem.objective(x) == cost(x) and np.array_equal(problem.constraints(x), limits(x))
    np.testing.assert_allclose(problem.gradient(x), tg.func.grad(cost)(x), rtol=1e-15)
    jacobian = sparse.coo_array((problem.jacobian(x), problem.jacobianstructure()), (2, 4)).toarray()
    np.testing.assert_allclose(jacobian, tg.func.jacobian(limits)(x), rtol=1e-15)
    for factor in (0.0, 1.5):
        exact = tg.func.hessian(lambda x: factor * cost(x) + lagrange @ limits(x))(x)
        np.testing.assert_allclose(full(problem, x, lagrange, factor), exact, rtol=1e-14, atol=1e-14)


def test_without_constraints():
    problem = tg.interop.IpoptProblem(lambda x: np.sum(x**4), x0=np.ones(3))
    assert problem.m == 0 and problem.constraints(np.ones(3)).size == problem.jacobian(np.ones(3)).size == 0
    assert problem.jacobianstructure()[0].size == 0
    assert problem.hessianstructure()[0].tolist() == [0, 1, 2]  # a diagonal
    assert problem.hessian(np.array([1.0, 2.0, 3.0]), np.zeros(0), 2.0).tolist() == [24.0, 96.0, 216.0]
    with pytest.raises(ShapeError, match="vector"):
        tg.interop.IpoptProblem(np.sum, x0=np.ones((2, 2)))


def test_a_solver_that_is_told_the_same_finds_the_solution():
    """Problem 71 of Hock and Schittkowski, as Ipopt's own documentation has it."""
    problem = tg.interop.IpoptProblem(cost, limits, x0=X0)
    constraint = NonlinearConstraint(
        problem.constraints, [25.0, 40.0], [np.inf, 40.0],
        jac=lambda x: sparse.coo_array((problem.jacobian(x), problem.jacobianstructure()), (2, 4)).toarray(),
        hess=lambda x, v: full(problem, x, v, 0.0),
    )  # fmt: skip
    found = minimize(
        problem.objective, X0, jac=problem.gradient, hess=lambda x: full(problem, x, np.zeros(2), 1.0),
        method="trust-constr", bounds=Bounds(1.0, 5.0), constraints=constraint, tol=1e-9,
    )  # fmt: skip
    np.testing.assert_allclose(found.x, [1.0, 4.74299964, 3.82114998, 1.37940829], rtol=1e-5)


@pytest.mark.full
def test_cyipopt():
    cyipopt = pytest.importorskip("cyipopt")
    problem = tg.interop.IpoptProblem(cost, limits, x0=X0)
    solver = cyipopt.Problem(
        4, 2, problem, lb=np.ones(4), ub=np.full(4, 5.0), cl=[25.0, 40.0], cu=[2e19, 40.0]
    )
    solver.add_option("print_level", 0)
    np.testing.assert_allclose(solver.solve(X0)[0], [1.0, 4.74299964, 3.82114998, 1.37940829], rtol=1e-6)
