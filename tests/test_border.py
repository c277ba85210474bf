"""Where Tensors meet NumPy and Python: case E-12, operands of other kinds, and arrays written to later."""

import cmath
import functools
import importlib
import math
import operator

import numpy as np
import pytest
from scipy import sparse

import tapegrad as tg
from tapegrad.errors import BorderError, DTypeError, ShapeError, TapeError, UnsupportedOpError
from tapegrad.scipy import integrate


def leaf(data=(1.0, 2.0), dtype=float):
    return tg.tensor(data, dtype=dtype, requires_grad=True)


# ---------------------------------------------------------------- E-12: what would drop a derivative

DROPPING = {
    "np.asarray": (lambda x: np.asarray(x), 2.0),
    "np.array": (lambda x: np.array(x), 2.0),
    "np.asarray with a dtype": (lambda x: np.asarray(x, np.float32), 2.0),
    "np.asanyarray": (lambda x: np.asanyarray(x), 2.0),
    "np.ascontiguousarray": (lambda x: np.ascontiguousarray(x).reshape(()), 2.0),
    "np.array of a list": (lambda x: np.array([x, x])[0], 2.0),
    "np.array of nested lists": (lambda x: np.array([[x, 1.0]])[0, 0], 2.0),
    "numpy()": (lambda x: x.numpy(), 2.0),
    "float": (float, 2.0),
    "int": (int, 2),
    "complex": (complex, 2 + 0j),
    "math.sin": (math.sin, math.sin(2.0)),
    "math.sqrt": (math.sqrt, math.sqrt(2.0)),
    "cmath.exp": (cmath.exp, cmath.exp(2.0)),
    "np.float64": (np.float64, 2.0),
    "sum of a list": (lambda x: np.sum([x, x]), 4.0),
    "max of a list": (lambda x: np.max([x, 1.0]), 2.0),
    "mean of a tuple": (lambda x: np.mean((x, x)), 2.0),
    "sin of a list": (lambda x: np.sin([x, x])[0], np.sin(2.0)),
    "dot of lists": (lambda x: np.dot([x], [3.0]), 6.0),
    "array plus a list": (lambda x: np.add(np.ones(1), [x])[0], 3.0),
}


@pytest.mark.parametrize(("convert", "value"), DROPPING.values(), ids=DROPPING)
def test_E12_conversion_raises_while_recording(convert, value):
    x = leaf(2.0)
    for t in (x, x * 1.0):
        with pytest.raises(BorderError, match="derivative") as found:
            convert(t)
        assert isinstance(found.value, RuntimeError)
    x.grad = None
    (x * x).backward()
    assert x.grad.item() == 4.0


@pytest.mark.parametrize(("convert", "value"), DROPPING.values(), ids=DROPPING)
def test_E12_conversion_gives_the_value_otherwise(convert, value):
    x = leaf(2.0)
    with tg.no_grad():
        assert convert(x) == value
        assert convert(x * 1.0) == value
    assert convert(x.detach()) == value
    assert convert(tg.tensor(2.0)) == value


@pytest.mark.parametrize("target", ["element", "slice", "mask", "all"])
def test_E12_assignment_into_an_array(target):
    x, a = leaf(2.0), np.zeros(3)
    index = {"element": 0, "slice": slice(1), "mask": np.array([True, False, False]), "all": ...}[target]
    with pytest.raises((BorderError, ValueError)) as found:
        a[index] = x
    # NumPy wraps what float() raises in a ValueError of its own when one element is assigned
    error = found.value if isinstance(found.value, BorderError) else found.value.__cause__
    assert isinstance(error, BorderError)
    assert "tg.array" in str(error)
    assert a.tolist() == [0.0] * 3
    with tg.no_grad():
        a[index] = x
    assert a[0] == 2.0
    with pytest.raises(BorderError):
        a[:2] = leaf()
    a[:2] = leaf().detach()
    assert a.tolist()[:2] == [1.0, 2.0]


def test_E12_round_as_of_numbers():
    x = leaf(2.567)
    assert isinstance(round(x, 2), tg.Tensor) and round(x, 2).item() == 2.57
    assert not round(x, 2).requires_grad
    assert round(x.detach()) == 3 and type(round(x.detach())) is int
    with pytest.raises(BorderError, match=r"round\(\) of a Tensor"):
        round(x)


