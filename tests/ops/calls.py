"""Calls of NumPy's functions and of ndarray's methods: (name, function of arrays or Tensors, operands).

An operand is a shape, whose array is drawn at random and requires grad, or an array, which does not.
"""

import numpy as np

import tapegrad as tg

A, B, V, S = (2, 3), (3, 2), (3,), ()  # shapes: matrices, a vector, a scalar
T3 = (2, 3, 2)
POSITIVE = "positive"
SQUARE = "matrix"  # well conditioned

UFUNCS = [
    ("operators", lambda x, y: -(x + y) * (x - y) / (y * y + 2.0) + abs(+x), [A, A]),
    ("reflected", lambda x: 2.0 - 3 * x + 1.0 / (x * x + 1) + np.ones(3) * x, [A]),
    ("lists", lambda x: [1.0, 2.0, 3.0] * x + x / [2, 4, 8], [A]),
    ("arrays first", lambda x: np.ones(A) * x + np.float64(2) * x - np.arange(3) / (2 + x * x), [V]),
    ("powers", lambda x: x**2 + x**2.0 + x**3 + x**0.5 + x**-1, [(POSITIVE, A)]),
    ("np.power", lambda x, y: np.power(x, y) + 2**y + 1.5**x, [(POSITIVE, A), A]),
    ("np.float_power", lambda x: np.float_power(x, 2) * np.float_power(x, 1.5), [(POSITIVE, A)]),
    ("add, multiply", lambda x, y: np.add(x, np.multiply(x, y)), [A, V]),
    ("subtract, divide", lambda x, y: np.subtract(x, np.divide(x, 2 + np.square(y))), [A, S]),
    ("negative, positive", lambda x: np.negative(x) * np.positive(x), [A]),
    ("absolute, reciprocal", lambda x: np.absolute(x) + np.reciprocal(x), [(POSITIVE, A)]),
    ("roots and logarithms", lambda x: np.sqrt(x) + np.log(x) + np.log1p(x), [(POSITIVE, A)]),
    ("exponentials", lambda x: np.exp(x) * np.expm1(x), [A]),
    ("circular", lambda x: np.sin(x) * np.cos(x) + np.tan(x / 3), [A]),
    ("hyperbolic", lambda x: np.tanh(x) + np.cosh(x) * np.sinh(x), [A]),
    ("plane", lambda x, y: np.arctan2(x, y) * np.hypot(x, y), [A, (POSITIVE, A)]),
    ("extremes", lambda x, y: np.maximum(x, y) * np.minimum(x, y + 0.1), [A, V]),
    ("dtype=", lambda x: np.add(x, 1, dtype=float) * np.exp(x, dtype=np.float64), [A]),
    ("torch's names", lambda x: x.exp() + x.log() + x.sqrt() + x.sin() * x.cos() + x.tanh() + x.abs(),
     [(POSITIVE, A)]),
    ("0-d", lambda x, y: np.sin(x) * y**3 + x / (2 + y * y), [S, S]),
    ("comparisons choose", lambda x: x * (x > 0) + np.sign(x) * x + x * np.isfinite(x), [A]),
    ("matmul", lambda x, y: x @ y + np.matmul(x, y), [A, B]),
]  # fmt: skip

REDUCTIONS = [
    (f"{name} {form}", lambda x, f=f, form=form: f(x, **form), [T3])
    for name, f in [("sum", np.sum), ("mean", np.mean), ("max", np.max), ("min", np.min),
                    ("amax", np.amax), ("amin", np.amin), ("prod", np.prod), ("var", np.var), ("std", np.std)]
    for form in ({}, {"axis": -1}, {"axis": (0, -1), "keepdims": True}, {"axis": 1, "keepdims": False})
] + [
    ("reduce", lambda x: np.add.reduce(x) + np.multiply.reduce(x, axis=0, keepdims=True), [A]),
    ("reduce, extremes", lambda x: np.maximum.reduce(x, axis=1) + np.minimum.reduce(x, 1), [A]),
    ("sum of axis ()", lambda x: np.sum(x * x, axis=()), [A]),
    ("dtype=", lambda x: np.sum(x, dtype=float) + np.mean(x, 0, float) + np.prod(x, 0, dtype=float), [A]),
    ("methods", lambda x: x.sum() + x.mean(0) * x.max(axis=1, keepdims=True) + x.min(-1)[0] * x.prod(0), [A]),
    ("var, ddof", lambda x: np.var(x, ddof=1) + np.var(x, axis=0, ddof=1) + x.var(1, keepdims=True)[0], [A]),
    ("std, ddof", lambda x: np.std(x, ddof=1) + np.std(x, axis=-1, ddof=1, keepdims=True) + x.std(0), [A]),
    ("cumsum", lambda x: np.cumsum(x) * 2 + np.cumsum(x[1] ** 2)[1], [A]),
    ("accumulate", lambda x: np.add.accumulate(x) * np.add.accumulate(x, axis=-1), [A]),
    ("cumsum of axes", lambda x: np.cumsum(x, 0) * x.cumsum(axis=-1) + np.cumsum(x, 1, dtype=float), [A]),
    ("cumsum of 0-d", lambda x: np.cumsum(x), [S]),
    ("reductions of 0-d", lambda x: np.sum(x) + x.mean() * np.max(x) + np.prod(x, keepdims=True), [S]),
]  # fmt: skip


