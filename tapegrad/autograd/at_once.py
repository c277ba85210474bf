"""Gradients of results on one tape in one compiled call, and what that asks of Python.

The call is `kernels.replay.gradients`. It comes with the first sweep, which compiles it, and what records
sweeps with the first of those after it; until then, with ``TAPEGRAD_ABI=portable`` and for all that is out of
the ordinary `tapegrad.engine` finds gradients.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from tapegrad.autograd import recorded_rules as rules
from tapegrad.autograd import traced_rules
from tapegrad.autograd.deferred import compute_deferred
from tapegrad.core import compiled_methods, dispatch
from tapegrad.core.grad_mode import _enabled
from tapegrad.engine.plan import end_sweep, sweeps
from tapegrad.engine.sweep import descriptor
from tapegrad.engine.watched import BOTH, attached
from tapegrad.errors import KernelError
from tapegrad.kernels import extensions, machine
from tapegrad.kernels.replay import layout
from tapegrad.kernels.state import State
from tapegrad.kernels.words import Address
from tapegrad.ops.primitive import BY_OPCODE, PROGRAMS, TRACED, Attributes
from tapegrad.tape.claims import Claim, forks
from tapegrad.tape.columns import Columns
from tapegrad.tape.record import STRIDE, Record
from tapegrad.tape.tape import Tape
from tapegrad.tensor import Tensor

ndarray = np.ndarray
CLAIM = ("flags", "frees", "_thread", "_forks", "state", "tape", "seen")  # slots, as compiled code fills them
_is_ready = False  # whether compiled code finds gradients, and can record sweeps once that is loaded
_states: dict[int, State] = {}  # by address: those that compiled code sweeps in


def gradients(
    roots: Tensor | Sequence[Tensor],
    seeds: Any,
    inputs: Tensor | Sequence[Tensor],
    retain: bool,
    alone: bool = False,
) -> tuple[Tensor | None, ...] | None:
    """The gradients of results on one tape; of an input to which rules gave none there is None.

    `alone`: what the tape has from older ones are leaves. None: `tapegrad.engine` is to find them.
    """
    return None


def backward(roots: Any, seeds: Any, retain: bool) -> bool | None:
    """As `gradients`, to the ``.grad`` of all leaves; whether that is done."""
    return None


def rerecord(
    roots: Any, cotangents: Any, inputs: Any, defers: bool = False
) -> tuple[Tensor, ...] | list[Tensor] | None:
    """As `gradients`, recorded on the open tape, where older tapes have no part in it; it retains all.

    A list where gradients share memory with cotangents or with one another; None also where one is missing.
    With inputs of None those of all leaves, or None for one, and behind them the leaves. If it `defers`, they
    may have no values, and may share memory.
    """
    return rerecord(roots, cotangents, inputs, defers) if _load_rerecording() else None


def rerecord_sealed(
    state: Address,
    tape: Tape,
    values: list[Any],
    records: list[int],
    cotangents: list[Tensor],
    lanes: bool,
    defers: bool,
) -> list[Any] | None:
    """Follow the rules of a sealed tape that is planned in a state, recorded on the open one.

    What came to records whose ops are not swept, each after its number; None where compiled code cannot.
    Where cotangents have an axis of lanes nothing is recorded. If it `defers`, what came to results may have
    no value.
    """
    if not _load_rerecording():
        return None
    return rerecord_sealed(state, tape, values, records, cotangents, lanes, defers)


def _load_rerecording() -> bool:
    """Let compiled code record sweeps, where it finds gradients; whether it does."""
    global rerecord, rerecord_sealed
    if _is_ready:
        enter, fast = extensions.rerecording(), compiled_methods.METH_FASTCALL
        words = ctypes.addressof(compiled_methods.words)
        rerecord = compiled_methods.builtin("rerecord", fast, enter(layout.RERECORD, words, 0, 0))
        sealed = enter(layout.RERECORD_SEALED, words, 0, 0)
        rerecord_sealed = compiled_methods.builtin("rerecord_sealed", fast, sealed)
    return _is_ready


def install() -> None:
    """Let compiled code find gradients once it is there."""
    machine.when_loaded.append(_replace)


def _replace(enter: machine.Enter) -> None:
    """Let compiled code find gradients, where objects are laid out as it knows them."""
    global gradients, backward, _is_ready
    if compiled_methods.words and not layout.BOUNDS:
        if not compiled_methods.share_slots(layout.CLAIM_FLAGS_SLOT, _Sweep, CLAIM):
            return
        compiled_methods.share(
            {
                layout.WORKSPACE: _workspace, layout.DESCRIBE: _describe,
                layout.CLAIM_TYPE: _Sweep, layout.FORKS: forks, layout.SWEEPS: sweeps,
                layout.TELL_FAILURE: _tell_failure, layout.APPLY_RULE: _apply_rule, layout.OPS: BY_OPCODE,
                layout.CALL_HOOKS: _call_hooks, layout.CALL_POST_HOOKS: _call_post_hooks,
                layout.CALL_LEAF_HOOKS: _call_leaf_hooks, layout.END_SWEEP: end_sweep,
                layout.WATCH: _begin_profile, layout.END_WATCH: _end_profile,
                layout.PROGRAMS: PROGRAMS, layout.MAKE_PROGRAM: rules.make_program,
                layout.TRACE_RULE: traced_rules.trace_rule, layout.TRACE_FIT: traced_rules.trace_fit,
                layout.RECORD_VALUE: dispatch.record, layout.EMPTY: (), layout.RECORD_RULE: rules.record_rule,
                layout.CONSTANT_LIKE: rules.constant_like, layout.RECALL_IMPORT: rules.recall_import,
                layout.BATCHED_RULE: rules.batched_rule, layout.FITS: [{}],
                layout.TRACED: TRACED, layout.TWINS: traced_rules.twins,
                layout.COMPUTE_DEFERRED: compute_deferred, layout.VALUE_OR_SHAPE: Columns.value_or_shape,
            }
        )  # fmt: skip
        compiled_methods.words[layout.ATTACHED] = attached.buffer_info()[0]
        fast = compiled_methods.METH_FASTCALL
        gradients = compiled_methods.builtin("gradients", fast, enter(layout.GRADIENTS, 0, 0, 0))
        backward = compiled_methods.builtin("backward", fast, enter(layout.BACKWARD, 0, 0, 0))
        _is_ready = True


def _workspace(at: Address, n: int) -> Address:
    """The address of a state, of a new one for 0, with room for n records and all that is compiled now."""
    state = _states.get(at)
    if state is None:
        state = State()
        _states[state.at] = state
    state.fit(n)
    view = state.view
    view[layout.ROOM], view[layout.UNFREED] = state.n, state.unfreed_at
    view[layout.KNOWN_VERSION] = id(state.known)
    return state.at


def _begin_profile(at: Address) -> tuple[Any, int, Any]:
    """Let a sweep look and take times as the mode wants; what `_end_profile` needs."""
    mode: Any = _enabled.get()
    view, profile = _states[at].view, mode.profile
    if mode.lines is not None:
        view[layout.CHECK] = mode.lines.check_nan
    if profile is None:
        return None, 0, None
    return profile, profile.now(), profile.stamps(view[layout.RECORDS], view)


def _end_profile(at: Address, begun: tuple[Any, int, Any], root: Any, status: int) -> None:
    """Tell a profile of a sweep, if it is done."""
    (profile, begin, stamps), state = begun, _states[at]
    if status == layout.DONE and profile is not None:
        n = state.view[layout.RECORDS]
        columns = state.buffers[layout.SEALING]  # the next sweep's, so a copy is taken
        columns = (columns if profile.with_shapes else columns[:n]).copy()
        profile.swept(root._tape.serial, n, columns, bytes(state.flags[:n]), stamps)
        profile.note_ended(begin, "backward", (root,), True)


def _describe(tape: Tape, at: Address) -> None:
    """Note words for what is planned and lacks them."""
    state = _states[at]
    n, log, columns = state.view[layout.RECORDS], tape.log, tape.columns
    if columns is None:
        columns = Columns(state.buffers[layout.SEALING], n, log[3::4])
        if len(log) != STRIDE * n:  # sealed meanwhile
            return
    for k in state.pending[: state.view[layout.PENDING_COUNT]]:
        descriptor(tape, columns, k)


class _Sweep(Claim):
    """A compiled sweep's hold on a tape; to what waits for several gradients it is the sweep at work."""

    __slots__ = ("seen", "state", "tape")
    seen: dict[Any, Any]
    state: Address
    tape: Tape

    def watched(self) -> set[Any]:
        """What is attached to leaves that the sweep computes the gradients of."""
        state = _states[self.state]
        records = state.buffers[layout.SINKS][: state.view[layout.SINK_COUNT]]
        cells = [self.tape.imports.get(k) for k in records.tolist() if self.flags[k] & BOTH == BOTH]
        return {cell.hooks for cell in cells if cell is not None}

    def will_run(self, tape: Tape, k: Record) -> bool:
        """Whether the sweep computes the gradient of a record."""
        return tape is self.tape and k < len(self.flags) and self.flags[k] & BOTH == BOTH


