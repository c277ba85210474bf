"""Writing to Tensors: derivatives exact, views and versions as torch's, nothing lost or copied."""

import gc
import sys
import tracemalloc
import weakref

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.core import inplace
from tapegrad.errors import DTypeError, GradientError, ShapeError
from tapegrad.tape import pool
from tapegrad.tape import tape as tapes
from tests.tensors import grad, leaf


def test_E4_a_leaf_and_its_views_cannot_be_written_to():
    x = leaf()
    for write in (
        lambda: x.__iadd__(1.0), lambda: x.__setitem__(0, 3.0), lambda: x[:2].mul_(2.0), lambda: x.zero_(),
        lambda: x.T.__setitem__(0, 1.0), lambda: x.copy_(np.zeros(3)), lambda: x.reshape(3, 1).fill_(2.0),
    ):  # fmt: skip
        with pytest.raises(GradientError, match="leaf that requires grad"):
            write()
    assert x.tolist() == [1.0, 2.0, 3.0]
    assert x._version == 0


def test_E4_under_no_grad_a_leaf_can():
    x = leaf()
    v = x[1:]
    with tg.no_grad():
        x += 1.0
        x[0] = 7.0
        v *= 2.0
    assert x.tolist() == [7.0, 6.0, 8.0]
    assert v.tolist() == [6.0, 8.0]
    assert x._version == v._version == 3
    assert x.is_leaf
    assert x.requires_grad
    assert grad(x * x, x) == [[14.0, 12.0, 16.0]]
    assert grad(v * v, x) == [[0.0, 12.0, 16.0]]


def test_E4_under_no_grad_operators_update_a_leaf_of_no_axes():
    """As a loop over parameters means it; elsewhere a scalar is immutable, as NumPy's are."""
    parameters = [leaf(3.0), leaf([1.0, 2.0])]
    (parameters[0] * np.sum(parameters[1])).backward()
    with tg.no_grad():
        for w in parameters:
            w -= 0.5 * w.grad
            w *= 2
    assert [w.tolist() for w in parameters] == [3.0, [-1.0, 1.0]]
    assert all(w.is_leaf and w.requires_grad for w in parameters)
    assert grad(parameters[0] ** 2, parameters[0]) == [6.0]
    x = leaf(3.0)
    before = x * 2
    with tg.no_grad():
        after, other = before, x.detach()
        after += 1.0
        other += 1.0
        with pytest.raises(DTypeError):
            x += 1j
    x += 1.0
    assert before.item() == 6.0
    assert x.grad_fn is not None


@pytest.mark.parametrize("n", [3, 300, 3000, 30_000])
def test_updates_of_what_has_no_history(n):
    """Of parameters under no_grad and of constants: tapes, views, arrays given out see what they should."""
    x, m = leaf(np.ones(n)), tg.tensor(np.full(n, 2.0))
    before, view, given = x * m, m[1:], m.numpy()
    called = []
    x.register_hook(called.append)
    m *= 3.0
    m -= x.detach()
    with tg.no_grad():
        x += m
        x /= 2
    assert x.is_leaf
    assert x.requires_grad
    assert x._version == m._version == 2
    assert [x[-1].item(), m[-1].item(), view[-1].item(), given[-1]] == [3.0, 5.0, 5.0, 5.0]
    assert grad(np.sum(before), x)[0][-1] == 2.0
    assert grad(np.sum(x * m), x)[0][-1] == 5.0
    assert len(called) == 2
    with pytest.raises(GradientError, match="leaf that requires grad"):
        x += m
    whole = tg.tensor(np.zeros((2, n)))
    row = whole[0]
    row += 1.0  # a view writes to what it is a view of
    part = np.broadcast_to(tg.tensor([1.0, 2.0]), (3, 2))
    assert whole.numpy().sum() == n
    with pytest.raises(tg.errors.ReadOnlyError):
        part += 1.0
    with pytest.raises(DTypeError):
        m += 1j
    m += np.ones(n, np.float32)
    assert m.dtype == float


def test_E4_versions():
    x = leaf() * 1.0
    view, detached, data, clone = x[:2], x.detach(), x.data, x.clone()
    x += 1.0
    assert view._version == detached._version == x._version == 1
    assert clone._version == 0
    detached[0] = 5.0
    assert x._version == 2
    assert x.tolist()[0] == view.tolist()[0] == 5.0
    assert data is not None


def test_E5_what_a_derivative_needs_is_kept():
    """torch refuses these; here the old values are kept and the derivative is exact."""
    x = leaf()
    y = np.exp(x)
    z = y * 1.0
    y += 1.0
    assert grad(z, x)[0] == pytest.approx(np.exp([1.0, 2, 3]))
    assert grad(y, x)[0] == pytest.approx(np.exp([1.0, 2, 3]))
    a, b = leaf() * 1.0, leaf()
    c = a * b
    a *= 5.0
    assert grad(c, b) == [[1.0, 2.0, 3.0]]
    w = x * x
    with tg.no_grad():
        x *= 10.0
    assert grad(w, x) == [[2.0, 4.0, 6.0]]
    k = tg.tensor([1.0, 2.0, 3.0])
    u = k * b
    k[1] = 100.0
    assert grad(u, b) == [[1.0, 2.0, 3.0]]
    t = b * 1.0
    t *= t
    assert grad(t, b) == [[2.0, 4.0, 6.0]]
    d = b * 1.0
    s = np.sin(d)
    d.detach()[0] = 9.0
    assert d.tolist()[0] == 9.0
    assert grad(s, b)[0] == pytest.approx(np.cos([1.0, 2, 3]))


