"""gradcheck and gradgradcheck: they find wrong rules, and cases H-8 and H-9."""

import importlib.util
import inspect
import sys
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
    op = REGISTRY["i0"]
    rule = op._vjp

    def wrong(ct, out, inputs, wanted, **attrs):
        return {0: rule(ct, out, inputs, wanted, **attrs)[0] * factor}

    assert tg.gradcheck(np.i0, leaf())
    monkeypatch.setattr(op, "_vjp", wrong)
    refuses(tg.gradcheck, np.i0, leaf())


@pytest.mark.parametrize("name", ["tanh", "hypot", "power"])
def test_wrong_recorded_rule_is_found_by_gradgradcheck(name, monkeypatch):
    """A recorded sweep that loses the history of what a rule read: right slopes, wrong curvature.

    By the rules in Python: that wrong programs of compiled code are found is tested with every op.
    """
    for call in ("rerecord", "rerecord_sealed"):
        monkeypatch.setattr(sys.modules["tapegrad.autograd.at_once"], call, lambda *_: None)
    functions = {"tanh": np.tanh, "hypot": lambda x: np.hypot(x, x * x), "power": lambda x: np.abs(x) ** 2.5}
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
    op = REGISTRY["i0"]
    rule = op._vjp
    monkeypatch.setattr(op, "_vjp", lambda *args, **attrs: {0: rule(*args, **attrs)[0] * 1.01}, raising=True)
    refuses(tg.gradcheck, np.i0, leaf())
    assert tg.gradcheck(np.i0, leaf(), rtol=0.1)
    assert tg.gradcheck(np.i0, leaf(), atol=1.0)
    refuses(tg.gradcheck, np.i0, leaf(), atol=0.0, rtol=1e-6)


# ---------------------------------------------------------------- H-9


def test_H9_backward_that_is_not_deterministic(monkeypatch):
    op, calls = REGISTRY["i0"], []
    rule = op._vjp

    def wavering(*args, **attrs):
        calls.append(1)
        return {0: rule(*args, **attrs)[0] * (1.0 + 1e-9 * (len(calls) % 2))}

    monkeypatch.setattr(op, "_vjp", wavering)
    assert "two sweeps differ" in refuses(tg.gradcheck, np.i0, leaf())
    assert tg.gradcheck(np.i0, leaf(), nondet_tol=1e-6)


def test_H9_backward_that_is_not_linear(monkeypatch):
    op = REGISTRY["i0"]
    rule = op._vjp

    def shifted(ct, *args, **attrs):
        return {0: rule(ct * 0.0 + 1.0, *args, **attrs)[0]}  # ignores the gradient it is given

    monkeypatch.setattr(op, "_vjp", shifted)
    assert "zero gradient" in refuses(tg.gradcheck, lambda x: np.i0(x).sum(), leaf())


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
    "function",
    [
        lambda x: x.detach() * 2.0,
        lambda x: (np.sin(x), x.detach()),
        lambda x: x.detach().numpy(),
        lambda x: x.sum().item(),
        lambda x: (np.sin(x), x.sum().item()),
        lambda x: [np.sin(x), np.sum(x.detach().numpy())],
    ],
    ids=["only", "second", "array", "number", "second is a number", "second is a scalar of NumPy's"],
)
@pytest.mark.parametrize("mode", [{}, {"fast_mode": True}, {"check_forward_ad": True}], ids=str)
def test_H9_output_without_derivative_fails_if_it_varies(function, mode):
    refuses(tg.gradcheck, function, leaf(), **mode)


@pytest.mark.parametrize("check", [tg.gradcheck, tg.gradgradcheck])
@pytest.mark.parametrize("result", [lambda x: None, lambda x: {"y": x}, lambda x: (x * 2.0, [x * 3.0])])
def test_what_cannot_be_compared_is_refused(check, result):
    with pytest.raises(TypeError, match=r"func returned (a|None).*Tensor"):
        check(result, leaf())


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


# ---------------------------------------------------------------- H-8: the options

EVERYTHING = {
    "check_forward_ad": True, "check_batched_grad": True, "check_batched_forward_grad": True,
    "check_grad_dtypes": True,
}  # fmt: skip
torch = importlib.import_module("torch") if importlib.util.find_spec("torch") else None


@pytest.mark.full
@pytest.mark.skipif(torch is None, reason="torch is not installed")
@pytest.mark.parametrize("name", ["gradcheck", "gradgradcheck"])
def test_H8_torchs_parameters(name):
    ours, theirs = (
        inspect.signature(getattr(library.autograd, name)).parameters for library in (tg, torch)
    )
    assert [p for p in ours if p != "order"] == list(theirs)
    for key, parameter in theirs.items():
        assert ours[key].kind == parameter.kind
        assert ours[key].default == parameter.default, key


