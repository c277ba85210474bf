"""What is compared in compiled code: a call that a program serves comes to no comparison in Python."""

import itertools
import warnings

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.compilation.events import learner, methods
from tapegrad.compilation.memory import pages
from tapegrad.compilation.paths.matching import Matcher
from tapegrad.core.dispatch import COPIED
from tapegrad.kernels import abi
from tapegrad.numpy_api import tables
from tapegrad.ops import forward
from tests.tiers import every

TABLE = np.arange(96.0).reshape(4, 8, 3) * 0.1
IN_PYTHON = "call", "expect", "expect_flat", "part", "match", "write", "compute", "decide"
COMPARED = {
    "methods": "s = X.sum() + X.mean(axis=0)[1] + X.max() * X.min() + X.prod(1)[0]",
    "shapes": "s = X.reshape(2, 8)[0, 1] + X.reshape((X.shape[0], 2, 2))[0, 1, 1] + X.ravel()[3] + X.T[0, 1]",
    "axes": "s = X.transpose(1, 0)[0, 1] + X.swapaxes(0, 1)[1, 2] + X.dot(X)[1, 0]",
    "operators in place": "X += Y; X -= 2.0; X *= A; X /= Y; X **= 2; s = X[0, 1]; s += X[1, 2]; s *= 2",
    "writes": "X[0] = 0.0; X[:, 1] = Y[0]; X[1:3] = A[2]; X[1, 2] = s; X[2:] = A[:2]; s = X[1, 1]",
    "writes in place": "X[0] += Y[1]; X[1:-1] *= 2; X[:, 0] -= A[:, 1]; s = X[0, 1] + X[2, 2]",
    "large numbers in indices": "W[300:600] = V; W[500:550] *= 2.0; s = W[599] + W[450:500].sum()",
    "columns": "s = (X[0] * T[:, 1, 0] + T[:, 2, 2]).sum() + (T[:, 4:, 1] * X * T[:, :4, 1] / Y)[0, 0]",
    "several operations": "s = X.var() + np.std(X, axis=0, ddof=1)[1] + X.trace() + np.outer(X, Y)[1, 2]",
    "statistics": "s = np.ptp(X) * np.average(X) + np.cov(X)[0, 1] + X.std(1, keepdims=True)[0, 0]",
    "neighbours": "s = np.diff(X)[0, 1] + np.gradient(X[0])[1] + np.trapezoid(X[1]) + np.nansum(X)",
    "sums of products": "s = np.einsum('ij,jk->ik', X, X)[0, 1] + np.kron(X, X)[2, 3] + np.tensordot(X, X)",
    "ufuncs without a derivative": "s = (X * np.sign(X) * np.floor(Y) + Y * np.isfinite(X - 0.2)).sum()",
    "truth values": "s = (X * np.logical_and(np.greater(X, 0.7), A <= Y) * np.logical_not(X > Y)).sum()",
    "parts": "p, q = np.split(X, 2); s = (p * q)[0, 1] + np.unstack(Y)[1][2] + np.hsplit(X, [1, 3])[1][0, 0]",
    "powers": "s = np.power(X, 2.0)[0, 1] + np.power(X, 3.0).sum() + np.power(X, A)[1, 2]",
    "weights": "s = np.average(X, weights=A + 1.0) + np.average(X, axis=0, weights=A[1])[1]",
    "orders": "s = np.sort(X, axis=0)[1, 1] + np.median(X, axis=1)[2] + np.percentile(X, 30.0)",
    "all in order": "s = np.median(X) + np.median(np.round(Y)) * Y[0, 1]",
    "interpolation": "s = np.interp(X, A[0], A[1])[1, 2] + np.interp(Y[0], [-1.0, 2.0], [0.0, 3.0])[1]",
    "knots": "s = np.interp(A[0], np.cumsum(Y[0]), X[0])[1] + np.interp(X, Y[0], A[1], left=s)[0, 1]",
    "running sums": "s = np.cumsum(X)[5] + np.cumprod(X[0])[2] + X.cumsum()[7] + np.cumsum(Y, 1)[0, 1]",
    "choices": "s = np.select([X > 0.7, A > 0.2], [X, Y], 0.5)[1, 2] + np.nan_to_num(X)[0, 1]",
    "equal steps": "s = np.linspace(s, 2.0)[3] + np.linspace(X[0], X[1], 5, axis=1)[1, 2]",
    "numbers in lists": "s = np.take(X, [0, 2], axis=1)[0, 1] + np.take(X[1], np.array([3, 1]))[0]",
    "correlations": "s = np.corrcoef(X)[0, 1] + np.polyval(X[0], 0.5) + np.convolve(X[0], Y[0])[1]",
    "determinants": "s = np.linalg.det(X) * np.linalg.det(Y[1:3, 1:3]) + np.linalg.det(X - X)",
    "logarithms": "p, q = np.linalg.slogdet(X + np.eye(4)); s = p * q + np.linalg.slogdet(X[:1, :1])[1]",
    "matrices of one column": "s = (X @ A[:1].T)[1, 0] + (A[2:3, :2] @ X[:2])[0, 1]",
    "arrays of parts": "p, q = X[0, :2]; s = (tg.array([p, 0.5, q, 2]) * np.stack([q, 1.0, p, s])).sum()",
    "nested lists": "p, q = X[1, 1:3]; s = (tg.array([[p, -q, 0.0], [q, p, 0], [0.0, 0, 1]]) @ X[:3])[1, 2]",
    "copies": "V = X.copy(); V[0] = 1.0; W = Y.clone(); s = (V * W.astype(float))[0, 1] + V.flatten()[5]",
    "places": "s = X[np.array([2, 0])][1, 1] + X[0][np.array([True, False, True, True])].sum() * s",
    "lists": "s = (X * [0.5, 1, 2.0, 3.0] + X @ [[1.0], [2], [3], [0]] - (1, 2, 3, 4))[1, 1] + X[[2]][0, 1]",
    "lists among Tensors": "V = np.concatenate([X[0], [0.5, 1]]); s = np.where(V > 1.0, V, [0.1])[1]",
    "coefficients": "s = np.convolve(X[0], [0.5, 2])[1] + np.append(X[1], 1)[4] * np.dot([0.1, 2], Y[:2])[1]",
    "blocks": "s = np.block([[X, Y[:, :1]], [X[:1] * s, 1.0]])[4, 3] + np.block([s, X[0]])[2]",
    "axes of one element": "s = s[None][0] + X[None][0, 1, 1] + X[:, None][1, 0, 2] + s[..., None][0]",
    "places along axes": "s = X[[1, 0], [2, 3]][0] + X[:, np.array([1, 0])][1, 1] + X[np.ix_([0], [2])][0]",
    "remainders": "s = (X % 0.3 + 2.5 % Y)[1, 2]",
    "looks at arrays": "s = s * (2.0 if np.isfinite(X).all() and np.any(Y > 0.0) and (Y > 0).all() else 3.0)",
    "places looked at": "s = X[0][np.argmax(X[1])] * Y[1, int(Y[1].argmin())] + A[1, np.argmax(Y[2])]",
    "numbers looked at": "s = s * s.item() + s * float(s.detach()) + s * int(np.count_nonzero(X > 0.5))",
    "functions asked": "s = X[0, int(np.argsort(X)[1, 2])] if np.allclose(X, Y, atol=1e9) else s",
    "factors": "X = X + 4.0 * np.eye(4); s = np.sum(np.linalg.solve(X, A) * np.linalg.inv(X))",
    "a factor": "s = np.linalg.cholesky(X @ X.T + np.eye(4), upper=True)[0, 1]",
    "constants": "s = np.where(A > 0.5, X, K)[1, 0] + np.concatenate([X, K])[5, 2] + np.dot(K, Y)[1, 2]",
    "constants of functions": "s = np.trapezoid(X, K)[1] + np.convolve(X[1], A[0])[2]",
    "constants made anew": "s = np.sum((X * tg.ones((4, 4)) + tg.zeros(4, dtype=float)) * Y)",
    "whole numbers looked at": "s = s * 2.0 if np.argmax(X[0]) > 1 else s + np.count_nonzero(Y > 1) * 3",
    "numbers of types": "s = ((X * np.float32(0.5) + 0.1j) * (2j - X)).real[0, 1] * np.float64(2.0)",
    "numbers in text": "s = s * len(f'{s:.3f}{X[1, 2]:5.1f}') + round(s.detach()) + complex(s.detach()).real",
    "values without a history": "p = X.detach(); s = (X * p - p.detach().T).sum() + np.max(p) * s.detach()",
    "nothing recorded": "with tg.no_grad(): p = X @ np.sin(Y); q = float(p[0, 1])\n    s = q * (X * p).sum()",
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
    made = {"np": np, "tg": tg, "A": TABLE[:, :4, 0].copy(), "T": TABLE, **names}
    made["K"] = tg.tensor(made["A"] + 0.5)
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
@pytest.mark.parametrize("text", every(COMPARED.values(), 2), ids=COMPARED)
def test_it_is_compared_in_compiled_code(text, monkeypatch):
    assert not served(text, np.linspace(0.5, 1.5, 16).reshape(4, 4), monkeypatch)


@pytest.mark.parametrize("look", [
    lambda y: y[0].item(), lambda y: float(y[0].detach()), lambda y: bool(y[0] > 3.0), lambda y: y * 2.0,
    lambda y: f"{y[0]:.1f}", lambda y: np.sum(y), lambda y: y[int(np.argmax(y))], np.argsort, np.sin,
])  # fmt: skip
def test_an_interrupt_comes_while_compiled_code_asks_python(look, monkeypatch):
    """Under another handling of errors, of which Python tells whether operations are still compared."""

    def f(x):
        y = np.sin(x) * 2.0
        with np.errstate(divide="ignore"):
            look(y)
        return np.sum(y)

    def interrupted():
        raise KeyboardInterrupt

    compiled, x = tg.compile(f, wait=True), np.array([0.3, 0.5, 0.7])
    wanted = [compiled.value_and_grad(x) for _ in range(6)][-1]
    if abi.native():
        monkeypatch.setattr(forward, "reported_here", interrupted)
        with pytest.raises(KeyboardInterrupt):
            compiled.value_and_grad(x)
        monkeypatch.undo()
    found = compiled.value_and_grad(x)
    assert found[0] == wanted[0] and np.allclose(found[1], wanted[1], rtol=1e-13, atol=0)


def test_errors_of_matrices_are_raised_where_they_come():
    seen = []

    def f(x, least):
        a, found = x * np.eye(3), 1.0
        for function in (np.linalg.inv, np.linalg.cholesky, lambda a: np.linalg.solve(a, x)):
            try:
                found = found + np.sum(function(a - least * np.eye(3)) * x)
            except np.linalg.LinAlgError as error:
                seen.append(str(error))
                found = found * np.sum(x)
        return found

    x = np.array([1.0, 2.0, 3.0])
    compiled = both(f, [(x + 0.1 * (k == 7), 1.0 if k % 6 == 5 else 0.5 + 0.001 * k) for k in range(20)])
    assert len(seen) == 2 * 3 * 3 and seen[:3] == seen[3:6]
    if abi.native():
        assert compiled.explain().kinds[0].ways[0].calls > 10


LOOKS = "s.item() > 0.0", "float(s.detach()) > 0.0", "x.shape == (1,) and s.ndim + len(x) == 1", "s < 9.0"


@pytest.mark.skipif(not abi.native(), reason="this Python compiles no comparison")
@pytest.mark.parametrize("dtype", [float, np.float32])
@pytest.mark.parametrize("look", LOOKS)
def test_looks_at_numbers_and_shapes_are_left_to_compiled_code(look, dtype, monkeypatch):
    """And so is the next operation, though the Tensor that had the number stands for a later result."""

    def f(x, y):
        s = x[0]
        for _ in range(9):
            s = s * (1.1 if eval(look) else 2.0)
        return s * len(y)

    compiled, asked, y = tg.compile(f, argnums=(0, 1), wait=True), [], np.ones(3, dtype)
    for k in range(8):
        compiled.value_and_grad(np.array([0.7 + k], dtype), y)
    for name in ("expect", "compute", "like", "decide"):
        before = getattr(Matcher, name)
        monkeypatch.setattr(Matcher, name, lambda *args, _of=before: asked.append(1) or _of(*args))
    for x in (np.array([0.7], dtype), np.array([-0.7], dtype)):
        found, wanted = compiled.value_and_grad(x, y), tg.func.value_and_grad(f, (0, 1))(x, y)
        assert found[0] == wanted[0] and type(found[0]) is type(wanted[0])
        assert np.allclose(found[1][0], wanted[1][0], rtol=1e-13 if dtype is float else 1e-6, atol=0)
    assert not asked


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


METHODS = "sum", "ravel", "real", *methods.OTHER_NAMES, *methods.OPERATORS, *methods.IN_PLACE


@pytest.mark.parametrize("name", METHODS)
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
    np.pad: "(x, 1)", np.var: "(x, axis=0, ddof=1)", np.std: "(x, axis=1, keepdims=True)", np.ptp: "(x, 0)",
    np.nanmean: "(np.append(x, 1.0))", np.nanmax: "(np.append(x, 1.0))", np.nanmin: "(np.append(x, 1.0))",
    np.nanvar: "(np.append(np.clip(x, -2, 2), 1.0))", np.nanstd: "(np.append(np.clip(x, -2, 2), 1.0))",
    np.average: "(x, 1)", np.cov: "(x)", np.nansum: "(x, axis=0)", np.nanprod: "(x, axis=0)",
    np.nancumsum: "(x)", np.nancumprod: "(x, 0)", np.diff: "(x, 2, axis=0)", np.gradient: "(x, axis=1)",
    np.trapezoid: "(x, axis=0)", np.outer: "(x, x)", np.linalg.outer: "(x[0], x[1])",
    np.tensordot: "(x, x, 1 + (x.ndim == 2))", np.kron: "(x, x)", np.cross: "(x[:, :3], x[:, 1:])",
    np.einsum: "('ij,kj->ik', x, x)", np.trace: "(x, 1)", np.linalg.trace: "(x)", np.polyval: "(x[0], x)",
    np.polyadd: "(x[0], x[1, :3])", np.polysub: "(x[0], x[1, :3])", np.polymul: "(x[0], x[1, :3])",
    np.polyder: "(x[0], 2)", np.polyint: "(x[0])", np.convolve: "(x[0], x[1, :3])",
    np.correlate: "(x[0], x[1, :3])", np.power: "(x, 2.0)", np.take: "(x, [2, 0], axis=1)",
    np.split: "(x, [1, 3], axis=1)[1]", np.array_split: "(x, 3, 1)[2]", np.hsplit: "(x, 2)[1]",
    np.vsplit: "(x, 3)[1]", np.dsplit: "(x.reshape(2, 2, 3), 3)[1]", np.unstack: "(x)[1]",
    np.vander: "(x[0], 3)", np.dstack: "([x, x])", np.column_stack: "([x[0], x[1]])",
    np.append: "(x, [1.0, 2.0])", np.cumulative_sum: "(x, axis=1)", np.cumulative_prod: "(x, axis=0)",
    np.linalg.cross: "(x[:, :3], x[:, 1:])", np.linalg.diagonal: "(x)", np.linalg.matmul: "(x, x.T)",
    np.linalg.tensordot: "(x, x.T, axes=1)", np.linalg.vecdot: "(x, x)", np.linalg.vector_norm: "(x, axis=0)",
    np.linalg.matrix_norm: "(x)", np.linalg.multi_dot: "([x, x.T, x])", np.fft.fftshift: "(x)",
    np.fft.ifftshift: "(x, 1)", np.ediff1d: "(x)", np.corrcoef: "(x)",
    np.sort: "(x, axis=0)", np.partition: "(x, 2)", np.median: "(x, axis=1)", np.quantile: "(x, 0.3, axis=1)",
    np.percentile: "(x, 40.0)", np.interp: "(x, [0.0, 1.0, 2.0], [1.0, 3.0, 2.0])",
    np.nan_to_num: "(x, nan=2.0)", np.linspace: "(x[0], x[1], 5)", np.cumsum: "(x)", np.cumprod: "(x)",
    np.linalg.slogdet: "(x[:, :3])[1]",
    np.select: "([x > 1.0, x > 0.5], [x, x * x], 2.0)",
    tg.zeros: "((3, 4)) + x", tg.ones: "(4, dtype=float) * x",
    np.block: "([[x, x[:, :1]], [np.ones((1, 4)), x[0, 0]]])",
}  # fmt: skip


