"""Progress of what takes long, for whoever looks: a bar, and a word before a long compilation.

Nothing is shown where standard error is no terminal, but in a notebook. The logger "tapegrad" is told of
compilations in any case, at level INFO; a higher level of its own silences both.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sized
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import TypeVar

__all__ = ["announced", "progress", "watched"]

T = TypeVar("T")
INTERVAL = 0.2  # seconds from one line to the next
LONG = 1.0  # seconds of which it is said how long they were
log = logging.getLogger("tapegrad")
_announcing = threading.local()


def watched() -> bool:
    """Whether what is written to standard error is looked at: it is a terminal, or a notebook's."""
    with suppress(AttributeError, ValueError):  # there is none, or it is closed
        if sys.stderr.isatty():
            return True
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel")


def progress(items: Iterable[T], what: str, show: bool, total: int | None = None) -> Iterable[T]:
    """Go through items, and show how many are done: by tqdm if it is installed, else by a plain line.

    Parameters
    ----------
    items
        Taken one by one, as their work is done.
    what
        What is shown before the numbers.
    show
        Whether it was asked for; it is shown only where somebody looks.
    total
        How many there are; by default the length of the items, if these have one.
    """
    if not (show and watched()):
        return items
    if total is None and isinstance(items, Sized):
        total = len(items)
    try:
        bar = import_module("tqdm.auto").tqdm
    except ImportError:
        return _counted(items, what, total)
    return bar(items, desc=what, total=total)  # type: ignore[no-any-return]


def _counted(items: Iterable[T], what: str, total: int | None) -> Iterator[T]:
    """Write a line that is written over."""
    begin = shown = time.monotonic()
    of, done = "" if total is None else f" of {total:,}", 0

    def write(end: str) -> None:
        sys.stderr.write(f"\r{what}: {done:,}{of}, {time.monotonic() - begin:.1f} s{end}")
        sys.stderr.flush()

    try:
        for item in items:
            yield item
            done += 1
            if time.monotonic() - shown > INTERVAL:
                shown = time.monotonic()
                write("")
    finally:
        write("\n")


@contextmanager
def announced(what: str, hint: str = "") -> Iterator[None]:
    """Say what is compiled before it begins, and how long it took if that was more than a second.

    What is compiled on the way is part of it.
    """
    if getattr(_announcing, "at_work", False):
        yield
        return
    begin = time.monotonic()
    try:
        _announcing.at_work = True
        _say(f"compiling {what}{hint}")
        yield
    finally:
        _announcing.at_work = False
        took = time.monotonic() - begin
        if took > LONG:
            _say(f"compiled {what} in {took:.1f} s")


def _say(text: str) -> None:
    log.info(text)
    if (not log.level or log.isEnabledFor(logging.INFO)) and watched():  # another level asks for silence
        with suppress(OSError, ValueError):  # a terminal that is gone is no reason to fail
            sys.stderr.write(f"tapegrad: {text}\n")
            sys.stderr.flush()
