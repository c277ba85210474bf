"""Calls of ops in compiled code: what `tapegrad.ops` declares needs nothing besides to be called there.

The rule of an elementwise op is run on numbers that emit code, as those of all functions of numbers are. Any
other op is a block of the tape: Python computes its value, and its rule when a sweep comes to it. Tangents
are pushed forward by the op's rules on Tensors, a level of dual numbers for each that these carry, so
derivatives of any order follow from the declaration.
"""

from __future__ import annotations

import ast
import functools
import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numba import njit, objmode
from numba.core import types
from numba.core.errors import TypingError
from numba.core.typing.templates import make_overload_template
from numba.extending import intrinsic, typeof_impl

from tapegrad.core.base import Handle, TensorOrArray, value_of, wrap
from tapegrad.core.dispatch import as_tape_value
from tapegrad.core.forward_mode import Level, at_level, dual
from tapegrad.errors import DTypeError
from tapegrad.kernels import linked
from tapegrad.kernels.symbols import can_link
from tapegrad.native.arrays.arrays import Token
from tapegrad.native.emission.algebra import MARKED, Emitter, Spec, components, known_to_numba
from tapegrad.native.emission.annotations import (
    Builder,
    Code,
    Compiled,
    Context,
    Emission,
    Intrinsic,
    Namespace,
    Signature,
    Type,
    TypingContext,
    Value,
)
from tapegrad.native.library.functions import _of_each
from tapegrad.native.library.loop import tape_of
from tapegrad.native.numbers.operators import on_tape, recording, statement, statement_of
from tapegrad.native.numbers.scalar import PASSIVE, Active, is_active, unpack
from tapegrad.native.tapes.blocks import addressed, came, drop_of, inner_njit, keep, loading, pushed
from tapegrad.native.tapes.memory import get, read, taking, write
from tapegrad.native.tapes.tape import BEFORE, COTANGENTS, KNOWN
from tapegrad.ops import REGISTRY
from tapegrad.ops.meaning import op_of, results_of
from tapegrad.ops.primitive import Attributes, Elementwise, Irregular, Linear, Primitive, Reduction

OPTIONS = {"no_cpython_wrapper": True, "nopython": True}  # those of Numba's `overload`
Numbers = list[Any]  # arrays or Tensors: the components of the numbers in an array

# ---------------------------------------------------------------- what Python computes


class Call(NamedTuple):
    """A call of an op in compiled code: what is known of it when it is compiled."""

    op: Primitive
    attrs: Attributes
    ranks: tuple[int, ...]  # how many axes the operands have
    rank: int  # and how many the result
    spec: Spec  # of the numbers, without the 0 that says that they are on no tape

    def parts(self, values: np.ndarray, shapes: np.ndarray) -> list[Numbers]:
        """The components of each operand, of which `values` has one after the other."""
        found, sizes, at, count = [], shapes.tolist(), 0, components(self.spec)
        for rank in self.ranks:
            shape, sizes = sizes[:rank], sizes[rank:]
            size = math.prod(shape)
            planes = [values[at + q * size : at + (q + 1) * size].reshape(shape) for q in range(count)]
            found.append(planes if rank else [plane[()] for plane in planes])
            at += size * count
        return found


CALLED: dict[str, Primitive] = {}  # ops that compiled code calls, by name


@functools.lru_cache(maxsize=1024)
def _call_of(text: str) -> Call:
    """What compiled code calls, by a text that is right in other processes too."""
    name, *rest = ast.literal_eval(text)
    return Call(CALLED.get(name) or REGISTRY[name], *rest)


