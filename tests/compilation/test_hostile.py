"""Functions of `tapegrad.compile` beside themselves: value, derivative, effects, warnings, number of runs."""

import warnings

import numpy as np
import pytest

import tapegrad as tg

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


def same(a, b):
    if isinstance(a, tuple) and isinstance(a[0], type):
        return a == b
    (value, gradient), (wanted, expected) = a, b
    if isinstance(value, tg.Tensor):
        value, gradient, wanted, expected = (x.detach().numpy() for x in (value, gradient, wanted, expected))
    scale = max(1.0, np.abs(np.nan_to_num(expected, posinf=0, neginf=0)).max())
    bits = np.asarray(value).tobytes() == np.asarray(wanted).tobytes() or (
        value != value and wanted != wanted
    )
    return bits and np.allclose(gradient, expected, rtol=0, atol=1e-13 * scale, equal_nan=True)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_it_does_what_the_function_does(name):
    make = FUNCTIONS[name]
    (f, effects), (g, others) = make(), make()
    (f, runs), (g, counted) = counting(f), counting(g)
    compiled, eager = tg.compile(f, wait=True), tg.func.value_and_grad(g)
    for k in range(CALLS):
        found = outcome(lambda _: compiled.value_and_grad(arguments(k), k), f, effects, runs)
        wanted = outcome(lambda _: eager(arguments(k), k), g, others, counted)
        assert same(found[0], wanted[0]), f"call {k}: {found[0]} for {wanted[0]}"
        assert found[1:] == wanted[1:], f"call {k}"
