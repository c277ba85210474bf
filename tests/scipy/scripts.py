"""Objectives as scientists write them: a number of a vector of parameters, in NumPy's and SciPy's words.

Each is a function of a namespace (`np`, and SciPy's modules) and of the vector, and so runs on Tensors, on
plain numbers and, where another library has what it calls, there. Data are drawn once, from the model.
"""

from typing import Any, NamedTuple

import numpy as np
import scipy.sparse


class Script(NamedTuple):
    """An objective, where it is differentiated, and what it is in HIPS autograd: itself, another, or none."""

    objective: Any
    start: Any
    hips: Any


SCRIPTS: dict[str, Script] = {}
random = np.random.default_rng(0)


def script(start, hips: Any = True):
    def register(objective):
        known = objective if hips is True else hips
        SCRIPTS[objective.__name__] = Script(objective, np.array(start, float), known)
        return objective

    return register


# ---------------------------------------------------------------- regression

X = random.normal(size=(300, 5))
COUNTS = random.poisson(np.exp(X @ [0.3, -0.2, 0.1, 0.0, 0.4]))
CLASSES = random.integers(0, 3, 300)
WAITING, OBSERVED = random.weibull(1.5, 300) + 0.01, random.random(300) < 0.7
SHARES = random.beta(2.0, 3.0, 300)
NOISY = X @ [1.0, 2.0, 0.0, -1.0, 0.5] + random.standard_t(3, 300)


@script([0.1, 0.2, -0.1, 0.05, 0.3])
def poisson_regression(m, b):
    eta = m.np.dot(X, b)
    return m.np.sum(m.np.exp(eta) - COUNTS * eta + m.special.gammaln(COUNTS + 1.0))


@script([0.1, 0.2, -0.1, 0.05, 0.3, 0.7])
def negative_binomial_regression(m, p):
    mean, r = m.np.exp(m.np.dot(X, p[:5])), m.np.exp(p[5])
    chance = m.special.gammaln(COUNTS + r) - m.special.gammaln(r) - m.special.gammaln(COUNTS + 1.0)
    return -m.np.sum(chance + r * m.np.log(r / (r + mean)) + COUNTS * m.np.log(mean / (r + mean)))


@script(0.1 * random.normal(size=15))
def multinomial_regression(m, p):
    scores = m.np.dot(X, m.np.reshape(p, (5, 3)))
    return m.np.sum(m.special.logsumexp(scores, axis=1) - scores[np.arange(300), CLASSES])


@script([0.5, 1.0, 0.3, -0.5, 0.2, 0.4, 1.2])
def robust_regression(m, p):
    scale, df = m.np.exp(p[5]), 1.0 + m.np.exp(p[6])
    return -m.np.sum(m.stats.t.logpdf(NOISY, df, m.np.dot(X, p[:5]), scale))


@script([0.3, -0.1, 0.2, 0.1, 0.0, 1.5])
def beta_regression(m, p):
    mean, size = m.special.expit(m.np.dot(X, p[:5])), m.np.exp(p[5])
    return -m.np.sum(m.stats.beta.logpdf(SHARES, mean * size, (1 - mean) * size))


@script([0.1, 0.2, -0.1, 0.05, 0.3])
def probit_regression(m, b):
    signs = np.where(COUNTS > 1, 1.0, -1.0)
    return -m.np.sum(m.stats.norm.logcdf(signs * m.np.dot(X, b)))


@script([0.2, 0.1, -0.1, 0.0, 0.2, 0.3], hips=None)
def weibull_survival(m, p):
    shape, scale = m.np.exp(p[5]), m.np.exp(m.np.dot(X, p[:5]))
    died = m.stats.weibull_min.logpdf(WAITING, shape, 0.0, scale)
    lives = m.stats.weibull_min.logsf(WAITING, shape, 0.0, scale)
    return -m.np.sum(m.np.where(OBSERVED, died, lives))


# ---------------------------------------------------------------- mixtures, chains, series

POINTS = np.concatenate([random.normal(-2, 1, (150, 2)), random.normal(2, 0.7, (150, 2))])
SERIES = np.cumsum(random.normal(size=120)) + random.normal(size=120)
SYMBOLS = random.integers(0, 4, 80)


