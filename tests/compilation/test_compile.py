"""What `tapegrad.compile` gives, beside ordinary recording; what it keeps, and lets go of."""

import contextlib
import copy
import gc
import itertools
import pickle
import re
import sys
import threading
import warnings
import weakref
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

import tapegrad as tg
from tapegrad.compilation import kinds
from tapegrad.compilation.events import learner
from tapegrad.compilation.paths import learning
from tapegrad.compilation.paths.learning import MOST_PATHS
from tapegrad.compilation.paths.matching import Matcher
from tapegrad.compilation.programs.reverse import FEW
from tapegrad.compilation.rows.loops import BUFFERED
from tapegrad.core.dispatch import COPIED
from tapegrad.core.expected import expected
from tapegrad.errors import GradientError, MutationError, ShapeError
from tapegrad.func.trees import flatten
from tapegrad.kernels import abi
from tapegrad.kernels.replay.layout import LOOK_BACK, PROGRAM_BLOCK, SHORT_ROW
from tapegrad.scipy import optimize
from tests.tiers import DOUBLES_FIRST, every, thinned

from ..array_programs import BEGIN, END, expression, function_of, point, sizes_for, text_of

SETTINGS = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
STEPS = [
    "m = np.outer(u[:3], w[:4]) * 0.4", "m = np.sin(m) * m", "m = m.T.copy().T * 0.5",
    "m = np.maximum(m, 0.1)", "m = m.reshape((4, 3)).T.copy()", "m = np.concatenate((m[1:], m[:1]))",
    "m = (m[:, :3] @ m) * 0.3", "m = m - np.sum(m, axis=0) / 3.0", "s = np.sum(m * m) * 0.1",
    "s = np.mean(m)", "s = np.max(m[0]) * 0.5", "s = np.linalg.norm(m[0] + 2.0) * 0.2",
    "s = np.prod(m[0] + 1.0) * 0.1", "w = np.roll(u, 2)",
    "t = np.trace(m[:, :3] @ np.ones((3, 3))) * 0.1", "w = u[order]", "s = np.sum(u[w > 0.2]) / n",
    "u = np.cumsum(w) / n", "u = np.clip(u, -0.9, 0.8)", "w = np.where(u > 0.0, u, w)", "w = u.copy()",
    "u = np.flip(w)", "z = z + x * 0.1", "t = np.max(u) * 0.5", "s = np.mean(u * w)", "t = u[1] * w[-1]",
    "u = u * (0.9 if s > t else 1.1)", "s = u[0] * w[1] if np.min(u) > -0.5 else s * t",
]  # fmt: skip


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    """Ways are learned by the calls themselves; tests/compilation/test_background.py has the thread."""
    monkeypatch.setenv("TAPEGRAD_COMPILE", "wait")


def without_writes(random):
    """The text of a program that a program can follow to its end."""
    lines = [
        f"{random.choice('uw')} = {expression(random)}" if random.random() < 0.5 else random.choice(STEPS)
        for _ in range(random.randint(3, 11))
    ]
    return "\n    ".join(["def program(x, y):", *BEGIN, *lines, END])


def texts():
    return st.randoms(use_true_random=False).map(
        lambda random: without_writes(random) if random.random() < 0.7 else text_of(random)
    )


def follows(compiled):
    """Whether there is a way through a function for each kind of arguments that it was called with.

    Where compiled code must not know CPython's structs there are none, and nothing to look for.
    """
    kinds = compiled.explain().split(f"{compiled.__name__}: ")[1:]
    return not abi.native() or all("way 1" in told for told in kinds)


def compare(f, calls, argnums=0, tolerance=1e-11):
    """Calls of a function, each beside one that is recorded: the bits of values, gradients up to rounding."""
    compiled, recorded = tg.compile(f, argnums, wait=True), tg.func.value_and_grad(f, argnums)
    for args in calls:
        with np.errstate(all="ignore"):
            (value, gradient), (wanted, expectation) = compiled.value_and_grad(*args), recorded(*args)
            alone = compiled(*args)
        assert np.asarray(value).tobytes() == np.asarray(wanted).tobytes()
        assert type(value) is type(wanted)
        assert np.asarray(alone).tobytes() == np.asarray(wanted).tobytes()
        pairs = [(gradient, expectation)] if not isinstance(gradient, tuple) else zip(gradient, expectation)
        for a, b in pairs:
            assert type(a) is type(b)
            scale = np.abs(np.nan_to_num(b)).max(initial=1.0)
            np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * scale)
    return compiled


def check_program(text):
    f = function_of(text)
    for n in sizes_for(text):
        (x, y), _ = point(n)
        calls = [((-x if k == 5 else x * (1 + 0.1 * k)) + 0.01 * k, y + 0.05 * k) for k in range(7)]
        compare(f, calls, (0, 1))


@seed(3)
@settings(SETTINGS, max_examples=2)
@given(texts())
def test_random_programs(text):
    check_program(text)


@pytest.mark.slow
@seed(20)
@settings(SETTINGS, max_examples=300)
@given(texts())
def test_many_random_programs(text):
    check_program(text)


# ------------------------------------------------------------ kinds of arguments


def smooth(x):
    return np.sum(np.sin(x) * np.exp(-x * x) + x / (x * x + 1.0))


SIZES = [1, 2, 511, 512, 513, 1023, 1024, 1025, 2049, 8191, 8193, 70_001]


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("kind", DOUBLES_FIRST)
def test_sizes_on_both_sides_of_a_block(n, kind):
    x = np.linspace(-2, 2, n).astype(kind)
    tolerance = 1e-12 if kind is np.float64 else 1e-4
    compiled = compare(smooth, [(x * kind(1 + 0.1 * k),) for k in range(4)], tolerance=tolerance)
    assert follows(compiled)


PRODUCTS = [  # every two of these together
    (left, right, how)
    for i, left in enumerate([(5, 7), (7,), (1, 7), (5, 1), (40, 90), (1, 1)])
    for j, right in enumerate([2, 1, 0])
    for k, how in enumerate(["plain", "transposed", "strided"])
    if (i + j + k) % 3 != 2
]


@pytest.mark.parametrize("kind", DOUBLES_FIRST)
@pytest.mark.parametrize(("left", "right", "how"), every(PRODUCTS, 2))
def test_products_have_the_bits_of_numpys(left, right, how, kind):
    n, random = left[-1], np.random.default_rng(0)
    b = random.normal(size=(n, *[3 - right] * (right > 0))).astype(kind)

    def f(x, b):
        if how == "transposed":
            return np.sum((x.T.copy().T @ b) @ b.T) if right and len(left) == 2 else np.sum(x @ b)
        return np.sum((x @ b) * kind(0.5)) + np.max(x) + np.min(x) * np.prod(x[..., 0]) + np.mean(x)

    x = random.normal(size=(*left[:-1], 2 * n)).astype(kind)
    x = x[..., ::2] if how == "strided" else x[..., :n].copy()
    calls = [(x * kind(1 + 0.1 * k), b + kind(k)) for k in range(7)]
    assert follows(compare(f, calls, tolerance=1e-11 if kind is np.float64 else 1e-4))


REDUCTIONS = itertools.product(
    [np.sum, np.prod, np.max, np.min, np.mean], [2, 3, 8, 129, 1023, 1025, BUFFERED, BUFFERED + 1, 9001]
)


@pytest.mark.parametrize(("function", "n"), every(REDUCTIONS, 4))  # all nine sizes, as 4 does not divide 9
def test_reductions_have_the_bits_of_numpys(function, n):
    x = np.random.default_rng(n).normal(size=n)
    special = np.where(np.arange(n) % 3 == 0, -0.0, 0.0)
    calls = [(x * k + 1.0,) for k in range(5)] + [(special,), (-special,), (np.full(n, -0.0),)]
    for f in (lambda x: function(x), lambda x: function(x * 1.0) * 2.0):
        assert follows(compare(f, calls))
        assert follows(compare(lambda x, f=f: f(x.reshape(1, -1)), calls))


LENGTHS = [*range(1, 18), FEW - 1, FEW, FEW + 1, SHORT_ROW - 1, SHORT_ROW, SHORT_ROW + 1]
LENGTHS += [2 * SHORT_ROW + 1, PROGRAM_BLOCK - 9, PROGRAM_BLOCK, PROGRAM_BLOCK + 1]


@pytest.mark.parametrize("kind", DOUBLES_FIRST)
@pytest.mark.parametrize("n", every(LENGTHS, 4))
def test_sums_along_axes_have_the_bits_of_numpys(n, kind):
    random = np.random.default_rng(n)
    w = random.normal(size=(40, n)).astype(kind)

    def f(x):
        y = x * w + x[0]  # of which derivatives are sums over rows
        return np.sum(np.sum(y, axis=-1) * np.sum(x, -1)) + np.sum(np.sum(y[None] * y, 1)) + np.sum(x[:, :1])

    x = random.normal(size=(40, n)).astype(kind)
    special = np.where(random.random((40, n)) < 0.5, -0.0, 0.0).astype(kind)
    calls = [(x * kind(1 + k),) for k in range(5)] + [(special,), (-abs(special),)]
    calls.append((np.where(random.random((40, n)) < 0.2, kind(np.inf), x),))
    tolerance = 1e-12 if kind is np.float64 else 1e-4
    assert follows(compare(f, calls, tolerance=tolerance))


