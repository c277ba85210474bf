"""Calls of functions that are differentiated: arguments made into Tensors, results into what was given."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any, TypeVar

import numpy as np

from tapegrad.autograd.functional import grad_of_active
from tapegrad.autograd.steps import bare
from tapegrad.core.base import Handle, has_tangent, refresh_history, requires_grad, strip_tangents
from tapegrad.core.dispatch import as_tape_value
from tapegrad.core.forward_mode import tangents_on
from tapegrad.core.grad_mode import _enabled, in_force, within
from tapegrad.core.storage import DUAL, OPEN, STALE
from tapegrad.errors import BorderError, DTypeError, GradientError, ShapeError
from tapegrad.func.signatures import Function
from tapegrad.func.trees import LEAF, Structure, Tree, flatten
from tapegrad.kernels import abi
from tapegrad.native.loading import load
from tapegrad.ops import REGISTRY
from tapegrad.tape.tape import Tape, local, resume, set_aside
from tapegrad.tensor import Operand, Tensor, alias_of, record, tensor, without_history, wrap

__all__ = [
    "Call",
    "Programmed",
    "compiled",
    "has_history",
    "named",
    "offering",
    "on_tensors",
    "plain",
    "positions",
    "programs_of",
    "tensors_of",
    "transformed",
    "vector",
    "zeros",
]

R = TypeVar("R")
OFFERED = "_programs"  # of a derivative: the function that has programs, and what it is of that
# what a function with programs gives for many calls
IN_LANES = "", "grad", "value_and_grad", "hvp", "vhp", "jacobian"
RECORDED = {"recording": True, "inference": False}
DOUBLE = np.dtype(float)
LAYOUT = attrgetter("shape", "dtype", "strides")  # of an array
APART: weakref.WeakSet[Tape] = weakref.WeakSet()  # tapes of calls on plain arguments, kept by pullbacks
RESHAPE = REGISTRY["reshape"]


def positions(what: str, argnums: int | Sequence[int], alone: bool = False) -> tuple[tuple[int, ...], bool]:
    """Return the positions that are differentiated by, checked, and whether several may be meant.

    `alone`: a sequence of one is as that one, which it is to compiled derivatives.
    """
    several = isinstance(argnums, (tuple, list)) and not (alone and len(argnums) == 1)
    found = tuple(argnums) if isinstance(argnums, (tuple, list)) else (argnums,)
    if not found or any(type(k) is not int or k < 0 for k in found) or len(set(found)) != len(found):
        shown = repr(argnums)
        wrong = [type(k).__name__ for k in found if not isinstance(k, int)]
        if wrong:
            shown = type(argnums).__name__ + several * f" of {wrong[0]}"
        args = "x, v" if what in ("jvp", "hvp", "vhp", "ggnvp") else "x"
        of = "tg" if what == "compile" else "tg.func"
        raise ValueError(
            f"{what}: argnums is a position, or several different ones, from 0; found {shown}. "
            f"Arguments of the function go to what {what} returns: {of}.{what}(f)({args})"
        )
    return found, several


def compiled(f: Function, what: str) -> bool:
    """Whether a function is one that Numba compiled, which has derivatives that are compiled."""
    if not callable(f):
        call = f"{what}(f, ...)" if "." in what else f"tg.func.{what}(f)(x)"
        raise TypeError(f"{what} takes a function, found {_kind(f)}: {call}")
    return type(f).__module__.startswith(("numba.", "tapegrad.native.function"))


class Programmed:
    """A function that programs compute, as `tapegrad.compile` makes them, with derivatives of its own.

    Attributes
    ----------
    plain
        What it runs at each call, of which all derivatives can be taken.
    """

    plain: Function

    def by(self, argnums: int | Sequence[int], what: str = "compile") -> Programmed:
        """Return the same function, differentiated by these arguments; `what` asks, as errors name it."""
        raise NotImplementedError

    def derivative(self, what: str, argnums: int | Sequence[int]) -> Function:
        """Return what programs compute as ``tapegrad.func.<what>(f, argnums)``."""
        raise NotImplementedError

    def in_lanes(
        self,
        what: str,
        args: Sequence[Any],
        wholes: Sequence[Any],
        sliced: Sequence[bool],
        k: int,
        threads: int,
    ) -> Any:
        """Return stacked results of calls, values or one of `IN_LANES`; None where each is to be called.

        `args` are those of call k, `wholes` the same with an axis of lanes in front of each array that is
        `sliced`, by arguments. So many threads compute them.
        """
        raise NotImplementedError


def programs_of(f: Any) -> tuple[Programmed, str] | None:
    """The function whose programs a function runs, and for which derivative, empty for the value."""
    if isinstance(f, Programmed):
        return f, ""
    found: tuple[Programmed, str] | None = getattr(f, OFFERED, None)
    of, name = getattr(f, "__self__", None), getattr(f, "__name__", "")
    if found is None and isinstance(of, Programmed):
        found = of, name
    return found if found is not None and found[1] in IN_LANES else None


def offering(derivative: Function, of: Programmed, what: str) -> Function:
    """Return a derivative which tells `vmap` that it is that of a function with programs."""
    setattr(derivative, OFFERED, (of, what))
    return derivative


def on_tensors(f: Function, what: str) -> Function:
    """Return a function that takes Tensors: what Numba compiled does as one of `tapegrad.njit`."""
    if isinstance(f, Programmed):
        return f.plain
    found = load("derivatives.derivative").compiled_function(f, what) if compiled(f, what) else f
    return found


def named(what: str, f: Function, derivative: Function) -> Function:
    """Give a derivative its name."""
    derivative.__name__ = derivative.__qualname__ = f"{what}({getattr(f, '__name__', type(f).__name__)})"
    derivative.__doc__ = f"As `tapegrad.func.{what}` says."
    return derivative


class Call:
    """A call of a function, of whose arguments some are differentiated by.

    Attributes
    ----------
    f, where
        The function, positions of these arguments, and whether derivatives are given in a tuple.
    given
        The leaves of these, as the caller gave them.
    xs
        Tensors of the same values, by which what the function returned is differentiated.
    outside
        Whether derivatives of what is computed here may be asked for outside: arguments require grad, or
        other Tensors do that the function has used.
    v
        If it is `directed`, its last argument, which is none of the function's.
    """

    __slots__ = (
        "_alone", "_args", "_kwargs", "_leaves", "_places", "_several", "_structures", "_tensors", "_visible",
        "f", "given", "outside", "v", "what", "where", "xs",
    )  # fmt: skip
    given: list[Any]
    _structures: list[Structure]

    def __init__(
        self,
        what: str,
        f: Function,
        where: tuple[tuple[int, ...], bool],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        directed: bool = False,
    ) -> None:
        if directed:
            if not args:
                raise TypeError(f"{what}: the last argument is a direction; none is given")
            self.v, args = args[-1], args[:-1]
            if not args:
                raise TypeError(f"{what}: arguments and a direction are wanted, (x, v); found one argument")
        self.what, self.f, self.where, self._args, self._kwargs = what, f, where, args, kwargs
        self._places, self._several = where
        self.xs: list[Tensor] = []
        self.outside = self._tensors = self._alone = False  # alone: a number or an array, and nothing else
        self._visible = True
        if len(args) == 1 and where[0] == (0,):
            x = args[0]
            if type(x) is float or (type(x) is np.ndarray and x.dtype is DOUBLE):  # mostly
                self._structures, self.given, self._alone = [LEAF], [x], True
                return
        self._structures, self.given = [], []
        for k in self._places:
            if k >= len(args):
                raise TypeError(
                    f"{what}: argument {k} is to be differentiated by, and {len(args)} are given by "
                    "position; argnums counts from 0"
                )
            x = args[k]
            if type(x) is float or (type(x) is np.ndarray and x.dtype is DOUBLE):  # mostly
                self._structures.append(LEAF)
                self.given.append(x)
                continue
            leaves, structure = flatten(x)
            self._structures.append(structure)
            for x in leaves:
                self._tensors = self._tensors or isinstance(x, Handle)
                self.given.append(_differentiable(x, what, k))

    # ------------------------------------------------------------ arguments and results

    @property
    def is_flat(self) -> bool:
        """Whether each argument that is differentiated by is a leaf itself."""
        return self._structures.count(LEAF) == len(self._structures)

    def signature(self) -> Any:
        """How the arguments are built that are differentiated by; shapes, dtypes and layouts of leaves."""
        given = self.given
        if len(given) == 1 and self._structures[0] is LEAF and not self._tensors:  # mostly
            x = given[0]
            return (float if type(x) is float else LAYOUT(x) if isinstance(x, np.ndarray) else type(x),)
        found: list[Any] = [] if self.is_flat else [*self._structures]
        for x in given:
            if isinstance(x, Handle):
                found.append(Handle)
                x = x._v
            found.append(LAYOUT(x) if isinstance(x, np.ndarray) else type(x))
        return tuple(found)

    def others(self) -> tuple[tuple[Any, ...], dict[str, Any], tuple[Tree, ...]]:
        """Arguments that it is not differentiated by, by position and by name, and those that it is."""
        places = self._places
        others = tuple(x for k, x in enumerate(self._args) if k not in places)
        return others, self._kwargs, tuple(self._args[k] for k in places)

    def apply(self, leaves: Sequence[Operand], has_aux: bool) -> tuple[Any, Any]:
        """Call the function with these leaves in the arguments that are differentiated by: value and aux."""
        args = leaves if self._alone else self._filled(leaves)
        try:
            found = self.f(*args, **self._kwargs)
        except TypeError as error:
            self._note_lists(error)
            raise
        except ValueError as error:
            if isinstance(error.__cause__, BorderError):  # which NumPy tells of in its own words
                error.add_note(
                    f"{self.what}: the function writes a Tensor to an element of a plain array; "
                    "make that array by tg.zeros(shape)"
                )
            raise
        self.check_returned(found)
        if not has_aux:
            return found, None
        if not isinstance(found, tuple) or len(found) != 2:
            raise TypeError(
                f"{self.what}: has_aux=True takes a function of (value, aux), found {_kind(found)}"
            )
        return found

    def _note_lists(self, error: TypeError) -> None:
        """Say where the function got a list of Tensors, as it was given one of numbers."""
        for k in self._places:
            x = self._args[k]
            if type(x) in (list, tuple) and x and all(isinstance(part, (int, float)) for part in x):
                error.add_note(
                    f"{self.what}: argument {k} is a {type(x).__name__} of numbers; the function gets one "
                    "of Tensors; pass np.array(x) for it to get one array"
                )

    def check_returned(self, found: Any) -> None:
        """Refuse a function that returns nothing."""
        if found is None:
            raise GradientError(
                f"{self.what}: the function is to return what is differentiated, found None; does it lack "
                "its return?"
            )

    def _filled(self, leaves: Sequence[Operand]) -> Sequence[Any]:
        """All arguments, with these leaves in those that are differentiated by."""
        args = list(self._args)
        for k, part in zip(self._places, self._trees(leaves), strict=True):
            args[k] = part
        return args

    def _trees(self, leaves: Sequence[Operand]) -> Sequence[Tree]:
        if self._structures == [LEAF]:
            return leaves
        found, start = [], 0
        for structure in self._structures:
            if structure is LEAF:
                found.append(leaves[start])
                start += 1
            else:
                count = structure.count()
                found.append(structure.build(leaves[start : start + count]))
                start += count
        return found

    def tree(self, leaves: Sequence[Any]) -> Any:
        """Leaves as the arguments are that are differentiated by; in a tuple where `argnums` is one."""
        trees = leaves if self._alone else self._trees(leaves)
        return tuple(trees) if self._several else trees[0]

    def direction(self, v: Tree, copied: bool = True, batched: bool = False) -> list[Tensor]:
        """Leaves of a direction, as Tensors of the shape and dtype of what is differentiated by.

        Arrays need not be `copied` where they are but read, by one sweep that is not recorded. `batched`:
        there are several directions, along an axis in front.
        """
        trees = tuple(v) if self._several and isinstance(v, (tuple, list)) else (v,)
        if len(trees) != len(self._places):
            raise TypeError(
                f"{self.what}: a tuple of {len(self._places)} directions is wanted, one for each of argnums; "
                f"found {_kind(v)}"
            )
        leaves = []
        for k, tree, structure in zip(self._places, trees, self._structures, strict=True):
            found, theirs = flatten(tree)
            if theirs != structure:
                raise TypeError(
                    f"{self.what}: a direction is built as its argument: argument {k} is "
                    f"{_kind(self._args[k])}, the direction {_kind(tree)} with other leaves"
                )
            leaves += found
        what, pairs = f"{self.what}: direction", zip(leaves, self.xs, strict=True)
        if batched:
            return [_batch(what, v, x, leaves[0]) for v, x in pairs]
        return [wrap(v) if not copied and _is_like(v, x) else vector(what, v, x) for v, x in pairs]

    def given_back(self, tree: Tree, keep: bool) -> Any:
        """What was computed as the caller is to have it; `keep`: the history is theirs."""
        if isinstance(tree, Handle):
            return self._leaf_given_back(tree, keep)
        leaves, structure = flatten(tree)
        return structure.build([self._leaf_given_back(x, keep) for x in leaves])

    def _leaf_given_back(self, x: Operand, keep: bool) -> Any:
        if not isinstance(x, Handle):
            return x
        if x._tape is STALE:
            refresh_history(x)
        if keep and requires_grad(x):
            return x
        if x._tape is DUAL and has_tangent(x):
            return without_history(x)
        value = x._v.copy() if type(x._v) is np.ndarray else x._v
        return wrap(value) if self._tensors else plain(value)

    def gradients(self, found: Iterable[Tensor | None]) -> list[Any]:
        """Derivatives by each leaf as the caller is to have them; zeros where there is none."""
        return [
            self.gradient(wrap(np.zeros(x.shape, x.dtype)[()]) if g is None else g)
            for g, x in zip(found, self.xs, strict=True)
        ]

    def gradient(self, g: Tensor) -> Operand:
        """A derivative, which shares no memory, as the caller is to have it."""
        if g._at is g._extra is None and not self._tensors:  # mostly: it is no leaf, and was not recorded
            return plain(g._v)
        return g if self._tensors or requires_grad(g) else plain(g._v)

    # ------------------------------------------------------------ recording

    def recorded(self, function: Callable[..., R], *more: Any) -> R:
        """Return ``function(call, *more)``, run where operations are recorded, on a tape of its own.

        Where an argument requires grad it is the open tape, so that the whole of a graph is on one.
        """
        mode = _enabled.get()
        if self._alone and mode is True:  # mostly: nothing can be asked for outside
            before = set_aside()
            try:
                return function(self, *more)
            finally:
                resume(before)
        self.see_outside()
        if self.outside:
            return function(self, *more) if mode is True else within(RECORDED, function, self, *more)
        before, packing = set_aside(), in_force("packing")
        if packing is not None:
            packing.close()
        try:
            return function(self, *more) if mode is True else within(RECORDED, function, self, *more)
        finally:
            resume(before)
            if packing is not None:
                packing.close()

    def see_outside(self) -> None:
        """See whether derivatives by arguments may be asked for outside."""
        self._visible, self.outside = bool(_enabled.get()), False
        for x in () if self._alone or not self._visible else (*self.given, *self._args):
            if isinstance(x, Handle) and has_history(x):
                self.outside = True

    def outputs(self, has_aux: bool, alone: bool = False) -> tuple[Any, Any]:
        """Call the function on Tensors that `xs` are the sources of; returns its value, and aux.

        `alone`: what is recorded stands on the tape of the arguments, else `Outgrown` is raised.
        """
        handles = list(self.sources())
        if alone:
            before, local.only = local.only, strip_tangents(self.xs[0])._tape
            try:
                found, aux = self.apply(handles, has_aux)
            finally:
                local.only = before
        else:
            found, aux = self.apply(handles, has_aux)
        self.look_outside(found if isinstance(found, Handle) and not has_aux else (found, aux))
        return found, aux

    def sources(self) -> Iterator[Tensor]:
        """Give a Tensor to call the function with for each leaf differentiated by; `xs` are aliases."""
        self.xs, self._leaves = [], set()
        for x in self.given:
            source = _source(x, self.outside)
            if not self.outside:
                self._leaves.add(strip_tangents(source)._at)
            handle = record(RESHAPE, source._v, (source,), {"shape": source._v.shape})
            del source
            self.xs.append(alias_of(handle))
            yield handle

    def look_outside(self, found: Any) -> None:
        """See whether what the function returned depends on Tensors outside."""
        if not self.outside and self._visible and self.xs:
            begin: Any = strip_tangents(self.xs[0])._tape
            tape: Any = found._tape if isinstance(found, Handle) else None
            alone = tape is begin and not (OPEN or tape.older)
            if alone and self._leaves.issuperset(tape.imports.values()):
                return  # mostly: one tape has it all, and imports nothing but the arguments
            leaves = [found] if isinstance(found, Handle) else flatten(found)[0]
            tensors = [x for x in leaves if isinstance(x, Handle)]
            self.outside = _uses_others(tensors, begin.serial, self._leaves)

    def keep_apart(self, results: Sequence[Tensor | None]) -> None:
        """Note that nobody else can ask for derivatives by what these were computed from, if that is so."""
        tapes = [] if self.outside else [y._tape for y in results if y is not None and y._tape is not None]
        while tapes:
            tape = tapes.pop()
            if tape not in APART:
                APART.add(tape)
                tapes += [older for older in tape.older if older is not None]

    def primals(self) -> list[Tensor]:
        """Return what is differentiated by as Tensors, for forward mode: their history goes on."""
        self.xs, self.outside = [x if isinstance(x, Tensor) else tensor(x) for x in self.given], True
        return self.xs

    def pulled(
        self,
        ys: list[Tensor],
        cts: list[Tensor],
        by: list[Tensor] | None = None,
        retain: bool | None = True,
        batched: bool = False,
    ) -> tuple[Tensor | None, ...]:
        """Products of cotangents with derivatives, by default by the arguments; mostly the graph remains."""
        seen = self.outside or any(has_history(ct) for ct in cts)
        recording, by = seen and bool(_enabled.get()), self.xs if by is None else by
        return grad_of_active(ys, by, cts, recording, retain_graph=retain, is_grads_batched=batched)


def transformed(
    what: str,
    f: Function,
    argnums: int | Sequence[int],
    how: Callable[..., Any],
    *more: Any,
    directed: bool = False,
    native: str = "",
    program: str = "",
) -> Function:
    """Return a function of the arguments of `f` that gives ``how(call, *more)`` of a call of it.

    Parameters
    ----------
    what
        The transformation, as errors name it.
    directed
        Whether the last argument is a direction.
    native
        What does it in `native` where `f` is compiled, if anything does: of `derivative`, or with its module.
    program
        What does it by programs where `f` has them, if anything does.
    """
    if program and isinstance(f, Programmed):
        own = f.derivative(program, argnums)
        out = named(what, f, lambda *args, **kwargs: own(*args, **kwargs))
        return offering(out, f.by(argnums), program)
    native = native if compiled(f, what) else ""
    of, where = on_tensors(f, what), positions(what, argnums, bool(native))

    def derivative(*args: Any, **kwargs: Any) -> Any:
        return how(Call(what, of, where, args, kwargs, directed), *more)

    named(what, f, derivative)
    if not native:
        return derivative
    module, _, name = native.rpartition(".")
    home = load(f"derivatives.{module or 'derivative'}")
    made: Function = getattr(home, name)(f, argnums).beside(derivative)
    return made


def vector(what: str, v: Operand, like: Tensor) -> Tensor:
    """Return a direction or a cotangent as a Tensor of the shape and dtype of what it goes with."""
    if not isinstance(v, (Handle, np.ndarray, np.generic, int, float, complex)):
        raise TypeError(f"{what}: an array or number of shape {like.shape} is wanted, found {_kind(v)}")
    x = v if isinstance(v, Tensor) else tensor(v)
    if x.shape != like.shape:
        raise ShapeError(f"{what}: shape {like.shape} is wanted, found {x.shape}")
    if x.dtype.kind == "c" and like.dtype.kind != "c":
        raise DTypeError(f"{what}: a real one of dtype {like.dtype} is wanted, found {x.dtype}")
    return x if x.dtype == like.dtype else x.astype(like.dtype)


def _batch(what: str, v: Operand, x: Tensor, first: Operand) -> Tensor:
    """Return directions of a Tensor, as many as there are of the first one, as one of its dtype."""
    lanes = np.shape(first)[:1]
    if not lanes or np.shape(v) != (*lanes, *x.shape):
        wanted = f"(lanes, {', '.join(map(str, x.shape))})" if x.shape else "(lanes,)"
        raise ShapeError(f"{what}: shape {wanted} is wanted, lanes alike for all; found {np.shape(v)}")
    return vector(what, v, zeros(x, lanes))


def _is_like(v: Operand, x: Tensor) -> bool:
    """Whether this is an array of NumPy's of the shape and dtype of a Tensor."""
    return type(v) is np.ndarray and v.ndim > 0 and v.shape == x.shape and v.dtype is x.dtype


