"""From a NumPy call on Tensors to a value and a record."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar

import numpy as np

from tapegrad.config import guard_setting
from tapegrad.core.base import (
    H,
    Handle,
    Operand,
    alias_of,
    array_of,
    extra,
    has_tangent,
    is_expected,
    join,
    note_copied,
    recall,
    refresh_history,
    requires_grad,
    value_of,
    wrap,
)
from tapegrad.core.expected import Expected, expected
from tapegrad.core.grad_mode import Mode, Packing, _enabled, in_force
from tapegrad.core.notes import comparing
from tapegrad.core.storage import DUAL, OPEN, STALE
from tapegrad.errors import BorderError, DTypeError, GradientError, ShapeError, UnsupportedOpError
from tapegrad.kernels import abi
from tapegrad.kernels.replay import layout
from tapegrad.ops import forward
from tapegrad.ops.primitive import BY_OPCODE, Attributes, Linear, Primitive
from tapegrad.tape import pool
from tapegrad.tape.record import Position, slot
from tapegrad.tape.tape import LARGE, Cell, Tape, TapeClosed, checksum, close, current, local

P = ParamSpec("P")
R = TypeVar("R")
enabled = _enabled.get
float64, ndarray, DOUBLE = np.float64, np.ndarray, np.dtype(float)
TWO, CHAIN, NUMBER = layout.TWO, layout.CHAIN, layout.NUMBER
COPIED = 1 << 14  # bytes up to which an array that others can write to is copied
NESTED = 64  # lists in lists in what may be an array
UNUSABLE = (np.matrix, np.ma.MaskedArray)
NUMBERS = frozenset((float, int, bool, complex))
# Of dtypes that are equal, those that compiled code knows. Others come from ``newbyteorder``, as one reads
# files of the other byte order, or have metadata; NumPy gives them to results.
PLAIN = {char: np.dtype(char) for char in abi.CODES}


def as_tape_value(x: Operand, what: str = "operand") -> np.ndarray:
    """Return an ndarray or NumPy scalar as tapes can read it: native, aligned, plain."""
    if type(x) is ndarray and x.dtype is DOUBLE and x.ndim and x.flags.aligned:
        return x
    if type(x) is float:
        return float64(x)
    if isinstance(x, UNUSABLE):
        raise DTypeError(f"{what}: {type(x).__name__} has rules of its own; pass np.asarray(...) of it")
    array = np.asarray(x)
    dtype = array.dtype
    if dtype.char not in abi.CODES:
        of = f" (of a {type(array[()]).__name__})" if dtype.char == "O" and array.ndim == 0 else ""
        raise DTypeError(
            f"{what}: dtype {dtype}{of} cannot take part in differentiation; use numbers, such as float64"
        )
    if array.ndim == 0:
        return array.astype(dtype.newbyteorder("="))[()] if not dtype.isnative else array[()]
    plain = PLAIN[dtype.char]
    if not dtype.isnative or not array.flags.aligned:
        return array.astype(plain, order="K")
    if dtype is not plain:
        array = array.view(plain)
    return array if type(array) is ndarray else array.view(ndarray)


def operand(x: Operand, what: str) -> Any:
    """Return an operand as it is, unless it is an array that NumPy's result would take its kind from."""
    if isinstance(x, ndarray):
        if type(x) is not ndarray or x.dtype is not PLAIN.get(x.dtype.char):
            return as_tape_value(x, what)
    elif isinstance(x, np.generic) and x.dtype.char not in abi.CODES:
        return as_tape_value(x, what)
    return x


def position_of_leaf(tape: Tape, x: Handle) -> Position | None:
    """Return the position of a leaf's first use on the current tape; None for anything else."""
    state = x._extra
    if x._tape is None and state is not None and state.requires_grad and not state.exposed:
        return tape.leaf(x._at, x._v)
    return None


