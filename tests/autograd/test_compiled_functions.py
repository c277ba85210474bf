"""Functions of compiled functions: run by sweeps without Python, by Python where needed, or refused."""

import numba
import numpy as np
import pytest

import tapegrad as tg
from tapegrad.autograd import forward_ad
from tapegrad.errors import AnomalyError, GradientError, ShapeError
from tapegrad.ops import custom
from tests.tiers import every


class Scaled(tg.autograd.Function):
    """x sin(y), of any shape."""

    @staticmethod
    @numba.njit
    def forward(x, y):
        return x * np.sin(y)

    @staticmethod
    @numba.njit
    def backward(grad, result, x, y):
        return grad * np.sin(y), grad * x * np.cos(y)


class Power(tg.autograd.Function):
    """x**n; refuses a negative gradient."""

    @staticmethod
    @numba.njit
    def forward(x, n):
        return x**n

    @staticmethod
    @numba.njit
    def backward(grad, result, x, n):
        if np.min(grad) < 0:
            raise ValueError("negative")
        return n * result / x * grad, None


class Wrong(tg.autograd.Function):
    """The gradient has another shape."""

    forward = staticmethod(numba.njit(lambda x: x))
    backward = staticmethod(numba.njit(lambda grad, result, x: grad[1:]))


def leaves(shape=(2, 3), dtype=float):
    random = np.random.default_rng(4)
    return [tg.tensor(random.normal(size=shape).astype(dtype)[()], requires_grad=True) for _ in range(2)]


@pytest.fixture
def no_python(monkeypatch):
    """Rules in Python fail."""

    def broken(*args):
        raise AssertionError("a rule ran in Python")

    def forbid():
        monkeypatch.setattr(custom.Compiled, "vjp", broken)

    return forbid


@pytest.mark.parametrize("shape", every([(shape,) for shape in ((3,), (), (2, 3), (0, 2))], 4))
def test_sweeps_run_it_without_python(shape, no_python):
    x, y = leaves(shape)
    wanted = tg.grad(np.sum(x * np.sin(x * np.sin(y))) * 2.0, (x, y))
    if 0 not in shape:  # Numba lays empty arrays out otherwise
        no_python()

    def total():
        return np.sum(Scaled.apply(x, Scaled.apply(x, y))) * 2.0

    for found in (tg.grad(total(), (x, y)), tg.grad(total(), (x, y), materialize_grads=True)):
        for g, w in zip(found, wanted, strict=True):
            np.testing.assert_allclose(g, w, rtol=1e-14)
            assert g.dtype == w.dtype
    total().backward()
    np.testing.assert_allclose(x.grad, wanted[0], rtol=1e-14)


def test_gradcheck_and_constants(no_python):
    x, y = leaves((3,))
    assert tg.gradcheck(Scaled.apply, (x, y))
    no_python()
    np.testing.assert_allclose(tg.grad(np.sum(Scaled.apply(x, np.arange(3.0))), x)[0], np.sin(np.arange(3.0)))
    (s, _) = leaves(())
    np.testing.assert_allclose(tg.grad(Scaled.apply(2.0, s), s)[0], 2 * np.cos(s.item()))


@pytest.mark.parametrize(
    "how", every(["float32", "transposed", "a hook", "retained", "batched", "recorded"], 6)
)
def test_what_python_runs(how):
    x, y = leaves((3, 3), np.float32 if how == "float32" else float)
    a, b = (x.T, y.T) if how == "transposed" else (x, y)
    out = Scaled.apply(a, b)
    wanted = np.sin(b.detach().numpy())
    if how == "a hook":
        out.grad_fn.register_prehook(lambda grads: (2 * grads[0],))
    ct = tg.tensor(np.ones(out.shape, out.dtype))
    if how == "batched":
        (g,) = tg.grad(out, a, tg.tensor(np.ones((2, 3, 3))), is_grads_batched=True)
        wanted = np.stack([wanted, wanted])
    else:
        (g,) = tg.grad(out, a, ct, create_graph=how == "recorded", retain_graph=how == "retained")
    if how == "retained":
        (g,) = tg.grad(out, a, ct)
    np.testing.assert_allclose(g.detach(), wanted * (2 if how == "a hook" else 1), rtol=1e-6)
    assert g.dtype == x.dtype


