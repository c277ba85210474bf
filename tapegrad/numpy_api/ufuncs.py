"""Ufuncs: operators, elementary functions, and steps whose derivative is zero."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tapegrad.core.base import Operand, is_tensor, needs_derivative, undisturbed, value_of, wrap
from tapegrad.core.conversion import astype, copy
from tapegrad.core.dispatch import apply, as_tape_value, expect_flat, note_flat, record, sequence
from tapegrad.core.operators import FAST, combine
from tapegrad.errors import ShapeError, UnsupportedOpError
from tapegrad.numpy_api.tables import UFUNCS, tensor_of
from tapegrad.ops import REGISTRY
from tapegrad.ops.meaning import op_of, results_of

if TYPE_CHECKING:
    from tapegrad.tensor import Tensor


def declared(ufunc: np.ufunc) -> Callable[..., Any] | None:
    """Return the function of an op that was declared later, and means a ufunc; None if there is none.

    Of a ufunc with several results each is an op.
    """
    op: Any = op_of(ufunc)
    if op is not None and op.functions[:1] == (ufunc,):

        def function(*operands: Operand) -> Any:
            operands = tuple(operand(x) for x in operands)
            if op.linked:
                refuse_unknown(op, operands)
                if op.of_integers and type(operands[0]) is int:  # one of Python's would become a float
                    operands = (np.int64(operands[0]), *operands[1:])
            return apply(op, operands)

    elif ops := results_of(ufunc):

        @undisturbed
        def function(*operands: Operand) -> Any:
            operands = tuple(operand(x) for x in operands)
            values = ufunc(*(value_of(x) for x in operands))
            for result in ops:
                refuse_unknown(result, operands)
            return tuple(record(of, value, operands) for of, value in zip(ops, values, strict=True))

    else:
        return None
    UFUNCS[ufunc] = function
    return function


def refuse_unknown(op: Any, operands: Sequence[Operand]) -> None:
    """Refuse a derivative by an operand by which none is known, or of complex numbers where that is none."""
    for slot in op.unknown:
        x = operands[slot]
        if is_tensor(x) and needs_derivative(x):
            op.refuse(slot, x)
    if not op.holomorphic:
        for k, x in enumerate(operands):
            if is_tensor(x) and x.dtype.kind == "c" and needs_derivative(x):
                raise UnsupportedOpError(
                    f"{op.title} of complex numbers has no derivative here, and argument {k} is a Tensor of "
                    f"dtype {x.dtype} that requires grad or carries a tangent; detach() it where constant"
                )


def operand(x: Operand) -> Operand:
    """Return an operand as a Tensor, an array, or the Python number it is, whose dtype gives way."""
    x = sequence(x)
    return x if is_tensor(x) or type(x) in (int, float, bool) else as_tape_value(x)


def _ufunc_of(name: str) -> Callable[..., Any]:
    op, fast = REGISTRY[name], FAST[name]
    if op.arity == 1:
        return fast

    def function(a: Operand, b: Operand) -> Tensor:
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

    def _flat(*args: Operand, _f: Any = _f) -> Tensor:
        known = expect_flat(_f, args)
        if known is not None:
            return known
        values = [value_of(operand(a)) for a in args]
        try:
            return note_flat(wrap(as_tape_value(_f(*values), _f.__name__)), _f, args)
        except ValueError as error:
            shapes = ", ".join(str(np.shape(v)) for v in values)
            raise ShapeError(f"{_f.__name__} of operands of shapes {shapes}: {error}") from error

    UFUNCS[_f] = _flat


def power(a: Operand, b: Operand) -> Any:
    """Power; a square has a cheaper derivative."""
    if (type(b) is int or type(b) is float) and b == 2 and is_tensor(a):
        return FAST["square"](a)
    return FAST["power"](a, b) if is_tensor(a) else combine(REGISTRY["power"], sequence(a), sequence(b))


UFUNCS[np.power] = power


def float_power(a: Operand, b: Operand) -> Tensor:
    """Power, in double precision."""
    x, y = tensor_of(a), tensor_of(b)
    kind = np.result_type(value_of(x), value_of(y), float)
    return power(*(astype(z, kind) if is_tensor(z) else np.asarray(z, kind) for z in (x, y)))


UFUNCS[np.float_power] = float_power
