"""Random programs against the complex step, which knows no derivative rules.

A program is a list of steps on a growing list of values. The same interpreter runs it on Tensors and on
complex arrays, where one value is moved by 1e-30 i along a direction: the imaginary part of the results
is the derivative along it, to full precision.
"""

import contextlib

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tapegrad as tg
from tapegrad.tape import tape as tapes

STEP = 1e-30
SHAPES = [(), (1,), (3,), (1, 3), (2, 1), (2, 3), (0, 3)]
UNARY = {
    "sin": np.sin,
    "cos": np.cos,
    "tanh": lambda a: np.tanh(a * 0.5),
    "exp": lambda a: np.exp(np.sin(a)),
    "log": lambda a: np.log(np.sin(a) + 2.5),
    "sqrt": lambda a: np.sqrt(a * a + 1.0),
    "square": np.square,
    "negative": lambda a: -a,
    "reciprocal": lambda a: np.reciprocal(np.cos(a) + 3.0),
    "power": lambda a: (np.sin(a) + 2.0) ** 1.7,
    "cube": lambda a: np.sin(a) ** 3,
    "expm1": lambda a: np.expm1(np.sin(a)),
    "log1p": lambda a: np.log1p(0.5 * np.cos(a)),
}
BINARY = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: np.sin(a) * b,
    "divide": lambda a, b: a / (np.sin(b) + 2.0),
    "power": lambda a, b: (np.cos(a) + 2.0) ** np.sin(b),
    "hybrid": lambda a, b: 0.5 * a - b * 2.0 + 1.0,
    "where": lambda a, b: np.where(np.arange(3) % 2 == 0, a, b),
    "with an array": lambda a, b: np.array([1.5, -0.5, 2.0]) * a + b,
}
SHAPED = {
    "sum": lambda a: np.sum(a),
    "sum of rows": lambda a: np.sum(a, axis=-1),
    "sum kept": lambda a: np.sum(a, axis=0, keepdims=True),
    "mean": lambda a: np.mean(np.sin(a), axis=-1, keepdims=True),
    "transpose": lambda a: np.transpose(a),
    "flat": lambda a: np.reshape(a, -1),
    "reversed": lambda a: a[..., ::-1],
    "first": lambda a: a[..., 0],
    "part": lambda a: a[..., 1:],
    "row": lambda a: a[:1],
    "new axis": lambda a: a[None],
    "broadcast": lambda a: np.broadcast_to(a, (2, *np.shape(a))),
    "joined": lambda a: np.concatenate([a, a * 2.0], axis=-1),
    "stacked": lambda a: np.stack([a, np.sin(a)]),
    "running": lambda a: np.cumsum(a, axis=-1),
    "gram": lambda a: np.matmul(a, np.transpose(a)),
    "picked": lambda a: a[..., [0, -1, 0]],
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


def apply(step, values):
    kind, name, *places = step
    table = {"unary": UNARY, "binary": BINARY, "shaped": SHAPED}[kind]
    return table[name](*[values[k] for k in places])


def evaluate(program, inputs, moved=None, direction=None):
    """All values of a program; one of them moved on the way, if asked for."""
    values = []
    for k in range(len(inputs) + len(program)):
        value = inputs[k] if k < len(inputs) else apply(program[k - len(inputs)], values)
        if k == moved:
            value = value + STEP * 1j * direction
        values.append(value)
    return values


@st.composite
def programs(draw, longest=14):
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    shapes = draw(st.lists(st.sampled_from(SHAPES), min_size=1, max_size=3))
    inputs = [np.asarray(random.uniform(-1.5, 1.5, shape)) for shape in shapes]
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


def recorded(program, inputs):
    leaves = [tg.tensor(x, requires_grad=True) for x in inputs]
    return leaves, evaluate(program, leaves)


def along(program, inputs, roots, cotangents, moved, direction):
    """Derivative of the sum of cotangent * root along a direction of one value."""
    values = evaluate(program, [np.asarray(x, complex) for x in inputs], moved, direction)
    return sum(np.sum(ct * values[k]).imag for k, ct in zip(roots, cotangents, strict=True)) / STEP


def close(found, expected, scale=1.0, rtol=1e-9):
    assert np.isfinite(found)
    assert abs(found - expected) <= rtol * max(1.0, abs(expected), scale), (found, expected)


SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]
SETTINGS = settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=SLOW)
CAPACITY = st.sampled_from([4, 9, 30, 4096])


