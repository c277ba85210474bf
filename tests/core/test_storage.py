"""Memory that several Tensors see: values, histories and layouts through writes."""

import warnings

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.autograd import forward_ad as fw
from tapegrad.core import storage
from tapegrad.diagnostics import functions as diagnostics
from tapegrad.errors import GradientError
from tapegrad.ops import writes
from tapegrad.tape import tape as tapes
from tapegrad.tape.record import slot
from tests.tensors import leaf


def grad(out, *inputs):
    return [g.tolist() for g in tg.grad(np.sum(out), inputs, retain_graph=True)]


def test_a_base_whose_view_was_written_to_is_above_the_view():
    x = leaf()
    y = x * 1.0
    v = y[:2]
    v.mul_(10.0)
    assert grad(v, y) == [[1.0, 1.0, 0.0]]
    y.retain_grad()
    v += 1.0
    np.sum(v * v).backward()
    assert y.grad.tolist() == [22.0, 42.0, 0.0]


def test_E9_a_view_made_under_no_grad_cannot_be_written_to_where_it_would_be_recorded():
    y = leaf() * 1.0
    with tg.no_grad():
        v = y[:2]
    with pytest.raises(GradientError, match="while nothing was recorded"):
        v *= 2.0
    with tg.no_grad():
        v *= 2.0
    assert y.tolist() == [2.0, 4.0, 3.0]


def test_a_view_of_a_detached_tensor_is_detached():
    x = leaf()
    y = x * 1.0
    y.detach()[:2].mul_(5.0)
    y.detach().T[1:][0] = 7.0
    assert y.tolist() == [5.0, 7.0, 3.0]
    assert grad(y, x) == [[1.0, 1.0, 1.0]]


def test_a_scalar_overwritten_has_no_derivative_whatever_follows():
    x = leaf(2.0)
    y = x * 1.0
    y.fill_(0.0)
    z = np.sqrt(y)
    assert grad(z, x) == grad(z, x) == [0.0]
    y = x + 1.0
    y.fill_(4.0)
    y.backward()
    y.backward()  # reads nothing
    assert x.grad.item() == 0.0
    assert y._version == 1
    with pytest.raises(IndexError, match="0-d"):
        y[[0, 0]] = 1.0


def test_a_broadcast_tensor_sees_writes_and_adds_up_what_it_shows_twice():
    x = leaf()
    y = x * 1.0
    b = np.broadcast_to(y, (2, 3))
    y *= 3.0
    assert b.tolist() == [[3.0, 6.0, 9.0]] * 2
    assert grad(b * np.array([[1.0], [2.0]]), x) == [[9.0, 9.0, 9.0]]


def test_a_write_keeps_the_layout():
    x = leaf(np.ones((2, 3)))
    y = np.sin(x.T)
    y += np.ones((3, 2))
    assert y.strides == (8, 24)


@pytest.mark.parametrize("view", [lambda a: a[1:], lambda a: a[..., None]])
def test_a_tensor_with_its_axes_in_any_order_in_memory(view):
    x = leaf(np.arange(12.0).reshape(2, 3, 2))
    y = np.sin(x.swapaxes(0, 1))
    v = view(y)
    saved = y * y  # so that the memory is left behind
    y[1:] = 0.5
    assert y[1:].tolist() == [[[0.5, 0.5]] * 2] * 2
    assert v.ravel().tolist()[-4:] == [0.5] * 4
    kept = np.zeros((2, 3, 2))
    kept[:, 0] = np.cos(np.arange(12.0).reshape(2, 3, 2))[:, 0]
    np.testing.assert_allclose(grad(y, x)[0], kept)
    assert np.any(grad(saved, x)[0])


def test_versions_go_on_when_the_first_view_is_made():
    y = leaf() * 1.0
    y += 1.0
    v = y[1:]
    assert y._version == v._version == 1


