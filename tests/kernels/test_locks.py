"""One lock for all that compiles: threads, finalizers and forks never wait for each other for ever."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import tapegrad as tg

BEGIN = """
import gc, os, sys, threading, time, warnings
import numpy as np, tapegrad as tg

def tensors(f=np.tanh):
    x = tg.tensor(np.linspace(0.1, 1.0, 5), requires_grad=True)
    return tg.grad(np.sum(f(x) * x), x)[0].numpy().sum()

inside = threading.Event()

def typing():
    '''Have Numba compile a function whose typing wants a kernel.'''
    import numba.extending
    def wanting():
        pass
    @numba.extending.overload(wanting)
    def typed():
        inside.set()
        time.sleep(0.3)
        found.append(tensors(np.arctan))
        return lambda: 1.0
    return numba.njit(lambda: wanting())()

def loops():
    @tg.njit
    def step(x, rate):
        return x + rate * x * x
    x = tg.tensor([0.5], requires_grad=True)
    return tg.grad(tg.func.checkpoint_loop(step, x, 100, 3, (0.01,)), x)[0].item()

found, errors = [], []

class Late:
    '''Computes a gradient when it is collected.'''
    def __init__(self):
        self.itself = self
    def __del__(self, f=np.tanh):
        found.append(tensors(f))

sys.unraisablehook = lambda what: errors.append(repr(what.exc_value))
"""


def run(code):
    """What a fresh process prints."""
    environment = os.environ | {"PYTHONPATH": str(Path(tg.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        capture_output=True, text=True, timeout=100, check=False, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.strip()


NOTED = """
import collections, threading

class Noted:
    '''A lock that notes which others its thread held when it was taken.'''
    make, here, before = threading.RLock, threading.local(), collections.defaultdict(set)

    def __init__(self):
        import sys
        self.lock = Noted.make()
        self.name = sys._getframe(1).f_code.co_filename

    def acquire(self, blocking=True, timeout=-1):
        taken = self.lock.acquire(blocking, timeout)
        if taken:
            held = vars(Noted.here).setdefault("held", [])
            if self not in held:
                Noted.before[self].update(held)
            held.append(self)
        return taken

    def release(self):
        Noted.here.held.reverse()
        Noted.here.held.remove(self)
        Noted.here.held.reverse()
        self.lock.release()

    def __enter__(self):
        return self.acquire()

    def __exit__(self, *exception):
        self.release()

    def __getattr__(self, name):
        return getattr(self.lock, name)

threading.RLock = Noted
"""
ORDERS = """
def before(lock):
    '''All that was ever held, at first or second hand, when a lock was taken.'''
    found, todo = set(), [lock]
    while todo:
        for other in Noted.before[todo.pop()] - found:
            found.add(other)
            todo.append(other)
    return found

noted = list(Noted.before)
print(sorted({lock.name for lock in noted if lock in before(lock)}))
print(sum(any(part in lock.name for part in ("numba", "llvmlite", "tapegrad")) for lock in noted) > 2)
"""


def test_locks_are_taken_in_one_order():
    """By sweeps, in the typing of a function, by finalizers in a compilation, and by a fork."""
    work = """
threads = [threading.Thread(target=work) for work in (tensors, typing, tensors)]
garbage = [Late() for _ in range(3)]
del garbage
def collect(name, begin, end):
    gc.collect()
from tapegrad.kernels import cache
cache.observers.append(collect)  # runs while a kernel is loaded
for thread in threads:  # one after the other: the orders count, not the times
    thread.start()
    thread.join()
if hasattr(os, "fork"):
    if (child := os.fork()) == 0:
        os._exit(0)
    os.waitpid(child, 0)
assert len(found) == 4, (found, errors)
"""
    assert run(NOTED + BEGIN + work + ORDERS).split("\n") == ["[]", "True"]


@pytest.mark.full
def test_a_kernel_wanted_in_a_compilation_while_another_thread_compiles_one():
    """Each thread has what it wants; of two locks each would have one and wait for the other."""
    work = """
tensors(np.exp)
threads = [
    threading.Thread(target=typing, daemon=True),
    threading.Thread(target=lambda: inside.wait() and found.append(tensors(np.log1p)), daemon=True),
]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join(90)
print(len(found), errors, flush=True)
os._exit(0)
"""
    assert run(BEGIN + work) == "2 []"


@pytest.mark.full
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_child_forked_out_of_a_compilation_that_does_not_end():
    """The parent waits for it only so long; the child says so where it would wait for ever."""
    work = """
from tapegrad.kernels import locks
locks.WAIT = 0.2
tensors(np.exp)
ended = threading.Event()
def hold():
    with locks.compiling():
        inside.set()
        ended.wait()
thread = threading.Thread(target=hold)
thread.start()
inside.wait()
if (child := os.fork()) == 0:
    tensors(np.exp)
    try:
        tensors(np.log1p)
    except tg.errors.KernelError as error:
        os._exit(0 if "forked" in str(error) else 1)
    os._exit(2)
print(os.waitpid(child, 0)[1])
ended.set()
thread.join()
at = np.linspace(0.1, 1.0, 5)
print(np.isclose(tensors(np.exp), np.sum(np.exp(at) * (1.0 + at))))
"""
    assert run(BEGIN + work) == "0\nTrue"


@pytest.mark.slow
def test_a_first_loop_beside_a_first_gradient():
    """As above, ten times, with what Numba compiles for a loop on a native tape."""
    work = """
def start(work):
    return threading.Thread(target=lambda: found.append(work()), daemon=True)
threads = [start(loops), start(tensors)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join(90)
print(np.round(sorted(found), 3), errors, flush=True)
os._exit(0)
"""
    for _ in range(10):
        assert run(BEGIN + work) == "[3.927 3.998] []"
