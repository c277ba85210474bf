"""Forward mode: Tensors that carry a tangent, at levels that nest to any depth."""

from __future__ import annotations

from contextvars import ContextVar
from functools import partial
from typing import NamedTuple

from tapegrad.core.dispatch import is_externally_writable
from tapegrad.core.forward_mode import Level, detach_level
from tapegrad.core.grad_mode import _Mode
from tapegrad.errors import DTypeError, GradientError, ShapeError
from tapegrad.kernels import abi
from tapegrad.ops import REGISTRY
from tapegrad.tensor import Tensor, alias_of, attach, record, wrap

__all__ = [
    "UnpackedDualTensor", "dual_level", "enter_dual_level", "exit_dual_level", "make_dual", "unpack_dual",
]  # fmt: skip


_levels: ContextVar[tuple[Level, ...]] = ContextVar("tapegrad_dual_levels", default=())


class UnpackedDualTensor(NamedTuple):
    """What `unpack_dual` returns: the primal, and the tangent or None."""

    primal: Tensor
    tangent: Tensor | None


def enter_dual_level(lanes: int | None = None) -> int:
    """Open a level of forward mode, inside those that are open; see `dual_level`.

    Parameters
    ----------
    lanes : int, optional
        How many tangents each Tensor carries, along an axis in front of its own axes; by default one,
        without such an axis.

    Returns
    -------
    int
        Its number, counted from 0.
    """
    outer, level = _levels.get(), Level(lanes)
    level.open()
    _levels.set((*outer, level))
    return len(outer)


def _close(level: Level, outer: tuple[Level, ...]) -> None:
    _levels.set(outer)
    level.close()


def exit_dual_level(*, level: int | None = None) -> None:
    """Close the innermost level: its tangents are gone, what carried one is its primal.

    Parameters
    ----------
    level : int, optional
        Its number; no other can be closed.

    Raises
    ------
    GradientError
        No level is open, or it is not the innermost.
    """
    open_ = _levels.get()
    if not open_:
        raise GradientError("exit_dual_level: no level of forward mode is open")
    if level is not None and level != len(open_) - 1:
        raise GradientError(f"exit_dual_level: level {level} is not the innermost, which is {len(open_) - 1}")
    _levels.set(open_[:-1])
    open_[-1].close()


def _level(number: int | None, what: str) -> Level:
    open_ = _levels.get()
    if not open_:
        raise GradientError(f"{what}: no level of forward mode is open; use it inside dual_level()")
    if number is None:
        return open_[-1]
    if not 0 <= number < len(open_):
        raise GradientError(f"{what}: level {number} is not open; the innermost is {len(open_) - 1}")
    return open_[number]


def make_dual(tensor: Tensor, tangent: Tensor, *, level: int | None = None) -> Tensor:
    """Return a Tensor of the same value that carries a tangent, as all do that are computed from it.

    Parameters
    ----------
    tensor : Tensor
        The primal, floating-point or complex. Its history goes on in the result; later writes do not.
    tangent : Tensor
        Of the primal's shape; complex only if the primal is. It may require grad.
    level : int, optional
        By default the innermost.

    Returns
    -------
    Tensor

    Raises
    ------
    GradientError
        No such level is open, or the primal or the tangent carries a tangent of that level already.
    ShapeError, DTypeError, TypeError
        An argument does not fit.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg
    >>> from tapegrad.autograd import forward_ad as fw
    >>> with fw.dual_level():
    ...     x = fw.make_dual(tg.tensor([0.0, 1.0]), tg.tensor([1.0, 2.0]))
    ...     fw.unpack_dual(np.exp(x) * 3).tangent
    tensor([ 3.0000, 16.3097])
    """
    at = _level(level, "make_dual")
    for x, what in ((tensor, "primal"), (tangent, "tangent")):
        if not isinstance(x, Tensor):
            raise TypeError(f"make_dual: the {what} is no Tensor, found {type(x).__name__}")
        if x.dtype.char not in abi.GRADIENT:
            raise _DualDType(f"make_dual: the {what} has dtype {x.dtype}; use floating-point or complex")
        if detach_level(x, at)[1] is not None:
            raise GradientError(f"make_dual: the {what} carries a tangent of this level already")
    if tangent.shape != (tensor.shape if at.lanes is None else (at.lanes, *tensor.shape)):
        lanes = "" if at.lanes is None else f" at a level of {at.lanes} lanes"
        found = f"tangent of shape {tangent.shape} for a primal of shape {tensor.shape}"
        raise ShapeError(f"make_dual: {found}{lanes}")
    if tangent.dtype.kind == "c" and tensor.dtype.kind != "c":
        raise DTypeError(f"make_dual: tangent of dtype {tangent.dtype} for a primal of dtype {tensor.dtype}")
    if tangent.dtype != tensor.dtype:
        tangent = tangent.astype(tensor.dtype)
    direction = _alias(tangent) if is_externally_writable(tangent) else alias_of(tangent)
    return attach(_alias(tensor), direction, at)


