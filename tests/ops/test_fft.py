"""numpy.fft: complex operands, all forms of arguments, NumPy's bits, results beside torch, refusals."""

import sys
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.fft import _pocketfft_umath as gufuncs

import tapegrad as tg
from tapegrad.errors import DTypeError, ShapeError, UnsupportedOpError
from tapegrad.ops import fft as ops

from .calls_linalg import AXES, ONE_AXIS

F = np.fft
COMPLEX = [
    (f, form, (2, 4)) for f in (F.fft, F.ifft, F.irfft, F.hfft) for form in [*ONE_AXIS, {"n": np.int8(1)}]
] + [
    (f, form, (2, 3, 2)) for f in (F.fft2, F.ifft2, F.fftn, F.ifftn, F.irfft2, F.irfftn) for form in AXES
] + [
    (f, form, (3, 4)) for f in (F.fftshift, F.ifftshift) for form in ({}, {"axes": 0}, {"axes": (1, -2)})
]  # fmt: skip


def drawn(*shape):
    random = np.random.default_rng(6)
    return random.normal(size=shape) + 1j * random.normal(size=shape)


def leaf(x):
    return tg.tensor(x, requires_grad=True)


@pytest.mark.parametrize("row", COMPLEX, ids=[f"{f.__name__} {form}" for f, form, _ in COMPLEX])
def test_complex(row):
    """NumPy's values to the bit; derivatives, in both precisions."""
    function, form, shape = row
    for dtype in (complex, np.complex64):
        x = leaf(drawn(*shape).astype(dtype))
        out, wanted = function(x, **form), function(x.detach().numpy(), **form)
        np.testing.assert_array_equal(out.detach().numpy(), wanted)
        assert out.dtype == wanted.dtype
        assert tg.grad(np.sum(np.abs(out)), x)[0].dtype == dtype
    x = leaf(drawn(*shape))
    assert tg.gradcheck(lambda x: function(x, **form), [x], atol=1e-8)
    assert tg.gradgradcheck(lambda x: function(x, **form) ** 2, [x], atol=1e-6)


def compare_with_numpy(chars):
    """Transforms of Tensors with NumPy's of their values: dtype, layout and bits."""
    for char in chars:
        z = drawn(2, 6, 5) if np.dtype(char).kind == "c" else 9 * drawn(2, 6, 5).real
        for x in (tg.tensor(z.astype(char)), np.transpose(tg.tensor(z.astype(char)), (2, 0, 1))):
            for function in (F.fft, F.ifft, F.rfft, F.irfft, F.fftn, F.ifftn, F.rfftn, F.irfftn):
                if z.dtype.kind == "c" and function in (F.rfft, F.rfftn):
                    continue
                several = function.__name__[-1] == "n"
                for norm in ("backward", "ortho", "forward"):
                    for n in (4, 5, 7, 8):  # both less and more than elements, even and odd
                        form = {"s": (n, n - 1), "axes": (2, 0)} if several else {"n": n, "axis": n % 3}
                        found = function(x, norm=norm, **form).numpy()
                        wanted = function(x.numpy(), norm=norm, **form)
                        assert found.dtype == wanted.dtype
                        assert found.strides == wanted.strides
                        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("char", "fdgFDGebiQ")
def test_bits(char):
    """Where NumPy computes single precision in double (no scale), and where it does not."""
    compare_with_numpy(char)


def test_errors_of_arithmetic():
    """Single precision overflows on the way back from double too."""
    for x in (np.full(4, 3e38, "f"), np.full(4, 3e38, "F"), np.full(4, 1e308)):
        for operand in (x, tg.tensor(x)):
            with np.errstate(all="raise"), pytest.raises(FloatingPointError):
                F.fft(operand)


GUFUNCS = {name: getattr(gufuncs, name) for name in ("fft", "ifft", "rfft_n_even", "rfft_n_odd", "irfft")}
UNKNOWN = {
    "of other results": SimpleNamespace(
        fft=gufuncs.ifft, ifft=gufuncs.fft, rfft_n_even=gufuncs.rfft_n_odd, rfft_n_odd=gufuncs.rfft_n_even,
        irfft=gufuncs.ifft,
    ),
    "of another signature": SimpleNamespace(**dict.fromkeys(GUFUNCS, np.add)),
    "of other names": SimpleNamespace(**{f"{name}_2": f for name, f in GUFUNCS.items()}),
    "that are no gufuncs": SimpleNamespace(**{name: f.__call__ for name, f in GUFUNCS.items()}),
    "gone": None,
}  # fmt: skip


