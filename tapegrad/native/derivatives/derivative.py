"""Derivatives as compiled functions: record, sweep and result in one, callable from compiled code too."""

from __future__ import annotations

import functools
import inspect
import textwrap
from collections.abc import Callable, Hashable, Sequence
from types import CodeType
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.core.dispatcher import Dispatcher
from numba.core.errors import TypingError
from numba.extending import intrinsic, overload
from numpy import ndarray

from tapegrad.core.base import Handle
from tapegrad.errors import DTypeError
from tapegrad.native import explain
from tapegrad.native.analysis.captured import refuse_another_run
from tapegrad.native.analysis.notes import announce
from tapegrad.native.arrays.reading import read_by_expressions
from tapegrad.native.derivatives.nested import Nested
from tapegrad.native.emission.algebra import F64, Spec, components
from tapegrad.native.emission.annotations import (
    Builder,
    Code,
    Compiled,
    Context,
    Emission,
    Intrinsic,
    Namespace,
    Signature,
    TupleType,
    Type,
    TypingContext,
    Value,
)
from tapegrad.native.function import CompiledFunction, compile_function
from tapegrad.native.numbers.operators import statement_of
from tapegrad.native.numbers.scalar import Active, is_active
from tapegrad.native.tapes import runtime
from tapegrad.native.tapes.memory import get, taking, write
from tapegrad.native.tapes.stored import Sources, Stored
from tapegrad.native.tapes.tape import COTANGENTS
from tapegrad.native.twin import twin_of
from tapegrad.native.twins.arguments import REAL, entering, leaving, mapped, new_matrix, put_row, sizing
from tapegrad.native.twins.compiler import piece, whole

STARRED = (types.StarArgTuple, types.StarArgUniTuple)


def _compile_once(compiled: Compiled, of: CompiledFunction, runs: str) -> None:
    """Let a function of any arguments be compiled once for them, if it may run `of` as it does.

    When compiled code calls it they are a tuple of another type to Numba than when Python does.
    """
    compile_form = compiled.compile

    def compile(form: Any) -> Any:
        if runs:
            refuse_another_run(of.primal, runs)
        plain = [types.Tuple(list(kind)) if isinstance(kind, STARRED) else kind for kind in form]
        return compile_form(tuple(plain))

    compiled.compile = compile


def _results(kind: Type) -> Type | None:
    """The type of what a function returns, nothing unrecorded in it; None if other than real numbers is."""
    if is_active(kind):
        return Active(kind.spec)
    if isinstance(kind, types.BaseTuple):
        parts = [_results(part) for part in kind]
        whole = any(part is None for part in parts) or isinstance(kind, types.BaseNamedTuple)
        return None if whole else types.Tuple(parts)
    real = isinstance(kind, types.Array) and isinstance(kind.dtype, (Active, *REAL))
    return kind if real or isinstance(kind, REAL) else None


@functools.cache
def component(place: int) -> Intrinsic:
    """Return the function that takes one component of numbers, also in arrays and tuples; plain ones rest."""

    def kind_of(kind: Type) -> Type:
        if isinstance(kind, types.BaseTuple):
            return types.Tuple([kind_of(part) for part in kind])
        array = isinstance(kind, types.Array)
        return types.Array(types.float64, kind.ndim, "C") if array else types.float64

    def number(context: Context, builder: Builder, kind: Type, value: Value) -> Value:
        if isinstance(kind, Active):
            return builder.extract_value(value, place)
        if place:
            return ir.Constant(F64, 0.0)
        return context.cast(builder, value, kind, types.float64)

    def part(context: Context, builder: Builder, kind: Type, value: Value) -> Value:
        if isinstance(kind, types.BaseTuple):
            pairs = zip(kind, cgutils.unpack_tuple(builder, value), strict=True)
            return context.make_tuple(
                builder, kind_of(kind), [part(context, builder, k, v) for k, v in pairs]
            )
        take = functools.partial(number, context, builder)
        return (
            mapped(context, builder, kind, value, take)
            if isinstance(kind, types.Array)
            else take(kind, value)
        )

    @intrinsic
    def take(typingctx: TypingContext, x: Type) -> Emission:
        def code(context: Context, builder: Builder, sig: Signature, args: Sequence[Value]) -> Value:
            return part(context, builder, x, args[0])

        return kind_of(x)(x), code

    return take


