"""Functions of `scipy.fft` on Tensors and arrays; all its other names are its own.

Of arrays, and where no derivative is asked for, results are SciPy's own. Fourier transforms of Tensors are
those of `numpy.fft`, which take ``workers`` and ``overwrite_x`` for hints.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.fft as _scipy

from tapegrad.core.base import Axis, Shape, like_of, ndim_of, shape_of
from tapegrad.errors import AxisError, ShapeError
from tapegrad.numpy_api.tables import axis_of, tensor_of
from tapegrad.ops import cosines as cosine_ops
from tapegrad.ops.fft import OPPOSITE
from tapegrad.scipy.calls import derived_in
from tapegrad.tensor import Operand, TensorOrArray

if TYPE_CHECKING:
    from tapegrad.tensor import Tensor

numpy: Any = np.fft  # whose stubs know literal arguments only
cosines: Any = cosine_ops

__all__ = [
    "dct", "dctn", "dst", "dstn", "fft", "fft2", "fftn", "fftshift", "hfft", "hfft2", "hfftn", "idct",
    "idctn", "idst", "idstn", "ifft", "ifft2", "ifftn", "ifftshift", "ihfft", "ihfft2", "ihfftn", "irfft",
    "irfft2", "irfftn", "rfft", "rfft2", "rfftn",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    return getattr(_scipy, name)


def __dir__() -> list[str]:
    return sorted({*__all__, *_scipy.__all__})


_derived = derived_in(_scipy)


def _axes(x: TensorOrArray, s: Shape | None, axes: Axis) -> tuple[list[int] | None, list[int]]:
    """Numbers of points and axes as NumPy takes them; SciPy's by default are all, or the last ones."""
    if isinstance(s, int):
        s = (s,)
    if axes is None:
        ndim = ndim_of(x)
        axes = range(ndim) if s is None else range(ndim - len(s), ndim)
        if s is not None and len(s) > ndim:
            raise ShapeError(
                f"s has {len(s)} lengths for an array of {ndim} axes; give one for each axis at most"
            )
    places = list(axes) if isinstance(axes, Sequence | np.ndarray) else [axes]
    shape, counts = shape_of(x), None
    if s is not None:
        counts = [shape[axis_of(x, k, "s")] if n == -1 else int(n) for n, k in zip(s, places, strict=False)]
        if len(counts) != len(places):
            raise ShapeError(f"s has {len(counts)} lengths for {len(places)} axes; give one for each")
    if len({k % max(len(shape), 1) for k in places}) != len(places):
        raise AxisError(f"axes {tuple(places)} name one of them twice; name each once")
    return counts, places


# ---------------------------------------------------------------- Fourier transforms


@_derived
def fft(
    x: Operand, n: int | None = None, axis: int = -1, norm: str | None = None, overwrite_x: bool = False,
    workers: int | None = None, *, plan: None = None,
) -> TensorOrArray:  # fmt: skip
    """Fourier transform along an axis, as `scipy.fft.fft`.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> x = tg.tensor([1.0, 0.5, 2.0], requires_grad=True)
    >>> tg.grad(np.sum(abs(ts.fft.fft(x)) ** 2), x)
    (tensor([ 6.,  3., 12.]),)
    """
    return numpy.fft(tensor_of(x), n, axis, norm)


@_derived
def ifft(
    x: Operand, n: int | None = None, axis: int = -1, norm: str | None = None, overwrite_x: bool = False,
    workers: int | None = None, *, plan: None = None,
) -> TensorOrArray:  # fmt: skip
    """Inverse Fourier transform along an axis, as `scipy.fft.ifft`.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> x = tg.tensor([1.0, 0.5, 2.0], requires_grad=True)
    >>> tg.grad(np.sum(abs(ts.fft.ifft(x)) ** 2), x)
    (tensor([0.6667, 0.3333, 1.3333]),)
    """
    return numpy.ifft(tensor_of(x), n, axis, norm)


