"""Running a Function's forward, and recording it as a call."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Sequence
from numbers import Integral, Number
from typing import Any

import numpy as np

from tapegrad.autograd.call import NESTED, Call, FunctionCtx, Kept, mapped
from tapegrad.autograd.compiled import FunctionMeta
from tapegrad.autograd.hooks import from_array
from tapegrad.autograd.provenance import Provenance, escape_error
from tapegrad.core.base import (
    Handle,
    extra,
    has_tangent,
    nbytes_of,
    refresh_history,
    requires_grad,
    strip_tangents,
)
from tapegrad.core.conversion import astype
from tapegrad.core.dispatch import as_tape_value, is_view_of, with_metadata
from tapegrad.core.forward_mode import Level, at_level, dual
from tapegrad.core.grad_mode import in_force, is_grad_enabled, within
from tapegrad.core.histories import sharers
from tapegrad.core.inplace import write
from tapegrad.core.saved_values import Packing
from tapegrad.core.series import Expansion
from tapegrad.core.storage import DUAL, STALE
from tapegrad.errors import DTypeError, GradientError, ShapeError
from tapegrad.kernels import abi
from tapegrad.numpy_api.shapes import stack
from tapegrad.ops import custom
from tapegrad.ops.primitive import OUT
from tapegrad.tape.record import slot
from tapegrad.tape.tape import Place, Tape, close, current, local
from tapegrad.tensor import Tensor, TensorOrArray, alias_of, record, wrap

__all__ = ["applied", "as_tensor", "holds_numbers"]

# what ctx has in any case; `_known` is what Functions of the library know of a call, which owns no tape
OF_ITSELF = {"_call", "_dirty", "_known", "_plain", "_saved", "needs_input_grad"}
PARTS = 16  # of what a ctx keeps that are looked at one by one
NO_OWNER = (int, float, complex, str, bytes, np.generic, np.dtype, slice, type)


def applied(
    cls: FunctionMeta,
    ctx: FunctionCtx,
    name: str,
    forward: Callable[..., Any],
    rule: Callable[..., Any],
    args: Sequence[Any],
    given: list[Any],
) -> Any:
    """Run forward on what is given for the arguments, and record it as a call."""
    return _applied(cls, ctx, name, forward, rule, args, given, [])[0]


def _applied(
    cls: FunctionMeta, ctx: FunctionCtx, name: str, forward: Callable[..., Any],
    rule: Callable[..., Any], args: Sequence[Any], given: list[Any],
    bases: list[Tensor],
) -> tuple[Any, Provenance | None]:  # fmt: skip
    """As `applied`, where `bases` were given for arguments that carry tangents; and what is known of it."""
    moving = False
    for x in args:
        if isinstance(x, Handle):
            if x._tape is STALE:
                refresh_history(x)
            moving = moving or (x._tape is DUAL and has_tangent(x))
    if moving:
        levels = [x._at.level for x in args if has_tangent(x)]
        level = max(levels, key=lambda level: level.serial)
        if isinstance(level, Expansion):
            raise GradientError(
                f"{cls.__name__} has no power series (tg.func.taylor): its jvp is for tangents alone; "
                "write it in NumPy's functions"
            )
        if not bases:
            given = [(wrap(x._v) if cls._is_legacy else alias_of(strip_tangents(x))) if has_tangent(x) else y
                     for x, y in zip(args, given, strict=True)]  # fmt: skip
            bases = [y for x, y in zip(args, given, strict=True) if has_tangent(x)]
        return _moved(cls, ctx, name, forward, rule, args, given, bases, level)
    needs = tuple([requires_grad(x) for x in args])
    ctx.needs_input_grad = needs
    if not any(needs) or not is_grad_enabled():
        if not bases:
            found = within({"recording": False}, forward, *given)
            return (tuple(map(_unrecorded, found)) if isinstance(found, tuple) else _unrecorded(found)), None
        provenance = Provenance(cls.__name__, ())
        provenance.bases = bases
        found = within({"recording": False, "forward": provenance}, forward, *given)
        results = _results(cls, found)
        outs = [wrap(out._v) if isinstance(out, Handle) else out for out in results]
        _exchange(ctx, None, results, outs)
        return (tuple(outs) if isinstance(found, tuple) else outs[0]), provenance
    slots = [k for k, need in enumerate(needs) if need]
    befores = [alias_of(args[k]) for k in slots]
    provenance = Provenance(cls.__name__, befores)
    provenance.bases = bases
    raw, once = cls._is_legacy, getattr(rule, "once_differentiable", False)
    call = Call(rule, ctx, name, args, slots, provenance, once, raw)
    provenance.call = weakref.ref(call)
    if raw:
        for k in slots:
            extra(given[k]).call = provenance
    versions = [_version(given[k]) for k in slots]
    found = within({"recording": False, "forward": provenance}, forward, *given)
    results = _results(cls, found)
    for k, version in zip(slots, versions, strict=True):
        if _version(given[k]) != version and not any(given[k] is x for x in ctx._dirty):
            raise GradientError(
                f"{cls.__name__}.forward wrote to argument {k}; say so with ctx.mark_dirty and return it, or "
                "write to a copy made by clone()"
            )
    outs = _recorded(call, args, given, befores, results)
    return (tuple(outs) if isinstance(found, tuple) else outs[0]), provenance


def _moved(
    cls: FunctionMeta, ctx: FunctionCtx, name: str, forward: Callable[..., Any],
    rule: Callable[..., Any], args: Sequence[Any], given: list[Any],
    bases: list[Tensor], level: Level,
) -> tuple[Any, Provenance | None]:  # fmt: skip
    """Call a Function of Tensors that carry tangents: its results with theirs, by its jvp.

    Forward runs once, on values. What ctx keeps of arguments and results is exchanged, level by level, for
    what they are there; with all else that forward kept a tangent may be computed, but not differentiated.
    """
    duals = [at_level(x, level) for x in args]
    lanes = () if level.lanes is None else (level.lanes,)
    primals = [x if d is None else d.primal for x, d in zip(args, duals, strict=True)]
    found, provenance = _applied(cls, ctx, name, forward, rule, primals, given, bases)
    if ctx._dirty:
        raise GradientError(f"{cls.__name__}: what carries a tangent cannot be marked dirty")
    call = None if ctx._call is None else ctx._call()
    _exchange(ctx, call, given, primals)  # at the outermost level
    tangents: list[Any] = [None if d is None else d.tangent for d in duals]
    if ctx._materialize:
        for k, x in enumerate(primals):
            if tangents[k] is None and isinstance(x, Handle):
                tangents[k] = from_array(np.zeros((*lanes, *x._v.shape), x._v.dtype))
    outs = found if isinstance(found, tuple) else (found,)
    hiding = [y for x, y in zip(primals, given, strict=True) if has_tangent(x)]
    if level.lanes is None:
        moved = _tangents(cls, ctx, call, provenance, primals, tangents, outs, hiding)
    else:  # the user's rule takes one at a time
        each = [
            _tangents(
                cls, ctx, call, provenance, primals, [None if t is None else t[lane] for t in tangents],
                outs, hiding,
            )
            for lane in range(level.lanes)
        ]  # fmt: skip
        moved = [_stacked(parts) for parts in zip(*each, strict=True)]
    results = [
        out if tangent is None else with_metadata(dual(level, out, tangent), args)
        for out, tangent in zip(outs, moved, strict=True)
    ]
    _exchange(ctx, call, [*primals, *outs], [*args, *results])
    if call is not None:
        call.levels.append(level)
        for x in results:
            base = strip_tangents(x) if has_tangent(x) else x
            if base is not x and base._tape is not None and level.notes is not None:
                operands: list[Any] = [None] * (len(call.slots) if len(outs) == 1 and not ctx._dirty else 1)
                level.notes.setdefault(base._tape.serial, {})[slot(base._at)] = x._at, operands
    return (tuple(results) if isinstance(found, tuple) else results[0]), provenance


def _stacked(parts: Sequence[Tensor | None]) -> Tensor | None:
    """Tangents of one result, a lane each; None counts as zeros where others are something."""
    known = next((t for t in parts if t is not None), None)
    return None if known is None else stack([np.zeros_like(known._v) if t is None else t for t in parts])


def _tangents(
    cls: FunctionMeta, ctx: FunctionCtx, call: Call | None, provenance: Any, primals: Sequence[Any],
    tangents: Sequence[Tensor | None],
    outs: Sequence[Any], hiding: list[Tensor],
) -> list[Tensor | None]:  # fmt: skip
    """The tangents of the results, by the user's jvp; None where there is none."""
    seen = provenance.backward([t for t in tangents if t is not None and requires_grad(t)])
    seen.bases, seen.tangents = hiding, call is None
    given = within({"forward": seen}, cls.jvp, ctx, *tangents)
    moved = given if isinstance(given, tuple) else (given,)
    if len(moved) != len(outs):
        raise GradientError(f"{cls.__name__}.jvp returned {len(moved)} tangents for {len(outs)} results")
    took = (provenance.took or seen.took) and not ctx._promised
    nested = any(has_tangent(x) for x in (*primals, *tangents))
    found: list[Tensor | None] = []
    for k, (out, tangent) in enumerate(zip(outs, map(as_tensor, moved), strict=True)):
        if tangent is None or not isinstance(out, Handle):
            found.append(None)
            continue
        if not isinstance(tangent, Handle) or tangent._v.shape != out._v.shape:
            raise ShapeError(
                f"{cls.__name__}.jvp returned a {type(tangent).__name__} of shape {np.shape(tangent)} as "
                f"tangent {k}, for a result of shape {out._v.shape}"
            )
        origin = seen.of(tangent)
        if nested and took:
            raise escape_error(cls.__name__)
        if nested and origin is not None:
            raise origin.error()
        if call is not None and took:
            tangent = (seen if seen.took else provenance).refusing(tangent)
        elif call is not None and origin is not None:
            tangent = seen.refusing(tangent, origin)
        elif origin is not None:
            tangent = wrap(tangent._v)
        found.append(astype(tangent, out._v.dtype))
    return found


