"""What `tg.njit` returns: Numba's function for plain arguments, its recording twin for Tensors."""

from __future__ import annotations

import functools
import inspect
from typing import Any

import numpy as np
from numba import njit
from numba.core import types
from numba.core.caching import NullCache
from numba.core.dispatcher import Dispatcher

from tapegrad.config import guard_setting
from tapegrad.dispatch import Handle, enabled, record, requires_grad, value_of, wrap
from tapegrad.errors import DTypeError, GradientError
from tapegrad.native import border, explain
from tapegrad.native.segment import (
    CALL,
    Input,
    Passive,
    Recording,
    Segment,
    Written,
    entering,
    outputs_of,
    rebuilt,
)
from tapegrad.native.twin import twin_of
from tapegrad.tape.tape import local
from tapegrad.tensor import Tensor, from_numpy
from tapegrad.writes import write


class CompiledFunction:
    """A function compiled by Numba that Tensors can be differentiated through.

    Attributes
    ----------
    primal
        Numba's dispatcher.
    py_func
        The Python function.
    """

    def __init__(self, primal: Any, rerun: bool, cached: bool) -> None:
        self.primal, self.rerun, self.cached = primal, rerun, cached
        primal._tapegrad_cached = cached
        self.py_func = primal.py_func
        self.once = ""  # what it does that another run would not repeat
        functools.update_wrapper(self, primal.py_func)
        self._tapegrad_primal = primal
        self._looked = False

    @property
    def _numba_type_(self) -> Any:
        return types.Dispatcher(self.primal)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "primal":
            raise AttributeError(name)
        return getattr(self.primal, name)

    def __get__(self, owner: Any, kind: Any = None) -> Any:
        return self if owner is None else functools.partial(self, owner)

    def __repr__(self) -> str:
        return f"<tg.njit {self.__qualname__}>"

    def __reduce__(self) -> Any:
        return restore, (self.primal, self.rerun, self.cached)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        for x in (*args, *kwargs.values()) if kwargs else args:
            if isinstance(x, Handle) or (isinstance(x, (tuple, list)) and _holds_tensor(x)):
                return self._on_tensors(args, kwargs)
        return self.primal(*args, **kwargs)

    def _on_tensors(self, args: Any, kwargs: Any) -> Any:
        if kwargs:
            bound = inspect.signature(self.py_func).bind(*args, **kwargs)
            args, kwargs = bound.args, bound.kwargs
            if any(_holds_tensor([x]) for x in kwargs.values()):
                raise TypeError(
                    f"{self.__name__}: Tensors are no keyword-only arguments of a compiled function; "
                    "let the argument be given by position"
                )
        tensors: list[Any] = []
        _collect(args, tensors, self.__name__)
        active = [x for x in tensors if requires_grad(x)] if enabled() else []
        if active:
            return self._recorded(args, kwargs, active)
        return self._plain(args, kwargs)

    def _plain(self, args: Any, kwargs: Any) -> Any:
        """Compute without recording; what the function writes to Tensors is written as Tensors are."""
        work: list[tuple[Any, Any]] = []

        def plain(x: Any) -> Any:
            if isinstance(x, tuple):
                return rebuilt(x, [plain(part) for part in x])
            if not isinstance(x, Handle):
                return x
            value = x._v
            if isinstance(value, np.ndarray):
                value = value.copy()
                work.append((x, value))
            return value

        result = self.primal(*[plain(x) for x in args], **kwargs)
        for x, value in work:
            if not np.array_equal(value, x._v, equal_nan=value.dtype.kind in "fc"):
                write(x, Ellipsis, value, f"{self.__name__} (in place)")
        return _tensors(result)

    def _recorded(self, args: Any, kwargs: Any, active: list[Any]) -> Any:
        if not self._looked:
            self.once = "" if self.rerun else once(self.primal)
            self._looked = True
        inputs: list[Input] = []
        places: dict[int, Input] = {}
        for x in active:
            if id(x) in places:
                continue
            found = Input(inputs[-1].stop if inputs else 0, x._v.shape)
            places[id(x)] = found
            inputs.append(found)
        operands = list({id(x): x for x in active}.values())
        recording = Recording(inputs[-1].stop)
        mode = guard_setting()
        kept: list[Any] = []
        targets: list[tuple[Any, Any, Any]] = []  # Tensor, what is kept of it, records

        known: dict[int, tuple[Any, Any]] = {}

        def enter(x: Any) -> tuple[Any, Any]:
            if isinstance(x, Handle):
                if id(x) not in known:
                    known[id(x)] = enter_one(x)
                return known[id(x)]
            return enter_one(x)

        def enter_one(x: Any) -> tuple[Any, Any]:
            if isinstance(x, tuple):
                parts = [enter(part) for part in x]
                return rebuilt(x, [p[0] for p in parts]), rebuilt(x, [p[1] for p in parts])
            if isinstance(x, Handle):
                place, value = places.get(id(x)), x._v
                if place is not None:
                    rows = entering(np.asarray(value)[..., None], (), recording.address, place.start + 1)
                    if place.shape:
                        targets.append((x, place, rows))
                    return rows, place
                if isinstance(value, np.ndarray) and value.dtype == np.float64:
                    snapshot = Written(value.copy())
                    rows = entering(value[..., None], (), 0, 0)
                    targets.append((x, snapshot, rows))
                    return rows, snapshot
                x = value.copy() if isinstance(value, np.ndarray) else value
            return x, Passive(x, mode)

        entered = []
        for x in args:
            row, keep = enter(x)
            entered.append(row)
            kept.append(keep)
        result = explain.call(twin_of(self.primal, (), True), self, entered, kwargs)
        segment = Segment(self, inputs, kept, recording)
        active_out: list[Any] = []
        outputs_of(result, (), active_out)
        changed = [(x, keep, rows) for x, keep, rows in targets if _changed(keep, rows, value_of(x))]
        for x, keep, rows in changed:
            if isinstance(keep, Input):
                _refuse_leaf(x, self.__name__)
            keep.changed = True
            active_out.append(rows)
        if not active_out:
            return _tensors(result)
        segment.statements = np.concatenate([part[border.STATEMENT].ravel() for part in active_out])
        attrs = {"segment": segment}
        if len(active_out) == 1:
            value = np.ascontiguousarray(active_out[0]["tapegrad_v0"])
            parts = [record(CALL, value if active_out[0].ndim else np.float64(value), operands, attrs)]
        else:
            flat = np.concatenate([part["tapegrad_v0"].ravel() for part in active_out])
            whole, at, parts = record(CALL, flat, operands, attrs), 0, []
            for part in active_out:
                parts.append(np.reshape(whole[at : at + part.size], part.shape))
                at += part.size
        tape = local.tape
        if tape is not None:
            tape.weigh(recording.nbytes)
        for (x, _, _), part in zip(changed, parts[len(parts) - len(changed) :], strict=True):
            write(x, Ellipsis, part, f"{self.__name__} (in place)", True)
        return _returned(result, iter(parts))


