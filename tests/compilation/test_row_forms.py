"""Operations that look as one before does, of which rows are known, give what recording gives."""

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.compilation.memory import pages as memory
from tapegrad.compilation.programs import program
from tapegrad.kernels import abi


def turns(x, count):
    """Operations of dense and other arrays, of numbers, and of both, some with one operand twice."""
    first, every_other, last, total = x[:3], x[::2], x[3:], x[0] * 0
    for k in range(count):
        for u, v in ((first, last), (every_other, last), (last, every_other), (first, first), (last, x[1])):
            w = u * v + 2
            w = (w + 2.5) / (v * v + 1) - u
            w = np.exp(-w * 0.1) * u**2 + k - x[2]
            total = total + np.sum(w * w) * 3
            total = np.tanh(total / (1 + x[4] * x[4])) - total * 0.5
    return total


@pytest.mark.parametrize("long", [pytest.param(False, marks=pytest.mark.full), True])  # short ones have plans
@pytest.mark.parametrize("dtype", [float, np.float32, complex])
def test_operations_alike_give_what_recording_gives(long, dtype, monkeypatch, random):
    monkeypatch.setattr(memory, "MOST_STEPS", 64 if long else 1 << 14)

    def f(x):
        return np.real(turns(x, 3))

    compiled, tolerance = tg.compile(f, wait=True), 1e-4 if dtype is np.float32 else 1e-11
    for _ in range(4):
        x = (random.normal(size=6) + (1j * random.normal(size=6) if dtype is complex else 0)).astype(dtype)
        value, gradient = compiled.value_and_grad(x)
        expected, its_gradient = tg.func.value_and_grad(f)(x)
        np.testing.assert_allclose(value, expected, rtol=tolerance)
        np.testing.assert_allclose(gradient, its_gradient, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("long", [False, True])
def test_what_a_row_is_is_found_once_for_operations_alike(long, monkeypatch):
    monkeypatch.setattr(memory, "MOST_STEPS", 16 if long else 1 << 14)
    computed, usual = [], program.compute
    monkeypatch.setattr(
        program, "compute", lambda *args, **names: (computed.append(1), usual(*args, **names))
    )

    def count(n):
        def f(x):
            y = x
            for _ in range(n):
                y = np.sin(y) * x + 0.5
            return np.sum(y)

        del computed[:]
        compiled, x = tg.compile(f, wait=True), np.linspace(0.1, 1.0, 5)
        value, gradient = [compiled.value_and_grad(x) for _ in range(3)][-1]
        expected, its_gradient = tg.func.value_and_grad(f)(x)
        np.testing.assert_allclose([value, *gradient], [expected, *its_gradient], rtol=1e-13)
        return len(computed)

    assert count(10) == count(100)
    assert computed or not abi.native()  # where nothing is learned
