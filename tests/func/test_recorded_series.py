"""The compiled walk gives what the rules give that are run on series, or leaves it to them."""

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.func import recorded_series
from tapegrad.ops import REGISTRY
from tapegrad.ops.primitive import Elementwise
from tests.ops import checks
from tests.ops.layouts import PLAIN, SCALAR

pytestmark = pytest.mark.skipif(
    not recorded_series.possible(), reason="no compiled walk in a checked build, or where structs are unknown"
)
ORDER = 7
BY_RULES = {  # left to the rules: complex numbers, other dtypes and shapes, what no instruction does
    "astype", "broadcast_to", "conjugate", "imag", "real", "logaddexp2",
}  # fmt: skip


def both(f, x, v):
    """The coefficients by the walk, None if it leaves them, and by rules run on series."""
    return recorded_series.expand(f, (x,), 0, v, ORDER), tg.func.taylor(lambda z: (f(z),), ORDER)(x, v)[0]


def functions(name, layout):
    """Functions of one operand of an op, the others constants, with where they are taken."""
    for case in checks.sample(name, layout, "float64"):
        for k in case.moves:
            others = case.values

            def f(x, k=k, case=case, others=others):
                return case.call(*others[:k], x, *others[k + 1 :])

            yield f, others[k], checks.tangents(case)[k]


ELEMENTWISE = sorted(name for name, op in REGISTRY.items() if isinstance(op, Elementwise))


@pytest.mark.parametrize("layout", [PLAIN, SCALAR])
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_ops(name, layout):
    walked = 0
    for f, x, v in functions(name, layout):
        x, v = (float(x), float(v)) if layout == SCALAR else (x, v)
        mine, wanted = both(f, x, v)
        if mine is not None:
            walked += 1
            np.testing.assert_allclose(mine, wanted, rtol=1e-11, atol=1e-12)
    assert walked or name in BY_RULES


def chain(A):
    def f(z):
        for _ in range(3):
            z = np.sin(z) * A + A
        return -(abs(z) ** 1.5) + A

    return f


@pytest.mark.parametrize("n", [1, 7, 512, 513, 3000])
def test_arrays_of_which_the_tape_keeps_no_value(n):
    """Constants and results that no derivative reads have left shadows from 4 KiB on."""
    x, v = np.linspace(0.1, 0.9, n), np.cos(np.arange(n))
    mine, wanted = both(chain(np.linspace(0.5, 0.6, n)), x, v)
    np.testing.assert_allclose(mine, wanted, rtol=1e-12, atol=1e-14)


def test_matrices():
    x, v = np.linspace(0.1, 0.9, 6).reshape(2, 3), np.ones((2, 3))
    for A in (0.5, np.full((2, 3), 0.5)):
        mine, wanted = both(chain(A), x, v)
        np.testing.assert_allclose(mine, wanted, rtol=1e-13)


@pytest.mark.parametrize(("f", "x"), [
    (lambda x: x @ x, np.ones((3, 3))),  # no elementwise op
    (lambda x: np.arange(6.0).reshape(2, 3) @ x, np.ones(3)),
    (lambda x: np.max(x), np.ones(3)),
    (lambda x: np.sum(x, keepdims=True), np.ones(3)),
    (lambda x: np.sum(x * 1.0, axis=0), np.ones((3, 2))),
    (lambda x: x[:2], np.ones(3)),
    (lambda x: x * np.ones((2, 3)), np.ones(3)),  # broadcast
    (lambda x: x * np.float32(0.5), np.float32(1.0)),  # another dtype
    (lambda x: x * 1j, 1.0),
    (lambda x: x**0.5, 1e-30),  # where a recurrence loses digits
    (lambda x: abs(x), 0.0),  # at a kink whose powers are smooth
    (lambda x: x**x, 0.5),
    (lambda x: np.where(x > 0, x, x * tg.tensor(2.0, requires_grad=True)), 1.0),  # a history of its own
    (lambda x: 3.0, 1.0),
    (lambda x: x.T * np.arange(6.0).reshape(2, 3).T, np.ones((2, 3))),
])  # fmt: skip
def test_what_is_left_to_the_rules(f, x):
    assert recorded_series.expand(f, (x,), 0, np.ones_like(x)[()], 3) is None


