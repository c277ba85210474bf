"""tg.func of plain functions: gradients, products with vectors, nested in any order; what remains of them."""

import dataclasses
import gc
import itertools
import math
import sys
import threading
import weakref
from collections import namedtuple

import numba
import numpy as np
import pytest
import sympy

import tapegrad as tg
from tapegrad.errors import DTypeError, GradientError, ShapeError
from tapegrad.func.trees import flatten
from tapegrad.tape import tape as tape_module
from tapegrad.tape.tape import leave, local

F = tg.func
Point = namedtuple("Point", "x y")


@dataclasses.dataclass
class Model:
    weights: np.ndarray
    bias: float


@pytest.fixture
def fresh():
    """No tape is open."""
    if local.tape is not None:
        leave(local.tape)


def wave(x):
    return np.sin(x) * x + np.exp(-x * x)


T = sympy.Symbol("t")


def exact(order, at, expression=sympy.sin(T) * T + sympy.exp(-T * T)):
    return float(sympy.diff(expression, T, order).subs(T, at))


# ---------------------------------------------------------------- kinds of arguments and results


def test_number_in_number_out():
    for x in (0.7, np.float64(0.7), np.array(0.7)):
        found = F.grad(wave)(x)
        assert type(found) is float
        assert found == pytest.approx(exact(1, 0.7), rel=1e-14)
    value, slope = F.value_and_grad(wave)(0.7)
    assert (type(value), type(slope)) == (float, float)
    assert value == pytest.approx(float(wave(0.7)), rel=1e-15)


def test_an_integer_of_python_counts_as_a_float_and_arrays_of_integers_are_refused():
    assert F.grad(lambda x: x**2)(3) == 6.0
    with pytest.raises(DTypeError, match=r"argument 1 .* dtype int64; pass it as floats"):
        F.grad(lambda a, x: (a * x).sum(), 1)(2.0, np.arange(3))
    with pytest.raises(DTypeError, match="dtype int64"):
        F.grad(lambda x: x)(np.int64(3))
    with pytest.raises(TypeError, match="holds bool"):
        F.grad(lambda x: x)(True)
    with pytest.raises(TypeError, match=r"argument 0 .* holds str"):
        F.grad(lambda x: x["a"])({"a": 1.0, "kind": "relu"})


@pytest.mark.parametrize("dtype", ["f4", "f8", "g", "c8", "c16"])
def test_dtypes_stay(dtype):
    x = np.array([1.0, 2.0], dtype)
    assert F.grad(lambda x: np.sum(np.abs(x) ** 2))(x).dtype == dtype
    assert F.hvp(lambda x: np.sum(np.abs(x) ** 2))(x, x).dtype == dtype
    assert F.jvp(lambda x: x * x)(x, x)[1].dtype == dtype
    number = F.grad(lambda x: np.abs(x) ** 2)(x[0])
    assert type(number) is {"f8": float, "c16": complex}.get(dtype, np.dtype(dtype).type)


def test_a_complex_argument_has_the_convention_of_tg_grad():
    z = 1.0 + 2.0j
    leaf = tg.tensor(z, requires_grad=True)
    found = F.grad(lambda z: np.real(z**3))(z)
    assert type(found) is complex
    assert found == tg.grad(np.real(leaf**3), leaf)[0].item() == pytest.approx(3 * z.conjugate() ** 2)
    with pytest.raises(GradientError, match="complex"):
        F.grad(lambda z: z**3)(z)
    assert F.jvp(lambda z: z**3)(z, 1j)[1] == pytest.approx(3 * z**2 * 1j)
    assert F.linearize(lambda z: z**3)(z)[1](1j) == pytest.approx(3 * z**2 * 1j)


def test_arrays_are_copies():
    x = np.ones(3)
    for found in (F.vjp(lambda x: x)(x)[0], F.jvp(lambda x: x)(x, x)[0], F.grad(np.sum)(x)):
        found += 1.0
    constant = tg.tensor([1.0, 2.0])
    value, _, aux = F.vjp(lambda x: (constant, constant), has_aux=True)(x)
    value += 1.0
    assert aux.tolist() == constant.tolist() == [1.0, 2.0]
    assert x.tolist() == [1.0, 1.0, 1.0]


TREES = {
    "dict": ({"a": np.array([1.0, 2.0]), "b": 3.0}, lambda p: np.sum(p["a"] ** 2) * p["b"]),
    "list": ([np.array([1.0, 2.0]), 3.0], lambda p: np.sum(p[0] ** 2) * p[1]),
    "namedtuple": (Point(np.array([1.0, 2.0]), 3.0), lambda p: np.sum(p.x**2) * p.y),
    "dataclass": (Model(np.array([1.0, 2.0]), 3.0), lambda p: np.sum(p.weights**2) * p.bias),
    "nested": ({"a": [(np.array([1.0, 2.0]), None)], "b": Point(3.0, {})},
               lambda p: np.sum(p["a"][0][0] ** 2) * p["b"].x),
}  # fmt: skip


