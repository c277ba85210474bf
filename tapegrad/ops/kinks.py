"""Squares of what has a kink at 0: |x|**2 and norm(x)**2 are smooth there, though |x| and norm(x) are not.

A recorded sweep asks for the history of the cotangent of such a result. Where that is c times the very
result, the cotangent of the operand is c times the operand, and it is this that can be differentiated at 0.
"""

import numpy as np

TERMS = 64  # results that are looked through, of products and sums; behind more the derivative at 0 is 0
OF_ONE = ("absolute", "norm")  # ops with a kink and one operand
THROUGH = ("add", "subtract", "negative", "multiply", "divide", "square", "power")


def multiple(ct, out):
    """What a recorded cotangent is a multiple of a result by, where that is 0; whether it is nothing else.

    None where no term of the cotangent is such a multiple, or no element of the result is 0.
    """
    if not hasattr(ct, "_apply") or np.all(getattr(out, "_v", out) != 0):
        return None, False
    return _quotient(ct, out, iter(range(TERMS)))


def _same(x, y):
    return x._at is not None and x._tape is y._tape and x._at == y._at


def _again(x, out):
    """Whether two results are one, or computed alike from the same operands."""
    if _same(x, out):
        return True
    (name, operands, attrs), (mine, theirs, others) = x._origin(), out._origin()
    return name == mine != "" and attrs == others and all(map(_same, operands, theirs))


def _quotient(x, out, budget):
    # what is not kept tells no shape; it lies between those of its operands and of what was computed from it
    if (x._v is not None and np.shape(x) != np.shape(out)) or next(budget, None) is None:
        return None, False
    if _again(x, out):
        return 1.0, True
    name, operands, _ = x._origin()
    found = [_quotient(y, out, budget) for y in operands] if name in THROUGH else []
    if name in ("add", "subtract"):
        (a, only_a), (b, only_b) = found
        if b is not None and name == "subtract":
            b = -b
        return a if b is None else b if a is None else a + b, only_a and only_b
    if name == "negative":
        a, only = found[0]
        return None if a is None else -a, only
    if name in ("multiply", "divide"):
        for (a, only), other in zip(found, operands[::-1], strict=True):
            if a is not None and other._v is not None:
                return a * other if name == "multiply" else a / other, only
            if name == "divide":
                break
    if name in ("square", "power") and found[0][1]:
        a, y = found[0][0], operands[1] if name == "power" else 2.0
        value = getattr(y, "_v", y)
        if value is not None and np.all(np.asarray(value) >= 1):
            return a**y * out ** (y - 1), True
    return None, False


def product(op, attrs, x, tangent, lanes):
    """The result of an op with a kink times its tangent, which is smooth, from the operand's."""
    found = np.conj(x) * tangent if x.dtype.kind == "c" else x * tangent
    found = np.real(found)
    if op.name == "absolute":
        return found
    axes = tuple(a + lanes for a in attrs["axis"])
    return np.sum(found, axis=axes, keepdims=attrs["keepdims"])
