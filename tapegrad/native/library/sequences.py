"""Selections, order statistics and sums of products of arrays of active numbers, written as loops."""

from __future__ import annotations

import numpy as np
from numba import njit
from numba.core import types

from tapegrad.native.arrays.arrays import is_active_array, is_recorded_array
from tapegrad.native.emission.annotations import Code, Key
from tapegrad.native.library.factors import values
from tapegrad.native.library.functions import (
    INSTEAD,
    _any_active,
    _none,
    dtype_of,
    held,
    overload_recorded,
    shared,
)
from tapegrad.native.numbers.operators import value_of
from tapegrad.native.numbers.scalar import is_active
from tapegrad.native.tapes.blocks import inner_njit


@overload_recorded(njit(lambda a, dtype: a.astype(dtype)), method="astype")
def astype(a, dtype):
    stub = INSTEAD[np.array]
    if is_active_array(a) and isinstance(getattr(dtype, "dtype", None), (types.Integer, types.Boolean)):
        return lambda a, dtype: values(a).astype(dtype)
    return (lambda a, dtype: stub(a, dtype)) if is_recorded_array(a) and held(dtype, a) else None


@overload_recorded(np.append)
def append(arr, values):
    if not _any_active(arr, values):
        return None
    if not isinstance(values, types.Array):

        def one(arr, values):
            flat = arr.ravel()
            out = np.empty(flat.size + 1, dtype_of(arr, values))
            for k in range(flat.size):
                out[k] = flat[k]
            out[flat.size] = values
            return out

        return one

    def several(arr, values):
        a, b = arr.ravel(), values.ravel()
        out = np.empty(a.size + b.size, dtype_of(arr, values))
        for k in range(a.size):
            out[k] = a[k]
        for k in range(b.size):
            out[a.size + k] = b[k]
        return out

    return several


@inner_njit
def _order(a):
    """Which elements come in which place."""
    plain = np.empty(a.size)
    for k in range(a.size):
        plain[k] = value_of(a[k])
    return np.argsort(plain, kind="mergesort")


# By their values: Numba would compare active numbers, of which nan is neither less nor greater.


@overload_recorded(np.sort)
def sort(a):
    return (lambda a: _sorted(a)) if is_active_array(a) and a.ndim else None


@inner_njit
def _sorted(a):
    out = a.copy()
    if a.size:
        rows = out.reshape((-1, a.shape[-1]))
        for k in range(rows.shape[0]):
            row = rows[k].copy()
            order = _order(row)
            for j in range(order.size):
                rows[k, j] = row[order[j]]
    return out


@overload_recorded(njit(lambda a: a.sort()), method="sort")
def sort_in_place(a, key=None, reverse=False):
    if is_active_array(a) and a.ndim == 1:

        def impl(a, key=None, reverse=False):
            whole = _sorted(a)
            for k in range(a.size):
                a[k] = whole[k]

        return impl
    if isinstance(a, types.Array) or (_none(key) and not isinstance(reverse, types.Boolean)):
        return lambda a, key=None, reverse=False: a.sort()
    return lambda a, key=None, reverse=False: a.sort(key=key, reverse=reverse)  # a list


def _places(function: Key) -> None:
    """Declare where the greatest or least element is."""

    def whole(a, axis=None):
        return function(values(a))

    def along(a, axis=None):
        return function(values(a), axis)

    def choose(a, axis=None):
        return None if not is_active_array(a) else whole if _none(axis) else along

    choose.__name__ = function.__name__
    overload_recorded(function, method=function.__name__)(choose)


_places(np.argmax)
_places(np.argmin)


@overload_recorded(np.argsort, method="argsort")
def argsort(a, kind="quicksort"):
    if not is_active_array(a):
        return None
    if getattr(kind, "value", getattr(kind, "literal_value", kind)) == "mergesort":
        return lambda a, kind="quicksort": np.argsort(values(a), kind="mergesort")
    return lambda a, kind="quicksort": np.argsort(values(a))