def methods(x):
    """The shape methods of ndarray one after the other."""
    y = x.reshape(3, 2).reshape((2, -1)).T.ravel().reshape(1, 3, 2).squeeze(0)
    y = y.transpose().transpose(1, 0).transpose((1, 0)).transpose(None).swapaxes(0, 1)
    return y.flatten() * y.copy().reshape(-1) + y.mT.astype(float).reshape(6)


SHAPES = [
    ("methods", methods, [A]),
    ("reshape", lambda x: np.reshape(x, (3, -1)) * np.reshape(x, (3, 2)) + np.ravel(x)[0], [A]),
    ("transpose", lambda x: np.transpose(x) @ np.transpose(x, (1, 0)).T + np.permute_dims(x, (1, 0))[0, 1],
     [A]),
    ("transpose 3-d", lambda x: np.transpose(x, (2, 0, 1)) * np.transpose(x, (-1, 0, -2)) + x.T[0, 0, 0],
     [T3]),
    ("transpose 1-d, 0-d", lambda x, y: x.T * np.transpose(y), [V, S]),
    ("swapaxes, moveaxis", lambda x: np.swapaxes(x, 0, -1) * np.moveaxis(x, [0, 1], [-1, -2]), [T3]),
    ("matrix_transpose", lambda x: np.matrix_transpose(x) @ np.linalg.matrix_transpose(x).mT, [T3]),
    ("expand, squeeze", lambda x: np.squeeze(np.expand_dims(x, (0, -1)), -1) * np.expand_dims(x, 0), [A]),
    ("squeeze all", lambda x: np.squeeze(x) * np.squeeze(x, (0, 2)) + x.squeeze(), [(1, 3, 1)]),
    ("broadcast_to", lambda x: np.broadcast_to(x, (2, 3)) * np.broadcast_to(x, (2, 2, 3)), [V]),
    ("broadcast_to of 0-d", lambda x: np.broadcast_to(x, 3) * np.broadcast_to(x, ()), [S]),
    ("concatenate", lambda x, y: np.concatenate([x, y.T, x]) * np.concat((y.T, y.T, x), axis=-2), [A, B]),
    ("concatenate, flat", lambda x, y: np.concatenate((x, y), axis=None, dtype=float), [A, V]),
    ("stack", lambda x, y: np.stack([x, y, x]) * np.stack((y, y, x), axis=-1).T.swapaxes(1, 2), [A, A]),
    ("stack, dtype", lambda x: np.stack([x, np.ones(3)], 1, dtype=float), [V]),
    ("hstack, vstack", lambda x, y: np.vstack([np.hstack([x, x]), np.hstack([y, y])]), [A, V]),
    ("hstack of vectors", lambda x, y: np.hstack([x, y, y]) * 2, [V, S]),
    ("hstack of matrices", lambda x: np.hstack([x, x * 2, np.ones((2, 1))]), [A]),
    ("vstack of vectors", lambda x, y: np.vstack([x, y, [1.0, 2.0, 3.0]]), [V, A]),
    ("flip", lambda x: np.flip(x) * np.flip(x, 0) + np.flip(x, (0, -1)), [A]),
    ("astype, copy", lambda x: np.astype(x, float) * np.copy(x) + x.astype(np.float64), [A]),
]  # fmt: skip

