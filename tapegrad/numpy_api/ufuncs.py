"""Ufuncs: operators, elementary functions, and steps whose derivative is zero."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tapegrad.core.base import like_of, needs_derivative, undisturbed, value_of
from tapegrad.core.conversion import astype
from tapegrad.core.functions import UFUNCS
from tapegrad.core.operators import operand
from tapegrad.errors import UnsupportedOpError
from tapegrad.numpy_api.tables import tensor_of
from tapegrad.ops.meaning import op_of, results_of
from tapegrad.tensor import Operand, Tensor, apply, is_tensor, record


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


_power = UFUNCS[np.float_power]  # of one dtype


def float_power(a: Operand, b: Operand) -> Tensor:
    """Power, in double precision."""
    x, y = tensor_of(a), tensor_of(b)
    kind = np.result_type(like_of(x), like_of(y), float)
    return _power(*(astype(z, kind) if is_tensor(z) else np.asarray(z, kind) for z in (x, y)))


UFUNCS[np.float_power] = float_power
