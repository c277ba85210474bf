"""Random programs of arrays on Tensors: gradients, with and without a graph, and second derivatives.

They are compared with each other and with differences, where those of two steps say that there is no edge.
"""

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

import tapegrad as tg

from ..array_programs import differences, function_of, point, programs, sizes_for

SETTINGS = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


def leaves(args):
    return [tg.tensor(np.copy(a), requires_grad=True) for a in args]


def gradient(f, args):
    xs = leaves(args)
    return [g.numpy() for g in tg.grad(f(*xs), xs, materialize_grads=True)]


def check(text):
    f = function_of(text)
    for n in sizes_for(text):
        args, along = point(n)
        plain = gradient(f, args)
        xs = leaves(args)
        recorded = tg.grad(f(*xs), xs, materialize_grads=True, create_graph=True)
        scale = max(1.0, *(np.abs(g).max() for g in plain))
        for a, b in zip(recorded, plain, strict=True):
            np.testing.assert_allclose(a.detach().numpy(), b, rtol=0, atol=1e-10 * scale)
        (slope,), (smooth,), size = differences(lambda *a: [f(*a)], args, along)
        if smooth:
            total = sum(np.sum(g * v) for g, v in zip(plain, along, strict=True))
            assert abs(total - slope) < 1e-4 * size
        slope = sum(np.sum(g * v) for g, v in zip(recorded, along, strict=True))
        if slope.requires_grad:
            second = tg.grad(slope, xs, materialize_grads=True)
            wanted, smooth, size = differences(lambda *a: gradient(f, a), args, along)
            for a, b, where in zip(second, wanted, smooth, strict=True):
                np.testing.assert_allclose(a.numpy()[where], b[where], rtol=0, atol=2e-4 * size)


@settings(SETTINGS, max_examples=8, derandomize=True, phases=[Phase.generate])
@given(programs())
def test_programs_of_arrays(text):
    check(text)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(10))
def test_many_programs_of_arrays(number):
    seed(number)(settings(SETTINGS, max_examples=60, database=None)(given(programs())(check)))()
