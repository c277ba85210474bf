"""Records of straight code: where they begin, end and are left, and that cotangents in them are exact."""

import ctypes
import math

import numpy as np
import pytest
from numba import config, njit, types
from numba.experimental import jitclass
from numba.extending import overload, overload_attribute

import tapegrad as tg
from tapegrad.native.segment import Recording, entering
from tapegrad.native.tapes import record
from tapegrad.native.tapes.tape import BASE, TOP
from tapegrad.native.twin import twin_of
from tests.benchmarks import native_programs as programs

X = np.array([1.7, 3.0, 0.4])


def recorded(function, x=X, *args):
    recording = Recording(x.size)
    twin_of(function, (), True)(entering(x[:, None], (), recording.address, 1), *args)
    return recording


def records(recording):
    """How many records there are."""
    at, base, count = recording.word(TOP), recording.word(BASE), 0
    while at > base:
        kind = record.KIND_WORDS.from_address(ctypes.c_int64.from_address(at - 8).value)
        at, count = at - kind[record.SIZE], count + 1
    return count


def check(function, gradient, second=False, x=X):
    """The first derivative by formula; the second beside differences of it."""
    np.testing.assert_allclose(tg.func.grad(function)(x), gradient(x), rtol=1e-13, atol=1e-13)
    if not second:
        return
    u = np.array([0.3, -1.1, 0.8])
    step = 1e-6
    expected = (gradient(x + step * u) - gradient(x - step * u)) / (2 * step)
    np.testing.assert_allclose(tg.func.hvp(function)(x, u), expected, rtol=1e-7, atol=1e-7)


@njit
def straight(x):
    a = x[0] * x[1]
    b = a + x[2]
    return a * b


@pytest.mark.quick
def test_straight_code_is_one_record():
    recording = recorded(straight)
    assert (recording.statements - 3, recording.leaves) == (1, 6)  # others are read nowhere else
    # numbers of three inputs and room for one; x0, x1 and b as partials, another is their product; the kind
    assert recording.nbytes == 4 * 4 + 3 * 8 + 8
    check(straight, lambda x: np.array([
        2 * x[0] * x[1] ** 2 + x[1] * x[2], 2 * x[0] ** 2 * x[1] + x[0] * x[2], x[0] * x[1],
    ]))  # fmt: skip


@pytest.mark.parametrize(("name", "args", "wanted"), [
    ("lotka_volterra", (100,), (101, 201, 5402, 13624)),
    ("particles", (32, 10), (2370, 4708, 19538, 105824)),
    ("gauss_seidel", (1000, 2), (3000, 3000, 10000, 120000)),
    ("call_option", (np.linspace(-1.0, 1.0, 200), 20, 10), (211, 212, 637, 9944)),
])  # fmt: skip
def test_how_many_records_programs_have(name, args, wanted):
    """One for each turn of a loop without branches; more of these, or longer ones, take more time."""
    function, x, _ = programs.cases()[name]
    found = recorded(function, x, *args)
    assert (records(found), found.statements - x.size, found.leaves, found.nbytes) == wanted


@njit
def read_elsewhere(x, n):
    t, s = np.empty(n), x[2]
    for k in range(n):
        a = x[0] * x[1]
        b = a * s
        pair = (a * a, b * b)
        t[k] = b + s
        if t[k] > 2.0:
            s = pair[k % 2] * a
        c = b * a
        s = s + c
    return s * b + t[0] * a + t[n - 1] * c


def test_what_is_read_behind_branches_in_other_turns_and_of_arrays_and_tuples():
    step = 1e-6 * np.eye(3)
    for n in (1, 2, 3, 4):
        values = [[read_elsewhere(X + h, n), read_elsewhere(X - h, n)] for h in step]
        expected = [(above - below) / 2e-6 for above, below in values]
        np.testing.assert_allclose(tg.func.grad(read_elsewhere)(X, n), expected, rtol=1e-6)


@njit
def in_expression(x):
    s = x[2] + 1.0
    v = x[0] * np.arange(1.0, 3.0) - s
    return (v * v).sum()


@pytest.mark.quick
def test_a_number_that_an_expression_of_arrays_reads():
    check(in_expression, lambda x: np.array([10.0 * x[0] - 6.0 * (x[2] + 1), 0.0, 4 * (x[2] + 1) - 6 * x[0]]))


@njit
def late(x):
    t = np.zeros(3)
    a = t[0] * 2.0 + t[1] + 3.0
    b = a * x[0] + t[2]
    return b * a + x[1] * b + t[1]


def test_what_comes_before_the_first_number_on_a_tape():
    check(late, lambda x: np.array([9.0 + 3.0 * x[1], 3.0 * x[0], 0.0]), second=True)


