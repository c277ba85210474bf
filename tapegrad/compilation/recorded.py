"""A call that a program has computed, as one record of an outer graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tapegrad.autograd import Function, grad
from tapegrad.compilation.events import ARGUMENT, FIXED, LIVE, PYTHON_S, RESULT, Event, Source
from tapegrad.compilation.passive import Passive
from tapegrad.compilation.program import Program, forward_of, number_of
from tapegrad.core.base import Handle, requires_grad, value_of, wrap
from tapegrad.core.dispatch import apply, record
from tapegrad.core.grad_mode import enable_grad, is_grad_enabled
from tapegrad.ops import REGISTRY
from tapegrad.ops.primitive import Elementwise
from tapegrad.tensor import Tensor, tensor

RESHAPE = REGISTRY["reshape"]


def operand_value(source: Source, buffer: Any) -> Any:
    """Return a number or an array that a call has brought, as the function gave it."""
    if source.kind == FIXED:
        return source.value
    if type(source.value) in PYTHON_S:
        return buffer[()].item()
    return buffer.copy() if buffer.ndim else buffer[()]


def apply_event(event: Event, operands: Sequence[Any]) -> Tensor:
    """Apply an operation as it was; a shape that an op takes of its result is none of its attributes."""
    if isinstance(event.op, Passive):
        return wrap(forward_of(event, [value_of(x) for x in operands]))
    if isinstance(event.op, Elementwise) and event.op.takes is not None:
        return record(event.op, forward_of(event, [value_of(operands[0])]), operands, event.attrs)
    return apply(event.op, operands, event.attrs)


class Run:
    """What a call has computed: the operations, with the numbers and arrays that it has brought."""

    def __init__(self, program: Program, result: int, parts: Sequence[Any] | None) -> None:
        self.events, self.result, self.parts = program.events, result, parts
        self.brought = [
            [
                operand_value(source, buffer) if source.kind >= LIVE else None
                for source, buffer in zip(event.operands, live, strict=True)
            ]
            for event, live in zip(program.events, program.live, strict=True)
        ]

    def recorded(self, arguments: Sequence[Tensor]) -> Tensor:
        """Apply the operations to Tensors, which are recorded one by one."""
        results: list[Tensor] = []
        for event, brought in zip(self.events[: self.result + 1], self.brought, strict=False):
            operands = [
                arguments[source.value] if source.kind == ARGUMENT
                else results[source.value] if source.kind == RESULT else x
                for source, x in zip(event.operands, brought, strict=True)
            ]  # fmt: skip
            results.append(apply_event(event, operands))
        return results[self.result]


def jacobians(program: Program, result: int) -> list[np.ndarray]:
    """Return the Jacobian by each argument for the numbers that a program has: it is recorded, row by row."""
    xs = [tensor(number_of(x), requires_grad=True) for x in program.arguments]
    y = Run(program, result, None).recorded(xs)
    flat = y.reshape(-1)
    rows = [grad(flat[k], xs, retain_graph=True, allow_unused=True) for k in range(flat.size)]
    columns = [[np.zeros(x.shape) if g is None else g.detach().numpy() for g in parts]
               for x, parts in zip(xs, zip(*rows, strict=True), strict=True)]  # fmt: skip
    return [np.reshape(parts, (*y.shape, *x.shape)) for x, parts in zip(xs, columns, strict=True)]


def _apart(x: Tensor) -> Tensor:
    """A result of its own: what an argument gets is for itself, also where others are computed from it."""
    return record(RESHAPE, x._v, (x,), {"shape": x._v.shape})


class _Ran(Function):
    """The record. The gradient of a number is known; for any other derivative the operations are applied."""

    @staticmethod
    def forward(ctx: Any, run: Run, value: Any, *xs: Tensor) -> Tensor:
        ctx.run = run
        ctx.save_for_backward(*xs)
        return tensor(value)

    @staticmethod
    def backward(ctx: Any, ct: Tensor) -> Any:
        run, xs = ctx.run, ctx.saved_tensors
        if run.parts is not None and not is_grad_enabled():
            return None, None, *(ct.reshape(()) * wrap(np.asarray(part)[()]) for part in run.parts)
        recording = is_grad_enabled()
        with enable_grad():
            xs = [_apart(x) if requires_grad(x) else x for x in xs]
            wanted = [x for x in xs if requires_grad(x)]
            y = run.recorded(xs)
            found = iter(grad(y, wanted, ct, create_graph=recording, allow_unused=True))
        return None, None, *(next(found) if requires_grad(x) else None for x in xs)


class _RanGradient(Function):
    """The record of the gradient, which is known; for a derivative of it the operations are applied."""

    @staticmethod
    def forward(ctx: Any, run: Run, *xs: Tensor) -> tuple[Tensor, ...]:
        ctx.run = run
        ctx.save_for_backward(*xs)
        assert run.parts is not None
        return tuple(map(tensor, run.parts))

    @staticmethod
    def backward(ctx: Any, *cts: Tensor) -> Any:
        xs, recording = ctx.saved_tensors, is_grad_enabled()
        with enable_grad():
            xs = [_apart(x) if requires_grad(x) else x.detach().requires_grad_() for x in xs]
            parts = grad(ctx.run.recorded(xs), xs, create_graph=True, allow_unused=True)
            moving = [(g, ct) for g, ct in zip(parts, cts, strict=True) if g is not None and requires_grad(g)]
            if not moving:
                return None, *(None for _ in xs)
            gs, weights = zip(*moving, strict=True)
            found = grad(gs, xs, weights, create_graph=recording, allow_unused=True)
        return None, *found


def record_run(
    program: Program, result: int, value: Any, parts: Sequence[Any] | None, given: Sequence[Any], pull: bool
) -> tuple[Tensor, list[Tensor] | None]:
    """Return Tensors of what a program has computed, recorded where an argument requires grad.

    These are the value and, if they are asked for, the derivatives by each leaf of the arguments.
    """
    if not any(requires_grad(x) for x in given):
        return tensor(value), [tensor(part) for part in parts or ()]
    run, given = Run(program, result, parts), [x if isinstance(x, Handle) else tensor(x) for x in given]
    return _Ran.apply(run, value, *given), list(_RanGradient.apply(run, *given)) if pull else None
