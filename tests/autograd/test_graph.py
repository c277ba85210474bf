"""The graph as nodes: cases F-11, F-12, and what E-7, E-8, E-13 say of them."""

import gc

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.autograd import Function
from tapegrad.autograd.graph import GradientEdge, Node, get_gradient_edge
from tapegrad.errors import GradientError, GraphFreedError


def leaf(data=(1.0, 2.0)):
    return tg.tensor(data, dtype=float, requires_grad=True)


class Pair(Function):
    @staticmethod
    def forward(ctx, x, k, c):
        ctx.save_for_backward(x)
        ctx.k = k
        return x * 2, x * 3

    @staticmethod
    def backward(ctx, ga, gb):
        return ga * 2 + gb * 3, None, None


NAMES = {
    "AddBackward": lambda x: x + x,
    "SubBackward": lambda x: x - 1,
    "MulBackward": lambda x: x * 2,
    "DivBackward": lambda x: x / 2,
    "PowBackward": lambda x: x**3,
    "ExpBackward": np.exp,
    "NegBackward": lambda x: -x,
    "AbsBackward": abs,
    "SelectBackward": lambda x: x[0],
    "SumBackward": np.sum,
    "CatBackward": lambda x: np.concatenate([x, x]),
    "PairBackward": lambda x: Pair.apply(x, 1, None)[0],
    "CopySlicesBackward": lambda x: written(x),
}


def written(x):
    y = tg.zeros(2)
    y[:1] = x[:1]
    return y


@pytest.mark.parametrize("name", NAMES)
def test_F11_names(name):
    y = NAMES[name](leaf())
    assert y.grad_fn.name() == name
    assert repr(y.grad_fn) == f"<{name}>"
    assert f"grad_fn=<{name}>" in repr(y)  # E-13


def test_E13_repr_of_leaves():
    assert repr(leaf()) == "tensor([1., 2.], requires_grad=True)"
    assert repr(tg.ones(2)) == "tensor([1., 1.])"
    assert "dtype=float32" in repr(tg.ones(2, dtype=np.float32))


def test_E7_a_constant_becomes_a_result():
    x, c = leaf(), tg.zeros(2)
    assert c.grad_fn is None
    c += x
    assert c.grad_fn.name() == "AddBackward"
    c.zero_()
    assert c.requires_grad
    assert c.grad_fn is not None


def test_E8_in_place_gives_new_nodes():
    x = leaf()
    y = x * 1
    v = y[:1]
    node, of_view = y.grad_fn, v.grad_fn
    v.mul_(10)
    assert y.grad_fn.name() == "CopySlicesBackward"
    assert y.grad_fn is not node
    assert v.grad_fn is not of_view
    y.mul_(2)
    again = v.grad_fn
    y.mul_(2)
    assert v.grad_fn is not again


@pytest.mark.usefixtures("tape_length")
def test_F11_next_functions_lead_to_the_leaves():
    x, z = leaf(), leaf()
    y = (x * z).sum() + 3.0
    node = y.grad_fn
    assert isinstance(node, Node)
    (total, i), (constant, j) = node.next_functions
    assert (i, constant, j) == (0, None, 0)
    ((product, _),) = total.next_functions
    assert [
        (n.name(), n.variable is t, k) for (n, k), t in zip(product.next_functions, (x, z), strict=True)
    ] == [("AccumulateGrad", True, 0)] * 2
    assert product.next_functions[0][0].next_functions == ()
    assert x.grad_fn is None


@pytest.mark.usefixtures("tape_length")
def test_F11_nodes_are_the_same_objects():
    x = leaf()
    y = x * 2
    z = y * y
    assert y.grad_fn is y.grad_fn
    assert z.grad_fn.next_functions[0][0] is y.grad_fn is z.grad_fn.next_functions[1][0]
    assert y.grad_fn.next_functions[0][0] is (x + 1).grad_fn.next_functions[0][0]
    a, b = Pair.apply(x, 1, None)
    assert a.grad_fn is b.grad_fn
    assert (a * b).grad_fn.next_functions == ((a.grad_fn, 0), (a.grad_fn, 1))


def test_F11_results_of_a_function_and_its_constants():
    x = leaf()
    a, _ = Pair.apply(x, 5, tg.ones(2))
    (first, i), constant = a.grad_fn.next_functions
    assert first.variable is x
    assert i == 0
    assert constant == (None, 0)
    assert a.grad_fn.k == 5
    assert a.grad_fn.saved_tensors == (x,) or a.grad_fn.saved_tensors[0] is x


