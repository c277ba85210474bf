"""gradcheck and gradgradcheck: they find wrong rules, and case H-9."""

import warnings

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.errors import GradcheckError
from tapegrad.ops import REGISTRY


def leaf(data=(0.5, 1.5, -0.75), dtype=float):
    return tg.tensor(data, dtype=dtype, requires_grad=True)


def refuses(check, *args, **kwargs):
    """Both ways of saying no; returns the message."""
    with pytest.raises(GradcheckError) as found:
        check(*args, **kwargs)
    assert isinstance(found.value, RuntimeError)
    assert check(*args, raise_exception=False, **kwargs) is False
    return str(found.value)


# ---------------------------------------------------------------- right functions pass

RIGHT = {
    "sin": np.sin,
    "several outputs": lambda x: (np.sin(x), x * x, x.sum()),
    "list of outputs": lambda x: [np.sin(x), x[0]],
    "matrix": lambda x: x.reshape(3, 1) @ x.reshape(1, 3),
    "scalar": lambda x: (x * x).sum(),
    "linear": lambda x: 3.0 * x,
    "part unused": lambda x: x[:1],
    "prod": np.prod,
    "empty": lambda x: x[:0],
}


@pytest.mark.parametrize("name", RIGHT)
@pytest.mark.parametrize("check", [tg.gradcheck, tg.gradgradcheck])
def test_right_functions_pass(check, name):
    assert check(RIGHT[name], leaf()) is True
    assert check(RIGHT[name], (leaf(),), raise_exception=False) is True


def test_several_inputs_of_which_some_are_varied():
    x, c, w = leaf(), tg.tensor([1.0, 2.0, 3.0]), leaf(0.3)
    assert tg.gradcheck(lambda a, b, k, n: np.sin(a * b) * k**n, (x, c, w, 2))
    assert tg.gradgradcheck(lambda a, b, k, n: np.sin(a * b) * k**n, (x, c, w, 2))


def test_inputs_keep_their_values_and_gradients():
    x = leaf()
    x.grad = tg.ones(3)
    tg.gradcheck(np.sin, x)
    tg.gradgradcheck(np.sin, x)
    assert x.tolist() == [0.5, 1.5, -0.75]
    assert x.grad.tolist() == [1.0] * 3


def test_one_tensor_passed_twice():
    x = leaf()
    assert tg.gradcheck(lambda a, b: a * np.sin(b), (x, x))
    assert tg.gradgradcheck(lambda a, b: a * np.sin(b), (x, x))


# ---------------------------------------------------------------- wrong ones do not


def test_wrong_derivative_of_a_function():
    message = refuses(tg.gradcheck, lambda x: x.detach() * x, leaf())
    for part in ("output 0", "input 0", "differences"):
        assert part in message


def test_message_names_output_input_and_element():
    def wrong(a, b):
        return np.sin(a), np.concatenate([b[:1], b[1:] * b[1:].detach()])

    message = refuses(tg.gradcheck, wrong, (leaf(), leaf()))
    for part in ("output 1", "input 1", "element 1"):
        assert part in message


@pytest.mark.parametrize("factor", [0.0, -1.0, 1.01, 2.0, np.nan])
def test_wrong_rule_is_found(factor, monkeypatch):
    op = REGISTRY["prod"]
    rule = op._vjp

    def wrong(ct, out, inputs, wanted, **attrs):
        return {0: rule(ct, out, inputs, wanted, **attrs)[0] * factor}

    assert tg.gradcheck(np.prod, leaf())
    monkeypatch.setattr(op, "_vjp", wrong)
    refuses(tg.gradcheck, np.prod, leaf())


@pytest.mark.parametrize("name", ["sin", "multiply", "tanh"])
def test_wrong_recorded_rule_is_found_by_gradgradcheck(name, monkeypatch):
    """A recorded sweep that loses the history of what a rule read: right slopes, wrong curvature."""
    functions = {"sin": np.sin, "multiply": lambda x: x * x, "tanh": np.tanh}
    assert tg.gradgradcheck(functions[name], leaf())
    op = REGISTRY[name]
    product = op.product

    def forgetful(k, ct, out, inputs):
        return product(k, ct, out, [x.detach() if isinstance(x, tg.Tensor) else x for x in inputs])

    monkeypatch.setattr(op, "product", forgetful, raising=False)
    assert tg.gradcheck(functions[name], leaf())
    refuses(tg.gradgradcheck, functions[name], leaf())


def test_right_value_and_slope_with_a_wrong_second_derivative():
    """x*x written with a detached factor: the slope is right, as a constant."""

    def wrong(x):
        c = x.detach()
        return 2.0 * c * x - c * c

    x = leaf()
    (g,) = tg.grad(wrong(x).sum(), x)
    assert g.tolist() == [1.0, 3.0, -1.5]
    refuses(tg.gradgradcheck, wrong, x)


