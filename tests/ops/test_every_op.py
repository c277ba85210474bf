"""Every registered op in every dtype, layout and order: value, vjp, second order, jvp, kernel.

Run with -s for the matrix of cells.
"""

import collections
import functools
import itertools

import pytest

from tapegrad.ops import REGISTRY

from . import checks
from .layouts import DTYPES, LAYOUTS, Reason
from .samples import SAMPLES

CELLS = list(itertools.product(sorted(REGISTRY), DTYPES, LAYOUTS, checks.ORDERS))
outcome = functools.cache(checks.outcome)


@pytest.mark.parametrize(("name", "dtype", "layout", "order"), CELLS)
def test_cell(name, dtype, layout, order):
    found = outcome(name, dtype, layout, order)
    assert isinstance(found, Reason) or found > 0