def test_arrays_where_numbers_were_given():
    """They are compared by what they are before by ==, which gives arrays."""
    mask = np.array([True, False, True])

    def masked(x, k):
        return np.sum(np.sum(x, where=mask if k % 4 == 3 else True))

    def rolled(x, k):
        return np.sum(np.roll(x, np.array([1, 1]) if k % 4 == 3 else 2, (0, 0) if k % 4 == 3 else 0) * x)

    for f in (masked, rolled):
        compare(f, [(np.array([1.0, 2.0, 4.0]) + k, k) for k in range(12)])


@pytest.mark.parametrize("shape", [(), (1,), (3, 4), (2, 0), (2, 3, 4)])
def test_shapes(shape):
    x = np.arange(float(np.prod(shape))).reshape(shape) * 0.1
    compare(lambda x: np.sum(x * x) + np.sum(np.sin(x)), [(x + k,) for k in range(4)])


@pytest.mark.parametrize("name", ["hvp", "vhp"])
def test_products_with_the_hessian_name_themselves_in_errors(name):
    x, product = np.ones(3), getattr(tg.func, name)(tg.compile(smooth))
    np.testing.assert_allclose(product(x, x), tg.func.hvp(smooth)(x, x), rtol=1e-12)
    for _ in range(4):  # recorded, and by a program
        with pytest.raises(ShapeError, match=f"^{name}: direction"):
            product(x, np.ones(2))
        product(x, x)
    with pytest.raises(TypeError, match=f"^{name}: "):
        product()


def test_a_number_is_a_number():
    compiled = compare(lambda x: np.sin(x) * x + 2.0 / x, [(0.5 + k,) for k in range(4)])
    assert follows(compiled)
    assert type(compiled(1.0)) is type(compiled.grad(1.0)) is float


def test_the_only_call_of_a_kind_is_told_of():
    """Nothing is made for a program before the second."""
    compiled = tg.compile(lambda x: np.sum(x["a"] if type(x) is dict else x))
    leaf = tg.tensor([1.0, 2.0])
    for x in (np.ones(3), 2.0, {"a": np.ones((2, 1), np.float32), "b": 1j}, leaf, np.float32(2)):
        compiled(x)
    kinds = ["float64 (3,)", "float64", "float32 (2, 1), complex128", "float64 (2,)", "float32"]
    assert [kind.arguments for kind in compiled.explain().kinds] == kinds * abi.native()
    assert not compiled._kinds
    compiled(leaf)
    assert [kind.total for kind in compiled.explain().kinds] == [2, 1, 1, 1, 1] * abi.native()


def test_layouts_are_kinds():
    a = np.arange(12.0).reshape(3, 4)
    f = lambda x: np.sum(np.sin(x) @ np.arange(x.shape[1]))
    other = np.asfortranarray(a)
    compiled = compare(f, [(x,) for x in (a, a, a, other, a, other, other, a.T, a.T, a.T)])
    assert not abi.native() or len(compiled.explain().split("calls with")) == 4


@dataclass
class Parameters:
    weights: np.ndarray
    bias: float


def test_layouts_of_plain_arrays_are_ways():
    """What is computed of one in another order is in that order, and summed up so."""
    a = np.random.default_rng(0).normal(size=(2, 5000)) * 1e3
    compiled = tg.compile(lambda x, a: np.sum(a * x))
    recorded = tg.func.value_and_grad(compiled.plain)
    for k in range(12):
        given = (np.asfortranarray(a), a, np.repeat(a, 2, axis=1)[:, ::2])[k // 2 % 3]
        assert compiled.value_and_grad(0.3, given)[0] == recorded(0.3, given)[0]
    assert follows(compiled)


def test_trees():
    def f(p, x, q):
        return np.sum(np.tanh(x @ p.weights + p.bias)) * q["scale"][0]

    x = np.arange(6.0).reshape(2, 3)
    for argnums in (0, 2, (0, 2)):
        compiled, recorded = tg.compile(f, argnums, wait=True), tg.func.value_and_grad(f, argnums)
        for k in range(4):
            args = Parameters(np.arange(3.0) * 0.1 * k, 0.5), x + k, {"scale": [1.0 + k]}
            assert repr(compiled.value_and_grad(*args)) == repr(recorded(*args))
        assert follows(compiled)


# ------------------------------------------------------------ second derivatives


def same_products(f, calls, argnums=0, tolerance=1e-12):
    """Hessians times directions, each beside one that is recorded; why there is no program, if so."""
    compiled, recorded = tg.compile(f, argnums), tg.func.hvp(f, argnums)
    for *args, v in calls:
        found, wanted = compiled.hvp(*args, v), recorded(*args, v)
        pairs = zip(found, wanted, strict=True) if isinstance(argnums, tuple) else [(found, wanted)]
        for a, b in pairs:
            assert type(a) is type(b)
            np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * np.abs(b).max(initial=1.0))
    if not abi.native():
        return ""
    ((_, kind),) = compiled._kinds.items()
    return kind.matcher.paths[0].reason


def joined(x):
    m = np.outer(x, x)[1:].T
    return np.sum(np.concatenate([m[0], m[1] * x[0]]) ** 2) + np.mean(m @ np.ones((3, 2))) + np.prod(x)


SECOND = [
    lambda x: np.sum(np.sin(x) * x**3),
    lambda x: np.sum(np.tanh(x @ np.ones((4, 4)) * 0.3) ** 2) / np.sum(np.exp(x)),
    lambda x: np.log(np.sum(np.exp(x - np.max(x)))) + np.std(x) + np.linalg.norm(x + 3.0),
    lambda x: np.sum(np.where(x > 0, x * x, np.sin(x))) + np.sum(np.abs(x) ** 1.5 + np.maximum(x, 0.2) ** 2),
    lambda x: np.sum(x) * 2.0,
    lambda x: x[1] * x[2] ** 2 + np.sum(x[::-1] * x),
    joined,
]


@pytest.mark.parametrize("f", SECOND)
@pytest.mark.parametrize("kind", DOUBLES_FIRST)
def test_products_with_the_hessian_are_programs(f, kind):
    x, v = np.array([0.3, 0.7, -0.2, 0.5], kind), np.arange(4).astype(kind)
    calls = [(x * kind(1 + 0.1 * k), v - kind(k)) for k in range(5)]
    assert not same_products(f, calls, tolerance=1e-12 if kind is np.float64 else 1e-4)


@pytest.mark.parametrize("n", [511, 513, 1023, 1025, 20_001])
def test_products_with_the_hessian_of_large_arguments(n):
    x, v = np.linspace(-1, 1, n), np.linspace(1, 2, n)
    assert not same_products(smooth, [(x * (1 + 0.1 * k), v - k) for k in range(4)])


def test_products_with_the_hessian_by_several_arguments():
    f = lambda p, x, c: np.sum(np.tanh(x @ p["a"] + p["b"]) ** 2) * c
    x = np.arange(6.0).reshape(2, 3) * 0.1
    for argnums in (0, 1, (0, 1), (2, 0)):
        calls = []
        for k in range(4):
            p = {"a": np.arange(3.0) * 0.1 * k, "b": 0.5}
            direction = {0: {"a": np.ones(3), "b": 2.0 + k}, 1: x - 1.0, 2: 0.5}
            v = tuple(direction[q] for q in argnums) if isinstance(argnums, tuple) else direction[argnums]
            calls.append((p, x + k, 1.0 + k, v))
        compiled, recorded = tg.compile(f, argnums), tg.func.hvp(f, argnums)
        for args in calls:
            found = np.concatenate([np.ravel(leaf) for leaf in leaves_of(compiled.hvp(*args))])
            wanted = np.concatenate([np.ravel(leaf) for leaf in leaves_of(recorded(*args))])
            np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-13)
        assert follows(compiled)


def leaves_of(tree):
    if isinstance(tree, dict):
        return [leaf for part in tree.values() for leaf in leaves_of(part)]
    return [leaf for part in tree for leaf in leaves_of(part)] if isinstance(tree, tuple) else [tree]


def test_products_with_the_hessian_have_the_numbers_of_their_calls():
    """Two ways that begin alike, with numbers that change."""
    scale = [1.0]

    def f(x, k):
        y = np.sin(x) * (3.0 if k % 2 else 2.0)
        y = y * y if k % 2 else y
        return np.sum(y * np.array([scale[0], 1.0])) * scale[0]

    compiled = tg.compile(f)
    for k in range(8):
        scale[0] = 1.0 + k
        found = compiled.hvp(np.array([0.3, 0.7]), k, np.array([1.0, 2.0]))
        wanted = tg.func.hvp(f)(np.array([0.3, 0.7]), k, np.array([1.0, 2.0]))
        np.testing.assert_allclose(found, wanted, rtol=1e-13)


def test_a_refused_direction_ends_the_call_as_an_error_does():
    """What the function kept has its values, and compiled code expects nothing more."""
    kept = []

    def f(x):
        kept.append(np.sin(x))
        return np.sum(kept[-1] * x)

    compiled = tg.compile(f)
    for k in range(6):
        x = np.array([0.3, 0.7]) + k
        with pytest.raises(ValueError) if k % 2 else contextlib.nullcontext():
            compiled.hvp(x, np.ones(3 if k % 2 else 2))
    for k, y in enumerate(kept):
        np.testing.assert_array_equal(y.detach().numpy(), np.sin(np.array([0.3, 0.7]) + k))
    del compiled
    gc.collect()
    taken = [np.full(n, -1) for n in range(200)]  # the memory of what was expected
    x = tg.tensor([1.0, 2.0], requires_grad=True)
    assert tg.grad(np.sum(np.sin(x) * x), x)[0].shape == (2,) and len(taken) == 200


