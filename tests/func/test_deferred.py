"""Gradients that are only differentiated further are not computed, and nothing is different for it."""

import gc
import random as python_random
import sys
import weakref

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.autograd import deferred
from tapegrad.func import tangents, transforms
from tapegrad.kernels import abi, machine
from tapegrad.kernels.replay import layout
from tapegrad.scipy.linalg import expm
from tapegrad.tape import tape as tapes

pytestmark = pytest.mark.skipif(
    not abi.native() or bool(layout.BOUNDS), reason="only the native layout has compiled methods"
)
at_once = sys.modules["tapegrad.autograd.at_once"]
MANY = 3  # calls, after which rules are programs


@pytest.fixture(autouse=True)
def compiled():
    machine.load()


def compute_all(patch):
    """Turn to the way that computes all values."""
    once, sealed = at_once.rerecord, at_once.rerecord_sealed
    patch.setattr(at_once, "rerecord", lambda *args: once(*args[:3]))
    patch.setattr(at_once, "rerecord_sealed", lambda *args: sealed(*args[:6], False))


@pytest.fixture
def computed(monkeypatch):
    """A function that turns to that way."""
    return lambda: compute_all(monkeypatch)


@pytest.fixture
def gradients(monkeypatch):
    """Of each gradient on the way whether its value was left out."""
    found = []
    for module, name in ((transforms, "grad_of_active"), (tangents, "grad_of_active")):
        before = getattr(module, name)

        def noting(*args, before=before, **rest):
            out = before(*args, **rest)
            if rest.get("without_values"):
                found.append([g is not None and deferred._is_deferred(g._v) for g in out])
            return out

        monkeypatch.setattr(module, name, noting)
    return found


def network(x, y):
    def loss(a, b, c):
        return np.mean((np.tanh(np.tanh(x @ a) @ b) @ c - y) ** 2)

    return loss


def values(random, shape, dtype):
    found = random.normal(size=shape) / max(shape[0], 1) ** 0.5
    if dtype in "FD":
        found = found + 1j * random.normal(size=shape) / max(shape[0], 1) ** 0.5
    return found.astype(dtype)


def alike(found, wanted):
    assert type(found) is type(wanted)
    if isinstance(found, (tuple, list)):
        for mine, other in zip(found, wanted, strict=True):
            alike(mine, other)
    else:
        assert np.asarray(found).dtype == np.asarray(wanted).dtype
        np.testing.assert_array_equal(found, wanted)


def both_ways(call, computed):
    """What a call gives, the same to the last bit as where all values are computed."""
    found = [call() for _ in range(MANY)]
    computed()
    wanted = call()
    for mine in found[1:]:
        alike(mine, found[0])
    alike(found[0], wanted)
    return found[0]


def test_gradients_of_a_network_are_not_computed(random, gradients, computed):
    x, y = random.normal(size=(30, 40)), random.normal(size=(30, 1))
    weights = [values(random, shape, "d") for shape in ((40, 50), (50, 60), (60, 1))]
    v = tuple(random.normal(size=w.shape) for w in weights)
    product = tg.func.hvp(network(x, y), (0, 1, 2))
    both_ways(lambda: product(*weights, v), computed)
    assert gradients[MANY - 1] == [True, True, False]  # a small one is kept with its record
    assert gradients[MANY] == [False, False, False]


@pytest.mark.parametrize("dtype", "fdFD")
@pytest.mark.parametrize("more", [-1, 0, 1, 10_000])
def test_products_of_every_size(more, dtype, random, gradients, computed):
    """Of so many elements more than are kept whatever reads them."""
    n = tapes.LARGE // np.dtype(dtype).itemsize + more
    a, b = values(random, (n, 1), dtype), values(random, (1, n), dtype)
    c, d = values(random, (7, n), dtype), values(random, (n, 5), dtype)

    def f(a, b, d):
        y = np.sin(c @ a) @ (b @ np.square(d)) + np.sum(np.square(a @ b[:, :3]))
        return np.real(np.sum(y * np.conj(y)))

    v = tuple(values(random, x.shape, dtype) for x in (a, b, d))
    product = tg.func.hvp(f, (0, 1, 2))
    found = both_ways(lambda: product(a, b, d, v), computed)
    eps = np.finfo(dtype).eps ** 0.5
    slope = tg.func.grad(f, (0, 1, 2))
    high, low = (
        slope(*(x + s * eps * t for x, t in zip((a, b, d), v, strict=True))) for s in (np.float32(1), -1)
    )
    for mine, up, down in zip(found, high, low, strict=True):
        scale = np.max(np.abs(mine))
        np.testing.assert_allclose(mine, (up - down) / (2 * eps), rtol=0, atol=100 * eps * scale)


