"""Rules that look at shapes alone, as programs: run once on Tensors that note which ops are applied.

What a rule of a linear op, a sum or a product of matrices computes depends on shapes, dtypes and attributes,
never on values. So it runs once for these, when they come a second time, and compiled code follows the ops it
has applied from then on (`kernels.replay.rerecording`). A rule that asks for a value nevertheless has no
program. Attributes that it only hands on, such as an index, are put into the program for each record.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tapegrad.autograd.recorded_rules import Words, fit_cotangent, words_of
from tapegrad.core.base import Handle, value_of, wrap
from tapegrad.core.grad_mode import within
from tapegrad.core.storage import DUAL
from tapegrad.errors import DTypeError
from tapegrad.kernels.replay import layout
from tapegrad.ops.lanes import vjp
from tapegrad.ops.primitive import Attributes, Elementwise, Primitive
from tapegrad.ops.programs import Program, Ref, Step
from tapegrad.ops.rules import Unreadable
from tapegrad.tensor import Tensor

MET = object()  # what has come once
_programs: dict[Any, Any] = {}  # words, None where there is no program, MET


class _Trace:
    """A rule at work: what it has applied so far. It is what its Tensors carry instead of a tangent."""

    lanes = None
    serial = 0

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.notes: dict[int, Any] | None = {}  # as of an open level of forward mode

    def tensor(self, value: Any, ref: Ref) -> Tensor:
        """A Tensor that notes what is applied to it."""
        return wrap(value, DUAL, _Traced(self, value, ref))

    def apply(self, op: Primitive, value: Any, operands: Sequence[Any], attrs: Attributes | None) -> Tensor:
        """Note that an op has been applied; its result."""
        function = op.forward
        if isinstance(op, Elementwise) and op.takes is not None:
            function = functools.partial(function, **{op.takes: getattr(value, op.takes)})
        again = function(*map(value_of, operands), **(attrs or {}))
        if _kind(again) != _kind(value) or not np.array_equal(again, value, equal_nan=True):
            raise Unreadable  # recorded by somebody who has computed it in another way
        self.steps.append(Step(function, op, tuple(map(self.ref, operands)), attrs or None))
        return self.tensor(value, Ref("step", len(self.steps) - 1))

    def ref(self, x: Any) -> Ref:
        """What an operand is to a program: one of its own, or what is the same for all values."""
        if isinstance(x, Handle):
            if x._tape is DUAL and isinstance(x._at, _Traced):
                return x._at.ref
            x = x._v
        return Ref("object", x)

    def take(self, x: Handle) -> None:
        """A value leaves a Tensor: what follows may depend on it."""
        raise Unreadable

    def note(self, out: Handle, operands: Sequence[Any], apart: bool) -> None:
        """A Tensor without a history, computed from others."""
        raise Unreadable


class _Traced:
    """What a Tensor of a rule at work is to it; a `Dual` to those who ask."""

    __slots__ = ("level", "primal", "ref", "tangent")

    def __init__(self, trace: _Trace, value: Any, ref: Ref) -> None:
        self.level, self.primal, self.ref = trace, wrap(value), ref
        self.tangent = self.primal

    def record(self, op: Primitive, value: Any, operands: Sequence[Any], attrs: Attributes | None) -> Tensor:
        """As `Dual.record`."""
        return self.level.apply(op, value, operands, attrs)


def trace_rule(
    op: Primitive, ct: Tensor, out: Any, operands: Sequence[Any], attrs: Attributes | None,
    wanted: Sequence[int],
) -> Words | None:  # fmt: skip
    """Return the words of the program of a rule for operands of these shapes and dtypes; None without one."""
    own = vars(op)
    text = own.get("vjp") or own.get("_vjp") or own["rule"]  # what is in force
    lanes = ct._v.ndim - out.ndim  # an axis of them, or none
    opaque = () if lanes else op.opaque  # with lanes they are others
    given = attrs and tuple((name, name in opaque or _known(x)) for name, x in attrs.items())
    key = (op, text, *wanted, given, ct._v.shape, *map(_kind, (out, *operands)))
    try:
        found = _programs.get(key)
    except TypeError:  # attributes that are arrays, or factors of this record
        return None
    if found is None and key not in _programs:
        _keep(key, MET)
    if found is not MET:
        return found

    def rule(ct: Tensor, out: Tensor, *inputs: Tensor) -> list[Any]:
        if lanes:
            found = vjp(op, len(ct), ct, out, inputs, attrs or {}, wanted)  # type: ignore[no-untyped-call]
        else:
            found = op.vjp(ct, out, inputs, attrs or {}, wanted)  # type: ignore[no-untyped-call]
        return [found.get(k) for k in wanted]

    handed = {name: attrs[name] for name in opaque if attrs and name in attrs}
    program = _traced(rule, (ct._v, out, *operands), wanted, handed)
    words: Words | None = _keep(key, program and words_of(program))
    return words


def _keep(key: Any, words: Words | object | None) -> Any:
    """Keep the words of a program for what comes again; returns them."""
    if len(_programs) >= layout.MOST_PROGRAMS:
        _programs.clear()
    _programs[key] = words
    return words


def trace_fit(part: Tensor, like: Any, lanes: bool) -> Words:
    """Return the words of the program that gives a part of a cotangent the shape and dtype of a value.

    Sums and casts ask for no values, so there is one.
    """
    program = _traced(lambda x: [fit_cotangent(x, like, int(lanes))], (part._v,), (0,), {})
    assert program is not None
    return words_of(program)


def _kind(x: Any) -> tuple[Any, ...]:
    return x.shape, x.dtype


def _known(attrs: Any) -> Any:
    """Attributes as what can be compared; a TypeError later on where they cannot."""
    if isinstance(attrs, dict):
        return tuple((name, _known(value)) for name, value in attrs.items())
    if isinstance(attrs, tuple):
        return tuple(_known(value) for value in attrs)
    if isinstance(attrs, slice):
        return slice, attrs.start, attrs.stop, attrs.step
    return type(attrs), attrs


def _traced(
    rule: Callable[..., list[Any]], values: Sequence[Any], wanted: Sequence[int], handed: Attributes
) -> Program | None:
    """The program of what a rule applies to Tensors of these values; None if it asks for them.

    Attributes that are `handed` on are left to the record.
    """
    trace = _Trace()
    refs = [Ref("ct", 0), Ref("out", 0), *(Ref("input", k) for k in range(len(values) - 2))]
    try:
        with np.errstate(all="ignore"):
            changes = {"recording": True, "forward": trace}
            found = within(changes, rule, *map(trace.tensor, values, refs))
    except (Unreadable, DTypeError):  # it asks for a value, or for a part of an operand of whole numbers
        return None
    finally:
        trace.notes = None
    results = {k: trace.ref(part) for k, part in zip(wanted, found, strict=True) if part is not None}
    steps, results = _needed(trace.steps, results)
    if len(steps) > layout.PROGRAM_WORDS - layout.STEPS or len(values) > layout.STEPS:
        return None
    if any(len(step.operands) > layout.TAKEN_AT_MOST for step in steps):
        return None
    try:
        return Program(tuple(_open(step, handed) for step in steps), results, ())
    except Unreadable:
        return None


def _open(step: Step, handed: Attributes) -> Step:
    """A step that takes what is handed on from the record, and keeps nothing of this one."""
    attrs = step.attrs or {}
    names = tuple(name for name in attrs if name in handed)
    if not names:
        return step
    if any(attrs[name] is not handed[name] for name in names):
        raise Unreadable  # what the rule has made of it
    return step._replace(attrs={k: x for k, x in attrs.items() if k not in names}, handed=names)


def _needed(steps: list[Step], results: dict[int, Ref]) -> tuple[tuple[Step, ...], dict[int, Ref]]:
    """The steps that lead to results, and those."""
    used = {ref.value for ref in results.values() if ref.kind == "step"}
    for i in range(len(steps) - 1, -1, -1):
        if i in used:
            used |= {ref.value for ref in steps[i].operands if ref.kind == "step"}
    number = {i: n for n, i in enumerate(sorted(used))}

    def renumbered(ref: Ref) -> Ref:
        return Ref("step", number[ref.value]) if ref.kind == "step" else ref

    kept = tuple(steps[i]._replace(operands=tuple(map(renumbered, steps[i].operands))) for i in number)
    return kept, {k: renumbered(ref) for k, ref in results.items()}
