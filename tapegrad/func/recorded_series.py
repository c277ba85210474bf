"""Power series of functions that are recorded: one walk over the records in compiled code.

It takes elementwise ops of real numbers in double precision, of one shape or numbers, sums and means of all
of them, inner products and single elements. All else is found by `core.series`.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tapegrad.core.base import extra
from tapegrad.core.dispatch import enabled
from tapegrad.core.grad_mode import switches
from tapegrad.core.storage import OPEN
from tapegrad.errors import is_from_signal
from tapegrad.func.signatures import Function
from tapegrad.kernels import abi, table
from tapegrad.kernels import series as compiled
from tapegrad.kernels.replay import layout
from tapegrad.kernels.replay import series_layout as places
from tapegrad.ops.primitive import BY_OPCODE, Elementwise
from tapegrad.ops.series import words_of
from tapegrad.tape.record import STRIDE
from tapegrad.tape.tape import MAX_RECORDS, current, leave
from tapegrad.tensor import Operand, TensorOrArray, is_tensor, wrap

if TYPE_CHECKING:
    from tapegrad.tensor import Tensor

ROOM = 1 << 13  # numbers there is room for from the start
KEPT = 1 << 20  # numbers, above which memory is let go of
_programs = np.zeros(1024 << places.OPERAND_BITS, np.int64)  # addresses of programs; 0: to be made, -1: none
_kept: list[Any] = []


class _State:
    """The words of a walk, and its memory."""

    def __init__(self) -> None:
        self.words = np.zeros(places.SERIES_WORDS, np.int64)
        self.view = self.words.data
        self.number = self.words.view(np.float64).data[places.DIRECTION_NUMBER :]
        self.at = abi.address(self.words)
        self.view[places.NUMBER_KIND], self.view[places.ARRAY_KIND] = id(np.float64), id(np.ndarray)
        self.view[places.DTYPE_KIND] = id(np.dtype(np.float64))
        self.view[places.TRUTH_KIND], self.view[places.TRUTHS_KIND] = id(np.bool_), id(np.dtype(bool))
        self.view[places.OPS_AT] = abi.address(table.operations()[0])
        self.view[places.PROGRAMS_AT] = abi.address(_programs)
        self.make_room(ROOM)

    def make_room(self, count: int) -> None:
        self.space = np.empty(count)
        self.view[places.SPACE], self.view[places.SPACE_BYTES] = abi.address(self.space), 8 * count


_idle: deque[_State] = deque()
_types = {float, int, np.float64}
possible = functools.cache(lambda: abi.native() and not layout.BOUNDS)


def expand(
    f: Function, args: Sequence[Any], k: int, v: TensorOrArray | float, order: int
) -> np.ndarray | None:
    """Return the coefficients of ``f`` along a direction of argument k; None for another way to find them.

    Arguments are plain. Where None is returned, `f` may have been called.
    """
    x, number = args[k], type(args[k]) in _types
    if OPEN or enabled() is not True or not possible():
        return None
    if number and type(v) in _types:
        value: Any = np.float64(x)
    elif type(x) is np.ndarray and type(v) is np.ndarray and x.dtype == v.dtype == float and x.size:
        if x.shape != v.shape or x.ndim == 0:
            return None
        value, v = np.array(x, order="C"), np.ascontiguousarray(v)
    else:
        return None
    tape = current()
    if len(tape.log) > STRIDE * MAX_RECORDS // 2:
        leave(tape)
        tape = current()
    leaf = wrap(value)
    extra(leaf).requires_grad = True
    given = list(args)
    given[k], before = leaf, switches[0]
    try:
        try:
            y = f(*given)
        except Exception as error:
            if is_from_signal(error):
                raise
            return None  # the other way raises it, if it belongs to the function
        if not is_tensor(y) or y._tape is not tape or tape.limit < 0 or leaf._tape is not None:
            return None  # after a sweep, too: what it gave may depend on the argument
        if switches[0] != before:
            return None  # and so may what was not recorded
        at = tape.leaves.get(leaf._at)
        return None if at is None else _from_record(tape.log, at, y, value, v, order)
    finally:
        if tape.limit >= 0:
            leave(tape)


def along(x: Tensor, y: Tensor, v: Tensor, order: int) -> np.ndarray | None:
    """As `expand`, of what was recorded from one Tensor to another, which are on the open tape."""
    tape, value, direction = x._tape, x._v, v._v
    if not possible() or tape is None or y._tape is not tape or v.requires_grad or value.dtype != float:
        return None
    if type(value) is np.ndarray:
        if not (value.size and value.ndim and value.flags.c_contiguous):
            return None
        direction = np.ascontiguousarray(direction)
    return _from_record(tape.log, x._at, y, value, direction, order)


def _from_record(
    log: list[Operand], at: int, y: Tensor, value: Operand, v: Operand, order: int
) -> np.ndarray | None:
    """The series of a result from that of a record, if the walk takes all between them."""
    if y._at < at:
        return None
    try:
        state = _idle.pop()  # its own until it is given back: anything may run where objects are made
    except IndexError:
        state = _State()
    found = _walked(state, log, at // STRIDE - 1, y, value, v, order)
    _idle.append(state)
    return found


def _walked(
    state: _State, log: list[Any], moved: int, y: Tensor, value: Any, v: Any, order: int
) -> np.ndarray | None:
    number, wanted = type(value) is np.float64, y._at // STRIDE - 1
    view, n = state.view, 1 if number else value.size
    view[places.LOG_AT], view[places.MOVED], view[places.LOOKED_FOR] = id(log), moved, wanted
    view[places.HIGHEST], view[places.ELEMENTS], view[places.IS_NUMBER] = order, n, number
    if number:
        state.number[0] = v
        view[places.DIRECTION] = state.at + 8 * places.DIRECTION_NUMBER
    else:
        view[places.DIRECTION] = abi.location(v)
    table.finish()
    walk = compiled.load()
    while (status := walk(state.at, 0, 0)) != places.EXPANDED:
        if status == places.NO_PROGRAM:
            _make_program(view[places.WANTED])
        elif status == places.NO_ROOM:
            state.make_room((wanted - moved + 2 + places.NODES) * (n * (order + 1) + 2))
        else:
            return None
    count = view[places.FOUND_COUNT]
    found = state.space[: count * (order + 1)].copy()
    if view[places.SUSPECT]:  # what is nan may come of a value that the tape has not kept, or of 0 times inf
        found[:count] = np.ravel(y._v)
        if not np.isfinite(found).all():
            return None
    if state.space.size > KEPT:
        state.make_room(ROOM)
    return found if number else found.reshape(order + 1, *y._v.shape)


def _make_program(wanted: int) -> None:
    """Note the program of an op, for operands of which some move."""
    op = BY_OPCODE[wanted >> places.OPERAND_BITS]
    words = None
    if isinstance(op, Elementwise) and op.arity <= places.OPERAND_BITS:
        words = words_of(op, tuple(bool(wanted >> q & 1) for q in range(op.arity)))
    if words is None:
        _programs[wanted] = -1
        return
    program = np.array(words, np.int64)
    _kept.append(program)
    _programs[wanted] = abi.address(program)