def _refuse_leaf(x: Any, name: str) -> None:
    if x._tape is None:
        raise GradientError(
            f"{name} writes to a leaf that requires grad (shape {x._v.shape}), and its gradient would be of "
            "values that are gone; let it write to a copy: pass x.clone(), or copy in the function"
        )


def _changed(keep: Any, rows: Any, value: Any) -> bool:
    """Whether a function has written to an argument."""
    if isinstance(keep, Input):
        numbers = np.arange(keep.start + 1, keep.stop + 1).reshape(rows.shape)
        return not np.array_equal(rows[border.STATEMENT], numbers)
    return bool(rows[border.STATEMENT].any()) or not np.array_equal(
        rows["tapegrad_v0"], value, equal_nan=True
    )


def _returned(result: Any, parts: Any) -> Any:
    """The result with its active parts as Tensors."""
    if isinstance(result, tuple):
        return rebuilt(result, [_returned(part, parts) for part in result])
    if isinstance(result, np.ndarray) and result.dtype == border.record(()):
        return next(parts)
    return _tensors(result)


def _tensors(result: Any) -> Any:
    """A result without derivative: floats become Tensors."""
    if isinstance(result, tuple):
        return rebuilt(result, [_tensors(part) for part in result])
    if isinstance(result, float):
        return wrap(np.float64(result))
    if isinstance(result, np.ndarray) and result.dtype.kind == "f":
        return from_numpy(result)
    return result


def _holds_tensor(x: Any) -> bool:
    if isinstance(x, (tuple, list)):
        return any(map(_holds_tensor, x))
    return isinstance(x, Handle)


def _collect(x: Any, found: list[Any], name: str) -> None:
    """Gather the Tensors among arguments, and refuse those that cannot be."""
    if isinstance(x, tuple):
        for part in x:
            _collect(part, found, name)
    elif isinstance(x, list) and _holds_tensor(x):
        raise TypeError(
            f"{name}: a list of Tensors is no argument of a compiled function; pass a tuple, or tg.array"
        )
    elif isinstance(x, Handle):
        if requires_grad(x) and enabled() and x._v.dtype != np.float64:
            raise DTypeError(
                f"{name}: an argument of dtype {x._v.dtype} requires grad; compiled functions record "
                "float64, convert with .astype(float)"
            )
        found.append(x)


def once(primal: Any, seen: set[int] | None = None) -> str:
    """Say what a function does that another run would not repeat; empty if nothing is known."""
    import random
    import types as python_types

    seen = set() if seen is None else seen
    code = primal.py_func.__code__
    if id(code) in seen:
        return ""
    seen.add(id(code))
    space = inspect.getclosurevars(primal.py_func)
    for value in (*space.globals.values(), *space.nonlocals.values()):
        other = getattr(value, "_tapegrad_primal", value)
        if isinstance(other, Dispatcher):
            found = once(other, seen)
            if found:
                return found
        if getattr(value, "__module__", None) in ("random", "numpy.random") or value in (random, np.random):
            return "draws random numbers"
    names = set(code.co_names)
    for part in code.co_consts:
        if isinstance(part, python_types.CodeType):
            names |= set(part.co_names)
    uses_numpy = any(value is np for value in space.globals.values())
    return "draws random numbers" if uses_numpy and "random" in names else ""


def restore(primal: Any, rerun: bool, cached: bool) -> CompiledFunction:
    """Return a function from what pickling has kept."""
    return CompiledFunction(primal, rerun, cached)


def compile_function(function: Any, options: dict[str, Any], rerun: bool) -> CompiledFunction:
    """Return a function that is Numba's for plain arguments, and recorded for Tensors."""
    if isinstance(function, CompiledFunction):
        function = function.primal
    if isinstance(function, Dispatcher):
        if options:
            raise TypeError(
                f"tg.njit: {function.py_func.__name__} is compiled by Numba already; "
                f"found {', '.join(sorted(options))}: give them to numba.njit"
            )
        return CompiledFunction(function, rerun, not isinstance(function._cache, NullCache))
    if not callable(function):
        raise TypeError(f"tg.njit takes a function, found {type(function).__name__}")
    return CompiledFunction(njit(function, **options), rerun, bool(options.get("cache")))


assert Tensor is not None