WRITES = {
    "itself": lambda y: y.copy_(y),
    "sum": lambda y: y.add_(y),
    "copy": lambda y: y.__setitem__(..., y * 1.0),
    "view": lambda y: y.__setitem__(..., y[::-1]),
    "part": lambda y: y[1:].copy_(y[:2]),
}


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("records", [1, 2, 3, 4, 5, 8, 12])
def test_a_write_of_what_shares_its_memory_where_a_tape_ends(monkeypatch, records, write):
    tapes.close(tapes.current())
    at = np.array([1.0, 2.0, 3.0])
    slope = at * np.cos(at) + np.sin(at)
    factors = {"sum": [2.0, 2.0, 2.0], "part": [2.0, 1.0, 0.0]}.get(write, [1.0] * 3)
    monkeypatch.setattr(tapes, "MAX_RECORDS", records)
    for before in range(6):
        x = leaf(at)
        for _ in range(before):
            x * 1.0
        y = np.sin(x) * x
        WRITES[write](y)
        y.backward(np.ones(3))
        np.testing.assert_allclose(x.grad.numpy(), slope * factors)


@pytest.mark.parametrize("records", [1, 2, 3, 5, 8])
def test_a_write_that_is_not_recorded_where_a_tape_ends(monkeypatch, records):
    """What was written over is not pruned before its history is taken over."""
    tapes.close(tapes.current())
    monkeypatch.setattr(tapes, "MAX_RECORDS", records)
    for before in range(4):
        x = leaf()
        for _ in range(before):
            x * 2.0
        y = x / x
        with tg.no_grad():
            y[1:] = 0.5
        y.backward(np.ones(3))
        assert x.grad.tolist() == [0.0] * 3


def test_a_retained_view_whose_memory_is_written_to_twice():
    x = leaf()
    y = x * 1.0
    v = y[1:]
    v.retain_grad()
    y.copy_(x)
    y *= 2.0
    np.sum(v * v).backward()
    assert v.grad.tolist() == [8.0, 12.0]
    assert x.grad.tolist() == [0.0, 16.0, 24.0]


def test_copies_read_nothing():
    """B-2: so they can be swept again."""
    x = leaf()
    for copied in (x.clone(), +x, np.copy(x)):
        s = np.sum(copied)
        s.backward()
        s.backward()
    assert x.grad.tolist() == [6.0] * 3
    s = leaf(2.0)
    (s.clone() + 1.0).backward()
    assert s.grad.item() == 1.0


def test_a_write_of_itself_with_an_axis_more():
    x = leaf()
    y = x * 2.0
    y[None] = y
    y *= 3.0
    assert y.tolist() == [6.0, 12.0, 18.0]
    assert grad(y, x) == [[6.0, 6.0, 6.0]]


@pytest.mark.parametrize(
    ("shape", "index"),
    [((1, 3), 0), ((1, 3), -1), ((1, 3), (0,)), ((1, 1), (slice(None), 0)), ((1, 1, 3), (0, 0))],
)
def test_a_write_of_itself_to_a_part_with_fewer_axes(shape, index):
    """The value loses axes of length 1 before it is written: that makes the first view of what it goes to."""
    x = leaf(np.arange(1.0, 1.0 + np.prod(shape)).reshape(shape))
    y = np.sort(x * 2.0, axis=-1)
    y[index] = y
    v = y[..., :1]
    y *= 3.0
    assert y.tolist() == (6.0 * x.detach()).tolist()
    assert grad(v * 1.0, x) == [(6.0 * (np.arange(shape[-1]) < 1) * np.ones(shape)).tolist()]


@pytest.mark.parametrize("index", [np.array([[True, False, True]] * 2), ([1, 1, 0, 0], [2, 1, 2, 1])])
@pytest.mark.parametrize("history", [False, True])
def test_a_write_of_a_view_at_places_in_any_order(index, history):
    """What is written is what was there before the write."""
    x = leaf(np.arange(1.0, 7.0).reshape(2, 3))
    y = x * 1.0 if history else tg.tensor(x.detach())
    plain = y.detach().numpy().copy()
    plain[index] = plain.ravel()[:4].copy()
    y[index] = y.reshape(-1)[:4]
    assert y.tolist() == plain.tolist()
    if history:
        times = np.bincount(plain.ravel().astype(int), minlength=7)[1:].reshape(2, 3)
        assert grad(y * y, x) == [(2 * times * x.detach().numpy()).tolist()]


# ---------------------------------------------------------------- NumPy's functions that return views

