"""Arrays of complex numbers in compiled functions: values beside NumPy's, derivatives beside differences."""

import numpy as np
import pytest
from numba import njit, types

import tapegrad as tg
from tapegrad.errors import GradientError, UnsupportedOpError
from tests.tiers import every

from .test_complexes import differences

AT = [0.3, 0.4, 0.7]
W = np.array([1.0 + 2.0j, 0.5 - 1.0j, -0.25 + 0.125j])


def made(x, w):
    """Every way to make one."""
    a, b = np.zeros(3, np.complex128), np.empty((2, 3), dtype=np.complex128)
    c, d = np.ones(3, types.complex128), np.full(3, 1j)
    a[0], a[1] = complex(x[0], x[1]), x[2]
    a[2] += x[0] * 1j
    b[0] = w * x
    b[1, :] = x
    b[1, 1:] *= 2j
    c *= x[0] + 1j
    d[1:] -= a[:2]
    e = np.array([a[0], 1.0, x[2]])
    f = np.zeros_like(w)
    f[:] = x
    g = np.full_like(x, 2j, dtype=np.complex128)
    g[0] = a[0]
    h = x.astype(np.complex128) + np.array([[1j, x[1]], [x[0], a[0]]])[0, 1]
    total = 0j
    for z in a + b[0] + b[1] * c - d / e + f.copy() * g + h:
        total += z * z
    for row in b:
        total += row[1]
    values = [0j] * 2
    values[1] = a[0]
    return total.real + 2.0 * total.imag + values[1].imag


def elementwise(x, w):
    z = x * 1j + w
    y = np.exp(1j * x) + np.sqrt(z) * np.log(z) - np.sin(z) / np.cos(z) + z**2 + z**w + 2.0**z
    y += np.sinh(z) * np.conj(w * x) + np.cosh(x * w) - np.tanh(z) + np.square(z) + np.tan(z) + (-z)
    y[0] += z[1]
    same = y == y
    s = np.abs(y) + np.angle(z) + np.real(y) * np.imag(z) + y.real - z.imag * x.imag + np.conj(x) + x.real
    return s.sum() + np.sum(y.conj() * y.conjugate()).real + np.sum(np.where(same, y, 0j)).imag


def reductions(x, w):
    z = x + w
    m = np.outer(z, z)
    s = np.sum(z) + z.mean() + np.prod(z) + np.dot(z, w) + 2 * np.vdot(z, w) + z @ z + np.vdot(w, z) * 1j
    s += (m @ z)[0] + (w @ m)[1] + m.sum(axis=0)[2] + np.trace(m) + np.cumsum(z)[1] + z.cumprod()[2]
    s += np.diff(z)[0] + np.concatenate((z, z * z))[4] + z[np.abs(z) > 1.0].sum() + m.T[0, 1] + z[::-1][0]
    s += np.correlate(z, w)[0] + np.convolve(w, z)[2] + m.reshape(9)[4] + np.kron(z, w)[1]
    s += (np.triu(m) @ m)[0, 1] + z.copy()[1] + np.mean(m.ravel()) + np.append(z, x[0] * 1j)[3]
    real = np.linalg.norm(z) + np.linalg.norm(z, 1) + np.linalg.norm(z, 2) * np.linalg.norm(m, 1)
    real += np.linalg.norm(m) + np.var(z) + z.std()
    return s.real - s.imag + real


def systems(x, w):
    a = np.outer(w, w) * x[0] + np.eye(3) * (2.0 + 1j) + np.diag(x * 1j)
    s = np.linalg.solve(a, w * x) @ np.linalg.inv(a) @ w + np.linalg.det(a)
    return s.real + s.imag


@njit
def rotate(state, angle):
    for k in range(state.size):
        state[k] = state[k] * np.exp(1j * angle * (k + 1))
    return state


def parts_written(x, w):
    """Views of the parts, helpers that write, in-place functions, views of views."""
    z = np.zeros((2, 3), np.complex128)
    z.real[0] = x
    z.imag[1, 1:] += x[1:] * x[0]
    z[1].imag[0] = x[2]
    out = np.empty(3, np.complex128)
    np.multiply(z[0], w, out)
    rotate(out, x[1])
    view = out[1:]
    view += z[1, :2]
    out[0], out[1] = out[1], out[0]
    return np.abs(out).sum() + np.sum(z * z).real + out.imag[0] + z.nbytes * x[0] + out.itemsize * x[1]


