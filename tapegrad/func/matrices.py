"""Jacobians, Hessians and traces of them, of functions: many directions at once, in chunks that fit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Literal, overload

import numpy as np

from tapegrad.autograd.forward_ad import dual_level, make_dual, unpack_dual
from tapegrad.autograd.functional import grad_of_active
from tapegrad.config import chunk_bytes
from tapegrad.core.base import strip_tangents
from tapegrad.core.grad_mode import switches
from tapegrad.errors import GradientError, ShapeError
from tapegrad.func.calls import Call, Programmed, compiled, offering, plain, tensors_of, transformed, zeros
from tapegrad.func.signatures import Function, Hessian
from tapegrad.func.tangents import pushforward, swept, used
from tapegrad.func.transforms import pull_number
from tapegrad.func.trees import Tree
from tapegrad.native.loading import load
from tapegrad.progress import progress
from tapegrad.tape.tape import recorded_bytes
from tapegrad.tensor import Operand, Tensor, TensorOrArray, wrap

__all__ = ["divergence", "hessian", "jacfwd", "jacobian", "jacrev", "laplacian", "rows_of"]

FEW = 32  # directions that need no look at how much memory one takes


class _Chunks:
    """How many directions are computed together.

    Parameters
    ----------
    size
        So many; None for what fits into `config.chunk_bytes`.
    progress
        Whether it is shown how many are done.
    """

    def __init__(self, what: str, size: int | None, progress: bool) -> None:
        if size is not None and (type(size) is not int or size < 1):
            raise ValueError(f"{what}: chunk_size is a whole number from 1, or None; found {size!r}")
        self.what, self.size, self.progress = what, size, progress

    def wants_weight(self, n: int) -> bool:
        """Whether it must be known what one of so many directions takes."""
        return self.size is None and n > FEW

    def spans(self, n: int, weight: int) -> Iterable[tuple[int, int]]:
        """First and last plus one of those computed together, where one takes so many bytes."""
        size = self.size
        if size is None:
            size = max(1, chunk_bytes() // max(weight, 1)) if n > FEW else n
        found = [(a, min(a + size, n)) for a in range(0, n, max(size, 1))]
        return progress(found, self.what, self.progress)


def jacrev(
    f: Function,
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    chunk_size: int | None = None,
    progress: bool = False,
) -> Function:
    """Return a function of the Jacobian of a function, by rows: one call, then sweeps for many results.

    Parameters
    ----------
    f, argnums, has_aux
        As for `vjp`.
    chunk_size : int, optional
        How many directions are computed together; by default as many as fit into a quarter of a GiB, or into
        the bytes that the environment variable ``TAPEGRAD_CHUNK_BYTES`` says.
    progress : bool, optional
        Show how many chunks are done, on a terminal or in a notebook: by tqdm if it is installed (the extra
        ``progress``), else by a line.

    Returns
    -------
    callable
        Of the arguments of `f`: arrays of shape ``value.shape + argument.shape``; for each leaf of the value,
        built as that, a tree as the argument is. With aux ``(jacobian, aux)``.

    Raises
    ------
    GradientError
        At a call: the value is complex.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg
    >>> tg.func.jacrev(lambda x: x * x[0])(np.array([2.0, 3.0]))
    array([[4., 0.],
           [3., 2.]])
    """
    return _matrix("jacrev", f, argnums, has_aux, chunk_size, progress, _by_rows)


def jacfwd(
    f: Function,
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    chunk_size: int | None = None,
    progress: bool = False,
) -> Function:
    """Return a function of the Jacobian of a function, by columns: one call, then sweeps for many elements.

    Parameters
    ----------
    f, argnums, has_aux, chunk_size, progress
        As for `jacrev`. In forward mode, where `jvp` takes that, the function is called for each chunk; where
        arguments have more than 32 elements and no chunk_size is given, once before to see what it takes. A
        compiled function, differentiated by its first argument, takes four directions at a time; nothing is
        recorded, and compiled code can call the derivative.

    Returns
    -------
    callable
        As of `jacrev`.

    Raises
    ------
    GradientError
        At a call: an argument is complex.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg
    >>> tg.func.jacfwd(lambda x: x * x[0])(np.array([2.0, 3.0]))
    array([[4., 0.],
           [3., 2.]])
    """
    derivative = _matrix("jacfwd", f, argnums, has_aux, chunk_size, progress, _by_columns)
    if compiled(f, "jacfwd") and argnums == 0 and not has_aux:
        return load("derivatives.columns").jacfwd(f).beside(derivative)
    return derivative


def jacobian(
    f: Function,
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    chunk_size: int | None = None,
    progress: bool = False,
) -> Function:
    """Return a function of the Jacobian of a function: by rows, or by columns where there are fewer.

    Parameters
    ----------
    f, argnums, has_aux, chunk_size, progress
        As for `jacrev`. A compiled function is recorded once, and swept for four elements of its results at a
        time; it is differentiated by its first argument.

    Returns
    -------
    callable
        As of `jacrev`.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg
    >>> def f(x):
    ...     return x * x[0]
    >>> tg.func.jacobian(f)(np.array([2.0, 3.0]))
    array([[4., 0.],
           [3., 2.]])
    >>> tg.func.jacobian(tg.njit(f))(np.array([2.0, 3.0]))
    array([[4., 0.],
           [3., 2.]])
    """
    derivative = _matrix("jacobian", f, argnums, has_aux, chunk_size, progress, _by_shape)
    if compiled(f, "jacobian") and argnums == 0 and not has_aux:
        of = load("derivatives.derivative").compiled_function(f, "jacobian")
        return load("derivatives.jacobian").Jacobian(of, derivative)
    return derivative


def _matrix(
    what: str,
    f: Function,
    argnums: int | Sequence[int],
    has_aux: bool,
    chunk_size: int | None,
    progress: bool,
    how: Callable[[Call, bool, _Chunks], Tree],
) -> Function:
    out = transformed(what, f, argnums, how, has_aux, _Chunks(what, chunk_size, progress))
    return offering(out, f.by(argnums), "jacobian") if isinstance(f, Programmed) and not has_aux else out


# ---------------------------------------------------------------- by rows


def _by_rows(call: Call, has_aux: bool, chunks: _Chunks) -> Tree:
    return call.recorded(_rows_of_call, has_aux, chunks)


def _rows_of_call(call: Call, has_aux: bool, chunks: _Chunks) -> Tree:
    found, aux = call.outputs(has_aux)
    ys, structure = tensors_of(call.what, found)
    rows = structure.build([call.tree(_rows(call, y, chunks)) for y in ys])
    return (rows, call.given_back(aux, call.outside)) if has_aux else rows


def rows_of(call: Call, y: Tensor) -> list[Any]:
    """The derivatives of all elements of a result by each leaf of the arguments, in chunks that fit."""
    return _rows(call, y, _Chunks(call.what, None, False))


def _rows(call: Call, y: Tensor, chunks: _Chunks) -> list[Operand]:
    """The derivatives of all elements of a result by each leaf of the arguments."""
    if y.dtype.kind == "c":
        raise GradientError(
            f"{call.what}: the value is complex ({y.dtype}); differentiate its real and imaginary parts"
        )
    parts: list[list[TensorOrArray]] = [[] for _ in call.xs]
    for _, _, found in _pulled(call, y, call.xs, chunks):
        for column, g in zip(parts, found, strict=True):
            column.append(g)
    return [_joined(column, y.shape + x.shape, x) for column, x in zip(parts, call.xs, strict=True)]


def _pulled(call: Call, y: Tensor, by: list[Tensor], chunks: _Chunks) -> Iterator[tuple[int, int, list[Any]]]:
    """Yield first, last plus one, and derivatives by each of these, of a chunk of a result's elements."""
    weight = _weight_of([y]) if chunks.wants_weight(y.size) else 0
    for a, b in chunks.spans(y.size, weight):
        batch = {"is_grads_batched": True, "retain_graph": True}
        found = grad_of_active([y], by, [_units(y, a, b)], call.outside, **batch)
        yield (
            a,
            b,
            [
                call.gradient(_nothing((b - a, *x.shape), x) if g is None else g)
                for g, x in zip(found, by, strict=True)
            ],
        )


