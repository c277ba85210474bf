"""Derivatives of compiled functions inside of code that records: a block of the tape each.

What is recorded of a gradient is where it was taken. Its own derivative along a cotangent is the gradient of
the same function on numbers with one level of tangents more, for which the cotangent is the direction. So is
that of a Hessian's product, two levels up; and since numbers of any kind may stand at the bottom, all higher
derivatives are right.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import numpy as np
from numba import njit
from numba.core import types
from numba.core.errors import TypingError
from numba.extending import overload

from tapegrad.native.analysis.captured import refuse_another_run
from tapegrad.native.arrays.arrays import is_active_array
from tapegrad.native.emission.algebra import Spec, components
from tapegrad.native.emission.annotations import Code, Compiled, Intrinsic, Namespace, Type
from tapegrad.native.library.loop import gathered, tape_of
from tapegrad.native.numbers.operators import on_tape, statement, statement_of
from tapegrad.native.numbers.scalar import PASSIVE, is_active, taped
from tapegrad.native.tapes.blocks import addressed, came, drop_of, inner_njit, keep, loading, pushed
from tapegrad.native.tapes.memory import get, read, write
from tapegrad.native.tapes.tape import BEFORE, COTANGENTS, KNOWN
from tapegrad.native.twins.compiler import piece, token, twin_of
from tapegrad.native.twins.forms import holds_active

# ``recorded(twin, moving, spec, lanes)`` returns the function of arguments and tangents that gives the value
# and, of those components, the cotangents of the arguments that move.
Recorded = Callable[[Compiled, tuple[int, ...], Spec, tuple[int, ...]], Compiled]
# ``releasing(function, taken, held)`` returns what calls it, and lets go of what is held where that raises.
Releasing = Callable[[Compiled, int, Sequence[int]], Intrinsic]


def _code(text: str, space: Namespace) -> Code:
    exec(text, space)
    return space["impl"]


def has_derivative(kind: Type) -> bool:
    """Whether an argument is an active number, or an array of such."""
    return is_active(kind) or is_active_array(kind)


def spec_of(kinds: Sequence[Type]) -> Spec:
    """What tangents those among arguments carry that are active."""
    return next(k.spec if is_active(k) else k.dtype.spec for k in kinds if has_derivative(k))


@functools.cache
def _plane(size: int) -> Code:
    """Return ``planes(x, *parts)``: the components of an array's numbers, one array for each."""
    lines = "".join(f"        out[{q}].flat[k] = part{q}(v)\n" for q in range(size))
    names = ", ".join(f"part{q}" for q in range(size))
    text = f"def impl(x, {names}):\n    out = np.empty(({size},) + x.shape)\n"
    return inner_njit(_code(f"{text}    for k, v in enumerate(x.flat):\n{lines}    return out\n", {"np": np}))


@inner_njit
def cotangent(tape, number, size, shape):
    """The cotangents of an array's elements, statements from `number` on, taken."""
    out, place = np.empty((size, *shape)), get(tape, COTANGENTS) + 8 * size * number
    flat = out.reshape((size, -1))
    for k in range(flat.shape[1]):
        for q in range(size):
            flat[q, k] = read(place)
            write(place, -0.0)
            place += 8
    return out


@inner_njit
def any_came(ct):
    """Whether anything came to cotangents."""
    for v in ct[0].flat:  # noqa: SIM110  (compiled)
        if came(v):
            return True
    return False


@inner_njit
def added(tape, numbers, first, size, q, part):
    """Add to one component of the cotangents of an array's elements."""
    cotangents = get(tape, COTANGENTS)
    for k, v in enumerate(part.flat):
        number = numbers[first + k]
        if number:
            place = cotangents + 8 * (size * number + q)
            write(place, read(place) + (v + 0.0))


