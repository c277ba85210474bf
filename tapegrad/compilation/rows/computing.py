"""Rows that compute an operation: loops and calls of NumPy's functions, or Python where there are none."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tapegrad.compilation.events.events import FIXED, LIVE, POWER, Event
from tapegrad.compilation.events.passive import Operation, Passive, passive
from tapegrad.compilation.events.varying import REARRANGE, TAKE, Renewal, Varying, varying_of
from tapegrad.compilation.rows.loops import REAL_TO_COMPLEX
from tapegrad.compilation.rows.rows import Rows, is_dense, step_of
from tapegrad.kernels.locks import load_module
from tapegrad.ops import MEANING, REGISTRY, forward
from tapegrad.ops.indexing import numbers
from tapegrad.ops.primitive import Attributes, Elementwise, Primitive
from tapegrad.ops.writes import window_of
from tapegrad.tape import tape

ASSIGN = REGISTRY["assign"]
ADD_AT = REGISTRY["add_at"]
EMBED = REGISTRY["embed"]
COLLECT = REGISTRY["collect"]
ASTYPE = REGISTRY["astype"]
GETITEM = REGISTRY["getitem"]
NORM = REGISTRY["norm"]
RESHAPE = REGISTRY["reshape"]
CONCATENATE, STACK, BROADCAST, MEAN, SUM, WHERE, CUMSUM, REAL, IMAG, MATMUL, MULTIPLY = (
    MEANING[function]
    for function in (
        np.concatenate, np.stack, np.broadcast_to, np.mean, np.sum, np.where, np.cumsum, np.real, np.imag,
        np.matmul, np.multiply,
    )
)  # fmt: skip
REDUCING = {
    MEANING[function]: ufunc
    for function, ufunc in (
        (np.sum, np.add),
        (np.prod, np.multiply),
        (np.max, np.maximum),
        (np.min, np.minimum),
    )
}
REDUCING_TRUTH = {np.any: np.logical_or, np.all: np.logical_and}
CONSTANT = {np.zeros_like: 0.0, np.ones_like: 1.0}  # elements, whatever those of the operand
APART = MULTIPLY, MEANING[np.absolute]  # of complex numbers, whose operators have bits of their own
OUT_BY_NAME = np.maximum, np.minimum  # by place NumPy warns of it
FLOATS = "df"
NUMBERS = "dfDF"
EXACTLY = "?bhil"  # what NumPy takes for floating-point numbers beside such
QUICK_POWERS = {-1: np.reciprocal, 0.5: np.sqrt, 1: np.positive, 2: np.square}  # of arrays, as NumPy has it
MOST_BESIDE = 1 << 18  # bytes of an array, below which what is computed beside its result has a buffer
REAL_NUMBERS = (int, float, np.floating, np.integer)


def number_of(x: np.ndarray) -> Any:
    """Return what a buffer holds as values are: a NumPy scalar for a number."""
    return x if x.ndim else x[()]


def compute(
    rows: Rows, event: Event, operands: list[np.ndarray], out: np.ndarray, with_bits: bool = True,
    renewal: Renewal | None = None,
) -> None:  # fmt: skip
    """Add rows for an operation on buffers; `with_bits`: those of recording.

    Python runs one whose attributes are to be renewed before.
    """
    varying = varying_of(event.attrs) if event.attrs else None
    if renewal is not None:

        def run() -> None:
            renewal.run()
            attrs = event.attrs if varying is None else varying.latest()
            out[...] = event.op.forward(*operands, **attrs)

        rows.python(run, [*operands, *renewal.reads], [out, *renewal.writes])
        return
    if varying is not None:
        if not _gather(rows, operands[0], varying.buffer, out, varying.holes):
            rows.python(lambda: out.__setitem__(..., operands[0].take(varying.buffer)), operands, [out])
        return
    special = SPECIAL.get(event.op)
    if special is not None and special(rows, event, operands, out):
        return
    if _is_filled(rows, event.op, out):
        return
    function = None if event.attrs else ufunc_for(event.op, operands)
    if function is None or (with_bits and event.op is MULTIPLY and _are_complex(operands)):
        rows.python(_by_forward(event, operands, out), operands, [out])
    else:
        _elementwise(rows, function, operands, out)


def _elementwise(rows: Rows, function: np.ufunc, operands: Sequence[np.ndarray], out: np.ndarray) -> None:
    """Add a ufunc's loop, if there is one for operands as they are, or as complex numbers; else a call."""
    stepped = out.size != 1 or _is_stepped([*operands, out])
    if (stepped and rows.loop(function, operands, out)) or _has_truths(rows, function, operands, out):
        return
    wide = functools.partial(_widened, rows, dtype=out.dtype)
    if stepped and _widens(operands, out) and rows.loop(function, [*map(wide, operands)], out):
        return
    if function in OUT_BY_NAME:
        rows.call(functools.partial(function, out=out), operands)
    else:
        rows.call(function, [*operands, out])