def compute(text: str, values: np.ndarray, shapes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the components of an op's result, one after the other, and its shape."""
    call = _call_of(text)

    def function(*xs: TensorOrArray) -> Numbers:
        return [Primitive.__call__(call.op, *xs, **call.attrs)]

    with np.errstate(all="ignore"):
        (found,) = on_numbers(function, call.parts(values, shapes), call.spec)
    value = value_of(found[0])
    if np.ndim(value) != call.rank or np.iscomplexobj(value):
        raise DTypeError(
            f"{call.op.name} in compiled code: a real result of {call.rank} axes is expected, as of small "
            f"operands; found dtype {np.result_type(value)}, shape {np.shape(value)}"
        )
    return _flat(found), np.array(np.shape(value), np.int64)


def reverse(
    text: str,
    ct: np.ndarray,
    values: np.ndarray,
    out: np.ndarray,
    shapes: np.ndarray,
    statements: np.ndarray,
    shape: np.ndarray,
) -> np.ndarray:
    """Return the cotangents of an op's operands: of each element its components."""
    call = _call_of(text)
    parts, at, wanted = call.parts(values, shapes), 0, []
    for k, part in enumerate(parts):
        size = part[0].size
        if statements[at : at + size].any():
            wanted.append(k)
        at += size

    def function(ct: TensorOrArray, out: TensorOrArray, *xs: TensorOrArray) -> Numbers:
        found = call.op.vjp(ct, out, list(xs), call.attrs, wanted)
        return [np.zeros(np.shape(xs[k])) if found.get(k) is None else found[k] for k in wanted]

    result = call._replace(ranks=(len(shape),))
    with np.errstate(all="ignore"):
        found = on_numbers(function, [*result.parts(ct, shape), *result.parts(out, shape), *parts], call.spec)
    rows = [np.zeros(part[0].size * len(part)) for part in parts]
    for k, part in zip(wanted, found, strict=True):
        rows[k] = _flat(part) if len(part) == 1 else _flat(part).reshape(len(part), -1).T.reshape(-1)
    return _flat(rows)


def _flat(parts: Numbers) -> np.ndarray:
    """The elements of arrays or Tensors, one after the other."""
    return np.concatenate([np.ravel(value_of(part)) for part in parts], dtype=float)


def on_numbers(function: Callable[..., Numbers], parts: list[Numbers], spec: Spec) -> list[Numbers]:
    """Run a function of arrays on arrays of numbers, whose components are given."""
    if not spec:
        return [[x] for x in function(*(part[0] for part in parts))]
    lanes, inner = spec[0], components(spec[1:])
    marked = lanes == MARKED
    lanes = 1 if marked else lanes
    primals = [part[:inner] for part in parts]
    found: list[Numbers] = []
    for q in range(1, lanes + 1):
        tangents = [part[q * inner : (q + 1) * inner] for part in parts]
        still = [marked and not np.any(part[2 * inner]) for part in parts]
        moved = on_numbers(_pushed(function, still), [*primals, *tangents], spec[1:])
        half = len(moved) // 2
        found = found or moved[:half]
        found = [whole + tangent for whole, tangent in zip(found, moved[half:], strict=True)]
    if marked:
        variation = 0.0 if all(still) else 1.0
        for whole in found:
            shape = np.shape(value_of(whole[0]))
            whole.extend([np.full(shape, variation if k == 0 else 0.0) for k in range(inner)])
    return found


def _pushed(function: Callable[..., Numbers], still: Sequence[bool]) -> Callable[..., Numbers]:
    """Return the function of primals and tangents that gives results and their tangents."""

    def moved(*args: TensorOrArray) -> Numbers:
        args = tuple(x if isinstance(x, Handle) else wrap(as_tape_value(x)) for x in args)
        half = len(args) // 2
        level = Level()
        try:
            level.open()
            xs = [x if stays else dual(level, x, t)
                  for x, t, stays in zip(args[:half], args[half:], still, strict=True)]  # fmt: skip
            found = [x if isinstance(x, Handle) else wrap(as_tape_value(x)) for x in function(*xs)]
            levels = [at_level(x, level) for x in found]
            zeros = [np.zeros(x._v.shape) for x in found]
            primals = [x if d is None else d.primal for x, d in zip(found, levels, strict=True)]
            return primals + [z if d is None else d.tangent for z, d in zip(zeros, levels, strict=True)]
        finally:
            level.close()

    return moved


# ---------------------------------------------------------------- what compiled code does


@intrinsic
def plain(typingctx: TypingContext, x: Type) -> Emission:
    """Return a value as one that is no literal, for which functions would be compiled again."""
    kind = types.unliteral(x)
    return kind(x), lambda cx, b, sig, args: cx.cast(b, args[0], x, kind)


@inner_njit
def forward(text, values, shapes):
    """Let Python compute an op's value; returns its components, and its shape."""
    with objmode(out="float64[::1]", shape="int64[::1]"):
        out, shape = compute(text, values, shapes)
    return out, shape


@inner_njit
def backward(text, ct, values, out, shapes, statements, shape):
    """Let Python run an op's rule; returns the cotangents of the operands."""
    with objmode(found="float64[::1]"):
        found = reverse(text, ct, values, out, shapes, statements, shape)
    return found


@intrinsic
def parts_of(typingctx: TypingContext, dtype: Type, x: Type) -> Emission:
    """Return the components of a number, as of one of the kind whose dtype is given."""
    spec = dtype.dtype.spec
    kind = types.UniTuple(types.float64, components(spec))

    def code(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Value:
        number = unpack(Emitter(context, builder), x, args[1], spec).number
        return context.make_tuple(builder, kind, number.flat())

    return kind(dtype, x), code


def _code(source: str, /, **space: Any) -> Code:
    exec(source, space)
    return space["impl"]


@functools.cache
def _reading(spec: Spec, array: bool) -> Compiled:
    """Return ``load(x, values, statements, at, n)``: note the n numbers of an operand; returns their tape."""
    size = components(spec)
    lines = [f"values[{size} * at + {q} * n + j] = parts[{q}]" for q in range(size)]
    text = "\n".join([
        "def impl(x, values, statements, at, n):",
        "    tape = 0",
        f"    for j, v in enumerate({'x.flat' if array else '(x,)'}):",
        "        parts = parts_of(dtype, v)",
        *(f"        {line}" for line in lines),
        "        statements[at + j] = statement_of(v)",
        "        tape |= tape_of(v)",
        "    return tape",
    ])  # fmt: skip
    return inner_njit(
        _code(text, dtype=Token(Active(spec)), parts_of=parts_of, statement_of=statement_of, tape_of=tape_of)
    )


@functools.cache
def _making(spec: Spec, rank: int) -> Compiled:
    """Return ``make(out, shape, first, tape)``: components as numbers of statements from `first` on."""
    parts = "".join(f"out[j + {q} * n], " for q in range(components(spec)))
    number = f"on_tape(dtype, ({parts}), first + j, tape)"
    if rank:
        shape = "".join(f"shape[{d}], " for d in range(rank))
        body = f"""    found = np.empty(({shape}), dtype)
    flat = found.reshape(-1)
    n = flat.size
    step = 1 if tape else 0
    for j in range(n):
        flat[j] = {number.replace("first + j", "first + step * j")}
    return found"""
    else:
        body = f"    j, n = 0, 1\n    return {number}"
    return inner_njit(
        _code(
            f"def impl(out, shape, first, tape):\n{body}\n", np=np, dtype=Token(Active(spec)), on_tape=on_tape
        )
    )


@functools.cache
def _reversing(spec: Spec) -> tuple[Intrinsic, Intrinsic]:
    """Return the functions that give the addresses of a block's two functions, by what it knows."""
    size, take = components(spec), taking(spec)

    def make(kind: Type) -> Code:
        load = loading(kind)

        def impl(tape, block):
            text, values, shapes, statements, out, shape = load(get(block, KNOWN))
            cotangents, first = get(tape, COTANGENTS), get(block, BEFORE) + 1
            count = out.size // size
            ct = np.empty(out.size)
            any_came = False
            for j in range(count):
                row = take(cotangents, first + j)
                any_came |= came(row[0])
                for q in range(size):
                    ct[q * count + j] = row[q] + 0.0
            if any_came:
                found = backward(text, ct, values, out, shapes, statements, shape)
                for j in range(statements.size):
                    if statements[j]:
                        for q in range(size):
                            place = cotangents + 8 * (size * statements[j] + q)
                            write(place, read(place) + (found[j * size + q] + 0.0))
            return 0

        return impl

    return addressed(make), addressed(drop_of)


@functools.cache
def _running(spec: Spec) -> Compiled:
    """Return ``run(text, values, statements, shapes, tape)``, which computes a block.

    That is the components of the result, its shape, and the number of its first statement on the tape.
    """
    size, (rule, drop) = components(spec), _reversing(spec)

    def impl(text, values, statements, shapes, tape):
        out, shape = forward(text, values, shapes)
        if tape == 0:
            return out, shape, 0
        known = (text, values, shapes, statements, out, shape)
        first = pushed(tape, out.size // size, keep(known), rule(known), drop(known)) + 1
        return out, shape, first

    return inner_njit(impl)


@inner_njit
def _room(count, size, axes):
    """Memory for the components and the statements of so many numbers, and for the shapes of operands."""
    return np.empty(size * count), np.zeros(count, np.int64), np.empty(axes, np.int64)


def _block(
    op: Primitive,
    attrs: Attributes,
    names: Sequence[str],
    form: str,
    kinds: Sequence[Type],
    spec: Spec | None,
) -> Code:
    """Code of a call that is a block; without numbers that have derivatives `spec` is None."""
    ranks = tuple(getattr(kind, "ndim", 0) for kind in kinds)
    rank, attrs = _rank_of(op, attrs, ranks), op.attributes(ranks, **attrs)
    bare = () if spec is None else spec[:-1] if spec[-1:] == (0,) else spec
    if CALLED.get(op.name) is not op:
        CALLED[op.name] = op
        _call_of.cache_clear()
    size, text = components(bare), repr((op.name, attrs, ranks, rank, bare))
    space: Namespace = {"room": _room, "statement": statement, "plain": plain, "text": text}
    sizes = [f"{x}.size" if r else "1" for x, r in zip(names, ranks, strict=True)]
    total = " + ".join(sizes)
    lines = [
        f"values, statements, shapes = room(plain({total}), plain({size}), plain({sum(ranks)}))",
        "tape, at = 0, 0",
    ]
    axes = [f"{x}.shape[{d}]" for x, r in zip(names, ranks, strict=True) for d in range(r)]
    lines += [f"shapes[{k}] = {axis}" for k, axis in enumerate(axes)]
    for k, (x, r, n) in enumerate(zip(names, ranks, sizes, strict=True)):
        space[f"load{k}"] = _reading(() if spec is None else spec, r > 0)
        given = x if r else f"statement({x})"
        lines += [f"tape |= load{k}({given}, values, statements, at, {n})", f"at += {n}"]
    if spec is None:
        space["forward"] = forward
        shape = "".join(f"shape[{d}], " for d in range(rank))
        result = f"out.reshape(({shape}))" if rank else "out[0]"
        lines += ["out, shape = forward(plain(text), values, shapes)", f"return {result}"]
    else:
        space["make"], space["run"] = _making(spec, rank), _running(spec)
        lines += ["out, shape, first = run(plain(text), values, statements, shapes, tape)",
                  "return make(out, shape, first, tape)"]  # fmt: skip
    body = "\n    ".join(lines)
    return _code(f"def impl{form}:\n    {body}\n", **space)


def _rank_of(op: Primitive, attrs: Attributes, ranks: Sequence[int]) -> int:
    """How many axes a result has, by that of small operands."""
    xs = [np.broadcast_to(np.eye(2), (2,) * r) if r > 1 else np.full((2,) * r, 0.5) for r in ranks]
    try:
        return int(np.ndim(op(*xs, **attrs)))
    except Exception as error:
        axes = ", ".join(map(str, ranks))
        raise TypingError(f"tapegrad: {op.name} of arrays of {axes} axes: {error}") from error


def _attribute(op: Primitive, name: str, kind: Type) -> Any:
    """The value of an attribute, which compiled code has to know."""
    if not isinstance(kind, types.Type):
        return kind
    if isinstance(kind, types.Omitted):
        return kind.value
    if isinstance(kind, types.NoneType):
        return None
    if isinstance(kind, types.Literal):
        return kind.literal_value
    if isinstance(kind, types.BaseTuple):
        return tuple(_attribute(op, name, part) for part in kind)
    raise TypingError(f"tapegrad: {name} of {op.name} is a literal in compiled code, found {kind}")


def _operand(op: Primitive, kind: Type) -> None:
    """Refuse operands that are no float64 numbers or arrays of such."""
    number = kind.dtype if isinstance(kind, types.Array) else kind
    if not is_active(number) and (
        not isinstance(number, PASSIVE) or number in (types.float32, types.float16)
    ):
        raise TypingError(f"tapegrad: {op.name} in compiled code takes float64, found {kind}")


def _signature(op: Primitive) -> tuple[list[str], dict[str, str]]:
    """The names of an op's operands, and of its attributes with their defaults."""
    names = [f"x{k}" for k in range(op.arity)]
    if isinstance(op, Reduction):
        return names, {"axis": "=None", "keepdims": "=False"}
    rule = {Irregular: "_vjp", Linear: "rule"}.get(type(op))
    if rule is None:
        return names, {}
    parameters = list(inspect.signature(getattr(op, rule)).parameters)
    return names, dict.fromkeys(parameters[parameters.index("wanted") + 1 :], "")


def _elementwise(op: Primitive, names: list[str], form: str, kinds: Sequence[Type]) -> Code:
    """Code of a call of an elementwise op."""
    given = ", ".join(names)
    if not any(is_active(getattr(kind, "dtype", kind)) for kind in kinds):
        value = op.scalar or op.forward
        if op.linked and can_link(op.linked) and not any(isinstance(kind, types.Array) for kind in kinds):
            floats = ", ".join(f"float({x})" for x in names)
            value = linked.function(op.linked, types.float64, True)
            return _code(f"def impl{form}:\n    return value({floats})", value=value)
        if inspect.isfunction(value):
            value = njit(value)
        elif not isinstance(value, np.ufunc) or not known_to_numba(value):
            return _block(op, {}, names, form, kinds, None)
        return _code(f"def impl{form}:\n    return value({given})", value=value)
    if not any(isinstance(kind, types.Array) for kind in kinds):
        return _code(f"def impl{form}:\n    return record({given})", record=recording(op))
    picks = ", ".join(f"{{{x}}}" for x in names)
    lines = [f"flat[i] = record({picks})"]
    return _of_each(given, lines, dict(zip(names, kinds, strict=True)), record=recording(op))


@functools.cache
def _type_of(op: Primitive) -> Type:
    """The type that an op has in compiled code: of a function that is chosen by the types of operands."""
    if not op.arity:
        raise TypingError(
            f"tapegrad: {op.name} takes any number of operands, so it has no type in compiled code"
        )
    names, attributes = _signature(op)
    form = f"({', '.join([*names, *(name + default for name, default in attributes.items())])})"

    def chosen(*kinds: Type) -> Code:
        given = kinds[: len(names)]
        for kind in given:
            _operand(op, kind)
        if isinstance(op, Elementwise) and not op.explicit:
            return _elementwise(op, names, form, given)
        attrs = {
            name: _attribute(op, name, kind)
            for name, kind in zip(attributes, kinds[len(names) :], strict=True)
        }
        numbers = [getattr(kind, "dtype", kind) for kind in given]
        spec = next((number.spec for number in numbers if is_active(number)), None)
        if spec and min(spec) < 0:
            raise TypingError(f"tapegrad: {op.name} has no power series in compiled code")
        return _block(op, attrs, names, form, given, spec)

    return _overloaded(op.name, form, ", ".join([*names, *attributes]), chosen)


def _overloaded(name: str, form: str, row: str, chosen: Callable[..., Code]) -> Type:
    """The type of a function of this form whose code is chosen by the types of its arguments."""
    space: Namespace = {"chosen": chosen}
    exec(f"def choose{form}:\n    return chosen({row})\ndef stub{form}:\n    pass", space)
    space["stub"].__name__ = name
    template = make_overload_template(
        space["stub"], space["choose"], OPTIONS, True, "never", prefer_literal=True
    )
    return types.Function(template)


@functools.cache
def _type_of_several(function: np.ufunc) -> Type:
    """The type of a ufunc with several results, of which each is an op."""
    row = ", ".join(f"x{k}" for k in range(function.nin))
    space: Namespace = {f"op{k}": op for k, op in enumerate(results_of(function))}
    calls = ", ".join(f"{name}({row})" for name in space)
    exec(f"def impl({row}):\n    return {calls}", space)
    return _overloaded(function.__name__, f"({row})", row, lambda *kinds: space["impl"])


@typeof_impl.register(Primitive)
def _typeof(op: Primitive, context: Any) -> Type:
    return _type_of(op)


@typeof_impl.register(np.ufunc)
def _typeof_ufunc(function: np.ufunc, context: Any) -> Type | None:
    op = None if known_to_numba(function) else op_of(function)
    if op is None:
        return _type_of_several(function) if results_of(function) else None
    return _type_of(op)