def recurrent(x, steps):
    """A loss in which a matrix is used again and again."""

    def loss(w):
        h = x
        for _ in range(steps):
            h = np.tanh(h @ w)
        return np.sum(h * h)

    return loss


@pytest.mark.parametrize("steps", [2, 40, 1500])
def test_many_products_for_one_gradient(steps, random, gradients, computed):
    """Their sum is not computed either, and is let go of however long it is."""
    x, w = random.normal(size=(4, 24)), values(random, (24, 24), "d")
    v = random.normal(size=w.shape)
    product = tg.func.hvp(recurrent(x, steps), 0)
    both_ways(lambda: product(w, v), computed)
    assert gradients[MANY - 1 :] == [[True], [False]]


@pytest.mark.parametrize("records", [1, 5, 16, 4096])
def test_tapes_of_every_length(records, random, computed, monkeypatch):
    monkeypatch.setattr(tapes, "MAX_RECORDS", records)
    x, y = random.normal(size=(30, 40)), random.normal(size=(30, 1))
    weights = [values(random, shape, "d") for shape in ((40, 50), (50, 60), (60, 1))]
    v = tuple(random.normal(size=w.shape) for w in weights)
    product, moved = tg.func.hvp(network(x, y), (0, 1, 2)), tg.func.jvp(network(x, y), (0, 1, 2))
    both_ways(lambda: (product(*weights, v), moved(*weights, v)), computed)


def written(a, b):
    """An argument that has been written to."""
    a[0] = np.sin(a[1] @ b)
    a *= 2.0
    return a


PROGRAMS = {
    "a product and elements": lambda a, b: np.sum(np.sin(a @ b)) + np.sum(a * a * b),
    "a view": lambda a, b: np.sum(np.sin(a.T @ b[:, :7])) + np.sum(np.cos(b.reshape(-1)[3:50])),
    "the same twice": lambda a, b: np.sum(np.tanh(a @ a) + np.tanh(a @ a.T)) + np.sum(b),
    "a gradient that is read": lambda a, b: np.sum(np.exp(0.1 * np.sin(a) @ np.cos(b))),
    "moved, summed, read": lambda a, b: np.sum(np.square((np.exp(a)[None] - b[:, None])[:, :, ::2] @ a[::2])),
    "signs and sums": lambda a, b: np.sum(np.cos((3.0 - a) @ (b[0] - 2.0 * b))),
    "a choice": lambda a, b: np.sum(np.where(a > 0, a @ b, b @ a) ** 2),
    "linear": lambda a, b: np.sum(a @ b),
    "einsum": lambda a, b: np.sum(np.einsum("ij,jk,lk->il", a, b, a) ** 2),
    "outer": lambda a, b: np.sum(np.sin(np.outer(a[0], b[1])) @ a),
    "solve": lambda a, b: np.sum(np.linalg.solve(a + 30 * np.eye(24), b) ** 2),
    "written to": lambda a, b: np.sum(written(a, b) @ b),
    "an index": lambda a, b: np.sum(np.sin(a[[1, 2, 2]] @ b)) + np.sum(np.cos(a[:, [0, 5]].T @ b)),
    "only one": lambda a, b: np.sum(np.sin(b @ b)),
}


@pytest.mark.parametrize("dtype", "fd")
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name, dtype, random, computed):
    """Second derivatives by products, in lanes, forward; by torch's way of writing them, too."""
    f = PROGRAMS[name]
    a, b, v, w = (values(random, (24, 24), dtype) for _ in range(4))

    def call():
        product = tg.func.hvp(f, (0, 1))(a, b, (v, w))
        moved = tg.func.jvp(f, (0, 1))(a, b, (v, w))
        pushed = tg.func.linearize(lambda a, b: np.tanh(a @ b) @ a, (0, 1))(a, b)[1]((v, w))
        gauss = tg.func.ggnvp(lambda a: np.tanh(a @ b), lambda y: np.sum(y**4))(a, v)
        return product, moved, pushed, gauss

    found = both_ways(call, computed)
    x, y = (tg.tensor(z, requires_grad=True) for z in (a, b))
    slopes = tg.grad(f(x * 1.0, y * 1.0), [x, y], create_graph=True, materialize_grads=True)
    total = sum(np.sum(g * z) for g, z in zip(slopes, (v, w), strict=True))
    if total.requires_grad:
        wanted = tg.grad(total, [x, y], materialize_grads=True)
    else:
        wanted = np.zeros((2, *a.shape))
    for mine, other in zip(found[0], wanted, strict=True):
        scale = np.max(np.abs(np.asarray(other)), initial=1e-3)
        np.testing.assert_allclose(mine, np.asarray(other), rtol=0, atol=200 * np.finfo(dtype).eps * scale)


