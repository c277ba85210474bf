"""Products of arrays, and solutions of linear equations."""

from __future__ import annotations

import functools
import math
import operator
import string
from collections.abc import Sequence
from typing import Any

import numpy as np

from tapegrad.core.base import Casting, DType, like_of, ndim_of, needs_derivative, shape_of, undisturbed
from tapegrad.core.conversion import astype
from tapegrad.core.functions import implements
from tapegrad.core.saved_values import save_arrays
from tapegrad.errors import ShapeError
from tapegrad.numpy_api.shapes import laid
from tapegrad.numpy_api.tables import into, tensor_of
from tapegrad.ops import REGISTRY
from tapegrad.ops.buffers import LARGE
from tapegrad.ops.lapack import LU
from tapegrad.ops.primitive import Primitive
from tapegrad.tensor import Operand, Out, Tensor, TensorOrArray, apply, is_tensor, wrap

TERMS = 1 << 14  # of an einsum of several operands, above which they are multiplied in pairs


@implements(np.dot, by_shapes=True)
def dot(a: Operand, b: Operand, out: Out = None) -> TensorOrArray:
    """Product over the last axis of `a` and the last but one of `b`."""
    if out is not None:
        return into(np.dot, out, a, b)
    a, b = tensor_of(a), tensor_of(b)
    left, right = ndim_of(a), ndim_of(b)
    if left == 0 or right == 0:
        return a * b
    if right <= 2:
        return apply(REGISTRY["matmul"], (a, b))
    letters = "abcdefghijklmnopqrstuvwxyz"
    inputs = letters[: left - 1] + "z", letters[left - 1 : left + right - 3] + "z" + letters[left + right - 3]
    return einsum(f"{inputs[0]},{inputs[1]}", a, b)


def contract(
    a: Operand, b: Operand, over: Sequence[Sequence[int]], along: Sequence[Sequence[int]] = ((), ())
) -> TensorOrArray:
    """Products summed over pairs of axes, as a product of matrices, or of stacks of them.

    `over` and `along` are axes of `a` and as many of `b`, of the same lengths. Those `along` come first in
    the result, then the rest of `a`, then that of `b`.
    """
    shapes = shape_of(a), shape_of(b)
    rows, columns = (
        [d for d in range(len(shape)) if d not in summed and d not in stacked]
        for shape, summed, stacked in zip(shapes, over, along, strict=True)
    )
    vectors = not along[0] and len(over[0]) > 0  # a matrix of one row or column may be one
    first = _merged(a, along[0], rows, over[0], vectors and not rows)
    second = _merged(b, along[1], over[1], columns, vectors and not columns)
    if is_tensor(first) != is_tensor(second):
        first, second = _owned(first, a), _owned(second, b)
    found = np.matmul(first, second)
    kept = [shapes[0][d] for d in (*along[0], *rows)] + [shapes[1][d] for d in columns]
    return laid(found, (*kept,))


def _merged(
    x: Operand, along: Sequence[int], rows: Sequence[int], columns: Sequence[int], vector: bool
) -> TensorOrArray:
    """An array with its axes in this order, those of rows and those of columns as one."""
    shape, order = shape_of(x), [*along, *rows, *columns]
    if order != list(range(len(shape))):
        x = np.transpose(x, order)
    merged = [shape[d] for d in along]
    merged += [math.prod([shape[d] for d in group]) for group in (rows, columns) if group or not vector]
    return laid(x, (*merged,))


def _owned(x: TensorOrArray, source: Operand) -> TensorOrArray:
    """A large copy of an array as a constant Tensor, which no checksum has to guard: nobody else has it."""
    if type(x) is not np.ndarray or x.nbytes < LARGE or np.may_share_memory(x, np.asarray(source)):
        return x
    return wrap(x)


@implements(np.outer, by_shapes=True)
def outer(a: Operand, b: Operand, out: Out = None) -> TensorOrArray:
    """All products of elements of two arrays."""
    if out is not None:
        return into(np.outer, out, a, b)
    a, b = tensor_of(a), tensor_of(b)
    return laid(a, (np.size(like_of(a)), 1)) * laid(b, (np.size(like_of(b)),))