def import_operand(tape: Tape, x: Operand) -> Position:
    """Return the position of an operand on the current tape, importing it if need be."""
    if isinstance(x, Handle):
        source = x._tape
        if source is STALE:
            refresh_history(x)
            source = x._tape
        if source is tape:
            return int(x._at)
        if source is not None:
            return tape.link(source, x._at, x._v)
        cell, value = x._at, x._v  # of one moment
        state = x._extra
        if cell is None:
            cell = x._at = Cell(x)
        leaf = state is not None and state.requires_grad
        if is_externally_writable(x):  # since it was asked; who gives it out later sees that this holds it
            raise TapeClosed
        if state is not None and state.inference:
            return tape.constant(None, value)  # unknown to the tape, so that each use is looked at
        return tape.leaf(cell, value) if leaf else tape.constant(cell, value)
    if type(x) is float or type(x) is int or type(x) is bool:
        return tape.number(float(x))
    return tape.constant(None, x if type(x) is float64 else as_tape_value(x))


def secure(tape: Tape, op: Primitive, operands: Sequence[Operand], q: int) -> Position:
    """As `import_operand`, for operand q in memory that others can write to, from which the tape is safe."""
    x, cell = operands[q], None
    if isinstance(x, Handle):
        if x._extra.requires_grad:
            cell = x._at
            cell.shared = True
        x = x._v
    value = as_tape_value(x)
    weight = value.nbytes
    if weight > LARGE and not _read(op, operands, q):
        value, weight = pool.shadow(value), 0
    elif weight <= COPIED:
        value = value.copy()
    elif guard_setting() == "off":
        value, weight = value.view(), weight // layout.LENT
    elif value.flags.forc and guard_setting() == "checksum":
        return tape.guard(cell, value)
    else:
        value = value.copy()
    tape.weigh(weight)
    return tape.append(layout.CONST if cell is None else layout.LEAF, 0, 0, value, cell)


def _read(op: Primitive, operands: Sequence[Operand], q: int) -> bool:
    """Whether a derivative reads the value of operand q."""
    return any(requires_grad(x) and op.masks[min(k, 2)] >> min(q, 2) & 1 for k, x in enumerate(operands))


def apply(op: Primitive, operands: Sequence[Operand], attrs: Attributes | None = None) -> Handle:
    """Compute an op and record it if an operand requires a gradient and grad mode is on."""
    mode = enabled()
    if type(mode) is Mode:
        if mode.lines is not None or mode.profile is not None:
            out: Handle = watch(op, operands, _applied, op, operands, attrs)
            return out
        known = expect(op, operands, attrs)
        if known is not None:
            return known
        if mode.matcher is not None:
            mode.matcher.applying(op, operands)
            try:
                return _applied(op, operands, attrs)
            finally:
                mode.matcher.applied()
    return _applied(op, operands, attrs)


def expect(
    op: Primitive, operands: Sequence[Operand], attrs: Attributes | None = None, placed: str = ""
) -> Handle | None:
    """The Tensor of what an op gives, if a program at work expects it.

    Where it is not what the op gives by itself, it is `placed` as "copied", in memory of its own, or
    "read-only".
    """
    mode = enabled()
    if type(mode) is Mode and mode.matcher is not None:
        return mode.matcher.expect(op, operands, attrs, placed)
    return None


def watch(op: Primitive, operands: Sequence[Operand], function: Callable[..., Any], *args: Any) -> Any:
    """Call what applies an op, and tell who notes lines or times; if no more is asked, in the mode True."""
    mode, out = enabled(), None
    lines, profile = mode.lines, mode.profile  # type: ignore[union-attr]
    for x in operands:
        if isinstance(x, Handle) and x._tape is STALE:
            refresh_history(x)
    alone = mode.plain and not OPEN  # type: ignore[union-attr]
    begin = 0 if profile is None else profile.now()
    try:
        try:
            if alone:
                _enabled.set(True)
            out = function(*args)
        finally:
            _enabled.set(mode)
    finally:
        _enabled.set(mode)  # an interrupt may have come as the other was about to be called
        if profile is not None and out is not NotImplemented:
            profile.note_operation(op, operands, out, begin)
    if alone and lines is not None and isinstance(out, Handle) and out._tape is not None:
        lines.note(out._tape, out._at, op, out._v, operands)
    return out


def timed(name: str | None = None) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate what records without `apply`: its calls are events of a profile at work.

    The name is that of the first argument if none is given.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def called(*args: P.args, **kwargs: P.kwargs) -> R:
            mode = enabled()
            if type(mode) is not Mode or mode.profile is None:
                return function(*args, **kwargs)
            with mode.profile.event(name or getattr(args[0], "__name__", ""), args):
                return function(*args, **kwargs)

        return called

    return decorate


