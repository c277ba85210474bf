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
`inverse`, `power`; `single` has all of single precision, `complexes` all of complex numbers. `coefficients`
is written by ``python -m tests.kernels.minimax``.
"""

from __future__ import annotations

import functools
import inspect

from numba import types
from numba.extending import intrinsic

from tapegrad.kernels.vecmath import (
    complexes,
    exponential,
    inverse,
    logarithm,
    number,
    power,
    single,
    trigonometric,
)

_FILES = {
    "float64": (exponential, inverse, logarithm, power, trigonometric), "float32": (single,),
    "complex128": (complexes,), "complex64": (complexes,),
}  # fmt: skip
BITS = {"greater", "greater_equal", "less", "less_equal"}  # forms that compare; so do those named NAME_ok


@functools.cache
def definition(name, dtype="float64"):
    """Return the form of a function of numbers (`number`) of this dtype."""
    return next(vars(file)[name] for file in _FILES[dtype] if name in vars(file))


@functools.cache
def is_defined(name, dtype="float64"):
    """Whether there is a form of a function of numbers of this dtype."""
    return any(name in vars(file) for file in _FILES[dtype])


@functools.cache
def form(name, dtype):
    """Return the form of a function for a Numba dtype, to be called in compiled code."""
    of_numbers = definition(name, dtype.name)
    result = types.boolean if name.endswith("_ok") or name in BITS else dtype
    narrow = dtype in (types.float32, types.complex64)

    def wider(builder, value):
        return number.Number(builder, builder.fpext(value, number.DOUBLE) if narrow else value)

    def rounded(builder, found):
        return builder.fptrunc(found.value, number.SINGLE) if narrow else found.value

    def emit(context, builder, signature, args):
        if dtype in types.complex_domain:
            parts = [context.make_complex(builder, dtype, value=a) for a in args]
            args = [(wider(builder, z.real), wider(builder, z.imag)) for z in parts]
        else:
            args = [wider(builder, a) for a in args]
        found = of_numbers(*args)
        if result is types.boolean:
            return found.value
        if dtype not in types.complex_domain:
            return rounded(builder, found)
        out = context.make_complex(builder, dtype)
        out.real, out.imag = (rounded(builder, part) for part in found)
        return out._getvalue()

    if len(inspect.signature(of_numbers).parameters) == 1:

        @intrinsic
        def unary(typingctx, x):
            return result(dtype), emit

        return unary

    @intrinsic
    def binary(typingctx, x, y):
        return result(dtype, dtype), emit

    return binary
