"""Writing to Tensors: values change in memory where nothing needs the old ones, histories always follow.

What a derivative still reads is never changed: then the write goes to a copy, which becomes the memory of
the Tensor and of all its views. So derivatives after writes are exact.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np

from tapegrad.core.base import (
    Handle,
    Operand,
    add_saved_bytes,
    alias_of,
    extra,
    has_tangent,
    is_array,
    is_tensor,
    like_of,
    needs_derivative,
    note_cell,
    renew,
    requires_grad,
    retain,
    seen_by,
    separate_storage,
    strip_tangents,
    value_of,
    wrap,
)
from tapegrad.core.conversion import astype, copy
from tapegrad.core.dispatch import (
    apply,
    as_tape_value,
    expect,
    is_externally_writable,
    record,
    sequence,
    timed,
    with_metadata,
)
from tapegrad.core.expected import Expected, expected, matcher_of
from tapegrad.core.grad_mode import (
    _enabled,
    in_force,
    inference_mode,
    is_grad_enabled,
    is_inference_mode_enabled,
)
from tapegrad.core.indices import elements, parts_of, plain_index
from tapegrad.core.storage import OPEN, STALE, Storage, is_same_part, moved, places, sharing, window
from tapegrad.errors import DTypeError, GradientError, ReadOnlyError, ShapeError
from tapegrad.kernels import abi
from tapegrad.ops import REGISTRY
from tapegrad.ops.indexing import numbers
from tapegrad.ops.primitive import Attributes
from tapegrad.tape import pool
from tapegrad.tape.record import slot
from tapegrad.tape.tape import LARGE, Cell, Tape, close, current, local

if TYPE_CHECKING:
    from tapegrad.core.expected import Matcher

ndarray = np.ndarray
EVERYTHING = Ellipsis
FEW = 32  # log entries that a write may take


class Flat:
    """An index of elements by their numbers in C order, an array that nobody else writes to."""

    __slots__ = ("places",)

    def __init__(self, places: Operand) -> None:
        self.places = np.asarray(places, np.int64)


class Part:
    """An index of the elements that a function takes a view of."""

    __slots__ = ("take",)

    def __init__(self, take: Callable[[np.ndarray], np.ndarray]) -> None:
        self.take = take


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
    _refuse_torn(x)
    storage = _storage(x)
    if storage is not None and x._v.ndim == 0 and _is_alone(x, storage):
        _leave_storage(x, storage)
        storage = None
    _allow(x, storage, new, what)
    if x._v.ndim == 0 and storage is None:
        _refuse_views(x, index, what)
        recorded = needs_derivative(x) or needs_derivative(new)
        _rebind(x, index, new, what, recorded, update)
        with_metadata(x, (new,), made=False)
        _count(x)
        return
    shape = _shape_at(seen_by(x), index, what)
    new = _fitted(new, shape, x, what)
    storage = _storage(x)  # once more: what was made of `new` may be the first view of x
    if storage is not None:
        storage = _rejoined(storage)
    whole = x if storage is None else storage.whole
    matcher = in_force("matcher")
    if matcher is not None and _listed(matcher, x, index, shape, new, update):
        pass
    elif needs_derivative(whole) or needs_derivative(new):
        _recorded(x, index, shape, new, update)
    else:
        _plain(x, storage, lambda: _set(seen_by(x), index, value_of(new)))
    if in_force("forward") is not None:
        for handle in sharers(x):
            with_metadata(handle, (given,), made=False)
    _count(x)


def _shape_at(value: np.ndarray, index: Any, what: str) -> tuple[int, ...]:
    """The shape of the elements that an index takes."""
    part: Any = value
    if type(index) is Flat:
        part = index.places
    elif type(index) is Part:
        part = index.take(value)
    elif index is not EVERYTHING:
        part = elements(value, index, f"{what}: ")  # which would be one more view
    shape: tuple[int, ...] = part.shape
    return shape


def _written_by_program(x: Handle, index: Any, new: Any, what: str, update: bool) -> bool:
    """Whether a write is what a program expects of its Tensor; an error is told where it is recorded."""
    given = new
    if isinstance(new, Handle) and x._at.matcher.write(x, index, new, update):
        return True
    like = like_of(x)
    if not isinstance(like, ndarray) or not like.ndim or not _fits(like_of(new).dtype, like.dtype):
        return False
    try:
        shape = _shape_at(like, index, what)
        new = _whole(_fitted(new, shape, x, what), shape)
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


def update_natively(x: Handle, new: Handle) -> bool | None:
    """Let x, or what it is a view of, be what an operator has computed from it; True where that is done.

    Compiled code, as soon as it is there.
    """
    return None


def become(x: Handle, new: Handle, what: str) -> None:
    """Let x be what an operator, which an error names, has just computed from all of it."""
    if type(_enabled.get()) is bool and isinstance(new, Handle) and _replace(x, new):
        return
    if expected and type(x._at) is Expected and x._at.matcher.write(x, EVERYTHING, new, True):
        return
    if not update_natively(x, new):
        write(x, EVERYTHING, new, what, True)


def _replace(x: Handle, new: Handle) -> bool:
    """As `become`, without a record; False if `write` is to do it.

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


