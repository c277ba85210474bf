"""Sparse Jacobians and Hessians: columns that no row has both of are computed together."""

from __future__ import annotations

import copy
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from tapegrad.autograd.backward import grad
from tapegrad.autograd.forward_ad import dual_level, make_dual, unpack_dual
from tapegrad.autograd.steps import leave_tape
from tapegrad.core.base import Handle, has_tangent, needs_derivative, refresh_history, requires_grad, value_of
from tapegrad.core.grad_mode import _enabled, inference_mode
from tapegrad.core.storage import STALE
from tapegrad.errors import BorderError, DTypeError, GradientError, ShapeError
from tapegrad.func import colouring
from tapegrad.func.patterns import dependencies, interactions
from tapegrad.func.programs import Program
from tapegrad.func.signatures import Function
from tapegrad.native.loading import load
from tapegrad.progress import progress as shown
from tapegrad.tape.tape import current
from tapegrad.tensor import Operand, Tensor, TensorOrArray, tensor

if TYPE_CHECKING:
    from scipy.sparse import csr_array

__all__ = ["SparseHessian", "SparseJacobian", "sparse_hessian", "sparse_jacobian"]

SLACK = 0.4  # the power of the dtype's precision up to which two ways to a product are the same
ROUNDING = 64  # how often, of the largest element, what is 0 may be off by the precision
BATCHED = 6  # lanes from which one sweep for all is quicker than one for each
BATCHED_ELEMENTS = 1 << 15  # of the result in lanes that are swept together

OnChange = Literal["raise", "replan"]
Pairs = tuple[np.ndarray, np.ndarray]


class Call(NamedTuple):
    """What a function returned, the Tensor it was called with, and the serial number of the first tape."""

    value: Any
    x: Tensor
    since: int


class Found(NamedTuple):
    """What is known from the first call on.

    Attributes
    ----------
    argument
        Its shape.
    pattern
        The matrix, boolean, in CSR form, with columns in order.
    forward
        Whether a lane is the matrix times a direction, or weights times the matrix.
    seeds
        Directions or weights, for each colour; where lanes are checked a random one comes last.
    places
        Where each element stands among the lanes.
    program
        What was recorded; None where the pattern was given or is that of a compiled function.
    """

    argument: tuple[int, ...]
    pattern: csr_array
    forward: bool
    seeds: np.ndarray
    places: np.ndarray
    program: Program | None

    def matrix(self, data: np.ndarray) -> csr_array:
        """Return the matrix with these elements, its structure in arrays of its own."""
        out = copy.copy(self.pattern)  # in less time than it takes SciPy to look at what it is made of
        out.data, out.indices, out.indptr = data, out.indices.copy(), out.indptr.copy()
        return out


