"""Functions of JAX's arrays, and functions of ours for JAX."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np

from tapegrad import func
from tapegrad.errors import DTypeError, ShapeError
from tapegrad.func.trees import flatten, map_tree
from tapegrad.interop.bridge import Function, Spread, named, plain, title_of, with_rule
from tapegrad.tensor import Operand


def to_jax(f: Function, result: Any = None) -> Function:
    """Return a function of JAX's arrays whose value and derivatives are those of a function of arrays.

    Parameters
    ----------
    f : callable
        Of arrays and trees of them, plain or of `tapegrad.njit`.
    result : tree of arrays, optional
        What has the shapes and dtypes of what `f` returns, such as `jax.ShapeDtypeStruct`; JAX has to know
        them before `f` is called. By default it is one number, of the dtype that the arguments are promoted
        to.

    Returns
    -------
    callable
        Of positional arguments; for `jax.jit`, `jax.vmap` (one call after another), `jax.grad`, `jax.vjp`,
        `jax.jacrev` and these of these. There is no forward mode: a Hessian is ``jacrev(jacrev(f))``, or
        ``to_jax(tg.func.hessian(f), result)``.

    Raises
    ------
    ShapeError
        `f` returned another shape than was said.

    Notes
    -----
    It is a `jax.custom_vjp` around a `jax.pure_callback`. The gradient of one number is one callback, of
    other results it is one more, in which `f` is called again.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg
    >>> energy = tg.interop.to_jax(lambda x: np.sum(x**3))  # doctest: +SKIP
    >>> jax.jit(jax.grad(energy))(jnp.array([1.0, 2.0]))  # doctest: +SKIP
    Array([ 3., 12.], dtype=float32)
    """
    jax = import_module("jax")
    title = title_of("to_jax", f)

    def run(*args: Any) -> Any:
        shapes = _result_of(args, result)

        def host(*args: Any) -> Any:
            return _fitting(title, f(*jax.tree.map(lambda x: np.asarray(x)[()], args)), shapes)

        return jax.pure_callback(host, shapes, *args, vmap_method="sequential")

    function = jax.custom_vjp(run)

    def pull(args: Any, ct: Any) -> Any:
        spread, spots = _spread(f, args)
        return _conjugated(func.vjp(spread, spots)(*flatten(args)[0])[1](_conjugated(ct)))

    def value_and_pull(*args: Any) -> Any:
        spread, spots = _spread(f, args)
        value, found = func.value_and_grad(spread, spots)(*flatten(args)[0])
        return value, _conjugated(found)

    def forward(*args: Any) -> Any:
        shapes, likes = _result_of(args, result), _likes(args)
        if (
            likes
            and isinstance(shapes, jax.ShapeDtypeStruct)
            and shapes.shape == ()
            and shapes.dtype.kind == "f"
        ):
            value, gradient = to_jax(value_and_pull, (shapes, likes))(*args)
            return value, (args, gradient)
        return function(*args), (args, None)

    def backward(kept: Any, ct: Any) -> Any:
        args, gradient = kept
        likes = _likes(args)
        if gradient is not None:
            found = [ct * g for g in gradient]
        else:
            found = to_jax(pull, likes)(args, ct) if likes else []
        leaves, structure = flatten(args)
        out = [np.zeros(np.shape(x), jax.dtypes.float0) for x in leaves]
        for k, g in zip(_spots(leaves), found, strict=True):
            out[k] = jax.numpy.asarray(g, leaves[k].dtype)
        return structure.build(out)

    function.defvjp(forward, backward)
    return named(title, lambda *args: function(*args))


def _inexact(x: Operand) -> bool:
    jnp = import_module("jax.numpy")
    return bool(jnp.issubdtype(jnp.result_type(x), jnp.inexact))


def _spots(leaves: list[Any]) -> tuple[int, ...]:
    """Where there is something to differentiate by."""
    return tuple(k for k, x in enumerate(leaves) if _inexact(x))


def _spread(f: Function, args: Any) -> tuple[Function, tuple[int, ...]]:
    """A function of the leaves of the arguments, and where there is something to differentiate by."""
    leaves, structure = flatten(args)
    return Spread(f, leaves, structure, range(len(leaves))), _spots(leaves)


def _like(x: Operand) -> Any:
    """Shape and dtype of an array, a number or what has them."""
    jax = import_module("jax")
    dtype = x.dtype if hasattr(x, "dtype") else jax.numpy.result_type(x)
    return jax.ShapeDtypeStruct(np.shape(x), jax.dtypes.canonicalize_dtype(dtype))


def _likes(args: Any) -> tuple[Any, ...]:
    leaves, _ = flatten(args)
    return tuple(_like(leaves[k]) for k in _spots(leaves))


def _result_of(args: Any, result: Any) -> Any:
    """What a function returns, as JAX is to be told."""
    jax = import_module("jax")
    if result is not None:
        return jax.tree.map(_like, result)
    numbers = _likes(args)
    return jax.ShapeDtypeStruct(
        (), jax.numpy.result_type(*numbers) if numbers else jax.numpy.result_type(float)
    )


def _conjugated(tree: Any) -> Any:
    """JAX's cotangents of complex numbers are the conjugates of ours."""
    return map_tree(lambda x: np.conj(x) if np.iscomplexobj(x) else x, tree)