def test_every_function_by_shapes_is_here():
    assert BY_SHAPES.keys() == tables.BY_SHAPES


@pytest.mark.skipif(not abi.native(), reason="this Python compiles no comparison")
@pytest.mark.parametrize("function", every(BY_SHAPES, 2), ids=lambda f: f.__name__)
def test_it_is_the_same_operation_whatever_the_values(function):
    """By it functions are known that are compared by their arguments alone."""

    def f(x):
        y = eval(f"function{BY_SHAPES[function]}", {"function": function, "np": np, "x": x * 1.0})
        return np.sum(y * y)

    compiled = tg.compile(f, wait=True)
    values = X, 0.0 * X, -X, X * np.inf, X * np.nan, np.sort(-X, axis=None).reshape(3, 4), 1e300 * X, X > 1.0
    with np.errstate(all="ignore"):
        for k, x in enumerate(2 * values):
            x = x.astype(float)
            found, wanted = compiled.value_and_grad(x), tg.func.value_and_grad(f)(x)
            np.testing.assert_array_equal(found[0], wanted[0])
            # of norms whose squares overflow programs do not know the derivative: nan, here times infinity
            known = ~(np.isnan(found[1]) & np.isinf(wanted[1]))
            np.testing.assert_allclose(found[1][known], wanted[1][known], 1e-13, 2e-14, err_msg=str(k))
    ((way,),) = [kind.ways for kind in compiled.explain().kinds]
    assert way.calls >= 2 * len(values) - 2 and way.compared >= way.operations - 1


