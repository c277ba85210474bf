"""Samples of the ops that act on arrays as a whole: shapes, indexing, reductions, products."""

from typing import Any

import numpy as np

import tapegrad as tg
from tapegrad.core.dispatch import apply
from tapegrad.ops import REGISTRY

from .layouts import (
    EMPTY,
    INTEGER,
    MIXED,
    PLAIN,
    SCALAR,
    SIZE1,
    Absent,
    Case,
    Reason,
    converted,
    drawn,
    integers,
    leaf,
    one_operand,
    other,
    refuses,
    repeated,
)

ANY = (-np.inf, np.inf)


def makes_vectors(scan: Any) -> Absent:
    """NumPy takes a number for a vector of one, so that is what the op gets."""
    made = lambda: scan(tg.tensor(1.0, requires_grad=True), axis=0)
    return Absent(Reason.NEEDS_DIMENSIONS, lambda: made().shape == (1,))


def needs_dimensions(call: Any, error: type[Exception]) -> Absent:
    """No sample with 0-d operands: the call raises."""
    return Absent(Reason.NEEDS_DIMENSIONS, lambda: refuses(call, error))


def recorded_as(out: tg.Tensor, node: str) -> bool:
    return f"<{node}Backward>" in repr(out)


def single(operand: Any, layout: str, dtype: str, random: Any, shape: tuple[int, ...]) -> Any:
    """One operand of an op that has no other."""
    if layout == INTEGER:
        return tg.tensor(integers(random, shape, dtype, 1, 9))
    if layout == SIZE1:
        return repeated(operand)
    return leaf(operand, layout)


def simple(shapes: dict[str, Any], calls: Any) -> Any:
    """Samples of an op of one operand: `calls(layout)` are functions of it; `shapes` by layout."""

    def build(op, layout, dtype, random):
        if layout == MIXED:
            return one_operand(op)
        found = shapes.get(layout, shapes[PLAIN])
        if isinstance(found, Absent):
            return found
        cases = []
        for f in calls(layout):
            x = single(drawn(random, found, ANY, dtype), layout, dtype, random, found)
            cases.append(Case((x,), f, f, f))
            if layout == INTEGER:  # besides integers themselves: an integer among the constants
                cases.append(Case((leaf(drawn(random, found, ANY, dtype)),), f, f, f))
        return cases

    return build


# ---------------------------------------------------------------- reductions and scans


def reduced(function: Any, shapes: dict[str, Any]) -> Any:
    """Samples of a reduction: over some axes, by number or from the end, kept or not."""

    def calls(layout):
        if layout == SCALAR:
            forms = [{}, {"axis": ()}, {"keepdims": True}]
        elif layout == EMPTY:
            forms = [{"axis": 1}, {"axis": -1, "keepdims": True}]
        else:
            forms = [{}, {"axis": 0}, {"axis": np.int64(-1), "keepdims": True}, {"axis": (0, np.int8(2))}]
        return [lambda x, form=form: function(x, **form) for form in forms]

    return simple(shapes, calls)


SOLID = {PLAIN: (2, 3, 2), SCALAR: (), EMPTY: (0, 3)}
THIN = {**SOLID, SIZE1: (1, 2, 3)}  # repeats one row: its elements have to stay apart for max and min


def smooth_logsumexp(x, axis=None, keepdims=False):
    return np.log(np.sum(np.exp(x), axis=axis, keepdims=keepdims))


def logsumexp(op, layout, dtype, random):
    """`tg.logsumexp` against the definition, whose exponentials are in range here."""

    def either(x, **form):
        return tg.logsumexp(x, **form) if isinstance(x, tg.Tensor) else smooth_logsumexp(x, **form)

    cases = reduced(either, SOLID)(op, layout, dtype, random)
    if isinstance(cases, list):
        for case in cases:
            case.ulps = 4
            if not case.moves:
                case.reference = lambda x, f=case.reference: f(x.astype(float))
    return cases


