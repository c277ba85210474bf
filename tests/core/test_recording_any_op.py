"""Compiled recording of all ops, and gradients found by compiled code: as Python does both."""

import functools
import gc
import itertools
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.core import compiled_methods, dispatch
from tapegrad.errors import GraphFreedError, ShapeError, TapeError, UnusedInputError
from tapegrad.kernels import abi, machine
from tapegrad.kernels.replay import layout
from tapegrad.kernels.state import KEEP_BYTES
from tapegrad.ops import MEANING, REGISTRY
from tapegrad.tape import pool
from tapegrad.tape import tape as tapes
from tapegrad.tape.pool import MIN_BYTES
from tapegrad.tensor import Tensor
from tests.finalizers import Cycle, collecting, frozen, no_collection
from tests.tiers import thinned

pytestmark = pytest.mark.skipif(not abi.native(), reason="the portable layout has no compiled methods")
at_once = sys.modules["tapegrad.autograd.at_once"]


@pytest.fixture(autouse=True)
def compiled():
    machine.load()


@pytest.fixture
def by_python(monkeypatch):
    """Let Python do what compiled code does."""

    def switch():
        for name, twin in compiled_methods.TWINS.items():
            monkeypatch.setattr(Tensor, name, twin)
        monkeypatch.setattr(dispatch, "record_natively", lambda *_: None)
        monkeypatch.setattr(at_once, "gradients", lambda *_: None)
        monkeypatch.setattr(at_once, "backward", lambda *_: None)

    return switch


def leaf(value):
    return tg.tensor(value, requires_grad=True)


def values(shape, dtype):
    """Numbers that differ, none of them 0."""
    found = np.cos(1.0 + np.arange(int(np.prod(shape)), dtype=float)).reshape(shape) + 1.5
    return (found + 1j * found[::-1] if np.dtype(dtype).kind == "c" else found).astype(dtype)


PROGRAMS = {  # of a matrix of n x 4
    "slices": lambda x, a: x[1:] * x[:-1], "steps": lambda x, a: x[::-2], "a row": lambda x, a: x[1] * x[-1],
    "a column": lambda x, a: x[:, 2], "an axis": lambda x, a: x[:, None, 1:3], "...": lambda x, a: x[..., 0],
    "an element": lambda x, a: x[1, -1] * x[-2, 0], "one of a row": lambda x, a: x[2][1],
    "a part of a part": lambda x, a: x[1:][:, ::-1][0], "of what is not dense": lambda x, a: x.T[1:, ::2],
    "nothing": lambda x, a: x[:0].sum() + x[2:2, 1].sum() + x.sum(), "transposed": lambda x, a: x.T @ a,
    "array @": lambda x, a: a.T @ x, "@ array": lambda x, a: x @ a.T, "squared": lambda x, a: x.T @ x,
    "@ of vectors": lambda x, a: x[0] @ a[1] + x[1] @ x[2], "@ a vector": lambda x, a: x @ a[0],
    "joined": lambda x, a: np.concatenate([x, a, x[1:]]), "rows": lambda x, a: np.hstack([x, a[:, :1]]),
    "stacked": lambda x, a: np.stack([x, a, x * 2.0], axis=1), "last": lambda x, a: np.stack([x, x], axis=-1),
    "of numbers": lambda x, a: np.stack([x[0, 0], x[1, 1], x[0, 0] * 3.0]),
    "moved": lambda x, a: np.moveaxis(x, 0, 1), "array *": lambda x, a: a * x - x / a,
    "sums": lambda x, a: x.sum(0) * x.mean(axis=-1)[0] + np.max(np.abs(x)),
    "clip": lambda x, a: np.clip(np.real(x), 1, 2),
    "where": lambda x, a: np.where(np.real(a) > 1.6, x, a), "running": lambda x, a: np.cumsum(x, axis=0),
    "shapes": lambda x, a: x.reshape(-1, 2) * x.reshape(2, -1).T[:, :1].ravel()[0],
    "int array": lambda x, a: x * np.arange(4), "flipped array": lambda x, a: x * a[::-1],
}  # fmt: skip


ROWS = (4, 127, 128, 129, 257, 513, 2049)  # 4, 16 and 64 KiB are crossed
QUICK = ((4, "d"), (4, "f"), (4, "D"), (4, "F"), (129, "d"))


