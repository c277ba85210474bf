"""Large plain arrays of a call are copied only where they are others than those that a program has."""

import itertools

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.compilation.programs import copies as module
from tapegrad.compilation.programs.copies import MOST_RESTS, SUMMED, Copies
from tapegrad.errors import MutationError
from tapegrad.kernels import abi
from tests.tiers import every

pytestmark = pytest.mark.skipif(not abi.native(), reason="nothing is learned from calls")
KINDS = ["f4", "f8", "c8", "c16", "i8", "?"]


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setenv("TAPEGRAD_COMPILE", "wait")


def some(kind, more):
    n = SUMMED // np.dtype(kind).itemsize + more
    return (np.linspace(0.5, 1.5, n) > 1 if kind == "?" else np.linspace(0.5, 1.5, n) * 100).astype(kind)


def compare(found, wanted):
    """Values bit by bit; sums in derivatives have another order."""
    assert np.asarray(found[0]).tobytes() == np.asarray(wanted[0]).tobytes()
    rtol = 1e-13 if np.asarray(wanted[0]).dtype.char == "d" else 1e-5
    np.testing.assert_allclose(found[1], wanted[1], rtol=rtol)


@pytest.mark.parametrize(("kind", "more"), every(itertools.product(KINDS, [-1, 0, 1]), 2))
def test_arrays_are_those_of_the_call(kind, more):
    a = some(kind, more)
    compiled = tg.compile(lambda x: np.sum(np.abs(a * x[0] + x[1])))
    recorded = tg.func.value_and_grad(compiled.plain)
    odd = [a[1], not a[0]] if kind == "?" else [0, 3] if kind == "i8" else [0.0, -0.0, np.nan, 1e30]
    x = np.array([0.5, 2.0])
    for place in (0, -1, a.size // 2):
        for number in odd:
            for _ in range(2):  # the same again
                compare(compiled.value_and_grad(x), recorded(x))
            a[place] = number
    a[[3, 4]] = a[[4, 3]]
    compare(compiled.value_and_grad(x), recorded(x))
    ((way,),) = [known.ways for known in compiled.explain().kinds]
    assert way.calls == 6 * len(odd) + 1 - 2


@pytest.mark.parametrize("more", [-1, 0])
def test_python_looks_at_very_large_arrays_alone(more, monkeypatch):
    a, x, seen, take = some("f8", more), np.array([0.5, 2.0]), [], Copies.take

    def noted(self, buffer, given):
        seen.append(buffer.nbytes)
        take(self, buffer, given)

    compiled = tg.compile(lambda x: np.sum(np.sin(a * x[0]) * x[1]))
    for k in range(8):
        compare(compiled.value_and_grad(x), tg.func.value_and_grad(compiled.plain)(x))
        a[k] = k
        monkeypatch.setattr(Copies, "take", noted)
        seen.clear()
    compiled.value_and_grad(x)
    assert seen == ([] if more else [a.nbytes])


@pytest.mark.parametrize("layout", ["C", "F", "strided", "reversed", "stretched"])
def test_layouts(layout):
    a = some("f8", 0).reshape(2, -1)
    if layout != "C":
        a = {
            "F": np.asfortranarray(a), "strided": np.repeat(a, 2, axis=1)[:, ::2], "reversed": a[::-1],
            "stretched": np.broadcast_to(a[:1], a.shape),
        }[layout]  # fmt: skip
    b = a.copy()
    compiled = tg.compile(lambda x, a: np.sum(a * x[0] + np.sin(x[1])))
    recorded = tg.func.value_and_grad(compiled.plain)
    x = np.array([0.5, 2.0])
    for k in range(9):
        given = (a, b, a * 2.0)[k // 3]
        compare(compiled.value_and_grad(x, given), recorded(x, given))


@pytest.mark.parametrize("setting", ["checksum", "copy", "off"])
def test_an_array_that_is_written_to_between_uses_is_that_of_each_use(setting):
    a = some("f8", 0)

    def f(x, k):
        y = np.sum(a * x[0])
        if k % 3 == 2:
            a[k] += 1.0
        return y + np.sum(a * x[1]) + np.sum(a * x[0])

    compiled, x = tg.compile(f), np.array([0.5, 2.0])
    with tg.guard(setting):
        for k in range(12):
            first = a.copy()
            try:
                value, g = compiled.value_and_grad(x, k)
            except MutationError:  # of the calls before there is a program
                assert k < 3
                continue
            y = np.sum(first * 0.5)
            assert value == y + np.sum(a * 2.0) + np.sum(a * 0.5)
            np.testing.assert_allclose(g, [np.sum(first) + np.sum(a), np.sum(a)], rtol=1e-13)


def test_ways_that_begin_alike_have_the_arrays_of_their_call():
    a, b = some("f8", 0), some("f8", 0) + 1.0

    def f(x, a, way):
        y = np.sum(a * x)
        return (y * y, np.sin(y), np.exp(y * 1e-6), y * 3.0)[way]

    compiled, recorded = tg.compile(f), tg.func.value_and_grad(f)
    for k in range(40):
        x, given, way = np.array(0.5 + k), (a, a, b)[k % 3], (0, 1, 2, 3)[k // 5 % 4]
        if k % 7 == 6:
            a[k] = -a[k]
        compare(compiled.value_and_grad(x, given, way), recorded(x, given, way))
    assert len(compiled.explain().kinds[0].ways) == 4


def test_a_way_is_learned_of_a_call_that_writes_to_its_array():
    a = some("f8", 0)

    def f(x, way):
        y = np.sum(a * x)
        if way == 1:
            a[0] += 1.0
            return np.sin(y)
        return y * y

    compiled = tg.compile(f)
    for k in range(12):
        before, way = a.copy(), int(k == 4)
        y = np.sum(a * (0.5 + k))
        assert float(compiled(np.array(0.5 + k), way)) == (np.sin(y) if way else y * y)
        a[:] = before
    assert len(compiled.explain().kinds[0].ways) == 2


def test_what_is_there_is_not_copied_again():
    copies, x = Copies(), some("f8", 0)
    buffer = np.zeros_like(x)
    copies.take(buffer, x)
    buffer[0] = 7.0  # by nobody who is allowed to
    copies.take(buffer, x.copy())
    assert buffer[0] == 7.0
    with tg.guard("copy"):
        copies.take(buffer, x)
    assert np.array_equal(buffer, x)
    for k in range(4 * MOST_RESTS):
        x[k] += 1.0
        copies.take(buffer, x)
        assert np.array_equal(buffer, x)
    for _ in range(MOST_RESTS + 1):  # that many are copied without another look
        buffer[0] = 7.0
        copies.take(buffer, x)
    assert buffer[0] == 7.0
    small = x[:-1]
    for _ in range(3):
        buffer = np.zeros_like(small)
        copies.take(buffer, small)
        assert np.array_equal(buffer, small)
        copies.take(buffer, small)


def test_an_array_that_a_thread_writes_to_while_it_is_copied(monkeypatch):
    """The checksum is that of what the buffer holds, not of the array afterwards."""
    x, known = some("f8", 0), module.checksum

    def checksum(array):
        x[0] = -1.0
        return known(array)

    copies, buffer, x[0] = Copies(), np.zeros_like(x), 1.0
    with monkeypatch.context() as patch:
        patch.setattr(module, "checksum", checksum)
        copies.take(buffer, x)
    assert buffer[0] == 1.0
    copies.take(buffer, x)
    assert buffer[0] == -1.0


@pytest.mark.parametrize("more", [0, 1])
def test_arrays_of_another_order(more):
    a, copies = some("f8", 0).reshape(2, -1), Copies()
    buffer, b = np.zeros_like(a), np.asfortranarray(a)
    copies.take(buffer, a)
    b[:] = a.ravel().reshape(a.shape[::-1]).T  # as many bytes in the same order
    for _ in range(2 + more):
        copies.take(buffer, b)
        assert np.array_equal(buffer, b)
    copies.take(buffer, a)
    assert np.array_equal(buffer, a)
