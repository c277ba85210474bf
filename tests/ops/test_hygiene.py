"""A derivative raises no floating-point error of its own, and shares memory with nothing.

Over every registered op, on ordinary samples and at the edges of its domain.
"""

import itertools
import warnings

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.ops import REGISTRY
from tapegrad.ops.primitive import Elementwise
from tests.tiers import every, thinned

from . import checks
from .layouts import LAYOUTS, PLAIN
from .test_every_op import quick_layouts

NAMES = sorted(REGISTRY)
EDGES = [0.0, -0.0, 1.0, -1.0, 0.5, 2.0, 710.0, -750.0, 1e-310, 1e200, -1e300, np.inf, -np.inf, np.nan]


def derivatives(out, inputs, ct):
    """First and second derivatives, compiled and recorded; sums of products would overflow on their own."""
    firsts = tg.grad(out, inputs, ct, create_graph=True, allow_unused=True)
    found = [*firsts, *tg.grad(out, inputs, ct, retain_graph=True, allow_unused=True)]
    roots = [g for g in firsts if g is not None and g.requires_grad]
    if roots:
        seeds = [np.ones(g.shape, g.dtype) for g in roots]
        for record in (True, False):
            found += tg.grad(roots, inputs, seeds, create_graph=record, retain_graph=True, allow_unused=True)
    return found


def quietly(case, operands):
    """Differentiate where every floating-point error and every warning raises; the value is not in there."""
    with np.errstate(all="ignore"):
        out = case.call(*operands)
    inputs = [x for x in operands if isinstance(x, tg.Tensor) and x.requires_grad]
    if not inputs or not out.requires_grad:
        return []
    with np.errstate(all="raise"), warnings.catch_warnings():
        warnings.simplefilter("error")
        found = derivatives(out, inputs, np.ones(out.shape, out.dtype))
        assert np.geterr() == dict.fromkeys(("divide", "over", "under", "invalid"), "raise")
    return found


@pytest.mark.parametrize(("name", "layout"), every(itertools.product(NAMES, LAYOUTS), 3))
def test_derivatives_of_samples(name, layout):
    cases = checks.sample(name, layout, "float64")
    for case in cases if isinstance(cases, list) else []:
        quietly(case, case.operands)


@pytest.mark.parametrize(
    ("name", "dtype"),
    thinned(
        itertools.product(NAMES, ["float64", "float32"]),
        lambda name, dtype: bool(quick_layouts(name, dtype)),
    ),
)
def test_derivatives_at_edges(name, dtype):
    """All edges in each operand in turn; for elementwise ops of two operands in all pairs."""
    for case in checks.sample(name, PLAIN, dtype)[:2]:
        with np.errstate(over="ignore", under="ignore"):
            edges = np.array(EDGES).astype(dtype)
        shapes = {np.shape(v) for v in case.values}
        if isinstance(REGISTRY[name], Elementwise) and len(shapes) == 1 and name != "broadcast_to":
            axes = np.meshgrid(*[edges] * len(case.values))
            operands = [
                tg.tensor(a, requires_grad=True) if k in case.moves else a > 0 for k, a in enumerate(axes)
            ]
            quietly(case, operands)
            continue
        for k in case.moves:
            operands = [tg.tensor(v, requires_grad=q in case.moves) for q, v in enumerate(case.values)]
            operands[k] = tg.tensor(np.resize(edges, np.shape(case.values[k])), requires_grad=True)
            try:
                quietly(case, operands)
            except np.linalg.LinAlgError:
                assert name in ("solve", "inv", "cholesky", "lstsq")


@pytest.mark.parametrize("size", [3, 5000])
def test_forward_follows_the_users_errstate(size):
    """As NumPy: which error, by which handling, recorded or not, for small and for large operands."""
    calls = {
        "divide": lambda m, x: m.log(x * 0.0), "over": lambda m, x: m.exp(x * 1e4),
        "invalid": lambda m, x: m.sqrt(-x), "under": lambda m, x: m.exp(x * -740.0),
    }  # fmt: skip
    array = np.full(size, 1.0)
    if size > 1000:  # vector forms of ours, where there are, do not tell of it
        del calls["under"]
    for kind, call in calls.items():
        for x in (array, tg.tensor(array), tg.tensor(array, requires_grad=True)):
            with np.errstate(**{kind: "raise"}), pytest.raises(FloatingPointError):
                call(np, x)
            if kind != "under":
                with np.errstate(**{kind: "warn"}), pytest.warns(RuntimeWarning):
                    call(np, x)
            with np.errstate(all="ignore"), warnings.catch_warnings():
                warnings.simplefilter("error")
                call(np, x)


@pytest.mark.parametrize("record", [False, True])
def test_sums_of_gradients_without_a_value(record):
    """inf - inf, where cotangents meet: of two roots, of two uses, in .grad, over tapes."""
    with np.errstate(all="raise"), warnings.catch_warnings():
        warnings.simplefilter("error")
        x = tg.tensor([1.0, 2.0], requires_grad=True)
        up, down = np.full(2, np.inf), np.full(2, -np.inf)
        (g,) = tg.grad([x, x], x, [up, down], create_graph=record)
        (h,) = tg.grad([x * 2.0, x * 3.0], x, [up, down], create_graph=record)
        y = x * 1.0
        (k,) = tg.grad([y, y, y * 1.0], x, [up, down, up], create_graph=record, retain_graph=True)
        y.backward(up, create_graph=record, retain_graph=True)
        y.backward(down, create_graph=record)
    for found in (g, h, k, x.grad):
        assert np.isnan(checks.plain(found)).all()


# ---------------------------------------------------------------- nothing shares memory


def arrays_of(tensors):
    return [x._v for x in tensors if isinstance(x, tg.Tensor) and isinstance(x._v, np.ndarray) and x.size]


@pytest.mark.parametrize("record", [False, True], ids=["compiled", "recorded"])
@pytest.mark.parametrize("name", NAMES)
def test_gradients_overwritten_change_nothing(name, record):
    """Every gradient found is overwritten, in memory; inputs, values and further gradients stay."""
    for case in checks.sample(name, PLAIN, "float64"):
        if not case.moves:
            continue
        inputs = [case.operands[k] for k in case.moves]
        middle = {k: case.operands[k] * 1.0 for k in case.moves}
        out = case.call(*(middle.get(k, x) for k, x in enumerate(case.operands)))
        seed = tg.tensor(checks.cotangent(case, out))
        wanted_of = [*inputs, *middle.values(), out]
        held = [*(x for x in case.operands if isinstance(x, tg.Tensor)), *middle.values(), out, seed]
        kept = [checks.plain(x).copy() for x in held]

        def gradients():
            return tg.grad(out, wanted_of, seed, create_graph=record, retain_graph=True)

        first = gradients()
        wanted = [checks.plain(g).copy() for g in first]
        others = arrays_of([*held, *gradients()])
        for k, g in enumerate(arrays := arrays_of(first)):
            assert not any(np.shares_memory(g, other) for other in [*others, *arrays[:k]])
        if not record:
            for g in first:
                if g.ndim:
                    g.fill_(np.nan)
        for x, before in zip([*held, *gradients()], [*kept, *wanted], strict=True):
            np.testing.assert_array_equal(checks.plain(x), before)
