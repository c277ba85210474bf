"""Trend and seasons of atmospheric CO2 at Mauna Loa, with standard errors from the Hessian.

Monthly means y(t) are a quadratic trend, a seasonal cycle of a few harmonics that grows or shrinks at a
constant rate, and a residual that remembers the month before (a first-order autoregression):

    y(t) = a + b t + c t^2 + exp(g t) sum_k [p_k cos(2 pi k t) + q_k sin(2 pi k t)] + r(t)
    r(t) = phi r(t - 1 month) + e(t),    e(t) ~ Normal(0, sigma^2)

The likelihood is plain NumPy. Its gradient drives SciPy's minimiser, its Hessian gives the covariance of
the estimates, and gradients of derived quantities carry that covariance over to them.
"""

import argparse

import numpy as np
import statsmodels.api as sm
from matplotlib.figure import Figure
from scipy.optimize import minimize
from tqdm import tqdm

import tapegrad as tg

ORIGIN, LAST = 1980, 2000  # the year where t = 0, and the one reported beside it


def monthly_means(first):
    """Return times in years and monthly means in ppm; from 1965 on no month is missing."""
    weekly = sm.datasets.co2.load_pandas().data["co2"]
    monthly = weekly[str(first) :].resample("MS").mean()
    return np.asarray(monthly.index.year + (monthly.index.month - 0.5) / 12), monthly.to_numpy()


def waves(t, harmonics):
    """Cosines and sines of whole multiples of one cycle a year, as columns."""
    angles = 2 * np.pi * np.outer(t, np.arange(1, harmonics + 1))
    return np.hstack([np.cos(angles), np.sin(angles)])


def trend(w, t):
    return w[0] + w[1] * t + w[2] * t**2


def cycle(w, t, basis):
    return np.exp(w[3] * t) * (basis @ w[6:])


def loss(w, t, y, basis):
    """Negative log-likelihood per month; w holds a, b, c, g, log sigma, artanh phi, p, q."""
    log_sigma, phi = w[4], np.tanh(w[5])
    r = y - trend(w, t) - cycle(w, t, basis)
    e = r[1:] - phi * r[:-1]
    squares = np.sum(e**2) + (1 - phi**2) * r[0] ** 2  # r[0] has the stationary variance
    log_likelihood = (np.log1p(-(phi**2)) - np.exp(-2 * log_sigma) * squares) / 2 - len(t) * log_sigma
    return np.log(2 * np.pi) / 2 - log_likelihood / len(t)


def value_and_gradient(values, *data):
    w = tg.tensor(values, requires_grad=True)
    value = loss(w, *data)
    value.backward()
    return value.item(), w.grad.numpy()


def jacobian(outputs, w, title):
    """Gradients of the elements of a vector, as rows."""
    bar = tqdm(outputs, title, leave=False)
    return np.stack([tg.grad(y, w, retain_graph=True)[0].numpy() for y in bar])


def differences(function, w, step=1e-5):
    """Central differences with respect to each parameter."""
    return np.array([(function(w + s) - function(w - s)) / (2 * step) for s in step * np.eye(len(w))])


def compare(name, exact, about):
    print(f"{name} beside central differences: off by {np.max(abs(exact - about)) / np.max(abs(exact)):.1e}")


def derived(w, harmonics):
    """Quantities of interest by name, as functions of the parameters."""
    t, year = LAST - ORIGIN, waves(np.arange(144) / 144, harmonics) @ w[6:]
    swing = np.max(year) - np.min(year)
    return {
        f"growth in {ORIGIN}, ppm/year": w[1],
        f"growth in {LAST}, ppm/year": w[1] + 2 * w[2] * t,
        "acceleration, ppm/year^2": 2 * w[2],
        f"seasonal swing in {ORIGIN}, ppm": swing,
        f"seasonal swing in {LAST}, ppm": swing * np.exp(w[3] * t),
        "growth of the swing, %/year": 100 * w[3],
        "correlation with the month before": np.tanh(w[5]),
        "sigma of a month, ppm": np.exp(w[4]),
    }