@pytest.mark.parametrize(
    ("program", "n", "dtype"),
    thinned(itertools.product(PROGRAMS, ROWS, "dfDF"), lambda _, n, dtype: (n, dtype) in QUICK),
)
def test_as_python_does(by_python, program, n, dtype):
    """Values and gradients by a fresh leaf and by a result, to the bit: all is computed in one order."""
    function, array = PROGRAMS[program], values((n, 4), dtype)[::-1]

    def outcome():
        x = leaf(values((n, 4), dtype))
        found = [function(x, array)]
        y = x * 1.5
        out = function(y, array)
        seed = values(out.shape, out.dtype) if out.ndim else values((1,), out.dtype)[0]
        found += tg.grad(out, [y, x], seed, retain_graph=True)
        np.real(np.sum(out * 2.0)).backward()
        np.real(np.sum(function(x, array))).backward()
        return [t.detach().numpy() for t in (*found, out, x.grad)]

    outcome()  # compiles
    found = outcome()
    by_python()
    for left, right in zip(found, outcome(), strict=True):
        assert left.dtype == right.dtype
        np.testing.assert_array_equal(left, right)


def frames(function):
    """The functions of Python that a call enters."""
    entered = []

    def note(frame, event, arg):
        if event == "call":
            entered.append(frame.f_code.co_name)

    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
    return [name for name in entered if "<lambda>" not in name and "frames" not in name]


def in_a_thread(test):
    """Decorate a test that counts calls: a tape of another test that ages meanwhile is not this thread's."""

    @functools.wraps(test)
    def call(*args, **kwargs):
        with ThreadPoolExecutor(1) as thread:
            thread.submit(test, *args, **kwargs).result()

    return call


@pytest.mark.skipif(bool(layout.BOUNDS), reason="a checked build goes through Python")
@pytest.mark.parametrize("kind", ["d", "f"])
@in_a_thread
def test_frames_of_python(kind):
    """None for operators, products, elements and the sweep; for a view what lets it see writes.

    A method is one more once there are compiled functions.
    """
    x = leaf(values((10,), kind))
    a, m = values((10,), kind), values((10, 10), kind)
    for _ in range(3):  # compiles, makes room, and does without both
        tg.grad(np.sum((x * a)[1:] * x[:-1]) + (m @ x) @ x, x)
    y = x * 1.0
    for call in (
        lambda: y * a, lambda: a - y, lambda: np.exp(y), lambda: y @ y, lambda: m @ y, lambda: y @ m,
        lambda: y[3], lambda: y[-1] * y[2], lambda: x * x, lambda: x[0],
    ):  # fmt: skip
        call()
        assert frames(call) == []
    constant = tg.tensor(a)
    for call in (lambda: constant * 2.0, lambda: a - constant, lambda: -constant, lambda: m @ constant):
        assert frames(call) == []
    with tg.no_grad():
        for call in (lambda: y * a, lambda: 2.0 * x - y, lambda: np.exp(y), lambda: x / y, lambda: m @ y):
            assert frames(call) == []
    z = x[0] * 1.0
    for call in (lambda: z < 1.0, lambda: z == z, lambda: bool(z >= x[1]), lambda: z <= 0, lambda: z != a[1]):
        call()
        assert frames(call) == []
    for number in (0.37, 41, -0.0, 0):
        assert frames(lambda number=number: y * number - number) == []  # not known to the tape
    for call, most in ((lambda: y[1:], 12), (lambda: y.sum(), 7)):
        call()
        assert len(frames(call)) <= most
    y = None
    sweeps = lambda z: tg.grad(z, x, retain_graph=True), lambda z: tg.grad(z, x), lambda z: z.backward()
    for sweep in sweeps:
        for _ in range(3):
            sweep(((x * a) @ m)[2] * x[1])
        z, x.grad = ((x * a) @ m)[2] * x[1], None
        assert len(frames(lambda sweep=sweep, z=z: sweep(z))) <= 5  # it, and the end of recording


