"""Processes: cold starts side by side, time to the first gradient, their ends, fork and spawn after use."""

import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import tapegrad as tg

FIRST = """
import numpy as np, tapegrad as tg
def f(x):
    return np.sum(np.sqrt(np.exp(np.sin(x) * x) + x / (1.0 + np.cos(x) ** 2)) - x)
x = tg.tensor([0.5, 1.5], requires_grad=True)
(g,) = tg.grad(f(x), x)
at = np.array([0.5, 1.5])
exact = [f(np.array([a + 1e-30j])).imag / 1e-30 for a in at]
assert np.allclose(g.numpy(), exact, rtol=1e-13, atol=0)
from tapegrad.kernels import cache
print(cache.statistics["compiled"])
"""
NUMBA = """
import numpy as np
from numba import njit
@njit
def f(x):
    total = 0.0
    for row in x:
        total += np.sum(np.exp(row) * row[::-1]) / np.linalg.norm(row)
    return total
f(np.ones((3, 4)))
print(1)
"""
WARM, COLD = 0.9, 5.0  # times what Numba takes for that; asserted with a factor of two for loaded machines


SLOW = pytest.mark.slow


def start(directory, code=FIRST, *arguments):
    environment = os.environ | {
        "PYTHONPATH": str(Path(tg.__file__).parents[1]),
        "TAPEGRAD_CACHE": str(directory),
    }
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", code, *map(str, arguments)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
    )  # fmt: skip


def finish(process):
    out, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors[-3000:]
    assert errors == ""
    return out.strip()


def timed(directory, code=FIRST):
    """Seconds on the processor, which other programs do not lengthen as they do those by the clock."""
    begin = os.times()
    compiled = int(finish(start(directory, code)))
    end = os.times()
    return sum(end[2:4]) - sum(begin[2:4]), compiled


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """A first gradient: its cache, seconds on the processor, and by the clock, and how much it compiled."""
    directory, began = tmp_path_factory.mktemp("first") / "cache", time.monotonic()
    seconds, compiled = timed(directory)
    return directory, seconds, time.monotonic() - began, compiled


@pytest.mark.full
def test_time_to_the_first_gradient(first):
    directory, cold, _, compiled = first
    assert compiled > 0
    warm = []
    for _ in range(2):
        seconds, compiled = timed(directory)
        assert compiled == 0
        warm.append(seconds)
    numba = min(timed(directory, NUMBA)[0] for _ in range(2))
    print(f"first gradient of ten ops: cold {cold:.2f} s, warm {min(warm):.2f} s; Numba {numba:.2f} s")
    assert cold < 2 * COLD * numba
    assert min(warm) < 2 * WARM * numba


@pytest.mark.full
@pytest.mark.parametrize(("rounds", "many"), [(1, 4), pytest.param(20, 16, marks=SLOW)])
def test_processes_that_start_cold_together(first, tmp_path, rounds, many):
    """One of them compiles a kernel, the others wait for it; the next process compiles nothing."""
    for k in range(rounds):
        old = tmp_path / str(k) / "an older version"  # which all of them want to remove
        old.mkdir(mode=0o700, parents=True)
        old.parent.chmod(0o700)
        with open(old / "large", "wb") as file:
            file.truncate(300 << 20)
        os.utime(old, (1, 1))
        processes = [start(old.parent) for _ in range(many)]
        compiled = sum(int(finish(process)) for process in processes)
        assert 0 < compiled < 3 * first[-1]
        assert int(finish(start(old.parent))) == 0
        assert not old.exists()


@pytest.mark.full
@pytest.mark.parametrize("times", [1, pytest.param(100, marks=SLOW)])
def test_a_process_killed_while_it_fills_the_cache(first, tmp_path, times):
    """The next one makes good what is missing, the one after it compiles nothing."""
    length = first[2]

    def kill(k):
        process = start(tmp_path / str(k))
        time.sleep(length * random.Random(k).uniform(0.1, 1.0))
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=100)
        finish(start(tmp_path / str(k)))
        assert int(finish(start(tmp_path / str(k)))) == 0

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(kill, range(times)))


