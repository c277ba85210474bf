"""Options: sensitivities ("Greeks") of a formula up to third order, and of a simulation to all it depends on.

The first part differentiates the price of a call by Black and Scholes, with SciPy's normal distribution:
delta, gamma, vega and the mixed and third derivatives are `tg.func.grad` of one another, of all prices at
once. The second part is an Asian option, on the mean of the price over a year, where the volatility has a
random walk of its own (Heston's model). There is no formula; a compiled loop runs along random paths, and one
reverse sweep along each gives its derivative by seven parameters. Batches of paths tell how well each is
known.
"""

import argparse
import math
from importlib.util import find_spec

import numpy as np
from scipy.special import ndtr
from tqdm import tqdm

import tapegrad as tg

STRIKE, RATE, DAYS = 100.0, 0.03, 250
NAMES = ("price", "variance today", "its return", "its mean", "its volatility", "correlation", "interest")
START = np.array([100.0, 0.04, 2.0, 0.05, 0.3, -0.7, RATE])


def call(price, volatility, years):
    """The price of a call by Black and Scholes."""
    width = volatility * np.sqrt(years)
    above = (np.log(price / STRIKE) + RATE * years) / width + width / 2
    return price * ndtr(above) - STRIKE * np.exp(-RATE * years) * ndtr(above - width)


def each(f, argnum):
    """The derivative of a function of arrays by an argument, element by element."""
    return tg.func.grad(lambda *args: np.sum(f(*args)), argnums=argnum)


delta, vega, decay = each(call, 0), each(call, 1), each(call, 2)
GREEKS = {
    "delta": delta, "gamma": each(delta, 0), "vega": vega,
    "vanna (of delta by volatility)": each(delta, 1), "volga (of vega by volatility)": each(vega, 1),
    "speed (of gamma by price)": each(each(delta, 0), 0),
}  # fmt: skip


def check(price, volatility, years):
    """Derivatives beside the formulas of the textbooks, and the equation that all prices obey."""
    width = volatility * np.sqrt(years)
    d = (np.log(price / STRIKE) + RATE * years) / width + width / 2
    density = np.exp(-d * d / 2) / math.sqrt(2 * math.pi)
    known = {"delta": ndtr(d), "gamma": density / (price * width), "vega": price * density * np.sqrt(years)}
    off = max(np.max(np.abs(GREEKS[name](price, volatility, years) - known[name])) for name in known)
    a, b, c = (f(price, volatility, years) for f in (GREEKS["gamma"], delta, decay))
    left = (volatility * price) ** 2 / 2 * a + RATE * (price * b - call(price, volatility, years)) - c
    print(f"off the textbook's Greeks by {off:.1e}, off the equation by {np.max(np.abs(left)):.1e}")


@tg.njit
def asian(p, normal):
    """The mean discounted payoff of paths; normal holds two normal numbers for each path and day."""
    price, variance, back, mean, spread, correlation, rate = p
    other, h, total = math.sqrt(1.0 - correlation * correlation), 1.0 / DAYS, 0.0
    for path in range(normal.shape[0]):
        s, v, sum_ = price, variance, 0.0
        for day in range(DAYS):
            a, b = normal[path, day, 0], normal[path, day, 1]
            root = math.sqrt(v * h) if v > 0.0 else 0.0
            s *= math.exp((rate - 0.5 * v) * h + root * a)
            v += back * (mean - v) * h + spread * root * (correlation * a + other * b)
            sum_ += s
        total += max(sum_ / DAYS - STRIKE, 0.0)
    return math.exp(-rate) * total / normal.shape[0]


def plot(path, slopes, errors):
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    panels = (figure := Figure(figsize=(13, 6.4), layout="constrained")).subplots(2, 4)
    price = np.linspace(60, 140, 161)
    for axes, (name, greek) in zip(panels[:, :3].flat, GREEKS.items(), strict=True):
        for years, shade in ((2.0, 0.2), (1.0, 0.4), (0.5, 0.6), (0.25, 0.8), (0.1, 1.0)):
            value = greek(price, np.full_like(price, 0.2), np.full_like(price, years))
            axes.plot(price, value, color=colormaps["magma_r"](0.85 * shade), label=f"{years:g} years")
        axes.axvline(STRIKE, color="0.8", lw=0.8, zorder=0)
        axes.set(title=name, xlabel="price of the share")
    panels[0, 0].legend(frameon=False, fontsize=9)
    panels[1, 3].remove()
    right, one = panels[0, 3], 0.01 * np.abs(START[:0:-1])
    right.barh(NAMES[:0:-1], slopes[:0:-1] * one, xerr=2 * errors[:0:-1] * one)
    right.set(title="Asian option", xlabel="change of its value for\n1 % more, two standard errors")
    figure.savefig(path, dpi=110)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="fewer paths")
    parser.add_argument("--output", default="greeks.png", help="where the plot goes")
    options = parser.parse_args()
    batches, paths = (10, 200) if options.small else (50, 1000)
    print(f"a formula, then {batches * paths:,} paths of {DAYS} days, compiled first", flush=True)
    check(*(x.ravel() for x in np.meshgrid(np.linspace(60, 140, 41), [0.1, 0.2, 0.4], [0.1, 0.5, 2.0])))
    value_and_grad, rng, found = tg.func.value_and_grad(asian), np.random.default_rng(0), []
    for _ in tqdm(range(batches), "batches", leave=False, disable=None):
        normal = rng.normal(size=(paths, DAYS, 2))
        found.append(np.hstack(value_and_grad(START, normal)))
    step = 1e-5 * START
    about = [(asian(START + e, normal) - asian(START - e, normal)) / (2 * np.sum(e)) for e in np.diag(step)]
    off = np.max(np.abs(about / found[-1][1:] - 1))
    print(f"slopes of a batch beside central differences on the same paths: off by {off:.1e}")
    found, errors = np.mean(found, axis=0), np.std(found, axis=0, ddof=1) / math.sqrt(batches)
    for name, value, error in zip(("value", *NAMES), found, errors, strict=True):
        print(f"Asian option, {'' if name == 'value' else 'slope by '}{name:16s} {value:9.4f} +- {error:.4f}")
    if find_spec("matplotlib"):
        plot(options.output, found[1:], errors[1:])
        print(f"wrote {options.output}")


if __name__ == "__main__":
    main()
