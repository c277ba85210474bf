"""Writing to Tensors: values change in memory where nothing needs the old ones, histories always follow.

What a derivative still reads is never changed: then the write goes to a copy, which becomes the memory of
the Tensor and of all its views. So derivatives after writes are exact.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import numpy as np

from tapegrad.core.base import (
    Handle,
    Operand,
    alias_of,
    extra,
    is_tensor,
    like_of,
    needs_derivative,
    renew,
    requires_grad,
    seen_by,
    value_of,
    wrap,
)
from tapegrad.core.conversion import astype, copy
from tapegrad.core.dispatch import apply, as_tape_value, expect, record, sequence, timed, with_metadata
from tapegrad.core.expected import Expected, expected, matcher_of
from tapegrad.core.grad_mode import _enabled, in_force, is_grad_enabled
from tapegrad.core.histories import (
    after_unrecorded_write,
    count_bytes_of_places,
    handles_of_memory,
    is_memory_exposed,
    mark_torn,
    place_attributes,
    refuse_torn,
    rejoin_views,
    relocate,
    separate_memory,
    set_history,
    sharers,
    storage_of,
    take_history,
    tape_with_room,
    update_histories,
    value_in_memory,
    wholes_on_other_tapes,
    write_unrecorded,
)
from tapegrad.core.indices import EVERYTHING, Flat, Part, elements, plain_index, shape_at
from tapegrad.core.storage import OPEN, STALE, Storage, is_same_part, moved
from tapegrad.core.writable import check_writable, is_writable_as, refuse_views
from tapegrad.errors import DTypeError, ShapeError
from tapegrad.ops import REGISTRY
from tapegrad.tape import pool

if TYPE_CHECKING:
    from tapegrad.core.expected import Matcher

ndarray = np.ndarray


@timed("assign")
def write(x: Handle, index: Any, new: Operand, what: str, update: bool = False) -> None:
    """Let x[index] be `new`, for x and all that shares its memory.

    Parameters
    ----------
    x : Tensor
    index
        Any index NumPy knows, `Flat` or `Part`; Ellipsis for all of it.
    new : Tensor, array or number
        Broadcast to the elements written to; of a dtype that converts to x's by NumPy's rule "same_kind".
    what
        The operation as an error names it.
    update
        Whether `new` was computed from all of x: then its history is that of x from now on.
    """
    if type(index) is not Flat and type(index) is not Part:
        index = plain_index(index)
    new = given = new if isinstance(new, Handle) else as_tape_value(sequence(new), what)
    if expected and type(x._at) is Expected and _written_by_program(x, index, new, what, update):
        return
    refuse_torn(x)
    storage = storage_of(x)
    if storage is not None and x._v.ndim == 0 and _is_only_view(x, storage):
        _leave_storage(x, storage)
        storage = None
    check_writable(x, storage, new, what)
    if x._v.ndim == 0 and storage is None:
        refuse_views(x, index, what)
        recorded = needs_derivative(x) or needs_derivative(new)
        _write_number(x, index, new, what, recorded, update)
        with_metadata(x, (new,), made=False)
        _count_write(x)
        return
    shape = shape_at(seen_by(x), index, what)
    new = _fit(new, shape, x, what)
    storage = storage_of(x)  # once more: what was made of `new` may be the first view of x
    if storage is not None:
        storage = rejoin_views(storage)
    whole = x if storage is None else storage.whole
    matcher = in_force("matcher")
    if matcher is not None and _write_listed(matcher, x, index, shape, new, update):
        pass
    elif needs_derivative(whole) or needs_derivative(new):
        _write_recorded(x, index, shape, new, update)
    else:
        write_unrecorded(x, storage, lambda: _assign(seen_by(x), index, value_of(new)))
    if in_force("forward") is not None:
        for handle in sharers(x):
            with_metadata(handle, (given,), made=False)
    _count_write(x)


def _written_by_program(x: Handle, index: Any, new: Any, what: str, update: bool) -> bool:
    """Whether a write is what a program expects of its Tensor; an error is told where it is recorded."""
    given = new
    if isinstance(new, Handle) and x._at.matcher.write(x, index, new, update):
        return True
    like = like_of(x)
    if not isinstance(like, ndarray) or not like.ndim or not is_writable_as(like_of(new).dtype, like.dtype):
        return False
    try:
        shape = shape_at(like, index, what)
        new = _whole(_fit(new, shape, x, what), shape)
    except (TypeError, ValueError, IndexError, ShapeError, DTypeError):
        return False
    if new is given and isinstance(new, Handle):
        return False  # it has been asked for
    matcher = matcher_of(x)  # unless it has been recorded meanwhile
    return matcher is not None and matcher.write(x, index, new, update)


def _whole(new: Operand, shape: tuple[int, ...]) -> Any:
    """What is written: a Tensor, or an array that has the shape of the elements."""
    if isinstance(new, Handle):
        return new
    return np.array(np.broadcast_to(new, shape), order="C")[()]


def _fit(new: Any, shape: tuple[int, ...], x: Handle, what: str) -> Any:
    """`new` with the dtype of x and the shape of the elements written to."""
    value, dtype = like_of(new), like_of(x).dtype
    if value.dtype is dtype and value.shape == shape:
        return new if requires_grad(new) else value_of(new)
    extra_axes = value.ndim - len(shape)
    if extra_axes > 0 and value.shape[:extra_axes] == (1,) * extra_axes:
        inner = value.shape[extra_axes:]
        new = _reshape(new, inner) if isinstance(new, Handle) else value.reshape(inner)
        value = like_of(new)
    try:
        fits = not value.ndim or value.shape == shape or np.broadcast_shapes(value.shape, shape) == shape
    except ValueError:
        fits = False
    if not fits:
        raise ShapeError(f"{what}: values of shape {value.shape} for elements of shape {shape}")
    if not requires_grad(new):
        value = value_of(new)
        return value if value.dtype is dtype else value.astype(dtype)
    new = astype(new, dtype)
    if value.shape == shape:
        return new
    op = REGISTRY["broadcast_to"]
    known = expect(op, (new,))
    return record(op, np.broadcast_to(new._v, shape), (new,)) if known is None else known  # nobody's view


def _reshape(x: Handle, shape: tuple[int, ...]) -> Handle:
    return apply(REGISTRY["reshape"], (x,), {"shape": shape})


def update_natively(x: Handle, new: Handle) -> bool | None:
    """Let x, or what it is a view of, be what an operator has computed from it; True where that is done.

    Compiled code, as soon as it is there.
    """
    return None


def update_in_place(x: Handle, new: Handle, what: str) -> None:
    """Let x be what an operator, which an error names, has just computed from all of it."""
    if type(_enabled.get()) is bool and isinstance(new, Handle) and _replace_value(x, new):
        return
    if expected and type(x._at) is Expected and x._at.matcher.write(x, EVERYTHING, new, True):
        return
    if not update_natively(x, new):
        write(x, EVERYTHING, new, what, True)


def _replace_value(x: Handle, new: Handle) -> bool:
    """As `update_in_place`, without a record; False if `write` is to do it.

    That is the common update, of a parameter or a constant whose memory nobody else sees: it takes the
    result's, and what tapes keep of its values stays what it was. The mode in force is True or False.
    """
    state, before, value, cell = x._extra, x._v, new._v, x._at
    if x._tape is not None or new._extra is not None or new._tape is not None or OPEN:
        return False
    if state is not None and (
        state.storage is not None
        or state.shown is not None
        or state.inference
        or state.volatile
        or state.several
    ):
        return False
    if value.dtype is not before.dtype or value.shape != before.shape or value.strides != before.strides:
        return False
    if (value.ndim and not before.flags.writeable) or (cell is not None and cell.handle() is not x):
        return False
    if state is None or not state.requires_grad:
        x._at = None
    elif is_grad_enabled():
        return False
    else:
        renew(x)
    x._v = value
    after = extra(x)
    after.version += 1
    if not value.ndim:
        after.array = after.written = True
    return True


def _count_write(x: Handle) -> None:
    """One more version."""
    state = extra(x)
    if state.storage is None:
        state.version += 1
    else:
        state.storage.memory.writes += 1


def _write_number(x: Handle, index: Any, new: Any, what: str, recorded: bool, update: bool) -> None:
    """A 0-d Tensor holds an immutable scalar: it gets another one."""
    value = value_of(new)
    chosen = 1 if index is EVERYTHING else np.size(elements(np.empty(()), index, f"{what}: "))
    if chosen == 0 and value.size < 2:  # by a mask that is False
        return
    if value.size != 1:
        raise ShapeError(f"{what}: values of shape {value.shape} for a 0-d Tensor")
    scalar = x._v.dtype.type(value.reshape(())[()])
    if not recorded:
        out = after_unrecorded_write(alias_of(x), scalar)
    else:
        part = _reshape(astype(new, x._v.dtype), ()) if requires_grad(new) else wrap(scalar)
        if requires_grad(x) and not (update and requires_grad(new)):
            out = record(REGISTRY["assign"], scalar, (part, alias_of(x)), {"window": (0, (), ())})
        else:
            out = copy(part) if part is new else part
    set_history(x, out._v, out)
    extra(x).array = extra(x).written = True


def _write_recorded(x: Handle, index: Any, shape: tuple[int, ...], new: Any, update: bool) -> None:
    tape = tape_with_room()
    if isinstance(new, Handle) and new._tape is not tape:
        new = record(REGISTRY["reshape"], new._v, (new,), {"shape": new._v.shape})
    storage = storage_of(x)
    if storage is not None:
        storage = rejoin_views(storage)
    whole = x if storage is None else storage.whole
    if (
        update
        and is_tensor(new)
        and new._v.flags.writeable
        and new._v.strides == x._v.strides  # the layout stays what it was
        and not is_memory_exposed(whole)
        and _covers_memory(x, storage)
    ):
        if storage is None:  # no object is made here, so no view of x by a finalizer
            set_history(x, new._v, new)
            return
        mark_torn(x, storage)
        relocate(x, storage, new._v)
        update_histories(x, storage, new, {})
        return
    at, others = whole._at, wholes_on_other_tapes(storage)
    # no reference to the memory, which would have to be copied, where no link needs it
    old = wrap(pool.shadow_of(whole._v.shape, whole._v.dtype) if whole._v.ndim else whole._v)
    held = None
    if whole._tape is tape:
        held = tape.anchor(whole._at)  # if a finalizer closes the tape, what has no handle is pruned
        old._tape, old._at = tape, whole._at
    elif requires_grad(whole):
        old = alias_of(whole)
    where = place_attributes(seen_by(x), seen_by(whole), index)
    op = REGISTRY["assign" if "window" in where else "scatter"]
    # not a handle of this memory, which will be stale
    operand = (
        alias_of(new) if isinstance(new, Handle) else pool.shadow_of(shape, new.dtype) if shape else new[()]
    )
    now = storage_of(x)  # what was made may have run a finalizer, that made a view of x or wrote to it
    if now is not storage or whole._at is not at or (now is not None and now.whole is not whole):
        _write_recorded(x, index, shape, new, update)
        return
    mark_torn(x, storage)
    if is_memory_exposed(whole):
        _assign(seen_by(x), index, value_of(new))
        relocate(x, storage)  # its owner has seen it; from here on the Tensor has memory of its own
        for handle in handles_of_memory(x, storage):
            extra(handle).shown = None
    else:
        separate_memory(x, storage)
        _assign(seen_by(x), index, value_of(new))
    out = record(op, value_in_memory(whole), (operand, old), where)
    del held
    count_bytes_of_places(out, where)
    update_histories(x, storage_of(x), out, others)


def _is_only_view(x: Handle, storage: Storage) -> bool:
    """Whether nobody holds what sees the same memory as a 0-d view."""
    if is_memory_exposed(storage.whole) or not seen_by(x).flags.writeable:
        return False
    others = [h for s in (storage, *storage.memory.others(storage)) for h in s.alive() if h is not x]
    matcher = in_force("matcher")
    return not others or (matcher is not None and matcher.held(weakref.ref(storage), x) is None)


def _leave_storage(x: Handle, storage: Storage) -> None:
    """Let a 0-d view be a number, with the history that it has."""
    if x._tape is STALE:
        take_history(x)
    state = extra(x)
    storage.remove(x)
    state.version, state.storage, state.place = storage.memory.writes, None, None
    state.array = state.written = True


def _covers_memory(x: Any, storage: Storage | None) -> bool:
    """Whether a Tensor is all of its memory, and all that sees it has one history."""
    if storage is None:
        return True
    memory = storage.memory
    return x._v is storage.whole._v is memory.root and not memory.others(storage)


def _write_listed(
    matcher: Matcher, x: Any, index: Any, shape: tuple[int, ...], new: Any, update: bool
) -> bool:
    """As `_write_recorded`, for what lists operations to make a program of them; whether that is done.

    Nothing else sees the array, but perhaps the view by which it is written to, which becomes a view of the
    result: that is an array of its own, as what was there before is listed too.
    """
    storage = storage_of(x)
    base: Any = x if storage is None else storage.base()
    if base is not None and _is_part_at(x, index, new):
        return True  # by x[index] += y, which has written to that view
    history = None if base is None else matcher.written(base, new, x)
    if history is None:
        return False
    seen = None if base is x else matcher.history_of(x)
    if base is x and update and is_tensor(new) and new._v.flags.writeable and new._v.strides == x._v.strides:
        value, attrs = new._v, {"shape": shape}
        out = record(REGISTRY["reshape"], value.view(), (new,), attrs)
    else:
        value, attrs = base._v.copy(), place_attributes(x._v, base._v, index)
        op = REGISTRY["assign" if "window" in attrs else "scatter"]
        _assign(moved(x._v, base._v, value), index, value_of(new))
        out = record(op, value, (_whole(new, shape), base), attrs)
    if storage is None:
        set_history(x, value, out)
    else:
        mark_torn(x, storage)
        relocate(x, storage, value)
        update_histories(x, storage, out, {})
    matcher.note_write(history, (index, seen), base)
    if seen is not None:
        take_history(x)
        matcher.note_write(seen, (), x)
    return True


def _is_part_at(x: Handle, index: Any, new: Any) -> bool:
    """Whether a Tensor is the very part of another that an index takes."""
    if not isinstance(new, Handle) or new._extra is None or new._extra.storage is not storage_of(x):
        return False
    if new is x or new._extra.storage is None or type(index) in (Flat, Part):
        return False
    seen = seen_by(new)
    return type(seen) is ndarray and is_same_part(elements(seen_by(x), index, ""), seen)


def _assign(array: np.ndarray, index: Any, value: np.ndarray) -> None:
    """array[index] = value, as the value was before.

    NumPy does not see to that for index arrays, nor along one axis with other strides (``a[::2] = a[:5]``).
    """
    if value.ndim and np.may_share_memory(array, value):
        value = value.copy()
    if type(index) is Flat:
        shape = index.places.shape
        if value.size != 1 and value.shape != shape:  # `put` would begin again after the last value
            value = np.broadcast_to(value, shape)
        array.put(index.places, value)
    elif type(index) is Part:
        index.take(array)[...] = value
    else:
        array[index] = value


def accumulate(x: Handle, value: np.ndarray | np.generic) -> None:
    """Add an array to a Tensor without history, in memory where nothing else sees it."""
    state = extra(x)
    if x._v.ndim == 0 and state.place is None:
        set_history(x, x._v + value, after_unrecorded_write(alias_of(x), x._v))
    elif state.storage is not None or state.shown is not None or state.requires_grad:
        write_unrecorded(x, state.storage, lambda: np.add(seen_by(x), value, out=seen_by(x)))
    else:  # the common case of that
        if not pool.alone([x._v], [1]):
            relocate(x, None)
        np.add(x._v, value, out=x._v)
        x._at = None  # to tapes it is another one from now on
    _count_write(x)
