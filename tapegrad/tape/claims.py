"""Claims: what sweeps at work on a tape note there, so that nothing they read is released meanwhile."""

from __future__ import annotations

import os
import threading
from typing import Any


class Claim:
    """A sweep's hold on a tape, while it is at work there.

    Attributes
    ----------
    flags
        Its plan: a byte per record.
    frees
        Whether it releases what it has read.
    """

    __slots__ = ("__weakref__", "_forks", "_thread", "flags", "frees")

    def __init__(self, flags: bytes | memoryview, frees: bool) -> None:
        self.flags: Any = flags
        self.frees = frees
        self._thread, self._forks = threading.get_ident(), len(forks)

    def at_work(self) -> bool:
        """Whether its sweep can still be: not in a child that another thread forked."""
        return all(thread == self._thread for thread in forks[self._forks :])


forks: list[int] = []  # the thread that forked, for each fork that led to this process
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: forks.append(threading.get_ident()))
