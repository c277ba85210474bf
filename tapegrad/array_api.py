"""The array API standard on Tensors: what ``x.__array_namespace__()`` returns.

Functions are NumPy's own, which dispatch on Tensors; those that make arrays make Tensors.

>>> import numpy as np, tapegrad as tg
>>> def spread(x):
...     xp = x.__array_namespace__()
...     return xp.sum((x - xp.mean(x)) ** 2 * xp.asarray([1.0, 2.0]))
>>> x = tg.tensor([1.0, 3.0], requires_grad=True)
>>> spread(x), tg.grad(spread(x), x)
(tensor(3., grad_fn=<SumBackward>), (tensor([-3.,  3.]),))
"""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
from numpy import linalg

from tapegrad import creation
from tapegrad.core.base import DType, Shape, value_of
from tapegrad.core.dispatch import contains_tensor
from tapegrad.tensor import Operand, Tensor, is_tensor
from tapegrad.tensor import asarray as _as_tensor

__array_api_version__ = np.__array_api_version__
__array_namespace_info__ = np.__array_namespace_info__

NUMPYS = """
    bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float32 float64 complex64 complex128
    e inf nan newaxis pi

    abs acos acosh add asin asinh atan atan2 atanh bitwise_and bitwise_invert bitwise_left_shift bitwise_or
    bitwise_right_shift bitwise_xor ceil clip conj copysign cos cosh divide equal exp expm1 floor floor_divide
    greater greater_equal hypot imag isfinite isinf isnan less less_equal log log10 log1p log2 logaddexp
    logical_and logical_not logical_or logical_xor maximum minimum multiply negative nextafter not_equal
    positive pow real reciprocal remainder round sign signbit sin sinh sqrt square subtract tan tanh trunc

    all any argmax argmin astype broadcast_arrays broadcast_to can_cast concat count_nonzero cumulative_prod
    cumulative_sum diff expand_dims flip isdtype matmul matrix_transpose max mean meshgrid min moveaxis
    nonzero permute_dims prod repeat reshape result_type roll searchsorted squeeze stack std sum take
    take_along_axis tensordot tile tril triu unique_all unique_counts unique_inverse unique_values unstack var
    vecdot where"""
MADE = """
    arange argsort asarray empty empty_like eye finfo from_dlpack full full_like iinfo linspace ones ones_like
    sort zeros zeros_like"""
__all__ = [*NUMPYS.split(), *MADE.split(), "fft", "linalg"]

globals().update({name: getattr(np, name) for name in NUMPYS.split()})