ARGUMENTS = [
    lambda x: (x,), lambda x: (x, 0), lambda x: (x, 1, 0), lambda x: (x, (9,)), lambda x: (x, (1, 0)),
    lambda x: ("ij->ji", x), lambda x: ("ii->i", x), lambda x: ("ij", x), lambda x: (x, 2),
    lambda x: (x, -1, 0), lambda x: (x, [0, 1], [1, 0]), lambda x: ([x],), lambda x: (x, (2, 2)),
    lambda x: (x, [1]),
]  # fmt: skip


def arrays_in(x):
    if isinstance(x, (list, tuple)):
        return [part for item in x for part in arrays_in(item)]
    return [x] if isinstance(x, (np.ndarray, tg.Tensor)) else []


def views_of_numpy():
    """Calls whose result, or a part of it, lies in the memory of what is given: function, arguments, part."""
    found, functions = [], diagnostics._functions()
    for function in [functions[r.name] for r in diagnostics.catalog() if r.status in ("op", "composed")]:
        if isinstance(function, np.ufunc):
            continue
        for given in ARGUMENTS:
            x = np.arange(1.0, 10.0).reshape(3, 3)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    parts = arrays_in(function(*given(x)))
                except Exception:
                    continue
            found += [(function, given, q) for q, part in enumerate(parts) if np.shares_memory(part, x)]
    return found


@pytest.mark.parametrize("history", [True, False])
def test_writes_to_views_and_what_they_are_views_of(history):
    """Each is seen by the other, value and derivative, or refused; as NumPy has it, or both."""
    cases, seen = views_of_numpy(), set()
    for function, given, q in cases:
        for to_base in (True, False):
            x = np.arange(1.0, 10.0).reshape(3, 3)
            view = arrays_in(function(*given(x)))[q]
            number = np.arange(9).reshape(3, 3)
            leaf = tg.tensor(x, requires_grad=history)
            z = leaf * 1.0 if history else leaf
            try:
                found = arrays_in(function(*given(z)))[q]
            except tg.errors.TapeError:  # a text for an array, a matrix for a polynomial: NumPy takes them
                continue
            new = tg.tensor(77.0, requires_grad=history)
            written, other = (z, found) if to_base else (found, z)
            target = x if to_base else view
            try:
                written[(-1,) * written.ndim] = new
            except (tg.errors.GradientError, tg.errors.ReadOnlyError):
                continue
            places = arrays_in(function(*given(number)))[q]  # which element of x each of the view is
            at = 8 if to_base else places[(-1,) * view.ndim]
            if target.flags.writeable:
                target[(-1,) * target.ndim] = 77.0
            else:
                x.flat[at] = 77.0
            seen.add(function)
            mask = np.arange(9).reshape(3, 3) == at
            wanted, mask = (x, mask) if other is z else (x.ravel()[places], mask.ravel()[places])
            assert other.tolist() == wanted.tolist(), function
            if history:
                weight = np.arange(1.0, wanted.size + 1).reshape(wanted.shape)
                g, d = tg.grad(np.sum(other * weight), [leaf, new], materialize_grads=True)
                assert d.item() == np.sum(weight * mask), function
                if other is z:
                    assert g.tolist() == (weight * ~mask).tolist(), function
    assert {np.einsum, np.transpose, np.diagonal, np.rot90} <= seen
    assert history is False or np.diag in seen


