"""Calls of compiled functions: what goes in, what comes out, and what backward makes of it."""

import math
import pickle
import warnings
from typing import NamedTuple

import numba
import numpy as np
import pytest

import tapegrad as tg
from tapegrad.errors import DTypeError, GradientError, GraphFreedError, MutationError, UnsupportedOpError


@tg.njit
def weighted(x, w, n):
    s = 0.0
    for _ in range(n):
        for i in range(x.size):
            s += w[i] * x[i] ** 2
    return s


def leaf(*values):
    return tg.tensor(values[0] if len(values) == 1 else values, requires_grad=True)


def test_plain_arguments_are_numbas():
    found = weighted(np.array([1.0, 2.0]), np.array([3.0, 4.0]), 1)
    assert type(found) is float and found == 19.0
    assert len(weighted.signatures) == 1  # Numba's own attribute


@pytest.mark.quick
def test_one_record_whatever_the_program_does():
    x = leaf(1.0, 2.0)
    first = weighted(x, np.ones(2), 1000)
    assert first.shape == () and first.ndim == 0
    assert first._tape.show().count("compiled_call") == 1


@pytest.mark.quick
def test_active_and_passive_arguments():
    x, w = leaf(1.0, 2.0), leaf(3.0, 4.0)
    gx, gw = tg.grad(weighted(x, w, 2), (x, w))
    np.testing.assert_array_equal(gx, [12.0, 32.0])
    np.testing.assert_array_equal(gw, [2.0, 8.0])
    (gx,) = tg.grad(weighted(x, w.detach(), n=1), x)
    np.testing.assert_array_equal(gx, [6.0, 16.0])


@pytest.mark.quick
def test_backward_goes_on_through_what_came_before_and_after():
    x = leaf(0.5, 1.0)
    y = np.sin(x)
    loss = np.exp(weighted(y * 2, np.ones(2), 1)) + x[0]
    loss.backward()
    s = 4 * (math.sin(0.5) ** 2 + math.sin(1.0) ** 2)
    expected = math.exp(s) * 8 * np.sin([0.5, 1.0]) * np.cos([0.5, 1.0]) + [1.0, 0.0]
    np.testing.assert_allclose(x.grad, expected, rtol=1e-14)


@pytest.mark.quick
def test_on_a_dispatcher_of_numba():
    compiled = numba.njit(lambda x: x * x * x)
    function = tg.njit(compiled)
    assert function(2.0) == 8.0
    x = leaf(2.0)
    assert tg.grad(function(x), x)[0].item() == 12.0
    with pytest.raises(TypeError, match="compiled by Numba already"):
        tg.njit(compiled, fastmath=True)


@pytest.mark.quick
def test_options_that_nobody_knows_are_refused_at_once():
    """Numba told of them, as a KeyError, when the function was first called."""
    for given in ((math.sin,), ()):
        with pytest.raises(TypeError, match=r"no option 'foo': it takes rerun, .* cache, .* fastmath"):
            tg.njit(*given, foo=True)
        with pytest.raises(TypeError, match=r"no option 'fastmat'; fastmath is one"):
            tg.njit(*given, cache=True, fastmat=True)


def test_called_by_other_compiled_functions():
    @numba.njit
    def outer(x):
        return weighted(x, x, 1) + 1.0

    assert outer(np.array([1.0, 2.0])) == 10.0
    x = leaf(1.0, 2.0)
    np.testing.assert_array_equal(tg.grad(tg.njit(outer)(x), x)[0], [3.0, 12.0])


class Pair(NamedTuple):
    a: object
    b: object


@tg.njit
def several(p, k):
    a, b = p
    return a * b, (b * b, a + np.zeros(2)), k + 1, True


def test_tuples_in_and_out():
    a, b = leaf(2.0), leaf(3.0)
    product, (square, array), k, flag = several((a, b), 4)
    assert (k, flag) == (5, True)
    np.testing.assert_array_equal(array.detach(), [2.0, 2.0])
    ga, gb = tg.grad([product, square, array.sum()], (a, b))
    assert (ga.item(), gb.item()) == (3.0 + 2.0, 2.0 + 6.0)


@pytest.mark.quick
def test_named_tuples():
    @tg.njit
    def swapped(p):
        return Pair(p.b * 2.0, p.a)

    a = leaf(2.0)
    out = swapped(Pair(a, 5.0))
    assert type(out) is Pair and out.a.item() == 10.0
    assert tg.grad(out.b, a)[0].item() == 1.0


@tg.njit
def table(x):
    out = np.zeros((x.size, 2))
    for i in range(x.size):
        out[i, 0] = x[i]
        out[i, 1] = x[i] ** 2
    return out


