"""Derivatives of compiled functions along several directions at once, of which nothing is recorded."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numba.core import types
from numba.extending import overload

from tapegrad.native.derivatives import pushing
from tapegrad.native.derivatives.derivative import (
    LANES,
    Derivative,
    component,
    entry,
    forward,
    kept,
    moving_of,
    releasing,
    spreading,
)
from tapegrad.native.derivatives.pushing import COUNT, of_parts, room
from tapegrad.native.emission.annotations import Compiled, Intrinsic, Namespace
from tapegrad.native.function import CompiledFunction
from tapegrad.native.twin import twin_of
from tapegrad.native.twins.arguments import new_matrix
from tapegrad.native.twins.compiler import piece, whole


def put(found, k, part):
    """Keep the derivatives along direction k."""


def turned(found, out, x):
    """The derivatives of a result by x, its own axes first."""


@overload(put)
def _put(found, k, part):
    if isinstance(part, types.BaseTuple):
        return of_parts("found, k, part", "put(found[{k}], k, part[{k}])", len(part), put=put)

    def of_array(found, k, part):
        row, kept = part.reshape(-1), found[k].reshape(-1)
        for i in range(row.size):
            kept[i] = row[i]
        return 0

    def of_number(found, k, part):
        found[k] = part
        return 0

    return of_array if isinstance(part, types.Array) else of_number


@overload(turned)
def _turned(found, out, x):
    if isinstance(out, types.BaseTuple):
        return of_parts("found, out, x", "turned(found[{k}], out[{k}], x)", len(out), turned=turned)
    if not isinstance(out, types.Array):
        return lambda found, out, x: found.reshape(x.shape)

    def columns(found, out, x):
        rows, kept = np.empty((out.size, x.size)), found.reshape((x.size, out.size))
        for i in range(rows.shape[0]):
            for j in range(rows.shape[1]):
                rows[i, j] = kept[j, i]
        return rows.reshape(out.shape + x.shape)

    return columns


@piece
def directions(x, start):
    """Unit vectors from one on, so many as there are lanes, as tangents of the argument."""
    lanes = new_matrix(LANES, x.size)
    for k in range(LANES):
        for i in range(x.size):
            lanes[k, i] = 1.0 if i == start + k else 0.0
    return ((lanes[0], lanes[1], lanes[2], lanes[3]),)


def _keeping() -> Compiled:
    """Return ``keep(found, start, n, out)``, which keeps the tangents of results from one on, of n in all."""
    c1, c2, c3, c4 = (component(1 + k) for k in range(LANES))

    def keep(found, start, n, out):
        if start < n:
            put(found, start, c1(out))
        if start + 1 < n:
            put(found, start + 1, c2(out))
        if start + 2 < n:
            put(found, start + 2, c3(out))
        if start + 3 < n:
            put(found, start + 3, c4(out))

    return piece(keep)


def _forward(of: CompiledFunction, moving: tuple[int, ...]) -> Intrinsic:
    """Return ``run(args, tangents)``, of one direction, which lets go of both where it raises."""
    return releasing(forward(twin_of(of.primal, (1, 0)), moving, (1, 0), any_shape=True), 2, (0, 1))


@kept
def jacfwd(of: CompiledFunction) -> Derivative:
    """Return the function of the derivatives of all results by the first argument."""
    spec = (LANES, 0)
    run = forward(twin_of(of.primal, spec), (0,), spec, any_shape=True, flat=True)
    value, keep = component(0), _keeping()
    first, following = releasing(run, 2, (0, 1)), releasing(run, 2, (0, 1, 2, 3))  # an overload holds args
    once, spread, tangent = _forward(of, (0,)), spreading((0,), 1), component(1)

    def by_number(args):
        return tangent(once(args, spread(1.0)))

    def by_array(args):
        n = args[0].size
        out = first(args, directions(args[0], 0))
        found = room(np.float64, value(out), n)
        keep(found, 0, n, out)
        for start in range(LANES, n, LANES):
            keep(found, start, n, following(args, directions(args[0], start), found, out))
        return turned(found, value(out), args[0])

    def slopes(args):
        raise NotImplementedError

    @overload(slopes)
    def _slopes(args):
        return by_array if isinstance(args[0], types.Array) else by_number

    def jacfwd(*args):
        return slopes(args)

    compiled = whole(jacfwd)
    stub = pushing.jacfwd_stub(of.primal, compiled, LANES)
    return Derivative("jacfwd", of, compiled, (), stub, "jacfwd")


@kept
def jvp(of: CompiledFunction, argnums: int | Sequence[int]) -> Derivative:
    """Return the function of value and derivative along a direction."""
    moving = moving_of(argnums)
    space: Namespace = {"run": _forward(of, moving), "spread": spreading(moving, 1)}
    space |= {"value": component(0), "tangent": component(1)}
    text = "out = run(args[:-1], spread(args[-1]))\nreturn value(out), tangent(out)"
    compiled = entry("jvp", of, text, space, 1)
    return Derivative("jvp", of, compiled, moving, pushing.jvp_stub(of.primal, compiled, moving, 1))


def lane(v, k):
    """Direction k, the last one where there are fewer, 0 where there are none."""


@overload(lane)
def _lane(v, k):
    if v.ndim == 1:
        return lambda v, k: float(v[min(k, v.shape[0] - 1)]) if v.shape[0] else 0.0
    return lambda v, k: v[min(k, v.shape[0] - 1)] if v.shape[0] else np.zeros(v.shape[1:], v.dtype)


def _lanes(moving: tuple[int, ...]) -> tuple[Compiled, Compiled]:
    """Return how many directions there are, and so many as there are lanes from one on."""
    names = [f"v[{q}]" if len(moving) > 1 else "v" for q in range(len(moving))]
    space: Namespace = {"lane": lane, "COUNT": COUNT}
    differ = " or ".join(f"{name}.shape[0] != {names[0]}.shape[0]" for name in names[1:]) or "False"
    rows = "".join(f"({''.join(f'lane({name}, k + {j}), ' for j in range(LANES))}), " for name in names)
    exec(
        f"def count(v):\n    if {differ}:\n        raise ValueError(COUNT)\n    return {names[0]}.shape[0]\n"
        f"def lanes(v, k):\n    return ({rows})\n",
        space,
    )
    return piece(space["count"]), piece(space["lanes"])


@kept
def jvp_batched(of: CompiledFunction, argnums: int | Sequence[int]) -> Derivative:
    """Return the function of value and derivatives along directions, which have an axis in front."""
    moving, spec = moving_of(argnums), (LANES, 0)
    run = forward(twin_of(of.primal, spec), moving, spec, True)
    value, keep, (count, lanes) = component(0), _keeping(), _lanes(moving)
    first, following = releasing(run, 2, (0, 1)), releasing(run, 2, (0, 1, 2, 3))

    def jvp(*args):
        n = count(args[-1])
        out = first(args[:-1], lanes(args[-1], 0))
        found = room(np.float64, value(out), n)
        keep(found, 0, n, out)
        for start in range(LANES, n, LANES):
            keep(found, start, n, following(args[:-1], lanes(args[-1], start), found, out))
        return value(out), found

    compiled, how = whole(jvp), (*moving, "batched")
    stub = pushing.jvp_stub(of.primal, compiled, moving, LANES, batched=True)
    return Derivative("jvp", of, compiled, how, stub, "jvp of a batch")
