"""What is compared in compiled code: a call that a program serves comes to no comparison in Python."""

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.compilation import methods
from tapegrad.compilation.matching import Matcher
from tapegrad.core.dispatch import COPIED
from tapegrad.kernels import abi
from tapegrad.numpy_api import tables

TABLE = np.arange(96.0).reshape(4, 8, 3) * 0.1
IN_PYTHON = "call", "expect", "expect_flat", "part", "match", "write"
COMPARED = {
    "methods": "s = X.sum() + X.mean(axis=0)[1] + X.max() * X.min() + X.prod(1)[0]",
    "shapes": "s = X.reshape(2, 8)[0, 1] + X.reshape((X.shape[0], 2, 2))[0, 1, 1] + X.ravel()[3] + X.T[0, 1]",
    "axes": "s = X.transpose(1, 0)[0, 1] + X.swapaxes(0, 1)[1, 2] + X.dot(X)[1, 0]",
    "operators in place": "X += Y; X -= 2.0; X *= A; X /= Y; X **= 2; s = X[0, 1]; s += X[1, 2]; s *= 2",
    "writes": "X[0] = 0.0; X[:, 1] = Y[0]; X[1:3] = A[2]; X[1, 2] = s; X[2:] = A[:2]; s = X[1, 1]",
    "writes in place": "X[0] += Y[1]; X[1:-1] *= 2; X[:, 0] -= A[:, 1]; s = X[0, 1] + X[2, 2]",
    "large numbers in indices": "W[300:600] = V; W[500:550] *= 2.0; s = W[599] + W[450:500].sum()",
    "columns": "s = (X[0] * T[:, 1, 0] + T[:, 2, 2]).sum() + (T[:, 4:, 1] * X * T[:, :4, 1] / Y)[0, 0]",
    "columns backwards": "s = (X[0] - T[::-1, 1, 0])[1] + (X * T[::-1, 3::-1, 1]).sum()",
}
TEXT = """
def f(x):
    X, Y, s = x * 2.0, np.exp(x), x[0, 1]
    V, W = np.broadcast_to(s, (300,)) * 1.0, np.broadcast_to(s, (900,)) * 2.0
    {}
    return s * 2.0
"""


def served(text, x, monkeypatch, **names):
    """Names of what was compared in Python in a call that a program serves."""
    made = {"np": np, "A": TABLE[:, :4, 0].copy(), "T": TABLE, **names}
    exec(TEXT.format(text), made)
    compiled, seen = tg.compile(made["f"], wait=True), []
    for k in range(8):
        compiled.value_and_grad(x + k)
    for name in IN_PYTHON:
        before = getattr(Matcher, name)
        monkeypatch.setattr(
            Matcher, name, lambda *args, _name=name, _of=before: seen.append(_name) or _of(*args)
        )
    found = compiled.value_and_grad(x)
    monkeypatch.undo()
    wanted = tg.func.value_and_grad(made["f"])(x)
    assert found[0] == wanted[0] and np.allclose(found[1], wanted[1], rtol=1e-13, atol=0)
    assert compiled.explain().kinds[0].ways[0].calls > 4
    return seen


@pytest.mark.skipif(not abi.native(), reason="this Python compiles no comparison")
@pytest.mark.parametrize("text", COMPARED.values(), ids=COMPARED)
def test_it_is_compared_in_compiled_code(text, monkeypatch):
    assert not served(text, np.linspace(0.5, 1.5, 16).reshape(4, 4), monkeypatch)


@pytest.mark.skipif(not abi.native(), reason="this Python compiles no comparison")
def test_a_write_that_is_not_expected_is_asked_for_once(monkeypatch):
    def f(x, k):
        u, v = x * 2.0, x * 3.0
        (u if k < 8 else v)[1:] = v[:-1] * 1.0
        return np.sum(u * v)

    compiled, asked, write = tg.compile(f, wait=True), [], Matcher.write
    for k in range(8):
        compiled.value_and_grad(np.ones(4) + k, k)
    monkeypatch.setattr(Matcher, "write", lambda *args: asked.append(1) or write(*args))
    found, wanted = compiled.value_and_grad(np.ones(4), 8), tg.func.value_and_grad(f)(np.ones(4), 8)
    assert found[0] == wanted[0] and np.array_equal(found[1], wanted[1])
    assert len(asked) == 1


