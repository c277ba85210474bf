"""Compiled writes: values, histories, versions and errors as by the twin, no reference lost or kept."""

import contextlib
import gc
import sys
import weakref

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.core import compiled_methods
from tapegrad.core.storage import STALE
from tapegrad.errors import GradientError
from tapegrad.kernels import abi, machine
from tapegrad.tape import tape as tapes
from tapegrad.tensor import Tensor
from tests.finalizers import Cycle, collecting, frozen, no_collection
from tests.tensors import leaf
from tests.tiers import every

pytestmark = pytest.mark.skipif(not abi.native(), reason="the portable layout has no compiled methods")


@pytest.fixture(autouse=True)
def compiled():
    machine.load()
    tg.zeros(1)[0] = 1.0  # which loads what writes
    assert type(vars(Tensor)["__setitem__"]).__name__ == "method_descriptor"


def calls_of_python(function):
    """The names of functions of Python's that run in a call, but its own."""
    found = []
    sys.setprofile(lambda frame, event, _: found.append(frame.f_code.co_name) if event == "call" else None)
    try:
        function()
    finally:
        sys.setprofile(None)
    return found[1:]


INDICES = [
    0, -1, 2, 7, (1, 2), (0, -1), (1, 5), (-3, 0), (0, 1, 0), np.s_[1:], np.s_[::2], np.s_[::-1], np.s_[:0],
    np.s_[:, 0], np.s_[1:, ::-2], np.s_[-1:, 1:], ..., np.s_[..., 1], np.s_[0, ...], np.s_[0, 1, ...], None,
    np.s_[None, 1], np.s_[:, None, 1], np.intp(1), (np.intp(1), 1), [0, 1], ([0, 1], 1),
    np.array([True, False]), True, "text", 1.0, (1, 2.0), np.s_[1.0:], 2**70, np.s_[: 2**70], (), ((0, 1), 1),
]  # fmt: skip
VALUES = {  # made of the shape that an index takes, of which 0-d leaves and results are drawn
    "int": lambda shape, w: 3, "float": lambda shape, w: -2.5, "True": lambda shape, w: True,
    "inf": lambda shape, w: np.inf, "0": lambda shape, w: 0.0, "a large int": lambda shape, w: 2**60,
    "a larger int": lambda shape, w: 2**80, "beyond single precision": lambda shape, w: 1e300,
    "complex": lambda shape, w: 1j, "text": lambda shape, w: "text", "None": lambda shape, w: None,
    "float64": lambda shape, w: np.float64(0.3), "float32": lambda shape, w: np.float32(0.3),
    "int64": lambda shape, w: np.int64(3), "list": lambda shape, w: [0.5],
    "array": lambda shape, w: np.full(shape, 0.25), "array, d": lambda shape, w: np.full(shape, 0.25, "d"),
    "array, f": lambda shape, w: np.full(shape, 0.25, "f"), "ints": lambda shape, w: np.full(shape, 2),
    "one element": lambda shape, w: np.full(1, 0.5), "more axes": lambda shape, w: np.full((1, *shape), 0.5),
    "another shape": lambda shape, w: np.ones((5, 7)), "0-d": lambda shape, w: np.array(0.5),
    "leaf": lambda shape, w: w, "result": lambda shape, w: w * 2.0,
    "constant": lambda shape, w: tg.tensor(0.5),
    "results": lambda shape, w: w * np.full(shape, 2.0, w.dtype),
    "results, f": lambda shape, w: w.astype("f") * np.full(shape, 2.0, "f"),
    "constants": lambda shape, w: tg.tensor(np.full(shape, 0.75, w.dtype)),
    "constants, broadcast": lambda shape, w: tg.tensor(np.full(shape[1:], 0.75, w.dtype)),
    "results, broadcast": lambda shape, w: w * np.full(shape[1:], 2.0, w.dtype),
    "a view of a result": lambda shape, w: (w * np.full((2, *shape), 2.0, w.dtype))[1],
}  # fmt: skip


