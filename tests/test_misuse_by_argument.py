"""Well-formed calls of the whole public surface, each with one argument replaced by each of many values.

What NumPy gives an answer to on plain arrays is no misuse; all else raises one of the documented exceptions,
and leaves everything as it was. ``pytest -m slow -s tests/test_misuse_by_argument.py`` makes all of them.
"""

import collections
import inspect
import io
import warnings

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.autograd import forward_ad, functional
from tapegrad.core.functions import FUNCTIONS, UFUNCS

from .test_misuse import DOCUMENTED, DTYPES, FOREIGN, HUGE, NESTED, NONE, SHAPES, Reference, leaf

M = ((1.0, 2.0), (3.0, 5.0))
VALUES = FOREIGN | DTYPES | NESTED | SHAPES | NONE | {
    "-1": lambda: -1, "7": lambda: 7, "-7": lambda: -7, "1.5": lambda: 1.5, "nan": lambda: float("nan"),
    "inf": lambda: float("inf"), "huge": lambda: HUGE, "beyond": lambda: 10**40, "empty text": lambda: "",
    "empty tuple": lambda: (), "twice": lambda: (0, 0), "far": lambda: (0, 9),
    "number and text": lambda: [0, "a"], "ellipsis": lambda: ..., "int64": lambda: np.int64(9),
    "True": lambda: True, "mask of 3": lambda: [True] * 3, "integers": lambda: np.arange(5),
    "(2, 3, 4)": lambda: np.zeros((2, 3, 4)), "0-d leaf": lambda: leaf(1.0),
    "int Tensor": lambda: tg.tensor([1, 2, 3]), "float32 leaf": lambda: leaf(np.ones(5), "f"),
    "dtype": lambda: np.dtype("U3"), "code": lambda: "i->", "Tensor class": lambda: tg.Tensor,
    "exception": lambda: ValueError("no"), "range": lambda: range(3, 0, -1), "iterator": lambda: iter([1.0]),
}  # fmt: skip


def x():
    return leaf(M)


def vector():
    return leaf((1.0, 2.0))


class Call:
    """A function with arguments that fit it: makers are called, all else is as it is."""

    def __init__(self, function, *args, **kwargs):
        self.function, self.args, self.kwargs = function, args, kwargs
        self.twin = None  # the same in NumPy
        self.first = 0  # place that is replaced first

    def places(self):
        return [*range(self.first, len(self.args)), *self.kwargs]

    def __call__(self, place, value, plain=False):
        """Call it with one argument replaced; `plain`: NumPy's function on arrays."""
        args, kwargs = list(self.args), dict(self.kwargs)
        function = self.twin if plain else self.function
        arguments = kwargs if isinstance(place, str) else args
        arguments[place] = value
        args = [a() if a in (x, vector, io.BytesIO) else a for a in args]
        kwargs = {k: v for k, v in kwargs.items() if v is not DEFAULT}
        if plain:
            args, kwargs = bare(args), bare(kwargs)
        return function(*args, **kwargs)


DEFAULT = object()  # left out unless it is the one that is replaced


def bare(item, depth=0):
    """Tensors as arrays."""
    if isinstance(item, tg.Tensor):
        return np.array(item.detach().numpy())
    if isinstance(item, dict):
        return {k: bare(v, depth + 1) for k, v in item.items()}
    return [bare(v, depth + 1) for v in item] if type(item) is list and depth < 4 else item


CALLS = {}


def add(name, function, *args, twin=None, first=0, **kwargs):
    assert name not in CALLS
    CALLS[name] = call = Call(function, *args, **kwargs)
    call.twin, call.first = twin, first


for ufunc in UFUNCS:
    options = dict.fromkeys(
        ("out", "where", "dtype", "axis", "keepdims", "axes", "casting", "signature"), DEFAULT
    )
    add(
        f"np.{ufunc.__name__}", ufunc, *[x] * ufunc.nin, twin=ufunc, order=DEFAULT, nothing=DEFAULT, **options
    )
