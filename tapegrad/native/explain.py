"""Errors of compilation in the words of differentiation, naming the user's line."""

from __future__ import annotations

import linecache
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from numba import typeof
from numba.core import types
from numba.core.errors import NumbaError

from tapegrad.errors import UnsupportedOpError
from tapegrad.native.border import REAL, crosses
from tapegrad.native.emission.annotations import Compiled, Differentiable, Type

_PLACES = (re.compile(r"at (/[^\s()]+) \((\d+)\)"), re.compile(r'File "([^"]+)", line (\d+)'))
_MET_BEFORE = re.compile(r"During: typing of [^\n]*\n(?=During: typing of )")
_CALL = re.compile(r"^( *)No implementation of function Function\((.*)\) found for.*\n\s*>>> (.*)$", re.M)
_APART = re.compile(r"Cannot unify (.+?) and (.+?) for '([^'.]*)[^']*'")
_OURS = re.compile(r"active_(?:float64|complex128|expression)\S*")
_ADVICE = (
    (r"draws random numbers",
     "pass what it draws as an argument, or say tg.njit(rerun=True) where each run may draw other numbers"),
    (r"derivative by argument",
     "pass floats: x.astype(float) of whole numbers, np.array(x) of a list; or name others by argnums"),
    (r"is no result", "return the numbers that it holds, or arrays and tuples of them"),
    (r"was compiled when",
     "call it with Tensors, or differentiate it, before the value changes; or make the value an argument"),
    (r"a direction of argument", "give each argument that is differentiated by a direction of its shape"),
    (r"a cotangent is built as", "give a number for a number, an array for an array, a tuple for a tuple"),
    (r"where real numbers and arrays are wanted", "return numbers, arrays, and tuples of such"),
    (r"where one number is wanted", "return one real number: a sum, a part or an absolute value"),
    (r"on one way and .* on another",
     "give the variable values of one type on all ways that meet; begin with copies of arrays, as x.copy()"),
    (r"complex64", "complex numbers are recorded as complex128: make the array with that dtype"),
    (r"[Cc]annot (?:cast|convert)|setitem|No conversion from active|type (?:float64|int64) .*active",
     "a derivative would be lost where a number that carries one is put into a plain float array, or into an "
     "instance or record that came from outside: pass the array as a Tensor, or make it in the function with "
     "np.zeros, np.empty or np.full"),
    (r"No conversion from \w+ elements",
     "pass the array as a Tensor, or copy its elements into an array that is made in the function"),
    (r"complex",
     "of complex numbers and their arrays arithmetic, powers, exp, log, sqrt, sin, cos, tan, sinh, cosh, "
     "tanh, abs, angle, sums, products, dot, @, outer, solve, inv, det and norms are recorded; take .real "
     "and .imag for others"),
    (r"random", "draw random numbers with passive parameters and scale them afterwards"),
    (r"typed\w*|ListType|DictType",
     "typed containers hold what their declared type says: use a list, a tuple or an array"),
    (r"linalg|BLAS|LAPACK",
     "linear algebra is recorded of vectors and matrices of float64, with the arguments that Numba knows and "
     "numbers for the orders of norms"),
)  # fmt: skip

OF_COMPILERS = (
    NumbaError, AssertionError, AttributeError, LookupError, NotImplementedError, TypeError, ValueError,
)  # fmt: skip


def call(
    twin: Compiled, function: Differentiable, args: list[Any], kwargs: dict[str, Any] | None = None
) -> Any:
    """Call a twin, compiling it if need be."""
    try:
        return twin(*args, **(kwargs or {}))
    except SystemError as error:  # the function has caught what stopped the recording, and gone on
        raise error.__cause__ or error from None
    except OF_COMPILERS as error:
        if not compiling(error):
            raise
        raise explained(error, function, args) from error


def _error_for_plain_numbers(function: Differentiable, args: Sequence[Any]) -> NumbaError | None:
    """Return Numba's own error where the function is none of Numba's in the first place."""
    kinds = [_kind(function, k, x) for k, x in enumerate(args)]
    try:
        if function.primal.targetoptions.get("nopython"):
            function.values.get_call_template(kinds, {})
    except NumbaError as error:
        return error
    return None


