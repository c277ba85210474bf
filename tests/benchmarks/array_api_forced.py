"""The array API namespace in which whatever has floats requires grad, for the suite of tests of the standard.

With https://github.com/data-apis/array-api-tests beside the project (and its submodule)::

    cd array-api-tests && PYTHONPATH=../tapegrad ARRAY_API_TESTS_MODULE=tests.benchmarks.array_api_forced \
        python -m pytest -p no:cacheprovider --max-examples 20 --disable-deadline

What makes arrays makes Tensors that require grad, no leaves, since the suite writes to them. The suite
reads each result by ``float(x)``, which is refused of such Tensors, and so is allowed here, DLPack too. At
the end it is printed which functions gave floats without a derivative, of how many calls with one.
"""

from __future__ import annotations

import atexit
import functools
import sys
from collections import Counter
from types import ModuleType, SimpleNamespace

import numpy as np

from tapegrad import Tensor, array_api
from tapegrad.core.base import value_of

MAKES = set(array_api.MADE.split()) - {"argsort", "sort", "finfo", "iinfo"} | {"fftfreq", "rfftfreq"}
OTHERS = ["astype", "can_cast", "result_type", "isdtype", "finfo", "iinfo"]
calls: Counter = Counter()


def requiring(x):
    """The Tensor, of floats one with a history."""
    plain = isinstance(x, Tensor) and x.dtype.kind in "fc" and not x.requires_grad
    return x.requires_grad_().clone() if plain else x


def flat(values):
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from flat(value)
        elif isinstance(value, Tensor) and value.dtype.kind in "fc":
            yield value


def making(function):
    @functools.wraps(function)
    def make(*args, **kwargs):
        made = function(*args, **kwargs)
        return made if kwargs.get("copy") is False else requiring(made)

    return make


def counting(name, function):
    @functools.wraps(function)
    def call(*args, **kwargs):
        result = function(*args, **kwargs)
        if any(x.requires_grad for x in flat((args, tuple(kwargs.values())))):
            found = [x.requires_grad for x in flat(result if isinstance(result, tuple) else (result,))]
            if found:
                calls[name, all(found)] += 1
        return result

    return call


def forced(module, prefix=""):
    """The names of a namespace, its functions wrapped."""
    names = {}
    for name in dir(module):
        value = getattr(module, name)
        if name in ("fft", "linalg") and isinstance(value, ModuleType | SimpleNamespace):
            value = SimpleNamespace(**forced(value, f"{name}."))
        elif name in MAKES:
            value = making(value)
        elif callable(value) and not isinstance(value, type) and name[0] != "_" and name not in OTHERS:
            value = counting(prefix + name, value)
        names[name] = value
    return names


def report():
    names = sorted({name for name, _ in calls})
    without = [f"{n} {calls[n, False]}/{calls[n, False] + calls[n, True]}" for n in names if calls[n, False]]
    share = sum(n for (_, kept), n in calls.items() if kept) / max(calls.total(), 1)
    print(f"\n{calls.total()} calls of {len(names)} functions, {share:.1%} differentiable; not:", *without)


NAMES = forced(array_api)


def __getattr__(name):
    try:
        return NAMES[name]
    except KeyError:
        raise AttributeError(name) from None


def __dir__():
    return sorted(NAMES)


__array_api_version__ = array_api.__array_api_version__
__array_namespace_info__ = array_api.__array_namespace_info__

Tensor.__float__ = lambda self: float(value_of(self).item())
Tensor.__complex__ = lambda self: complex(value_of(self).item())
Tensor.__int__ = lambda self: int(value_of(self).item())
Tensor.__array__ = lambda self, dtype=None, copy=None: np.array(value_of(self), dtype, copy=copy)
Tensor.__dlpack__ = functools.wraps(Tensor.__dlpack__)(
    lambda self, **given: np.asarray(value_of(self)).__dlpack__(**given)
)
Tensor.__array_namespace__ = lambda self, api_version=None: sys.modules[__name__]
atexit.register(report)
