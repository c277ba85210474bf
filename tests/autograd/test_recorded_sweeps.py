"""Sweeps that compiled code records give what Python records: first derivatives to the bit.

Those of higher order go by one tape instead of one each, and add up what comes to a record in another order.
In single precision a choice of whole numbers, as np.where(x > 0, 1, 2), is one of integers to Python, which
goes on in double precision.
"""

import gc
import math
import sys
import weakref
from collections import Counter

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.errors import GraphFreedError, UnsupportedOpError, UnusedInputError
from tapegrad.kernels import abi, machine
from tapegrad.kernels.replay import layout
from tapegrad.ops import REGISTRY
from tapegrad.ops.primitive import BY_OPCODE, PROGRAMS, Elementwise
from tapegrad.ops.programs import program_of
from tapegrad.tape import tape as tapes
from tests.ops import checks
from tests.ops import samples_special as special
from tests.ops.layouts import PLAIN, Absent
from tests.ops.samples import REAL_ONLY
from tests.ops.test_every_op import NAMES
from tests.ops.test_special import ONCE
from tests.tiers import thinned

pytestmark = pytest.mark.skipif(
    not abi.native() or bool(layout.BOUNDS), reason="only the native layout has compiled methods"
)
at_once = sys.modules["tapegrad.autograd.at_once"]
FULL, SLOW = pytest.mark.full, pytest.mark.slow


@pytest.fixture(autouse=True)
def compiled():
    machine.load()


@pytest.fixture
def by_python(monkeypatch):
    def switch():
        monkeypatch.setattr(at_once, "rerecord", lambda *_: None)
        monkeypatch.setattr(at_once, "rerecord_sealed", lambda *_: None)

    return switch


def leaf(value):
    return tg.tensor(value, requires_grad=True)


def derivatives(function, arrays, order):
    """Of the sum of what a function gives, by all of its arguments in turn, as often as asked."""
    leaves = [leaf(a) for a in arrays]
    y, found = function(*leaves), []
    for k in range(order):
        x = leaves[k % len(leaves)]
        if not y.requires_grad:
            break
        (y,) = tg.grad(y, x, np.ones(y.shape, y.dtype), create_graph=True, materialize_grads=True)
        found.append(y)
        y = y * (1.0 + 0.5 * y)
    return [(y.detach().numpy(), y.requires_grad) for y in found]


def compare(found, wanted, same=True):
    """The outcomes of two ways; values of the first order are the `same` to the last bit."""
    assert len(found) == len(wanted)
    for order, ((mine, depends), (other, also)) in enumerate(zip(found, wanted, strict=True)):
        assert depends == also
        assert mine.dtype == other.dtype
        if same and order == 0 and mine.dtype != np.float32:
            np.testing.assert_array_equal(mine, other)
        else:
            scale = np.max(np.abs(other), initial=np.finfo(mine.dtype).tiny)
            ulps = 200 if order else 8
            np.testing.assert_allclose(mine, other, rtol=0, atol=scale * ulps * np.finfo(mine.dtype).eps)


ROWS = [op for op in REGISTRY.values() if isinstance(op, Elementwise) and op.arity <= 2 and op.functions]
DOUBLES = ["float64", pytest.param("float32", marks=FULL)]  # of single precision the programs are the same
UFUNCS = [op.name for op in ROWS if isinstance(op.functions[0], np.ufunc)]


def test_rules_that_are_formulas_have_a_program():
    texts = {name for name in UFUNCS if program_of(REGISTRY[name], (0,)) is not None}
    assert texts >= {"add", "subtract", "multiply", "divide", "sin", "cos", "exp", "log", "sqrt", "square"}


@pytest.mark.parametrize("dtype", DOUBLES)
@pytest.mark.parametrize("name", UFUNCS)
def test_every_elementwise_op_as_python_does(by_python, name, dtype):
    op = REGISTRY[name]
    ufunc = op.functions[0]
    random = np.random.default_rng(0)
    arrays = []
    for k in range(op.arity):
        low, high = (max(min(end, 2.0), -2.0) for end in op.domain.of(k))
        if low == high:  # from there on
            high = low + 2.0
        arrays.append((low + (high - low) * random.uniform(0.2, 0.8, 5)).astype(dtype))

    def outcome():
        return derivatives(ufunc, arrays, 4)

    found = outcome()
    by_python()
    compare(found, outcome(), same=not calls_a_step(op))


