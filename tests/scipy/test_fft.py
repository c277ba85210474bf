"""Functions of `scipy.fft` on Tensors: values are SciPy's, derivatives those of differences."""

import numpy as np
import pytest
import scipy.fft

import tapegrad as tg
import tapegrad.scipy as ts
from tapegrad.autograd import gradcheck, gradgradcheck
from tapegrad.errors import AxisError, DTypeError
from tests.tiers import every

from .test_linalg import array

ONE = [
    ("fft", {}), ("ifft", {"n": 3}), ("rfft", {"norm": "ortho"}), ("irfft", {"n": 5}), ("hfft", {}),
    ("ihfft", {}),
]  # fmt: skip
SEVERAL = [
    ("fft2", {}), ("ifftn", {"s": (4, 2), "workers": 2}), ("rfft2", {}), ("irfftn", {"axes": (1, 0)}),
    ("hfft2", {}), ("ihfftn", {"norm": "forward"}), ("fftn", {"s": (-1, 3)}), ("hfftn", {"s": (3, 5)}),
    ("ifft2", {"norm": "ortho"}), ("rfftn", {"axes": 1}), ("irfft2", {}), ("ihfft2", {}),
    ("fftshift", {"axes": 0}), ("ifftshift", {}),
]  # fmt: skip
OF_REAL = {"rfft", "rfft2", "rfftn", "ihfft", "ihfft2", "ihfftn"}
KINDS = [
    (name, {"type": kind, "norm": norm, "orthogonalize": orthogonalize})
    for name in ("dct", "idct", "dst", "idst")
    for kind in (1, 2, 3, 4)
    for norm in (None, "ortho", "forward")
    for orthogonalize in (None, True, False)
]
RESIZED = [
    ("dct", {"n": 3}), ("idst", {"n": 7, "axis": 0}), ("dctn", {}), ("idctn", {"axes": 0, "norm": "ortho"}),
    ("dstn", {"s": (3, 6), "type": 3}), ("idstn", {"s": 5, "type": 1}),
]  # fmt: skip
CASES = ONE + SEVERAL + RESIZED + KINDS


@pytest.mark.parametrize("dtype", every([float, complex, np.float32], 3))
def test_values_are_scipys(dtype):
    """And where no derivative is asked for to the last bit."""
    for name, options in CASES:
        if np.dtype(dtype).kind == "c" and name in OF_REAL:
            continue
        x = array(3, 5, dtype=dtype)
        wanted = getattr(scipy.fft, name)(x, **options)
        found = getattr(ts.fft, name)(tg.tensor(x, requires_grad=True), **options)
        assert found.requires_grad
        assert found.dtype == wanted.dtype
        tolerance = 1e-5 if dtype is np.float32 else 1e-13
        np.testing.assert_allclose(found.detach().numpy(), wanted, rtol=tolerance, atol=tolerance)
        np.testing.assert_array_equal(getattr(ts.fft, name)(x, **options), wanted)


def test_cosines_and_sines_have_their_transposes():
    """Every kind, scale and choice: the derivative of a linear map is its transpose."""
    x, ct = array(5), array(5, seed=1)
    for name, options in KINDS:
        leaf = tg.tensor(x, requires_grad=True)
        (g,) = tg.grad(getattr(ts.fft, name)(leaf, **options), leaf, ct)
        wanted, called = ct @ getattr(scipy.fft, name)(np.eye(5), axis=0, **options), f"{name} {options}"
        np.testing.assert_allclose(g.numpy(), wanted, rtol=1e-12, atol=1e-13, err_msg=called)


CHECKED = [
    (name, options, dtype)
    for name, options in ONE + SEVERAL + RESIZED + KINDS[::7]
    for dtype in (float, complex)
    if dtype is float or name not in OF_REAL
]


@pytest.mark.parametrize(("name", "options", "dtype"), every(CHECKED, 20))
def test_derivatives(name, options, dtype):
    leaf = tg.tensor(array(3, 4, dtype=dtype), requires_grad=True)

    def f(x):
        return getattr(ts.fft, name)(x, **options)

    assert gradcheck(f, [leaf], check_forward_ad=True, check_batched_grad=True, fast_mode=True)
    assert gradgradcheck(lambda x: f(x) * f(x), [leaf], fast_mode=True)


def test_errors_name_the_function():
    x = tg.tensor(array(3, 4), requires_grad=True)
    with pytest.raises(ValueError, match=r"^scipy\.fft\.dct.*type 5"):
        ts.fft.dct(x, type=5)
    with pytest.raises(ValueError, match=r"^scipy\.fft\.dct.*axis 0 has 1 points"):
        ts.fft.dct(x[:1], type=1, axis=0)
    with pytest.raises(AxisError, match=r"^scipy\.fft\.fftn"):
        ts.fft.fftn(x, axes=(0, 0))
    with pytest.raises(DTypeError, match=r"^scipy\.fft\.rfft"):
        ts.fft.rfft(x * 1j)


def test_what_scipy_has_besides_is_its_own():
    assert ts.fft.fftfreq is scipy.fft.fftfreq
    assert {"fftfreq", "dct"} <= set(dir(ts.fft))