@pytest.mark.skipif(not abi.native(), reason="nothing is learned from calls")
def test_after_calls_in_a_row_that_leave_a_program_none_is_followed():
    kept = []

    def f(x):
        kept.append(np.sin(x))
        return np.sum(kept[-1] * x)

    compiled = tg.compile(f, wait=True)
    while "calls in a row did what a program cannot do" not in compiled.explain():
        compiled.value_and_grad(np.ones(2))
        assert len(kept) < kinds.MOST_IN_VAIN + 8
    assert len(kept) > kinds.MOST_IN_VAIN


def test_arguments_that_are_arrays_now_are_compared_by_what_they_are():
    """They are no truth values, as which tuples and dicts would compare them with numbers."""

    def f(x, low, where):
        return np.sum(np.clip(x, low, None) * 2.0) + np.sum(x, where=where)

    def given(k):
        low, where = (0.1, True) if k < 4 else (np.array([0.2, 0.4]), np.array([True, False]))
        return np.array([0.3, 0.1]) * (k + 1), low, where

    compiled, recorded = tg.compile(f, wait=True), tg.func.value_and_grad(f)
    for k in range(8):
        value, gradient = compiled.value_and_grad(*given(k))
        assert value == recorded(*given(k))[0]
        np.testing.assert_array_equal(gradient, recorded(*given(k))[1])


ARRAY, HALF = np.linspace(1.0, 2.0, 3), np.linspace(0, 1, 3).astype("f4")
CALLED = [  # in all but one way the same
    lambda x, y: np.concatenate([ARRAY, x, y]), lambda x, y: np.concatenate((ARRAY, x, y)),
    lambda x, y: np.concatenate([ARRAY, y, x]), lambda x, y: np.concatenate([x, ARRAY, y]),
    lambda x, y: np.concatenate([ARRAY[::-1], x, y]), lambda x, y: np.concatenate([ARRAY * 2.0, x, y]),
    lambda x, y: np.concatenate([HALF, x, y]), lambda x, y: np.concatenate([ARRAY[:2], x, y]),
    lambda x, y: np.concatenate([ARRAY, x]), lambda x, y: np.concatenate([ARRAY, x, y, ARRAY]),
    lambda x, y: np.concatenate([ARRAY, x, y], 0), lambda x, y: np.concatenate([ARRAY, x, y], axis=0),
    lambda x, y: np.concatenate([ARRAY, x, y], -1), lambda x, y: np.stack([ARRAY, x, y]),
    lambda x, y: np.concatenate([ARRAY.tolist(), x, y]),
    lambda x, y: np.concatenate([tg.tensor(ARRAY), x, y]), lambda x, y: np.hstack([ARRAY, x, y]),
    lambda x, y: np.dot(x, y), lambda x, y: np.dot(y, x), lambda x, y: np.dot(ARRAY, y),
    lambda x, y: np.sum(x), lambda x, y: np.sum(x, 0), lambda x, y: np.sum(x, axis=0),
    lambda x, y: np.sum(x, None), lambda x, y: np.sum(y), lambda x, y: np.prod(x),
    lambda x, y: np.outer(ARRAY, x), lambda x, y: np.outer(x, ARRAY),
    lambda x, y: np.where(ARRAY > 1.2, x, y), lambda x, y: np.where(ARRAY > 1.8, x, y),
    lambda x, y: np.where(ARRAY > 1.2, y, x), lambda x, y: np.where(x > 0.2, x, y),
    lambda x, y: np.where(x > 0.2, x, 0.5), lambda x, y: np.where(x > 0.2, x, -0.5),
    lambda x, y: np.where(x > 0.2, 1, y), lambda x, y: np.where(x > 0.2, y, True),
    lambda x, y: np.where(x > 0.2, y, np.float32(0.1)), lambda x, y: np.where(x > 0.2, 2, 0.5) * y,
    lambda x, y: np.clip(x, 0.1, 0.5), lambda x, y: np.clip(x, 0, 1), lambda x, y: np.clip(x, -1, None),
    lambda x, y: np.clip(x, a_min=0, a_max=1), lambda x, y: np.sum(x, keepdims=True), lambda x, y: np.mean(x),
    lambda x, y: np.sum(x, axis=-1), lambda x, y: np.sum(x, axis=0, keepdims=True), lambda x, y: np.max(x),
    lambda x, y: np.sum(x, axis=(0,)), lambda x, y: np.sum(x, dtype=float), lambda x, y: np.sum(x, None),
    lambda x, y: np.roll(x, 1), lambda x, y: np.roll(x, 2), lambda x, y: np.roll(y, 1),
    lambda x, y: np.dot(np.outer(ARRAY, ARRAY), y), lambda x, y: np.dot(np.outer(ARRAY, HALF), y),
    lambda x, y: np.expand_dims(x, 0), lambda x, y: np.expand_dims(x, 1), lambda x, y: np.flip(x),
    lambda x, y: np.ravel(np.stack((x, y))), lambda x, y: np.ravel(np.stack((x, y)), "F"),
    lambda x, y: np.swapaxes(np.stack((x, y)), 0, 1), lambda x, y: np.moveaxis(np.stack((x, y)), 0, -1),
    lambda x, y: np.rot90(np.stack((x, y)), 2), lambda x, y: np.rot90(np.stack((x, y)), 3),
]  # fmt: skip


@pytest.mark.parametrize("first", every(range(len(CALLED)), 12))
def test_calls_that_differ_in_one_argument(first, monkeypatch):
    """Each is compared with the way of the first, which alone is known, and leaves it if it is another."""
    monkeypatch.setattr(learning, "MOST_PATHS", 1)
    monkeypatch.setattr(kinds, "MOST_IN_VAIN", sys.maxsize)

    def f(x, k):
        y = x * x
        found = CALLED[k](y, x)
        return np.sum(np.cos(found) * np.linspace(0.5, 1.5, found.size).reshape(found.shape))

    compiled, recorded, x = tg.compile(f), tg.func.value_and_grad(f), np.array([0.3, -0.7, 1.1])
    for k in [first] * 3 + [*range(len(CALLED))] + [first] * 2:
        (value, gradient), (wanted, expected) = compiled.value_and_grad(x, k), recorded(x, k)
        assert value == wanted, k
        np.testing.assert_allclose(gradient, expected, rtol=1e-13)
        x = x + 0.01
    assert follows(compiled)


@pytest.mark.skipif(not abi.native(), reason="a portable build compares no calls")
@pytest.mark.parametrize(
    "function",
    [
        lambda x, k: np.sum(x, axis=0, keepdims=True) * np.mean(x),
        lambda x, k: np.where(x > 0.1 * k, x, 0.5 * k) + np.clip(x, -k, 0.1),
        lambda x, k: np.roll(np.dot(np.outer(np.full(3, k), np.arange(3.0)), np.flip(x)), 1) * np.prod(x),
        lambda x, k: np.concatenate([x, np.full(2, k, float), x * x]) * np.max(np.stack((x, x)), (0, 1)),
    ],
)
def test_calls_are_compared_in_compiled_code(function):
    """Axes, numbers, lists and small arrays among the arguments come to no code in Python."""

    def f(x, k):
        y = function(x, k)
        return np.sum(y * y)

    compiled, x = tg.compile(f, wait=True), np.array([0.3, -0.7, 1.1])
    for k in range(4):
        compiled.value_and_grad(x, k)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Matcher, "call", lambda self, function, *_: pytest.fail(f"{function.__name__} came"))
        found = [compiled.value_and_grad(x * k, k) for k in range(1, 5)]
    for k, (value, gradient) in enumerate(found, 1):
        wanted, expected = tg.func.value_and_grad(f)(x * k, k)
        assert value == wanted
        np.testing.assert_allclose(gradient, expected, rtol=1e-14)


def test_the_protocol_of_functions_by_hand():
    """As by NumPy, or refused, whatever the arguments are."""

    def f(x):
        y = x * 2.0
        for wrong in ((np.sum,), (np.sum, (), 1, {}), (np.sum, (), (y,), None), (1, 2, 3, 4, 5)):
            with pytest.raises((TypeError, AttributeError)):
                y.__array_function__(*wrong)
        y.__array_function__(np.sum, (), [y], {})  # a list is as a tuple to a call
        return y.__array_function__(np.sum, (), (y,), {})

    compiled = tg.compile(f, wait=True)
    for x in (np.ones(3), np.ones(3), np.arange(3.0)):
        assert compiled.value_and_grad(x)[0] == 2.0 * np.sum(x)


def test_arrays_in_calls_are_those_of_the_call():
    compiled = tg.compile(lambda x, a: np.sum(np.concatenate([a, x * 2.0]) ** 2))
    recorded = tg.func.value_and_grad(compiled.plain)
    for k in range(12):
        a = np.array([float(k), -0.0, np.nan if k == 7 else 1.0])
        (value, gradient), (wanted, expected) = (
            g(np.ones(2) * k, a) for g in (compiled.value_and_grad, recorded)
        )
        np.testing.assert_array_equal(value, wanted)
        np.testing.assert_allclose(gradient, expected)
    assert follows(compiled)


INDICES = [
    np.array([0, 2, 2]), np.array([2, 0, 2]), np.array([0, 2, -2]), np.array([0, 2, 2], "i4"),
    np.array([0, 2]), np.array([[0, 2, 2]]), [0, 2, 2], np.array([True, False, True, True]),
    np.array([True, True, False, True]),
    (slice(None), np.array([0, 1, 1])), (slice(None), np.array([[0, 1], [1, 1]])), (np.array([0, 1]), 1),
    (slice(1, 3), np.array([0, 1, 1])), (np.array([0, 3]), np.array([1, 0])), (..., np.array([1, 0])),
]  # fmt: skip


