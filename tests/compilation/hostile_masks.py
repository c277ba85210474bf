"""More functions of the kind of `hostile`: comparisons, steps, and what else has no derivative."""

import weakref

import numpy as np

import tapegrad as tg

from .hostile import hostile, simple


@simple
def masks_combined(x, k):
    inside = (x > -0.5) & ~(x > 0.6) | (x == x[1])
    return np.sum(np.where(inside ^ (x < 0.0), x * x, np.sin(x)))


@simple
def masks_of_a_number_of_the_call(x, k):
    return np.sum(np.where(x > k * 0.1 - 0.5, x, -x * x))


@hostile
def mask_of_an_array_that_changes():
    limits = np.zeros(4)

    def f(x, k):
        limits[k % 4] += 0.2
        return np.sum(x * (x >= limits)) + np.sum(limits)

    return f, limits


@simple
def masks_of_numbers(x, k):
    s = np.sum(x)
    return np.where(s > 0.5, s * x[0], x[1]) + s * (x[0] > 0.1) + (x[2] < s) * x[3]


@simple
def masks_of_other_dtypes(x, k):
    single = x.astype(np.float32)
    a = np.arange(4) - k % 4
    y = np.sum(single * (single < np.float32(0.1)))
    return np.sum(np.where(single > 0.25, x, 0.5)) + np.sum(x * (x > a)) + y


@simple
def counted_elements(x, k):
    return np.sum(x * (x > 0)) / (1 + np.count_nonzero(x > 0)) + np.sum(x) / (0.5 + (x > 0.1).sum())


