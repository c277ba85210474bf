"""Arrays built of the elements of others, joined and taken apart."""

import numpy as np
import pytest

import tapegrad as tg
from tapegrad import errors
from tests.tiers import NEWEST_NUMPY, every

from .rows import check

A, V, S, T3, M = (2, 3), (3,), (), (2, 3, 2), (3, 3)

ROWS = [
    ("repeat", lambda x: np.repeat(x, 2), [A]),
    ("repeat along an axis", lambda x: np.repeat(x, [1, 0, 3], axis=1) * np.repeat(x, 4, -1)[:, ::3], [A]),
    ("repeat, method", lambda x: x.repeat(2, axis=0), [A]),
    ("tile", lambda x: np.tile(x, 2), [A]), ("tile, more axes", lambda x: np.tile(x, (2, 1, 2)), [V]),
    ("tile once", lambda x: np.tile(x, 1), [V]), ("tile of 0-d", lambda x: np.tile(x, (2, 2)), [S]),
    ("tile by 0", lambda x: np.concatenate([np.tile(x, (0, 2)), np.tile(x, (1, 2))]), [A]),
    ("resize", lambda x: np.resize(x, (3, 3)) * np.resize(x, 3), [A]),
    ("roll", lambda x: np.roll(x, 2) + np.roll(x, -1, 1) + np.roll(x, (1, 2), (0, 1)), [A]),
    ("roll, more", lambda x: np.roll(x, 7, axis=-1) + np.roll(x, 1, (0, 1)) + np.roll(x, (1, 2), 1), [A]),
    ("rot90", lambda x: np.stack([np.rot90(x, k, (1, 2)).reshape(2, 3, 2) for k in range(-1, 5)]), [T3]),
    ("rot90, default", lambda x: np.rot90(x), [T3]),
    ("fliplr, flipud", lambda x: np.fliplr(x) * np.flipud(x), [A]),
    ("rollaxis", lambda x: np.rollaxis(x, 2) + 0 * np.rollaxis(x, 2, 0), [T3]),
    ("rollaxis to an end", lambda x: np.rollaxis(x, 0, 3) * np.rollaxis(x, -3, 3), [T3]),
    ("rollaxis back", lambda x: np.rollaxis(x, 1, -1), [T3]),
    ("insert", lambda x, y: np.insert(x, 1, y), [A, S]),
    ("insert rows", lambda x, y: np.insert(x, [0, 2], y, axis=0), [A, A]),
    ("insert columns", lambda x, y: np.insert(x, 1, y, axis=1), [A, (2,)]),
    ("insert, several", lambda x: np.insert(x, [1, 1, 3], [1.0, 2.0, 3.0], axis=-1), [A]),
    ("insert by a slice", lambda x, y: np.insert(x, slice(0, 2), y), [V, (2,)]),
    ("insert Tensors into an array", lambda y: np.insert(np.arange(4.0), 2, y), [S]),
    ("delete", lambda x: np.delete(x, 1), [A]),
    ("delete rows", lambda x: np.delete(x, [0, -1], axis=1) * np.delete(x, slice(0, 2), 1), [A]),
    ("delete by a mask", lambda x: np.delete(x, np.array([True, False, True]), axis=1), [A]),
    ("append", lambda x, y: np.append(x, y), [A, V]),
    ("append rows", lambda x, y: np.append(x, y[None], axis=0), [A, V]),
    ("append numbers", lambda x: np.append(x, [1, 2]) * np.append([1.0, 2], x), [V]),
    ("trim_zeros", lambda x: np.trim_zeros(x * np.array([0.0, 1, 0, 1, 0])), [(5,)]),
    ("trim_zeros, ends", lambda x: np.trim_zeros(x * np.array([0.0, 1, 0]), "f") *
     np.trim_zeros(x * np.array([0.0, 1, 0]), trim="b"), [V]),
    ("windows", lambda x: np.lib.stride_tricks.sliding_window_view(x, 2) ** 2, [V]),
    ("windows of axes", lambda x: np.lib.stride_tricks.sliding_window_view(x**2, (2, 1), (1, 0)), [(2, 3)]),
    ("diagonal", lambda x: np.diagonal(x) * np.diagonal(x, 0, 1, 0), [M]),
    ("diagonal, offsets", lambda x: np.concatenate([x.diagonal(k) for k in range(-4, 5)]), [(3, 4)]),
    ("diagonal, tall", lambda x: np.concatenate([np.diagonal(x, k) for k in range(-4, 4)]), [(4, 2)]),
    ("diagonal of axes", lambda x: np.diagonal(x, 1, 2, 0) * np.diagonal(x, axis1=0, axis2=-1), [T3]),
    ("trace", lambda x: np.trace(x) * x.trace(1) + np.trace(x, -1), [M]),
    ("trace of axes", lambda x: np.trace(x, 0, 2, 1) + np.trace(x, axis1=0, axis2=1, dtype=float)[0], [T3]),
    ("diag", lambda x: np.diag(x) @ np.diag(np.diag(x, 1), -1)[:, :2], [M]),
    ("diag of a vector", lambda x: np.diag(x, 2) + np.diag(x, -2), [V]),
    ("diagflat", lambda x: np.diagflat(x) + np.diagflat(x[:, :2], 2) [:6, :6], [A]),
    ("diagflat of 0-d", lambda x: np.diagflat(x, 1), [S]),
    ("tril, triu", lambda x: np.tril(x) @ np.triu(x, 1).T + np.tril(x, -1) @ np.triu(x, -1).T, [(3, 4)]),
    ("tril of a stack", lambda x: np.tril(x) * np.triu(x), [T3]),
    ("tril of a vector", lambda x: np.tril(x) + np.triu(x, 1), [V]),
    ("vander", lambda x: np.vander(x) * np.vander(x, increasing=True), [V]),
    ("vander, columns", lambda x: np.vander(x, 5) [:, :2] * np.vander(x, 2), [V]),
    ("atleast", lambda x, y: np.atleast_1d(x) * np.atleast_2d(y) + np.atleast_3d(y)[0, :, 0], [S, V]),
    ("atleast of several", lambda x,
     y: [p * 2 for p in np.atleast_2d(x, y)] + [np.atleast_3d(np.ones((2, 2)), x)[1]],
     [S, A]),
    ("dstack", lambda x, y: np.dstack([x, x * 2]) * np.dstack((y, y)), [A, V]),
    ("dstack of scalars", lambda x: np.dstack([x, 1.0]), [S]),
    ("column_stack", lambda x, y: np.column_stack([x, y.T, x]), [V, A]),
    ("column_stack of scalars", lambda x: np.column_stack([x, x]), [S]),
    ("block", lambda x, y: np.block([[x, np.ones((2, 1))], [y, 2.0]]), [A, V]),
    ("block of one list", lambda x, y: np.block([x, y, 1.0]), [V, S]),
    ("block of one array", lambda x: np.block(x) * np.block([x]), [V]),
    ("block of three levels", lambda x: np.block([[[x, x]], [[x, x * 2]]]), [A]),
    ("broadcast_arrays", lambda x, y: [p * 2 for p in np.broadcast_arrays(x, y, 1.0)][:2], [V, (2, 1)]),
    ("meshgrid", lambda x, y: np.meshgrid(x, y), [V, (2,)]),
    ("meshgrid, ij", lambda x, y, z: np.meshgrid(x, y, z, indexing="ij", copy=False), [V, (2,), S]),
    ("meshgrid, sparse", lambda x, y, z: np.meshgrid(x, y, z, sparse=True), [V, (2,), (2,)]),
    ("meshgrid of one", lambda x: np.meshgrid(x), [V]),
    ("ix_", lambda x, y: [p * 2 for p in np.ix_(x, [0, 1], y)], [V, (2,)]),
    ("ix_ of a mask", lambda x: [x * 2, *np.ix_(x, x.astype(float) > 0, np.array([0.5]))][:2], [V]),
    ("split", lambda x: np.split(x, 3, axis=1), [A]),
    ("split at places", lambda x: [p * 2 for p in np.split(x, [1, 1, 5], axis=-1)], [A]),
    ("array_split", lambda x: np.array_split(x, 4) + np.array_split(x, [2]), [(6,)]),
    ("hsplit, vsplit", lambda x: np.hsplit(x, 3) + np.vsplit(x, 2), [A]),
    ("hsplit of a vector", lambda x: np.hsplit(x, [1]), [V]),
    ("dsplit", lambda x: np.dsplit(x, 2), [T3]),
    ("unstack", lambda x: np.unstack(x, axis=1) + np.unstack(x), [A]),
    ("unstack of a vector", lambda x: np.unstack(x), [V]),
    ("pad", lambda x: np.pad(x, 1), [A]),
    ("take, wrap and clip", lambda x: np.take(x, [5, -7, 1], mode="wrap") * x.take([9, -9, 1], mode="clip"),
     [A]),
    ("orders", lambda x: x.reshape(3, 2, order="F") + np.reshape(x.T, (3, 2), order="A"), [A]),
    ("ravel orders", lambda x: np.ravel(x, "F") * x.T.ravel("K") + x.ravel("A") + x.flatten("F"), [T3]),
    ("ravel as in memory", lambda x: np.ravel(np.transpose(x, (1, 2, 0)), order="K"), [T3]),
    ("reshape, copy", lambda x: np.reshape(x, 6, copy=True) * np.reshape(x, shape=6, copy=False), [A]),
]  # fmt: skip

