"""Forward mode: case I-6, nesting, both mixtures with reverse mode, and that no tangent is lost."""

import asyncio
import copy
import gc
import importlib.util
import itertools
import math
import pickle
import sys
import threading
import weakref

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tapegrad as tg
from tapegrad.autograd import forward_ad as fw
from tapegrad.errors import TapeError

from ..programs import evaluate, programs, records_per_tape
from ..tiers import every

X, V = np.array([0.5, 1.5, -0.75]), np.array([1.0, -0.5, 2.0])


def constant(data=X):
    return tg.tensor(data, dtype=float)


def leaf(data=X):
    return tg.tensor(data, dtype=float, requires_grad=True)


def dual(x=None, tangent=None):
    x = constant() if x is None else x
    return fw.make_dual(x, tg.tensor(V if tangent is None else tangent, dtype=float))


def tangent_of(x):
    return fw.unpack_dual(x).tangent


def jvp(function, x=X, v=V):
    with fw.dual_level():
        out = fw.unpack_dual(function(dual(constant(x), v)))
    return out.primal, out.tangent


def nested(function, x, depth):
    """The derivatives of a function of a number, of orders 0 to depth, by levels inside each other."""

    def derivative(f):
        def slope(y):
            with fw.dual_level():
                found = fw.unpack_dual(f(fw.make_dual(y, tg.tensor(1.0)))).tangent
            return tg.tensor(0.0) if found is None else found

        return slope

    found = [function(tg.tensor(x)).item()]
    for _ in range(depth):
        function = derivative(function)
        found.append(function(tg.tensor(x)).item())
    return found


# ---------------------------------------------------------------- I-6


def test_I6_no_level_is_open():
    with pytest.raises(RuntimeError, match="dual_level"):
        dual()
    with pytest.raises(RuntimeError):
        fw.exit_dual_level()
    x = constant()
    assert fw.unpack_dual(x) == (x, None)


def test_I6_what_a_dual_is_made_of():
    with fw.dual_level():
        for bad in (np.ones(2), np.ones((3, 1)), 1.0):
            with pytest.raises(RuntimeError, match="shape") as found:
                dual(tangent=bad)
            assert isinstance(found.value, ValueError)
        with pytest.raises(ValueError, match="int64") as found:
            fw.make_dual(tg.tensor([1, 2, 3]), tg.tensor(V))
        assert isinstance(found.value, (RuntimeError, TypeError))
        with pytest.raises(ValueError, match="int64"):
            fw.make_dual(constant(), tg.tensor([1, 2, 3]))
        with pytest.raises(RuntimeError, match="complex128"):
            fw.make_dual(constant(), tg.tensor(V * 1j))
        for primal, tangent in ((X, tg.tensor(V)), (constant(), V), (constant(), None)):
            with pytest.raises(TypeError):
                fw.make_dual(primal, tangent)
        with pytest.raises(TypeError):
            fw.unpack_dual(X)


def test_I6_a_tangent_of_the_same_level_is_there_already():
    with fw.dual_level():
        d = dual()
        with pytest.raises(RuntimeError, match="already"):
            dual(d)
        with pytest.raises(RuntimeError, match="already"):
            fw.make_dual(constant(), d)


def test_I6_levels():
    assert fw.enter_dual_level() == 0
    assert fw.enter_dual_level() == 1
    with pytest.raises(RuntimeError, match="innermost"):
        fw.exit_dual_level(level=0)
    with pytest.raises(RuntimeError, match="not open"):
        fw.make_dual(constant(), constant(), level=2)
    fw.exit_dual_level(level=1)
    fw.exit_dual_level()
    with pytest.raises(RuntimeError):
        fw.exit_dual_level()
    with fw.dual_level() as outer, fw.dual_level() as inner:
        assert (outer, inner) == (0, 1)


