"""The layout of a record, and the opcodes that are not ops.

An open tape is a list of four entries per record: opcode, first operand, second operand, value. An
operand is written as the length the list had when the operand's own record was complete, so record
``k`` is ``4 * (k + 1)`` and 0 means none. A record with more than two operands chains them through
CONS records. A LINK has the number of an older tape (see `Tape.older`) and the position there. Where a
template reads a small number instead of a second operand (a mask of axes, an offset), that number stands in
its place.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TypeAlias

import numpy as np

Record: TypeAlias = int  # its number on its tape, from 0
Position: TypeAlias = int  # how long an open tape's list was when the record was complete; 0 for none
Value: TypeAlias = np.ndarray | np.generic

STRIDE = 4

CONST, LEAF, LINK, CONS = range(4)
FIRST_OP = 8


class Template(IntEnum):
    """What a compiled sweep does at a record."""

    IMPORT = 0  # CONST, LEAF, LINK, CONS: nothing
    ELEMENTWISE = 1
    REDUCE = 2
    RESHAPE = 3
    ELEMENT = 4
    SCAN = 5
    MATMUL = 6
    COMPILED = 7
    VIEW = 8
    SCATTER = 9
    ASSIGN = 10
    PUT = 11
    RECURRENCE = 12
    PYTHON = 13


def slot(at: Position) -> Record:
    """Return the record number that a handle's position means."""
    return (at >> 2) - 1
