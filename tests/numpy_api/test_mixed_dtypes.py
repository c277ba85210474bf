"""Functions of several operands of different dtypes: value and dtype are NumPy's, whichever is followed."""

import itertools

import numpy as np
import pytest

import tapegrad as tg

RANDOM = np.random.default_rng(3)
V, W = RANDOM.normal(size=5) + 3, RANDOM.uniform(0.5, 2, 5)
M, S = RANDOM.normal(size=(3, 5)), RANDOM.normal(size=(5, 5)) + 5 * np.eye(5)
COUNTS = np.array([1, 2, 1, 3, 1])
KINDS = ["float64", "float32", "int64", "int16"]
CALLS = [
    ("cov, aweights", lambda a, b: np.cov(a, aweights=b), M, W),
    ("cov, both weights", lambda a, b: np.cov(a, fweights=COUNTS, aweights=b), M, W),
    ("cov, ddof=0", lambda a, b: np.cov(a, aweights=b, ddof=0), V, W),
    ("cov, dtype", lambda a, b: np.cov(a, aweights=b, dtype="f4"), M, W),
    ("cov, two", lambda a, b: np.cov(a, b), M, M + 1), ("corrcoef", lambda a, b: np.corrcoef(a, b), M, M**2),
    ("corrcoef, dtype", lambda a, b: np.corrcoef(a, b, dtype="f4"), M, M**2),
    ("average", lambda a, b: np.average(a, weights=b, returned=True), V, W),
    ("average, axis", lambda a, b: np.average(a, 1, b), M, W),
    ("histogram, weights", lambda a, b: np.histogram(a, 3, weights=b), V, W),
    ("histogram, density", lambda a, b: np.histogram(a, 3, weights=b, density=True), V, W),
    ("histogram, range", lambda a, b: np.histogram(a, 3, range=(b[0], b[1] + 5)), V, W),
    ("histogram, bins", lambda a, b: np.histogram(a, np.sort(b)), V, W),
    ("histogram2d", lambda a, b: np.histogram2d(a, b, 3), V, W),
    ("histogram2d, weights", lambda a, b: np.histogram2d(a, a, 3, weights=b), V, W),
    ("bincount", lambda a, b: np.bincount(COUNTS, weights=b), V, W),
    ("interp", lambda a, b: np.interp(a, np.arange(5.0), b), V, W),
    ("trapezoid", lambda a, b: np.trapezoid(a, b), V, W),
    ("gradient", lambda a, b: np.gradient(a, b[0]), V, W), ("convolve", np.convolve, V, W),
    ("polyfit", lambda a, b: np.polyfit(a, b, 1), V, W),
    ("polyfit, weights", lambda a, b: np.polyfit(np.arange(5.0), a, 1, w=b), V, W),
    ("polyval", np.polyval, V, W), ("polydiv", lambda a, b: np.polydiv(a, b[:2]), V, W),
    ("polymul", np.polymul, V, W), ("where", lambda a, b: np.where(COUNTS > 1, a, b), V, W),
    ("select", lambda a, b: np.select([COUNTS > 1, COUNTS > 2], [a, b], 0), V, W),
    ("clip", lambda a, b: np.clip(a, b, b + 1), V, W),
    ("concatenate", lambda a, b: np.concatenate([a, b]), V, W),
    ("insert", lambda a, b: np.insert(a, 1, b[0]), V, W), ("kron", np.kron, V, W),
    ("einsum", lambda a, b: np.einsum("ij,j", a, b), M, W), ("matmul", np.matmul, M, W),
    ("tensordot", lambda a, b: np.tensordot(a, b, 1), M, W), ("solve", np.linalg.solve, S, W),
    ("lstsq", lambda a, b: np.linalg.lstsq(a, b)[:2], M.T, W),
    ("multi_dot", lambda a, b: np.linalg.multi_dot([M, a, b]), S, W),
    ("linspace", lambda a, b: np.linspace(a, b, 4), V, W),
    ("geomspace", lambda a, b: np.geomspace(a, b, 4), V, W),
    ("logspace", lambda a, b: np.logspace(a / 9, b, 4), V, W),
    ("ediff1d", lambda a, b: np.ediff1d(a, to_end=b[:1] * 0), V, W),
    ("var, mean", lambda a, b: np.var(a, mean=b[0]), V, W), ("std", lambda a, b: np.std(a) + b, V, W),
    ("power", np.power, V, W), ("float_power", np.float_power, V, W), ("remainder", np.remainder, V, W),
    ("divmod", np.divmod, V, W), ("meshgrid", np.meshgrid, V, W), ("append", np.append, V, W),
]  # fmt: skip


def flat(x):
    return [leaf for part in x for leaf in flat(part)] if isinstance(x, (tuple, list)) else [x]


@pytest.mark.parametrize("row", CALLS, ids=[row[0] for row in CALLS])
def test_value_and_dtype(row):
    _, function, first, second = row
    for one, two in itertools.product(KINDS, KINDS):
        a = (first * (1 if one[0] == "f" else 9)).astype(one)
        b = second.astype(two)
        if two[0] == "i":
            b = np.maximum((second * 2).astype(two), 1) if second is W else (second * 9).astype(two)
        try:
            with np.errstate(invalid="ignore"):  # BLAS may compute with what lies behind an array
                wanted = flat(function(a, b))
        except (ValueError, TypeError, np.linalg.LinAlgError):
            continue
        for followed in ((0,), (1,), (0, 1)):
            given = [a, b]
            if any(given[k].dtype.kind != "f" for k in followed):
                continue
            for k in followed:
                given[k] = tg.tensor(given[k], requires_grad=True)
            found = flat(function(*given))
            assert len(found) == len(wanted)
            for g, w in zip(found, wanted, strict=True):
                assert g.dtype == w.dtype, (one, two, followed)
                eps = np.finfo(w.dtype).eps if w.dtype.kind == "f" else 0
                bound = {"rtol": 20 * eps, "atol": 20 * eps * np.max(abs(w), initial=0)}
                kinds = f"{one} {two} {followed}"
                np.testing.assert_allclose(np.asarray(g.tolist()), w, **bound, err_msg=kinds)
