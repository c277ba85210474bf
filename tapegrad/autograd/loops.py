"""A loop as one record: few of the states on the way are kept, a sweep computes the others again.

A step runs on a state that is cut off from what it was computed from, on a tape that is dropped afterwards.
What that tape imports besides the state are the other operands of the loop's record. Its derivative walks
back step by step, each recorded once more, and is an op itself (`LoopGradient`): it is a composition of the
derivatives of two shorter loops, and is differentiated as that, to any order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import comb
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from tapegrad.autograd.call import Known
from tapegrad.autograd.function import Function, FunctionCtx
from tapegrad.autograd.steps import (
    Moved,
    Ran,
    State,
    Steps,
    apart,
    key_of,
    leave_tape,
    next_state,
    random_state,
    together,
)  # fmt: skip
from tapegrad.autograd.sweeps import partials
from tapegrad.core.base import Handle, has_tangent, requires_grad
from tapegrad.core.grad_mode import in_force, is_grad_enabled, within
from tapegrad.engine.plan import Key
from tapegrad.errors import GradientError
from tapegrad.tape.tape import current
from tapegrad.tensor import Operand, Tensor, TensorOrArray, alias_of, wrap

if TYPE_CHECKING:
    from tapegrad.core.saved_values import Packing

__all__ = ["checkpoint_loop"]

RECORDED = {"recording": True, "inference": False, "packing": None, "forward": None}


def checkpoint_loop(
    step: Callable[[Any], Any], state: Any, n: int, *, slots: int, preserve_rng_state: bool = False
) -> Any:
    """Apply a step n times, keeping few of the states on the way: a sweep computes the others again.

    The schedule is binomial: with s slots and at most r computations of any step, s + r over s steps can
    be reversed (Griewank and Walther 2000, algorithm 799: revolve). All steps together are one record.

    Parameters
    ----------
    step : callable
        ``step(state)`` returns the next state; does the same each time, and may use other Tensors. What it
        is given it may write to; the first state remains what it was.
    state : Tensor, or tuple, list or dict
        With Tensors in it, and whatever else the steps hand on.
    n : int
        Number of steps, 0 or more.
    slots : int
        States that may be kept at a time besides the first, 0 or more.
    preserve_rng_state : bool, optional
        As for `checkpoint`.

    Returns
    -------
    The last state

    Raises
    ------
    TypeError
        A step returned None.
    GradientError
        In a sweep: a step computed something else than the first time, used a Tensor that it had not used
        then, or left a Tensor elsewhere than in the state that is to be differentiated.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg
    >>> x = tg.tensor(0.5, requires_grad=True)
    >>> y = tg.autograd.checkpoint_loop(lambda x: x + 0.01 * np.sin(x), x, 100, slots=3)
    >>> tg.grad(y, x)
    (tensor(1.9569),)
    """
    if n < 0 or slots < 0:
        raise ValueError(f"checkpoint_loop takes n and slots of 0 or more, found {n} and {slots}")
    parts: list[Tensor] = []
    tree = apart(state, parts, {})
    if n and is_grad_enabled() and not any(_goes_on_plainly(x) for x in parts):
        random = random_state() if preserve_rng_state else None
        steps = Steps(step, [alias_of(x) for x in parts if requires_grad(x)], preserve_rng_state)
        loop = _Loop(steps, State.of(tree, parts, random).using(()), n, slots)
        try:
            end = loop.forward(parts)
            return together(end.tree, _applied(loop, end, parts))
        except Moved:  # in forward mode nothing needs to be kept
            if random is not None:
                np.random.set_state(random)  # noqa: NPY002
    for _ in range(n):
        state = next_state(step, state)
    return state


def _goes_on_plainly(x: Tensor) -> bool:
    return has_tangent(x) or (x._extra is not None and x._extra.volatile)


Segment: TypeAlias = tuple[Callable[[], State], int, int]  # what gives the state, steps, slots


class _Loop:
    """So many steps from a state.

    Attributes
    ----------
    start
        The first state, without its Tensors, which the loop's record keeps.
    todo
        Segments that are still to be reversed, the last one last: what gives the state to begin from, number
        of steps, slots. None where they must be found again.
    ran
        The last step, until it is reversed.
    exact
        Whether steps must come to the same states again: not where states are kept by hooks.
    last
        Shapes and dtypes of those of its Tensors that require grad.
    """

    def __init__(self, steps: Steps, start: State, n: int, slots: int) -> None:
        self.steps, self.start, self.n, self.slots = steps, start, n, slots
        self.todo: list[tuple[Callable[[], State], int, int]] | None = None
        self.ran: Ran | None = None
        self.exact = True
        self.last: list[Known] = []

    def forward(self, parts: list[Tensor]) -> State:
        """Run all steps; notes what they use."""
        packing = in_force("packing")
        ran, self.todo = within({"packing": None}, self._run, self.start.using(parts), packing)
        self.ran, end = ran if packing is None else None, ran.after
        self.exact = packing is None
        self.last = [(x._v.shape, x._v.dtype) for x in end.wanting(end.parts)]
        self.steps.complete = True
        return end

    def _run(self, state: State, packing: Packing | None) -> tuple[Ran, list[Segment]]:
        todo: list[Segment] = []
        return self.steps.run(self._unroll(state, self.n, self.slots, todo, packing)), todo

    def _unroll(
        self, state: State, n: int, slots: int, todo: list[Segment], packing: Packing | None = None
    ) -> State:
        """Run n - 1 steps; `todo` takes the states to be kept on the way."""
        while n > 1:
            left = _left(n, slots)
            todo.append((state.kept(packing), left, slots))
            n, slots = n - left, max(slots - 1, 0)
            while left:
                ran = self.steps.run(state, left)
                state, left = ran.after, left - ran.count
        todo.append((state.kept(packing), 1, slots))
        return state

    def reverse(
        self, parts: list[Tensor], cts: list[TensorOrArray | None]
    ) -> tuple[list[TensorOrArray | None], dict[Key, TensorOrArray]]:
        """Return cotangents of the first state's Tensors that require grad, and by key of the operands.

        Parameters
        ----------
        parts
            The first state's Tensors.
        cts
            Cotangents of those Tensors of the last state that require grad: arrays, Tensors or None.
        """
        random = self.steps.rng()
        try:
            return within(RECORDED, self._reversed, self.start.using(parts), cts)
        finally:
            leave_tape()
            if random is not None:
                np.random.set_state(random)  # noqa: NPY002

    def _reversed(
        self, start: State, cts: list[TensorOrArray | None]
    ) -> tuple[list[TensorOrArray | None], dict[Key, TensorOrArray]]:
        todo, self.todo = self.todo, None
        ran, self.ran = self.ran, None
        ahead: State | None = None
        totals: dict[Key, TensorOrArray] = {}
        if todo is None:
            todo = [(start.kept(None), self.n, self.slots)]
        while todo:
            again, n, slots = todo.pop()
            if ran is None:
                state = again()
                if state.random is not None:
                    np.random.set_state(state.random)  # noqa: NPY002
                if n > 1:
                    self._unroll(state, n, slots, todo)
                    continue
                ran = self.steps.run(state)
            if ahead is not None and not ran.after.like(ahead):
                raise GradientError(
                    "a step of checkpoint_loop computed another state than when it ran first; it must do the "
                    "same each time (random numbers are the same with preserve_rng_state=True)"
                )
            cts = self._pulled(ran, cts, totals)
            ahead = ran.before if self.exact else None
            ran = None
        return cts, totals

    def _pulled(
        self, ran: Ran, cts: list[TensorOrArray | None], totals: dict[Key, TensorOrArray]
    ) -> list[TensorOrArray | None]:
        """Return the cotangents of a state from those of the next one."""
        used = self.steps.used(ran)
        outs, keys = ran.after.wanting(ran.outs), ran.keys()
        pairs = [(x, ct) for x, ct in zip(outs, cts, strict=True) if ct is not None]
        found = partials(pairs, [*keys, *used], ran.begin) if pairs else {}
        for key in used:
            g = found.get(key)
            if g is not None:
                totals[key] = g if key not in totals else totals[key] + g
        return [found.get(key) for key in keys]

    def composed(self, parts: list[Tensor], cts: list[Tensor]) -> list[TensorOrArray]:
        """As `reverse`, recorded, of cotangents that are Tensors: few steps, or two loops of half as many.

        Cotangents are those of the first state's Tensors that require grad, then those of all operands.
        """
        operands = list(self.steps.operands.values())
        if self.start.random is not None:
            np.random.set_state(self.start.random)  # noqa: NPY002
        if self.n <= max(self.slots, 1):
            roots = [x if need else None for x, need in zip(parts, self.start.needs, strict=True)]
            ran = self.steps.run(self.start.using(parts), self.n, roots)
            self.steps.used(ran)
            pairs = list(zip(ran.after.wanting(ran.outs), cts, strict=True))
            return _by_input([*self.start.wanting(parts), *operands], pairs, ran.begin, True)
        first = _Loop(self.steps, self.start, self.n // 2, self.slots)
        middle = first.forward(parts)
        tensors = _applied(first, middle, parts)
        second = _Loop(self.steps, middle.using(()), self.n - self.n // 2, self.slots)
        second.last = self.last
        later = LoopGradient.apply(second, *tensors, *operands, *cts)
        wide = sum(middle.needs)
        cts = [
            _zeros(x._v.shape, x._v.dtype) if g is None else g
            for x, g in zip(middle.wanting(tensors), later[:wide], strict=True)
        ]
        earlier = LoopGradient.apply(first, *parts, *operands, *cts)
        wide = sum(self.start.needs)
        both = zip(earlier[wide:], later[sum(middle.needs) :], strict=True)
        return [*earlier[:wide], *(b if a is None else a if b is None else a + b for a, b in both)]


def _by_input(inputs: Sequence[Tensor], pairs: list[Any], begin: int, recorded: bool) -> list[Any]:
    """As `partials`, a list; an input that is there twice gets the whole of its cotangent once."""
    found = dict(partials(pairs, [key_of(x) for x in inputs], begin, recorded)) if pairs else {}
    return [found.pop(key_of(x), None) for x in inputs]


def _applied(loop: _Loop, end: State, parts: list[Tensor]) -> list[Tensor]:
    """Record a loop that has been run: the Tensors of its last state, with their history."""
    leave_tape()  # the last step's tape
    last = [alias_of(x) for x in end.wanting(end.parts)]
    found = iter(CheckpointLoop.apply(loop, last, *parts, *loop.steps.operands.values()) if last else ())
    return [next(found) if need else x for x, need in zip(end.parts, end.needs, strict=True)]


class CheckpointLoop(Function):
    """A loop that has been run, as an operation on its first state and on what its steps use besides."""

    @staticmethod
    def forward(ctx: Any, loop: _Loop, last: list[Tensor], *operands: Tensor) -> tuple[TensorOrArray, ...]:
        """Return the Tensors of the last state that require grad."""
        ctx.loop = loop
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*operands[: len(loop.start.needs)])
        # not the very arrays that the loop keeps: by those the tape would take the results for alive
        return tuple(wrap(x._v.view() if x._v.ndim else x._v.copy()) for x in last)

    @staticmethod
    def backward(ctx: FunctionCtx, *cts: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of the operands."""
        loop, parts = ctx.loop, ctx.saved_tensors
        if is_grad_enabled():
            zeros = (_zeros(*known) if ct is None else ct for ct, known in zip(cts, loop.last, strict=True))
            found = LoopGradient.apply(loop, *parts, *loop.steps.operands.values(), *zeros)
        else:
            found = _gradients(loop, parts, cts)
        return None, None, *_spread(found, loop)


