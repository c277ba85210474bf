"""What is compiled once for all programs: taking and returning tapes, and the reverse sweep of each kind."""

from __future__ import annotations

import functools
from types import ModuleType

from tapegrad.kernels import cache
from tapegrad.native.algebra import Spec, components
from tapegrad.native.tape import entry_bytes
from tapegrad.native.twin import digest

TAPES = '''"""Taking and returning native tapes. {digest}"""
from numba import njit
from tapegrad.native.memory import call_block, calloc, claim, free, get, pool, put
from tapegrad.native.tape import (BASE, BLOCKS, CHUNK, COTANGENTS, COUNT, DROP, END, KEPT, LEAST, LIMIT, NEXT,
                                  OWNED, ROOM, SLOTS, TOP, WORDS)


@njit("int64()", cache=CACHE)
def acquire():
    """A tape of the caller's own; 0 where there is no memory."""
    for k in range(SLOTS):
        tape = pool() + 8 * WORDS * k
        if get(tape, OWNED) == 0 and claim(tape, OWNED):
            return tape
    tape = calloc(8 * WORDS, 1)
    if tape:
        put(tape, OWNED, 2)
    return tape


@njit("void(int64)", cache=CACHE)
def clear(tape):
    """Let go of the blocks."""
    while get(tape, BLOCKS):
        block = get(tape, BLOCKS)
        put(tape, BLOCKS, get(block, NEXT))
        call_block(get(block, DROP), tape, block)
        free(block)


@njit("void(int64, int64)", cache=CACHE)
def reset(tape, inputs):
    """Begin anew, with so many inputs."""
    if get(tape, BLOCKS):
        clear(tape)
    base, end = get(tape, BASE), get(tape, END)
    put(tape, TOP, base)
    put(tape, LIMIT, min(end, base + CHUNK))
    put(tape, COUNT, inputs)


@njit("void(int64)", cache=CACHE)
def release(tape):
    """Return a tape; large buffers are kept by the first slots only."""
    if get(tape, BLOCKS):
        clear(tape)
    owned = get(tape, OWNED)
    place = (tape - pool()) // (8 * WORDS)
    kept = 0 if owned == 2 or place >= 16 else max(KEPT >> place, LEAST)
    if get(tape, END) - get(tape, BASE) > kept:
        free(get(tape, BASE))
        put(tape, BASE, 0)
        put(tape, END, 0)
    if 8 * get(tape, ROOM) > kept:
        free(get(tape, COTANGENTS))
        put(tape, COTANGENTS, 0)
        put(tape, ROOM, 0)
    if owned == 2:
        free(tape)
    else:
        put(tape, OWNED, 0)


@njit("boolean(int64, int64)", cache=CACHE)
def prepare(tape, components):
    """See that there is a cotangent, zero, for each statement."""
    need = (get(tape, COUNT) + 1) * components
    if get(tape, ROOM) < need:
        free(get(tape, COTANGENTS))
        need += need >> 2
        put(tape, COTANGENTS, calloc(need, 8))
        put(tape, ROOM, need if get(tape, COTANGENTS) else 0)
    return get(tape, COTANGENTS) != 0
'''

SWEEP = '''"""The reverse sweep of native tapes whose numbers have tangents {spec}. {digest}"""
from numba import njit
from tapegrad.native.memory import access, call_block, get, leaf, read, write
from tapegrad.native.tape import BASE, BEFORE, BLOCKS, COTANGENTS, COUNT, NEXT, PLACE, REVERSE, TOP

TAKE, GIVE = access({spec}, {seeds})
ENTRY, COMPONENTS, FIRST = {entry}, {components}, 1 << 31


@njit("void(int64)", cache=CACHE, nogil=True)
def sweep(tape):
    """From the seeds to the cotangents of the inputs; the others are cleared."""
    base, at, block = get(tape, BASE), get(tape, TOP), get(tape, BLOCKS)
    cotangents, statement = get(tape, COTANGENTS), get(tape, COUNT)
    while True:
        stop = base + get(block, PLACE) if block else base
        while at > stop:
            ct = TAKE(cotangents, statement)
            statement -= 1
            moved = False
            for k in range(COMPONENTS):
                moved |= ct[k] != 0.0
            if moved:
                while True:
                    at -= ENTRY
                    number = leaf(at)
                    GIVE(cotangents, number, ct, at)
                    if number >= FIRST:
                        break
            else:
                while True:
                    at -= ENTRY
                    if leaf(at) >= FIRST:
                        break
        if not block:
            break
        call_block(get(block, REVERSE), tape, block)
        statement, block = get(block, BEFORE), get(block, NEXT)
    TAKE(cotangents, 0)


@njit("void(int64, int64[::1], float64[:, ::1], float64[:, ::1])", cache=CACHE, nogil=True)
def pull(tape, statements, seeds, gradient):
    """Add seeds to statements, sweep, and take the cotangents of the inputs."""
    cotangents = get(tape, COTANGENTS)
    for q in range(statements.size):
        if statements[q]:
            for k in range(COMPONENTS):
                place = cotangents + 8 * (statements[q] * COMPONENTS + k)
                write(place, read(place) + seeds[q, k])
    sweep(tape)
    for q in range(gradient.shape[0]):
        ct = TAKE(cotangents, 1 + q)
        for k in range(COMPONENTS):
            gradient[q, k] = ct[k]
'''


@functools.cache
def tapes() -> ModuleType:
    """Return `acquire`, `reset`, `release` and `prepare`, compiled."""
    return cache.load("tapes", TAPES.format(digest=digest()))


@functools.cache
def sweeps(spec: Spec, seeds: int = 1) -> ModuleType:
    """Return `sweep` and `pull` for numbers of this kind, compiled; for several seeds at once where told."""
    count = seeds * components(spec)
    text = SWEEP.format(spec=spec, seeds=seeds, digest=digest(), entry=entry_bytes(spec), components=count)
    return cache.load("native_sweep", text)