def indexed(x, w):
    """Selections, truth and tests of complex numbers, and arrays that are the same."""
    z = np.zeros((3, 3), np.complex128)
    z[:, 0] = x
    z[2, 1:] = x[:2] * 1j
    z.flat[4] = x[2] * x[1]
    same = np.asarray(z)
    same[1, 2] = x[0] * w[0]
    picked, s = z[np.array([0, 2])], 0j
    for k, v in np.ndenumerate(z.T.copy()):
        s += v * k[0]
    if np.isnan(z).any() or not z[0, 0] or not np.isfinite(x[0] * w[0]):
        s = 0j
    made = np.eye(3, dtype=np.complex128)
    made[0, 1] = z[0, 0] if z[0, 0] else 1j
    z.fill(x[0] * 1j)
    chosen = np.where(x > 0.5, x, 1j).sum() + np.concatenate((x, x * x)).sum() + np.sum((x > x[0]) * x)
    return (s + z.sum() + picked.sum() * np.flip(w * x)[0] + made.sum() + chosen).imag * x[1]


NUMBAS = (made, reductions)  # these are a little different from NumPy
SLOW = [pytest.param(program, marks=pytest.mark.slow) for program in (made, reductions, systems)]


@pytest.mark.parametrize("program", [elementwise, parts_written, indexed, *SLOW], ids=lambda f: f.__name__)
def test_gradients_beside_differences(program):
    x, compiled = tg.tensor(AT, requires_grad=True), tg.njit(program)
    out = compiled(x, W)
    expected = compiled.primal if program in NUMBAS else program
    np.testing.assert_allclose(out.detach(), expected(np.array(AT), W), rtol=1e-13)
    g = tg.grad(out, x)[0]
    np.testing.assert_allclose(g, differences(lambda v: expected(v, W), AT), rtol=2e-8)


def small(x, w):
    z = np.zeros(2, np.complex128)
    z[0], z[1] = complex(x[0], x[1]), x[2] * 1j
    z *= np.exp(z) + w[:2]
    return np.abs(z).sum() + (z.real @ z.imag)


def test_second_derivatives():
    def gradient(at):
        x = tg.tensor(at, requires_grad=True)
        return tg.grad(compiled(x, W), x)[0].numpy()

    compiled, u = tg.njit(small), np.array([0.5, -1.0, 2.0])
    x = tg.tensor(AT, requires_grad=True)
    (g,) = tg.grad(compiled(x, W), x, create_graph=True)
    np.testing.assert_allclose(g.detach(), differences(lambda v: small(v, W), AT), rtol=1e-8)
    expected = differences(lambda v: gradient(v) @ u, AT)
    np.testing.assert_allclose(tg.grad((g * u).sum(), x)[0], expected, rtol=1e-8)
    np.testing.assert_allclose(tg.func.hvp(compiled)(np.array(AT), W, u), expected, rtol=1e-8)


@tg.njit
def several(x, w):
    z = np.zeros((2, 3), np.complex128)
    z[0] = x * w
    z[1] = x * x * 1j
    return z, z.T, z[1, ::2], z.imag, (z[0, 0], w)


