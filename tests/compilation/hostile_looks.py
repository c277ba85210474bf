"""More functions of the kind of `hostile`: numbers and arrays that Python looks at, now and then."""

import math
import operator
import warnings

import numpy as np

from tapegrad.errors import BorderError

from .hostile import hostile, simple


@simple
def newton_until_it_converges(x, k):
    y = x * 0.5 + 1.0
    for _ in range(12):
        step = (y * y - np.abs(x) - 1.0) / (2.0 * y)
        y = y - step
        if np.max(np.abs(step)) < 10.0 ** (-(k % 4) - 2) or not np.isfinite(y).all():
            break
    return np.sum(y)


@simple
def line_search(x, k):
    t, g = 1.0, 2.0 * x
    for _ in range(10):
        y = x - t * g * 0.9
        if np.linalg.norm(y) < 0.7 * np.linalg.norm(x) or (y > x).all():
            break
        t = t * 0.5
    return np.sum(y * x) * t


@simple
def steps_of_an_adaptive_size(x, k):
    t, h, y, refused = 0.0, 0.1 * (1 + k % 3), x, 0
    while t < 0.5 and refused < 9:
        one = y + h * np.cos(y)
        two = y + h * 0.5 * (np.cos(y) + np.cos(one))
        error = np.max(np.abs(two - one)).item()
        if error > 0.02:
            h, refused = h * 0.5, refused + 1
            continue
        t, y, h = t + h, two, min(1.5 * h, 0.3)
    return np.sum(y * y)


@simple
def elimination_with_pivots(x, k):
    a = np.stack([x, x[::-1] * 2.0, x * x, np.cos(x + 0.1 * k)])
    found = 1.0
    for j in range(3):
        i = j + int(np.argmax(np.abs(a[j:, j])))
        if i != j:
            rows = np.arange(4)
            rows[[i, j]] = rows[[j, i]]
            a, found = a[rows], -found
        found = found * a[j, j]
        a = a - np.outer(np.where(np.arange(4) > j, a[:, j] / a[j, j], 0.0), a[j])
    return found * a[3, 3]


@simple
def place_of_the_largest(x, k):
    y = np.sin(x * (1.0 + k))
    i = np.argmax(y)
    return y[i] * x[i] + y[y.argmin()] * [1.0, 2.0, 3.0, 4.0][i] + x[int(i) - 1]


@simple
def looks_now_and_then(x, k):
    y = x
    for j in range(4):
        y = np.sin(y) * 1.1
        if (j + k) % 3 == 0 and (y > 0.55).any():
            y = y * 2.0
        if k % 7 > 3:
            assert np.isfinite(y).all() and not np.isnan(np.sum(y))
    return np.sum(y)