class Block:
    """A derivative of a function, as a block for arguments of some types.

    Attributes
    ----------
    primal, recorded, releasing
        The function; what makes a compiled gradient of it; what makes a call that lets go.
    moving
        Which arguments are differentiated by.
    count
        How many directions there are, each a value for each of those.
    kinds
        The types of the arguments, and behind them of the directions.
    before
        Names of what the code takes before the arguments.
    """

    before: tuple[str, ...] = ()

    def __init__(
        self,
        primal: Compiled,
        recorded: Recorded,
        releasing: Releasing,
        moving: tuple[int, ...],
        count: int,
        kinds: list[Type],
    ) -> None:
        self.primal, self.recorded, self.releasing = primal, recorded, releasing
        self.moving, self.count, self.kinds = moving, count, kinds
        self.spec = spec_of(kinds)
        self.inner = self.spec if taped(self.spec) else self.spec[:-1]
        self.size = components(self.inner)
        self.given = len(kinds) - count * len(moving)
        self.active = [k for k, kind in enumerate(kinds) if has_derivative(kind)]
        # what the reverse sweep differentiates by, and has tangents of
        self.by = tuple(sorted({*moving, *(k for k in self.active if k < self.given)}))

    def _tangents(self, k: int, rows: list[str]) -> str:
        """Components beyond the value of an argument, and those of its directions."""
        own = [f"a{k}[{q}]" for q in range(1, self.size)] if has_derivative(self.kinds[k]) or rows else []
        parts = [*own, *(f"{row}[{q}]" for row in rows for q in range(self.size))]
        return f"({''.join(f'{part}, ' for part in parts)})"

    def _direction(self, k: int) -> list[str]:
        """Names of the directions of an argument."""
        if k not in self.moving:
            return []
        place = self.given + self.moving.index(k)
        return [f"a{place + len(self.moving) * j}" for j in range(self.count)]

    def _value(self, k: int) -> str:
        return f"a{k}[0]" if has_derivative(self.kinds[k]) or k in self.by or k >= self.given else f"a{k}"

    def _call(
        self, by: Sequence[int], more: Callable[[int], list[str]], space: Namespace, also: Sequence[str] = ()
    ) -> str:
        """The call of the gradient `run`, which lets go of all that refers to arrays where that raises."""
        args = "".join(f"{self._value(k)}, " for k in range(self.given))
        rows = "".join(f"{self._tangents(k, more(k))}, " for k in by)
        held = [*(f"a{k}" for k, kind in enumerate(self.kinds) if isinstance(kind, types.Array)), *also]
        space["run"] = self.releasing(space["run"], 2, range(2 + len(held)))
        return f"run(({args}), ({rows}), {', '.join(held)})[1]"

    def _parts(self) -> list[str]:
        """Lines that take the arguments apart: arrays of components, or tuples of numbers."""
        lines = []
        names = "".join(f", part{q}" for q in range(self.size))
        for k, kind in enumerate(self.kinds):
            if isinstance(kind, types.Array):
                whole = self._value(k) != f"a{k}"
                lines.append(f"a{k} = planes(x{k}{names})" if whole else f"a{k} = x{k}.copy()")
            elif self._value(k) == f"a{k}":
                lines.append(f"a{k} = x{k}")
            else:
                lines.append(f"s{k} = statement(x{k})")
                lines.append(f"a{k} = ({''.join(f'part{q}(s{k}), ' for q in range(self.size))})")
        return lines

    def _space(self, part: Callable[[int], Intrinsic]) -> Namespace:
        space: Namespace = {f"part{q}": part(q) for q in range(self.size)}
        return {
            **space, "np": np, "planes": _plane(self.size), "gathered": gathered, "tape_of": tape_of,
            "statement": statement, "statement_of": statement_of, "on_tape": on_tape, "keep": keep,
            "pushed": pushed, "dtype": token(self.spec), "get": get, "KNOWN": KNOWN, "BEFORE": BEFORE,
            "cotangent": cotangent, "any_came": any_came, "added": added, "read": read, "write": write,
        }  # fmt: skip

    def _lanes(self, count: int) -> tuple[int, ...]:
        """The components that have all directions, one after the other."""
        size = self.size << count
        return tuple(range(size - self.size, size))

    def _sizes(self) -> list[str]:
        """How many numbers each argument and direction has."""
        return [f"x{k}.size" if isinstance(kind, types.Array) else "1" for k, kind in enumerate(self.kinds)]

    def _gathering(self) -> list[str]:
        """Lines that gather the statements of active numbers, of arguments and directions, and their tape."""
        sizes = self._sizes()
        lines = [f"numbers = np.zeros({' + '.join(sizes[k] for k in self.active)}, np.int64)"]
        for k in self.active:
            if isinstance(self.kinds[k], types.Array):
                lines.append(f"tape |= gathered(x{k}, numbers, count)")
            else:
                lines += [f"numbers[count] = statement_of(s{k})", f"tape |= tape_of(s{k})"]
            lines.append(f"count += {sizes[k]}")
        return lines

    def _found(self, space: Namespace) -> tuple[str, Sequence[int]]:
        """The expression of its components, and by which arguments they are: of several a tuple each."""
        spec = (*(1,) * self.count, *self.inner)
        by = self.by if self.inner else self.moving  # the others have no tangents that must not be left out
        space["run"] = self.recorded(twin_of(self.primal, spec), by, spec, self._lanes(self.count))
        return self._call(by, self._direction, space), by

    def value(self, part: Callable[[int], Intrinsic]) -> Code:
        """Return the code of the derivative: what is given is ``x0, x1, ...``."""
        space = self._space(part)
        found, by = self._found(space)
        lines, outs, several = self._parts(), [], len(by) > 1
        lines.append(f"found = {found}")
        lines += ["tape, first, count = 0, 0, 0"]
        sizes = self._sizes()
        if taped(self.spec):
            lines += self._gathering()
            known = "".join(f"a{k}, " for k in range(len(self.kinds)))
            space["reverse"] = addressed(lambda kind: self._reverse(kind, part))
            space["drop"] = addressed(drop_of)
            total = " + ".join(sizes[k] for k in self.moving)
            lines += ["if tape:", f"    known = (numbers, {known})"]
            lines.append(f"    first = pushed(tape, {total}, keep(known), reverse(known), drop(known)) + 1")
        for place, k in enumerate(self.moving):
            rows = [f"found[{q}]{f'[{by.index(k)}]' if several else ''}" for q in range(self.size)]
            if isinstance(self.kinds[k], types.Array):
                values = ", ".join(f"{row}.flat[k]" for row in rows)
                lines += [
                    f"out{place} = np.empty(x{k}.shape, dtype)",
                    f"flat{place} = out{place}.reshape(-1)",
                    f"for k in range(flat{place}.size):",
                    f"    flat{place}[k] = on_tape(dtype, ({values},), first + k if tape else 0, tape)",
                ]
            else:
                lines.append(f"out{place} = on_tape(dtype, ({', '.join(rows)},), first, tape)")
            lines.append(f"first += {sizes[k]} if tape else 0")
            outs.append(f"out{place}")
        lines.append(f"return {', '.join(outs)}")
        names = ", ".join([*self.before, *(f"x{k}" for k in range(len(self.kinds)))])
        return _code(f"def impl({names}):\n    " + "\n    ".join(lines) + "\n", space)

    def _reverse(self, kind: Type, part: Callable[[int], Intrinsic]) -> Code:
        """Return ``(tape, block)``, which hands on the cotangents of the results."""
        count = self.count + 1
        spec, space = (*(1,) * count, *self.inner), self._space(part)
        space["load"] = loading(kind)
        # of the arguments those with all directions; of a direction those with the others and the cotangent
        size = self.size
        lanes = list(self._lanes(count))
        for j in range(self.count):
            start = ((1 << count) - 1 - (1 << j)) * size
            lanes += range(start, start + size)
        space["run"] = self.recorded(twin_of(self.primal, spec), self.by, spec, tuple(lanes))
        lines = ["known = load(get(block, KNOWN))", "numbers, number = known[0], get(block, BEFORE) + 1"]
        lines += [f"a{k} = known[{k + 1}]" for k in range(len(self.kinds))]
        conditions = []
        for place, k in enumerate(self.moving):
            array = isinstance(self.kinds[k], types.Array)
            shape = f"a{k}.shape[1:]" if array else "(1,)"
            lines.append(f"c{place} = cotangent(tape, number, {size}, {shape})")
            lines.append(f"number += c{place}[0].size")
            conditions.append(f"any_came(c{place})")
            whole = f"({''.join(f'c{place}[{q}, 0], ' for q in range(size))})"
            lines.append(f"w{place} = {f'c{place}' if array else whole}")
        lines.append(f"if {' or '.join(conditions)}:")

        def more(k: int) -> list[str]:
            return [*self._direction(k), *([f"w{self.moving.index(k)}"] if k in self.moving else [])]

        also = ["numbers"]
        for place, k in enumerate(self.moving):
            also += [f"c{place}"] + [f"w{place}"] * isinstance(self.kinds[k], types.Array)
        inner, several = [f"found = {self._call(self.by, more, space, also)}", "at = 0"], len(self.by) > 1
        for k in self.active:
            if k < self.given:
                lane, place = 0, self.by.index(k)
            else:
                j, q = divmod(k - self.given, len(self.moving))
                lane, place = size * (1 + j), self.by.index(self.moving[q])
            rows = [f"found[{lane + q}]{f'[{place}]' if several else ''}" for q in range(size)]
            if isinstance(self.kinds[k], types.Array):
                inner += [f"added(tape, numbers, at, {size}, {q}, {row})" for q, row in enumerate(rows)]
                inner.append(f"at += {rows[0]}.size")
            else:
                inner += [f"added(tape, numbers, at, {size}, {q}, np.array([{row}]))"
                          for q, row in enumerate(rows)]  # fmt: skip
                inner.append("at += 1")
        lines += [f"    {line}" for line in inner]
        return _code("def impl(tape, block):\n    " + "\n    ".join([*lines, "return 0"]) + "\n", space)


