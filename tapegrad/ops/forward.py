"""Forward values of large operands: in recycled buffers, and by vector forms where NumPy is slow."""

from __future__ import annotations

import ast
import ctypes
import functools
import platform
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any

import numpy as np
from numpy._core import umath

from tapegrad.kernels import abi, machine, table
from tapegrad.kernels.replay import layout
from tapegrad.ops.primitive import Attributes, Elementwise, OfFormula, Primitive, Vector
from tapegrad.tape import pool
from tapegrad.tape.tape import LARGE

ndarray = np.ndarray
error_mode: ContextVar[Any] = umath._extobj_contextvar  # how NumPy handles errors of floating-point numbers
FROM_FUNCTIONS = 1  # place of PyUFunc_FromFuncAndData in NumPy's table of ufunc functions
_kept: list[Any] = []  # what ufuncs know by address


def announce(op: Elementwise, ufunc: np.ufunc) -> None:
    """Tell of a vector form for float64 that is used here; `core.compiled_methods` replaces this."""


# <fenv.h>: invalid, division by zero, overflow, underflow
FLAGS = {"x86_64": (1, 4, 8, 16), "AMD64": (1, 4, 8, 16), "aarch64": (1, 2, 4, 8), "arm64": (1, 2, 4, 8)}
RAISING = "feclearexcept", "feraiseexcept"


@functools.cache
def has_vector_form(op: Primitive, char: str) -> bool:
    """Whether the vector form of an op is faster than NumPy's ufunc on this machine."""
    vector = op.vector
    if vector is None or not vector.real or not _can_raise():
        return False
    return char in (vector.avx512 if _numpy_is_vectorised() else vector.other)


@functools.cache
def _library(*names: str) -> list[int]:
    """Addresses of functions of the C library; zeros if not to be found."""
    try:
        library = ctypes.CDLL(None)
        return [int(ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0) for name in names]
    except (AttributeError, OSError, TypeError):
        return [0] * len(names)


@functools.cache
def error_test() -> tuple[int, int]:
    """The C library's ``fetestexcept``, and the flags of all errors that NumPy reports; zeros if unknown."""
    flags = FLAGS.get(platform.machine())
    return (_library("fetestexcept")[0], sum(flags)) if flags else (0, 0)


def clear_errors() -> int:
    """The C library's ``feclearexcept``; 0 if it is not known."""
    return _library(RAISING[0])[0]


def raise_errors() -> int:
    """The C library's ``feraiseexcept``; 0 if it is not known."""
    return _library(RAISING[1])[0]


@functools.lru_cache(maxsize=16)
def reported(handling: Any, invalid: bool = False) -> tuple[int, Any, bool]:
    """What NumPy tells of where `error_mode` is this.

    Flags of errors, a mode in which it raises these, and whether there are some that it raises or calls for.
    Among the flags, not those called for, are perhaps `invalid` values at any rate.
    """
    before = error_mode.set(handling)
    try:
        handled: dict[str, Any] = dict(np.geterr())
        how: dict[str, Any] = {kind: "ignore" if x == "ignore" else "raise" for kind, x in handled.items()}
        if invalid:
            how["invalid"] = "raise"
        np.seterr(**how)
        return _reported_of(**how)[0], error_mode.get(), _reported_of(**handled)[1]
    finally:
        error_mode.reset(before)


def reported_here() -> tuple[int, bool]:
    """Flags of errors that NumPy tells of here, and whether there are some that it raises or calls for."""
    return _reported_of(**np.geterr())


@functools.cache
def _reported_of(divide: str, over: str, under: str, invalid: str) -> tuple[int, bool]:
    handled = [*zip((invalid, divide, over, under), FLAGS[platform.machine()], strict=True)]
    loud = any(how not in ("ignore", "warn") for how, _ in handled)
    return sum(flag for how, flag in handled if how != "ignore"), loud


@functools.cache
def silent() -> Any:
    """A mode of `error_mode` in which NumPy tells of no errors: to set it takes a tenth of a block's time."""
    with np.errstate(all="ignore"):
        return error_mode.get()


def _can_raise() -> bool:
    """Whether the flags of errors that NumPy reads are ours to set."""
    return 0 not in _library(*RAISING) and platform.machine() in FLAGS


@functools.cache
def _numpy_is_vectorised() -> bool:
    """Whether this NumPy has vector forms of nearly all functions for this machine."""
    try:
        from numpy._core._multiarray_umath import (  # type: ignore[import-not-found]
            __cpu_features__ as found,
        )
    except ImportError:
        return False
    return bool(found.get("AVX512_SKX"))


@functools.cache
def vector_form(op: Elementwise, char: str) -> Any:
    """The ufunc of our vector form of an op for one dtype; of errors it reports all but underflow."""
    names = ["x", "y"][: op.arity]
    expression = ast.parse(f"np.{op.name}({', '.join(names)})", mode="eval").body
    ufunc = _ufunc(op, table.slot([], expression, names, False), char)
    if char == "d" and has_vector_form(op, char):
        announce(op, ufunc)
    return ufunc