def test_results():
    """Complex arrays leave as Tensors whose derivatives are those of the same done to Tensors."""
    x = tg.tensor(AT, requires_grad=True)
    found = several(x, W)
    z = np.stack((x * W, x * x * 1j))
    expected = (z, z.T, z[1, ::2], z.imag, z[0, 0])
    rng = np.random.default_rng(3)
    for a, b in zip((*found[:4], found[4][0]), expected, strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        np.testing.assert_allclose(a.detach(), b.detach(), rtol=1e-15)
        ct = rng.normal(size=a.shape) + (1j * rng.normal(size=a.shape) if a.dtype.kind == "c" else 0.0)
        ct = tg.tensor(ct) if a.shape else tg.tensor(complex(ct))
        ga, gb = (tg.grad(y, x, ct, retain_graph=True, create_graph=True)[0] for y in (a, b))
        np.testing.assert_allclose(ga.detach(), gb.detach(), rtol=1e-14, atol=1e-15)
        if b is not z[0, 0] and gb.requires_grad:
            np.testing.assert_allclose(*(tg.grad((g * g).sum(), x)[0] for g in (ga, gb)), rtol=1e-13)
    np.testing.assert_array_equal(found[4][1], W)
    assert all(isinstance(y, tg.Tensor) and not y.requires_grad for y in several(x.detach(), W)[:4])


@tg.njit
def infinite(x):
    z = np.full(1, 1j * np.inf)
    z[0] = complex(1.0 + 0.0 * x, z[0].imag)
    return z, z[0]


def test_what_is_infinite_stays_so():
    array, number = infinite(tg.tensor(1.0, requires_grad=True))
    assert array[0].item() == number.item() == complex(1.0, np.inf)


def outside(x, out):
    out[0] = x[0] * 1j


def outside_part(x, out):
    out.real[0] = x[0]


def outside_update(x, out):
    out += x[0]


def outside_product(x, out):
    np.multiply(x, 1j, out)


def largest(x, out):
    return np.max(x * out)


def ordered(x, out):
    return np.sort(x * out)[0].real


def single(x, out):
    z = np.zeros(1, np.complex64)
    z[0] = x[0] * 1j


def memory(x, out):
    return (x * 1j).view(np.float64)[0]


CASES = {  # the function, what stands in its line, and a word of the advice
    outside: ("out[0] = ", "make it in the function"),
    outside_part: ("out.real[0] =", "make it in the function"),
    outside_update: ("out += ", "make it in the function"),
    outside_product: ("np.multiply", "make it in the function"),
    largest: ("np.max", ".imag"),
    ordered: ("np.sort", ".imag"),
    single: ("z[0] =", "complex128"),
    memory: ("view", "loops"),
}


@pytest.mark.quick
@pytest.mark.parametrize("function", every(CASES, 4), ids=lambda f: f.__name__)
def test_refused_by_line(function):
    x = tg.tensor(AT, requires_grad=True)
    with pytest.raises(UnsupportedOpError) as caught:
        tg.njit(function)(x, W.copy())
    line, advice = CASES[function]
    assert line in str(caught.value) and advice in str(caught.value)


def test_derivatives_inside_compiled_code_are_of_real_numbers():
    @tg.njit
    def turned(x):
        return x * 1j

    @tg.njit
    def first(x):
        return x[0] * 1j

    with pytest.raises(TypeError, match="found complex numbers"):
        tg.func.jacobian(turned)(np.ones(2))
    with pytest.raises(UnsupportedOpError, match="a part or an absolute value"):
        tg.func.grad(first)(np.ones(2))


@pytest.mark.quick
def test_forward_mode_and_gradcheck():
    @tg.njit
    def turned(x, w):
        return x * x * w

    x = tg.tensor(AT, requires_grad=True)
    assert tg.autograd.gradcheck(lambda x: turned(x, W), (x,), check_forward_ad=True)
    assert tg.autograd.gradgradcheck(lambda x: turned(x, W), (x,))


@tg.njit
def of_complexes(z, x, c, scale):
    z[1] += c * x[0]
    scale[0] *= z[0]
    return z * x[1] + c, np.sum(np.abs(z)) * scale[0]


def test_complex_arguments():
    """Derivatives by complex Tensors are those of the same done to Tensors, to second order."""
    found = []
    for compiled in (True, False):
        z = tg.tensor([1.0 + 2.0j, 0.5 - 1.0j], requires_grad=True)
        x, c = tg.tensor([0.3, 0.4], requires_grad=True), tg.tensor(0.2 - 0.7j, requires_grad=True)
        scale, moved = tg.tensor([2j, 3.0]), z * 1.0
        if compiled:
            a, b = of_complexes(moved, x, c, scale)
        else:
            moved = np.stack((moved[0], moved[1] + c * x[0]))
            scale = np.stack((scale[0] * moved[0], scale[1]))
            a, b = moved * x[1] + c, np.sum(np.abs(moved)) * scale[0]
        total = (a * a).sum() * b + (moved * moved).sum() + scale.sum()
        first = tg.grad(total, (z, x, c), tg.tensor(0.5 + 1j), create_graph=True)
        second = tg.grad(np.sum(np.abs(first[0]) ** 2) + (first[1] ** 2).sum(), (z, x, c))
        found.append([*first, *second, a, b, moved, scale])
    for ours, expected in zip(*found, strict=True):
        assert ours.dtype == expected.dtype and ours.shape == expected.shape
        np.testing.assert_allclose(ours.detach(), expected.detach(), rtol=1e-12)


def test_complex_leaves_are_not_written_to():
    z, x = tg.tensor([1j, 2.0], requires_grad=True), tg.tensor([1.0, 2.0])
    with pytest.raises(GradientError, match="leaf"):
        of_complexes(z, x, 1j, tg.tensor([2j]))


@njit
def lengths(x, n):
    m = np.empty((2, 2), np.complex128)
    m[0, 0], m[0, 1], m[1, 0], m[1, 1] = x[0] + 1j * x[1], 2.0 * x[1] + 0j, 1j * x[0], x[0] * x[1] + 1j
    return np.linalg.norm(m[0]) + np.linalg.norm(m) + np.linalg.norm(m[1], 1) + np.linalg.norm(m, n)


def test_norms():
    x, step = np.array([0.6, 1.1]), 1e-6
    for n in (1, np.inf):
        found = tg.func.grad(lengths)(x, n)
        moved = [lengths.py_func(x + s * step * e, n) for e in np.eye(2) for s in (1, -1)]
        np.testing.assert_allclose(found, np.subtract(moved[::2], moved[1::2]) / (2 * step), rtol=1e-8)
    with pytest.raises(ValueError, match="norms 2 and -2 of complex matrices"):
        tg.func.grad(lengths)(x, 2)
