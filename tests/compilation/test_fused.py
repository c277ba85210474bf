"""Fused kernels of `tapegrad.compile`: they give what rows give; when they are made, kept and not used."""

import gc
import mmap
import os
import re
import subprocess
import sys
import threading
import time
import warnings
from contextlib import suppress

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.autograd.traced_rules import MOST_TRACED
from tapegrad.compilation import background, pace
from tapegrad.compilation.memory import arena
from tapegrad.compilation.memory import pages as memory
from tapegrad.compilation.paths.path import MOST_PLANS
from tapegrad.compilation.plans import handing, plan, planning, scheduling
from tapegrad.compilation.plans.scheduling import MOST_PARTS, MOST_TASKS
from tapegrad.compilation.rows import fusing, stretching, subnormals
from tapegrad.compilation.rows.fusing import CHUNK, UNROLLED
from tapegrad.compilation.rows.rows import OFTEN, Rows
from tapegrad.compilation.rows.staging import Stages
from tapegrad.kernels import abi, assembly, cache
from tapegrad.kernels.replay.layout import PROGRAM_BLOCK, SCALED_BY, SHORT_ROW
from tapegrad.scipy import special
from tapegrad.tape import pool
from tapegrad.tape.tape import LARGE
from tests.tiers import DOUBLES_FIRST, every, thinned

pytestmark = pytest.mark.skipif(not abi.native(), reason="nothing is learned from calls")

CALLS = 7  # recorded, learned from, two by rows, one by both, two by kernels alone


def tanh_chain(x):
    for _ in range(3):
        x = np.tanh(x * 1.1 + 0.1)
    return np.sum(x * x)


def log_sum_exp(x):
    top = np.amax(x, 0)
    return top + np.log(np.sum(np.exp(x - top), 0))


def many_forms(x):
    y = np.sqrt(np.abs(x) + 1.0) / (np.square(x) + 2.0) - np.negative(x)
    return np.sum(np.cos(y) * np.maximum(y, x)) + np.sum(np.expm1(-y)) * 0.5


def scaled_by_results(x):
    s = np.sum(x * 0.5) / x.size
    y = np.arctan(x - s)
    return np.sum(y * s) + np.mean(y * y) * s


def choices(x):
    inside = (x > -0.5) & ~(x >= 0.6) | (x == x[0]) ^ np.isnan(x)
    y = np.where(inside, np.floor(x * 3.0) * x, np.sign(x)) * (x < x[0] + 1.0)
    known = np.logical_and(x != 0.25, np.isfinite(y)) | np.logical_not(np.logical_xor(x <= 0.1, np.isinf(x)))
    steps = np.ceil(x) + np.trunc(x * 2.0) * np.rint(x)
    return np.sum(np.where(np.logical_or(known, x < y), steps * x, np.ones_like(x))) + np.sum(y) * (x[0] > 0)


LIMITS = UNROLLED, CHUNK, PROGRAM_BLOCK, 2 * PROGRAM_BLOCK
SIZES = sorted({1, 2, 10, 127, 129, *(n + more for n in LIMITS for more in (-1, 0, 1)), 20_011})
FUNCTIONS = [tanh_chain, log_sum_exp, many_forms, scaled_by_results, choices]


def fused(compiled):
    """Whether the calls of a function are computed by fused kernels, those of each way."""
    return "computed by" in compiled.explain() and "not fused" not in compiled.explain()


def compare(f, arguments, kind, **how):
    compiled, recorded = tg.compile(f, wait=True, **how), tg.func.value_and_grad(f)
    for x in arguments:
        value, gradient = compiled.value_and_grad(x)
        wanted, expected = recorded(x)
        assert np.asarray(value).tobytes() == np.asarray(wanted).tobytes()
        scale = np.abs(np.nan_to_num(expected, posinf=0, neginf=0)).max(initial=1)
        np.testing.assert_allclose(
            gradient, expected, rtol=0, atol=scale * (1e-13 if kind is np.float64 else 1e-5)
        )
    return compiled


IN_TURN = [  # each size is quick of one function, in double precision
    (f, kind, n) for i, n in enumerate(SIZES) for j, kind in enumerate((np.float64, np.float32))
    for f in FUNCTIONS[(i + 2 * j) % len(FUNCTIONS) :] + FUNCTIONS[: (i + 2 * j) % len(FUNCTIONS)]
]  # fmt: skip


@pytest.mark.parametrize(("f", "kind", "n"), every(IN_TURN, 2 * len(FUNCTIONS)))
def test_sizes_on_both_sides_of_a_block(f, kind, n):
    x = np.linspace(-1.5, 1.4, n).astype(kind)
    compiled = compare(f, [x * kind(1 + 0.1 * k) for k in range(CALLS)], kind)
    assert fused(compiled), compiled.explain()


