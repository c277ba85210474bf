"""The tables a compiled sweep looks things up in: ops, kernels by number and dtype, conversions, BLAS."""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tapegrad.kernels import abi, cache, emit
from tapegrad.kernels.replay import layout

_slots: dict[tuple[Any, ...], int] = {}  # what a kernel computes -> its number
_recipes: list[tuple[Any, ...]] = []
_kernels = np.zeros((512, 2), np.int64)
_casts = np.zeros((32, 4), np.int64)
_blas = [0, 0]
_operations = np.zeros((1024, layout.ROW), np.int64)
_operations[:8, layout.FORM] = layout.NONE
_operations[layout.CONS, layout.FORM] = layout.CHAIN
count = [8]
_names: dict[int, str] = {}
version = [object()]  # another object after each declaration and each library found
unfinished: list[Callable[[], None]] = []  # completes the rows of ops declared since the last sweep


def operations() -> tuple[Any, int]:
    """Return the table of ops, and how many rows of it are in use."""
    return _operations, count[0]


def slot(statements: Sequence[ast.Assign], expression: ast.expr, arguments: Sequence[str],
         cotangent: bool) -> int:  # fmt: skip
    """Return the number of the kernel for this text; equal texts share one."""
    rename = {name: f"a{q}" for q, name in enumerate(arguments)}
    text = "; ".join(ast.unparse(emit._renamed(node, rename)) for node in (*statements, expression))
    key = (text, len(arguments), cotangent)
    with cache.lock:
        if key not in _slots:
            _slots[key] = len(_recipes)
            _recipes.append((list(statements), expression, tuple(arguments), cotangent))
        return _slots[key]


def kernel(number: int, code: int) -> int:
    """Return the address of a kernel for a dtype code, compiling it if need be."""
    with cache.lock:
        if _kernels[number, code - 1] == 0:
            statements, expression, arguments, cotangent = _recipes[number]
            dtype = abi.NAMES[code]
            text = emit.source(statements, expression, arguments, dtype, cotangent)
            _kernels[number, code - 1] = cache.load(f"kernel_{dtype}", text).kernel.address
        return int(_kernels[number, code - 1])


def cast(source: int, target: int) -> int:
    """Return the address of a conversion between dtype codes, compiling it if need be."""
    with cache.lock:
        if _casts[source, target] == 0:
            text = emit.cast_source(abi.NAMES[source], abi.NAMES[target])
            _casts[source, target] = cache.load("cast", text).kernel.address
        return int(_casts[source, target])


@functools.cache
def blas() -> tuple[int, int]:
    """Addresses of ``dgemm`` and ``sgemm``, from SciPy's table of BLAS functions."""
    import ctypes

    with cache.lock:
        from scipy.linalg import cython_blas

    capsule, text = ctypes.py_object, ctypes.c_char_p
    name = ctypes.PYFUNCTYPE(text, capsule)(("PyCapsule_GetName", ctypes.pythonapi))
    pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, capsule, text)(("PyCapsule_GetPointer", ctypes.pythonapi))
    found = [cython_blas.__pyx_capi__[f] for f in ("dgemm", "sgemm")]
    _blas[:] = [int(pointer(capsule, name(capsule)) or 0) for capsule in found]
    version[0] = object()
    return _blas[0], _blas[1]


def name_of(opcode: int) -> str:
    """Return the name of an op."""
    return _names[opcode]


def declare(name: str, template: int, form: int) -> int:
    """Take a row for an op and return its opcode; `complete` fills in the rest when it is first needed."""
    opcode = count[0]
    _names[opcode] = name
    _operations[opcode, layout.TEMPLATE] = template
    _operations[opcode, layout.FORM] = form
    count[0] += 1
    version[0] = object()
    return opcode


def complete(opcode: int, total: int, partials: Sequence[tuple[int, int, float]]) -> None:
    """Say of each operand what its derivative reads, and the kernel or the constant that it is."""
    row = _operations[opcode]
    row[layout.TOTAL] = total
    for k, (reads, partial, scale) in enumerate(partials):
        row[layout.READS + k], row[layout.PARTIAL + k] = reads, partial
        row.view(np.float64)[layout.SCALE + k] = scale


def place(view: memoryview) -> None:
    """Point a state's words at the tables."""
    while unfinished:
        with cache.lock:
            for finish in unfinished:
                finish()
            unfinished.clear()
    if view[layout.OPCODES] != count[0] or view[layout.DGEMM] != _blas[0]:
        view[layout.OPERATIONS], view[layout.OPCODES] = _at[0], count[0]
        view[layout.KERNELS], view[layout.CASTS] = _at[1], _at[2]
        view[layout.DGEMM], view[layout.SGEMM] = _blas


_at = [abi.address(array) for array in (_operations, _kernels, _casts)]
