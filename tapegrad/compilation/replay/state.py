"""What a function reads besides its arguments, found by the code that has run, to be compared later."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Collection, Iterable
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    MethodDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any

import numpy as np

from tapegrad.compilation.replay.allowed import CONTAINERS, TUPLE_FIELD, is_known_function, is_known_object
from tapegrad.compilation.replay.arguments import Arguments, Others
from tapegrad.compilation.replay.comparing import (
    ARRAYS,
    ATTRIBUTES,
    GET_OF_CLASS,
    GLOBALS,
    MISSING,
    OF_FUNCTION,
    Entry,
    contents_of,
    dict_of,
    is_same_array,
    is_same_dict,
    is_same_kind,
    is_same_list,
)
from tapegrad.compilation.replay.observing import Observer, Violation, is_library, place, reads_of
from tapegrad.core.base import Handle
from tapegrad.kernels import abi
from tapegrad.tensor import Tensor

NEVER_CHANGE = (
    type(None), bool, int, float, complex, str, bytes, type(...), type(NotImplemented), range, CodeType,
)  # fmt: skip
FUNCTIONS = (BuiltinFunctionType, MethodDescriptorType, np.ufunc, type(np.sum), TUPLE_FIELD)
NOT_CALLED = {  # members of a class that nothing calls, nor reads without their names
    "__abstractmethods__", "__annotate__", "__annotate_func__", "__annotations__", "__annotations_cache__",
    "__dataclass_fields__", "__dataclass_params__", "__dict__", "__doc__", "__firstlineno__", "__hash__",
    "__match_args__", "__module__", "__orig_bases__", "__parameters__", "__qualname__", "__slots__",
    "__static_attributes__", "__weakref__",
}  # fmt: skip
HOLDERS = is_same_array, is_same_list, is_same_dict  # compare what can be written to
TELLING = {"base", "flags", "resize"}  # attributes by which arrays that are alike may be told apart
MOST_ENTRIES = 1 << 14  # that are compared


class State:
    """What a function reads, as it is now.

    Parameters
    ----------
    f
        The function.
    observer
        What it has done in a call.
    others
        Arguments that it is not differentiated by, and classes in those that it is.
    vouched
        What somebody vouches for.

    Attributes
    ----------
    violations
        Why it cannot be told whether all is as before.
    entries
        What tells that.
    arguments
        What tells which arguments a call may have.
    """

    def __init__(self, f: Any, observer: Observer, others: Others, vouched: Collection[str]) -> None:
        self.violations: list[Violation] = list(observer.violations)
        self.entries: list[Entry] = []
        self._walked: dict[int, Any] = {}
        self._again: set[int] = set()  # what there are several ways to
        self._functions: dict[CodeType, list[FunctionType]] = {}
        self._pending: list[FunctionType] = []
        self._codes = {code for code, _ in observer.codes}
        self._names: dict[str, str] = {}  # of attributes
        for code in self._codes:
            reads = reads_of(code)
            self.violations += reads.violations
            self._names |= reads.attributes
        values: list[tuple[str, Any]] = []
        for (code, _), spaces in observer.codes.items():
            for name, chain, where in reads_of(code).names:
                values.append(self._read(*spaces, name, chain, where))
        self._see_methods()
        self._walk(f, "the function")
        for name, x in others.roots():
            self._walk(x, name)
        for where, value in values:
            self._walk(value, where)
        while self._pending:
            self._see_function(self._pending.pop())
        nested = {part for code in self._codes for part in _nested(code)}
        for code in self._codes - nested - {*self._functions}:
            self._refuse(f"runs {code.co_name}, which no name leads to", place(code, code.co_firstlineno))
        self.arguments = self._see_arguments(others, vouched)
        del self._walked, self._again

    def _refuse(self, what: str, where: str) -> None:
        self.violations.append(Violation(what, where))

    def _add(self, get: Callable[..., Any], of: Any, key: Any, value: Any, kind: str, where: str) -> None:
        self.entries.append(Entry(get, of, key, value, kind, where))
        if len(self.entries) == MOST_ENTRIES:
            self._refuse(f"reads more than {MOST_ENTRIES:,} objects, too many to compare", where)

    def _read(
        self, own: dict[str, Any], builtin: dict[str, Any], name: str, chain: tuple[str, ...], where: str
    ) -> tuple[str, Any]:
        """Follow the name of a global, and attributes of modules; what it leads to."""
        value = own.get(name, MISSING)
        self._add(dict.get, own, name, value, GLOBALS, f"{name}, {where}")
        if value is MISSING:
            value = builtin.get(name, MISSING)
            self._add(dict.get, builtin, name, value, GLOBALS, f"{name}, {where}")
        for k, part in enumerate(chain):
            if type(value) is not ModuleType:
                self._names |= dict.fromkeys(chain[k:], where)
                break
            name, members = f"{name}.{part}", vars(value)
            value = members.get(part, MISSING)
            if value is MISSING and "__getattr__" in members:
                self._refuse(f"reads {name}, which is made when it is asked for", where)
            self._add(dict.get, members, part, value, ATTRIBUTES, f"{name}, {where}")
        return f"{name}, {where}", value

    def _see_methods(self) -> None:
        """Compare what Tensors have by the names of all attributes; what is not the user's needs no more."""
        self._walk_methods(Tensor, "Tensor")

    def _walk_methods(self, kind: type, where: str) -> None:
        for cls in kind.__mro__[:-1]:
            for name in self._names:
                value = GET_OF_CLASS(vars(cls), name, MISSING)
                self._add(GET_OF_CLASS, vars(cls), name, value, ATTRIBUTES, f".{name} of {where}")
                self._walk_all(_functions_in(value), f".{name} of {where}")

    def _see_arguments(self, others: Others, vouched: Collection[str]) -> Arguments:
        """Leave arguments, where others that are alike will do, to be compared as such."""
        read = {id(entry.of): entry.of for entry in self.entries if entry.get in HOLDERS}
        is_told = not TELLING.isdisjoint(self._names) or id(np.may_share_memory) in self._walked
        shared = read if is_told else self._again
        found = Arguments(others.args, others.kwargs, read.values(), shared, ARRAYS in vouched)
        self.entries = [x for x in self.entries if x.get not in HOLDERS or id(x.of) not in found.own]
        return found

    # ------------------------------------------------------------ objects

    def _walk(self, x: Any, where: str) -> None:
        """Compare what can change in an object, and in what it holds."""
        kind = type(x)
        if id(x) in self._walked:
            self._again.add(id(x))
        if x is MISSING or kind in NEVER_CHANGE or id(x) in self._walked or len(self.entries) >= MOST_ENTRIES:
            return
        self._walked[id(x)] = x
        if kind in CONTAINERS or issubclass(kind, (np.generic, np.dtype)):
            self._walk_container(x, where)
        elif kind is ModuleType:
            self._walk_names(dict.get, vars(x), where)
        elif kind is FunctionType and not is_library(x.__code__.co_filename):
            self._know(x)
            if self._names:
                self._add(getattr, x, "__dict__", x.__dict__, ATTRIBUTES, where)
                self._walk_names(dict.get, x.__dict__, where)
        elif kind is MethodType:
            self._walk_all((x.__self__, x.__func__), where)
        elif kind is functools.partial:
            self._walk_all((x.func, x.args, x.keywords), where)
        elif kind in (property, staticmethod, classmethod):
            self._walk_all(_parts_of(x), where)
        elif kind is FunctionType or kind in FUNCTIONS or kind is type:
            if kind is BuiltinFunctionType and type(x.__self__) is not ModuleType:
                self._walk(x.__self__, f"{x.__name__} of {where}")  # as of a method of a list
            if not is_known_function(x):
                self._walk_class(x, where) if _is_plain(x) else self._refuse_object(x, where)
        elif _is_plain(kind) and not isinstance(x, Handle):
            self._walk_instance(x, where)
        elif is_known_object(x):
            self._walk_known(x, where)
        else:
            self._refuse_object(x, where)

    def _walk_known(self, x: Any, where: str) -> None:
        """Compare only what somebody may have put in the place of an object's methods."""
        self._walk_names(dict.get, vars(x), where)
        self._walk_methods(type(x), where)

    def _walk_all(self, parts: Iterable[Any], where: str) -> None:
        for part in parts:
            self._walk(part, where)

    def _refuse_object(self, x: Any, where: str) -> None:
        kind = type(x)
        name = getattr(x, "__qualname__", "") if kind in (type, FunctionType, *FUNCTIONS) else ""
        hint = ": pass it as an argument that argnums names, or an array of its value" * issubclass(
            kind, Handle
        )
        described = name or f"{kind.__module__}.{kind.__qualname__}"
        self._refuse(f"reads {described}, whose state cannot be compared{hint}", where)

    def _walk_container(self, x: Any, where: str) -> None:
        kind = type(x)
        if kind is np.ndarray and not x.dtype.hasobject:
            self._add(is_same_array, x, contents_of(x), True, ARRAYS, where)
        elif kind in (tuple, slice):
            self._walk_all(x if kind is tuple else (x.start, x.stop, x.step), where)
        elif kind is list:
            self._add(is_same_list, x, tuple(x), True, ATTRIBUTES, where)
            self._walk_all(x, where)
        elif kind is dict and all(type(key) in NEVER_CHANGE for key in x):
            self._add(is_same_dict, x, dict(x), True, ATTRIBUTES, where)
            self._walk_all(x.values(), where)
        elif not issubclass(kind, (np.generic, np.dtype)) or issubclass(kind, np.void):
            self._refuse_object(x, where)

    def _walk_names(self, get: Callable[..., Any], members: Any, where: str) -> None:
        """Compare what a module, class or object has by the names of all attributes that the code has."""
        for name in self._names:
            value = get(members, name, MISSING)
            self._add(get, members, name, value, ATTRIBUTES, f".{name} of {where}")
            self._walk(value, f".{name} of {where}")

    def _walk_class(self, x: type, where: str) -> None:
        self._add(getattr, x, "__mro__", x.__mro__, ATTRIBUTES, where)
        for cls in x.__mro__[: -1 - issubclass(x, tuple)]:
            if cls is not x and id(cls) in self._walked:
                continue
            self._walked[id(cls)], members = cls, vars(cls)
            self._add(is_same_dict, members, dict(members), True, ATTRIBUTES, where)
            for name, value in members.items():
                for function in _functions_in(value):
                    self._know(function)
                special = name.startswith("__") and name not in NOT_CALLED and not _functions_in(value)
                if special or name in self._names:
                    self._walk(value, f".{name} of {where}")

    def _walk_instance(self, x: Any, where: str) -> None:
        kind = type(x)
        self._add(is_same_kind, x, kind, True, ATTRIBUTES, where)
        self._walk(kind, where)
        if isinstance(x, tuple):
            self._walk_all(tuple.__iter__(x), where)
            return
        members = dict_of(x, None, MISSING)
        self._add(dict_of, x, None, members, ATTRIBUTES, where)
        self._walk_names(dict.get, members, where)

    # ------------------------------------------------------------ functions

    def _know(self, function: FunctionType) -> None:
        """Know a function by its code, and what it reads if that has run."""
        found = self._functions.setdefault(function.__code__, [])
        if not any(function is x for x in found):
            found.append(function)
            if function.__code__ in self._codes:
                self._pending.append(function)

    def _see_function(self, function: FunctionType) -> None:
        code = function.__code__
        where = place(code, code.co_firstlineno)
        for name in OF_FUNCTION:
            self._add(getattr, function, name, getattr(function, name), GLOBALS, f"{name}, {where}")
        self._walk_all((function.__defaults__, function.__kwdefaults__), f"a default, {where}")
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            try:
                value = cell.cell_contents
            except ValueError:
                self._refuse(f"reads {name}, which has no value yet", where)
                continue
            self._add(getattr, cell, "cell_contents", value, GLOBALS, f"{name}, {where}")
            self._walk(value, f"{name}, {where}")


