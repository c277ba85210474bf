"""What is compiled once for all programs: tapes, what enters, and the reverse sweep of each kind."""

from __future__ import annotations

import functools
from types import ModuleType

from tapegrad.kernels import cache
from tapegrad.kernels.libraries import set_apart
from tapegrad.native.emission import symbols as _symbols  # noqa: F401  (before anything compiles)
from tapegrad.native.emission.algebra import Spec, components

TAPES = '''"""Taking and returning native tapes. {digest}"""
from numba import njit
from tapegrad.native.tapes.memory import call_block, calloc, claim, disclaim, free, get, malloc, pool, put
from tapegrad.native.emission.adjoint import NOTHING_BITS
from tapegrad.native.tapes.tape import (BASE, BLOCKS, CHUNK, CHUNKS, COTANGENTS, COUNT, DROP, END, EXTENT,
                                  IMPORTS, KEPT, LEAST, LIMIT, NEXT, OLDER, OWNED, ROOM, SLOTS, TAKEN,
                                  TOP, WORDS)


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


@njit
def clear(tape, kept):
    """Let go of the blocks, and of their memory but the last chunk, if it has so few bytes."""
    while get(tape, BLOCKS):
        block = get(tape, BLOCKS)
        put(tape, BLOCKS, get(block, NEXT))
        call_block(get(block, DROP), tape, block)
        free(block)
    last = get(tape, CHUNKS)
    put(tape, IMPORTS, 0)
    if last:
        chunk = get(last, OLDER)
        while chunk:
            older = get(chunk, OLDER)
            free(chunk)
            chunk = older
        put(last, OLDER, 0)
        put(last, TAKEN, 0)
        if get(last, EXTENT) > kept:
            free(last)
            put(tape, CHUNKS, 0)


@njit("void(int64, int64)", cache=CACHE)
def reset(tape, inputs):
    """Begin anew, with so many inputs."""
    if get(tape, BLOCKS) or get(tape, CHUNKS):
        clear(tape, KEPT)
    base, end = get(tape, BASE), get(tape, END)
    put(tape, TOP, base)
    put(tape, LIMIT, min(end, base + CHUNK))
    put(tape, COUNT, inputs)


@njit("void(int64)", cache=CACHE)
def release(tape):
    """Return a tape; large buffers are kept by the first slots only."""
    owned = get(tape, OWNED)
    place = (tape - pool()) // (8 * WORDS)
    kept = 0 if owned == 2 or place >= 16 else max(KEPT >> place, LEAST)
    if get(tape, BLOCKS) or get(tape, CHUNKS):
        clear(tape, kept)
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
        disclaim(tape, OWNED)


@njit("boolean(int64, int64)", cache=CACHE)
def prepare(tape, components):
    """See that there is a cotangent for each statement, to which nothing came as yet."""
    need = (get(tape, COUNT) + 1) * components
    if get(tape, ROOM) < need:
        free(get(tape, COTANGENTS))
        need += need >> 2
        put(tape, COTANGENTS, malloc(8 * need))
        put(tape, ROOM, need if get(tape, COTANGENTS) else 0)
        for k in range(get(tape, ROOM)):
            put(get(tape, COTANGENTS), k, NOTHING_BITS)
    return get(tape, COTANGENTS) != 0
'''

ENTRANCE = '''"""Arguments as active numbers, which lie in words. {digest}"""
from numba import njit
from tapegrad.native.tapes.memory import get, put


@njit("void(int64, int64, int64, int64, int64, int64)", cache=CACHE)
def enter(values, out, many, components, first, tape):
    """Write so many numbers, components side by side; statements begin with the first, 0 is none."""
    words = components + 2
    for i in range(many):
        for k in range(components):
            put(out, i * words + k, get(values, i * components + k))
        put(out, i * words + components, first + i if first else 0)
        put(out, i * words + components + 1, tape)


@njit("boolean(int64, int64, int64)", cache=CACHE)
def is_as_entered(out, many, first):
    """Whether so many numbers without tangents have the statements that they entered with."""
    for i in range(many):
        if get(out, 3 * i + 1) != first + i:
            return False
    return True
'''