@simple
def looks_in_another_order(x, k):
    y, z = np.sin(x), np.cos(x)
    looks = lambda: np.any(y > 0.4), lambda: np.all(z > 0.6), lambda: np.argmax(y) > 1, lambda: (y > z).any()
    found = [bool(look()) for look in (looks if k % 3 else looks[::-1])[: 4 - k % 4 // 3]]
    return np.sum(y) * (1.0 + sum(found)) + np.sum(z)


@simple
def looks_at_the_end(x, k):
    y = np.sum(np.sin(x))
    if k % 4 != 2:
        bool(np.any(x > 0.5)), np.all(np.isfinite(x)).item()
    return y


@hostile
def looks_that_are_kept():
    kept = []

    def f(x, k):
        y = np.sin(x)
        kept.append(np.argmax(y) if k % 2 else np.any(y > 0.5))
        del kept[: -1 - k % 3]
        return np.sum(y) * (2.0 if kept[0] else 1.0)

    return f, kept


@hostile
def looks_by_all_ways_out():
    seen = []

    def f(x, k):
        y = np.sin(x)
        n, i, b, s = np.count_nonzero(y > 0.3), np.argmax(y), np.any(y > 0.6), np.sum(y)
        seen.append([int(n), float(n), float(i), int(b), b.item(), i.item(), s.item(), bool(s)])
        seen.append([s.detach().item(), float(y[1].detach()), type(s.item()), round(s.item(), 2), n])
        seen.append([math.sqrt(n), i + 1 == 2, b == (k > 3), range(4)[i], operator.index(i)])
        seen.append([np.argmax(y, 0) == i, f"{i}" if k % 5 == 3 else str(b) if k % 5 == 4 else ""])
        del seen[:-4]
        return s * 2.0

    return f, seen


@hostile
def a_derivative_that_float_would_drop():
    told = []

    def f(x, k):
        s = np.sum(np.sin(x))
        for look in (float, int, operator.index, round):
            try:
                look(s)
            except (BorderError, TypeError) as error:
                told.append(type(error))
        del told[:-4]
        return s * s

    return f, told


@hostile
def whole_arrays_are_asked():
    seen = []

    def f(x, k):
        y = np.sin(x)
        order = np.argsort(y)
        near = np.allclose(y, x, atol=0.1 * (k % 3)), np.array_equal(y, y), np.allclose(y, y[0].detach())
        seen[:] = [order * 1, near, np.round(y, 1), np.nonzero(y > 0.5)[0], np.argsort(-y, kind="stable")]
        return np.sum(y[order] * [1.0, 2.0, 3.0, 4.0]) * (1.0 + sum(near))

    return f, seen


@simple
def looks_that_raise_errors(x, k):
    y = np.sin(x)
    for look, how in ((np.argmax, {"axis": k % 3}), (np.argsort, {"kind": "none"}), (np.any, {"axis": 1})):
        try:
            look(y, **how)
        except (ValueError, IndexError) as error:
            y = y * (1.0 + 0.1 * len(str(error)))
    return np.sum(y)


@simple
def looks_that_warn(x, k):
    y = x / (0.0 if k % 4 == 3 else 2.0)
    found = 1.0 if np.any(np.log(np.abs(y)) > 0.0) else 2.0
    with np.errstate(all="ignore" if k % 2 else "warn"):
        found = found + np.all(np.floor_divide(y, x - x[k % 4].detach() + (k % 5 < 3)) > 0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = found * (2.0 if np.isnan(np.sum(np.sqrt(y if k % 7 == 6 else y * y))) else 1.0)
    return np.sum(x) * found


@simple
def error_of_a_look_that_does_not_come(x, k):
    y = np.sin(x) * 2.0
    if k < 9 and np.any(np.floor_divide(1.0, 1.5 + 0.0 * y) > 2.0):
        return np.sum(y)
    by = 0.0 if k > 8 else 3.0
    if k % 3 and np.all(np.floor_divide(y, by if k > 12 else 2.0) > 0.0):
        y = y * 3.0
    return np.sum(y * y) if k != 15 else y[0] + float(k)


@simple
def options_of_looks_change(x, k):
    y = (x * 2.0).reshape(2, 2)
    some = [y.any(axis=k % 2), np.any(y > 1.0, axis=None, keepdims=k % 3 == 0), (y > 0.5).all(0)][k % 3]
    return np.sum(y) * (2.0 if np.any(some) else 1.0) + y[np.argmax(y, axis=1 - k % 2)[0], 0]


@simple
def looks_at_what_was_written_to(x, k):
    y = x * 2.0
    for j in range(4):
        if np.any(y[j:] > 0.6) and np.argmax(y) >= k % 3:
            y[j] = y[j] * 0.5
        if (y < -0.3).all():
            y[:] = 1.0
    return np.sum(y * x)


@simple
def looks_at_single_precision(x, k):
    y = np.sin(x.astype(np.float32))
    s = np.sum(y)
    t = 1.0 if np.all(y > np.float32(0.1)) else 2.0
    return np.sum(x) * s.item() * t + s * (float(s.detach()) if s > 0.5 else 1.0)
