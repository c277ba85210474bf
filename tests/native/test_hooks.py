"""Hooks, saved values, checkpoints, anomaly mode and the profiler around calls of compiled functions."""

import math

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.autograd.profiler import profile
from tapegrad.errors import AnomalyError, GraphFreedError


@tg.njit
def weighted(x, w):
    s = 0.0
    for i in range(x.size):
        s += w[i] * x[i] ** 3
    return s


@tg.njit
def parts(x):
    return x[0] * x, x[1] * x[1]


X, W = np.array([1.0, 2.0, -0.5]), np.array([0.5, -1.0, 2.0])


def leaves():
    return tg.tensor(X, requires_grad=True), tg.tensor(W, requires_grad=True)


@pytest.mark.quick
def test_hooks_of_tensors_before_and_after():
    x, w = leaves()
    seen = []
    z = x * 2.0
    z.register_hook(lambda g: seen.append(("z", g.tolist())))
    y = weighted(z, w)
    y.register_hook(lambda g: (seen.append(("y", g.item())), g * 10)[1])
    w.register_hook(lambda g: -g)
    handle = x.register_hook(lambda g: g * 0)
    handle.remove()
    y.backward()
    assert seen == [("y", 1.0), ("z", (10 * 3 * W * (2 * X) ** 2).tolist())]
    np.testing.assert_allclose(x.grad, 2 * 10 * 3 * W * (2 * X) ** 2)
    np.testing.assert_allclose(w.grad, -10 * (2 * X) ** 3)


def test_hooks_of_results_in_a_tuple():
    x, _ = leaves()
    a, b = parts(x)
    a.register_hook(lambda g: g * 3)
    b.register_hook(lambda g: g * 5)
    (a.sum() + b).backward()
    np.testing.assert_allclose(x.grad, 3 * (X[0] + np.eye(3)[0] * X.sum()) + 5 * 2 * X[1] * np.eye(3)[1])


def test_hooks_of_leaves_after_accumulation_and_of_several_tensors():
    x, w = leaves()
    seen = []
    x.register_post_accumulate_grad_hook(lambda leaf: seen.append(leaf.grad.tolist()))
    tg.autograd.graph.register_multi_grad_hook((x, w), lambda grads: seen.append(len(grads)))
    weighted(x, w).backward()
    assert sorted(map(str, seen)) == sorted([str((3 * W * X**2).tolist()), "2"])


def test_hooks_of_the_node():
    x, w = leaves()
    y = weighted(x, w)
    node = y.grad_fn
    assert "Compiled" in node.name() and len(node.next_functions) == 2
    seen = []
    node.register_prehook(lambda grads: (seen.append("before"), (grads[0] * 2,))[1])
    node.register_hook(lambda inputs, outputs: seen.append((len(inputs), outputs[0].item())))
    y.backward()
    assert seen == ["before", (2, 2.0)]
    np.testing.assert_allclose(x.grad, 2 * 3 * W * X**2)


@pytest.mark.parametrize("create_graph", [False, True])
def test_retained_gradients(create_graph):
    x, w = leaves()
    z = x * 1.0
    y = weighted(z, w)
    z.retain_grad()
    y.retain_grad()
    (y * 2.0).backward(create_graph=create_graph)
    assert y.grad.item() == 2.0
    np.testing.assert_allclose(z.grad.detach(), 2 * 3 * W * X**2)
    if create_graph:
        np.testing.assert_allclose(tg.grad(z.grad.sum(), x)[0], 2 * 6 * W * X)


def test_hooks_in_second_derivatives():
    x, w = leaves()
    seen = []
    z = x * 1.0
    z.register_hook(lambda g: seen.append(g.requires_grad))
    (g,) = tg.grad(weighted(z, w), x, create_graph=True)
    (h,) = tg.grad(g.sum(), x)
    assert seen == [True, False]
    np.testing.assert_allclose(h, 6 * W * X)


def test_gradients_are_checked():
    x, w = leaves()
    assert tg.gradcheck(weighted, (x, w))
    assert tg.gradcheck(weighted, (x, w), check_forward_ad=True, check_batched_grad=True)
    assert tg.gradgradcheck(weighted, (x, w))
    assert tg.gradcheck(parts, (x,))