def plot(path, values, covariance, t, y, basis):
    years, harmonics, smooth = t + ORIGIN, basis.shape[1] // 2, trend(values, t)
    axes = (figure := Figure(figsize=(10, 7.5), layout="constrained")).subplot_mosaic("AA;BC")
    axes["A"].plot(years, y, ".", ms=4, color="0.45", label="monthly mean")
    axes["A"].plot(years, smooth + cycle(values, t, basis), lw=0.8, label="trend and seasons")
    axes["A"].plot(years, smooth, lw=1.8, color="C3", label="trend")
    axes["A"].set(xlabel="year", ylabel="CO$_2$ (ppm)", title="CO$_2$ at Mauna Loa, Hawaii")
    month = np.linspace(0, 1, 49)
    for year, color in ((int(years[0]), "C0"), (LAST, "C3")):
        w = tg.tensor(values, requires_grad=True)
        curve = cycle(w, year - ORIGIN, waves(month, harmonics))
        rows, center = jacobian(curve, w, "seasonal cycle"), curve.detach().numpy()
        error = np.sqrt(np.sum(rows @ covariance * rows, axis=1))
        axes["B"].plot(12 * month, center, color=color, label=f"{year}")
        axes["B"].fill_between(12 * month, center - 2 * error, center + 2 * error, color=color, alpha=0.25)
    axes["B"].set_xticks(np.arange(12) + 0.5, list("JFMAMJJASOND"))
    axes["B"].set(xlabel="month", ylabel="seasonal cycle (ppm)", title="Seasons $\\pm$ two standard errors")
    r = y - smooth - cycle(values, t, basis)
    axes["C"].plot(years, r, lw=0.8, label="residual r(t)")
    axes["C"].plot(years[1:], r[1:] - np.tanh(values[5]) * r[:-1], ".", ms=3, label="new in the month, e(t)")
    axes["C"].set(xlabel="year", ylabel="ppm", title="What trend and seasons leave")
    for panel in axes.values():
        panel.legend(frameon=False)
    figure.savefig(path, dpi=120)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", default="co2.png", help="where the plot goes")
    parser.add_argument("--small", action="store_true", help="fewer years and harmonics")
    args = parser.parse_args()
    harmonics = 2 if args.small else 4
    years, y = monthly_means(1980 if args.small else 1965)
    data = years - ORIGIN, y, waves(years, harmonics)

    start = np.concatenate([np.polyfit(data[0], y, 2)[::-1], [0.0, 0.0, 0.5], np.full(2 * harmonics, 0.1)])
    compare("gradient", value_and_gradient(start, *data)[1], differences(lambda w: loss(w, *data), start))
    with tqdm(desc="BFGS steps", leave=False) as bar:
        fit = minimize(value_and_gradient, start, data, "BFGS", jac=True, callback=lambda _: bar.update(1))
    print(f"{len(y)} months, {len(start)} parameters, log-likelihood {-fit.fun * len(y):.3f}")
    w = tg.tensor(fit.x, requires_grad=True)
    (gradient,) = tg.grad(loss(w, *data), w, create_graph=True)
    curvature = jacobian(gradient, w, "rows of the Hessian")
    compare("Hessian", curvature, differences(lambda w: value_and_gradient(w, *data)[1], fit.x))

    covariance = np.linalg.inv(curvature * len(y))
    quantities = derived(w, harmonics)
    rows = jacobian(list(quantities.values()), w, "derived quantities")
    errors = np.sqrt(np.diag(rows @ covariance @ rows.T))
    for (name, quantity), error in zip(quantities.items(), errors, strict=True):
        print(f"{name:36s} {quantity.item():9.4f} +- {error:.4f}")
    plot(args.output, fit.x, covariance, *data)


if __name__ == "__main__":
    main()