def cumsum(op, layout, dtype, random):
    """Along each axis."""
    calls = [lambda x: np.cumsum(x, axis=np.int64(0)), lambda x: np.cumsum(x, axis=-1), lambda x: x.cumsum(1)]
    shapes = {PLAIN: (2, 3), EMPTY: (0, 3), SCALAR: makes_vectors(np.cumsum)}
    return simple(shapes, lambda layout: calls)(op, layout, dtype, random)


# ---------------------------------------------------------------- shapes


def reshape(op, layout, dtype, random):
    def calls(layout):
        targets = {SCALAR: [(1, 1), (1,)], EMPTY: [(3, 0), (0,)]}.get(layout, [(3, -1), (6,), (1, 2, 3)])
        if layout == INTEGER:
            targets = [np.int64(6), (np.int8(3), 2)]
        return [lambda x, to=to: np.reshape(x, to) for to in targets]

    shapes = {PLAIN: (2, 3), SCALAR: (), EMPTY: (0, 3)}
    return simple(shapes, calls)(op, layout, dtype, random)


def transpose(op, layout, dtype, random):
    scalar = tg.tensor(1.0, requires_grad=True)
    shapes = {
        PLAIN: (2, 3, 2), EMPTY: (0, 3, 2),
        SCALAR: Absent(
            Reason.NEEDS_DIMENSIONS, lambda: recorded_as(np.transpose(scalar), "Select")
        ),
    }  # fmt: skip
    calls = [
        np.transpose, lambda x: np.transpose(x, (1, 0, 2)), lambda x: np.transpose(x, (-1, 0, 1)),
        lambda x: np.swapaxes(x, 0, np.int64(2)), lambda x: np.moveaxis(x, 0, 1),
    ]  # fmt: skip
    return simple(shapes, lambda layout: calls)(op, layout, dtype, random)


def joined(function: Any, shapes: dict[str, Any]) -> Any:
    """Samples of concatenate and stack: two and three parts, of which one may be constant."""

    def build(op, layout, dtype, random):
        found = shapes.get(layout, shapes[PLAIN])
        if isinstance(found, Absent):
            return found
        cases = []
        for axis, parts in found:
            arrays = [drawn(random, s, ANY, dtype) for s in parts]

            def call(*xs, axis=axis):
                return function(xs, axis=axis)

            operands = [leaf(a, layout if layout != INTEGER else PLAIN) for a in arrays]
            if layout == MIXED:
                operands[0] = leaf(converted(arrays[0], dtype))
            if layout == INTEGER:
                operands[-1] = integers(random, parts[-1], dtype)
            if layout == SIZE1 and parts[0][:1] == (2,):
                operands[0] = repeated(arrays[0])
            cases.append(Case(tuple(operands), call, call, call))
        return cases

    return build


def lone(call: Any) -> Any:
    return call(tg.tensor(1.0, requires_grad=True))


CONCATENATE = {
    PLAIN: [(0, [(2, 3), (1, 3)]), (-1, [(2, 1), (2, 3), (2, 2)])],
    SIZE1: [(0, [(2, 3), (1, 3)]), (1, [(2, 1), (2, 1)]), (0, [(1,), (1,)])],
    EMPTY: [(0, [(0, 3), (2, 3)]), (1, [(0, 3), (0, 1)]), (0, [(0,), (0,)])],
    SCALAR: needs_dimensions(lambda: lone(lambda x: np.concatenate([x, x])), ValueError),
}
STACK = {
    PLAIN: [(0, [(2, 3), (2, 3)]), (-1, [(2, 3), (2, 3), (2, 3)]), (1, [(2,), (2,)])],
    SIZE1: [(0, [(2, 1), (2, 1)]), (1, [(1,), (1,)])],
    EMPTY: [(1, [(0, 3), (0, 3)]), (0, [(0,), (0,)])],
    SCALAR: [(0, [(), ()]), (-1, [(), (), ()])],
}


# ---------------------------------------------------------------- indexing


