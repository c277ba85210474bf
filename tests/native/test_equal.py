"""What Tensors and compiled code both have: equal at ties, kinks, zeros; to order 3 in the slow tier."""

import functools
import itertools
import math
import operator
import warnings

import numba
import numpy as np
import pytest
from numba.core.registry import cpu_target

import tapegrad as tg
from tapegrad.core.functions import FUNCTIONS, PLAIN, UFUNCS
from tapegrad.native import twin  # noqa: F401  (they add to the tables)
from tapegrad.native.arrays import arrays  # noqa: F401  (they add to the tables)
from tapegrad.native.emission.algebra import CLIP, OPS
from tapegrad.native.emission.algebra import row as row_of
from tapegrad.native.library import functions
from tapegrad.native.numbers import operators  # noqa: F401  (they add to the tables)
from tapegrad.native.numbers.complexes import OF_COMPLEX

ONE = [[0.0], [-0.0], [1.0], [-1.0], [0.5]]
INFINITE = [[np.inf], [-np.inf]]
ENDS_OF_UNIT = [[0.0], [0.5], [1.0], [-1.0]]
POSITIVE = [[0.0], [0.5], [1.0]]
PAIRS = [[1.0, 1.0], [0.0, 0.0], [-0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 2.0], [-1.0, 1.0], [2.0, -1.0]]
NO_ZEROS = [[1.0, 1.0], [0.0, 1.0], [-0.0, 1.0], [2.0, -1.0], [4.0, 2.0]]  # where Python does not raise
VECTORS = [[0.0], [2.0], [0.0, 0.0], [1.0, 1.0], [2.0, 2.0, 1.0], [0.0, 0.0, 0.0], [2.0, 2.0, 2.0],
           [-1.0, 1.0, -1.0], [0.0, 2.0, 2.0, 0.0], [0.0, 3.0, 1.0], [0.3, -0.7, 0.9]]  # fmt: skip
REGULAR = [[1.0, 0.0, 0.0, 1.0], [1.0, 1.0, 0.0, 1.0], [0.0, 1.0, -1.0, 0.0], [2.0, 0.5, 0.5, 1.0]]
SINGULAR = [[0.0] * 4, [1.0] * 4, [1.0, 2.0, 2.0, 4.0], [1.0, -1.0, 1.0, -1.0], [1.0, 0.0, 0.0, 0.0]]
MATRICES = [*REGULAR, *SINGULAR]
ENDS = [[0.0, 1.0], [0.0], [1.0], [0.5, 0.0, 1.0], [2.0, -1.0], [1.0, 1.0]]
KNOTS = [[0.0], [1.0], [2.0], [0.5], [-1.0], [3.0], [0.0, 1.0, 2.0]]
M, PLACES = "x.reshape((2, 2))", "np.array([0.0, 1.0, 2.0]), np.array([1.0, 3.0, 0.0])"

TABLE = []  # function, expression of x, points, highest order that is compared
LONG = []  # the same, of what takes seconds to be compiled


def row(function, text, points, order=3, table=TABLE):
    table.append((function, text, points, order))


OF_NUMPY = sorted((f for f in OPS if getattr(np, f.__name__, None) is f), key=lambda f: f.__name__)
for _f in (*(f for f in OF_NUMPY if row_of(OPS[f]).arity == 1), np.positive):
    _inside = {"arccosh": [[1.0], [2.0]], **dict.fromkeys(("arcsin", "arccos", "arctanh"), ENDS_OF_UNIT),
               "sqrt": POSITIVE, "log": POSITIVE, "log2": POSITIVE, "log10": POSITIVE,
               "log1p": [[0.0], [-1.0]], "cbrt": POSITIVE}.get(_f.__name__, ONE)  # fmt: skip
    row(_f, f"np.{_f.__name__}(x)", _inside)
    row(_f, f"np.{_f.__name__}(x[0])", _inside)
for _f in (f for f in OF_NUMPY if row_of(OPS[f]).arity == 2):
    for _args in ("x[0], x[1]", "x[:1], x[1:]"):
        # 0**y has no mixed derivative with y times or more by the base: which is taken first decides
        _no = {0.0: 1, 1.0: 1, 2.0: 2} if _f is np.power else {}
        for _p in PAIRS:
            row(_f, f"np.{_f.__name__}({_args})", [_p], _no.get(_p[1], 3) if _p[0] == 0.0 else 3)
