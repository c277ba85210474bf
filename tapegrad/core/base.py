"""What a Tensor is to tapes: a value, and where its history stands."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from operator import is_
from types import EllipsisType
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    ParamSpec,
    SupportsIndex,
    TypeAlias,
    TypeGuard,
    TypeVar,
    cast,
)

import numpy as np

from tapegrad.core.expected import Expected, expected, matcher_of
from tapegrad.core.grad_mode import _enabled, in_force
from tapegrad.core.handle import Handle as Handle
from tapegrad.core.storage import DUAL, OPEN, STALE, Asking, Memory, Presence, Storage, moved
from tapegrad.kernels import abi
from tapegrad.tape.record import slot
from tapegrad.tape.tape import LARGE, Cell, Tape

if TYPE_CHECKING:
    from numpy._globals import _NoValueType
    from numpy.typing import ArrayLike, DTypeLike


# Of these `tensor` says which handles are meant, to all above.
TensorOrArray: TypeAlias = "Handle | np.ndarray"  # what rules compute with; NumPy's numbers count as arrays
Operand: TypeAlias = "Handle | ArrayLike"  # what NumPy's functions take
Out: TypeAlias = "TensorOrArray | None"  # where they put a result, if it is said
DType: TypeAlias = "DTypeLike | None"
Shape: TypeAlias = int | Sequence[int]
Axis: TypeAlias = int | Sequence[int] | None
Index: TypeAlias = (
    "Handle | ArrayLike | SupportsIndex | slice | EllipsisType | tuple[Index, ...] | None"  # of elements
)
Casting: TypeAlias = Literal["no", "equiv", "safe", "same_kind", "unsafe"]
NotGiven: TypeAlias = (
    "_NoValueType"  # what `np._NoValue` is, the default of arguments of which None says something
)


H = TypeVar("H", bound=Handle)
P = ParamSpec("P")
R = TypeVar("R")
_make: type[Handle]
_new: Callable[[], Handle]
_take_history: Callable[[Handle], None]


def use(kind: type[Handle], take_history: Callable[[Handle], None]) -> None:
    """Let results be of this class, and stale handles get their history by this function."""
    global _make, _new, _take_history
    _make, _new, _take_history = kind, partial(object.__new__, kind), take_history  # `__init__` refuses data


def wrap(value: Operand, tape: Tape | None = None, at: Any = None) -> Handle:
    """Return a Tensor of a value as the library makes them."""
    out = _new()
    out._v, out._tape, out._at, out._extra = value, tape, at, None
    return out


class Extra:
    """State of a Tensor that few have: what is not as here."""

    requires_grad = False  # of a leaf
    shown: Any = None  # True: others may write to the memory; a weak reference: while that lives
    retains_grad = False
    # True: it is one of several views that one call made. A function or a weak reference: it is a copied part
    # of what that gives, if that is still there.
    several: Any = False
    grad: Any = None
    version = 0
    volatile = False  # whether nothing computed from it has a history
    inference = False  # whether it was made under `inference_mode`
    call: Any = None  # of a Function, in whose forward it was computed from the inputs
    storage: Storage | None = None  # what it shares memory through
    place: Any = None  # of a 0-d Tensor with a storage: the element that it sees; the value is its number
    array = False  # of a 0-d Tensor: whether it is an array to NumPy, as what functions compute is not
    written = False  # of a 0-d Tensor that sees its memory alone: whether operators in place change it
    presence: Presence | None = None  # of a memory that it sees alone
    # weak references to what tapes knew it by before its value or role changed; a list, once there are such
    cells: Any = ()

    @property
    def exposed(self) -> bool:
        """Whether others may write to the memory."""
        while (shown := self.shown) is not None:
            if shown is True or shown() is not None:
                return True
            if self.shown is shown:  # else another thread has just given it out anew
                self.shown = None
        return False


# CPython lets the objects of a class share the names that the first of them have set. An object that sets
# another one gets a dict, and what a finalizer sets while that is made is lost with it.
_first = Extra()
for _name in vars(Extra):
    if not _name.startswith("_") and _name != "exposed":
        setattr(_first, _name, None)


class _Array(Extra):
    """State of 0-d Tensors of which nothing else is known than that they are arrays to NumPy."""

    __slots__ = ()
    array = True

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError("this is the state of many Tensors; `extra` makes one that can be set")


ARRAY = _Array()


def extra(x: Handle) -> Extra:
    """Return a Tensor's extra state, made when first asked for."""
    found: Extra | None = x._extra
    if found is None or found is ARRAY:
        made = Extra()  # which may run a finalizer, that asks for it too
        if found is ARRAY:
            made.array = True
        found = x._extra
        if found is None or found is ARRAY:
            found = x._extra = made
    return found


