"""Cotangents of a program: where they lie, and rows that add them up."""

from __future__ import annotations

from typing import Any

import numpy as np

from tapegrad.compilation.events.events import Source, is_active
from tapegrad.compilation.memory.pages import Pages, zeros
from tapegrad.compilation.programs.program import Program
from tapegrad.compilation.programs.row_forms import Places
from tapegrad.compilation.rows.rows import Rows, is_dense
from tapegrad.compilation.rows.table import BLOCK, Block
from tapegrad.kernels import abi


class Cotangents:
    """Buffers of cotangents, and rows that write there."""

    def __init__(self, program: Program) -> None:
        self.program, self.rows = program, Rows(silent=True)
        self.places = Places(program.arguments, program.values, program.operands_at_hand)
        self.places.note_all()
        self.found: dict[Source, np.ndarray] = {}
        self.buffers: list[np.ndarray] = []
        self.holders: dict[int, int] = {}  # by ids of these: how many cotangents lie there
        self.pools = {c: zeros((2 * len(program.events) + 1,), np.dtype(c)) for c in self._kinds()}
        self.totals = dict.fromkeys(self.pools, 0)  # how many of them take sums of arrays, 0 to begin with
        for pool in self.pools.values():
            self.rows.loop(np.positive, [np.zeros((), pool.dtype)], pool)
            self.rows.divide()
        self.free: list[np.ndarray] = []
        self.constants: list[np.ndarray] = []  # cotangents that are the same at each call
        self.blocks: list[np.ndarray] = []  # all that there are
        self._pages = Pages()
        self._blocks: list[Block] = []  # of the event at work
        self._idle: dict[tuple[str, int], list[Block]] = {}  # blocks, by what they hold

    def _kinds(self) -> set[str]:
        """Dtypes of which there may be sums."""
        return self.program.values.kinds() & {"d", "f"}

    def _clear_no_more(self) -> None:
        """Let the first rows clear but those numbers of the pools that take sums; others need no pages."""
        for k, count in enumerate(self.totals.values()):
            self.rows.shorten(k, count)

    def _combined(self, ufunc: np.ufunc, ct: np.ndarray, number: np.ndarray, out: Any) -> Any:
        """What a ufunc gives of a cotangent and a number: a constant of one, else `out`, which rows write."""
        if not ct.ndim and any(abi.owner_of(ct) is x for x in self.constants):
            self.constants.append(np.asarray(ufunc(ct, number)))
            return self.constants[-1]
        if not self.rows.loop(ufunc, [ct, number], out, ct.size):
            self.rows.call(ufunc, [ct, number, out])
        return out

    def _total(self, kind: str) -> np.ndarray:
        """A number that takes a sum, by the rows of a group."""
        k = self.totals[kind]
        self.totals[kind] = k + 1
        return self.pools[kind][k : k + 1].reshape(())

    def _block(self, dtype: np.dtype, extent: int) -> Block:
        """A block, in which nothing is that another row of the event needs."""
        idle = self._idle.get((dtype.char, min(extent, BLOCK)))
        if not idle:
            idle = [Block(dtype, extent, self._pages.zeros)]
            self.blocks.append(idle[0].array)
        self._blocks.append(idle.pop())
        return self._blocks[-1]

    def _reuse_blocks(self) -> None:
        """Let the next event have the blocks, as each row of a group comes after those before it."""
        for x in self._blocks:
            self._idle.setdefault((x.array.dtype.char, x.array.size), []).append(x)
        self._blocks.clear()

    def _is_active(self, source: Source) -> bool:
        """Whether an operand depends on the arguments."""
        return is_active(source, self.program.active)

    def _room(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """A buffer of this shape, in which no cotangent lies."""
        for k, x in enumerate(self.free):
            if x.shape == shape and x.dtype == dtype:
                return self.free.pop(k)
        out = zeros(shape, dtype)
        self.buffers.append(out)
        self.holders[id(out)] = 0
        return out

    def _like(self, source: Source) -> np.ndarray:
        """A buffer for the cotangent of an argument or a result."""
        shape, _, dtype = self.places.look(*source)
        return self._room(shape, dtype)

    def _hold(self, source: Source, ct: np.ndarray) -> None:
        """Let this be the cotangent of an argument or a result."""
        before, at = self.found.get(source), id(abi.owner_of(ct))
        self.found[source] = ct
        if at in self.holders:
            self.holders[at] += 1
        if before is not None:
            self._let_go(before)

    def _let_go(self, ct: np.ndarray) -> None:
        """Use the buffer of a cotangent again, if no other one lies there."""
        owner = abi.owner_of(ct)
        if id(owner) in self.holders:
            self.holders[id(owner)] -= 1
            self._drop(owner)

    def _drop(self, x: np.ndarray) -> None:
        """Use an array again, if it is a buffer in which no cotangent lies."""
        if self.holders.get(id(x)) == 0:
            self.free.append(x)

    def _may_be_added_to(self, ct: np.ndarray, source: Source) -> bool:
        """Whether a cotangent is the only one in its buffer, that of the event at work included."""
        return self.holders.get(id(ct)) == 1 and ct.ndim == self._ndim(source)

    def _give(self, source: Source, part: np.ndarray) -> None:
        """Add a part to a cotangent; one without axes counts for each element."""
        before = self.found.get(source)
        if before is None:
            if part.ndim and not is_dense(part):
                out = self._like(source)
                self._positive(part, out)
                part = out
            self._hold(source, part)
            return
        out = before if self._may_be_added_to(before, source) else self._like(source)
        if not self.rows.loop(np.add, [before, part], out, out.size):
            self.rows.call(np.add, [before, part, out])
        if out is not before:
            self._hold(source, out)
        self._drop(part)

    def _ndim(self, source: Source) -> int:
        return len(self.places.look(*source)[0])

    def _positive(self, part: np.ndarray, out: np.ndarray) -> None:
        if not self.rows.loop(np.positive, [part], out, out.size):
            self.rows.call(np.positive, [part, out])

    def _whole(self, source: Source, ct: np.ndarray) -> np.ndarray:
        """A cotangent in an array of the result's shape, dense."""
        value = self.program.at_hand(source)
        if ct.shape == value.shape:
            return ct
        out = self._like(source)
        self._positive(ct, out)
        return out

    def _target(self, source: Source) -> tuple[np.ndarray, bool]:
        """A buffer of the whole cotangent of an operand, to be added to, and whether it has nothing yet."""
        before = self.found.get(source)
        if before is None:
            out = self._like(source)
            self._hold(source, out)
            return out, True
        if not self._may_be_added_to(before, source):
            out = self._like(source)
            self._positive(before, out)
            self._hold(source, out)
            return out, False
        return before, False
