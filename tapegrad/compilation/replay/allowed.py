"""Functions and classes that have no effects and read nothing but their arguments: all others are refused."""

from __future__ import annotations

import builtins
import cmath
import collections
import functools
import itertools
import math
import operator
import sys
import types
from typing import Any

import numpy as np

from tapegrad import creation
from tapegrad.core.functions import FUNCTIONS, PLAIN
from tapegrad.numpy_api import reductions
from tapegrad.ops import MEANING
from tapegrad.tensor import Tensor

BUILTINS = [
    abs, all, any, callable, divmod, isinstance, issubclass, iter, len, max, min, next, pow, round, sorted,
    sum, bool, bytes, classmethod, complex, dict, enumerate, filter, float, int, list, map, object, property,
    range, reversed, slice, staticmethod, str, super, tuple, zip,
]  # fmt: skip
CREATING = [
    "arange", "array", "asanyarray", "asarray", "ascontiguousarray", "asfortranarray", "bartlett",
    "blackman", "broadcast_shapes", "diag_indices", "empty", "eye", "full", "hamming", "hanning",
    "identity", "indices", "isscalar", "issubdtype", "iterable", "kaiser", "ones", "promote_types", "tri",
    "tril_indices", "triu_indices", "zeros",
]  # fmt: skip
MODULES = (
    "fft", "integrate", "interpolate", "linalg", "ndimage", "signal", "spatial", "special", "stats",
    "summaries",
)  # fmt: skip
OF_SCIPY = tuple(f"tapegrad.scipy.{name}" for name in MODULES)
WRITING = {"save", "savetxt", "savez", "savez_compressed"}  # NumPy's functions with effects
REFUSED_METHODS = {"tofile", "dump", "dumps", "setflags", "format", "format_map", "ctypes"}
CONTAINERS = (
    list, tuple, dict, set, frozenset, str, bytes, int, float, complex, bool, slice, range,
    types.GeneratorType, np.ndarray, np.generic,
)  # fmt: skip


@functools.cache
def _functions() -> frozenset[Any]:
    """What may be called."""
    found: list[Any] = [*BUILTINS]
    found += [f for f in vars(builtins).values() if isinstance(f, type) and issubclass(f, BaseException)]
    found += [f for module in (math, cmath) for f in vars(module).values() if callable(f)]
    found += [f for name, f in vars(itertools).items() if isinstance(f, type) and not name.startswith("_")]
    found += [f for f in vars(operator).values() if isinstance(f, types.BuiltinFunctionType)]
    found += [getattr(np, name) for name in CREATING]
    found += [f for f in (*FUNCTIONS, *PLAIN) if getattr(f, "__name__", "") not in WRITING]
    found += [f for f in MEANING if callable(f)]
    found += [f for f in vars(np).values() if isinstance(f, np.ufunc)]
    found += [f for name, f in vars(creation).items() if name in creation.__all__]
    found += [
        reductions.logsumexp,
        np.ndarray,
        np.dtype,
        np.finfo,
        np.iinfo,
        Tensor,
        functools.reduce,
        functools.partial,
    ]
    return frozenset(found)


def is_known_function(x: Any) -> bool:
    """Whether a function or class is on the list, or a method of a container, an array or a Tensor."""
    if x in _functions():
        return True
    if type(x) is np.ufunc:
        return x is getattr(sys.modules.get("scipy.special"), x.__name__, None)
    if type(x) is types.FunctionType:
        module = x.__module__ or ""
        return module.startswith(OF_SCIPY) and getattr(sys.modules.get(module), x.__name__, None) is x
    if isinstance(x, type):
        return issubclass(x, (np.generic, Exception)) and x.__module__.partition(".")[0] == "numpy"
    if type(x) is types.BuiltinFunctionType:
        own, name = x.__self__, x.__name__
        if name in REFUSED_METHODS or isinstance(own, types.ModuleType):
            return False
        kind = own if isinstance(own, type) else type(own)
        return kind in CONTAINERS or issubclass(kind, (np.generic, np.ufunc, Tensor))
    return type(x) in (types.MethodDescriptorType, TUPLE_FIELD) and issubclass(
        getattr(x, "__objclass__", tuple), CONTAINERS
    )


def is_known_object(x: Any) -> bool:
    """Whether this is one of the objects of this package that stand for SciPy's, as distributions do."""
    module = type(x).__module__
    return module.startswith(OF_SCIPY) and any(x is known for known in vars(sys.modules[module]).values())


@functools.cache
def is_made_by_scipy(code: types.CodeType) -> bool:
    """Whether code, of no file, is what SciPy's distributions read their arguments by."""
    stats = vars(sys.modules.get("scipy.stats", types))
    made = (getattr(x, code.co_name, None) for x in stats.values() if hasattr(x, "_parse_args"))
    return code.co_name.startswith("_parse_args") and any(
        getattr(method, "__code__", None) is code for method in made
    )


TUPLE_FIELD = type(collections.namedtuple("Pair", "a b").__dict__["a"])
