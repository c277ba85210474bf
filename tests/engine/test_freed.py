"""What a second sweep says when the first has released the graph, on one tape or on many."""

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.errors import GraphFreedError
from tapegrad.tape import tape as tapes


def graph(records, capacity, monkeypatch):
    monkeypatch.setattr(tapes, "MAX_RECORDS", capacity)
    x = tg.tensor(np.linspace(0.1, 1.0, 12), requires_grad=True)
    y = x
    for _ in range(records // 2):
        y = np.sin(y) * x
    return x, np.sum(y)


CASES = [(10, 4096), (1000, 4096), (10, 4), (400, 16), (1000, 300), (1000, 600)]


@pytest.mark.parametrize(("records", "capacity"), CASES)
def test_a_second_backward_raises(records, capacity, monkeypatch):
    x, loss = graph(records, capacity, monkeypatch)
    loss.backward()
    first = x.grad.numpy().copy()
    with pytest.raises(GraphFreedError):
        loss.backward()
    np.testing.assert_array_equal(x.grad.numpy(), first)


@pytest.mark.parametrize(("records", "capacity"), CASES)
@pytest.mark.parametrize(
    "more", [{}, {"allow_unused": True}, {"create_graph": True}, {"materialize_grads": True}]
)
def test_a_second_grad_raises(records, capacity, more, monkeypatch):
    x, loss = graph(records, capacity, monkeypatch)
    tg.grad(loss, x)
    with pytest.raises(GraphFreedError):
        tg.grad(loss, x, **more)


@pytest.mark.parametrize(("records", "capacity"), CASES)
def test_a_sweep_of_something_above_a_freed_graph_raises(records, capacity, monkeypatch):
    x, loss = graph(records, capacity, monkeypatch)
    above = loss * 2.0
    tg.grad(loss, x)
    with pytest.raises(GraphFreedError):
        tg.grad(above, x)


@pytest.mark.parametrize(("records", "capacity"), CASES)
@pytest.mark.parametrize("more", [{}, {"create_graph": True}])
def test_what_lies_above_a_freed_graph_has_gradients(records, capacity, more, monkeypatch):
    """Nothing of what was released lies between; a leaf below may do so."""
    x, loss = graph(records, capacity, monkeypatch)
    tg.grad(loss, x)
    w = tg.tensor(3.0, requires_grad=True)
    above = loss * loss * w
    slopes = tg.grad(above, [loss, w], retain_graph=True, **more)
    assert [g.item() for g in slopes] == pytest.approx([6.0 * loss.item(), loss.item() ** 2])
    with pytest.raises(GraphFreedError):
        tg.grad(above, [loss, x], retain_graph=True, **more)
    above.backward(inputs=[w])
    assert w.grad.item() == pytest.approx(loss.item() ** 2)


def test_packed_values_that_were_released():
    x = tg.tensor([1.0, 2.0], requires_grad=True)
    y = np.exp(x)
    with tg.autograd.graph.saved_tensors_hooks(lambda value: value, lambda value: value):
        a = np.max(y)
    a.backward()
    assert tg.grad(a * a, a)[0].item() == 2 * a.item()
    with pytest.raises(GraphFreedError):
        tg.grad(a * a, x)


@pytest.mark.parametrize(("records", "capacity"), CASES)
def test_a_retained_graph_can_be_swept_again(records, capacity, monkeypatch):
    x, loss = graph(records, capacity, monkeypatch)
    found = [tg.grad(loss, x, retain_graph=True)[0].numpy() for _ in range(3)]
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])


def test_a_constant_accumulated_in_place_is_a_new_constant():
    """``.grad`` used as an operand before and after another backward adds to it."""
    x, w = (tg.tensor(v, requires_grad=True) for v in ([2.0, 3.0], [1.0, 1.0]))
    other = np.sum(x * x)
    tapes.close(tapes.local.tape)
    np.sum(x * x).backward()
    slope = x.grad
    before = np.sum(w * slope)
    other.backward()
    after = np.sum(w * slope)
    assert after.item() == 20.0
    np.testing.assert_array_equal(tg.grad(after, w)[0].numpy(), [8.0, 12.0])
    np.testing.assert_array_equal(tg.grad(before, w)[0].numpy(), [4.0, 6.0])
