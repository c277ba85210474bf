"""What a sweep releases and what it keeps: cases B-1 to B-7."""

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.errors import GraphFreedError, ShapeError, UnusedInputError
from tapegrad.ops import REGISTRY

pytestmark = pytest.mark.usefixtures("tape_length")


def leaf(data=(1.0, 2.0), dtype=float):
    return tg.tensor(data, dtype=dtype, requires_grad=True)


MATRIX = np.array([[2.0, 1.0], [0.5, 3.0]])

# What the rule reads decides; each of these reads an operand or its result.
SAVING = {
    "multiply": lambda x: x * x,
    "multiply by a number": lambda x: x * 3,
    "divide": lambda x: x / 3.0,
    "power": lambda x: x**3.0,
    "square": lambda x: x**2,
    "exp": np.exp,
    "sqrt": np.sqrt,
    "tanh": np.tanh,
    "absolute": abs,
    "maximum": lambda x: np.maximum(x, 1.5),
    "clip": lambda x: np.clip(x, 0.0, 1.5),
    "where": lambda x: np.where([True, False], x, -x),
    "max": lambda x: x.max(),
    "prod": lambda x: x.prod(),
    "logsumexp": tg.logsumexp,
    "matmul": lambda x: x @ MATRIX,
    "solve": lambda x: np.linalg.solve(MATRIX, x),
    "einsum": lambda x: np.einsum("i,ij->ij", x, MATRIX),
}

# These are linear with coefficients that need no value.
KEEPING = {
    "add": lambda x: x + x,
    "subtract": lambda x: 3.0 - x,
    "negative": lambda x: -x,
    "sum": lambda x: x.sum(),
    "mean": lambda x: x.mean(),
    "reshape": lambda x: x.reshape(2, 1),
    "transpose": lambda x: x.reshape(1, 2).T,
    "slice": lambda x: x[1:],
    "element": lambda x: x[1],
    "take": lambda x: x[[0, 0, 1]],
    "concatenate": lambda x: np.concatenate([x, x]),
    "stack": lambda x: np.stack([x, x]),
    "cumsum": lambda x: np.cumsum(x),
    "broadcast_to": lambda x: np.broadcast_to(x, (3, 2)),
    "astype": lambda x: x.astype(np.float32),
    "flip": lambda x: np.flip(x),
    "squeeze": lambda x: x.reshape(2, 1).squeeze(),
}


@pytest.mark.parametrize("name", SAVING)
@pytest.mark.parametrize("first", ["backward", "grad", "create_graph"])
def test_B1_second_sweep_through_what_saved_values_raises(name, first):
    x = leaf()
    y = SAVING[name](x).sum()
    if first == "backward":
        y.backward()
    elif first == "grad":
        tg.grad(y, x)
    else:
        tg.grad(y, x, create_graph=True, retain_graph=False)
    before = None if x.grad is None else x.grad.tolist()
    for again in (y.backward, lambda: tg.grad(y, x), lambda: tg.grad(y, x, create_graph=True)):
        with pytest.raises(GraphFreedError, match="retain_graph=True") as found:
            again()
        assert isinstance(found.value, RuntimeError)
    assert (None if x.grad is None else x.grad.tolist()) == before


@pytest.mark.parametrize("name", sorted(set(SAVING) & set(REGISTRY)))
def test_B1_message_names_the_op_and_its_shape(name):
    x = leaf()
    y = SAVING[name](x)
    y.sum().backward()
    with pytest.raises(GraphFreedError) as found:
        y.sum().backward()
    assert f"{name} " in str(found.value)
    assert str(y.shape) in str(found.value)


@pytest.mark.parametrize("name", KEEPING)
def test_B2_what_saved_nothing_runs_again(name):
    x = leaf()
    y = KEEPING[name](x).sum()
    y.backward()
    once = np.array(x.grad.tolist())
    assert once.any()
    y.backward()
    assert x.grad.tolist() == (2 * once).tolist()
    assert tg.grad(y, x)[0].tolist() == once.tolist()


def test_B2_sum_of_twice_x():
    x = leaf()
    y = (x + x).sum()
    y.backward()
    y.backward()
    assert x.grad.tolist() == [4.0, 4.0]


def test_B3_only_executed_records_are_freed():
    x, z = leaf(), leaf()
    y = (x * x + z * z).sum()
    assert tg.grad(y, x)[0].tolist() == [2.0, 4.0]
    assert tg.grad(y, z)[0].tolist() == [2.0, 4.0]
    for freed in (x, z):
        with pytest.raises(GraphFreedError):
            tg.grad(y, freed)