def test_H8_names():
    assert tg.autograd.gradcheck is tg.gradcheck
    assert tg.autograd.gradgradcheck is tg.gradgradcheck


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("name", RIGHT)
def test_H8_right_functions_pass_all_checks(name, fast):
    assert tg.gradcheck(RIGHT[name], leaf(), fast_mode=fast, **EVERYTHING)
    assert tg.gradgradcheck(
        RIGHT[name], leaf(), fast_mode=fast, check_fwd_over_rev=True, check_batched_grad=True,
        gen_non_contig_grad_outputs=True,
    )  # fmt: skip


@pytest.mark.parametrize("fast", [False, True])
def test_H8_complex_functions_pass_all_checks(fast):
    z = tg.tensor(np.array([1 + 2j, 0.5 - 1j]), requires_grad=True)
    for function in (lambda z: z * z.conj(), lambda z: np.abs(z) ** 2, np.exp, lambda z: (z.real, z * 1j)):
        assert tg.gradcheck(function, z, fast_mode=fast, **EVERYTHING)


def test_H8_options_that_contradict_each_other():
    for options in (
        {"check_backward_ad": False},
        {"check_backward_ad": False, "check_forward_ad": True, "check_batched_grad": True},
        {"check_batched_forward_grad": True},
        {"order": 0},
    ):
        with pytest.raises(ValueError):
            tg.gradcheck(np.sin, leaf(), **options)
    assert tg.gradcheck(np.sin, leaf(), masked=True)
    assert tg.gradgradcheck(np.sin, leaf(), masked=False)


@pytest.mark.parametrize("fast", [False, True])
def test_H8_a_wrong_tangent_is_found_by_the_forward_check_only(fast, monkeypatch):
    op = REGISTRY["prod"]
    rule = op._jvp
    monkeypatch.setattr(op, "_jvp", lambda *args, **attrs: rule(*args, **attrs) * 1.01)
    assert tg.gradcheck(np.prod, leaf(), fast_mode=fast)
    message = refuses(tg.gradcheck, np.prod, leaf(), fast_mode=fast, check_forward_ad=True)
    for part in ("tangent", "output 0", "input 0", "element 0", "differences"):
        assert part in message
    refuses(tg.gradcheck, np.prod, leaf(), check_forward_ad=True, check_backward_ad=False)


def test_H8_a_wrong_gradient_is_no_matter_to_the_forward_check_alone(monkeypatch):
    op = REGISTRY["i0"]
    rule = op._vjp
    monkeypatch.setattr(op, "_vjp", lambda *args, **attrs: {0: rule(*args, **attrs)[0] * 1.01})
    assert tg.gradcheck(np.i0, leaf(), check_forward_ad=True, check_backward_ad=False)
    message = refuses(tg.gradcheck, np.i0, leaf(), fast_mode=True)
    for part in ("derivative", "element 0", "differences"):
        assert part in message


def test_H8_fast_mode_calls_the_function_a_few_times():
    calls = []

    def function(x):
        calls.append(1)
        return np.sin(x) * x[0]

    x = leaf(np.linspace(0.1, 1.0, 200))
    assert tg.gradcheck(function, x, fast_mode=True, check_forward_ad=True)
    assert len(calls) < 10


def test_H8_batches_that_are_wrong_are_found(monkeypatch):
    """The rule of lanes forgets the second of them."""
    from tapegrad.engine import rerecord

    rule = rerecord.vjp

    def forgetful(op, n, ct, *rest):
        found = rule(op, n, ct, *rest)
        return {k: np.concatenate([part[:1], part[1:] * 0]) for k, part in found.items()}

    monkeypatch.setattr(sys.modules["tapegrad.autograd.at_once"], "rerecord_sealed", lambda *_: None)
    monkeypatch.setattr(rerecord, "vjp", forgetful)
    assert tg.gradcheck(np.prod, leaf())
    assert "batch" in refuses(tg.gradcheck, np.prod, leaf(), check_batched_grad=True)


def test_H8_batched_tangents_that_are_wrong_are_found(monkeypatch):
    from tapegrad.core import forward_mode

    rule = forward_mode.jvp
    monkeypatch.setattr(forward_mode, "jvp", lambda *args: rule(*args)[::-1])
    assert tg.gradcheck(np.prod, leaf(), check_forward_ad=True)
    message = refuses(
        tg.gradcheck, np.prod, leaf(), check_forward_ad=True, check_batched_forward_grad=True
    )
    assert "batch" in message


