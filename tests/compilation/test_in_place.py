"""Large plain matrices that calls make are read in place: whoever writes to them has recording's answer."""

import gc
import weakref

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.compilation.programs import in_place
from tapegrad.compilation.programs.in_place import FEWER
from tapegrad.errors import MutationError
from tapegrad.kernels import abi
from tapegrad.kernels.replay.layout import SUMMED
from tests.tiers import every

pytestmark = pytest.mark.skipif(not abi.native(), reason="nothing is learned from calls")
ROWS, COLUMNS = SUMMED // 8 // 32, 32
KEPT = []


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setenv("TAPEGRAD_COMPILE", "wait")
    monkeypatch.setattr(in_place, "LEAST", SUMMED)  # the least size that may be, which takes less time
    KEPT.clear()


def made(k, rows=ROWS):
    """Another matrix at each call."""
    return np.cos(np.arange(rows * COLUMNS) * (0.5 + 0.01 * k)).reshape(rows, COLUMNS)


def outcome(call, *args):
    try:
        found = call(*args)
    except (MutationError, ZeroDivisionError) as error:
        return type(error), str(error)
    return found


def compare(f, calls=8, what="value_and_grad", x=None, learned=1, fails=()):
    """As by recording: the same bits of values, close derivatives, or, of some calls, the same error."""
    compiled, recorded = tg.compile(f), getattr(tg.func, what)(f) if what else f
    x = np.linspace(-1.0, 1.0, COLUMNS) if x is None else x
    for k in range(calls):
        args = (x * (1.0 + 0.1 * k), k)
        found = outcome(getattr(compiled, what) if what else compiled, *args)
        wanted = outcome(recorded, *args)
        assert (type(found) is tuple and type(found[0]) is type) is (k in fails), (k, found)
        if k in fails:
            assert found == wanted, k
        elif what != "value_and_grad":
            np.testing.assert_allclose(found, wanted, rtol=1e-11)
        else:
            assert np.asarray(found[0]).tobytes() == np.asarray(wanted[0]).tobytes(), k
            scale = np.abs(wanted[1]).max()
            np.testing.assert_allclose(found[1], wanted[1], rtol=1e-11, atol=1e-13 * scale)
    programs = [path.program for kind in compiled._kinds.values() for path in kind.matcher.paths]
    assert sum(bool(program.at_once) for program in programs) >= learned
    assert not any(held.array is not None for program in programs for held in program.copies.in_place())
    return compiled


def plain(w, k):
    r = np.tanh(made(k) @ w)
    return np.sum(r * r)


def by_a_function(w, k):
    return np.sum(np.matmul(made(k), w) ** 2)


def from_the_left(w, k):
    return np.sum(np.sin(w @ made(k).T.copy()) ** 2)


def in_the_order_of_columns(w, k):
    return np.sum(np.asfortranarray(made(k)) @ w * 0.5)


def transposed(w, k):
    x = made(k, COLUMNS * ROWS // COLUMNS)
    return np.sum((x.T @ np.tanh(x @ w)) ** 2)


def of_a_few_columns(w, k):
    return np.sum((made(k) @ np.stack([w, w * w], axis=1)) ** 2)


def stacked(w, k):
    return np.sum((made(k).reshape(4, -1, COLUMNS) @ w) ** 2)


def of_other_orders(w, k):
    x = made(k)
    return np.sum(((np.asfortranarray(x) if k % 3 == 2 else x) @ w) ** 2)


def a_tensor_of_each_call(w, k):
    return np.sum((tg.tensor(made(k)) @ w) ** 2)


def looked_at(w, k):
    x = made(k)
    y = x @ w
    big = y[0].item() > 1e9
    x = None
    return np.sum(y * y) + float(big)


def two_of_them(w, k):
    return np.sum((made(k) @ w) * (made(k + 1) @ np.sin(w)))


def not_at_hand(w, k):
    """Much is computed before."""
    y = np.exp(made(k) * 0.1 * w)
    return np.sum((made(k + 1) @ w) ** 2) + np.sum(y)


FUNCTIONS = [
    plain, by_a_function, from_the_left, in_the_order_of_columns, transposed, of_a_few_columns, stacked,
    of_other_orders, a_tensor_of_each_call, looked_at, two_of_them, not_at_hand,
]  # fmt: skip


@pytest.mark.parametrize("f", every(FUNCTIONS, 6), ids=lambda f: f.__name__)
def test_as_recorded(f):
    compare(f, learned=f not in (not_at_hand, a_tensor_of_each_call))


@pytest.mark.full
@pytest.mark.parametrize("f", [plain, two_of_them, looked_at], ids=lambda f: f.__name__)
@pytest.mark.parametrize("what", ["", "grad", "hvp"])
def test_whatever_is_asked_for(f, what):
    if what == "hvp":
        compiled, w = tg.compile(f), np.linspace(-1.0, 1.0, COLUMNS)
        for k in range(6):
            found, wanted = compiled.hvp(w, k, w[::-1]), tg.func.hvp(f)(w, k, w[::-1])
            np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-9 * np.abs(wanted).max())
    else:
        compare(f, what=what)