@script(0.5 * random.normal(size=12))
def gaussian_mixture(m, p):
    weights, means, scales = p[:2], m.np.reshape(p[2:6], (2, 2)), m.np.exp(p[6:8])
    off = (POINTS[:, None, :] - means) / scales[:, None]
    each = weights - m.np.sum(off * off, axis=2) / 2 - 2 * m.np.log(scales)
    return -m.np.sum(m.special.logsumexp(each, axis=1) - m.special.logsumexp(weights))


@script([0.1, 0.3])
def local_level_model(m, p):
    """Kalman's filter of a random walk seen with noise."""
    q, r = m.np.exp(p[0]), m.np.exp(p[1])
    level, variance, total = 0.0, 1e3, 0.0
    for y in SERIES:
        variance = variance + q
        f, v = variance + r, y - level
        total = total + m.np.log(f) + v * v / f
        gain = variance / f
        level, variance = level + gain * v, variance * (1 - gain)
    return total / 2


@script(0.3 * random.normal(size=21))
def hidden_markov_model(m, p):
    moves, emits = m.np.reshape(p[:9], (3, 3)), m.np.reshape(p[9:], (3, 4))
    moves = moves - m.special.logsumexp(moves, axis=1, keepdims=True)
    emits = emits - m.special.logsumexp(emits, axis=1, keepdims=True)
    alpha = emits[:, SYMBOLS[0]]
    for s in SYMBOLS[1:]:
        alpha = m.special.logsumexp(alpha[:, None] + moves, axis=0) + emits[:, s]
    return -m.special.logsumexp(alpha)


@script([0.6, -0.2, 0.4], hips=None)
def autoregression_by_a_filter(m, p):
    """Innovations of an ARMA process by filtering what was seen."""
    a, b = m.np.concatenate(([1.0], p[2:])), m.np.concatenate(([1.0], -p[:2]))
    return m.np.sum(m.signal.lfilter(b, a, SERIES) ** 2)


# ---------------------------------------------------------------- processes, equations

PLACES = np.sort(random.uniform(0, 5, 60))
HEIGHTS = np.sin(PLACES) + 0.1 * random.normal(size=60)
SQUARES = (PLACES[:, None] - PLACES) ** 2


@script([0.1, 0.2, -2.0], hips=None)
def gaussian_process(m, p):
    k = m.np.exp(p[0]) * m.np.exp(-SQUARES * m.np.exp(p[1])) + m.np.exp(p[2]) * np.eye(60)
    factor = m.linalg.cho_factor(k, lower=True)
    half = m.np.sum(m.np.log(m.np.diagonal(factor[0])))
    return m.np.dot(HEIGHTS, m.linalg.cho_solve(factor, HEIGHTS)) / 2 + half


@script([0.1, 0.2, -2.0])
def gaussian_process_by_triangles(m, p):
    k = m.np.exp(p[0]) * m.np.exp(-SQUARES * m.np.exp(p[1])) + m.np.exp(p[2]) * np.eye(60)
    low = m.np.linalg.cholesky(k)
    white = m.linalg.solve_triangular(low, HEIGHTS, lower=True)
    return m.np.sum(white * white) / 2 + m.np.sum(m.np.log(low[np.arange(60), np.arange(60)]))


GRID = 40
LAPLACE = scipy.sparse.diags([1.0, -2.0, 1.0], [-1, 0, 1], (GRID, GRID), format="csr") * GRID**2
SEEN = np.sin(np.linspace(0, np.pi, GRID))


@script(0.1 * random.normal(size=GRID), hips=None)
def conduction_found_from_temperatures(m, p):
    """An inverse problem: -u'' + exp(p) u = 1, solved sparsely, and compared with what is seen."""
    rows, columns = LAPLACE.nonzero()
    on = (rows == columns).astype(float)
    values = -np.asarray(LAPLACE[rows, columns]).ravel() + on * m.np.exp(p)[rows]
    matrix = m.sparse.csc_array((values, (rows, columns)), (GRID, GRID))
    u = m.sparse.linalg.spsolve(matrix, np.ones(GRID))
    return m.np.sum((8 * u - SEEN) ** 2) + 1e-3 * m.np.sum(p * p)


@script(np.sin(np.linspace(0, 5, 12)), hips=None)
def spline_fit(m, p):
    spline = m.interpolate.CubicSpline(np.linspace(0, 5, 12), p)
    return m.np.sum((spline(PLACES) - HEIGHTS) ** 2)


