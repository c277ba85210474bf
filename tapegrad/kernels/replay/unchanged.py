"""Compiled: whether what a function reads is as it was, before a call that skips its Python."""

from tapegrad.kernels.dialect import call, i64, invoke, obj, shared
from tapegrad.kernels.replay.layout import *


def is_unchanged(module: int, words: int) -> int:
    """A function of Python's, of an array of these words (see `layout`): whether all is as it was."""
    g, out = i64(shared()), i64(shared()).true
    count, entry = i64(obj(words).data)[0], obj(words).data + 8
    while count > 0 and out == g.true:
        known = i64(entry)
        if known.read_key == 0:
            found = i64(known.read_from)[0]
        else:
            found = call(g.dict_get, known.read_from, known.read_key)
            if found == 0 and call(g.error_occurred) != 0:
                invoke(g.error_clear)
                out = g.false
        if found != known.read_value:
            out = g.false
        count, entry = count - 1, entry + 8 * READ_WORDS
    invoke(g.incref, out)
    return out