def test_I6_nested_to_any_depth():
    x = 0.7
    assert nested(np.exp, x, 8) == pytest.approx([math.exp(x)] * 9, rel=1e-13)
    assert nested(np.sin, x, 6) == pytest.approx(
        [math.sin(x), math.cos(x), -math.sin(x), -math.cos(x), math.sin(x), math.cos(x), -math.sin(x)],
        rel=1e-13,
    )
    falling = [math.perm(5, k) * x ** (5 - k) if k <= 5 else 0.0 for k in range(8)]
    assert nested(lambda y: y**5, x, 7) == pytest.approx(falling, rel=1e-12)
    composed = nested(lambda y: np.tanh(np.exp(np.sin(y)) / (1 + y * y)), x, 4)
    by_reverse, y, z = [], leaf(x), None
    z = np.tanh(np.exp(np.sin(y)) / (1 + y * y))
    for _ in range(5):
        by_reverse.append(z.item())
        (z,) = tg.grad(z, y, create_graph=True)
    assert composed == pytest.approx(by_reverse, rel=1e-10)


def test_I6_second_derivative_of_a_squared_absolute_value():
    """At 0 it is 2, and of x |x| it is 0, as in reverse mode."""
    assert nested(lambda x: abs(x) ** 2, 0.0, 2) == [0.0, 0.0, 2.0]
    assert nested(lambda x: x * abs(x), 0.0, 2) == [0.0, 0.0, 0.0]


def test_I6_reverse_over_forward():
    x = leaf(2.0)
    with fw.dual_level():
        tangent = tangent_of(dual(x, 1.0) ** 3)
        assert tangent.item() == 12.0
        assert tg.grad(tangent, x)[0].item() == 12.0


def test_I6_no_perturbation_confusion():
    """The derivative of x d/dy (x + y) by x is 1: the inner tangent is not taken for the outer one."""
    with fw.dual_level():
        x = dual(tg.tensor(1.0), 1.0)
        with fw.dual_level():
            y = dual(tg.tensor(1.0), 1.0)
            inner = tangent_of(x + y)
        assert inner.item() == 1.0
        assert tangent_of(x * inner).item() == 1.0

        with fw.dual_level():  # d/dy (x y) = x, whose tangent is the outer one
            y = dual(x * 1.0, 1.0)
            assert tangent_of(tangent_of(y * y)) is None
            found = tangent_of(x * y)
        assert found.item() == 1.0
        assert tangent_of(found).item() == 1.0


def test_I6_tangents_of_outer_levels_can_be_read_and_made_inside():
    with fw.dual_level() as outer:
        x = dual(tg.tensor(2.0), 1.0)
        with fw.dual_level():
            y = dual(x, 10.0)
            z = y**3
            primal, tangent = fw.unpack_dual(z, level=outer)
            assert (primal.item(), tangent.item()) == (8.0, 12.0)
            assert (tangent_of(primal).item(), tangent_of(tangent).item()) == (120.0, 120.0)
            late = fw.make_dual(dual(tg.tensor(2.0), 10.0), tg.tensor(1.0), level=outer)
            assert tangent_of(fw.unpack_dual(late**3, level=outer).tangent).item() == 120.0
            assert fw.unpack_dual(x).tangent is None


# ---------------------------------------------------------------- torch agrees

torch = importlib.import_module("torch") if importlib.util.find_spec("torch") else None


def with_torch(test):
    """Compared where torch is installed, as in CI."""
    return pytest.mark.full(pytest.mark.skipif(torch is None, reason="torch is not installed")(test))


class Ours:
    fw, np = fw, np
    tensor = staticmethod(lambda data, requires_grad=False: tg.tensor(data, float, requires_grad))
    grad, no_grad = staticmethod(tg.grad), tg.no_grad


class Theirs:
    if torch is not None:
        fw, np, no_grad = torch.autograd.forward_ad, torch, torch.no_grad
        tensor = staticmethod(
            lambda data, requires_grad=False: torch.tensor(
                data, dtype=torch.float64, requires_grad=requires_grad
            )
        )
        grad = staticmethod(torch.autograd.grad)


def _written(m, d):
    y = d * 1
    y[:2] *= d[0]
    y[2] = 7.0
    return y


def _received(m, d):
    y = m.tensor([0.0] * 3)
    y[1:] = d[:2] ** 2
    return y


def _through_a_view(m, d):
    y = d * 1
    view = y[1:]
    view *= 3.0
    y += view[0] * 1.0
    return m.np.stack([y, y * d])


def _unrecorded(m, d):
    with m.no_grad():
        return d * d


