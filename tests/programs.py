"""Random expressions, as lists of steps that run on whatever has NumPy's functions under NumPy's names.

A step is the name of a function in one of three tables and the places of its operands in the growing list
of values. The functions take the namespace `m` to compute in, and stay bounded.
"""

import contextlib

import numpy as np
from hypothesis import strategies as st

from tapegrad.tape import tape as tapes

STEP = 1e-30
SHAPES = [(), (1,), (3,), (1, 3), (2, 1), (2, 3), (0, 3)]
UNARY = {
    "sin": lambda m, a: m.sin(a),
    "cos": lambda m, a: m.cos(a),
    "tanh": lambda m, a: m.tanh(a * 0.5),
    "exp": lambda m, a: m.exp(m.sin(a)),
    "log": lambda m, a: m.log(m.sin(a) + 2.5),
    "sqrt": lambda m, a: m.sqrt(a * a + 1.0),
    "square": lambda m, a: m.square(a),
    "negative": lambda m, a: -a,
    "reciprocal": lambda m, a: m.reciprocal(m.cos(a) + 3.0),
    "power": lambda m, a: (m.sin(a) + 2.0) ** 1.7,
    "cube": lambda m, a: m.sin(a) ** 3,
    "expm1": lambda m, a: m.expm1(m.sin(a)),
    "log1p": lambda m, a: m.log1p(0.5 * m.cos(a)),
}
BINARY = {
    "add": lambda m, a, b: a + b,
    "subtract": lambda m, a, b: a - b,
    "multiply": lambda m, a, b: m.sin(a) * b,
    "divide": lambda m, a, b: a / (m.sin(b) + 2.0),
    "power": lambda m, a, b: (m.cos(a) + 2.0) ** m.sin(b),
    "hybrid": lambda m, a, b: 0.5 * a - b * 2.0 + 1.0,
    "where": lambda m, a, b: m.where(m.arange(3) % 2 == 0, a, b),
    "with an array": lambda m, a, b: m.array([1.5, -0.5, 2.0]) * a + b,
}
SHAPED = {
    "sum": lambda m, a: m.sum(a),
    "sum of rows": lambda m, a: m.sum(a, axis=-1),
    "sum kept": lambda m, a: m.sum(a, axis=0, keepdims=True),
    "mean": lambda m, a: m.mean(m.sin(a), axis=-1, keepdims=True),
    "transpose": lambda m, a: m.transpose(a),
    "flat": lambda m, a: m.reshape(a, (-1,)),
    "reversed": lambda m, a: m.flip(a, (-1,)),
    "first": lambda m, a: a[..., 0],
    "part": lambda m, a: a[..., 1:],
    "row": lambda m, a: a[:1],
    "new axis": lambda m, a: a[None],
    "broadcast": lambda m, a: m.broadcast_to(a, (2, *a.shape)),
    "joined": lambda m, a: m.concatenate([a, a * 2.0], axis=-1),
    "stacked": lambda m, a: m.stack([a, m.sin(a)]),
    "running": lambda m, a: m.cumsum(a, axis=-1),
    "gram": lambda m, a: m.matmul(a, m.transpose(a)),
    "picked": lambda m, a: a[..., [0, -1, 0]],
}


def size_of(shape):
    return int(np.prod(shape))


def usable(name, shape):
    """Whether a step on a value of this shape is defined and stays small."""
    ndim = len(shape)
    if name in (
        "sum of rows",
        "reversed",
        "part",
        "joined",
        "running",
        "sum kept",
        "row",
        "transpose",
        "mean",
    ):
        return ndim > 0 and (name != "mean" or shape[-1] > 0)
    if name in ("first", "picked"):
        return ndim > 0 and shape[-1] > 0
    if name == "gram":
        return ndim == 2 and max(shape) < 10
    return ndim < 4 and size_of(shape) < 60


def apply(step, values, m=np):
    kind, name, *places = step
    table = {"unary": UNARY, "binary": BINARY, "shaped": SHAPED}[kind]
    return table[name](m, *[values[k] for k in places])


def evaluate(program, inputs, moved=None, direction=None, m=np):
    """All values of a program; one of them moved on the way, if asked for."""
    values = []
    for k in range(len(inputs) + len(program)):
        value = inputs[k] if k < len(inputs) else apply(program[k - len(inputs)], values, m)
        if k == moved:
            value = value + STEP * 1j * direction
        values.append(value)
    return values


@st.composite
def programs(draw, longest=14, dtypes=(np.float64,)):
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    shapes = draw(st.lists(st.sampled_from(SHAPES), min_size=1, max_size=3))
    inputs = [np.asarray(random.uniform(-1.5, 1.5, s), draw(st.sampled_from(dtypes))) for s in shapes]
    program, values = [], list(inputs)
    for _ in range(draw(st.integers(1, longest))):
        kind = draw(st.sampled_from(["unary", "binary", "binary", "shaped"]))
        a = draw(st.integers(0, len(values) - 1))
        step = ("unary", draw(st.sampled_from(sorted(UNARY))), a)
        if kind == "binary":
            b = draw(st.integers(0, len(values) - 1))
            name = draw(st.sampled_from(sorted(BINARY)))
            three = [(3,)] if name in ("where", "with an array") else []
            with contextlib.suppress(ValueError):
                if size_of(np.broadcast_shapes(values[a].shape, values[b].shape, *three)) < 200:
                    step = ("binary", name, a, b)
        elif kind == "shaped":
            names = [name for name in sorted(SHAPED) if usable(name, values[a].shape)]
            step = ("shaped", draw(st.sampled_from(names)), a) if names else step
        program.append(step)
        values.append(np.asarray(apply(step, values)))
    roots = draw(st.lists(st.integers(len(inputs), len(values) - 1), min_size=1, max_size=3))
    cotangents = [random.uniform(-1, 1, values[k].shape) for k in roots]
    targets = sorted(draw(st.sets(st.integers(0, len(values) - 1), min_size=1, max_size=4)) | {0})
    return inputs, program, roots, cotangents, targets, random


@contextlib.contextmanager
def records_per_tape(n):
    before, tapes.MAX_RECORDS = tapes.MAX_RECORDS, n
    if tapes.local.tape is not None:
        tapes.close(tapes.local.tape)
    try:
        yield
    finally:
        tapes.MAX_RECORDS = before