@njit
def common_factors(x):
    w = math.exp(x[0])
    a = w * x[1] * x[2]
    b = a + w * x[2] * x[1]
    return b - w * x[2]


def test_values_that_partials_are_products_of_are_on_the_tape_once():
    recording = recorded(common_factors)
    # numbers of three inputs and room for one; w, which is its own partial, and two inputs; the kind
    assert recording.nbytes == 4 * 4 + 3 * 8 + 8
    check(common_factors, lambda x: np.exp(x[0]) * np.array([
        2 * x[1] * x[2] - x[2], 2 * x[2], 2 * x[1] - 1.0,
    ]), second=True)  # fmt: skip


@pytest.mark.parametrize("operations", [record.DEPTH, record.DEPTH + 1])
def test_how_many_operations_an_adjoint_computes_for_a_partial(operations):
    """The same factors, in the other order, take no memory more than once where a partial has few."""
    factors, space = [f"x[{k}]" for k in range(operations + 2)], {}
    once, again = " * ".join(factors), " * ".join(reversed(factors))
    exec(f"def f(x):\n    a = {once}\n    return a + {again}", space)
    x = np.linspace(1.0, 2.0, len(factors))
    sizes = [recorded(njit(f), x).nbytes for f in (eval(f"lambda x: {once}"), space["f"])]
    assert (sizes[0] < sizes[1]) is (operations > record.DEPTH)


@njit
def factor_from_before(x):
    t = np.full(2, 1.5)
    s = t[0] + 2.0
    u = s * s
    v = s * x[0]
    return v * (u + t[1] * x[1]) * s


def test_a_value_written_before_the_first_number_on_a_tape():
    check(factor_from_before, lambda x: 12.25 * np.array([12.25 + 1.5 * x[1], 1.5 * x[0], 0.0]), second=True)


@njit
def product_from_before(x):
    t = np.full(3, 1.5)
    s = t[0] + 2.0
    a = s * t[1]
    b = a * t[2]
    c = a * x[0]
    return c * b


def test_a_product_of_values_written_before_the_first_number_on_a_tape():
    check(product_from_before, lambda x: np.array([5.25 * 7.875, 0.0, 0.0]))


@njit
def quotients(x):
    return x[0] / x[1]


@pytest.mark.quick
def test_partials_that_are_quotients_of_what_is_on_the_tape_take_no_memory():
    recording = recorded(quotients)
    assert recording.nbytes == 2 * 4 + 2 * 8 + 8
    check(quotients, lambda x: np.array([1 / x[1], -x[0] / x[1] ** 2, 0.0]), second=True)


@njit
def constants(x):
    t = np.ones(3)
    a = t[0] * 2.0 + t[1]
    t[2] = a * a
    return t[2] + 0.0 * a


@pytest.mark.quick
def test_constants_are_on_no_tape():
    assert recorded(constants).nbytes == 0


@njit
def overwritten(x):
    t = np.empty(2)
    t[0] = x[0] * x[1]
    t[1] = t[0] * x[2]
    t[0] = t[0] * t[1] + t[0]
    t[0] = t[0] * t[0]
    return t[0] + t[1]


def test_elements_written_again_in_one_record():
    def gradient(x):
        p, c = x[0] * x[1], x[2]
        u = p * p * c + p
        by_p, by_c = 2 * u * (2 * p * c + 1) + c, 2 * u * p * p + p
        return np.array([by_p * x[1], by_p * x[0], by_c])

    check(overwritten, gradient, second=True)


@njit
def infinite(x):
    a = x[0] - x[0]
    b = math.sqrt(a)
    c = x[1] * x[2]
    t = np.empty(2)
    t[0] = b
    t[1] = c + 0.0 * x[0]
    return t[1]


def test_what_nothing_came_to_moves_nothing():
    check(infinite, lambda x: np.array([0.0, x[2], x[1]]), second=True)


@njit
def divides(t, x, k):
    t[0] = x[0] * x[1]
    t[1] = x[0] / (x[1] - k)
    t[2] = 5.0 * x[0]


@njit
def caught_from_helper(x):
    t = np.zeros(3)
    try:
        divides(t, x, 3.0)
    except Exception:
        t[2] = x[0] * x[0]
    return t[0] * 2.0 + t[1] + t[2] * x[2]


@njit
def caught(x):
    t = np.zeros(3)
    try:
        t[0] = x[0] * x[1]
        t[1] = t[0] / (x[1] - 3.0)
        t[2] = 5.0 * x[0]
    except Exception:
        t[2] = x[0] * x[0]
    return t[0] * 2.0 + t[1] + t[2] * x[2]