def test_E6_where_nothing_was_kept():
    x = leaf()
    y = x + 1.0
    y.mul_(2.0)
    assert grad(y, x) == [[2.0] * 3]
    y **= 2
    y /= x
    v = np.array([1.0, 2, 3])
    assert grad(y, x)[0] == pytest.approx(8 * (v + 1) / v - 4 * (v + 1) ** 2 / v**2)


def test_E7_a_constant_gets_a_history():
    x = leaf()
    c = tg.zeros(3)
    c += x
    assert c.requires_grad
    assert not c.is_leaf
    assert grad(c, x) == [[1.0] * 3]
    c = tg.zeros(3)
    c[0] = x[1]
    assert grad(c, x) == [[0.0, 1.0, 0.0]]
    c = tg.zeros(3)
    c.copy_(x)
    assert grad(c, x) == [[1.0] * 3]
    y = x * 2.0
    y.zero_()
    assert grad(y, x) == [[0.0] * 3]
    y = x * 2.0
    y.fill_(4.0)
    assert (y.tolist(), grad(y, x)) == ([4.0] * 3, [[0.0] * 3])
    y, v = leaf() * 1.0, leaf((5.0, 6.0))
    y[[0, 0]] = v
    assert y.tolist() == [6.0, 2.0, 3.0]
    assert grad(y, v) == [[0.0, 1.0]]


def test_E8_a_view_and_its_base():
    x = leaf()
    y = x * 1.0
    v = y[:2]
    v.mul_(10.0)
    assert grad(y, x) == [[10.0, 10.0, 1.0]]
    w = y.reshape(3, 1)
    y += x
    assert w.tolist() == [[11.0], [22.0], [6.0]]
    assert grad(w, x) == [[11.0, 11.0, 2.0]]
    assert grad(v * v, x)[0] == pytest.approx([2 * 11 * 11.0, 2 * 22 * 11.0, 0.0])


def test_E10_what_does_not_fit():
    x = leaf() * 1.0
    with pytest.raises(ShapeError):
        x += np.ones((2, 3))
    with pytest.raises(ShapeError):
        x[:2] = np.ones(3)
    i = tg.arange(3)
    with pytest.raises(DTypeError):
        i += 0.5
    with pytest.raises(DTypeError):
        i[0] = leaf()[0]
    with pytest.raises(IndexError):
        x[5] = 1.0
    with pytest.raises(ValueError, match="read-only"):
        np.broadcast_to(x, (2, 3))[0, 0] = 1.0
    assert x.tolist() == [1.0, 2.0, 3.0]


def test_D9_a_retained_gradient_is_that_of_the_new_value():
    x = leaf()
    y = x * 2.0
    y.retain_grad()
    y.mul_(3.0)
    np.sum(y * y).backward()
    assert y.grad.tolist() == [12.0, 24.0, 36.0]
    assert x.grad.tolist() == [72.0, 144.0, 216.0]


def test_C10_a_gradient_of_what_was_written_to():
    x = leaf()
    y = 3.0 * x
    y *= 5.0
    assert grad(y**2, y) == [[30.0, 60.0, 90.0]]
    before = y * 2.0
    with tg.no_grad():
        y.add_(1.0)
    assert grad(before + y * 3.0, y) == [[3.0, 3.0, 3.0]]
    assert grad(before + y * 3.0, x) == [[75.0, 75.0, 75.0]]


# ---------------------------------------------------------------- memory


def test_large_arrays_are_written_in_place_where_nothing_needs_them():
    x = leaf(np.ones(10_000))
    y = x * 2.0
    y[0] = x[1]
    place = y._v.__array_interface__["data"][0]
    for i in range(100):
        y[i] = x[i] * 3.0
    assert y._v.__array_interface__["data"][0] == place
    z = np.sin(y)
    y[5] = 0.0  # sin reads the old values
    assert y._v.__array_interface__["data"][0] != place
    assert tg.grad(np.sum(z), x)[0].numpy()[5] == pytest.approx(3 * np.cos(3.0))


def test_an_array_that_numpy_shares():
    a = np.zeros(3)
    t = tg.from_numpy(a)
    t += 1.0
    t[0] = 5.0
    assert a.tolist() == [5.0, 1.0, 1.0]
    x = leaf()
    t += x
    assert grad(t, x) == [[1.0] * 3]
    assert t.tolist() == [6.0, 3.0, 4.0]


