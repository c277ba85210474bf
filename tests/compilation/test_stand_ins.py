"""Tensors that stand for one result after the other: nobody sees it, whatever is kept and for how long."""

import gc
import weakref

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.compilation.events.stand_ins import StandIns, from_addresses
from tapegrad.kernels import abi

pytestmark = pytest.mark.skipif(not abi.native(), reason="nothing is learned from calls")
TURNS, CALLS = 12, 10


class Node:
    """Something that nothing but a collection of garbage frees."""

    def __init__(self, y):
        self.y, self.me = y, self


def keeps_some(kept, call, k, y):
    if call > 4 and k % 5 == 0:
        kept.append(y)


def keeps_all(kept, call, k, y):
    if call == 6:
        kept.append(y)


def keeps_for_longer(kept, call, k, y):
    """Than in the calls that were learned from, but not beyond the call."""
    kept[:] = [*kept, y][-1 - (call > 4) * 3 :] if k < TURNS - 1 else []


def keeps_in_a_circle(kept, call, k, y):
    Node(y)
    if call == 7 and k == 5:
        gc.collect()


def refers_weakly(kept, call, k, y):
    if call > 4:
        kept.append(weakref.ref(y))


def looks(kept, call, k, y):
    kept.append(y.detach().numpy().tolist() if k % 2 else y[0].item())


def looks_later(kept, call, k, y):
    if call > 4 and k % 3 == 0:
        kept.append(y.tolist())


def keeps_a_part(kept, call, k, y):
    if call > 4:
        kept[:] = [y[:2]] if k < TURNS - 1 else []


def writes(kept, call, k, y):
    """While a view is there, or not any more."""
    v = y[1:]
    v *= 2.0
    if call % 3:
        del v
    y[0] = 0.5


def is_wanted_as_array(kept, call, k, y):
    s = np.squeeze(y[0:1]) if k % 2 else y[0]
    if call > 4:
        kept.append((isinstance(s * 1.0, tg.Tensor), np.ndim(s), (s[...] * 2.0).tolist()))


SEEING = [
    keeps_some, keeps_all, keeps_for_longer, keeps_in_a_circle, refers_weakly, looks, looks_later,
    keeps_a_part, writes, is_wanted_as_array,
]  # fmt: skip


def program(see):
    """A function with a loop, and what it has kept at each call."""
    calls = []

    def f(x):
        kept = []
        calls.append(kept)
        y = x * 1.0
        for k in range(TURNS):
            y = np.sin(y) * 0.5 + x
            see(kept, len(calls) - 1, k, y)
            if y[2] < -0.6:
                y = y * y
        return np.sum(y * y)

    return f, calls


def told(kept):
    """What there is to see of what was kept."""
    kept = [y() if isinstance(y, weakref.ref) else y for y in kept]
    return [(y.tolist(), y.requires_grad, y.shape) if isinstance(y, tg.Tensor) else y for y in kept]


@pytest.mark.parametrize("see", SEEING, ids=lambda see: see.__name__)
def test_calls_are_as_recorded(see):
    (f, found), (g, wanted) = program(see), program(see)
    compiled, recorded = tg.compile(f, wait=True).value_and_grad, tg.func.value_and_grad(g)
    for k in range(CALLS):
        x = np.array([0.3, -0.2, 0.7 - 0.2 * k, 1.0])
        (value, gradient), (expected, slope) = compiled(x), recorded(x)
        assert value == expected
        assert gradient.tobytes() == slope.tobytes()
        assert told(found[-1]) == told(wanted[-1])


def test_a_function_that_keeps_for_longer_is_followed_again():
    f, _ = program(keeps_for_longer)
    compiled = tg.compile(f, wait=True)
    for _ in range(CALLS + 10):
        compiled.grad(np.array([0.3, -0.2, 0.7, 1.0]))
    (kind,) = compiled.explain().kinds
    assert sum(kind.left.values()) <= 2


def test_a_long_loop_takes_few():
    def f(x):
        y = x * 1.0
        for _ in range(300):
            y = np.sin(y) * 0.5 + x
        return np.sum(y)

    def count():
        gc.collect()
        return sum(type(x) is tg.Tensor for x in gc.get_objects())

    before, compiled = count(), tg.compile(f, wait=True)
    for _ in range(3):
        compiled.grad(np.ones(3))
    assert count() - before < 200  # for 901 events


def test_numbers_of_events():
    """Those of a beginning are another program's; a write has that of what it writes to."""
    first = from_addresses([10, 20, 10, 30], [0, 1, 2, 3], None, 0)
    assert [*first.numbers] == [0, 1, 0, 2]
    second = from_addresses([50, 60, 70, 50, 60, 70], [0, 1, 2, 3, 1, 5], first, 2)
    assert [*second.numbers] == [0, 1, 2, 3, 1, 2]
    assert [second.latest(1, k) for k in range(1, 7)] == [-1, 1, 1, 1, 4, 4]
    assert second.is_latest(1, 6, [0, 1, 2, 3, 1, 5])
    assert not second.is_latest(2, 6, [0, 1, 2, 3, 1, 5])
    assert StandIns([]).count == 0
