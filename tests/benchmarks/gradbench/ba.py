"""Bundle adjustment: where cameras see points, and the sparse Jacobian (GradBench's ``ba``, once ADBench's).

Camera c = [r (3), C (3), f, u (2), k (2)] sees point X, with weight w, at feature e in error by

    w (f (1 + k_1 |p|^2 + k_2 |p|^4) p + u - e),  p = (X'_0, X'_1) / X'_2,  X' = R(r) (X - C),

where R(r) turns by |r| around r (Rodrigues). Observation i of P is of camera i mod N and point i mod M. The
Jacobian has two rows for each, and columns for the 11 N, 3 M and P numbers of cameras, points and weights: 15
numbers in a row, asked for in the order of the ``data`` of `scipy.sparse.csr_array`. GradBench adds rows for
the penalties 1 - w^2, of one number each; they are left out. It repeats one camera, one point and so on; here
they differ.

A tool differentiates by each observation's own camera and point, so that the gradients of the sums of all
first and of all second errors are the Jacobian; taking them out of the arrays is timed too.
"""

import math

import numpy as np
from scipy.sparse import csr_array

import tapegrad as tg

from .problem import Problem

CAMERA = np.array([0.1, -0.2, 0.15, 0.3, -0.4, -3.0, 400.0, 2.0, -1.0, 1e-2, -1e-3])
POINT = np.array([0.5, -0.3, 2.0])


def inputs(N, M, P, seed):
    random = np.random.default_rng(seed)
    cameras = CAMERA * (1 + 0.1 * random.uniform(-1, 1, (N, 11)))
    points = POINT * (1 + 0.1 * random.uniform(-1, 1, (M, 3)))
    weights, features = random.uniform(0.5, 1, P), random.normal(size=(P, 2))
    return (cameras, points, weights), (features, np.arange(P) % N, np.arange(P) % M)


def spread(variables, data):
    """Cameras, points and weights by observation, which is the last axis."""
    (cameras, points, weights), (features, camera, point) = variables, data
    return (cameras.T.take(camera, 1), points.T.take(point, 1), weights), (features.T,)


def cross(m, a, b):
    return m.stack([a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]])


def value(m, camera, point, weight, feature):
    r, center, f, u, k = camera[:3], camera[3:6], camera[6], camera[7:9], camera[9:]
    x = point - center
    angle = m.sqrt(m.sum(r * r, 0))
    axis, cos = r / angle, m.cos(angle)
    x = x * cos + cross(m, axis, x) * m.sin(angle) + axis * (m.sum(axis * x, 0) * (1 - cos))
    p = x[:2] / x[2]
    square = m.sum(p * p, 0)
    error = weight * (f * (1 + k[0] * square + k[1] * square * square) * p + u - feature)
    return error[0], error[1]


@tg.njit
def projected(c, X, w, e):
    """Both errors of an observation."""
    x, y, z = X[0] - c[3], X[1] - c[4], X[2] - c[5]
    angle = math.sqrt(c[0] * c[0] + c[1] * c[1] + c[2] * c[2])
    cos, sin = math.cos(angle), math.sin(angle)
    a, b, d = c[0] / angle, c[1] / angle, c[2] / angle
    dot = (a * x + b * y + d * z) * (1 - cos)
    px = x * cos + (b * z - d * y) * sin + a * dot
    py = y * cos + (d * x - a * z) * sin + b * dot
    pz = z * cos + (a * y - b * x) * sin + d * dot
    px, py = px / pz, py / pz
    square = px * px + py * py
    scale = c[6] * (1 + c[9] * square + c[10] * square * square)
    return w * (scale * px + c[7] - e[0]), w * (scale * py + c[8] - e[1])


@tg.njit
def compiled(camera, point, weight, feature):
    first, second = np.empty(weight.size), np.empty(weight.size)
    for i in range(weight.size):
        first[i], second[i] = projected(camera[:, i], point[:, i], weight[i], feature[:, i])
    return first, second


def joined(gradients):
    """The numbers of the sparse Jacobian, row by row."""
    rows = np.empty((gradients[0][2].size, 2, 15))
    for k, (camera, point, weight) in enumerate(gradients):
        rows[:, k, :11], rows[:, k, 11:14], rows[:, k, 14] = camera.T, point.T, weight
    return (rows.ravel(),)


def along(derivative, direction, data):
    """The errors' derivatives along a direction: the sparse Jacobian times it."""
    (numbers,), (cameras, points, weights), (_, camera, point) = derivative, direction, data
    P, behind = weights.size, cameras.size
    columns = [
        11 * camera[:, None] + np.arange(11),
        behind + 3 * point[:, None] + np.arange(3),
        behind + points.size + np.arange(P)[:, None],
    ]
    columns = np.repeat(np.concatenate(columns, 1), 2, 0).ravel()
    shape = (2 * P, behind + points.size + P)
    matrix = csr_array((numbers, columns, np.arange(0, 30 * P + 1, 15)), shape)
    return (matrix @ np.concatenate([d.ravel() for d in direction])).reshape(P, 2).T


PROBLEM = Problem(
    sizes={
        "tiny": (2, 3, 7), "S": (49, 7_776, 31_843), "M": (93, 61_203, 287_451),
        "L": (356, 226_730, 1_255_268),
    },
    inputs=inputs, value=value, compiled=compiled, spread=spread, joined=joined, along=along,
)  # fmt: skip
