"""Complex numbers in compiled functions: beside differences, and a power series known in closed form."""

import cmath

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.errors import DTypeError
from tests.tiers import every

AT = [0.3, 0.4, 0.7]


def arithmetic(x):
    z, w = complex(x[0], x[1]), x[2] * 1j - 0.5
    total = 0j
    total += z * w + z / w - w / 2.0 + 3.0 / z + z / x[2]
    total -= z.conjugate() * abs(w) + np.conj(z) * np.imag(w) + -z * w.real
    total *= z
    total /= w
    if z == w or z != z:
        total = 2j
    return total.real + 2.0 * total.imag


def powers(x):
    z, w = complex(x[0], x[1]), complex(0.5, x[2])
    total = z**3 + z**-2 + z**w + 2.0**z + x[0] ** z + w ** x[1] + np.square(z)
    return total.real - total.imag


def functions(x):
    z, w = complex(x[0], x[1]), complex(x[2], -x[0])
    total = np.exp(z) * cmath.log(w) + np.sqrt(z) + cmath.sqrt(-z) + np.tan(w)
    total += np.sin(z) + cmath.cos(w) + np.sinh(z) + cmath.cosh(w) + np.tanh(z)
    total += cmath.rect(x[1], x[0]) + cmath.polar(z)[1] + cmath.phase(w) + np.angle(z) + np.real(w)
    return total.real * total.imag


def differences(function, at, h=1e-3):
    """The gradient, by differences of fourth order."""
    at, found = np.array(at), []
    for k in range(at.size):
        step = h * np.eye(at.size)[k]
        parts = [function(at + q * step) for q in (-2, -1, 1, 2)]
        found.append(np.dot([1, -8, 8, -1], parts) / (12 * h))
    return np.array(found)


@pytest.mark.quick
@pytest.mark.parametrize("function", every([arithmetic, powers, functions], 3))
def test_gradients_beside_differences(function):
    x = tg.tensor(AT, requires_grad=True)
    out = tg.njit(function)(x)
    np.testing.assert_allclose(out.detach(), function(np.array(AT)), rtol=1e-13)
    np.testing.assert_allclose(tg.grad(out, x)[0], differences(function, AT), rtol=1e-8)


def small(x):
    z = complex(x[0], x[1])
    return abs(np.exp(z) / (z + 1j * x[2]))


def power(x):
    """Squares of what is a plain complex number before the first turn, and of plain ones."""
    total = 0j
    for k in range(3):
        total += x[k] * np.exp(2j * k) + x[1]
    plain = np.array([2j, 1.0, 1j])
    return abs(total) ** 2 * x[0] + np.sum(np.abs(plain) ** 2 * x) * x[2]


@pytest.mark.parametrize("function", [small, power])
def test_second_derivatives(function):
    def gradient(at):
        x = tg.tensor(at, requires_grad=True)
        return tg.grad(compiled(x), x)[0].numpy()

    compiled = tg.njit(function)
    x = tg.tensor(AT, requires_grad=True)
    (g,) = tg.grad(compiled(x), x, create_graph=True)
    np.testing.assert_allclose(tg.grad(g.sum(), x)[0], differences(gradient, AT).sum(axis=1), rtol=1e-8)


@tg.njit
def series(z, n):
    total, term = 0j, complex(1.0, 0.0)
    for _ in range(n):
        total += term
        term = term * complex(z[0], z[1])
    return total, term


def test_complex_results():
    """The sum of z**k has the holomorphic derivative of (1 - z**n)/(1 - z)."""
    x = tg.tensor([0.3, 0.4], requires_grad=True)
    total, term = series(x, 12)
    z = 0.3 + 0.4j
    np.testing.assert_allclose(total.detach(), (1 - z**12) / (1 - z), rtol=1e-14)
    slope = (1 - z**12) / (1 - z) ** 2 - 12 * z**11 / (1 - z)
    for part, wanted in ((total.real, [slope.real, -slope.imag]), (total.imag, [slope.imag, slope.real])):
        np.testing.assert_allclose(tg.grad(part, x, retain_graph=True)[0], wanted, rtol=1e-13)
    (g,) = tg.grad(term, x, tg.tensor(1j))
    np.testing.assert_allclose(g, [(12 * z**11).imag, (12 * z**11).real], rtol=1e-13)
    plain, _ = series(np.array([0.3, 0.4]), 12)
    without, _ = series(x.detach(), 12)
    assert plain == without.item() == total.item()


def test_arguments_of_single_precision_are_refused():
    with pytest.raises(DTypeError, match=r"convert with \.astype\(complex\)"):
        series(tg.tensor([1j, 2], dtype=np.complex64, requires_grad=True), 3)
