"""Accumulation into .grad: cases D-1 to D-3, D-5 to D-10, D-12, D-13."""

import warnings

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.errors import DTypeError, GradientError, MutationError, ShapeError

pytestmark = pytest.mark.usefixtures("tape_length")


def leaf(data=(1.0, 2.0), dtype=float):
    return tg.tensor(data, dtype=dtype, requires_grad=True)


def address(t):
    return t.detach().numpy().__array_interface__["data"][0]


# ---------------------------------------------------------------- D-1 to D-3


@pytest.mark.parametrize("n", [2, 5000])
def test_D1_second_backward_accumulates_in_place(n):
    x = leaf(np.ones(n))
    (x * x).sum().backward()
    first, place, version = x.grad, address(x.grad), x.grad._version
    for times in (2, 3):
        (x * x).sum().backward()
        assert x.grad is first
        assert address(x.grad) == place
        assert x.grad._version == version + times - 1
        assert x.grad.tolist() == [2.0 * times] * n


def test_D1_scalar_leaf_keeps_the_object():
    x = leaf(3.0)
    (x * x).backward()
    first = x.grad
    (x * x).backward()
    assert x.grad is first
    assert first.item() == 12.0
    assert first._version == 1


@pytest.mark.parametrize("n", [2, 5000])
def test_D1_onto_a_gradient_that_was_made_a_leaf(n):
    x = leaf(np.ones(n))
    (x * x).sum().backward()
    first = x.grad.requires_grad_()
    version = first._version
    (x * x).sum().backward()
    assert x.grad is first
    assert first.is_leaf
    assert first.requires_grad
    assert first._version == version + 1
    assert first.tolist() == [4.0] * n
    (first * first).sum().backward()
    assert first.grad.tolist() == [8.0] * n


def test_a_leaf_that_nothing_holds_gets_no_gradient():
    x = leaf()
    y = (x * x).sum()
    y.backward(retain_graph=True)
    first = x.grad
    del x
    y.backward()
    assert first.tolist() == [2.0, 4.0]
    assert first._version == 0


def test_D1_set_to_none_starts_anew():
    x = leaf()
    (x * x).sum().backward()
    first = x.grad
    x.grad = None
    (x * x).sum().backward()
    assert x.grad is not first
    assert x.grad.tolist() == first.tolist() == [2.0, 4.0]


def test_D1_what_was_computed_from_the_gradient_keeps_the_value_of_then():
    """Adding to .grad must not reach into what a tape saved of it."""
    x, w = leaf(), leaf()
    (x * x).sum().backward()
    y = (w * x.grad).sum()
    z = (w[:1] * x.grad[1:]).sum()
    for _ in range(3):
        (x * x).sum().backward()
    assert x.grad.tolist() == [8.0, 16.0]
    y.backward()
    assert w.grad.tolist() == [2.0, 4.0]
    z.backward()
    assert w.grad.tolist() == [6.0, 4.0]


def test_D2_with_create_graph_accumulates_out_of_place():
    x = leaf(2.0)
    y = x * x * x
    y.backward(create_graph=True)
    first = x.grad
    assert first.item() == 12.0
    assert first.requires_grad
    y.backward(create_graph=True)
    assert x.grad is not first
    assert x.grad.item() == 24.0
    assert first.item() == 12.0
    assert tg.grad(x.grad, x)[0].item() == 24.0


def test_D2_onto_a_plain_gradient():
    x = leaf()
    (x * x).sum().backward()
    plain = x.grad
    (x * x * x).sum().backward(create_graph=True)
    assert x.grad is not plain
    assert plain.tolist() == [2.0, 4.0]
    assert x.grad.tolist() == [5.0, 16.0]
    assert not plain.requires_grad
    assert tg.grad(x.grad.sum(), x)[0].tolist() == [6.0, 12.0]