@_derived
def rfft(
    x: Operand, n: int | None = None, axis: int = -1, norm: str | None = None, overwrite_x: bool = False,
    workers: int | None = None, *, plan: None = None,
) -> TensorOrArray:  # fmt: skip
    """First half of the Fourier transform of real numbers along an axis, as `scipy.fft.rfft`.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> x = tg.tensor([1.0, 0.5, 2.0], requires_grad=True)
    >>> tg.grad(np.sum(abs(ts.fft.rfft(x)) ** 2), x)
    (tensor([6.5, 5.0, 9.5]),)
    """
    return numpy.rfft(tensor_of(x), n, axis, norm)


@_derived
def irfft(
    x: Operand, n: int | None = None, axis: int = -1, norm: str | None = None, overwrite_x: bool = False,
    workers: int | None = None, *, plan: None = None,
) -> TensorOrArray:  # fmt: skip
    """Inverse of `rfft` along an axis, as `scipy.fft.irfft`.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> x = tg.tensor([1.0, 0.5, 2.0], requires_grad=True)
    >>> tg.grad(np.sum(abs(ts.fft.irfft(x)) ** 2), x)
    (tensor([0.5, 0.5, 1.0]),)
    """
    return numpy.irfft(tensor_of(x), n, axis, norm)


@_derived
def hfft(
    x: Operand, n: int | None = None, axis: int = -1, norm: str | None = None, overwrite_x: bool = False,
    workers: int | None = None, *, plan: None = None,
) -> TensorOrArray:  # fmt: skip
    """Fourier transform of half of a Hermitian signal along an axis, as `scipy.fft.hfft`.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> x = tg.tensor([1.0, 0.5, 2.0], requires_grad=True)
    >>> tg.grad(np.sum(abs(ts.fft.hfft(x)) ** 2), x)
    (tensor([ 8.,  8., 16.]),)
    """
    return numpy.hfft(tensor_of(x), n, axis, norm)


@_derived
def ihfft(
    x: Operand, n: int | None = None, axis: int = -1, norm: str | None = None, overwrite_x: bool = False,
    workers: int | None = None, *, plan: None = None,
) -> TensorOrArray:  # fmt: skip
    """Inverse of `hfft` along an axis, as `scipy.fft.ihfft`.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> x = tg.tensor([1.0, 0.5, 2.0], requires_grad=True)
    >>> tg.grad(np.sum(abs(ts.fft.ihfft(x)) ** 2), x)
    (tensor([0.7222, 0.5556, 1.0556]),)
    """
    return numpy.ihfft(tensor_of(x), n, axis, norm)


@_derived
def fft2(
    x: Operand, s: Shape | None = None, axes: Axis = (-2, -1), norm: str | None = None,
    overwrite_x: bool = False, workers: int | None = None, *, plan: None = None,
) -> TensorOrArray:  # fmt: skip
    """Fourier transform along two axes, as `scipy.fft.fft2`.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> x = tg.tensor([[1.0, 0.5], [2.0, 3.0]], requires_grad=True)
    >>> tg.grad(np.sum(abs(ts.fft.fft2(x)) ** 2), x)
    (tensor([[ 8.,  4.],
            [16., 24.]]),)
    """
    x = tensor_of(x)
    return numpy.fftn(x, *_axes(x, s, axes), norm)


@_derived
def ifft2(
    x: Operand, s: Shape | None = None, axes: Axis = (-2, -1), norm: str | None = None,
    overwrite_x: bool = False, workers: int | None = None, *, plan: None = None,
) -> TensorOrArray:  # fmt: skip
    """Inverse Fourier transform along two axes, as `scipy.fft.ifft2`.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> x = tg.tensor([[1.0, 0.5], [2.0, 3.0]], requires_grad=True)
    >>> tg.grad(np.sum(abs(ts.fft.ifft2(x)) ** 2), x)
    (tensor([[0.50, 0.25],
            [1.00, 1.50]]),)
    """
    x = tensor_of(x)
    return numpy.ifftn(x, *_axes(x, s, axes), norm)


