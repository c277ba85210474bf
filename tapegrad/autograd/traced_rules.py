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

MOST = 1024  # programs that are kept
_programs: dict[Any, _Fixed | _Open] = {}


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
        given = attrs or {}
        if isinstance(op, Elementwise) and op.takes is not None:
            given = {op.takes: getattr(value, op.takes)}
        function = functools.partial(op.forward, **given) if given else op.forward
        again = function(*map(value_of, operands))
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
    if found is None:
        _keep(key, MET)
        return None
    if found is not MET:
        return found.words(attrs)

    def rule(ct: Tensor, out: Tensor, *inputs: Tensor) -> list[Any]:
        if lanes:
            found = vjp(op, len(ct), ct, out, inputs, attrs or {}, wanted)  # type: ignore[no-untyped-call]
        else:
            found = op.vjp(ct, out, inputs, attrs or {}, wanted)  # type: ignore[no-untyped-call]
        return [found.get(k) for k in wanted]

    handed = {name: attrs[name] for name in opaque if attrs and name in attrs}
    return _keep(key, _traced(rule, (ct._v, out, *operands), wanted, handed)).words(attrs)


def _keep(key: Any, program: _Fixed | _Open) -> _Fixed | _Open:
    """Keep a program for what comes again; returns it."""
    if len(_programs) >= MOST:
        _programs.clear()
    _programs[key] = program
    return program


def trace_fit(part: Tensor, like: Any, lanes: bool) -> Words | None:
    """Return the words of the program that gives a part of a cotangent the shape and dtype of a value.

    Sums and casts ask for no values, so there is one.
    """
    key = (None, _kind(part._v), _kind(like), lanes)
    found = _programs.get(key)
    if found is None:
        found = _keep(key, _traced(lambda x: [fit_cotangent(x, like, int(lanes))], (part._v,), (0,), {}))
    return found.words(None)


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


class _Fixed:
    """A program that is the same for all records, or none."""

    def __init__(self, program: Program | None) -> None:
        self._words = None if program is None else words_of(program)

    def words(self, attrs: Attributes | None) -> Words | None:
        """Its words for a record with these attributes."""
        return self._words


MET, NONE = _Fixed(None), _Fixed(None)  # what has come once; what has no program


class _Open:
    """A program into which attributes of the record are put."""

    def __init__(self, program: Program, handed: Attributes) -> None:
        self.places: list[tuple[int, Primitive, Attributes, list[str]]] = []
        steps: list[Step] = []
        at = layout.GIVEN + max(program.results, default=-1) + 1
        for step in program.steps:
            attrs = step.attrs or {}
            names = [name for name, value in attrs.items() if handed.get(name, handed) is value]
            if names and step.op is not None:
                fixed = {name: value for name, value in attrs.items() if name not in names}
                self.places.append((at, step.op, fixed, names))
                step = step._replace(function=None, attrs=fixed)  # nothing of this record is kept
            steps.append(step)
            at += layout.STEP_WORDS
        self._words = words_of(program._replace(steps=tuple(steps)))

    def words(self, attrs: Any) -> Words:
        """As `_Fixed.words`."""
        words = self._words.copy()
        kept: list[Any] = [self._words]
        words.kept = kept
        for at, op, fixed, names in self.places:
            given = {**fixed, **{name: attrs[name] for name in names}}
            function = functools.partial(op.forward, **given)
            words[at + layout.STEP_FUNCTION], words[at + layout.STEP_ATTRS] = id(function), id(given)
            kept += function, given
        return words


def _traced(
    rule: Callable[..., list[Any]], values: Sequence[Any], wanted: Sequence[int], handed: Attributes
) -> _Fixed | _Open:
    """The program of what a rule applies to Tensors of these values; NONE if it asks for them."""
    trace = _Trace()
    refs = [Ref("ct", 0), Ref("out", 0), *(Ref("input", k) for k in range(len(values) - 2))]
    try:
        with np.errstate(all="ignore"):
            changes = {"recording": True, "forward": trace}
            found = within(changes, rule, *map(trace.tensor, values, refs))
    except (Unreadable, DTypeError):  # it asks for a value, or for a part of an operand of whole numbers
        return NONE
    finally:
        trace.notes = None
    results = {k: trace.ref(part) for k, part in zip(wanted, found, strict=True) if part is not None}
    program = Program(*_needed(trace.steps, results), ())
    if len(program.steps) > layout.PROGRAM_WORDS - layout.STEPS or len(values) > layout.STEPS:
        return NONE
    if any(len(step.operands) > layout.TAKEN_AT_MOST for step in program.steps):
        return NONE
    return _Open(program, handed) if handed else _Fixed(program)


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
