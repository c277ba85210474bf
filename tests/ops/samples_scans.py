"""Samples of the ops of `tapegrad.ops.scans`."""

import numpy as np

import tapegrad as tg
from tapegrad.core.dispatch import apply

from .layouts import (
    EMPTY,
    INTEGER,
    MIXED,
    PLAIN,
    SCALAR,
    SIZE1,
    Absent,
    Case,
    Reason,
    converted,
    drawn,
    integers,
    leaf,
    refuses,
)
from .samples_arrays import makes_vectors, simple

ANY = (-np.inf, np.inf)


def cumprod(op, layout, dtype, random):
    """Along each axis."""
    shapes = {PLAIN: (2, 3), EMPTY: (0, 3), SCALAR: makes_vectors(np.cumprod)}
    calls = [np.cumprod, lambda x, axis: x.cumprod(axis)]
    forms = [lambda x, f=f, axis=axis: f(x, axis=axis) for f in calls for axis in (np.int64(0), -1)]
    return simple(shapes, lambda layout: forms)(op, layout, dtype, random)


def recurrence(op, layout, dtype, random):
    """Few lanes and many, along each axis."""
    if layout == SCALAR:
        x = tg.tensor(1.0, requires_grad=True)
        call = lambda: apply(op, (x, x), {"axis": 0})
        return Absent(Reason.NEEDS_DIMENSIONS, lambda: refuses(call, ValueError))
    shape = {EMPTY: (0, 3), SIZE1: (1, 3)}.get(layout, (3, 2))
    cases = []
    for axis, shape in ((0, shape), (1, shape), *([(0, (2, 20))] if layout == PLAIN else [])):
        x, a = (drawn(random, shape, ANY, dtype) for _ in range(2))
        call = lambda x, a, axis=axis: apply(op, (x, a), {"axis": axis})
        reference = lambda x, a, axis=axis: by_definition(x, a, axis)
        if layout == INTEGER:
            whole = integers(random, shape, dtype)
            pairs = [(leaf(x), whole), (tg.tensor(whole), leaf(a))]
        elif layout == MIXED:
            pairs = [(leaf(x), leaf(converted(a, dtype)))]
        else:
            pairs = [(leaf(x, layout), leaf(a, layout))]
        cases += [Case(pair, call, reference, reference, 4) for pair in pairs]
    return cases


def by_definition(x, a, axis):
    x, a = np.moveaxis(x, axis, 0), np.moveaxis(a, axis, 0)
    rows = []
    for k in range(len(x)):
        rows.append(x[k] + a[k] * rows[-1] if rows else x[k] + 0 * a[k])
    return np.moveaxis(np.array(rows, np.result_type(x, a)).reshape(x.shape), 0, axis)


SCANS = {"cumprod": cumprod, "recurrence": recurrence}
