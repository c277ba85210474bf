"""Sunspots: a Gaussian process that swings with a period of its own, fitted by the gradient of its evidence.

The square root of the yearly sunspot number is taken for a pendulum that is damped and kicked at random, as
Yule did in 1927, on a background that changes slowly, and noise. Six positive parameters enter the covariance
of any two years. The evidence is plain NumPy and a Cholesky factorisation: one reverse sweep through them
gives the gradient, and the Hessian tells how well each parameter is known. The years from 1987 on are held
back and compared with the forecast.
"""

import argparse
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from scipy.optimize import minimize
from tqdm import tqdm

import tapegrad as tg
import tapegrad.scipy as ts

DATA = Path(__file__).parent / "data" / "sunspots.csv"
NAMES = {"size of the swing": 3.0, "period, years": 11.0, "memory, years": 30.0,
         "size of slow changes": 1.5, "their time, years": 60.0, "noise": 0.5}  # fmt: skip


def covariance(log_p, s, t):
    """Between the years s and t, without the noise."""
    swing, period, memory, slow, time, _ = np.exp(log_p)
    apart = np.abs(s[:, None] - t)
    angle = 2 * np.pi / period
    pendulum = np.exp(-apart / memory) * (np.cos(angle * apart) + np.sin(angle * apart) / (angle * memory))
    return swing**2 * pendulum + slow**2 * np.exp(-((apart / time) ** 2) / 2)


def factor(log_p, t):
    """The Cholesky factor of the covariance of observations."""
    return np.linalg.cholesky(covariance(log_p, t, t) + (np.exp(2 * log_p[-1]) + 1e-8) * np.eye(len(t)))


def loss(log_p, t, y):
    """Minus the logarithm of the evidence."""
    L = factor(log_p, t)
    z = ts.linalg.solve_triangular(L, y, lower=True)
    return np.sum(np.log(np.diag(L))) + np.sum(z**2) / 2 + len(t) * np.log(2 * np.pi) / 2


def forecast(log_p, t, y, s):
    """Mean and standard deviation of observations in the years s."""
    L, across = factor(log_p, t), covariance(log_p, t, s)
    z, w = np.linalg.solve(L, y), np.linalg.solve(L, across)
    variance = np.diag(covariance(log_p, s, s)) + np.exp(2 * log_p[-1]) - np.sum(w**2, axis=0)
    return w.T @ z, np.sqrt(variance)


def check(log_p, t, y):
    exact, step = tg.func.grad(loss)(log_p, t, y), 1e-5
    about = [(loss(log_p + e, t, y) - loss(log_p - e, t, y)) / (2 * step) for e in step * np.eye(len(log_p))]
    print(f"gradient beside central differences: off by {np.max(np.abs(exact - about) / np.abs(exact)):.1e}")


def plot(path, years, spots, log_p, mean, known):
    from matplotlib.figure import Figure

    axes = (figure := Figure(figsize=(11, 4.4), layout="constrained")).add_subplot()
    s = np.arange(years[0], years[-1] + 25, 0.25)
    root, error = forecast(log_p, years[known], np.sqrt(spots[known]) - mean, s)
    root = root + mean
    for width, alpha in ((2, 0.15), (1, 0.25)):
        low, high = (np.maximum(root + sign * width * error, 0) ** 2 for sign in (-1, 1))
        axes.fill_between(s, low, high, alpha=alpha, color="C1", lw=0, label=f"{width} sd")
    axes.plot(s, np.maximum(root, 0) ** 2, color="C1", label="Gaussian process")
    axes.plot(years[known], spots[known], ".", ms=4, color="0.25", label="known to it")
    axes.plot(years[~known], spots[~known], "o", ms=3.5, mfc="none", color="C0", label="held back")
    axes.axvline(years[known][-1], color="0.6", lw=1)
    axes.set(xlabel="year", ylabel="sunspot number", xlim=(s[0], s[-1]), ylim=(0, None),
             title=f"Sunspots, with a period of {np.exp(log_p[1]):.2f} years")  # fmt: skip
    axes.legend(ncols=5, loc="upper left", fontsize=9)
    figure.savefig(path, dpi=120)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="the years from 1850 on, few steps")
    parser.add_argument("--output", default="gp.png", help="where the plot goes")
    options = parser.parse_args()
    years, spots = np.loadtxt(DATA, delimiter=",").T
    first, steps = (1850, 15) if options.small else (1700, 100)
    years, spots = years[years >= first], spots[years >= first]
    known = years < 1987
    t, mean = years[known], np.sqrt(spots[known]).mean()
    y = np.sqrt(spots[known]) - mean
    print(f"{len(t)} years from {first} to 1986, {np.sum(~known)} held back", flush=True)

    log_p = np.log(list(NAMES.values()))
    check(log_p, t, y)
    with tqdm(desc="L-BFGS steps", total=steps, leave=False, disable=None) as bar:
        fit = minimize(tg.func.value_and_grad(loss), log_p, (t, y), "L-BFGS-B", True,
                       callback=lambda _: bar.update(), options={"maxiter": steps})  # fmt: skip
    print(f"logarithm of the evidence {-loss(log_p, t, y):.2f} before, {-fit.fun:.2f} after {fit.nit} steps")
    error = np.sqrt(np.diag(np.linalg.inv(tg.func.hessian(loss)(fit.x, t, y))))
    for name, value, relative in zip(NAMES, np.exp(fit.x), error, strict=True):
        print(f"{name:28s} {value:8.3f}, times or over {np.exp(relative):.2f}")
    center, sd = forecast(fit.x, t, y, years[~known])
    off = (np.sqrt(spots[~known]) - mean - center) / sd
    print(f"years held back: off by {np.sqrt(np.mean(off**2)):.2f} of the forecasts' standard deviations, "
          f"{np.mean(np.abs(off) < 2):.0%} within two")  # fmt: skip
    if find_spec("matplotlib"):
        plot(options.output, years, spots, fit.x, mean, known)
        print(f"wrote {options.output}")


if __name__ == "__main__":
    main()
