"""tapegrad.kernels.vecmath against mpmath.  Run with -s for the table of errors."""

import ast
import inspect
import math
import re

import llvmlite.binding
import mpmath
import numba
import numpy as np
import pytest

from tapegrad.kernels import vecmath

UNARY = ("exp", "expm1", "log", "log1p", "sin", "cos", "tan", "sinh", "cosh", "tanh")
NAMES = (*UNARY, "pow")
SMALLEST = 5e-324
SMALLEST_NORMAL = 2.2250738585072014e-308
COUNT = 4000  # points in each domain

compiled = {}


def loop_of(name):
    """A compiled loop over (x, out, ok), for pow (x, y, out, ok)."""
    if name not in compiled:
        function, predicate = getattr(vecmath, name), getattr(vecmath, name + "_ok")

        def unary(x, out, ok):
            for i in range(x.size):
                out[i] = function(x[i])
                ok[i] = predicate(x[i])

        def binary(x, y, out, ok):
            for i in range(x.size):
                out[i] = function(x[i], y[i])
                ok[i] = predicate(x[i], y[i])

        compiled[name] = numba.njit(binary if name == "pow" else unary)
    return compiled[name]


def evaluate(name, *arguments):
    arguments = [np.array(a, dtype=np.float64, ndmin=1) for a in arguments]
    out = np.empty(arguments[0].size)
    ok = np.empty(arguments[0].size, dtype=np.bool_)
    loop_of(name)(*arguments, out, ok)
    return out, ok


def exact(name, *arguments):
    """The exact value as an unevaluated sum of two float64 arrays."""
    function = {"pow": mpmath.power}.get(name) or getattr(mpmath, name)
    high, low = [], []
    with mpmath.workprec(140):
        for point in zip(*arguments, strict=True):
            value = function(*map(mpmath.mpf, map(float, point)))
            high.append(float(value))
            low.append(float(value - high[-1]))
    return np.array(high), np.array(low)


def ulps(name, out, *arguments):
    """The errors of out in units in the last place of the exact value."""
    high, low = exact(name, *arguments)
    magnitude = np.abs(high)
    below = np.nextafter(magnitude, 0.0)  # for exact values just below a power of 2
    ulp = np.spacing(np.where(low * np.sign(high) < 0.0, below, magnitude))
    return np.abs((out - high) - low) / ulp