def test_E12_messages_name_the_way_out():
    for call in (float, np.asarray, lambda x: np.array([x, x])):
        with pytest.raises(BorderError) as found:
            call(leaf(2.0))
        for way in (".item()", ".detach()", "no_grad", "tg.array", "np.stack"):
            assert way in str(found.value)


def test_E12_several_elements():
    x = leaf()
    for call in (float, int, complex):
        with pytest.raises(ValueError, match=r"\(2,\)"):
            call(x.detach())
        with tg.no_grad(), pytest.raises(ValueError, match=r"\(2,\)"):
            call(x)
    with pytest.raises(TypeError):
        operator.index(tg.tensor(1.0))
    assert operator.index(tg.tensor(3)) == 3


def test_E12_what_works_for_tensors_requiring_grad():
    x = leaf([[2.5]])
    assert x.item() == 2.5
    assert x.tolist() == [[2.5]]
    assert bool(x) is True
    assert (x > 2).item() is True
    assert (x == 2.5).item() is True
    s = leaf(2.5)
    assert f"{s:.2f} {s:8.1e}" == "2.50  2.5e+00"
    assert f"{x}" == "tensor([[2.5]], requires_grad=True)"
    assert "{:.0f}".format(s * 2.0) == "5"  # noqa: UP032
    assert leaf([1.0, 2.0]).item(1) == 2.0
    assert max(leaf(1.0), leaf(3.0)).item() == 3.0
    assert [t.item() for t in sorted([leaf(3.0), leaf(1.0)])] == [1.0, 3.0]
    with pytest.raises(TypeError, match="0-d"):
        format(x, ".2f")
    with pytest.raises(ValueError):
        leaf().item()


@pytest.mark.parametrize("function", [np.stack, np.concatenate, np.vstack, np.hstack, tg.array])
def test_E12_lists_of_tensors_where_numpy_dispatches(function):
    x = leaf()
    y = function([x, x * 2.0])
    (y * y).sum().backward()
    assert x.grad.tolist() == [10.0, 20.0]


def test_python_sum_of_tensors_records():
    x = leaf()
    sum(x).backward()
    sum([t * t for t in x], 0.0).backward()
    assert x.grad.tolist() == [3.0, 5.0]


# ---------------------------------------------------------------- operands of other kinds

OTHERS = {
    "float": 3.0,
    "int": 3,
    "bool": True,
    "np.float64": np.float64(3.0),
    "np.float32": np.float32(3.0),
    "np.int8": np.int8(3),
    "0-d array": np.array(3.0),
    "array": np.array([3.0, 4.0]),
    "float32 array": np.array([3.0, 4.0], np.float32),
    "int array": np.array([3, 4]),
    "bool array": np.array([True, True]),
    "matrix-shaped": np.array([[3.0], [4.0], [5.0]]),
    "list": [3.0, 4.0],
    "Tensor": tg.tensor([3.0, 4.0]),
    "int Tensor": tg.tensor([3, 4]),
}
OPERATORS = {
    "+": (operator.add, lambda a, b: (1.0, 1.0)),
    "-": (operator.sub, lambda a, b: (1.0, -1.0)),
    "*": (operator.mul, lambda a, b: (b, a)),
    "/": (operator.truediv, lambda a, b: (1 / b, -a / b**2)),
    "**": (operator.pow, lambda a, b: (b * a ** (b - 1.0), a**b * np.log(a))),
}


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("op", OPERATORS)
def test_operators_with_other_operands_on_both_sides(op, other, dtype):
    function, partials = OPERATORS[op]
    b, data = OTHERS[other], np.array([1.5, 2.5], dtype)
    plain = np.array(b.tolist(), b.dtype) if isinstance(b, tg.Tensor) else b
    plain = np.array(plain) if isinstance(plain, list) else plain
    wide = np.asarray(plain, float)
    for left in (True, False):
        x = leaf(data, dtype)
        y = function(x, b) if left else function(b, x)
        assert type(y) is tg.Tensor
        wanted = function(data, plain) if left else function(plain, data)
        assert y.dtype == wanted.dtype
        np.testing.assert_array_equal(y.detach().numpy(), wanted)
        y.sum().backward()
        pair = (data.astype(float), wide) if left else (wide, data.astype(float))
        slope = np.broadcast_to(partials(*pair)[0 if left else 1], y.shape)
        slope = slope.reshape(-1, 2).sum(0)
        assert x.grad.dtype == dtype
        np.testing.assert_allclose(x.grad.numpy(), slope, rtol=1e-5 if dtype == np.float32 else 1e-13)


