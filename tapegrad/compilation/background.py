"""A thread that learns programs and makes plans beside the callers, in pieces between which it pauses.

What is Python in it holds Python's lock, so the pieces are short and the thread rests for longer than it
works; LLVM works without the lock. A caller that makes one call after the other may let nobody have the lock:
Python gives it away after 5 ms of waiting, counted anew whenever the caller has done without it for a moment,
as in each sweep. So calls lend the lock when a piece is due (`lend`), and now and then during a long one,
which may have lost it. A caller that pauses between calls lends nothing: the thread has the lock in the
pauses, and a call that gives it away may wait for long until it has it again. Work begins once as much time
has passed as it is expected to take: a function that is called a few times is as quick as a recorded one.

The thread is started by the first job, is a daemon, and ends with the process; a child process begins without
it, and without the jobs that were waiting.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
import weakref
from _thread import start_new_thread
from collections import deque
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Protocol

MOST_JOBS = 64  # waiting; more are refused, and asked for again
MOST_HELD = 1 << 28  # bytes that jobs may keep while they wait
PIECE = 1e-3  # seconds of work without a pause
SHARE = 8.0  # how long the thread rests, for a time in which it has worked
ALONE = 0.2  # the same while no other thread of the process works
LONGEST = 0.02  # seconds of a rest
BUSY = 1e-3  # seconds for which a caller works, while a piece is due, before it lends the lock,
BUSILY = 0.2  # and of how much time, at least
MOST_LENT = 2e-3  # seconds that a call waits for a piece to end; LLVM may take longer
OVERDUE = 1e-2  # seconds of a piece after which the thread may have lost the lock, to read a file,
GLIMPSE = 1e-4  # and that a call then waits: enough to take it again, little where LLVM works without


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
        """Ask for nothing any more: it failed, or this is a child of the process that was to do it."""


class Stopped(BaseException):
    """The process ends, or nobody needs what is being made."""


class _Job:
    """What is waiting, or at work: its owner, how many bytes it keeps, and when it may begin."""

    def __init__(self, owner: Owner, held: int, due: float) -> None:
        self.owner, self.held, self.due = weakref.ref(owner), held, due


class _AtWork(threading.local):
    """What the thread does, as it sees it; to others nothing."""

    owner: Owner | None = None
    begin = 0.0  # of a piece, in processor time
    until = 0.0  # when it may be over
    others = 0.0  # processor time that other threads had when the latest one was over


class _Turn:
    """Whose turn it is to have Python's lock."""

    def __init__(self) -> None:
        self.due = 0.0  # when the thread is to have it
        self.is_at_work = False
        self.lent = 0.0  # until when a call waits for that; no lock, which an interrupt may leave locked
        self.seen = 0, 0.0, 0.0, 0.0  # since when a caller works, of its own time too: who, and what was due
        self.ended = threading.Lock()  # released at the end of a piece
        self.ended.acquire()

    def take(self) -> None:
        """Begin to work."""
        self.is_at_work, self.due = True, time.perf_counter() + OVERDUE

    def end(self, due: float) -> None:
        """End a piece."""
        self.is_at_work, self.due = False, due
        if self.ended.locked():
            self.ended.release()

    def lend(self, now: float) -> None:
        """Wait until the thread has done a piece, if no other call does."""
        if now >= self.lent and self._is_kept_waiting(now):
            self.lent, seconds = now + MOST_LENT, MOST_LENT
            if self.is_at_work:
                self.due, seconds = now + OVERDUE, GLIMPSE
            self.ended.acquire(blocking=False)  # of a piece for which no call has waited
            self.ended.acquire(timeout=seconds)
            self.lent = 0.0

    def _is_kept_waiting(self, now: float) -> bool:
        """Whether the caller has worked for a while since the thread is due, and hardly paused."""
        me, worked = threading.get_ident(), time.thread_time()
        who, due, begin, before = self.seen
        if who == me and due == self.due:
            if worked - before < BUSY:
                return False
            now -= begin
            self.seen = 0, 0.0, 0.0, 0.0
            return worked - before >= BUSILY * now
        self.seen = me, self.due, now, worked
        return False