def inner(g, v):
    """The sum of the products of two numbers, or of two arrays' elements."""
    raise NotImplementedError


@overload(inner)
def _inner_of(g, v):
    if not isinstance(g, types.Array):
        return lambda g, v: g * v

    def impl(g, v):
        if g.shape != v.shape:
            raise ValueError("a direction has another shape than the argument that it is a direction of")
        total = 0.0
        for k in np.ndindex(g.shape):
            total = total + g[k] * v[k]
        return total

    return impl


def weighted(primal: Compiled, count: int, paths: tuple[str, ...]) -> Compiled:
    """Return the sum of the results of a function, with weights that are its last arguments."""
    known = vars(primal).setdefault("_tapegrad_weighted", {})
    if (count, paths) not in known:
        given = ", ".join(f"x{k}" for k in range(count))
        weights = ", ".join(f"c{k}" for k in range(len(paths)))
        total = " + ".join(f"inner(out{path}, c{k})" for k, path in enumerate(paths)) or "0.0"
        space: Namespace = {"f": primal, "inner": inner, "__name__": __name__}
        exec(f"def weighted({given}, {weights}):\n    out = f({given})\n    return {total}\n", space)
        space["weighted"].__qualname__ = f"weighted({primal.py_func.__qualname__})"
        known[count, paths] = njit(space["weighted"])
    found: Compiled = known[count, paths]
    return found