@inner_njit
def _quantile(a, q):
    if not 0.0 <= q <= 1.0:
        raise ValueError("quantiles are from 0 to 1, percentiles from 0 to 100")
    flat = a.ravel()
    order, place = _order(flat), q * (flat.size - 1)
    if flat.size == 0 or np.isnan(flat[order[-1]]):
        return flat[order[-1]] if flat.size else np.nan
    low = min(int(place), flat.size - 1)
    high, part = min(low + 1, flat.size - 1), place - low
    if part == 0.0 and not np.isfinite(flat[order[high]]):
        return flat[order[low]] + 0.0
    return flat[order[low]] * (1.0 - part) + flat[order[high]] * part


@inner_njit
def _numbers(a):
    """The elements that are not nan."""
    flat = a.ravel()
    kept = np.zeros(flat.size, np.bool_)
    for k in range(flat.size):
        kept[k] = not np.isnan(flat[k])
    return flat[kept]


@inner_njit
def _same(x):
    return x


def _quantiles(function: Key, whole: float, chosen: Code) -> None:
    """Declare a quantile of the elements that are chosen, by a fraction of a whole or by several."""

    def one(a, q):
        return _quantile(chosen(a), q / whole)

    def several(a, q):
        out = np.empty(q.size, dtype_of(a))
        for k in range(q.size):
            out[k] = _quantile(chosen(a), q[k] / whole)
        return out

    def choose(a, q):
        if not is_active_array(a):
            return None
        if isinstance(q, types.Array):
            return several if q.ndim == 1 else None
        return one if isinstance(q, (types.Float, types.Integer)) or is_active(q) else None

    choose.__name__ = function.__name__
    overload_recorded(function)(choose)


_quantiles(np.quantile, 1.0, _same)
_quantiles(np.percentile, 100.0, _same)
_quantiles(np.nanquantile, 1.0, _numbers)
_quantiles(np.nanpercentile, 100.0, _numbers)