def test_derivatives_within_derivatives(random, computed):
    """What is left out of a gradient within is there where the outer one reads it."""
    a, v, u = (values(random, (24, 24), "d") for _ in range(3))

    def f(a):
        return np.sum(np.tanh(a @ np.sin(a)))

    def call():
        curved = tg.func.grad(lambda a: np.sum(tg.func.hvp(f)(a, v) * u))(a)
        slope = tg.func.hvp(lambda a: np.sum(tg.func.grad(f)(a) ** 2))(a, v)
        moved = tg.func.jvp(lambda a: tg.func.hvp(f)(a, v), 0)(a, u)
        twice = tg.func.hvp(lambda a: tg.func.jvp(f)(a, v)[1])(a, u)
        x = tg.tensor(a, requires_grad=True)
        outside = tg.grad(np.sum(tg.func.hvp(f)(x, v) ** 2), x)[0].numpy()
        direction = tg.tensor(v, requires_grad=True)
        along = tg.grad(np.sum(tg.func.hvp(f)(a, direction) * u), direction)[0].numpy()
        return curved, slope, moved, twice, outside, along

    curved, _, moved, twice, _, along = both_ways(call, computed)
    scale = np.max(np.abs(curved))
    np.testing.assert_allclose(
        moved[1], curved, rtol=0, atol=1e-12 * scale
    )  # third derivatives are symmetric
    np.testing.assert_allclose(twice, curved, rtol=0, atol=1e-12 * scale)
    np.testing.assert_allclose(along, tg.func.hvp(f)(a, u), rtol=0, atol=1e-12 * np.max(np.abs(along)))


def test_matrices_of_second_derivatives(random, computed):
    x = random.normal(size=(3, 600))

    def f(w):
        return np.sum(np.tanh(x * 0.1 @ w) ** 2)

    w = random.normal(size=(600, 2)) / 25
    both_ways(lambda: (tg.func.laplacian(f)(w), tg.func.hessian(f)(w[:300].repeat(2, 0))), computed)


SEEN = []  # by the rule below


class Doubled(tg.autograd.Function):
    """Twice a Tensor, with a rule in Python that looks at what it gets."""

    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, ct):
        SEEN.append(ct._v.copy())
        return 2 * ct


@pytest.mark.parametrize("records", [1, 2, 3, 5, 8, 13, 4096])
def test_a_rule_in_python_sees_the_value(records, random, computed, monkeypatch):
    """Of a user on the same tape or an older one."""
    monkeypatch.setattr(tapes, "MAX_RECORDS", records)
    a, b, v = (values(random, (24, 24), "d") for _ in range(3))

    def f(a):
        return np.sum(np.sin(b @ Doubled.apply(a)))

    SEEN.clear()
    product = tg.func.hvp(f)
    both_ways(lambda: product(a, v), computed)
    assert np.all(np.isfinite(SEEN))


def test_a_rule_without_a_program_sees_the_value(random, computed):
    a, b, v = (values(random, (24, 24), "d") for _ in range(3))
    product = tg.func.hvp(lambda a: np.sum(np.sin(b @ expm(a / 4.0))))
    assert np.all(np.isfinite(both_ways(lambda: product(a, v), computed)))


