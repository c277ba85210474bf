"""Values and histories of the handles of one memory, as the memory changes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np

from tapegrad.core.base import (
    Handle,
    add_saved_bytes,
    alias_of,
    extra,
    note_cell,
    renew,
    requires_grad,
    retain,
    seen_by,
    separate_storage,
    strip_tangents,
    wrap,
)
from tapegrad.core.dispatch import record, with_metadata
from tapegrad.core.grad_mode import inference_mode, is_grad_enabled
from tapegrad.core.indices import EVERYTHING, Flat, Part, parts_of
from tapegrad.core.storage import STALE, Storage, moved, places, window
from tapegrad.errors import GradientError
from tapegrad.ops import REGISTRY
from tapegrad.ops.indexing import numbers
from tapegrad.ops.primitive import Attributes
from tapegrad.tape import pool
from tapegrad.tape.record import slot
from tapegrad.tape.tape import LARGE, Cell, Tape, close, current, local

ndarray = np.ndarray
FEW = 32  # log entries that a write may take


def storage_of(x: Handle) -> Storage | None:
    """What a Tensor shares memory through, if it does."""
    return None if x._extra is None else x._extra.storage


def sharers(x: Handle) -> list[Handle]:
    """All handles of a Tensor's memory."""
    return handles_of_memory(x, storage_of(x))


def handles_of_memory(x: Handle, storage: Storage | None) -> list[Any]:
    """All handles of a memory."""
    if storage is None:
        return [x]
    return [h for s in (storage, *storage.memory.others(storage)) for h in (s.whole, *s.alive())]


def rejoin_views(storage: Storage) -> Storage:
    """Let views made without history of what has one be its views again; the storage's successor."""
    for one in (storage, *storage.memory.others(storage)):
        to = one
        while to.origin is not None and requires_grad(to.origin.whole):
            to = to.origin
        if to is not one:
            for handle in one.alive():
                handle._extra.storage = to
                to.add(handle)
            storage = to if one is storage else storage
    return storage


def write_unrecorded(x: Handle, storage: Storage | None, change: Callable[[], object]) -> None:
    """A change of x's memory that is not recorded."""
    whole = x if storage is None else storage.whole
    old = None
    if whole._tape is not None and whole._tape is not tape_with_room():
        old = alias_of(whole)  # see `wholes_on_other_tapes`
    others = wholes_on_other_tapes(storage)
    if not is_memory_exposed(whole):
        separate_memory(x, storage)
    change()
    out = after_unrecorded_write(alias_of(whole) if old is None else old, value_in_memory(whole))
    update_histories(x, storage_of(x), out, others)  # once more, as a view may have been made meanwhile


def after_unrecorded_write(old: Handle, value: np.ndarray | np.generic) -> Handle:
    """What a memory is after a write that is not recorded: its gradient stays what it was."""
    if old._tape is not None:
        with inference_mode(False):
            return record(REGISTRY["reshape"], value, (old,), {"shape": np.shape(value)})
    out = wrap(value)
    if old._extra is not None:
        extra(out).requires_grad, extra(out).shown = old._extra.requires_grad, old._extra.shown
        if old._extra.requires_grad:
            owner = old._at.handle()
            if owner is not None and owner._at is old._at:
                renew(owner)
                out._at = owner._at
            else:
                out._at = Cell(out if owner is None else owner)
                out._at.hooks = old._at.hooks
                if owner is not None:  # it was a leaf once, and may be one again
                    note_cell(extra(owner), out._at)
    return out


def tape_with_room() -> Tape:
    """The open tape, with room for a write: closing one prunes what has no handle, as written values then."""
    tape = current()
    if len(tape.log) + FEW > tape.limit:
        close(tape)
        tape = current()
        tape.limit = max(tape.limit, FEW)
    return tape


def wholes_on_other_tapes(storage: Storage | None) -> dict[Storage, Handle]:
    """Wholes of the other storages of a memory, before it changes, where they link to another tape.

    By a link's value the older tape knows that it is read: it must be the old one.
    """
    if storage is None:
        return {}
    found = {}
    for other in storage.memory.others(storage):
        if not other.torn and other.whole._tape is not None and other.whole._tape is not local.tape:
            found[other] = alias_of(other.whole)
    return found


def is_memory_exposed(whole: Handle) -> bool:
    """Whether others can write to the memory of a storage, which a 0-d view sees by its place.

    Its value is a number, to which nobody can write: that `is_externally_writable` tells.
    """
    return whole._extra is not None and whole._extra.exposed and type(seen_by(whole)) is ndarray


def value_in_memory(x: Handle) -> Any:
    """What a Tensor's value is in memory now."""
    seen = seen_by(x)
    return seen if seen.ndim else seen[()]


def separate_memory(x: Handle, storage: Storage | None) -> None:
    """Move handles to memory of their own, unless nothing but them sees theirs."""
    if storage is None:
        if not pool.alone([x._v], [1]):
            relocate(x, storage_of(x))
        return
    handles = handles_of_memory(x, storage)
    values, holders = [storage.memory.root], [1]
    while handles:
        handle = handles.pop()
        for q in range(len(values)):
            if values[q] is seen_by(handle):
                holders[q] += 1
                break
        else:
            values.append(seen_by(handle))
            holders.append(1)
    handle = None
    if not pool.alone(values, holders):
        relocate(x, storage_of(x))