def calls_a_step(op):
    """Whether a rule calls a formula that is an op: its kernel rounds as it does, not as NumPy's steps."""
    return is_in_steps(op.rule)


def is_in_steps(rule):
    return rule.recorded is not rule.partials


def cut(y):
    """The same, and what follows on another tape."""
    tapes.close(tapes.current())
    return y


def written_twice(y, x):
    """Two writes into parts of one shape, and two views of what is there."""
    y[:2] = np.sin(x[:2]) * x[1:]
    y[1:] *= x[:2]
    return y[:2] * y[1:]


def along_a_line(case, directions, order):
    """Derivatives of the sum of a result along a line, each that of the one before by a recorded sweep."""
    xs = [case.operands[k] for k in case.moves]
    y = np.sum(np.real(case.call(*case.operands)) * weights_of(case))
    found = []
    for _ in range(order):
        if not y.requires_grad:
            return [*found, *[0.0] * (order - len(found))]
        parts = tg.grad(y, xs, create_graph=True, materialize_grads=True)
        y = sum(np.sum(np.real(np.conj(directions[k]) * g)) for k, g in zip(case.moves, parts, strict=True))
        found.append(y.item())
    return found


def weights_of(case):
    """Numbers for the elements of a result, so that the sum of those is not the sum of equal parts."""
    return np.cos(np.arange(float(case.call(*case.operands).size))).reshape(case.call(*case.operands).shape)


TO_ORDER_4 = [
    *thinned(((name, "float64") for name in NAMES), lambda name, _: NAMES.index(name) % 9 == 0),
    # of single precision one op in eight: test_every_op.py takes each of them to second order
    *(pytest.param(name, "float32", marks=FULL if NAMES.index(name) % 8 == 0 else SLOW) for name in NAMES),
    *(pytest.param(name, "complex128", marks=SLOW) for name in NAMES if name not in REAL_ONLY),
]


