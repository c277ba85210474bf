"""Pullbacks in compiled code: a function is recorded once, and swept from as many cotangents as are wanted.

A pullback holds a tape until nothing refers to it. Where it is differentiated itself each call is a block as
that of a gradient is: of the sum of the results, with the cotangents as weights.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.core.errors import TypingError
from numba.core.imputils import impl_ret_borrowed, lower_builtin
from numba.core.typing.templates import signature
from numba.extending import intrinsic, models, overload, register_model
from numba.np import arrayobj

from tapegrad.native.derivatives.derivative import (
    Derivative,
    attempt,
    component,
    kept,
    moving_of,
    recorded,
    releasing,
    sweeping,
)
from tapegrad.native.derivatives.nested import Block, check, has_derivative, weighted
from tapegrad.native.emission.algebra import I64, Spec, components
from tapegrad.native.emission.annotations import (
    Builder,
    Code,
    Compiled,
    Context,
    DataModelManager,
    Emission,
    Intrinsic,
    Module,
    Namespace,
    Signature,
    Type,
    TypingContext,
    Value,
)
from tapegrad.native.function import CompiledFunction
from tapegrad.native.numbers.operators import statement, statement_of
from tapegrad.native.numbers.scalar import is_active
from tapegrad.native.tapes import runtime
from tapegrad.native.tapes.memory import claim, disclaim, get, read, taking, write
from tapegrad.native.tapes.tape import COTANGENTS, SWEPT, word
from tapegrad.native.twins.arguments import PASSIVE, entering, leaving, sizing
from tapegrad.native.twins.compiler import piece, twin_of, whole

SHAPE = "tapegrad: a cotangent has the shape of the result that it is a cotangent of"
BUSY = "a pullback is at work in another thread; let each thread make one of its own"


class Pullback(types.Callable):
    """The type of a pullback.

    Attributes
    ----------
    of
        How the function was recorded.
    args, out
        The types of the arguments that it was recorded with, and of what it returned.
    given
        The types of copies of the arguments, by which the pullback is differentiated; in plain code none.
    """

    def __init__(self, of: Recorder, args: Type, out: Type, given: Type) -> None:
        self.of, self.args, self.out, self.given = of, args, out, given
        super().__init__(f"pullback({of.name}, {args}, {out}, {given})")

    def get_call_type(self, context: TypingContext, args: Sequence[Type], kws: Mapping[str, Type]) -> Any:
        """Return the signature of a call."""
        if kws or len(args) != 1:
            raise TypingError("tapegrad: a pullback takes one cotangent, built as the function's result")
        kinds = self, types.unliteral(args[0])
        form: Signature = types.Dispatcher(_pull(*kinds)).get_call_type(context, kinds, {})
        return signature(form.return_type, kinds[1], recvr=self)

    def get_call_signatures(self) -> tuple[list[Signature], bool]:
        """Return those known so far."""
        return [], True

    def get_impl_key(self, sig: Signature) -> type:
        """Return what `_emit_call` is registered for."""
        return Pullback


@register_model(Pullback)
class _Model(models.StructModel):
    def __init__(self, manager: DataModelManager, kind: Pullback) -> None:
        members = [(name, getattr(kind, name)) for name in ("args", "out", "given")]
        super().__init__(manager, kind, [("tape", types.MemInfoPointer(types.voidptr)), *members])


@lower_builtin(Pullback, Pullback, types.Any)
def _emit_call(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Value:
    function = _pull(*sig.args)
    form = next(iter(function.overloads.values())).signature
    found = function.get_compile_result(form)
    context.add_linking_libs([found.library])
    return context.call_internal(builder, found.fndesc, form, args)


# ---------------------------------------------------------------- what a pullback holds


def _destructor(context: Context, module: Module) -> ir.Function:
    """The function that returns the tape of a pullback."""
    overload = next(iter(runtime.tapes().release.overloads.values()))
    context.add_linking_libs([overload.library])
    pointer = context.get_value_type(types.voidptr)
    kind = ir.FunctionType(ir.VoidType(), [pointer, context.get_value_type(types.uintp), pointer])
    function = cgutils.get_or_insert_function(module, kind, "tapegrad_drop_pullback")
    if function.is_declaration:
        function.linkage = "linkonce_odr"
        b = ir.IRBuilder(function.append_basic_block("drop"))
        tape = b.load(b.bitcast(function.args[0], I64.as_pointer()))
        context.call_internal_no_propagate(b, overload.fndesc, overload.signature, [tape])
        b.ret_void()
    return function


def _holding(of: Recorder) -> Intrinsic:
    """Return ``hold(tape, args, out, given)``: a pullback."""

    @intrinsic
    def hold(typingctx: TypingContext, tape: Type, args: Type, out: Type, given: Type) -> Emission:
        kind = Pullback(of, args, out, given)

        def code(context: Context, builder: Builder, sig: Signature, values: Sequence[Value]) -> Value:
            made = cgutils.create_struct_proxy(kind)(context, builder)
            size = context.get_constant(types.uintp, 8)
            made.tape = context.nrt.meminfo_alloc_dtor(builder, size, _destructor(context, builder.module))
            place = context.nrt.meminfo_data(builder, made.tape)
            builder.store(values[0], builder.bitcast(place, I64.as_pointer()))
            for name, part, value in zip(("args", "out", "given"), sig.args[1:], values[1:], strict=True):
                context.nrt.incref(builder, part, value)
                setattr(made, name, value)
            return made._getvalue()

        return kind(types.int64, args, out, given), code

    return hold


@intrinsic
def tape_at(typingctx: TypingContext, pullback: Type) -> Emission:
    """Return the address of a pullback's tape."""

    def code(context: Context, builder: Builder, sig: Signature, values: Sequence[Value]) -> Value:
        held = cgutils.create_struct_proxy(pullback)(context, builder, value=values[0])
        place = context.nrt.meminfo_data(builder, held.tape)
        return builder.load(builder.bitcast(place, I64.as_pointer()))

    return types.int64(pullback), code