def as_array(x: H) -> H:
    """Let a Tensor without axes be known as one of NumPy's arrays, of which there are views; returns it."""
    if expected and type(x._at) is Expected:
        x._at.matcher.note_array(x)
    elif x._extra is None:
        x._extra = ARRAY
    elif x._extra is not ARRAY:
        x._extra.array = True
    return x


def previous_cells(x: Handle) -> list[Cell]:
    """What tapes that there are still knew a leaf by, before its value or its role changed."""
    state = x._extra
    if state is None or not state.cells:
        return []
    cells = state.cells.copy()  # another thread may add some
    for dead in [r for r in cells if r() is None]:
        with suppress(ValueError):  # another thread was faster
            state.cells.remove(dead)
    return [cell for r in cells if (cell := r()) is not None]


def note_cell(state: Extra, cell: Cell) -> None:
    """Note what tapes know a leaf by, or did."""
    note, made = weakref.ref(cell), list[weakref.ref[Cell]]()
    if not state.cells:  # nothing is called from here on, so no other thread comes between
        state.cells = made
    state.cells.append(note)


def renew(x: Handle) -> None:
    """Let a leaf be known to tapes as another one from now on: what they recorded stays as it was."""
    made = Cell(x)
    while True:
        before = x._at
        if before is not None:
            made.hooks = before.hooks
            if x._extra is not None:
                note_cell(x._extra, before)
                previous_cells(x)  # which forgets those that are gone
        if x._at is before:  # else another thread has renewed it; nothing is called from here on
            x._at = made
            return


def recall(value: Any, source: Cell | tuple[Tape, int] | None, exposed: bool = False) -> Handle:
    """Return a Tensor that goes on from a leaf or a record; without a source, a constant."""
    if isinstance(source, Cell):
        out = wrap(value, None, source)
        extra(out).requires_grad = True
        exposed = source.shared
    elif source is None:
        out = wrap(value)
    else:
        return wrap(value, source[0], 4 * (source[1] + 1))
    if exposed:
        extra(out).shown = True
    return out


def seen_by(x: Handle) -> Any:
    """The array by which a Tensor sees its memory: its value, or of a 0-d view its place."""
    state = None if is_expected(x) else x._extra
    return x._v if state is None or state.place is None else state.place


def array_of(x: Handle) -> Any:
    """As `seen_by`, of a Tensor of which a view is made; a number if it is none of NumPy's arrays."""
    state = None if is_expected(x) else x._extra
    if state is not None and state.storage is None and (state.array or state.requires_grad):
        storage_of(x)
    return seen_by(x)


def is_array(x: Operand) -> bool:
    """Whether a Tensor without axes is one of NumPy's arrays."""
    if not isinstance(x, Handle):
        return False
    if expected and type(x._at) is Expected:
        return x._at.matcher.is_array(x)
    return x._extra is not None and (x._extra.array or x._extra.place is not None)


def is_number_view(x: Handle) -> bool:
    """Whether a Tensor without axes is a view."""
    if expected and type(x._at) is Expected:
        return x._at.matcher.is_number_view(x)
    return x._extra is not None and x._extra.place is not None


def whole_of(x: Handle) -> Handle:
    """Another handle of a Tensor's value and history, which sees its memory too."""
    out = alias_of(x)
    if x._extra is not None and x._extra.place is not None:
        extra(out).place = x._extra.place
    return out


def storage_of(x: Handle) -> Storage:
    """Return what a Tensor shares memory through."""
    state = extra(x)
    while state.storage is None:
        torn = x._tape is STALE  # by a write that was cut off: without a storage nothing else makes it so
        whole = wrap(x._v, STALE) if torn else alias_of(x)
        place = None if isinstance(whole._v, np.ndarray) else np.array(whole._v)
        if place is not None:
            extra(whole).place = place
        made = Storage(x, whole, Memory(whole._v if place is None else place, state.version, state.presence))
        made.torn = torn
        made.memory.add(made)
        # what was made may have run a finalizer, that wrote to it or made a view of it
        if (
            state.storage is None
            and whole._v is x._v
            and whole._tape is x._tape
            and (torn or whole._at is x._at)
        ):
            state.storage, state.place = made, place
    found: Storage = state.storage
    return found


