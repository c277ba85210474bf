"""Filters and interpolation of `scipy.ndimage`: values as SciPy's, derivatives by differences."""

import numpy as np
import pytest
import scipy.ndimage

import tapegrad as tg
import tapegrad.scipy as ts
from tapegrad.autograd import gradcheck, gradgradcheck
from tapegrad.errors import UnsupportedOpError
from tests.tiers import thinned

IMAGE = np.random.default_rng(3).normal(size=(5, 4))
MODES = ["reflect", "mirror", "nearest", "wrap", "constant", "grid-mirror", "grid-wrap", "grid-constant"]


def leaf(x):
    return tg.tensor(np.asarray(x), requires_grad=True)


def check(name, args, more, again=False):
    """Values as SciPy's, and derivatives by arguments that are arrays of floats."""
    mine, theirs = getattr(ts.ndimage, name), getattr(scipy.ndimage, name)
    np.testing.assert_array_equal(mine(*args, **more), theirs(*args, **more))
    moving = [k for k, x in enumerate(args) if isinstance(x, np.ndarray)]

    def f(*xs):
        given = list(args)
        for k, x in zip(moving, xs, strict=True):
            given[k] = x
        return mine(*given, **more)

    inputs = [leaf(args[k]) for k in moving]
    np.testing.assert_allclose(f(*inputs).detach().numpy(), theirs(*args, **more), rtol=1e-10, atol=1e-12)
    assert gradcheck(f, inputs, check_forward_ad=True)
    if again:
        assert gradgradcheck(f, inputs)


@pytest.mark.parametrize("mode", thinned(MODES, lambda mode: False))
def test_filters(mode):
    three, four = np.array([0.2, -0.5, 1.0]), np.array([0.2, -0.5, 1.0, 0.3])
    for name in ("correlate1d", "convolve1d"):
        for weights, axis, origin in ((three, 0, 0), (four, 1, 0), (four, -1, 1), (three, 0, -1)):
            check(name, (IMAGE, weights), {"mode": mode, "axis": axis, "origin": origin, "cval": 0.7})


@pytest.mark.parametrize("axes", [(1, 0), (2, 0), (0, -1)])
def test_axes_of_weights_in_any_order(axes):
    """Weights have axes in the image's order, as of SciPy; origins only where others are left out."""
    image, weights = np.random.default_rng(4).normal(size=(3, 4, 2)), np.array([[0.3, 1.0], [-2.0, 0.7]])
    for name in ("correlate", "convolve"):
        check(name, (image if max(axes) > 1 else image[..., 0], weights), {"axes": axes, "origin": (-1, 0)})


@pytest.mark.full
@pytest.mark.parametrize("mode", MODES)
def test_filters_of_several_axes(mode):
    weights = np.random.default_rng(4).normal(size=(2, 3))
    for name in ("correlate", "convolve"):
        check(name, (IMAGE, weights), {"mode": mode, "cval": 0.7})
        check(name, (IMAGE, weights), {"mode": mode, "origin": (-1, 1)})
    check("gaussian_filter", (IMAGE, 0.8), {"mode": mode, "cval": 0.7})
    check("gaussian_filter", (IMAGE, (0.8, 0.3)), {"mode": mode, "order": (1, 2), "truncate": 3.0})
    check("gaussian_filter1d", (IMAGE, 1.5), {"mode": mode, "axis": 0})
    check("uniform_filter1d", (IMAGE, 4), {"mode": mode, "origin": 1})
    check("uniform_filter", (IMAGE, (3, 2)), {"mode": mode})
    check("sobel", (IMAGE,), {"mode": mode, "cval": 0.7})
    check("prewitt", (IMAGE, 0), {"mode": [mode, "nearest"]})
    check("laplace", (IMAGE,), {"mode": mode, "cval": 0.7})
    check("gaussian_laplace", (IMAGE, (0.8, 0.5)), {"mode": mode, "truncate": 3.0})
    check("gaussian_gradient_magnitude", (IMAGE, 0.8), {"mode": mode})


def test_derivatives_of_an_image_along_some_axes():
    smoothed = [(name, (0.8,)) for name in ("gaussian_laplace", "gaussian_gradient_magnitude")]
    for name, more in (("laplace", ()), *smoothed):
        check(name, (IMAGE, *more), {"axes": (1,), "mode": "wrap"})
        check(name, (IMAGE, *more), {"axes": ()})
    x = leaf(np.ones((3, 3)))  # flat
    assert not tg.grad(ts.ndimage.gaussian_gradient_magnitude(x, 0.8).sum(), x)[0].numpy().any()


@pytest.mark.full
def test_second_derivatives_of_filters():
    check("correlate1d", (IMAGE, np.array([0.2, -0.5, 1.0])), {}, again=True)


AT = np.array([[0.3, 1.9, 3.6, 2.2, 1.0], [0.4, 2.7, 1.1, 2.9, 0.5]])
BEYOND = np.array([[-0.6, 4.3, 5.8, -7.3, 9.7, -1.2], [0.4, 3.3, -2.2, 7.9, 1.3, -0.3]])
CELLS = [(order, mode) for order in range(6) for mode in MODES[:-1]]


