"""What only moves elements is one record: the same call on their numbers says which goes where."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from tapegrad.core.base import add_saved_bytes, shape_of, value_of
from tapegrad.core.dispatch import expect
from tapegrad.core.functions import FUNCTIONS
from tapegrad.core.notes import note_order
from tapegrad.errors import is_from_signal
from tapegrad.numpy_api.shapes import concatenate, reshape
from tapegrad.numpy_api.tables import composed, tensor_of
from tapegrad.ops import REGISTRY
from tapegrad.tape.tape import LARGE
from tapegrad.tensor import Operand, Tensor, TensorOrArray, apply, is_tensor

MEMOIZED = 1 << 14  # elements up to which places are kept for the next such call
REARRANGE = REGISTRY["rearrange"]
ARGUMENTS = (int, bool, str, type(None))


@functools.lru_cache(maxsize=64, typed=True)
def places_of(
    function: Any, shape: tuple[int, ...], *args: Operand | None, **kwargs: Any
) -> dict[str, Any] | None:
    """Attributes of the record of a call, not to be changed; None where they would be too large to be kept.

    The function makes 0 of what comes from no element. Places are a view of the words that sweeps read.
    """
    if not all(map(_known, (*args, *kwargs.values()))):
        raise TypeError("an argument with a content that may change")
    if prod(shape) > MEMOIZED:
        return None
    found = function(np.arange(1, prod(shape) + 1).reshape(shape), *args, **kwargs)
    if found.size > MEMOIZED:
        return None
    words = np.array([found.size, *(found.ravel() - 1)], np.int64).tobytes()
    places = np.frombuffer(words, np.int64)[1:].reshape(found.shape)
    return {"places": places, "holes": bool(np.any(places < 0)), "words": words}


def _known(argument: int | str | Sequence[int]) -> bool:
    return all(map(_known, argument)) if type(argument) is tuple else type(argument) in ARGUMENTS


def _other(argument: Any) -> bool:
    """Whether a tuple has other things than numbers: as a part of a key 2.0 would be 2."""
    return type(argument) is tuple and not _known(argument)


def rearranges(*functions: Any, when: Callable[..., bool] | None = None) -> Callable[[Any], Any]:
    """Register what a function does that only moves elements of its first argument: of few, by places.

    What is decorated answers for many elements, for arguments that are no numbers, for what NumPy refuses and
    where `when` does not hold.
    """

    def register(implementation: Any) -> Any:
        composed(*functions, by_shapes=True)(implementation)
        for f in functions:
            FUNCTIONS[f] = _moves(f, FUNCTIONS[f], when)
        return implementation

    return register


def _moves(function: Any, otherwise: Callable[..., Any], when: Callable[..., bool] | None) -> Any:
    @functools.wraps(otherwise)
    def call(*args: Any, **kwargs: Any) -> Tensor:
        attrs = None
        if args and is_tensor(args[0]):
            try:
                other = any(map(_other, args)) or any(map(_other, kwargs.values()))
                if not other and (when is None or when(*args, **kwargs)):
                    attrs = places_of(function, shape_of(args[0]), *args[1:], **kwargs)
            except Exception as error:  # NumPy refuses it, or an argument has no hash
                if is_from_signal(error):
                    raise
                attrs = None
        return otherwise(*args, **kwargs) if attrs is None else apply(REARRANGE, (args[0],), attrs)

    return call


def rearranged(x: Operand, places: np.ndarray, holes: bool = False) -> Tensor:
    """The elements at places, which nobody else writes to, and zeros at those below 0."""
    out = apply(REARRANGE, (x,), {"places": places, "holes": holes})
    if places.nbytes > LARGE:
        add_saved_bytes(out, places)
    return out


def in_order(x: Operand, order: Callable[..., np.ndarray]) -> Any:
    """The elements at places that a function of the values tells, which a program may call too.

    It is equal to any other that tells the same, of any values of a shape and dtype as many places.
    """
    known = expect(REARRANGE, (x,), {"order": order})
    if known is not None:
        return known
    found = rearranged(x, order(value_of(x)))
    if is_tensor(found):
        note_order(found, order)
    return found


def numbers_of(x: Operand) -> np.ndarray:
    """The number of each element in C order."""
    return numbers_in(shape_of(x))


def numbers_in(shape: tuple[int, ...]) -> np.ndarray:
    """The number of each element of an array of a shape, in C order."""
    return np.arange(prod(shape)).reshape(shape)


def gathered(arrays: Sequence[TensorOrArray], function: Callable[..., Any]) -> TensorOrArray:
    """What a function that only moves elements makes of arrays; it is called on numbers of the elements."""
    arrays = [tensor_of(x) for x in arrays]
    numbers, start = [], 0
    for x in arrays:
        numbers.append(numbers_of(x) + start)
        start += numbers[-1].size
    places = function(*numbers)
    whole = arrays[0] if len(arrays) == 1 else concatenate([reshape(x, (-1,)) for x in arrays])
    return rearranged(whole, places)
