"""Backward from a tape that has more leaves: those of other results, and such as nobody holds any more."""

import sys

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.errors import GraphFreedError
from tapegrad.kernels import abi
from tapegrad.kernels.replay import layout
from tapegrad.tape import tape as tapes

backward = sys.modules["tapegrad.autograd.backward"]
pytestmark = pytest.mark.usefixtures("compiled")


@pytest.fixture
def no_engine(monkeypatch):
    """Lets nothing but the compiled call find gradients, where there is one, once kernels are loaded."""

    def refuse(*loaded):
        for y in loaded:
            np.real(y).backward()
        if abi.native() and not layout.BOUNDS:
            monkeypatch.setattr(backward, "run", lambda *_, **__: pytest.fail("the engine sweeps"))

    return refuse


def numbers(n=5):
    return np.linspace(0.5, 1.5, n)


def leaf(n=5, dtype=float):
    return tg.tensor(numbers(n).astype(dtype), requires_grad=True)


PROGRAMS = {
    "chain": lambda x, z: np.sum(np.sin(x * z) / z + x),
    "views": lambda x, z: (x[1:] * z[:-1]).sum() + x.reshape(-1, 1).T.sum() + z[2] * x[0],
    "products": lambda x, z: (x[:, None] * z) @ x @ z,
    "rules in Python": lambda x, z: np.sum(np.linalg.cholesky(np.eye(5) * 5 + x[:, None] * x) @ z),
}


@pytest.mark.parametrize("held", ["leaf and result", "leaf", "result", "nothing"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128"])
@pytest.mark.parametrize("n", [1, 5, 5_000])
def test_leaves_of_another_result(n, dtype, held, no_engine):
    """On the same tape, which is left alone by the sweep."""
    no_engine(np.sum(leaf(n, dtype) * leaf(n, dtype)))
    other = leaf(n, dtype)
    result = np.real(np.sum(other * other * other))
    if "leaf" not in held:
        other = None
    if "result" not in held:
        result = None
    x = leaf(n, dtype)
    y = np.real(np.sum(x * x * x))
    for count in (1, 2):
        y.backward(retain_graph=count == 1)
        np.testing.assert_allclose(x.grad.numpy(), count * 3 * numbers(n) ** 2, rtol=1e-6)
    if other is not None:
        assert other.grad is None
        if result is not None:
            result.backward()
            np.testing.assert_allclose(other.grad.numpy(), 3 * numbers(n) ** 2, rtol=1e-6)


@pytest.mark.parametrize("way", ["open", "left", "sealed"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_leaf_that_is_gone(program, way, no_engine, monkeypatch):
    x, z = leaf(), leaf()
    no_engine(PROGRAMS[program](x, z))
    wanted, x.grad = x.grad.tolist(), None
    y = PROGRAMS[program](x, z)
    del z
    if way != "open":
        tapes.leave(y._tape)
    if way == "sealed":
        y._tape.seal()
    y.backward(retain_graph=True)
    assert x.grad.tolist() == wanted
    y.backward()
    assert x.grad.tolist() == (2 * np.array(wanted)).tolist()
    monkeypatch.undo()  # the engine says so
    with pytest.raises(GraphFreedError):
        y.backward()


def test_what_led_to_a_leaf_that_is_gone_is_released():
    x, z = leaf(), leaf()
    middle = z * z
    y = np.sum(middle * middle + x * x)
    del z
    y.backward()
    with pytest.raises(GraphFreedError):
        tg.grad(y, middle)


def test_all_leaves_are_gone(no_engine, monkeypatch):
    no_engine(np.sum(leaf() * 1.0))
    x = leaf()
    y = np.sum(x * x)
    del x
    y.backward()
    monkeypatch.undo()
    with pytest.raises(GraphFreedError):
        y.backward()


def test_hooks_of_leaves_beside(no_engine):
    """Those of leaves that are gone see their gradients as others do; those of other results see none."""
    no_engine(np.sum(leaf() * leaf()))
    seen, x, z, other = [], leaf(), leaf(), leaf()
    for name, each in (("x", x), ("z", z), ("other", other)):
        each.register_hook(lambda g, name=name: seen.append((name, g.tolist())))
        each.register_post_accumulate_grad_hook(lambda each, name=name: seen.append((name, "there")))
    w = np.sum(other * 2.0)
    y = np.sum(x * z)
    del z, each
    y.backward()
    assert sorted(seen, key=str) == [("x", "there"), ("x", numbers().tolist()), ("z", numbers().tolist())]
    assert w.requires_grad
    assert other.grad is None


def test_gradients_that_are_there_are_added_to(no_engine):
    x, other = leaf(), leaf()
    no_engine((other * 3.0).sum(), np.sum(leaf() * leaf()))
    grad = other.grad
    for count in (1, 2):
        result = np.sum(other * other)
        np.sum(x * x).backward()
        assert other.grad is grad
        assert grad.tolist() == [3.0] * 5
        assert x.grad.tolist() == (2.0 * count * numbers()).tolist()
        assert result.requires_grad


@pytest.mark.parametrize("create", [False, True])
@pytest.mark.parametrize("between", [*range(20), 300])
def test_what_roots_do_not_depend_on_lies_between(between, create):
    """Before, after and amid what they do; records with many operands among it."""
    x, other, seen = leaf(), leaf(), []

    def apart():
        return [np.where(other > 0, other, k) for k in range(between)]

    kept = [apart()]
    y = np.sin(x) * np.stack([x[k] for k in range(5)])
    kept.append(apart())
    z = np.where(y > 0, y, x) * x
    kept.append(apart())
    z.register_hook(lambda g: seen.append(g.tolist()))
    total = np.sum(np.concatenate([z, y[:2]]))
    kept.append(apart())
    at = numbers()
    expected = at * (2 * np.sin(at) + at * np.cos(at))  # of sin(x) * x * x
    expected[:2] += (np.sin(at) + at * np.cos(at))[:2]
    (g,) = tg.grad(total, x, create_graph=create, retain_graph=True)
    np.testing.assert_allclose(g.tolist(), expected, rtol=1e-13)
    total.backward(retain_graph=True)
    total.backward()
    np.testing.assert_allclose(x.grad.tolist(), 2 * g.detach().numpy(), rtol=1e-14)
    assert seen == [[1.0] * 5] * 3
    assert other.grad is None
    assert len(kept) == 4


@pytest.mark.parametrize("create", [False, True])
def test_steps_of_a_growing_history(create):
    """Gradients by one leaf, added up over several tapes, and the derivative of their sum."""
    w, total, expected, at = leaf(), 0.0, 0.0, numbers()
    for k in range(300):
        (g,) = tg.grad(np.sum(np.sin(w) * w * k), w, create_graph=create, retain_graph=True)
        np.testing.assert_allclose(g.tolist(), k * (np.cos(at) * at + np.sin(at)), rtol=1e-13)
        total = total + np.sum(g * w)
        first = k * (np.cos(at) * at + np.sin(at))
        expected = expected + first + (k * at * (2 * np.cos(at) - np.sin(at) * at) if create else 0)
    np.testing.assert_allclose(tg.grad(total, w)[0].tolist(), expected, rtol=1e-11)