def check(name: str, primal: Compiled, kinds: Sequence[Type]) -> None:
    """Refuse other arguments of a derivative that is recorded than real numbers and arrays of such.

    Its own derivative runs the function again.
    """
    refuse_another_run(primal, f"the derivative of {name}")
    for kind in kinds:
        number = is_active(kind) or isinstance(kind, PASSIVE)
        array = isinstance(kind, types.Array) and is_active_array(kind) >= holds_active(kind)
        if not number and not (array and kind.ndim):
            raise TypingError(
                f"tapegrad: {name}, where it is recorded, takes real numbers and arrays of such; found {kind}"
            )


# What is called in place of a derivative: `block` is the gradient's or that of the Hessian's product. Behind
# what these take stand the arrays that the call is to let go of, should it raise.
FORMS = {
    "grad": "return block({given}, args)",
    "value_and_grad": "return statement(twin({given}, args)), block({given}, args)",
    "hvp": "return block({given}, {directions}, args)",
    "hessian": "return block({given}, 1.0, args)",
    "hessian of an array": """n = args[0].size
    out, unit = np.empty((n, n), dtype), np.zeros(args[0].shape)
    for i in range(n):
        unit.flat[i] = 1.0
        for j, v in enumerate(block({given}, unit, args, out).flat):
            out[i, j] = v
        unit.flat[i] = 0.0
    return out""",
}