BOTH = {
    "product": lambda m, d: d * d + 2 * d,
    "functions": lambda m, d: m.np.exp(m.np.sin(d)) / (1 + d * d),
    "sum": lambda m, d: (d * d).sum(),
    "index": lambda m, d: d[1:] * d[0],
    "gather": lambda m, d: d[[0, 0, 2]],
    "reshape": lambda m, d: d.reshape(3, 1) * d,
    "matmul": lambda m, d: d.reshape(3, 1) @ d.reshape(1, 3),
    "concatenate": lambda m, d: m.np.concatenate([d, d * d]),
    "where": lambda m, d: m.np.where(d > 0, d, d * d),
    "max": lambda m, d: d.max(),
    "clone": lambda m, d: d.reshape(3),
    "detach": lambda m, d: d.detach() * 2,
    "detached factor": lambda m, d: d.detach() * d,
    "no_grad": _unrecorded,
    "comparison": lambda m, d: d > 0,
    "written": _written,
    "received": _received,
    "through a view": _through_a_view,
    "not a dual": lambda m, d: m.tensor([1.0, 2.0]),
    "wrong shape": lambda m, d: m.fw.make_dual(m.tensor([1.0]), d),
    "twice": lambda m, d: m.fw.make_dual(d, m.tensor([1.0] * 3)),
    "no such level": lambda m, d: m.fw.make_dual(m.tensor([1.0]), m.tensor([1.0]), level=3),
    "exit of another level": lambda m, d: m.fw.exit_dual_level(level=3),
}


@with_torch
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", BOTH)
def test_I6_as_torch(name):
    def run(m):
        with m.fw.dual_level():
            d = m.fw.make_dual(m.tensor(X.tolist()), m.tensor(V.tolist()))
            try:
                out = m.fw.unpack_dual(BOTH[name](m, d))
            except Exception as error:
                return error
            return [None if t is None else t.tolist() for t in out]

    ours, theirs = run(Ours), run(Theirs)
    if isinstance(theirs, Exception):
        kind = next(k for k in (TypeError, ValueError, RuntimeError) if isinstance(theirs, k))
        assert isinstance(ours, kind)
        return
    for a, b in zip(ours, theirs, strict=True):
        assert (a is None) == (b is None)
        assert a is None or np.allclose(a, b, rtol=1e-13)


@with_torch
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("by", ["leaf", "dual"])
@pytest.mark.parametrize("create_graph", [True, False])
def test_I6_forward_over_reverse_as_torch(create_graph, by):
    found = []
    for m in (Ours, Theirs):
        with m.fw.dual_level():
            x = m.tensor(X.tolist(), requires_grad=True)
            d = m.fw.make_dual(x, m.tensor(V.tolist()))
            (g,) = m.grad((d**3).sum() * d[0], x if by == "leaf" else d, create_graph=create_graph)
            primal, tangent = m.fw.unpack_dual(g)
            found.append([primal.tolist(), tangent.tolist(), g.requires_grad, tangent.requires_grad])
    np.testing.assert_allclose(found[0][:2], found[1][:2], rtol=1e-13)
    assert found[0][2:] == found[1][2:]


# ---------------------------------------------------------------- with reverse mode


def test_gradients_of_duals_are_duals():
    """Hessian times vector, whichever way the gradient is taken."""
    hessian = np.diag(6 * X)
    with fw.dual_level():
        for take in ("grad", "recorded", "backward", "inputs"):
            x = leaf()
            y = (dual(x) ** 3).sum()
            if take == "backward":
                y.backward()
                g = x.grad
            elif take == "inputs":
                y.backward(inputs=[x])
                g = x.grad
            else:
                (g,) = tg.grad(y, x, create_graph=take == "recorded")
            assert g.requires_grad == (take == "recorded")
            np.testing.assert_allclose(tangent_of(g).tolist(), hessian @ V, rtol=1e-14)
            assert fw.unpack_dual(g).primal.tolist() == pytest.approx((3 * X**2).tolist())


def test_accumulated_gradients_keep_their_tangents():
    x = leaf()
    with fw.dual_level():
        (x * x).sum().backward()  # without a tangent
        kept = x.grad
        (dual(x) ** 3).sum().backward()
        assert x.grad is kept
        np.testing.assert_allclose(tangent_of(x.grad).tolist(), 6 * X * V)
        (x * x).sum().backward()
        np.testing.assert_allclose(tangent_of(x.grad).tolist(), 6 * X * V)
    np.testing.assert_allclose(x.grad.tolist(), 3 * X**2 + 4 * X)


