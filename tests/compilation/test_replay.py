"""`tg.compile(replay=True)`: Python is skipped where that changes nothing; else it runs, or is refused."""

import builtins
import functools
import itertools
import math
import random
import sys
import threading
import time
import types
import warnings
from collections import deque
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import pytest
from scipy import special

import tapegrad as tg
import tapegrad.scipy as ts
from tapegrad.compilation.programs.copies import SUMMED
from tapegrad.compilation.replay import state
from tapegrad.compilation.replay.comparing import GET_OF_CLASS, MISSING, Check, Entry, is_same_kind
from tapegrad.compilation.replay.replaying import MOST_IN_VAIN, MOST_NAMED
from tapegrad.errors import ReplayError
from tapegrad.kernels import abi
from tapegrad.scipy import optimize
from tapegrad.scipy import special as scipys
from tests.tiers import every

from .hostile import FUNCTIONS
from .test_hostile import arguments, outcome, same

pytestmark = pytest.mark.skipif(not abi.native(), reason="nothing is learned from calls")

X = np.array([0.3, 0.7, -0.2, 0.5])


def skipped(compiled):
    """At how many calls Python was not run."""
    return sum(kind.replay.replayed for kind in compiled._kinds.values() if kind.replay)


def taken(f, *others, **how):
    """A compiled function that is called until its Python is skipped."""
    compiled = tg.compile(f, wait=True, replay=True, **how)
    for k in range(6):
        compiled.value_and_grad(X + 0.13 * k, *others)
    assert skipped(compiled) >= 1, compiled.explain()
    return compiled


def agrees(compiled, x, *others):
    """Whether value and gradient are those of the function as it is now."""
    value, gradient = compiled.value_and_grad(x, *others)
    wanted, expected = tg.func.value_and_grad(compiled.plain)(x, *others)
    return value == wanted and np.allclose(gradient, expected, rtol=1e-13, atol=1e-13)


def call_often(call):
    for k in range(20):
        call(X + 0.1 * k)


PRODUCTS = ("strided_product", "matrix_summed")  # of arrays that programs read dense: BLAS may add otherwise


@pytest.mark.full
@pytest.mark.parametrize("name", FUNCTIONS)
def test_hostile_functions_are_right_or_refused(name):
    """With the same number of the call eight times, other numbers, and effects as ever."""
    (f, effects), (g, others) = FUNCTIONS[name](), FUNCTIONS[name]()
    compiled = tg.compile(f, wait=True, replay=True)
    for k in range(24):
        x, turn = arguments(k), k // 8
        found = outcome(lambda _: compiled.value_and_grad(x, turn), f, effects, [0])
        if found[0][0] is ReplayError:
            return
        wanted = outcome(lambda _: tg.func.value_and_grad(g)(x, turn), g, others, [0])
        ulps = 4 * name.startswith(PRODUCTS)
        assert same(found[0], wanted[0], ulps), f"call {k}: {found[0]} for {wanted[0]}"
        assert found[1:] == wanted[1:], f"call {k}"


# ------------------------------------------------------------ what changes between calls is noticed

scale, weights, table = 2.0, np.array([1.0, 2.0, 3.0, 4.0]), {"a": 1.5, "b": (2.0, [3.0])}
items = [1.0, 2.0]


def helper(x, factor=1.5, *, shift=0.25):
    return np.sin(x) * factor + shift


def other_helper(x, factor=1.0, *, shift=1.0):
    return x * factor


def twice(x):
    return x * 2.0


class Model:
    offset = 0.5
    kinds: ClassVar = [1.0, 2.0]

    def __init__(self):
        self.scale, self.parts = 2.0, [1.0, np.array([1.0, 2.0, 3.0, 4.0])]

    def __call__(self, x):
        return np.sum(self.scaled(x) * self.parts[1] + self.kinds[0]) + self.offset

    def scaled(self, x):
        return x * self.scale

    @property
    def doubled(self):
        return self.scale * 2.0

    @staticmethod
    def cubed(x):
        return x**3


class Special(Model):
    def scaled(self, x):
        return super().scaled(x) * self.doubled + self.cubed(x)


model, space = Model(), types.ModuleType("space")
space.factor, space.inner = 3.0, types.ModuleType("inner")
space.inner.exponent = 2.0


def of_globals(x):
    return np.sum(helper(x) * weights) * scale + table["b"][1][0] * items[1] * np.sum(x)


def of_model(x):
    return model(x)


def of_modules(x):
    return np.sum(x**space.inner.exponent) * space.factor + np.sum(abs(x))


def of_methods(x):
    return (x * 3.0).sum()


def of_a_distribution(x):
    return np.sum(ts.stats.norm.logpdf(x))


def through_a_name(x):
    m = np
    return m.sum(m.cos(x))


OF_ALL = ("__code__", "__defaults__", "__kwdefaults__", "__class__", "__dict__")  # which are no members


def setting(where, name, value):
    """Another attribute, for a while."""

    def change(stack):
        if name in vars(where) or name in OF_ALL:
            stack.callback(setattr, where, name, vars(where).get(name, getattr(where, name)))
        else:
            stack.callback(delattr, where, name)
        setattr(where, name, value)

    return change


def putting(where, key, value):
    """Another item, for a while."""

    def change(stack):
        stack.callback(where.__setitem__, key, where[key])
        where[key] = value

    return change


GLOBALS = sys.modules[__name__]
CHANGES = {
    "global number": (of_globals, setting(GLOBALS, "scale", 3.0)),
    "global array": (of_globals, setting(GLOBALS, "weights", np.ones(4))),
    "element": (of_globals, putting(weights, 2, -1.0)),
    "global function": (of_globals, setting(GLOBALS, "helper", twice)),
    "code": (of_globals, setting(helper, "__code__", other_helper.__code__)),
    "default": (of_globals, setting(helper, "__defaults__", (2.5,))),
    "default by name": (of_globals, setting(helper, "__kwdefaults__", {"shift": 1.0})),
    "default by name, in place": (of_globals, putting(helper.__kwdefaults__, "shift", 7.0)),
    "deep in a dict": (of_globals, putting(table["b"][1], 0, 9.0)),
    "item of a list": (of_globals, putting(items, 1, 9.0)),
    "numpy": (of_globals, setting(np, "sin", np.cos)),
    "a module by another name": (through_a_name, setting(np, "cos", np.sin)),
    "a distribution": (of_a_distribution, setting(ts.stats.norm, "logpdf", twice)),
    "its class": (of_a_distribution, setting(type(ts.stats.norm), "logpdf", lambda self, x: x * 3.0)),
    "attribute": (of_model, setting(model, "scale", 3.0)),
    "attribute that hides that of the class": (of_model, setting(model, "offset", 9.0)),
    "attribute of the class": (of_model, setting(Model, "offset", 1.5)),
    "list of the class": (of_model, putting(Model.kinds, 0, 9.0)),
    "array in a list": (of_model, putting(model.parts[1], 0, 9.0)),
    "method": (of_model, setting(Model, "scaled", lambda self, x: x * 5.0)),
    "method of the object": (of_model, setting(model, "scaled", np.cos)),
    "special method": (of_model, setting(Model, "__call__", lambda self, x: np.sum(x) * 7.0)),
    "class": (of_model, setting(model, "__class__", Special)),
    "dict": (of_model, setting(model, "__dict__", {**vars(model), "scale": 7.0})),
    "module": (of_modules, setting(space, "factor", 4.0)),
    "module of a module": (of_modules, setting(space.inner, "exponent", 3.0)),
    "builtin": (of_modules, setting(builtins, "abs", lambda x: x * 2.0)),
    "method of Tensors": (of_methods, setting(tg.Tensor, "sum", lambda self: np.sum(self * 2.0))),
    "builtin that is hidden": (of_modules, setting(GLOBALS, "abs", twice)),
}  # fmt: skip


