"""Random programs of arrays under `tg.njit`: value, gradient and Hessian products are those of Tensors."""

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

import tapegrad as tg

from ..array_programs import function_of, point, programs, sizes_for

SETTINGS = settings(
    deadline=None, database=None, phases=[Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)  # fmt: skip


def close(found, wanted, tolerance):
    scale = max(1.0, *(np.abs(w).max() for w in wanted))
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * scale)


def check(text, second=True):
    plain = function_of(text)
    native = tg.njit(plain)
    for n in sizes_for(text):
        args, along = point(n)
        xs = [tg.tensor(np.copy(a), requires_grad=True) for a in args]
        y = plain(*xs)
        first = tg.grad(y, xs, create_graph=True, materialize_grads=True)
        value, found = tg.func.value_and_grad(native, (0, 1))(np.copy(args[0]), args[1])
        assert value == pytest.approx(plain(np.copy(args[0]), args[1]), rel=1e-11, abs=1e-12)
        close(found, [g.detach().numpy() for g in first], 1e-10)
        slope = sum(np.sum(g * v) for g, v in zip(first, along, strict=True))
        if second and slope.requires_grad:
            wanted = [h.numpy() for h in tg.grad(slope, xs, materialize_grads=True)]
            close(tg.func.hvp(native, (0, 1))(np.copy(args[0]), args[1], along), wanted, 1e-9)


@settings(SETTINGS, max_examples=2, derandomize=True)
@given(programs())
def test_programs_of_arrays(text):
    check(text)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(10))
def test_many_programs_of_arrays(number):
    """Of every third the second derivatives too."""
    turn = iter(range(1000))
    run = given(programs())(lambda text: check(text, next(turn) % 3 == 0))
    seed(number)(settings(SETTINGS, max_examples=15)(run))()
