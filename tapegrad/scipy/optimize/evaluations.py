"""A user's functions as SciPy's solvers ask for them: value and derivatives from one call at each point."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np
from scipy.sparse.linalg import LinearOperator

from tapegrad.autograd.functional import grad_of_active
from tapegrad.core.base import has_tangent, needs_derivative, requires_grad, value_of
from tapegrad.creation import array
from tapegrad.errors import BorderError, GradientError, UnsupportedOpError
from tapegrad.func import hessian, hvp, jacfwd, jacobian, value_and_grad
from tapegrad.func.calls import Call, Programmed, compiled, on_tensors, tensors_of
from tapegrad.func.matrices import rows_of
from tapegrad.func.sparse import SparseJacobian
from tapegrad.func.trees import flatten
from tapegrad.tensor import Operand, Tensor, TensorOrArray, is_tensor

__all__ = [
    "MANY", "SPARSE", "USING", "Function", "Outside", "Residual", "Values", "as_array", "differentiating",
]  # fmt: skip

KEPT = 2  # points: a solver proposes one, and goes back to the last if it is no better
MANY = 100  # unknowns from which a Jacobian may be sparse unasked
SPARSE = 0.1  # the part of its elements that may be other than 0 then


def as_array(found: Operand) -> Any:
    """What a function returned as one array or Tensor; lists and tuples are joined."""
    return array(found) if isinstance(found, (list, tuple)) else found


class Outside(GradientError):
    """A function uses a Tensor that is none of its arguments, by which a solution can be differentiated."""


# whether a solver is known to be given a function that uses Tensors from outside, of which it gets the values
USING: ContextVar[bool] = ContextVar("USING", default=False)


def _look_outside(what: str, uses: bool, moves: bool) -> None:
    """Refuse a result that depends on a Tensor from outside, unless the solution is differentiated by it."""
    if moves or (uses and not USING.get()):
        raise (GradientError if moves else Outside)(
            f"{what}: the function uses a Tensor that requires grad, or carries a tangent, and is none of "
            "its arguments; pass it by args=, or detach() it if it is a constant"
        )


@contextmanager
def differentiating(what: str) -> Iterator[None]:
    """Let errors of a function that is called with Tensors say why it is."""
    try:
        yield
    except (BorderError, UnsupportedOpError) as error:
        raise type(error)(
            f"{error}. {what} calls the function with Tensors, to find its derivatives; write it in NumPy's "
            "functions, or pass its derivatives, which may be jac='2-point' for differences"
        ) from error


class Values:
    """A function that is not differentiated: its values, if no derivative is lost."""

    def __init__(self, what: str, f: Callable[..., Any]) -> None:
        self.what, self.f = what, f
        functools.update_wrapper(self, f, updated=())

    def __call__(self, *args: Operand, **kwargs: Any) -> np.ndarray:
        """What the function returned, without a Tensor around it."""
        found = self.f(*args, **kwargs)
        leaves, structure = flatten(found)
        if not any(map(is_tensor, leaves)):
            return found
        _look_outside(self.what, any(map(needs_derivative, leaves)), any(map(has_tangent, leaves)))
        return structure.build([value_of(x) for x in leaves])


class _Recorded:
    """A call of a function, on a tape of its own, and what is swept from it.

    Parameters
    ----------
    order
        Of derivatives of the sum of the results: 1 for the gradient, which is quickest at once; 2 for that
        recorded, so that products with the Hessian can be asked for; 0 for none.
    """

    def __init__(
        self,
        what: str,
        f: Callable[..., Operand],
        x: Operand,
        args: tuple[Operand, ...],
        kwargs: dict[str, Any],
        order: int,
    ) -> None:
        self._call = Call(what, f, ((0,), False), (x, *args), kwargs)
        with differentiating(what):
            self._y, self._slope = self._call.recorded(self._run, order)
        _look_outside(what, self._call.outside, has_tangent(self._y))
        self.value = self._call.given_back(self._y, False)

    def _run(self, call: Call, order: int) -> tuple[Tensor, Tensor | None]:
        ys, _ = tensors_of(call.what, as_array(call.outputs(False)[0]))
        if len(ys) != 1:
            raise TypeError(f"{call.what}: the function is to return one array, found {len(ys)} in a tree")
        (y,) = ys
        if y.dtype.kind == "c":
            raise TypeError(f"{call.what}: the function is to return real numbers, found dtype {y.dtype}")
        if not order:
            return y, None
        v = None if y.size == 1 else [np.ones(y.shape, y.dtype)]  # without, one compiled call does it
        return y, grad_of_active([y], call.xs, v, order == 2)[0]

    def gradient(self) -> np.ndarray:
        """The gradient of the sum of the results."""
        return self._numbers(self._slope)

    def product(self, p: Operand) -> np.ndarray:
        """The derivative of the gradient along a direction."""
        return self._moved(self._slope, p)

    def hessian(self) -> np.ndarray:
        """The matrix of second derivatives."""
        slope = self._slope
        if slope is None or not requires_grad(slope):
            return np.zeros((self._call.xs[0].size,) * 2, self._call.xs[0].dtype)
        return value_of(rows_of(self._call, slope)[0])

    def jacobian(self) -> np.ndarray:
        """The matrix of derivatives, by rows."""
        return value_of(rows_of(self._call, self._y)[0]).reshape(self._y.size, -1)

    def products(self, v: Operand) -> Callable[[np.ndarray], np.ndarray]:
        """Return the Hessian of the results' sum with these weights, as a function of directions."""
        y = self._y
        weights = np.reshape(v, y.shape).astype(y.dtype)
        slope = self._call.recorded(lambda call: grad_of_active([y], call.xs, [weights], True)[0])
        return lambda p: self._moved(slope, p)

    def _moved(self, slope: Tensor | None, p: Operand) -> np.ndarray:
        if slope is None or not requires_grad(slope):
            return self._numbers(None)
        v = np.reshape(p, slope.shape).astype(slope.dtype)
        return self._numbers(grad_of_active([slope], self._call.xs, [v], False, retain_graph=True)[0])

    def _numbers(self, g: Tensor | None) -> np.ndarray:
        x = self._call.xs[0]
        return np.zeros(x.shape, x.dtype) if g is None else np.array(value_of(g))


