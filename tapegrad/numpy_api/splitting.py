"""Arrays taken apart. The parts are views that are told apart from others: see `core.inplace`."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from tapegrad.core.base import like_of
from tapegrad.core.functions import implements
from tapegrad.core.notes import note_several
from tapegrad.errors import ShapeError
from tapegrad.numpy_api.tables import axis_of, plain
from tapegrad.tensor import TensorOrArray


@implements(np.array_split, by_shapes=True)
def array_split(
    ary: TensorOrArray, indices_or_sections: int | Sequence[int], axis: int = 0
) -> list[TensorOrArray]:
    """Parts along an axis, of sizes that differ by one at most, or between given places."""
    at = axis_of(ary, axis, "array_split")
    total, sections = ary.shape[at], plain(indices_or_sections)
    if np.ndim(sections):
        ends = [0, *(operator.index(n) for n in sections), total]
    else:
        count = int(sections)
        if count <= 0:
            raise ValueError(f"array_split: a number of parts above 0 is needed, found {count}")
        size, more = divmod(total, count)
        ends = np.cumsum([0, *[size + 1] * more, *[size] * (count - more)]).tolist()
    before = (slice(None),) * at
    return [_part(ary, (*before, slice(a, b))) for a, b in itertools.pairwise(ends)]


def _part(x: TensorOrArray, index: Any) -> TensorOrArray:
    out = x[index]
    if isinstance(like_of(out), np.ndarray):
        note_several(out)
    return out


@implements(np.split, by_shapes=True)
def split(
    ary: TensorOrArray, indices_or_sections: int | Sequence[float], axis: int = 0
) -> list[TensorOrArray]:
    """Equal parts along an axis, or parts between given places."""
    sections = plain(indices_or_sections)
    if not np.ndim(sections):
        total = ary.shape[axis_of(ary, axis, "split")]
        if int(sections) <= 0 or total % int(sections):
            raise ShapeError(f"split: axis {axis} of an array of shape {ary.shape} in {sections} equal parts")
    return array_split(ary, sections, axis)


@implements(np.hsplit, by_shapes=True)
def hsplit(ary: TensorOrArray, indices_or_sections: int | Sequence[int]) -> list[TensorOrArray]:
    """Parts along the second axis; of a vector, along its only one."""
    if ary.ndim == 0:
        raise ShapeError("hsplit needs a dimension, found shape ()")
    return split(ary, indices_or_sections, 1 if ary.ndim > 1 else 0)


@implements(np.vsplit, by_shapes=True)
def vsplit(ary: TensorOrArray, indices_or_sections: int | Sequence[int]) -> list[TensorOrArray]:
    """Parts along the first axis."""
    if ary.ndim < 2:
        raise ShapeError(f"vsplit needs two dimensions, found shape {ary.shape}")
    return split(ary, indices_or_sections, 0)


@implements(np.dsplit, by_shapes=True)
def dsplit(ary: TensorOrArray, indices_or_sections: int) -> list[TensorOrArray]:
    """Parts along the third axis."""
    if ary.ndim < 3:
        raise ShapeError(f"dsplit needs three dimensions, found shape {ary.shape}")
    return split(ary, indices_or_sections, 2)


@implements(np.unstack, by_shapes=True)
def unstack(x: TensorOrArray, /, *, axis: int = 0) -> tuple[TensorOrArray, ...]:
    """The parts of one element along an axis, without that axis."""
    if x.ndim == 0:
        raise ShapeError("unstack needs a dimension, found shape ()")
    at = axis_of(x, axis, "unstack")
    return tuple(_part(x, (*(slice(None),) * at, k)) for k in range(x.shape[at]))
