"""What a type checker sees of results; `test_types` has mypy check it and runs it too."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import TYPE_CHECKING, Any, assert_type

import numpy as np

import tapegrad as tg
import tapegrad.scipy as ts
from tapegrad.autograd.graph import Node
from tapegrad.autograd.hooks import RemovableHandle
from tapegrad.scipy.stats.frozen import Frozen
from tapegrad.scipy.stats.univariate import Continuous

Array = np.ndarray
x = tg.tensor([1.0, 2.0], requires_grad=True)

assert_type(x, tg.Tensor)
assert_type(x + 1, tg.Tensor)
assert_type(2 * x, tg.Tensor)
assert_type(x / x, tg.Tensor)
assert_type(x**2, tg.Tensor)
assert_type(2.0**x, tg.Tensor)
assert_type(x // 2, tg.Tensor)
assert_type(x % 2, tg.Tensor)
assert_type(-x, tg.Tensor)
assert_type(abs(x), tg.Tensor)
assert_type(x @ np.ones((2, 2)), tg.Tensor)
assert_type(x @ x, tg.Tensor)
assert_type(x > 1, tg.Tensor)
assert_type(x[0], tg.Tensor)
assert_type(x.T, tg.Tensor)
assert_type(x.sum(), tg.Tensor)
assert_type(x.mean(axis=0), tg.Tensor)
assert_type(x.std(), tg.Tensor)
assert_type(x.reshape(2, 1), tg.Tensor)
assert_type(x.take([1]), tg.Tensor)
assert_type(x.argmax(), tg.Tensor)
assert_type(x.astype(np.float32), tg.Tensor)
assert_type(x.dot(x), tg.Tensor)
assert_type(x.exp(), tg.Tensor)
assert_type(x.sin(), tg.Tensor)
assert_type(x.detach(), tg.Tensor)
assert_type(x.nonzero(), tuple[tg.Tensor, ...])
assert_type(x.shape, tuple[int, ...])
assert_type(x.detach().numpy(), Array)
assert_type((x * 2).grad_fn, Node | None)
assert_type((x * 2).register_hook(lambda g: g * 2), RemovableHandle)
assert_type(x.sum().backward(), None)
assert_type(x.grad, tg.Tensor | None)
assert_type(tg.zeros((2, 3)), tg.Tensor)
for row in x:
    assert_type(row, tg.Tensor)
y = x * 1.0
y += 1
assert_type(y, tg.Tensor)

# What NumPy's stubs say of functions of theirs, which know no other type than their own
as_array: np.ndarray = np.sin(x) * 2 + np.exp(x)
as_tensor: tg.Tensor = np.sum(x)  # of which they say nothing

assert_type(tg.grad(x.sum(), x), tuple[tg.Tensor, ...])
assert_type(tg.grad([x.sum()], [x], create_graph=True), tuple[tg.Tensor, ...])
assert_type(tg.grad(x.sum(), [x, y], allow_unused=True), tuple[tg.Tensor | None, ...])
assert_type(tg.grad(x.sum(), {"x": x}), dict[Any, Any])


@tg.njit
def square(v: float) -> float:
    return v * v


@tg.njit(rerun=True)
def cube(v: float) -> float:
    return v**3


assert_type(square.py_func, FunctionType)
assert_type(cube.py_func, FunctionType)
assert_type(tg.func.grad(square, 0, True), Callable[..., Any])
assert_type(tg.func.grad(square)(2.0), float)
assert_type(tg.func.grad(np.sum)(np.ones(2)), np.ndarray[tuple[int], np.dtype[np.float64]])
assert_type(tg.func.grad(np.sum)(x), tg.Tensor)
assert_type(tg.func.grad(lambda p: p["a"] ** 2)({"a": 2.0}), dict[str, float])
assert_type(tg.func.value_and_grad(lambda v: v**2)(2.0), tuple[float, float])
assert_type(tg.func.value_and_grad(np.sum)(x), tuple[tg.Tensor, tg.Tensor])
assert_type(tg.func.hvp(lambda v: v**3)(2.0, 1.0), float)
assert_type(tg.func.hessian(np.prod)(np.ones(2)), Array)
assert_type(tg.func.hessian(np.prod)(x), tg.Tensor)
assert_type(tg.func.hessian(lambda v: v**3)(2.0), float)

A = tg.tensor([[2.0, 0.5], [0.5, 1.0]], requires_grad=True)
assert_type(ts.linalg.solve(A, [1.0, 2.0]), tg.Tensor)
assert_type(ts.linalg.det(A), tg.Tensor)
assert_type(ts.linalg.expm(A), tg.Tensor)
assert_type(ts.linalg.cholesky(A, lower=True), tg.Tensor)
assert_type(ts.fft.fft(x), tg.Tensor)
assert_type(ts.fft.dctn(A, axes=[0]), tg.Tensor)
assert_type(ts.signal.fftconvolve(x, [1.0, 2.0]), tg.Tensor)
assert_type(ts.spatial.distance.euclidean(x, [0.0, 0.0]), tg.Tensor)
solution: Array = ts.linalg.solve(np.eye(2), np.ones(2))
solution = ts.linalg.solve(a=np.eye(2), b=np.ones(2))
lower, upper = ts.linalg.lu(A, permute_l=True)
filtered, state = ts.signal.lfilter([1.0], [1.0, -0.5], x, zi=[0.0])
spectrum: Array = ts.fft.rfft([1.0, 2.0, 3.0], 4)

assert_type(ts.stats.norm.logpdf(x, 0.0, 2.0), tg.Tensor)
assert_type(ts.stats.poisson(x), Frozen)
assert_type(ts.stats.norm, Continuous)
scipys = ts.stats.entropy, ts.signal.welch, ts.ndimage.label, ts.spatial.KDTree, ts.interpolate.pade

S = ts.sparse.SparseTensor(x, ts.sparse.csr_array((x, ([0, 1], [1, 0])))._pattern)
assert_type(S + S, ts.sparse.SparseTensor)
assert_type(S + np.eye(2), tg.Tensor)
assert_type(np.eye(2).tolist() + S, tg.Tensor)
assert_type(S - A, tg.Tensor)
assert_type(A - S, tg.Tensor)
if TYPE_CHECKING:
    tg.sin  # type: ignore[attr-defined]
