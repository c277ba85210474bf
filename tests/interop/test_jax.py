"""Functions of ours in JAX's programs, and of JAX's in ours: values, derivatives, what is refused."""

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.errors import DTypeError

pytestmark = pytest.mark.full
jax = pytest.importorskip("jax")
jnp = pytest.importorskip("jax.numpy")


@pytest.fixture
def double():
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)


def close(a, b):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-13, atol=1e-15), a, b)


def weighted(m):
    return lambda x, y: m.sum(m.sin(x) * y["a"]) * y["b"]


def test_a_number_and_its_derivatives(double):
    ours, theirs = tg.interop.to_jax(weighted(np)), weighted(jnp)
    x, y = jnp.array([0.3, 0.7]), {"a": jnp.array([1.0, 2.0]), "b": jnp.array(3.0)}
    close(jax.jit(jax.value_and_grad(ours, (0, 1)))(x, y), jax.value_and_grad(theirs, (0, 1))(x, y))
    close(jax.jit(jax.jacrev(jax.grad(ours, (0, 1))))(x, y), jax.jacrev(jax.grad(theirs, (0, 1)))(x, y))
    xs = jnp.array([[0.3, 0.7], [1.0, 2.0]])
    close(jax.vmap(jax.grad(ours), (0, None))(xs, y), jax.vmap(jax.grad(theirs), (0, None))(xs, y))


def test_arrays_and_whole_numbers(double):
    x = jnp.array([0.3, 0.7])
    ours = tg.interop.to_jax(lambda x, k: {"e": np.exp(x) * x[0] ** k}, result={"e": x})
    close(ours(x, 2), {"e": jnp.exp(x) * x[0] ** 2})
    close(jax.jacrev(ours)(x, 2), jax.jacrev(lambda x: {"e": jnp.exp(x) * x[0] ** 2})(x))
    close(
        jax.jacrev(jax.jacrev(ours))(x, 2),
        jax.jacrev(jax.jacrev(lambda x: {"e": jnp.exp(x) * x[0] ** 2}))(x),
    )


def test_complex_numbers(double):
    def f(m):
        return lambda z: m.exp(z) * m.conj(z) * z

    z, ct = jnp.array([0.3 + 0.2j, 1.0 - 0.5j]), jnp.array([0.2 - 1.0j, 2.0 + 0.1j])
    close(jax.vjp(tg.interop.to_jax(f(np), result=z), z)[1](ct), jax.vjp(f(jnp), z)[1](ct))
    real = jax.ShapeDtypeStruct((), float)
    ours = tg.interop.to_jax(lambda z: np.sum(np.abs(z) ** 2 * np.sin(z).real), result=real)
    close(jax.grad(ours)(z), jax.grad(lambda z: jnp.sum(jnp.abs(z) ** 2 * jnp.sin(z).real))(z))
    x = tg.tensor(np.array(z), requires_grad=True)
    assert tg.gradcheck(tg.interop.from_jax(f(jnp)), (x,)) and tg.gradgradcheck(
        tg.interop.from_jax(f(jnp)), (x,)
    )


def test_single_precision_is_jax_s_own_default():
    x = jnp.array([1.0, 2.0])
    value, gradient = jax.value_and_grad(tg.interop.to_jax(lambda x: np.sum(x**3)))(x)
    assert value == 9.0 and gradient.tolist() == [3.0, 12.0] and gradient.dtype == value.dtype == np.float32


def test_jax_in_our_programs(double):
    f = tg.interop.from_jax(lambda x, p, k: jnp.sin(x) * p["w"] + k * jnp.outer(x, x) @ p["w"])
    x, w = (tg.tensor(v, requires_grad=True) for v in ([0.3, 0.7], [1.0, 2.0]))
    np.testing.assert_allclose(
        f(x, {"w": w}, 2).detach(), (np.sin(x) * w + 2 * np.outer(x, x) @ w).detach(), rtol=1e-14
    )
    assert tg.gradcheck(lambda x, w: f(x, {"w": w}, 2), (x, w))
    assert tg.gradgradcheck(lambda x, w: f(x, {"w": w}, 2), (x, w))


def test_refusals():
    with pytest.raises(DTypeError, match="jax_enable_x64"):
        tg.interop.from_jax(jnp.sum)(np.ones(2))
    with pytest.raises(Exception, match="give result="):
        tg.interop.to_jax(lambda x: x * 2)(jnp.ones(2))
    with pytest.raises(Exception, match="give result="):
        tg.interop.to_jax(lambda x: np.sum(x) * 1j)(jnp.ones(2))
    outside = tg.tensor(2.0, requires_grad=True)
    with pytest.raises(Exception, match="none of the arguments"):
        tg.interop.to_jax(lambda x: np.sum(x) * outside)(jnp.ones(2))