def test_a_constant_that_moves_gives_its_tangent_to_gradients():
    x = leaf()
    with fw.dual_level():
        (g,) = tg.grad((x * dual()).sum(), x)
        assert g.tolist() == X.tolist()
        assert tangent_of(g).tolist() == V.tolist()


def test_graphs_that_nothing_moves_in_are_swept_as_ever(monkeypatch):
    """By compiled rules: whether a level is open somewhere changes no bit of their gradients."""

    def refused(*args, **rest):
        raise AssertionError("rules were run in Python")

    x = leaf()
    with records_per_tape(4):
        y = np.tanh(np.sin(x) * x).sum() * 1
        wanted = tg.grad(y, x, retain_graph=True)[0].tolist()
        with fw.dual_level():
            d = dual(leaf()) ** 2 * 3  # noted, on tapes of its own
            monkeypatch.setattr(sys.modules["tapegrad.autograd.sweeps"], "rerecord", refused)
            assert tg.grad(y, x)[0].tolist() == wanted
            with pytest.raises(AssertionError, match="in Python"):
                tg.grad(d.sum(), d)
        assert tg.grad(d.sum(), d)[0].tolist() == [1.0] * 3


def test_a_cotangent_that_moves():
    x = leaf()
    with fw.dual_level():
        for y in (x * 2.0, x):
            (g,) = tg.grad(y, x, dual())
            factor = 1.0 if y is x else 2.0
            assert tangent_of(g).tolist() == (factor * V).tolist()
            assert not g.requires_grad


def test_the_graph_outlives_the_level():
    x = leaf()
    with fw.dual_level():
        d = dual(x)
        y = (d**3).sum()
    assert tangent_of(y) is None
    assert y.requires_grad
    np.testing.assert_allclose(tg.grad(y * 2, [x, d])[0].tolist(), 6 * X**2)


def test_tangents_that_require_grad():
    v = leaf(V)
    with fw.dual_level():
        t = tangent_of(np.sin(fw.make_dual(constant(), v)))
    np.testing.assert_allclose(tg.grad(t.sum(), v)[0].tolist(), np.cos(X))


def test_duals_made_under_no_grad():
    """The primal is a view made there, without a history; the tangent is what it was."""
    x, v = leaf(), leaf(V)
    with fw.dual_level():
        with tg.no_grad():
            d = fw.make_dual(x, v)
        assert not d.requires_grad
        (g,) = tg.grad(tangent_of(d * d).sum(), v)
        assert g.tolist() == (2 * X).tolist()


def test_a_dual_that_is_made_a_leaf():
    with fw.dual_level():
        d = dual()
        assert not d.requires_grad
        assert d.requires_grad_() is d
        assert d.requires_grad
        assert d.is_leaf
        (d**3).sum().backward()
        np.testing.assert_allclose(d.grad.tolist(), 3 * X**2)
        np.testing.assert_allclose(tangent_of(d.grad).tolist(), 6 * X * V)
        (g,) = tg.grad((d**2).sum(), d, create_graph=True)
        np.testing.assert_allclose(tangent_of(g).tolist(), 2 * V)
    assert d.requires_grad


def test_retained_gradients_of_duals():
    x = leaf()
    with fw.dual_level():
        y = dual(x) ** 2
        assert not y.is_leaf
        y.retain_grad()
        (y * y).sum().backward()
        np.testing.assert_allclose(y.grad.tolist(), 2 * X**2)
        np.testing.assert_allclose(tangent_of(y.grad).tolist(), 4 * X * V)
        (y * 1).sum().backward(inputs=[y])
        np.testing.assert_allclose(y.grad.tolist(), 2 * X**2 + 1)


@pytest.mark.parametrize("capacity", [1, 4, 4096])
def test_graphs_over_several_tapes(capacity):
    def program(moving, held):
        y = moving * 1
        for _ in range(5):
            y = np.sin(y) * moving + held
        return y.sum()

    with records_per_tape(capacity), fw.dual_level():
        x = leaf()
        (g,) = tg.grad(program(dual(x), x), x)
        found = tangent_of(g).tolist()
    x, s = leaf(), leaf(0.0)
    (g,) = tg.grad(program(x + s * V, x), x, create_graph=True)
    wanted = [tg.grad(part, s, retain_graph=True)[0].item() for part in g]
    np.testing.assert_allclose(found, wanted, rtol=1e-12)