def _member(name: str) -> Intrinsic:
    """Return the function that gives a member of a pullback."""

    @intrinsic
    def member(typingctx: TypingContext, pullback: Type) -> Emission:
        kind = getattr(pullback, name)

        def code(context: Context, builder: Builder, sig: Signature, values: Sequence[Value]) -> Value:
            held = cgutils.create_struct_proxy(pullback)(context, builder, value=values[0])
            return impl_ret_borrowed(context, builder, kind, getattr(held, name))

        return kind(pullback), code

    return member


args_of, out_of, given_of = map(_member, ("args", "out", "given"))


# ---------------------------------------------------------------- recording and sweeping


class Recorder:
    """How a function is recorded for pullbacks.

    Attributes
    ----------
    primal
        The function.
    moving
        Which arguments its products are by.
    by, spec
        Which arguments are active numbers on the tape, and the tangents of these.
    """

    _count = itertools.count()

    def __init__(self, primal: Compiled, moving: tuple[int, ...], by: tuple[int, ...], spec: Spec) -> None:
        self.primal, self.moving, self.by, self.spec = primal, moving, by, spec
        self.known: dict[tuple[Pullback, Type], Compiled] = {}
        self.name = f"{primal.py_func.__qualname__}, {moving}, {by}, {spec}, {next(self._count)}"

    @functools.cached_property
    def begin(self) -> Compiled:
        """``begin(args, tangents, given)``, which runs the function and returns the pullback."""
        module, twin = runtime.tapes(), twin_of(self.primal, self.spec)
        acquire, reset, size, hold = module.acquire, module.reset, sizing(self.by), _holding(self)
        enter, attempted = entering(self.by, self.spec), attempt(twin, self.by, self.spec, True)

        def begin(args, tangents, given):
            inputs = size(args, tangents)
            tape = acquire()
            if tape == 0:
                raise MemoryError("no memory for another native tape")
            reset(tape, inputs)
            return hold(tape, args, attempted(enter(args, tangents, tape), tape), given)

        return piece(begin)

    def pull(self, paths: tuple[str, ...], rows: tuple[int, ...]) -> Compiled:
        """Return ``pull(pullback, seeds)``: the products, a row for each component of the numbers.

        `seeds` has for each result at `paths` as many components as `rows` says.
        """
        module, size = runtime.tapes(), components(self.spec)
        lines = [
            f"seeded(cotangents, out{path}, seeds[{k}][{q}], {q}, {size})"
            for k, path in enumerate(paths)
            for q in range(rows[k])
        ]
        text = f"""def impl(pullback, seeds):
    tape = tape_at(pullback)
    if not claim(tape, SWEPT):
        raise RuntimeError(BUSY)
    if not prepare(tape, {size}):
        disclaim(tape, SWEPT)
        raise MemoryError("no memory for the cotangents")
    cotangents, out = get(tape, COTANGENTS), out_of(pullback)
    {"; ".join(lines) or "pass"}
    sweep(tape)
    found = leave(args_of(pullback), cotangents)
    if {size} > 1:  # else `leave` has taken them
        for k in range(1, count(args_of(pullback), none) + 1):
            take(cotangents, k)
    disclaim(tape, SWEPT)
    return found
"""
        space = {
            "claim": claim, "disclaim": disclaim, "get": get, "prepare": module.prepare, "seeded": seeded,
            "sweep": sweeping(runtime.sweeps(self.spec).sweep, _disclaim), "take": taking(self.spec),
            "leave": leaving(self.by, self.spec, tuple(range(size))), "count": sizing(self.by),
            "none": ((),) * len(self.by), "tape_at": tape_at, "out_of": out_of, "args_of": args_of,
            "COTANGENTS": COTANGENTS, "SWEPT": SWEPT, "BUSY": BUSY,
        }  # fmt: skip
        exec(text, space)
        return piece(space["impl"])


