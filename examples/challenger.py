"""The seals of the Challenger: a logistic regression, and how sure it is of a cold morning.

Before 28 January 1986 the Space Shuttle had flown 23 times with boosters that were recovered. After seven
flights, most of them in the cold, seals were found damaged. For that morning 31 degrees Fahrenheit were
forecast, 22 below the coldest flight. Derivatives of one function, the likelihood of two parameters, say how
sure it is of those 31 degrees:

* the inverse of the Hessian is the covariance of the parameters;
* the profile of the likelihood holds the logit at 31 degrees and fits the slope, which `tg.func.minimizer`
  makes differentiable: Newton's method finds where the logarithm of the likelihood has fallen by 1.92;
* the fit, differentiated by the weight of each flight, tells which flights it rests on (and the root of these
  derivatives' summed squares, the infinitesimal jackknife, is an error that does not trust the model).
"""

import argparse
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from scipy.optimize import brentq
from scipy.special import expit

import tapegrad as tg

DATA = Path(__file__).parent / "data" / "challenger.csv"
COLD = 31.0  # degrees Fahrenheit


def loss(w, t, damage, weights):
    """Negative log-likelihood; w is the logit at 31 degrees, and its change per degree."""
    logit = w[0] + w[1] * (t - COLD)
    return np.sum(weights * (np.logaddexp(0.0, logit) - damage * logit))


gradient, hessian = tg.func.grad(loss), tg.func.hessian(loss)


def newton(*data):
    w = np.zeros(2)
    for _ in range(50):  # shorter steps where the loss would grow
        step, size = np.linalg.solve(hessian(w, *data), gradient(w, *data)), 1.0
        while size > 1e-3 and loss(w - size * step, *data) > loss(w, *data):
            size /= 2
        w = w - size * step
        if np.abs(step).max() < 1e-9:
            break
    return w


fit = tg.func.minimizer(loss, newton, tol=1e-6)  # a function of the data, with derivatives


def profile(*data):
    """The least loss as a function of the logit at 31 degrees."""

    def of_slope(slope, logit):
        return loss(tg.array([logit, slope]), *data)

    def solve(logit):
        return brentq(tg.func.grad(of_slope), -3.0, 3.0, (logit,), xtol=1e-12)

    slope = tg.func.minimizer(of_slope, solve)
    return lambda logit: of_slope(slope(logit), logit)


def where(f, value, x):
    for _ in range(20):  # Newton's method
        y, slope = tg.func.value_and_grad(f)(x)
        x -= (y - value) / slope
    return x


def plot(path, w, covariance, ends, influence, t, damage):
    from matplotlib.figure import Figure

    left, right = (figure := Figure(figsize=(11, 4.4), layout="constrained")).subplots(1, 2)
    x = np.linspace(25, 85, 200)
    rows = np.stack([np.ones_like(x), x - COLD], axis=1)  # gradients of the logits
    error = np.sqrt(np.sum(rows @ covariance * rows, axis=1))
    left.fill_between(x, expit(rows @ w - 2 * error), expit(rows @ w + 2 * error), alpha=0.2, lw=0,
                      label="two standard errors, by the Hessian")  # fmt: skip
    left.plot(x, expit(rows @ w), lw=2, label="fit")
    left.vlines(COLD, *expit(ends), color="C3", lw=4, label="95 % at 31 °F, by the profile")
    again = np.array([np.sum(t[:k] == t[k]) for k in range(len(t))])  # flights at one temperature
    left.plot(t + 0.7 * again, damage, "o", color="0.2", ms=5, label="flights")
    left.set(xlabel="temperature at launch (°F)", ylabel="probability of a damaged seal", xlim=(25, 85))
    left.legend(loc="lower left", fontsize=9, bbox_to_anchor=(0, 0.05))
    for seal, color, label in ((0, "C0", "no damage"), (1, "C3", "damage")):
        at = damage == seal
        right.vlines(t[at] + 0.7 * again[at], 0, influence[at], color=color, lw=3, label=label)
    right.axhline(0, color="0.5", lw=1)
    right.set(xlabel="temperature at launch (°F)", title="Change of the logit at 31 °F by a flight's weight")
    right.legend()
    figure.savefig(path, dpi=120)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="no difference: the data are small")
    parser.add_argument("--output", default="challenger.png", help="where the plot goes")
    options = parser.parse_args()
    t, damage = np.loadtxt(DATA, delimiter=",").T
    data = t, damage, np.ones(len(t))
    print(f"{len(t)} flights, {damage.sum():.0f} with a damaged seal", flush=True)
    w = fit(*data)
    covariance = np.linalg.inv(hessian(w, *data))
    error = np.sqrt(np.diag(covariance))
    print(f"logit at 31 degrees {w[0]:.4f} +- {error[0]:.4f}, change per degree {w[1]:.4f} +- {error[1]:.4f}")
    influence = tg.func.grad(lambda weights: fit(t, damage, weights)[0])(data[2])
    print(f"error of the logit by the infinitesimal jackknife: {np.sqrt(np.sum(influence**2)):.4f}")
    ends = [where(profile(*data), loss(w, *data) + 1.92, w[0] + sign * 1.5 * error[0]) for sign in (-1, 1)]
    for how, low, high in (("Hessian", *(w[0] + 1.96 * error[0] * np.array([-1, 1]))), ("profile", *ends)):
        print(f"probability of damage, 95 % by the {how}: {expit(low):.3f} to {expit(high):.5f}")
    if find_spec("matplotlib"):
        plot(options.output, w, covariance, ends, influence, t, damage)
        print(f"wrote {options.output}")


if __name__ == "__main__":
    main()