def both(f, calls):
    """Whether a program gives what recording does, with the same warnings, for arguments of these calls."""
    compiled, recorded = tg.compile(f, wait=True), tg.func.value_and_grad(f)
    for args in calls:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            found = compiled.value_and_grad(*args)
        with warnings.catch_warnings(record=True) as wanted_told:
            warnings.simplefilter("always")
            wanted = recorded(*args)
        np.testing.assert_array_equal(found[0], wanted[0])
        np.testing.assert_allclose(found[1], wanted[1], rtol=1e-13)
        assert [str(w.message) for w in told] == [str(w.message) for w in wanted_told]
    return compiled


def test_a_call_is_not_known_by_its_one_operation_if_it_looks_at_values():
    both(
        lambda x: np.sum(np.nan_to_num(x[0] + 1j * x[1]).imag),
        [(np.where((k % 3 == 2) & (X < 1.0), np.nan, X),) for k in range(16)],
    )


def test_options_of_calls_of_several_operations_are_compared():
    def f(x, k):
        return (
            np.var(x, axis=1, ddof=k % 3)[0] * x.std(0, keepdims=k % 2 == 0).sum()
            + np.diff(x, k % 2 + 1)[0, 0]
        )

    both(f, [(X + 0.1 * k, k) for k in range(40)])