def _storage(x: Handle) -> Storage | None:
    """What a Tensor shares memory through, if it does."""
    return None if x._extra is None else x._extra.storage


def _rejoined(storage: Storage) -> Storage:
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


def _count(x: Handle) -> None:
    """One more version."""
    state = extra(x)
    if state.storage is None:
        state.version += 1
    else:
        state.storage.memory.writes += 1


def _refuse_views(x: Handle, index: Any, what: str) -> None:
    """Refuse to write to a number of which there are copies where an array would have views."""
    presence = None if x._extra is None else x._extra.presence
    if presence is not None and any(asking.held() for asking in weakref.getweakrefs(presence)):
        _shape_at(np.asarray(x._v), index, what)  # which refuses an index of nothing
        raise ReadOnlyError(
            f"{what}: of the Tensor of shape () there are copies that would be views of an array, and do not "
            "see the write; make them after it, or of what was written to before"
        )


def _allow(x: Handle, storage: Storage | None, new: Operand, what: str) -> None:
    if x._extra is not None and x._extra.inference and not is_inference_mode_enabled():
        raise GradientError(f"{what}: a result of inference_mode cannot be written to; use a copy by clone()")
    refuse_copied(x, what)
    whole = x if storage is None else storage.whole
    recording = is_grad_enabled()
    if recording or has_tangent(new):
        if x._extra is not None and x._extra.several is True and (requires_grad(whole) or requires_grad(new)):
            raise GradientError(
                f"{what}: the Tensor of shape {x._v.shape} is one of several views that a split made; write "
                "to what was split, or to a copy made by clone()"
            )
        origin = None if storage is None or storage.origin is None else storage.origin.whole
        for handle in (x, whole, origin):
            if handle is None or handle._tape is not None or not requires_grad(handle):
                continue
            part = "a leaf" if x._tape is None and requires_grad(x) else "a view of a leaf"
            raise GradientError(
                f"{what} would change {part} that requires grad (shape {x._v.shape}), and its gradient would "
                "be of values that are gone; write under tg.no_grad(), or to a copy made by clone()"
            )
        if origin is not None and requires_grad(origin):
            raise GradientError(
                f"{what}: the Tensor of shape {x._v.shape} was made a view while nothing was recorded, and "
                "what it is a view of requires grad; make the view anew, or write under tg.no_grad()"
            )
        if storage is not None and storage.detached and requires_grad(new):
            raise GradientError(
                f"{what}: a detached Tensor shares memory but no history, and values that require grad would "
                "need one; write to a copy made by clone()"
            )
    if not recording and (has_tangent(whole) or has_tangent(new)) and requires_grad(strip_tangents(whole)):
        raise GradientError(
            f"{what}: under tg.no_grad() the tangent of the Tensor of shape {x._v.shape} would know of the "
            "write and its gradient not; write with grad mode on, or to a copy made by clone()"
        )
    seen = seen_by(x)
    if type(seen) is ndarray and not seen.flags.writeable:
        raise ReadOnlyError(
            f"{what}: the Tensor of shape {x._v.shape} is read-only, as several of its elements are one in "
            "memory (broadcast_to) or its array was; copy it first"
        )
    kind = value_of(new).dtype
    if not _fits(kind, x._v.dtype):
        raise DTypeError(
            f"{what}: values of dtype {kind} do not fit a Tensor of dtype {x._v.dtype} without loss; "
            "convert one of them with astype"
        )
    if x._v.dtype.char not in abi.GRADIENT and needs_derivative(new):
        raise DTypeError(f"{what}: a Tensor of dtype {x._v.dtype} cannot hold values that require grad")


