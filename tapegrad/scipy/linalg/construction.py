"""Matrices that `scipy.linalg` makes of vectors and of other matrices."""

from __future__ import annotations

import numpy as np

from tapegrad.core.base import decide, like_of, ndim_of, shape_of
from tapegrad.errors import ShapeError
from tapegrad.numpy_api.tables import tensor_of
from tapegrad.scipy.batches import in_batches
from tapegrad.scipy.linalg.arguments import derived, diagonals, given
from tapegrad.tensor import Operand, TensorOrArray


@derived
def toeplitz(c: Operand, r: Operand | None = None) -> TensorOrArray:
    """Matrix of constant diagonals, as `scipy.linalg.toeplitz`.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> c = tg.tensor([1.0, 2.0], requires_grad=True)
    >>> tg.grad(np.sum(ts.linalg.toeplitz(c)), c)
    (tensor([2., 2.]),)
    """
    return _toeplitz(*(np.atleast_1d(x) for x in diagonals((c, r), False)))


@in_batches(c=1, r=1)
def _toeplitz(c: TensorOrArray, r: TensorOrArray) -> TensorOrArray:
    rows, columns = shape_of(c)[0], shape_of(r)[0]
    places = np.arange(rows)[:, None] - np.arange(columns) + max(columns - 1, 0)
    return np.concatenate([r[:0:-1], c])[places]


@derived
def hankel(c: Operand, r: Operand | None = None) -> TensorOrArray:
    """Matrix of constant diagonals from below to above, as `scipy.linalg.hankel`.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> c = tg.tensor([1.0, 2.0], requires_grad=True)
    >>> tg.grad(np.sum(ts.linalg.hankel(c)), c)
    (tensor([1., 2.]),)
    """
    c = given(c, False)
    r = np.zeros_like(like_of(c)) if r is None else given(r, False)
    if ndim_of(c) != 1 or ndim_of(r) != 1:
        raise ShapeError(f"two vectors are needed, found shapes {shape_of(c)} and {shape_of(r)}")
    places = np.arange(shape_of(c)[0])[:, None] + np.arange(shape_of(r)[0])
    return np.concatenate([c, r[1:]])[places]


@derived
def circulant(c: Operand) -> TensorOrArray:
    """Matrix of columns that are each rolled by one more, as `scipy.linalg.circulant`.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> c = tg.tensor([1.0, 2.0], requires_grad=True)
    >>> tg.grad(np.sum(ts.linalg.circulant(c)), c)
    (tensor([2., 2.]),)
    """
    c = np.atleast_1d(given(c, False))
    n = shape_of(c)[-1]
    return c[..., (np.arange(n)[:, None] - np.arange(n)) % max(n, 1)]


def _begins(a: np.ndarray) -> bool:
    return bool(np.all(a[..., 0]))


@derived
def companion(a: Operand) -> TensorOrArray:
    """Matrix whose eigenvalues are the roots of a polynomial, as `scipy.linalg.companion`.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> a = tg.tensor([1.0, -3.0, 2.0], requires_grad=True)
    >>> tg.grad(np.trace(ts.linalg.companion(a)), a)
    (tensor([-3., -1.,  0.]),)
    """
    a = given(a, False, 1)
    n = shape_of(a)[-1]
    if n < 2:
        raise ValueError(f"a has shape {shape_of(a)}; its last axis takes two coefficients or more")
    if not decide(_begins, a):
        raise ValueError("a begins with 0; leave leading zeros out")
    first = -a[..., 1:] / (1.0 * a[..., :1])
    below = np.broadcast_to(
        np.eye(n - 2, n - 1, dtype=like_of(first).dtype), (*shape_of(a)[:-1], n - 2, n - 1)
    )
    return np.concatenate([first[..., None, :], below], axis=-2)


@derived
def block_diag(*arrs: Operand) -> TensorOrArray:
    """Matrix of blocks along the diagonal, as `scipy.linalg.block_diag`.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> x = tg.tensor([[1.0, 2.0]], requires_grad=True)
    >>> tg.grad(np.sum(ts.linalg.block_diag(x, 3.0, x)), x)
    (tensor([[2., 2.]]),)
    """
    blocks = [np.atleast_2d(tensor_of(x)) for x in arrs]
    kind = np.result_type(*(like_of(x).dtype for x in blocks))
    front = np.broadcast_shapes(*(shape_of(x)[:-2] for x in blocks))
    columns = [shape_of(x)[-1] for x in blocks]
    rows = []
    for k, x in enumerate(blocks):
        count = shape_of(x)[-2]
        x = np.broadcast_to(x, (*front, *shape_of(x)[-2:]))
        before, after = (
            np.zeros((*front, count, sum(part)), kind) for part in (columns[:k], columns[k + 1 :])
        )
        rows.append(np.concatenate([before, x, after], axis=-1))
    return np.concatenate(rows, axis=-2)


@derived
@in_batches(a=2, b=2)
def khatri_rao(a: Operand, b: Operand) -> TensorOrArray:
    """Kronecker products of columns, as `scipy.linalg.khatri_rao`.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> a = tg.tensor([[1.0, 2.0]], requires_grad=True)
    >>> tg.grad(np.sum(ts.linalg.khatri_rao(a, [[1.0, 2.0], [3.0, 4.0]])), a)
    (tensor([[4., 6.]]),)
    """
    a, b = given(a, False, 2), given(b, False, 2)
    if shape_of(a)[1] != shape_of(b)[1]:
        raise ValueError(f"{shape_of(a)[1]} columns and {shape_of(b)[1]}; give as many of both")
    return np.reshape(a[:, None] * b[None], (shape_of(a)[0] * shape_of(b)[0], shape_of(a)[1]))
