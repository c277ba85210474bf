"""Rules as programs for shapes and dtypes: run once on Tensors that note which ops are applied.

What a rule applies depends on shapes, dtypes and attributes, hardly ever on values. So it runs for these when
they come a second time, and once more with other values, to see that its steps are the same; compiled code
follows these from then on (`kernels.replay.rerecording`). A rule that asks for a value has no program, unless
its op tells which ops it applies by a `branch`. Attributes that it only hands on, such as an index, are put
into the program for each record; factors of a matrix as twins of those of the record.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tapegrad.autograd.recorded_rules import Words, fit_cotangent, words_of
from tapegrad.core.base import Handle, value_of
from tapegrad.core.dispatch import tensors_in
from tapegrad.core.grad_mode import within
from tapegrad.core.storage import DUAL
from tapegrad.errors import DTypeError, UnsupportedOpError
from tapegrad.kernels.replay import layout
from tapegrad.ops import forward
from tapegrad.ops.lanes import vjp
from tapegrad.ops.lapack import Kept
from tapegrad.ops.primitive import TRACED, Attributes, Primitive
from tapegrad.ops.programs import Program, Ref, Step
from tapegrad.ops.rules import Unreadable
from tapegrad.tape import pool
from tapegrad.tensor import Operand, Out, Tensor, wrap

MET = object()  # what has come once
MOST_TRACED = 1 << 18  # elements of an operand, beyond which it takes longer to run a rule than to call it
ARRAYS = (np.ndarray, tuple, list)  # or what may have some in it
ATTRIBUTES = (int, float, complex, str, type(None), type(Ellipsis), np.dtype, np.generic)  # that never change
_programs: dict[Any, Any] = {}  # words, None where there is no program, MET


class _Trace:
    """A rule at work: what it has applied so far. It is what its Tensors carry instead of a tangent."""

    lanes = None
    serial = 0
    of_any_dtype = True  # as of a `Provenance`

    def __init__(self, branched: bool) -> None:
        self.steps: list[Step] = []
        self.notes: dict[int, Any] | None = {}  # as of an open level of forward mode
        self.branched = branched  # whether it is known what is done for values such as these

    def tensor(self, value: Operand, ref: Ref, constant: bool = False) -> Tensor:
        """A Tensor that notes what is applied to it."""
        return wrap(value, DUAL, _Traced(self, value, ref, constant))

    def apply(
        self, op: Primitive, value: Operand, operands: Sequence[Operand], attrs: Attributes | None
    ) -> Tensor:
        """Note that an op has been applied; its result."""
        taken = forward.taken(op, value)
        again = forward.value(op, list(map(value_of, operands)), {**(attrs or {}), **taken})
        if _kind(again) != _kind(value) or not np.array_equal(again, value, equal_nan=True):
            raise Unreadable  # recorded by somebody who has computed it in another way
        like = pool.shadow(value) if isinstance(value, np.ndarray) else None
        function = functools.partial(op.forward, **taken) if taken else op.forward
        step = Step(function, op, tuple(map(self.ref, operands)), attrs or None, like=like)
        return self.tensor(value, self._step(step))

    def _step(self, step: Step) -> Ref:
        self.steps.append(step)
        return Ref("step", len(self.steps) - 1)

    def ref(self, x: Operand) -> Ref:
        """What an operand is to a program: one of its own, or what is the same for all values."""
        if isinstance(x, Handle):
            if x._tape is DUAL and isinstance(x._at, _Traced):
                return x._at.ref
            x = x._v
        return Ref("object", x)

    def take(self, x: Handle) -> None:
        """A value leaves a Tensor: what follows may depend on it."""
        raise Unreadable

    def note(self, out: Handle, operands: Sequence[Operand], apart: bool) -> None:
        """A Tensor without a history, computed from others."""
        if any(isinstance(x, Handle) for x in operands):
            raise Unreadable

    def flat(self, out: Handle, function: Callable[..., Any], operands: Sequence[Operand]) -> None:
        """Note that a function without a derivative has given a Tensor."""
        if tensors_in([x for x in operands if not isinstance(x, Handle)]):
            raise Unreadable
        if isinstance(function, functools.partial) and tensors_in(function.keywords):
            raise Unreadable
        ref = self._step(Step(function, None, tuple(map(self.ref, operands))))
        out._tape, out._at = DUAL, _Traced(self, out._v, ref)


class _Traced:
    """What a Tensor of a rule at work is to it; a `Dual` to those who ask."""

    __slots__ = ("constant", "level", "primal", "ref", "tangent")

    def __init__(self, trace: _Trace, value: Operand, ref: Ref, constant: bool = False) -> None:
        self.level, self.primal, self.ref = trace, wrap(value), ref
        self.tangent, self.constant = self.primal, constant

    @property
    def parts(self) -> list[Tensor]:
        """As `Dual.parts`."""
        return [self.primal]

    def look(self) -> None:
        """See the rule look at a value."""
        if not self.level.branched:
            raise Unreadable

    def record(
        self, op: Primitive, value: Operand, operands: Sequence[Operand], attrs: Attributes | None
    ) -> Tensor:
        """As `Dual.record`."""
        return self.level.apply(op, value, operands, attrs)


def trace_rule(
    op: Primitive, ct: Tensor, out: np.ndarray, operands: Sequence[Operand], attrs: Attributes | None,
    wanted: Sequence[int],
) -> Words | None:  # fmt: skip
    """Return the words of the program of a rule for operands of these shapes and dtypes; None without one.

    Operands that are constants are Tensors, others are their values.
    """
    own = vars(op)
    text = own.get("vjp") or own.get("_vjp") or own["rule"]  # what is in force
    lanes = ct._v.ndim - out.ndim  # an axis of them, or none
    opaque = () if lanes else op.opaque  # with lanes they are others
    constants = tuple(isinstance(x, Handle) for x in operands)
    values = [value_of(x) for x in operands]
    if max(x.size for x in (ct._v, *values)) > MOST_TRACED:
        return None
    branch = _branch(op, out, values, attrs or {})
    try:
        given = attrs and tuple(_named(name, x, name in opaque) for name, x in attrs.items())
    except TypeError:  # arrays, or factors of this record
        return None
    key = (op, text, *wanted, given, branch, constants, ct._v.shape, *map(_kind, (out, *values)))
    found = None if branch is None else _programs.get(key, MET)
    if found is MET and key not in _programs:
        _keep(key, MET)
    elif found is MET:

        def rule(ct: Tensor, out: Tensor, *inputs: Tensor) -> list[Tensor | None]:
            if lanes:
                found = vjp(op, len(ct), ct, out, inputs, attrs or {}, wanted)
            else:
                found = op.vjp(ct, out, inputs, attrs or {}, wanted)
            return [found.get(k) for k in wanted]

        handed = {name: attrs[name] for name in opaque if attrs and name in attrs}
        program = _traced(rule, (ct._v, out, *values), wanted, handed, (False, False, *constants), op)
        if program and any(ref.kind == "object" for ref in program.results.values()):
            program = None  # a part is made anew for each sweep, as somebody may write to it
        found = _keep(key, program and words_of(program))
    if found is MET or found is None:
        return None
    words: Words = found.view()
    looked_at = {name: x for name, x in (attrs or {}).items() if name not in opaque}
    words.kept = found, looked_at  # compiled code finds them by addresses of texts among these
    return words


def steps_of_rule(
    op: Primitive, ct: np.ndarray, out: np.ndarray, operands: Sequence[np.ndarray], constants: Sequence[bool],
    attrs: Attributes, wanted: Sequence[int],
) -> Program | None:  # fmt: skip
    """Return what a rule applies to operands of these shapes and dtypes; None where values decide that.

    What each of the wanted operands gets has its shape and dtype. `constants`: which operands have no
    history. A program that is `nonzero` or `branched` is for values of which `is_followed` holds.
    """

    def rule(ct: Tensor, out: Tensor, *inputs: Tensor) -> list[Tensor | None]:
        found = op.vjp(ct, out, inputs, attrs, wanted)
        pairs = [(found.get(k), operands[k]) for k in wanted]
        return [None if part is None else fit_cotangent(part, x, 0) for part, x in pairs]

    if _branch(op, out, operands, attrs) is None or any(isinstance(x, Kept) for x in attrs.values()):
        return None
    return _traced(rule, (ct, out, *operands), wanted, {}, (False, False, *constants), op)


def is_followed(op: Primitive, out: np.ndarray, operands: Sequence[np.ndarray], attrs: Attributes) -> bool:
    """Whether a rule that looks at values applies to these what it has applied to others."""
    return _branch(op, out, operands, attrs) is True


def _branch(op: Primitive, out: Out, operands: Sequence[Operand], attrs: Attributes) -> bool | None:
    """What is known of the values that decide which ops a rule applies; None if only it can tell."""
    if op.kink:
        value = op.kink_value(out, operands)
        return True if np.all(value_of(value) != 0) else None
    return True if op.branch is None else op.branch(out, operands, attrs)


def forget() -> None:
    """Let go of all programs, as functions that rules call are replaced."""
    _programs.clear()
    for programs in TRACED:
        if programs:
            programs.clear()


def _keep(key: Any, words: Words | object | None) -> Any:
    """Keep the words of a program for what comes again; returns them."""
    if len(_programs) >= layout.MOST_PROGRAMS:
        _programs.clear()
    _programs[key] = words
    return words


def trace_fit(part: Tensor, like: Operand, lanes: bool) -> Words:
    """Return the words of the program that gives a part of a cotangent the shape and dtype of a value.

    Sums and casts ask for no values, so there is one.
    """
    program = _traced(lambda x: [fit_cotangent(x, like, int(lanes))], (part._v,), (0,), {}, (False,))
    assert program is not None
    return words_of(program)


def _kind(x: Any) -> tuple[tuple[int, ...], np.dtype]:
    return x.shape, x.dtype


def _named(name: str, x: Any, opaque: bool) -> tuple[Any, ...]:
    """An attribute by what programs depend on; a TypeError where that cannot be compared."""
    return (name, x is None) if opaque else (name, _known(x))


def _known(x: Any) -> Any:
    """An attribute as what can be compared; a TypeError where it cannot."""
    if isinstance(x, (tuple, list)):
        return type(x), *map(_known, x)
    if isinstance(x, slice):
        return slice, x.start, x.stop, x.step
    if not isinstance(x, ATTRIBUTES):
        raise TypeError
    return type(x), x


def _traced(
    rule: Callable[..., list[Any]], values: Sequence[Operand], wanted: Sequence[int], handed: Attributes,
    constants: Sequence[bool], op: Primitive | None = None,
) -> Program | None:  # fmt: skip
    """The program of what a rule of an op applies to Tensors of these values; None if it asks for them.

    Attributes that are `handed` on are left to the record.
    """
    kink, branched = op is not None and op.kink, op is not None and op.branch is not None
    random = np.random.default_rng(0)
    others = [_other(x, kink or branched, random) for x in values]
    found, again = (_steps_of(rule, each, wanted, constants, kink or branched) for each in (values, others))
    if found is None or again is None or not _alike(found, again):
        return None
    steps, results = _needed(*found)
    if len(steps) > layout.PROGRAM_WORDS - layout.STEPS or len(values) > layout.STEPS:
        return None
    if any(len(step.operands) > layout.TAKEN_AT_MOST for step in steps):
        return None
    try:
        steps = tuple(_open(step, handed) for step in steps)
    except Unreadable:
        return None
    shapes = {
        ref.value: np.shape(values[k + 2]) for k, ref in results.items() if ref.kind == "step" and handed
    }
    for i, step in enumerate(steps):
        if step.handed and step.like is not None and step.like.shape != shapes.get(i):
            steps = (
                *steps[:i],
                step._replace(like=None),
                *steps[i + 1 :],
            )  # the record's own may give another
    return Program(steps, results, (), kink, branched)


def _steps_of(
    rule: Callable[..., list[Tensor | None]], values: Sequence[Operand], wanted: Sequence[int],
    constants: Sequence[bool], branched: bool,
) -> tuple[list[Step], dict[int, Ref]] | None:  # fmt: skip
    """What a rule applies to Tensors of these values, and where what each operand gets stands.

    None if it asks for a value, or for a derivative that there is none of.
    """
    trace = _Trace(branched)
    refs = [Ref("ct", 0), Ref("out", 0), *(Ref("input", k) for k in range(len(values) - 2))]
    try:
        with np.errstate(all="ignore"):
            changes = {"recording": True, "forward": trace}
            found = within(changes, rule, *map(trace.tensor, values, refs, constants))
    except (Unreadable, DTypeError, UnsupportedOpError, np.linalg.LinAlgError):
        return None
    finally:
        trace.notes = None
    return trace.steps, {k: trace.ref(x) for k, x in zip(wanted, found, strict=True) if x is not None}


def _other(x: Any, near: bool, random: np.random.Generator) -> Any:
    """Other values of the same shape and dtype, perhaps near, by which it shows what a rule takes of them."""
    if x.dtype.kind not in "fc":
        return np.logical_not(x)[()] if x.dtype.kind == "b" else x
    found = x * random.uniform(0.999, 1.001, x.shape) if near else random.normal(size=x.shape)
    return found.astype(x.dtype)[()] if x.ndim == 0 else found.astype(x.dtype)


def _alike(x: Any, y: Any) -> bool:
    """Whether steps, or parts of them, are the same."""
    if x is y:
        return True
    if type(x) is not type(y):
        return False
    if isinstance(x, (np.ndarray, np.generic)):
        return x.dtype == y.dtype and np.array_equal(x, y, equal_nan=x.dtype.kind in "fc")
    if isinstance(x, (tuple, list)):
        return len(x) == len(y) and all(map(_alike, x, y))
    if isinstance(x, dict):
        return x.keys() == y.keys() and all(_alike(x[key], y[key]) for key in x)
    if isinstance(x, slice):
        return _alike((x.start, x.stop, x.step), (y.start, y.stop, y.step))
    if isinstance(x, functools.partial):
        return _alike((x.func, x.args, x.keywords), (y.func, y.args, y.keywords))
    if isinstance(x, Kept):
        return bool(x.name() == y.name())
    return bool(x == y) or (x != x and y != y)


def _open(step: Step, handed: Attributes) -> Step:
    """A step that takes what is handed on from the record, and keeps nothing of this one."""
    attrs = step.attrs or {}
    names = tuple(name for name in attrs if name in handed)
    twins, arrays = False, not any(isinstance(x, ARRAYS) for x in handed.values())
    for name, x in attrs.items():
        if name not in handed:
            changed = not _is_fixed(x, arrays)
        elif isinstance(x, Kept) and isinstance(handed[name], Kept):
            changed, twins = x.name() != handed[name].name(), True
        else:
            changed = x is not handed[name]
        if changed:
            raise Unreadable  # what the rule has made of it
    kept = {k: x for k, x in attrs.items() if k not in names}
    return step._replace(attrs=kept, handed=names, twins=twins) if names else step


def _is_fixed(x: Any, arrays: bool) -> bool:
    """Whether an attribute is the same for all values; `arrays` are, where they are made of shapes alone."""
    if isinstance(x, (tuple, list)):
        return all(_is_fixed(part, arrays) for part in x)
    return isinstance(x, (*ATTRIBUTES, bytes, slice)) or (isinstance(x, np.ndarray) and arrays)


def twins(attrs: Attributes) -> Attributes:
    """Return attributes with factors that another record may release for itself."""
    return {name: x.twin() if isinstance(x, Kept) else x for name, x in attrs.items()}


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