def outcome(dtype, index, make):
    """What comes of a write, done twice: numbers, versions, nodes, gradients and theirs; or the errors."""
    x, w = leaf([[0.5, 1.5, 2.5], [3.5, 4.5, 5.5]], dtype), leaf(1.25, dtype)
    y = x * 2.0
    before = y * y
    try:
        shape = np.shape(np.zeros((2, 3))[index])
    except (IndexError, TypeError):
        shape = ()
    new = make(shape, w)
    found = []
    with np.errstate(all="ignore"):
        for _ in range(2):
            try:
                y[index] = new
            except Exception as error:
                found.append((type(error), str(error)))
        found += [y.tolist(), y.dtype, y._version, y.grad_fn.name(), before.tolist()]
        out = np.sum(y * y * y) + np.sum(before)
        first = tg.grad(out, (x, w), create_graph=True, allow_unused=True, materialize_grads=True)
        second = tg.grad(np.sum(first[0] * first[0]) + first[1], (x, w), allow_unused=True)
    return found + [g if g is None else g.tolist() for g in (*first, *second)]


CELLS = [(value, dtype) for i, value in enumerate(VALUES) for dtype in ("df", "fd")[i % 2]]


@pytest.mark.parametrize(("value", "dtype"), every(CELLS, 2))  # each in one of the dtypes by turns
def test_as_the_twin(monkeypatch, value, dtype):
    for index in INDICES:
        found = outcome(dtype, index, VALUES[value])
        with monkeypatch.context() as patch:
            patch.setattr(Tensor, "__setitem__", compiled_methods.TWINS["__setitem__"])
            wanted = outcome(dtype, index, VALUES[value])
        assert str(found) == str(wanted), index


@pytest.mark.parametrize("dtype", ["d", "f"])
@pytest.mark.parametrize("n", [4, 1000, 20_000])
def test_common_writes_never_reach_python(n, dtype):
    x, w = leaf(np.ones(n), dtype), leaf(2.0, dtype)
    y, z, v = x * 2.0, x.reshape(2, -1) * 2.0, w * 1.5
    part, constant, array = x[:2] * 1.0, tg.tensor(np.ones(2, dtype)), np.ones(2, dtype)
    np.sum(y[1:])  # a view that is gone

    def writes():
        y[0] = v
        y[1] = w
        y[2] = 2.0
        y[-1] = 3
        y[-1] = np.dtype(dtype).type(0.5)
        z[1, 0] = v
        y[1:3] = part
        y[2:4] = array
        y[0:4:2] = constant
        z[1, :2] = part
        z[:, 1] = 7

    entered = calls_of_python(writes)
    assert set(entered) <= {"shadow", "shadow_of"}  # for a shape that was not there yet
    assert y._version == 8
    assert z._version == 3
    assert y.tolist()[:4] == [1.0, 2.0 * 0.5, 1.0, 1.0]
    gx, gw = tg.grad(np.sum(y) + np.sum(z), (x, w))
    assert y.dtype == gx.dtype == dtype
    assert gw.item() == 0.0
    assert gx.tolist()[:2] == [1.0 + 1.0 + 2.0, 0.0]


def test_what_was_read_before_keeps_its_value():
    x = leaf([1.0, 2.0, 3.0])
    y = x * 1.0
    total = np.sum(y) * 0.0
    for k in range(3):
        total = total + np.sum(y * y)
        y[k] = y[k] * 10.0
    assert tg.grad(total, x)[0].tolist() == [2.0 + 2 * 200.0, 4.0 * 2 + 400.0, 18.0]


