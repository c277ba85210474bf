"""Nonlinear regression of NIST's Statistical Reference Datasets: 27 problems with certified results.

`nist.json` has what https://www.itl.nist.gov/div898/strd/nls/data/ gives, which is in the public domain:
data, two starts, parameters and their standard errors to 11 digits. The models are plain NumPy.
"""

import json
import warnings
from pathlib import Path

import numpy as np

import tapegrad as tg

CERTIFIED = 11  # digits


def cosines(x, period):
    return np.cos(2 * np.pi * x / period), np.sin(2 * np.pi * x / period)


def enso(x, b1, b2, b3, b4, b5, b6, b7, b8, b9):
    (c, s), (c4, s4), (c7, s7) = cosines(x, 12), cosines(x, b4), cosines(x, b7)
    return b1 + b2 * c + b3 * s + b5 * c4 + b6 * s4 + b8 * c7 + b9 * s7


def gauss(x, b1, b2, b3, b4, b5, b6, b7, b8):
    return (
        b1 * np.exp(-b2 * x) + b3 * np.exp(-((x - b4) ** 2) / b5**2) + b6 * np.exp(-((x - b7) ** 2) / b8**2)
    )


def cubics(x, b1, b2, b3, b4, b5, b6, b7):
    return (b1 + b2 * x + b3 * x**2 + b4 * x**3) / (1 + b5 * x + b6 * x**2 + b7 * x**3)


def lanczos(x, b1, b2, b3, b4, b5, b6):
    return b1 * np.exp(-b2 * x) + b3 * np.exp(-b4 * x) + b5 * np.exp(-b6 * x)


def saturation(x, b1, b2):
    return b1 * (1 - np.exp(-b2 * x))


def chwirut(x, b1, b2, b3):
    return np.exp(-b1 * x) / (b2 + b3 * x)


MODELS = {
    "Bennett5": lambda x, b1, b2, b3: b1 * (b2 + x) ** (-1 / b3),
    "BoxBOD": saturation,
    "Chwirut1": chwirut,
    "Chwirut2": chwirut,
    "DanWood": lambda x, b1, b2: b1 * x**b2,
    "ENSO": enso,
    "Eckerle4": lambda x, b1, b2, b3: b1 / b2 * np.exp(-0.5 * ((x - b3) / b2) ** 2),
    "Gauss1": gauss,
    "Gauss2": gauss,
    "Gauss3": gauss,
    "Hahn1": cubics,
    "Kirby2": lambda x, b1, b2, b3, b4, b5: (b1 + b2 * x + b3 * x**2) / (1 + b4 * x + b5 * x**2),
    "Lanczos1": lanczos,
    "Lanczos2": lanczos,
    "Lanczos3": lanczos,
    "MGH09": lambda x, b1, b2, b3, b4: b1 * (x**2 + x * b2) / (x**2 + x * b3 + b4),
    "MGH10": lambda x, b1, b2, b3: b1 * np.exp(b2 / (x + b3)),
    "MGH17": lambda x, b1, b2, b3, b4, b5: b1 + b2 * np.exp(-x * b4) + b3 * np.exp(-x * b5),
    "Misra1a": saturation,
    "Misra1b": lambda x, b1, b2: b1 * (1 - (1 + b2 * x / 2) ** -2),
    "Misra1c": lambda x, b1, b2: b1 * (1 - (1 + 2 * b2 * x) ** -0.5),
    "Misra1d": lambda x, b1, b2: b1 * b2 * x / (1 + b2 * x),
    "Nelson": lambda x, b1, b2, b3: b1 - b2 * x[0] * np.exp(-b3 * x[1]),
    "Rat42": lambda x, b1, b2, b3: b1 / (1 + np.exp(b2 - b3 * x)),
    "Rat43": lambda x, b1, b2, b3, b4: b1 / (1 + np.exp(b2 - b3 * x)) ** (1 / b4),
    "Roszman1": lambda x, b1, b2, b3, b4: b1 - b2 * x - np.arctan(b3 / (x - b4)) / np.pi,
    "Thurber": cubics,
}


class Problem:
    """Data, starts and certified results, in extended precision, where there is any."""

    def __init__(self, name):
        found = json.loads((Path(__file__).parent / "nist.json").read_text("utf-8"))[name]
        numbers = {key: np.array(found[key], np.longdouble) for key in found}
        self.model, self.starts = MODELS[name], numbers["starts"].astype(float)
        self.parameters, self.errors = numbers["parameters"], numbers["errors"]
        several = len(numbers["x"]) > 1
        self.x = numbers["x"] if several else numbers["x"][0]
        self.y = np.log(numbers["y"]) if several else numbers["y"]

    def fit(self, solver, start):
        """Parameters by a function such as `curve_fit`; its first step is bounded by the start's size."""
        x, y = self.x.astype(float), self.y.astype(float)
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            within = {"xtol": 1e-15, "ftol": 1e-15, "gtol": 0.0, "maxfev": 100_000, "factor": 1.0}
            return solver(self.model, x, y, start, **within)

    def refine(self, b):
        """Newton's steps to where the gradient is 0, and the standard errors there."""
        b, scale = b.astype(np.longdouble), np.abs(b)

        def half(q):
            return np.sum((self.y - self.model(self.x, *(q * scale))) ** 2) / 2

        q = b / scale
        for _ in range(5):
            slope, curvature = tg.func.grad(half)(q), tg.func.hessian(half)(q)
            q = q - np.linalg.solve(curvature.astype(float), slope.astype(float))
        jacobian = tg.func.jacfwd(lambda q: self.model(self.x, *(q * scale)))(q).astype(float)
        variance = 2 * half(q) / (len(self.y) - len(q))
        spread = np.linalg.norm(np.linalg.inv(np.linalg.qr(jacobian, mode="r")), axis=1)
        return q * scale, np.sqrt(variance) * spread * scale


def digits(found, certified):
    """How many digits agree, at least of all these numbers."""
    with np.errstate(divide="ignore"):
        return float(np.min(np.clip(-np.log10(np.abs(found - certified) / np.abs(certified)), 0, CERTIFIED)))
