"""Gradients of results on tapes that take no more records: swept before, sealed, pruned, of other threads."""

import gc
import sys
import threading
import weakref

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.engine.plan import SMALL, SMALL_BYTES
from tapegrad.errors import GraphFreedError, MutationError
from tapegrad.kernels import abi
from tapegrad.kernels.replay import layout
from tapegrad.tape import tape as tapes

at_once = sys.modules["tapegrad.autograd.at_once"]
backward = sys.modules["tapegrad.autograd.backward"]
pytestmark = pytest.mark.usefixtures("compiled")


@pytest.fixture
def no_engine(monkeypatch):
    """Let nothing but the compiled call find gradients, where there is one, once kernels are loaded."""
    for dtype in "float64", "float32":
        x, z = leaf(dtype=dtype), leaf(dtype=dtype)
        (np.sum(np.sin(x) * z) + np.sum(x * z)).backward()
    if abi.native() and not layout.BOUNDS:
        monkeypatch.setattr(backward, "run", lambda *_: pytest.fail("the engine sweeps"))


def leaf(n=5, dtype=float):
    return tg.tensor(np.random.default_rng(n).uniform(0.5, 1.5, n).astype(dtype), requires_grad=True)


def leave(y):
    tapes.leave(y._tape)


def seal(y):
    leave(y)
    y._tape.seal()


def prune(y):
    leave(y)
    y._tape.prune()


WAYS = {"open": lambda y: None, "left": leave, "sealed": seal, "pruned": prune}
PROGRAMS = {
    "chain": lambda x, z: np.sum(np.sin(x * z) / z + x),
    "views": lambda x, z: (x[1:] * z[:-1]).sum() + x.reshape(-1, 1).T.sum() + z[2] * x[0],
    "products": lambda x, z: (x[:, None] * z) @ x @ z,
    "written": lambda x, z: np.sum(written(x * z, z[0])) * x[1],
    "joined": lambda x, z: np.sum(np.concatenate([x, z[:2]]) * np.stack([x[0]] * (x.size + 2))),
    "constants": lambda x, z: np.sum(x * np.arange(x.size) + np.ones(x.size) @ z),
    "scan": lambda x, z: np.sum(np.cumprod(x) * np.cumsum(z)),
    "a rule in Python": lambda x, z: np.linalg.norm(np.outer(x, z)[:3, :3] + np.eye(3)) * x[0],
}


def written(y, v):
    y[1] = v
    return y


@pytest.mark.parametrize("dtype", ["float64", "float32", "complex128"])
@pytest.mark.parametrize("n", [5, 300])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients_are_those_of_an_open_tape(name, way, n, dtype):
    """Kept for another sweep, then released; with what is computed afterwards on another tape beside it."""

    def outcome(change):
        x, z = leaf(n, dtype), leaf(n, dtype)
        y = np.real(PROGRAMS[name](x, z))
        found = []
        for retain in (True, True, False):
            change(y)
            np.sum(np.real(x * z)).backward()
            found += tg.grad(y, (z, x), retain_graph=retain)
        with pytest.raises(GraphFreedError):
            tg.grad(y, x)
        y = np.real(PROGRAMS[name](x, z))
        change(y)
        y.backward(retain_graph=True)
        y.backward()
        return [g.numpy() for g in (*found, x.grad, z.grad)]

    for found, expected in zip(outcome(WAYS[way]), outcome(WAYS["open"]), strict=True):
        np.testing.assert_allclose(found, expected, rtol=64 * np.finfo(dtype).eps)


@pytest.mark.parametrize("way", WAYS)
def test_the_engine_is_not_needed(way, no_engine):
    x, z = leaf(), leaf()
    y, w = np.sum(np.sin(x) * z), np.sum(x * z)
    WAYS[way](y)
    for _ in range(2):
        tg.grad(y, x, retain_graph=True)
        y.backward(retain_graph=True)
    y.backward()
    w.backward()  # of the same tape, of which something was released
    of_y = np.cos(x.detach().numpy()) * z.detach().numpy()
    np.testing.assert_allclose(x.grad.numpy(), 3 * of_y + z.detach().numpy(), rtol=1e-14)


