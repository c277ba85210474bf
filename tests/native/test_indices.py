"""Arrays of whole numbers and masks as indices of active arrays: reads and writes are those of Tensors."""

import numpy as np
import pytest

import tapegrad as tg
from tests.native.test_expressions import compare, once

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
        + np.sum(x[np.where(x > c)[0]] ** 3)
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


def element(x, k):
    y = x * 2.0
    return y[k] * y[0]


def element_written(x, k):
    y = np.zeros(4)
    y[k] = x[0]
    y[k] += x[1]
    return np.sum(y * y)


def row(x, k):
    y = x.reshape((4, 1)).copy()
    y[k, :] = x[1]
    return np.sum(y[..., k - k, None] * y[k])


def picked(x, k):
    y = x * 1.0
    return np.sum(y[np.array([0, k])])


def picked_written(x, k):
    y = x * 1.0
    y[np.array([k, 1])] = x[:2]
    return np.sum(y * y)


def masked(x, k):
    y = x * 1.0
    return np.sum(y[np.zeros(k + 1 if k >= 0 else -k, np.bool_)]) + x[0]


def flattened(x, k):
    y = x * 1.0
    y.flat[max(k, 0)] = x[0]
    return y.flat[k if k >= 0 else 4] * x[0]


def attempted(x, k):
    y, s = x.copy(), x[0] * x[1]
    try:
        s = s * y[k]
    except Exception:
        s = s * 3.0
    return s


@pytest.mark.parametrize("outside", [4, -5, 10**12])
@pytest.mark.parametrize(
    ("f", "does"),
    [
        (element, "element reads y of shape (4,)"),
        (element_written, "element_written writes to y of shape (4,)"),
        (row, "row writes to y of shape (4, 1)"),
        (picked, "picked reads "),
        (picked_written, "picked_written writes to y of shape (4,)"),
        (masked, "masked reads "),
        (flattened, "flattened "),
        (attempted, "attempted reads "),
    ],
    ids=lambda part: getattr(part, "__name__", ""),
)
def test_an_index_outside_of_an_array_is_an_error_where_derivatives_are_recorded(f, does, outside):
    """Numba goes on there; a number that carries derivatives would be taken from any memory."""
    compiled, x = once(f), np.arange(1.0, 5.0)
    if f is masked and outside > 100:
        outside = 6
    ways = [tg.func.grad(compiled), lambda x, k: compiled(tg.tensor(x, requires_grad=True), k)]
    if f is element:
        ways.append(lambda x, k: tg.func.hvp(compiled)(x, k, x))
    for way in ways:
        with pytest.raises(IndexError) as caught:
            way(x, outside)
        text = str(caught.value)
        assert does in text and "of shape (4," in text
        assert ("size 4" in text) and (str(outside) in text or f in (masked, flattened))
        way(x, 3)  # goes on as ever


def test_an_index_outside_found_after_others_leaves_the_tape_as_it_was():
    f = tg.njit(element_written)
    x = tg.tensor(np.arange(1.0, 5.0), requires_grad=True)
    kept = f(x, 1)
    with pytest.raises(IndexError):
        f(x, 7)
    np.testing.assert_array_equal(tg.grad(kept + f(x, 0), x)[0], [12.0, 12.0, 0.0, 0.0])


def along(x, k):
    return np.sum(np.take_along_axis(x, np.array([0, k]), 0) * x[0])


def along_all(x, k):
    return np.sum(np.take_along_axis(x.reshape((2, 2)), np.array([k, -1]), None) * x[0])


def extracted(x, k):
    condition = np.arange(k + 1) == abs(k)
    return np.sum(np.extract(condition, x.reshape((2, 2))) * x[0])


@pytest.mark.parametrize("outside", [4, 7, -5])
@pytest.mark.parametrize("f", [along, along_all, extracted])
def test_indices_in_functions_of_numpy_s_are_looked_at(f, outside):
    """Numba's own functions, and ours beside, do not; what lies outside has any address for a tape."""
    compiled, x = once(f), np.arange(1.0, 5.0)
    for way in (tg.func.grad(compiled), lambda x, k: compiled(tg.tensor(x, requires_grad=True), k)):
        if f is not extracted or outside > 0:
            with pytest.raises(IndexError, match=r"np\.(take_along_axis|extract)"):
                way(x, outside)
        for k in (3, 0):
            way(x, k)
    np.testing.assert_array_equal(tg.func.grad(compiled)(x, 3), tg.func.grad(f)(x, 3))
