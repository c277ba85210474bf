"""Distributions of vectors and matrices."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.special as sc
import scipy.stats as _scipy

from tapegrad.core.base import Shape, value_of
from tapegrad.scipy.calls import Guarded, derivative_wanted, doubles, refuse, theirs
from tapegrad.scipy.special import multigammaln
from tapegrad.scipy.stats.frozen import Frozen
from tapegrad.tensor import Operand, Tensor, TensorOrArray


class _Vectors(Guarded):
    """A distribution of vectors; called with parameters it is a frozen one."""

    methods = ("logpdf", "pdf")

    def __init__(self, it: Any, name: str) -> None:
        super().__init__(it, f"scipy.stats.{name}")

    def __call__(self, *args: Operand, **kwargs: Any) -> Frozen:
        """Freeze the parameters."""
        return Frozen(self, args, kwargs)

    def pdf(self, x: np.ndarray, *args: Tensor, **kwargs: Operand) -> TensorOrArray:
        """Density."""
        if not derivative_wanted((x, args), kwargs):
            return theirs(self._it.pdf, (x, *args), kwargs)
        return np.exp(self.logpdf(x, *args, **kwargs))


def _form(
    x: TensorOrArray, mean: TensorOrArray, matrix: TensorOrArray
) -> tuple[TensorOrArray, TensorOrArray, int]:
    """(x - mean) matrix**-1 (x - mean), the logarithm of the determinant, and the dimension."""
    size = np.shape(matrix)[-1]
    low = np.linalg.cholesky(matrix)
    off = x - mean
    rows = np.reshape(off, (-1, size))
    solved = np.linalg.solve(low, rows.T)
    form = np.reshape(np.sum(solved * solved, axis=0), np.shape(off)[:-1])
    return form, 2 * np.sum(np.log(np.diagonal(low))), size


def _matrix(cov: TensorOrArray, size: int) -> TensorOrArray:
    """What stands for a matrix, a number or a diagonal perhaps, as one."""
    return cov * np.eye(size) if np.ndim(cov) < 2 else cov


class MultivariateNormal(_Vectors):
    """Multivariate normal; as SciPy's, with derivatives by all arguments of ``logpdf`` and ``pdf``.

    The derivative by `cov` is the symmetric one; one that is singular has none.

    Examples
    --------
    >>> import tapegrad as tg, tapegrad.scipy as ts
    >>> mean = tg.tensor([0.5, 1.0], requires_grad=True)
    >>> tg.grad(ts.stats.multivariate_normal.logpdf([0.0, 0.0], mean, [[2.0, 0.0], [0.0, 1.0]]), mean)
    (tensor([-0.25, -1.00]),)
    """

    def logpdf(
        self, x: Operand, mean: Operand | None = None, cov: Operand = 1, allow_singular: bool = False
    ) -> TensorOrArray:
        """As SciPy's, differentiable."""
        if not derivative_wanted((x, mean, cov)):
            return theirs(self._it.logpdf, (x, mean, cov, allow_singular), {})
        if isinstance(cov, _scipy.Covariance):
            cov = cov.covariance
        plain = (None if mean is None else value_of(mean), value_of(cov))
        if allow_singular and self._it._process_parameters(*plain, True)[2].rank < np.shape(plain[1])[-1]:
            raise refuse(f"{self.title}.logpdf", "has no derivative where cov is singular")
        size, place, _ = self._it._process_parameters(*plain, False)
        x, matrix = _points(x, size), _matrix(doubles(cov), size)
        form, log, _ = _form(x, place if mean is None else np.reshape(doubles(mean), (size,)), matrix)
        return -0.5 * (size * np.log(2 * np.pi) + log + form)


class MultivariateT(_Vectors):
    """Multivariate t; as SciPy's, with derivatives by all arguments of ``logpdf`` and ``pdf``.

    Examples
    --------
    >>> import tapegrad as tg, tapegrad.scipy as ts
    >>> df = tg.tensor(3.0, requires_grad=True)
    >>> tg.grad(ts.stats.multivariate_t.logpdf([0.5, 1.0], shape=[[2.0, 0.0], [0.0, 1.0]], df=df), df)
    (tensor(0.068),)
    """

    def logpdf(
        self, x: Operand, loc: Operand | None = None, shape: Shape = 1, df: Operand = 1
    ) -> TensorOrArray:
        """As SciPy's, differentiable."""
        if not derivative_wanted((x, loc, shape, df)):
            return theirs(self._it.logpdf, (x, loc, shape, df), {})
        plain = (None if loc is None else value_of(loc), value_of(shape), value_of(df))
        size, place, _, _ = self._it._process_parameters(*plain)
        if value_of(df) == np.inf:
            return multivariate_normal.logpdf(x, loc, shape)
        x, matrix, v = _points(x, size), _matrix(doubles(shape), size), doubles(df)
        form, log, _ = _form(x, place if loc is None else np.reshape(doubles(loc), (size,)), matrix)
        half = 0.5 * (v + size)
        scale = sc.gammaln(half) - sc.gammaln(0.5 * v) - 0.5 * size * np.log(np.pi * v)
        return scale - 0.5 * log - half * np.log1p(form / v)


def _points(x: Operand, size: int) -> TensorOrArray:
    """Points of so many numbers in the last axis, read as SciPy does."""
    x = doubles(x)
    if np.ndim(x) == 0:
        return np.reshape(x, (1,))
    if np.ndim(x) == 1:
        return np.reshape(x, (-1, 1)) if size == 1 else x
    return x


