"""Ways that a thread makes while calls are recorded: who calls meanwhile, forks, goes, or is interrupted."""

import contextvars
import gc
import os
import sys
import threading
import time
import tracemalloc
import weakref

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.compilation import background
from tapegrad.compilation.events import learner, listing
from tapegrad.compilation.events.events import History
from tapegrad.compilation.memory import pages as memory
from tapegrad.compilation.paths import learning
from tapegrad.compilation.paths import path as paths
from tapegrad.core.expected import expected
from tapegrad.kernels import abi
from tapegrad.kernels.replay import layout
from tests.tiers import every

from .hostile import FUNCTIONS
from .test_fused import run
from .test_hostile import arguments, counting, outcome, same

pytestmark = pytest.mark.skipif(not abi.native(), reason="nothing is learned from calls")
X = np.array([0.3, 0.7, -0.2, 0.5])


def settle(compiled):
    """Wait until there is nothing left to make."""
    end = time.monotonic() + 60
    while any(kind.learning for kind in compiled.explain().kinds):
        assert time.monotonic() < end, compiled.explain()
        time.sleep(1e-3)


@pytest.fixture
def gate(monkeypatch):
    """What programs wait for before they are made; `reached` is set by the first."""
    opened, real = threading.Event(), learning.Program
    opened.reached = threading.Event()

    def program(*args, **names):
        opened.reached.set()
        while not opened.wait(1e-3):
            background.pause()
        return real(*args, **names)

    monkeypatch.setattr(learning, "Program", program)
    yield opened
    opened.set()


def energy(x):
    return np.sum(np.tanh(x) * x + 1.0)


def agree(compiled, f, x):
    (value, gradient), (wanted, expectation) = compiled.value_and_grad(x), tg.func.value_and_grad(f)(x)
    assert value == wanted
    np.testing.assert_allclose(gradient, expectation, rtol=1e-13)


def test_calls_do_not_wait_for_a_way(gate):
    runs = []
    compiled = tg.compile(lambda x: runs.append(1) or energy(x))
    for k in range(20):
        agree(compiled, energy, X + k)
    assert gate.reached.wait(60)
    assert len(runs) == 20
    (kind,) = compiled.explain().kinds
    assert kind.learning and not kind.ways
    assert "being learned" in compiled.explain()
    gate.set()
    settle(compiled)
    for k in range(3):
        agree(compiled, energy, X + k)
    assert len(runs) == 23
    assert compiled.explain().kinds[0].ways[0].calls == 3


@pytest.mark.parametrize("argnums", [0, (2, 0)])
def test_calls_of_several_arguments_while_a_way_is_learned(gate, argnums):
    """Those of the kind that is learned are recorded with no more ado; others are what they are."""
    f = lambda x, n, y=2.0, z=1.0: np.sum(np.tanh(x) * n + y * z)
    compiled, plain = tg.compile(f, argnums=argnums), tg.func.value_and_grad(f, argnums)
    leaf = tg.tensor(X, requires_grad=True)
    args = [(X + k, 3, 2.0 - k) for k in range(6)] + [(X[:2], 3, 2.0), (X[::2], 3, 2.0), (leaf, 3, 2.0)]
    for k, given in enumerate(args):
        (value, found), (wanted, gradient) = compiled.value_and_grad(*given, z=k), plain(*given, z=k)
        assert bool(value == wanted) and type(value) is type(wanted)
        for g, e in zip(found, gradient, strict=True) if argnums else [(found, gradient)]:
            assert type(g) is type(e) and np.array(g == e).all()
    with pytest.raises(TypeError, match="are given by position"):
        compiled.value_and_grad()
    assert [kind.total for kind in compiled.explain().kinds] == [6, 1, 1, 1]


