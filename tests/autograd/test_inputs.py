"""The `inputs` of grad and backward: cases C-1 to C-11."""

from collections import OrderedDict
from types import MappingProxyType

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.errors import GradientError, UnusedInputError

pytestmark = pytest.mark.usefixtures("tape_length")


def leaf(data=(1.0, 2.0), dtype=float):
    return tg.tensor(data, dtype=dtype, requires_grad=True)


def values(tensors):
    return [None if t is None else t.tolist() for t in tensors]


@pytest.mark.parametrize("empty", [[], (), {}])
def test_C1_no_inputs_raise(empty):
    x = leaf()
    y = (x * x).sum()
    with pytest.raises(GradientError, match="inputs is empty"):
        y.backward(inputs=empty)
    with pytest.raises(RuntimeError, match="inputs is empty"):
        tg.grad(y, empty)
    with pytest.raises(RuntimeError, match="inputs is empty"):
        tg.grad(y, empty, allow_unused=True)
    assert x.grad is None


def test_C2_a_single_tensor_is_accepted():
    x, z = leaf(), leaf()
    (x * z).sum().backward(inputs=x)
    assert x.grad.tolist() == [1.0, 2.0]
    assert z.grad is None
    found = tg.grad((x * z).sum(), x)
    assert type(found) is tuple
    assert values(found) == [[1.0, 2.0]]


@pytest.mark.parametrize("kind", [list, tuple])
def test_C2_other_leaves_keep_their_grad(kind):
    x, z = leaf(), leaf()
    z.grad = tg.tensor([7.0, 7.0])
    (x * z).sum().backward(inputs=kind([x]))
    assert x.grad.tolist() == [1.0, 2.0]
    assert z.grad.tolist() == [7.0, 7.0]


@pytest.mark.parametrize("create_graph", [False, True])
def test_C2_dict_of_inputs(create_graph):
    x, z, w = leaf(), leaf((3.0, 4.0)), leaf()
    y = (x * z).sum()
    found = tg.grad(y, {"b": z, 7: x}, create_graph=create_graph, retain_graph=True)
    assert type(found) is dict
    assert list(found) == ["b", 7]
    assert found["b"].tolist() == [1.0, 2.0]
    assert found[7].tolist() == [3.0, 4.0]
    found = tg.grad(y, {"x": x, "w": w}, allow_unused=True, retain_graph=True)
    assert found["w"] is None
    y.backward(inputs={"only": x})
    assert x.grad.tolist() == [3.0, 4.0]
    assert z.grad is None


@pytest.mark.parametrize("kind", [OrderedDict, MappingProxyType])
def test_C2_other_mappings_raise_TypeError(kind):
    x = leaf()
    y = (x * x).sum()
    with pytest.raises(TypeError, match=kind.__name__):
        tg.grad(y, kind({"x": x}))
    with pytest.raises(TypeError, match=kind.__name__):
        y.backward(inputs=kind({"x": x}))
    assert x.grad is None


@pytest.mark.parametrize("create_graph", [False, True])
def test_C3_result_as_input_of_backward_retains_its_grad(create_graph):
    x = leaf()
    a = x * 3.0
    y = (a * a).sum()
    y.backward(inputs=[a], retain_graph=True, create_graph=create_graph)
    assert a.grad.tolist() == [6.0, 12.0]
    assert a.retains_grad
    assert x.grad is None
    y.backward(inputs=[a, x], create_graph=create_graph)
    assert a.grad.tolist() == [12.0, 24.0]
    assert x.grad.tolist() == [18.0, 36.0]


def test_C3_root_as_its_own_input():
    x = leaf()
    y = (x * x).sum()
    y.backward(inputs=[y])
    assert y.grad.item() == 1.0
    assert x.grad is None
    y.backward()  # nothing below was executed
    assert x.grad.tolist() == [2.0, 4.0]