def test_tolerances(monkeypatch):
    op = REGISTRY["prod"]
    rule = op._vjp
    monkeypatch.setattr(op, "_vjp", lambda *args, **attrs: {0: rule(*args, **attrs)[0] * 1.01}, raising=True)
    refuses(tg.gradcheck, np.prod, leaf())
    assert tg.gradcheck(np.prod, leaf(), rtol=0.1)
    assert tg.gradcheck(np.prod, leaf(), atol=1.0)
    refuses(tg.gradcheck, np.prod, leaf(), atol=0.0, rtol=1e-6)


# ---------------------------------------------------------------- H-9


def test_H9_backward_that_is_not_deterministic(monkeypatch):
    op, calls = REGISTRY["prod"], []
    rule = op._vjp

    def wavering(*args, **attrs):
        calls.append(1)
        return {0: rule(*args, **attrs)[0] * (1.0 + 1e-9 * (len(calls) % 2))}

    monkeypatch.setattr(op, "_vjp", wavering)
    assert "two sweeps differ" in refuses(tg.gradcheck, np.prod, leaf())
    assert tg.gradcheck(np.prod, leaf(), nondet_tol=1e-6)


def test_H9_backward_that_is_not_linear(monkeypatch):
    op = REGISTRY["prod"]
    rule = op._vjp

    def shifted(ct, *args, **attrs):
        return {0: rule(ct * 0.0 + 1.0, *args, **attrs)[0]}  # ignores the gradient it is given

    monkeypatch.setattr(op, "_vjp", shifted)
    assert "zero gradient" in refuses(tg.gradcheck, np.prod, leaf())


@pytest.mark.parametrize("check", [tg.gradcheck, tg.gradgradcheck])
@pytest.mark.parametrize("inputs", [(), (tg.tensor([1.0, 2.0]),), (1.0, np.ones(2)), [tg.tensor(2.0)]])
def test_H9_no_input_requires_grad(check, inputs):
    function = lambda *args: tg.ones(2)
    for raise_exception in (True, False):
        with pytest.raises(ValueError, match="no input requires grad"):
            check(function, inputs, raise_exception=raise_exception)


@pytest.mark.parametrize("check", [tg.gradcheck, tg.gradgradcheck])
def test_H9_float32_warns(check):
    with pytest.warns(UserWarning, match="float32.*float64"):
        check(lambda x: x * 3.0, leaf(dtype=np.float32), eps=1e-2, atol=1e-2, rtol=1e-2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check(lambda x: x * 3.0, leaf())


def test_H9_input_that_repeats_its_memory():
    x = np.broadcast_to(leaf(1.0).reshape(1), (3,))
    assert x.strides == (0,)
    with pytest.raises(GradcheckError, match="repeats elements") as found:
        tg.gradcheck(np.sin, x)
    assert isinstance(found.value, RuntimeError)
    shared = tg.from_numpy(np.broadcast_to(np.ones(1), (3,))).requires_grad_()
    with pytest.raises(RuntimeError):
        tg.gradcheck(np.sin, shared)


@pytest.mark.parametrize(
    "function",
    [np.sign, np.floor, lambda x: x > 0, lambda x: np.argmax(x), lambda x: tg.ones(2), lambda x: x.shape],
    ids=["sign", "floor", "comparison", "argmax", "constant", "no tensor"],
)
def test_H9_output_without_derivative_passes_if_it_does_not_vary(function):
    assert tg.gradcheck(function, leaf()) is True


@pytest.mark.parametrize(
    "function", [lambda x: x.detach() * 2.0, lambda x: (np.sin(x), x.detach())], ids=["only", "second"]
)
def test_H9_output_without_derivative_fails_if_it_varies(function):
    refuses(tg.gradcheck, function, leaf())


def test_H9_exceptions_of_the_function_pass_through():
    def broken(x):
        raise ZeroDivisionError("mine")

    for raise_exception in (True, False):
        with pytest.raises(ZeroDivisionError, match="mine"):
            tg.gradcheck(broken, leaf(), raise_exception=raise_exception)


def test_gradgradcheck_takes_cotangents():
    x, v = leaf(), leaf((1.0, -2.0, 0.5))
    assert tg.gradgradcheck(np.sin, x, v)
    assert tg.gradgradcheck(np.sin, [x], [tg.tensor([1.0, -2.0, 0.5])])
    assert tg.gradgradcheck(lambda a: (np.sin(a), a[0] * a), x, (v, leaf((0.1, 0.2, 0.3))))
