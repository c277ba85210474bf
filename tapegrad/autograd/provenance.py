"""Which Tensors the code of a Function computed where nothing is recorded, and whether values left them.

A backward may use what forward left behind: saved intermediates, attributes of ctx, closures. Tensors among
that have no history, of numbers and arrays nobody knows what they depend on. A second derivative through them
would be wrong and is refused: Tensors that depend on a source without a history are noted as such, and so is
what is computed from them; from where a value leaves a Tensor, all that backward returns is suspect.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterable, Sequence
from threading import get_ident
from typing import Any, Protocol

import numpy as np

from tapegrad.core.base import Handle, extra, has_tangent, refresh_history, requires_grad
from tapegrad.core.storage import STALE
from tapegrad.errors import GradientError
from tapegrad.kernels import abi
from tapegrad.ops import custom
from tapegrad.tape.tape import local, next_serial
from tapegrad.tensor import Operand, Tensor, alias_of, record

__all__ = ["Provenance", "escape_error", "nobody", "once_error", "once_only"]


def nobody() -> None:
    """Stand for a weak reference to what there is not yet."""


class Recorded(Protocol):
    """A call that is on a tape."""

    def handle(self) -> Tensor:
        """Return a Tensor that goes on from it."""


class Provenance:
    """What is known of a forward or a backward at work; `grad_mode.Mode.forward` while it is.

    Parameters
    ----------
    name
        That of the Function's class.
    inputs
        Tensors that what is computed depends on, as those who ask know.
    others
        Tensors that it depends on besides, which are kept.

    Attributes
    ----------
    call
        A weak reference to the call, which owns this.
    others
        With those met on the way, which are no inputs.
    bases
        What forward got for arguments that carry tangents: values without them.
    tangents
        Whether tangents are all that is asked for, as nothing is recorded.
    took
        Whether a value left a Tensor that depends on any of them.
    """

    of_any_dtype = False  # whether whole numbers are noted, too
    __slots__ = ("_begin", "_known", "bases", "call", "name", "others", "tangents", "took")

    def __init__(self, name: str, inputs: Iterable[Handle], others: Sequence[Handle] = ()) -> None:
        self.name = name
        self.others: list[Handle] = list(others)
        self.call: Callable[[], Recorded | None] = nobody
        self.took = self.tangents = False
        self.bases: list[Tensor] = []
        self._known = {_place(x) for x in inputs}
        tape = local.tape
        self._begin = (next_serial(), 0) if tape is None else (tape.serial, len(tape.log))

    def backward(self, grads: Iterable[Handle]) -> Provenance:
        """Return what is known of a backward as it begins."""
        seen = Provenance(self.name, (), [*self.others, *grads])
        seen.call = self.call
        seen._known = {*self._known, *map(_place, seen.others)}
        return seen

    def sources(self) -> list[Handle]:
        """Tensors that lead to all that what was computed depends on."""
        call = self.call()
        return self.others if call is None else [call.handle(), *self.others]

    def _knows(self, x: Any) -> bool:
        """Whether a Tensor depends on what can be differentiated by; one from elsewhere is a source."""
        if not isinstance(x, Handle):
            return False
        if self._hides(x):
            return True
        if not (has_tangent(x) if self.tangents else requires_grad(x)):
            return False
        if x._tape is STALE:
            refresh_history(x)
        tape = x._tape
        if tape is not None and (tape.serial, x._at) > self._begin and tape.owner == get_ident():
            return True  # recorded here, from what has been looked at then
        if _place(x) not in self._known:
            self._known.add(_place(x))
            self.others.append(alias_of(x))
        return True

    def _hides(self, x: Handle) -> bool:
        """Whether something of what a Tensor depends on is not known to it."""
        if x._extra is not None and x._extra.call is not None:
            return True
        return bool(self.bases) and any(x is base for base in self.bases)

    def note(self, out: Handle, operands: Sequence[Operand], hidden: bool) -> None:
        """See a Tensor computed; `hidden` where that is not recorded."""
        if out._v.dtype.char not in abi.GRADIENT:
            return
        depends = False
        for x in operands:
            depends = self._knows(x) or depends
        if not depends:
            return
        if self.tangents and has_tangent(out):
            hidden = False  # it has all it should have
        if hidden:
            extra(out).call = self
            return
        for x in operands:
            if isinstance(x, Handle) and self._hides(x):
                extra(out).call = self.of(x)

    def flat(self, out: Handle, function: Callable[..., object], operands: Sequence[Operand | None]) -> None:
        """See what a function without a derivative gives: nothing that a derivative goes through."""

    def take(self, x: Handle) -> None:
        """See a value leave a Tensor."""
        if x._v.dtype.char in abi.GRADIENT and self._knows(x):
            self.took = True

    def of(self, x: Handle) -> Provenance | None:
        """Return what knows where a Tensor that hides something is from; None if it hides nothing."""
        marked = None if x._extra is None else x._extra.call
        return self if marked is None and self._hides(x) else marked

    def error(self) -> GradientError:
        """What a derivative of a Tensor noted gives."""
        return _hidden(self.name)

    def refusing(self, g: Handle, origin: Provenance | None = None) -> Tensor:
        """Return a gradient that may come of values that left their Tensors, or of what is noted."""
        if origin is None:
            return _refused(g, self.sources(), functools.partial(escape_error, self.name))
        if origin.call() is None:  # of another call, whose inputs nobody knows any more
            raise _hidden(origin.name)
        sources = [*self.sources(), *origin.sources()]
        return _refused(g, sources, self.error)


def _place(x: Handle) -> Hashable:
    """What a handle of the same history, which is alive, has too."""
    return (x._tape.serial, x._at) if x._tape is not None else id(x._at)


def once_only(g: Handle, name: str, sources: Sequence[Handle]) -> Tensor:
    """Return a gradient that cannot be differentiated."""
    return _refused(g, sources, functools.partial(once_error, name))


def _refused(g: Handle, sources: Sequence[Handle], why: Callable[[], GradientError]) -> Tensor:
    return g + record(custom.refusal, np.zeros_like(g._v)[()], sources, {"why": why})


def _hidden(name: str) -> GradientError:
    return GradientError(
        f"a second derivative through {name} needs that of a value computed in its forward, or without "
        "history (detach, no_grad) in its backward; save inputs or results with ctx.save_for_backward and "
        "compute it from them in backward"
    )


def escape_error(name: str) -> GradientError:
    """What a second derivative is where values left their Tensors."""
    return GradientError(
        f"{name} took values out of its Tensors (.numpy(), .item(), float(), requires_grad_() of a result) "
        "and may compute gradients from them, without their history: there is no second derivative; compute "
        "with NumPy's functions or, in a Function whose gradients do not depend on those values, say so in "
        "forward with ctx.mark_twice_differentiable()"
    )


def once_error(name: str) -> GradientError:
    """What a second derivative is where there is none."""
    return GradientError(
        f"{name}.backward has no second derivative: it is once_differentiable, a method of an instance, or "
        "returns an ndarray"
    )
