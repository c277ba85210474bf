"""Derivatives of functions of Tensors: products with vectors, Jacobians and Hessians."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from tapegrad.autograd import at_once
from tapegrad.autograd.backward import grad, grad_without_values
from tapegrad.autograd.forward_ad import dual_level, make_dual, unpack_dual
from tapegrad.core.base import has_tangent
from tapegrad.core.dispatch import as_tape_value
from tapegrad.core.grad_mode import enable_grad, inference_mode
from tapegrad.errors import GradientError, ShapeError
from tapegrad.numpy_api.shapes import moveaxis, stack
from tapegrad.tensor import Tensor, TensorOrArray, without_history, wrap

__all__ = ["hessian", "hvp", "jacobian", "jvp", "vhp", "vjp"]

Function = Callable[..., Any]
Tensors = tuple[Tensor, ...]
Inputs: TypeAlias = Tensor | Tensors
MODES = ("reverse-mode", "forward-mode")


# ---------------------------------------------------------------- arguments and results


def _tensors(x: Inputs, what: str) -> tuple[bool, Tensors]:
    """Return whether an argument is a tuple, and its Tensors."""
    several = isinstance(x, tuple)
    parts = x if isinstance(x, tuple) else (x,)
    for k, part in enumerate(parts):
        if not isinstance(part, Tensor):
            place = f", found {type(part).__name__} at {k}" if several else f", found {type(part).__name__}"
            more = "; tg.tensor makes one, tg.func takes arrays" if isinstance(part, np.ndarray) else ""
            raise TypeError(f"{what}: a Tensor or a tuple of Tensors is needed{place}{more}")
    return several, parts


def _filled(number: float, shape: tuple[int, ...], dtype: np.dtype) -> Tensor:
    return wrap(as_tape_value(np.full(shape, number, dtype)))


def _constant(x: Tensor) -> Tensor:
    """Return a Tensor without its history; tangents it carries stay."""
    return without_history(x) if has_tangent(x) else x.detach()


def _followed(xs: Tensors, create_graph: bool) -> Tensors:
    """Return other Tensors of the same values, by which what is computed from them has derivatives."""
    return tuple(
        x.reshape(x.shape) if create_graph and x.requires_grad else _constant(x).requires_grad_() for x in xs
    )


def _vector(v: Inputs | None, like: Tensors, create_graph: bool, name: str, of: str) -> Tensors:
    if v is None:
        if len(like) != 1 or like[0].size != 1:
            shapes = ", ".join(str(x.shape) for x in like)
            raise GradientError(f"{name}: without v there must be one {of} of one element, found {shapes}")
        return (_filled(1, like[0].shape, like[0].dtype),)
    _, found = _tensors(v, f"{name}, v")
    if len(found) != len(like):
        raise GradientError(f"{name}: v has {len(found)} Tensors for {len(like)} {of}s; give one for each")
    for k, (x, y) in enumerate(zip(found, like, strict=True)):
        if x.shape != y.shape:
            raise ShapeError(f"{name}: v[{k}] of shape {x.shape} for an {of} of shape {y.shape}")
    return tuple(x if create_graph and x.requires_grad else _constant(x) for x in found)


def _outputs(func: Function, xs: Tensors, name: str, strict: bool) -> tuple[bool, Tensors]:
    several, outputs = _tensors(func(*xs), f"{name}, what the function returned")
    for k, y in enumerate(outputs):
        if strict and not y.requires_grad:
            raise GradientError(f"{name}, strict: output {k} of the function does not depend on its inputs")
    return several, outputs


def _single(func: Function, xs: Tensors, name: str, strict: bool) -> Tensor:
    """The one output, of one element, of a function that has second derivatives."""
    several, outputs = _outputs(func, xs, name, strict)
    if several or outputs[0].size != 1:
        shapes = ", ".join(str(y.shape) for y in outputs)
        raise GradientError(f"{name}: the function must return one Tensor of one element, found {shapes}")
    return outputs[0]


def grad_of_active(
    outputs: Sequence[Tensor],
    inputs: Sequence[Tensor],
    v: Sequence[TensorOrArray] | None = None,
    create_graph: bool = False,
    without_values: bool = False,
    **rest: Any,
) -> tuple[Tensor | None, ...]:
    """As `grad`, of those outputs that require grad; perhaps recorded, and `without_values`."""
    if not (v or create_graph or without_values or rest):
        quick = at_once.gradients(outputs, None, inputs, False)  # as `grad` does, in fewer steps
        if quick is not None:
            return quick
    active = [y for y in outputs if y.requires_grad]
    if not active:
        return (None,) * len(inputs)
    vectors = None if v is None else [ct for ct, y in zip(v, outputs, strict=True) if y.requires_grad]
    if without_values:
        return grad_without_values(active, inputs, vectors)
    found: tuple[Tensor | None, ...] = grad(
        active, inputs, vectors, create_graph=create_graph, allow_unused=True, **rest
    )
    return found


def _whole(
    found: Sequence[Tensor | None], like: Tensors, name: str, what: str, strict: bool, create_graph: bool
) -> Tensors:
    """Zeros where there is no derivative; if `strict`, an error there and where no further one is."""
    for k, g in enumerate(found):
        if strict and g is None:
            raise GradientError(f"{name}, strict: the {what} {k}")
        if strict and create_graph and g is not None and not g.requires_grad:
            raise GradientError(
                f"{name}, strict with create_graph: the derivative is constant; the {what} {k}"
            )
    return tuple(_filled(0, x.shape, x.dtype) if g is None else g for g, x in zip(found, like, strict=True))


def _given_back(x: Sequence[Tensor], several: bool, create_graph: bool) -> Any:
    found = x if create_graph else tuple(_constant(y) for y in x)
    return found if several else found[0]


# ---------------------------------------------------------------- products with vectors


def vjp(
    func: Function, inputs: Inputs, v: Inputs | None = None, create_graph: bool = False, strict: bool = False
) -> tuple[Tensor, Tensor]:
    """Return the value of a function, and the product of a vector with its Jacobian.

    Parameters
    ----------
    func : callable
        Takes Tensors, returns a Tensor or a tuple of Tensors.
    inputs : Tensor or tuple of Tensor
        Where to differentiate.
    v : Tensor or tuple of Tensor, optional
        One for each output, of its shape; may be left out for one output of one element.
    create_graph : bool, optional
        Let the results have a history: they depend on inputs and v that require grad.
    strict : bool, optional
        Raise where an output does not depend on an input, instead of zeros.

    Returns
    -------
    outputs : Tensor or tuple of Tensor
        What the function returned.
    vjp : Tensor or tuple of Tensor
        As the inputs.

    Raises
    ------
    GradientError, ShapeError
        `v` is missing or does not fit; with `strict`, a derivative is missing.
    TypeError
        An argument or a result of the function is neither Tensor nor tuple of Tensors.

    Examples
    --------
    >>> import tapegrad as tg
    >>> x = tg.tensor([1.0, 2.0])
    >>> tg.autograd.functional.vjp(lambda x: x**2, x, tg.tensor([1.0, 10.0]))
    (tensor([1., 4.]), tensor([ 2., 40.]))
    """
    with inference_mode(False), enable_grad():
        several, given = _tensors(inputs, "vjp, inputs")
        xs = _followed(given, create_graph)
        packed, outputs = _outputs(func, xs, "vjp", strict)
        vector = _vector(v, outputs, create_graph, "vjp", "output")
        found = grad_of_active(outputs, xs, vector, create_graph)
        found = _whole(found, xs, "vjp", "outputs do not depend on input", strict, create_graph)
        return _given_back(outputs, packed, create_graph), _given_back(found, several, create_graph)


def jvp(
    func: Function, inputs: Inputs, v: Inputs | None = None, create_graph: bool = False, strict: bool = False
) -> tuple[Any, Any]:
    """Return the value of a function, and the product of its Jacobian with a vector.

    Both come from sweeps back, so that a function needs no rule for tangents; see
    `tapegrad.autograd.forward_ad` for the quicker way forward.

    Parameters
    ----------
    func, inputs, create_graph, strict
        As for `vjp`.
    v : Tensor or tuple of Tensor, optional
        One for each input, of its shape; may be left out for one input of one element.

    Returns
    -------
    outputs : Tensor or tuple of Tensor
        What the function returned.
    jvp : Tensor or tuple of Tensor
        As the outputs.

    Examples
    --------
    >>> import tapegrad as tg
    >>> x = tg.tensor([1.0, 2.0])
    >>> tg.autograd.functional.jvp(lambda x: (x**3).sum(), x, tg.tensor([1.0, 0.0]))
    (tensor(9.), tensor(3.))
    """
    with inference_mode(False), enable_grad():
        _, given = _tensors(inputs, "jvp, inputs")
        vector = _vector(v, given, create_graph, "jvp", "input")
        xs = _followed(given, create_graph)
        packed, outputs = _outputs(func, xs, "jvp", strict)
        dual = tuple(_filled(0, y.shape, y.dtype).requires_grad_() for y in outputs)
        pulled = grad_of_active(outputs, xs, dual, True)
        _whole(pulled, xs, "jvp", "outputs do not depend on input", strict, False)
        known = [k for k, g in enumerate(pulled) if g is not None]
        found = grad_of_active([pulled[k] for k in known], dual, [vector[k] for k in known], create_graph)  # type: ignore[misc]
        found = _whole(found, outputs, "jvp", "inputs do not move output", strict, create_graph)
        return _given_back(outputs, packed, create_graph), _given_back(found, packed, create_graph)


def vhp(
    func: Function, inputs: Inputs, v: Inputs | None = None, create_graph: bool = False, strict: bool = False
) -> tuple[Any, Any]:
    """Return the value of a function, and the product of a vector with its Hessian.

    Parameters
    ----------
    func : callable
        Takes Tensors, returns a Tensor of one element.
    inputs, create_graph, strict
        As for `vjp`; strict also where a derivative does not depend on an input.
    v : Tensor or tuple of Tensor, optional
        One for each input, of its shape; may be left out for one input of one element.

    Returns
    -------
    output : Tensor
        What the function returned.
    vhp : Tensor or tuple of Tensor
        As the inputs.

    Examples
    --------
    >>> import tapegrad as tg
    >>> x = tg.tensor([1.0, 2.0])
    >>> tg.autograd.functional.vhp(lambda x: (x**3).sum(), x, tg.tensor([1.0, 10.0]))
    (tensor(9.), tensor([  6., 120.]))
    """
    return _second("vhp", func, inputs, v, create_graph, strict)


def hvp(
    func: Function, inputs: Inputs, v: Inputs | None = None, create_graph: bool = False, strict: bool = False
) -> tuple[Any, Any]:
    """Return the value of a function, and the product of its Hessian with a vector.

    The Hessian is symmetric: it is computed as by `vhp`.

    Parameters
    ----------
    func, inputs, v, create_graph, strict
        As for `vhp`.

    Returns
    -------
    output : Tensor
        What the function returned.
    hvp : Tensor or tuple of Tensor
        As the inputs.

    Examples
    --------
    >>> import tapegrad as tg
    >>> x = tg.tensor([1.0, 2.0])
    >>> tg.autograd.functional.hvp(lambda x: (x**3).sum(), x, tg.tensor([1.0, 10.0]))
    (tensor(9.), tensor([  6., 120.]))
    """
    return _second("hvp", func, inputs, v, create_graph, strict)


def _second(
    name: str, func: Function, inputs: Inputs, v: Inputs | None, create_graph: bool, strict: bool
) -> tuple[Any, Any]:
    with inference_mode(False), enable_grad():
        several, given = _tensors(inputs, f"{name}, inputs")
        vector = _vector(v, given, create_graph, name, "input")
        xs = _followed(given, create_graph)
        output = _single(func, xs, name, strict)
        first = grad_of_active([output], xs, None if output.ndim == 0 else [np.ones(output.shape)], True)
        first = _whole(first, xs, name, "output does not depend on input", strict, strict)
        second = grad_of_active(first, xs, vector, create_graph)
        what = "derivatives do not depend on input"
        second = _whole(second, xs, name, what, strict, create_graph)
        return _given_back((output,), False, create_graph), _given_back(second, several, create_graph)


# ---------------------------------------------------------------- whole matrices


def jacobian(
    func: Function,
    inputs: Inputs,
    create_graph: bool = False,
    strict: bool = False,
    vectorize: bool = False,
    strategy: str = "reverse-mode",
) -> Any:
    """Return the Jacobian of a function.

    Parameters
    ----------
    func : callable
        Takes Tensors, returns a Tensor or a tuple of Tensors.
    inputs : Tensor or tuple of Tensor
        Where to differentiate.
    create_graph : bool, optional
        Let the Jacobian have a history: it depends on inputs that require grad.
    strict : bool, optional
        Raise where an output does not depend on an input, instead of zeros. Only for "reverse-mode" without
        `vectorize`.
    vectorize : bool, optional
        Compute all rows (or columns) in one sweep; the function is called once.
    strategy : {"reverse-mode", "forward-mode"}, optional
        By rows, one for each element of the outputs, or by columns, one for each element of the inputs;
        forward mode without `vectorize` calls the function for each of them.

    Returns
    -------
    Tensor, tuple of Tensor or tuple of tuple of Tensor
        Of shape ``output.shape + input.shape``, for each input, for each output where there are tuples.

    Raises
    ------
    GradientError
        `strict` found a derivative missing, or was asked for where it is not known.
    TypeError, ValueError
        An argument does not fit.

    Examples
    --------
    >>> import tapegrad as tg
    >>> x = tg.tensor([1.0, 2.0])
    >>> tg.autograd.functional.jacobian(lambda x: x**2, x)
    tensor([[2., 0.],
            [0., 4.]])
    """
    if strategy not in MODES:
        raise ValueError(
            f"jacobian: strategy is 'reverse-mode' or 'forward-mode', found {reprlib.repr(strategy)}"
        )
    several, given = _tensors(inputs, "jacobian, inputs")
    if strict and (vectorize or strategy == "forward-mode"):
        raise GradientError(
            "jacobian: strict=True goes with strategy='reverse-mode' and vectorize=False, where it is known "
            "what depends on what"
        )
    with inference_mode(False), enable_grad():
        if strategy == "forward-mode":
            packed, rows = _by_columns(func, given, create_graph, vectorize)
        else:
            packed, rows = _by_rows(func, given, create_graph, strict, vectorize)
        found = tuple(_given_back(row, several, create_graph) for row in rows)
        return found if packed else found[0]


def _units(x: Tensor) -> np.ndarray:
    """The unit vectors of a Tensor's space, one after the other."""
    return np.eye(x.size, dtype=x.dtype).reshape(x.size, *x.shape)


