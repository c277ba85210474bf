"""Interpolants of `scipy.interpolate`: values as SciPy's, derivatives of linear maps and by differences."""

import numpy as np
import pytest
import scipy.interpolate
from scipy.sparse.linalg import spsolve

import tapegrad as tg
import tapegrad.scipy as ts
from tapegrad.autograd import gradcheck, gradgradcheck
from tapegrad.errors import UnsupportedOpError
from tests.tensors import leaf
from tests.tiers import thinned

X = np.array([0.0, 0.7, 1.5, 2.0, 3.1, 3.9])
Y = np.random.default_rng(3).normal(size=(2, 6, 3))
AT = np.array([[0.3, 0.7, 1.9], [2.6, 3.9, 3.0]])
OURS, SCIPY = ts.interpolate, scipy.interpolate
PIECES = {
    "not-a-knot": (OURS.CubicSpline, SCIPY.CubicSpline, {}),
    "natural": (OURS.CubicSpline, SCIPY.CubicSpline, {"bc_type": "natural"}),
    "clamped": (OURS.CubicSpline, SCIPY.CubicSpline, {"bc_type": "clamped"}),
    "values": (
        OURS.CubicSpline,
        SCIPY.CubicSpline,
        {"bc_type": ((1, np.ones((2, 3))), (2, np.zeros((2, 3))))},
    ),
    "pchip": (OURS.PchipInterpolator, SCIPY.PchipInterpolator, {}),
    "akima": (OURS.Akima1DInterpolator, SCIPY.Akima1DInterpolator, {}),
    "makima": (OURS.Akima1DInterpolator, SCIPY.Akima1DInterpolator, {"method": "makima"}),
    "hermite": (OURS.CubicHermiteSpline, SCIPY.CubicHermiteSpline, {"dydx": Y[:, ::-1]}),
    "linear": (OURS.make_interp_spline, SCIPY.make_interp_spline, {"k": 1}),
    "quadratic": (OURS.make_interp_spline, SCIPY.make_interp_spline, {"k": 2}),
    "cubic": (OURS.make_interp_spline, SCIPY.make_interp_spline, {}),
    "quintic": (OURS.make_interp_spline, SCIPY.make_interp_spline, {"k": 5}),
    "natural spline": (OURS.make_interp_spline, SCIPY.make_interp_spline, {"bc_type": "natural"}),
}


@pytest.mark.parametrize("kind", thinned(PIECES, lambda kind: kind == "values"))
def test_pieces(kind):
    mine, theirs, more = PIECES[kind]
    theirs = theirs(X, Y, axis=1, **more)
    found, data = mine(X, leaf(Y), axis=1, **more), mine(X, Y, axis=1, **more)
    for nu in (0, 1):
        np.testing.assert_allclose(
            found(leaf(AT), nu).detach().numpy(), theirs(AT, nu), rtol=1e-11, atol=1e-12)  # fmt: skip
        np.testing.assert_allclose(data(AT, nu), theirs(AT, nu), rtol=1e-11, atol=1e-12)
    assert gradcheck(lambda y: mine(X, y, axis=1, **more)(AT), [leaf(Y)], check_forward_ad=True)
    # away from knots, where a derivative may jump
    inner = leaf(np.where(np.isin(AT, X), AT + 0.05 - 0.1 * (AT > 3), AT))
    np.testing.assert_allclose(
        tg.grad(found(inner).sum(), inner)[0].numpy(),
        theirs(inner.detach().numpy(), 1).sum(axis=(0, 3)), rtol=1e-10, atol=1e-11)  # fmt: skip
    derivative = found.derivative()
    np.testing.assert_allclose(
        derivative(AT).detach().numpy(), theirs.derivative()(AT), rtol=1e-10, atol=1e-11
    )
    whole = found.integrate(0.2, leaf(3.0))
    np.testing.assert_allclose(whole.detach().numpy(), theirs.integrate(0.2, 3.0), rtol=1e-11, atol=1e-12)


@pytest.mark.full
def test_second_derivatives_of_a_spline():
    assert gradgradcheck(lambda y, x: OURS.CubicSpline(X, y)(x), [leaf(Y[0, :, 0]), leaf([0.3, 2.5])])
    assert gradgradcheck(
        lambda y, x: OURS.PchipInterpolator(X, y)(x), [leaf(np.cumsum(X + 0.5)), leaf([0.3, 2.5])]
    )