def _tell_failure(tape: Tape, at: Address, status: int) -> None:
    """Raise what a sweep has failed by."""
    op = BY_OPCODE[tape.operation(_states[at].view[layout.POSITION])[0]]
    if status == layout.MEMORY:
        raise MemoryError(f"no memory for the cotangents of {op}")
    raise KernelError(f"the kernel of {op} failed")


@np.errstate(all="ignore")
def _call_hooks(tape: Tape, k: int, ct: Any) -> tuple[Any, Any]:
    """The gradient of a record as its hooks leave it, and what its rule gets."""
    watch = tape.hooks.get(k)
    if watch is None:
        return ct, ct
    found = _laid_out(watch.before(ct), ct)
    return found, _laid_out(watch.entering(found), ct)


@np.errstate(all="ignore")
def _call_post_hooks(tape: Tape, at: Address, k: Record, ct: Any, parts: list[Any]) -> list[Any]:
    """What a record's rule gave the operands that want something, as hooks of its node leave it."""
    watch = tape.hooks.get(k)
    if watch is None or not watch.post:
        return parts
    flags, op = _states[at].flags, BY_OPCODE[tape.operation(k)[0]]
    operands = tape.operands(k, op.recorded_form)
    wanted = [slot for slot, j in enumerate(operands) if flags[j] & layout.NEED]
    given = {slot: part for slot, part in zip(wanted, parts, strict=True) if part is not None}
    found = watch.after(given, ct, len(operands))
    return [_laid_out(found[slot], given[slot]) if slot in found else None for slot in wanted]


@np.errstate(all="ignore")
def _call_leaf_hooks(tape: Tape, k: Record, ct: Any) -> Any:
    """The gradient of a leaf as its hooks leave it."""
    return _laid_out(tape.imports[k].hooks.before(ct), ct)


@np.errstate(all="ignore")
def _apply_rule(
    op: Any,
    ct: np.ndarray,
    value: np.ndarray,
    operands: Sequence[np.ndarray],
    attrs: Attributes,
    wanted: Sequence[int],
) -> list[np.ndarray | None]:
    """What an op's rule makes of a cotangent for each operand wanted, laid out as its gradient is."""
    found = op.vjp(ct, value, operands, attrs or {}, wanted)
    return [None if q not in found else _laid_out(found[q], operands[q]) for q in wanted]


def _laid_out(part: np.ndarray, like: np.ndarray) -> np.ndarray:
    """A part of a gradient in C order, of the shape and dtype of its operand."""
    fits = type(part) is type(like) and part.dtype is like.dtype and part.shape == like.shape
    if fits and (type(part) is not ndarray or part.flags.c_contiguous):
        return part
    part = np.real(part) if like.dtype.kind == "f" else part
    return np.ascontiguousarray(part, like.dtype).reshape(like.shape)
