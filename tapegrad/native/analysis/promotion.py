"""Arrays that hold floats first, as before a loop, and active numbers later, as after its first turn.

Numba wants one type of a variable. Which variables those are is known when types do not fit: then the
function is compiled once more, and such a variable holds active numbers from the start, in an array of its
own. Nobody sees that unless one writes to it, or to the array that it was: so that is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from numba.core import ir
from numba.core.errors import TypingError

from tapegrad.native.emission.annotations import Block, Location, RightSide, Variable

FAILED = re.compile(r"Cannot unify array\(([^,]+),[^)]*\) and array\(([^,]+),[^)]*\) for '([^'.]+)[^']*'")
PARTS = (  # what may be the same memory
    "getitem", "static_getitem", "getattr", "cast", "exhaust_iter", "getiter", "iternext", "pair_first",
)  # fmt: skip
WRITING = {"fill", "sort", "partition", "put"}  # methods
GIVEN = (np.copyto, np.fill_diagonal)  # functions


def note(error: TypingError, function: Any) -> bool:
    """Note the variable of a function that this is about, where it is one of those and not yet known."""
    found = FAILED.search(str(error))
    known = vars(function).setdefault("_tapegrad_promoted", set())
    if found is None or ("active" in found[1]) == ("active" in found[2]) or found[3] in known:
        return False
    known.add(found[3])
    return True


def base(name: str) -> str:
    """The user's name of a variable; Numba has one for each assignment."""
    return name if name.startswith("$") else name.partition(".")[0]


def is_writing(function: Any, call: RightSide) -> bool:
    """Whether a call of a function of NumPy's writes to what it is given, or says where its result goes."""
    count = 2 if function is np.dot else function.nin if isinstance(function, np.ufunc) else len(call.args)
    return function in GIVEN or len(call.args) > count or "out" in dict(call.kws)


class Aliases:
    """Which variables of a function may be the same memory, and where it is written to."""

    def __init__(self, blocks: Iterable[Block], resolve: Callable[[Variable], Any]) -> None:
        self.resolve = resolve
        self.links: dict[str, set[str]] = {}
        self.named: set[str] = set()  # variables that may be the memory of others when they are assigned
        self.written: dict[str, Location] = {}
        for block in blocks:
            for line in block.body:
                if isinstance(line, (ir.SetItem, ir.StaticSetItem)):
                    self.written[base(line.target.name)] = line.loc
                elif isinstance(line, ir.Assign):
                    self._assign(base(line.target.name), line.value, line.loc)

    def _assign(self, target: str, value: RightSide, loc: Location) -> None:
        for source in self._sources(value):
            self.named.add(target)
            self.links.setdefault(target, set()).add(source)
            self.links.setdefault(source, set()).add(target)
        if not isinstance(value, ir.Expr):
            return
        if value.op == "inplace_binop":
            self.written[base(value.lhs.name)] = loc
        elif value.op == "getattr" and value.attr in WRITING:
            self.written[base(value.value.name)] = loc
        elif value.op == "call" and self._may_write(value):
            given = (x for x in value.list_vars() if x.name != value.func.name)
            self.written |= dict.fromkeys((base(x.name) for x in given), loc)  # for all that is known

    def _may_write(self, call: RightSide) -> bool:
        """Whether a call may write to what it is given."""
        return not self._of_numpy(call) or is_writing(self.resolve(call.func), call)

    def _of_numpy(self, call: RightSide) -> bool:
        """Whether a call is one of a function of NumPy's, or of a method."""
        function = self.resolve(call.func)
        return function is None or self._is_ufunc(call) or str(function.__module__).startswith("numpy")

    def _sources(self, value: RightSide) -> Iterator[str]:
        """The variables whose memory a value may be."""
        if isinstance(value, ir.Arg):
            yield f"argument {value.name}"
        elif isinstance(value, ir.Var):
            yield base(value.name)
        elif isinstance(value, ir.Expr) and value.op in PARTS:
            yield base(value.value.name)
        elif isinstance(value, ir.Expr) and (value.op == "phi" or value.op.startswith("build_")):
            yield from (base(x.name) for x in value.list_vars())
        elif isinstance(value, ir.Expr) and value.op == "call" and not self._is_ufunc(value):
            yield from (base(x.name) for x in (value.func, *value.args))

    def _is_ufunc(self, call: RightSide) -> bool:
        return isinstance(self.resolve(call.func), np.ufunc)

    def check(self, name: str) -> None:
        """Refuse a variable that is the memory of others, where that is written to."""
        if name not in self.named:
            return
        reached, left = {name}, [name]
        while left:
            found = self.links.get(left.pop(), set()) - reached
            reached |= found
            left += found
        for other in reached & self.written.keys():
            raise TypingError(
                f"tapegrad: {name} is an array of floats first, and one of numbers with derivatives later, "
                f"and its memory may be written to; begin with a copy, {name} = {name}.copy()",
                self.written[other],
            )