class _Compiled:
    """A point of a function that Numba compiled."""

    def __init__(self, f: Callable[..., Operand], x: Operand, args: tuple[Operand, ...]) -> None:
        self._f, self._x, self._args = f, x, args
        self.value, self._gradient = value_and_grad(f)(x, *args)

    def gradient(self) -> TensorOrArray:
        """The gradient."""
        return np.array(self._gradient)

    def product(self, p: Operand) -> Any:
        """The derivative of the gradient along a direction."""
        return hvp(self._f)(self._x, *self._args, p)

    def hessian(self) -> TensorOrArray:
        """The matrix of second derivatives."""
        return hessian(self._f)(self._x, *self._args)


class _Programmed:
    """A point of a function that programs compute."""

    def __init__(
        self, what: str, f: Programmed, x: Operand, args: tuple[Operand, ...], kwargs: dict[str, Any]
    ) -> None:
        with differentiating(what):
            self.value, self._gradient = f.derivative("value_and_grad", 0)(x, *args, **kwargs)
        found = self.value, self._gradient
        _look_outside(what, any(map(needs_derivative, found)), any(map(has_tangent, found)))
        self.value, self._gradient = map(value_of, found)

    def gradient(self) -> np.ndarray:
        """The gradient."""
        return np.array(self._gradient)


class _Jacobian:
    """A point with a value, and what gives the Jacobian there."""

    def __init__(self, value: Operand, jacobian: Callable[[], Any]) -> None:
        self.value, self.jacobian = value, jacobian