@pytest.mark.parametrize("left", [np.float64(2), np.float32(2), np.int64(2), np.array(2.0), np.ones((2, 2))])
@pytest.mark.parametrize("op", [operator.add, operator.mul, operator.truediv, operator.pow, operator.gt])
def test_numpy_on_the_left_gives_a_tensor(left, op):
    x = leaf()
    assert type(op(left, x)) is tg.Tensor
    assert op(left, x).tolist() == op(left, np.array([1.0, 2.0])).tolist()


def test_matmul_with_arrays_on_both_sides():
    m, x = np.array([[1.0, 2.0], [3.0, 4.0]]), leaf()
    (m @ x).sum().backward()
    assert x.grad.tolist() == [4.0, 6.0]
    (x @ m).sum().backward()
    assert x.grad.tolist() == [7.0, 13.0]
    for call in (lambda: x @ 2.0, lambda: 2.0 @ x, lambda: x @ np.ones(3), lambda: np.ones((2, 3)) @ x):
        with pytest.raises(ShapeError, match="matmul"):
            call()


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (f, s)
        for f in ("f4", "f8", "i1", "i8", "?")
        for s in (2, 2.0, True, np.float32(2), np.float64(2), np.int16(2))
    ],
)
def test_promotion_is_numpys(a, b):
    array = np.array([1, 1], a)
    for function in (operator.add, operator.mul, operator.truediv, np.maximum, np.arctan2):
        try:
            wanted = function(array, b)
        except TypeError:
            continue
        for t in (tg.tensor(array), tg.tensor(array).astype(a)):
            if wanted.dtype == np.float16:  # a dtype that Tensors do not have
                continue
            assert function(t, b).dtype == wanted.dtype
        if a in ("f4", "f8"):
            assert function(tg.tensor(array, requires_grad=True), b).dtype == wanted.dtype


@pytest.mark.parametrize("bad", ["text", b"bytes", None, object(), {}, {1.0}, lambda: 0, slice(1), Ellipsis])
@pytest.mark.parametrize("op", [operator.add, operator.sub, operator.mul, operator.truediv, operator.lt])
def test_foreign_operands_raise_TypeError(op, bad):
    x = leaf()
    for call in (lambda: op(x, bad), lambda: op(bad, x)):
        with pytest.raises(TypeError):
            call()


@pytest.mark.parametrize("bad", [np.array(["a"]), np.array([None]), np.array(["2000"], "M8[D]")])
@pytest.mark.parametrize("op", [operator.add, operator.mul, np.maximum, np.arctan2])
def test_foreign_dtypes_raise(op, bad):
    x = leaf()
    for call in (lambda: op(x, bad), lambda: op(bad, x)):
        with pytest.raises(DTypeError) as found:
            call()
        assert isinstance(found.value, RuntimeError)
        assert isinstance(found.value, TypeError)


@pytest.mark.parametrize("op", [operator.add, operator.mul, np.maximum, operator.gt, np.hypot, np.where])
def test_E13_shapes_that_do_not_fit(op):
    x = leaf()
    call = (lambda a, b: np.where(True, a, b)) if op is np.where else op
    for other in (np.ones(3), tg.ones((2, 3)), [1.0, 2.0, 3.0], leaf(np.ones(3))):
        for pair in ((x, other), (other, x)):
            with pytest.raises(ShapeError, match=r"\(2,\)") as found:
                call(*pair)
            assert isinstance(found.value, RuntimeError)
            assert isinstance(found.value, ValueError)