def _nested(code: CodeType) -> Iterable[CodeType]:
    for part in code.co_consts:
        if isinstance(part, CodeType):
            yield part
            yield from _nested(part)


def _parts_of(x: Any) -> tuple[Any, ...]:
    """What a member of a class calls."""
    if type(x) in (staticmethod, classmethod):
        return (x.__func__,)
    return (x.fget, x.fset, x.fdel) if type(x) is property else (x,)


def _functions_in(x: Any) -> list[FunctionType]:
    """Functions of the user's in a member of a class."""
    return [
        part
        for part in _parts_of(x)
        if type(part) is FunctionType and not is_library(part.__code__.co_filename)
    ]


class _Plain:
    """A class statement without anything."""


def _is_plain(x: Any) -> bool:
    """Whether this is a class written in Python, whose objects have nothing but a dict, or are tuples.

    Others may have memory of which Python sees nothing. A class statement's objects end by a function of
    Python's own, and are as large as those of any other such class.
    """
    if type(x) is not type:
        return False
    *classes, base = x.__mro__
    if classes and classes[-1] is tuple:
        classes, base = classes[:-1], tuple
    size = tuple.__basicsize__ if base is tuple else _Plain.__basicsize__
    return (
        bool(classes)
        and (base is tuple or x.__dictoffset__ != 0)
        and all(
            type(cls) is type
            and abi.destructor_of(cls) == abi.destructor_of(_Plain)
            and cls.__basicsize__ == size
            and not is_library(getattr(sys.modules.get(cls.__module__), "__file__", None) or "")
            for cls in classes
        )
    )
