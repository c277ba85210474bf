"""The likelihood of a mixture of Gaussians with a Wishart prior (GradBench's ``gmm``, once ADBench's).

Of N points x_i in D dimensions, given K weights alpha_k, means mu_k and inverse roots of covariances Q_k,
lower triangular with exp(q_k) on the diagonal and l_k below it, column by column. With

    beta_ik = alpha_k - 1/2 |Q_k (x_i - mu_k)|^2 + sum_j q_kj

and lse the logarithm of a sum of exponentials over k,

    F = -N (D/2 log 2 pi + lse(alpha)) + sum_i lse(beta_i)
        + K (n D log(gamma / sqrt 2) - logGamma_D(n / 2)) - gamma^2 / 2 sum_k |Q_k|^2 + m sum q,

where n = D + m + 1, gamma = 1 and m = 0. The points are normal.
"""

import math

import numpy as np
from scipy.special import multigammaln

import tapegrad as tg

from .problem import Problem

GAMMA, M = 1.0, 0


def inputs(N, D, K, seed):
    random = np.random.default_rng(seed)
    x = random.normal(size=(N, D))
    alpha, mu, q = random.normal(size=K), random.uniform(size=(K, D)), random.normal(size=(K, D))
    below = random.normal(size=(K, D * (D - 1) // 2))
    place = np.full((D, D), D + below.shape[1])  # of Q's elements in [exp(q), l, 0]
    place[np.arange(D), np.arange(D)] = np.arange(D)
    columns, rows = np.triu_indices(D, 1)
    place[rows, columns] = D + np.arange(below.shape[1])
    n = D + M + 1
    prior = K * (n * D * math.log(GAMMA / math.sqrt(2)) - float(multigammaln(n / 2, D)))
    return (alpha, mu, q, below), (x, place, prior - N * D / 2 * math.log(2 * math.pi))


def lse(m, a):
    top = m.amax(a, 0)
    return top + m.log(m.sum(m.exp(a - top), 0))


def value(m, alpha, mu, q, below, x, place, constant):
    Q = m.concatenate([m.exp(q), below, m.zeros((len(q), 1))], 1)[:, place]
    z = (x - mu[:, None]) @ m.swapaxes(Q, 1, 2)
    beta = (alpha + m.sum(q, 1))[:, None] - 0.5 * m.sum(z * z, 2)
    likelihood = m.sum(lse(m, beta)) - len(x) * lse(m, alpha)
    return constant + likelihood - GAMMA**2 / 2 * m.sum(Q * Q) + M * m.sum(q)


@tg.njit
def lse_of(a):
    top = np.max(a)
    return top + math.log(np.sum(np.exp(a - top)))


@tg.njit
def compiled(alpha, mu, q, below, x, place, constant):
    N, D, K = x.shape[0], x.shape[1], alpha.size
    diagonal, beta = np.exp(q), np.empty((K, N))
    for k in range(K):
        transposed, p = np.zeros((D, D)), 0
        for column in range(D):
            transposed[column, column] = diagonal[k, column]
            for row in range(column + 1, D):
                transposed[column, row] = below[k, p]
                p += 1
        z = (x - mu[k]) @ transposed
        beta[k] = alpha[k] + np.sum(q[k]) - 0.5 * np.sum(z * z, axis=1)
    top = beta[0]
    for k in range(1, K):
        top = np.maximum(top, beta[k])
    likelihood = np.sum(top + np.log(np.sum(np.exp(beta - top), axis=0))) - N * lse_of(alpha)
    squares = np.sum(diagonal * diagonal) + np.sum(below * below)
    return constant + likelihood - GAMMA**2 / 2 * squares + M * np.sum(q)


PROBLEM = Problem(
    sizes={"tiny": (6, 3, 2), "S": (1_000, 2, 5), "M": (1_000, 10, 25), "L": (1_000, 32, 50)},
    inputs=inputs, value=value, compiled=compiled,
)  # fmt: skip
