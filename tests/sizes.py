"""The sizes at which the code changes ways, and arrays that have one element less, as many and one more.

`LIMITS` names every such constant of the package; `tests/test_sizes.py` looks for constants and numbers in
comparisons that it does not name. A limit of one array is crossed in bytes and in elements whichever it is
meant in, as mistaking one for the other is what goes wrong.
"""

import importlib
from typing import NamedTuple

import numpy as np

import tapegrad as tg

DTYPES = ("float32", "float64", "complex64", "complex128", "longdouble", "clongdouble")
LAYOUTS = ("plain", "strided", "reversed", "Fortran", "stretched")


class Limit(NamedTuple):
    """A constant of the package by module and name, and what it counts."""

    module: str
    name: str
    of: str

    @property
    def value(self):
        return getattr(importlib.import_module(f"tapegrad.{self.module}"), self.name)


ARRAY, ELEMENTS = "bytes of an array", "elements of an array"
ARRAYS = (
    Limit("tape.tape", "LARGE", ARRAY),
    Limit("core.dispatch", "COPIED", ARRAY),
    Limit("ops.buffers", "LARGE", ARRAY),
    Limit("native.segment", "COPIED", ARRAY),
    Limit("native.tapes.stored", "IN_PLACE", ARRAY),
    Limit("tape.pool", "MIN_BYTES", ARRAY),
    Limit("tape.pool", "MAX_BYTES", ARRAY),
    Limit("engine.plan", "SMALL_BYTES", ARRAY),
    Limit("autograd.steps", "BYTES", ARRAY),
    Limit("tape.tape", "MAX_BYTES", ARRAY),
    Limit("kernels.emit", "BLOCK", ELEMENTS),
    Limit("kernels.replay.layout", "BLOCK", ELEMENTS),
    Limit("kernels.replay.layout", "DIRECT", ELEMENTS),
    Limit("kernels.replay.layout", "STAGED", ELEMENTS),
    Limit("kernels.replay.layout", "SHORT_AXIS", ELEMENTS),
    Limit("numpy_api.sorting", "SMALL", ELEMENTS),
    Limit("ops.loops", "MANY", ELEMENTS),
    Limit("numpy_api.rearranging", "MEMOIZED", ELEMENTS),
    Limit("kernels.state", "NOGIL_WORK", ELEMENTS),
)
OTHERS = (
    Limit("kernels.replay.layout", "FEW_ROWS", "rows of a short axis that are summed"),
    Limit("kernels.replay.layout", "THREADED", "products of a matrix product"),
    Limit("kernels.replay.layout", "NARROW", "elements of a product with long sums"),
    Limit("kernels.replay.layout", "AT_ONCE", "products of a part of long sums"),
    Limit("kernels.replay.layout", "TILE", "rows of a transposed matrix"),
    Limit("native.tapes.record", "DEPTH", "operations that an adjoint computes for a partial"),
    Limit("native.library.linear", "ELIMINATED", "rows of a matrix whose elimination is statements"),
    Limit("native.library.linear", "SUBSTITUTED", "rows of a system that is solved by loops"),
    Limit("native.library.linear", "FACTORED", "rows of a matrix whose QR factors are statements"),
    Limit("native.library.linear", "LOOPED", "products of a matrix product that is statements"),
    Limit("native.library.linear", "FEW", "rows of a matrix whose products are straight code"),
    Limit("native.library.products", "BY_LOOPS", "products of a matrix and a vector without BLAS"),
    Limit("ops.loops", "BESIDE", "running sums at once"),
    Limit("ops.loops", "NEAR", "an argument of a Bessel function"),
    Limit("ops.scans", "FEW", "lanes of a scan"),
    Limit("ops.decompositions", "BLOCK", "rows of a triangular matrix"),
    Limit("ops.triangles", "BLOCK", "rows of a triangular system"),
    Limit("ops.triangles", "AT_ONCE", "multiplications of a product in the rule of QR"),
    Limit("ops.triangles", "FEWEST", "rows of a product in the rule of QR"),
    Limit("ops.triangles", "ROWS", "rows of the upper triangle of a product"),
    Limit("ops.triangles", "COLUMNS", "right sides of a triangular system"),
    Limit("ops.lapack", "SMALL", "rows of a matrix whose factors are kept"),
    Limit("ops.lapack", "LARGEST", "logarithm of a determinant"),
    Limit("ops.kinks", "TERMS", "products and sums between a square and its root"),
    Limit("ops.primitive", "MASK_BITS", "axes of a reduction"),
    Limit("numpy_api.products", "TERMS", "products that an einsum sums up"),
    Limit("numpy_api.shapes", "MANY", "operands of a record"),
    Limit("core.dispatch", "NESTED", "lists in lists"),
    Limit("tape.tape", "MAX_RECORDS", "records of a tape"),
    Limit("tape.tape", "FEW", "handles of a tape"),
    Limit("tape.tape", "SEVERAL", "tapes released at once, of which some memory goes back"),
    Limit("tape.tape", "MANY", "tapes released at once"),
    Limit("compilation.memory.arena", "SMALLEST", "bytes of an array that a plan moves"),
    Limit("compilation.plans.repeats", "MOST_ELEMENTS", "elements of rows that may be in a loop"),
    Limit("compilation.rows.rows", "OFTEN", "products of each element of a cotangent"),
    Limit("compilation.kinds", "MOST_REASONS", "reasons why calls leave programs"),
    Limit(
        "compilation.events.learner", "MOST_WRITTEN",
        "bytes of what writes give in a call that is learned from",
    ),
    Limit("engine.plan", "SMALL", "records of a tape"),
    Limit("kernels.state", "FEW", "records of a sweep"),
    Limit("kernels.replay.layout", "QUICK_INPUTS", "inputs of a gradient"),
    Limit("kernels.replay.layout", "RESTARTED", "records of a tape that no Tensor is on"),
    Limit("kernels.replay.layout", "RECORDED_FOR_EACH", "a tape's length over that of a recorded sweep"),
    Limit("kernels.replay.layout", "MOST_RECORDED", "records of a tape with recorded sweeps"),
    Limit("kernels.replay.layout", "EXACT", "integers that are doubles"),
    Limit("kernels.replay.layout", "MAXDIM", "axes of an array"),
    Limit("kernels.replay.layout", "DEPTH", "frames of a note"),
    Limit("kernels.state", "KEEP_BYTES", "bytes of cotangents"),
    Limit("scipy.linalg.matrix_equations", "DIRECT", "rows of a discrete Lyapunov equation"),
    Limit("func.recorded_series", "KEPT", "numbers of power series"),
    Limit("tape.pool", "STOCK_BYTES", "bytes of free buffers"),
    Limit("tape.pool", "LATEST", "buffers handed out last"),
    Limit("tape.pool", "MAX_SHADOWS", "shapes of values that are not kept"),
    Limit("core.histories", "FEW", "entries of a log that a write takes"),
    Limit("kernels.replay.layout", "MOST_PROGRAMS", "shapes that rules have met"),
    Limit("autograd.traced_rules", "MOST_TRACED", "elements of an operand of a rule that is traced"),
    Limit("kernels.replay.layout", "KEY_WORDS", "words for the operands of a rule that looks at shapes"),
    Limit("autograd.steps", "RECORDS", "entries of a log of steps"),
    Limit("autograd.apply", "PARTS", "parts of what a call keeps"),
    Limit("autograd.call", "NESTED", "lists in lists of what a call keeps"),
    Limit("native.numbers.scalar", "MAX_LEAVES", "leaves of an expression"),
    Limit("native.tapes.record", "MOST", "bytes of a native record"),
    Limit("native.arrays.lowering", "CARRIED", "statements of a record that goes on where code branches"),
    Limit("native.emission.algebra", "UNROLLED", "exponent of a power by products"),
    Limit("native.tapes.tape", "STEP", "bytes of a native tape"),
    Limit("native.tapes.tape", "CHUNK", "bytes of a native tape"),
    Limit("native.derivatives.jacobian", "SEEDS", "results of a Jacobian"),
    Limit("native.derivatives.derivative", "LANES", "columns of a Hessian"),
    Limit(
        "native.derivatives.pushing", "FEW",
        "components of a number that is pushed along several directions",
    ),
    Limit("func.matrices", "FEW", "directions of a matrix of derivatives"),
    Limit("func.tangents", "LARGE_ARGUMENTS", "elements that have tangents"),
    Limit("func.tangents", "LARGE_TAPE", "bytes of results that have tangents"),
    Limit("func.colouring", "FEW", "columns of a matrix that is coloured"),
    Limit("func.sparse", "BATCHED", "lanes of a sparse matrix"),
    Limit("scipy.optimize.evaluations", "MANY", "unknowns of least squares"),
    Limit("scipy.optimize.adapters", "LARGE", "unknowns of a minimum"),
)
LIMITS = ARRAYS + OTHERS


