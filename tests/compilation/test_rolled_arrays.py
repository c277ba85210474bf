"""Loops that `tapegrad.compile` finds in operations on small arrays: they give the bits of single ones."""

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.compilation.plans import rolling
from tapegrad.compilation.plans.repeats import MOST_ELEMENTS
from tapegrad.compilation.plans.rolling import MOST_ENDS, Rolled
from tapegrad.kernels import abi
from tests.compilation.test_rolled import compiled, same

pytestmark = pytest.mark.skipif(not abi.native(), reason="nothing is learned from calls")


def point(n):
    return np.concatenate([np.linspace(0.5, 1.0, n), np.linspace(1.0, 1.4, n)])


def runge_kutta(p, turns=30):
    n = len(p) // 2
    x, q, h = p[:n], p[n:], 0.01

    def slope(x):
        return x * (q - 0.4 * x) - 0.3 * np.sin(x)

    for _ in range(turns):
        a = slope(x)
        b = slope(x + 0.5 * h * a)
        x = x + h / 2 * (a + slope(x + h * b))
    return np.sum(x * x)


def cells(p, turns=40):
    n = len(p) // 2
    w, h, c, total = p[:n], p[n:], 0.0, 0.0
    for k in range(turns):
        gate = 1 / (1 + np.exp(-(w * (0.1 * k) + h)))
        c = gate * c + (1 - gate) * np.tanh(w + h)
        h = gate * np.tanh(c)
        total = total + np.log(2 + np.sum(np.exp(h)))  # a number, which reads no element alone
    return total + np.sum(h)


def trajectory(p, turns=90):
    n, found = len(p) // 2, []
    x, v = p[:n], p[n:]
    for _ in range(turns):
        x, v = x + 0.05 * v, v - 0.05 * x / (1 + x * x)
        found.append(x)
    return np.sum(np.stack(found) ** 2)


def limited(p, turns=90):
    n = len(p) // 2
    x, y = p[:n], p[n:]
    for _ in range(turns):
        x, y = np.maximum(x - 0.03, 0.1) + np.sign(y), np.absolute(y - 0.01 * x) - 0.01 * np.floor(y)
    return np.sum(x * y)


def elements(p, turns=60):
    n = len(p) // 2
    x, y = p[:n], p[n:]
    for _ in range(turns):
        y = y * 0.9 + 0.1 * x[n - 1] * np.mean(x)
        x = x - 0.05 * x[0] * y
    return np.sum(x * y)


def windows(p, turns=60):
    n, total = len(p) // 2, 0.0
    x, y = p[:n], p[n:]
    for _ in range(turns):
        x = x * 0.98 + 0.01 * y
        total = total + np.sum(x[1:] * y[:-1]) / np.max(x)
        y = y - 0.01 * x * total
    return np.sum(x * y) + total


def lagged(p, turns=80):
    n = len(p) // 2
    x, y = p[:n], p[n:]
    for _ in range(turns):
        before, x = x, x * 0.9 + 0.02 * y
        total = np.sum(x)
        y = y * 0.95 + 0.1 * (x - before) * total  # the last turn's, where this turn's is known
    return np.sum(x * y)


FUNCTIONS = [runge_kutta, cells, trajectory, limited, elements, windows, lagged]
EXTENTS = [2, 3, 7, 8, 15, 31, MOST_ELEMENTS - 1, MOST_ELEMENTS]
SOME = [(runge_kutta, 4), (cells, 14), (elements, 3), (lagged, 5)]


def check(f, n, monkeypatch):
    x = point(n)
    loops, rows = (compiled(f, monkeypatch, by_rows, x=x) for by_rows in (False, True))
    told = str(loops.explain())
    is_exact = "fused kernels" not in told  # of the gradient too
    assert "not fused" not in told and (is_exact or f is windows), told
    for at in (x, x * 1.01, x * 0.5, 2 - x):
        found, known = loops.value_and_grad(at), rows.value_and_grad(at)
        assert same([found[0], loops(at)], [f(at)] * 2)
        assert same(found, known) or not is_exact
    np.testing.assert_allclose(found[1], tg.func.grad(f)(at), 1e-9, 1e-12)


@pytest.mark.parametrize(("f", "n"), SOME, ids=lambda x: getattr(x, "__name__", str(x)))
def test_value_and_gradient_have_the_bits_of_rows(f, n, monkeypatch):
    check(f, n, monkeypatch)


@pytest.mark.full
@pytest.mark.parametrize("k", range(len(EXTENTS)))
def test_all_extents_have_the_bits_of_rows(k, monkeypatch):
    check(FUNCTIONS[k % len(FUNCTIONS)], EXTENTS[k], monkeypatch)


def test_errors_of_elements_are_told(monkeypatch):
    def f(p, turns=150):
        x = p[:3]
        for _ in range(turns):
            x = x * p[3:]
            np.sqrt(1.5 - x)  # which nobody uses
        return np.sum(x)

    x = np.array([1.0, 1.0, 1.0, 0.9, 0.9, 1.0])
    loops = compiled(f, monkeypatch, x=x)
    for k in range(3):
        large = x + 0.01 * (np.arange(6) == 3 + k) * (11 if k < 2 else 1)
        with pytest.warns(RuntimeWarning, match="invalid"):
            found = loops(large)
        with np.errstate(invalid="ignore"):
            assert found == f(large)
    assert loops(x) == f(x)


def test_turns_at_the_ends_of_which_others_read_are_left_to_rows(monkeypatch):
    """So that values of all others lie turn by turn; the bits are those of rows in any case."""
    x, known, written, make = point(4), compiled(runge_kutta, monkeypatch, True, x=point(4)), {}, Rolled._loop
    for most in (0, MOST_ENDS):
        loops = []

        def note(self, loop, reads, loops=loops):
            loops.append(loop)
            make(self, loop, reads)

        monkeypatch.setattr(rolling, "MOST_ENDS", most)
        monkeypatch.setattr(Rolled, "_loop", note)
        found = compiled(runge_kutta, monkeypatch, x=x)
        assert same(found.value_and_grad(x * 1.01), known.value_and_grad(x * 1.01))
        written[most] = max(len(loop.outside) for loop in loops)
    assert 2 * written[MOST_ENDS] < written[0]
