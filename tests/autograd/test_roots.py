"""Roots and their gradients: cases A-1 to A-15."""

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.errors import DTypeError, GradientError, ShapeError

pytestmark = pytest.mark.usefixtures("tape_length")


def leaf(data=(1.0, 2.0), dtype=float):
    return tg.tensor(data, dtype=dtype, requires_grad=True)


def values(tensors):
    return [None if t is None else t.tolist() for t in tensors]


def run_backward(y, gradient=None):
    tg.backward(y, gradient)


def run_method(y, gradient=None):
    y.backward(gradient)


def run_grad(y, gradient=None, x=None):
    tg.grad(y, leaf() if x is None else x, gradient, allow_unused=True)


RUNNERS = pytest.mark.parametrize("run", [run_backward, run_method, run_grad])


# ----------------------------------------------------------------


@RUNNERS
def test_A1_several_elements_need_a_gradient(run):
    x = leaf()
    with pytest.raises(RuntimeError, match=r"\(2,\).*one element") as found:
        run(x * 2)
    assert isinstance(found.value, ValueError)
    assert x.grad is None


@RUNNERS
def test_A1_no_elements_need_a_gradient(run):
    x = leaf(np.zeros((0, 3)))
    with pytest.raises(RuntimeError, match=r"\(0, 3\)"):
        run(x * 2)


@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (1, 1, 1)])
def test_A1_one_element_of_any_shape_has_an_implicit_gradient(shape):
    x = leaf(np.full(shape, 3.0))
    (g,) = tg.grad(x * x, x)
    assert g.shape == shape
    assert g.tolist() == np.full(shape, 6.0).tolist()
    (x * x).backward()
    assert x.grad.shape == shape
    assert x.grad.tolist() == np.full(shape, 6.0).tolist()


def test_A2_a_complex_root_has_no_implicit_gradient():
    z = tg.tensor([1 + 2j], requires_grad=True)
    for create_graph in (False, True):
        with pytest.raises(GradientError, match="complex"):
            tg.grad(z * z, z, create_graph=create_graph)


# ----------------------------------------------------------------


@RUNNERS
@pytest.mark.parametrize("shape", [(1, 2), (), (1,), (3,), (2, 1), (2, 2), (0,)])
def test_A3_gradient_of_another_shape_raises(run, shape):
    x = leaf()
    with pytest.raises(ShapeError) as found:
        run(x * 2, tg.tensor(np.ones(shape)))
    assert isinstance(found.value, RuntimeError)
    assert isinstance(found.value, ValueError)
    for part in ("gradient 0", str(shape), "(2,)"):
        assert part in str(found.value)
    assert x.grad is None


def test_A3_message_names_the_position():
    x = leaf()
    with pytest.raises(ShapeError, match="gradient 1"):
        tg.grad([x * 2, x * 3], x, [np.ones(2), np.ones(3)])


def test_A3_nothing_is_broadcast_from_a_number():
    x = leaf()
    with pytest.raises(ShapeError):
        (x * 2).backward(1.0)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_A4_each_tensor_needs_one_gradient(count):
    x = leaf()
    given = [np.ones(2)] * count
    for call in (
        lambda: tg.backward([x * 2, x * 3], given),
        lambda: tg.grad([x * 2, x * 3], x, given),
    ):
        with pytest.raises(GradientError, match=rf"{count} gradients for 2") as found:
            call()
        assert isinstance(found.value, RuntimeError)
    assert x.grad is None


def test_A4_surplus_gradients_raise_for_a_single_tensor():
    x = leaf()
    with pytest.raises(RuntimeError):
        (x * 2).backward([np.ones(2), np.ones(2)])


# ----------------------------------------------------------------


@RUNNERS
@pytest.mark.parametrize("bad", ["text", b"bytes", {}, {1.0}, object(), range(2), np.ones, iter([])])
def test_A5_gradient_of_no_numeric_kind_raises_TypeError(run, bad):
    x = leaf()
    with pytest.raises(TypeError, match=type(bad).__name__):
        run(x * 2, bad)
    assert x.grad is None


def test_A5_nested_list_is_no_gradient():
    x = leaf()
    with pytest.raises(TypeError, match="list"):
        (x * 2).backward([[1.0, 1.0]])