def join(
    x: Handle, view: H, of: np.ndarray | None = None, detached: bool = False, place: np.ndarray | None = None
) -> H:
    """Let a Tensor that NumPy made a view of another's memory see its writes, and be seen; returns it.

    `of` is what the other saw of its memory as the view was made of it. If a finalizer has written to it
    since, the view is one of what there is now, with the history of that. A 0-d view has a `place`.
    """
    if expected and type(view._at) is Expected:
        return view  # it is joined when it is recorded
    theirs = extra(view)
    if theirs.storage is not None:
        return view
    if of is None:
        of = seen_by(x)
    while True:
        now, mine = x._v, x._extra
        if mine is not None and mine.place is not None:
            now = mine.place
        storage = None if mine is None else mine.storage
        if storage is None:
            storage = storage_of(x)
            mine = x._extra
        if now is not of and view._tape is not None and mine.exposed:
            return view  # of what was given out meanwhile: as where others write, it is one of nothing else
        if mine.shown is not None or mine.several or mine.inference:
            theirs.shown, theirs.several, theirs.inference = mine.shown, mine.several, mine.inference
        memory, changed, value, tape = storage.memory, now is not of, None, None
        at = place
        if changed:
            root = memory.root
            if seen_by(x) is not now:  # another thread has exchanged both
                continue
            value = moved(view._v if place is None else place, of, now, root)
            if place is not None:
                at, value = value, value[()]
        if detached or (view._tape is None and requires_grad(x) and not (changed and _enabled.get())):
            own = Storage(view, alias_of(view), memory, detached)
            own.origin = None if detached else storage
            keeper, references = memory, memory.storages
            reference: weakref.ref[Any] = weakref.ref(own)
            if changed:
                own.whole._v = value
            if place is not None:
                extra(own.whole).place = at
        else:
            own = keeper = storage
            references, reference = storage.handles, weakref.ref(view)
            if changed and requires_grad(storage.whole):
                tape = STALE
        # what was made may have run a finalizer, that wrote to x; from here on nothing is made
        if (x._v is now or mine.place is now) and mine.storage is storage:
            theirs.storage, memory.latest = own, reference
            if at is not None:
                theirs.place = at
            if changed:
                view._v, view._tape, view._at = value, tape, None
            references.append(reference)
            if len(references) > keeper.limit:
                keeper.forget_dead()
            return view


def note_copied(part: H, of: Any) -> H:
    """Let writes to a copy be refused while that is seen of which NumPy would have made a view; returns it.

    What a program gives is told when it is recorded; what learns one holds Tensors without a history, and
    knows who else does.
    """
    if not isinstance(of, Handle) or is_expected(part):
        return part
    matcher = in_force("matcher")
    if matcher is not None and matcher.is_flat(of):
        return refuse_while(part, of, partial(_held, weakref.ref(matcher), weakref.ref(of)))
    state = extra(of)
    if matcher is not None and state.storage is not None:
        return refuse_while(part, of, partial(_held, weakref.ref(matcher), weakref.ref(state.storage)))
    seen = state if state.storage is None else state.storage.memory
    if seen.presence is None:
        seen.presence = Presence()
    asking = Asking(seen.presence)
    asking.held, here = partial(bool, True), cast("Callable[[], Any]", asking)
    if matcher is not None:  # which may hold a Tensor that nobody else does
        known = weakref.ref(matcher)
        here = partial(_both, asking, partial(_held, known, weakref.ref(of)))
        asking.held = partial(_is_kept, known, weakref.ref(part))
    shown = state.shown  # others see it as long as that says
    if shown is None:
        return refuse_while(part, of, here)
    return refuse_while(part, of, partial(bool, True) if shown is True else partial(_either, here, shown))


def note_of_copy(part: H, of: Any) -> H:
    """As `note_copied`, of what stands for a number of NumPy's unless it is a view or such a copy itself."""
    if not isinstance(of, Handle) or is_expected(of) or is_expected(part) or of._extra is None:
        return part
    joined = part._extra is not None and part._extra.storage is not None
    copied = not joined and (callable(of._extra.several) or of._extra.place is not None)
    return note_copied(part, of) if copied else part