def _applied(
    op: Primitive, operands: Sequence[Operand], attrs: Attributes | None, is_quiet: bool = False
) -> Handle:
    """Compute an op and record it; errors of numbers are not reported where they were before (`is_quiet`)."""
    if len(operands) == 1 and isinstance(operands[0], Handle):
        values = [operands[0]._v]
    else:
        operands = [x if isinstance(x, Handle) else operand(x, op.name) for x in operands]
        values = [x._v if isinstance(x, Handle) else x for x in operands]
    try:
        if is_quiet:
            with np.errstate(all="ignore"):
                value = forward.value(op, values, attrs)
        else:
            value = forward.value(op, values, attrs)
    except (np.linalg.LinAlgError, UnsupportedOpError):
        raise
    except ValueError as error:
        raise ShapeError(describe_mismatch(op, values, error)) from error
    except TypeError as error:
        kinds = ", ".join(str(np.result_type(v)) for v in values)
        raise DTypeError(f"{op.title} of operands of dtypes {kinds}: {error}") from error
    of: Any = values[0]
    copied = False
    if type(of) is not ndarray and isinstance(op, Linear) and len(values) == 1:
        value, of, copied = _seen_anew(op, value, operands[0], attrs)
    place = None
    if type(value) is ndarray and value.ndim == 0:
        place = value if len(values) == 1 and is_view_of(value, of) else None
        value = value[()]
    out = record_natively(op, value, operands, attrs, values)
    if out is None:
        packing = in_force("packing")
        mark = None if packing is None else packing.mark()
        out = _matched(op, value, operands, attrs)
        if out is None and _have(operands, values):
            out = _unmatched(op, value, operands, attrs)
        if out is None or not _have(operands, values):
            # The call has left its program, whose buffers these were, or a finalizer has written to one: its
            # history is another now. Or another thread has given one out.
            if packing is not None:
                packing.forget(mark)
            return _applied(op, operands, attrs, True)
    if expected and type(out._at) is Expected:
        return out
    if place is not None:
        return join_number(operands[0], out, of, place)
    if copied:
        return note_copied(out, operands[0])
    if (
        len(values) == 1
        and type(value) is ndarray
        and (value.base is not None or value is of)
        and is_view_of(out._v, of)
        and isinstance(operands[0], Handle)
    ):
        join(operands[0], out, of)
    return out


def _seen_anew(op: Primitive, value: Any, x: Operand, attrs: Attributes | None) -> tuple[Any, Any, bool]:
    """What an op gives of a 0-d Tensor, as a view if that is an array; and what it sees of that.

    Of a number there is a copy only, and whether an array would have a view there, with axes.
    """
    of = array_of(x) if isinstance(x, Handle) else None
    if type(of) is not ndarray:
        probe = np.empty((), value.dtype) if value.ndim else None
        return value, of, probe is not None and is_view_of(forward.value(op, [probe], attrs), probe)
    return forward.value(op, [of], attrs), of, False


def join_number(x: Any, out: H, of: np.ndarray, place: np.ndarray) -> H:
    """As `join`, of an element of what x has seen of its memory; a copy where others write to that."""
    if not isinstance(x, Handle):
        return out
    if out._tape is not None and x._extra is not None and x._extra.exposed:
        return note_copied(out, x)
    return join(x, out, of, place=place)


def _have(operands: Sequence[Operand], values: Sequence[Operand]) -> bool:
    """Whether operands still have these values."""
    return all(value_of(x) is known for x, known in zip(operands, values, strict=True))


def record_natively(
    op: Primitive, value: Operand, operands: Sequence[Operand], attrs: Attributes | None,
    values: Sequence[Operand] | None = None,
) -> Handle | None:  # fmt: skip
    """As `record`, in compiled code; None where Python is to do it, as where the operands' values are others.

    Replaced by `core.compiled_methods`.
    """


def record(
    op: Primitive, value: Operand, operands: Sequence[Operand], attrs: Attributes | None = None
) -> Handle:
    """Return the Tensor of a computed value, with its history."""
    out = record_natively(op, value, operands, attrs)
    return _record(op, value, operands, attrs) if out is None else out