@pytest.mark.parametrize("name", TREES)
def test_trees(name):
    tree, f = TREES[name]
    found = F.grad(f)(tree)
    assert type(found) is type(tree)
    leaves, structure = F.trees.flatten(found)
    assert structure == F.trees.flatten(tree)[1]
    assert leaves[0].tolist() == [6.0, 12.0]
    assert leaves[1] == 5.0
    assert type(leaves[1]) is float
    value, tangent = F.jvp(f)(tree, tree)
    assert (value, tangent) == (15.0, 45.0)  # homogeneous of degree 3
    for product in (F.hvp(f)(tree, tree), F.vhp(f)(tree, tree)):
        assert F.trees.flatten(product)[0][0].tolist() == [12.0, 24.0]
    value, pullback = F.vjp(lambda p: {"y": f(p), "z": (p,)})(tree)
    back = pullback({"y": 1.0, "z": (tree,)})
    assert F.trees.flatten(back)[0][0].tolist() == [7.0, 14.0]


def test_argnums_keywords_and_aux():
    def f(a, b, *, scale, c):
        return scale * a * b * c, {"product": a * b, "scale": scale, "name": "f"}

    assert F.grad(f, 1, has_aux=True)(2.0, 3.0, scale=1.0, c=5.0)[0] == 10.0
    (value, aux), gradient = F.value_and_grad(f, (1, 0), has_aux=True)(2.0, 3.0, scale=1.0, c=5.0)
    assert (value, gradient) == (30.0, (10.0, 15.0))
    assert aux == {"product": 6.0, "scale": 1.0, "name": "f"}
    assert type(aux["product"]) is float
    assert F.grad(lambda x: x * x, (0,))(3.0) == (6.0,)
    value, tangent, aux = F.jvp(f, (0, 1), has_aux=True)(2.0, 3.0, (1.0, 0.0), scale=1.0, c=5.0)
    assert (value, tangent, aux["product"]) == (30.0, 15.0, 6.0)
    with pytest.raises(TypeError, match=r"argument 1 .*, and 1 are given by position"):
        F.grad(f, 1)(2.0, b=3.0, scale=1.0, c=1.0)


def test_what_depends_on_nothing_is_zero():
    assert F.grad(lambda x: 3.0)(1.0) == 0.0
    assert F.grad(lambda x, y: y * y, 0)(np.ones(2), 3.0).tolist() == [0.0, 0.0]
    assert F.grad(lambda x: np.floor(x))(1.5) == 0.0
    assert F.hvp(lambda x: np.sum(x))(np.ones(2), np.ones(2)).tolist() == [0.0, 0.0]
    assert F.jvp(lambda x: np.ones(2))(1.0, 1.0)[1].tolist() == [0.0, 0.0]
    assert F.jvp(lambda x: (x.shape, x))(np.ones(2), np.ones(2))[1][0] == (0.0,)
    assert F.linearize(lambda x: (1.0, x))(2.0)[1](5.0) == (0.0, 5.0)
    assert F.vjp(lambda x: (1.0, x))(2.0)[1]((7.0, 5.0)) == 5.0


def test_an_identity():
    assert F.grad(lambda x: x)(2.0) == 1.0
    assert F.value_and_grad(lambda x: x)(2.0) == (2.0, 1.0)
    assert F.jvp(lambda x: x)(2.0, 3.0) == (2.0, 3.0)
    _value, push = F.linearize(lambda x: x)(np.ones(2))
    assert push(np.array([1.0, 2.0])).tolist() == [1.0, 2.0]
    assert F.hvp(lambda x: x)(2.0, 1.0) == 0.0


def hidden(x):
    found = np.empty(1, object)
    found[0] = x
    return found


