"""Forward values of large operands: ufuncs of our own vector forms, and recycled buffers."""

import warnings

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.core import dispatch
from tapegrad.kernels import emit
from tapegrad.ops import REGISTRY, forward
from tapegrad.tape.tape import LARGE

UNARY = [op.name for op in REGISTRY.values() if op.arity == 1 and op.name in emit.VECTOR]
FORMS = [name for name in UNARY if forward.has_vector_form(REGISTRY[name], "d")]


@pytest.mark.parametrize("char", "df")
@pytest.mark.parametrize("name", FORMS)
@np.errstate(all="ignore")  # of some functions the domain is smaller
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


ERRORS = [
    ("exp", (1000.0,), "overflow"), ("sinh", (-1000.0,), "overflow"), ("expm1", (1000.0,), "overflow"),
    ("log", (0.0,), "divide"), ("log", (-1.0,), "invalid"), ("log1p", (-1.0,), "divide"),
    ("log1p", (-2.0,), "invalid"), ("log", (np.inf,), ""), ("exp", (np.inf,), ""), ("exp", (-np.inf,), ""),
    ("tan", (np.inf,), "invalid"), ("tan", (np.nan,), ""), ("tanh", (np.inf,), ""), ("cos", (1e30,), ""),
    ("hypot", (1e308, 1.7e308), "overflow"), ("hypot", (np.inf, np.nan), ""), ("hypot", (np.nan, 1.0), ""),
    ("hypot", (1.0, np.nan), ""), ("hypot", (0.0, 0.0), ""), ("power", (0.0, -1.0), "divide"),
    ("power", (-0.0, -3.0), "divide"), ("power", (10.0, 400.0), "overflow"),
    ("power", (-8.0, 0.5), "invalid"),
    ("power", (np.nan, 2.0), ""), ("power", (2.0, np.nan), ""), ("power", (-np.inf, 0.5), ""),
    ("arctan2", (0.0, -0.0), ""), ("arctan2", (np.inf, -np.inf), ""), ("arctan2", (np.nan, 0.0), ""),
]  # fmt: skip


@pytest.mark.parametrize("char", "df")
@pytest.mark.parametrize(("name", "point", "error"), ERRORS)
def test_errors_are_those_of_numpy(name, point, error, char):
    """Whether or not this machine would use the form."""
    ufunc, numpy = forward.vector_form(REGISTRY[name], char), getattr(np, name)
    point = np.clip(point, -3e38, 3e38) if char == "f" and np.isfinite(point).all() else point
    operands = [np.full(5, p, char) for p in point]
    for x in operands:
        x[[0, 1, 3, 4]] = 1
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(ufunc(*operands), numpy(*operands), rtol=4 * np.finfo(char).eps)
    for function in (ufunc, numpy):
        with np.errstate(all="raise", under="ignore"):
            if error:
                with pytest.raises(FloatingPointError, match=error):
                    function(*operands)
            else:
                function(*operands)


@pytest.mark.parametrize("char", "df")
@pytest.mark.parametrize("name", [*UNARY, "power", "hypot", "logaddexp", "arctan2"])
@pytest.mark.parametrize("more", [0, 1])
def test_the_value_of_an_op_is_that_of_recording(more, name, char):
    """In compiled code and in Python, where it is computed again too."""
    op = REGISTRY[name]
    x = np.linspace(0.1, 0.9, LARGE // np.dtype(char).itemsize + more).astype(char) + (name == "arccosh")
    tensors = [tg.tensor(x, requires_grad=True) for _ in range(op.arity)]
    value = forward.value(op, [x] * op.arity, None)
    assert value.dtype == char
    for found in (getattr(np, name)(*tensors), dispatch.apply(op, tensors)):
        np.testing.assert_array_equal(found.detach(), value)


@pytest.mark.parametrize("name", FORMS)
def test_a_vector_form_raises_no_spurious_warning(name):
    x = np.concatenate([np.linspace(-1e4, 1e4, 2000), [0.0, -0.0, 5e-324, 1e-310, 1e5, 99999.9]])
    with np.errstate(all="ignore"):
        x = x[np.isfinite(getattr(np, name)(x))]
    with warnings.catch_warnings(), np.errstate(all="raise"):
        warnings.simplefilter("error")
        forward.vector_form(REGISTRY[name], "d")(x)


@pytest.mark.parametrize("name", [n for n in FORMS if n in ("sin", "cos", "tan")])
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
    found = function(tg.tensor(a, requires_grad=True)).detach().numpy()
    np.testing.assert_allclose(found, function(a), rtol=1e-15)  # a form of our own may be it


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