def refuse_copied(x: Handle, what: str) -> None:
    """A write to a copy of a part is lost to what NumPy would have made a view of, if that is still there."""
    several = False if x._extra is None else x._extra.several
    if not callable(several):
        return
    if several() is None:
        x._extra.several = False
    elif x._v.ndim == 0:
        raise ReadOnlyError(
            f"{what}: the Tensor of shape () is a copy of an element, and NumPy would change the array that "
            "it was taken from as well; write x[0, 0] = value to that, y = y + value for another number, or "
            "to a copy made by .copy()"
        )
    else:
        raise ReadOnlyError(
            f"{what}: the Tensor of shape {x._v.shape} is a copy of a real or imaginary part, or of "
            "a number, and NumPy would change what it is of, if that is an array, as well; write "
            "z[...] = real + 1j * imag or x[...] = value to that, or to a copy made by .copy()"
        )


def _fits(kind: np.dtype, dtype: np.dtype) -> bool:
    """Whether values of one dtype may be written to a Tensor of another one."""
    return kind is dtype or np.can_cast(kind, dtype, "same_kind")


def _fitted(new: Any, shape: tuple[int, ...], x: Handle, what: str) -> Any:
    """`new` with the dtype of x and the shape of the elements written to."""
    value, dtype = like_of(new), like_of(x).dtype
    if value.dtype is dtype and value.shape == shape:
        return new if requires_grad(new) else value_of(new)
    extra_axes = value.ndim - len(shape)
    if extra_axes > 0 and value.shape[:extra_axes] == (1,) * extra_axes:
        inner = value.shape[extra_axes:]
        new = _reshaped(new, inner) if isinstance(new, Handle) else value.reshape(inner)
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


def _reshaped(x: Handle, shape: tuple[int, ...]) -> Handle:
    return apply(REGISTRY["reshape"], (x,), {"shape": shape})


def _rebind(x: Handle, index: Any, new: Any, what: str, recorded: bool, update: bool) -> None:
    """A 0-d Tensor holds an immutable scalar: it gets another one."""
    value = value_of(new)
    chosen = 1 if index is EVERYTHING else np.size(elements(np.empty(()), index, f"{what}: "))
    if chosen == 0 and value.size < 2:  # by a mask that is False
        return
    if value.size != 1:
        raise ShapeError(f"{what}: values of shape {value.shape} for a 0-d Tensor")
    scalar = x._v.dtype.type(value.reshape(())[()])
    if not recorded:
        out = _unrecorded(alias_of(x), scalar)
    else:
        part = _reshaped(astype(new, x._v.dtype), ()) if requires_grad(new) else wrap(scalar)
        if requires_grad(x) and not (update and requires_grad(new)):
            out = record(REGISTRY["assign"], scalar, (part, alias_of(x)), {"window": (0, (), ())})
        else:
            out = copy(part) if part is new else part
    _become(x, out._v, out)
    extra(x).array = extra(x).written = True


def _recorded(x: Handle, index: Any, shape: tuple[int, ...], new: Any, update: bool) -> None:
    tape = _room()
    if isinstance(new, Handle) and new._tape is not tape:
        new = record(REGISTRY["reshape"], new._v, (new,), {"shape": new._v.shape})
    storage = _storage(x)
    if storage is not None:
        storage = _rejoined(storage)
    whole = x if storage is None else storage.whole
    if (
        update
        and is_tensor(new)
        and new._v.flags.writeable
        and new._v.strides == x._v.strides  # the layout stays what it was
        and not _is_memory_exposed(whole)
        and _is_all(x, storage)
    ):
        if storage is None:  # no object is made here, so no view of x by a finalizer
            _become(x, new._v, new)
            return
        _tear(x, storage)
        _move(x, storage, new._v)
        _tell(x, storage, new, {})
        return
    at, others = whole._at, _read_elsewhere(storage)
    # no reference to the memory, which would have to be copied, where no link needs it
    old = wrap(pool.shadow_of(whole._v.shape, whole._v.dtype) if whole._v.ndim else whole._v)
    held = None
    if whole._tape is tape:
        held = tape.anchor(whole._at)  # if a finalizer closes the tape, what has no handle is pruned
        old._tape, old._at = tape, whole._at
    elif requires_grad(whole):
        old = alias_of(whole)
    where = _where(seen_by(x), seen_by(whole), index)
    op = REGISTRY["assign" if "window" in where else "scatter"]
    # not a handle of this memory, which will be stale
    operand = (
        alias_of(new) if isinstance(new, Handle) else pool.shadow_of(shape, new.dtype) if shape else new[()]
    )
    now = _storage(x)  # what was made may have run a finalizer, that made a view of x or wrote to it
    if now is not storage or whole._at is not at or (now is not None and now.whole is not whole):
        _recorded(x, index, shape, new, update)
        return
    _tear(x, storage)
    if _is_memory_exposed(whole):
        _set(seen_by(x), index, value_of(new))
        _move(x, storage)  # its owner has seen it; from here on the Tensor has memory of its own
        for handle in _sharers(x, storage):
            extra(handle).shown = None
    else:
        _part_with_others(x, storage)
        _set(seen_by(x), index, value_of(new))
    out = record(op, _read(whole), (operand, old), where)
    del held
    _weigh(out, where)
    _tell(x, _storage(x), out, others)


