"""tapegrad.kernels.vecmath.complexes, as kernels use it, against NumPy and mpmath."""

import mpmath
import numpy as np
import pytest

from tests.tiers import every

from .test_emit import compiled

PARTS = [
    0.0, -0.0, 1.0, -1.5, 0.3, 1e-9, 1e-300, 1e300, 709.0, 711.0, -745.0, 100.0, 3e7, -1e200, 1e154, 1.7e308,
    5e-324, -2e-310, np.inf, -np.inf, np.nan,
]  # fmt: skip
GRID = np.array([complex(a, b) for a in PARTS for b in PARTS])
ALONE = ("exp", "log", "sin", "cos", "sinh", "cosh", "sqrt", "sign", "absolute")
ORDER = {"greater": ">", "greater_equal": ">=", "less": "<", "less_equal": "<="}


def close(found, wanted, ulps, alone=True):
    """Whether complex numbers agree, each part by itself or both by the size of the number."""
    eps = np.finfo(found.dtype).eps
    if not alone:
        return np.abs(found - wanted) <= ulps * eps * np.abs(wanted)
    good = np.ones(found.shape, bool)
    for a, b in ((found.real, wanted.real), (found.imag, wanted.imag)):
        allowed = ulps * eps * np.abs(b) + np.finfo(found.dtype).smallest_subnormal * ulps
        good &= (np.isnan(a) & np.isnan(b)) | (a == b) | (np.abs(a - b) <= allowed)
    return good


@pytest.mark.parametrize("dtype", ["complex128", "complex64"])
@pytest.mark.parametrize("name", every(ALONE, 2))
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_complex_forms_at_the_edges_are_numpys(name, dtype):
    z = GRID.astype(dtype)
    found, wanted = compiled(f"np.{name}(z)", ["z"], z.dtype)(z), getattr(np, name)(z).astype(dtype)
    assert np.all(close(found, wanted, 6))
    finite = np.isfinite(wanted)
    for a, b in ((found.real, wanted.real), (found.imag, wanted.imag)):
        zeros = finite & (b == 0)
        np.testing.assert_array_equal(np.signbit(a[zeros]), np.signbit(b[zeros]))


@pytest.mark.parametrize("name", ALONE)
def test_complex_forms_beside_mpmath(name):
    random = np.random.default_rng(11)
    z = np.concatenate([
        random.normal(size=100) * 3 + 1j * random.normal(size=100) * 3,
        np.exp(2j * np.pi * random.random(50)) * (1 + random.normal(size=50) * 1e-6),
        (random.normal(size=50) + 1j * random.normal(size=50)) * 10.0 ** random.uniform(-12, 2, 50),
    ])  # fmt: skip
    exact = {"absolute": lambda x: mpmath.mpc(abs(x)), "sign": lambda x: x / abs(x)}
    function = exact.get(name) or getattr(mpmath, name)
    with mpmath.workdps(40):
        wanted = np.array([complex(function(mpmath.mpc(v.real, v.imag))) for v in z])
    assert np.all(close(compiled(f"np.{name}(z)", ["z"], z.dtype)(z), wanted, 4, alone=False))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_complex_division_and_order_are_numpys():
    z, w = (x.ravel() for x in np.meshgrid(GRID, GRID))
    np.testing.assert_array_equal(compiled("z / w", ["z", "w"], z.dtype)(z, w), z / w)
    for name, sign in ORDER.items():
        found = compiled(f"np.where(z {sign} w, 1, 0)", ["z", "w"], z.dtype)(z, w)
        np.testing.assert_array_equal(found, getattr(np, name)(z, w))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_complex_powers():
    random = np.random.default_rng(12)
    z, w = (random.normal(size=400) * 2 + 1j * random.normal(size=400) * 2 for _ in range(2))
    whole = random.integers(-99, 100, 400) + 0j
    power = compiled("z ** w", ["z", "w"], z.dtype)
    with mpmath.workdps(40):
        for exponent, ulps in ((w, 40), (whole, 200)):  # the error of the logarithm, times the exponent
            pairs = zip(z, exponent, strict=True)
            wanted = np.array([complex(mpmath.mpc(a) ** mpmath.mpc(b)) for a, b in pairs])
            assert np.all(close(power(z, exponent), wanted, ulps, alone=False))
    edges = np.array([0, 0, 0, 0, 1e5j, 1, -1 + 0j])
    exponents = np.array([0, 2, -1, 0.5 + 1j, 1e5, 1e300, 0.5])
    np.testing.assert_allclose(power(edges, exponents), edges**exponents, rtol=1e-10)
