"""Jacobians of compiled functions by columns: several directions at once, of which nothing is recorded."""

from __future__ import annotations

import numpy as np
from numba.core import types
from numba.extending import overload

from tapegrad.native.annotations import Code, Namespace
from tapegrad.native.arguments import new_matrix
from tapegrad.native.compiler import piece, whole
from tapegrad.native.derivative import (
    LANES,
    Derivative,
    component,
    forward,
    kept,
    releasing,
)
from tapegrad.native.function import CompiledFunction
from tapegrad.native.twin import twin_of


def room(out, n):
    """Memory for the derivatives of a result along n directions, which come first."""


def put(found, k, part):
    """Keep the derivatives along direction k."""


def turned(found, out, x):
    """The derivatives of a result by x, its own axes first."""


def _of_parts(form: str, call: str, count: int) -> Code:
    """Code that calls one of these for each part of a tuple."""
    space: Namespace = {"room": room, "put": put, "turned": turned}
    calls = "".join(f"{call.format(k=k)}, " for k in range(count))
    exec(f"def impl({form}):\n    return ({calls})", space)
    return space["impl"]


@overload(room)
def _room(out, n):
    if isinstance(out, types.BaseTuple):
        return _of_parts("out, n", "room(out[{k}], n)", len(out))
    return (
        (lambda out, n: np.empty((n, out.size)))
        if isinstance(out, types.Array)
        else lambda out, n: np.empty(n)
    )


@overload(put)
def _put(found, k, part):
    if isinstance(part, types.BaseTuple):
        return _of_parts("found, k, part", "put(found[{k}], k, part[{k}])", len(part))

    def of_array(found, k, part):
        row = part.reshape(-1)
        for i in range(row.size):
            found[k, i] = row[i]
        return 0

    def of_number(found, k, part):
        found[k] = part
        return 0

    return of_array if isinstance(part, types.Array) else of_number


@overload(turned)
def _turned(found, out, x):
    if isinstance(out, types.BaseTuple):
        return _of_parts("found, out, x", "turned(found[{k}], out[{k}], x)", len(out))
    array, many = isinstance(out, types.Array), isinstance(x, types.Array)
    if not array:
        return (lambda found, out, x: found.reshape(x.shape)) if many else lambda found, out, x: found[0]
    if not many:
        return lambda found, out, x: found.reshape(out.shape)

    def columns(found, out, x):
        rows = np.empty((found.shape[1], found.shape[0]))
        for i in range(rows.shape[0]):
            for j in range(rows.shape[1]):
                rows[i, j] = found[j, i]
        return rows.reshape(out.shape + x.shape)

    return columns


def directions(x, start):
    """Unit vectors from one on, so many as there are lanes, as tangents of the arguments."""


@overload(directions)
def _directions(x, start):
    if not isinstance(x, types.Array):
        one = (1.0, *(0.0,) * (LANES - 1))
        return lambda x, start: (one,)

    def of_array(x, start):
        lanes = new_matrix(LANES, x.size)
        for k in range(LANES):
            for i in range(x.size):
                lanes[k, i] = 1.0 if i == start + k else 0.0
        return ((lanes[0], lanes[1], lanes[2], lanes[3]),)

    return of_array


def elements_of(x):
    """How many numbers an argument has."""


@overload(elements_of)
def _elements_of(x):
    return (lambda x: x.size) if isinstance(x, types.Array) else lambda x: 1


@kept
def jacfwd(of: CompiledFunction) -> Derivative:
    """Return the function of the derivatives of all results by the first argument."""
    spec = (LANES, 0)
    run = forward(twin_of(of.primal, spec), (0,), spec, any_shape=True, flat=True)
    value, c1, c2, c3, c4 = (component(k) for k in range(1 + LANES))

    def keep(found, start, n, out):
        put(found, start, c1(out))
        if start + 1 < n:
            put(found, start + 1, c2(out))
        if start + 2 < n:
            put(found, start + 2, c3(out))
        if start + 3 < n:
            put(found, start + 3, c4(out))

    keep = piece(keep)

    first, following = releasing(run, 2, (1,)), releasing(run, 2, (1, 2, 3))

    def jacfwd(*args):
        n = elements_of(args[0])
        out = first(args, directions(args[0], 0))
        found = room(value(out), n)
        if n:
            keep(found, 0, n, out)
        for start in range(LANES, n, LANES):
            keep(found, start, n, following(args, directions(args[0], start), found, out))
        return turned(found, value(out), args[0])

    return Derivative("jacfwd", of, whole(jacfwd))
