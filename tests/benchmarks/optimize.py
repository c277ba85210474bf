"""Solvers with derivatives found, beside SciPy's with derivatives by hand.

    python -m tests.benchmarks.optimize

Rosenbrock's function of 10,000 numbers is minimized from 0.9 everywhere, by trust-krylov with Hessian
products and by L-BFGS-B; SciPy is given its own `rosen_der` and `rosen_hess_prod`. The scene is of 8 cameras
that see 60 of 200 points each (GradBench's model, weights known): `least_squares` finds the sparse Jacobian
of 688 unknowns and 960 errors; SciPy is given a sparse one by hand, or the pattern alone, for differences.
Solutions are compared first, then each round solves with all in turn. Printed are best times, ours over each
of the others' as the median of the rounds' ratios and in brackets that of the best times.
"""

import os

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")

from time import thread_time

import numpy as np
import scipy.optimize as theirs
from scipy import sparse

import tapegrad.scipy.optimize as ours

from .gradbench import ba
from .rounds import difference, in_turns, ratios

ROUNDS = 5
TOLERANCE = {"found": 0.1, "by hand": 1e-4, "differences": 1e-2}  # LSMR is not exact: the ways part
N, CAMERAS, POINTS, SEEN = 10_000, 8, 200, 60


def rosen(x):
    return np.sum(100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2)


def minimizers(method, **products):
    start = np.full(N, 0.9)
    options = {"maxiter": 30}
    return {
        "found": lambda: ours.minimize(rosen, start, method=method, options=options),
        "by hand": lambda: theirs.minimize(
            theirs.rosen, start, jac=theirs.rosen_der, method=method, options=options, **products
        ),
    }


# ---------------------------------------------------------------- a scene


class Scene:
    """Cameras and points, what is seen, and where to begin."""

    def __init__(self, seed=0):
        random = np.random.default_rng(seed)
        (cameras, points, _), _ = ba.inputs(CAMERAS, POINTS, 1, seed)
        self.camera = np.repeat(np.arange(CAMERAS), SEEN)
        self.point = np.concatenate([random.permutation(POINTS)[:SEEN] for _ in range(CAMERAS)])
        self.weights = random.uniform(0.5, 1, self.camera.size)
        self.truth = np.concatenate([cameras.ravel(), points.ravel()])
        self.features = np.zeros((self.camera.size, 2))
        self.features = self.errors(self.truth).reshape(2, -1).T / self.weights[:, None]
        self.features += random.normal(scale=0.1, size=self.features.shape)
        self.start = self.truth * (1 + 0.01 * random.normal(size=self.truth.size))

    def errors(self, x):
        """The first errors of all observations, then the second ones."""
        cameras = x[: 11 * CAMERAS].reshape((CAMERAS, 11))[self.camera].T
        points = x[11 * CAMERAS :].reshape((POINTS, 3))[self.point].T
        return np.concatenate(ba.value(np, cameras, points, self.weights, self.features.T))

    def jacobian(self, x):
        """Their derivatives, by hand: of R(r) v by r it is -R [v] J, J the right Jacobian of rotations."""
        cameras = x[: 11 * CAMERAS].reshape(CAMERAS, 11)[self.camera]
        points = x[11 * CAMERAS :].reshape(POINTS, 3)[self.point]
        r, center, f, k = cameras[:, :3], cameras[:, 3:6], cameras[:, 6], cameras[:, 9:]
        v, w = points - center, self.weights
        angle = np.sqrt(np.sum(r * r, 1))[:, None, None]
        K, identity = crossing(r), np.eye(3)
        R = identity + np.sin(angle) / angle * K + (1 - np.cos(angle)) / angle**2 * (K @ K)
        right = identity - (1 - np.cos(angle)) / angle**2 * K + (angle - np.sin(angle)) / angle**3 * (K @ K)
        turned = (R @ v[:, :, None])[:, :, 0]
        p = turned[:, :2] / turned[:, 2:]
        by_turned = np.zeros((len(p), 2, 3))
        by_turned[:, 0, 0] = by_turned[:, 1, 1] = 1 / turned[:, 2]
        by_turned[:, :, 2] = -p / turned[:, 2:]
        square = np.sum(p * p, 1)
        scale = 1 + k[:, 0] * square + k[:, 1] * square**2
        by_p = scale[:, None, None] * np.eye(2)
        by_p = by_p + (2 * k[:, 0] + 4 * k[:, 1] * square)[:, None, None] * p[:, :, None] * p[:, None, :]
        by_turned = f[:, None, None] * by_p @ by_turned
        rows = np.zeros((len(p), 2, 14))
        rows[:, :, :3] = -by_turned @ R @ crossing(v) @ right
        rows[:, :, 3:6] = -by_turned @ R
        rows[:, :, 6] = scale[:, None] * p
        rows[:, 0, 7] = rows[:, 1, 8] = 1
        rows[:, :, 9], rows[:, :, 10] = (f * square)[:, None] * p, (f * square**2)[:, None] * p
        rows[:, :, 11:] = by_turned @ R
        rows *= w[:, None, None]
        columns = np.concatenate(
            [
                11 * self.camera[:, None] + np.arange(11),
                11 * CAMERAS + 3 * self.point[:, None] + np.arange(3),
            ],
            1,
        )
        m = 2 * len(p)
        numbers, places = np.concatenate([rows[:, 0], rows[:, 1]]).ravel(), np.tile(columns, (2, 1)).ravel()
        return sparse.csr_array((numbers, places, np.arange(0, 14 * m + 1, 14)), (m, x.size))