@contextmanager
def unproved():
    """Proofs are made anew inside, and again afterwards."""
    caches = ops._proved, ops._transform
    try:
        yield [cache.cache_clear() for cache in caches]
    finally:
        for cache in caches:
            cache.cache_clear()


def test_direct_calls(monkeypatch):
    """Nothing of np.fft's own Python runs, once what it computes by was proved."""
    calls = []
    with unproved():
        for char in "fdgFDG":
            x = leaf((drawn(3, 4) if char in "FDG" else drawn(3, 4).real).astype(char))
            for function in (F.fft2, F.ifft2, F.irfft2, *(() if char in "FDG" else (F.rfft2,))):
                calls.append(lambda n, function=function, x=x: np.sum(np.abs(function(x, (n, 5)))).backward())
                calls[-1](6)
        monkeypatch.delattr(F._pocketfft, "_raw_fft")
        for call in calls:
            call(7)


@pytest.mark.parametrize("what", UNKNOWN)
def test_a_numpy_with_gufuncs(what, monkeypatch):
    """They are NumPy's own business: where they do not prove to be what is known, np.fft computes."""
    if UNKNOWN[what] is None:
        monkeypatch.delattr(np.fft, "_pocketfft_umath")
        monkeypatch.setitem(sys.modules, "numpy.fft._pocketfft_umath", None)
    else:
        monkeypatch.setattr(np.fft, "_pocketfft_umath", UNKNOWN[what])
    with unproved():
        compare_with_numpy("fD")


