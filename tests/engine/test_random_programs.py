"""Random programs against the complex step, which knows no derivative rules, and against other engines.

The same interpreter runs a program on Tensors and on complex arrays, where one value is moved by 1e-30 i
along a direction: the imaginary part of the results is the derivative along it, to full precision.
"""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tapegrad as tg

from .. import reference
from ..programs import STEP, evaluate, programs, records_per_tape


def recorded(program, inputs):
    leaves = [tg.tensor(x, requires_grad=True) for x in inputs]
    return leaves, evaluate(program, leaves)


def along(program, inputs, roots, cotangents, moved, direction):
    """Derivative of the sum of cotangent * root along a direction of one value."""
    values = evaluate(program, [np.asarray(x, complex) for x in inputs], moved, direction)
    return sum(np.sum(ct * values[k]).imag for k, ct in zip(roots, cotangents, strict=True)) / STEP


def close(found, expected, scale=1.0, rtol=1e-9):
    assert np.isfinite(found)
    assert abs(found - expected) <= rtol * max(1.0, abs(expected), scale), (found, expected)


SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]
SETTINGS = settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=SLOW)
CAPACITY = st.sampled_from([4, 9, 30, 4096])


@SETTINGS
@given(programs(), CAPACITY)
def test_gradients_of_inputs_and_of_values_on_the_way(drawn, capacity):
    inputs, program, roots, cotangents, targets, random = drawn
    with records_per_tape(capacity):
        _, values = recorded(program, inputs)
        wanted = [values[k] for k in targets]
        arguments = [values[k] for k in roots], wanted, cotangents
        first = tg.grad(*arguments, retain_graph=True, allow_unused=True)
        again = tg.grad(*arguments, retain_graph=True, materialize_grads=True)
        last = tg.grad(*arguments, allow_unused=True)
    for place, x, g, h, i in zip(targets, wanted, first, again, last, strict=True):
        direction = random.uniform(-1, 1, x.shape)
        expected = along(program, inputs, roots, cotangents, place, direction)
        if g is None:
            assert i is None
            assert expected == 0
            assert not h.detach().numpy().any()
            continue
        assert g.shape == x.shape
        assert g.dtype == np.float64
        np.testing.assert_array_equal(g.detach().numpy(), h.detach().numpy())
        np.testing.assert_array_equal(g.detach().numpy(), i.detach().numpy())
        close(np.sum(g.detach().numpy() * direction), expected, np.abs(g.detach().numpy()).sum())


@SETTINGS
@given(programs(), CAPACITY)
def test_backward_fills_leaves_and_what_is_retained(drawn, capacity):
    inputs, program, roots, cotangents, targets, _ = drawn
    with records_per_tape(capacity):
        leaves, values = recorded(program, inputs)
        kept = [values[k] for k in targets if k >= len(inputs)]
        for x in kept:
            x.retain_grad()
        gradients = tg.grad([values[k] for k in roots], leaves + kept, cotangents, True, allow_unused=True)
        tg.backward([values[k] for k in roots], cotangents, retain_graph=True)
        tg.backward([values[k] for k in roots], cotangents)
    for x, g in zip(leaves + kept, gradients, strict=True):
        if g is None:
            assert x.grad is None
        else:
            np.testing.assert_allclose(x.grad.numpy(), 2 * g.numpy(), rtol=1e-12, atol=1e-300)


@SETTINGS
@given(programs(longest=8), CAPACITY)
def test_recorded_sweeps_agree_and_their_derivatives_are_right(drawn, capacity):
    inputs, program, roots, cotangents, _, random = drawn
    directions = [random.uniform(-1, 1, x.shape) for x in inputs]
    with records_per_tape(capacity):
        leaves, values = recorded(program, inputs)
        outputs = [values[k] for k in roots]
        plain = tg.grad(outputs, leaves, cotangents, retain_graph=True, materialize_grads=True)
        first = tg.grad(outputs, leaves, cotangents, create_graph=True, materialize_grads=True)
        slope = sum(np.sum(g * v) for g, v in zip(first, directions, strict=True))
        second = tg.grad(slope, leaves, materialize_grads=True) if slope.requires_grad else None
    for g, h in zip(plain, first, strict=True):
        np.testing.assert_allclose(h.detach().numpy(), g.numpy(), rtol=1e-11, atol=1e-11)

    def slope_at(t):
        moved = [x + t * v for x, v in zip(inputs, directions, strict=True)]
        return sum(along(program, moved, roots, cotangents, k, directions[k]) for k in range(len(inputs)))

    h = 1e-3
    near = (8 * (slope_at(h) - slope_at(-h)) - (slope_at(2 * h) - slope_at(-2 * h))) / (12 * h)
    if second is None:
        close(0.0, near, rtol=1e-7)
        return
    found = sum(np.sum(g.detach().numpy() * v) for g, v in zip(second, directions, strict=True))
    size = sum(np.abs(g.detach().numpy()).sum() for g in second)
    third = abs(slope_at(4 * h) - slope_at(-4 * h)) / (8 * h)
    close(found, near, max(size, third), rtol=1e-6)


