"""Random programs of arrays under `tg.njit`: value, gradient and Hessian products are those of Tensors."""

from random import Random

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from ..array_programs import programs, text_of
from .random_arrays import check

SETTINGS = settings(
    deadline=None, database=None, phases=[Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)  # fmt: skip


@settings(SETTINGS, max_examples=2, derandomize=True)
@given(programs())
def test_programs_of_arrays(text):
    check(text)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(150))
def test_many_programs_of_arrays(number):
    """Of every third the second derivatives too; `random_arrays` takes other seeds."""
    check(text_of(Random(number)), number % 3 == 0)
