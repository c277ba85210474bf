"""Taking elements out of an array, and the transpose: putting them into zeros."""

import numpy as np

from tapegrad.ops.primitive import linear
from tapegrad.ops.shapes import dense, describe, steps, window
from tapegrad.tape.record import Template


def _places(shape, index):
    """Number in C order of each element that an index takes."""
    return np.arange(int(np.prod(shape)), dtype=np.int64).reshape(shape)[index]


def _lower_slice(shapes, out_shape, attrs):
    base = dense(shapes[0])
    part = base[attrs["index"]]
    return describe([(out_shape, False, window(base, part), (0, steps(out_shape)))])


def _lift(attrs, n, shapes):
    """An index that leaves the lanes; None where NumPy would put axes in front of them."""
    index = attrs["index"]
    parts = index if isinstance(index, tuple) else (index,)
    arrays = any(isinstance(i, (np.ndarray, list, bool, np.bool_)) for i in parts)
    chosen = [d for d, i in enumerate(parts) if not isinstance(i, (slice, type(None), type(Ellipsis)))]
    if arrays and (chosen[-1] - chosen[0] >= len(chosen) or any(np.ndim(parts[d]) == 0 for d in chosen)):
        return None
    return {**attrs, "index": (slice(None), *parts)}


@linear(forward=lambda x, index: x[index], lift=_lift, lower=_lower_slice, window="part")
def getitem(ct, shapes, wanted, index):
    """A basic index: slices, integers, None, Ellipsis; a view."""
    return {0: put(ct, shapes[0], index)}


@linear(
    forward=lambda x, index, place: x[index], lift=_lift, template=Template.ELEMENT,
    key=lambda attrs: attrs["place"],
)  # fmt: skip
def element(ct, shapes, wanted, index, place):
    """One element, a scalar."""
    return {0: put(ct, shapes[0], index)}


def _lower_take(shapes, out_shape, attrs):
    places = _places(shapes[0], attrs["index"]).ravel()
    return np.concatenate([[places.size], places])


@linear(forward=lambda x, index: x[index], lift=_lift, template=Template.SCATTER, lower=_lower_take)
def take(ct, shapes, wanted, index):
    """An index with integer or boolean arrays; elements taken twice add their cotangents."""
    return {0: put(ct, shapes[0], index)}


def _lift_embed(attrs, n, shapes):
    lifted = _lift(attrs, n, shapes)
    return None if lifted is None else {**lifted, "shape": (n, *attrs["shape"])}


def _embed(x, shape, index):
    out = np.zeros(shape, x.dtype)
    parts = index if isinstance(index, tuple) else (index,)
    if not any(isinstance(i, (np.ndarray, list, bool, np.bool_)) for i in parts):
        out[index] = x
        return out
    np.add.at(out.reshape(-1), np.ravel(_places(shape, index)), np.ravel(x))  # crashes in 64 dimensions
    return out


def _lower_embed(shapes, out_shape, attrs):
    return _lower_take([attrs["shape"]], shapes[0], attrs)


@linear(forward=_embed, lift=_lift_embed, template=Template.PUT, lower=_lower_embed)
def embed(ct, shapes, wanted, shape, index):
    """Zeros with the operand's elements added at an index."""
    return {0: ct[index]}


def put(x, shape, index):
    """`embed` on arrays or Tensors."""
    return embed.apply(x, shape=shape, index=index)