@pytest.mark.usefixtures("tape_length")
def test_F11_metadata_persists():
    x = leaf()
    y = x * 2
    y.grad_fn.metadata["a"] = [1]
    gc.collect()
    assert y.grad_fn.metadata == {"a": [1]}
    (y * 3).sum().backward()
    assert y.grad_fn.metadata == {"a": [1]}
    a, b = Pair.apply(x, 1, None)
    a.grad_fn.metadata["b"] = 2
    assert b.grad_fn.metadata == {"b": 2}
    (a.grad_fn.next_functions[0][0]).metadata["leaf"] = 3
    assert y.grad_fn.next_functions[0][0].metadata == {"leaf": 3}


@pytest.mark.usefixtures("tape_length")
def test_F11_saved_values():
    x, z = leaf(), leaf((3.0, 4.0))
    node = (x * z).grad_fn
    assert node._saved_self.tolist() == [1.0, 2.0]
    assert node._saved_other.tolist() == [3.0, 4.0]
    assert [t.tolist() for t in node.saved_tensors] == [[1.0, 2.0], [3.0, 4.0]]
    assert np.exp(x).grad_fn._saved_result.tolist() == np.exp([1.0, 2.0]).tolist()
    with pytest.raises(AttributeError, match="_saved_result"):
        node._saved_result
    assert (x + z).grad_fn.saved_tensors == ()


@pytest.mark.usefixtures("tape_length")
def test_F11_saved_values_have_their_history():
    x = leaf()
    node = ((x * 1) * x).grad_fn
    (g,) = tg.grad(node._saved_self.sum() * 3, x)
    assert g.tolist() == [3.0, 3.0]


@pytest.mark.usefixtures("tape_length")
def test_B1_saved_values_that_were_freed():
    x = leaf()
    y = x * x
    node = y.grad_fn
    y.sum().backward()
    for read in (lambda: node.saved_tensors, lambda: node._saved_self):
        with pytest.raises(GraphFreedError, match="retain_graph"):
            read()
    assert node.name() == "MulBackward"


@pytest.mark.usefixtures("tape_length")
def test_F11_a_node_outlives_its_tensor():
    x = leaf()
    y = x * 2
    node = y.grad_fn
    z = (y * y).sum()
    del y
    for _ in range(20):
        x * 1.0
    assert node.name() == "MulBackward"
    seen = []
    node.register_hook(lambda gi, go: seen.append(go[0].tolist()))
    z.backward()
    assert seen == [[4.0, 8.0]]


def test_F11_a_leaf_that_is_gone():
    x = leaf()
    y = x * 2
    node = y.grad_fn.next_functions[0][0]
    del x
    gc.collect()
    assert node.variable is None
    with pytest.raises(GradientError, match="gone"):
        node.handle()


def test_F11_nodes_of_a_long_chain_without_recursion():
    x = leaf(1.0)
    y = x
    for _ in range(20_000):
        y = y * 1.0
    node, count = y.grad_fn, 0
    while node is not None and node.next_functions:
        node, count = node.next_functions[0][0], count + 1
    assert count == 20_000
    assert node.variable is x


# ---------------------------------------------------------------- F-12


@pytest.mark.usefixtures("tape_length")
def test_F12_edges_are_inputs_and_outputs():
    x = leaf()
    y = x * 3
    loss = (y * y).sum()
    edge = get_gradient_edge(y)
    assert isinstance(edge, GradientEdge)
    assert edge.node is y.grad_fn
    assert edge.output_nr == 0
    assert tg.grad(loss, edge, retain_graph=True)[0].tolist() == [6.0, 12.0]
    assert tg.grad(loss, [get_gradient_edge(x)], retain_graph=True)[0].tolist() == [18.0, 36.0]
    assert tg.grad(edge, x, tg.tensor([1.0, 10.0]), retain_graph=True)[0].tolist() == [3.0, 30.0]
    tg.backward(get_gradient_edge(loss), inputs=[get_gradient_edge(x)])
    assert x.grad.tolist() == [18.0, 36.0]


@pytest.mark.usefixtures("tape_length")
def test_F12_edges_of_results_of_a_function():
    x = leaf()
    a, b = Pair.apply(x, 1, None)
    edge = get_gradient_edge(b)
    assert edge.output_nr == 1
    assert tg.grad((a * b).sum(), edge, retain_graph=True)[0].tolist() == [2.0, 4.0]
    assert tg.grad(edge, x, tg.tensor([1.0, 1.0]))[0].tolist() == [3.0, 3.0]


@pytest.mark.usefixtures("tape_length")
def test_F12_an_edge_made_of_a_node():
    x = leaf()
    y = (x * 3).sum()
    assert tg.grad(GradientEdge(y.grad_fn, 0), x)[0].tolist() == [3.0, 3.0]


def test_F12_what_has_no_edge():
    with pytest.raises(GradientError, match="requires_grad"):
        get_gradient_edge(tg.ones(2))