@pytest.mark.parametrize(
    "given",
    [np.array([3.0, 4.0]), tg.tensor([3.0, 4.0]), np.array([3, 4]), np.array([3, 4], np.float32)],
    ids=["ndarray", "Tensor", "int", "float32"],
)
def test_A5_arrays_are_gradients(given):
    x = leaf()
    (x * x).backward(given)
    assert x.grad.tolist() == [6.0, 16.0]
    assert x.grad.dtype == np.float64


@pytest.mark.parametrize("given", [3, 3.0, np.float32(3), np.int8(3), np.array(3.0), tg.tensor(3.0)])
def test_A5_numbers_are_gradients_of_scalars(given):
    x = leaf()
    (x * x).sum().backward(given)
    assert x.grad.tolist() == [6.0, 12.0]


def test_A6_none_is_one_for_a_scalar():
    x = leaf()
    (g,) = tg.grad([x.sum(), x * x], x, [None, np.array([1.0, 10.0])])
    assert g.tolist() == [3.0, 41.0]


def test_A6_none_for_several_elements_names_the_position():
    x = leaf()
    with pytest.raises(RuntimeError, match="root 1"):
        tg.grad([x.sum(), x * x], x, [None, None])


@RUNNERS
@pytest.mark.parametrize("gradient", [None, 1.0])
@pytest.mark.parametrize("make", ["constant", "detached", "no_grad"])
def test_A7_root_that_does_not_require_grad_raises(run, gradient, make):
    x = leaf()
    if make == "no_grad":
        with tg.no_grad():
            root = (x * x).sum()
    else:
        root = {"constant": tg.tensor(2.0), "detached": (x * x).sum().detach()}[make]
    with pytest.raises(GradientError, match=r"root 0.*does not require grad"):
        run(root, gradient)
    assert x.grad is None


def test_A7_index_of_the_root_is_named_and_the_others_do_not_run():
    x = leaf()
    y = (x * x).sum()
    for call in (
        lambda: tg.backward([y, tg.tensor(1.0)]),
        lambda: tg.grad([y, tg.tensor(1.0)], x, allow_unused=True),
        lambda: tg.grad([y, tg.tensor(1.0)], x, [1.0, 1.0], allow_unused=True),
    ):
        with pytest.raises(RuntimeError, match="root 1"):
            call()
    assert x.grad is None
    y.backward()  # nothing was freed
    assert x.grad.tolist() == [2.0, 4.0]


# ----------------------------------------------------------------


def test_A8_leaf_as_root():
    x = leaf(3.0)
    x.backward()
    assert x.grad.item() == 1.0
    x.backward(5.0)
    assert x.grad.item() == 6.0
    assert values(tg.grad(x, x)) == [1.0]


def test_A8_vector_leaf_as_root():
    x = leaf()
    with pytest.raises(RuntimeError):
        x.backward()
    x.backward(np.array([3.0, 4.0]))
    assert x.grad.tolist() == [3.0, 4.0]
    assert values(tg.grad(x, x, np.array([5.0, 6.0]))) == [[5.0, 6.0]]


def test_A8_leaf_and_result_as_roots():
    x = leaf(3.0)
    assert values(tg.grad([x, x * x], x)) == [7.0]
    assert values(tg.grad([x, x * x], x, create_graph=True)) == [7.0]
    tg.backward([x * x, x, x])
    assert x.grad.item() == 8.0


def test_A8_other_leaf_is_unused():
    x, z = leaf(3.0), leaf(4.0)
    with pytest.raises(RuntimeError):
        tg.grad(x, z)
    assert tg.grad(x, z, allow_unused=True) == (None,)
    tg.backward(x, inputs=[z])
    assert x.grad is None
    assert z.grad is None


@pytest.mark.parametrize("create_graph", [False, True])
def test_A9_same_root_twice_adds(create_graph):
    x = leaf()
    y = x * x
    assert values(tg.grad([y.sum()] * 2, x, create_graph=create_graph, retain_graph=True)) == [[4.0, 8.0]]
    y = x * x
    v = np.array([1.0, -1.0])
    assert values(tg.grad([y, y], x, [v, 2 * v], create_graph=create_graph)) == [[6.0, -12.0]]


