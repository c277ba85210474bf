"""Programs as users write them for Numba, one language feature each: ``(x, n) -> number``."""

import math
import random
from typing import NamedTuple

import numpy as np
from numba import njit

X = np.linspace(0.13, 1.47, 8)
FEATURES = {}


def feature(function=None, *, n=8, x=X):
    """Note a program, compiled, with its second argument and a point."""
    if function is None:
        return lambda f: feature(f, n=n, x=x)
    FEATURES[function.__name__] = (njit(function), n, x)
    return FEATURES[function.__name__][0]


@njit
def larger(a, b):
    if a > b:
        return a * b
    return a + b


@njit
def doubled_and_squared(a):
    return a * 2.0, a * a


@njit
def fill(out, x):
    for i in range(len(x)):
        out[i] = out[i] + x[i] ** 2


@feature
def zeros(x, n):
    tmp = np.zeros(n)
    acc = 0.0
    for i in range(n):
        tmp[i] += x[i] * x[i]
        tmp[i] *= 0.5
        acc += larger(tmp[i], x[i])
    return acc


@feature
def empty_2d(x, n):
    t = np.empty((n, n), dtype=np.float64)
    for i in range(n):
        for j in range(n):
            t[i, j] = x[i] / x[j] + i
    s = 0.0
    for i in range(n):
        s += np.sum(t[i, :]) + t[i].sum()
    return s


@feature
def tuples(x, n):
    s = 0.0
    for i in range(n):
        u, v = doubled_and_squared(x[i])
        s += u * v
    a = (x[0], x[1])
    return s + a[0] * a[1]


@feature
def while_loop(x, n):
    y = x[0]
    k = 0
    while abs(y * y - x[1]) > 1e-12 and k < 50:
        y = 0.5 * (y + x[1] / y)
        k += 1
    return y


@feature
def min_max(x, n):
    m = x[0]
    for i in range(n):
        m = max(m, x[i])
        m = min(m, 1.2)
    return m * x[1] + max(x[0], x[1], x[2])


@feature(n=3)
def powers(x, n):
    return (
        x[0] ** 2 + x[1] ** 3 + x[2] ** -1 + x[3] ** 0.5 + x[0] ** x[1] + 2.0 ** x[2] + x[3] ** n
        + pow(x[4], 4) + np.power(x[5], 1.5) + x[6] ** 0 + math.pow(x[7], 2.5)
    )  # fmt: skip


@feature
def math_functions(x, n):
    return (
        math.exp(x[0]) + np.sin(x[1]) * math.cos(x[2]) + np.log(x[3]) + math.sqrt(x[4]) + np.tanh(x[5])
        + math.atan2(x[6], x[7]) + np.arctan2(x[0], x[1]) + math.hypot(x[0], x[1]) + math.erf(x[0])
        + abs(-x[3]) + math.erfc(x[2])
    )  # fmt: skip


@feature
def more_functions(x, n):
    s = np.tan(x[0]) + math.asin(x[0]) + np.arccos(x[1]) + math.atan(x[2]) + np.sinh(x[3]) + math.cosh(x[4])
    s += np.expm1(x[0]) + math.log1p(x[1]) + np.log2(x[2]) + math.log10(x[3]) + np.exp2(x[4]) + np.cbrt(x[5])
    s += np.arcsinh(x[6]) + np.arccosh(1.0 + x[7]) + np.arctanh(x[0]) + np.square(x[1]) + np.reciprocal(x[2])
    s += np.logaddexp(x[0], x[1]) + np.radians(x[2]) + math.degrees(x[3]) + np.maximum(x[4], x[5])
    return s + np.fmin(x[6], x[7]) + math.copysign(x[0], -1.0) + np.fabs(-x[1]) + np.hypot(x[0], 2.0)


@feature
def ternary(x, n):
    y = x[0] if x[1] > 0.25 else 1.0
    z = 1.0
    for i in range(n):
        z = z * x[i] if i % 2 else z + 1
    return y * z + float(x[2]) + int(x[3])


@feature
def like(x, n):
    y = np.zeros_like(x)
    z = x.copy()
    z[1:] = x[:-1]
    y[:] = 2.0
    z[0] = 5
    s = 0.0
    for v in z:
        s += v * v
    for i, v in enumerate(y):
        s += v * x[i]
    return s


