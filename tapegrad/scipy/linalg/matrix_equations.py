"""Equations whose unknown is a matrix: Sylvester's, Lyapunov's and Riccati's, of `scipy.linalg`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tapegrad.core.base import shape_of, value_of
from tapegrad.errors import ShapeError
from tapegrad.ops import matrix_functions, riccati
from tapegrad.scipy.batches import in_batches
from tapegrad.scipy.linalg.arguments import adjoint, derived, given, in_double, square
from tapegrad.tensor import Operand, TensorOrArray

if TYPE_CHECKING:
    from tapegrad.tensor import Tensor

ops: Any = matrix_functions
equations: Any = riccati


@derived
@in_batches(a=2, b=2, q=2)
def solve_sylvester(a: Operand, b: Operand, q: Operand) -> TensorOrArray:
    """Solution x of ``a @ x + x @ b = q``, as `scipy.linalg.solve_sylvester`.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> q = tg.tensor([[3.0]], requires_grad=True)
    >>> tg.grad(ts.linalg.solve_sylvester([[1.0]], [[2.0]], q)[0, 0], q)
    (tensor([[0.3333]]),)
    """
    a, b, q = square(a, False), square(b, False), given(q, False, 2)
    if shape_of(q) != (shape_of(a)[0], shape_of(b)[0]):
        raise ShapeError(f"shapes {shape_of(a)}, {shape_of(b)} and {shape_of(q)} do not fit")
    return ops.solve_sylvester(a, b, q)


@derived
@in_batches(a=2, q=2)
def solve_continuous_lyapunov(a: Operand, q: Operand) -> TensorOrArray:
    """Solution x of ``a @ x + x @ a**H = q``, as `scipy.linalg.solve_continuous_lyapunov`.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> q = tg.tensor([[2.0]], requires_grad=True)
    >>> tg.grad(ts.linalg.solve_continuous_lyapunov([[1.0]], q)[0, 0], q)
    (tensor([[0.5]]),)
    """
    a, q = square(a, False), square(q, False)
    if shape_of(a) != shape_of(q):
        raise ShapeError(f"a has shape {shape_of(a)} and q {shape_of(q)}; give matrices alike")
    return ops.solve_sylvester(a, adjoint(a), q)


@derived
def solve_lyapunov(a: Operand, q: Operand) -> TensorOrArray:
    """The same as `solve_continuous_lyapunov`.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> q = tg.tensor([[2.0]], requires_grad=True)
    >>> tg.grad(ts.linalg.solve_lyapunov([[1.0]], q)[0, 0], q)
    (tensor([[0.5]]),)
    """
    return solve_continuous_lyapunov(a, q)


DIRECT = 10  # rows below which SciPy solves a discrete Lyapunov equation as one of all elements


@derived
@in_batches(a=2, q=2)
def solve_discrete_lyapunov(a: Operand, q: Operand, method: str | None = None) -> TensorOrArray:
    """Solution x of ``a @ x @ a**H - x + q = 0``, as `scipy.linalg.solve_discrete_lyapunov`.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> q = tg.tensor([[3.0]], requires_grad=True)
    >>> tg.grad(ts.linalg.solve_discrete_lyapunov([[0.5]], q)[0, 0], q)
    (tensor([[1.3333]]),)
    """
    a, q = square(a, False), square(q, False)
    n = shape_of(a)[0]
    method = ("bilinear" if n >= DIRECT else "direct") if method is None else method.lower()
    if method not in ("direct", "bilinear"):
        raise ValueError(f"Unknown solver {method}")
    if method == "direct":
        left = np.eye(n * n) - np.kron(a, np.conj(a))
        return np.reshape(np.linalg.solve(left, np.reshape(q, -1)), (n, n))
    one, back = np.eye(n), adjoint(a)
    inverse = np.linalg.inv(back + one)
    b = (back - one) @ inverse
    c = 2 * (np.linalg.inv(a + one) @ q @ inverse)
    return ops.solve_sylvester(adjoint(b), b, -c)


def _riccati(
    op: Any, a: Operand, b: Operand, q: Operand, r: Operand, e: Operand | None, s: Operand | None
) -> Tensor:
    """Solution of a Riccati equation, brought to the form without `e` and `s`."""
    a, b, q, r = square(a), given(b, axes=2), square(q), square(r)
    n, m = shape_of(a)[0], shape_of(r)[0]
    if shape_of(b) != (n, m) or shape_of(q) != (n, n):
        raise ShapeError(f"shapes {shape_of(a)}, {shape_of(b)}, {shape_of(q)} and {shape_of(r)} do not fit")
    for name, x in (("q", value_of(q)), ("r", value_of(r))):
        if not np.allclose(x, x.conj().T, rtol=0.0, atol=100 * np.spacing(np.linalg.norm(x, 1))):
            raise ValueError(
                f"{name} differs from its conjugate transpose; give a symmetric or Hermitian one"
            )
    if s is not None:
        s = given(s, axes=2)
    if e is not None:
        turned = np.linalg.inv(square(e))
        a, q = a @ turned, adjoint(turned) @ q @ turned
        s = None if s is None else adjoint(turned) @ s
    if s is not None:
        back = np.linalg.solve(r, adjoint(s))
        a, q = a - b @ back, q - s @ back
    a, b, q, r = (in_double(x) for x in (a, b, (q + adjoint(q)) / 2, (r + adjoint(r)) / 2))
    return op(a, b, q, r)


@derived
@in_batches(a=2, b=2, q=2, r=2, e=2, s=2)
def solve_continuous_are(
    a: Operand,
    b: Operand,
    q: Operand,
    r: Operand,
    e: Operand | None = None,
    s: Operand | None = None,
    balanced: bool = True,
) -> TensorOrArray:
    """Stabilising solution x of ``a**H x + x a - x b inv(r) b**H x + q = 0``.

    Parameters
    ----------
    a, b, q, r : Tensor or array_like
        The system, its inputs, and the Hermitian weights of states and inputs.
    e, s : Tensor or array_like, optional
        Of the general equation.
    balanced : bool, optional
        As SciPy has it; a balanced pencil is used where there is a derivative.

    Returns
    -------
    Tensor
        As `scipy.linalg.solve_continuous_are`.

    Examples
    --------
    >>> import tapegrad as tg, tapegrad.scipy as ts
    >>> q = tg.tensor([[3.0]], requires_grad=True)
    >>> tg.grad(ts.linalg.solve_continuous_are([[1.0]], [[1.0]], q, [[1.0]])[0, 0], q)
    (tensor([[0.25]]),)
    """
    return _riccati(equations.solve_continuous_are, a, b, q, r, e, s)


@derived
@in_batches(a=2, b=2, q=2, r=2, e=2, s=2)
def solve_discrete_are(
    a: Operand,
    b: Operand,
    q: Operand,
    r: Operand,
    e: Operand | None = None,
    s: Operand | None = None,
    balanced: bool = True,
) -> TensorOrArray:
    """Stabilising solution x of ``x = a**H x a - a**H x b inv(r + b**H x b) b**H x a + q``.

    Parameters
    ----------
    a, b, q, r : Tensor or array_like
        The system, its inputs, and the Hermitian weights of states and inputs.
    e, s : Tensor or array_like, optional
        Of the general equation.
    balanced : bool, optional
        As SciPy has it; a balanced pencil is used where there is a derivative.

    Returns
    -------
    Tensor
        As `scipy.linalg.solve_discrete_are`.

    Examples
    --------
    >>> import tapegrad as tg, tapegrad.scipy as ts
    >>> q = tg.tensor([[1.5]], requires_grad=True)
    >>> tg.grad(ts.linalg.solve_discrete_are([[1.0]], [[1.0]], q, [[1.0]])[0, 0], q)
    (tensor([[1.1093]]),)
    """
    return _riccati(equations.solve_discrete_are, a, b, q, r, e, s)
