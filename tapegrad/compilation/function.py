"""`tapegrad.compile`: a function that runs at every call, while programs compute what its operations mean."""

from __future__ import annotations

import functools
import os
import reprlib
import weakref
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from types import FunctionType
from typing import Any, NoReturn, overload

import numpy as np

from tapegrad import func
from tapegrad.compilation import background
from tapegrad.compilation.events import methods
from tapegrad.compilation.events.learner import Learner
from tapegrad.compilation.explanation import Calls, Explanation
from tapegrad.compilation.kinds import Kind, called_once, is_ordinary, learned, matched
from tapegrad.compilation.paths.lanes import PRODUCTS
from tapegrad.compilation.replay.arguments import NO_OTHERS, Others
from tapegrad.compilation.replay.replaying import Replay, raise_refused, vouched_for
from tapegrad.compilation.wanted import (
    GRADIENT,
    LEFT_PRODUCT,
    PRODUCT,
    VALUE,
    VALUE_AND_GRADIENT,
    Wanted,
    direction_of,
)
from tapegrad.config import compiling_setting
from tapegrad.core import expected
from tapegrad.core.base import Handle, has_tangent
from tapegrad.func.calls import LAYOUT, Call, Programmed, compiled, positions
from tapegrad.func.transforms import jvp
from tapegrad.func.trees import flatten
from tapegrad.kernels import abi, machine
from tapegrad.ops import forward
from tapegrad.tensor import Tensor

__all__ = ["Compiled", "compile"]

MOST_KINDS = 64  # of arguments, of which something is known; each has programs, and memory for them
MOST_ONCE = 1024  # of which one call has come


@overload
def compile(
    f: Callable[..., Any],
    argnums: int | Sequence[int] = ...,
    wait: bool = ...,
    *,
    replay: bool = ...,
    assume: Collection[str] = ...,
) -> Compiled: ...
@overload
def compile(
    f: None = None,
    argnums: int | Sequence[int] = ...,
    wait: bool = ...,
    *,
    replay: bool = ...,
    assume: Collection[str] = ...,
) -> Callable[[Callable[..., Any]], Compiled]: ...
def compile(
    f: Callable[..., Any] | None = None,
    argnums: int | Sequence[int] = 0,
    wait: bool = False,
    *,
    replay: bool = False,
    assume: Collection[str] = (),
) -> Any:
    """Return a function that runs as it is at every call, while programs compute what its operations mean.

    Parameters
    ----------
    f : callable, optional
        A function of arrays, numbers, or nested dicts, lists, tuples, named tuples and dataclasses of them.
        It is called with Tensors in the place of arrays and floats of `argnums`, which it may write to.
        Without one the result is a decorator: ``@tg.compile(argnums=(0, 1))``.
    argnums : int or sequence of int, optional
        The arguments, given by position, that it is differentiated by; others are passed on as they are.
    wait : bool, optional
        Whether the calls that are learned from, the second of a kind first, make programs themselves, and the
        call that asks for kernels, the fourth or so, compiles them.
    replay : bool, optional
        Whether the function is not run where all that it reads is as it was: its program alone computes the
        call. A function of which that cannot be told, or that does more than compute, is refused.
    assume : sequence of {'globals', 'attributes', 'arrays'}, optional
        What need not be compared before each such call, as the caller says that it does not change: what
        names of globals and outer functions refer to; what modules, objects, lists and dicts hold; the
        elements of arrays.

    Returns
    -------
    Compiled
        A callable that gives the value, with methods ``value_and_grad`` and ``grad`` of the same arguments,
        ``hvp``, ``vhp`` and ``jvp`` of these and a direction, and ``explain``. What they give is built as by
        `tapegrad.func`: arrays for arrays, floats for floats.

    Notes
    -----
    Python runs at every call, so control flow, closures, globals, random numbers and effects
    are what they are. But an operation only compares itself with the operation that came there at an
    earlier call, on what: then nothing is computed or recorded. When the function returns, or looks at a
    value (``if``, ``float``, a NumPy function that needs it), compiled code computes all that is due, in
    blocks of elements that stay in the nearest cache, and at the end the gradient. Numbers and plain arrays
    as operands are those of the call. Where an operation differs from what is known, all that came before
    is recorded as if there were no program, and the call goes on so; it is learned as another way through
    the function, of which there may be 8 for arguments of one kind (shapes, dtypes, layouts). The first
    call of a kind is an ordinary one, the second is learned from: a thread in the background makes a program
    of it, while calls are ordinary ones. Of 64 kinds programs are kept, those of the latest calls; of 1,024
    more it is known that they came once. After a few calls of a program the thread compiles kernels for it,
    in which elementwise operations forward and in reverse are one loop. No call waits unless it is told to.

    Values have the bits of ordinary recording, derivatives the same terms, sums and products of matrices
    in them perhaps in another order, and the slope of tanh perhaps by the parts of tanh. Whatever has no
    place in a program (hooks, ``no_grad``, derivatives inside, Functions, writes to what comes from outside,
    operands from there that require grad) ends it for that call: right, and no quicker. The same is true
    under another mode, in forward mode, and with ``TAPEGRAD_ABI=portable``.

    The Tensors of a program live until its call ends: a weak reference does not see one die before.

    With ``replay=True`` two calls are watched: which of the function's code runs, and which names it has. All
    that these lead to (globals, closures, defaults, attributes, containers, elements of arrays) is compared
    before each later call, and truth values and whole numbers that it has seen are computed and compared;
    where something differs, or arguments that it is not differentiated by do, Python runs again.
    `ReplayError` says what rules that out and where: another value that is looked at, a call of what is not
    known to do nothing but compute (random numbers, clocks, output), objects not of Python's, an effect.

    A call with Tensors that require grad gives a Tensor; its history is one record, which can be
    differentiated to any order.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg
    >>> @tg.compile(wait=True)
    ... def energy(x, scale):
    ...     y = np.sin(x) * scale
    ...     return np.sum(y * y) if y[0] > 0 else np.sum(y)
    >>> x = np.array([0.5, 1.0])
    >>> for scale in (1.0, 2.0, 3.0):
    ...     value, gradient = energy.value_and_grad(x, scale)
    >>> np.round(gradient, 6)
    array([7.573239, 8.183677])
    >>> print(energy.explain())
    energy: 3 calls with float64 (2,)
      way 1: 1 call, 5 operations; 5 compared in compiled code
    """
    if f is None:
        _options(argnums, wait, replay, assume)  # which refuses wrong ones where they are
        return functools.partial(Compiled, argnums=argnums, wait=wait, replay=replay, assume=assume)
    return Compiled(f, argnums, wait, replay, assume)


