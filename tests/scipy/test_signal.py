"""Convolutions and filters of `scipy.signal`: values as SciPy's, derivatives by differences."""

import numpy as np
import pytest
import scipy.signal

import tapegrad as tg
import tapegrad.scipy as ts
from tapegrad.autograd import gradcheck, gradgradcheck
from tapegrad.errors import UnsupportedOpError
from tests.tiers import thinned

RANDOM = np.random.default_rng(3)
LONG, SHORT = RANDOM.normal(size=7), RANDOM.normal(size=4)
IMAGE, KERNEL = RANDOM.normal(size=(5, 4)), RANDOM.normal(size=(2, 3))
MODES = {"check_forward_ad": True, "check_batched_grad": True}


def leaf(x):
    return tg.tensor(np.asarray(x), requires_grad=True)


def check(function, theirs, inputs, rtol=1e-11, again=True):
    """Values as SciPy's, and first and second derivatives, of functions of arrays alone."""
    plain = [x.detach().numpy() for x in inputs]
    np.testing.assert_allclose(function(*inputs).detach().numpy(), theirs(*plain), rtol=rtol, atol=1e-12)
    np.testing.assert_array_equal(function(*plain), theirs(*plain))
    assert gradcheck(function, inputs, **MODES)
    if again:
        assert gradgradcheck(function, inputs)


CONVOLUTIONS = [
    (name, mode, method, dims)
    for name in ("convolve", "correlate")
    for mode in ("full", "same", "valid")
    for method in ("direct", "fft", "auto")
    for dims in (1, -1, 2)
]


@pytest.mark.parametrize(
    ("name", "mode", "method", "dims"),
    thinned(
        CONVOLUTIONS,
        lambda *row: row == ("correlate", "same", "direct", 2),
    ),
)
def test_convolutions(name, mode, method, dims):
    a, v = (IMAGE, KERNEL) if dims == 2 else (LONG, SHORT)[::dims]
    mine, theirs = getattr(ts.signal, name), getattr(scipy.signal, name)
    check(
        lambda a, v: mine(a, v, mode, method),
        lambda a, v: theirs(a, v, mode, method),
        [leaf(a), leaf(v)],
        again=method == "direct" and dims != 1,
    )


@pytest.mark.full
def test_complex_convolutions():
    a, v = LONG + 1j * LONG[::-1], SHORT * (1 - 0.5j)
    for name in ("convolve", "correlate"):
        for first, second in ((a, v), (LONG, v), (a, SHORT)):
            mine, theirs = getattr(ts.signal, name), getattr(scipy.signal, name)
            found = mine(leaf(first), leaf(second), "same", "direct")
            np.testing.assert_allclose(
                found.detach().numpy(), theirs(first, second, "same", "direct"), rtol=1e-12
            )
            assert gradcheck(lambda a, v, f=mine: f(a, v, "same", "direct"), [leaf(first), leaf(second)])


@pytest.mark.full
@pytest.mark.parametrize("mode", ["full", "same", "valid"])
@pytest.mark.parametrize("name", ["fftconvolve", "oaconvolve"])
def test_convolutions_along_axes(name, mode):
    mine, theirs = getattr(ts.signal, name), getattr(scipy.signal, name)
    a, v = RANDOM.normal(size=(2, 7)), RANDOM.normal(size=(1, 3))
    for axes in (1, (-1,), None):
        other = v if axes is not None else np.vstack([v, v])[: 1 + (mode != "valid")]
        check(
            lambda a, v, axes=axes: mine(a, v, mode, axes), lambda a, v, axes=axes: theirs(a, v, mode, axes),
            [leaf(a), leaf(other)], again=False)  # fmt: skip


PLANES = [
    (name, mode, boundary)
    for name in ("convolve2d", "correlate2d")
    for mode in ("full", "same", "valid")
    for boundary in ("fill", "wrap", "symm")
]


@pytest.mark.full
@pytest.mark.parametrize(("name", "mode", "boundary"), PLANES)
def test_planes(name, mode, boundary):
    mine, theirs = getattr(ts.signal, name), getattr(scipy.signal, name)
    for value in (0, 1.5) if boundary == "fill" else (0,):
        check(
            lambda a, v, value=value: mine(a, v, mode, boundary, value),
            lambda a, v, value=value: theirs(a, v, mode, boundary, value), [leaf(IMAGE), leaf(KERNEL)],
            again=False)  # fmt: skip


FILTERS = [
    ([0.3, -0.2, 0.5], [1.0, -0.4, 0.2]), ([0.3], [2.0, -0.4, 0.2, 0.1]), ([0.3, -0.2, 0.5, 0.1], [0.5]),
    ([0.7], [1.5]),
]  # fmt: skip