def indexed(indices: dict[str, Any], shapes: dict[str, Any]) -> Any:
    """Samples of an index; an integer that is a Tensor or a NumPy number is one of the constants."""

    def calls(layout):
        found = indices.get(layout, indices[PLAIN])
        return [lambda x, i=i: (x if np.ndim(x) else np.asarray(x))[i] for i in found]

    def build(op, layout, dtype, random):
        if layout == MIXED:
            return one_operand(op)
        found = shapes.get(layout, shapes[PLAIN])
        if isinstance(found, Absent):
            return found
        cases = []
        for index in indices.get(layout, indices[PLAIN]):
            x = single(drawn(random, found, ANY, dtype), layout, dtype, random, found)

            def call(x, index=index):
                return x[index]

            def reference(x, index=index):
                return np.asarray(x)[index]

            cases.append(Case((x,), call, reference, reference))
            if layout == INTEGER:
                array = drawn(random, found, ANY, dtype)
                number = tuple(np.int64(i) if isinstance(i, int) else i for i in index)
                cases.append(Case((leaf(array),), lambda x, i=number: x[i], reference, reference))
        return cases

    return build


GETITEM = {
    PLAIN: [
        (1,), (slice(None), slice(None, None, 2)), (slice(None, None, -1),), (None, Ellipsis, slice(1, 3)),
        (Ellipsis,), (slice(-1, None), -1), (0, slice(2, 0, -2)),
    ],
    SCALAR: [(None,), (None, Ellipsis, None)],
    EMPTY: [(slice(None), 1), (slice(0, 0),), (None,)],
    INTEGER: [(1, slice(None)), (slice(None), -1)],
}  # fmt: skip
ELEMENT = {PLAIN: [(1, 2), (-1, 0), (Ellipsis, 0, 0)], SCALAR: [()], INTEGER: [(1, 1), (0, -1)]}
MASK = np.array([[True, False, True], [False, False, True]])
TAKE = {
    PLAIN: [
        ([0, 0, 1],), (MASK,), (slice(None), [2, 0]), ([0, 1, 1], [1, 1, 1]), (None, [1, 0], Ellipsis, -1),
        ([[0, 1], [1, 1]], slice(None, None, -2)), (np.array([True, False]),), ([],),
    ],
    EMPTY: [(slice(None), [2, 2, 0]), (np.zeros(0, bool),), (np.zeros((0, 3), bool),)],
    INTEGER: [(np.array([0, 0, 1], np.int8),), (1, np.array([1, 0], np.uint8))],
}  # fmt: skip


INTO = {  # shapes, and where in zeros of them an operand goes
    "embed": {
        PLAIN: [
            ((4, 3), slice(1, 3)), ((2, 6), (slice(None), slice(None, None, -2))),
            ((2, 2, 3), (..., 0, slice(None))),
        ],
        SCALAR: [((3,), (..., 1)), ((2, 2), (0, -1, ...)), ((), ()), ((1,), (..., 0))],
        EMPTY: [((2, 3), slice(0, 0)), ((0, 3), Ellipsis)],
    },
    "add_at": {
        PLAIN: [((5, 3), [0, 2]), ((3, 3), [1, 1]), ((2, 2, 3), (slice(None), np.array(0)))],
        SCALAR: [((3,), (np.array(1),))],
        EMPTY: [((2, 3), [])],
        INTEGER: [((np.int64(4), 3), (np.array([1, 1], np.int8),))],
    },
}


def into(op, layout, dtype, random):
    """Into zeros, elements that meet add."""
    places = INTO[op.name].get(layout, INTO[op.name][PLAIN])

    def calls(_):
        found = []
        for shape, index in places:

            def call(x, shape=shape, index=index):
                if isinstance(x, tg.Tensor):
                    return op(x, shape=shape, index=index)
                out = np.zeros(shape, np.result_type(x))
                np.add.at(out, index, x)
                return out

            found.append(call)
        return found

    return simple({PLAIN: (2, 3), SCALAR: (), EMPTY: (0, 3)}, calls)(op, layout, dtype, random)


# ---------------------------------------------------------------- products