row(np.multiply, "np.multiply(x[0], x[1])", [[np.inf, 1.0], [np.inf, np.inf]])
# beside constants, whose partials may be infinite
FIXED = "np.array([0.0, -1.0])"
BESIDE = [[1.0, 1.0], [0.0, 0.0], [-0.0, -1.0], [2.0, 1.0]]
TURNS = set()  # what the slow tier compares: of one function numbers, of the next arrays
for _k, _f in enumerate(f for f in OF_NUMPY if row_of(OPS[f]).arity == 2):
    for _j, _args in enumerate(("x[0], 0.0", "0.0, x[0]", f"x, {FIXED}", f"{FIXED}, x")):
        row(_f, f"np.{_f.__name__}({_args})", BESIDE)
        TURNS |= {TABLE[-1][1]} if (_k + _j // 2) % 2 else set()
row(np.power, f"np.power(x, {FIXED})", [[1e-310, 2.0], [np.nan, 2.0]])  # an exponent of 0 takes the base away
for _f in (np.exp, np.square, np.tanh, np.arctan, np.absolute, np.negative):
    row(_f, f"np.{_f.__name__}(x[0])", INFINITE)
for _name in ("add", "sub", "mul", "truediv", "mod"):
    _f = getattr(operator, _name)
    _sign = {"add": "+", "sub": "-", "mul": "*", "truediv": "/", "mod": "%"}[_name]
    row(_f, f"x[0] {_sign} x[1]", NO_ZEROS)
for _text in ("x[0] ** 2", "x[0] ** 3", "x[0] ** 0", "x[0] ** 1.5", "x ** 2"):
    row(operator.pow, _text, POSITIVE)
row(operator.pow, "x[0] ** x[1]", NO_ZEROS[:1])
row(operator.neg, "-x", ONE)
row(abs, "abs(x[0])", ONE)
for _text in ("abs(x[0]) ** 2", "np.abs(x) ** 2", "np.square(abs(x[0]))", "np.hypot(x[0], x[1]) ** 2"):
    row(np.absolute, _text, [[0.0, 0.0], [0.0, 1.0], [-2.0, 0.0]])
for _text in (
    "(2.0 * np.abs(x)) ** 2", "np.abs(x) * (x * 2.0) * np.abs(x)", "np.square(abs(x[0]) / (x[1] + 3.0))",
    "np.abs(x) * np.abs(x)", "np.abs(x * 2.0) ** 2 * np.exp(x)", "np.power(-abs(x[0]), 2)",
    "(np.hypot(x, x + 0.0) / (x + 3.0)) ** 2", "(1e-180 * np.hypot(x[0], x[1])) ** 2", "np.fabs(x[0]) ** 2",
    "np.multiply(np.linalg.norm(x), np.linalg.norm(x))", "(np.linalg.norm(x * 2.0) / 3.0) ** 2",
    "np.linalg.norm(x) * 3.0 * np.linalg.norm(x + 1.0)",
    "np.linalg.norm(x) * (np.exp(x) * 2.0) * np.linalg.norm(x)", "(abs(x[0]) * np.array([1.0, 2.0])) ** 2",
):  # fmt: skip
    row(np.absolute, _text, [[0.0, 0.0], [0.0, 1.0], [-2.0, 0.0]])
row(np.absolute, "(np.hypot(x, x + 0.0) / (x + 3.0)) ** 2", [[1e200, 2.0]], 2)  # whose squares overflow
row(min, "min(x[0], x[1])", PAIRS)
row(max, "max(x[0], x[1])", PAIRS)
for _text in (
    "np.where(x > x[0], x, x * x)",
    "np.where(x[0] > x[1], x[0], x[1] * x)",
    "np.where(x[0], x[1], x[0])",
    "np.where((x > 0.0) & ~(x == 1.0), np.exp(x), 2.0) * x",
    "np.where(x[:1] < x[:, None], x, x[0])",
):
    row(np.where, _text, PAIRS)

for _name in (
    "max", "min", "amax", "amin", "ptp", "sum", "prod", "mean", "var", "std", "median", "cumsum", "cumprod",
    "nanmax", "nanmin", "nansum", "nanprod", "nanmean", "nanvar", "nanstd", "nanmedian", "nancumsum",
    "nancumprod",
):  # fmt: skip
    row(getattr(np, _name), f"np.{_name}(x)", VECTORS)
# the others have a gradient of nan
for _name in ("max", "min", "amax", "amin", "ptp", "sum", "prod", "nansum", "nanprod"):
    row(getattr(np, _name), f"np.{_name}(x)", [[]])
for _name in ("mean", "var", "std", "nanmean"):
    row(getattr(np, _name), f"np.{_name}(x)", [[]], 0)
for _name in ("max", "min", "sum", "prod", "mean", "var", "std", "cumsum", "cumprod"):
    row(getattr(np, _name), f"x.{_name}()", VECTORS)
for _name in ("max", "min", "sum", "prod", "mean"):
    for _axis in (0, 1, -1):
        row(getattr(np, _name), f"np.{_name}({M}, axis={_axis})", MATRICES)
    row(getattr(np, _name), f"{M}.{_name}(axis=0)", MATRICES)
for _name, _q in itertools.product(("quantile", "nanquantile"), (0.0, 0.25, 0.5, 1.0)):
    row(getattr(np, _name), f"np.{_name}(x, {_q})", VECTORS)
for _name, _q in itertools.product(("percentile", "nanpercentile"), (0.0, 25.0, 50.0, 100.0)):
    row(getattr(np, _name), f"np.{_name}(x, {_q})", VECTORS)
row(np.average, "np.average(x)", VECTORS)
row(np.average, "np.average(x[:2], weights=x[1:])", [[1.0, 1.0, 1.0], [0.0, 0.0, 1.0]])
for _text in ("np.clip(x, 0.0, 1.0)", "np.clip(x, x[0], x[-1])", "np.clip(x, None, 1.0)",
              "np.clip(x, 0.0, None)",
              "np.clip(x, 1.0, 1.0)", "np.clip(x, 2.0, 0.0)", "np.clip(x, x, x)"):  # fmt: skip
    row(np.clip, _text, ENDS)
row(np.clip, "np.clip(x[0], x[1], x[2])", [[0.0, 0.0, 0.0], [0.0, 0.0, 1.0], [1.0, 0.0, 1.0], [0.5, 1.0, 0.0],
                                           [1.0, 1.0, 0.0], [2.0, 1.0, 1.0], [3.0, 0.0, 1.0]])  # fmt: skip
row(np.interp, f"np.interp(x, {PLACES})", KNOTS)
row(np.interp, f"np.interp(x[0], {PLACES})", KNOTS[:6])
row(np.interp, "np.interp(1.0, x, np.array([1.0, 3.0, 0.0]))", [[0.0, 1.0, 2.0], [1.0, 1.0, 2.0], [1.0,
    2.0, 3.0],
    [-1.0, 0.0, 1.0], [0.0, 1.0, 1.0], [1.0, 1.0, 1.0], [2.0, 3.0, 4.0], [-2.0, -1.0, 0.0]])  # fmt: skip
row(np.interp, "np.interp(1.0, np.array([0.0, 1.0, 2.0]), x)", [[0.0, 1.0, 2.0], [1.0, 1.0, 2.0]])
row(np.interp, "np.interp(x[0], x[1:2], x[2:])", [[0.0, 0.0, 1.0], [1.0, 0.0, 1.0]])

row(np.linalg.norm, "np.linalg.norm(x) ** 2", VECTORS)
for _order in ("", ", 2", ", 1", ", 0", ", 3", ", 0.5", ", 1.5", ", np.inf", ", -np.inf", ", -1"):
    row(np.linalg.norm, f"np.linalg.norm(x{_order})", VECTORS)
for _order in ("", ", 2", ", -2", ", 1", ", -1", ", np.inf", ", -np.inf"):
    _long = TABLE if _order in ("", ", 1", ", np.inf") else LONG
    row(np.linalg.norm, f"np.linalg.norm({M}{_order})", REGULAR if _long is LONG else MATRICES, 1, _long)
    row(np.linalg.cond, f"np.linalg.cond({M}{_order})", REGULAR, 1, LONG)
row(np.linalg.cond, f"np.linalg.cond({M}, 1)", SINGULAR, 0, LONG)
row(np.linalg.det, f"np.linalg.det({M})", MATRICES)
row(np.linalg.det, "np.linalg.det(np.append(x, np.arange(5.0)).reshape((3, 3)))", MATRICES)
row(np.linalg.det, "np.linalg.det(np.outer(x, x) + np.outer(np.arange(4.0), x * x))", MATRICES)
row(np.linalg.slogdet, f"np.linalg.slogdet({M})[1]", REGULAR)
row(np.linalg.slogdet, f"np.linalg.slogdet({M})[1]", SINGULAR, 0)
row(np.linalg.slogdet, f"np.linalg.slogdet({M})[0]", MATRICES)
row(np.linalg.inv, f"np.linalg.inv({M})", MATRICES)
row(np.linalg.solve, f"np.linalg.solve({M}, x[:2])", MATRICES)
row(np.linalg.cholesky, f"np.linalg.cholesky({M} @ {M}.T + np.eye(2))", MATRICES)
row(np.linalg.qr, f"np.linalg.qr({M})[1] ** 2", REGULAR, table=LONG)
row(np.linalg.eigh, f"np.linalg.eigh({M} + {M}.T)[0]", REGULAR[3:], table=LONG)
row(np.linalg.eigvalsh, f"np.linalg.eigvalsh({M} + {M}.T)", REGULAR[3:], table=LONG)
row(np.linalg.eig, f"np.linalg.eig({M})[0]", REGULAR[3:], table=LONG)
row(np.linalg.eigvals, f"np.linalg.eigvals({M})", REGULAR[3:], table=LONG)
row(np.linalg.svd, f"np.linalg.svd({M})[1]", REGULAR[3:], table=LONG)
row(np.linalg.pinv, f"np.linalg.pinv({M})", REGULAR, table=LONG)
row(np.linalg.lstsq, f"np.linalg.lstsq({M}, x[:2])[0]", REGULAR, table=LONG)
row(np.linalg.matrix_power, f"np.linalg.matrix_power({M}, 3)", MATRICES)
row(np.linalg.matrix_power, f"np.linalg.matrix_power({M}, 0)", MATRICES)
for _f, _text in {
    np.append: "np.append(x, x[0])", np.bincount: "np.bincount(np.array([1, 0, 1, 3]), x)",
    np.convolve: "np.convolve(x, x[:2])", np.correlate: "np.correlate(x, x[:2])",
    np.corrcoef: f"np.corrcoef({M})", np.cov: f"np.cov({M})", np.cross: "np.cross(x[:3], x[1:])",
    np.diff: "np.diff(x)", np.dot: "np.dot(x, x)", np.ediff1d: "np.ediff1d(x)",
    np.extract: "np.extract(x > 0.0, x)", np.kron: "np.kron(x, x)", np.outer: "np.outer(x, x)",
    np.real: "np.real(x)", np.imag: "x + np.imag(x)", np.trace: f"np.trace({M})", np.tril: f"np.tril({M})",
    np.triu: f"np.triu({M})", np.vander: "np.vander(x)", np.vdot: "np.vdot(x, x)",
    operator.matmul: f"{M} @ {M}",
    np.full_like: "np.full_like(x, x[0])", np.linspace: "np.linspace(x[0], x[1], 3)",
    np.conjugate: "np.conjugate(x)",
}.items():  # fmt: skip
    row(_f, _text, MATRICES)
# what Numba does to arrays of any numbers
for _text in (
    "np.atleast_1d(x)", "np.atleast_2d(x)", "np.atleast_3d(x)", "np.array_split(x, 2)[0]",
    "np.broadcast_to(x, (2, 4))",
    "np.column_stack((x, x))", "np.concatenate((x, x))", "np.copy(x)", "np.diag(x)", "np.dstack((x, x))",
    "np.expand_dims(x, 0)", "np.flip(x)", f"np.fliplr({M})", f"np.flipud({M})", "np.hstack((x, x))",
    "np.ravel(x)",
    "np.repeat(x, 2)", "np.reshape(x, (2, 2))", "np.roll(x, 1)", "np.sort(x)", "np.split(x, 2)[0]",
    "np.stack((x, x))", "np.broadcast_arrays(x, x)[0]", "np.delete(x, 1)", "np.diagflat(x)",
    "np.dsplit(x.reshape((1, 2, 2)), 2)[0]", f"np.hsplit({M}, 2)[0]", f"np.moveaxis({M}, 0, 1)",
    "np.resize(x, (2, 2))", f"np.rot90({M})",
    "np.take_along_axis(x, np.array([0, 0, 2]), 0)", "np.trapezoid(x)", f"np.vsplit({M}, 2)[0]",
    "np.lib.stride_tricks.sliding_window_view(x, 2)",
    f"np.swapaxes({M}, 0, 1)", "np.take(x, np.array([0, 0, 2]))", f"np.transpose({M})", "np.vstack((x, x))",
):  # fmt: skip
    row(operator.attrgetter(_text[3:].partition("(")[0])(np), _text, MATRICES[:5])

# where equal elements come to lie is each implementation's own
for _text in ("np.quantile(x, 0.0)", "np.nanmean(x)", "np.nanmax(x)", "np.nanstd(x)"):
    row(getattr(np, _text[3:].partition("(")[0]), _text, [[np.nan, np.nan, np.nan], [np.nan, 2.0, -1.0]])
row(np.partition, "np.partition(x, 2)", [[3.0, 1.0, 2.0, 0.0], [-1.0, 0.0, 5.0, 2.0]])

# Of nothing, but where Numba's values are others than NumPy's, or it reads what lies outside.
OTHERS_OF_NOTHING = (
    "median", "quantile", "percentile", "x, np.inf", "x, -np.inf", "x, -1)", "take_along_axis", FIXED,
)  # fmt: skip
for _f, _text, _points, _ in [*TABLE]:
    if [] not in _points and not any(part in _text for part in ("x[", M, *OTHERS_OF_NOTHING)):
        row(_f, _text, [[]])

# Complex numbers, of the parts in x.
Z, ZS = "(x[0] + 1j * x[1])", "(x[:2] + 1j * x[2:])"
AROUND = [[0.5, -0.3], [-0.5, 0.3], [1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0], [3.0, 4.0],
          [-30.0, 0.5]]  # fmt: skip
ORIGIN = [[0.0, 0.0]]
FOUR = [[0.0] * 4, [1.0] * 4, [0.0, 0.0, 2.0, 0.0], [3.0, 1.0, 4.0, 0.0], [0.3, -0.7, 0.9, 0.2]]
COMPLEX = []
for _f in (f for f in OF_NUMPY if f in OF_COMPLEX):
    _args = Z if row_of(OPS[_f]).arity == 1 else f"{Z}, x[1] + 0.5j"
    row(_f, f"np.{_f.__name__}({_args})", AROUND + ORIGIN, table=COMPLEX)
for _name in ("angle", "conjugate", "real", "imag", "positive"):
    row(getattr(np, _name), f"np.{_name}({Z})", AROUND + ORIGIN, table=COMPLEX)
for _name in ("exp", "square", "sin", "tanh", "sqrt", "log", "arcsin", "absolute", "angle", "conjugate"):
    row(getattr(np, _name), f"np.{_name}({ZS})", FOUR, table=COMPLEX if _name == "sqrt" else LONG)
for _name, _texts in {
    "add": ["{} + x[0]", "np.add({}, 1j)"], "sub": ["x[1] - {}"], "mul": ["{0} * {0}", "np.conj({0}) * {0}"],
    "truediv": ["1.0 / {}", "{} / (x[1] + 1j * x[0])", "{} / (2.0 + 1j)"], "neg": ["-{}"],
    "pow": ["{} ** 2", "{} ** 3", "{} ** 0", "{} ** 0.5", "{} ** 1.5", "2.0 ** {}", "{} ** -1", "{0} ** {0}",
            "x[0] ** {}", "np.power({}, 2.0)"],
}.items():  # fmt: skip
    for _text in _texts:
        _zero = [] if _name == "truediv" else ORIGIN  # where Python does not raise
        # 0**z has no mixed derivative
        _points = [p for p in AROUND + _zero if p[0] or "x[0] **" not in _text]
        row(getattr(operator, _name), _text.format(Z), _points, table=COMPLEX)
row(operator.pow, f"{Z} ** 2", [[1e300, 2.0], [0.5, -1e300]], 1, COMPLEX)  # whose squares overflow
row(np.power, f"np.power({Z}, 3)", AROUND + ORIGIN, table=COMPLEX)
for _text in ("abs({0})", "np.abs({0}) ** 2", "abs({0}) * abs({0})", "np.square(np.abs({0}))"):
    row(np.absolute, _text.format(Z), AROUND + ORIGIN, table=COMPLEX)
for _text in (
    "np.abs({0}) ** 2", "np.linalg.norm({0})", "np.linalg.norm({0}) ** 2", "np.sum({0})", "np.prod({0})",
    "np.mean({0})", "np.var({0})", "np.std({0})", "np.dot({0}, {0})", "np.vdot({0}, {0})",
    "np.outer({0}, {0})", "np.cumprod({0})", "np.diff({0})", "np.convolve({0}, {0})", "{0} ** 2",
):  # fmt: skip
    row(None, _text.format(ZS), FOUR, table=COMPLEX)

# Functions of both that are elsewhere, or that have nothing to compare.
NO_DERIVATIVE = {np.bitwise_and, np.bitwise_or, np.bitwise_xor, np.invert, np.left_shift, np.right_shift,
    np.gcd,
                 np.lcm, np.isnat, np.histogram, np.digitize, np.linalg.matrix_rank, np.nextafter, np.ldexp,
                 np.array_equal, np.isscalar, np.matmul}  # fmt: skip
REFUSED = {  # what Numba knows for floats alone
    "np.angle(x)", "np.geomspace(x[0] + 1.0, x[1] + 3.0, 3)", "np.logspace(x[0], x[1], 3)",
    "np.insert(x, 1, x[0])",
    "np.nan_to_num(x)", "np.roots(x)", "np.select([x > 0.5], [x], 0.0)", "np.trim_zeros(x)", "np.unique(x)",
    "np.union1d(x, x)", "np.setdiff1d(x, x[:1])", "np.intersect1d(x, x)", "np.setxor1d(x, x[:1])",
    "np.unwrap(x)", "np.float_power(x, x)", "np.divmod(x, x + 1.0)[1]", f"np.fill_diagonal({M}, x[0])",
}  # fmt: skip


def called(text):
    return getattr(np, text[3:].partition("(")[0])


def both():
    """The functions that Tensors have, and Numba or its extension here."""
    context = cpu_target.typing_context
    context.refresh()
    numba = {f for f in context._globals if getattr(f, "__module__", "").startswith("numpy") or f in UFUNCS}
    compiled = numba | set(functions.INSTEAD) | set(functions.LIKE) | set(functions.OPERATORS) | set(OPS)
    return compiled & (set(FUNCTIONS) | set(UFUNCS)) - PLAIN


@pytest.mark.quick
def test_every_function_that_both_have_is_in_the_table():
    known = {function for function, *_ in TABLE + LONG} | NO_DERIVATIVE | set(map(called, REFUSED))
    assert not sorted(f.__name__ for f in both() - known)
    assert len(both()) > 150
    of_complex = {f for f in OF_COMPLEX if f in both() and f is getattr(np, f.__name__, None)}
    assert len(of_complex) > 30 and of_complex <= {function for function, *_ in COMPLEX}


@pytest.mark.quick
def test_every_operator_is_in_the_table():
    known = {function for function, *_ in TABLE + LONG}
    of_math = {f for f in OPS if getattr(f, "__module__", "") == "math"}  # which take no Tensors, NumPy's do
    names = {OPS[f] for f in of_math} & {OPS[f] for f in OF_NUMPY}
    assert len(names) > 20
    assert names <= {OPS[f] for f in known & set(OPS)}
    assert set(OPS) - set(OF_NUMPY) - of_math - known <= {pow, CLIP}


def compiled(text):
    """An expression of x as a function."""
    space = {"np": np}
    exec(f"def f(x):\n    return {text}", space)
    return space["f"]


def weighted(y):
    """Numbers of an array as one, no two with the same weight; says how many axes there were."""
    s, w = 100.0 * y.ndim, 1.0
    for v in y.flat:
        s, w = s + w * v, w + 0.3
    return s


def weighted_pairs(y):
    s, w = 100.0 * y.ndim, 1.0
    for v in y.flat:
        s, w = s + w * v.real + (w - 0.4) * v.imag, w + 0.3
    return s


def in_arrays(y):
    """The same of a Tensor."""
    flat, w = np.ravel(y), 1.0 + 0.3 * np.arange(y.size)
    parts = (flat.real * w).sum() + (flat.imag * (w - 0.4)).sum() if y.dtype.kind == "c" else (flat * w).sum()
    return parts + 100.0 * y.ndim


def as_number(text, points):
    """An expression whose value is one real number, by the kind of value that it has."""
    for point in points:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            try:
                value = compiled(text)(np.array(point))
            except (ValueError, np.linalg.LinAlgError):
                continue
        pairs = np.iscomplexobj(value)
        if np.ndim(value):
            return f"weighted_pairs({text})" if pairs else f"weighted({text})"
        return f"pair({text})" if pairs else f"({text}) * 1.0"
    raise AssertionError(f"{text} has a value at none of {points}")


def pair(z):
    return z.real + 0.6 * z.imag


class Program:
    """Many expressions as one function, since a function takes a second or so to be compiled."""

    def __init__(self, rows):
        self.rows = {}  # points and highest order, by expressions
        for _, text, points, order in rows:
            self.rows.setdefault(text, []).extend((point, order) for point in points)
        lines = ["def program(which, x):"]
        for k, (text, points) in enumerate(self.rows.items()):
            lines.append(f"    if which == {k}:\n        return {as_number(text, [p for p, _ in points])}")
        text = "\n".join([*lines, "    return 0.0 * x[0]"])
        self.ways = []
        for kind in ({"weighted": in_arrays, "weighted_pairs": in_arrays, "pair": pair},
                     {f.__name__: numba.njit(f) for f in (weighted, weighted_pairs, pair)}):  # fmt: skip
            space = {"np": np, "math": math, **kind}
            exec(text, space)
            self.ways.append(space["program"])
        self.ways[1] = tg.njit(self.ways[1])

    def differences(self, highest=3):
        """Where Tensors and compiled code differ, and how many derivatives were compared of each order."""
        found, counts = [], [0] * (ORDER + 1)
        for which, (text, points) in enumerate(self.rows.items()):
            for point, order in points:
                with np.errstate(all="ignore"), warnings.catch_warnings():
                    warnings.simplefilter("ignore", RuntimeWarning)  # of means of nothing
                    ways = (functools.partial(f, which) for f in self.ways)
                    one, other = (derivatives(f, point, min(order, highest)) for f in ways)
                for k, (a, b) in enumerate(itertools.zip_longest(one, other)):
                    counts[k] += 1
                    if not alike(a, b):
                        found.append(f"{text} at {point}, order {k}: Tensors {a}, compiled {b}")
                        break
        return found, counts


ORDER = 3


def derivatives(function, point, order):
    """Value, gradient, and the gradient of each derivative along a direction; or the kind of error."""
    x = tg.tensor(np.array(point), requires_grad=True)
    direction = np.cos(1.0 + np.arange(len(point)))
    try:
        y = function(x)
    except (ValueError, IndexError) as error:
        return [next(k for k in (np.linalg.LinAlgError, ValueError, IndexError) if isinstance(error, k))]
    found = [np.array(y.item() if isinstance(y, tg.Tensor) else float(y))]
    for _ in range(order):
        if not (isinstance(y, tg.Tensor) and y.requires_grad):
            found.append(np.zeros(len(point)))
            continue
        (g,) = tg.grad(y, x, create_graph=True, materialize_grads=True)
        found.append(g.detach().numpy())
        y = (g * direction).sum()
    return found


def alike(a, b):
    """Whether two are equal to 1e-12, of the largest number in them where that is large."""
    if not (isinstance(a, np.ndarray) and isinstance(b, np.ndarray)):
        return a is b
    finite = np.abs(a[np.isfinite(a)])
    return np.allclose(a, b, rtol=0, atol=1e-12 * max(1.0, finite.max(initial=0.0)), equal_nan=True)


FEW = ["np.max(x)", "np.log(x[0])", "np.power(x[0], x[1])", f"np.sqrt({Z})", f"np.abs({Z})"]  # different once


@pytest.mark.parametrize("order", [pytest.param(1, marks=pytest.mark.quick), ORDER])
def test_ties_kinks_and_constants(order):
    found, _ = Program([r for r in (*TABLE, *COMPLEX) if r[1] in FEW]).differences(order)
    assert not found, "\n".join(found)


@tg.njit
def squares(x, y):
    n = np.linalg.norm(x)
    a = np.linalg.norm(x) * np.linalg.norm(x) + (2.0 * n) ** 2 + n * (3.0 * n)
    b = np.sum(np.abs(x * 2.0) ** 2) + np.sum((-np.abs(x) / y) * (x + 1.0) * np.abs(x))
    r, u = np.abs(x), np.hypot(x, 0.0)
    c = r @ r + np.dot(np.abs(x), np.abs(x)) + np.vdot(u, u) + np.sum(u[:1])  # of which a view is taken
    s = np.abs(x) * y
    q, n = s * 3.0, 0
    n += 1  # between them other names are written to
    c += s @ s + s.dot(q) + np.sum(q * s) * n
    w = np.abs(x[0]) * np.array([1.0, 2.0, 3.0])  # a number with a kink, spread
    c += w @ w
    return a + b + c + math.hypot(x[0], y - 2.0) ** 2


@pytest.mark.parametrize("x", [[0.0, 0.0], [0.0, 0.7], [1e-100, 0.0], [-0.3, 0.4]])
def test_squares_behind_products(x):
    """Smooth where the norm and the absolute value are not; nothing but a factor is taken out of a square."""
    x, point = tg.tensor(x, requires_grad=True), np.array(x)
    (g,) = tg.grad(squares(x, 2.0), x, create_graph=True)
    found = [tg.grad(g, x, row, retain_graph=True)[0].numpy() for row in np.eye(2)]
    wanted = np.diag(2.0 * (1 + 4 + 3 + 4 + 3 + 28) - (2.0 + 6.0 * point) / 2.0 + [30.0, 0.0])
    np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-12)


