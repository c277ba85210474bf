"""Formulas of rules that are ops of their own: right to every order, and one step of a recorded sweep."""

import mpmath
import numpy as np
import pytest
from scipy import special

import tapegrad as tg
from tapegrad.kernels import abi
from tapegrad.ops.forward import ufunc_of
from tapegrad.ops.primitive import BY_OPCODE, OfFormula
from tapegrad.ops.special import elementary

EXACT = {
    np.tanh: mpmath.tanh,
    special.expit: lambda x: 1 / (1 + mpmath.exp(-x)),
    np.logaddexp: lambda x: mpmath.log(mpmath.exp(x) + mpmath.exp(mpmath.mpf("0.25"))),
}
FUNCTIONS = list(EXACT)
POINTS = [-30.0, -3.0, -0.5, -1e-3, 1e-3, 0.7, 2.0, 5.0, 17.0, 36.0]
FORMULAS = [op for op in BY_OPCODE if isinstance(op, OfFormula)]
assert elementary.logistic_density in FORMULAS


def value(function, x):
    return function(x, 0.25) if function is np.logaddexp else function(x)


def derivatives(function, x, order):
    """The derivatives of a function of each element, to an order."""
    y, found = value(function, x), []
    for _ in range(order):
        (y,) = tg.grad(np.sum(y), x, create_graph=True)
        found.append(np.asarray(y.detach()))
    return found


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-14), ("float32", 1e-5)])
@pytest.mark.parametrize("n", [10, 500, 600, 1030, 9000])  # either side of 4 KiB and 8 KiB, and many blocks
def test_orders_are_exact(function, dtype, tolerance, n):
    points = np.resize(np.array(POINTS, dtype), n)
    found = derivatives(function, tg.tensor(points, requires_grad=True), 4)
    with mpmath.workdps(40):
        for order, ours in enumerate(found, 1):
            assert ours.dtype == dtype
            exact = np.array([float(mpmath.diff(EXACT[function], float(x), order)) for x in points[:10]])
            assert np.array_equal(ours, np.resize(ours[:10], n))
            near_root = np.abs(exact) < 1e-2 * np.abs(exact).max()  # where large terms cancel, or the tail
            np.testing.assert_allclose(ours[:10][~near_root], exact[~near_root], rtol=10**order * tolerance)
            np.testing.assert_allclose(ours[:10], exact, atol=10**order * tolerance)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_ends_have_no_nan(function):
    x = tg.tensor(np.array([-np.inf, -1e4, -800.0, 800.0, 1e4, np.inf]), requires_grad=True)
    with np.errstate(all="raise", under="ignore"):
        found = derivatives(function, x, 3)
    assert not any(np.isnan(part[1:-1]).any() for part in found)
    assert np.all(found[0][:3] == 0)
    assert np.all(found[1] == 0) and np.all(found[2] == 0)


@pytest.mark.skipif(not abi.native(), reason="rules run in Python there")
@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("size", [(), 3, 5000])
def test_a_slope_is_one_record(function, size):
    """And a product with the cotangent; the slope's own rule is for a formula too."""
    x = tg.tensor(np.full(size, 0.3), requires_grad=True)
    y = value(function, x)
    (g,) = tg.grad(y, x, np.ones(size), create_graph=True)
    (_, (slope, _)) = g.grad_fn.next_functions
    names = {f"{''.join(w.capitalize() for w in op.name.split('_'))}Backward" for op in FORMULAS}
    assert slope.name() in names


@pytest.mark.parametrize("op", FORMULAS, ids=lambda op: op.name)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_kernels_compute_the_formula(op, dtype):
    ufunc = ufunc_of(op)
    if ufunc is None:
        pytest.skip("the C library has no flags of errors")
    random = np.random.default_rng(0)
    for n in (0, 1, 7, 1000):
        operands = [random.normal(size=(n, 2)).astype(dtype)[:, 0] * 10 for _ in range(op.arity)]
        with np.errstate(invalid="ignore"):  # of logarithms
            found, expected = ufunc(*operands), op.forward(*operands)
        assert found.dtype == dtype
        np.testing.assert_allclose(found, expected, rtol=8 * np.finfo(dtype).eps)


@tg.njit
def compiled(x):
    return np.tanh(x[0]) + special.expit(x[1]) + np.arctan(x[2]) + np.logaddexp(x[3], 0.0)


@pytest.mark.full
def test_compiled_code_has_their_rules_too():
    """Differentiated as they are written, tanh at 1e-20 has the second derivative 0."""
    x = np.array([1e-20, 1e-160, 1e80, 0.5])
    found = np.diag(tg.func.hessian(compiled)(x))
    s = 1 / (1 + np.exp(-0.5))
    np.testing.assert_allclose(found, [-2e-20, -1.25e-161, -2e-240, s * (1 - s)], rtol=1e-14)