def test_arrays_come_back():
    x = leaf(1.0, 2.0, 3.0)
    y = table(x)
    assert y.shape == (3, 2)
    y.backward(np.arange(6.0).reshape(3, 2))
    np.testing.assert_array_equal(x.grad, [0 + 2 * 1, 2 + 4 * 3, 4 + 6 * 5])


def test_views_and_layouts_of_arguments():
    x = tg.tensor(np.arange(6.0).reshape(2, 3), requires_grad=True)
    y = table(x.T[1])
    np.testing.assert_array_equal(tg.grad(y.sum(), x)[0], [[0, 3, 0], [0, 9, 0]])

    @tg.njit
    def corner(a):
        return a[0, 1] * a[2, 0] + a[:, 1].sum()

    a = tg.tensor(np.asfortranarray(np.arange(9.0).reshape(3, 3)), requires_grad=True)
    np.testing.assert_array_equal(tg.grad(corner(a), a)[0], [[0, 7, 0], [0, 1, 0], [1, 1, 0]])


@tg.njit
def fill(out, x):
    for i in range(x.size):
        out[i] = x[i] * 2.0
    return x[0]


@pytest.mark.quick
def test_arrays_written_in_place():
    x, out = leaf(1.0, 2.0), tg.zeros(3)
    window = out[1:]
    first = fill(out, x)
    np.testing.assert_array_equal(out.detach(), [2.0, 4.0, 0.0])
    np.testing.assert_array_equal(tg.grad((window * np.array([3.0, 5.0])).sum() + first, x)[0], [1.0, 6.0])
    y = x * 1.0
    fill(y, x * x)
    np.testing.assert_array_equal(tg.grad(y.sum(), x)[0], [4.0, 8.0])
    with pytest.raises(GradientError, match="writes to a leaf"):
        fill(x, x)


@pytest.mark.quick
def test_written_in_place_without_derivative():
    out = tg.zeros(2)
    assert fill(out, np.ones(2)) == 1.0
    np.testing.assert_array_equal(out, [2.0, 2.0])


@pytest.mark.quick
def test_one_tensor_given_twice_is_one_array():
    x = leaf(1.0, 2.0) * 1.0
    value = fill(x, x)
    np.testing.assert_array_equal(x.detach(), [2.0, 4.0])
    assert value.item() == 2.0


@pytest.mark.quick
def test_modes():
    x = leaf(1.0, 2.0)
    with tg.no_grad():
        y = weighted(x, np.ones(2), 1)
    assert isinstance(y, tg.Tensor) and not y.requires_grad and y.item() == 5.0
    assert not weighted(x.detach(), np.ones(2), 1).requires_grad


@pytest.mark.quick
def test_second_sweep_needs_retain_graph():
    x = leaf(1.0, 2.0)
    y = weighted(x, np.ones(2), 1)
    first = tg.grad(y, x, retain_graph=True)[0]
    np.testing.assert_array_equal(tg.grad(y, x)[0], first)
    with pytest.raises(GraphFreedError):
        tg.grad(y, x)


def test_orders_to_four():
    @tg.njit
    def quartic(x):
        y = 1.0
        for _ in range(4):
            y *= x[0]
        return y * x[1]

    x = leaf(2.0, 3.0)
    y, found = quartic(x), []
    for _ in range(4):
        (g,) = tg.grad(y, x, create_graph=True)
        y = g[0]
        found.append(y.item())
    assert found == [4 * 8 * 3, 12 * 4 * 3, 24 * 2 * 3, 24 * 3]
    np.testing.assert_array_equal(g.detach(), [72.0, 48.0])


def test_gradcheck_and_gradgradcheck():
    @tg.njit
    def mixed(x, y):
        return x * math.sin(y) + y**3, np.array([x, y * x])

    inputs = (leaf(0.7), leaf(1.3))
    assert tg.gradcheck(lambda *a: mixed(*a)[1], inputs)
    assert tg.gradgradcheck(lambda *a: mixed(*a)[0], inputs)


def test_gradient_of_a_gradient_norm():
    x = leaf(0.5, 1.5, -0.5)

    @tg.njit
    def f(x):
        s = 0.0
        for i in range(x.size):
            s += math.exp(x[i]) * x[i - 1]
        return s

    def plain(x):
        return (np.exp(x) * np.roll(x, 1)).sum()

    results = []
    for function in (f, plain):
        (g,) = tg.grad(function(x), x, create_graph=True)
        results.append(tg.grad((g * g).sum(), x)[0].numpy())
    np.testing.assert_allclose(*results, rtol=1e-13)