def test_H8_batches_that_fail_are_named(monkeypatch):
    from tapegrad.engine import rerecord

    def broken(*args):
        raise ZeroDivisionError("mine")

    monkeypatch.setattr(sys.modules["tapegrad.autograd.at_once"], "rerecord_sealed", lambda *_: None)
    monkeypatch.setattr(rerecord, "vjp", broken)
    message = refuses(tg.gradcheck, np.sin, leaf(), check_batched_grad=True)
    assert "batch" in message
    assert "mine" in message


def test_H8_an_output_without_a_gradient_counts_as_one_of_zero(monkeypatch):
    """A sweep that adds something for each root it is given."""
    module = sys.modules["tapegrad.autograd.gradcheck"]
    grad = module.grad

    def greedy(outputs, inputs, seeds, **rest):
        found = grad(outputs, inputs, seeds, **rest)
        return [g + 1e-3 * (len(outputs) - 1) for g in found]

    function = lambda x: (np.sin(x), x * x)
    assert tg.gradcheck(function, leaf())
    monkeypatch.setattr(module, "grad", greedy)
    assert "alone" in refuses(tg.gradcheck, function, leaf())
    assert tg.gradcheck(function, leaf(), check_undefined_grad=False)


def test_H8_an_input_without_a_tangent_counts_as_one_of_zero(monkeypatch):
    op = REGISTRY["multiply"]
    rule = op.jvp

    def alone(tangents, *rest):
        found = rule(tangents, *rest)
        return found * 1.5 if None not in tangents else found

    function = lambda x, y: x * y
    options = {"check_forward_ad": True}
    assert tg.gradcheck(function, (leaf(), leaf()), **options)
    monkeypatch.setattr(op, "jvp", alone, raising=False)
    assert "input by input" in refuses(tg.gradcheck, function, (leaf(), leaf()), **options)
    assert tg.gradcheck(function, (leaf(), leaf()), check_undefined_grad=False, **options)


def test_H8_gradients_of_another_dtype(monkeypatch):
    module = sys.modules["tapegrad.autograd.gradcheck"]
    grad = module.grad

    def single(*args, **rest):
        return [g.astype(np.float32) for g in grad(*args, **rest)]

    monkeypatch.setattr(module, "grad", single)
    loose = {"atol": 1e-3}
    assert tg.gradcheck(np.sin, leaf(), **loose)
    assert "float32" in refuses(tg.gradcheck, np.sin, leaf(), check_grad_dtypes=True, **loose)


@pytest.mark.parametrize("order", [1, 2, 3])
def test_H8_a_wrong_derivative_of_some_order_is_found_there(order, monkeypatch):
    """A function whose derivatives are right up to one order, where a factor is held."""

    def wrong(x):
        a = x.detach()
        terms = [np.exp(a) * (x - a) ** k / (1.0, 1.0, 2.0, 6.0)[k] for k in range(1, 4) if k < order]
        return sum(terms) + np.exp(a)

    x = leaf((0.3, -0.2))
    if order > 1:
        assert tg.gradcheck(wrong, x, order=order - 1)
    with pytest.raises(GradcheckError) as found:
        tg.gradcheck(wrong, x, order=order)
    assert (f"order {order}" in str(found.value)) == (order > 1)
    assert tg.gradcheck(wrong, x, order=order, raise_exception=False) is False
    assert tg.gradcheck(np.exp, x, order=3, check_forward_ad=True)


def test_H8_gradgradcheck_checks_both_ways(monkeypatch):
    """A tangent that is wrong only where it is taken of a gradient."""
    op = REGISTRY["cos"]
    rule = op.jvp
    monkeypatch.setattr(op, "jvp", lambda *args: rule(*args) * 1.01, raising=False)
    assert tg.gradcheck(np.sin, leaf(), check_forward_ad=True)
    assert tg.gradgradcheck(np.sin, leaf())
    refuses(tg.gradgradcheck, np.sin, leaf(), check_fwd_over_rev=True)
    refuses(tg.gradgradcheck, np.sin, leaf(), check_fwd_over_rev=True, check_rev_over_rev=False)
    with pytest.raises(ValueError):
        tg.gradgradcheck(np.sin, leaf(), check_rev_over_rev=False)


def test_H9_without_an_exception():
    assert tg.gradcheck(lambda x: x.detach() * x, leaf(), raise_exception=False, fast_mode=True) is False
    assert tg.gradcheck(np.floor, leaf(), check_forward_ad=True, fast_mode=True)
    refuses(tg.gradcheck, lambda x: x.detach() * 2.0, leaf(), fast_mode=True)
