"""Stacks of matrices that `tegrad.compile` computes by parts."""

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.compilation.plans import plan, tiling
from tapegrad.compilation.plans.scheduling import splits
from tapegrad.kernels import abi
from tapegrad.kernels.replay import layout
from tests.tiers import every

pytestmark = pytest.mark.skipif(not abi.native(), reason="nothing is learned from calls")

CALLS = 7  # recorded, learned from, two by rows, one by both, two by kernels alone


@pytest.fixture
def plans(monkeypatch):
    """The plans that are made, with parts of few bytes."""
    monkeypatch.setattr(tiling, "STACKED", 512)
    monkeypatch.setattr(tiling, "TILE", 512)
    monkeypatch.setattr(tiling, "FEWEST", 32)
    tiling._have_bits.cache_clear()
    made, build = [], plan.Plan.build

    def noted(self, *args):
        made.append(self)
        return build(self, *args)

    monkeypatch.setattr(plan.Plan, "build", noted)
    return made


def products(found):
    """How many products of matrices a plan has."""
    return sum(step.kind == layout.BY_PRODUCT for step in found.rows.steps)


def mixture(x, mu, q):
    """Of points, means and factors: what has the shape of GradBench's gmm."""
    z = (x - mu[:, None]) @ np.swapaxes(q, 1, 2)
    beta = np.sum(q[:, 0], 1)[:, None] - 0.5 * np.sum(z * z, 2)
    top = np.amax(beta, 0)
    return np.sum(top + np.log(np.sum(np.exp(beta - top), 0))) - np.sum(q * q)


def attention(x, mu, q):
    y = np.tanh((x * mu[:, :1, None]) @ q)
    w = np.exp(y @ np.swapaxes(y, 1, 2))
    return np.sum((w / np.sum(w, 2, keepdims=True)) @ y * mu[:, None])


def over_matrices(x, mu, q):
    """What is summed over the stack is no one's part; nor are factors of all matrices."""
    y = (x + mu[:, None]) @ q
    mean = np.sum(np.sin(y), 0) / len(q)
    return np.sum((y - mean) @ q * np.cos(y)) + np.sum(np.amax(y, 0) * mean)


def reversed_stack(x, mu, q):
    """Matrices are needed in another order than they are there."""
    y = np.sin((x + mu[:, None]) @ q)
    return np.sum(y * (y[::-1] @ q)) + np.sum((y * y[:1]) @ q)


def written(x, mu, q):
    y = (x - mu[:, None]) @ q
    y *= np.exp(-y * y)
    y[1] = 2.0 * y[0]
    return np.sum(np.sin(y @ q) * y)


def in_two(x, mu, q):
    """Two products of which none goes before the other, and what comes between of all elements."""
    a, b = (x * 2.0 + mu[:, None]) @ q, (x - mu[:, None]) @ (q * q)
    return np.sum(np.tanh(a + b * np.sum(a)) * (a @ q)) * np.mean(b)


FUNCTIONS = mixture, attention, over_matrices, reversed_stack, written, in_two
HOW = [(np.float64, 7, 512), (np.float32, 7, 1100), (np.float64, 2, 1100), (np.float64, 7, 1 << 14)]
CASES = [(f, *HOW[(i + j) % len(HOW)]) for i in (0, 2) for j, f in enumerate(FUNCTIONS)]


@pytest.mark.parametrize(("f", "kind", "count", "size"), every(CASES, 6))
def test_they_give_what_is_given_at_once(f, kind, count, size, plans, monkeypatch):
    random = np.random.default_rng(count)
    x = random.normal(size=(17, 5)).astype(kind)
    mu, q, v, w = (0.5 * random.normal(size=(count, *n)).astype(kind) for n in ((5,), (5, 5), (5,), (5, 5)))
    monkeypatch.setattr(tiling, "TILE", size)

    def h(mu, q):
        return f(x, mu, q)

    compiled = tg.compile(h, (0, 1), wait=True)
    for k in range(CALLS):
        point = mu + kind(k), q
        value, found = compiled.value_and_grad(*point)
        found += compiled.hvp(*point, (v, w))
    wanted, expected = tg.func.value_and_grad(h, (0, 1))(*point)
    expected += tg.func.hvp(h, (0, 1))(*point, (v, w))
    assert np.asarray(value).tobytes() == np.asarray(wanted).tobytes()
    for g, known in zip(found, expected, strict=True):
        np.testing.assert_allclose(g, known, rtol=0, atol=300 * np.finfo(kind).eps * np.abs(known).max())
    assert "not fused" not in compiled.explain() and "computed by" in compiled.explain()


def made_of(f, *args):
    compiled = tg.compile(f, tuple(range(len(args))), wait=True)
    for _ in range(CALLS):
        compiled.value_and_grad(*args)


