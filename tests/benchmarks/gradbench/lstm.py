"""The loss of a recurrent network with long short-term memory (GradBench's ``lstm``, once ADBench's).

Weights are diagonal: products are of elements. Of l layers with states h and c of b = 14 bits, a step takes
the input x E_0 through the layers, each

    f = s(x W_f + b_f),  i = s(h W_i + b_i),  o = s(x W_o + b_o),  g = tanh(h W_g + b_g),
    c = c f + i g,  h = o tanh c,

where s is the logistic function and h is the next layer's x; the last gives y = h E_1 + E_2. The loss is

    -1 / (b (T - 1)) sum_t x_(t+1) . (y_t - log(2 + sum exp y_t))

over a sequence of T. Variables are ``main`` (2 l, 4 b), weights and offsets of a layer in two rows, and
``extra`` (3, b), the E; the first states are data (2 l, b), h and c of a layer in two rows.
"""

import math
from itertools import pairwise

import numpy as np

import tapegrad as tg

from .problem import Problem

BITS = 14


def inputs(layers, length, seed):
    random = np.random.default_rng(seed)
    main, extra = random.uniform(-1, 1, (2 * layers, 4 * BITS)), random.uniform(-1, 1, (3, BITS))
    state = random.uniform(-1, 1, (2 * layers, BITS))
    return (main, extra), (state, random.integers(0, 2, (length, BITS)).astype(float))


def logistic_of(m):
    """The logistic function of a module, looked up once: where NumPy lacks a name that takes over 1 us."""
    return m.sigmoid if hasattr(m, "sigmoid") else lambda x: 1 / (1 + m.exp(-x))


def step(m, logistic, layers, extra, states, x):
    """The states afterwards, and the logarithm of what is predicted."""
    x, after = x * extra[0], []
    for (wf, wi, wo, wg, bf, bi, bo, bg), (h, c) in zip(layers, states, strict=True):
        f, i = logistic(x * wf + bf), logistic(h * wi + bi)
        o, g = logistic(x * wo + bo), m.tanh(h * wg + bg)
        c = c * f + i * g
        x = o * m.tanh(c)
        after.append((x, c))
    y = x * extra[1] + extra[2]
    return after, y - m.log(2 + m.sum(m.exp(y)))


def parts(main, extra, state):
    """Weights and offsets of each layer, the extra vectors, and the first states."""
    gates = [slice(k * BITS, (k + 1) * BITS) for k in range(4)]
    layers = [[main[row][gate] for row in (k, k + 1) for gate in gates] for k in range(0, len(main), 2)]
    return layers, [extra[k] for k in range(3)], [(state[k], state[k + 1]) for k in range(0, len(state), 2)]


def value(m, main, extra, state, sequence):
    layers, extra, states = parts(main, extra, state)
    logistic, total = logistic_of(m), 0.0
    for x, gold in pairwise(sequence):
        states, y = step(m, logistic, layers, extra, states, x)
        total = total + m.sum(gold * y)
    return -total / (BITS * (len(sequence) - 1))


def scanned(jax, main, extra, state, sequence):
    m, logistic = jax.numpy, logistic_of(jax.numpy)
    layers, extra, states = parts(main, extra, state)
    _, y = jax.lax.scan(lambda states, x: step(m, logistic, layers, extra, states, x), states, sequence[:-1])
    return -m.sum(sequence[1:] * y) / (BITS * (len(sequence) - 1))


@tg.njit
def sigmoid(x):
    return 1 / (1 + math.exp(-x))


@tg.njit
def compiled(main, extra, state, sequence):
    layers = main.shape[0] // 2
    h, c = np.empty((layers, BITS)), np.empty((layers, BITS))
    for k in range(layers):
        for j in range(BITS):
            h[k, j], c[k, j] = state[2 * k, j], state[2 * k + 1, j]
    x, y, total = np.empty(BITS), np.empty(BITS), 0.0
    for t in range(sequence.shape[0] - 1):
        for j in range(BITS):
            x[j] = sequence[t, j] * extra[0, j]
        for k in range(layers):
            w, b = main[2 * k], main[2 * k + 1]
            for j in range(BITS):
                f = sigmoid(x[j] * w[j] + b[j])
                i = sigmoid(h[k, j] * w[BITS + j] + b[BITS + j])
                o = sigmoid(x[j] * w[2 * BITS + j] + b[2 * BITS + j])
                g = math.tanh(h[k, j] * w[3 * BITS + j] + b[3 * BITS + j])
                c[k, j] = c[k, j] * f + i * g
                h[k, j] = o * math.tanh(c[k, j])
                x[j] = h[k, j]
        s = 2.0
        for j in range(BITS):
            y[j] = x[j] * extra[1, j] + extra[2, j]
            s += math.exp(y[j])
        s = math.log(s)
        for j in range(BITS):
            total += sequence[t + 1, j] * (y[j] - s)
    return -total / (BITS * (sequence.shape[0] - 1))


PROBLEM = Problem(
    sizes={"tiny": (2, 4), "S": (2, 1_024), "M": (4, 4_096), "L": (6, 8_192)},
    inputs=inputs, value=value, compiled=compiled, scanned=scanned,
)  # fmt: skip
