"""Loops over random windows of a few arrays, which share some of their memory: they give what rows give."""

import numpy as np
import pytest
from numpy.lib.array_utils import byte_bounds

from tapegrad.compilation.plans import repeats, rolling
from tapegrad.compilation.plans.repeats import Part
from tapegrad.compilation.plans.rolling import FEWEST_ROWS
from tapegrad.compilation.rows.rows import Rows
from tapegrad.kernels import abi

pytestmark = pytest.mark.skipif(not abi.native(), reason="nothing is learned from calls")

TWO = {"add": np.add, "subtract": np.subtract, "multiply": np.multiply, "maximum": np.maximum}
ONE = {"absolute": np.absolute, "sin": np.sin, "positive": np.positive}
KINDS = [*TWO, *ONE, "scaled", "listed", "added", "summed", "element"]
FACTOR = np.array(0.7)
SOME = 1, 6, 8, 17, 21, 111, 146  # in which steps would come too early if all were in one run


class Program:
    """Rows that are turns of random steps on windows of arrays, on arrays of their own and on numbers."""

    def __init__(self, seed):
        self.random = random = np.random.default_rng(seed)
        self.size = int(random.integers(4, 60))
        self.arrays = [random.normal(size=self.size) for _ in range(random.integers(1, 4))]
        self.count = len(self.arrays)
        self.numbers, self.data = random.normal(size=6), random.normal(size=(80, self.size))
        self.own = {}
        self.cuts = np.unique([0, self.size, *random.integers(0, self.size + 1, random.integers(2, 6))])
        self.rows, steps = Rows(), []
        for _ in range(random.integers(8, 16)):
            n = len(steps[-1][1][0]) if steps and random.random() < 0.7 else None
            out = self.window(n)
            operands = [out, self.window(len(out)), self.window(len(out))]
            operands = [self.alone(x) if random.random() < 0.35 else x for x in operands]
            steps.append((str(random.choice(KINDS)), operands, random.integers(6, size=2)))
        moves = random.random() < 0.5
        for turn in range(max(int(random.integers(40, 80)), FEWEST_ROWS // len(steps) + 1)):
            for kind, operands, which in steps:
                self.step(kind, operands, which, self.data[turn % 80 if moves else 0])
                self.rows.divide()
        self.rows.seal()
        self.arrays += [*self.own.values(), self.numbers]

    def window(self, n=None):
        """A window of an array, of so many elements; often one between two of a few places."""
        random, array = self.random, self.arrays[self.random.integers(self.count)]
        if n is not None:
            begin = random.integers(0, self.size - n + 1)
            return array[begin : begin + n]
        places = self.cuts if random.random() < 0.6 else np.arange(self.size + 1)
        begin, end = sorted(random.choice(places, 2, replace=False))
        return array[begin:end]

    def alone(self, x):
        """An array that is never read or written in part."""
        return self.own.setdefault((len(x), int(self.random.integers(2))), self.random.normal(size=len(x)))

    def step(self, kind, operands, which, row):
        """Add a step: what it reads is what it writes to, or lies apart from that."""
        rows, out, n = self.rows, operands[0], len(operands[0])
        parts = [x for x in operands if np.may_share_memory(x, out) and byte_bounds(x) != byte_bounds(out)]
        out, x, y = (row[:n] if any(x is part for part in parts) else x for x in operands)
        listed = row[:n]
        if n == 1:
            out, x, y, listed = (array.reshape(()) for array in (out, x, y, listed))
        number, other = (self.numbers[k : k + 1].reshape(()) for k in which)
        if kind in TWO:
            done = rows.loop(TWO[kind], [x, y], out) and rows.loop(np.multiply, [out, FACTOR], out)
        elif kind in ONE:
            done = rows.loop(ONE[kind], [x], out)
        elif kind == "scaled":
            done = rows.loop(np.multiply, [x, number], out) and rows.loop(np.tanh, [out], out)
        elif kind == "listed":
            done = rows.loop(np.add, [x, listed], out) and rows.loop(np.sin, [out], out)
        elif kind == "added":
            done = n == 1 or rows.loop(np.add, [number, x], number)
            done = done and rows.loop(np.tanh, [number], number)
        elif kind == "summed":
            done = n == 1 or rows.reduce(np.add, x, number, bool(which[1] % 2))
            done = done and rows.loop(np.tanh, [number], number)
        else:
            element = self.arrays[0][which[0] % self.size :][:1].reshape(())
            done = rows.loop(np.multiply, [element, FACTOR], other)
        assert done

    def run(self, run, begin):
        """What all arrays are afterwards."""
        for x, y in zip(self.arrays, begin, strict=True):
            x[...] = y
        run()
        return [x.copy() for x in self.arrays]


def check(seed):
    program = Program(seed)
    random, rows, arrays = program.random, program.rows, program.arrays
    outputs = [k for k in range(len(arrays)) if random.random() < 0.5] or [0]
    part = Part(rows, 0, len(rows), bool(random.random() < 0.5))
    loops = rolling.roll(part, None, [arrays[k] for k in outputs])
    if loops is None:
        return False
    loops.watch((0, 0, 0))
    for _ in range(2):
        begin = [random.normal(size=x.shape) for x in arrays]
        known = program.run(lambda: rows.run(0, len(rows)), begin)
        loops.spoil()
        found = program.run(lambda: loops.run(0), begin)
        assert all(known[k].tobytes() == found[k].tobytes() for k in outputs)
    return True


@pytest.mark.parametrize("few", [False, True])
def test_loops_over_windows_give_what_rows_give(few, monkeypatch):
    if few:
        look_at_few(monkeypatch)
    assert sum(map(check, SOME)) == len(SOME)


def look_at_few(monkeypatch):
    """Let few rows, and accesses to memory, be looked at at once."""
    monkeypatch.setattr(repeats, "SOME_ROWS", 5)
    monkeypatch.setattr(repeats, "SOME_ACCESSES", 7)


@pytest.mark.full
def test_many_loops_over_windows_give_what_rows_give(monkeypatch):
    assert sum(map(check, range(22, 44))) >= 18
    look_at_few(monkeypatch)
    assert sum(map(check, range(44, 66))) >= 18
