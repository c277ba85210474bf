"""Functions of a matrix of `scipy.linalg`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tapegrad.core.base import like_of, shape_of
from tapegrad.errors import ShapeError, UnsupportedOpError
from tapegrad.ops import matrix_functions
from tapegrad.scipy.batches import in_batches
from tapegrad.scipy.linalg.arguments import derived, in_double, is_complex, square
from tapegrad.tensor import Operand, TensorOrArray

if TYPE_CHECKING:
    from tapegrad.tensor import Tensor

ops: Any = matrix_functions


def _function(x: Operand) -> TensorOrArray:
    return square(x, False)


@derived
@in_batches(A=2)
def expm(A: Operand) -> TensorOrArray:
    """Exponential of a matrix, as `scipy.linalg.expm`.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> a = tg.tensor([[0.0, 1.0], [0.0, 0.0]], requires_grad=True)
    >>> tg.grad(ts.linalg.expm(a)[0, 1], a)
    (tensor([[0.5000, 1.0000],
            [0.1667, 0.5000]]),)
    """
    return ops.expm(_function(A))


@derived
@in_batches(A=2, E=2)
def expm_frechet(
    A: Operand, E: Operand, method: str | None = None, compute_expm: bool = True, check_finite: bool = True
) -> tuple[TensorOrArray, TensorOrArray]:
    """Derivative of the exponential at A in direction E, as `scipy.linalg.expm_frechet`.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> e = tg.tensor([[1.0]], requires_grad=True)
    >>> found = ts.linalg.expm_frechet([[0.0]], e, compute_expm=False)
    >>> tg.grad(np.trace(found), e)
    (tensor([[1.]]),)
    """
    if method not in (None, "SPS", "blockEnlarge"):
        raise ValueError(f"method is {method!r}; give 'SPS', 'blockEnlarge' or None")
    A, E = (in_double(square(x, check_finite)) for x in (A, E))
    if shape_of(A) != shape_of(E):
        raise ShapeError(f"A has shape {shape_of(A)} and E {shape_of(E)}; give matrices alike")
    n = shape_of(A)[-1]
    found = ops.expm(np.block([[A, E], [np.zeros((n, n), like_of(A).dtype), A]]))
    value = found[:n, :n] if is_complex(A) else np.real(found[:n, :n])
    return (value, found[:n, n:]) if compute_expm else found[:n, n:]


def _without_disp(disp: bool | None, what: str) -> None:
    if disp is not None and disp is not True:
        raise UnsupportedOpError(
            f"scipy.linalg.{what}: the error that disp=False estimates has no derivative here; leave disp out"
        )


@derived
@in_batches(A=2)
def logm(A: Operand, disp: bool | None = None) -> TensorOrArray:
    """Principal logarithm of a matrix, as `scipy.linalg.logm`.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> a = tg.tensor([[2.0]], requires_grad=True)
    >>> tg.grad(np.trace(ts.linalg.logm(a)), a)
    (tensor([[0.5]]),)
    """
    _without_disp(disp, "logm")
    return ops.logm(_function(A))


@derived
@in_batches(A=2)
def sqrtm(A: Operand, disp: bool | None = None, blocksize: int | None = None) -> TensorOrArray:
    """Principal square root of a matrix, as `scipy.linalg.sqrtm`.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> a = tg.tensor([[4.0]], requires_grad=True)
    >>> tg.grad(np.trace(ts.linalg.sqrtm(a)), a)
    (tensor([[0.25]]),)
    """
    _without_disp(disp, "sqrtm")
    return ops.sqrtm(_function(A))


@derived
@in_batches(A=2)
def fractional_matrix_power(A: Operand, t: float) -> TensorOrArray:
    """Principal power of a matrix by a number, as `scipy.linalg.fractional_matrix_power`.

    By the exponent too: then it is ``expm(t * logm(A))``.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> a = tg.tensor([[4.0]], requires_grad=True)
    >>> tg.grad(np.trace(ts.linalg.fractional_matrix_power(a, 1.5)), a)
    (tensor([[3.]]),)
    """
    if hasattr(t, "_apply"):
        return expm(t * logm(A))
    return ops.fractional_matrix_power(_function(A), t=t)


def _trigonometric(A: Operand) -> tuple[Tensor, Tensor]:
    """Cosine and sine of a matrix."""
    A = _function(A)
    if not is_complex(A):
        both = ops.expm(1j * A)
        return np.real(both), np.imag(both)
    ahead, back = ops.expm(1j * A), ops.expm(-1j * A)
    return 0.5 * (ahead + back), -0.5j * (ahead - back)


@derived
@in_batches(A=2)
def cosm(A: Operand) -> TensorOrArray:
    """Cosine of a matrix, as `scipy.linalg.cosm`.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> a = tg.tensor([[0.5]], requires_grad=True)
    >>> tg.grad(np.trace(ts.linalg.cosm(a)), a)
    (tensor([[-0.4794]]),)
    """
    return _trigonometric(A)[0]


@derived
@in_batches(A=2)
def sinm(A: Operand) -> TensorOrArray:
    """Sine of a matrix, as `scipy.linalg.sinm`.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> a = tg.tensor([[0.5]], requires_grad=True)
    >>> tg.grad(np.trace(ts.linalg.sinm(a)), a)
    (tensor([[0.8776]]),)
    """
    return _trigonometric(A)[1]


@derived
@in_batches(A=2)
def tanm(A: Operand) -> TensorOrArray:
    """Tangent of a matrix, as `scipy.linalg.tanm`.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> a = tg.tensor([[0.5]], requires_grad=True)
    >>> tg.grad(np.trace(ts.linalg.tanm(a)), a)
    (tensor([[1.2984]]),)
    """
    return np.linalg.solve(*_trigonometric(A))


def _hyperbolic(A: Operand) -> tuple[Tensor, Tensor]:
    """Hyperbolic cosine and sine of a matrix."""
    A = _function(A)
    ahead, back = ops.expm(A), ops.expm(-A)
    return 0.5 * (ahead + back), 0.5 * (ahead - back)


@derived
@in_batches(A=2)
def coshm(A: Operand) -> TensorOrArray:
    """Hyperbolic cosine of a matrix, as `scipy.linalg.coshm`.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> a = tg.tensor([[0.5]], requires_grad=True)
    >>> tg.grad(np.trace(ts.linalg.coshm(a)), a)
    (tensor([[0.5211]]),)
    """
    return _hyperbolic(A)[0]


@derived
@in_batches(A=2)
def sinhm(A: Operand) -> TensorOrArray:
    """Hyperbolic sine of a matrix, as `scipy.linalg.sinhm`.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> a = tg.tensor([[0.5]], requires_grad=True)
    >>> tg.grad(np.trace(ts.linalg.sinhm(a)), a)
    (tensor([[1.1276]]),)
    """
    return _hyperbolic(A)[1]


@derived
@in_batches(A=2)
def tanhm(A: Operand) -> TensorOrArray:
    """Hyperbolic tangent of a matrix, as `scipy.linalg.tanhm`.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> a = tg.tensor([[0.5]], requires_grad=True)
    >>> tg.grad(np.trace(ts.linalg.tanhm(a)), a)
    (tensor([[0.7864]]),)
    """
    return np.linalg.solve(*_hyperbolic(A))
