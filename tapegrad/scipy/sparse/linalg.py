"""Solutions of sparse equations, by the names of `scipy.sparse.linalg`; all its other names are its own.

Derivatives are by the values of a matrix (`tapegrad.scipy.sparse.SparseTensor`) and by the right side. They
are solutions with the adjoint matrix: by the same factors where there are some, else by the same iteration.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import scipy.sparse as _sparse
import scipy.sparse.linalg as _scipy

from tapegrad import func
from tapegrad.core.base import like_of, ndim_of, shape_of, value_of
from tapegrad.errors import ShapeError, UnsupportedOpError
from tapegrad.func.signatures import Function
from tapegrad.numpy_api.tables import any_needs_derivative, tensor_of
from tapegrad.ops import sparse as sparse_ops
from tapegrad.scipy.calls import derivative_wanted, refuse, theirs
from tapegrad.scipy.sparse.matrix import Matrix, SparseTensor, has_tensor, of_places, sparse_of
from tapegrad.tensor import Operand, Tensor, TensorOrArray, alias_of

ops: Any = sparse_ops
Operator: TypeAlias = "Matrix | _scipy.LinearOperator | Operand"

__all__ = [
    "SparseFactors", "bicg", "bicgstab", "cg", "factorized", "gmres", "lsmr", "lsqr", "minres", "spsolve",
    "splu",
]  # fmt: skip


DENSE = {  # what NumPy has instead
    "eigs": np.linalg.eig, "eigsh": np.linalg.eigh, "inv": np.linalg.inv, "lobpcg": np.linalg.eigh,
    "svds": np.linalg.svd,
}  # fmt: skip


def __getattr__(name: str) -> Any:
    return _refusing(name) if name in DENSE else getattr(_scipy, name)


@functools.cache
def _refusing(name: str) -> Callable[..., Any]:
    """SciPy's function, which refuses matrices by which a derivative is asked for."""
    function = getattr(_scipy, name)

    @functools.wraps(function)
    def call(A: Any, *args: Any, **kwargs: Any) -> Any:
        if derivative_wanted((A.data if isinstance(A, SparseTensor) else A, *args), kwargs):
            raise refuse(
                f"scipy.sparse.linalg.{name}",
                f"has no derivative here (numpy.linalg.{DENSE[name].__name__} of a dense matrix has one)",
            )
        return theirs(function, (A, *args), kwargs)

    return call


def __dir__() -> list[str]:
    return sorted({*__all__, *_scipy.__all__})


def _matrix(A: Matrix, title: str) -> SparseTensor:
    """A square matrix of an argument."""
    if not isinstance(A, SparseTensor) and not _sparse.issparse(A):
        raise UnsupportedOpError(
            f"{title}: a sparse matrix is needed, found {type(A).__name__}; use scipy.linalg.solve"
        )
    if A.shape[0] != A.shape[1]:
        raise ShapeError(f"{title}: a square matrix is needed, found shape {A.shape}")
    return sparse_of(A)


def _right(b: Matrix | Operand, n: int, title: str) -> TensorOrArray:
    if _sparse.issparse(b) or isinstance(b, SparseTensor):
        raise UnsupportedOpError(f"{title}: a sparse right side has no derivative here; use b.toarray()")
    b = tensor_of(b)
    if ndim_of(b) not in (1, 2) or shape_of(b)[0] != n:
        raise ShapeError(f"{title}: a matrix of {n} rows and a right side of shape {shape_of(b)}")
    return b if like_of(b).dtype.kind in "fc" else b * 1.0


def spsolve(
    A: Matrix | Operand, b: Matrix | Operand, permc_spec: str | None = None, use_umfpack: bool = True
) -> TensorOrArray | _sparse.sparray:
    """Solution of sparse equations, as `scipy.sparse.linalg.spsolve`; of Tensors by `splu`.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> d = tg.tensor([2.0, 4.0], requires_grad=True)
    >>> tg.grad(np.sum(ts.sparse.linalg.spsolve(ts.sparse.diags_array(d), np.array([2.0, 4.0]))), d)
    (tensor([-0.50, -0.25]),)
    """
    title = "scipy.sparse.linalg.spsolve"
    if not has_tensor((A, b)):
        return _scipy.spsolve(A, b, permc_spec, use_umfpack)
    matrix = _matrix(A, title)
    b = _right(b, matrix.shape[0], title)
    if ndim_of(b) == 2 and shape_of(b)[1] == 1:
        b = np.reshape(b, (-1,))
    return SparseFactors(matrix, title, permc_spec=permc_spec).solve(b)


