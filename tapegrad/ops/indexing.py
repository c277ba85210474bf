"""Taking elements out of an array, and the transpose: putting them into zeros.

`getitem` and `embed` do so by a basic index, `take` and `add_at` by one with arrays, as NumPy reads them,
`rearrange` and `collect` by places: numbers of elements in C order, those below 0 of none.
"""

import math

import numpy as np

from tapegrad.ops.primitive import linear
from tapegrad.ops.shapes import dense, describe, steps, window
from tapegrad.tape.record import Template


def numbers(shape: tuple[int, ...], index) -> np.ndarray:
    """Number in C order of each element that an index takes."""
    if isinstance(index, np.ndarray) and index.dtype.kind in "iu" and shape:  # not all elements are numbered
        first, inner = index.astype(np.int64), shape[1:]
        first = np.where(first < 0, first + shape[0], first).reshape((*index.shape, *(1,) * len(inner)))
        return first * math.prod(inner) + np.arange(math.prod(inner)).reshape(inner)
    return np.arange(math.prod(shape)).reshape(shape)[index]


def _parts(index):
    return index if isinstance(index, tuple) else (index,)


def _window_at(shape, index):
    """Where a basic index of a dense array leads, also if to one element."""
    base, parts = dense(shape), _parts(index)
    return window(base, base[parts if any(p is Ellipsis for p in parts) else (*parts, ...)])


def _lower_slice(shapes, out_shape, attrs):
    found = _window_at(shapes[0], attrs["index"])
    return describe([(out_shape, False, found, (0, steps(out_shape)))])


def _lift(attrs, n, shapes):
    """An index that leaves the lanes; None where NumPy would put axes in front of them."""
    parts = _parts(attrs["index"])
    arrays = any(isinstance(i, (np.ndarray, list, bool, np.bool_)) for i in parts)
    chosen = [d for d, i in enumerate(parts) if not isinstance(i, (slice, type(None), type(Ellipsis)))]
    if arrays and (chosen[-1] - chosen[0] >= len(chosen) or any(np.ndim(parts[d]) == 0 for d in chosen)):
        return None
    return {**attrs, "index": (slice(None), *parts)}


@linear(forward=lambda x, index: x[index], lift=_lift, lower=_lower_slice, window="part",
        opaque=("index",))  # fmt: skip
def getitem(ct, shapes, wanted, index):
    """A basic index: slices, integers, None, Ellipsis; a view."""
    return {0: embed(ct, shape=shapes[0], index=index)}


def _lift_element(attrs, n, shapes):
    return {**_lift(attrs, n, shapes), "place": None}  # of all lanes there is no one place


@linear(
    forward=lambda x, index, place: x[index], lift=_lift_element, template=Template.ELEMENT,
    key=lambda attrs: attrs["place"], node="select", opaque=("index", "place"),
)  # fmt: skip
def element(ct, shapes, wanted, index, place):
    """One element, a scalar."""
    return {0: embed(ct, shape=shapes[0], index=index, place=place)}


def words(places):
    """What the compiled sweep reads of places: how many, and which."""
    return np.concatenate([[places.size], places.ravel()])


def _lower_take(shapes, out_shape, attrs):
    return words(numbers(shapes[0], attrs["index"]))


@linear(
    forward=lambda x, index: x[index], lift=_lift, template=Template.SCATTER, lower=_lower_take,
    window="taken", opaque=("index",),
)  # fmt: skip
def take(ct, shapes, wanted, index):
    """An index with integer or boolean arrays; elements taken twice add their cotangents."""
    return {0: add_at(ct, shape=shapes[0], index=index)}


def _lift_whole(attrs, n, shapes):
    lifted = _lift(attrs, n, shapes)
    return None if lifted is None else {"index": lifted["index"], "shape": (n, *attrs["shape"])}


def _embed(x, shape, index, place=None):
    out = np.zeros(shape, x.dtype)
    out[index] = x
    return out


def _lower_embed(shapes, out_shape, attrs):
    found = _window_at(out_shape, attrs["index"])
    return describe([(shapes[0], True, (0, steps(shapes[0])), found)])


@linear(forward=_embed, lift=_lift_whole, lower=_lower_embed, window="embedded",
        opaque=("index", "place"))  # fmt: skip
def embed(ct, shapes, wanted, shape, index, place=None):
    """Zeros with the operand at a basic index; a scalar may be at the place of an element."""
    return {0: getitem(ct, index=index) if place is None else element(ct, index=index, place=place)}


def _add_at(x, shape, index):
    return _collect(x, shape, numbers(shape, index), False)  # np.add.at crashes in 64 dimensions


def _lower_add_at(shapes, out_shape, attrs):
    return words(numbers(out_shape, attrs["index"]))


@linear(
    forward=_add_at, lift=_lift_whole, template=Template.PUT, lower=_lower_add_at, window="added",
    opaque=("index",),
)  # fmt: skip
def add_at(ct, shapes, wanted, shape, index):
    """Zeros with the operand's elements added at an index with arrays."""
    return {0: take(ct, index=index)}


# ---------------------------------------------------------------- by places


def _rearrange(x, places, holes, words=None):
    if holes:
        given, x = x, np.empty(x.size + 1, x.dtype)
        x[:-1], x[-1] = given.ravel(), 0  # the last one, whose place is -1
    return x.take(places)


def _collect(x, shape, places, holes, words=None):
    out = np.zeros(shape, x.dtype)
    places, x = places.ravel(), np.asarray(x).ravel()
    if holes:
        kept = places >= 0
        places, x = places[kept], x[kept]
    np.add.at(out.reshape(-1), places, x)
    return out


def lift_places(attrs, n, shape):
    """Attributes with the places in each of n arrays of a shape that lie one after the other."""
    starts, places = math.prod(shape) * np.arange(n), attrs["places"]
    moved = np.where(places < 0, -1, places + starts.reshape(-1, *(1,) * places.ndim))
    return {**{key: found for key, found in attrs.items() if key != "words"}, "places": moved}


def _lower_places(shapes, out_shape, attrs):
    return words(attrs["places"])


@linear(
    forward=_rearrange, template=Template.SCATTER, lower=_lower_places, window="placed",
    lift=lambda attrs, n, shapes: lift_places(attrs, n, shapes[0]), opaque=("places", "words"),
)  # fmt: skip
def rearrange(ct, shapes, wanted, places, holes, words=None):
    """The elements at places, and zeros at those below 0, which `holes` says there are.

    Where places are kept, so are the words that the compiled sweep reads, as an object of bytes.
    """
    return {0: collect(ct, shape=shapes[0], places=places, holes=holes, words=words)}


@linear(
    forward=_collect, template=Template.PUT, lower=_lower_places, window="placed",
    lift=lambda attrs, n, shapes: {**lift_places(attrs, n, attrs["shape"]), "shape": (n, *attrs["shape"])},
    opaque=("places", "words"),
)  # fmt: skip
def collect(ct, shapes, wanted, shape, places, holes, words=None):
    """Zeros of a shape with the operand's elements added at places; what has one below 0 is lost."""
    return {0: rearrange(ct, places=places, holes=holes, words=words)}
