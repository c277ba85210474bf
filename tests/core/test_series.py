"""Power series of every op, against Cauchy's integrals of its extension to complex operands."""

import gc
import math

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.autograd import forward_ad as fw
from tests.ops import checks
from tests.ops.layouts import PLAIN, Absent
from tests.ops.samples import REAL_ONLY
from tests.ops.test_every_op import NAMES
from tests.tiers import every

ORDER, POINTS = 6, 32
NOISE = 1e-12  # of coefficients times the powers of the radius, by the largest value


def by_integrals(case, along):
    """Coefficients times powers of a radius inside which the function is smooth, and the radius."""
    values = checks.widened(case)

    def at(t):
        moved = [v + t * along[k] if k in along else v for k, v in enumerate(values)]
        return np.ravel(np.asarray(case.smooth(*moved), complex))

    for radius in (0.4, 0.2, 0.1, 0.05, 0.02):
        with np.errstate(all="ignore"):
            circle = [at(radius * np.exp(2j * np.pi * j / POINTS)) for j in range(POINTS)]
        terms = np.fft.fft(circle, axis=0) / POINTS
        size = max(1.0, np.max(np.abs(circle), initial=0.0))
        if np.all(np.isfinite(circle)) and np.max(np.abs(terms[POINTS // 2 :]), initial=0.0) < NOISE * size:
            return terms[: ORDER + 1], radius, size
    raise AssertionError("no circle inside which it is smooth")


@pytest.mark.parametrize("name", every(NAMES, 3))
def test_series(name):
    cases = checks.sample(name, PLAIN, "float64")
    assert not isinstance(cases, Absent)
    for case in cases:
        along = checks.tangents(case)
        found = tg.func.taylor(case.call, ORDER, case.moves)(*case.operands, [along[k] for k in case.moves])
        terms, radius, size = by_integrals(case, along)
        powers = radius ** np.arange(ORDER + 1)[:, None]
        mine = found.detach().numpy().reshape(ORDER + 1, -1)
        mine = (mine.astype(complex).view(float) if mine.dtype.kind == "c" else mine) * powers
        np.testing.assert_array_equal(found[0].detach().numpy(), case.call(*case.operands).detach().numpy())
        noise = max(10 * NOISE, 8 * np.finfo(found.dtype).eps) * size
        np.testing.assert_allclose(mine[1:], terms[1:], atol=noise, rtol=0)


def nested(case, along, operands, n):
    """The derivative of order n along a direction: a tangent of a tangent."""
    if n == 0:
        return case.call(*operands)
    with fw.dual_level():
        duals = [fw.make_dual(x, tg.tensor(along[k])) if k in along else x for k, x in enumerate(operands)]
        out = nested(case, along, duals, n - 1)
        tangent = fw.unpack_dual(out).tangent
        return tg.tensor(np.zeros(out.shape, out.dtype)) if tangent is None else tangent


@pytest.mark.parametrize("name", every(sorted(set(NAMES) - REAL_ONLY), 3))
def test_series_of_complex_numbers(name):
    cases = checks.sample(name, PLAIN, "complex128")
    for case in [] if isinstance(cases, Absent) else cases:
        along = checks.tangents(case)
        found = tg.func.taylor(case.call, 4, case.moves)(*case.operands, [along[k] for k in case.moves])
        for n in range(1, 5):
            wanted = nested(case, along, case.operands, n).detach().numpy()
            noise = max(1e-12, 64 * np.finfo(found.dtype).eps) * max(1.0, np.max(np.abs(wanted), initial=0.0))
            np.testing.assert_allclose(found[n].detach().numpy() * math.factorial(n), wanted, atol=noise)


def test_an_order_too_deep_for_python():
    def f(x):
        return [np.i0(x)]

    assert np.isfinite(tg.func.taylor(f, 20)(0.5, 1.0)[0]).all()
    with pytest.raises(RecursionError, match="i0: its power series to order 400 takes more nested calls"):
        tg.func.taylor(f, 400)(0.5, 1.0)


def test_nothing_waits_for_the_collector():
    function = tg.func.taylor(lambda x: np.sum(np.linalg.solve(x, np.exp(x)) ** 1.5), 4)
    x, v = np.eye(3) * 2, np.ones((3, 3))
    function(x, v)  # what is made once
    gc.collect()
    gc.disable()
    try:
        function(x, v)
        assert gc.collect() == 0
    finally:
        gc.enable()
