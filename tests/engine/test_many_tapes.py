"""Sweeps over many tapes: compiled code goes from one to the next, stops for Python, and goes on."""

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.engine import plan
from tapegrad.errors import GraphFreedError
from tapegrad.kernels import abi
from tapegrad.kernels.replay import layout
from tapegrad.kernels.state import State
from tapegrad.tape import tape as tapes
from tapegrad.tape.tape import LARGE
from tapegrad.tensor import wrap

AT = np.linspace(0.1, 1.0, 5)


def leaf(value=AT):
    return tg.tensor(value, requires_grad=True)


def cut():
    """Let what is recorded next stand on another tape."""
    if tapes.local.tape is not None:
        tapes.close(tapes.local.tape)


def chain(x, n, cuts=True, seen=None):
    """A loss whose history is so many tapes long, or as long on one tape."""
    y = x * 1.0
    for _ in range(n):
        y = np.sin(y) * x + 0.5 * y
        if seen is not None:
            seen.append(y)
        if cuts:
            cut()
    return np.sum(y)


def slope(n, at=AT):
    """The gradient of `chain`, by complex steps."""
    y = z = at + 1e-30j
    for _ in range(n):
        y = np.sin(y) * z + 0.5 * y
    return y.imag / 1e-30


@pytest.fixture
def calls(monkeypatch):
    """What compiled code was asked for, by the engine."""
    asked, run = [], State.run

    def noted(self, what, *more):
        asked.append(what)
        return run(self, what, *more)

    monkeypatch.setattr(State, "run", noted)
    return asked


@pytest.fixture
def read(monkeypatch):
    """The serials of the tapes that sweeps have planned."""
    found, original = [], plan.Plan._read

    def noted(self, serial):
        found.append(serial)
        return original(self, serial)

    monkeypatch.setattr(plan.Plan, "_read", noted)
    return found


@pytest.mark.parametrize("n", [2, 25, 300])
@pytest.mark.parametrize("every", [False, True])
def test_all_tapes_are_swept_in_one_call(calls, n, every):
    x = leaf()
    loss = chain(x, n)
    chain(x, n).backward()  # kernels are there
    x.grad = None
    calls.clear()
    if every:
        loss.backward(retain_graph=True)
        g = x.grad
    else:
        (g,) = tg.grad(loss, x, retain_graph=True)
    assert calls.count(layout.RUN_TAPES) == 1
    assert calls.count(layout.MARK_TAPES) == (n + 1 if every else 1)  # older tapes are read as they are met
    np.testing.assert_allclose(g.numpy(), slope(n), rtol=1e-12)


def test_what_has_only_a_rule_in_python_stops_it_and_it_goes_on(calls):
    x, seen, came = leaf(), [], []
    loss = chain(x, 25, seen=seen)
    seen[10].register_hook(came.append)
    calls.clear()
    (g,) = tg.grad(loss, x, retain_graph=True)
    # at the record, and before each older tape, as the hook could have done anything
    assert calls.count(layout.RUN_TAPES) == 2 + 10
    assert len(came) == 1
    np.testing.assert_allclose(g.numpy(), slope(25), rtol=1e-12)


@pytest.mark.parametrize("create", [False, True])
def test_only_tapes_between_the_roots_and_what_is_wanted_are_planned(read, create):
    x, other = leaf(), leaf()
    y = np.sin(x)
    cut()
    aside = other * 2.0
    for _ in range(20):
        cut()
        aside = np.sin(aside) * other
    beside = np.cos(y)
    own = beside._tape.serial
    cut()
    loss = np.sum(aside * beside)
    cut()
    later = loss * 2.0
    read.clear()
    (g,) = tg.grad(later, x, create_graph=create, retain_graph=True)
    assert sorted(read) == [y._tape.serial, own, loss._tape.serial, later._tape.serial]
    expected = tg.grad(later, other)[0]
    value, total = 2.0 * AT, 2.0
    for _ in range(20):
        total, value = np.cos(value) * total * AT + np.sin(value), np.sin(value) * AT
    np.testing.assert_allclose(g.detach().numpy(), -2.0 * value * np.sin(np.sin(AT)) * np.cos(AT), rtol=1e-12)
    np.testing.assert_allclose(expected.numpy(), 2.0 * total * np.cos(np.sin(AT)), rtol=1e-12)