def __getattr__(name: str) -> Any:
    """A function of NumPy's beside the standard's, if it dispatches: xarray asks for ``xp.einsum``."""
    found = None if name.startswith("_") else getattr(np, name, None)
    if isinstance(found, np.ufunc) or hasattr(found, "_implementation") or found is np.lib:
        return found
    raise AttributeError(f"module 'tapegrad.array_api' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, *(name for name in globals() if name.startswith("__"))]


def array_namespace(x: Tensor, /, *, api_version: Any = None) -> ModuleType:
    """Return the namespace of a Tensor.

    Parameters
    ----------
    x : Tensor
    api_version : str, optional
        Of the standard; those are known that NumPy knows.

    Returns
    -------
    module

    Raises
    ------
    ValueError
        The version is not known.
    """
    np.zeros(0).__array_namespace__(api_version=api_version)  # refuses what is none
    return sys.modules[__name__]


def install() -> None:
    """Give Tensor the method that needs this floor."""
    Tensor.__array_namespace__ = array_namespace  # type: ignore[attr-defined]


def _on_cpu(what: str, device: str | None) -> None:
    if device not in (None, "cpu"):
        raise ValueError(f"{what}: the one device is 'cpu', found {device!r}")


# ---------------------------------------------------------------- what makes arrays


def asarray(
    obj: Operand, /, *, dtype: DType = None, device: str | None = None, copy: bool | None = None
) -> Tensor:
    """Return the data as a Tensor; of Tensors, also in nested lists, with their history.

    Parameters
    ----------
    obj : array_like
    dtype : dtype, optional
    device : {"cpu"}, optional
    copy : bool, optional
        Whether to copy; by default where it must be.

    Returns
    -------
    Tensor

    Raises
    ------
    ValueError
        ``copy=False`` and a copy is needed.
    """
    _on_cpu("asarray", device)
    changes = dtype is not None and is_tensor(obj) and obj.dtype != np.dtype(dtype)
    if copy is False and (changes or isinstance(obj, (list, tuple, int, float, complex))):
        raise ValueError(f"asarray: {type(obj).__name__} needs a copy to become a Tensor of dtype {dtype}")
    if is_tensor(obj) or contains_tensor(obj):
        if copy or not is_tensor(obj):
            return creation.array(obj, dtype)
        return _as_tensor(obj, dtype) if changes else obj
    return _as_tensor(np.array(obj, dtype, copy=copy))


def from_dlpack(x: Any, /, *, device: Any = None, copy: bool | None = None) -> Tensor:
    """Return a Tensor of another library's array, which shares its memory.

    Parameters
    ----------
    x : object with ``__dlpack__``
    device : {"cpu"}, optional
    copy : bool, optional
        Whether to copy; by default where it must be.

    Returns
    -------
    Tensor
    """
    _on_cpu("from_dlpack", device)
    return _as_tensor(np.from_dlpack(x, device=device, copy=copy))


def _made(what: str, device: str | None, *args: Any, **kwargs: Any) -> Tensor:
    """What a constructor of this library makes, on the one device."""
    _on_cpu(what, device)
    made: Tensor = getattr(creation, what)(*args, **kwargs)
    return made


def arange(
    start: Operand,
    /,
    stop: Operand | None = None,
    step: Operand = 1,
    *,
    dtype: DType = None,
    device: str | None = None,
) -> Tensor:
    """Return numbers at equal distances, the last one below the end."""
    start, stop = (0, start) if stop is None else (start, stop)
    return _made("arange", device, start, stop, step, dtype=dtype)


def empty(shape: Shape, *, dtype: DType = None, device: str | None = None) -> Tensor:
    """Return a Tensor of a shape, of whatever values."""
    _on_cpu("empty", device)
    return _as_tensor(np.empty(shape, dtype))


def empty_like(x: Operand, /, *, dtype: DType = None, device: str | None = None) -> Tensor:
    """Return a Tensor of another one's shape and dtype, of whatever values."""
    return _made("empty_like", device, x, dtype=dtype)


def eye(
    n_rows: int, n_cols: int | None = None, /, *, k: int = 0, dtype: DType = None, device: str | None = None
) -> Tensor:
    """Return a matrix with ones on a diagonal."""
    return _made("eye", device, n_rows, n_cols, k=k, dtype=dtype)


def full(shape: Shape, fill_value: Operand, *, dtype: DType = None, device: str | None = None) -> Tensor:
    """Return a Tensor of one value, with the value's history."""
    return _made("full", device, shape, fill_value, dtype=dtype)


def full_like(
    x: Operand, /, fill_value: Operand, *, dtype: DType = None, device: str | None = None
) -> Tensor:
    """Return a Tensor of another one's shape and dtype, of one value."""
    return _made("full_like", device, x, fill_value, dtype=dtype)


def linspace(
    start: Operand,
    stop: Operand,
    /,
    num: int,
    *,
    dtype: DType = None,
    device: str | None = None,
    endpoint: bool = True,
) -> Tensor:
    """Return numbers at equal distances from a start to an end."""
    return _made("linspace", device, start, stop, num, dtype=dtype, endpoint=endpoint)


def ones(shape: Shape, *, dtype: DType = None, device: str | None = None) -> Tensor:
    """Return a Tensor of ones."""
    return _made("ones", device, shape, dtype=dtype)


def ones_like(x: Operand, /, *, dtype: DType = None, device: str | None = None) -> Tensor:
    """Return ones in another one's shape and dtype."""
    return _made("ones_like", device, x, dtype=dtype)


def zeros(shape: Shape, *, dtype: DType = None, device: str | None = None) -> Tensor:
    """Return a Tensor of zeros."""
    return _made("zeros", device, shape, dtype=dtype)


def zeros_like(x: Operand, /, *, dtype: DType = None, device: str | None = None) -> Tensor:
    """Return zeros in another one's shape and dtype."""
    return _made("zeros_like", device, x, dtype=dtype)


def _frequencies(function: Any) -> Any:
    def make(n: int, /, *, d: float = 1.0, dtype: DType = None, device: str | None = None) -> Tensor:
        _on_cpu(function.__name__, device)
        return _as_tensor(function(n, d), dtype)

    make.__name__ = make.__qualname__ = function.__name__
    make.__doc__ = f"As `numpy.fft.{function.__name__}`, a Tensor."
    return make


fft = SimpleNamespace(**{name: getattr(np.fft, name) for name in np.fft.__all__})
fft.fftfreq, fft.rfftfreq = map(_frequencies, (np.fft.fftfreq, np.fft.rfftfreq))


# ---------------------------------------------------------------- where NumPy has other arguments


def _dtype_of(x: Any) -> Any:
    return x.dtype if isinstance(x, (Tensor, np.ndarray, np.generic)) else x


def finfo(type: Any, /) -> np.finfo:
    """Return the limits of a floating-point dtype, or of an array's."""
    return np.finfo(_dtype_of(type))


def iinfo(type: DType | Tensor, /) -> np.iinfo:
    """Return the limits of an integer dtype, or of an array's."""
    return np.iinfo(_dtype_of(type))


def sort(x: Any, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Any:
    """Return the elements along an axis in order."""
    if not descending:
        return np.sort(x, axis=axis, stable=stable)
    return np.take_along_axis(x, argsort(x, axis=axis, descending=True, stable=stable), axis)


def argsort(x: Operand, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Any:
    """Return where the elements along an axis are in order; of equal ones the first comes first."""
    if not descending:
        return np.argsort(x, axis=axis, stable=stable)
    found = np.argsort(np.flip(value_of(x), axis=axis), axis=axis, stable=stable)
    return _as_tensor(np.flip(value_of(x).shape[axis] - 1 - found, axis=axis))
