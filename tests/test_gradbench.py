"""Problems of `tests.benchmarks.gradbench`, tiny: eager beside differences, compiled beside eager."""

import numpy as np
import pytest

from .benchmarks.gradbench.problem import compare
from .benchmarks.gradbench.problems import PROBLEMS
from .benchmarks.gradbench.tools import Eager, Njit


def check(problem, tools, spoil=lambda derivative: derivative):
    variables, data = problem.inputs(*problem.sizes["tiny"], seed=3)
    results = {"value": {}, "derivative": {}}
    for tool in tools:
        results["value"][tool.name] = tool.value(problem)(variables, data)
        results["derivative"][tool.name] = spoil(tool.derivative(problem)(variables, data))
    compare(problem, results, Eager().value(problem), variables, data)


@pytest.mark.parametrize("name", PROBLEMS)
def test_eager_beside_differences(name):
    check(PROBLEMS[name], [Eager()])


@pytest.mark.slow
@pytest.mark.parametrize("name", PROBLEMS)
def test_compiled_beside_eager(name):
    check(PROBLEMS[name], [Eager(), Njit()])


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_wrong_derivative_is_seen(name):
    with pytest.raises(AssertionError, match="central differences"):
        check(PROBLEMS[name], [Eager()], lambda derivative: tuple(np.roll(d, 1) for d in derivative))


def test_ways_that_differ_are_seen():
    values = {"one": (np.float64(1),), "other": (np.float64(1 + 1e-8),)}
    with pytest.raises(AssertionError, match="value by other and one"):
        compare(PROBLEMS["ode"], {"value": values}, None, None, None)