@pytest.mark.parametrize("every", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128", "longdouble"])
def test_a_gradient_has_the_bits_of_one_tape(dtype, every):
    """What comes to a leaf on newer tapes is added to on older ones, in the order of one tape."""
    value = np.random.default_rng(1).uniform(-1, 1, 7).astype(dtype)
    found = []
    for cuts in (False, True):
        x = leaf(value)
        loss = chain(x, 12, cuts)
        if np.iscomplexobj(value):
            loss = np.real(loss)
        if every:
            loss.backward()
            found.append(x.grad.numpy())
        else:
            found.append(tg.grad(loss, x)[0].numpy())
    assert found[0].dtype == found[1].dtype == np.dtype(dtype)
    assert found[0].tolist() == found[1].tolist()


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "longdouble"])
def test_a_value_that_several_tapes_read_and_that_is_wanted_itself(dtype):
    x = leaf(AT.astype(dtype))
    y = x * 2.0
    cut()
    first = np.sum(y * 3.0)
    cut()
    second = np.sum(y * y)
    cut()
    third = first + second + np.sum(y)
    seeds = [np.ones((), dtype), np.full(AT.shape, 10, dtype), np.ones((), dtype)]
    got, on_the_way = tg.grad([third, y, first], [x, y], seeds)
    wanted = 3 + 2 * (2 * AT.astype(dtype)) + 1 + 10 + 3
    np.testing.assert_allclose(on_the_way.numpy(), wanted, rtol=1e-6)
    np.testing.assert_allclose(got.numpy(), 2 * wanted, rtol=1e-6)
    assert got.dtype == on_the_way.dtype == np.dtype(dtype)


@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize("cuts", [True, False])
@pytest.mark.parametrize("to", ["result", "leaf"])
def test_a_hook_attached_on_the_way_to_an_older_record_is_called(cuts, create_graph, to):
    def gradients(early):
        x, other, seen = leaf(), leaf(), []
        loss = chain(x, 9, cuts, seen) + np.sum(seen[8] * other)

        def attach(g):
            for y in (seen[2], seen[5]):
                y.register_hook(lambda g: g * 2.0)

        if early:
            attach(None)
        else:
            (seen[7] if to == "result" else other).register_hook(attach)
        return [g.detach().numpy() for g in tg.grad(loss, [x, other], create_graph=create_graph)]

    for late, early in zip(gradients(False), gradients(True), strict=True):
        np.testing.assert_allclose(late, early, rtol=1e-12)


