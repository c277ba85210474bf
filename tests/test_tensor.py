"""Constructors, attributes, operators, text and copies of Tensors: of section E what is not in place."""

import copy
import operator
import pickle

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.errors import BorderError, DTypeError, GradientError, ShapeError


def leaf(data=(1.0, 2.0), dtype=float):
    return tg.tensor(data, dtype=dtype, requires_grad=True)


# ---------------------------------------------------------------- constructors

CONSTRUCTORS = [
    ("zeros", (2,), {}),
    ("zeros", ((2, 3),), {"dtype": np.float32}),
    ("zeros", ((),), {}),
    ("ones", ((1, 0),), {}),
    ("ones", (2,), {"dtype": int}),
    ("full", (2, 7.0), {}),
    ("full", ((2, 1), 7), {}),
    ("arange", (3.0,), {}),
    ("arange", (3,), {}),
    ("arange", (1, 2, 0.25), {}),
    ("linspace", (0, 1, 5), {}),
    ("linspace", (0, 1), {"num": 3, "endpoint": False}),
    ("eye", (2,), {}),
    ("eye", (2, 3), {"k": 1}),
    ("zeros_like", (np.ones((2, 2), np.float32),), {}),
    ("ones_like", ([1.0, 2.0],), {}),
    ("full_like", (np.ones(2), 3), {}),
]


@pytest.mark.parametrize(("name", "args", "kwargs"), CONSTRUCTORS)
def test_constructors_follow_numpy(name, args, kwargs):
    wanted = getattr(np, name)(*args, **kwargs)
    made = getattr(tg, name)(*args, **kwargs)
    assert type(made) is tg.Tensor
    assert (made.dtype, made.shape) == (wanted.dtype, wanted.shape)
    assert made.tolist() == wanted.tolist()
    assert made.is_leaf
    assert not made.requires_grad
    if wanted.dtype.kind == "f":
        assert getattr(tg, name)(*args, **kwargs, requires_grad=True).requires_grad
    else:
        with pytest.raises(RuntimeError, match="dtype=float"):
            getattr(tg, name)(*args, **kwargs, requires_grad=True)


@pytest.mark.parametrize("name", ["zeros_like", "ones_like", "empty_like"])
def test_constructors_like_a_tensor(name):
    x = leaf(np.ones((2, 3)), np.float32)
    made = getattr(tg, name)(x)
    assert (made.dtype, made.shape, made.requires_grad) == (x.dtype, x.shape, False)
    assert tg.full_like(x, 2.0).tolist() == [[2.0] * 3] * 2


@pytest.mark.parametrize(
    ("data", "dtype"),
    [
        (1, np.int64),
        (1.5, np.float64),
        (True, np.bool_),
        ([1, 2], np.int64),
        ([1, 2.5], np.float64),
        ([[1.0], [2.0]], np.float64),
        ((1.0, 2.0), np.float64),
        ([], np.float64),
        (np.float32(1), np.float32),
        (np.arange(3, dtype=np.int8), np.int8),
        (range(3), np.int64),
        (np.arange(2.0)[::-1], np.float64),
        (np.array([1.0, 2.0], ">f8"), np.float64),
    ],
)
def test_tensor_takes_what_numpy_takes(data, dtype):
    made = tg.tensor(data)
    assert made.dtype == dtype
    assert made.dtype.isnative
    assert made.tolist() == np.array(data).tolist()
    assert made.shape == np.shape(data)
    assert tg.tensor(data, dtype=np.float32).dtype == np.float32


def test_tensor_copies():
    a = np.ones(2)
    x, y = tg.tensor(a), tg.tensor(tg.from_numpy(a))
    a[:] = 5.0
    assert x.tolist() == y.tolist() == [1.0, 1.0]
    z = leaf()
    assert not tg.tensor(z).requires_grad
    assert tg.tensor(z * z).is_leaf


def test_tensor_refuses_a_list_of_tensors():
    with pytest.raises(BorderError, match=r"tg\.array"):
        tg.tensor([leaf(1.0), 2.0])


def test_array_keeps_the_history_of_its_parts():
    x, z = leaf(2.0), leaf(3.0)
    y = tg.array([[x, 1.0], [x * z, z]])
    assert y.tolist() == [[2.0, 1.0], [6.0, 3.0]]
    (y * [[1.0, 10.0], [100.0, 1000.0]]).sum().backward()
    assert (x.grad.item(), z.grad.item()) == (301.0, 1200.0)
    v = leaf()
    assert tg.array([v, [5.0, 6.0]]).tolist() == [[1.0, 2.0], [5.0, 6.0]]
    assert tg.array(v).requires_grad
    assert tg.array(v) is not v
    assert tg.array([x, 1], dtype=np.float32).dtype == np.float32
    assert tg.array([1, 2]).tolist() == [1, 2]


