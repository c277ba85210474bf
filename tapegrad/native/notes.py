"""Notes on what takes long to compile, while it does."""

from __future__ import annotations

import functools
import logging
import threading
from typing import Any

from tapegrad.native.annotations import Compiled

log = logging.getLogger("tapegrad")
LONG = 2.0  # seconds of compilation that are worth a note


def announce(compiled: Compiled, what: str, cached: bool) -> None:
    """Let a function say what it is, once compiling it has taken long and goes on."""
    words = "" if cached else "; with tg.njit(cache=True) other processes need not"
    compile_form = compiled.compile

    @functools.wraps(compile_form)
    def compile(form: Any) -> Any:
        timer = threading.Timer(LONG, log.warning, (f"tg.njit: compiling %s{words}", what))
        timer.daemon = True
        timer.start()
        try:
            return compile_form(form)
        finally:
            timer.cancel()

    compiled.compile = compile