@SETTINGS
@given(programs(), CAPACITY)
def test_gradients_of_inputs_and_of_values_on_the_way(drawn, capacity):
    inputs, program, roots, cotangents, targets, random = drawn
    with records_per_tape(capacity):
        _, values = recorded(program, inputs)
        wanted = [values[k] for k in targets]
        arguments = [values[k] for k in roots], wanted, cotangents
        first = tg.grad(*arguments, retain_graph=True, allow_unused=True)
        again = tg.grad(*arguments, retain_graph=True, materialize_grads=True)
        last = tg.grad(*arguments, allow_unused=True)
    for place, x, g, h, i in zip(targets, wanted, first, again, last, strict=True):
        direction = random.uniform(-1, 1, x.shape)
        expected = along(program, inputs, roots, cotangents, place, direction)
        if g is None:
            assert i is None
            assert expected == 0
            assert not h.detach().numpy().any()
            continue
        assert g.shape == x.shape
        assert g.dtype == np.float64
        np.testing.assert_array_equal(g.detach().numpy(), h.detach().numpy())
        np.testing.assert_array_equal(g.detach().numpy(), i.detach().numpy())
        close(np.sum(g.detach().numpy() * direction), expected, np.abs(g.detach().numpy()).sum())


@SETTINGS
@given(programs(), CAPACITY)
def test_backward_fills_leaves_and_what_is_retained(drawn, capacity):
    inputs, program, roots, cotangents, targets, _ = drawn
    with records_per_tape(capacity):
        leaves, values = recorded(program, inputs)
        kept = [values[k] for k in targets if k >= len(inputs)]
        for x in kept:
            x.retain_grad()
        gradients = tg.grad([values[k] for k in roots], leaves + kept, cotangents, True, allow_unused=True)
        tg.backward([values[k] for k in roots], cotangents, retain_graph=True)
        tg.backward([values[k] for k in roots], cotangents)
    for x, g in zip(leaves + kept, gradients, strict=True):
        if g is None:
            assert x.grad is None
        else:
            np.testing.assert_allclose(x.grad.numpy(), 2 * g.numpy(), rtol=1e-12, atol=1e-300)


@SETTINGS
@given(programs(longest=8), CAPACITY)
def test_recorded_sweeps_agree_and_their_derivatives_are_right(drawn, capacity):
    inputs, program, roots, cotangents, _, random = drawn
    directions = [random.uniform(-1, 1, x.shape) for x in inputs]
    with records_per_tape(capacity):
        leaves, values = recorded(program, inputs)
        outputs = [values[k] for k in roots]
        plain = tg.grad(outputs, leaves, cotangents, retain_graph=True, materialize_grads=True)
        first = tg.grad(outputs, leaves, cotangents, create_graph=True, materialize_grads=True)
        slope = sum(np.sum(g * v) for g, v in zip(first, directions, strict=True))
        second = tg.grad(slope, leaves, materialize_grads=True) if slope.requires_grad else None
    for g, h in zip(plain, first, strict=True):
        np.testing.assert_allclose(h.detach().numpy(), g.numpy(), rtol=1e-11, atol=1e-11)

    def slope_at(t):
        moved = [x + t * v for x, v in zip(inputs, directions, strict=True)]
        return sum(along(program, moved, roots, cotangents, k, directions[k]) for k in range(len(inputs)))

    h = 1e-3
    near = (8 * (slope_at(h) - slope_at(-h)) - (slope_at(2 * h) - slope_at(-2 * h))) / (12 * h)
    if second is None:
        close(0.0, near, rtol=1e-7)
        return
    found = sum(np.sum(g.detach().numpy() * v) for g, v in zip(second, directions, strict=True))
    size = sum(np.abs(g.detach().numpy()).sum() for g in second)
    third = abs(slope_at(4 * h) - slope_at(-4 * h)) / (8 * h)
    close(found, near, max(size, third), rtol=1e-6)


@SETTINGS
@given(programs(), st.integers(1, 6))
def test_no_boundary_of_tapes_changes_a_gradient(drawn, short):
    """One long tape and many short ones give the same sums, up to the order of their terms."""
    inputs, program, roots, cotangents, _, _ = drawn
    found = []
    for capacity in (4096, short):
        with records_per_tape(capacity):
            leaves, values = recorded(program, inputs)
            found.append(tg.grad([values[k] for k in roots], leaves, cotangents, materialize_grads=True))
    for g, h in zip(*found, strict=True):
        scale = max(1.0, float(np.max(np.abs(g.numpy()), initial=0.0)))
        np.testing.assert_allclose(h.numpy(), g.numpy(), rtol=1e-11, atol=1e-13 * scale)