class Function:
    """A function of x, and of more that is constant, called once at each point.

    Parameters
    ----------
    what
        For errors.
    f
        The user's.
    second
        Whether derivatives of the gradient will be asked for.
    number
        Whether its result is one number.
    """

    def __init__(
        self, what: str, f: Callable[..., Operand], second: bool = False, number: bool = True
    ) -> None:
        self._what, self._second = what, second
        self._native = compiled(f, what)
        self._f = on_tensors(f, what)
        self._programmed = f if isinstance(f, Programmed) and number and not second else None
        self._points: list[tuple[Any, Any]] = []

    def value(self, x: Operand, *args: float, **kwargs: Any) -> float:
        """What the function returned."""
        return self._at(x, args, kwargs).value

    def gradient(self, x: Operand, *args: float) -> np.ndarray:
        """The gradient; of a function of each element of its own, its derivatives."""
        return self._at(x, args, {}).gradient()[()]

    def product(self, x: Operand, p: Operand, *args: Operand) -> np.ndarray:
        """The Hessian times a direction."""
        return self._at(x, args, {}).product(p)

    def hessian(self, x: Operand, *args: Operand) -> np.ndarray:
        """The Hessian."""
        return self._at(x, args, {}).hessian()

    def curvature(self, x: Operand, *args: Operand) -> np.ndarray:
        """The second derivatives of a function of each element of its own."""
        return np.asarray(self._at(x, args, {}).product(np.ones(np.shape(x))[()]))[()]

    def _at(self, x: Operand, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Recorded:
        """The point x, where the function was called or is called now."""
        x = np.asarray(x)
        key = x.shape, x.dtype, x.tobytes()
        for k, (known, point) in enumerate(self._points):
            if known == key:
                if k:
                    self._points.insert(0, self._points.pop(k))
                return point
        del self._points[KEPT - 1 if self._second else 0 :]  # before another one takes memory
        point = self._called(x[()], args, kwargs)
        self._points.insert(0, (key, point))
        return point

    def _called(self, x: Operand, args: tuple[float, ...], kwargs: dict[str, Any]) -> Any:
        if self._native:
            return _Compiled(self._f, x, tuple(map(value_of, args)))
        if self._programmed is not None:
            return _Programmed(self._what, self._programmed, x, args, kwargs)
        return _Recorded(self._what, self._f, x, args, kwargs, 1 + self._second)


class Residual(Function):
    """A function with several results, and its Jacobian: by rows, by columns, or sparse.

    Parameters
    ----------
    what, f, second
        As of a `Function`.
    pattern
        Of a sparse Jacobian; True where it is to be found; "look" where it is to be found and used if few
        elements are other than 0; None for a dense one.
    """

    def __init__(
        self, what: str, f: Callable[..., Operand], pattern: Any = None, second: bool = False
    ) -> None:
        super().__init__(what, f, second)
        self._pattern = pattern
        self._plan: SparseJacobian | None = None
        self._form: Callable[..., Any] | None = None

    def jacobian(self, x: Operand, *args: Operand, **kwargs: Any) -> Any:
        """The Jacobian, an array or a sparse one."""
        return self._at(x, args, kwargs).jacobian()

    def lagrangian(self, x: Operand, v: Operand, *args: float) -> LinearOperator:
        """The Hessian of the results' sum with weights v."""
        n = np.size(x)
        return LinearOperator((n, n), self._at(x, args, {}).products(v), dtype=np.dtype(float))

    def _called(self, x: Operand, args: tuple[Operand, ...], kwargs: dict[str, Any]) -> Any:
        if self._form is not None:
            return self._form(x, args, kwargs)
        point = _Recorded(self._what, self._f, x, args, kwargs, 0)  # refuses Tensors from outside
        m, n = np.size(point.value), np.size(x)
        self._form = self._chosen(x, args, kwargs, m, n)
        return point if self._form == self._recorded else self._form(x, args, kwargs)

    def _chosen(
        self, x: Operand, args: tuple[Operand, ...], kwargs: dict[str, Any], m: int, n: int
    ) -> Callable[..., _Jacobian | _Recorded]:
        """How the Jacobian is computed from now on."""
        look = isinstance(self._pattern, str)
        if self._pattern is not None and (not look or n >= MANY):
            given = None if look or self._pattern is True else self._pattern
            self._plan = plan = SparseJacobian(self._joined(kwargs), given, "replan", True)
            if not look:
                return self._sparse
            plan.replan(x, *args)
            if plan.pattern.nnz <= SPARSE * m * n:
                return self._sparse
        if self._native and not self._second:
            return self._compiled
        return self._by_columns if m > n and not self._second else self._recorded

    def _joined(self, kwargs: dict[str, Any]) -> Callable[..., Operand]:
        """The function with these keywords, its result one array."""
        if self._native:
            return self._f
        return lambda x, *args: as_array(self._f(x, *args, **kwargs))

    def _recorded(self, x: np.ndarray, args: tuple[Operand, ...], kwargs: dict[str, Any]) -> _Recorded:
        return _Recorded(self._what, self._f, x, args, kwargs, 0)

    def _sparse(self, x: Operand, args: tuple[Operand, ...], kwargs: dict[str, Any]) -> _Jacobian:
        assert self._plan is not None
        return _Jacobian(*self._plan.value_and_matrix(x, *args))

    def _by_columns(self, x: np.ndarray, args: tuple[np.ndarray, ...], kwargs: dict[str, Any]) -> _Jacobian:
        f = self._joined(kwargs)
        value = Values(self._what, f)(x.copy(), *args)
        return _Jacobian(value, lambda: value_of(jacfwd(f)(x, *args)).reshape(np.size(value), -1))

    def _compiled(self, x: TensorOrArray, args: tuple[Operand, ...], kwargs: dict[str, Any]) -> _Jacobian:
        plain = tuple(map(value_of, args))
        value = as_array(self._f(x.copy(), *plain))
        return _Jacobian(value, lambda: jacobian(self._f)(x, *plain).reshape(np.size(value), -1))