def operands(layout: str, dtype: str, random: Any, *arrays: Any) -> list[tuple[Any, ...]]:
    """Operands laid out alike; for integers, each in turn replaced by them."""
    if layout == INTEGER:
        made = [leaf(a) for a in arrays]
        whole = [integers(random, a.shape, dtype) for a in arrays]
        return [(*made[:k], whole[k], *made[k + 1 :]) for k in range(len(arrays))]
    if layout == MIXED:
        return [tuple(leaf(converted(a, dtype) if k else a) for k, a in enumerate(arrays))]
    return [tuple(leaf(a, layout) for a in arrays)]


MATMUL = {
    PLAIN: [
        ((2, 3), (3, 2)), ((3,), (3, 2)), ((2, 3), (3,)), ((3,), (3,)), ((2, 2, 3), (3, 2)),
        ((3,), (2, 3, 2)),
    ],
    SIZE1: [
        ((1, 2, 3), (2, 3, 1)), ((2, 1), (1, 3)), ((2, 1, 1, 2), (3, 2, 1)), ((1,), (1,)),
        ((2, 2, 1), (1,)),
    ],
    EMPTY: [((2, 0), (0, 3)), ((0, 3), (3, 2)), ((0, 2, 3), (3, 2)), ((0,), (0,)), ((2, 0), (0,))],
    SCALAR: needs_dimensions(lambda: lone(lambda x: np.matmul(x, x)), ValueError),
}  # fmt: skip


def matmul(op, layout, dtype, random):
    """Vectors, matrices, batches."""
    found = MATMUL.get(layout, MATMUL[PLAIN])
    if isinstance(found, Absent):
        return found
    pairs = [[drawn(random, s, ANY, dtype) for s in shapes] for shapes in found]
    chosen = [xs for pair in pairs for xs in operands(layout, dtype, random, *pair)]
    return [Case(xs, np.matmul, np.matmul, np.matmul) for xs in chosen]


def convolve(op, layout, dtype, random):
    """Both modes, the first vector longer, as long, or shorter."""
    if layout == EMPTY:
        refused = lambda: np.convolve(tg.tensor([1.0], requires_grad=True), np.zeros(0))
        return Absent(Reason.NO_ELEMENT, lambda: refuses(refused, ValueError))
    found = []
    lengths = {SCALAR: [((), ())], SIZE1: [((1,), (3,)), ((1,), (1,))]}
    for shapes in lengths.get(layout, [((5,), (3,)), ((3,), (3,)), ((2,), (4,))]):
        for xs in operands(layout, dtype, random, *(drawn(random, s, ANY, dtype) for s in shapes)):
            for mode in ("full", "valid"):
                call = lambda x, y, mode=mode: np.convolve(x, y, mode)
                found.append(Case(xs, call, call, call))
    return found


SOLVE = {
    PLAIN: [((3, 3), (3,)), ((2, 2), (2, 3)), ((2, 2, 2), (2, 2, 1)), ((2, 2, 2), (2,))],
    SIZE1: [((1, 2, 2), (3, 2, 1)), ((3, 2, 2), (1, 2, 1)), ((1, 1), (1,))],
    EMPTY: [((0, 2, 2), (0, 2, 1)), ((0, 2, 2), (2,)), ((2, 2), (2, 0))],
    SCALAR: needs_dimensions(lambda: lone(lambda x: np.linalg.solve(x, x)), ValueError),
}


def solve(op, layout, dtype, random):
    """Well-conditioned equations."""
    found = SOLVE.get(layout, SOLVE[PLAIN])
    if isinstance(found, Absent):
        return found
    cases = []
    for a_shape, b_shape in found:
        a, b = drawn(random, a_shape, ANY, dtype), drawn(random, b_shape, ANY, dtype)
        a = (a / 2 + 4 * np.eye(a_shape[-1])).astype(dtype)
        chosen = operands(layout, dtype, random, a, b)
        if layout == INTEGER:
            chosen[0] = (chosen[0][0] + 9 * np.eye(a_shape[-1], dtype=chosen[0][0].dtype), chosen[0][1])
        # the product of inverse and right-hand side is conditioned by the matrix, not by the result
        cases += [Case(xs, np.linalg.solve, np.linalg.solve, np.linalg.solve) for xs in chosen]
    return cases


