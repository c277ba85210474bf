"""Sparse matrices made of others, of which some have Tensors as values."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import scipy.sparse as _scipy

from tapegrad.scipy.sparse.matrix import Matrix, SparseTensor, has_tensor, of_places, rearranged, sparse_of

__all__ = ["block_array", "block_diag", "bmat", "hstack", "kron", "tril", "triu", "vstack"]


def _placing(name: str, what: str, example: str, shape: str) -> Callable[..., Any]:
    """A function of SciPy's that places the elements of its first argument, a matrix or lists of some."""
    function = getattr(_scipy, name)
    signature = inspect.signature(function)

    def place(matrices: Any, *args: Any, **kwargs: Any) -> Any:
        if not has_tensor(matrices):
            return function(matrices, *args, **kwargs)
        bound = signature.bind(matrices, *args, **kwargs)
        dtype = bound.arguments.pop("dtype", None)  # of the values, not of their numbers
        found = [m if isinstance(m, SparseTensor) else _scipy.csr_array(m) for m in _parts(matrices)]

        def placed(*numbered: Any) -> Any:
            return function(_with(matrices, iter(numbered)), *bound.args[1:], **bound.kwargs)

        made = rearranged(placed, *found)
        return made if dtype is None else SparseTensor(made.data.astype(dtype), made._pattern)

    place.__name__ = place.__qualname__ = name
    place.__doc__ = f"""{what}, as `scipy.sparse.{name}`; with Tensors as values a `SparseTensor`.

    Examples
    --------
    >>> import tapegrad as tg, tapegrad.scipy as ts
    >>> a = ts.sparse.diags_array(tg.tensor([1.0, 2.0]))
    >>> ts.sparse.{name}({example}).shape
    {shape}
    """
    return place


def _parts(matrices: Any) -> Iterator[Any]:
    """The matrices in lists of them."""
    if isinstance(matrices, (list, tuple)):
        for part in matrices:
            yield from _parts(part)
    elif matrices is not None:
        yield matrices


def _with(matrices: Any, others: Iterator[Any]) -> Any:
    """Lists like these with other matrices."""
    if isinstance(matrices, (list, tuple)):
        return [_with(part, others) for part in matrices]
    return None if matrices is None else next(others)


block_array = _placing("block_array", "Matrix of rows of blocks", "[[a, None], [None, a]]", "(4, 4)")
block_diag = _placing("block_diag", "Matrix of blocks on its diagonal", "[a, a]", "(4, 4)")
bmat = _placing("bmat", "Matrix of rows of blocks", "[[a, None], [None, a]]", "(4, 4)")
hstack = _placing("hstack", "Matrix of blocks side by side", "[a, a]", "(2, 4)")
tril = _placing("tril", "Lower triangle", "a", "(2, 2)")
triu = _placing("triu", "Upper triangle", "a", "(2, 2)")
vstack = _placing("vstack", "Matrix of blocks below one another", "[a, a]", "(4, 2)")


def kron(A: Matrix, B: Matrix, format: str | None = None) -> Any:
    """Kronecker product, as `scipy.sparse.kron`; with Tensors as values a `SparseTensor`.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> d = tg.tensor([1.0, 2.0], requires_grad=True)
    >>> tg.grad(ts.sparse.kron(ts.sparse.diags_array(d), np.eye(3)).sum(), d)
    (tensor([3., 3.]),)
    """
    if not has_tensor((A, B)):
        return _scipy.kron(A, B, format)
    a, b = (sparse_of(m if isinstance(m, SparseTensor) else _scipy.csr_array(m)) for m in (A, B))
    rows, columns = (
        np.ravel(mine[:, None] * n + its)
        for mine, its, n in zip(a._pattern.places, b._pattern.places, b.shape, strict=True)
    )
    shape = a.shape[0] * b.shape[0], a.shape[1] * b.shape[1]
    return of_places(np.ravel(a.data[:, None] * b.data), rows, columns, shape)