def test_slopes_of_hermite_and_coefficients():
    """By the other operand; akima where data are flat, or few."""
    assert gradcheck(lambda d: OURS.CubicHermiteSpline(X, Y, d, axis=1)(AT), [leaf(Y[::-1])], fast_mode=True)
    c = np.random.default_rng(4).normal(size=(2, 3, 5))
    for more in ({}, {"extrapolate": False}, {"extrapolate": "periodic"}):
        mine, theirs = OURS.PPoly(leaf(c), X, axis=1, **more), SCIPY.PPoly(c, X, axis=1, **more)
        at = np.array([-0.3, 0.7, 1.9, 3.9, 5.0])
        np.testing.assert_allclose(mine(at).detach().numpy(), theirs(at), rtol=1e-12, atol=1e-13)
    assert gradcheck(lambda c, x: OURS.PPoly(c, X, axis=1)(x), [leaf(c), leaf([0.3, 2.5])], fast_mode=True)
    assert gradgradcheck(lambda y: OURS.Akima1DInterpolator(X, y)(AT[0]), [leaf(np.cumsum(X + 0.5))])
    for method in ("akima", "makima"):
        for data in ([0.0, 0, 0, 1, 2, 3, 3, 3, 3, 5], [1.0, 4.0], [1.0, 4.0, 3.3]):
            knots, y = np.arange(len(data)), leaf(np.array(data))
            at = np.linspace(0, knots[-1], 17)
            mine = OURS.Akima1DInterpolator(knots, y, method=method)(at)
            theirs = SCIPY.Akima1DInterpolator(knots, data, method=method)(at)
            if len(data) == 2:  # of which an older SciPy reads memory that nobody has written to
                theirs = np.interp(at, knots, data)
            np.testing.assert_allclose(mine.detach().numpy(), theirs, atol=1e-14)
            assert np.all(np.isfinite(tg.grad(mine.sum(), y)[0].numpy()))


def test_a_knot_has_the_slope_of_the_piece_to_the_right():
    x = leaf([1.0, 2.0])
    y = OURS.make_interp_spline([0.0, 1.0, 2.0], [0.0, 1.0, 4.0], k=1)
    np.testing.assert_allclose(tg.grad(y(x).sum(), x)[0].numpy(), [3.0, 3.0], rtol=1e-14)


def test_beyond_the_ends():
    x, y = leaf([-1.0, 0.5, 5.0]), leaf(X**3)
    for extrapolate in (True, False):
        mine, theirs = (
            OURS.CubicSpline(X, y, extrapolate=extrapolate),
            SCIPY.CubicSpline(X, X**3, extrapolate=extrapolate),
        )
        np.testing.assert_allclose(mine(x).detach().numpy(), theirs(x.detach().numpy()), rtol=1e-10)
        (g,) = tg.grad(mine(x), x, np.ones(3))
        wanted = theirs(x.detach().numpy(), 1)
        np.testing.assert_allclose(g.numpy(), wanted if extrapolate else [0.0, wanted[1], 0.0], rtol=1e-10)
    c = np.ones((2, len(X) - 1))
    mine, theirs = (m.PPoly(y, X, "periodic").antiderivative() for m, y in ((OURS, leaf(c)), (SCIPY, c)))
    np.testing.assert_allclose(mine(x).detach().numpy(), theirs(x.detach().numpy()))  # nan, it has no period


@pytest.mark.full
def test_periodic():
    data = np.array([0.0, 1.0, -0.5, 2.0, 0.3, 0.0])
    theirs = SCIPY.CubicSpline(X, data, bc_type="periodic")
    mine = OURS.CubicSpline(X, leaf(data), bc_type="periodic")
    at = leaf([-1.2, 0.5, 7.0])
    np.testing.assert_allclose(mine(at).detach().numpy(), theirs(at.detach().numpy()), rtol=1e-11)
    np.testing.assert_allclose(
        tg.grad(mine(at), at, np.ones(3))[0].numpy(), theirs(at.detach().numpy(), 1), rtol=1e-10)  # fmt: skip


