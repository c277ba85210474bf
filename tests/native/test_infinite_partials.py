"""Zero times an infinite partial: one rule, and where compiled code knows more than Tensors."""

import functools
import itertools
import warnings

import numpy as np
import pytest
from numba import njit

import tapegrad as tg
from tests.native.test_equal import alike, derivatives, in_arrays, weighted

# functions, each with a number where its partial, or that of its derivative, is infinite
INNER = {
    "np.sqrt(x)": 0.0, "x ** 0.5": 0.0, "np.log(x)": 0.0, "np.cbrt(x)": 0.0, "np.divide(1.0, x)": 0.0,
    "np.log1p(x)": -1.0, "np.arcsin(x)": 1.0, "np.arctanh(x)": 1.0, "np.power(x, 1.5)": 0.0,
}  # fmt: skip
TO_ORDER = [
    *(pytest.param(text, 3, marks=pytest.mark.slow) for text in INNER),
    *((text, 2) for text in [*INNER][::5]),
]
WHOLE = [  # whether arrays and numbers take all forms, or those of their turn
    *(pytest.param(text, True, marks=pytest.mark.slow) for text in INNER),
    *((text, False) for text in [*INNER][::5]),
]
OUTER = ["y * y", "y * 0.0", "np.maximum(y, 9.0)", "np.minimum(y, -9.0)", "np.clip(y, 4.0, 5.0)",
         "np.abs(y)", "np.sin(y) * (y - y)"]  # fmt: skip
WHERE = [  # texts by a function and an operand: what is not chosen in the function, around it, or both
    lambda g, x: f"np.where({x} == c, 0.0, {g(x)})",
    lambda g, x: f"np.where({x} != c, {g(x)}, {x}) * 3.0",
    lambda g, x: g(f"np.where({x} == c, c, {x})"),
    lambda g, x: g(f"np.where({x} != c, {x}, c)") + f" * {x}",
    lambda g, x: f"np.where({x} == c, {g(x)}, {g(f'c + 0.0 * {x}')})",
    lambda g, x: f"np.where({x} < 9.0, {x}, {g(x)})",
    lambda g, x: f"np.where(({x} == c) | ({x} > 9.0), c, " + g(f"np.where({x} == c, 0.25, {x})") + ")",
    lambda g, x: f"np.where(np.logical_not({x} != c), {g(x)}, {x}) + np.where({x} == c, {x}, {g(x)})",
]
CHOICES = [
    "y[1:] * 2.0",
    "y[x != c]",
    "y[1] * y[1:2]",
    "erased(y)",
    "branch(x, y, c)",
]


def erased(y):
    y[0] = 0.0
    return y


def branch(x, y, c):
    z = np.zeros_like(y)
    for k in range(y.size):
        if x[k] != c:
            z[k] = y[k]
    return z


def program(cases):
    """Cases, each lines and a result, as one function: of Tensors, and compiled."""
    lines = ["def program(which, x):"]
    for k, (*body, result) in enumerate(cases):
        lines += [f"    if which == {k}:", *(f"        {line}" for line in [*body, f"return {result}"])]
    text, found = "\n".join([*lines, "    return 0.0 * x[0]"]), []
    for space in (
        {"weighted": in_arrays, "erased": erased, "branch": branch},
        {f.__name__: njit(f) for f in (weighted, erased, branch)},
    ):
        space["np"] = np
        exec(text, space)
        found.append(space["program"])
    return found[0], tg.njit(found[1])


def both(ways, which, point, order):
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return [derivatives(functools.partial(f, which), point, order) for f in ways]


