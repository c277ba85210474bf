"""tapegrad.kernels.vecmath against mpmath and NumPy. Run with -s for the table of errors."""

import functools
import itertools
import math
import re

import llvmlite.binding
import mpmath
import numba
import numpy as np
import pytest
from numba import types

from tapegrad.kernels import emit
from tapegrad.kernels.vecmath import coefficients, exponential, form, inverse, logarithm, power, trigonometric
from tests.tiers import every

from . import minimax

BINARY = ("arctan2", "hypot", "logaddexp", "logaddexp2", "pow")
UNARY = tuple(sorted(emit.VECTOR - set(BINARY)))
SUMS = ("logaddexp", "logaddexp2")
NAMES = (*UNARY, *BINARY)
DTYPES = (np.float64, np.float32)
SMALLEST_NORMAL = 2.2250738585072014e-308
SPECIAL = [
    0.0, 5e-324, 1e-310, SMALLEST_NORMAL, 1e-300, 1e-45, 1e-40, 1.2e-38, 1e-20, 0.1, 0.5, 0.9999999, 1.0,
    1.0000001, 1.5, 2.0, 3.0, 4.5, 10.0, 88.0, 89.0, 104.0, 127.5, 128.0, 149.0, 150.0, 151.0, 700.0, 708.0,
    709.7, 709.79, 710.4, 710.5, 711.0, 745.2, 746.0, 1023.5, 1024.0, 1074.0, 1075.0, 1076.0, 1e5, 1e10, 1e19,
    3e38, 1e154, 1e200, 1e308, 1.797e308, 4503599627370497.0, 9007199254740992.0, math.inf, math.nan,
]  # fmt: skip


@functools.cache
def loop_of(name, dtype):
    """A compiled loop over the operands, the results and whether they count."""
    real = types.float64 if dtype is np.float64 else types.float32
    function = form(name, real)
    accepts = form(f"{name}_ok", real) if name in emit.LIBM else numba.njit(lambda x: True)

    def unary(x, out, ok):
        for i in range(x.size):
            out[i] = function(x[i])
        for i in range(x.size):
            ok[i] = accepts(x[i])

    def binary(x, y, out, ok):
        for i in range(x.size):
            out[i] = function(x[i], y[i])
        ok[:] = True

    return numba.njit(error_model="numpy")(binary if name in BINARY else unary)


def evaluate(name, *arguments):
    out, ok = np.empty_like(arguments[0]), np.empty(arguments[0].size, np.bool_)
    loop_of(name, arguments[0].dtype.type)(*arguments, out, ok)
    return out, ok


MPMATH = {
    "arcsin": "asin", "arccos": "acos", "arctan": "atan", "arcsinh": "asinh", "arccosh": "acosh",
    "arctanh": "atanh", "arctan2": "atan2", "pow": "power",
}  # fmt: skip
EXACT = {
    "exp2": lambda x: mpmath.power(2, x),
    "log2": lambda x: mpmath.log(x, 2),
    "cbrt": lambda x: mpmath.sign(x) * mpmath.cbrt(abs(x)),
    "logaddexp": lambda x, y: max(x, y) + mpmath.log1p(mpmath.exp(-abs(x - y))),
    "logaddexp2": lambda x, y: max(x, y) + mpmath.log1p(mpmath.power(2, -abs(x - y))) / mpmath.log(2),
}


def exact(name, *arguments):
    """The nearest double to the exact value, and what it lacks, in units in the last place of that double."""
    function = EXACT.get(name) or getattr(mpmath, MPMATH.get(name, name))
    high, lack = [], []
    with mpmath.workprec(160):
        for point in zip(*arguments, strict=True):
            value = function(*map(mpmath.mpf, map(float, point)))
            high.append(float(value))
            lack.append(0.0 if math.isinf(high[-1]) else float((value - high[-1]) / math.ulp(high[-1])))
    return np.array(high), np.array(lack)


