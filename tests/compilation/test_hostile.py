"""Functions of `tapegrad.compile` beside themselves: value, derivative, effects, warnings, number of runs."""

import warnings

import numpy as np
import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

import tapegrad as tg
from tapegrad.compilation.memory import pages as memory
from tapegrad.compilation.rows import releases
from tests.tiers import every

from . import (  # noqa: F401
    hostile_compared,
    hostile_complex,
    hostile_constants,
    hostile_factors,
    hostile_looks,
    hostile_masks,
    hostile_numpy,
    hostile_python,
    hostile_tensors,
    hostile_unrecorded,
    hostile_writes,
    random_programs,
)
from .hostile import FUNCTIONS

CALLS = 20


def arguments(k):
    """Another array at each call; at some of them of other signs."""
    x = np.array([0.3, 0.7, -0.2, 0.5]) * (1.0 + 0.17 * (k // 2)) + 0.01 * k
    return -x if k % 5 == 4 else x


def plain(x):
    """What shows effects, to be compared: Tensors by their values, and whether they have histories."""
    if isinstance(x, tg.Tensor):
        return x.requires_grad, x.detach().numpy().tobytes()
    if isinstance(x, np.ndarray):
        return x.tobytes()
    if isinstance(x, np.random.Generator):
        return str(x.bit_generator.state)
    if isinstance(x, dict):
        return {key: plain(value) for key, value in x.items()}
    if hasattr(x, "__dict__"):
        return plain(vars(x))
    if isinstance(x, (list, tuple)) or type(x).__name__ == "deque":
        return [plain(value) for value in x]
    return x


def outcome(call, f, effects, counted):
    """What a call gives, with its warnings and its effects so far."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            found = call(f)
        except Exception as error:
            found = type(error), str(error)
    return found, [(w.category, str(w.message)) for w in told], plain(effects), counted[0]


def counting(f):
    counted = [0]

    def called(x, k):
        counted[0] += 1
        return f(x, k)

    return called, counted


def array_of(x):
    return x.detach().numpy() if isinstance(x, tg.Tensor) else x


def same(a, b, ulps=0):
    """Whether two outcomes are the same: values bit by bit, or to as many units of the last place."""
    if isinstance(a[0], type) or isinstance(b[0], type):  # errors
        return a == b
    (value, gradient), (wanted, expected) = a, b
    value, gradient, wanted, expected = map(array_of, (value, gradient, wanted, expected))
    scale = max(1.0, np.abs(np.nan_to_num(expected, posinf=0, neginf=0)).max())
    bits = np.asarray(value).tobytes() == np.asarray(wanted).tobytes() or (
        value != value and wanted != wanted
    )
    if np.asarray(wanted).dtype.char in "gG" and type(value) is type(wanted):
        bits = bits or value == wanted  # of 80 bits the rest of the 16 bytes is anything
    if ulps:
        bits = bits or abs(value - wanted) <= ulps * np.spacing(abs(wanted))
    return bits and np.allclose(gradient, expected, rtol=0, atol=1e-13 * scale, equal_nan=True)


OLDER_POWER = np.lib.NumpyVersion(np.__version__) < "2.3.0"


def compare(make, compiled_call, recorded_call):
    """Calls of a function by a program and as it is recorded, side by side."""
    (f, effects), (g, others) = make(), make()
    (f, runs), (g, counted) = counting(f), counting(g)
    compiled = tg.compile(f, wait=True)
    # NumPy before 2.3 has another power than its operator, which is recorded where a call leaves its way
    ulps = 4 * (make is FUNCTIONS["exponents_of_some_kinds"] and OLDER_POWER)
    for k in range(CALLS):
        found = outcome(lambda _: compiled_call(compiled, arguments(k), k), f, effects, runs)
        wanted = outcome(lambda _: recorded_call(g, arguments(k), k), g, others, counted)
        assert same(found[0], wanted[0], ulps), f"call {k}: {found[0]} for {wanted[0]}"
        assert found[1:] == wanted[1:], f"call {k}"


@pytest.mark.parametrize("name", every(FUNCTIONS, 15))
def test_it_does_what_the_function_does(name):
    compare(
        FUNCTIONS[name],
        lambda compiled, x, k: compiled.value_and_grad(x, k),
        lambda f, x, k: tg.func.value_and_grad(f)(x, k),
    )


@pytest.mark.parametrize("name", every([*FUNCTIONS][::12], 4))
def test_long_programs_do_what_the_function_does(name, monkeypatch):
    """As programs too long for plans, whose values are packed and whose rows are forgotten."""
    monkeypatch.setattr(memory, "MOST_STEPS", 0)
    monkeypatch.setattr(releases, "SOME_STEPS", 1)
    compare(
        FUNCTIONS[name],
        lambda compiled, x, k: compiled.value_and_grad(x, k),
        lambda f, x, k: tg.func.value_and_grad(f)(x, k),
    )


OF_A_TENSOR = [  # the programs are those of the test above: one in six for every change
    pytest.param(name, marks=pytest.mark.slow if k % 6 else pytest.mark.full)
    for k, name in enumerate(FUNCTIONS)
]


@pytest.mark.parametrize("name", OF_A_TENSOR)
def test_of_a_tensor_it_is_one_record(name):
    """A call that a program serves, and one that it does not, have the history of the argument."""

    def pulled(call, x, k):
        t = tg.tensor(x, requires_grad=True)
        y = call(t, k)
        return y, tg.grad(y, t)[0]

    # the first call of a compiled function is recorded
    compare(FUNCTIONS[name], pulled, lambda f, x, k: pulled(tg.compile(f), x, k))


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=pytest.mark.slow if k % 3 else pytest.mark.full)  # ways are those of the first
    for k, name in enumerate(FUNCTIONS)
])  # fmt: skip
def test_of_second_order(name):
    """Hessians times directions."""
    v = np.array([1.0, -2.0, 0.5, 3.0])
    compare(
        FUNCTIONS[name],
        lambda compiled, x, k: (0.0, compiled.hvp(x, k, v)),
        lambda f, x, k: (0.0, tg.func.hvp(f)(x, k, v)),
    )


SETTINGS = settings(deadline=None, suppress_health_check=[*HealthCheck], database=None)
TEXTS = st.randoms(use_true_random=False).map(random_programs.text_of)


def check_text(text):
    compare(
        random_programs.maker(text),
        lambda compiled, x, k: compiled.value_and_grad(x, k),
        lambda f, x, k: tg.func.value_and_grad(f)(x, k),
    )


@seed(19)
@settings(SETTINGS, max_examples=6)
@given(TEXTS)
def test_random_functions(text):
    check_text(text)


@pytest.mark.slow
@seed(20)
@settings(SETTINGS, max_examples=300)
@given(TEXTS)
def test_many_random_functions(text):
    check_text(text)


def test_there_are_many():
    assert len(FUNCTIONS) > 300