def _exchange(ctx: FunctionCtx, call: Call | None, olds: Sequence[Any], news: Sequence[Any]) -> None:
    """Let what ctx keeps be other Tensors."""
    pairs = [(a, b) for a, b in zip(olds, news, strict=True) if isinstance(a, Handle) and a is not b]
    for name, value in list(vars(ctx).items()):
        if name != "_call":
            setattr(ctx, name, _exchanged(value, pairs))
    if call is not None:
        call.kept = _exchanged(call.kept, pairs)
        call.attributes = {name: _exchanged(value, pairs) for name, value in call.attributes.items()}


def _exchanged(x: Any, pairs: list[tuple[Handle, Handle]], depth: int = 0) -> Any:
    if isinstance(x, Handle):
        return next((b for a, b in pairs if a is x), x)
    if isinstance(x, Kept):
        before = x.original() if x.moving is None else x.moving
        after = _exchanged(before, pairs)
        if after is not before:
            x.moving = after
    return mapped(lambda part, deep: _exchanged(part, pairs, deep), x, depth)


def _version(x: Tensor) -> int:
    state = x._extra
    if state is None or state.inference:
        return 0
    return int(state.version if state.storage is None else state.storage.memory.writes)


def as_tensor(out: Any) -> Any:
    """A result that is an array or a number is a Tensor too, but for integers and truth values."""
    if isinstance(out, (np.ndarray, np.inexact, float, complex)):
        return with_metadata(from_array(as_tape_value(out, "a result")), ())
    return out