def test_windows_that_slide():
    """A view; what they see is read-only, as NumPy has it, and summed where they overlap."""
    windows = np.lib.stride_tricks.sliding_window_view
    base = np.arange(1.0, 13.0).reshape(3, 4)
    weight = np.random.default_rng(0).normal(size=(2, 3, 2, 2))
    for make in (leaf, tg.tensor, lambda x: leaf(x.T.copy()).T, lambda x: tg.from_numpy(x).requires_grad_()):
        x = make(base.copy())
        z = windows(x * 1.0, (2, 2))
        np.testing.assert_array_equal(z.detach().numpy(), windows(base, (2, 2)))
        if x.requires_grad:
            wanted = np.zeros((3, 4))
            for i, j in np.ndindex(2, 2):
                wanted[i : i + 2, j : j + 3] += weight[:, :, i, j]
            np.testing.assert_allclose(grad(z * weight, x)[0], wanted)
    x = leaf()
    (g,) = tg.grad(np.sum(windows(x, 2, axis=0) ** 3), x, create_graph=True)
    assert tg.grad(np.sum(g), x)[0].tolist() == [6.0, 24.0, 18.0]
    with fw.dual_level():
        d = fw.make_dual(tg.tensor([1.0, 2.0, 3.0]), tg.tensor([1.0, 0.0, 2.0]))
        assert fw.unpack_dual(windows(d, 2)).tangent.tolist() == [[1.0, 0.0], [0.0, 2.0]]
    assert tg.gradcheck(lambda x: windows(x, (2, 3), axis=(1, 1)), leaf(np.ones((2, 5))))
    lanes = np.eye(4).reshape(4, 2, 2)
    (g,) = tg.grad(windows(x, 2), x, lanes, is_grads_batched=True)
    assert g.tolist() == [[1, 0, 0], [0, 1, 0], [0, 1, 0], [0, 0, 1]]
    assert windows(leaf(2.0), ()).item() == 2.0
    for z in (leaf() * 1.0, tg.tensor([1.0, 2.0, 3.0])):
        v = windows(z, 2)
        z[1] = 5.0
        assert v.tolist() == [[1.0, 5.0], [5.0, 3.0]]
        with pytest.raises(tg.errors.ReadOnlyError):
            v[0, 0] = 1.0
        with pytest.raises(tg.errors.UnsupportedOpError, match="write to the array"):
            windows(z, 2, writeable=True)
        with pytest.raises(tg.errors.ShapeError, match="window"):
            windows(z, 4)
    outside = np.ones(3)
    x = tg.from_numpy(outside).requires_grad_()
    out = windows(x, 2) * x[:2]
    outside[:] = 100.0
    assert grad(out, x) == [[3.0, 4.0, 1.0]]


# ---------------------------------------------------------------- views whose history is to be looked up


class Keeping(tg.autograd.Function):
    """``a * other``, where `other` comes from outside."""

    @staticmethod
    def forward(ctx, a, holder):
        ctx.save_for_backward(a, holder[0])
        return a * holder[0].detach()

    @staticmethod
    def backward(ctx, g):
        _, other = ctx.saved_tensors
        return g * other, None


def _dual(v):
    with tg.autograd.forward_ad.dual_level():
        dual = tg.autograd.forward_ad.make_dual(tg.tensor(np.ones(3)), v)
        primal = tg.autograd.forward_ad.make_dual(v, tg.tensor(np.ones(3)))
        out = tg.autograd.forward_ad.unpack_dual(dual * primal).tangent
        return out - 1.0


def _packed(v):
    with tg.autograd.graph.saved_tensors_hooks(lambda x: x.numpy().copy(), tg.tensor):
        return v * v


def _recorded_gradient(f):
    def g(v):
        return tg.grad(f(v).sum(), v, create_graph=True)[0]

    return g


def _twice(v):
    v[...] = v
    v += v
    v[0] = v[0]
    return v * v / 4.0