def test_the_call_that_is_learned_from_does_not_wait_for_the_thread(monkeypatch):
    """The thread begins with a rest, here one that lasts until calls have been made."""
    compiled, other, waited = tg.compile(energy), tg.compile(energy), []
    for _ in range(3):  # the thread is there
        other.value_and_grad(X)
        settle(other)
    while background.waiting() or background._turn.due > time.perf_counter():
        time.sleep(1e-3)
    monkeypatch.setattr(background, "SHARE", 3600 / background.PIECE)
    monkeypatch.setattr(background._turn, "lend", waited.append, raising=False)
    for _ in range(3):
        agree(compiled, energy, X)
    assert compiled.explain().kinds[0].learning
    assert not waited
    monkeypatch.undo()
    for job in background._jobs:
        job.due = 0.0
    background._wanted.put(None)
    settle(compiled)
    agree(compiled, energy, X)


def test_what_takes_long_begins_later(monkeypatch):
    """Until then calls share the lock with nobody; what was asked for behind it, and takes less, is done."""
    long, short, waited = tg.compile(energy), tg.compile(energy), []
    monkeypatch.setattr(learning, "SECONDS", 0.5)  # of three operations
    for _ in range(2):
        agree(long, energy, X)
    monkeypatch.undo()
    for _ in range(2):
        agree(short, energy, X)
    settle(short)
    assert "way 1" in short.explain()
    assert long.explain().kinds[0].learning
    monkeypatch.setattr(background._turn, "lend", waited.append, raising=False)
    agree(long, energy, X)
    assert not waited
    monkeypatch.undo()
    settle(long)
    assert "way 1" in long.explain()


def test_threads_call_while_a_way_is_made(gate):
    def f(x, k):
        return energy(x) * (2.0 if k % 3 else 3.0) + (np.sum(np.sin(x)) if k % 2 else x[0])

    compiled, recorded, wrong = tg.compile(f), tg.func.value_and_grad(f), []

    def work(seed):
        for k in range(300):
            x = X * (1 + seed + 0.01 * k)
            (value, gradient), (wanted, expectation) = compiled.value_and_grad(x, k), recorded(x, k)
            if value != wanted or np.abs(gradient - expectation).max() > 1e-12 * np.abs(expectation).max():
                wrong.append((seed, k))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    gate.reached.wait(60)
    time.sleep(0.02)
    gate.set()
    for thread in threads:
        thread.join()
    for _ in range(4):
        settle(compiled)
        work(5)
    assert not wrong
    assert len(compiled.explain().kinds[0].ways) == 2


@pytest.mark.parametrize("name", every(list(FUNCTIONS)[::9], 3))
def test_it_does_what_the_function_does(name, monkeypatch):
    """As tests/compilation/test_hostile.py, with ways that are made between calls, and hardly a rest."""
    monkeypatch.setattr(background, "SHARE", background.ALONE)
    (f, effects), (g, others) = FUNCTIONS[name](), FUNCTIONS[name]()
    (f, runs), (g, counted) = counting(f), counting(g)
    compiled, recorded = tg.compile(f), tg.func.value_and_grad(g)
    for k in range(20):
        found = outcome(lambda _: compiled.value_and_grad(arguments(k), k), f, effects, runs)
        wanted = outcome(lambda _: recorded(arguments(k), k), g, others, counted)
        assert same(found[0], wanted[0]), f"call {k}: {found[0]} for {wanted[0]}"
        assert found[1:] == wanted[1:], f"call {k}"
        settle(compiled)


def test_products_with_the_hessian_are_made_beside_calls():
    v = np.array([1.0, -1.0, 0.5, 2.0])
    compiled, wanted = tg.compile(energy), tg.func.hvp(energy)(X, v)
    for _ in range(6):
        np.testing.assert_allclose(compiled.hvp(X, v), wanted, rtol=1e-13)
        settle(compiled)
    assert "for second derivatives" in compiled.explain()


def test_ways_get_other_arrays_beside_calls():
    kept = []

    def f(x, keep):
        y = x * 2.5
        if keep:
            kept.append(y.detach().numpy())
        return np.sum(y * y)

    compiled, recorded = tg.compile(f), tg.func.value_and_grad(f)
    for k in range(12):
        value, gradient = compiled.value_and_grad(X + k, k % 4 == 3)
        assert (value, gradient.tobytes()) == (lambda v, g: (v, g.tobytes()))(*recorded(X + k, False))
        settle(compiled)
    for j, x in enumerate(kept):
        np.testing.assert_array_equal(x, (X + 4 * j + 3) * 2.5)
    assert compiled.explain().kinds[0].ways[0].calls >= 6


