"""The graph that a sweep follows, as nodes: light views of records, made when they are looked at."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from tapegrad.autograd.hooks import Hooks, hooks_of
from tapegrad.autograd.saved_tensors import (
    disable_saved_tensors_hooks,
    save_on_disk,
    saved_tensors_hooks,
)
from tapegrad.core.base import refresh_history, strip_tangents
from tapegrad.core.nodes import Hook, Node, RemovableHandle, callable_hook
from tapegrad.core.storage import STALE
from tapegrad.engine.plan import at_work
from tapegrad.errors import GradientError, GraphFreedError
from tapegrad.ops import custom
from tapegrad.ops.primitive import BY_OPCODE, OUT, Attributes, Primitive
from tapegrad.tape.record import CONST, LINK, Record, slot
from tapegrad.tape.tape import Cell, Place, Tape
from tapegrad.tensor import Tensor, recall

__all__ = [
    "GradientEdge",
    "Node",
    "disable_saved_tensors_hooks",
    "get_gradient_edge",
    "register_multi_grad_hook",
    "save_on_disk",
    "saved_tensors_hooks",
]

_nodes: weakref.WeakValueDictionary[Hashable, Node] = weakref.WeakValueDictionary()
# what hooks are attached to, and of a result where it is recorded
HookedPlace: TypeAlias = "tuple[weakref.ref[Hooks], tuple[weakref.ref[Tape], int] | None]"


class AccumulateGrad(Node):
    """The node of a leaf: what arrives there is added to its ``.grad``."""

    __slots__ = ()

    def name(self) -> str:
        """The name of the operation."""
        return "AccumulateGrad"

    @property
    def variable(self) -> Tensor | None:
        """The leaf; None if it is gone."""
        leaf: Tensor | None = self._key.handle()
        return leaf

    def _hooks(self) -> Any:
        if self._key.hooks is None:
            self._key.hooks = Hooks()
        return self._key.hooks

    def handle(self, index: int = 0) -> Tensor:
        """Return the leaf."""
        found = self.variable
        if found is None:
            raise GradientError("the leaf of this node is gone")
        return found


class RecordNode(Node):
    """The node of a recorded operation."""

    __slots__ = ("_held",)
    _key: tuple[Tape, Record]

    def __init__(self, tape: Tape, k: Record) -> None:
        self._key = tape, k
        self._held = tape.value(k)  # a value that somebody holds keeps its record

    @property
    def _op(self) -> Primitive:
        tape, k = self._key
        op: Primitive = BY_OPCODE[tape.operation(k)[0]]
        return op

    @property
    def _attrs(self) -> Attributes:
        tape, k = self._key
        return tape.attrs.get(k, {})

    @property
    def _call(self) -> Any:
        return self._attrs.get("call") if isinstance(self._op, custom.Call) else None

    def name(self) -> str:
        """The name of the operation, with "Backward" behind it."""
        return self._op.node_name(self._attrs)

    def _operands(self) -> list[Record]:
        tape, k = self._key
        return tape.operands(k, self._op.recorded_form)

    @property
    def next_functions(self) -> tuple[tuple[Node | None, int], ...]:
        """Where the gradients of the operands go."""
        edges = [edge_of(self._key[0], j) for j in self._operands()]
        call = self._call
        if call is None:
            return tuple(edges)
        found = dict(zip(call.slots, edges, strict=True))  # Tensors that need no gradient are no operands
        return tuple(found.get(k, (None, 0)) for k, known in enumerate(call.known) if known is not None)

    def _hooks(self) -> Any:
        tape, k = self._key
        return self._call or tape.hooks.setdefault(k, Hooks())

    def handle(self, index: int = 0) -> Tensor:
        """Return a Tensor with this node's history."""
        tape, k = self._key
        if self._call is not None:
            raise GradientError(f"the results of {self.name()} are reached from the Tensors themselves")
        value = tape.value(k)
        if value is None:
            value = self._held
        if value is None:
            columns = tape.view()
            value = np.broadcast_to(np.float64(np.nan), columns.shape(k))
        return recall(value, (tape, k))

    @property
    def saved_tensors(self) -> tuple[Tensor | None, ...]:
        """The values that the derivative reads: operands in order, then the result.

        Raises
        ------
        GraphFreedError
            A sweep has released them.
        """
        if self._call is not None:
            return self._call.unpack()  # type: ignore[no-any-return]
        return tuple(x for _, x in self._saved())

    def _saved(self) -> list[tuple[int, Tensor]]:
        tape, k = self._key
        op, flags = self._op, tape.freed_flags(k + 1)
        if flags is not None and flags[k]:
            raise GraphFreedError(
                f"a sweep has released what {self.name()} saved; call it with retain_graph=True"
            )
        operands = self._operands()
        mask = 0
        for q, j in enumerate(operands):
            if tape.operation(j)[0] != CONST:
                mask |= op.masks[min(q, 2)]
        found = [(q, _handle(tape, j)) for q, j in enumerate(operands) if mask >> min(q, 2) & 1]
        return found + ([(OUT, _handle(tape, k))] if mask >> OUT & 1 else [])

    def __getattr__(self, name: str) -> Any:
        """Saved values by torch's names; attributes that forward set on a Function's ctx."""
        place = {"_saved_self": 0, "_saved_other": 1, "_saved_result": OUT}.get(name)
        if place is not None:
            for q, x in self._saved():
                if q == place:
                    return x
        if not name.startswith("__") and self._call is not None:
            return getattr(self._call.ctx, name)
        raise AttributeError(f"{self.name()} has no attribute {name!r}")


