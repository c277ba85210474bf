"""Calls of tg.func in the midst of a graph that is being recorded: random programs against complex steps."""

import random

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.tape import tape as tape_module

F = tg.func
PAIR = np.array([0.1, 0.2])
# what is done to y, given the leaf w, and the same by numbers
STEPS = {
    "product": (lambda y, w: y * w * 0.9, lambda y, w: y * w * 0.9),
    "sine": (lambda y, w: np.sin(y) + 1.0, lambda y, w: np.sin(y) + 1.0),
    "quotient": (lambda y, w: y / (1 + y * y), lambda y, w: y / (1 + y * y)),
    "of nothing here": (lambda y, w: y + F.grad(lambda x: x * x)(0.3), lambda y, w: y + 0.6),
    "of the leaf": (lambda y, w: y * F.grad(lambda x: w * x * x)(0.5), lambda y, w: y * w),
    "of a result": (lambda y, w: F.grad(lambda x: y * x * x / 2)(1.1), lambda y, w: y * 1.1),
    "at the leaf": (lambda y, w: y + F.grad(lambda x: x**3 / 3)(w), lambda y, w: y + w * w),
    "jvp": (lambda y, w: y * F.jvp(lambda x: x * w * y)(1.0, 0.1)[1], lambda y, w: y * y * w * 0.1),
    "hvp": (lambda y, w: y + F.hvp(lambda x: w * x**3 / 6)(0.5, 1.0), lambda y, w: y + w * 0.5),
    "vmap": (lambda y, w: y + np.sum(F.vmap(lambda x: x * w)(PAIR)), lambda y, w: y + w * 0.3),
    "jacrev": (lambda y, w: y + np.sum(F.jacrev(lambda x: x * w)(PAIR)), lambda y, w: y + 2 * w),
    "jacfwd": (lambda y, w: y + np.sum(F.jacfwd(lambda x: x * y)(PAIR)), lambda y, w: y + 2 * y),
    "vjp": (lambda y, w: F.vjp(lambda x: x * w)(0.3)[1](y), lambda y, w: y * w),
    "linearize": (lambda y, w: F.linearize(lambda x: x * w)(0.3)[1](y), lambda y, w: y * w),
    "sweep": (lambda y, w: (tg.grad(y, w, retain_graph=True), y)[1], lambda y, w: y),
    "dropped": (lambda y, w: (F.grad(lambda x: np.exp(w * x))(0.1), y)[1], lambda y, w: y),
}


@pytest.mark.parametrize("seed", range(60))
def test_random_programs(seed, monkeypatch):
    choose = random.Random(seed)
    monkeypatch.setattr(tape_module, "MAX_RECORDS", choose.choice([3, 8, 20, tape_module.MAX_RECORDS]))
    steps = choose.choices(list(STEPS), k=choose.randint(3, 14))
    w = tg.tensor(0.7, requires_grad=True)
    y, number = w * 1.0, 0.7 + 1e-30j
    expected = number
    for step in steps:
        y, expected = STEPS[step][0](y, w), STEPS[step][1](expected, number)
    assert y.item() == pytest.approx(expected.real, rel=1e-12)
    assert tg.grad(y, w)[0].item() == pytest.approx(expected.imag * 1e30, rel=1e-10), steps
