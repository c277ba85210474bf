"""Functions of torch's tensors, and functions of ours for torch."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np

from tapegrad import func
from tapegrad.errors import BorderError, DTypeError
from tapegrad.func.trees import flatten, map_tree
from tapegrad.interop.bridge import Function, Spread, named, plain, title_of, with_rule
from tapegrad.tensor import Operand


def to_torch(f: Function) -> Function:
    """Return a function of torch's tensors whose value and derivatives are those of a function of arrays.

    Parameters
    ----------
    f : callable
        Of arrays and trees of them, plain or of `tapegrad.njit`; it returns an array, a number or a tree of
        these.

    Returns
    -------
    callable
        Takes tensors on the CPU where `f` takes arrays; whatever else it is given goes to `f` as it is. Torch
        differentiates its results by them to any order (``backward``, ``create_graph``, `torch.func.grad`);
        `torch.func.vmap` is one call after another. They have the dtypes that `f` gives.

    Raises
    ------
    DTypeError
        A tensor is not on the CPU, is sparse, or of a dtype that NumPy does not have.
    BorderError
        The result has a derivative by a Tensor that is none of the arguments.

    Notes
    -----
    A gradient calls `f` once and sweeps its tape; where it is to be differentiated again, `f` is called once
    more.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg
    >>> energy = tg.interop.to_torch(lambda x: np.sum(x**3))  # doctest: +SKIP
    >>> x = torch.tensor([1.0, 2.0], requires_grad=True)  # doctest: +SKIP
    >>> energy(x).backward()  # doctest: +SKIP
    >>> x.grad  # doctest: +SKIP
    tensor([ 3., 12.])
    """
    torch: Any = import_module("torch")

    title = title_of("to_torch", f)

    class Bridge(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(call: _TorchCall, *xs: Any) -> Any:
            return call.run(xs)

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            ctx.call, *xs = inputs
            ctx.save_for_backward(*xs)
            ctx.mark_non_differentiable(*[y for y in output if not _is_inexact(y)])

        @staticmethod
        def backward(ctx: Any, *cts: Any) -> Any:
            return None, *ctx.call.pulled(ctx.saved_tensors, cts)

        @staticmethod
        def vmap(info: Any, axes: Any, call: _TorchCall, *xs: Any) -> Any:
            """One call after another."""
            lanes = []
            for k in range(info.batch_size):
                lane = [
                    x if axis is None else x.select(axis, k) for x, axis in zip(xs, axes[1:], strict=True)
                ]
                one = _TorchCall(title, call.spread, lane)
                lanes.append(Bridge.apply(one, *lane))
                call.result = one.result
            return tuple(torch.stack(ys) for ys in zip(*lanes, strict=True)), (0,) * len(lanes[0])

    def function(*args: Any, **kwargs: Any) -> Any:
        leaves, structure = flatten((args, kwargs))
        spots = [k for k, x in enumerate(leaves) if isinstance(x, torch.Tensor)]

        def spread(arguments: Any, keywords: Any) -> Any:
            return f(*arguments, **keywords)

        xs = [leaves[k] for k in spots]
        call = _TorchCall(title, Spread(spread, leaves, structure, spots), xs)
        ys = Bridge.apply(call, *xs)
        return call.result.build(ys)

    return named(title, function)


def _is_inexact(y: Any) -> bool:
    return bool(y.is_floating_point() or y.is_complex())


class _TorchCall:
    """One call from torch: the function of its tensors, and what a sweep needs."""

    def __init__(self, title: str, spread: Spread, xs: Sequence[Any]) -> None:
        self.title, self.spread = title, spread
        self.active = tuple(k for k, x in enumerate(xs) if x.requires_grad and _is_inexact(x))
        self.pullback: Function | None = None
        self.result: Any = None

    def run(self, xs: Sequence[Any]) -> Any:
        """Return the results' leaves."""
        arrays = [_from_tensor(self.title, x) for x in xs]
        if self.active:
            value, self.pullback = func.vjp(self.spread, self.active)(*arrays)
        else:
            value = self.spread(*arrays)
        leaves, self.result = flatten(value)
        return tuple(_to_tensor(plain(self.title, y)) for y in leaves)

    def pulled(self, xs: Sequence[Any], cts: Sequence[Any]) -> list[Any]:
        """Return a cotangent, or None, for each tensor."""
        torch = import_module("torch")

        if (
            self.pullback is None or torch.is_grad_enabled()
        ):  # lanes were called; or it is to be differentiated

            def pull(xs: Sequence[Any], cts: Sequence[Any]) -> Any:
                return func.vjp(self.spread, self.active)(*xs)[1](self.result.build(cts))

            found = to_torch(pull)(list(xs), list(cts))
        else:
            arrays = self.pullback(self.result.build([_from_tensor(self.title, ct) for ct in cts]))
            found = [_to_tensor(np.asarray(g)) for g in arrays]
        out = [None] * len(xs)
        for k, g in zip(self.active, found, strict=True):
            out[k] = g
        return out