@feature
def slice_argument(x, n):
    return larger(np.sum(x[2:5]), x[-1])


@feature
def lists(x, n):
    values = [x[0]]
    for i in range(n):
        values.append(values[-1] * x[i])
    return values[-1] + sum(values)


@feature
def list_of_floats(x, n):
    values = [0.0] * n
    for i in range(n):
        values[i] = x[i] * 2.0
    return values[3]


@feature
def array_expression(x, n):
    return np.sum(x * x + 2.0 * np.sin(x))


@feature
def dot(x, n):
    return np.dot(x, x) + x[1:].dot(x[:-1])


@feature
def mean(x, n):
    return np.mean(x) + np.max(x) * x.min()


@feature(n=7)
def recursion(x, n):
    if n == 0:
        return x[0] * 1.0
    return recursion(x, n - 1) * x[n]


@feature
def closure(x, n):
    def g(v):
        return v * v

    return g(x[0]) + g(x[1])


@feature
def array_of_numbers(x, n):
    a = np.array([x[0], x[1] * 2.0, 1.0])
    b = np.array([[x[2], x[3]], [1.0, x[4]]])
    c = np.array((x[5], 2.0))
    return a[0] * a[1] * a[2] + b[0, 1] * b[1, 1] * b[0, 0] + c[0] * c[1]


@feature
def raises(x, n):
    if x[0] < 0:
        raise ValueError("negative")
    return x[0] * x[1]


@feature
def full(x, n):
    a = np.full(n, 1.5)
    for i in range(n):
        a[i] = a[i] * x[i]
    return a[2]


@feature
def written_argument(x, n):
    out = np.ones(n)
    fill(out, x)
    return np.sum(out)


@feature
def slices_in_place(x, n):
    y = x.copy()
    y[1] += y[0]
    y[:3] *= 2.0
    y -= x
    return y[0] * y[1] + y[2]


@feature
def passive_integers(x, n):
    count = np.zeros(n, dtype=np.int64)
    s = 0.0
    for i in range(n):
        if x[i] > 0.5:
            count[i] += 1
        s += count[i] * x[i]
    return s


@feature
def prod(x, n):
    return x.prod() + np.prod(x[:3])


@feature
def norm(x, n):
    return np.linalg.norm(x)


@feature
def swap(x, n):
    a = x[0]
    b = x[1]
    for _ in range(5):
        a, b = b, a + b * 0.3
    return a * b


@feature
def constant(x, n):
    return 3.0 + 0.0 * x[0]


# ---------------------------------------------------------------- more of the language


@feature
def scalar_times_float_array(x, n):
    w = np.arange(4).astype(np.float64)
    v = x[0] * w + w / x[1] - (x[2] + 1.0)
    return (v * v).sum() + np.sum(np.exp(x[3] * w))


@feature
def matrix_product(x, n):
    a = x[:4].copy().reshape(2, 2)
    b = np.array([[1.0, 2.0], [3.0, 4.0]])
    c = a @ b @ a
    v = a @ x[4:6]
    return c[0, 1] * c[1, 0] + v @ v + (x[6:8] @ a)[0] + np.trace(c)


@feature
def solve(x, n):
    a = np.empty((3, 3))
    for i in range(3):
        for j in range(3):
            a[i, j] = x[i] * x[j + 3] + (3.0 if i == j else 0.1)
    v = np.linalg.solve(a, x[:3])
    w = np.linalg.inv(a)
    return v[0] * v[2] + w[1, 2] + np.linalg.det(a)


@feature
def remainders(x, n):
    return (7.0 * x[3]) % 2.0 + 5.5 % x[4] + (9.0 * x[5]) // 2.0 * x[0] + math.fmod(7.0 * x[6], 2.0)


@feature
def whole_numbers(x, n):
    return math.floor(3.7 * x[5]) * x[0] + np.ceil(x[6]) * x[1] + round(3.2) * x[2] + np.sign(-x[3]) * x[4]


@feature
def choices(x, n):
    a = np.where(x > 0.5, x * x, 2.0 * x)
    b = np.clip(x, 0.3, 1.1)
    return a.sum() + (b * x).sum() + np.where(x[0] > 0.1, x[1], 2.0)


