"""Nanoseconds per element of the vector forms in kernels, beside NumPy's ufuncs and loops over libm.

    python -m tests.benchmarks.vecmath [--size 100000] [--rounds 30] [names]

Every round calls each once, in turn; printed are the best times, and whether the forward direction uses ours
(`tapegrad.ops.forward.has_vector_form`). NumPy without AVX-512 is measured with
``NPY_DISABLE_CPU_FEATURES="AVX512F AVX512CD AVX512_SKX AVX512_CLX AVX512_CNL AVX512_ICL AVX512_SPR X86_V4"``,
ours with ``NUMBA_CPU_NAME=znver3 NUMBA_CPU_FEATURES=+avx2,+fma``.
"""

import argparse
import ast
import ctypes
import math
from time import perf_counter

import numba
import numpy as np

from tapegrad.kernels import abi, emit, table
from tapegrad.ops import REGISTRY, forward

LIBM = {
    "arcsin": math.asin, "arccos": math.acos, "arctan": math.atan, "arcsinh": math.asinh,
    "arccosh": math.acosh, "arctanh": math.atanh, "arctan2": math.atan2, "exp2": np.exp2,
    "cbrt": np.cbrt, "power": math.pow, "logaddexp": np.logaddexp, "logaddexp2": np.logaddexp2,
}  # fmt: skip
SPANS = {  # where a function is timed; elsewhere [0.01, 0.99]
    **dict.fromkeys(("exp", "expm1", "exp2", "sinh", "cosh", "tanh", "arctan", "arcsinh"), (-10, 10)),
    **dict.fromkeys(("sin", "cos", "tan"), (-100, 100)),
    **dict.fromkeys(("log", "log2", "log10", "arccosh", "cbrt"), (1, 100)),
    **dict.fromkeys(("arctan2", "hypot", "power"), (0.1, 10)),
}


def kernel_of(name, dtype, pointers):
    """A call of the kernel on arrays."""
    names = ["x", "y"][: len(pointers) - 1]
    expression = ast.parse(f"np.{name}({', '.join(names)})", mode="eval").body
    code = next(code for code, known in abi.NAMES.items() if known == dtype)
    address = table.kernel(table.slot([], expression, names, False), code)
    call = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)(address)
    places = np.array([abi.address(a) for a in pointers], np.int64)
    return lambda: call(abi.address(places), pointers[0].size)


def libm_of(name, arrays):
    """A compiled loop over the scalar function."""
    function = LIBM.get(name) or getattr(math, name)
    if len(arrays) == 3:

        @numba.njit(error_model="numpy")
        def loop(out, x, y):
            for i in range(out.size):
                out[i] = function(x[i], y[i])
    else:

        @numba.njit(error_model="numpy")
        def loop(out, x):
            for i in range(out.size):
                out[i] = function(x[i])

    return lambda: loop(*arrays)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", default=sorted(emit.VECTOR | {"power", "sqrt", "sign"}))
    parser.add_argument("--size", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=30)
    given = parser.parse_args()
    random = np.random.default_rng(0)
    print(f"{'':19}  ours  NumPy   libm  (ns per element)")
    for dtype in ("float64", "float32", "complex128", "complex64"):
        pairs = dtype.startswith("complex")
        known = emit.OF_COMPLEX if pairs else emit.VECTOR
        for name in given.names:
            if name == "pow" or {"power": "pow"}.get(name, name) not in known:
                continue
            ufunc = getattr(np, name)
            spans = [SPANS.get(name, (0.01, 0.99)), *[(-3, 3)] * (ufunc.nin - 1)]
            arrays = [np.zeros(given.size, dtype)]
            arrays += [random.uniform(*span, given.size).astype(dtype) for span in spans]
            if pairs:
                arrays = [x + 1j * random.uniform(-1, 1, given.size).astype(x.real.dtype) for x in arrays]
            calls = [
                kernel_of(name, dtype, arrays),
                lambda ufunc=ufunc, arrays=arrays: ufunc(*arrays[1:], out=arrays[0]),
            ]
            if not pairs:
                calls.append(libm_of(name, arrays))
            best = [math.inf] * len(calls)
            for _ in range(given.rounds):
                for k, call in enumerate(calls):
                    start = perf_counter()
                    call()
                    best[k] = min(best[k], perf_counter() - start)
            shown = "".join(f" {1e9 * b / given.size:6.2f}" for b in best)
            op = None if pairs else REGISTRY.get(name)
            used = "  ours" if op and forward.has_vector_form(op, np.dtype(dtype).char) else ""
            print(f"{name:8} {dtype:10}{shown}{used}", flush=True)


if __name__ == "__main__":
    main()
