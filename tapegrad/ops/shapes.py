"""Ops that move elements without changing them."""

from collections.abc import Sequence

import numpy as np

from tapegrad.ops.buffers import reshape as reshaped
from tapegrad.ops.lanes import along
from tapegrad.ops.primitive import linear
from tapegrad.tape.record import Template


def window(base, part):
    """Where a view lies in a dense base: offset and strides, in elements."""
    size = base.itemsize
    start = base.__array_interface__["data"][0]
    offset = part.__array_interface__["data"][0] - start if part.size else 0
    return offset // size, [s // size for s in part.strides]


def dense(shape):
    """A dense array of a shape that takes no memory to speak of: only its layout is asked for."""
    return np.empty(shape, np.int8)


def describe(pieces):
    """Words for `view` in `tapegrad.kernels.replay.templates`, from (covers, base part, ct part) each.

    Each part is (offset, strides) over the piece's extents.
    """
    starts, words = [], []
    for extents, covers, (offset, strides), (ct_offset, ct_strides) in pieces:
        starts.append(len(pieces) + len(words))
        words += [len(extents), int(covers), offset, ct_offset, *extents, *strides, *ct_strides]
    return starts + words


def steps(shape: Sequence[int]) -> list[int]:
    """Strides, in elements, of a dense array."""
    found, step = [], 1
    for extent in shape[::-1]:
        found.append(step)
        step *= extent
    return found[::-1]


@linear(
    np.reshape, forward=reshaped, template=Template.RESHAPE,
    lift=lambda attrs, n, shapes: {"shape": (n, *attrs["shape"])},
)  # fmt: skip
def reshape(ct, shapes, wanted, shape):
    """The same elements, in C order, in another shape."""
    return {0: np.reshape(ct, shapes[0])}


def _lower_transpose(shapes, out_shape, attrs):
    strides = steps(shapes[0])
    moved = [strides[a] for a in attrs["axes"]]
    return describe([(out_shape, True, (0, moved), (0, steps(out_shape)))])


@linear(
    np.transpose, forward=lambda x, axes: x.transpose(axes), lower=_lower_transpose, window="whole",
    lift=lambda attrs, n, shapes: {"axes": (0, *(a + 1 for a in attrs["axes"]))},
)  # fmt: skip
def transpose(ct, shapes, wanted, axes):
    """Axes in another order."""
    return {0: np.transpose(ct, [int(a) for a in np.argsort(axes)])}


def _lower_concatenate(shapes, out_shape, attrs):
    axis, strides, pieces, at = attrs["axis"], steps(out_shape), [], 0
    for shape in shapes:
        pieces.append((shape, True, (0, steps(shape)), (at * strides[axis], strides)))
        at += shape[axis]
    return describe(pieces)


@linear(
    np.concatenate, forward=lambda *x, axis: np.concatenate(x, axis=axis), arity=0,
    lift=along, lower=_lower_concatenate, window="joined", node="cat",
)  # fmt: skip
def concatenate(ct, shapes, wanted, axis):
    """Arrays joined along an axis."""
    ends = np.cumsum([shape[axis] for shape in shapes])
    before = (slice(None),) * axis
    return {k: ct[(*before, slice(int(ends[k] - shapes[k][axis]), int(ends[k])))] for k in wanted}


def _stacked(*members, axis):
    """As `np.stack`, of numbers in less time."""
    return np.stack(members, axis=axis) if np.ndim(members[0]) else np.array(members)


def _lower_stack(shapes, out_shape, attrs):
    axis, strides = attrs["axis"], steps(out_shape)
    rest = strides[:axis] + strides[axis + 1 :]
    return describe(
        [(shape, True, (0, steps(shape)), (k * strides[axis], rest)) for k, shape in enumerate(shapes)]
    )


@linear(
    np.stack, forward=_stacked, arity=0, lift=along, lower=_lower_stack,
    window="stacked",
)  # fmt: skip
def stack(ct, shapes, wanted, axis):
    """Arrays joined along a new axis."""
    before = (slice(None),) * axis
    return {k: ct[(*before, k)] for k in wanted}