SWEEP = '''"""The reverse sweep of native tapes: numbers with tangents {spec}, {seeds} seeds. {digest}"""
from numba import njit
from tapegrad.native.tapes.memory import call_adjoint, call_block, call_fallible, get, read, taking, write
from tapegrad.native.tapes.record import FUNCTION, SIZE, STATEMENTS
from tapegrad.native.tapes.tape import BASE, BEFORE, BLOCKS, COTANGENTS, COUNT, NEXT, PLACE, REVERSE, TOP

TAKE, COMPONENTS, SEEDS = taking({spec}), {components}, {seeds}


@njit("void(int64)", cache=CACHE, nogil=True)
def sweep(tape):
    """From the seeds to the cotangents of the inputs; the others are cleared."""
    base, at, block = get(tape, BASE), get(tape, TOP), get(tape, BLOCKS)
    cotangents, number = get(tape, COTANGENTS), get(tape, COUNT)
    room = 8 * COMPONENTS * (number + 1)
    while True:
        stop = base + get(block, PLACE) if block else base
        while at > stop:
            kind = get(at - 8, 0)
            size, function = get(kind, SIZE), get(kind, FUNCTION)
            if size == 0:  # a record of arrays: it says itself
                at, number = at - get(at - 16, 0), number - get(at - 24, 0)
                for s in range(SEEDS):
                    call_fallible(function, tape, cotangents + s * room, number, at)
            else:
                at, number = at - size, number - get(kind, STATEMENTS)
                for s in range(SEEDS):
                    call_adjoint(function, cotangents + s * room, number, at)
        if not block:
            break
        call_block(get(block, REVERSE), tape, block)
        number, block = get(block, BEFORE), get(block, NEXT)
    for s in range(SEEDS):
        TAKE(cotangents + s * room, 0)


@njit("void(int64, int64[::1], float64[:, ::1], float64[:, ::1])", cache=CACHE, nogil=True)
def pull(tape, statements, seeds, gradient):
    """Add seeds to statements, sweep, and take the cotangents of the inputs; a seed of -0.0 is none."""
    cotangents, room = get(tape, COTANGENTS), 8 * COMPONENTS * (get(tape, COUNT) + 1)
    for q in range(statements.size):
        if statements[q]:
            for s in range(SEEDS):
                for k in range(COMPONENTS):
                    place = cotangents + s * room + 8 * (statements[q] * COMPONENTS + k)
                    write(place, read(place) + seeds[q, s * COMPONENTS + k])
    sweep(tape)
    for q in range(gradient.shape[0]):
        for s in range(SEEDS):
            ct = TAKE(cotangents + s * room, 1 + q)
            for k in range(COMPONENTS):
                gradient[q, s * COMPONENTS + k] = ct[k] + 0.0
'''


@functools.cache
def digest() -> str:
    """Return a short hash of this package and of what it takes from others, that is, of its version."""
    import hashlib
    from pathlib import Path

    here = Path(__file__).parents[1]
    texts = [path.read_bytes() for path in sorted(here.rglob("*.py"))]
    others = ("ops/elementwise.py", "ops/ufuncs.py", "autograd/loops.py", "kernels/libraries.py")
    texts += [(here.parent / name).read_bytes() for name in others]
    texts += [path.read_bytes() for path in sorted((here.parent / "kernels/vecmath").glob("*.py"))]
    return hashlib.sha256(b"\0".join(texts)).hexdigest()[:12]


@functools.cache
def tapes() -> ModuleType:
    """Return `acquire`, `reset`, `release` and `prepare`, compiled."""
    module = cache.load("tapes", TAPES.format(digest=digest()))
    set_apart(module.acquire, module.release, module.prepare)
    return module


@functools.cache
def entrance() -> ModuleType:
    """Return `enter` and `is_as_entered`, compiled."""
    return cache.load("entrance", ENTRANCE.format(digest=digest()))


@functools.cache
def sweeps(spec: Spec, seeds: int = 1) -> ModuleType:
    """Return `sweep` and `pull` for numbers of this kind, compiled; for several seeds at once where asked."""
    text = SWEEP.format(spec=spec, seeds=seeds, digest=digest(), components=components(spec))
    module = cache.load("native_sweep", text)
    set_apart(module.sweep)
    return module