statistics = {"jobs": 0, "seconds": 0.0}
_jobs: deque[_Job] = deque()  # of which one may be at work
_wanted: SimpleQueue[None] = SimpleQueue()  # an entry a job: who puts one there never waits
_starting = threading.Lock()
_thread: list[int] = []
_ended = threading.Event()
_at_work = _AtWork()
_turn = _Turn()


def submit(owner: Owner, held: int = 0, seconds: float = 0.0) -> bool:
    """Let the thread do an owner's work; False where too much is waiting.

    The work keeps so many bytes, and takes some `seconds`.
    """
    refused = held and _jobs and held + sum(job.held for job in _jobs.copy()) > MOST_HELD
    if refused or is_full() or _ended.is_set():
        return False
    job = _Job(owner, held, time.perf_counter() + max(seconds, SHARE * PIECE))
    if not _jobs:
        _turn.due = job.due
    try:
        _jobs.append(job)
    finally:  # an interrupt does not come between: calls would lend the lock for ever
        _wanted.put(None)
    if not _thread and _starting.acquire(blocking=False):
        try:
            if not _thread:
                _thread.append(start_new_thread(_work, ()))  # of `threading` a call would wait until it runs
        finally:
            _starting.release()
    return True


def is_full() -> bool:
    """Whether no more jobs are taken."""
    return len(_jobs) >= MOST_JOBS


def pause() -> None:
    """Let others go on, if this is the thread and it has worked for long enough."""
    owner = _at_work.owner
    if owner is None or time.perf_counter() < _at_work.until:
        return
    if owner.gone or _ended.is_set():
        raise Stopped
    worked = time.thread_time() - _at_work.begin
    if worked > PIECE:
        _rest(worked)
        worked = 0.0
        _turn.take()
    _at_work.until = time.perf_counter() + PIECE - worked


def _rest(worked: float) -> None:
    """Rest for a while, that waiting for Python's lock is a part of."""
    statistics["seconds"] += worked
    others, _at_work.others = _at_work.others, time.process_time() - time.thread_time()
    share = SHARE if _at_work.others - others > ALONE / 2 * worked else ALONE
    seconds = min(share * worked, LONGEST)
    _turn.end(time.perf_counter() + seconds)
    time.sleep(seconds)
    _at_work.begin = time.thread_time()


def lend() -> None:
    """Let the thread do a piece of work, if one is due: it may not get Python's lock otherwise."""
    if _jobs and (now := time.perf_counter()) >= _turn.due:
        _turn.lend(now)


def waiting() -> int:
    """Return how many jobs are waiting, or at work."""
    return len(_jobs)


def describe() -> str:
    """Say what the thread has done."""
    return f"{statistics['jobs']} jobs, {statistics['seconds']:.2f} s of processor time, {len(_jobs)} waiting"


def _work() -> None:
    """Do jobs, one after the other, those first that are due first."""
    threading.current_thread().name = "tapegrad-compile"
    while True:
        job = min(_jobs.copy(), key=lambda job: job.due, default=None)
        if job is None:
            _wanted.get()
        elif job.due > time.perf_counter():
            _turn.due = job.due
            with suppress(Empty):  # another job may come that is due before
                _wanted.get(timeout=max(job.due - time.perf_counter(), 0.0))
        elif _do(job.owner()):
            statistics["jobs"] += 1
            _jobs.remove(job)
            _rest(time.thread_time() - _at_work.begin)
        else:
            job.due = time.perf_counter()


def _do(owner: Owner | None) -> bool:
    """Let an owner that still exists do its work; False where that cannot be now."""
    if owner is None or owner.gone or _ended.is_set():
        return True
    _at_work.owner, _at_work.until = owner, 0.0
    _turn.take()
    try:
        return owner.work()
    except Stopped:
        return True
    except Exception:  # shown as that of any thread, which goes on
        found = (*sys.exc_info(), threading.current_thread())
        threading.excepthook(threading.ExceptHookArgs(found))
        owner.forget()
        return True
    finally:
        _at_work.owner = None


def _begin_anew() -> None:
    """In a child process there is no such thread, and nobody holds its lock."""
    global _wanted, _starting, _turn
    _at_work.owner = None
    dropped = [job.owner() for job in _jobs]
    _jobs.clear()
    _thread.clear()
    _wanted, _starting, _turn = SimpleQueue(), threading.Lock(), _Turn()
    for owner in dropped:
        if owner is not None:
            owner.forget()


atexit.register(_ended.set)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)