def _is_memory_exposed(whole: Handle) -> bool:
    """Whether others can write to the memory of a storage, which a 0-d view sees by its place.

    Its value is a number, to which nobody can write: that `is_externally_writable` tells.
    """
    return whole._extra is not None and whole._extra.exposed and type(seen_by(whole)) is ndarray


def _read(x: Handle) -> Any:
    """What a Tensor's value is in memory now."""
    seen = seen_by(x)
    return seen if seen.ndim else seen[()]


def _is_alone(x: Handle, storage: Storage) -> bool:
    """Whether nobody holds what sees the same memory as a 0-d view."""
    if _is_memory_exposed(storage.whole) or not seen_by(x).flags.writeable:
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


def _is_all(x: Any, storage: Storage | None) -> bool:
    """Whether a Tensor is all of its memory, and all that sees it has one history."""
    if storage is None:
        return True
    memory = storage.memory
    return x._v is storage.whole._v is memory.root and not memory.others(storage)


def _listed(matcher: Matcher, x: Any, index: Any, shape: tuple[int, ...], new: Any, update: bool) -> bool:
    """As `_recorded`, for what lists operations to make a program of them; whether that is done.

    Nothing else sees the array, but perhaps the view by which it is written to, which becomes a view of the
    result: that is an array of its own, as what was there before is listed too.
    """
    storage = _storage(x)
    base: Any = x if storage is None else storage.base()
    if base is not None and _is_there(x, index, new):
        return True  # by x[index] += y, which has written to that view
    history = None if base is None else matcher.written(base, new, x)
    if history is None:
        return False
    seen = None if base is x else matcher.history_of(x)
    if base is x and update and is_tensor(new) and new._v.flags.writeable and new._v.strides == x._v.strides:
        value, attrs = new._v, {"shape": shape}
        out = record(REGISTRY["reshape"], value.view(), (new,), attrs)
    else:
        value, attrs = base._v.copy(), _where(x._v, base._v, index)
        op = REGISTRY["assign" if "window" in attrs else "scatter"]
        _set(moved(x._v, base._v, value), index, value_of(new))
        out = record(op, value, (_whole(new, shape), base), attrs)
    if storage is None:
        _become(x, value, out)
    else:
        _tear(x, storage)
        _move(x, storage, value)
        _tell(x, storage, out, {})
    matcher.note_write(history, (index, seen), base)
    if seen is not None:
        take_history(x)
        matcher.note_write(seen, (), x)
    return True


def _is_there(x: Handle, index: Any, new: Any) -> bool:
    """Whether a Tensor is the very part of another that an index takes."""
    if not isinstance(new, Handle) or new._extra is None or new._extra.storage is not _storage(x):
        return False
    if new is x or new._extra.storage is None or type(index) in (Flat, Part):
        return False
    seen = seen_by(new)
    return type(seen) is ndarray and is_same_part(elements(seen_by(x), index, ""), seen)


def _room() -> Tape:
    """The open tape, with room for a write: closing one prunes what has no handle, as written values then."""
    tape = current()
    if len(tape.log) + FEW > tape.limit:
        close(tape)
        tape = current()
        tape.limit = max(tape.limit, FEW)
    return tape


def _read_elsewhere(storage: Storage | None) -> dict[Storage, Handle]:
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


def _set(array: np.ndarray, index: Any, value: np.ndarray) -> None:
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


def _tear(x: Handle, storage: Storage | None) -> None:
    """Values will change before their history does: an interrupt between must not go unnoticed."""
    for handle in [x] if storage is None else storage.alive():
        _leave(handle)
        handle._tape, handle._at = STALE, None
    if storage is not None:
        storage.torn = True


