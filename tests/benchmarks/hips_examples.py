"""Thirteen of HIPS autograd's example programs, there and rewritten: the same results, times in turns.

    python -m tests.benchmarks.hips_examples

Each program is named after the file that it shortens, and is written once, of a namespace `m` with what the
two call by other names: `m.np`, SciPy's modules, and HIPS autograd's `grad`, `value_and_grad`,
`elementwise_grad` and `hessian_vector_product`, which here are what `docs/coming_from/hips_autograd.md` says.
Two for which the page says more, a rule of one's own and a fixed point, are written twice. Programs return
what they find, which is compared before anything is timed. Printed are best times in milliseconds of the one
thread, and ours over HIPS autograd's.
"""

import os

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")

from itertools import pairwise
from time import thread_time
from types import SimpleNamespace

import autograd
import autograd.extend
import autograd.misc.fixed_points
import autograd.numpy
import autograd.scipy.special
import autograd.scipy.stats
import numpy as np
import scipy.optimize

import tapegrad as tg
import tapegrad.scipy as ts

from .rounds import difference, in_turns, ratios, verdict

ROUNDS, BAR, SAME = 9, 1.0, 1e-6  # some go through a solver, whose path differs by the last bit
OURS = SimpleNamespace(
    np=np, special=ts.special, stats=ts.stats, grad=tg.func.grad, value_and_grad=tg.func.value_and_grad,
    elementwise_grad=tg.func.derivative, hessian_vector_product=tg.func.hvp,
)  # fmt: skip
HIPS = SimpleNamespace(
    np=autograd.numpy, special=autograd.scipy.special, stats=autograd.scipy.stats, grad=autograd.grad,
    value_and_grad=autograd.value_and_grad, elementwise_grad=autograd.elementwise_grad,
    hessian_vector_product=autograd.hessian_vector_product,
)  # fmt: skip


def adam(gradient, x, steps, step_size=0.1, b1=0.9, b2=0.999):
    """The few lines that the page speaks of, for parameters in one array."""
    m = v = np.zeros_like(x)
    for k in range(steps):
        g = gradient(x, k)
        m, v = (1 - b1) * g + b1 * m, (1 - b2) * g**2 + b2 * v
        x = x - step_size * (m / (1 - b1 ** (k + 1))) / (np.sqrt(v / (1 - b2 ** (k + 1))) + 1e-8)
    return x


# ---------------------------------------------------------------- the shortest

POINTS = np.array([[0.52, 1.12, 0.77], [0.88, -1.08, 0.15], [0.52, 0.06, -1.30], [0.74, -2.49, 1.39]])
TARGETS = np.array([True, True, False, True])


def logistic_regression(m):
    def training_loss(weights):
        preds = 0.5 * (m.np.tanh(m.np.dot(POINTS, weights)) + 1)
        return -m.np.sum(m.np.log(preds * TARGETS + (1 - preds) * (1 - TARGETS)))

    gradient, weights = m.grad(training_loss), np.zeros(3)
    for _ in range(100):
        weights = weights - gradient(weights) * 0.01
    return weights


def tanh(m):
    def f(x):
        return (1.0 - m.np.exp(-2 * x)) / (1.0 + m.np.exp(-(2 * x)))

    x, found = np.linspace(-7, 7, 200), []
    for _ in range(5):
        found.append(f(x))
        f = m.elementwise_grad(f)
    return np.array(found)


def sinusoid(m):
    def series(x):
        term = total = x
        for i in range(1000):
            term = -term * x**2 / ((2 * i + 3) * (2 * i + 2))
            total = total + term
            if m.np.abs(term) < 0.2:
                break
        return total

    slope = m.grad(series)
    bend = m.grad(slope)
    return np.array([(series(x), slope(x), bend(x)) for x in np.linspace(-10, 10, 20)])


def rosenbrock(m):
    f = m.value_and_grad(lambda x: 100 * (x[1] - x[0] ** 2) ** 2 + (1 - x[0]) ** 2)
    return scipy.optimize.minimize(f, np.array([0.0, 0.0]), jac=True, method="CG").x


# ---------------------------------------------------------------- mixtures, processes, chains

RNG = np.random.RandomState(0)
PINWHEEL = np.concatenate([RNG.randn(60, 2) * [0.3, 0.05] + [np.cos(k), np.sin(k)] for k in range(3)])
MIXTURE = [RNG.randn(5) * 0.1, RNG.randn(5, 2) * 0.1, np.zeros((5, 2, 2)) + np.eye(2)]