class Dirichlet(_Vectors):
    """Dirichlet's; as SciPy's, with derivatives by both arguments of ``logpdf`` and ``pdf``.

    Examples
    --------
    >>> import tapegrad as tg, tapegrad.scipy as ts
    >>> alpha = tg.tensor([1.0, 2.0], requires_grad=True)
    >>> tg.grad(ts.stats.dirichlet.logpdf([0.25, 0.75], alpha), alpha)
    (tensor([0.1137, 0.2123]),)
    """

    def logpdf(self, x: Operand, alpha: Operand) -> TensorOrArray:
        """As SciPy's, differentiable."""
        if not derivative_wanted((x, alpha)):
            return theirs(self._it.logpdf, (x, alpha), {})
        self._it.logpdf(value_of(x), value_of(alpha))  # refuses what is no point of the simplex
        x, alpha = doubles(x), doubles(alpha)
        if np.shape(x)[0] + 1 == np.shape(alpha)[0]:
            x = np.concatenate([x, np.reshape(1 - np.sum(x, axis=0), (1, *np.shape(x)[1:]))])
        scale = sc.gammaln(np.sum(alpha)) - np.sum(sc.gammaln(alpha))
        return scale + np.sum(sc.xlogy(alpha - 1, x.T).T, axis=0)


class Multinomial(_Vectors):
    """Multinomial; as SciPy's, with derivatives by the probabilities of ``logpmf`` and ``pmf``.

    The last probability is what the others leave, as in SciPy: by it the derivative is 0.

    Examples
    --------
    >>> import tapegrad as tg, tapegrad.scipy as ts
    >>> p = tg.tensor([0.25, 0.75], requires_grad=True)
    >>> tg.grad(ts.stats.multinomial.logpmf([2, 1], 3, p), p)
    (tensor([6.6667, 0.0000]),)
    """

    methods = ("logpmf", "pmf")

    def logpmf(self, x: Operand, n: Operand, p: Operand) -> TensorOrArray:
        """As SciPy's, differentiable."""
        if not derivative_wanted((x, n, p)):
            return theirs(self._it.logpmf, (x, n, p), {})
        if derivative_wanted((x, n)):
            raise refuse(f"{self.title}.logpmf", "has no derivative by x and n, which are whole numbers")
        counts, n, p = np.asarray(value_of(x)), np.asarray(value_of(n)), doubles(p)
        value = self._it.logpmf(counts, n, value_of(p))
        rest = 1 - np.sum(p[..., :-1], axis=-1, keepdims=True)
        log = np.sum(sc.xlogy(counts, np.concatenate([p[..., :-1], rest], axis=-1)), axis=-1)
        log = log + sc.gammaln(n + 1) - np.sum(sc.gammaln(counts + 1), axis=-1)
        return np.where(np.isfinite(value), log, value)

    def pmf(self, x: Operand, n: Operand, p: Operand) -> TensorOrArray:
        """As SciPy's, differentiable."""
        if not derivative_wanted((x, n, p)):
            return theirs(self._it.pmf, (x, n, p), {})
        return np.exp(self.logpmf(x, n, p))


class Wishart(_Vectors):
    """Wishart's; as SciPy's, with derivatives by all arguments of ``logpdf`` and ``pdf``.

    Those by `x` and `scale` are the symmetric ones.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg, tapegrad.scipy as ts
    >>> df = tg.tensor(3.0, requires_grad=True)
    >>> tg.grad(ts.stats.wishart.logpdf(np.diag([2.0, 1.0]), df, np.eye(2)), df)
    (tensor(-0.0762),)
    """

    def logpdf(self, x: Operand, df: Operand | None, scale: Operand) -> TensorOrArray:
        """As SciPy's, differentiable."""
        if not derivative_wanted((x, df, scale)):
            return theirs(self._it.logpdf, (x, df, scale), {})
        plain = (
            None if df is None else np.asarray(value_of(df))[()],
            None if scale is None else value_of(scale),
        )
        size, known, matrix = self._it._process_parameters(*plain)
        self._it._process_quantiles(value_of(x), size)  # refuses what is no stack of matrices
        x, v = self._matrices(doubles(x), size), known if df is None else doubles(df)
        matrix = matrix if scale is None else self._matrices(doubles(scale), size)
        low = np.linalg.cholesky(matrix)
        logs = [2 * np.sum(np.log(np.diagonal(f, axis1=-2, axis2=-1)), axis=-1) for f in (
            np.linalg.cholesky(x), low)]  # fmt: skip
        trace = np.trace(np.linalg.solve(matrix, x), axis1=-2, axis2=-1)
        rest = 0.5 * v * (size * np.log(2.0) + logs[1]) + multigammaln(0.5 * v, size)
        return 0.5 * (v - size - 1) * logs[0] - 0.5 * trace - rest

    def _matrices(self, x: Any, size: int) -> TensorOrArray:
        """Matrices of an argument, read as SciPy does: several along its last axis, a diagonal, a number."""
        if np.ndim(x) == 3:
            return np.moveaxis(x, -1, 0) if np.shape(x)[-1] > 1 else x[..., 0]
        if np.ndim(x) == 1 and size == 1:
            return np.reshape(x, (-1, 1, 1)) if np.size(x) > 1 else np.reshape(x, (1, 1))
        return _matrix(x, size)


dirichlet = Dirichlet(_scipy.dirichlet, "dirichlet")
multinomial = Multinomial(_scipy.multinomial, "multinomial")
multivariate_normal = MultivariateNormal(_scipy.multivariate_normal, "multivariate_normal")
multivariate_t = MultivariateT(_scipy.multivariate_t, "multivariate_t")
wishart = Wishart(_scipy.wishart, "wishart")