@pytest.mark.parametrize("create_graph", [False, True])
def test_A9_root_that_another_root_was_computed_from(create_graph):
    x = leaf(3.0)
    a = x * x
    b = 2.0 * a
    assert values(tg.grad([a, b], [a, b, x], create_graph=create_graph)) == [3.0, 1.0, 18.0]
    tg.backward([2.0 * x * x, x * x])
    assert x.grad.item() == 18.0


def test_A10_list_of_one_gradient():
    x = leaf()
    (x * x).backward([tg.tensor([1.0, 10.0])])
    assert x.grad.tolist() == [2.0, 40.0]
    (x * x).backward(gradient=(np.array([1.0, 10.0]),))
    assert x.grad.tolist() == [4.0, 80.0]


@pytest.mark.parametrize("bad", [None, 1.0, np.ones(()), "y", {}, object()])
def test_A10_root_that_is_no_tensor_raises_TypeError(bad):
    x = leaf()
    for call in (
        lambda: tg.backward(bad),
        lambda: tg.backward([bad]),
        lambda: tg.backward([(x * x).sum(), bad]),
        lambda: tg.grad(bad, x),
        lambda: tg.grad([bad], x),
    ):
        with pytest.raises(TypeError, match=type(bad).__name__):
            call()
    assert x.grad is None


def test_A11_no_roots():
    x = leaf()
    assert tg.backward([]) is None
    assert tg.backward(()) is None
    assert x.grad is None
    with pytest.raises(RuntimeError):
        tg.grad([], [x])
    assert tg.grad([], [x], allow_unused=True) == (None,)
    assert values(tg.grad([], [x], materialize_grads=True)) == [[0.0, 0.0]]


# ----------------------------------------------------------------


@RUNNERS
@pytest.mark.parametrize("given", [1j, np.array(1j), np.complex64(1j)])
def test_A12_gradient_of_a_foreign_dtype_raises(run, given):
    x = leaf()
    with pytest.raises(DTypeError, match=str(np.asarray(given).dtype)) as found:
        run((x * x).sum(), given)
    assert isinstance(found.value, RuntimeError)
    assert isinstance(found.value, TypeError)
    assert x.grad is None


@pytest.mark.parametrize("bad", ["U1", "O", "M8[s]"])
def test_A12_gradient_that_holds_no_numbers_raises(bad):
    x = leaf()
    with pytest.raises(DTypeError):
        (x * x).backward(np.zeros(2, bad))


@pytest.mark.parametrize("dtype", [np.int64, np.float64, np.int8, bool, np.float16, ">f8"])
@pytest.mark.parametrize("create_graph", [False, True])
def test_A12_gradient_is_cast_to_the_dtype_of_its_root(dtype, create_graph):
    x = leaf(dtype=np.float32)
    y = x * x
    (g,) = tg.grad(y, x, np.array([1, 0], dtype), create_graph=create_graph, retain_graph=True)
    assert g.dtype == np.float32
    assert g.tolist() == [2.0, 0.0]
    if np.dtype(dtype).isnative and np.dtype(dtype) != np.float16:
        (g,) = tg.grad(y, x, tg.tensor([1, 0], dtype), create_graph=create_graph)
        assert g.dtype == np.float32
        assert g.tolist() == [2.0, 0.0]


def test_A13_the_method_has_no_older_name_of_its_argument():
    """That `backward` has, is in test_variables.py."""
    x = leaf()
    with pytest.raises(TypeError):
        (x * x).sum().backward(grad_variables=None)
    assert x.grad is None


def test_A14_result_is_differentiable_by_the_gradient_given():
    x = leaf()
    v = tg.ones(2, requires_grad=True)
    (g,) = tg.grad(x * x, x, v, create_graph=True)
    assert g.requires_grad
    assert g.tolist() == [2.0, 4.0]
    assert values(tg.grad(g.sum(), [v, x])) == [[2.0, 4.0], [2.0, 2.0]]