for ufunc in (np.add, np.multiply, np.maximum, np.minimum, np.hypot, np.logical_and, np.power):
    for method, args in {
        "reduce": (x,), "accumulate": (x,), "outer": (vector, vector), "reduceat": (x, [0, 1]),
        "at": (vector, [0], 1.0),
    }.items():  # fmt: skip
        f = getattr(ufunc, method)
        options = {} if method == "at" else dict.fromkeys(("axis", "dtype", "out", "where"), DEFAULT)
        add(f"np.{ufunc.__name__}.{method}", f, *args, twin=f, **options)

ARGUMENTS = {  # where they are not one matrix
    np.reshape: (x, (4,)), np.swapaxes: (x, 0, 1), np.moveaxis: (x, 0, 1), np.expand_dims: (x, 0),
    np.broadcast_to: (x, (3, 2, 2)), np.concatenate: ([1.0], 0), np.stack: ([1.0], 0), np.take: (x, [0], 0),
    np.astype: (x, float), np.where: (x, x, x), np.clip: (x, 1.0, 2.0), np.dot: (x, x),
    np.outer: (vector, vector), np.linalg.solve: (x, x), np.einsum: ("ij,jk->ik", x, x),
    np.full_like: (x, 2.0), np.allclose: (x, x), np.array_equal: (x, x), np.isclose: (x, x),
    np.result_type: (x, float), np.can_cast: (x, float), np.searchsorted: (vector, 1.0), np.round: (x, 1),
    np.around: (x, 1), np.shares_memory: (x, x), np.may_share_memory: (x, x), np.save: (io.BytesIO, x),
    np.savetxt: (io.BytesIO, x), np.savez: (io.BytesIO, x), np.flip: (x, 0), np.transpose: (x, (1, 0)),
    np.cumsum: (x, 0), np.squeeze: (x,), np.vstack: ([1.0],), np.hstack: ([1.0],), np.size: (x, 0),
}  # fmt: skip
for function in FUNCTIONS:
    args = ARGUMENTS.get(function, (x,))
    if args[0] == [1.0]:  # a sequence of parts, of which one is replaced

        def joined(a, b, *more, function=function, **options):
            return function([a, b], *more, **options)

        call, args = joined, (x, x, *args[1:])
    else:
        call = function
    try:
        names = [
            p.name for p in inspect.signature(function).parameters.values()
            if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
        ]  # fmt: skip
    except ValueError:
        names = []
    taken = len(args) - (call is not function)
    options = dict.fromkeys([*names[taken:], "nothing"], DEFAULT)
    first = int(args[0] is io.BytesIO)
    if function is not np.savez:  # there every name is an array's
        add(
            f"{function.__module__}.{function.__name__} {len(CALLS)}",
            call,
            *args,
            twin=call,
            first=first,
            **options,
        )

METHODS = {
    "add_": (x,), "sub_": (x,), "mul_": (x,), "div_": (x,), "copy_": (x,), "fill_": (1.0,),
    "astype": (float,), "clip": (1.0, 2.0), "dot": (x,), "take": ([0], 0), "reshape": (4,),
    "swapaxes": (0, 1), "transpose": (1, 0), "squeeze": (), "item": (0,), "requires_grad_": (True,),
    "backward": (x,),
    "cumsum": (0,), "round": (1,),
}  # fmt: skip
IN_PLACE = ("add_", "sub_", "mul_", "div_", "copy_", "fill_", "zero_")


def constant():
    return tg.tensor(M)


for name, function in inspect.getmembers(tg.Tensor, callable):
    if name.startswith("_") or name in ("requires_grad_", "backward"):
        continue
    args = METHODS.get(name, ())
    try:
        names = list(inspect.signature(function).parameters)[1 + len(args) :]
    except ValueError:
        names = []
    names = [n for n in names if n not in ("args", "axes", "shape")]

    def call(*args, name=name, **kwargs):
        operand = leaf(M) if name not in IN_PLACE else leaf(M) * 1.0
        return getattr(operand, name)(*args, **kwargs)

    def twin(*args, name=name, **kwargs):
        return getattr(np.array(M), name)(*args, **kwargs)

    has_twin = hasattr(np.ndarray, name)
    add(f"Tensor.{name}", call, *args, twin=twin if has_twin else None,
        **dict.fromkeys([*names, "nothing"], DEFAULT))  # fmt: skip