@pytest.mark.parametrize("kind", DOUBLES_FIRST)
@pytest.mark.parametrize("first", every(range(len(INDICES)), 7))
def test_parts_by_arrays(first, kind):
    def f(x, index):
        y = np.exp(x)
        part = y[index]
        return np.sum(part * part) + np.sum(np.take(y, [1, 1, 3], axis=0)) + np.sum(y[np.array([3, 0])])

    compiled, recorded = tg.compile(f), tg.func.value_and_grad(f)
    x = np.linspace(-1.0, 1.0, 8).reshape(4, 2).astype(kind)
    for index in [INDICES[first]] * 5 + [index for index in INDICES for _ in range(2)] + [INDICES[first]] * 2:
        (value, gradient), (wanted, expected) = compiled.value_and_grad(x, index), recorded(x, index)
        assert value == wanted and gradient.dtype == kind
        np.testing.assert_allclose(gradient, expected, rtol=8 * np.finfo(kind).eps)
        x = x * kind(1.01)
    for call in (compiled.value_and_grad, recorded):
        with pytest.raises(IndexError):
            call(x, np.array([0, 4]))
    assert follows(compiled)


def test_where_a_norm_has_its_kink_the_product_is_recorded():
    f = lambda x: np.linalg.norm(x) ** 2 + np.sum(x)
    x, v = np.array([0.3, 0.7]), np.array([1.0, 2.0])
    same_products(f, [(x, v), (x, v), (x, v), (x * 0.0, v), (x, v), (x * 0.0, v)])


def test_a_direction_with_a_history_keeps_it():
    compiled = tg.compile(smooth)
    for _ in range(4):
        results = []
        for hvp in (compiled.hvp, tg.func.hvp(smooth)):
            v = tg.tensor([1.0, 2.0, 3.0], requires_grad=True)
            product = hvp(np.array([0.1, 0.5, 0.9]), v * v)
            results.append((product.detach().numpy(), tg.grad(np.sum(product), v)[0].numpy()))
        np.testing.assert_allclose(*results, rtol=1e-13)
        assert type(compiled.hvp(np.ones(3), v.detach())) is np.ndarray


def test_directions_are_refused_as_ever():
    compiled, recorded = tg.compile(smooth), tg.func.hvp(smooth)
    for _ in range(4):
        compiled.hvp(np.ones(3), np.ones(3))
        for args in (
            (),
            (np.ones(3),),
            (np.ones(3), np.ones(2)),
            (np.ones(3), "a"),
            (np.ones(3), np.ones(3) * 1j),
        ):
            with pytest.raises((TypeError, ValueError)) as found:
                compiled.hvp(*args)
            with pytest.raises((TypeError, ValueError)) as wanted:
                recorded(*args)
            assert str(found.value) == str(wanted.value)


def test_tangents():
    f = lambda x, c: np.sin(x) * c
    compiled = tg.compile(f)
    for k in range(4):
        found = compiled.jvp(np.array([0.3, 0.7]), 2.0 + k, np.array([1.0, 2.0]))
        wanted = tg.func.jvp(f)(np.array([0.3, 0.7]), 2.0 + k, np.array([1.0, 2.0]))
        np.testing.assert_array_equal(found, wanted)


# ------------------------------------------------------------ where functions are taken


def test_derivatives_of_compiled_functions_are_those_of_their_programs():
    f = lambda x, a=1.0: np.sum(np.sin(x) * x) * a
    runs = []
    compiled = tg.compile(lambda x, a=1.0: runs.append(1) or f(x, a))
    x, v = np.array([0.5, 1.0]), np.array([1.0, 2.0])
    for what, directed in (("value_and_grad", ()), ("grad", ()), ("hvp", (v,)), ("vhp", (v,))):
        transform, recorded = getattr(tg.func, what)(compiled), getattr(tg.func, what)(f)
        assert transform.__name__ == f"{what}(<lambda>)"
        for k in range(4):
            found, wanted = transform(x + k, *directed), recorded(x + k, *directed)
            for a, b in zip(flat(found), flat(wanted), strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-14)
    assert len(runs) == 16
    assert "16 calls" in compiled.explain() or not abi.native()
    both = tg.func.grad(compiled, (0, 1))
    for k in range(4):
        for a, b in zip(both(x, 2.0 + k), tg.func.grad(f, (0, 1))(x, 2.0 + k), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-14)
    assert tg.func.grad(compiled, (0, 1)).__name__ == both.__name__
    with pytest.raises(ValueError, match="grad: argnums"):
        tg.func.grad(compiled, -1)


def flat(x):
    return [part for y in x for part in flat(y)] if isinstance(x, tuple) else [x]


def test_other_derivatives_of_compiled_functions_are_those_of_the_function():
    f = lambda x: np.sin(x) * x[0]
    compiled, x = tg.compile(f), np.array([0.5, 1.0])
    for _ in range(3):
        compiled(x)
    for what in ("jacobian", "jacfwd", "jacrev"):
        np.testing.assert_array_equal(getattr(tg.func, what)(compiled)(x), getattr(tg.func, what)(f)(x))
    np.testing.assert_array_equal(tg.func.jvp(compiled)(x, x), tg.func.jvp(f)(x, x))
    np.testing.assert_array_equal(tg.func.vjp(compiled)(x)[1](x), tg.func.vjp(f)(x)[1](x))
    np.testing.assert_array_equal(tg.func.linearize(compiled)(x)[1](x), tg.func.linearize(f)(x)[1](x))
    g = tg.compile(lambda x: np.sum(f(x)))
    np.testing.assert_array_equal(tg.func.hessian(g)(x), tg.func.hessian(g.plain)(x))
    aux = tg.func.grad(tg.compile(lambda x: (np.sum(x * x), x[0])), has_aux=True)(x)
    np.testing.assert_array_equal(aux[0], 2 * x)


def test_solvers_take_compiled_functions():
    runs = []

    def rosenbrock(x, a=1.0):
        runs.append(1)
        return np.sum(100.0 * (x[1:] - x[:-1] ** 2) ** 2 + (a - x[:-1]) ** 2)

    x, compiled = np.linspace(0.1, 0.9, 5), tg.compile(rosenbrock)
    for method in ("BFGS", "L-BFGS-B", "Newton-CG", "trust-exact", "Nelder-Mead"):
        counts, results = [], []
        for f in (compiled, rosenbrock):
            runs.clear()
            results.append(optimize.minimize(f, x, args=(1.0,), method=method).x)
            counts.append(len(runs))
        np.testing.assert_allclose(*results, rtol=1e-6)
        assert abs(counts[0] - counts[1]) <= 0.02 * counts[1]
    for x0 in (1.5, np.array([1.5, 2.5])):
        cube = tg.compile(lambda x: x**3 - 2.0)
        np.testing.assert_allclose(optimize.newton(cube, x0), 2.0 ** (1 / 3))
    w = tg.tensor(1.0, requires_grad=True)
    found = optimize.minimize(tg.compile(lambda x: np.sum((x - w) ** 2)), x)
    np.testing.assert_allclose(tg.grad(np.sum(found.x), w)[0], x.size)


# ------------------------------------------------------------ arguments that stay as they are


def test_arguments_that_are_not_differentiated_are_those_of_the_call():
    compiled = tg.compile(lambda x, a, flag=False: np.sum(x * a) if flag else np.sum(x + a))
    for k in range(8):
        a = np.full(3, float(k))
        value, g = compiled.value_and_grad(np.ones(3), a, flag=k % 2 == 0)
        np.testing.assert_array_equal(g, a if k % 2 == 0 else np.ones(3))
        assert value == (3.0 * k if k % 2 == 0 else 3.0 + 3.0 * k)


