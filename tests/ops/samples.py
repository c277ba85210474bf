"""Samples of every op by layout and dtype: `SAMPLES[op](op, layout, dtype, random)`.

A sample is a list of `Case`, or an `Absent` that says why there is none.
"""

import numpy as np

import tapegrad as tg

from .builders import SHAPES, SIZE1_SHAPES, Builder, binary, complex_choice, three, unary
from .layouts import (
    EMPTY,
    INTEGER,
    MIXED,
    SCALAR,
    SIZE1,
    Case,
    drawn,
    integers,
    leaf,
    one_operand,
    repeated,
)
from .samples_arrays import ARRAYS
from .samples_linalg import LINALG
from .samples_scans import SCANS
from .samples_ufuncs import UFUNCS

# ---------------------------------------------------------------- elementwise


def where(op, layout, dtype, random):
    """A condition of booleans and of integers."""
    shape = SHAPES.get(layout, (2, 3))
    c, a, b = SIZE1_SHAPES if layout == SIZE1 else (shape,) * 3
    condition = random.permutation(np.arange(np.prod(c, dtype=int)) % 2 == 0).reshape(c)
    arrays = condition, drawn(random, a, op.domain.of(1), dtype), drawn(random, b, op.domain.of(2), dtype)
    numbers = {0: condition * 2, 1: integers(random, a, dtype), 2: 3}

    def case(*operands):
        return Case(operands, np.where, np.where, np.where)

    return three(layout, dtype, arrays, numbers, case)


def clip(op, layout, dtype, random):
    """Elements below, between and above the ends."""
    shape = SHAPES.get(layout, (2, 3))
    shapes = SIZE1_SHAPES if layout == SIZE1 else (shape,) * 3
    x, low, high = (random.uniform(-0.3, 0.3, s) for s in shapes)
    x += random.permutation(np.arange(x.size) % 3 - 1).reshape(x.shape) * 1.7
    arrays = [v.astype(dtype) for v in (x + 0.05, low - 0.9, high + 0.9)]
    # integers to be limited, integers as ends
    numbers = {0: integers(random, shape, dtype, -2, 3), 1: -integers(random, shape, dtype, 1, 2), 2: 1}

    def case(*operands):
        return Case(operands, np.clip, np.clip, complex_clip)

    return three(layout, dtype, arrays, numbers, case)


def complex_hypot(x, y):
    return np.sqrt(x * x + y * y)


def complex_arctan2(y, x):
    """An angle whose derivatives are those of arctan2 wherever y is not 0."""
    return -np.arctan(x / y)


def complex_absolute(x):
    return np.where(np.real(x) < 0, -x, x)


def complex_clip(x, low, high):
    limited = np.where(np.real(x) < np.real(low), low, x)
    return np.where(np.real(limited) > np.real(high), high, limited)


def complex_log1p(x):
    return np.log(1 + x)


PRECISION = {"float64": "float32", "float32": "float64", "complex128": "complex64", "complex64": "complex128"}


def astype(op, layout, dtype, random):
    """Conversions between the two floating-point dtypes."""
    if layout == MIXED:
        return one_operand(op)
    shape, target = SHAPES.get(layout, (2, 3)), np.dtype(PRECISION[dtype])
    if layout == INTEGER:
        x = tg.tensor(integers(random, shape, dtype))
    else:
        array = drawn(random, shape, op.domain.of(0), dtype)
        x = repeated(array) if layout == SIZE1 else leaf(array, layout)
    return [
        Case((x,), call, lambda x: np.asarray(x).astype(target), lambda x: x, function=lambda x: x)
        for call in (lambda x: x.astype(target), lambda x: np.astype(x, target))
    ]


def broadcast_to(op, layout, dtype, random):
    """From every shape that a layout has to larger ones."""
    if layout == MIXED:
        return one_operand(op)
    shape = {SCALAR: (), EMPTY: (0, 3), SIZE1: (2, 1)}.get(layout, (2, 3))
    targets = {
        SCALAR: [(3,), (2, 1)], EMPTY: [(2, 0, 3)], SIZE1: [(2, 3), (3, 2, 2)]
    }.get(layout, [(2, 3), (4, 2, 3), (1, 2, 3)])  # fmt: skip
    array = drawn(random, shape, op.domain.of(0), dtype)
    found = []
    for target in targets:
        if layout == INTEGER:  # the integer is a constant: an extent
            target = tuple(np.int64(n) for n in target)
        f = lambda x, target=target: np.broadcast_to(x, target)
        found.append(Case((leaf(array, layout),), f, f, f))
    return found


UNARY = {
    "negative": unary(np.negative), "absolute": unary(np.absolute, complex_absolute),
    "square": unary(np.square), "reciprocal": unary(np.reciprocal), "sqrt": unary(np.sqrt),
    "exp": unary(np.exp), "expm1": unary(np.expm1), "log": unary(np.log),
    "log1p": unary(np.log1p, complex_log1p), "sin": unary(np.sin), "cos": unary(np.cos),
    "tan": unary(np.tan), "tanh": unary(np.tanh), "cosh": unary(np.cosh), "sinh": unary(np.sinh),
}  # fmt: skip
BINARY = {
    "add": binary(np.add), "subtract": binary(np.subtract), "multiply": binary(np.multiply),
    "divide": binary(np.divide), "power": binary(np.power), "float_power": binary(np.float_power),
    "arctan2": binary(np.arctan2, complex_arctan2), "hypot": binary(np.hypot, complex_hypot),
    "maximum": binary(np.maximum, complex_choice(1)), "minimum": binary(np.minimum, complex_choice(-1)),
}  # fmt: skip
# Ops without complex operands: NumPy has none, several values (logsumexp), or the op takes parts (norm).
REAL_ONLY = {
    "arctan2", "cbrt", "copysign", "deg2rad", "fmod", "hypot", "i0", "iv", "logaddexp", "logaddexp2",
    "logsumexp", "norm", "rad2deg", "remainder", "rfft",
}  # fmt: skip
SAMPLES: dict[str, Builder] = {
    **UNARY, **BINARY, **ARRAYS, **UFUNCS, **LINALG, **SCANS,
    "where": where, "clip": clip, "astype": astype, "broadcast_to": broadcast_to,
}  # fmt: skip
