"""Finalizers that record and differentiate, run by the collector between any two lines of the library.

``python tests/test_finalizers.py COUNT`` takes that many gradients beside them and prints how many finalizers
ran, how many of those failed, and how many gradients were wrong or could not be had.
"""

import collections
import contextlib
import contextvars
import gc
import itertools
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.core import dispatch
from tapegrad.errors import GradientError
from tapegrad.kernels import abi, machine
from tests import finalizers
from tests.tiers import every, thinned

SMALL, LARGE = np.linspace(0.1, 1.0, 5), np.linspace(0.1, 1.0, 2000)
MANY = 20  # finalizers that a gradient meets
LATEST = 300  # collections before the first of them


def leaf(value):
    return tg.tensor(value, requires_grad=True)


class Square(tg.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        return 2 * ctx.saved_tensors[0] * g


def scalars(x):
    y = x[0]
    for _ in range(10):
        y = np.sin(y) * x[1] + 0.5
    return y


def arrays(x):
    return np.sum(np.sin(x) * np.exp(x) / (1.0 + x * x))


def reductions(x):
    return np.mean(x * x) + np.max(x) + np.linalg.norm(x) + np.var(x)


def views(x):
    return np.sum(x[1:] * x[:-1]) + np.sum(np.reshape(x, (-1, 5)).T[0] ** 2)


def writes(x):
    y = x * 2.0
    y[1:3] = np.sin(x[0:2])
    y[0] *= x[4]
    y[2:] += x[:-2]
    return np.sum(y * y)


def several(x):
    return np.sum(np.where(x > 0.5, x * x, np.cos(x)) * np.concatenate([x[2:], x[:2]]))


def constants(x):
    return np.sum(x * SMALL.mean() + np.ones(x.shape) * x)


def functions(x):
    y = Square.apply(x)
    y.register_hook(lambda g: g * 2)
    return np.sum(y * x)


def higher(x):
    (g,) = tg.grad(arrays(x), x, create_graph=True)
    return np.sum(g * g)


def forward(x):
    with tg.autograd.forward_ad.dual_level():
        dual = tg.autograd.forward_ad.make_dual(x, tg.tensor(np.ones(x.shape)))
        return tg.autograd.forward_ad.unpack_dual(arrays(dual)).tangent


def recomputed(x):
    return tg.autograd.checkpoint(arrays, x)


def by_grad(f, at):
    x = leaf(at)
    return tg.grad(f(x), x)[0].numpy()


def by_backward(f, at):
    x = leaf(at)
    f(x).backward()
    return x.grad.numpy()


PROGRAMS = (
    scalars, arrays, reductions, views, writes, several, constants, functions, higher, forward, recomputed,
)  # fmt: skip
CASES = [(f, at, way) for f in PROGRAMS for at in (SMALL, LARGE) for way in (by_grad, by_backward)]


class Late:
    """An object in a cycle that records and differentiates when it is collected, and leaves another such.

    The first so many do nothing but that.
    """

    at_work = ran = wrong = 0

    def __init__(self, idle, left, other):
        self.itself, self.idle, self.left, self.other = self, idle, left, other

    def __del__(self):
        if Late.at_work:
            return
        if self.idle:
            Late(self.idle - 1, self.left, self.other)
            return
        Late.at_work = 1
        try:
            # in a context of its own, see `finalizers.Cycle`
            contextvars.Context().run(self.work)
            Late.ran += 1
        finally:
            Late.at_work = 0

    def work(self):
        if self.left:
            Late(0, self.left - 1, self.other)
        x = leaf(SMALL)
        y = np.sin(x) * x
        y[0] = x[1] * 2.0
        exact = np.cos(SMALL) * SMALL + np.sin(SMALL)
        exact[0], exact[1] = 0.0, exact[1] + 2.0
        self.kept = np.sum(y * self.other)  # its tape dies later, or now
        if self.left % 2:
            (g,) = tg.grad(np.sum(y), x)
            Late.wrong += not np.allclose(g.numpy(), exact, rtol=1e-12)


def measure(count):
    gc.disable()
    expected = [way(f, at) for f, at, way in CASES]
    lost = []
    sys.unraisablehook = lambda what: lost.append(f"in a finalizer: {what.exc_value!r:.100}")
    random, failed = np.random.default_rng(1), collections.Counter()
    other, before = np.sin(leaf(SMALL)), gc.get_threshold()
    gc.set_threshold(5)
    for k in range(count):
        f, at, way = CASES[k % len(CASES)]
        Late(random.integers(LATEST), MANY, other)
        gc.enable()
        try:
            found = way(f, at)
        except Exception as error:
            failed[f"{f.__name__}, {way.__name__}, {len(at)} elements: {error!r:.100}"] += 1
        else:
            if not np.allclose(found, expected[k % len(CASES)], rtol=1e-12):
                failed[f"{f.__name__}, {way.__name__}, {len(at)} elements: wrong"] += 1
        gc.disable()
    gc.set_threshold(*before)
    failed.update(lost)
    print(Late.ran, Late.wrong, failed.total())
    for what, times in failed.most_common(20):
        print(times, what)


@pytest.mark.parametrize("count", [2 * len(CASES), pytest.param(20_000, marks=pytest.mark.slow)])
def test_gradients_beside_recording_finalizers(count):
    environment = os.environ | {"PYTHONPATH": str(Path(tg.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, __file__, str(count)],
        capture_output=True, text=True, timeout=60 + count, check=False, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    ran, wrong, failed = map(int, done.stdout.split("\n")[0].split())
    assert (wrong, failed) == (0, 0), done.stdout
    assert ran > 5 * count


# ---------------------------------------------------------------- views made of what is being written to


def without_history(y):
    with tg.no_grad():
        return y[1:4]


VIEWS = {
    "view": lambda y: y[1:4], "detached": lambda y: y.detach()[1:4], "without history": without_history,
    "reshaped": lambda y: y.reshape(2, 3)[:, 1], "moved": lambda y: y.T[1:4], "data": lambda y: y.data,
}  # fmt: skip
WRITES = {
    "a slice": lambda y, v: y.__setitem__(slice(1, 3), v[:2]), "all": lambda y, v: y.__setitem__(..., v),
    "an element": lambda y, v: y.__setitem__(2, 5.0), "+=": lambda y, v: y.__iadd__(v),
    "a number": lambda y, v: y.__setitem__(slice(1, 3), 5.0),
    "an array": lambda y, v: y.__setitem__(slice(1, 3), np.array([5.0, 6.0])),
    "a part": lambda y, v: y.__setitem__(slice(1, 3), y[1:3].__iadd__(v[1:3])),
    "diagonal": lambda y, v: np.fill_diagonal(y.reshape(2, 3), v[0]),
}  # fmt: skip


@pytest.fixture(scope="module")  # once, as it takes seconds where there are many objects
def frozen():
    machine.load()  # and Numba, whose objects each collection would visit
    with finalizers.frozen():
        yield


@pytest.fixture
def no_collection(frozen):
    with finalizers.no_collection():
        yield


def at_object(k, function, call):
    """What a call returns, and what the finalizer that its k-th object starts does; None if none runs."""
    done, results = [False], []

    def finalizer():
        if not done[0]:
            results.append(function())

    finalizers.Cycle(finalizer)
    with finalizers.collecting(gc.get_count()[0] + k):
        found = call()
    done[0] = True
    gc.collect()
    return found, results[0] if results else None


def check_view(seen, view, y, x):
    """A view has the values and the history that one made now has, also after another write."""
    wanted = view(y)
    np.testing.assert_array_equal(seen.detach(), wanted.detach())
    if seen.requires_grad and wanted.requires_grad:
        both = (tg.grad(np.sum(t), x, retain_graph=True)[0].numpy() for t in (seen, wanted))
        np.testing.assert_array_equal(*both)
    y[2] = 77.0
    np.testing.assert_array_equal(seen.detach(), view(y).detach())


@pytest.mark.parametrize("other", [False, True])
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("write", WRITES)
def test_a_view_made_while_its_tensor_is_written_to(view, write, other, no_collection):
    """At each object that the write makes: it sees what is written, then and later, and has its history.

    With another view there already or not. Python's way to write refuses a view where the history is out of
    sight.
    """
    view, write, x, ran = VIEWS[view], WRITES[write], leaf(np.linspace(1.0, 2.0, 6)), 0
    for read in (False, True):  # by another operation, so that the memory is not changed
        write(x * 2.0, x * 3.0)
        for k in range(1, 12):
            y, v = x * 2.0, x * 3.0
            kept, there = y * y if read else None, y[3:] if other else None

            def finalizer(y=y):
                with contextlib.suppress(*() if abi.native() and not other else (GradientError,)):
                    return view(y)

            _, seen = at_object(k, finalizer, lambda y=y, v=v: write(y, v))
            if seen is not None:
                ran += 1
                check_view(seen, view, y, x)
            if there is not None:
                np.testing.assert_array_equal(there.detach(), y.detach()[3:])
            del kept
    assert ran


LATE = """
import gc
import numpy as np, tapegrad as tg
from tapegrad.core.base import extra
x = tg.tensor(np.linspace(1.0, 2.0, 6), requires_grad=True)
views = [(x * 2.0)[1:] for _ in range(40)]
for name in ("version", "storage", "shown", "grad", "cells", "volatile", "retains_grad"):
    state = extra(tg.tensor([1.0]))
    setattr(state, name, 5)
    assert not any(type(part) is dict for part in gc.get_referents(state)), name
"""


def test_a_tensor_s_state_never_makes_a_dict():
    """CPython's objects get dicts of their own by names that are new when there have been some 30 of a class.

    Where a write set such a name, a view that a finalizer made meanwhile was lost with the dict it had set.
    """
    subprocess.run([sys.executable, "-c", LATE], check=True, cwd=Path(__file__).parents[1])


@pytest.mark.parametrize("other", [False, True])
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("write", WRITES)
def test_a_write_while_a_view_of_its_tensor_is_made(view, write, other, no_collection):
    """At each object that the view makes, with another view there already or not."""
    view, write, x, ran = VIEWS[view], WRITES[write], leaf(np.linspace(1.0, 2.0, 6)), 0
    for k in range(1, 30):
        y, v = x * 2.0, x * 3.0
        there = y[3:] if other else None
        seen, done = at_object(k, lambda y=y, v=v: (write(y, v), True), lambda y=y: view(y))
        ran += bool(done)
        check_view(seen, view, y, x)
        if there is not None:
            np.testing.assert_array_equal(there.detach(), y.detach()[3:])
    assert ran


OPERATIONS = {
    "sum": np.sum, "max": np.max, "cumsum": np.cumsum, "clip": lambda y: np.clip(y, 2.1, 3.9),
    "solve": lambda y: np.linalg.solve(np.eye(6) * 2.0, y), "stack": lambda y: np.stack([y, y]),
    "astype": lambda y: y.astype("f"), "roll": lambda y: np.roll(y, 1), "clone": lambda y: y.clone(),
    "copy": lambda y: np.copy(y, order="F"), "mask": lambda y: y[MASK], "sort": np.sort,
    "index": lambda y: y[[0, 2, 2]], "pair": lambda y: np.reshape(y, (2, 3))[:, PLACES],
    "meshgrid": lambda y: np.meshgrid(y, PLACES)[0], "modf": lambda y: np.modf(y)[0],
    "frexp": lambda y: np.frexp(y)[0], "reduceat": lambda y: np.add.reduceat(y, [0, 2, 4]),
    "element": lambda y: y[2], "divmod": lambda y: np.divmod(y, 1.5)[1],
    "broadcast": lambda y: np.broadcast_to(y, (2, 6)), "times": lambda y: y * np.ones(6), "sine": np.sin,
}  # fmt: skip
MASK, PLACES = np.array([True, False, True, True, False, True]), np.array([0, 1])


@pytest.mark.parametrize(
    ("write", "operation"), every(itertools.product(WRITES, OPERATIONS), 4)
)
def test_a_write_while_an_operation_is_recorded(operation, write, no_collection):
    """Value and derivative are both those from before the write or both those from after it."""
    check_together(OPERATIONS[operation], WRITES[write], np.linspace(1.0, 2.0, 6))


FACTORISED = [  # of 36 rows LU factors are kept
    ("qr", 3), ("det", 36), ("inv", 3), ("svd", 3), ("inv", 36), ("cholesky", 36),
    ("eigh", 36), ("det", 3), ("cholesky", 3), ("eigh", 3), ("qr", 36), ("svd", 36),
]  # fmt: skip


@pytest.mark.parametrize(("name", "n"), thinned(FACTORISED, lambda *row: row in FACTORISED[:4]))
def test_a_write_while_a_matrix_is_factorised(name, n, no_collection):
    def operation(y):
        found = getattr(np.linalg, name)(y)
        return found[1] if isinstance(found, tuple) else found

    check_together(operation, lambda y, v: y.__setitem__(0, 0.9 * v[0]), np.diag(np.linspace(1.0, 2.0, n)))


def test_a_write_while_a_view_of_numpy_s_becomes_a_tensor(monkeypatch):
    y, wrap = tg.tensor(np.linspace(1.0, 2.0, 6)), dispatch.wrap

    def write_first(value, *history):
        monkeypatch.undo()
        y[1:3] = 5.0
        return wrap(value, *history)

    monkeypatch.setattr(dispatch, "wrap", write_first)
    seen = np.trim_zeros(y)
    assert seen.tolist() == y.tolist() == [1.0, 5.0, 5.0, *y.tolist()[3:]]
    seen[0] = 7.0
    assert y[0] == 7.0


def check_together(operation, write, at):
    """A finalizer's write at each object that an operation makes leaves its value and derivative together."""
    x, ran = leaf(at), 0

    def told(z):
        return z.detach().numpy(), tg.grad(np.sum(z), x, retain_graph=True)[0].numpy()

    y, v = x * 2.0, x * 3.0
    known = [told(operation(y)), write(y, v), told(operation(y))][::2]
    for k in range(1, 40):
        y, v = x * 2.0, x * 3.0
        z, done = at_object(k, lambda y=y, v=v: (write(y, v), True), lambda y=y: operation(y))
        ran += bool(done)
        found = told(z)
        assert any(all(map(np.array_equal, found, each)) for each in known)
    assert ran


if __name__ == "__main__":
    measure(int(sys.argv[1]))