@pytest.mark.full
@pytest.mark.parametrize("setting", ["checksum", "copy", "off"])
def test_guards(setting):
    with tg.guard(setting):
        compare(plain)


def writing(how):
    """A function that writes to its matrix behind the product, in some calls."""

    def f(w, k):
        x = made(k)
        part = x[3:5]
        y = x @ w
        if k >= 6 and k % 3 == 0:
            how(x, part)
        del x, part
        return np.sum(y * y)

    return f


def write_all(x, part):
    x[:] = 7.0


def write_an_element(x, part):
    x[-1, -1] += 1e-9


def write_by_a_view(x, part):
    del x
    part += 1.0


def write_by_a_pointer(x, part):
    np.ctypeslib.as_array((np.ctypeslib.ctypes.c_double * x.size).from_buffer(x))[5] = -1.0


def keep_and_write(x, part):
    KEPT.append(x)
    x[0] = np.nan


WRITES = [write_all, write_an_element, write_by_a_view, write_by_a_pointer, keep_and_write]


@pytest.mark.parametrize("how", every(WRITES, 5), ids=lambda f: f.__name__)
def test_a_write_before_the_derivative_is_refused_as_by_recording(how):
    compare(writing(how), 12, fails=(6, 9))
    compare(writing(how), 12, what="grad", fails=(6, 9))


@pytest.mark.parametrize("how", every(WRITES, 5), ids=lambda f: f.__name__)
def test_values_are_those_of_then(how):
    compare(writing(how), 12, what="")
    with tg.guard("copy"):
        compare(writing(how), 12)


@pytest.mark.full
def test_what_is_written_back_is_the_same():
    def back(x, part):
        x += 1.0
        x[:] = made(int(KEPT[-1]))

    def f(w, k):
        KEPT.append(k)
        return writing(back)(w, k)

    compare(f, 12)


@pytest.mark.full
def test_writes_between_calls():
    def f(w, k):
        x = made(k)
        if k >= 4:
            KEPT.append(x)
        return np.sum((x @ w) ** 2)

    compiled, w = tg.compile(f), np.linspace(-1.0, 1.0, COLUMNS)
    for k in range(10):
        found, wanted = compiled.value_and_grad(w, k), tg.func.value_and_grad(f)(w, k)
        assert found[0] == wanted[0]
        np.testing.assert_allclose(found[1], wanted[1], rtol=1e-12)
        for x in KEPT:
            x[:] = k


@pytest.mark.full
def test_a_buffer_that_is_written_to_in_a_loop():
    def f(w, k):
        buffer, s = np.empty((ROWS, COLUMNS)), 0.0
        for j in range(3):
            buffer[:] = made(k + j)
            s = s + np.sum((buffer @ w) ** 2)
        return s

    compare(f, what="")
    compare(f, fails=range(8), learned=0)
    with tg.guard("copy"):
        compare(f)


def test_a_call_that_leaves_its_way_behind_a_write():
    def f(w, k):
        x = made(k)
        y = x @ w
        if k in (6, 7):
            x[1] = 3.0 * (k == 6) + made(k)[1] * (k == 7)
        z = np.sin(y) if k >= 6 else y * y
        return np.sum(z)

    compare(f, 10, fails=(6,))
    compare(f, 10, what="")