# ---------------------------------------------------------------- random programs

SETTINGS = settings(
    max_examples=40, deadline=None, derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)  # fmt: skip


def weighted(program, inputs, roots, cotangents):
    values = evaluate(program, inputs)
    return sum(np.sum(values[k] * ct) for k, ct in zip(roots, cotangents, strict=True))


@SETTINGS
@given(programs(), st.sampled_from([4, 4096]))
def test_random_programs(drawn, capacity):
    """Tangents against gradients, and Hessians times vectors all three ways."""
    inputs, program, roots, cotangents, _, random = drawn
    along = [random.uniform(-1, 1, x.shape) for x in inputs]
    with records_per_tape(capacity):
        leaves = [leaf(x) for x in inputs]
        y = weighted(program, leaves, roots, cotangents)
        first = tg.grad(y, leaves, create_graph=True, materialize_grads=True)
        slope = sum(np.sum(g * v) for g, v in zip(first, along, strict=True))
        second = tg.grad(slope, leaves, materialize_grads=True) if slope.requires_grad else None
        with fw.dual_level():
            leaves = [leaf(x) for x in inputs]
            duals = [fw.make_dual(x, tg.tensor(v)) for x, v in zip(leaves, along, strict=True)]
            out = weighted(program, duals, roots, cotangents)
            tangent = tangent_of(out)
            scale = 1 + abs(slope.item())
            assert abs((0.0 if tangent is None else tangent.item()) - slope.item()) <= 1e-9 * scale
            forward = [tangent_of(g) for g in tg.grad(out, leaves, create_graph=True, materialize_grads=True)]
            if tangent is not None and tangent.requires_grad:
                reverse = tg.grad(tangent, leaves, materialize_grads=True)
            else:
                reverse = [tg.zeros(x.shape) for x in leaves]
    for k, x in enumerate(inputs):
        wanted = np.zeros(x.shape) if second is None else second[k].numpy()
        size = 1 + np.abs(wanted).max(initial=0)
        for found in (forward[k], reverse[k]):
            found = np.zeros(x.shape) if found is None else found.detach().numpy()
            assert np.abs(found - wanted).max(initial=0) <= 1e-7 * size


def with_writes(random, x):
    """A random program that writes to Tensors, to their views and to what they are views of."""
    values = [x * 1.0]
    for _ in range(random.integers(3, 12)):
        k = random.integers(len(values))
        a, other = values[k], values[random.integers(len(values))]
        kind = random.integers(12 if a.ndim else 3)
        if kind == 0:
            values.append(np.tanh(a) * a + 0.1)
        elif kind == 1:
            values[k] *= np.cos(a)
        elif kind == 2:
            values[k] += 0.5
        elif kind == 3:
            values.append(a[[slice(0, 2), slice(1, None), slice(None, None, -1)][random.integers(3)]])
        elif kind == 4:
            a[0] = np.sin(other).sum()
        elif kind == 5:
            a[[0, -1]] = np.exp(a[[-1, 0]] * 0.1)
        elif kind == 6:
            values.append(a.reshape(-1))
        elif kind == 7:
            np.copyto(a, np.cos(a), where=np.arange(a.size).reshape(a.shape) % 2 == 0)
        elif kind == 8:
            np.add.at(a, [0, 0], other.sum() * 0.1)
        elif kind == 9:
            values.append(np.sin(a.detach()))
        elif kind == 10:
            received = tg.zeros(3)
            received[random.integers(3)] = other.sum() * 0.2
            values.append(received)
        elif len(values) > 1:
            del values[random.integers(1, len(values))]
    return sum((np.sin(v) * (k + 1)).sum() for k, v in enumerate(values))


