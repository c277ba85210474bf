"""Problems of `tests.benchmarks.gradbench`, tiny: eager beside differences, compiled beside eager."""

import numpy as np
import pytest

from .benchmarks.gradbench.problem import compare
from .benchmarks.gradbench.problems import PROBLEMS
from .benchmarks.gradbench.tools import Compile, Eager, Njit, Replay


def check(problem, tools, spoil=lambda derivative: derivative, calls=1):
    variables, data = problem.inputs(*problem.sizes["tiny"], seed=3)
    results = {"value": {}, "derivative": {}}
    for tool in tools:
        for what, call in (("value", tool.value(problem)), ("derivative", tool.derivative(problem))):
            for _ in range(calls if call else 0):
                results[what][tool.name] = call(variables, data)
    results["derivative"] = {name: spoil(found) for name, found in results["derivative"].items()}
    compare(problem, results, Eager().value(problem), variables, data)


@pytest.mark.parametrize("name", PROBLEMS)
def test_eager_beside_differences(name):
    check(PROBLEMS[name], [Eager()])


@pytest.mark.full
@pytest.mark.parametrize("name", PROBLEMS)
def test_programs_beside_eager(name):
    """When they are learned, have kernels, and Python is skipped."""
    check(PROBLEMS[name], [Eager(), Compile(), Replay()], calls=6)


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