def test_D2_no_warning_where_no_leak_can_happen():
    x = leaf(2.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (x * x).backward(create_graph=True)
    assert x.grad.item() == 4.0


def test_D2_the_first_gradient_is_a_copy():
    x, s = leaf(), leaf((5.0, 7.0))
    x.backward(s, create_graph=True)
    assert x.grad is not s
    assert x.grad.tolist() == [5.0, 7.0]


@pytest.mark.parametrize("data", [2.0, [2.0], [2.0, 3.0]])
def test_D3_without_create_graph_onto_a_gradient_with_history_keeps_the_object(data):
    x = leaf(data)
    (x * x * x).sum().backward(create_graph=True)
    first = x.grad
    (5.0 * x).sum().backward()
    assert x.grad is first
    assert first.tolist() == (3 * np.square(data) + 5).tolist()


@pytest.mark.parametrize("data", [2.0, [2.0], [2.0, 3.0]])
def test_D3_derivatives_use_the_accumulated_value(data):
    x = leaf(data)
    (x * x * x).sum().backward(create_graph=True)
    (5.0 * x).sum().backward()
    # grad = 3 x^2 + 5 now; d(grad^2)/dx = 2 grad * 6 x
    (d,) = tg.grad((x.grad * x.grad).sum(), x)
    grad = 3 * np.square(data) + 5
    assert d.tolist() == (2 * grad * 6 * np.array(data)).tolist()


def test_D3_what_was_computed_before_keeps_the_value_of_then():
    x = leaf((2.0, 3.0))
    (x * x * x).sum().backward(create_graph=True)
    y = (x.grad * x.grad).sum()
    (5.0 * x).sum().backward()
    (d,) = tg.grad(y, x)
    assert d.tolist() == [2 * 12.0 * 12.0, 2 * 27.0 * 18.0]


# ---------------------------------------------------------------- D-5: dtypes


@pytest.mark.parametrize("create_graph", [False, True])
def test_D5_each_leaf_has_its_own_dtype(create_graph):
    x, z = leaf(dtype=np.float32), leaf((3.0, 4.0))
    y = x * z
    assert y.dtype == np.float64
    y.sum().backward(create_graph=create_graph)
    assert x.grad.dtype == np.float32
    assert z.grad.dtype == np.float64
    assert x.grad.tolist() == [3.0, 4.0]
    assert z.grad.tolist() == [1.0, 2.0]


@pytest.mark.parametrize("create_graph", [False, True])
def test_D5_through_a_conversion(create_graph):
    x = leaf(dtype=np.float32)
    (x.astype(float) ** 2).sum().backward(create_graph=create_graph)
    assert x.grad.dtype == np.float32
    assert x.grad.tolist() == [2.0, 4.0]
    z = leaf()
    (z.astype(np.float32) ** 2).sum().backward(create_graph=create_graph)
    assert z.grad.dtype == np.float64


@pytest.mark.parametrize("other", [np.array([3, 4]), tg.tensor([3, 4]), np.array([True, False])])
def test_D5_integer_constants(other):
    x = leaf()
    (other * x + x * other).sum().backward()
    assert x.grad.dtype == np.float64
    assert x.grad.tolist() == (2.0 * np.array(other.tolist())).tolist()


@pytest.mark.parametrize("op", [np.add, np.multiply, np.divide, np.power, np.maximum, np.arctan2, np.hypot])
@pytest.mark.parametrize("dtypes", [("f4", "f8"), ("f8", "f4"), ("f4", "f4")])
def test_D5_results_of_grad_and_grads_of_results(op, dtypes):
    a, b = leaf((1.0, 2.0), dtypes[0]), leaf((3.0, 1.0), dtypes[1])
    y = op(a, b)
    y.retain_grad()
    y.sum().backward()
    assert y.grad.dtype == y.dtype == np.result_type(*dtypes)
    assert (a.grad.dtype, b.grad.dtype) == tuple(np.dtype(d) for d in dtypes)
    for create_graph in (False, True):
        found = tg.grad(op(a, b).sum(), [a, b], create_graph=create_graph)
        assert [g.dtype for g in found] == [a.dtype, b.dtype]


# ---------------------------------------------------------------- D-7, D-8: the attribute


@pytest.mark.parametrize("bad", [np.ones(2), 1.0, [1.0, 1.0], "text", object(), True])
def test_D7_grad_takes_a_tensor_or_none(bad):
    x = leaf()
    with pytest.raises(TypeError, match=type(bad).__name__):
        x.grad = bad
    assert x.grad is None


def test_D7_other_shape_dtype_and_itself_raise():
    x = leaf()
    for shape in ((), (1,), (3,), (1, 2)):
        with pytest.raises(ShapeError, match=r"\(2,\)"):
            x.grad = tg.ones(shape)
    for dtype in (np.float32, np.int64, bool):
        with pytest.raises(DTypeError, match=str(np.dtype(dtype))) as found:
            x.grad = tg.tensor([1, 1], dtype)
        assert isinstance(found.value, RuntimeError)
        assert isinstance(found.value, TypeError)
    with pytest.raises(RuntimeError, match="own grad"):
        x.grad = x
    assert x.grad is None


def test_D7_assigned_gradient_is_accumulated_onto():
    x = leaf()
    given = tg.tensor([10.0, 20.0])
    x.grad = given
    assert x.grad is given
    (x * x).sum().backward()
    assert x.grad is given
    assert given.tolist() == [12.0, 24.0]


def test_D7_delete():
    x = leaf()
    (x * x).sum().backward()
    del x.grad
    assert x.grad is None
    del x.grad
    x.grad = None
    assert x.grad is None


def test_D7_constant_may_hold_a_grad():
    c = tg.tensor([1.0, 2.0])
    c.grad = tg.ones(2)
    assert c.grad.tolist() == [1.0, 1.0]


def test_D8_grad_of_a_result_is_none_and_warns():
    x = leaf()
    y = x * x
    with pytest.warns(UserWarning, match="retain_grad"):
        assert y.grad is None
    y.sum().backward()
    with pytest.warns(UserWarning, match="retain_grad"):
        assert y.grad is None


def test_D8_leaves_and_retained_results_do_not_warn():
    x = leaf()
    y = x * x
    y.retain_grad()
    assert y.grad is None
    assert x.grad is None
    assert tg.tensor(1.0).grad is None


# ---------------------------------------------------------------- D-9: retain_grad


def test_D9_no_effect_on_a_leaf():
    x = leaf()
    assert x.retain_grad() is None
    assert not x.retains_grad
    x.retain_grad()
    (x * x).sum().backward()
    assert x.grad.tolist() == [2.0, 4.0]


def test_D9_needs_requires_grad():
    for t in (tg.tensor(1.0), leaf().detach()):
        with pytest.raises(GradientError, match="not require grad") as found:
            t.retain_grad()
        assert isinstance(found.value, RuntimeError)


def test_D9_accumulates_out_of_place():
    x = leaf()
    y = x * 2.0
    y.retain_grad()
    assert y.retains_grad
    z = (3.0 * y).sum()
    z.backward(retain_graph=True)
    first = y.grad
    assert first.tolist() == [3.0, 3.0]
    assert first.is_leaf
    z.backward()
    assert y.grad is not first
    assert y.grad.tolist() == [6.0, 6.0]
    assert first.tolist() == [3.0, 3.0]
    assert x.grad.tolist() == [12.0, 12.0]


@pytest.mark.parametrize("create_graph", [False, True])
def test_D9_grad_adds_to_no_grad(create_graph):
    x = leaf()
    y = x * 2.0
    y.retain_grad()
    for inputs in (x, [x, y]):
        tg.grad((y * y).sum(), inputs, retain_graph=True, create_graph=create_graph)
        assert y.grad is None and x.grad is None


def test_D9_along_a_chain_and_twice():
    x = leaf(1.0)
    chain = [x]
    for _ in range(30):
        chain.append(chain[-1] * 2.0)
    for y in chain[1:]:
        y.retain_grad()
        y.retain_grad()
    chain[-1].backward()
    assert [y.grad.item() for y in chain] == [2.0 ** (30 - k) for k in range(31)]


def test_D9_root_and_parallel_uses():
    x = leaf()
    y = x * x
    y.retain_grad()
    z = y.sum() + (y * 10.0).sum()
    z.retain_grad()
    z.backward()
    assert z.grad.item() == 1.0
    assert y.grad.tolist() == [11.0, 11.0]


def test_D9_create_graph():
    x = leaf((2.0, 3.0))
    y = x * x
    y.retain_grad()
    (y * y).sum().backward(create_graph=True)
    assert y.grad.tolist() == [8.0, 18.0]
    assert tg.grad(y.grad.sum(), x)[0].tolist() == [8.0, 12.0]


def test_D9_result_off_the_path_and_dead_results():
    x = leaf()
    y, other = x * x, x * 3.0
    other.retain_grad()
    (x * 5.0).retain_grad()  # gone at once
    y.sum().backward()
    assert other.grad is None
    assert x.grad.tolist() == [2.0, 4.0]


@pytest.mark.parametrize("create_graph", [False, True])
def test_D9_with_inputs_only_results_on_the_way_to_them(create_graph):
    """Whatever the length of tapes, and whether what lies beyond the inputs was freed and forgotten."""
    x = leaf()
    below = x * x
    below.retain_grad()
    y = below * 3.0
    side = x * 5.0
    side.retain_grad()
    z = y * side
    seed = np.ones(z.shape)
    for _ in range(2):
        z.backward(seed, inputs=[y], retain_graph=True, create_graph=create_graph)
        assert below.grad is None and side.grad is None
    assert y.grad.tolist() == (10.0 * x).tolist()
    y.grad = None
    z.backward(seed, inputs=[x], retain_graph=True, create_graph=create_graph)
    assert below.grad.tolist() == (15.0 * x).tolist() and side.grad.tolist() == (3.0 * x * x).tolist()
    assert y.grad.tolist() == (5.0 * x).tolist()  # `inputs` let it retain its gradient
    assert x.grad.tolist() == (45.0 * x * x).tolist()
    (z * z).backward(seed, inputs=[z])
    assert z.grad.tolist() == (2.0 * z).tolist()


# ---------------------------------------------------------------- D-10, D-13


@pytest.mark.parametrize("create_graph", [False, True])
def test_D10_broadcasts_are_summed_back(create_graph):
    x, b = leaf([[1.0], [2.0]]), leaf([1.0, 2.0, 3.0])
    (x * b).sum().backward(create_graph=create_graph)
    assert x.grad.tolist() == [[6.0], [6.0]]
    assert b.grad.tolist() == [3.0, 3.0, 3.0]


@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((), (3,)),
        ((1,), (3,)),
        ((2, 1), (1, 3)),
        ((1, 1, 1), (2, 3)),
        ((3,), (2, 2, 3)),
        ((0,), ()),
        ((1,), (0,)),
    ],
)
def test_D10_shapes(first, second, create_graph):
    a, b = leaf(np.full(first, 2.0)), leaf(np.full(second, 5.0))
    y = a * b
    y.sum().backward(create_graph=create_graph)
    assert a.grad.shape == first
    assert b.grad.shape == second
    assert a.grad.tolist() == np.full(first, 5.0 * y.size / max(a.size, 1)).tolist()
    assert b.grad.tolist() == np.full(second, 2.0 * y.size / max(b.size, 1)).tolist()