def test_what_a_call_has_brought_is_let_go_of(gate):
    array, seen = np.arange(4.0), []

    def f(x):
        y = x * array
        seen.append(weakref.ref(y))
        return np.sum(y)

    compiled = tg.compile(f)
    for _ in range(3):
        compiled.grad(X)
    assert gate.reached.wait(60)
    array, gone = np.arange(4.0) + 1.0, weakref.ref(array)
    gc.collect()
    assert gone() is None
    assert [y() for y in seen] == [None] * 3
    gate.set()
    settle(compiled)
    np.testing.assert_array_equal(compiled.grad(X), array)


def test_a_function_may_go_before_its_way_is_made(gate):
    before = len(expected)
    compiled = tg.compile(energy)
    for _ in range(3):
        compiled.grad(X)
    assert gate.reached.wait(60)
    (kind,) = compiled._kinds.values()
    known, kind = weakref.ref(kind.learning), None
    del compiled
    end = time.monotonic() + 60
    while (known() is not None or background.waiting() or len(expected) > before) and time.monotonic() < end:
        gc.collect()
        time.sleep(1e-3)
    assert known() is None
    assert background.waiting() == 0
    assert len(expected) == before


def test_errors_are_told_by_explain(monkeypatch):
    def program(*args, **names):
        raise RuntimeError("no such thing")

    monkeypatch.setattr(learning, "Program", program)
    compiled = tg.compile(energy)
    for k in range(4):
        agree(compiled, energy, X + k)
        settle(compiled)
    assert "not learned: RuntimeError: no such thing" in compiled.explain()
    monkeypatch.undo()
    for k in range(4):
        agree(compiled, energy, X + k)
        settle(compiled)
    assert "way 1" in compiled.explain()
    assert "no such thing" not in compiled.explain()


def test_warnings_and_handling_of_errors_are_the_callers():
    told = []
    compiled = tg.compile(lambda x: np.sum(np.log(x) * 0.0 + x))
    with np.errstate(all="call"), np.errstate(all="call"):
        before = np.seterrcall(lambda *what: told.append(threading.get_ident()))
        try:
            for _ in range(4):
                compiled.grad(-X)
                settle(compiled)
        finally:
            np.seterrcall(before)
    assert set(told) == {threading.get_ident()}


def test_an_interrupt_leaves_nothing_behind(monkeypatch):
    real = learning.Program

    def program(*args, **names):
        real(*args, **names)
        raise KeyboardInterrupt

    compiled = tg.compile(energy, wait=True)
    monkeypatch.setattr(learning, "Program", program)
    compiled.grad(X)
    with pytest.raises(KeyboardInterrupt):
        compiled.grad(X)
    monkeypatch.undo()
    for k in range(6):
        agree(compiled, energy, X + k)
    assert "way 1: 5 calls" in compiled.explain()


