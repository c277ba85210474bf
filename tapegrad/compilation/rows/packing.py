"""Words of rows in few bytes: those of a form one below the other, by how far they lie apart."""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

WORD = 8  # bytes
LENGTH_AT = 48  # bits of an address
SOME_ROWS = 1 << 13  # of which forms are looked for at once, as that takes memory


class PackedWords(NamedTuple):
    """Words of rows, as `pack` has made them."""

    forms: np.ndarray  # where they lie, and behind those bits how many words rows have, each once
    numbers: bytes  # of each row which of the forms, which tells how long it is
    words: list[bytes]  # of the rows of each form, behind that


def pack(words: Sequence[int], starts: Sequence[int]) -> PackedWords:
    """Return words, and with which of them each row begins, in few bytes."""
    known, begins = np.asarray(words, np.int64), np.asarray(starts, np.int32)
    lengths = np.diff(begins, append=np.int32(len(known)))

    def keys(some: slice) -> np.ndarray:
        """Which forms some rows have, and how long they are."""
        return known[begins[some]] | lengths[some].astype(np.int64) << LENGTH_AT

    parts = [slice(k, k + SOME_ROWS) for k in range(0, len(begins), SOME_ROWS)]
    forms = np.unique(np.concatenate([np.unique(keys(some)) for some in parts]))
    numbers = np.empty(len(begins), np.min_scalar_type(len(forms)))
    for some in parts:
        numbers[some] = np.searchsorted(forms, keys(some))
    found = [
        _compress(np.diff(known[places], axis=0, prepend=np.int64(0)))
        for places in _places(forms, numbers, begins)
    ]
    return PackedWords(forms, _compress(numbers), found)


def unpack(packed: PackedWords) -> tuple[array[int], array[int]]:
    """Return the words and starts that were packed."""
    forms, compressed, parts = packed
    numbers = _decompress(compressed).astype(np.min_scalar_type(len(forms)))
    ends = np.cumsum((forms >> LENGTH_AT).astype(np.int32)[numbers], dtype=np.int32)
    words, starts = array("q", bytes(WORD)) * int(ends[-1]), array("i", bytes(4)) * len(ends)
    known, begins = np.frombuffer(words, np.int64), np.frombuffer(starts, np.int32)
    begins[1:] = ends[:-1]
    known[begins] = (forms & (1 << LENGTH_AT) - 1)[numbers]
    for places, part in zip(_places(forms, numbers, begins), parts, strict=True):
        known[places] = np.cumsum(_decompress(part).reshape(places.T.shape).T, axis=0)
    return words, starts


def _places(forms: np.ndarray, numbers: np.ndarray, begins: np.ndarray) -> Iterator[np.ndarray]:
    """Of one form after the other, where the words of its rows are behind the first ones."""
    order = np.argsort(numbers, kind="stable")
    ends = np.cumsum(np.bincount(numbers, minlength=len(forms))).tolist()
    lengths: list[int] = (forms >> LENGTH_AT).tolist()
    for begin, end, n in zip([0, *ends], ends, lengths, strict=False):
        yield begins[order[begin:end], None] + np.arange(1, n, dtype=np.int32)


def _compress(x: np.ndarray) -> bytes:
    """Elements column by column, in few bytes: the first bytes of all, then the second ones, and so on."""
    return zlib.compress(np.ascontiguousarray(x.T, np.int64).view(np.uint8).reshape(-1, WORD).T.tobytes(), 1)


def _decompress(found: bytes) -> np.ndarray:
    """The elements, one behind the other."""
    apart = np.frombuffer(zlib.decompress(found), np.uint8).reshape(WORD, -1)
    return apart.T.copy().view(np.int64).reshape(-1)