def gmm(m):
    def objective(params):
        log_proportions, means, roots = params
        lls = []
        for proportion, mean, root in zip(
            log_proportions - m.special.logsumexp(log_proportions), means, roots, strict=True
        ):
            cov = m.np.dot(root.T, root)
            lls.append(proportion + m.stats.multivariate_normal.logpdf(PINWHEEL, mean, cov))
        return -m.np.sum(m.special.logsumexp(m.np.vstack(lls), axis=0))

    def flat(x):
        return objective((x[:5], m.np.reshape(x[5:15], (5, 2)), m.np.reshape(x[15:], (5, 2, 2))))

    start = np.concatenate([part.ravel() for part in MIXTURE])
    return scipy.optimize.minimize(
        flat, start, jac=m.grad(flat), hessp=m.hessian_vector_product(flat), method="Newton-CG",
        options={"maxiter": 4},
    ).fun  # fmt: skip


INPUTS = ((np.concatenate([np.linspace(0, 3, 10), np.linspace(6, 8, 10)]) - 4.0) / 2.0)[:, None]
MEASURED = np.cos(2 * INPUTS[:, 0] + 4.0) / 2 + 0.05 * RNG.randn(20)


def gaussian_process(m):
    def objective(params):
        x = INPUTS / m.np.exp(params[3:])
        diffs = m.np.expand_dims(x, 1) - m.np.expand_dims(x, 0)
        cov = m.np.exp(params[2]) * m.np.exp(-0.5 * m.np.sum(diffs**2, axis=2))
        noise = m.np.exp(params[1]) + 0.0001
        mean = params[0] * m.np.ones(20)
        return -m.stats.multivariate_normal.logpdf(MEASURED, mean, cov + noise * m.np.eye(20))

    start = 0.1 * np.array([1.76, 0.4, 0.98, 2.24])
    return scipy.optimize.minimize(
        m.value_and_grad(objective), start, jac=True, method="CG", options={"maxiter": 10}
    ).fun


TEXT = "def the_quick_brown_fox(jumps, over):\n    return the_lazy_dog[over] + jumps\n".splitlines()
LINES = [np.array([ord(c) % 32 for c in line]) for line in TEXT]
CHAIN = [np.random.RandomState(1).dirichlet(np.ones(n), k) for n, k in ((8, 1), (8, 8), (32, 8))]


def hmm_em(m):
    def log_partition_function(params, data):
        if isinstance(data, list):
            return sum(log_partition_function(params, line) for line in data)
        log_pi, log_A, log_B = params
        log_alpha = log_pi
        for y in data:
            log_alpha = m.special.logsumexp(log_alpha[:, None] + log_A, axis=0) + log_B[:, y]
        return m.special.logsumexp(log_alpha)

    params = [CHAIN[0][0], CHAIN[1], CHAIN[2]]
    for _ in range(5):
        _, stats = m.value_and_grad(log_partition_function)([np.log(p) for p in params], LINES)
        params = [s / np.where((total := s.sum(-1, keepdims=True)) > 0.0, total, 1.0) for s in stats]
        params = [np.maximum(p, 1e-12) for p in params]
    return np.concatenate([np.ravel(p) for p in params])


def negative_binomial_maxlike(m):
    x = np.random.RandomState(0).negative_binomial(5, 0.5, 1000)

    def loglike(r, p):
        lgamma = m.special.gammaln
        return m.np.sum(
            lgamma(r + x) - lgamma(r) - lgamma(x + 1) + x * m.np.log(p) + r * m.np.log(1 - p)
        )

    p = lambda r: m.np.sum(x) / m.np.sum(r + x)
    slope = lambda r: m.grad(loglike)(r, p(r))
    r = scipy.optimize.newton(slope, 1.0, fprime=m.grad(slope), fprime2=m.grad(m.grad(slope)))
    return np.array([r, p(r)])


# ---------------------------------------------------------------- variational inference, networks


def black_box_svi(m):
    random = np.random.RandomState(0)

    def log_density(x):
        mu, log_sigma = x[:, 0], x[:, 1]
        return m.stats.norm.logpdf(log_sigma, 0, 1.35) + m.stats.norm.logpdf(mu, 0, m.np.exp(log_sigma))

    def objective(params, t):
        mean, log_std = params[:2], params[2:]
        samples = random.randn(2000, 2) * m.np.exp(log_std) + mean
        entropy = 1.0 + np.log(2 * np.pi) + m.np.sum(log_std)
        return -(entropy + m.np.mean(log_density(samples)))

    return adam(m.grad(objective), np.array([-1.0, -1.0, -5.0, -5.0]), 30)


SIZES = (1, 4, 4, 1)
WEIGHTS = 0.1 * RNG.randn(sum((a + 1) * b for a, b in pairwise(SIZES)))
WAVE = np.cos(2 * INPUTS + 4.0) / 2