class _Plan:
    """What both kinds of matrices have in common."""

    _what = ""

    def __init__(
        self,
        f: Function,
        pattern: Any,
        on_change: OnChange,
        check: bool,
        progress: bool = False,
    ) -> None:
        if not callable(f):
            raise TypeError(f"{self._what} takes a function, found {type(f).__name__}")
        if on_change not in ("raise", "replan"):
            raise ValueError(f"{self._what}: on_change takes 'raise' or 'replan', found {on_change!r}")
        self.__wrapped__ = f
        self.__name__ = self.__qualname__ = f"{self._what}({getattr(f, '__name__', type(f).__name__)})"
        self._given = None if pattern is None else _boolean(pattern, self._what)
        self._on_change, self._check, self._progress = on_change, check, progress
        self._found: Found | None = None
        self._lock = threading.RLock()

    def __repr__(self) -> str:
        return f"<tg.func.{self.__name__}>"

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if key != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.RLock()

    @property
    def pattern(self) -> csr_array:
        """The pattern, a boolean `scipy.sparse.csr_array`; None if it is not known yet."""
        found = self._found
        if found is None:
            return None if self._given is None else self._given.copy()
        return found.matrix(np.ones(found.places.size, bool))

    @property
    def lanes(self) -> int | None:
        """How many products with the matrix a matrix takes: the number of colours; None before a call."""
        found = self._found
        return None if found is None else len(found.seeds) - self._is_checked(found)

    def replan(self, x: Any, *args: Any) -> None:
        """Find the pattern, if it was not given, and the colours anew, at an argument."""
        x = self._argument(x, args)
        with inference_mode(False), self._lock:
            self._found = self._planned(x, args, self._recorded(x, args))

    def __call__(self, x: Operand, *args: Any) -> csr_array:
        """Return the matrix at an argument, a `scipy.sparse.csr_array`."""
        x = self._argument(x, args)
        if _enabled.get() is True:
            return self._at(x, args)
        with inference_mode(False):  # whatever the mode is outside: nothing of it is seen there
            return self._at(x, args)

    def value_and_matrix(self, x: Operand, *args: Any) -> tuple[TensorOrArray, Callable[[], csr_array]]:
        """Return the function's value at an argument, and a function that gives the matrix there."""
        x = self._argument(x, args)
        with inference_mode(False):
            call = self._recorded(x, args)
        value = self._compiled(x, *args) if call is None else value_of(call.value)

        def matrix() -> csr_array:
            with inference_mode(False):
                return self._from(x, args, call)

        return value, matrix

    def _at(self, x: np.ndarray, args: tuple[Any, ...]) -> Any:
        return self._from(x, args, self._recorded(x, args))

    def _from(self, x: np.ndarray, args: tuple[Any, ...], call: Call | None) -> csr_array:
        found = self._found
        if found is None:
            with self._lock:
                found = self._found = self._found or self._planned(x, args, call)
        change = self._change(found, x, call)
        out = None if change else self._matrix(found, x, args, call)
        if out is None and self._on_change == "replan" and (change or self._given is None):
            with self._lock:
                found = self._found = self._planned(x, args, call)
            out, change = self._matrix(found, x, args, call), None
        if out is None:
            raise GradientError(
                f"{self.__name__}: the pattern does not fit: "
                f"{change or 'the matrix has elements outside of it'}; call replan at this argument, make "
                "the plan with on_change='replan', or give it the pattern of all that the function may do"
            )
        return out

    # ------------------------------------------------------------ what the kinds tell

    def _size(self, x: np.ndarray, args: tuple[Any, ...], call: Call | None) -> tuple[int, ...]:
        """The shape of what the rows of the matrix are of."""
        raise NotImplementedError

    def _pattern(self, call: Call) -> Pairs:
        """The rows and columns of the elements that may be other than 0."""
        raise NotImplementedError

    def _coloured(self, pattern: csr_array) -> tuple[bool, np.ndarray, np.ndarray]:
        """Whether lanes are of directions, the colour of each seed's element, and where elements stand."""
        raise NotImplementedError

    def _lanes(self, found: Found, x: np.ndarray, args: tuple[Any, ...], call: Call | None) -> np.ndarray:
        """A row for each seed: the matrix times a direction, or weights times the matrix."""
        raise NotImplementedError

    # ------------------------------------------------------------ calls

    def _argument(self, x: Operand, args: Sequence[Any]) -> np.ndarray:
        for k, arg in enumerate((x, *args)):
            if isinstance(arg, Handle) and needs_derivative(arg):
                raise BorderError(
                    f"{self.__name__}: argument {k} requires grad, and a sparse matrix is no Tensor: its "
                    "derivative would be dropped; pass argument.detach()"
                )
        value = np.asarray(x)
        if value.dtype.kind in "biu":
            value = value.astype(float)
        if value.dtype.char not in "fdg":
            raise DTypeError(f"{self.__name__} takes an array of real numbers, found dtype {value.dtype}")
        return value if self._compiled is None else value.astype(float, copy=False)

    @property
    def _compiled(self) -> Any:
        """The compiled function; None if it is plain Python."""
        f, numba = self.__wrapped__, sys.modules.get("numba.core.dispatcher")
        if hasattr(f, "_tapegrad_primal") or (numba is not None and isinstance(f, numba.Dispatcher)):
            return load("derivatives.derivative").compiled_function(f, self._what)
        return None

    def _recorded(self, x: np.ndarray, args: tuple[Any, ...]) -> Call | None:
        """Call the function on a Tensor; a compiled one is not called."""
        return None if self._compiled is not None else self._traced(self.__wrapped__, x, args)

    def _traced(self, f: Function, x: np.ndarray, args: tuple[Any, ...]) -> Call:
        """Call a function on a Tensor, on tapes of its own."""
        leaf = tensor(x, requires_grad=True)
        leave_tape()
        since = current().serial
        value = f(leaf, *args)
        if isinstance(value, Tensor):
            if has_tangent(value):
                raise BorderError(
                    f"{self.__name__}: the function uses a Tensor that carries a tangent, and a sparse "
                    "matrix is no Tensor: its derivative would be dropped; use unpack_dual(...).primal of it"
                )
            if value._tape is STALE:
                refresh_history(value)
        elif not isinstance(value, (np.ndarray, np.number, int, float)):
            raise TypeError(
                f"{self.__name__}: the function is to return one array, found {type(value).__name__}; "
                "join parts with np.concatenate"
            )
        return Call(value, leaf, since)

    def _change(self, found: Found, x: np.ndarray, call: Call | None) -> str | None:
        """Say what does not fit the plan."""
        if x.shape != found.argument:
            return f"the argument has shape {x.shape}, and had {found.argument}"
        if found.program is None or call is None:
            return None
        return found.program.difference(*call)

    def _planned(self, x: np.ndarray, args: tuple[Any, ...], call: Call | None) -> Found:
        from scipy import sparse

        compiled, pattern = self._compiled, self._given
        if compiled is not None and pattern is None:
            call = self._traced(compiled.py_func, x, args)
        result = self._size(x, args, call)
        shape = (int(np.prod(result, dtype=int)), x.size)
        if pattern is None:
            rows, columns = self._pattern(call)  # type: ignore[arg-type]
            pattern = sparse.csr_array((np.ones(rows.size, bool), (rows, columns)), shape)
        elif pattern.shape != shape:
            raise ShapeError(
                f"{self.__name__}: the pattern given has shape {pattern.shape}, and the matrix {shape}"
            )
        pattern.sort_indices()
        forward, colours, places = self._coloured(pattern)
        program = Program(*call) if compiled is None and self._given is None else None  # type: ignore[misc]
        count = int(colours.max(initial=-1)) + 1 if pattern.nnz else 0
        seeds = (np.arange(count)[:, None] == colours).astype(x.dtype)
        if program is None and self._check:
            random = np.random.default_rng(colours.size).uniform(0.5, 1.5, (1, colours.size))
            seeds = np.concatenate([seeds, random.astype(x.dtype)])
        seeds = seeds.reshape(len(seeds), *(x.shape if forward else result))
        return Found(x.shape, pattern, forward, seeds, places, program)

    def _shown(self, tapes: Iterable[Any]) -> Iterable[Any]:
        """Show how many tapes are read, if that was asked for."""
        return shown(tapes, f"{self.__name__}: tapes", self._progress)

    def _is_checked(self, found: Found) -> bool:
        return self._check and found.program is None

    def _matrix(self, found: Found, x: np.ndarray, args: tuple[Any, ...], call: Call | None) -> csr_array:
        """The matrix; None where a product with it is another one than the function's derivative."""
        if not len(found.seeds):
            return found.matrix(np.zeros(0, x.dtype))
        lanes = self._lanes(found, x, args, call)
        out = found.matrix(lanes.reshape(-1).take(found.places))
        if self._is_checked(found):
            matrix = out if found.forward else out.T
            sizes = copy.copy(matrix)
            sizes.data = np.abs(sizes.data)
            seed, lane = found.seeds[-1].reshape(-1), lanes[-1]
            eps, size = np.finfo(lanes.dtype).eps, np.abs(lane)
            slack = eps**SLACK * (sizes @ seed + size) + ROUNDING * eps * size.max()
            if (np.abs(matrix @ seed - lane) > slack).any():
                return None
        return out