def test_second_derivatives_see_arguments_as_they_were():
    @tg.njit
    def product(x, w):
        s = 0.0
        for i in range(x.size):
            s += w[i] * x[i] ** 3
        w[0] = 0.0
        return s

    x, w = leaf(1.0, 2.0), np.array([2.0, 3.0])
    (g,) = tg.grad(product(x, w), x, create_graph=True)
    assert w[0] == 0.0
    np.testing.assert_array_equal(tg.grad(g.sum(), x)[0], [12.0, 36.0])
    big, x = np.ones(5000), tg.tensor(np.ones(5000), requires_grad=True)
    (g,) = tg.grad(product(x, big), x, create_graph=True)
    with pytest.raises(MutationError, match="product"):
        tg.grad(g.sum(), x)
    big[0] = 1.0
    with tg.guard("copy"):
        (g,) = tg.grad(product(x, big), x, create_graph=True)
    assert tg.grad(g.sum(), x)[0][0].item() == 6.0


def test_random_functions_have_no_second_derivative_unless_told():
    def noisy(x):
        return x * x * np.random.normal()  # noqa: NPY002

    def nested(x):
        return inner(x) + x

    inner = numba.njit(noisy)
    for function in (noisy, nested):
        x = leaf(2.0)
        (g,) = tg.grad(tg.njit(function)(x), x, create_graph=True)
        with pytest.raises(UnsupportedOpError, match="draws random numbers"):
            tg.grad(g, x)
    with pytest.raises(UnsupportedOpError, match=r"^a second derivative runs noisy again"):
        tg.func.jvp(lambda x: tg.njit(noisy)(x) * 1.0)(2.0, 1.0)
    (g,) = tg.grad(tg.njit(noisy, rerun=True)(x), x, create_graph=True)
    assert np.isfinite(tg.grad(g, x)[0].item())


def test_what_runs_a_random_function_several_times_is_refused_unless_told():
    def noisy(x):
        return x * x * np.random.normal()  # noqa: NPY002

    gradient = tg.func.grad(tg.njit(noisy))
    for several in (
        tg.func.hessian(tg.njit(noisy)),
        tg.func.jacfwd(tg.njit(noisy)),
        lambda x: tg.func.jvp(tg.njit(noisy), batched=True)(x, np.ones(5)),
        tg.func.grad(tg.njit(lambda x: gradient(x) * 2.0)),
    ):
        with pytest.raises(UnsupportedOpError, match=r"(?s)draws random numbers.*pass what it draws"):
            several(1.0)
    assert np.isfinite(tg.func.hessian(tg.njit(noisy, rerun=True))(1.0))


TABLE = np.array([2.0, 3.0])


def test_a_second_derivative_of_what_reads_a_global_array():
    @tg.njit
    def tabled(x):
        return TABLE[0] * x[0] ** 2 + TABLE[1] * x[1]

    x = leaf(1.0, 2.0)
    (g,) = tg.grad(tabled(x), x, create_graph=True)
    np.testing.assert_array_equal(g.detach(), [4.0, 3.0])
    np.testing.assert_array_equal(tg.grad(g.sum(), x)[0], [4.0, 0.0])


def test_division_by_zero_is_that_of_the_error_model():
    def half(x):
        return 1.0 / x

    with pytest.raises(ZeroDivisionError):
        tg.njit(half)(leaf(0.0))
    y = tg.njit(half, error_model="numpy")(leaf(0.0))
    assert y.item() == np.inf


@pytest.mark.quick
def test_exceptions_leave_everything_usable():
    @tg.njit
    def checked(x):
        if x[0] < 0:
            raise ValueError("below zero")
        return x[0] * x[1]

    for _ in range(100):
        with pytest.raises(ValueError, match="below zero"):
            checked(leaf(-1.0, 2.0))
    x = leaf(3.0, 2.0)
    np.testing.assert_array_equal(tg.grad(checked(x), x)[0], [2.0, 3.0])


@pytest.mark.quick
def test_what_is_refused_before_anything_runs():
    with pytest.raises(DTypeError, match="float64"):
        fill(tg.zeros(2), tg.tensor([1.0, 2.0], dtype=np.float32, requires_grad=True))
    with pytest.raises(TypeError, match="list of Tensors"):
        fill([leaf(1.0)], 1.0)
    with pytest.raises(TypeError, match="takes a function"):
        tg.njit(3)


@pytest.mark.quick
def test_integer_tensors_are_integers():
    @tg.njit
    def picked(x, k):
        return x[k[0]] * x[k[1]]

    x = leaf(1.0, 2.0, 3.0)
    np.testing.assert_array_equal(tg.grad(picked(x, tg.tensor([0, 2])), x)[0], [3.0, 0.0, 1.0])


def test_results_that_depend_on_nothing():
    @tg.njit
    def some(x, n):
        return (x[0] if n else 3.0), np.ones(2)

    x = leaf(1.0, 2.0)
    a, b = some(x, 0)
    assert a.item() == 3.0
    np.testing.assert_array_equal(tg.grad(a + b.sum() + x[0], x)[0], [1.0, 0.0])