@pytest.mark.full
def test_bspline():
    t, c = np.array([0, 0, 0, 0, 1.0, 1.5, 1.5, 2, 2, 2, 2]), np.random.default_rng(5).normal(size=(7, 2))
    mine, theirs = OURS.BSpline(t, leaf(c), 3), SCIPY.BSpline(t, c, 3)
    at = np.array([0.0, 0.7, 1.5, 1.7, 2.0, 2.5])
    np.testing.assert_allclose(mine(leaf(at)).detach().numpy(), theirs(at), rtol=1e-11)
    assert gradcheck(lambda c: OURS.BSpline(t, c, 3)(at), [leaf(c)])


KINDS = ["linear", "slinear", "quadratic", "cubic", "nearest", "nearest-up", "previous", "next", "zero", 3]


@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fill", [None, np.nan, (1.0, 2.0), "extrapolate"], ids=str)
def test_interp1d(kind, fill):
    more = {} if fill is None else {"fill_value": fill, "bounds_error": False}
    order = np.array([2, 0, 1, 5, 3, 4])
    at = AT if fill is None else np.concatenate([AT, [[-0.5, 4.2, np.nan]]])
    theirs = SCIPY.interp1d(X[order], Y[:, order], kind, axis=1, **more)
    mine = OURS.interp1d(X[order], leaf(Y[:, order]), kind, axis=1, **more)
    np.testing.assert_allclose(mine(at).detach().numpy(), theirs(at), rtol=1e-11, atol=1e-12)
    assert gradcheck(
        lambda y: np.where(np.isnan(theirs(at)), 0.0, OURS.interp1d(X[order], y, kind, axis=1, **more)(at)),
        [leaf(Y[:, order])])  # fmt: skip
    x = leaf([0.3, 2.5])
    if kind in OURS.interp1d.STEPS:
        with pytest.raises(UnsupportedOpError, match="interp1d of kind"):
            mine(x)
    else:
        (g,) = tg.grad(mine(x).sum(), x)
        h = 1e-6
        slope = (theirs(x.detach().numpy() + h) - theirs(x.detach().numpy() - h)) / (2 * h)
        np.testing.assert_allclose(g.numpy(), slope.sum(axis=(0, 2)), rtol=1e-6, atol=1e-7)


@pytest.mark.full
def test_interp1d_out_of_bounds():
    with pytest.raises(ValueError, match="interpolation range"):
        OURS.interp1d(X, leaf(X))(9.0)


GRID = (np.array([0.0, 1.0, 2.5]), np.array([3.0, 2.0, 0.5, 0.0]))
VALUES = np.random.default_rng(6).normal(size=(3, 4, 2))


@pytest.mark.parametrize("several", thinned([False, True], lambda several: not several))
def test_regular_grid(several):
    values = VALUES if several else VALUES[..., 0]
    at = np.array([[0.4, 1.2], [2.5, 3.0], [1.9, 0.1]])
    theirs = SCIPY.RegularGridInterpolator(GRID, values)
    mine = OURS.RegularGridInterpolator(GRID, leaf(values))
    np.testing.assert_allclose(mine(leaf(at)).detach().numpy(), theirs(at), rtol=1e-12)
    np.testing.assert_allclose(mine((at[:, 0], at[:, 1])).detach().numpy(), theirs(at), rtol=1e-12)
    inner = leaf([[0.4, 1.2], [1.9, 0.1]])
    assert gradcheck(
        lambda v, x: OURS.RegularGridInterpolator(GRID, v)(x), [leaf(values), inner], check_forward_ad=True
    )
    assert gradgradcheck(lambda v, x: OURS.RegularGridInterpolator(GRID, v)(x), [leaf(values), inner])


@pytest.mark.full
def test_regular_grid_beyond_the_ends_and_nearest():
    at = np.array([[-0.4, 1.2], [0.4, 3.4], [1.9, 0.1], [np.nan, 1.0]])
    for fill in (None, np.nan, 7.0):
        more = {"bounds_error": False, "fill_value": fill}
        theirs = SCIPY.RegularGridInterpolator(GRID, VALUES, **more)
        mine = OURS.RegularGridInterpolator(GRID, leaf(VALUES), **more)
        v = leaf(VALUES)
        mine = OURS.RegularGridInterpolator(GRID, v, **more)
        np.testing.assert_allclose(mine(leaf(at)).detach().numpy(), theirs(at), rtol=1e-12)
        np.testing.assert_allclose(tg.grad(mine(at)[:3].sum(), v)[0].numpy().sum(), 6 if fill is None else 2)
        np.testing.assert_array_equal(mine(at[1:3], "nearest").detach().numpy(), theirs(at[1:3], "nearest"))
    with pytest.raises(ValueError, match="out of bounds"):
        OURS.RegularGridInterpolator(GRID, leaf(VALUES))(at[:1])
    with pytest.raises(UnsupportedOpError, match="nearest"):
        mine(leaf(at), "nearest")
    with pytest.raises(UnsupportedOpError, match="pchip"):
        OURS.RegularGridInterpolator((X, X), leaf(np.outer(X, X)), "pchip")([[1.0, 1.0]])