def _folded(
    context: Context,
    builder: Builder,
    code: CodeType,
    wanted: Sequence[Type],
    kinds: list[Type],
    values: list[Value],
) -> list[Value]:
    """Arguments as a function takes them: those behind the named ones a tuple, those left out by default."""

    def cast(kinds: Sequence[Type], values: Sequence[Value], wanted: Sequence[Type]) -> list[Value]:
        return [context.cast(builder, v, a, b) for v, a, b in zip(values, kinds, wanted)]  # noqa: B905

    def by_default(kinds: Sequence[Type]) -> list[Value]:
        return [context.get_constant_undef(kind) for kind in kinds]

    named, last = code.co_argcount, len(kinds) - code.co_kwonlyargcount  # by which Numba takes the last
    first = min(named, last)
    given = cast(kinds[:first], values[:first], wanted)
    given += by_default(wanted[first:named])
    if code.co_flags & inspect.CO_VARARGS:
        rest = wanted[named]
        given.append(context.make_tuple(builder, rest, cast(kinds[named:last], values[named:last], rest)))
    return given + cast(kinds[last:], values[last:], wanted[len(given) :])


def releasing(function: Compiled, taken: int, held: Sequence[int]) -> Intrinsic:
    """Return ``call(*args)``, which gives a function the first of them, and lets go of some where it raises.

    Numba never lets go of what a function refers to when something that it calls raises; what it knows to be
    `held` at this call, by place, it gives to the call.
    """

    @intrinsic
    def call(typingctx: TypingContext, *args: Type) -> Emission:
        form: Signature = types.Dispatcher(function).get_call_type(typingctx, args[:taken], {})

        def code(context: Context, builder: Builder, sig: Signature, values: Sequence[Value]) -> Value:
            parts = cgutils.unpack_tuple(builder, values[0])
            given = [context.cast(builder, *row) for row in zip(parts, args, form.args)]  # noqa: B905
            overload = function.get_compile_result(form)
            context.add_linking_libs([overload.library])
            status, found = context.call_internal_no_propagate(builder, overload.fndesc, form, given)
            with cgutils.if_unlikely(builder, status.is_error):
                for k in held:
                    context.nrt.decref(builder, args[k], parts[k])
                context.call_conv.return_status_propagate(builder, status)
            return found

        return form.return_type(types.StarArgTuple(args)), code

    return call


def attempt(twin: Compiled, moving: tuple[int, ...], spec: Spec, any_shape: bool = False) -> Intrinsic:
    """Return ``attempt(args, tape)``, which runs a twin, its moving arguments active, and ends the recording.

    What the function raises is raised once its tape is returned.
    """
    release, sources = runtime.tapes().release, Sources(twin._tapegrad_of)

    @intrinsic
    def run(typingctx: TypingContext, args: TupleType, tape: Type) -> Emission:
        kind = types.Dispatcher(twin)
        form: Signature = kind.get_call_type(typingctx, tuple(args), {})
        result = _results(form.return_type)
        if result is None or not (any_shape or isinstance(result, (Active, *REAL))):
            wanted = "real numbers and arrays are" if any_shape else "one number is"
            raise TypingError(
                f"tapegrad: the function differentiated returns {form.return_type}, where {wanted} wanted"
            )

        def code(context: Context, builder: Builder, sig: Signature, values: Sequence[Value]) -> Value:
            parts = cgutils.unpack_tuple(builder, values[0])
            overload = twin.get_compile_result(form)
            given = _folded(context, builder, twin.py_func.__code__, form.args, list(args), parts)
            context.add_linking_libs([overload.library])
            context.active_code_library._reload_init.add(sources)
            status, found = context.call_internal_no_propagate(builder, overload.fndesc, form, given)
            with cgutils.if_unlikely(builder, status.is_error):
                _emit_call(context, builder, release, [values[1]])
                for kind, part in zip(args, parts, strict=True):
                    context.nrt.decref(builder, kind, part)
                context.call_conv.return_status_propagate(builder, status)
            return context.cast(builder, found, form.return_type, result)

        return result(args, types.int64), code

    return run


def sweeping(sweep: Compiled, give_up: Callable[[Context, Builder, Value], Any]) -> Intrinsic:
    """Return ``sweep(tape)``; where a block's function raises, `give_up` emits what is done with the tape."""

    @intrinsic
    def swept(typingctx: TypingContext, tape: Type) -> Emission:
        def code(context: Context, builder: Builder, sig: Signature, values: Sequence[Value]) -> Value:
            overload = next(iter(sweep.overloads.values()))
            context.add_linking_libs([overload.library])
            status, _ = context.call_internal_no_propagate(
                builder, overload.fndesc, overload.signature, values
            )
            with cgutils.if_unlikely(builder, status.is_error):
                give_up(context, builder, values[0])
                context.call_conv.return_status_propagate(builder, status)
            return context.get_dummy_value()

        return types.void(types.int64), code

    return swept