def test_E10_out_arguments_raise_where_a_gradient_is_required():
    x, a = leaf(), np.zeros(2)
    for call in (
        lambda: np.add(x, 1.0, out=a),
        lambda: np.add(np.ones(2), np.ones(2), out=x),
        lambda: np.sum(x, out=np.zeros(())),
        lambda: np.cumsum(x, out=a),
        lambda: np.concatenate([x, x], out=np.zeros(4)),
        lambda: np.clip(x, 0, 1, out=a),
    ):
        with pytest.raises(UnsupportedOpError, match="out="):
            call()
    assert a.tolist() == [0.0, 0.0]
    assert x.tolist() == [1.0, 2.0]


INTO = {  # name: (call, shape of the result)
    "add": (lambda x, out: np.add(x, 1.0, out=out), (2,)),
    "add where": (lambda x, out: np.add(x, 1.0, out=out, where=[True, False]), (2,)),
    "broadcast": (lambda x, out: np.multiply(x, 2.0, out=out), (3, 2)),
    "add.reduce": (lambda x, out: np.add.reduce(x, out=out), ()),
    "sum": (lambda x, out: np.sum(x, 0, None, out), ()),
    "sum method": (lambda x, out: x.sum(out=out), ()),
    "max": (lambda x, out: np.max(x, 0, out), ()),
    "var": (lambda x, out: np.var(x, out=out), ()),
    "std": (lambda x, out: np.std(x, keepdims=True, out=out), (1,)),
    "cumsum": (lambda x, out: np.cumsum(x, out=out), (2,)),
    "clip": (lambda x, out: np.clip(x, 1.5, 3.0, out), (2,)),
    "take": (lambda x, out: np.take(x, [1, 0], 0, out), (2,)),
    "dot": (lambda x, out: np.dot(np.ones((2, 2)), x, out), (2,)),
    "outer": (lambda x, out: np.outer(x, x, out), (2, 2)),
    "einsum": (lambda x, out: np.einsum("i,i->i", x, x, out=out), (2,)),
    "concatenate": (lambda x, out: np.concatenate([x, x], 0, out), (4,)),
    "stack": (lambda x, out: np.stack([x, x], out=out), (2, 2)),
    "round": (lambda x, out: np.round(x, 0, out=out), (2,)),
}


@pytest.mark.parametrize("name", INTO)
@pytest.mark.parametrize("kind", ["ndarray", "Tensor"])
def test_E10_out_arguments_work_otherwise(name, kind):
    call, shape = INTO[name]
    wanted = np.full(shape, 9.0)
    call(np.array([1.0, 2.0]), wanted)
    for mode in (tg.no_grad, tg.enable_grad):
        x = leaf((1.0, 2.0)) if mode is tg.no_grad else tg.array([1.0, 2.0])
        out = np.full(shape, 9.0) if kind == "ndarray" else tg.full(shape, 9.0)
        with mode():
            assert call(x, out) is out
        assert out.tolist() == wanted.tolist()
        if kind == "Tensor":
            assert out._version == 1


def test_E10_out_does_not_reach_what_a_tape_reads():
    x, c = leaf((1.0, 2.0)), tg.array([3.0, 4.0])
    y = (x * c).sum()
    assert np.negative(c, out=c) is c
    y.backward()
    assert x.grad.tolist() == [3.0, 4.0]
    assert c.tolist() == [-3.0, -4.0]


def test_E10_out_that_does_not_fit():
    for out in (np.zeros(3), tg.zeros(3)):
        with pytest.raises(ShapeError, match=r"\(3,\)"):
            np.add(tg.ones(2), 1.0, out=out)
    with pytest.raises(TypeError, match="out="):
        tg.ones(2).sum(out=[0.0])


@pytest.mark.parametrize("write", [
    lambda t: np.copyto(t, 0.0), lambda t: np.put(t, [0], [0.0]), lambda t: np.place(t, [True, False], [0.0]),
    lambda t: np.putmask(t, [True, False], [0.0]), lambda t: np.add.at(t, [0], 1.0),
    lambda t: np.put_along_axis(t, np.array([0]), 0.0, 0), lambda t: np.fill_diagonal(t.reshape(1, 2), 0.0),
])  # fmt: skip
def test_functions_that_write_do_not_reach_what_a_tape_reads(write):
    x, c = leaf((1.0, 2.0)), tg.array([3.0, 4.0])
    plain = np.array([3.0, 4.0])
    y, before = (x * c).sum(), c.clone()
    write(c)
    write(plain)
    assert c.tolist() == plain.tolist() != before.tolist()
    (y + (x * x * c).sum()).backward()
    assert x.grad.tolist() == [3.0 + 2 * 1.0 * plain[0], 4.0 + 2 * 2.0 * plain[1]]