CHOICES = [
    ("where", lambda x, y: np.where(x > y, x * 2, y), [A, V]),
    ("where, numbers", lambda x: np.where([True, False, True], x, 1.5) + np.where(x > 0, 2, x), [A]),
    ("where of scalars", lambda x, y: np.where(True, x, y) + np.where(np.array([0, 1]), x, y), [S, S]),
    ("clip", lambda x: np.clip(x, -0.5, 0.5) + np.clip(x, None, 0.3) + np.clip(x, 0.1, None), [A]),
    ("clip, keywords", lambda x: np.clip(x, a_min=-1, a_max=1) + np.clip(x, min=0.1, max=0.4), [A]),
    ("clip, method", lambda x: x.clip(-0.5, 0.5) + x.clip(max=0.3), [A]),
    ("clip between inputs", lambda x, y, z: np.clip(x, y - 1, z + 1), [A, V, S]),
    ("take", lambda x: np.take(x, [0, -1, 0]) * np.take(x, np.array([1, 1, 0]), axis=0)[:, 0], [A]),
    ("take, axis", lambda x: np.take(x, [[0, 2], [1, 1]], axis=-1) * x.take(1, 0)[0] + x.take([1]), [A]),
]  # fmt: skip

PRODUCTS = [
    ("dot 1-d", lambda x, y: np.dot(x, y) * x.dot(y), [V, V]),
    ("dot 2-d", lambda x, y: np.dot(x, y) + x.dot(y), [A, B]),
    ("dot 2-d 1-d", lambda x, y: np.dot(x, y), [A, V]),
    ("dot 1-d 2-d", lambda x, y: np.dot(x, y), [V, B]),
    ("dot 3-d 2-d", lambda x, y: np.dot(x, y), [T3, A]),
    ("dot 2-d 3-d", lambda x, y: np.dot(x, y), [A, (2, 3, 2)]),
    ("dot 3-d 3-d", lambda x, y: np.dot(x, y), [(2, 2, 3), (2, 3, 2)]),
    ("dot 1-d 3-d", lambda x, y: np.dot(x, y), [V, (2, 3, 2)]),
    ("dot with a scalar", lambda x, y: np.dot(x, y) + np.dot(y, x) + np.dot(2.0, x), [A, S]),
    ("outer", lambda x, y: np.outer(x, y) + np.outer(x, [1.0, 2.0, 3.0]), [A, V]),
    ("matmul, array first", lambda x: np.ones((2, 2)) @ x + np.matmul(np.arange(4.0).reshape(2, 2), x), [A]),
    ("matmul, batches", lambda x, y: x @ y, [(2, 1, 2, 3), (3, 3, 2)]),
    ("matmul, vector and batch", lambda x, y: (x @ y) @ x[:2], [V, (2, 3, 2)]),
    ("matmul, batch and vector", lambda x, y: x @ y, [(2, 2, 3), V]),
    ("matmul, transposed", lambda x, y: x.T @ y.T + (y @ x).T, [A, B]),
    ("matmul, strided", lambda x, y: x[:, ::2] @ y[::2] + x[::-1, ::-2] @ y[::2, ::-1], [A, B]),
    ("matmul, swapped batch", lambda x, y: np.swapaxes(x, 0, 1) @ np.swapaxes(y, 0, 1), [T3, T3]),
    ("matmul, repeated rows", lambda x, y: np.broadcast_to(x, (2, 3)) @ np.broadcast_to(y, (3, 3)).T, [V, V]),
    ("matmul, one operand twice", lambda x: x @ x.T + x @ x.T, [A]),
    ("matmul, empty", lambda x, y: x @ y + 1.0, [(2, 0), (0, 3)]),
    ("einsum, matmul", lambda x, y: np.einsum("ij,jk->ik", x, y) * np.einsum("ij,jk", x, y), [A, B]),
    ("einsum, implicit order", lambda x: np.einsum("ba", x), [A]),
    ("einsum, implicit trace", lambda x: np.einsum("ii", x), [(3, 3)]),
    ("einsum, diagonal", lambda x: np.einsum("ii->i", x[:, 0]) * np.einsum("iji->ij", x)[:, 1], [(3, 3, 3)]),
    ("einsum, thrice", lambda x: np.einsum("iii->i", x) * np.einsum("iii", x), [(2, 2, 2)]),
    ("einsum, two diagonals", lambda x: np.einsum("iijj->ij", x), [(2, 2, 3, 3)]),
    ("einsum, sum", lambda x: np.einsum("ij->", x) + np.einsum("ij->j", x), [A]),
    ("einsum, sum of one operand", lambda x, y: np.einsum("ij,kl->ik", x, y) + np.einsum("ij,k->", x, y[0]),
     [A, B]),
    ("einsum, spaces", lambda x, y: np.einsum(" i j , j -> i ", x, y), [A, V]),
    ("einsum, ellipsis", lambda x, y: np.einsum("...ij,...jk->...ik", x, y), [T3, (2, 2, 3)]),
    ("einsum, implicit ellipsis", lambda x: np.einsum("b...a", x) * np.einsum("...ij->i...j", x),
     [(2, 2, 2)]),
    ("einsum, ellipsis of fewer axes", lambda x, y: np.einsum("...i,i...->...", x, y), [A, V]),
    ("einsum, three operands", lambda x, y, z: np.einsum("i,ij,j->", x, y, z), [(2,), A, V]),
    ("einsum, four operands", lambda x, y: np.einsum("i,i,i,j->ij", x, y, x, y), [V, V]),
    ("einsum, one operand twice", lambda x: np.einsum("ij,ij->i", x, x), [A]),
    ("einsum, optimize", lambda x, y: np.einsum("ij,j->i", x, y, optimize=True), [A, V]),
    ("einsum, extents of 1", lambda x, y: np.einsum("ij,ij->ij", x, y) + np.einsum("ij,ij->i", x, y)[:, None],
     [(2, 1), A]),
    ("solve, vector", lambda a, b: np.linalg.solve(a, b), [(SQUARE, (3, 3)), V]),
    ("solve, matrix", lambda a, b: np.linalg.solve(a, b), [(SQUARE, (3, 3)), B]),
    ("solve, constant matrix", lambda b: np.linalg.solve(np.diag([1.0, 2.0, 4.0]), b), [V]),
    ("solve, constant right side", lambda a: np.linalg.solve(a, np.ones(2)), [(SQUARE, (2, 2))]),
    ("solve, batch", lambda a, b: np.linalg.solve(a, b), [(SQUARE, (2, 2, 2)), (2, 2, 3)]),
    ("solve, broadcast matrix", lambda a, b: np.linalg.solve(a, b), [(SQUARE, (2, 2)), (3, 2, 1)]),
    ("solve, broadcast vector", lambda a, b: np.linalg.solve(a, b), [(SQUARE, (3, 2, 2)), (2,)]),
    ("solve, transposed", lambda a, b: np.linalg.solve(a.T, b.T), [(SQUARE, (3, 3)), A]),
]  # fmt: skip