@_derived
def rfft2(
    x: Operand, s: Shape | None = None, axes: Axis = (-2, -1), norm: str | None = None,
    overwrite_x: bool = False, workers: int | None = None, *, plan: None = None,
) -> TensorOrArray:  # fmt: skip
    """Fourier transform of real numbers along two axes, as `scipy.fft.rfft2`.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> x = tg.tensor([[1.0, 0.5], [2.0, 3.0]], requires_grad=True)
    >>> tg.grad(np.sum(abs(ts.fft.rfft2(x)) ** 2), x)
    (tensor([[ 8.,  4.],
            [16., 24.]]),)
    """
    x = tensor_of(x)
    return numpy.rfftn(x, *_axes(x, s, axes), norm)


@_derived
def irfft2(
    x: Operand, s: Shape | None = None, axes: Axis = (-2, -1), norm: str | None = None,
    overwrite_x: bool = False, workers: int | None = None, *, plan: None = None,
) -> TensorOrArray:  # fmt: skip
    """Inverse of `rfft2` along two axes, as `scipy.fft.irfft2`.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> x = tg.tensor([[1.0, 0.5], [2.0, 3.0]], requires_grad=True)
    >>> tg.grad(np.sum(abs(ts.fft.irfft2(x)) ** 2), x)
    (tensor([[0.50, 0.25],
            [1.00, 1.50]]),)
    """
    x = tensor_of(x)
    return numpy.irfftn(x, *_axes(x, s, axes), norm)


@_derived
def hfft2(
    x: Operand, s: Shape | None = None, axes: Axis = (-2, -1), norm: str | None = None,
    overwrite_x: bool = False, workers: int | None = None, *, plan: None = None,
) -> TensorOrArray:  # fmt: skip
    """Fourier transform of half of a Hermitian signal along two axes, as `scipy.fft.hfft2`.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> x = tg.tensor([[1.0, 0.5], [2.0, 3.0]], requires_grad=True)
    >>> tg.grad(np.sum(abs(ts.fft.hfft2(x)) ** 2), x)
    (tensor([[ 8.,  4.],
            [16., 24.]]),)
    """
    return _hermitian(x, s, axes, norm, False)


@_derived
def ihfft2(
    x: Operand, s: Shape | None = None, axes: Axis = (-2, -1), norm: str | None = None,
    overwrite_x: bool = False, workers: int | None = None, *, plan: None = None,
) -> TensorOrArray:  # fmt: skip
    """Inverse of `hfft2` along two axes, as `scipy.fft.ihfft2`.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> x = tg.tensor([[1.0, 0.5], [2.0, 3.0]], requires_grad=True)
    >>> tg.grad(np.sum(abs(ts.fft.ihfft2(x)) ** 2), x)
    (tensor([[0.50, 0.25],
            [1.00, 1.50]]),)
    """
    return _hermitian(x, s, axes, norm, True)


@_derived
def fftn(
    x: Operand, s: Shape | None = None, axes: Axis = None, norm: str | None = None,
    overwrite_x: bool = False, workers: int | None = None, *, plan: None = None,
) -> TensorOrArray:  # fmt: skip
    """Fourier transform along axes, as `scipy.fft.fftn`.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> x = tg.tensor([[1.0, 0.5], [2.0, 3.0]], requires_grad=True)
    >>> tg.grad(np.sum(abs(ts.fft.fftn(x)) ** 2), x)
    (tensor([[ 8.,  4.],
            [16., 24.]]),)
    """
    x = tensor_of(x)
    return numpy.fftn(x, *_axes(x, s, axes), norm)


@_derived
def ifftn(
    x: Operand, s: Shape | None = None, axes: Axis = None, norm: str | None = None,
    overwrite_x: bool = False, workers: int | None = None, *, plan: None = None,
) -> TensorOrArray:  # fmt: skip
    """Inverse Fourier transform along axes, as `scipy.fft.ifftn`.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> x = tg.tensor([[1.0, 0.5], [2.0, 3.0]], requires_grad=True)
    >>> tg.grad(np.sum(abs(ts.fft.ifftn(x)) ** 2), x)
    (tensor([[0.50, 0.25],
            [1.00, 1.50]]),)
    """
    x = tensor_of(x)
    return numpy.ifftn(x, *_axes(x, s, axes), norm)


