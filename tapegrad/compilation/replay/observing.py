"""What Python does in a call that is watched: the code that runs, and the names by which that reads."""

from __future__ import annotations

import dis
import functools
import gc
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FrameType
from typing import Any, NamedTuple

import numpy as np

from tapegrad.compilation.programs.decisions import Decision, decision_on
from tapegrad.compilation.replay.allowed import REFUSED_METHODS, is_known_function, is_made_by_scipy
from tapegrad.kernels.cache import is_generated
from tapegrad.tensor import Tensor

GLOBAL = {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"}
CHANGED = {"STORE_GLOBAL", "DELETE_GLOBAL", "STORE_NAME", "DELETE_NAME"}
ATTRIBUTE = {"LOAD_ATTR", "LOAD_METHOD"}
REFUSED = {
    "IMPORT_NAME": "imports a module: import it outside",
    "LOAD_BUILD_CLASS": "makes a class: make it outside",
    "BUILD_SET": "makes a set, whose order may be another one at each call: use a list or a dict",
    "MATCH_CLASS": "matches a class, which reads attributes by the pattern: use isinstance",
}
KNOWN = 1 << 10  # functions whose code is remembered
SPECIAL = {
    "__init__",
    "__call__",
    "__len__",
    "__getitem__",
    "__post_init__",
}  # whose code is seen when it runs


class Violation(NamedTuple):
    """What a function does that rules out skipping it, and where."""

    what: str
    where: str

    def __str__(self) -> str:
        return f"{self.where}: it {self.what}"


class Reads(NamedTuple):
    """What code can read by names.

    Attributes
    ----------
    names
        Globals, with the attributes read off them at once, and the line.
    attributes
        All other attributes that are read or written, with a line.
    violations
        What it may not do.
    """

    names: tuple[tuple[str, tuple[str, ...], str], ...]
    attributes: dict[str, str]
    violations: tuple[Violation, ...]


@functools.lru_cache(KNOWN)
def reads_of(code: CodeType) -> Reads:
    """Return what a code object can read by names."""
    names: list[tuple[str, tuple[str, ...], str]] = []
    attributes: dict[str, str] = {}
    violations, line = [], code.co_firstlineno
    instructions = list(dis.get_instructions(code))
    k = 0
    while k < len(instructions):
        step = instructions[k]
        line, k = _line(step) or line, k + 1
        where = place(code, line)
        if step.opname in REFUSED:
            violations.append(Violation(REFUSED[step.opname], where))
        if step.opname in GLOBAL | CHANGED:
            chain = []
            while (
                step.opname in GLOBAL
                and k < len(instructions)
                and instructions[k].opname in ATTRIBUTE
                and not instructions[k].is_jump_target
            ):
                chain.append(str(instructions[k].argval))
                k += 1
            names.append((str(step.argval), (*chain,), where))
            attributes |= {name: where for name in chain if name.startswith("__")}
        elif step.opcode in dis.hasname and step.opname != "IMPORT_NAME":
            attributes[str(step.argval)] = where
    for name, where in attributes.items():
        if name in REFUSED_METHODS or (name.startswith("__") and name not in SPECIAL):
            violations.append(Violation(f"uses .{name}, whose reads and effects cannot be compared", where))
    return Reads(tuple(names), attributes, tuple(violations))


def _line(step: dis.Instruction) -> int | None:
    return None if step.positions is None else step.positions.lineno


def place(code: CodeType, line: int | None) -> str:
    """Say where a line of code is."""
    return f"{code.co_filename.rpartition(os.sep)[2]}:{line}, in {code.co_name}"


@functools.cache
def is_library(file: str) -> bool:
    """Whether a file is of this package, or NumPy's or SciPy's: these are known by their functions."""
    return file.startswith(LIBRARIES) or is_generated(file)


STANDARD = os.path.join(os.path.dirname(os.__file__), ""), "<frozen "  # modules of Python's
LIBRARIES = tuple(
    os.path.join(folder, "")
    for folder in (
        str(Path(__file__).absolute().parents[2]),
        os.path.dirname(os.path.abspath(np.__file__)),
        os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(np.__file__))), "scipy"),
    )
)


class Observer:
    """What watches one call.

    Attributes
    ----------
    codes
        Code of the user's that ran, with the dicts of its globals and builtins.
    violations
        What was seen that rules out skipping the function.
    decisions
        What was told of values that were looked at.
    looks
        Where others were looked at, which may be because an operation was another one.
    was_alone
        Whether all of it could be seen: no profiler of somebody else's was at work.
    """

    def __init__(self) -> None:
        self.was_alone = sys.getprofile() is None
        self.codes: dict[tuple[CodeType, int], tuple[dict[str, Any], dict[str, Any]]] = {}
        self.violations: list[Violation] = []
        self.looks: list[Violation] = []
        self.decisions: list[Decision] = []

    def watch(self, run: Callable[[list[Tensor]], Any], handles: list[Tensor]) -> Any:
        """Call a function while it is watched; where somebody else watches, it is called as it is."""
        if not self.was_alone:
            return run(handles)
        collecting = gc.isenabled()
        try:
            gc.disable()  # as finalizers of other objects are none of the function's code
            sys.setprofile(self._see)
            return run(handles)
        finally:
            sys.setprofile(None)
            if collecting:
                gc.enable()

    def see_value(self, function: Callable[..., Any], operands: Sequence[Any], found: Any) -> None:
        """Note what a function tells of values that are looked at, by code of the user's."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and not _is_users(frame):
            frame = frame.f_back
        where = "somewhere" if frame is None else place(frame.f_code, frame.f_lineno)
        decision = decision_on(function, operands, found, where)
        if decision is not None:
            self.decisions.append(decision)
        elif frame is not None:
            text = "looks at a value (float, a comparison in Python, or a function that computes at once)"
            self.looks.append(Violation(text, where))

    def _see(self, frame: FrameType, event: str, arg: Any) -> None:
        code = frame.f_code
        if event == "call":
            if _is_users(frame):
                self.codes.setdefault((code, id(frame.f_globals)), (frame.f_globals, frame.f_builtins))
            elif code.co_name == "__getattr__" and frame.f_back is not None and _is_users(frame.f_back):
                where = place(frame.f_back.f_code, frame.f_back.f_lineno)
                self.violations.append(Violation("reads a module that is loaded when it is asked for", where))
        elif event == "c_call" and _is_unknown(arg) and _is_users(frame):
            module = f"{arg.__module__}." if arg.__module__ not in (None, "builtins") else ""
            what = f"calls {module}{arg.__qualname__}, whose reads and effects cannot be compared"
            self.violations.append(Violation(what, place(code, frame.f_lineno)))


def _is_unknown(x: Any) -> bool:
    return type(x) is BuiltinFunctionType and not is_known_function(x)


def _is_users(frame: FrameType) -> bool:
    """Whether code is the user's, or Python's own, or that of a named tuple, that the user's has called."""
    at: FrameType | None = frame
    while at is not None and (
        at.f_code.co_filename.startswith(STANDARD)
        or at.f_globals.get("__name__", "").startswith("namedtuple_")
        or is_made_by_scipy(at.f_code)
    ):
        at = at.f_back
    return at is not None and not is_library(_file_of(at))


def _file_of(frame: FrameType) -> str:
    """The file that code is in; of what a dataclass has made that of the module."""
    file = frame.f_code.co_filename
    return str(frame.f_globals.get("__file__", file)) if file.startswith("<") else file
