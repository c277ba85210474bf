"""Certified regressions: from both of NIST's starts to 8 digits of parameters and 6 of standard errors."""

import numpy as np
import pytest

import tapegrad.scipy as ts
from tests.tiers import every

from .nist import MODELS, Problem, digits


def test_there_are_all():
    assert len(MODELS) == 27


@pytest.mark.parametrize("name", every(MODELS, 9))
def test_certified_results(name):
    problem = Problem(name)
    for start in problem.starts:
        found, _ = problem.fit(ts.optimize.curve_fit, start)
        assert digits(found, problem.parameters) >= 6
        found, errors = problem.refine(found)
        assert digits(found, problem.parameters) >= 8
        assert digits(errors, problem.errors) >= (6 if np.finfo(np.longdouble).eps < 1e-18 else 3)