WIDE = (X, np.array([3.0, 2.5, 1.9, 1.0, 0.4, 0.0]))
SMOOTH = np.random.default_rng(9).normal(size=(6, 6, 2))


@pytest.mark.parametrize("method", thinned(["slinear", "cubic", "quintic"], lambda method: method == "cubic"))
def test_splines_on_a_regular_grid(method):
    """A linear function of the data; of places as its derivative, which SciPy has by `nu`."""
    solved = {"solver": spsolve}  # else its values are those of an iteration
    at = np.array([[0.4, 1.2], [3.8, 2.7], [1.9, 0.1], [2.3, 2.2]])
    theirs = SCIPY.RegularGridInterpolator(WIDE, SMOOTH, method, **solved)
    mine = OURS.RegularGridInterpolator(WIDE, SMOOTH, method, **solved)
    x, v = leaf(at), leaf(SMOOTH)
    np.testing.assert_allclose(mine(x).detach().numpy(), theirs(at), rtol=1e-11)
    (g,) = tg.grad(mine(x)[..., 1].sum(), x)
    np.testing.assert_allclose(g.numpy().T, [theirs(at, nu=nu)[:, 1] for nu in ((1, 0), (0, 1))], rtol=1e-9)
    off = np.cos(np.arange(72.0)).reshape(SMOOTH.shape)
    (g,) = tg.grad(OURS.RegularGridInterpolator(WIDE, v, method, **solved)(at, nu=(0, 1)).sum(), v)
    expected = SCIPY.RegularGridInterpolator(WIDE, off, method, **solved)(at, nu=(0, 1)).sum()
    assert np.sum(g.numpy() * off) == pytest.approx(expected, rel=1e-10)
    assert gradgradcheck(lambda x: mine(x), [x], fast_mode=True)
    rough = SCIPY.RegularGridInterpolator(WIDE, SMOOTH, method, bounds_error=False, fill_value=-1.0)
    again = OURS.RegularGridInterpolator(WIDE, SMOOTH, method, bounds_error=False, fill_value=-1.0)
    beyond = np.array([[0.4, 1.2], [9.0, 1.0], [np.nan, 1.0]])
    np.testing.assert_allclose(again(leaf(beyond)).detach().numpy(), rough(beyond), rtol=1e-14)


@pytest.mark.parametrize(("kx", "ky"), thinned([(3, 3), (2, 4)], lambda kx, ky: ky == 3))
def test_splines_of_two_variables(kx, ky):
    z, y = SMOOTH[..., 0], WIDE[1][::-1].copy()
    theirs = SCIPY.RectBivariateSpline(X, y, z, kx=kx, ky=ky)
    inside, beyond = np.array([0.3, 1.9, 3.3]), np.array([-1.0, 1.9, 9.0])  # as at the ends there

    def mine(z, *args, **kwargs):
        return OURS.RectBivariateSpline(X, y, z, kx=kx, ky=ky)(*args, **kwargs)

    for grid in (True, False):
        for at in (inside, beyond):
            found = mine(leaf(z), leaf(at), leaf(at), grid=grid).detach().numpy()
            np.testing.assert_allclose(found, theirs(at, at, grid=grid), rtol=1e-10, atol=1e-12)
        f = lambda z, a, b, grid=grid: mine(z, a, b, grid=grid)
        given = leaf(z), leaf(inside), leaf(inside - 0.2)
        assert gradcheck(f, given, check_forward_ad=True, fast_mode=True)
        assert gradgradcheck(f, given, fast_mode=True)
    for at, slope in (inside, theirs.ev(inside, 1.0, dx=1)), (beyond, [0.0, theirs.ev(1.9, 1.0, dx=1), 0.0]):
        a = leaf(at)
        (g,) = tg.grad(mine(z, a, 1.0, grid=False).sum(), a)
        np.testing.assert_allclose(g.numpy(), slope, rtol=1e-10)
    with pytest.raises(UnsupportedOpError, match=r"with s=0\.1"):
        OURS.RectBivariateSpline(X, y, leaf(z), s=0.1)