def neural_net_regression(m):
    def predict(weights, inputs):
        for a, b in pairwise(SIZES):
            W, bias = m.np.reshape(weights[: a * b], (a, b)), weights[a * b : (a + 1) * b]
            outputs = m.np.dot(inputs, W) + bias
            inputs, weights = m.np.tanh(outputs), weights[(a + 1) * b :]
        return outputs

    def objective(weights, t):
        fit = m.np.sum(m.stats.norm.logpdf(predict(weights, INPUTS), WAVE, 0.1))
        return -fit - m.np.sum(m.stats.norm.logpdf(weights, 0, 10.0))

    return adam(m.grad(objective), WEIGHTS, 30, 0.01)


STATE, LETTERS = 16, 32
CODED = np.eye(LETTERS)[np.array([line[:30] for line in LINES])].swapaxes(0, 1)  # time, line, letter
GATES = ("change", "forget", "ingate", "outgate")
CELLS = {name: 0.1 * RNG.randn(LETTERS + STATE + 1, STATE) for name in GATES}
CELLS |= {"cells": 0.1 * RNG.randn(1, STATE), "hiddens": 0.1 * RNG.randn(1, STATE)}
CELLS["predict"] = 0.1 * RNG.randn(STATE + 1, LETTERS)


def lstm(m):
    def joined(weights, *args):
        return m.np.dot(m.np.hstack((*args, np.ones((args[0].shape[0], 1)))), weights)

    def sigmoid(x):
        return 0.5 * (m.np.tanh(x) + 1.0)

    def loss(params):
        hiddens, cells = (m.np.repeat(params[name], CODED.shape[1], axis=0) for name in ("hiddens", "cells"))
        total = 0.0
        for letter in CODED:
            output = joined(params["predict"], hiddens)
            output = output - m.special.logsumexp(output, axis=1, keepdims=True)
            total = total + m.np.sum(output * letter)
            change, *gates = (joined(params[name], letter, hiddens) for name in GATES)
            forget, ingate, outgate = map(sigmoid, gates)
            cells = cells * forget + ingate * m.np.tanh(change)
            hiddens = outgate * m.np.tanh(cells)
        return -total / CODED[..., 0].size

    gradient = m.grad(loss)(CELLS)
    return np.concatenate([gradient[name].ravel() for name in CELLS])


# ---------------------------------------------------------------- written twice

Y = RNG.randn(1000)


@autograd.extend.primitive
def hips_logsumexp(x):
    return np.max(x) + np.log(np.sum(np.exp(x - np.max(x))))


autograd.extend.defvjp(
    hips_logsumexp,
    lambda ans, x: lambda g: autograd.numpy.full(x.shape, g) * autograd.numpy.exp(x - ans),
)


@tg.func.custom_vjp
def logsumexp(x):
    return np.max(x) + np.log(np.sum(np.exp(x - np.max(x))))


@logsumexp.def_vjp
def _(out, args, ct):
    return ct * np.exp(args[0] - out)


def define_gradient(m):
    return m.grad(lambda y: (logsumexp if m is OURS else hips_logsumexp)(y**2))(Y)


def fixed_points(m):
    step = lambda x, a: x - 0.05 * (x**2 - a)
    if m is OURS:

        def solve(a):
            x, before = 10.0, np.inf
            while abs(x - before) > 1e-9:
                x, before = step(x, a), x
            return x

        root = tg.func.fixed_point(step, solve)
    else:

        def root(a):
            of = lambda a: lambda x: step(x, a)
            return autograd.misc.fixed_points.fixed_point(of, a, 10.0, lambda x, y: np.abs(x - y), 1e-9)

    return np.array([root(2.0), m.grad(root)(2.0), m.grad(m.grad(root))(2.0)])


PROGRAMS = (
    logistic_regression, tanh, sinusoid, rosenbrock, gmm, gaussian_process, hmm_em, negative_binomial_maxlike,
    black_box_svi, neural_net_regression, lstm, define_gradient, fixed_points,
)  # fmt: skip


def main():
    print(f"{'ms':32s}{'ours':>10s}{'HIPS':>10s}")
    for program in PROGRAMS:
        found = difference(program(OURS), program(HIPS))
        assert found <= SAME, f"{program.__name__}: {found:.1e} from HIPS autograd's"
        calls = {"ours": lambda p=program: p(OURS), "HIPS": lambda p=program: p(HIPS)}
        best = in_turns(calls, ROUNDS, clock=thread_time)
        pair = ratios(best["ours"][:, 0], best["HIPS"][:, 0])
        shown = "".join(f"{1e3 * rows[:, 0].min():10.2f}" for rows in best.values())
        print(f"{program.__name__:32s}{shown}   {pair[0]:.2f} ({pair[1]:.2f})"
              f"   {verdict(pair, BAR, most=True)}", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