@pytest.mark.parametrize("way", WAYS)
def test_what_was_released_is_refused(way):
    x, z = leaf(), leaf()
    u = np.sin(x) * z
    y, w, v = np.sum(u * u), np.sum(u * z), np.sum(x * z)
    WAYS[way](y)
    y.backward()
    x.grad = z.grad = None
    for graph in (y, w):
        with pytest.raises(GraphFreedError):
            graph.backward()
        with pytest.raises(GraphFreedError):
            tg.grad(graph, x)
    assert x.grad is None
    v.backward()
    assert x.grad.tolist() == z.tolist()
    with pytest.raises(GraphFreedError):
        v.backward()


@pytest.mark.parametrize("way", WAYS)
def test_arrays_written_to_are_noticed(way):
    x, a = leaf(3000), np.ones(3000)
    y = np.sum(x * a)
    WAYS[way](y)
    tg.grad(y, x, retain_graph=True)
    a[5] = 2.0
    with pytest.raises(MutationError):
        tg.grad(y, x, retain_graph=True)
    a[5] = 1.0
    assert tg.grad(y, x)[0].tolist() == a.tolist()


@pytest.mark.parametrize("retain", [True, False])
@pytest.mark.parametrize("way", WAYS)
def test_results_of_another_thread(way, retain, no_engine):
    found = []

    def record():
        x = leaf()
        y = np.sum(x * x)
        WAYS[way](y)
        found.extend([x, y])

    thread = threading.Thread(target=record)
    thread.start()
    thread.join()
    x, y = found
    leave(y)
    assert tg.grad(y, x, retain_graph=retain)[0].tolist() == (2 * x).tolist()


@pytest.mark.parametrize("way", ["left", "sealed", "pruned"])
def test_large_values_go_when_they_are_released(way):
    """Though the result lives on, and the tape is not pruned again."""
    x = leaf(SMALL_BYTES // 8)
    y = np.sum(np.exp(x) * np.exp(x))
    WAYS[way](y)
    tg.grad(y, x, retain_graph=True)
    tg.grad(y, x)
    values = y._tape.sealed().values
    assert sum(v.nbytes for v in values if isinstance(v, np.ndarray)) <= x.size * 8


def test_records_go_when_they_are_released():
    """Of a tape with many records, all of which a result of it kept."""
    x, kept = tg.tensor(1.5, requires_grad=True), []
    y = x
    for k in range(SMALL + 1):
        y = y * np.array([1.0, 2.0])
        if k == 5:
            kept = weakref.ref(y._v)
    seal(y)
    tg.grad(y, x, np.ones(2))
    gc.collect()
    assert kept() is None
    assert y.shape == (2,)


SEEDS = {
    "a list": [0.5, 1.0, 2.0], "float32": np.float32([0.5, 1, 2]), "integers": np.array([1, 2, 3]),
    "reversed": np.array([2.0, 1.0, 0.5])[::-1], "strided": np.arange(6.0)[::2],
    "broadcast": np.broadcast_to(1.5, 3), "read-only": np.frombuffer(np.arange(3.0).tobytes()),
    "a Tensor": tg.tensor([0.5, 1.0, 2.0]), "a Tensor of integers": tg.tensor([1, 2, 3]),
}  # fmt: skip


@pytest.mark.parametrize("retain", [None, True])
@pytest.mark.parametrize("name", SEEDS)
def test_cotangents_of_every_kind(name, retain, no_engine):
    x, seed = leaf(3), SEEDS[name]
    seed = [np.array(seed)] if isinstance(seed, list) else seed
    weights = np.asarray(seed if not isinstance(seed, tg.Tensor) else seed.numpy(), float).ravel()
    expected = weights * np.cos(x.detach().numpy())
    for found in (
        tg.grad(np.sin(x), x, seed, retain_graph=retain)[0],
        tg.grad(np.sin(x), {"x": x}, seed, retain_graph=retain)["x"],
        tg.grad([np.sin(x)], [x], seed, retain, materialize_grads=True)[0],
    ):
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-15)
        assert not np.shares_memory(found.numpy(), weights)
    for more in ({}, {"inputs": x}):
        x.grad = None
        np.sin(x).backward(seed, retain, **more) if not isinstance(seed, list) else tg.backward(
            [np.sin(x)], seed, retain, **more
        )
        np.testing.assert_allclose(x.grad.numpy(), expected, rtol=1e-15)


