"""Ops that are only declared, called in compiled code: values and derivatives are those of Tensors."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numba.core.errors import NumbaError

import tapegrad as tg
from tapegrad.errors import DTypeError, UnsupportedOpError
from tapegrad.ops import REGISTRY
from tapegrad.ops.primitive import primitive
from tests.native.test_expressions import once
from tests.ops.new_ops import bilinear_form, cosine_cdf, log_of_squares, softsign

X = np.array([0.3, -0.7, 2.0, 1.1])
cholesky, logsumexp, cumsum = REGISTRY["cholesky"], REGISTRY["logsumexp"], REGISTRY["cumsum"]


def of_elements(x):
    y = softsign(x * x)
    for k in range(3):
        if y[k] > 0.1:
            y[k + 1] = y[k + 1] + softsign(y[k] * x[0])
    return y.sum() + softsign(2.0)


def of_axes(x):
    matrix = (x * softsign(x[0])).reshape((2, 2))
    rows = log_of_squares(matrix, axis=1)
    columns = log_of_squares(matrix, 0, keepdims=True)
    return rows[0] * columns[0, 1] + log_of_squares(x) * log_of_squares(matrix, axis=(0, 1)) + rows[1]


def of_matrices(x):
    constant = np.array([[1.0, 2.0], [0.5, -1.0]])
    s = bilinear_form(x[:2], constant, x[2:])
    for k in range(2):
        s = s * x[k] + bilinear_form(constant[k], x.reshape((2, 2)) * s, x[1:3])
    return s


def of_listed_ops(x):
    a = x.reshape((2, 2)) * x.reshape((2, 2))
    low = cholesky(a + a.T + np.array([[4.0, 0.0], [0.0, 5.0]]), upper=False)
    return low[1, 1] * logsumexp(x) + cumsum(x, axis=0)[2] * low[1, 0]


ORDERS = {of_elements: 2, of_axes: 2, of_matrices: 3, of_listed_ops: 2}


def derivatives(f, order):
    """The gradient, and derivatives along it, of so many orders."""
    x = tg.tensor(X, requires_grad=True)
    y, found = f(x), []
    for k in range(order):
        (g,) = tg.grad(y, x, create_graph=True)
        found.append(g.detach().numpy())
        y = (g * np.cos(np.arange(4.0) + k)).sum()
    return found


@pytest.mark.parametrize("f", ORDERS, ids=lambda f: f.__name__)
def test_values_and_derivatives_are_those_of_tensors(f):
    compiled = once(f)
    as_tensors = of_elements_as_tensors if f is of_elements else f
    np.testing.assert_allclose(compiled(X), as_tensors(tg.tensor(X)).numpy(), rtol=1e-13)
    pairs = zip(derivatives(compiled, ORDERS[f]), derivatives(as_tensors, ORDERS[f]), strict=True)
    for found, expected in pairs:
        np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-12)


def of_elements_as_tensors(x):
    y = softsign(x * x)
    parts = [y[k] for k in range(4)]
    for k in range(3):
        if parts[k] > 0.1:
            parts[k + 1] = parts[k + 1] + softsign(parts[k] * x[0])
    return sum(parts) + 2.0 / 3.0


def test_tangents_jacobians_and_batches():
    compiled = once(of_axes)
    x = tg.tensor(X, requires_grad=True)
    (gradient,) = tg.grad(of_axes(x), x)
    np.testing.assert_allclose(tg.func.jvp(compiled)(X, np.ones(4))[1], gradient.numpy().sum(), rtol=1e-12)
    whole = tg.autograd.functional.hessian(of_axes, x)
    np.testing.assert_allclose(tg.func.hessian(compiled)(X), whole.numpy(), rtol=1e-11)

    @tg.njit
    def several(x):
        return log_of_squares(x.reshape((2, 2)), axis=0)

    y = several(x)
    (found,) = tg.grad(y, x, np.eye(2), is_grads_batched=True)
    square = X.reshape(2, 2)
    expected = np.zeros((2, 2, 2))
    for k in range(2):
        expected[k, :, k] = 2 * square[:, k] / (square[:, k] ** 2).sum()
    np.testing.assert_allclose(found.numpy(), expected.reshape(2, 4), rtol=1e-13)


def test_a_helper_that_is_preaccumulated():
    @tg.njit(preaccumulate=True)
    def helper(a, b):
        return bilinear_form(np.array([a, b]), np.array([[a, 1.0], [2.0, b]]), np.array([b, a])) + softsign(a)

    @tg.njit
    def f(x):
        return helper(x[0], x[1] * x[2]) * helper(x[3], x[0])

    def plain(a, b):
        return (a * a + 2.0 * b) * b + (a + b * b) * a + a / (1 + abs(a))

    def g(x):
        return plain(x[0], x[1] * x[2]) * plain(x[3], x[0])

    for found, expected in zip(derivatives(f, 2), derivatives(g, 2), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_steps_of_a_checkpointed_loop():
    @tg.njit
    def step(s, a):
        return s * 0.9 + a * log_of_squares(s) + softsign(s)

    @tg.njit
    def f(x):
        return tg.func.checkpoint_loop(step, x, 7, 3, (x[0],)).sum()

    def g(x):
        s = x
        for _ in range(7):
            s = s * 0.9 + x[0] * log_of_squares(s) + softsign(s)
        return s.sum()

    for found, expected in zip(derivatives(f, 2), derivatives(g, 2), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-11)


def test_a_direction_in_which_nothing_moves_takes_no_nan():
    """At 0 the derivative of the logarithm is infinite or nan, and only its own argument sees it."""

    @tg.njit
    def f(x, y):
        return log_of_squares(x) + y[0] * y[1]

    x, y = (tg.tensor(v, requires_grad=True) for v in (np.zeros(2), X[:2]))
    out = f(x, y)
    (g,) = tg.grad(out, y, create_graph=True)
    (h,) = tg.grad(g[0], y)
    np.testing.assert_allclose(h.numpy(), [0.0, 1.0])


@primitive(forward=lambda x: x if len(x) < 3 else x[0], arity=1)
class takes_the_first:
    """An op whose result has axes or has none, which compiled code cannot know."""

    reads = (0,)

    def vjp(ct, out, inputs, wanted):
        return {0: np.zeros(len(inputs[0]))}

    jvp = None


del REGISTRY["takes_the_first"]


def test_a_ufunc_that_numba_does_not_have():
    def f(x):
        return (cosine_cdf(x) * x).sum() * cosine_cdf(x[0])

    np.testing.assert_allclose(tg.njit(f)(X), f(X), rtol=1e-14)
    for found, expected in zip(derivatives(tg.njit(f), 3), derivatives(f, 3), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_sizes_0_and_1():
    @tg.njit
    def f(x):
        one = log_of_squares(x[:1].reshape((1, 1)), axis=1)
        return one[0] + log_of_squares(cumsum(x, axis=0), axis=0) + cumsum(x[:0], axis=0).sum()

    def g(x):
        return np.log(x[0] * x[0]) + log_of_squares(np.cumsum(x))

    assert tg.njit(lambda x: cumsum(x, axis=0))(X[:0]).shape == (0,)
    for found, expected in zip(derivatives(f, 2), derivatives(g, 2), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_what_the_op_raises():
    @tg.njit
    def f(x):
        return cholesky(x.reshape((2, 2)), upper=False)[0, 0]

    with pytest.raises(np.linalg.LinAlgError, match="positive definite"):
        f(tg.tensor([1.0, 2.0, 2.0, 1.0], requires_grad=True))
    x = tg.tensor([4.0, 0.0, 0.0, 1.0], requires_grad=True)
    np.testing.assert_allclose(tg.grad(f(x), x)[0].numpy(), [0.25, 0.0, 0.0, 0.0])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("log_of_squares(x, axis=int(x[0]))", "axis of log_of_squares is a literal"),
        ("log_of_squares(x, axis=2)", "axis 2 is out of bounds"),
        ("log_of_squares(x + 1j).real", "takes float64"),
        ("concatenate(x, axis=0)", "any number of operands"),
        ("takes_the_first(x)", "a real result of 1 axes is expected"),
    ],
)
def test_what_is_refused(text, words):
    ops = {"concatenate": REGISTRY["concatenate"], "takes_the_first": takes_the_first}
    space = {"log_of_squares": log_of_squares} | ops
    exec(f"def f(x):\n    return {text}", space)
    with pytest.raises((UnsupportedOpError, NumbaError, DTypeError), match=words):
        tg.njit(space["f"])(tg.tensor(X, requires_grad=True))


MODULE = """
import numpy as np, scipy.special, tapegrad as tg
from tapegrad.ops.primitive import elementwise, reduction