def _disclaim(context: Context, builder: Builder, tape: Value) -> None:
    """Emit what lets others sweep a tape."""
    builder.store_atomic(ir.Constant(I64, 0), word(builder, tape, SWEPT), "release", 8)


def seeded(cotangents, out, ct, q, size):
    """Add a component of cotangents to those of a result."""


@overload(seeded)
def _seeded(cotangents, out, ct, q, size):
    def of_array(cotangents, out, ct, q, size):
        for v, c in zip(out.flat, ct.flat):  # noqa: B905  (compiled)
            seeded(cotangents, v, c, q, size)

    def of_number(cotangents, out, ct, q, size):
        number = statement_of(out)
        if number:
            place = cotangents + 8 * (size * number + q)
            write(place, read(place) + (ct + 0.0))

    return of_array if isinstance(out, types.Array) else of_number


def _leaves(out: Any, ct: Any, path: str = "") -> list[tuple[str, Type]] | None:
    """Where the numbers and arrays stand that a cotangent is made of, and their types; None if it is none."""
    if isinstance(out, types.BaseTuple):
        if not isinstance(ct, types.BaseTuple) or len(ct) != len(out):
            return None
        pairs = enumerate(zip(list(out), list(ct), strict=True))
        parts = [_leaves(one, other, f"{path}[{k}]") for k, (one, other) in pairs]
        return None if None in parts else [leaf for part in parts for leaf in part or ()]
    number = ct
    if isinstance(out, types.Array):
        if not isinstance(ct, types.Array) or ct.ndim != out.ndim:
            return None
        number = ct.dtype
    return [(path, ct)] if is_active(number) or isinstance(number, PASSIVE) else None


def _shown(out: Type) -> str:
    """How a result is built, in words."""
    if isinstance(out, types.BaseTuple):
        return f"({', '.join(map(_shown, out))})"
    return (
        f"an array of {out.ndim} dimension{'s' * (out.ndim > 1)}"
        if isinstance(out, types.Array)
        else "a number"
    )


