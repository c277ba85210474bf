"""The compiled sweep as one address, and the ways to call it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tapegrad.kernels import abi, cache
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


@intrinsic
def jump_kernel(typing, address, out, first, second, n, data_at):
    """Call a kernel on up to three arrays, told by address or, with `data_at`, by object."""

    def code(context, builder, signature, args):
        word = ir.IntType(64)
        arguments = builder.alloca(word, 3)
        for q in range(3):
            place = args[1 + q]
            by_object = builder.icmp_signed("!=", args[5], word(0))
            there = builder.icmp_signed("!=", place, word(0))
            with builder.if_else(builder.and_(by_object, there)) as (read, direct):
                with read:
                    at = builder.inttoptr(builder.add(place, args[5]), word.as_pointer())
                    loaded, read_block = builder.load(at), builder.block
                with direct:
                    direct_block = builder.block
            chosen = builder.phi(word)
            chosen.add_incoming(loaded, read_block)
            chosen.add_incoming(place, direct_block)
            builder.store(chosen, builder.gep(arguments, [word(q)]))
        kind = ir.FunctionType(word, [word.as_pointer(), word])
        return builder.call(builder.inttoptr(args[0], kind.as_pointer()), [arguments, args[4]])

    return types.int64(*[types.int64] * 6), code


@njit("int64(int64, int64, int64, int64, int64, int64)", cache=CACHE, nogil=True)
def enter_kernel(address, out, first, second, n, data_at):
    return jump_kernel(address, out, first, second, n, data_at)


@njit("int64(int64, int64, int64, int64, int64)", cache=CACHE, nogil=True)
def enter_nogil(address, what, state, extra, more):
    return jump(address, what, state, extra, more)
'''
Enter = Callable[[int, int, int, int], int]


def _texts() -> list[str]:
    place = Path(layout.__file__).parent
    names = ("reading.py", "sweep.py", "stream.py", "templates.py")
    return [(place / name).read_text("utf-8") for name in names]


@functools.cache
def load() -> tuple[Enter, Enter]:
    """Return ``enter(what, state, extra, more)``, and the same with Python's lock released."""
    constants = {k: v for k, v in vars(layout).items() if k.isupper() and isinstance(v, int)}
    module = cache.load("sweep", SOURCE.format(texts=_texts(), constants=constants))
    _module.append(module)
    address = module.entry.address
    return functools.partial(module.enter, address), functools.partial(module.enter_nogil, address)


_module: list[Any] = []


def call_kernel(address: int, out: Any, first: Any, second: Any = None) -> bool:
    """Run one kernel over dense arrays; False if it failed."""
    load()
    if abi.native():
        y = 0 if second is None else id(second)
        status = _module[0].enter_kernel(address, id(out), id(first), y, out.size, layout.DATA_AT)
    else:
        at = [0 if x is None else abi.address(x) for x in (out, first, second)]
        status = _module[0].enter_kernel(address, *at, out.size, 0)
    return bool(status == 1)