def _record(op: Primitive, value: Operand, operands: Sequence[Operand], attrs: Attributes | None) -> Handle:
    """As `record`, in Python: the Tensor that a program at work has for the result, or a new record's."""
    known = _matched(op, value, operands, attrs)
    return _unmatched(op, value, operands, attrs) if known is None else known


def _matched(
    op: Primitive, value: Operand, operands: Sequence[Operand], attrs: Attributes | None
) -> Handle | None:
    """The Tensor that a program at work has for a result; if it has none, the call may leave it."""
    mode = enabled()
    if type(mode) is Mode and mode.matcher is not None:
        return mode.matcher.match(op, value, operands, attrs)
    return None


def _unmatched(
    op: Primitive, value: Operand, operands: Sequence[Operand], attrs: Attributes | None
) -> Handle:
    """The Tensor of a new record, of which a program that is learned is told."""
    matcher = comparing()
    out = _record_anew(op, value, operands, attrs)
    if matcher is not None and out._tape is None:
        matcher.note_plain(op, operands, attrs, out)
    return out


def _record_anew(op: Primitive, value: Any, operands: Sequence[Operand], attrs: Attributes | None) -> Handle:
    mode = enabled()
    newest = -1  # serial of the newest operand's tape; 0 for a leaf, -1 where nothing requires a gradient
    foreign = False  # whether there may be memory that others can write to
    frozen = False  # whether there are results of inference mode
    if not mode:
        newest = DUAL.serial if OPEN and any(has_tangent(x) for x in operands) else -1
    else:
        for x in operands:
            if isinstance(x, Handle):
                source, state = x._tape, x._extra
                if source is not None:
                    if source is STALE:
                        refresh_history(x)
                        source = x._tape
                    if source is not None and source.serial > newest:
                        newest = source.serial
                elif state is not None:
                    if newest < 0 and state.requires_grad:
                        newest = 0
                    foreign = foreign or state.shown is not None
                    frozen = frozen or state.inference
                    if state.volatile:
                        return wrap_without_history(
                            as_tape_value(value) if hasattr(value, "dtype") else value, operands
                        )
            elif isinstance(x, ndarray):
                foreign = True
    if newest < 0:
        return wrap_without_history(as_tape_value(value) if hasattr(value, "dtype") else value, operands)
    if value.dtype.char not in abi.GRADIENT and not _is_traced(mode):
        raise DTypeError(
            f"{op.name} gave dtype {value.dtype}, which has no derivative; "
            "use operands of a complex dtype or of a floating-point one of 32 bits or more"
        )
    if frozen:
        _refuse_inference(op, operands)
    if foreign and any(is_externally_writable(x) and is_view_of(value, value_of(x)) for x in operands):
        value = value.copy()  # a view of memory that somebody else can write to
    if newest == DUAL.serial:
        return _recorded_by_dual(op, value, operands, attrs)
    packing = mode.packing if type(mode) is Mode else None
    packed = None if packing is None else packing.save(op, operands, value)
    while True:
        try:
            tape, at = _commit(op, value, operands, attrs, newest, foreign, packing, packed)
            break
        except TapeClosed:
            foreign = True  # since then, perhaps
    if type(mode) is bool:
        return wrap(value, tape, at)
    return _wrapped(mode, op, value, operands, attrs, tape, at)


def _wrapped(
    mode: Mode, op: Primitive, value: Operand, operands: Sequence[Operand], attrs: Attributes | None,
    tape: Tape, at: int,
) -> Handle:  # fmt: skip
    """The Tensor of a record just made, of which a mode takes note."""
    if mode.lines is not None:
        mode.lines.note(tape, at, op, value, operands)
    matcher = mode.matcher
    if matcher is None:
        return with_metadata(wrap(value, tape, at), operands)
    out = matcher.wrap(value, tape, at)
    matcher.note(op, operands, attrs, out)
    return with_metadata(out, operands)


def _is_traced(mode: Mode | bool) -> bool:
    """Whether a rule is at work whose steps are noted, those that give whole numbers too."""
    return type(mode) is Mode and mode.forward is not None and bool(mode.forward.of_any_dtype)