@pytest.mark.parametrize("data", [["x", [1.0]], [["x", 1.0], ["x"]], [["x", 1.0], 2.0], [[["x"]], ["x"]]])
def test_array_of_ragged_parts_raises(data):
    x = leaf(2.0)
    put = lambda d: [put(i) for i in d] if isinstance(d, list) else x if d == "x" else d
    with pytest.raises(ShapeError, match="shapes"):
        tg.array(put(data))


def test_asarray():
    a, x = np.ones(2), leaf()
    assert tg.asarray(x) is x
    assert tg.asarray(x, np.float32).dtype == np.float32
    shared = tg.asarray(a)
    a[0] = 7.0
    assert shared.tolist() == [7.0, 1.0]
    assert tg.asarray([1, 2], dtype=float).dtype == np.float64


# ---------------------------------------------------------------- E-1 to E-3


@pytest.mark.parametrize("data", [1, True, [1, 2], [True, False], np.arange(2, dtype=np.uint8)])
def test_E1_integers_have_no_gradient(data):
    calls = [
        lambda: tg.tensor(data, requires_grad=True),
        lambda: tg.tensor(data).requires_grad_(),
        lambda: setattr(tg.tensor(data), "requires_grad", True),
    ]
    for call in calls:
        with pytest.raises(RuntimeError, match="dtype=float") as found:
            call()
        assert isinstance(found.value, TypeError)
    assert tg.tensor(data, dtype=float, requires_grad=True).requires_grad
    tg.tensor(data).requires_grad_(False)


@pytest.mark.parametrize("bad", [1, 0, None, "yes", 1.0, np.True_, [], [True]])
def test_E1_requires_grad_is_a_bool(bad):
    x = tg.tensor(1.0)
    for call in (
        lambda: setattr(x, "requires_grad", bad),
        lambda: x.requires_grad_(bad),
        lambda: tg.tensor(1.0, requires_grad=bad),
        lambda: tg.zeros(2, requires_grad=bad),
    ):
        with pytest.raises(RuntimeError, match="True or False"):
            call()
    assert not x.requires_grad


def test_E2_requires_grad_of_a_result():
    x = leaf()
    y = x * x
    for call in (lambda: y.requires_grad_(False), lambda: setattr(y, "requires_grad", False)):
        with pytest.raises(GradientError, match=r"detach\(\)"):
            call()
    assert y.requires_grad_() is y
    assert y.requires_grad_(True) is y
    y.requires_grad = True
    y.sum().backward()
    assert x.grad.tolist() == [2.0, 4.0]


def test_E2_requires_grad_of_a_leaf():
    x = tg.tensor(2.0)
    assert x.requires_grad_() is x
    assert x.requires_grad
    assert x.requires_grad_(False) is x
    assert not (x * x).requires_grad


def test_E3_leaves():
    x, c = leaf(), tg.tensor([1.0, 2.0])
    with tg.no_grad():
        quiet = x * x
    for t in (x, c, c * c, np.sin(c), (x * x).detach(), x.data, quiet, x > 1, np.argmax(x), x.astype(int)):
        assert t.is_leaf
    for t in (x * 1, x[0], x.reshape(2, 1), x.T, x.clone(), +x, x.astype(np.float32), x[:0]):
        assert not t.is_leaf
        assert t.requires_grad


def test_E11_detach_and_data():
    x = leaf()
    y = x * x
    for d in (x.detach(), y.detach(), x.data):
        assert not d.requires_grad
        assert d.is_leaf
        assert d.grad is None
    assert np.shares_memory(x.detach().numpy(), x.data.numpy())
    assert x.detach() is not x
    d = x.detach().requires_grad_()
    (d * d).sum().backward()
    assert d.grad.tolist() == [2.0, 4.0]
    assert x.grad is None


@pytest.mark.parametrize("bad", [np.ones(2), 1.0, None, [1.0, 2.0], "x"])
def test_E17_data_takes_a_tensor(bad):
    x = leaf()
    with pytest.raises(TypeError, match=type(bad).__name__):
        x.data = bad
    assert x.tolist() == [1.0, 2.0]


def test_E5_data_replaced_before_use_counts():
    x = leaf()
    x.data = tg.tensor([5.0, 6.0])
    (x * x).sum().backward()
    assert x.tolist() == [5.0, 6.0]
    assert x.grad.tolist() == [10.0, 12.0]
    with pytest.raises(DTypeError):
        x.data = tg.tensor([1, 2])