@pytest.mark.parametrize("nbytes", [8, 4096, 4104, 1 << 14, (1 << 14) + 8, 1 << 20])
@pytest.mark.parametrize("kind", [np.float64, np.float32, np.int64])
def test_plain_arrays_are_those_of_the_call(nbytes, kind):
    a = np.ones(nbytes // np.dtype(kind).itemsize, kind)

    def f(x):
        y = np.sum(x * a)
        if nbytes <= COPIED:  # above it a write between use and sweep is refused by what is recorded
            a[0] += 1
        return y + np.sum(x * a)

    compiled = tg.compile(f)
    for _ in range(5):
        x, first = np.full(a.size, 0.5), float(a[0])
        value, g = compiled.value_and_grad(x)
        assert g[0] == 2 * first + (nbytes <= COPIED)
        assert value == 0.5 * (g[0] + 2 * (a.size - 1))
        a[0] += 3
    assert follows(compiled)


def test_eight_ways_are_learned_and_no_more():
    compiled = tg.compile(lambda x, k: np.sum(x) * float(k) if k == 0 else sum([np.sin(x[0])] * k, x[1]))
    for _ in range(3):
        for k in range(12):
            x = np.array([0.5, 0.25])
            g = compiled.grad(x, k)
            assert abs(g[0] - (0.0 if k == 0 else k * np.cos(0.5))) < 1e-14
    assert [len(kind.ways) for kind in compiled.explain().kinds] == [8] * abi.native()


def test_a_call_that_goes_on_for_longer_is_learned_once():
    def f(x, n):
        a, b = x[0], x[1]
        total = 0.0
        for _ in range(n):
            total = total + np.sum(np.ones(3) * a * b)
        return -total / n

    compiled, x = tg.compile(f, wait=True), np.arange(6.0).reshape(2, 3)
    for n in (2, 2, 2, 3, 3, 3, 2, 3):
        assert compiled.grad(x, n).tobytes() == tg.func.grad(f)(x, n).tobytes()
    for kind in compiled.explain().kinds:
        assert sorted(way.operations for way in kind.ways) == [12, 16] and len(kind.left) == 1


@pytest.mark.parametrize(("limit", "most"), [("MOST_EVENTS", 4), ("MOST_BYTES", 4 * 24 + 8)])
def test_what_is_too_large_is_recorded(monkeypatch, limit, most):
    monkeypatch.setattr(learner, limit, most)
    f = lambda x, n: np.sum(x * 2.0 * 3.0 * 4.0) if n == 4 else np.sum(x * 2.0 * 3.0 * 4.0 * 5.0)
    for n in (4, 5):
        compiled = tg.compile(f)
        for _ in range(4):
            np.testing.assert_allclose(compiled.grad(np.ones(3), n), 24.0 if n == 4 else 120.0)
        is_too_large = n == 5 and abi.native()
        assert ("too many to keep" in compiled.explain()) == is_too_large
        if is_too_large:  # nor is it learned from for long
            assert not any(kind.learning.learns for kind in compiled._kinds.values())


@pytest.mark.parametrize(("most", "ways"), [(6, 1), (7, 2), (8, 2)])
def test_all_ways_together_have_so_many_operations(monkeypatch, most, ways):
    monkeypatch.setattr(learner, "MOST_EVENTS", most)
    f = lambda x, n: np.sum(x * 2.0 * 3.0) if n == 3 else np.sum(x * 2.0 * 3.0 * 4.0)
    compiled = tg.compile(f, wait=True)
    for n in (3, 3, 3, 4, 4, 4, 3, 4):
        np.testing.assert_allclose(compiled.grad(np.ones(3), n), 6.0 if n == 3 else 24.0)
    if abi.native():
        (kind,) = compiled.explain().kinds
        assert [way.operations for way in kind.ways] == ([3] if ways == 1 else [4, 3])


@pytest.mark.parametrize("count", [4, 5])
def test_operations_of_many_operands(count):
    f = lambda x: np.sum(np.concatenate([x * float(k) for k in range(1, count + 1)]) ** 2)
    assert follows(compare(f, [(np.arange(3.0) + k,) for k in range(4)]))


def test_a_function_that_never_follows_is_given_up():
    def f(x):
        y = x * 2.0
        seen = y[1:]
        y[0] = 1.0
        return np.sum(y) + 0.0 * seen[0]

    compiled = tg.compile(f)
    for _ in range(30):
        assert compiled.value_and_grad(np.ones(3))[0] == 5.0
    assert "way" not in compiled.explain()
    assert "not learned" in compiled.explain() or not abi.native()


@pytest.mark.parametrize("name", ["Twice", pytest.param("CompiledCall", marks=pytest.mark.full)])
def test_what_is_no_operation_is_said_to_be_recorded(name):
    class Twice(tg.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return 2.0 * x

        @staticmethod
        def backward(ctx, ct):
            return 2.0 * ct

    f = Twice.apply if name == "Twice" else tg.njit(lambda x: 2.0 * x)
    compiled = tg.compile(lambda x: np.sum(f(np.sin(x))), wait=True)
    for _ in range(3):
        np.testing.assert_allclose(tg.func.grad(compiled)(np.ones(2)), 2 * np.cos(1), rtol=1e-15)
    assert f"not learned: it calls {name} " in compiled.explain() or not abi.native()


# ------------------------------------------------------------ errors


def test_what_is_no_number_is_refused_as_ever():
    compiled = tg.compile(lambda x: x * 2.0)
    for _ in range(4):
        with pytest.raises(GradientError, match="return one number"):
            compiled.value_and_grad(np.ones(3))
        np.testing.assert_array_equal(compiled(np.ones(3)), 2 * np.ones(3))


@pytest.mark.skipif(not abi.native(), reason="a portable build compares no calls")
@pytest.mark.parametrize(
    ("f", "argnums", "args"),
    [
        (lambda x: np.sin(x) * x, 0, (0.5,)),
        (lambda x: np.sum(np.sin(x) * x), 0, (ARRAY,)),
        (lambda x, y: x * y + y, (0, 1), (0.5, 0.25)),
        (lambda k, x, y=2.0: np.sum(x * k * y), 1, (3, ARRAY.astype("f4"))),
        (lambda k, x, y, *z: np.sum(x * k) * y * len(z), (2, 1), (3, ARRAY, 0.5, 1, 2, 3)),
    ],
)
def test_what_plans_compute_takes_a_shortcut(f, argnums, args):
    """One function of Python's does all there is to do, until a call is no longer as it was."""
    compiled, recorded = tg.compile(f, argnums, wait=True), tg.func.value_and_grad(f, argnums)
    for _ in range(6):
        compiled.value_and_grad(*args), compiled(*args), compiled.grad(*args)

    def moved(x):
        return x * 1.5 if isinstance(x, (float, np.ndarray)) else x

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kinds._Work, "result", lambda *_: pytest.fail("no shortcut was taken"))
        for _ in range(3):
            args = tuple(map(moved, args))
            value, gradient = compiled.value_and_grad(*args)
            wanted, expected = recorded(*args)
            assert value == wanted == compiled(*args)
            for found in (gradient, compiled.grad(*args)):
                for x, y in zip(*map(as_tuple, (found, expected)), strict=True):
                    np.testing.assert_allclose(x, y, rtol=1e-14 if np.asarray(y).dtype == float else 1e-6)
    for other in (args[:-1], (*args, 1.0, 2.0, 3.0)):
        try:
            wanted = recorded(*other)[0]
        except TypeError as error:
            with pytest.raises(TypeError, match=re.escape(str(error))):
                compiled.value_and_grad(*other)
        else:
            assert compiled.value_and_grad(*other)[0] == wanted


def as_tuple(x):
    return x if isinstance(x, tuple) else (x,)


def test_what_a_shortcut_has_to_leave():
    """Errors, Tensors that are kept, values that are looked at, and another program meanwhile."""
    kept, how = [], []
    inner = tg.compile(lambda x: x * x, wait=True)
    for _ in range(6):
        inner.grad(1.0)

    def f(x):
        y = x * 2.0
        if how[0] == "raise":
            raise ZeroDivisionError(how[0])
        if how[0] == "keep":
            kept.append(x)
        if how[0] == "refer":
            kept.append(weakref.ref(x))
        if how[0] == "look":
            kept.append(x.item())
        if how[0] == "inner":
            kept.append(inner.grad(3.0))
        if how[0] == "thread":
            thread = threading.Thread(target=lambda: kept.append(inner.grad(3.0)))
            thread.start()
            thread.join()
        return y * x

    compiled, x = tg.compile(f, wait=True), 0.0
    ways = [*[""] * 6, "raise", "", "", "keep", "", "", "refer", "", "look", "", "inner", "", "thread", ""]
    for way in ways:
        how[:], x = [way], x + 0.5
        if way == "raise":
            with pytest.raises(ZeroDivisionError, match="raise"):
                compiled.value_and_grad(x)
            continue
        assert compiled.value_and_grad(x) == (2.0 * x * x, 4.0 * x), way
    assert kept[0].item() == 5.0 and kept[1]() is None and kept[2:] == [7.5, 6.0, 6.0]


def test_nothing_is_refused_by_what_was_asked():
    def f(x):
        y = x * x
        return y if x < 2.0 else None

    compiled = tg.compile(f, wait=True)
    for x in (0.5, 1.0, 1.5, 3.0, 1.0, 3.0):
        if x < 2.0:
            assert compiled.grad(x) == 2.0 * x
        else:
            with pytest.raises(GradientError, match=r"grad: the function is to return .* found None"):
                compiled.grad(x)


def test_what_a_tensor_has_not_is_told_as_ever():
    tg.compile(smooth)
    x = tg.tensor([1.0, 2.0], requires_grad=True)
    for name, text in (("cuda", "main memory"), ("nothing_like_it", "has no attribute 'nothing_like_it'")):
        with pytest.raises(AttributeError, match=text) as found:
            getattr(x, name)
        assert found.value.name == name
    with pytest.raises(AttributeError, match="reshape"):
        x.shape = (2, 1)


def test_a_method_says_how_it_is_compiled():
    """It was called without its instance, and Python said that an argument was missing."""

    class Model:
        strength = 2.0

        def __init__(self):
            self.bound = tg.compile(self.energy)

        def energy(self, x):
            return self.strength * np.sum(x * x)

        @tg.compile
        def loss(self, x):
            return self.energy(x)

        @staticmethod
        @tg.compile
        def plain(x):
            return np.sum(x * x)

    x = np.array([1.0, 2.0])
    model = Model()
    with pytest.raises(TypeError, match=r"Model\.loss is a method.* self\.loss = tg\.compile\(self\.loss\)"):
        model.loss(x)
    Model.also = tg.compile(lambda x: np.sum(x))
    Model.again = model.bound
    for k in range(5):
        model.strength = 1.0 + k
        assert model.bound.grad(x).tolist() == model.again.grad(x).tolist() == [2.0 + 2 * k, 4.0 + 4 * k]
        assert model.plain.grad(x).tolist() == [2.0, 4.0]
        assert model.also.grad(x).tolist() == [1.0, 1.0]


def test_compiled_functions_are_refused():
    with pytest.raises(TypeError, match=r"tg\.func\.value_and_grad"):
        tg.compile(tg.njit(lambda x: x))
    with pytest.raises(TypeError, match=r"found float64: tg\.compile\(f, \.\.\.\)|found a number"):
        tg.compile(np.float64(2.0))


def test_it_is_a_decorator_with_settings_too():
    @tg.compile(argnums=1, wait=True)
    def f(x, y):
        """Documented."""
        return np.sum(x * y * y)

    assert f.__doc__ == "Documented."
    for k in range(6):
        x, y = np.ones(3) * k, np.ones(3)
        np.testing.assert_array_equal(f.grad(x, y), 2 * x * y)


def test_an_error_leaves_nothing_behind():
    seen = []

    def f(x, fail):
        y = np.sin(x)
        seen.append(y)
        if fail:
            raise RuntimeError("stop")
        return np.sum(y)

    compiled = tg.compile(f)
    for k in range(8):
        seen.clear()
        if k % 3 == 2:
            with pytest.raises(RuntimeError, match="stop"):
                compiled.value_and_grad(np.ones(2), True)
            (y,) = seen
            np.testing.assert_allclose(y.detach().numpy(), np.sin(np.ones(2)))
        else:
            assert compiled.value_and_grad(np.ones(2), False)[0] == 2 * np.sin(1.0)
        assert tg.is_grad_enabled()


def test_nobody_is_warned_of_what_programs_do():
    for f in (np.maximum, np.minimum, np.fmax, np.hypot, np.logaddexp, np.arctan2, np.multiply):
        compiled = tg.compile(lambda x, f=f: np.sum(f(x[::-1], x) + f(x[::2].sum(), x[::-1])))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for k in range(4):
                compiled.value_and_grad(np.arange(4.0) + k)
        assert follows(compiled)


def test_errors_of_numbers_that_are_raised_are_raised_where_they_are():
    def f(x):
        try:
            return np.sum(1.0 / (x - 1.0))
        except FloatingPointError:
            return np.sum(x) * 2.0

    compiled = tg.compile(f)
    for k in range(6):
        with np.errstate(divide="raise" if k % 2 else "warn"):
            value, g = compiled.value_and_grad(np.full(2, 1.0 if k % 2 else 2.0))
        assert value == (4.0 if k % 2 else 2.0)
        np.testing.assert_array_equal(g, np.full(2, 2.0 if k % 2 else -1.0))


# ------------------------------------------------------------ Tensors


def test_a_call_with_tensors_is_one_record():
    f = lambda x, y: np.sum(np.sin(x) * y)
    compiled = tg.compile(f, (0, 1))
    for k in range(5):
        x = tg.tensor([0.5, 1.0 + k], requires_grad=True)
        y = tg.tensor(2.0, requires_grad=True)
        results = []
        for function in (compiled, f):
            z = function(x * 2.0, y * y)
            first = tg.grad(z * z, [x, y], create_graph=True)
            second = tg.grad(np.sum(first[0]) * first[1], [x, y], create_graph=True)
            third = tg.grad(np.sum(second[0]), x)
            results.append([z, *first, *second, *third])
        for a, b in zip(*results, strict=True):
            np.testing.assert_allclose(a.detach().numpy(), b.detach().numpy(), rtol=1e-12)
    assert "Compiled" in repr(compiled(x, y).grad_fn) or not abi.native()


def test_derivatives_of_tensors_have_histories():
    f = lambda x, y: np.sum(np.sin(x) * x) * y
    compiled, recorded = tg.compile(f, (0, 1)), tg.func.value_and_grad(f, (0, 1))
    for k, requires in enumerate([(True, True), (True, False), (False, True), (False, False)] * 3):
        results = []
        for function in (compiled.value_and_grad, recorded):
            x = tg.tensor([0.5, 1.0 + k], requires_grad=requires[0])
            y = tg.tensor(2.0, requires_grad=requires[1])
            value, (a, b) = function(x, y)
            assert [z.requires_grad for z in (value, a, b)] == [any(requires)] * 3
            found = [value, a, b]
            leaves = [z for z in (x, y) if z.requires_grad]
            if leaves:
                found += tg.grad(np.sum(np.sin(a)) * b * value, leaves, create_graph=True)
                found += tg.grad(sum(np.sum(g * g) for g in found[3:]), leaves)
            results.append(found)
        for a, b in zip(*results, strict=True):
            np.testing.assert_allclose(a.detach().numpy(), b.detach().numpy(), rtol=1e-12)


MIXED = {
    "an array": lambda t: (t, np.array([2.0, 3.0]) * t.item(0)),
    "a number": lambda t: (t, t.item(1)),
    "Tensors and arrays": lambda t: ({"a": t, "b": np.array([1.0, 2.0])}, [t.item(0), t * 2.0]),
}


@pytest.mark.parametrize("name", MIXED)
def test_tensors_beside_what_is_none(name):
    def f(x, y):
        return np.sum(np.sin(x["a"]) * x["b"] * y[1]) * y[0] if type(x) is dict else np.sum(np.sin(x) * y)

    compiled, recorded = tg.compile(f, (0, 1)), tg.func.value_and_grad(f, (0, 1))
    for k in range(6):
        results = []
        for call, value_and_grad in ((compiled, compiled.value_and_grad), (f, recorded)):
            t = tg.tensor([0.5, 1.0 + k], requires_grad=True)
            (first,) = tg.grad(call(*MIXED[name](t)), t, create_graph=True)
            (second,) = tg.grad(np.sum(first * first), t)
            value, gradients = value_and_grad(*MIXED[name](t))
            parts = flatten(gradients)[0]
            (mixed,) = tg.grad(value + sum(np.sum(g * g) for g in parts), t)
            results.append([first, second, value, *parts, mixed])
        for found, wanted in zip(*results, strict=True):
            assert type(found) is type(wanted)
            np.testing.assert_allclose(found.detach(), wanted.detach(), rtol=1e-12)


PAIRS = [lambda t: (t, t), lambda t: (t, t * 2.0), lambda t: (t * 2.0, t), lambda t: (t[0:2], t)]


@pytest.mark.parametrize("pair", PAIRS)
def test_arguments_that_depend_on_each_other(pair):
    """Each is differentiated by for itself, to any order."""
    f = lambda x, y: np.sum(np.sin(x) * y[0:2]) * np.sum(y)
    compiled, recorded = tg.compile(f, (0, 1)), tg.func.value_and_grad(f, (0, 1))
    for k in range(5):
        results = []
        for value_and_grad, call in ((compiled.value_and_grad, compiled), (recorded, f)):
            t = tg.tensor([0.5, 1.0 + k], requires_grad=True)
            value, (a, b) = value_and_grad(*pair(t))
            (of_parts,) = tg.grad(np.sum(a * a) * np.sum(b) + value, t)
            (first,) = tg.grad(call(*pair(t)), t, create_graph=True)
            (second,) = tg.grad(np.sum(first * first), t, create_graph=True)
            (third,) = tg.grad(np.sum(second), t)
            results.append([value, a, b, of_parts, first, second, third])
        for found, wanted in zip(*results, strict=True):
            np.testing.assert_allclose(found.detach().numpy(), wanted.detach().numpy(), rtol=1e-12)


def test_a_call_that_leaves_its_way_keeps_the_history_of_its_arguments():
    compiled = tg.compile(lambda x, k: x[1:][0] * (2.0 if x[1:][1].item() > 0 and k != 3 else np.sum(x)))
    for k in range(5):
        x = tg.tensor([0.5, 1.0 + k, 2.0], requires_grad=True)
        (g,) = tg.grad(compiled(x, k), x)
        wanted = [1.0 + k, 2.0 * (1.0 + k) + 2.5, 1.0 + k] if k == 3 else [0.0, 2.0, 0.0]
        np.testing.assert_allclose(g.numpy(), wanted)


def test_kinds_of_numbers_decide_the_dtype():
    """A float of Python's leaves single precision alone, a double of NumPy's does not."""
    numbers = [2.0, np.float64(2.0), 2, np.float32(2.0), True, np.array(2.0)]
    f = lambda x, k: np.sum(np.sin(x * numbers[k % 6] + 1.0))
    for kind in (np.float32, np.float64):
        compiled = tg.compile(f)
        for k in (1, 1, 1, 0, 0, 2, 4, 3, 5, 1, 0, 2, 3, 4, 5):
            x = np.array([0.1, 0.2 + k], kind)
            value, wanted = compiled(x, k), tg.compile(f)(x, k)
            assert type(value) is type(wanted)
            assert value == wanted


def test_arrays_of_other_classes_are_refused_as_ever():
    plain, masked = np.arange(4.0), np.ma.masked_array(np.arange(4.0), [0, 1, 0, 0])
    compiled = tg.compile(lambda x, a: np.sum(x * a))
    for _ in range(4):
        assert compiled(np.ones(4), plain) == 6.0
    with pytest.raises(TypeError, match="MaskedArray"):
        compiled(np.ones(4), masked)


def test_a_record_has_the_numbers_of_its_call():
    scale = [1.0]
    compiled = tg.compile(lambda x: np.sin(x) * scale[0])
    x, results = tg.tensor([0.5, 1.0], requires_grad=True), []
    for k in range(6):
        scale[0] = 1.0 + k
        results.append(compiled(x))
    for k, y in enumerate(results):
        (g,) = tg.grad(y, x, tg.tensor([1.0, 1.0]), create_graph=True)
        np.testing.assert_allclose(g.detach().numpy(), np.cos([0.5, 1.0]) * (1.0 + k))
        (h,) = tg.grad(np.sum(g), x)
        np.testing.assert_allclose(h.numpy(), -np.sin([0.5, 1.0]) * (1.0 + k))


def test_without_grad_and_in_other_modes():
    compiled = tg.compile(smooth)
    x = np.linspace(0, 1, 5)
    wanted = compiled.value_and_grad(x)
    for _ in range(3):
        compiled.value_and_grad(x)
    t = tg.tensor(x, requires_grad=True)
    with tg.no_grad():
        assert not compiled(t).requires_grad
    with tg.autograd.set_detect_anomaly(True):
        assert compiled.value_and_grad(x)[0] == wanted[0]
    _, tangent = tg.func.jvp(lambda x: compiled(x))(x, np.ones(5))
    np.testing.assert_allclose(tangent, wanted[1].sum())
    np.testing.assert_allclose(tg.func.hessian(lambda x: compiled(x))(x), tg.func.hessian(smooth)(x))


# ------------------------------------------------------------ what is kept


def test_nothing_grows():
    compiled = tg.compile(lambda x, k: np.sum(np.sin(x) * float(k)) if k % 3 else np.sum(x * x), wait=True)
    x = np.ones(100)
    for k in range(50):
        compiled.value_and_grad(x, k)
    gc.collect()
    before, tensors = len(gc.get_objects()), len(expected)
    for k in range(2000):
        compiled.value_and_grad(x, k)
    gc.collect()
    assert len(gc.get_objects()) - before < 50
    assert len(expected) == tensors


def test_a_function_let_go_of_leaves_nothing():
    before = len(expected)
    f = lambda x: np.sum(np.sin(x) * x)
    compiled = tg.compile(f)
    for _ in range(5):
        compiled.value_and_grad(np.ones(3))
    assert len(expected) > before or not abi.native()
    known = weakref.ref(compiled)
    del compiled
    gc.collect()
    assert known() is None
    assert len(expected) == before


def test_results_are_the_callers():
    compiled = tg.compile(lambda x: np.sum(np.sin(x)))
    results = [compiled.grad(np.full(3, float(k))) for k in range(5)]
    for k, g in enumerate(results):
        np.testing.assert_allclose(g, np.cos(np.full(3, float(k))))


def test_pickle_and_copy():
    compiled = tg.compile(smooth, 0)
    for _ in range(3):
        compiled.value_and_grad(np.ones(3))
    for other in (pickle.loads(pickle.dumps(compiled)), copy.deepcopy(compiled)):
        assert other.value_and_grad(np.ones(3))[0] == compiled(np.ones(3))
    assert compiled.__name__ == "smooth"


# ------------------------------------------------------------ company


def test_a_function_that_calls_itself():
    @tg.compile
    def f(x, depth):
        return np.sum(x * x) if depth == 0 else f(x * 2.0, depth - 1)

    for _ in range(4):
        value, g = f.value_and_grad(np.ones(2), 3)
        assert value == 128.0
        np.testing.assert_array_equal(g, [128.0, 128.0])


def test_compiled_in_compiled():
    inner = tg.compile(lambda x: np.sum(np.sin(x)))

    @tg.compile
    def outer(x):
        return inner(x * 2.0) * inner.value_and_grad(np.ones(2))[0]

    for k in range(5):
        inner.value_and_grad(np.ones(2) * k)
        value, g = outer.value_and_grad(np.ones(3) * k)
        assert abs(value - 3 * np.sin(2.0 * k) * 2 * np.sin(1.0)) < 1e-14
        np.testing.assert_allclose(g, 4 * np.cos(np.full(3, 2.0 * k)) * np.sin(1.0))


def test_threads():
    """One function, called by several threads at once."""
    compiled = tg.compile(lambda x, k: np.sum(np.sin(x) * float(k)) if k % 2 else np.sum(x * x) * float(k))
    wrong = []

    def work(number):
        for k in range(200):
            x = np.full(4, 0.1 * number + 0.001 * k)
            g = compiled.grad(x, k)
            wanted = np.cos(x) * k if k % 2 else 2 * x * k
            if not np.allclose(g, wanted, rtol=1e-13):
                wrong.append((number, k))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_threads_that_want_different_things():
    """Gradients, products with Hessians and values of one function, of sizes on both sides of a block."""
    f = lambda x, k: np.sum(np.sin(x) * float(k)) if k % 2 else np.sum(x**3) * float(k)
    compiled, wrong = tg.compile(f), []

    def work(number):
        for k in range(120):
            x = np.linspace(0.1, 1.0, (3, 1500)[k % 2]) + 0.01 * number
            which = (k + number) % 3
            found = compiled.grad(x, k) if which == 0 else compiled(x, k) if which == 1 else None
            found = compiled.hvp(x, k, 2.0 * x) if which == 2 else found
            wanted = np.cos(x) * k if k % 2 else 3 * x**2 * k
            wanted = np.sum(np.sin(x) * k if k % 2 else x**3 * k) if which == 1 else wanted
            wanted = (-np.sin(x) * k if k % 2 else 6 * x * k) * 2 * x if which == 2 else wanted
            if not np.allclose(found, wanted, rtol=1e-12):
                wrong.append((number, k, which))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.skipif(not abi.native(), reason="nothing is learned from calls")
def test_large_arrays_are_those_of_their_use():
    """Recording refuses a derivative that reads one that was written to; a program has a copy."""
    a = np.linspace(0.0, 1.0, 10_000)

    def f(x, k):
        y = np.sum(a * x[0]) * 1e-3 + np.sum(a.reshape(-1, 2) @ x)
        if k > 2:
            a[k] += 1.0
        return y

    compiled = tg.compile(f)
    for k in range(6):
        before, x = a.copy(), np.array([0.5, 2.0])
        value, g = compiled.value_and_grad(x, k)
        wanted = np.array([before.sum() * 1e-3, 0.0]) + before.reshape(-1, 2).sum(0)
        np.testing.assert_allclose(g, wanted, rtol=1e-12)
        np.testing.assert_allclose(value, wanted @ x, rtol=1e-12)
        with pytest.raises(MutationError) if k > 2 else nullcontext():
            tg.func.value_and_grad(f)(x, k)


def test_an_interrupt_between_operations():
    """Whatever operation it comes at, the next calls are right and what was given out has values."""
    for place in range(6):
        kept = []

        def f(x, stop, place=place, kept=kept):
            y = x
            for k in range(6):
                y = np.sin(y) * 1.5
                kept.append(y)
                if stop and k == place:
                    raise KeyboardInterrupt
            return np.sum(y)

        compiled = tg.compile(f)
        for _ in range(3):
            compiled.value_and_grad(np.ones(2), False)
            kept.clear()
        with pytest.raises(KeyboardInterrupt):
            compiled.value_and_grad(np.ones(2), True)
        y = np.ones(2)
        for found in kept:
            y = np.sin(y) * 1.5
            np.testing.assert_array_equal(found.detach().numpy(), y)
        kept.clear()
        wanted = tg.func.value_and_grad(f)(np.ones(2), False)[0]
        assert compiled.value_and_grad(np.ones(2), False)[0] == wanted


def newton(a, by):
    """The square root, by as many steps as it takes; `by` gives numbers to compare with."""
    x, y, steps = 1.0 + 0.0 * a, 0.0 * a, 0
    while abs(x * x - a) > by(1e-12) * a and x > 2.0 * y and x == x and steps < 12:
        for _ in range(4 if steps % 2 else 2):
            y = y * 0.5  # so that what is compared lies at other distances
        x, steps = by(0.5) * (x + a / x), steps + 1
    return (x if x != y else -x) + (y if y <= 1.0 else 0.0)


DECIDING = thinned(
    itertools.product([float, np.float64, np.float32, np.array], "df"),
    lambda by, dtype: (dtype == "f") == (by in (np.float64, np.array)),
)


@pytest.mark.parametrize(("by", "dtype"), DECIDING, ids=lambda x: getattr(x, "__name__", x))
def test_numbers_that_decide(by, dtype):
    """The same turns, values and derivatives as without programs, for paths that share their beginnings."""
    compiled = tg.compile(newton)
    with np.errstate(all="ignore"):
        for a in [2.0, 50.0, 2.5, 2.0, 1e4, 50.0, 2.0, np.nan, 0.0, np.inf, 3.0, 50.0, 4.0, np.nan, 2.0] * 2:
            a = np.asarray(a, dtype)[()]
            found, wanted = (f(a, by) for f in (compiled.value_and_grad, tg.func.value_and_grad(newton)))
            np.testing.assert_array_equal(found[0], wanted[0])
            np.testing.assert_allclose(found[1], wanted[1], rtol=8 * np.finfo(dtype).eps)


@pytest.mark.skipif(not abi.native(), reason="a portable build looks at numbers in Python")
@pytest.mark.parametrize("distance", [0, LOOK_BACK - 2, LOOK_BACK - 1, LOOK_BACK, LOOK_BACK + 1])
def test_numbers_are_looked_at_in_compiled_code(distance):
    """As far back as it looks; the values are the same beyond."""

    def f(x):
        y = x * 3.0
        z = y
        for _ in range(distance):
            z = z + 1.0
        return z * 2.0 if y > 1.0 else z * 5.0

    compiled, entered = tg.compile(f), []
    for x in (1.0, 2.0, 1.5, 0.1, 0.2, 0.3):
        assert compiled.value_and_grad(x) == tg.func.value_and_grad(f)(x)
    handle = next(iter(expected)).matcher
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(handle), "compute", lambda self, x: entered.append(x) or original(self, x))
        assert compiled.grad(2.0) == 6.0 and compiled.grad(0.1) == 15.0
    assert bool(entered) == (distance >= LOOK_BACK)