def test_an_error_on_the_way_leaves_nothing(random):
    a, v = (values(random, (24, 24), "d") for _ in range(2))

    class Refused(tg.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return 2 * x

        @staticmethod
        def backward(ctx, ct):
            raise KeyboardInterrupt

    def f(a, how):
        return np.sum(np.sin(v @ how(a @ v)))

    product = tg.func.hvp(f)
    wanted = product(a, lambda x: 2 * x, v)
    for _ in range(MANY):
        with pytest.raises(KeyboardInterrupt):
            product(a, Refused.apply, v)
        alike(product(a, lambda x: 2 * x, v), wanted)


def test_nothing_remains(random):
    """What a deferred value is computed from goes with it."""
    a = values(random, (40, 40), "d")
    seen = []

    def f(a):
        y = np.sin(a @ a)
        seen.append(weakref.ref(y._v))
        return np.sum(y * y)

    for _ in range(MANY):
        tg.func.hvp(f)(a, a)
    gc.collect()
    assert all(reference() is None for reference in seen)


def test_a_value_is_nan_until_it_is_computed(random):
    """So whatever should look at it notices."""
    found = []
    before = transforms.grad_of_active

    def noting(*args, **rest):
        out = before(*args, **rest)
        if rest.get("without_values"):
            (g,) = out
            assert np.all(np.isnan(g._v))
            assert g.shape == (24, 24)
            deferred.compute_deferred(g)
            found.append(g._v.copy())
        return out

    a = values(random, (24, 24), "d")
    b = values(random, (30, 24), "d")

    def f(a):
        return np.sum(np.sin(b @ a)) + np.sum(np.cos(b @ (a.T + 1.0)))

    wanted = tg.func.hvp(f)(a, a)
    for _ in range(MANY):
        tg.func.hvp(f)(a, a)
    transforms.grad_of_active = noting
    try:
        alike(tg.func.hvp(f)(a, a), wanted)
    finally:
        transforms.grad_of_active = before
    np.testing.assert_allclose(found[0], tg.func.grad(f)(a), rtol=1e-13, atol=1e-13)


def test_torchs_products(random):
    torch = pytest.importorskip("torch")
    x, y = random.normal(size=(30, 40)), random.normal(size=(30, 1))
    weights = [values(random, shape, "d") for shape in ((40, 50), (50, 60), (60, 1))]
    v = tuple(random.normal(size=w.shape) for w in weights)

    def loss(a, b, c):
        return torch.mean((torch.tanh(torch.tanh(torch.tensor(x) @ a) @ b) @ c - torch.tensor(y)) ** 2)

    given, direction = (tuple(map(torch.tensor, leaves)) for leaves in (weights, v))
    _, wanted = torch.autograd.functional.hvp(loss, given, direction)
    for _ in range(MANY):
        for mine, other in zip(tg.func.hvp(network(x, y), (0, 1, 2))(*weights, v), wanted, strict=True):
            np.testing.assert_allclose(mine, other.numpy(), rtol=0, atol=1e-13 * np.max(np.abs(mine)))


@pytest.mark.parametrize("n", [3, 1000, 20_000])
def test_a_direction_is_read_and_no_part_of_the_result(n, random):
    """Also where the Hessian is the unit matrix."""
    x, v = random.normal(size=(2, n))
    before = v.copy()
    for f in (lambda x: 0.5 * np.sum(x * x), lambda x: np.sum(x[::-1] * x), lambda x: 0.5 * x @ x):
        for _ in range(MANY):
            found = tg.func.hvp(f)(x, v)
            assert not np.shares_memory(found, v)
            found += 1.0
            np.testing.assert_array_equal(v, before)
    np.testing.assert_array_equal(tg.func.hvp(f)(x, v[::-1]), before[::-1])
    np.testing.assert_array_equal(tg.func.hvp(f)(x, v.astype(np.float32)), before.astype(np.float32))


STEPS = [
    lambda x, y, c: x @ y, lambda x, y, c: x @ c, lambda x, y, c: c @ x, lambda x, y, c: x.T @ y,
    lambda x, y, c: np.tanh(x) @ (y * c), lambda x, y, c: np.einsum("ij,kj->ik", x, y),
    lambda x, y, c: np.sin(x), lambda x, y, c: x * y, lambda x, y, c: x + y, lambda x, y, c: x - c,
    lambda x, y, c: -x, lambda x, y, c: x.T, lambda x, y, c: np.sum(x, axis=0, keepdims=True) + y,
    lambda x, y, c: np.concatenate([x[:2], y[2:]]),
]  # fmt: skip


def random_program(seed):
    """A function of two matrices, these, and directions."""
    choose, random = python_random.Random(seed), np.random.default_rng(seed)
    dtype, m = choose.choice("fdFD"), choose.choice([5, 16, 22, 23, 24, 32, 33])
    steps = [choose.choice(STEPS) for _ in range(choose.randrange(3, 14))]
    places = [(choose.randrange(k + 2), choose.randrange(k + 2)) for k in range(len(steps))]
    a, b, v, w, *constants = (values(random, (m, m), dtype) for _ in range(4 + len(steps)))

    def f(a, b):
        known = [a, b]
        for step, (i, j), c in zip(steps, places, constants, strict=True):
            known.append(step(known[i], known[j], c))
        return np.sum(np.real(known[-1] * np.conj(known[-1]))) + np.sum(np.real(known[len(known) // 2]))

    return f, a, b, v, w, choose.choice([4096, 4096, 9, 3])


@pytest.mark.parametrize("seeds", [range(25), pytest.param(range(25, 3000), marks=pytest.mark.slow)], ids=str)
@pytest.mark.filterwarnings("ignore")
def test_random_programs(seeds):
    for seed in seeds:
        with pytest.MonkeyPatch.context() as patch, np.errstate(all="ignore"):
            f, a, b, v, w, records = random_program(seed)
            patch.setattr(tapes, "MAX_RECORDS", records)

            def call(f=f, a=a, b=b, v=v, w=w):
                return tg.func.hvp(f, (0, 1))(a, b, (v, w)), tg.func.jvp(f, (0, 1))(a, b, (v, w))

            found = [call() for _ in range(MANY)]
            compute_all(patch)
            wanted = call()
        for mine in found:
            alike(mine, wanted)
