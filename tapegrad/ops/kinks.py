"""Squares of what has a kink at 0: |x|**2 and norm(x)**2 are smooth there, though |x| and norm(x) are not.

A recorded sweep asks for the history of the cotangent of such a result. Where that is c times the very
result, the cotangent of the operand is c times the operand, and it is this that can be differentiated at 0.
"""

from typing import Any

import numpy as np

TERMS = 64  # results that are looked through, of products and sums; behind more the derivative at 0 is 0
SQUARE, PRODUCT, POWER = range(
    3
)  # how an op is a power of an operand: its square, if both are one, to another


def multiple(ct, out, value):
    """What a recorded cotangent is a multiple of a result by, where that is 0; whether it is nothing else.

    None where no term of the cotangent is such a multiple, or no element of the result is 0. `value` is 0
    where the result is, and of its shape (see `Primitive.kink_value`).
    """
    if not hasattr(ct, "_apply") or np.all(getattr(value, "_v", value) != 0):
        return None, False
    return _quotient(ct, out, np.shape(value), iter(range(TERMS)))


def _same(x, y):
    return x._at is not None and x._tape is y._tape and x._at == y._at


def _again(x, out):
    """Whether two results are one, or computed alike from the same operands."""
    if _same(x, out):
        return True
    (op, operands, attrs), (mine, theirs, others) = x._origin(), out._origin()
    return op is mine is not None and attrs == others and all(map(_same, operands, theirs))


def _quotient(x, out, shape, budget):
    # what is not kept tells no shape; it lies between those of its operands and of what was computed from it
    if (x._v is not None and np.shape(x)[np.ndim(x) - len(shape) :] != shape) or next(budget, None) is None:
        return None, False
    if _again(x, out):
        return 1.0, True
    op, operands, attrs = x._origin()
    if op is None or op.multiple is None:
        return None, False
    return op.multiple([_quotient(y, out, shape, budget) for y in operands], operands, out, attrs)


# What the result of an op is a multiple of, and whether it is nothing else, by what its operands are.


def of_sum(found, operands, out, attrs):
    (a, only_a), (b, only_b) = found
    return a if b is None else b if a is None else a + b, only_a and only_b


def of_difference(found, operands, out, attrs):
    a, (b, only) = found
    return of_sum((a, (None if b is None else -b, only)), operands, out, attrs)


def of_negative(found, operands, out, attrs):
    ((a, only),) = found
    return None if a is None else -a, only


def of_product(found, operands, out, attrs):
    for (a, only), other in zip(found, operands[::-1], strict=True):
        if a is not None and other._v is not None:
            return a * other, only
    return None, False


def of_quotient(found, operands, out, attrs):
    (a, only), divisor = found[0], operands[1]
    return (None, False) if a is None or divisor._v is None else (a / divisor, only)


def of_power(found, operands, out, attrs):
    (a, only), y = found[0], operands[1] if len(operands) > 1 else 2.0
    value = getattr(y, "_v", y)
    if only and value is not None and np.all(np.asarray(value) >= 1):
        return a**y * out ** (y - 1), True
    return None, False


def of_product_with_power(found, operands, out, attrs):
    power, only = of_power(found[1:], operands[1:], out, attrs)
    return None if power is None else power * operands[0], only


def of_total(found, operands, out, attrs):
    """Of a sum over axes in front of those of the result, along which it has been repeated."""
    (a, only), y, axes = found[0], operands[0], attrs["axis"]
    if a is None or y._v is None or attrs["keepdims"] or max(axes, default=0) >= np.ndim(y) - np.ndim(out):
        return None, False
    return np.sum(np.broadcast_to(a, np.shape(y)), axis=axes), only


def product(op, attrs: dict[str, Any] | None, x, tangent, lanes: int):
    """The result of an op with a kink times its tangent, which is smooth, from the operand's."""
    found = np.conj(x) * tangent if x.dtype.kind == "c" else x * tangent
    found = np.real(found)
    if not attrs:
        return found
    axes = tuple(a + lanes for a in attrs["axis"])
    return np.sum(found, axis=axes, keepdims=attrs["keepdims"])
