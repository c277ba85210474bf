"""Loops that `tapegrad.compile` finds in operations on numbers: they give the bits of single operations."""

import math
from itertools import pairwise

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.compilation import background
from tapegrad.compilation.plans import planning, repeats, rolling
from tapegrad.compilation.plans.repeats import FEWEST_TURNS, LONGEST_TURN, MOST_ELEMENTS, Repeat, find_repeats
from tapegrad.compilation.plans.rolling import FEWEST_ROWS
from tapegrad.kernels import abi, assembly
from tests.tiers import thinned

pytestmark = pytest.mark.skipif(not abi.native(), reason="nothing is learned from calls")

CALLS = 5  # recorded, learned from, by rows, by both, by loops alone
P = np.array([1.1, 0.4, 0.1, 0.4])
SERIES = np.random.default_rng(0).normal(size=300)


def predators(p, n=40):
    a, b, c, d = p[0], p[1], p[2], p[3]
    x, y, h = 1.0, 0.5, 0.01
    for _ in range(n):
        dx, dy = x * (a - b * y), y * (c * x - d)
        u, v = x + h * dx, y + h * dy
        x, y = x + h / 2 * (dx + u * (a - b * v)), y + h / 2 * (dy + v * (c * u - d))
    return x * x + y


def cell(p, n=40):
    h, c = 0.0, 0.0
    for k in range(n):
        gate = 1 / (1 + np.exp(-(p[0] * math.sin(0.1 * k) + p[1] * h)))
        c = gate * c + (1 - gate) * np.tanh(p[2] + p[3] * h)
        h = gate * np.tanh(c)
    return h * h + c


def series(p, n=60):
    level, variance, total = p[0], p[1], 0.0
    for k in range(n):
        rest = SERIES[k] - level
        level, variance = level + p[2] * rest, variance * p[3] + (1 - p[3]) * rest * rest
        total = total + np.log(variance) + rest * rest / variance
    return total


def fibonacci(p, n=300):
    before, now = p[0], p[1]
    for _ in range(n):
        before, now = now, (now + before) * 0.6
    return now * before


def two_in_turn(p, n=150):
    x, y = p[0], p[1]
    for _ in range(n):
        x = x * (1 - 0.01 * y)
    for _ in range(n):
        y = y + 0.01 * x * np.exp(-y)
    return x * y


def nested(p, n=20):
    x = p[0]
    for _ in range(n):
        for k in range(10):
            x = x - 0.01 * np.sin(x) * p[k % 4]
        x = x * p[1] + p[2]
    return x * x


def collected(p, n=200):
    x, y, found = p[0], p[1], []
    for _ in range(n):
        x, y = x + 0.01 * y, y - 0.01 * x
        found.append(x)
    return np.sum(np.stack(found) ** 2)


def late_first(p, n=150):
    x, sums = p[0], [0.0, p[1]]
    for k in range(n):
        x = x * 0.99 + 0.01 * sums[k % 2]
        sums[k % 2] = sums[1 - k % 2] + x
    return sums[0] * sums[1]


def compared(p, n=120):
    x, y = p[0], p[1]
    for _ in range(n):
        x, y = np.absolute(x - 0.03) + np.sign(y), np.maximum(y - 0.01 * x, 0.1) * np.floor(y + 1.3)
    return x * y


def powers(p, n=60):
    x, y = p[0], p[1]
    for k in range(n):
        r = (x**2 + y**2) ** 1.5
        x, y = x - 0.01 * (y**3 - 0.1 * x ** (k % 5)) / r, y + 0.01 * x**-1 - 0.01 * 2.0**y * r ** p[2]
    return x * y


def chosen(p, n=80):
    x, y = p[0], p[1]
    for _ in range(n):
        x = np.where(y > 0.3, x * p[2], 1.1 - x) + 0.1 * y * (x > 0.5)
        y = y - 0.1 * np.where(x > y, x - 0.3, np.where(np.isfinite(x) & (y < 0.9), y, 2.0))
    return x * y


def elements(p):
    total = 0.0
    for k in range(len(p) - 1):
        rest = p[k] - p[k + 1] * p[k + 1]
        total = total + rest * rest + np.sin(p[k])
    return total


FUNCTIONS = thinned(
    [
        predators,
        cell,
        series,
        fibonacci,
        two_in_turn,
        nested,
        collected,
        late_first,
        compared,
        powers,
        chosen,
    ],
    lambda f: f in (predators, cell, late_first, powers, chosen),
)