def test_misuse():
    with pytest.raises(TypeError, match=r"grad takes a function, found ndarray: tg\.func\.grad\(f\)\(x\)"):
        F.grad(np.ones(2))
    for ask in (tg.grad, tg.backward):
        with pytest.raises(TypeError, match=r"found a function; tg\.func\.grad\(f\)\(x\) is its gradient"):
            ask(wave, tg.tensor(1.0, requires_grad=True))
    with pytest.raises(ValueError, match=r"argnums .* found ndarray.*tg\.func\.grad\(f\)\(x\)"):
        F.grad(wave, np.ones(2))
    for wrong in (-1, (), (0, 0), 1.5, True):
        with pytest.raises(ValueError, match="argnums"):
            F.vjp(wave, wrong)
    with pytest.raises(GradientError, match=r"found shape \(2,\)"):
        F.grad(wave)(np.ones(2))
    with pytest.raises(GradientError, match=r"found tuple.*has_aux"):
        F.grad(lambda x: (x, x))(1.0)
    with pytest.raises(TypeError, match="has_aux=True takes a function of"):
        F.grad(wave, has_aux=True)(1.0)
    with pytest.raises(TypeError, match="last argument is a direction"):
        F.jvp(wave)()
    with pytest.raises(ShapeError, match=r"shape \(2,\) is wanted, found \(3,\)"):
        F.jvp(wave)(np.ones(2), np.ones(3))
    with pytest.raises(ShapeError, match="cotangent"):
        F.vjp(wave)(np.ones(2))[1](1.0)
    with pytest.raises(TypeError, match="built as its argument"):
        F.jvp(lambda p: p["a"])({"a": 1.0}, 1.0)
    with pytest.raises(TypeError, match="a tuple of 2 directions"):
        F.jvp(lambda a, b: a * b, (0, 1))(1.0, 2.0, 1.0)
    with pytest.raises(DTypeError, match="a real one"):
        F.jvp(wave)(1.0, 1j)
    with pytest.raises(DTypeError, match="object"):  # a Tensor in it would be overlooked
        F.grad(hidden)(1.0)
    with pytest.raises(DTypeError, match="MaskedArray has rules of its own"):
        F.grad(np.sum)(np.ma.array([1.0, 2.0], mask=[0, 1]))
    with pytest.raises(TypeError, match="numbers and arrays, found str"):
        F.vjp(lambda x: (x, "a"))(1.0)


# ---------------------------------------------------------------- perturbations are not confused


def test_classics_of_perturbation_confusion():
    """Siskind and Pearlmutter: d/dx (x * d/dy (x + y)) is 1, not 2; and kin of it."""
    d = {"reverse": F.grad, "forward": lambda f: lambda x: F.jvp(f)(x, 1.0)[1]}
    for outer, inner in itertools.product(d.values(), repeat=2):
        assert outer(lambda x: x * inner(lambda y: x + y)(1.0))(1.0) == 1.0
        assert outer(lambda x: x * inner(lambda y: x * y)(1.0))(3.0) == 6.0
        assert outer(lambda x: x * inner(lambda y: x * y)(x))(3.0) == 6.0
        assert outer(lambda x: inner(lambda y: x * y * y)(x))(3.0) == 12.0
        assert outer(lambda x: x * inner(lambda y: 1.0 * y)(x))(3.0) == 1.0
        assert type(outer(lambda x: x * inner(lambda y: x * y)(1.0))(3.0)) is float
    # Manzyuk and others: a derivative that escapes into a closure
    s = lambda u: lambda f: lambda x: f(x + u)
    for outer in d.values():
        twice = outer(lambda u: s(u)(s(u)(np.exp))(1.0))(0.0)
        assert twice == pytest.approx(2 * np.e)


MODES = {
    "g": lambda f: F.grad(f),
    "j": lambda f: lambda x: F.jvp(f)(x, 1.0)[1],
    "v": lambda f: lambda x: F.vjp(f)(x)[1](1.0),
    "l": lambda f: lambda x: F.linearize(f)(x)[1](1.0),
}


@pytest.mark.parametrize(
    "modes",
    [
        "gj",
        "jg",
        "vl",
        "lv",
        "gjg",
        "jgj",
        "jlg",
        "gvj",
        "gjgj",
        "jjgg",
        "lgjv",
        "gjgjgj",
        "jgjgjg",
        "jvlgjj",
    ],
)
def test_nested_to_depth_six(modes):
    f = lambda x: np.sin(x) * x + np.exp(-x * x)
    for mode in modes:
        f = MODES[mode](f)
    found = f(0.7)
    assert type(found) is float
    assert found == pytest.approx(exact(len(modes), 0.7), rel=1e-10)


def program(random, scope, depth):
    """A random expression of the variables in scope, with derivatives of such expressions within."""
    kinds = ["sin", "mul", "add", *["derivative"] * 3]
    kind = random.choice(kinds) if depth else random.choice(["variable"] * 9 + ["constant"])
    if kind == "variable":
        return "variable", scope[random.integers(len(scope))]
    if kind == "constant":
        return "constant", round(float(random.uniform(0.5, 1.5)), 2)
    if kind == "derivative":
        name = f"v{len(scope)}"
        mode = str(random.choice([*MODES, "h"]))
        return kind, mode, name, program(random, [*scope, name], depth - 1), program(random, scope, depth - 1)
    return kind, program(random, scope, depth - 1), program(random, scope, depth - 1)


def run(code, values):
    kind, *parts = code
    if kind == "variable":
        return values[parts[0]]
    if kind == "constant":
        return parts[0]
    if kind == "derivative":
        mode, name, body, at = parts
        f = lambda v: run(body, {**values, name: v})
        derive = (lambda f: lambda x: F.hvp(f)(x, 1.0)) if mode == "h" else MODES[mode]
        return derive(f)(run(at, values))
    a, b = (run(part, values) for part in parts)
    return np.sin(a) + b if kind == "sin" else a * b if kind == "mul" else a + b