ROWS = [(row, axis) for row in range(len(FILTERS)) for axis in (-1, 0)]


@pytest.mark.parametrize(("row", "axis"), thinned(ROWS, lambda *place: place == (1, -1)))
def test_lfilter(row, axis):
    b, a = map(np.array, FILTERS[row])
    x = RANDOM.normal(size=(2, 6)) if axis else RANDOM.normal(size=(6, 2))
    inputs = [leaf(b), leaf(a), leaf(x)]
    check(
        lambda b, a, x: ts.signal.lfilter(b, a, x, axis),
        lambda b, a, x: scipy.signal.lfilter(b, a, x, axis),
        inputs,
        again=(row, axis) == (0, 0),
    )
    states = max(len(a), len(b)) - 1
    if not states:
        return
    zi = RANDOM.normal(size=(2, states) if axis else (states, 2))
    for k in (0, 1):
        check(
            lambda b, a, x, zi, k=k: ts.signal.lfilter(b, a, x, axis, zi)[k],
            lambda b, a, x, zi, k=k: scipy.signal.lfilter(b, a, x, axis, zi)[k], [*inputs, leaf(zi)],
            again=False)  # fmt: skip


@pytest.mark.full
def test_a_signal_that_is_shorter_than_the_filter():
    b, a = np.array([0.3, -0.2, 0.5, 0.1]), np.array([1.0, -0.4, 0.2, 0.3, 0.1])
    zi = RANDOM.normal(size=4)
    for k in (0, 1):
        check(
            lambda b, a, x, zi, k=k: ts.signal.lfilter(b, a, x, zi=zi)[k],
            lambda b, a, x, zi, k=k: scipy.signal.lfilter(b, a, x, zi=zi)[k],
            [leaf(b), leaf(a), leaf(RANDOM.normal(size=2)), leaf(zi)])  # fmt: skip


@pytest.mark.full
def test_sosfilt():
    sos = scipy.signal.butter(3, 0.3, output="sos")
    x, zi = RANDOM.normal(size=(2, 8)), RANDOM.normal(size=(2, 2, 2))
    parts = [leaf(sos[:, :3]), leaf(sos[:, 4:])]

    def whole(b, a):
        return np.concatenate([b, np.ones((2, 1)), a], axis=1)

    check(
        lambda b, a, x: ts.signal.sosfilt(whole(b, a), x),
        lambda b, a, x: scipy.signal.sosfilt(whole(b, a), x),
        [*parts, leaf(x)])  # fmt: skip
    for k in (0, 1):
        check(
            lambda b, a, x, zi, k=k: ts.signal.sosfilt(whole(b, a), x, zi=zi)[k],
            lambda b, a, x, zi, k=k: scipy.signal.sosfilt(whole(b, a), x, zi=zi)[k],
            [*parts, leaf(x), leaf(zi)],
            again=False)  # fmt: skip


@pytest.mark.full
def test_a_long_recursive_filter_is_stable_in_reverse():
    """The adjoint of a filter is itself from the end: <A x, y> = <x, A* y>."""
    b, a = scipy.signal.butter(4, 0.05)
    x, y = RANDOM.normal(size=(2, 20000))
    at = leaf(x)
    (g,) = tg.grad(ts.signal.lfilter(b, a, at), at, y)
    np.testing.assert_allclose(g.numpy(), scipy.signal.lfilter(b, a, y[::-1])[::-1], rtol=1e-7, atol=1e-10)


@pytest.mark.full
@pytest.mark.parametrize("mode", ["interp", "mirror", "constant", "nearest", "wrap"])
def test_savgol(mode):
    x = RANDOM.normal(size=(2, 9))
    even = [] if mode == "interp" else [(4, 0, -1), (6, 1, 0)]
    for window, deriv, axis in [(5, 0, -1), (5, 1, 0), *even]:
        given = x if axis else x.T
        arguments = (window, 2, deriv, 0.5, axis, mode, 0.7)
        check(
            lambda x, args=arguments: ts.signal.savgol_filter(x, *args),
            lambda x, args=arguments: scipy.signal.savgol_filter(x, *args),
            [leaf(given)], again=False)  # fmt: skip


@pytest.mark.full
def test_detrend():
    x = RANDOM.normal(size=(2, 9))
    for more in ({}, {"type": "constant"}, {"bp": [3, 5]}, {"axis": 0}):
        check(
            lambda x, more=more: ts.signal.detrend(x, **more),
            lambda x, more=more: scipy.signal.detrend(x, **more), [leaf(x)], again=False)  # fmt: skip