PADS = [
    ("constant", {}), ("constant", {"constant_values": 2.0}),
     ("constant", {"constant_values": ((1, 2), (3, 4))}),
    ("edge", {}), ("reflect", {}), ("reflect", {"reflect_type": "odd"}), ("symmetric", {}),
    ("symmetric", {"reflect_type": "odd"}), ("wrap", {}), ("linear_ramp", {}),
    ("linear_ramp", {"end_values": (1.0, -2.0)}), ("maximum", {}), ("minimum", {"stat_length": 2}),
    ("mean", {"stat_length": ((1, 2), (2, 1))}), ("mean", {}), ("median", {}), ("median", {"stat_length": 3}),
]  # fmt: skip
WIDTHS = [1, (2, 3), ((1, 0), (4, 5)), *([{-1: (1, 2)}] if NEWEST_NUMPY else [])]


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_call(row, random):
    check(*row[1:], random)


@pytest.mark.parametrize(
    ("mode", "form", "width"), every([(*pad, width) for pad in PADS for width in WIDTHS], 3), ids=str
)
def test_pad(mode, form, width, random):
    check(lambda x: np.pad(x, width, mode, **form) ** 2, [A], random)


def test_pad_of_one_element_and_of_ends_that_require_grad(random):
    check(lambda x: np.pad(x, 3, "reflect", reflect_type="odd"), [(1,)], random)
    check(lambda x: np.pad(x, 3, "symmetric", reflect_type="odd"), [(1,)], random)
    pad = lambda x, a, b: np.pad(x, 2, constant_values=(a, b)) * np.pad(x, 2, "linear_ramp", end_values=b)
    check_tensors = [tg.tensor(v, requires_grad=True) for v in ([0.5, 2.0], 3.0, 4.0)]
    assert tg.gradcheck(pad, check_tensors)
    np.testing.assert_allclose(pad(*check_tensors).detach().numpy(), pad(np.array([0.5, 2.0]), 3.0, 4.0))