original = Matcher.compute


@pytest.mark.skipif(not abi.native(), reason="a portable build looks at numbers in Python")
def test_arguments_are_compared_in_compiled_code():
    def f(x, y):
        return x * y if x > y or y > 1.0 or y == 0.25 else x + y

    compiled, entered = tg.compile(f, (0, 1), wait=True), []
    calls = [(1.0, 0.5), (1.5, 0.7), (0.1, 0.2), (0.3, 0.4), (0.1, 2.0), (0.1, 0.25), (2.0, 0.3), (0.1, 0.3)]
    for args in calls:
        assert compiled.value_and_grad(*args) == tg.func.value_and_grad(f, (0, 1))(*args)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Matcher, "compute", lambda self, x: entered.append(id(x)) or original(self, x))
        for args in calls:
            assert compiled.value_and_grad(*args) == tg.func.value_and_grad(f, (0, 1))(*args)
            entered.clear()  # of a call that has gone another way than the one before
            assert compiled.value_and_grad(*args) == tg.func.value_and_grad(f, (0, 1))(*args)
            assert not entered
    nan = float("nan")
    assert np.isnan(compiled(nan, 0.5))
    assert compiled(np.float32(0.5), np.float32(0.25)) == np.float32(0.125)


def test_errors_of_numbers_before_a_comparison_are_told():
    """NumPy warns, or raises, once and where the operation is."""

    def f(x):
        y = 1.0 / x
        return y * y if y > 1.0 else y

    compiled = tg.compile(f)
    for x in (0.5, 2.0, 0.5, 2.0):
        compiled.grad(x)
    for _ in range(3):
        with pytest.warns(RuntimeWarning, match="divide by zero") as seen, np.errstate(all="warn"):
            compiled(0.0)
        assert len(seen) == 1
        with np.errstate(divide="raise"), pytest.raises(FloatingPointError):
            compiled(0.0)
        with np.errstate(all="ignore"):
            assert compiled(0.0) == np.inf
        assert compiled.grad(2.0) == -0.25


