"""What `tg.njit` returns: Numba's function for plain arguments, its recording twin for Tensors."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from typing import Any

import numpy as np
from numba import jit, njit
from numba.core import types
from numba.core.caching import NullCache
from numba.core.cpu import CPUTargetOptions
from numba.core.dispatcher import Dispatcher

from tapegrad.config import guard_setting
from tapegrad.core.base import Handle, has_tangent, nbytes_of, needs_derivative, strip_tangents, value_of
from tapegrad.core.dispatch import tensors_in, timed, with_metadata
from tapegrad.core.grad_mode import in_force
from tapegrad.core.inplace import write
from tapegrad.core.notes import note_escape
from tapegrad.errors import DTypeError, GradientError
from tapegrad.kernels import abi
from tapegrad.kernels.words import Address
from tapegrad.native import border, explain
from tapegrad.native.analysis.captured import hold, once, source_of
from tapegrad.native.arrays.overlap import copying
from tapegrad.native.emission.annotations import Code, Compiled, Type
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
from tapegrad.native.tapes import runtime
from tapegrad.native.tapes.stored import Stored
from tapegrad.native.twin import twin_of, twins_of
from tapegrad.native.twins.preaccumulate import mark
from tapegrad.ops.complexes import pair
from tapegrad.tape.record import slot
from tapegrad.tape.tape import outgrow
from tapegrad.tensor import Tensor, alias_of, from_numpy, record, wrap


class CompiledFunction:
    """A function compiled by Numba that Tensors can be differentiated through.

    Attributes
    ----------
    primal
        Numba's dispatcher.
    values
        The one that computes without recording.
    py_func
        The Python function.
    """

    def __init__(self, primal: Compiled, rerun: bool, cached: bool) -> None:
        self.primal, self.rerun, self.cached = primal, rerun, cached
        self.values = copying(primal)
        primal._tapegrad_cached = cached
        if rerun:
            primal._tapegrad_rerun = True
        hold(primal)
        self.py_func = source_of(primal)
        self.once = ""  # what it does that another run would not repeat
        functools.update_wrapper(self, self.py_func)
        self._tapegrad_primal = primal
        self._looked = False

    @property
    def _numba_type_(self) -> Type:
        return types.Dispatcher(self.primal)

    @property
    def preaccumulate(self) -> bool:
        """Whether calls by recording code have their local Jacobian computed at once."""
        return getattr(self.primal, "_tapegrad_preaccumulate", False)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "values":
            raise AttributeError(name)
        return getattr(self.values, name)

    def __get__(self, owner: Any, kind: type | None = None) -> Any:
        return self if owner is None else functools.partial(self, owner)

    def __repr__(self) -> str:
        return f"<tg.njit {self.__qualname__}>"

    def __reduce__(self) -> Any:
        return restore, (self.primal, self.rerun, self.cached, self.preaccumulate)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        for x in (*args, *kwargs.values()) if kwargs else args:
            if isinstance(x, Handle) or (isinstance(x, (tuple, list)) and _holds_tensor(x)):
                return self._on_tensors(args, kwargs)
        return self.values(*args, **kwargs)

    @timed()
    def _on_tensors(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if kwargs:
            bound = inspect.signature(self.py_func).bind(*args, **kwargs)
            if bound.kwargs:  # after an argument left out
                bound.apply_defaults()
            args, kwargs = bound.args, bound.kwargs
            if any(_holds_tensor([x]) for x in kwargs.values()):
                raise TypeError(
                    f"{self.__name__}: Tensors are no keyword-only arguments of a compiled function; "
                    "let the argument be given by position"
                )
        tensors: list[Tensor] = []
        _collect(args, tensors, self.__name__)
        active = [x for x in tensors if needs_derivative(x)]
        if active:
            return self._recorded(args, kwargs, active, tensors)
        if in_force("forward") is None:
            return self._plain(args, kwargs, tensors)
        arrays = [(x, x.copy()) for x in plain_arrays((*args, *kwargs.values()))]
        out = self._plain(args, kwargs, tensors)
        if not _all_tensors(out) or any(not np.array_equal(x, y, equal_nan=True) for x, y in arrays):
            note_escape(*tensors)
        return out

    def _plain(self, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[Tensor]) -> Any:
        """Compute without recording; what the function writes to Tensors is written as Tensors are."""
        work: list[tuple[Tensor, np.ndarray]] = []

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

        result = self.values(*[plain(x) for x in args], **kwargs)
        for x, value in work:
            _written(x, value, tensors, self.__name__)
        out = _tensors(result)
        for x in tensors_in(out):
            with_metadata(x, tensors)
        return out

    def _recorded(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], active: list[Tensor], tensors: list[Tensor]
    ) -> Any:
        outgrow()  # before another form is compiled
        if not self._looked:
            self.once = once(self.primal)
            self._looked = True
        distinct = list({id(x): x for x in active}.values())
        operands = list(map(_of_now, distinct))
        inputs: list[Input] = []
        for x, operand in zip(distinct, operands, strict=True):
            inputs.append(Input(inputs[-1].stop if inputs else 0, operand._v.shape, _is_complex(x)))
        recording = Recording(inputs[-1].stop)
        entrance = _Entrance(distinct, operands, inputs, recording.address)
        entered, kept = entrance.several(args)
        result = explain.call(twin_of(self.primal, (), True), self, entered, kwargs)
        segment = Segment(self, inputs, kept, recording)
        active_out: list[np.ndarray] = []
        outputs_of(result, (), active_out)
        changed = [row for row in entrance.arrays if _changed(*row[1:])]
        for x, keep, rows in changed:
            if isinstance(keep, Input):
                _refuse_leaf(x, self.__name__)
            keep.changed = True
            active_out.append(rows)
        for x, value in entrance.others:
            _written(x, value, tensors, self.__name__)
        if not active_out:
            return _tensors(result)
        segment.statements = np.concatenate([part[border.STATEMENT].ravel() for part in active_out])
        attrs = {"segment": segment}
        value = values_of(active_out)
        if len(active_out) == 1:
            shape = active_out[0].shape
            whole = record(CALL, value.reshape(shape) if shape else value[0], operands, attrs)
            parts = [whole]
        else:
            whole, at, parts = record(CALL, value, operands, attrs), 0, []
            for part in active_out:
                parts.append(np.reshape(whole[at : at + part.size], part.shape))
                at += part.size
        here = strip_tangents(whole)
        if here._tape is not None:  # else it only carries a tangent
            here._tape.calls[slot(here._at)] = segment
            here._tape.weigh(
                recording.nbytes + nbytes_of([getattr(keep, "value", None) for keep in kept], set())
            )
        for (x, _, _), part in zip(changed, parts[len(parts) - len(changed) :], strict=True):
            whole = pair(part[..., 0], part[..., 1]) if _is_complex(x) else part
            write(x, Ellipsis, whole, f"{self.__name__} (in place)", True)
        return _returned(result, iter(parts))


class _Entrance:
    """Takes arguments in: as records what Tensors are, each once, the rest as it is."""

    def __init__(
        self, active: list[Tensor], operands: list[Tensor], inputs: list[Input], address: Address
    ) -> None:
        self.places = {
            id(x): (operand, place) for x, operand, place in zip(active, operands, inputs, strict=True)
        }
        self.address, self.mode = address, guard_setting()
        self.known: dict[int, tuple[Any, Any]] = {}
        # a Tensor, what is kept of it, and its records
        self.arrays: list[tuple[Tensor, Input | Written, np.ndarray]] = []
        # a Tensor of other numbers, and the array that stands for it
        self.others: list[tuple[Tensor, np.ndarray]] = []

    def several(self, args: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Return arguments for the twin, and what is kept of each for another run."""
        pairs = [self._one(x) for x in args]
        return [p[0] for p in pairs], [p[1] for p in pairs]

    def _one(self, x: Any) -> tuple[Any, Any]:
        if isinstance(x, tuple):
            entered, kept = self.several(x)
            return rebuilt(x, entered), rebuilt(x, kept)
        if not isinstance(x, Handle):
            return twins_of(x, ()), Passive(x, self.mode)
        found = self.known.get(id(x))
        if found is None:
            found = self.known[id(x)] = self._tensor(x)
        return found

    def _tensor(self, x: Tensor) -> tuple[Any, Any]:
        found = self.places.get(id(x))
        value, address, first = x._v, self.address, 0
        if found is not None:
            keep: Input | Written = found[1]
            value, first = value_of(found[0]), found[1].start + 1
        elif isinstance(value, np.ndarray) and value.dtype in (np.float64, np.complex128):
            keep, address = Written(parts_of(value).copy(), _is_complex(x)), 0
        else:
            if isinstance(value, np.ndarray):
                value = value.copy()
                self.others.append((x, value))
            return value, Passive(value, self.mode)
        rows = entering(parts_of(np.asarray(value))[..., None], (), address, first)
        if np.ndim(x._v):
            self.arrays.append((x, keep, rows))
        return (border.paired(rows) if keep.paired else rows), keep