def _refuse_torn(x: Handle) -> None:
    storage = _storage(x)
    if storage.torn if storage is not None else x._tape is STALE:
        raise GradientError(
            f"a write to the Tensor of shape {x._v.shape} was interrupted: its values may be half written, "
            "and their history is unknown; compute it anew, or take the values with detach()"
        )


def _where(value: np.ndarray, whole: np.ndarray, index: Any) -> Attributes:
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


def _weigh(out: Handle, where: Attributes) -> None:
    """Tell a result's tape of the places that its record keeps."""
    if "places" in where and where["places"].nbytes > LARGE:
        add_saved_bytes(out, where["places"])


def accumulate(x: Handle, value: np.ndarray | np.generic) -> None:
    """Add an array to a Tensor without history, in memory where nothing else sees it."""
    state = extra(x)
    if x._v.ndim == 0 and state.place is None:
        _become(x, x._v + value, _unrecorded(alias_of(x), x._v))
    elif state.storage is not None or state.shown is not None or state.requires_grad:
        _plain(x, state.storage, lambda: np.add(seen_by(x), value, out=seen_by(x)))
    else:  # the common case of that
        if not pool.alone([x._v], [1]):
            _move(x, None)
        np.add(x._v, value, out=x._v)
        x._at = None  # to tapes it is another one from now on
    _count(x)


def _plain(x: Handle, storage: Storage | None, change: Callable[[], object]) -> None:
    """A change of x's memory that is not recorded."""
    whole = x if storage is None else storage.whole
    old = None
    if whole._tape is not None and whole._tape is not _room():
        old = alias_of(whole)  # see `_read_elsewhere`
    others = _read_elsewhere(storage)
    if not _is_memory_exposed(whole):
        _part_with_others(x, storage)
    change()
    out = _unrecorded(alias_of(whole) if old is None else old, _read(whole))
    _tell(x, _storage(x), out, others)  # once more, as a view may have been made meanwhile


class Loan:
    """The base of an array given out: all views of that array hold it, and with it what they share."""

    __slots__ = ("__array_interface__", "array", "life")

    def __init__(self, array: np.ndarray, life: Life) -> None:
        self.array, self.life = array, life
        self.__array_interface__ = array.__array_interface__


class Life:
    """Lives as long as one of the arrays does that were given out of a memory."""


def lend(x: Handle) -> np.ndarray:
    """Give out a Tensor's memory: while what is given out lives, others can write to it.

    What a tape keeps is never given out, then the Tensor and its views move to a copy; where there is a
    history the array is read-only.
    """
    value = x._v
    if type(value) is not ndarray:
        value = np.asarray(value)
        value.flags.writeable = not is_array(x)  # a write would be lost
        return value
    storage = extra(x).storage
    whole = x if storage is None else storage.whole
    if is_externally_writable(whole) and extra(whole).shown is True:
        return value
    if _has_history(x) or not value.flags.writeable or any(h._v.ndim == 0 for h in sharers(x)):
        value = value.view()  # 0-d views, and what has a history, do not see what others write
        value.flags.writeable = False
        return value
    value = None
    with sharing():
        life = _life(x)
        if not _has_history(x):
            return np.asarray(Loan(x._v, life))
    return lend(x)  # another thread has recorded a view of it meanwhile


def _has_history(x: Handle) -> bool:
    """Whether a handle of a Tensor's memory has one."""
    return any(has_tangent(h) or h._tape is not None for h in sharers(x))


def _life(x: Handle) -> Life:
    """Return what lives while arrays do that are given out of a memory, which is made ready for the first."""
    storage = extra(x).storage
    whole = x if storage is None else storage.whole
    life: Life | None = extra(whole).shown() if is_externally_writable(whole) else None
    if life is None:
        life = Life()
        _expose(x, storage, life)  # first: what other threads record meanwhile does not keep the memory
        _part_with_others(x, storage)
        _plain(x, storage, lambda: None)  # to tapes it is another one from now on
        _expose(x, extra(x).storage, life)
    return life


def _expose(x: Handle, storage: Storage | None, life: Life) -> None:
    """Note that others can write to a memory."""
    for handle in _sharers(x, storage):
        extra(handle).shown = weakref.ref(life)


def _unrecorded(old: Handle, value: np.ndarray | np.generic) -> Handle:
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


