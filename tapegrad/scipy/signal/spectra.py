"""Spectra of signals and of filters, and signals of other lengths by their spectra."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import scipy.signal as _scipy

from tapegrad.core.base import like_of, value_of
from tapegrad.errors import ShapeError
from tapegrad.scipy import fft
from tapegrad.scipy.calls import derived_in, refuse
from tapegrad.scipy.signal.convolutions import floats
from tapegrad.scipy.signal.filters import detrend as without_trend
from tapegrad.tensor import TensorOrArray

derived = derived_in(_scipy)
EXTENSIONS: dict[str, dict[str, Any]] = {
    "zeros": {"mode": "constant"}, "constant": {"mode": "edge"}, "even": {"mode": "reflect"},
    "odd": {"mode": "reflect", "reflect_type": "odd"},
}  # fmt: skip
MODES: dict[str, Any] = {
    "psd": None, "complex": lambda z: z, "magnitude": np.abs, "angle": np.angle,
    "phase": lambda z: np.unwrap(np.angle(z), axis=-2),
}  # fmt: skip
WEIGHTS = {
    "density": lambda win, fs: 1 / (fs * np.sum(win * win)),
    "spectrum": lambda win, fs: 1 / np.sum(win) ** 2,
}


class _Segments(NamedTuple):
    """How a signal is cut: window, lengths of a segment and of its transform, and steps between segments."""

    window: np.ndarray
    step: int
    length: int
    trend: Any
    onesided: bool

    def spectra(self, x: TensorOrArray) -> TensorOrArray:
        """Transforms of the segments of a signal along its last axis."""
        parts = np.lib.stride_tricks.sliding_window_view(x, len(self.window), axis=-1)[..., :: self.step, :]
        if self.trend:
            parts = without_trend(parts, type=self.trend)
        return (fft.rfft if self.onesided else fft.fft)(parts * self.window, self.length)

    def frequencies(self, fs: float) -> np.ndarray:
        """What the transforms are at."""
        made: np.ndarray = (np.fft.rfftfreq if self.onesided else np.fft.fftfreq)(self.length, 1 / fs)
        return made


def _window_of(window: Any, size: int) -> np.ndarray:
    """The numbers of a window, which may be given by its name."""
    named = isinstance(window, (str, tuple))
    return _scipy.get_window(window, size) if named else np.asarray(value_of(window))


def _segments(
    window: Any,
    nperseg: int | None,
    noverlap: int | None,
    nfft: int | None,
    trend: Any,
    onesided: bool,
    n: int,
) -> _Segments:
    if callable(trend):
        raise ValueError("detrend is a function; give 'constant', 'linear' or False")
    window = _window_of(window, min(256 if nperseg is None else int(nperseg), n))
    if window.ndim != 1 or len(window) > n or (nperseg is not None and len(window) != min(nperseg, n)):
        raise ShapeError(
            f"a window of shape {window.shape} does not fit nperseg={nperseg} and a signal of {n} numbers"
        )
    size = len(window)
    noverlap, nfft = size // 2 if noverlap is None else int(noverlap), size if nfft is None else int(nfft)
    if noverlap >= size or nfft < size:
        raise ValueError(f"segments have {size} numbers; noverlap is to be less and nfft no less")
    return _Segments(window, size - noverlap, nfft, trend, onesided)


def _scale(scaling: str, window: np.ndarray, fs: float) -> float:
    if scaling not in WEIGHTS:
        raise ValueError(f"scaling is {scaling!r}; give 'density' or 'spectrum'")
    return float(WEIGHTS[scaling](window, fs))


def _powers(
    x: Any, y: Any, fs: float, window: Any, nperseg: int | None, noverlap: int | None, nfft: int | None,
    trend: Any, return_onesided: bool, scaling: str,
) -> tuple[np.ndarray, TensorOrArray]:  # fmt: skip
    """Frequencies, and spectra of segments along the last axes: that of x, or the cross spectrum with y."""
    signals = [x] if y is None else [x, y]
    n = max(np.shape(s)[-1] for s in signals)
    signals = [
        np.pad(s, [(0, 0)] * (np.ndim(s) - 1) + [(0, n - np.shape(s)[-1])]) if np.shape(s)[-1] < n else s
        for s in signals
    ]
    onesided = return_onesided and all(like_of(s).dtype.kind != "c" for s in signals)
    cut = _segments(window, nperseg, noverlap, nfft, trend, onesided, n)
    found: list[Any] = [cut.spectra(s) for s in signals]
    power = np.real(found[0]) ** 2 + np.imag(found[0]) ** 2 if y is None else np.conj(found[0]) * found[1]
    weights = np.full(np.shape(power)[-1], _scale(scaling, cut.window, fs))
    if onesided:
        weights[1 : -1 if cut.length % 2 == 0 else None] *= 2
    return cut.frequencies(fs), power * weights


@derived
def csd(
    x: Any, y: Any, fs: float = 1.0, window: Any = "hann", nperseg: int | None = None,
    noverlap: int | None = None, nfft: int | None = None, detrend: Any = "constant",
    return_onesided: bool = True, scaling: str = "density", axis: int = -1, average: str = "mean",
) -> tuple[np.ndarray, TensorOrArray]:  # fmt: skip
    """Cross spectral density by Welch's method, as `scipy.signal.csd`; the density is a Tensor.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> x = tg.tensor([1.0, 0.0, 2.0, 1.0], requires_grad=True)
    >>> f, density = ts.signal.csd(x, np.arange(4.0), nperseg=4)
    >>> tg.grad(density[1], x, np.array(1.0 + 0j))
    (tensor([-0.1667, -0.8333,  0.5000,  0.5000]),)
    """
    return _welch(floats(x), floats(y), axis, average, fs, window, nperseg, noverlap, nfft, detrend,
                  return_onesided, scaling)  # fmt: skip


@derived
def welch(
    x: Any, fs: float = 1.0, window: Any = "hann", nperseg: int | None = None, noverlap: int | None = None,
    nfft: int | None = None, detrend: Any = "constant", return_onesided: bool = True,
    scaling: str = "density", axis: int = -1, average: str = "mean",
) -> tuple[np.ndarray, TensorOrArray]:  # fmt: skip
    """Power spectral density by Welch's method, as `scipy.signal.welch`; the density is a Tensor.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> x = tg.tensor([1.0, 0.0, 2.0, 1.0], requires_grad=True)
    >>> f, density = ts.signal.welch(x, nperseg=4)
    >>> tg.grad(density[1], x)
    (tensor([-0.6667, -1.3333,  2.0000,  0.0000]),)
    """
    return _welch(floats(x), None, axis, average, fs, window, nperseg, noverlap, nfft, detrend,
                  return_onesided, scaling)  # fmt: skip


def _in_precision(found: Any, *signals: Any) -> Any:
    """A result in the precision of the signals, in which windows are not."""
    single = all(s is None or like_of(s).dtype.char in "fF" for s in signals)
    complexes = like_of(found).dtype.kind == "c"
    return found.astype(np.complex64 if complexes else np.float32) if single else found


def _welch(x: Any, y: Any, axis: int, average: str, *how: Any) -> tuple[np.ndarray, TensorOrArray]:
    x, y = (None if s is None else np.moveaxis(s, axis, -1) for s in (x, y))
    frequencies, powers = _powers(x, y, *how)
    powers = _in_precision(powers, x, y)
    count = np.shape(powers)[-2]
    if average == "mean":
        found = np.mean(powers, axis=-2)
    elif average == "median":
        odd = 2.0 * np.arange(1, (count - 1) // 2 + 1)
        bias = 1 + np.sum(1 / (odd + 1) - 1 / odd)
        middles = [
            np.median(part, axis=-2) for part in ((powers,) if y is None else (powers.real, powers.imag))
        ]
        found = (middles[0] if y is None else middles[0] + 1j * middles[1]) / bias
    else:
        raise ValueError(f"average is {average!r}; give 'mean' or 'median'")
    return frequencies, np.moveaxis(found, -1, axis)


@derived
def periodogram(
    x: Any, fs: float = 1.0, window: Any = "boxcar", nfft: int | None = None, detrend: Any = "constant",
    return_onesided: bool = True, scaling: str = "density", axis: int = -1,
) -> tuple[np.ndarray, TensorOrArray]:  # fmt: skip
    """Power spectral density by a periodogram, as `scipy.signal.periodogram`; the density is a Tensor.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> x = tg.tensor([1.0, 0.0, 2.0, 1.0], requires_grad=True)
    >>> f, density = ts.signal.periodogram(x)
    >>> tg.grad(density[1], x)
    (tensor([-1., -1.,  1.,  1.]),)
    """
    x = floats(x)
    n = np.shape(x)[axis]
    if nfft is not None and nfft < n:
        x = np.moveaxis(np.moveaxis(x, axis, -1)[..., :nfft], -1, axis)
        n = nfft
    window = "boxcar" if window is None else window
    return _welch(x, None, axis, "mean", fs, window, n, 0, nfft, detrend, return_onesided, scaling)


@derived
def coherence(
    x: Any, y: Any, fs: float = 1.0, window: Any = "hann", nperseg: int | None = None,
    noverlap: int | None = None, nfft: int | None = None, detrend: Any = "constant", axis: int = -1,
) -> tuple[np.ndarray, TensorOrArray]:  # fmt: skip
    """Coherence by Welch's method, as `scipy.signal.coherence`; it is a Tensor.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> x = tg.tensor([1.0, 0.0, 2.0, 1.0, 0.5, 3.0], requires_grad=True)
    >>> f, found = ts.signal.coherence(x, np.arange(6.0) ** 2, nperseg=4)
    >>> found.shape
    (3,)
    """
    how = {"fs": fs, "window": window, "nperseg": nperseg, "noverlap": noverlap, "nfft": nfft,
           "detrend": detrend, "axis": axis}  # fmt: skip
    frequencies, both = csd(x, y, **how)
    each = [welch(s, **how)[1] for s in (x, y)]
    return frequencies, np.abs(both) ** 2 / each[0] / each[1]


@derived
def stft(
    x: Any, fs: float = 1.0, window: Any = "hann", nperseg: int | None = 256, noverlap: int | None = None,
    nfft: int | None = None, detrend: Any = False, return_onesided: bool = True,
    boundary: str | None = "zeros", padded: bool = True, axis: int = -1, scaling: str = "spectrum",
) -> tuple[np.ndarray, np.ndarray, TensorOrArray]:  # fmt: skip
    """Short time Fourier transform, as `scipy.signal.stft`; the transform is a Tensor.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> x = tg.tensor(np.arange(8.0), requires_grad=True)
    >>> f, t, z = ts.signal.stft(x, nperseg=4)
    >>> tg.grad(np.sum(np.abs(z[1]) ** 2), x)[0][:2]
    tensor([ 0.000, -0.125])
    """
    if boundary is not None and boundary not in EXTENSIONS:
        raise ValueError(f"boundary is {boundary!r}; give one of {[*EXTENSIONS]} or None")
    if scaling not in ("spectrum", "psd"):
        raise ValueError(f"scaling is {scaling!r}; give 'spectrum' or 'psd'")
    x = np.moveaxis(floats(x), axis, -1)
    onesided = return_onesided and like_of(x).dtype.kind != "c"
    cut = _segments(window, nperseg, noverlap, nfft, detrend, onesided, np.shape(x)[-1])
    size, still = len(cut.window), [(0, 0)] * (np.ndim(x) - 1)
    if boundary is not None:
        x = np.pad(x, [*still, (size // 2, size // 2)], **EXTENSIONS[boundary])
    if padded:
        x = np.pad(x, [*still, (0, -(np.shape(x)[-1] - size) % cut.step % size)])
    z = cut.spectra(x) * np.sqrt(_scale("density" if scaling == "psd" else "spectrum", cut.window, fs))
    times = np.arange(size / 2, np.shape(x)[-1] - size / 2 + 1, cut.step) / float(fs)
    place = axis - 1 if axis < 0 else axis
    return (
        cut.frequencies(fs),
        times - (0 if boundary is None else size / 2 / fs),
        np.moveaxis(_in_precision(np.swapaxes(z, -1, -2), x), -2, place),
    )


@derived
def spectrogram(
    x: Any, fs: float = 1.0, window: Any = ("tukey", 0.25), nperseg: int | None = None,
    noverlap: int | None = None, nfft: int | None = None, detrend: Any = "constant",
    return_onesided: bool = True, scaling: str = "density", axis: int = -1, mode: str = "psd",
) -> tuple[np.ndarray, np.ndarray, TensorOrArray]:  # fmt: skip
    """Spectra of segments of a signal, as `scipy.signal.spectrogram`; they are a Tensor.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> x = tg.tensor([1.0, 0.0, 2.0, 1.0, 0.5, 3.0], requires_grad=True)
    >>> f, t, power = ts.signal.spectrogram(x, window="hann", nperseg=4, noverlap=2)
    >>> tg.grad(power[1, 0], x)
    (tensor([-0.6667, -1.3333,  2.0000,  0.0000,  0.0000,  0.0000]),)
    """
    if mode not in MODES:
        raise ValueError(f"mode is {mode!r}; give one of {[*MODES]}")
    x = np.moveaxis(floats(x), axis, -1)
    n = np.shape(x)[-1]
    size = (
        min(256 if nperseg is None else int(nperseg), n) if isinstance(window, (str, tuple)) else len(window)
    )
    noverlap = size // 8 if noverlap is None else noverlap
    if mode == "psd":
        frequencies, found = _powers(
            x, None, fs, window, size, noverlap, nfft, detrend, return_onesided, scaling
        )
        times = (np.arange(np.shape(found)[-2]) * (size - noverlap) + size / 2) / float(fs)
        found = _in_precision(np.swapaxes(found, -1, -2), x)
    else:
        how = "psd" if scaling == "density" else scaling
        frequencies, times, z = stft(
            x, fs, window, size, noverlap, nfft, detrend, return_onesided, None, False, -1, how
        )
        found = MODES[mode](z)
    return frequencies, times, np.moveaxis(found, -2, axis - 1 if axis < 0 else axis)


@derived
def istft(
    Zxx: Any, fs: float = 1.0, window: Any = "hann", nperseg: int | None = None, noverlap: int | None = None,
    nfft: int | None = None, input_onesided: bool = True, boundary: bool = True, time_axis: int = -1,
    freq_axis: int = -2, scaling: str = "spectrum",
) -> tuple[np.ndarray, TensorOrArray]:  # fmt: skip
    """Signal of a short time Fourier transform, as `scipy.signal.istft`; it is a Tensor.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> f, t, z = ts.signal.stft(tg.tensor(np.arange(8.0), requires_grad=True), nperseg=4)
    >>> ts.signal.istft(z)[1].detach()
    tensor([0., 1., 2., 3., 4., 5., 6., 7.])
    """
    how = fs, window, nperseg, noverlap, nfft, input_onesided, boundary, time_axis, freq_axis, scaling
    times, _ = _scipy.istft(value_of(Zxx), *how)  # refuses what is wrong, and warns where there is no inverse
    z = np.moveaxis(floats(Zxx), (time_axis, freq_axis), (-2, -1))
    whole = 2 * (np.shape(z)[-1] - 1) if input_onesided else np.shape(z)[-1]
    size = whole if nperseg is None else int(nperseg)
    length = nfft if nfft is not None else size if input_onesided and size == whole + 1 else whole
    step = size - (size // 2 if noverlap is None else int(noverlap))
    window = _window_of(window, size)
    parts = (fft.irfft if input_onesided else fft.ifft)(z, length)[..., :size] * window
    inner = slice(size // 2, -(size // 2)) if boundary else slice(None)
    weight = _overlapped(np.broadcast_to(window**2, np.shape(parts)[-2:]), step)
    whole_scale = np.sqrt(_scale("density" if scaling == "psd" else "spectrum", window, fs))
    found = _overlapped(parts, step) / (np.where(weight > 1e-10, weight, 1.0) * whole_scale)
    rest = [d for d in range(np.ndim(Zxx)) if d != freq_axis % np.ndim(Zxx)]
    found = np.moveaxis(_in_precision(found[..., inner], z), -1, rest.index(time_axis % np.ndim(Zxx)))
    return times, found


def _overlapped(parts: Any, step: int) -> Any:
    """Segments, the last axis, added where they lie, each some steps behind the one before."""
    count, size = np.shape(parts)[-2:]
    blocks = -(-size // step)
    still = [(0, 0)] * (np.ndim(parts) - 2)
    parts = np.pad(parts, [*still, (0, 0), (0, blocks * step - size)])
    found = sum(
        np.pad(parts[..., k * step : (k + 1) * step], [*still, (k, blocks - 1 - k), (0, 0)])
        for k in range(blocks)
    )
    flat = np.reshape(found, (*np.shape(found)[:-2], -1))
    return flat[..., : (count - 1) * step + size]


@derived
def freqz(
    b: Any, a: Any = 1, worN: Any = 512, whole: bool = False, plot: Any = None, fs: float = 2 * np.pi,
    include_nyquist: bool = False,
) -> tuple[np.ndarray, TensorOrArray]:  # fmt: skip
    """Frequency response of a filter, as `scipy.signal.freqz`; the response is a Tensor.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> b = tg.tensor([1.0, 0.5], requires_grad=True)
    >>> w, h = ts.signal.freqz(b, worN=[0.0, 1.0])
    >>> tg.grad(np.sum(np.abs(h) ** 2), b)
    (tensor([5.5403, 5.0806]),)
    """
    b, a = np.atleast_1d(floats(b)), np.atleast_1d(floats(a))
    if np.ndim(b) != 1 or np.ndim(a) != 1 or plot is not None:
        raise refuse("scipy.signal.freqz of several filters, or with plot")
    w, _ = _scipy.freqz(value_of(b), value_of(a), value_of(worN), whole, None, fs, include_nyquist)
    turns = np.exp(-2j * np.pi / fs * w)[:, None]
    numerator, denominator = ((turns ** np.arange(np.shape(c)[0])) @ c for c in (b, a))
    return w, numerator / denominator


@derived
def resample(x: Any, num: int, t: Any = None, axis: int = 0, window: Any = None, domain: str = "time") -> Any:
    """A periodic signal of another length, by its spectrum, as `scipy.signal.resample`.

    Examples
    --------
    >>> import tapegrad as tg, tapegrad.scipy as ts
    >>> x = tg.tensor([1.0, 2.0, 4.0, 2.0], requires_grad=True)
    >>> tg.grad(ts.signal.resample(x, 8)[1], x)
    (tensor([ 0.6036,  0.6036, -0.1036, -0.1036]),)
    """
    if domain not in ("time", "freq"):
        raise ValueError(f"domain is {domain!r}; give 'time' or 'freq'")
    x = np.moveaxis(floats(x), axis, -1)
    n, least = np.shape(x)[-1], min(num, np.shape(x)[-1])
    weights = _spectral_window(window, n)
    if domain == "time" and like_of(x).dtype.kind != "c":
        spectrum = fft.rfft(x)[..., : least // 2 + 1]
        factors = (weights + np.roll(weights[::-1], 1))[: least // 2 + 1] / 2
        if least % 2 == 0 and num != n:
            factors[least // 2] *= 2 if num < n else 0.5
        found = fft.irfft(spectrum * (factors * num / n), num)
    else:
        spectrum = (fft.fft(x) if domain == "time" else x) * weights * (num / n)
        positive, negative = spectrum[..., : least // 2 + 1], spectrum[..., n - (least - 1) // 2 :]
        if least % 2 == 0 and num < n:
            middle = positive[..., -1:] + spectrum[..., n - least // 2 : n - least // 2 + 1]
            parts = [positive[..., :-1], middle, negative]
        elif least % 2 == 0 and n < num:
            middle = positive[..., -1:] / 2
            gap = np.zeros((*np.shape(x)[:-1], num - n - 1))
            parts = [positive[..., :-1], middle, gap, middle, negative]
        else:
            parts = [positive, np.zeros((*np.shape(x)[:-1], num - least)), negative]
        found = fft.ifft(np.concatenate(parts, axis=-1))
    found = np.moveaxis(_in_precision(found, x), -1, axis)
    return found if t is None else (found, t[0] + (t[1] - t[0]) * n / num * np.arange(num))


def _spectral_window(window: Any, n: int) -> np.ndarray:
    """Factors of the frequencies of a transform."""
    if window is None:
        return np.ones(n)
    if callable(window):
        return np.asarray(window(np.fft.fftfreq(n)), float)
    if isinstance(window, (str, tuple, float, int)):
        return np.fft.fftshift(_scipy.get_window(window, n))
    if np.shape(window) != (n,):
        raise ShapeError(f"a window of shape {np.shape(window)} for {n} frequencies")
    return np.array(value_of(window), float)