def _handle(tape: Tape, j: Record) -> Tensor:
    value = tape.value(j)
    if tape.operation(j)[0] == CONST:
        return recall(value, None)
    return recall(value, tape.source(j) or (tape, j))


def edge_of(tape: Tape, j: Record) -> tuple[Node | None, int]:
    """The node of record j, and which of the node's results the record's value is."""
    source = tape.source(j)
    if isinstance(source, Cell):
        return _leaf_node(source), 0
    if isinstance(source, Place):
        return edge_of(source[0], source[1])
    opcode = tape.operation(j)[0]
    if opcode in (CONST, LINK):
        return None, 0
    op = BY_OPCODE[opcode]
    if op in (custom.result, custom.kept_result):
        (call,) = tape.operands(j, op.recorded_form)
        return edge_of(tape, call)[0], tape.attrs[j]["index"]
    return _node((tape.serial, j), lambda: RecordNode(tape, j)), 0


def _leaf_node(cell: Cell) -> Node:
    def make() -> Node:
        node = AccumulateGrad()
        node._key = cell
        return node

    return _node(cell, make)


def _node(key: Hashable, make: Callable[[], Node]) -> Node:
    found = _nodes.get(key)
    if found is None:
        found = _nodes.setdefault(key, make())
    return found


class GradientEdge(NamedTuple):
    """A node, and which of its results is meant; `grad` and `backward` take it as they take a Tensor."""

    node: Node
    output_nr: int
    tensor: Tensor | None = None  # a handle of the same value and history

    def handle(self) -> Tensor:
        """Return a Tensor with this history."""
        found = self.node.handle(self.output_nr) if self.tensor is None else self.tensor
        assert isinstance(found, Tensor)
        return found


def get_gradient_edge(tensor: Tensor) -> GradientEdge:
    """Return the node that computes a Tensor's gradient, and which of its results the Tensor is.

    Parameters
    ----------
    tensor : Tensor

    Returns
    -------
    GradientEdge

    Raises
    ------
    GradientError
        The Tensor does not require grad.

    Examples
    --------
    >>> import tapegrad as tg
    >>> x = tg.tensor(2.0, requires_grad=True)
    >>> edge = tg.autograd.graph.get_gradient_edge(x * x)
    >>> edge.node, edge.output_nr
    (<MulBackward>, 0)
    """
    if not tensor.requires_grad:
        raise GradientError(f"a Tensor (shape {tensor.shape}) without requires_grad has no gradient edge")
    if tensor._tape is STALE:
        refresh_history(tensor)
    tensor = strip_tangents(tensor)
    if tensor._tape is None:
        return GradientEdge(_leaf_node(tensor._at), 0)
    node, index = edge_of(tensor._tape, slot(tensor._at))
    assert node is not None
    return GradientEdge(node, index, recall(tensor._v, (tensor._tape, slot(tensor._at))))


