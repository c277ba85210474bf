"""Complex numbers: the cotangent of z is dL/d(re z) + i dL/d(im z), as torch has it; A-2, A-12, D-11."""

import mpmath
import numpy as np
import pytest

import tapegrad as tg
from tapegrad.errors import DTypeError, GradientError
from tapegrad.ops.primitive import REGISTRY
from tests.tiers import every


def operands(dtype=complex, n=3):
    random = np.random.default_rng(5)
    z, w = (random.normal(size=n) + 1j * random.normal(size=n) for _ in range(2))
    r = random.normal(size=n)
    real = np.zeros(0, dtype).real.dtype
    return (
        tg.tensor(z, dtype, requires_grad=True),
        tg.tensor(w, dtype, requires_grad=True),
        tg.tensor(r, real, requires_grad=True),
    )


FUNCTIONS = {
    "add": lambda z, w, r: z + w + r,
    "subtract": lambda z, w, r: r - z - 1j,
    "multiply": lambda z, w, r: z * w,
    "multiply by a real": lambda z, w, r: r * z * 2.0,
    "divide": lambda z, w, r: z / w,
    "divide by a real": lambda z, w, r: z / r + r / w,
    "power": lambda z, w, r: z**w,
    "integer power": lambda z, w, r: z**3 * r**2,
    "square": lambda z, w, r: np.square(z),
    "reciprocal": lambda z, w, r: np.reciprocal(z),
    "negative": lambda z, w, r: -z - w,
    "absolute": lambda z, w, r: abs(z) * r,
    "square of the absolute value": lambda z, w, r: np.abs(z) ** 2,
    "angle": lambda z, w, r: np.angle(z),
    "angle in degrees": lambda z, w, r: np.angle(z, deg=True),
    "sign": lambda z, w, r: np.sign(z),
    "real": lambda z, w, r: z.real * np.real(w),
    "imag": lambda z, w, r: z.imag * np.imag(w) + r.imag,
    "conjugate": lambda z, w, r: z.conj() * w + np.conjugate(r),
    "exp": lambda z, w, r: np.exp(z),
    "expm1": lambda z, w, r: np.expm1(z),
    "log": lambda z, w, r: np.log(z),
    "log1p": lambda z, w, r: np.log1p(z),
    "sqrt": lambda z, w, r: np.sqrt(z),
    "sin": lambda z, w, r: np.sin(z),
    "cos": lambda z, w, r: np.cos(z),
    "tan": lambda z, w, r: np.tan(z),
    "sinh": lambda z, w, r: np.sinh(z),
    "cosh": lambda z, w, r: np.cosh(z),
    "tanh": lambda z, w, r: np.tanh(z),
    "arcsinh": lambda z, w, r: np.arcsinh(z),
    "sinc": lambda z, w, r: np.sinc(z) + np.sinc(z / 10) + np.sinc(4 * r + z / 4),
    "cumprod": lambda z, w, r: np.cumprod(z * w),
    "sum": lambda z, w, r: (z * w).sum(),
    "mean": lambda z, w, r: np.mean(z * z),
    "prod": lambda z, w, r: np.prod(z) * np.prod(w),
    "var": lambda z, w, r: np.var(z),
    "std": lambda z, w, r: np.std(z, ddof=1),
    "cumsum": lambda z, w, r: np.cumsum(z * w),
    "matmul": lambda z, w, r: np.outer(z, w) @ w,
    "matmul with a real": lambda z, w, r: np.outer(r, r) @ w,
    "einsum": lambda z, w, r: np.einsum("i,j->ij", z, w),
    "solve": lambda z, w, r: np.linalg.solve(np.outer(z, w) + 3 * np.eye(3), w),
    "where": lambda z, w, r: np.where(np.array([True, False, True]), z, w * r),
    "stack": lambda z, w, r: np.stack([z, r, w]),
    "concatenate": lambda z, w, r: np.concatenate([z, r]),
    "index": lambda z, w, r: z[[0, 0, 1]] * w[::-1],
    "element": lambda z, w, r: z[1] * r[0],
    "reshape": lambda z, w, r: z.reshape(3, 1) * w.T,
    "broadcast": lambda z, w, r: np.broadcast_to(z, (2, 3)) * r,
    "astype": lambda z, w, r: r.astype(complex) * z,
    "written": lambda z, w, r: written(z, w, r),
}


def written(z, w, r):
    y = z * 1.0
    y[1:] = w[1:] * r[1:]
    y *= w
    return y


@pytest.mark.parametrize("name", FUNCTIONS)
def test_derivatives_beside_differences(name):
    assert tg.gradcheck(FUNCTIONS[name], operands())
    assert tg.gradgradcheck(FUNCTIONS[name], operands())


