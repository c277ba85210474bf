"""The API of torch 0.2 and 0.3: semantics H-1 to H-5, H-12, A-13."""

import copy
import pickle

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.autograd import Variable
from tapegrad.errors import GradientError, UnusedInputError


def test_H1_variable_wraps_data_and_shares_memory():
    a = np.array([1.0, 2.0])
    x = Variable(a, requires_grad=True)
    assert (type(x), x.requires_grad, x.volatile, x.is_leaf) == (Variable, True, False, True)
    a[0] = 5.0
    assert x.tolist() == [5.0, 2.0]
    assert not Variable([1.0]).requires_grad
    (x * x).sum().backward()
    assert x.grad.tolist() == [10.0, 4.0]


def test_H1_a_change_of_the_data_before_backward_does_no_harm():
    a = np.array([1.0, 2.0])
    x = Variable(a, requires_grad=True)
    y = (x * x).sum()
    a[:] = 7.0
    y.backward()
    assert x.grad.tolist() == [2.0, 4.0]


@pytest.mark.parametrize(
    "op", [lambda x, v: x * v, lambda x, v: v + x, lambda x, v: np.exp(v), lambda x, v: np.dot(v, x),
           lambda x, v: v[0], lambda x, v: v.reshape(1, 2), lambda x, v: np.stack([x, v]), lambda x, v: -v,
           lambda x, v: x @ v, lambda x, v: v ** 2, lambda x, v: 2.0 - v, lambda x, v: v.detach()],
)  # fmt: skip
def test_H1_one_volatile_operand_makes_the_result_volatile(op):
    x, v = Variable([1.0, 2.0], requires_grad=True), Variable([3.0, 4.0], volatile=True)
    y = op(x, v)
    assert y.volatile
    assert not y.requires_grad
    assert (y * x.sum()).volatile
    with pytest.raises(GradientError):
        np.sum(y).backward()
    with pytest.raises(GradientError):
        y.register_hook(print)


def test_H1_volatile_overrides_requires_grad():
    assert not Variable([1.0], requires_grad=True, volatile=True).requires_grad


def test_H1_copies_and_pickles_carry_the_state():
    for x in (Variable([1.0], volatile=True), Variable([1.0], requires_grad=True), Variable([1.0])):
        for y in (copy.deepcopy(x), copy.copy(x), pickle.loads(pickle.dumps(x))):
            assert (y.volatile, y.requires_grad, y.tolist()) == (x.volatile, x.requires_grad, [1.0])
    with pytest.raises(GradientError):
        pickle.dumps(Variable([1.0], requires_grad=True) * 2)


def test_H2_a_variable_as_gradient_lets_the_sweep_be_recorded():
    def gradient(given, **more):
        x = tg.tensor([1.0, 2.0], requires_grad=True)
        (x**3).backward(given, **more)
        return x.grad.requires_grad

    assert gradient(Variable([1.0, 1.0]))
    assert not gradient(Variable([1.0, 1.0], volatile=True))
    assert not gradient(tg.tensor([1.0, 1.0]))
    assert not gradient(np.ones(2))
    assert not gradient(Variable([1.0, 1.0]), create_graph=False)
    x = tg.tensor([1.0, 2.0], requires_grad=True)
    (g,) = tg.grad(x**3, x, Variable([1.0, 1.0]))
    assert tg.grad(g.sum(), x)[0].tolist() == [6.0, 12.0]


def test_H2_retain_graph_follows_what_was_inferred():
    x = tg.tensor([1.0, 2.0], requires_grad=True)
    y = x**3
    y.backward(Variable([1.0, 1.0]))
    y.backward(Variable([1.0, 1.0]))
    assert x.grad.tolist() == [6.0, 24.0]


def test_H3_retain_variables_warns_and_excludes_retain_graph():
    x = tg.tensor([1.0, 2.0], requires_grad=True)
    y = np.sum(x**2)
    with pytest.warns(FutureWarning, match="retain_variables"):
        y.backward(retain_variables=True)
    with pytest.warns(FutureWarning, match="retain_variables"):
        tg.backward(y, retain_variables=True)
    y.backward()
    assert x.grad.tolist() == [6.0, 12.0]
    with pytest.raises(ValueError, match="retain_graph"):
        y.backward(retain_graph=True, retain_variables=True)


def test_A13_grad_variables_warns_and_excludes_grad_tensors():
    x = tg.tensor([1.0, 2.0], requires_grad=True)
    with pytest.warns(FutureWarning, match="grad_variables"):
        tg.backward(x * 2, grad_variables=np.ones(2))
    assert x.grad.tolist() == [2.0, 2.0]
    with pytest.raises(RuntimeError, match="both"):
        tg.backward(x * 2, np.ones(2), grad_variables=np.ones(2))


def test_H4_only_inputs_false_accumulates_into_other_leaves():
    x, w = (tg.tensor([1.0, 2.0], requires_grad=True) for _ in range(2))
    y = x * w
    (g,) = tg.grad(np.sum(y * w), x, only_inputs=False)
    assert g.tolist() == [1.0, 4.0]
    assert x.grad is None
    assert w.grad.tolist() == [2.0, 8.0]
    y = x * w
    (g,) = tg.grad(np.sum(y), y, only_inputs=False)  # past a result on the way the sweep goes on
    assert g.tolist() == [1.0, 1.0]
    assert (x.grad.tolist(), w.grad.tolist()) == ([1.0, 2.0], [3.0, 10.0])


def test_H4_only_inputs_false_changes_nothing_where_an_input_is_unused():
    x, w = (tg.tensor([1.0, 2.0], requires_grad=True) for _ in range(2))
    with pytest.raises(UnusedInputError):
        tg.grad(np.sum(w * w), x, only_inputs=False)
    assert w.grad is None
    assert tg.grad(np.sum(w * w), x, only_inputs=False, allow_unused=True) == (None,)
    assert w.grad.tolist() == [2.0, 4.0]


def test_H5_errors():
    x, c = Variable([1.0, 2.0], requires_grad=True), Variable([1.0, 2.0])
    with pytest.raises(RuntimeError, match="does not require grad"):
        tg.grad(np.sum(x * c), c)
    with pytest.raises(RuntimeError, match="take part"):
        tg.grad(np.sum(x * x), Variable([1.0], requires_grad=True))
    with pytest.raises(RuntimeError, match="list"):
        tg.grad(np.sum(x * x), [[1.0]])
    with pytest.raises(RuntimeError, match="implicit"):
        tg.backward([x * x], [None])
    with pytest.raises(TypeError, match="str"):
        tg.backward([x * x], ["one"])


def test_H8_zero_gradients():
    x, y = (tg.tensor([1.0], requires_grad=True) for _ in range(2))
    (x * y).sum().backward(create_graph=True)
    tg.autograd.zero_gradients([x, (y,)])
    assert (x.grad.tolist(), y.grad.tolist(), x.grad.requires_grad) == ([0.0], [0.0], False)


def test_H12_the_lower_case_name_is_an_error():
    with pytest.raises(RuntimeError, match="Variable"):
        tg.autograd.variable([1.0])