@inner_njit
def _median(a):
    """The mean of the two in the middle: the derivative of each is shared by the elements equal to it."""
    flat = a.ravel()
    order = _order(flat)
    if flat.size == 0:
        return np.nan
    if np.isnan(flat[order[-1]]):
        return flat[order[-1]]
    low, high = flat[order[(flat.size - 1) // 2]], flat[order[flat.size // 2]]
    if np.isfinite(low):
        low = shared(flat, value_of(low))
    if np.isfinite(high):
        high = shared(flat, value_of(high))
    return low if flat.size % 2 else 0.5 * low + 0.5 * high


@overload_recorded(np.median)
def median(a):
    return (lambda a: _median(a)) if is_active_array(a) else None


@overload_recorded(np.average)
def average(a, axis=None, weights=None):
    if not _any_active(a, weights) or not _none(axis):
        return None
    if _none(weights):
        stub = INSTEAD[np.mean]
        return lambda a, axis=None, weights=None: stub(a)

    def weighted(a, axis=None, weights=None):
        if a.shape != weights.shape:
            raise ValueError("weights of another shape than the array's")
        s, total = 0.0, 0.0
        for v, w in zip(a.flat, weights.flat):  # noqa: B905 (Numba knows no strict)
            s = s + v * w
            total = total + w
        return s / total

    return weighted


def _without_nan(function: Key, plain: Code, of_none: bool = False) -> None:
    """Declare a function of the elements that are not nan; `of_none` says whether none of them will do."""
    stub = INSTEAD[plain]

    def impl(a):
        kept = _numbers(a)
        if kept.size == 0 and a.size and not of_none:
            return np.nan
        return stub(kept)

    def choose(a):
        return impl if is_active_array(a) else None

    choose.__name__ = function.__name__
    overload_recorded(function)(choose)


_without_nan(np.nansum, np.sum, of_none=True)
_without_nan(np.nanprod, np.prod, of_none=True)
_without_nan(np.nanmean, np.mean)
_without_nan(np.nanvar, np.var)
_without_nan(np.nanstd, np.std)
_without_nan(np.nanmax, np.max)
_without_nan(np.nanmin, np.min)
_without_nan(np.nanmedian, np.median)


def _scan_without_nan(function: Key, plain: Code, neutral: float) -> None:
    stub = INSTEAD[plain]

    def impl(a):
        out = a.ravel().copy()
        for k in range(out.size):
            if np.isnan(out[k]):
                out[k] = neutral
        return stub(out)

    def choose(a):
        return impl if is_active_array(a) else None

    choose.__name__ = function.__name__
    overload_recorded(function)(choose)


_scan_without_nan(np.nancumsum, np.cumsum, 0.0)
_scan_without_nan(np.nancumprod, np.cumprod, 1.0)


@overload_recorded(np.convolve)
def convolve(a, v):
    if not _any_active(a, v):
        return None

    def impl(a, v):
        if a.size == 0 or v.size == 0:
            raise ValueError("convolve takes arrays that are not empty")
        out = np.zeros(a.size + v.size - 1, dtype_of(a, v))
        for i in range(out.size):
            s = 0.0
            for k in range(max(0, i - v.size + 1), min(i + 1, a.size)):
                s = s + a[k] * v[i - k]
            out[i] = s
        return out

    return impl


@overload_recorded(np.correlate)
def correlate(a, v):
    if not _any_active(a, v):
        return None

    def impl(a, v):
        if v.size == 0 or a.size < v.size:
            raise ValueError("correlate is recorded where the first array is not the shorter one")
        out = np.zeros(a.size - v.size + 1, dtype_of(a, v))
        for i in range(out.size):
            s = 0.0
            for k in range(v.size):
                s = s + a[i + k] * np.conj(v[k])
            out[i] = s
        return out

    return impl


@overload_recorded(np.cross)
def cross(a, b):
    if not _any_active(a, b) or a.ndim != 1 or b.ndim != 1:
        return None

    def impl(a, b):
        if a.size != 3 or b.size != 3:
            raise ValueError("cross is recorded of vectors of three elements")
        out = np.empty(3, dtype_of(a, b))
        for k in range(3):
            i, j = (k + 1) % 3, (k + 2) % 3
            out[k] = a[i] * b[j] - a[j] * b[i]
        return out

    return impl


@overload_recorded(np.bincount)
def bincount(a, weights=None, minlength=0):
    if _none(weights) or not is_active_array(weights):
        return None

    def impl(a, weights=None, minlength=0):
        if a.size != weights.size:
            raise ValueError("np.bincount: a weight for each number is needed")
        size = minlength
        for k in a:
            if k < 0:
                raise ValueError("np.bincount: numbers of bins are 0 or more")
            size = max(size, k + 1)
        out = np.zeros(size, dtype_of(weights))
        for i in range(a.size):
            out[a[i]] = out[a[i]] + weights[i]
        return out

    return impl


@inner_njit
def _precedes(a, b):
    """Whether a number comes before another one where numbers are sorted: nan comes last."""
    return a < b or (b != b and a == a)


@inner_njit
def _insertion(a, v, right):
    """The first place at which a sorted array takes a number, or the last one, behind equal ones."""
    low, high = 0, a.size
    while low < high:
        middle = (low + high) // 2
        if (not _precedes(v, a[middle])) if right else _precedes(a[middle], v):
            low = middle + 1
        else:
            high = middle
    return low


@inner_njit
def _insertions(a, v, right):
    out = np.empty(v.size, np.int64)
    for k, one in enumerate(v.flat):
        out[k] = _insertion(a, one, right)
    return out.reshape(v.shape)


@overload_recorded(np.searchsorted)
def searchsorted(a, v, side="left"):
    side = getattr(side, "literal_value", getattr(side, "value", side))  # Numba's of a default
    if not _any_active(a, v) or side not in ("left", "right"):
        return None
    right, place = side == "right", _insertions if isinstance(v, types.Array) else _insertion
    return lambda a, v, side="left": place(a, v, right)


@overload_recorded(np.digitize)
def digitize(x, bins, right=False):
    if not _any_active(x, bins):
        return None
    place = _insertions if isinstance(x, types.Array) else _insertion

    def impl(x, bins, right=False):
        falling = bins.size > 1 and bins[0] > bins[-1]
        found = place(bins[::-1] if falling else bins[:], x, not right)
        return bins.size - found if falling else found

    return impl


@overload_recorded(np.round, np.around)
def around(a, decimals=0):
    if is_active(a):
        return lambda a, decimals=0: np.round(value_of(a), decimals)
    return (lambda a, decimals=0: np.round(values(a), decimals)) if is_active_array(a) else None


@overload_recorded(round)
def rounded(number, ndigits=None):
    if not is_active(number) or _none(ndigits):
        return None
    return lambda number, ndigits=None: round(value_of(number), ndigits)


def _triangle(name: str, kept: str) -> None:
    space = {"np": np, "dtype_of": dtype_of}
    exec(
        "def impl(m, k=0):\n    out = np.zeros(m.shape, dtype_of(m))\n    for i in range(m.shape[0]):\n"
        f"        for j in range(m.shape[1]):\n            if j - i {kept} k:\n"
        "                out[i, j] = m[i, j]\n    return out\n",
        space,
    )

    def choose(m, k=0):
        return space["impl"] if is_recorded_array(m) and m.ndim == 2 else None

    choose.__name__ = name
    overload_recorded(getattr(np, name))(choose)


_triangle("triu", ">=")
_triangle("tril", "<=")


@overload_recorded(np.extract)
def extract(condition, arr):
    if not is_recorded_array(arr) or not isinstance(condition, types.Array):
        return None

    def impl(condition, arr):
        places = np.nonzero(condition.ravel())[0]
        if places.size and places[-1] >= arr.size:
            raise IndexError("np.extract: the condition is true where there are no elements")
        return arr.ravel()[places]

    return impl


@overload_recorded(np.isscalar)
def isscalar(element):
    return (lambda element: True) if _any_active(element) and not is_active_array(element) else None


@overload_recorded(np.ediff1d)
def ediff1d(ary):
    stub = INSTEAD[np.diff]
    return (lambda ary: stub(ary.ravel())) if is_active_array(ary) else None


@overload_recorded(np.vander)
def vander(x, N=None, increasing=False):
    if not is_active_array(x) or x.ndim != 1:
        return None
    square = _none(N)

    def impl(x, N=None, increasing=False):
        count = x.size if square else int(N)
        if count < 0:
            raise ValueError("np.vander: N is a number of columns, 0 or more")
        out = np.empty((x.size, count), dtype_of(x))
        for i in range(x.size):
            for j in range(count):
                k = j if increasing else count - 1 - j
                out[i, k] = 1.0 if j == 0 else out[i, k - 1 if increasing else k + 1] * x[i]
        return out

    return impl


@overload_recorded(np.cov)
def cov(m):
    return _covariances if is_active_array(m) and m.ndim == 2 else None


def _covariances(m):
    n, count = m.shape
    rest = np.empty(m.shape, dtype_of(m))
    for i in range(n):
        s = 0.0
        for k in range(count):
            s = s + m[i, k]
        s = s / count
        for k in range(count):
            rest[i, k] = m[i, k] - s
    out = np.empty((n, n), dtype_of(m))
    for i in range(n):
        for j in range(i + 1):
            s = 0.0
            for k in range(count):
                s = s + rest[i, k] * rest[j, k]
            out[i, j] = np.divide(s, max(count - 1, 0))
            out[j, i] = out[i, j]
    return out


@overload_recorded(np.corrcoef)
def corrcoef(x):
    if not is_active_array(x) or x.ndim != 2:
        return None
    stub = INSTEAD[np.cov]

    def impl(x):
        c = stub(x)
        out = np.empty(c.shape, dtype_of(x))
        for i in range(c.shape[0]):
            for j in range(c.shape[0]):
                out[i, j] = np.divide(np.divide(c[i, j], np.sqrt(c[i, i])), np.sqrt(c[j, j]))
                out[i, j] = np.maximum(np.minimum(out[i, j], 1.0), -1.0)
        return out

    return impl