def _by_rows(
    func: Function, given: Tensors, create_graph: bool, strict: bool, vectorize: bool
) -> tuple[bool, list[Tensors]]:
    xs = _followed(given, create_graph)
    packed, outputs = _outputs(func, xs, "jacobian", strict)
    rows = []
    for k, y in enumerate(outputs):
        if y.dtype.kind == "c":
            raise GradientError(
                f"jacobian: output {k} is complex; differentiate its real and imaginary parts"
            )
        wholes = tuple(wrap(np.broadcast_to(np.zeros((), x.dtype), y.shape + x.shape)) for x in xs)
        if vectorize or y.size == 0:
            batch = {"is_grads_batched": True, "retain_graph": True}
            parts = grad_of_active([y], xs, [_units(y)], create_graph, **batch)
        else:
            single = [grad_of_active([y], xs, [unit], create_graph, retain_graph=True) for unit in _units(y)]
            for row in single:
                _whole(row, xs, "jacobian", f"output {k} does not depend on input", strict, create_graph)
            parts = tuple(
                None if column[0] is None else stack(column) for column in zip(*single, strict=True)
            )
        parts = tuple(
            None if part is None else part.reshape(y.shape + x.shape)
            for part, x in zip(parts, xs, strict=True)
        )
        rows.append(_whole(parts, wholes, "jacobian", "", False, False))
    return packed, rows