def _kind(function: Differentiable, k: int, x: Any) -> Type:
    """The type of an argument without derivatives; refuses what is none of compiled code's."""
    try:
        return _plain(typeof(x))
    except ValueError:
        raise TypeError(
            f"tg.njit: argument {k} of {function.__name__} is of type {type(x).__name__}, which compiled "
            "code does not take; pass numbers, arrays, and tuples of these"
        ) from None


def _plain(kind: Type) -> Type:
    """The type of an argument without derivatives."""
    if isinstance(kind, types.BaseTuple):
        return types.Tuple([_plain(part) for part in kind])
    if isinstance(kind, types.Array) and isinstance(kind.dtype, types.Record) and crosses(kind):
        number = types.float64 if REAL not in kind.dtype.fields else types.complex128
        return types.Array(number, kind.ndim, kind.layout) if kind.ndim else number
    return kind


def compiling(error: Exception) -> bool:
    """Whether an error comes from Numba's compiler, not from the function."""
    if isinstance(error, NumbaError):
        return True
    frame = error.__traceback__
    while frame is not None:
        if frame.tb_frame.f_code.co_name == "compile_extra":
            return True
        frame = frame.tb_next
    return False


def explained(
    error: Exception, function: Differentiable, args: Sequence[Any]
) -> UnsupportedOpError | NumbaError:
    """Return the error that says which line of the user's has no derivative here.

    Where the function does not compile for plain numbers like the arguments either, it is Numba's own.
    """
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(error) or type(error).__name__)
    text = _MET_BEFORE.sub("", text)  # Numba adds to an error that it meets again the line at hand
    own = None if "tapegrad: " in text else _error_for_plain_numbers(function, args)
    if own is not None:
        return own
    code, met = function.py_func.__code__, _met_at(text)
    path, number = (met[1], int(met[2])) if met else (code.co_filename, code.co_firstlineno)
    file = path if Path(path).is_absolute() else code.co_filename
    source = linecache.getline(file, number).strip()
    found = reason(text, met)
    advice = next((words for pattern, words in _ADVICE if re.search(pattern, f"{source} {found}")), None)
    if advice is None:
        advice = (
            "write it out as loops over numbers, or keep it outside of the function, where Tensors know it"
        )
    return UnsupportedOpError(
        f"tg.njit: {function.__name__} compiles for plain numbers, but "
        f"{'this line ' if met else ''}cannot be recorded:\n"
        f"    {source or '(source not at hand)'}    ({path}, line {number})\n"
        f"Found: {found}\nWhat to do: {advice}."
    )


def _met_at(text: str) -> re.Match[str] | None:
    """The file and line of the user's that an error is about, where they stand in the text."""
    mine = str(Path(__file__).parent)
    for pattern in _PLACES:
        for found in pattern.finditer(text):
            path = os.path.abspath(found[1])
            if "numba" not in Path(path).parts and not path.startswith(mine) and found[1][0] != "<":
                return found
    return None


def reason(text: str, met: re.Match[str] | None = None) -> str:
    """The line of Numba's that says most: the call on the user's line that it knows nothing for."""
    lines = [line.strip() for line in text.splitlines()]
    ours = [x.partition("tapegrad: ")[2] for x in lines if "tapegrad: " in x]
    if ours:
        return ours[0]
    apart = _APART.search(text)
    if apart and _OURS.search(apart[0]):
        name = "a value" if apart[3].startswith("$") else apart[3]
        return f"{name} is {apart[1]} on one way and {apart[2]} on another"
    above = text[: met.start()] if met else text
    place = above.rpartition("\n")[2]
    indent = place[: len(place) - len(place.lstrip(" "))]  # as deep as the call is told of
    calls = [
        found[3].replace("<unknown function>", found[2])
        for found in _CALL.finditer(above)
        if (not met or found[1] == indent) and _OURS.search(found[3])
    ]
    if calls:
        return f"nothing for {calls[-1][:300]}"
    useful = [x for x in lines if _OURS.search(x) and not x.startswith("def ")]
    chosen = useful[0] if useful else next((x for x in lines[1:] if x and not x.startswith("File")), lines[0])
    return chosen.partition(": %")[0][:300]
