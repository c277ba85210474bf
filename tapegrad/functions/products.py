"""Products of arrays, and solutions of linear equations."""

from __future__ import annotations

from typing import Any

import numpy as np

from tapegrad.dispatch import apply, value_of
from tapegrad.errors import ShapeError, UnsupportedOpError
from tapegrad.functions.shapes import reshape
from tapegrad.functions.tables import UFUNCS, implements, into, tensor_of
from tapegrad.ops import REGISTRY


def matmul(a: Any, b: Any) -> Any:
    """Matrix product."""
    a, b = tensor_of(a), tensor_of(b)
    if np.ndim(value_of(a)) == 0 or np.ndim(value_of(b)) == 0:
        raise ShapeError(
            f"matmul of shapes {np.shape(value_of(a))} and {np.shape(value_of(b))}: "
            "scalars have no matrix product; use *"
        )
    return apply(REGISTRY["matmul"], (a, b))


UFUNCS[np.matmul] = matmul


@implements(np.dot)
def dot(a: Any, b: Any, out: Any = None) -> Any:
    """Product over the last axis of `a` and the last but one of `b`."""
    if out is not None:
        return into(np.dot, out, a, b)
    a, b = tensor_of(a), tensor_of(b)
    left, right = np.ndim(value_of(a)), np.ndim(value_of(b))
    if left == 0 or right == 0:
        return a * b
    if right <= 2:
        return matmul(a, b)
    letters = "abcdefghijklmnopqrstuvwxyz"
    inputs = letters[: left - 1] + "z", letters[left - 1 : left + right - 3] + "z" + letters[left + right - 3]
    return einsum(f"{inputs[0]},{inputs[1]}", a, b)


@implements(np.outer)
def outer(a: Any, b: Any, out: Any = None) -> Any:
    """All products of elements of two arrays."""
    if out is not None:
        return into(np.outer, out, a, b)
    return reshape(tensor_of(a), (-1, 1)) * reshape(tensor_of(b), (1, -1))


@implements(np.linalg.solve)
def solve(a: Any, b: Any) -> Any:
    """Solution of linear equations."""
    a, b = tensor_of(a), tensor_of(b)
    if np.ndim(value_of(a)) < 2 or np.shape(value_of(a))[-1] != np.shape(value_of(a))[-2]:
        raise ShapeError(f"solve needs square matrices, found shape {np.shape(value_of(a))}")
    return apply(REGISTRY["solve"], (a, b))


@implements(np.einsum)
def einsum(subscripts: Any, *operands: Any, optimize: Any = False, **rest: Any) -> Any:
    """Einstein summation, with subscripts as text."""
    if not isinstance(subscripts, str):
        raise UnsupportedOpError("einsum: give the subscripts as text, such as 'ij,jk->ik'")
    if rest.get("out") is not None:
        return into(np.einsum, rest.pop("out"), subscripts, *operands, optimize=optimize, **rest)
    if unknown := rest.keys() - {"out", "dtype", "order", "casting"}:
        raise TypeError(f"einsum: unknown argument {min(unknown)!r}")
    if rest.get("dtype") is not None:
        raise UnsupportedOpError("einsum: dtype= is not supported on Tensors")
    operands = tuple(tensor_of(x) for x in operands)
    text = subscripts.replace(" ", "")
    given, arrow, output = text.partition("->")
    inputs = given.split(",")
    if len(inputs) != len(operands):
        raise ShapeError(f"einsum: {len(inputs)} subscripts in {subscripts!r} for {len(operands)} operands")
    if "..." in text:
        inputs, output, arrow = _without_ellipsis(inputs, operands, output, arrow)
    if not arrow:
        found = "".join(inputs)
        output = "".join(sorted(c for c in set(found) if found.count(c) == 1))
    for labels, x in zip(inputs, operands, strict=True):
        if len(labels) != np.ndim(value_of(x)):
            raise ShapeError(f"einsum: subscripts {labels!r} for an operand of shape {np.shape(value_of(x))}")
    return apply(REGISTRY["einsum"], operands, {"inputs": inputs, "output": output})


def _without_ellipsis(inputs: list[str], operands: Any, output: str, arrow: str) -> Any:
    """Give the axes that ``...`` stands for labels of their own."""
    used = set("".join(inputs) + output)
    free = [c for c in "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz" if c not in used]
    ranks = [np.ndim(value_of(x)) - len(s.replace("...", "")) if "..." in s else 0
             for s, x in zip(inputs, operands, strict=True)]  # fmt: skip
    if min(ranks) < 0:
        raise ShapeError("einsum: an operand has fewer dimensions than subscripts")
    widest = max(ranks)
    extents = [np.shape(value_of(x)) for x in operands]
    if any(1 in shape for shape, rank in zip(extents, ranks, strict=True) if rank):
        sizes: dict[str, set[int]] = {}
        for s, shape, rank in zip(inputs, extents, ranks, strict=True):
            at = s.find("...")
            for d in range(rank):
                sizes.setdefault(free[widest - rank + d], set()).add(shape[at + d])
        if any(len(found) > 1 for found in sizes.values()):
            raise UnsupportedOpError("einsum: '...' that broadcasts has no derivative here; reshape first")
    labels = free[:widest]
    expanded = [
        s.replace("...", "".join(labels[widest - rank :])) for s, rank in zip(inputs, ranks, strict=True)
    ]
    if not arrow:
        found = "".join(inputs).replace("...", "")
        output = "..." + "".join(sorted(c for c in set(found) if found.count(c) == 1))
    return expanded, output.replace("...", "".join(labels)), "->"