def test_an_interrupt_before_a_way_is_followed_is_raised(monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    compiled = tg.compile(energy, wait=True)
    for _ in range(2):
        compiled.grad(X)
    monkeypatch.setattr(paths.Path, "describe", interrupted)
    with pytest.raises(KeyboardInterrupt):
        compiled.grad(X)
    monkeypatch.undo()
    for k in range(3):
        agree(compiled, energy, X + k)
    assert "way 1: 3 calls" in compiled.explain()


def test_an_interrupt_of_a_call_that_lends_the_lock(monkeypatch):
    """Wherever it comes, calls lend it after that as they did before."""
    end = time.monotonic() + 60
    while background.waiting() or background._turn.due > time.perf_counter():  # the thread would take part
        assert time.monotonic() < end
        time.sleep(1e-3)
    monkeypatch.setattr(background, "_turn", background._Turn())
    monkeypatch.setattr(background, "_jobs", [None])
    monkeypatch.setattr(background, "MOST_LENT", 0.01)
    for name in ("BUSY", "BUSILY"):
        monkeypatch.setattr(background, name, 0.0)
    before, left = sys.gettrace(), [0]

    def trace(frame, event, _):
        if frame.f_code.co_filename != background.__file__:
            return None
        left[0] -= event == "line"
        if not left[0]:
            raise KeyboardInterrupt
        return trace

    lines = 0
    while not left[0]:
        lines += 1
        left[0] = lines
        try:
            sys.settrace(trace)
            for _ in range(2):  # the first sees that the thread is due
                background.lend()
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(before)
        time.sleep(0.011)
        begin = time.perf_counter()
        for _ in range(2):
            background.lend()
        assert time.perf_counter() - begin >= 0.009
    assert lines > 20


@pytest.mark.parametrize(
    ("worked", "paused", "lends"),
    [(1e-4, 0.0, True), (1e-4, 3e-4, True), (1e-4, 1e-3, False), (3e-4, 1e-2, False), (1e-2, 0.0, True)],
)
def test_calls_with_pauses_lend_no_lock(monkeypatch, worked, paused, lends):
    """The thread has it in these; a call that gave it away was to wait until it has it again."""
    turn, ran, now, found = background._Turn(), [0.0], 0.0, []
    monkeypatch.setattr(background.time, "thread_time", lambda: ran[0])
    for _ in range(40):
        ran[0] += worked
        now += worked + paused
        found.append(turn._is_kept_waiting(now))
    assert any(found) == lends
    assert not found[0]
    for _ in range(40):  # each time for another piece
        ran[0] += worked
        turn.due += 1.0
        assert not turn._is_kept_waiting(now)


def test_an_interrupt_before_a_job_is_submitted_does_not_end_the_thread():
    background._wanted.put(None)  # what is left then
    compiled = tg.compile(energy)
    for _ in range(2):
        compiled.grad(X)
    settle(compiled)
    assert "way 1" in compiled.explain()


def test_an_error_of_the_thread_is_shown_and_does_not_end_it(monkeypatch):
    def fail(*_):
        raise ZeroDivisionError

    shown, before = [], dict(background.statistics)
    monkeypatch.setattr(threading, "excepthook", lambda args: shown.append(args.exc_type))
    monkeypatch.setattr(learning.Learning, "_do", fail)
    broken = tg.compile(energy)
    for _ in range(2):
        broken.grad(X)
    settle(broken)
    monkeypatch.undo()
    assert shown == [ZeroDivisionError] and background.statistics["jobs"] == before["jobs"] + 1
    compiled = tg.compile(energy)
    for _ in range(2):
        compiled.grad(X)
    settle(compiled)
    assert "way 1" in compiled.explain()


def test_a_context_may_outlive_the_call_that_is_learned_from():
    """What runs in it is in the mode of that call, which is no longer learned from."""
    contexts = []

    def f(x):
        contexts.append(contextvars.copy_context())
        return np.sum(np.tanh(x) * 2.0)

    for way in (0, 1):  # learned from at once, and after it has left a way
        compiled = tg.compile(lambda x, k: f(x) if k < 4 else f(x) + np.sum(x[way:]), wait=True)
        for k in range(6):
            compiled.grad(X, k)
    del compiled
    gc.collect()
    t = tg.tensor(X, requires_grad=True)
    for context in contexts:
        y = context.run(lambda: np.sum(np.sin(t) * t + np.ones(4)))
        np.testing.assert_array_equal(tg.grad(y, t)[0], np.cos(X) * X + np.sin(X))


@pytest.mark.parametrize("n", [4, 40_000])
def test_threads_in_the_mode_of_a_call(n):
    """What they do is listed between the operations of the call."""

    def other(t):
        for _ in range(50):
            t = t * 0.5 + 1.0
        return t

    def f(x):
        other_s = tg.tensor(np.ones(n), requires_grad=True)
        run = contextvars.copy_context().run
        thread = threading.Thread(target=run, args=(other, other_s))
        thread.start()
        y = other(np.sin(x))
        thread.join()
        return np.sum(y * x)

    def alone(x):
        return np.sum(other(np.sin(x)) * x)

    compiled, x = tg.compile(f, wait=True), np.linspace(-1.0, 1.0, n)
    for k in range(6):
        (value, gradient), (wanted, expectation) = (
            compiled.value_and_grad(x + k), tg.func.value_and_grad(alone)(x + k)
        )  # fmt: skip
        assert value == wanted
        np.testing.assert_allclose(gradient, expectation, rtol=1e-12, atol=1e-14)


def test_what_another_thread_lists_while_there_is_made_room_for_more(monkeypatch):
    rooms, words = [], np.zeros(layout.TRACE_WORDS, np.int64)

    def add(k):
        history = History(k, k, k)
        known.add(k, history, k, [history], None, False, False)

    def zeros(*args):
        rooms.append(args)
        if len(rooms) == 2:  # beside the first operation for which there is no room
            for k in range(3):
                add(1000 + k)
        return memory.zeros(*args)

    monkeypatch.setattr(listing, "zeros", zeros)
    known = listing.Listing(words)
    for k in range(listing.FEW + 2):
        add(k)
    assert len(rooms) == 3 and len(known) == listing.FEW + 5
    for k in range(len(known)):
        assert known.history(k) == History(known.op(k), known.op(k), known.op(k))
    assert words[layout.TRACE_NUMBERS] == abi.address(known.serials().base)  # and not freed


@pytest.mark.parametrize("write", ["v = y[1:]; y[0] = 1.0; y = y * v[0]", "x += 1.0", "y[1:] = y[:-1]"])
def test_some_writes_give_no_way(write):
    """To what a view sees that lives, and to an argument."""
    space = {"np": np}
    exec(f"def f(x):\n    y = x * 2.0\n    {write}\n    return np.sum(y * x)", space)
    compiled = tg.compile(space["f"], wait=True)
    for k in range(4):
        agree(compiled, space["f"], X + k)
    assert "was written to" in compiled.explain()
    assert "way" not in compiled.explain()


@pytest.mark.parametrize(
    "write",
    ["y += 1.0", "y[1:] = x[1:]", "y[0] *= 2.0", "y.zero_()", "y[1:3] -= x[0]", "v = y[::2]; v *= x[:2]"],
)
def test_what_is_written_to_is_part_of_a_way(write):
    space = {"np": np}
    exec(f"def f(x):\n    y = x * 2.0\n    {write}\n    return np.sum(y * x)", space)
    compiled = tg.compile(space["f"], wait=True)
    for k in range(8):
        agree(compiled, space["f"], X + k)
    assert "way 1: 6 calls" in compiled.explain()


@pytest.mark.parametrize("most", [3 * 32, 3 * 32 - 1])
def test_many_writes_are_not_learned(monkeypatch, most):
    """Each has an array of its own in a program."""
    monkeypatch.setattr(learner, "MOST_WRITTEN", most)

    def f(x):
        y = x * 2.0
        for k in range(3):
            y[k] *= x[0]
        return np.sum(y)

    compiled = tg.compile(f, wait=True)
    for k in range(6):
        agree(compiled, f, X + k)
    assert ("too many to keep" in compiled.explain()) == (most < 3 * 32)
    assert ("way 1" in compiled.explain()) == (most >= 3 * 32)


@pytest.mark.parametrize(("limit", "most"), [("MOST_JOBS", 0), ("MOST_HELD", 1)])
def test_what_waits_is_bounded(gate, monkeypatch, limit, most):
    first, second = tg.compile(energy), tg.compile(energy)
    for _ in range(2):
        first.grad(X)
    assert gate.reached.wait(60)
    monkeypatch.setattr(background, limit, most)
    for _ in range(2):
        second.grad(X)
    assert background.waiting() == 1
    monkeypatch.undo()
    gate.set()
    settle(first)
    second.grad(X)
    settle(second)
    assert "way 1" in second.explain()


def test_no_call_is_listed_while_no_job_is_taken(monkeypatch):
    """It was at each call, in vain, which took as long again."""
    listed, trace = [], learner.Learner.trace
    monkeypatch.setattr(learner.Learner, "trace", lambda self: listed.append(self) or trace(self))
    monkeypatch.setattr(background, "MOST_JOBS", 0)
    compiled = tg.compile(energy)
    for _ in range(4):
        compiled.grad(X)
    assert not listed
    monkeypatch.undo()
    compiled.grad(X)
    settle(compiled)
    assert "way 1" in compiled.explain()


def test_the_thread_pauses(monkeypatch):
    rests = []
    monkeypatch.setattr(background.time, "sleep", lambda seconds: rests.append(threading.get_ident()))
    monkeypatch.setattr(background, "PIECE", 0.0)
    background.pause()
    assert not rests  # as this is not the thread
    compiled = tg.compile(energy)
    for _ in range(2):
        compiled.grad(X)
    monkeypatch.setattr(background.time, "sleep", time.sleep)
    end = time.monotonic() + 60
    while background.waiting() and time.monotonic() < end:
        pass
    assert threading.get_ident() not in rests


@pytest.mark.parametrize("seconds", [0.0, 1e-3])
def test_calls_without_a_pause_leave_the_thread_its_share(monkeypatch, seconds):
    """Where Python takes the lock from nobody, as if callers did without it for a moment in each call.

    So it is where the thread does without the lock in the midst of its work, as to read a file.
    """
    real = learning.Program

    def program(*args, **names):
        time.sleep(seconds)
        return real(*args, **names)

    monkeypatch.setattr(learning, "Program", program)

    def f(x):
        for _ in range(20):
            x = np.sin(x) * 1.5 + 0.1
        return np.sum(x)

    compiled, before = tg.compile(f), sys.getswitchinterval()
    sys.setswitchinterval(30.0)
    try:
        calls = 0
        while calls < 3 or (any(k.learning.tasks for k in compiled._kinds.values()) and calls < 20_000):
            compiled.value_and_grad(X)
            calls += 1
    finally:
        sys.setswitchinterval(before)
    assert calls < 2000
    assert "way 1" in compiled.explain()


def test_the_thread_rests_while_others_work(monkeypatch):
    rests, real, others = [], time.thread_time, [0.0]
    monkeypatch.setattr(background, "_turn", background._Turn())
    monkeypatch.setattr(background, "_at_work", background._AtWork())
    monkeypatch.setattr(background.time, "sleep", rests.append)
    monkeypatch.setattr(background.time, "thread_time", lambda: 0.0)
    monkeypatch.setattr(background.time, "process_time", lambda: others[0])
    for worked in (0.0, 0.05e-3, 0.2e-3, 0.0, 1.0):
        others[0] += worked
        background._rest(1e-3)
    monkeypatch.undo()
    assert time.thread_time is real
    long, short = background.SHARE * 1e-3, background.ALONE * 1e-3
    assert rests == [short, short, long, short, long]


@pytest.mark.parametrize("due", [False, True])
def test_a_call_does_not_wait_for_a_thread_that_takes_long(monkeypatch, due):
    """As LLVM does, which needs no lock; or for one that has its turn later."""
    reached, go_on = threading.Event(), threading.Event()

    def program(*args, **names):
        reached.set()
        go_on.wait(60)
        raise RuntimeError

    monkeypatch.setattr(learning, "Program", program)
    compiled = tg.compile(energy)
    for _ in range(2):
        compiled.grad(X)
    assert reached.wait(60)
    if due:  # the thread was to go on long ago
        monkeypatch.setattr(background._turn, "due", 0.0)
    monkeypatch.setattr(background, "MOST_LENT", 0.01 if due else 60.0)
    for name in ("BUSY", "BUSILY"):
        monkeypatch.setattr(background, name, 0.0)
    begin = time.perf_counter()
    for _ in range(2):
        background.lend()
    waited = time.perf_counter() - begin
    go_on.set()
    assert waited < 5.0
    settle(compiled)


def changing(x, k):
    for _ in range(k % 23):
        x = np.sin(x) * 1.5
    return np.sum(x * x) if k % 2 else x[0]


@pytest.mark.full
def test_nothing_grows_with_calls_that_change_their_way():
    """Also where a function is recorded for good, as calls have left their ways too often."""
    compiled = tg.compile(changing)

    def calls(n):
        for k in range(n):
            compiled.value_and_grad(X, k)
            if k % 10 == 0:  # so that the first thousand calls find all ways
                settle(compiled)
        settle(compiled)
        gc.collect()

    tracemalloc.start()
    try:
        calls(1000)
        before, known = tracemalloc.get_traced_memory()[0], len(expected)
        calls(2000)
        assert tracemalloc.get_traced_memory()[0] < before + 40_000  # no call has left an object
        assert len(expected) <= known
    finally:
        tracemalloc.stop()


FORK = """
import os, threading, time
import numpy as np, tapegrad as tg
from tapegrad.compilation import background
from tapegrad.compilation.memory import pages as memory
from tapegrad.compilation.paths import learning
real, reached = learning.Program, threading.Event()
def program(*args, **names):
    reached.set()
    if threading.current_thread().name == "tapegrad-compile" and os.getpid() == parent:
        end = time.monotonic() + 0.3
        while time.monotonic() < end: background.pause()
    return real(*args, **names)
learning.Program, parent = program, os.getpid()
f, x = tg.compile(lambda x: np.sum(np.tanh(x) * x)), np.linspace(-1.0, 1.0, 50)
g = tg.compile(lambda x: np.sum(np.tanh(x) * x + 1.0))
value = f.value_and_grad(x)[0]
for _ in range(3): f.value_and_grad(x); g.value_and_grad(x)
reached.wait()
child = os.fork()
end = time.monotonic() + 100
for h in (f, g):
    while "way 1" not in h.explain() and time.monotonic() < end:
        h.value_and_grad(x)
        time.sleep(1e-3)
    assert "way 1" in h.explain(), h.explain()
assert f.value_and_grad(x)[0] == value
if child:
    assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.full
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_forks_while_a_way_is_made():
    found = run(FORK)
    assert found.returncode == 0, found.stderr


AT_WORK = """
import os, threading
import numpy as np, tapegrad as tg
inside, other, done = [], threading.Event(), threading.Event()
@tg.compile(wait=True)
def f(x):
    for call in inside: call()
    return np.sum(np.tanh(x) * x)
def served():
    before = sum(way.calls for kind in f.explain().kinds for way in kind.ways)
    for _ in range(9): assert f.value_and_grad(x)[0] == value
    return sum(way.calls for kind in f.explain().kinds for way in kind.ways) - before
def fork():
    inside.clear()
    children.append(os.fork())
    done.set()
def wait():
    other.set()
    assert done.wait(60)
x, children = np.linspace(-1.0, 1.0, 50), []
value = f.value_and_grad(x)[0]
assert served() > 5
if {by_another}:
    inside.append(wait)
    thread = threading.Thread(target=lambda: f.value_and_grad(x))
    thread.start()
    assert other.wait(60)
    fork()
    if children[0]: thread.join()
else:
    inside.append(fork)
    assert f.value_and_grad(x)[0] == value
assert served() > 5, f.explain()
if children[0]:
    assert os.waitpid(children[0], 0)[1] == 0
"""


@pytest.mark.full
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.parametrize("by_another", [True, False])
def test_forks_while_a_call_is_at_work(by_another):
    """The child's calls follow ways: those there were, or where another thread was at work, others."""
    found = run(AT_WORK.replace("{by_another}", str(by_another)))
    assert found.returncode == 0, found.stderr


@pytest.mark.full
def test_processes_end_while_a_way_is_made():
    code = FORK.split("child =")[0]
    found = run(code)
    assert found.returncode == 0 and not found.stderr, found.stderr
