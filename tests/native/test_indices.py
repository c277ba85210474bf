"""Arrays of whole numbers and masks as indices of active arrays: reads and writes are those of Tensors."""

import numpy as np
import pytest

from tests.native.test_expressions import compare

MASK, PLACES = np.arange(8) % 3 == 0, np.array([2, 0, 2, 3])


def reads(x, c):
    a = x.reshape((-1, 2))
    k = np.arange(2)
    rows = np.sum(a[PLACES[:2]] ** 2) + np.sum(a[MASK[:4]] ** 3) * c
    return (
        rows
        + np.sum(x[MASK] ** 2)
        + np.sum(x[PLACES] * x[PLACES[0]])
        + np.sum(a[k, k] * c)
        + np.sum(x[x > c])
    )


def writes_by_places(x, c):
    y = x.copy()
    y[PLACES] = x[:4] * 2.0  # the last of those that meet
    y[PLACES[1:]] += x[PLACES[1:]]
    y[PLACES[:1]] = c
    return np.sum(y * y * x)


def writes_by_masks(x, c):
    y, z = x.copy(), np.zeros_like(x)
    y[MASK] = x[MASK] * 3.0
    y[y > 0.9] *= c
    y[x < 0.2] = 1.5
    z[~MASK] = y[:5]
    return np.sum(y * y * x) + np.sum(z * z)


def writes_of_rows(x, c):
    a = x.reshape((-1, 2)).copy()
    a[MASK[:4]] = x[:2] * 2.0
    a[PLACES[:2], 1] = x[:2]
    a[1:, PLACES[:1] // 2] = c * x[0]
    return np.sum(a * a)


@pytest.mark.parametrize(
    "f", [reads, writes_by_places, writes_by_masks, writes_of_rows], ids=lambda f: f.__name__
)
def test_indices(f):
    compare(f, (np.linspace(0.1, 1.0, 8), 0.35), 2)