def test_interpolation_without_an_object():
    at = np.array([[0.4, 1.2], [9.0, 0.1], [2.3, 2.2]])
    grid, values = (X, WIDE[1][::-1].copy()), leaf(SMOOTH[..., 0])
    for method in ("linear", "nearest", "cubic", "splinef2d"):
        given = method, False, -3.0
        for places in (at, (at[:, 0], at[:, 1])):
            found = OURS.interpn(grid, values, places, *given)
            expected = SCIPY.interpn(grid, SMOOTH[..., 0], places, *given)
            np.testing.assert_allclose(found.detach().numpy(), expected, rtol=1e-11)
        (g,) = tg.grad(found.sum(), values)
        assert g.numpy().sum() == pytest.approx(2.0, rel=1e-12)  # weights of two places add up to 1 each
    with pytest.raises(ValueError, match="out of bounds"):
        OURS.interpn(grid, values, at)


SCATTERED = np.random.default_rng(10).uniform(size=(12, 2))
INNER = np.random.default_rng(11).uniform(0.35, 0.65, size=(2, 3, 2))


@pytest.mark.parametrize("rescale", [False, True])
@pytest.mark.parametrize("several", [False, True])
def test_scattered_places(rescale, several):
    """Linear in each triangle: a function of the data and, between them, of places."""
    data = np.random.default_rng(12).normal(size=(12, 2) if several else 12)
    beyond = np.concatenate([INNER[0], [[-1.0, 2.0], [np.nan, 0.5]]])
    linear = SCIPY.LinearNDInterpolator(SCATTERED, data, -2.0, rescale)
    nearest = SCIPY.NearestNDInterpolator(SCATTERED, data, rescale)
    mine = lambda v, *x: OURS.LinearNDInterpolator(SCATTERED, v, -2.0, rescale)(*x)
    for at in ((beyond,), (INNER,), (INNER[..., 0], 0.5), (INNER[0, 0],)):
        found = mine(leaf(data), *at).detach().numpy()
        np.testing.assert_allclose(found, linear(*at), rtol=1e-12, atol=1e-14, strict=True)
        if at[0] is not beyond:
            found = OURS.NearestNDInterpolator(SCATTERED, leaf(data), rescale)(*at).detach().numpy()
            np.testing.assert_array_equal(found, nearest(*at), strict=True)
    assert gradcheck(mine, [leaf(data), leaf(INNER[0])], check_forward_ad=True, fast_mode=True)
    assert gradgradcheck(mine, [leaf(data), leaf(INNER[0])], fast_mode=True)
    x = leaf(beyond[-2:-1])
    assert not np.any(tg.grad(mine(data, x).sum(), x)[0].numpy())
    for method in ("linear", "nearest"):
        given = method, -2.0, rescale
        found = OURS.griddata(SCATTERED, leaf(data), (INNER[..., 0], INNER[..., 1]), *given).detach().numpy()
        np.testing.assert_allclose(found, SCIPY.griddata(SCATTERED, data, INNER, *given), rtol=1e-11)


def test_scattered_places_on_a_line_and_what_is_refused():
    places, data = X[[2, 0, 5, 1, 3, 4]], Y[0, :, 0]
    for method in ("linear", "nearest", "cubic"):
        for points in (places, (places,)):
            found = OURS.griddata(points, leaf(data), AT, method).detach().numpy()
            np.testing.assert_allclose(found, SCIPY.griddata(points, data, AT, method), rtol=1e-11)
    x = leaf(INNER)
    with pytest.raises(UnsupportedOpError, match="NearestNDInterpolator has no derivative by the places"):
        OURS.NearestNDInterpolator(SCATTERED, SCATTERED[:, 0])(x)
    with pytest.raises(UnsupportedOpError, match="method='cubic'"):
        OURS.griddata(SCATTERED, SCATTERED[:, 0], x, "cubic")
    with pytest.raises(UnsupportedOpError, match="LinearNDInterpolator has no derivative by points"):
        OURS.LinearNDInterpolator(leaf(SCATTERED), SCATTERED[:, 0])


