"""The compiled sweep as one address, and the ways to call it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from tapegrad.kernels import bounds, cache
from tapegrad.kernels.locks import loaded_once
from tapegrad.kernels.replay import layout

SOURCE = '''"""The compiled sweep or what belongs to it: texts for `tapegrad.kernels.lowering`."""
from numba import cfunc, types
from numba.extending import intrinsic
from tapegrad.kernels.lowering import Program
from tapegrad.kernels.whole import optimised_as_a_whole

TEXTS = {texts!r}
CONSTANTS = {constants!r}


@intrinsic
def program(typing, what, state, extra, more):
    def code(context, builder, signature, args):
        found = Program(TEXTS, CONSTANTS, **{how}).build(builder.module, {entry!r})
        return builder.call(found, args)

    return types.int64(types.int64, types.int64, types.int64, types.int64), code


with optimised_as_a_whole():
    @cfunc("int64(int64, int64, int64, int64)", cache=CACHE)
    def entry(what, state, extra, more):
        return program(what, state, extra, more)
'''
ENTER = '''"""The ways into compiled code at an address, with Python's lock and without."""
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic
from llvmlite import ir


def way(released):
    @intrinsic
    def jump(typing, address, what, state, extra, more):
        def code(context, builder, signature, args):
            kind = ir.FunctionType(ir.IntType(64), [ir.IntType(64)] * 4)
            found = builder.call(builder.inttoptr(args[0], kind.as_pointer()), args[1:])
            python = context.get_python_api(builder)
            lock = python.gil_ensure() if released else None
            raised = cgutils.is_not_null(builder, python.err_occurred())  # by a function of SciPy's
            if released:
                python.gil_release(lock)
            with cgutils.if_unlikely(builder, raised):
                context.call_conv.return_exc(builder)
            return found

        return types.int64(types.int64, types.int64, types.int64, types.int64, types.int64), code

    return jump


HELD, RELEASED = way(False), way(True)


@njit("int64(int64, int64, int64, int64, int64)", cache=CACHE)
def enter(address, what, state, extra, more):
    return HELD(address, what, state, extra, more)


@njit("int64(int64, int64, int64, int64, int64)", cache=CACHE, nogil=True)
def enter_nogil(address, what, state, extra, more):
    return RELEASED(address, what, state, extra, more)
'''
# Texts through which each operation goes; those that are never checked, as what they work on is not the
# sweep's; those that are in a checked build.
QUICK = (
    "recording", "matching", "matching_operands", "operands", "admitting", "values", "committing",
    "unrecorded", "comparing",
)  # fmt: skip
TRUSTED = (
    *QUICK, "words", "any_op", "parts", "gradients", "suspending", "adopting", "watching", "looking", "loops",
    "memory", "unchanged", "entry",
)  # fmt: skip
CHECKED = ("reading", "records", "links", "sweep", "tapes", "stream", "templates", "recurrences", "functions")
OFFERED = (  # functions that `tapegrad.kernels.extensions` call
    "array_at", "basic", "commit", "constant", "constant_tensor", "flagged", "following", "hold",
    "hold_roots", "is_own_memory", "kept_value", "leaves_of", "length", "matched_write", "needs_grad",
    "none_for", "operands", "operate", "parts_by_rule", "place_of", "planned", "recorded_result",
    "release_held", "same_kind", "shade_for", "value_of_record", "workspace", "written_words",
)  # fmt: skip
Enter = Callable[[int, int, int, int], int]
when_loaded: list[Callable[[Enter], None]] = []


def _texts() -> list[str]:
    return [text_of(name) for name in (*TRUSTED, *CHECKED)]


def build(
    name: str, texts: list[str], entry: str, *layouts: ModuleType, **how: Any
) -> functools.partial[int]:
    """Return a function of these texts, which know the constants of layouts, with its address to call it by.

    Further arguments are those of `tapegrad.kernels.lowering.Program`; unless they say others, one text is
    neither checked nor to be small.
    """
    known = {k: v for one in layouts for k, v in vars(one).items()}
    constants = {k: v for k, v in known.items() if k.isupper() and isinstance(v, int)}
    how = {"trusted": 1, "quick": 1, **how}
    module = cache.load(name, SOURCE.format(texts=texts, constants=constants, entry=entry, how=how))
    return functools.partial(cache.load("enter", ENTER).enter, module.entry.address)


def text_of(name: str) -> str:
    """Return a text of the compiled sweep, of what belongs to it, or of what it is entered by."""
    return (Path(layout.__file__).parent / f"{name}.py").read_text("utf-8")


@loaded_once
def load() -> tuple[Enter, Enter]:
    """Return ``enter(what, state, extra, more)``, and the same with Python's lock released."""
    how = {"trusted": len(TRUSTED), "quick": len(QUICK), "offered": OFFERED}
    enter = build("sweep", _texts(), "entry", layout, **how)
    nogil = functools.partial(cache.load("enter", ENTER).enter_nogil, enter.args[0])
    ways: list[Enter] = [enter, nogil]
    if layout.BOUNDS:  # Python's lock is kept: there is one table of what memory there is
        ways = 2 * [bounds.guarded(ways[0], _texts())]
    for call in when_loaded:
        call(ways[0])
    return ways[0], ways[1]