@_derived
def rfftn(
    x: Operand, s: Shape | None = None, axes: Axis = None, norm: str | None = None, overwrite_x: bool = False,
    workers: int | None = None, *, plan: None = None,
) -> TensorOrArray:  # fmt: skip
    """Fourier transform of real numbers along axes, as `scipy.fft.rfftn`.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> x = tg.tensor([[1.0, 0.5], [2.0, 3.0]], requires_grad=True)
    >>> tg.grad(np.sum(abs(ts.fft.rfftn(x)) ** 2), x)
    (tensor([[ 8.,  4.],
            [16., 24.]]),)
    """
    x = tensor_of(x)
    return numpy.rfftn(x, *_axes(x, s, axes), norm)


@_derived
def irfftn(
    x: Operand, s: Shape | None = None, axes: Axis = None, norm: str | None = None, overwrite_x: bool = False,
    workers: int | None = None, *, plan: None = None,
) -> TensorOrArray:  # fmt: skip
    """Inverse of `rfftn` along axes, as `scipy.fft.irfftn`.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> x = tg.tensor([[1.0, 0.5], [2.0, 3.0]], requires_grad=True)
    >>> tg.grad(np.sum(abs(ts.fft.irfftn(x)) ** 2), x)
    (tensor([[0.50, 0.25],
            [1.00, 1.50]]),)
    """
    x = tensor_of(x)
    return numpy.irfftn(x, *_axes(x, s, axes), norm)


@_derived
def hfftn(
    x: Operand, s: Shape | None = None, axes: Axis = None, norm: str | None = None,
    overwrite_x: bool = False, workers: int | None = None, *, plan: None = None,
) -> TensorOrArray:  # fmt: skip
    """Fourier transform of half of a Hermitian signal along axes, as `scipy.fft.hfftn`.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> x = tg.tensor([[1.0, 0.5], [2.0, 3.0]], requires_grad=True)
    >>> tg.grad(np.sum(abs(ts.fft.hfftn(x)) ** 2), x)
    (tensor([[ 8.,  4.],
            [16., 24.]]),)
    """
    return _hermitian(x, s, axes, norm, False)


@_derived
def ihfftn(
    x: Operand, s: Shape | None = None, axes: Axis = None, norm: str | None = None, overwrite_x: bool = False,
    workers: int | None = None, *, plan: None = None,
) -> TensorOrArray:  # fmt: skip
    """Inverse of `hfftn` along axes, as `scipy.fft.ihfftn`.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> x = tg.tensor([[1.0, 0.5], [2.0, 3.0]], requires_grad=True)
    >>> tg.grad(np.sum(abs(ts.fft.ihfftn(x)) ** 2), x)
    (tensor([[0.50, 0.25],
            [1.00, 1.50]]),)
    """
    return _hermitian(x, s, axes, norm, True)


def _hermitian(x: Operand, s: Shape | None, axes: Axis, norm: str | None, inverse: bool) -> Tensor:
    """Transforms of several axes between real numbers and half of what is Hermitian."""
    x = tensor_of(x)
    s, axes = _axes(x, s, axes)
    norm = OPPOSITE[norm or "backward"] if norm in (None, *OPPOSITE) else norm
    if inverse:
        return np.conj(numpy.rfftn(x, s, axes, norm))
    return numpy.irfftn(np.conj(x), s, axes, norm)


# ---------------------------------------------------------------- order of frequencies


@_derived
def fftshift(x: Operand, axes: Axis = None) -> TensorOrArray:
    """Halves of axes exchanged, so that frequency 0 comes to the middle, as `scipy.fft.fftshift`.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> x = tg.tensor([1.0, 2.0, 3.0], requires_grad=True)
    >>> tg.grad(ts.fft.fftshift(x)[0], x)
    (tensor([0., 0., 1.]),)
    """
    return numpy.fftshift(tensor_of(x), axes)


