"""Long loops on a native tape: a block of it, whose steps are computed again when a sweep comes to it.

The loop runs on numbers without a tape and keeps few states. The sweep goes through the steps backwards, by
the schedule of `tapegrad.autograd.checkpoint_loop`, and records each on a tape of its own. That tape is for
numbers of the same kind, so duals and what is nested in them, that is all higher derivatives, are right.
"""

from __future__ import annotations

import functools
import types as python_types
from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar

import numpy as np
from llvmlite import ir
from numba import njit
from numba.core import cgutils, types
from numba.core.errors import TypingError
from numba.core.imputils import impl_ret_borrowed
from numba.extending import intrinsic, overload

from tapegrad.autograd import loops
from tapegrad.native.analysis.captured import refuse_another_run
from tapegrad.native.arrays.arrays import is_active_array
from tapegrad.native.arrays.overlap import copying
from tapegrad.native.emission.algebra import F64, I64, Emitter, Spec, components
from tapegrad.native.emission.annotations import (
    Builder,
    Code,
    Compiled,
    Context,
    Emission,
    Intrinsic,
    Namespace,
    Signature,
    Type,
    TypingContext,
    Value,
)
from tapegrad.native.library.functions import overload_recorded
from tapegrad.native.loading import checkpoint_loop
from tapegrad.native.numbers.operators import statement, statement_of
from tapegrad.native.numbers.scalar import PASSIVE, Active, is_active, struct, taped
from tapegrad.native.tapes import runtime
from tapegrad.native.tapes.blocks import addressed, came, drop_of, inner_njit, keep, loading, pushed
from tapegrad.native.tapes.memory import get, read, taking, write
from tapegrad.native.tapes.tape import BEFORE, COTANGENTS, KNOWN
from tapegrad.native.twins.compiler import token, twin_of

SHAPE = "the step of a checkpoint_loop returned an array of another shape than the state's"
COUNTS = "checkpoint_loop takes n and slots of 0 or more"
NO_MEMORY = "no memory for the states of a checkpoint_loop"

T = TypeVar("T")


@njit
def comb(n: int, k: int) -> int:
    """A binomial coefficient."""
    k, found = min(k, n - k), 1
    for i in range(k):
        found = found * (n - i) // (i + 1)
    return found


# The schedule is that of Tensors, compiled.
left = njit(python_types.FunctionType(loops._left.__code__, {"comb": comb, "max": max, "min": min}))


# ---------------------------------------------------------------- numbers, with a tape and without


def _frozen(kind: Type) -> Type:
    """The type of an argument that a step may only read."""
    if isinstance(kind, types.Array):
        return types.Array(kind.dtype, kind.ndim, kind.layout, readonly=True)
    return kind


@intrinsic
def frozen(typingctx: TypingContext, x: Type) -> Emission:
    """Return an array that cannot be written to; anything else is itself."""
    kind = _frozen(x)
    return kind(x), lambda cx, b, sig, args: impl_ret_borrowed(cx, b, kind, args[0])