def symbolically(code):
    kind, *parts = code
    if kind == "variable":
        return sympy.Symbol(parts[0])
    if kind == "constant":
        return sympy.Float(parts[0], 30)
    if kind == "derivative":
        mode, name, body, at = parts
        slope = sympy.diff(symbolically(body), sympy.Symbol(name), 2 if mode == "h" else 1)
        return slope.subs(sympy.Symbol(name), symbolically(at))
    a, b = map(symbolically, parts)
    return sympy.sin(a) + b if kind == "sin" else a * b if kind == "mul" else a + b


@pytest.mark.parametrize("seed", range(40))
def test_random_nests_with_closures(seed, fresh, monkeypatch):
    monkeypatch.setattr(tape_module, "MAX_RECORDS", (1, 8, tape_module.MAX_RECORDS)[seed % 3])
    code = program(np.random.default_rng(seed), ["v0"], 4)
    expected = sympy.diff(symbolically(code), sympy.Symbol("v0")).subs(
        sympy.Symbol("v0"), sympy.Float(0.7, 30)
    )
    for mode in ("g", "j"):
        found = MODES[mode](lambda v: run(code, {"v0": v}))(0.7)
        assert type(found) is float
        assert found == pytest.approx(float(expected), rel=1e-9, abs=1e-12)


def test_hvp_is_third_derivative_inside():
    third = F.grad(lambda x: F.hvp(lambda y: y**4)(x, 1.0))(2.0)
    assert third == 48.0
    assert F.jvp(lambda x: F.hvp(lambda y: y**4)(x, x))(2.0, 1.0)[1] == 12 * 3 * 4.0
    assert F.grad(lambda v: F.hvp(lambda y: y**4)(2.0, v))(1.0) == 48.0
    assert F.grad(lambda w: F.hvp(lambda y: w * y**4)(2.0, 1.0))(5.0) == 48.0


@pytest.mark.parametrize("inner", ["v", "l"])
def test_a_pullback_is_differentiated_by_what_it_is_applied_to_and_by_where_it_stands(inner):
    apply = {"v": lambda f, x, c: F.vjp(f)(x)[1](c), "l": lambda f, x, c: F.linearize(f)(x)[1](c)}[inner]
    assert F.grad(lambda x: apply(lambda y: y**3, x, x))(2.0) == 36.0
    assert F.grad(lambda c: apply(lambda y: y**3, 2.0, c))(7.0) == 12.0
    assert F.jvp(lambda x: apply(lambda y: y**3, x, x))(2.0, 1.0)[1] == 36.0
    assert F.jvp(lambda c: apply(lambda y: y**3, 2.0, c))(7.0, 1.0)[1] == 12.0


@pytest.mark.parametrize("length", [1, tape_module.MAX_RECORDS])
def test_a_tangent_with_a_history_closed_over(length, fresh, monkeypatch):
    """The gradient inside sees no Tensor that requires grad but through the tangent of one that does not."""
    monkeypatch.setattr(tape_module, "MAX_RECORDS", length)

    def pushed(t):
        return F.jvp(lambda x: F.grad(lambda y: x * y * y)(3.0))(1.0, t)[1]

    assert pushed(2.0) == 12.0
    assert F.grad(pushed)(2.0) == 6.0
    assert F.grad(lambda t: F.jvp(F.grad(lambda y: y**3))(2.0, t)[1])(1.0) == 12.0

    def value(t):
        return F.jvp(lambda x: F.value_and_grad(lambda y: x + y)(3.0)[0])(1.0, t)[1]

    assert F.grad(value)(2.0) == 1.0

    def aux(t):
        return F.jvp(lambda x: F.grad(lambda y: (y * y, x * x), has_aux=True)(3.0)[1])(1.0, t)[1]

    assert F.grad(aux)(2.0) == 2.0
    t = tg.tensor(2.0, requires_grad=True)
    with tg.autograd.forward_ad.dual_level():
        x = tg.autograd.forward_ad.make_dual(tg.tensor(1.0), t)
        slope = tg.autograd.forward_ad.unpack_dual(F.grad(lambda y: x * y * y)(3.0)).tangent
        assert tg.grad(slope, t)[0].item() == 6.0


# ---------------------------------------------------------------- Tensors, closures and modes


def test_tensors_in_tensors_out():
    x = tg.tensor([1.0, 2.0])
    found = F.grad(lambda x: np.sum(x**3))(x)
    assert isinstance(found, tg.Tensor)
    assert not found.requires_grad
    x.requires_grad_()
    found = F.grad(lambda x: np.sum(x**3))(x)
    assert tg.grad(found.sum(), x)[0].tolist() == [6.0, 12.0]
    assert x.grad is None
    _value, tangent = F.jvp(lambda x: x**3)(x, np.ones(2))
    assert tg.grad(tangent.sum(), x)[0].tolist() == [6.0, 12.0]
    with tg.no_grad():
        assert not F.grad(lambda x: np.sum(x**3))(x).requires_grad