@intrinsic
def see_that_it_fits(typingctx: TypingContext, pullback: Type, ct: Type) -> Emission:
    """Raise where a cotangent has another shape than the result that it is one of."""

    def code(context: Context, builder: Builder, sig: Signature, values: Sequence[Value]) -> Value:
        held = cgutils.create_struct_proxy(pullback)(context, builder, value=values[0])

        def look(kinds: Sequence[Any], parts: Sequence[Value]) -> None:
            if isinstance(kinds[0], types.BaseTuple):
                rows = [cgutils.unpack_tuple(builder, part) for part in parts]
                for k, pair in enumerate(zip(*rows, strict=True)):
                    look([kind[k] for kind in kinds], pair)
            elif isinstance(kinds[0], types.Array):
                arrays = [
                    arrayobj.make_array(k)(context, builder, v) for k, v in zip(kinds, parts, strict=True)
                ]
                for n, m in zip(*(cgutils.unpack_tuple(builder, a.shape) for a in arrays), strict=True):
                    with cgutils.if_unlikely(builder, builder.icmp_signed("!=", n, m)):
                        context.call_conv.return_user_exc(builder, ValueError, (SHAPE,))

        look((pullback.out, ct), (held.out, values[1]))
        return context.get_dummy_value()

    return types.void(pullback, ct), code


# ---------------------------------------------------------------- calls


def _pull(pullback: Pullback, ct: Type) -> Compiled:
    """Return ``(pullback, cotangent)``, compiled: the products, as gradients are given."""
    known = pullback.of.known
    if (pullback, ct) not in known:
        known[pullback, ct] = _compiled(pullback, ct)
    return known[pullback, ct]


def _compiled(pullback: Pullback, ct: Type) -> Compiled:
    leaves = _leaves(pullback.out, ct)
    if leaves is None:
        raise TypingError(f"tapegrad: a cotangent is built as the result, {_shown(pullback.out)}; found {ct}")
    space: Namespace = {"see_that_it_fits": see_that_it_fits, "given_of": given_of}
    text = "def impl(pullback, ct):\n    see_that_it_fits(pullback, ct)\n"
    if any(map(has_derivative, [*pullback.given, *(kind for _, kind in leaves)])):
        block = _Pulling(pullback, leaves)
        function, n = piece(block.value(component)), len(pullback.given)
        several = range(1 + n, 1 + n + len(leaves)) if leaves and leaves[0][0] else ()
        space["pull"] = releasing(function, 1 + n + len(leaves), [*range(1, 1 + n), *several])
        given = [f"given_of(pullback)[{k}]" for k in range(n)] + [f"ct{path}" for path, _ in leaves]
        text += f"    return pull(pullback, {', '.join(given)})\n"
    else:
        function = pullback.of.pull(tuple(path for path, _ in leaves), (1,) * len(leaves))
        space["pull"] = releasing(function, 2, (1,))
        text += f"    return pull(pullback, ({''.join(f'(ct{path},), ' for path, _ in leaves)}))[0]\n"
    exec(text, space)
    return piece(space["impl"])


class _Pulling(Block):
    """A call of a pullback as a block: the gradient of the sum of the results, weighted, of one recording."""

    before = ("pullback",)

    def __init__(self, pullback: Pullback, leaves: Sequence[tuple[str, Type]]) -> None:
        self.pullback, self.leaves, of = pullback, leaves, pullback.of
        kinds = [*pullback.given, *(ct for _, ct in leaves)]
        if len(pullback.given) != len(pullback.args):
            raise TypingError("tapegrad: a pullback of plain code is called with what has a derivative")
        primal = weighted(of.primal, len(pullback.given), tuple(path for path, _ in leaves))
        super().__init__(primal, recorded, releasing, of.moving, 0, kinds)

    def _found(self, space: Namespace) -> tuple[str, Sequence[int]]:
        of, n = self.pullback.of, len(self.pullback.given)
        held = [f"a{k}" for k, kind in enumerate(self.kinds) if isinstance(kind, types.Array)]
        active = [has_derivative(ct) for _, ct in self.leaves]
        paths = tuple(path for path, _ in self.leaves)

        def pulled(rows: list[list[str]]) -> str:
            name = f"pull{len(space)}"
            function = of.pull(paths, tuple(map(len, rows)))
            space[name] = releasing(function, 2, range(1, 2 + len(held)))
            seeds = "".join(f"({''.join(f'{part}, ' for part in row)}), " for row in rows)
            return f"{name}({', '.join(['pullback', f'({seeds})', *held])})"

        def seeds(q: int, k: int) -> str:
            return f"a{n + k}[{q}]" if active[k] else f"a{n + k}"

        counts = [self.size if one else 1 for one in active]
        if of.spec == self.inner:
            return pulled([[seeds(q, k) for q in range(c)] for k, c in enumerate(counts)]), of.by
        # arguments that do not move: the product with each component of the cotangents
        rows = [[[seeds(q, k)] if q < c else [] for k, c in enumerate(counts)] for q in range(self.size)]
        return f"({''.join(f'{pulled(row)}[0], ' for row in rows)})", of.by