def test_pad_of_nothing_known():
    x = tg.tensor([1.0, 2.0], requires_grad=True)
    out = np.pad(x, 1, "empty")
    (g,) = tg.grad(out[1:3], x, np.array([3.0, 4.0]))
    assert out.shape == (4,)
    assert g.tolist() == [3.0, 4.0]


def test_E9_one_of_several_views_is_not_written_to():
    x = tg.tensor([1.0, 2.0, 3.0, 4.0], requires_grad=True)
    for parts in (
        lambda y: np.split(y, 2),
        lambda y: np.array_split(y, 2),
        lambda y: np.unstack(y.reshape(2, 2)),
    ):
        y = x * 2.0
        a, _ = parts(y)
        for target in (a, a[:1]):
            with pytest.raises(errors.GradientError, match="several views"):
                target += 1.0
        with tg.no_grad():
            a[0] = 9.0
        assert y.tolist()[0] == 9.0
        y[1] = 5.0  # what was split may be written to, and the part sees it
        assert a.tolist() == [9.0, 5.0]
        (g,) = tg.grad(np.sum(a * a), x)
        assert g.tolist() == [36.0, 0.0, 0.0, 0.0]
        b = a.clone()
        b += 1.0
    plain = tg.zeros(4)
    first, _ = np.split(plain, 2)
    first += 1.0
    assert plain.tolist() == [1.0, 1.0, 0.0, 0.0]


