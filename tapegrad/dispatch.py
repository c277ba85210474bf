"""From a NumPy call on Tensors to a value and a record.

The fast ways in are made here too, one closure per operator: they commit a record when both operands
are on the current tape already, and leave everything else to `apply`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tapegrad.errors import BorderError, DTypeError, ShapeError
from tapegrad.grad_mode import _enabled
from tapegrad.kernels import abi
from tapegrad.kernels.replay import layout
from tapegrad.ops import forward
from tapegrad.ops.primitive import Elementwise, Primitive
from tapegrad.tape import pool
from tapegrad.tape.tape import Cell, Tape, close, current, local

enabled = _enabled.get
float64, ndarray = np.float64, np.ndarray
TWO, CHAIN, NUMBER = layout.TWO, layout.CHAIN, layout.NUMBER
LARGE = 4096  # bytes, from which on a value counts towards a tape's weight, and may have a vector kernel
POOLED = pool.MIN_BYTES
UNUSABLE = (np.matrix, np.ma.MaskedArray)


class Handle:
    """What a Tensor is to the tape: a value, and where its history stands.

    Attributes
    ----------
    _v
        The value: an ndarray of one or more dimensions, or a NumPy scalar.
    _tape, _at
        Tape and position of the record; without history None, and the `Cell` tapes know it by.
    _extra
        State that few have: gradient, requires_grad of a leaf, what shares its buffer.
    """

    __slots__ = ("__weakref__", "_at", "_extra", "_tape", "_v")

    _v: Any
    _tape: Tape | None
    _at: Any
    _extra: Any


_make: type[Any] = Handle


def use(kind: type[Any]) -> None:
    """Let results be of this class."""
    global _make
    _make = kind


def wrap(value: Any, tape: Tape | None = None, at: Any = None) -> Any:
    """Return a Tensor of a value as the library makes them."""
    out = _make()
    out._v, out._tape, out._at, out._extra = value, tape, at, None
    return out


class Extra:
    """State of a Tensor that few have."""

    __slots__ = ("cells", "exposed", "grad", "requires_grad", "retains_grad", "version")

    def __init__(self) -> None:
        self.requires_grad = False  # of a leaf
        self.exposed = False  # the buffer belongs to somebody who may write to it
        self.retains_grad = False
        self.grad: Any = None
        self.version = 0
        self.cells: list[Cell] = []  # what tapes knew it by before its value or its role changed


def extra(x: Any) -> Extra:
    """Return a Tensor's extra state, made when first asked for."""
    found = x._extra
    if found is None:
        found = x._extra = Extra()
    return found  # type: ignore[no-any-return]


def recall(value: Any, source: Cell | tuple[Tape, int] | None) -> Any:
    """Return a Tensor that goes on from a leaf or a record; without a source, a constant."""
    if isinstance(source, Cell):
        out = wrap(value, None, source)
        state = extra(out)
        state.requires_grad, state.exposed = True, source.shared
        return out
    return wrap(value) if source is None else wrap(value, source[0], 4 * (source[1] + 1))


def is_tensor(x: Any) -> bool:
    return isinstance(x, Handle)


def requires_grad(x: Any) -> bool:
    return isinstance(x, Handle) and (
        x._tape is not None or (x._extra is not None and x._extra.requires_grad)
    )


def value_of(x: Any) -> Any:
    return x._v if isinstance(x, Handle) else x


def normal(x: Any, what: str = "operand") -> Any:
    """Return an ndarray or NumPy scalar as tapes can read it: native, aligned, plain."""
    if isinstance(x, UNUSABLE):
        raise DTypeError(f"{what}: {type(x).__name__} has rules of its own; pass np.asarray(...) of it")
    array = np.asarray(x)
    dtype = array.dtype
    if dtype.char not in abi.CODES:
        raise DTypeError(
            f"{what}: dtype {dtype} has no derivative here; use float64 or float32 "
            "(complex numbers and extended precision are not supported)"
        )
    if array.ndim == 0:
        return array.astype(dtype.newbyteorder("="))[()] if not dtype.isnative else array[()]
    plain = np.dtype(dtype.char)
    if not dtype.isnative or not array.flags.aligned:
        return array.astype(plain, order="K")
    if dtype is not plain:
        array = array.view(plain)
    return array if type(array) is ndarray else array.view(ndarray)


