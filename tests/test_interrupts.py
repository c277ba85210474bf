"""An interrupt at any moment of recording or sweeping leaves the next gradient exact.

``python tests/test_interrupts.py KIND COUNT`` interrupts one kind of work that many times and prints how
many interrupts arrived, how many were swallowed (Python drops an exception raised in a ``__del__``), and
how many gradients afterwards were not what they should be.
"""

import contextlib
import math
import os
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path

import numpy as np
import pytest

import tapegrad as tg
from tapegrad import config
from tapegrad.autograd import forward_ad, saved_tensors
from tapegrad.compilation.paths import learning
from tapegrad.compilation.plans.planning import Planning
from tapegrad.config import guard_setting
from tapegrad.core import grad_mode
from tapegrad.core.forward_mode import Level
from tapegrad.core.storage import OPEN
from tapegrad.kernels import abi
from tapegrad.tape import tape as tapes
from tests.tiers import every

KINDS = ["record", "grad", "backward", "create_graph", "many_tapes"]


def leaf(value):
    return tg.tensor(value, requires_grad=True)


class Interrupts:
    """A timer whose handler raises once, at the first chance after a random delay."""

    def __init__(self):
        self.armed, self.delivered, self.swallowed = False, 0, 0
        self.random = np.random.default_rng(1)
        signal.signal(signal.SIGALRM, self.handle)
        sys.unraisablehook = self.lost

    def handle(self, number, frame):
        if self.armed:
            self.armed = False
            raise KeyboardInterrupt

    def lost(self, found):
        if found.exc_type is not KeyboardInterrupt:
            sys.__unraisablehook__(found)
        self.swallowed += 1
        self.armed = True

    def during(self, work, longest):
        self.armed = True
        try:
            signal.setitimer(signal.ITIMER_REAL, self.random.uniform(1e-5, longest), 0.01)
            while True:
                work()
        except KeyboardInterrupt:
            self.delivered += 1
        finally:
            self.armed = False
            signal.setitimer(signal.ITIMER_REAL, 0)


def chain(x, n=200):
    y = x
    for _ in range(n):
        y = np.sin(y) * x + 0.5
    return np.sum(y)


def bits(g):
    return g.detach().numpy().tobytes()


def measure(kind, count):
    x, w = leaf(np.linspace(0.1, 1.0, 7)), leaf(1.25)
    kept = chain(x, 300)  # swept again and again
    work = {
        "record": lambda: chain(x, 500),
        "grad": lambda: tg.grad([kept], [x], grad_outputs=[1.0], retain_graph=True),
        "backward": lambda: chain(w, 30).backward(),
        "create_graph": lambda: tg.grad(tg.grad(chain(x, 20), x, create_graph=True)[0].sum(), x),
        "many_tapes": lambda: tg.grad(chain(w * w, 100), w),
    }[kind]
    if kind == "many_tapes":
        tapes.MAX_RECORDS = 32

    def same(found, expected):
        """Equal in all bits; up to the order of sums where tapes end elsewhere: short ones and full ones."""
        if kind not in ("many_tapes", "record"):
            return found == expected
        pairs = zip(found, expected, strict=True)
        return all(np.allclose(np.frombuffer(a), np.frombuffer(b), rtol=1e-12, atol=0) for a, b in pairs)

    def probe():
        (g,) = tg.grad(chain(x, 5), x, create_graph=True)
        (h,) = tg.grad(np.sum(g * g), x)
        return bits(g), bits(h), bits(tg.grad(chain(w, 50), w)[0])

    reference, kept_reference = probe(), bits(tg.grad(kept, x, retain_graph=True)[0])
    w.grad = None
    interrupts, wrong, messages = Interrupts(), 0, set()
    start = time.perf_counter()
    for _ in range(5):
        work()
    longest = min((time.perf_counter() - start) / 5, 0.02)
    while interrupts.delivered < count:
        w.grad = None
        try:
            interrupts.during(work, longest)
            w.grad = None
            chain(w, 30).backward()
            kept_now = bits(tg.grad(kept, x, retain_graph=True)[0])
            right = same([*probe(), kept_now], [*reference, kept_reference])
            right = right and same([bits(w.grad)], [bits(tg.grad(chain(w, 30), w)[0])])
        except Exception as error:
            messages.add("".join(traceback.format_exception(error, limit=-4)))
            right = False
        if not right:
            wrong += 1
            if wrong > 5:
                break
    chain(x)
    stuck = bool(tapes.local.draining and tapes.local.draining()) + len(tapes.local.unlinking)
    print(interrupts.delivered, interrupts.swallowed, wrong, stuck)
    for message in messages:
        print(message, file=sys.stderr)