def relocate(x: Handle, storage: Storage | None, onto: np.ndarray | None = None) -> None:
    """Move all handles of a memory to another one of its layout, by default a copy of it."""
    if storage is None:
        value = x._v.copy(order="K")
        if x._extra is None or x._extra.storage is None:
            x._v = value
            return
        storage = x._extra.storage  # a finalizer has made a view meanwhile
    memory = storage.memory
    while True:
        before, latest = memory.root, memory.latest
        root = before.copy(order="K") if onto is None else onto
        handles = handles_of_memory(x, storage)
        values = [moved(seen_by(handle), before, root) for handle in handles]
        at = [x if x._extra is None or x._extra.place is None else x._extra for x in handles]
        names = ["_v" if isinstance(x, Handle) else "place" for x in at]
        give = map(setattr, at, names, values)
        # what was made may have run a finalizer, that made a view or wrote; from here on nothing is made
        if memory.root is before and memory.latest is latest:
            memory.root = root
            any(give)  # of None: all in one go
            return


def mark_torn(x: Handle, storage: Storage | None) -> None:
    """Values will change before their history does: an interrupt between must not go unnoticed."""
    for handle in [x] if storage is None else storage.alive():
        _release_retained(handle)
        handle._tape, handle._at = STALE, None
    if storage is not None:
        storage.torn = True


def refuse_torn(x: Handle) -> None:
    """Raise where a write to a Tensor was interrupted, so that its history is unknown."""
    storage = storage_of(x)
    if storage.torn if storage is not None else x._tape is STALE:
        raise GradientError(
            f"a write to the Tensor of shape {x._v.shape} was interrupted: its values may be half written, "
            "and their history is unknown; compute it anew, or take the values with detach()"
        )


def update_histories(x: Handle, storage: Storage | None, out: Handle, olds: dict[Storage, Handle]) -> None:
    """Give the whole its new history, and the handles theirs."""
    if storage is None:
        set_history(x, out._v, out)
        return
    _update_handles(storage, out)
    storage.torn = False
    for other in storage.memory.others(storage):  # other values, the same history
        if other.torn:  # its history is unknown
            continue
        _update_handles(
            other,
            after_unrecorded_write(
                olds[other] if other in olds else alias_of(other.whole), value_in_memory(other.whole)
            ),
        )


def _update_handles(storage: Storage, out: Handle) -> None:
    before, storage.whole = storage.whole, alias_of(out)
    if before._extra is not None and before._extra.place is not None:
        extra(storage.whole).place = before._extra.place
    known = requires_grad(out)
    for handle in storage.alive():
        if handle._extra.place is not None:
            handle._v = value_in_memory(handle)
        if (
            requires_grad(handle) and handle._tape is None
        ):  # the leaf, which `after_unrecorded_write` has renewed
            continue
        if handle is storage.base() and out._tape is not None:
            set_history(handle, out._v, out)
            continue
        _release_retained(handle)
        handle._tape, handle._at = STALE if known else None, None


def set_history(x: Handle, value: np.ndarray, out: Handle) -> None:
    """Give a handle another's value and history."""
    _release_retained(x)
    x._v, x._tape, x._at = value, out._tape, out._at
    if x._extra is not None and x._extra.retains_grad and x._tape is not None:
        retain(x)


def _release_retained(x: Handle) -> None:
    """Take back that a handle wants the gradient of its record."""
    if x._extra is not None and x._extra.retains_grad and x._tape is not None and x._tape is not STALE:
        at = strip_tangents(x)
        if at._tape is not None:
            at._tape.retained.pop(slot(at._at), None)


def forget(x: Any) -> None:
    """Let a handle be a leaf without history; its memory stays shared."""
    storage = storage_of(x)
    if storage is not None and storage.base() is not x:
        raise GradientError(
            f"detach_ of a view (shape {x._v.shape}) would part it from the history of what it is a view of; "
            "use detach()"
        )
    out = x.detach()
    set_history(x, x._v, out)
    if storage is not None or x._v.ndim:
        separate_storage(x)
    extra(x).retains_grad = False
    with_metadata(x, (out,), made=False)


def take_history(x: Handle) -> None:
    """Give a stale handle the history of what it is a view of."""
    refuse_torn(x)
    whole = x._extra.storage.whole
    with nullcontext() if is_grad_enabled() else inference_mode(False):
        seen, all_of_it = seen_by(x), seen_by(whole)
        if seen.flags.writeable:
            where = place_attributes(seen, all_of_it, EVERYTHING)
            op = REGISTRY["view"]
            if "places" in where:
                op, where = REGISTRY["rearrange"], {**where, "holes": False}
        else:  # several of its elements may be one in memory
            op, where = REGISTRY["rearrange"], {"places": places(seen, all_of_it), "holes": False}
        out = record(op, x._v, (alias_of(whole),), where)
    count_bytes_of_places(out, where)
    x._tape, x._at = out._tape, out._at
    if x._extra.retains_grad and x._tape is not None:
        retain(x)


def place_attributes(value: np.ndarray, whole: np.ndarray, index: Any) -> Attributes:
    """How an op names the elements that an index takes of a view: as a window, or one by one."""
    if type(index) is Part:
        value, index = index.take(value), EVERYTHING
    place = window(value, whole)
    if place is not None and index is EVERYTHING:
        return {"window": place}
    flat = type(index) is Flat
    parts, basic = ((), False) if flat else parts_of(index)
    if place is not None and basic:
        marked = any(part is Ellipsis for part in parts)
        # of memory that is dense: a view, even of one element
        return {"window": window(value[parts if marked else (*parts, ...)], whole)}
    if place is not None and value is whole:
        return {"places": index.places if flat else np.array(numbers(value.shape, index))}
    found = places(value, whole)
    return {"places": found.reshape(-1)[index.places] if flat else np.array(found[index])}


def count_bytes_of_places(out: Handle, where: Attributes) -> None:
    """Tell a result's tape of the places that its record keeps."""
    if "places" in where and where["places"].nbytes > LARGE:
        add_saved_bytes(out, where["places"])