def ulps(name, out, *arguments):
    """The errors of float64 results in units in the last place of the exact value.

    Of SUMS, whose terms may cancel, in those of the larger operand where that is larger.
    """
    high, lack = exact(name, *arguments)
    magnitude = np.abs(high)
    below = np.nextafter(magnitude, 0.0)  # for exact values just below a power of 2
    with np.errstate(invalid="ignore"):
        ulp = np.spacing(np.where(lack * np.sign(high) < 0.0, below, magnitude))
        if name in SUMS:
            ulp = np.maximum(ulp, np.spacing(np.abs(np.maximum(*arguments))))
        errors = np.abs((out - high) / ulp - lack * (np.spacing(magnitude) / ulp))
    return np.where(np.isinf(out) & (out == high), 0.0, errors)


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
    closest = np.array([x for _, x in sorted(found)[:200]])
    every = np.array([x for _, x in found[:200]])
    x = np.concatenate([closest, np.nextafter(closest, 0.0), every, np.nextafter(every, 9e9)])
    return np.concatenate([x, -x])


def domains(name, count, random):
    """(label, arguments) for the domains on which the errors are measured, in float64."""

    def uniform(a, b):
        return f"[{a:g}, {b:g}]", (random.uniform(a, b, count),)

    def powers(a, b, signed=True):
        x = 10.0 ** random.uniform(a, b, count)
        prefix = "+-" if signed else ""
        return f"{prefix}1e{a:g}..1e{b:g}", (x * random.choice([-1, 1], count) if signed else x,)

    def near(point, sides=(-1, 1)):
        offset = random.choice(sides, count) * 10.0 ** random.uniform(-16, -1, count)
        return f"near {point:g}", (point + offset,)

    def pair(label, x, y):
        return label, (x, y)

    small = [powers(-323, -20), powers(-20, -3), powers(-3, -1)]
    if name in ("exp", "exp2", "expm1", "sinh", "cosh", "tanh"):
        far = {"exp": [(-745.1, -708), (-708, 709.7)], "exp2": [(-1074.9, -1022), (-1022, 1023.9)],
               "expm1": [(-45, 45), (-708, 709.7)], "tanh": [(0.75, 0.85), (0.8, 2), (-22, 22)],
               "sinh": [(1, 1.25), (1.2, 3), (-710.4, 710.4)], "cosh": [(1, 3), (-710.4, 710.4)]}  # fmt: skip
        return [*small, uniform(-0.36, 0.36), uniform(-1.1, 1.1), uniform(-10, 10),
                *(uniform(a, b) for a, b in far[name])]  # fmt: skip
    if name in ("log", "log2", "log10"):
        return [powers(-323, 308.2, signed=False), near(1.0), uniform(0.5, 0.71), uniform(0.7, 1.42),
                uniform(1.4, 2.1), uniform(1, 10), uniform(10, 1000)]  # fmt: skip
    if name == "log1p":
        return [*small, near(-1.0, (1,)), uniform(-1, 0), uniform(-0.3, -0.28), uniform(-0.3, 0.42),
                uniform(0.41, 1.1), uniform(1, 10), powers(1, 308.2, signed=False)]  # fmt: skip
    if name in ("sin", "cos", "tan"):
        return [*small, uniform(-0.79, 0.79), uniform(0.78, 0.9), uniform(-4, 4), uniform(-100, 100),
                uniform(-1e5, 1e5), ("near n pi/2", (near_half_pi_multiples(),))]  # fmt: skip
    if name in ("arcsin", "arccos", "arctanh"):
        return [*small, uniform(-0.1, 0.3), uniform(0.19, 0.21), uniform(0.3, 0.45), uniform(0.45, 0.55),
                uniform(0.5, 1), uniform(-1, 1), near(1.0, (-1,)), near(-1.0, (1,))]  # fmt: skip
    if name == "arccosh":
        return [near(1.0, (1,)), uniform(1, 1.5), uniform(1.5, 4), uniform(1, 30), powers(1, 308.2, False)]
    if name in ("arctan", "arcsinh", "cbrt"):
        return [*small, uniform(-0.45, 0.45), uniform(0.4, 0.6), uniform(0.5, 2), uniform(-4, 4),
                uniform(-100, 100), powers(1, 308.2)]  # fmt: skip
    a, b = ((10.0 ** random.uniform(-322, 307.5, count)) * random.choice([-1, 1], count) for _ in range(2))
    close = 1.0 + random.choice([-1, 1], count) * 10.0 ** random.uniform(-9, -1, count)
    if name == "pow":
        positive = random.uniform(0.01, 10, count)
        return [
            pair("x wide, |y| < 1", np.abs(a), random.uniform(-1, 1, count)),
            pair("x near 1, y large", close, random.uniform(-740, 709, count) / np.log(close)),
            pair("[0.5, 2], |y| < 1000", random.uniform(0.5, 2, count), random.uniform(-1000, 1000, count)),
            pair("[0.01, 10], |y| < 3", positive, random.uniform(-3, 3, count)),
            pair("subnormal", positive, random.uniform(-744, -709, count) / np.log(positive)),
            pair("integer y", random.uniform(-30, 30, count), random.integers(-99, 100, count).astype(float)),
        ]
    if name in SUMS:
        larger = random.choice([-1, 1], count) * 10.0 ** random.uniform(-20, 1, count)
        log2 = 1.0 if name == "logaddexp2" else math.log(2)
        share = random.uniform(0, 0.9, count)  # two of them add up to 1, but for a small part
        parts = [np.log2(p) * log2 for p in (share, 1 - share * (1 + 10.0 ** random.uniform(-9, -1, count)))]
        return [
            pair("any", a, b),
            pair("[-10, 10]", random.uniform(-10, 10, count), random.uniform(-10, 10, count)),
            pair("one near 0", larger, random.uniform(-60, 0, count)),
            pair("both far, alike", a, a + random.uniform(-40, 40, count)),
            pair("one subnormal", larger * 1e-300, random.uniform(-1076, -690, count)),
            pair("equal", a, a),
            pair("result near 0", *parts),
        ]
    return [
        pair("any", a, b),
        pair("alike", a, a * random.uniform(0.1, 3, count)),
        pair("[-1, 1]", random.uniform(-1, 1, count), random.uniform(-1, 1, count)),
        pair("one small", random.uniform(-1, 1, count), b * 1e-20),
        pair("tiny", a, a[::-1] * 0 + 10.0 ** random.uniform(-323, -300, count)),
        pair("near tan(pi/8)", random.uniform(0.9, 1.1, count), random.uniform(0.35, 0.45, count)),
    ]