def _recorded_by_dual(
    op: Primitive, value: Operand, operands: Sequence[Operand], attrs: Attributes | None
) -> Handle:
    """As `record`, for operands of which one carries a tangent: its `Dual` knows what becomes of tangents."""
    for x in operands:
        if isinstance(x, Handle) and x._tape is DUAL:
            found: Handle = x._at.record(op, value, operands, attrs)
            return found
    return record(op, value, operands, attrs)  # another thread closed the level


def _commit(
    op: Primitive, value: Operand, operands: Sequence[Operand], attrs: Attributes | None, newest: int,
    foreign: bool, packing: Packing | None, packed: Any,
) -> tuple[Tape, int]:  # fmt: skip
    """Commit a record of these operands, imported where need be, to a tape newer than theirs."""
    new_tape: Callable[[], Tape] = current if packing is None else packing.current
    tape = new_tape()
    if newest > tape.serial:
        close(tape)
        tape = new_tape()
    places = []
    for q, x in enumerate(operands):
        if isinstance(x, Handle) and x._tape is tape:
            places.append(x._at)
            continue
        at = None if packing is None else packing.load(tape, x)
        if at is None:
            at = (
                secure(tape, op, operands, q)
                if foreign and is_externally_writable(x)
                else import_operand(tape, x)
            )
        places.append(at)
    form = op.recorded_form
    second = 0
    if form == TWO:
        second = places[1]
    elif form == NUMBER:
        second = op.key(attrs)
    elif form == CHAIN:
        for place in places[:0:-1]:
            second = tape.append(layout.CONS, place, second, None)
    if packing is not None:
        at = packing.commit(tape, op, places, second, value, packed)
    else:
        at = tape.commit(op, places, [value_of(x) for x in operands], second, value)
    if attrs:
        tape.attrs[slot(at)] = attrs
    return tape, at


def with_metadata(out: H, operands: Sequence[Operand], apart: bool = False, made: bool = True) -> H:
    """Note on a Tensor what it has from its operands and what the mode wants to be known; returns it.

    `apart`: the history of the operands is not the result's, though operations are recorded. One that was not
    `made` here, but written to, takes part in differentiation as it did.
    """
    mode = enabled()
    for x in operands:
        if isinstance(x, Handle) and not is_expected(x) and x._extra is not None and x._extra.volatile:
            extra(out).volatile = True
    if type(mode) is Mode:
        if mode.inference and made and (out._extra is None or out._extra.storage is None):
            extra(out).inference = True  # a view is as its base
        if mode.forward is not None:
            mode.forward.note(out, operands, apart or not mode.recording)
    return out


def tensors_in(x: Any) -> list[Any]:
    """The Tensors in nested lists, tuples and dicts."""
    if isinstance(x, Handle):
        return [x]
    parts = x.values() if isinstance(x, dict) else x if isinstance(x, (list, tuple)) else ()
    return [found for part in parts for found in tensors_in(part)]


def _refuse_inference(op: Primitive, operands: Sequence[Operand]) -> None:
    for q, x in enumerate(operands):
        if isinstance(x, Handle) and x._extra is not None and x._extra.inference and _read(op, operands, q):
            raise GradientError(
                f"the derivative of {op.name} would read its operand {q} (shape {x._v.shape}), a result of "
                "inference_mode, which takes no part in differentiation; use a copy made by clone()"
            )


def origin(x: Handle) -> tuple[Primitive | None, list[Handle], Attributes | None]:
    """Return the op that a result comes from, its operands and its attributes.

    An operand whose value is not kept has None for it. An import, a constant and a result of any number of
    operands come from nothing.
    """
    tape = x._tape
    if tape is DUAL and has_tangent(x):
        return x._at.origin(x)  # type: ignore[no-any-return]
    tape = x._tape
    if tape is None or tape is STALE:
        return None, [], None
    k, log = slot(x._at), tape.log
    columns = None if tape is local.tape else tape.sealed()
    op = BY_OPCODE[columns.opcode(k) if columns else log[4 * k]]
    if op is None or not op.arity:
        return None, [], None
    if columns or op.recorded_form == CHAIN:
        places = (columns or tape).operands(k, op.recorded_form)
    else:
        places = [slot(at) for at in log[4 * k + 1 : 4 * k + 1 + op.arity]]
    found = []
    for j in places:
        opcode = columns.opcode(j) if columns else log[4 * j]
        value = columns.values[j] if columns else None if 4 * (j + 1) in tape.shadows else log[4 * j + 3]
        imported = opcode in (layout.LEAF, layout.LINK)
        source = None if opcode == layout.CONST else tape.source(j) if imported else (tape, j)
        found.append(recall(value, source))
    return op, found, tape.attrs.get(k)