class Compiled(Programmed):
    """A function whose operations are computed by programs; made by `compile`.

    Examples
    --------
    >>> import tapegrad as tg
    >>> cube = tg.compile(lambda x: x**3)
    >>> [cube.grad(float(k)) for k in range(4)]
    [0.0, 3.0, 12.0, 27.0]
    """

    def __init__(
        self,
        f: Callable[..., Any],
        argnums: int | Sequence[int] = 0,
        wait: bool = False,
        replay: bool = False,
        assume: Collection[str] = (),
    ) -> None:
        if compiled(f, "tg.compile"):
            raise TypeError(
                "tg.compile takes a plain function, found one that Numba compiles, which has a program "
                "already: tg.func.value_and_grad(f)"
            )
        self._where, vouched = _options(argnums, wait, replay, assume)
        if attributes := getattr(f, "__dict__", None):  # without a dict attributes are read in half the time
            self.__dict__.update(attributes)
        functools.update_wrapper(self, f, updated=())
        self.plain, self._argnums = f, argnums
        self._how: tuple[bool, bool, Collection[str]] = wait, replay, vouched
        self._recent: Kind | None = None
        self._refused: list[str] = []  # why Python cannot be skipped
        self._others: dict[Any, Compiled] = {}  # the same by other arguments
        self._first: Any = None  # the signature of the first call, while no other has come: see `_kind`
        self._once: dict[Any, None] = {}  # signatures of which one call has come, if there were several
        self._kinds: OrderedDict[Any, Kind] = OrderedDict()  # by signatures, the latest last
        self._forgotten = 0  # how many there were besides
        self._latest: Kind | None = None  # where the only argument that it is differentiated by is a leaf
        self._simple = self._where == ((0,), False)
        if not hasattr(Tensor, "__getattr__"):  # from now on, as it makes all attributes a little slower
            Tensor.__getattr__ = expected.read_slot  # type: ignore[attr-defined]
            methods.install()

    def __repr__(self) -> str:
        return f"<compiled function {getattr(self.plain, '__qualname__', self.plain)}>"

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if name not in ELSEWHERE]

    def __reduce__(self) -> Any:
        return Compiled, (self.plain, self._argnums, *self._how)

    def __get__(self, instance: Any, owner: Any = None) -> Compiled:
        """Return itself, an attribute like others; a method would not get its instance, and is refused."""
        f = self.plain
        if instance is None or not isinstance(f, FunctionType) or f.__code__.co_varnames[:1] != ("self",):
            return self
        raise TypeError(
            f"tg.compile takes functions, and {f.__qualname__} is a method, which wants its instance; "
            f"compile that of each instance, in __init__: self.{f.__name__} = tg.compile(self.{f.__name__})"
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the value of the function."""
        return self._run(VALUE, args, kwargs)[0]

    def value_and_grad(self, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        """Return the value of the function, one real number, and its gradient, as `tapegrad.func` does."""
        return self._run(VALUE_AND_GRADIENT, args, kwargs)

    def grad(self, *args: Any, **kwargs: Any) -> Any:
        """Return the gradient of the function, whose value is one real number."""
        return self._run(GRADIENT, args, kwargs)[1]

    def hvp(self, *args: Any, **kwargs: Any) -> Any:
        """Return the Hessian of the function times a direction, the last argument, as `tapegrad.func.hvp`."""
        return self._run(PRODUCT, args, kwargs)[1]

    def vhp(self, *args: Any, **kwargs: Any) -> Any:
        """Return a direction, the last argument, times the Hessian: as `hvp`."""
        return self._run(LEFT_PRODUCT, args, kwargs)[1]

    def derivative(self, what: str, argnums: int | Sequence[int]) -> Callable[..., Any]:
        """Return ``value_and_grad``, ``grad``, ``hvp`` or ``vhp`` by these arguments."""
        return getattr(self.by(argnums, what), what)  # type: ignore[no-any-return]

    def by(self, argnums: int | Sequence[int], what: str = "compile") -> Compiled:
        """Return the same function, differentiated by these arguments; `what` asks, as errors name it."""
        key = positions(what, argnums)
        if key == self._where:
            return self
        if key not in self._others:
            wait, replay, assume = self._how
            self._others[key] = Compiled(self.plain, argnums, wait, replay, assume)
        return self._others[key]

    def in_lanes(
        self,
        what: str,
        args: Sequence[Any],
        wholes: Sequence[Any],
        sliced: Sequence[bool],
        k: int,
        threads: int,
    ) -> Any:
        """Return the results of calls at once, where Python may be skipped; else None."""
        directed = what in PRODUCTS
        places = (*self._where[0], *[len(args) - 1] * directed)
        if not self._how[1] or any(cut for j, cut in enumerate(sliced) if j not in places):
            return None
        call = Call(what or "compile", self.plain, self._where, tuple(args), {}, directed)
        kind = self._kind(call)
        leaves = [x for j in places for x in flatten(wholes[j])[0]]
        if kind is None or not all(isinstance(x, np.ndarray) for x in leaves):
            return None
        if directed:
            direction_of(call)  # which refuses what is none
            if not _are_directions(leaves):
                return None
        others = Others(*call.others())
        found = kind.in_lanes(leaves, others, what, threads)
        if found is None:
            if what == "jacobian":
                self(*args)  # which a program may be learned from
            return None
        value, *parts = found
        if not what:
            return value
        derivatives = call.tree(parts)
        return (value, derivatives) if what == "value_and_grad" else derivatives

    def jvp(self, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        """Return the value and its derivative along a direction, as `tapegrad.func.jvp`: it is recorded."""
        return jvp(self.plain, self._argnums)(*args, **kwargs)  # type: ignore[no-any-return]

    def explain(self) -> Explanation:
        """Tell what is known of the function: its ways for each kind of arguments, or why there are none.

        Returns
        -------
        str
            Text, which a notebook shows as a table. Its `kinds` have the same as tuples.
        """
        name = getattr(self.plain, "__name__", repr(self.plain))
        found: list[Calls] = []
        for one in (self, *self._others.values()):
            found += [kind.explain() for kind in one._kinds.copy().values()]
            once = [one._first] if one._first else []
            found += [called_once(signature) for signature in [*once, *one._once.copy()] if _is_served()]
        forgotten = self._forgotten + sum(one._forgotten for one in self._others.values())
        return Explanation(name, found, forgotten)

    def _run(self, wanted: Wanted, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        """The value and what else is wanted; where Python may be skipped, only if nothing rules that out."""
        recent = self._recent
        if recent is None:
            call = Call(wanted.what, self.plain, self._where, args, kwargs, wanted.directed)
            if self._first is None and call.given:  # in few steps, as it may be the only one
                self._first = call.signature()
                return call.recorded(wanted.eager)
            return self._looked_up(call, wanted)
        if recent.pending:  # as `_recorded`, in fewer steps: of a function of few operations each can be told
            x = args[0] if args else None
            if (LAYOUT(x) if type(x) is np.ndarray else type(x)) == recent.alone or recent.takes(args):
                recent.calls += 1
                call = Call(wanted.what, self.plain, self._where, args, kwargs, wanted.directed)
                found = call.recorded(wanted.eager)
                background.lend()
                return found
        if (shortcut := recent.shortcut) is not None and not kwargs:
            known = shortcut(wanted, args)
            if known is not None:
                return known
        elif recent.is_recorded() and recent.takes(args):
            return self._recorded(recent, wanted, args, kwargs)
        if self._refused:
            raise_refused(self.plain, self._refused)
        kind, directed = self._latest, wanted.directed
        if (
            kind is not None
            and len(args) == 1 + directed
            and not kwargs
            and kind.is_ready()
            and kind.takes(args)
            and (not directed or (kind.takes(args[1:]) and kind.serves(wanted)))
        ):
            kind.calls += 1
            begin = functools.partial(Call, wanted.what, self.plain, self._where, args, kwargs, directed)
            value, parts = matched(kind, args[:1], wanted, self._alone, begin, NO_OTHERS, args[1:])
            return self._ended((value, parts and parts[0]))
        return self._looked_up(Call(wanted.what, self.plain, self._where, args, kwargs, directed), wanted)

    def _recorded(
        self, kind: Kind, wanted: Wanted, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, Any]:
        """What a call gives that is recorded with no more ado."""
        kind.calls += 1
        call = Call(wanted.what, self.plain, self._where, args, kwargs, wanted.directed)
        found = call.recorded(wanted.eager)
        background.lend()
        return found

    def _looked_up(self, call: Call, wanted: Wanted) -> tuple[Any, Any]:
        """What a call gives, of which is to be seen what is known."""
        kind = self._kind(call)
        return call.recorded(wanted.eager) if kind is None else self._ended(self._found(call, kind, wanted))

    def _ended(self, found: tuple[Any, Any]) -> tuple[Any, Any]:
        """What a call has given; the thread may work, and what rules out that Python is skipped is told."""
        background.lend()
        if self._refused:
            raise_refused(self.plain, self._refused)
        return found

    def _found(self, call: Call, kind: Kind, wanted: Wanted) -> tuple[Any, Any]:
        """What a call gives of which something is known."""
        kind.calls += 1
        if kind.replay is not None:
            kind.replay.see(kind.learning)
        alone = wanted.directed and any(isinstance(x, Handle) for x in flatten(call.v)[0])  # with a history?
        if alone or not kind.learning.is_free() or not kind.serves(wanted):
            return call.recorded(wanted.eager)
        if kind.matcher.paths:
            others = NO_OTHERS if kind.replay is None else Others(*call.others())
            value, parts = matched(
                kind, call.given, wanted, lambda handles: call.apply(handles, False)[0], lambda: call, others
            )
        elif kind.learning.learns:
            learner = Learner()
            value, parts = call.recorded(learned, wanted, learner)
            call.xs = []  # nobody needs what was recorded
            kind.learning.alone(kind.learn, learner)
        else:
            return call.recorded(wanted.eager)
        return value, parts and call.tree(parts)

    def _alone(self, handles: list[Tensor]) -> Any:
        return self.plain(handles[0])

    def _kind(self, call: Call) -> Kind | None:
        """What is known of calls with such arguments; None where no program is to be used.

        Of the first one its signature is, and no more: a function may be called once, and what is made here
        takes as long as tens of operations.
        """
        if not call.given:
            return None
        signature = call.signature()
        if self._first is None:
            self._first = signature
            return None
        kind = self._kinds.get(signature)
        if kind is None and signature != self._first and signature not in self._once:
            first, self._first = self._first, ()
            self._once.update({first: None, signature: None} if first else {signature: None})
            if len(self._once) > MOST_ONCE:  # the older half goes
                for older in list(self._once)[: MOST_ONCE // 2]:
                    self._once.pop(older, None)
            return None
        return self._known(call, signature, kind)

    def _known(self, call: Call, signature: Any, kind: Kind | None) -> Kind | None:
        """What is known of calls of which one has come; None where no program is to be used."""
        if not is_ordinary() or any(has_tangent(x) for x in call.given):
            return None
        if kind is None:
            if not _is_served():
                return None
            if not self._kinds:
                machine.load()
                _every.add(self)
                weakref.finalize(self, _forget, self._kinds)
            wait, replay, assume = self._how
            new = Replay(self.plain, self._where, assume, self._refused) if replay else None
            at_once = wait or compiling_setting() != "background"
            places = self._where[0] if call.is_flat else ()
            kind = self._kinds[signature] = Kind(call.given, wait, at_once, new, places)
            kind.calls = 1
            if signature == self._first:
                self._first = ()
            self._once.pop(signature, None)
            if len(self._kinds) > MOST_KINDS:
                self._forget_the_oldest()
        elif kind is not self._recent:
            with suppress(KeyError):  # another thread has just forgotten it
                self._kinds.move_to_end(signature)
        self._recent = kind
        self._latest = kind if self._simple and len(call.given) == 1 and call.is_flat else None
        return kind

    def _forget_the_oldest(self) -> None:
        """Let go of what is known of the kinds of calls that came longest ago."""
        for signature, kind in list(self._kinds.items())[:-MOST_KINDS]:
            if kind.is_let_go() and self._kinds.pop(signature, None) is not None:
                self._forgotten += 1


class _Elsewhere:
    """Stands for a name that `tapegrad.func` has and functions of `compile` have not, and says so."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: Any = None) -> NoReturn:
        name = self._name
        raise AttributeError(
            f"a function of tg.compile has no attribute {name!r}; write tg.func.{name}(f)",
            name=name,
            obj=instance,
        )


ELSEWHERE = [name for name in func.__all__ if not hasattr(Compiled, name)]
for _name in ELSEWHERE:  # not by __getattr__, which makes all attributes slower, those of calls too
    setattr(Compiled, _name, _Elsewhere(_name))


def _options(
    argnums: int | Sequence[int], wait: bool, replay: bool, assume: Collection[str]
) -> tuple[tuple[tuple[int, ...], bool], Collection[str]]:
    """Return the positions that options name, and what is vouched for, if all of them are right."""
    where, vouched = positions("compile", argnums), vouched_for(assume)
    for name, given, asks in (
        ("wait", wait, "the calls themselves to make programs"),
        ("replay", replay, "Python to be skipped where nothing that it reads has changed"),
    ):
        if given is not False and given is not True and not isinstance(given, np.bool_):
            shown = reprlib.repr(given)
            raise TypeError(
                f"tg.compile: {name} is True or False, found {shown}; {name}=True asks for {asks}"
            )
    if vouched and not replay:
        raise ValueError(
            "tg.compile: assume says what replay=True need not compare; without that Python always runs"
        )
    return where, vouched


_every: weakref.WeakSet[Compiled] = weakref.WeakSet()


@functools.cache
def _is_served() -> bool:
    """Whether this is a machine, and an interpreter, for which there are programs."""
    return abi.native() and 0 not in forward.error_test()


def _are_directions(leaves: Sequence[np.ndarray]) -> bool:
    """Whether the second half of some arrays are as those of the first, and these of one dtype."""
    count, odd = divmod(len(leaves), 2)
    pairs = zip(leaves[:count], leaves[count:], strict=False)
    return not odd and all(x.shape == v.shape and x.dtype == v.dtype for x, v in pairs)


def _forget(kinds: dict[Any, Kind]) -> None:
    for kind in kinds.values():
        kind.learning.end()


def _forget_what_is_at_work() -> None:
    """In a child process, let calls be learned from anew where one was at work.

    A call of another thread would never end here. One of the thread that forked goes on, with what it had.
    """
    for one in list(_every):
        kinds = one._kinds
        for signature in [s for s, kind in kinds.items() if kind.learning.lock.locked()]:
            del kinds[signature]
            one._once[signature] = None
            one._recent = one._latest = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_what_is_at_work)
