"""Distributions of real and of whole numbers."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import scipy.stats as _scipy

from tapegrad.core.base import decide, value_of
from tapegrad.scipy.calls import ArrayFunction, Guarded, derivative_wanted, doubles, refuse, theirs
from tapegrad.scipy.stats.distributions import extremes, half_line, interval, line, whole_numbers
from tapegrad.scipy.stats.distributions.formulas import Formulas
from tapegrad.scipy.stats.distributions.whole_numbers import Discrete
from tapegrad.scipy.stats.frozen import Frozen
from tapegrad.tensor import Operand, TensorOrArray

CONTINUOUS = ("logpdf", "pdf", "logcdf", "cdf", "logsf", "sf", "ppf", "isf")
DISCRETE = ("logpmf", "pmf", "logcdf", "cdf", "logsf", "sf")
ABOVE = {"cdf": 1.0, "sf": 0.0, "logcdf": 0.0, "logsf": -np.inf, "pdf": 0.0, "logpdf": -np.inf}
BELOW = {**ABOVE, "cdf": 0.0, "sf": 1.0, "logcdf": -np.inf, "logsf": 0.0}


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