@pytest.mark.parametrize("index", [5, -3, (0, 0), 1.5, "a", [5], (slice(None), 0), np.array([True] * 3)])
def test_E13_indices_out_of_range_raise_IndexError(index):
    for t in (leaf(), tg.ones(2)):
        with pytest.raises(IndexError, match=r"\(2,\)"):
            t[index]


# ---------------------------------------------------------------- arrays shared and written to later

A = np.array([2.0, 3.0])
USES = {
    "multiply": lambda x, a: x * a,
    "reflected multiply": lambda x, a: a * x,
    "divide": lambda x, a: x / a,
    "reflected divide": lambda x, a: a / x,
    "power": lambda x, a: x**a,
    "reflected power": lambda x, a: a**x,
    "maximum": lambda x, a: np.maximum(x * 2.0, a),
    "arctan2": lambda x, a: np.arctan2(x, a),
    "hypot": lambda x, a: np.hypot(a, x),
    "where": lambda x, a: np.where(a > 2.5, x, x * x),
    "clip": lambda x, a: np.clip(x, a - 5.0, a),
    "matmul": lambda x, a: a @ x,
    "reflected matmul": lambda x, a: x @ a,
    "dot": lambda x, a: np.dot(a, x),
    "outer": lambda x, a: np.outer(a, x),
    "einsum": lambda x, a: np.einsum("i,j->ij", x, a),
    "solve": lambda x, a: np.linalg.solve(np.diag(a) if type(a) is np.ndarray else np.eye(2) * a, x),
    "sliced": lambda x, a: x * a[::-1],
    "reshaped": lambda x, a: x * a.reshape(2, 1),
    "transposed": lambda x, a: x * a.reshape(1, 2).T,
    "broadcast": lambda x, a: x * np.broadcast_to(a, (3, 2)),
    "element": lambda x, a: x * a[0],
    "raveled": lambda x, a: x * np.ravel(a),
    "detached": lambda x, a: x * (a.detach() if isinstance(a, tg.Tensor) else a),
}


def written(use, share, order):
    """Gradients at A of a use of x and a, where a's array is overwritten before the sweep."""
    x, a = leaf((0.5, 1.5)), A.copy()
    y = use(x, share(a))
    loss = (y * np.arange(1.0, y.size + 1).reshape(y.shape)).sum()
    a[:] = np.nan
    if order == "create_graph":
        (g,) = tg.grad(loss, x, create_graph=True)
        if g.requires_grad:
            return g.tolist(), tg.grad(g.sum(), x, allow_unused=True)[0]
        return g.tolist(), None
    return tg.grad(loss, x)[0].tolist(), None


@pytest.mark.parametrize("order", ["plain", "create_graph"])
@pytest.mark.parametrize("kind", ["ndarray", "from_numpy", "asarray"])
@pytest.mark.parametrize("name", USES)
def test_operand_written_to_after_use(name, kind, order):
    share = {"ndarray": lambda a: a, "from_numpy": tg.from_numpy, "asarray": tg.asarray}[kind]
    wanted, curve = written(USES[name], lambda a: tg.tensor(a.copy()), order)
    found, again = written(USES[name], share, order)
    assert found == wanted
    assert (None if again is None else again.tolist()) == (None if curve is None else curve.tolist())


VIEWS = {
    "itself": lambda x: x,
    "slice": lambda x: x[:],
    "reversed": lambda x: x[::-1],
    "reshape": lambda x: x.reshape(2, 1),
    "transpose": lambda x: x.reshape(1, 2).T,
    "new axis": lambda x: x[None],
    "broadcast": lambda x: np.broadcast_to(x, (3, 2)),
    "squeeze": lambda x: x.reshape(1, 2).squeeze(),
    "astype": lambda x: x.astype(float),
}