@pytest.mark.parametrize("n", [1, 4, 7])
def test_analytic_signals(n):
    x = RANDOM.normal(size=(2, n))
    for more in ({}, {"N": n + 2}, {"N": 3}, {"axis": 0}):
        check(
            lambda x, more=more: ts.signal.hilbert(x, **more),
            lambda x, more=more: scipy.signal.hilbert(x, **more), [leaf(x)], again=False)  # fmt: skip
    with pytest.raises(ValueError, match="real"):
        ts.signal.hilbert(leaf(x) * 1j)
    with pytest.raises(ValueError, match="N must be positive"):
        ts.signal.hilbert(leaf(x), 0)


def test_single_precision_stays():
    x = tg.tensor(LONG.astype(np.float32), requires_grad=True)
    found = ts.signal.lfilter(np.float32([0.5, 0.5]), np.float32([1.0, -0.2]), x)
    assert found.dtype == np.float32
    assert tg.grad(found.sum(), x)[0].dtype == np.float32


@pytest.mark.full
def test_what_is_not_there_is_refused():
    x = leaf(LONG)
    with pytest.raises(UnsupportedOpError, match=r"scipy.signal.medfilt"):
        ts.signal.medfilt(x)
    with pytest.raises(UnsupportedOpError, match="fillvalue"):
        ts.signal.convolve2d(IMAGE, KERNEL, fillvalue=x[0])
    with pytest.raises(ValueError, match="mode is 'other'; give 'full'"):
        ts.signal.convolve(x, x, mode="other")
    assert ts.signal.butter is not None and ts.signal.ShortTimeFFT is scipy.signal.ShortTimeFFT
    np.testing.assert_array_equal(ts.signal.butter(2, 0.3)[0], scipy.signal.butter(2, 0.3)[0])


B2, A2 = scipy.signal.butter(2, 0.3)
SOS = scipy.signal.butter(4, 0.3, output="sos")
FREE = np.array([[k == c for k in range(6)] for c in (0, 1, 2, 4, 5)], float)  # all but the ones of a section
ONES = 1.0 - FREE.sum(axis=0)


ENDS = [{}, {"padtype": "even", "padlen": 4}, {"padtype": "constant"}, {"padtype": None}]


@pytest.mark.parametrize("given", thinned(ENDS, lambda given: not given), ids=str)
def test_filters_in_both_directions(given):
    x, module = RANDOM.normal(size=(17, 1)), (ts.signal, scipy.signal)
    of_ba = [lambda b, a, x, s=s: s.filtfilt(b, a, x, **given) for s in module]
    inputs = [leaf(B2), leaf(A2), leaf(x[:10, 0])]
    check(*of_ba, inputs, again=False)
    assert gradgradcheck(of_ba[0], inputs, fast_mode=True)
    of_sections = [lambda f, x, s=s: s.sosfiltfilt(f @ FREE + ONES, x, axis=0, **given) for s in module]
    check(*of_sections, [leaf(SOS @ FREE.T), leaf(x)], again=False)


def test_states_of_a_constant_signal():
    for b, a in ((B2, 2 * A2), (B2[:2], A2), (B2, A2[:2])):
        check(ts.signal.lfilter_zi, scipy.signal.lfilter_zi, [leaf(b), leaf(a)])
    states = [lambda f, s=s: s.sosfilt_zi(f @ FREE + ONES) for s in (ts.signal, scipy.signal)]
    check(*states, [leaf(SOS @ FREE.T)], again=False)


def test_what_filters_in_both_directions_refuse():
    x = leaf(LONG)
    with pytest.raises(ValueError, match=r"^scipy\.signal\.filtfilt: padlen 9 is not below the 7 elements"):
        ts.signal.filtfilt(B2, A2, x)
    with pytest.raises(ValueError, match="padtype"):
        ts.signal.filtfilt(B2, A2, x, padtype="none", padlen=2)
    with pytest.raises(UnsupportedOpError, match="method='gust'"):
        ts.signal.filtfilt(B2, A2, x, method="gust")


