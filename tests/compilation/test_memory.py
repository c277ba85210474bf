"""Large arrays of programs, whose pages are given back, are right whatever a call does."""

import copy
import gc
import os
import subprocess
import sys
import weakref
from mmap import PAGESIZE

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.autograd import at_once
from tapegrad.compilation.events import learner, traces
from tapegrad.compilation.events.events import (
    ARGUMENT,
    FIXED,
    LIVE,
    NARROW,
    RESULT,
    Brought,
    Called,
    Column,
    Event,
    Events,
    Several,
    Source,
    Sources,
)
from tapegrad.compilation.memory import pages as memory
from tapegrad.compilation.memory.pages import CHUNK, HUGE, LARGE, Pages, give_back
from tapegrad.compilation.memory.values import LINE, PACKED, SHEET, Packed
from tapegrad.compilation.plans.planning import Planning
from tapegrad.compilation.rows import releases
from tapegrad.compilation.rows.computing import MOST_BESIDE
from tapegrad.compilation.rows.steps import FORGOTTEN, NOTHING
from tapegrad.compilation.rows.table import Block
from tapegrad.kernels import abi, state
from tapegrad.kernels.replay.layout import HELD_BYTES, SHADOWED

pytestmark = pytest.mark.skipif(not abi.native(), reason="nothing is learned from calls")
CALLS = 9
GIVEN_BACK = sys.platform.startswith("linux")


def chain(x):
    for _ in range(3):
        x = np.tanh(x * 1.1 + 0.1)
    return np.sum(x * x)


def points(kind, more):
    size = MOST_BESIDE if kind(0).dtype.kind == "c" else LARGE
    n = size // np.dtype(kind).itemsize + more
    return [np.linspace(-1.0, 1.0, n).astype(kind) * kind(1 + 0.1 * k) for k in range(CALLS)]


def compare(f, xs, slack=100):
    compiled, recorded = tg.compile(f), tg.func.value_and_grad(f)
    for k, x in enumerate(xs):
        (value, gradient), (wanted, expected) = compiled.value_and_grad(x), recorded(x)
        assert np.asarray(value).tobytes() == np.asarray(wanted).tobytes(), k
        scale = np.abs(expected).max()
        eps = np.finfo(gradient.dtype).eps
        np.testing.assert_allclose(gradient, expected, rtol=0, atol=slack * eps * scale)
    return compiled


@pytest.mark.parametrize("setting", ["wait", "off"])
@pytest.mark.parametrize("kind", [np.float64, np.float32, np.complex128, np.complex64])
@pytest.mark.parametrize("more", [-1, 0, 1])
def test_both_sides_of_a_large_array(kind, more, setting, monkeypatch):
    monkeypatch.setenv("TAPEGRAD_COMPILE", setting)
    f = chain if kind(0).dtype.kind == "f" else lambda x: np.sum(np.abs(x * x + 0.5) ** 2)
    compiled = compare(f, points(kind, more))
    ((way,),) = [known.ways for known in compiled.explain().kinds]
    assert way.calls == CALLS - 2
    assert not way.by_python or kind(0).dtype.kind == "c"


def looking(x):
    y = np.exp(x * 0.5)
    z = y * x
    return np.sum(y * z) if y[3] > 1.0 else np.sum(z * z)


def axes(x):
    y = x.reshape(-1, 4)[::-1]
    z = np.concatenate([y, np.sin(y)]) * np.broadcast_to(y[:1], (2 * y.shape[0], 4))
    return np.sum(np.sum(z, axis=0) * y[0]) + np.max(y)


