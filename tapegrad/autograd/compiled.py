"""Functions whose forward and backward are compiled by Numba: sweeps run them without Python."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tapegrad.autograd.call import FunctionCtx
from tapegrad.core.base import Handle, value_of
from tapegrad.core.dispatch import as_tape_value
from tapegrad.errors import GradientError, ShapeError
from tapegrad.kernels.replay import layout
from tapegrad.ops import custom
from tapegrad.tensor import Operand, Tensor, TensorOrArray, record, wrap

SOURCE = '''"""A user's compiled rule, called with addresses; see `tapegrad.kernels.replay.functions`."""
from numba import carray, cfunc, types
from numba.extending import intrinsic


@intrinsic
def words(typing, address):
    def code(context, builder, signature, args):
        return builder.inttoptr(args[0], context.get_data_type(types.int64).as_pointer())

    return types.CPointer(types.int64)(types.int64), code


@intrinsic
def reals(typing, address):
    def code(context, builder, signature, args):
        return builder.inttoptr(args[0], context.get_data_type(types.float64).as_pointer())

    return types.CPointer(types.float64)(types.int64), code


@cfunc("int64(int64)")
def kernel(at):
    w = carray(words(at), {count})
{arrays}
    try:
        found = backward({names})
    except Exception:
        return 0
{results}
    return 1