@pytest.mark.parametrize("kind", ["leaf", "result", "view", "computed inside"])
def test_closure_over_an_active_tensor(kind):
    w = tg.tensor([2.0, 5.0], requires_grad=True)
    used = {
        "leaf": lambda: w,
        "result": lambda: once,
        "view": lambda: w[:],
        "computed inside": lambda: w * 1.0,
    }
    once = w * 1.0
    found = F.grad(lambda x: np.sum(used[kind]() * x**2))(np.array([3.0, 1.0]))
    assert found.tolist() == [12.0, 10.0]
    assert tg.grad(found.sum(), w, retain_graph=True)[0].tolist() == [6.0, 2.0]
    value, _gradient = F.value_and_grad(lambda x: np.sum(used[kind]() * x**2))(np.array([3.0, 1.0]))
    assert tg.grad(value, w)[0].tolist() == [9.0, 1.0]
    assert w.grad is None
    with tg.no_grad():
        assert type(F.grad(lambda x: np.sum(used[kind]() * x**2))(np.array([3.0, 1.0]))) is np.ndarray


HELD = {
    "grad": lambda x: F.grad(lambda x: np.sum(wave(x)))(x),
    "value_and_grad": lambda x: F.value_and_grad(lambda p: p["a"] * np.sum(p["b"]))({"a": 2.0, "b": x}),
    "grad of grad": lambda x: F.grad(lambda a: F.grad(lambda b: np.sin(a * b))(a))(0.4),
    "complex": lambda x: F.grad(lambda z: np.abs(z) ** 2)(1 + 2j),
    "with a Tensor": lambda x: F.value_and_grad(lambda x: np.sum(wave(x)))(tg.tensor(x)),
    "many leaves": lambda x: F.grad(lambda p: sum(p) * p[0])([0.5] * 3000),
    "vjp": lambda x: F.vjp(wave)(x)[1](x),
    "jvp": lambda x: F.jvp(wave)(x, x),
    "jacobian": lambda x: F.jacobian(wave)(x),
    "hessian": lambda x: F.hessian(lambda x: np.sum(wave(x)))(x),
    "hvp": lambda x: F.hvp(lambda x: np.sum(wave(x)))(x, x),
    "vmap": lambda x: F.vmap(F.grad(wave))(x),
    "root": lambda x: F.grad(F.root(lambda x, a: x * x - a, lambda a: a**0.5))(2.0),
}


@pytest.mark.parametrize("what", HELD)
def test_nothing_is_kept_because_frames_are(what):
    """Sampling profilers, as that of Dask's workers, and debuggers hold frames, and what is named there."""

    def kinds(found):
        return [(type(x), getattr(x, "requires_grad", False)) for x in flatten(found)[0]]

    expected, frames = kinds(HELD[what](np.array([0.5, 1.0]))), []
    sys.setprofile(lambda frame, event, arg: frames.append(frame))
    try:
        found = HELD[what](np.array([0.5, 1.0]))
    finally:
        sys.setprofile(None)
    assert kinds(found) == expected and not any(recorded for _, recorded in expected)


def test_an_open_graph_goes_on_after_a_call():
    w = tg.tensor(2.0, requires_grad=True)
    y = w * w
    for _ in range(3):
        y = y * F.grad(lambda x: x * x)(0.5)
        tape = local.tape
    y = y * F.grad(lambda x: w * x)(0.5)
    assert y._tape.serial > tape.serial
    assert tg.grad(y * w, w)[0].item() == 4 * 2.0**3


def test_no_grad_inside_stops_and_outside_does_not():
    def f(x):
        with tg.no_grad():
            y = x * x
        return x * y

    assert F.grad(f)(3.0) == 9.0
    with tg.no_grad():
        assert F.grad(lambda x: x * x)(3.0) == 6.0
        assert F.grad(F.grad(lambda x: x**3))(3.0) == 18.0
        assert F.jvp(F.grad(lambda x: x**3))(3.0, 1.0)[1] == 18.0
    with tg.inference_mode():
        assert F.grad(lambda x: x * x)(3.0) == 6.0
        assert F.hvp(lambda x: x**3)(3.0, 1.0) == 18.0
        assert F.vjp(lambda x: x**3)(3.0)[1](1.0) == 27.0


def test_inside_a_function_forward():
    class Root(tg.autograd.Function):
        @staticmethod
        def forward(ctx, a):
            x = np.sqrt(a.item())
            ctx.slope = F.grad(lambda x: x * x)(x)
            return tg.tensor(x)

        @staticmethod
        def backward(ctx, ct):
            return ct / ctx.slope

    a = tg.tensor(4.0, requires_grad=True)
    assert tg.grad(Root.apply(a), a)[0].item() == 0.25