def _of_now(x: Tensor) -> Tensor:
    """A Tensor that keeps its history, should another thread write to it before the call is recorded."""
    if _is_complex(x):
        parts: Tensor = np.stack((x.real, x.imag), -1)
        return parts
    return x if x._tape is None or has_tangent(x) else alias_of(x)


def parts_of(value: np.ndarray) -> np.ndarray:
    """Complex numbers as their parts along a last axis; real ones as they are."""
    return np.stack((value.real, value.imag), -1) if value.dtype.kind == "c" else value


def _is_complex(x: Tensor) -> bool:
    return bool(x._v.dtype == np.complex128)


def values_of(parts: list[np.ndarray]) -> np.ndarray:
    """The values of arrays of records as one vector, whose dtype is NumPy's own object for float64."""
    out = np.empty(sum(part.size for part in parts))
    at = 0
    for part in parts:
        out[at : at + part.size] = part["tapegrad_v0"].ravel()
        at += part.size
    return out


def _written(x: Tensor, value: np.ndarray, tensors: list[Tensor], name: str) -> None:
    """Write to a Tensor what a function has written to the array that stood for it."""
    if not np.array_equal(value, x._v, equal_nan=value.dtype.kind in "fc"):
        write(x, Ellipsis, with_metadata(from_numpy(value), tensors), f"{name} (in place)")