class SparseFactors:
    """What `splu` returns: solves with one matrix, whose factors are kept; the rest is SciPy's `SuperLU`."""

    def __init__(
        self, matrix: SparseTensor, title: str, **options: str | float | Mapping[str, str | bool] | None
    ) -> None:
        if isinstance(matrix.data, Tensor):  # with its value of now, whatever is written to it later
            matrix = SparseTensor(alias_of(matrix.data), matrix._pattern)
        self._matrix, self._title = matrix, title
        self._factors = ops.Factors(**options)
        try:
            self._superlu = self._factors.factor(matrix.value())
        except np.linalg.LinAlgError as error:
            raise np.linalg.LinAlgError(f"{title}: {error}") from error

    def __getattr__(self, name: str) -> Any:
        if name in ("L", "U") and any_needs_derivative(self._matrix.data):
            raise UnsupportedOpError(
                f"{self._title}: its factors have no derivatives here, only what solve() returns; use "
                "scipy.linalg.lu of toarray()"
            )
        return getattr(self._superlu, name)

    def solve(self, rhs: Operand, trans: str = "N") -> TensorOrArray:
        """Return the solution of equations with the matrix, its transpose ("T") or its adjoint ("H")."""
        matrix, data = self._matrix, self._matrix.data
        rhs = _right(rhs, matrix.shape[0], self._title)
        if trans not in ("N", "T", "H"):
            raise ValueError(f"{self._title}: trans is {trans!r}; give 'N', 'T' or 'H'")
        turned = trans != "N"
        if trans == "T":  # the conjugate of the solution of the conjugated equation with the adjoint
            rhs = np.conj(rhs)
        if turned:
            data = np.conj(data)
        pattern = matrix._pattern.T if turned else matrix._pattern
        found = ops.spsolve(data, rhs, pattern=pattern, solver=self._factors, turned=turned)
        return np.conj(found) if trans == "T" else found


def splu(
    A: Matrix | Operand, permc_spec: str | None = None, diag_pivot_thresh: float | None = None,
    relax: int | None = None, panel_size: int | None = None, options: Mapping[str, str | bool] | None = None,
) -> SparseFactors:  # fmt: skip
    """Factors of a sparse matrix, as `scipy.sparse.linalg.splu`; `solve` takes Tensors.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> b = tg.tensor([2.0, 4.0], requires_grad=True)
    >>> lu = ts.sparse.linalg.splu(ts.sparse.diags_array([2.0, 4.0], format="csc"))
    >>> tg.grad(np.sum(lu.solve(b)), b)
    (tensor([0.50, 0.25]),)
    """
    title = "scipy.sparse.linalg.splu"
    return SparseFactors(
        _matrix(A, title), title, permc_spec=permc_spec, diag_pivot_thresh=diag_pivot_thresh, relax=relax,
        panel_size=panel_size, options=options,
    )  # fmt: skip


def factorized(A: Matrix | Operand) -> Callable[[Operand], TensorOrArray]:
    """Return a function that solves with a sparse matrix, as `scipy.sparse.linalg.factorized`.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> b = tg.tensor([2.0, 4.0], requires_grad=True)
    >>> solve = ts.sparse.linalg.factorized(ts.sparse.diags_array([2.0, 4.0], format="csc"))
    >>> tg.grad(np.sum(solve(b)), b)
    (tensor([0.50, 0.25]),)
    """
    title = "scipy.sparse.linalg.factorized"
    return SparseFactors(_matrix(A, title), title).solve


# ---------------------------------------------------------------- iterations


