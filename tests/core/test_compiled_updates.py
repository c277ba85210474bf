"""In-place operators in compiled code: values, histories, versions, views as by Python, no reference lost."""

import contextlib
import gc
import operator
import sys
import weakref

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.core import compiled_methods, inplace
from tapegrad.core.storage import STALE
from tapegrad.errors import GradientError
from tapegrad.kernels import abi, machine
from tapegrad.tensor import Tensor
from tests.finalizers import Cycle, collecting, frozen, no_collection
from tests.tensors import leaf
from tests.tiers import every

pytestmark = pytest.mark.skipif(not abi.native(), reason="the portable layout has no compiled methods")
OPERATORS = [operator.iadd, operator.isub, operator.imul, operator.itruediv]


@pytest.fixture(autouse=True)
def compiled():
    machine.load()
    tg.zeros(1)[0] = 1.0  # which loads what writes
    assert type(inplace.update_natively).__name__ == "builtin_function_or_method"


def matrix(dtype):
    return leaf(np.arange(1.0, 13.0).reshape(3, 4), dtype)


PLACES = {  # what an operator updates: of the result y the base, a part by an index, a view that is named
    "all": lambda y: y, "row": lambda y: y[1], "part": lambda y: y[1:, :2], "column": lambda y: y[:, 2],
    "reversed": lambda y: y[::-1], "steps": lambda y: y[::2, 1::2], "new axis": lambda y: y[None, 1:],
    "transposed": lambda y: y.T, "reshaped": lambda y: y.reshape(-1),
    "view of a view": lambda y: y[1:][:, 1:], "empty": lambda y: y[3:], "one": lambda y: y[1:2, 1:2],
    "repeated": lambda y: np.broadcast_to(y[:1], (2, 4)),
    "diagonal": lambda y: np.diagonal(y),
    "ellipsis": lambda y: y[...],
}  # fmt: skip
VALUES = {
    "number": lambda s, w: 1.5, "int": lambda s, w: 3, "array": lambda s, w: np.full(s, 0.5),
    "leaf": lambda s, w: w, "float32": lambda s, w: np.full(s, 0.5, "f"),
    "results": lambda s, w: w * np.full(s, 0.5, w.dtype), "complex": lambda s, w: 1j,
    "constant": lambda s, w: tg.tensor(np.full(s, 0.5, w.dtype)),
    "more axes": lambda s, w: np.ones((2, *s)), "broadcast": lambda s, w: w * np.full(s[-1:], 0.5, w.dtype),
    "a list": lambda s, w: [0.5], "another shape": lambda s, w: np.ones(7),
}  # fmt: skip


def outcome(place, make, operate, dtype):
    """What comes of an update, done three times, with a view that sees it, or an error."""
    x, w = matrix(dtype), leaf(1.25, dtype)
    y = x * 2.0
    before, seen, found = y * y, y[1:, 1:], []
    for k in range(3):
        part = PLACES[place](y)
        try:
            part = operate(part, VALUES[make](part.shape, w))
        except Exception as error:
            found.append((type(error), str(error)))
        if k == 1:
            found.append(part.tolist())
            part = part * 2.0
            seen = None
        found += [
            y.tolist(),
            y._version,
            y.dtype,
            part.tolist(),
            part.dtype,
            y.grad_fn.name(),
            before.tolist(),
        ]
    if isinstance(seen, Tensor):
        found.append(seen.tolist())
    out = np.sum(y * y) + np.sum(before) + np.sum(np.real(part * part))
    first = tg.grad(out, (x, w), create_graph=True, allow_unused=True, materialize_grads=True)
    second = tg.grad(np.sum(first[0] * first[0]) + first[1], (x, w), allow_unused=True)
    return found + [g if g is None else g.tolist() for g in (*first, *second)]


CELLS = [  # each in one of the dtypes by turns, then in the other
    (make, place, dtype) for i, make in enumerate(VALUES) for k, place in enumerate(PLACES)
    for dtype in ("df", "fd")[(i + k) % 2]
]  # fmt: skip


