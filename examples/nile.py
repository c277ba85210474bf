"""The annual flow of the Nile, 1871 to 1970: a level that drifts, filtered and fitted in compiled code.

The observed flow is y(t) = level(t) + e(t), and level(t + 1) = level(t) + n(t), with e and n normal of
unknown variances. The likelihood is a Kalman filter, a loop over the years. tapegrad gives its gradient and
its Hessian as compiled functions; Newton's method around them is compiled too.
"""

import argparse
import math
import time
from importlib.util import find_spec
from pathlib import Path

import numba
import numpy as np

import tapegrad as tg

DATA = Path(__file__).parent / "data" / "nile.csv"


@tg.njit
def negative_log_likelihood(w, y):
    """Of the logarithms of both variances; the first observation starts the filter."""
    noise, drift = math.exp(w[0]), math.exp(w[1])
    level, variance = y[0], noise + drift
    total = 0.0
    for t in range(1, y.size):
        surprise = y[t] - level
        spread = variance + noise
        total += math.log(2 * math.pi * spread) + surprise * surprise / spread
        gain = variance / spread
        level = level + gain * surprise
        variance = variance * (1.0 - gain) + drift
    return 0.5 * total


gradient, hessian = tg.func.grad(negative_log_likelihood), tg.func.hessian(negative_log_likelihood)


@numba.njit
def fit(w, y, steps):
    """Newton's method, with shorter steps where the function would grow."""
    value = negative_log_likelihood(w, y)
    for _ in range(steps):
        step = np.linalg.solve(hessian(w, y), gradient(w, y))
        size = 1.0
        while negative_log_likelihood(w - size * step, y) > value and size > 1e-6:
            size *= 0.5
        w = w - size * step
        value = negative_log_likelihood(w, y)
        if np.abs(step).max() < 1e-10:
            break
    return w, value


@numba.njit
def filtered(w, y):
    """Levels and their variances, year by year."""
    noise, drift = math.exp(w[0]), math.exp(w[1])
    levels, variances, level, variance = np.empty(y.size), np.empty(y.size), y[0], noise
    for t in range(y.size):
        if t:
            variance += drift
            gain = variance / (variance + noise)
            level += gain * (y[t] - level)
            variance *= 1.0 - gain
        levels[t], variances[t] = level, variance
    return levels, variances


def check(w, y):
    """Gradient and Hessian beside central differences of what is differentiated."""
    step = 1e-5
    for name, exact, of in (("gradient", gradient, negative_log_likelihood), ("Hessian", hessian, gradient)):
        about = [(of(w + e, y) - of(w - e, y)) / (2 * step) for e in step * np.eye(2)]
        print(f"{name} beside central differences: off by {np.abs(exact(w, y) - about).max():.1e}")


def draw(years, y, w, path):
    """The flow, and the level with two standard errors."""
    from matplotlib.figure import Figure

    levels, variances = filtered(w, y)
    axes = (figure := Figure(figsize=(9, 4.5), layout="constrained")).add_subplot()
    axes.plot(years, y, ".", color="0.4", label="flow")
    axes.plot(years, levels, label="level")
    width = 2 * np.sqrt(variances)
    axes.fill_between(years, levels - width, levels + width, alpha=0.25, label="two standard errors")
    axes.set(xlabel="year", ylabel="flow at Aswan, 1e8 m$^3$", title="The Nile: a level that drifts")
    axes.legend()
    figure.savefig(path, dpi=110)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="fewer repetitions")
    parser.add_argument("--output", default="nile.png")
    options = parser.parse_args()
    years, y = np.loadtxt(DATA, delimiter=",").T
    print(f"{y.size} years; the gradient is compiled first, then the Hessian, then the fit", flush=True)
    start = np.log([y.var() / 2, y.var() / 20])
    check(start, y)
    w, value = fit(start, y, 50)
    errors = np.sqrt(np.diag(np.linalg.inv(hessian(w, y))))
    print(f"log-likelihood {-value:.3f}, gradient {np.abs(gradient(w, y)).max():.1e}")
    for name, at, error in zip(("noise", "drift"), w, errors, strict=True):
        print(f"variance of the {name:5s} {math.exp(at):8.1f}, times or over {math.exp(error):.2f}")
    repeat = 20 if options.small else 1000
    begin = time.perf_counter()
    for _ in range(repeat):
        fit(start, y, 50)
    print(f"a whole fit takes {1e6 * (time.perf_counter() - begin) / repeat:.0f} us")
    if find_spec("matplotlib"):
        draw(years, y, w, options.output)
        print(f"wrote {options.output}")


if __name__ == "__main__":
    main()