@pytest.mark.parametrize("kind", every(KINDS, 5))
def test_the_next_gradient_is_exact(kind):
    count = 2000 // len(KINDS)
    environment = os.environ | {"PYTHONPATH": str(Path(tg.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, __file__, kind, str(count)],
        capture_output=True, text=True, timeout=300, check=False, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    delivered, swallowed, wrong, stuck = map(int, done.stdout.split())
    print(f"{kind}: {delivered} interrupts, {swallowed} swallowed besides, {wrong} wrong, {stuck} left over")
    assert wrong == 0, done.stderr[-3000:]
    assert delivered == count
    assert stuck == 0


class AtLine:
    """Raises KeyboardInterrupt as the n-th line of the library's own code is about to run."""

    def __init__(self, n):
        self.left, self.place = n, ""

    def trace(self, frame, event, argument):
        if not frame.f_code.co_filename.startswith(str(HERE)):
            return None
        if event == "line":
            self.left -= 1
            if self.left == 0:
                sys.settrace(None)
                self.place = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
                raise KeyboardInterrupt
        return self.trace

    def __enter__(self):
        sys.settrace(self.trace)
        return self

    def __exit__(self, *exception):
        sys.settrace(None)


class Square(tg.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x * x
        ctx.save_for_backward(x, y)
        ctx.y = y
        return y

    @staticmethod
    def backward(ctx, g):
        return 2 * ctx.saved_tensors[0] * g


def hooked(x):
    y = Square.apply(x)
    y.register_hook(lambda g: g * 2)
    y.grad_fn.register_prehook(lambda go: go)
    y.grad_fn.register_hook(lambda gi, go: gi)
    return np.sum(y)


def watched(context, x):
    with context():
        tg.grad(chain(x, 1), x)
        tg.grad(np.sum(x * x), x)


def ruled(x, big=np.linspace(0.0, 1.0, 10_000)):
    """By a rule in Python, and with an array that is kept with a checksum."""
    return np.sum(np.linalg.inv(x * np.eye(5))) + np.sum(np.sin(np.sum(x) * big))


HERE = Path(tg.__file__).parent
AT_LINE = {
    "grad": lambda kept, x: tg.grad([kept], [x], [1.0], retain_graph=True),
    "quick grad": lambda kept, x: tg.grad(chain(x, 3), x),
    "backward": lambda kept, x: chain(x, 3).backward(inputs=[x]),
    "create_graph": lambda kept, x: tg.grad([np.sum(x * x)], [x], [1.0], create_graph=True),
    "record": lambda kept, x: chain(x, 7),
    "rules and arrays": lambda kept, x: tg.grad(ruled(x), x),
    "Function and hooks": lambda kept, x: hooked(x).backward(),
    "anomaly mode": lambda kept, x: watched(tg.autograd.detect_anomaly, x),
    "profiler": lambda kept, x: watched(tg.autograd.profiler.profile, x),
    "Function, create_graph": lambda kept, x: tg.grad(Square.apply(np.sum(x)), x, create_graph=True),
}
LONG, QUICK = {"Function, create_graph"}, {"quick grad", "record", "profiler", "rules and arrays"}


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=() if kind in QUICK else pytest.mark.slow if kind in LONG else pytest.mark.full)
     for kind in AT_LINE],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:anomaly mode is on:UserWarning")
def test_an_interrupt_at_every_line(kind, monkeypatch):
    """One run for each line of the library that the work runs through, interrupted there.

    By Python's public calls alone there are several times as many lines: every third.
    """
    monkeypatch.setattr(tapes, "MAX_RECORDS", 16)
    monkeypatch.setattr(sys, "unraisablehook", lambda found: None)
    before, handling = sys.gettrace(), np.geterr()
    x, y = leaf(np.linspace(0.1, 1.0, 5)), leaf(np.linspace(0.1, 1.0, 5))
    kept = chain(x, 20)
    work = AT_LINE[kind]

    def probe():
        (g,) = tg.grad(chain(y, 4), y, create_graph=True)
        found = g, tg.grad(np.sum(g * g), y)[0], tg.grad(kept, x, retain_graph=True)[0]
        return np.stack([t.detach().numpy() for t in found])

    work(kept, x)
    reference, wrong, n = probe(), {}, 0
    try:
        while len(wrong) < 12:
            n += 1 if abi.native() else 3
            x.grad = None
            at = AtLine(n)
            with contextlib.suppress(KeyboardInterrupt), at:
                work(kept, x)
            if not at.place:
                break  # the work has fewer lines
            x.grad = None
            try:
                if not np.allclose(probe(), reference, rtol=1e-12, atol=0):  # tapes end elsewhere
                    wrong[at.place] = "another gradient"
            except Exception as error:
                wrong[at.place] = f"{type(error).__name__}: {error}"[:120]
                if tapes.local.tape is not None:
                    tapes.leave(tapes.current())  # to tell one damage from the next
                kept = chain(x, 20)
    finally:
        np.seterr(**handling)  # a line may be that at which np.errstate is left
        sys.settrace(before)
    print(f"{kind}: interrupted at lines up to {n}")
    assert not wrong, "\n".join(f"{place}: {what}" for place, what in wrong.items())
    assert n > 50


def interrupt_registering():
    """Send the signal as Numba lists what it can compile: its lists are read once, by generators."""
    from numba.core import utils

    stream = utils.stream_list

    def interrupted_stream(registrations):
        for new in stream(registrations):
            signal.raise_signal(signal.SIGALRM)
            yield new

    utils.stream_list = interrupted_stream


def interrupt_linking():
    """Send the signal when LLVM has linked the module of the sweep, which it owns from then on."""
    from llvmlite.binding import linker, module

    from tapegrad.kernels import whole

    optimise, is_sweep = whole.Library._optimize_functions, []

    def optimised(self, of):
        optimise(self, of)
        is_sweep.append(True)

    def linked(dst, src):
        with linker.ffi.OutputString() as text:
            failed = linker.ffi.lib.LLVMPY_LinkModules(dst, src, text)
            if is_sweep:
                is_sweep.clear()
                signal.raise_signal(signal.SIGALRM)
            src.detach()
        assert not failed

    whole.Library._optimize_functions, module.link_modules = optimised, linked


SLOW = pytest.mark.slow
AT = {0.0: interrupt_registering, -1.0: interrupt_linking}


def interrupted_compile(delay):
    """The first gradient of a process is interrupted while it compiles; the second attempt is right.

    No delay means: as Numba lists what it can compile; less than that: as LLVM links.
    """
    interrupts = Interrupts()
    x = leaf(0.5)

    def work():
        assert tg.grad(np.tanh(x) * np.log1p(x), x)[0].item() != 0.0

    signal.setitimer(signal.ITIMER_REAL, max(delay, 0.0))
    interrupts.armed = True
    AT.get(delay, lambda: None)()
    try:
        work()
    except KeyboardInterrupt:
        interrupts.delivered += 1
    interrupts.armed = False
    found = tg.grad(np.exp(x) * np.log1p(x), x)[0].item()
    print(interrupts.delivered, found == pytest.approx(np.exp(0.5) * (np.log1p(0.5) + 1 / 1.5), rel=1e-14))


@pytest.mark.full
@pytest.mark.parametrize("delay", [-1.0, 0.0, *(pytest.param(s, marks=SLOW) for s in (0.3, 0.45, 0.7))])
def test_an_interrupt_of_the_first_compilation(delay):
    environment = os.environ | {"PYTHONPATH": str(Path(tg.__file__).parents[1]), "TAPEGRAD_CACHE": "off"}
    done = subprocess.run(
        [sys.executable, __file__, "compile", str(delay)],
        capture_output=True, text=True, timeout=300, check=False, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split()[-1] == "True", done.stdout


# ---------------------------------------------------------------- modes

SAVED = (lambda x: x, lambda x: x)
BLOCKS = {
    "no_grad": tg.no_grad,
    "enable_grad": tg.enable_grad,
    "inference_mode": tg.inference_mode,
    "saved_tensors_hooks": lambda: tg.autograd.graph.saved_tensors_hooks(*SAVED),
    "disable_saved_tensors_hooks": lambda: tg.autograd.graph.disable_saved_tensors_hooks("no"),
    "detect_anomaly": tg.autograd.detect_anomaly,
    "profile": tg.autograd.profiler.profile,
    "dual_level": tg.autograd.forward_ad.dual_level,
    "guard": lambda: tg.guard("copy"),
}
DECORATORS = ("no_grad", "enable_grad", "inference_mode", "dual_level", "guard")


def modes():
    return (
        grad_mode._enabled.get(), forward_ad._levels.get(), guard_setting(), saved_tensors._disabled.get(),
        len(OPEN),
    )  # fmt: skip


def in_blocks(make):
    with make():
        pass


def in_nested_blocks(make):
    """A block that is used again, within others."""
    block = make()
    with tg.enable_grad(), block:
        math.sqrt(2)
    with block, tg.no_grad():
        math.sqrt(2)


def in_decorated_function(make):
    make()(math.sqrt)(2)


def in_decorated_generator(make):
    @make()
    def steps():
        yield 1
        yield 2

    for _ in steps():
        pass


def left_on(work, count):
    """How often an interrupt leaves a mode on; what was interrupted is kept, as a debugger keeps it."""
    interrupts, before, kept, left = Interrupts(), modes(), [], 0
    start = time.perf_counter()
    for _ in range(20):
        work()
    longest = min((time.perf_counter() - start) * 5, 0.002)
    while interrupts.delivered < count:
        try:
            interrupts.armed = True
            signal.setitimer(signal.ITIMER_REAL, interrupts.random.uniform(1e-5, longest), 0.01)
            while True:
                work()
        except KeyboardInterrupt as error:
            interrupts.delivered += 1
            if modes() != before:
                left += 1
                grad_mode._enabled.set(before[0])
                forward_ad._levels.set(before[1])
                config.setting_of_guard.set(before[2])
                saved_tensors._disabled.set(before[3])
                OPEN.clear()
            kept.append(error)
            del kept[:-50]
        finally:
            interrupts.armed = False
            signal.setitimer(signal.ITIMER_REAL, 0)
    return left


@pytest.fixture
def handlers():
    """Signal handlers as they were."""
    before, lost = signal.getsignal(signal.SIGALRM), sys.unraisablehook
    yield
    signal.signal(signal.SIGALRM, before)
    sys.unraisablehook = lost


WAYS = [
    *[pytest.param(name, way, id=f"{name}-{way.__name__}") for name in BLOCKS for way in (in_blocks,)],
    *[pytest.param(name, in_nested_blocks, id=f"{name}-nested") for name in BLOCKS if name != "profile"],
    *[pytest.param(name, in_decorated_function, id=f"{name}-decorator") for name in DECORATORS],
    *[pytest.param(name, in_decorated_generator, id=f"{name}-generator") for name in DECORATORS[:3]],
]


@pytest.mark.parametrize("count", [60, pytest.param(2000, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("name", "way"), WAYS)
@pytest.mark.filterwarnings("ignore:anomaly mode is on:UserWarning")
def test_a_block_ends_whenever_it_is_interrupted(handlers, name, way, count):
    assert left_on(lambda: way(BLOCKS[name]), count) == 0


def test_blocks_entered_by_hand():
    """By an ExitStack, by calls, and by calls of what was looked up before."""
    x = leaf(1.0)
    with contextlib.ExitStack() as stack:
        stack.enter_context(tg.no_grad())
        assert not (x * x).requires_grad
    assert (x * x).requires_grad
    block = tg.no_grad()
    leave = block.__exit__
    block.__enter__()
    with block:
        block.__enter__()
        block.__exit__(None, None, None)
        assert not (x * x).requires_grad
    assert not (x * x).requires_grad
    leave(None, None, None)
    assert (x * x).requires_grad


# ---------------------------------------------------------------- exceptions of the user's


class TimeUp(Exception):
    """What the handler of a signal raises: no KeyboardInterrupt."""


@pytest.fixture
def alarm():
    """A function that raises TimeUp by a signal, the first time it is called."""
    calls = []

    def handle(number, frame):
        raise TimeUp

    def ring(*args, **kwargs):
        calls.append(args)
        if len(calls) == 1:
            signal.raise_signal(signal.SIGALRM)

    before = signal.signal(signal.SIGALRM, handle)
    yield ring
    signal.signal(signal.SIGALRM, before)
    assert calls


def before_it(monkeypatch, owner, name, ring):
    """Let a function of the library be interrupted as it begins."""
    function = getattr(owner, name)
    monkeypatch.setattr(owner, name, lambda *args, **kwargs: (ring(), function(*args, **kwargs))[1])


@pytest.mark.skipif(not abi.native(), reason="there are no programs")
@pytest.mark.parametrize(("owner", "name"), [(learning, "Program"), (Planning, "_rolled")])
def test_an_exception_of_a_handler_is_not_one_of_learning(alarm, monkeypatch, owner, name):
    def f(x):
        return x * 2.0

    def slopes():
        x = leaf(0.5)
        return [tg.grad(compiled(x), x)[0].item() for _ in range(30)]

    compiled = tg.compile(f, wait=True)
    before_it(monkeypatch, owner, name, alarm)
    with pytest.raises(TimeUp):
        slopes()
    assert slopes() == [2.0] * 30


def test_an_interrupt_as_a_level_is_made_leaves_none_open(alarm, monkeypatch):
    """Also while its exception is kept, with the frame that has the level."""
    init = Level.__init__
    monkeypatch.setattr(Level, "__init__", lambda *args: (init(*args), alarm())[0])
    with pytest.raises(TimeUp) as kept, tg.autograd.forward_ad.dual_level():
        pass
    assert not OPEN
    assert kept.value.__traceback__ is not None


def test_an_exception_of_a_handler_is_not_one_of_the_function(alarm):
    def f(x):
        alarm()
        return x * x

    with pytest.raises(TimeUp):
        tg.func.derivative(f, 2)(0.5)
    assert tg.func.derivative(f, 2)(0.5) == 2.0


if __name__ == "__main__":
    if sys.argv[1] == "compile":
        interrupted_compile(float(sys.argv[2]))
    else:
        measure(sys.argv[1], int(sys.argv[2]))