def tensors_of(what: str, tree: Tree) -> tuple[list[Tensor], Structure]:
    """Return the leaves of what a function returned as Tensors, and its structure."""
    leaves, structure = flatten(tree)
    for x in leaves:
        if not isinstance(x, (Handle, np.ndarray, np.generic, int, float, complex)):
            raise TypeError(
                f"{what}: the function is to return numbers and arrays, found {_kind(x)} among them; "
                "has_aux=True takes (value, aux)"
            )
        if isinstance(x, Handle) and x._tape is STALE:
            refresh_history(x)
    return [x if isinstance(x, Tensor) else tensor(x) for x in leaves], structure


def zeros(y: Tensor, lanes: tuple[int, ...] = ()) -> Tensor:
    """A derivative of something that depends on nothing, or one for each lane."""
    dtype = np.result_type(y.dtype, np.float32) if y.dtype.kind in "iub" else y.dtype
    return wrap(np.zeros(lanes + y.shape, dtype)[()])


def plain(value: Any) -> Operand:
    """A value of NumPy's; a number of double precision is Python's own."""
    kind = type(value)
    return float(value) if kind is np.float64 else complex(value) if kind is np.complex128 else value


def _kind(x: Tree) -> str:
    return f"{type(x).__name__} of {len(x)}" if isinstance(x, (tuple, list, dict)) else type(x).__name__


