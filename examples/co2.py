"""Trend and seasons of atmospheric CO2 at Mauna Loa, with standard errors from the Hessian.

Monthly means y(t) are a quadratic trend, a seasonal cycle of a few harmonics whose amplitude grows at a
constant rate, and a residual that remembers the month before (a first-order autoregression):

    y(t) = a + b t + c t^2 + exp(g t) * sum_k [p_k cos(2 pi k t) + q_k sin(2 pi k t)] + r(t)
    r(t) = phi r(t - 1 month) + e(t),    e ~ Normal(0, sigma^2)

The negative log-likelihood is written in NumPy. Its gradient drives SciPy's minimiser, its Hessian gives
the covariance of the estimates, and gradients of derived quantities carry that covariance over to them.
"""

import argparse

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import statsmodels.api as sm
from scipy.optimize import minimize
from tqdm import tqdm

import tapegrad as tg

ORIGIN = 1980.0  # year where t = 0


def monthly_means(first, last):
    """Return times in years and monthly means in ppm; there are no gaps from 1965 on."""
    weekly = sm.datasets.co2.load_pandas().data["co2"]
    monthly = weekly[str(first) : str(last)].resample("MS").mean()
    if monthly.isna().any():
        raise ValueError(f"months without data between {first} and {last}")
    return monthly.index.year + (monthly.index.month - 0.5) / 12, monthly.to_numpy()


class Model:
    """The likelihood as a function of the parameters a, b, c, g, log sigma, artanh phi, p, q."""

    def __init__(self, years, values, harmonics):
        self.t = np.asarray(years) - ORIGIN
        self.values = values
        angles = 2 * np.pi * np.outer(self.t, np.arange(1, harmonics + 1))
        self.waves = np.hstack([np.cos(angles), np.sin(angles)])

    def start(self):
        return np.concatenate([np.polyfit(self.t, self.values, 2)[::-1], np.zeros(3), [3.0], self.waves[0, 1:] * 0])

    def trend(self, w):
        return w[0] + w[1] * self.t + w[2] * self.t**2

    def seasons(self, w):
        return np.exp(w[3] * self.t) * (self.waves @ w[6:])

    def loss(self, w):
        """Negative log-likelihood per month, without its constant."""
        log_sigma, phi = w[4], np.tanh(w[5])
        r = self.values - self.trend(w) - self.seasons(w)
        e = r[1:] - phi * r[:-1]
        first = (1 - phi**2) * r[0] ** 2  # the first residual has the stationary variance
        squares = (first + np.sum(e**2)) * np.exp(-2 * log_sigma)
        return (squares / 2 - np.log1p(-(phi**2)) / 2) / len(self.t) + log_sigma

    def value_and_gradient(self, values):
        w = tg.tensor(values, requires_grad=True)
        loss = self.loss(w)
        loss.backward()
        return loss.item(), w.grad.numpy()

    def hessian(self, values):
        w = tg.tensor(values, requires_grad=True)
        (gradient,) = tg.grad(self.loss(w), w, create_graph=True)
        rows = tqdm(gradient, desc="Hessian rows", total=len(values), leave=False)
        return np.stack([tg.grad(g, w, retain_graph=True)[0].numpy() for g in rows])


def differences(function, w, step=1e-5):
    """Central differences of a function with respect to each parameter."""
    steps = step * np.eye(len(w))
    return np.array([(function(w + s) - function(w - s)) / (2 * step) for s in steps])


def derived(w, year):
    """Quantities of interest, as functions of the parameters."""
    season = np.linspace(0, 1, 73)[:-1]
    k = np.arange(1, (len(w) - 6) // 2 + 1)
    angles = 2 * np.pi * np.outer(season, k)
    cycle = np.hstack([np.cos(angles), np.sin(angles)]) @ w[6:]
    swing, t = np.max(cycle) - np.min(cycle), year - ORIGIN
    return {
        f"growth in {ORIGIN:.0f} (ppm/year)": w[1],
        f"growth in {year} (ppm/year)": w[1] + 2 * w[2] * t,
        "acceleration (ppm/year^2)": 2 * w[2],
        f"seasonal swing in {ORIGIN:.0f} (ppm)": swing,
        f"seasonal swing in {year} (ppm)": swing * np.exp(w[3] * t),
        "growth of the swing (%/year)": 100 * w[3],
        "autocorrelation, one month": np.tanh(w[5]),
        "sigma of innovations (ppm)": np.exp(w[4]),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", default="co2.png", help="where the plot goes")
    parser.add_argument("--small", action="store_true", help="fifteen years and two harmonics only")
    args = parser.parse_args()

    years, values = monthly_means(1987 if args.small else 1965, 2001)
    model = Model(years, values, harmonics=2 if args.small else 4)
    with tqdm(desc="BFGS steps", leave=False) as bar:
        fit = minimize(
            model.value_and_gradient, model.start(), jac=True, method="BFGS",
            options={"gtol": 1e-7, "maxiter": 2000}, callback=lambda _: bar.update() and None,
        )  # fmt: skip
    print(fit)