@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize("cuts", [True, False])
@pytest.mark.parametrize("post", [True, False])
@pytest.mark.parametrize("n", [5, LARGE // 8 + 1])
def test_each_hook_runs_once_where_one_attaches_others(n, post, cuts, create_graph):
    """Also that of the record at which it is done, whose compiled rule runs next."""
    x, seen, calls = leaf(np.linspace(0.1, 1.0, n)), [], []
    loss = chain(x, 4, cuts, seen)

    def attach(g):
        calls.append("first")
        for k in (1, 3):
            seen[k].register_hook(lambda g, k=k: calls.append(k))
        return g * 2.0

    seen[3].register_hook(attach)
    if post:
        seen[3].grad_fn.register_hook(lambda gi, go: calls.append("post"))
    (g,) = tg.grad(loss, x, create_graph=create_graph)
    assert calls == ["first", *["post"] * post, 1]
    np.testing.assert_allclose(g.detach().numpy(), 2.0 * slope(4, np.linspace(0.1, 1.0, n)), rtol=1e-12)


def test_a_leaf_s_hook_sees_the_whole_gradient():
    x, came = leaf(), []
    loss = chain(x, 9)
    x.register_hook(lambda g: came.append(g.numpy()) or g * 2.0)
    loss.backward()
    np.testing.assert_allclose(came, [slope(9)], rtol=1e-12)
    np.testing.assert_allclose(x.grad.numpy(), 2.0 * slope(9), rtol=1e-12)


@pytest.mark.parametrize("small", [True, False])
def test_what_has_been_swept_is_released_where_a_hook_fails(monkeypatch, small):
    if not small:
        monkeypatch.setattr(plan, "SMALL", 0)
    x, seen = leaf(), []
    loss = chain(x, 9, seen=seen)
    (before,) = tg.grad(seen[1], x, np.ones(5), retain_graph=True)

    def fail(g):
        raise ZeroDivisionError

    handle = seen[4].register_hook(fail)
    with pytest.raises(ZeroDivisionError):
        loss.backward()
    handle.remove()
    assert x.grad is None
    with pytest.raises(GraphFreedError):
        loss.backward()
    (after,) = tg.grad(seen[1], x, np.ones(5))
    assert after.numpy().tolist() == before.numpy().tolist()


def test_memory_for_a_leaf_s_gradient_is_asked_for_once(monkeypatch):
    from tapegrad.engine import sweep

    asked, empty = [], sweep.pool.empty
    monkeypatch.setattr(sweep.pool, "empty", lambda *args: asked.append(args) or empty(*args))
    x = leaf()
    loss = chain(x, 25)
    asked.clear()
    tg.grad(loss, x)
    assert len(asked) == 1


@pytest.mark.skipif(not abi.native() or layout.BOUNDS, reason="Python records each rule's constants anew")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("at", [0.5, AT], ids=["number", "array"])
def test_a_recorded_sweep_over_tapes_records_what_it_does_on_one(at, dtype):
    """Imports come to the open tape once, and a value that nothing has kept does not need to be fitted."""
    added, found = [], []
    for tapes_used in (0, 5):
        cut()
        x = leaf(np.asarray(at, dtype))
        y = x * x
        for k in range(100):
            y = y * 0.99 + x * 0.01
            if tapes_used and k % 20 == 19:
                cut()
        loss = np.sum(y * y)
        before = len(loss._tape.log)
        (g,) = tg.grad(loss, x, create_graph=True)
        added.append(len(g._tape.log) - before * (g._tape is loss._tape))
        found.append([g.detach().numpy(), tg.grad(np.sum(g), x)[0].numpy()])
    assert added[1] < added[0] + 4 * 10 * 5  # some imports a tape, each four entries of the log
    for one, many in zip(*found, strict=True):
        assert one.dtype == many.dtype == dtype
        np.testing.assert_allclose(one, many, rtol=20 * np.finfo(dtype).eps)


@pytest.mark.parametrize("create", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128", "longdouble"])
def test_a_link_to_the_record_of_a_leaf(dtype, create):
    """As a recorded sweep makes one where its tape is full: the leaf is on the newer tapes, too."""
    w = tg.tensor(np.array([1.0, 2.0, 3.0], dtype), requires_grad=True)
    z = w * w
    alias = wrap(w._v, z._tape, z._tape.leaves[w._at])
    tapes.close(z._tape)
    y = alias * z
    middle = y * 1.0 + w * 2.0
    tapes.close(middle._tape)
    for total, own in ((alias * 3.0 + middle + w * 4.0, 9), (middle + alias, 3), (alias + 0.0, 1)):
        cubed = 0 if own == 1 else 3
        (g,) = tg.grad(np.real(np.sum(total)), w, retain_graph=True, create_graph=create)
        np.testing.assert_array_equal(g.detach().numpy(), cubed * w.detach().numpy() ** 2 + own)
        w.grad = None
        np.real(np.sum(total)).backward(retain_graph=True, create_graph=create)
        np.testing.assert_array_equal(w.grad.detach().numpy(), g.detach().numpy())