def test_B3_backward_with_inputs_frees_what_it_executed():
    x, z = leaf(), leaf()
    y = (np.exp(x) + np.exp(z)).sum()
    y.backward(inputs=[x])
    y.backward(inputs=[z])
    np.testing.assert_allclose(z.grad.numpy(), np.exp([1.0, 2.0]))
    with pytest.raises(GraphFreedError):
        y.backward(inputs=[x])


def test_B3_gradient_wrt_a_result_leaves_what_lies_below():
    x = leaf()
    a = np.exp(x)
    y = (a * a).sum()
    tg.grad(y, a)
    assert tg.grad(a.sum(), x)[0].tolist() == np.exp([1.0, 2.0]).tolist()
    with pytest.raises(GraphFreedError):
        tg.grad(y, a)


def test_B3_branch_off_the_path_of_the_root_survives():
    x = leaf()
    a = x + 1.0
    first, second = (a * a).sum(), np.exp(a).sum()
    first.backward()
    second.backward()
    np.testing.assert_allclose(x.grad.numpy(), 2 * np.array([2.0, 3.0]) + np.exp([2.0, 3.0]))


def test_B4_shared_subgraph():
    x = leaf()
    a = np.exp(x)
    a.sum().backward()
    before = x.grad.tolist()
    with pytest.raises(GraphFreedError):
        (a * a).sum().backward()
    assert x.grad.tolist() == before


def test_B4_shared_subgraph_that_was_retained():
    x = leaf()
    a = np.exp(x)
    a.sum().backward(retain_graph=True)
    (a * a).sum().backward()
    e = np.exp([1.0, 2.0])
    np.testing.assert_allclose(x.grad.numpy(), e + 2 * e * e)


def test_B4_values_of_freed_results_remain():
    x = leaf()
    a = np.exp(x)
    b = a * a
    b.sum().backward()
    np.testing.assert_array_equal(a.detach().numpy(), np.exp([1.0, 2.0]))
    np.testing.assert_array_equal(b.detach().numpy(), np.exp([1.0, 2.0]) * np.exp([1.0, 2.0]))
    with tg.no_grad():
        assert (a + b).tolist() == (a.detach() + b.detach()).tolist()


@pytest.mark.parametrize("times", [1, 2, 3])
def test_B5_retained_graph_runs_again(times):
    x = leaf()
    y = (x * x * x).sum()
    for _ in range(times):
        y.backward(retain_graph=True)
    y.backward()
    assert x.grad.tolist() == [3.0 * (times + 1), 12.0 * (times + 1)]
    with pytest.raises(GraphFreedError):
        y.backward()


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("retain_graph", [None, True])
def test_B5_create_graph_implies_retain_graph(first, retain_graph):
    x = leaf()
    y = (x * x * x).sum()
    if first:
        tg.backward(y, create_graph=True, retain_graph=retain_graph)
        y.backward()
        assert x.grad.tolist() == [6.0, 24.0]
    else:
        a = tg.grad(y, x, create_graph=True, retain_graph=retain_graph)
        b = tg.grad(y, x)
        assert a[0].tolist() == b[0].tolist() == [3.0, 12.0]


def test_B6_create_graph_without_retain_graph():
    x = leaf(2.0)
    y = x**3.0
    (g,) = tg.grad(y, x, create_graph=True, retain_graph=False)
    assert g.item() == 12.0
    (h,) = tg.grad(g, x, create_graph=True)
    assert h.item() == 12.0
    assert tg.grad(h, x)[0].item() == 6.0
    with pytest.raises(GraphFreedError):
        tg.grad(y, x)


def test_B6_backward_form():
    x = leaf(2.0)
    y = x**3.0
    y.backward(create_graph=True, retain_graph=False)
    (d,) = tg.grad(x.grad, x)
    assert d.item() == 12.0
    with pytest.raises(GraphFreedError):
        y.backward()


@pytest.mark.parametrize("how", ["grad", "backward"])
def test_B6_derivative_that_leads_through_the_freed_graph_is_exact_or_raises(how):
    """The derivative of x*x*x reads the result x*x, whose own record was freed."""
    x = leaf(2.0)
    y = x * x * x
    if how == "grad":
        (g,) = tg.grad(y, x, create_graph=True, retain_graph=False)
    else:
        y.backward(create_graph=True, retain_graph=False)
        g = x.grad
    assert g.item() == 12.0
    for inputs in ([x], None):
        x.grad = None
        try:
            g.backward(inputs=inputs, retain_graph=True)
        except GraphFreedError:
            assert x.grad is None
        else:
            assert x.grad.item() == 12.0
    try:
        (d,) = tg.grad(g, x)
    except GraphFreedError:
        return
    assert d.item() == 12.0