def near_half_pi_multiples():
    """The doubles up to 1e5 that are closest to multiples of pi/2, and their neighbours."""
    with mpmath.workprec(300):
        half_pi = int(mpmath.floor(mpmath.pi * mpmath.mpf(2) ** 199))
    found = []
    for n in range(1, 63662):
        multiple = n * half_pi
        x = multiple / (1 << 200)
        numerator, denominator = x.as_integer_ratio()
        found.append((abs(multiple - numerator * ((1 << 200) // denominator)), x))
    closest = np.array([x for _, x in sorted(found)[:500]])
    every = np.array([x for _, x in found[:500]])
    x = np.concatenate([closest, np.nextafter(closest, 0.0), every, np.nextafter(every, 9e9)])
    return np.concatenate([x, -x])


def domains(name):
    """(label, arguments) for the domains on which the errors are measured."""
    rng = np.random.default_rng(NAMES.index(name))

    def uniform(a, b):
        return f"[{a:g}, {b:g}]", (rng.uniform(a, b, COUNT),)

    def log_spaced(a, b, sign=True):
        x = 10.0 ** rng.uniform(a, b, COUNT)
        prefix = "+-" if sign else ""
        return f"{prefix}1e{a:g}..1e{b:g}", (x * rng.choice([-1, 1], COUNT) if sign else x,)

    def near(point):
        offset = rng.choice([-1, 1], COUNT) * 10.0 ** rng.uniform(-16, -1, COUNT)
        return f"near {point:g}", (point + offset,)

    everywhere = [log_spaced(-308, -20), log_spaced(-20, -3), log_spaced(-3, -1)]
    if name == "exp":
        return [
            log_spaced(-20, -1),
            uniform(-0.36, 0.36),
            uniform(-1, 1),
            uniform(-10, 10),
            uniform(-708, 708),
        ]
    if name == "expm1":
        return [
            *everywhere,
            uniform(-0.5, 0.5),
            uniform(-1.1, -0.3),
            uniform(0.3, 1.1),
            uniform(-45, 45),
            uniform(-708, 708),
        ]
    if name == "log":
        return [
            log_spaced(-307.6, 308.2, sign=False),
            near(1.0),
            uniform(0.5, 0.71),
            uniform(0.7, 1.42),
            uniform(1.4, 2.1),
            uniform(1, 10),
            uniform(10, 100),
        ]
    if name == "log1p":
        return [
            *everywhere,
            ("near -1", (-1.0 + 10.0 ** rng.uniform(-15.9, 0, COUNT),)),
            uniform(-0.3, -0.28),
            uniform(-0.3, 0.42),
            uniform(0.41, 1.1),
            uniform(1, 10),
            log_spaced(1, 307.9, sign=False),
        ]
    if name in ("sin", "cos", "tan"):
        return [
            *everywhere,
            uniform(-0.79, 0.79),
            uniform(0.78, 0.9),
            uniform(-4, 4),
            uniform(-100, 100),
            uniform(-1e5, 1e5),
            ("near n pi/2", (near_half_pi_multiples(),)),
        ]
    if name == "sinh":
        return [
            *everywhere,
            uniform(-1, 1),
            uniform(1, 1.25),
            uniform(1.2, 3),
            uniform(-22, 22),
            uniform(-708, 708),
        ]
    if name == "cosh":
        return [*everywhere, uniform(-1, 1), uniform(1, 3), uniform(-22, 22), uniform(-708, 708)]
    if name == "tanh":
        return [
            *everywhere,
            uniform(-0.8, 0.8),
            uniform(0.5, 0.8),
            uniform(0.8, 0.9),
            uniform(0.9, 2),
            uniform(-22, 22),
        ]
    wide = 10.0 ** rng.uniform(-307, 308, COUNT)
    close = 1.0 + rng.choice([-1, 1], COUNT) * 10.0 ** rng.uniform(-9, -1, COUNT)
    around = rng.uniform(0.5, 2, COUNT)
    binade = rng.uniform(1.0, 1.5, COUNT)
    return [
        ("x wide, |y| < 1", (wide, rng.uniform(-1, 1, COUNT) * 300 / 308)),
        ("x near 1, y large", (close, rng.uniform(-500, 500, COUNT) / np.log(close))),
        ("[0.5, 2], |y| < 1000", (around, rng.uniform(-1000, 1000, COUNT))),
        ("[1, 1.5], border", (binade, rng.uniform(600, 707, COUNT) / np.log(binade))),
        ("[0.01, 10], |y| < 3", (rng.uniform(0.01, 10, COUNT), rng.uniform(-3, 3, COUNT))),
        ("[0, 1e3], integer y", (rng.uniform(0, 1e3, COUNT), rng.integers(-99, 100, COUNT))),
    ]


@pytest.mark.parametrize("name", NAMES)
def test_error_in_ulps(name):
    for label, arguments in domains(name):
        out, ok = evaluate(name, *arguments)
        # pow refuses some results near the limits of the range
        assert ok.mean() > (0.8 if name == "pow" else 0.99), label
        errors = ulps(name, out[ok], *(a[ok] for a in arguments))
        worst, p99 = errors.max(), np.quantile(errors, 0.99)
        print(f"{name:6} {label:22} {errors.size:5} points  max {worst:.3f}  p99 {p99:.3f}")
        assert worst <= 2.0, (label, [a[ok][errors.argmax()] for a in arguments])
        assert p99 <= 1.0, label


@pytest.mark.parametrize("name", NAMES)
def test_accepted_arguments_are_right_for_random_bits(name):
    """What the predicate accepts is right, whatever the bits; no result is a trap."""
    rng = np.random.default_rng(7)
    bits = rng.integers(-(2**63), 2**63 - 1, (2, 4000), dtype=np.int64)
    x, y = bits.view(np.float64)
    special = [0.0, SMALLEST, SMALLEST_NORMAL, 1.0, 2.0, 708.0, 709.0, 746.5, 1e5, 1e308, 1.79e308]
    special = np.array(special + [-s for s in special] + [math.inf, -math.inf, math.nan])
    x = np.concatenate([x, special, 10.0 ** rng.uniform(-3, 5, 500)])
    arguments = (x, rng.permutation(np.resize(np.append(special, y[:50]), x.size)))
    arguments = arguments if name == "pow" else arguments[:1]
    out, ok = evaluate(name, *arguments)
    finite = ok & np.isfinite(x)
    assert ok.sum() > 100
    errors = ulps(name, out[finite], *(a[finite] for a in arguments))
    assert errors.max() <= 2.0, [a[finite][errors.argmax()] for a in arguments]


REFUSED = {
    "exp": [math.nan, math.inf, 709.0, -709.0, -740.0, -745.0, 1e300],
    "expm1": [math.nan, math.inf, 709.0, 1e300],
    "log": [math.nan, math.inf, -math.inf, 0.0, -0.0, SMALLEST, 2.2e-308, -1.0],
    "log1p": [math.nan, math.inf, -math.inf, -1.0, -2.0, 1.7e308],
    "sin": [math.nan, math.inf, -math.inf, 1.1e5, -1e300],
    "cos": [math.nan, math.inf, -math.inf, 1.1e5, -1e300],
    "tan": [math.nan, math.inf, -math.inf, 1.1e5, -1e300],
    "sinh": [math.nan, math.inf, -math.inf, 710.0, -710.0],
    "cosh": [math.nan, math.inf, -math.inf, 710.0, -710.0],
    "tanh": [math.nan],
}


@pytest.mark.parametrize("name", UNARY)
def test_refused_arguments(name):
    _, ok = evaluate(name, REFUSED[name])
    assert not ok.any()


def test_refused_arguments_of_pow():
    nan, inf = math.nan, math.inf
    x = [nan, 2.0, nan, inf, 2.0, 2.0, 0.0, -0.0, -2.0, SMALLEST, 2.0, 2.0, 0.5, 1e300, inf, 1.0]
    y = [1.0, nan, 0.0, 1.0, inf, -inf, 2.0, 2.0, 2.0, 1.0, 1024.0, -1030.0, 2e3, 2.0, 0.0, inf]
    _, ok = evaluate("pow", x, y)
    assert not ok.any()


def test_limits_that_are_accepted():
    assert evaluate("exp", [-math.inf, -1e300, -746.5])[0].tolist() == [0.0, 0.0, 0.0]
    assert evaluate("expm1", [-math.inf, -1e300, -746.5])[0].tolist() == [-1.0, -1.0, -1.0]
    assert evaluate("tanh", [math.inf, -math.inf, 1e300])[0].tolist() == [1.0, -1.0, 1.0]
    assert evaluate("exp", [-math.inf, -1e300, -746.5])[1].all()
    assert evaluate("expm1", [-math.inf, -1e300, -746.5])[1].all()
    assert evaluate("tanh", [math.inf, -math.inf, 1e300])[1].all()


@pytest.mark.parametrize("name", ("expm1", "log1p", "sin", "tan", "sinh", "tanh"))
def test_zero_keeps_its_sign_and_tiny_arguments_are_returned(name):
    x = np.array([0.0, -0.0, SMALLEST, -SMALLEST, 1e-310, -1e-310, SMALLEST_NORMAL, 1e-200, -1e-30])
    out, ok = evaluate(name, x)
    assert ok.all()
    assert out.tolist() == x.tolist()
    assert np.signbit(out).tolist() == np.signbit(x).tolist()


def test_value_at_zero():
    for name in ("exp", "cos", "cosh"):
        out, ok = evaluate(name, [0.0, -0.0])
        assert ok.all() and out.tolist() == [1.0, 1.0]
    out, ok = evaluate("log", [1.0])
    assert ok.all() and out[0] == 0.0 and not np.signbit(out[0])


def test_exact_powers():
    """A power that is a double comes out exactly."""
    x = [10.0] * 23 + [float(i) for i in range(1, 200)]
    y = [float(i) for i in range(23)] + [1.0 + i % 6 for i in range(1, 200)]
    out, ok = evaluate("pow", x, y)
    assert ok.all()
    assert out.tolist() == [float(int(a) ** int(b)) for a, b in zip(x, y, strict=True)]
    x = np.random.default_rng(3).uniform(1e-3, 1e3, 5000)
    assert evaluate("pow", x, np.ones_like(x))[0].tolist() == x.tolist()
    assert evaluate("pow", x, np.zeros_like(x))[0].tolist() == [1.0] * x.size
    root = np.arange(1.0, 3000.0)
    assert evaluate("pow", root * root, np.full_like(root, 0.5))[0].tolist() == root.tolist()


@pytest.mark.parametrize("name", NAMES)
def test_a_loop_is_vectorised(name):
    if not llvmlite.binding.get_host_cpu_features().get("avx2"):
        pytest.skip("needs AVX2")
    evaluate(name, *([1.0] * (1 + (name == "pow"))))
    (assembly,) = loop_of(name).inspect_asm().values()
    packed = re.findall(r"\tv(?:mul|add|sub|fn?m\w+)pd\t[^\n]*%[yz]mm", assembly)
    assert len(packed) > 10


def test_the_text_can_be_pasted():
    """Every statement is an import, a constant or a decorated function."""
    tree = ast.parse(inspect.getsource(vecmath))
    for node in tree.body[1:]:
        if isinstance(node, ast.FunctionDef):
            assert node.decorator_list, node.name
        elif isinstance(node, ast.Assign):
            eval(compile(ast.Expression(node.value), "constant", "eval"), {"__builtins__": {}})
        else:
            assert isinstance(node, (ast.Import, ast.ImportFrom))
