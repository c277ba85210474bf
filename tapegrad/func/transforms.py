"""Gradients, and products of derivatives with vectors, of functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, overload

import numpy as np

from tapegrad.autograd.functional import grad_of_active
from tapegrad.core.base import like_of
from tapegrad.errors import GradientError
from tapegrad.func import tangents
from tapegrad.func.calls import Call, tensors_of, transformed, vector
from tapegrad.func.signatures import Function, Gradient, ValueAndGradient
from tapegrad.func.trees import Tree, flatten
from tapegrad.tensor import Operand, Tensor

__all__ = [
    "ggnvp", "grad", "gradient_of", "hvp", "hvp_of", "jvp", "linearize", "pull_number", "value_and_grad",
    "value_and_gradient_of", "vhp", "vjp",
]  # fmt: skip


@overload
def value_and_grad(
    f: Function, argnums: Literal[0] = 0, has_aux: Literal[False] = False
) -> ValueAndGradient: ...
@overload
def value_and_grad(f: Function, argnums: int | Sequence[int] = 0, has_aux: bool = False) -> Function: ...
def value_and_grad(f: Function, argnums: int | Sequence[int] = 0, has_aux: bool = False) -> Function:
    """Return a function of the value and the gradient of a function.

    Parameters
    ----------
    f : callable
        Of arrays, numbers, Tensors, or nested dicts, lists, tuples, named tuples and dataclasses of them; its
        result has one element. Or a function compiled by `tapegrad.njit` or `numba.njit`: what is returned
        is compiled then, and a Newton or Monte-Carlo loop around it can be compiled whole.
    argnums : int or sequence of int, optional
        The arguments, given by position, that it is differentiated by. Integers of Python's count as floats;
        arrays of integers are refused.
    has_aux : bool, optional
        The function returns ``(value, aux)``, where aux is not differentiated.

    Returns
    -------
    callable
        Of the arguments of `f`: ``(value, gradient)``, with aux ``((value, aux), gradient)``. The gradient is
        built as the argument is, with arrays for arrays and floats for numbers; a tuple of gradients for a
        sequence of `argnums`, but of a compiled function and one position the gradient itself. That by a
        complex argument z is dL/d(re z) + i dL/d(im z), as of `tapegrad.grad`. Where an argument is a Tensor,
        or the function uses other Tensors that require grad, results are Tensors, and can be differentiated
        on.

    Raises
    ------
    GradientError, ShapeError
        At a call: the result is no single real number.
    TypeError, DTypeError
        An argument cannot be differentiated by.
    UnsupportedOpError
        A line of the function has no derivative here.

    Notes
    -----
    The function is called with Tensors of its own, which it may write to; nothing that it has recorded
    remains. Calls nest to any depth, also those of different transformations.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg
    >>> def loss(p, x):
    ...     return np.sum((p["a"] * x + p["b"]) ** 2)
    >>> tg.func.value_and_grad(loss)({"a": np.array([1.0, 2.0]), "b": 3.0}, np.array([1.0, 0.5]))
    (32.0, {'a': array([8., 4.]), 'b': 16.0})

    Compiled, with the same result:

    >>> @tg.njit
    ... def norm(x):
    ...     s = 0.0
    ...     for v in x:
    ...         s += v * v
    ...     return s
    >>> tg.func.value_and_grad(norm)(np.array([1.0, 2.0]))
    (5.0, array([2., 4.]))
    """
    quick = "" if has_aux else "value_and_grad"  # what compiled functions have
    how = Call.recorded, value_and_gradient_of, has_aux
    return transformed("value_and_grad", f, argnums, *how, native=quick, program=quick)


@overload
def grad(f: Function, argnums: Literal[0] = 0, has_aux: Literal[False] = False) -> Gradient: ...
@overload
def grad(f: Function, argnums: int | Sequence[int] = 0, has_aux: bool = False) -> Function: ...
def grad(f: Function, argnums: int | Sequence[int] = 0, has_aux: bool = False) -> Function:
    """Return a function of the gradient of a function.

    Parameters
    ----------
    f, argnums, has_aux
        As for `value_and_grad`.

    Returns
    -------
    callable
        Of the arguments of `f`: the gradient, with aux ``(gradient, aux)``; see `value_and_grad`.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg
    >>> def f(x):
    ...     return np.sum(x**3)
    >>> tg.func.grad(f)(np.array([1.0, 2.0]))
    array([ 3., 12.])
    >>> tg.func.grad(tg.func.grad(f))(2.0)
    12.0
    >>> @tg.njit
    ... def cube(x):
    ...     return x**3
    >>> tg.func.grad(cube)(2.0)
    12.0
    """
    quick = "" if has_aux else "grad"
    return transformed("grad", f, argnums, Call.recorded, gradient_of, has_aux, native=quick, program=quick)


def value_and_gradient_of(call: Call, has_aux: bool = False) -> Any:
    """What `value_and_grad` gives of a call, where operations are recorded."""
    y, aux = call.outputs(has_aux)
    gradient = call.tree(call.gradients(pull_number(call, y)))
    value = call.given_back(y, call.outside)
    return ((value, call.given_back(aux, call.outside)) if has_aux else value), gradient


def gradient_of(call: Call, has_aux: bool = False) -> Tree:
    """What `grad` gives of a call."""
    y, aux = call.outputs(has_aux)
    gradient = call.tree(call.gradients(pull_number(call, y)))
    return (gradient, call.given_back(aux, call.outside)) if has_aux else gradient


def pull_number(call: Call, y: Operand, on_the_way: bool = False) -> tuple[Tensor | None, ...]:
    """The derivatives of what has one element by each leaf of the arguments.

    Those that are `on_the_way` are differentiated further, and have no values that nothing reads.
    """
    if isinstance(y, Tensor) and like_of(y).size == 1:
        return grad_of_active([y], call.xs, None, call.outside, without_values=on_the_way)
    if not isinstance(y, (tuple, list, dict)) and np.size(y) == 1:
        tensors_of(call.what, y)  # refuses what may hide a Tensor
        return (None,) * len(call.xs)
    found = f"shape {np.shape(y)}" if hasattr(y, "shape") else type(y).__name__
    raise GradientError(
        f"{call.what}: the function is to return one number, found {found}; reduce it (np.sum), take "
        "jacobian or vjp, or, where it returns (value, aux), tg.func's transform with has_aux=True"
    )


# ---------------------------------------------------------------- products with vectors


def vjp(f: Function, argnums: int | Sequence[int] = 0, has_aux: bool = False) -> Function:
    """Return a function of the value of a function, and of the products of vectors with its Jacobian there.

    Parameters
    ----------
    f, argnums, has_aux
        As for `value_and_grad`; `f` may return any array, or a nested container of arrays. A compiled
        function returns numbers, arrays, or tuples of such.

    Returns
    -------
    callable
        Of the arguments of `f`: ``(value, pullback)``, with aux ``(value, pullback, aux)``. The pullback
        takes a cotangent built as the value, and gives the product as gradients are given; it may be called
        again and again without another call of `f`. What it needs lives as long as it does. That of a
        compiled function can be made and called in compiled code, and differentiated there.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg
    >>> value, pullback = tg.func.vjp(lambda x: x**2)(np.array([1.0, 2.0]))
    >>> value, pullback(np.array([1.0, 10.0])), pullback(np.array([0.0, 1.0]))
    (array([1., 4.]), array([ 2., 40.]), array([0., 4.]))

    In compiled code, of two results:

    >>> @tg.njit
    ... def sums(x):
    ...     return np.sum(x), np.sum(x**2)
    >>> pull = tg.func.vjp(sums)
    >>> @tg.njit
    ... def both(x):
    ...     value, pullback = pull(x)
    ...     return pullback((1.0, 0.0)), pullback((0.0, value[1]))
    >>> both(np.array([1.0, 2.0]))
    (array([1., 1.]), array([10., 20.]))
    """
    native = "" if has_aux else "pullback.vjp"
    return transformed("vjp", f, argnums, Call.recorded, _vjp, has_aux, native=native)


def _vjp(call: Call, has_aux: bool) -> Any:
    found, aux = call.outputs(has_aux)
    ys, structure = tensors_of(call.what, found)
    call.keep_apart(ys)

    def pullback(cotangent: Tree) -> Tree:
        leaves, theirs = flatten(cotangent)
        if theirs != structure:
            raise TypeError("vjp: a cotangent is built as the function's value, with other leaves")
        cts = [vector("vjp: cotangent", ct, y) for ct, y in zip(leaves, ys, strict=True)]
        return call.tree(call.gradients(call.pulled(ys, cts)))

    value = call.given_back(found, call.outside)
    return (value, pullback, call.given_back(aux, call.outside)) if has_aux else (value, pullback)


def jvp(
    f: Function, argnums: int | Sequence[int] = 0, has_aux: bool = False, batched: bool = False
) -> Function:
    """Return a function of the value of a function, and of its derivative along a direction.

    Parameters
    ----------
    f, argnums, has_aux
        As for `value_and_grad`; `f` may return any array, or a nested container of arrays. A compiled
        function returns numbers, arrays, or tuples of such.
    batched : bool, optional
        There are several directions, along an axis in front of an argument's own, and as many tangents of
        each result, along an axis in front. A compiled function takes four of them at a time.

    Returns
    -------
    callable
        Of the arguments of `f` and, last, a direction built as the argument, or a tuple of them:
        ``(value, tangent)``, with aux ``(value, tangent, aux)``.

    Notes
    -----
    A plain function is recorded, and its records are swept. Where that is not the way (arguments of more than
    32,768 elements, more than 4,096 operations or 16 MiB of results, rules of users, gradients without a
    graph, modes that it switches) it is called again, in forward mode (`tapegrad.autograd.forward_ad`), which
    keeps no record.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg
    >>> tg.func.jvp(lambda x: x**2)(np.array([1.0, 2.0]), np.array([1.0, 10.0]))
    (array([1., 4.]), array([ 2., 40.]))
    >>> @tg.njit
    ... def cube(x):
    ...     return x**3
    >>> tg.func.jvp(cube)(2.0, 1.0)
    (8.0, 12.0)
    >>> tg.func.jvp(cube, batched=True)(2.0, np.array([1.0, 0.5, 0.0]))
    (8.0, array([12.,  6.,  0.]))
    """
    native = "" if has_aux else "columns.jvp_batched" if batched else "columns.jvp"
    return transformed("jvp", f, argnums, _jvp, has_aux, batched, directed=True, native=native)


def _jvp(call: Call, has_aux: bool, batched: bool) -> Any:
    pushed = tangents.along(call, has_aux, batched)
    tangent = pushed.structure.build([call.given_back(t, True) for t in pushed.tangents])
    value = call.given_back(pushed.found, call.outside)
    return (value, tangent, call.given_back(pushed.aux, call.outside)) if has_aux else (value, tangent)


def linearize(f: Function, argnums: int | Sequence[int] = 0, has_aux: bool = False) -> Function:
    """Return a function of the value of a function, and of its derivative there as a linear function.

    Parameters
    ----------
    f, argnums, has_aux
        As for `vjp`.

    Returns
    -------
    callable
        Of the arguments of `f`: ``(value, pushforward)``, with aux ``(value, pushforward, aux)``. The
        pushforward takes a direction built as the argument, or a tuple of them, and gives the derivative of
        the value along it, without another call of `f`. What it needs lives as long as it does.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg
    >>> value, pushforward = tg.func.linearize(lambda x: x**2)(np.array([1.0, 2.0]))
    >>> value, pushforward(np.array([1.0, 10.0])), pushforward(np.array([0.0, 1.0]))
    (array([1., 4.]), array([ 2., 40.]), array([0., 4.]))
    """
    return transformed("linearize", f, argnums, Call.recorded, _linearize, has_aux)


def _linearize(call: Call, has_aux: bool) -> Any:
    found, aux = call.outputs(has_aux)
    ys, structure = tensors_of(call.what, found)
    push = tangents.pushforward(call, ys)

    def pushforward(v: Operand) -> Tree:
        return structure.build([call.given_back(t, True) for t in push(call.direction(v))])

    value = call.given_back(found, call.outside)
    return (value, pushforward, call.given_back(aux, call.outside)) if has_aux else (value, pushforward)


# ---------------------------------------------------------------- second derivatives


@overload
def hvp(f: Function, argnums: Literal[0] = 0) -> Gradient: ...
@overload
def hvp(f: Function, argnums: int | Sequence[int] = 0) -> Function: ...
def hvp(f: Function, argnums: int | Sequence[int] = 0) -> Function:
    """Return a function of the Hessian of a function times a direction.

    Parameters
    ----------
    f, argnums
        As for `value_and_grad`.

    Returns
    -------
    callable
        Of the arguments of `f` and, last, a direction built as the argument, or a tuple of them: the product,
        built alike. It is the derivative of the gradient, recorded, so the Hessian is nowhere; of the
        gradient itself only what its derivative reads is computed.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg
    >>> def f(x):
    ...     return x[0] ** 2 * x[1]
    >>> tg.func.hvp(f)(np.array([1.0, 3.0]), np.array([1.0, 0.0]))
    array([6., 2.])
    >>> tg.func.hvp(tg.njit(f))(np.array([1.0, 3.0]), np.array([1.0, 0.0]))
    array([6., 2.])
    """
    return transformed("hvp", f, argnums, Call.recorded, hvp_of, directed=True, native="hvp", program="hvp")


@overload
def vhp(f: Function, argnums: Literal[0] = 0) -> Gradient: ...
@overload
def vhp(f: Function, argnums: int | Sequence[int] = 0) -> Function: ...
def vhp(f: Function, argnums: int | Sequence[int] = 0) -> Function:
    """Return a function of a direction times the Hessian of a function, which is symmetric: as `hvp`.

    Parameters
    ----------
    f, argnums
        As for `value_and_grad`.

    Returns
    -------
    callable
        As of `hvp`.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg
    >>> tg.func.vhp(lambda x: np.sum(x**3))(np.array([1.0, 2.0]), np.array([1.0, 10.0]))
    array([  6., 120.])
    """
    return transformed("vhp", f, argnums, Call.recorded, hvp_of, directed=True, native="hvp", program="vhp")


def hvp_of(call: Call) -> Any:
    """What `hvp` gives of a call."""
    return call.tree(pull_twice(call, call.outputs(False)[0]))


def pull_twice(call: Call, y: Operand) -> list[Operand]:
    """The Hessian of what has one element times the direction of the call, by leaves of the arguments."""
    vs = call.direction(call.v, copied=call.outside)
    pairs = [(g, v) for g, v in zip(pull_number(call, y, True), vs, strict=True) if g is not None]
    return call.gradients(call.pulled([g for g, _ in pairs], [v for _, v in pairs], retain=None))


def ggnvp(f: Function, loss: Function, argnums: int | Sequence[int] = 0) -> Function:
    """Return a function of the Gauss-Newton matrix of ``loss(f(x))`` times a direction.

    That is J' H J v with the Jacobian J of `f` and the Hessian H of `loss`: what is left of the Hessian of
    the whole without the second derivatives of `f`, positive semidefinite where `loss` is convex.

    Parameters
    ----------
    f, argnums
        As for `vjp`.
    loss : callable
        Of the value of `f`, gives one number.

    Returns
    -------
    callable
        Of the arguments of `f` and, last, a direction built as the argument, or a tuple of them: the product,
        built alike. It calls `f` once.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg
    >>> product = tg.func.ggnvp(np.sin, lambda y: np.sum(y**2))
    >>> product(np.array([0.0, 1.0]), np.array([1.0, 1.0]))
    array([2.        , 0.58385316])
    """
    return transformed("ggnvp", f, argnums, Call.recorded, _ggnvp, hvp(loss), directed=True)


def _ggnvp(call: Call, curvature: Function) -> Operand:
    found, _ = call.outputs(False)
    ys, structure = tensors_of(call.what, found)
    value = call.given_back(found, call.outside)
    moved = tangents.pushforward(call, ys)(call.direction(call.v))
    pushed = structure.build([call.given_back(t, True) for t in moved])
    cts = [vector("ggnvp", ct, y) for ct, y in zip(flatten(curvature(value, pushed))[0], ys, strict=True)]
    return call.tree(call.gradients(call.pulled(ys, cts, retain=None)))