INDEX_TWIN = {"[]": lambda a, i: a[i], "[][]": lambda a, i, j: a[i][j], "[,]": lambda a, i, j: a[i, j]}
for name, function in INDEX_TWIN.items():
    add(f"x{name}", function, x, *[0] * (len(name) // 2 if name == "[][]" else 1 + ("," in name)),
        twin=function, first=1)  # fmt: skip


def assign(a, i, value):
    a = a.copy()
    a[i] = value


def assign_pair(a, i, j, value):
    a = a.copy()
    a[i, j] = value


add("x[] =", assign, x, 0, 1.0, twin=assign, first=1)
add("x[,] =", assign_pair, x, 0, slice(None), 1.0, twin=assign_pair, first=1)

for name in ("zeros", "ones", "full", "eye", "arange", "linspace"):
    function = getattr(tg, name)
    args = {"full": ((2,), 1.0), "arange": (0, 3, 1), "linspace": (0, 1, 3), "eye": (2, 3)}.get(name, ((2,),))
    options = dict.fromkeys(("dtype", "like", "nothing", "order", "device"), DEFAULT)
    if name == "linspace":
        options |= dict.fromkeys(("axis", "endpoint"), DEFAULT)
    add(f"tg.{name}", function, *args, twin=getattr(np, name), **options)
for name in ("zeros_like", "ones_like", "full_like", "empty_like"):
    args = (x, 1.0) if name == "full_like" else (x,)
    options = dict.fromkeys(("dtype", "shape", "subok", "nothing"), DEFAULT)
    add(f"tg.{name}", getattr(tg, name), *args, twin=getattr(np, name), **options)
add("tg.tensor", tg.tensor, M, float, twin=np.array, nothing=DEFAULT)
add("tg.array", tg.array, M, float, twin=np.array, nothing=DEFAULT)
add("tg.asarray", tg.asarray, M, float, twin=np.asarray, nothing=DEFAULT)
add("tg.from_numpy", tg.from_numpy, M, twin=lambda a: a.dtype.char in "dfil?" and a)
add("tg.logsumexp", tg.logsumexp, x, 0, twin=lambda a, axis, **more: np.sum(a, axis, **more),
    keepdims=DEFAULT, nothing=DEFAULT)  # fmt: skip


# what takes part in differentiation has no twin


def gradient(a, outputs=DEFAULT, inputs=DEFAULT, **options):
    y = (a * a).sum()
    return tg.grad(y if outputs is DEFAULT else outputs, a if inputs is DEFAULT else inputs, **options)


def accumulate(a, tensors=DEFAULT, **options):
    y = (a * a).sum()
    return tg.backward(y if tensors is DEFAULT else tensors, **options)


def method(a, **options):
    return (a * a).sum().backward(**options)


def set_attribute(name):
    return lambda value: setattr(leaf(M), name, value)


GRAD = dict.fromkeys(
    ("outputs", "inputs", "grad_outputs", "only_inputs", "is_grads_batched", "nothing"), DEFAULT
)
add("tg.grad", gradient, x, first=1, **GRAD)
add("tg.grad recorded", gradient, x, first=1, create_graph=True, **GRAD)
for name, function in {"tg.backward": accumulate, "Tensor.backward": method}.items():
    given = ("gradient",) if function is method else ("tensors", "grad_tensors")
    add(name, function, x, first=1, **dict.fromkeys((*given, "inputs", "nothing"), DEFAULT))
    add(f"{name} recorded", function, x, first=1, create_graph=True,
        **dict.fromkeys((*given, "inputs", "nothing"), DEFAULT))  # fmt: skip
for function in (tg.gradcheck, tg.gradgradcheck):
    options = dict.fromkeys(("eps", "atol", "rtol", "nondet_tol", "nothing"), DEFAULT)
    if function is tg.gradgradcheck:
        options["grad_outputs"] = DEFAULT
    add(f"tg.{function.__name__}", function, np.sin, vector, **options)


def dual(tensor, tangent, **options):
    with forward_ad.dual_level():
        forward_ad.unpack_dual(forward_ad.make_dual(tensor, tangent, **options) * 2.0)


add("make_dual", dual, x, x, level=DEFAULT, nothing=DEFAULT)
add("unpack_dual", forward_ad.unpack_dual, x, level=DEFAULT)
for name in functional.__all__:
    options = dict.fromkeys(("v",) if name in ("vjp", "jvp", "hvp", "vhp") else ("vectorize",), DEFAULT)
    strategy = {"jacobian": {"strategy": DEFAULT}, "hessian": {"outer_jacobian_strategy": DEFAULT}}
    add(f"functional.{name}", lambda f, *a, call=getattr(functional, name), **more: call(f, *a, **more),
        lambda a: (a * a).sum(), x, nothing=DEFAULT, **options, **strategy.get(name, {}))  # fmt: skip
for name in ("grad", "data", "requires_grad"):
    add(f"Tensor.{name} =", set_attribute(name), None)
add("requires_grad_", lambda value: leaf(M).requires_grad_(value), True)
for name in ("tensor", "zeros", "full"):
    args = {"tensor": (M,), "zeros": (2,), "full": (2, 1.0)}[name]
    add(
        f"tg.{name} requires_grad",
        lambda value, f=getattr(tg, name), args=args: f(*args, requires_grad=value),
        True,
    )
for name in ("no_grad", "enable_grad"):
    add(f"tg.{name}", lambda value, f=getattr(tg, name): f(value)(), None)


def outcome(call, *args, **kwargs):
    """The exception, or None."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            call(*args, **kwargs)
        except BaseException as error:
            return error
    return None


STEP = 23  # of the calls, one in so many is made in the default selection; a prime: every place has its turn
# what is read leniently: numbers and sequences of none of them as axes, anything with a dtype as that dtype
LENIENT = ("True", "generator", "empty text"), ("Cannot construct a dtype", "Cannot cast", "No loop matching")



def answers(name, place, value):
    """Whether NumPy is asked: it goes on for ever, or crashes, where this library refuses."""
    endless = place == "n" and name.startswith("numpy.diff") and value in ("huge", "beyond")
    return not endless and not (place == "out" and "cum" in name and value == "0-d leaf")


def misuse(name, counts, step=1):
    call = CALLS[name]
    kept = Reference()
    before = kept.look()
    problems = []
    cases = [(place, value) for place in call.places() for value in VALUES]
    for place, value in cases[len(name) % step :: step]:
        error = outcome(call, place, VALUES[value]())
        numpy_s = None
        if call.twin is not None and answers(name, place, value):
            numpy_s = outcome(call, place, VALUES[value](), plain=True)
        what = f"{name}, argument {place!r} is {value}: {error!r:.150}, NumPy: {numpy_s!r:.150}"
        if kept.look() != before:
            problems.append(f"{what}: something else changed")
        if error is not None:
            counts["refused"] += 1
            documented = (*DOCUMENTED, OSError) if "tofile" in name else DOCUMENTED  # a path that is none
            if not (isinstance(error, documented) and str(error)) and type(error) is not type(numpy_s):
                problems.append(what)
        elif (
            isinstance(place, int)  # options are read leniently, data are not
            and numpy_s is not None
            and value not in LENIENT[0]
            and not str(numpy_s).startswith(LENIENT[1])
        ):
            problems.append(f"{what}: accepted")
    return problems


@pytest.mark.full
def test_one_argument_replaced(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    counts = collections.Counter()
    problems = [p for name in CALLS for p in misuse(name, counts, STEP)]
    assert not problems, "\n".join(problems)
    assert counts["refused"] > 2000


@pytest.mark.slow
def test_every_argument_replaced(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    counts = collections.Counter()
    problems = [p for name in CALLS for p in misuse(name, counts)]
    assert not problems, "\n".join(problems)
    print(f"{counts['refused']} malformed calls by replacing an argument")
    assert counts["refused"] > 50_000
