"""A call that a program has computed, as one record of an outer graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tapegrad.autograd import grad
from tapegrad.compilation.events.events import ARGUMENT, FIXED, PYTHON_S, RESULT, Event, Source
from tapegrad.compilation.events.passive import Passive
from tapegrad.compilation.programs.program import Program
from tapegrad.compilation.rows.computing import forward_of, number_of
from tapegrad.core.base import Handle, add_saved_bytes, requires_grad, value_of
from tapegrad.core.conversion import astype
from tapegrad.core.grad_mode import enable_grad
from tapegrad.ops import REGISTRY
from tapegrad.ops.primitive import ALL, Attributes, Elementwise, Primitive
from tapegrad.tensor import Operand, Tensor, TensorOrArray, apply, record, tensor, wrap

RESHAPE = REGISTRY["reshape"]


def operand_value(source: Source, buffer: Any) -> Any:
    """Return a number or an array that a call has brought, as the function gave it."""
    if source.kind == FIXED:
        return source.value
    if type(source.value) in PYTHON_S:
        return buffer[()].item()
    return buffer.copy("K") if buffer.ndim else buffer[()]


def apply_event(event: Event, operands: Sequence[Operand]) -> Tensor:
    """Apply an operation as it was; a shape that an op takes of its result is none of its attributes."""
    if event.unrecorded or isinstance(event.op, Passive):
        return wrap(forward_of(event, [value_of(x) for x in operands]))
    if isinstance(event.op, Elementwise) and event.op.takes is not None:
        return record(event.op, forward_of(event, [value_of(operands[0])]), operands, event.attrs)
    return apply(event.op, operands, event.attrs)


class Run:
    """What a call has computed: the operations, with the numbers and arrays `brought`, in order."""

    def __init__(self, program: Program, result: int, parts: Sequence[Any] | None) -> None:
        self.events, self.result, self.parts = program.events, result, parts
        self._anew = {k: program.event_of_call(k) for k in program.anew}
        value_of = program.copies.value_of
        self.brought = [operand_value(source, value_of(x)) for source, x in program.operands_brought]

    def recorded(self, arguments: Sequence[Tensor]) -> Tensor:
        """Apply the operations to Tensors, which are recorded one by one."""
        results: list[Tensor] = []
        brought = iter(self.brought)
        for k in range(self.result + 1):
            event = self._anew.get(k) or self.events[k]
            operands = [
                arguments[source.value] if source.kind == ARGUMENT
                else results[source.value] if source.kind == RESULT else next(brought)
                for source in event.operands
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


def _apart(x: Any) -> Tensor:
    """A result of its own: what an argument gets is for itself, also where others are computed from it."""
    return record(RESHAPE, x._v, (x,), {"shape": x._v.shape})


class _OfRun(Primitive):
    """An op of the leaves of a call's arguments; its attribute `run` is a `Run`."""

    listed = False

    def __init__(self, name: str) -> None:
        super().__init__(name, (), None, 0, self.__doc__)

    def reads(self, k: int) -> int:
        """All operands: the operations may have to be applied again."""
        return ALL

    def vjp(
        self, ct: TensorOrArray, out: TensorOrArray, inputs: Sequence[TensorOrArray], attrs: Attributes,
        wanted: Sequence[int],
    ) -> dict[int, TensorOrArray]:  # fmt: skip
        """Of Tensors it is recorded."""
        recording = isinstance(ct, Handle)
        with enable_grad():
            xs = [_apart(x) if requires_grad(x) else tensor(value_of(x), requires_grad=q in wanted)
                  for q, x in enumerate(inputs)]  # fmt: skip
            ct = ct if isinstance(ct, Handle) else wrap(ct)
            ys, cts = self.results(attrs["run"], xs, ct)
            if not ys:
                return {}
            found = grad(ys, [xs[q] for q in wanted], cts, create_graph=recording, allow_unused=True)
        parts = zip(wanted, found, strict=True)
        return {q: part if recording else part._v for q, part in parts if part is not None}

    def results(self, run: Run, xs: list[Tensor], ct: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """What the run gives of these, by its operations, and the cotangents of that."""
        raise NotImplementedError


class _Ran(_OfRun):
    """The value of a call."""

    def vjp(
        self, ct: TensorOrArray, out: TensorOrArray, inputs: Sequence[TensorOrArray], attrs: Attributes,
        wanted: Sequence[int],
    ) -> dict[int, TensorOrArray]:  # fmt: skip
        """The gradient of a number is known."""
        run: Run = attrs["run"]
        if run.parts is None:
            return super().vjp(ct, out, inputs, attrs, wanted)
        if isinstance(ct, Handle):
            with enable_grad():
                parts = gradients(run, inputs)
                return {q: np.reshape(ct, ()) * parts[q] for q in wanted}
        return {q: np.reshape(ct, ())[()] * run.parts[q] for q in wanted}

    def results(self, run: Run, xs: list[Tensor], ct: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """The value."""
        return [run.recorded(xs)], [ct]


class _RanGradient(_OfRun):
    """The derivatives of a number by all leaves, one behind the other; of one leaf that itself."""

    def results(self, run: Run, xs: list[Tensor], ct: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Those that move."""
        leaves = [x if requires_grad(x) else x.requires_grad_() for x in xs]
        found = grad(run.recorded(leaves), leaves, create_graph=True, allow_unused=True)
        pairs = [(g, c) for g, c in zip(found, _split(ct, xs), strict=True) if g is not None]
        return [g for g, _ in pairs if requires_grad(g)], [c for g, c in pairs if requires_grad(g)]


RAN, RAN_GRADIENT = _Ran("compiled"), _RanGradient("compiled_gradient_of")


def _split(flat: Tensor, like: Sequence[Any]) -> list[Tensor]:
    """Parts of a vector, one for each of these, as they are shaped."""
    if len(like) == 1:
        return [flat]
    ends = np.cumsum([value_of(x).size for x in like]).tolist()
    parts = zip(like, [0, *ends], ends, strict=False)
    return [np.reshape(flat[begin:end], value_of(x).shape) for x, begin, end in parts]  # type: ignore[misc]


def gradients(run: Run, inputs: Sequence[Any]) -> list[Tensor]:
    """The derivatives of a number, recorded."""
    assert run.parts is not None
    parts = [np.asarray(part) for part in run.parts]
    value = parts[0].copy() if len(parts) == 1 else np.concatenate([part.reshape(-1) for part in parts])
    found = _split(record(RAN_GRADIENT, value[()], inputs, {"run": run}), inputs)
    return [astype(g, part.dtype) for g, part in zip(found, parts, strict=True)]


def record_run(
    program: Program,
    result: int,
    value: Operand,
    parts: Sequence[Any] | None,
    given: Sequence[Any],
    pull: bool,
) -> tuple[Tensor, list[Tensor] | None]:
    """Return Tensors of what a program has computed, recorded where an argument requires grad.

    These are the value and, if they are asked for, the derivatives by each leaf of the arguments.
    """
    if not any(requires_grad(x) for x in given):
        return tensor(value), [tensor(part) for part in parts or ()]
    run, inputs = Run(program, result, parts), [x if isinstance(x, Handle) else tensor(x) for x in given]
    out = record(RAN, np.asarray(value)[()], inputs, {"run": run})
    kept = [x for x in (*(parts or ()), *run.brought) if isinstance(x, np.ndarray)]
    if kept:
        add_saved_bytes(out, kept)
    return out, gradients(run, inputs) if pull else None