def is_externally_writable(x: Any) -> bool:
    """Whether others can write to an operand's memory."""
    if isinstance(x, Handle):
        if is_expected(x):  # nobody has had its memory
            return False
        return x._extra is not None and x._extra.exposed and type(x._v) is ndarray
    return isinstance(x, ndarray)


def kept_apart(value: np.ndarray) -> tuple[np.ndarray, int | None]:
    """An array that others can write to as it is kept: a copy, or itself; a checksum where it is compared."""
    if guard_setting() == "checksum" and value.nbytes > COPIED and value.flags.forc:
        return value, checksum(value)
    return value if guard_setting() == "off" else value.copy(order="K"), None


def alias_apart(x: Handle) -> tuple[Handle, int | None]:
    """A handle with a Tensor's value, kept apart from others who can write to it, and history; a checksum."""
    out, known = alias_of(x), None
    if is_externally_writable(x):
        out._v, known = kept_apart(x._v)
    return out, known


def is_view_of(value: Operand | None, x: Operand | None) -> bool:
    """Whether NumPy made an array as a view of another one's memory, or gave that back."""
    if type(value) is not ndarray or not isinstance(x, ndarray):
        return False
    base = value.base
    return value is x or (base is not None and (base is x or base is x.base))


def wrap_without_history(
    value: Operand, operands: Sequence[Operand], sources: Sequence[Handle] | None = None,
    values: Sequence[Operand] | None = None,
) -> Handle:  # fmt: skip
    """Return a Tensor without history; where it views an exposed operand's memory it is exposed too.

    `sources` are what its values depend on, if not on the operands; `values` those that the operands had.
    """
    out = wrap(value)
    for q, x in enumerate(operands):
        if isinstance(x, Handle):
            of: Any = x._v if values is None else values[q]
            if is_view_of(value, of):
                join(x, out, of)
                break
        elif is_view_of(value, x):
            extra(out).shown = True
    return with_metadata(out, operands if sources is None else sources)


def describe_mismatch(op: Primitive, values: Sequence[Any], error: Exception) -> str:
    """What an error of NumPy's about shapes is told as."""
    return misfit(op.name, [np.shape(v) for v in values], error)


def misfit(name: str, shapes: Sequence[tuple[int, ...]], error: Exception) -> str:
    """What is said of operands that NumPy does not take together."""
    words = str(error)
    if "broadcast" in words:
        words = "they broadcast if axes, from the last on, are equal or one is 1; x[:, None] adds an axis"
    return f"{name} of operands of shapes {', '.join(map(str, shapes))}: {words}"


class _OfPandas(type):
    def __instancecheck__(cls, x: object) -> bool:
        return hasattr(type(x), "__pandas_priority__")


class Labelled(metaclass=_OfPandas):
    """Series, frames and indices of pandas: operands by their values in order, whatever their labels."""


def sequence(x: Any) -> Any:
    """Return an operand that is nested lists, or pandas', as an array; Tensors in it lose their history."""
    if isinstance(x, (Handle, ndarray)) or type(x) in NUMBERS:
        return x
    if isinstance(x, (list, tuple)):
        if contains_tensor(x):
            raise BorderError(
                "a list of Tensors is no operand: join them with tg.array([...]) or np.stack([...])"
            )
        return np.asarray(x)
    return np.asarray(x) if isinstance(x, Labelled) else x


def contains_tensor(x: Operand, depth: int = 0) -> bool:
    """Whether nested lists hold a Tensor."""
    if isinstance(x, (list, tuple)):
        if depth >= NESTED:
            raise ShapeError(f"lists nested more than {NESTED} deep are no array")
        return any(contains_tensor(item, depth + 1) for item in x)
    return isinstance(x, Handle)