@pytest.mark.parametrize("what", CHANGES)
def test_changes_between_calls(what):
    """What is no constant any more is computed as it is, and Python skipped again afterwards."""
    f, change = CHANGES[what]
    compiled = taken(f)
    assert agrees(compiled, X)
    before = compiled(X)
    with ExitStack() as stack:
        change(stack)
        assert tg.func.value_and_grad(f)(X)[0] != before, "this is to change something"
        for _ in range(3):
            assert agrees(compiled, X)
    count = skipped(compiled)
    for k in range(5):
        assert agrees(compiled, X + k)
    assert skipped(compiled) > count


def test_special_methods_that_are_added():
    """It is noticed, and refused, as it could do anything."""
    compiled = taken(of_model)
    with ExitStack() as stack:
        setting(Model, "__getattribute__", lambda self, name: object.__getattribute__(self, name))(stack)
        with pytest.raises(ReplayError, match="__getattribute__"):
            compiled(X)


def test_closures_and_defaults_that_change():
    factor = 2.0

    def f(x, other=weights):
        return np.sum(x * other) * factor

    compiled = taken(f)
    factor = 3.0
    assert agrees(compiled, X)
    f.__defaults__ = (np.ones(4),)
    assert agrees(compiled, X)


def test_views_and_memory_of_arrays_that_change():
    whole = np.arange(8.0)
    part = whole[2:6]

    def f(x):
        return np.sum(x * part)

    compiled = taken(f)
    whole[2] = 9.0
    assert agrees(compiled, X)
    whole[4] = -0.0
    assert agrees(compiled, X)
    part[0] = np.nan
    assert np.isnan(compiled(X))


def test_other_arguments_run_python():
    def f(x, n, data):
        return sum(np.sum(x * data) for _ in range(n))

    data = np.ones(4)
    compiled = taken(f, 2, data)
    for n in (2, 3, 3, 2):
        assert agrees(compiled, X, n, data)
    data[1] = 5.0
    assert agrees(compiled, X, 2, data)
    assert agrees(compiled, X, 2, data * 2.0)
    assert compiled(X, 2, data=data) == f(X, 2, data)
    signed = taken(lambda x, zero: np.sum(np.arctan2(x * 0.0, zero)), 0.0)
    assert agrees(signed, np.abs(X), 0.0)
    assert signed(np.abs(X), -0.0) == pytest.approx(4 * np.pi)


DATA, NEAR = np.arange(8.0), np.array([0.0, 9.0, 2.0])[::2]


def raised_for_a_while(x, d, e):
    d += 1.0
    s = np.sum(x * (e * 1.0))
    d -= 1.0
    return s


def raised_beside_a_global(x, d):
    return raised_for_a_while(x, d, weights)


def longer_for_a_while(x, d, e):
    d.append(2.0)
    s = np.sum(x) * len(e)
    d.pop()
    return s


def is_one(x, d, e):
    return np.sum(x * d) * (2.0 if d is e else 1.0)


ALIKE = {  # a function, and what makes its other arguments anew
    "array": (lambda x, d: np.sum(x * d), lambda: (weights.copy(),)),
    "slices": (lambda x, d, e: np.sum(x * d) + e[0], lambda: (DATA[:4], DATA[4:])),
    "columns": (lambda x, d, e: np.sum(x * d * e), lambda: (*DATA.reshape(4, 2).T,)),
    "list": (lambda x, d: np.sum(x * d[0]) * d[1], lambda: ([weights.copy(), 2.0],)),
    "dict": (lambda x, d: np.sum(x * d["a"]) * d["b"][0], lambda: ({"a": weights.copy(), "b": [2.0]},)),
    "tuple": (lambda x, d: np.sum(x * d[0]) * d[1].real, lambda: ((weights.copy(), 1.0 + 2.0j),)),
    "number of NumPy's": (lambda x, d: np.sum(x * d), lambda: (weights[1],)),
    "written to for a while": (raised_for_a_while, lambda: (weights.copy(), weights[::-1].copy())),
}


@pytest.mark.parametrize("what", ALIKE)
def test_other_arguments_that_are_alike(what):
    """They may be other objects at each call."""
    f, made = ALIKE[what]
    compiled = taken(f, *made())
    before = skipped(compiled)
    for k in range(4):
        assert agrees(compiled, X + k, *made())
    assert skipped(compiled) == before + 4


def test_an_argument_by_name_that_is_alike():
    compiled = tg.compile(lambda x, *, d: np.sum(x * d), wait=True, replay=True)
    for _ in range(8):
        assert np.array_equal(compiled.grad(X, d=np.ones(4) * 2.0), np.full(4, 2.0))
    assert skipped(compiled) == 4
    assert np.array_equal(compiled.grad(X, d=np.ones(4)), np.ones(4))


TOLD = {  # a function, and arguments that are equal to those that it was called with
    "one and the same": (is_one, lambda a: (a, a.copy()), lambda a: (a, a)),
    "two and not one": (is_one, lambda a: (a, a), lambda a: (a, a.copy())),
    "a global": (lambda x, d: is_one(x, d, weights), lambda a: (a,), lambda a: (weights,)),
    "memory in common": (raised_for_a_while, lambda a: (a, a.copy()), lambda a: (a, a[:])),
    "memory of a global": (raised_beside_a_global, lambda a: (a,), lambda a: (weights[:],)),
    "lists": (longer_for_a_while, lambda a: ([1.0], [1.0]), lambda a: [[1.0]] * 2),
    "a view": (lambda x, d: np.sum(x * (d.base is None)), lambda a: (a,), lambda a: (a[:],)),
    "what is near": (
        lambda x, d: np.sum(x * np.may_share_memory(d, DATA[1:2])),
        lambda a: (NEAR,),
        lambda a: (DATA[:4:2],),
    ),
    "keys": (lambda x, d: np.sum(x) * len(str(*d)), lambda a: ({2: 0},), lambda a: ({2.0: 0},)),
    "zeros": (lambda x, d: np.sum(np.arctan2(x * 0.0, d[0])), lambda a: ([0.0],), lambda a: ([-0.0],)),
    "dtypes": (lambda x, d: np.sum(x) * d.itemsize, lambda a: (np.float64(1),), lambda a: (np.float32(1),)),
}


@pytest.mark.parametrize("what", TOLD)
def test_other_arguments_that_are_told_apart(what):
    f, first, then = TOLD[what]
    compiled, a = tg.compile(f, wait=True, replay=True), weights.copy()
    for others in (first, then, first):
        for k in range(6):
            assert agrees(compiled, np.abs(X) + 0.13 * k, *others(a))
    assert skipped(compiled)


def test_arguments_that_are_kept_or_written_to():
    """What the function does with an argument it does with each, or it is refused."""
    holder = Model()
    holder.last = None

    def keeps(x, d):
        holder.last = d
        return np.sum(x * d)

    def keeps_the_first(x, d):
        holder.last = d if holder.last is None else holder.last
        return np.sum(x * d) * holder.last[0]

    def writes(x, d):
        d[0] += 1.0
        return np.sum(x * d)

    compiled, d = tg.compile(keeps, wait=True, replay=True), weights.copy()
    for _ in range(6):
        compiled.grad(X, d)
    assert skipped(compiled)
    with pytest.raises(ReplayError, match=r"last of holder.*has an effect"):
        compiled.grad(X, e := weights.copy())
    assert holder.last is e
    holder.last, compiled = None, tg.compile(keeps_the_first, wait=True, replay=True)
    for _ in range(8):
        d = weights.copy()
        compiled.grad(X, d)
        d[0] = 7.0
        assert agrees(compiled, X, d)
    compiled = tg.compile(writes, wait=True, replay=True)
    for _ in range(8):
        compiled.grad(X, d := weights.copy())
        assert d[0] == weights[0] + 1.0
    compiled = tg.compile(writes, wait=True, replay=True)
    with pytest.raises(ReplayError, match="an argument: it has an effect"):
        call_often(lambda x: compiled.grad(x, d))
    d = weights.copy()
    compiled = taken(lambda x, d: np.sum(x * d) * (np.put(d, 0, d[0]) is None), d)
    d.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        compiled(X, d)


