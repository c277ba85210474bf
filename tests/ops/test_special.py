"""Functions of `scipy.special` on Tensors: by mpmath per decade, and in every dtype, layout and order."""

import ast
import itertools
import subprocess
import sys
import warnings
from pathlib import Path

import mpmath
import numpy as np
import pytest
import scipy.special
from scipy.special import SpecialFunctionError

import tapegrad as tg
import tapegrad.scipy as ts
from tapegrad.autograd import forward_ad as fw
from tapegrad.autograd import gradcheck, gradgradcheck
from tapegrad.errors import UnsupportedOpError
from tapegrad.ops import MEANING, lanes
from tapegrad.ops import special as package
from tapegrad.ops.special import RESULTS, SPECIAL
from tapegrad.ops.special.declare import special
from tests.tiers import every, thinned

from . import checks
from .layouts import COMPLEX, DTYPES, LAYOUTS, PLAIN
from .samples_special import NAMES, WITHOUT, exists, function_of, samples
from .special_exact import ROWS, SLOPES, STATED, X

# ---------------------------------------------------------------- what there is


def test_counts():
    """An op for each result; of how many functions, by how many of their arguments."""
    functions = {
        op.title for op in SPECIAL.values() if op.name not in WITHOUT and op.title.startswith("scipy.")
    }
    arguments = sum(op.arity - len(op.unknown) for op in SPECIAL.values())
    assert len(functions) >= 150
    assert len(SPECIAL) >= 180
    assert arguments >= 210


def test_every_function_is_measured():
    measured = {row.name for row in ROWS}
    ufuncs = {f.__name__ for op in SPECIAL.values() for f in op.functions} | {f.__name__ for f in RESULTS}
    unmeasured = {name for name in ufuncs if name.lstrip("_").removesuffix("_d") not in measured}
    assert unmeasured <= UNMEASURED


# Complex numbers only, or for rules and by differences below.
UNMEASURED = {
    "wofz", "hankel1", "hankel2", "hankel1e", "hankel2e", "radian", "elliprd", "_riemann_zeta", "_igam_fac",
    "_beta_pdf", "_sinpi", "_cospi",
}  # fmt: skip


FIRST = """
import threading
import tapegrad as tg
import sys
assert "scipy" not in sys.modules
import scipy.special as sp
functions, failed = [sp.erf, sp.psi, sp.airy, sp.sici, sp.gamma], []
def first(f):
    try:
        f(tg.tensor([0.5], requires_grad=True))
    except Exception as error:
        failed.append(error)
threads = [threading.Thread(target=first, args=(f,)) for f in functions * 4]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert not failed, failed
assert "tapegrad.ops.special" in sys.modules
"""


