"""Members of records, of instances, of typed containers and of named tuples, in compiled functions."""

from typing import Any, NamedTuple

import numpy as np
import pytest
from numba import deferred_type, float64, int64, njit, optional, typed, types
from numba.experimental import jitclass

import tapegrad as tg
from tapegrad.errors import UnsupportedOpError
from tests.tiers import every

from .test_complexes import differences

AT = [0.5, 1.5]
RECORD = np.dtype([("x", np.float64), ("k", np.int32), ("p", np.float64, (3,)), ("z", np.complex128)])
INNER = np.dtype([("at", np.dtype([("x", np.float64), ("y", np.float64)])), ("n", np.int64)])
FLOATS = types.float64[:]


@njit
def scaled(a, b):
    return a * b


@jitclass([("a", float64), ("n", int64), ("v", float64[:])])
class Gain:
    def __init__(self, a, v):
        self.a = a
        self.n = 0
        self.v = v

    def apply(self, x):
        self.n += 1
        product = scaled(self.a, x)
        self.a = product + self.v[0]
        return product * self.n

    @property
    def twice(self):
        return 2 * self.a

    @twice.setter
    def twice(self, y):
        self.a = y / 2

    @staticmethod
    def square(x):
        return x * x

    def sum(self):
        return self.a + self.v.sum()

    def __getitem__(self, k):
        return self.v[k]

    def __add__(self, other):
        return self.a + other.a


@jitclass([("x", float64), ("y", float64)])
class Point:
    def __init__(self, x, y):
        self.x = x
        self.y = y

    def distance(self, other):
        return np.sqrt((self.x - other.x) ** 2 + (self.y - other.y) ** 2)


@jitclass([
    ("at", Point.class_type.instance_type), ("w", float64[:, :]), ("past", types.ListType(float64)),
    ("named", types.DictType(types.unicode_type, float64)), ("t", types.UniTuple(float64, 2)),
    ("z", types.complex128),
])  # fmt: skip
class Body:
    def __init__(self, at, n):
        self.at = at
        self.w = np.zeros((n, n))
        self.past = typed.List.empty_list(float64)
        self.named = typed.Dict.empty(types.unicode_type, float64)
        self.t = (at.x, 2.0)
        self.z = complex(at.x, at.y)

    def step(self, f):
        for i in range(self.w.shape[0]):
            self.w[i, i] += f * i
        self.past.append(f)
        self.named["f"] = f * f
        self.z *= 1j * f
        return self.w.sum() + self.past[0] + self.named["f"] + self.t[0] * self.z.real


NODE = deferred_type()


@jitclass([("data", float64), ("next", optional(NODE))])
class Node:
    def __init__(self, data, next):
        self.data = data
        self.next = next


NODE.define(Node.class_type.instance_type)


class Pair(NamedTuple):
    a: float
    b: Any


def records(x):
    a = np.zeros(3, RECORD)
    a[0].x = x[0] * x[1]
    a["x"][1] = x[1]
    a.p[:, 1] = x[0]
    a[2].k = 4
    a[2].p[0] += x[1] * x[1]
    a[1]["z"] = x[0] * 1j
    row = a[1]
    row.x *= x[0]
    a[2].p = a[0].p
    b = np.zeros_like(a)
    b[1:] = a[:2]
    a[0] = a[1]
    inner = np.empty((2, 2), dtype=INNER)
    inner[0, 1].at.x = x[0]
    inner[0, 1].at.y = 2.0 * inner[0, 1].at.x
    s = inner[0, 1].at.y * x[1] + b[1].x + b.x.sum() * inner.n.size + a.nbytes + b.itemsize * x[0]
    for e in a:
        s += e.x * e.k + e.p[0] * e.p[1] + e.z.imag
    return s + a.p.sum() * np.sum(a["x"]) + abs(a[1].z)


def instances(x):
    g = Gain(x[0], np.zeros(2) + x[1])
    y = g.apply(x[1]) + g.apply(2.0) * g.apply(x[0]) + g.twice + g[1] + g.square(x[0]) + g.sum()
    g.twice = x[1] * x[0]
    return y * g.a + (g + Gain(1.0, x)) + Gain(x[0], np.arange(3.0)).apply(x[1])


def accumulators(x):
    total = Point(0.0, 0.0)
    for v in x:
        total.x += v * v
        total.y = total.y * v + total.x
    return total.x * total.y


def nested(x):
    p = Point(x[0], x[1])
    body = Body(p, 3)
    s = body.step(x[1]) + body.step(x[0] * 2.0)
    body.at.x += s
    several = [p, Point(1.0, 2.0)]
    several[1].y = x[0]
    kept = typed.List()
    kept.append(p)
    kept.append(several[1])
    return p.distance(several[1]) * s + abs(body.z) + kept[1].distance(kept[0])


def linked(x):
    head = Node(x[0], None)
    for k in range(1, x.size):
        head = Node(x[k] * x[k], head)
    return head.data * head.next.data