@pytest.mark.parametrize("create_graph", [False, True])
def test_D12_a_gradient_of_none_adds_nothing(create_graph):
    class Stop(tg.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 3

        @staticmethod
        def backward(ctx, g):
            return None

    x = leaf()
    Stop.apply(x).sum().backward(create_graph=create_graph)
    assert x.grad is None
    assert tg.grad(Stop.apply(x * x).sum(), x, create_graph=create_graph, allow_unused=True) == (None,)
    y = Stop.apply(x)
    (y + x * x).sum().backward(create_graph=create_graph)
    assert x.grad.tolist() == [2.0, 4.0]
    with pytest.raises(GradientError, match="returned None"):
        tg.grad((y * 2).sum(), x, create_graph=create_graph)
    zeros = tg.grad(Stop.apply(x).sum(), x, create_graph=create_graph, materialize_grads=True)
    assert zeros[0].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("create_graph", [False, True])
def test_D13_unpacked_elements_not_used_have_zeros(create_graph):
    x = leaf((3.0, 4.0))
    first, _ = x
    (2.0 * first).backward(create_graph=create_graph)
    assert x.grad.tolist() == [2.0, 0.0]
    rows = leaf(np.ones((2, 3)))
    _, second = rows
    second.sum().backward(create_graph=create_graph)
    assert rows.grad.tolist() == [[0.0] * 3, [1.0] * 3]


def test_a_leaf_whose_data_was_replaced_gets_the_gradient_at_the_old_value():
    x = leaf()
    y = (x * x).sum()
    x.data = tg.tensor([10.0, 20.0])
    assert tg.grad(y, x, retain_graph=True)[0].tolist() == [2.0, 4.0]
    y.backward()
    assert x.grad.tolist() == [2.0, 4.0]


@pytest.mark.parametrize("create_graph", [False, True])
def test_a_leaf_used_before_and_after_its_data_was_replaced(create_graph):
    x = leaf()
    y = (x * x).sum()
    x.data = tg.tensor([10.0, 20.0])
    y = y + (x * x).sum()
    (g,) = tg.grad(y, x, create_graph=create_graph, retain_graph=True)
    assert g.tolist() == [22.0, 44.0]
    y.backward(inputs=[x], create_graph=create_graph, retain_graph=True)
    assert x.grad.tolist() == [22.0, 44.0]
    x.grad = None
    y.backward(create_graph=create_graph)
    assert x.grad.tolist() == [22.0, 44.0]


@pytest.mark.parametrize("n", [20, 20_000])
@pytest.mark.parametrize(
    "view", [lambda g: g[::1], lambda g: g.T, lambda g: g.reshape(-1, 2), lambda g: g.numpy()]
)
def test_views_of_a_gradient(n, view):
    """They see the sum; what was computed with them keeps its derivative, or says that it cannot."""
    x, z = leaf(np.ones(n)), leaf(np.ones(n))
    np.sum(x * x).backward()
    grad = x.grad
    w = view(grad)
    loss = np.sum(z * (w if w.shape == z.shape else w.reshape(-1)))
    np.sum(x * x).backward()
    assert x.grad is grad
    assert np.all(x.grad.numpy() == 4.0)
    assert np.all(np.asarray(w) == 4.0)
    if not isinstance(w, tg.Tensor) and n > 20:
        with pytest.raises(MutationError, match=rf"\({n},\)"):
            loss.backward()
        w[:] = 2.0
    loss.backward()
    assert np.all(z.grad.numpy() == 2.0)


def test_a_result_of_shared_memory_is_not_shared():
    a = np.full(20_000, 2.0)
    with tg.no_grad():
        r = tg.from_numpy(a) * leaf(np.ones(20_000))
    r.numpy()[:] = 1.0
    assert np.all(a == 2.0)


def test_D3_views_of_the_gradient_see_what_is_added():
    x = leaf((1.0, 2.0))
    (x**3).sum().backward(create_graph=True)
    g = x.grad
    v = g[:1]
    (x * x).sum().backward()
    assert x.grad is g
    assert v.tolist() == [5.0]
    assert tg.grad((v * v).sum(), x, retain_graph=True)[0].tolist() == [60.0, 0.0]
    g *= 2.0
    assert (g.tolist(), v.tolist()) == ([10.0, 32.0], [10.0])


@pytest.mark.parametrize("how", ["grad", "backward"])
def test_F2_2_create_graph_under_no_grad_with_a_leaf_that_had_two_values(how):
    x = leaf((1.0, 2.0))
    y = x**3
    with tg.no_grad():
        x += 1.0
    roots = [y.sum(), (x * x).sum()]
    with tg.no_grad():
        if how == "grad":
            (g,) = tg.grad(roots, x, create_graph=True)
        else:
            tg.backward(roots, create_graph=True)
            g = x.grad
    assert g.tolist() == [7.0, 18.0]
    assert tg.grad(g.sum(), x)[0].tolist() == [8.0, 14.0]


def test_the_copy_of_a_result_given_twice_reads_nothing():
    x, v = leaf((1.0, 2.0)), leaf((1.0, 1.0))
    a, b = tg.grad(x + 0.0, [x, x], v, create_graph=True)
    for _ in range(2):
        (a + b).sum().backward()
    assert v.grad.tolist() == [4.0, 4.0]


@pytest.mark.parametrize("dtype", [np.longdouble, np.clongdouble, np.complex128, np.complex64, np.float32])
def test_values_of_other_dtypes_on_the_way(dtype):
    """Each by a sweep in one call, if there is one, by one in parts, and to ``.grad``."""
    x = leaf(np.array([1.0, 2.0]))

    def total():
        y = x.astype(dtype)
        return np.sum(np.real(y * y * y + np.exp(y)).astype(float))

    expected = 3 * np.array([1.0, 4.0]) + np.exp([1.0, 2.0])
    for (found,) in (tg.grad(total(), x), tg.grad(total(), x, materialize_grads=True)):
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-6)
    total().backward()
    np.testing.assert_allclose(x.grad.numpy(), expected, rtol=1e-6)


@pytest.mark.parametrize("dtype", [np.longdouble, np.clongdouble])
def test_numbers_of_extended_precision_add_up(dtype):
    """Three cotangents that come to a result of no dimension."""
    x = tg.tensor(dtype(1.5), requires_grad=True)
    y = x * x
    z = y * x
    (found,) = tg.grad([np.real(z), np.real(y * y), np.real(z * y)], x)
    assert found.item() == 3 * 1.5**2 + 4 * 1.5**3 + 5 * 1.5**4