@pytest.mark.quick
def test_saved_tensors_hooks():
    x, w = leaves()
    expected = tg.grad(weighted(x * 2.0, w), [x, w])
    packed = []

    def pack(saved):
        packed.append(saved.shape)
        return saved.numpy().copy()

    with tg.autograd.graph.saved_tensors_hooks(pack, tg.tensor):
        y = weighted(x * 2.0, w)
    for g, e in zip(tg.grad(y, [x, w]), expected, strict=True):
        np.testing.assert_array_equal(g, e)


def test_values_saved_on_disk_and_second_derivatives(tmp_path):
    x, w = leaves()
    with tg.autograd.graph.save_on_disk(tmp_path):
        y = weighted(x * 2.0, w) ** 2
    (g,) = tg.grad(y, x, create_graph=True)
    (h,) = tg.grad(g.sum(), x)
    a, b = tg.tensor(X, requires_grad=True), np.sum
    z = b(W * (a * 2.0) ** 3) ** 2
    (k,) = tg.grad(z, a, create_graph=True)
    np.testing.assert_allclose(g.detach(), k.detach())
    np.testing.assert_allclose(h, tg.grad(k.sum(), a)[0])


def test_checkpoint_around_a_call():
    x, w = leaves()
    calls = []

    def program(x, w):
        calls.append(1)
        return weighted(np.sin(x), w) * weighted(x, w)

    expected = tg.grad(program(x, w), [x, w])
    y = tg.autograd.checkpoint(program, x, w)
    for g, e in zip(tg.grad(y, [x, w]), expected, strict=True):
        np.testing.assert_allclose(g, e, rtol=1e-15)
    assert len(calls) == 3
    y = tg.autograd.checkpoint_loop(lambda z: z + weighted(z, w) / 99, x, 6, slots=2)
    z = x
    for _ in range(6):
        z = z + weighted(z, w) / 99
    np.testing.assert_allclose(tg.grad(y.sum(), x)[0], tg.grad(z.sum(), x)[0], rtol=1e-14)


@pytest.mark.filterwarnings("ignore:anomaly mode is on:UserWarning")
@pytest.mark.parametrize("create_graph", [False, True])
def test_anomaly_mode_names_the_call(create_graph):
    @tg.njit
    def cancelled(x):
        return math.sqrt(x) - math.sqrt(x)

    x = tg.tensor(0.0, requires_grad=True)
    with tg.autograd.detect_anomaly():
        y = cancelled(x)
        with pytest.warns(UserWarning, match="nan"), pytest.raises(AnomalyError, match="Compiled") as caught:
            y.backward(create_graph=create_graph)
    assert __file__ in str(caught.value) and "test_anomaly_mode_names_the_call" in str(caught.value)
    assert math.isnan(tg.grad(cancelled(x), x)[0].item())


def test_the_profiler_knows_calls():
    x, w = leaves()
    with profile() as prof:
        weighted(x, w).backward()
        weighted(x.detach(), w.detach())
    names = [event.name for event in prof.function_events]
    assert names.count("weighted") == 2
    assert any(name.startswith("Compiled") for name in names)
    np.testing.assert_allclose(x.grad, 3 * W * X**2)


def test_graphs_are_freed_and_kept():
    x, w = leaves()
    y = weighted(x, w)
    tg.grad(y, x, retain_graph=True)
    tg.grad(y, x)
    with pytest.raises(GraphFreedError):
        tg.grad(y, x)
    with tg.no_grad():
        assert not weighted(x, w).requires_grad
    with tg.inference_mode():
        assert weighted(x, w).is_inference()


def test_batches_of_cotangents_and_forward_mode():
    x, _ = leaves()
    a, _ = parts(x)
    (rows,) = tg.grad(a, x, grad_outputs=np.eye(3), is_grads_batched=True, retain_graph=True)
    expected = [tg.grad(a, x, grad_outputs=e, retain_graph=True)[0].numpy() for e in np.eye(3)]
    np.testing.assert_allclose(rows, expected)
    with tg.autograd.forward_ad.dual_level():
        dual = tg.autograd.forward_ad.make_dual(tg.tensor(X), tg.tensor(W))
        first = tg.autograd.forward_ad.unpack_dual(parts(dual)[0]).tangent
        with tg.no_grad():  # nothing to tangents
            again = tg.autograd.forward_ad.unpack_dual(parts(dual)[0]).tangent
    np.testing.assert_allclose(first, W[0] * X + X[0] * W)
    np.testing.assert_array_equal(again, first)