def _boolean(pattern: Any, what: str) -> csr_array:
    """A pattern that was given, as a boolean array in CSR form."""
    from scipy import sparse

    if isinstance(pattern, Handle):
        raise TypeError(f"{what}: the pattern is to be an array or of scipy.sparse, found a Tensor")
    found = sparse.coo_array(pattern if sparse.issparse(pattern) else np.asarray(pattern))
    if found.ndim != 2:
        raise ShapeError(f"{what}: the pattern is to have two axes, found shape {found.shape}")
    return sparse.csr_array((np.ones(found.nnz, bool), found.coords), found.shape)


def _pulled(y: TensorOrArray, x: Tensor, seeds: np.ndarray) -> np.ndarray:
    """Sweep from a result with each of some cotangents."""
    if not requires_grad(y):
        return np.zeros((len(seeds), *x.shape), x.dtype)
    seeds = seeds.astype(y.dtype, copy=False)
    out = np.empty((len(seeds), *x.shape), x.dtype)
    together = min(len(seeds), BATCHED_ELEMENTS // max(y.size, 1))
    if together < BATCHED:
        for k, seed in enumerate(seeds):
            (found,) = grad(y, x, seed, retain_graph=k + 1 < len(seeds), allow_unused=True)
            out[k] = 0 if found is None else found._v
        return out
    for k in range(0, len(seeds), together):
        part = seeds[k : k + together]
        rest = k + together < len(seeds)
        (found,) = grad(y, x, part, retain_graph=rest, is_grads_batched=True, allow_unused=True)
        out[k : k + together] = 0 if found is None else found._v
    return out


class SparseJacobian(_Plan):
    """A function of the derivatives of all results, of which few are not 0; see `sparse_jacobian`."""

    _what = "sparse_jacobian"

    def _size(self, x: np.ndarray, args: tuple[Any, ...], call: Call | None) -> tuple[int, ...]:
        return np.shape(self._compiled(x, *args) if call is None else call.value)

    def _pattern(self, call: Call) -> Pairs:
        return dependencies(*call, self._shown) if isinstance(call.value, Tensor) else _nothing()

    def _coloured(self, pattern: csr_array) -> tuple[bool, np.ndarray, np.ndarray]:
        m, n = pattern.shape
        rows, columns = np.repeat(np.arange(m), np.diff(pattern.indptr)), pattern.indices.astype(np.int64)
        if self._compiled is not None:  # whose results have no tangents
            forward, colours = False, colouring.columns_of(pattern.T.tocsr())
        else:
            forward, colours = colouring.fewer(pattern)
        return forward, colours, colours[columns] * m + rows if forward else colours[rows] * n + columns

    def _lanes(self, found: Found, x: np.ndarray, args: tuple[Any, ...], call: Call | None) -> np.ndarray:
        if call is None:
            derivative = load("derivatives.jacobian").Jacobian(self._compiled)
            return derivative.products(found.seeds, x, *args)
        if not found.forward:
            return _pulled(call.value, call.x, found.seeds).reshape(len(found.seeds), -1)
        with dual_level(lanes=len(found.seeds)):
            y = self.__wrapped__(make_dual(call.x.detach(), tensor(found.seeds)), *args)
            tangent = unpack_dual(y).tangent if isinstance(y, Tensor) else None
            if tangent is None:
                return np.zeros((len(found.seeds), found.pattern.shape[0]), x.dtype)
            return tangent.numpy().reshape(len(found.seeds), -1)


class SparseHessian(_Plan):
    """A function of the matrix of second derivatives, of which few are not 0; see `sparse_hessian`."""

    _what = "sparse_hessian"

    def _size(self, x: np.ndarray, args: tuple[Any, ...], call: Call | None) -> tuple[int, ...]:
        if call is not None and np.size(call.value) != 1:
            raise ShapeError(
                f"{self.__name__}: the function is to return one number, found shape {np.shape(call.value)}"
            )
        return x.shape

    def _pattern(self, call: Call) -> Pairs:
        return interactions(*call, self._shown) if isinstance(call.value, Tensor) else _nothing()

    def _coloured(self, pattern: csr_array) -> tuple[bool, np.ndarray, np.ndarray]:
        n = pattern.shape[0]
        if (pattern != pattern.T).nnz:
            raise ValueError(f"{self.__name__}: the pattern of a Hessian is symmetric, the one given is not")
        rows, columns = np.repeat(np.arange(n), np.diff(pattern.indptr)), pattern.indices.astype(np.int64)
        colours, across = colouring.symmetric(pattern)
        here, there = np.where(across, columns, rows), np.where(across, rows, columns)
        return True, colours, colours[there] * n + here

    def _lanes(self, found: Found, x: np.ndarray, args: tuple[Any, ...], call: Call | None) -> np.ndarray:
        if call is None:
            derivatives, seeds = load("derivatives.derivative"), found.seeds
            if not x.ndim:
                product = derivatives.hvp(self._compiled, 0)
                return np.array([product(float(x), *args, float(seed)) for seed in seeds])
            products = derivatives.hessian_products(self._compiled)
            return products(x, *args, seeds.reshape(len(seeds), -1))
        if not requires_grad(call.value):
            return np.zeros((len(found.seeds), x.size), x.dtype)
        y = call.value.reshape(()) if call.value.ndim else call.value
        (gradient,) = grad(y, call.x, create_graph=True, materialize_grads=True)
        return _pulled(gradient, call.x, found.seeds).reshape(len(found.seeds), -1)


def _nothing() -> Pairs:
    return np.zeros(0, int), np.zeros(0, int)


def sparse_jacobian(
    f: Function,
    pattern: Any = None,
    *,
    on_change: OnChange = "raise",
    check: bool = True,
    progress: bool = False,
) -> SparseJacobian:
    """Return a function of the Jacobian, by the first argument, as a sparse matrix.

    Rows, or columns, that have nothing in common are computed together: of a banded matrix it takes as many
    sweeps as there are bands, whatever its size.

    Parameters
    ----------
    f : callable
        Of an array, and any further arguments: returns an array, or is compiled by `tapegrad.njit`.
    pattern : array or scipy.sparse array, optional
        What is not 0 there may be not 0 in the matrix; its rows are elements of the result, its columns
        those of the argument, in C order. By default it is found at the first call.
    on_change : {"raise", "replan"}, optional
        What to do where the function does not do what the pattern was found for: raise an error, or find it
        anew.
    check : bool, optional
        Whether, where the pattern was given or is that of a compiled function, each matrix is checked by its
        product with a random vector, which takes one sweep more.
    progress : bool, optional
        Show how many tapes are read to find the pattern, as in `jacrev`.

    Returns
    -------
    SparseJacobian
        Called as `f`, it returns a `scipy.sparse.csr_array`. It has the `pattern`, the number of `lanes`
        computed, and `replan`, by which it begins anew; it can be pickled if `f` can.

    Raises
    ------
    GradientError
        At a call: the pattern does not fit.
    BorderError, DTypeError, ShapeError, TypeError, ValueError
        An argument does not fit.

    Notes
    -----
    The pattern is one of structure: what values are 0 by chance is nothing to it, ``x * 0`` and both branches
    of `numpy.where` count. It is read off the records of one call. Each later call is compared with these, op
    by op, with all indices: another branch of the function is noticed before the colours are used. Results of
    decompositions and solves, of a Function and of compiled functions called by `f` count as depending on all
    elements of their operands. Other Tensors that `f` uses are constants.

    Of a compiled function its Python form is recorded once, to find the pattern. Later calls are not
    recorded, but checked by a product with a random vector: it finds elements outside of the pattern down to
    about a millionth of those in their row. Results are in double precision.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg
    >>> jacobian = tg.func.sparse_jacobian(lambda x: x[1:] ** 2 - x[:-1])
    >>> matrix = jacobian(np.arange(5.0))
    >>> matrix.toarray()
    array([[-1.,  2.,  0.,  0.,  0.],
           [ 0., -1.,  4.,  0.,  0.],
           [ 0.,  0., -1.,  6.,  0.],
           [ 0.,  0.,  0., -1.,  8.]])
    >>> jacobian.lanes
    2
    """
    return SparseJacobian(f, pattern, on_change, check, progress)


def sparse_hessian(
    f: Function,
    pattern: Any = None,
    *,
    on_change: OnChange = "raise",
    check: bool = True,
    progress: bool = False,
) -> SparseHessian:
    """Return a function of the matrix of second derivatives, by the first argument, as a sparse matrix.

    As `sparse_jacobian`, and besides the matrix is symmetric: an element may be found across the diagonal,
    so that it takes fewer lanes, by a star colouring.

    Parameters
    ----------
    f : callable
        Of an array, and any further arguments: returns a number, or is compiled by `tapegrad.njit`.
    pattern : array or scipy.sparse array, optional
        What is not 0 there may be not 0 in the matrix; it is symmetric. By default it is found at the first
        call.
    on_change, check, progress
        As in `sparse_jacobian`.

    Returns
    -------
    SparseHessian
        Called as `f`, it returns a `scipy.sparse.csr_array`, otherwise as a `SparseJacobian`.

    Raises
    ------
    GradientError
        At a call: the pattern does not fit.
    BorderError, DTypeError, ShapeError, TypeError, ValueError
        An argument does not fit.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg
    >>> hessian = tg.func.sparse_hessian(lambda x: np.sum((x[1:] - x[:-1] ** 2) ** 2))
    >>> matrix = hessian(np.ones(1000))
    >>> matrix.nnz, hessian.lanes
    (2998, 3)
    """
    return SparseHessian(f, pattern, on_change, check, progress)