@pytest.mark.parametrize("n", [5, 100_000])
def test_views_see_writes_and_are_seen(n):
    x = leaf(np.ones(n))
    y = x * 2.0
    v, d = y[1:3], y.detach()
    y[1] = 7.0
    assert v.tolist() == [7.0, 2.0]
    assert d.tolist()[:3] == [2.0, 7.0, 2.0]
    v[1] = v[0] * 3.0
    y[0] = v[1]
    assert y.tolist()[:3] == [21.0, 7.0, 21.0]
    assert y._version == v._version == d._version == 3
    (g,) = tg.grad(np.sum(y * y), x, retain_graph=True)
    assert g.tolist()[:4] == [0.0, 0.0, 0.0, 8.0]
    del v, d
    y[3] = 1.0
    y[4] = y[3] * 1.0
    assert y._version == 5
    u = y[2:]
    assert u.tolist()[:3] == [21.0, 1.0, 1.0]
    (g,) = tg.grad(np.sum(u) + np.sum(y), x)
    assert g.tolist()[:5] == [0.0, 0.0, 0.0, 0.0, 0.0]
    u[0] = 3.0
    assert y.tolist()[2] == 3.0


def test_memory_that_something_else_refers_to_is_left_alone():
    x = leaf(np.ones(1000))  # no tape keeps the values
    y = x * 2.0
    array, at = y._v, y._v.ctypes.data
    view = array[3:]
    y[0] = 5.0
    assert array[0] == 2.0
    assert y._v is not array
    at = y._v.ctypes.data
    y[1] = 5.0
    assert y._v.ctypes.data == at  # nobody else
    part = y._v[:5]
    y[2] = 5.0
    assert part[2] == 2.0
    assert view[0] == 2.0
    assert y.tolist()[:4] == [5.0, 5.0, 5.0, 2.0]


def test_what_asks_for_more_is_done_by_python():
    x = leaf([1.0, 2.0, 3.0])
    with pytest.raises(GradientError, match="leaf that requires grad"):
        x[0] = 1.0
    y = x * 2.0
    with tg.no_grad():
        y[0] = 5.0
    assert tg.grad(np.sum(y), x, retain_graph=True)[0].tolist() == [2.0, 2.0, 2.0]
    y.retain_grad()
    y[1] = 0.0
    z = np.sum(y * y)
    z.backward()
    assert y.grad.tolist() == [10.0, 0.0, 12.0]
    assert x.grad.tolist() == [20.0, 0.0, 24.0]
    parts = np.split(x * np.ones(3), [1])
    with pytest.raises(GradientError, match="split"):
        parts[1][0] = 1.0
    many = np.broadcast_to(x * 1.0, (2, 3))
    with pytest.raises(tg.errors.ReadOnlyError):
        many[0, 0] = 1.0
    t = (x * np.ones((2, 3))).T
    t[0, 1] = 5.0
    assert t.tolist() == [[1.0, 5.0], [2.0, 2.0], [3.0, 3.0]]
    c = tg.zeros(3)
    c[1] = x[0]
    c[2] = 4.0
    assert tg.grad(np.sum(c), x)[0].tolist() == [1.0, 0.0, 0.0]


def test_methods_read_like_methods():
    y = leaf([1.0, 2.0]) * 1.0
    assert y.__setitem__(0, 3.0) is None
    assert y.tolist() == [3.0, 2.0]
    for wrong in ((), (0,), (0, 1.0, 2), (0, 1.0, 2, 3)):
        with pytest.raises(TypeError, match="argument"):
            y.__setitem__(*wrong)
    with pytest.raises(AttributeError, match="__delitem__"):
        del y[0]
    with pytest.raises(AttributeError):
        Tensor()[0] = 1.0


def test_subclasses_have_their_own(monkeypatch):
    class Sub(Tensor):
        __slots__ = ()

        def __setitem__(self, index, value):
            super().__setitem__(index, 2 * value)

    y, z = leaf([1.0, 2.0]) * 1.0, leaf([1.0, 2.0]) * 1.0
    y.__class__ = Sub
    y[0] = 3.0
    assert y.tolist() == [6.0, 2.0]
    with monkeypatch.context() as patch:
        patch.setattr(Tensor, "__setitem__", lambda *_: None)
        z[0] = 3.0
    assert z.tolist() == [1.0, 2.0]
    z[0] = 3.0
    assert z.tolist() == [3.0, 2.0]