@implements(np.linalg.solve)
def solve(a: Operand, b: Operand) -> TensorOrArray:
    """Solution of linear equations."""
    a, b = tensor_of(a), tensor_of(b)
    if ndim_of(a) < 2 or shape_of(a)[-1] != shape_of(a)[-2]:
        raise ShapeError(f"solve needs square matrices, found shape {shape_of(a)}")
    return apply_keeping_factors("solve", a, b)


def apply_keeping_factors(name: str, *operands: Operand) -> Tensor:
    """Compute an op of a matrix and perhaps others; what is recorded keeps the LU factors of a large one."""
    keeps = LU.of(like_of(operands[0])) is not None and any(map(needs_derivative, operands))
    return _apply_keeping(REGISTRY[name], *operands) if keeps else apply(REGISTRY[name], operands)


@undisturbed
def _apply_keeping(op: Primitive, *operands: Operand) -> Tensor:
    lu = LU.of(like_of(operands[0]))
    assert lu is not None
    found = apply(op, operands, {"lu": lu})
    save_arrays([found], [lu])
    return found


@implements(np.einsum, by_shapes=True)
def einsum(
    *operands: Any, out: Out = None, optimize: bool | str | Sequence[str | tuple[int, ...]] = False,
    dtype: DType = None, order: str = "K", casting: Casting = "safe",
) -> TensorOrArray:  # fmt: skip
    """Einstein summation, with subscripts as text or as lists between the operands.

    Sums over axes of two operands are products of matrices, and large ones of several operands are computed
    in pairs; so values are NumPy's but for rounding.
    """
    if out is not None:
        rest = {"optimize": optimize, "dtype": dtype, "casting": casting, "order": order}
        return into(np.einsum, out, *operands, **rest)
    subscripts, *arrays = operands if isinstance(operands[0], str) else _as_text(operands)
    arrays = [tensor_of(x) for x in arrays]
    if dtype is not None:
        for x in arrays:
            if not np.can_cast(like_of(x).dtype, dtype, casting):
                raise TypeError(
                    f"einsum: operands of dtype {like_of(x).dtype} as {np.dtype(dtype)}: not with {casting=}"
                )
        arrays = [astype(x, dtype) if is_tensor(x) else np.asarray(x, dtype) for x in arrays]
    text = subscripts.replace(" ", "")
    given, arrow, output = text.partition("->")
    inputs = given.split(",")
    if len(inputs) != len(arrays):
        raise ShapeError(f"einsum: {len(inputs)} subscripts in {subscripts!r} for {len(arrays)} operands")
    if "..." in text:
        inputs, output, arrow = _without_ellipsis(inputs, arrays, output, arrow)
    if not arrow:
        found = "".join(inputs)
        output = "".join(sorted(c for c in set(found) if found.count(c) == 1))
    for labels, x in zip(inputs, arrays, strict=True):
        if len(labels) != ndim_of(x):
            raise ShapeError(f"einsum: subscripts {labels!r} for an operand of shape {shape_of(x)}")
    if len(set(output)) != len(output) or not set(output) <= set("".join(inputs)):
        raise ShapeError(
            f"einsum: output {output!r} names each of its axes once, out of {','.join(inputs)!r}"
        )
    if len(arrays) > 2:
        if optimize is False and _terms(arrays, inputs) > TERMS:
            optimize = "greedy"
        if optimize is not False:
            return _in_pairs(arrays, inputs, output, optimize)
    return _summed(arrays, inputs, output)


def _terms(arrays: list[Tensor], inputs: list[str]) -> int:
    """How many products are summed up."""
    extents: dict[str, int] = {}
    for labels, x in zip(inputs, arrays, strict=True):
        for c, n in zip(labels, shape_of(x), strict=True):
            extents[c] = max(extents.get(c, 1), n)
    return math.prod(extents.values())


def _summed(arrays: list[TensorOrArray], inputs: list[str], output: str) -> TensorOrArray:
    """One sum of products, of matrices where it is one."""
    found = _product(arrays, inputs, output) if len(arrays) == 2 else None
    return apply(REGISTRY["einsum"], arrays, {"inputs": inputs, "output": output}) if found is None else found