@pytest.mark.parametrize("seed", every(range(60), 3))
def test_random_programs_that_write(seed):
    x, along = np.random.default_rng(seed).normal(size=(2, 2, 3) if seed % 2 else (2, 4))
    y = with_writes(np.random.default_rng(seed), a := leaf(x))
    (first,) = tg.grad(y, a, create_graph=True)
    slope = (first * along).sum()
    second = tg.grad(slope, a)[0].tolist() if slope.requires_grad else np.zeros(x.shape)
    with fw.dual_level():
        for mode, start in itertools.product(("recorded", "no_grad"), (leaf(x), constant(x))):
            if mode == "no_grad" and start.requires_grad:
                continue
            with tg.set_grad_enabled(mode == "recorded"):
                out = with_writes(np.random.default_rng(seed), fw.make_dual(start, tg.tensor(along)))
            assert out.item() == pytest.approx(y.item(), rel=1e-12)
            assert tangent_of(out).item() == pytest.approx(slope.item(), rel=1e-9, abs=1e-10)
            if start.requires_grad:
                (g,) = tg.grad(out, start)
                found = tangent_of(g)
                found = np.zeros(x.shape) if found is None else found.tolist()
                np.testing.assert_allclose(found, second, rtol=1e-8, atol=1e-9)


# ---------------------------------------------------------------- nothing is dropped silently


@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.parametrize(
    "convert",
    [
        lambda d: d.numpy(),
        lambda d: np.asarray(d),
        lambda d: np.array([d[0], d[1]]),
        lambda d: float(d[0]),
        lambda d: int(d[0]),
        lambda d: complex(d[0]),
        lambda d: math.sin(d[0]),
        lambda d: np.zeros(3).__setitem__(0, d[0]),
        lambda d: np.zeros(3).__setitem__(slice(None), d),
        lambda d: np.put(np.zeros(3), [0], d[:1]),
        lambda d: np.add.at(np.zeros(3), [0], d[:1]),
        lambda d: np.sin(d, out=tg.zeros(3)),
        lambda d: np.sum(d, out=np.zeros(())),
        lambda d: np.concatenate([d, d], out=np.zeros(6)),
        lambda d: np.add.reduce(d, out=np.zeros(())),
        lambda d: np.modf(d)[0].numpy(),
    ],
)
def test_what_would_drop_a_tangent_raises(convert, recorded):
    with fw.dual_level(), tg.set_grad_enabled(recorded):
        d = dual()
        with pytest.raises((RuntimeError, TypeError, ValueError)) as found:
            convert(d)
    # NumPy wraps what float() raises in a ValueError of its own when one element is assigned
    cause = found.value.__cause__ if type(found.value) is ValueError else found.value
    assert isinstance(cause, TapeError)
    assert "derivative" in str(cause) or "tangent" in str(cause) or "requires grad" in str(cause)


def test_copies_of_duals():
    with fw.dual_level():
        d = dual()
        for copied in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(RuntimeError, match="clone"):
                copied(d)
        assert tangent_of(d.clone()).tolist() == V.tolist()
        assert tangent_of(tg.array([d[0], 1.0])).tolist() == [V[0], 0.0]


def test_what_works_on_duals():
    with fw.dual_level():
        d = dual()
        assert d.tolist() == X.tolist()
        assert d[0].item() == 0.5
        assert bool(d[0] > 0)
        assert np.argmax(d).item() == 1
        assert f"{d[0]:.1f}" == "0.5"
        assert len(d) == 3
        assert repr(d[:2]) == "tensor([0.5, 1.5], tangent=tensor([ 1.0, -0.5]))"
        assert d.detach().numpy().tolist() == X.tolist()
        assert tangent_of(d.data) is None
        assert d.dtype == float


@pytest.mark.parametrize("capacity", [2, 4096])
def test_no_quick_way_takes_a_dual_for_a_tensor(capacity):
    """Operators and ufuncs that are compiled after the first sweep, with operands on the open tape."""
    x = leaf()
    tg.grad((x * x).sum(), x)  # compiles them
    operations = [
        lambda a, b: a + b, lambda a, b: a - b, lambda a, b: a * b, lambda a, b: a / b, lambda a, b: -a * b,
        lambda a, b: abs(a) * b, lambda a, b: a**2 * b, lambda a, b: a**3.0 * b, lambda a, b: np.add(a, b),
        lambda a, b: np.multiply(a, b), lambda a, b: np.square(a) * b, lambda a, b: np.sin(a) * b,
        lambda a, b: 2.0 * a * b, lambda a, b: a * 2 * b, lambda a, b: V * a * b, lambda a, b: 2.0 - a + b,
        lambda a, b: np.maximum(a, b), lambda a, b: a @ b, lambda a, b: a[1:] * b[:-1],
    ]  # fmt: skip
    with records_per_tape(capacity):
        for operation in operations:
            for first in (True, False):
                with fw.dual_level():
                    still = leaf(X + 2) * 1.0  # on the open tape
                    d = dual(leaf()) * 1.0
                    out = operation(d, still) if first else operation(still, d)
                    (g,) = tg.grad(out.sum(), d)
                    tangent = tangent_of(out)
                    assert tangent.shape == out.shape
                    assert float(tangent.sum().detach()) == pytest.approx(
                        float((fw.unpack_dual(g).primal * V).sum().detach()), rel=1e-12
                    )