def named_tuples(x):
    p = Pair(x[0] * x[1], x)
    q = Pair(1.0, 2.0)
    q = Pair(p.a, p.b[1] * q.b)
    t = (p, (x[0], 2, 1.5))
    s = t[0].a * t[1][0] + q.a * q.b
    for v in (x[0], x[1] * 2, x[0] * x[1], 2.0):
        s += v * v
    items = (x[0] * x[1], x[1], 3.0)
    for k in range(3):
        s += items[k] * k
    return s


def typed_lists(x):
    a = typed.List()
    for v in x:
        a.append(v * v)
    a[0] += x[1]
    a.insert(0, x[0] * x[1])
    a.append(2.0)
    b = typed.List([x[0], x[1] * 2])
    c = typed.List.empty_list(types.float64)
    c.append(1.0)
    c.extend(a)
    c[0] = x[1] * 3
    s = a.pop() * a[0]
    for v in c:
        s += v * v
    rows = typed.List.empty_list(FLOATS)
    rows.append(x * x)
    rows.append(np.zeros(2))
    rows[1][0] = x[1]
    pairs = typed.List.empty_list(types.complex128)
    pairs.append(complex(x[0], x[1]))
    pairs.append(2j)
    return s + sum(b) + c[1] + len(c) + b[1] * c[0] + rows[0][1] * rows[1][0] + (pairs[0] * pairs[1]).real


def typed_dicts(x):
    a = typed.Dict.empty(key_type=types.unicode_type, value_type=types.float64)
    a["a"] = x[0] * x[1]
    a["b"] = 2.0
    a["b"] *= x[0]
    b = typed.Dict()
    b[1] = x[0]
    b[2] = 2 * x[1]
    c = typed.Dict.empty(types.float64, types.float64)
    c[0.5] = x[1] * x[1]
    d = {1: x[0] * 2.0, 2: 3.0}
    e = typed.Dict.empty(types.int64, FLOATS)
    e[1] = x * 2.0
    s = e[1].sum()
    for v in a.values():
        s += v * v
    for k, v in b.items():
        s += k * v * v
    if "a" in a:
        s += a.pop("a") + a.get("c", 0.0)
    return s + c[0.5] * d[1] * d[2] + b.setdefault(3, x[0])


PROGRAMS = [records, instances, accumulators, linked, named_tuples]
SLOW = [pytest.param(program, marks=pytest.mark.slow) for program in (nested, typed_lists, typed_dicts)]


def check(compiled, reference, x):
    out = compiled(x)
    np.testing.assert_allclose(out.detach(), reference(np.array(AT)), rtol=1e-13)
    np.testing.assert_allclose(tg.grad(out, x)[0], differences(reference, AT), rtol=1e-8)


@pytest.mark.parametrize("program", [*PROGRAMS, *SLOW], ids=lambda f: f.__name__)
def test_gradients_beside_differences(program):
    compiled = tg.njit(program)
    check(compiled, compiled.primal, tg.tensor(AT, requires_grad=True))


LONG = [
    pytest.param(program, marks=pytest.mark.slow)
    for program in (records, instances, nested, linked, named_tuples, typed_lists, typed_dicts)
]


@pytest.mark.parametrize("program", [accumulators, *LONG], ids=lambda f: f.__name__)
def test_second_derivatives(program):
    compiled, u = tg.njit(program), np.array([1.0, -2.0])
    gradient = tg.func.grad(compiled)
    expected = differences(lambda v: gradient(v) @ u, AT)
    np.testing.assert_allclose(tg.func.hvp(compiled)(np.array(AT), u), expected, rtol=1e-8)
    x = tg.tensor(AT, requires_grad=True)
    (g,) = tg.grad(compiled(x), x, create_graph=True)
    np.testing.assert_allclose(tg.grad((g * u).sum(), x)[0], expected, rtol=1e-8)


@tg.njit
def with_instance(x, g):
    g.n += 1
    return g.square(x[0]) * x[1] + g.a * x[0] + g.twice * x[0] + g[0] * x[1] + g.sum() * x[0]


@tg.njit
def with_instances(x, several):
    p, q = several
    return x[0] * p.x * p.distance(q), several


def test_instances_from_outside_are_read():
    x, g = tg.tensor(AT, requires_grad=True), Gain(2.0, np.ones(2))
    check(lambda x: with_instance(x, g), lambda x: with_instance.primal(x, g), x)
    assert g.n == 10 and g.a == 2.0
    slope = tg.func.grad(with_instance)(np.array(AT), g)
    np.testing.assert_array_equal(slope, tg.grad(with_instance(x, g), x)[0])
    y, (p, _) = with_instances(x, (Point(1.0, 2.0), Point(4.0, 6.0)))
    assert isinstance(p, Point) and p.x == 1.0
    np.testing.assert_array_equal(tg.grad(y, x)[0], [5.0, 0.0])