@pytest.mark.parametrize("kind", [np.float64, np.float32])
@pytest.mark.parametrize("more", [-1, 0, 1])
def test_sizes_on_both_sides_of_a_vector_form(kind, more):
    x = np.linspace(-1.5, 1.4, LARGE // np.dtype(kind).itemsize + more).astype(kind)
    compiled = compare(many_forms, [x * kind(1 + 0.1 * k) for k in range(CALLS)], kind)
    assert fused(compiled)
    ((way,),) = [known.ways for known in compiled.explain().kinds]
    assert (way.operations, way.calls) == (17, CALLS - 2)  # none is learned twice


NUMBERS_OF_ALL = {
    "sum": lambda x: np.sum(np.sin(x)) * np.cos(x),
    "sum and a product": lambda x: np.sum(np.exp(x)) + x * 2.0,
    "norm": lambda x: np.linalg.norm(np.sin(x)) * np.cos(x),
    "quotient of exponentials": lambda x: np.exp(x) / np.sum(np.exp(x)),
    "maximum": lambda x: np.exp(x - np.max(x)) * x,
    "product of vectors": lambda x: (np.sin(x) @ x) * np.cos(x),
    "broadcast_to": lambda x: np.broadcast_to(np.sum(np.sin(x)), x.shape) * np.cos(x),
    "two": lambda x: np.linalg.norm(np.sin(x)) * np.cos(x) + np.linalg.norm(np.exp(x)) * np.tanh(x),
    "one of another": lambda x: np.linalg.norm(np.linalg.norm(np.sin(x)) * np.cos(x)) * np.tanh(x),
}


SEVERAL = [  # three sizes of each name, in turn
    (name, (PROGRAM_BLOCK, PROGRAM_BLOCK + 1, 3 * PROGRAM_BLOCK)[(k + i) % 3])
    for k, name in enumerate(NUMBERS_OF_ALL) for i in range(3)
]  # fmt: skip


@pytest.mark.parametrize("kind", DOUBLES_FIRST)
@pytest.mark.parametrize(("name", "n"), every(SEVERAL, 3))
def test_a_number_of_all_elements_that_each_is_combined_with(name, n, kind):
    """Its cotangent is a sum over all blocks, which the rule behind it reads in each."""
    f = lambda x: np.sum(NUMBERS_OF_ALL[name](x) * x)
    compiled, v = tg.compile(f, wait=True), np.linspace(1.0, -0.5, n).astype(kind)
    for k in range(CALLS):
        x = (np.linspace(-1.0, 1.3, n) * (1.0 + 0.1 * k)).astype(kind)
        value, g = compiled.value_and_grad(x)
        wanted, expected = tg.func.value_and_grad(f)(x)
        assert value == wanted
        close = {"rtol": 0, "atol": 100 * np.finfo(kind).eps * np.abs(expected).max()}
        np.testing.assert_allclose(g, expected, **close)
        product, expected = compiled.hvp(x, v), tg.func.hvp(f)(x, v)
        close["atol"] = 1000 * np.finfo(kind).eps * np.abs(expected).max()
        np.testing.assert_allclose(product, expected, **close)


@pytest.mark.parametrize("f", FUNCTIONS)
def test_numbers_that_are_none(f):
    x = np.linspace(-2.0, 2.0, 3 * PROGRAM_BLOCK)
    compiled, recorded = tg.compile(f, wait=True), tg.func.value_and_grad(f)
    with np.errstate(all="ignore"):
        for k in range(CALLS + 5):
            if k >= CALLS:
                x = x.copy()
                x[100 * k : 100 * k + 6] = np.nan, np.inf, -np.inf, -0.0, 0.0, 5e-324
            (value, gradient), (wanted, expected) = compiled.value_and_grad(x), recorded(x)
            assert np.asarray(value).tobytes() == np.asarray(wanted).tobytes() or np.isnan(wanted)
            assert np.isnan(value) == np.isnan(wanted)
            np.testing.assert_allclose(gradient, expected, rtol=1e-12, atol=1e-13)
            zero = expected == 0
            np.testing.assert_array_equal(np.signbit(gradient[zero]), np.signbit(expected[zero]))


def test_errors_of_numbers_are_told_as_without():
    f = lambda x: np.sum(np.log(x) * 2.0 + np.sqrt(x))
    compiled, recorded = tg.compile(f, wait=True), tg.func.value_and_grad(f)
    for k in range(CALLS + 6):
        x = np.linspace(0.1 if k % 3 or k < CALLS else -0.1, 2.0, 2000)
        told = []
        for call in (compiled.value_and_grad, recorded):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                call(x)
            told.append([str(w.message) for w in caught])
        assert told[0] == told[1]
    assert fused(compiled)


def test_errors_in_what_nobody_asks_for():
    def f(x):
        np.log(x)  # of no use
        return np.sum(x * x)

    compiled = tg.compile(f, wait=True)
    for _ in range(CALLS):
        compiled.value_and_grad(np.ones(100))
    with pytest.warns(RuntimeWarning, match="log"):
        compiled.value_and_grad(-np.ones(100))


def test_arguments_beyond_a_vector_form():
    f = lambda x: np.sum(np.sin(x) * x)
    x = np.linspace(0.0, 3.0, 5000)
    far = np.where(np.arange(5000) == 4000, 1e12, x)
    compiled = compare(f, [x] * CALLS + [far, x, far, x], np.float64)
    assert fused(compiled)
    compare(f, [far] * (CALLS + planning.MOST_IN_VAIN), np.float64)
    for more in (-1, 0):
        compiled = compare(f, [x] * CALLS + [far] * (planning.MOST_IN_VAIN + more), np.float64)
        assert fused(compiled) == (more < 0)


def test_values_that_are_looked_at():
    def f(x):
        y = np.exp(x)
        return np.sum(y * 2.0) if y[0] > 1.0 else np.sum(y * y)

    x = np.linspace(-1.0, 1.0, 3000)
    compiled = compare(f, [x * (1 + 0.01 * k) * (-1) ** (k // 2) for k in range(4 * CALLS)], np.float64)
    assert fused(compiled)


def test_more_places_to_look_than_there_are_plans(monkeypatch):
    monkeypatch.setattr(pace, "BEFORE", 1 << 60)  # it may take as long as recording

    def f(x, k):
        for j in range(12):
            x = x * 1.5
            if j == k:
                assert np.all(np.isfinite(x))
        return np.sum(x * x)

    x, compiled, recorded = np.linspace(0.1, 1.0, 50), tg.compile(f, wait=True), tg.func.value_and_grad(f)
    for k in range(2 * CALLS * 12):
        (value, gradient), (wanted, expected) = compiled.value_and_grad(x, k // 14), recorded(x, k // 14)
        assert value == wanted
        np.testing.assert_allclose(gradient, expected, rtol=1e-13)
    paths = [path for kind in compiled._kinds.values() for path in kind.matcher.paths]
    assert max(len(path.plans) for path in paths) == MOST_PLANS


def test_programs_that_are_made_anew_are_planned_ever_later():
    kept = []

    def f(x, keep):
        y = x * 2.5
        if keep:
            kept.append(y.detach().numpy())
        return np.sum(y * y)

    jobs = []
    real = planning.Planning.work
    planning.Planning.work = lambda self: (jobs.append(1), real(self))[1]
    try:
        compiled = tg.compile(f, wait=True)
        for k in range(200):
            compiled.value_and_grad(np.ones(50), k % 5 == 4)
    finally:
        planning.Planning.work = real
    assert len(jobs) < 10


def test_tensors_that_are_kept():
    kept = []

    def f(x, keep):
        y = np.tanh(x) * 3.0
        if keep:
            kept.append(y)
        return np.sum(y * y)

    x, compiled = np.linspace(-1.0, 1.0, 3000), tg.compile(f, wait=True)
    for k in range(3 * CALLS):
        compiled.value_and_grad(x + k, k % 5 == 4)
        if k % 5 == 4:
            wanted = np.tanh(tg.tensor(x + k)) * 3.0
            np.testing.assert_array_equal(kept.pop().detach().numpy(), wanted.numpy())


def test_a_kernel_that_is_wrong_is_not_used(monkeypatch):
    right = fusing.emit_step
    monkeypatch.setattr(
        fusing, "emit_step", lambda emit, f, values: right(emit, np.subtract if f is np.add else f, values)
    )
    f = lambda x: np.sum((x + 0.625) * x)
    compiled = compare(f, [np.linspace(0.0, 1.0, 3000) + k for k in range(CALLS)], np.float64)
    assert "not fused: its value has other bits" in compiled.explain()


def test_the_background():
    f = lambda x: np.sum(np.tanh(x * 1.25) * x - 0.375)
    x, compiled, end = np.linspace(-1.0, 1.0, 3000), tg.compile(f), time.monotonic() + 60
    wanted = tg.func.value_and_grad(f)(x)
    while not fused(compiled) and time.monotonic() < end:
        value, gradient = compiled.value_and_grad(x)
        assert value == wanted[0]
        np.testing.assert_allclose(gradient, wanted[1], rtol=1e-12)
    assert fused(compiled)
    assert "tapegrad-compile" in {thread.name for thread in threading.enumerate()}


def test_what_waits_is_bounded(monkeypatch):
    monkeypatch.setattr(background, "MOST_JOBS", 0)
    compiled = tg.compile(lambda x: np.sum(x * 0.8125))
    for _ in range(CALLS):
        compiled.value_and_grad(np.ones(10))
    assert background.waiting() == 0
    assert "fused" not in compiled.explain()


def test_a_function_that_is_gone_is_not_planned():
    compiled = tg.compile(lambda x: np.sum(x * 0.9375))
    for _ in range(CALLS):
        compiled.value_and_grad(np.ones(10))
    del compiled
    gc.collect()
    assert not [x for x in gc.get_objects() if isinstance(x, planning.Planning) and x._calls < 0]


def run(code, **settings):
    return subprocess.run(
        [sys.executable, "-c", code], env=os.environ | settings, capture_output=True, text=True, timeout=120
    )


PROGRAM = """
import os, random, time
import numpy as np, tapegrad as tg
random.seed({seed})
steps = [random.choice([np.tanh, np.negative, np.square, np.absolute]) for _ in range(12)]
def f(x):
    y = x
    for step in steps:
        y = step(y) * x + y
    return np.sum(y)
f = tg.compile(f, wait={wait})
x = np.linspace(-1.0, 1.0, 3000)
for _ in range(20):
    value = f.value_and_grad(x)[0]
"""


def anew():
    """A program that no other run has compiled."""
    return PROGRAM.format(seed=time.time_ns(), wait=False)


@pytest.mark.full
def test_it_is_kept_on_disk():
    if cache.directory() is None:
        pytest.skip("nothing is kept")
    code = PROGRAM.format(seed=time.time_ns(), wait=True)
    code += "from tapegrad.kernels import assembly\nprint(assembly.statistics)\nassert 'fused' in f.explain()"
    first, second = run(code), run(code)
    assert first.returncode == second.returncode == 0, first.stderr + second.stderr
    assert "'cached': 0" in first.stdout, first.stdout
    assert "'compiled': 0" in second.stdout, second.stdout


@pytest.mark.full
def test_the_setting():
    code = PROGRAM.format(seed=1, wait=False) + "print(f.explain(), tg.show_config())"
    told = run(code, TAPEGRAD_COMPILE="off").stdout
    assert "not fused: TAPEGRAD_COMPILE=off" in told
    assert "off: 0 jobs" in told
    assert "computed by" in run(code, TAPEGRAD_COMPILE="wait").stdout
    assert "TAPEGRAD_COMPILE is one of" in run(code, TAPEGRAD_COMPILE="soon").stderr


def paused(*times):
    """Moments of a compilation: these, and others in the slow tier."""
    return [pytest.param(t, marks=() if t in times else pytest.mark.slow) for t in (0.0, 0.01, 0.05, 0.1)]


@pytest.mark.full
@pytest.mark.parametrize("pause", paused(0.0, 0.05))
def test_processes_that_end_while_it_compiles(pause):
    found = run(anew() + f"time.sleep({pause})")
    assert found.returncode == 0, found.stderr
    assert not found.stderr


@pytest.mark.full
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.parametrize("pause", paused(0.01))
def test_forks_while_it_compiles(pause):
    code = (
        anew()
        + f"""
time.sleep({pause})
child = os.fork()
end = time.monotonic() + 100
while "computed by" not in f.explain() and time.monotonic() < end:
    assert f.value_and_grad(x)[0] == value
    time.sleep(1e-3)  # a loop without a pause leaves another thread little of a busy machine
assert "computed by" in f.explain(), f.explain()
if child:
    assert os.waitpid(child, 0)[1] == 0
"""
    )
    found = run(code)
    assert found.returncode == 0, found.stderr


def test_there_is_an_end_to_kernels(monkeypatch):
    monkeypatch.setattr(assembly, "MOST_KERNELS", 0)
    compiled = compare(lambda x: np.sum(x * x + 0.0625), [np.ones(50)] * CALLS, np.float64)
    assert "not fused: MemoryError" in compiled.explain()


@pytest.mark.parametrize("count", [MOST_TASKS // 4, MOST_TASKS])
def test_more_steps_than_a_group_has(count):
    def f(x):
        for _ in range(count):
            x = x * 0.5 + x
        return np.sum(x * x)

    compiled = compare(f, [np.linspace(-1.0, 1.0, 2000) / 1.5**count] * CALLS, np.float64)
    assert fused(compiled)


@pytest.mark.parametrize("replay", [False, True])
def test_a_plan_stays_that_computes_calls_between_those_it_cannot(replay):
    """Only calls in a row that it was in vain for count, whoever has computed the others."""

    f = lambda x: np.sum(np.sin(x) * x)
    compiled, recorded = tg.compile(f, wait=True, replay=replay), tg.func.value_and_grad(f)
    near, far = np.linspace(0.5, 1.5, 1000), np.full(1000, 1e22)
    for x in [near] * CALLS + [far, near] * (planning.MOST_IN_VAIN + 1):
        (value, gradient), (wanted, expected) = compiled.value_and_grad(x), recorded(x)
        assert value == wanted
        np.testing.assert_allclose(gradient, expected, rtol=1e-13)
    assert fused(compiled)


def test_more_steps_than_a_plan_has(monkeypatch):
    monkeypatch.setattr(memory, "MOST_STEPS", 9)
    compiled = compare(lambda x: np.sum(x * x * x * x * x), [np.ones(50)] * CALLS, np.float64)
    assert re.search(r"not fused: its \d+ steps are more than 9; arrays", compiled.explain())
    monkeypatch.setattr(memory, "MOST_STEPS", 100)
    assert fused(compare(lambda x: np.sum(x * x * x * x * x), [np.ones(50)] * CALLS, np.float64))


@pytest.mark.parametrize("shape", [(3, 4), (40, 60), (1, 1), (2, 1, 3), (2, 0)])
def test_shapes(shape):
    def f(x):
        y = np.exp(x) * x + x[..., :1]
        return np.sum(y * np.sum(y, axis=0)) + np.mean(y.T)

    x = np.linspace(-1.0, 1.0, int(np.prod(shape))).reshape(shape)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled = tg.compile(f, wait=True)
        for k in range(CALLS):
            (value, gradient), (wanted, expected) = (
                call(x * (1 + 0.1 * k)) for call in (compiled.value_and_grad, tg.func.value_and_grad(f))
            )
            assert np.asarray(value).tobytes() == np.asarray(wanted).tobytes()
            np.testing.assert_allclose(gradient, expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("function", [np.maximum, np.minimum, np.arctan2, np.multiply])
def test_a_step_between_groups(function):
    b = np.linspace(-1.0, 1.0, 40)

    def f(x):
        y = x * 2.0
        return np.sum(y * (function(y, b) * 3.0))

    x = np.random.default_rng(0).normal(size=(CALLS, 50, 40))
    assert fused(compare(f, x, np.float64))


def test_a_step_that_does_not_wait_is_noticed(monkeypatch):
    monkeypatch.setattr(scheduling.Schedule, "_latest", lambda self, work: (None, True))
    f = lambda x: np.sum(np.cumsum(x * 2.0) * 1.5 + x)
    compiled = compare(f, np.random.default_rng(0).normal(size=(CALLS, 500)), np.float64)
    assert "not fused: its" in compiled.explain()


def plans_of(compiled):
    (kind,) = compiled._kinds.values()
    return [planning.plan for planning in kind.matcher.paths[0].plans.values()]


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_what_a_plan_does_not_need_any_more_is_overwritten(more):
    n = arena.SMALLEST // 8 + more

    def f(x):
        for k in range(10):
            x = np.concatenate([x[3:] * 0.5, x[:3]]) + np.maximum(x, x[k]) * 0.25
        return np.sum(x * x)

    compiled = compare(f, np.random.default_rng(0).normal(size=(CALLS, n)), np.float64)
    (made,) = plans_of(compiled)
    moved = made.arena.memory.nbytes
    assert moved == 0 if more < 0 else 0 < moved < 20 * 8 * n


def test_no_two_arrays_have_a_place_of_an_arena_at_once():
    random = np.random.default_rng(0)
    for n in (0, 1, 2, 30, 200):
        begins = random.integers(0, 40, n)
        spans = [(int(b), int(b + random.integers(0, 20)), int(random.integers(1, 9))) for b in begins]
        size, offsets = arena._fit(spans)
        here = np.zeros((61, size), int)
        for (begin, end, room), at in zip(spans, offsets, strict=True):
            here[begin : end + 1, at : at + room] += 1
        assert here.max(initial=0) == min(n, 1)
        assert size <= 1.5 * here.sum(1).max()


def placed_of(compiled):
    """Plans, if no row is a call that knows arrays, as sums are with older versions of NumPy."""
    made = plans_of(compiled)
    if any(one.arena.is_fixed for one in made):
        pytest.skip("calls of NumPy know arrays in the arena")
    return made


PARTS = [2, MOST_PARTS - 1, MOST_PARTS, MOST_PARTS + 1]


@pytest.mark.parametrize("rows", thinned(PARTS, lambda rows: rows >= MOST_PARTS))
def test_operands_of_a_few_parts_are_copied(rows):
    """Which a step by itself would read as they lie, in an arena that is always the same then."""
    data = np.random.default_rng(0).normal(size=(800, rows))

    def f(x):
        y = np.exp(x * 0.5).reshape(rows, -1)
        for _ in range(9):
            y = np.tanh((y - data.T) * 0.5) * (data.T[:, None, :] + y[:, None])[:, 0]
        return np.sum(y * y)

    compiled = compare(f, np.random.default_rng(0).normal(size=(CALLS, 800 * rows)), np.float64)
    assert fused(compiled)
    if rows > MOST_PARTS:
        assert plans_of(compiled)[0].place is None
    else:
        assert placed_of(compiled)[0].place is not None


@pytest.fixture
def common(monkeypatch):
    """The memory that plans have in common, of nobody else's."""
    monkeypatch.setattr(handing, "_common", [])
    return handing._common


def in_an_arena(x):
    for k in range(10):
        x = np.concatenate([x[3:] * 0.5, x[:3]]) + np.maximum(x, x[k]) * 0.25
    return np.sum(x * x)


def test_plans_have_the_memory_of_arenas_in_common(common):
    small, large = (np.random.default_rng(0).normal(size=n) for n in (9_000, 20_000))
    compiled = [tg.compile(in_an_arena, wait=True) for _ in range(3)]
    wanted = [tg.func.grad(in_an_arena)(x) for x in (small, large)]
    for _ in range(CALLS):
        for f, k in zip(compiled, (0, 1, 0), strict=True):
            np.testing.assert_allclose(f.grad((small, large)[k]), wanted[k], rtol=1e-12)
    places = [made.place for f in compiled for made in placed_of(f)]
    (room,) = common
    assert len(places) == 3
    assert room.size == places[1]._size > places[0]._size
    assert all(x._words.at == room.at and x._own is None for x in places)
    assert not room.lock.locked()
    del places, compiled[1]
    gc.collect()
    assert not np.any(room._memory[mmap.PAGESIZE : -mmap.PAGESIZE]) or sys.platform != "linux"
    np.testing.assert_allclose(compiled[0].grad(small), wanted[0], rtol=1e-12)


def test_a_plan_has_an_arena_of_its_own_while_another_one_computes(common):
    x = np.random.default_rng(0).normal(size=9_000)
    compiled = tg.compile(in_an_arena, wait=True)
    wanted = tg.func.grad(in_an_arena)(x)
    for k in range(2 * CALLS):
        if k % 3 == 2 and common:
            with common[0].lock:
                np.testing.assert_allclose(compiled.grad(x), wanted, rtol=1e-12)
        np.testing.assert_allclose(compiled.grad(x), wanted, rtol=1e-12)
    (place,) = [made.place for made in placed_of(compiled)]
    assert place._own is not None and place._words.at == common[0].at
    assert not common[0].lock.locked() and not place._own.lock.locked()


def test_plans_in_several_threads(common):
    x = np.random.default_rng(0).normal(size=9_000)
    compiled = [tg.compile(in_an_arena, wait=True) for _ in range(4)]
    wanted, wrong = tg.func.grad(in_an_arena)(x), []

    def call(f):
        wrong.extend(k for k in range(40) if not np.allclose(f.grad(x), wanted, rtol=1e-12, atol=0))

    threads = [threading.Thread(target=call, args=(f,)) for f in compiled]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert all(map(placed_of, compiled)) and not common[0].lock.locked()


@pytest.mark.parametrize("smallest", [8, 64, 112, 113, 4096])
def test_what_is_cleared_as_a_whole_stays_where_it_is(smallest, monkeypatch):
    """Cotangents of numbers that are summed up are parts of an array, of which a plan may touch some."""
    monkeypatch.setattr(arena, "SMALLEST", smallest)

    def f(x):
        total, y = 0.0, np.exp(x * 0.1)
        for k in range(14):
            y = y * x[k % 5] + x
            total = total + np.log(np.sum(y * (1.0 + k)))
        return total * np.max(y)

    assert fused(compare(f, np.random.default_rng(0).uniform(0.5, 1.0, (CALLS, 5)), np.float64))


@pytest.mark.parametrize("kind", DOUBLES_FIRST)
@pytest.mark.parametrize("shape", [(600,), (1, 600), (30, 20)])
def test_parts_and_joined_arrays(shape, kind):
    def f(x):
        y = np.concatenate([x[..., 2:] * -0.0, np.zeros((*shape[:-1], 1), kind), x[..., :1]], axis=-1)
        z = np.concatenate([x[:1], x[1:] * 0.5, x[:0]])
        return np.sum(y * z[..., ::-1]) + np.sum(z[-1] * -0.0) + np.sum(np.sqrt(y * y + 1) * x)

    x = np.random.default_rng(0).normal(size=(CALLS, *shape)).astype(kind)
    compiled = compare(f, x, kind)
    assert fused(compiled), compiled.explain()
    for part in (lambda x: np.sum(x[2:5] * -0.0), lambda x: np.sum(x[:-1] * -0.0) + np.sum(x[1:2] * 0.0)):
        compiled = compare(part, x, kind)
        wanted = tg.func.grad(part)(x[0])
        np.testing.assert_array_equal(np.signbit(compiled.grad(x[0])), np.signbit(wanted))


REDUCED = {
    "max": np.max, "min": np.amin, "logsumexp": special.logsumexp,
    "norm": lambda x, axis, keepdims: np.linalg.norm(x, axis=axis, keepdims=keepdims),
}  # fmt: skip
AXES = [
    ((40, 60), 0), ((40, 60), -1), ((7, PROGRAM_BLOCK + 1), 0), ((3, 2, PROGRAM_BLOCK), 1),
    ((6, 5, 4), (0, 2)), ((5, 1), 1), ((1, 5), 0),
]  # fmt: skip
REDUCTIONS = [(name, *row) for name in REDUCED for row in AXES]


@pytest.mark.parametrize("kind", DOUBLES_FIRST)
@pytest.mark.parametrize(("name", "shape", "axis"), every(REDUCTIONS, 2))
def test_reductions_along_axes(name, shape, axis, kind):
    """Ties, zeros of both signs and what is no finite number are as in recorded sweeps."""
    axis = 2 if name == "norm" and len(shape) == 3 else axis
    function, keepdims = REDUCED[name], kind is np.float32
    random = np.random.default_rng(0)
    xs = np.round(random.normal(size=(2 * CALLS, *shape)), 1).astype(kind)
    xs[-1].flat[:4:3], xs[-2].flat[1], xs[-3].flat[:3], xs[-4] = np.nan, np.inf, (0.0, -0.0, -np.inf), 0.0
    weights = random.normal(size=np.max(xs[0], axis=axis, keepdims=keepdims).shape).astype(kind)

    def f(x):
        y = function(np.square(np.sqrt(np.abs(x) + 1.0)) * x, axis=axis, keepdims=keepdims)
        return np.sum(y * weights) + np.sum(y) + np.sum(np.square(x))

    compiled, recorded = tg.compile(f, wait=True), tg.func.value_and_grad(f)
    for x in xs:
        with np.errstate(all="ignore"):
            (value, gradient), (wanted, expected) = compiled.value_and_grad(x), recorded(x)
        assert np.asarray(value).tobytes() == np.asarray(wanted).tobytes()
        np.testing.assert_allclose(gradient, expected, rtol=0, atol=32 * np.finfo(kind).eps)
    assert fused(compiled) and "the rule of" not in compiled.explain(), compiled.explain()


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (2, 0, 3)])
def test_reductions_along_axes_of_nothing(shape):
    compiled = tg.compile(lambda x: np.sum(np.max(x * 2.0, axis=shape.index(3))) + 1.0, wait=True)
    for _ in range(CALLS):
        value, gradient = compiled.value_and_grad(np.ones(shape))
        assert value == 1.0 and gradient.shape == shape


SHAPES = [  # of an array, and of an operand that is stretched to it, along one of them in reverse
    ((40, 60), (60,)), ((40, 60), (40, 1)), ((7, PROGRAM_BLOCK + 1), (PROGRAM_BLOCK + 1,)),
    ((7, PROGRAM_BLOCK + 1), (7, 1)), ((3, PROGRAM_BLOCK), (1, PROGRAM_BLOCK)), ((3, PROGRAM_BLOCK), (3, 1)),
    ((5, 300, 7), (5, 1, 7)), ((5, 300, 7), (5, 300, 1)), ((5, 300, 7), (300, 7)), ((5, 300, 7), (1, 300, 1)),
    ((3, 2, 1100), (3, 1, 1100)), ((2, 3, 2), (2, 1, 2)), ((PROGRAM_BLOCK + 1, 3), (3,)),
    ((PROGRAM_BLOCK + 1, 3), (PROGRAM_BLOCK + 1, 1)), ((2000, 1), (1,)), ((4, 1, 500), (4, 1, 1)),
]  # fmt: skip


@pytest.mark.parametrize("kind", DOUBLES_FIRST)
@pytest.mark.parametrize(("shape", "other"), every(SHAPES, 4))
def test_operands_that_are_stretched(shape, other, kind):
    a = np.random.default_rng(1).normal(size=other).astype(kind)
    b = np.random.default_rng(2).normal(size=shape).astype(kind)
    axes = tuple(k for k, n in enumerate((1,) * (len(shape) - len(other)) + other) if n != shape[k])

    def f(x):
        y = np.exp(x * 0.5 - a) * b + a / (1.5 + x * x)
        return np.sum(np.tanh(y + np.sum(y, axis=axes, keepdims=True)))

    def by_the_smaller(x):
        y = np.tanh(x * 2.0) - b
        return np.sum(y * y * (x - 0.25))

    def multiples(x):  # of cotangents that are arrays, the first and another one, and of a number
        y = b - x
        return np.sum(y * y * b) + np.sum(y) + np.sum((np.negative(x) + b) * b)

    numbers = np.random.default_rng(0)
    assert fused(compare(multiples, numbers.normal(size=(CALLS, *other)).astype(kind), kind))
    assert fused(compare(f, numbers.normal(size=(CALLS, *shape)).astype(kind), kind))
    assert fused(compare(by_the_smaller, numbers.normal(size=(CALLS, *other)).astype(kind), kind))


@pytest.mark.parametrize(("shape", "other"), SHAPES)
def test_which_elements_of_a_stretched_operand_are_read(shape, other):
    x = np.arange(np.prod(other)).reshape(other)
    how = stretching.stretch(x, shape)
    if how is None:
        assert (shape, other) in (((5, 300, 7), (1, 300, 1)), ((3, 2, 1100), (3, 1, 1100)), ((2000, 1), (1,)))
        return
    i = np.arange(np.prod(shape))
    read = x.ravel()[i // how.unit * how.run + i % how.run]
    np.testing.assert_array_equal(read, np.broadcast_to(x, shape).ravel())
    ends = stretching.cut(i.size, [how])
    assert ends[0] == 0
    assert ends[-1] == i.size
    assert 0 < np.diff(ends).min() <= np.diff(ends).max() <= PROGRAM_BLOCK
    for n in how:
        if n <= PROGRAM_BLOCK:
            assert not np.any(np.array(ends) % n)
        else:
            assert set(range(0, i.size, n)) <= set(ends)


MANY_ROWS = [  # of each length, in turn
    ((1, 5, 3 * PROGRAM_BLOCK)[(k + i) % 3], m)
    for k, m in enumerate([1, 2, 7, 8, 9, 33, SHORT_ROW - 1, SHORT_ROW, SHORT_ROW + 1]) for i in range(3)
] + [(5, PROGRAM_BLOCK - 23), (40, PROGRAM_BLOCK)]  # fmt: skip


@pytest.mark.parametrize(("rows", "m"), every(MANY_ROWS, 3))
def test_sums_of_short_rows(m, rows):
    def f(x):
        y = np.sum(x * x + 0.5, axis=1)
        z = np.sum(y[:, None] * x, axis=1)
        return np.sum(z * np.sum(x, axis=-1)) + np.mean(y)

    x = np.random.default_rng(0).normal(size=(CALLS, rows, m))
    x[2] *= -0.0
    compiled = compare(f, x, np.float64)
    assert fused(compiled), compiled.explain()


def test_operands_that_do_not_go_together():
    numbers = np.random.default_rng(1)
    a, b = numbers.normal(size=(100, 33, 1)), numbers.normal(size=33 * 31)

    def f(x):
        y = x.reshape(100, 33, 31) * a
        return np.sum(y * np.reshape(y, (100, 33 * 31))[0, 0] + np.reshape(x * b, y.shape))

    assert fused(compare(f, numbers.normal(size=(CALLS, 100, 33 * 31)), np.float64))
    assert stretching.cut(100 * 33 * 31, [stretching.Stretch(31, 1), stretching.Stretch(1025, 1)]) is None
    blocks = [stretching.cut(n * 1025, [stretching.Stretch(1025, 1)]) for n in (2**15, 2**15 + 1)]
    assert len(blocks[0]) == stretching.MOST_BLOCKS + 1
    assert blocks[1] is None


def by_stages(tasks, given, values):
    """What kernels leave in arrays, of one element, and in sums: by tasks in order, and by stages."""
    results = []
    for stages in (None, Stages(tasks, given, lambda f: f is np.sin)):
        memory, sums = dict(values), dict.fromkeys(given.sums, 0.0)
        known = dict(values)
        if stages is None:
            for task in tasks:
                found = task.function(*(known[x] for x in task.reads)) if not task.is_sum else None
                if task.is_sum:
                    sums[task.writes] += known[task.reads[0]]
                else:
                    known[task.writes] = found
            memory |= {name: known[name] for name in given.written}
        else:
            for stage in stages.found:
                here = {x: values[x] for x in given.numbers} | {x: memory[at] for at, x in stage.loads}
                for task in stage.tasks:
                    if task.is_sum:
                        sums[task.writes] += here[task.reads[0]]
                    else:
                        here[task.writes] = task.function(*(here[x] for x in task.reads))
                memory |= {at: here[x] for at, x in stage.stores}
                forms = {task.reads for task in stage.tasks if task.function is np.sin}
                assert len(forms) <= 1
        results.append(
            ({name: memory[name] for name in values} | {x: memory[x] for x in given.written}, sums)
        )
    return results


@pytest.mark.parametrize("seed", every(range(100), 3))
def test_stages_of_kernels(seed):
    random = np.random.default_rng(seed)
    numbers, read = (0,), (1, 2, 3)
    known, tasks = [0, 1, 2, 3], []
    for k in range(int(random.integers(1, 30))):
        function = (np.sin, np.add, np.multiply)[random.integers(3)]
        reads = tuple(random.choice(known, function.nin).tolist())
        writes = int(random.choice([1, 2, 3, 10 + k, 10 + k, 10 + k]))
        tasks.append(fusing.Task(function, reads, writes))
        known.append(writes)
        if random.integers(5) == 0:
            tasks.append(fusing.Task(np.add, (int(random.choice(known)),), 9, True))
    written = tuple({task.writes for task in tasks if not task.is_sum and random.integers(2)})
    sums = (9,) if any(task.is_sum for task in tasks) else ()
    given = fusing.Parameters((), frozenset(), numbers, read, written, sums, ())
    (wanted, known_sums), (found, sums) = by_stages(tasks, given, dict(enumerate(random.normal(size=4))))
    assert found == wanted
    assert sums == pytest.approx(known_sums, rel=1e-12)


@pytest.mark.parametrize("f", every(FUNCTIONS, 3))
def test_second_derivatives(f):
    compiled, recorded = tg.compile(f, wait=True), tg.func.hvp(f)
    x = np.linspace(-1.5, 1.4, 3 * PROGRAM_BLOCK)
    for k in range(CALLS):
        point, v = x * (1 + 0.1 * k), np.cos(x + k)
        wanted = recorded(point, v)
        error = 1e-12 * np.abs(wanted).max()
        np.testing.assert_allclose(compiled.hvp(point, v), wanted, rtol=0, atol=error)
        np.testing.assert_allclose(compiled.grad(point), tg.func.grad(f)(point), rtol=1e-12, atol=1e-12)
    looks_at_values = f is many_forms  # of which the rule of a maximum decides by them
    assert ("for second derivatives computed by" in compiled.explain()) is not looks_at_values


def test_interrupts():
    f = tg.compile(lambda x: np.sum(np.tanh(x) * 1.375), wait=True)
    x = np.linspace(-1.0, 1.0, 3000)
    wanted = f.value_and_grad(x)
    real, calls = planning.Planning.work, []

    def work(self):
        calls.append(1)
        real(self)
        raise KeyboardInterrupt

    planning.Planning.work = work
    try:
        for _ in range(CALLS):
            with suppress(KeyboardInterrupt):
                f.value_and_grad(x)
    finally:
        planning.Planning.work = real
    assert calls
    found = f.value_and_grad(x)
    assert found[0] == wanted[0]
    np.testing.assert_allclose(found[1], wanted[1], rtol=1e-12)


def test_the_slope_of_tanh_by_its_parts():
    """Beside the exact one: 4 / (e**x + e**-x)**2 in extended precision."""
    x = np.concatenate([np.linspace(-25.0, 25.0, 20_001), np.linspace(-380.0, 380.0, 999),
                        10.0 ** np.linspace(-300, 0, 301), [0.0, -0.0, 0.8, -0.8],
                        [350.0, 351.0, -1e300]])  # fmt: skip
    compiled = tg.compile(lambda x: np.sum(np.tanh(x)), wait=True)
    for _ in range(CALLS):
        _, slope = compiled.value_and_grad(x)
    assert fused(compiled)
    wide = x.astype(np.longdouble)
    with np.errstate(over="ignore"):
        exact = 4 / np.square(np.exp(wide) + np.exp(-wide))
    assert np.max(np.abs(slope - exact) / np.spacing(exact.astype(float))) < 4
    far = np.where(np.arange(x.size) == 7, 355.0, x)
    np.testing.assert_allclose(compiled.grad(far)[7], 4 * np.exp(-710.0), rtol=1e-14)
    assert np.isnan(compiled.grad(np.where(np.arange(x.size) == 7, np.nan, x))[7])


THREADS = """
import random, threading
import numpy as np, tapegrad as tg
def f(x, k):
    y = np.tanh(x * 1.1) + x
    if k % 3 == 0: y = np.exp(-y * y)
    if k % 5 == 0: y = y * 2.0 - np.sin(y)
    return np.sum(y * y)
compiled, recorded = tg.compile(f), tg.func.value_and_grad(f)
wrong = []
def work(seed):
    chosen = random.Random(seed)
    for i in range(600):
        n, k = chosen.choice([10, 1000, 3000]), chosen.randrange(30)
        x = np.linspace(-1, 1, n) * (1 + chosen.random())
        value, gradient = compiled.value_and_grad(x, k)
        if i % 5 == 0:
            wanted, expected = recorded(x, k)
            if value != wanted or not np.abs(gradient - expected).max() <= 1e-12 * np.abs(expected).max():
                wrong.append((x.size, k))
threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert not wrong, wrong
"""


@pytest.mark.full
@pytest.mark.parametrize("when", ["background", "wait", "off"])
def test_threads(when):
    found = run(THREADS, TAPEGRAD_COMPILE=when)
    assert found.returncode == 0 and not found.stderr, found.stderr


def test_an_element_of_an_array_beside_the_array():
    """Both begin at the same address; with ones no difference between them would be seen."""
    f = lambda x: np.sum(x * x[0] + x[-1]) + np.sum(x[:1] * x)
    ones, x = np.ones(2000), np.linspace(1.0, 2.0, 2000)
    compiled = compare(f, [ones] * CALLS + [x, x * 3.0, ones], np.float64)
    assert fused(compiled)


@pytest.mark.parametrize("kind", [np.complex128, np.complex64, np.longdouble, np.float32])
def test_other_dtypes(kind):
    def f(x):
        y = x * x + kind(0.5)
        return np.sum(np.real(y) ** 2) + np.sum(np.abs(y[:3])) * np.sum(np.arange(3.0))

    x = np.linspace(0.1, 1.0, 1500).astype(kind) * (kind(1 + 0.5j) if kind(1).dtype.kind == "c" else kind(1))
    compiled, recorded = tg.compile(f, wait=True), tg.func.value_and_grad(f)
    for k in range(CALLS):
        (value, gradient), (wanted, expected) = compiled.value_and_grad(x + kind(k)), recorded(x + kind(k))
        np.testing.assert_array_equal(value, wanted)  # of 80 bits the rest of the 16 bytes is anything
        np.testing.assert_allclose(gradient, expected, rtol=1e-4 if kind(0).itemsize in (4,) else 1e-5)


OUTSIDE = np.random.default_rng(8).random((30, 40)) > 0.4
MASKED = {
    "a mask from outside": lambda x: np.sum(np.where(OUTSIDE, x * x, 0.5) * (x > 0.1)) + np.sum(x * OUTSIDE),
    "a row of it": lambda x: np.sum(np.where(OUTSIDE[0], x, x * x)) + np.sum(OUTSIDE[:, :1] * x),
    "a mask of a row": lambda x: np.sum(np.where(x[0] > 0.1, x, x * x)) + np.sum((x[:, :1] < 0.1) * x),
    "a mask of a number": lambda x: np.sum(np.where(np.sum(x) > 0.1, x, x * x)) + np.sum((x[0, 1] < 0.1) * x),
    "numbers": lambda x: np.where(x[0, 0] > 0.1, x[0, 1], x[1, 0]) * (x[1, 1] < x[1, 2]) + np.sum(x),
    "as numbers": lambda x: np.sum((x > 0.1).astype(x.dtype) * x) + np.sum(x * x) / (1.0 + np.sum(x > 0.2)),
    "chosen by numbers": lambda x: np.sum(np.where(np.floor(x * 2.0), x, np.sin(x) * np.ceil(x))),
    "a diagonal": lambda x: np.trace(np.sin(x)) + np.sum(np.diagonal(x * 2.0) ** 2),
}


@pytest.mark.parametrize("kind", DOUBLES_FIRST)
@pytest.mark.parametrize("name", MASKED)
def test_masks(name, kind):
    x = np.random.default_rng(1).normal(size=(30, 40)).astype(kind)
    compiled = compare(MASKED[name], [x * kind(1 + 0.1 * k) for k in range(CALLS)], kind)
    x[0, :3] = np.nan, -0.0, np.inf
    with np.errstate(invalid="ignore"):
        compare(MASKED[name], [x] * CALLS, kind)
    assert fused(compiled), compiled.explain()
    ((way,),) = [known.ways for known in compiled.explain().kinds]
    assert kind is np.float32 or not way.by_python  # of several dtypes it has rules


WEIGHTS = {  # of cotangents, and of what they are multiplied by
    "ordinary": (1.0, 1.0),
    "subnormal": (1e-3, 1.0),
    "with numbers that are not scaled": (1e-3, 1e-3),
    "with infinity": (1e-3, np.inf),
    "with nan": (1e-3, np.nan),
    "with results that cannot be scaled": (1e-3, None),
}


@pytest.mark.parametrize("kind", DOUBLES_FIRST)
@pytest.mark.parametrize("case", WEIGHTS)
@pytest.mark.parametrize("shape", [(), (3,)])
@pytest.mark.parametrize("more", [-1, 0, 1])
def test_products_of_cotangents_with_subnormal_numbers(kind, case, shape, more):
    random, n, tiny = np.random.default_rng(0), OFTEN + more, np.finfo(kind).smallest_normal
    small, other = WEIGHTS[case]
    a, b, weights = (random.normal(size=(*shape, *s)).astype(kind) for s in ((41, n), (n, n), (41, n)))
    weights[..., ::3, :] *= tiny if small != 1 else 1
    weights[..., 1::3, ::2] *= tiny * kind(small) if small != 1 else 1
    if other is None:  # beyond all numbers once scaled
        b *= np.sqrt(np.finfo(kind).max)
    elif other != 1:
        weights[..., 5, 3] = kind(np.finfo(kind).max / 4) if other == small else other
    kept = weights.copy()

    def f(a, b, weights):
        return np.sum(weights * (a @ b))

    compiled, recorded = tg.compile(f, (0, 1, 2), wait=True), tg.func.value_and_grad(f, (0, 1, 2))
    with np.errstate(all="ignore"):
        for _ in range(CALLS):
            value, found = compiled.value_and_grad(a, b, weights)
        wanted, expected = recorded(a, b, weights)
        t, sizes = np.swapaxes, [np.abs(x) for x in (a, b, weights)]
        terms = sizes[2] @ t(sizes[1], -1, -2), t(sizes[0], -1, -2) @ sizes[2], sizes[0] @ sizes[1]
    assert fused(compiled) and weights.tobytes() == kept.tobytes()
    np.testing.assert_array_equal(value, wanted)
    for x, y, size in zip(found, expected, terms, strict=True):
        finite = np.isfinite(y)
        np.testing.assert_array_equal(x[~finite], y[~finite])
        bound = 4 * (np.finfo(kind).eps * size[finite] + np.finfo(kind).smallest_subnormal)
        assert np.all(np.abs(x[finite] - y[finite]) <= bound)


def test_scaling_is_of_cotangents_alone_that_are_subnormal():
    random = np.random.default_rng(0)
    x, y = random.normal(size=(3, 40, OFTEN)), random.normal(size=(3, OFTEN, OFTEN))
    words = subnormals.scaling("d")

    def product(given):
        rows, out, ct = Rows(), np.zeros(x.shape), given.copy()
        assert rows.product(ct, y, out, ct)
        rows.write(SCALED_BY, abi.address(words.words))
        rows.seal()
        rows.run(0, 1)
        return out

    words.numbers[1] = 0.0  # instead of the inverse of the power, by which the results are known
    assert product(x).all()
    low = x.copy()
    low[1, 2, 3] = 1e-310
    found = product(low)
    assert found[0].all() and found[2].all() and not found[1].any()
    low[1, 2, 4] = 2.0**300
    assert product(low).all()


@pytest.mark.parametrize("how", [{}, {"replay": True}], ids=str)
@pytest.mark.parametrize("more", [-1, 0, 1])
def test_derivatives_are_given_away(how, more):
    n = memory.LARGE // 8 + more
    x, y = np.linspace(-1.0, 1.0, n), np.linspace(0.5, 2.0, n)

    def f(x, y, z):
        return np.sum(np.sin(x) * y) + np.sum(z * 2.0 + x)  # that by z is the same everywhere

    compiled, recorded = tg.compile(f, (0, 1, 2), wait=True, **how), tg.func.value_and_grad(f, (0, 1, 2))
    found, wanted = [], []
    for k in range(2 * CALLS):
        args = x * (1 + 0.1 * k), y * (1 - 0.1 * k), x
        found.append(compiled.value_and_grad(*args))
        wanted.append(recorded(*args))
        if k > CALLS:
            found[-2][1][0][:] = wanted[-2][1][0][:] = k  # theirs alone
    assert fused(compiled)
    for (value, gradients), (known, expected) in zip(found, wanted, strict=True):
        assert value == known
        for g, other in zip(gradients, expected, strict=True):
            np.testing.assert_allclose(g, other, rtol=1e-13, atol=1e-15)
    arrays = [g for _, gradients in found for g in gradients]
    assert not any(np.may_share_memory(a, b) for k, a in enumerate(arrays) for b in arrays[:k])


def test_products_with_the_hessian_are_given_away():
    x, v = np.linspace(-1.0, 1.0, memory.LARGE // 8), np.linspace(0.5, 2.0, memory.LARGE // 8)

    def f(x):
        return np.sum(np.sin(x) * x)

    compiled, recorded = tg.compile(f, wait=True), tg.func.hvp(f)
    found = [compiled.hvp(x * (1 + 0.1 * k), v) for k in range(2 * CALLS)]
    kept = [g.copy() for g in found]
    found[-1][:] = compiled.hvp(x, v)[:] = 0.0  # theirs alone
    assert compiled.hvp(x, v).any()
    for k, (g, copy) in enumerate(zip(found[:-1], kept, strict=False)):
        np.testing.assert_array_equal(g, copy)
        np.testing.assert_allclose(g, recorded(x * (1 + 0.1 * k), v), rtol=1e-12, atol=1e-14)
    assert not any(np.may_share_memory(a, b) for k, a in enumerate(found) for b in found[:k])


@pytest.mark.parametrize("n", [0, 1, planning.PART, 2 * planning.PART + 1])
def test_derivatives_agree_to_half_the_digits_of_the_largest(n):
    known = np.linspace(0.0, 1.0, n)
    known[:1] = 1000.0
    assert planning.agree(known, known + 1e-6)
    for k in {0, n // 2, n - 1} if n else ():
        for number in (known[k] + 1e-3, np.nan, np.inf):
            found = known.copy()
            found[k] = number
            assert not planning.agree(known, found)
            assert planning.agree(found, found.copy())
    assert not planning.agree(known, np.zeros(n + 1))


def test_what_rows_compute_after_a_plan_is_given_too():
    n = memory.LARGE // 8
    x = np.linspace(0.5, 1.0, n)

    def f(x):
        return np.sum(np.sin(x) * x)

    compiled, recorded = tg.compile(f, wait=True), tg.func.value_and_grad(f)
    for k in range(3 * CALLS):
        given = x * (1e300 if k >= CALLS and k % 2 else 1.0)  # beyond the form of a sine
        (value, gradient), (wanted, expected) = compiled.value_and_grad(given), recorded(given)
        assert value == wanted
        np.testing.assert_allclose(gradient, expected, rtol=1e-13)
    assert fused(compiled)


def test_an_interrupt_as_a_derivative_is_given_away_leaves_the_next_ones_right(monkeypatch):
    x = np.linspace(0.5, 1.0, memory.LARGE)
    compiled = tg.compile(lambda x: np.sum(np.sin(x) * x), wait=True)
    for _ in range(CALLS):
        compiled.grad(x)
    move, empty = handing.Words.move, pool.empty

    def interrupt(*args):
        raise KeyboardInterrupt

    def moved_and_interrupted(*args):
        move(*args)
        raise KeyboardInterrupt

    for name, module, stopped in (
        ("empty", pool, interrupt),
        ("move", handing.Words, interrupt),
        ("move", handing.Words, moved_and_interrupted),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(module, name, stopped)
            with pytest.raises(KeyboardInterrupt):
                compiled.grad(x * 2.0)
        for factor in (1.0, 3.0):
            given = x * factor
            np.testing.assert_allclose(
                compiled.grad(given), np.cos(given) * given + np.sin(given), rtol=1e-12
            )
    assert (handing.Words.move, pool.empty) == (move, empty)
    assert fused(compiled)


AXES = [
    ((1000, 7), (0,)), ((7, 9, 5), (1,)), ((3, 50, 32), (0, 1)), ((2, 1, 40, 3), (1, 2)), ((4, 6, 1), (1,)),
    ((5, PROGRAM_BLOCK - 1), (0,)), ((5, PROGRAM_BLOCK), (0,)), ((5, PROGRAM_BLOCK + 1), (0,)),
    ((3, 2, PROGRAM_BLOCK + 1), (1,)), ((1, 9), (0,)), ((20, 30), (0, 1)), ((3, 4, 5, 6), (0, 2)),
    ((9, 300), (1,)), ((3, 2000, 32), (1,)), ((40, 3), (-1,)), ((5, PROGRAM_BLOCK + 1), (-1,)),
]  # fmt: skip


def is_about_a_block(shape):
    return abs(max(shape) - PROGRAM_BLOCK) <= 1


@pytest.mark.parametrize("kind", DOUBLES_FIRST)
@pytest.mark.parametrize(
    ("shape", "axes"),
    thinned(AXES, lambda *row: AXES.index(row) % 4 == 3 or is_about_a_block(row[0])),
    ids=str,
)
def test_sums_along_axes(kind, shape, axes):
    random = np.random.default_rng(0)
    x, y = (random.normal(size=shape).astype(kind) for _ in "xy")
    kept = tuple(1 if d in {a % len(shape) for a in axes} else n for d, n in enumerate(shape))
    b = random.normal(size=kept).astype(kind)
    x.reshape(-1)[:3] = -0.0, 0.0, -0.0

    def f(x, b):
        z = np.tanh(x + b) * x  # the cotangent of b is a sum too
        found = np.sum(z, axis=axes) + np.mean(z - 1, axis=axes) * 2
        return np.sum(found * found) + np.sum(np.sum(z * z, axis=axes, keepdims=True) * z * y)

    compiled, recorded = tg.compile(f, (0, 1), wait=True), tg.func.value_and_grad(f, (0, 1))
    for k in range(CALLS):
        args = x * kind(1 + 0.1 * k), b
        (value, found), (wanted, expected) = compiled.value_and_grad(*args), recorded(*args)
        assert np.asarray(value).tobytes() == np.asarray(wanted).tobytes()
        for g, other in zip(found, expected, strict=True):
            bound = np.finfo(kind).eps * 100 * np.abs(other).max() + np.finfo(kind).eps * np.prod(shape)
            np.testing.assert_allclose(g, other, rtol=0, atol=bound)
    assert fused(compiled), compiled.explain()


@pytest.mark.parametrize("value", [-0.0, np.nan, np.inf])
def test_sums_along_axes_have_the_signs_and_nans_of_numpys(value):
    x = np.full((3, 40, 5), value)
    x[:, 1:, 3] = 1.0
    seen = []

    def f(x):
        total = np.sum(x * 1.0, axis=1)
        seen.append(1)
        return np.sum(1.0 / (total + 0.0 * x[:, 0])) if value else np.sum(np.copysign(2.0, total))

    with np.errstate(all="ignore"):
        compiled = tg.compile(f, wait=True)
        for _ in range(CALLS):
            found = compiled(x)
        np.testing.assert_array_equal(found, f(x))


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_a_part_of_a_large_gradient_is_there_when_a_plan_is_compared(more):
    """Parts that are written by themselves belong to the derivative that the rows have given."""

    def f(x):
        return np.sum(np.sin(x)) + np.sum(x[:3])

    compiled, wanted = tg.compile(f, wait=True), tg.func.grad(f)
    for k in range(CALLS):
        x = np.linspace(0.1, 3.0, memory.LARGE // 8 + more) + k
        np.testing.assert_allclose(compiled.grad(x), wanted(x), rtol=1e-13, atol=1e-15)


def test_a_sum_is_in_the_group_of_what_it_sums(monkeypatch):
    made, build = [], plan.Plan.build

    def noted(self, *args):
        made.append(self)
        return build(self, *args)

    monkeypatch.setattr(plan.Plan, "build", noted)
    compiled = tg.compile(lambda x, b: np.sum(np.sum(np.tanh(x + b) * x, axis=0) ** 2), (0, 1), wait=True)
    for _ in range(CALLS):
        compiled.grad(np.ones((300, 20)), np.ones((300, 1)))
    assert [x.rows.calls for x in made] == [False]  # NumPy sums nothing
    assert made[0].kernels == 3  # of the rows that are summed; of what these give; in reverse


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_rows_know_the_derivative_of_large_arrays_that_are_stacked(axis):
    """Whose rule is not traced, as it would be run on their values."""

    def f(x):
        return np.sum(
            np.stack([x * 2.0, np.sin(x), x * x], axis) ** 2
            * np.linspace(0.0, 1.0, 3 * x.size).reshape(shape)
        )

    x = np.linspace(-1.0, 1.0, MOST_TRACED // 3 + 3).reshape(2, -1)
    shape = np.stack([x, x, x], axis).shape
    compiled = tg.compile(f, wait=True)
    for k in range(5):
        found, wanted = compiled.grad(x * k), tg.func.grad(f)(x * k)
        np.testing.assert_allclose(found, wanted, rtol=1e-13, atol=1e-13)
    ((way,),) = [kind.ways for kind in compiled.explain().kinds]
    assert not way.by_python


TRANSPOSED = {
    "the second": lambda x, y: np.sin(x @ y.T) ** 2,
    "the first": lambda x, y: np.sin(x.T @ y) ** 2,
    "twice": lambda x, y: np.sin(x @ y.T.T.T) + np.cos(y @ y.T) @ x @ x.T,
    "a stack": lambda x, y: np.sin(np.stack([x, y]) @ np.swapaxes(np.stack([y, x * y]), 1, 2)) ** 2,
    "a column": lambda x, y: np.sin(x[:, :1] @ y[:, :1].T) * (x @ y.T),
    "stacks of columns": lambda x, y: np.sin(x[:, :, None] @ np.swapaxes(y[:, :, None], 1, 2)),
}


@pytest.mark.parametrize(
    ("name", "kind"), every([(n, k) for k in (np.float64, np.float32) for n in TRANSPOSED], 5)
)
def test_products_of_what_is_transposed(name, kind):
    def f(x, y):
        return np.sum(TRANSPOSED[name](x, y) * 0.5)

    random = np.random.default_rng(0)
    x, y, v, w = (random.normal(size=(5, 3)).astype(kind) for _ in range(4))
    x[0], y[1] = 0.0, -0.0
    compiled = tg.compile(f, (0, 1), wait=True)
    for _ in range(CALLS):
        found = compiled.value_and_grad(x, y), compiled.hvp(x, y, (v, w))
    (value, gradients), products = found
    wanted, expected = tg.func.value_and_grad(f, (0, 1))(x, y)
    assert value == wanted and fused(compiled)
    for g, known in zip(gradients + products, expected + tg.func.hvp(f, (0, 1))(x, y, (v, w)), strict=True):
        np.testing.assert_allclose(g, known, rtol=0, atol=200 * np.finfo(kind).eps)
    for g, known in zip(gradients, expected, strict=True):
        np.testing.assert_array_equal(np.signbit(g[known == 0]), np.signbit(known[known == 0]))


def test_what_is_transposed_is_not_copied(monkeypatch):
    made, build = [], plan.Plan.build

    def noted(self, *args):
        made.append(self)
        return build(self, *args)

    monkeypatch.setattr(plan.Plan, "build", noted)
    compiled = tg.compile(lambda x, y: np.sum(np.tanh(x @ y) ** 2), (0, 1), wait=True)
    x, y = np.ones((4, 3)), np.ones((3, 5))
    for _ in range(CALLS):
        compiled.grad(x, y)
        compiled.hvp(x, y, (x, y))
    assert [found.rows.calls for found in made] == [False, False]