@pytest.mark.skipif(not abi.native(), reason="this Python compiles no comparison")
@pytest.mark.parametrize("n", [-1, 0, 1])
def test_columns_of_many_elements(n, monkeypatch):
    """Python copies those that are larger than what compiled code copies."""
    count = COPIED // 8 + n
    column = np.arange(2.0 * count).reshape(count, 2)[:, 1]
    text = "s = (np.broadcast_to(s, C.shape) * C).sum()"
    assert bool(served(text, np.ones((4, 4)), monkeypatch, C=column)) is (n > 0)


@pytest.mark.parametrize("name", ["sum", "ravel", "real", *methods.ATTRIBUTES, *methods.IN_PLACE])
def test_methods_say_what_they_are(name):
    """A method that is compared has the name, text and signature of the one that computes."""
    tg.compile(np.sum)
    found = vars(tg.Tensor)[name]
    method = found.fget if isinstance(found, property) else found
    assert method.__doc__ == method.__wrapped__.__doc__
    assert method.__qualname__ == method.__wrapped__.__qualname__
    with pytest.raises(TypeError, match=r"unexpected keyword|takes|positional"):
        method(tg.tensor([1.0]), 1, 2, 3, 4, 5, 6, 7, 8, nothing=9)


X, V = np.linspace(0.5, 1.5, 12).reshape(3, 4), np.linspace(-1.0, 2.0, 4)
BY_SHAPES = {  # a call of each
    np.ravel: "(x)", np.transpose: "(x)", np.permute_dims: "(x, (1, 0))", np.swapaxes: "(x, 0, 1)",
    np.linalg.matrix_transpose: "(x)", np.matrix_transpose: "(x)", np.moveaxis: "(x, 0, 1)",
    np.expand_dims: "(x, 1)", np.squeeze: "(x[:1])", np.vstack: "([x, x])", np.hstack: "([x, x])",
    np.rot90: "(x)", np.fliplr: "(x)", np.flipud: "(x)", np.rollaxis: "(x, 1)", np.diagonal: "(x, 1)",
    np.flip: "(x, 1)", np.dot: "(x, x.T)", np.inner: "(x, x)", np.vdot: "(x[0], x[1])", np.linalg.norm: "(x)",
    np.copy: "(x)", np.atleast_1d: "(x[0, 0])", np.atleast_2d: "(x[0])", np.atleast_3d: "(x)",
    np.repeat: "(x, 2, axis=0)", np.tile: "(x, 2)", np.resize: "(x, (2, 3))", np.roll: "(x, 1)",
    np.delete: "(x, 1, 0)", np.diag: "(x[0])", np.diagflat: "(x)", np.tril: "(x)", np.triu: "(x, 1)",
    np.pad: "(x, 1)",
}  # fmt: skip


def test_every_function_by_shapes_is_here():
    assert BY_SHAPES.keys() == tables.BY_SHAPES


@pytest.mark.skipif(not abi.native(), reason="this Python compiles no comparison")
@pytest.mark.parametrize("function", BY_SHAPES, ids=lambda f: f.__name__)
def test_it_is_the_same_operation_whatever_the_values(function):
    """By it functions are known that are compared by their arguments alone."""

    def f(x):
        y = eval(f"function{BY_SHAPES[function]}", {"function": function, "x": x * 1.0})
        return np.sum(y * y)

    compiled = tg.compile(f, wait=True)
    values = X, 0.0 * X, -X, X * np.inf, X * np.nan, np.sort(-X, axis=None).reshape(3, 4), 1e300 * X, X > 1.0
    with np.errstate(all="ignore"):
        for k, x in enumerate(2 * values):
            x = x.astype(float)
            found, wanted = compiled.value_and_grad(x), tg.func.value_and_grad(f)(x)
            np.testing.assert_array_equal(found[0], wanted[0])
            np.testing.assert_allclose(found[1], wanted[1], rtol=1e-13, err_msg=str(k))
    ((way,),) = [kind.ways for kind in compiled.explain().kinds]
    assert way.calls >= 2 * len(values) - 2 and way.compared >= way.operations - 1
