"""Records where code branches: they go on where only one way leads, and are none where nothing reads them."""

import numpy as np
import pytest
from numba import njit

import tapegrad as tg
from tapegrad.native.segment import Recording, entering
from tapegrad.native.twin import twin_of

X = np.array([1.7, 3.0, 0.4])


def recorded(function, x=X):
    recording = Recording(x.size)
    twin_of(function, (), True)(entering(x[:, None], (), recording.address, 1))
    return recording


def agrees(function, *points, on_tensors=None):
    """First and second derivatives beside those of the same code on Tensors."""
    on_tensors = on_tensors or function.py_func
    for point in points:
        x, u = np.array(point), np.array([0.3, -1.1, 0.8])
        np.testing.assert_allclose(tg.func.grad(function)(x), tg.func.grad(on_tensors)(x), rtol=1e-13)
        found, expected = (tg.func.hvp(f)(x, u) for f in (function, on_tensors))
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


@njit
def near(x):
    s = 0.0
    for k in range(2):
        d = x[k] - x[k + 1]
        r = np.sqrt(d * d + 0.1)
        if r < 1.0:
            s += d * r
        elif r < 2.0:
            s += d / r
    return s


@pytest.mark.quick
def test_a_way_that_reads_nothing_records_nothing():
    assert recorded(near, np.array([0.0, 5.0, 10.0])).nbytes == 0
    # d, r, and s of two leaves: three numbers and room for one, r by d, s by both, and the kind; only s is
    # read outside
    one = recorded(near, np.array([0.0, 0.5, 5.0]))
    assert (one.statements - 3, one.leaves, one.nbytes) == (1, 2 + 1 + 3, 4 * 4 + 3 * 8 + 8)
    agrees(near, [0.0, 0.5, 5.0], [0.0, 1.5, 1.7], [0.0, 1.2, 2.6], [0.0, 5.0, 5.1])


@njit
def ways(x):
    a = x[0] * x[1]
    b = a * x[2]
    if b > 5.0:
        c = a * a
        if x[0] > 2.0:
            a = b * c
        else:
            b = b / c
    elif b > 1.0:
        a = b * x[1]
    else:
        return b * b * a
    return a * b + x[0]


def test_ways_that_all_read_what_was_before():
    agrees(ways, [1.7, 3.0, 0.4], [2.1, 3.0, 1.0], [1.9, 3.0, 1.0], [0.3, 0.2, 0.1])


@njit
def read_behind(x):
    p, q = x[2], x[1]
    a = x[0] * x[0]
    if a > 1.0:
        b = a * p
        return b * q
    c = q * a * q
    return c * p * p + c


def test_numbers_and_factors_that_are_first_read_behind_a_branch():
    # first the way whose code comes second: in memory where the other has not written the same numbers
    agrees(read_behind, [0.7, 3.0, 0.4], [1.7, 3.0, 0.4], [0.7, 3.0, 0.4])


@njit
def written(x):
    t = np.zeros(2)
    a = x[0] * x[1]
    t[0] = a * x[2]
    if x[0] > 1.0:
        return t[0]
    s = 0.0
    for k in range(2):
        t[1] = x[k] * t[0]
        if k > 5:
            s += 1.0
    return t[0] * t[1] + s


def test_what_an_array_holds_is_read_later():
    def by_hand(x):
        t = x[0] * x[1] * x[2]
        return t if x[0] > 1.0 else t * x[1] * t

    agrees(written, [1.7, 3.0, 0.4], [0.7, 3.0, 0.4], on_tensors=by_hand)


@njit
def held(x):
    a = x[0] * x[1]
    pair = (a, x[2] * a)
    if x[0] > 1.0:
        first, second = pair
        return first * second
    return 2.0 * pair[1]


def test_what_a_tuple_holds_is_read_later():
    agrees(held, [1.7, 3.0, 0.4], [0.7, 3.0, 0.4])


@njit
def around(x):
    s, k = x[0] * x[1], 0
    while k < 3:
        d = s * x[k]
        k += 1
        if d > 2.0:
            continue
        s = s + d
        if d < -5.0:
            break
    return s * s


def test_loops_with_ways_out():
    agrees(around, [1.7, 3.0, 0.4], [0.5, 0.5, 3.0], [-3.0, 2.0, -1.0])


@njit
def late(x):
    """On no tape before the first branch."""
    t = np.zeros(3)
    a = t[0] * 2.0 + 3.0
    b = a * t[1] + 2.0
    if b > 1.0:
        c = a * x[0] + b
        if c > 0.0:
            return c * a * b * x[1]
        return c * b
    return a


