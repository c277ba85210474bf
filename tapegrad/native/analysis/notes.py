"""Notes on what takes long to compile, before it does."""

from __future__ import annotations

import functools
from typing import Any

from tapegrad.native.emission.annotations import Compiled
from tapegrad.progress import announced


def announce(compiled: Compiled, what: str, cached: bool) -> None:
    """Let a function say what it is whenever a form of it is compiled, and not found in the cache."""
    hint = "" if cached else "; tg.njit(cache=True) keeps it for later processes"
    compiler = compiled._compiler
    compile_form = compiler.compile  # which Numba calls when it has looked into the cache

    @functools.wraps(compile_form)
    def compile(args: Any, return_type: Any) -> Any:
        with announced(what, hint):
            return compile_form(args, return_type)

    compiler.compile = compile