@njit
def unpacks(t, x):
    t[0] = x[0] * x[1]
    a, b = t[:1]
    t[1] = a * b


@njit
def caught_unpacking(x):
    t = np.zeros(3)
    try:
        unpacks(t, x)
    except Exception:
        t[2] = x[0] * x[0]
    return t[0] * 2.0 + t[1] + t[2] * x[2]


@pytest.mark.parametrize("function", [caught_from_helper, caught, caught_unpacking])
def test_code_that_leaves_in_the_middle(function):
    """What was computed before keeps its derivative; what follows has numbers of its own."""
    found = tg.func.grad(function)(X)
    np.testing.assert_allclose(found, [2 * 3.0 + 2 * 1.7 * 0.4, 2 * 1.7, 1.7**2], rtol=1e-14)
    x = tg.tensor(X, requires_grad=True)
    (g,) = tg.grad(tg.njit(function)(x), x, create_graph=True)
    (h,) = tg.grad(g[0] * 1.0, x)
    np.testing.assert_allclose(h, [2 * 0.4, 2.0, 2 * 1.7], rtol=1e-14)


@pytest.mark.quick
def test_a_division_by_zero_that_nobody_catches():
    f = tg.njit(njit(lambda x: x[0] * x[1] / (x[2] - x[2])))
    x = tg.tensor(X, requires_grad=True)
    with pytest.raises(ZeroDivisionError):
        f(x)
    y = tg.njit(straight)(x)
    np.testing.assert_allclose(tg.grad(y, x)[0][2], X[0] * X[1])


def long(statements):
    """A block of statements that are more than a record holds."""
    lines = ["def f(x):", "    a, b = x[0], x[1]"]
    for k in range(statements):
        lines.append(f"    a, b = a + {0.001 * (k % 7)} * b * a, b - 0.002 * a * x[2]")
    space = {}
    exec("\n".join([*lines, "    return a * b"]), space)
    return space["f"]


def test_a_long_block_is_several_records(monkeypatch):
    monkeypatch.setattr(record, "MOST", 256)
    primal = long(40)
    function = njit(primal)
    recording = recorded(function)
    assert recording.nbytes > 2 * record.MOST
    x = tg.tensor(X, requires_grad=True)
    expected = tg.grad(primal(x), x)[0]
    np.testing.assert_allclose(tg.func.grad(function)(X), expected, rtol=1e-12)


@pytest.mark.quick
def test_bounds_are_checked_where_asked_for():
    def f(x, k):
        a = x[0] * x[1]
        return a * x[k]

    checked = tg.njit(boundscheck=True)(f)
    x = tg.tensor(X, requires_grad=True)
    with pytest.raises(IndexError):
        checked(x, 3)
    np.testing.assert_allclose(tg.grad(checked(x, 2), x)[0], [3.0 * 0.4, 1.7 * 0.4, 5.1])


@njit
def growing(x, n):
    for k in range(n):
        a = x[0] * (k + 1.0)
        yield a * a


@njit
def generated(x):
    s = 0.0
    for v in growing(x, 3):
        s += v * x[1]
    return s


def test_generators():
    check(generated, lambda x: np.array([28 * x[0] * x[1], 14 * x[0] ** 2, 0.0]))


@njit
def doubled(a):
    b = a * 2.0
    return b * b


@njit
def calls(x):
    a = x[0] * x[1]
    b = doubled(a) + a
    c = a * b
    return doubled(c) * x[2] + a


def test_calls_within_a_block():
    def gradient(x):
        a = x[0] * x[1]
        c = 4 * a**3 + a**2
        by_a = 8 * c * (12 * a**2 + 2 * a) * x[2] + 1
        return np.array([by_a * x[1], by_a * x[0], 4 * c * c])

    check(calls, gradient)


@njit
def walks(x):
    i, s = 0, 0.0
    while i < 2:
        a = x[i]
        i = i + 1
        b = x[i]
        s += a * b * b + x[i - 1] * x[i]
    return s


def test_an_index_that_moves_on():
    check(walks, lambda x: np.array([
        x[1] ** 2 + x[1], 2 * x[0] * x[1] + x[0] + x[2] ** 2 + x[2], 2 * x[1] * x[2] + x[1],
    ]))  # fmt: skip


@njit
def doubles(t):
    t[1] = t[1] * 2.0


@njit
def shared(x):
    t = np.zeros(3)
    v = t[1:]
    t[1] = x[0] * x[1]
    a = t[1]
    v[0] = v[0] * x[2] + t[1]
    b = t[1] * v[0]
    doubles(t)
    return a * b + t[1] + v[0] * t[1]


