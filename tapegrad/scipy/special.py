"""Functions of `scipy.special` that are no ufuncs, on Tensors and arrays; all its other names are its own.

SciPy's ufuncs take Tensors themselves. Its functions in Python convert their arguments to arrays, which would
drop derivatives, so those that have one are here, with SciPy's arguments.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.special as _scipy
from scipy.special import _ufuncs

from tapegrad import numpy_api as _api
from tapegrad.core.base import Axis, decide, like_of, value_of
from tapegrad.core.dispatch import contains_tensor
from tapegrad.core.operators import constant_value
from tapegrad.errors import UnsupportedOpError
from tapegrad.numpy_api.tables import any_needs_derivative, tensor_of
from tapegrad.tensor import Operand, TensorOrArray

if TYPE_CHECKING:
    from tapegrad.tensor import Tensor

__all__ = [
    "comb", "diric", "factorial", "log_softmax", "logsumexp", "multigammaln", "perm", "polygamma", "softmax",
    "spherical_in", "spherical_jn", "spherical_kn", "spherical_yn",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    return getattr(_scipy, name)


def __dir__() -> list[str]:
    return sorted({*__all__, *_scipy.__all__})


def _floating(x: Operand) -> TensorOrArray:
    """An argument as a Tensor or array of numbers that are no integers."""
    x = tensor_of(x)
    return x if like_of(x).dtype.kind in "fc" else x * 1.0


def _constant(x: Any, what: str) -> np.ndarray:
    """A plain argument, by which there is no derivative."""
    if any_needs_derivative((x,)):
        raise UnsupportedOpError(f"scipy.special.{what} has no derivative; detach() it if it is a constant")
    return value_of(tensor_of(x))


# ---------------------------------------------------------------- sums of exponentials


def _shift(a: Operand, axis: Axis) -> TensorOrArray:
    """The largest value along axes, 0 where it is not finite: a constant that sums do not depend on."""
    largest = np.max(np.real(constant_value(a)), axis=axis, keepdims=True)
    return np.where(np.isfinite(largest), largest, 0.0)


def logsumexp(
    a: Operand, axis: Axis = None, b: Any = None, keepdims: bool = False, return_sign: bool = False
) -> Any:
    """Logarithm of the sum of exponentials.

    Parameters
    ----------
    a : Tensor or array_like
    axis : int or tuple of int, optional
        Axes to sum over; all by default.
    b : Tensor or array_like, optional
        Factors of the exponentials.
    keepdims : bool, optional
    return_sign : bool, optional
        Whether the sign of the sum is returned too, and the logarithm is that of its size.

    Returns
    -------
    Tensor, or a tuple of two
        As `scipy.special.logsumexp`.

    Examples
    --------
    >>> import tapegrad as tg, tapegrad.scipy as ts
    >>> x = tg.tensor([0.5, 1.5], requires_grad=True)
    >>> tg.grad(ts.special.logsumexp(x), x)
    (tensor([0.2689, 0.7311]),)
    """
    if not (contains_tensor(a) or contains_tensor(b)):
        return _scipy.logsumexp(a, axis, b, keepdims, return_sign)
    a = _floating(a)
    if b is None and not return_sign and like_of(a).dtype.kind == "f":
        return _api.logsumexp(a, axis, keepdims)
    if b is not None:
        a, b = np.broadcast_arrays(a, _floating(b))
        none = decide(np.equal, b, 0)
        a, b = np.where(none, -np.inf, a), np.where(none, 0.0, b)
    shift = _shift(a, axis)
    sign: Any = None
    terms = np.exp(a - shift) if b is None else b * np.exp(a - shift)
    total = np.sum(terms, axis=axis, keepdims=True)
    if return_sign:
        size = np.abs(total)
        sign = total / np.where(value_of(size) == 0, 1.0, size) if total.dtype.kind == "c" else np.sign(total)
        total = size
    elif total.dtype.kind == "f":
        total = np.where(value_of(total) < 0, np.nan, total)
    out = np.log(total) + shift
    if not keepdims:
        out = np.squeeze(out, axis=axis)
        sign = np.squeeze(sign, axis=axis) if return_sign else None
    return (out, sign) if return_sign else out


def _are_counts(whole: Any, part: Any) -> Any:
    return (part <= whole) & (whole >= 0) & (part >= 0)


def softmax(x: Operand, axis: Axis = None) -> TensorOrArray:
    """Exponentials by their sum.

    Parameters
    ----------
    x : Tensor or array_like
    axis : int or tuple of int, optional
        Axes to sum over; all by default.

    Returns
    -------
    Tensor
        As `scipy.special.softmax`.

    Examples
    --------
    >>> import tapegrad as tg, tapegrad.scipy as ts
    >>> ts.special.softmax(tg.array([1.0, 1.0]))
    tensor([0.5, 0.5])
    """
    x = _floating(x)
    terms = np.exp(x - np.max(constant_value(x), axis=axis, keepdims=True))
    return terms / np.sum(terms, axis=axis, keepdims=True)


def log_softmax(x: Operand, axis: Axis = None) -> TensorOrArray:
    """Logarithm of `softmax`.

    Parameters
    ----------
    x : Tensor or array_like
    axis : int or tuple of int, optional
        Axes to sum over; all by default.

    Returns
    -------
    Tensor
        As `scipy.special.log_softmax`.

    Examples
    --------
    >>> import tapegrad as tg, tapegrad.scipy as ts
    >>> ts.special.log_softmax(tg.array([1.0, 1.0]))
    tensor([-0.6931, -0.6931])
    """
    x = _floating(x)
    moved = x - _shift(x, axis)
    return moved - np.log(np.sum(np.exp(moved), axis=axis, keepdims=True))


# ---------------------------------------------------------------- gammas


def polygamma(n: Operand, x: Operand) -> Tensor:
    """Derivative of the digamma function.

    Parameters
    ----------
    n : int or array_like of int
        Its order, a constant.
    x : Tensor or array_like

    Returns
    -------
    Tensor
        As `scipy.special.polygamma`.

    Examples
    --------
    >>> import tapegrad as tg, tapegrad.scipy as ts
    >>> x = tg.tensor(0.5, requires_grad=True)
    >>> tg.grad(ts.special.polygamma(1, x), x)
    (tensor(-16.8288),)
    """
    n, x = _constant(n, "polygamma by its order n"), tensor_of(x)
    if np.all(n == 0):
        return _scipy.psi(x) + np.zeros(np.shape(n))
    order = np.where(n == 0, 1, n)
    found = (-1.0) ** (order + 1) * _scipy.gamma(order + 1.0) * _ufuncs._zeta(order + 1, x)
    return np.where(n == 0, _scipy.psi(x), found) if np.any(n == 0) else found


def multigammaln(a: Operand, d: int) -> TensorOrArray:
    """Logarithm of the multivariate gamma function.

    Parameters
    ----------
    a : Tensor or array_like
        Numbers above (d - 1)/2.
    d : int
        The dimension.

    Returns
    -------
    Tensor
        As `scipy.special.multigammaln`.

    Examples
    --------
    >>> import tapegrad as tg, tapegrad.scipy as ts
    >>> a = tg.tensor(3.5, requires_grad=True)
    >>> tg.grad(ts.special.multigammaln(a, 2), a)
    (tensor(2.0259),)
    """
    a = tensor_of(a)
    if not np.isscalar(d) or np.floor(d) != d:
        raise ValueError(f"scipy.special.multigammaln: d is {d!r}; give a whole number from 1 on")
    if np.any(decide(np.less_equal, a, 0.5 * (d - 1))):
        raise ValueError(
            f"scipy.special.multigammaln: a is {value_of(a)}; for d = {d} give more than {0.5 * (d - 1)}"
        )
    found = _scipy.gammaln(a) + d * (d - 1) * 0.25 * np.log(np.pi)
    for j in range(2, int(d) + 1):
        found = found + _scipy.gammaln(a - (j - 1.0) / 2)
    return found


def factorial(n: Any, exact: bool = False, extend: str = "zero") -> Any:
    """gamma(n + 1), 0 below 0.

    Parameters
    ----------
    n : Tensor or array_like
    exact, extend : optional
        As SciPy has them; a derivative is there for the defaults.

    Returns
    -------
    Tensor
        As `scipy.special.factorial`.

    Examples
    --------
    >>> import tapegrad as tg, tapegrad.scipy as ts
    >>> n = tg.tensor(0.5, requires_grad=True)
    >>> tg.grad(ts.special.factorial(n), n)
    (tensor(0.0323),)
    """
    if exact or extend != "zero" or not any_needs_derivative((n,)):
        return _scipy.factorial(_constant(n, "factorial with exact= or extend="), exact=exact, extend=extend)
    low = decide(np.less, n, 0)
    return np.where(low, 0.0, _scipy.gamma(np.where(low, 0.0, n) + 1))


def comb(N: Any, k: Any, *, exact: bool = False, repetition: bool = False) -> Any:
    """Number of combinations, 0 outside of 0 <= k <= N.

    Parameters
    ----------
    N, k : Tensor or array_like
    exact : bool, optional
        Whether to compute with integers, which have no derivative.
    repetition : bool, optional
        Whether elements may come again.

    Returns
    -------
    Tensor
        As `scipy.special.comb`.

    Examples
    --------
    >>> import tapegrad as tg, tapegrad.scipy as ts
    >>> n = tg.tensor(4.5, requires_grad=True)
    >>> tg.grad(ts.special.comb(n, 2), n)
    (tensor(4.),)
    """
    if exact or not any_needs_derivative((N, k)):
        N, k = (_constant(x, "comb with exact=True") for x in (N, k))
        return _scipy.comb(N, k, exact=exact, repetition=repetition)
    N, k = tensor_of(N), tensor_of(k)
    if repetition:
        return comb(N + k - 1, k)
    inside = decide(_are_counts, N, k)
    return np.where(inside, _scipy.binom(N, k), 0.0)


def perm(N: Any, k: Any, exact: bool = False) -> Any:
    """Number of arrangements, 0 outside of 0 <= k <= N.

    Parameters
    ----------
    N, k : Tensor or array_like
    exact : bool, optional
        Whether to compute with integers, which have no derivative.

    Returns
    -------
    Tensor
        As `scipy.special.perm`.

    Examples
    --------
    >>> import tapegrad as tg, tapegrad.scipy as ts
    >>> n = tg.tensor(4.5, requires_grad=True)
    >>> tg.grad(ts.special.perm(n, 2), n)
    (tensor(8.),)
    """
    if exact or not any_needs_derivative((N, k)):
        N, k = (_constant(x, "perm with exact=True") for x in (N, k))
        return _scipy.perm(N, k, exact=exact)
    N, k = tensor_of(N), tensor_of(k)
    inside = decide(_are_counts, N, k)
    return np.where(inside, _scipy.poch(N - k + 1, k), 0.0)


def diric(x: Operand, n: Operand) -> TensorOrArray:
    """Periodic sinc function; at whole turns its limit, where the derivative is 0.

    Parameters
    ----------
    x : Tensor or array_like
    n : int or array_like of int
        A constant.

    Returns
    -------
    Tensor
        As `scipy.special.diric`.

    Examples
    --------
    >>> import tapegrad as tg, tapegrad.scipy as ts
    >>> x = tg.tensor(0.5, requires_grad=True)
    >>> tg.grad(ts.special.diric(x, 3), x)
    (tensor(-0.3196),)
    """
    n, x = _constant(n, "diric by its count n"), _floating(x)
    if not any_needs_derivative((x,)):
        return _scipy.diric(value_of(x), n)
    value = value_of(x)
    turns = np.abs(np.sin(value / 2)) < (1e-7 if value.dtype.itemsize >= 8 else 1e-3)
    safe = np.where(turns, 1.0, x)
    limit = np.where(n % 2 == 0, (-1.0) ** np.round(value / (2 * np.pi)), 1.0)
    return np.where(turns, limit, np.sin(n * safe / 2) / (n * np.sin(safe / 2)))


# ---------------------------------------------------------------- spherical Bessel functions


def _spherical(name: str, n: Operand, z: Operand, derivative: bool, even: int) -> TensorOrArray:
    """One of them, of real numbers below 0 by its parity (of order 0: `even`), if it has one."""
    n = np.asarray(_constant(n, f"{name} by its order n"), np.dtype("long"))
    z = _floating(z)
    ufunc = getattr(_ufuncs, f"_{name}_d" if derivative else f"_{name}")
    low = np.real(value_of(z)) < 0
    if like_of(z).dtype.kind == "c" or not np.any(low):
        return ufunc(n, z)
    if not even:
        return getattr(_scipy, name)(n, _constant(z, f"{name} of numbers below 0"), derivative)
    sign = np.where(n % 2 == 0, even, -even) * (-1 if derivative else 1)
    return np.where(low, sign, 1) * ufunc(n, np.where(low, -z, z))


def spherical_jn(n: Operand, z: Operand, derivative: bool = False) -> TensorOrArray:
    """Spherical Bessel function of the first kind.

    Parameters
    ----------
    n : int or array_like of int
        Its order, a constant.
    z : Tensor or array_like
    derivative : bool, optional
        Whether to return its derivative instead.

    Returns
    -------
    Tensor
        As `scipy.special.spherical_jn`.

    Examples
    --------
    >>> import tapegrad as tg, tapegrad.scipy as ts
    >>> z = tg.tensor(0.5, requires_grad=True)
    >>> tg.grad(ts.special.spherical_jn(2, z), z)
    (tensor(0.0643),)
    """
    return _spherical("spherical_jn", n, z, derivative, 1)


def spherical_yn(n: Operand, z: Operand, derivative: bool = False) -> TensorOrArray:
    """Spherical Bessel function of the second kind.

    Parameters
    ----------
    n : int or array_like of int
        Its order, a constant.
    z : Tensor or array_like
    derivative : bool, optional
        Whether to return its derivative instead.

    Returns
    -------
    Tensor
        As `scipy.special.spherical_yn`.

    Examples
    --------
    >>> import tapegrad as tg, tapegrad.scipy as ts
    >>> z = tg.tensor(0.5, requires_grad=True)
    >>> tg.grad(ts.special.spherical_yn(0, z), z)
    (tensor(4.4692),)
    """
    return _spherical("spherical_yn", n, z, derivative, -1)


def spherical_in(n: Operand, z: Operand, derivative: bool = False) -> TensorOrArray:
    """Modified spherical Bessel function of the first kind.

    Parameters
    ----------
    n : int or array_like of int
        Its order, a constant.
    z : Tensor or array_like
    derivative : bool, optional
        Whether to return its derivative instead.

    Returns
    -------
    Tensor
        As `scipy.special.spherical_in`.

    Examples
    --------
    >>> import tapegrad as tg, tapegrad.scipy as ts
    >>> z = tg.tensor(0.5, requires_grad=True)
    >>> tg.grad(ts.special.spherical_in(1, z), z)
    (tensor(0.3587),)
    """
    return _spherical("spherical_in", n, z, derivative, 1)


def spherical_kn(n: Operand, z: Operand, derivative: bool = False) -> TensorOrArray:
    """Modified spherical Bessel function of the second kind; without a derivative of numbers below 0.

    Parameters
    ----------
    n : int or array_like of int
        Its order, a constant.
    z : Tensor or array_like
    derivative : bool, optional
        Whether to return its derivative instead.

    Returns
    -------
    Tensor
        As `scipy.special.spherical_kn`.

    Examples
    --------
    >>> import tapegrad as tg, tapegrad.scipy as ts
    >>> z = tg.tensor(0.5, requires_grad=True)
    >>> tg.grad(ts.special.spherical_kn(0, z), z)
    (tensor(-5.7164),)
    """
    return _spherical("spherical_kn", n, z, derivative, 0)