def _product(arrays: list[TensorOrArray], inputs: list[str], output: str) -> Any:
    """An einsum of two operands as a product of matrices; None if it is none, or none that BLAS knows."""
    if next((c in inputs[1] for c in output if (c in inputs[0]) != (c in inputs[1])), False):
        arrays, inputs = arrays[::-1], inputs[::-1]  # as its columns come first
    one, two = inputs
    over = [c for c in one if c in two and c not in output]
    along = [c for c in output if c in one and c in two]
    shapes = [shape_of(x) for x in arrays]
    if (
        not over
        or len({*one}) < len(one) or len({*two}) < len(two)  # diagonals
        or len(over) + len(output) < len({*one, *two})  # sums of one operand
        or any(shapes[0][one.index(c)] != shapes[1][two.index(c)] for c in (*over, *along))
        or any(like_of(x).dtype.char not in "fdFD" for x in arrays)
    ):  # fmt: skip
        return None
    summed, stacked = ([[s.index(c) for c in labels] for s in inputs] for labels in (over, along))
    found = contract(arrays[0], arrays[1], summed, stacked)
    order = along + [c for s in inputs for c in s if c not in over and c not in along]
    return found if order == [*output] else np.transpose(found, [order.index(c) for c in output])


def _in_pairs(arrays: list[TensorOrArray], inputs: list[str], output: str, optimize: Any) -> TensorOrArray:
    """Contract a few operands at a time, in the order that NumPy finds cheapest."""
    text = f"{','.join(inputs)}->{output}"
    shapes = tuple(shape_of(x) for x in arrays)
    find = _path if type(optimize) in (bool, str) else _path.__wrapped__  # else a path as a list, or a tuple
    for places in find(text, shapes, optimize):
        taken = sorted(places, reverse=True)
        chosen = [(arrays.pop(k), inputs.pop(k)) for k in taken]
        labels = [label for _, label in chosen]
        left = set("".join(inputs)) | set(output)
        kept = "".join(c for c in dict.fromkeys("".join(labels)) if c in left)
        final = output if not arrays else kept
        arrays.append(_summed([x for x, _ in chosen], labels, final))
        inputs.append(final)
    return arrays[0]


@functools.lru_cache(maxsize=256)
def _path(
    text: str, shapes: tuple[tuple[int, ...], ...], optimize: bool | str | Sequence[str | tuple[int, int]]
) -> list[tuple[int, int]]:
    """Places of the operands that are multiplied next, in the order that NumPy finds."""
    return np.einsum_path(text, *(np.broadcast_to(0.0, s) for s in shapes), optimize=optimize)[0][1:]


LETTERS = string.ascii_lowercase + string.ascii_uppercase


def _as_text(operands: Sequence[Operand]) -> list[Any]:
    """Operands that lists of numbers follow, as text and operands."""
    pairs, rest = list(zip(operands[::2], operands[1::2], strict=False)), len(operands) % 2
    try:
        texts = [_labels(numbers) for _, numbers in pairs]
        output = "->" + _labels(operands[-1]) if rest else ""
    except (TypeError, IndexError) as error:
        raise TypeError(
            "einsum: subscripts as text, such as 'ij,jk->ik', or after each operand as a list of numbers "
            f"from 0 to {len(LETTERS) - 1} and Ellipsis"
        ) from error
    return [",".join(texts) + output, *(x for x, _ in pairs)]


def _labels(numbers: Any) -> str:
    return "".join("..." if n is Ellipsis else LETTERS[operator.index(n)] for n in numbers)


def _without_ellipsis(
    inputs: list[str], operands: list[TensorOrArray], output: str, arrow: str
) -> tuple[list[str], str, str]:
    """Give the axes that ``...`` stands for labels of their own."""
    used = set("".join(inputs) + output)
    free = [c for c in LETTERS[::-1] if c not in used]
    ranks = [ndim_of(x) - len(s.replace("...", "")) if "..." in s else 0
             for s, x in zip(inputs, operands, strict=True)]  # fmt: skip
    if min(ranks) < 0:
        raise ShapeError("einsum: an operand has fewer dimensions than subscripts")
    widest = max(ranks)
    labels = free[:widest]
    expanded = [
        s.replace("...", "".join(labels[widest - rank :])) for s, rank in zip(inputs, ranks, strict=True)
    ]
    if not arrow:
        found = "".join(inputs).replace("...", "")
        output = "..." + "".join(sorted(c for c in set(found) if found.count(c) == 1))
    elif "..." not in output and widest:
        raise ShapeError(f"einsum: the output {output!r} leaves out the axes that '...' stands for")
    return expanded, output.replace("...", "".join(labels)), "->"
