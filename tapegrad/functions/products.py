"""Products of arrays, and solutions of linear equations."""

from __future__ import annotations

import operator
import string
from typing import Any

import numpy as np

from tapegrad.dispatch import apply
from tapegrad.errors import ShapeError
from tapegrad.functions.shapes import astype, laid
from tapegrad.functions.tables import UFUNCS, implements, into, tensor_of
from tapegrad.handle import is_tensor, value_of
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
        return apply(REGISTRY["matmul"], (a, b))
    letters = "abcdefghijklmnopqrstuvwxyz"
    inputs = letters[: left - 1] + "z", letters[left - 1 : left + right - 3] + "z" + letters[left + right - 3]
    return einsum(f"{inputs[0]},{inputs[1]}", a, b)


@implements(np.outer)
def outer(a: Any, b: Any, out: Any = None) -> Any:
    """All products of elements of two arrays."""
    if out is not None:
        return into(np.outer, out, a, b)
    a, b = tensor_of(a), tensor_of(b)
    return laid(a, (np.size(value_of(a)), 1)) * laid(b, (np.size(value_of(b)),))


@implements(np.linalg.solve)
def solve(a: Any, b: Any) -> Any:
    """Solution of linear equations."""
    a, b = tensor_of(a), tensor_of(b)
    if np.ndim(value_of(a)) < 2 or np.shape(value_of(a))[-1] != np.shape(value_of(a))[-2]:
        raise ShapeError(f"solve needs square matrices, found shape {np.shape(value_of(a))}")
    return apply(REGISTRY["solve"], (a, b))


@implements(np.einsum)
def einsum(*operands: Any, out: Any = None, optimize: Any = False, dtype: Any = None, order: str = "K",
           casting: str = "safe") -> Any:  # fmt: skip
    """Einstein summation, with subscripts as text or as lists between the operands."""
    if out is not None:
        rest = {"optimize": optimize, "dtype": dtype, "casting": casting, "order": order}
        return into(np.einsum, out, *operands, **rest)
    subscripts, *arrays = operands if isinstance(operands[0], str) else _as_text(operands)
    arrays = [tensor_of(x) for x in arrays]
    if dtype is not None:
        for x in arrays:
            if not np.can_cast(value_of(x), dtype, casting):  # type: ignore[arg-type]
                raise TypeError(
                    f"einsum: operands of dtype {value_of(x).dtype} as {np.dtype(dtype)}: not with {casting=}"
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
        if len(labels) != np.ndim(value_of(x)):
            raise ShapeError(f"einsum: subscripts {labels!r} for an operand of shape {np.shape(value_of(x))}")
    if len(set(output)) != len(output) or not set(output) <= set("".join(inputs)):
        raise ShapeError(
            f"einsum: output {output!r} names each of its axes once, out of {','.join(inputs)!r}"
        )
    attrs = {"inputs": inputs, "output": output}
    if optimize is not False and len(arrays) > 2:
        return _in_pairs(arrays, inputs, output, optimize)
    return apply(REGISTRY["einsum"], arrays, attrs)


def _in_pairs(arrays: list[Any], inputs: list[str], output: str, optimize: Any) -> Any:
    """Contract a few operands at a time, in the order that NumPy finds cheapest."""
    text = f"{','.join(inputs)}->{output}"
    path = np.einsum_path(text, *(value_of(x) for x in arrays), optimize=optimize)[0][1:]
    for places in path:
        taken = sorted(places, reverse=True)
        chosen = [(arrays.pop(k), inputs.pop(k)) for k in taken]
        labels = [label for _, label in chosen]
        left = set("".join(inputs)) | set(output)
        kept = "".join(c for c in dict.fromkeys("".join(labels)) if c in left)
        final = output if not arrays else kept
        attrs = {"inputs": labels, "output": final}
        arrays.append(apply(REGISTRY["einsum"], [x for x, _ in chosen], attrs))
        inputs.append(final)
    return arrays[0]


LETTERS = string.ascii_lowercase + string.ascii_uppercase


def _as_text(operands: Any) -> list[Any]:
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


def _without_ellipsis(inputs: list[str], operands: Any, output: str, arrow: str) -> Any:
    """Give the axes that ``...`` stands for labels of their own."""
    used = set("".join(inputs) + output)
    free = [c for c in LETTERS[::-1] if c not in used]
    ranks = [np.ndim(value_of(x)) - len(s.replace("...", "")) if "..." in s else 0
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
