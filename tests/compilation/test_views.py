"""Views in a call that leaves its way: they see what is written later, whatever made the call leave."""

import warnings

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.kernels import abi

VIEWS = {
    "broadcast_to": lambda x: np.broadcast_to(x, (2, 4)),
    "meshgrid": lambda x: np.meshgrid(x, np.zeros(2), copy=False)[0],
    "conj of real": np.conj,
    "einsum": lambda x: np.einsum("ii->i", x.reshape(2, 2)),
    "diag": lambda x: np.diag(x.reshape(2, 2)),
    "a part": lambda x: x[1:3],
    "reshape": lambda x: x.reshape(2, 2).T,
    "flip": np.flip,
}
WRITES = {
    "an element": "x[0] = 5.0",
    "all": "x *= 2.0",
    "through a view": "x[1:][0] = 3.0",
    "to the result": "y[0] = 2.0",
    "to a part of the result": "y[:1] *= 3.0",
}
TEXT = """
def f(x, k, view):
    x = x * 1.0
    y = view(x)
    z = np.sum(y * y) / (1.0 if k != warn else 0.0)
    if k >= 4:
        {write}
    return np.sum(y * y * 1.5) + np.sum(x * x) + (z if k != warn else 0.0)
"""


def outcome(call, *args):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            value, gradient = call(*args)
        except ValueError as error:
            return str(error)
    return value, gradient.tolist(), [str(w.message) for w in told]


@pytest.mark.parametrize("warn", [-1, 4])
@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("name", VIEWS)
def test_they_see_what_is_written_when_a_call_leaves(name, write, warn):
    space = {"np": np, "warn": warn}
    exec(TEXT.format(write=WRITES[write]), space)
    compiled, recorded = tg.compile(space["f"]), tg.func.value_and_grad(space["f"])
    for k in range(7):
        x = np.array([1.0, 2.0, 3.0, 4.0]) + k
        found = outcome(compiled.value_and_grad, x, k, VIEWS[name])
        assert found == outcome(recorded, x, k, VIEWS[name])


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("name", ["a part", "reshape", "flip", "broadcast_to"])
def test_views_of_tensors_see_what_is_written_when_a_call_leaves(name, write):
    """The argument that a function has is another Tensor than its caller's, which no write changes."""
    space = {"np": np, "warn": -1}
    exec(TEXT.format(write=WRITES[write]).replace("x = x * 1.0", "pass"), space)

    def pulled(call, x, k, view):
        t = tg.tensor(x, requires_grad=True)
        y = call(t, k, view)
        (g,) = tg.grad(y, t)
        assert t.tolist() == x.tolist()
        return y.detach(), g

    compiled, recorded = tg.compile(space["f"]), lambda t, k, view: space["f"](t * 1.0, k, view)
    for k in range(6):
        x = np.array([1.0, 2.0, 3.0, 4.0]) + k
        assert outcome(pulled, compiled, x, k, VIEWS[name]) == outcome(pulled, recorded, x, k, VIEWS[name])


def test_what_is_broadcast_has_derivatives_of_tensors():
    f = lambda x: np.broadcast_to(x[0], (2, 3)) * x
    compiled = tg.compile(f)
    for k in range(5):
        results = []
        for function in (compiled, f):
            x = tg.tensor([1.0, 2.0, 3.0 + k], requires_grad=True)
            y = function(x)
            (first,) = tg.grad(np.sum(y * y), x, create_graph=True)
            (second,) = tg.grad(np.sum(first * first), x)
            results.append((y, first, second))
        for found, wanted in zip(*results, strict=True):
            np.testing.assert_allclose(found.detach().numpy(), wanted.detach().numpy(), rtol=1e-14)


@pytest.mark.parametrize("order", ["before", "after"])
def test_the_conjugate_of_a_real_array_is_another_array(order):
    """As in NumPy, whose method alone gives the array itself; whatever computes it."""
    x = tg.tensor([1.0, 2.0], requires_grad=True)
    for write in (False, True):
        y = x * 1.0
        z = np.conj(y) if order == "before" else np.conjugate(y)
        if write:
            y[0] = 5.0
        assert z.tolist() == [1.0, 2.0]
    assert x.conj() is x


LEAVING = ["u[0] += s", "u[1] = 0.5 * s", "u[1:] *= s", "v = u[::2]; v += s", "u += s", "u[[0, 2]] = x[:2]"]


@pytest.mark.skipif(not abi.native(), reason="there are no programs")
@pytest.mark.parametrize("write", LEAVING)
def test_calls_that_leave_their_way_behind_a_write_are_learned_from(write):
    text = f"""
def f(x, k):
    u, s = x * 1.0, np.sin(x[0])
    {write}
    return s + (np.tanh if k else np.cos)(np.sum(u * u))
"""
    names = {"np": np}
    exec(text, names)
    compiled, recorded = tg.compile(names["f"], wait=True), tg.func.value_and_grad(names["f"])
    for k in (0, 0, 0, 1, 1, 0, 1, 1, 0):
        x = np.array([0.3, 0.7, -0.2]) * (1.0 + 0.1 * k)
        (value, gradient), (wanted, expected) = compiled.value_and_grad(x, k), recorded(x, k)
        assert value == wanted
        assert np.allclose(gradient, expected, rtol=0, atol=1e-15)
    (known,) = compiled.explain().kinds
    assert [way.calls for way in known.ways] == [3, 3] and not known.not_learned


@pytest.mark.parametrize(
    "write", ["y[0] = 2.0", "y *= 2.0", "y[1:][0] = 3.0", "s = s * y.detach().numpy().strides[0]"]
)
@pytest.mark.parametrize("where", ["np.cos(s)", "0.0"])
def test_numbers_that_are_broadcast_are_read_only_when_a_call_leaves(write, where):
    text = f"""
def f(x, k):
    s = np.sin(x[0])
    y = np.broadcast_to(s, (3,))
    if k:
        p = {where}
        {write}
    return np.sum(y * y * x) + s
"""
    names = {"np": np}
    exec(text, names)
    compiled, recorded = tg.compile(names["f"], wait=True), tg.func.value_and_grad(names["f"])
    for k in (0, 0, 0, 1, 1, 0, 1):
        x = np.array([0.3, 0.7, -0.2])
        found, wanted = outcome(compiled.value_and_grad, x, k), outcome(recorded, x, k)
        assert str(found) == str(wanted)