def check_errors(name, count, seed):
    random = np.random.default_rng([seed, NAMES.index(name)])
    for label, arguments in domains(name, count, random):
        out, ok = evaluate(name, *arguments)
        assert ok.all(), label
        errors = ulps(name, out, *arguments)
        worst, p99 = errors.max(), np.quantile(errors, 0.99)
        print(f"{name:8} {label:22} {errors.size:6} points  max {worst:.3f}  p99 {p99:.3f}")
        assert worst <= 2.0, (label, [a[errors.argmax()] for a in arguments])
        assert p99 <= 1.0, label


@pytest.mark.parametrize("name", every(NAMES, 4))
def test_errors_in_double_precision(name):
    check_errors(name, 400, 0)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_errors_in_double_precision_on_many_points(name):
    check_errors(name, 20_000, 1)


def numpy_of(name):
    return np.power if name == "pow" else getattr(np, name)


def single_operands(name, step):
    """Every step-th single-precision number by its bits, in portions; for two operands, pairs of them."""
    random = np.random.default_rng(step)
    for part in np.array_split(np.arange(0, 1 << 32, step, dtype=np.int64), max(1, (1 << 32) // step >> 21)):
        x = part.astype(np.uint32).view(np.float32)
        yield (x,)
        if name in BINARY:
            yield x, random.permutation(x)
            tame = (np.abs(x) > 0.01) & (np.abs(x) < 10)
            yield np.abs(x[tame]), random.uniform(-40, 40, tame.sum()).astype(np.float32)


def check_single(name, step):
    """Against NumPy in double precision, whose errors do not count here."""
    worst, points = 0.0, 0
    for arguments in single_operands(name, step):
        if len(arguments) != 1 + (name in BINARY):
            continue
        out, ok = evaluate(name, *arguments)
        with np.errstate(all="ignore"):
            wanted = numpy_of(name)(*(a.astype(np.float64) for a in arguments))
            rounded = wanted.astype(np.float32)
        assert np.array_equal(np.isnan(out[ok]), np.isnan(rounded[ok]))
        assert np.array_equal(np.isinf(out[ok]), np.isinf(rounded[ok]))
        assert np.array_equal(np.signbit(out[ok & ~np.isnan(out)]), np.signbit(rounded[ok & ~np.isnan(out)]))
        finite = ok & np.isfinite(rounded)
        errors = np.abs(out[finite] - wanted[finite]) / np.spacing(np.abs(rounded[finite])).astype(np.float64)
        worst, points = max(worst, errors.max(initial=0.0)), points + errors.size
        # below a power of two the unit is half of what `spacing` says of the rounded value
        assert worst <= 0.51, [a[finite][errors.argmax()] for a in arguments]
    print(f"{name:8} float32 {points:10} points  max {worst:.4f}")
    assert points > 1000


@pytest.mark.parametrize("name", every(NAMES, 4))
def test_errors_in_single_precision(name):
    check_single(name, 4999)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_errors_in_single_precision_on_many_points(name):
    check_single(name, 61)


@pytest.mark.parametrize("name", every(NAMES, 4))
def test_single_precision_against_mpmath(name):
    random = np.random.default_rng(5)
    tame = random.uniform(-0.99, 0.99, 120) + (2 if name == "arccosh" else 0)
    arguments = [np.float32(np.abs(tame) if name.startswith(("log", "pow")) else tame)]
    if name in BINARY:
        arguments.append(np.float32(random.uniform(-20, 20, 120)))
    high, _ = exact(name, *arguments)
    out, _ = evaluate(name, *arguments)
    assert (np.abs(out - high) / np.spacing(np.abs(np.float32(high)))).max() <= 0.51


@pytest.mark.parametrize(("name", "dtype"), every(itertools.product(NAMES, DTYPES), 3))
def test_special_values_are_numpy_s(name, dtype):
    with np.errstate(all="ignore"):
        one = np.array(SPECIAL, dtype)
        one = np.concatenate([one, -one])
        arguments = (one,)
        if name in BINARY:
            arguments = tuple(np.ascontiguousarray(a.ravel()) for a in np.meshgrid(one, one))
        wanted = numpy_of(name)(*arguments)
        if name in SUMS:  # of 0 and -150 NumPy's in single precision is 0
            wanted = numpy_of(name)(*(a.astype(float) for a in arguments)).astype(dtype)
    out, ok = evaluate(name, *arguments)
    for choose in (np.isnan, np.isinf, lambda v: v == 0, lambda v: np.signbit(v) & ~np.isnan(v)):
        wrong = ok & (choose(out) != choose(wanted))
        assert not wrong.any(), [a[wrong][:5] for a in (*arguments, out, wanted)]
    finite = ok & np.isfinite(wanted)
    known = np.finfo(dtype)
    atol = known.eps if name in SUMS else known.smallest_subnormal  # NumPy's own sums are no better
    np.testing.assert_allclose(out[finite], wanted[finite], rtol=4 * known.eps, atol=float(atol))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", sorted(emit.LIBM))
def test_arguments_that_are_left_to_libm(name, dtype):
    _, ok = evaluate(name, np.array([1e5, -1e5, math.nan, 1.1e5, -1e30, math.inf, -math.inf], dtype))
    assert ok.tolist() == [True, True, True, False, False, False, False]


ODD = ("expm1", "log1p", "sin", "tan", "arcsin", "arctan", "sinh", "tanh", "arcsinh", "arctanh")


@pytest.mark.parametrize("name", ODD)
def test_tiny_arguments_are_returned(name):
    x = np.array([0.0, 5e-324, 1e-310, SMALLEST_NORMAL, 1e-200, 1e-30])
    x = np.concatenate([x, -x])
    out, ok = evaluate(name, x)
    assert ok.all()
    assert out.tolist() == x.tolist()
    assert np.signbit(out).tolist() == np.signbit(x).tolist()


def test_exact_results():
    """A result that is a double comes out exactly."""
    x = np.array([10.0] * 23 + [float(i) for i in range(1, 200)])
    y = np.array([float(i) for i in range(23)] + [1.0 + i % 6 for i in range(1, 200)])
    out, _ = evaluate("pow", x, y)
    assert out.tolist() == [float(int(a) ** int(b)) for a, b in zip(x, y, strict=True)]
    out, _ = evaluate("pow", -x, y)
    assert out.tolist() == [float((-int(a)) ** int(b)) for a, b in zip(x, y, strict=True)]
    x = np.random.default_rng(3).uniform(-1e3, 1e3, 5000)
    assert evaluate("pow", x, np.ones_like(x))[0].tolist() == x.tolist()
    assert evaluate("pow", x, np.zeros_like(x))[0].tolist() == [1.0] * x.size
    root = np.arange(1.0, 3000.0)
    assert evaluate("pow", root * root, np.full_like(root, 0.5))[0].tolist() == root.tolist()
    assert evaluate("cbrt", root**3)[0].tolist() == root.tolist()
    assert evaluate("hypot", 3 * root, -4 * root)[0].tolist() == (5 * root).tolist()
    powers = np.arange(-1074.0, 1024.0)
    assert evaluate("exp2", powers)[0].tolist() == [2.0**p for p in powers]
    assert evaluate("log2", evaluate("exp2", powers)[0])[0].tolist() == powers.tolist()
    tens = np.arange(0.0, 23.0)
    assert evaluate("log10", 10.0**tens)[0].tolist() == tens.tolist()
    assert evaluate("logaddexp2", root, root)[0].tolist() == (root + 1).tolist()
    for name in ("exp", "cos", "cosh"):
        assert evaluate(name, np.array([0.0, -0.0]))[0].tolist() == [1.0, 1.0]


@pytest.mark.parametrize(("name", "dtype"), every(itertools.product(NAMES, DTYPES), 5))
def test_a_loop_is_vectorised(name, dtype):
    if not llvmlite.binding.get_host_cpu_features().get("avx2"):
        pytest.skip("needs AVX2")
    evaluate(name, *([np.ones(1, dtype)] * (1 + (name in BINARY))))
    (assembly,) = loop_of(name, dtype).inspect_asm().values()
    packed = re.findall(r"\tv(?:mul|add|sub|fn?m\w+|sqrt)pd\t[^\n]*%[yz]mm", assembly)
    assert len(packed) > (1 if name == "hypot" else 5)
    libm = "|".join((*NAMES, *MPMATH.values(), "atan2", "fma", "rint", "sqrt", "ldexp"))
    assert not re.findall(rf"(?:call|\$)\w*\s*({libm})f?\b", assembly)


def test_the_names_that_rules_may_use_have_forms():
    for name in emit.VECTOR:
        for real in (types.float64, types.float32):
            assert form(name, real) is form(name, real)
    assert {name for name in emit.VECTOR if hasattr(trigonometric, f"{name}_ok")} == emit.LIBM


@pytest.mark.parametrize("name", every(minimax.FITS, 4))
def test_polynomials(name):
    """Within what the results need."""
    bits = 17 if name == "CBRT" else 31 if name.endswith("SINGLE") else 55
    assert minimax.error(minimax.FITS[name], getattr(coefficients, name)) < 2.0**-bits


def test_the_quotient_of_tanh():
    assert minimax.tanh_error(coefficients.TANH_P, coefficients.TANH_Q) < 2.0**-56


@pytest.mark.slow
def test_the_file_of_coefficients_is_what_its_program_writes():
    assert minimax.TARGET.read_text("utf-8") == minimax.text()


def test_constants_in_parts():
    """The sum of the parts has more digits than a double; all but the last are as short as they must be."""
    with mpmath.workprec(200):
        pi, ln2, ln10 = +mpmath.pi, mpmath.log(2), mpmath.log(10)
        for exact_value, parts, bits, digits in [
            (ln2, (exponential.LN2_HI, exponential.LN2_LO), 42, 94),
            (1 / ln2, (logarithm.LOG2_E_HI, logarithm.LOG2_E_LO), 25, 77),
            (1 / ln10, (logarithm.LOG10_E_HI, logarithm.LOG10_E_LO), 25, 77),
            (ln2 / ln10, (logarithm.LOG10_2_HI, logarithm.LOG10_2_LO), 42, 94),
            (pi / 2, (trigonometric.HALF_PI_1, trigonometric.HALF_PI_2, trigonometric.HALF_PI_3), 37, 127),
            (pi / 2, (inverse.HALF_PI, inverse.HALF_PI_LOW), 53, 105),
            (mpmath.mpf(1) / 12, (power.TWELFTH_HI, power.TWELFTH_LO), 53, 105),
        ]:  # fmt: skip
            assert abs(sum(map(mpmath.mpf, parts)) / exact_value - 1) < mpmath.mpf(2) ** -digits
            for part in parts[:-1]:
                assert float(math.frexp(part)[0] * 2**bits).is_integer()