@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize("name", VIEWS)
def test_from_numpy_leaf_written_to_after_use(name, create_graph):
    """What is recorded is what was there: also of views into the shared memory."""
    a = A.copy()
    x = tg.from_numpy(a).requires_grad_()
    v = VIEWS[name](x)
    y = (v * v * v).sum()
    scale = v.size // 2
    a[:] = 100.0
    (g,) = tg.grad(y, x, create_graph=create_graph)
    assert g.tolist() == (scale * 3 * A * A).tolist()
    if create_graph:
        assert tg.grad(g.sum(), x)[0].tolist() == (scale * 6 * A).tolist()


@pytest.mark.parametrize("create_graph", [False, True])
def test_from_numpy_leaf_written_to_between_uses(create_graph):
    a = A.copy()
    x = tg.from_numpy(a).requires_grad_()
    y = (x * x).sum()
    a[:] = [10.0, 20.0]
    z = (x * x * x).sum()
    assert z.item() == 9000.0
    (g,) = tg.grad(y + z, x, create_graph=create_graph, retain_graph=True)
    wanted = [2 * 2.0 + 3 * 100.0, 2 * 3.0 + 3 * 400.0]
    assert g.tolist() == wanted
    (y + z).backward(create_graph=create_graph)
    assert x.grad.tolist() == wanted


def test_from_numpy_shares_memory():
    a = np.zeros(2)
    x = tg.from_numpy(a)
    a[0] = 3.0
    assert x.tolist() == [3.0, 0.0]
    assert np.shares_memory(x.numpy(), a)
    x.numpy()[1] = 4.0
    assert a.tolist() == [3.0, 4.0]
    assert x.dtype == a.dtype
    assert not x.requires_grad


@pytest.mark.parametrize(
    "array", [np.zeros(2, ">f8"), np.frombuffer(b"\0" * 17, np.uint8)[1:].view(np.float64), np.array(1.5)]
)
def test_from_numpy_of_what_tapes_cannot_read_is_a_copy(array):
    x = tg.from_numpy(array)
    assert x.tolist() == array.tolist()
    assert x.dtype.isnative
    assert not (isinstance(x._v, np.ndarray) and np.shares_memory(x._v, array))


@pytest.mark.parametrize("bad", [[1.0], 1.0, None, np.float64(1), tg.ones(1), "x"])
def test_from_numpy_takes_arrays_only(bad):
    with pytest.raises(TypeError, match=type(bad).__name__):
        tg.from_numpy(bad)


@pytest.mark.parametrize("array", [np.ma.array([1.0]), np.ones((1, 1)).view(np.matrix), np.array(["a"])])
def test_arrays_with_rules_of_their_own_are_refused(array):
    for call in (lambda: tg.from_numpy(array), lambda: leaf() * array, lambda: np.hypot(array, leaf())):
        with pytest.raises(DTypeError):
            call()


def test_numpy_shares_memory():
    for t in (tg.ones(2), tg.ones(2).detach(), tg.ones(4)[::-2]):
        a = t.numpy()
        assert type(a) is np.ndarray
        a[0] = 5.0
        assert t.tolist()[0] == 5.0
        t[1] = 6.0
        assert a[1] == 6.0
        assert np.shares_memory(a, t.numpy())
    assert tg.tensor(2.0).numpy() == 2.0


def test_numpy_of_what_has_a_history_or_is_broadcast_cannot_be_written_to():
    y = leaf() * 2.0
    for t in (y.detach(), y.detach()[:1], np.broadcast_to(tg.ones(2), (3, 2))):
        a = t.numpy()
        with pytest.raises(ValueError, match="read-only"):
            a[0] = 5.0
        assert np.shares_memory(a, t.numpy())
    with pytest.raises(ValueError, match="read-only"):
        np.asarray(tg.ones(2))[0] = 5.0


def test_array_protocol_converts():
    assert np.asarray(tg.ones(2), np.float32).dtype == np.float32


def test_array_protocol_copies_on_request():
    t = tg.ones(2)
    a = np.array(t)
    a[0] = 5.0
    assert t.tolist() == [1.0, 1.0]
    with pytest.raises(ValueError, match="copy"):
        np.asarray(t, np.float32, copy=False)