# ---------------------------------------------------------------- E-13 to E-15


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: tg.tensor([1.0, 2.0]), "tensor([1., 2.])"),
        (lambda: tg.tensor(1.5), "tensor(1.5)"),
        (lambda: leaf(), "tensor([1., 2.], requires_grad=True)"),
        (lambda: leaf(3.0), "tensor(3., requires_grad=True)"),
        (lambda: leaf() * 2.0, "tensor([2., 4.], grad_fn=<MulBackward>)"),
        (lambda: leaf() + 2.0, "tensor([3., 4.], grad_fn=<AddBackward>)"),
        (lambda: tg.tensor([1, 2]), "tensor([1, 2])"),
        (lambda: tg.tensor(True), "tensor(True)"),
        (lambda: tg.tensor([1.0], np.float32), "tensor([1.], dtype=float32)"),
        (lambda: tg.tensor([1], np.int8), "tensor([1], dtype=int8)"),
        (lambda: tg.tensor([[1.0], [2.0]]), "tensor([[1.],\n        [2.]])"),
        (lambda: leaf([1.0], np.float32), "tensor([1.], dtype=float32, requires_grad=True)"),
    ],
)
def test_E13_repr(make, text):
    assert repr(make()) == text
    assert str(make()) == text
    assert f"{make()}" == text


def test_E13_repr_of_a_graph_that_was_freed_and_of_large_arrays():
    x = leaf()
    y = np.exp(x)
    y.sum().backward()
    assert "grad_fn=<ExpBackward>" in repr(y)
    assert len(repr(tg.zeros((1000, 1000)))) < 1000
    assert repr(tg.zeros((0, 3))).startswith("tensor([]")


def test_E14_results_without_derivative():
    x = leaf((3.0, -1.5, 2.0))
    results = [
        np.argmax(x), x.argmin(), x > 0, x == x, x <= 1.0, x >= 2.0, x.astype(int), x.astype(bool),
        np.argsort(x), np.sign(x), np.floor(x), np.ceil(x), np.rint(x), np.trunc(x), x.round(), x // 2.0,
        np.isnan(x), np.isfinite(x), x.any(), x.all(), np.count_nonzero(x) * tg.ones(1),
        np.searchsorted(np.arange(3.0), x), np.zeros_like(x), np.ones_like(x), np.where(x > 0)[0],
    ]  # fmt: skip
    for t in results:
        assert isinstance(t, tg.Tensor)
        assert not t.requires_grad
        assert t.is_leaf


@pytest.mark.parametrize("make", [lambda: leaf(), lambda: leaf(2.0), lambda: tg.tensor([1, 2])])
def test_E15_copies_of_leaves(make):
    x = make()
    if x.requires_grad:
        (x * x).sum().backward()
    deep, flat, loaded = copy.deepcopy(x), copy.copy(x), pickle.loads(pickle.dumps(x))
    for other in (deep, flat, loaded):
        assert other is not x
        assert other.is_leaf
        assert other.tolist() == x.tolist()
        assert (other.dtype, other.shape, other.requires_grad) == (x.dtype, x.shape, x.requires_grad)
    assert loaded.grad is None
    if x.requires_grad:
        assert deep.grad is not x.grad
        assert deep.grad.tolist() == x.grad.tolist()
        (x * 1.0).sum().backward()
        assert deep.grad.tolist() == (2 * np.array(x.tolist())).tolist()
        (deep * 5.0).sum().backward()
        assert x.grad.tolist() == (2 * np.array(x.tolist()) + 1).tolist()


def test_E15_deepcopy_keeps_identities_within():
    x = leaf()
    a, b = copy.deepcopy([x, {"same": x}])
    assert a is b["same"]
    assert a is not x


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_E15_pickle_protocols_and_layouts(protocol):
    for x in (leaf(), leaf(1.0), tg.tensor(np.asfortranarray(np.ones((2, 3)))), tg.zeros((0, 2))):
        other = pickle.loads(pickle.dumps(x, protocol))
        assert other.tolist() == x.tolist()
        assert (other.requires_grad, other.dtype) == (x.requires_grad, x.dtype)


@pytest.mark.parametrize(
    "function", [copy.deepcopy, copy.copy, pickle.dumps], ids=["deepcopy", "copy", "pickle"]
)
def test_E15_results_are_not_copied_silently(function):
    x = leaf()
    for y in (x * x, x[0], {"inside": [x * 2.0]}):
        with pytest.raises(RuntimeError, match=r"detach\(\).*clone\(\)"):
            function(y) if function is not copy.copy or isinstance(y, tg.Tensor) else copy.deepcopy(y)
    assert function((x * x).detach()) is not None


