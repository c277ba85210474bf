"""Hooks of Tensors, nodes and leaves, and when they are called: cases F-1 to F-10."""

import gc
import itertools
import sys
import threading
import weakref

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.autograd import Function
from tapegrad.autograd.graph import register_multi_grad_hook
from tapegrad.errors import DTypeError, GradientError, ShapeError, TapeBusyError
from tapegrad.kernels import abi
from tapegrad.kernels.replay import layout
from tapegrad.tape import tape as tapes
from tapegrad.tape.tape import MAX_RECORDS

from ..tiers import every, thinned

at_once = sys.modules["tapegrad.autograd.at_once"]

pytestmark = pytest.mark.usefixtures("tape_length")


def leaf(data=(1.0, 2.0)):
    return tg.tensor(data, dtype=float, requires_grad=True)


class Square(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        return 2 * ctx.saved_tensors[0] * g


# ---------------------------------------------------------------- F-1: Tensors


def test_F1_a_hook_of_a_leaf_affects_grad_and_backward():
    x = leaf(2.0)
    x.register_hook(lambda g: g * 10)
    assert tg.grad(x * x, x)[0].item() == 40.0
    (x * x).backward()
    assert x.grad.item() == 40.0
    (g,) = tg.grad(x * x, x, create_graph=True)
    assert tg.grad(g, x)[0].item() == 200.0  # hooked again


def test_F1_hooks_run_in_order_on_what_the_one_before_returned():
    x, seen = leaf(), []
    y = x * 3
    y.register_hook(lambda g: seen.append(("first", g.tolist())))
    y.register_hook(lambda g: g * 10)
    y.register_hook(lambda g: seen.append(("third", g.tolist())))
    assert tg.grad(y.sum(), x)[0].tolist() == [30.0, 30.0]
    assert seen == [("first", [1.0, 1.0]), ("third", [10.0, 10.0])]


def test_F1_called_once_with_the_sum():
    x, seen = leaf(), []
    y = x * 1
    for t in (x, y):
        t.register_hook(lambda g: seen.append(g.tolist()))
    (y * y + y * 3 + x).sum().backward()
    assert seen == [[5.0, 7.0], [6.0, 8.0]]


def test_F1_in_place_edits_take_effect_and_reach_nothing_else():
    x, s = leaf(), tg.tensor([1.0, 1.0])
    y = x * 3
    y.register_hook(lambda g: [g.mul_(10), None][1])
    y.backward(s)
    assert x.grad.tolist() == [30.0, 30.0]
    assert s.tolist() == [1.0, 1.0]
    z = leaf(2.0)
    z.register_hook(lambda g: [g.add_(1), None][1])
    assert tg.grad(z * z, z)[0].item() == 5.0


def test_F1_what_a_hook_keeps_stays_what_it_was():
    x, kept = leaf(), []
    x.register_hook(kept.append)
    for _ in range(3):
        (x * x).sum().backward()
    assert [g.tolist() for g in kept] == [[2.0, 4.0]] * 3
    assert x.grad.tolist() == [6.0, 12.0]


@pytest.mark.parametrize("shape", [(), (1,), (0,), (2, 3), (700,)])
@pytest.mark.parametrize("create_graph", [False, True])
def test_F1_any_shape(shape, create_graph):
    x = leaf(np.ones(shape))
    y = x * 2
    y.register_hook(lambda g: g * 5)
    x.register_hook(lambda g: g * 7)
    (g,) = tg.grad(y, x, tg.ones(shape), create_graph=create_graph)
    assert g.shape == shape
    np.testing.assert_array_equal(g.detach().numpy(), np.full(shape, 70.0))


@pytest.mark.parametrize("dtype", [np.float32, np.complex128, np.longdouble])
def test_F1_any_dtype(dtype):
    x = tg.tensor(np.array([1.0, 2.0], dtype), requires_grad=True)
    y = x * 2
    for t in (x, y):
        t.register_hook(lambda g: g * 5)
    (g,) = tg.grad(y, x, np.ones(2, dtype))
    assert g.dtype == dtype
    assert g.tolist() == [50.0, 50.0]


RESULTS = {
    "sin": np.sin, "product": lambda x: x * x, "by a number": lambda x: x * 2, "abs": np.abs, "sum": np.sum,
    "reshape": lambda x: x.reshape(-1, 1), "part": lambda x: x[:-1], "element": lambda x: x[0],
    "cumsum": np.cumsum, "cumprod": lambda x: np.cumprod(x / np.max(np.abs(x.detach()))),
    "concatenate": lambda x: np.concatenate([x, x[:2]]), "outer product": lambda x: x[:, None] @ x[None, :3],
    "taken": lambda x: x[[0, 1, 0]], "square of a norm": lambda x: np.linalg.norm(x.reshape(1, -1)) ** 2,
    "solve": lambda x: np.linalg.solve(np.eye(3), x[:3]), "written": lambda x: written(x * 3, x[0] * x[1]),
}  # fmt: skip


def written(y, v):
    y[1] = v
    return y


CASES = [(n, dtype) for n in (3, 513, 8193) for dtype in ("float64", "float32", "complex128")]
IN_TURN = [(3, "float64"), (513, "complex128"), (8193, "float32"), (8193, "float64")]


@pytest.mark.parametrize(("n", "dtype"), thinned(CASES, lambda *case: case in IN_TURN))
@pytest.mark.parametrize("name", RESULTS)
def test_F1_results_of_every_kind_and_size(name, n, dtype):
    """Of large results the values that no rule reads are not kept, rules with a hook run in Python."""
    random = np.random.default_rng(0)
    data = random.uniform(0.5, 1.5, n).astype(dtype)

    def outcome(hook):
        x = tg.tensor(data, requires_grad=True)
        y = RESULTS[name](x)
        c = np.cos(np.arange(y.size)).reshape(y.shape).astype(dtype)
        if hook is not None:
            y.register_hook(hook)
        z = np.sum(np.real(y * c) * 0.5)
        return [g.numpy() for g in tg.grad(z, (y, x), retain_graph=True)], tg.grad(z, x)[0].numpy()

    (y, x), alone = outcome(None)
    (y_of_hook, x_of_hook), alone_of_hook = outcome(lambda g: g * 4)
    np.testing.assert_array_equal(y_of_hook, 4 * y)
    tolerance = 16 * np.finfo(dtype).eps * np.abs(x).max()
    np.testing.assert_allclose(x_of_hook, 4 * x, rtol=0, atol=4 * tolerance)
    np.testing.assert_allclose(alone_of_hook, 4 * alone, rtol=0, atol=4 * tolerance)


@pytest.mark.parametrize(("n", "dtype"), thinned(CASES, lambda *case: case in IN_TURN))
@pytest.mark.parametrize("name", RESULTS)
def test_F1_leaves_of_every_kind_of_use_and_size(name, n, dtype):
    """Beside another leaf, which has no hook; a gradient is there already the second time."""
    data = np.random.default_rng(0).uniform(0.5, 1.5, n).astype(dtype)

    def outcome(*hooks):
        x, z = (tg.tensor(data, requires_grad=True) for _ in range(2))
        for hook in hooks:
            x.register_hook(hook)
        y = RESULTS[name](x) * 0.5 + RESULTS[name](z)
        c = np.cos(np.arange(y.size)).reshape(y.shape).astype(dtype)
        loss = np.sum(np.real(y * c))
        found = [g.numpy() for g in tg.grad(loss, (x, y, z), retain_graph=True)]
        loss.backward(retain_graph=True)
        loss.backward()
        return [*found, x.grad.numpy(), z.grad.numpy()]

    expected = outcome()
    tolerance = 16 * np.finfo(dtype).eps  # rules in Python may have other bits
    for hooks, factor in (
        ([lambda g: g * 4], 4),
        ([lambda g: [g.mul_(4), None][1]], 4),
        ([lambda g: g * 2, lambda g: None, lambda g: [g.mul_(2), None][1]], 4),
        ([lambda g: None], 1),
    ):
        for found, g, times in zip(outcome(*hooks), expected, (factor, 1, 1, factor, 1), strict=True):
            np.testing.assert_allclose(found, times * g, rtol=tolerance, atol=tolerance * np.abs(g).max())


@pytest.mark.parametrize("dtype", ["float64", "float32", "complex128", "complex64"])
def test_F1_leaves_that_are_numbers(dtype):
    x, seen = tg.tensor(np.dtype(dtype).type(3), requires_grad=True), []
    x.register_hook(lambda g: seen.append((g.shape, g.dtype, g.item())))
    x.register_hook(lambda g: g * 2)
    for _ in range(2):
        np.real(x * x).backward()
        assert tg.grad(np.real(x * x), x)[0].item() == 12
    assert x.grad.item() == 24
    assert seen == [((), np.dtype(dtype), 6)] * 4


def test_F1_leaves_of_a_sweep_that_other_threads_run_beside():
    x, seen = leaf(np.linspace(0.0, 1.0, 120_000)), []
    x.register_hook(lambda g: seen.append(threading.get_ident()))
    expected = np.cos(x.detach().numpy()) * 2
    threads = [threading.Thread(target=lambda: (np.sin(x) * 2).sum().backward()) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    np.testing.assert_allclose(x.grad.numpy(), 4 * expected, rtol=1e-14)
    assert len(seen) == 4


def test_F1_roots_and_captured_results():
    x = leaf(3.0)
    y = x * x
    y.register_hook(lambda g: g * 5)
    assert [g.item() for g in tg.grad(y, [y, x], retain_graph=True)] == [5.0, 30.0]
    assert [g.item() for g in tg.grad(y * 2, [x, y])] == [60.0, 10.0]


def test_F1_second_derivative_through_a_hook():
    x = leaf(3.0)
    y = x * 1
    y.register_hook(lambda g: g * g)
    (g,) = tg.grad(y * y, x, create_graph=True)  # (2y)**2
    assert g.item() == 36.0
    (h,) = tg.grad(g, x)
    assert h.item() == 24.0**2  # y is on the way again: its hook sees 8y


# ---------------------------------------------------------------- F-2: errors, handles


def test_F2_what_a_hook_may_return():
    x = leaf()
    for returned, error in (
        (5.0, TypeError),
        (np.ones(2), TypeError),
        (tg.ones(3), ShapeError),
        (tg.ones((1, 2)), ShapeError),
        (tg.tensor([1.0, 1.0], dtype=np.float32), DTypeError),
    ):
        with x.register_hook(lambda g, returned=returned: returned), pytest.raises(error, match="hook"):
            tg.grad((x * x).sum(), x)
    assert tg.grad((x * x).sum(), x)[0].tolist() == [2.0, 4.0]


def test_F2_what_has_no_hooks():
    with pytest.raises(GradientError, match="does not require grad"):
        tg.ones(2).register_hook(print)
    with pytest.raises(TypeError, match="callable"):
        leaf().register_hook(5)
    with pytest.raises(TypeError, match="callable"):
        (leaf() * 1).grad_fn.register_hook(5)
    with pytest.raises(TypeError, match="callable"):
        (leaf() * 1).grad_fn.register_prehook(5)
    with pytest.raises(TypeError, match="callable"):
        register_multi_grad_hook([leaf()], 5)


def test_F2_remove():
    x = leaf()
    handle, other = x.register_hook(lambda g: g * 10), x.register_hook(lambda g: g * 3)
    handle.remove()
    handle.remove()
    assert tg.grad((x * x).sum(), x)[0].tolist() == [6.0, 12.0]
    with other:
        pass
    assert tg.grad((x * x).sum(), x)[0].tolist() == [2.0, 4.0]


def test_F2_a_hook_may_remove_itself_and_others():
    x, seen = leaf(), []
    handles = [x.register_hook(lambda g, k=k: [seen.append(k), handles[1].remove()][1]) for k in range(3)]
    for _ in range(2):
        tg.grad((x * x).sum(), x)
    assert seen == [0, 1, 2, 0, 2]


def test_F2_a_hook_may_sweep_what_is_being_swept():
    """If neither of the two releases what the other reads."""
    x, z, found = leaf(), leaf(), []
    loss = (x * z * z).sum()
    x.register_hook(lambda g: found.append(tg.grad(loss, z, retain_graph=True)[0].tolist()))
    (g,) = tg.grad(loss, x, retain_graph=True)
    assert g.tolist() == [1.0, 4.0]
    assert found == [[2.0, 8.0]]
    with pytest.raises(TapeBusyError):
        loss.backward()
    assert x.grad is None


@pytest.mark.parametrize("hooked", ["leaf", "result"])
def test_F2_a_hook_may_end_that_a_leaf_requires_grad(hooked):
    x, z = leaf(), leaf()
    y = x * z
    (x if hooked == "leaf" else y).register_hook(lambda g: [z.requires_grad_(False), None][1])
    y.sum().backward()
    assert z.grad is None
    assert x.grad.tolist() == [1.0, 2.0]


def test_F2_hooks_survive_the_death_of_tensor_and_handle():
    x, seen = leaf(), []

    def record():
        y = x * 3
        y.register_hook(lambda g: seen.append("y"))
        return (y * 2).sum()

    z = record()
    gc.collect()
    z.backward()
    assert seen == ["y"]


@pytest.mark.parametrize("kind", ["leaf", "tensor", "pre", "post", "accumulated", "multi"])
def test_F2_an_exception_passes_and_leaves_everything_usable(kind):
    class Expected(Exception):
        pass

    def fail(*grads):
        raise Expected

    x, z = leaf(), leaf()
    y = x * z
    loss = (y * y).sum()
    register = {
        "leaf": lambda: x.register_hook(fail),
        "tensor": lambda: y.register_hook(fail),
        "pre": lambda: y.grad_fn.register_prehook(fail),
        "post": lambda: y.grad_fn.register_hook(fail),
        "accumulated": lambda: x.register_post_accumulate_grad_hook(fail),
        "multi": lambda: register_multi_grad_hook([x, y], fail),
    }[kind]
    handle = register()
    with pytest.raises(Expected):
        loss.backward(retain_graph=True)
    if kind != "accumulated":
        assert x.grad is None
        assert z.grad is None
        with pytest.raises(Expected):
            loss.backward(create_graph=True)
    handle.remove()
    x.grad = z.grad = None
    loss.backward(retain_graph=True)
    assert x.grad.tolist() == [2.0, 16.0]
    assert [g.tolist() for g in tg.grad(loss, [z, x])] == [[2.0, 16.0], [2.0, 16.0]]
    assert tg.is_grad_enabled()


# ---------------------------------------------------------------- F-3 to F-6: order, nodes


def test_F3_retain_grad_sees_the_value_after_all_hooks():
    x = leaf()
    y = x * 3
    y.register_hook(lambda g: g * 2)
    y.retain_grad()
    y.register_hook(lambda g: g * 5)
    y.sum().backward()
    assert y.grad.tolist() == [10.0, 10.0]


def test_F4_a_hook_stays_with_the_history_it_was_registered_on():
    x, seen = leaf(), []
    y = x * 3
    y.register_hook(lambda g: seen.append(g.tolist()))
    y.mul_(5)
    y.register_hook(lambda g: seen.append(g.tolist()))
    y.sum().backward()
    assert seen == [[1.0, 1.0], [5.0, 5.0]]
    assert x.grad.tolist() == [15.0, 15.0]


def test_F4_a_leaf_written_to_keeps_its_hook():
    x = leaf()
    x.register_hook(lambda g: g * 10)
    y = (x * x).sum()
    with tg.no_grad():
        x.mul_(2)
    (y + (x * x).sum()).backward()
    assert x.grad.tolist() == [60.0, 120.0]


@pytest.mark.parametrize("again", [False, True])
def test_F4_a_hook_of_a_leaf_that_was_written_to_before(again):
    x, seen = leaf(), []
    y = (x * x).sum()
    with tg.no_grad():
        x.mul_(2)
    x.register_hook(lambda g: seen.append(g.tolist()) or g * 10)
    x.register_post_accumulate_grad_hook(lambda leaf: seen.append(leaf.grad.tolist()))
    if again:
        y = y + (x * x).sum()
    wanted = [6.0, 12.0] if again else [2.0, 4.0]
    y.backward()
    assert x.grad.tolist() == [10.0 * g for g in wanted]
    assert seen == [wanted, x.grad.tolist()]


@pytest.mark.parametrize("create_graph", [False, True])
def test_F5_order_at_a_node_and_a_leaf(create_graph):
    x, order = leaf(), []
    y = x * 3
    y.grad_fn.register_hook(lambda gi, go: order.append("post"))
    y.grad_fn.register_prehook(lambda go: order.append("pre"))
    y.register_hook(lambda g: order.append("tensor"))
    x.register_post_accumulate_grad_hook(lambda p: order.append("accumulated"))
    x.register_hook(lambda g: order.append("leaf"))
    y.sum().backward(create_graph=create_graph)
    assert order == ["tensor", "pre", "post", "leaf", "accumulated"]


@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize("kind", ["op", "Function"])
def test_F6_nodes(kind, create_graph):
    x, seen = leaf(), []
    y = x * x if kind == "op" else Square.apply(x)
    y.retain_grad()
    y.grad_fn.register_prehook(lambda go: (go[0] * 10,))
    y.grad_fn.register_hook(lambda gi, go: seen.append((len(gi), [g.tolist() for g in go])))
    y.grad_fn.register_hook(lambda gi, go: tuple(g * 2 for g in gi))
    y.sum().backward(create_graph=create_graph)
    assert x.grad.tolist() == [40.0, 80.0]
    assert y.grad.tolist() == [1.0, 1.0]  # what the pre-hook made is the node's alone
    assert seen == [(2 if kind == "op" else 1, [[10.0, 10.0]])]


def leaf_node(x):
    return tg.autograd.graph.get_gradient_edge(x).node


@pytest.mark.parametrize("create_graph", [False, True])
def test_F6_the_node_of_a_leaf(create_graph):
    """Runs in `backward` alone: pre-hooks say what is accumulated, hooks come after that."""
    x, z, seen = leaf(), leaf(), []
    leaf_node(x).register_prehook(lambda go: seen.append(("pre", go[0].tolist())))
    leaf_node(x).register_prehook(lambda go: (go[0] * 10,))
    leaf_node(x).register_hook(lambda gi, go: seen.append((gi, go[0].tolist(), x.grad.tolist())))
    x.register_post_accumulate_grad_hook(lambda p: seen.append("accumulated"))
    x.register_hook(lambda g: seen.append("tensor"))
    assert tg.grad((x * z).sum(), x, create_graph=create_graph)[0].tolist() == [1.0, 2.0]
    assert seen == ["tensor"]
    for k in (1.0, 2.0):
        seen.clear()
        (x * z).sum().backward(create_graph=create_graph)
        assert x.grad.tolist() == [10 * k, 20 * k]
        expected = ((), [10.0, 20.0], x.grad.tolist())
        assert seen == ["tensor", ("pre", [1.0, 2.0]), "accumulated", expected]
        assert z.grad.tolist() == [k, 2 * k]
    if create_graph:
        assert tg.grad(x.grad.sum(), z)[0].tolist() == [20.0, 20.0]


def test_F6_the_node_of_a_leaf_refuses():
    x, z = leaf(), leaf()
    for register, error in (
        (lambda: leaf_node(x).register_prehook(lambda go: (*go, None)), GradientError),
        (lambda: leaf_node(x).register_prehook(lambda go: (tg.ones(3),)), ShapeError),
        (lambda: leaf_node(x).register_prehook(lambda go: 1 / 0), ZeroDivisionError),
    ):
        with register(), pytest.raises(error):
            (x * z).sum().backward()
        assert x.grad is z.grad is None
    with leaf_node(x).register_hook(lambda gi, go: go), pytest.raises(GradientError, match="for 0"):
        (x * z).sum().backward()
    assert x.grad.tolist() == [1.0, 2.0]


@pytest.mark.parametrize("create_graph", [False, True])
def test_F6_gradients_have_the_dtype_and_shape_of_operands(create_graph):
    x, b, seen = leaf(), leaf([[1.0], [2.0]]), []
    for y in (x * np.array([1 + 2j, 3 - 1j]), x + b, x * 2.0):
        y.grad_fn.register_hook(lambda gi, go: seen.append([(g.shape, g.dtype) for g in gi if g is not None]))
        np.real(y * (1 - 2j)).sum().backward(create_graph=create_graph)
    real = np.dtype(float)
    assert seen == [[((2,), real)], [((2,), real), ((2, 1), real)], [((2,), real)]]


def test_F6_wrong_numbers():
    x = leaf()
    for register in (
        lambda node: node.register_hook(lambda gi, go: (*gi, None)),
        lambda node: node.register_prehook(lambda go: (*go, None)),
    ):
        for y in (x * 3, Square.apply(x)):
            register(y.grad_fn)
            with pytest.raises(GradientError, match="gradients for"):
                y.sum().backward()
    assert x.grad is None


def test_F6_a_function_with_several_results_and_constants():
    class Two(Function):
        @staticmethod
        def forward(ctx, x, k, c):
            return x * 2, x * 3

        @staticmethod
        def backward(ctx, ga, gb):
            return ga * 2 + gb * 3, None, None

    x, seen = leaf(), []
    a, b = Two.apply(x, 5, tg.ones(2))
    assert a.grad_fn is b.grad_fn
    a.grad_fn.register_prehook(lambda go: (go[1], go[0]))
    a.grad_fn.register_hook(lambda gi, go: seen.append((gi[0].tolist(), gi[1:], [g.tolist() for g in go])))
    a.sum().backward()
    assert x.grad.tolist() == [3.0, 3.0]
    assert seen == [([3.0, 3.0], (None,), [[0.0, 0.0], [1.0, 1.0]])]


def test_F6_a_replaced_gradient_is_differentiable():
    x = leaf(3.0)
    y = x * x
    y.grad_fn.register_hook(lambda gi, go: tuple(g * g for g in gi))
    (g,) = tg.grad(y * 1, x, create_graph=True)  # each operand gets x**2
    assert g.item() == 18.0
    assert [h.item() for h in tg.grad(g, [x])] == [12.0]


# ---------------------------------------------------------------- F-7: after accumulation


def test_F7_gets_the_leaf_with_its_grad():
    x, seen = leaf(), []
    x.register_post_accumulate_grad_hook(lambda p: seen.append((p is x, p.grad.tolist())))
    (x * x).sum().backward()
    tg.grad((x * x).sum(), x)
    (x * x).sum().backward()
    assert seen == [(True, [2.0, 4.0]), (True, [4.0, 8.0])]


def test_F7_may_step_and_clear():
    x = leaf()

    def step(p):
        with tg.no_grad():
            p.sub_(0.5 * p.grad)
        p.grad = None

    x.register_post_accumulate_grad_hook(step)
    for _ in range(3):
        (x * x).sum().backward()
    assert x.grad is None
    assert x.tolist() == [0.0, 0.0]


def test_F7_errors():
    for t in (leaf() * 1, tg.ones(2)):
        with pytest.raises(GradientError, match="leaf"):
            t.register_post_accumulate_grad_hook(print)
    x = leaf()
    handle = x.register_post_accumulate_grad_hook(lambda p: 5)
    with pytest.raises(TypeError, match="returns None"):
        x.sum().backward()
    handle.remove()
    x.sum().backward()
    assert x.grad.tolist() == [2.0, 2.0]


def test_F7_all_grads_are_there_when_the_first_is_called():
    x, z, seen = leaf(), leaf(), []
    for t in (x, z):
        t.register_post_accumulate_grad_hook(lambda p: seen.append((x.grad is None, z.grad is None)))
    (x * z).sum().backward()
    assert seen == [(False, False)] * 2


# ---------------------------------------------------------------- F-8: several Tensors


def test_F8_all():
    seen, x, z = [], leaf(), leaf()
    a, b = x * 2, z * 3
    handle = register_multi_grad_hook(
        [a, b], lambda gs: seen.append([g if g is None else g.tolist() for g in gs])
    )
    (a * b).sum().backward(retain_graph=True)
    a.sum().backward(retain_graph=True)
    x.sum().backward()
    handle.remove()
    (a * b).sum().backward()
    assert seen == [[[3.0, 6.0], [2.0, 4.0]], [[1.0, 1.0], None]]


def test_F8_any_is_called_once_in_a_sweep():
    seen, x, z = [], leaf(), leaf()
    register_multi_grad_hook([x, z], lambda g: seen.append(g.tolist()), mode="any")
    (x * z).sum().backward()
    z.sum().backward()
    assert len(seen) == 2
    assert seen[1] == [1.0, 1.0]


def test_F8_again_after_a_sweep_that_failed():
    seen, x, z = [], leaf(), leaf()
    register_multi_grad_hook([x, z], lambda gs: seen.append(len(gs)))
    y = x * 1
    handle = y.register_hook(lambda g: 1 / 0)
    loss = (y * z).sum()
    with pytest.raises(ZeroDivisionError):
        loss.backward(retain_graph=True)
    handle.remove()
    loss.backward()
    assert seen == [2]


def test_F8_sweeps_within_sweeps():
    """A backward that differentiates through the same leaves is a sweep of its own."""
    seen, x = [], leaf()

    class E(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, g):
            with tg.enable_grad():
                inner = (x * x).sum()
            return g * tg.grad(inner, x)[0]

    z = leaf()
    register_multi_grad_hook([x, z], lambda gs: seen.append([g is None for g in gs]))
    (E.apply(x) * z).sum().backward()
    assert seen == [[False, True], [False, False]]


def test_F8_errors():
    with pytest.raises(ValueError, match="'some'"):
        register_multi_grad_hook([leaf()], print, mode="some")
    with pytest.raises(GradientError, match="Tensor 1"):
        register_multi_grad_hook([leaf(), tg.ones(2)], print)


# ---------------------------------------------------------------- F-9, F-10: when


def test_F9_only_what_is_on_the_way():
    seen, x, z = [], leaf(), leaf()
    a, b = x * 2, z * 3
    for name, t in (("a", a), ("b", b), ("x", x), ("z", z)):
        t.register_hook(lambda g, name=name: seen.append(name))
    tg.grad((a * b).sum(), x)
    assert seen == ["a", "x"]


@pytest.mark.parametrize("outer", [False, True])
@pytest.mark.parametrize("create_graph", [False, True])
def test_F9_grad_mode_in_hooks_is_create_graph(create_graph, outer):
    seen, x = [], leaf()
    for y in (x * 3, Square.apply(x)):
        y.register_hook(lambda g: seen.append(tg.is_grad_enabled()))
        y.grad_fn.register_prehook(lambda go: seen.append(tg.is_grad_enabled()))
        y.grad_fn.register_hook(lambda gi, go: seen.append(tg.is_grad_enabled()))
        x.register_hook(lambda g: seen.append(tg.is_grad_enabled()))
        x.register_post_accumulate_grad_hook(lambda p: seen.append(tg.is_grad_enabled()))
        leaf_node(x).register_prehook(lambda go: seen.append(tg.is_grad_enabled()))
        leaf_node(x).register_hook(lambda gi, go: seen.append(tg.is_grad_enabled()))
        loss = y.sum()
        with tg.set_grad_enabled(outer):
            tg.grad(loss, x, create_graph=create_graph, retain_graph=True)
            loss.backward(create_graph=create_graph)
            assert tg.is_grad_enabled() is outer
    assert set(seen) == {create_graph}


@pytest.mark.parametrize("create_graph", [False, True])
def test_F10_newest_first_and_leaves_when_they_are_whole(create_graph):
    order, leaves = [], [leaf() for _ in range(3)]
    a, b, c = leaves
    for name, t in zip("abc", leaves, strict=True):
        t.register_hook(lambda g, name=name: order.append(name))
        t.register_post_accumulate_grad_hook(lambda p, name=name: order.append(name.upper()))
    y = a * b
    y.register_hook(lambda g: order.append("y"))
    z = y + c
    z.register_hook(lambda g: order.append("z"))
    z.sum().backward(create_graph=create_graph)
    assert order == ["z", "c", "y", "a", "b", "C", "A", "B"]


def test_F10_a_leaf_used_on_several_tapes_is_called_after_the_last():
    order, x = [], leaf()
    y = x * 2
    y.register_hook(lambda g: order.append("y"))
    z = y
    for _ in range(30):
        z = z * 1.0
    z = z * x
    z.register_hook(lambda g: order.append("z"))
    x.register_hook(lambda g: order.append(g.tolist()))
    z.sum().backward()
    assert order == ["z", "y", [4.0, 8.0]]


@pytest.mark.parametrize("seed", every(range(20), 4))
def test_F10_compiled_sweeps_call_hooks_as_the_engine_does(seed, monkeypatch):
    """In the same order: a random program with hooks of all kinds. A rule in Python may have other bits.

    Also on a tape that was left before, and pruned of values that no rule reads.
    """

    def outcome(prune=False):
        rng, events, seen = np.random.default_rng(seed), [], []
        values = leaves = [leaf(rng.uniform(0.5, 1.5, 3)) for _ in range(4)]

        def note(name, change):
            def hook(*given):
                parts = [part if isinstance(part, (tuple, list)) else [part] for part in given]
                events.append(name)
                seen.extend(0.0 if g is None else g for part in parts for g in part)
                return given[0] * 2 if change and isinstance(given[0], tg.Tensor) else None

            return hook

        for k in range(12):
            a, b = (values[int(q)] for q in rng.integers(len(values), size=2))
            results = [a * b, a + b, np.sin(a), a[::-1] * b, Square.apply(a), np.where(a > 0, a, b), b / 3]
            values = [*values, results[int(rng.integers(len(results)))]]
            if rng.random() < 0.3:
                values[-1].register_hook(note(f"result {k}", rng.random() < 0.5))
            if rng.random() < 0.2 and not values[-1].is_leaf:
                values[-1].grad_fn.register_hook(note(f"post {k}", False))
                values[-1].grad_fn.register_prehook(note(f"pre {k}", False))
        for k, x in enumerate(leaves):
            if rng.random() < 0.7:
                x.register_hook(note(f"leaf {k}", rng.random() < 0.5))
            if rng.random() < 0.5:
                x.register_post_accumulate_grad_hook(
                    lambda p, k=k: [events.append(k), seen.append(p.grad), None][2]
                )
        several = [values[int(q)] for q in rng.integers(len(values), size=3)]
        for mode in ("all", "any"):
            register_multi_grad_hook(several, note(mode, False), mode=mode)
        loss = values[-1].sum() + sum(values[4:]).sum()
        if prune:
            values = values[-1:]
            tapes.leave(loss._tape)
            loss._tape.prune()
        loss.backward(retain_graph=True)
        loss.backward(retain_graph=True)
        found = tg.grad(loss, [*leaves, values[-1]], allow_unused=True)
        seen += [0.0 if g is None else g for g in [*(x.grad for x in leaves), *found]]
        return events, np.concatenate([np.ravel(np.asarray(g)) for g in seen])

    outcome()  # compiles
    events, gradients = outcome()
    events_if_pruned, gradients_if_pruned = outcome(True)
    assert events_if_pruned == events
    np.testing.assert_array_equal(gradients_if_pruned, gradients)
    monkeypatch.setattr(at_once, "gradients", lambda *_: None)
    monkeypatch.setattr(at_once, "backward", lambda *_: None)
    events_of_engine, expected = outcome()
    assert events == events_of_engine
    np.testing.assert_allclose(gradients, expected, rtol=1e-13)


@pytest.mark.skipif(not abi.native() or layout.BOUNDS, reason="the engine in Python sweeps")
@pytest.mark.parametrize("sealed", [False, True])
@pytest.mark.parametrize("kind", ["leaf", "result", "pre", "post", "accumulated", "several", "Function"])
def test_F10_hooks_are_called_from_compiled_sweeps(kind, sealed, tape_length, monkeypatch):
    class Two(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2, x * 3

        @staticmethod
        def backward(ctx, g, h):
            return 2 * g + 3 * h

    x, z, seen = leaf(), leaf(), []
    (x * z).sum().backward()  # loads what sweeps
    if tape_length == MAX_RECORDS:
        monkeypatch.setattr("tapegrad.autograd.sweeps.sweep", lambda *_: pytest.fail("the engine sweeps"))
    a, b = Two.apply(x) if kind == "Function" else (x * 2, x * 3)
    y = a * b * z
    note = lambda *_: seen.append(kind)
    {
        "leaf": lambda: x.register_hook(note), "result": lambda: y.register_hook(note),
        "pre": lambda: y.grad_fn.register_prehook(note), "post": lambda: y.grad_fn.register_hook(note),
        "accumulated": lambda: x.register_post_accumulate_grad_hook(note),
        "several": lambda: register_multi_grad_hook([x, y, z], note), "Function": lambda: note(),
    }[kind]()  # fmt: skip
    total = y.sum()
    if sealed and tape_length == MAX_RECORDS:
        tapes.close(total._tape)
    total.backward()
    assert seen == [kind]
    assert x.grad is not None


# ---------------------------------------------------------------- memory, threads


def test_hooks_die_with_what_they_are_attached_to():
    class Hook:
        def __call__(self, *grads):
            return None

    gc.collect()
    gc.disable()
    try:
        found = []
        for attach in (
            lambda x, y, hook: x.register_hook(hook),
            lambda x, y, hook: y.register_hook(hook),
            lambda x, y, hook: y.grad_fn.register_hook(hook),
            lambda x, y, hook: y.grad_fn.register_prehook(hook),
            lambda x, y, hook: register_multi_grad_hook([x, y], hook),
        ):
            x = leaf()
            y = Square.apply(x) * 2
            hook = Hook()
            found.append(weakref.ref(hook))
            attach(x, y, hook)
            y.sum().backward()
            del x, y, hook
        leaf() * 1
        assert [r() for r in found] == [None] * 5
    finally:
        gc.enable()


def test_two_threads_sweep_a_graph_with_hooks():
    """At the same time, as neither releases anything; the hooks see whole sweeps."""
    x, seen, wrong = leaf(), [], []
    y = Square.apply(x) * x
    y.register_hook(lambda g: seen.append(threading.get_ident()))
    register_multi_grad_hook([x, y], lambda gs: None if all(g is not None for g in gs) else wrong.append(gs))
    loss, done = y.sum(), []

    def work():
        for _ in range(50):
            (g,) = tg.grad(loss, x, retain_graph=True)
            done.append(threading.get_ident())
            if g.tolist() != [3.0, 12.0]:
                wrong.append(g)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong
    assert sorted(seen) == sorted(done)
    assert done


def test_each_thread_calls_the_hooks_of_its_own_sweeps():
    wrong = []

    def work(k):
        x, seen = leaf(1.0 + k), []
        x.register_hook(lambda g: seen.append(g.item()))
        register_multi_grad_hook([x], lambda gs: seen.append(gs[0].item()))
        for _ in range(50):
            Square.apply(x).backward()
        if seen != [2.0 * (1 + k)] * 100:
            wrong.append(seen)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


# ---------------------------------------------------------------- hooks where rules are compiled

RULES = {
    "elementwise": lambda x: np.exp(x), "two operands": lambda x: x * np.sin(x), "part": lambda x: x[1:],
    "sum": lambda x: np.sum(x, axis=0), "product": lambda x: x @ x, "reshape": lambda x: np.reshape(x, -1),
    "rule in Python": lambda x: np.linalg.cholesky(x @ np.conj(x).T + 10 * np.eye(3, dtype=x.dtype)),
    "number": lambda x: np.sum(x) * np.sum(x),
}  # fmt: skip
TWICE = {
    "tensor": lambda y: y.register_hook(lambda g: g * 2),
    "pre": lambda y: y.grad_fn.register_prehook(lambda gs: (gs[0] * 2,)),
    "post": lambda y: y.grad_fn.register_hook(lambda gs, _: tuple(g if g is None else g * 2 for g in gs)),
    "looks": lambda y: y.register_hook(lambda g: None),
}  # fmt: skip


@pytest.mark.parametrize(
    ("rule", "hook", "dtype"),
    thinned(itertools.product(RULES, TWICE, "fdFD"), lambda rule, hook, dtype: dtype == "d"),
)
def test_a_hook_s_cotangent_goes_through_the_rule(rule, hook, dtype):
    """As one twice as large, or the same, to the bit; also where the result's gradient is wanted."""
    x = tg.tensor(np.arange(1.0, 10.0).reshape(3, 3).astype(dtype) / 10, requires_grad=True)
    factor = 1 if hook == "looks" else 2

    def found(hooked, wanted):
        y = RULES[rule](x * 1.0)
        scale = 1.0 if hooked else factor
        if hooked:
            TWICE[hook](y)
        return [g.numpy() for g in tg.grad(y * 3.0, [x, y][:wanted], np.full(y.shape, scale, dtype))]

    for _ in range(2):  # then all is compiled
        alone, both, plain = found(True, 1), found(True, 2), found(False, 1)
    np.testing.assert_array_equal(alone[0], plain[0])
    np.testing.assert_array_equal(both[0], plain[0])
    seen = 6.0 if hook == "tensor" else 3.0
    np.testing.assert_array_equal(both[1], np.full(both[1].shape, seen, dtype))
