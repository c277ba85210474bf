"""What Tensor's two protocol methods call; what NumPy answers from plain values."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from tapegrad.core.array_methods import complete
from tapegrad.core.base import like_of
from tapegrad.core.callers import asking, way_out
from tapegrad.core.functions import FUNCTIONS, PLAIN, UFUNCS, implements
from tapegrad.core.grad_mode import Mode, _enabled
from tapegrad.core.notes import is_compared
from tapegrad.core.operators import FLAT
from tapegrad.errors import UnsupportedOpError
from tapegrad.numpy_api.tables import answer, any_grad, any_needs_derivative, into, plain, plainly
from tapegrad.numpy_api.ufunc_forms import (
    accumulate_,
    at,
    differentiable,
    outer,
    reduce,
    reduceat,
    selected,
    typed,
)
from tapegrad.numpy_api.ufuncs import declared
from tapegrad.tensor import Operand, Tensor, is_tensor

enabled = _enabled.get
METHODS: dict[str, Callable[..., Any]] = {
    "reduce": reduce, "accumulate": accumulate_, "outer": outer, "reduceat": reduceat,
}  # fmt: skip
TYPED = {"dtype", "casting", "signature", "order", "subok"}

NONE: set[str] = set()
KEYWORDS = {getattr(np, "vecdot", None): {"axis", "keepdims"}}


def array_ufunc(self: Tensor, ufunc: np.ufunc, method: str, *inputs: Operand, **kwargs: Any) -> Any:
    """Apply a ufunc to operands among which there is a Tensor, `self`."""
    if not kwargs and method == "__call__":
        function = UFUNCS.get(ufunc)
        if function is not None:
            mode = enabled()
            if type(mode) is Mode and mode.matcher is not None:
                return mode.matcher.call(ufunc, function, inputs, {})
            return function(*inputs)
    return _called(ufunc, method, inputs, kwargs)


def _called(ufunc: np.ufunc, method: str, inputs: Any, kwargs: dict[str, Any]) -> Any:
    out = kwargs.pop("out", None)
    if out is not None:
        return _ufunc_into(ufunc, method, out, inputs, kwargs)
    if method == "at":
        return at(ufunc, *inputs)
    function = UFUNCS.get(ufunc) or declared(ufunc)
    if method == "__call__" and function is not None and kwargs.keys() <= KEYWORDS.get(ufunc, NONE):
        return function(*inputs, **kwargs)
    if any_grad(inputs) or any_grad(tuple(kwargs.values())):
        if method in METHODS and differentiable(ufunc) and not (method == "outer" and kwargs.keys() - TYPED):
            return METHODS[method](ufunc, *inputs, **kwargs)
        if method == "__call__" and function is not None and not kwargs.keys() - TYPED:
            return typed(ufunc, inputs, **kwargs)
        if kwargs.get("where", True) is not True and method == "__call__":
            raise UnsupportedOpError(
                f"{_named(ufunc)} with where= leaves elements undefined; give out=, a Tensor that holds "
                "them, or use np.where(condition, result, other)"
            )
        if method != "__call__" and ufunc in FLAT:
            return plainly(getattr(ufunc, method), inputs, kwargs)
        form = "" if method == "__call__" else f".{method}"
        given = "".join(f", {key}=" for key in kwargs)
        raise UnsupportedOpError(
            f"{_named(ufunc)}{form}{given} has no derivative here; write it with supported functions, "
            "give its derivative by an autograd.Function, or detach() the operands"
        )
    return plainly(getattr(ufunc, method), inputs, kwargs)


def _named(ufunc: np.ufunc) -> str:
    """A ufunc's name as programs write it; of ufuncs NumPy does not tell the module."""
    name = ufunc.__name__
    for module, prefix in (("numpy", "np."), ("scipy.special", "scipy.special.")):
        if getattr(sys.modules.get(module), name, None) is ufunc:
            return prefix + name
    return f"the ufunc {name}"