def _by_columns(
    func: Function, given: Tensors, create_graph: bool, vectorize: bool
) -> tuple[bool, list[Tensors]]:
    xs = tuple(x if create_graph else _constant(x) for x in given)
    for k, x in enumerate(xs):
        if x.dtype.kind == "c":
            raise GradientError(f"jacobian: input {k} is complex; differentiate by real and imaginary parts")
    sizes = [x.size for x in xs]
    starts = np.cumsum([0, *sizes])
    total = int(starts[-1])
    tangents = []
    for x, start in zip(xs, starts[:-1], strict=True):
        found = np.zeros((total, *x.shape), x.dtype)
        found[start : start + x.size] = _units(x)
        tangents.append(found)
    if vectorize or total == 0:
        packed, columns = _pushed(func, xs, tangents, total)
    else:
        passes = [_pushed(func, xs, [t[lane] for t in tangents], None) for lane in range(total)]
        packed = passes[0][0]
        columns = [stack(found) for found in zip(*(found for _, found in passes), strict=True)]
    rows = []
    for column in columns:
        moved = moveaxis(column, 0, -1)
        rows.append(
            tuple(
                moved[..., start : start + x.size].reshape(column.shape[1:] + x.shape)
                for x, start in zip(xs, starts[:-1], strict=True)
            )
        )
    return packed, rows