def test_a_call_that_leaves_its_way_where_arrays_are_copied():
    def f(w, k):
        x = made(k)
        y = x @ w
        if k == 6:
            x[1] = 3.0
        with tg.guard("copy"):
            return np.sum(np.sin(y) if k == 6 else y * y)

    compare(f, fails=(6,))


@pytest.mark.full
def test_a_matrix_of_another_shape_by_then():
    def f(w, k):
        x = made(k)
        y = x @ w
        if k > 1:
            x.shape = (-1,)
        return np.sum(y * y)

    compare(f)


@pytest.mark.full
def test_products_with_the_hessian_that_are_made_in_a_call():
    def f(w, k):
        y = made(k) @ w
        return np.sum(np.sin(y)) if k % 8 < 4 else np.sum(y * y * y)

    compiled, w = tg.compile(f), np.linspace(-1.0, 1.0, COLUMNS)
    for k in range(12):
        compiled.grad(w, k)
    for k in (9, 13, 10, 14, 15):
        found, wanted = compiled.hvp(w, k, w[::-1]), tg.func.hvp(f)(w, k, w[::-1])
        np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-9 * np.abs(wanted).max())


@pytest.mark.full
def test_a_product_alone():
    def f(w, k):
        return made(k) @ w

    compiled, w = tg.compile(f), np.linspace(-1.0, 1.0, COLUMNS)
    for k in range(20):
        assert np.array_equal(compiled(w, k), f(w, k))
    assert compiled.explain().kinds[0].ways[0].calls == 18


def test_a_call_that_ends_by_an_error_holds_nothing():
    def f(w, k):
        x = made(k)
        KEPT.append(weakref.ref(x))
        y = np.sum((x @ w) ** 2)
        if k == 5:
            raise ZeroDivisionError
        return y

    compare(f, fails=(5,))
    gc.collect()
    assert not any(x() is not None for x in KEPT)


@pytest.mark.full
def test_a_result_is_a_record_of_an_outer_graph():
    compiled, w = tg.compile(plain), np.linspace(-1.0, 1.0, COLUMNS)
    for k in range(6):
        x = tg.tensor(w, requires_grad=True)
        y = compiled(x * 2.0, k)
        (g,) = tg.grad(y, [x], create_graph=True)
        (h,) = tg.grad(np.sum(g * g), [x])
        of = lambda x, k=k: plain(x * 2.0, k)
        wanted = tg.func.grad(of)(w)
        np.testing.assert_allclose(g.detach().numpy(), wanted, rtol=1e-9)
        np.testing.assert_allclose(h.numpy(), tg.func.hvp(of)(w, 2.0 * wanted), rtol=1e-8, atol=1e-8)


@pytest.mark.full
def test_in_the_background(monkeypatch):
    monkeypatch.setenv("TAPEGRAD_COMPILE", "background")
    compare(plain, 40, learned=0)


@pytest.mark.full
@pytest.mark.parametrize("more", [-1, 0, 1])
def test_sizes(more):
    n = SUMMED // 8 // FEWER

    def f(w, k):
        return np.sum((np.cos(np.arange((n + more) * FEWER) + k).reshape(-1, FEWER) @ w) ** 2)

    compare(f, x=np.linspace(-1.0, 1.0, FEWER), learned=more >= 0)


def test_nothing_is_copied_once_there_is_a_plan():
    compiled = compare(plain, 12)
    ((way,),) = [known.ways for known in compiled.explain().kinds]
    assert way.calls == 10 and not way.by_python
    ((path,),) = [kind.matcher.paths for kind in compiled._kinds.values()]
    (held,) = path.program.copies.in_place()
    held.buffer[0] = -1.0  # in which nobody looks any more
    w = np.linspace(-1.0, 1.0, COLUMNS)
    np.testing.assert_allclose(compiled.grad(w, 3), tg.func.grad(plain)(w, 3), rtol=1e-11)
    assert held.buffer[0, 0] == -1.0