@pytest.mark.skipif(not abi.native(), reason="this Python compiles no comparison")
def test_numbers_that_functions_make_of_shapes_are_theirs_again():
    """The same operations by themselves may have had another number there."""

    def f(x, k):
        if k % 4 < 2:
            return np.var(x)
        d = x - np.mean(x, axis=0, keepdims=True)
        return np.sum(d * d, axis=0) / np.float64(k)

    compiled = both(f, [(V + 0.1 * k, k) for k in range(24)])
    assert [way.calls for kind in compiled.explain().kinds for way in kind.ways] == [22]


@pytest.mark.parametrize(
    "text",
    [
        "x * np.greater(x, 0.1 * k) + np.greater(x, k // 2)",
        "x * np.sign(np.sin(x if k % 2 else x * 3.0)) * np.isnan(np.log(x - 0.3 * k))",
        "x * np.floor(x * 2.0, dtype=np.float32 if k % 2 else np.float64) * np.ceil(x)",
        "x * np.logical_and(x > 0.5, y > k) * np.logical_and(y > k, x > 0.5)",
        "np.var(x, ddof=4)",
        "np.std(x, ddof=5)",
        "np.var(x * 1j) + np.var(x + 1j, ddof=4)",
        "np.cov(x[:1])",
        "np.cov(np.stack([x, x])[:, :1])[0, 1]",
        "np.cov(x, x * y, ddof=3)[0, 1]",
        "np.average(x, weights=y)",
        "np.average(x, None, y * 2.0)",
        "np.gradient(x, k + 0.5)[1]",
        "np.gradient(x, y)[1]",
        "np.trapezoid(x, y) + np.trapezoid(x, dx=0.1 * k)",
        "np.diff(x, prepend=k, append=1.0 * k)[0]",
        "np.polyval(x, 0.1 * k) + np.polyval(y, x)[1]",
        "np.outer(x, y)[1, 2] + np.outer(y, x)[1, 2]",
        "np.einsum('i,i->' if k % 2 else 'i,j->', x, y)",
        "np.einsum(x, [0], y, [0])",
        "np.var(x, where=y > 0.5 * k)",
        "np.std(x, mean=np.mean(x[:k % 3 + 1]))",
        "np.var(x, dtype=np.float32 if k % 2 else np.float64)",
        "np.tensordot(x, y, axes=[[0], [0]])",
        "np.nansum(np.where(y > 0.5 * k, x, np.nan))",
        "np.cov(x, aweights=np.abs(y))",
        "np.std(np.stack([x, x, x[:, ...]]), 0)[1]",
    ],
)
def test_what_functions_of_several_operations_are_given(text):
    def f(x, k):
        y = np.array([0.2, 0.4, 1.0, 3.0]) + k  # noqa: F841
        return np.real(np.sum(eval(text)))

    both(f, [(V + 0.1 * k, k) for k in range(12)])


