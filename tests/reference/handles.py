"""Handles: memory seen in many ways, writes to it, NumPy's functions, and tapegrad's `grad` and `backward`.

A `Var` sees some elements of a `Memory`, named by their numbers; a write makes a new node for all of the
memory, from which every handle of it takes its elements anew.
"""

import numpy as np

from tapegrad.errors import AxisError, DTypeError, GradientError, ReadOnlyError, ShapeError, UnusedInputError

from .graph import (
    Node,
    cast,
    conjugate,
    elementwise,
    joined,
    largest,
    made,
    masked,
    mean,
    mode,
    moved,
    numbers,
    product,
    real,
    recording,
    running,
    scattered,
    sweep,
    total,
    where,
)


class Memory:
    """What handles that see one another's writes have in common.

    A view of a number is a copy, unless that is an array of NumPy's: where it is `unclear`, nobody writes.
    """

    def __init__(self, whole, base):
        self.whole, self.base = whole, base
        self.handles = [base]
        self.version = 0
        self.unclear = False


class Var(np.lib.mixins.NDArrayOperatorsMixin):
    """A handle, with the interface of `tapegrad.Tensor`."""

    __array_priority__ = 1000.0
    __hash__ = object.__hash__

    def __init__(self, node, memory=None, places=None):
        if memory is None:  # numbers laid out in memory as the values are
            places = np.empty_like(node.value, np.int64, order="K")
            places[...] = numbers(node.value.shape)
            memory = Memory(node, self)
        else:
            memory.handles.append(self)
        self.memory, self.places, self.node = memory, places, node
        self.nodes = []  # of a leaf: one for each value it had
        self.detached = self.retains_grad = False
        self.held = True
        self.grad = None

    @property
    def value(self):
        """A copy of what it sees, as a view of a copy of the memory: with NumPy's strides."""
        owner = self.places if self.places.base is None else self.places.base
        memory = np.empty_like(owner, self.dtype, order="K")
        memory[...] = self.memory.whole.value
        address = lambda a: a.__array_interface__["data"][0]
        first = (address(self.places) - address(owner)) // 8 if self.size else 0
        strides = [s // 8 * memory.itemsize for s in self.places.strides]
        return np.lib.stride_tricks.as_strided(memory.ravel(order="K")[first:], self.shape, strides)

    shape = property(lambda self: self.places.shape)
    ndim = property(lambda self: self.places.ndim)
    size = property(lambda self: self.places.size)
    dtype = property(lambda self: self.memory.whole.value.dtype)
    _version = property(lambda self: self.memory.version)
    requires_grad = property(lambda self: self.current().requires)
    is_leaf = property(lambda self: bool(self.nodes) or not self.requires_grad)

    def current(self):
        """The node of what the handle sees now."""
        if self.node is None:
            memory = self.memory
            with recording(True):
                whole = memory.whole
                places, shape = self.places, whole.value.shape
                seen = made(self.value, [(whole, lambda ct: scattered(ct, places, shape))])
                self.node = whole if self is memory.base else seen
        if self.retains_grad:
            self.node.handle = self
        return self.node

    def requires_grad_(self):
        if not self.requires_grad:
            self.node = Node(self.value, leaf=self)
            self.nodes.append(self.node)
            if self is self.memory.base and not self.memory.whole.requires:
                self.memory.whole = self.node
        return self

    def retain_grad(self):
        if not self.requires_grad:
            raise GradientError("retain_grad")
        self.retains_grad = not self.nodes
        self.current()

    def release(self):
        """Nobody holds the handle any more: it gets no gradient."""
        self.held = False
        if self.retains_grad:
            self.retains_grad = False
            if self.node is not None:
                self.node.handle = None

    def detach(self):
        out = Var(Node(self.value), self.memory, self.places) if self.ndim else Var(Node(self.value))
        out.detached = out.ndim > 0
        return out

    def clone(self):
        return Var(made(np.array(self.value), [(self.current(), lambda ct: ct)]))

    def _view(self, f):
        """Elements in other places, seen in the same memory where NumPy would not copy them."""
        try:
            places = f(self.places)
        except np.exceptions.AxisError as error:
            raise AxisError(str(error)) from error
        except IndexError:
            raise
        except ValueError as error:
            raise ShapeError(str(error)) from error
        node = moved(self.current(), f)
        owner = self.places if self.places.base is None else self.places.base
        if type(places) is not np.ndarray:  # an element; `[..., 0]` is a view
            return Var(node)
        if self.memory.base.ndim == 0 or not (places.base is owner or places is owner):
            out = Var(node)
            if self.memory.base.ndim == 0:
                self.memory.unclear = out.memory.unclear = True
            if not places.flags.writeable:  # a number broadcast: all elements are one in memory
                one = out.places.reshape(-1)[:1].reshape(())
                out.places = np.broadcast_to(one, places.shape)
            return out
        out = Var(node, self.memory, places)
        out.detached = self.detached
        return out

    def __getitem__(self, index):
        return self._view(lambda a: a[index])

    def reshape(self, *shape):
        return self._view(lambda a: a.reshape(*shape))

    def transpose(self, *axes):
        return self._view(lambda a: a.transpose(*axes))

    @property
    def T(self):
        return self._view(lambda a: a.T)

    def sum(self, axis=None, keepdims=False):
        return np.sum(self, axis=axis, keepdims=keepdims)

    # ------------------------------------------------------------ writes

    def __setitem__(self, index, new):
        self._write(index, new)

    def _write(self, index, new):
        memory, whole = self.memory, self.memory.whole
        wants = isinstance(new, Var) and new.requires_grad
        if mode[-1]:
            if self.nodes or (whole.leaf is not None and not self.detached):
                raise GradientError("a leaf")
            if self.detached and wants:
                raise GradientError("detached")
            if whole.requires and not self.detached and not self.requires_grad:
                raise GradientError("a view made under no_grad")
        if not self.places.flags.writeable:
            raise ReadOnlyError("read-only")
        value = np.asarray(new.value if isinstance(new, Var) else new)
        if not np.can_cast(value.dtype, self.dtype, "same_kind"):
            raise DTypeError("dtype")
        part = self.places[index]
        while value.ndim > part.ndim and value.shape[0] == 1:
            value = value[0]
        try:
            values = np.broadcast_to(value, part.shape).astype(self.dtype)
        except ValueError as error:
            raise ShapeError(str(error)) from error
        flat = whole.value.reshape(-1).copy()
        flat[part] = values
        after = np.empty_like(whole.value, order="K")
        after[...] = flat.reshape(whole.value.shape)
        if mode[-1] and not self.detached and (whole.requires or wants):
            owner = np.full(flat.size, -1)
            owner[part] = numbers(part.shape)
            last = np.isin(numbers(part.shape), owner)
            parents = [(whole, lambda ct: masked(ct, owner.reshape(whole.value.shape) < 0))]
            if wants:
                source = new.current()
                shape = (1,) * (part.ndim - source.value.ndim) + source.value.shape
                shape = shape[len(shape) - part.ndim :]

                def pull(ct):
                    taken = masked(moved(ct, lambda a: a.reshape(-1)[part]), last)
                    axes = tuple(d for d, n in enumerate(shape) if n != taken.value.shape[d])
                    taken = total(taken, axes) if axes else taken
                    return cast(moved(taken, lambda a: a.reshape(source.value.shape)), source.value.dtype)

                parents.append((source, pull))
            self._renew_handles(made(after, parents))
        else:
            self._renew_handles(renewed(whole, after))
        memory.version += 1

    def _renew_handles(self, whole):
        """All of the memory has another value and history."""
        memory = self.memory
        memory.whole = whole
        for handle in memory.handles:
            if handle.nodes:  # a leaf, with other values now
                if whole.leaf is handle:
                    handle.node = whole
                else:
                    handle.node = Node(handle.value, leaf=handle)
                handle.nodes.append(handle.node)
            elif handle.detached:
                handle.node = Node(handle.value)
            else:
                if handle.retains_grad and handle.node is not None:
                    handle.node.handle = None
                handle.node = None
                if handle is memory.base:
                    handle.current()

    def copy_(self, new):
        self._write(..., new)
        return self

    fill_ = copy_

    def zero_(self):
        return self.fill_(self.dtype.type(0))

    def is_parameter(self):
        """A leaf that requires grad while nothing is recorded."""
        return self.memory.whole.leaf is not None and not self.detached and not mode[-1]

    def is_number(self):
        """Whether this has no axes, is no view, and was not written to as arrays are."""
        return self.memory.base.ndim == 0 and not self.memory.version

    def add_(self, other):
        return self.copy_(self + other)

    def mul_(self, other):
        return self.copy_(self * other)

    # ------------------------------------------------------------ NumPy's protocols

    def __array_ufunc__(self, ufunc, method, *inputs, out=None, **kwargs):
        assert method == "__call__" and not kwargs
        operands = [node_of(x) for x in inputs]
        if ufunc is np.power and type(inputs[1]) in (int, float) and inputs[1] == 2:
            found = elementwise(np.square, operands[0])
        elif ufunc is np.conjugate:
            found = conjugate(operands[0])
        else:
            found = product(*operands) if ufunc is np.matmul else elementwise(ufunc, *operands)
        if out is None or (out[0].is_number() and not out[0].is_parameter()):
            return Var(found)  # a scalar is immutable: the name is bound to another
        out[0]._write(..., Var(found))
        return out[0]

    def __array_function__(self, function, types, args, kwargs):
        return FUNCTIONS[function](*args, **kwargs)


def renewed(whole, value):
    """All of a memory after a write that is not recorded: its gradient stays what it was."""
    if whole.leaf is not None:
        return Node(value, leaf=whole.leaf)
    with recording(True):
        return made(value, [(whole, lambda ct: ct)])


def node_of(x):
    """A handle's node, a copy of an array, or a Python number, which has no dtype."""
    if isinstance(x, Var):
        return x.current()
    return x if type(x) in (int, float) else Node(np.array(x))


def axes_of(x, axis):
    if axis is None:
        return tuple(range(x.ndim))
    try:
        return np.lib.array_utils.normalize_axis_tuple(axis, x.ndim)
    except np.exceptions.AxisError as error:
        raise AxisError(str(error)) from error


def reduction(f):
    return lambda x, axis=None, keepdims=False: Var(f(x.current(), axes_of(x, axis), keepdims))


def expanded(x, axis):
    return moved(node_of(x), lambda a: np.expand_dims(a, axis))


FUNCTIONS = {
    np.sum: reduction(total),
    np.mean: reduction(mean),
    np.max: reduction(largest),
    np.cumsum: lambda x, axis: Var(running(x.current(), axes_of(x, axis)[0])),
    np.where: lambda c, a, b: Var(where(c, node_of(a), node_of(b))),
    np.concatenate: lambda xs, axis=0: Var(joined([node_of(x) for x in xs], axis)),
    np.stack: lambda xs, axis=0: Var(joined([expanded(x, axis) for x in xs], axis)),
    np.reshape: lambda x, shape: x.reshape(shape),
    np.flip: lambda x, axis: x._view(lambda a: np.flip(a, axis)),
    np.transpose: lambda x, axes=None: x.transpose(axes),
    np.broadcast_to: lambda x, shape: x._view(lambda a: np.broadcast_to(a, shape)),
    np.real: lambda x: Var(real(x.current())) if x.dtype.kind == "c" else x,
    np.shape: lambda x: x.shape,
    np.ndim: lambda x: x.ndim,
}


# ---------------------------------------------------------------- tapegrad's functions


def tensor(data, dtype=None, requires_grad=False):
    out = Var(Node(np.array(data, dtype)))
    return out.requires_grad_() if requires_grad else out


def no_grad():
    return recording(False)


def listed(x):
    return list(x) if isinstance(x, (list, tuple)) else [x]


def rooted(roots, gradients, create):
    gradients = [None] * len(roots) if gradients is None else listed(gradients)
    if len(gradients) != len(roots):
        raise GradientError("number of gradients")
    pairs = []
    for root, given in zip(roots, gradients, strict=True):
        if not root.requires_grad:
            raise GradientError("a root without history")
        if given is None and root.size != 1:
            raise ShapeError("an implicit gradient")
        if given is None and root.dtype.kind == "c":
            raise GradientError("an implicit gradient of a complex number")
        ct = Node(np.ones(root.shape)) if given is None else node_of(given)
        if ct.value.shape != root.shape:
            raise ShapeError("a gradient of another shape")
        if ct.value.dtype.kind == "c" and root.dtype.kind != "c":
            raise DTypeError("a complex gradient of a real number")
        with recording(create):
            ct = cast(ct, root.dtype)
            pairs.append((root.current(), ct if create else Node(ct.value)))
    return pairs


def laid_out(node, like, taken):
    """The gradient of a handle, with its layout in memory where that is dense; not the same node twice."""
    layout = np.empty_like(like.places, node.value.dtype, order="K")
    if layout.strides != tuple(s // 8 * layout.itemsize for s in like.places.strides):
        layout = np.empty(like.shape, node.value.dtype)
    fits, known = node.value.strides == layout.strides, node in taken
    taken.add(node)
    if fits and not known:
        return Var(node)
    layout[...] = node.value
    if not node.requires:
        return Var(Node(layout))
    with recording(True):
        return Var(made(layout, [(node, lambda ct: ct)]))


def added(parts):
    out = parts[0]
    for part in parts[1:]:
        out = out + part
    return out


def grad(outputs, inputs, grad_outputs=None, retain_graph=None, create_graph=False, allow_unused=None,
         materialize_grads=False):  # fmt: skip
    if materialize_grads and allow_unused is False:
        raise ValueError("a contradiction")
    inputs, retain = listed(inputs), create_graph if retain_graph is None else retain_graph
    if not inputs or not all(x.requires_grad for x in inputs):
        raise GradientError("inputs")
    pairs = rooted(listed(outputs), grad_outputs, create_graph)
    wanted = [x.nodes or [x.current()] for x in inputs]

    def check(reached):
        if not (allow_unused or materialize_grads) and any(reached.isdisjoint(nodes) for nodes in wanted):
            raise UnusedInputError("unused")

    found = sweep(pairs, {n for nodes in wanted for n in nodes}, retain, create_graph, check)
    results, taken = [], {node for pair in pairs for node in pair}
    with recording(create_graph):
        for x, nodes in zip(inputs, wanted, strict=True):
            parts = [found[n] for n in nodes if n in found]
            if parts:
                results.append(laid_out(added(parts), x, taken))
            else:
                results.append(tensor(np.zeros(x.shape, x.dtype), None, create_graph)
                               if materialize_grads else None)  # fmt: skip
    return tuple(results)


def backward(tensors, grad_tensors=None, retain_graph=None, create_graph=False, inputs=None):
    retain = create_graph if retain_graph is None else retain_graph
    if inputs is not None and (not inputs or not all(x.requires_grad for x in inputs)):
        raise GradientError("inputs")
    pairs = rooted(listed(tensors), grad_tensors, create_graph)
    for x in inputs or ():
        x.retain_grad()
    handles = {node: x for x in inputs or () for node in x.nodes or [x.current()]}
    sinks = set(handles)
    todo, seen = [node for node, _ in pairs], set()
    while todo:
        node = todo.pop()
        if node not in seen:
            seen.add(node)
            todo += [p for p, _ in node.parents]
    for node in seen:
        if node.handle is not None and (node.leaf is None or inputs is None):
            handles[node] = node.handle
    found = sweep(pairs, sinks or set(handles), retain, create_graph)
    parts = {}
    for node, x in handles.items():
        if node in found and x.held:
            parts.setdefault(x, []).append(found[node])
    taken = {node for pair in pairs for node in pair}
    with recording(create_graph):
        ready = [(x, laid_out(added(cts), x, taken)) for x, cts in parts.items()]
    for x, value in ready:
        if x.grad is None:
            x.grad = value
        elif create_graph or not x.nodes:
            with recording(True):
                x.grad = x.grad + value
        else:
            with recording(not x.grad.is_leaf):
                x.grad.add_(value)