@pytest.mark.parametrize("create_graph", [False, True])
def test_C4_unused_input_raises(create_graph):
    x, z = leaf(), leaf()
    y = (x * x).sum()
    unused = [z, z * 2.0, x * 2.0, y * 2.0]
    for other in unused:
        with pytest.raises(UnusedInputError, match=r"input 1.*allow_unused=True") as found:
            tg.grad(y, [x, other], create_graph=create_graph)
        assert isinstance(found.value, RuntimeError)
    for other in unused:
        y.backward(inputs=[other], retain_graph=True, create_graph=create_graph)
        assert other.grad is None
    assert x.grad is None


@pytest.mark.parametrize("create_graph", [False, True])
def test_C5_allow_unused_gives_none(create_graph):
    x, z = leaf(), leaf()
    y = (x * x).sum()
    found = tg.grad(y, [z, x, z * 1.0], allow_unused=True, create_graph=create_graph)
    assert values(found) == [None, [2.0, 4.0], None]


@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize("allow_unused", [None, True])
@pytest.mark.parametrize("shape", [(), (3,), (2, 0)])
def test_C5_materialize_grads_gives_zeros(create_graph, allow_unused, shape):
    x = leaf()
    z = leaf(np.ones(shape), np.float32)
    found = tg.grad(
        (x * x).sum(), [x, z], materialize_grads=True, allow_unused=allow_unused, create_graph=create_graph
    )
    assert found[0].tolist() == [2.0, 4.0]
    assert found[1].tolist() == np.zeros(shape).tolist()
    assert found[1].shape == shape
    assert found[1].dtype == np.float32
    assert found[1].requires_grad is create_graph


def test_C5_materialize_grads_contradicts_allow_unused_false():
    x = leaf()
    y = (x * x).sum()
    with pytest.raises(ValueError, match="allow_unused"):
        tg.grad(y, x, materialize_grads=True, allow_unused=False)
    assert tg.grad(y, x)[0].tolist() == [2.0, 4.0]


@pytest.mark.parametrize("allow_unused", [None, True])
def test_C6_input_that_does_not_require_grad_raises(allow_unused):
    x, c = leaf(), tg.tensor([3.0, 4.0])
    y = (x * c).sum()
    for other in (c, x.detach(), y.detach()):
        with pytest.raises(GradientError, match=r"inputs\[1\].*does not require grad"):
            tg.grad(y, [x, other], allow_unused=allow_unused)
        with pytest.raises(RuntimeError, match=r"inputs\[0\]"):
            y.backward(inputs=[other])
    assert c.grad is None
    assert x.grad is None


@pytest.mark.parametrize("create_graph", [False, True])
def test_C7_duplicates(create_graph):
    x = leaf()
    y = (x * x).sum()
    assert values(tg.grad(y, [x, x], create_graph=create_graph, retain_graph=True)) == [[2.0, 4.0]] * 2
    y.backward(inputs=[x, x], create_graph=create_graph)
    assert x.grad.tolist() == [2.0, 4.0]


@pytest.mark.parametrize("create_graph", [False, True])
def test_C7_duplicates_of_results(create_graph):
    x = leaf()
    a = x * 1.0
    y = (a * a).sum()
    found = tg.grad(y, [a, x, a], create_graph=create_graph, retain_graph=True)
    assert values(found) == [[2.0, 4.0]] * 3
    y.backward(inputs=[a, a], create_graph=create_graph)
    assert a.grad.tolist() == [2.0, 4.0]


@pytest.mark.parametrize("bad", [None, 1.0, "x", np.ones(2), object(), [1.0]])
def test_C8_input_that_is_no_tensor_raises(bad):
    x = leaf()
    y = (x * x).sum()
    for call in (
        lambda: tg.grad(y, [x, bad]),
        lambda: tg.grad(y, [x, bad], allow_unused=True),
        lambda: tg.grad(y, {"x": x, "bad": bad}),
        lambda: y.backward(inputs=[x, bad]),
    ):
        with pytest.raises(RuntimeError, match=rf"inputs\[1\].*{type(bad).__name__}"):
            call()
    assert x.grad is None


@pytest.mark.parametrize("bad", [None, 1.0, "x", np.ones(2), object()])
def test_C8_inputs_that_are_no_sequence_raise_TypeError(bad):
    x = leaf()
    y = (x * x).sum()
    with pytest.raises(TypeError, match=type(bad).__name__):
        tg.grad(y, bad)
    if bad is not None:
        with pytest.raises(TypeError, match=type(bad).__name__):
            y.backward(inputs=bad)
    assert x.grad is None