class Nested:
    """A derivative of a function as recording code calls it.

    Attributes
    ----------
    name, moving
        Which derivative it is, and by which arguments.
    primal, plain
        The function, and the derivative compiled for plain numbers.
    recorded, part, releasing
        Make a compiled gradient, the function that takes a component of a number, and a call that lets go.
    """

    def __init__(
        self,
        name: str,
        moving: tuple[int, ...],
        primal: Compiled,
        plain: Compiled,
        recorded: Recorded,
        part: Callable[[int], Intrinsic],
        releasing: Releasing,
    ) -> None:
        self.name, self.moving, self.primal, self.plain = name, moving or (0,), primal, plain
        self.recorded, self.part, self.releasing = recorded, part, releasing

    def stub(self) -> Code:
        """Return what stands for it in recording code."""

        def stub(*args):
            raise NotImplementedError

        @overload(stub)
        def _stub(*args):
            return self.chosen(args)

        stub.__name__ = self.name
        return stub

    def chosen(self, kinds: Sequence[Type]) -> Code:
        """Return the code for arguments of these types."""
        if not any(map(holds_active, kinds)):
            return _code("def impl(*args):\n    return plain(*args)\n", {"plain": self.plain})
        array = self.name == "hessian" and isinstance(kinds[0], types.Array)
        form = FORMS.get("hessian of an array" if array else self.name)
        if form is None:
            others = "grad, value_and_grad, hvp, hessian, vjp, jvp and jacfwd"
            raise TypingError(f"tapegrad: {self.name} is not recorded; {others} of a function are")
        several, count = len(self.moving) > 1, len(kinds) - (self.name == "hvp")
        check(self.name, self.primal, kinds[:count])
        last = f"args[{count}]"
        directions = [f"{last}[{q}]" if several else last for q in range(len(self.moving))]
        text = form.format(
            given=", ".join(f"args[{k}]" for k in range(count)),
            directions=", ".join(directions),
        )
        block, twin = self._block(kinds[:count], kinds[count:]), twin_of(self.primal, spec_of(kinds))
        taken, more = block.py_func.__code__.co_argcount, 2 if array else 1
        space: Namespace = {
            "np": np, "statement": statement, "dtype": token(spec_of(kinds)),
            "block": self.releasing(block, taken, range(taken + more)),
            "twin": self.releasing(twin, count, range(count + 1)),
        }  # fmt: skip
        return _code(f"def impl(*args):\n    {text}\n", space)

    def _block(self, given: Sequence[Type], direction: Sequence[Type]) -> Compiled:
        if any(k >= len(given) for k in self.moving):
            raise TypingError(f"tapegrad: {self.name} by arguments {self.moving}, found {len(given)}")
        rest = list(direction) if self.name == "hvp" else []
        if self.name == "hessian":
            x = given[0]
            rest = [types.Array(types.float64, x.ndim, "C") if isinstance(x, types.Array) else types.float64]
        elif rest and len(self.moving) > 1:
            rest = list(rest[0])
        check(self.name, self.primal, rest)
        ways = self.recorded, self.releasing
        block = Block(self.primal, *ways, self.moving, 1 if rest else 0, [*given, *rest])
        return piece(block.value(self.part))