@pytest.mark.parametrize("size", [1, 1_000, 20_000])
def test_arrays_of_all_sizes(size):
    random = np.random.default_rng(size)
    x, v = random.normal(size=size), random.normal(size=size)
    primal, tangent = jvp(lambda d: np.exp(np.sin(d)) * d + d[::-1], x, v)
    np.testing.assert_allclose(primal.numpy(), np.exp(np.sin(x)) * x + x[::-1], rtol=1e-12, atol=1e-14)
    wanted = np.exp(np.sin(x)) * (np.cos(x) * x + 1) * v + v[::-1]
    np.testing.assert_allclose(tangent.numpy(), wanted, rtol=1e-12, atol=1e-14)


def test_single_precision_stays_single():
    with fw.dual_level():
        d = fw.make_dual(tg.tensor(X, np.float32), tg.tensor(V))
        assert tangent_of(d).dtype == np.float32
        assert tangent_of(np.sin(d) * 2.0).dtype == np.float32
        assert tangent_of(d * tg.tensor(X)).dtype == np.float64


def test_complex_functions():
    z, v = np.array([1 + 2j, -0.5j]), np.array([0.5 - 1j, 2.0])
    with fw.dual_level():
        d = fw.make_dual(tg.tensor(z), tg.tensor(v))
        np.testing.assert_allclose(tangent_of(d * d).tolist(), 2 * z * v)
        np.testing.assert_allclose(tangent_of(d.conj()).tolist(), v.conj())
        np.testing.assert_allclose(tangent_of(np.abs(d)).tolist(), (z.conj() * v).real / abs(z))
        assert tangent_of(d.real).dtype == float


def test_views_of_a_written_dual_follow():
    with fw.dual_level():
        y = dual() * 1
        view, rows = y[1:], y.reshape(3, 1)
        y *= 2.0
        view[0] = 0.0
        assert tangent_of(y).tolist() == [2.0, 0.0, 4.0]
        assert tangent_of(view).tolist() == [0.0, 4.0]
        assert tangent_of(rows).tolist() == [[2.0], [0.0], [4.0]]


def test_writes_that_would_lose_a_tangent_raise():
    with fw.dual_level():
        y = dual() * 1
        with pytest.raises(RuntimeError):
            y.detach()[0] = dual()[0]
        x = leaf()
        for recorded in (True, False):
            with tg.set_grad_enabled(recorded), pytest.raises(RuntimeError):
                x[0] = dual()[0]
        with pytest.raises((RuntimeError, TypeError)):
            tg.tensor([1, 2, 3])[0] = dual()[0]
        z = dual(x) * 1
        with tg.no_grad(), pytest.raises(RuntimeError, match="no_grad"):
            z *= 2.0


def test_later_writes_do_not_reach_a_dual():
    a = X.copy()
    for x in (constant(), tg.from_numpy(a)):
        v = constant(V)
        with fw.dual_level():
            d = fw.make_dual(x, v)
            x[0], v[0] = 100.0, 100.0
            assert d.tolist() == X.tolist()
            primal, tangent = fw.unpack_dual(d)
            assert tangent.tolist() == V.tolist()
            primal[0], tangent[0] = 7.0, 7.0
            assert tangent_of(d).tolist() == V.tolist()
            assert d.tolist() == X.tolist()


# ---------------------------------------------------------------- levels, threads, memory


