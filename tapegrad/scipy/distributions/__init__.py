"""Distributions by their densities, distribution functions and inverses, of standardised numbers.

Numbers lie in the support. Each is stated in functions that Tensors differentiate. What is left out follows
from the rest: a density is the exponential of its logarithm, and a logarithm that of the smaller tail.
"""

from __future__ import annotations

from tapegrad.scipy.distributions.formulas import Formulas
from tapegrad.scipy.distributions.half_line import (
    Chi2,
    Expon,
    F,
    Gamma,
    HalfCauchy,
    HalfNorm,
    InvGamma,
    InvGauss,
    LogNorm,
    Maxwell,
    Pareto,
    Rayleigh,
    WeibullMax,
    WeibullMin,
)
from tapegrad.scipy.distributions.interval import Beta, Triang, TruncNorm, Uniform
from tapegrad.scipy.distributions.line import (
    Cauchy,
    GumbelL,
    GumbelR,
    Laplace,
    Logistic,
    Norm,
    SkewNorm,
    T,
    VonMises,
)
from tapegrad.scipy.distributions.whole_numbers import (
    Bernoulli,
    BetaBinom,
    Binom,
    Geom,
    NBinom,
    Poisson,
)

__all__ = ["OF"]

OF: dict[str, Formulas] = {
    "bernoulli": Bernoulli(), "beta": Beta(), "betabinom": BetaBinom(), "binom": Binom(), "cauchy": Cauchy(),
    "chi2": Chi2(), "expon": Expon(), "f": F(), "gamma": Gamma(), "geom": Geom(), "gumbel_l": GumbelL(),
    "gumbel_r": GumbelR(), "halfcauchy": HalfCauchy(), "halfnorm": HalfNorm(), "invgamma": InvGamma(),
    "invgauss": InvGauss(), "laplace": Laplace(), "logistic": Logistic(), "lognorm": LogNorm(),
    "maxwell": Maxwell(), "nbinom": NBinom(), "norm": Norm(), "pareto": Pareto(), "poisson": Poisson(),
    "rayleigh": Rayleigh(), "skewnorm": SkewNorm(), "t": T(), "triang": Triang(), "truncnorm": TruncNorm(),
    "uniform": Uniform(), "vonmises": VonMises(), "weibull_max": WeibullMax(), "weibull_min": WeibullMin(),
}  # fmt: skip