AGAIN = {
    "grad": lambda y, inputs: tg.grad(y, inputs),
    "allow_unused": lambda y, inputs: tg.grad(y, inputs, allow_unused=True),
    "create_graph": lambda y, inputs: tg.grad(y, inputs, create_graph=True),
    "inputs": lambda y, inputs: y.backward(inputs=inputs),
    "backward": lambda y, inputs: y.backward(),
}


@pytest.mark.parametrize("again", AGAIN)
def test_B4_freed_long_ago(again):
    """That a graph was freed is not forgotten when its tape is closed and rid of the dead."""
    x, w = leaf(), leaf()
    a = np.exp(x)
    a.sum().backward()
    x.grad = None
    for _ in range(5000):
        w * 2.0
    y = (a * w).sum()
    with pytest.raises(GraphFreedError):
        AGAIN[again](y, [x, w])
    assert x.grad is None
    assert w.grad is None


# ---------------------------------------------------------------- B-7: validated before anything runs


def test_B7_unused_input_frees_nothing():
    x, z = leaf(), leaf()
    y = (x * x).sum()
    for _ in range(3):
        for create_graph in (False, True):
            with pytest.raises(UnusedInputError):
                tg.grad(y, [x, z], create_graph=create_graph, retain_graph=False)
    assert tg.grad(y, x)[0].tolist() == [2.0, 4.0]


def test_B7_freed_second_root_stops_the_first():
    x, z = leaf(), leaf()
    gone = np.exp(z).sum()
    gone.backward()
    z.grad = None
    y = (x * x).sum()
    for call in (
        lambda: tg.backward([y, gone]),
        lambda: tg.backward([gone, y]),
        lambda: tg.grad([y, gone], [x, z]),
        lambda: tg.backward([y, gone], create_graph=True),
        lambda: tg.grad([y, gone], [x, z], create_graph=True, retain_graph=False),
    ):
        with pytest.raises(GraphFreedError):
            call()
        assert x.grad is None
        assert z.grad is None
    y.backward()
    assert x.grad.tolist() == [2.0, 4.0]


def test_B7_freed_record_far_down_stops_all():
    x = leaf()
    a = np.exp(x)
    a.sum().backward()
    x.grad = None
    w = leaf()
    b = a * w
    for k in range(20):
        b = b * (1.0 + k)
    for create_graph in (False, True):
        with pytest.raises(GraphFreedError):
            b.sum().backward(create_graph=create_graph)
        assert x.grad is None
        assert w.grad is None
    b.sum().backward(inputs=[w])  # this part was neither run nor freed
    assert w.grad is not None


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        ({"gradient": np.ones(3)}, ShapeError),
        ({"gradient": "text"}, TypeError),
        ({"inputs": []}, RuntimeError),
        ({"inputs": [None]}, RuntimeError),
        ({"inputs": [tg.tensor(1.0)]}, RuntimeError),
    ],
)
def test_B7_refused_argument_frees_nothing(arguments, kind):
    x = leaf()
    y = (x * x).sum()
    with pytest.raises(kind):
        y.backward(**arguments)
    assert x.grad is None
    y.backward()
    assert x.grad.tolist() == [2.0, 4.0]


def test_B7_gradients_are_committed_all_or_none(monkeypatch):
    """A rule that fails halfway through the sweep leaves every .grad as it was."""
    x, z = leaf(), leaf()
    x.grad = tg.tensor([5.0, 5.0])
    y = (np.convolve(x, [1.0, 3.0]).sum() + (z * z).sum()) * 2.0
    op = REGISTRY["convolve"]
    rule = op._vjp

    def fail(*args, **kwargs):
        raise FloatingPointError("on purpose")

    for create_graph in (False, True):
        monkeypatch.setattr(op, "_vjp", fail)
        with pytest.raises(FloatingPointError, match="on purpose"):
            y.backward(retain_graph=True, create_graph=create_graph)
        assert x.grad.tolist() == [5.0, 5.0]
        assert z.grad is None
        monkeypatch.setattr(op, "_vjp", rule)
    y.backward()  # the tapes are free for another sweep
    assert x.grad.tolist() == [13.0, 13.0]
    assert z.grad.tolist() == [4.0, 8.0]