def crossing(v):
    """The matrices of cross products with vectors."""
    zero = np.zeros(len(v))
    x, y, z = v.T
    return np.stack([zero, -z, y, z, zero, -x, -y, x, zero], 1).reshape(-1, 3, 3)


def fits():
    scene = Scene()
    given = {"x_scale": "jac", "max_nfev": 20, "tr_solver": "lsmr"}
    pattern = scene.jacobian(scene.start) != 0
    J = ours.least_squares(scene.errors, scene.start, max_nfev=1, x_scale="jac").jac
    assert sparse.issparse(J), "688 unknowns, 14 numbers in a row"
    assert difference(J.toarray(), scene.jacobian(scene.start).toarray()) < 1e-12
    return {
        "found": lambda: ours.least_squares(scene.errors, scene.start, **given),
        "by hand": lambda: theirs.least_squares(scene.errors, scene.start, scene.jacobian, **given),
        "differences": lambda: theirs.least_squares(scene.errors, scene.start, jac_sparsity=pattern, **given),
    }


def compare(what, calls, value):
    results = {name: call() for name, call in calls.items()}
    mine = results["found"]
    for name, result in results.items():
        gap = abs(value(mine) - value(result)) / max(abs(value(result)), 1.0)
        assert gap < TOLERANCE[name], f"{what}: {value(mine)} found, {value(result)} {name}"
    times = {name: rows[:, 0] for name, rows in in_turns(calls, ROUNDS, clock=thread_time).items()}
    told = [f"{name} {1e3 * rows.min():.0f} ms ({results[name].nfev} points)" for name, rows in times.items()]
    pairs = {name: ratios(times["found"], rows) for name, rows in times.items() if name != "found"}
    told += [f"over {name} {pair[0]:.2f} ({pair[1]:.2f})" for name, pair in pairs.items()]
    print(f"{what}: {', '.join(told)}", flush=True)


def main():
    compare(
        f"Rosenbrock's function of {N} numbers, trust-krylov",
        minimizers("trust-krylov", hessp=theirs.rosen_hess_prod), lambda r: r.fun,
    )  # fmt: skip
    compare(f"Rosenbrock's function of {N} numbers, L-BFGS-B", minimizers("L-BFGS-B"), lambda r: r.fun)
    compare(f"bundle adjustment, {CAMERAS} cameras, {POINTS} points", fits(), lambda r: r.cost)


if __name__ == "__main__":
    main()