def test_no_cycles_are_left():
    gc.collect()
    gc.disable()
    try:
        x = leaf(np.ones((30, 40)))
        y = x * 1.0
        v, t = y[1:], y.T
        v *= 2.0
        t[0] = x[0, 0]
        references = [weakref.ref(h) for h in (y, v, t, y._v)]
        del y, v, t
        assert [r() for r in references] == [None] * 4
    finally:
        gc.enable()


def test_a_training_loop_keeps_no_cells():
    w = leaf(np.ones(100))
    for _ in range(50):
        np.sum(w * w).backward()
        with tg.no_grad():
            w -= 0.01 * w.grad
        w.grad = None
    assert len(w._extra.cells) < 10
    assert sys.getrefcount(w) < 5


# ---------------------------------------------------------------- interrupts


def cut_off(monkeypatch, y, value):
    """Write to y[0], and be interrupted after the value has changed: in Python, by an index of NumPy's."""

    def interrupted(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("tapegrad.core.inplace.record", interrupted)
        with pytest.raises(KeyboardInterrupt):
            y[np.intp(0)] = value


@pytest.mark.parametrize("view", [lambda y: y, lambda y: y[:2], lambda y: y.detach()[:2]])
def test_a_write_cut_off_is_not_forgotten(view, monkeypatch):
    """Values changed and no record of it: the next derivative says so."""
    x = leaf()
    y = x * 2.0
    v = view(y)
    before = y * y
    cut_off(monkeypatch, y, x[1])
    assert "interrupted" in repr(y)
    for use in (
        lambda: y * 1.0, lambda: tg.grad(y.sum(), x), lambda: (v if v.requires_grad else y) * 2.0,
        lambda: y.__setitem__(1, 0.0),
    ):  # fmt: skip
        with pytest.raises(GradientError, match="interrupted"):
            use()
    assert y.detach().shape == (3,)
    assert grad(before, x) == [[8.0, 16.0, 24.0]]


@pytest.mark.parametrize("early", [False, True])
def test_a_write_cut_off_is_not_forgotten_when_others_write_to_the_memory(early, monkeypatch):
    x = leaf()
    y = x * 2.0
    known = y.detach() if early else None
    cut_off(monkeypatch, y, x[1])
    detached = y.detach() if known is None else known
    detached[2] = 7.0
    detached += 1.0
    assert detached.tolist() == y.tolist()
    for use in (lambda: y * 1.0, lambda: tg.grad(y.sum(), x), lambda: y.__setitem__(1, 0.0)):
        with pytest.raises(GradientError, match="interrupted"):
            use()
    assert (detached * x).requires_grad


def test_a_write_refused_leaves_views_as_they_were():
    x = leaf()
    y = x * 2.0
    with tg.no_grad():
        v = y[:2]
    d = v.detach()
    with pytest.raises(ShapeError):
        d[:] = np.ones(5)
    with pytest.raises(GradientError, match="while nothing was recorded"):
        v[0] = 1.0


@pytest.mark.parametrize("shape", [(), (1,), (2,)])
def test_E7_what_is_written_over_has_a_gradient_of_zero(shape):
    x, w = leaf(np.full(shape, 2.0)), leaf(np.full(shape, 3.0))
    y = x * x
    y.copy_(w)
    gx, gw = tg.grad(y.sum(), (x, w))
    assert gx.tolist() == np.zeros(shape).tolist()
    assert gw.tolist() == np.ones(shape).tolist()


def test_a_write_costs_what_it_writes():
    """Neither is the memory copied, which nothing else sees, nor are all elements numbered."""
    n = 1 << 19
    y = leaf(np.linspace(0.0, 1.0, n)) * 2.0
    for index in (5, slice(2, 9), (slice(None, None, 1 << 17),), np.array([3, -1, 3]), [0, 7]):
        y[index] = 1.0
        place = y._v.__array_interface__["data"][0]
        tracemalloc.start()
        y[index] = 2.0
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert y._v.__array_interface__["data"][0] == place
        assert peak < 2 * n  # a mark each is reserved for elements written several times, and not touched


def test_a_tape_that_is_closed_in_the_middle_of_a_write(monkeypatch):
    """As by a finalizer that sweeps: what the write's record is to link to is not pruned before it does."""
    write = inplace._assign

    def closing(*args):
        tape = tapes.local.tape
        tapes.close(tape)
        tape.prune()
        write(*args)

    x = leaf(np.arange(1.0, 6.0))
    y, values = x * 2.0, np.sin(x[:2])
    with monkeypatch.context() as patch:
        patch.setattr(pool, "alone", lambda *_: False)  # copied, so the record before has no handle
        patch.setattr(inplace, "_assign", closing)
        y[1:3] = values
    (g,) = tg.grad(np.sum(y * y), x)
    a = np.arange(1.0, 6.0)
    expected = 8.0 * a
    expected[1:3] = 0.0
    expected[:2] += 2.0 * np.sin(a[:2]) * np.cos(a[:2])
    np.testing.assert_allclose(g.numpy(), expected, rtol=1e-14)
