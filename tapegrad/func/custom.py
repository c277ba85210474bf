"""Functions with derivatives that the user gives: `custom_vjp` and `custom_jvp`.

The function runs on plain values and is one record, whose derivative is the rule. Reverse mode wants what
pulls cotangents back, forward mode what pushes tangents on. Each is the transpose of the other, as both are
linear; so the one that is not given comes of a sweep through the one that is.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Sequence
from types import MethodType
from typing import Any

import numpy as np

from tapegrad.autograd import grad
from tapegrad.autograd.apply import applied, as_tensor
from tapegrad.autograd.function import Function, FunctionCtx
from tapegrad.autograd.hooks import from_array
from tapegrad.core.base import has_tangent, needs_derivative, requires_grad, value_of
from tapegrad.core.dispatch import as_tape_value, kept_apart, with_metadata
from tapegrad.core.grad_mode import enable_grad, in_force, is_grad_enabled, within
from tapegrad.errors import BorderError, GradientError, MutationError
from tapegrad.func.trees import LEAF, Structure, Tree, flatten
from tapegrad.tape.tape import checksum
from tapegrad.tensor import Operand, Tensor, TensorOrArray, is_tensor, without_history, wrap

__all__ = [
    "PLAIN",
    "Called",
    "Point",
    "Rule",
    "call",
    "custom_jvp",
    "custom_vjp",
    "is_recorded",
    "outside",
    "replaced",
    "transposed",
]


PLAIN = {"recording": True, "inference": False, "packing": None, "forward": None}  # a mode of its own


class Rule:
    """A function on plain values, and its derivative.

    Attributes
    ----------
    name
        For errors.
    kind
        The Function by which a call is recorded; nodes have its name.
    """

    name: str
    kind: type[Called]

    def run(self, args: Sequence[Any], asked: bool, noting: bool) -> Tree:
        """Return the result; `asked` says whether derivatives are asked for, `noting` that `note` follows."""
        raise NotImplementedError

    def note(self, at: Point) -> Any:
        """Return what is to be known of a call, without history at this point, when it is differentiated."""
        return None

    def pull(self, at: Point, cts: Sequence[TensorOrArray], needs: Sequence[bool]) -> Sequence[Any]:
        """Return a cotangent for each Tensor, None where there is none or it is not needed."""
        raise NotImplementedError

    def push(self, at: Point, tangents: Sequence[Any]) -> Sequence[Any]:
        """Return a tangent, or None, for each result."""
        raise NotImplementedError


class Call:
    """One call of such a function: its trees of arguments and results, without the Tensors in them.

    Attributes
    ----------
    leaves, structure
        The arguments, with None for each Tensor.
    spots
        Where these are.
    guards
        Checksums of large arrays among the arguments, by place.
    outs, shape
        The results, with None for each that has a derivative; their structure.
    moving
        Where these are.
    noted
        What the rule has noted.
    """

    noted: Any = None

    def __init__(self, rule: Rule, leaves: list[Operand], structure: Structure) -> None:
        self.rule, self.structure = rule, structure
        self.spots = [k for k, x in enumerate(leaves) if is_tensor(x)]
        self.leaves: list[Any] = [None] * len(leaves)
        self.guards: dict[int, int] = {}
        for k, x in enumerate(leaves):
            if isinstance(x, np.ndarray):
                self._keep(k, x)
            elif not is_tensor(x):
                self.leaves[k] = x
        self.shape: Structure = LEAF
        self.outs: list[Any] = []
        self.moving: list[int] = []

    def _keep(self, k: int, x: np.ndarray) -> None:
        """Keep an array that others can write to, as tapes do."""
        self.leaves[k], known = kept_apart(x)
        if known is not None:
            self.guards[k] = known

    def verify(self) -> None:
        """See that arrays are what they were."""
        for k, known in self.guards.items():
            x = self.leaves[k]
            if checksum(x) != known:
                raise MutationError(
                    f"{self.rule.name} was called with an array of shape {x.shape}, dtype {x.dtype} that was "
                    "written to since, maybe by itself, and the derivative needs the values of then; pass a "
                    'copy, or call it under tg.guard("copy")'
                )

    def returned(self, outs: list[Operand], shape: Structure) -> None:
        """Take the results."""
        self.shape, self.outs = shape, [x.copy() if isinstance(x, np.ndarray) else x for x in outs]
        self.moving = [k for k, x in enumerate(outs) if np.asarray(x).dtype.kind in "fc"]
        for k in self.moving:
            self.outs[k] = None

    def args(self, tensors: Sequence[Operand], constants: Sequence[Operand | None] | None = None) -> Any:
        """Return the arguments with these Tensors, and with other constants where these are given."""
        return self.structure.build(
            replaced(self.leaves if constants is None else constants, self.spots, tensors)
        )

    def out(self, results: Sequence[Operand], constants: Sequence[Operand | None] | None = None) -> Tree:
        """Return the result with these Tensors."""
        return self.shape.build(replaced(self.outs if constants is None else constants, self.moving, results))


def is_recorded(tensors: Sequence[Tensor | None]) -> bool:
    """Whether what is computed from these has a history; tangents are none."""
    return is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)


def replaced(
    leaves: Sequence[Operand | None], spots: Sequence[int], values: Sequence[Operand]
) -> list[Operand | None]:
    """Return a list with other values at some places."""
    found = list(leaves)
    for k, value in zip(spots, values, strict=True):
        found[k] = value
    return found


class Point:
    """Where a derivative is asked for: a call, with the Tensors among its arguments and results."""

    def __init__(self, call: Call, tensors: Sequence[Tensor], outs: Sequence[Tensor]) -> None:
        self.call, self.tensors, self.outs = call, tensors, outs

    @property
    def args(self) -> Any:
        """The arguments."""
        return self.call.args(self.tensors)

    @property
    def out(self) -> Tree:
        """The result."""
        return self.call.out(self.outs)

    def kept(self, history: bool) -> Point:
        """Return this, or the same without history; tangents stay."""
        if history:
            return self
        return Point(self.call, *(list(map(without_history, xs)) for xs in (self.tensors, self.outs)))


class Called(Function):
    """What such a function has computed, as an operation on the Tensors among its arguments."""

    @staticmethod
    def backward(ctx: Any, *cts: Tensor | None) -> tuple[Tensor | None, ...]:
        """Return the cotangents of the Tensors."""
        return tuple(ctx._known.rule.pull(_point(ctx), cts, ctx.needs_input_grad))

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> tuple[Tensor | None, ...]:
        """Return the tangents of the results."""
        return tuple(ctx._known.rule.push(_point(ctx), tangents))


def _point(ctx: FunctionCtx) -> Point:
    ctx._known.verify()
    saved, n = ctx.saved_tensors, len(ctx._known.spots)
    return Point(ctx._known, saved[:n], saved[n:])


def call(rule: Rule, args: Sequence[Tree]) -> Any:
    """Run a function on the values of its arguments; its result has the derivative that the rule gives."""
    leaves, structure = flatten(tuple(args))
    asked = is_grad_enabled() or in_force("forward") is not None  # a Function looks after what it computes
    tensors = [x for x in leaves if is_tensor(x)]
    known = Call(rule, leaves, structure) if tensors else None  # before anything is written to
    noting = asked and any(map(needs_derivative, tensors))
    plain = structure.build([_plain(x) for x in leaves])
    try:
        found = within(PLAIN, rule.run, plain, asked, noting)
    except BorderError as error:
        raise BorderError(f"{error}. {_advice(rule.name)}") from error
    outs, shape = flatten(found)
    outside(outs, asked, rule.name)
    outs = [x.detach() if requires_grad(x) else x for x in outs]
    if known is None:
        return shape.build(outs)
    known.returned(outs, shape)
    values = [as_tape_value(value_of(outs[k]), f"a result of {rule.name}") for k in known.moving]
    if noting:
        here = Point(known, *([wrap(x) for x in xs] for xs in (map(value_of, tensors), values)))
        known.noted = within(PLAIN, rule.note, here)
    return known.out(_recorded(known, tensors, values))


def _recorded(known: Call, tensors: list[Tensor], values: list[np.ndarray]) -> tuple[Tensor, ...]:
    """Return the values as results computed from the Tensors."""
    kind, ctx = known.rule.kind, known.rule.kind._context()

    def forward(*inputs: Tensor) -> tuple[Tensor, ...]:
        outs = [with_metadata(from_array(value), inputs) for value in values]
        ctx._known = known
        ctx.constants = [x for x in (*known.leaves, *known.outs) if x is not None]
        ctx.save_for_backward(*inputs, *outs)
        return tuple(outs)

    return applied(kind, ctx, f"{kind.__name__}Backward", forward, kind.backward, tensors, list(tensors))


def _plain(x: Operand) -> Operand:
    """The value of an argument, an array that nobody else writes to or reads."""
    if not is_tensor(x):
        return x
    return x._v.copy() if x._v.ndim else x._v


def outside(leaves: Sequence[Operand], asked: bool, name: str) -> None:
    """Refuse what was computed from plain values and has a derivative by something else."""
    for x in leaves:
        if has_tangent(x) or (asked and requires_grad(x)):
            kind = "carries a tangent" if has_tangent(x) else "requires grad"
            raise GradientError(f"{name}: what it computed depends on a Tensor that {kind}. {_advice(name)}")


def _advice(name: str) -> str:
    return (
        f"{name} is called with plain values and has derivatives by its arguments alone; pass Tensors that "
        "it uses from outside as arguments, and detach what it returns of those it makes"
    )


# ---------------------------------------------------------------- what is linear, transposed


def transposed(
    linear: Callable[[list[Tensor]], Sequence[Any]],
    likes: Sequence[Tensor],
    cts: Sequence[Any],
    recorded: bool,
    name: str,
) -> list[Tensor]:
    """Pull cotangents back through a function that is linear.

    Parameters
    ----------
    linear
        Takes a Tensor like each of `likes`, returns one, or None, for each of `cts`.
    likes, cts
        Tensors; None for a cotangent that there is none of.
    recorded
        Whether the result is to be differentiated.
    name
        Of whose rule it is.

    Returns
    -------
    list of Tensor or None
        One for each of `likes`.
    """
    with enable_grad():
        probes = [_probe(x) for x in likes]
        found = zip(linear(probes), cts, strict=True)
        pairs = [(as_tensor(y), ct) for y, ct in found if y is not None and ct is not None]
        known = [(y, ct) for y, ct in pairs if y.requires_grad]
        pulled: Sequence[Any] = [None] * len(probes)
        if known:
            ys, vectors = zip(*known, strict=True)
            pulled = grad(ys, probes, vectors, create_graph=recorded, allow_unused=True)
    _check_linear(pairs, [(p, g) for p, g in zip(probes, pulled, strict=True) if g is not None], name)
    return list(pulled)


def _probe(x: Tensor) -> Tensor:
    """A leaf like a Tensor, whose elements have nothing in common."""
    angle = np.arange(1.0, 1.0 + x._v.size).reshape(x._v.shape)
    value = np.exp(1j * angle) if x._v.dtype.kind == "c" else np.cos(angle)
    return wrap(
        value.astype(x._v.dtype)[()] if value.ndim == 0 else value.astype(x._v.dtype)
    ).requires_grad_()


Pairs = Sequence[tuple[Tensor, Tensor]]


def _check_linear(pushed: Pairs, pulled: Pairs, name: str) -> None:
    """See that <linear(probes), cts> is <probes, pulled>: else not all is recorded, or not all linear."""
    with np.errstate(all="ignore"):
        terms = [[(x._v.conj() * y._v).real for x, y in pairs] for pairs in (pushed, pulled)]
        a, b = (sum(float(np.sum(t, dtype=np.float64)) for t in side) for side in terms)
        scale = sum(float(np.sum(np.abs(t), dtype=np.float64)) for side in terms for t in side)
        eps = max((float(np.finfo(t.dtype).eps) for side in terms for t in side), default=0.0)
    if np.isfinite(scale) and abs(a - b) > eps**0.25 * scale:
        raise GradientError(
            f"{name}: for the other mode of differentiation its rule is transposed, but it is not linear in "
            "what it is given last, or takes values out of that (detach, .item(), no_grad); let it compute "
            "with NumPy's functions from what it is given"
        )


# ---------------------------------------------------------------- the decorators


class _Custom(Rule):
    """A function with a rule."""

    _registration = ""

    def __init__(self, function: Callable[..., Any]) -> None:
        if not callable(function):
            raise TypeError(f"{type(self).__name__} decorates a function, found {type(function).__name__}")
        self._function = function
        self._rule: Callable[..., Any] | None = None
        functools.update_wrapper(self, function)
        self.name = getattr(function, "__name__", type(function).__name__)
        self.kind = type(self.name, (Called,), {})
        self._signature: inspect.Signature | None = None
        if not isinstance(function, np.ufunc):
            with contextlib.suppress(TypeError, ValueError):  # of something in C
                self._signature = inspect.signature(function)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else MethodType(self, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function: its result, with the derivative that the rule gives."""
        if self._rule is None:
            raise GradientError(
                f"{self.name} has no rule: decorate one with @{self.name}.{self._registration}"
            )
        return call(self, self._bound(args, kwargs))

    def _bound(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """All arguments by position, with defaults."""
        if self._signature is None:
            if kwargs:
                raise TypeError(f"{self.name} has no signature that is known: pass arguments by position")
            return args
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        for name in kwargs:
            if name in bound.kwargs or name not in bound.arguments:
                raise TypeError(
                    f"{self.name} takes {name} by keyword only, and its rule would not see it; let it be an "
                    "argument by position"
                )
        return bound.args

    def run(self, args: Sequence[Any], asked: bool, noting: bool) -> Tree:
        """Call the function as it is."""
        return self._function(*args)

    def _registered(self, rule: Callable[..., Any]) -> Callable[..., Any]:
        if not callable(rule):
            raise TypeError(
                f"{self.name}.{self._registration} decorates a function, found {type(rule).__name__}"
            )
        self._rule = rule
        return rule


class custom_vjp(_Custom):
    """Decorator: a function of plain values with a rule for reverse mode, given by `def_vjp`.

    The function gets ndarrays and numbers, whatever it is called with, so that SciPy, compiled code or a loop
    until convergence may be in it. Called with Tensors, among its arguments or in trees of them (dicts,
    lists, tuples, dataclasses), it returns Tensors. In forward mode the rule is transposed: it is linear in
    the cotangent. Derivatives of any order are those of the rule, if it is written in NumPy's functions.

    Parameters
    ----------
    function : callable
        Its result is an array, a number or a tree of them.

    Examples
    --------
    >>> import math, numpy as np, tapegrad as tg
    >>> @tg.func.custom_vjp
    ... def erf(x):
    ...     return math.erf(x)
    >>> @erf.def_vjp
    ... def rule(out, args, ct):
    ...     (x,) = args
    ...     return ct * 2 / np.sqrt(np.pi) * np.exp(-x * x)
    >>> x = tg.tensor(0.5, requires_grad=True)
    >>> (slope,) = tg.grad(erf(x), x, create_graph=True)
    >>> slope.item(), tg.grad(slope, x)
    (0.8787825789354448, (tensor(-0.8788),))
    """

    _registration = "def_vjp"

    def def_vjp(self, rule: Callable[..., Any]) -> Callable[..., Any]:
        """Register the rule; a decorator.

        Parameters
        ----------
        rule : callable
            ``rule(out, args, ct)`` takes the result, the tuple of arguments, defaults among them, and the
            cotangent, a tree like the result: Tensors for what were Tensors, and for floats and arrays in
            the result. It returns a tuple with a cotangent for each argument, a tree like that, with None
            for what has no derivative; of a function of one argument that alone will do, if it is no tuple.

        Returns
        -------
        callable
            The rule.
        """
        return self._registered(rule)

    def pull(self, at: Point, cts: Sequence[TensorOrArray], needs: Sequence[bool]) -> list[Any]:
        """Return the cotangents of the Tensors: what the rule says."""
        assert self._rule is not None
        call = at.call
        found = self._rule(at.out, at.args, call.out(cts, [None] * len(call.outs)))
        found = found if isinstance(found, tuple) else (found,)
        if len(found) != len(call.structure.children):
            raise GradientError(
                f"{self.name}: its rule returned {len(found)} cotangents for {len(call.structure.children)} "
                "arguments; return a tuple with one for each, None where there is no derivative"
            )
        leaves = _leaves_like(found, call.structure, f"{self.name}: its rule returned for the arguments")
        return [as_tensor(leaves[k]) for k in call.spots]

    def push(self, at: Point, tangents: Sequence[Any]) -> list[Tensor]:
        """Return the tangents of the results, by the rule transposed."""
        recorded = is_recorded((*at.tensors, *tangents))
        return transposed(lambda cts: self.pull(at, cts, ()), at.outs, tangents, recorded, self.name)


class custom_jvp(_Custom):
    """Decorator: a function of plain values with a rule for forward mode, given by `def_jvp`.

    As `custom_vjp`; it is reverse mode for which the rule is transposed: it is linear in the tangents.

    Parameters
    ----------
    function : callable
        Its result is an array, a number or a tree of them.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg
    >>> @tg.func.custom_jvp
    ... def cube_root(x):
    ...     return np.cbrt(x)
    >>> @cube_root.def_jvp
    ... def rule(out, args, tangents):
    ...     (dx,) = tangents
    ...     return dx / (3 * out * out)
    >>> x = tg.tensor([8.0, 27.0], requires_grad=True)
    >>> tg.grad(np.sum(cube_root(x)), x)
    (tensor([0.0833, 0.0370]),)
    """

    _registration = "def_jvp"

    def def_jvp(self, rule: Callable[..., Any]) -> Callable[..., Any]:
        """Register the rule; a decorator.

        Parameters
        ----------
        rule : callable
            ``rule(out, args, tangents)`` takes the result, the tuple of arguments, defaults among them, and
            that of their tangents, trees like these: zeros for what does not move, None for what is no
            float. It returns the tangent of the result, a tree like that, with None for what does not move.
            What it needs of the result it takes from `out`, so that this is differentiated too.

        Returns
        -------
        callable
            The rule.
        """
        return self._registered(rule)

    def push(self, at: Point, tangents: Sequence[Any]) -> list[Tensor]:
        """Return the tangents of the results: what the rule says."""
        assert self._rule is not None
        call = at.call
        moved = call.args(tangents, [_zeros_like(x) for x in call.leaves])
        found = self._rule(at.out, at.args, moved)
        leaves = _leaves_like(found, call.shape, f"{self.name}: its rule returned for the result")
        return [as_tensor(leaves[k]) for k in call.moving]

    def pull(self, at: Point, cts: Sequence[TensorOrArray], needs: Sequence[bool]) -> list[Any]:
        """Return the cotangents of the Tensors, by the rule transposed."""
        recorded = is_grad_enabled()
        at = at.kept(recorded)
        spots = [k for k, need in enumerate(needs) if need]
        zeros = [_zeros_like(x) for x in at.tensors]

        def linear(moved: list[Tensor]) -> list[Tensor]:
            return self.push(at, replaced(zeros, spots, moved))

        pulled = transposed(linear, [at.tensors[k] for k in spots], cts, recorded, self.name)
        return replaced([None] * len(zeros), spots, pulled)


def _zeros_like(x: Operand | str) -> Any:
    """The tangent of what does not move: None if nothing of its kind does."""
    value = value_of(x)
    if x is None or np.asarray(value).dtype.kind not in "fc":
        return None
    zeros = np.zeros(np.shape(value), np.asarray(value).dtype)
    return wrap(zeros) if zeros.ndim else wrap(zeros[()])


def _leaves_like(tree: Tree, structure: Structure, what: str) -> list[TensorOrArray | None]:
    """The leaves of a tree of this structure, in which None may stand for a branch."""
    found, theirs = flatten(tree)
    if theirs == structure:
        return found
    return list(_matched(iter(found), theirs, structure, what))


def _matched(found: Any, theirs: Structure, wanted: Structure, what: str) -> list[Tensor | None]:
    if theirs.kind is type(None):
        return [None] * wanted.count()
    if theirs.kind is None and wanted.kind is None:
        return [next(found)]
    alike = theirs.kind is wanted.kind and theirs.keys == wanted.keys
    if not alike or len(theirs.children) != len(wanted.children):
        raise GradientError(f"{what} {_shown(theirs)}, and {_shown(wanted)} is wanted there")
    parts = zip(theirs.children, wanted.children, strict=True)
    return [leaf for a, b in parts for leaf in _matched(found, a, b, what)]


def _shown(structure: Structure) -> str:
    """A structure as a reader sees it."""
    return (
        "one leaf" if structure.kind is None else f"{structure.kind.__name__} of {structure.count()} leaves"
    )