@tg.njit
def changing(x):
    y = x.copy()
    return np.abs(y[0]) + np.linalg.norm(y) * moved(y) * np.linalg.norm(y)


@numba.njit
def moved(y):
    y[0] += 3.0
    return 1.0


@tg.njit
def scaling(x):
    weights = x + 2.0
    part = weights[:1]
    r = np.abs(x) * part
    weights[0] = 7.0
    t = r @ r
    r[0] = 3.0 * x[0]
    return t + r @ r


def test_no_square_by_what_was_written_to():
    """A factor that was written to since is not taken for what it was: with 7 the first would be 117."""
    x = tg.tensor([0.0, 0.5], requires_grad=True)
    (g,) = tg.grad(scaling(x), x, create_graph=True)
    np.testing.assert_allclose(tg.grad(g, x, np.array([1.0, 0.0]))[0].numpy(), [19.0, 8.0])


def test_two_lengths_of_what_has_changed_are_no_square():
    x = tg.tensor([4.0, 0.0], requires_grad=True)
    (g,) = tg.grad(changing(x), x, create_graph=True)
    np.testing.assert_allclose(tg.grad(g, x, np.array([1.0, 0.0]))[0].numpy(), [2.0, 0.0])


@tg.njit
def products(which, x, y, z):
    if which == 0:
        return np.power(x, y) * z
    if which == 1:
        return np.divide(x, y) + z
    if which == 2:
        return np.sqrt(x) * y + z * z
    if which == 3:
        return np.log(x) * (y + z)
    if which == 4:
        return np.cbrt(x) * y * z
    if which == 5:
        return np.arctan2(x, y) * z
    if which == 6:
        return np.hypot(x, y) * z
    return x ** (np.sqrt(y) * np.sqrt(y)) + z


