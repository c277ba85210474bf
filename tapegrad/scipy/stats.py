"""Distributions and moments of `scipy.stats` on Tensors and arrays; all its other names are its own.

Densities, distribution functions, their logarithms and inverses have derivatives by all arguments, in both
modes and to any order that the functions of `scipy.special` in them have. Outside of the support the
derivative is 0, where parameters are none nan, and at an end of the support it is that of the inner side.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.special as sc
import scipy.stats as _scipy
from scipy.stats import rv_continuous, rv_discrete
from scipy.stats._multivariate import multi_rv_generic

from tapegrad.core.base import Shape, decide, value_of
from tapegrad.scipy.calls import (
    ArrayFunction,
    Guarded,
    derivative_wanted,
    doubles,
    fall_through,
    plain_only,
    refuse,
    theirs,
)
from tapegrad.scipy.densities import gaussian_kde
from tapegrad.scipy.distributions import extremes, half_line, interval, line, whole_numbers
from tapegrad.scipy.distributions.formulas import Formulas
from tapegrad.scipy.distributions.whole_numbers import Discrete
from tapegrad.scipy.relations import entropy, linregress, pearsonr
from tapegrad.scipy.special import multigammaln
from tapegrad.scipy.summaries import (
    gmean,
    hmean,
    kurtosis,
    moment,
    pmean,
    sem,
    skew,
    variation,
    zmap,
    zscore,
)
from tapegrad.tensor import Operand, TensorOrArray

if TYPE_CHECKING:
    from tapegrad.tensor import Tensor

__all__ = [
    "bernoulli", "beta", "betabinom", "binom", "cauchy", "chi2", "dirichlet", "entropy", "expon", "f",
    "fisk", "gamma", "gaussian_kde", "genextreme", "gennorm", "genpareto", "geom", "gmean", "gompertz",
    "gumbel_l", "gumbel_r", "halfcauchy", "halfnorm", "hmean", "invgamma", "invgauss", "johnsonsu",
    "kurtosis", "laplace", "linregress", "logistic", "lognorm", "loguniform", "maxwell", "moment",
    "multinomial", "multivariate_normal", "multivariate_t", "nbinom", "norm", "pareto", "pearsonr", "pmean",
    "poisson", "rayleigh", "sem", "skew", "skewnorm", "t", "triang", "truncnorm", "uniform", "variation",
    "vonmises", "weibull_max", "weibull_min", "wishart", "zmap", "zscore",
]  # fmt: skip

CONTINUOUS = ("logpdf", "pdf", "logcdf", "cdf", "logsf", "sf", "ppf", "isf")
DISCRETE = ("logpmf", "pmf", "logcdf", "cdf", "logsf", "sf")
DISTRIBUTIONS = (rv_continuous, rv_discrete, multi_rv_generic)
WHOLE = ("hypergeom", "multivariate_hypergeom", "nhypergeom", "randint")  # of nothing else
ABOVE = {"cdf": 1.0, "sf": 0.0, "logcdf": 0.0, "logsf": -np.inf, "pdf": 0.0, "logpdf": -np.inf}
BELOW = {**ABOVE, "cdf": 0.0, "sf": 1.0, "logcdf": -np.inf, "logsf": 0.0}


def __dir__() -> list[str]:
    return sorted({*__all__, *_scipy.__all__})


class Distribution(Guarded):
    """A distribution of SciPy's, of Tensors too.

    ``logpdf``, ``pdf``, ``logcdf``, ``cdf``, ``logsf``, ``sf``, ``ppf`` and ``isf`` of a continuous one and
    ``logpmf``, ``pmf`` and those of a discrete one, as far as it has them, take and return Tensors and are
    differentiated by all arguments; of discrete ones by the parameters that are no whole numbers. Called with
    parameters it is a frozen distribution, as SciPy's. All else is SciPy's and refuses Tensors that require
    grad.

    Parameters
    ----------
    it : SciPy's distribution
    formulas : Formulas
        What is known of it.

    Examples
    --------
    >>> import tapegrad as tg, tapegrad.scipy as ts
    >>> loc = tg.tensor(0.5, requires_grad=True)
    >>> tg.grad(ts.stats.norm.logpdf(2.0, loc, scale=0.5), loc)
    (tensor(6.),)
    >>> tg.grad(ts.stats.norm(loc, 0.5).cdf(0.5), loc)
    (tensor(-0.7979),)
    """

    def __init__(self, it: Any, formulas: Formulas) -> None:
        super().__init__(it, f"scipy.stats.{it.name}")
        self._formulas = formulas
        self.__doc__ = f"`{self.title}` on Tensors (see `Distribution`): {formulas.__doc__}"

    def __call__(self, *args: Operand, **kwargs: Any) -> Frozen:
        """Freeze the parameters."""
        return Frozen(self, args, kwargs)

    freeze = __call__

    def __dir__(self) -> list[str]:
        return dir(self._it)

    def _found(
        self, method: str, x: Operand, args: Sequence[Operand], kwargs: dict[str, Operand]
    ) -> TensorOrArray:
        """A method at numbers: SciPy's own result where no derivative is asked for."""
        if not derivative_wanted((x, args), kwargs):
            return theirs(getattr(self._it, method), (x, *args), kwargs)
        formula = getattr(self._formulas, method.replace("pmf", "pdf"), None)
        if formula is None:
            raise refuse(f"{self.title}.{method}")
        shapes, loc, scale = self._it._parse_args(*args, **kwargs)
        shapes, loc, scale = tuple(map(doubles, shapes)), doubles(loc), doubles(scale)
        with np.errstate(all="ignore"):
            if isinstance(self._formulas, Discrete):
                return self._of_whole_numbers(self._formulas.whole, method, formula, x, shapes, loc)
            if method in ("ppf", "isf"):
                return self._inverse(formula, doubles(x), shapes, loc, scale)
            return self._at(method, formula, (doubles(x) - loc) / scale, shapes, scale)

    def _at(
        self,
        method: str,
        formula: Callable[..., TensorOrArray],
        y: TensorOrArray,
        shapes: Sequence[TensorOrArray],
        scale: TensorOrArray,
    ) -> TensorOrArray:
        """A density or distribution function at standardised numbers."""
        good, inside, above = decide(self._places, y, scale, *shapes)
        found = formula(*_kept(inside, (y, *shapes), self._formulas.at))
        if method == "logpdf":
            found = found - np.log(np.where(inside, scale, 1.0))
        elif method == "pdf":
            found = found / np.where(inside, scale, 1.0)
        outside = np.where(above, ABOVE[method], BELOW[method])
        return _joined(inside, found, outside, good, (y, *shapes, scale))

    def _are_probabilities(self, q: np.ndarray, scale: np.ndarray, *shapes: np.ndarray) -> Any:
        """Where the parameters are valid, and a number is a probability."""
        return self._it._argcheck(*shapes) & (scale > 0) & (q >= 0) & (q <= 1)

    def _places(self, at: np.ndarray, scale: np.ndarray, *shapes: np.ndarray) -> np.ndarray:
        """Where parameters are valid, where numbers lie inside of the support, and where above its end."""
        good = self._it._argcheck(*shapes) & (scale > 0) & ~np.isnan(at)
        low, high = self._it._get_support(*shapes)
        above = at > low
        inside = good & np.isfinite(at) & (at <= high) & (above if self._formulas.opened else (at >= low))
        return np.stack(np.broadcast_arrays(good, inside, above))

    def _inverse(
        self,
        formula: Callable[..., TensorOrArray],
        q: TensorOrArray,
        shapes: Sequence[TensorOrArray],
        loc: TensorOrArray,
        scale: TensorOrArray,
    ) -> TensorOrArray:
        good = decide(self._are_probabilities, q, scale, *shapes)
        found = formula(*_kept(good, (q, *shapes), (0.5, *self._formulas.at[1:]))) * scale + loc
        return _joined(good, found, np.nan, good, (q, *shapes, loc, scale))

    def _of_whole_numbers(
        self,
        whole_shapes: Sequence[str],
        method: str,
        formula: Callable[..., TensorOrArray],
        k: Operand,
        shapes: Sequence[TensorOrArray],
        loc: Operand,
    ) -> TensorOrArray:
        names = self._it.shapes.split(",")
        constants = {name.strip(): x for name, x in zip(names, shapes, strict=True)}
        whole = {"k": k, "loc": loc, **{name: constants[name] for name in whole_shapes}}
        for name, x in whole.items():
            if derivative_wanted((x,)):
                raise refuse(
                    f"{self.title}.{method}", f"has no derivative by {name}, which is a whole number"
                )
        at, is_mass = value_of(doubles(k)) - value_of(loc), method in ("pmf", "logpmf")
        good, inside, above = decide(functools.partial(self._whole_places, is_mass), at, *shapes)
        method, at = (method.replace("pmf", "pdf"), at) if is_mass else (method, np.floor(at))
        found = formula(*_kept(inside, (at, *shapes), self._formulas.at))
        return _joined(inside, found, np.where(above, ABOVE[method], BELOW[method]), good, shapes)

    def _whole_places(self, is_mass: bool, at: np.ndarray, *shapes: np.ndarray) -> np.ndarray:
        """As `_places`, of whole numbers."""
        good = self._it._argcheck(*shapes) & ~np.isnan(at)
        low, high = self._it._get_support(*shapes)
        whole = np.floor(at)
        if is_mass:
            inside = good & (at >= low) & (at <= high) & (at == whole)
        else:
            at, inside = whole, good & (whole >= low) & (whole < high) & np.isfinite(whole)
        return np.stack(np.broadcast_arrays(good, inside, at >= low))


