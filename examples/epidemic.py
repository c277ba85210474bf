"""Influenza in a boarding school, 1978: the equations of an epidemic fitted to 14 days of boys in bed.

Of 763 boys S are susceptible and I infectious, in bed; the others are well again (Kermack and McKendrick,
1927):

    dS/dt = -beta S I / 763        dI/dt = beta S I / 763 - gamma I

`tapegrad.scipy.integrate.solve_ivp` records the steps that SciPy chooses,
`tapegrad.scipy.optimize.least_squares` finds the Jacobian of the residuals in that record. What one wants to
know, the reproduction number and how many fall ill, gets its error from its own gradient, through the solver
too.
"""

import argparse
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from tqdm import tqdm

import tapegrad as tg
import tapegrad.scipy as ts

DATA = Path(__file__).parent / "data" / "influenza.csv"
BOYS = 763.0


def slope(_, y, beta, gamma):
    caught, well = beta * y[0] * y[1] / BOYS, gamma * y[1]
    return np.stack([-caught, caught - well])


def epidemic(p, t):
    """Boys susceptible and in bed on the days t; p holds logarithms of beta, gamma, and I on day 0."""
    beta, gamma, first = np.exp(p)
    start = np.stack([BOYS - first, first])
    options = {"args": (beta, gamma), "t_eval": t, "rtol": 1e-7, "atol": 1e-7}
    return ts.integrate.solve_ivp(slope, (0.0, t[-1]), start, **options).y


def residuals(p, t, in_bed):
    """Differences of roots: the spread of counts grows like their root."""
    return 2 * (np.sqrt(epidemic(p, t)[1]) - np.sqrt(in_bed))


def wanted(p):
    """What one wants to know, by name."""
    susceptible, in_bed = epidemic(p, np.linspace(0.0, 30.0, 301))
    return {
        "infections a day by one ill boy": np.exp(p[0]),
        "days in bed": np.exp(-p[1]),
        "reproduction number": np.exp(p[0] - p[1]),
        "boys who fall ill": BOYS - susceptible[-1],
        "most boys in bed at once": np.max(in_bed),
    }


def fit(start, *data):
    """Least squares; returns the solution, and the covariance of its parameters."""
    with tqdm(desc="least squares", leave=False, disable=None) as bar:

        def counted(p, *data):
            bar.update()
            return residuals(p, *data)

        found = ts.optimize.least_squares(counted, start, args=data)
    spread = 2 * found.cost / (len(found.fun) - len(start))  # of the residuals, 1 for pure chance
    return found, spread * np.linalg.inv(found.jac.T @ found.jac), spread


def plot(path, t, in_bed, p, covariance, size):
    from matplotlib.figure import Figure

    left, right = (figure := Figure(figsize=(11, 4.2), layout="constrained")).subplots(1, 2)
    fine = np.linspace(0, 18, size)
    curve, rows = epidemic(p, fine)[1], tg.func.jacobian(lambda p: epidemic(p, fine)[1])(p)
    error = np.sqrt(np.sum(rows @ covariance * rows, axis=1))
    left.fill_between(fine, curve - 2 * error, curve + 2 * error, alpha=0.25, label="two standard errors")
    left.plot(fine, curve, label="fit")
    left.plot(t, in_bed, "o", color="0.25", ms=5, label="counted")
    left.set(xlabel="days since 22 January 1978", ylabel="boys in bed", ylim=(0, None))
    left.legend(frameon=False)
    names = ("infections a day", "recoveries a day", "ill on day 0")
    for row, name in zip(rows.T, names, strict=True):
        right.plot(fine, row / 100, label=name)
    right.axhline(0, color="0.6", lw=0.8, zorder=0)
    right.set(xlabel="days since 22 January 1978", ylabel="boys in bed", title="For 1 % more of a parameter")
    right.legend(frameon=False)
    figure.savefig(path, dpi=120)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="a coarser plot")
    parser.add_argument("--output", default="epidemic.png", help="where the plot goes")
    options = parser.parse_args()
    t, in_bed = np.loadtxt(DATA, delimiter=",").T
    print(f"{len(t)} days, at most {in_bed.max():.0f} of {BOYS:.0f} boys in bed", flush=True)
    start = np.log([2.0, 0.5, 2.0])
    exact, step = tg.func.jacobian(residuals)(start, t, in_bed), 1e-4
    ends = [[residuals(start + s * e, t, in_bed) for e in np.eye(3)] for s in (step, -step)]
    about = (np.array(ends[0]) - ends[1]).T / (2 * step)
    print(f"Jacobian beside central differences: off by {np.abs(exact - about).max():.1e}", flush=True)

    found, covariance, spread = fit(start, t, in_bed)
    print(f"{found.nfev} evaluations; residuals are {spread**0.5:.1f} times as large as by chance alone")
    gradients = tg.func.jacrev(wanted)(found.x)
    for name, value in wanted(found.x).items():
        error = np.sqrt(gradients[name] @ covariance @ gradients[name])
        print(f"{name:32s} {value:8.3f} +- {error:.3f}")
    if find_spec("matplotlib"):
        plot(options.output, t, in_bed, found.x, covariance, 40 if options.small else 200)
        print(f"wrote {options.output}")


if __name__ == "__main__":
    main()
