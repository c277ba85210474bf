"""What compiling takes: CPU seconds of new processes until a derivative is there.

    python -m tests.benchmarks.compile [--rows scalar array ...] [--runs 1]

Each row is processes of their own, for the value by `numba.njit` and for what is differentiated. Caches of the
user's functions are empty but where a second process is measured; what the library keeps of itself is there.
All results are compared with differences, of values or of gradients.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

SCALAR = """
def f(x, y):
    a = math.exp(x) * y
    b = math.sin(a) + x / y
    c = a * b - math.log(y)
    d = math.sqrt(c * c + 1.0)
    return d * a - b
args = 0.3, 1.7
"""
ARRAY = """
def f(x, a):
    return np.sum(np.sin(x) * a + np.exp(-x * x) / (1.0 + a))
args = np.linspace(0.1, 0.9, 5), np.linspace(1.0, 2.0, 5)
"""
MLP = """
def f(w1, b1, w2, b2, w3, b3, x, y):
    h = np.tanh(x @ w1 + b1)
    h = np.tanh(h @ w2 + b2)
    out = (h @ w3 + b3)[:, 0]
    return np.mean((out - y) ** 2)
r = np.random.default_rng(0)
args = (r.normal(size=(64, 256)) / 8, np.zeros(256), r.normal(size=(256, 256)) / 16, np.zeros(256),
        r.normal(size=(256, 1)) / 16, np.zeros(1), r.normal(size=(8, 64)), r.normal(size=8))
"""
NILE = """
def f(w, y):
    noise = math.exp(w[0])
    drift = math.exp(w[1])
    level = y[0]
    variance = noise + drift
    total = 0.0
    for t in range(1, y.size):
        surprise = y[t] - level
        spread = variance + noise
        total += math.log(2 * math.pi * spread) + surprise * surprise / spread
        gain = variance / spread
        level = level + gain * surprise
        variance = variance * (1.0 - gain) + drift
    return 0.5 * total
args = np.array([0.3, -0.2]), np.linspace(0.0, 3.0, 20)
"""
# rows: program, options of njit, statements that are timed, and the bar in CPU seconds
VALUE = "shown = compiled(*args)"
GRADIENT = "gradient = tg.func.grad(compiled, argnums)(*args)"
HESSIAN = "hessian = tg.func.hessian(compiled)(*args)"