def _kept(
    inside: Operand, operands: Sequence[TensorOrArray], others: Sequence[float]
) -> Sequence[TensorOrArray]:
    """Operands, with others where they do not count."""
    if np.all(inside):
        return operands
    return [np.where(inside, x, other) for x, other in zip(operands, others, strict=True)]


def _joined(
    inside: Operand, found: Operand, outside: Operand, good: Operand, operands: Sequence[TensorOrArray]
) -> Any:
    """What is found inside; outside a constant; nan by all operands where these are not good."""
    if not np.all(inside):
        found = np.where(inside, found, outside)
    elif np.shape(found) != np.shape(inside):
        found = np.broadcast_to(found, np.broadcast_shapes(np.shape(inside), np.shape(found)))
    if not np.all(good):
        for x in operands:
            found = found + np.where(good, 0.0, np.where(good, 1.0, np.nan) * np.where(good, 0.0, x))
    return found


class Frozen:
    """A distribution with its parameters.

    Parameters
    ----------
    it : Distribution
    args, kwargs
        The parameters.

    Examples
    --------
    >>> import tapegrad as tg, tapegrad.scipy as ts
    >>> a = tg.tensor(2.0, requires_grad=True)
    >>> tg.grad(ts.stats.gamma(a).logpdf(1.0), a)
    (tensor(-0.4228),)
    """

    def __init__(
        self, it: Distribution | _Vectors, args: tuple[Operand, ...], kwargs: dict[str, Operand]
    ) -> None:
        self.dist, self.args, self.kwds = it, args, kwargs

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "dist":
            raise AttributeError(name)
        if name in self.dist.methods:
            return functools.partial(self._called, getattr(self.dist, name))
        found = getattr(self._scipy(name), name)
        return plain_only(found, f"{self.dist.title}.{name}") if callable(found) else found

    def _called(
        self, method: Callable[..., TensorOrArray], *args: Operand, **kwargs: Operand
    ) -> TensorOrArray:
        (x,) = (*args, *kwargs.values())
        return method(x, *self.args, **{k: v for k, v in self.kwds.items() if k != "seed"})

    def _scipy(self, name: str) -> Any:
        """SciPy's frozen distribution of these parameters."""
        return plain_only(self.dist._it, f"{self.dist.title}.{name}")(*self.args, **self.kwds)