def products(x):
    y = x[: 4 * (x.size // 4)].reshape(4, -1)
    return np.sum((y @ y.T) ** 2) * 1e-9 + np.mean(np.linalg.norm(y, axis=1))


def transposed(x):
    y = (x.reshape(64, -1).T * 1.5 + 0.25) * 0.5
    return np.sum(np.sum(y * y, axis=1) * y[:, 3]) + np.sum(y)


@pytest.mark.parametrize("f", [looking, axes, products, transposed])
@pytest.mark.parametrize("setting", ["wait", "off"])
def test_functions_of_large_arrays(f, setting, monkeypatch):
    monkeypatch.setenv("TAPEGRAD_COMPILE", setting)
    xs = points(np.float64, 0)
    xs = [x * (-1) ** (k // 2) for k, x in enumerate(xs)] + xs
    compare(f, xs, 1e6)  # sums of 16,384 rows in another order


LEAVING = [  # in turn, two of each
    pytest.param(what, begin, marks=pytest.mark.full if (i + k) % 2 else ())
    for i, what in enumerate(["keep", "array", "look", "leave", "raise", "errors"])
    for k, begin in enumerate([2, 3, 4, 6])
]


@pytest.mark.parametrize(("what", "begin"), LEAVING)
def test_a_call_may_leave_at_any_time(what, begin):
    kept = []

    def f(x, k):
        y = np.tanh(x) * 2.0
        z = y * y
        if k >= begin and k % 2 == 0:
            if what == "keep":
                kept.append(z)
            elif what == "array":
                kept.append(z.detach().numpy())
            elif what == "look":
                assert np.all(z[:5].detach().numpy() >= 0)
            elif what == "leave":
                return np.sum(z * y) + z[1]
            elif what == "raise":
                raise ValueError("stop")
            else:
                return np.sum(np.log(y - 5.0) * z)
        return np.sum(z * y)

    compiled, recorded = tg.compile(f, wait=True), tg.func.value_and_grad(f)
    for k, x in enumerate(points(np.float64, 1)):
        found = []
        for call in (compiled.value_and_grad, recorded):
            try:
                with np.errstate(all="ignore"):
                    found.append(call(x, k))
            except ValueError as error:
                found.append((str(error), 0.0))
        np.testing.assert_array_equal(found[0][0], found[1][0])
        np.testing.assert_allclose(found[0][1], found[1][1], rtol=1e-12)
    for ours, theirs in zip(kept[::2], kept[1::2], strict=True):
        a, b = (y.detach().numpy() if isinstance(y, tg.Tensor) else y for y in (ours, theirs))
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("way", [0, 1])
def test_what_a_call_at_work_has_seen_is_kept_while_another_way_is_learned(way):
    kept = []

    def f(x, k):
        y = x * x * 2.0
        kept.append(y.detach().numpy())
        return np.sum(y * y) if k != 4 else np.sum(y) * y[1]

    compiled = tg.compile(f, wait=True)
    for k, x in enumerate(points(np.float64, 1)):
        compiled.value_and_grad(x, k) if way else compiled(x, k)
        np.testing.assert_array_equal(kept[-1], x * x * 2.0)
    for x, y in zip(points(np.float64, 1), kept, strict=True):
        np.testing.assert_array_equal(y, x * x * 2.0)


@pytest.mark.parametrize("wrong", [False, True])
def test_a_call_that_is_learned_from_may_write_to_its_argument(wrong):
    """The array that is kept of it is the one that came."""

    def f(x, k):
        y = np.sum(np.exp(x))
        if k == 1 or wrong:
            x[0] = 7.0
        return y * y

    compiled, recorded = tg.compile(f, wait=True), tg.func.value_and_grad(f)
    for k, x in enumerate(points(np.float64, 0)):
        before, (value, gradient), (wanted, expected) = (
            x.copy(),
            compiled.value_and_grad(x, k),
            recorded(x, k),
        )
        np.testing.assert_array_equal(x, before)
        assert value == wanted
        np.testing.assert_allclose(gradient, expected, rtol=1e-13)


def test_products_with_the_hessian():
    xs = points(np.float64, 0)
    v = np.cos(xs[0])
    for f in (chain, lambda x: np.linalg.norm(x) * np.sum(x)):
        compiled, recorded = tg.compile(f, wait=True), tg.func.hvp(f)
        for k, x in enumerate(xs):
            compiled.value_and_grad(x)
            found, expected = compiled.hvp(x, v), recorded(x, v)
            np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12 * np.abs(expected).max())
            compiled.value_and_grad(x * (k + 1))
        assert "for second derivatives" in compiled.explain()


def test_calls_of_tensors():
    compiled = tg.compile(chain, wait=True)
    for x in points(np.float64, 0):
        t, s = (tg.tensor(x, requires_grad=True) for _ in range(2))
        (ours,), (theirs,) = tg.grad(compiled(t), t), tg.grad(chain(s), s)
        np.testing.assert_allclose(ours, theirs, rtol=1e-12)


@pytest.mark.parametrize("count", [2 * SHADOWED - 4, 2 * SHADOWED + 1])
def test_large_results_weigh_a_part_of_their_size(count, monkeypatch):
    """The argument as a whole, each result one of 32 parts of that."""
    monkeypatch.setattr(learner, "MOST_BYTES", 3 * LARGE)

    def f(x):
        for _ in range(count):
            x = x * 0.5
        return np.sum(x)

    compiled, x = tg.compile(f, wait=True), np.linspace(0.1, 1.0, LARGE // 8)
    for k in range(5):
        value, gradient = compiled.value_and_grad(x * (k + 1))
        assert value == tg.func.value_and_grad(f)(x * (k + 1))[0]
        np.testing.assert_array_equal(gradient, np.full_like(x, 0.5**count))
    assert ("too many to keep" in compiled.explain()) == (count > 2 * SHADOWED)


def test_pages_at_the_edges_are_kept():
    room = np.ones(LARGE // 8 + 1000)
    for begin in (0, 1, 511, 513):
        room[:] = 1.0
        x = room[begin : begin + LARGE // 8]
        give_back(x)
        assert np.all(room[:begin] == 1.0) and np.all(room[begin + LARGE // 8 :] == 1.0)
        assert np.any(x == 0.0) or not GIVEN_BACK
    room[:] = 1.0
    give_back(room[: LARGE // 8 - 1])
    assert np.all(room == 1.0)


@pytest.mark.parametrize("size", [LARGE, memory.HUGE])
@pytest.mark.parametrize("more", [-1, 0, 1])
def test_arrays_with_pages_of_their_own_are_given_back_as_a_whole(size, more):
    like = np.ones((3, size // 12), np.float32).T
    arrays = memory.zeros((size + more,), np.dtype(np.uint8)), memory.empty_like(like)
    assert arrays[1].strides == like.strides and arrays[1].dtype == like.dtype
    for x in arrays:
        part = x[1:]
        x[:] = 1.0
        give_back(x)
        assert part.base is x  # so that counts of references to it tell who has a part
        assert np.all(x == 0.0) if GIVEN_BACK and x.nbytes >= LARGE else np.all(x == 1.0)


def test_what_is_read_later_is_not_given_back(monkeypatch):
    given = []
    monkeypatch.setattr(releases, "give_back", lambda x: given.append(x))
    compiled = tg.compile(chain, wait=True)
    for x in points(np.float64, 0)[:3]:
        compiled.value_and_grad(x)
    (kind,) = compiled._kinds.values()
    path = kind.matcher.paths[0]
    found = path._releases
    arguments = [*path.program.arguments, *path.program.brought(), path.program.values[path.result]]
    assert given
    assert not any(np.may_share_memory(x, y) for x in given for y in (*arguments, *path.reverse.gradients))
    for k, arrays in found.after.items():
        later = [y for step in path.program.rows.steps[k + 1 :] for y in step.reads]
        later += [y for step in path.reverse.rows.steps for y in step.reads if isinstance(y, np.ndarray)]
        assert not any(np.may_share_memory(x, y) for x in arrays for y in later)
    assert found.later
    for k, arrays in found.later.items():
        assert k + 1 in path.reverse.rows.group_ends()  # a group knows blocks of its own
        later = [getattr(y, "array", y) for step in path.reverse.rows.steps[k + 1 :] for y in step.reads]
        later = [y for y in later if isinstance(y, np.ndarray)]
        assert not any(np.may_share_memory(x, y) for x in arrays for y in later)
    blocks, ended = path.reverse.blocks, [id(x) for arrays in found.later.values() for x in arrays]
    assert blocks
    assert {id(x) for x in blocks} <= {*ended}  # as their groups end, not behind the last one


@pytest.mark.parametrize("is_much", [False, True])
def test_calls_are_recorded_where_rows_would_keep_much_until_there_is_a_plan(is_much, monkeypatch):
    monkeypatch.setattr(releases, "MUCH", 0 if is_much else 1 << 40)
    monkeypatch.setattr(Planning, "_ask", lambda self: setattr(self, "_asked", True))
    compiled, xs = tg.compile(chain, wait=True), points(np.float64, 0)
    for x in xs[:6]:
        compiled.value_and_grad(x)
    (kind,) = compiled._kinds.values()
    (path,) = kind.matcher.paths
    assert path.served == (2 if is_much and GIVEN_BACK else 4)  # two came before it was learned
    (planning,) = path.plans.values()
    planning.work()
    for x in xs[6:]:
        np.testing.assert_allclose(compiled.grad(x), tg.func.grad(chain)(x), rtol=1e-12)
    assert planning.plan is not None
    assert planning.plan is path.computed_by


def test_no_row_writes_behind_a_block_of_an_empty_array():
    """The cotangent of such an array may be a number, which is written there."""
    compiled = tg.compile(lambda x: np.sum(x * x) + np.sum(x * 2.0), wait=True)
    for _ in range(4):
        assert compiled.value_and_grad(np.ones((2, 0)))[0] == 0.0
    (kind,) = compiled._kinds.values()
    numbers = [step for step in kind.matcher.paths[0].reverse.rows.steps if step.extent == 1]
    written = [x.array for step in numbers for x in step.writes if isinstance(x, Block)]
    assert written and all(x.size == 0 and x.base.nbytes >= x.itemsize for x in written)


def test_what_a_call_is_learned_by_is_freed_without_collection(monkeypatch):
    """It has all values of the call."""
    monkeypatch.setenv("TAPEGRAD_COMPILE", "wait")
    made, before = [], learner.Learner.mode

    def mode(self):
        made.append(weakref.ref(self))
        return before(self)

    monkeypatch.setattr(learner.Learner, "mode", mode)

    @tg.compile
    def f(x, n):
        with tg.no_grad():
            scale = np.sum(x)
        for _ in range(n):
            x = np.sin(x) * scale
        return np.sum(x)

    gc.collect()
    gc.disable()
    try:
        for n in (1, 1, 1, 4, 4, 4):
            f.grad(np.ones(3), n)
        assert made and not any(one() for one in made)
    finally:
        gc.enable()


@pytest.mark.parametrize("most", [1, 7, 8, 1 << 14])  # the function has eight rows, more in reverse
@pytest.mark.parametrize("n", [3, LARGE // 8 - 1, LARGE // 8])
def test_rows_that_are_too_many_for_a_plan_forget_small_arrays(n, most, monkeypatch):
    monkeypatch.setattr(memory, "MOST_STEPS", most)
    monkeypatch.setattr(releases, "SOME_STEPS", 1)
    monkeypatch.setenv("TAPEGRAD_COMPILE", "wait")
    compiled = compare(lambda x: np.sum(np.tanh(x[1:] * 2.0 + 0.5) * np.exp(x[:-1])), [np.ones(n + 1)] * 3)
    gc.collect()
    spoiled = [np.full(size, np.nan) for size in (1, 2, n, 1) for _ in range(20)]  # where something was
    (kind,) = compiled._kinds.values()
    path = kind.matcher.paths[0]
    for rows, is_long in ((path.program.rows, most < 8), (path.reverse.rows, most < 1 << 14)):
        loops = [step for step in rows.steps if step.kind in FORGOTTEN and step != NOTHING]
        assert loops or is_long
        assert all(step.reads for step in loops) or (is_long and n < LARGE // 8)
    x = np.linspace(-1.0, 1.0, n + 1)
    found, wanted = compiled.grad(x), tg.func.grad(compiled.plain)(x)
    np.testing.assert_allclose(found, wanted, rtol=1e-14)
    assert len(spoiled) == 80


def test_arrays_of_a_long_program_that_are_kept_stay_as_they_were_seen(monkeypatch):
    """Whether whole arrays or parts; those of two operations are not taken for views of one memory."""
    monkeypatch.setattr(memory, "MOST_STEPS", 0)
    kept = []

    def f(x, k):
        y = x * 2.0
        z = y + 1.0
        if k % 3 == 2:
            kept.append((y.detach().numpy(), (z.detach().numpy())[1:], k))
        return np.sum(np.exp(-z) * y) if k % 4 else np.sum(z * z)

    compiled = tg.compile(f, wait=True)
    for k in range(16):
        x = np.arange(4.0) + k
        (value, gradient), (wanted, expected) = compiled.value_and_grad(x, k), tg.func.value_and_grad(f)(x, k)
        assert value == wanted
        np.testing.assert_allclose(gradient, expected, rtol=1e-14)
    for y, z, k in kept:
        np.testing.assert_array_equal(y, (np.arange(4.0) + k) * 2.0)
        np.testing.assert_array_equal(z, ((np.arange(4.0) + k) * 2.0 + 1.0)[1:])


@pytest.mark.parametrize("dtype", ["d", "f", "?", "D", "h"])
@pytest.mark.parametrize("size", [0, 1, 3, 112, PACKED, PACKED + 1])  # bytes
def test_packed_values(size, dtype):
    """What lies in sheets keeps its bits, apart from all else; others than the program may keep arrays."""
    draw, packed = np.random.default_rng(0), Packed()
    count = SHEET // PACKED + 2 if size == PACKED else 4
    shapes = [(-(-size // np.dtype(dtype).itemsize),), (), (2, 1)] * count
    given = [draw.integers(-9, 9, shape).astype(dtype) for shape in shapes]
    for x in given:
        packed.append(x[()] if x.ndim == 0 else x)
    again = copy.copy(packed)
    other = Packed()
    for k, x in enumerate(given[:3]):
        other.append(x)
        again.share(k, other)
        assert again.is_shared(k, other)
    again.room(1, given[1])[...] = 5  # elsewhere
    assert [x.tobytes() for x in other] == [x.tobytes() for x in given[:3]]
    assert not again.is_shared(1, packed)
    assert packed.is_shared(3, again)
    assert packed.is_packed(1)
    packed.trim()
    for k, x in enumerate(given):
        found = packed[k]
        assert (found.dtype, found.shape, found.tobytes()) == (x.dtype, x.shape, x.tobytes())
        places = abi.address(found) + np.array([0, x.nbytes - 1])
        assert x.nbytes == 0 or np.ptp(places // LINE) < -(-x.nbytes // LINE) or not packed.is_packed(k)
        assert found.flags.aligned and packed.is_packed(k) == (0 < x.nbytes <= PACKED)
        packed[k] = found
        assert packed.is_packed(k) == (0 < x.nbytes <= PACKED)
    for k in (3, 5):
        seen, other = packed.seen(k), packed.seen(k + 3)
        assert packed.seen(k) is packed[k] is seen
        assert not seen.ndim or (seen.base is not other.base) or not packed.is_packed(k)
        if seen.size:
            seen[...] = 1
            assert (packed[k] == 1).all()
    assert packed.nbytes() == sum(x.nbytes for x in given)
    packed[1] = kept = np.ones(3)
    assert packed[1] is kept and not packed.is_packed(1)
    packed[1] = kept = np.zeros(2)
    assert packed[1] is kept and len([*packed.alone(2)]) == 1 + (not packed.is_packed(0))
    packed.room(1, np.zeros(3))[...] = 7
    assert (packed[1] == 7).all() and not any(x is kept for x in packed.alone())


@pytest.mark.parametrize(
    "look", [lambda y: y, lambda y: y.detach(), lambda y: y[1:], lambda y: memoryview(y.detach().numpy())]
)
@pytest.mark.parametrize("most", [0, 1 << 14])  # steps of a program whose values are not packed
def test_what_is_kept_of_the_call_that_is_learned_from_is_no_buffer(look, most, monkeypatch):
    """A program takes arrays that recording has made for its own, but where somebody has them."""
    monkeypatch.setattr(memory, "MOST_STEPS", most)
    monkeypatch.setenv("TAPEGRAD_COMPILE", "wait")
    kept = []

    def f(x):
        y = x * 2.0
        if len(kept) < 3:
            kept.append(look(y))
        return np.sum(np.exp(y) * y)

    compiled = tg.compile(f)
    for k in range(8):
        x = np.arange(4.0) + k
        assert (
            compiled.grad(x).tobytes()
            == tg.func.grad(lambda x: np.sum(np.exp(x * 2.0) * (x * 2.0)))(x).tobytes()
        )
    for k, y in enumerate(kept):
        expected = (np.arange(4.0) + k) * 2.0
        found = np.asarray(y.detach() if isinstance(y, tg.Tensor) else y)
        np.testing.assert_array_equal(found, expected[expected.size - found.size :])


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_what_recorded_calls_have_left_is_given_back(more, monkeypatch):
    """By workspaces of sweeps, where arrays are pages long."""
    emptied, trim, recorded = [], memory.trim, tg.func.value_and_grad(chain)
    state.give(state.State())  # another one, such as another thread has had
    x = np.linspace(-1.0, 1.0, PAGESIZE // 8 + more)
    wanted = recorded(x)

    def trimmed():
        trim()
        every = [*state._idle, *at_once._states.values()]
        emptied.append(not any(one.view[HELD_BYTES] for one in every))

    monkeypatch.setattr(memory, "trim", trimmed)
    compiled = tg.compile(chain, wait=True)
    for _ in range(CALLS):
        assert compiled.value_and_grad(x)[0] == wanted[0]
    assert emptied == [True] * (x.nbytes >= PAGESIZE)
    np.testing.assert_array_equal(recorded(x)[1], wanted[1])


PEAK = """
import numpy as np, tapegrad as tg
{function}
f = tg.compile(f, wait=True).value_and_grad if {compiled} else tg.func.value_and_grad(f)
x, small = np.linspace(-1.0, 1.0, 1_000_000), np.linspace(-1.0, 1.0, 1000)
for _ in range(8): f(small)
def known(name):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(name)) / 1024
begin = known("VmRSS")
for k in range(8): f(x)
print(known("VmHWM") - begin, known("VmRSS") - begin)
"""


CHAIN = """
def f(x):
    for _ in range(5):
        x = np.tanh(x * 1.1 + 0.1)
    return np.sum(x * x)
"""
SHIFTS = """
one = np.ones(1)
def f(x):
    y = x * 0.5
    for _ in range(8):
        z = x * np.concatenate([one, (y + 0.1 * x)[:-1]])
        y = y + 0.5 * z
    return np.sum(y)
"""


@pytest.mark.full
@pytest.mark.skipif(not GIVEN_BACK, reason="memory is told of by Linux")
@pytest.mark.parametrize(("function", "between"), [(CHAIN, 0.6), (SHIFTS, 0.9)])
def test_memory_of_a_process(function, between):
    """16 results of 8 MB each; recording takes 84 MiB at most, and has as much between calls.

    Of parts of results what they are of is not kept either.
    """
    (peak, rest), (recorded, _) = (
        map(float, subprocess.run(
            [sys.executable, "-c", PEAK.format(compiled=compiled, function=function)], env=os.environ,
            capture_output=True, text=True, timeout=120, check=True,
        ).stdout.split())
        for compiled in (True, False)
    )  # fmt: skip
    assert peak < 1.08 * recorded  # one array more would be 1.09
    assert rest < between * recorded


PROGRAM = """
import gc, numpy as np, tapegrad as tg
def f(x, n):
    y = x
    for _ in range(n):
        y = np.tanh(y * x + 0.1)
    return np.sum(y)
f, x = tg.compile(f, wait=True), np.linspace(-1.0, 1.0, 14)
for _ in range(4): f.grad(x[:3], 3)
def known(name):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(name)) * 1024
gc.collect()
begin = known("VmRSS")
for _ in range(4):
    f.grad(x, 9_000)
    print((known("VmHWM") - begin) / 27_001)
assert "27,001 compared" in str(f.explain())
"""


@pytest.mark.full
@pytest.mark.skipif(not GIVEN_BACK, reason="memory is told of by Linux")
def test_memory_of_a_long_program():
    """Of each operation 0.75 KB; 1.2 once the loop is compiled, which has room of its own for each turn."""
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=environment, check=True
    )
    _, _, learned, compiled = map(float, found.stdout.split())
    assert learned < 900 and compiled < 1400


@pytest.mark.full
def test_large_arguments_are_those_of_one_function_at_a_time(monkeypatch):
    monkeypatch.setenv("TAPEGRAD_COMPILE", "wait")
    x = np.linspace(0.5, 1.5, HUGE // 8 + 1)
    functions = [lambda x: np.sum(np.sin(x * x)), lambda x: np.sum(1.0 / x)]
    compiled, recorded = map(tg.compile, functions), map(tg.func.value_and_grad, functions)
    pairs = [*zip(compiled, recorded, strict=True)]
    for k in range(8):
        for call, wanted in pairs:
            (value, g), (expected, h) = call.value_and_grad(x + k), wanted(x + k)
            assert value == expected and np.array_equal(g, h), k
    kinds = [kind for call, _ in pairs for kind in call._kinds.values()]
    first, second = (kind.matcher.paths[0].program.arguments[0] for kind in kinds)
    assert np.array_equal(second, x + 7)
    assert not GIVEN_BACK or not first[512:-512].any()  # pages of nothing else
    for k, (call, _) in enumerate(pairs):  # whose products with the Hessian are made in a call, of its values
        np.testing.assert_allclose(call.hvp(x, x), tg.func.hvp(functions[k])(x, x), rtol=1e-12, atol=1e-12)
        assert call.explain().kinds[0].ways[0].second


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_both_sides_of_an_array_of_a_page(more, monkeypatch):
    monkeypatch.setenv("TAPEGRAD_COMPILE", "wait")
    xs = [np.linspace(-1.0, 1.0, PAGESIZE // 8 + more) + 0.1 * k for k in range(CALLS)]
    compiled = compare(chain, xs)
    (path,) = next(iter(compiled._kinds.values())).matcher.paths
    gone = [not x.any() for x in path.program.values[:-1]]
    assert all(gone) if more >= 0 and GIVEN_BACK else not any(gone)
    assert compiled(xs[0]) == tg.func.value_and_grad(chain)(xs[0])[0]  # by other rows


@pytest.mark.skipif(not GIVEN_BACK, reason="arrays are NumPy's own")
def test_arrays_that_have_pages_to_themselves():
    pages, made = Pages(), []
    for k in range(3 * CHUNK):
        size = (PAGESIZE // 8, PAGESIZE // 8 + 1, LARGE // 8 - 1)[k % 3]
        like = np.zeros((2, size // 2 + 1)).T
        x = pages.zeros((size,), like.dtype) if k % 2 else pages.empty_like(like)
        assert abi.address(x) % PAGESIZE == 0 and (k % 2 or x.strides == like.strides)
        x[...] = k + 1
        made.append(x)
    for x in made[::2]:
        give_back(x)
    for k, x in enumerate(made):
        assert np.all(x == (k + 1) * (k % 2))
    for size in (PAGESIZE // 8 - 1, LARGE // 8):
        assert (pages.zeros((size,), np.dtype(float)).base is None) is (size < LARGE // 8)


@pytest.mark.parametrize("at", [3, 4])
def test_what_is_computed_behind_a_look_is_given_back(at, monkeypatch):
    """At no call what somebody has seen, who may keep it."""
    monkeypatch.setenv("TAPEGRAD_COMPILE", "wait")
    kept = []

    def f(x, keep):
        y = np.exp(x * 0.5)
        if keep:
            kept.append(y.detach().numpy())
        z = np.sin(y) if y[3].item() < 100.0 else y
        return np.sum(z * x)

    compiled, recorded, x = tg.compile(f), tg.func.value_and_grad(f), np.linspace(-1.0, 1.0, LARGE // 8)
    for k in range(2 * CALLS):
        (value, g), (wanted, h) = compiled.value_and_grad(x, k == at), recorded(x, False)
        assert value == wanted and np.allclose(g, h, rtol=1e-13, atol=0)
        assert all(np.array_equal(y, np.exp(x * 0.5)) for y in kept)
    path = max(next(iter(compiled._kinds.values())).matcher.paths, key=lambda path: path.served)
    names = [op.name for op in path.program.events.ops]
    gone = dict(zip(names, [not y.any() for y in path.program.values], strict=True))
    assert gone["sin"] is GIVEN_BACK and not gone["exp"]


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_columns_of_objects(more):
    objects = [object() for _ in range(NARROW + more)]
    column = Column()
    for x in (*objects, *objects[:3]):
        column.append(x)
    assert len(column) == len(objects) + 3
    assert all(x is y for x, y in zip(column, (*objects, *objects[:3]), strict=True))
    other = copy.copy(column)
    column.trim()
    column[1], column[2], other[3] = objects[4], column[2], objects[5]
    assert column[1] is objects[4] and column[2] is objects[2] and column[3] is objects[3]
    assert other[1] is objects[1] and other[3] is objects[5]
    assert [*column.unlike(objects[2])] == [k for k in range(len(column)) if column[k] is not objects[2]]
    assert [*Column().unlike(None)] == []


def test_small_arrays_among_the_operands_of_very_many_operations_are_packed():
    """Each has memory of its own, though one array came twice."""
    for are_many in (True, False):
        x, large, number = np.arange(3.0), np.zeros(PACKED), np.float64(2.0)
        given = [x, x, x[::2], large, number, 7, np.array(1.0)]
        sources = Sources(are_many)
        for value in given:
            sources.append(Source(LIVE, value))
        sources.append(Source(FIXED, 2))
        found = [source.value for source in sources]
        assert all(np.array_equal(a, b) for a, b in zip(found, given, strict=False)) and found[-1] == 2
        assert [sources.has_packed(value) for value in found] == [are_many, are_many] + [False] * 6
        found[0][...] = 5.0
        assert sources[1].value[0] == (0.0 if are_many else 5.0)
        again = copy.copy(sources)
        sources[1] = sources[1]
        assert sources.has_packed(sources[1].value) is are_many and len(sources) == len(given) + 1
        sources[1], sources[5] = Source(FIXED, 3), Source(FIXED, 4)
        assert [sources[k] for k in (1, 5, -1)] == [Source(FIXED, k) for k in (3, 4, 2)]
        sources[0] = Source(LIVE, x)
        assert sources[0].value is x and (again[0].value == 5.0).all()
        assert not any(again.has_packed(source.value) for source in again)


def test_how_operations_were_called_is_kept_once_for_all_that_were_called_alike():
    """But not for those of which an argument is equal and another one."""
    add, total, first = tg.ops.MEANING[np.add], tg.ops.MEANING[np.sum], Source(ARGUMENT, 0)
    calls = [
        (np.sum, lambda x: (x,), {}),
        (np.sum, lambda x: (x, 1), {}),
        (np.sum, lambda x: (x, True), {}),
        (np.sum, lambda x: (x,), {"axis": 1}),
        (np.mean, lambda x: (x,), {}),
        (np.sum, lambda x: (Several(list, (x, Brought(0))),), {}),
        (np.sum, lambda x: (Several(tuple, (x, Brought(0))),), {}),
        (np.sum, lambda x: (x, 0.0), {}),
    ]
    events, expected = Events(), []
    for k in range(5):
        for function, args, names in calls:
            x = Source(RESULT, len(events) - 1) if len(events) else first
            expected.append(Called(function, args(x), names))
            events.append(Event(total, (x,), {}, np.zeros(()), False, expected[-1]))
        pair = Called(np.add, (first, Source(RESULT, len(events) - 1)), {}, results=(0,))
        events.append(Event(add, pair.args, {}, np.zeros(()), False))
        expected.append(pair)
        events[len(events) - 1] = events[len(events) - 1]._replace(call=pair)
    for k, call in enumerate(expected):
        found = events[k].call
        assert found == call == events.call(k) == events.copy()[k].call
        assert [*map(type, found.args)] == [*map(type, call.args)]
        if type(call.args[0]) is Several:
            assert found.args[0].kind is call.args[0].kind
    alone = sum(1 for call in expected if any(type(x) in (Several, float) for x in call.args))
    assert len({id(x) for x in events._more}) <= alone + 2 * len(calls)
    events[0] = events[0]._replace(call=None)
    assert events[0].call is None and events[len(calls) + 1].call == expected[len(calls) + 1]


def test_a_long_program_has_a_buffer_for_each_array_that_a_call_brings(monkeypatch):
    """Though the call that is learned from has brought the same one twice."""
    monkeypatch.setattr(memory, "MOST_STEPS", 0)

    def f(x, a, b, c):
        return np.sum((x * a + b) * np.sin(x * c))

    compiled, recorded = tg.compile(f, wait=True), tg.func.value_and_grad(f)
    x = np.linspace(0.1, 1.0, 3)
    for k in range(8):
        a = x + k
        given = (a, a, a) if k < 3 else (a, np.full(3, 2.0 * k), np.arange(6.0)[::2])
        (value, gradient), (wanted, expected) = compiled.value_and_grad(x, *given), recorded(x, *given)
        assert value == wanted
        np.testing.assert_allclose(gradient, expected, rtol=1e-14)


def test_of_a_long_call_no_arrays_are_kept(monkeypatch):
    """They are found anew where the bits of rows are compared, and are those of recording."""
    monkeypatch.setattr(memory, "MOST_STEPS", 0)
    listed, events = [], traces.Trace.events

    def watched(trace, *args):
        listed.extend(trace.listing.value(k) for k in range(len(trace.listing)))
        return events(trace, *args)

    def f(x):
        y = x
        for _ in range(30):
            y = np.sin(y) * x + 0.1 * y**-1.5
        return np.sum(y)

    monkeypatch.setattr(traces.Trace, "events", watched)
    compiled, recorded = tg.compile(f, wait=True), tg.func.value_and_grad(f)
    for k in range(6):
        x = np.array([0.5, 1.5, 2.5]) + 0.1 * k
        (value, gradient), (known, expected) = compiled.value_and_grad(x), recorded(x)
        assert np.asarray(value).tobytes() == np.asarray(known).tobytes()
        np.testing.assert_allclose(gradient, expected, rtol=1e-14)
    arrays = [x for x in listed if np.ndim(x)]
    assert len(arrays) > 100 and not any(map(any, (x.strides for x in arrays)))
    assert "way" in compiled.explain()