class _DualDType(DTypeError, ValueError):
    """A dtype that has no tangent."""


def _alias(x: Tensor) -> Tensor:
    """Another Tensor of the value and history, to which nobody writes."""
    value = x._v.copy() if is_externally_writable(x) else x._v
    if x.requires_grad:
        return record(REGISTRY["reshape"], value, (x,), {"shape": x.shape})
    return wrap(value) if is_externally_writable(x) else alias_of(x)


def unpack_dual(tensor: Tensor, *, level: int | None = None) -> UnpackedDualTensor:
    """Return the primal and the tangent of a Tensor at a level, both as Tensors that can be gone on with.

    Parameters
    ----------
    tensor : Tensor
        One that carries no tangent is its own primal.
    level : int, optional
        By default the innermost; if none is open there is no tangent.

    Returns
    -------
    UnpackedDualTensor
        Named tuple ``(primal, tangent)``, the tangent None if there is none.

    Examples
    --------
    >>> import tapegrad as tg
    >>> from tapegrad.autograd import forward_ad as fw
    >>> with fw.dual_level():
    ...     fw.unpack_dual(fw.make_dual(tg.tensor(2.0), tg.tensor(1.0)) ** 2)
    UnpackedDualTensor(primal=tensor(4.), tangent=tensor(4.))
    """
    if not isinstance(tensor, Tensor):
        raise TypeError(f"unpack_dual takes a Tensor, found {type(tensor).__name__}")
    if level is None and not _levels.get():
        return UnpackedDualTensor(tensor, None)
    primal, tangent = detach_level(tensor, _level(level, "unpack_dual"))
    return UnpackedDualTensor(tensor if tangent is None else primal, tangent)


class dual_level(_Mode):
    """Context manager or decorator: a level of forward mode, in which Tensors can carry tangents.

    Inside, a Tensor made by `make_dual` and all that is computed from it carry tangents, whatever the grad
    mode is. Levels nest to any depth: tangents of the inner ones are differentiated like anything else.
    Gradients taken inside carry tangents too (forward over reverse), and tangents that depend on Tensors
    requiring grad can be differentiated backward (reverse over forward). At the end tangents are gone.

    Parameters
    ----------
    lanes : int, optional
        How many tangents each Tensor carries at once, along an axis in front of its own; by default one,
        without such an axis.

    Examples
    --------
    >>> import tapegrad as tg
    >>> from tapegrad.autograd import forward_ad as fw
    >>> x = tg.tensor(2.0, requires_grad=True)
    >>> with fw.dual_level():
    ...     y = fw.make_dual(x, tg.tensor(1.0)) ** 3
    ...     (slope,) = tg.grad(y, x)
    ...     fw.unpack_dual(slope)
    UnpackedDualTensor(primal=tensor(12.), tangent=tensor(12.))
    """

    def __init__(self, lanes: int | None = None) -> None:
        self.lanes = lanes

    def clone(self) -> dual_level:
        """Another one like this."""
        return dual_level(self.lanes)

    def __enter__(self) -> int:  # type: ignore[override]
        outer, level = _levels.get(), Level(self.lanes)
        self.at_end(partial(_close, level, outer))
        level.open()
        _levels.set((*outer, level))
        return len(outer)