@pytest.mark.quick
def test_unreached_infinite_partials_do_no_harm():
    @tg.njit
    def guarded(x):
        r = math.sqrt(x[0])
        if r > 1.0:
            return r
        return x[1] * 2.0

    np.testing.assert_array_equal(tg.grad(guarded(x := leaf(0.0, 1.0)), x)[0], [0.0, 2.0])


def test_keyword_only_and_default_arguments():
    @tg.njit
    def scaled(x, factor=2.0, shift=1.0):
        return x * factor + shift

    x = leaf(3.0)
    assert scaled(x, shift=0.0).item() == 6.0
    assert tg.grad(scaled(shift=x, x=x), x)[0].item() == 3.0


@pytest.mark.quick
def test_methods_and_pickling():
    class Model:
        value = tg.njit(lambda self_k, x: x * 3.0)

    assert pickle.loads(pickle.dumps(weighted))(np.ones(2), np.ones(2), 1) == 2.0
    assert repr(weighted) == "<tg.njit weighted>"
    assert callable(Model().value)


def test_compiled_functions_as_arguments():
    @numba.njit(parallel=True)
    def squares(v):
        out = np.zeros(v.size)
        for i in numba.prange(v.size):
            out[i] = v[i] * v[i]
        return out.sum()

    both = (squares, numba.njit(lambda v: v[0] * v[1]))

    @tg.njit
    def applied(f, x):
        return f(x) + x[0] * x[1]

    @tg.njit
    def chosen(x):
        return both[1](x)

    x = leaf(2.0, 3.0)
    (g,) = tg.grad(applied(squares, x), x, create_graph=True)
    np.testing.assert_array_equal(g.detach(), [4.0 + 3.0, 6.0 + 2.0])
    np.testing.assert_array_equal(tg.grad(g[0], x)[0], [2.0, 1.0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(UnsupportedOpError, match="functions in a tuple"):
            chosen(x)


def test_second_derivatives_refuse_what_may_have_changed():
    @tg.njit
    def drawn(x, generator):
        return x * x * generator.normal()

    x = leaf(2.0)
    (g,) = tg.grad(drawn(x, np.random.default_rng(1)), x, create_graph=True)
    with pytest.raises(UnsupportedOpError, match="type Generator"):
        tg.grad(g, x)


def test_passive_updates_are_numbas():
    @tg.njit
    def counted(x, w, k):
        w += 1.0
        w[0] *= 2.0
        k += 2
        items = [1]
        items += [k]
        text = "a"
        text += "b"
        k -= 1
        k //= 1
        w[1:] -= w[:-1]
        return x[0] * w[0] * items[1] * len(text) + k * x[1]

    x, w = leaf(2.0, 3.0), np.ones(3)
    (g,) = tg.grad(counted(x, w, 1), x)
    np.testing.assert_array_equal(w, [4.0, -2.0, 4.0])
    np.testing.assert_array_equal(g, [4.0 * 3 * 2, 2.0])


def test_texts_are_those_of_values():
    @tg.njit
    def length(x):
        return len(str(x[0])) * x[0] + len(f"{x[1] * 2.0}")

    x = leaf(0.5, 1.5)
    assert length(x).item() == length(np.array([0.5, 1.5]))


@pytest.mark.quick
def test_what_is_written_to_tensors_of_other_dtypes_is_there():
    @tg.njit
    def noted(x, counts, pairs):
        counts[0] += 5
        pairs[1] = 7j
        return x[0] * counts[0]

    x, counts = tg.tensor([2.0], requires_grad=True), tg.tensor([1, 2])
    pairs = tg.tensor([1j, 2.0], dtype=np.complex64)
    np.testing.assert_array_equal(tg.grad(noted(x, counts, pairs), x)[0], [6.0])
    np.testing.assert_array_equal(counts, [6, 2])
    np.testing.assert_array_equal(pairs, [1j, 7j])


def test_an_array_as_an_array_is_itself():
    @tg.njit
    def aliased(x):
        y = x.copy()
        np.asarray(y)[0] = x[1] * 7.0
        return y.sum()

    x = tg.tensor([2.0, 3.0], requires_grad=True)
    np.testing.assert_array_equal(tg.grad(aliased(x), x)[0], [0.0, 8.0])


class Two(NamedTuple):
    a: float
    b: float


@numba.njit
def either(x, swap):
    p = Two(x[0], x[1])
    if swap:
        p = Two(a=p.b * 2.0, b=p.a)
    return p.a * p.a * p.b


def test_named_tuples_of_values_and_of_expressions_meet():
    x = np.array([2.0, 3.0])
    np.testing.assert_allclose(tg.func.grad(either)(x, True), [36.0, 48.0])
    np.testing.assert_allclose(tg.func.grad(either)(x, False), [12.0, 4.0])