def compiled(f, monkeypatch, by_rows=False, calls=CALLS, x=P, **kwargs):
    """A compiled function whose calls are computed by loops, or only by rows."""
    with monkeypatch.context() as patch:
        patch.setattr(planning, "compiling_setting", lambda: "off" if by_rows else "wait")
        c = tg.compile(f, wait=True, **kwargs)
        for k in range(calls):
            c.value_and_grad(x + 1e-9 * k)
        for k in range(3):  # of these there is another plan
            c(x + 1e-9 * k)
        assert ("rolled" in str(c.explain())) is not by_rows, str(c.explain())
    return c


def same(found, known):
    return all(np.asarray(x).tobytes() == np.asarray(y).tobytes() for x, y in zip(found, known, strict=True))


@pytest.mark.parametrize("f", FUNCTIONS, ids=lambda f: f.__name__)
def test_value_and_gradient_have_the_bits_of_rows(f, monkeypatch):
    loops, rows = compiled(f, monkeypatch), compiled(f, monkeypatch, True)
    for x in (P, P * 1.01, P * 0.9, P + np.array([0.5, 0.0, 0.3, 0.1])):
        found = loops.value_and_grad(x)
        assert same(found, rows.value_and_grad(x))
        value, gradient = tg.func.value_and_grad(f)(x)
        assert same([found[0]], [value])
        np.testing.assert_allclose(found[1], gradient, 1e-9, 1e-12)
    assert same([loops(P)], [rows(P)])


def test_each_turn_may_write_an_element_of_the_gradient(monkeypatch):
    x = np.linspace(0.1, 0.9, 201)
    loops, rows = (compiled(elements, monkeypatch, by_rows, x=x) for by_rows in (False, True))
    assert same(loops.value_and_grad(x * 1.1), rows.value_and_grad(x * 1.1))


