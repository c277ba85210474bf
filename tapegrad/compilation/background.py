"""A thread that makes plans beside the callers': LLVM works without Python's lock, and what holds it pauses.

It is started by the first job, is a daemon, and ends with the process; a child process begins without it, and
without the jobs that were waiting.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator

MOST_JOBS = 64  # waiting; more are refused, and asked for again
SHARE = 3.0  # how long the thread rests, for a time in which it has worked
LONGEST = 0.02  # seconds of a rest

Job = Callable[[], Iterator[None]]
generation = [0]  # how many processes have begun since this one's first ancestor
statistics = {"jobs": 0, "seconds": 0.0}
_jobs: deque[Job] = deque()
_wanted = threading.Condition()
_thread: list[threading.Thread] = []
_ended = threading.Event()


def submit(job: Job) -> bool:
    """Let the thread do a job, stopping wherever it yields; False where too many are waiting."""
    with _wanted:
        if len(_jobs) >= MOST_JOBS or _ended.is_set():
            return False
        _jobs.append(job)
        if not _thread:
            _thread.append(threading.Thread(target=_work, name="tapegrad-compile", daemon=True))
            _thread[0].start()
        _wanted.notify()
    return True


def finish(job: Job) -> None:
    """Do a job here and now."""
    for _ in job():
        pass


def waiting() -> int:
    """Return how many jobs are waiting."""
    return len(_jobs)


def describe() -> str:
    """Say what the thread has done."""
    return (
        f"{statistics['jobs']} plans, {statistics['seconds']:.2f} s of processor time, {len(_jobs)} waiting"
    )


def _work() -> None:
    """Do jobs, one after the other."""
    while True:
        with _wanted:
            while not _jobs:
                _wanted.wait()
            job = _jobs.popleft()
        steps, statistics["jobs"] = job(), statistics["jobs"] + 1
        while not _ended.is_set():
            begin = time.thread_time()
            if next(steps, steps) is steps:
                break
            worked = time.thread_time() - begin
            statistics["seconds"] += worked
            time.sleep(min(SHARE * worked, LONGEST))
        del job, steps


def _begin_anew() -> None:
    """In a child process there is no such thread, and nobody holds its lock."""
    global _wanted
    generation[0] += 1
    _jobs.clear()
    _thread.clear()
    _wanted = threading.Condition()


atexit.register(_ended.set)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)