def _pushed(
    func: Function, xs: Tensors, tangents: Sequence[TensorOrArray], lanes: int | None
) -> tuple[bool, list[Tensor]]:
    """Call the function on duals; returns whether it gave a tuple, and the tangents."""
    with dual_level(lanes):
        duals = [make_dual(x, wrap(as_tape_value(t))) for x, t in zip(xs, tangents, strict=True)]
        packed, outputs = _outputs(func, tuple(duals), "jacobian", False)
        front = () if lanes is None else (lanes,)
        found = []
        for y in outputs:
            tangent = unpack_dual(y).tangent
            zeros = _filled(0, front + y.shape, y.dtype)
            found.append(zeros if tangent is None else tangent)
        return packed, found


def hessian(
    func: Function,
    inputs: Inputs,
    create_graph: bool = False,
    strict: bool = False,
    vectorize: bool = False,
    outer_jacobian_strategy: str = "reverse-mode",
) -> Any:
    """Return the Hessian of a function.

    Parameters
    ----------
    func : callable
        Takes Tensors, returns a Tensor of one element.
    inputs, create_graph, strict, vectorize
        As for `jacobian`, of the gradient.
    outer_jacobian_strategy : {"reverse-mode", "forward-mode"}, optional
        How the gradient, which is computed in reverse mode, is differentiated.

    Returns
    -------
    Tensor or tuple of tuple of Tensor
        Of shape ``input.shape + input.shape``, for each pair of inputs where these are a tuple.

    Examples
    --------
    >>> import tapegrad as tg
    >>> x = tg.tensor([1.0, 2.0])
    >>> tg.autograd.functional.hessian(lambda x: (x**3).sum(), x)
    tensor([[ 6.,  0.],
            [ 0., 12.]])
    """
    if outer_jacobian_strategy not in MODES:
        raise ValueError(
            "hessian: outer_jacobian_strategy is 'reverse-mode' or 'forward-mode', found "
            f"{reprlib.repr(outer_jacobian_strategy)}"
        )
    several, given = _tensors(inputs, "hessian, inputs")

    def gradient(*xs: Tensor) -> Tensors:
        mine = _followed(xs, True)
        output = _single(func, mine, "hessian", strict)
        found = grad_of_active([output], mine, None if output.ndim == 0 else [np.ones(output.shape)], True)
        return _whole(found, mine, "hessian", "output does not depend on input", strict, strict)

    rows = jacobian(gradient, given, create_graph, strict, vectorize, outer_jacobian_strategy)
    return rows if several else rows[0][0]
