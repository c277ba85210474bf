"""Which statements are read outside the record that they are in: the others need no cotangents in memory.

A number of a statement is followed through the code of a function, as LLVM has it before it is optimised:
through structs that it is put into, and through variables. What goes anywhere else is read outside.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from llvmlite import ir
from llvmlite.ir import instructions

from tapegrad.native.emission.annotations import Value


class Uses:
    """Where the values of a function are used."""

    def __init__(self, blocks: Iterable[ir.Block]) -> None:
        self.of: dict[int, list[Value]] = defaultdict(list)
        for block in blocks:
            for line in block.instructions:
                phi = isinstance(line, instructions.PhiInstr)
                for value in [x for x, _ in line.incomings] if phi else line.operands:
                    self.of[id(value)].append(line)

    def leaves(self, number: Value) -> bool:
        """Whether a number of a statement is used by anything but structs and variables that hold it."""
        left: list[tuple[Value, tuple[int, ...]]] = [(number, ())]  # a value, and the number's place in it
        seen = {(id(number), ())}
        while left:
            value, place = left.pop()
            for line in self.of[id(value)]:
                found = self._held(line, value, place)
                if found is None:
                    return True
                new = [pair for pair in found if (id(pair[0]), pair[1]) not in seen]
                seen |= {(id(holder), inside) for holder, inside in new}
                left += new
        return False

    def _held(
        self, line: Value, value: Value, place: tuple[int, ...]
    ) -> list[tuple[Value, tuple[int, ...]]] | None:
        """What holds a number, and where, after a line that uses what it is in; None if nobody knows."""
        if isinstance(line, instructions.InsertValue):
            whole, part = line.operands
            at = tuple(line.indices)
            inside = [(line, at + place)] if part is value else []
            return inside + ([(line, place)] if whole is value and place[: len(at)] != at else [])
        if isinstance(line, instructions.ExtractValue):
            at = tuple(line.indices)
            return [(line, place[len(at) :])] if place[: len(at)] == at else []
        if isinstance(line, instructions.StoreInstr):
            stored, variable = line.operands
            if isinstance(variable, instructions.AllocaInstr) and stored is value:
                return self._loaded(variable, place)
        return None

    def _loaded(self, variable: Value, place: tuple[int, ...]) -> list[tuple[Value, tuple[int, ...]]] | None:
        """What is read of a variable; None if its address is used for anything else."""
        loads = [x for x in self.of[id(variable)] if isinstance(x, instructions.LoadInstr)]
        stores = [x for x in self.of[id(variable)] if isinstance(x, instructions.StoreInstr)]
        known = len(loads) + len(stores) == len(self.of[id(variable)])
        if not known or any(x.operands[0] is variable for x in stores):
            return None
        return [(load, place) for load in loads]