@pytest.mark.parametrize(("inner", "order"), TO_ORDER)
def test_zero_times_infinity_is_what_it_is_for_tensors(inner, order):
    """In arrays and numbers, within a statement and in several; to order 2 in one of these ways by turns."""
    cases, kinds = [], [("x", "weighted({})"), ("x[0]", "({}) * 1.0")]
    for k, (outer, (x, result)) in enumerate(itertools.product(OUTER, kinds)):
        y, turn = inner.replace("x", x), (k + k // 2) % 2
        if order == 3 or turn == 0:
            cases.append([result.format(outer.replace("y", f"({y})"))])
        if order == 3 or turn == 1:
            cases.append([f"y = {y}", f"z = {outer}", result.format("z")])
    ways, found = program(cases), []
    for which, case in enumerate(cases):
        one, other = both(ways, which, [INNER[inner], 0.5], order)
        found += [
            f"{case}, order {k}: Tensors {a}, compiled {b}"
            for k, (a, b) in enumerate(zip(one, other, strict=True))
            if not alike(a, b)
        ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(("inner", "whole"), WHOLE)
def test_what_np_where_does_not_choose_is_what_it_is_for_tensors(inner, whole):
    """0 comes to it, whatever comes to the result: times an infinite partial that is nan, as in torch."""
    c, cases = INNER[inner], []

    def g(x):
        return f"({inner.replace('x', x)})"

    for turn, (x, result) in enumerate((("x", "weighted({})"), ("x[0]", "({}) * 1.0"))):
        begin = f"c = {c}"
        forms = [[begin, result.format(text(g, x))] for text in WHERE]
        forms.append([begin, f"y = {g(x)}", result.format(f"np.where({x} == c, {x}, y)")])
        forms.append([begin, f"y = np.where({x} == c, c, {x})", result.format(g("y"))])
        forms.append([begin, f"m, y = {x} != c, {g(x)} * {x}", result.format(f"np.where(m, y, {x})")])
        cases += forms if whole else forms[turn::2]
    ways, found = program(cases), []
    order = 3 if whole and inner == "np.sqrt(x)" else 2
    for which, case in enumerate(cases):
        one, other = both(ways, which, [c, 0.5], order)
        found += [
            f"{case}, order {k}: Tensors {a}, compiled {b}"
            for k, (a, b) in enumerate(zip(one, other, strict=True))
            if not alike(a, b)
        ]
    assert not found, "\n".join(found)


def test_what_np_where_does_not_choose_of_complex_numbers():
    ways = program([
        ["z = x + 1j * x", "weighted(np.where(x > 0.0, np.sqrt(z), z).real)"],
        ["z = np.where(x[0] > 0.0, np.sqrt(x[0] * 1j), 2.0)", "z.real + np.where(x[1] > 1.0, 3j, x[1]).real"],
    ])  # fmt: skip
    for which in range(2):
        one, other = both(ways, which, [0.0, 0.5], 2)
        assert np.isnan(one[1][0]) and all(map(alike, one, other)), (which, one, other)


@pytest.mark.parametrize("order", [2, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("inner", INNER)
def test_what_is_not_chosen_has_no_part_in_compiled_code(inner, order):
    """Of Tensors it has, as arrays are what they record: 0 times its partial."""
    c, k = INNER[inner], [*INNER].index(inner)
    choices = CHOICES if order == 3 or k % 3 == 0 else [CHOICES[k % len(CHOICES)]]
    cases = [[f"y = {inner}", f"c = {c}", f"weighted({choice})"] for choice in choices]
    ways = program(cases)
    for which, case in enumerate(cases):
        (_, one, *_), (_, *other) = both(ways, which, [c, 0.5], order)
        assert np.isnan(one[0]) or "power" in inner, case
        assert all(d[0] == 0.0 and np.isfinite(d).all() for d in other), (case, other)
        assert one[1] == pytest.approx(other[0][1], rel=1e-13)


ZEROS = [  # of factors, in another statement than the infinite partial: no choice, but a product
    ["t = x[1] * 0.0", "np.divide(x[0], t)"],
    ["np.sum(x / (x[1] * 0.0))"],
    ["t = -0.0 * x[0]", "u = np.sqrt(np.multiply(0.0, x[1]))", "np.log(t) * x[1] + u"],
    ["y = np.copysign(0.0, x[0])", "np.log(y)"],
    ["np.sum(np.log(np.copysign(0.0, x)))"],
]


def test_a_literal_zero_times_an_infinite_cotangent_is_nan():
    ways = program(ZEROS)
    for which, case in enumerate(ZEROS):
        one, other = both(ways, which, [1.0, 2.0], 2)
        assert np.isnan(one[1]).any() and all(map(alike, one, other)), (case, one, other)


CONSTANTS = [  # with an infinite or nan partial by arrays that are made in the function, and by a number
    "np.sum(x / np.zeros(2) * np.full(2, 3.0))",
    "np.sum(x**2 * np.sqrt(np.zeros(2)) * np.cbrt(np.array([0.0, 1.0])))",
    "np.sum(x * x * np.arctan(np.log(np.zeros_like(x)))) + np.prod(np.zeros(3)) * x[0] ** 3",
    "x[0] ** 3 * np.sqrt(np.zeros(2)[0]) + x[1] ** 3 * np.std(np.ones(3))",
    "np.sum((np.sqrt(np.zeros((2, 2))) @ x) * x) + np.linalg.norm(np.zeros(2)) * x[1] ** 2",
    "np.sum(x * x * np.cumsum(np.zeros(2) ** 0.5)) * np.max(np.sqrt(np.zeros(2)))",
    "np.abs(np.zeros(2)[1:].sum() * 1j) ** 0.5 * x[0] ** 2 + np.sum(x * np.zeros(2) ** (x + 2.0))",
]


def test_a_constant_array_has_no_part_in_a_tangent():
    whole, native = program([[text] for text in CONSTANTS])
    by_array = tg.njit(lambda x, which: native(which, x))
    product, hessian = tg.func.hvp(by_array), tg.func.hessian(by_array)
    point, v = np.array([0.7, -0.4]), np.array([1.0, 0.5])
    for which, text in enumerate(CONSTANTS):
        x = tg.tensor(point, requires_grad=True)
        with np.errstate(all="ignore"):
            (g,) = tg.grad(whole(which, x), x, create_graph=True)
            expected = tg.grad(np.sum(g * v), x)[0].numpy() if g.requires_grad else np.zeros(2)
        for h in (product(point, which, v), hessian(point, which) @ v):
            np.testing.assert_allclose(h, expected, rtol=1e-13, err_msg=text)


def test_a_number_is_a_constant_until_something_with_a_derivative_is_added():
    def program(x):
        s, c = 0.0, np.zeros(1)
        for k in range(x.size):
            s = np.sqrt(s) + np.cbrt(c[0]) + x[k] ** 3
            c[0] = s
        return s

    native, point, v = tg.njit(program), np.array([0.7, 0.4]), np.array([1.0, 0.5])

    def by_hand(x):
        s = x[0] ** 3
        return np.sqrt(s) + np.cbrt(s) + x[1] ** 3

    x = tg.tensor(point, requires_grad=True)
    (g,) = tg.grad(by_hand(x), x, create_graph=True)
    np.testing.assert_allclose(tg.func.hvp(native)(point, v), tg.grad(g @ v, x)[0].numpy(), rtol=1e-13)


def test_a_second_derivative_by_way_of_tangents_where_there_are_several_results():
    def both(a, b):
        return a * b, a / (b + 2.0)

    def product(function):
        return lambda x: np.multiply(*function(x[0], x[1]))

    found, expected = (tg.func.hessian(product(f))(np.array([0.7, 1.3])) for f in (tg.njit(both), both))
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_a_quotient_whose_divisor_has_no_finite_reciprocal():
    """The derivative by the divisor may be a number all the same."""
    ways, slopes = program([["x[0] / x[1]"], ["np.sum(np.divide(x[:1], x[1:]))"]]), (0.0, 1e300, -np.inf)
    for which, (x, slope) in itertools.product(range(2), zip((0.0, -1e-320, 1e-5), slopes, strict=True)):
        for value, (by_x, by_divisor) in both(ways, which, [x, 1e-310], 1):
            assert value == x / 1e-310 and np.isposinf(by_x)
            assert by_divisor == pytest.approx(slope, rel=1e-4)  # to the digits that such numbers have