def refuse_while(part: H, of: Handle, seen: Callable[[], Any]) -> H:
    """Let writes to a copy be refused while something is seen, or to what it is of; returns it."""
    state = None if is_expected(of) else of._extra
    further = False if state is None else state.several
    extra(part).several = partial(_either, seen, further) if callable(further) else seen
    return part


def _either(one: Callable[[], Any], other: Callable[[], Any]) -> Any:
    found = one()
    return other() if found is None else found


def _both(one: Callable[[], Any], other: Callable[[], Any]) -> Any:
    return None if one() is None else other()


def _held(matcher: weakref.ref[Any], seen: weakref.ref[Any]) -> Any:
    """What others hold of a memory than a program, or what learns one, if that is still there."""
    known = matcher()
    return seen() if known is None else known.held(seen)


def _is_kept(matcher: weakref.ref[Any], copy: weakref.ref[Any]) -> bool:
    """Whether others have a copy than a program, or what learns one; if it is gone, a view of it is there."""
    return copy() is None or _held(matcher, copy) is not None


def separate_storage(x: Handle) -> None:
    """Give a Tensor that changes its role a storage of its own in the memory that it sees."""
    before = extra(x).storage
    if before is not None:
        before.remove(x)
        after = x._extra.storage = Storage(x, whole_of(x), before.memory)
        before.memory.add(after)
        seen = seen_by(x), seen_by(before.whole)
        mine, whole = ((v.shape, v.strides, abi.location(v)) for v in seen)
        if mine == whole:
            before.origin = after


def alias_of(x: Handle) -> Handle:
    """Return another handle of a Tensor's value and history."""
    if x._tape is STALE:
        refresh_history(x)
    out = wrap(x._v, x._tape, x._at)
    state = x._extra
    if state is not None and (
        state.requires_grad or state.call is not None or (state.shown is not None and state.exposed)
    ):
        extra(out).requires_grad, extra(out).shown, out._extra.call = (
            state.requires_grad, state.shown, state.call,
        )  # fmt: skip
    return out