@intrinsic
def tape_of(typingctx: TypingContext, x: Type) -> Emission:
    """Return the address of an active number's tape; 0 of any other's."""

    def code(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Value:
        if not isinstance(x, Active):
            return ir.Constant(I64, 0)
        return builder.extract_value(args[0], components(x.spec) + 1)

    return types.int64(x), code


@intrinsic
def renumbered(typingctx: TypingContext, dtype: Type, x: Type, number: Type, tape: Type) -> Emission:
    """Return a number as one of the kind whose dtype is given, of a statement on a tape."""
    kind = dtype.dtype

    def code(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Value:
        if not isinstance(kind, Active):
            return builder.extract_value(args[1], 0) if isinstance(x, Active) else args[1]
        size = components(kind.spec)
        if isinstance(x, Active):
            values = [builder.extract_value(args[1], k) for k in range(size)]
        else:
            values = [context.cast(builder, args[1], x, types.float64)] + [ir.Constant(F64, 0.0)] * (size - 1)
        return struct(Emitter(context, builder), kind, [*values, args[2], args[3]])

    return kind(dtype, x, types.int64, types.int64), code


@inner_njit
def moved(x, dtype, first, tape):
    """An array as one of numbers whose dtype is given, of statements from `first` on."""
    out = np.empty(x.shape, dtype)
    flat = out.reshape(-1)
    for k, v in enumerate(x.flat):
        flat[k] = renumbered(dtype, v, first + k, tape)
    return out


@inner_njit
def bared(x, dtype):
    """An array as one of numbers that are on no tape."""
    out = np.empty(x.shape, dtype)
    flat = out.reshape(-1)
    for k, v in enumerate(x.flat):
        flat[k] = renumbered(dtype, v, 0, 0)
    return out


@inner_njit
def assigned(out, x):
    """Copy an array of the same shape; Numba's own assignment takes seconds to compile."""
    if x.shape != out.shape:
        raise ValueError(SHAPE)
    flat = out.reshape(-1)
    for k, v in enumerate(x.flat):
        flat[k] = v


@inner_njit
def gathered(x, numbers, first):
    """Gather the statements of an array's numbers; returns the address of their tape."""
    tape = 0
    for k, v in enumerate(x.flat):
        numbers[first + k] = statement_of(v)
        tape |= tape_of(v)
    return tape


# ---------------------------------------------------------------- the loop


def _checked(step: Type, state: Type, args: Type) -> tuple[Compiled, Sequence[Type]]:
    """Return the step's own dispatcher and the types of its further arguments."""
    if not isinstance(step, types.Dispatcher):
        raise TypingError("tapegrad: checkpoint_loop takes a step compiled by tg.njit or numba.njit")
    primal: Compiled = getattr(step.dispatcher, "_tapegrad_of", step.dispatcher)
    refuse_another_run(primal, "checkpoint_loop")
    real = isinstance(state, types.Array) and state.dtype == types.float64
    if not real and not is_active_array(state):
        raise TypingError(f"tapegrad: the state of a checkpoint_loop is an array of float64, found {state}")
    kinds = [] if isinstance(args, (types.Omitted, tuple)) else list(args)
    for kind in kinds:
        number = is_active(kind) or isinstance(kind, (*PASSIVE, types.BaseTuple))
        array = is_active_array(kind) or (isinstance(kind, types.Array) and isinstance(kind.dtype, PASSIVE))
        if not number and not array:
            raise TypingError(
                f"tapegrad: the args of checkpoint_loop are a tuple of numbers and arrays, found {kind}"
            )
    return primal, kinds


def choose(step, state, n, slots, args=()):
    """Return the code of a call with arguments of these types."""
    step = step.dtype if isinstance(step, types.DType) else step  # as a twin has it
    primal, kinds = _checked(step, state, args)
    active = [k for k in (state, *kinds) if is_active(k) or is_active_array(k)]
    if not active:
        return _plain(step.dispatcher, kinds)
    spec = next(k.spec if is_active(k) else k.dtype.spec for k in active)
    return _recorded(primal, spec, tuple(kinds)) if taped(spec) else _plain(step.dispatcher, kinds)


def kept(make: Callable[..., T]) -> Callable[..., T]:
    """Make something for a compiled function once; it lives as long as the function."""

    @functools.wraps(make)
    def made(function: Compiled, *how: Hashable) -> T:
        known = vars(function).setdefault("_tapegrad_loops", {})
        key = (make.__name__, *how)
        if key not in known:
            known[key] = make(function, *how)
        return known[key]

    return made


def _code(text: str, **space: Any) -> Code:
    exec(text, space)
    return space["impl"]


def _plain(called: Compiled, kinds: list[Type]) -> Code:
    """Code of the loop alone."""
    given = "".join(f", frozen(args[{k}])" for k in range(len(kinds)))
    text = f"""def impl(step, state, n, slots, args=()):
    if n < 0 or slots < 0:
        raise ValueError(COUNTS)
    a, b = np.empty_like(state), np.empty_like(state)
    assigned(a, state)
    for _ in range(n):
        assigned(b, called(a{given}))
        a, b = b, a
    return a
"""
    return _code(text, np=np, called=called, frozen=frozen, assigned=assigned, COUNTS=COUNTS)


@kept
def _recorded(primal: Compiled, spec: Spec, kinds: tuple[Type, ...]) -> Code:
    """Code of the loop as a block."""
    bare = (*spec, 0)
    space: Namespace = {
        "np": np, "moved": moved, "bared": bared, "gathered": gathered, "assigned": assigned,
        "statement": statement, "statement_of": statement_of, "tape_of": tape_of,
        "renumbered": renumbered, "keep": keep, "pushed": pushed, "COUNTS": COUNTS, "taped": token(spec),
        "bare": token(bare) if spec else np.float64,
    }  # fmt: skip
    arrays = [k for k, kind in enumerate(kinds) if is_active_array(kind)]
    numbers = [k for k, kind in enumerate(kinds) if is_active(kind)]
    lines = []
    for k, kind in enumerate(kinds):
        if k in arrays:
            lines.append(f"a{k} = bared(args[{k}], bare)")
        elif k in numbers:
            lines += [f"x{k} = statement(args[{k}])", f"a{k} = renumbered(bare, x{k}, 0, 0)"]
        else:
            lines.append(f"a{k} = args[{k}]{'.copy()' if isinstance(kind, types.Array) else ''}")
    size = " + ".join(["state.size", *(f"args[{k}].size" for k in arrays), str(len(numbers))])
    notes = ["tape = gathered(state, numbers, 0)", "at = state.size"]
    for k in arrays:
        notes += [f"tape |= gathered(args[{k}], numbers, at)", f"at += args[{k}].size"]
    for k in numbers:
        notes += [f"numbers[at] = statement_of(x{k})", f"tape |= tape_of(x{k})", "at += 1"]
    given = "".join(f"a{k}, " for k in range(len(kinds)))
    step = twin_of(primal, bare) if spec else copying(primal)
    space["advance"], space["finish"] = _forward(step, len(kinds))
    space["reverse"] = addressed(lambda kind: _reverse_of(kind, primal, spec, kinds))
    space["drop"] = addressed(drop_of)
    text = """def impl(step, state, n, slots, args=()):
    if n < 0 or slots < 0:
        raise ValueError(COUNTS)
    {lines}
    numbers = np.zeros({size}, np.int64)
    {notes}
    depth = min(slots, n) + 2
    states = np.empty((depth,) + state.shape, bare)
    assigned(states[0], bared(state, bare))
    if n == 0:
        flat, out = state.flat, np.empty(state.shape, taped)
        for k in range(state.size):
            out.reshape(-1)[k] = renumbered(taped, flat[k], numbers[k], tape if numbers[k] else 0)
        return out
    marks = np.zeros((depth, 2), np.int64)
    marks[0, 1] = slots
    info = np.zeros(2, np.int64)
    info[0] = n
    known = (states, marks, info, numbers, {given})
    known[2][1] = advance(known, 0, n)
    values = finish(known)
    if tape == 0:
        return bared(values, taped)
    first = pushed(tape, state.size, keep(known), reverse(known), drop(known))
    return moved(values, taped, first + 1, tape)
""".format(lines="\n    ".join(lines), notes="\n    ".join(notes), size=size, given=given)
    return _code(text, **space)


@kept
def _forward(step: Compiled, count: int) -> tuple[Compiled, Compiled]:
    """Return ``advance(known, d, last)``: keep states between the d-th and a step; and ``finish(known)``."""
    given = "".join(f", frozen(known[{4 + k}])" for k in range(count))
    space = {"np": np, "step": step, "left": left, "assigned": assigned, "frozen": frozen}
    advance = f"""def impl(known, d, last):
    states, marks = known[0], known[1]
    while last - marks[d, 0] > 1:
        count = left(last - marks[d, 0], marks[d, 1])
        a, b = states[d].copy(), np.empty_like(states[d])
        for _ in range(count):
            assigned(b, step(a{given}))
            a, b = b, a
        d += 1
        assigned(states[d], a)
        marks[d, 0], marks[d, 1] = marks[d - 1, 0] + count, max(marks[d - 1, 1] - 1, 0)
    return d
"""
    finish = f"""def impl(known):
    a = known[0][known[2][1]].copy()
    b = np.empty_like(a)
    assigned(b, step(a{given}))
    return b
"""
    return inner_njit(_code(advance, **space)), inner_njit(_code(finish, **space))


def _guarded(body: Compiled) -> Intrinsic:
    """Return ``run(inner, known, ct, total)``: the body, whose tape is returned where it raises too."""
    release = runtime.tapes().release

    @intrinsic
    def run(typingctx: TypingContext, inner: Type, known: Type, ct: Type, total: Type) -> Emission:
        kind = types.Dispatcher(body)
        form: Signature = kind.get_call_type(typingctx, (inner, known, ct, total), {})

        def code(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Value:
            overloads = [body.get_compile_result(form), next(iter(release.overloads.values()))]
            context.add_linking_libs([one.library for one in overloads])
            status, _ = context.call_internal_no_propagate(builder, overloads[0].fndesc, form, args)
            context.call_internal(builder, overloads[1].fndesc, overloads[1].signature, [args[0]])
            with cgutils.if_unlikely(builder, status.is_error):
                context.call_conv.return_status_propagate(builder, status)
            return context.get_dummy_value()

        return types.void(inner, known, ct, total), code

    return run


def _recorded_args(kinds: tuple[Type, ...]) -> tuple[str, str]:
    """Return code that puts a step's further arguments on its tape, after the state; and what passes them."""
    lines, at = [], "states[d].size + 1"
    arrays = [k for k, kind in enumerate(kinds) if is_active_array(kind)]
    for k in arrays:
        lines.append(f"b{k} = moved(known[{4 + k}], taped, {at}, inner)")
        at += f" + known[{4 + k}].size"
    for k, kind in enumerate(kinds):
        if is_active(kind):
            lines.append(f"b{k} = renumbered(taped, known[{4 + k}], {at}, inner)")
            at += " + 1"
        elif k not in arrays:
            lines.append(f"b{k} = known[{4 + k}]")
    return "\n        ".join(lines), "".join(f", frozen(b{k})" for k in range(len(kinds)))


def _reverse_steps(primal: Compiled, spec: Spec, kinds: tuple[Type, ...]) -> Code:
    """Return ``(inner, known, ct, total)``: from the last step on, records on tape `inner`, sweeps that.

    `ct` has the cotangents of the state after the step; `total` is to have those of all arguments.
    """
    tapes, size = runtime.tapes(), components(spec)
    numbered, given = _recorded_args(kinds)
    text = f"""def impl(inner, known, ct, total):
    states, marks, info = known[0], known[1], known[2]
    last, d = info[0], info[1]
    info[1] = 0  # another sweep finds the first state only
    m = ct.shape[0]
    while d >= 0:
        d = advance(known, d, last)
        reset(inner, total.shape[0])
        x = moved(states[d], taped, 1, inner)
        {numbered}
        found = step(x{given})
        if found.shape != x.shape:
            raise ValueError(SHAPE)
        if not prepare(inner, size):
            raise MemoryError(NO_MEMORY)
        cotangents = get(inner, COTANGENTS)
        for j, v in enumerate(found.flat):
            number = statement_of(v)
            if number:
                for q in range(size):
                    place = cotangents + 8 * (size * number + q)
                    write(place, read(place) + ct[j, q])
        sweep(inner)
        for j in range(total.shape[0]):
            row = take(cotangents, 1 + j)
            for q in range(size):
                if j < m:
                    ct[j, q] = row[q]
                else:
                    total[j, q] += row[q]
        last = marks[d, 0]
        d -= 1
    for j in range(m):
        for q in range(size):
            total[j, q] = ct[j, q]
"""
    return _code(
        text, taped=token(spec), step=twin_of(primal, spec), moved=moved, renumbered=renumbered,
        frozen=frozen, SHAPE=SHAPE,
        advance=_forward(twin_of(primal, (*spec, 0)) if spec else copying(primal), len(kinds))[0],
        NO_MEMORY=NO_MEMORY, reset=tapes.reset, prepare=tapes.prepare, sweep=runtime.sweeps(spec).sweep,
        take=taking(spec), size=size, get=get, read=read, write=write, COTANGENTS=COTANGENTS,
        statement_of=statement_of,
    )  # fmt: skip


def _reverse_of(kind: Type, primal: Compiled, spec: Spec, kinds: tuple[Type, ...]) -> Code:
    """Return the function ``(tape, block)`` from cotangents of results to those of arguments."""
    run = _guarded(inner_njit(_reverse_steps(primal, spec, kinds)))
    acquire, load, take, size = runtime.tapes().acquire, loading(kind), taking(spec), components(spec)

    def reverse(tape, block):
        known = load(get(block, KNOWN))
        numbers, cotangents, first = known[3], get(tape, COTANGENTS), get(block, BEFORE) + 1
        ct, total = np.empty((known[0][0].size, size)), np.full((numbers.size, size), -0.0)
        any_came = False
        for j in range(ct.shape[0]):
            row = take(cotangents, first + j)
            any_came |= came(row[0])
            for q in range(size):
                ct[j, q] = row[q]
        if any_came:
            inner = acquire()
            if inner == 0:
                raise MemoryError(NO_MEMORY)
            run(inner, known, ct, total)
            for j in range(numbers.size):
                if numbers[j]:
                    for q in range(size):
                        place = cotangents + 8 * (size * numbers[j] + q)
                        write(place, read(place) + total[j, q])
        return 0

    return reverse


overload(checkpoint_loop)(choose)
overload_recorded(checkpoint_loop)(choose)
