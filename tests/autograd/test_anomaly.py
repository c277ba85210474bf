"""Anomaly mode: F2-4, and where it points."""

import warnings

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.errors import AnomalyError

pytestmark = pytest.mark.filterwarnings("ignore:anomaly mode is on:UserWarning", "ignore::RuntimeWarning")


def sqrt_of_zero(x):
    return np.sqrt(x) * 0.0  # the marked line


def line_of(function, text):
    first = function.__code__.co_firstlineno
    with open(function.__code__.co_filename, encoding="utf-8") as file:
        lines = file.read().splitlines()
    return next(k + 1 for k in range(first - 1, len(lines)) if text in lines[k])


@pytest.mark.parametrize("create_graph", [False, True])
def test_F2_4_a_nan_names_the_line_of_the_forward(create_graph):
    with tg.autograd.detect_anomaly():
        x = tg.tensor(0.0, requires_grad=True)
        y = sqrt_of_zero(x)
        with (
            pytest.warns(UserWarning, match="sqrt is nan"),
            pytest.raises(RuntimeError, match="SqrtBackward") as caught,
        ):
            y.backward(create_graph=create_graph)
    assert isinstance(caught.value, AnomalyError)
    assert f"line {line_of(sqrt_of_zero, 'the marked line')}, in sqrt_of_zero" in str(caught.value)
    assert __file__ in str(caught.value)


def test_F2_4_turning_it_on_warns():
    with pytest.warns(UserWarning, match="anomaly mode is on"):
        tg.autograd.detect_anomaly()


def test_F2_4_check_nan_false_suppresses():
    with tg.autograd.detect_anomaly(check_nan=False):
        x = tg.tensor(0.0, requires_grad=True)
        sqrt_of_zero(x).backward()
    assert np.isnan(x.grad.item())


def test_F2_4_an_exception_warns_with_the_line_and_goes_on_unchanged():
    class Fails(tg.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            raise KeyError("mine")

    with tg.autograd.detect_anomaly():
        x = tg.tensor(1.0, requires_grad=True)
        y = Fails.apply(x)  # here
        with pytest.warns(UserWarning, match="Fails.apply"), pytest.raises(KeyError, match="mine"):
            y.backward()
    (x * x).backward()
    assert x.grad.item() == 2.0


def test_the_first_value_that_is_not_finite_is_named():
    with tg.autograd.detect_anomaly():
        x = tg.tensor([1.0, 0.0], requires_grad=True)
        y = np.log(x)  # makes -inf
        z = np.exp(y) * y
        with (
            pytest.warns(UserWarning, match="is nan"),
            pytest.raises(AnomalyError, match=r"log at .*not finite") as caught,
        ):
            z.sum().backward()
    assert "multiply" not in str(caught.value)


def test_a_forward_outside_is_said_to_be_unknown():
    x = tg.tensor(0.0, requires_grad=True)
    y = sqrt_of_zero(x)
    with (
        tg.autograd.detect_anomaly(),
        pytest.warns(UserWarning, match="is nan"),
        pytest.raises(AnomalyError, match="not run in anomaly mode"),
    ):
        y.backward()


def test_right_gradients_are_the_same():
    def f(x):
        y = x * 1.0
        y[0] = np.sin(x[1]) * x[2]
        return np.sum(np.linalg.solve(np.outer(y, y) + 3 * np.eye(3), x) ** 2)

    x = tg.tensor([0.3, 1.2, -0.4], requires_grad=True)
    plain = tg.grad(f(x), x)[0].numpy()
    with tg.autograd.detect_anomaly():
        np.testing.assert_allclose(tg.grad(f(x), x)[0].numpy(), plain, rtol=1e-14)
        (g,) = tg.grad(f(x), x, create_graph=True)
        np.testing.assert_allclose(g.detach().numpy(), plain, rtol=1e-14)


def test_it_is_off_after_the_block_also_by_an_exception():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with tg.autograd.set_detect_anomaly(True):
            assert tg.autograd.is_anomaly_enabled()
        assert not tg.autograd.is_anomaly_enabled()
    with pytest.raises(KeyError), tg.autograd.detect_anomaly():
        raise KeyError
    assert not tg.autograd.is_anomaly_enabled()
    before = tg.autograd.set_detect_anomaly(True)
    assert tg.autograd.is_anomaly_enabled()
    before.__exit__()
    assert not tg.autograd.is_anomaly_enabled()
    x = tg.tensor(0.0, requires_grad=True)
    y = sqrt_of_zero(x)
    with (
        tg.autograd.set_detect_anomaly(True),
        pytest.warns(UserWarning, match="is nan"),
        pytest.raises(AnomalyError, match="not run in anomaly mode"),
    ):
        y.backward(retain_graph=True)
    y.backward()
