"""The compiled sweep as one address, and the ways to call it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

from tapegrad.kernels import cache
from tapegrad.kernels.replay import layout

SOURCE = '''"""The compiled sweep: texts for `tapegrad.kernels.lowering`, and thin ways in."""
from numba import cfunc, njit, types
from numba.extending import intrinsic
from llvmlite import ir
from tapegrad.kernels.lowering import Program

TEXTS = {texts!r}
CONSTANTS = {constants!r}


@intrinsic
def program(typing, what, state, extra, more):
    def code(context, builder, signature, args):
        return builder.call(Program(TEXTS, CONSTANTS).build(builder.module, "entry"), args)

    return types.int64(types.int64, types.int64, types.int64, types.int64), code


@intrinsic
def jump(typing, address, what, state, extra, more):
    def code(context, builder, signature, args):
        kind = ir.FunctionType(ir.IntType(64), [ir.IntType(64)] * 4)
        return builder.call(builder.inttoptr(args[0], kind.as_pointer()), args[1:])

    return types.int64(types.int64, types.int64, types.int64, types.int64, types.int64), code


@cfunc("int64(int64, int64, int64, int64)", cache=CACHE)
def entry(what, state, extra, more):
    return program(what, state, extra, more)


@njit("int64(int64, int64, int64, int64, int64)", cache=CACHE)
def enter(address, what, state, extra, more):
    return jump(address, what, state, extra, more)


@njit("int64(int64, int64, int64, int64, int64)", cache=CACHE, nogil=True)
def enter_nogil(address, what, state, extra, more):
    return jump(address, what, state, extra, more)
'''
Enter = Callable[[int, int, int, int], int]
when_loaded: list[Callable[[Enter], None]] = []


def _texts() -> list[str]:
    place = Path(layout.__file__).parent
    names = ("recording.py", "loops.py", "reading.py", "sweep.py", "stream.py", "templates.py")
    return [(place / name).read_text("utf-8") for name in names]


@functools.cache
def load() -> tuple[Enter, Enter]:
    """Return ``enter(what, state, extra, more)``, and the same with Python's lock released."""
    with cache.lock:
        constants = {k: v for k, v in vars(layout).items() if k.isupper() and isinstance(v, int)}
        module = cache.load("sweep", SOURCE.format(texts=_texts(), constants=constants))
        address = module.entry.address
        enter = functools.partial(module.enter, address)
        for call in when_loaded:
            call(enter)
        return enter, functools.partial(module.enter_nogil, address)
