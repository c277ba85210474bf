"""Scalar programs as users write them for Numba, which several benchmarks time."""

from __future__ import annotations

import math

import numpy as np
from numba import njit


@njit
def lotka_volterra(p, n):
    """Fourth-order Runge-Kutta."""
    a, b, c, d, x, y = p[0], p[1], p[2], p[3], p[4], p[5]
    h = 1e-3
    for _ in range(n):
        kx = a * x - b * x * y
        ky = d * x * y - c * y
        xm = x + 0.5 * h * kx
        ym = y + 0.5 * h * ky
        lx = a * xm - b * xm * ym
        ly = d * xm * ym - c * ym
        xn = x + 0.5 * h * lx
        yn = y + 0.5 * h * ly
        mx = a * xn - b * xn * yn
        my = d * xn * yn - c * yn
        xe = x + h * mx
        ye = y + h * my
        nx = a * xe - b * xe * ye
        ny = d * xe * ye - c * ye
        x = x + h / 6.0 * (kx + 2.0 * lx + 2.0 * mx + nx)
        y = y + h / 6.0 * (ky + 2.0 * ly + 2.0 * my + ny)
    return x * x + y


@njit
def particles(p, count, steps):
    """On a line between walls, with forces of short range: branches."""
    x = np.empty(count)
    v = np.empty(count)
    f = np.empty(count)
    for i in range(count):
        x[i] = p[i]
        v[i] = p[count + i]
    for _ in range(steps):
        for i in range(count):
            f[i] = 0.0
        for i in range(count):
            for j in range(i + 1, count):
                d = x[i] - x[j]
                r = math.sqrt(d * d + 1e-4)
                if r < 0.5:
                    g = (0.5 - r) * 10.0 * d / r
                    f[i] += g
                    f[j] -= g
                elif r < 1.0:
                    g = -(r - 0.5) * (1.0 - r) * d
                    f[i] += g
                    f[j] -= g
        for i in range(count):
            v[i] += 1e-3 * f[i]
            x[i] += 1e-3 * v[i]
            if x[i] < 0.0:
                x[i] = -x[i]
                v[i] = -v[i]
            elif x[i] > 4.0:
                x[i] = 8.0 - x[i]
                v[i] = -v[i]
    e = 0.0
    for i in range(count):
        e += x[i] * x[i] + v[i] * v[i]
    return e


@njit
def gauss_seidel(p, n, sweeps):
    """A nonlinear equation on a grid, relaxed in place."""
    u = np.zeros(n + 2)
    h2 = 1.0 / ((n + 1.0) * (n + 1.0))
    for _ in range(sweeps):
        for i in range(1, n + 1):
            u[i] = (u[i - 1] + u[i + 1] + h2 * p[i - 1]) / (2.0 + h2 * u[i] * u[i])
    r = 0.0
    for i in range(1, n + 1):
        r += u[i] * u[i]
    return r


@njit
def call_option(p, z, paths, steps):
    """Monte-Carlo paths of a price."""
    start, strike, rate, sigma, years = p[0], p[1], p[2], p[3], p[4]
    dt = years / steps
    width = sigma * math.sqrt(dt)
    drift = (rate - 0.5 * sigma * sigma) * dt
    total = 0.0
    for i in range(paths):
        s = start
        for k in range(steps):
            s *= math.exp(drift + width * z[i * steps + k])
        if s > strike:
            total += s - strike
    return math.exp(-rate * years) * total / paths


@njit
def planets(p, bodies, steps):
    """Bodies in space that attract each other."""
    x = p[: 3 * bodies].copy().reshape(bodies, 3)
    v = p[3 * bodies : 6 * bodies].copy().reshape(bodies, 3)
    for _ in range(steps):
        for i in range(bodies):
            for j in range(i):
                a = x[i, 0] - x[j, 0]
                b = x[i, 1] - x[j, 1]
                c = x[i, 2] - x[j, 2]
                r2 = a * a + b * b + c * c + 0.01
                w = 1e-3 / (r2 * math.sqrt(r2))
                v[i, 0] -= w * p[6 * bodies + j] * a
                v[i, 1] -= w * p[6 * bodies + j] * b
                v[i, 2] -= w * p[6 * bodies + j] * c
                v[j, 0] += w * p[6 * bodies + i] * a
                v[j, 1] += w * p[6 * bodies + i] * b
                v[j, 2] += w * p[6 * bodies + i] * c
        for i in range(bodies):
            for k in range(3):
                x[i, k] += 1e-3 * v[i, k]
    return (x * x).sum()


@njit
def volatility(p, returns):
    """The likelihood of a GARCH(1, 1) model."""
    mean, base, reaction, memory = p[0], p[1], p[2], p[3]
    variance = base / (1.0 - reaction - memory)
    total = 0.0
    for k in range(returns.size):
        shock = returns[k] - mean
        total += math.log(variance) + shock * shock / variance
        variance = base + reaction * shock * shock + memory * variance
    return 0.5 * total


@njit
def rosenbrock(x):
    s = 0.0
    for i in range(x.size - 1):
        s += 100.0 * (x[i + 1] - x[i] ** 2) ** 2 + (1.0 - x[i]) ** 2
    return s


def cases():
    random = np.random.default_rng(0)
    count, bodies = 32, 5
    line = np.concatenate([np.sort(random.uniform(0, 4, count)), random.normal(size=count)])
    space = np.concatenate([random.normal(size=6 * bodies), random.uniform(0.5, 1.5, bodies)])
    return {
        "lotka_volterra": (lotka_volterra, np.array([1.1, 0.4, 0.4, 0.1, 10.0, 5.0]), (20000,)),
        "particles": (particles, line, (count, 1000)),
        "gauss_seidel": (gauss_seidel, 50.0 + 0.1 * np.arange(1000), (1000, 500)),
        "call_option": (
            call_option,
            np.array([100.0, 105.0, 0.03, 0.2, 1.0]),
            (random.normal(size=20000 * 50), 20000, 50),
        ),
        "planets": (planets, space, (bodies, 3000)),
        "volatility": (volatility, np.array([0.1, 0.05, 0.1, 0.85]), (random.normal(size=200_000),)),
    }