@pytest.mark.parametrize("seed", [2, 2.0, True, np.float32(2), np.array(2.0), np.array(2), np.int64(2)])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_cotangents_that_are_numbers(seed, dtype, no_engine):
    x = tg.tensor(np.dtype(dtype).type(3), requires_grad=True)
    (g,) = tg.grad(x * x, x, seed)
    assert (g.item(), g.dtype, g.shape) == (6.0 * seed, dtype, ())
    (x * x).backward(seed)
    assert x.grad.item() == 6.0 * seed


def test_backward_of_some_leaves(no_engine):
    x, z = leaf(), leaf()
    (x * z).sum().backward(inputs=[x, x])
    tg.backward([(x * z).sum()], inputs={"z": z})
    assert x.grad.tolist() == z.tolist()
    assert z.grad.tolist() == x.tolist()
    (x * z).sum().backward(inputs=x)
    assert x.grad.tolist() == (z * 2).tolist()


HOOKS = {
    "looks": lambda y, x: y.register_hook(lambda g: None),
    "changes": lambda y, x: y.register_hook(lambda g: g * 2),
    "in place": lambda y, x: y.register_hook(lambda g: [g.mul_(2), None][1]),
    "pre": lambda y, x: y.grad_fn.register_prehook(lambda gs: (gs[0] * 2,)),
    "post": lambda y, x: y.grad_fn.register_hook(lambda gs, _: tuple(g if g is None else g * 2 for g in gs)),
    "leaf": lambda y, x: x.register_hook(lambda g: g * 2),
}


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize("way", ["left", "sealed", "pruned"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_hooks_on_tapes_that_were_left(name, way, hook, request):
    """As on an open one, to the bit, also where the values of what has hooks are not kept."""

    def outcome(change):
        x, z = leaf(), leaf()
        a, b = x + z, x[1:] - z[1:]
        c = a.sum()
        for y in (a, b, c):
            HOOKS[hook](y, x)
        y = PROGRAMS[name](a * c, z) + b.sum()
        a = b = c = None
        change(y)
        found = tg.grad(y, (z, x), retain_graph=True)
        y.backward(inputs=[x], retain_graph=True)
        y.backward()
        return [g.tolist() for g in (*found, x.grad, z.grad)]

    outcome(WAYS["open"])  # compiles
    expected = outcome(WAYS["open"])
    request.getfixturevalue("no_engine")
    assert outcome(WAYS[way]) == expected


@pytest.mark.parametrize("shape", [(), (3,)])
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128", "longdouble"])
def test_hooks_see_what_the_value_was_like(dtype, shape):
    """Though a pruned tape does not keep it."""
    x, seen = tg.tensor(np.ones(shape, dtype), requires_grad=True), []
    y = x + x
    y.register_hook(lambda g: seen.append((g.shape, g.dtype, type(g._v))))
    total = np.real(np.sum(y * x))
    kind = type(y._v)
    del y
    prune(total)
    total.backward()
    assert seen == [(shape, np.dtype(dtype), kind)]
    np.testing.assert_array_equal(x.grad.numpy(), np.full(shape, 4, dtype))


@pytest.mark.parametrize("retain", [False, True])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("of", ["result", "leaf"])
def test_a_hook_that_raises(of, way, retain):
    """Nothing was released or added, no claim is left, and the next sweep finds all."""
    x, z, fails = leaf(), leaf(), [True]

    def fail(g):
        if fails:
            raise ZeroDivisionError

    y = x * z
    total = np.sum(y * np.sin(y))
    (x if of == "leaf" else y).register_hook(fail)
    WAYS[way](total)
    for sweep in (total.backward, lambda **given: tg.grad(total, x, **given)):
        with pytest.raises(ZeroDivisionError):
            sweep(retain_graph=retain)
    assert x.grad is z.grad is None
    assert not total._tape.claims
    fails.clear()
    total.backward(retain_graph=retain)
    at = x.detach().numpy() * z.detach().numpy()
    np.testing.assert_allclose(
        x.grad.numpy(), (np.sin(at) + at * np.cos(at)) * z.detach().numpy(), rtol=1e-13
    )


@pytest.mark.parametrize("way", WAYS)
def test_a_hook_that_writes_and_sweeps(way):
    """To what was recorded, which stays what it was; through the same tape, and another one."""
    x, z, seen = leaf(), leaf(), []
    y = x * z
    w = y * y
    total = np.sum(w)
    expected = tg.grad(total, x, retain_graph=True)[0].tolist()

    def hook(g):
        attached.remove()
        y[1:] = 7.0
        w.mul_(3.0)
        seen.append(tg.grad(total, x, retain_graph=True)[0].tolist())
        with tg.enable_grad():
            seen.append(tg.grad(np.sum(x * x), x)[0].tolist())
        total._tape.prune()

    attached = total.register_hook(hook)
    WAYS[way](total)
    assert tg.grad(total, x, retain_graph=True)[0].tolist() == expected
    assert seen == [expected, (2 * x).tolist()]


@pytest.mark.parametrize("way", ["left", "sealed", "pruned"])
def test_threads_sweep_a_tape_with_hooks_that_was_left(way):
    x, seen, found = leaf(), [], []
    y = x * x
    y.register_hook(lambda g: seen.append(threading.get_ident()) or g * 2)
    total = np.sum(np.linalg.inv(np.eye(5) + 0.01 * y) @ y)
    WAYS[way](total)
    expected = tg.grad(total, x, retain_graph=True)[0].tolist()
    seen.clear()

    def work():
        for _ in range(50):
            found.append(tg.grad(total, x, retain_graph=True)[0].tolist())

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    np.testing.assert_allclose(found, [expected] * 200, rtol=1e-14)
    assert len(seen) == 200
    assert not total._tape.claims


@pytest.fixture
def with_links():
    """A leaf that an older tape has, a result there, and one on the open tape that goes on from that."""
    x = leaf()
    np.sum(np.sin(x)).backward()  # compiles
    np.sum(np.cos(x) * x).backward()
    x = leaf()
    old = np.sum(x * x)
    leave(old)
    new = old * 2.0
    assert new._tape is not old._tape
    return x, old, new


@pytest.mark.parametrize("sealed", [False, True])
@pytest.mark.parametrize("create", [False, True])
def test_a_tape_with_links_that_lead_elsewhere(with_links, create, sealed, request):
    """Is swept as if it had none, by any leaf."""
    x, _, new = with_links
    request.getfixturevalue("no_engine")
    y = np.sum(np.sin(x)) + 0.0 * new.detach()
    if sealed and not create:
        seal(y)
    (g,) = tg.grad(y, x, create_graph=create, retain_graph=True)
    np.testing.assert_allclose(g.tolist(), np.cos(x.tolist()), rtol=1e-15)
    if create:
        (h,) = tg.grad(np.sum(g), x)
        np.testing.assert_allclose(h.tolist(), -np.sin(x.tolist()), rtol=1e-15)
    for _ in range(2):
        y.backward(retain_graph=True)
    np.testing.assert_allclose(x.grad.tolist(), 2 * np.cos(x.tolist()), rtol=1e-15)


@pytest.mark.parametrize("create", [False, True])
@pytest.mark.parametrize("late", [False, True])
def test_a_tape_with_links_that_are_reached(with_links, create, late):
    """Also where the leaf is imported there after what leads to the older tape."""
    x, old, new = with_links
    y = np.sum(x * new) if late else new * np.sum(x * 1.0) + new
    at = x.detach().numpy()
    along = 4 * at * at.sum() + 2 * (at**2).sum() + (0 if late else 4 * at)
    (g,) = tg.grad(y, x, create_graph=create, retain_graph=True)
    np.testing.assert_allclose(g.tolist(), along, rtol=1e-14)
    y.backward(retain_graph=True, create_graph=create)
    np.testing.assert_allclose(x.grad.tolist(), along, rtol=1e-14)
    (g,) = tg.grad(y, old, create_graph=create, retain_graph=True)
    assert g.item() == pytest.approx(2 * (at.sum() + (0 if late else 1)), rel=1e-14)


def test_links_to_what_was_released(with_links):
    x, old, new = with_links
    old.backward()
    with pytest.raises(GraphFreedError):
        tg.grad(new + np.sum(x), x)
    assert tg.grad(np.sum(x * 3.0), x)[0].tolist() == [3.0] * 5


def test_retained_on_an_older_tape(with_links):
    """By `retain_grad`: it is found where a way leads there, and there alone."""
    x, old, new = with_links
    old.retain_grad()
    np.sum(x * 3.0).backward()
    assert old.grad is None
    new.backward()
    assert old.grad.item() == 2.0