def test_parts_take_little_memory(plans, monkeypatch):
    random = np.random.default_rng(0)
    x, mu, q = (random.normal(size=n) for n in ((170, 5), (7, 5), (7, 5, 5)))
    made_of(lambda mu, q: mixture(x, mu, q), mu, q)
    monkeypatch.setattr(tiling, "STACKED", 1 << 20)
    made_of(lambda mu, q: mixture(x, mu, q), mu, q)
    parts, whole = plans
    assert (products(parts), products(whole)) == (21, 3)
    stack = 8 * 7 * 170 * 5  # bytes: that of differences, and of products, is read in reverse too
    assert parts.arena.memory.nbytes < 3 * stack < 4 * stack < whole.arena.memory.nbytes


@pytest.mark.parametrize("shape", [(3, 21), (2, 32), (5, 13)])
def test_of_how_many_bytes_stacks_are(shape, plans, monkeypatch):
    monkeypatch.setattr(tiling, "TILE", 64)
    x = np.linspace(-1.0, 1.0, shape[0] * shape[1]).reshape(*shape, 1)
    made_of(lambda q: np.sum(np.sin((x * 2.0 + q) @ q)), np.ones((len(x), 1, 1)))
    assert (products(plans[0]) > 2) is (x.nbytes >= tiling.STACKED)


DATA = np.random.default_rng(0).normal(size=(5003, 9)), np.random.default_rng(1).normal(size=5003)


def logistic(x, y, w):
    z = x @ w
    return np.mean(np.log(1.0 + np.exp(-z)) + y * z) + np.sum(w * w)


def residuals(x, y, w):
    r = x @ w - y
    return np.sum(r * r) * np.sum(np.abs(r))  # two sums of which others read one


def several_columns(x, y, w):
    z = x @ (w[:, None] * np.arange(1.0, 4.0))
    return np.sum(np.tanh(z) * y[:, None]) + np.sum(np.sum(z, 1) ** 2)


def other_rows(x, y, w):
    z = np.sin(x @ w)
    return np.sum(z * z[::-1]) + np.sum((x @ (z @ x)) * y)


def written_rows(x, y, w):
    z = x @ w
    z[2:7] *= 3.0
    return np.sum(z * np.cos(z) * y)


def of_linear(f, n, kind):
    """Compare a function of so many rows with what is recorded."""
    x, y = (data[:n].astype(kind) for data in DATA)
    w, v = np.linspace(-0.5, 0.5, 9).astype(kind), np.cos(np.arange(9.0)).astype(kind)
    compiled = tg.compile(lambda w: f(x, y, w), wait=True)
    for k in range(CALLS):
        point = w * kind(1 + 0.1 * k)
        value, found, product = *compiled.value_and_grad(point), compiled.hvp(point, v)
    wanted, expected = tg.func.value_and_grad(compiled.plain)(point)
    assert np.asarray(value).tobytes() == np.asarray(wanted).tobytes()
    for g, known in ((found, expected), (product, tg.func.hvp(compiled.plain)(point, v))):
        np.testing.assert_allclose(g, known, rtol=0, atol=1000 * np.finfo(kind).eps * np.abs(known).max())
    assert "not fused" not in compiled.explain() and "computed by" in compiled.explain()


LINEAR = logistic, residuals, several_columns, other_rows, written_rows
ROWS = [(f, n, kind) for kind in (np.float64, np.float32) for n in (5003, 4096) for f in LINEAR]


@pytest.mark.parametrize(("f", "n", "kind"), every(ROWS, 10))
def test_rows_give_what_is_given_at_once(f, n, kind, plans, monkeypatch):
    monkeypatch.setattr(tiling, "TILE", 1 << 15)
    of_linear(f, n, kind)
    if f is logistic:
        assert products(plans[0]) >= 8


@pytest.mark.parametrize(
    ("name", "more"),
    every([(n, k) for n in ("FEWEST", "CHECKED", "MOST_STEPS", "FEW") for k in (-1, 0, 1)], 6),
)
def test_limits_of_rows(name, more, plans, monkeypatch):
    """Beyond a limit the product is one, with all that goes with it."""
    x = DATA[0][:4096]
    monkeypatch.setattr(tiling, "TILE", 72 * 256)
    columns = tiling.FEW + more if name == "FEW" else 1
    if name == "FEWEST":
        monkeypatch.setattr(tiling, name, 4096 + more)
    elif name == "CHECKED":
        monkeypatch.setattr(tiling, name, x.nbytes + more)
    elif name == "MOST_STEPS":  # blocks of sums are rows of so many parts
        monkeypatch.setattr(tiling, name, splits(4096)[1] // 256 + more)
    w = np.linspace(-0.5, 0.5, 9 * columns).reshape(9, columns)

    def f(w):
        z = x @ (w if name == "FEW" else w[:, 0])
        return np.sum(np.tanh(z) * 2.0)

    made_of(f, w)
    beyond = more < 0 if name in ("CHECKED", "MOST_STEPS") else more > 0
    assert (products(plans[0]) == 2) is beyond


def test_rows_that_have_other_bits_by_themselves(plans, monkeypatch):
    monkeypatch.setattr(tiling, "TILE", 1 << 15)
    monkeypatch.setattr(tiling, "_have_bits", lambda *_: False)
    made_of(lambda w: logistic(*DATA, w), np.linspace(-0.5, 0.5, 9))
    assert products(plans[0]) == 2
