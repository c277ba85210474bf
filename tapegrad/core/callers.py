"""Who asks for a value, as errors name it: the function of a package that the user's program has called."""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable, Iterator
from types import BuiltinFunctionType, CodeType, FrameType, ModuleType
from typing import Any

import numpy as np

BETWEEN = ("tapegrad", "numpy", "copy", "functools", "contextlib")  # of whose frames the caller is meant
PLAIN_METHODS = ("__init__", "__new__", "__call__")
INSTEAD = {  # of functions of NumPy's that ask no Tensor: what is to be called, and what that does
    "numpy.vectorize": "np.stack([f(v) for v in x])",
    "numpy.r_.__getitem__": "np.concatenate((a, b))",
    "numpy.c_.__getitem__": "np.column_stack((a, b))",
    "numpy.full": "tapegrad.full(shape, x)",
    "numpy.fill_diagonal": "np.fill_diagonal(a, x) with a Tensor for a, as of tapegrad.zeros(shape)",
    "numpy.ndenumerate": "zip(np.ndindex(x.shape), x.flat)",
    "numpy.lib.stride_tricks.as_strided": "np.lib.stride_tricks.sliding_window_view(x, shape)",
}
SERIES = re.compile(r"numpy\.polynomial\.(\w+)\.(\w+)val")  # the module and the name of a basis
BASES = {  # functions of values of the polynomials that a class of numpy.polynomial has coefficients of
    "Polynomial": "polynomial.polyvander", "Chebyshev": "chebyshev.chebvander",
    "Legendre": "legendre.legvander", "Laguerre": "laguerre.lagvander", "Hermite": "hermite.hermvander",
    "HermiteE": "hermite_e.hermevander",
}  # fmt: skip

replacement: Callable[[str], str] = lambda name: ""  # `tapegrad` gives it: what there is for a function


def offer(find: Callable[[str], str]) -> None:
    """Let errors name what there is instead of a function, by the name of this; empty for nothing."""
    global replacement
    replacement = find


def asking() -> tuple[str, str]:
    """The installed package whose code asks for a value, and its function that was called.

    Both are empty if it is the user's code; the function is the package if it has no public name. NumPy is
    the package where no other has called its function.
    """
    frame: FrameType | None = sys._getframe(1)
    of_numpy = ""
    while frame is not None and _package(frame) in BETWEEN:
        if _package(frame) == "numpy":
            of_numpy = _public_name(frame) or of_numpy
        frame = frame.f_back
    if frame is None or "-packages" not in frame.f_code.co_filename:
        return of_numpy and "numpy", of_numpy
    package = called = _package(frame)
    while frame is not None and _package(frame) in (package, *BETWEEN[1:]):  # tapegrad differentiates
        if _package(frame) == package:
            called = _public_name(frame) or called
        frame = frame.f_back
    return package, called


def way_out(package: str, called: str) -> str:
    """What to do with a Tensor where this function asked for its value; empty if there is nothing special."""
    called = re.sub(r"^(scipy\.sparse\.\w+)_matrix$", r"\1_array", called)
    if package == "numpy":
        series = SERIES.fullmatch(called)
        values = f"{series[1]}.{series[2]}vander" if series else BASES.get(called.rpartition(".")[2])
        if values and called.startswith("numpy.polynomial."):
            return f"call np.polynomial.{values}(t, n) @ c for n + 1 coefficients c, or "
        if called in INSTEAD:
            return f"call {INSTEAD[called]}, which keeps it, or "
        function = functools.reduce(getattr, called.split(".")[1:], np)
        dispatches = hasattr(function, "_implementation")  # of a Tensor it had asked that
        return dispatches * f"a list is no Tensor to NumPy, call {called}(tg.array([...])), or "
    if package == "sympy":
        return "call what sympy.lambdify makes of an expression, which keeps it, or "
    if package == "pandas":
        return "use .to_numpy() of what is pandas' to compute with both, or "
    if called.startswith("scipy.sparse") and called.endswith("__"):
        return "write S @ x for the product with a sparse matrix, or "
    other = replacement(called)
    if other:
        return f"call {other}, which keeps it, or "
    if package == "scipy" and called != package:
        return f"give {called} a derivative by tapegrad.func.custom_vjp, or "
    return ""


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def _public_name(frame: FrameType) -> str:
    """The name by which a program has called the function of a frame, if it is public."""
    code, values, module = frame.f_code, frame.f_locals, str(frame.f_globals.get("__name__", ""))
    if code.co_argcount and code.co_varnames[0] == "self":
        found = ((names, _method(values.get("self"), code, vars(names))) for names in _shown(module))
    else:
        wrapped = [f for f in map(values.get, code.co_freevars) if callable(f) and not isinstance(f, type)]
        functions = [(str(f.__module__), getattr(f, "__name__", "")) for f in wrapped]
        found = (
            (names, name if not name.startswith("_") and _is_of(vars(names).get(name), code) else "")
            for place, name in ((module, code.co_name), *functions)
            for names in _shown(place)
        )
    return next((f"{names.__name__}.{name}" for names, name in found if name), "")


def _shown(module: str) -> Iterator[ModuleType]:
    """The modules that the parts of a name begin, which show what is in it."""
    parts = module.split(".")
    for k in range(1, len(parts) + 1):
        shown = sys.modules.get(".".join(parts[:k]))
        if parts[k - 1].startswith("_") or shown is None:
            break
        yield shown


def _method(instance: Any, code: CodeType, names: dict[str, Any]) -> str:
    """A method's name, of an instance that a module names or of a class of its own."""
    owner, name = _owner(instance, names), code.co_name
    if name in PLAIN_METHODS or not owner:
        return owner
    found = getattr(type(instance), name, None)
    if isinstance(found, property):
        found = found.fget
    hidden = name.startswith("_") and not name.endswith("__")
    return "" if hidden or not _is_of(found, code) else f"{owner}.{name}"


def _owner(instance: Any, names: dict[str, Any]) -> str:
    """The name of an instance in its module, else of its class there."""
    for name, value in names.items():
        if value is instance and not name.startswith("_"):
            return name
    classes = (c for c in type(instance).__mro__ if names.get(c.__name__) is c)
    return next((c.__name__ for c in classes if not c.__name__.startswith("_")), "")


def _is_of(function: Any, code: CodeType) -> bool:
    """Whether a function, perhaps a wrapper of it, is what runs this code; or one in C, which calls it."""
    while callable(function):
        function = getattr(function, "_implementation", function)  # of what NumPy dispatches
        if getattr(function, "__code__", code) is code and not isinstance(function, BuiltinFunctionType):
            return True
        function = getattr(function, "__wrapped__", None)
    return False
