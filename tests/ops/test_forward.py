"""Forward values of large operands: ufuncs of our own vector forms, and recycled buffers."""

import warnings

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.ops import REGISTRY, forward

FORMS = [name for name in ("sin", "cos", "tan", "tanh") if forward.has_vector_form(name)]


@pytest.mark.parametrize("char", "df")
@pytest.mark.parametrize("name", FORMS)
def test_a_vector_form_is_a_ufunc_for_any_layout(name, char):
    ufunc, numpy = forward.vector_form(REGISTRY[name], char), getattr(np, name)
    assert ufunc.nin == 1
    base = np.linspace(-3, 3, 4 * 3001).astype(char)
    for x in (
        base, base[::-1], base[::3], base.reshape(-1, 4).T, base.reshape(4, -1)[:, ::2], base[:0], base[5],
        np.broadcast_to(base[:7], (300, 7)), base.reshape(4, -1).copy(order="F"),
    ):  # fmt: skip
        found = ufunc(x)
        assert found.dtype == base.dtype
        np.testing.assert_allclose(found, numpy(x), rtol=4 * np.finfo(char).eps)
    out = base.copy()
    ufunc(out, out=out)  # in place
    np.testing.assert_allclose(out, numpy(base), rtol=4 * np.finfo(char).eps)
    far = np.array([1e30, 1e7, 0.1]).astype(char)  # where libm takes over
    np.testing.assert_allclose(ufunc(far), numpy(far), rtol=4 * np.finfo(char).eps)


@pytest.mark.parametrize("name", FORMS)
def test_a_vector_form_raises_no_spurious_warning(name):
    with warnings.catch_warnings(), np.errstate(all="raise"):
        warnings.simplefilter("error")
        x = np.concatenate([np.linspace(-1e4, 1e4, 2000), [0.0, -0.0, 5e-324, 1e-310, 1e5, 99999.9]])
        forward.vector_form(REGISTRY[name], "d")(x)


@pytest.mark.parametrize("name", FORMS[:3])
@pytest.mark.parametrize("n", [10, 20_000])
def test_an_invalid_operand_is_reported_as_numpy_does(name, n):
    x = tg.tensor(np.r_[np.zeros(n), np.inf], requires_grad=True)
    with np.errstate(all="raise"), pytest.raises(FloatingPointError, match="invalid"):
        getattr(np, name)(x)
    with np.errstate(all="raise"):
        getattr(np, name)(tg.tensor(np.r_[np.zeros(n), np.nan]))


@pytest.mark.parametrize("function", [np.maximum, np.minimum, np.add, np.power, np.hypot, np.arctan2])
@pytest.mark.parametrize("n", [100, 1000, 100_000])
def test_two_operands_of_any_size(function, n):
    a, b = np.linspace(0.5, 1, n), np.linspace(1, 0.5, n)
    x, y = tg.tensor(a, requires_grad=True), tg.tensor(b, requires_grad=True)
    np.testing.assert_allclose(function(x, y).detach().numpy(), function(a, b), rtol=1e-15)
    np.testing.assert_allclose(function(x, 0.7).detach().numpy(), function(a, 0.7), rtol=1e-15)
    np.testing.assert_allclose(function(0.7, y).detach().numpy(), function(0.7, b), rtol=1e-15)


@pytest.mark.parametrize("function", [np.sinc, np.i0, lambda x: np.abs(x) ** 2, np.cbrt])
def test_functions_that_are_no_ufuncs_take_operands_of_any_size(function):
    a = np.linspace(-2, 2, 100_000)
    np.testing.assert_array_equal(function(tg.tensor(a, requires_grad=True)).detach().numpy(), function(a))


@pytest.mark.parametrize("function", [np.max, np.min, np.prod, np.sum, np.mean, tg.logsumexp])
@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("axis", [0, 1, 2, (0, 2), None])
def test_reductions_of_operands_in_fortran_order(function, keepdims, axis):
    """Their results are in Fortran order too, and are read by the compiled sweep as they are."""
    rng = np.random.default_rng(4)
    plain = rng.uniform(0.5, 1.5, (3, 4, 5))
    ct = rng.uniform(0.5, 1.5, np.sum(plain, axis=axis, keepdims=keepdims).shape)
    found = []
    for order in "CF":
        x = tg.tensor(np.array(plain, order=order), requires_grad=True)
        out = function(x * 1.0, axis=axis, keepdims=keepdims)
        found.append(tg.grad(out, x, ct)[0].numpy())
    np.testing.assert_allclose(found[0], found[1], rtol=1e-14)