def _release(context: Context, builder: Builder, tape: Value) -> Value:
    """Emit the return of a tape."""
    return _emit_call(context, builder, runtime.tapes().release, [tape])


def _emit_call(context: Context, builder: Builder, function: Compiled, args: list[Value]) -> Value:
    """A call of a function of integers that is compiled already."""
    overload = next(iter(function.overloads.values()))
    context.add_linking_libs([overload.library])
    return context.call_internal(builder, overload.fndesc, overload.signature, args)


def recorded(
    twin: Compiled, moving: tuple[int, ...], spec: Spec, lanes: tuple[int, ...], flat: bool = False
) -> Compiled:
    """Return ``run(args, tangents)``: the result, and those lanes of the cotangents; compiled."""
    module, sweep, size = runtime.tapes(), runtime.sweeps(spec).sweep, sizing(moving, flat)
    acquire, reset, release, prepare = module.acquire, module.reset, module.release, module.prepare
    count, take = components(spec), taking(spec)
    leave, swept = leaving(moving, spec, lanes), sweeping(sweep, _release)
    enter = entering(moving, spec, lambda: read_by_expressions(twin.py_func))
    attempted = attempt(twin, moving, spec)

    def run(args, tangents):
        inputs = size(args, tangents)
        tape = acquire()
        if tape == 0:
            raise MemoryError("no memory for another native tape")
        reset(tape, inputs)
        out = attempted(enter(args, tangents, tape), tape)
        if not prepare(tape, count):
            release(tape)
            raise MemoryError("no memory for the cotangents")
        cotangents = get(tape, COTANGENTS)
        number = statement_of(out)
        if number:
            write(cotangents + 8 * count * number, 1.0)
            swept(tape)
        found = leave(args, cotangents)
        if count > 1:  # else `leave` has taken them
            for k in range(1, inputs + 1):
                take(cotangents, k)
        release(tape)
        return out, found

    return piece(run)


def forward(
    twin: Compiled, moving: tuple[int, ...], spec: Spec, any_shape: bool = False, flat: bool = False
) -> Compiled:
    """Return ``run(args, tangents)``: the result with its tangents; nothing is recorded; compiled."""
    module, size = runtime.tapes(), sizing(moving, flat)
    acquire, release = module.acquire, module.release
    enter, attempted = entering(moving, spec), attempt(twin, moving, spec, any_shape)

    def run(args, tangents):
        size(args, tangents)
        tape = acquire()
        out = attempted(enter(args, tangents, 0), tape)
        release(tape)
        return out

    return piece(run)


def spreading(moving: tuple[int, ...], lanes: int) -> Compiled:
    """Return ``spread(v)``: a direction as the tangents of the arguments; of a series, its first term's."""
    rest = ", still({0})" * (lanes - 1)
    names = [f"v[{q}]" if len(moving) > 1 else "v" for q in range(len(moving))]
    parts = [f"({name}{rest.format(name)},)" for name in names]
    space = {"still": piece(lambda v: v * 0.0)}
    exec(f"def spread(v):\n    return ({', '.join(parts)},)", space)
    return piece(space["spread"])


def holds_tensors(v: Any) -> bool:
    """Whether directions are Tensors."""
    return type(v) is tuple and any(isinstance(x, Handle) for x in v)