checkpoint, loop = tg.autograd.checkpoint, tg.autograd.checkpoint_loop
functional = tg.autograd.functional
USES = {  # each is v**2
    "operator": lambda v: v * v,
    "checkpoint": lambda v: checkpoint(lambda v: v * v, v),
    "checkpoint, in a tuple": lambda v: checkpoint(lambda pair: pair[0] * pair[1], (v, v)),
    "checkpoint, by keyword": lambda v: checkpoint(lambda v: v * v, v=v),
    "checkpoint, from outside": lambda v: checkpoint(lambda: v * v),
    "checkpoint in a checkpoint": lambda v: checkpoint(lambda v: checkpoint(lambda v: v * v, v) * 1.0, v),
    "loop": lambda v: loop(lambda x: x * x, v, 1, slots=1),
    "loop, several": lambda v: loop(lambda s: (s[0] * s[1], s[1]), (v, v), 1, slots=0)[0],
    "loop, from outside": lambda v: loop(lambda x: x * v, v, 1, slots=0),
    "loop in a checkpoint": lambda v: checkpoint(lambda v: loop(lambda x: x * v, v, 1, slots=0), v),
    "hooks on saved values": _packed,
    "Function": lambda v: Keeping.apply(v, [v]) * 2.0 - v.detach() ** 2,
    "duals": _dual,
    "node": lambda v: v * v if v.grad_fn is not None else None,
    "text": lambda v: v * v if "View" in repr(v) else None,
    "hook": lambda v: [v * v, v.register_hook(lambda g: g * 1.0)][0],
    "retained": lambda v: [v * v, v.retain_grad()][0],
    "recorded gradient": _recorded_gradient(lambda v: v**3 / 3.0),
    "recorded gradient of a Function": lambda v: _recorded_gradient(lambda v: Keeping.apply(v, [v]))(v) ** 2,
    "cotangent": lambda v: tg.grad(v**2 / 2.0, v, v, create_graph=True)[0],
    "vjp": lambda v: functional.vjp(lambda v: v * v / 2.0, v, v, create_graph=True)[1],
    "jvp": lambda v: functional.jvp(lambda v: v * v / 2.0, v, v, create_graph=True)[1],
    "hvp": lambda v: functional.hvp(lambda v: (v**3).sum() / 6.0, v, v, create_graph=True)[1],
    "jacobian": lambda v: functional.jacobian(lambda v: v**3 / 3.0, v, create_graph=True).sum(axis=0),
    "joined": lambda v: np.stack([v, v])[0] * tg.array([v[0], v[1], v[2]]),
    "written": _twice,
}


@pytest.mark.parametrize("use", USES)
def test_a_view_whose_base_was_written_to_goes_on_from_what_was_written(use):
    x = leaf()
    base = x * 1.0
    v = base[::-1]
    base *= 2.0
    y = USES[use](v)
    np.testing.assert_allclose(y.detach().numpy(), [36.0, 16.0, 4.0])
    np.testing.assert_allclose(grad(y, x), [[8.0, 16.0, 24.0]])


def test_a_view_is_a_window_of_a_whole_in_any_order(random):
    """Where its steps stay within the axes of the whole; else it is told by places."""
    told = 0
    for _ in range(2000):
        shape = tuple(random.integers(1, 5, random.integers(1, 4)))
        whole = random.normal(size=shape).transpose(random.permutation(len(shape)))
        if random.random() < 0.3:
            whole = whole[tuple(slice(None, None, int(s)) for s in random.choice([1, 2, -1], whole.ndim))]
        view = whole[tuple(slice(None, None, int(s)) for s in random.choice([1, 2, -1], whole.ndim))]
        view = view.transpose(random.permutation(view.ndim))
        if view.ndim > 1 and random.random() < 0.5:
            view = view.diagonal() if random.random() < 0.5 else view[random.integers(len(view))]
        if random.random() < 0.2 and whole.flags.forc:
            view = whole.ravel(order="K")[:: random.integers(1, 4)]  # perhaps across axes
        found = storage.window(view, whole)
        if found is not None:
            told += 1
            seen = writes._read(whole, found)
            np.testing.assert_array_equal(seen, view)
            seen = writes._read(np.arange(whole.size).reshape(whole.shape), found)
            assert not whole.flags.forc or np.array_equal(seen, storage.places(view, whole))
        else:
            assert view.size == 0 or not whole.flags.c_contiguous
    assert told > 1000


def test_a_write_to_a_whole_in_fortran_order_is_told_by_windows():
    """So a sweep takes no places, eight bytes an element."""
    x = leaf(np.arange(12.0).reshape(3, 4))
    y = x.T * 2.0
    assert y._v.flags.f_contiguous
    view = y[1]
    y *= 3.0
    assert grad(view, x) == [[[0.0, 6.0, 0.0, 0.0]] * 3]
    assert "window" in view._tape.attrs[slot(view._at)]
    y[1:, ::2] = 5.0
    assert "window" in y._tape.attrs[slot(y._at)]
    assert grad(y, x) == [[[6.0, 0.0, 0.0, 0.0], [6.0] * 4, [6.0, 0.0, 0.0, 0.0]]]