MASK = np.array([[True, False, True], [False, True, False]])
INDEX = [
    ("integer", 1), ("negative integer", -1), ("two integers", (1, -2)), ("three integers", (0, 2, 1)),
    ("slice", slice(1, 3)), ("slice with a step", (slice(None), slice(None, None, 2))),
    ("slice backwards", slice(None, None, -1)), ("slice backwards with ends", (0, slice(2, 0, -2))),
    ("slice from the end", (slice(-2, None), slice(None, -1))), ("empty slice", slice(1, 1)),
    ("None", None), ("Nones", (None, 1, None, slice(None), None)), ("Ellipsis", Ellipsis),
    ("Ellipsis and integer", (Ellipsis, 1)), ("integer, Ellipsis, slice", (1, Ellipsis, slice(0, 1))),
    ("Ellipsis in full", (0, 1, 1, Ellipsis)), ("()", ()),
    ("list", [0, 1, 1]), ("array", np.array([[1, 0], [1, 1]])), ("array of int8", np.array([-1, 0], np.int8)),
    ("empty list", []), ("list, slice", ([1, 0], slice(None, None, 2))),
    ("slice, list", (slice(None), [2, 2, 0])),
    ("two lists", ([0, 1, 1], [2, 2, 2])), ("broadcast lists", ([[0], [1]], [0, 2])),
    ("lists apart", ([0, 1], slice(None), [1, 0])), ("list and integer", (1, [0, 2, 2])),
    ("integer, slice, list", (1, slice(1, None), [1, 1])), ("list and None", (None, [1, 1], None)),
    ("list, Ellipsis, list", ([1, 1], Ellipsis, [0, 1])),
    ("mask of all", np.arange(12).reshape(2, 3, 2) % 5 == 0), ("mask of two axes", MASK),
    ("mask of one axis", np.array([False, True])),
    ("mask and slice", (slice(None), np.array([True, False, True]))),
    ("mask and integer", (MASK, 1)), ("mask of nothing", np.zeros((2, 3), bool)),
    ("True", True), ("False", False),
    ("NumPy integer", (np.int64(1), np.uint8(2))), ("Tensor as index", tg.tensor([1, 0])),
    ("Tensor as integer", (tg.tensor(1), slice(None, tg.tensor(2)))), ("Tensor as mask", tg.tensor(MASK)),
]  # fmt: skip