class Derivative:
    """A derivative of a compiled function, itself compiled; `runs` names one that runs it several times."""

    def __init__(
        self,
        name: str,
        of: CompiledFunction,
        compiled: Compiled,
        how: tuple[Hashable, ...] = (),
        recorded_by: Code | None = None,
        runs: str = "",
    ) -> None:
        self.__name__ = self.__qualname__ = f"{name}({of.__name__})"
        self.__wrapped__, self._compiled = of, compiled
        self._in_a_tuple = bool(compiled.py_func.__code__.co_flags & inspect.CO_VARARGS)
        self._of_tensors: Callable[..., Any] | None = None
        self._tapegrad_made_of = (name, how, of.primal)
        if recorded_by is None:
            nested = Nested(name, how, of.primal, compiled, recorded, component, releasing)
            recorded_by = nested.stub()
        self._tapegrad_recorded = recorded_by  # what recording code calls
        announce(compiled, self.__name__, of.cached)
        _compile_once(compiled, of, runs)
        if of.cached:
            compiled.py_func._tapegrad_kept = True
            compiled._cache = Stored(of.primal, *self._tapegrad_made_of[:2])

    @property
    def _numba_type_(self) -> Type:
        return types.Dispatcher(self._compiled)

    def beside(self, of_tensors: Callable[..., Any]) -> Derivative:
        """Let Tensors go to a function that is not compiled; returns the derivative."""
        self._of_tensors = of_tensors
        return self

    def __repr__(self) -> str:
        return f"<tg.func.{self.__name__}>"

    def __call__(self, *args: Any) -> Any:
        for x in args:
            if type(x) is not float and (
                type(x) is not ndarray or (self._in_a_tuple and not x.dtype.isnative)
            ):
                if self._takes_tensors(args):
                    return self._of_tensors(*args)
                break
        try:
            return self._compiled(*args)
        except explain.OF_COMPILERS as error:
            if not explain.compiling(error):
                raise
            self._takes_tensors(args)  # refuses other byte orders
            code = self.__wrapped__.py_func.__code__
            if not code.co_flags & inspect.CO_VARARGS:
                args = args[: code.co_argcount]  # behind them may stand a direction
            raise explain.explained(error, self.__wrapped__, args) from error

    def _takes_tensors(self, args: tuple[Any, ...]) -> bool:
        """Whether some of these are Tensors; refuses what neither Tensors nor compiled code take."""
        for x in args:
            if isinstance(x, ndarray) and not x.dtype.isnative:  # which Numba sees of no array in a tuple
                raise DTypeError(
                    f"{self.__name__}: an argument is of the other byte order, {x.dtype.str}; pass "
                    "x.astype(x.dtype.newbyteorder('='))"
                )
        if not (any(isinstance(x, Handle) for x in args) or holds_tensors(args[-1])):
            return False
        if self._of_tensors is None:
            raise TypeError(
                f"{self.__name__} takes numbers and arrays; Tensors are differentiated by tg.grad "
                "and backward"
            )
        return True


def entry(name: str, of: CompiledFunction, text: str, space: Namespace, directions: int = 0) -> Compiled:
    """Return the compiled function of a name and body, in whose text `args` are its arguments, and held.

    It has as many parameters as `of`, and one for directions, where no caller can leave any out: Numba finds
    an argument's type in less time where that is no part of a tuple, and sees its byte order.
    """
    code, space = of.py_func.__code__, {"np": np, "__name__": __name__, **space}
    if code.co_flags & inspect.CO_VARARGS or code.co_kwonlyargcount or of.py_func.__defaults__:
        head, held = "*given", "given[:]"
    else:
        head = "".join(f"a{k}, " for k in range(code.co_argcount + directions))
        held = f"({head})"
    exec(f"def {name}({head}):\n    args = {held}\n{textwrap.indent(text, '    ')}\n", space)
    return whole(space[name])


def moving_of(argnums: int | Sequence[int]) -> tuple[int, ...]:
    """Return the positions that are differentiated by, checked."""
    found = (argnums,) if isinstance(argnums, int) else tuple(argnums)
    if not found or any(not isinstance(k, int) or k < 0 for k in found) or len(set(found)) != len(found):
        raise ValueError(f"argnums is a position, or several different ones, from 0; found {argnums!r}")
    return found


def compiled_function(f: Callable[..., Any], what: str) -> CompiledFunction:
    """Return what is differentiated, or say that it is not compiled."""
    if isinstance(f, CompiledFunction):
        return f
    if isinstance(f, Dispatcher):
        return compile_function(f, {}, False)
    raise TypeError(f"{what} takes a function compiled by tg.njit or numba.njit, found {type(f).__name__}")


def kept(make: Callable[..., Derivative]) -> Callable[..., Derivative]:
    """Make each derivative of a function once; it lives as long as the function."""

    @functools.wraps(make)
    def made(f: Callable[..., Any], *how: Hashable) -> Derivative:
        of = compiled_function(f, make.__name__)
        known = vars(of.primal).setdefault("_tapegrad_derivatives", {})
        key = (make.__name__, *(tuple(x) if isinstance(x, (list, tuple)) else x for x in how))
        if key not in known:
            known[key] = make(of, *how)
        return known[key]

    return made


def _of_first_order(of: CompiledFunction, moving: tuple[int, ...]) -> tuple[Intrinsic, tuple[Any, ...]]:
    """Return ``run(args, none)``, which gives value and gradient and lets go of `args`, and its `none`."""
    run = recorded(twin_of(of.primal, ()), moving, (), (0,))
    return releasing(run, 2, (0,)), ((),) * len(moving)


