"""The compiled walk gives what the rules give that are run on series, or leaves it to them."""

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.func import recorded_series
from tapegrad.kernels.replay.layout import BOUNDS
from tapegrad.ops import REGISTRY
from tapegrad.ops.primitive import Elementwise
from tests.ops import checks
from tests.ops.layouts import PLAIN, SCALAR

pytestmark = pytest.mark.skipif(BOUNDS, reason="a checked build has no compiled walk")
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