@pytest.mark.full
def test_other_arguments_and_none():
    x, _ = leaves((3,))
    x = (np.abs(x) + 0.5).detach().requires_grad_()
    out = Power.apply(x, n=3)
    np.testing.assert_allclose(tg.grad(np.sum(out), x)[0], 3 * x.detach().numpy() ** 2, rtol=1e-13)
    t = tg.tensor(3.0, requires_grad=True)
    g, h = tg.grad(np.sum(Power.apply(x, t)), (x, t), allow_unused=True)
    np.testing.assert_allclose(g, 3 * x.detach().numpy() ** 2, rtol=1e-13)
    assert h is None


@pytest.mark.parametrize("whole", every([False, True], 2))
def test_errors_of_the_users_are_raised(whole):
    x, _ = leaves((3,))
    total = -np.sum(Power.apply(np.abs(x) + 0.5, 2.0))
    with pytest.raises(ValueError, match="negative"):
        tg.grad(total, x, retain_graph=True, materialize_grads=whole)
    assert np.all(np.isfinite(tg.grad(-total, x)[0]))


@pytest.mark.full  # the cases compile four functions
def test_refusals():
    x, y = leaves((3,))
    (g, _) = tg.grad(np.sum(Scaled.apply(x, y)), (x, y), create_graph=True)
    with pytest.raises(GradientError, match=r"Scaled.backward is compiled by Numba.*tg.njit"):
        tg.grad(np.sum(g), x)
    with forward_ad.dual_level(), pytest.raises(GradientError, match=r"Scaled .* forward mode"):
        Scaled.apply(forward_ad.make_dual(x.detach(), y.detach()), y)
    with pytest.raises(ShapeError, match=r"shape \(2,\) for argument 0 of shape \(3,\)"):
        tg.grad(np.sum(Wrong.apply(x)), x)
    with pytest.raises(TypeError, match="both or neither"):
        type("Half", (tg.autograd.Function,), {"forward": staticmethod(numba.njit(lambda x: x))})

    class Counts(tg.autograd.Function):
        forward = staticmethod(numba.njit(lambda x: x.size))
        backward = staticmethod(numba.njit(lambda grad, result, x: x))

    with pytest.raises(TypeError, match="returned int; it returns one array"):
        Counts.apply(x)


def test_a_result_is_no_view_of_an_argument():
    x, _ = leaves((3,))
    a = x * 1.0
    out = Wrong.apply(a)
    a[0] = 7.0
    assert out[0] != 7.0
    assert out.grad_fn.name() == "WrongBackward"


def test_without_a_gradient_it_is_the_function():
    x, y = leaves((3,))
    with tg.no_grad():
        out = Scaled.apply(x, y)
    assert not out.requires_grad
    assert not Scaled.apply(x.detach(), y.detach()).requires_grad


class Spoiled(tg.autograd.Function):
    """The gradient is nan."""

    forward = staticmethod(numba.njit(lambda x: 2.0 * x))
    backward = staticmethod(numba.njit(lambda grad, result, x: np.nan * grad))


@pytest.mark.full
@pytest.mark.filterwarnings("ignore::UserWarning")  # besides the error there are warnings
def test_anomaly_mode_sees_it():
    """Also where the rule is compiled already."""
    x, _ = leaves((3,))
    assert np.all(np.isnan(tg.grad(np.sum(Spoiled.apply(x)), x)[0]))
    with tg.autograd.detect_anomaly():
        total = np.sum(Spoiled.apply(x))
        with pytest.raises(AnomalyError, match="SpoiledBackward"):
            tg.grad(total, x)
