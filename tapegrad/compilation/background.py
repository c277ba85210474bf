"""A thread that learns programs and makes plans beside the callers, in pieces between which it pauses.

What is Python in it holds Python's lock, so the pieces are short and the thread rests for longer than it
works; LLVM works without the lock. It is started by the first job, is a daemon, and ends with the process; a
child process begins without it, and without the jobs that were waiting.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections import deque
from queue import SimpleQueue
from typing import Protocol

MOST_JOBS = 64  # waiting; more are refused, and asked for again
MOST_HELD = 1 << 28  # bytes that jobs may keep while they wait
PIECE = 1e-3  # seconds of work without a pause
SHARE = 3.0  # how long the thread rests, for a time in which it has worked
LONGEST = 0.02  # seconds of a rest


class Owner(Protocol):
    """What asks for work, and does it.

    Attributes
    ----------
    gone
        Whether nobody needs it any more.
    """

    gone: bool

    def work(self) -> bool:
        """Do what was asked for; False where that cannot be now."""

    def forget(self) -> None:
        """Ask for nothing any more: this is a child of the process that was to do it."""


class Stopped(BaseException):
    """The process ends, or nobody needs what is being made."""


class _Job:
    """What is waiting, or at work: its owner, and how many bytes it keeps."""

    def __init__(self, owner: Owner, held: int) -> None:
        self.owner, self.held = weakref.ref(owner), held


class _AtWork(threading.local):
    """What the thread does, as it sees it; to others nothing."""

    owner: Owner | None = None
    begin = 0.0  # of a piece, in processor time
    rested = 0.0  # for longer than was due, as it had to wait for Python's lock


statistics = {"jobs": 0, "seconds": 0.0}
_jobs: deque[_Job] = deque()  # the first one may be at work
_wanted: SimpleQueue[None] = SimpleQueue()  # an entry a job: who puts one there never waits
_starting = threading.Lock()
_thread: list[threading.Thread] = []
_ended = threading.Event()
_at_work = _AtWork()


def submit(owner: Owner, held: int = 0) -> bool:
    """Let the thread do an owner's work, which keeps so many bytes; False where too much is waiting."""
    full = held and _jobs and held + sum(job.held for job in _jobs.copy()) > MOST_HELD
    if full or len(_jobs) >= MOST_JOBS or _ended.is_set():
        return False
    _jobs.append(_Job(owner, held))
    _wanted.put(None)
    if not _thread and _starting.acquire(blocking=False):
        try:
            if not _thread:
                _thread.append(threading.Thread(target=_work, name="tapegrad-compile", daemon=True))
                _thread[0].start()
        finally:
            _starting.release()
    return True


def pause() -> None:
    """Let others go on, if this is the thread and it has worked for long enough."""
    owner = _at_work.owner
    if owner is None:
        return
    if owner.gone or _ended.is_set():
        raise Stopped
    worked = time.thread_time() - _at_work.begin
    if worked > PIECE:
        statistics["seconds"] += worked
        due, begin = min(SHARE * worked, LONGEST) - _at_work.rested, time.perf_counter()
        time.sleep(max(due, 0.0))
        _at_work.rested = min(time.perf_counter() - begin - due, LONGEST)
        _at_work.begin = time.thread_time()


def waiting() -> int:
    """Return how many jobs are waiting, or at work."""
    return len(_jobs)


def describe() -> str:
    """Say what the thread has done."""
    return f"{statistics['jobs']} jobs, {statistics['seconds']:.2f} s of processor time, {len(_jobs)} waiting"


def _work() -> None:
    """Do jobs, one after the other."""
    while True:
        _wanted.get()
        while not _do(_jobs[0].owner()):
            _jobs.rotate(-1)
        statistics["jobs"] += 1
        _jobs.popleft()


def _do(owner: Owner | None) -> bool:
    """Let an owner that still exists do its work; False where that cannot be now."""
    if owner is None or owner.gone or _ended.is_set():
        return True
    _at_work.owner, _at_work.begin = owner, time.thread_time()
    try:
        return owner.work()
    except Stopped:
        return True
    finally:
        statistics["seconds"] += time.thread_time() - _at_work.begin
        _at_work.owner = None


def _begin_anew() -> None:
    """In a child process there is no such thread, and nobody holds its lock."""
    global _wanted, _starting
    _at_work.owner = None
    dropped = [job.owner() for job in _jobs]
    _jobs.clear()
    _thread.clear()
    _wanted, _starting = SimpleQueue(), threading.Lock()
    for owner in dropped:
        if owner is not None:
            owner.forget()


atexit.register(_ended.set)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)