def test_arrays_that_share_memory():
    def gradient(x):
        p, c = x[0] * x[1], x[2]
        w = p * c + p
        # a b + t1 + v0 t1 = p w w + 2 w + 4 w w
        by_w, by_p = 2 * p * w + 2 + 8 * w, w * w
        return np.array([(by_w * (c + 1) + by_p) * x[1], (by_w * (c + 1) + by_p) * x[0], by_w * p])

    check(shared, gradient, second=True)


@njit
def squares(x):
    s = 0.0
    for k in range(x.size):
        s += x[k] * x[k] + x[k]
    return s


def test_an_element_is_one_leaf():
    recording = recorded(squares)
    assert recording.leaves == 3 * 2
    check(squares, lambda x: 2 * x + 1)


@njit
def scaled(x):
    t, k = np.zeros(3), 0.5 * x.size
    a = t[0] * k
    b = x[0] * k
    return a * b + b * x[1]


def test_a_partial_written_before_the_first_number_on_a_tape():
    check(scaled, lambda x: np.array([1.5 * x[1], 1.5 * x[0], 0.0]))


@jitclass([("side", types.float64)])
class Cube:
    def __init__(self, side):
        self.side = side

    @property
    def volume(self):
        area = self.side * self.side
        return area * self.side


@njit
def properties(x):
    cube = Cube(x[0])
    a = x[1] * x[0]
    b = a * cube.volume
    return b * a


def test_a_property_records_for_itself():
    check(properties, lambda x: np.array([5 * x[0] ** 4 * x[1] ** 2, 2 * x[0] ** 5 * x[1], 0.0]))


@overload_attribute(types.Array, "few")
def _few(a):
    def few(a):
        if a.size > 2:
            raise ValueError("many")
        return a.size

    return few


@overload(math.perm)
def _perm(n, k):
    def perm(n, k):
        if k > n:
            raise ValueError("few")
        return n - k

    return perm


@njit
def asks(t, x, k):
    t[0] = x[0] * x[1]
    t[1] = x[0] * (t.few + k)
    t[2] = 5.0 * x[0]


@njit
def permutes(t, x, k):
    t[0] = x[0] * x[1]
    t[1] = x[0] * math.perm(k, 5)
    t[2] = 5.0 * x[0]


@pytest.mark.parametrize("helper", [asks, permutes])
def test_what_users_add_to_numba_may_raise(helper):
    @njit
    def f(x):
        t = np.zeros(3)
        try:
            helper(t, x, 0)
        except Exception:
            t[2] = x[0] * x[0]
        return t[0] * 2.0 + t[1] + t[2] * x[2]

    check(f, lambda x: np.array([2 * x[1] + 2 * x[0] * x[2], 2 * x[0], x[0] ** 2]))


@njit
def unused(x):
    a = x[0] * x[1]
    b = a * math.inf
    t = np.zeros(2)
    t[0] = x[2] * math.nan + b
    t[1] = a * x[2]
    return t[1] + 0.0 * x[0]


def test_what_nothing_came_to_moves_nothing_where_a_partial_is_an_infinite_literal():
    check(unused, lambda x: np.array([x[1] * x[2], x[0] * x[2], x[0] * x[1]]), second=True)


def test_statements_that_need_no_memory_of_their_own_keep_to_their_room(monkeypatch):
    monkeypatch.setattr(record, "MOST", 64)
    lines = ["def f(x, n):", "    a = x[0] * x[1]", "    for _ in range(n):", *["        a = -a"] * 61]
    space = {}
    exec("\n".join([*lines, "    return a"]), space)
    twin = twin_of(njit(space["f"]), (), True)

    def run(n):
        recording = Recording(X.size)
        twin(entering(X[:, None], (), recording.address, 1), n)
        return recording

    each = run(2).nbytes - run(1).nbytes
    room = run(1).room
    for n in range(room // each - 1, room // each + 2):
        recording = run(n)
        assert recording.nbytes <= recording.room
        del recording


@pytest.mark.parametrize("place", ["option", "environment"])
def test_an_index_out_of_bounds_is_caught(place, monkeypatch):
    if place == "environment":
        monkeypatch.setattr(config, "BOUNDSCHECK", 1)

    @njit(boundscheck=True if place == "option" else None)
    def writes(t, x, k):
        t[0] = x[0] * x[1]
        t[1] = x[0] * t[k]
        t[2] = 5.0 * x[0]

    @njit
    def f(x):
        t = np.zeros(3)
        try:
            writes(t, x, 9)
        except Exception:
            t[2] = x[0] * x[0]
        return t[0] * 2.0 + t[1] + t[2] * x[2]

    check(f, lambda x: np.array([2 * x[1] + 2 * x[0] * x[2], 2 * x[0], x[0] ** 2]))