@kept
def value_and_grad(of: CompiledFunction, argnums: int | Sequence[int]) -> Derivative:
    """Return the function of value and gradient."""
    moving = moving_of(argnums)
    run, none = _of_first_order(of, moving)
    text = "out, found = run(args, none)\nreturn value(out), found[0]"
    compiled = entry("value_and_grad", of, text, {"run": run, "none": none, "value": component(0)})
    return Derivative("value_and_grad", of, compiled, moving)


@kept
def grad(of: CompiledFunction, argnums: int | Sequence[int]) -> Derivative:
    """Return the function of the gradient."""
    moving = moving_of(argnums)
    run, none = _of_first_order(of, moving)
    compiled = entry("grad", of, "return run(args, none)[1][0]", {"run": run, "none": none})
    return Derivative("grad", of, compiled, moving)


@kept
def hvp(of: CompiledFunction, argnums: int | Sequence[int]) -> Derivative:
    """Return the function of the Hessian times a direction."""
    moving = moving_of(argnums)
    run, spread = recorded(twin_of(of.primal, (1,)), moving, (1,), (1,)), spreading(moving, 1)
    space: Namespace = {"run": releasing(run, 2, (0, 1)), "spread": spread}
    compiled = entry("hvp", of, "return run(args[:-1], spread(args[-1]))[1][0]", space, 1)
    return Derivative("hvp", of, compiled, moving)


@kept
def taylor(of: CompiledFunction, order: int, argnums: int | Sequence[int]) -> Derivative:
    """Return the function of the power series along a line."""
    moving = moving_of(argnums)
    if not isinstance(order, int) or order < 1:
        raise ValueError(f"taylor: order is a whole number from 1, found {order!r}")
    run, spread = forward(twin_of(of.primal, (-order, 0)), moving, (-order, 0)), spreading(moving, order)
    space: Namespace = {f"c{k}": component(k) for k in range(order + 1)}
    terms = ", ".join(f"c{k}(out)" for k in range(order + 1))
    space |= {"run": releasing(run, 2, (0, 1)), "spread": spread}
    text = f"out = run(args[:-1], spread(args[-1]))\nreturn np.array([{terms}])"
    return Derivative("taylor", of, entry("taylor", of, text, space, 1), (order, *moving))


LANES = 4  # columns of a Hessian that one run gives


def _together(of: CompiledFunction) -> Compiled:
    """Return ``multiply(args, lanes, found, start)``: rows of `found` become the Hessian times the lanes."""
    spec = (LANES,)
    run = recorded(twin_of(of.primal, spec), (0,), spec, tuple(range(1, LANES + 1)), True)
    run = releasing(run, 2, (1,))

    def multiply(args, lanes, found, start):
        rows = run(args, ((lanes[0], lanes[1], lanes[2], lanes[3]),))[1]
        rest = found.shape[0] - start
        for k in range(LANES if rest > LANES else rest):
            put_row(found, start + k, rows[k])

    return piece(multiply)


@kept
def hessian(of: CompiledFunction) -> Derivative:
    """Return the function of the matrix of second derivatives."""
    multiply = releasing(_together(of), 4, (0, 1, 2))  # an overload holds its arguments
    once = releasing(recorded(twin_of(of.primal, (1,)), (0,), (1,), (1,)), 2, (0, 1))
    spread = spreading((0,), 1)

    def by_number(args):
        return once(args, spread(1.0))[1][0]

    def by_array(args):
        n = args[0].size
        found, lanes = new_matrix(n, n), new_matrix(LANES, n)
        for start in range(0, n, LANES):
            for k in range(LANES):
                for i in range(n):
                    lanes[k, i] = 1.0 if i == start + k else 0.0
            multiply(args, lanes, found, start)
        return found.reshape(args[0].shape + args[0].shape)

    def second(args):
        raise NotImplementedError

    @overload(second)
    def _second(args):
        return by_number if isinstance(args[0], REAL) else by_array

    def hessian(*args):
        return second(args)

    return Derivative("hessian", of, whole(hessian), runs="hessian")


@kept
def hessian_products(of: CompiledFunction) -> Derivative:
    """Return the function of the Hessian by an array times directions, rows of the last argument."""
    multiply = releasing(_together(of), 4, (0, 1, 2, 4))

    def hessian_products(*args):
        directions = args[-1]
        count, n = directions.shape
        found, lanes = new_matrix(count, n), new_matrix(LANES, n)
        for start in range(0, count, LANES):
            for k in range(LANES):
                for i in range(n):
                    lanes[k, i] = directions[start + k, i] if start + k < count else 0.0
            multiply(args[:-1], lanes, found, start, directions)
        return found

    return Derivative("hessian_products", of, whole(hessian_products), runs="sparse_hessian")