ENDING = """
import atexit, os, random, sys, threading, time
kind, choose = sys.argv[1], random.Random(int(sys.argv[2]))

def work(many, size=3):
    import numpy as np, tapegrad as tg
    x = tg.tensor(np.linspace(0.1, 1.0, size), requires_grad=True)
    kept = []
    for k in range(many):
        y = np.sum(np.sin(x) * np.exp(x) + x[::2].sum())
        if k % 3 == 0:
            (g,) = tg.grad(y, x, create_graph=True)
            y = (g * g).sum()
        y.backward(retain_graph=k % 2 == 0)
        kept = [*kept[-5:], y]
    return x, kept

if kind == "daemon threads compile":
    for _ in range(choose.choice([1, 4])):
        threading.Thread(target=work, args=(10**9,), daemon=True).start()
    time.sleep(choose.uniform(0, 3.0))
elif kind == "daemon threads compute":
    work(4)
    size = choose.choice([3, 1000, 300_000])
    for _ in range(2):
        threading.Thread(target=work, args=(10**9, size), daemon=True).start()
    time.sleep(choose.uniform(0, 0.3))
elif kind == "threads compute":
    threading.Thread(target=work, args=(choose.randrange(1, 20),)).start()
    time.sleep(choose.uniform(0, 1.0))
elif kind == "a thread imports":  # after the main thread has ended
    def late():
        time.sleep(choose.uniform(0.05, 0.3))
        work(1)
    threading.Thread(target=late).start()
elif kind == "exit in the middle":
    x, kept = work(choose.randrange(1, 20))
    ring = [x, kept]
    ring.append(ring)
    sys.exit(0)
elif kind == "work at exit":
    import tapegrad
    if choose.random() > 0.5:
        work(1)
    atexit.register(work, 5)
elif kind == "kept by another module":
    os.kept = work(choose.randrange(1, 5), choose.choice([3, 300_000]))
"""
ENDINGS = (
    "daemon threads compile", "daemon threads compute", "threads compute", "a thread imports",
    "exit in the middle", "work at exit", "kept by another module",
)  # fmt: skip


@pytest.mark.full
@pytest.mark.parametrize("times", [1, pytest.param(34, marks=SLOW)])
def test_exit_at_any_moment(tmp_path, times):
    """It says nothing, and no signal ends it; 34 times each are 238 processes."""

    def directory(kind, k):  # what is tested of one kind is that it compiles
        filled = os.environ["TAPEGRAD_CACHE"] if kind != "daemon threads compile" else tmp_path / "cache"
        return filled if k % 4 else "off"

    def end(case):
        try:
            assert finish(start(directory(*case), ENDING, *case)) == ""
        except AssertionError as error:
            raise AssertionError(f"{case}: {error}") from error

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(end, [(kind, k) for k in range(1, times + 1) for kind in ENDINGS]))


def gradient(at):
    x = tg.tensor(at, requires_grad=True)
    (g,) = tg.grad(np.sum(np.sin(x) * np.exp(x)), x, create_graph=True)
    (h,) = tg.grad(np.sum(g * g), x)
    return g.detach().numpy().tobytes() + h.detach().numpy().tobytes()