@pytest.mark.parametrize("name", every(FUNCTIONS, 4))
def test_single_precision(name):
    """Gradients have the dtype of what they belong to."""
    found = []
    for dtype in (np.complex64, np.complex128):
        args = operands(dtype)
        out = FUNCTIONS[name](*args)
        if name not in ("astype", "solve"):
            assert out.dtype == (out.real.dtype if out.dtype.kind == "f" else dtype)
        loss = np.sum(np.real(out * np.conj(out)))
        found.append(tg.grad(loss, args, allow_unused=True, materialize_grads=True))
        assert [g.dtype for g in found[-1]] == [x.dtype for x in args]
    for single, double in zip(*found, strict=True):
        assert np.allclose(single.numpy(), double.numpy(), rtol=1e-3, atol=1e-4)


TORCH = [
    "multiply", "divide", "power", "absolute", "angle", "conjugate", "exp", "log", "sqrt", "tanh", "prod",
    "real", "sum", "multiply by a real",
]  # fmt: skip


@pytest.mark.full
@pytest.mark.parametrize("name", TORCH)
def test_beside_torch(name):
    torch = pytest.importorskip("torch")
    theirs = {
        "absolute": lambda z, w, r: z.abs() * r,
        "angle": lambda z, w, r: z.angle(),
        "prod": lambda z, w, r: z.prod() * w.prod(),
        "real": lambda z, w, r: z.real * w.real,
        "conjugate": lambda z, w, r: z.conj() * w + r,
        **{f: (lambda z, w, r, f=f: getattr(z, f)()) for f in ("exp", "log", "sqrt", "tanh")},
    }.get(name, FUNCTIONS[name])
    ours = operands()
    mine = FUNCTIONS[name](*ours)
    args = [torch.tensor(x.detach().numpy(), requires_grad=True) for x in ours]
    out = theirs(*args)
    ct = np.asarray(np.random.default_rng(1).normal(size=mine.shape))
    ct = ct * (1 + 2j) if mine.dtype.kind == "c" else ct
    wanted = torch.autograd.grad(out, args, torch.tensor(ct), allow_unused=True)
    found = tg.grad(mine, ours, ct, allow_unused=True)
    for a, b in zip(found, wanted, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            assert np.allclose(a.numpy(), b.resolve_conj().numpy(), rtol=1e-12, atol=1e-12)


def test_edges():
    z = tg.tensor([0j, 3 + 4j], requires_grad=True)
    assert tg.grad(np.sum(abs(z)), z)[0].tolist() == [0j, 0.6 + 0.8j]
    assert np.allclose(tg.grad(np.sum(np.angle(z)), z)[0].numpy(), [0j, -0.16 + 0.12j])


def test_A2_a_complex_root_needs_a_gradient():
    z = tg.tensor(1 + 1j, requires_grad=True)
    with pytest.raises(GradientError, match="complex"):
        (z * z).backward()
    (z * z).backward(1.0)
    assert z.grad.item() == 2 - 2j


def test_A12_a_complex_gradient_of_a_real_root():
    z = tg.tensor(1 + 1j, requires_grad=True)
    with pytest.raises(DTypeError, match="complex128"):
        abs(z).backward(1j)


def test_D11_parts_and_accumulation():
    z = tg.tensor([1 + 2j, 3 - 1j], requires_grad=True)
    (z.real.sum() + 2 * z.imag.sum()).backward()
    (z * z.conj()).real.sum().backward()
    assert z.grad.dtype == complex
    assert z.grad.tolist() == [3 + 6j, 7 + 0j]


def test_extended_precision():
    values = np.array([1, 2, 3], np.longdouble) / 3
    x = tg.tensor(values, requires_grad=True)
    y = np.exp(x) * x + np.sin(x) + x * x.sum()
    (g,) = tg.grad(y.sum(), x, create_graph=True)
    (h,) = tg.grad(g.sum(), x)
    first = np.exp(values) * (values + 1) + np.cos(values) + 2 * values.sum()
    second = np.exp(values) * (values + 2) - np.sin(values) + 6
    for found, wanted in ((g, first), (h, second)):
        assert found.dtype == np.longdouble
        bound = 8 * np.finfo(np.longdouble).eps * np.abs(wanted)
        assert np.all(np.abs(found.detach().numpy() - wanted) <= bound)


class TestHolomorphic:
    def test_derivatives(self):
        z = tg.tensor([0.3 + 0.4j, -1.2j], requires_grad=True)
        (d,) = tg.autograd.holomorphic_grad(np.sum(np.exp(z) * z), z, create_graph=True)
        values = z.detach().numpy()
        assert np.allclose(d.detach().numpy(), np.exp(values) * (values + 1))
        (dd,) = tg.autograd.holomorphic_grad(d.sum(), z)
        assert np.allclose(dd.numpy(), np.exp(values) * (values + 2))

    def test_what_is_not_holomorphic_is_refused(self):
        z = tg.tensor([0.3 + 0.4j], requires_grad=True)
        with pytest.raises(GradientError, match="not a holomorphic function of input 0"):
            tg.autograd.holomorphic_grad(np.sum(z.conj() * z * 1j), z)
        with pytest.raises(GradientError, match="float64"):
            tg.autograd.holomorphic_grad(np.sum(abs(z)), z)


def broken(*args, **kwargs):
    raise AssertionError("a rule ran in Python")


BY_RULE = {"std", "angle", "sign", "einsum", "solve", "matmul"}  # words in names
def written_twice(whole, part):
    whole[[0, 2]] = part[:2]
    whole[[1, 1]] = part[1:]
    return whole * whole


COMPILED = {name: f for name, f in FUNCTIONS.items() if not BY_RULE & {*name.split()}} | {
    "cumsum": lambda z, w, r: np.cumsum(z * r),
    "sums along axes": lambda z, w, r: np.sum(z[:, None] * r, axis=0) + np.mean(w * z[:, None], axis=1),
    "windows": lambda z, w, r: z[::-1] * w[1:].sum() + np.concatenate([z[:1], r[1:]]) + np.stack([z, w])[1],
    "elements": lambda z, w, r: z[0] * w[1] + r[2],
    "picks": lambda z, w, r: z[[0, 2, 0]] * w,
    "products": lambda z, w, r: np.prod(z[:, None] * w, axis=0) * np.prod(r),
    "running products": lambda z, w, r: np.cumprod(r * w)[::-1] + np.cumprod(z[:, None] * w, axis=0)[2],
    "written at places": lambda z, w, r: written_twice(z * w, r * w[0]),
    "transposed": lambda z, w, r: np.reshape(z, (3, 1)).T * w,
    "choice": lambda z, w, r: np.where(r > 0, z, 2 * w) + np.where(z.real > 0, r, z),
    "conversions": lambda z, w, r: r.astype(z.dtype) * z,
    "product of matrices": lambda z, w, r: (z[:, None] * w) @ np.stack([w, z, z * w]).T,
    "batch of products": lambda z, w, r: np.stack([z[:, None] * w, w[:, None] * z]) @ (z * w),
    "inner product": lambda z, w, r: z @ w,
}  # fmt: skip


@pytest.mark.parametrize("dtype", ["complex128", pytest.param("complex64", marks=pytest.mark.full)])
@pytest.mark.parametrize("name", COMPILED)
def test_sweeps_are_compiled(name, dtype, monkeypatch):
    function = COMPILED[name]
    tolerance = 1e-12 if dtype == "complex128" else 2e-4

    def gradients():
        given = operands(np.dtype(dtype))
        out = function(*given)
        ct = np.asarray(out.detach()) * (1 - 0.5j if out.dtype.kind == "c" else 1)
        return tg.grad(out, given, tg.tensor(ct.astype(out.dtype)), create_graph=True, allow_unused=True), (
            lambda: tg.grad(out, given, tg.tensor(ct.astype(out.dtype)), allow_unused=True)
        )

    wanted, compiled = gradients()  # by rules, as a recorded sweep
    with monkeypatch.context() as patch:
        for op in {*REGISTRY.values()}:
            patch.setattr(op, "vjp", broken)
        found = compiled()
    for g, h in zip(found, wanted, strict=True):
        assert (g is None) == (h is None)
        if g is not None:
            assert g.dtype == h.dtype
            np.testing.assert_allclose(g, h.detach(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", ["float16", "int8", "bool", "float32", "complex64", "longdouble"])
def test_constants_of_other_dtypes(dtype):
    c = np.array([1, 0, 1]).astype(dtype)
    for x in operands():
        (g,) = tg.grad((x * c).sum().real, x)
        np.testing.assert_array_equal(g, c.astype(complex) if x.dtype.kind == "c" else c.real.astype(float))


@pytest.mark.parametrize("size", [0.49, 0.51, 0.02])
def test_sinc_beside_mpmath(size):
    """Inside of the circle where a power series is taken, and outside."""
    z = size * np.exp(1j * np.arange(7.0))
    with mpmath.workdps(30):
        wanted = [complex(mpmath.diff(lambda v: mpmath.sincpi(v), mpmath.mpc(v.real, v.imag))) for v in z]
    x = tg.tensor(z, requires_grad=True)
    (g,) = tg.grad(np.sinc(x), x, tg.tensor(np.ones(7, complex)), create_graph=True)
    np.testing.assert_allclose(np.conj(g.detach()), wanted, rtol=2e-15)


def root(z):
    return 1 / (mpmath.sqrt(1 - z) * mpmath.sqrt(1 + z))


def root_below(z):
    return 1 / (mpmath.sqrt(z - 1) * mpmath.sqrt(z + 1))


# the first and second derivatives; forms that lose digits, or overflow, in double precision
SLOPES = {
    "tan": lambda z: (mpmath.sec(z) ** 2, 2 * mpmath.tan(z) * mpmath.sec(z) ** 2),
    "tanh": lambda z: (mpmath.sech(z) ** 2, -2 * mpmath.tanh(z) * mpmath.sech(z) ** 2),
    "arcsin": lambda z: (root(z), z * root(z) ** 3),
    "arccos": lambda z: (-root(z), -z * root(z) ** 3),
    "arccosh": lambda z: (root_below(z), -z * root_below(z) ** 3),
    "arcsinh": lambda z: (root(1j * z), -z * root(1j * z) ** 3),
    "arctan": lambda z: (1 / (1 + z * z), -2 * z / (1 + z * z) ** 2),
    "arctanh": lambda z: (1 / (1 - z * z), 2 * z / (1 - z * z) ** 2),
}
PLACES = np.array([0.3 + 0.2j, 3 + 26j, 2 - 300j, 30 + 1j, 1e-20 - 1e-20j, 1e-160j, 1 + 1e-9j, 1e-9 + 1j])
LARGE = np.array([1e80 + 1e80j, 1e140j - 1e141, 1e160 + 1e160j, -1e160j, 1e300 - 1e300j])


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.full)])
@pytest.mark.parametrize("name", SLOPES)
@np.errstate(all="ignore")
def test_derivatives_at_extremes_beside_mpmath(name, compiled):
    function, places = getattr(np, name), PLACES
    if name.startswith("arc"):
        places = np.concatenate([PLACES, LARGE])
    if compiled:
        source = {"np": np}
        exec(f"def function(z):\n    return np.{name}(z)", source)
        function = tg.njit(source["function"])
    with mpmath.workdps(400):
        wanted = np.array([[complex(d) for d in SLOPES[name](mpmath.mpc(z.real, z.imag))] for z in places]).T
    x = tg.tensor(places, requires_grad=True)
    y, ones = function(x), tg.tensor(np.ones(places.shape, complex))
    (plain,) = tg.grad(y, x, ones, retain_graph=True)
    (first,) = tg.grad(y, x, ones, create_graph=True)
    first = np.conj(first)
    (second,) = tg.grad(first, x, ones)
    pairs = (np.conj(plain), wanted[0]), (first.detach(), wanted[0]), (np.conj(second), wanted[1])
    for found, exact in pairs:
        assert np.all(np.abs(found.numpy() - exact) <= 1e-14 * np.abs(exact) + 1e-307), (found, exact)