def _units(x: TensorOrArray, a: int, b: int, first: int = 0) -> np.ndarray:
    """Those from a to b of all unit vectors, as directions of this Tensor, whose own begin at `first`."""
    found = np.zeros((b - a, x.size), x.dtype)
    mine = np.arange(max(a, first), min(b, first + x.size))
    found[mine - a, mine - first] = 1
    return found.reshape(b - a, *x.shape)


def _nothing(shape: tuple[int, ...], like: Tensor) -> Tensor:
    return wrap(np.zeros(shape, like.dtype))


def _joined(parts: Sequence[TensorOrArray], shape: tuple[int, ...], like: Tensor) -> Operand:
    """Parts along their first axis as one array of a shape."""
    if not parts:
        return np.zeros(shape, like.dtype)
    whole = (parts[0] if len(parts) == 1 else np.concatenate(parts)).reshape(shape)
    return whole if shape or isinstance(whole, Tensor) else plain(whole[()])


# ---------------------------------------------------------------- by columns


def _by_columns(call: Call, has_aux: bool, chunks: _Chunks) -> Tree:
    _refuse_complex(call)
    columns = swept(call, has_aux, partial(_columns_of_records, has_aux, chunks))
    return _columns_forward(call, has_aux, chunks) if columns is None else columns


