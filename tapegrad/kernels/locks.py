"""The lock that is held while anything compiles, and what a fork and the end of a process wait for.

Numba has a lock of its own, which it holds while it compiles. A finalizer, or the typing of a function, may
want a kernel at any moment of that; so a second lock for kernels would be taken before Numba's by one thread
and after it by another, and both would wait for ever. There is none: kernels are compiled under Numba's.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import logging  # noqa: F401  (its own hook on forks must be older than ours: a compilation may log)
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from tapegrad.errors import KernelError

R = TypeVar("R")
WAIT = 60.0  # seconds for what another thread compiles or imports
_importing = threading.RLock()  # held while Numba is imported, which has no lock before
_numbas: list[Any] = []  # its lock, from then on
_registered = threading.Event()  # what Numba can compile
_taken: dict[int, list[Any]] = {}  # by thread, what a fork at work holds
_cut_off = False


def compiling() -> Any:
    """Return the lock to hold, by `with`, while anything compiles: Numba's."""
    if _cut_off:
        raise KernelError(
            f"this process was forked while another thread was compiling for more than {WAIT:.0f} s, so "
            "nothing can be compiled here; fork when none compiles, or start processes by spawn or forkserver"
        )
    if not _numbas:
        with _importing:
            if not _numbas:
                _import_numba()
    if not _registered.is_set() and threading.current_thread() is threading.main_thread():
        _register_implementations()
    return _numbas[0]


def loaded_once(load: Callable[[], R]) -> Callable[[], R]:
    """Decorate what loads compiled code: one thread does it, under the lock, and others wait for that.

    What they waited for is not done again: it would give compiled code another memory of what there is.
    """
    found: list[R] = []

    @functools.cache
    @functools.wraps(load)
    def once() -> R:
        with compiling():
            if not found:
                found.append(load())
        return found[0]

    return once


def _import_numba() -> None:
    """Import Numba whole or not at all: what an interrupt leaves half imported would stay so."""
    before = set(sys.modules)
    with without_finalizers():
        try:
            importlib.import_module("numba.extending")
        except BaseException:
            for name in set(sys.modules) - before:
                if name.partition(".")[0] in ("numba", "llvmlite"):
                    del sys.modules[name]
            raise
        importlib.import_module("tapegrad.kernels.vecmath")
        _numbas.append(sys.modules["numba.core.compiler_lock"].global_compiler_lock._lock)


def _register_implementations() -> None:
    """Have Numba list what it can compile, which it does as it compiles first, out of reach of interrupts.

    It reads each list by a generator, which an exception would end: nothing could be compiled from then on.
    Python raises interrupts in the main thread alone, so another one does it; an interrupt ends the wait.
    """
    if _numbas[0]._is_owned():  # by Numba, which has done it
        _registered.set()
        return
    helper = threading.Thread(target=_refresh, name="tapegrad-register", daemon=True)
    try:
        helper.start()
    except RuntimeError:  # the interpreter ends
        return
    helper.join()


def _refresh() -> None:
    with _numbas[0], without_finalizers():
        importlib.import_module("numba.core.registry").cpu_target.target_context.refresh()
    _registered.set()


class _Helper:
    """A call that a thread makes, which adds what it raises to a list."""

    def __init__(self, call: Callable[[], None], raised: list[BaseException]) -> None:
        self._call, self._raised = call, raised
        self._claim, self._done = threading.Lock(), threading.Event()

    def start(self) -> None:
        try:
            threading.Thread(target=self._work, name="tapegrad-helper", daemon=True).start()
        except RuntimeError:  # the interpreter ends
            self._work()

    def _work(self) -> None:
        if not self._claim.acquire(blocking=False):
            return
        try:
            self._call()
        except BaseException as error:
            self._raised.append(error)
        finally:
            self._done.set()

    def wait(self) -> None:
        """Wait until it has ended, whatever comes meanwhile; after an error it need not begin."""
        if self._raised and self._claim.acquire(blocking=False):
            return
        while not self._done.is_set():
            try:
                self._done.wait()
            except BaseException as error:
                self._raised.append(error)


def run_beside(calls: Sequence[Callable[[], None]], own: Callable[[], None] = lambda: None) -> None:
    """Make calls in threads of their own, and one here beside them, and wait for all.

    Python raises interrupts in the main thread alone. One that comes is raised when the calls have ended, as
    the first of their errors is.
    """
    raised: list[BaseException] = []
    helpers = [_Helper(call, raised) for call in calls]
    try:
        for helper in helpers:
            helper.start()
        own()
    except BaseException as error:
        raised.append(error)
    for helper in helpers:
        helper.wait()
    if raised:
        raise raised[0]


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """Hold the lock, and let no finalizer find what is half imported."""
    with compiling(), without_finalizers():
        yield


@functools.cache
def load_module(name: str) -> Any:
    """Return a module that needs Numba, which is imported when it is first wanted."""
    with importing():
        return importlib.import_module(name)


@contextlib.contextmanager
def without_finalizers() -> Iterator[None]:
    """Keep Python from collecting cycles: their finalizers may compute gradients, and it takes its time."""
    enabled = gc.isenabled()
    try:
        gc.disable()
        yield
    finally:
        if enabled:
            gc.enable()


def _take_all() -> list[Any]:
    """Take all locks in the order in which threads do; there is None for what could not be taken in time."""
    end = time.monotonic() + WAIT
    taken = []

    def take(lock: Any) -> None:
        taken.append(lock if lock.acquire(timeout=max(end - time.monotonic(), 0)) else None)

    if not _numbas:
        take(_importing)
    if _numbas:
        take(_numbas[0])
        take(sys.modules["llvmlite.binding.ffi"].lib._lock._lock)  # held where Numba's may not be
    return taken


def _before_fork() -> None:
    """Wait for other threads' compilations and imports: a child would wait for those threads for ever."""
    _taken[threading.get_ident()] = _take_all()


def _after_fork() -> bool:
    """Release what was taken; returns whether that was all."""
    taken = _taken.pop(threading.get_ident())
    for lock in reversed(taken):
        if lock is not None:
            lock.release()
    return None not in taken


def _after_fork_in_child() -> None:
    global _cut_off
    _cut_off = not _after_fork()
    _taken.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)


@atexit.register
def _before_exit() -> None:
    """Wait for them, and let none begin: LLVM aborts in a daemon thread when the process takes it down.

    llvmlite imported by one of them while exit functions run is too late for its own, by which it learns
    that its objects are not to be closed any more.
    """
    _take_all()
    getattr(sys.modules.get("llvmlite.binding.common"), "_at_shutdown", lambda: None)()
