"""Bundle adjustment: the places of cameras and points from where the points are seen, with a sparse Jacobian.

A knot in space is photographed from all around; each camera sees the points on its side, to half a pixel.
From a poor guess all places are found at once by least squares. A residual depends on eight of the many
unknowns: `tapegrad.scipy.optimize.least_squares` finds out on which, in plain NumPy code, computes all
derivatives by a few products with the Jacobian, and gives SciPy a sparse matrix. The scene is made up, so
that there is a truth to compare.
"""

import argparse
import time
from importlib.util import find_spec

import numpy as np
from scipy.spatial.transform import Rotation
from tqdm import tqdm

import tapegrad as tg
import tapegrad.scipy as ts

FOCUS, PIXEL = 800.0, 0.5  # focal length, and the error of an observation, in pixels


def rotate(w, x):
    """Rotate vectors x by rotation vectors w, by Rodrigues' formula."""
    angle = np.sqrt(np.sum(w * w, axis=1, keepdims=True))
    axis = w / angle
    along = np.sum(axis * x, axis=1, keepdims=True) * axis
    return along + np.cos(angle) * (x - along) + np.sin(angle) * np.cross(axis, x)


def project(cameras, points):
    """Where cameras, a rotation vector and a shift each, see points, in pixels from the middle."""
    x = rotate(cameras[:, :3], points) + cameras[:, 3:]
    return FOCUS * x[:, :2] / x[:, 2:]


def residuals(z, n, camera, point, seen):
    """In standard deviations; z holds n cameras of six numbers, then points of three."""
    cameras, points = z[: 6 * n].reshape(n, 6), z[6 * n :].reshape(-1, 3)
    return ((project(cameras[camera], points[point]) - seen) / PIXEL).ravel()


def scene(n, m, rng):
    """Cameras around the vertical axis, points of a knot; which camera sees which point, and where."""
    turn = 2 * np.pi * np.arange(n) / n
    angles = np.stack([turn, np.full(n, np.pi / 2) + 0.25 * np.sin(2 * turn)], axis=1)
    cameras = np.hstack([Rotation.from_euler("zx", angles).as_rotvec(), np.tile([0.0, 0.0, 8.0], (n, 1))])
    s = 2 * np.pi * np.arange(m) / m
    ring = 2 + np.cos(3 * s)
    points = np.stack([ring * np.cos(2 * s), ring * np.sin(2 * s), np.sin(3 * s)], axis=1)
    points += rng.normal(0, 0.08, points.shape)
    depth = np.stack([(rotate(np.tile(c[:3], (m, 1)), points) + c[3:])[:, 2] for c in cameras])
    camera, point = np.nonzero(depth < 8.5)
    seen = project(cameras[camera], points[point])
    return cameras, points, camera, point, seen + rng.normal(0, PIXEL, seen.shape)


def aligned(points, truth):
    """Moved, turned and scaled onto the truth, which pictures alone cannot tell."""
    a, b = points - points.mean(axis=0), truth - truth.mean(axis=0)
    turn, _ = Rotation.align_vectors(b, a)
    a = turn.apply(a)
    return a * np.sum(a * b) / np.sum(a * a) + truth.mean(axis=0)


def describe(z, *data):
    jacobian, begin = tg.func.sparse_jacobian(residuals), time.perf_counter()
    found = jacobian(z, *data)
    print(f"{found.shape[0]:,} residuals, {found.shape[1]:,} unknowns, {found.nnz:,} derivatives: "
          f"{jacobian.lanes} products, {time.perf_counter() - begin:.2f} s with the search for the pattern",
          flush=True)  # fmt: skip


def plot(path, truth, guess, found):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 4.6), layout="constrained")
    for place, (points, title) in enumerate(((guess, "guess"), (found, "adjusted")), 1):
        axes = figure.add_subplot(1, 3, place, projection="3d")
        axes.scatter(*points.T, c=np.arange(len(points)), cmap="hsv", s=6)
        axes.set(title=title, xticks=[], yticks=[], zticks=[], box_aspect=(3, 3, 1.4), xlim=(-3, 3),
                 ylim=(-3, 3), zlim=(-1.4, 1.4))  # fmt: skip
    last = figure.add_subplot(1, 3, 3)
    for points, label in ((guess, "guess"), (found, "adjusted")):
        last.hist(np.log10(np.linalg.norm(points - truth, axis=1)), bins=40, range=(-4, 0.5), label=label)
    last.set(xlabel="distance from the truth", ylabel="points", xticks=range(-4, 1),
             xticklabels=[f"$10^{{{k}}}$" for k in range(-4, 1)], title="of a knot of radius 3")  # fmt: skip
    last.legend()
    figure.savefig(path, dpi=120)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="fewer cameras and points")
    parser.add_argument("--output", default="bundle.png", help="where the plot goes")
    options = parser.parse_args()
    n, m = (8, 100) if options.small else (24, 1000)
    rng = np.random.default_rng(0)
    cameras, points, *data = scene(n, m, rng)
    print(f"{n} cameras see {m} points {len(data[0]):,} times", flush=True)
    guess = points + rng.normal(0, 0.3, points.shape)
    z = np.concatenate([(cameras + rng.normal(0, 0.03, cameras.shape)).ravel(), guess.ravel()])
    describe(z, n, *data)
    with tqdm(desc="least squares", leave=False, disable=None) as bar:
        found = ts.optimize.least_squares(residuals, z, args=(n, *data), x_scale="jac", ftol=1e-6,
                                          callback=lambda _: bar.update())  # fmt: skip
    before = PIXEL * np.sqrt(np.mean(residuals(z, n, *data) ** 2))
    after = PIXEL * np.sqrt(2 * found.cost / (found.fun.size - found.x.size + 7))  # 7 move, turn, scale
    print(f"{before:.1f} pixels off before, {after:.3f} after {found.nfev} steps; errors were {PIXEL}")
    places = aligned(found.x[6 * n :].reshape(-1, 3), points)
    before, after = (np.sqrt(np.mean(np.sum((p - points) ** 2, axis=1))) for p in (guess, places))
    print(f"points are off by {after:.4f}, in the guess by {before:.2f}")
    if find_spec("matplotlib"):
        plot(options.output, points, guess, places)
        print(f"wrote {options.output}")


if __name__ == "__main__":
    main()