@pytest.mark.parametrize("n", [1, 4, 600, 3000, 20_000])
def test_calls_that_leave_at_the_end(n):
    """All that was expected is recorded then: small and large values, views, what is kept and what dies."""
    kept, x = [], np.linspace(0.1, 1.0, n)

    def f(x, leaves):
        y = np.sin(x) * x
        z = np.exp(y)[::-1] * 0.5 + y
        w = np.reshape(z * z, (1, -1)) / (z + 1.0)
        if leaves:
            kept[:] = [z, w[0], w.grad_fn]
        return np.sum(w * w) + np.max(z)

    compiled, of_f = tg.compile(f, wait=True), tg.func.value_and_grad(f)
    for k in range(12):
        found, wanted = compiled.value_and_grad(x, k % 3 == 2), of_f(x, False)
        assert found[0] == wanted[0]
        assert np.allclose(found[1], wanted[1], rtol=1e-13, atol=1e-13)
        assert np.allclose(compiled.hvp(x, k % 3 == 2, x), tg.func.hvp(f)(x, False, x), rtol=1e-10)
    t = tg.tensor(x, requires_grad=True)
    for k in range(6):
        y = compiled(t, k % 2 == 1)
        if k % 2 == 1:
            (g,) = tg.grad(np.sum(kept[0] * kept[1]), t, retain_graph=True)
            assert np.allclose(g.numpy(), tg.grad(kept_sum(t), t)[0].numpy())
        (g,) = tg.grad(y, t, create_graph=True)
        (h,) = tg.grad(np.sum(g * g), t)
        (expected,) = tg.grad(f(t, False), t, create_graph=True)
        assert np.allclose(g.detach().numpy(), expected.detach().numpy(), rtol=1e-13)
        (wanted,) = tg.grad(np.sum(expected * expected), t)
        assert np.allclose(h.numpy(), wanted.numpy(), rtol=1e-11)