@pytest.mark.parametrize("dtype", ["complex128", "complex64"])
def test_scalars(dtype):
    z = tg.tensor(np.dtype(dtype).type(0.5 - 2j), requires_grad=True)
    r = tg.tensor(z.real.detach() * 3, requires_grad=True)
    gz, gr = tg.grad(abs(z * r), (z, r))
    assert gz.dtype == z.dtype and gr.dtype == r.dtype
    np.testing.assert_allclose(gz, (0.5 - 2j) / abs(0.5 - 2j) * 1.5, rtol=1e-6)
    np.testing.assert_allclose(gr, abs(0.5 - 2j), rtol=1e-6)
    (gz,) = tg.grad(z * z, z, z.detach())
    np.testing.assert_allclose(gz, 2 * (0.5 + 2j) * (0.5 - 2j), rtol=1e-6)


def test_large_and_strided_operands():
    """Blocks, strides and sums to broadcast operands of complex numbers."""
    random = np.random.default_rng(3)
    a, b = (random.normal(size=(70, 1300)) + 1j * random.normal(size=(70, 1300)) for _ in range(2))
    row = random.normal(size=1300)
    z, w, r = (tg.tensor(v, requires_grad=True) for v in (a, b, row))
    out = (z.T * np.exp(w).T).T * r
    gz, gw, gr = tg.grad(np.abs(out).sum(), (z, w, r))
    value = a * np.exp(b) * row
    sign = value / np.abs(value)
    np.testing.assert_allclose(gz, sign * np.conj(np.exp(b) * row), rtol=1e-12)
    np.testing.assert_allclose(gw, sign * np.conj(value), rtol=1e-12)
    np.testing.assert_allclose(gr, np.sum(sign * np.conj(a * np.exp(b)), axis=0).real, rtol=1e-10)
