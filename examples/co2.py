"""Trend and seasons of atmospheric CO2 at Mauna Loa, with standard errors from the Hessian.

Monthly means y(t) are a quadratic trend, a few harmonics of the year, which grow or shrink at a constant
rate, and a residual that remembers the month before:

    y(t) = a + b t + c t^2 + exp(g t) sum_k [p_k cos(2 pi k t) + q_k sin(2 pi k t)] + r(t)
    r(t) = phi r(t - 1 month) + e(t),    e(t) ~ Normal(0, sigma^2)

The likelihood is plain NumPy. Its gradient drives SciPy's minimiser, its Hessian gives the covariance of the
estimates, and Jacobians of derived quantities carry that over to them.
"""

import argparse
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from scipy.optimize import minimize
from tqdm import tqdm

import tapegrad as tg

DATA = Path(__file__).parent / "data" / "co2.csv"
ORIGIN, LAST = 1980, 2000  # the year where t = 0, and the one reported beside it


def waves(t, harmonics):
    """Cosines and sines of whole multiples of one cycle a year, as columns."""
    angles = 2 * np.pi * np.outer(t, np.arange(1, harmonics + 1))
    return np.hstack([np.cos(angles), np.sin(angles)])


def cycle(w, t, basis):
    return np.exp(w[3] * t) * (basis @ w[6:])


def loss(w, t, y, basis):
    """Negative log-likelihood per month; w holds a, b, c, g, log sigma, artanh phi, p, q."""
    log_sigma, phi = w[4], np.tanh(w[5])
    r = y - (w[0] + w[1] * t + w[2] * t**2) - cycle(w, t, basis)
    e = r[1:] - phi * r[:-1]
    squares = np.sum(e**2) + (1 - phi**2) * r[0] ** 2  # r[0] has the stationary variance
    log_likelihood = (np.log1p(-(phi**2)) - np.exp(-2 * log_sigma) * squares) / 2 - len(t) * log_sigma
    return np.log(2 * np.pi) / 2 - log_likelihood / len(t)


def derived(w):
    """Quantities of interest by name."""
    t, year = LAST - ORIGIN, waves(np.arange(144) / 144, (len(w) - 6) // 2) @ w[6:]
    swing = np.max(year) - np.min(year)
    return {
        f"growth in {ORIGIN}, ppm/year": w[1],
        f"growth in {LAST}, ppm/year": w[1] + 2 * w[2] * t,
        f"seasonal swing in {ORIGIN}, ppm": swing,
        f"seasonal swing in {LAST}, ppm": swing * np.exp(w[3] * t),
        "correlation with the month before": np.tanh(w[5]),
    }


def compare(name, exact, function, w, step=1e-5):
    about = np.array([(function(w + s) - function(w - s)) / (2 * step) for s in step * np.eye(len(w))])
    print(f"{name} beside central differences: off by {np.max(abs(exact - about)) / np.max(abs(exact)):.1e}")


def plot(path, w, covariance, t, y, basis):
    from matplotlib.figure import Figure

    years, smooth, season = t + ORIGIN, w[0] + w[1] * t + w[2] * t**2, cycle(w, t, basis)
    axes = (figure := Figure(figsize=(10, 7.5), layout="constrained")).subplot_mosaic("AA;BC")
    axes["A"].plot(years, y, ".", ms=4, color="0.45", label="monthly mean")
    axes["A"].plot(years, smooth + season, lw=0.8, label="trend and seasons")
    axes["A"].set(xlabel="year", ylabel="CO$_2$ (ppm)", title="CO$_2$ at Mauna Loa, Hawaii")
    for year, color in ((int(years[0]), "C0"), (LAST, "C3")):
        month = np.linspace(0, 1, 49)
        at = w, year - ORIGIN, waves(month, basis.shape[1] // 2)
        curve, rows = cycle(*at), tg.func.jacobian(cycle)(*at)
        error = np.sqrt(np.sum(rows @ covariance * rows, axis=1))
        axes["B"].plot(12 * month, curve, color=color, label=f"{year}")
        axes["B"].fill_between(12 * month, curve - 2 * error, curve + 2 * error, color=color, alpha=0.25)
    axes["B"].set_xticks(np.arange(12) + 0.5, list("JFMAMJJASOND"))
    axes["B"].set(xlabel="month", ylabel="seasonal cycle (ppm)", title="Seasons $\\pm$ two standard errors")
    axes["C"].plot(years, y - smooth - season, lw=0.8)
    axes["C"].set(xlabel="year", ylabel="ppm", title="What trend and seasons leave")
    axes["A"].legend()
    axes["B"].legend()
    figure.savefig(path, dpi=120)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="fewer years and harmonics")
    parser.add_argument("--output", default="co2.png", help="where the plot goes")
    options = parser.parse_args()
    harmonics, first = (2, 1980) if options.small else (4, 1965)
    year, month, y = np.loadtxt(DATA, delimiter=",").T
    t, y = (year + (month - 0.5) / 12 - ORIGIN)[year >= first], y[year >= first]
    data = t, y, waves(t, harmonics)
    start = np.concatenate([np.polyfit(t, y, 2)[::-1], [0.0, 0.0, 0.5], np.full(2 * harmonics, 0.1)])
    print(f"{len(y)} months from {first} on, {len(start)} parameters", flush=True)

    value_and_grad, hessian = tg.func.value_and_grad(loss), tg.func.hessian(loss)
    compare("gradient", value_and_grad(start, *data)[1], lambda w: loss(w, *data), start)
    with tqdm(desc="BFGS steps", leave=False, disable=None) as bar:
        fit = minimize(value_and_grad, start, data, "BFGS", jac=True, callback=lambda _: bar.update(1))
    print(f"log-likelihood {-fit.fun * len(y):.3f} after {fit.nit} steps")
    curvature = hessian(fit.x, *data)
    compare("Hessian", curvature, lambda w: value_and_grad(w, *data)[1], fit.x)

    covariance = np.linalg.inv(curvature * len(y))
    gradients = tg.func.jacobian(derived)(fit.x)
    for name, quantity in derived(fit.x).items():
        error = np.sqrt(gradients[name] @ covariance @ gradients[name])
        print(f"{name:36s} {quantity:9.4f} +- {error:.4f}")
    if find_spec("matplotlib"):
        plot(options.output, fit.x, covariance, *data)
        print(f"wrote {options.output}")


if __name__ == "__main__":
    main()
