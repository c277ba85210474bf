"""What a rule in Python has made becomes the gradient as it is, if nothing else can reach its memory."""

import sys
import weakref

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.kernels import abi
from tapegrad.kernels.replay import layout
from tapegrad.ops import REGISTRY
from tapegrad.ops.primitive import primitive
from tapegrad.tape import pool

pytestmark = pytest.mark.usefixtures("compiled")
backward = sys.modules["tapegrad.autograd.backward"]
SIZES = (3, 100)  # rows: of memory of its own, of the stock
CT = 2.0


@primitive(forward=lambda x, rule: x + 0.0, arity=1)
class passed_on:
    """Its operand, with a given rule for the cotangent."""

    reads = (0b1001,)

    def vjp(ct, out, inputs, wanted, rule):
        return {0: rule(ct, out, inputs[0])}

    def jvp(tangents, out, inputs, rule):
        raise NotImplementedError


@primitive(forward=lambda x, y, rule: x + y, arity=2)
class summed:
    """A sum of two, with a given rule for both cotangents."""

    reads = (0, 0)

    def vjp(ct, out, inputs, wanted, rule):
        return dict(zip((0, 1), rule(ct), strict=True))

    def jvp(tangents, out, inputs, rule):
        raise NotImplementedError


for _op in (passed_on, summed):  # what is listed has samples
    del REGISTRY[_op.name]


@pytest.fixture(autouse=True)
def no_engine(monkeypatch):
    """Let nothing but the compiled call find gradients, where there is one, once kernels are loaded."""
    x = leaf(3)
    (x * leaf(3) * 2.0 + x).backward(seed(3))
    if abi.native() and not layout.BOUNDS:
        monkeypatch.setattr(backward, "run", lambda *_: pytest.fail("the engine sweeps"))


def leaf(n):
    return tg.tensor(np.random.default_rng(n).uniform(0.5, 1.5, (n, n)), requires_grad=True)


def seed(n):
    return tg.tensor(np.full((n, n), CT))


def address(x):
    return x.__array_interface__["data"][0]


def made(ct):
    """A fresh array, as rules make them."""
    return np.add(ct, 1.0, out=pool.empty(ct.shape, ct.dtype))


def gradient(rule, n, x=None):
    x = leaf(n) if x is None else x
    (g,) = tg.grad(passed_on(x, rule=rule), x, seed(n))
    return x, g


def assert_equal(g, expected):
    """By numbers: `numpy()` would give a copy where anything else has the array."""
    np.testing.assert_array_equal(np.array(g.tolist()), expected)


@pytest.mark.skipif(not abi.native() or bool(layout.BOUNDS), reason="there is no compiled call")
@pytest.mark.parametrize("make", [lambda ct: ct + 1.0, made], ids=["NumPy's", "of the stock"])
@pytest.mark.parametrize("n", SIZES)
def test_a_fresh_array_is_the_gradient(n, make):
    places = []

    def rule(ct, out, x):
        found = make(ct)
        places.append(address(found))
        return found

    for _ in range(3):
        _, g = gradient(rule, n)
        assert address(g.numpy()) == places[-1] and g.numpy().flags.writeable
        assert_equal(g, CT + 1.0)
    x = leaf(n)
    y = passed_on(x, rule=rule)
    for times in (1, 2, 3):
        y.backward(seed(n), retain_graph=True)
        assert_equal(x.grad, times * (CT + 1.0))


KEPT = {
    "an array": lambda a: (a, a),
    "a view": lambda a: (a[...], a),
    "its memory": lambda a: (a if a.base is None else a.base, a),
    "a memoryview": lambda a: (memoryview(a), a),
    "a weak reference": lambda a: (weakref.ref(a), a),
    "a Tensor": lambda a: (tg.from_numpy(a), a),
}


@pytest.mark.parametrize("make", [lambda ct: ct + 1.0, made], ids=["NumPy's", "of the stock"])
@pytest.mark.parametrize("keep", KEPT)
@pytest.mark.parametrize("n", SIZES)
def test_a_rule_that_keeps_what_it_gave_and_writes_there(n, keep, make):
    kept = []

    def rule(ct, out, x):
        thing, found = KEPT[keep](make(ct))
        kept.append(thing)
        return found

    _, g = gradient(rule, n)
    write(kept.pop())
    assert_equal(g, CT + 1.0)


def write(thing):
    thing = thing() if isinstance(thing, weakref.ref) else thing
    if isinstance(thing, memoryview):
        thing.cast("B")[:] = bytes(thing.nbytes)
    elif thing is not None:
        thing[...] = 0


def lent(ct):
    """An array in memory like the stock's, which an object has that is no array; and that."""
    memory = bytearray((ct + 1.0).tobytes() + bytes(pool.ALIGNMENT))
    return np.frombuffer(memory, np.uint8)[: ct.nbytes].view(float).reshape(ct.shape), memory


NOT_ITS_OWN = {
    "the cotangent": lambda ct, out, x: ct,
    "a view of the cotangent": lambda ct, out, x: ct[...],
    "the operand's value": lambda ct, out, x: x,
    "the result's value": lambda ct, out, x: out,
    "a view of the value": lambda ct, out, x: x[...],
    "one number, stretched": lambda ct, out, x: np.broadcast_to(np.float64(7.0), ct.shape),
    "a part of more": lambda ct, out, x: np.full((3 * len(ct), len(ct)), 7.0)[: len(ct)],
    "not to be written": lambda ct, out, x: frozen(ct + 1.0),
    "by columns": lambda ct, out, x: np.asfortranarray(np.add.outer(ct[0], np.arange(len(ct)))),
    "of another dtype": lambda ct, out, x: (ct + 1.0).astype(np.float32),
    "of a subclass": lambda ct, out, x: np.ma.masked_array(ct + 1.0),
}