def test_views_see_what_is_written():
    x = tg.zeros((3, 3))
    views = [np.diagonal(x), np.rot90(x), np.fliplr(x), np.atleast_3d(x), x.diagonal()]
    x[0, 0] = x[1, 1] = 1.0
    for v in views:
        assert np.sum(v) == 2.0
    y = x.flatten()
    y[0] = 7.0
    assert x[0, 0] == 1.0


PARTS = [
    lambda y: y.ravel(), lambda y: y[::2].ravel(), lambda y: y[::-1].ravel("F"), lambda y: y[:1].ravel(),
    lambda y: y[::2, None].ravel("K"), lambda y: np.ravel(y[2:]), lambda y: y.reshape(2, 3).T.ravel("A"),
    lambda y: y.reshape(3, 2)[:, 1].ravel("A"), lambda y: np.broadcast_to(y[:1], 3).ravel(),
    lambda y: np.block(y), lambda y: y[::2].astype(float, "C", copy=False),
    lambda y: y[1:].astype(float, "F", copy=False), lambda y: y[::2].astype(float, copy=False),
]  # fmt: skip


@pytest.mark.parametrize("part", PARTS)
def test_copies_are_made_where_numpy_makes_them(part):
    """Later writes do not reach a copy, nor its own what it was made of: of what has gaps, by `ravel`."""

    def f(x):
        y = x * 1.0
        u = part(y)
        y *= 3.0
        v = part(y)
        if v.flags.writeable:
            v += 1.0
        return np.sum(u * u * np.arange(1.0, 1.0 + u.size)) + np.sum(v) + np.sum(y * y)

    x = np.linspace(0.5, 2.0, 6)
    compiled = tg.compile(f, wait=True)
    _, expected = tg.func.jvp(lambda x: f(x))(x, np.ones(6))
    slope = (f(x + 1e-6) - f(x - 1e-6)) / 2e-6
    for call in (tg.func.value_and_grad(f), *[compiled.value_and_grad] * 4):
        value, gradient = call(x)
        np.testing.assert_allclose(value, f(x), rtol=1e-14)
        np.testing.assert_allclose([np.sum(gradient), expected], slope, rtol=1e-7)


