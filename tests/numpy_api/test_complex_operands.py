"""Functions that are composed of others, of complex numbers: NumPy's values, and derivatives."""

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.errors import DTypeError

RANDOM = np.random.default_rng(0)
Z = RANDOM.normal(size=5) + 1j * RANDOM.normal(size=5)
M = RANDOM.normal(size=(3, 3)) + 1j * RANDOM.normal(size=(3, 3))
T, AT = np.arange(5.0), np.array([0.5, 1.2, -1.0, 9.0])
PADDED = [
    "constant", "edge", "linear_ramp", "maximum", "mean", "median", "minimum", "reflect", "symmetric", "wrap",
]  # fmt: skip
ROWS = [(f"pad, {mode}", lambda z, mode=mode: np.pad(z, (1, 2), mode), Z) for mode in PADDED] + [
    ("pad, odd", lambda z: np.pad(z, 2, mode="reflect", reflect_type="odd"), Z),
    ("pad, number", lambda z: np.pad(z, 2, constant_values=1j), Z),
    ("insert", lambda z: np.insert(z, 1, 2 + 1j), Z),
    ("insert a Tensor", lambda z: np.insert(np.ones(3, complex), 1, z[0]), Z),
    ("delete, append", lambda z: np.append(np.delete(z, 1), 1.0), Z),
    ("gradient", np.gradient, Z), ("gradient, second order", lambda z: np.gradient(z, edge_order=2), Z),
    ("gradient, points", lambda z: np.gradient(z, np.array([0.0, 1, 3, 4, 7])), Z),
    ("interp", lambda z: np.interp(AT, T, z), Z),
    ("interp, period", lambda z: np.interp(AT, T, z, period=6), Z),
    ("interp, ends", lambda z: np.interp(AT, T, z, left=1j, right=2), Z),
    ("median", np.median, Z), ("median of four", lambda z: np.median(z[:4]), Z),
    ("nanmedian", np.nanmedian, Z),
    ("nansum", np.nansum, Z), ("nanmean", np.nanmean, Z), ("nanprod", np.nanprod, Z),
    ("nanvar", lambda z: np.nanvar(z, ddof=1), Z), ("nanstd", np.nanstd, Z), ("nancumprod", np.nancumprod, Z),
    ("average", lambda z: np.average(T, weights=z) * np.average(z, weights=T), Z),
    ("cov", np.cov, M), ("corrcoef", np.corrcoef, M), ("trapezoid", np.trapezoid, Z),
    ("ediff1d", lambda z: np.ediff1d(z, 1j), Z), ("cross", lambda z: np.cross(z, z[::-1]), M),
    ("convolve", lambda z: np.convolve(z, z), Z),
    ("correlate", lambda z: np.correlate(z, z[:2] * 2, "full"), Z),
    ("vdot", lambda z: np.vdot(z, z * (1 + 2j)), Z), ("vecdot", lambda z: np.vecdot(z, z[0]), M),
    ("sort", np.sort, Z), ("ptp", np.ptp, Z), ("unwrap", lambda z: np.unwrap(np.angle(z)), Z),
    ("polyfit", lambda z: np.polyfit(T, z, 2), Z), ("polyfit, points", lambda z: np.polyfit(z, T, 2), Z),
    ("polyfit, full", lambda z: np.polyfit(z, T, 2, full=True)[1], Z),
    ("polyfit, weights", lambda z: np.polyfit(T, z, 1, w=T + 1), Z),
    ("poly", lambda z: np.poly(z[:3]), Z), ("roots", lambda z: np.roots(z[:3]), Z),
    ("polynomials", lambda z: np.polyval(np.polymul(np.polyder(z), np.polyint(z)), 0.5j), Z),
    ("linspace", lambda z: np.linspace(z[0], z[1], 4), Z),
    ("logspace", lambda z: np.logspace(z[0], z[1], 4), Z),
    ("geomspace", lambda z: np.geomspace(z[0], z[1], 4), Z),
    ("histogram", lambda z: np.histogram(T, 3, weights=z)[0], Z),
    ("select", lambda z: np.select([T > 2], [z], 1j) * np.choose([0, 1, 0, 1, 1], [z, z * 2]), Z),
    ("float_power", lambda z: np.float_power(z, 2) * np.float_power(2, z), Z),
    ("reduceat", lambda z: np.add.reduceat(z, [0, 2]), Z), ("outer", lambda z: np.subtract.outer(z, z), Z),
    ("nan_to_num", np.nan_to_num, Z),
    ("lstsq", lambda z: np.linalg.lstsq(z[:, :2], z[:, 2])[0], M),
]  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_call(row):
    _, function, z = row
    x, wanted = tg.tensor(z, requires_grad=True), function(z)
    found = function(x)
    assert found.requires_grad
    assert found.dtype == wanted.dtype
    np.testing.assert_allclose(found.detach().numpy(), wanted, rtol=1e-12, atol=1e-13)
    assert tg.gradcheck(function, [x], atol=1e-6)
    assert tg.gradgradcheck(function, [x], atol=1e-5)


