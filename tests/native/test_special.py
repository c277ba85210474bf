"""Functions of `scipy.special` in compiled code: values and derivatives are those of Tensors."""

import ast
import re

import numpy as np
import pytest
import scipy.special
from scipy.special import erf, jv

import tapegrad as tg
from tapegrad.errors import UnsupportedOpError
from tapegrad.kernels.symbols import can_link
from tapegrad.ops.special import SPECIAL
from tests.ops.samples_special import FIXED, FIXED_OF, NAMES, of_interval, parameters

HERE = [
    n
    for n in NAMES
    if SPECIAL[n].functions[:1] == (getattr(scipy.special, n, None),) and not n.startswith("hankel")
]
PARTS = 12


def has_form(partial):
    """Whether all that a partial calls of SciPy's is there for compiled code."""
    text = "\n".join(map(ast.unparse, [*partial.statements, partial.expression]))
    return all(can_link(name) for name in re.findall(r"special\.(\w+)\(", text))


def expression(names):
    """A sum of calls, each of other elements of a vector x, and these elements."""
    terms, point = [], []
    for name in names:
        op, given = SPECIAL[name], []
        for k, parameter in enumerate(parameters(op)):
            if k in op.unknown or not has_form(op.partial(k)):
                given.append(repr({**FIXED, **FIXED_OF.get(name, {})}.get(parameter, 1.5)))
                continue
            low, high = of_interval(op, k)
            given.append(f"x[{len(point)}]")
            point.append(low + (high - low) * (0.3 + 0.1 * (len(point) % 5)))
        terms.append(f"special.{name}({', '.join(given)})")
    space = {"special": scipy.special}
    exec(f"def f(x):\n    return {' + '.join(terms)}", space)
    return space["f"], np.array(point)


def derivatives(f, point, order):
    """The gradient, and from there one along ones."""
    x = tg.tensor(point, requires_grad=True)
    y, found = f(x), []
    for k in range(order):
        (g,) = tg.grad(y, x, create_graph=k + 1 < order)
        found.append(g.detach().numpy())
        y = g.sum()
    return found


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.filterwarnings("ignore:non-integer arg")
def test_values_and_gradients_are_those_of_tensors(part):
    f, point = expression(HERE[part::PARTS])
    compiled = tg.njit(f)
    np.testing.assert_allclose(compiled(point), f(point), rtol=1e-14)
    np.testing.assert_allclose(derivatives(compiled, point, 1), derivatives(f, point, 1), rtol=1e-12)


def several(x):
    y = erf(x[0]) * jv(1.5, x[1] * x[0])
    for k in range(3):
        y = y + scipy.special.gammaln(x[k]) * scipy.special.log_ndtr(-x[k]) * scipy.special.eval_legendre(
            3, 0.3 * x[k]
        )
    return y


def test_branches_loops_and_orders():
    point = np.array([0.7, 1.3, 0.4])
    compiled = tg.njit(several)
    np.testing.assert_allclose(compiled(point), several(point), rtol=1e-14)
    for mine, wanted in zip(derivatives(compiled, point, 3), derivatives(several, point, 3), strict=True):
        np.testing.assert_allclose(mine, wanted, rtol=1e-11)


def test_arrays():
    def f(x):
        return (scipy.special.psi(x) * scipy.special.expit(x)).sum()

    compiled, point = tg.njit(f), np.array([0.7, 1.3, 0.4])
    np.testing.assert_allclose(compiled(point), f(point), rtol=1e-14)
    np.testing.assert_allclose(derivatives(compiled, point, 2), derivatives(f, point, 2), rtol=1e-12)


def test_tangents_and_series():
    def f(x):
        return scipy.special.psi(x) * scipy.special.expit(x)

    compiled = tg.njit(f)
    np.testing.assert_allclose(tg.func.jvp(compiled)(0.7, 1.0)[1], tg.func.jvp(f)(0.7, 1.0)[1], rtol=1e-13)
    np.testing.assert_allclose(
        tg.func.taylor(compiled, 3)(0.7, 1.0), tg.func.taylor(f, 3)(0.7, 1.0), rtol=1e-11
    )


def test_functions_with_several_results():
    def f(x):
        a, b, c, d = scipy.special.airy(x[0])
        s, t = scipy.special.sici(x[1])
        return a * s + b * t + c * d * x[0]

    compiled, point = tg.njit(f), np.array([0.7, 1.3])
    np.testing.assert_allclose(compiled(point), f(point), rtol=1e-14)
    np.testing.assert_allclose(derivatives(compiled, point, 2), derivatives(f, point, 2), rtol=1e-11)


def test_an_argument_without_a_derivative_is_refused():
    @tg.njit
    def f(x):
        return jv(x[0], x[1])

    with pytest.raises(
        UnsupportedOpError, match=r"scipy\.special\.jv: no derivative by its argument v is known"
    ):
        f(tg.tensor([1.5, 2.0], requires_grad=True))
    assert f(np.array([1.5, 2.0])) == jv(1.5, 2.0)


def test_a_derivative_without_a_compiled_form_is_refused():
    @tg.njit
    def f(a, x):
        return scipy.special.gammainc(a, x)

    assert tg.func.grad(f, 1)(2.5, 1.5) == tg.func.grad(scipy.special.gammainc, 1)(2.5, 1.5)
    with pytest.raises(UnsupportedOpError, match=r"derivative of scipy\.special\.gammainc by a has no form"):
        tg.func.grad(f, 0)(2.5, 1.5)


def test_what_scipy_is_told_to_raise_comes_as_itself():
    """An exception that a function of SciPy's has set while compiled code ran."""

    @tg.njit
    def number(x):
        return scipy.special.psi(x) * 2.0

    @tg.njit
    def array(x):
        return np.sum(scipy.special.psi(x) * x)

    for f, point in (number, 0.0), (tg.func.grad(array), np.zeros(3)):
        with scipy.special.errstate(all="raise"), pytest.raises(scipy.special.SpecialFunctionError):
            f(point)
        assert not np.any(np.isfinite(f(point)))


def test_code_with_links_is_not_taken_from_another_process():
    """A process that has not announced the symbols could not load it."""

    @tg.njit(cache=True)
    def f(x):
        return erf(x) * 2.0

    assert f(0.3) == erf(0.3) * 2.0
    assert not sum(f.stats.cache_hits.values())