@pytest.mark.parametrize("wrapped", [lambda a: [a], lambda a: {0: a}, lambda a: (a,)])
def test_an_argument_in_a_list_is_another(wrapped):
    """Of the same leaves another value: the program of one is not the other's."""
    f = tg.compile(lambda x: np.sum(x[0] * x[0]), wait=True, replay=True)
    a = np.arange(1.0, 4.0)
    for _ in range(2):
        for k in range(4):
            assert f(wrapped(a * k)) == 14.0 * k * k
            value, gradient = f.value_and_grad(wrapped(a * k))
            assert value == 14.0 * k * k and type(gradient) is type(wrapped(a))
        for k in range(4):
            assert f(a * k) == k * k
            np.testing.assert_array_equal(f.grad(a * k), [2.0 * k, 0.0, 0.0])


def test_other_shapes_and_dtypes_run_python():
    compiled = taken(lambda x: np.sum(x) * x.shape[0] + x.dtype.itemsize)
    for x in (X, X[:2], X.astype(np.float32), X[::2], np.outer(X, X), X):
        for _ in range(6):
            value, wanted = compiled(x), compiled.plain(x)
            assert value == wanted
            assert type(value) is float or value.dtype == wanted.dtype


@dataclass
class Parameters:
    w: np.ndarray
    b: np.ndarray
    exponent: ClassVar[float] = 2.0


class Pair(NamedTuple):
    a: np.ndarray
    b: np.ndarray


def test_classes_of_arguments():
    compiled = tg.compile(lambda p: np.sum((p.w * 2.0 + p.b) ** p.exponent), wait=True, replay=True)
    p = Parameters(X, np.ones(4))
    for _ in range(6):
        compiled.grad(p)
    assert skipped(compiled)
    Parameters.exponent = 3.0
    try:
        assert np.array_equal(compiled.grad(p).w, tg.func.grad(compiled.plain)(p).w)
    finally:
        Parameters.exponent = 2.0
    pairs = tg.compile(lambda p: np.sum(p.a * p.b), wait=True, replay=True)
    for _ in range(6):
        assert np.array_equal(pairs.grad(Pair(X, 2.0 * X)).a, 2.0 * X)
    assert skipped(pairs)


def rebound(x=1.0):
    held = x

    def inner():
        return held

    def bind(value):
        nonlocal held
        held = value

    return inner.__closure__[0], bind


class Unequal:
    """A key that is never compared, and is taken for the one that is looked for."""

    def __hash__(self):
        return hash("scale")

    def __eq__(self, other):
        raise ValueError("compared")


def entry(get, of, key):
    return Entry(get, of, key, get(of, key, MISSING), "", "")


@pytest.mark.parametrize(
    ("what", "change"),
    [
        ("member", lambda members, *_: members.update(scale=3.0)),
        ("member", lambda members, *_: members.pop("scale")),
        ("missing", lambda members, *_: members.update(other=3.0)),
        ("error", lambda members, *_: members.update({Unequal(): 1})),
        ("class", lambda _, cls, *__: setattr(cls, "offset", 2.0)),
        ("class", lambda _, cls, *__: delattr(cls, "offset")),
        ("kind", lambda _, cls, model, *__: setattr(model, "__class__", Special)),
        ("__code__", lambda *all: setattr(all[3], "__code__", (lambda x, y=1: x).__code__)),
        ("__defaults__", lambda *all: setattr(all[3], "__defaults__", (2.0,))),
        ("__kwdefaults__", lambda *all: setattr(all[3], "__kwdefaults__", {"x": 2.0})),
        ("__dict__", lambda *all: setattr(all[3], "__dict__", {})),
        ("variable", lambda *all: all[5](2.0)),
        ("variable", lambda *all: delattr(all[4], "cell_contents")),
    ],
)
def test_compiled_code_compares_what_is_read(what, change):
    """Members of dicts and classes, what functions are and variables of outer ones, classes of objects."""

    class Own(Model):
        offset = 1.0

    members, cell, bind = {"scale": 2.0}, *rebound()
    model = Own()
    found = {
        "member": lambda: entry(dict.get, members, "scale"),
        "missing": lambda: entry(dict.get, members, "other"),
        "error": lambda: entry(dict.get, members, sys.intern("scale")),
        "class": lambda: entry(GET_OF_CLASS, vars(Own), "offset"),
        "kind": lambda: Entry(is_same_kind, model, Own, True, "", ""),
        "variable": lambda: entry(getattr, cell, "cell_contents"),
    }
    f = lambda x, y=1: x
    known = found[what]() if what in found else entry(getattr, f, what)
    check = Check([known])
    assert known.words() is not None and check.holds() and known.is_same()
    if what == "error":
        members.pop("scale")
    change(members, Own, model, f, cell, bind)
    assert not check.holds() and not known.is_same()
    assert not Check([known, known._replace(of={}, key="", get=dict.get, value=MISSING)]).holds()


# ------------------------------------------------------------ what is refused

seen, counts, rng, moving = [], [0], np.random.default_rng(0), iter([1.0] * 100)
outside, queue = tg.tensor(2.0), deque([1.0])


def counted(x):
    counts[0] += 1
    return np.sum(x)


def kept(x):
    seen.append(1)
    return np.sum(x)


def stored(x):
    model.last = time
    model.calls = getattr(model, "calls", 0)
    return np.sum(x)


def global_written(x):
    global moving_number
    moving_number = moving_number + 1.0
    return np.sum(x)


moving_number = 0.0


log, total = [], []
push = log.append


def written_by_a_method(x):
    push(1)
    return np.sum(x)


class WithCallable:
    __neg__ = staticmethod(functools.partial(total.append, 1))  # which Python 3.14 wants of a partial


def special_callable(x):
    return np.sum(x) * len([-WithCallable()])


def imports(x):
    import math

    return np.sum(x) * math.pi


def caught(x):
    try:
        return np.sum(np.linalg.cholesky(np.outer(x, x))) * 0.0 + np.sum(x)
    except np.linalg.LinAlgError:
        return np.sum(x)


@functools.lru_cache
def remembered(k):
    return float(k)


class Slotted:
    __slots__ = ("a",)


slotted = Slotted()
slotted.a = 1.0

