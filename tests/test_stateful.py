"""Random sequences of what a user can do, here and in the reference engine, step by step.

A step is a function of a `World`: one engine with the Tensors made so far. Both worlds take the same steps;
values, flags, gradients and the classes of exceptions must be the same after each.
"""

import itertools
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from hypothesis.stateful import run_state_machine_as_test as run

import tapegrad as tg
from tapegrad.core import compiled_methods
from tapegrad.core.base import wrap
from tapegrad.core.dispatch import COPIED
from tapegrad.errors import GraphFreedError, ReadOnlyError
from tapegrad.kernels import abi, machine
from tapegrad.kernels.replay import layout
from tapegrad.tape import pool
from tapegrad.tape.tape import Tape

from . import reference, sizes
from .programs import BINARY, SHAPED, UNARY, records_per_tape, usable

MOST = 12  # handles at a time
LARGEST = 10.0  # values beyond are dropped, so that errors of rounding stay comparable
SHAPES = [(3,), (2, 3), (), (1, 3), (3, 3), (0,), (0, 3), (4,)]
DTYPES = st.sampled_from(["float64", "float64", *sizes.DTYPES])
MOST_BYTES = 1 << 15  # of an array whose size crosses a limit
MOST_ELEMENTS = 1 << 13
NUMBERS = st.sampled_from([0.5, -1.0, 1.25, 2.0])
PLACE = st.integers(0, 1000)
SOME_PLACE = st.none() | PLACE
BASIC = [
    np.s_[1:], np.s_[::-1], np.s_[::2], np.s_[...], np.s_[0], np.s_[-1], np.s_[:, 0], np.s_[:, ::-1],
    np.s_[..., 1:], np.s_[None], np.s_[-1:0:-1], np.s_[:0], np.s_[1, 2],
]  # fmt: skip
ADVANCED = [[0, 0], [2, 0], [-1], np.s_[:, [1, 0]], ([0, 1], [2, 2]), np.s_[[], 1:]]
COMPLEX = {  # of complex numbers, whose functions with a cut would tell two roundings apart
    "modulus": lambda m, a: m.absolute(m.tanh(a * 0.1) + 2.0),
    "real": lambda m, a: m.real(a) * 1.0,
    "conjugate": lambda m, a: m.conjugate(a),
}
CUT = {"log", "sqrt", "power", "log1p"}
VIEWS = {
    "transpose": lambda a: np.transpose(a),
    "flat": lambda a: a.reshape(-1),
    "column": lambda a: a.reshape(-1, 1),
    "three": lambda a: np.reshape(a, (-1, 3)),
    "broadcast": lambda a: np.broadcast_to(a, (2, *a.shape)),
    "T": lambda a: a.T,
}
ERRORS = {
    "shapes": lambda w, x: x + np.ones((5, 7)),
    "matmul": lambda w, x: x @ np.ones((11, 13)),
    "reshape": lambda w, x: x.reshape(5, 11),
    "index": lambda w, x: x[77],
    "axis": lambda w, x: np.sum(x, axis=5),
    "written shape": lambda w, x: x.__setitem__(..., np.ones((5, 7))),
    "written index": lambda w, x: x.__setitem__(77, 1.0),
    "copied shape": lambda w, x: x.copy_(np.ones((5, 7))),
    "added shape": lambda w, x: x.add_(np.ones((5, 7))),
    "concatenate": lambda w, x: np.concatenate([x, np.ones((5, 7, 2))]),
    "gradient's shape": lambda w, x: w.m.backward([x], [np.ones((5, 7))]),
    "two gradients": lambda w, x: w.m.backward([x], [np.ones(x.shape)] * 2),
    "no gradient": lambda w, x: w.m.grad([x[None] if x.ndim else x.reshape(1, 1)], [x]),
    "no inputs": lambda w, x: w.m.grad([x], []),
    "retain_grad": lambda w, x: x.retain_grad(),
}


class World:
    """An engine, and the handles made so far."""

    def __init__(self, m):
        self.m = m
        self.handles = []
        self.arrays = []


def outcome(step, *arguments):
    try:
        return step(*arguments)
    except Exception as error:
        return error


def plain(x):
    return np.asarray(x.tolist() if isinstance(x, tg.Tensor) else x.value, x.dtype).reshape(x.shape)