def _refuse_complex(call: Call) -> None:
    for x in call.given:
        if np.iscomplexobj(x):
            found = f"an argument is complex ({np.result_type(x)})"
            raise GradientError(f"{call.what}: {found}; take its real and imaginary parts for two")


def _columns_of_records(has_aux: bool, chunks: _Chunks, call: Call, found: Tree, aux: Any) -> Tree:
    return _columns(call, has_aux, _swept_chunks(call, found, aux, chunks))


def _columns_forward(call: Call, has_aux: bool, chunks: _Chunks, weight: int | None = None) -> Tree:
    call.primals()
    return _columns(call, has_aux, _pushed(call, has_aux, chunks, weight))


def _weight(call: Call, has_aux: bool) -> int:
    return _weight_of(tensors_of(call.what, call.outputs(has_aux)[0])[0])


def _weight_of(ys: list[Tensor]) -> int:
    """How many bytes one direction takes, of cotangents or tangents: twice what the values take."""
    return max((2 * recorded_bytes(strip_tangents(y)._tape) for y in ys if y.requires_grad), default=0)


def _columns(call: Call, has_aux: bool, pushed: Iterable[Any]) -> Tree:
    parts = []
    tree: tuple[Any, Any] = None, None
    for _, _, tangents, structure, aux in pushed:
        parts.append([call.given_back(t, True) for t in tangents])
        tree = structure, aux
    columns = []
    for k, y in enumerate(parts[0]):
        whole = np.concatenate([part[k] for part in parts]) if len(parts) > 1 else y
        columns.append(call.tree(_split(np.moveaxis(whole, 0, -1), call.xs)))
    found = tree[0].build(columns)
    return (found, call.given_back(tree[1], call.outside)) if has_aux else found


def _split(whole: TensorOrArray, xs: list[Tensor]) -> list[Operand]:
    """Columns as derivatives by each leaf of the arguments."""
    found, start = [], 0
    for x in xs:
        found.append(_joined([whole[..., start : start + x.size]], whole.shape[:-1] + x.shape, x))
        start += x.size
    return found


def _pushed(call: Call, has_aux: bool, chunks: _Chunks, weight: int | None = None) -> Iterator[Any]:
    """Yield first, last plus one, and tangents of results along a chunk of unit vectors; structure, aux.

    `weight`: how many bytes one direction takes, where that is known.
    """
    starts = np.cumsum([0, *(x.size for x in call.xs)]).tolist()
    if weight is None:
        weight = call.recorded(_weight, has_aux) if chunks.wants_weight(starts[-1]) else 0
        call.primals()
    for a, b in chunks.spans(starts[-1], weight) if starts[-1] else [(0, 0)]:
        with dual_level(b - a):
            duals = [make_dual(x, t) for x, t in zip(call.xs, _directions(call, starts, a, b), strict=True)]
            found, aux = call.apply(duals, has_aux)
            ys, structure = tensors_of(call.what, found)
            tangents = [unpack_dual(y).tangent for y in ys]
            whole = [zeros(y, (b - a,)) if t is None else t for y, t in zip(ys, tangents, strict=True)]
        yield a, b, whole, structure, aux