def is_right_to_order_4(case, dtype):
    """As the rules in Python, and as the power series say, which tests/core/test_series.py checks."""
    directions = checks.tangents(case)
    series = tg.func.taylor(case.call, 4, case.moves)(*case.operands, [directions[k] for k in case.moves])
    eps = 64 * max(np.finfo(series.dtype).eps, np.finfo(dtype).eps)
    series = np.real(series.detach().numpy()) * weights_of(case)
    wanted = [math.factorial(n) * np.sum(series[n]) for n in range(1, 5)]
    # what depends on shapes alone becomes a program
    first, *others = [along_a_line(case, directions, 4) for _ in range(3)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(at_once, "rerecord", lambda *_: None)
        patch.setattr(at_once, "rerecord_sealed", lambda *_: None)
        python = along_a_line(case, directions, 4)
    size = np.maximum.accumulate(np.abs(wanted)) + 1.0
    for found in (first, *others, python):
        assert np.all(np.abs(np.subtract(found, wanted)) <= max(1e-9, eps) * size), (found, wanted)
    for found in (first, *others):
        assert np.all(np.abs(np.subtract(found, python)) <= max(1e-12, eps) * size), (found, python)


@pytest.mark.parametrize(("name", "dtype"), TO_ORDER_4)
def test_every_op_to_order_4(name, dtype):
    cases = checks.sample(name, PLAIN, dtype)
    for case in () if isinstance(cases, Absent) else cases:
        is_right_to_order_4(case, dtype)


SPECIAL_TO_ORDER_4 = [  # the others' rules consist of these, and tests/ops/test_special.py has all to order 2
    pytest.param(name, marks=() if k % 20 == 0 else FULL if k % 5 == 0 else SLOW)
    for k, name in enumerate(special.NAMES)
]


@pytest.mark.parametrize("name", SPECIAL_TO_ORDER_4)
def test_special_functions_to_order_4(name):
    """Or refused, where a second derivative is not known."""
    for case in special.samples(name, PLAIN, "float64"):
        if name in ONCE:
            with pytest.raises(UnsupportedOpError):
                along_a_line(case, checks.tangents(case), 1)
        else:
            is_right_to_order_4(case, "float64")


def operations(results):
    records = tg.diagnostics.Graph(results, limit=100_000).records
    return Counter((record.name, record.shape, record.dtype) for record in records if record.operands)


def records_of(case, order, count=operations):
    """For each order how many operations of a kind a recorded sweep left that its results come from."""
    xs = [case.operands[k] for k in case.moves]
    y, found = np.sum(np.real(case.call(*case.operands)) * weights_of(case)), []
    for _ in range(order):
        parts = tg.grad(y, xs, create_graph=True, materialize_grads=True) if y.requires_grad else ()
        parts = [g for g in parts if g.requires_grad]
        if not parts:
            break
        found.append(count([*parts, y]) - count(y))
        y = sum(np.sum(np.real(g)) * 0.5 for g in parts)
    return found


RECORDED = [(name, "float64") for name in NAMES]  # of complex numbers, whose rules are the same, a third
RECORDED += [(name, "complex128") for name in NAMES[::3]]


@pytest.mark.parametrize(("name", "dtype"), thinned(
    RECORDED, lambda name, dtype: NAMES.index(name) % 18 == 9 * (dtype == "complex128"),
))  # fmt: skip
def test_records_are_those_of_python(name, dtype):
    """To fourth order one for one, but for equal ones, which are one, and formulas that are ops."""
    cases = checks.sample(name, PLAIN, dtype)
    for case in () if isinstance(cases, Absent) or (dtype != "float64" and name in REAL_ONLY) else cases:
        for _ in range(2):  # until there is a program for each rule and shape
            records_of(case, 4, count=lambda _: Counter())
        found = records_of(case, 4)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(at_once, "rerecord", lambda *_: None)
            patch.setattr(at_once, "rerecord_sealed", lambda *_: None)
            wanted = records_of(case, 4)
        assert len(found) == len(wanted)
        op = REGISTRY[name]
        if isinstance(op, Elementwise) and (calls_a_step(op) or (op.mixed and is_in_steps(op.mixed))):
            continue
        for mine, other in zip(found, wanted, strict=True):
            assert not mine - other, "more is recorded"
            assert all(mine[record] for record in other - mine), "something is not recorded"


PROGRAM = {
    "a chain": lambda x: np.sin(np.exp(-x) * x) / (1.0 + x * x),
    "constants": lambda x: (x * np.array([2.0, 3.0, 4.0]) + 1.5) * np.array([1.0, 0.5, 0.25]),
    "linear": lambda x: 3.0 * x - x * 0.5,
    "broadcast": lambda x: (x[:, None] * np.sin(x)).sum(axis=1) + x,
    "numbers": lambda x: np.sum(np.exp(x) * x) * x[0],
    "slices": lambda x: x[1:] * np.log(x[:-1]),
    "products": lambda x: np.stack([x, x * x]) @ x,
    "other rules": lambda x: np.tanh(x) * np.hypot(x, 1.0) + np.abs(x) ** x,
    "single precision": lambda x: np.sin(x.astype(np.float32)) * x,
    "complex": lambda x: np.real(np.exp(1j * x) * x),
    "twice": lambda x: (lambda y: y * y * y)(x * x),
    "one operand twice": lambda x: (
        np.arctan2(x, x) * np.hypot(x, x) + x / x - x**x + np.maximum(x, x) * (x @ x) + np.logaddexp(x, x)
    ),
    "written to": lambda x: (lambda y: (y.__setitem__(0, x[1] * x[2]), y * x)[1])(x * 2.0),
    "a reduction": lambda x: np.mean(x * x) + np.max(x) * np.prod(x),
    "a choice": lambda x: np.where(x > 0.7, np.sin(x), x * x) * np.clip(x, 0.5, 1.0) + np.maximum(x, 0.6),
    "powers": lambda x: x**3 + 2.0**x + x**x + np.float32(2.0) * x ** np.int64(2),
    "products of matrices": lambda x: (np.outer(x, x) @ np.outer(x, np.sin(x)))[0] @ x + x,
    "sums and means": lambda x: np.sum(np.outer(x, x), axis=0) * np.mean(np.outer(x, x), axis=1),
    "an index": lambda x: x[[0, 2, 2]] * np.roll(x, 1) + np.cumsum(x)[::-1],
    "two dtypes": lambda x: np.real(np.outer(x, x) @ np.exp(1j * x)) + x.astype(np.float32) @ np.outer(x, x),
    "several tapes": lambda x: cut(cut(np.sin(x) * 2.0) * x) * np.exp(x) + cut(x * x).sum(),
    "a constant before": lambda x: cut(np.outer(x, np.array([1.0, 2.0, 3.0]))) @ x + cut(np.tanh(x)) ** 2,
    "indices of one shape": lambda x: x[[0, 2]] * x[[1, 1]] * x[0] * x[2] * x[None, 1:, ...][0] * x[2:0:-1],
    "windows of one shape": lambda x: written_twice(x * x, x),
    "other rules before": lambda x: cut(np.abs(x) * np.hypot(x, 2.0)) * cut(x[::-1]),
}


@pytest.mark.parametrize("shape", [(3,), ()])
@pytest.mark.parametrize("name", PROGRAM)
def test_programs_as_python_does(by_python, name, shape):
    if shape == () and name not in ("a chain", "linear", "other rules", "twice", "powers", "several tapes"):
        shape = (3,)
    x = np.linspace(0.4, 1.1, 3) if shape else np.float64(0.7)

    def outcome():
        return derivatives(PROGRAM[name], [x], 3)

    outcome()  # what depends on shapes is a program when they come again
    found = outcome()
    by_python()
    compare(found, outcome())


def test_a_long_history(by_python):
    """More records than a tape takes."""
    x0 = np.linspace(0.4, 1.1, 3)

    def outcome():
        x = leaf(x0)
        y = x
        for _ in range(3000):
            y = y + 0.001 * np.sin(y)
        (g,) = tg.grad(np.sum(y * y), x, create_graph=True)
        (h,) = tg.grad(np.sum(g * g), x, create_graph=True)
        return [t.detach().numpy() for t in (g, h, *tg.grad(h, x, np.ones(3)))]

    outcome()
    found = outcome()
    by_python()
    for mine, other in zip(found, outcome(), strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-11)


def test_hooks_of_several_tapes_are_called(by_python):
    def outcome():
        x, seen = leaf([0.5, 1.5]), []
        x.register_hook(lambda g: seen.append(g.tolist()))
        y = cut(np.sin(x))
        y.register_hook(lambda g: seen.append(g.tolist()))
        (g,) = tg.grad(cut(y * x) * x, x, np.ones(2), create_graph=True)
        (h,) = tg.grad(g, x, np.ones(2), create_graph=True)
        return [*seen, g.tolist(), h.tolist()]

    found = outcome()
    by_python()
    assert found == outcome()
    assert len(found) == 6


def test_several_roots_and_inputs(by_python):
    a, b = np.linspace(0.4, 1.1, 3), np.linspace(1.5, 0.7, 3)

    def outcome():
        x, w = leaf(a), leaf(b)
        y = x * w
        z = np.sin(y) * w
        cts = [leaf(b * 2.0), np.ones(3)]
        gx, gw = tg.grad((y, z), (x, w), cts, create_graph=True)
        found = [gx, gw, *tg.grad(gx * gw, (x, w, cts[0]), np.ones(3))]
        return [t.detach().numpy() for t in found]

    outcome()
    found = outcome()
    by_python()
    for mine, other in zip(found, outcome(), strict=True):
        np.testing.assert_array_equal(mine, other)


def test_what_does_not_depend_on_the_leaves_has_no_history():
    x = leaf([1.0, 2.0])
    for _ in range(2):
        (g,) = tg.grad(x * np.array([2.0, 3.0]) * 0.5, x, np.ones(2), create_graph=True)
        assert g.tolist() == [1.0, 1.5]
        assert not g.requires_grad and g.is_leaf


def test_no_derivative_is_recorded_that_is_not_asked_for():
    """A product with a constant and a sum: nothing of the other operand, nothing of a factor of 1."""
    x = leaf([1.0, 2.0])
    tg.grad(np.sin(x) * 3.0 + x, x, np.ones(2), create_graph=True)
    tapes.close(tapes.current())
    y = np.sin(x) * 3.0 + x
    before = len(y._tape.log) // 4
    (g,) = tg.grad(y, x, np.ones(2), create_graph=True)
    assert g._tape is y._tape
    lines = y._tape.show().splitlines()[1 + before :]
    names = [line.split()[1].partition("(")[0] for line in lines]
    assert names == ["cos", "constant", "multiply", "constant", "add"]


def test_what_a_rule_does_twice_to_one_operand_is_recorded_once():
    """As to both of x * x, whose derivative is the product and its sum with itself."""
    x = leaf([1.0, 2.0, 3.0])
    for function, names in (
        (lambda: x * x, ["multiply", "add"]),
        (lambda: x @ x, ["multiply", "add"]),
        (lambda: np.hypot(x, x), ["where", "cosine", "multiply", "add"]),
        (lambda: x / x, ["divide", "multiply", "negative", "divide", "multiply", "add"]),
    ):
        for _ in range(3):
            y = function()
            before = len(y._tape.log)
            tg.grad(y, x, np.ones(y.shape), create_graph=True)
            recorded = [op for op in y._tape.log[before :: tapes.STRIDE] if op > layout.CONS]
        assert [BY_OPCODE[op].name for op in recorded] == names


def test_several_roots_without_cotangents():
    """Also where a gradient is a view and becomes an array of its own, in a sweep like one before."""
    x = leaf(np.arange(6.0).reshape(2, 3))
    for _ in range(3):
        rows = np.sum(x, axis=1)
        (g,) = tg.grad([np.sum(rows * rows), np.sum(rows * rows)], [x], create_graph=True)
        np.testing.assert_array_equal(g.tolist(), np.repeat([[12.0], [48.0]], 3, axis=1))
        np.testing.assert_array_equal(tg.grad(np.sum(g), [x])[0].numpy(), np.full((2, 3), 12.0))


@pytest.mark.parametrize("create_graph", [False, True])
def test_a_result_on_the_way_to_inputs_keeps_its_gradient(create_graph):
    x = leaf([1.0, 2.0])
    for _ in range(3):
        y = x * 2.0
        y.retain_grad()
        x.grad = None
        np.sum(y * y).backward(create_graph=create_graph, inputs=[x])
        assert y.grad.tolist() == [4.0, 8.0]
        assert x.grad.tolist() == [8.0, 16.0]
        assert y.grad.requires_grad == create_graph


def test_errors_are_those_of_python():
    x, w = leaf([1.0, 2.0]), leaf([3.0])
    y = np.sum(x * x)
    tg.grad(y, x, create_graph=True)
    with pytest.raises(UnusedInputError):
        tg.grad(y, (x, w), create_graph=True)
    assert tg.grad(y, (x, w), create_graph=True, allow_unused=True)[1] is None
    y.backward()
    with pytest.raises(GraphFreedError):
        tg.grad(y, x, create_graph=True)


def test_a_rule_that_raises_leaves_nothing_behind(monkeypatch):
    """Of a length that is 0 somewhere, whose rule looks at values."""
    x = leaf([0.0, 2.0])
    y = np.hypot(x, 0.0) * x
    tg.grad(y, x, np.ones(2), create_graph=True)
    op = REGISTRY["hypot"]
    with monkeypatch.context() as patch:
        patch.setattr(op, "product", lambda *_: 1 / 0, raising=False)
        z = np.hypot(x, 0.0) * x
        kept = weakref.ref(z)
        for _ in range(3):
            with pytest.raises(ZeroDivisionError):
                tg.grad(z, x, np.ones(2), create_graph=True)
        del z
        gc.collect()
        assert kept() is None
    (g,) = tg.grad(np.hypot(x, 0.0) * x, x, np.ones(2), create_graph=True)
    assert g.requires_grad


def test_references_balance():
    x = leaf(np.linspace(0.4, 1.1, 5))
    counted = [x, np.sin, REGISTRY["sin"], None]

    def run():
        y = np.sin(x) * x + np.tanh(x) * 2.0
        (g,) = tg.grad(y, x, np.ones(5), create_graph=True)
        tg.grad(g, x, np.ones(5))

    for _ in range(5):
        run()
    gc.collect()
    before = [sys.getrefcount(each) for each in counted[:3]]
    objects = len(gc.get_objects())
    for _ in range(200):
        run()
    gc.collect()
    assert [sys.getrefcount(each) for each in counted[:3]] == before
    assert abs(len(gc.get_objects()) - objects) < 50


@pytest.mark.parametrize("alive", [False, True])
@pytest.mark.parametrize("records", [-1, 0, 1])
def test_a_long_tape_is_left_for_another_graph(records, alive):
    """Where nothing is on it any more: what a graph needs lies on one tape then."""
    tapes.close(tapes.current())
    x = leaf(np.linspace(0.4, 1.1, 3))
    y = np.sin(x)
    serial = y._tape.serial
    while len(y._tape.log) // 4 < layout.RESTARTED + records:
        y = y * 0.999
    if not alive:
        del y
    z = np.sin(leaf(np.linspace(0.4, 1.1, 3)))
    assert (z._tape.serial == serial) == (alive or records <= 0)


def test_a_tape_has_room_for_higher_orders():
    """A graph of higher order than an ordinary tape would take stays on one."""
    tapes.close(tapes.current())
    x = leaf(np.linspace(0.4, 1.1, 3))
    tg.grad(np.sin(x), x, np.ones(3), create_graph=True)
    y = x * 1.0
    for _ in range(8):
        y = np.sin(y) * x + x
    tape = y._tape
    for _ in range(5):
        (y,) = tg.grad(y, x, np.ones(3), create_graph=True)
        assert y._tape is tape
    assert len(tape.log) // 4 > tapes.MAX_RECORDS
    assert len(tape.log) // 4 <= layout.MOST_RECORDED
    for _ in range(layout.MOST_RECORDED):  # to seal it at once would take as long as the sweep
        y = y * 1.0
        if y._tape is not tape:
            break
    assert y._tape is not tape


def test_room_for_a_sweep_does_not_keep_what_is_dead():
    """A value that only a tape holds is gone when as many records as usual have come."""
    tapes.close(tapes.current())
    x = leaf(np.linspace(0.4, 1.1, 3))
    y = x * 1.0
    for _ in range(3 * tapes.MAX_RECORDS // 8):
        y = y * 0.999
    (g,) = tg.grad(y, x, np.ones(3), create_graph=True)
    kept = x + 1.0
    lost = weakref.ref((np.sin(x) * x)._v)
    for _ in range(3 * tapes.MAX_RECORDS):
        x + 1.0
    assert lost() is None
    assert kept.requires_grad and g.shape == (3,)


def test_what_a_graph_needs_besides_is_not_kept_on_its_account():
    """The limit of a tape that a sweep reads little of stays."""
    tapes.close(tapes.current())
    x = leaf(np.linspace(0.4, 1.1, 3))
    y = np.sin(x)
    for _ in range(200):
        (g,) = tg.grad(np.sin(y) * y, y, np.ones(3), create_graph=True)
        y = y - 0.01 * g
    assert len(y._tape.log) // 4 <= tapes.MAX_RECORDS + 100


def test_hooks_on_the_way_are_called(by_python):
    x = leaf([1.0, 2.0])
    seen = []
    for _ in range(2):
        y = np.sin(x)
        y.register_hook(seen.append)
        (g,) = tg.grad(y * x, x, np.ones(2), create_graph=True)
        (h,) = tg.grad(g, x, np.ones(2))
        v = x.detach().numpy()
        np.testing.assert_allclose(h.tolist(), 2 * np.cos(v) - v * np.sin(v))
    assert len(seen) == 4  # of the second derivative, too, which goes through y


def test_a_changed_rule_changes_both_sweeps(monkeypatch):
    """A program is read off the text of the rule that is in force."""
    op = REGISTRY["sin"]
    x = leaf([1.0, 2.0])
    tg.grad(np.sin(x), x, np.ones(2), create_graph=True)
    assert PROGRAMS[op.opcode] is not None
    op.complete()
    assert PROGRAMS[op.opcode] is None
    (g,) = tg.grad(np.sin(x), x, np.ones(2), create_graph=True)
    np.testing.assert_array_equal(g.tolist(), np.cos([1.0, 2.0]))


@pytest.mark.parametrize("shape", [(3,), ()])
@pytest.mark.parametrize("name", PROGRAM)
def test_lanes_as_python_does(by_python, name, shape):
    """Many cotangents at once, by programs of which nothing is recorded."""
    if shape == () and name not in ("a chain", "linear", "other rules", "twice", "powers", "several tapes"):
        shape = (3,)

    def outcome():
        x = leaf(np.linspace(0.4, 1.1, 3) if shape else np.float64(0.7))
        y = PROGRAM[name](x)
        cts = np.linspace(-1.0, 2.0, 4 * y.size).reshape((4, *y.shape))
        found = []
        for _ in range(3):  # what depends on shapes is a program when they come again
            (g,) = tg.grad(y, x, cts.astype(y.dtype), retain_graph=True, is_grads_batched=True)
            assert not g.requires_grad
            found.append(g.detach().numpy())
        return found

    found = outcome()
    by_python()
    for mine, other in zip(found, outcome(), strict=True):
        assert mine.dtype == other.dtype
        assert mine.shape == other.shape
        np.testing.assert_allclose(mine, other, rtol=1e-13, atol=1e-14 * np.max(np.abs(other)))