def writable(x):
    return not x.nodes and x.memory.whole.leaf is None


def differentiable(x):
    return x.requires_grad


def small(*handles):
    """Whether what is computed of these, each element with each, has not too many elements."""
    extents = zip(*(h.shape[::-1] + (1,) * (8 - h.ndim) for h in handles), strict=True)
    return np.prod([max(n) for n in extents]) <= MOST_ELEMENTS


def overwrite(array):
    """Change an array just used, where what was recorded is another copy."""
    if array.nbytes <= COPIED:
        array[...] = 7.0


def flags(x):
    return x.shape, x.dtype, x.requires_grad, x.is_leaf, x.retains_grad, x._version


class Machine(RuleBasedStateMachine):
    """Two worlds that take the same steps."""

    def __init__(self):
        super().__init__()
        self.worlds = World(tg), World(reference)
        self.blocks, self.left = [], 0
        self.dropped = []
        self.numbers = itertools.count(1)
        self.eps = 0.0
        self.other = None
        self.elsewhere = False

    @initialize(records=st.sampled_from([2, 5, 12, 40, 4096]), dtype=DTYPES, place=SOME_PLACE)
    def begin(self, records, dtype, place):
        """With three leaves, of few elements or of as many as cross a limit."""
        self.records, self.dtype, self.many = records, dtype, 3
        self.short = records_per_tape(records)
        self.short.__enter__()
        if place is not None:
            counts = sizes.counts(dtype, MOST_BYTES)
            self.many = counts[place % len(counts)]
        for shape in [(self.many,), (2, self.many) if self.many < 2000 else (self.many, 1), ()]:
            self.make(shape, dtype, True)
        self.unary("sin", 2)
        self.unary("square", 2)
        self.binary("multiply", 0, 1)

    def teardown(self):
        self.leave_no_grad()
        if self.other is not None:
            self.other.shutdown()
        self.short.__exit__(None, None, None)

    # ------------------------------------------------------------ steps in both worlds

    def both(self, step):
        """Take a step; its results, or its exceptions, in the two worlds."""
        self.release()
        ours, theirs = self.worlds
        if self.elsewhere:
            ours = self.other.submit(outcome, step, ours).result(100)
        else:
            ours = outcome(step, ours)
        # a pruned tape does not know any more which inputs lie behind what was freed: it may refuse too much
        reference.cautious[0] = type(ours) is GraphFreedError
        with reference.recording(self.elsewhere or reference.mode[-1]):  # a thread begins with True
            theirs = outcome(step, theirs)
        self.elsewhere = reference.cautious[0] = False
        self.left -= 1
        if self.left <= 0:
            self.leave_no_grad()
        if isinstance(theirs, Exception) or isinstance(ours, Exception):
            if type(ours) is not type(theirs):
                culprit = ours if isinstance(ours, Exception) else theirs
                raise AssertionError(f"ours {ours!r}, reference {theirs!r}") from culprit
            error = ours
            while error is not None:  # frames would keep handles, and with them their gradients
                error.__traceback__, error = None, error.__cause__ or error.__context__
            return None
        return ours, theirs

    def keep(self, step):
        """Take a step whose result, or results, are new handles."""
        found = self.both(step)
        if found is None:
            return
        found = [r if isinstance(r, tuple) else (r,) for r in found]
        for pair in zip(*found, strict=True):
            assert (pair[0] is None) == (pair[1] is None)
            if pair[1] is None:
                continue
            alike(*pair, self.eps)
            for world, x in zip(self.worlds, pair, strict=True):
                if not any(x is h for h in world.handles):
                    world.handles.append(x)
        del pair, found
        values = [h.value for h in self.worlds[1].handles]
        for k in range(len(values) - 1, -1, -1):
            with np.errstate(all="ignore"):
                if not np.max(np.abs(values[k]), initial=0.0) < LARGEST or len(self.worlds[1].handles) > MOST:
                    self.drop(k)

    def drop(self, k):
        ours, theirs = (world.handles.pop(k) for world in self.worlds)
        self.dropped.append((weakref.ref(ours), theirs))

    def release(self):
        """Tell the reference which dropped handles nothing holds, no view of them and no gradient's owner."""
        for _, theirs in (pair for pair in self.dropped if pair[0]() is None):
            theirs.release()
        self.dropped = [pair for pair in self.dropped if pair[0]() is not None]

    def like(self, k, suits=lambda x: True):
        """The place of a handle, counted from the last, mostly one that suits; and the reference's."""
        handles = self.worlds[1].handles
        places = [q for q, x in enumerate(handles) if suits(x) or k % 5 == 4] or range(len(handles))
        q = places[-1 - k % len(places)]
        return q, handles[q]

    def draw(self, shape, dtype=float):
        rng = np.random.default_rng(next(self.numbers))
        found = rng.uniform(-1.5, 1.5, shape)
        if np.dtype(dtype).kind == "c":
            found = found + 1j * rng.uniform(-0.5, 0.5, shape)
        return found.astype(dtype)

    def make(self, shape, dtype, requires_grad):
        data = self.draw(shape, dtype)
        self.eps = max(self.eps, np.finfo(dtype).eps)  # of what was rounded coarsest, perhaps converted since
        self.keep(lambda w: w.m.tensor(data, requires_grad=requires_grad))

    # ------------------------------------------------------------ rules

    @rule(shape=st.sampled_from([*SHAPES, None, None]), dtype=st.none() | DTYPES, requires_grad=st.booleans())
    def leaf(self, shape, dtype, requires_grad):
        self.make((self.many,) if shape is None else shape, dtype or self.dtype, requires_grad)

    @rule(name=st.sampled_from(sorted(UNARY)), i=PLACE)
    def unary(self, name, i):
        i, x = self.like(i)
        if name not in CUT or x.dtype.kind != "c":
            self.keep(lambda w: UNARY[name](np, w.handles[i]))

    @rule(name=st.sampled_from(sorted(COMPLEX)), i=PLACE)
    def of_complex(self, name, i):
        i, x = self.like(i)
        if x.dtype.kind == "c":
            self.keep(lambda w: COMPLEX[name](np, w.handles[i]))

    @rule(name=st.sampled_from(sorted(BINARY)), i=PLACE, j=PLACE)
    def binary(self, name, i, j):
        (i, x), (j, y) = self.like(i), self.like(j)
        if small(x, y) and (name not in CUT or (x.dtype.kind != "c" and y.dtype.kind != "c")):
            self.keep(lambda w: BINARY[name](np, w.handles[i], w.handles[j]))

    @rule(name=st.sampled_from([*sorted(SHAPED), "max", "clone", "detach", "product"]), i=PLACE)
    def shaped(self, name, i):
        i, x = self.like(i)
        if not small(x):
            return
        if name == "max":
            ordered = x.size and x.dtype.kind != "c"
            self.keep(lambda w: np.max(w.handles[i]) if ordered else w.handles[i].clone())
        elif name in ("clone", "detach"):
            self.keep(lambda w: getattr(w.handles[i], name)())
        elif name == "product":
            by = self.draw((3, 3))
            self.keep(lambda w: w.handles[i] @ by if x.ndim < 3 else by[0] + w.handles[i])
        elif usable(name, x.shape if name == "gram" else [min(n, 3) for n in x.shape]):
            self.keep(lambda w: SHAPED[name](np, w.handles[i]))

    @rule(index=st.sampled_from(BASIC + ADVANCED), i=PLACE)
    def element(self, index, i):
        i, _ = self.like(i)
        self.keep(lambda w: w.handles[i][index])

    @rule(name=st.sampled_from(sorted(VIEWS)), i=PLACE)
    def view(self, name, i):
        i, x = self.like(i)
        if x.ndim < 4 and small(x):
            self.keep(lambda w: VIEWS[name](w.handles[i]))

    @rule(name=st.sampled_from(["+=", "*=", "add_", "mul_", "**="]), i=PLACE, j=PLACE, number=NUMBERS,
          by=st.sampled_from(["number", "handle", "array"]))  # fmt: skip
    def update(self, name, i, j, number, by):
        (i, x), (j, y) = self.like(i, writable), self.like(j)
        if x.memory.unclear or not small(x, y):
            return
        array = self.draw(x.shape, x.dtype)
        if name == "**=":
            by, number = "number", 2.0
        big = max(np.max(np.abs(z.value), initial=0.0) for z in ((x, y) if by == "handle" else (x, x)))
        if not (big + big if name in ("+=", "add_") else big * big) < LARGEST:
            return

        def step(w):
            x = w.handles[i]
            y = number if by == "number" else array.copy() if by == "array" else w.handles[j]
            if name == "+=":
                x += y
            elif name == "*=":
                x *= y
            elif name == "**=":
                x **= y
            else:
                x = getattr(x, name)(y)
            if by == "array":
                overwrite(y)
            return x

        self.keep(step)

    @rule(i=PLACE, j=PLACE, index=st.sampled_from([*BASIC, *ADVANCED, "mask", "array"]), number=NUMBERS,
          by=st.sampled_from(["number", "handle", "part", "array"]))  # fmt: skip
    def assign(self, i, j, index, number, by):
        (i, x), (j, y) = self.like(i, writable), self.like(j)
        if x.memory.unclear or (by == "part" and not x.ndim and y.memory is x.memory):  # see `Memory`
            return
        if isinstance(index, str) and index == "mask":
            index = np.arange(x.size).reshape(x.shape) % 3 != 1
        elif isinstance(index, str):
            index = np.array([1, 0])
        taken = outcome(lambda: x.places[index])
        shape = () if isinstance(taken, Exception) else np.shape(taken)
        array = self.draw(shape)

        def step(w):
            x, y = w.handles[i], w.handles[j]
            new = number
            if by == "handle":
                new = y
            elif by == "part":  # of the same memory, perhaps
                new = y.reshape(-1)[: max(1, int(np.prod(shape)))]
                new = new.reshape(shape) if new.size == int(np.prod(shape)) else new
            elif by == "array":
                new = array.copy()
            x[index] = new
            if by == "array":
                overwrite(new)
            return x

        self.keep(step)

    @rule(i=PLACE, j=PLACE, name=st.sampled_from(["copy_", "zero_", "fill_"]), number=NUMBERS)
    def overwrite(self, i, j, name, number):
        (i, x), (j, _) = self.like(i, writable), self.like(j)
        if x.memory.unclear:
            return
        arguments = {"copy_": lambda w: (w.handles[j],), "zero_": lambda w: (), "fill_": lambda w: (number,)}
        self.keep(lambda w: getattr(w.handles[i], name)(*arguments[name](w)))

    @rule(i=PLACE)
    def array_operand(self, i):
        """An ndarray, changed after its use."""
        i, x = self.like(i)
        array = self.draw(x.shape)

        def step(w):
            mine = array.copy()
            out = mine * w.handles[i] + np.sin(w.handles[i]) * mine
            overwrite(mine)
            return out

        self.keep(step)

    @precondition(lambda self: not self.blocks)
    @rule(depth=st.integers(1, 2), steps=st.integers(1, 3))
    def enter_no_grad(self, depth, steps):
        """Around the next steps."""
        self.blocks, self.left = [world.m.no_grad() for world in self.worlds for _ in range(depth)], steps
        for block in self.blocks:
            block.__enter__()

    def leave_no_grad(self):
        while self.blocks:
            self.blocks.pop().__exit__(None, None, None)

    @rule()
    def in_another_thread(self):
        """The next step is."""
        self.other = self.other or ThreadPoolExecutor(1)
        self.elsewhere = True

    @rule(i=PLACE)
    def forget(self, i):
        if len(self.worlds[0].handles) > 3:
            self.drop(self.like(i)[0])

    @rule(i=PLACE)
    def retain_grad(self, i):
        i, _ = self.like(i)
        self.both(lambda w: w.handles[i].retain_grad())

    @rule(i=PLACE)
    def start_leaf(self, i):
        i, x = self.like(i)
        if len(x.memory.handles) == 1 and not x.memory.unclear:
            self.both(lambda w: [w.handles[i].requires_grad_()])

    @rule(i=PLACE, action=st.sampled_from(["take", "take", "clear"]))
    def its_gradient(self, i, action):
        i, x = self.like(i)
        if action == "clear":
            self.both(lambda w: setattr(w.handles[i], "grad", None))
        elif x.grad is not None:
            self.keep(lambda w: w.handles[i].grad)

    def roots(self, places, reduce):
        places = [self.like(k, differentiable)[0] for k in places]
        roots = [self.worlds[1].handles[k] for k in places]
        cotangents = [self.draw(x.shape, complex if x.dtype.kind == "c" else float) for x in roots]

        def of(w):
            found = [w.handles[k] for k in places]
            if reduce:
                return [np.sum(np.real(x * x)) for x in found], None
            return found, [ct.copy() for ct in cotangents]

        return of

    @rule(places=st.lists(PLACE, min_size=1, max_size=3), inputs=st.lists(PLACE, min_size=1, max_size=3),
          retain=st.sampled_from([None, True, False]), create=st.booleans(), reduce=st.booleans(),
          unused=st.sampled_from(["allow", "zeros", "raise"]))  # fmt: skip
    def grad(self, places, inputs, retain, create, reduce, unused):
        of, inputs = self.roots(places, reduce), [self.like(k, differentiable)[0] for k in inputs]
        more = {"allow": {"allow_unused": True}, "zeros": {"materialize_grads": True}, "raise": {}}[unused]

        def step(w):
            roots, cotangents = of(w)
            found = w.m.grad(roots, [w.handles[k] for k in inputs], cotangents, retain_graph=retain,
                             create_graph=create, **more)  # fmt: skip
            for ct in cotangents or ():
                overwrite(ct)
            return found

        self.keep(step)

    @rule(places=st.lists(PLACE, min_size=1, max_size=3), reduce=st.booleans(), create=st.booleans(),
          retain=st.sampled_from([None, True]),
          inputs=st.none() | st.lists(PLACE, min_size=1, max_size=2))  # fmt: skip
    def backward(self, places, reduce, create, retain, inputs):
        of, inputs = self.roots(places, reduce), inputs and [self.like(k, differentiable)[0] for k in inputs]

        def step(w):
            roots, cotangents = of(w)
            targets = None if inputs is None else [w.handles[k] for k in inputs]
            w.m.backward(roots, cotangents, retain_graph=retain, create_graph=create, inputs=targets)
            for ct in cotangents or ():
                overwrite(ct)

        self.both(step)

    @rule(name=st.sampled_from(sorted(UNARY)), i=PLACE, j=PLACE, twice=st.booleans())
    def fresh_gradient(self, name, i, j, twice):
        """Of what is computed for it, recorded: in compiled code where all is on one tape."""
        (i, x), (j, y) = self.like(i, lambda h: h.is_leaf and h.requires_grad), self.like(j)
        if not small(x, y) or x.dtype.kind == "c":
            return

        def step(w):
            x = w.handles[i]
            z = UNARY[name](np, x * 0.5) * x + np.real(w.handles[j]) * x
            roots = [np.sum(z * z), np.sum(z)] if twice else [np.sum(z * x)]
            return w.m.grad(roots, [x], create_graph=True, allow_unused=True)

        self.keep(step)

    @precondition(lambda self: self.records < 100 and not self.blocks)
    @rule(i=PLACE)
    def abandon(self, i):
        """A value that only a tape holds, for a derivative nobody can ask for, is gone two tapes later."""
        x = self.worlds[0].handles[self.like(i)[0]]
        if not x.requires_grad or not x.ndim:
            return
        kept = x + 1.0  # the tape lives on
        lost = weakref.ref((np.sin(x) * x)._v)
        # which takes longer where a recorded sweep has outgrown the tape
        for _ in range(3 * max(self.records, kept._tape.limit // 4)):
            x + 1.0
        assert lost() is None, "the value of a dead record is kept"
        assert kept.requires_grad

    @rule(name=st.sampled_from(sorted(ERRORS)), i=PLACE)
    def mistake(self, name, i):
        i, x = self.like(i)
        if (name != "no gradient" or x.size != 1) and not x.memory.unclear:
            self.keep(lambda w: (ERRORS[name](w, w.handles[i]), None)[1])

    # ------------------------------------------------------------ what must hold

    @invariant()
    def all_handles_agree(self):
        for ours, theirs in zip(*(world.handles for world in self.worlds), strict=True):
            alike(ours, theirs, self.eps)
            if theirs.grad is not None or (ours.is_leaf or ours.retains_grad):
                assert (ours.grad is None) == (theirs.grad is None)
                if ours.grad is not None:
                    alike(ours.grad, theirs.grad, self.eps)


def alike(ours, theirs, eps):
    count = len(flags(theirs)) - theirs.memory.unclear  # without the version
    assert flags(ours)[:count] == flags(theirs)[:count]
    a, b = plain(ours), plain(theirs)
    scale = 1.0 + np.max(np.abs(b), initial=0.0)
    np.testing.assert_allclose(a, b, rtol=0, atol=scale * (2e-4 if eps > 1e-8 else 1e-10))


def fuzz(examples, steps=30, **more):
    options = settings(max_examples=examples, stateful_step_count=steps, deadline=None, database=None,
                       suppress_health_check=list(HealthCheck), **more)  # fmt: skip
    run(Machine, settings=options)


def test_programs():
    fuzz(60, steps=25, derandomize=True)


@pytest.mark.slow
def test_many_programs():
    fuzz(3000, steps=50)


@pytest.mark.parametrize("m", [tg, reference])
@pytest.mark.parametrize("requires_grad", [False, True])
def test_views_of_a_number_broadcast_are_one_element(m, requires_grad):
    x = m.tensor(2.0, requires_grad=requires_grad)
    many = np.broadcast_to(np.broadcast_to(x, (3,)), (2, 3)).reshape(-1)
    assert many.shape == (6,)
    with m.no_grad(), pytest.raises(ReadOnlyError):
        many[0] = 1.0
    many.detach()[1:].requires_grad_()
    assert plain(many).tolist() == [2.0] * 6
    if requires_grad:
        assert plain(m.grad([many.sum()], [x])[0]) == 6.0


# ---------------------------------------------------------------- it finds what is broken on purpose


def no_copy_on_write(patch):
    """Memory that a tape still reads is written to."""
    patch.setattr(pool, "alone", lambda values, holders: True)


def aliased_gradients(patch):
    """The gradient of a root is the array that was given for it."""
    module = sys.modules["tapegrad.autograd.sweeps"]
    copied = module._cotangent

    def cotangent(k, root, given, as_tensor, lanes):
        checked = copied(k, root, given, as_tensor, lanes)
        alias = isinstance(given, np.ndarray) and given.dtype == root.dtype and not as_tensor
        return given if alias else checked

    patch.setattr(module, "_cotangent", cotangent)
    own = module.Border.result

    def result(self, value, like):
        return own(self, value, like) if isinstance(value, tg.Tensor) else wrap(value[()])

    patch.setattr(module.Border, "result", result)


def no_pruning(patch):
    """A tape keeps the values of dead records."""
    patch.setattr(Tape, "prune", lambda self, sweep=None: None)


def two_limits(patch):
    """Compiled recording takes more values for small than Python does, which records sums and what moves."""
    machine.load()
    objects = [kept for kept in compiled_methods._kept if type(kept) is dict]
    (ufuncs,) = [kept[layout.UFUNCS] for kept in objects if layout.UFUNCS in kept]
    patch.setattr(sizes, "counts", lambda *_: [600])
    patch.delitem(ufuncs, np.add)
    patch.setattr(tg.Tensor, "__add__", compiled_methods.TWINS["__add__"])
    patch.setattr("tapegrad.core.dispatch.record_natively", lambda *_: None)
    patch.setitem(Words(compiled_methods.words), layout.SMALLEST, 1 << 14)


class Words(dict):
    """Compiled code's words, as the fixture changes things and puts them back."""

    def __init__(self, words):
        super().__init__(enumerate(words))
        self.words = words

    def __setitem__(self, place, value):
        self.words[place] = value


@pytest.mark.parametrize(
    ("broken", "found"),
    [
        pytest.param(two_limits, r"Not equal to tolerance|assert \(\((2, )?600", marks=pytest.mark.skipif(
            not abi.native(), reason="the portable layout has no compiled methods")),
        pytest.param(no_copy_on_write, "Not equal to tolerance", marks=pytest.mark.full),
        pytest.param(aliased_gradients, r"7(\.0|\+0j\)) \(ACTUAL\)", marks=pytest.mark.slow),
        (no_pruning, "the value of a dead record is kept"),
    ],
)
def test_a_broken_rule_is_found(monkeypatch, broken, found):
    broken(monkeypatch)
    with pytest.raises(AssertionError, match=found):
        fuzz(3000, derandomize=True, phases=[Phase.generate], report_multiple_bugs=False)  # until it is found