def test_records_from_outside_are_read():
    @tg.njit
    def program(x, rows, row):
        made = np.zeros_like(rows)
        made["x"][:] = rows["x"] * x[0]
        made[1].x += row.x * rows[1].p[2]
        rows[0].k = 7
        return made.x.sum() * x[1] + rows.z[1].imag * x[0]

    rows = np.zeros(2, RECORD)
    rows["x"], rows["p"], rows["z"] = [1.0, 2.0], 3.0, 4j
    reference = program.primal
    check(lambda x: program(x, rows, rows[1]), lambda x: reference(x, rows, rows[1]),
          tg.tensor(AT, requires_grad=True))  # fmt: skip
    assert rows["k"][0] == 7


@jitclass([("a", float64)])
class Noisy:
    def __init__(self, a):
        self.a = a

    def draw(self):
        return self.a * np.random.normal()  # noqa: NPY002


def test_methods_that_draw_random_numbers_have_no_second_derivative():
    @tg.njit
    def program(x):
        return Noisy(x[0]).draw() * x[0]

    x = tg.tensor(AT, requires_grad=True)
    (g,) = tg.grad(program(x), x, create_graph=True)
    with pytest.raises(UnsupportedOpError, match="draws random numbers"):
        tg.grad(g.sum(), x)


# ---------------------------------------------------------------- what is refused


def member_of_instance(x, g, rows, items):
    g.a = x[0]


def method_of_instance(x, g, rows, items):
    return g.apply(x[0])


def array_of_instance(x, g, rows, items):
    g.v[0] = x[0]


def member_of_record(x, g, rows, items):
    rows[0].x = x[0]


def item_of_record(x, g, rows, items):
    rows[0]["x"] = x[0]


def column_of_records(x, g, rows, items):
    rows["x"][0] = x[0]


def nested_array(x, g, rows, items):
    rows[0].p[1] = x[0]


def record_to_outside(x, g, rows, items):
    made = np.zeros(1, RECORD)
    made[0].x = x[0]
    rows[0] = made[0]


def copied_records(x, g, rows, items):
    made = rows.copy()
    made[0].x = x[0]
    return made[0].x


def floats_into_nested(x, g, rows, items):
    made = np.zeros(1, RECORD)
    made[0].p = rows[0].p
    return made[0].p[0] * x[0]


def plain_array_member(x, g, rows, items):
    made = Gain(x[0], g.v)
    made.v = x
    return made.apply(x[1])


def list_from_outside(x, g, rows, items):
    items.append(x[0])


def list_item_from_outside(x, g, rows, items):
    items[0] = x[0]


def instance_returned(x, g, rows, items):
    return Point(x[0], 1.0)


def records_returned(x, g, rows, items):
    made = np.zeros(1, RECORD)
    made[0].x = x[0]
    return x[0], made


def list_returned(x, g, rows, items):
    return typed.List([x[0], x[1]])


def memory_of_records(x, g, rows, items):
    made = np.zeros(1, RECORD)
    made[0].x = x[0]
    return made.strides[0] * x[0]


CASES = {  # the function, what stands in its line, and a word of the advice
    member_of_instance: ("g.a = x[0]", "from outside"),
    method_of_instance: ("self.a = product + self.v[0]", "from outside"),
    array_of_instance: ("g.v[0] = x[0]", "from outside"),
    member_of_record: ("rows[0].x = x[0]", "from outside"),
    item_of_record: ('rows[0]["x"] = x[0]', "from outside"),
    column_of_records: ('rows["x"][0] = x[0]', "from outside"),
    nested_array: ("rows[0].p[1] = x[0]", "from outside"),
    record_to_outside: ("rows[0] = made[0]", "from outside"),
    copied_records: ("made[0].x = x[0]", "from outside"),
    floats_into_nested: ("made[0].p = rows[0].p", "copy its elements"),
    plain_array_member: ("made.v = x", "as a Tensor"),
    list_from_outside: ("items.append(x[0])", "typed containers"),
    list_item_from_outside: ("items[0] = x[0]", "from outside"),
    instance_returned: ("return Point(x[0], 1.0)", "return the numbers"),
    records_returned: ("return x[0], made", "return the numbers"),
    list_returned: ("return typed.List", "return the numbers"),
    memory_of_records: ("made.strides", "loops"),
}


@pytest.mark.quick
@pytest.mark.parametrize("function", every(CASES, 6), ids=lambda f: f.__name__)
def test_refused_by_line(function):
    x, items = tg.tensor(AT, requires_grad=True), typed.List([1.0, 2.0])
    with pytest.raises(UnsupportedOpError) as caught:
        tg.njit(function)(x, Gain(2.0, np.ones(2)), np.zeros(2, RECORD), items)
    line, advice = CASES[function]
    assert line in str(caught.value) and advice in str(caught.value)