def test_A14_twice_transposed_is_the_tangent():
    x = leaf()
    v = tg.zeros(2, requires_grad=True)
    tangent = np.array([3.0, -1.0])
    (g,) = tg.grad(np.sin(x) * x, x, v, create_graph=True)
    (moved,) = tg.grad(g, v, tangent)
    wanted = (np.cos(x.detach().numpy()) * [1.0, 2.0] + np.sin([1.0, 2.0])) * tangent
    np.testing.assert_allclose(moved.numpy(), wanted, rtol=1e-14)


def test_A14_without_create_graph_the_result_has_no_history():
    x = leaf()
    v = tg.ones(2, requires_grad=True)
    (g,) = tg.grad(x * x, x, v)
    assert not g.requires_grad
    assert g.is_leaf
    assert v.grad is None


def test_A14_through_a_leaf_root():
    x = leaf()
    v = tg.tensor([3.0, 4.0], requires_grad=True)
    (g,) = tg.grad(x, x, v, create_graph=True)
    assert g.tolist() == [3.0, 4.0]
    assert values(tg.grad((g * g).sum(), v)) == [[6.0, 8.0]]


def test_A14_under_no_grad():
    """Cotangents that are summed or converted keep their history where the sweep is recorded."""
    x, v = leaf((1.0, 2.0), np.float32), leaf()
    y = x * x
    with tg.no_grad():
        (g,) = tg.grad([y, y], x, [v, v], create_graph=True)
        (h,) = tg.grad([x, x], x, [v, v], create_graph=True)
    assert values(tg.grad(g.sum(), v)) == [[4.0, 8.0]]
    assert values(tg.grad(h.sum(), v)) == [[2.0, 2.0]]


def test_A15_batched_gradients():
    x = leaf()
    (g,) = tg.grad(x * x, x, np.eye(2), is_grads_batched=True, create_graph=True)
    assert values([g]) == [[[2.0, 0.0], [0.0, 4.0]]]
    assert values(tg.grad(g.sum(), x)) == [[2.0, 2.0]]


def test_A15_batches_of_several_outputs_and_inputs():
    x, z = leaf(), leaf()
    outputs = [(x * z).sum(), x * x]
    seeds = [np.array([1.0, 0.0, 2.0]), tg.tensor([[0.0, 0.0], [1.0, 2.0], [1.0, 0.0]])]
    found = tg.grad(outputs, [x, z, x], seeds, is_grads_batched=True, retain_graph=True)
    single = [
        tg.grad(outputs, [x, z, x], [s[k] for s in seeds], retain_graph=True, materialize_grads=True)
        for k in range(3)
    ]
    for k, g in enumerate(found):
        assert values([g]) == [[values([row[k]])[0] for row in single]]
    found[0][...] = 7.0  # nobody else's memory
    assert values([found[2]]) != values([found[0]])


def test_A15_batches_of_roots_that_are_leaves_and_of_unused_inputs():
    x, z = leaf(), leaf()
    seeds = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    found, none = tg.grad(x, [x, z], seeds, is_grads_batched=True, allow_unused=True)
    assert values([found]) == [seeds.tolist()] and none is None
    seeds[0] = 0.0
    assert values([found])[0][0] == [1.0, 2.0]
    assert tg.grad(x, z, seeds, is_grads_batched=True, materialize_grads=True)[0].shape == (3, 2)
    assert tg.grad(x * x, x, np.ones((0, 2)), is_grads_batched=True)[0].shape == (0, 2)


@pytest.mark.parametrize("seeds", [None, 1.0, np.ones(2), np.ones((3, 1)), [np.ones((3, 2)), np.ones(2)]])
def test_A15_batches_that_do_not_fit(seeds):
    x = leaf()
    outputs = [x * x, x.sum()] if isinstance(seeds, list) else x * x
    with pytest.raises(RuntimeError):
        tg.grad(outputs, x, seeds, is_grads_batched=True)
    tg.grad((x * x).sum(), x)


def test_A15_a_batch_frees_what_it_read():
    x = leaf()
    y = x * x
    tg.grad(y, x, np.eye(2), is_grads_batched=True)
    with pytest.raises(RuntimeError, match="retain_graph"):
        tg.grad(y, x, np.eye(2), is_grads_batched=True)
