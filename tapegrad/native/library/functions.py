"""NumPy's functions of arrays written as loops, for arrays of active numbers.

Twins call these in place of NumPy's. Each looks at the types of its arguments: where none is active it is
NumPy's own function.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit
from numba.core import types
from numba.core.errors import TypingError
from numba.extending import intrinsic, overload

from tapegrad.native.arrays.argument_arrays import ArgumentArray
from tapegrad.native.arrays.arrays import (
    as_array,
    carries,
    is_active_array,
    is_complex_array,
    is_recorded_array,
    joined,
)
from tapegrad.native.arrays.copied_arguments import expanded
from tapegrad.native.arrays.expressions import counted_along, dense, summed, summed_along
from tapegrad.native.arrays.fused_sums import SUMS
from tapegrad.native.emission.algebra import CLIP, WHERE
from tapegrad.native.emission.annotations import Code, Emission, Key, Namespace, Type, TypingContext
from tapegrad.native.numbers.complexes import ActiveComplex, im, pair, re, squared
from tapegrad.native.numbers.operators import value_of, with_value
from tapegrad.native.numbers.scalar import Active, is_active
from tapegrad.native.tapes.blocks import inner_njit
from tapegrad.native.twins.forms import ActiveRecord, holds_active, recorded

INSTEAD: dict[Key, Code] = {}  # by NumPy's function
COUNTED: dict[Key, Code] = {}  # of these what gives arrays of floats whose statements follow each other
METHODS: dict[str, Code] = {}  # by the name of a method of arrays
OPERATORS: dict[Key, Code] = {}


def overload_recorded(*originals: Key, method: str = "") -> Callable[[Code], Code]:
    """Declare what is done in place of functions: ``choose(*types)`` returns code, None for the original."""

    def declare(choose: Code) -> Code:
        stub = _stub(originals[0], choose, method)
        for function in originals:
            (OPERATORS if getattr(function, "__module__", "") == "_operator" else INSTEAD)[function] = stub
        if method:
            METHODS[method] = stub
        return choose

    return declare


def overload_counted(original: Key) -> Callable[[Code], Code]:
    """Declare what a function is whose result is an array of floats whose statements follow each other."""

    def declare(choose: Code) -> Code:
        COUNTED[original] = _stub(original, choose)
        return choose

    return declare


def _stub(original: Key, choose: Code, method: str = "") -> Code:
    """What stands for a function in recorded code."""
    names = list(inspect.signature(choose).parameters)

    def chosen(*args: Type) -> Code:
        given = [not isinstance(x, types.Omitted) and x is not None for x in args]
        if method and isinstance(args[0], types.ClassInstanceType):  # whose method has the same name
            return _original(method, names, given, choose)
        found = choose(*args)
        return _original(original, names, given, choose) if found is None else found

    space: Namespace = {"chosen": chosen, "np": np}
    form = str(inspect.signature(choose))
    exec(f"def pick{form}:\n    return chosen({', '.join(names)})\ndef stub{form}:\n    pass", space)
    stub: Code = space["stub"]
    stub.__name__ = choose.__name__
    overload(stub)(space["pick"])
    return stub


def _original(function: Key | str, names: list[str], given: list[bool], choose: Code) -> Code:
    """Code that calls the function itself, or the method of this name, with the arguments that were given."""
    passed = [name for name, here in zip(names, given, strict=True) if here]
    symbols = {operator.matmul: "@"}
    if isinstance(function, str):
        owner, *rest = passed
        return _code(f"return {owner}.{function}({', '.join(rest)})", choose)
    text = f" {symbols[function]} ".join(passed) if function in symbols else (
        f"function({', '.join(f'{n}' if k == names.index(n) else f'{n}={n}' for k, n in enumerate(passed))})"
    )  # fmt: skip
    return _code(f"return {text}", choose, function=function)


def _code(body: str, choose: Code, **space: Any) -> Code:
    space["np"] = np
    exec(f"def impl{inspect.signature(choose)}:\n    {body}", space)
    return space["impl"]


@intrinsic
def dtype_of(typingctx: TypingContext, *args: Type) -> Emission:
    """Return what stands for the dtype of arrays of active numbers, such as are among the arguments."""
    active: Any = joined([k for arg in args for k in _spread(arg)])
    return types.DType(active)(types.StarArgTuple(args)), lambda cx, b, sig, a: cx.get_dummy_value()


def _spread(kind: Type) -> list[Type]:
    """The types of the numbers in a type, or meant by a dtype."""
    if isinstance(kind, types.BaseTuple):
        return [k for part in kind for k in _spread(part)]
    if isinstance(kind, (types.Array, types.List, types.DTypeSpec)):
        return _spread(kind.dtype)
    return [kind]


def _any_active(*kinds: Type) -> bool:
    return any(carries(k) for kind in kinds for k in _spread(kind))


def _none(*args: Type) -> bool:
    """Whether optional arguments are left out."""
    return all(isinstance(x, (types.Omitted, types.NoneType)) or x is None for x in args)


@inner_njit
def stored(out, x):
    """Copy a result to where it is wanted."""
    if out.shape != x.shape:
        raise ValueError("the array for the result has another shape")
    for k in np.ndindex(x.shape):
        out[k] = x[k]
    return out


# ---------------------------------------------------------------- memory, which is not float64's

ATTRIBUTES: dict[str, Code] = {}  # of arrays, where those of active numbers have others


def _attribute(name: str, impl: Code | None) -> None:
    space: Namespace = {}
    exec(f"def plain(a):\n    return a.{name}\ndef stub(a):\n    pass", space)

    def choose(a):
        if not isinstance(a, types.Array) or not holds_active(a):
            return space["plain"]
        if impl is None:
            raise TypingError(f"tapegrad: {name} of an array whose numbers carry derivatives: {MEMORY}")
        return impl

    overload(space["stub"])(choose)
    ATTRIBUTES[name] = space["stub"]


MEMORY = "its memory is not that of floats; pass it as a plain array if only values are wanted"
_attribute("ctypes", None)
_attribute("strides", None)
_attribute("nbytes", lambda a: size_of(a) * a.size)
_attribute("itemsize", lambda a: size_of(a))


def size_of(a):
    """The bytes of an element, as they were without derivatives."""


@overload(size_of)
def _size_of(a):
    if isinstance(a.dtype, ActiveRecord):
        size = a.dtype.primal.size
        return lambda a: size
    return (lambda a: 16) if is_complex_array(a) else lambda a: 8


@overload_recorded(njit(lambda a, dtype: a.view(dtype)), method="view")
def view(a, dtype):
    if isinstance(a, types.Array) and holds_active(a):
        raise TypingError(f"tapegrad: view of an array whose numbers carry derivatives: {MEMORY}")


@overload_recorded(np.frombuffer)
def frombuffer(buffer, dtype=None):
    if isinstance(buffer, types.Array) and holds_active(buffer):
        raise TypingError(f"tapegrad: frombuffer of an array whose numbers carry derivatives: {MEMORY}")


@overload_recorded(str)
def text(object):
    return (lambda object: str(value_of(object))) if is_active(object) else None


# ---------------------------------------------------------------- making arrays


@overload_recorded(np.float64)
def float64(x):
    return (lambda x: float(x)) if is_active(x) else None


@overload_recorded(np.int64, np.int32)
def int64(x):
    return (lambda x: int(x)) if is_active(x) else None


@overload_recorded(divmod)
def both(x, y):
    return (lambda x, y: (x // y, x % y)) if is_active(x) or is_active(y) else None


def held(dtype: Type, *kinds: Type) -> bool:
    """Whether active numbers can be in an array of this dtype, or of theirs if it is left out."""
    kind: Type = None if _none(dtype) else getattr(dtype, "dtype", None)
    complexes = isinstance(joined([k for kind in kinds for k in _spread(kind)]), ActiveComplex)
    if _none(dtype) or kind == types.complex128 or isinstance(kind, ActiveComplex):
        return True
    return not complexes and (kind == types.float64 or isinstance(kind, Active))


@overload_recorded(np.array)
def array(object, dtype=None):
    if not _any_active(object):
        return None
    if not held(dtype, object):
        raise TypingError(f"tapegrad: numbers that carry derivatives in an array of {dtype}")
    if is_recorded_array(object):

        def copied(object, dtype=None):
            out = np.empty(object.shape, dtype_of(object, dtype))
            out[...] = object
            return out

        return copied
    if isinstance(object, types.BaseTuple):
        if all(isinstance(part, types.BaseTuple) for part in object):
            count, inner = len(object), len(object[0])
            if any(len(part) != inner for part in object):
                return None
            lines = [f"    out[{q}, {k}] = object[{q}][{k}]" for q in range(count) for k in range(inner)]
            return _made(f"({count}, {inner})", lines)
        return _made(f"{len(object)}", [f"    out[{k}] = object[{k}]" for k in range(len(object))])
    if isinstance(object, types.List) and isinstance(object.dtype, types.List):

        def rows(object, dtype=None):
            out = np.empty((len(object), len(object[0])), dtype_of(object, dtype))
            for i in range(len(object)):
                if len(object[i]) != out.shape[1]:
                    raise ValueError("np.array of lists of different lengths")
                for j in range(out.shape[1]):
                    out[i, j] = object[i][j]
            return out

        return rows
    if isinstance(object, types.List) and carries(object.dtype):

        def row(object, dtype=None):
            out = np.empty(len(object), dtype_of(object, dtype))
            for i in range(len(object)):
                out[i] = object[i]
            return out

        return row
    return None


def own_copy(dtype, a):
    """A copy of an array, which may hold active numbers where the array holds floats."""


@overload(own_copy)
def _own_copy(dtype, a):
    floats = isinstance(a, types.Array) and a.dtype in (types.float64, types.complex128)
    if not floats or not a.ndim:  # Numba assigns nothing to an array of no dimension
        return lambda dtype, a: a.copy()

    def copied(dtype, a):
        out = np.empty(a.shape, recorded_dtype(dtype, a))
        out[...] = a
        return out

    return copied


def own_array(dtype, a):
    """An array of floats as one that holds active numbers, a copy; anything else is itself."""


@overload(own_array)
def _own_array(dtype, a):
    floats = isinstance(a, types.Array) and a.dtype == types.float64
    return (lambda dtype, a: own_copy(dtype, a)) if floats else lambda dtype, a: a


@overload_recorded(np.asarray)
def asarray(a, dtype=None):
    if not _any_active(a):
        return None
    stub, kind = INSTEAD[np.array], getattr(dtype, "dtype", None)
    if is_recorded_array(a) and (_none(dtype) or recorded(kind, a.dtype.spec) == a.dtype):
        return lambda a, dtype=None: a
    return lambda a, dtype=None: stub(a, dtype)


def _made(shape: str, lines: list[str]) -> Code:
    space: Namespace = {"np": np, "dtype_of": dtype_of}
    body = "\n".join(lines)
    exec(
        f"def impl(object, dtype=None):\n    out = np.empty({shape}, dtype_of(object, dtype))\n{body}\n"
        "    return out\n",
        space,
    )
    return space["impl"]


@overload_recorded(np.where)
def where(condition, x=None, y=None):
    if _none(x) or _none(y) or not _any_active(x, y):  # of the condition alone, where it holds
        return None
    kinds = {"condition": condition, "x": x, "y": y}
    if not isinstance(joined([k for kind in (x, y) for k in _spread(kind)]), ActiveComplex):
        return _code(f"return ufunc({_beside(kinds)})", where, ufunc=WHERE, as_array=as_array)
    if not any(isinstance(k, types.Array) for k in kinds.values()):
        return lambda condition, x=None, y=None: one_of(condition, x, y)
    line = "flat[i] = one_of({condition}, {x}, {y})"
    return _of_each("condition, x=None, y=None", [line], kinds, one_of=one_of)


def one_of(condition, x, y):
    """One of two complex numbers, chosen part by part."""


@overload(one_of)
def _one_of(condition, x, y):
    if isinstance(x, ActiveComplex) or isinstance(y, ActiveComplex):

        def of_parts(condition, x, y):
            first = bool(condition)
            return pair(WHERE(first, re(x), re(y)), WHERE(first, im(x), im(y)))

        return of_parts
    return lambda condition, x, y: pair(WHERE(bool(condition), re(x), re(y)), im(x) if condition else im(y))


def _beside(kinds: dict[str, Type]) -> str:
    """Names of operands; active numbers beside arrays are arrays of no dimension."""
    wide = any(isinstance(kind, types.Array) for kind in kinds.values())
    return ", ".join(f"as_array({k})" if wide and is_active(kind) else k for k, kind in kinds.items())


def _of_each(form: str, lines: list[str], kinds: dict[str, Type], **known: Any) -> Code:
    """Code that runs lines for each element i of an array, whose shape is that of the arrays among `kinds`.

    In the lines ``{name}`` stands for the element of one of these; functions that they call are in `known`.
    """
    names = ", ".join(part.partition("=")[0] for part in form.split(", "))
    wide = [name for name, kind in kinds.items() if isinstance(kind, types.Array)]
    picks = {name: f"{name}w.flat[i]" if name in wide else name for name in kinds}
    made = {name: f"{name}m" if isinstance(kinds[name], ArgumentArray) else name for name in wide}
    text = "\n".join([
        f"def impl({form}):",
        *(f"    {one} = expanded({name})" for name, one in made.items() if one != name),
        f"    shape = np.broadcast_shapes({', '.join(f'{one}.shape' for one in made.values())})",
        *(f"    {name}w = np.broadcast_to({one}, shape)" for name, one in made.items()),
        f"    out = np.empty(shape, dtype_of({names}))",
        "    flat = out.reshape(-1)",
        "    for i in range(flat.size):",
        *("        " + line.format(**picks) for line in lines),
        "    return out",
    ])  # fmt: skip
    space = {"np": np, "dtype_of": dtype_of, "expanded": expanded, **known}
    exec(text, space)
    return space["impl"]


@overload_recorded(np.clip)
def clip(a, a_min, a_max):
    if not _any_active(a, a_min, a_max) or (_none(a_min) and _none(a_max)):
        return None
    low, high = "-np.inf" if _none(a_min) else "a_min", "np.inf" if _none(a_max) else "a_max"
    kinds = {"a": a, low: a_min, high: a_max}
    return _code(f"return ufunc({_beside(kinds)})", clip, ufunc=CLIP, as_array=as_array)


UFUNCS = {INSTEAD[np.where]: WHERE, INSTEAD[np.clip]: CLIP}


LIKE: dict[Key, Code] = {}  # functions that make arrays of floats, which twins let hold active numbers
GIVEN: dict[Key, Code] = {}  # the same where the dtype is given


def _like(function: Key, form: str, made: str, of: str = "") -> None:
    """Declare a function that makes an array as argument `of` is, else one of floats, or of what is in it.

    It is called with the dtype of active numbers first. Where argument `of` is of another kind of numbers it
    is NumPy's own.
    """
    names = [part.partition("=")[0] for part in form.split(", ")]
    row, which = ", ".join(names), f"recorded_dtype(dtype, {of})" if of else "dtype_of(dtype, {row})"
    space: Namespace = {
        "np": np,
        "function": function,
        "recorded_dtype": recorded_dtype,
        "dtype_of": dtype_of,
    }
    space["holds"] = holds
    exec(
        f"def given_code(dtype, {form}):\n    {made}\n    return out\n"
        f"def code(dtype, {form}):\n    dtype = {which.format(row=row)}\n    {made}\n    return out\n"
        f"def plain(dtype, {form}):\n    return function({row})\n"
        f"def stub(dtype, {form}):\n    pass\ndef given(dtype, {form}):\n    pass\n"
        f"def pick(dtype, {form}):\n    return code if {f'holds(dtype, {of})' if of else True} else plain\n"
        f"def pick_given(dtype, {form}):\n    return given_code",
        space,
    )
    overload(space["stub"])(space["pick"])
    overload(space["given"])(space["pick_given"])
    LIKE[function], GIVEN[function] = space["stub"], space["given"]


def _wanted(dtype: Type, of: Type) -> Type:
    """The type of the elements of an array that is made as another, or of a number."""
    kind = types.unliteral(getattr(of, "dtype", of))
    return joined([kind]) or recorded(kind, dtype.dtype.spec)


def holds(dtype: Type, of: Type) -> bool:
    """Whether an array made as this one is holds active numbers."""
    return holds_active(_wanted(dtype, of))


@intrinsic
def recorded_dtype(typingctx: TypingContext, dtype: Type, of: Type) -> Emission:
    """Return the dtype of an array that is made as another."""
    return types.DType(_wanted(dtype, of))(dtype, of), lambda cx, b, sig, args: cx.get_dummy_value()


_like(np.zeros_like, "a", "out = np.zeros(a.shape, dtype)", "a")
_like(np.empty_like, "prototype", "out = np.zeros(prototype.shape, dtype)", "prototype")
_like(np.ones_like, "a", "out = np.ones(a.shape, dtype)", "a")
_like(np.full_like, "a, fill_value", "out = np.full(a.shape, fill_value, dtype)", "a")
_like(np.full, "shape, fill_value", "out = np.full(shape, fill_value, dtype)", "fill_value")
for _f, _n in ((np.eye, "N"), (np.identity, "n")):
    _like(_f, _n, f"out = np.zeros(({_n}, {_n}), dtype)\n    for i in range({_n}):\n        out[i, i] = 1.0")
_like(
    np.linspace, "start, stop, num=50",
    "out = np.zeros(num, dtype)\n    for i in range(num):\n"
    "        out[i] = start + (stop - start) * i / max(num - 1, 1)",
)  # fmt: skip


@overload_recorded(np.interp)
def interp(x, xp, fp):
    if not _any_active(x, xp, fp):
        return None

    if not isinstance(x, types.Array):
        return lambda x, xp, fp: _interpolated(x, xp, fp)
    return _of_each("x, xp, fp", ["flat[i] = single({x}, xp, fp)"], {"x": x}, single=_interpolated)


@inner_njit
def _interpolated(x, xp, fp):
    """The number at x, with the derivatives of Tensors: at a knot the slope to its right."""
    last = xp.size - 1
    if last < 0 or fp.size != xp.size:
        raise ValueError("interp: xp and fp are vectors of one length that is not 0")
    if x < xp[0]:
        return fp[0]
    if x > xp[last] or last == 0:
        return fp[last]
    low, high = 0, last
    while high - low > 1:
        middle = (low + high) // 2
        if x < xp[middle]:
            high = middle
        else:
            low = middle
    start, end, width = fp[low], fp[high], xp[high] - xp[low]
    if np.isnan(x):
        return start + (value_of(x) - xp[low]) / width * (end - start)
    if width == 0.0:
        return end
    if x == xp[high]:
        return end + ((x - xp[low]) / width - 1.0) * (end - start)
    return start + (x - xp[low]) / width * (end - start)


# ---------------------------------------------------------------- reductions and scans


@inner_njit
def shared(a, value):
    """A number whose derivative all elements equal to it share evenly, as those of Tensors do."""
    s, count = 0.0, 0
    for v in a.flat:
        if v == value:
            s = s + v
            count += 1
    return with_value(s / max(count, 1), value)


def _reduction(
    name: str,
    start: str,
    step: str,
    end: str = "",
    known: Callable[[Type], bool] = is_recorded_array,
    of_dense: Code | None = None,
    along: Code | None = None,
) -> None:
    """Declare a reduction of all elements, or along an axis by that of all of each lane."""
    function = getattr(np, name)
    space: Namespace = {"np": np, "shared": shared, "value_of": value_of}
    exec(
        f"def impl(a, axis=None):\n    flat = a.ravel()\n    {start}\n    for v in flat:\n        {step}\n"
        f"    {end or 'pass'}\n    return s\n",
        space,
    )
    whole = space["impl"]

    def choose(a, axis=None):
        if not known(a):
            return None
        if not _none(axis) and a.ndim > 1:
            return along if along and dense(a) and isinstance(axis, types.Integer) else _along(a, function)
        return of_dense if of_dense and dense(a) else whole

    choose.__name__ = name
    overload_recorded(function, method=name)(choose)


def _along(a: types.Array, function: Key) -> Code | None:
    """Code for a reduction of a matrix along an axis."""
    if a.ndim != 2:
        return None

    def impl(a, axis=None):
        if axis == 0 or axis == -2:
            out = np.empty(a.shape[1], dtype_of(a))
            for i in range(a.shape[1]):
                out[i] = stub(a[:, i])
        else:
            out = np.empty(a.shape[0], dtype_of(a))
            for i in range(a.shape[0]):
                out[i] = stub(a[i])
        return out

    stub = INSTEAD[function]
    return impl


added: Any = summed
added_along: Any = summed_along
_reduction(
    "sum", "s = 0.0", "s = s + v", of_dense=lambda a, axis=None: added(a),
    along=lambda a, axis=None: added_along(a, axis),
)  # fmt: skip
_reduction("prod", "s = 1.0", "s = s * v")
_reduction(
    "mean", "s = 0.0", "s = s + v", "s = np.divide(s, flat.size)",
    of_dense=lambda a, axis=None: np.divide(added(a), a.size),
    along=lambda a, axis=None: np.divide(added_along(a, axis), a.shape[axis]),
)  # fmt: skip


@overload_counted(np.sum)
def counted_sums(a, axis=None):
    if not dense(a) or a.ndim < 2 or not isinstance(axis, types.Integer):
        return (lambda a, axis=None: total(a, axis)) if is_recorded_array(a) else None
    along: Any = counted_along if a.dtype.spec == () else summed_along
    return lambda a, axis=None: along(a, axis)


total: Any = INSTEAD[np.sum]
SUMS.update((INSTEAD[np.sum], COUNTED[np.sum]))


def _extreme(name: str, better: str) -> None:
    """Declare the largest or smallest element; where one is nan it is nan, and has no derivative."""
    _reduction(
        name,
        f"if flat.size == 0:\n        raise ValueError('{name} of no elements')\n    s = value_of(flat[0])",
        f"w = value_of(v)\n        if w {better} s or w != w:\n            s = w",
        "s = shared(flat, s)", known=is_active_array,
    )  # fmt: skip


_extreme("max", ">")
_extreme("min", "<")
INSTEAD[np.amax], INSTEAD[np.amin] = INSTEAD[np.max], INSTEAD[np.min]


@overload_recorded(np.ptp)
def ptp(a):
    top, bottom = INSTEAD[np.max], INSTEAD[np.min]
    return (lambda a: top(a) - bottom(a)) if is_active_array(a) else None


@overload_recorded(np.var, method="var")
def var(a):
    if not is_recorded_array(a):
        return None

    stub = INSTEAD[np.mean]

    def impl(a):
        m, s = stub(a), 0.0
        for v in a.flat:
            d = v - m
            s = s + d * d
        return np.divide(s, a.size)

    def of_complex(a):
        m, s = stub(a), 0.0
        for v in a.flat:
            s = s + squared(v - m)
        return np.divide(s, a.size)

    return impl if is_active_array(a) else of_complex


@overload_recorded(np.std, method="std")
def std(a):
    stub = INSTEAD[np.var]

    def impl(a):
        square = stub(a)
        return 0.0 if square == 0.0 else np.sqrt(square)  # its derivative is taken as 0 there

    return impl if is_recorded_array(a) else None


def _scan(name: str, start: float, symbol: str) -> None:
    space: Namespace = {"np": np, "dtype_of": dtype_of}
    exec(
        "def impl(a):\n    flat = a.ravel()\n    out = np.empty(flat.size, dtype_of(a))\n"
        f"    s = {start}\n    for i in range(flat.size):\n        s = s {symbol} flat[i]\n"
        "        out[i] = s\n    return out\n",
        space,
    )

    def choose(a):
        return space["impl"] if is_recorded_array(a) else None

    choose.__name__ = name
    overload_recorded(getattr(np, name), method=name)(choose)


_scan("cumsum", 0.0, "+")
_scan("cumprod", 1.0, "*")


@overload_recorded(np.diff)
def diff(a, n=1):
    if not is_recorded_array(a):
        return None

    def impl(a, n=1):
        if n < 0:
            raise ValueError("np.diff: n is a number of differences, 0 or more")
        out = a.copy()
        for _ in range(n):
            out = out[..., 1:] - out[..., :-1]
        return out

    return impl


@overload_recorded(np.take_along_axis)
def take_along_axis(arr, indices, axis):
    """NumPy's own, with indices looked at: what lies outside is no active number, and Numba reads it."""
    if not is_recorded_array(arr):
        return None
    if isinstance(axis, types.Integer) and not isinstance(axis, types.IntegerLiteral):
        raise TypingError("np.take_along_axis takes an axis that is a constant")
    whole = axis is None or isinstance(axis, types.NoneType)

    def impl(arr, indices, axis):
        size = arr.size if whole else arr.shape[axis]
        for k in indices.flat:
            if k < -size or k >= size:
                raise IndexError("np.take_along_axis: an index is out of bounds")
        return np.take_along_axis(arr, indices, axis)

    return impl
