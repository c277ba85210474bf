"""Convolutions, filters and spectra of `scipy.signal` on Tensors and arrays; all its other names are its own.

They are differentiated by the signal, by the other signal or the coefficients of the filter, and by the
state that it begins with.
"""

from __future__ import annotations

from typing import Any

import scipy.signal as _scipy

from tapegrad.scipy.calls import fall_through
from tapegrad.scipy.signal.convolutions import (
    convolve,
    convolve2d,
    correlate,
    correlate2d,
    fftconvolve,
    oaconvolve,
)
from tapegrad.scipy.signal.filters import (
    detrend,
    filtfilt,
    hilbert,
    lfilter,
    lfilter_zi,
    savgol_filter,
    sosfilt,
    sosfilt_zi,
    sosfiltfilt,
)
from tapegrad.scipy.signal.spectra import (
    coherence,
    csd,
    freqz,
    istft,
    periodogram,
    resample,
    spectrogram,
    stft,
    welch,
)

__all__ = [
    "coherence", "convolve", "convolve2d", "correlate", "correlate2d", "csd", "detrend", "fftconvolve",
    "filtfilt", "freqz", "hilbert", "istft", "lfilter", "lfilter_zi", "oaconvolve", "periodogram", "resample",
    "savgol_filter", "sosfilt", "sosfilt_zi", "sosfiltfilt", "spectrogram", "stft", "welch",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    return fall_through(_scipy, name)


def __dir__() -> list[str]:
    return sorted({*__all__, *_scipy.__all__})
