"""The methods of ndarray that NumPy has as functions too, and those about memory."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any, Generic, TypeVar

import numpy as np

from tapegrad.core.base import (
    Axis,
    Casting,
    DType,
    Handle,
    NotGiven,
    Operand,
    Out,
    array_of,
    like_of,
    ndim_of,
)
from tapegrad.core.conversion import copy
from tapegrad.core.functions import FUNCTIONS, Function
from tapegrad.core.indices import getitem, plain_index
from tapegrad.core.inplace import write
from tapegrad.core.notes import note_escape
from tapegrad.errors import UnsupportedOpError

NOT_GIVEN = np._NoValue
NOTHING: dict[str, Any] = {}
# What the methods called most go to; a look at the table costs a call of them up to a tenth.
sum_: Function
mean: Function
prod: Function
max_: Function
min_: Function
var: Function
std: Function
cumsum: Function
reshape: Function
ravel: Function
transpose: Function
swapaxes: Function
squeeze: Function
take: Function
clip: Function
dot: Function
real: Function
imag: Function


def complete() -> None:
    """Take from the table what methods go to, once it is full."""
    global sum_, mean, prod, max_, min_, var, std, cumsum, real, imag
    global reshape, ravel, transpose, swapaxes, squeeze, take, clip, dot
    sum_, mean, prod, max_, min_ = map(FUNCTIONS.__getitem__, (np.sum, np.mean, np.prod, np.max, np.min))
    var, std, cumsum, real, imag = map(FUNCTIONS.__getitem__, (np.var, np.std, np.cumsum, np.real, np.imag))
    shaping = np.reshape, np.ravel, np.transpose, np.swapaxes, np.squeeze
    reshape, ravel, transpose, swapaxes, squeeze = map(FUNCTIONS.__getitem__, shaping)
    take, clip, dot = map(FUNCTIONS.__getitem__, (np.take, np.clip, np.dot))


def _given(initial: Operand | NotGiven, where: Operand | NotGiven) -> dict[str, Any]:
    if initial is where is NOT_GIVEN:
        return NOTHING
    return {k: v for k, v in (("initial", initial), ("where", where)) if v is not NOT_GIVEN}


def _call(function: Any, *args: Any, **kwargs: Any) -> Any:
    given = {k: v for k, v in kwargs.items() if v is not NOT_GIVEN and not (k == "out" and v is None)}
    return FUNCTIONS[function](*args, **given)


T = TypeVar("T", bound="ArrayMethods")


class ArrayMethods(Handle):
    """Methods with the names, arguments and defaults of ndarray's."""

    __slots__ = ()

    # ------------------------------------------------------------ reductions

    def sum(self: T, axis: Axis = None, dtype: DType = None, out: Out = None, keepdims: bool = False,
            initial: Operand | NotGiven = NOT_GIVEN, where: Operand | NotGiven = NOT_GIVEN) -> T:  # fmt: skip
        """Sum over axes."""
        if initial is where is NOT_GIVEN:
            return sum_(self, axis, dtype, out, keepdims)
        return sum_(self, axis, dtype, out, keepdims, **_given(initial, where))

    def mean(self: T, axis: Axis = None, dtype: DType = None, out: Out = None, keepdims: bool = False, *,
             where: Operand | NotGiven = NOT_GIVEN) -> T:  # fmt: skip
        """Mean over axes."""
        return mean(self, axis, dtype, out, keepdims, **_given(NOT_GIVEN, where))

    def prod(
        self: T, axis: Axis = None, dtype: DType = None, out: Out = None, keepdims: bool = False,
        initial: Operand | NotGiven = NOT_GIVEN, where: Operand | NotGiven = NOT_GIVEN,
    ) -> T:  # fmt: skip
        """Product over axes."""
        return prod(self, axis, dtype, out, keepdims, **_given(initial, where))

    def max(self: T, axis: Axis = None, out: Out = None, keepdims: bool = False,
            initial: Operand | NotGiven = NOT_GIVEN, where: Operand | NotGiven = NOT_GIVEN) -> T:  # fmt: skip
        """Largest value over axes."""
        return max_(self, axis, out, keepdims, **_given(initial, where))

    def min(self: T, axis: Axis = None, out: Out = None, keepdims: bool = False,
            initial: Operand | NotGiven = NOT_GIVEN, where: Operand | NotGiven = NOT_GIVEN) -> T:  # fmt: skip
        """Smallest value over axes."""
        return min_(self, axis, out, keepdims, **_given(initial, where))

    def var(
        self: T, axis: Axis = None, dtype: DType = None, out: Out = None, ddof: float = 0,
        keepdims: bool = False, *, where: Operand | NotGiven = NOT_GIVEN,
        mean: Operand | NotGiven = NOT_GIVEN,
    ) -> T:  # fmt: skip
        """Variance over axes."""
        return var(self, axis, dtype, out, ddof, keepdims, where=where, mean=mean)

    def std(
        self: T, axis: Axis = None, dtype: DType = None, out: Out = None, ddof: float = 0,
        keepdims: bool = False, *, where: Operand | NotGiven = NOT_GIVEN,
        mean: Operand | NotGiven = NOT_GIVEN,
    ) -> T:  # fmt: skip
        """Standard deviation over axes."""
        return std(self, axis, dtype, out, ddof, keepdims, where=where, mean=mean)

    def cumsum(self: T, axis: int | None = None, dtype: DType = None, out: Out = None) -> T:
        """Running sum."""
        return cumsum(self, axis, dtype, out)

    def cumprod(self: T, axis: int | None = None, dtype: DType = None, out: Out = None) -> T:
        """Running product."""
        return _call(np.cumprod, self, axis, dtype, out=out)

    def trace(self: T, offset: int = 0, axis1: int = 0, axis2: int = 1, dtype: DType = None,
              out: Out = None) -> T:  # fmt: skip
        """Sum of a diagonal."""
        return _call(np.trace, self, offset, axis1, axis2, dtype=dtype, out=out)

    def argmax(self: T, axis: int | None = None, out: Out = None, *, keepdims: bool = False) -> T:
        """Place of the largest value; has no derivative."""
        return _call(np.argmax, self, axis, out=out, keepdims=keepdims)

    def argmin(self: T, axis: int | None = None, out: Out = None, *, keepdims: bool = False) -> T:
        """Place of the smallest value; has no derivative."""
        return _call(np.argmin, self, axis, out=out, keepdims=keepdims)

    def any(self: T, axis: Axis = None, out: Out = None, keepdims: bool = False, *,
            where: Any = NOT_GIVEN) -> T:  # fmt: skip
        """Whether an element is true."""
        return _call(np.any, self, axis, out=out, keepdims=keepdims, where=where)

    def all(self: T, axis: Axis = None, out: Out = None, keepdims: bool = False, *,
            where: Operand | NotGiven = NOT_GIVEN) -> T:  # fmt: skip
        """Whether all elements are true."""
        return _call(np.all, self, axis, out=out, keepdims=keepdims, where=where)

    # ------------------------------------------------------------ shapes and copies

    def reshape(self: T, *shape: int | Sequence[int], order: str = "C", copy: bool | None = None) -> T:
        """The same elements in another shape."""
        return reshape(self, shape[0] if len(shape) == 1 else shape, order, copy=copy)

    def ravel(self: T, order: str = "C") -> T:
        """All elements in one dimension; a view where there can be one."""
        return ravel(self, order)

    def flatten(self: T, order: str = "C") -> T:
        """A copy of all elements in one dimension."""
        return copy(ravel(self, order))

    def transpose(self: T, *axes: int | Sequence[int] | None) -> T:
        """Axes in another order."""
        whole = len(axes) == 1 and (axes[0] is None or isinstance(axes[0], (tuple, list)))
        return transpose(self, (axes[0] if whole else axes) or None)

    def swapaxes(self: T, axis1: int, axis2: int) -> T:
        """Two axes exchanged."""
        return swapaxes(self, axis1, axis2)

    def squeeze(self: T, axis: Axis = None) -> T:
        """Axes of one element removed."""
        return squeeze(self, axis)

    def astype(self: T, dtype: DType, order: str = "K", casting: Casting = "unsafe", subok: bool = True,
               copy: bool = True) -> T:  # fmt: skip
        """Another dtype; a copy also where it has that dtype, or does not lie in the order asked for."""
        mine, flags = like_of(self).dtype, like_of(self).flags
        lies = {"C": flags.c_contiguous, "F": flags.f_contiguous, "A": flags.forc}
        if not np.can_cast(mine, dtype, casting):  # type: ignore[arg-type]
            raise TypeError(f"astype: dtype {mine} to {np.dtype(dtype)} not with {casting=}")
        return _call(np.astype, self, dtype, copy=copy or not lies.get(order, True))

    def diagonal(self: T, offset: int = 0, axis1: int = 0, axis2: int = 1) -> T:
        """Diagonals of the matrices that two axes span; a view."""
        return _call(np.diagonal, self, offset, axis1, axis2)

    def repeat(self: T, repeats: Operand, axis: int | None = None) -> T:
        """Each element several times."""
        return _call(np.repeat, self, repeats, axis)

    # ------------------------------------------------------------ elements

    def take(self: T, indices: Operand, axis: int | None = None, out: Out = None, mode: str = "raise") -> T:
        """Elements by number along an axis."""
        return take(self, indices, axis, out, mode)

    def choose(self: T, choices: Operand, out: Out = None, mode: str = "raise") -> T:
        """Elements of the choices that these numbers name."""
        return _call(np.choose, self, choices, out=out, mode=mode)

    def compress(self: T, condition: Operand, axis: int | None = None, out: Out = None) -> T:
        """The parts along an axis where a condition holds."""
        return _call(np.compress, condition, self, axis, out=out)

    def nonzero(self: T) -> tuple[T, ...]:
        """Places of the elements that are not zero."""
        return _call(np.nonzero, self)

    def searchsorted(self: T, v: Operand, side: str = "left", sorter: Operand | None = None) -> T:
        """Where values would be put in; has no derivative."""
        return _call(np.searchsorted, self, v, side, sorter)

    def argsort(
        self: T,
        axis: Axis = -1,
        kind: str | None = None,
        order: str | None = None,
        *,
        stable: bool | None = None,
        descending: bool | NotGiven | None = NOT_GIVEN,
    ) -> T:
        """The order that would sort, descending from NumPy 2.5 on; has no derivative."""
        return _call(np.argsort, self, axis, kind, order, stable=stable, descending=descending)

    def argpartition(
        self: T,
        kth: int | Sequence[int],
        axis: Axis = -1,
        kind: str = "introselect",
        order: str | None = None,
    ) -> T:
        """The order that would partition; has no derivative."""
        return _call(np.argpartition, self, kth, axis, kind, order)

    def sort(
        self,
        axis: int = -1,
        kind: str | None = None,
        order: str | None = None,
        *,
        stable: bool | None = None,
        descending: bool | NotGiven | None = NOT_GIVEN,
    ) -> None:
        """Put the elements in ascending order, or from NumPy 2.5 on in descending order, in place."""
        new = _call(np.sort, self, axis, kind, order, stable=stable, descending=descending)
        self._take_over(new, "sort()")

    def partition(
        self, kth: int | Sequence[int], axis: int = -1, kind: str = "introselect", order: str | None = None
    ) -> None:
        """Put the k-th element where it would be sorted and smaller ones before it, in place."""
        self._take_over(_call(np.partition, self, kth, axis, kind, order), "partition()")

    def _take_over(self, new: Operand, what: str) -> None:
        write(self, Ellipsis, new, what, True)

    @property
    def flat(self: T) -> Flat[T]:
        """All elements in one row, to read and to write."""
        return Flat(self)

    @flat.setter
    def flat(self, value: Operand) -> None:
        Flat(self)[:] = value

    # ------------------------------------------------------------ arithmetic

    def clip(self: T, min: Operand | None = None, max: Operand | None = None, out: Out = None) -> T:
        """Values limited to an interval."""
        return clip(self, min, max, out)

    def round(self: T, decimals: int = 0, out: Out = None) -> T:
        """Rounded values; derivative zero."""
        return _call(np.round, self, decimals, out=out)

    def dot(self: T, b: Operand, out: Out = None) -> T:
        """Product as by np.dot."""
        return dot(self, b, out)

    # ------------------------------------------------------------ memory

    @property
    def flags(self) -> np._core.multiarray.flagsobj:
        """How the memory is laid out."""
        return self._v[...].flags if isinstance(self._v, np.ndarray) else self._v.flags

    @property
    def device(self) -> str:
        """Where the memory is: "cpu"."""
        return "cpu"

    def to_device(self, device: str, /, *, stream: Any = None) -> Any:
        """Itself, for the one device there is."""
        if device != "cpu" or stream is not None:
            raise ValueError(
                f"to_device: the one device is 'cpu', without streams; found {device!r}, {stream!r}"
            )
        return self

    def view(self: T, dtype: DType = None, *lengths: int) -> T:
        """A view of the same elements; not as another dtype."""
        if isinstance(dtype, (int, tuple)):
            shape = (dtype, *lengths) if lengths else dtype
            raise TypeError(f"view takes a dtype as in NumPy; for the shape {shape} use reshape")
        if dtype is not None and np.dtype(dtype) != self._v.dtype:
            raise UnsupportedOpError(
                f"view of dtype {self._v.dtype} as {np.dtype(dtype)} reads bits, which has no derivative; "
                "use astype, or view of .detach().numpy()"
            )
        return getitem(self, Ellipsis) if type(array_of(self)) is np.ndarray else copy(self)

    def tobytes(self, order: str | None = "C") -> bytes:
        """The bytes of the value."""
        note_escape(self)
        return self._v.tobytes(order)

    def tofile(self, fid: Any, sep: str = "", format: str = "%s") -> None:
        """Write the value to a file."""
        if not isinstance(fid, (str, os.PathLike)) and not hasattr(fid, "flush"):
            raise TypeError(f"tofile takes a path or an open file, found {type(fid).__name__}")
        note_escape(self)
        np.asarray(self._v).tofile(fid, sep, format)

    def dump(self, file: Any) -> None:
        """Pickle the value, an array, to a file."""
        note_escape(self)
        np.asarray(self._v).dump(file)

    def dumps(self) -> bytes:
        """The pickled value, an array."""
        note_escape(self)
        return np.asarray(self._v).dumps()

    def resize(self, *new_shape: int | Sequence[int], refcheck: bool = True) -> None:
        """Refused: what a derivative reads keeps its size."""
        raise UnsupportedOpError(
            f"resize in place of a Tensor of shape {self._v.shape}; use the result of np.resize, or reshape"
        )

    def byteswap(self, inplace: bool = False) -> Any:
        """Refused, as are `getfield`, `setfield` and `setflags`, which are about bits."""
        raise UnsupportedOpError(
            "byteswap, getfield, setfield and setflags act on memory, of which derivatives know nothing; use "
            "them on .detach().numpy()"
        )

    def getfield(self, dtype: DType, offset: int = 0) -> Any:
        """See `byteswap`."""
        return self.byteswap()

    def setfield(self, val: Operand, dtype: DType, offset: int = 0) -> None:
        """See `byteswap`."""
        self.byteswap()

    def setflags(self, write: bool | None = None, align: Any = None, uic: Any = None) -> None:
        """See `byteswap`."""
        self.byteswap()


class Flat(Generic[T]):
    """The elements of a Tensor in one row, as ``ndarray.flat``."""

    def __init__(self, x: T) -> None:
        self.base: Any = x

    def __len__(self) -> int:
        return self.base.size

    def __iter__(self) -> Iterator[T]:
        return iter(self.base.reshape(-1))

    def __getitem__(self, index: Any) -> T:
        return copy(getitem(self.base.reshape(-1), index))

    def __setitem__(self, index: Any, value: Operand) -> None:
        shape = self.base.shape
        places = np.arange(self.base.size)[plain_index(index)]
        if np.ndim(places):  # values are repeated as often as it takes
            value = FUNCTIONS[np.resize](value, places.shape) if ndim_of(value) else value
        self.base[np.unravel_index(places, shape) if shape else ...] = value