@pytest.mark.parametrize("shape", [(3,), (2, 3), (40, 20)])
def test_sums_and_elements(shape):
    def f(x):
        y = np.exp(x) / np.sum(np.exp(x))
        last = x[(-1,) * x.ndim]
        return np.mean(np.log(y) * last) * x[(0,) * x.ndim] - np.sum(last)

    random = np.random.default_rng(3)
    x, v = random.normal(size=shape), random.normal(size=shape)
    for g in (f, lambda x: x * f(x)):
        mine, wanted = both(g, x, v)
        assert mine.shape == wanted.shape
        np.testing.assert_allclose(mine, wanted, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("n", [1, 3, 700])
def test_inner_products(n):
    random = np.random.default_rng(4)
    x, v, c = random.normal(size=(3, n))

    def f(x):
        return np.sin(x) @ x + np.dot(c, x * x) * (x @ c) + np.exp(-0.1 * x @ x)

    mine, wanted = both(f, x, v)
    np.testing.assert_allclose(mine, wanted, rtol=1e-11, atol=1e-12)


def test_whole_powers_keep_their_digits():
    """A recurrence that divides by the number would multiply the error by 1,000 at each power."""
    x = np.poly1d([1.0, 1.0, 1e-3])  # t**2 + t + 1e-3
    f = lambda t: (t * t + t + 1e-3) ** 5
    mine, _ = both(f, 0.0, 1.0)
    np.testing.assert_allclose(mine, (x**5).coeffs[::-1][: ORDER + 1], rtol=1e-13)


def test_a_walk_inside_of_another():
    """What runs in a function, finalizers too, may find series of its own."""

    def f(x):
        assert tg.func.derivative(np.exp, 2)(0.0) == 1.0
        return np.sin(x)

    np.testing.assert_allclose(tg.func.taylor(f, 2)(0.0, 1.0), [0.0, 1.0, 0.0], atol=1e-16)


def test_a_function_that_raises():
    def f(x):
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        tg.func.taylor(f, 2)(1.0, 1.0)


def test_nothing_is_compiled_for_an_order():
    from tapegrad.kernels import cache

    tg.func.taylor(chain(0.5), 2)(0.3, 1.0)
    before = dict(cache.statistics)
    for order in (3, 9, 20):
        tg.func.taylor(chain(0.5), order)(0.3, 1.0)
    assert cache.statistics == before


UNARY = (
    np.sin, np.cos, np.tanh, np.exp, np.arctan, np.expm1, np.square, np.arcsinh, np.sinh, np.cosh, np.tan,
    np.sinc, abs, np.negative, lambda x: np.sqrt(x * x + 0.5), lambda x: np.log1p(x * x),
    lambda x: 1 / np.cbrt(x * x + 0.5), lambda x: x**3, lambda x: (x * x + 1) ** -0.5,
    lambda x: np.where(x > 0.3, x, 0.3 * x), lambda x: np.sum(x) / 9,
)  # fmt: skip
BINARY = (
    np.add, np.subtract, np.multiply, np.hypot, np.arctan2, np.maximum, np.minimum, np.logaddexp, np.copysign,
    lambda x, y: x / (y * y + 1),
)  # fmt: skip


@pytest.mark.parametrize("seed", range(40))
def test_any_program(seed):
    """Programs of some of these functions, of earlier results and constants."""
    random = np.random.default_rng(seed)
    shape = ((), (5,), (600,))[seed % 3]
    x, v, constant = (draw(size=shape)[()] for draw in (random.random, random.normal, random.random))
    steps = [(random.integers(len(UNARY)), random.integers(len(BINARY)), *random.random(2)) for _ in range(8)]

    def f(x):
        known = [x, constant, 0.7]
        for unary, binary, *places in steps:
            a, b = (known[int(place * len(known))] for place in places)
            known.append(0.5 * BINARY[binary](UNARY[unary](a), b))
        return known[-1] * x

    mine, wanted = both(f, x, v)
    assert mine.shape == wanted.shape
    np.testing.assert_allclose(mine, wanted, rtol=1e-9, atol=1e-10 * max(1.0, np.max(np.abs(wanted))))