def crossings(limit):
    """One less than a limit, as many and one more."""
    return limit.value - 1, limit.value, limit.value + 1


def counts(dtype, most=1 << 17):
    """Numbers of elements of a dtype that cross the limits of an array, up to so many bytes."""
    size = np.dtype(dtype).itemsize
    found = {1, 2, 3}
    for limit in ARRAYS:
        for n in {limit.value, limit.value // size, limit.value // 8}:
            found |= {n - 1, n, n + 1}
    return sorted(n for n in found if 0 < n <= most // size)


def values(n, dtype, low=0.5, high=1.5):
    """So many numbers of an interval, all different, and complex ones with imaginary parts."""
    x = np.linspace(low, high, n, dtype=np.longdouble)
    if np.dtype(dtype).kind == "c":
        x = x + 1j * np.linspace(0.4, -0.3, n)
    return x.astype(dtype)


def laid_out(array, layout):
    """A leaf of one axis with these elements, in memory laid out as asked."""
    n = len(array)
    if layout == "strided":
        roomy = np.full(2 * n, 99, array.dtype)
        roomy[::2] = array
        made = tg.tensor(roomy)[::2]
    elif layout == "reversed":
        made = tg.tensor(array[::-1].copy())[::-1]
    elif layout == "Fortran":  # a column of a matrix in Fortran order, other numbers beside it
        made = tg.tensor(np.asfortranarray(np.stack([array, array + 1], axis=1)))[:, 0]
    else:
        made = tg.tensor(array)
    return made.requires_grad_()
