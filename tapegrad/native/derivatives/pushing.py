"""Derivatives of any results along directions, in code that records: a block for all directions at once.

The function runs on numbers with several tangents, of which nothing is recorded. Of each direction that a
cotangent came to the reverse is the gradient, and its derivative along the direction, of the sum of the
results with the cotangents as weights.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import numpy as np
from numba.core import types
from numba.core.errors import TypingError
from numba.extending import overload

from tapegrad.native.derivatives.derivative import component, forward, recorded, releasing
from tapegrad.native.derivatives.nested import Block, check, has_derivative, spec_of, weighted
from tapegrad.native.emission.algebra import Spec
from tapegrad.native.emission.annotations import Code, Compiled, Intrinsic, Namespace, Type
from tapegrad.native.numbers.operators import on_tape, statement
from tapegrad.native.numbers.scalar import Active, taped
from tapegrad.native.tapes.blocks import addressed, drop_of, inner_njit, loading
from tapegrad.native.twins.compiler import piece, token, twin_of

FEW = 6  # components of numbers that are pushed along several directions at once; others one by one
COUNT = "tapegrad: there are as many directions of one argument as of another"


def of_parts(form: str, call: str, count: int, **known: Code) -> Code:
    """Code that calls a function for each part of a tuple."""
    space: Namespace = known
    calls = "".join(f"{call.format(k=k)}, " for k in range(count))
    exec(f"def impl({form}):\n    return ({calls})", space)
    code: Code = space["impl"]
    return code


def elements(out):
    """How many numbers a result has."""


@overload(elements)
def _elements(out):
    if isinstance(out, types.BaseTuple):
        total = " + ".join(f"elements(out[{k}])" for k in range(len(out))) or "0"
        space: Namespace = {"elements": elements}
        exec(f"def impl(out):\n    return {total}", space)
        return space["impl"]
    return (lambda out: out.size) if isinstance(out, types.Array) else lambda out: 1


def room(dtype, out, n):
    """Memory for the derivatives of results along n directions, which come first."""


@overload(room)
def _room(dtype, out, n):
    if isinstance(out, types.BaseTuple):
        return of_parts("dtype, out, n", "room(dtype, out[{k}], n)", len(out), room=room)
    if isinstance(out, types.Array):
        return lambda dtype, out, n: np.empty((n, *out.shape), dtype)
    return lambda dtype, out, n: np.empty(n, dtype)


@functools.cache
def _putting(size: int, lane: int) -> Code:
    """Return ``put(dtype, found, out, k, number, tape)``: a tangent of results as derivatives along one."""

    def put(dtype, found, out, k, number, tape):
        raise NotImplementedError

    parts = {f"part{q}": component(size * (1 + lane) + q) for q in range(size)}

    @overload(put)
    def _put(dtype, found, out, k, number, tape):
        space: Namespace = {"put": put, "elements": elements, "on_tape": on_tape, **parts}
        if isinstance(out, types.BaseTuple):
            lines = []
            for j in range(len(out)):
                lines.append(f"put(dtype, found[{j}], out[{j}], k, number, tape)")
                lines.append(f"number += elements(out[{j}]) if tape else 0")
        else:
            many = isinstance(out, types.Array)
            values = "".join(f"part{q}({'v' if many else 'out'}), " for q in range(size))
            made = f"on_tape(dtype, ({values}), number, tape)"
            lines = [f"found[k] = {made}"]
            if many:
                lines = ["flat = found[k].reshape(-1)", "for i, v in enumerate(out.flat):"]
                lines += [f"    flat[i] = {made}", "    number += 1 if tape else 0"]
        exec(
            "def impl(dtype, found, out, k, number, tape):\n    " + "\n    ".join([*lines, "return 0"]), space
        )
        return space["impl"]

    return put


@functools.cache
def _keeping(size: int, lanes: int) -> Compiled:
    """Return ``keep(dtype, found, out, start, count, number, tape)``, which does so for all tangents."""
    lines = "".join(
        f"    if start + {lane} < count:\n"
        f"        put{lane}(dtype, found, out, start + {lane}, number, tape)\n"
        f"    number += step\n"
        for lane in range(lanes)
    )
    space: Namespace = {f"put{lane}": _putting(size, lane) for lane in range(lanes)}
    exec(
        "def impl(dtype, found, out, start, count, number, tape):\n"
        f"    step = elements(out) if tape else 0\n    number += start * step\n{lines}",
        {**space, "elements": elements},
        space,
    )
    return inner_njit(space["impl"])


@inner_njit
def direction(planes, k):
    """Components of direction k, of the last one where there are fewer, of none where there are none."""
    if planes.shape[1] == 0:
        return np.zeros(planes.shape[:1] + planes.shape[2:])
    return planes[:, min(k, planes.shape[1] - 1)]


def paths_of(kind: Type, path: str = "") -> list[str]:
    """Where the numbers and arrays of a result stand in it."""
    if isinstance(kind, types.BaseTuple):
        return [found for k, part in enumerate(list(kind)) for found in paths_of(part, f"{path}[{k}]")]
    return [path]


class _Pushing(Block):
    """Derivatives along directions, of which each moving argument has an array, an axis in front."""

    def __init__(self, primal: Compiled, moving: tuple[int, ...], kinds: list[Type], lanes: int) -> None:
        super().__init__(primal, recorded, releasing, moving, 1, kinds)
        self.lanes = lanes if self.size <= FEW else 1
        self.places = range(self.given, len(kinds))

    def _arrays(self) -> list[str]:
        return [f"a{k}" for k, kind in enumerate(self.kinds) if isinstance(kind, types.Array)]

    def _run(self, space: Namespace, by: Sequence[int], start: str) -> tuple[list[str], str]:
        """Lines that take directions from one on, and the call of the function with these."""
        lines, rows = [], []
        for k in by:
            names = [f"r{k}_{lane}" for lane in range(self.lanes)] if k in self.moving else []
            for lane, name in enumerate(names):
                place = self.places[self.moving.index(k)]
                lines.append(f"{name} = direction(a{place}, {start} + {lane})")
            rows.append(self._tangents(k, names))
        args = "".join(f"{self._value(k)}, " for k in range(self.given))
        given = [f"({args})", f"({''.join(f'{row}, ' for row in rows)})", *self._arrays()]
        return lines, f"run({', '.join(given)})"

    def value(self, part: Callable[[int], Intrinsic]) -> Code:
        """Return the code of the derivatives: what is given is ``x0, x1, ...``."""
        space, by = self._space(part), self.by if self.inner else self.moving
        spec: Spec = (self.lanes, *self.inner, 0)
        run = forward(twin_of(self.primal, spec), by, spec, any_shape=True)
        space |= {
            "direction": direction, "elements": elements, "room": room, "COUNT": COUNT,
            "put_all": _keeping(self.size, self.lanes), "value": component(0),
            "run": releasing(run, 2, range(2 + len(self._arrays()))),
        }  # fmt: skip
        first, *others = self.places
        lines = [*self._parts(), f"total = a{first}.shape[1]"]
        for k in others:
            lines += [f"if a{k}.shape[1] != total:", "    raise ValueError(COUNT)"]
        taken, called = self._run(space, by, "0")
        lines += [*taken, f"out = {called}", "tape, first, count = 0, 0, 0"]
        if taped(self.spec):
            known = "".join(f"a{k}, " for k in range(len(self.kinds)))
            space["reverse"] = addressed(lambda kind: self._reverse(kind, part))
            space["drop"] = addressed(drop_of)
            lines += [*self._gathering(), "if tape:", f"    known = (numbers, value(out), {known})"]
            call = "pushed(tape, total * elements(out), keep(known), reverse(known), drop(known))"
            lines.append(f"    first = {call} + 1")
        lines += ["found = room(dtype, out, total)", "put_all(dtype, found, out, 0, total, first, tape)"]
        taken, called = self._run(space, by, "start")
        lines.append(f"for start in range({self.lanes}, total, {self.lanes}):")
        lines += [f"    {line}" for line in [*taken, f"out = {called}"]]
        lines += ["    put_all(dtype, found, out, start, total, first, tape)", "return found"]
        names = ", ".join(f"x{k}" for k in range(len(self.kinds)))
        exec(f"def impl({names}):\n    " + "\n    ".join(lines) + "\n", space)
        code: Code = space["impl"]
        return code

    def _reverse(self, kind: Type, part: Callable[[int], Intrinsic]) -> Code:
        """Return ``(tape, block)``, which hands on the cotangents of the derivatives."""
        space, size, paths = self._space(part), self.size, paths_of(list(kind)[1])
        leaves = [f"c{j}" for j in range(len(paths))]
        wide = [isinstance(leaf, types.Array) for leaf in _leaves(list(kind)[1])]
        weights = range(self.given, self.given + len(paths))
        by = sorted({*self.by, *(weights if self.inner else ())})
        primal, spec = weighted(self.primal, self.given, tuple(paths)), (1, *self.inner)
        run = recorded(twin_of(primal, spec), tuple(by), spec, tuple(range(2 * size)))
        held = [*self._arrays(), "numbers", "values", *leaves]
        space |= {
            "load": loading(kind), "direction": direction, "elements": elements,
            "run": releasing(run, 2, range(2 + len(held))),
        }  # fmt: skip
        lines = ["known = load(get(block, KNOWN))", "numbers, values = known[0], known[1]"]
        lines += [f"a{k} = known[{k + 2}]" for k in range(len(self.kinds))]
        lines += ["number = get(block, BEFORE) + 1", f"for k in range(a{self.places[0]}.shape[1]):"]
        inner = []
        for name, path, many in zip(leaves, paths, wide, strict=True):
            shape = f"values{path}.shape" if many else "(1,)"
            inner += [f"{name} = cotangent(tape, number, {size}, {shape})", f"number += {name}[0].size"]
        inner.append(f"if {' or '.join(f'any_came({name})' for name in leaves) or 'False'}:")

        def components_of(name: str, many: bool, first: int) -> str:
            return "".join(f"{name}[{q}{'' if many else ', 0'}], " for q in range(first, size))

        args = "".join(f"{self._value(k)}, " for k in range(self.given))
        args += "".join(f"{c}[0{'' if many else ', 0'}], " for c, many in zip(leaves, wide, strict=True))
        rows, body = "", []
        for k in by:
            if k >= self.given:
                rows += f"({components_of(leaves[k - self.given], wide[k - self.given], 1)}), "
                continue
            names = [f"r{k}"] if k in self.moving else []
            for name in names:
                body.append(f"{name} = direction(a{self.places[self.moving.index(k)]}, k)")
            rows += f"{self._tangents(k, names)}, "
        body.append(f"found = run(({args}), ({rows}), {', '.join(held)})[1]")
        body += ["at = 0", *self._handing_on(by)]
        lines += [f"    {line}" for line in inner] + [f"        {line}" for line in body]
        text = "def impl(tape, block):\n    " + "\n    ".join([*lines, "return 0"]) + "\n"
        exec(text, space)
        code: Code = space["impl"]
        return code

    def _handing_on(self, by: Sequence[int]) -> list[str]:
        """Lines that add what came to arguments and to direction k."""
        lines, size, several = [], self.size, len(by) > 1
        for k in self.active:
            own, array = k < self.given, isinstance(self.kinds[k], types.Array)
            place = by.index(k if own else self.moving[k - self.given])
            lane, each = (size if own else 0), f"(a{k}[0].size // a{k}.shape[1])"
            rows = [f"found[{lane + q}]{f'[{place}]' if several else ''}" for q in range(size)]
            where = "at" if own else f"at + k * {each}"
            number = not (own and array) and (own or self.kinds[k].ndim == 1)
            for q, row in enumerate(rows):
                part = f"np.array([{row}])" if number else row
                lines.append(f"added(tape, numbers, {where}, {size}, {q}, {part})")
            lines.append(f"at += {'1' if own and not array else f'a{k}[0].size'}")
        return lines


def _leaves(kind: Type) -> list[Type]:
    """The types of the numbers and arrays of a result."""
    return [leaf for part in kind for leaf in _leaves(part)] if isinstance(kind, types.BaseTuple) else [kind]


def ahead(dtype, x):
    """One direction as an array of directions."""


@overload(ahead)
def _ahead(dtype, x):
    if isinstance(x, types.Array):
        return lambda dtype, x: np.expand_dims(x, 0)

    def of_number(dtype, x):
        found = np.empty(1, dtype)
        found[0] = x
        return found

    return of_number


def _ahead_of(kind: Type, spec: Spec) -> types.Array:
    """The type of that."""
    if isinstance(kind, types.Array):
        return types.Array(kind.dtype, kind.ndim + 1, "A")
    return types.Array(Active(spec), 1, "C")


def firsts(found):
    """The derivatives along the one direction there is."""


@overload(firsts)
def _firsts(found):
    if isinstance(found, types.BaseTuple):
        return of_parts("found", "firsts(found[{k}])", len(found), firsts=firsts)
    return lambda found: found[0]


def jvp_stub(
    primal: Compiled, plain: Compiled, moving: tuple[int, ...], lanes: int, batched: bool = False
) -> Code:
    """Return what recording code calls for value and derivatives along directions.

    `plain` is what does it for plain numbers; `batched`: directions have an axis in front.
    """

    def jvp(*args):
        raise NotImplementedError

    @overload(jvp)
    def _jvp(*args):
        kinds, n = list(args[:-1]), len(args) - 1
        given = list(args[-1]) if len(moving) > 1 and isinstance(args[-1], types.BaseTuple) else [args[-1]]
        if not any(map(has_derivative, [*kinds, *given])):
            return lambda *args: plain(*args)
        check("jvp", primal, [*kinds, *given])
        if batched and not all(isinstance(kind, types.Array) for kind in given):
            raise TypingError(
                f"tapegrad: directions of a batch are arrays with an axis in front; found {given}"
            )
        spec = spec_of([*kinds, *given])
        names = [f"args[{n}][{q}]" if len(moving) > 1 else f"args[{n}]" for q in range(len(moving))]
        whole = names if batched else [f"ahead(dtype, {name})" for name in names]
        arrays = [kind if batched else _ahead_of(kind, spec) for kind in given]
        block = piece(_Pushing(primal, moving, [*kinds, *arrays], lanes).value(component))
        values = "".join(f"args[{k}], " for k in range(n))
        space: Namespace = {
            "twin": releasing(twin_of(primal, spec), n, range(n + 1)), "ahead": ahead, "firsts": firsts,
            "block": releasing(block, n + len(moving), range(n + len(moving) + 1)),
            "statement": statement, "dtype": token(spec),
        }  # fmt: skip
        result = "found" if batched else "firsts(found)"
        exec(
            f"def impl(*args):\n    value = statement(twin({values}args))\n"
            f"    found = block({values}{', '.join(whole)}, args)\n    return value, {result}\n",
            space,
        )
        return space["impl"]

    return jvp


def columns(found, x):
    """Derivatives along unit directions as those by an argument: its axes behind those of results."""


@overload(columns)
def _columns(found, x):
    if isinstance(found, types.BaseTuple):
        return of_parts("found, x", "columns(found[{k}], x)", len(found), columns=columns)
    if not isinstance(x, types.Array):
        return lambda found, x: found[0]
    if found.ndim == 1:
        return lambda found, x: found.reshape(x.shape)
    axes = (*range(1, found.ndim), 0)
    return lambda found, x: np.transpose(found, axes).copy().reshape(found.shape[1:] + x.shape)


def units(x):
    """Unit directions of an argument."""


@overload(units)
def _units(x):
    if not isinstance(x, types.Array):
        return lambda x: np.ones(1)
    return lambda x: np.eye(x.size).reshape((x.size, *x.shape))


def jacfwd_stub(primal: Compiled, plain: Compiled, lanes: int) -> Code:
    """Return what recording code calls for the derivatives of all results by the first argument."""

    def jacfwd(*args):
        raise NotImplementedError

    @overload(jacfwd)
    def _jacfwd(*args):
        kinds, n = list(args), len(args)
        if not any(map(has_derivative, kinds)):
            return lambda *args: plain(*args)
        check("jacfwd", primal, kinds)
        several = isinstance(kinds[0], types.Array)
        kinds.append(types.Array(types.float64, kinds[0].ndim + 1 if several else 1, "C"))
        block = piece(_Pushing(primal, (0,), kinds, lanes if several else 1).value(component))
        space: Namespace = {
            "block": releasing(block, n + 1, range(n + 2)), "columns": columns, "units": units,
        }  # fmt: skip
        given = "".join(f"args[{k}], " for k in range(n))
        exec(f"def impl(*args):\n    return columns(block({given}units(args[0]), args), args[0])\n", space)
        return space["impl"]

    return jacfwd