def undisturbed(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate what reads values of its arguments and records apart from that: both are of one moment.

    A finalizer may write to an argument in between. It has another value from then on, as that of before is
    held here, and all is done anew.
    """

    @functools.wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        if expected and any(map(matcher_of, args)):
            return function(*args, **kwargs)
        while True:
            read = [*map(value_of, args)]
            out = function(*args, **kwargs)
            if all(map(is_, map(value_of, args), read)):
                return out

    return called


def is_still(x: Operand, value: Operand) -> bool:
    """Whether an operand has the value that was read of it, as no finalizer has written to it."""
    return value_of(x) is value or is_expected(x)


def refresh_history(x: Handle) -> None:
    """Give a stale handle the history of what it is a view of."""
    _take_history(x)


def strip_tangents(x: H) -> H:
    """Return the handle below all tangents."""
    while x._tape is DUAL:
        x = x._at.primal
    return x


def retain(x: Handle) -> None:
    """Note with its record that a result wants its gradient."""
    at = strip_tangents(x)
    if at._tape is not None:
        at._tape.retained[slot(at._at)] = weakref.ref(x)


_counted: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


def add_saved_bytes(out: Handle, kept: Any) -> None:
    """Tell the tape of a result what its record keeps besides values, so that it is closed and pruned."""
    if expected and type(out._at) is Expected:
        return  # it has no record yet
    tape = strip_tangents(out)._tape
    if tape is not None:
        tape.weigh(nbytes_of(kept, set()))


def nbytes_of(x: Operand, seen: set[int]) -> int:
    """Bytes of the arrays in Tensors, lists, tuples and dicts, but of those whose ids have been `seen`.

    A large one that many records keep counts for the first of them only.
    """
    x = value_of(x)
    if id(x) in seen:
        return 0
    if isinstance(x, np.ndarray):
        if isinstance(x.base, np.ndarray) and x.base.nbytes > 2 * x.nbytes:
            x = x.base  # a part of it keeps all of it
        if x.nbytes > LARGE:
            if _counted.get(id(x)) is x:
                return 0
            _counted[id(x)] = x
        return int(x.nbytes)
    if isinstance(x, (list, tuple, dict)):
        seen.add(id(x))
        return sum(nbytes_of(part, seen) for part in (x.values() if isinstance(x, dict) else x))
    return 0


def is_tensor(x: Operand) -> TypeGuard[Handle]:
    """Whether this is a Tensor."""
    return isinstance(x, Handle)


def requires_grad(x: Operand) -> bool:
    """Whether results computed from an operand have a derivative by it: backward, or forward by a tangent."""
    if not isinstance(x, Handle):
        return False
    if expected and type(x._at) is Expected:
        return x._at.matcher.is_active(x)
    if x._tape is DUAL:
        return has_tangent(x) or requires_grad(x)
    return x._tape is not None or (x._extra is not None and x._extra.requires_grad)


def has_tangent(x: Any) -> bool:
    """Whether an operand carries a tangent; one whose level was closed does not any more."""
    if not isinstance(x, Handle) or (expected and type(x._at) is Expected):
        return False
    if x._tape is STALE and OPEN:
        refresh_history(x)
    while x._tape is DUAL:
        if x._at.level.notes is not None:
            return True
        primal = x._at.primal
        x._tape, x._at = primal._tape, primal._at
        if primal._extra is not None and primal._extra.requires_grad:
            extra(x).requires_grad = True
    return False


def needs_derivative(x: Operand) -> bool:
    """Whether a derivative by an operand is asked for here: one of a tangent whatever the grad mode is."""
    return requires_grad(x) and (bool(_enabled.get()) or has_tangent(x))


def is_constant(x: Operand) -> bool:
    """Whether this is a Tensor that is to what is recorded what its value is."""
    if not isinstance(x, Handle) or is_expected(x) or requires_grad(x) or has_tangent(x):
        return False
    state = x._extra
    return state is None or not (state.volatile or state.inference)


def is_noted(x: Operand) -> bool:
    """Whether this is a Tensor of truth values or integers that a rule has computed whose steps are noted."""
    if not isinstance(x, Handle) or is_expected(x):
        return False
    return x._tape is DUAL and x._v.dtype.kind not in "fc"


def value_of(x: Any) -> Any:
    """Return a Tensor's value; anything else is itself."""
    return x._v if isinstance(x, Handle) else x


def decide(function: Callable[..., Any], *operands: Any, seen: list[Any] | None = None) -> Any:
    """Return truth values or whole numbers that a function tells of values, of which nothing else is read.

    They decide what is done next: a program in Python's place runs it anew, and ends where they differ.
    The values are `seen` afterwards, to tell whose memory it has given.
    """
    matcher = next(filter(None, map(matcher_of, operands)), None) if expected else None
    if matcher is not None:
        return matcher.decide(function, operands, seen)
    return call_on_values(function, operands, seen)


def call_on_values(function: Callable[..., Any], operands: Sequence[Any], seen: list[Any] | None) -> Any:
    """Return what a function tells of values, as they are."""
    values = [*map(value_of, operands)]
    if seen is not None:
        seen[:] = values
    return function(*values)


def itself(x: Any) -> Any:
    """Return a value that is looked at as it is."""
    return x


def number_seen(x: Handle) -> Any:
    """Return the value of a Tensor that is looked at once: where a program computes it, it does not stay."""
    if not is_expected(x):
        return x._v
    found = number_natively(x)
    return decide(itself, x) if found is None else found


def number_natively(x: Handle) -> Any:
    """Return the number of a Tensor that a program computes; None where Python is to look.

    Replaced by `core.compiled_methods`.
    """


def like_natively(x: Handle) -> Any:
    """Return what has the shape and dtype of a Tensor that a program computes; None where Python is to look.

    Replaced by `core.compiled_methods`.
    """


def is_expected(x: Operand) -> bool:
    """Whether this is a Tensor that stands for what a program will compute."""
    return bool(expected) and isinstance(x, Handle) and type(x._at) is Expected


def like_of(x: Operand) -> Any:
    """Return what has the shape and dtype of a Tensor, if known its value; anything else is itself."""
    if not isinstance(x, Handle):
        return x
    if expected and type(x._at) is Expected:
        found = like_natively(x)
        return x._at.matcher.like(x) if found is None else found
    return x._v


def shape_of(x: Operand) -> tuple[int, ...]:
    """Return the shape of a Tensor or of what NumPy takes for an array."""
    return like_of(x).shape if isinstance(x, Handle) else np.shape(x)


def ndim_of(x: Operand) -> int:
    """Return the number of axes of a Tensor or of what NumPy takes for an array."""
    return like_of(x).ndim if isinstance(x, Handle) else np.ndim(x)