'''


def is_compiled(function: Callable[..., Any] | None) -> bool:
    """Whether a function is one of Numba's, without importing that."""
    return hasattr(function, "py_func") and type(function).__module__.startswith("numba.")


class FunctionMeta(type):
    """Tells Functions whose forward is a method of an instance, as before torch 0.4, from the others."""

    forward: Callable[..., Any]
    backward: Callable[..., Any]
    jvp: Callable[..., Any]

    def __init__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> None:
        super().__init__(name, bases, namespace)
        forward = inspect.getattr_static(cls, "forward", None)
        cls._is_legacy = forward is not None and not isinstance(forward, (staticmethod, classmethod))
        cls._is_compiled = is_compiled(getattr(cls, "forward", None))
        # of compiled functions, by their arguments' axes
        cls._rules: dict[tuple[int, ...], Rule] = {}
        if cls._is_compiled != is_compiled(getattr(cls, "backward", None)):
            raise TypeError(f"{name}: forward and backward are compiled by Numba both or neither")
        cls._context = type(f"{name}Backward", (FunctionCtx,), {"__doc__": None})


class Rule:
    """A Function's derivative for arrays of so many axes each, of the result and of the arguments.

    Attributes
    ----------
    words
        A Tensor of one word, which compiled sweeps read: the address of the compiled rule, 0 until there is
        one, BY_RULE_ONLY where there can be none.
    """

    def __init__(self, cls: FunctionMeta, ndims: tuple[int, ...]) -> None:
        self.cls, self.ndims = cls, ndims
        self.name = f"{cls.__name__}Backward"
        self.words = wrap(np.zeros(1, np.int64))
        self._kernel: Any = None

    def compile(self) -> None:
        """Compile the rule for sweeps."""
        if self.words._v[0] == 0:
            self._kernel = _kernel(self.cls.backward, self.ndims)
            self.words._v[0] = layout.BY_RULE_ONLY if self._kernel is None else self._kernel.address

    def vjp(
        self,
        ct: TensorOrArray,
        out: TensorOrArray,
        inputs: Sequence[TensorOrArray],
        args: list[Any],
        wanted: list[int],
    ) -> dict[int, np.ndarray]:
        """Run the user's backward from Python; what it gives has no derivative itself."""
        args, places = list(args), [k for k, x in enumerate(args) if x is PLACE]
        for place, x in zip(places, inputs[1:], strict=True):
            args[place] = value_of(x)
        found = self.cls.backward(value_of(ct), value_of(out), *args)
        found = found if isinstance(found, tuple) else (found,)
        if len(found) != len(args):
            raise GradientError(
                f"{self.cls.__name__}.backward returned {len(found)} gradients for {len(args)} arguments; "
                "return one for each, None where there is none"
            )
        parts: dict[int, np.ndarray] = {}
        for q in wanted:
            g, x = found[places[q - 1]], value_of(inputs[q])
            if g is None:
                continue
            if np.shape(g) != np.shape(x):
                raise ShapeError(
                    f"{self.cls.__name__}.backward returned a gradient of shape {np.shape(g)} for argument "
                    f"{places[q - 1]} of shape {np.shape(x)}"
                )
            g = as_tape_value(np.asarray(g))
            if isinstance(ct, Handle):
                sources = [y for y in (ct, *inputs[1:]) if isinstance(y, Handle)]
                g = record(custom.refusal, g, sources, {"why": self.no_second})
            parts[q] = g
        return parts

    def no_second(self) -> GradientError:
        """Return the error of a second derivative."""
        return GradientError(
            f"{self.cls.__name__}.backward is compiled by Numba, so its gradients have no derivative; write "
            "backward with a ctx and operations on Tensors, or the function with tg.njit"
        )

    def no_tangent(self) -> GradientError:
        """Return the error of forward mode."""
        return GradientError(
            f"{self.cls.__name__} is made of functions compiled by Numba, whose tangents forward mode does "
            "not know; write the function with tg.njit"
        )


PLACE = object()  # stands for an operand among the arguments
NUMBERS = (np.ndarray, np.floating, np.complexfloating, float)  # what is one


def applied(cls: FunctionMeta, args: tuple[Operand, ...]) -> Tensor:
    """Call a Function of compiled functions: its result, with its derivative."""
    values = [value_of(x) for x in args]
    out = cls.forward(*values)
    if not isinstance(out, (float, np.ndarray, np.floating)):
        raise TypeError(
            f"{cls.__name__}.forward, which is compiled, returned {type(out).__name__}; it returns one array "
            "or number of a floating-point dtype; several results take a forward with a ctx"
        )
    if isinstance(out, np.ndarray):
        shared = any(isinstance(x, np.ndarray) and np.may_share_memory(x, out) for x in values)
        out = out.copy() if shared else np.ascontiguousarray(out).reshape(out.shape)
    out = as_tape_value(out)
    given = [x for x, v in zip(args, values, strict=True) if isinstance(v, NUMBERS)]
    plain = len(given) == len(args) and all(np.result_type(v).char == "d" for v in (out, *values))
    ndims = (out.ndim, *(np.ndim(value_of(x)) for x in given))
    rule = cls._rules.get(ndims)
    if rule is None:
        rule = cls._rules[ndims] = Rule(cls, ndims)
    attrs = {"rule": rule, "args": [PLACE if isinstance(v, NUMBERS) else v for v in values]}
    return record(custom.compiled if plain else custom.compiled_rule, out, [rule.words, *given], attrs)


def _kernel(backward: Any, ndims: tuple[int, ...]) -> Any:
    """Compile what sweeps call for a result and arguments of so many axes; None where that cannot be."""
    from numba import types
    from numba.core.errors import NumbaError

    kinds = [types.Array(types.float64, n, "C") if n else types.float64 for n in (ndims[0], *ndims)]
    try:
        backward.compile(tuple(kinds))
        result = backward.overloads[tuple(kinds)].signature.return_type
        several = isinstance(result, types.BaseTuple)
        parts = list(result) if several else [result]
        if len(parts) != len(ndims) - 1:
            return None
        arrays, names, results = [], ["ct", "out"], []
        arrays += _array("ct", 0, 2, ndims[0]) + _array("out", 1, 2, ndims[0])
        for q, (part, n) in enumerate(zip(parts, ndims[1:], strict=True)):
            at = 3 * q + 3
            names.append(f"a{q}")
            arrays += _array(f"a{q}", at, at + 2, n)
            if not isinstance(part, types.NoneType):
                if getattr(part, "ndim", 0) != n:
                    return None
                results += _result(q, f"found[{q}]" if several else "found", at, n)
            else:
                results += [f"    if w[{at + 1}] != 0:", "        return 0"]
        text = SOURCE.format(
            count=3 * len(ndims), arrays="\n".join(arrays), names=", ".join(names), results="\n".join(results)
        )
        space = {"backward": backward}
        exec(compile(text, "<tapegrad compiled Function>", "exec"), space)  # the user's, so not on disk
        return space["kernel"]
    except NumbaError:
        return None


def _array(name: str, address: int, shape: int, n: int) -> list[str]:
    if n == 0:
        return [f"    {name} = carray(reals(w[{address}]), 1)[0]"]
    extents = ", ".join(f"{name}_shape[{d}]" for d in range(n))
    return [
        f"    {name}_shape = carray(words(w[{shape}]), {n})",
        f"    {name} = carray(reals(w[{address}]), ({extents},))",
    ]


def _result(q: int, found: str, at: int, n: int) -> list[str]:
    lines = [f"    if w[{at + 1}] != 0:"]
    if n == 0:
        return [*lines, f"        carray(reals(w[{at + 1}]), 1)[0] = {found}"]
    extents = ", ".join(f"a{q}_shape[{d}]" for d in range(n))
    return [
        *lines, f"        if {found}.shape != a{q}.shape:", "            return 0",
        f"        carray(reals(w[{at + 1}]), ({extents},))[...] = {found}",
    ]  # fmt: skip