@_derived
def ifftshift(x: Operand, axes: Axis = None) -> TensorOrArray:
    """Inverse of `fftshift`, as `scipy.fft.ifftshift`.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> x = tg.tensor([1.0, 2.0, 3.0], requires_grad=True)
    >>> tg.grad(ts.fft.ifftshift(x)[0], x)
    (tensor([0., 1., 0.]),)
    """
    return numpy.ifftshift(tensor_of(x), axes)


# ---------------------------------------------------------------- cosines and sines


def _resized(x: TensorOrArray, n: int, axis: int) -> TensorOrArray:
    """An axis cut off, or filled up with zeros at its end."""
    shape = shape_of(x)
    if n < 1:
        raise ValueError(f"a transform of {n} points is asked for; it takes one or more")
    if shape[axis] >= n:
        return x[(*(slice(None),) * axis, slice(n))] if shape[axis] > n else x
    missing = (*shape[:axis], n - shape[axis], *shape[axis + 1 :])
    return np.concatenate([x, np.zeros(missing, like_of(x).dtype)], axis=axis)


def _cosines(
    data: Operand, sine: bool, inverse: bool, kind: int, s: Shape | None, axes: Axis, norm: str | None,
    orthogonalize: bool | None,
) -> TensorOrArray:  # fmt: skip
    """Transforms along axes, of which an inverse is one of the other kind in the other scale."""
    x = tensor_of(data)
    if like_of(x).dtype.kind not in "fc":
        x = x * 1.0
    if kind not in cosines.OTHER:
        raise ValueError(f"type {kind} of a transform is none of 1, 2, 3, 4")
    if norm not in (None, *OPPOSITE):
        raise ValueError(f"norm is {norm!r}; give 'backward', 'ortho', 'forward' or None")
    norm = norm or "backward"
    if orthogonalize is None or like_of(x).dtype.kind == "c":  # of which SciPy does not look at it
        orthogonalize = norm == "ortho"
    if inverse:
        kind, norm = cosines.OTHER[kind], OPPOSITE[norm]
    counts, places = _axes(x, s, axes)
    places = [axis_of(x, k, "a transform") for k in places]
    wanted: Sequence[int | None] = counts or [None] * len(places)
    for n, axis in zip(wanted, places, strict=True):
        if n is not None:
            x = _resized(x, n, axis)
        least = 2 if kind == 1 and not sine else 1
        if shape_of(x)[axis] < least:
            raise ValueError(
                f"axis {axis} has {shape_of(x)[axis]} points; this transform takes {least} or more"
            )
        x = cosines.dct(x, sine=sine, kind=kind, axis=axis, norm=norm, orthogonalize=bool(orthogonalize))
    return x


@_derived
def dct(
    x: Operand, type: int = 2, n: int | None = None, axis: int = -1, norm: str | None = None,
    overwrite_x: bool = False, workers: int | None = None, orthogonalize: bool | None = None,
) -> TensorOrArray:  # fmt: skip
    """Discrete cosine transform along an axis, as `scipy.fft.dct`.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> x = tg.tensor([1.0, 2.0], requires_grad=True)
    >>> tg.grad(np.sum(ts.fft.dct(x, norm="ortho") ** 2), x)
    (tensor([2., 4.]),)
    """
    return _cosines(x, False, False, type, None if n is None else (n,), (axis,), norm, orthogonalize)


@_derived
def dctn(
    x: Operand, type: int = 2, s: Shape | None = None, axes: Axis = None, norm: str | None = None,
    overwrite_x: bool = False, workers: int | None = None, *, orthogonalize: bool | None = None,
) -> TensorOrArray:  # fmt: skip
    """Discrete cosine transform along axes, as `scipy.fft.dctn`.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> x = tg.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    >>> tg.grad(np.sum(ts.fft.dctn(x, norm="ortho") ** 2), x)
    (tensor([[2., 4.],
            [6., 8.]]),)
    """
    return _cosines(x, False, False, type, s, axes, norm, orthogonalize)