def _iterated(
    function: Callable[..., tuple[np.ndarray, int]],
    A: Operator,
    b: Operand,
    x0: Operator | None,
    M: Operator | None,
    callback: Function | None,
    options: Mapping[str, str | float | None],
) -> tuple[TensorOrArray, int]:
    """Solution by one of SciPy's iterations, whose derivative is that of the exact one."""
    title = f"scipy.sparse.linalg.{function.__name__}"
    options = {key: value for key, value in options.items() if value is not None}
    if not has_tensor((A, b, x0, M)):
        return function(A, b, x0=x0, M=M, callback=callback, **options)
    if isinstance(M, SparseTensor):
        M = M.value()
    M, x0 = (value_of(x) if has_tensor(x) else x for x in (M, x0))
    data: TensorOrArray = np.zeros(0)
    pattern, operator = None, None
    if isinstance(A, SparseTensor) or _sparse.issparse(A):
        matrix = _matrix(A, title)
        data, pattern = matrix.data, matrix._pattern
        operator = matrix.value()
    elif has_tensor(A):
        A = tensor_of(A)
        shape: tuple[int, ...] = shape_of(A)
        if len(shape) != 2:
            raise ShapeError(f"{title}: a square matrix is needed, found shape {shape}")
        rows, columns = (part.ravel() for part in np.indices(shape))
        matrix = _matrix(of_places(np.reshape(A, -1), rows, columns, shape), title)
        data, pattern, operator = matrix.data, matrix._pattern, value_of(A)
    else:
        operator = _scipy.aslinearoperator(A.copy() if isinstance(A, np.ndarray) else A)
    b = _right(b, operator.shape[0], title)
    if ndim_of(b) == 2 and shape_of(b)[1] != 1:
        raise ShapeError(f"{title}: one right side, found shape {shape_of(b)}")
    b = np.reshape(b, (-1,))
    found, info = function(operator, value_of(b), x0=x0, M=M, callback=callback, **options)
    solver = ops.Iteration(title, function, None if pattern is not None else operator, M, options)
    solver.first = found
    return ops.spsolve(data, b, pattern=pattern, solver=solver), info


def cg(
    A: Operator, b: Operand, x0: Operand | None = None, *, rtol: float = 1e-05, atol: float = 0.0,
    maxiter: int | None = None, M: Operator | None = None, callback: Function | None = None,
) -> tuple[TensorOrArray, int]:  # fmt: skip
    """Conjugate gradients, as `scipy.sparse.linalg.cg`; derivatives are found to the same tolerance.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> b = tg.tensor([2.0, 4.0], requires_grad=True)
    >>> x, info = ts.sparse.linalg.cg(ts.sparse.diags_array([2.0, 4.0]), b, rtol=1e-12)
    >>> tg.grad(np.sum(x), b)
    (tensor([0.50, 0.25]),)
    """
    return _iterated(_scipy.cg, A, b, x0, M, callback, {"rtol": rtol, "atol": atol, "maxiter": maxiter})


def bicg(
    A: Operator, b: Operand, x0: Operand | None = None, *, rtol: float = 1e-05, atol: float = 0.0,
    maxiter: int | None = None, M: Operator | None = None, callback: Function | None = None,
) -> tuple[TensorOrArray, int]:  # fmt: skip
    """Biconjugate gradients, as `scipy.sparse.linalg.bicg`; derivatives are found to the same tolerance.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> b = tg.tensor([2.0, 4.0], requires_grad=True)
    >>> x, info = ts.sparse.linalg.bicg(ts.sparse.diags_array([2.0, 4.0]), b, rtol=1e-12)
    >>> tg.grad(np.sum(x), b)
    (tensor([0.50, 0.25]),)
    """
    return _iterated(_scipy.bicg, A, b, x0, M, callback, {"rtol": rtol, "atol": atol, "maxiter": maxiter})


def bicgstab(
    A: Operator, b: Operand, x0: Operand | None = None, *, rtol: float = 1e-05, atol: float = 0.0,
    maxiter: int | None = None, M: Operator | None = None, callback: Function | None = None,
) -> tuple[TensorOrArray, int]:  # fmt: skip
    """Stabilised biconjugate gradients, as `scipy.sparse.linalg.bicgstab`, to the same tolerance.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> b = tg.tensor([2.0, 4.0], requires_grad=True)
    >>> x, info = ts.sparse.linalg.bicgstab(ts.sparse.diags_array([2.0, 4.0]), b, rtol=1e-12)
    >>> tg.grad(np.sum(x), b)
    (tensor([0.50, 0.25]),)
    """
    return _iterated(_scipy.bicgstab, A, b, x0, M, callback, {"rtol": rtol, "atol": atol, "maxiter": maxiter})


