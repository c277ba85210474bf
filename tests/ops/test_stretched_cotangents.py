"""Cotangents that lie in memory with steps of 0, as those of sums do, in the rule of every op."""

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.ops import REGISTRY

from . import checks
from .layouts import PLAIN, Absent


def cases_of(name):
    """Calls of an op with operands that have derivatives."""
    cases = checks.sample(name, PLAIN, "float64")
    return [case for case in ([] if isinstance(cases, Absent) else cases) if case.moves]


def totals(out):
    """Sums of a result and its parts, with cotangents of theirs and what these are as the result's."""
    seed = checks.direction(np.random.default_rng(5), (), out.dtype)
    yield np.sum(out), seed, np.full(out.shape, seed)
    for axis in sorted({0, out.ndim - 1} if out.ndim > 1 else ()):
        total = np.sum(out, axis=axis)
        seed = checks.direction(np.random.default_rng(6), total.shape, out.dtype)
        yield total, seed, np.expand_dims(seed, axis) + np.zeros(out.shape, out.dtype)
    if out.size:
        stretched = np.broadcast_to(out, (3, *out.shape))
        seed = checks.direction(np.random.default_rng(7), (), out.dtype)
        yield np.mean(stretched), seed, np.full(out.shape, seed / out.size)


def compare(found, wanted, what):
    for g, w in zip(found, wanted, strict=True):
        assert g.shape == w.shape and g.dtype == w.dtype, what
        assert g.flags.writeable or what == "recorded", what  # which has history
        assert all(s for s, n in zip(g.strides, g.shape, strict=True) if n > 1), what
        np.testing.assert_allclose(g, w, rtol=1e-11, atol=1e-11 * np.max(np.abs(w), initial=1), err_msg=what)


@pytest.mark.full
@pytest.mark.parametrize("name", sorted(REGISTRY))
def test_rules_with_cotangents_of_sums(name):
    """Alone, and with a second contribution that comes before or after, compiled and recorded."""
    for case in cases_of(name):
        results = {k: case.operands[k] * 1.0 for k in case.moves}
        out = case.call(*(results.get(k, x) for k, x in enumerate(case.operands)))
        inputs = [x for k in case.moves for x in (results[k], case.operands[k])]
        ct = checks.cotangent(case, out)
        for total, seed, whole in totals(out):
            wanted = checks.compiled(out, inputs, whole)
            both = checks.compiled(out, inputs, whole + ct)
            compare(checks.compiled(total, inputs, seed), wanted, "compiled")
            recorded = checks.by_rule(total, inputs, tg.tensor(seed))
            compare(map(checks.plain, recorded), wanted, "recorded")
            compare(checks.compiled([total, out], inputs, [seed, ct]), both, "before another")
            compare(checks.compiled([out, total], inputs, [ct, seed]), both, "after another")


@pytest.mark.full
@pytest.mark.parametrize("name", sorted(REGISTRY))
def test_rules_themselves_with_cotangents_of_sums(name):
    """Called with a view of one number, which cannot be written to, they give what a whole array gives."""
    for case in cases_of(name):
        out, values = checks.recorded(case, name), [*map(checks.plain, case.operands)]
        seed = checks.direction(np.random.default_rng(5), (), out.dtype)
        given = checks.plain(out), values, checks.attributes(out)
        stretched = np.broadcast_to(seed, out.shape)
        found, wanted = (REGISTRY[name].vjp(ct, *given, case.moves) for ct in (stretched, stretched.copy()))
        assert wanted and found.keys() == wanted.keys()
        for k, g in wanted.items():
            np.testing.assert_allclose(found[k], g, rtol=1e-12, atol=1e-12)
