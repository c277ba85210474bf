"""Tensor's operators in Python, one closure each: the quick ways to a record.

They commit it when all operands are on the current tape, and leave everything else to `dispatch.apply`. Where
compiled code can be used it takes their place (`compiled_methods`), and calls them for what it does not know.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tapegrad.core import base
from tapegrad.core.base import (
    Handle,
    Operand,
    TensorOrArray,
    decide,
    is_tensor,
    ndim_of,
    shape_of,
    value_of,
    wrap,
)
from tapegrad.core.conversion import copy
from tapegrad.core.dispatch import (
    DOUBLE,
    Labelled,
    apply,
    as_tape_value,
    describe_mismatch,
    enabled,
    misfit,
    position_of_leaf,
    sequence,
    with_metadata,
)
from tapegrad.core.functions import UFUNCS, implements
from tapegrad.core.notes import expect_flat, is_compared, note_flat, note_warning
from tapegrad.core.storage import OPEN, STALE
from tapegrad.errors import ShapeError
from tapegrad.kernels.replay import layout
from tapegrad.ops import REGISTRY, forward
from tapegrad.ops.primitive import Elementwise, Primitive
from tapegrad.tape.tape import LARGE, Tape, TapeClosed, current, local

float64, ndarray = np.float64, np.ndarray
# of operators; others know better
OPERANDS = (Handle, ndarray, np.generic, int, float, complex, list, tuple, Labelled)


def binary(op: Elementwise, operate: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return the function of an op with two operands, the first of them a Tensor."""

    def function(a: Handle, b: Operand) -> Any:
        mode = enabled()
        if not mode:
            out = _unrecorded(op, operate, mode, (a, b))
            return combine(op, a, b) if out is None else out
        tape = local.tape or current()
        if mode is True:
            x = a._v  # first: another thread that gives a out exchanges it, and where it stands
            try:
                first = a._at if a._tape is tape else tape.leaves.get(a._at) or position_of_leaf(tape, a)
                if type(b) is float:
                    second = tape.numbers.get(b) or (first and tape.number(b))
                    y = b
                elif type(b) is base._make:
                    y = b._v
                    second = b._at if b._tape is tape else tape.leaves.get(b._at) or position_of_leaf(tape, b)
                    if first is None:
                        first = tape.constants.get(a._at)
                    elif second is None:
                        second = tape.constants.get(b._at)
                else:
                    return combine(op, a, b)
            except TapeClosed:
                return combine(op, a, b)
            same = a._v is x and (y is b or b._v is y)
            if same and first is not None and second is not None and len(tape.log) < tape.limit:
                try:
                    if type(x) is not float64 and x.nbytes > LARGE:
                        value = forward.binary(op, x, y)
                    else:
                        value = operate(x, y)
                except ValueError as error:
                    raise ShapeError(describe_mismatch(op, (x, y), error)) from error
                return _committed(op, tape, (first, second), (x, y), value, (a, b))
        return combine(op, a, b)

    function.__name__ = op.name
    return function


