"""`tapegrad.compile`: a function that runs at every call, while programs compute what its operations mean."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Collection, Sequence
from typing import Any, overload

import numpy as np

from tapegrad.compilation.events import Learner
from tapegrad.compilation.explanation import Calls, Explanation
from tapegrad.compilation.learning import Learning
from tapegrad.compilation.matching import Matcher
from tapegrad.compilation.paths import UNTRIED, Computation, Path, Product
from tapegrad.compilation.recorded import record_run
from tapegrad.compilation.replaying import NO_OTHERS, Others, Replay, raise_refused, vouched_for
from tapegrad.compilation.wanted import (
    GRADIENT,
    LEFT_PRODUCT,
    PRODUCT,
    VALUE,
    VALUE_AND_GRADIENT,
    Wanted,
    direction_of,
)
from tapegrad.core import expected
from tapegrad.core.base import Handle, alias_of, has_tangent, is_expected, value_of, wrap
from tapegrad.core.grad_mode import _enabled
from tapegrad.core.storage import DUAL, OPEN, STALE
from tapegrad.func.calls import DOUBLE, Call, Programmed, compiled, positions
from tapegrad.func.transforms import jvp
from tapegrad.func.trees import flatten
from tapegrad.kernels import abi, machine
from tapegrad.ops import forward
from tapegrad.tape.tape import resume, set_aside
from tapegrad.tensor import Tensor

__all__ = ["Compiled", "compile"]

MOST_REASONS = 8  # why calls leave their ways, told apart
MOST_IN_VAIN = 16  # calls in a row that leave their paths, after which none is followed any more


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
    of it, while calls are ordinary ones. After a few calls of a program the thread compiles kernels for it,
    in which elementwise operations forward and in reverse are one loop. No call waits unless it is told to.

    Values have the bits of ordinary recording, derivatives the same terms, sums and products of matrices
    in them perhaps in another order, and the slope of tanh perhaps by the parts of tanh. Whatever has no
    place in a program (hooks, writes, ``no_grad``, derivatives inside, Functions, operands from outside
    that require grad) ends it for that call: right, and no quicker. The same is true under another mode,
    in forward mode, and with ``TAPEGRAD_ABI=portable``.

    The Tensors of a program live until its call ends: a weak reference does not see one die before.

    With ``replay=True`` two calls are watched: which of the function's code runs, and which names it has. All
    that these lead to (globals, closures, defaults, attributes, containers, elements of arrays) is compared
    before each later call; where something differs, or arguments that it is not differentiated by do, Python
    runs again. `ReplayError` says what rules that out and where: a value that is looked at, a call of what is
    not known to do nothing but compute (random numbers, clocks, output), objects not written in Python, an
    effect.

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
    made = functools.partial(Compiled, argnums=argnums, wait=wait, replay=replay, assume=assume)
    return made if f is None else made(f)


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
        if assume and not replay:
            raise ValueError(
                "compile: assume says what replay=True need not compare; without that Python always runs"
            )
        functools.update_wrapper(self, f)
        self.plain, self._where, self._argnums = f, positions("compile", argnums), argnums
        self._how: tuple[bool, bool, Collection[str]] = wait, replay, vouched_for(assume)
        self._replay: Replay | None = None  # of the latest kind of calls
        self._refused: list[str] = []  # why Python cannot be skipped
        self._others: dict[Any, Compiled] = {}  # the same by other arguments
        self._kinds: dict[Any, Kind] = {}
        self._latest: Kind | None = None  # of one leaf
        self._simple = self._where == ((0,), False)
        weakref.finalize(self, _forget, self._kinds)
        if not hasattr(Tensor, "__getattr__"):  # from now on, as it makes all attributes a little slower
            Tensor.__getattr__ = expected.read_slot  # type: ignore[attr-defined]

    def __repr__(self) -> str:
        return f"<compiled function {getattr(self.plain, '__qualname__', self.plain)}>"

    def __reduce__(self) -> Any:
        return Compiled, (self.plain, self._argnums, *self._how)

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
        if not self._how[1] or any(cut for j, cut in enumerate(sliced) if j not in self._where[0]):
            return None
        call = Call(what or "compile", self.plain, self._where, tuple(args), {})
        kind = self._kind(call)
        leaves = [x for j in self._where[0] for x in flatten(wholes[j])[0]]
        if kind is None or not all(isinstance(x, np.ndarray) for x in leaves):
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
        every = (self, *self._others.values())
        return Explanation(name, [kind.explain() for one in every for kind in one._kinds.values()])

    def _run(self, wanted: Wanted, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        """The value and what else is wanted; where Python may be skipped, only if nothing rules that out."""
        if self._replay is not None and not kwargs:
            shortcut = self._replay.shortcut
            known = None if shortcut is None else shortcut(wanted, args)
            if known is not None:
                return known
        if self._refused:
            raise_refused(self.plain, self._refused)
        found = self._found(wanted, args, kwargs)
        if self._refused:
            raise_refused(self.plain, self._refused)
        return found

    def _found(self, wanted: Wanted, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        kind, directed = self._latest, wanted.directed
        if not self._simple or len(args) != 1 + directed or kwargs or not (kind and kind.takes(args[0])):
            kind = None
        if kind is not None and kind.is_over():
            kind.calls += 1
            call = Call(wanted.what, self.plain, self._where, args, kwargs, directed)
            value, parts = call.recorded(_finished, wanted)
            return value, parts and parts[0]
        if (
            kind is not None
            and kind.is_ready()
            and (not directed or (kind.takes(args[1]) and kind.serves(wanted)))
        ):
            kind.calls += 1
            begin = functools.partial(Call, wanted.what, self.plain, self._where, args, kwargs, directed)
            value, parts = _matched(kind, args[:1], wanted, self._alone, begin, NO_OTHERS, args[1:])
            return value, parts and parts[0]
        call = Call(wanted.what, self.plain, self._where, args, kwargs, directed)
        kind = self._kind(call)
        if kind is not None:
            kind.calls += 1
            if kind.replay is not None:
                kind.replay.see(kind.learning)
        alone = directed and any(isinstance(x, Handle) for x in flatten(call.v)[0])  # it may have a history
        free = kind is not None and kind.calls > 1 and kind.learning.is_free()
        if kind is None or not free or not kind.serves(wanted) or alone:
            value, parts = call.recorded(_finished, wanted)
        elif kind.matcher.paths:
            others = NO_OTHERS if kind.replay is None else Others(*call.others())
            value, parts = _matched(
                kind, call.given, wanted, lambda handles: call.apply(handles, False)[0], lambda: call, others
            )
        else:
            learner = Learner() if kind.learning.learns else None
            value, parts = call.recorded(_learned, wanted, learner)
            if learner is not None:
                call.xs = []  # nobody needs what was recorded
                kind.learning.alone(kind.learning.learn, learner)
        return value, parts and call.tree(parts)

    def _alone(self, handles: list[Tensor]) -> Any:
        return self.plain(handles[0])

    def _kind(self, call: Call) -> Kind | None:
        """What is known of calls with such arguments; None where no program is to be used."""
        if not _is_ordinary() or not abi.native() or 0 in forward.error_test() or not call.given:
            return None
        signature = call.signature
        if signature is None or any(has_tangent(x) for x in call.given):
            return None
        kind = self._kinds.get(signature)
        if kind is None:
            machine.load()
            wait, replay, assume = self._how
            new = Replay(self.plain, self._where, assume, self._refused) if replay else None
            kind = self._kinds[signature] = Kind(call.given, wait, new)
        self._replay = kind.replay
        if len(call.given) == 1:
            self._latest = kind
        return kind


def _forget(kinds: dict[Any, Kind]) -> None:
    for kind in kinds.values():
        kind.learning.end()


class Kind:
    """Calls with arguments of one kind: as many leaves, of the same shapes, dtypes and layouts.

    Attributes
    ----------
    calls
        How many there were.
    left
        How many left their ways, by the reason.
    learning
        What makes the ways.
    work
        The call at work.
    replay
        What lets calls be computed without Python, where that is asked for.
    """

    def __init__(self, given: Sequence[Any], wait: bool, replay: Replay | None = None) -> None:
        self.matcher, self.replay = Matcher(len(given)), replay
        self.learning = Learning(self.matcher, wait)
        self.calls = self.in_vain = 0
        self.left: dict[str, int] = {}
        self.work = _Work(self, any(isinstance(x, Handle) for x in given))
        self.leaves = [(type(value_of(x)), np.shape(x), getattr(x, "dtype", DOUBLE)) for x in given]
        x = value_of(given[0])
        self.type, self.strides = type(x), getattr(x, "strides", ())

    def takes(self, x: Any) -> bool:
        """Whether a leaf, the only one, is as those of these calls."""
        if self.work.of_tensors:
            if type(x) is not Tensor or is_expected(x) or x._tape is STALE or x._tape is DUAL:
                return False
            x = x._v
        if type(x) is not self.type:
            return False
        _, shape, dtype = self.leaves[0]
        return type(x) is float or (x.shape == shape and x.dtype is dtype and x.strides == self.strides)

    def is_ready(self) -> bool:
        """Whether a call may follow a path."""
        return bool(self.matcher.paths) and _is_ordinary()

    def is_over(self) -> bool:
        """Whether there are no paths, nor will be any, so that calls are recorded with no more ado."""
        learning = self.learning
        return not (self.matcher.paths or learning.tasks or learning.learns or self.replay is not None)

    def serves(self, wanted: Wanted) -> bool:
        """Whether a call that asks for this may follow a path, or be learned from."""
        if not wanted.directed:
            return True
        paths = self.matcher.paths
        if self.work.of_tensors or not paths:
            return not self.work.of_tensors
        if paths[0].product is UNTRIED:
            self.learning.alone(self.learning.product_of, paths[0], True)
        return isinstance(paths[0].product, Product)

    def in_lanes(
        self, leaves: Sequence[np.ndarray], others: Others, what: str, threads: int
    ) -> list[np.ndarray] | None:
        """Compute calls at once, if Python may be skipped; None where it may not, or some meet errors."""
        replay, lock = self.replay, self.learning.lock
        if replay is None or not self.is_ready() or not lock.acquire(blocking=False):
            return None
        try:
            if self.learning.tasks or not replay.may_run(self.matcher, others):
                return None
            found = replay.in_lanes(self.matcher, leaves, what, threads)
            self.calls += len(leaves[0]) if found is not None else 0
            return found
        finally:
            lock.release()

    def count_in_vain(self, what: str) -> None:
        """Count a call that a program was in vain for, and give up when there are many in a row."""
        self.in_vain += 1
        if self.in_vain == MOST_IN_VAIN:
            self.learning.give_up(f"{MOST_IN_VAIN} calls in a row {what}")

    def note_leaving(self, why: str) -> None:
        """Count a call that has left its way."""
        known = why in self.left or len(self.left) < MOST_REASONS
        why = why if known else "other reasons"
        self.left[why] = self.left.get(why, 0) + 1

    def explain(self) -> Calls:
        """Tell what is known of these calls."""
        leaves = ", ".join(f"{dtype} {shape}" if shape else str(dtype) for _, shape, dtype in self.leaves)
        learning = self.learning
        learning.alone(self.matcher.describe)
        ways = tuple(path.explain() for path in self.matcher.paths)
        replayed = "" if self.replay is None else self.replay.explain()
        return Calls(
            leaves, self.calls, ways, dict(self.left), learning.reason, bool(learning.tasks), replayed
        )


def _is_ordinary() -> bool:
    """Whether operations are recorded as usual here, and NumPy raises no errors of numbers."""
    return _enabled.get() is True and not OPEN and not forward.reported(forward.error_mode.get())[2]


def _finished(call: Call, wanted: Wanted) -> tuple[Any, Any]:
    return _given(call, call.outputs(False)[0], wanted)


def _given(call: Call, found: Any, wanted: Wanted) -> tuple[Any, Any]:
    """The value, and what else is wanted, of a call whose operations are recorded."""
    parts = wanted.recorded(call, found)
    return call.given_back(found, call.outside), parts


def _learned(call: Call, wanted: Wanted, learner: Learner | None) -> tuple[Any, Any]:
    if learner is None:
        return _finished(call, wanted)
    handles = list(call.sources())
    for x, given in zip(handles, call.given, strict=True):
        learner.add(x, not isinstance(given, Handle))
    mode, before = learner.mode(), _enabled.get()
    try:
        try:
            _enabled.set(mode)
            found, _ = call.apply(handles, False)
        finally:
            _enabled.set(before)
    finally:
        _enabled.set(before)  # an interrupt may have come as the other was about to be called
    learner.end(found)
    call.look_outside(found)
    return _given(call, found, wanted)


def _matched(
    kind: Kind,
    given: Sequence[Any],
    wanted: Wanted,
    run: Callable[[list[Tensor]], Any],
    begin: Callable[[], Call],
    others: Others,
    direction: Sequence[Any] = (),
) -> tuple[Any, Any]:
    """Call a function while a program computes; the value, and derivatives by each leaf of the arguments.

    `run` calls it on Tensors for these leaves, `begin` gives the call where it is to be recorded after all,
    `others` are its other arguments, `direction` is known to be one for these leaves.
    """
    learning = kind.learning
    lock = learning.lock
    if lock.acquire(False):
        try:
            if kind.matcher.paths and not learning.tasks:
                work = kind.work
                if kind.replay is not None and kind.replay.may_run(kind.matcher, others):
                    found = work.replayed(given, wanted, begin, direction)
                    if found is not None:
                        return found
                return work.result(given, wanted, run, begin, others, direction)
        finally:
            lock.release()
    return begin().recorded(_finished, wanted)


class _Work:
    """A call at work."""

    def __init__(self, kind: Kind, of_tensors: bool) -> None:
        self.kind, self.of_tensors = kind, of_tensors
        self.begin: Callable[[], Call] | None = None
        learning = kind.learning
        self._learns: Callable[[], bool] = lambda: learning.learns
        self.call: Call | None = None  # where it is recorded after all
        self.aside: list[Any] = []  # the tape that was open then, if it was set aside

    def sources(self) -> Any:
        """Tensors of the arguments, as the call is recorded after all."""
        assert self.begin is not None
        self.call = call = self.begin()
        call.see_outside()
        if not call.outside:
            self.aside.append(set_aside())
        for k, x in enumerate(call.given):
            lent = self.kind.matcher.lent(k)
            if lent is not None:  # with the history that a Tensor has
                call.given[k] = alias_of(x) if isinstance(x, Handle) else wrap(lent)
                call.given[k]._v = lent
        return call.sources()

    def result(
        self,
        given: Sequence[Any],
        wanted: Wanted,
        run: Callable[[list[Tensor]], Any],
        begin: Callable[[], Call],
        others: Others,
        direction: Sequence[Any],
    ) -> tuple[Any, Any]:
        """What the call gives."""
        matcher, self.begin = self.kind.matcher, begin
        try:
            matcher.start(given, self.sources, self._learns)
            try:
                return self._followed(given, wanted, run, others, direction)
            except BaseException as error:
                matcher.leave(f"{type(error).__name__} was raised")
                raise
        finally:
            matcher.end()
            if matcher.left:
                matcher.renew()
                self.kind.note_leaving(matcher.why)
            kept = matcher.let_go()
            if kept:
                self.kind.learning.renew(kept)
            if kept or matcher.left:
                self.kind.count_in_vain("did what a program cannot do, or kept arrays")
            elif self.kind.replay is None and 2 * matcher.by_python > len(matcher.program.events):
                self.kind.count_in_vain("had Python compute most operations, as it looked at their values")
            else:
                self.kind.in_vain = 0
            self.begin = self.call = None
            if self.aside:
                resume(self.aside.pop())

    def _followed(
        self,
        given: Sequence[Any],
        wanted: Wanted,
        run: Callable[[list[Tensor]], Any],
        others: Others,
        direction: Sequence[Any],
    ) -> tuple[Any, Any]:
        matcher = self.kind.matcher
        found, why = self._called(run), "it returned something else, or ended elsewhere"
        if matcher.is_complete(found):
            del found
            path = matcher.path
            what = self._product(path, direction) if wanted.directed else path
            pull = self._pulls(path, wanted)
            if what is not None and matcher.finish(what, pull):
                matcher.prefer()
                if self.kind.replay is not None:
                    self.kind.replay.note(matcher, self.kind.learning, given, others)
                return self._computed(what, pull, wanted, given)
            found = matcher.results[path.result]
            why = "a Tensor of it was kept, or an operation met an error of numbers"
        matcher.leave(why)
        call = self.call
        assert call is not None
        if matcher.learner is not None:
            matcher.learner.end(found)
            self.kind.learning.learn(matcher.learner)
        call.look_outside(found)
        return _given(call, found, wanted)

    def replayed(
        self, given: Sequence[Any], wanted: Wanted, begin: Callable[[], Call], direction: Sequence[Any]
    ) -> tuple[Any, Any] | None:
        """What a call gives that does what the latest one did; None where that is to be looked at again."""
        matcher, replay = self.kind.matcher, self.kind.replay
        matcher.restart(given)
        path = matcher.path
        what: Computation | None = path
        if wanted.directed:
            self.begin = begin
            what = self._product(path, direction)
            self.begin = None
        pull = self._pulls(path, wanted)
        try:
            if what is None or not matcher.finish(what, pull):
                return None
        except np.linalg.LinAlgError:  # which is to come where the function may catch it
            return None
        assert replay is not None
        replay.replayed += 1
        return self._computed(what, pull, wanted, given)

    def _pulls(self, path: Path, wanted: Wanted) -> bool:
        return wanted.pull or (self.of_tensors and path.is_number)

    def _computed(
        self, what: Computation, pull: bool, wanted: Wanted, given: Sequence[Any]
    ) -> tuple[Any, Any]:
        """The value and the derivatives that are computed."""
        path = self.kind.matcher.path
        path.served += 1
        value = path.value()
        parts = [part() for part in what.parts] if pull else None
        if self.of_tensors:
            return record_run(path.program, path.result, value, parts, given, wanted.pull)
        return value, parts

    def _product(self, path: Path, direction: Sequence[Any]) -> Product | None:
        """What computes the Hessian times the direction of the call, which is in its buffers."""
        assert self.begin is not None
        if path.product is UNTRIED and not self.kind.matcher.compute_to(len(path.program.events)):
            return None
        product = self.kind.learning.product_of(path, False)
        if product is not None:
            for buffer, v in zip(product.direction, direction or direction_of(self.begin()), strict=True):
                buffer[...] = v
        return product

    def _called(self, run: Callable[[list[Tensor]], Any]) -> Any:
        matcher = self.kind.matcher
        try:
            try:
                _enabled.set(matcher.mode)
                replay = self.kind.replay
                return run(matcher.arguments) if replay is None else replay.watch(matcher, run)
            finally:
                _enabled.set(True)
        except BaseException:
            _enabled.set(True)  # an interrupt may have come as the other was about to be called
            raise