def admit(tape: Tape, x: Any) -> int | None:
    """Return the position of a leaf's first use on the current tape; None for anything else."""
    state = x._extra
    if x._tape is None and state is not None and state.requires_grad and not state.exposed:
        return tape.leaf(x._at, x._v)
    return None


def load(tape: Tape, x: Any) -> int:
    """Return the position of an operand on the current tape, importing it if need be."""
    if isinstance(x, Handle):
        source = x._tape
        if source is tape:
            return int(x._at)
        if source is not None:
            return tape.link(source, x._at, x._v)
        cell = x._at
        state = x._extra
        if cell is None:
            cell = x._at = Cell(x)
        value = x._v
        exposed = state is not None and state.exposed and type(value) is ndarray
        leaf = state is not None and state.requires_grad
        if exposed:  # somebody else can write to the buffer: what is kept is a copy, of each use
            cell.shared = True
            value = normal(value).copy()
            return tape.append(layout.LEAF, 0, 0, value, cell) if leaf else tape.constant(None, value)
        return tape.leaf(cell, value) if leaf else tape.constant(cell, value)
    if type(x) is float or type(x) is int or type(x) is bool:
        return tape.number(float(x))
    value = x if type(x) is float64 else normal(x)
    return tape.constant(None, value.copy() if type(value) is ndarray else value)


def apply(op: Primitive, operands: Sequence[Any], attrs: dict[str, Any] | None = None) -> Any:
    """Compute an op and record it if an operand requires a gradient and grad mode is on."""
    values = [value_of(x) for x in operands]
    try:
        x = values[0]
        if attrs:
            value = op.forward(*values, **attrs)
        elif op.arity == 1 and type(x) is ndarray and x.nbytes > LARGE and isinstance(op, Elementwise):
            value = forward.unary(op, x)
        elif op.arity == 2 and type(x) is ndarray and x.nbytes >= POOLED and isinstance(op, Elementwise):
            value = forward.binary(op, *values)
        else:
            value = op.forward(*values)
    except np.linalg.LinAlgError:
        raise
    except ValueError as error:
        raise ShapeError(_mismatch(op, values, error)) from error
    if type(value) is ndarray and value.ndim == 0:
        value = value[()]
    return record(op, value, operands, attrs)


def record(op: Primitive, value: Any, operands: Sequence[Any], attrs: Any = None) -> Any:
    """Return the Tensor of a computed value, with its history."""
    newest = -1  # serial of the newest operand's tape; 0 for a leaf, -1 where nothing requires a gradient
    if enabled():
        for x in operands:
            if isinstance(x, Handle):
                if x._tape is not None:
                    if x._tape.serial > newest:
                        newest = x._tape.serial
                elif newest < 0 and x._extra is not None and x._extra.requires_grad:
                    newest = 0
    if newest < 0:
        return share(normal(value) if hasattr(value, "dtype") else value, operands)
    if value.dtype.char not in "df":
        raise DTypeError(
            f"{op.name} gave dtype {value.dtype}, which has no derivative here; "
            "use float64 or float32 operands"
        )
    if type(value) is ndarray and value.base is not None and any(exposed(x) for x in operands):
        value = value.copy()  # a view of memory that somebody else can write to
    tape = current()
    if newest > tape.serial:
        close(tape)
        tape = current()
    places = [load(tape, x) for x in operands]
    form = op.recorded_form
    second = 0
    if form == TWO:
        second = places[1]
    elif form == NUMBER:
        second = op.key(attrs)  # type: ignore[no-untyped-call]
    elif form == CHAIN:
        for place in places[:0:-1]:
            second = tape.append(layout.CONS, place, second, None)
    if attrs:
        tape.attrs[len(tape.log) >> 2] = attrs
    return wrap(value, tape, tape.append(op.opcode, places[0], second, value))


def exposed(x: Any) -> bool:
    """Whether somebody else can write to an operand's memory."""
    if isinstance(x, Handle):
        return x._extra is not None and bool(x._extra.exposed)
    return isinstance(x, ndarray)


def share(value: Any, operands: Any) -> Any:
    """Return a Tensor without history; where it views an exposed operand's memory it is exposed too."""
    out = wrap(value)
    if type(value) is ndarray and value.base is not None and any(exposed(x) for x in operands):
        extra(out).exposed = True
    return out