def frozen(x):
    x.flags.writeable = False
    return x


@pytest.mark.parametrize("name", NOT_ITS_OWN)
@pytest.mark.parametrize("n", SIZES)
def test_what_is_not_the_rules_own_is_copied(n, name):
    rule, s = NOT_ITS_OWN[name], np.full((n, n), CT)
    before = np.random.default_rng(n).normal(size=(n, n))
    expected = np.array(rule(s, before, before), float)
    x, given = tg.tensor(before, requires_grad=True), tg.tensor(s)
    y = passed_on(x, rule=rule)
    found = [tg.grad(y, x, given, retain_graph=True)[0] for _ in range(3)]
    for g in found:
        assert_equal(g, expected)
        g[...] = -1.0
        assert_equal(g, -1.0)
    assert_equal(given, s)
    assert_equal(x, before)
    assert_equal(y, before)
    (g,) = tg.grad(y, x, given)
    assert g.dtype == float and g.numpy().flags.writeable and g.numpy().flags.c_contiguous
    base = g._v.base
    assert base is None or base.nbytes <= g.nbytes + pool.ALIGNMENT


@pytest.mark.parametrize("n", SIZES)
def test_memory_of_no_array_that_the_rule_keeps(n):
    kept = []

    def rule(ct, out, x):
        found, memory = lent(ct)
        kept.append(memory)
        return found

    _, g = gradient(rule, n)
    kept[0][:] = bytes(len(kept[0]))
    assert_equal(g, CT + 1.0)


PAIRS = {
    "one array twice": lambda ct: 2 * (ct + 1.0,),
    "an array and a view of it": lambda ct: (lambda a: (a, a[...]))(ct + 1.0),
    "two arrays": lambda ct: (ct + 1.0, ct + 1.0),
    "an array and the cotangent": lambda ct: (ct + 1.0, ct),
}


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("n", SIZES)
def test_gradients_of_one_rule_are_apart(n, name):
    rule = PAIRS[name]
    x, y = leaf(n), leaf(n)
    first, second = rule(np.full((n, n), CT))
    dx, dy = tg.grad(summed(x, y, rule=rule), (x, y), seed(n))
    assert not np.shares_memory(dx.numpy(), dy.numpy())
    assert_equal(dx, first)
    assert_equal(dy, second)
    (both,) = tg.grad(summed(x, x, rule=rule), x, seed(n))
    assert_equal(both, first + second)


@pytest.mark.parametrize("n", SIZES)
def test_a_second_contribution_is_added_to_a_gradient_of_which_the_rule_keeps_nothing(n):
    x = leaf(n)
    first = passed_on(x, rule=lambda ct, out, x: ct + 1.0)
    second = passed_on(x, rule=lambda ct, out, x: ct * 10.0)
    (g,) = tg.grad(first * 2.0 + second + x, x, seed(n))
    assert_equal(g, (2 * CT + 1.0) + 10 * CT + CT)


@pytest.mark.parametrize("n", SIZES)
def test_hooks_of_a_leaf_change_what_was_taken(n):
    x = leaf(n)
    seen = []

    def hook(g):
        seen.append(g)
        return g * 3.0

    x.register_hook(hook)
    (g,) = tg.grad(passed_on(x, rule=lambda ct, out, x: ct + 1.0), x, seed(n))
    assert_equal(g, 3 * (CT + 1.0))
    assert_equal(seen[0], CT + 1.0)
    g[...] = 0.0
    assert_equal(seen[0], CT + 1.0)


@pytest.mark.parametrize("n", SIZES)
def test_hooks_of_a_node_keep_what_they_saw(n):
    x = leaf(n)
    y = passed_on(x, rule=lambda ct, out, x: ct + 1.0)
    seen = []
    y.grad_fn.register_hook(lambda inputs, outputs: seen.append(inputs[0]))
    (g,) = tg.grad(y, x, seed(n))
    g[...] = 0.0
    assert_equal(seen[0], CT + 1.0)


@pytest.mark.parametrize("n", SIZES)
def test_a_function_that_keeps_the_tensor_it_returned(n):
    kept = []

    class Kept(tg.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x + 0.0

        @staticmethod
        def backward(ctx, ct):
            kept.append(ct + 1.0)
            return kept[-1]

    x = leaf(n)
    (g,) = tg.grad(Kept.apply(x), x, seed(n))
    kept[0] += 5.0
    assert_equal(g, CT + 1.0)
    g[...] = 0.0
    assert_equal(kept[0], CT + 6.0)


@pytest.mark.parametrize("n", SIZES)
def test_a_rule_that_fails_behind_one_whose_array_was_taken(n):
    def failing(ct, out, x):
        raise RuntimeError("this rule fails")

    x, z = leaf(n), leaf(n)
    for _ in range(20):
        first = passed_on(z, rule=failing)
        second = passed_on(x, rule=lambda ct, out, x: made(ct))
        with pytest.raises(RuntimeError, match="this rule fails"):
            tg.grad(first * second, (x, z), seed(n))
    _, g = gradient(lambda ct, out, x: made(ct), n)
    assert_equal(g, CT + 1.0)