def test_coefficients_have_derivatives():
    y = leaf(X**2)
    for spline, theirs in (
        (OURS.CubicSpline(X, y), SCIPY.CubicSpline(X, X**2)),
        (OURS.make_interp_spline(X, y), SCIPY.make_interp_spline(X, X**2)),
    ):
        np.testing.assert_allclose(spline.c.detach().numpy(), theirs.c, atol=1e-12)
        assert tg.grad(spline.c.sum(), y)[0].shape == y.shape


def test_plain_data_is_scipys():
    np.testing.assert_array_equal(OURS.CubicSpline(X, X**2)(AT), SCIPY.CubicSpline(X, X**2)(AT))
    assert OURS.CubicSpline(X, X**2).roots().shape == SCIPY.CubicSpline(X, X**2).roots().shape
    assert OURS.splrep(X, X**2)[2] == 3 and OURS.NdPPoly is SCIPY.NdPPoly


@pytest.mark.full
def test_what_is_not_there_is_refused():
    for call, words in (
        (lambda: OURS.CubicSpline(leaf(X), X), "CubicSpline has no derivative by x"),
        (lambda: OURS.make_interp_spline(X, leaf(np.ones(6)), bc_type="periodic"), "periodic"),
        (lambda: OURS.splrep(X, leaf(X)), "scipy.interpolate.splrep"),
        (lambda: OURS.CubicSpline(X, leaf(X)).roots(), "CubicSpline.roots"),
        (lambda: OURS.interp1d(X, leaf(X)).y, "interp1d.y"),
        (lambda: OURS.RegularGridInterpolator(GRID, leaf(VALUES)).values, "RegularGridInterpolator.values"),
        (lambda: OURS.interp1d(X, X, fill_value=leaf(1.0), bounds_error=False), "fill_value"),
    ):
        with pytest.raises(UnsupportedOpError, match=words):
            call()


RADIAL = {
    "linear": None, "thin_plate_spline": None, "cubic": None, "quintic": None, "multiquadric": 2.0,
    "inverse_multiquadric": 2.0, "inverse_quadratic": 2.0, "gaussian": 2.0,
}  # fmt: skip
PLACES = np.random.default_rng(7).uniform(size=(9, 2))
DATA = np.random.default_rng(8).normal(size=(9, 3))


@pytest.mark.parametrize("kernel", thinned(RADIAL, lambda kernel: kernel in ("cubic", "gaussian")))
def test_radial(kernel):
    more, at = {"kernel": kernel, "epsilon": RADIAL[kernel]}, PLACES[:3] + 0.05
    make = lambda m, d, **k: m.RBFInterpolator(PLACES, d, **more, **k)
    for data, given in ((DATA, {}), (DATA[:, 0], {"smoothing": 0.1, "degree": 2}), (DATA + 1j, {})):
        mine = make(OURS, leaf(data, data.dtype), **given)(PLACES).detach().numpy()
        np.testing.assert_allclose(mine, make(SCIPY, data, **given)(PLACES), atol=1e-8)
    f = lambda d, x: make(OURS, d)(x)
    assert gradcheck(f, [leaf(DATA), leaf(at)], check_forward_ad=True, fast_mode=True)
    assert gradgradcheck(f, [leaf(DATA), leaf(at)], fast_mode=True)
    x = leaf(PLACES)
    assert np.all(np.isfinite(tg.grad(f(DATA, x).sum(), x)[0].numpy()))
    np.testing.assert_array_equal(f(DATA, at), make(SCIPY, DATA)(at))


def test_what_radial_functions_are_made_of():
    at, weights = PLACES + 0.05, leaf(np.full(9, 0.2))
    smooth = lambda s, e: OURS.RBFInterpolator(PLACES, DATA, smoothing=s, kernel="gaussian", epsilon=e)(at)
    assert gradcheck(smooth, [weights, leaf(2.0)], fast_mode=True)
    near = OURS.RBFInterpolator(PLACES, leaf(DATA), neighbors=3)
    for call, words in (
        (lambda: near(at), "RBFInterpolator has no derivative with neighbors"),
        (lambda: OURS.RBFInterpolator(leaf(PLACES), DATA), "no derivative by y"),
        (lambda: OURS.RBFInterpolator(PLACES, leaf(DATA)).d, "RBFInterpolator.d"),
    ):
        with pytest.raises(UnsupportedOpError, match=words):
            call()
    with pytest.raises(ValueError, match=r"places have shape \(m, 2\), found shape \(2, 3\)"):
        OURS.RBFInterpolator(PLACES, leaf(DATA))(np.ones((2, 3)))