def _refuse_leaf(x: Tensor, name: str) -> None:
    if x._tape is None:
        raise GradientError(
            f"{name} writes to a leaf that requires grad (shape {x._v.shape}), and its gradient would be of "
            "values that are gone; let it write to a copy: pass x.clone(), or copy in the function"
        )


def _changed(keep: Input | Written, rows: np.ndarray) -> bool:
    """Whether a function has written to an argument."""
    if isinstance(keep, Input):
        return not runtime.entrance().is_as_entered(abi.address(rows), rows.size, keep.start + 1)
    return bool(rows[border.STATEMENT].any()) or not np.array_equal(
        rows["tapegrad_v0"], keep.value, equal_nan=True
    )


def _returned(result: Any, parts: Iterator[Tensor]) -> Any:
    """The result with its active parts as Tensors."""
    if isinstance(result, border.Parts):
        real, imag = (_returned(part, parts) for part in result)
        return pair(real, imag)
    if isinstance(result, tuple):
        return rebuilt(result, [_returned(part, parts) for part in result])
    if isinstance(result, np.ndarray) and result.dtype == border.record(()):
        return next(parts)
    return _tensors(result)


def _tensors(result: Any) -> Any:
    """A result without derivative: numbers with a fraction become Tensors."""
    if isinstance(result, tuple):
        return rebuilt(result, [_tensors(part) for part in result])
    if isinstance(result, (float, complex)):
        return wrap(np.result_type(result).type(result))
    if isinstance(result, np.ndarray) and result.dtype.kind in "fc":
        return from_numpy(result)
    return result


def plain_arrays(x: Any) -> list[np.ndarray]:
    """The arrays of real and complex numbers in nested tuples."""
    if isinstance(x, tuple):
        return [found for part in x for found in plain_arrays(part)]
    return [x] if isinstance(x, np.ndarray) and x.dtype.kind in "fc" else []


def _all_tensors(x: Any) -> bool:
    """Whether all real numbers in a result are Tensors."""
    if isinstance(x, tuple):
        return all(map(_all_tensors, x))
    return x is None or isinstance(x, (Handle, int, np.integer, np.bool_, str))


def _holds_tensor(x: Any) -> bool:
    if isinstance(x, (tuple, list)):
        return any(map(_holds_tensor, x))
    return isinstance(x, Handle)


def _collect(x: Any, found: list[Tensor], name: str) -> None:
    """Gather the Tensors among arguments, and refuse those that cannot be."""
    if isinstance(x, tuple):
        for part in x:
            _collect(part, found, name)
    elif isinstance(x, list) and _holds_tensor(x):
        raise TypeError(
            f"{name}: a list of Tensors is no argument of a compiled function; pass a tuple, or tg.array"
        )
    elif isinstance(x, Handle):
        if needs_derivative(x) and x._v.dtype not in (np.float64, np.complex128):
            how = "complex" if x._v.dtype.kind == "c" else "float"
            raise DTypeError(
                f"{name}: an argument of dtype {x._v.dtype} requires grad; compiled functions record "
                f"float64 and complex128, convert with .astype({how})"
            )
        found.append(x)


def restore(primal: Compiled, rerun: bool, cached: bool, preaccumulate: bool) -> CompiledFunction:
    """Return a function from what pickling has kept."""
    if preaccumulate:
        mark(primal)
    return CompiledFunction(primal, rerun, cached)


def compile_function(
    function: Code, options: dict[str, Any], rerun: bool, preaccumulate: bool = False
) -> CompiledFunction:
    """Return a function that is Numba's for plain arguments, and recorded for Tensors."""
    found = _compiled_function(function, options, rerun)
    if preaccumulate:
        mark(found.primal)
    return found


def refuse_unknown(options: Iterable[str]) -> None:
    """Refuse options that Numba does not know, which it would say when the function is first called."""
    known = {*inspect.signature(jit).parameters} - {"signature_or_function", "options"}
    of, kind = CPUTargetOptions, CPUTargetOptions.Mapping
    known |= {name for name in dir(of) if isinstance(getattr(of, name), kind)}
    for name in options:
        if name not in known:
            near = get_close_matches(name, known | {"rerun", "preaccumulate"}, 1)
            meant = f"; {near[0]} is one" if near else ""
            offered = ", ".join(sorted(name for name in known if not name.startswith("_")))
            raise TypeError(
                f"tg.njit has no option {name!r}{meant}: it takes rerun, preaccumulate, and Numba's {offered}"
            )


def _compiled_function(function: Code, options: dict[str, Any], rerun: bool) -> CompiledFunction:
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
    refuse_unknown(options)
    cached = bool(options.pop("cache", False))
    primal = njit(function, **options)
    if cached:
        primal._cache = Stored(primal, "plain")
    return CompiledFunction(primal, rerun, cached)


assert Tensor is not None