def unary(op: Elementwise, operate: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return the function of an op with one operand, a Tensor."""

    def function(a: Any) -> TensorOrArray:
        mode = enabled()
        if not mode:
            out = _unrecorded(op, operate, mode, (a,))
            return apply(op, (a,)) if out is None else out
        tape = local.tape or current()
        if mode is True:
            x = a._v  # as in `binary`
            try:
                first = a._at if a._tape is tape else tape.leaves.get(a._at) or position_of_leaf(tape, a)
            except TapeClosed:
                return apply(op, (a,))
            if first is not None and a._v is x and len(tape.log) < tape.limit:
                large = type(x) is not float64 and x.nbytes > LARGE
                value = forward.unary(op, x) if large else operate(x)
                return _committed(op, tape, (first,), (x,), value, (a,))
        return apply(op, (a,))

    function.__name__ = op.name
    return function


def reflected(op: Elementwise, operate: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return the function of an op whose first operand, given last, is no Tensor."""

    def function(b: Any, a: Operand) -> Any:
        tape = local.tape
        if tape is not None and type(a) is float and enabled() is True:
            first, y = tape.numbers.get(a), b._v
            second = b._at if b._tape is tape else tape.leaves.get(b._at)
            room = len(tape.log) < tape.limit and b._v is y
            if first is not None and second is not None and room and y.nbytes <= LARGE:
                return _committed(op, tape, (first, second), (a, y), operate(a, y), (a, b))
        return combine(op, a, b)

    return function


def _committed(
    op: Elementwise,
    tape: Tape,
    places: Sequence[int],
    values: Sequence[Operand],
    value: Operand,
    operands: Sequence[Operand],
) -> Handle:
    """The Tensor of a value just computed from these places of a tape, which a handler may have closed."""
    try:
        at = tape.commit(op, places, values, places[1] if len(places) == 2 else 0, value)
    except TapeClosed:
        return apply(op, operands)
    return wrap(value, tape, at)


def _unrecorded(
    op: Elementwise, operate: Callable[..., Any], mode: Any, operands: Sequence[Operand]
) -> Handle | None:
    """The common case where nothing is recorded: of Tensors of doubles and numbers; None for any other."""
    if OPEN or (mode is not False and (mode.profile is not None or mode.pair is not None)):
        return None
    values = []
    for x in operands:
        if type(x) is not float:
            if type(x) is not base._make or x._tape is STALE:
                return None
            x = x._v
            if type(x) is not float64 and x.dtype is not DOUBLE:
                return None
        values.append(x)
    x = values[0]
    try:
        if type(x) is float64 or x.nbytes <= LARGE:
            value = operate(*values)
        else:
            value = forward.binary(op, *values) if len(values) == 2 else forward.unary(op, x)
    except ValueError:
        return None  # told as it is for all others
    if type(value) is not float64 and (type(value) is not ndarray or value.dtype is not DOUBLE):
        return None
    return with_metadata(wrap(value), operands)


def combine(op: Primitive, a: Operand, b: Operand) -> Any:
    """Apply an op with two operands, numbers and arrays among them."""
    if (type(a) is ndarray and type(b) is base._make) or (type(b) is ndarray and type(a) is base._make):
        out = _beside(op, a, b)
        if out is not None:
            return out
    if not isinstance(a, OPERANDS) or not isinstance(b, OPERANDS):
        return NotImplemented
    return apply(op, [sequence(a), sequence(b)])


def _beside(op: Primitive, a: Any, b: Any) -> Any:
    """The common case of a Tensor the open tape knows and a small plain array: its copy and a record."""
    x, array = (a, b) if type(b) is ndarray else (b, a)
    tape = local.tape
    if tape is None or len(tape.log) >= tape.limit or enabled() is not True:
        return None
    at = x._at if x._tape is tape else tape.leaves.get(x._at)
    known = array.dtype is DOUBLE and array.nbytes <= LARGE and array.ndim and array.flags.aligned
    if at is None or not known or (type(x._v) is ndarray and x._v.nbytes > LARGE):
        return None
    try:
        value = op.forward(value_of(a), value_of(b))
    except ValueError as error:
        raise ShapeError(describe_mismatch(op, (value_of(a), value_of(b)), error)) from error
    if value.nbytes > LARGE or value.dtype is not DOUBLE:
        return apply(op, (a, b))
    try:
        constant = tape.append(layout.CONST, 0, 0, array.copy())
        first, second = (at, constant) if x is a else (constant, at)
        return wrap(value, tape, tape.append(op.opcode, first, second, value))
    except TapeClosed:
        return apply(op, (a, b))


def _operation(op: Elementwise, ufunc: np.ufunc) -> Callable[..., Any]:
    """What computes an op: NumPy's operator, but for numbers of which that has bits of its own.

    Those are powers, and absolute values and products of complex numbers: as compiled recording has them.
    """
    operate = op.operator
    if operate not in (abs, operator.mul, operator.pow):
        return operate or ufunc

    def function(*values: Any) -> Any:
        if any(type(x) is ndarray for x in values):
            return operate(*values)
        apart = operate is operator.pow or any(isinstance(x, np.complexfloating) for x in values)
        return (ufunc if apart else operate)(*values)

    return function


FAST: dict[str, Callable[..., Any]] = {}  # with a Tensor as the first operand
REFLECTED: dict[str, Callable[..., Any]] = {}  # with a Tensor as the last operand, given first
for _op in REGISTRY.values():
    _ufunc = _op.functions[0] if _op.functions else None
    if isinstance(_op, Elementwise) and isinstance(_ufunc, np.ufunc) and _op.arity < 3:
        _operate = _operation(_op, _ufunc)
        FAST[_op.name] = (unary if _op.arity == 1 else binary)(_op, _operate)
        if _op.arity == 2:
            REFLECTED[_op.name] = reflected(_op, _operate)


def operand(x: Operand) -> Any:
    """Return an operand as a Tensor, an array, or the Python number it is, whose dtype gives way."""
    x = sequence(x)
    return x if is_tensor(x) or type(x) in (int, float, bool) else as_tape_value(x)


def _ufunc_of(name: str) -> Callable[..., Any]:
    op, fast = REGISTRY[name], FAST[name]
    if op.arity == 1:
        return fast

    def function(a: Operand, b: Operand) -> Any:
        return fast(a, b) if is_tensor(a) else combine(op, sequence(a), sequence(b))

    return function


for _name in FAST:
    for _f in REGISTRY[_name].functions:
        UFUNCS[_f] = _ufunc_of(_name)
UFUNCS[np.positive] = copy

# Derivative zero wherever there is one: plain values, no history.
FLAT = (
    np.equal, np.not_equal, np.less, np.less_equal, np.greater, np.greater_equal, np.floor,
    np.ceil, np.rint, np.trunc, np.isfinite, np.isnan, np.isinf, np.signbit, np.logical_and,
    np.logical_or, np.logical_not, np.logical_xor, np.floor_divide, np.spacing,
)  # fmt: skip
for _f in FLAT:

    def _flat(*args: Operand, _f: Any = _f) -> Handle:
        known = expect_flat(_f, args)
        if known is not None:
            return known
        try:
            return note_flat(wrap(as_tape_value(decide(_f, *map(operand, args)), _f.__name__)), _f, args)
        except ValueError as error:
            shapes = [np.shape(value_of(operand(a))) for a in args]
            raise ShapeError(misfit(_f.__name__, shapes, error)) from error

    UFUNCS[_f] = _flat


def constant_value(x: Operand) -> Any:
    """Return the value of an operand, which has no history; where a program compares, a Tensor of it."""
    return constant_of(np.positive, x) if is_compared() else value_of(x)


def constant_of(function: Callable[..., Any], *operands: Operand, warning: str = "") -> Any:
    """Return what one of `OF_VALUES`, or a ufunc, gives; of Tensors a Tensor, where a program compares.

    Of invalid values it warns in the words `warning`, if there are some, however NumPy handles them.
    """
    compared = is_compared() and any(map(is_tensor, operands))
    known = expect_flat(function, operands) if compared else None
    if known is not None:
        return known
    values = [value_of(x) for x in operands]
    found = computed_with_warning(warning, function, values) if warning else function(*values)
    if not compared:
        return found
    found = note_flat(wrap(as_tape_value(found)), function, operands)
    if warning:
        note_warning(found, warning)
    return found


def computed_with_warning(words: str, ufunc: Callable[..., Any], values: Sequence[Any]) -> Any:
    """Return what a ufunc gives; of invalid values it warns in these words, however NumPy handles them."""
    try:
        with np.errstate(invalid="raise"):
            return ufunc(*values)
    except FloatingPointError:
        pass
    warnings.warn(words, RuntimeWarning, stacklevel=7)  # in the code that calls NumPy's function
    with np.errstate(invalid="ignore"):
        return ufunc(*values)


@implements(np.power, by_shapes=True)
def power(a: Operand, b: Operand) -> Any:
    """Power; a square has a cheaper derivative."""
    if (type(b) is int or type(b) is float) and b == 2 and is_tensor(a):
        return FAST["square"](a)
    return FAST["power"](a, b) if is_tensor(a) else combine(REGISTRY["power"], sequence(a), sequence(b))


def matmul(a: Operand, b: Operand) -> Any:
    """Matrix product."""
    a, b = operand(a), operand(b)
    if ndim_of(a) == 0 or ndim_of(b) == 0:
        raise ShapeError(
            f"matmul of shapes {shape_of(a)} and {shape_of(b)}: scalars have no matrix product; use *"
        )
    return apply(REGISTRY["matmul"], (a, b))


UFUNCS[np.matmul] = matmul


@implements(np.divmod)
def divmod_(a: Operand, b: Operand) -> tuple[TensorOrArray, TensorOrArray]:
    """Quotient, which has no derivative, and remainder."""
    return UFUNCS[np.floor_divide](a, b), UFUNCS[np.remainder](a, b)