SIGNALS = RANDOM.normal(size=(2, 20))
OTHER = RANDOM.normal(size=(2, 17))
SPECTRA = [
    ("welch", lambda s, x: s.welch(x, nperseg=8)[1]),
    ("welch", lambda s, x: s.welch(x.T, 2.0, np.hamming(9), None, 3, 16, False, False, "spectrum", 0)[1]),
    ("welch", lambda s, x: s.welch(x + 1j * x[::-1], nperseg=7, detrend="linear")[1]),
    ("csd", lambda s, x: s.csd(x, OTHER, nperseg=8, average="median")[1]),
    ("csd", lambda s, x: s.csd(OTHER, x, nperseg=9)[1]),
    ("coherence", lambda s, x: s.coherence(x, x**2, nperseg=8)[1]),
    ("periodogram", lambda s, x: s.periodogram(x, nfft=15)[1]),
    ("periodogram", lambda s, x: s.periodogram(x, window="hann", nfft=32, scaling="spectrum")[1]),
    ("stft", lambda s, x: s.stft(x, nperseg=8, noverlap=5)[2]),
    ("stft", lambda s, x: s.stft(x.T, 2.0, ("kaiser", 3.0), 9, boundary="odd", scaling="psd", axis=0)[2]),
    ("stft", lambda s, x: s.stft(x, nperseg=8, boundary="even", detrend="linear", return_onesided=False)[2]),
    ("stft", lambda s, x: s.stft(x, nperseg=6, boundary=None, padded=False)[2]),
    ("spectrogram", lambda s, x: s.spectrogram(x, nperseg=8, nfft=9)[2]),
    ("spectrogram", lambda s, x: s.spectrogram(x.T, 2.0, "hann", 9, 4, scaling="spectrum", axis=0)[2]),
    ("spectrogram", lambda s, x: s.spectrogram(x, nperseg=8, mode="magnitude")[2]),
    ("spectrogram", lambda s, x: s.spectrogram(x, nperseg=8, mode="phase", detrend="linear")[2]),
    ("istft", lambda s, x: s.istft(s.stft(x, nperseg=9, noverlap=6)[2] ** 2, nperseg=9, noverlap=6)[1]),
    ("istft", lambda s, x: s.istft(s.stft(x, nperseg=8)[2].T, time_axis=0, freq_axis=1, scaling="psd")[1]),
    ("freqz", lambda s, x: s.freqz(x[0, :3], x[1, :4] + [4, 0, 0, 0], 6, True, fs=3.0)[1]),
    ("freqz", lambda s, x: s.freqz(x[0, :3], 2.0, [0.1, 0.7])[1]),
    *[("resample", lambda s, x, n=n, num=num, of=of: s.resample(of(x[:, :n]), num, axis=1))
      for n in (12, 13) for num in (6, 7, 12, 20, 21) for of in (lambda x: x, lambda x: x * (1 + 2j))],
    ("resample", lambda s, x: s.resample(x, 9, window="hann", axis=-1)),
    ("resample", lambda s, x: s.resample(x.T * 1j, 24, window=np.linspace(0, 1, 20), domain="freq")),
    ("resample", lambda s, x: s.resample(x.T, 10, np.arange(20) * 0.5, window=lambda f: np.cos(f))[0]),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:Input data is complex")  # an older SciPy's
@pytest.mark.parametrize(("name", "f"), thinned(SPECTRA, lambda name, f: name != "resample"))
def test_spectra(name, f):
    check(lambda x: f(ts.signal, x), lambda x: f(scipy.signal, x), [leaf(SIGNALS)], again=False)


def test_spectra_in_single_precision_and_their_frequencies():
    single, segments = SIGNALS[0].astype(np.float32), {"nperseg": 8}
    calls = dict.fromkeys(("welch", "stft", "spectrogram"), segments)
    calls |= {"periodogram": {}, "resample": {"num": 9}}
    for name, more in calls.items():
        found = getattr(ts.signal, name)(leaf(single), **more)
        theirs = getattr(scipy.signal, name)(single, **more)
        for mine, its in zip(found, theirs, strict=True) if name != "resample" else [(found, theirs)]:
            mine = mine.detach().numpy() if isinstance(mine, tg.Tensor) else mine
            np.testing.assert_allclose(mine, its, rtol=1e-4, atol=1e-6)
            assert mine.dtype == its.dtype
    assert gradgradcheck(lambda x: ts.signal.welch(x, nperseg=8)[1], [leaf(SIGNALS[0])])
    for call, words in (
        (lambda x: ts.signal.welch(x, nperseg=8, noverlap=8), r"signal\.welch: segments have 8 numbers"),
        (lambda x: ts.signal.welch(x, average="mode", nperseg=8), "average is 'mode'"),
        (lambda x: ts.signal.stft(x, boundary="wrap", nperseg=8), "boundary is 'wrap'"),
        (lambda x: ts.signal.csd(x, x, scaling="power", nperseg=8), "scaling is 'power'"),
        (lambda x: ts.signal.resample(x, 3, window=np.ones(3)), r"resample: a window of shape \(3,\)"),
    ):
        with pytest.raises(ValueError, match=words):
            call(leaf(SIGNALS[0]))
    with pytest.raises(UnsupportedOpError, match="freqz of several filters"):
        ts.signal.freqz(leaf(SIGNALS))