def test_writes_at_places():
    z = tg.tensor(Z, requires_grad=True)
    y = z * 1.0
    np.add.at(y, [0, 0, 1], z[:3])
    wanted = Z.copy()
    np.add.at(wanted, [0, 0, 1], Z[:3])
    np.testing.assert_allclose(y.detach().numpy(), wanted)
    (g,) = tg.grad(np.sum(np.real(y * 1j)), z)
    np.testing.assert_allclose(g.numpy(), [-2j, -2j, -2j, -1j, -1j])


def test_parts_that_are_not_numbers():
    values = np.array([complex(np.nan, 1), complex(np.inf, np.nan), 2 + 1j, complex(0, -np.inf)])
    z = tg.tensor(values, requires_grad=True)
    found = np.nan_to_num(z)
    np.testing.assert_array_equal(found.detach().numpy(), np.nan_to_num(values))
    (g,) = tg.grad(np.sum(np.real(found) / 2 + np.imag(found) / 4), z)
    assert g.tolist() == [0.25j, 0, 0.5 + 0.25j, 0.5]


@pytest.mark.parametrize("kind", [np.complex64, np.complex128])
@pytest.mark.parametrize("shape", [(2, 3), (6,), ()])
def test_parts_that_stay_infinite(kind, shape):
    """The usual call that replaces nan alone; an infinite imaginary part made the real one nan."""
    inf, nan = np.inf, np.nan
    values = np.array([complex(nan, inf), complex(inf, 1), complex(2, -inf), complex(1, nan), 2j, inf], kind)
    values = values.reshape(shape) if shape else values[2]
    z = tg.tensor(values, requires_grad=True)
    found = np.nan_to_num(z, nan=0.5, posinf=inf, neginf=-inf)
    wanted = np.nan_to_num(values, nan=0.5, posinf=inf, neginf=-inf)
    assert found.dtype == kind
    np.testing.assert_array_equal(found.detach().numpy(), wanted)
    (g,) = tg.grad(found, z, np.full(values.shape, 0.5 + 0.25j, kind))
    np.testing.assert_array_equal(g.numpy().real, np.where(np.isfinite(values.real), 0.5, 0.0))
    np.testing.assert_array_equal(g.numpy().imag, np.where(np.isfinite(values.imag), 0.25, 0.0))


@pytest.mark.parametrize("function", [
    lambda z: np.quantile(z, 0.3), lambda z: np.nanpercentile(z, 30), lambda z: np.interp(z, T, T),
    lambda z: np.bincount([0, 1, 1, 2, 2], z),
])  # fmt: skip
def test_what_is_for_real_numbers(function):
    with pytest.raises(DTypeError, match="real"):
        function(tg.tensor(Z, requires_grad=True))