TIMES = np.linspace(0, 5, 15)
HARES = 1 + 0.5 * np.cos(TIMES)


def prey_by_odeint(m, p):
    def flow(y, t, p):
        return m.np.array([p[0] * y[0] - p[1] * y[0] * y[1], -p[2] * y[1] + p[3] * y[0] * y[1]])

    found = m.integrate.odeint(flow, np.ones(2), TIMES, m.tuple((p,)), rtol=1e-8, atol=1e-8)
    return m.np.sum((found[:, 0] - HARES) ** 2)


@script([1.0, 0.8, 0.9, 1.1], hips=prey_by_odeint)
def predators_and_prey(m, p):
    def flow(t, y, a, b, c, d):
        return m.np.stack([a * y[0] - b * y[0] * y[1], -c * y[1] + d * y[0] * y[1]])

    within = {"rtol": 1e-8, "atol": 1e-8}
    found = m.integrate.solve_ivp(flow, (0.0, 5.0), [1.0, 1.0], t_eval=TIMES, args=tuple(p), **within)
    return m.np.sum((found.y[0] - HARES) ** 2)


BLUR = np.exp(-0.5 * (np.minimum(np.arange(128), 128 - np.arange(128)) / 3.0) ** 2)
BLURRED = np.fft.ifft(np.fft.fft(BLUR / BLUR.sum()) * np.fft.fft(np.sign(np.sin(np.arange(128) / 9)))).real


@script(0.1 * random.normal(size=128))
def deconvolution(m, p):
    seen = m.np.real(m.np.fft.ifft(np.fft.fft(BLUR / BLUR.sum()) * m.np.fft.fft(p)))
    return m.np.sum((seen - BLURRED) ** 2) + 1e-3 * m.np.sum(m.np.sqrt((p[1:] - p[:-1]) ** 2 + 1e-2))


NODES, WEIGHTS = np.polynomial.hermite.hermgauss(15)
GROUPS = random.binomial(10, 0.4, 40)


@script([-0.3, 0.1])
def random_effects_by_quadrature(m, p):
    """Binomial counts of groups, each with an effect of its own that is integrated out."""
    chance = m.special.expit(p[0] + m.np.exp(p[1]) * np.sqrt(2.0) * NODES)
    each = GROUPS[:, None] * m.np.log(chance) + (10 - GROUPS[:, None]) * m.np.log(1 - chance)
    return -m.np.sum(m.special.logsumexp(each + np.log(WEIGHTS), axis=1))


@script(0.3 * random.normal(size=6), hips=None)
def markov_process_in_time(m, p):
    """Transitions of three states seen at steps of 0.7, by the exponential of their rates."""
    rates = m.np.exp(p)
    zero = rates[0] * 0.0
    q = m.np.stack([zero, rates[0], rates[1], rates[2], zero, rates[3], rates[4], rates[5], zero])
    q = q.reshape((3, 3))
    q = q - m.np.diag(m.np.sum(q, axis=1))
    moves = m.linalg.expm(0.7 * q)
    return -m.np.sum(m.np.log(moves) * np.array([[20.0, 5, 3], [4, 30, 6], [2, 7, 25]]))


@script(random.normal(size=60), hips=None)
def charges_at_rest(m, p):
    """The energy of twenty charges on a sphere, by their distances."""
    x = m.np.reshape(p, (20, 3))
    x = x / m.np.sqrt(m.np.sum(x * x, axis=1, keepdims=True))
    return m.np.sum(1.0 / m.spatial.distance.pdist(x))


PICTURE = np.exp(-(np.add.outer((np.arange(24) - 10) ** 2, (np.arange(24) - 13) ** 2)) / 30.0)
MOVED = np.exp(-(np.add.outer((np.arange(24) - 11.3) ** 2, (np.arange(24) - 12.1) ** 2)) / 30.0)
PLACE = np.stack(np.meshgrid(np.arange(24.0), np.arange(24.0), indexing="ij"))


@script([0.1, -0.2, 0.01], hips=None)
def image_registration(m, p):
    """A shift and a scale that bring one picture to another."""
    shift = m.np.reshape(p[:2], (2, 1, 1))
    found = m.ndimage.map_coordinates(PICTURE, PLACE * (1 + p[2]) + shift, order=3, mode="nearest")
    return m.np.sum((found - MOVED) ** 2)