@simple
def steps(x, k):
    return np.sum(
        (x - np.floor(x * 3.0)) * np.ceil(x) + np.trunc(x * 5.0) * np.rint(x * 2.0) * x + x * (x // 0.3)
    )


@simple
def steps_of_zeros_and_nan(x, k):
    y = np.array([-0.0, 0.0, np.nan, -np.inf]) + x * 0.0
    with np.errstate(all="ignore"):
        z = np.sign(y) * x + np.floor(y * 0.0) + np.where(np.isnan(y), x, y) + np.where(y < 0, -0.0, x)
    return np.sum(np.where(np.isfinite(z), z, 1.0)) + z[0] * (-0.0 if k % 2 else 0.0)


@simple
def minus_zero_by_a_mask(x, k):
    return np.sum((x > 10.0) * -x) * 0.0 + np.where(x[0] > 9.0, 1.0, -0.0) * np.abs(x[1])


@simple
def nan_by_a_mask(x, k):
    with np.errstate(all="ignore"):
        return np.sum((x > 10.0) * np.log(x - 5.0))


@simple
def arrays_alike(x, k):
    y = np.zeros_like(x) + x[0]
    return np.sum(y * np.ones_like(x) * x) + np.sum(np.full_like(x, k) * x)


@simple
def an_array_alike_is_written(x, k):
    y = np.zeros_like(x)
    s = np.sum(y * x)
    y[k % 4] = x[1] * 2.0
    return np.sum(y * x) + s


@simple
def place_as_a_factor(x, k):
    return np.sum(x) * np.argmax(x) + x[0] * np.any(x > 0.9) + x[1] * np.all(x > -3.0)


@hostile
def mask_kept():
    seen = []

    def f(x, k):
        m = x > 0.1
        seen.append(m)
        return np.sum(np.where(m, x, 0.0))

    return f, seen


@hostile
def mask_kept_at_times():
    seen = []

    def f(x, k):
        m = x > 0.1
        if k % 5 == 3:
            seen.append(m)
        return np.sum(np.where(m, x, 0.0))

    return f, seen


@hostile
def mask_looked_at():
    seen = []

    def f(x, k):
        m = x > 0.1
        y = np.where(m, x * 2.0, x)
        seen.append((m.tolist(), m.shape, m.dtype.name, m.requires_grad, m.is_leaf, repr(m), len(m)))
        return np.sum(y) * float(m.sum()) + (np.prod(y) if m[k % 4] else y[0])

    return f, seen


@hostile
def array_of_a_mask_written():
    kept = []

    def f(x, k):
        m = x > 0.1
        y = np.where(m, x, 0.0)
        kept.append(m.numpy())
        kept[-1][k % 4] = True
        return np.sum(y) + np.sum(np.where(m, x, 0.5))

    return f, kept


@simple
def mask_written(x, k):
    m = x > 0.1
    y = np.where(m, x, 0.0)
    m[k % 4] = True
    return np.sum(y) + np.sum(np.where(m, x * x, 0.5))


@simple
def mask_written_at_times(x, k):
    m = x > 0.1
    y = np.where(m, x, 0.0)
    if k % 4 == 3:
        m[0] = True
    return np.sum(y) + np.sum(np.where(m, x * x, 0.5))


@simple
def mask_written_in_place(x, k):
    m = x > 0.1
    m &= x < 0.6
    n = x < -0.2
    y = x * n
    n |= m
    return np.sum(np.where(m, x, 0.0)) + np.sum(y + x * n)


@simple
def number_of_a_mask_written(x, k):
    m, n = x[0] > 0.1, x[1] > 0.1
    y = x * m + x * n
    m[...] = bool(k % 2)
    n.fill_(True)
    return np.sum(y + x * m + x * n)


@simple
def mask_seen_otherwise(x, k):
    m = x > 0.1
    y = np.where(m, x, 0.0)
    v = m[1:]
    v[0] = True
    z = np.sum(m[:, None] * np.outer(x, x)) + np.sum(x[1:] * v)
    return np.sum(y) + np.sum(np.where(m, x * x, 0.5)) + z


@simple
def mask_seen_otherwise_at_times(x, k):
    m = x > 0.1
    y = np.where(m, x, 0.0)
    if k % 3 == 2:
        m.reshape(2, 2)[0, 0] = True
    return np.sum(y) + np.sum(np.where(m, x * x, 0.5))


@hostile
def mask_referred_to_weakly():
    seen, known = [], []

    def f(x, k):
        m = x > 0.1
        known.append(weakref.ref(m))
        seen.append(known[-1]() is m)
        return np.sum(np.where(m, x, 0.0))

    return f, seen


@simple
def mask_of_a_way(x, k):
    m = x > 0.1 if k % 3 else np.array([True, False, True, False])
    if k % 4 == 1:
        m = ~m
    return np.sum(np.where(m, x, 0.0)) + np.sum(x * m)


@hostile
def mask_of_an_earlier_call():
    last = [None]

    def f(x, k):
        m = x > 0.1
        found = np.sum(np.where(m if last[0] is None else last[0], x, 0.0))
        last[0] = m
        return found + np.sum(x * m)

    return f, None


@simple
def mask_where_nothing_is_recorded(x, k):
    with tg.no_grad():
        m = x * 2.0 > 0.1
        c = np.sum(x * m)
    return np.sum(np.where(m, x * c, 0.0))


@simple
def mask_of_what_is_detached(x, k):
    m = x.detach() > 0.1
    return np.sum(np.where(m, x, 0.0)) + np.sum(x * (np.sin(x).detach() > x))


@simple
def constants_of_masks(x, k):
    m = (x > 0.1) * 2.0 - 1.0
    n = np.where(x > 0.3, k, 1.0 / (1.0 + m * m))
    return np.sum(np.maximum(m, n) * x) + np.sum(m @ n * x)


@simple
def masks_differ_in_order(x, k):
    m, n = (x > 0.1, x < 0.5) if k % 2 else (x < 0.5, x > 0.1)
    return np.sum(np.where(m, x, 0.0) * np.where(n, x, 2.0))


@simple
def mask_of_a_parameter_outside(x, k):
    w = tg.tensor([0.0, 1.0, -1.0, 0.5], requires_grad=True)
    m = w > x
    (g,) = tg.grad(np.sum(np.where(m, w * w, w)), w)
    return np.sum(np.where(m, x, 0.0)) + np.sum(g * x)


@simple
def error_by_a_mask(x, k):
    try:
        y = np.where(np.ones(3) > x, x, 0.0)
    except ValueError:
        y = x * (x > 0)
    return np.sum(y)


@simple
def division_without_a_remainder(x, k):
    with np.errstate(all="ignore"):
        q = np.where(np.isfinite(x // (k % 3)), x, 1.0)
    return np.sum(q * x)


# ------------------------------------------------------------ numbers as arguments of functions


@simple
def numbers_that_come_back_as_arguments(x, k):
    low = [0, 0, 0, 1, 0, 0.25, -0.0, 0, 1][k % 9]
    return np.sum(np.clip(x, low, 4) * x) + np.sum(np.where(x > 0.4, x * x, low) * x)


@simple
def equal_numbers_as_arguments(x, k):
    low, high = [(0, 0), (0, 0), (0, 1), (1, 0), (0.5, 0.5), (0.5, 2), (True, 0)][k % 7]
    return np.sum(np.where(x > 0.4, low, high) * x) + np.sum(np.clip(x, a_min=low, a_max=low + 1) * x)


@simple
def arrays_as_two_arguments(x, k):
    a, b = np.arange(4.0) + k % 3, np.ones(4) * (k % 2)
    b = a if k % 4 < 2 else b
    return np.sum(np.where(x > 0.3, a, b) * x) + np.sum(np.concatenate([x, a, b, x]) ** 2)


@simple
def options_that_change(x, k):
    m = np.stack([x, x * x], axis=k % 2)
    y = np.sum(m, axis=(k // 3) % 2, keepdims=bool(k % 4)) + np.mean(m, [0, 1, None][k % 3], keepdims=True)
    return np.sum(y) + np.sum(np.concatenate([m, m], -1 if k % 2 else 1)) + np.max(m, (0, 1), keepdims=False)


@simple
def numbers_alone_as_arguments(x, k):
    low, high = [(0, 0), (0, 0), (0.5, 0), (0, 0.5), (1, 2.0), (1, 2), (True, 0), (-0.0, 1), (0.0, 1)][k % 9]
    chosen = np.where(x > 0.3, low, high)
    size = float(np.asarray(chosen).itemsize + "if".index(np.asarray(chosen).dtype.kind)) if k > 12 else 1.0
    return np.sum(chosen * x * size) + np.sum(np.copysign(x, np.where(x > 0.3, high, low)))