def _grad_fn(self: Tensor) -> Node | None:
    """The node of the graph that computes its gradient; None for a leaf."""
    if strip_tangents(self)._tape is None:
        return None
    return get_gradient_edge(self).node


def register_multi_grad_hook(
    tensors: Sequence[Tensor], fn: Callable[..., None], *, mode: str = "all"
) -> RemovableHandle:
    """Call a function with the gradients of several Tensors.

    Parameters
    ----------
    tensors : sequence of Tensor
    fn : callable
        For "all", called once in a sweep that computes some of them, when the last has been, with a list:
        None for those that the sweep does not compute. For "any", called with the first.
    mode : {"all", "any"}

    Returns
    -------
    RemovableHandle

    Raises
    ------
    GradientError
        A Tensor does not require grad.
    ValueError
        Another mode.

    Examples
    --------
    >>> import tapegrad as tg
    >>> x, y = tg.tensor(2.0, requires_grad=True), tg.tensor(3.0, requires_grad=True)
    >>> handle = tg.autograd.graph.register_multi_grad_hook([x, y], print)
    >>> (x * y).backward()
    [tensor(3.), tensor(2.)]
    """
    if mode not in ("all", "any"):
        raise ValueError(f"mode takes 'all' or 'any', found {mode!r}")
    tensors = list(tensors)
    for k, x in enumerate(tensors):
        if not isinstance(x, Tensor) or not x.requires_grad:
            raise GradientError(f"register_multi_grad_hook: Tensor {k} does not require grad")
    hook = callable_hook(fn)
    attached = [hooks_of(x) for x in tensors]
    # weak: what a hook refers to must not keep what it is attached to
    places = [
        (weakref.ref(hooks), None if x._tape is None else (weakref.ref(x._tape), slot(x._at)))
        for x, hooks in zip(map(strip_tangents, tensors), attached, strict=True)
    ]
    seen = _once_a_sweep(hook, places, mode)
    handles = [RemovableHandle(hooks.tensor, lambda g, k=k: seen(k, g)) for k, hooks in enumerate(attached)]
    return _Several(handles)


def _once_a_sweep(hook: Hook, places: list[HookedPlace], mode: str) -> Callable[[int, Tensor], None]:
    """Return what is called with the number of a Tensor and its gradient, and calls a hook of several."""
    token = object()

    def expected(sweep: Any) -> int:
        leaves = sweep.watched()
        alive = [(hooks(), place and (place[0](), place[1])) for hooks, place in places]
        return sum(
            hooks in leaves if place is None else place[0] is not None and sweep.will_run(*place)
            for hooks, place in alive
        )

    def seen(k: int, g: Tensor) -> None:
        sweep = at_work()
        first = token not in sweep.seen
        if mode == "any":
            sweep.seen[token] = True
            if first:
                hook(g)
            return
        if first:
            sweep.seen[token] = [None] * len(places), [expected(sweep)]
        found, missing = sweep.seen[token]
        found[k] = g
        missing[0] -= 1
        if missing[0] == 0:
            hook(found)

    return seen


class _Several(RemovableHandle):
    """Takes several hooks back at once."""

    def __init__(self, handles: list[RemovableHandle]) -> None:
        self._handles = handles

    def remove(self) -> None:
        """Take the hooks back."""
        for handle in self._handles:
            handle.remove()


def resolved(x: Any) -> Tensor:
    """A Tensor for a gradient edge; anything else as it is."""
    return x.handle() if isinstance(x, GradientEdge) else x


def install() -> None:
    """Give Tensor the property that needs this floor."""
    Tensor.grad_fn = property(_grad_fn)  # type: ignore[method-assign, assignment]