def _results(cls: FunctionMeta, found: Any) -> list[Any]:
    """What forward returned, where a derivative is asked for."""
    results = [as_tensor(out) for out in (found if isinstance(found, tuple) else (found,))]
    for k, out in enumerate(results):
        if not isinstance(out, Handle) and holds_numbers(out):
            raise GradientError(
                f"{cls.__name__}.forward returned a {type(out).__name__} as result {k}, and the derivative "
                "of what is in it would be lost; return Tensors, arrays and floats, several as one tuple"
            )
    return results


def holds_numbers(x: Any) -> bool:
    """Whether there are numbers that may have a derivative in what is no Tensor."""
    if isinstance(x, dict):
        return any(map(holds_numbers, x.values()))
    if isinstance(x, (list, tuple, set, frozenset)):
        return any(map(holds_numbers, x))
    if isinstance(x, np.ndarray):
        return x.dtype.kind in "fcO"
    return isinstance(x, Handle) or (isinstance(x, Number) and not isinstance(x, Integral))


def _recorded(
    call: Call, args: Sequence[Any], given: list[Any], befores: list[Tensor], results: list[Any]
) -> list[Any]:
    """Give the results their history; returns them."""
    ctx = call.ctx
    dirty = _dirty(call, args, given, results) if ctx._dirty else {}
    plain = _without_derivative(call, results)
    if all(plain):
        return [_apart(out) for out in results]
    active = [out for out, apart in zip(results, plain, strict=True) if not apart]
    saved = _Saved(call, given, results, plain)
    ctx._dirty = ctx._plain = ()
    if _binds(ctx, call, saved.besides, active):
        close(current())  # what ctx keeps is on older tapes: no cycle
    packing = in_force("packing")
    mask = 0 if packing is not None else saved.mask
    single = len(results) == 1 and not dirty
    here = None
    if not single:
        here = _placed(call, record(custom.calls[mask], np.float64(0.0), befores, {"call": call}))
    kept = saved.kept_results() if packing is None else set()
    outs = []
    places: dict[int, Place | None] = {}
    for k, out in enumerate(results):
        known = (out._v.shape, out._v.dtype) if isinstance(out, Handle) else None
        if plain[k]:
            call.results.append(None if call.raw else known)
            outs.append(_apart(out))
            continue
        call.results.append(known)
        entry: tuple[Any, Any, dict[str, Any]]
        if single:
            entry = custom.singles[mask | (k in kept) << OUT], befores, {"call": call}
        else:
            entry = (custom.kept_result if k in kept else custom.result), (here,), {"call": call, "index": k}
        spare = k if k in kept and not single else -1
        new, places[k] = _result(call, entry, out, dirty.get(id(out)), [*outs, *given], args, spare)
        if single:
            _placed(call, new)
        outs.append(new)
    exact = packing is None or bool(call.provenance.bases)  # a packed one would lose its tangents
    saved.keep(args, befores, outs, places, None if exact else packing)
    ctx._call = weakref.ref(call)
    _weigh(call, saved, [*befores, *results], exact)
    return outs


