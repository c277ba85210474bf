"""What hooks, and a user's backward, attach or retain while a sweep runs: it acts on what is not reached yet.

Expected is what torch 2.13 gives; but `grad` adds to no ``.grad`` (D-9).
"""

import sys

import pytest

import tapegrad as tg
from tapegrad.kernels import machine
from tapegrad.tape import tape as tapes

at_once = sys.modules["tapegrad.autograd.at_once"]
WAYS = {  # arguments of the sweep, and whether each operation has a tape of its own
    "one tape": ({}, False),
    "one tape, sealed": ({}, False),
    "several tapes": ({}, True),
    "recorded": ({"create_graph": True}, False),
    "recorded, several tapes": ({"create_graph": True}, True),
    "kept": ({"retain_graph": True}, False),
}


@pytest.fixture(params=WAYS)
def way(request, monkeypatch):
    """The sweep's arguments, and a function that gives its operand, perhaps as that of an older tape."""
    given, several = WAYS[request.param]
    if "sealed" in request.param:
        machine.load()
        for name in ("gradients", "backward"):
            monkeypatch.setattr(at_once, name, sealing(getattr(at_once, name)))

    def on_tape(x):
        if several:
            tapes.close(x._tape)
        return x

    return given, on_tape


def sealing(sweep):
    """A sweep of a root whose tape takes no more records."""

    def swept(root, *given):
        if isinstance(root, tg.Tensor) and root._tape is tapes.local.tape is not None:
            tapes.close(root._tape)
        return sweep(root, *given)

    return swept


def leaf(value):
    return tg.tensor(value, requires_grad=True)


def tenfold(log, name):
    def hook(g):
        log.append((name, float(g.detach())))
        return g * 10

    return hook


def test_a_hook_attaches_one_to_a_leaf_not_reached_yet(way):
    given, on_tape = way
    for by_grad in (False, True):
        x, log = leaf(2.0), []
        y = on_tape(x * 2.0)
        z = on_tape(y * 3.0)
        y.register_hook(lambda g, x=x, log=log: x.register_hook(tenfold(log, "x")) and None)
        if by_grad:
            (g,) = tg.grad(z, x, **given)
            assert x.grad is None
        else:
            z.backward(**given)
            g = x.grad
        assert float(g.detach()) == 60.0
        assert log == [("x", 6.0)]


def test_the_hook_sees_the_whole_gradient(way):
    """Also of what has come before it was attached."""
    given, on_tape = way
    x, log = leaf(2.0), []
    y = on_tape(x * 2.0)
    z = on_tape(y * x)
    u = on_tape(z * x)
    y.register_hook(lambda g: x.register_hook(tenfold(log, "x")) and None)
    u.backward(**given)
    assert log == [("x", 24.0)]
    assert float(x.grad.detach()) == 240.0


@pytest.mark.parametrize("hooked", [0, 1])
def test_leaves_that_one_record_contributes_to(way, hooked):
    """The second operand's gradient is whole after the first's."""
    given, on_tape = way
    x, log = [leaf(2.0), leaf(3.0)], []
    z = on_tape(x[0] * x[1])
    x[hooked].register_hook(lambda g: x[1 - hooked].register_hook(tenfold(log, "other")) and None)
    (z * 1.0).backward(**given)
    assert log == [("other", 2.0)] * (hooked == 0)
    assert float(x[0].grad.detach()) == 3.0
    assert float(x[1].grad.detach()) == (20.0 if hooked == 0 else 2.0)


def test_a_leafs_hook_attaches_to_an_older_leaf(way):
    given, on_tape = way
    x, w, log = leaf(2.0), leaf(3.0), []
    y = on_tape(x * 2.0)
    z = on_tape(y * w)
    w.register_hook(lambda g: x.register_hook(tenfold(log, "x")) and None)
    z.backward(**given)
    assert log == [("x", 6.0)]
    assert float(x.grad.detach()) == 60.0
    assert float(w.grad.detach()) == 4.0


def test_no_effect_on_what_was_reached(way):
    given, on_tape = way
    x, w, log = leaf(2.0), leaf(3.0), []
    y = on_tape(x * 2.0)
    u = on_tape(y * 1.0)
    z = on_tape(u * w)
    y.register_hook(lambda g: w.register_hook(tenfold(log, "w")) and None)
    x.register_hook(lambda g: x.register_hook(tenfold(log, "x")) and None)
    y.register_hook(lambda g: u.retain_grad())
    z.backward(**given)
    assert log == []
    assert float(x.grad.detach()) == 6.0
    assert float(w.grad.detach()) == 4.0
    assert u.grad is None