@feature
def masks(x, n):
    chosen = x[x > 0.6]
    picked = x[np.array([1, 3, 3])]
    return chosen.sum() * picked[0] + np.sort(x)[::-1][0] + x[np.argmin(x)]


@feature
def along_axes(x, n):
    a = x.reshape(2, 4)
    return (a.sum(axis=0) ** 2).sum() + a.sum(axis=1)[0] * a.mean(axis=0)[1] + a.T[1, 0]


@feature
def scans(x, n):
    return (np.cumsum(x) ** 2).sum() + np.cumprod(x)[3] + np.var(x) + x.std() + np.diff(x)[2] * x[0]


@feature
def random_numbers(x, n):
    np.random.seed(7)  # noqa: NPY002
    random.seed(3)
    s = 0.0
    for i in range(n):
        s += x[i] * np.random.normal() + random.random() * x[0]  # noqa: NPY002
    return s


@feature
def comprehension(x, n):
    values = [v * v for v in x]
    return sum(values) + len(values)


@feature
def zipped(x, n):
    s = 0.0
    for a, b in zip(x[1:], x[:-1]):
        s += a * b
    return s


@feature
def concatenated(x, n):
    y = np.concatenate((x[:3] * 2.0, x[5:]))
    z = np.stack((x[:2], x[2:4]))
    return (y * y).sum() + z[1, 0] * z[0, 1]


@feature
def printing(x, n):
    if n < 0:
        print(n)
    return x[0] * x[1]


@feature
def passive_branch(x, n):
    best = 0
    for i in range(n):
        if np.isfinite(x[i]) and not math.isnan(x[i]) and x[i] > x[best]:
            best = i
    return x[best] ** 2 if bool(x[0]) else 0.0


@feature
def sizes_in_memory(x, n):
    return x.nbytes * x[0] + x.itemsize * x[2]


@feature
def gammas(x, n):
    return math.gamma(x[0] + 1.0) * math.lgamma(x[1]) + math.gamma(-x[2]) + math.lgamma(20.0 * x[3])


@feature
def results_in_place(x, n):
    out, square = np.empty(n), np.zeros((2, 2))
    np.multiply(x, x, out)
    np.sin(out, out)
    a = x[:4].copy().reshape(2, 2)
    np.dot(a, a, out=square)
    return out.sum() + square[0, 1] * square[1, 1]


@feature
def optional_argument(x, n):
    return scaled(x[0]) + scaled(x[1], 3.0) + scaled(x[2], factor=x[3])


@njit
def scaled(v, factor=2.0):
    return v * factor


class State(NamedTuple):
    """What is carried through steps."""

    place: float
    speed: float


@feature
def named_tuples(x, n):
    s, t = State(0.0, 1.0), State(x[0], 0.0)
    for k in range(n):
        s = State(s.place + x[k] * s.speed, s.speed * 0.9)
        if x[k] > 0.5:
            t = State(0.5, t.place * s.place)
    return s.place * s.speed + t.place * t.speed


@feature
def steps(x, n):
    y, z = x * 3.0, x.copy()
    y //= 0.4
    y[2:] //= x[0]
    z[1:5] //= x[3]
    s = np.sum(y * x) + np.sum((x[1:] // x[:-1] + np.floor_divide(2.0, x[1:])) * z[1:])
    s += np.sum(np.round(x, 1) * x) + np.sum(np.around(x) * x) + round(x[0], 2) * np.round(x[1]) * x[2]
    return s + np.sum((x * 5.0).astype(np.int64) * x)


@feature
def places(x, n):
    table, ends = np.array([0.2, 0.6, 0.6, 1.0]), np.array([[1.0, x[2]], [np.nan, 2.0]])
    found = 10 * np.searchsorted(table, x, side="right") + np.digitize(x, table[::-1], right=True)
    s = np.sum((found + 100 * np.digitize(x, table)) * x) + np.searchsorted(table, x[0]) * x[1]
    return s + np.sum(np.searchsorted(x, ends)) * x[2] + np.searchsorted(table, x[0] * np.nan, "right") * x[3]