def test_what_comes_before_the_first_number_on_a_tape():
    agrees(late, [1.7, 3.0, 0.4], [-1.7, 3.0, 0.4])


@njit
def quotient(t, x):
    a = x[0] * x[1]
    b = a / (x[2] - 0.4)
    if b > 0.0:
        t[0] = a * b
        c = b / (x[1] - 3.0)
        if c > 0.0:
            t[1] = c * b
    return a


@njit
def caught(x):
    t = np.zeros(2)
    try:
        quotient(t, x)
    except Exception:
        t[1] = t[1] + x[0] * x[0]
    return t[0] + t[1] * x[2]


def test_a_division_by_zero_before_or_behind_a_branch():
    def by_hand(x):
        a = x[0] * x[1]
        return a * a / (x[2] - 0.4) + x[0] * x[0] * x[2]

    expected = tg.func.grad(by_hand)(np.array([1.7, 3.0, 0.5]))
    np.testing.assert_allclose(tg.func.grad(caught)(np.array([1.7, 3.0, 0.5])), expected, rtol=1e-13)
    np.testing.assert_allclose(tg.func.grad(caught)(X), [2 * 1.7 * 0.4, 0.0, 1.7**2], rtol=1e-13)
    for x in (X, np.array([1.7, 3.0, 0.5])):
        with pytest.raises(ZeroDivisionError):
            tg.func.grad(njit(lambda x: quotient(np.zeros(2), x)))(x)


@njit
def tries(x):
    t, a = np.zeros(1), x[0] * x[1]
    try:
        b = a * x[2]
        if b > 1.0:
            a = b / (x[1] - 3.0)
        t[0] = b
    except Exception:
        t[0] = a * b
    return t[0] * x[0] + a


def test_numbers_that_a_handler_reads():
    agrees(tries, X, on_tensors=lambda x: (x[0] * x[1]) ** 2 * x[2] * x[0] + x[0] * x[1])


@njit
def several(x):
    t, a, e = np.zeros(2), x[0] * x[1], x[1] * x[2]
    t[1] = x[1]
    try:
        t[0] = a
        b = a / (x[2] - 0.4)
        t[0] = b * e
    except Exception:
        a = a * t[0] * t[1] + e
    return a * t[0]


def test_what_raises_amid_a_try_block():
    def by_hand(x):
        a, e = x[0] * x[1], x[1] * x[2]
        return a * a / (x[2] - 0.4) * e if x[2] > 0.4 else (a * a * x[1] + e) * a

    agrees(several, [1.7, 3.0, 0.5], X, on_tensors=by_hand)


@njit
def near_or_caught(x):
    s = 0.0
    d = x[0] - x[1]
    r = np.sqrt(d * d + 0.1)
    if r < 1.0:
        s += d * r
    try:
        if x[2] < 1.0:
            raise ValueError
        s *= x[2]
    except Exception:
        s += 1.0
    return s


def test_records_go_on_over_branches_beside_a_try_block():
    near = recorded(near_or_caught, np.array([1.0, 1.2, 0.4]))
    assert recorded(near_or_caught, np.array([1.0, 5.0, 0.4])).nbytes == 0 < near.nbytes
    agrees(near_or_caught, [1.0, 1.2, 0.4], [1.0, 1.2, 1.4])


@njit
def both_leave(t, x):
    a = x[0] * x[1]
    b = a / (x[2] - 0.4)
    if b > 0.0:
        t[0] = a / (x[1] - 3.0)
    else:
        c = b * x[1] * x[1]
        t[0] = c * b
        t[1] = c / (x[0] - 1.7) * b
    return b


@njit
def both_caught(x):
    t = np.zeros(2)
    try:
        both_leave(t, x)
    except Exception:
        t[1] = x[0] * x[2]
    return t[0] * x[0] + t[1]


def test_each_way_ends_its_own_record_where_it_leaves():
    def by_hand(x):
        b = x[0] * x[1] / (x[2] - 0.4)
        return b * b * x[1] * x[1] * x[0] + x[0] * x[2]

    agrees(both_caught, [1.7, 3.0, 0.3], on_tensors=by_hand)
    agrees(both_caught, [2.0, 3.0, 0.5], on_tensors=lambda x: x[0] * x[2])


@njit
def unread(x):
    a = x[2] - 0.4
    b = x[0] / a
    return x[1] * x[0] if b > 2.0 else x[2] * x[0]


def test_what_may_leave_before_branches_that_read_nothing_of_it():
    agrees(unread, [1.7, 3.0, 0.5], [0.1, 3.0, 0.9])
    with pytest.raises(ZeroDivisionError):
        tg.func.grad(unread)(X)