@pytest.mark.parametrize(("make", "place", "dtype"), every(CELLS, 2))
def test_as_python_does(make, place, dtype, monkeypatch):
    for operate in OPERATORS:
        found = outcome(place, make, operate, dtype)
        with monkeypatch.context() as patch:
            patch.setattr(inplace, "update_natively", lambda *_: None)
            patch.setattr(Tensor, "__setitem__", compiled_methods.TWINS["__setitem__"])
            wanted = outcome(place, make, operate, dtype)
        assert str(found) == str(wanted), operate


def by_index(y, v, w):
    y[1:3] += v
    y[0, 1:] *= 2.0
    y[:, 0] -= w
    y[::-1] /= 2
    y[-1] += np.ones(4, y.dtype)
    y[1:, 1:] *= y[:2, :3] * 1.0
    y *= 3.0
    y += y
    y[0] **= 2


def by_function(y, v, w):
    def at(index, f):
        z = y.copy()
        z[index] = f(y[index] * 1.0)
        return z

    y = at(np.s_[1:3], lambda p: p + v)
    y = at(np.s_[0, 1:], lambda p: p * 2.0)
    y = at(np.s_[:, 0], lambda p: p - w)
    y = at(np.s_[::-1], lambda p: p / 2)
    y = at(-1, lambda p: p + np.ones(4, y.dtype))
    y = at(np.s_[1:, 1:], lambda p: p * y[:2, :3])
    y = y * 3.0
    y = y + y
    return at(0, lambda p: p**2)


@pytest.mark.parametrize("dtype", ["d", "f"])
def test_updates_by_index(dtype, monkeypatch):
    """As functions of arrays do, and without Python's write."""

    def outcome(update):
        x, v, w = matrix(dtype), leaf(np.arange(8.0).reshape(2, 4), dtype), leaf([1.0, 2.0, 3.0], dtype)
        y = x * 0.5
        first = np.sum(y * y)
        y = update(y, v, w)
        grads = tg.grad(np.sum(y * y) + first, (x, v, w), create_graph=True)
        return [
            y.numpy() if not y.requires_grad else y.detach().numpy(),
            *(g.detach().numpy() for g in grads),
        ]

    wanted = outcome(by_function)
    monkeypatch.setattr(inplace, "write", lambda *_: pytest.fail("Python writes"))
    for found, expected in zip(outcome(lambda y, v, w: [by_index(y, v, w), y][1]), wanted, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5 if dtype == "f" else 1e-13)


@pytest.mark.parametrize("n", [5, 100_000])
def test_named_views_live_on(n):
    x = leaf(np.ones(n))
    y = x * 2.0
    before = y * y
    t = y[1:4]
    t += 1.0
    assert t._tape is STALE
    y[1:4] = t
    t *= x[:3]
    assert t.tolist() == y.tolist()[1:4] == [3.0, 3.0, 3.0]
    (gt,) = tg.grad(np.sum(t * t), t, retain_graph=True)
    assert gt.tolist() == [6.0, 6.0, 6.0]
    u = y[2:]
    y[1:4] += t  # two views see it
    assert (t.tolist(), u.tolist()[:2]) == ([6.0, 6.0, 6.0], [6.0, 6.0])
    (g,) = tg.grad(np.sum(y) + np.sum(before), x)
    # y = [2 x0, 2 a, 2 b, 2 c, 2 x4, ...] with a = (2 x1 + 1) x0 and so on, before = 4 x^2
    assert g.tolist()[:5] == [2.0 + 8 + 6, 4.0 + 8 + 6, 4.0 + 8 + 6, 4.0 + 8, 2.0 + 8]


def test_hooks_stay_with_the_history_they_were_registered_on():
    x, seen = leaf([1.0, 2.0, 3.0]), []
    y = x * 2.0
    y.register_hook(lambda g: seen.append(g.tolist()))
    y[1:] *= 5.0
    y += 1.0
    y.register_hook(lambda g: seen.append(g.tolist()))
    np.sum(y).backward()
    assert seen == [[1.0, 1.0, 1.0], [1.0, 5.0, 5.0]]


def test_large_arrays_change_in_place():
    x = leaf(np.ones(50_000))
    y = x * 2.0
    at = y._v.ctypes.data
    y[3:] += 1.0
    for _ in range(3):
        y[5:] += 1.0
        y[7:] *= 2.0
    assert y._v.ctypes.data == at
    t = y[1:]
    t -= 1.0
    assert y._v.ctypes.data == at
    assert np.shares_memory(t._v, y._v)
    kept, before = y._v, y.tolist()
    y[5:] += 1.0
    assert kept.tolist() == before
    assert y._v is not kept