def kept_sum(x):
    """The sum of products of what `test_calls_that_leave_at_the_end` keeps."""
    y = np.sin(x) * x
    z = np.exp(y)[::-1] * 0.5 + y
    return np.sum(z * z * z / (z + 1.0))


@pytest.mark.skipif(not abi.native(), reason="nothing is learned from calls")
def test_what_is_known_is_learned_a_few_times_only():
    """A call that leaves its way at the end is compared with what is known; not for ever."""
    kept = []

    def f(x, leaves):
        y = np.sin(x) * x
        kept[:] = [y.grad_fn] if leaves else []
        return np.sum(y)

    compiled = tg.compile(f, wait=True)
    for k in range(6 * MOST_PATHS):
        compiled.grad(np.ones(3), k % 2 == 1)
    (kind,) = compiled._kinds.values()
    assert not kind.learning.learns
    assert len(kind.matcher.paths) == 1


def batched(call, t):
    return tg.grad(call(t) * np.ones(3), t, np.eye(3), is_grads_batched=True, create_graph=True)


def hooked(call, t):
    y = call(t * 2.0)
    y.register_hook(lambda ct: ct * 2.0)
    return tg.grad(np.sum(y * y), t)


def twice(call, t):
    y = np.sum(call(t * 2.0))
    y.backward(retain_graph=True)
    y.backward()
    return t.grad


def written(call, t):
    u = t * 2.0
    y = call(u)
    u[0] = 5.0
    return tg.grad(np.sum(y) + np.sum(u * u), t)


def forward_over_reverse(call, t):
    return tg.func.jvp(tg.func.grad(lambda u: np.sum(call(u) * u)))(t.detach().numpy(), np.ones(3))


SWEEPS = [
    batched,
    hooked,
    twice,
    written,
    forward_over_reverse,
    lambda call, t: tg.autograd.functional.hessian(lambda u: np.sum(call(u) * u), t),
    lambda call, t: tg.autograd.checkpoint(lambda u: np.sum(call(u * 2.0)), t),
]


@pytest.mark.parametrize("f", [lambda x: np.sum(np.sin(x) * x), lambda x: np.sin(x) * x[0]])
@pytest.mark.parametrize("sweep", SWEEPS)
def test_the_record_of_a_call_in_sweeps_of_all_kinds(sweep, f):
    compiled = tg.compile(f, wait=True)
    for _ in range(4):
        compiled(tg.tensor([0.3, 0.5, 0.7], requires_grad=True))
    found, wanted = (
        flatten(sweep(call, tg.tensor([0.3, 0.5, 0.7], requires_grad=True)))[0] for call in (compiled, f)
    )
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(np.asarray(plain(a)), np.asarray(plain(b)), rtol=1e-12)


def plain(x):
    return x.detach().numpy() if isinstance(x, tg.Tensor) else x


def test_a_record_that_was_released_says_so():
    compiled = tg.compile(lambda x: np.sum(np.sin(x) * x), wait=True)
    for _ in range(4):
        y = compiled(tg.tensor([0.3, 0.5, 0.7], requires_grad=True) * 2.0)
        y.backward()
        with pytest.raises(tg.errors.GraphFreedError, match="released"):
            y.backward()


def test_an_exponent_that_is_computed_is_brought_by_calls():
    """Two calls tell that it is another one each time; what is fixed stays so."""

    def f(x):
        s = np.sum(x).item()
        return np.sum(x**s) * x[0] ** 1.5 + np.sum(np.power(x, 1.0 / s))

    compiled, v = tg.compile(f, wait=True), np.array([1.0, -0.5, 2.0])
    for k in range(12):
        x = np.array([0.3, 0.7, 0.2]) + 0.1 * k
        value, gradient = compiled.value_and_grad(x)
        wanted, expected = tg.func.value_and_grad(f)(x)
        assert value == wanted
        np.testing.assert_allclose(gradient, expected, rtol=1e-13)
        np.testing.assert_allclose(compiled.hvp(x, v), tg.func.hvp(f)(x, v), rtol=1e-12)
    if abi.native():
        ((known,),) = (compiled.explain().kinds,)
        assert sum(known.left.values()) <= 2
        assert len(known.ways) == 2
        assert known.ways[0].calls > 16


@pytest.mark.skipif(not abi.native(), reason="nothing is learned from calls")
def test_a_program_of_which_python_computes_most_is_given_up():
    def f(x):
        with np.errstate(under="warn"):  # which tells of more: nothing is expected
            y = np.exp(np.sin(x) * x)
            return np.sum(y * y + x)

    compiled = tg.compile(f, wait=True)
    for k in range(24):
        x = np.arange(3.0) + 0.1 * k
        value, gradient = compiled.value_and_grad(x)
        wanted, expected = tg.func.value_and_grad(f)(x)
        assert value == wanted
        np.testing.assert_allclose(gradient, expected, rtol=1e-14)
    assert "had Python compute most operations" in compiled.explain()
    assert not compiled.explain().kinds[0].ways


def test_parts_without_elements_times_a_number_are_learned():
    def f(x, chosen):
        y = x * 3.0
        y[chosen] *= x[0]
        return np.sum(y**2) * x[-1]

    compiled = tg.compile(f, wait=True)
    for k in range(8):
        x, chosen = np.array([0.3, 0.7, 0.2]) + 0.1 * k, np.zeros(3, bool)
        value, gradient = compiled.value_and_grad(x, chosen)
        wanted, expected = tg.func.value_and_grad(f)(x, chosen)
        assert value == wanted
        np.testing.assert_allclose(gradient, expected, rtol=1e-13)
    assert [way.calls > 0 for kind in compiled.explain().kinds for way in kind.ways] == [True] * abi.native()
