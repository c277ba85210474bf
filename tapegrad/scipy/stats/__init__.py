"""Distributions and moments of `scipy.stats` on Tensors and arrays; all its other names are its own.

Densities, distribution functions, their logarithms and inverses have derivatives by all arguments, in both
modes and to any order that the functions of `scipy.special` in them have. Outside of the support the
derivative is 0, where parameters are none nan, and at an end of the support it is that of the inner side.
"""

from __future__ import annotations

import functools
from typing import Any

import scipy.stats as _scipy
from scipy.stats import rv_continuous, rv_discrete
from scipy.stats._multivariate import multi_rv_generic

from tapegrad.scipy.calls import Guarded, fall_through
from tapegrad.scipy.stats.densities import gaussian_kde
from tapegrad.scipy.stats.multivariate import (
    dirichlet,
    multinomial,
    multivariate_normal,
    multivariate_t,
    wishart,
)
from tapegrad.scipy.stats.relations import entropy, linregress, pearsonr
from tapegrad.scipy.stats.summaries import (
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
from tapegrad.scipy.stats.univariate import (
    bernoulli,
    beta,
    betabinom,
    binom,
    cauchy,
    chi2,
    expon,
    f,
    fisk,
    gamma,
    genextreme,
    gennorm,
    genpareto,
    geom,
    gompertz,
    gumbel_l,
    gumbel_r,
    halfcauchy,
    halfnorm,
    invgamma,
    invgauss,
    johnsonsu,
    laplace,
    logistic,
    lognorm,
    loguniform,
    maxwell,
    nbinom,
    norm,
    pareto,
    poisson,
    rayleigh,
    skewnorm,
    t,
    triang,
    truncnorm,
    uniform,
    vonmises,
    weibull_max,
    weibull_min,
)

__all__ = [
    "bernoulli", "beta", "betabinom", "binom", "cauchy", "chi2", "dirichlet", "entropy", "expon", "f",
    "fisk", "gamma", "gaussian_kde", "genextreme", "gennorm", "genpareto", "geom", "gmean", "gompertz",
    "gumbel_l", "gumbel_r", "halfcauchy", "halfnorm", "hmean", "invgamma", "invgauss", "johnsonsu",
    "kurtosis", "laplace", "linregress", "logistic", "lognorm", "loguniform", "maxwell", "moment",
    "multinomial", "multivariate_normal", "multivariate_t", "nbinom", "norm", "pareto", "pearsonr", "pmean",
    "poisson", "rayleigh", "sem", "skew", "skewnorm", "t", "triang", "truncnorm", "uniform", "variation",
    "vonmises", "weibull_max", "weibull_min", "wishart", "zmap", "zscore",
]  # fmt: skip

DISTRIBUTIONS = (rv_continuous, rv_discrete, multi_rv_generic)
WHOLE = ("hypergeom", "multivariate_hypergeom", "nhypergeom", "randint")  # of nothing else


def __dir__() -> list[str]:
    return sorted({*__all__, *_scipy.__all__})


def __getattr__(name: str) -> Any:
    found = getattr(_scipy, name)
    return _guarded(name) if isinstance(found, DISTRIBUTIONS) else fall_through(_scipy, name)


@functools.cache
def _guarded(name: str) -> Guarded:
    """A distribution that has no derivatives."""
    why = ": all its arguments are whole numbers" if name in WHOLE else " here"
    return Guarded(getattr(_scipy, name), f"scipy.stats.{name}", why="has no derivative" + why)