@pytest.mark.skipif(not abi.native(), reason="there are no programs")
@pytest.mark.parametrize("replay", [False, True])
@pytest.mark.parametrize(
    "text",
    [
        "np.nanmean(x)",
        "np.nanmean(x + 1j, axis=0)",
        "np.nanvar(x, axis=1, ddof=1)",
        "np.nanstd(x, axis=0, keepdims=True)",
        "np.nanmax(x, axis=0)",
        "np.nanmin(x) * np.nanmean(x, axis=1)",
        "np.nanmean(np.sqrt(x - 0.6), axis=0)",
    ],
)
def test_slices_of_nothing_but_nan_are_warned_of(text, replay):
    """Whatever NumPy tells of invalid values when the call begins, which operations may meet too."""

    made = {"np": np}
    exec(f"def f(x):\n    x = x * 2.0\n    return np.sum(np.abs({text}))", made)
    compiled, recorded = tg.compile(made["f"], wait=True, replay=replay), tg.func.value_and_grad(made["f"])
    for k in range(12):
        x = np.where(np.eye(3, 4) * (k % 2), np.nan, X + 0.1 * k)
        x[:, 1] = np.nan if k in (8, 9, 10) else x[:, 1]
        x[1] = np.nan if k in (9, 10) else x[1]
        outcomes = []
        for call in (compiled.value_and_grad, recorded):
            handling = np.errstate(invalid="ignore" if k in (8, 9) else "warn")
            with handling, warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                outcomes.append((*call(x), sorted(str(w.message) for w in told)))
        found, wanted = outcomes
        np.testing.assert_array_equal(found[0], wanted[0])
        np.testing.assert_allclose(found[1], wanted[1], rtol=1e-12, atol=1e-12)
        assert found[2] == wanted[2] and bool(found[2]) >= (k == 9 and "axis" in text)
    (kind,) = compiled._kinds.values()
    assert (kind.replay.replayed if replay else sum(path.served for path in kind.matcher.paths)) >= 3


def attempted(call):
    try:
        return call()
    except (ValueError, ZeroDivisionError) as error:
        return float(len(str(error)))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "text",
    [
        "np.average(x, None, x - 1.0)",
        "np.cov(np.sin(x), None, True, False, None, None, x)",
        "np.cov(np.sin(x), None, True, False, 0, None, np.sqrt(x))",
        "np.cov(np.sin(x), None, True, False, 1, np.floor(x) + 1.0)",
    ],
)
def test_weights_whose_values_decide(text):
    """Some are refused or warned of, and frequencies have no derivative."""

    def f(x, k):
        y = x * 1.0
        return np.sum(attempted(lambda: eval(text, {"np": np, "x": y}))) + np.sum(y)

    special = [0.0, 2.0, 1.0, 1.0], [-2.0, 2.0, 1.0, 1.0], [0.0] * 4, [-1.0, -1.0, -1.0, 0.0]
    values = [V + 2.0 + 0.1 * k for k in range(9)] + [np.array(x) for x in special]
    both(f, [(x, k) for k, x in enumerate(2 * values)])


def test_values_that_rows_do_not_give_are_those_of_the_call_that_is_learned_from():
    """What Python has computed, and looked at, has the buffer of a way that begins alike."""

    def f(x, k):
        fraction, _ = np.modf(x * 1.4)
        y = np.sin(fraction * x)
        z = np.outer(x, x)
        z = z * 2.0 if k % 5 else z - 1.0
        return np.sum(y * y) + np.sum(z)

    both(f, [(np.array([0.3, 0.7, 1.5, 2.0]) + 0.1 * k, k) for k in range(14)])


