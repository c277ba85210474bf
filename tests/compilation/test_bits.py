"""Values of later calls have the bits of recording, whatever those of the call that was learned from were."""

import numpy as np
import pytest
from numpy.lib.stride_tricks import sliding_window_view

import tapegrad as tg
from tapegrad.compilation.memory import pages
from tapegrad.kernels import abi
from tests.tiers import every

pytestmark = pytest.mark.skipif(not abi.native(), reason="there are no programs")
WEIGHTS = np.array([0.3, 0.7, -0.2])

# of all of them some other function gives the same at 1
BY_OP = {
    "x ** -1": lambda x: x**-1,
    "x ** 0.5": lambda x: x**0.5,
    "x ** 1.5": lambda x: x**1.5,
    "power(x, -1)": lambda x: np.power(x, -1),
    "power(x, 0.5)": lambda x: np.power(x, 0.5),
    "power(x, 2)": lambda x: np.power(x, 2),
    "power(x, -2.0)": lambda x: np.power(x, -2.0),
    "x * x": lambda x: x * x,
    "x * 1.5": lambda x: x * 1.5,
    "x * (0.3 + 0.2j)": lambda x: x * (0.3 + 0.2j),
    "(0.3 + 0.2j) * x": lambda x: (0.3 + 0.2j) * x,
    "multiply(x, x)": lambda x: np.multiply(x, x),
    "outer(x, x)": lambda x: np.outer(x, x),
    "square(x)": np.square,
    "abs(x)": abs,
    "sign(x)": np.sign,
    "reciprocal(x)": np.reciprocal,
    "mean(x)": np.mean,
    "norm(x)": lambda x: np.linalg.norm(np.ravel(x)),
    "float_power(x, 0.7)": lambda x: np.float_power(x, 0.7),
}


def numbers(kind, shape, k):
    random = np.random.default_rng(k)
    x = np.abs(random.normal(size=shape))
    if np.dtype(kind).kind == "c":
        x = x + 1j * random.normal(size=shape)
    return np.asarray(x, kind)[()]


def bits(x):
    return np.asarray(x).dtype, np.asarray(x).tobytes()


@pytest.mark.parametrize("kind", ["d", "D", "f", "F"])
@pytest.mark.parametrize("name", every(BY_OP, 2))
def test_of_a_call_in_which_all_ways_agree(name, kind, monkeypatch):
    monkeypatch.setattr(pages, "MOST_STEPS", 0)  # by rows
    op = BY_OP[name]
    for shape in ((), (1,), (1, 1), (2,), (3, 2)):
        f = lambda x: op(x * 1.0)
        compiled = tg.compile(f, wait=True)
        for _ in range(3):
            compiled(np.ones(shape, kind)[()])
        for k in range(12):
            x = numbers(kind, shape, k)
            assert bits(compiled(x)) == bits(tg.compile(f)(x)), (shape, x)


WINDOWS = {
    "product": lambda x: np.sum(np.tanh(sliding_window_view(np.sin(x), 3) @ WEIGHTS)),
    "of an argument": lambda x: np.sum((sliding_window_view(x, 3) @ WEIGHTS) ** 2),
    "sums": lambda x: np.sum(np.sum(sliding_window_view(x * x, 5), axis=-1) ** 2),
    "all": lambda x: np.mean(sliding_window_view(x * 0.7, 4)) + np.linalg.norm(sliding_window_view(x, 2)),
    "elementwise": lambda x: np.sum(np.exp(sliding_window_view(x, 3)) * sliding_window_view(np.sin(x), 3)),
    "parts": lambda x: np.sum(sliding_window_view(x, 4)[1::2] ** 2) + np.max(sliding_window_view(x, 2)[3]),
    "two axes": lambda x: np.sum(sliding_window_view(np.outer(x[:7], x[:5]), (2, 3)) ** 3),
    "transposed": lambda x: np.sum(sliding_window_view(x, 3).T @ sliding_window_view(x, 3)),
}


@pytest.mark.parametrize("n", [33, pytest.param(1030, marks=pytest.mark.full)])
@pytest.mark.parametrize("name", WINDOWS)
def test_of_windows_that_slide(name, n):
    f, compiled = WINDOWS[name], tg.compile(WINDOWS[name], wait=True)
    recorded, product = tg.func.value_and_grad(f), tg.func.hvp(f)
    for k in range(8):
        x, v = np.random.default_rng(k).normal(size=(2, n))
        value, gradient = compiled.value_and_grad(x)
        wanted, expected = recorded(x)
        assert value == wanted
        np.testing.assert_allclose(gradient, expected, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(compiled.hvp(x, v), product(x, v), rtol=1e-11, atol=1e-11)
    assert "left a way" not in compiled.explain()


@pytest.mark.parametrize("z", [1 + 2j, np.complex128(1 + 2j), np.complex64(1 + 2j), np.array(1 + 2j), 0.5])
def test_numbers_are_of_the_type_that_recording_gives(z):
    square, energy = (lambda z: z * z), (lambda z: np.real(z * z) + np.imag(z))
    compiled, twice = tg.compile(energy, wait=True), tg.compile(square, wait=True)
    value, gradient = tg.func.value_and_grad(energy)(z)
    for _ in range(4):
        found = compiled.value_and_grad(z)
        assert [type(x) for x in found] == [type(value), type(gradient)]
        assert type(compiled.hvp(z, z)) is type(tg.func.hvp(energy)(z, z))
        assert type(twice(z)) is type(tg.compile(square)(z))


@pytest.mark.parametrize("ufunc", [np.add, np.subtract, np.multiply])
def test_results_at_indices_are_followed(ufunc):
    def f(x, c):
        y = np.sin(x)
        ufunc.at(y, [0, 1, 0], x[:3] * c)
        return np.sum(y * y)

    compiled, recorded = tg.compile(f, wait=True), tg.func.value_and_grad(f)
    for k in range(20):
        x = np.random.default_rng(k).normal(size=5)
        (value, gradient), (wanted, expected) = compiled.value_and_grad(x, 1.0 + k), recorded(x, 1.0 + k)
        assert value == wanted
        np.testing.assert_allclose(gradient, expected, rtol=1e-13, atol=1e-13)
    assert "way 1: 18 calls" in compiled.explain()
