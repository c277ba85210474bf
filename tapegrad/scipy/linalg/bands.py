"""Equations and products with bands and with constant diagonals, of `scipy.linalg`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tapegrad.core.base import ndim_of, shape_of
from tapegrad.errors import ShapeError
from tapegrad.ops import bands
from tapegrad.scipy.batches import in_batches
from tapegrad.scipy.linalg.arguments import derived, diagonals, given, in_double, is_complex
from tapegrad.tensor import Operand, TensorOrArray

if TYPE_CHECKING:
    from tapegrad.tensor import Tensor

of_bands: Any = bands


@derived
def solve_banded(
    l_and_u: tuple[int, int], ab: Operand, b: Operand, overwrite_ab: bool = False, overwrite_b: bool = False,
    check_finite: bool = True,
) -> TensorOrArray:  # fmt: skip
    """Solution of equations with a matrix that is a band, as `scipy.linalg.solve_banded`.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> ab = tg.tensor([[0.0, 1.0], [2.0, 4.0]], requires_grad=True)
    >>> tg.grad(np.sum(ts.linalg.solve_banded((0, 1), ab, [4.0, 4.0])), ab)[0][1]
    tensor([-0.750, -0.125])
    """
    lower, upper = (int(k) for k in l_and_u)
    ab, b = given(ab, check_finite, 2), given(b, check_finite, 1)
    if shape_of(ab)[-2] != lower + upper + 1:
        raise ShapeError(
            f"ab has {shape_of(ab)[-2]} rows; {lower} diagonals below the main "
            f"one and {upper} above make {lower + upper + 1}"
        )
    return _by_band(ab, b, lower, upper, False)


@in_batches(ab=2, b="1|2")
def _by_band(ab: Operand, b: Operand, lower: int, upper: int, positive: bool) -> Tensor:
    if shape_of(ab)[1] != shape_of(b)[0]:
        raise ShapeError(
            f"ab has {shape_of(ab)[1]} columns and b has {shape_of(b)[0]} rows; give as many of both"
        )
    return of_bands.solve_banded(ab, b, lower=lower, upper=upper, positive=positive)


@derived
@in_batches(ab=2, b="1|2")
def solveh_banded(
    ab: Operand, b: Operand, overwrite_ab: bool = False, overwrite_b: bool = False, lower: bool = False,
    check_finite: bool = True,
) -> TensorOrArray:  # fmt: skip
    """Solution of equations with a positive definite band, as `scipy.linalg.solveh_banded`.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> ab = tg.tensor([[2.0, 4.0]], requires_grad=True)
    >>> tg.grad(np.sum(ts.linalg.solveh_banded(ab, [2.0, 4.0])), ab)
    (tensor([[-0.50, -0.25]]),)
    """
    ab, b = given(ab, check_finite, 2), given(b, check_finite, 1)
    k = shape_of(ab)[0] - 1
    main, rest = (ab[:1], ab[1:]) if lower else (ab[k:], ab[:k])
    if is_complex(main):  # LAPACK takes the diagonal as real
        main = main.real + 0j
    other = of_bands.adjoint_of_band(np.concatenate([main, rest] if lower else [rest, main]), *(
        (k, 0) if lower else (0, k)
    ))  # fmt: skip
    halves = [other[:k], main, rest] if lower else [rest, main, other[1:]]
    return _by_band(np.concatenate(halves), b, k, k, True)


@derived
def solve_toeplitz(c_or_cr: Operand, b: Operand, check_finite: bool = True) -> TensorOrArray:
    """Solution of equations with constant diagonals, as `scipy.linalg.solve_toeplitz`.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> c = tg.tensor([2.0, 0.0], requires_grad=True)
    >>> tg.grad(np.sum(ts.linalg.solve_toeplitz(c, [2.0, 2.0])), c)
    (tensor([-1., -1.]),)
    """
    return _by_diagonals(*diagonals(c_or_cr, check_finite), given(b, check_finite, 1))


@in_batches(c=1, r=1, b="1|2")
def _by_diagonals(c: TensorOrArray, r: TensorOrArray, b: TensorOrArray) -> TensorOrArray:
    n = shape_of(c)[0]
    if shape_of(r) != (n,) or shape_of(b)[0] != n or n == 0:
        raise ShapeError(
            f"shapes of the first column, {shape_of(c)}, of the first row, {shape_of(r)}, and of the right "
            f"side, {shape_of(b)}, do not fit"
        )
    return of_bands.solve_toeplitz(np.concatenate([r[:0:-1], c]), b)


@derived
def matmul_toeplitz(
    c_or_cr: tuple[Operand, Operand], x: Operand, check_finite: bool = False, workers: int | None = None
) -> TensorOrArray:
    """Product with a matrix of constant diagonals by Fourier transforms, as `scipy.linalg.matmul_toeplitz`.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> c = tg.tensor([2.0, 0.0], requires_grad=True)
    >>> tg.grad(np.sum(ts.linalg.matmul_toeplitz(c, [1.0, 3.0])), c)
    (tensor([4., 4.]),)
    """
    return _times_diagonals(*diagonals(c_or_cr, check_finite), given(x, check_finite, 1))


@in_batches(c=1, r=1, x="1|2")
def _times_diagonals(c: TensorOrArray, r: TensorOrArray, x: Operand) -> Tensor:
    rows, columns = shape_of(c)[0], shape_of(r)[0]
    if shape_of(x)[0] != columns:
        raise ShapeError(f"a matrix of {rows} by {columns} elements, and x of shape {shape_of(x)}")
    vector = ndim_of(x) == 1
    x = in_double(np.reshape(x, (columns, -1)))
    whole: Any = in_double(np.concatenate([c, r[:0:-1]]))
    n = shape_of(whole)[0]
    ahead: Any = np.fft.rfft
    back: Any = np.fft.irfft
    if is_complex(whole, x):
        ahead, back = np.fft.fft, np.fft.ifft
    found = back(ahead(whole)[:, None] * ahead(x, n, 0), n, 0)[:rows]
    return found[:, 0] if vector else found