REFUSED = [
    ("repeat", lambda x: np.repeat(x, [1, 2], axis=1), ValueError, "broadcast"),
    ("repeat, axis", lambda x: np.repeat(x, 2, axis=2), errors.AxisError, "axis 2"),
    ("roll", lambda x: np.roll(x, 1, 4), errors.AxisError, "axis 4"),
    ("roll, shifts", lambda x: np.roll(x, (1, 2, 3), (0, 1)), ValueError, "roll"),
    ("rot90", lambda x: np.rot90(x, 1, (0, 0)), errors.ShapeError, "rot90"),
    ("rot90, axis", lambda x: np.rot90(x, 1, (0, 2)), errors.AxisError, "axis 2"),
    ("fliplr", lambda x: np.fliplr(x[0]), errors.ShapeError, "two dimensions"),
    ("flipud", lambda x: np.flipud(x[0, 0]), errors.ShapeError, "dimension"),
    ("rollaxis", lambda x: np.rollaxis(x, 3), errors.AxisError, "axis 3"),
    ("insert", lambda x: np.insert(x, 9, x[0], axis=0), IndexError, "insert"),
    ("insert, shape", lambda x: np.insert(x, 0, np.ones(2), axis=0), ValueError, "insert"),
    ("delete", lambda x: np.delete(x, 9), IndexError, "delete"),
    ("delete, axis", lambda x: np.delete(x, 0, 5), errors.AxisError, "axis 5"),
    ("append", lambda x: np.append(x, np.ones(2), axis=0), ValueError, "concatenate|append"),
    ("trim_zeros", lambda x: np.trim_zeros(x[0], "z"), ValueError, "trim_zeros"),
    ("diagonal", lambda x: np.diagonal(x[0]), errors.ShapeError, "two dimensions"),
    ("diagonal, axes", lambda x: np.diagonal(x, 0, 1, 1), errors.ShapeError, "both"),
    ("trace", lambda x: np.trace(x[0]), errors.ShapeError, "two dimensions"),
    ("diag", lambda x: np.diag(x[None]), errors.ShapeError, "one or two"),
    ("tril", lambda x: np.tril(x[0, 0]), ValueError, "triangle"),
    ("vander", lambda x: np.vander(x), errors.ShapeError, "one dimension"),
    ("dstack", lambda x: np.dstack([x, x[0]]), errors.ShapeError, "concatenate"),
    ("column_stack", lambda x: np.column_stack([x, np.ones(4)]), errors.ShapeError, "concatenate"),
    ("block, depths", lambda x: np.block([[x], x]), ValueError, "depth"),
    ("block, empty", lambda x: np.block([x, []]), ValueError, "empty"),
    ("block, tuple", lambda x: np.block((x, x)), TypeError, "tuple"),
    ("broadcast_arrays", lambda x: np.broadcast_arrays(x, np.ones(4)), errors.ShapeError, "broadcast_arrays"),
    ("meshgrid", lambda x: np.meshgrid(x[0], indexing="ab"), ValueError, "indexing"),
    ("split", lambda x: np.split(x, 2, axis=1), errors.ShapeError, "equal parts"),
    ("split, axis", lambda x: np.split(x, 2, axis=2), errors.AxisError, "axis 2"),
    ("array_split", lambda x: np.array_split(x, 0), ValueError, "above 0"),
    ("hsplit", lambda x: np.hsplit(x[0, 0], 1), errors.ShapeError, "dimension"),
    ("vsplit", lambda x: np.vsplit(x[0], 1), errors.ShapeError, "two dimensions"),
    ("dsplit", lambda x: np.dsplit(x, 1), errors.ShapeError, "three dimensions"),
    ("unstack", lambda x: np.unstack(x, axis=2), errors.AxisError, "axis 2"),
    ("unstack of 0-d", lambda x: np.unstack(x[0, 0]), errors.ShapeError, "dimension"),
    ("pad, function", lambda x: np.pad(x, 1, lambda *a: None), errors.UnsupportedOpError, "mode"),
    ("pad, mode", lambda x: np.pad(x, 1, "mirror"), ValueError, "mirror"),
    ("pad, argument", lambda x: np.pad(x, 1, "edge", end_values=1), ValueError, "end_values"),
    ("pad, widths", lambda x: np.pad(x, (1, 2, 3)), errors.ShapeError, "axes"),
    ("pad, negative", lambda x: np.pad(x, -1), ValueError, "negative"),
    ("pad, fraction", lambda x: np.pad(x, 1.5), TypeError, "integers"),
    ("reshape, order", lambda x: np.reshape(x, 6, order="X"), ValueError, "order"),
    ("reshape, no copy", lambda x: np.reshape(x.T, 6, copy=False), ValueError, "copy"),
    ("take, mode", lambda x: np.take(x, [0], mode="other"), ValueError, "mode"),
    ("out", lambda x: np.trace(x, out=np.zeros(())), errors.UnsupportedOpError, "out="),
]  # fmt: skip


@pytest.mark.parametrize("row", REFUSED, ids=[row[0] for row in REFUSED])
def test_refusals(row):
    with pytest.raises(row[2], match=row[3]):
        row[1](tg.tensor([[0.5, 2.0, 3.0], [-1.5, 1.0, 0.2]], requires_grad=True))