REFUSED = {
    "number": (lambda x: np.sum(x) * float(x[0].detach()), "looks at a value|no program"),
    "numbers": (lambda x: np.sum(x) * sum(np.unique(x).tolist()), "looks at a value"),
    "random": (lambda x: np.sum(x) * rng.normal(), "Generator"),
    "random of numpy": (lambda x: np.sum(x) * np.random.normal(), "np.random.normal"),  # noqa: NPY002
    "random of python": (lambda x: np.sum(x) * random.random(), "Random.random"),
    "clock": (lambda x: np.sum(x) * time.time(), "time.time"),
    "clock by map": (lambda x: np.sum(x) * sum(f() for f in [time.time]), "time.time"),
    "output": (lambda x: (print(end=""), np.sum(x))[1], "print"),
    "counter": (counted, "counts.*has an effect"),
    "list": (kept, "seen.*has an effect"),
    "list by its method": (written_by_a_method, "push.*has an effect"),
    "list by a special method": (special_callable, "WithCallable|has an effect|__neg__"),
    "global": (global_written, "moving_number.*has an effect"),
    "names made at run time": (lambda x: np.sum(x) * getattr(model, "scale"), "getattr"),
    "dict of an object": (lambda x: np.sum(x) * model.__dict__["scale"], "__dict__"),
    "iterator": (lambda x: np.sum(x) * next(moving), "list_iterator"),
    "tensor": (lambda x: np.sum(x * outside), "outside.*Tensor.*argnums"),
    "deque": (lambda x: np.sum(x) * queue[0], "deque"),
    "import": (imports, "imports a module"),
    "caught error": (caught, "looks at a value|no program"),
    "cache": (lambda x: np.sum(x) * remembered(3), "lru_cache"),
    "slots": (lambda x: np.sum(x) * slotted.a, "Slotted"),
    "set": (lambda x: sum({x[0], x[1]}), "set"),
    "text": (lambda x: np.sum(x) * len("{0.scale}".format(model)), "format"),  # noqa: UP030, UP032
    "file": (lambda x: (np.ones(2).tofile("/dev/null"), np.sum(x))[1], "tofile"),
    "write": (lambda x: (np.save("/dev/null", np.ones(2)), np.sum(x))[1], "save"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused(what):
    """At the latest after some calls, which are right, and from then on at each."""
    f, why = REFUSED[what]
    compiled = tg.compile(f, wait=True, replay=True)
    with pytest.raises(ReplayError, match=rf"(?s)cannot skip.*({why}).*argnums"):
        call_often(compiled.value_and_grad)
    assert skipped(compiled) == 0
    with pytest.raises(ReplayError):
        compiled.grad(X)


MASKS = {
    "where": lambda x: np.sum(np.where(x > 0.4, x * x, np.sin(x))),
    "factor": lambda x: np.sum(x * (x > 0.4)) + x[0] * (x[1] <= x[2]),
    "combined": lambda x: np.sum(np.where((x > 0.4) & ~(x > 0.6) | (x == x[0]), x, 0.5)),
    "counted": lambda x: np.sum(x * (x > 0.4)) / (1.0 + np.sum(x > 0.1)),
    "counted along an axis": lambda x: (
        np.sum(x * np.sum(np.outer(x, x) > 0.1, axis=0, keepdims=True))
        + np.sum(x * np.max(np.sign(np.outer(x, x)), axis=1))
    ),
    "steps": lambda x: np.sum(np.floor(x * 3.0) * x + np.sign(x) * np.rint(x) + x // 0.3),
    "nan": lambda x: np.sum(np.where(np.isnan(x), 0.0, x) + np.where(np.isfinite(x), x, 1.0)),
    "alike": lambda x: np.sum(np.zeros_like(x) + x * np.ones_like(x)) + np.sum(x) * np.argmax(x),
}


SHAPES = {
    "std": lambda x: np.std(x) + np.std(np.outer(x, x), axis=0)[1],
    "norm": lambda x: np.linalg.norm(x) + np.linalg.norm(np.outer(x, x)) + np.linalg.norm(x, 3),
    "trace": lambda x: np.trace(np.reshape(x, (2, 2))) * np.sum(np.diagonal(np.outer(x, x))),
    "products": lambda x: np.sum(np.kron(x, x)) + np.sum(np.triu(np.outer(x, x + 1.0))),
    "clip": lambda x: np.sum(np.clip(x, 0.1, 0.6) * np.heaviside(x, 0.5)) + np.sum(np.full_like(x, 2.0) * x),
    "iterators": lambda x: sum(a * b for a, b in itertools.pairwise(itertools.chain(x, x[:1]))),
    "means": lambda x: np.sum(np.gradient(x) ** 2) + np.nansum(x * x) + np.average(x, weights=[1, 2, 3, 4]),
}


@pytest.mark.parametrize("name", SHAPES)
def test_functions_that_want_a_shape_look_at_no_value(name):
    compiled = taken(SHAPES[name])
    before, given = skipped(compiled), [X, X[::-1].copy(), X * 5.0, X * 0.0, X * 0.0 + 0.3]
    for x in given:
        assert agrees(compiled, x), compiled.explain()
    assert skipped(compiled) == before + len(given), compiled.explain()


@pytest.mark.parametrize("name", MASKS)
def test_what_has_no_derivative_is_computed_without_python(name):
    """Also where it is another one than at the calls that were watched, of nan and zeros too."""
    compiled = taken(MASKS[name])
    before, given = skipped(compiled), [X, -X, X[::-1].copy(), X * 5.0, X * 0.0, -X * 0.0]
    for x in given:
        assert agrees(compiled, x), compiled.explain()
    x = np.array([math.nan, 0.5, -0.0, 0.7])
    found, wanted = compiled.value_and_grad(x), tg.func.value_and_grad(MASKS[name])(x)
    assert same(found, wanted)
    assert skipped(compiled) == before + len(given) + 1, compiled.explain()


# ------------------------------------------------------------ what Python decides by values


def halved(x):
    s, n = np.sum(x * x), 0
    while s > 1.0:
        s, n = s * 0.5, n + 1
    return s * (1.0 + 0.1 * n)


def changed_after_a_look(x):
    y = x * 1.0
    positive, total = y[0] > 0.2, np.sum(y)
    y[0] = -1.0
    return total * (2.0 if positive else 1.0) * (3.0 if y[0] > 0.2 else 1.0) + np.sum(y)


def looks_at_both(x):
    y = x * 2.0
    first = 2.0 if y[0] > 0.7 else 1.0
    y += 1.0
    return np.sum(y) * first * (2.0 if y[0] > 1.6 else 1.0)


def searched_in_a_list(x):
    levels = [np.array([0.1]), np.array([0.4])]
    found = np.searchsorted(np.concatenate(levels), x)
    levels[0][0] = -5.0
    return np.sum(x * found)


def of_the_least(x):
    return min(x[0], x[1]) * max(x) + sorted([x[2], x[3]])[0]


DECIDED = {
    "branch": lambda x: np.sum(x) if x[0] > 0.4 else np.sum(x * x),
    "branch on a result": lambda x: np.sum(x) if np.sum(np.sin(x)) > 1.0 else np.sum(x * x),
    "factor on one way": lambda x: np.sum(x) * (2.0 if x[0] > 0.4 else 1.0),
    "as many elements": lambda x: np.sum(x[x > 0.4] ** 2) / max(1, x[x > 0.4].size),
    "any": lambda x: np.sum(x) if np.any(x > 0.8) else x[0],
    "truth of a number": lambda x: np.sum(x) if np.maximum(x[0] - 0.4, 0.0) else x[1],
    "both": lambda x: x[0] if x[0] > 0.4 and x[1] > 0.4 else x[1],
    "the place of the greatest": lambda x: x[np.argmax(x)] * x[int(np.argmin(x * x))],
    "order": lambda x: np.sum(x[np.argsort(x)] * np.arange(4.0)),
    "places": lambda x: np.sum(x[np.nonzero(x > 0.4)]) + np.sum(x[np.searchsorted(weights, x) - 1]),
    "a loop": halved,
    "a look before a write": changed_after_a_look,
    "looks before and after writes": looks_at_both,
    "an option that changes": searched_in_a_list,
    "builtins": of_the_least,
    "finite": lambda x: np.sum(x) if np.isfinite(x).all() else np.sum(np.where(np.isfinite(x), x, 0.0)),
    "equal": lambda x: x[0] * 2.0 if x[0] == x[1] else x[1],
}


def a_matrix(x):
    return np.outer(x, np.where(np.isnan(x), 0.5, x)) + np.eye(4) if x[0] >= 0 else np.eye(4) + x[1]


DECIDED_BY_THE_LIBRARY = {  # the places inside of a support, finite elements, which matrices have inverses
    "densities": lambda x: np.sum(ts.stats.norm.logpdf(x, x[0], 0.5) + ts.stats.beta.logpdf(x, 2.0, x[1])),
    "a support": lambda x: np.sum(ts.stats.uniform.pdf(x, 0.5) * x + ts.stats.expon.logcdf(x - 0.2)),
    "inverses": lambda x: np.sum(ts.stats.norm.ppf(x * 0.9)) + np.sum(ts.stats.laplace.ppf(x)),
    "whole numbers": lambda x: np.sum(ts.stats.poisson.logpmf([0, 1, 2, 3], x) + ts.stats.geom.cdf(2, x)),
    "condition": lambda x: np.linalg.cond(a_matrix(x)) + np.linalg.cond(a_matrix(x), 1),
    "checked": lambda x: np.sum(ts.linalg.inv(a_matrix(x), check_finite=True)),
    "moments": lambda x: ts.stats.skew(x) + ts.stats.hmean(x),
    "weights": lambda x: np.average(x, weights=x[::-1]) + np.sum(ts.special.softmax(x) * weights),
    "extremes so far": lambda x: np.sum(np.maximum.accumulate(x) * weights),
    "bins": lambda x: np.sum(weights[np.digitize(x, [0.3, 0.6]) % 4] * x),
    "distances": lambda x: (
        ts.spatial.distance.cosine(x, weights) + ts.spatial.distance.minkowski(x, DATA[:4], 3)
    ),
    "counts": lambda x: np.sum(ts.special.comb(x + 3.0, 2.0)) + np.sum(ts.special.multigammaln(x + 2.0, 2)),
}


def check_decided(f):
    """Python is skipped where truth values and whole numbers that it sees are those of the latest call."""
    generator = np.random.default_rng(5)
    compiled, x = tg.compile(f, wait=True, replay=True), np.abs(X)
    for k in range(36):
        if k % 4 == 0 and k > 7:
            x = generator.uniform(0.05, 1.0, 4)
            if k % 12 == 0:
                x[0] = [math.nan, x[1]][k % 24 == 0]
        assert same(compiled.value_and_grad(x), tg.func.value_and_grad(f)(x), 4), f"call {k}"
        if k == 30:
            found, wanted = compiled.hvp(x, X), tg.func.hvp(f)(x, X)
            np.testing.assert_allclose(found, wanted, 1e-12, 1e-12)
    assert skipped(compiled) > 8, compiled.explain()


@pytest.mark.parametrize("name", DECIDED)
def test_what_python_decides_by_values_is_seen_to_be_the_same(name):
    check_decided(DECIDED[name])


@pytest.mark.full
@pytest.mark.parametrize("name", DECIDED_BY_THE_LIBRARY)
def test_what_the_library_decides_is_seen_to_be_the_same(name):
    check_decided(DECIDED_BY_THE_LIBRARY[name])


@pytest.mark.parametrize("how", [lambda x: x > 0, lambda x: x < 1.0, lambda x: x == 0.5])
def test_a_number_that_is_compared_is_looked_at(how):
    f = lambda x: x * x if how(x) else x * 3.0
    compiled = tg.compile(f, wait=True, replay=True)
    for k in range(16):
        x = (-1.0, 0.5, 1.5, 0.5)[k // 4] + 0.0 * k
        assert compiled.value_and_grad(x) == tg.func.value_and_grad(f)(x)
    assert skipped(compiled) > 2


def test_an_effect_of_one_branch_is_seen():
    def f(x):
        if x[0] > 1.1:
            counts[0] += 1
        return np.sum(x * x)

    compiled, before = taken(lambda x: f(x * 1.0)), counts[0]
    assert agrees(compiled, X)
    assert counts[0] == before
    with pytest.raises(ReplayError, match=r"counts.*has an effect"):
        compiled.grad(X + 1.0)
    assert counts[0] == before + 1


def test_an_error_of_one_branch_is_raised():
    def f(x):
        if x[0] < 0.0:
            raise ValueError("negative")
        return np.sum(x)

    compiled = taken(f)
    for _ in range(3):
        with pytest.raises(ValueError, match="negative"):
            compiled.grad(-X)
        assert agrees(compiled, X)


def test_a_value_that_is_another_at_each_call_runs_python():
    f = lambda x: x[np.argmax(x)] * 2.0
    compiled = tg.compile(f, wait=True, replay=True)
    for k in range(MOST_IN_VAIN + 8):
        assert agrees(compiled, np.roll(X, k))
    assert skipped(compiled) == 0
    assert "had changed: a value, test_replay.py" in str(compiled.explain())


def test_the_line_is_told():
    def f(x):
        y = np.sin(x)
        return np.sum(y) * float(y[1].detach())

    compiled, line = tg.compile(f, wait=True, replay=True), f.__code__.co_firstlineno + 2
    with pytest.raises(ReplayError, match=rf"test_replay.py:{line}, in f: it looks at a value"):
        call_often(compiled)


def test_an_error_names_a_few_lines():
    def f(x):
        return np.sum(x) * sum(
            [time.time(), time.time_ns(), time.monotonic(), time.perf_counter(), time.process_time()]
        )

    compiled = tg.compile(f, wait=True, replay=True)
    with pytest.raises(ReplayError, match=r"and [0-9]+ more") as found:
        call_often(compiled)
    assert str(found.value).count("test_replay.py:") == MOST_NAMED


def test_what_has_no_program_is_refused():
    def f(x):
        x[0] = 1.0
        return np.sum(x)

    compiled = tg.compile(f, wait=True, replay=True)
    with pytest.raises(ReplayError, match="no program"):
        call_often(compiled.grad)


def test_large_states_are_refused(monkeypatch):
    monkeypatch.setattr(state, "MOST_ENTRIES", 10)
    numbers = [[float(k)] for k in range(20)]
    compiled = tg.compile(lambda x: np.sum(x) * numbers[3][0], wait=True, replay=True)
    with pytest.raises(ReplayError, match="more than 10 objects"):
        call_often(compiled)


def test_what_changes_at_each_call_runs_python(monkeypatch):
    """It is watched a few times only; all values are right."""
    compiled = tg.compile(of_globals, wait=True, replay=True)
    for k in range(MOST_IN_VAIN + 8):
        monkeypatch.setattr(GLOBALS, "scale", 1.0 + k)
        assert agrees(compiled, X)
    assert skipped(compiled) == 0
    assert "scale" in str(compiled.explain())


# ------------------------------------------------------------ what it gives


def test_value_gradient_and_products():
    def f(x):
        return np.sum(np.exp(np.sin(x)) * x * weights)

    compiled, v = taken(f), np.array([1.0, -2.0, 0.5, 3.0])
    for _ in range(4):
        x = X + np.random.default_rng(0).normal(size=4)
        assert compiled(x) == f(x)
        assert np.allclose(compiled.grad(x), tg.func.grad(f)(x), rtol=1e-14)
        assert np.allclose(compiled.hvp(x, v), tg.func.hvp(f)(x, v), rtol=1e-13)
        assert np.allclose(compiled.vhp(x, v), tg.func.hvp(f)(x, v), rtol=1e-13)
        assert compiled.jvp(x, v) == tg.func.jvp(f)(x, v)
        assert np.allclose(tg.func.grad(compiled)(x), tg.func.grad(f)(x), rtol=1e-14)
    assert skipped(compiled) > 8
    found = optimize.minimize(tg.compile(lambda x: np.sum((x - weights) ** 2), replay=True, wait=True), X)
    assert np.allclose(found.x, weights, atol=1e-4)


def test_several_arguments_and_numbers():
    compiled = tg.compile(lambda a, b: np.sum(a * b) * b[0], (0, 1), wait=True, replay=True)
    number = tg.compile(lambda x: np.sin(x) * x, wait=True, replay=True)
    for k in range(8):
        value, (by_a, by_b) = compiled.value_and_grad(X + k, X)
        assert value == np.sum((X + k) * X) * X[0]
        assert np.allclose(by_a, X * X[0]) and np.allclose(by_b[1:], (X + k)[1:] * X[0])
        value, slope = number.value_and_grad(0.5 + k)
        assert type(value) is type(slope) is float
        assert (value, slope) == pytest.approx(tg.func.value_and_grad(number.plain)(0.5 + k), rel=1e-14)
        assert number.grad(k) == pytest.approx(tg.func.grad(number.plain)(float(k)), rel=1e-14)
    assert skipped(compiled) and skipped(number)


def test_of_tensors_it_is_one_record():
    compiled = tg.compile(lambda x: np.sum(np.sin(x) * x), wait=True, replay=True)
    for k in range(8):
        t = tg.tensor(X + k, requires_grad=True)
        y = compiled(t * 2.0)
        (g,) = tg.grad(y, t, create_graph=True)
        (h,) = tg.grad(np.sum(g), t)
        x = 2.0 * (X + k)
        assert np.allclose(g.detach().numpy(), 2.0 * (np.cos(x) * x + np.sin(x)))
        assert np.allclose(h.numpy(), 4.0 * (2.0 * np.cos(x) - np.sin(x) * x))
    assert skipped(compiled)


def test_errors_of_numbers_are_told():
    compiled = taken(lambda x: np.sum(np.log(np.abs(x) * 1.0)))
    with pytest.warns(RuntimeWarning, match="divide by zero"):
        assert compiled(X * 0.0) == -np.inf
    with np.errstate(all="raise"), pytest.raises(FloatingPointError):
        compiled(X * 0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert agrees(compiled, X)


def test_under_other_modes():
    compiled = taken(lambda x: np.sum(np.sin(x)))
    count = skipped(compiled)
    with tg.no_grad():
        assert compiled(X) == np.sum(np.sin(X))
    sys.setprofile(lambda *args: None)
    try:
        assert agrees(compiled, X)
    finally:
        sys.setprofile(None)
    assert agrees(compiled, X)
    assert skipped(compiled) > count


def test_while_it_is_watched_a_profiler_stays():
    """Another profiler is not put out of its work: then calls are not watched."""
    events = []
    compiled = tg.compile(lambda x: np.sum(np.sin(x)), wait=True, replay=True)
    sys.setprofile(lambda *args: events.append(args[1]))
    try:
        for _ in range(6):
            compiled(X)
        assert sys.getprofile() is not None
    finally:
        sys.setprofile(None)
    assert skipped(compiled) == 0
    assert len(events) > 6


def test_from_several_threads():
    compiled, wrong = taken(lambda x: np.sum(np.sin(x) * weights)), []

    def work(seed):
        for k in range(200):
            x = X + 0.01 * k + seed
            if not np.allclose(compiled.grad(x), np.cos(x) * weights, rtol=1e-13):
                wrong.append(k)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_learned_in_the_background():
    compiled = tg.compile(lambda x: np.sum(np.sin(x) * weights), replay=True)
    deadline = time.monotonic() + 60
    while not skipped(compiled) and time.monotonic() < deadline:
        assert agrees(compiled, X)
        time.sleep(0.001)
    assert skipped(compiled)


def test_calls_between_that_bring_other_numbers():
    """A call that runs Python may leave other numbers in the program's buffers."""
    compiled = taken(of_globals)
    with ExitStack() as stack:
        setting(GLOBALS, "scale", 5.0)(stack)
        assert agrees(compiled, X)
    assert agrees(compiled, X)
    compiled(X), compiled.hvp(X, X)
    assert np.allclose(compiled.hvp(X, X), tg.func.hvp(of_globals)(X, X))


def test_python_runs_after_other_programs_were_made():
    """They may have buffers in common with this one."""
    compiled = taken(of_globals)
    (kind,) = compiled._kinds.values()
    kind.learning._do(lambda: None)
    count = skipped(compiled)
    assert agrees(compiled, X)
    assert skipped(compiled) == count
    for _ in range(3):
        assert agrees(compiled, X)
    assert skipped(compiled) > count


def test_functions_of_scipy_and_of_tapegrad():
    taken(lambda x: np.sum(special.expit(x)) + tg.logsumexp(x))


@pytest.mark.parametrize("f", [special.hyp2f1, special.eval_jacobi])
def test_functions_of_four_operands(f):
    """Of which the last has no bit in the words of a record."""
    compiled = taken(lambda x: np.sum(f(2.0, 1.0, 0.5, x * 0.3)))
    for k in range(3):
        assert agrees(compiled, X * (1.0 + 0.1 * k))


# ------------------------------------------------------------ what somebody vouches for


def test_assume():
    arrays = taken(of_globals, assume=("arrays",))
    before = arrays(X)
    with ExitStack() as stack:
        putting(weights, 0, 100.0)(stack)
        assert arrays(X) == before
    names = taken(of_globals, assume=("globals",))
    with ExitStack() as stack:
        setting(GLOBALS, "scale", 100.0)(stack)
        assert names(X) == before
        putting(table["b"][1], 0, 100.0)(stack)
        assert names(X) == of_globals(X)
    attributes = taken(of_model, assume=("attributes", "arrays"))
    before = attributes(X)
    with ExitStack() as stack:
        setting(model, "scale", 100.0)(stack)
        putting(model.parts[1], 0, 100.0)(stack)
        assert attributes(X) == before
        setting(GLOBALS, "model", np.sum)(stack)
        assert attributes(X) == np.sum(X)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        (
            {"replay": 3},
            TypeError,
            "replay is True or False, found 3; replay=True asks for",
        ),
        ({"wait": "yes"}, TypeError, "wait is True or False, found 'yes'; wait=True asks for"),
        ({"replay": True, "assume": "globals"}, TypeError, r"found 'globals'; write assume=\('globals',\)"),
        ({"replay": True, "assume": 3}, TypeError, "assume is a sequence of some of 'globals', .* found 3"),
        ({"argnums": "0"}, ValueError, r"argnums is a position.* found str.* tg\.compile\(f\)\(x\)"),
        ({"argnums": [0, "x"]}, ValueError, "found list of str"),
        ({"argnums": 0.5}, ValueError, "found float"),
    ],
)
def test_wrong_options_are_refused_at_once(options, error, text):
    """Those of a decorator too; 3 was as True, and one text as a sequence of one."""
    for given in ((of_globals,), ()):
        with pytest.raises(error, match=text):
            tg.compile(*given, **options)


def test_assume_takes_what_can_be_vouched_for():
    with pytest.raises(ValueError, match="'globals', 'attributes', 'arrays'; found 'random'"):
        tg.compile(of_globals, replay=True, assume=("random",))
    with pytest.raises(ValueError, match="replay=True"):
        tg.compile(of_globals, assume=("globals",))
    compiled = tg.compile(assume=("globals",), replay=True, wait=True)(counted)
    with pytest.raises(ReplayError, match="effect"):
        call_often(compiled)


def test_it_is_pickled_with_what_it_was_asked():
    compiled = tg.compile(of_globals, replay=True, assume=["arrays"], wait=True)
    made = compiled.__reduce__()
    assert made[1][2:] == (True, True, frozenset({"arrays"}))


# ------------------------------------------------------------ factors, which each run finds

FACTORISED = {
    "values of svd": lambda x: np.sum(np.linalg.svd(x)[1] ** 3),
    "the last of svd": lambda x: np.sum(np.linalg.svd(x)[2][0] * x[1]),
    "all of svd": lambda x: np.sum((lambda u, s, v: u * s @ v.T)(*np.linalg.svd(x))),
    "svdvals": lambda x: np.prod(np.linalg.svdvals(x)),
    "r of qr": lambda x: np.sum(np.linalg.qr(x)[1] ** 2 * x),
    "vectors of eigh": lambda x: np.sum(np.linalg.eigh(x + x.T)[1] * x),
    "eigvalsh": lambda x: np.sum(np.linalg.eigvalsh(x + x.T, "U") ** 3),
    "two factorisations": lambda x: np.sum(np.linalg.eigh(x + x.T)[0] * np.linalg.eigh(x @ x.T)[1]),
    "expm": lambda x: np.sum(ts.linalg.expm(x * 0.1) * x),
    "svd of SciPy's": lambda x: np.sum(ts.linalg.svd(x, check_finite=False)[0] * x),
    "sorted": lambda x: np.sum(np.sort(np.sin(9.0 * x), axis=0) * x) + np.partition(x[1] * x[2], 2)[1],
    "medians": lambda x: np.sum(np.median(np.sin(9.0 * x), axis=1) * np.percentile(x, 35.0, axis=0)),
    "median": lambda x: np.median(np.sin(9.0 * x)) * np.median(x[0] * x[1]),
    "median of equal elements": lambda x: np.median(np.stack([x, x, np.minimum(x, 1.0)])) * x[0, 0],
    "interpolation": lambda x: np.sum(np.interp(x, [0.2, 0.4, 0.4, 0.9, 5.0], [1.0, 2.0, 4.0, 0.0, 3.0]) * x),
    "knots": lambda x: np.sum(np.interp([0.1, 1.0, 2.0, 9.0], np.cumsum(x[0]), x[1]) * x[2, :, None]),
    "places and knots": lambda x: np.sum(np.interp(x, np.sort(x[3]), x[0] * 1j + x[1]).imag * x),
    "one knot": lambda x: np.sum(np.interp(x, x[0, :1], x[1, :1]) * x),
    "choices": lambda x: np.sum(np.select([x > 1.0, np.sin(9.0 * x) > 0.0], [x, x**2], x[0]) * x),
    "numbers for nan": lambda x: np.sum(np.nan_to_num(np.where(x > 0.5, x, np.inf), posinf=2.0) * x),
    "equal steps": lambda x: np.sum(np.linspace(x[0], x[1], 3) * x[2]),
    "log_softmax": lambda x: np.sum(ts.special.log_softmax(x, axis=1) * x[0]),
    "filters": lambda x: np.sum(ts.signal.lfilter([1.0], [1.0, 0.3], x) * ts.signal.convolve(x, x, "same")),
    "parts put in": lambda x: np.sum(np.insert(x, 1, x[0], axis=1)[:, 2] * np.float_power(x[2], 1.5)),
    "weighted counts": lambda x: np.sum(np.bincount([0, 2, 2, 1], weights=x[0]) ** 2),
    "integrals of SciPy's": lambda x: np.sum(ts.spatial.distance.cdist(x, x)[0]) * ts.integrate.simpson(x[0]),
    "slogdet": lambda x: np.linalg.slogdet(x)[1] * x[0, 0],
    "its sign": lambda x: math.prod(np.linalg.slogdet(x - 1.2 * np.eye(4))) * x[0, 0],
    "slogdet of a large matrix": lambda x: math.prod(np.linalg.slogdet(large(x))),
    "slogdet of complex numbers": lambda x: np.real(math.prod(np.linalg.slogdet(x * 1j + x.T))),
    "one large matrix": lambda x: np.sum(np.linalg.solve(large(x), x[0, 0] + np.arange(40.0)) ** 2),
    "its determinant": lambda x: np.linalg.det(large(x) * 0.3),
}


def large(x):
    return np.kron(x, np.eye(10)) + np.diag(np.arange(40.0))


@pytest.mark.parametrize("f", every(FACTORISED.values(), 4), ids=FACTORISED)
def test_factors_are_those_of_each_call(f):
    compiled, generator = tg.compile(f, wait=True, replay=True), np.random.default_rng(3)
    for k in range(12):
        x = generator.uniform(0.2, 1.0, (4, 4)) + np.diag([1.0, 2.0, 4.0, 7.0]) * (1.0 + 0.1 * k)
        value, gradient = compiled.value_and_grad(x)
        wanted, expected = tg.func.value_and_grad(f)(x)
        assert value == wanted
        np.testing.assert_allclose(gradient, expected, 1e-9, 1e-9 * np.abs(expected).max())
        only = compiled.grad(x * 1.1)
        np.testing.assert_allclose(only, tg.func.grad(f)(x * 1.1), 1e-9, 1e-9 * np.abs(expected).max())
        if k > 8:
            found = compiled.hvp(x, np.ones((4, 4)))
            np.testing.assert_allclose(found, tg.func.hvp(f)(x, np.ones((4, 4))), 1e-6, 1e-6)
    assert skipped(compiled) > 12


def test_an_error_of_a_factorisation_is_raised():
    compiled = tg.compile(lambda x: np.sum(np.linalg.svd(x)[0]), wait=True, replay=True)
    for k in range(6):
        compiled.value_and_grad(np.diag([1.0, 2.0 + k]) + 0.1)
    with pytest.raises(np.linalg.LinAlgError):
        compiled.value_and_grad(np.full((2, 2), np.nan))
    x = np.array([[1.0, 0.3], [0.1, 2.0]])
    assert np.allclose(compiled.grad(x), tg.func.grad(lambda x: np.sum(np.linalg.svd(x)[0]))(x))


def test_eigenvalues_may_become_complex():
    f = lambda x: np.sum(np.real(np.linalg.eig(x)[1]))
    compiled = tg.compile(f, wait=True)
    for k in range(8):
        x = np.array([[1.0, 2.0], [0.5 if k % 4 else -2.0, 1.5 + 0.1 * k]])
        assert np.allclose(compiled.grad(x), tg.func.grad(f)(x))


# ------------------------------------------------------------ random functions of a world that others change

LINES = [
    "y = np.sin(y) * 1.1", "y = y * x - 0.2", "y = np.exp(-y * y)", "y = np.maximum(y, 0.1 * x)",
    "y = np.tanh(y + x)", "y = np.abs(y) + 0.1", "s = np.sum(y) * 0.3", "s = s * 0.5 + y[1]",
    "s = np.max(y) - np.mean(x)", "y = np.cumsum(y) * 0.5", "y = y / (1.0 + s * s)", "y = y[::-1]",
    "y = y[[0, 1, 2, 3]]", "y = np.roll(y, 1)", "y = np.concatenate([y[2:], y[:2]])",
    "y = y * c", "y = y + g", "y = y * world.scale", "y = y * world.a", "y = y + world.table['b'][1]",
    "y = y * world.table.get('c', 1.5)",
    "y = world.step(y)", "y = y[world.order]", "y = np.take(y, world.items)", "y = world.method(y, s)",
    "y = y * sum(world.numbers)", "y = y + helper(y) * len(world.numbers)", "y = y * kept.a[k]",
    "y = y if world.scale < 1.5 else y * 2.0", "s = s * world.pair.b",
    "s = s * (2.0 if np.any(y > 0.5) else g)", "y = y * 1.5 if y[0] > 0.1 else y - c", "y = y[np.argsort(y)]",
    "s = s + np.sum(y[y > 0.2])", "y = y * (0.3 if y[2] > 0.5 else world.scale)",
    "s = s * 0.5 if s > y[np.argmax(y)] else s",
]  # fmt: skip


class World:
    order, factor = np.array([2, 0, 3, 1]), 0.5

    def __init__(self):
        self.scale, self.a, self.step = 1.0, np.array([1.0, -0.5, 2.0, 0.3]), np.sin
        self.table, self.items, self.numbers = {"b": [0.1, 0.2]}, [3, 1, 0, 0], [0.5, 0.25]
        self.pair = Pair(1.0, 2.0)

    def method(self, y, s=0.0):
        return y * self.factor + s * 0.1


def of_a_world(rng, world):
    """A function of a world, its globals, and what changes the variable of an outer function."""
    body = "\n".join(f"        {line}" for line in rng.choices(LINES, k=rng.randint(3, 9)))
    text = f"""
def make(world, kept=None):
    c = 0.9
    kept = world
    def program(x, k):
        y, s = x * 0.7, x[0] * 1.0
{body}
        return np.sum(y * y) + s * 0.1
    def change(value):
        nonlocal c
        c = value
    return program, change
"""
    space = {"np": np, "g": 0.1, "helper": helper}
    exec(text, space)
    return *space["make"](world), space


def changed_somewhere(rng, world, space, change, number):
    """Change something that such a function may read."""
    what = rng.randrange(14)
    if what == 0:
        change(number)
    elif what == 1:
        space["g"] = number
    elif what == 2:
        space["helper"] = rng.choice([np.cos, np.sin, helper])
    elif what == 3:
        world.scale = rng.choice([1.0, 2.0, number])
    elif what == 4:
        world.a[rng.randrange(4)] = number
    elif what == 5:
        world.a = world.a * rng.choice([1.0, number])
    elif what == 6:
        world.step = rng.choice([np.sin, np.cos, np.tanh])
    elif what == 7:
        world.table["b"][1] = number
    elif what == 8:
        world.table.pop("c", None) if rng.random() < 0.5 else world.table.update(c=number)
    elif what == 9:
        world.order = rng.choice([World.order, np.array([0, 0, 1, 3])])
    elif what == 10:
        world.items[rng.randrange(4)] = rng.randrange(4)
    elif what == 11:
        world.numbers.append(number) if len(world.numbers) < 4 else world.numbers.clear()
    elif what == 12:
        World.factor = number
    else:
        world.pair = Pair(1.0, number)


def check_world(seed):
    rng, world = random.Random(seed), World()
    program, change, space = of_a_world(rng, world)
    compiled = tg.compile(program, wait=True, replay=True)
    for k in range(40):
        if rng.random() < 0.25:
            changed_somewhere(rng, world, space, change, rng.uniform(0.5, 1.5))
        x, turn = X * (1.0 + 0.1 * k), k // 20
        found, wanted = compiled.value_and_grad(x, turn), tg.func.value_and_grad(program)(x, turn)
        assert found[0] == wanted[0] or np.isnan(wanted[0]), f"call {k}"
        assert np.allclose(found[1], wanted[1], rtol=1e-12, atol=1e-12, equal_nan=True), f"call {k}"
    return skipped(compiled)


def test_random_functions_of_a_world():
    counts = [check_world(seed) for seed in range(10)]
    assert sum(count > 0 for count in counts) > 6, counts


@pytest.mark.full
def test_more_random_functions_of_a_world():
    assert sum(map(check_world, range(100, 200))) > 250


@pytest.mark.parametrize("n", [SUMMED // 8 - 1, SUMMED // 8, SUMMED // 8 + 1])
@pytest.mark.parametrize("setting", ["checksum", "copy"])
def test_large_plain_arrays(n, setting):
    """What takes their checksums is the library's own code, wherever it is kept."""
    data = np.linspace(0.1, 1.0, n)

    @tg.compile(replay=True, wait=True)
    def f(x):
        return np.sum(np.sin(data * x))

    def check(x):
        value, slope = f.value_and_grad(x)
        np.testing.assert_allclose(value, np.sum(np.sin(data * x)), rtol=1e-12)
        np.testing.assert_allclose(slope, np.sum(data * np.cos(data * x)), rtol=1e-12)

    with tg.guard(setting):
        for k in range(8):
            check(0.5 + k)
        data[0] += 1.0
        check(0.5)
    assert "Python skipped at" in str(f.explain()) and "skipped at 0 " not in str(f.explain())
    for change in (1.0, 0.0):
        data[n // 2] += change
        check(0.5)
        with tg.guard("copy"):
            check(1.5)


# ------------------------------------------------------------ operations that Python computes


def of_a_system(x):
    a = np.outer(x, x) + 3.0 * np.eye(4)
    return np.sum(np.linalg.solve(a, x) ** 3) + np.sum(np.abs(x) ** (x + 3.0)) + np.prod(np.linalg.inv(a) @ x)


def of_many_operands(x):
    y = np.stack([x[0], x[1], x[2], x[3], x[0] * x[1], x[2]])
    z = np.ones((4, 4))[:, ::-1] * x
    return np.sum(y * (np.arange(6.0)[:, None] - y)) + np.linalg.norm(x) + np.sum(z)


def of_scipys(x):
    return scipys.logsumexp(x) + np.sum(special.j0(x))


@pytest.mark.parametrize("f", [of_a_system, of_many_operands, of_scipys])
def test_operations_that_python_computes_are_computed_without_the_function(f):
    compiled = taken(f)
    for k in range(3):
        assert agrees(compiled, X * (1.0 + 0.1 * k))
    assert skipped(compiled) >= 4


def test_an_error_of_an_operation_comes_where_it_may_be_caught():
    def f(x):
        try:
            return np.sum(np.linalg.solve(np.outer(x, np.ones(4)) + np.diag(x), x))
        except ValueError:
            return np.sum(x) * 5.0

    compiled = taken(f)
    for x in (X, np.zeros(4), X + 1.0):
        assert agrees(compiled, x)


def test_an_operand_of_an_operation_is_looked_at_afterwards():
    def f(x):
        s = np.sum(x)
        y = np.abs(s) ** s
        return y if s.item() > 0 else y * 2.0

    with pytest.raises(ReplayError, match="looks at a value"):
        call_often(tg.compile(f, wait=True, replay=True).grad)


@pytest.mark.parametrize("op", [lambda a: np.linalg.eigh(a)[0], lambda a: np.linalg.solve(a, a[0])])
def test_a_look_at_a_number_that_is_computed_already_is_seen(op):
    """As an operation that Python computes has come after it."""

    def f(x):
        s = x[0] * 1.0
        y = op(np.outer(x, x) + np.eye(4))
        return np.sum(y) * (2.0 if s > 0.5 else 1.0)

    compiled = tg.compile(f, wait=True, replay=True)
    for x in (*[X] * 6, X + 1.0):
        with suppress(ReplayError):
            assert same(compiled.value_and_grad(x), tg.func.value_and_grad(f)(x), 4)


LOOKS = {  # at what an operation before was of
    "at an operand of where": "m = np.isnan(y); z = np.where(m, 0.0, y); s = np.sum(z) / float(np.sum(~m))",
    "by nanmedian": "s = np.nanmedian(y)",
    "at an operand of a product": "z = y * 2.0; s = np.dot(z, x) * float(z[0].detach())",
    "at a choice": "m = y > 0.5; s = np.sum(np.where(m, y, x)); s = s * (2.0 if m.any() else 3.0)",
    "at what is reshaped": "z = y * 2.0; s = np.sum(np.kron(z, z) * z.reshape(-1)[0]); s = s * z[1].item()",
    "at an operand of a flat call": "m = np.sign(y); n = np.floor(m); s = np.sum(y * n) * float(m[0])",
    "at a copy": "z = y * 2.0; s = np.sum(z.copy()) + z[0].item()",
}


@pytest.mark.parametrize("text", LOOKS.values(), ids=LOOKS)
def test_a_look_at_an_operand_behind_its_operation_is_seen(text):
    made = {"np": np}
    exec(f"def f(x):\n    y = x * 1.0\n    {text}\n    return s", made)
    compiled = tg.compile(made["f"], wait=True, replay=True)
    x, refused = np.array([0.2, 0.7, 1.5, 2.5]), None
    for k in range(16):
        given = x + 0.01 * k if k < 8 else 0.1 * x if k < 12 else np.append(x[:3], math.nan)
        try:
            found = compiled.value_and_grad(given)
        except ReplayError as error:
            refused = error
            break
        assert same(found, tg.func.value_and_grad(compiled.plain)(given), 4)
    assert ("looks at a value" in str(refused)) is ("m." not in text and "~m" not in text)  # truth values