def test_leaves_outside_of_inputs_are_not_reached(way):
    given, on_tape = way
    x, v, log = leaf(2.0), leaf(4.0), []
    y = on_tape(x * v)
    z = on_tape(y * 3.0)
    z.register_hook(lambda g: [a.register_hook(tenfold(log, "leaf")) for a in (v, x)] and None)
    on_tape(z * 5.0).backward(inputs=[x], **given)
    assert log == [("leaf", 60.0)]
    assert float(x.grad.detach()) == 600.0
    assert v.grad is None


def test_again_in_the_next_sweep(way):
    _, on_tape = way
    x, log, done = leaf(2.0), [], []

    def attach(g):
        if not done:
            done.append(x.register_hook(tenfold(log, "x")))

    y = on_tape(x * 2.0)
    z = on_tape(y * 3.0)
    y.register_hook(attach)
    for total in (60.0, 120.0):
        z.backward(retain_graph=True)
        assert float(x.grad) == total
    assert log == [("x", 6.0)] * 2


def test_a_users_backward_attaches(way):
    given, on_tape = way
    x, log = leaf(2.0), []

    class Double(tg.autograd.Function):
        @staticmethod
        def forward(ctx, a):
            return a * 2.0

        @staticmethod
        def backward(ctx, g):
            x.register_hook(tenfold(log, "x"))
            y.retain_grad()
            return g * 2.0

    y = on_tape(x * 1.0)
    on_tape(Double.apply(y)).backward(**given)
    assert log == [("x", 2.0)]
    assert float(x.grad.detach()) == 20.0
    assert float(y.grad.detach()) == 2.0


@pytest.mark.parametrize("hooked", [False, True])
def test_retained_by_a_hook(way, hooked):
    """Of a result not reached yet, or of the one whose hook that is; it is the gradient after all hooks."""
    given, on_tape = way
    x = leaf(2.0)
    y = on_tape(x * 2.0)
    z = on_tape(y * 3.0)
    w = on_tape(z * 5.0)
    z.register_hook(lambda g: [z.retain_grad(), y.retain_grad()] and g * 2.0)
    if hooked:
        z.register_hook(lambda g: y.register_hook(lambda g: g * 10.0) and None)
    w.backward(**given)
    assert float(z.grad.detach()) == 10.0
    assert float(y.grad.detach()) == (300.0 if hooked else 30.0)
    assert float(x.grad.detach()) == (600.0 if hooked else 60.0)
    assert z.retains_grad
    assert y.retains_grad


def test_retained_by_a_hook_and_swept_again(way):
    _, on_tape = way
    x = leaf(2.0)
    y = on_tape(x * 2.0)
    z = on_tape(y * 3.0)
    w = on_tape(z * 5.0)
    z.register_hook(lambda g: y.retain_grad())
    for total in (15.0, 30.0, 45.0):
        w.backward(retain_graph=True)
        assert float(y.grad) == total


def test_retained_by_a_hook_of_grad(way):
    """Such a sweep adds to no ``.grad``, nor does what it has found come into one later."""
    given, on_tape = way
    x = leaf(2.0)
    y = on_tape(x * 2.0)
    z = on_tape(y * 3.0)
    w = on_tape(z * 5.0)
    z.register_hook(lambda g: y.retain_grad())
    tg.grad(w, x, **(given | {"retain_graph": True}))
    assert y.grad is None
    w.backward(**given)
    assert float(y.grad.detach()) == 15.0


def test_retained_by_a_hook_of_a_sweep_that_fails(way):
    """All ``.grad`` are updated at the end, or none."""
    given, on_tape = way
    x, fails = leaf(2.0), [True]
    y = on_tape(x * 2.0)
    z = on_tape(y * 3.0)
    w = on_tape(z * 5.0)

    def fail(g):
        if fails:
            fails.clear()
            raise ZeroDivisionError

    z.register_hook(lambda g: y.retain_grad())
    x.register_hook(fail)
    with pytest.raises(ZeroDivisionError):
        w.backward(**(given | {"retain_graph": True}))
    assert y.grad is None
    w.backward(**given)
    assert float(y.grad.detach()) == 15.0
    assert float(x.grad.detach()) == 30.0


def test_sweeps_inside_hooks(way):
    """Each sweep adds what it has found itself."""
    given, on_tape = way
    x, v = leaf(2.0), leaf(3.0)
    a = on_tape(v * 2.0)
    b = on_tape(a * 1.0)
    y = on_tape(x * 2.0)
    z = on_tape(y * 3.0)
    w = on_tape(z * 5.0)

    def sweep(g):
        y.retain_grad()
        b.register_hook(lambda g: a.retain_grad())
        tg.grad(w, x, 7.0, retain_graph=True)
        b.backward()
        assert float(a.grad) == 1.0
        assert y.grad is None

    hook = z.register_hook(lambda g: hook.remove() or sweep(g))
    w.backward(**(given | {"retain_graph": True}))
    assert float(y.grad.detach()) == 15.0
    assert float(a.grad) == 1.0
    assert float(x.grad.detach()) == 30.0
