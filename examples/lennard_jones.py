"""Liquid argon: molecular dynamics on the gradient of the energy, with the pressure from the same sweep.

Atoms in a periodic box attract and repel one another by Lennard and Jones's potential. The energy is plain
NumPy, a function of the atoms' places, as fractions of the box, and of the box's length. One sweep gives its
derivatives by both: the first are the forces, the second is the part of the pressure that comes from them.
The state, T = 0.85 and rho = 0.776 in units of the potential, stands among the benchmarks of the National
Institute of Standards and Technology with an energy of -5.512 an atom and a pressure of 0.007.
"""

import argparse
from importlib.util import find_spec

import numpy as np
from tqdm import tqdm

import tapegrad as tg

DENSITY, TEMPERATURE, STEP = 0.776, 0.85, 0.004
FACE_CENTERED = np.array([[0.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.5, 0.0, 0.5], [0.0, 0.5, 0.5]])


def squared_distances(places, length, first, second):
    """Of pairs, to the nearest image."""
    apart = places[first] - places[second]
    return length**2 * np.sum((apart - np.round(apart)) ** 2, axis=1)


def energy(places, length, first, second):
    """Of pairs within half a box, and of those beyond as if atoms were spread evenly there."""
    r2, n = squared_distances(places, length, first, second), len(places)
    r6 = (1.0 / r2[r2 < (length / 2) ** 2]) ** 3
    end = (length / 2) ** -3
    beyond = 8 / 3 * np.pi * n**2 / length**3 * (end**3 / 3 - end)
    return 4 * np.sum(r6 * (r6 - 1)) + beyond


value_and_slopes = tg.func.value_and_grad(energy, argnums=(0, 1))


def check(places, length, *pairs):
    _, (by_places, by_length) = value_and_slopes(places, length, *pairs)
    step, way = 1e-6, np.random.default_rng(1).normal(size=places.shape) * 1e-2
    ends = [energy(places + sign * step * way, length * (1 + sign * step), *pairs) for sign in (1, -1)]
    about = (ends[0] - ends[1]) / (2 * step)
    off = abs(np.sum(by_places * way) + by_length * length - about) / abs(about)
    print(f"derivative along a direction beside a central difference: off by {off:.1e}", flush=True)


def simulate(places, length, pairs, steps, settle):
    """Leapfrog steps; velocities are drawn anew every 50: three times as hot to melt.

    Returns the last places; per step energy, pressure and total energy; of every 20th step distances.
    """
    rng, n = np.random.default_rng(0), len(places)
    found, distances = [], []
    value, (slope, by_length) = value_and_slopes(places, length, *pairs)
    for step in tqdm(range(steps), "steps", leave=False, disable=None):
        if step % 50 == 0:
            v = rng.normal(0, np.sqrt(TEMPERATURE * (3 if step < settle / 2 else 1)), places.shape)
            v -= v.mean(axis=0)
        v = v - STEP / 2 * slope / length
        places = places + STEP * v / length
        value, (slope, by_length) = value_and_slopes(places, length, *pairs)
        v = v - STEP / 2 * slope / length
        if step >= settle:
            pressure = DENSITY * TEMPERATURE - by_length / (3 * length**2)
            found.append((value / n, pressure, (value + np.sum(v**2) / 2) / n))
            if step % 20 == 0:
                distances.append(squared_distances(places, length, *pairs))
    return places, np.array(found), np.sqrt(np.concatenate(distances))


def plot(path, places, found, distances, length, samples):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 4), layout="constrained")
    left, right = figure.add_subplot(1, 3, 2), figure.add_subplot(1, 3, 3)
    box = figure.add_subplot(1, 3, 1, projection="3d")
    x, y, z = (places % 1.0).T * length
    box.scatter(x, y, z, c=y, cmap="viridis_r", s=90, edgecolors="k", linewidths=0.3)
    box.set(title=f"{len(places)} atoms", xticks=[], yticks=[], zticks=[])
    counts, edges = np.histogram(distances, bins=150, range=(0.8, length / 2))
    shells = 4 / 3 * np.pi * np.diff(edges**3) * DENSITY * len(places) / 2 * samples
    left.plot((edges[1:] + edges[:-1]) / 2, counts / shells)
    left.axhline(1, color="0.6", lw=0.8)
    left.set(xlabel="distance, in diameters", ylabel="density over the mean", title="Radial distribution")
    time = STEP * np.arange(len(found))
    right.plot(time, found[:, 1], lw=0.6, color="C0")
    right.axhline(found[:, 1].mean(), color="C3", label=f"mean {found[:, 1].mean():.2f}")
    right.set(xlabel="time, in units of the potential", title="Pressure")
    right.legend()
    figure.savefig(path, dpi=120)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="fewer atoms and steps")
    parser.add_argument("--output", default="lennard_jones.png", help="where the plot goes")
    options = parser.parse_args()
    cells, steps, settle = (3, 2000, 500) if options.small else (4, 4000, 1000)
    corners = np.indices((cells,) * 3).reshape(3, -1).T
    places = (corners[:, None] + FACE_CENTERED).reshape(-1, 3) / cells
    n, length = len(places), (len(places) / DENSITY) ** (1 / 3)
    pairs = np.triu_indices(n, 1)
    print(f"{n} atoms, {len(pairs[0])} pairs; {steps} steps, {settle} to melt the crystal", flush=True)
    check(places + np.random.default_rng(2).normal(0, 0.01, places.shape), length, *pairs)
    places, found, distances = simulate(places, length, pairs, steps, settle)
    drift = np.mean([np.ptp(found[k : k + 50, 2]) for k in range(0, len(found), 50)])
    error = np.std([part.mean(axis=0) for part in np.array_split(found, 10)], axis=0, ddof=1) / np.sqrt(10)
    print(f"energy an atom     {found[:, 0].mean():7.3f} +- {error[0]:.3f} (benchmark -5.512)")
    print(f"pressure           {found[:, 1].mean():7.3f} +- {error[1]:.3f} (benchmark 0.007)")
    print(f"total energy an atom moves by {drift:.1e} in 50 steps")
    if find_spec("matplotlib"):
        plot(options.output, places, found, distances, length, len(found) // 20)
        print(f"wrote {options.output}")


if __name__ == "__main__":
    main()