def _part_with_others(x: Handle, storage: Storage | None) -> None:
    """Move handles to memory of their own, unless nothing but them sees theirs."""
    if storage is None:
        if not pool.alone([x._v], [1]):
            _move(x, _storage(x))
        return
    handles = _sharers(x, storage)
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
        _move(x, _storage(x))


def sharers(x: Handle) -> list[Handle]:
    """All handles of a Tensor's memory."""
    return _sharers(x, _storage(x))


def _sharers(x: Handle, storage: Storage | None) -> list[Any]:
    """All handles of a memory."""
    if storage is None:
        return [x]
    return [h for s in (storage, *storage.memory.others(storage)) for h in (s.whole, *s.alive())]


def _move(x: Handle, storage: Storage | None, onto: np.ndarray | None = None) -> None:
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
        handles = _sharers(x, storage)
        values = [moved(seen_by(handle), before, root) for handle in handles]
        at = [x if x._extra is None or x._extra.place is None else x._extra for x in handles]
        names = ["_v" if isinstance(x, Handle) else "place" for x in at]
        give = map(setattr, at, names, values)
        # what was made may have run a finalizer, that made a view or wrote; from here on nothing is made
        if memory.root is before and memory.latest is latest:
            memory.root = root
            any(give)  # of None: all in one go
            return


def _tell(x: Handle, storage: Storage | None, out: Handle, olds: dict[Storage, Handle]) -> None:
    """Give the whole its new history, and the handles theirs."""
    if storage is None:
        _become(x, out._v, out)
        return
    _inform(storage, out)
    storage.torn = False
    for other in storage.memory.others(storage):  # other values, the same history
        if other.torn:  # its history is unknown
            continue
        _inform(
            other, _unrecorded(olds[other] if other in olds else alias_of(other.whole), _read(other.whole))
        )


def _inform(storage: Storage, out: Handle) -> None:
    before, storage.whole = storage.whole, alias_of(out)
    if before._extra is not None and before._extra.place is not None:
        extra(storage.whole).place = before._extra.place
    known = requires_grad(out)
    for handle in storage.alive():
        if handle._extra.place is not None:
            handle._v = _read(handle)
        if requires_grad(handle) and handle._tape is None:  # the leaf, which `_unrecorded` has renewed
            continue
        if handle is storage.base() and out._tape is not None:
            _become(handle, out._v, out)
            continue
        _leave(handle)
        handle._tape, handle._at = STALE if known else None, None


def _become(x: Handle, value: np.ndarray, out: Handle) -> None:
    """Give a handle another's value and history."""
    _leave(x)
    x._v, x._tape, x._at = value, out._tape, out._at
    if x._extra is not None and x._extra.retains_grad and x._tape is not None:
        retain(x)


def forget(x: Any) -> None:
    """Let a handle be a leaf without history; its memory stays shared."""
    storage = _storage(x)
    if storage is not None and storage.base() is not x:
        raise GradientError(
            f"detach_ of a view (shape {x._v.shape}) would part it from the history of what it is a view of; "
            "use detach()"
        )
    out = x.detach()
    _become(x, x._v, out)
    if storage is not None or x._v.ndim:
        separate_storage(x)
    extra(x).retains_grad = False
    with_metadata(x, (out,), made=False)


def _leave(x: Handle) -> None:
    """Take back that a handle wants the gradient of its record."""
    if x._extra is not None and x._extra.retains_grad and x._tape is not None and x._tape is not STALE:
        at = strip_tangents(x)
        if at._tape is not None:
            at._tape.retained.pop(slot(at._at), None)


def take_history(x: Handle) -> None:
    """Give a stale handle the history of what it is a view of."""
    _refuse_torn(x)
    whole = x._extra.storage.whole
    with nullcontext() if is_grad_enabled() else inference_mode(False):
        seen, all_of_it = seen_by(x), seen_by(whole)
        if seen.flags.writeable:
            where = _where(seen, all_of_it, EVERYTHING)
            op = REGISTRY["view"]
            if "places" in where:
                op, where = REGISTRY["rearrange"], {**where, "holes": False}
        else:  # several of its elements may be one in memory
            op, where = REGISTRY["rearrange"], {"places": places(seen, all_of_it), "holes": False}
        out = record(op, x._v, (alias_of(whole),), where)
    _weigh(out, where)
    x._tape, x._at = out._tape, out._at
    if x._extra.retains_grad and x._tape is not None:
        retain(x)