@_derived
def idct(
    x: Operand, type: int = 2, n: int | None = None, axis: int = -1, norm: str | None = None,
    overwrite_x: bool = False, workers: int | None = None, orthogonalize: bool | None = None,
) -> TensorOrArray:  # fmt: skip
    """Inverse of `dct` along an axis, as `scipy.fft.idct`.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> x = tg.tensor([1.0, 2.0], requires_grad=True)
    >>> tg.grad(np.sum(ts.fft.idct(x, norm="ortho") ** 2), x)
    (tensor([2., 4.]),)
    """
    return _cosines(x, False, True, type, None if n is None else (n,), (axis,), norm, orthogonalize)


@_derived
def idctn(
    x: Operand, type: int = 2, s: Shape | None = None, axes: Axis = None, norm: str | None = None,
    overwrite_x: bool = False, workers: int | None = None, orthogonalize: bool | None = None,
) -> TensorOrArray:  # fmt: skip
    """Inverse of `dctn` along axes, as `scipy.fft.idctn`.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> x = tg.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    >>> tg.grad(np.sum(ts.fft.idctn(x, norm="ortho") ** 2), x)
    (tensor([[2., 4.],
            [6., 8.]]),)
    """
    return _cosines(x, False, True, type, s, axes, norm, orthogonalize)


@_derived
def dst(
    x: Operand, type: int = 2, n: int | None = None, axis: int = -1, norm: str | None = None,
    overwrite_x: bool = False, workers: int | None = None, orthogonalize: bool | None = None,
) -> TensorOrArray:  # fmt: skip
    """Discrete sine transform along an axis, as `scipy.fft.dst`.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> x = tg.tensor([1.0, 2.0], requires_grad=True)
    >>> tg.grad(np.sum(ts.fft.dst(x, norm="ortho") ** 2), x)
    (tensor([2., 4.]),)
    """
    return _cosines(x, True, False, type, None if n is None else (n,), (axis,), norm, orthogonalize)


@_derived
def dstn(
    x: Operand, type: int = 2, s: Shape | None = None, axes: Axis = None, norm: str | None = None,
    overwrite_x: bool = False, workers: int | None = None, orthogonalize: bool | None = None,
) -> TensorOrArray:  # fmt: skip
    """Discrete sine transform along axes, as `scipy.fft.dstn`.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> x = tg.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    >>> tg.grad(np.sum(ts.fft.dstn(x, norm="ortho") ** 2), x)
    (tensor([[2., 4.],
            [6., 8.]]),)
    """
    return _cosines(x, True, False, type, s, axes, norm, orthogonalize)


@_derived
def idst(
    x: Operand, type: int = 2, n: int | None = None, axis: int = -1, norm: str | None = None,
    overwrite_x: bool = False, workers: int | None = None, orthogonalize: bool | None = None,
) -> TensorOrArray:  # fmt: skip
    """Inverse of `dst` along an axis, as `scipy.fft.idst`.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> x = tg.tensor([1.0, 2.0], requires_grad=True)
    >>> tg.grad(np.sum(ts.fft.idst(x, norm="ortho") ** 2), x)
    (tensor([2., 4.]),)
    """
    return _cosines(x, True, True, type, None if n is None else (n,), (axis,), norm, orthogonalize)


@_derived
def idstn(
    x: Operand, type: int = 2, s: Shape | None = None, axes: Axis = None, norm: str | None = None,
    overwrite_x: bool = False, workers: int | None = None, orthogonalize: bool | None = None,
) -> TensorOrArray:  # fmt: skip
    """Inverse of `dstn` along axes, as `scipy.fft.idstn`.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> x = tg.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    >>> tg.grad(np.sum(ts.fft.idstn(x, norm="ortho") ** 2), x)
    (tensor([[2., 4.],
            [6., 8.]]),)
    """
    return _cosines(x, True, True, type, s, axes, norm, orthogonalize)