def test_at_the_end_tangents_are_gone():
    with fw.dual_level():
        d = dual()
        e = np.sin(d)
        view = e[1:]
    assert [tangent_of(x) for x in (d, e, view)] == [None] * 3
    assert not e.requires_grad
    assert e.numpy().tolist() == np.sin(X).tolist()
    assert e.numpy().flags.writeable
    assert copy.deepcopy(view).tolist() == np.sin(X)[1:].tolist()
    d.data = constant(V)
    assert d.tolist() == V.tolist()
    d = pickle.loads(pickle.dumps(e))
    assert d.is_leaf
    assert repr(d) == repr(constant(np.sin(X)))
    with fw.dual_level():
        assert tangent_of(d * 2) is None
        assert tangent_of(d * dual()).tolist() == (np.sin(X) * V).tolist()


def test_a_level_closes_when_its_block_raises():
    made = []

    def broken():
        with fw.dual_level():
            made.append(dual())
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        broken()
    with pytest.raises(RuntimeError):
        fw.exit_dual_level()
    assert tangent_of(made[0]) is None


def test_a_level_as_a_decorator():
    @fw.dual_level()
    def slope(x):
        return tangent_of(np.exp(dual(x)))

    for _ in range(2):
        np.testing.assert_allclose(slope(constant()).tolist(), np.exp(X) * V)


def test_levels_belong_to_threads_and_tasks():
    found = {}

    def work(k):
        for _ in range(20):
            with fw.dual_level() as number:
                d = dual(constant(X * k))
                found.setdefault(k, []).append((number, tangent_of(np.sin(d) * d).tolist()))

    with fw.dual_level():
        outside = dual()
        threads = [threading.Thread(target=work, args=(k,)) for k in range(1, 5)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert tangent_of(outside * outside).tolist() == (2 * X * V).tolist()
    for k, rows in found.items():
        x = k * X
        for number, tangent in rows:
            assert number == 0
            np.testing.assert_allclose(tangent, (np.cos(x) * x + np.sin(x)) * V)

    async def task(k):
        with fw.dual_level() as number:
            d = dual(constant(X * k))
            await asyncio.sleep(0.001 * (5 - k))
            return number, tangent_of(d * d).tolist()

    async def tasks():
        return await asyncio.gather(*(task(k) for k in range(1, 5)))

    for k, (number, tangent) in enumerate(asyncio.run(tasks()), 1):
        assert number == 0
        np.testing.assert_allclose(tangent, 2 * k * X * V)


def test_a_dual_of_another_thread_keeps_its_tangent():
    found = []
    with fw.dual_level():
        d = dual()

        def work():
            with tg.no_grad():
                found.append((np.sin(d) * d)._at.tangent.tolist())
                view = d[1:]
                found.append((view * 2)._at.tangent.tolist())

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    np.testing.assert_allclose(found[0], (np.cos(X) * X + np.sin(X)) * V)
    assert found[1] == (2 * V[1:]).tolist()


def test_nothing_is_kept_after_a_level():
    gc.collect()
    gc.disable()
    try:
        with fw.dual_level():
            y = np.sin(dual()) * dual()
            kept = [weakref.ref(y._at.level), weakref.ref(tangent_of(y)._v)]
            (g,) = tg.grad((y * leaf()).sum(), y.requires_grad_() * leaf(), allow_unused=True)
        assert g is None
        y + 0  # notices that the level is closed
        assert [r() is None for r in kept] == [True, True]
        x = leaf()
        with fw.dual_level():
            (g,) = tg.grad((dual(x) ** 3).sum(), x, create_graph=True)
            kept = weakref.ref(g._at.level)
        del g
        assert kept() is None
    finally:
        gc.enable()


def test_long_chains():
    with fw.dual_level():
        y = z = dual(constant(0.3), 1.0)
        for _ in range(20_000):  # beyond what Python recurses
            y, z = abs(y), np.sin(z)
        assert tangent_of(y).item() == 1.0
        del y, z


def test_lanes_of_a_level():
    vs = np.stack([V, 2 * V, np.zeros(3), V[::-1]])
    with fw.dual_level(lanes=4):
        d = fw.make_dual(constant(), tg.tensor(vs))
        found = tangent_of(np.sin(d) * d[0] + np.sum(d))
        with pytest.raises(RuntimeError, match="lanes"):
            dual()
    assert found.shape == (4, 3)
    for lane, v in enumerate(vs):
        wanted = jvp(lambda d: np.sin(d) * d[0] + np.sum(d), X, v)[1]
        np.testing.assert_allclose(found[lane].tolist(), wanted.tolist(), rtol=1e-14)