def _from_tensor(title: str, x: Any) -> Any:
    if x.device.type != "cpu" or x.is_sparse:
        raise DTypeError(
            f"{title} takes dense tensors on the CPU, found one on {x.device}, {x.layout}; x.cpu() and "
            "x.to_dense() make such a one"
        )
    try:
        return x.detach().resolve_conj().resolve_neg().numpy()[()]
    except TypeError as error:
        raise DTypeError(f"{title}: NumPy has no {x.dtype}; convert the tensor, x.double()") from error


def _to_tensor(x: np.ndarray) -> Any:
    torch = import_module("torch")

    return torch.from_numpy(np.array(x))


def from_torch(f: Function) -> Function:
    """Return a function of Tensors and arrays whose value and derivatives are those of a function of torch's.

    Parameters
    ----------
    f : callable
        Of torch's tensors and trees of them; returns a tensor or a tree of these.

    Returns
    -------
    callable
        Takes Tensors, arrays and floats, by position, where `f` takes tensors; other things go to `f` as they
        are. Derivatives are those of torch, to any order, in both modes. Results are on the CPU.

    Raises
    ------
    BorderError
        `f` uses a tensor that requires grad and is none of the arguments, as the parameters of a module are:
        that derivative would be dropped. Pass them (`torch.func.functional_call`), or have
        ``requires_grad_(False)``.

    Notes
    -----
    A rule keeps no graph of torch's: a derivative calls `f` again.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg
    >>> f = tg.interop.from_torch(lambda x: torch.logsumexp(x, 0))  # doctest: +SKIP
    >>> x = tg.tensor([0.0, 0.0], requires_grad=True)  # doctest: +SKIP
    >>> tg.grad(f(x), x)  # doctest: +SKIP
    (tensor([0.5000, 0.5000]),)
    """
    torch = import_module("torch")

    title = title_of("from_torch", f)

    def values(*args: Any) -> Any:
        with torch.enable_grad():
            found = f(*map_tree(_tensor_if_number, args))
        leaves, structure = flatten(found)
        if any(isinstance(y, torch.Tensor) and y.requires_grad for y in leaves):
            raise BorderError(
                f"{title} uses a tensor that requires grad and is none of its arguments, as a module's "
                "parameters are; its derivative would be dropped: pass it (torch.func.functional_call), or "
                "have requires_grad_(False)"
            )
        return structure.build(
            [_from_tensor(title, y.cpu()) if isinstance(y, torch.Tensor) else y for y in leaves]
        )

    def pull(args: Any, ct: Any) -> Any:
        """In torch: a cotangent, or None, for each leaf of the arguments."""
        leaves, structure = flatten(args)
        cts = [x for x in flatten(ct)[0] if isinstance(x, torch.Tensor)]
        spots = [k for k, x in enumerate(leaves) if isinstance(x, torch.Tensor) and _is_inexact(x)]
        again = any(x.requires_grad for x in (*cts, *(leaves[k] for k in spots)))
        xs = [x if x.requires_grad else x.detach().requires_grad_() for x in (leaves[k] for k in spots)]
        with torch.enable_grad():
            found = f(*Spread(f, leaves, structure, spots).build(xs))
        ys = [y for y in flatten(found)[0] if isinstance(y, torch.Tensor) and _is_inexact(y)]
        pairs = [(y, ct) for y, ct in zip(ys, cts, strict=True) if y.requires_grad]
        out = [None] * len(leaves)
        if pairs:
            grads = torch.autograd.grad(
                [y for y, _ in pairs], xs, [ct for _, ct in pairs], create_graph=again, materialize_grads=True
            )
            for k, g in zip(spots, grads, strict=True):
                out[k] = g
        return structure.build(out)

    return with_rule(title, values, pull, from_torch)


def _tensor_if_number(x: Operand) -> Any:
    return _to_tensor(np.asarray(x)) if isinstance(x, (np.ndarray, np.number, float, complex)) else x