def test_under_hooks_on_saved_values():
    w = tg.tensor(2.0, requires_grad=True)
    with tg.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x):
        y = w * w
        for _ in range(2):
            found = F.grad(lambda x: x**3)(2.0)
            assert type(found) is float
            assert found == 12.0
            y = y * w
        assert F.grad(F.grad(lambda x: x**4))(2.0) == F.hvp(lambda x: x**4)(2.0, 1.0) == 48.0
    assert tg.grad(y, w)[0].item() == 32.0


def test_inside_checkpoints():
    x = np.array([1.0, 2.0])

    def step(state):
        q, p = state
        p = p - 0.1 * F.grad(lambda q: np.sum(q**4) / 4)(q)
        return q + 0.1 * p, p

    def plainly(x):
        state = x, x * 0.0
        for _ in range(5):
            state = step(state)
        return np.sum(state[0])

    def loop(x):
        return np.sum(tg.autograd.checkpoint_loop(step, (x, x * 0.0), 5, slots=2)[0])

    once = lambda x: tg.autograd.checkpoint(plainly, x)
    for again in (loop, once):
        np.testing.assert_allclose(F.grad(again)(x), F.grad(plainly)(x), rtol=1e-12)
        np.testing.assert_allclose(F.hvp(again)(x, x), F.hvp(plainly)(x, x), rtol=1e-12)


def test_writes_in_place():
    def f(x):
        x[0] = x[0] * x[1]
        x *= 2.0
        return np.sum(x**2)

    x = np.array([3.0, 5.0])
    expected = [8 * 3.0 * 25.0, 8 * 5.0 * 9.0 + 8 * 5.0]
    for derive in (F.grad, lambda f: lambda x: F.vjp(f)(x)[1](1.0)):
        np.testing.assert_allclose(derive(f)(x), expected)
        np.testing.assert_allclose(derive(f)(tg.tensor(x)), expected)
    active = tg.tensor(x, requires_grad=True)
    np.testing.assert_allclose(F.grad(f)(active).detach(), expected)
    assert F.jvp(f)(x, np.array([1.0, 0.0]))[1] == pytest.approx(expected[0])
    np.testing.assert_allclose(F.hvp(f)(x, np.array([1.0, 0.0])), [8 * 25.0, 16 * 15.0])
    assert x.tolist() == active.tolist() == [3.0, 5.0]


def test_writes_to_an_argument_after_the_call_do_not_matter():
    x = np.array([1.0, 2.0])
    _, pullback = F.vjp(lambda x: x * x)(x)
    _, push = F.linearize(lambda x: x * x)(x)
    x[:] = 100.0
    assert pullback(np.ones(2)).tolist() == push(np.ones(2)).tolist() == [2.0, 4.0]


# ---------------------------------------------------------------- what remains


CALLS = {
    "grad": lambda f, x: F.grad(lambda x: np.sum(f(x)))(x),
    "nested": lambda f, x: F.grad(lambda x: np.sum(F.grad(lambda y: np.sum(f(x * y)))(x)))(x),
    "forward over reverse": lambda f, x: F.jvp(F.grad(lambda x: np.sum(f(x))))(x, x),
    "reverse over forward": lambda f, x: F.grad(lambda x: np.sum(F.jvp(f)(x, x)[1]))(x),
    "hvp": lambda f, x: F.hvp(lambda x: np.sum(f(x)))(x, x),
    "vjp": lambda f, x: F.vjp(f)(x)[1](x),
    "linearize": lambda f, x: F.linearize(f)(x)[1](x),
    "ggnvp": lambda f, x: F.ggnvp(f, np.sum)(x, x),
    "hessian": lambda f, x: F.hessian(lambda x: np.sum(f(x)))(x),
    "laplacian": lambda f, x: F.laplacian(lambda x: np.sum(f(x)))(x),
    "jacrev": lambda f, x: F.jacrev(f)(x),
    "jacfwd": lambda f, x: F.jacfwd(f)(x),
    "divergence": lambda f, x: F.divergence(f)(x),
    "vmap": lambda f, x: F.vmap(F.grad(lambda x: np.sum(f(x))))(x.reshape(2, -1)),
}


@pytest.mark.parametrize("name", CALLS)
def test_no_graph_is_alive_after_return(name, fresh):
    """Nor is it in a cycle that the collector would have to find."""
    seen, before = [], local.tape

    def f(x):
        y = np.exp(x)
        seen.append(weakref.ref(y._v))
        return y * y

    gc.disable()
    try:
        CALLS[name](f, np.ones(40))
        assert seen
        assert [r() for r in seen] == [None] * len(seen)
    finally:
        gc.enable()
    assert local.tape is before or not local.tape.log


def test_what_a_pullback_needs_lives_as_long_as_it_does(fresh):
    seen = []

    def f(x):
        y = np.exp(x)
        seen.append(weakref.ref(y._v))
        return y * y

    _, pullback = F.vjp(f)(np.zeros(2000))
    assert pullback(np.ones(2000))[0] == pullback(np.ones(2000))[0] == 2.0
    assert seen[0]() is not None
    del pullback
    gc.collect()
    assert seen[0]() is None