def _swept_chunks(call: Call, found: Tree, aux: Any, chunks: _Chunks) -> Iterator[Any]:
    """As `_pushed`, of what a call has recorded."""
    ys, structure = tensors_of(call.what, found)
    push, starts = pushforward(call, ys, batched=True), np.cumsum([0, *(x.size for x in call.xs)]).tolist()
    weight = _weight_of(ys) if chunks.wants_weight(starts[-1]) else 0
    for a, b in chunks.spans(starts[-1], weight) if starts[-1] else [(0, 0)]:
        yield a, b, push(_directions(call, starts, a, b)), structure, aux


def _directions(call: Call, starts: list[int], a: int, b: int) -> list[Tensor]:
    """Those from a to b of all unit vectors, for each argument."""
    return [wrap(_units(x, a, b, first)) for x, first in zip(call.xs, starts[:-1], strict=True)]


def _by_shape(call: Call, has_aux: bool, chunks: _Chunks) -> Tree:
    found, weight = call.recorded(_rows_or_columns, has_aux, chunks)
    return found if weight is None else _columns_forward(call, has_aux, chunks, weight)


def _rows_or_columns(call: Call, has_aux: bool, chunks: _Chunks) -> tuple[Tree, int | None]:
    """The Jacobian by rows, or by columns where these are fewer; or what a column takes in forward mode."""
    before = switches[0]
    found, aux = call.outputs(has_aux)
    ys, structure = tensors_of(call.what, found)
    wide = sum(y.size for y in ys) > sum(x.size for x in call.xs)
    if wide or any(y.dtype.kind == "c" for y in ys):
        _refuse_complex(call)
        columns = used(call, found, aux, partial(_columns_of_records, has_aux, chunks), before)
        return (columns, None) if columns is not None else (None, _weight_of(ys))
    rows = structure.build([call.tree(_rows(call, y, chunks)) for y in ys])
    return ((rows, call.given_back(aux, call.outside)) if has_aux else rows), None


# ---------------------------------------------------------------- second derivatives, traces


@overload
def hessian(
    f: Function,
    argnums: Literal[0] = 0,
    has_aux: Literal[False] = False,
    chunk_size: int | None = None,
    progress: bool = False,
) -> Hessian: ...
@overload
def hessian(
    f: Function,
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    chunk_size: int | None = None,
    progress: bool = False,
) -> Function: ...
def hessian(
    f: Function,
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    chunk_size: int | None = None,
    progress: bool = False,
) -> Function:
    """Return a function of the matrix of second derivatives of a function.

    Parameters
    ----------
    f, argnums, has_aux, chunk_size, progress
        As for `jacrev`. The result of a compiled function is a number, and it is differentiated by its first
        argument: four columns at a time, four directions of dual numbers and one sweep.

    Returns
    -------
    callable
        Of the arguments of `f`: arrays of shape ``value.shape + argument.shape + argument.shape``, a number
        where both are one; of a value or an argument that is a tree, such a tree for each of its leaves. The
        function is called once, and its gradient, recorded once, swept for each chunk.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg
    >>> def f(x):
    ...     return x[0] ** 2 * x[1]
    >>> tg.func.hessian(f)(np.array([1.0, 3.0]))
    array([[6., 2.],
           [2., 0.]])
    >>> tg.func.hessian(lambda x: x**3)(2.0)
    12.0
    >>> tg.func.hessian(tg.njit(f))(np.array([1.0, 3.0]))
    array([[6., 2.],
           [2., 0.]])
    """
    derivative = _matrix("hessian", f, argnums, has_aux, chunk_size, progress, _hessian)
    if compiled(f, "hessian") and argnums == 0 and not has_aux:
        return load("derivatives.derivative").hessian(f).beside(derivative)
    return derivative


def _hessian(call: Call, has_aux: bool, chunks: _Chunks) -> Tree:
    return call.recorded(_hessian_of_call, has_aux, chunks)


def _hessian_of_call(call: Call, has_aux: bool, chunks: _Chunks) -> Tree:
    found, aux = call.outputs(has_aux)
    ys, structure = tensors_of(call.what, found)
    matrices = []
    for y in ys:
        blocks = [call.tree(_rows(call, g, chunks)) for g in _first(call, y)]
        matrices.append(call.tree(blocks))
    hessians = structure.build(matrices)
    return (hessians, call.given_back(aux, call.outside)) if has_aux else hessians