def gmres(
    A: Operator, b: Operand, x0: Operand | None = None, *, rtol: float = 1e-05, atol: float = 0.0,
    restart: int | None = None, maxiter: int | None = None, M: Operator | None = None,
    callback: Function | None = None, callback_type: str | None = None,
) -> tuple[TensorOrArray, int]:  # fmt: skip
    """Minimal residuals, as `scipy.sparse.linalg.gmres`; derivatives are found to the same tolerance.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> b = tg.tensor([2.0, 4.0], requires_grad=True)
    >>> x, info = ts.sparse.linalg.gmres(ts.sparse.diags_array([2.0, 4.0]), b, rtol=1e-12)
    >>> tg.grad(np.sum(x), b)
    (tensor([0.50, 0.25]),)
    """
    options = {
        "rtol": rtol,
        "atol": atol,
        "restart": restart,
        "maxiter": maxiter,
        "callback_type": callback_type,
    }
    return _iterated(_scipy.gmres, A, b, x0, M, callback, options)


def minres(
    A: Operator, b: Operand, x0: Operand | None = None, *, rtol: float = 1e-05, shift: float = 0.0,
    maxiter: int | None = None, M: Operator | None = None, callback: Function | None = None,
    show: bool = False, check: bool = False,
) -> tuple[TensorOrArray, int]:  # fmt: skip
    """Minimal residuals with a symmetric matrix, as `scipy.sparse.linalg.minres`, to the same tolerance.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> b = tg.tensor([2.0, 4.0], requires_grad=True)
    >>> x, info = ts.sparse.linalg.minres(ts.sparse.diags_array([2.0, -4.0]), b, rtol=1e-12)
    >>> tg.grad(np.sum(x), b)
    (tensor([ 0.50, -0.25]),)
    """
    if any_needs_derivative((shift,)):
        raise refuse("scipy.sparse.linalg.minres", "has no derivative by the shift")
    options = {"rtol": rtol, "shift": shift, "maxiter": maxiter, "show": show, "check": check}
    return _iterated(_scipy.minres, A, b, x0, M, callback, options)


# ---------------------------------------------------------------- least squares


class _Operator(NamedTuple):
    """A constant operator of SciPy's as a matrix."""

    of: _scipy.LinearOperator

    @property
    def T(self) -> _Operator:
        """The transpose, as it is real."""
        return _Operator(self.of.H)

    def __matmul__(self, x: TensorOrArray) -> TensorOrArray:
        return ops.operate(x, operator=self.of)


def _rectangular(
    A: Operator, title: str
) -> tuple[
    TensorOrArray,
    Callable[[TensorOrArray], TensorOrArray | SparseTensor | _Operator],
    np.ndarray | _scipy.LinearOperator | _sparse.csr_array,
]:
    """The values of a matrix, what makes a matrix of them again, and SciPy's matrix."""
    if isinstance(A, SparseTensor) or _sparse.issparse(A):
        matrix = sparse_of(A)
        return matrix.data, lambda data: SparseTensor(data, matrix._pattern), matrix.value()
    if has_tensor(A) or isinstance(A, (np.ndarray, list, tuple)):
        data = tensor_of(A) * 1.0
        if ndim_of(data) != 2:
            raise ShapeError(f"{title}: a matrix is needed, found shape {shape_of(data)}")
        return data, lambda data: data, value_of(data)
    operator = _scipy.aslinearoperator(A)
    return np.zeros(0), lambda data: _Operator(operator), operator


def _least_squares(
    function: Callable[..., tuple[Any, ...]],
    A: Operator,
    b: Operand,
    damp: Operand,
    x0: Operand | None,
    options: Mapping[str, str | float | None],
) -> tuple[Any, ...]:
    """Solution of least squares, with the derivative of the exact one: of equations that it solves.

    They are A.T (b - A x) + damp**2 (x0 - x) = 0; of fewer rows than columns without damping
    A A.T v = b - A x0 with x = x0 + A.T v. The solver is called twice to solve with A.T A or A A.T.
    """
    title = f"scipy.sparse.linalg.{function.__name__}"
    if not has_tensor((A, b, damp, x0)):
        return function(A, b, damp, x0=x0, **options)
    data, again, plain = _rectangular(A, title)
    m, n = plain.shape
    b, damp = _right(b, m, title), tensor_of(damp) * 1.0
    x0 = np.zeros(n) if x0 is None else tensor_of(x0) * 1.0
    b, x0 = np.reshape(b, (-1,)), np.reshape(x0, (-1,))
    if plain.dtype.kind == "c" or any(like_of(x).dtype.kind == "c" for x in (b, x0)):
        raise UnsupportedOpError(f"{title} has no derivative of complex numbers here; use scipy.linalg.lstsq")
    found, *others = function(plain, value_of(b), float(value_of(damp)), x0=value_of(x0), **options)
    wide = m < n and value_of(damp) == 0 and not any_needs_derivative((damp,))
    operator = _scipy.aslinearoperator(plain)
    solver = _Squares(function, operator.H if wide else operator, float(value_of(damp)), options)

    def equations(
        x: TensorOrArray, data: TensorOrArray, b: TensorOrArray, damp: TensorOrArray, x0: TensorOrArray
    ) -> TensorOrArray:
        a = again(data)
        if wide:
            return a @ (a.T @ x) + a @ x0 - b
        return a.T @ (a @ x - b) + damp**2 * (x - x0)

    equations.__name__ = title
    known = solver.solve(found - value_of(x0)) if wide else found
    x = func.root(equations, lambda *_: known, linear_solver=solver)(data, b, damp, x0)
    if wide:
        x = x0 + again(data).T @ x
    return x + (found - value_of(x)), *others


