"""Giving out the memory of Tensors as arrays, which others may write to while they live."""

from __future__ import annotations

import weakref

import numpy as np

from tapegrad.core.base import Handle, extra, has_tangent, is_array
from tapegrad.core.dispatch import is_externally_writable
from tapegrad.core.expected import matcher_of
from tapegrad.core.histories import handles_of_memory, separate_memory, sharers, write_unrecorded
from tapegrad.core.storage import Storage, sharing

ndarray = np.ndarray


class Loan:
    """The base of an array given out: all views of that array hold it, and with it what they share."""

    __slots__ = ("__array_interface__", "array", "life")

    def __init__(self, array: np.ndarray, life: Life) -> None:
        self.array, self.life = array, life
        self.__array_interface__ = array.__array_interface__


class Life:
    """Lives as long as one of the arrays does that were given out of a memory."""


def lend(x: Handle) -> np.ndarray:
    """Give out a Tensor's memory: while what is given out lives, others can write to it.

    What a tape keeps is never given out, then the Tensor and its views move to a copy; where there is a
    history the array is read-only.
    """
    value = x._v
    if type(value) is not ndarray:
        value = np.asarray(value)
        value.flags.writeable = not is_array(x)  # a write would be lost
        return value
    matcher = matcher_of(x)
    if matcher is not None and matcher.sees_history(x):
        return _read_only(value)
    storage = extra(x).storage
    whole = x if storage is None else storage.whole
    if is_externally_writable(whole) and extra(whole).shown is True:
        return value
    if _has_history(x) or not value.flags.writeable or any(h._v.ndim == 0 for h in sharers(x)):
        return _read_only(value)  # 0-d views, and what has a history, do not see what others write
    value = None
    with sharing():
        life = _life_of(x)
        if not _has_history(x):
            return np.asarray(Loan(x._v, life))
    return lend(x)  # another thread has recorded a view of it meanwhile


def _read_only(value: np.ndarray) -> np.ndarray:
    out = value.view()
    out.flags.writeable = False
    return out


def _has_history(x: Handle) -> bool:
    """Whether a handle of a Tensor's memory has one."""
    return any(has_tangent(h) or h._tape is not None for h in sharers(x))


def _life_of(x: Handle) -> Life:
    """Return what lives while arrays do that are given out of a memory, which is made ready for the first."""
    storage = extra(x).storage
    whole = x if storage is None else storage.whole
    life: Life | None = extra(whole).shown() if is_externally_writable(whole) else None
    if life is None:
        life = Life()
        _mark_exposed(x, storage, life)  # first: what other threads record meanwhile does not keep the memory
        separate_memory(x, storage)
        write_unrecorded(x, storage, lambda: None)  # to tapes it is another one from now on
        _mark_exposed(x, extra(x).storage, life)
    return life


def _mark_exposed(x: Handle, storage: Storage | None, life: Life) -> None:
    """Note that others can write to a memory."""
    for handle in handles_of_memory(x, storage):
        extra(handle).shown = weakref.ref(life)