@pytest.mark.skipif(bool(layout.BOUNDS), reason="a checked build goes through Python")
@in_a_thread
def test_frames_of_python_in_a_function():
    """What sees where results are from, not what computes them."""
    found = []

    class Twice(tg.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            found.extend(frames(lambda: 2.0 * x))
            return 2.0 * x

        @staticmethod
        def backward(ctx, ct):
            found.extend(frames(lambda: ct * 2.0))
            return ct * 2.0

    x = leaf(values((10,), "d"))
    for _ in range(3):
        found.clear()
        tg.grad(np.sum(Twice.apply(x)), x)
    assert 0 < len(found) <= 14
    assert not {"apply", "function"} & {*found}


@pytest.mark.skipif(bool(layout.BOUNDS), reason="a checked build goes through Python")
@in_a_thread
def test_frames_of_python_in_recorded_sweeps():
    """What computes values by NumPy, for slices, elements, sums and products; none to sweep those again."""
    start, v = values((10,), "d"), values((10,), "d")
    for _ in range(4):  # the last one follows programs
        x = leaf(start)
        y = np.sum(x[1:] * x[:-1], axis=0) + x[3] * x[-1] + x @ x
        found = []
        entered = frames(lambda y=y, x=x, found=found: found.extend(tg.grad(y, x, create_graph=True)))
        again = frames(lambda x=x, found=found: tg.grad(found, x, v))
    assert {*entered} <= {"grad", "inner", "_recorded_at_once", "_embed", "_broadcast"}
    assert len(again) <= 5


@pytest.mark.skipif(bool(layout.BOUNDS), reason="a checked build goes through Python")
@pytest.mark.parametrize("shape", [(), (10,)])
@in_a_thread
def test_frames_of_python_with_results_of_older_tapes(shape):
    """None: a link is recorded in compiled code, once for each result."""
    x = leaf(values(shape, "d"))
    tg.grad(np.sum(x * x), x)
    older = []
    for _ in range(3):
        older += [x * x, x + x]
        tapes.close(tapes.local.tape)
    y = x * 1.0
    assert frames(lambda: [y * z + z for z in older]) == ["<listcomp>"] * (sys.version_info < (3, 12))
    assert len([*y._tape.sources()]) == 6 + 1 and len(y._tape.older) == 3
    total = y
    for z in older:
        total = total + y * z + z
    (g,) = tg.grad(np.sum(total), x)
    v = x.detach().numpy()
    np.testing.assert_allclose(g.numpy(), 1 + 3 * (3 * v**2 + 4 * v + 2 * v + 2), rtol=1e-14)


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("retain", [False, True])
def test_operands_older_than_all_that_is_asked_for(by_python, program, retain):
    """A tape is read from the oldest input on; of what is before it, only what rules take."""
    function = PROGRAMS[program]

    def outcome():
        tapes.close(tapes.current())
        old = leaf(values((4, 4), "d"))
        results = [old * 1.5]
        for k in range(40):  # of many shapes
            results.append((old[: 1 + k % 4, k % 3 :] * (k + 1.0)).T)
        x = leaf(values((4, 4), "d"))
        out = function(x, results[0]) * 2.0
        joined = np.sum(np.concatenate([(out * results[3][0, 0]).ravel(), (results[7] * x[0, 0]).ravel()]))
        assert joined._tape is old._tape or results[0]._tape is joined._tape
        (g,) = tg.grad(joined, x, retain_graph=retain)
        found = [g, *(tg.grad(joined, (old, x)) if retain else ())]
        return [t.detach().numpy() for t in found]

    outcome()
    found = outcome()
    by_python()
    for left, right in zip(found, outcome(), strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-13)


def ones(x):
    return np.ones(x.shape, x.dtype)


ROOTS = {  # of two leaves of n elements: roots, and cotangents or None for some of one element
    "one list": lambda x, w: ([x * w], [2.0 * ones(x)]),
    "two": lambda x, w: ((x * w, np.cos(x)), (ones(x), 3.0 * ones(x))),
    "of each other": lambda x, w: (lambda y: ((y, y * y, y * 2.0), [k * ones(x) for k in (1, 2, 3)]))(x * w),
    "the later first": lambda x, w: (lambda y: ([np.exp(y), y], [ones(x), 5.0 * ones(x)]))(x * w),
    "numbers": lambda x, w: ((np.sum(np.real(x * w)), np.sum(np.real(w)) * 2.0), None),
    "a number beside": lambda x, w: ((np.sum(np.real(x)), x * w), [None, ones(x)]),
    "Tensors": lambda x, w: ((x * w, w * 2.0), [tg.tensor(ones(x)), tg.tensor(ones(x))]),
    "one that leads nowhere": lambda x, w: ((x * w, w.detach() * leaf(ones(x))), (ones(x), ones(x))),
    "the same twice": lambda x, w: (lambda y: ((y, y), (ones(x), 2.0 * ones(x))))(x * w),
    "an input": lambda x, w: ((x * w, w), (ones(x), ones(x))),
    "a view and its base": lambda x, w: (lambda y: ((y[1:], y), (ones(x)[1:], ones(x))))(x * w),
}  # fmt: skip


@pytest.mark.parametrize("dtype", "dfD")
@pytest.mark.parametrize("n", [3, 4095])
@pytest.mark.parametrize("roots", ROOTS)
def test_several_roots_as_python_does(by_python, roots, n, dtype):
    def outcome():
        found = []
        for retain in (False, True):
            x, w = leaf(values((n,), dtype)), leaf(values((n,), dtype)[::-1])
            given, cotangents = ROOTS[roots](x, w)
            found += tg.grad(given, [w, x], cotangents, retain_graph=retain)
            x, w = leaf(values((n,), dtype)), leaf(values((n,), dtype)[::-1])
            given, cotangents = ROOTS[roots](x, w)
            tg.backward(given, cotangents, retain_graph=retain)
            found += [x.grad, w.grad]
            for ct in cotangents or ():
                assert ct is None or np.all(np.asarray(ct) == np.asarray(ct)[0])  # nothing is added there
        return [t.detach().numpy() for t in found]

    outcome()  # compiles
    found = outcome()
    by_python()
    for left, right in zip(found, outcome(), strict=True):
        assert left.dtype == right.dtype
        np.testing.assert_array_equal(left, right)


def test_a_root_older_than_the_inputs_needs_a_cotangent():
    """A tape is read from the oldest input or root on: that one does not depend on the input is no excuse."""
    w = leaf(values((3,), "d"))
    for _ in range(2):
        older = w * 2.0
        x = leaf(values((3,), "d"))
        y = np.sum(x * x)
        assert y._tape is older._tape
        tg.grad(y, x, retain_graph=True)  # compiles
        older = w * 2.0
        x = leaf(values((3,), "d"))
        y = np.sum(x * x)
        with pytest.raises(ShapeError, match="root 1"):
            tg.grad((y, older), x)
        assert tg.grad((y, older), x, (None, np.ones(3)))[0].tolist() == (2 * x.detach().numpy()).tolist()


@pytest.mark.skipif(bool(layout.BOUNDS), reason="a checked build goes through Python")
@pytest.mark.parametrize("count", [layout.QUICK_INPUTS - 1, layout.QUICK_INPUTS, layout.QUICK_INPUTS + 1])
def test_many_roots(count):
    x = leaf(values((10,), "d"))
    seed = np.ones(10)

    def swept():
        y = x * 1.0
        roots, expected = [], np.zeros(10)
        for k in range(count):
            y = y * 0.5
            roots.append(y)
            expected += 0.5 ** (k + 1) * (k + 1)
        entered = frames(lambda: found.append(tg.grad(roots, x, [seed * (k + 1) for k in range(count)])[0]))
        return entered, expected

    found = []
    for _ in range(3):
        entered, expected = swept()
        np.testing.assert_allclose(found[-1].tolist(), expected, rtol=1e-15)
    assert (len(entered) <= 5) == (count <= layout.QUICK_INPUTS)


def test_what_is_left_to_python_is_an_error_of_python():
    x = leaf(np.ones((3, 4)))
    tg.grad(x.sum(), x)
    y = x * 1.0
    for call, kind, text in (
        (lambda: y[3], IndexError, r"index 3 of a Tensor of shape \(3, 4\)"),
        (lambda: y[0, 0, 0], IndexError, "too many"),
        (lambda: y["a"], IndexError, "'a'"),
        (lambda: y @ np.ones(3), ShapeError, "matmul"),
        (lambda: 2.0 @ y, ShapeError, "matmul"),
        (lambda: np.stack([y, y[0]]), ShapeError, "stack"),
        (lambda: tg.grad(y, x, np.ones(3)), TapeError, r"\(3,\)"),
        (lambda: tg.grad(y, x), TapeError, r"\(3, 4\)"),
    ):
        with pytest.raises(kind, match=text):
            call()
    assert tg.grad(y[1:].sum(), x)[0].numpy().sum() == 8.0


def test_words_of_a_view_outlive_what_they_were_made_of():
    """Written to, pruned or let go of before the sweep: they tell of places, not of memory."""
    x = leaf(np.arange(6.0))
    tg.grad((x * 1.0)[1:].sum(), x)
    y = x * 2.0
    v = y[1:5]
    w = v[::-1] * v
    y[2] = x[0] * 10.0
    v[0] = 3.0
    z = np.concatenate([y[1:3], v]) * np.stack([x[0], x[5], x[1], x[2], x[3], x[4]])
    del v, y
    gc.collect()
    total = z.sum() + w.sum()
    del z, w
    found = tg.grad(total, x)[0].numpy()

    def plain(t):
        y = t * 2.0
        v = y[1:5]
        w = v[::-1] * v
        y[2] = t[0] * 10.0
        v[0] = 3.0
        return (np.concatenate([y[1:3], v]) * np.stack([t[0], t[5], t[1], t[2], t[3], t[4]])).sum() + w.sum()

    t = np.arange(6.0).astype(complex)
    for k in range(6):
        moved = t.copy()
        moved[k] += 1e-20j
        assert found[k] == pytest.approx(plain(moved).imag / 1e-20, rel=1e-13)


VIEWS = (
    lambda a: a[::-1], lambda a: a[..., ::2], lambda a: np.swapaxes(a, 0, -1), lambda a: a[1:],
    lambda a: a[:, 1:3], lambda a: a[0], lambda a: a[..., None], np.rot90, np.diagonal, np.transpose,
    lambda a: a.reshape(-1), lambda a: np.broadcast_to(a, (2, *a.shape)), lambda a: a[..., -1:0:-2],
    lambda a: np.moveaxis(a, 0, -1), lambda a: a[..., 1],
)  # fmt: skip


@pytest.mark.parametrize("first", range(len(VIEWS)))
def test_views_of_views(first):
    """Words noted of a view of an array of any strides tell of the right elements."""
    x, random = leaf(np.linspace(0, 1, 60).reshape(3, 4, 5)), np.random.default_rng(first)
    tg.grad(x[0].sum(), x)
    for others in itertools.product(VIEWS[first % 2 :: 2], VIEWS[first // 2 % 2 :: 2]):
        wanted, y = np.arange(60).reshape(3, 4, 5), x * 1.0
        for function in (VIEWS[first], *others):
            if wanted.ndim > 1 and min(wanted.shape) > 1:
                wanted, y = function(wanted), function(y)
        cotangent, found = random.random(wanted.shape), np.zeros(60)
        np.add.at(found, wanted.ravel(), cotangent.ravel())
        np.testing.assert_allclose(tg.grad(np.sum(y * cotangent), x)[0].numpy().ravel(), found, rtol=1e-12)


@pytest.mark.skipif(bool(layout.BOUNDS), reason="a checked build goes through Python")
def test_views_of_views_are_described_when_they_are_recorded():
    x = leaf(np.linspace(0, 1, 20).reshape(4, 5))
    for function in (np.rot90, lambda y: y.T[1:3], lambda y: y[:, 1][::-1], lambda y: y[::-1, ::2].T[0]):
        for _ in range(3):
            z = np.sum(function(x * 1.0))
            entered = frames(lambda z=z: tg.grad(z, x))
        assert "descriptor" not in entered


def test_an_array_written_to_between_two_uses():
    """Each use has its own values, whatever the size, and of whichever dtype."""
    for n in (1, 511, 512, 513, 2047, 2048, 2049, 125_000):
        for dtype in "dfqi":
            x, a = leaf(np.ones(n)), np.full(n, 2, dtype)
            y = x * 1.0
            with tg.guard("copy"):
                first = y * a
                a[0] = 5
                second = a * y
                a[0] = 7
            found = tg.grad(np.sum(first) + np.sum(second), x)[0].numpy()
            assert found[0] == 7.0
            assert (found[1:] == 4.0).all()


def test_released_values_are_known():
    x = leaf(np.ones(3))
    tg.grad((x * x).sum(), x)
    z = (x * x)[1:].sum()
    tg.grad(z, x, retain_graph=True)
    tg.grad(z, x)
    with pytest.raises(GraphFreedError):
        tg.grad(z, x)
    w = (x * x).sum()
    w.backward()
    w = (x * x).sum()
    w.backward()
    assert x.grad.tolist() == [4.0] * 3
    with pytest.raises(GraphFreedError):
        w.backward()
    assert x.grad.tolist() == [4.0] * 3


class Failing(tg.autograd.Function):
    """A square whose backward raises what it is told to."""

    error: BaseException | None = None

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        if Failing.error is not None:
            raise Failing.error
        return 2 * ctx.saved_tensors[0] * g


@pytest.mark.parametrize("n", [3, 300, 200_000])  # the last without Python's lock
@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt, MemoryError])
def test_a_rule_that_fails_leaves_the_tape_as_it_was(error, n, monkeypatch):
    x = leaf(np.linspace(1, 2, n))
    y = np.sin(x) * x
    z = Failing.apply(y) * 3.0
    monkeypatch.setattr(Failing, "error", error())
    states = len(at_once._states)
    for _ in range(5):
        with pytest.raises(error):
            tg.grad(z.sum(), x, retain_graph=True)
        with pytest.raises(error):
            z.sum().backward(retain_graph=True)
    assert len(at_once._states) <= states + 1
    assert not y._tape.claims
    assert x.grad is None
    monkeypatch.setattr(Failing, "error", None)
    at = x.detach().numpy()
    wanted = 6 * np.sin(at) * at * (np.cos(at) * at + np.sin(at))
    for _ in range(2):
        np.testing.assert_allclose(
            tg.grad(z, x, tg.ones(n), retain_graph=True)[0].numpy(), wanted, rtol=1e-13
        )
    z.backward(tg.ones(n))
    np.testing.assert_allclose(x.grad.numpy(), wanted, rtol=1e-13)
    with pytest.raises(GraphFreedError):
        z.backward(tg.ones(n))


@pytest.mark.skipif(bool(layout.BOUNDS), reason="a checked build goes through Python")
def test_the_memory_of_large_cotangents_goes_back():
    x = leaf(np.ones(KEEP_BYTES // 8 + 1))
    tg.grad(np.sum(x * 2.0 - 1.0), x)
    for _ in range(2):
        assert at_once.gradients(np.sum(x * 2.0 - 1.0), None, x, False) is not None
    tg.grad((x[:3] * 1.0).sum(), x)
    assert at_once._states
    assert all(state.view[layout.HELD_BYTES] <= KEEP_BYTES for state in at_once._states.values())


def test_rules_that_sweep_and_record():
    """Each sweep has a workspace of its own; what rules record is not on the tape that is swept."""

    class Nested(tg.autograd.Function):
        @staticmethod
        def forward(ctx, x, depth):
            ctx.depth = depth
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            with tg.enable_grad():
                own = leaf(x.detach().numpy())
                y = Nested.apply(own, ctx.depth - 1) if ctx.depth else own * own
                return tg.grad(np.linalg.inv(np.linalg.inv(np.diag(y))).sum(), own)[0] * g, None

    x = leaf(np.linspace(1, 2, 4))
    for _ in range(3):
        y = Nested.apply(x * 1.0, 4)
        np.testing.assert_allclose(tg.grad(y.sum(), x)[0].numpy(), 2 * np.linspace(1, 2, 4), rtol=1e-12)


def test_rules_of_numbers_and_of_other_dtypes():
    """A number's cotangent is a number; parts are laid out as the operand's gradient."""
    seen = []

    class Seen(tg.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            seen.append((type(g), g.shape, g.dtype))
            return g * 2

    for value in (
        np.float64(1.5),
        np.float32(1.5),
        np.complex64(1 + 2j),
        np.ones((2, 3), "f"),
        np.ones((0, 3)),
    ):
        x = leaf(value)
        found = tg.grad(np.sum(np.abs(Seen.apply(x) * 1.0)), x)[0]
        assert (found.dtype, found.shape) == (np.asarray(value).dtype, np.shape(value))
        assert seen.pop()[1:] == (np.shape(value), np.asarray(value).dtype)
        np.testing.assert_allclose(found.numpy(), 2 * value / np.abs(value), rtol=1e-6)


def test_an_input_to_which_rules_give_nothing():
    class Half(tg.autograd.Function):
        @staticmethod
        def forward(ctx, x, y):
            return x * y

        @staticmethod
        def backward(ctx, g):
            return g, None

    for _ in range(2):
        x, y = leaf(np.ones(3)), leaf(np.ones(3))
        z = Half.apply(x * 1.0, y * 1.0)
        with pytest.raises(UnusedInputError, match=r"input 1 .*None"):
            tg.grad(z.sum(), [x, y], retain_graph=True)
        assert tg.grad(z.sum(), [x, y], retain_graph=True, allow_unused=True)[1] is None
        z.sum().backward()
        assert x.grad.tolist() == [1.0] * 3
        assert y.grad is None


def test_no_reference_is_lost_or_kept():
    x, a = leaf(np.linspace(0.1, 1, 12).reshape(3, 4)), np.ones((3, 4))
    key, pair, m = slice(1, None), (1, 2), np.eye(3) * 20
    big, b = leaf(np.linspace(0.1, 1, 10_000)), np.full(10_000, 2.0)
    tg.grad((x * a)[key].sum() + x[pair], x)
    calls = (
        lambda: x * a, lambda: x[pair], lambda: x[key], lambda: x @ a.T, lambda: np.stack([x, a]),
        lambda: np.concatenate([x, x]), lambda: x.sum(0), lambda: tg.grad((x * a)[key].sum(), x),
        lambda: tg.grad(x[pair] * 2.0, [x]), lambda: x.T, lambda: (x * x).sum().backward(),
        lambda: tg.grad(np.linalg.inv(x @ a.T + m).sum(), x), lambda: tg.grad((big * b).sum(), big),
        lambda: np.exp(big * b - big), lambda: big[1:] * b[1:],
    )  # fmt: skip
    singles = [None, True, x, a, key, pair, x._v, x._at, x._extra, Tensor, np.float64, m, b]
    known = sys.getrefcount(m.dtype)
    for _ in range(50):
        m.dot(m)
    if sys.getrefcount(m.dtype) < known + 20:  # NumPy 2.4 on Python 3.12 keeps one each time
        singles.append(m.dtype)

    def counts(rounds):
        for call in calls:
            for _ in range(rounds):
                call()
        tg.grad((x * 1.0).sum(), x)  # lets go of the tape
        gc.collect()
        return [sys.getrefcount(s) for s in singles]

    before, after = counts(30), counts(300)
    assert max(abs(p - q) for p, q in zip(before[1:], after[1:], strict=True)) < 20
    assert abs(after[0] - before[0]) < 100
    kept = [weakref.ref(x[key]) for _ in range(20)] + [weakref.ref(tg.grad((x * a).sum(), x)[0])]
    assert not [r for r in kept if r() is not None]


def test_finalizers_at_every_collection():
    """What they record, sweep and close while parts, joins and products are recorded and swept."""
    x, m = leaf(np.linspace(0.5, 1.5, 6)), np.arange(36.0).reshape(6, 6) / 36
    big = np.linspace(0, 1, 12_000)

    def program():
        y = x * 1.5
        parts = np.stack([y[k] * y[-k] for k in range(6)]) + m @ y
        parts = parts + np.linalg.inv(np.diag(y)).sum(1) + (np.tile(y, 2000) * big).reshape(-1, 6).sum(0)
        return np.sum(np.concatenate([parts[1:], y[::2] * 2.0])) + y[0]

    wanted = tg.grad(program(), x)[0].numpy()

    def late(y):
        tg.grad(y * 3.0, x)
        (x[2] * x[3]).detach()

    ran = []
    with frozen(), no_collection():
        for k in range(60):
            y = (x * 2.0)[1:].sum()
            Cycle(lambda y=y: ran.append(late(y)))
            with collecting(1 + k % 7, 1, 1):
                found = tg.grad(program(), x)[0].numpy()
            np.testing.assert_allclose(found, wanted, rtol=1e-15)
    assert len(ran) > 50


def some_part(random, shape):
    """A call that takes parts of an array, or moves them: slices, axes, diagonals, indices; None at times."""
    kind, ndim = random.choice(list("aaiiiiidnbff")), len(shape)
    if kind == "a":
        axes = tuple(random.permutation(ndim).tolist())
        return lambda x: x.transpose(axes)
    if kind == "n":
        return lambda x: x[None]
    if kind == "b":
        return lambda x: np.broadcast_to(x, (2, *shape))
    if kind == "d" and ndim > 1:
        offset, (first, second, *_) = int(random.integers(-1, 2)), random.permutation(ndim).tolist()
        return lambda x: np.diagonal(x, offset, first, second)

    def piece(n):
        first, second = random.integers(-n - 1, n + 1, 2).tolist()
        step = int(random.choice([1, 1, 2, -1, -2, 3]))
        pieces = [slice(None), slice(None, None, step), slice(first, second, step), first % n]
        return pieces[random.integers(4)]

    if kind == "i":
        index = tuple(piece(n) for n in shape[: random.integers(ndim + 1)])
        return lambda x: x[index]
    if kind == "f" and ndim:
        at = int(random.integers(ndim))
        size = tuple(random.integers(1, 3, random.integers(1, 3)).tolist())
        arrays = [random.integers(-n, n, size) for n in shape[at : at + random.integers(1, 3)]]
        index = (*(slice(None) if random.random() < 0.7 else piece(n) for n in shape[:at]), *arrays)
        return lambda x: x[index]
    return None


@pytest.mark.parametrize("seed", thinned(range(8), lambda seed: seed == 0))
def test_parts_of_parts(seed):
    """Chains of views and of indices: what each element was taken from gets its cotangent."""
    random, checked = np.random.default_rng(seed), 0
    x = leaf(random.normal(size=(4, 5, 3)))
    while checked < 400:
        numbers, steps = np.arange(60).reshape(4, 5, 3), []
        for _ in range(random.integers(1, 5)):
            step = some_part(random, numbers.shape)
            if step is not None and np.ndim(step(numbers)) and step(numbers).size:
                numbers = step(numbers)
                steps.append(step)
        cotangent, expected = random.normal(size=numbers.shape), np.zeros(60)
        np.add.at(expected, numbers.ravel(), cotangent.ravel())
        out = x * 1.0
        for step in steps:
            out = step(out)
        assert out.tolist() == x.detach().numpy().ravel()[numbers].tolist()
        (g,) = tg.grad(out, x, tg.tensor(cotangent))
        np.testing.assert_allclose(g.numpy().ravel(), expected, rtol=1e-13, atol=1e-13)
        checked += 1


@pytest.mark.skipif(bool(layout.BOUNDS), reason="a checked build goes through Python")
def test_what_older_tapes_knew_a_leaf_by_is_no_hindrance():
    """A leaf whose memory was given out is another one to tapes; a result from before may live on."""
    x, seed = leaf(np.arange(3.0)), np.ones(3)
    before = x * 2.0
    x.detach().numpy()
    for _ in range(3):
        out = x * 3.0
        entered = frames(lambda out=out: tg.grad(out, x, seed))
    assert "roots_of" not in entered
    both = x * before
    (g,) = tg.grad(both, x, seed)
    assert g.tolist() == [0.0, 4.0, 8.0]


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_large_result_beside_a_broadcast_operand_has_memory_of_the_stock(dtype, random):
    """And is laid out as NumPy's is, however the operand is."""

    def normal(*shape):
        return random.normal(size=shape).astype(dtype)

    b = normal(40, 50, 60)
    spread = [normal(40, 50, 1), b[0], normal(40, 1, 60), b[:1, :1, :1]]
    others = [normal(50, 40, 60).swapaxes(0, 1), np.asfortranarray(b), b[::-1], b[:, ::-1]]
    others.append(np.broadcast_to(normal(50, 40, 1).swapaxes(0, 1), b.shape))
    x, given = tg.tensor(b, requires_grad=True), tg.tensor(1.0, dtype=dtype)
    for k, y in enumerate([*(np.broadcast_to(a, b.shape) for a in spread), *others]):
        given._v = y  # as that of a result of a rule
        for left, right in ((given, x), (x, given)):
            found, wanted = (left * right)._v, left._v * right._v
            np.testing.assert_array_equal(found, wanted)
            assert found.strides == wanted.strides
            if k < len(spread):
                assert isinstance(found.base, np.ndarray), "fresh memory"


def test_a_value_in_memory_that_others_can_write_to_is_left_to_python():
    """Where the owners of memory tell that it is another, compiled code records it, large values too."""
    op, n = REGISTRY["maximum"], MIN_BYTES // 8
    x, array = leaf(np.zeros(n)) * 1.0, np.arange(2.0 * n)
    shared = np.frombuffer(array.data)
    for a, value, by_python in (
        (array[:n], pool.empty((n,), array.dtype), False),
        (array[:n], array[n:].copy()[::-1], False),
        (shared[:n], pool.empty((n,), array.dtype), False),
        (array[:n], array[:n], True),
        (array[:n], array[n:], True),  # of the same memory, if not of the same elements
        (array[::-2], array[:n].view(), True),
        (shared[:n], shared[n:], True),
    ):
        value[...] = a
        found = dispatch.record_natively(op, value, (x, a), None)
        assert (found is None) == by_python
        out = dispatch.record(op, value, (x, a), None)
        assert not np.shares_memory(out._v, array)
        tg.grad(out, x, np.ones(n), retain_graph=True)


def test_two_threads_come_to_new_ops_at_once():
    """What compiled code has of one op, where another thread asks for that of another one meanwhile."""

    class Interrupted:
        """An op, and as its masks are read another thread goes on."""

        def __getattr__(self, name):
            if name == "masks":
                compiled_methods._sheets_by_op.pop(MEANING[np.prod], None)
                compiled_methods.sheet_of(MEANING[np.prod])
            return getattr(MEANING[np.sum], name)

    op = Interrupted()
    sheet = compiled_methods._sheet(op, 0, (None, None))
    kept = next(row for row in compiled_methods._kept if type(row) is tuple and any(x is op for x in row))
    assert sheet[layout.KEY] == id(kept[-1])
