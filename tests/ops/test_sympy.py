"""Expressions of sympy, lambdified for NumPy, called on Tensors: gradient and Hessian against sympy's own."""

import numpy as np
import pytest

import tapegrad as tg
from tests.tiers import every

sympy = pytest.importorskip("sympy")
COUNT = 200
X = sympy.symbols("x y z", real=True)
UNARY = [
    sympy.sin, sympy.cos, sympy.tanh, sympy.exp, sympy.atan, sympy.sinh, sympy.cosh, sympy.asinh,
    lambda e: sympy.log(2 + e**2), lambda e: sympy.sqrt(1 + e**2), lambda e: 1 / (2 + sympy.sin(e)),
    lambda e: sympy.tan(sympy.tanh(e) / 2), lambda e: sympy.acosh(2 + e**2),
    lambda e: sympy.atanh(sympy.sin(e) / 3), lambda e: sympy.asin(sympy.cos(e) / 2),
    lambda e: sympy.acos(sympy.sin(e) / 2), lambda e: e**3 / 5,
]  # fmt: skip
BINARY = [
    lambda a, b: a + b, lambda a, b: a - b, lambda a, b: a * b, lambda a, b: a / (2 + b**2),
    lambda a, b: (1 + a**2) ** sympy.sin(b), lambda a, b: sympy.atan2(1 + a**2, b),
]  # fmt: skip


def expression(rng, depth):
    """A random expression of limited growth."""
    if depth == 0 or rng.uniform() < 0.1:
        return X[rng.integers(3)] * sympy.Rational(int(rng.integers(1, 9)), 4)
    if rng.uniform() < 0.5:
        return UNARY[rng.integers(len(UNARY))](sympy.tanh(expression(rng, depth - 1)))
    return BINARY[rng.integers(len(BINARY))](expression(rng, depth - 1), expression(rng, depth - 1))


def value(expression, at):
    """In 40 digits."""
    return float(expression.evalf(40, subs=dict(zip(X, at, strict=True))))


@pytest.mark.parametrize("seed", every(range(COUNT // 10), 10))
def test_gradient_and_hessian(seed):
    rng = np.random.default_rng(seed)
    for _ in range(10):
        wanted = expression(rng, 2)
        while not wanted.free_symbols:  # such as x - x
            wanted = expression(rng, 2)
        at = [sympy.Rational(int(k), 64) for k in rng.integers(-90, 90, 3)]
        x = [tg.tensor(float(a), requires_grad=True) for a in at]
        found = sympy.lambdify(X, wanted, "numpy")(*x)
        first = tg.grad(found, x, create_graph=True, allow_unused=True, materialize_grads=True)
        slopes = [sympy.diff(wanted, v) for v in X]
        for k in range(3):
            check(first[k].item(), value(slopes[k], at), wanted)
            if first[k]._tape is None:
                continue
            second = tg.grad(first[k], x, retain_graph=True, allow_unused=True, materialize_grads=True)
            for j in range(k, 3):
                check(second[j].item(), value(sympy.diff(slopes[k], X[j]), at), wanted)


def check(found, wanted, expression):
    assert abs(found - wanted) <= 1e-11 * max(abs(wanted), 1.0), expression