def _is_stepped(arrays: Sequence[np.ndarray]) -> bool:
    """Whether NumPy's loop over one element has the strides of a row, which may tell its last bits.

    Over real numbers recording has the strides of rows too.
    """
    ordinary = all(x.ndim != 1 or x.dtype.kind != "c" or x.strides[0] == x.itemsize for x in arrays)
    return ordinary and len({x.ndim for x in arrays} - {0}) < 2


def _widens(operands: Sequence[np.ndarray], out: np.ndarray) -> bool:
    """Whether all operands are, or may be made, complex numbers that a loop of such a result takes."""
    kinds = out.dtype.char, {wide: real for real, wide in REAL_TO_COMPLEX.items()}.get(out.dtype.char)
    return (
        out.dtype.char in "DF"
        and out.nbytes < MOST_BESIDE
        and is_dense(out)
        and all(x.dtype.char in kinds and (x.ndim == 0 or x.shape == out.shape) for x in operands)
        and all(map(step_of, (x for x in operands if x.ndim)))
    )


def _widened(rows: Rows, x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Real numbers as complex ones."""
    if x.dtype == dtype:
        return x
    wide: np.ndarray = rows.keep(np.zeros(x.shape, dtype))
    move(rows, x, wide.real)
    return wide


def move(rows: Rows, x: np.ndarray, out: np.ndarray) -> None:
    """Add a copy of numbers, broadcast, and cast if the dtype is another."""
    if not (x.shape == out.shape or x.ndim == 0) or not rows.loop(np.positive, [x], out, out.size):
        rows.call(np.positive, [x, out])


def convert(rows: Rows, x: np.ndarray, out: np.ndarray) -> None:
    """Add what writes truth values or integers as floating-point numbers."""
    if not _has_truths(rows, np.positive, [x], out):
        rows.convert(x, out)


def _has_truths(rows: Rows, function: np.ufunc, operands: Sequence[np.ndarray], out: np.ndarray) -> bool:
    """Whether a ufunc is of numbers and truth values that a kernel takes, which is a row now."""
    kinds = "".join(x.dtype.char for x in operands)
    if out.ndim or out.dtype.char != "d" or "?" not in kinds or not set(kinds) <= set("?d"):
        return False
    kernel = load_module("tapegrad.compilation.rows.fusing").truth_kernel(function, kinds)
    if kernel is not None:
        rows.kernel(kernel, out, operands, 1)
    return kernel is not None


# ---------------------------------------------------------------- reductions


def _reduced(rows: Rows, event: Event, operands: list[np.ndarray], out: np.ndarray) -> bool:
    op, (x,) = event.op, operands
    ufunc, axis, keepdims = REDUCING[op], event.attrs["axis"], event.attrs["keepdims"]
    if rows.reduce(ufunc, x, out) or (op is SUM and rows.sums(x, axis, out)):
        return True
    if not out.flags.c_contiguous or not x.size:
        return False
    rows.call(ufunc.reduce, [x, axis, None, out, keepdims])
    return True


def _mean(rows: Rows, event: Event, operands: list[np.ndarray], out: np.ndarray) -> bool:
    (x,), axis = operands, event.attrs["axis"]
    if rows.reduce(np.add, x, out, True):
        return True
    count = np.array(math.prod(x.shape[d] for d in axis))
    if x.dtype != out.dtype or out.dtype.char not in "dfD" or not (is_dense(out) and x.size):
        return False
    divisor = rows.keep(count.astype(out.dtype))
    if divisor != count:  # which recording divides by
        return False
    if not rows.sums(x, axis, out):
        rows.call(np.add.reduce, [x, axis, None, out, event.attrs["keepdims"]])
    _elementwise(rows, np.divide, [out, divisor], out)
    return True


def _norm(rows: Rows, event: Event, operands: list[np.ndarray], out: np.ndarray) -> bool:
    (x,), axis = operands, event.attrs["axis"]
    if x.dtype != out.dtype or out.dtype.char not in FLOATS:
        return False
    if not is_dense(out) or not 0 < x.nbytes < MOST_BESIDE:
        return False
    squares = rows.keep(np.zeros_like(x))  # in the order of its elements, as recording adds them up
    _elementwise(rows, np.multiply, [x, x], squares)
    if not rows.reduce(np.add, squares, out) and not rows.sums(squares, axis, out):
        rows.call(np.add.reduce, [squares, axis, None, out, event.attrs["keepdims"]])
    _elementwise(rows, np.sqrt, [out], out)
    return True


def _truth(rows: Rows, event: Event, operands: list[np.ndarray], out: np.ndarray) -> bool:
    """Whether some, or all, elements are true, or how many are."""
    (x,), given = operands, _given(event.attrs)
    function = event.op.functions[0]
    counted = function is np.count_nonzero
    if not x.size or given is None or not is_dense(out) or (counted and x.dtype.char != "?"):
        return False
    axis, keepdims = given
    ufunc, dtype = (np.add, out.dtype) if counted else (REDUCING_TRUTH[function], None)
    rows.call(ufunc.reduce, [x, axis, dtype, out, keepdims])
    return True


def _extreme_place(rows: Rows, event: Event, operands: list[np.ndarray], out: np.ndarray) -> bool:
    """Where the largest, or the smallest, element is."""
    (x,), given = operands, _given(event.attrs)
    if not (x.ndim and x.size) or given is None or given[1] or out.dtype != np.intp or not is_dense(out):
        return False
    rows.call(x.argmax if event.op.functions[0] is np.argmax else x.argmin, [given[0], out])
    return True


def _given(attrs: Attributes) -> tuple[Any, bool] | None:
    """The axis, and whether it is kept, in a call of a reduction; None where there is more to it."""
    given = dict(zip(("axis", "out", "keepdims"), attrs.get("rest", ()), strict=False)) | attrs
    given.pop("rest", None)
    if given.pop("out", None) is not None or not given.keys() <= {"axis", "keepdims"}:
        return None
    keepdims = given.get("keepdims", False)
    return (given.get("axis"), bool(keepdims)) if keepdims in (False, True, np._NoValue) else None


def _cumsum(rows: Rows, event: Event, operands: list[np.ndarray], out: np.ndarray) -> bool:
    (x,) = operands
    if x.dtype != out.dtype or not x.size:
        return False
    rows.call(np.add.accumulate, [x, event.attrs["axis"], None, out])
    return True


# ---------------------------------------------------------------- what moves elements


def _concatenated(rows: Rows, event: Event, operands: list[np.ndarray], out: np.ndarray) -> bool:
    if any(x.dtype != out.dtype for x in operands):
        return False
    rows.call(np.concatenate, [tuple(operands), event.attrs["axis"], out])
    return True


def _stacked(rows: Rows, event: Event, operands: list[np.ndarray], out: np.ndarray) -> bool:
    if any(x.dtype != out.dtype for x in operands) or out.dtype.char not in NUMBERS:
        return False
    axis = event.attrs["axis"]
    before = (slice(None),) * axis
    windows = [out[(*before, k, ...)] for k in range(len(operands))]
    if all(step_of(x) if x.ndim else True for x in (*windows, *operands)):
        for x, window in zip(operands, windows, strict=True):
            move(rows, x, window)
    else:
        rows.call(np.concatenate, [tuple(x[(*before, None)] for x in operands), axis, out])
    return True


def _taken(rows: Rows, event: Event, operands: list[np.ndarray], out: np.ndarray) -> bool:
    (x,) = operands
    return x.dtype == out.dtype and _gather(rows, x, numbers(x.shape, event.attrs["index"]), out)


def _rearranged(rows: Rows, event: Event, operands: list[np.ndarray], out: np.ndarray) -> bool:
    (x,), places = operands, event.attrs["places"]
    return x.dtype == out.dtype and _gather(rows, x, places, out, event.attrs["holes"])


def _gather(rows: Rows, x: np.ndarray, places: np.ndarray, out: np.ndarray, holes: bool = False) -> bool:
    """Add what takes the elements at places, and zeros at those below 0, which `holes` says there are."""
    if not out.size or out.shape != places.shape or not is_dense(out):
        return False
    if holes:
        given, x = x, rows.keep(np.zeros(x.size + 1, x.dtype))
        move(rows, given, x[:-1].reshape(given.shape))
    rows.call(x.take, [rows.keep(np.asarray(places, np.intp)), None, out, "wrap"], out)
    return True


def _added(rows: Rows, event: Event, operands: list[np.ndarray], out: np.ndarray) -> bool:
    return _scatter(rows, operands[0], numbers(out.shape, event.attrs["index"]), out)


def _collected(rows: Rows, event: Event, operands: list[np.ndarray], out: np.ndarray) -> bool:
    return _scatter(rows, operands[0], event.attrs["places"], out)


def scatter_varying(rows: Rows, x: np.ndarray, varying: Varying, out: np.ndarray) -> None:
    """Add zeros with elements added where they were taken from."""
    whole = rows.keep(np.zeros(out.size + 1, out.dtype)) if varying.holes else out.reshape(-1)
    rows.call(whole.fill, [0.0], whole)
    rows.call(np.add.at, [whole, varying.buffer, x], whole, False)
    if varying.holes:
        move(rows, whole[:-1].reshape(out.shape), out)


def _scatter(rows: Rows, x: np.ndarray, places: np.ndarray, out: np.ndarray) -> bool:
    """Add zeros with elements added at places: gathered, where no two come to one place."""
    if x.dtype != out.dtype or out.dtype.char not in NUMBERS or not (is_dense(out) and out.size and x.size):
        return False
    places = places.ravel()
    kept = np.flatnonzero(places >= 0)
    if np.unique(places[kept]).size == kept.size:
        inverse = np.full(out.size, -1, np.intp)
        inverse[places[kept]] = kept
        holes = bool(kept.size < out.size)
        if not _gather(rows, x, inverse.reshape(out.shape), out, holes):
            return False
        _elementwise(rows, np.add, [out, rows.keep(np.zeros((), out.dtype))], out)  # -0.0 becomes 0.0
        return True
    if kept.size < places.size or not is_dense(x):
        return False
    rows.call(out.fill, [0.0], out)
    rows.call(np.add.at, [out.reshape(-1), rows.keep(places.astype(np.intp)), x.reshape(-1)], out, False)
    return True


def _reshaped(rows: Rows, event: Event, operands: list[np.ndarray], out: np.ndarray) -> bool:
    """Of an array that is to be copied for that."""
    (x,) = operands
    if not (is_dense(x) and is_dense(out)) or x.dtype != out.dtype or out.dtype.char not in NUMBERS:
        return False
    move(rows, x.reshape(out.shape), out)
    return True


def _with_axes(rows: Rows, event: Event, operands: list[np.ndarray], out: np.ndarray) -> bool:
    """A part of a number, which is a copy with axes of one element."""
    return operands[0].ndim == 0 and _reshaped(rows, event, operands, out)


def _assigned(rows: Rows, event: Event, operands: list[np.ndarray], out: np.ndarray) -> bool:
    part, whole = operands
    if any(x.dtype != out.dtype for x in operands) or out.dtype.char not in NUMBERS:
        return False
    if not (out.flags.c_contiguous and whole.flags.c_contiguous):
        return False
    move(rows, whole, out)
    move(rows, part, window_of(out, event.attrs["window"]))
    return True


def _embedded(rows: Rows, event: Event, operands: list[np.ndarray], out: np.ndarray) -> bool:
    (x,), index = operands, event.attrs["index"]
    parts = index if isinstance(index, tuple) else (index,)
    if x.dtype != out.dtype or out.dtype.char not in NUMBERS or not is_dense(out):
        return False
    move(rows, rows.keep(np.zeros((), out.dtype)), out)
    move(rows, x, out[parts if any(part is ... for part in parts) else (*parts, ...)])
    return True


# ---------------------------------------------------------------- elementwise


def _cast(rows: Rows, event: Event, operands: list[np.ndarray], out: np.ndarray) -> bool:
    (x,) = operands
    if x.dtype.char in EXACTLY and out.dtype.char in NUMBERS:
        convert(rows, x, out)
        return True
    if (x.dtype.char, out.dtype.char) in REAL_TO_COMPLEX.items():
        move(rows, x, out.real)
        move(rows, rows.keep(np.zeros((), x.dtype)), out.imag)
        return True
    return False


def _part(rows: Rows, event: Event, operands: list[np.ndarray], out: np.ndarray) -> bool:
    (x,) = operands
    if (out.dtype.char, x.dtype.char) not in REAL_TO_COMPLEX.items():
        return False
    move(rows, x.real if event.op is REAL else x.imag, out)
    return True


def _power(rows: Rows, event: Event, operands: list[np.ndarray], out: np.ndarray) -> bool:
    """Of numbers, and of arrays, of which the operator has functions of its own for some exponents."""
    x, exponent = operands
    kind = out.dtype.char
    if out.ndim == 0:
        exponent = exponent if isinstance(exponent, np.ndarray) else rows.keep(np.array(exponent, kind))
        return rows.loop(np.power, [x, exponent], out)
    if x.ndim == 0 or x.dtype.char != kind or kind not in FLOATS or _vector_form(POWER, x):
        return False
    if event.operands[1].kind == FIXED:
        number = event.operands[1].value
        if type(number) not in (int, float) or number == 0:
            return False
        if number in QUICK_POWERS and not _is_function(event):
            _elementwise(rows, QUICK_POWERS[number], [x], out)
            return True
        exponent = rows.keep(np.array(number, kind))
    elif exponent.ndim == 0 or exponent.dtype.char != kind:
        return False
    _elementwise(rows, np.power, [x, exponent], out)
    return True


def _is_function(event: Event) -> bool:
    """Whether a power was not the operator, which takes other functions for some exponents."""
    return event.call is not None and event.call.function is np.power


def _chosen(rows: Rows, event: Event, operands: list[np.ndarray], out: np.ndarray) -> bool:
    """A choice for which there is no loop."""
    if event.attrs or ufunc_for(WHERE, operands) is not None:
        return False
    condition, x, y = operands
    if any(z.dtype.kind not in "fciub" for z in operands) or out.dtype.char not in NUMBERS:
        return False
    if condition.dtype.char != "?":
        given, condition = condition, rows.keep(np.zeros(condition.shape, bool))
        rows.call(np.not_equal, [given, rows.keep(np.zeros((), given.dtype)), condition])
    rows.call(np.copyto, [out, y, "same_kind"], out)
    rows.call(np.copyto, [out, x, "same_kind", condition], out, False)
    return True


SPECIAL: dict[Any, Callable[[Rows, Event, list[Any], np.ndarray], bool]] = {
    **dict.fromkeys(REDUCING, _reduced),
    ASSIGN: _assigned, MEAN: _mean, NORM: _norm, CUMSUM: _cumsum, CONCATENATE: _concatenated,
    GETITEM: _with_axes, STACK: _stacked, TAKE: _taken, REARRANGE: _rearranged, ADD_AT: _added,
    COLLECT: _collected, EMBED: _embedded, ASTYPE: _cast, RESHAPE: _reshaped, REAL: _part, IMAG: _part,
    POWER: _power, WHERE: _chosen,
    **dict.fromkeys(map(passive, (*REDUCING_TRUTH, np.count_nonzero)), _truth),
    **dict.fromkeys(map(passive, (np.argmax, np.argmin)), _extreme_place),
}  # fmt: skip


def _is_filled(rows: Rows, op: Operation, out: np.ndarray) -> bool:
    """Whether an op gives the same number everywhere, which a row now does."""
    if not isinstance(op, Passive) or op.functions[0] not in CONSTANT:
        return False
    return rows.loop(np.positive, [np.array(CONSTANT[op.functions[0]], out.dtype)], out)


# ---------------------------------------------------------------- by Python


def _by_forward(event: Event, operands: list[np.ndarray], out: np.ndarray) -> Callable[[], None]:
    """What Python runs."""
    op, attrs = event.op, event.attrs
    if not isinstance(op, Elementwise) and all(isinstance(x, np.ndarray) and x.ndim for x in operands):

        def run() -> None:
            out[...] = op.forward(*operands, **attrs)

        return run

    def run_on_numbers() -> None:
        given = [number_of(x) if isinstance(x, np.ndarray) else x for x in operands]
        if op is POWER and event.operands[1].kind == LIVE and type(event.operands[1].value) is float:
            given[1] = given[1].item()  # NumPy has ways of its own for some
        out[...] = forward_of(event, given)

    return run_on_numbers


def forward_of(event: Event, given: Sequence[Any]) -> Any:
    """Return what the op of an event gives for values."""
    op, taken = event.op, forward.taken(event.op, event.value)
    if op is POWER and np.ndim(event.value):  # as compiled recording does
        is_large = type(given[0]) is np.ndarray and given[0].nbytes > tape.LARGE
        by_numpy = np.power if is_large or _is_function(event) else operator.pow
        return (_vector_form(POWER, given[0]) or by_numpy)(*given)
    as_operator = isinstance(op, Elementwise) and op.operator is not None and not taken
    if as_operator and (are_real_numbers(given) or (_are_complex(given) and op not in APART)):
        return op.operator(*given)  # which tells of errors in other words
    return forward.value(op, given, {**event.attrs, **taken})


def are_real_numbers(given: Sequence[Any]) -> bool:
    """Whether values are no arrays and not complex."""
    return all(isinstance(x, REAL_NUMBERS) for x in given)


def _vector_form(op: Primitive, x: Any) -> np.ufunc | None:
    """The form of an op that recording takes for an operand of this size, if that is not NumPy's."""
    if type(x) is np.ndarray and x.nbytes > tape.LARGE and forward.has_vector_form(op, x.dtype.char):
        form: np.ufunc = forward.vector_form(op, x.dtype.char)
        return form
    return None


def ufunc_for(op: Operation, operands: Sequence[np.ndarray]) -> np.ufunc | None:
    """Return the ufunc that recording takes for an op of these operands; None without one."""
    if op is MATMUL:
        return np.matmul
    if isinstance(op, Passive):
        return op.forward if isinstance(op.forward, np.ufunc) else None
    if not isinstance(op, Elementwise) or op is POWER:
        return None
    kinds = ""
    for x in operands:
        if not isinstance(x, np.ndarray):
            return None
        kinds += x.dtype.char
    large = op is not WHERE and operands[0].nbytes > tape.LARGE and all(kind in FLOATS for kind in kinds)
    return (_vector_form(op, operands[0]) if large else None) or _ufunc_of(op, kinds)


@functools.cache
def _ufunc_of(op: Elementwise, kinds: str) -> np.ufunc | None:
    """The ufunc of an op of dtypes, but for large arrays."""
    if op is WHERE:
        return forward.choosing(op) if kinds[0] in f"?{kinds[1]}" and kinds[1] == kinds[2] in FLOATS else None
    if op.arity > 2 or not any(kind in NUMBERS for kind in kinds):
        return None
    found = forward.ufunc_of(op) if all(kind in NUMBERS + EXACTLY for kind in kinds) else None
    if found is None or not any(kind in "DF" for kind in kinds) or any("D" in types for types in found.types):
        return found
    return None  # a formula, whose loops are of real numbers


def _are_complex(given: Sequence[Any]) -> bool:
    """Whether values, or buffers of them, are single complex numbers."""
    return all(np.ndim(x) == 0 and np.iscomplexobj(x) for x in given)