def in_turn(function, given, path):
    """A result differentiated by one argument after the other."""
    leaves = [tg.tensor(np.array(v), requires_grad=True) for v in given]
    d = function(*leaves)
    for k in path:
        if not d.requires_grad:
            return 0.0
        (d,) = tg.grad(d, leaves[k], create_graph=True, materialize_grads=True)
    return d.item()


@pytest.mark.parametrize(
    ("which", "point"),
    [
        (0, [-2.0, 3.0, 1.5]), (0, [0.0, -1.0, 2.0]), (0, [0.0, 0.0, 1.0]), (1, [1.0, 0.0, 1.0]),
        (1, [0.0, 0.0, 1.0]), (2, [0.0, 1.0, 1.0]), (2, [0.0, 0.0, 2.0]), (3, [0.0, 1.0, 1.0]),
        (3, [-1.0, 1.0, 1.0]), (4, [0.0, 1.0, 2.0]), (5, [0.0, 0.0, 1.0]), (6, [0.0, 0.0, 1.0]),
        (7, [-2.0, 4.0, 1.0]), (7, [-2.0, 0.0, 1.0]),
    ],
)  # fmt: skip
def test_arguments_that_a_derivative_is_not_by(which, point):
    """Where the partial by them is infinite or nan, derivatives by the others are what they are."""
    with np.errstate(all="ignore"):
        for path in itertools.product(range(3), repeat=2):
            ways = products.py_func, products
            one, other = (in_turn(functools.partial(f, which), point, path) for f in ways)
            np.testing.assert_allclose(other, one, rtol=1e-12, err_msg=f"by arguments {path}")