def _fitting(title: str, found: Any, shapes: Any) -> Any:
    """What a function returned, as JAX was told that it would be."""
    leaves, structure = flatten(found)
    wanted, theirs = flatten(shapes)
    pairs = list(zip(leaves, wanted, strict=False))
    if structure != theirs or any(
        np.shape(y) != x.shape or np.iscomplexobj(y) > (x.dtype.kind == "c") for y, x in pairs
    ):
        raise ShapeError(
            f"{title}: the function returned {[(np.asarray(y).dtype.name, np.shape(y)) for y in leaves]}, "
            f"and JAX was told {[(x.dtype.name, x.shape) for x in wanted]}; give result=, a tree with the "
            "shapes and dtypes of what it returns"
        )
    return structure.build(
        [plain(title, y).astype(like.dtype) for y, like in zip(leaves, wanted, strict=True)]
    )


def from_jax(f: Function, jit: bool = True) -> Function:
    """Return a function of Tensors and arrays whose value and derivatives are those of a function of JAX's.

    Parameters
    ----------
    f : callable
        Of JAX's arrays and trees of them; returns an array or a tree of these.
    jit : bool, optional
        Whether `f` and its derivatives are compiled by `jax.jit`.

    Returns
    -------
    callable
        Takes Tensors, arrays and numbers, by position. Derivatives are those of JAX, to any order, in both
        modes.

    Raises
    ------
    DTypeError
        An argument is of double precision, and JAX would round it to single.

    Notes
    -----
    A rule keeps nothing of JAX's: a derivative computes `f` again.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg
    >>> f = tg.interop.from_jax(jax.nn.logsumexp)  # doctest: +SKIP
    >>> x = tg.tensor(np.zeros(2, np.float32), requires_grad=True)  # doctest: +SKIP
    >>> tg.grad(f(x), x)  # doctest: +SKIP
    (tensor([0.5000, 0.5000], dtype=float32),)
    """
    jax = import_module("jax")
    jnp = import_module("jax.numpy")

    title = title_of("from_jax", f)
    compiled = jax.jit(f) if jit else f

    def values(*args: Any) -> Any:
        for x in flatten(args)[0]:
            if jax.dtypes.canonicalize_dtype(np.asarray(x).dtype) != np.asarray(x).dtype and _inexact(x):
                raise DTypeError(
                    f"{title}: JAX would round {np.asarray(x).dtype} to single precision; "
                    'jax.config.update("jax_enable_x64", True), or pass arrays of single precision'
                )
        return map_tree(lambda y: np.array(y)[()], compiled(*args))

    def pull(args: Any, ct: Any) -> Any:
        leaves, structure = flatten(args)
        spots = _spots(leaves)
        spread = Spread(f, leaves, structure, spots)
        ys, pullback = jax.vjp(spread, *[leaves[k] for k in spots])
        of, shape = flatten(ys)
        cts = [
            jnp.conj(c).astype(y.dtype) if _inexact(y) else np.zeros(y.shape, jax.dtypes.float0)
            for c, y in zip(flatten(ct)[0], of, strict=True)
        ]
        out = [None] * len(leaves)
        for k, g in zip(spots, pullback(shape.build(cts)), strict=True):
            out[k] = jnp.conj(g)
        return structure.build(out)

    return with_rule(title, values, pull, lambda other: from_jax(other, jit))
