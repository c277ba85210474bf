"""Every op with several cotangents or tangents at once, against its rules with one after the other."""

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.ops import BY_OPCODE, REGISTRY, lanes

from . import checks
from .layouts import EMPTY, MIXED, PLAIN, SCALAR, SIZE1, Absent

LANES = 3


def several(value, seed):
    random = np.random.default_rng(seed)
    return checks.direction(random, (LANES, *np.shape(value)), np.result_type(value))


def assert_same(found, wanted):
    found, wanted = checks.plain(found), checks.plain(wanted)
    assert found.shape == wanted.shape
    assert found.dtype == wanted.dtype
    scale = np.abs(wanted).max(initial=0)
    np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-13 * scale)


def test_products_of_a_matrix_and_a_complex_vector():
    """A batch of cotangents is one product of matrices, in both places."""
    random = np.random.default_rng(2)
    a, x, cts = (random.normal(size=s) + 1j * random.normal(size=s) for s in ((2, 3), 3, (LANES, 2)))
    for matrix, vector, product in ((a, x, lambda a, x: a @ x), (a.T, x, lambda a, x: x @ a)):
        given = tg.tensor(matrix, requires_grad=True), tg.tensor(vector, requires_grad=True)
        found = tg.grad(product(*given), given, cts, is_grads_batched=True)
        for k, ct in enumerate(cts):
            for one, batch in zip(tg.grad(product(*given), given, ct), found, strict=True):
                np.testing.assert_allclose(batch.numpy()[k], one.numpy(), rtol=1e-13)


@pytest.mark.parametrize("layout", [PLAIN, SCALAR, EMPTY, SIZE1, MIXED])
@pytest.mark.parametrize("name", sorted(REGISTRY))
def test_lanes_are_what_one_after_the_other_is(name, layout):
    cases = checks.sample(name, layout, "float64")
    for case in [] if isinstance(cases, Absent) else cases:
        out = checks.recorded(case, name)
        op, attrs = BY_OPCODE[checks.opcode(out)], checks.attributes(out)
        vectors = name == "convolve"  # np.convolve takes numbers for vectors of one element
        values = [np.atleast_1d(v) if vectors else np.asarray(v)[()] for v in case.values]
        value = checks.plain(out)[()]
        cts = several(value, 1)
        for given in (cts, tg.tensor(cts, requires_grad=True)):
            found = lanes.vjp(op, LANES, given, value, values, attrs, case.moves)
            single = [op.vjp(ct, value, values, attrs, case.moves) for ct in cts]
            assert found.keys() == single[0].keys()
            for k in found:
                assert_same(found[k], np.stack([part[k] for part in single]))
        for moving in [case.moves, *([k] for k in case.moves)]:
            tangents = [several(v, k) if k in moving else None for k, v in enumerate(values)]
            single = [
                op.jvp([None if t is None else t[b] for t in tangents], value, values, attrs)
                for b in range(LANES)
            ]
            assert_same(lanes.jvp(op, LANES, tangents, value, values, attrs), np.stack(single))
            tensors = [None if t is None else tg.tensor(t, requires_grad=True) for t in tangents]
            assert_same(lanes.jvp(op, LANES, tensors, value, values, attrs), np.stack(single))