@pytest.mark.full
def test_the_first_calls_of_several_threads():
    """The ops are declared once, and nobody finds them half declared."""
    done = subprocess.run([sys.executable, "-c", FIRST], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_rules_call_functions_that_are_declared():
    """What is not declared would be a constant to a recorded sweep."""
    for path in Path(package.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "special":
                assert getattr(special, node.attr) in MEANING, node.attr


# ---------------------------------------------------------------- against mpmath


def points(places, count):
    """Points of each decade of the distance from an end, and these decades."""
    random, found = np.random.default_rng(5), []
    for end, way, (low, high) in places:
        for k in range(max(1, int(np.ceil(high - low)))):
            ends = low + k, min(low + k + 1, high)
            found.append(end + way * 10.0 ** random.uniform(*ends, count))
    return np.concatenate(found)


def relative(found, wanted):
    return float(abs((mpmath.mpf(float(found)) - wanted) / wanted)) if wanted else abs(float(found))


def measure(row, count, digits=0):
    """The largest relative errors of the value and of both derivatives, compiled and by the rule."""
    x = points(row.places, count)
    leaf = tg.tensor(x, requires_grad=True)
    with np.errstate(all="ignore"):
        y = getattr(scipy.special if hasattr(scipy.special, row.name) else ts.special, row.name)
        if row.name.startswith("spherical"):
            y = getattr(ts.special, row.name)
        y = y(*[leaf if a is X else a for a in row.args])
        y = np.real(y if row.result is None else y[row.result])
        found = [
            tg.grad(y, leaf, np.ones(x.shape), create_graph=how, retain_graph=True)[0].detach().numpy()
            for how in ((False, True) if row.again else (False,))
        ]
    with mpmath.workdps(digits or row.digits):
        values = [row.exact(mpmath.mpf(e)) for e in x.tolist()]
        slopes = [
            SLOPES[row.name](e) if row.name in SLOPES
            else mpmath.diff(lambda t, e=e: row.exact(e * (1 + t)), 0) / e
            for e in map(mpmath.mpf, x.tolist())
        ]  # fmt: skip
        scale = [mpmath.mpf(row.scale(e)) if row.scale else 0 for e in x.tolist()]
        of_value = max(relative(a, mpmath.re(b)) for a, b in zip(y.detach().numpy(), values, strict=True))
        of_slope = max(
            float(abs(mpmath.mpf(float(a)) - mpmath.re(b)) / max(abs(b), s, mpmath.mpf(10) ** -300))
            for g in found for a, b, s in zip(g, slopes, scale, strict=True)
        )  # fmt: skip
    return of_value, of_slope


def titled(row):
    args = ",".join("x" if a is X else str(a) for a in row.args)
    return f"{row.name}({args})" + ("" if row.result is None else f"[{row.result}]")


@pytest.mark.parametrize("row", every([(row,) for row in ROWS], 40), ids=titled)
def test_derivatives_against_mpmath(row):
    """Within 1e-12, or what is stated where SciPy's own value is no better."""
    _, error = measure(row, 1)
    assert error <= STATED.get(row.name, 1e-12), (error, points(row.places, 1))


@pytest.mark.slow
@pytest.mark.parametrize("row", ROWS, ids=titled)
def test_derivatives_densely(row):
    value, error = measure(row, 8)
    print(f"\n{titled(row)}: value {value:.1e}, derivative {error:.1e}")
    assert error <= STATED.get(row.name, 1e-12), error


# ---------------------------------------------------------------- dtypes, layouts, orders

PLACES = [
    (name, dtype, layout)
    for name, dtype, layout in itertools.product(NAMES, DTYPES + COMPLEX, LAYOUTS)
    if exists(name, dtype, layout)
]
OF_COMPLEX = {"lambertw", "hankel1", "hankel2", "hankel1e", "hankel2e"}  # whose results are complex numbers
# Whose second derivative, by all operands, is not known.
ONCE = {
    "ellipkinc", "ellipeinc", "elliprc", "elliprf", "elliprg", "gammainc", "gammaincc", "gammaincinv",
    "gammainccinv", "betainc", "betaincc", "betaincinv", "betainccinv", "chdtr", "chdtrc", "chdtri", "gdtr",
    "gdtrc", "gdtrix",
}  # fmt: skip


def outcome(name, dtype, layout):
    """Check a cell in all its orders; returns how much was compared."""
    count = 0
    for case in samples(name, layout, dtype):
        found, wanted = case.call(*case.operands), case.reference(*case.values)
        np.testing.assert_array_equal(checks.plain(found), wanted)
        for order in checks.ORDERS:
            if name in ONCE and order in ("second order", "kernel = rule"):
                continue
            count += checks.CHECKS[order](name, case)
    return count


def is_quick(name, dtype, layout):
    return NAMES.index(name) % 20 == 0 and dtype == "float64" and layout == PLAIN


def in_turn(name, dtype, layout):
    """Each op in one layout of double precision, and every other one in one of each other dtype."""
    own = [PLAIN, *(layout for layout in LAYOUTS if layout != PLAIN and exists(name, dtype, layout))]
    other = dtype != "float64" and NAMES.index(name) % 2  # of which every other op is enough
    turn = layout == own[(NAMES.index(name) + len(dtype)) % len(own)]
    return (turn and not other) or is_quick(name, dtype, layout)


@pytest.mark.parametrize(
    ("name", "dtype", "layout"), thinned([place for place in PLACES if in_turn(*place)], is_quick)
)
def test_cell(name, dtype, layout):
    assert outcome(name, dtype, layout) > 0


@pytest.mark.slow
def test_the_whole_matrix():
    found = {place: outcome(*place) for place in PLACES}
    print(f"\n{len(found)} places of {len(NAMES)} ops, {sum(found.values())} elements compared")
    assert all(found.values())


@pytest.mark.parametrize("name", NAMES)
def test_lanes_are_what_one_after_the_other_is(name):
    (case,) = samples(name, PLAIN, "float64")
    values, op = [np.asarray(v)[()] for v in case.values], SPECIAL[name]
    value = np.asarray(case.reference(*values))[()]
    cts = np.random.default_rng(3).normal(size=(3, *value.shape))
    found = lanes.vjp(op, 3, cts, value, values, {}, case.moves)
    pushed = lanes.jvp(op, 3, [cts if k in case.moves else None for k in range(op.arity)], value, values, {})
    for lane, ct in enumerate(cts):
        single = op.vjp(ct, value, values, {}, case.moves)
        for k in case.moves:
            np.testing.assert_allclose(found[k][lane], single[k], rtol=1e-14)
        tangents = [ct if k in case.moves else None for k in range(op.arity)]
        np.testing.assert_allclose(pushed[lane], op.jvp(tangents, value, values, {}), rtol=1e-13)


@pytest.mark.parametrize("name", every(sorted(set(NAMES) - ONCE - OF_COMPLEX), 20))
def test_series_are_nested_derivatives(name):
    (case,) = samples(name, "0-d", "float64")
    for k in case.moves:
        values = [np.asarray(v)[()] for v in case.values]

        def f(x, k=k, values=values, case=case):
            return case.call(*values[:k], x, *values[k + 1 :])

        x = tg.tensor(values[k], requires_grad=True)
        y, wanted = f(x), []
        for order in (1, 2, 3):
            (y,) = tg.grad(y, x, create_graph=True, materialize_grads=True)
            wanted.append(y.item() / (1, 2, 6)[order - 1])
            if not y.requires_grad:
                wanted += [0.0] * (3 - order)
                break
        found = tg.func.taylor(f, 3)(values[k], 1.0)
        np.testing.assert_allclose(np.asarray(found)[1:], wanted, rtol=1e-9, atol=1e-12)


def test_degrees_that_are_pythons_integers_stay_integers():
    """By a float SciPy has another formula, which loses digits; recorded sweeps compute with it again."""
    x = tg.tensor(9.0, requires_grad=True)
    wanted = float(mpmath.diff(lambda t: mpmath.laguerre(40, 0, t), 9.0))
    for recorded in (False, True):
        (g,) = tg.grad(scipy.special.eval_laguerre(40, x), x, create_graph=recorded)
        assert g.item() == pytest.approx(wanted, rel=1e-11)


def test_complex_results_of_many_real_numbers():
    """Which have no room in a recycled buffer of the operands' dtype."""
    v = np.linspace(0.5, 2.0, 200_000)
    x = tg.tensor(v, requires_grad=True)
    order = np.full(v.shape, 1.5)
    for y, wanted in (
        (scipy.special.wofz(x), scipy.special.wofz(v)),
        (scipy.special.hankel1(order, x), scipy.special.hankel1(order, v)),
    ):
        np.testing.assert_array_equal(y.detach().numpy(), wanted)
        ends = np.real(wanted)[[0, 2]]
        (g,) = tg.grad(np.real(y), x, np.ones(v.shape))
        assert g.numpy()[1] == pytest.approx((ends[1] - ends[0]) / (v[2] - v[0]), rel=1e-5)


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize("name", sorted(name for name, op in SPECIAL.items() if op.unknown and op.linked))
def test_arguments_without_a_derivative_are_refused(name):
    """Where a gradient or a tangent is asked by one of them; its value is no constant in silence."""
    op = SPECIAL[name]
    function = function_of(op)
    for slot, parameter in op.unknown.items():
        if parameter in ("tol", "k") or name.startswith(("spherical", "eval_herm")):
            continue  # SciPy takes integers alone
        given = [1.0] * op.arity
        given[slot] = tg.tensor(1.0, requires_grad=True)
        words = rf"scipy\.special\.{op.title[14:]}: no derivative by its argument {parameter} is known"
        with pytest.raises(UnsupportedOpError, match=words):
            function(*given)
        with tg.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of SciPy's, where a number should be an integer
            assert not function(*given).requires_grad
        with fw.dual_level():
            given[slot] = fw.make_dual(tg.tensor(1.0), tg.tensor(1.0))
            with pytest.raises(UnsupportedOpError, match=words):
                function(*given)


@pytest.mark.parametrize("name", sorted(ONCE))
def test_second_derivatives_that_are_not_known_are_refused(name):
    """A recorded sweep does not take what it calls for constants; nor do tangents of tangents."""
    (case,) = samples(name, PLAIN, "float64")
    y = case.call(*case.operands)
    with pytest.raises(
        UnsupportedOpError, match=r"scipy\.special\.\w+( by [ab])?: no derivative by its argument"
    ):
        tg.grad(y, [case.operands[k] for k in case.moves], np.ones(y.shape), create_graph=True)
    with pytest.raises(UnsupportedOpError, match=r"no derivative by its argument"):
        tg.func.hessian(lambda *xs: np.sum(case.call(*xs)), tuple(case.moves))(*case.values)


def test_complex_numbers_of_functions_that_are_not_analytic_are_refused():
    z = tg.tensor([0.3 + 0.2j], requires_grad=True)
    with pytest.raises(UnsupportedOpError, match=r"scipy\.special\.ive of complex numbers .* argument 1"):
        scipy.special.ive(1.5, z)


def test_other_functions_are_refused_by_their_names():
    x = tg.tensor(0.3, requires_grad=True)
    with pytest.raises(UnsupportedOpError, match=r"scipy\.special\.agm has no derivative here"):
        scipy.special.agm(x, 2.0)
    with pytest.raises(UnsupportedOpError, match=r"scipy\.special\.polygamma by its order n"):
        ts.special.polygamma(x, 2.0)


# ---------------------------------------------------------------- ends of domains

INF = np.inf
ENDS = [  # a function, its operands with X for the one that moves, where, the derivative there
    ("xlogy", (X, 0.5), 0.0, np.log(0.5)), ("xlogy", (0.0, X), 0.5, 0), ("xlogy", (0.0, X), 0.0, 0),
    ("xlogy", (X, 0.0), 0.0, -INF), ("xlog1py", (0.0, X), -1.0, 0), ("entr", (X,), 0.0, INF),
    ("rel_entr", (X, 0.5), 0.0, -INF), ("rel_entr", (0.0, X), 0.5, 0), ("rel_entr", (0.0, X), 0.0, 0),
    ("kl_div", (0.0, X), 0.5, 1), ("kl_div", (X, 0.5), 0.0, -INF), ("logit", (X,), 0.0, INF),
    ("logit", (X,), 1.0, INF), ("erfinv", (X,), 1.0, INF), ("erfcinv", (X,), 0.0, -INF),
    ("ndtri", (X,), 0.0, INF), ("gamma", (X,), 0.0, -INF), ("rgamma", (X,), 0.0, 1),
    ("rgamma", (X,), -1.0, -1), ("rgamma", (X,), -2.0, 2), ("jv", (0, X), 0.0, 0), ("jv", (1, X), 0.0, 0.5),
    ("j1", (X,), 0.0, 0.5), ("i1", (X,), 0.0, 0.5), ("exprel", (X,), 0.0, 0.5),
    ("boxcox", (2.0, X), 0.0, np.log(2) ** 2 / 2), ("inv_boxcox", (2.0, X), 0.0, -np.exp(2) * 2),
    ("ellipk", (X,), 0.0, np.pi / 8), ("ellipk", (X,), 1.0, INF), ("ellipe", (X,), 1.0, -INF),
    ("ellipkm1", (X,), 0.0, -INF), ("spence", (X,), 0.0, -INF), ("spence", (X,), 1.0, -1),
    ("exp1", (X,), 0.0, -INF), ("gammainc", (0.5, X), 0.0, INF), ("gammainc", (1.0, X), 0.0, 1),
    ("gammainc", (2.0, X), 0.0, 0), ("betainc", (0.5, 1.0, X), 0.0, INF),
    ("betainc", (1.0, 3.0, X), 0.0, 3), ("betainc", (2.0, 3.0, X), 0.0, 0),
    ("betainc", (2.0, 1.0, X), 1.0, 2), ("betainc", (2.0, 0.5, X), 1.0, INF), ("pdtr", (0, X), 0.0, -1),
    ("bdtr", (0, 4, X), 0.0, -4), ("bdtr", (4, 4, X), 0.3, 0),
    ("stdtr", (3.0, X), 0.0, 2 / (np.pi * np.sqrt(3))), ("erf", (X,), INF, 0), ("expit", (X,), -INF, 0),
    ("expit", (X,), INF, 0), ("log_expit", (X,), -INF, 1), ("log_expit", (X,), INF, 0),
    ("psi", (X,), INF, 0), ("dawsn", (X,), INF, 0), ("erfcx", (X,), INF, 0), ("i0e", (X,), INF, 0),
    ("k0e", (X,), 0.0, -INF), ("k1e", (X,), 0.0, -INF), ("y0", (X,), 0.0, INF), ("y1", (X,), 0.0, INF),
    ("yv", (1.5, X), 0.0, INF), ("kv", (1.5, X), 0.0, -INF), ("k0", (X,), 0.0, -INF),
    ("kve", (1, X), 0.0, -INF), ("sici", (X,), 0.0, 1), ("shichi", (X,), 0.0, 1), ("fresnel", (X,), 0.0, 0),
    ("hyp1f1", (1.0, 2.0, X), 0.0, 0.5), ("eval_legendre", (3, X), 1.0, 6),
    ("eval_legendre", (3, X), -1.0, 6), ("eval_chebyt", (3, X), 1.0, 9),
    ("eval_jacobi", (2, 0.0, 0.0, X), 1.0, 3), ("eval_legendre", (0, X), 1.0, 0),
    ("binom", (X, 5.0), 3.0, -0.05), ("binom", (3.0, X), 5.0, 0.05), ("poch", (X, 2.0), 0.0, 1),
    ("poch", (X, 3.0), -1.0, -1), ("poch", (X, 2.0), -3.0, -5), ("huber", (1.0, X), 1.0, 1),
    ("pseudo_huber", (0.0, X), 1.0, 0), ("pseudo_huber", (X, 1.5), 0.0, 1.5), ("log_ndtr", (X,), -INF, INF),
    ("log_ndtr", (X,), 0.0, np.sqrt(2 / np.pi)), ("lambertw", (X,), 0.0, 1),
    ("expn", (0, X), 1.0, -2 * np.exp(-1)), ("expn", (2, X), 0.0, -INF), ("expn", (3, X), 0.0, -1),
    ("cbrt", (X,), 0.0, INF), ("spherical_jn", (1, X), 0.0, 1 / 3), ("spherical_jn", (0, X), 0.0, 0),
    ("spherical_yn", (2, X), 0.0, INF), ("spherical_kn", (0, X), 0.0, -INF),
]  # fmt: skip


def at_end(name, args, x, recorded):
    leaf = tg.tensor([x], requires_grad=True)
    place = ts.special if name.startswith("spherical") else scipy.special
    with np.errstate(all="ignore"):
        y = getattr(place, name)(*[leaf if a is X else a for a in args])
        y = np.real(y[0] if isinstance(y, tuple) else y)
        return tg.grad(y, leaf, np.ones(1), create_graph=recorded)[0].detach().numpy()[0]


@pytest.mark.parametrize(("name", "args", "x", "wanted"), ENDS)
def test_ends(name, args, x, wanted):
    assert at_end(name, args, x, True) == pytest.approx(wanted, rel=1e-12, abs=1e-300)


@pytest.mark.full
@pytest.mark.parametrize(("name", "args", "x", "wanted"), ENDS)
def test_ends_in_compiled_code(name, args, x, wanted):
    assert at_end(name, args, x, False) == pytest.approx(wanted, rel=1e-12, abs=1e-300)


INEXACT = [  # a function, its operands with X for the one that moves, where, both derivatives by mpmath
    ("betaln", (X, 1e-08), 0.1, -1.0143328914148646e-06, 2.0018611573558194e-05),
    ("betaln", (X, 1e-08), 10.01, -1.0505595315038174e-09, 1.102667239183028e-10),
    ("poch", (X, 2.5), 1e-20, 1.329340388179137, 3.404101235338736),
    ("poch", (X, 2.5), 1e-08, 1.3293404222201495, 3.404101254671742),
    ("binom", (X, 12.0), 1e-50, -0.08333333333333333, 0.5033128908128908),
    ("binom", (X, 12.0), 1e-05, -0.08332830029894467, 0.5032939870091222),
    ("binom", (X, 12.0), 3.0, 0.000505050505050505, -0.0008934583934583934),
    ("rel_entr", (X, 1e-300), 1000000000000000.0, 726.3143042931243, 1e-15),
    ("kl_div", (0.3, X), 100000000.0, 0.999999997, 3e-17),
    ("kl_div", (0.3, X), 1e+100, 1.0, 2.9999999999999997e-201),
    ("k1", (X,), 700.0, -4.676452304252103e-306, 4.679800979817707e-306),
    ("ive", (2, X), -300.0, 3.767021189127568e-05, 1.8596348842043098e-07),
    ("ive", (2, X), -100000.0, 6.307476492126701e-09, 9.460859927853576e-14),
    ("gammainc", (1.0, X), 1e-50, 1.0, -1.0),
    ("gammainc", (1.0, X), 1e-08, 0.9999999900000001, -0.9999999900000001),
    ("pdtr", (0, X), 1e-20, -1.0, 1.0),
    ("pdtr", (0, X), 1e-08, -0.9999999900000001, 0.9999999900000001),
    ("yv", (1.5, X), 1e-310, INF, -INF), ("kve", (2, X), 1e-310, -INF, INF), ("k1e", (X,), 1e-310, -INF, INF),
    ("spherical_yn", (2, X), 1e-200, INF, -INF), ("spherical_in", (0, X), 1e3, INF, INF),
    ("exprel", (X,), 1e5, INF, INF), ("boxcox", (2.0, X), 1e5, INF, INF), ("i1", (X,), 1e200, INF, INF),
]  # fmt: skip


@pytest.mark.parametrize(("name", "args", "x", "first", "second"), every(INEXACT, 3))
def test_two_orders_where_terms_would_cancel_or_overflow(name, args, x, first, second):
    leaf = tg.tensor(x, requires_grad=True)
    place = ts.special if name.startswith("spherical") else scipy.special
    with np.errstate(all="ignore"):
        (g,) = tg.grad(getattr(place, name)(*[leaf if a is X else a for a in args]), leaf, create_graph=True)
        found = g.item(), tg.grad(g, leaf)[0].item()
    assert found == pytest.approx((first, second), rel=1e-11, abs=0)


# ---------------------------------------------------------------- what is no ufunc

RANDOM = np.random.default_rng(0)
A, P, B = RANDOM.normal(size=(3, 4)), RANDOM.uniform(0.5, 3, (3, 4)), RANDOM.normal(size=(3, 4))
FUNCTIONS = [
    ("logsumexp", lambda s, x: s.logsumexp(x, axis=1), A),
    ("logsumexp, factors", lambda s, x: s.logsumexp(x, axis=0, b=np.abs(B)), A),
    ("logsumexp, one factor 0", lambda s, x: s.logsumexp(x, b=[[0.0], [1.0], [2.0]], keepdims=True), A),
    ("logsumexp, signs", lambda s, x: s.logsumexp(x, axis=0, b=B, return_sign=True)[0], A),
    ("logsumexp, by factors", lambda s, x: s.logsumexp(A, axis=0, b=x), P),
    ("softmax", lambda s, x: s.softmax(x, axis=1), A), ("softmax, of all", lambda s, x: s.softmax(x), A),
    ("log_softmax", lambda s, x: s.log_softmax(x, axis=(0, 1)), A),
    ("polygamma", lambda s, x: s.polygamma(2, x), P),
    ("polygamma, of several orders", lambda s, x: s.polygamma(np.array([0, 1, 2, 0]), x), P),
    ("polygamma of order 0", lambda s, x: s.polygamma(0, x), P),
    ("multigammaln", lambda s, x: s.multigammaln(x + 3, 3), P),
    ("factorial", lambda s, x: s.factorial(x), P), ("comb", lambda s, x: s.comb(x + 3, x), P),
    ("comb, repeated", lambda s, x: s.comb(x + 3, x, repetition=True), P),
    ("perm", lambda s, x: s.perm(x + 3, x), P), ("diric", lambda s, x: s.diric(x, 3), A),
    ("spherical_jn", lambda s, x: s.spherical_jn(2, x), A),
    ("spherical_yn", lambda s, x: s.spherical_yn(2, x), A),
    ("spherical_in", lambda s, x: s.spherical_in(2, x), A),
    ("spherical_kn", lambda s, x: s.spherical_kn(2, x), P),
    ("spherical_jn'", lambda s, x: s.spherical_jn(2, x, True), A),
    ("spherical_yn'", lambda s, x: s.spherical_yn(1, x, True), A),
    ("spherical_in'", lambda s, x: s.spherical_in(0, x, True), A),
    ("spherical_kn'", lambda s, x: s.spherical_kn(1, x, True), P),
]  # fmt: skip
OWN = [  # SciPy's functions around ufuncs, which take Tensors as they are
    ("zeta", lambda s, x: s.zeta(2.5, x), P), ("lambertw", lambda s, x: np.real(s.lambertw(x)), P),
    ("jvp", lambda s, x: s.jvp(2, x, 2), P), ("sinc", lambda s, x: s.sinc(x), A),
]  # fmt: skip


@pytest.mark.parametrize(
    ("place", "function", "x"),
    every([(ts.special, f, x) for _, f, x in FUNCTIONS] + [(scipy.special, f, x) for _, f, x in OWN], 4),
)
def test_functions_that_are_no_ufuncs(place, function, x):
    leaf = tg.tensor(x, requires_grad=True)
    found = function(place, leaf)
    np.testing.assert_allclose(found.detach().numpy(), function(scipy.special, x), rtol=1e-14)
    plain = function(place, x)
    assert not isinstance(plain, tg.Tensor)
    np.testing.assert_allclose(plain, function(scipy.special, x), rtol=1e-14)
    assert gradcheck(lambda x: function(place, x), [leaf], check_forward_ad=True, check_batched_grad=True)
    assert gradgradcheck(lambda x: function(place, x), [leaf])


def test_what_scipy_has_besides_is_its_own():
    assert ts.special.erf is scipy.special.erf
    assert {"erf", "softmax"} <= set(dir(ts.special))
    x = tg.tensor([-800.0, 800.0], requires_grad=True)
    (g,) = tg.grad(ts.special.logsumexp(x), x)
    np.testing.assert_array_equal(g.numpy(), [0.0, 1.0])


@pytest.mark.parametrize("way", ["sweep", "without Python's lock", "hooks", "recorded", "compiled"])
def test_what_scipy_is_told_to_raise_comes_as_itself(way):
    """An exception that a function of SciPy's has set while compiled code ran."""
    point = np.full(200_000 if way == "without Python's lock" else 3, 1e-300)

    def f(x):
        return np.sum(scipy.special.psi(x) * 2.0)

    called = tg.compile(f, wait=True) if way == "compiled" else f
    for _ in range(8):  # programs are learned
        tg.func.grad(called)(point + 1.0)
    x = tg.tensor(point, requires_grad=True)
    y = called(x)
    if way == "hooks":
        x.register_hook(lambda g: g)
    with scipy.special.errstate(all="raise"), pytest.raises(SpecialFunctionError, match="_zeta"):
        tg.grad(y, x, create_graph=way == "recorded")  # the derivative is zeta(2, x)
    x = tg.tensor(np.zeros(3), requires_grad=True)
    with scipy.special.errstate(all="raise"), pytest.raises(SpecialFunctionError, match="psi"):
        called(x)
    y = called(x)
    assert np.isneginf(y.item())
