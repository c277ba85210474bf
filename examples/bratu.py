"""Heat that feeds itself: Bratu's equation with 100,000 unknowns, solved by Newton with a sparse Jacobian.

In a steady state the temperature u of a reacting body obeys -(u_xx + u_yy) = lam exp(u) in a square, u = 0 at
its boundary. Up to lam = 6.8081 there are two solutions, a cool and a hot one, beyond it there is none. Both
come by one parameter, the temperature in the middle, and lam is an unknown like the others. The equations are
plain NumPy; tapegrad finds out which unknowns each of them has, and gives the Jacobian as a SciPy matrix from
a few products with it, whatever the size of the grid.
"""

import argparse
import time
from importlib.util import find_spec

import numpy as np
from scipy.sparse import csc_array
from scipy.sparse.linalg import spsolve
from tqdm import tqdm

import tapegrad as tg


def equations(z, middle, n):
    """What is zero for u at n x n points, and lam last; times the square of the points' distance."""
    u, lam = z[:-1].reshape(n, n), z[-1]
    padded = np.pad(u, 1)
    around = padded[:-2, 1:-1] + padded[2:, 1:-1] + padded[1:-1, :-2] + padded[1:-1, 2:]
    balance = 4.0 * u - around - lam / (n + 1) ** 2 * np.exp(u)
    return np.append(balance, u[n // 2, n // 2] - middle)


jacobian = tg.func.sparse_jacobian(equations, on_change="replan")  # grids of two sizes


def solve(z, middle, n):
    """Newton's method; the solution and the number of steps."""
    for step in range(1, 30):
        change = spsolve(csc_array(jacobian(z, middle, n)), -equations(z, middle, n))
        z = z + change
        if np.abs(change).max() < 1e-10:
            return z, step
    raise RuntimeError(f"no solution with {middle} in the middle")


def check(z, middle, n):
    """The Jacobian along a direction beside a central difference."""
    direction, step = np.random.default_rng(0).normal(size=z.size), 1e-6
    ahead, behind = (equations(z + h * direction, middle, n) for h in (step, -step))
    off = np.abs(jacobian(z, middle, n) @ direction - (ahead - behind) / (2 * step)).max()
    print(f"Jacobian beside a central difference: off by {off:.1e}")


def draw(branch, z, n, path):
    """The two solutions for each lam, and the one at the fold."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    lam, middle = np.array(branch).T
    left.plot(lam, middle, ".-")
    left.axvline(lam.max(), color="0.7", lw=1)
    left.set(xlabel="lam", ylabel="temperature in the middle", title=f"no solution beyond {lam.max():.4f}")
    drawn = right.imshow(z[:-1].reshape(n, n), extent=(0, 1, 0, 1), cmap="inferno", origin="lower")
    figure.colorbar(drawn, label="temperature")
    right.set(title=f"{n * n:,} unknowns, lam = {z[-1]:.4f}", xticks=[0, 1], yticks=[0, 1])
    figure.savefig(path, dpi=110)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="coarse grids")
    parser.add_argument("--output", default="bratu.png")
    options = parser.parse_args()
    coarse, fine = (15, 41) if options.small else (41, 317)
    z, branch = np.zeros(coarse**2 + 1), []
    print(f"the branch of solutions on {coarse} x {coarse} points, the fold on {fine} x {fine}", flush=True)
    check(z + 0.5, 0.0, coarse)
    for middle in tqdm(np.linspace(0.1, 5.0, 50), disable=None, desc="branch"):
        z, _ = solve(z, middle, coarse)
        branch.append((z[-1], middle))
    z = np.append(np.zeros(fine**2), 6.0)
    begin = time.perf_counter()
    found = jacobian(z, 0.0, fine)
    first = time.perf_counter() - begin
    begin = time.perf_counter()
    jacobian(z, 0.0, fine)
    again = time.perf_counter() - begin
    print(f"{z.size:,} unknowns, {found.nnz:,} derivatives: {jacobian.lanes} products, {1e3 * again:.1f} ms")
    print(f"the first time, with the search for the pattern, {first:.2f} s")
    begin, total = time.perf_counter(), 0
    for middle in (0.7, 1.39):
        z, steps = solve(z, middle, fine)
        total += steps
    took = time.perf_counter() - begin
    print(f"at the fold lam = {z[-1]:.4f}, {total} steps of Newton's method in {took:.1f} s")
    if find_spec("matplotlib"):
        draw(branch, z, fine, options.output)
        print(f"wrote {options.output}")


if __name__ == "__main__":
    main()