def _ufunc_into(ufunc: np.ufunc, method: str, out: Any, inputs: Any, kwargs: dict[str, Any]) -> Any:
    if len(out) > 1:
        raise UnsupportedOpError(f"{_named(ufunc)}: out= of several Tensors; use the results it returns")

    # With `where=` what stays of `out=` is a part of the result, which is recorded as a write; without it
    # nothing stays, and `out=` is refused where a derivative is asked.
    masked = method == "__call__" and kwargs.get("where", True) is not True
    moving = any_needs_derivative((*inputs, *out))
    if masked and moving and is_tensor(out[0]) and ufunc in UFUNCS:
        return selected(ufunc, inputs, out[0], kwargs.pop("where"), **kwargs)

    def compute(*args: Operand, **rest: Any) -> np.ndarray:
        return getattr(ufunc, method)(*args, **rest)

    compute.__name__ = ufunc.__name__ if method == "__call__" else f"{ufunc.__name__}.{method}"
    return into(compute, out[0], *inputs, **kwargs)


def array_function(
    self: Tensor, function: Callable[..., Any], types: Any, args: Any, kwargs: dict[str, Any]
) -> Any:
    """Apply one of NumPy's other functions to arguments among which there is a Tensor, `self`."""
    implementation = FUNCTIONS.get(function)
    if implementation is not None:
        mode = enabled()
        if type(mode) is not Mode or mode.profile is None:
            if type(mode) is Mode and mode.matcher is not None:
                return mode.matcher.call(function, implementation, args, kwargs)
            return implementation(*args, **kwargs)
        with mode.profile.event(f"{function.__module__}.{function.__name__}", args):
            return implementation(*args, **kwargs)
    if any_grad(args) or any_grad(tuple(kwargs.values())):
        package, called = asking()
        by, instead = called and f", called by {called},", way_out(package, called)
        raise UnsupportedOpError(
            f"{function.__module__}.{function.__name__}{by} has no derivative here; {instead}"
            "write it with supported functions, or detach() the operands"
        )
    return plainly(function, args, kwargs)


answer(
    np.argmax, np.argmin, np.argsort, np.any, np.all, np.zeros_like, np.ones_like,
    np.allclose, np.array_equal, np.isclose, np.nonzero, np.count_nonzero,
    np.searchsorted, np.round, np.around, np.shares_memory,
    np.may_share_memory, np.array_repr, np.array_str, np.array2string, np.save, np.savetxt, np.savez,
    np.savez_compressed, np.argpartition, np.lexsort, np.argwhere, np.flatnonzero, np.nanargmax,
    np.nanargmin, np.isin, np.array_equiv, np.unravel_index, np.ravel_multi_index, np.diag_indices_from,
    np.tril_indices_from, np.triu_indices_from, np.min_scalar_type, np.common_type, np.packbits,
    np.unpackbits, np.iscomplex, np.isreal, np.isposinf, np.isneginf, np.einsum_path,
)  # fmt: skip


@implements(np.empty_like)
def empty_like(prototype: Operand, *args: Any, **kwargs: Any) -> Any:
    """An array of a shape and dtype; where a program compares, of zeros, which it can compute."""
    return plainly(np.zeros_like if is_compared() else np.empty_like, (prototype, *args), kwargs)


PLAIN.add(np.empty_like)
for _f in (np.result_type, np.can_cast, np.iscomplexobj, np.isrealobj):  # which look at no value

    def _of_dtypes(*args: Any, _f: Any = _f, **kwargs: Any) -> np.dtype | bool:
        return _f(*plain(args), **kwargs)

    FUNCTIONS[_f] = _of_dtypes
    PLAIN.add(_f)
FUNCTIONS[np.shape] = lambda a: a.shape
FUNCTIONS[np.ndim] = lambda a: a.ndim
FUNCTIONS[np.size] = lambda a, axis=None: np.size(like_of(a), axis)
PLAIN.update((np.shape, np.ndim, np.size, np.fix, np.linalg.matrix_rank, *FLAT))


def install() -> None:
    """Give Tensor the protocols by which NumPy asks for this floor, and its methods what they go to."""
    complete()
    Tensor.__array_ufunc__, Tensor.__array_function__ = array_ufunc, array_function