def test_an_exception_leaves_everything_as_it_was(fresh):
    w = tg.tensor(2.0, requires_grad=True)
    y = w * w
    before, seen = local.tape, []

    def f(x):
        z = np.exp(x)
        seen.append(weakref.ref(z._v))
        raise KeyError("mine")

    for derive in (F.grad(f), F.vjp(f), lambda x: F.jvp(f)(x, x), F.jacfwd(f), F.hessian(f)):
        with pytest.raises(KeyError, match="mine"):
            derive(np.ones(2000))
        assert local.tape is before
    with pytest.raises(KeyError):
        F.grad(lambda x: F.grad(f)(x))(np.ones(2000))
    gc.collect()
    assert all(r() is None for r in seen)
    assert tg.is_grad_enabled()
    assert tg.autograd.forward_ad._levels.get() == ()
    assert tg.grad(y * w, w)[0].item() == 12.0


def test_threads():
    w = tg.tensor(2.0, requires_grad=True)
    found = {}

    def work(k):
        x = np.linspace(0.0, 1.0, 5) + k
        f = lambda x: np.sum(np.sin(x) * x)
        good = [np.allclose(F.grad(f)(x), np.cos(x) * x + np.sin(x)) for _ in range(50)]
        good += [np.allclose(F.hvp(f)(x, np.ones(5)), 2 * np.cos(x) - np.sin(x) * x) for _ in range(20)]
        good.append(tg.grad(F.grad(lambda x: w * x * x)(float(k)), w)[0].item() == 2.0 * k)
        found[k] = all(good)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == dict.fromkeys(range(4), True)


# ---------------------------------------------------------------- products


def test_products_agree_with_each_other(random):
    weights = random.normal(size=(4, 3))

    def f(p):
        return {"y": np.tanh(weights @ p[0]) * p[1], "n": np.sum(p[0] ** 2)}

    p = (random.normal(size=3), 1.5)
    v, ct = (random.normal(size=3), 0.3), {"y": random.normal(size=4), "n": -0.7}
    value, tangent = F.jvp(f)(p, v)
    again, push = F.linearize(f)(p)
    third, pull = F.vjp(f)(p)
    for key in value:
        np.testing.assert_allclose(value[key], again[key])
        np.testing.assert_allclose(value[key], third[key])
        np.testing.assert_allclose(tangent[key], push(v)[key], rtol=1e-12)
    back = pull(ct)
    left = np.sum(ct["y"] * tangent["y"]) + ct["n"] * tangent["n"]
    assert left == pytest.approx(np.sum(back[0] * v[0]) + back[1] * v[1], rel=1e-12)
    step = 1e-6
    moved = [f((p[0] + s * v[0], p[1] + s * v[1]))["y"] for s in (step, -step)]
    np.testing.assert_allclose(tangent["y"], (moved[0] - moved[1]) / (2 * step), rtol=1e-7, atol=1e-8)


def test_linearize_and_vjp_call_once():
    calls = []

    def f(x):
        calls.append(1)
        return x * x

    _, push = F.linearize(f)(3.0)
    _, pull = F.vjp(f)(3.0)
    assert [push(1.0), push(2.0), pull(1.0), pull(2.0)] == [6.0, 12.0, 6.0, 12.0]
    assert len(calls) == 2
    F.ggnvp(f, lambda y: y * y)(3.0, 1.0)
    F.hvp(f)(3.0, 1.0)
    assert len(calls) == 4


def test_ggnvp(random):
    weights, target, x, v = (random.normal(size=s) for s in ((5, 3), 5, 3, 3))

    def f(x):
        return np.tanh(weights @ x)

    def loss(y):
        return np.sum((y - target) ** 4)

    jacobian = F.jacrev(f)(x)
    expected = jacobian.T @ (12 * (f(x) - target) ** 2 * (jacobian @ v))
    np.testing.assert_allclose(F.ggnvp(f, loss)(x, v), expected, rtol=1e-12)
    np.testing.assert_allclose(F.grad(lambda v: v @ F.ggnvp(f, loss)(x, v) / 2)(v), expected, rtol=1e-12)


@tg.njit
def cube(x):
    return x * x * x


def test_compiled_functions_keep_their_ways_and_have_the_other_names():
    assert isinstance(F.grad(cube), type(F.hvp(cube)))
    assert F.linearize(cube)(2.0)[1](1.0) == F.vjp(cube)(2.0)[1](1.0) == 12.0
    assert F.vhp(cube)(2.0, 1.0) == 12.0
    assert F.ggnvp(cube, lambda y: y * y / 2)(2.0, 1.0) == 144.0
    assert F.grad(lambda x: cube(x) * x)(2.0) == 32.0
    both = numba.njit(lambda x: (x * x, x + 1.0))
    assert F.grad(both, has_aux=True)(2.0) == (4.0, 3.0)
    assert F.value_and_grad(both, has_aux=True)(2.0) == ((4.0, 3.0), 4.0)
    assert F.jvp(both, has_aux=True)(2.0, 1.0) == (4.0, 4.0, 3.0)


