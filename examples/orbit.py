"""From the Earth's orbit to that of Mars by an engine that always burns, and may be turned.

A ship in a circular orbit has a small constant thrust, loses mass and may steer. In 193 days it is to reach
the largest circular orbit: a problem of Bryson and Ho (Applied Optimal Control, 1975, section 2.5), who found
1.525 times the first radius, that of Mars. The time is cut into pieces with an angle at each end. The flight
is integrated by Runge-Kutta's method in plain NumPy, and SciPy's SLSQP gets the last radius, the two
conditions of a circular orbit, and their gradients from reverse sweeps through the flight.
"""

import argparse
from importlib.util import find_spec

import numpy as np
from scipy.optimize import minimize
from tqdm import tqdm

import tapegrad as tg

THRUST, LOSS, TIME = 0.1405, 0.0749, 3.3207  # in units of the first orbit's radius and speed, and the mass
DAYS = 365.25 / (2 * np.pi)  # a unit of time, where the first orbit is the Earth's


def slope(state, angle, t):
    """Of radius, longitude, outward and forward speed; the thrust's angle is from forward to outward."""
    r, _, u, v = state
    push = THRUST / (1 - LOSS * t)
    return np.stack([u, v / r, v**2 / r - 1 / r**2 + push * np.sin(angle), push * np.cos(angle) - u * v / r])


def fly(angles):
    """States at the ends of the pieces."""
    h, state = TIME / (len(angles) - 1), np.array([1.0, 0.0, 0.0, 1.0])
    states = [state]
    for k in range(len(angles) - 1):
        t, middle = k * h, (angles[k] + angles[k + 1]) / 2
        a = slope(state, angles[k], t)
        b = slope(state + h / 2 * a, middle, t + h / 2)
        c = slope(state + h / 2 * b, middle, t + h / 2)
        d = slope(state + h * c, angles[k + 1], t + h)
        state = state + h / 6 * (a + 2 * b + 2 * c + d)
        states.append(state)
    return np.stack(states)


def aim(angles):
    """Minus the last radius, and what is 0 in a circular orbit."""
    r, _, u, v = fly(angles)[-1]
    return np.stack([-r, u, v - 1 / np.sqrt(r)])


def check(angles):
    exact, step = tg.func.jacobian(aim)(angles), 1e-6
    about = [(aim(angles + e) - aim(angles - e)) / (2 * step) for e in step * np.eye(len(angles))]
    off = np.abs(exact - np.transpose(about)).max()
    print(f"Jacobian beside central differences: off by {off:.1e}", flush=True)


def steer(angles, limit):
    """The best angles; value and Jacobian of all that SLSQP asks for come from one flight."""
    jacobian, last = tg.func.jacobian(aim), (None, None)

    def at(x):
        nonlocal last
        if last[0] is None or not np.array_equal(x, last[0]):
            last = x.copy(), (aim(x), jacobian(x))
        return last[1]

    with tqdm(desc="SLSQP steps", leave=False, disable=None) as bar:
        return minimize(
            lambda x: at(x)[0][0], angles, (), "SLSQP", lambda x: at(x)[1][0],
            constraints={"type": "eq", "fun": lambda x: at(x)[0][1:], "jac": lambda x: at(x)[1][1:]},
            options={"maxiter": limit, "ftol": 1e-9}, callback=lambda _: bar.update(),
        )  # fmt: skip


def plot(path, angles):
    from matplotlib.figure import Figure

    left, right = (figure := Figure(figsize=(11, 5), layout="constrained")).subplots(1, 2)
    r, longitude, u, v = fly(angles).T
    x, y, turn = r * np.cos(longitude), r * np.sin(longitude), np.linspace(0, 2 * np.pi, 200)
    for radius, color, name in ((1.0, "C0", "Earth's orbit"), (r[-1], "C3", f"{r[-1]:.3f} times that")):
        left.plot(radius * np.cos(turn), radius * np.sin(turn), color=color, lw=1, label=name)
    left.plot(x, y, color="k", lw=2)
    pointing, every = longitude + np.pi / 2 - angles, slice(None, None, len(x) // 16)
    arrows = x[every], y[every], np.cos(pointing[every]), np.sin(pointing[every])
    left.quiver(*arrows, color="C1", scale=12, width=0.005, label="thrust")
    left.plot(0, 0, "o", color="gold", ms=14, mec="orange")
    left.set(aspect="equal", xticks=[], yticks=[], title="193 days of flight")
    left.legend(loc="center", bbox_to_anchor=(0.5, 0.36), frameon=False)
    days, other = np.linspace(0, TIME * DAYS, len(angles)), right.twinx()
    right.plot(days, np.degrees(angles), color="C1", label="thrust, degrees outward")
    right.set(xlabel="days", ylabel="angle from forward (degrees)", ylim=(0, 360), yticks=range(0, 361, 90))
    other.plot(days, u, "C4", label="outward speed")
    other.plot(days, v - 1 / np.sqrt(r), "C2", label="forward speed above a circular orbit's")
    other.set(ylabel="speed, of the Earth's in its orbit", ylim=(-0.4, 0.4))
    figure.legend(handles=[*right.lines, *other.lines], loc="outside lower right", ncols=3, frameon=False)
    figure.savefig(path, dpi=120)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="fewer pieces")
    parser.add_argument("--output", default="orbit.png", help="where the plot goes")
    options = parser.parse_args()
    pieces, limit = (16, 60) if options.small else (48, 200)
    print(f"{pieces} pieces of {TIME * DAYS / pieces:.1f} days each", flush=True)
    angles = np.linspace(0.2, 2 * np.pi - 0.2, pieces + 1)  # a guess: outward first, inward later
    check(angles)
    found = steer(angles, limit)
    radius, off = -aim(found.x)[0], np.abs(aim(found.x)[1:]).max()
    print(f"{found.message}: {found.nit} steps, {found.nfev} flights")
    print(f"last radius {radius:.4f} (Bryson and Ho: 1.525), speeds off a circular orbit's by {off:.1e}")
    if find_spec("matplotlib"):
        plot(options.output, found.x)
        print(f"wrote {options.output}")


if __name__ == "__main__":
    main()