def test_a_zero_that_moves_is_not_taken_for_one_that_does_not():
    """The tangent of ``w**3`` at 0 is 0, and that of its cube root is not; nor is an exponent a constant."""
    point = [-2.0, 0.0, 1.0]
    for f in (
        lambda x, w, z: products(4, w**3, x, z),
        lambda x, w, z: products(0, x, 3.0 + w * w, z),
        lambda x, w, z: products.py_func(0, x, 3.0 + w * w, z),
    ):
        with np.errstate(all="ignore"):
            assert all(np.isnan(in_turn(f, point, path)) for path in ((1,), (1, 1), (0, 1), (1, 0)))


def parts(rows, size):
    """Rows by programs of so many expressions, named by the first."""
    texts = list(dict.fromkeys(text for _, text, _, _ in rows))
    return [
        pytest.param([r for r in rows if r[1] in texts[k : k + size]], id=texts[k])
        for k in range(0, len(texts), size)
    ]


def first_of_each(rows, whole=()):
    """Of each function the first expression, or all of it; they compile at once."""
    first = {}
    for function, text, _, _ in rows:
        first.setdefault(function, text)
    return [r for r in rows if r[0] in whole or first[r[0]] == r[1]]


SHORT = first_of_each([r for r in TABLE if r[1] not in TURNS], OPS)
SHORT += first_of_each([r for r in COMPLEX if r[0]])