def _without_derivative(call: Call, results: list[Any]) -> list[bool]:
    """Which results have no derivative, by their kind or as the user says."""
    apart = [id(x) for x in call.ctx._plain]
    plain = []
    for k, out in enumerate(results):
        plain.append(not isinstance(out, Handle) or out._v.dtype.kind not in "fc" or id(out) in apart)
        if not plain[k] and out._v.dtype.char not in abi.GRADIENT:
            raise DTypeError(
                f"{call.provenance.name}.forward returned dtype {out._v.dtype} as result {k}, which has no "
                "derivative; return another dtype, or say so with ctx.mark_non_differentiable"
            )
    return plain


class _Saved:
    """What ctx keeps for backward: which of it are results of the call, and which are operands.

    Attributes
    ----------
    values
        What `save_for_backward` was given.
    results, operands
        Of each of these the number of the result, or of the operand, that it is; -1 for anything else.
    numbers
        The number of each result that has a derivative, by its id.
    held
        The attributes of ctx with results in them, and which.
    besides
        What was saved of other than operands.
    mask
        Which operands were saved: a bit for each of the first two, one for all others.
    """

    __slots__ = ("besides", "call", "held", "mask", "numbers", "operands", "results", "values")

    def __init__(self, call: Call, given: list[Any], results: list[Any], plain: list[bool]) -> None:
        self.call, ctx = call, call.ctx
        self.values = list(ctx._saved)
        ctx._saved = ()
        self.numbers: dict[int, int] = {}
        for k, out in enumerate(results):
            if not plain[k]:
                self.numbers.setdefault(id(out), k)
        self.held: dict[str, set[int]] = {}
        for name, x in vars(ctx).items():
            found = _results_in(x, self.numbers) if name not in OF_ITSELF else None
            if found:
                self.held[name] = found
        operands = {id(given[p]): q for q, p in enumerate(call.slots)}
        self.results: list[int] = []
        self.operands: list[int] = []
        self.besides: list[Any] = []
        self.mask = 0
        for x in self.values:
            q = operands.get(id(x), -1)
            self.results.append(self.numbers.get(id(x), -1))
            self.operands.append(q)
            if q < 0:
                self.besides.append(x)
            else:
                self.mask |= 1 << (q if q < 2 else 2)
        self._refuse(given, results)

    def _refuse(self, given: list[Any], results: list[Any]) -> None:
        """Refuse what cannot be saved: results of inference mode, and for old Functions all but these."""
        for x in self.values:
            if x is not None and x._extra is not None and x._extra.inference:
                raise GradientError(
                    f"{self.call.name}: save_for_backward of a result of inference_mode, which takes no part "
                    "in differentiation; save a copy made by clone()"
                )
        if self.call.raw and any(
            x is not None and k < 0 and not any(x is other for other in (*given, *results))
            for x, k in zip(self.values, self.results, strict=True)
        ):
            raise GradientError(f"{self.call.name}: save_for_backward takes inputs and results only")

    def kept_results(self) -> set[int]:
        """The numbers of the results that backward reads."""
        return {*self.results}.union(*self.held.values())

    def keep(
        self,
        args: Sequence[Any],
        befores: list[Tensor],
        outs: list[Tensor],
        places: dict[int, Any],
        packing: Packing | None,
    ) -> None:
        """Give the call what was saved, by place where that has one; packed, where there is what packs."""
        call = self.call
        tape = call.place[0]()
        for x, k, q in zip(self.values, self.results, self.operands, strict=True):
            place = places.get(k)
            if k < 0 <= q and befores[q]._tape is tape:
                place = call.place[0], slot(befores[q]._at)
            if x is None:
                call.kept.append(None)
            else:
                one = outs[k] if k >= 0 else x
                known = befores[q] if k < 0 <= q and x is args[call.slots[q]] else None
                call.kept.append(Kept(one, place, known, k) if packing is None else packing.keep(one))
        numbers = self.numbers.items() if self.held else ()
        by_place = {key: Kept(outs[k], places[k], None, k) for key, k in numbers}
        for name in self.held:
            call.attributes[name] = _placed_in(vars(call.ctx).pop(name), by_place)