# ---------------------------------------------------------------- the derivative


class _Recording(Block):
    """Where recording code calls a function of which it wants a pullback."""

    def __init__(self, of: Compiled, moving: tuple[int, ...], kinds: Sequence[Type]) -> None:
        super().__init__(of, recorded, releasing, moving, 0, list(kinds))

    def begin(self, part: Callable[[int], Intrinsic]) -> Code:
        """Return the code of ``begin(*args)``, the pullback."""
        by = self.by if self.inner else self.moving
        space, lines = self._space(part), self._parts()
        run = Recorder(self.primal, self.moving, by, self.inner).begin
        space["run"] = releasing(run, 3, range(3))
        args = "".join(f"{self._value(k)}, " for k in range(self.given))
        rows = "".join(f"{self._tangents(k, [])}, " for k in by)
        lines.append(f"return run(({args}), ({rows}), ({_copies(self.kinds)}))")
        names = ", ".join(f"x{k}" for k in range(self.given))
        exec(f"def impl({names}):\n    " + "\n    ".join(lines) + "\n", space)
        code: Code = space["impl"]
        return code


def _copies(kinds: Sequence[Type]) -> str:
    """Arguments x0, x1 ... as they are now."""
    return "".join(
        f"x{k}.copy(), " if isinstance(kind, types.Array) else f"statement(x{k}), "
        for k, kind in enumerate(kinds)
    )


class Pulled(Derivative):
    """The function of value and pullback; compiled code alone has pullbacks of this kind."""

    def __call__(self, *args: Any) -> Any:
        assert self._of_tensors is not None
        return self._of_tensors(*args)


@kept
def vjp(of: CompiledFunction, argnums: int | Sequence[int]) -> Derivative:
    """Return the function of value and pullback."""
    moving, value = moving_of(argnums), component(0)
    recorder = Recorder(of.primal, moving, moving, ())
    begin, none = recorder.begin, ((),) * len(moving)

    def vjp(*args):
        found = begin(args, none, ())
        return value(out_of(found)), found

    return Pulled("vjp", of, whole(vjp), moving, _stub(recorder))


def _stub(of: Recorder) -> Code:
    """Return what recording code calls."""

    def vjp(*args):
        raise NotImplementedError

    @overload(vjp)
    def _vjp(*args):
        kinds = list(args)
        space: Namespace = {"value": component(0), "out_of": out_of, "statement": statement}
        names = ", ".join(f"x{k}" for k in range(len(kinds)))
        given = "".join(f"args[{k}], " for k in range(len(kinds)))
        if any(map(has_derivative, kinds)):
            check("vjp", of.primal, kinds)
            block = _Recording(of.primal, of.moving, kinds)
            twin, n = twin_of(of.primal, block.spec), len(kinds)
            space["twin"] = releasing(twin, n, range(n + 1))
            space["begin"] = releasing(piece(block.begin(component)), n, range(n + 1))
            text = f"    out = statement(twin({given}args))\n    return out, begin({given}args)\n"
        else:
            run = {"run": of.begin, "none": ((),) * len(of.moving), "statement": statement}
            exec(f"def begin({names}):\n    return run(({names},), none, ({_copies(kinds)}))\n", run)
            space["begin"] = piece(run["begin"])
            text = f"    found = begin({given})\n    return value(out_of(found)), found\n"
        exec(f"def impl(*args):\n{text}", space)
        return space["impl"]

    return vjp