class _Squares:
    """Solves with c.T c + damp**2 by a function that finds least squares."""

    def __init__(
        self,
        function: Callable[..., tuple[Any, ...]],
        c: _scipy.LinearOperator,
        damp: float,
        options: Mapping[str, str | float | None],
    ) -> None:
        self.function, self.options = function, options
        rows, columns = c.shape
        self.c = c if not damp else _scipy.LinearOperator(
            (rows + columns, columns), lambda x: np.concatenate([c.matvec(x), damp * x.ravel()]),
            lambda y: c.rmatvec(y[:rows]) + damp * y[rows:], dtype=c.dtype,
        )  # fmt: skip

    def __call__(self, matvec: Callable[[np.ndarray], np.ndarray], b: np.ndarray) -> np.ndarray:
        found: np.ndarray = self.solve(self.function(self.c.H, b, **self.options)[0])
        return found

    def solve(self, b: np.ndarray) -> np.ndarray:
        """Return the vector that c makes this of, or nearly."""
        return self.function(self.c, b, **self.options)[0]


def lsqr(
    A: Operator, b: Operand, damp: Operand = 0.0, atol: float = 1e-06, btol: float = 1e-06,
    conlim: float = 1e8, iter_lim: int | None = None, show: bool = False, calc_var: bool = False,
    x0: Operand | None = None,
) -> tuple[Any, ...]:  # fmt: skip
    """Least squares by bidiagonalisation, as `scipy.sparse.linalg.lsqr`; by values of A, b, damp and x0.

    Derivatives are those of the exact solution, of a real matrix of full rank, found to the same tolerances
    by the same solver. All results but the first are numbers of the solver's.

    Raises
    ------
    GradientError
        In a derivative: the solver does not solve the equation for it, as the matrix is not of full rank.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> b = tg.tensor([2.0, 4.0, 3.0], requires_grad=True)
    >>> x, *_ = ts.sparse.linalg.lsqr(np.array([[2.0], [0.0], [1.0]]), b)
    >>> tg.grad(x[0], b)
    (tensor([0.4, 0.0, 0.2]),)
    """
    options = {"atol": atol, "btol": btol, "conlim": conlim, "iter_lim": iter_lim, "show": show}
    return _least_squares(_scipy.lsqr, A, b, damp, x0, options | {"calc_var": calc_var})


def lsmr(
    A: Operator, b: Operand, damp: Operand = 0.0, atol: float = 1e-06, btol: float = 1e-06,
    conlim: float = 1e8, maxiter: int | None = None, show: bool = False, x0: Operand | None = None,
) -> tuple[Any, ...]:  # fmt: skip
    """Least squares by bidiagonalisation, as `scipy.sparse.linalg.lsmr`; derivatives as of `lsqr`.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> b = tg.tensor([2.0, 4.0, 3.0], requires_grad=True)
    >>> x, *_ = ts.sparse.linalg.lsmr(np.array([[2.0], [0.0], [1.0]]), b)
    >>> tg.grad(x[0], b)
    (tensor([0.4, 0.0, 0.2]),)
    """
    options = {"atol": atol, "btol": btol, "conlim": conlim, "maxiter": maxiter, "show": show}
    return _least_squares(_scipy.lsmr, A, b, damp, x0, options)
