"""Functions that compiled code looks up by name when it first calls them.

They are compiled once for all programs and kept on disk. Linked in, LLVM would optimise them with every
program again, which takes seconds; and their addresses are not the same in the next process.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Sequence
from typing import Any, NamedTuple

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from tapegrad.native.emission.adjoint import FALLIBLE
from tapegrad.native.emission.algebra import I64
from tapegrad.native.emission.annotations import (
    Builder,
    Context,
    Emission,
    Intrinsic,
    Module,
    Signature,
    Type,
    TypingContext,
    Value,
)


def address(text: str) -> int:
    """Return the address of a function that a module has compiled."""
    module, args, name = ast.literal_eval(text)
    function = getattr(importlib.import_module(module).compiled(*args), name)
    overload = next(iter(function.overloads.values()))
    return int(overload.library.get_pointer_to_function(overload.fndesc.llvm_func_name))


class Deferred(NamedTuple):
    """What is looked up: the module, the arguments of its `compiled`, and the name."""

    module: str
    args: tuple[Any, ...]
    name: str


def caller(what: Deferred, sig: Signature) -> Intrinsic:
    """Return a function for code that Numba compiles, whose arguments are a tuple."""

    @intrinsic
    def call(typingctx: TypingContext, *kinds: Type) -> Emission:
        def code(context: Context, builder: Builder, form: Signature, values: Sequence[Value]) -> Value:
            return emit_call(context, builder, what, sig, cgutils.unpack_tuple(builder, values[0]))

        return sig.return_type(types.StarArgTuple(sig.args)), code

    return call


def emit_address(context: Context, builder: Builder, what: Deferred) -> Value:
    """Emit the look-up of a function's address; where it fails the code leaves."""
    found = builder.call(_finder(context, builder.module, repr(tuple(what))), [])
    with builder.if_then(builder.icmp_signed("==", found, _NONE), likely=False):
        context.call_conv.return_exc(builder)
    return found


def emit_call(
    context: Context, builder: Builder, what: Deferred, sig: Signature, args: Sequence[Value]
) -> Value:
    """Emit a call of what is looked up."""
    convention = context.call_conv
    kind = convention.get_function_type(sig.return_type, sig.args)
    called = builder.inttoptr(emit_address(context, builder, what), kind.as_pointer())
    status, result = convention.call_function(builder, called, sig.return_type, sig.args, args)
    with builder.if_then(status.is_error, likely=False):
        convention.return_status_propagate(builder, status)
    return result


def emit_adjoint(context: Context, module: Module, what: Deferred) -> ir.Function:
    """Return the function `record.FALLIBLE` that what is looked up is, which code before it has looked up."""
    name = f"tapegrad_adjoint {what!r}"
    function = module.globals.get(name)
    if function is None:
        kinds = (types.int64,) * 3
        function = ir.Function(module, FALLIBLE, name)
        function.linkage = "internal"
        b = ir.IRBuilder(function.append_basic_block("adjoint"))
        convention, found = context.call_conv, b.call(_finder(context, module, repr(tuple(what))), [])
        called = b.inttoptr(found, convention.get_function_type(types.none, kinds).as_pointer())
        status, _ = convention.call_function(b, called, types.none, kinds, function.args)
        with b.if_then(status.is_error, likely=False):
            python = context.get_python_api(b)
            lock = python.gil_ensure()
            convention.raise_error(b, python, status)
            python.gil_release(lock)
            b.ret(FALLIBLE.return_type(1))
        b.ret(FALLIBLE.return_type(0))
    return function


_NONE = ir.Constant(I64, 0)


def _finder(context: Context, module: Module, text: str) -> ir.Function:
    """A function that returns the address, or 0 with an exception set."""
    name = f"tapegrad_deferred {text}"
    function = module.globals.get(name)
    if function is not None:
        return function
    known = ir.GlobalVariable(module, I64, f"{name} address")
    known.linkage, known.initializer = "internal", _NONE
    function = ir.Function(module, ir.FunctionType(I64, []), name)
    function.linkage = "internal"
    b = ir.IRBuilder(function.append_basic_block("look"))
    found = b.load(known)
    with b.if_then(b.icmp_signed("!=", found, _NONE), likely=True):
        b.ret(found)
    python = context.get_python_api(b)
    lock, things = python.gil_ensure(), []

    def have(thing: Value) -> Value:
        with b.if_then(b.icmp_unsigned("==", thing, thing.type(None)), likely=False):
            leave(_NONE)
        things.append(thing)
        return thing

    def leave(value: Value) -> None:
        for thing in things:
            python.decref(thing)
        python.gil_release(lock)
        b.ret(value)

    here = have(python.import_module(context.insert_const_string(module, __name__)))
    look = have(python.object_getattr_string(here, "address"))
    given = have(python.string_from_string(context.insert_const_string(module, text)))
    found = python.long_as_longlong(have(python.call_function_objargs(look, (given,))))
    b.store(found, known)
    leave(found)
    return function