@pytest.mark.parametrize("n", [8, 50_000])
def test_what_a_tape_keeps_of_a_part_is_left_alone(n):
    x, w = leaf(np.ones(n)), leaf(np.full(n - 5, 3.0))
    y = x * 2.0
    for _ in range(2):
        y[5:] *= w
    gx, gw = tg.grad(np.sum(y), (x, w))
    assert gx.tolist() == [2.0] * 5 + [18.0] * (n - 5)
    assert gw.tolist() == [12.0] * (n - 5)


def test_what_asks_for_more_is_done_by_python():
    x = leaf([1.0, 2.0, 3.0])
    for update in (lambda: operator.iadd(x, 1.0), lambda: operator.iadd(x[1:], 1.0)):
        with pytest.raises(GradientError, match="leaf that requires grad"):
            update()
    y = x * 2.0
    with tg.no_grad():
        y[1:] += 5.0
        y *= 2.0
    assert tg.grad(np.sum(y), x, retain_graph=True)[0].tolist() == [2.0, 2.0, 2.0]
    d = y.detach()
    y[1:] += 1.0
    d += 1.0
    assert y.tolist() == d.tolist() == [5.0, 20.0, 24.0]
    parts = np.split(x * np.ones(3), [1])
    with pytest.raises(GradientError, match="split"):
        parts[1] += 1.0
    c = tg.zeros(3)
    c[1:] += x[1:]
    c += 1.0
    assert tg.grad(np.sum(c), x)[0].tolist() == [0.0, 1.0, 1.0]
    i = tg.tensor([1, 2, 3])
    i[1:] += 1
    assert i.tolist() == [1, 3, 4]


@pytest.mark.parametrize("n", [4, 1000])
def test_no_reference_is_lost_or_kept(n):
    x = leaf(np.ones(n))
    y, v, some, array = x * 2.0, x[:2] * 1.0, slice(1, 3), np.ones(2)
    y[some] += v
    single = [y, v, array, y._extra.storage, y._extra.storage.memory]

    def update():
        y[some] += v
        y[some] *= array
        y[some] -= 1.0
        operator.iadd(y[1:], 1.0)
        y.__iadd__(1.0)

    update()
    gc.collect()
    before, values = list(map(sys.getrefcount, single)), []
    for _ in range(30):
        update()
        values.append(weakref.ref(y._v))
    assert list(map(sys.getrefcount, single)) == before
    value = weakref.ref(y._v)
    single.clear()
    y = v = None
    gc.collect()
    assert (value() is None) == (n == 1000)  # the open tape keeps small ones


@pytest.mark.parametrize("n", [3, 1000])
def test_without_memory_an_update_is_done_or_not_or_known_to_be_torn(n):
    fail = pytest.importorskip("_testcapi")
    x = leaf(np.ones(n))
    for part in (False, True):
        for k in range(60):
            y = x * 2.0
            y[2:] = 1.0
            t = y[:2] if part else y
            with contextlib.suppress(MemoryError):
                fail.set_nomemory(k, k + 1)
                t += 7.0
            fail.remove_mem_hooks()
            del t
            if y._tape is STALE:
                with pytest.raises(GradientError, match="interrupted"):
                    np.sum(y)
            else:
                (g,) = tg.grad(np.sum(y * y), x)
                found = y.tolist()[0], g.tolist()[0]
                assert found in [(9.0, 36.0), (2.0, 8.0)]


def test_finalizers_that_close_the_tape():
    """A collection inside the call runs them: the update goes on with another tape."""
    x = leaf(np.full(5, 3.0))

    with frozen(), no_collection():
        for k in range(60):
            y = x * x
            z = y * 1.0
            Cycle(lambda y=y: tg.grad(np.sum(y), x, retain_graph=True))
            with collecting(1 + k % 7, 1, 1):
                z[0:2] *= x[1:3]
                z += 1.0
                z[1:] *= 2.0
            assert z.tolist()[:3] == [28.0, 56.0, 20.0]
            (g,) = tg.grad(np.sum(z), x, retain_graph=True)
            assert g.tolist()[:3] == [18.0, 36.0 + 9.0, 12.0 + 18.0]
