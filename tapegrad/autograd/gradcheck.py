"""Analytical derivatives against central differences."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tapegrad.autograd.backward import grad
from tapegrad.errors import GradcheckError
from tapegrad.grad_mode import no_grad
from tapegrad.tensor import Tensor, tensor

__all__ = ["gradcheck", "gradgradcheck"]


def gradcheck(
    func: Callable[..., Any],
    inputs: Any,
    *,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    raise_exception: bool = True,
    nondet_tol: float = 0.0,
) -> bool:
    """Compare the gradients of a function with central differences; complex numbers by both parts.

    Parameters
    ----------
    func : callable
        Takes Tensors, returns a Tensor or a tuple of them.
    inputs : Tensor or sequence of Tensor
        Where to check; those that require grad are varied.
    eps, atol, rtol : float, optional
        Step of the differences; allowed is ``atol + rtol * abs(numerical)``.
    raise_exception : bool, optional
        Raise on a mismatch, or return False.
    nondet_tol : float, optional
        Allowed difference between two sweeps over the same inputs.

    Returns
    -------
    bool

    Raises
    ------
    GradcheckError
        A derivative differs.
    ValueError
        No input requires grad.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg
    >>> x = tg.tensor([0.5, 1.5], requires_grad=True)
    >>> tg.gradcheck(np.sin, x)
    True
    """
    given = [inputs] if isinstance(inputs, Tensor) else list(inputs)
    varied = [k for k, x in enumerate(given) if isinstance(x, Tensor) and x.requires_grad]
    if not varied:
        raise ValueError("gradcheck: no input requires grad")
    for k in varied:
        if any(given[k] is given[j] for j in range(k)):  # each place is varied by itself
            given[k] = given[k].detach().requires_grad_()
    for k in varied:
        if given[k].dtype.char not in "dD":
            warnings.warn(
                f"gradcheck: input {k} has dtype {given[k].dtype}; differences need float64",
                UserWarning,
                stacklevel=2,
            )
        if given[k].size and any(
            s == 0 and n > 1 for s, n in zip(given[k].strides, given[k].shape, strict=True)
        ):
            raise GradcheckError(f"gradcheck: input {k} repeats elements of its memory; pass a copy")
    try:
        for place, output in enumerate(_outputs(func(*given))):
            if output.dtype.kind in "fc":
                _check_output(func, given, varied, place, eps, atol, rtol, nondet_tol)
    except GradcheckError:
        if raise_exception:
            raise
        return False
    return True


def _direction(random: Any, output: Tensor) -> Any:
    found = random.normal(size=output.shape)
    if output.dtype.kind == "c":
        found = found + 1j * random.normal(size=output.shape)
    return np.asarray(found).astype(output.dtype)


def _outputs(result: Any) -> tuple[Tensor, ...]:
    return (result,) if isinstance(result, Tensor) else tuple(x for x in result if isinstance(x, Tensor))


def _check_output(
    func: Callable[..., Any], given: list[Any], varied: list[int], place: int,
    eps: float, atol: float, rtol: float, nondet_tol: float,
) -> None:  # fmt: skip
    output = _outputs(func(*given))[place]
    targets = [given[k] for k in varied]
    numerical = [_differences(func, given, k, place, eps) for k in varied]
    if not output.requires_grad:
        analytical = [np.zeros(x.shape) for x in numerical]
    else:
        analytical = _jacobians(output, targets)
        again = _jacobians(output, targets)
        for k, a, b in zip(varied, analytical, again, strict=True):
            if not np.allclose(a, b, rtol=0, atol=nondet_tol, equal_nan=True):
                raise GradcheckError(f"gradcheck: two sweeps differ for input {k}, output {place}")
        zero = grad(output, targets, np.zeros(output.shape), retain_graph=True, allow_unused=True)
        if any(g is not None and np.any(np.nan_to_num(g.detach().numpy()) != 0) for g in zero):
            raise GradcheckError(f"gradcheck: a zero gradient of output {place} gives one that is not zero")
    for k, a, n in zip(varied, analytical, numerical, strict=True):
        wrong = ~(np.abs(a - n) <= atol + rtol * np.abs(n))
        if wrong.any():
            at = np.unravel_index(int(np.argmax(wrong)), wrong.shape)
            raise GradcheckError(
                f"gradcheck: derivative of output {place}, element {int(at[0])}, by input {k}, element "
                f"{int(at[1])}, is {a[at]!r}, by differences {n[at]!r}"
            )


def _jacobians(output: Tensor, targets: Sequence[Tensor]) -> list[Any]:
    """One sweep per number of the output: arrays (numbers of output, numbers of input)."""
    rows: list[list[Any]] = [[] for _ in targets]
    seed = np.zeros(output.size, output.dtype)
    for i in range(_numbers(seed).size):
        seed[:] = 0
        _numbers(seed)[i] = 1
        found = grad(output, targets, seed.reshape(output.shape), retain_graph=True, allow_unused=True)
        for row, g, x in zip(rows, found, targets, strict=True):
            row.append(_numbers(np.zeros(x.shape, x.dtype) if g is None else np.array(g.detach().numpy())))
    count = _numbers(seed).size
    return [
        np.array(row).reshape(count, _numbers(np.zeros(x.size, x.dtype)).size)
        for row, x in zip(rows, targets, strict=True)
    ]


def _numbers(array: Any) -> Any:
    """The elements as real numbers: of a complex one its parts."""
    return array.reshape(-1).view(array.real.dtype)


def _differences(func: Callable[..., Any], given: list[Any], k: int, place: int, eps: float) -> Any:
    base = np.array(given[k].detach().numpy())
    columns = []
    for i in range(_numbers(base).size):
        sides = []
        for sign in (1, -1):
            moved = base.copy()
            _numbers(moved)[i] += sign * eps
            args = list(given)
            args[k] = tensor(moved).requires_grad_()
            with no_grad():
                found = _outputs(func(*args))[place]
            sides.append(_numbers(np.array(found.detach().numpy())).astype(float))
        columns.append((sides[0] - sides[1]) / (2 * eps))
    size = _numbers(np.array(_outputs(func(*given))[place].detach().numpy())).size
    return np.array(columns).T.reshape(size, _numbers(base).size)


def gradgradcheck(
    func: Callable[..., Any],
    inputs: Any,
    grad_outputs: Any = None,
    *,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    raise_exception: bool = True,
    nondet_tol: float = 0.0,
) -> bool:
    """Compare second derivatives with central differences of the first.

    Parameters
    ----------
    func, inputs, eps, atol, rtol, raise_exception, nondet_tol
        As for `gradcheck`.
    grad_outputs : Tensor or sequence of Tensor, optional
        Cotangents of the outputs; random ones by default. They are varied too.

    Returns
    -------
    bool

    Examples
    --------
    >>> import numpy as np, tapegrad as tg
    >>> x = tg.tensor([0.5, 1.5], requires_grad=True)
    >>> tg.gradgradcheck(np.sin, x)
    True
    """
    given = [inputs] if isinstance(inputs, Tensor) else list(inputs)
    outputs = [o for o in _outputs(func(*given)) if o.requires_grad]
    if grad_outputs is None:
        random = np.random.default_rng(0)
        cotangents = [tensor(_direction(random, o), requires_grad=True) for o in outputs]
    else:
        listed = [grad_outputs] if isinstance(grad_outputs, Tensor) else list(grad_outputs)
        for c in listed:
            if not isinstance(c, Tensor):
                raise TypeError(f"gradgradcheck: grad_outputs takes Tensors, found {type(c).__name__}")
        cotangents = [c if c.requires_grad else c.detach().requires_grad_() for c in listed]
    varied = [k for k, x in enumerate(given) if isinstance(x, Tensor) and x.requires_grad]
    if not varied:
        raise ValueError("gradgradcheck: no input requires grad")

    def first(*args: Any) -> tuple[Tensor, ...]:
        from tapegrad.grad_mode import enable_grad

        with enable_grad():
            mine = list(args[: len(given)])
            found = [o for o in _outputs(func(*mine)) if o.requires_grad]
            targets = [mine[k] for k in varied]
            parts = grad(found, targets, list(args[len(given) :]), create_graph=True, allow_unused=True)
        return tuple(p for p in parts if p is not None)

    return gradcheck(
        first, (*given, *cotangents), eps=eps, atol=atol, rtol=rtol,
        raise_exception=raise_exception, nondet_tol=nondet_tol,
    )  # fmt: skip