@pytest.mark.parametrize("rows", parts(SHORT, 32))
def test_tensors_and_compiled_code_are_equal(rows):
    """To order 1; the slow tier goes to 3."""
    check(rows, 1)


@pytest.mark.slow
@pytest.mark.parametrize("rows", parts(SHORT, 32))
def test_tensors_and_compiled_code_are_equal_to_order_3(rows):
    check(rows)


@pytest.mark.slow
@pytest.mark.parametrize(
    "rows", [*parts([r for r in TABLE + COMPLEX if r not in SHORT], 16), *parts(LONG, 4)]
)
def test_tensors_and_compiled_code_are_equal_in_more_expressions(rows):
    check(rows)


@pytest.mark.quick
def test_how_much_is_compared():
    """Of all functions some expression is compared to order 3, where there are such derivatives."""
    deep = [r for r in SHORT if r[3] == ORDER]
    assert len({function for function, *_ in deep}) >= 150
    assert sum(len(points) for *_, points, _ in deep) >= 1000


def check(rows, highest=ORDER):
    found, counts = Program(rows).differences(highest)
    functions = len({function for function, *_ in rows})
    print(f"\n{functions} functions, {counts} values and derivatives by order, {len(found)} different")
    assert not found, "\n".join(found)


@pytest.mark.slow
@pytest.mark.parametrize("text", sorted(REFUSED))
def test_what_is_not_recorded_is_refused(text):
    with pytest.raises(tg.errors.UnsupportedOpError):
        tg.njit(compiled(text))(tg.tensor([1.0, 2.0, 3.0, 4.0], requires_grad=True))