@pytest.mark.parametrize("n", [3, 1000])
def test_no_reference_is_lost_or_kept(n):
    x, v = leaf(np.ones(n)), leaf(2.0) * 1.0
    y, part, constant, array = x * 2.0, x[:2] * 1.0, tg.tensor([1.0, 2.0]), np.ones(2)
    y[0] = 0.0
    some, number = slice(1, 3), 7777
    singles = [y, v, part, constant, array, number, some, y._tape, y._extra, None, True, False]
    for index, value in (
        (0, 2.5), (1, number), (0, v), (some, part), (some, array), (some, constant), (0, array), (number, v),
        ("text", v), (np.s_[:0], 1.0), (-1, np.float64(0.5)), (0, part[0]),
    ):  # fmt: skip
        gc.collect()
        before, values = [], []
        for _ in range(31):
            with contextlib.suppress(IndexError, ValueError):
                y[index] = value
            before = before or [sys.getrefcount(s) for s in singles]
            values.append(weakref.ref(y._v))
        now = [sys.getrefcount(s) for s in singles]
        assert now[:9] == before[:9]
        assert all(abs(b - a) < 40 for a, b in zip(before[9:], now[9:], strict=True))
        assert len({id(r()) for r in values}) == 1 or n == 3  # changed in place, or kept by the tape
    value = weakref.ref(y._v)
    del y, singles
    assert (value() is None) == (n == 1000)


@pytest.mark.parametrize("n", [2, 1000])
def test_finalizers_that_close_the_tape_and_look_at_what_is_written(n):
    """A collection inside the call runs them: the write goes on with another tape, and views see it."""
    x = leaf(np.full(n, 3.0))
    written, views = [], []

    def finalizer(y):
        tg.grad(np.sum(y), x, retain_graph=True)
        for z in written:
            with contextlib.suppress(GradientError):  # a write is at work
                views.append(z[:1])

    with frozen(), no_collection():
        for k in range(60):
            y = x * x
            z = y * 1.0
            written[:] = [z]
            Cycle(lambda y=y: finalizer(y))
            with collecting(1 + k % 7, 1, 1):
                z[0] = y[0] * x[0]
                z[1:] = z[:1] * np.full(n - 1, 2.0)
                z[1] = 5
            assert z.tolist()[:2] == [27.0, 5.0]
            assert z._version == 3
            (g,) = tg.grad(np.sum(z), x, retain_graph=True)
            assert g.tolist()[:2] == [27.0 + 54.0 * (n - 2), 0.0]
            for v in views:
                assert v.tolist() == [27.0]
                assert tg.grad(np.sum(v), x, retain_graph=True)[0].tolist()[:2] == [27.0, 0.0]
            views.clear()


def test_a_tape_that_was_left_is_not_written_on():
    x = leaf([3.0, 1.0])
    y = x * 2.0
    closed = y._tape
    tapes.close(closed)
    y[0] = 5.0
    assert y._tape is not closed
    assert tg.grad(np.sum(y), x)[0].tolist() == [0.0, 2.0]


@pytest.mark.parametrize("n", [3, 1000])
def test_without_memory_a_write_is_done_or_not_or_known_to_be_torn(n):
    fail = pytest.importorskip("_testcapi")
    x = leaf(np.ones(n))
    for k in range(30):
        y = x * 2.0
        y[2] = 1.0
        with contextlib.suppress(MemoryError):
            fail.set_nomemory(k, k + 1)
            y[0] = 7.0
        fail.remove_mem_hooks()
        if y._tape is STALE:
            with pytest.raises(GradientError, match="interrupted"):
                np.sum(y)
        else:
            (g,) = tg.grad(np.sum(y), x)
            found = y.tolist()[0], y._version, g.tolist()[0]
            assert found in [(7.0, 2, 0.0), (2.0, 1, 2.0)]