def test_compiled_derivatives_take_tensors():
    assert F.grad(F.grad(cube))(2.0) == 12.0
    x = tg.tensor(2.0, requires_grad=True)
    assert tg.grad(F.grad(cube)(x), x)[0].item() == 12.0
    assert F.grad(lambda x: F.grad(cube)(x) * x)(2.0) == 36.0


@pytest.mark.full
def test_compiled_derivatives_nest():
    assert F.grad(F.grad(F.grad(cube)))(2.0) == 6.0
    assert F.grad(lambda x: F.hvp(cube)(x, 1.0))(2.0) == 6.0
    assert F.grad(lambda v: F.hvp(cube)(2.0, v))(1.0) == 12.0
    assert F.jvp(lambda x: F.jvp(cube)(x, x)[1])(2.0, 1.0)[1] == 36.0
    assert F.grad(lambda x: F.value_and_grad(cube)(x)[0])(2.0) == 12.0
    assert F.grad(F.hessian(cube))(2.0) == 6.0
    power = tg.njit(lambda a, b: a * a * b)
    assert F.grad(lambda v: F.hvp(power, (0, 1))(2.0, 3.0, (v, v))[0])(1.0) == 10.0
    assert F.grad(power, (0,))(2.0, 3.0) == 12.0
    assert F.grad(lambda x: F.grad(power, (0,))(x, 3.0))(2.0) == 6.0


compiled_wave = tg.njit(lambda x: math.sin(x) * x + math.exp(-x * x))


@pytest.mark.parametrize(
    "modes",
    ["jj", "jg", "gj", *(pytest.param(m, marks=pytest.mark.full) for m in ("jgj", "gjj", "vjl", "jvjg"))],
)
def test_compiled_functions_nest_in_all_modes(modes):
    f = compiled_wave
    for mode in modes:
        f = MODES[mode](lambda x, f=f: f(x))
    assert f(0.7) == pytest.approx(exact(len(modes), 0.7), rel=1e-10)


@pytest.mark.full
def test_compiled_functions_of_arrays_nest_forward():
    f = tg.njit(lambda x: np.sum(x**3) * x[0])
    g = lambda x: np.sum(x**3) * x[0]
    x = np.array([0.5, -1.0, 2.0])
    for derive in (
        lambda f: F.jacfwd(F.jacrev(f)),
        lambda f: F.jacfwd(F.jacfwd(f)),
        lambda f: F.jacfwd(F.grad(f)),
    ):
        np.testing.assert_allclose(derive(lambda x: f(x))(x), derive(g)(x), rtol=1e-12)


@pytest.mark.parametrize("what", ["vjp", "linearize"])
def test_derivatives_of_pullbacks_of_arrays_are_arrays(what):
    """They were Tensors with a history that led to the pullback's own argument."""
    x, w = np.array([0.3, -0.7, 1.2]), tg.tensor([1.0, 2.0, 3.0], requires_grad=True)
    _, linear = getattr(tg.func, what)(np.sin)(x)
    slope = np.cos(x)
    for derivative, wanted in (
        (tg.func.grad(lambda v: np.sum(linear(v) * x)), slope * x),
        (tg.func.grad(lambda v: np.sum(linear(v) ** 2)), 2 * slope**2 * x),
        (tg.func.jacrev(linear), np.diag(slope)),
        (tg.func.hessian(lambda v: np.sum(linear(v) ** 2)), np.diag(2 * slope**2)),
    ):
        found = derivative(x)
        assert type(found) is np.ndarray
        np.testing.assert_allclose(found, wanted, rtol=1e-14)
    seen = {}

    def noting(x):
        seen["total"] = np.sum(w * w)
        return np.sin(x) * (w if "use" in seen else 1.0)

    for use in (False, True):  # what does depend on Tensors outside is differentiated by them, as ever
        seen |= {"use": 1} if use else {}
        _, linear = getattr(tg.func, what)(noting)(x)
        found = tg.func.grad(lambda v: np.sum(linear(v)) * seen["total"])(x)
        factor = w if use else 1.0
        (by_w,) = tg.grad(np.sum(found), w)
        np.testing.assert_allclose(by_w, tg.grad(np.sum(slope * factor) * np.sum(w * w), w)[0], rtol=1e-14)

    def inside(a):
        _, linear = getattr(tg.func, what)(np.sin)(a)
        return np.sum(tg.func.grad(lambda v: np.sum(linear(v) ** 2))(x))

    np.testing.assert_allclose(tg.func.grad(inside)(x), -4 * slope * np.sin(x) * x, rtol=1e-14)
