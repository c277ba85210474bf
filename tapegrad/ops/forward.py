"""Forward values of large operands: into recycled buffers, and by vector kernels where NumPy is slow."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from tapegrad.kernels import abi, table
from tapegrad.ops.primitive import Elementwise
from tapegrad.tape import pool

ndarray = np.ndarray


@functools.cache
def _simd() -> bool:
    """Whether this NumPy has vector forms of tan, tanh and pow for this machine."""
    try:
        from numpy._core._multiarray_umath import __cpu_features__ as found
    except ImportError:
        return False
    return bool(found.get("AVX512_SKX"))


@functools.cache
def _vector(name: str) -> int | None:
    """Number of the vector kernel that serves a forward op here; None where NumPy's own is as fast."""
    import ast

    if name not in ("sin", "cos") and (_simd() or name not in ("tan", "tanh", "power")):
        return None
    names = ["x", "y"] if name == "power" else ["x"]
    expression = ast.parse(f"np.{name}({', '.join(names)})", mode="eval").body
    return table.slot([], expression, names, False)


def _run(number: int, out: Any, *operands: Any) -> Any:
    from tapegrad.kernels import machine

    words = np.array([abi.address(out), *(abi.address(x) for x in operands)], np.int64)
    kernel = table.kernel(number, abi.CODES[out.dtype.char])
    if machine.call_kernel(kernel, abi.address(words), out.size) != 1:
        return None
    return out


def unary(op: Elementwise, x: Any) -> Any:
    """Value of an op on a large operand."""
    if type(x) is ndarray and x.dtype.char in "df" and x.flags.c_contiguous:
        out = pool.empty(x.shape, x.dtype)
        number = _vector(op.name)
        if number is not None:
            made = _run(number, out, x)
            if made is not None:
                return made
        return op.forward(x, out)
    return op.forward(x)


def binary(op: Elementwise, x: Any, y: Any) -> Any:
    """Value of an op on operands of which the first is large."""
    if x.flags.c_contiguous and x.dtype.char in "df":
        same = type(y) is ndarray and y.shape == x.shape and y.dtype is x.dtype
        if same or type(y) is float:
            out = pool.empty(x.shape, x.dtype)
            if same and op.name == "power" and y.flags.c_contiguous:
                number = _vector(op.name)
                if number is not None:
                    made = _run(number, out, x, y)
                    if made is not None:
                        return made
            return op.forward(x, y, out)
    return op.forward(x, y)