def test_clone_keeps_the_history():
    x = leaf()
    for y in (x.clone(), x.copy(), np.copy(x)):
        x.grad = None
        (y * y).sum().backward()
        assert x.grad.tolist() == [2.0, 4.0]
        assert not np.shares_memory(y.detach().numpy(), x.detach().numpy())


# ---------------------------------------------------------------- hash, ==, bool, len


def test_hash_is_identity_and_equality_elementwise():
    x, y = leaf(), leaf()
    assert hash(x) != hash(y)
    assert len({x, y, x}) == 2
    assert {x: 1}[x] == 1
    assert (x == y).tolist() == [True, True]
    assert (x != y).tolist() == [False, False]
    assert (x == [1.0, 5.0]).tolist() == [True, False]
    assert (x == 1.0).tolist() == [True, False]
    assert (x == "text") is False
    assert (x != "text") is True
    assert (x == None) is False  # noqa: E711
    assert (tg.tensor(1.0) == tg.tensor(1.0)).item() is True


def test_bool_len_iteration_and_membership():
    x = leaf()
    for wrong in (x, tg.zeros(0), x > 0):
        with pytest.raises(ShapeError, match="ambiguous") as found:
            bool(wrong)
        assert isinstance(found.value, RuntimeError)
        assert isinstance(found.value, ValueError)
    assert bool(leaf([[3.0]]))
    assert not tg.tensor(0.0)
    assert len(x) == 2
    for call in (len, iter, list):
        with pytest.raises(TypeError, match="0-d"):
            call(leaf(1.0))
    assert [t.item() for t in x] == [1.0, 2.0]
    assert 2.0 in x
    assert 5.0 not in x


def test_in_place_operators_on_scalars_rebind():
    x = leaf(3.0)
    y = x
    y += 1.0
    y *= y
    assert x.item() == 3.0
    assert y.item() == 16.0
    y.backward()
    assert x.grad.item() == 8.0


def test_half_precision_is_refused_for_what_it_is():
    """It is a floating-point dtype, but none that has derivatives; constants may be of it."""
    half, x = np.ones(2, np.float16), tg.tensor([1.0, 2.0], requires_grad=True)
    for call in (
        lambda: tg.tensor(half, requires_grad=True), lambda: tg.tensor(half).requires_grad_(),
        lambda: x.astype(np.float16), lambda: np.float16(1) * x.astype("f2"),
    ):  # fmt: skip
        with pytest.raises(tg.errors.DTypeError, match="32 bits or more"):
            call()
    assert tg.grad(np.sum(x * half), x)[0].tolist() == [1.0, 1.0]


# ---------------------------------------------------------------- operators


class Other:
    """An operand that NumPy leaves operators to."""

    __array_ufunc__ = None

    def __radd__(self, x):
        return "its own"

    __rsub__ = __rmul__ = __rtruediv__ = __rmod__ = __rfloordiv__ = __rdivmod__ = __rpow__ = __radd__
    __rmatmul__ = __rand__ = __ror__ = __rxor__ = __rlshift__ = __rrshift__ = __radd__

    def __add__(self, x):
        return "its own, first"

    __sub__ = __mul__ = __truediv__ = __mod__ = __floordiv__ = __divmod__ = __pow__ = __add__
    __matmul__ = __and__ = __or__ = __xor__ = __lshift__ = __rshift__ = __add__


REAL = ["add", "sub", "mul", "truediv", "mod", "floordiv", "pow", "matmul"]
WHOLE = ["and_", "or_", "xor", "lshift", "rshift"]


@pytest.mark.parametrize("name", [*REAL, *WHOLE, "divmod"])
def test_operands_of_other_kinds_are_asked(name):
    function = divmod if name == "divmod" else getattr(operator, name)
    x = tg.tensor([1, 2]) if name in WHOLE else leaf() * 1.0
    assert function(x, Other()) == function(np.ones(2, int), Other()) == "its own"
    assert function(Other(), x) == "its own, first"


@pytest.mark.parametrize("name", ["lt", "le", "gt", "ge"])
def test_comparisons_with_other_kinds_are_refused(name):
    with pytest.raises(TypeError, match="not supported between"):
        getattr(operator, name)(leaf(), "text")


def test_a_complex_number_is_compared_with_elements():
    x = tg.tensor([1.0, 1j])
    assert (x == 1j).tolist() == [False, True]
    assert (x != 1j).tolist() == [True, False]
