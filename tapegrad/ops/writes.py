"""Writing into an array, as an operation on its old and new content."""

import math

import numpy as np

from tapegrad.ops.indexing import lift_places, rearrange, words
from tapegrad.ops.primitive import linear
from tapegrad.ops.shapes import describe, steps
from tapegrad.tape.record import Template

# A window is (offset, shape, strides) in elements of a dense array in C order; no element lies in it twice.


def window_of(whole, window):
    """The elements of a dense array that lie in a window, as a view."""
    offset, shape, strides = window
    step = whole.itemsize
    return np.ndarray(shape, whole.dtype, whole, offset * step, [step * s for s in strides])


def _read(x, window):
    return window_of(np.ascontiguousarray(x), window)


def _lift_window(attrs, n, shapes):
    """The window in each of n arrays that lie one after the other; the last operand is the array."""
    offset, shape, strides = attrs["window"]
    return {"window": (offset, (n, *shape), (math.prod(shapes[-1]), *strides))}


def _lower_read(shapes, out_shape, attrs):
    offset, _, strides = attrs["window"]
    return describe([(out_shape, False, (offset, strides), (0, steps(out_shape)))])


@linear(forward=_read, lift=_lift_window, lower=_lower_read, window="part", opaque=("window",))
def view(ct, shapes, wanted, window):
    """The elements in a window."""
    return {0: assign(ct, np.zeros(shapes[0], ct.dtype), window=window)}


def _assigned(part, whole, window):
    out = np.array(whole, order="C")
    window_of(out, window)[...] = part
    return out


def _lower_assign(shapes, out_shape, attrs):
    offset, shape, strides = attrs["window"]
    return describe(
        [
            (shape, True, (0, steps(shapes[0])), (offset, strides)),
            (shape, True, (offset, strides), (0, strides)),
        ]
    )


@linear(
    forward=_assigned, lift=_lift_window, arity=2, template=Template.ASSIGN, lower=_lower_assign,
    window="written", node="copy_slices", opaque=("window",),
)  # fmt: skip
def assign(ct, shapes, wanted, window):
    """The second operand, with the first in a window of it."""
    found = {0: view(ct, window=window)} if 0 in wanted else {}
    if 1 in wanted:
        found[1] = assign(np.zeros(shapes[0], ct.dtype), ct, window=window)
    return found


def _scattered(part, whole, places):
    out = np.array(whole, order="C")
    out.reshape(-1)[places] = part
    return out


def _kept(places, shape):
    """Which of the elements written stay: of several at one place the last."""
    numbers = np.arange(places.size).reshape(places.shape)
    last = np.empty(shape, np.int64).reshape(-1)
    last[places] = numbers  # of equal indices NumPy takes the last
    return last[places] == numbers


def _lower_scatter(shapes, out_shape, attrs):
    places = attrs["places"]
    return words(np.where(_kept(places, out_shape), places, -1))


@linear(
    forward=_scattered, arity=2, template=Template.PUT, lower=_lower_scatter, window="scattered",
    lift=lambda attrs, n, shapes: lift_places(attrs, n, shapes[-1]), node="index_put",
)  # fmt: skip
def scatter(ct, shapes, wanted, places):
    """The second operand with the first at places counted in C order, where one comes twice its last."""
    found = {}
    if 0 in wanted:
        found[0] = rearrange(ct, places=np.where(_kept(places, shapes[1]), places, -1), holes=True)
    if 1 in wanted:
        found[1] = scatter(np.zeros(shapes[0], ct.dtype), ct, places=places)
    return found