@functools.cache
def ufunc_of(op: Primitive) -> np.ufunc | None:
    """The ufunc that computes an op: NumPy's, or one of a formula's text; None if there is none."""
    if isinstance(op, OfFormula):
        return _ufunc(op, table.slot(*op.text, False), "df") if _can_raise() else None
    first = op.functions[0] if op.functions else None
    return first if isinstance(first, np.ufunc) else None


@functools.cache
def choosing(op: Elementwise) -> np.ufunc | None:
    """A ufunc that computes `np.where` of numbers of one dtype, of which the first is the condition."""
    condition = ast.parse("np.where(x != 0, y, z)", mode="eval").body
    return _ufunc(op, table.slot([], condition, ["x", "y", "z"], False), "df") if _can_raise() else None


def _ufunc(op: Elementwise, slot: int, chars: str) -> np.ufunc:
    """A ufunc of the kernels of a text for these dtypes; of errors it reports all but underflow."""
    enter, _ = machine.load()
    invalid, pole, overflow, _ = FLAGS[platform.machine()]
    poles = op.vector or Vector()
    infinite = pole if poles.pole else overflow
    at_zero = pole if poles.pole_at_zero else infinite
    errors = [*_library(*RAISING), invalid, infinite, at_zero]
    data = np.array([
        [table.kernel(slot, abi.CODES[char]), op.arity, np.dtype(char).itemsize, *errors] for char in chars
    ])  # fmt: skip
    loops = np.array([[enter(layout.LOOP, 0, 0, 0)] * len(chars), [abi.address(row) for row in data]])
    numbers = [np.dtype(char).num for char in chars for _ in range(op.arity + 1)]
    types = ctypes.create_string_buffer(bytes(numbers))
    name = ctypes.create_string_buffer(op.name.encode())
    _kept.append((data, loops, types, name))
    at, begin = abi.address(loops), abi.address(loops[1])
    n, arity = len(chars), op.arity
    return _maker()(at, begin, ctypes.addressof(types), n, arity, 1, -1, ctypes.addressof(name), 0, 0)


@functools.cache
def _maker() -> Callable[..., Any]:
    """NumPy's ``PyUFunc_FromFuncAndData``."""
    word, number = ctypes.c_void_p, ctypes.c_int
    kind = ctypes.PYFUNCTYPE(
        ctypes.py_object, word, word, word, number, number, number, number, word, word, number
    )
    return kind(abi.numpy_function("_UFUNC_API", FROM_FUNCTIONS))


def _function(op: Elementwise, char: str) -> Any:
    return vector_form(op, char) if char in "df" and has_vector_form(op, char) else op.forward


def _recycles(function: Callable[..., Any], x: np.ndarray) -> bool:
    """Whether to give a function a recycled buffer for its result."""
    large = x.nbytes >= pool.MIN_BYTES and x.flags.c_contiguous and x.dtype.char in "df"
    return large and isinstance(function, np.ufunc) and _keeps_dtype(function, x.dtype.char)


@functools.cache
def _keeps_dtype(ufunc: np.ufunc, char: str) -> bool:
    """Whether a ufunc's result has the dtype of its operands; of some of SciPy's it is complex."""
    return char * ufunc.nin + "->" + char in ufunc.types


def value(op: Primitive, operands: Sequence[Any], attrs: Attributes | None) -> Any:
    """Return the value of an op as recording computes it."""
    if attrs:
        return op.forward(*operands, **attrs)
    x = operands[0]
    if type(x) is ndarray and x.nbytes > LARGE and isinstance(op, Elementwise) and op.arity < 3:
        return unary(op, x) if op.arity == 1 else binary(op, *operands)
    return op.forward(*operands)


def taken(op: Primitive, out: Any) -> Attributes:
    """Return the attributes that an op's value is computed with and a record has from its value."""
    if isinstance(op, Elementwise) and op.takes is not None:
        return {op.takes: getattr(out, op.takes)}
    return {}


def unary(op: Elementwise, x: np.ndarray) -> np.ndarray:
    """Value of an op on a large operand."""
    function = _function(op, x.dtype.char)
    if _recycles(function, x):
        return function(x, out=pool.empty(x.shape, x.dtype))
    return function(x)


def binary(op: Elementwise, x: Any, y: Any) -> np.ndarray:
    """Value of an op on operands of which the first is large."""
    if type(y) is int and x.dtype.char in "df" and abs(y) <= layout.EXACT:
        y = float(y)
    alike = type(y) is ndarray and y.dtype is x.dtype
    if not alike and type(y) is not float:
        return op.forward(x, y)
    function = _function(op, x.dtype.char)
    if alike and y.shape != x.shape:
        if y.nbytes > x.nbytes or not _recycles(function, x):
            return op.forward(x, y)
        return function(x, y, out=pool.empty(np.broadcast_shapes(x.shape, y.shape), x.dtype))
    if _recycles(function, x):
        return function(x, y, out=pool.empty(x.shape, x.dtype))
    return function(x, y)