EINSUM = {
    PLAIN: [
        ("ij,jk->ik", (2, 3), (3, 2)), ("ij->", (2, 3)), ("ij->ji", (2, 3)), ("ij,ij->i", (2, 3), (2, 3)),
        ("ii->i", (3, 3)), ("ii", (2, 2)), ("ij,kl->ik", (2, 3), (2, 2)), ("i,ij,j->", (2,), (2, 3), (3,)),
        ("...i,...j->...", (2, 3), (2, 3)), ("iij,j->i", (2, 2, 3), (3,)), ("ij,ij,ij->j",) + ((2, 2),) * 3,
    ],
    SIZE1: [("ij,ij->ij", (2, 1), (2, 3)), ("ij,jk->ik", (2, 1), (1, 3)), ("ij,j->i", (2, 3), (1,))],
    EMPTY: [("ij,jk->ik", (2, 0), (0, 3)), ("ij->j", (0, 3)), ("ii->i", (0, 0))],
    SCALAR: [(",->", (), ()), ("->", ())],
    MIXED: [("ij,jk->ik", (2, 3), (3, 2)), ("ij,kl->ik", (2, 3), (2, 2))],
}  # fmt: skip


def einsum(op, layout, dtype, random):
    cases = []
    for text, *shapes in EINSUM.get(layout, EINSUM[PLAIN]):

        def plainly(*xs, text=text):
            return np.einsum(text, *xs)

        def call(*xs, text=text, plainly=plainly):
            """The op itself, also where a product of matrices takes its place."""
            inputs, arrow, output = text.partition("->")
            attrs = {"inputs": inputs.split(","), "output": output}
            return apply(REGISTRY["einsum"], xs, attrs) if arrow and "." not in text else plainly(*xs)

        arrays = [drawn(random, s, ANY, dtype) for s in shapes]
        cases += [Case(xs, call, plainly, plainly) for xs in operands(layout, dtype, random, *arrays)
                  if any(isinstance(x, tg.Tensor) for x in xs)]  # fmt: skip
    return cases


# ---------------------------------------------------------------- writing


def direct(name, operands, attrs, layout):
    """A case of an op that `x[index] = value` records on the old and the new content."""

    def call(*xs):
        return apply(REGISTRY[name], xs, attrs)

    def plainly(*xs):
        return REGISTRY[name].forward(*(np.asarray(x) for x in xs), **(attrs or {}))

    return Case(tuple(operands), call, plainly, plainly)


def windows(name):
    """Samples of `view` (one operand) and `assign` (what is written, and what it is written to)."""
    shapes = {
        PLAIN: ((3, 4), [
            (1, (2, 2), (4, 2)), (0, (3, 4), (4, 1)), (7, (), ()), (0, (4, 3), (1, 4)), (11, (3,), (-5,)),
        ]),
        SCALAR: ((), [(0, (), ())]), EMPTY: ((0, 3), [(0, (0, 3), (3, 1)), (0, (0,), (1,))]),
    }  # fmt: skip

    def build(op, layout, dtype, random):
        if name == "view" and layout == MIXED:
            return one_operand(op)
        shape, found = shapes.get(layout, shapes[PLAIN])
        cases = []
        for window in found:
            whole = drawn(random, shape, ANY, dtype)
            if name == "view":
                operands = [single(whole, layout, dtype, random, shape)]
            else:
                part = drawn(random, window[1], ANY, other(dtype) if layout == MIXED else dtype)
                kept = layout if layout not in (INTEGER, MIXED) else PLAIN
                operands = [leaf(part), repeated(whole) if layout == SIZE1 else leaf(whole, kept)]
                if layout == INTEGER:
                    operands[0] = integers(random, window[1], dtype)
            cases.append(direct(name, operands, {"window": window}, layout))
        return cases

    return build


