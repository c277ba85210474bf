"""Names for what Numba and LLVM, few of whose modules have types, hand to code that extends them."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any, Protocol, TypeAlias

from llvmlite import ir
from numba.core import ir as numba_ir
from numba.core import types
from numba.core.base import BaseContext
from numba.core.compiler import StateDict
from numba.core.datamodel.manager import DataModelManager as DataModels
from numba.core.dispatcher import Dispatcher
from numba.core.typing.context import BaseContext as BaseTypingContext
from numba.core.typing.templates import Signature as NumbaSignature
from numba.extending import _Intrinsic

Type: TypeAlias = types.Type
TupleType: TypeAlias = types.Tuple | types.UniTuple
Signature: TypeAlias = NumbaSignature
TypingContext: TypeAlias = BaseTypingContext
Context: TypeAlias = BaseContext
Builder: TypeAlias = ir.IRBuilder
Value: TypeAlias = ir.Value
Module: TypeAlias = ir.Module
Compiled: TypeAlias = Dispatcher  # a function that Numba compiles for each signature it is called with
Intrinsic: TypeAlias = _Intrinsic  # a function that compiled code alone can call
Emission: TypeAlias = tuple[Signature, Callable[..., Value]] | None  # what an intrinsic is declared by
Variable: TypeAlias = numba_ir.Var
Statement: TypeAlias = numba_ir.Stmt
RightSide: TypeAlias = numba_ir.AbstractRHS  # what is assigned: an expression, a constant, a variable
Location: TypeAlias = numba_ir.Loc
DataModelManager: TypeAlias = DataModels
Block: TypeAlias = numba_ir.Block
CompilerState: TypeAlias = StateDict
Key: TypeAlias = Callable[..., Any]  # what Numba knows a function by: Python's, or NumPy's
Code: TypeAlias = Callable[..., Any]  # what Numba is to compile in a function's place
Namespace: TypeAlias = dict[str, Any]  # the names that `exec` finds and makes


class Differentiable(Protocol):
    """What `tg.njit` returns, as what is below `function` knows it."""

    __name__: str
    primal: Compiled
    values: Compiled
    py_func: FunctionType
    rerun: bool
    once: str