@pytest.mark.parametrize("n", [pages.LARGE // 8 + k for k in (-1, 0, 1)])
@pytest.mark.parametrize("text", ["np.modf(y)[0]", "np.frexp(y)[0]", "np.ldexp(y, 3)", "np.nextafter(y, 9)"])
def test_large_values_that_ops_do_not_give(n, text):
    """They are recorded as products, by which no program computes them; one call is learned from."""
    lines = [
        "y = x * 1.4", f"part = {text}", "z = part * x + 1.0", "s = x[0] * np.mean(z)",
        "s = s * 0.5 if k > 1 else s + 1.0", "return np.sum(z * z) * 1e-3 + s",
    ]  # fmt: skip
    made = {"np": np}
    exec("def f(x, k):\n    " + "\n    ".join(lines), made)
    both(made["f"], [(np.linspace(0.3, 2.0, n) + 0.1 * k, k) for k in range(5)])


def refuses(write):
    """7 where a write to a part of complex numbers is refused, as these are still there, or 1."""
    try:
        write()
    except tg.errors.ReadOnlyError:
        return 7.0
    return 1.0


WRITTEN_PARTS = {
    "of what is there": """
        factor = refuses(lambda: w.__setitem__(0, x[0]))
        return np.sum(w * x) * factor + np.sum(z.real)""",
    "of what is gone": """
        del z
        factor = refuses(lambda: w.__setitem__(0, x[0]))
        return np.sum(w * x) * factor""",
    "of what is gone in some calls": """
        kept = z if k % 3 else None
        del z
        factor = refuses(lambda: w.__setitem__(0, x[0]))
        return np.sum(w * x) * factor""",
    "behind a branch": """
        s = np.sum(w * x)
        if k > 3:
            s = s + np.sum(w) * refuses(lambda: w.__setitem__(0, x[0]))
        return s + np.sum(z.real)""",
    "of what is gone, behind a branch": """
        s = np.sum(w * x)
        del z
        if k > 3:
            s = s + np.sum(w * w) * refuses(lambda: w.__setitem__(0, x[0]))
        return s""",
    "by operators and functions": """
        factor = refuses(lambda: w.__iadd__(x)) * refuses(lambda: w.fill_(0.0))
        return np.sum(np.abs(z)) * (factor + refuses(lambda: np.copyto(w, x)))""",
    "behind a look": """
        factor = refuses(lambda: w.__setitem__(0, x[0])) if w[0] > 0 and k > 2 else 2.0
        return np.sum(w) * factor + np.sum(z.imag)""",
}


@pytest.mark.parametrize("body", WRITTEN_PARTS.values(), ids=WRITTEN_PARTS)
@pytest.mark.parametrize("part", ["real", "imag"])
def test_writes_to_parts_of_complex_numbers_that_are_there(body, part):
    made = {"np": np, "refuses": refuses}
    exec(f"def f(x, k):\n        z = x * (1 + 1j)\n        w = z.{part}{body}", made)
    both(made["f"], [(np.array([0.3, 0.7, 1.5]) + 0.1 * k, k) for k in range(12)])


KEPT = {}
UNWRAPPED = {  # what np.unwrap might do, and what calls it
    "a constant computed of a number": (lambda x, h: x * h + 2.0 * h, "np.unwrap(y, 0.5 + k)"),
    "a constant computed of an array": (lambda x, h: x * h + np.exp(h), "np.unwrap(y, np.full(4, 0.1 * k))"),
    "a constant computed of a name": (
        lambda x, name: x * len(name) * 0.5,
        "np.unwrap(y, ''.join(['a', 'bc'])) if k % 4 < 2 else y * k * (0.5 + k)",
    ),
    "another Tensor": (lambda x: x * 2.0 + KEPT["z"], "KEPT.update(z=z if k % 2 else y) or np.unwrap(y)"),
    "an exponent": (lambda x, n: x ** (n + 0.5) * 2.0, "np.unwrap(y, k % 3 + 1)"),
    "an index": (lambda x, n: x[[n, 0, 1]] * 2.0, "np.unwrap(y, k % 3 + 1)[0]"),
    "a write": (lambda x: (x * 2.0 + 1.0).fill_(0.5) * x, "np.unwrap(y) if k % 3 else y"),
    "an error": (
        lambda x: np.linalg.inv(x * np.eye(4)) * 2.0,
        "attempt(lambda: np.unwrap(y - (k % 4) * 0.5))",
    ),
    "its argument": (lambda x: (np.sin(x) * 2.0, x)[1], "np.unwrap(y)"),
}


def attempt(call):
    try:
        return call()
    except np.linalg.LinAlgError:
        return 0.5


@pytest.mark.parametrize(("how", "text"), UNWRAPPED.values(), ids=UNWRAPPED)
def test_what_a_function_of_several_operations_may_read(how, text, monkeypatch):
    monkeypatch.setitem(tables.FUNCTIONS, np.unwrap, how)

    def f(x, k):
        y, z = x * 1.0, np.sin(x)
        return np.sum(eval(text, {**globals(), "y": y, "z": z, "k": k})) + np.sum(z)

    tables.BY_SHAPES.add(np.unwrap)
    try:
        both(f, [(np.array([0.5, 1.0, 1.5, 2.0]) * (1.0 + 0.1 * (k // 8)), k) for k in range(32)])
    finally:
        tables.BY_SHAPES.discard(np.unwrap)
        KEPT.clear()


@pytest.mark.skipif(not abi.native(), reason="this Python compiles no comparison")
@pytest.mark.parametrize("n", [-1, 0, 1])
def test_constants_of_many_elements(n, monkeypatch):
    """Those that are larger than what compiled code copies are compared by the operations."""
    count = COPIED // 8 + n
    before = tables.FUNCTIONS[np.unwrap]
    tables.FUNCTIONS[np.unwrap] = lambda x: np.sum(x * np.arange(float(count))) * 2.0
    tables.BY_SHAPES.add(np.unwrap)
    try:
        text = "s = np.unwrap(np.broadcast_to(s, (C,)))"
        assert bool(served(text, np.ones((4, 4)), monkeypatch, C=count)) is (n > 0)
    finally:
        tables.FUNCTIONS[np.unwrap] = before
        tables.BY_SHAPES.discard(np.unwrap)


@pytest.mark.skipif(not abi.native(), reason="this Python compiles no comparison")
@pytest.mark.parametrize("n", [-1, 0, 1])
def test_arguments_of_many_elements_that_are_to_be_the_same(n, monkeypatch):
    weights = np.ones(COPIED // 8 + n)
    text = "s = np.average(np.broadcast_to(s, C.shape) * 2.0, weights=C)"
    assert bool(served(text, np.ones((4, 4)), monkeypatch, C=weights)) is (n > 0)


@pytest.mark.skipif(not abi.native(), reason="this Python compiles no comparison")
@pytest.mark.parametrize("by_ufunc", [False, True])
def test_comparisons_of_numbers_are_listed_in_compiled_code(by_ufunc, monkeypatch):
    """In the call that is learned from, also behind a way that it has left; masks of them are operands."""
    kept = []

    def f(x, k):
        y, z = x[0] * 2.0, x[1] * 3.0
        masks = y < z, y < 1.0, y >= 1, z == z, y != y
        if by_ufunc:
            masks += np.less(y, z), np.greater(1.0, y)
        s = y * masks[0] + np.where(masks[1], z, y * z) + masks[2] * masks[3] * z + masks[4] * y
        if k > 9:
            s = s * (2.0 if y <= z and masks[1] else 0.5)
        if k == 15:
            kept.append((masks[0], masks[0].numpy().copy()))
        return s + (np.sum(x[int(masks[0]) :]) if k > 12 else x[0])

    listed, note = [], learner.Learner.note_flat
    monkeypatch.setattr(
        learner.Learner, "note_flat", lambda self, g, *args: listed.append(g.__name__) or note(self, g, *args)
    )
    compiled, recorded = tg.compile(f, wait=True), tg.func.value_and_grad(f)
    for k in range(20):
        x = np.array([0.2 + 0.1 * k, 0.6 + 0.3 * (k % 5 == 1), np.nan][: 2 + k % 2])
        found, wanted = compiled.value_and_grad(x, k), recorded(x, k)
        np.testing.assert_array_equal(found[0], wanted[0])
        np.testing.assert_allclose(found[1], wanted[1], rtol=1e-13)
    for mask, value in kept:
        assert mask.numpy() == value and not mask.requires_grad
    assert set(listed) <= ({"less", "greater", "multiply"} if by_ufunc else {"multiply"})
    assert all(kind.ways and kind.ways[0].calls for kind in compiled.explain().kinds)


@pytest.mark.skipif(not abi.native(), reason="this Python compiles no comparison")
@pytest.mark.parametrize("n", [-1, 0])
def test_what_compiled_code_records_it_lists(n, monkeypatch):
    """With attributes and views, in the call that is learned from and behind a way that it has left."""
    listed, note = [], learner.Learner.note

    def f(x, k):
        y = x.reshape(2, -1) * 2.0
        v, s = y[1, 1:], np.sum(y, axis=0)[2] + y[0, 1] * x[-1]
        if k > 9:
            s = s * np.sum(v[::2])
        return s * np.max(v) + np.dot(x, x[::-1]) + np.transpose(y)[2, 1]

    def told(self, op, *args):
        listed.append(op.name)
        note(self, op, *args)

    monkeypatch.setattr(learner.Learner, "note", told)
    compiled, recorded = tg.compile(f, wait=True), tg.func.value_and_grad(f)
    for k in range(20):
        x = np.linspace(-1.0, 2.0, pages.KEPT // 8 + 2 * n) * (1.0 + 0.1 * k)
        found, wanted = compiled.value_and_grad(x, k), recorded(x, k)
        assert found[0] == wanted[0]
        np.testing.assert_allclose(found[1], wanted[1], rtol=1e-13)
        if k == 8:
            assert ("reshape" in listed) == (n == 0)  # as its result is large
            assert not {"sum", "max", "element", "dot"}.intersection(listed)
    assert sum(way.calls for way in compiled.explain().kinds[0].ways) > 12


@pytest.mark.skipif(not abi.native(), reason="this Python compiles no comparison")
@pytest.mark.parametrize("n", [0, 1, 8, 9, 15])
def test_each_element_of_an_argument_counts(n):
    weights, seen = np.ones(16, np.int8), []

    def f(x):
        seen.append(np.average(x * 2.0, weights=weights))
        return seen[-1] * 2.0

    compiled, x = tg.compile(f, wait=True), np.arange(16.0)
    for k in range(12):
        weights[n] = 1 + k // 5
        found = compiled.value_and_grad(x)
        assert found[0] == 2.0 * np.average(x * 2.0, weights=weights)
        np.testing.assert_allclose(found[1], 4.0 * weights / weights.sum(), 1e-15)


def silenced(x, k):
    with np.errstate(divide="ignore", invalid="ignore"):
        y = np.log(x) * 0.0 + x
    return np.sum(y * x)


def silenced_in_part(x, k):
    y = np.log(x + 0.5)
    with np.errstate(divide="ignore"):
        z = 1.0 / x
        with np.errstate(all="ignore"):
            w = np.log(x) * y
        z = z * np.sqrt(x)
    return np.sum(z + w / (x + 1.0)) + np.sum(np.log(x))


def silenced_at_some_calls(x, k):
    y = np.sin(x)
    if k % 3 == 0:
        with np.errstate(all="ignore"):
            return np.sum(np.log(x) * y)
    return np.sum(np.log(x) * y)


def silenced_often(x, k):
    for j in range(40):
        with np.errstate(over="ignore", divide="ignore" if j % 2 else "warn"):
            x = x + np.exp(-1.0 / (x * x)) * 0.01
    return np.sum(x)


def louder(x, k):
    with np.errstate(divide="raise", invalid="raise"):
        try:
            y = np.log(x)
        except FloatingPointError:
            y = x * 3.0
    with np.errstate(under="warn", over="ignore"):
        return np.sum(y * np.exp(-700.0 - x * 30.0) + x)


def silenced_and_looked_at(x, k):
    with np.errstate(all="ignore"):
        y = np.log(x) * x
        s = float(np.isnan(y).any()) if k % 2 else 1.0
    return np.sum(np.where(np.isnan(y), x, y)) * (s + 1.0)


def silenced_for_good(x, k):
    before = np.seterr(all="ignore")
    y = np.log(x)
    np.seterr(**before)
    return np.sum(np.where(x > 0.0, y, x * np.log(x + 0.5)))


SILENCED = (
    silenced, silenced_in_part, silenced_at_some_calls, silenced_often, louder, silenced_and_looked_at,
    silenced_for_good,
)  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("f", "base", "often"),
    every(itertools.product(SILENCED, [{}, {"all": "ignore"}, {"under": "warn"}], [1, 4]), 5),
    ids=lambda x: getattr(x, "__name__", None),
)
def test_other_handling_of_errors_inside(f, base, often):
    """Each operation's warnings are those of the handling in which it is applied."""
    at = [0.0, -0.25, 0.5, 1.5]
    with np.errstate(**base):
        both(f, [(np.array([0.3, 0.7, at[k // often % 4 if k > 7 else 3], 2.0]), k) for k in range(40)])


@pytest.mark.filterwarnings("ignore")
def test_an_error_of_what_python_computed_is_told_once():
    def louder_in_part(x, k):
        with np.errstate(over="raise"):
            y = x % 2.0
        return np.sum(y) + np.std(x)

    def with_another_exponent(x, k):
        y = np.power(x, -1.5 if k % 2 else -0.5)
        return np.sum(y) + np.std(x)

    for f in louder_in_part, with_another_exponent:
        both(f, [(np.array([1.5 + k, 2.0, [3.0, np.inf, 0.0][k // 6 % 3]]), k) for k in range(30)])


@pytest.mark.skipif(not abi.native(), reason="this Python compiles no comparison")
def test_other_handling_of_errors_is_followed():
    compiled = both(silenced_in_part, [(V**2 + 0.5 + k, k) for k in range(24)])
    ((way,),) = [kind.ways for kind in compiled.explain().kinds]
    assert way.calls == 22 and "computed by" in compiled.explain()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "text", ["np.sort(z)", "np.median(np.stack([z, z * z]), axis=0)", "np.quantile(z, 0.4)"]
)
def test_orders_behind_an_error_of_what_python_computes(text):
    """Rows end at the error; what is behind it is computed where the call leaves, of these values."""

    def f(x):
        z = x * np.minimum(np.abs(x[0]) ** 300.5, 2.0)
        return np.sum(eval(text, {"np": np, "z": z}) * np.arange(1.0, 5.0))

    compiled, generator = tg.compile(f, wait=True), np.random.default_rng(0)
    for k in range(12):
        x = generator.uniform(0.5, 1.5, 4)
        x[0] = 100.0 if k % 4 == 3 else x[0]
        found, wanted = compiled.value_and_grad(x), tg.func.value_and_grad(f)(x)
        assert found[0] == wanted[0]
        np.testing.assert_allclose(found[1], wanted[1], 1e-14)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("how", [{"under": "warn"}, {}])
@pytest.mark.parametrize("infinite", [False, True])
def test_derivatives_that_meet_an_error_are_added_once(how, infinite):
    """Rows in reverse call NumPy, which may be told to raise errors for the rows before them."""

    def f(x):
        y = x * 1.0
        with np.errstate(**how):
            z = y.T - y if not infinite else y.T + y
            return np.sum(1.0 / z if not infinite else z * y[::-1] - np.abs(z) * y)

    compiled, x = tg.compile(f, wait=True), np.array([[1.0, 2.0], [3.0, 5.0]])
    if infinite:
        x[0, 1] = np.inf
    for _ in range(6):
        found, wanted = compiled.value_and_grad(x), tg.func.value_and_grad(f)(x)
        np.testing.assert_array_equal(found[0], wanted[0])
        np.testing.assert_allclose(found[1], wanted[1], 1e-14)


@pytest.mark.parametrize("axes", [(1, 0), (2, 0, 1), (1, 2, 0)])
def test_norms_add_up_in_the_order_of_recording(axes):
    def f(x):
        return np.linalg.norm(x.reshape((6, 10) if len(axes) == 2 else (3, 4, 5)).transpose(axes))

    compiled, recorded = tg.compile(f, wait=True), tg.func.value_and_grad(f)
    for k in range(12):
        x = np.random.default_rng(k).normal(size=60)
        assert compiled(x) == recorded(x)[0]


@pytest.mark.skipif(not abi.native(), reason="this Python compiles no comparison")
def test_looks_that_do_not_come_make_no_other_way():
    def f(x, k):
        for j in range(3):
            x = x * 1.5
            if (k >> j) & 1:
                assert np.isfinite(x).all() and not np.any(x > 1e9) and np.argmax(x) == 3
        return np.sum(x * x)

    compiled = both(f, [(V + 0.1 * k, 7 if k < 3 else k % 8) for k in range(19)])
    assert [way.calls for kind in compiled.explain().kinds for way in kind.ways] == [17]


@pytest.mark.skipif(not abi.native(), reason="this Python compiles no comparison")
def test_numbers_that_are_kept_do_not_end_a_program():
    kept = []

    def f(x):
        kept.append(np.argmax(x))
        return np.sum(x * x) * (2.0 if np.any(x > 1.0) else 3.0)

    compiled = both(f, [(V + 0.01 * k,) for k in range(24)])
    assert [way.calls for kind in compiled.explain().kinds for way in kind.ways] == [22]
    assert all(i.item() == 3 and type(i) is tg.Tensor for i in kept)