@pytest.mark.parametrize("create_graph", [False, True])
def test_C9_order_is_kept_with_results_and_leaves_mixed(create_graph):
    x, z = leaf(2.0), leaf(5.0)
    a = x * x
    b = a * z
    y = b * b
    # b = 20, dy/db = 40, dy/da = 200, dy/dx = 800, dy/dz = 160
    wanted = {id(x): 800.0, id(z): 160.0, id(a): 200.0, id(b): 40.0, id(y): 1.0}
    for order in ([x, a, z, b, y], [y, b, z, a, x], [b, x, y, a, z]):
        found = tg.grad(y, order, create_graph=create_graph, retain_graph=True)
        assert values(found) == [wanted[id(t)] for t in order]


def test_C10_view_off_the_path_is_unused():
    x = leaf()
    y = x * 3.0
    v = y[0]
    w = y[:1]
    loss = (y * y).sum()
    for view in (v, w, y.reshape(2, 1)):
        with pytest.raises(UnusedInputError):
            tg.grad(loss, view)
        assert tg.grad(loss, view, allow_unused=True, retain_graph=True) == (None,)
    assert values(tg.grad(loss, y, retain_graph=True)) == [[6.0, 12.0]]
    assert values(tg.grad((v * v) + loss, [v, y])) == [6.0, [12.0, 12.0]]


@pytest.mark.parametrize("create_graph", [False, True])
def test_C11_requires_grad_turned_off_after_the_graph_was_built(create_graph):
    x, z = leaf(), leaf()
    y = (x * z).sum()
    x.requires_grad_(False)
    y.backward(create_graph=create_graph)
    assert x.grad is None
    assert z.grad.tolist() == [1.0, 2.0]
    with pytest.raises(RuntimeError):
        tg.grad(y, x)


@pytest.mark.parametrize("create_graph", [False, True])
def test_C11_requires_grad_turned_on_after_a_use(create_graph):
    c, w = tg.tensor([3.0, 4.0]), leaf()
    early = (c * w).sum()
    c.requires_grad_()
    late = (c * w).sum()
    (early + 10.0 * late).backward(create_graph=create_graph)
    assert c.grad.tolist() == [10.0, 20.0]
    assert w.grad.tolist() == [33.0, 44.0]
    with pytest.raises(UnusedInputError):
        tg.grad(early, c)


def test_C11_constant_used_before_is_constant_for_second_derivatives():
    c, x = tg.tensor(3.0), leaf(2.0)
    y = c * x * x
    c.requires_grad_()
    (g,) = tg.grad(y, x, create_graph=True)
    assert g.item() == 12.0
    assert tg.grad(g, c, allow_unused=True) == (None,)


def test_gradients_of_one_call_depend_on_each_other():
    """Also where one is copied, as that of a sum's operand is: the sweep goes on from what is returned."""
    x = tg.tensor(np.arange(1.0, 7.0).reshape(2, 3), requires_grad=True)
    for way in (lambda a: a, lambda a: a.T, lambda a: a[:, ::-1], lambda a: a.reshape(-1)):
        y = way(x * 3)
        by_y, by_x = tg.grad(y.sum() ** 2, [y, x], create_graph=True)
        assert np.all(by_y.detach() == 2 * y.detach().sum())
        (found,) = tg.grad(by_x.sum(), by_y)
        assert np.array_equal(found, np.full(y.shape, 3.0))
        y = way(x * 3)
        x.grad = None
        y.retain_grad()
        (y.sum() ** 2).backward(create_graph=True)
        (found,) = tg.grad(x.grad.sum(), y.grad)
        assert np.array_equal(found, np.full(y.shape, 3.0))


def test_a_function_is_told_where_it_belongs():
    x = tg.tensor(1.0, requires_grad=True)
    for arguments in ((np.sin,), (lambda x: x, np.ones(2)), (lambda x: x, x)):
        with pytest.raises(TypeError, match=r"tg\.func\.grad"):
            tg.grad(*arguments)
