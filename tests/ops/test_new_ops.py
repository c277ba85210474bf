"""A new op is its declaration: derivatives of all orders, forward mode and batches need nothing more."""

import inspect
from pathlib import Path

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.autograd import gradcheck, gradgradcheck
from tapegrad.autograd.profiler import profile

from . import new_ops
from .new_ops import bilinear_form, cosine_cdf, log_of_squares, softsign

X = np.array([[0.3, -0.7, 2.0], [1.1, 0.4, -1.5]])
SQUARE = np.array([[0.5, -1.0, 0.3], [2.0, 0.1, 0.7], [-0.4, 0.9, 1.2]])
CASES = {
    "elementwise": (softsign, (X,), X / (1 + abs(X))),
    "elementwise, of a number": (softsign, (X[0, 0],), 0.3 / 1.3),
    "reduction": (log_of_squares, (X,), np.log((X * X).sum())),
    "reduction of rows": (lambda x: log_of_squares(x, axis=-1), (X,), np.log((X * X).sum(-1))),
    "linalg": (bilinear_form, (X[0], SQUARE, X[1]), X[0] @ SQUARE @ X[1]),
}


@pytest.mark.parametrize("case", CASES)
def test_a_new_op(case):
    function, values, expected = CASES[case]
    np.testing.assert_allclose(function(*values), expected, rtol=1e-14)
    inputs = [tg.tensor(x, requires_grad=True) for x in values]
    np.testing.assert_allclose(function(*inputs).detach().numpy(), expected, rtol=1e-14)
    modes = {"check_forward_ad": True, "check_batched_grad": True, "check_batched_forward_grad": True}
    assert gradcheck(function, inputs, **modes)
    assert gradgradcheck(function, inputs, check_batched_grad=True, check_fwd_over_rev=True)


def test_the_kept_axis_of_a_new_reduction():
    x = tg.tensor(X, requires_grad=True)
    kept = log_of_squares(x, axis=0, keepdims=True)
    assert kept.shape == (1, 3)
    (g,) = tg.grad(kept.sum(), x)
    np.testing.assert_allclose(g.numpy(), 2 * X / (X * X).sum(0), rtol=1e-14)


@pytest.mark.parametrize("axis", [30, (0, 31), (30, 31)])
def test_axes_that_a_record_has_no_bit_for(axis):
    x = tg.tensor(np.arange(1.0, 5.0).reshape((1,) * 30 + (2, 2)), requires_grad=True)
    y = log_of_squares(x, axis=axis)
    square = np.sum(x.detach().numpy() ** 2, axis=axis, keepdims=True)
    np.testing.assert_allclose(y.detach().numpy(), np.log(np.squeeze(square, axis)), rtol=1e-14)
    (g,) = tg.grad(y.sum(), x)
    np.testing.assert_allclose(g.numpy(), 2 * x.detach().numpy() / square, rtol=1e-14)


def test_a_new_op_of_a_ufunc_that_numpy_does_not_have():
    x = tg.tensor(X, requires_grad=True)
    y = cosine_cdf(x)
    np.testing.assert_array_equal(y.detach().numpy(), cosine_cdf(X))
    assert gradcheck(cosine_cdf, [x], check_forward_ad=True)


def test_nodes_and_flops_of_a_new_op():
    x = tg.tensor(X[0], requires_grad=True)
    assert bilinear_form(x, SQUARE, x).grad_fn.name() == "BilinearBackward"
    assert log_of_squares(x).grad_fn.name() == "LogOfSquaresBackward"
    with profile(with_flops=True) as found:
        softsign(x)
    assert found.total_average().flops == 9


def test_the_guide_shows_these_declarations():
    guide = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text("utf-8")
    source = inspect.getsource(new_ops)
    for name in ("softsign", "log_of_squares", "bilinear_form"):
        (declaration,) = (
            part for part in source.split("\n\n\n") if f" {name}" in part and part.startswith("@")
        )
        assert declaration in guide, name
