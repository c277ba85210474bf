"""Random scripts over small tapes whose leaves change between uses; their gradients are known by hand."""

import random

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.core.dispatch import COPIED
from tapegrad.tape import tape as tapes


class Script:
    """Scalars with what is known of them: ``(result, value, gradients by the leaves)``."""

    def __init__(self, seed, monkeypatch):
        self.choose = choose = random.Random(seed)
        monkeypatch.setattr(tapes, "MAX_RECORDS", choose.choice([6, 8, 16, 40, 64, 100, 4096]))
        tapes.close(tapes.current())
        self.n, count = choose.choice([1, 3, 40, 3000]), choose.choice([1, 1, 2, 3])
        self.leaves = [
            tg.tensor([choose.uniform(0.1, 1.0) for _ in range(self.n)], requires_grad=True)
            for _ in range(count)
        ]
        self.given_out = [None] * count
        self.known = []

    def value(self, i):
        return np.array(self.leaves[i].tolist())

    def use(self):
        """A scalar of one leaf, or of two."""
        i, j, way = self.choose.randrange(len(self.leaves)), 0, self.choose.randrange(7)
        x, v = self.leaves[i], self.value(i)
        gradients = [np.zeros(self.n) for _ in self.leaves]
        if way == 0:
            y, found, gradients[i] = np.sum(np.sin(x)), np.sum(np.sin(v)), np.cos(v)
        elif way == 1:
            y, found, gradients[i] = np.sum(x * 3.0), np.sum(v * 3.0), np.full(self.n, 3.0)
        elif way == 2:
            y, found = np.sum(x[::2] * 2.0), np.sum(v[::2] * 2.0)
            gradients[i][::2] = 2.0
        else:
            j = self.choose.randrange(len(self.leaves))
            z, w = self.leaves[j], self.value(j)
            if way == 3:
                y, found = np.sum(x * z), np.sum(v * w)
                gradients[i] += w
                gradients[j] += v
            elif way == 4:
                y, found = tg.autograd.checkpoint(lambda x, z: np.sum(np.sin(x) * z), x, z), np.sin(v) @ w
                gradients[i] += np.cos(v) * w
                gradients[j] += np.sin(v)
            else:  # a derivative, whose records may end on another tape than they begin
                y = tg.func.grad(lambda x: np.sum(np.sin(x) * z * z))(x)
                if way == 6:
                    u = x * 1.0
                    (y,) = tg.grad(np.sum(np.sin(u) * z * z), u, create_graph=True)
                y, found = np.sum(y), np.sum(np.cos(v) * w * w)
                gradients[i] -= np.sin(v) * w * w
                gradients[j] += 2.0 * np.cos(v) * w
        self.known.append((y, found, gradients))

    def combine(self):
        (y, v, g), (z, w, h) = (self.choose.choice(self.known) for _ in range(2))
        if self.choose.random() < 0.5:
            self.known.append((y + z, v + w, [a + b for a, b in zip(g, h, strict=True)]))
        else:
            c = 1 / (1 + abs(v) + abs(w))
            found = [(a * w + v * b) * c for a, b in zip(g, h, strict=True)]
            self.known.append((y * z * c, v * w * c, found))

    def record_others(self):
        x = tg.tensor(1.0, requires_grad=True)
        for _ in range(self.choose.choice([2, 5, 30, 70])):
            x = x * 1.01

    def change(self):
        i, way = self.choose.randrange(len(self.leaves)), self.choose.randrange(4)
        if way == 0 and self.leaves[i].nbytes <= COPIED:  # of more a write while it is given out is refused
            self.given_out[i] = self.leaves[i].detach().numpy()
        elif way < 2:
            self.given_out[i] = None
        elif way == 2:
            with tg.no_grad():
                self.leaves[i] *= 0.9
        else:
            self.leaves[i].requires_grad_(False)
            self.leaves[i].requires_grad_(True)

    def forget(self):
        del self.known[self.choose.randrange(len(self.known))]

    def end_tape(self):
        tapes.close(tapes.current())

    def check(self):
        """A gradient by some leaves, in one of the ways there are."""
        y, _, gradients = self.choose.choice(self.known)
        which = self.choose.sample(range(len(self.leaves)), self.choose.randint(1, len(self.leaves)))
        xs, way = [self.leaves[i] for i in which], self.choose.randrange(4)
        if way < 2:
            unused = {"allow_unused": True} if any(not np.any(gradients[i]) for i in which) else {}
            found = tg.grad(y, xs, retain_graph=True, create_graph=way == 1, **unused)
        else:
            for x in self.leaves:
                x.grad = None
            y.backward(retain_graph=True, **({"inputs": xs} if way == 2 else {}))
            found = [x.grad for x in xs]
        for i, g in zip(which, found, strict=True):
            g = np.zeros(self.n) if g is None else g.detach().numpy()
            np.testing.assert_allclose(g, gradients[i], rtol=1e-9, atol=1e-12)


STEPS = {
    Script.use: 35,
    Script.combine: 25,
    Script.record_others: 6,
    Script.change: 12,
    Script.forget: 6,
    Script.end_tape: 6,
    Script.check: 10,
}


@pytest.mark.parametrize(
    ("first", "count"), [(0, 80), pytest.param(80, 1000, marks=pytest.mark.full)], ids=["few", "many"]
)
def test_gradients_by_leaves_that_change(first, count, monkeypatch):
    for seed in range(first, first + count):
        script = Script(seed, monkeypatch)
        for _ in range(script.choose.randrange(5, 60)):
            (step,) = script.choose.choices(list(STEPS), list(STEPS.values()))
            if not script.known:
                step = Script.use
            try:
                step(script)
            except AssertionError as error:
                raise AssertionError(f"script {seed}") from error
