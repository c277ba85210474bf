"""Elementary functions without branches, for loops that LLVM turns into SIMD code.

A loop that calls libm stays scalar. The forms here are arithmetic, comparisons and selects only, so a loop
that calls them is vectorised without fastmath flags and without a vector math library. In double precision
a result is within 2 ulp of the exact value; in single precision a form computes in double and rounds, which
is 0.51 ulp. Special values are NumPy's. ``sin``, ``cos`` and ``tan`` alone have a limited domain, where
``NAME_ok(x)`` is true; elsewhere their result is arbitrary (never a trap) and the caller uses libm.

A form is a plain Python function, run once on numbers that emit LLVM code (`number`) when a kernel that
calls it is compiled. That costs a kernel a few milliseconds; Numba's front end took about a hundred for the
same formulas as inlined functions.

Files: `exponential` (also the hyperbolic functions), `logarithm` (also their inverses), `trigonometric`,
`inverse`, `power`; `single` has all of single precision. `coefficients` is written by
``python -m tests.kernels.minimax``.
"""

from __future__ import annotations

import functools
import inspect

from numba import types
from numba.extending import intrinsic

from tapegrad.kernels.vecmath import exponential, inverse, logarithm, number, power, single, trigonometric

_FILES = {"float64": (exponential, inverse, logarithm, power, trigonometric), "float32": (single,)}


@functools.cache
def form(name, dtype):
    """Return the form of a function for a Numba dtype, float64 or float32, to be called in compiled code."""
    definition = next(vars(file)[name] for file in _FILES[dtype.name] if name in vars(file))
    result = types.boolean if name.endswith("_ok") else dtype

    def emit(context, builder, signature, args):
        if dtype == types.float32:
            args = [builder.fpext(a, number.DOUBLE) for a in args]
        value = definition(*(number.Number(builder, a) for a in args)).value
        return builder.fptrunc(value, number.SINGLE) if result == types.float32 else value

    if len(inspect.signature(definition).parameters) == 1:

        @intrinsic
        def unary(typingctx, x):
            return result(dtype), emit

        return unary

    @intrinsic
    def binary(typingctx, x, y):
        return result(dtype, dtype), emit

    return binary