def _differentiable(x: Any, what: str, k: int) -> Operand:
    """Return a leaf of argument k, seen to be one that can be differentiated by."""
    kind = type(x)
    if kind is int:
        return float(x)
    if kind is float or kind is complex:
        return x
    if not isinstance(x, (Tensor, np.ndarray, np.generic)):
        raise TypeError(
            f"{what}: argument {k} is differentiated by and holds {kind.__name__}; leaves are numbers, "
            "arrays and Tensors, floating-point or complex. Name other arguments by argnums"
        )
    if isinstance(x, Tensor) and x._tape is STALE:
        refresh_history(x)
    if isinstance(x, np.ndarray):
        as_tape_value(x[:0] if x.ndim else x, f"{what}: argument {k}")  # refuses what is no plain array
    if x.dtype.char not in abi.GRADIENT:
        raise DTypeError(
            f"{what}: argument {k} is differentiated by and has dtype {x.dtype}; pass it as floats, "
            "x.astype(float), or name other arguments by argnums"
        )
    return x


def _source(x: Operand, outside: bool) -> Tensor:
    """Return what the Tensor to differentiate by is recorded from; recorded, it can be written to.

    That is the Tensor given, where its history can be seen `outside`, else a leaf, which has its tangents.
    """
    if not isinstance(x, Tensor):
        return tensor(x, requires_grad=True)
    if outside and x.requires_grad:
        return x
    if has_tangent(x):
        return (alias_of(x) if outside else without_history(x)).requires_grad_()
    return bare(x).requires_grad_()