def test_what_scipy_is_given_is_said_by_the_border_itself():
    optimize = pytest.importorskip("scipy.optimize")
    a = tg.tensor([1.0, 2.0], requires_grad=True)
    with pytest.raises(BorderError, match=r"asked for by scipy.*shape \(\).*\.item\(\)"):
        optimize.minimize(lambda x: (a * x).sum(), [1.0, 2.0])


ASKING = {  # functions, classes and instances, plain and wrapped, of public modules at two depths
    "special.logsumexp": lambda f, a: f(a),
    "linalg.solve": lambda f, a: f(np.eye(2), a),
    "linalg.cholesky": lambda f, a: f(np.diag(a)),
    "fft.fft": lambda f, a: f(a),
    "stats.norm.logpdf": lambda f, a: f(a),
    "stats.kurtosis": lambda f, a: f(a),
    "integrate.quad": lambda f, a: f(np.cos, 0.0, a[0]),
    "interpolate.CubicSpline": lambda f, a: f([0.0, 1.0], a),
    "signal.hilbert2": lambda f, a: f(a[:, None]),
    "ndimage.gaussian_filter": lambda f, a: f(a, 1.0),
    "spatial.distance.cdist": lambda f, a: f(a[:, None], np.ones((2, 1))),
    "optimize.minimize": lambda f, a: f(lambda x: np.sum(a * x), [1.0, 2.0]),
    "sparse.linalg.cg": lambda f, a: f(np.eye(2), a),
    "sparse.linalg.lgmres": lambda f, a: f(np.eye(2), a),
    "sparse.coo_array.dot": lambda f, a: f(sparse.eye_array(2).tocoo(), a),
}


@pytest.mark.parametrize("name", ASKING)
def test_the_function_of_scipy_that_was_called_is_named(name):
    """With what stands in for it here, where that is."""
    parts = name.split(".")
    module = importlib.import_module(
        ".".join(["scipy", *parts[: 2 if parts[1] in ("distance", "linalg") else 1]])
    )
    function = functools.reduce(getattr, parts[len(module.__name__.split(".")) - 1 :], module)
    with pytest.raises(TapeError) as found:
        ASKING[name](function, tg.tensor([1.0, 2.0], requires_grad=True))
    assert f"asked for by scipy.{name}, would" in str(found.value)
    there = name not in ("signal.hilbert2", "sparse.linalg.lgmres", "sparse.coo_array.dot")
    advice = f"call tapegrad.scipy.{name}, which keeps it" if there else f"give scipy.{name} a derivative"
    assert advice in str(found.value)


def test_a_function_of_scipy_that_is_called_by_our_name_is_named():
    a = leaf()
    with pytest.raises(BorderError, match=r"asked for by scipy\.integrate\.quad_vec, .*; give scipy\."):
        integrate.quad_vec(lambda s: a[0] * s, 0, 1)


PACKAGE = """
import functools
import numpy as np

def deferring(method):
    @functools.wraps(method)
    def new_method(self, other):
        return method(self, other)
    return new_method

class Series:
    @deferring
    def __mul__(self, other):
        return self._operate(other)

    def _operate(self, other):
        return np.asarray(other)
"""


def test_an_operator_of_an_installed_class_is_named(tmp_path, monkeypatch):
    """Made as pandas makes those of its Series."""
    folder = tmp_path / "site-packages" / "frames_for_a_test"
    folder.mkdir(parents=True)
    (folder / "core.py").write_text(PACKAGE)
    (folder / "__init__.py").write_text("from .core import Series")
    monkeypatch.syspath_prepend(folder.parent)
    series = importlib.import_module("frames_for_a_test").Series()
    with pytest.raises(BorderError, match=r"asked for by frames_for_a_test\.Series\.__mul__, would"):
        series * tg.tensor([1.0, 2.0], requires_grad=True)


