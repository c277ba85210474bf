"""What `sympy.lambdify` writes works on Tensors."""

import numpy as np
import pytest
import sympy
from sympy import Matrix, Max, Piecewise, airyai, besselj, beta, erf, gamma, lowergamma, polygamma, sin

import tapegrad as tg
import tapegrad.scipy.special as special
from tapegrad.errors import BorderError

X, Y = sympy.symbols("x y")
MODULES = [{"array": tg.array}, special, "scipy", "numpy"]  # as docs/howto/hand_over.md has it
EXPRESSIONS = {
    "erf": erf(X) * gamma(Y),
    "bessel": besselj(2, X) + sympy.loggamma(Y) + airyai(X),
    "beta": beta(X, Y) + lowergamma(X, Y),
    "polygamma": polygamma(2, Y) * X,
    "piecewise": Piecewise((X**2 * Y, X < 1), (sin(X), True)) + Max(X, Y),
    "matrix": Matrix([[X, Y], [X * Y, sin(X)]]),
    "product": sympy.MatMul(Matrix([[X, Y], [1, X]]), Matrix([X, Y])),
    "inverse": sympy.Inverse(Matrix([[X, Y], [1, X + 2]])),
    "jacobian": Matrix([erf(X * Y), X]).jacobian([X, Y]),
}


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_derivatives_are_those_of_sympy(name):
    expression = EXPRESSIONS[name]
    f = sympy.lambdify([X, Y], expression, MODULES)
    a, b = (tg.tensor(v, requires_grad=True) for v in (0.7, 1.3))
    at = {X: sympy.Float(0.7, 30), Y: sympy.Float(1.3, 30)}
    total = sum(Matrix(expression.doit())) if getattr(expression, "is_Matrix", False) else expression
    exact = [float(sympy.diff(total, v).subs(at).evalf(20)) for v in (X, Y)]
    value = f(a, b)
    np.testing.assert_allclose(np.sum(value).item(), float(total.subs(at).evalf(20)), rtol=1e-13)
    found = [0.0 if g is None else g.item() for g in tg.grad(np.sum(value), (a, b), allow_unused=True)]
    np.testing.assert_allclose(found, exact, rtol=1e-12)


def test_a_tensor_in_an_expression_is_its_value():
    assert sympy.sin(tg.tensor(0.5)) == sympy.sin(0.5) and 2 * X * tg.tensor(0.5) == 1.0 * X
    assert sympy.sympify(tg.tensor([0.5, 2.0])) == sympy.Array([0.5, 2.0])
    with pytest.raises(BorderError, match=r"sympy.*lambdify"):
        sympy.sin(tg.tensor(0.5, requires_grad=True))