@pytest.mark.full
@pytest.mark.parametrize("norm", ["backward", "ortho", "forward"])
@pytest.mark.parametrize("n", [3, 4, 5, 7])
@pytest.mark.parametrize("name", ["fft", "ifft", "rfft", "irfft", "hfft", "ihfft"])
def test_beside_torch(name, n, norm):
    torch = pytest.importorskip("torch")
    z = drawn(2, 5) if name in ("fft", "ifft", "irfft", "hfft") else drawn(2, 5).real
    mine, theirs = leaf(z), torch.tensor(z, requires_grad=True)
    a, b = getattr(F, name)(mine, n, -1, norm), getattr(torch.fft, name)(theirs, n, -1, norm)
    ct = np.conj(drawn(*a.shape)) if np.iscomplexobj(a) else drawn(*a.shape).real
    (found,) = tg.grad(a, mine, ct)
    (wanted,) = torch.autograd.grad(b, theirs, torch.tensor(ct))
    np.testing.assert_allclose(found.numpy(), wanted.numpy(), rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("function", [F.fftn, F.ifftn, F.rfftn, F.irfftn])
def test_derivatives_over_three_axes(function):
    """The gradient of what is linear gives its value along any direction."""
    complex_ = function is not F.rfftn
    x, w = leaf(drawn(3, 4, 5) if complex_ else drawn(3, 4, 5).real), np.random.default_rng(7)
    form = {"s": (4, 3, 6), "axes": (2, 0, 1), "norm": "ortho"}
    w = w.normal(size=np.shape(function(x.detach().numpy(), **form)))
    (g,) = tg.grad(np.sum(np.real(function(x, **form) * (w + 0.5j * w[::-1]))), x)
    t = drawn(3, 4, 5) * 1j if complex_ else drawn(3, 4, 5).imag
    wanted = np.sum(np.real(function(t, **form) * (w + 0.5j * w[::-1])))
    assert np.sum(np.real(np.conj(g.numpy()) * t)) == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("norm", ["backward", "ortho", "forward"])
@pytest.mark.parametrize("function", [F.fft2, F.ifft2, F.rfft2, F.irfft2])
def test_gradients_in_single_precision(function, norm):
    """They are computed in single precision, and right to it; so are those that are recorded."""
    given = drawn(33, 40) if function in (F.ifft2, F.irfft2) else drawn(33, 40).real
    (wanted,) = tg.grad(np.sum(np.abs(function(x := leaf(given), norm=norm)) ** 2), x)
    x = leaf(given.astype("F" if np.iscomplexobj(given) else "f"))
    for record in (False, True):
        (found,) = tg.grad(np.sum(np.abs(function(x, norm=norm)) ** 2), x, create_graph=record)
        assert found.dtype == x.dtype
        largest = np.max(np.abs(wanted.numpy()))
        np.testing.assert_allclose(found.detach().numpy(), wanted.numpy(), 0, 1e-6 * largest)


def test_frequencies_of_a_spectrum():
    """A sum over frequencies: those of NumPy are plain arrays."""
    x = leaf(np.sin(np.arange(16.0)))
    power = np.abs(F.rfft(x)) ** 2
    mean = np.sum(F.rfftfreq(16) * power) / np.sum(power)
    assert tg.gradcheck(lambda x: np.sum(F.fftfreq(16) ** 2 * np.abs(F.fft(x)) ** 2), [x])
    assert np.isfinite(tg.grad(mean, x)[0].numpy()).all()


def test_integers():
    x = tg.tensor([1, 2, 3, 5])
    for name in ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft", "fftshift"):
        found, wanted = getattr(F, name)(x), getattr(F, name)(x.numpy())
        np.testing.assert_array_equal(found.numpy(), wanted)
        assert found.dtype == wanted.dtype


def test_out():
    x, out = tg.tensor(drawn(4)), np.zeros(4, complex)
    assert F.fft(x, out=out) is out
    np.testing.assert_array_equal(out, F.fft(x.numpy()))


X, Z = leaf(np.ones((2, 3))), leaf(np.ones((2, 3), complex))
REFUSED = [
    *((f"{f.__name__}, no points", lambda f=f: f(X, n=0), ShapeError, "at least one")
      for f in (F.fft, F.ifft, F.rfft, F.irfft, F.hfft, F.ihfft)),
    *((f"{f.__name__}, norm", lambda f=f: f(X, norm="unit"), ValueError, "unit")
      for f in (F.fft, F.ifft, F.rfft, F.irfft, F.hfft, F.ihfft, F.fft2, F.rfftn, F.irfftn)),
    *((f"{f.__name__}, axis", lambda f=f: f(X, axis=2), IndexError, "axis 2")
      for f in (F.fft, F.ifft, F.rfft, F.irfft, F.hfft, F.ihfft)),
    *((f"{f.__name__}, axes", lambda f=f: f(X, axes=(0, 3)), IndexError, "axis 3")
      for f in (F.fft2, F.ifft2, F.fftn, F.ifftn, F.rfft2, F.rfftn, F.irfft2, F.irfftn, F.fftshift,
                F.ifftshift)),
    *((f"{f.__name__}, s", lambda f=f: f(X, s=(2,), axes=(0, 1)), ShapeError, "2 axes")
      for f in (F.fft2, F.ifft2, F.fftn, F.ifftn, F.rfft2, F.rfftn, F.irfft2, F.irfftn)),
    *((f"{f.__name__} of complex numbers", lambda f=f: f(Z), DTypeError, "real numbers")
      for f in (F.rfft, F.ihfft, F.rfft2, F.rfftn)),
    *((f"{f.__name__}, out", lambda f=f: f(Z, out=np.zeros((2, 3), complex)), UnsupportedOpError, "out=")
      for f in (F.fft, F.ifft, F.fft2, F.ifftn)),
    ("rfftn over no axis", lambda: F.rfftn(X, axes=()), ShapeError, "axis"),
    ("irfftn over no axis", lambda: F.irfftn(X, axes=()), ShapeError, "axis"),
    ("irfft of one number", lambda: F.irfft(X[:, :1]), ShapeError, "at least one"),
]  # fmt: skip


@pytest.mark.parametrize("row", REFUSED, ids=[row[0] for row in REFUSED])
def test_refusals(row):
    _, call, error, text = row
    with pytest.raises(error, match=text):
        call()