POINT = np.linspace(0.1, 1.0, 11)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")  # of JAX, if another test has imported it
def test_fork_after_use():
    """The child goes on with the parent's open tape, and neither disturbs the other."""
    expected = gradient(POINT)
    x = tg.tensor(1.5, requires_grad=True)
    y = np.sin(x) * x
    slope = np.sin(1.5) + 1.5 * np.cos(1.5)
    for _ in range(5):
        child = os.fork()
        if child == 0:
            right = gradient(POINT) == expected
            right = right and abs(tg.grad(y * 2.0, x)[0].item() - 2 * slope) < 1e-14
            os._exit(0 if right else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert gradient(POINT) == expected
    assert tg.grad(y, x)[0].item() == pytest.approx(slope, rel=1e-14)


FORKING = """
import os, sys, threading, time, warnings
warnings.simplefilter("ignore", DeprecationWarning)
import numpy as np, tapegrad as tg

def gradient():
    x = tg.tensor(np.linspace(0.1, 1.0, 11), requires_grad=True)
    return tg.grad(np.sum(np.tanh(x) * np.exp(x)), x)[0].numpy().sum()

thread = threading.Thread(target=gradient)
thread.start()
children = []
for wait in map(float, sys.argv[1:]):
    time.sleep(wait)
    children.append(os.fork())
    if children[-1] == 0:
        import signal
        signal.alarm(100)
        os._exit(0 if abs(gradient() - 23.9907) < 1e-3 else 1)
thread.join()
print([os.waitpid(child, 0)[1] for child in children], gradient())
"""


@pytest.mark.full
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.parametrize(
    ("cache", "waits"), [("off", (0.05, 0.5)), ("cold", (0.0, 0.05, 0.1, 0.2, 0.4, 0.8))]
)
def test_fork_while_another_thread_compiles(cache, waits, tmp_path):
    """Without a cache each child compiles all of it."""
    environment = os.environ | {"TAPEGRAD_CACHE": "off" if cache == "off" else str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", FORKING, *map(str, waits)],
        capture_output=True, text=True, timeout=300, check=False, env=environment,
    )  # fmt: skip
    assert done.stdout.startswith(str([0] * len(waits))), (done.stdout, done.stderr[-3000:])


FORKS = """
import os, signal, sys, threading, time, warnings
warnings.simplefilter("ignore", DeprecationWarning)
import numpy as np, tapegrad as tg

@tg.njit(nogil=True)
def logistic(x, n):
    s = x[0]
    for _ in range(n):
        s = x[1] * s * (1.0 - s)
    return s

def native(n=100_000):
    x = tg.tensor([0.3, 3.1], requires_grad=True)
    return tg.grad(logistic(x, n), x)[0].numpy().tobytes()

def tensors():
    x = tg.tensor(np.linspace(0.1, 1.0, 11), requires_grad=True)
    (g,) = tg.grad(np.sum(np.sin(x) * np.exp(x)), x, create_graph=True)
    return tg.grad(np.sum(g * g), x)[0].numpy().tobytes()

at = tg.tensor(np.linspace(0.1, 1.0, 50_000), requires_grad=True)
kept = np.sum(np.sin(at) * np.exp(at) + at)

def shared():
    return tg.grad(kept, at, retain_graph=True)[0].numpy().tobytes()

def compiled():
    @tg.njit
    def power(x):
        return x * x * x
    x = tg.tensor(2.0, requires_grad=True)
    return tg.grad(power(x), x)[0].item()

WORK = {"native": native, "tensors": tensors, "shared": shared, "compiled": compiled}
kind, times = sys.argv[1], int(sys.argv[2])
expected = {name: work() for name, work in WORK.items()}
names = [n for n in WORK if n != "compiled"]

def right(names):
    return all(WORK[name]() == expected[name] for name in names)

wrong, ending = [], False

def other():
    while not ending:
        try:
            if WORK[kind]() != expected[kind]:
                wrong.append("thread")
        except tg.errors.TapeBusyError:
            pass

thread = threading.Thread(target=other)
if kind in WORK:
    thread.start()
held = logistic(at[:2], 1000)  # on a native tape that both go on with
slope = tg.grad(held, at, retain_graph=True)[0].numpy().tobytes()
for k in range(times):
    time.sleep(0.003 * (k % 4))
    child = os.fork()
    if child == 0:
        signal.alarm(100)
        good = right([*names, *["compiled"] * (kind == "compiled")])
        good = good and tg.grad(held, at, retain_graph=True)[0].numpy().tobytes() == slope
        ending = threading.Thread(target=lambda: os._exit(not (good and right(["native"]))))
        ending.start()
        ending.join()
    for name in names:
        while True:
            try:
                if not right([name]):
                    wrong.append("parent")
                break
            except tg.errors.TapeBusyError:
                continue
    status = os.waitpid(child, 0)[1]
    if status:
        wrong.append(status)
ending = True
if kind in WORK:
    thread.join()
print(wrong)
"""


FORKED = {"alone": 200, "native": 200, "tensors": 200, "shared": 200, "compiled": 30}


@pytest.mark.full
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.parametrize(
    ("kind", "times"),
    [("native", 10), ("shared", 5), *(pytest.param(*row, marks=SLOW) for row in FORKED.items())],
)
def test_forks_with_both_sides_at_work(kind, times):
    """Another thread is recording, sweeping or compiling meanwhile, or none; no child hangs or is wrong."""
    done = start(os.environ["TAPEGRAD_CACHE"], FORKS, kind, times)
    out, errors = done.communicate(timeout=60 + 20 * times)
    assert (out.strip(), done.returncode) == ("[]", 0), errors[-3000:]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning", "ignore:os.fork:RuntimeWarning")
@pytest.mark.parametrize("mine", [False, True])
def test_a_child_sweeps_what_was_being_swept_at_the_fork(mine):
    """A sweep of a thread that is not in the child holds nothing; one of the thread that forked does."""
    x = tg.tensor(POINT, requires_grad=True)
    y = np.sin(x) * x
    parent, begun, end, found = os.getpid(), threading.Event(), threading.Event(), []

    def hook(g):
        if os.getpid() == parent and mine:
            found.append(in_a_child())
        elif os.getpid() == parent:
            begun.set()
            assert end.wait(60)

    def in_a_child():
        child = os.fork()
        if child:
            return os.waitpid(child, 0)[1]
        signal.alarm(60)
        right = False
        try:
            with tg.enable_grad():
                total = np.sum(y)
            right = np.allclose(tg.grad(total, x)[0].numpy(), np.sin(POINT) + POINT * np.cos(POINT))
        except tg.errors.TapeBusyError:
            right = mine
        finally:
            os._exit(not right)

    y.register_hook(hook)
    thread = threading.Thread(target=lambda: np.sum(y).backward())
    thread.start()
    if not mine:
        assert begun.wait(60)
        found.append(in_a_child())
        end.set()
    thread.join()
    assert found == [0]


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")
@pytest.mark.parametrize(
    "method", [m for m in ("fork", "spawn", "forkserver") if m in multiprocessing.get_all_start_methods()]
)
def test_a_pool_of_workers(method):
    expected = gradient(POINT)
    with multiprocessing.get_context(method).Pool(2) as pool:
        found = pool.map_async(work, range(8)).get(timeout=100)
    assert found == [expected] * 8


def work(_):
    return gradient(POINT)
