"""Forward values of large operands: into recycled buffers, and by vector kernels where NumPy is slow."""

from __future__ import annotations

import ast
import functools
from typing import Any

import numpy as np

from tapegrad.kernels import abi, machine, table
from tapegrad.ops.primitive import Elementwise
from tapegrad.tape import pool

ndarray = np.ndarray


@functools.cache
def _numpy_is_vectorised() -> bool:
    """Whether this NumPy has vector forms of tan, tanh and pow for this machine."""
    try:
        from numpy._core._multiarray_umath import (  # type: ignore[import-not-found]
            __cpu_features__ as found,
        )
    except ImportError:
        return False
    return bool(found.get("AVX512_SKX"))


@functools.cache
def _vector(name: str, code: int) -> int:
    """Address of the vector kernel that serves a forward op; 0 where NumPy's own is as fast."""
    if name not in ("sin", "cos") and (name not in ("tan", "tanh", "power") or _numpy_is_vectorised()):
        return 0
    names = ["x", "y"] if name == "power" else ["x"]
    expression = ast.parse(f"np.{name}({', '.join(names)})", mode="eval").body
    return table.kernel(table.slot([], expression, names, False), code)


def _buffer(x: Any) -> Any:
    return pool.empty(x.shape, x.dtype) if x.nbytes >= pool.MIN_BYTES else np.empty(x.shape, x.dtype)


def unary(op: Elementwise, x: Any) -> Any:
    """Value of an op on a large operand."""
    if type(x) is ndarray and x.dtype.char in "df" and x.flags.c_contiguous:
        kernel = _vector(op.name, abi.CODES[x.dtype.char])
        out = _buffer(x)
        if kernel and machine.call_kernel(kernel, out, x):
            return out
        return op.forward(x, out)
    return op.forward(x)


def binary(op: Elementwise, x: Any, y: Any) -> Any:
    """Value of an op on operands of which the first is large."""
    if x.flags.c_contiguous and x.dtype.char in "df":
        same = type(y) is ndarray and y.shape == x.shape and y.dtype is x.dtype
        if same or type(y) is float:
            out = _buffer(x)
            if same and op.name == "power" and y.flags.c_contiguous:
                kernel = _vector(op.name, abi.CODES[x.dtype.char])
                if kernel and machine.call_kernel(kernel, out, x, y):
                    return out
            return op.forward(x, y, out)
    return op.forward(x, y)