@pytest.mark.parametrize(("order", "mode"), thinned(CELLS, lambda *row: row == (1, "mirror")))
def test_map_coordinates(order, mode):
    more = {"order": order, "mode": mode, "cval": 0.7}
    for at in (AT, BEYOND):
        mine = ts.ndimage.map_coordinates(leaf(IMAGE), at, **more)
        theirs = scipy.ndimage.map_coordinates(IMAGE, at, **more)
        np.testing.assert_allclose(mine.detach().numpy(), theirs, rtol=1e-9, atol=1e-11)
        plain = ts.ndimage.map_coordinates(leaf(IMAGE), at, prefilter=False, **more).detach().numpy()
        theirs = scipy.ndimage.map_coordinates(IMAGE, at, prefilter=False, **more)
        np.testing.assert_allclose(plain, theirs, rtol=1e-10)
    if order == 0:
        assert gradcheck(lambda x: ts.ndimage.map_coordinates(x, AT, **more), [leaf(IMAGE)])
        with pytest.raises(UnsupportedOpError, match="order 0"):
            ts.ndimage.map_coordinates(IMAGE, leaf(AT), **more)
        return
    for at in (AT[:, :4], BEYOND):
        assert gradcheck(
            lambda x, at: ts.ndimage.map_coordinates(x, at, **more), [leaf(IMAGE), leaf(at)],
            check_forward_ad=at is BEYOND)  # fmt: skip
    if order == 3:
        assert gradgradcheck(
            lambda x, at: ts.ndimage.map_coordinates(x, at, **more), [leaf(IMAGE), leaf(AT[:, :2])]
        )


@pytest.mark.full
def test_what_is_not_there_is_refused():
    x = leaf(IMAGE)
    for call, words in (
        (lambda: ts.ndimage.gaussian_filter(IMAGE, x[0, 0]), "gaussian_filter has no derivative by sigma"),
        (lambda: ts.ndimage.correlate1d(x, [1.0], output=np.zeros((5, 4))), "correlate1d with output="),
        (lambda: ts.ndimage.median_filter(x, 3), "scipy.ndimage.median_filter"),
        (lambda: ts.ndimage.map_coordinates(x, AT, mode="grid-constant"), "grid-constant"),
    ):
        with pytest.raises(UnsupportedOpError, match=words):
            call()
    np.testing.assert_array_equal(ts.ndimage.median_filter(IMAGE, 3), scipy.ndimage.median_filter(IMAGE, 3))


MATRIX, OFFSET = np.array([[0.8, 0.2], [-0.1, 1.1]]), np.array([0.3, -0.4])
MOVED = [
    ("affine_transform", (IMAGE, MATRIX, OFFSET), {}),
    ("affine_transform", (IMAGE, np.column_stack([MATRIX, OFFSET])), {}),
    ("affine_transform", (IMAGE, np.vstack([np.column_stack([MATRIX, OFFSET]), [0.0, 0.0, 1.0]])), {}),
    ("affine_transform", (IMAGE, np.array([0.7, 0.6]), 0.2), {"output_shape": (3, 6)}),
    ("shift", (IMAGE, OFFSET), {}),
    ("shift", (IMAGE, np.array(0.3)), {"prefilter": False}),
    ("zoom", (IMAGE, (1.7, 0.6)), {}),
    ("zoom", (IMAGE, 1.5), {"grid_mode": True, "mode": "grid-wrap"}),
    ("zoom", (IMAGE, (0.2, 2.0)), {"mode": "nearest"}),
]


@pytest.mark.filterwarnings("ignore:The behavior of affine_transform:UserWarning")  # older SciPy's
@pytest.mark.parametrize("row", range(len(MOVED)))
@pytest.mark.parametrize("order", thinned([0, 1, 2, 3, 5], lambda order: order == 3))
def test_images_moved(order, row):
    name, args, more = MOVED[row]
    mine, theirs = getattr(ts.ndimage, name), getattr(scipy.ndimage, name)
    more = {"mode": "mirror", **more, "order": order}
    moving = [k for k, x in enumerate(args) if isinstance(x, np.ndarray) and np.shape(x) != (3, 3)]
    moving = moving[:1] if order < 2 else moving  # of order 1 the slope by a place jumps at elements
    inputs = [leaf(args[k]) for k in moving]

    def f(*xs):
        return mine(*(xs[moving.index(k)] if k in moving else x for k, x in enumerate(args)), **more)

    np.testing.assert_allclose(f(*inputs).detach().numpy(), theirs(*args, **more), rtol=1e-9, atol=1e-11)
    np.testing.assert_array_equal(mine(*args, **more), theirs(*args, **more))
    assert gradcheck(f, inputs, check_forward_ad=True)


def test_second_derivatives_of_an_image_moved():
    inputs = [leaf(IMAGE[:3, :3]), leaf(OFFSET)]
    assert gradgradcheck(lambda x, by: ts.ndimage.shift(x, by, mode="reflect"), inputs, fast_mode=True)


def test_what_images_moved_refuse():
    with pytest.raises(UnsupportedOpError, match="factors"):
        ts.ndimage.zoom(IMAGE, leaf(2.0))
    with pytest.raises(RuntimeError, match="offset"):
        ts.ndimage.affine_transform(leaf(IMAGE), MATRIX, [1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match="homogeneous"):
        ts.ndimage.affine_transform(leaf(IMAGE), np.ones((3, 3)))