@SETTINGS
@given(programs(), st.integers(1, 6))
def test_no_boundary_of_tapes_changes_a_gradient(drawn, short):
    """One long tape and many short ones give the same sums, up to the order of their terms."""
    inputs, program, roots, cotangents, _, _ = drawn
    found = []
    for capacity in (4096, short):
        with records_per_tape(capacity):
            leaves, values = recorded(program, inputs)
            found.append(tg.grad([values[k] for k in roots], leaves, cotangents, materialize_grads=True))
    for g, h in zip(*found, strict=True):
        scale = max(1.0, float(np.max(np.abs(g.numpy()), initial=0.0)))
        np.testing.assert_allclose(h.numpy(), g.numpy(), rtol=1e-11, atol=1e-13 * scale)


@SETTINGS
@given(programs(dtypes=(np.float64, np.float32)), CAPACITY)
def test_the_reference_engine_agrees(drawn, capacity):
    """In values, dtypes, gradients of values on the way and gradients of gradients, for both dtypes."""
    inputs, program, roots, cotangents, targets, _ = drawn
    exact = all(x.dtype == np.float64 for x in inputs)
    found = []
    for engine in (tg, reference):
        with records_per_tape(capacity):
            leaves = [engine.tensor(x, requires_grad=True) for x in inputs]
            values = evaluate(program, leaves)
            outputs = [values[k] for k in roots]
            wanted = [values[k] for k in targets]
            plain = engine.grad(outputs, wanted, cotangents, retain_graph=True, materialize_grads=True)
            first = engine.grad(outputs, leaves, cotangents, create_graph=True, materialize_grads=True)
            slope = sum(np.sum(g * 0.7) for g in first)
            second = engine.grad(slope, leaves, materialize_grads=True) if slope.requires_grad else ()
            results = [*values, *plain, *first, *second]
            found.append([np.asarray(r.detach().numpy() if engine is tg else r.value) for r in results])
    assert len(found[0]) == len(found[1])
    for ours, theirs in zip(*found, strict=True):
        assert ours.dtype == theirs.dtype
        assert ours.shape == theirs.shape
        scale = 1.0 + np.max(np.abs(theirs), initial=0.0)
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=scale * (1e-10 if exact else 2e-4))


def torch_gradients(program, inputs, roots, cotangents):
    torch = pytest.importorskip("torch")

    class Functions:
        array = staticmethod(lambda x: torch.tensor(x, dtype=torch.float64))
        transpose = staticmethod(lambda a: a.permute(*range(a.ndim)[::-1]))

        def __getattr__(self, name):
            return getattr(torch, name)

    leaves = [torch.tensor(x, requires_grad=True) for x in inputs]
    values = evaluate(program, leaves, m=Functions())
    loss = sum(torch.sum(torch.tensor(ct) * values[k]) for k, ct in zip(roots, cotangents, strict=True))
    found = torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True)
    return [g.numpy() for g in found]


def jax_gradients(program, inputs, roots, cotangents):
    jax = pytest.importorskip("jax")
    jax.config.update("jax_enable_x64", True)

    def loss(leaves):
        values = evaluate(program, leaves, m=jax.numpy)
        return sum(jax.numpy.sum(ct * values[k]) for k, ct in zip(roots, cotangents, strict=True))

    return jax.grad(loss)([jax.numpy.asarray(x) for x in inputs])


@pytest.mark.full
@pytest.mark.parametrize("peer", [torch_gradients, jax_gradients])
def test_other_libraries_agree(peer):
    pytest.importorskip(peer.__name__.removesuffix("_gradients"))

    @SETTINGS
    @given(programs(), CAPACITY)
    def run(drawn, capacity):
        inputs, program, roots, cotangents, *_ = drawn
        with records_per_tape(capacity):
            leaves, values = recorded(program, inputs)
            ours = tg.grad([values[k] for k in roots], leaves, cotangents, materialize_grads=True)
        for g, h in zip(ours, peer(program, inputs, roots, cotangents), strict=True):
            scale = 1.0 + np.max(np.abs(g.numpy()), initial=0.0)
            np.testing.assert_allclose(g.numpy(), np.asarray(h), rtol=0, atol=1e-11 * scale)

    run()