def test_what_a_function_of_scipy_calls_inside_is_not_named():
    optimize = pytest.importorskip("scipy.optimize")
    linalg = pytest.importorskip("scipy.linalg")
    a = tg.tensor([1.0, 2.0], requires_grad=True)
    with pytest.raises(BorderError, match=r"asked for by scipy\.linalg\.norm,"):
        optimize.minimize(lambda x: linalg.norm(a * x), [1.0, 2.0])
    with pytest.raises(BorderError) as found:
        optimize.minimize(lambda x: float(np.sum(a * x)), [1.0, 2.0])
    assert "asked for" not in str(found.value)


@pytest.mark.parametrize("name", ["sort", "sum", "median", "linalg.norm", "fft.fft"])
def test_a_function_of_numpy_of_a_list_of_tensors_is_named(name):
    """NumPy asks no Tensor in a list whether it takes the call."""
    function = functools.reduce(getattr, name.split("."), np)
    a = tg.tensor(1.0, requires_grad=True)
    with pytest.raises(BorderError) as found:
        function([a, a])
    assert f"asked for by numpy.{name}, would" in str(found.value)
    assert f"a list is no Tensor to NumPy, call numpy.{name}(tg.array([...]))" in str(found.value)
    function(tg.array([a, a]))


@pytest.mark.parametrize(("name", "args"), [("polynomial.polynomial.polyval", 2), ("ma.array", 1)])
def test_a_function_of_numpy_is_not_named_after_another_one(name, args):
    """np.polyval was named, and was to be called with an array of the list that x is not."""
    function = functools.reduce(getattr, name.split("."), np)
    a = tg.tensor([1.0, 2.0], requires_grad=True)
    with pytest.raises(BorderError, match=f"asked for by numpy.{name}, would") as found:
        function(*[a] * args)
    assert "a list is no Tensor" not in str(found.value)


def test_a_function_of_numpy_that_takes_no_tensors_is_named():
    a = tg.tensor([1.0, 2.0], requires_grad=True)
    with pytest.raises(BorderError, match=r"asked for by numpy\.testing\.assert_array_less, would") as found:
        np.testing.assert_array_less(a, 3.0)
    assert "a list" not in str(found.value)


def test_what_scipy_raises_instead_has_the_cause():
    sparse = pytest.importorskip("scipy.sparse")
    with pytest.raises(ValueError, match="unrecognized") as found:
        sparse.csr_array(tg.tensor([[1.0, 2.0]], requires_grad=True))
    assert "asked for by scipy.sparse.csr_array, would" in str(found.value.__cause__)


def test_the_border_names_who_asks():
    pandas = pytest.importorskip("pandas")
    a = tg.tensor([1.0, 2.0], requires_grad=True)
    series = pandas.Series([1.0, 2.0])
    for call in (lambda: series @ a, lambda: series.dot(a), lambda: pandas.Series(a)):
        with pytest.raises(BorderError, match=r"asked for by pandas.*\.to_numpy\(\)"):
            call()
    with pytest.raises(BorderError, match=r"asked for by pandas\.Series\.__matmul__,"):
        series @ a
    tg.grad((a * series.to_numpy()).sum(), a)
    with pytest.raises(BorderError) as found:
        np.asarray(a)
    assert "asked for" not in str(found.value)


def test_a_plot_of_what_requires_grad():
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    from matplotlib import pyplot

    with pytest.raises(RuntimeError, match=r"asked for by matplotlib.*\.detach\(\)\.numpy\(\)"):
        pyplot.plot(tg.tensor([1.0, 2.0], requires_grad=True))


def test_an_element_of_an_array_that_is_no_tensor():
    with pytest.raises(ValueError, match="sequence") as found:  # NumPy's own, whatever float() raises
        np.zeros(3)[0] = tg.tensor(1.0, requires_grad=True)
    assert "Tensor that requires grad" in str(found.value.__cause__)


def test_a_ufunc_is_named_as_its_module_has_it():
    special = pytest.importorskip("scipy.special")
    a = tg.tensor([1.0, 2.0], requires_grad=True)
    with pytest.raises(UnsupportedOpError, match=r"^scipy\.special\.agm has no derivative here"):
        special.agm(a, 2.0)
    other = np.frompyfunc(lambda x: x, 1, 1)
    with pytest.raises(UnsupportedOpError, match=r"^the ufunc .*lambda.* has no derivative here"):
        other(a)