def _weigh(call: Call, saved: _Saved, known: list[Any], exact: bool) -> None:
    """Tell the tape of a call how much ctx keeps besides values that are `known` to it."""
    tape = call.place[0]()
    besides = [*saved.besides, *_own(call.ctx)] if exact else _own(call.ctx)
    if besides:
        tape.weigh(nbytes_of(besides, {id(x._v) for x in known if isinstance(x, Handle)}))
    if not exact:
        tape.weigh(
            sum(x._v.nbytes for x in saved.values if x is not None)
        )  # what is packed may weigh as much


def _results_in(x: Any, numbers: dict[int, int], depth: int = 0) -> set[int]:
    """Which results there are in lists, tuples and dicts."""
    if id(x) in numbers:
        return {numbers[id(x)]}
    if type(x) not in (list, tuple, dict) or depth >= NESTED:
        return set()
    parts = x.values() if type(x) is dict else x
    return set().union(*(_results_in(part, numbers, depth + 1) for part in parts))


def _placed_in(x: Any, by_place: dict[int, Kept], depth: int = 0) -> Any:
    """What is set on ctx, with results by their place."""
    kept = by_place.get(id(x))
    return mapped(lambda part, deep: _placed_in(part, by_place, deep), x, depth) if kept is None else kept


def _placed(call: Call, here: Any) -> Any:
    """Let a record be that of a call; returns it."""
    call.place = weakref.ref(here._tape), slot(here._at)
    here._tape.calls[call.place[1]] = call
    return here