def _mismatch(op: Primitive, values: Sequence[Any], error: Exception) -> str:
    shapes = ", ".join(str(np.shape(v)) for v in values)
    return f"{op.name} of operands of shapes {shapes}: {error}"


def binary(op: Elementwise, operate: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return the function of an op with two operands, the first of them a Tensor."""
    opcode = op.opcode

    def function(a: Any, b: Any) -> Any:
        tape = local.tape or current()
        if enabled():
            first = a._at if a._tape is tape else tape.leaves.get(a._at) or admit(tape, a)
            if type(b) is float:
                second = tape.numbers.get(b) or (first and tape.number(b))
                y = b
            elif type(b) is _make:
                second = b._at if b._tape is tape else tape.leaves.get(b._at) or admit(tape, b)
                if first is None:
                    first = tape.constants.get(a._at)
                elif second is None:
                    second = tape.constants.get(b._at)
                y = b._v
            else:
                return combine(op, a, b)
            log = tape.log
            if first is not None and second is not None and len(log) < tape.limit:
                x = a._v
                try:
                    if type(x) is not float64 and x.nbytes >= POOLED:
                        value = forward.binary(op, x, y)
                    else:
                        value = operate(x, y)
                except ValueError as error:
                    raise ShapeError(_mismatch(op, (x, y), error)) from error
                if type(value) is not float64 and value.nbytes > LARGE:
                    tape.weigh(value.nbytes)
                log += (opcode, first, second, value)
                out = _make()
                out._v = value
                out._tape = tape
                out._at = len(log)
                out._extra = None
                return out
        return combine(op, a, b)

    function.__name__ = op.name
    return function


def unary(op: Elementwise, operate: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return the function of an op with one operand, a Tensor."""
    opcode = op.opcode

    def function(a: Any) -> Any:
        tape = local.tape or current()
        if enabled():
            first = a._at if a._tape is tape else tape.leaves.get(a._at) or admit(tape, a)
            log = tape.log
            if first is not None and len(log) < tape.limit:
                x = a._v
                if type(x) is not float64 and x.nbytes > LARGE:
                    value = forward.unary(op, x)
                    tape.weigh(value.nbytes)
                else:
                    value = operate(x)
                log += (opcode, first, 0, value)
                out = _make()
                out._v = value
                out._tape = tape
                out._at = len(log)
                out._extra = None
                return out
        return apply(op, (a,))

    function.__name__ = op.name
    return function


def reflected(op: Elementwise, operate: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return the function of an op whose first operand, given last, is no Tensor."""
    opcode = op.opcode

    def function(b: Any, a: Any) -> Any:
        tape = local.tape
        if tape is not None and type(a) is float and enabled():
            first = tape.numbers.get(a)
            second = b._at if b._tape is tape else tape.leaves.get(b._at)
            y = b._v
            log = tape.log
            if first is not None and second is not None and len(log) < tape.limit and y.nbytes <= LARGE:
                value = operate(a, y)
                log += (opcode, first, second, value)
                return wrap(value, tape, len(log))
        return combine(op, a, b)

    return function


def combine(op: Primitive, a: Any, b: Any) -> Any:
    """Apply an op with two operands, numbers and arrays among them."""
    operands = []
    for x in (a, b):
        if isinstance(x, (list, tuple)):
            x = sequence(x)
        if isinstance(x, (ndarray, np.generic)):
            foreign = x.dtype.char not in abi.CODES or isinstance(x, UNUSABLE)
            operands.append(normal(x, op.name) if foreign else x)
        elif isinstance(x, (Handle, int, float)):
            operands.append(x)
        elif isinstance(x, complex):
            raise DTypeError(f"{op.name}: complex operands have no derivative here")
        else:
            return NotImplemented
    return apply(op, operands)


def sequence(x: Any) -> Any:
    """Return an operand given as nested lists as an array; Tensors in it would lose their history."""
    if isinstance(x, (list, tuple)):
        if contains_tensor(x):
            raise BorderError(
                "a list of Tensors is no operand: join them with tg.array([...]) or np.stack([...])"
            )
        return np.asarray(x)
    return x


def contains_tensor(x: Any, depth: int = 0) -> bool:
    """Whether nested lists hold a Tensor."""
    if isinstance(x, (list, tuple)):
        if depth > 64:
            raise ShapeError("lists nested more than 64 deep are no array")
        return any(contains_tensor(item, depth + 1) for item in x)
    return isinstance(x, Handle)