def _method(name: str, argument: str) -> ArrayFunction[...]:
    def method(self: Continuous | Whole, *args: Operand, **kwargs: Operand) -> TensorOrArray:
        x, *rest = args if args else (kwargs.pop(argument),)
        return self._found(name, x, tuple(rest), kwargs)

    method.__name__, method.__doc__ = name, f"As SciPy's ``{name}``, differentiable."
    found: Any = method
    return found


class Continuous(Distribution):
    """Of real numbers."""

    methods = CONTINUOUS
    logpdf, pdf, logcdf, cdf, logsf, sf = (_method(name, "x") for name in CONTINUOUS[:6])
    ppf, isf = (_method(name, "q") for name in CONTINUOUS[6:])


class Whole(Distribution):
    """Of whole numbers."""

    methods = DISCRETE
    logpmf, pmf, logcdf, cdf, logsf, sf = (_method(name, "k") for name in DISCRETE)


bernoulli = Whole(_scipy.bernoulli, whole_numbers.Bernoulli())
beta = Continuous(_scipy.beta, interval.Beta())
betabinom = Whole(_scipy.betabinom, whole_numbers.BetaBinom())
binom = Whole(_scipy.binom, whole_numbers.Binom())
cauchy = Continuous(_scipy.cauchy, line.Cauchy())
chi2 = Continuous(_scipy.chi2, half_line.Chi2())
expon = Continuous(_scipy.expon, half_line.Expon())
f = Continuous(_scipy.f, half_line.F())
fisk = Continuous(_scipy.fisk, extremes.Fisk())
gamma = Continuous(_scipy.gamma, half_line.Gamma())
genextreme = Continuous(_scipy.genextreme, extremes.GenExtreme())
gennorm = Continuous(_scipy.gennorm, line.GenNorm())
genpareto = Continuous(_scipy.genpareto, extremes.GenPareto())
geom = Whole(_scipy.geom, whole_numbers.Geom())
gompertz = Continuous(_scipy.gompertz, extremes.Gompertz())
gumbel_l = Continuous(_scipy.gumbel_l, line.GumbelL())
gumbel_r = Continuous(_scipy.gumbel_r, line.GumbelR())
halfcauchy = Continuous(_scipy.halfcauchy, half_line.HalfCauchy())
halfnorm = Continuous(_scipy.halfnorm, half_line.HalfNorm())
invgamma = Continuous(_scipy.invgamma, half_line.InvGamma())
invgauss = Continuous(_scipy.invgauss, half_line.InvGauss())
johnsonsu = Continuous(_scipy.johnsonsu, line.JohnsonSU())
laplace = Continuous(_scipy.laplace, line.Laplace())
logistic = Continuous(_scipy.logistic, line.Logistic())
lognorm = Continuous(_scipy.lognorm, half_line.LogNorm())
loguniform = Continuous(_scipy.loguniform, interval.LogUniform())
maxwell = Continuous(_scipy.maxwell, half_line.Maxwell())
nbinom = Whole(_scipy.nbinom, whole_numbers.NBinom())
norm = Continuous(_scipy.norm, line.Norm())
pareto = Continuous(_scipy.pareto, half_line.Pareto())
poisson = Whole(_scipy.poisson, whole_numbers.Poisson())
rayleigh = Continuous(_scipy.rayleigh, half_line.Rayleigh())
skewnorm = Continuous(_scipy.skewnorm, line.SkewNorm())
t = Continuous(_scipy.t, line.T())
triang = Continuous(_scipy.triang, interval.Triang())
truncnorm = Continuous(_scipy.truncnorm, interval.TruncNorm())
uniform = Continuous(_scipy.uniform, interval.Uniform())
vonmises = Continuous(_scipy.vonmises, line.VonMises())
weibull_max = Continuous(_scipy.weibull_max, half_line.WeibullMax())
weibull_min = Continuous(_scipy.weibull_min, half_line.WeibullMin())


# ---------------------------------------------------------------- of vectors


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


def __getattr__(name: str) -> Any:
    found = getattr(_scipy, name)
    return _guarded(name) if isinstance(found, DISTRIBUTIONS) else fall_through(_scipy, name)


@functools.cache
def _guarded(name: str) -> Guarded:
    """A distribution that has no derivatives."""
    why = ": all its arguments are whole numbers" if name in WHOLE else " here"
    return Guarded(getattr(_scipy, name), f"scipy.stats.{name}", why="has no derivative" + why)
