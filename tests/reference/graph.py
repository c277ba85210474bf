"""Arrays with their histories: what is computed, and how a sweep goes back over it.

A `Node` is an array that nothing changes, with the nodes it was computed from and the derivative by each:
a function of the cotangent, written with the same operations, so that a sweep under ``create_graph`` is
one whose nodes are kept.
"""

import itertools
from contextlib import contextmanager

import numpy as np

from tapegrad.errors import AxisError, GraphFreedError, ShapeError

_counter = itertools.count()
mode = [True]  # whether operations are recorded, innermost last
cautious = [False]  # whether a graph counts as freed where any of it was, on the way to an input or not


@contextmanager
def recording(on):
    mode.append(on)
    try:
        yield
    finally:
        mode.pop()


# ---------------------------------------------------------------- nodes


class Node:
    """A value with its history. The array must be nobody else's; it may be a view of another node's."""

    def __init__(self, value, parents=(), reads=False, leaf=None):
        self.value = np.asarray(value)
        self.value.flags.writeable = False
        self.parents = parents
        self.reads = reads  # whether the derivatives read values, which a sweep releases
        self.leaf = self.handle = leaf  # the handle that wants its gradient
        self.requires = leaf is not None or bool(parents)
        self.freed = False
        self.number = next(_counter)

    def __mul__(self, other):
        return elementwise(np.multiply, self, other)

    def __add__(self, other):
        return elementwise(np.add, self, other)

    def __sub__(self, other):
        return elementwise(np.subtract, self, other)

    def __truediv__(self, other):
        return elementwise(np.divide, self, other)

    def __rtruediv__(self, other):
        return elementwise(np.divide, other, self)

    def __neg__(self):
        return elementwise(np.negative, self)

    def __pow__(self, other):
        return elementwise(np.power, self, other)


def made(value, parents, reads=False):
    """A node computed from others, recorded where that is asked for and one of them needs it."""
    parents = [(p, vjp) for p, vjp in parents if isinstance(p, Node) and p.requires] if mode[-1] else []
    return Node(value, parents, reads)


def of(x):
    return x.value if isinstance(x, Node) else x


def numbers(shape):
    return np.arange(int(np.prod(shape))).reshape(shape)


def moved(x, f):
    """Elements of x in other places; f names them, as a function of arrays that moves elements only."""
    places, shape = f(numbers(x.value.shape)), x.value.shape
    return made(f(x.value), [(x, lambda ct: scattered(ct, places, shape))])


def scattered(x, places, shape):
    """Zeros with x added at places."""
    value = np.zeros(int(np.prod(shape)), x.value.dtype)
    np.add.at(value, places, x.value)
    return made(value.reshape(shape), [(x, lambda ct: moved(ct, lambda a: a.reshape(-1)[places]))])


def masked(x, keep):
    return made(np.where(keep, x.value, x.value.dtype.type(0)), [(x, lambda ct: masked(ct, keep))])


def cast(x, dtype):
    """With another dtype; the real part, where that is one of real numbers."""
    if not isinstance(x, Node) or x.value.dtype == dtype:
        return x
    value = x.value if np.dtype(dtype).kind == "c" else x.value.real
    return made(value.astype(dtype), [(x, lambda ct: cast(ct, x.value.dtype))])


def conjugate(x):
    if not isinstance(x, Node) or x.value.dtype.kind != "c":
        return x
    return made(np.conj(x.value), [(x, conjugate)])


def real(x):
    return cast(x, x.value.real.dtype)


def total(x, axes, keepdims=False):
    kept = tuple(1 if d in axes else n for d, n in enumerate(x.value.shape))

    def spread(ct):
        return moved(ct, lambda a: np.broadcast_to(a.reshape(kept), x.value.shape))

    return made(np.sum(x.value, axis=axes, keepdims=keepdims), [(x, spread)])


def fitted(ct, x):
    """A cotangent with the shape and dtype of what it belongs to, before broadcasting."""
    shape = x.value.shape
    extra = ct.value.ndim - len(shape)
    axes = (*range(extra), *(d + extra for d, n in enumerate(shape) if n != ct.value.shape[d + extra]))
    if axes:
        ct = total(ct, axes)
    if ct.value.shape != shape:
        ct = moved(ct, lambda a: a.reshape(shape))
    return cast(ct, x.value.dtype)


def power_by_base(x, y, out):
    return x ** (y - 1) * y


PARTIALS = {
    np.add: (1, 1),
    np.subtract: (1, -1),
    np.negative: (-1,),
    np.multiply: (lambda a, b, out: b, lambda a, b, out: a),
    np.divide: (lambda a, b, out: 1 / b, lambda a, b, out: -out / b),
    np.power: (power_by_base, lambda x, y, out: out * elementwise(np.log, x)),
    np.sin: (lambda x, out: elementwise(np.cos, x),),
    np.cos: (lambda x, out: -elementwise(np.sin, x),),
    np.tanh: (lambda x, out: 1 / elementwise(np.square, elementwise(np.cosh, x)),),
    np.cosh: (lambda x, out: elementwise(np.sinh, x),),
    np.sinh: (lambda x, out: elementwise(np.cosh, x),),
    np.exp: (lambda x, out: out,),
    np.expm1: (lambda x, out: elementwise(np.exp, x),),
    np.log: (lambda x, out: 1 / x,),
    np.log1p: (lambda x, out: 1 / (x + 1.0),),
    np.sqrt: (lambda x, out: 0.5 / out,),
    np.square: (lambda x, out: x * 2.0,),
    np.reciprocal: (lambda x, out: -(out * out),),
    np.absolute: (lambda x, out: x / elementwise(np.absolute, x),),  # no function of `out`, as in torch
}