def _binds(ctx: FunctionCtx, call: Call, saved: list[Tensor | None], results: list[TensorOrArray]) -> bool:
    """Whether what is kept for backward may own the open tape, which is to own the call."""
    tape = local.tape
    if tape is None or not tape.log:
        return False
    return not _owns_nothing([*saved, *call.provenance.others, *_own(ctx)], tape, results)


def _own(ctx: FunctionCtx) -> list[Any]:
    """What the user set on ctx."""
    return [x for name, x in vars(ctx).items() if name not in OF_ITSELF]


def _owns_nothing(parts: Any, tape: Tape, results: list[TensorOrArray], depth: int = 0) -> bool:
    """Whether none of these things owns a tape; a result will be kept by its place."""
    for x in parts:
        if isinstance(x, Handle):
            apart = x._extra is None or x._extra.storage is None
            older = x._tape is not tape and x._tape is not STALE
            if not (apart and older) and not any(x is out for out in results):
                return False
        elif type(x) in (tuple, list):
            if len(x) > PARTS or depth > 4 or not _owns_nothing(x, tape, results, depth + 1):
                return False
        elif not (x is None or isinstance(x, NO_OWNER) or (isinstance(x, np.ndarray) and x.dtype != object)):
            return False
    return True


def _unrecorded(out: Any) -> Any:
    """What forward returned, where the call is not recorded: under no_grad without a history of its own."""
    out = as_tensor(out)
    return out.detach() if requires_grad(out) and not is_grad_enabled() else out


def _apart(out: Any) -> Any:
    """A result without a derivative, as the caller gets it: for backward it remains what forward computed."""
    hidden = isinstance(out, Handle) and out._extra is not None and out._extra.call is not None
    return wrap(out._v) if hidden else out


def _result(
    call: Call, entry: tuple[Any, Any, Any], out: Tensor, target: Tensor | None, others: list[Any],
    args: Sequence[Any], spare: int,
) -> tuple[Any, Any]:  # fmt: skip
    """Record a result: the object forward returned unless that has another life, and its place.

    With a number for `spare` its value is also the call's, by that number.
    """
    op, operands, attrs = entry
    foreign = out._tape is not None or requires_grad(out)
    foreign = foreign or (out._extra is not None and out._extra.storage is not None)
    for x in others:
        foreign = foreign or out is x or (isinstance(x, Handle) and is_view_of(out._v, x._v))
    value = out._v.copy() if foreign and out._v.ndim else out._v
    if spare >= 0:
        call.spares[spare] = value
        value = value.view() if value.ndim else value.copy()  # a tape counts the references to its own
    new = record(op, value, operands, attrs)
    place = weakref.ref(new._tape), slot(new._at)
    if target is not None:
        write(target, Ellipsis, new, "mark_dirty", True)
        for handle in sharers(target):
            if handle._extra is not None and handle._extra.call is call.provenance:
                handle._extra.call = None  # its history is known now
        return with_metadata(target, args), place
    if not foreign:
        out._v, out._tape, out._at, out._extra = new._v, new._tape, new._at, None
        new = out
    return with_metadata(new, args), place


def _dirty(
    call: Call, args: Sequence[Tensor], given: list[TensorOrArray], results: list[TensorOrArray]
) -> dict[int, Tensor]:
    """The inputs that forward has written to, by what it knew them as."""
    found = {}
    name = call.provenance.name
    for x in call.ctx._dirty:
        k = next((q for q, a in enumerate(given) if a is x), -1)
        if k < 0:
            warnings.warn(f"{name}: mark_dirty of what is no input", UserWarning, stacklevel=5)
            continue
        if not any(x is out for out in results):
            raise GradientError(f"{name}: argument {k} is marked dirty, and forward must return it")
        if args[k]._tape is None and requires_grad(args[k]):
            raise GradientError(f"{name}: argument {k}, marked dirty, is a leaf that requires grad")
        found[id(x)] = args[k]
    return found