def has_history(x: Any) -> bool:
    """Whether a Tensor, or what it carries as a tangent, has a derivative backward."""
    if not isinstance(x, Handle):
        return False
    if has_tangent(x):
        return any(map(has_history, x._at.parts))
    return requires_grad(x)


def _uses_others(tensors: list[Any], begin: int, mine: set[Any]) -> bool:
    """Whether there is more, of what tapes from this serial on have, by which these can be differentiated.

    That is what older tapes hold, unless they are `APART`, and leaves that there still are; also what
    tangents come from. Leaves of cells that are `mine` are nobody else's, though a profiler may hold the
    frame that made them.
    """
    tapes: list[Tape] = []
    seen: set[int] = set()
    while tensors or tapes:
        while tensors:
            x = tensors.pop()
            if has_tangent(x):
                tensors += x._at.parts
                continue
            if x._tape is STALE:
                refresh_history(x)
            if x._tape is not None:
                tapes.append(x._tape)
            elif requires_grad(x) and x._at.handle() is not None:
                return True
        if tapes:
            tape = tapes.pop()
            if tape in APART:
                continue
            if tape.serial < begin:
                return True
            if tape.serial not in seen:
                seen.add(tape.serial)
                if any(cell.handle() is not None for cell in {*tape.imports.copy().values()} - mine):
                    return True
                tapes += [older for older in tape.older.copy() if older is not None]
                tensors += tangents_on(tape)
    return False
