"""A sweep of one open tape in one compiled call: the common case, of a result just computed."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from tapegrad.engine.sweep import at_address, descriptor, spend
from tapegrad.errors import KernelError
from tapegrad.kernels import abi, table
from tapegrad.kernels.replay import layout
from tapegrad.kernels.state import State, give, take
from tapegrad.ops.primitive import BY_OPCODE
from tapegrad.tape.tape import Claim, Columns, Tape, checksum, leave


def at_once(
    tape: Tape,
    root: int,
    seed: Any,
    sinks: list[int],
    likes: list[Any],
    retain: bool,
    inspect: Any = None,
    profile: Any = None,
) -> list[Any] | None:
    """Sweep the current tape in one compiled call, or return None where that cannot be.

    For a tape that links to no other, one root (without a seed of one element), sinks that are all
    reached, and what others can write to unchanged. Rules in Python interrupt the call, but where `inspect`
    or `profile` sees them; not either where something is nan that `inspect` wants to see. Positions are
    handles'; results are arrays and scalars, or None where rules gave none, `likes` values of their shape and
    dtype.
    """
    log = tape.log  # held: another thread, or a finalizer, may seal the tape from here on
    n = len(log) >> 2
    if len(sinks) > layout.QUICK_INPUTS or n == 0 or not abi.native():
        return None
    if tape.guards and any(checksum(log[4 * k + 3]) != known for k, known in tape.guards.items()):
        return None  # perhaps nothing that this sweep reads
    if tape.calls and any(c.released or BY_OPCODE[log[4 * k]].gathers for k, c in tape.calls.items()):
        return None
    leave(tape)
    state = take()
    if n > state.n or state.known is not table.version[0]:
        state.fit(n)
    view = state.view
    view[layout.RECORDS], view[layout.FREED] = n, state.unfreed_at
    words = tape.described  # held, as the log
    view[layout.DESCRIBED] = id(words)
    if seed is None:
        view[layout.SEED] = 0
    else:
        array = type(seed) is np.ndarray
        view[layout.SEED] = abi.address(seed) if array else id(seed) + layout.SCALAR_AT
    if inspect is not None:
        view[layout.CHECK] = inspect.check_nan
    state.seeds[0] = (root >> 2) - 1
    view[layout.SINK_COUNT] = len(sinks)
    outs: list[Any] = []
    for q, at in enumerate(sinks):
        state.sinks[q] = (at >> 2) - 1
        like = likes[q]
        if type(like) is np.ndarray:
            outs.append(np.empty(like.shape, like.dtype))
            state.result_arrays[q] = id(outs[q])
        else:
            outs.append(None)
            state.result_arrays[q] = 0
    freed = None if retain else np.zeros(len(log) >> 2, np.uint8)
    if layout.BOUNDS:
        state.look(log, outs, [freed, seed])
    status, ruled = layout.PYTHON, False
    stamps = None if profile is None else profile.stamps(n, view)
    marks = 0 if retain else id(freed)
    if tape.freed is None and not tape.claims:
        status = state.enter(layout.AT_ONCE, state.at, id(log), marks)
    if status == layout.UNDESCRIBED:
        status = layout.PYTHON
        columns = Columns(state.buffers[layout.SEALING], n, log[3::4])
        for k in state.pending[: view[layout.PENDING_COUNT]]:
            state.descriptors[k] = descriptor(tape, columns, k)
        if tape.freed is None and not tape.claims:  # nobody has swept it meanwhile
            status = state.enter(layout.AT_ONCE, state.at, 0, marks)
    if inspect is not None or stamps is not None:
        view[layout.STAMPS] = view[layout.CHECK] = 0
    ruled = status == layout.RULED
    if ruled:
        _claimed(tape, log, state, not retain)
        status = layout.DONE
    if status == layout.DONE:
        if stamps is not None:
            columns = state.buffers[layout.SEALING]  # the next sweep's, so a copy is taken
            columns = (columns if profile.with_shapes else columns[:n]).copy()
            profile.swept(tape.serial, n, columns, bytes(state.flags[:n]), stamps)
        for q, like in enumerate(likes):
            if type(like) is np.float64:
                outs[q] = np.float64(state.numbers[2 * q])
            elif outs[q] is None:
                outs[q] = state.result(q, like.dtype)
        if ruled:
            for q in range(len(sinks)):
                if state.flags[state.sinks[q]] & layout.FRESH:  # no cotangent came this way
                    outs[q] = None
        if not retain:
            if ruled or tape.freed is not None:
                spend(tape, state, n, freed)
            elif view[layout.SPENT]:
                tape.freed, tape.held = freed, None
    give(state)
    return outs if status == layout.DONE else None


def _claimed(tape: Tape, log: list[Any], state: State, frees: bool) -> None:
    """Run a sweep on as `_interrupted` does, and claim the tape meanwhile: a rule may sweep it, too."""
    claim = Claim(bytes(state.flags[: state.view[layout.RECORDS]]), frees)
    tape.claim(claim)
    try:
        _interrupted(tape, log, state)
    finally:
        tape.release(claim)


@np.errstate(all="ignore")
def _interrupted(tape: Tape, log: list[Any], state: State) -> None:
    """Run a sweep of an open tape on to its end, from a rule in Python that it has come to."""
    view, flags = state.view, state.flags
    status = layout.PYTHON
    while status == layout.PYTHON:
        k = view[layout.POSITION]
        op, value = BY_OPCODE[log[4 * k]], log[4 * k + 3]
        places, more = [log[4 * k + 1]], log[4 * k + 2]
        if op.recorded_form == layout.TWO:
            places.append(more)
        while op.recorded_form == layout.CHAIN and more:
            places.append(log[more - 3])
            more = log[more - 2]
        wanted = [q for q, at in enumerate(places) if flags[(at >> 2) - 1] & layout.NEED]
        ct: Any
        if type(value) is np.float64:
            ct = np.float64(ctypes.c_double.from_address(state.cotangents[k]).value)
        else:
            ct = at_address(state.cotangents[k], value.shape, value.dtype)
        found = op.vjp(ct, value, [log[at - 1] for at in places], tape.attrs.get(k, {}), wanted)
        for q, part in found.items():
            like = log[places[q] - 1]
            if type(like) is type(part) is np.float64 and not layout.BOUNDS:
                at = id(part) + layout.SCALAR_AT
            else:
                fits = type(part) is np.ndarray and part.dtype is like.dtype and part.shape == like.shape
                if not fits or not part.flags.c_contiguous:
                    part = np.real(part) if like.dtype.kind == "f" else part
                    part = np.ascontiguousarray(part, like.dtype).reshape(like.shape)
                at = abi.address(part)
            if state.run(layout.DEPOSIT, (places[q] >> 2) - 1, at) != layout.DONE:
                raise MemoryError(f"no memory for a cotangent of shape {part.shape}")
        view[layout.FINISH] = 1
        status = state.run(layout.RUN)
        while status == layout.PAUSED:
            status = state.run(layout.RUN)
    if status == layout.MEMORY:
        raise MemoryError(f"no memory for the cotangents of {BY_OPCODE[log[4 * view[layout.POSITION]]]}")
    if status != layout.DONE:
        raise KernelError(f"the kernel of {BY_OPCODE[log[4 * view[layout.POSITION]]]} failed")