@elementwise(forward=lambda x: x / 2)
def half(x):
    '''A half.'''
    return RULE

@reduction(forward=lambda x, axis, keepdims: np.sum(x, axis=axis, keepdims=keepdims) / 2)
def half_sum(x):
    '''A half of a sum.'''
    return RULE

@elementwise(scipy.special.expit, scalar=lambda x: x / 2)
def another_half(x):
    '''A half, by the name of a function that Numba does not have.'''
    return RULE

x = tg.tensor([1.0, 2.0, 3.0], requires_grad=True)
for f in (lambda x: half(x[0]) + half(x[1]) + half(x[2]), lambda x: half_sum(x),
          lambda x: (scipy.special.expit(x[0]) + scipy.special.expit(x[1])) + scipy.special.expit(x[2])):
    f = tg.njit(cache=True)(f)
    print(f(np.ones(3)), tg.grad(f(x), x)[0].tolist())
"""


def test_another_rule_is_not_answered_from_the_cache(tmp_path):
    path = tmp_path / "program.py"
    root = Path(tg.__file__).parents[1]
    environment = os.environ | {"PYTHONPATH": str(root)}
    for rule in ("0.5", "0.5", "0.25"):
        path.write_text(MODULE.replace("RULE", rule), "utf-8")
        done = subprocess.run(
            [sys.executable, path], capture_output=True, text=True, env=environment, timeout=200, check=False
        )
        assert done.stdout.splitlines() == [f"1.5 {[float(rule)] * 3}"] * 3, done.stderr[-2000:]