def elementwise(f, *xs):
    try:
        value = f(*map(of, xs))
    except ValueError as error:
        raise ShapeError(str(error)) from error
    partials = PARTIALS[f]

    def vjp(k):
        def pull(ct):
            if not callable(partials[k]):
                ct = ct if partials[k] == 1 else -ct
            else:
                kind = np.result_type(*map(of, xs)) if f is np.absolute else value.dtype
                partial = partials[k](*[cast(x, kind) for x in xs], out)
                ct = ct * (conjugate(partial) if value.dtype.kind == "c" else partial)
            return fitted(ct, xs[k])

        return pull

    out = made(value, [(x, vjp(k)) for k, x in enumerate(xs)], any(map(callable, partials)))
    return out


def where(condition, a, b):
    try:
        value = np.where(condition, of(a), of(b))
    except ValueError as error:
        raise ShapeError(str(error)) from error

    def chosen(x, on):
        def pull(ct):
            zero = ct.value.dtype.type(0)
            return fitted(where(condition, ct, zero) if on else where(condition, zero, ct), x)

        return x, pull

    return made(value, [chosen(a, True), chosen(b, False)], True)


def product(a, b):
    """The matrix product of vectors and matrices."""
    if not isinstance(a, Node) or not isinstance(b, Node):
        a, b = (x if isinstance(x, Node) else Node(x) for x in (a, b))
    if not 1 <= a.value.ndim <= 2 or not 1 <= b.value.ndim <= 2:
        raise ShapeError("matmul")
    rows = moved(a, lambda x: x[None]) if a.value.ndim == 1 else a
    columns = moved(b, lambda x: x[:, None]) if b.value.ndim == 1 else b
    shape = a.value.shape[:-1] + b.value.shape[1:]
    return moved(_product(rows, columns), lambda x: x.reshape(shape))


def _product(a, b):
    try:
        value = a.value @ b.value
    except ValueError as error:
        raise ShapeError(str(error)) from error

    def left(ct):
        return fitted(_product(ct, moved(conjugate(cast(b, ct.value.dtype)), np.transpose)), a)

    def right(ct):
        return fitted(_product(moved(conjugate(cast(a, ct.value.dtype)), np.transpose), ct), b)

    return made(value, [(a, left), (b, right)], True)


def joined(xs, axis):
    if xs[0].value.ndim == 0:
        raise AxisError("0-d")
    try:
        value = np.concatenate([x.value for x in xs], axis)
    except np.exceptions.AxisError as error:
        raise AxisError(str(error)) from error
    except ValueError as error:
        raise ShapeError(str(error)) from error
    axis %= value.ndim
    parents, at = [], 0
    for x in xs:
        part = (slice(None),) * axis + (slice(at, at + x.value.shape[axis]),)
        parents.append((x, lambda ct, x=x, part=part: cast(moved(ct, lambda a: a[part]), x.value.dtype)))
        at += x.value.shape[axis]
    return made(value, parents)


def running(x, axis):
    def back(ct):
        turned = running(moved(ct, lambda a: np.flip(a, axis)), axis)
        return moved(turned, lambda a: np.flip(a, axis))

    return made(np.cumsum(x.value, axis), [(x, back)])


def mean(x, axes, keepdims):
    count = int(np.prod([x.value.shape[a] for a in axes]))
    kept = tuple(1 if d in axes else n for d, n in enumerate(x.value.shape))

    def spread(ct):
        return moved(ct * (1 / count), lambda a: np.broadcast_to(a.reshape(kept), x.value.shape))

    return made(np.mean(x.value, axis=axes, keepdims=keepdims), [(x, spread)])


def largest(x, axes, keepdims):
    """The maximum, whose derivative ties share evenly."""
    top = np.max(x.value, axis=axes, keepdims=True)
    hit = x.value == top
    share = Node((hit / np.sum(hit, axis=axes, keepdims=True)).astype(x.value.dtype))
    spread = lambda ct: share * moved(ct, lambda a: np.broadcast_to(a.reshape(top.shape), hit.shape))
    return made(np.max(x.value, axis=axes, keepdims=keepdims), [(x, spread)], True)


# ---------------------------------------------------------------- the sweep


def sweep(seeds, sinks, retain, create, check=lambda reached: None):
    """Cotangents of the sinks and of what lies before them, by node."""
    reached, todo = {}, [node for node, _ in seeds]
    while todo:
        node = todo.pop()
        if node.number not in reached:
            reached[node.number] = node
            todo += [p for p, _ in node.parents]
    order = [reached[n] for n in sorted(reached)]
    needed = set()
    for node in order:
        if node in sinks or any(p in needed for p, _ in node.parents):
            needed.add(node)
    active = [n for n in order[::-1] if any(p in needed for p, _ in n.parents)]
    if any(n.freed for n in (order if cautious[0] else active)):
        raise GraphFreedError("a second sweep")
    check(set(order))
    found = {}
    with recording(create):
        for node, ct in seeds:
            found[node] = found[node] + ct if node in found else ct
        for node in active:
            for p, vjp in node.parents if node in found else ():
                if p in needed:
                    part = vjp(found[node])
                    found[p] = found[p] + part if p in found else part
    for node in active:
        node.freed = node.freed or (node.reads and not retain)
    return {n: ct for n, ct in found.items() if n in needed}