@pytest.mark.full
def test_fewer_turns_are_no_loop(monkeypatch):
    def long(p, n):
        x, y = p[0], p[1]
        for _ in range(n):
            for k in range(FEWEST_ROWS // FEWEST_TURNS // 2):
                x, y = (x + 0.01 * y if k % 3 else x * 0.999), (y - 0.01 * x if k % 5 else y * 1.001)
        return x * y

    for n in (0, 1, FEWEST_TURNS - 1, FEWEST_TURNS, 4 * FEWEST_TURNS):
        c = tg.compile(lambda p, n=n: long(p, n), wait=True)
        for k in range(CALLS):
            value, gradient = c.value_and_grad(P + 1e-9 * k)
        assert value == long(P + 1e-9 * k, n)
        np.testing.assert_allclose(gradient, tg.func.grad(lambda p, n=n: long(p, n))(P + 1e-9 * k), 1e-11)


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_few_rows_are_no_loop(more, monkeypatch):
    n = FEWEST_ROWS + more

    def f(p):
        x = p[0]
        for _ in range(n):
            x = np.negative(x)
        return x

    def is_rolled():
        c = tg.compile(f, wait=True)
        for k in range(CALLS):
            assert c(P + k) == f(P + k)
        return "rolled" in str(c.explain())

    assert is_rolled() is (more >= 0)
    monkeypatch.setattr(rolling, "MOST_ROWS", FEWEST_ROWS + 1)  # one more takes an element
    assert is_rolled() is (more == 0)


def test_rows_over_large_arrays_are_not_looked_through(monkeypatch):
    """If they have more elements than a turn takes; of many that takes memory and time."""
    x, searched = np.linspace(0.25, 0.5, MOST_ELEMENTS + 1), []
    monkeypatch.setattr(rolling, "find_repeats", lambda tokens: searched.append(tokens) or [])

    def f(x):
        y = x
        for _ in range(FEWEST_ROWS // 4):  # two rows forward, some in reverse
            y = y * 0.5 + x
        return np.sum(y)

    c = tg.compile(f, wait=True)
    for k in range(CALLS):
        assert c.value_and_grad(x * k)[0] == f(x * k)
    assert not searched


@pytest.mark.parametrize("alone", [160, 180])
def test_rows_between_are_few(alone):
    def f(p):
        x, q = p[0], p
        for _ in range(540):
            x = np.negative(x)
        for k in range(alone):
            q = np.negative(q) if k % 3 else q * q
        return x + q[0]

    c = tg.compile(f, wait=True)
    for k in range(CALLS):
        assert c(P / (k + 2)) == f(P / (k + 2))
    assert ("rolled" in str(c.explain())) is (alone <= 540 // 3 - 3)


def test_repeats_are_what_looking_at_all_rows_finds():
    random = np.random.default_rng(0)
    for _ in range(60):
        body = random.integers(0, 4, random.integers(1, 30))
        turns = int(random.integers(FEWEST_TURNS + 8, 40))
        before, after = (random.integers(4, 9, n) for n in random.integers(0, 20, 2))
        tokens = np.concatenate([before, np.tile(body, turns), after])
        found = find_repeats(tokens)
        for begin, period, count in found:
            end = begin + period * count
            assert (
                count >= FEWEST_TURNS and (tokens[begin + period : end] == tokens[begin : end - period]).all()
            )
        assert all(x.end <= y.begin for x, y in pairwise(found))
        if len(body) * (turns - 1) >= 16:  # windows that are looked for
            assert sum(x.period * x.turns for x in found) >= len(body) * (turns - 1)
    assert find_repeats(np.arange(50)) == find_repeats(np.zeros(0, np.int64)) == []
    assert find_repeats(np.tile(np.arange(LONGEST_TURN + 1), 9)) == []
    assert find_repeats(np.tile(np.arange(LONGEST_TURN), 9)) == [Repeat(0, LONGEST_TURN, 9)]


@pytest.mark.full
def test_hessian_products_are_loops(monkeypatch):
    loops = compiled(predators, monkeypatch)
    rows = compiled(predators, monkeypatch, True)
    for k in range(CALLS):
        v = np.array([1.0, -0.5, 0.25, 2.0]) + k
        found = loops.hvp(P, v)
        assert same(found, rows.hvp(P, v))
    np.testing.assert_allclose(found[1], tg.func.hvp(predators)(P, v)[1], 1e-9)
    assert "for second derivatives rolled" in str(loops.explain())


def test_python_may_be_skipped(monkeypatch):
    loops = compiled(predators, monkeypatch, replay=True)
    rows = compiled(predators, monkeypatch, True)
    for k in range(3):
        assert same(loops.value_and_grad(P + k / 64), rows.value_and_grad(P + k / 64))
    assert "skipped" in str(loops.explain())


@pytest.mark.full
def test_another_number_of_turns_has_the_same_kernels(monkeypatch):
    compiled(predators, monkeypatch)
    before = assembly.statistics["compiled"] + assembly.statistics["cached"]
    loops = compiled(lambda p: predators(p, 97), monkeypatch)
    assert assembly.statistics["compiled"] + assembly.statistics["cached"] == before
    assert loops(P) == predators(P, 97)


def overflowing(p, n=150):
    x, total = p[0], 0.0
    for _ in range(n):
        x = x * p[1]
        total = total + np.tanh(np.exp(x))  # NumPy's loop clears the flags of errors
    return total


def test_errors_in_a_turn_are_told(monkeypatch):
    x = np.array([1.0, 1.0, 0.0, 0.0])
    loops = compiled(overflowing, monkeypatch, x=x)
    large = np.array([1.0, 1.05, 0.0, 0.0])
    with pytest.warns(RuntimeWarning, match="overflow"):
        found = loops(large)
    with np.errstate(over="ignore"):
        assert found == overflowing(large) == loops(large)
    with np.errstate(over="raise"), pytest.raises(FloatingPointError):
        loops(large)
    assert same([loops(x)], [overflowing(x)])


def powers_of_one_number(p, n=90):
    x, total = p[0], 0.0
    for _ in range(n):
        x = x * p[2]
        total = total + x ** p[1] + x**3 + p[3] * x**-1.5
    return total


def outcome(f, *args):
    """The value, or the error that is raised."""
    try:
        return np.asarray(f(*args)).tobytes()
    except FloatingPointError as error:
        return str(error)


def test_powers_have_the_bits_and_errors_of_recording(monkeypatch):
    f = powers_of_one_number
    loops = compiled(f, monkeypatch, x=np.array([1.1, 0.5, 1.0, 0.5]))
    special = [0.0, -0.0, -2.0, 0.7, 1e200, 1e-200, np.inf, -np.inf, np.nan]
    for point in [np.array([x, y, 1.0, 0.5]) for x in special for y in (-1.0, 0.0, 0.5, 2.0, 3.0)]:
        with np.errstate(all="ignore"):
            (value, gradient), known = loops.value_and_grad(point), tg.func.value_and_grad(f)(point)
            found = np.array([value, loops(point), known[0]])
        found[np.isnan(found)] = np.nan  # whichever nan each is
        assert same(found, [found[2]] * 3)
        np.testing.assert_allclose(gradient, known[1], 1e-12)
        with np.errstate(all="raise"):
            assert outcome(loops, point) == outcome(lambda p: tg.func.value_and_grad(f)(p)[0], point)


def powers_of_two_kinds(p, n=60):
    x, y = p[0], p[1]
    for _ in range(n):
        x, y = np.power(x, 0.99) * 0.9 + 0.1 * y**1.01, y * 0.9 + np.power(1.01, x) * 0.1 ** (y * 0.1)
    return x * y


@pytest.mark.parametrize("turns", [1, 60])
def test_powers_by_a_function_and_an_operator(turns):
    c = tg.compile(lambda p: powers_of_two_kinds(p, turns), wait=True)
    for k in range(40):
        p = P * (1 + k / 64)
        recorded = powers_of_two_kinds(tg.tensor(p, requires_grad=True), turns).item()
        assert (c(p) if k % 2 else c.value_and_grad(p)[0]) == recorded


def masked(p, n=200):
    x, total = p[0], p[3]
    for _ in range(n):
        x = x * p[2]
        total = np.where(x < 1.0, total, -total) * 1.0 + x * (x > p[1])
    return total


def test_choices_have_the_bits_and_errors_of_recording(monkeypatch):
    loops = compiled(masked, monkeypatch, x=np.array([1.1, 0.5, 1.0, 0.5]))
    for x in (0.7, 1.5, -0.0, np.inf, -np.inf, np.nan):
        for total in (-0.0, 2.0, np.inf, np.nan):
            for limit in (0.0, np.inf):
                point = np.array([x, limit, 1.0, total])
                with np.errstate(all="ignore"):
                    (value, gradient), known = (
                        loops.value_and_grad(point),
                        tg.func.value_and_grad(masked)(point),
                    )
                found = np.array([value, known[0]])
                found[np.isnan(found)] = np.nan
                assert same(found[:1], found[1:])
                np.testing.assert_array_equal(gradient, known[1])
                with np.errstate(all="raise"):
                    assert outcome(loops, point) == outcome(masked, point)


def unused(p, x, found):
    np.log(x - 0.5)
    return found


def summed_in_vain(p, x, found):
    return found + 1 / np.sqrt(x - 0.5)


def used_at_last(p, x, found):
    return 1 / np.sqrt(x - 0.5)


@pytest.mark.parametrize("turn", [unused, summed_in_vain, used_at_last], ids=lambda f: f.__name__)
def test_an_error_of_a_result_that_is_not_used_is_told(turn, monkeypatch):
    def f(p):
        x, found = p[0], p[1]
        for _ in range(200):
            x = 1 - x * p[2]
            found = turn(p, x, found)
        return x + found if turn is used_at_last else x

    loops = compiled(f, monkeypatch, x=np.array([0.9, 1.0, 0.2, 0.0]))
    with pytest.warns(RuntimeWarning, match="invalid"):
        loops(np.array([9.0, 1.0, 0.2, 0.0]))  # as the first turn meets a number below 0


def looking(p, n=200):
    x, y, seen = p[0], p[1], []
    for k in range(n):
        x, y = x + 0.01 * y * x, y - 0.01 * x
        if k == n // 2:
            seen.append(x.item())
            if x > 2.0:
                y = y * 0.5
    return x * y + seen[0] * p[2]


def test_a_value_may_leave_between_turns(monkeypatch):
    c = tg.compile(looking, wait=True)
    rows = compiled(looking, monkeypatch, True)
    for k in range(2 * CALLS):
        x = P + 1e-3 * k
        assert same(c.value_and_grad(x), rows.value_and_grad(x))
    assert "rolled" in str(c.explain())
    other = P + np.array([1.5, 0.0, 0.0, 0.0])  # the other branch
    assert c(other) == looking(other)


def test_a_tensor_that_is_kept_has_its_own_number(monkeypatch):
    kept = []

    def f(p, n=300):
        x = p[0]
        for k in range(n):
            if k == 200 and keeping:
                kept.append(x)
            x = x * 0.999 + p[1] * x * x * 1e-3
        return x

    keeping = False
    loops = compiled(f, monkeypatch)
    keeping = True
    loops(P * 1.02)
    keeping = False
    assert kept[0].item() == f(P * 1.02, 200)
    assert loops(P) == f(P)


def test_what_makes_loops_is_interrupted(monkeypatch):
    def stop():
        raise background.Stopped

    monkeypatch.setattr(repeats.background, "pause", stop)
    c = tg.compile(predators, wait=False)
    monkeypatch.undo()
    for k in range(CALLS):
        assert c(P + k) == predators(P + k)


def test_rows_that_are_no_repeats_are_left(monkeypatch):
    made = []
    monkeypatch.setattr(rolling, "Rolled", lambda *args: made.append(args))

    def f(p):
        x = p[0]
        for k in range(FEWEST_ROWS):
            x = [np.sin, np.cos, np.tanh, np.sqrt, np.exp][(k * k * k + k // 7) % 5](x * 0.5 + 0.1)
        return x

    c = tg.compile(f, wait=True)
    for k in range(3):
        c(P + 1e-9 * k)
    assert not made
