"""The tables a compiled sweep looks things up in: ops, kernels by number and dtype, conversions, BLAS."""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tapegrad.kernels import abi, cache, emit
from tapegrad.kernels.blas import numpys_products, numpys_threads, scipys_products
from tapegrad.kernels.locks import compiling
from tapegrad.kernels.replay import layout
from tapegrad.kernels.words import Address

Text = tuple[list[ast.Assign], ast.expr]
_slots: dict[tuple[Any, ...], int] = {}  # what a kernel computes -> its number
_recipes: list[tuple[Any, ...]] = []
_kernels = np.zeros((2048, layout.COLUMNS), np.int64)
_casts = np.zeros((32, 8), np.int64)
_blas = np.zeros(10, np.int64)  # whether products are for any size; by dtype code the addresses of each
_operations = np.zeros((1024, layout.ROW), np.int64)
_operations[:8, layout.FORM] = layout.NONE
_operations[layout.CONS, layout.FORM] = layout.CHAIN
count = [8]
_names: dict[int, str] = {}
version = [object()]  # another object after each declaration and each library found
unfinished: list[Callable[[], None]] = []  # completes the rows of ops declared since the last sweep


def operations() -> tuple[np.ndarray, int]:
    """Return the table of ops, and how many rows of it are in use."""
    return _operations, count[0]


def slot(statements: Sequence[ast.Assign], expression: ast.expr, arguments: Sequence[str],
         cotangent: bool, of_complex: Text | None = None) -> int:  # fmt: skip
    """Return the number of the kernels for this text; equal texts share one.

    `of_complex` are the statements and the expression for complex numbers, if others.
    """
    texts = [(list(statements), expression), of_complex or (list(statements), expression)]
    rename = {name: f"a{q}" for q, name in enumerate(arguments)}
    plain = ["; ".join(ast.unparse(emit.renamed(node, rename)) for node in (*s, e)) for s, e in texts]
    key = (*plain, len(arguments), cotangent)
    with compiling():
        if key not in _slots:
            if len(_recipes) == len(_kernels):  # compiled code would read beyond the table
                raise MemoryError(f"there is room for {len(_kernels)} different derivatives of ops")
            _slots[key] = len(_recipes)
            _recipes.append((texts, tuple(arguments), cotangent))
        return _slots[key]


def recipes() -> int:
    """Return how many different kernels there are, of the ops declared so far."""
    finish()
    return len(_recipes)


def kernel(number: int, column: int) -> Address:
    """Return the address of a kernel for a dtype code, compiling it if need be.

    For real results of complex operands `column` is OF_COMPLEX more (`replay.reading.column`). It is
    BY_RULE_ONLY where the text has no form for complex numbers, or none of what it calls is there.
    """
    with compiling():
        if _kernels[number, column] == 0:
            texts, arguments, cotangent = _recipes[number]
            own = column <= layout.OF_COMPLEX
            code = column if own else column - layout.OF_COMPLEX + layout.PAIRS
            dtype = abi.NAMES[code]
            statements, expression = texts[code >= layout.COMPLEX]
            try:
                text = emit.source(statements, expression, arguments, dtype, cotangent, own)
            except emit.RuleError as error:
                if code < layout.COMPLEX and not isinstance(error, emit.UnlinkedError):
                    raise
                _kernels[number, column] = layout.BY_RULE_ONLY
            else:
                _kernels[number, column] = cache.load(f"kernel_{dtype}", text).kernel.address
        return int(_kernels[number, column])


def cast(source: int, target: int) -> Address:
    """Return the address of a conversion between dtype codes, compiling it if need be."""
    with compiling():
        if _casts[source, target] == 0:
            text = emit.cast_source(abi.NAMES[source], abi.NAMES[target])
            _casts[source, target] = cache.load("cast", text).kernel.address
        return int(_casts[source, target])


@functools.cache
def blas() -> None:
    """Find the products of each dtype: NumPy's, for any size, else SciPy's, for small ones."""
    known = numpys_products()
    _blas[0], _blas[layout.THREADS] = bool(known), numpys_threads() if known else 0
    known = known or scipys_products()
    for code, char in zip((4, 3, 2, 1), "FDfd", strict=True):  # a sweep looks whether the first is there
        _blas[layout.GEMV + code], _blas[code] = known[char].gemv, known[char].gemm
    version[0] = object()


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


def finish() -> None:
    """Fill in the rows of all ops declared since."""
    while unfinished:
        with compiling():
            for complete_row in unfinished:
                complete_row()
            unfinished.clear()


def place(view: memoryview) -> None:
    """Point a state's words at the tables."""
    finish()
    view[layout.OPCODES] = count[0]
    for place, at in _at.items():
        view[place] = at


_at = {
    layout.OPERATIONS: abi.address(_operations), layout.KERNELS: abi.address(_kernels),
    layout.CASTS: abi.address(_casts), layout.GEMM: abi.address(_blas),
}  # fmt: skip