def _first(call: Call, y: Tensor) -> list[Tensor]:
    """The derivatives of a result by each leaf of the arguments, recorded: the result's axes come first."""
    if y.ndim == 0:
        found = pull_number(call, y, True)
        return [_nothing(x.shape, x) if g is None else g for g, x in zip(found, call.xs, strict=True)]
    found = grad_of_active([y], call.xs, [_units(y, 0, y.size)], True, is_grads_batched=True)
    return [
        _nothing(y.shape + x.shape, x) if g is None else g.reshape(y.shape + x.shape)
        for g, x in zip(found, call.xs, strict=True)
    ]


def laplacian(
    f: Function, argnums: int | Sequence[int] = 0, chunk_size: int | None = None, progress: bool = False
) -> Function:
    """Return a function of the sum of the second derivatives of a function by each element, exact.

    Parameters
    ----------
    f, argnums
        As for `value_and_grad`.
    chunk_size, progress
        As for `jacrev`.

    Returns
    -------
    callable
        Of the arguments of `f`: the trace of the Hessian, of which only a chunk is there at a time.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg
    >>> tg.func.laplacian(lambda x: np.sum(x**3))(np.array([1.0, 2.0]))
    18.0
    """
    chunks = _Chunks("laplacian", chunk_size, progress)
    return transformed("laplacian", f, argnums, Call.recorded, _laplacian, chunks)


def _laplacian(call: Call, chunks: _Chunks) -> Operand:
    y, _ = call.outputs(False)
    total = 0.0
    for g, x in zip(pull_number(call, y, True), call.xs, strict=True):
        if g is not None and g.requires_grad:
            total = total + sum(_diagonal(rows, a, b) for a, b, (rows,) in _pulled(call, g, [x], chunks))
    return _number(total)


def divergence(
    f: Function, argnums: int | Sequence[int] = 0, chunk_size: int | None = None, progress: bool = False
) -> Function:
    """Return a function of the divergence of a vector field, exact.

    Parameters
    ----------
    f, argnums
        As for `vjp`; the value is built as the argument, of the same shapes.
    chunk_size, progress
        As for `jacfwd`.

    Returns
    -------
    callable
        Of the arguments of `f`: the trace of the Jacobian, of which only a chunk is there at a time.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg
    >>> tg.func.divergence(lambda x: x * x[0])(np.array([2.0, 3.0]))
    6.0
    """
    chunks = _Chunks("divergence", chunk_size, progress)
    return transformed("divergence", f, argnums, _divergence, chunks)


def _divergence(call: Call, chunks: _Chunks) -> Operand:
    found = swept(call, False, partial(_divergence_of_records, chunks))
    if found is None:
        call.primals()
        found = _trace(call, _pushed(call, False, chunks))
    return found


def _divergence_of_records(chunks: _Chunks, call: Call, found: Tree, aux: Any) -> Operand:
    return _trace(call, _swept_chunks(call, found, aux, chunks))


def _trace(call: Call, pushed: Iterable[Any]) -> Operand:
    xs, total = call.xs, 0.0
    for a, b, tangents, _, _ in pushed:
        shapes = [t.shape[1:] for t in tangents]
        if shapes != [x.shape for x in xs]:
            raise ShapeError(
                f"divergence: the value is shaped {shapes}, and not as the argument, {[x.shape for x in xs]}"
            )
        first = 0
        for t, x in zip(tangents, xs, strict=True):
            low, high = max(a, first), min(b, first + x.size)
            if low < high:
                part = call.given_back(t, True)[low - a : high - a]
                total = total + _diagonal(part, low - first, high - first)
            first += x.size
    return _number(total)


def _diagonal(rows: TensorOrArray, a: int, b: int) -> Any:
    """The sum of the elements a, ..., b of the rows a, ..., b."""
    return np.sum(rows.reshape(b - a, -1)[np.arange(b - a), np.arange(a, b)])


def _number(x: TensorOrArray | float) -> Operand:
    return x if isinstance(x, Tensor) else plain(x)