def moved(name):
    """Samples of `rearrange` and `collect`: any places, some twice, some below 0, which are none."""
    shapes = {
        PLAIN: [
            ((3, 4), np.array([5, 0, 11])), ((3, 4), np.array([[1, -1], [8, 1], [-1, -1]])),
            ((2, 2), np.array([[3, 3], [0, 2]])),
        ],
        SCALAR: [((), np.array(0)), ((), np.array(-1))],
        EMPTY: [((0, 3), np.zeros(0, int)), ((0, 3), np.full(2, -1))],
    }  # fmt: skip

    def build(op, layout, dtype, random):
        if layout == MIXED:
            return one_operand(op)
        cases = []
        for shape, places in shapes.get(layout, shapes[PLAIN]):
            attrs = {"places": places, "holes": bool(np.any(places < 0))}
            own = shape
            if name == "collect":
                attrs["shape"], own = shape, places.shape
            operand = single(drawn(random, own, ANY, dtype), layout, dtype, random, own)
            cases.append(direct(name, [operand], attrs, layout))
        return cases

    return build


def scatter(op, layout, dtype, random):
    """At places in any order; at one named twice the last element stays."""
    shapes = {
        PLAIN: ((3, 4), [np.array([5, 0, 11]), np.array([[1, 2], [1, 0]]), np.array([3, 3, 3])]),
        SCALAR: ((), [np.array(0), np.array([0, 0])]), EMPTY: ((0, 3), [np.zeros(0, int)]),
    }  # fmt: skip
    shape, found = shapes.get(layout, shapes[PLAIN])
    cases = []
    for places in found:
        whole = drawn(random, shape, ANY, dtype)
        part = drawn(random, places.shape, ANY, other(dtype) if layout == MIXED else dtype)
        kept = layout if layout not in (INTEGER, MIXED) else PLAIN
        operands = [leaf(part), repeated(whole) if layout == SIZE1 else leaf(whole, kept)]
        if layout == INTEGER:
            operands[0] = integers(random, places.shape, dtype)
        cases.append(direct("scatter", operands, {"places": places}, layout))
    return cases


def part(name, smooth):
    """Samples of a part of a complex number, of real ones."""

    def build(op, layout, dtype, random):
        if layout == MIXED:
            return one_operand(op)
        shape = {SCALAR: (), EMPTY: (0, 3)}.get(layout, (2, 3))
        case = direct(
            name, [single(drawn(random, shape, ANY, dtype), layout, dtype, random, shape)], None, layout
        )
        case.smooth = smooth
        return [case]

    return build


ARRAYS = {
    "real": part("real", lambda x: x), "imag": part("imag", lambda x: 0 * x),
    "conjugate": part("conjugate", lambda x: x),
    "assign": windows("assign"), "view": windows("view"), "scatter": scatter,
    "rearrange": moved("rearrange"), "collect": moved("collect"),
    "sum": reduced(np.sum, SOLID), "mean": reduced(np.mean, SOLID), "max": reduced(np.max, THIN),
    "min": reduced(np.min, THIN), "prod": reduced(np.prod, SOLID), "logsumexp": logsumexp,
    "cumsum": cumsum, "reshape": reshape, "transpose": transpose,
    "concatenate": joined(np.concatenate, CONCATENATE), "stack": joined(np.stack, STACK),
    "getitem": indexed(GETITEM, {PLAIN: (2, 3), SCALAR: (), EMPTY: (0, 3)}),
    "element": indexed(ELEMENT, {
        PLAIN: (2, 3), SCALAR: (),
        EMPTY: Absent(
            Reason.NO_ELEMENT,
            lambda: refuses(lambda: tg.tensor(np.zeros((0, 3)), requires_grad=True)[0, 0], IndexError),
        ),
    }),
    "take": indexed(TAKE, {
        PLAIN: (2, 3), EMPTY: (0, 3),
        SCALAR: Absent(
            Reason.NEEDS_DIMENSIONS,
            lambda: refuses(lambda: tg.tensor(1.0, requires_grad=True)[[0]], IndexError),
        ),
    }),
    "add_at": into, "embed": into, "matmul": matmul, "convolve": convolve, "solve": solve, "einsum": einsum,
}  # fmt: skip