class LoopGradient(Function):
    """The gradients of a loop, as an operation on what it was of, and on the cotangents of the last state."""

    @staticmethod
    def forward(ctx: Any, loop: _Loop, *operands: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of the first state's Tensors that require grad, and of what the steps use."""
        ctx.loop = loop
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*operands)
        parts, cts = _parted(loop, operands)
        return tuple(_gradients(loop, parts, cts))

    @staticmethod
    def backward(ctx: FunctionCtx, *cts: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of the operands."""
        random = ctx.loop.steps.rng()
        try:
            recorded = is_grad_enabled()
            return None, *within(RECORDED, _second, ctx.loop, ctx.saved_tensors, cts, recorded)
        finally:
            leave_tape()
            if random is not None:
                np.random.set_state(random)  # noqa: NPY002

    @staticmethod
    def jvp(ctx: FunctionCtx, *tangents: Tensor | None) -> Any:
        """Return the gradients' tangents: they are linear in the cotangents, which alone have some."""
        loop, operands = ctx.loop, ctx.saved_tensors
        first = len(operands) - len(loop.last)
        moved = [
            _zeros(x.shape, x.dtype) if t is None else t for x, t in zip(operands, tangents[1:], strict=True)
        ]
        return LoopGradient.apply(loop, *operands[:first], *moved[first:])


def _parted(loop: _Loop, operands: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """The first state's Tensors, and the cotangents."""
    return list(operands[: len(loop.start.needs)]), list(operands[len(operands) - len(loop.last) :])


def _gradients(loop: _Loop, parts: Sequence[Tensor], cts: Sequence[Tensor]) -> list[Tensor | None]:
    """A loop's gradients, not recorded: of the first state, then of what the steps use."""
    values = [ct if ct is None or has_tangent(ct) else ct._v for ct in cts]
    first, totals = loop.reverse(list(parts), values)
    return _tensors([*first, *map(totals.get, loop.steps.operands)])


def _spread(found: Sequence[Operand | None], loop: _Loop) -> list[Any]:
    """Gradients with None for those Tensors of the first state that require none."""
    rest = iter(found)
    return [*(next(rest) if need else None for need in loop.start.needs), *rest]


def _second(
    loop: _Loop, operands: Sequence[Tensor], cts: Sequence[Tensor], recorded: bool
) -> list[Tensor | None]:
    """The derivative of a loop's gradients."""
    leave_tape()
    begin = current().serial
    outs = loop.composed(*_parted(loop, operands))
    as_tensors = recorded or any(ct is not None and has_tangent(ct) for ct in cts)
    pairs = [
        (g, ct if as_tensors else ct._v)
        for g, ct in zip(outs, cts, strict=True)
        if g is not None and ct is not None and requires_grad(g)
    ]
    found = iter(_by_input([x for x in operands if requires_grad(x)], pairs, begin, recorded))
    return _tensors(next(found) if requires_grad(x) else None for x in operands)


def _tensors(found: Iterable[TensorOrArray | None]) -> list[Tensor | None]:
    return [g if g is None or isinstance(g, Handle) else wrap(g[()] if g.ndim == 0 else g) for g in found]


def _zeros(shape: tuple[int, ...], dtype: np.dtype) -> Tensor:
    return wrap(np.zeros(shape, dtype)[()] if shape == () else np.zeros(shape, dtype))


def _left(steps: int, slots: int) -> int:
    """How many of these steps lie before the next state to be kept."""
    if slots == 0:
        return steps - 1
    repeats = 1
    while comb(slots + repeats, slots) < steps:
        repeats += 1
    most = comb(slots + repeats - 1, slots)  # with one repeat less
    least_right = comb(slots + repeats - 2, slots - 1)  # with a slot and a repeat less
    return max(1, min(most, steps - least_right))
