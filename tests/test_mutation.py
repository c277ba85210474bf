"""Arrays that code outside can write to, changed between their use and backward: exact, or an error."""

import ctypes
import threading

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.core import dispatch
from tapegrad.errors import MutationError
from tapegrad.kernels import abi

from . import sizes

SMALL, LARGE = 4, 5000  # copied; checksummed


def leaf(n, low=0.5):
    return tg.tensor(np.linspace(low, 1.5, n), requires_grad=True)


def plain(a, tmp_path):
    return a, a


def view_taken_before(a, tmp_path):
    return a, a[:]


def memory_map(a, tmp_path):
    mapped = np.memmap(tmp_path / "a.bin", a.dtype, "w+", shape=a.shape)
    mapped[:] = a
    return mapped, mapped


def from_numpy(a, tmp_path):
    return tg.from_numpy(a), a


def given_out(a, tmp_path):
    t = tg.tensor(a)
    return t, t.numpy()


def given_out_of_a_view(a, tmp_path):
    t = tg.tensor(a)
    return t, t.detach()[1:].numpy()


def in_a_closure(a, tmp_path):
    def model(x):
        return x * a

    return model, a


ARRAYS = [
    plain, view_taken_before, memory_map, from_numpy, given_out, given_out_of_a_view, in_a_closure,
]  # fmt: skip


def assign(b):
    b[...] = 7.0


def one_element(b):
    b[b.size // 2] += 1e-12


def out_argument(b):
    np.negative(b, out=b)


def view_taken_after(b):
    b[::-1][1] = 5.0


def through_ctypes(b):
    pointer = b.ctypes.data_as(ctypes.POINTER(ctypes.c_double))
    pointer[1] = 33.5


def sort(b):
    b[::-1].sort()


def fill(b):
    b.fill(0.0)


def exchange(b):
    b[[0, 1]] = b[[1, 0]]


def in_another_thread(b):
    thread = threading.Thread(target=assign, args=(b,))
    thread.start()
    thread.join()


CHANGES = [
    assign, one_element, out_argument, view_taken_after, through_ctypes, sort, fill, exchange,
    in_another_thread,
]  # fmt: skip


@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize("n", [SMALL, LARGE])
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("array", ARRAYS)
def test_a_change_after_use_is_harmless_or_found(array, change, n, create_graph, tmp_path):
    values = np.arange(1.0, n + 1)
    x = leaf(n)
    a, b = array(values.copy(), tmp_path)
    y = (a(x) if callable(a) else x * a).sum()
    before = b.copy()
    change(b)
    assert not np.array_equal(before, b)
    if n == LARGE:
        with pytest.raises(MutationError, match=r"shape \(5000,\), dtype float64 .*multiply"):
            tg.grad(y, x, create_graph=create_graph)
        b[...] = before  # nothing was lost: with the old values it works
    (g,) = tg.grad(y, x, create_graph=create_graph)
    assert g.tolist() == values.tolist()


@pytest.mark.parametrize("n", [SMALL, LARGE])
def test_the_memory_of_a_tape_is_not_given_out(n):
    """A leaf used before its memory is given out: the tape keeps the old values."""
    x = leaf(n)
    y = (x * x).sum()
    x.detach().numpy()[:] = 9.0
    assert x[0].item() == 9.0
    z = (x * x).sum()
    (y + z).backward()
    assert x.grad.tolist() == (2 * np.linspace(0.5, 1.5, n) + 18.0).tolist()


def test_memory_is_exposed_while_an_array_of_it_lives():
    """Afterwards large values are no longer checked, small ones no longer copied."""
    x = leaf(LARGE)
    b = x.detach().numpy()[10:]
    y = (x * x).sum()
    b[0] = 2.0
    with pytest.raises(MutationError):
        y.backward()
    del b
    (x * x).sum().backward()
    assert x.grad[10].item() == 4.0


@pytest.mark.parametrize(
    "layout", ["strided", "transposed", "read-only view", "float32", "bool", "byte-swapped"]
)
def test_layouts(layout):
    x = leaf(LARGE)
    base = np.arange(1.0, 2 * LARGE + 1)
    a = {
        "strided": lambda: base[::2],
        "transposed": lambda: base[:LARGE].reshape(2, -1).T,
        "read-only view": lambda: np.broadcast_to(base[:LARGE], (LARGE,)),
        "float32": lambda: base.astype(np.float32)[:LARGE],
        "bool": lambda: base[:LARGE] > 10,
        "byte-swapped": lambda: base.astype(">f8")[:LARGE],
    }[layout]()
    wanted = a.reshape(-1).astype(float)
    y = (x.reshape(a.shape) * a).sum()
    owner = a if a.base is None else a.base
    owner[...] = 0
    try:
        y.backward()
    except MutationError:
        return
    assert x.grad.tolist() == wanted.tolist()


def test_only_what_a_derivative_reads_is_checked():
    x, a = leaf(LARGE), np.ones(LARGE)
    y = (x + a).sum() * 2.0
    unused = (x * a).sum()
    a[:] = 5.0
    y.backward()
    assert x.grad[0].item() == 2.0
    with pytest.raises(MutationError):
        unused.backward()


def test_a_matrix_used_again_is_one_record():
    a = np.random.default_rng(0).random((80, 80))
    x = leaf(80)
    y = x
    for _ in range(50):
        y = a @ y
    assert y._tape.show().count("const") <= 2
    y.sum().backward()
    assert np.allclose(x.grad.numpy(), np.linalg.matrix_power(a, 50).sum(0))


@pytest.mark.parametrize("n", [SMALL, 1000, 2000])
def test_a_copy_is_used_again_while_the_array_is_as_it_was(n):
    """Known by its address, so its bytes are compared: signs of zeros and other views of the memory count."""
    a = np.zeros((2, n))
    x = leaf(n)
    tg.grad((x * 2.0).sum(), x)  # compiles what records
    y = x * a[0] + x * a[0]
    assert not abi.native() or y._tape.show().count("const") == 1
    a[0] = -0.0
    z = x * a[0]
    a[0] = 3.0
    w = x * a[0, : n // 2].sum() + x[: n // 2].sum() * a[0] + (x[: n // 2] * a[0, ::2]).sum()
    a[...] = 7.0
    v = x * a.reshape(-1)[:n] + x * a.T[:, 0] + x * a.view(np.int64)[0].astype(float)
    assert np.all(np.signbit(tg.grad(z.sum(), x, retain_graph=True)[0].numpy()))
    (g,) = tg.grad(y.sum() + w.sum() + v.sum(), x)
    half = n // 2
    wanted = np.full(n, 3.0 * half + 14.0 + np.full(n, 7.0).view(np.int64)[0].astype(float))
    wanted[:half] += 3.0 * n + 3.0
    np.testing.assert_allclose(g.numpy(), wanted, rtol=1e-14)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("n", [SMALL, 1000, LARGE])
def test_each_use_has_its_own_values(change, n):
    """An array written to between two uses, of which the first is exact, or found out if not copied."""
    x, a = leaf(n), np.arange(1.0, n + 1)
    before = a.copy()
    y = (x * a).sum()
    change(a)
    z = (x * a).sum() + (x * a).sum()
    assert tg.grad(z, x)[0].tolist() == (2 * a).tolist()
    if n == LARGE:
        with pytest.raises(MutationError):
            tg.grad(y, x)
        a[...] = before
    assert tg.grad(y, x)[0].tolist() == before.tolist()


def in_memory(x, layout):
    """An array with these elements that lies in memory as asked."""
    if layout == "plain":
        return x.copy()
    roomy = np.zeros(2 * len(x), x.dtype)
    a = roomy[::2] if layout == "strided" else roomy[::-2]
    a[...] = x
    return a


def states_of(a):
    """The elements of an array, and those after each of some changes, of a bit, of one element or of all.

    The array is then as it was; changes of bits are written through a view of another dtype.
    """
    first, bits = a.copy(), a[:, None].view(np.uint8)
    yield first
    for k in sorted({0, len(a) // 2, len(a) - 1}):
        bits[k, 0] ^= 1
        yield a.copy()
        a[k] = 20
        yield a.copy()
        a[k : k + 1] = first[k : k + 1]
        yield first
    a[...] = -first
    yield a.copy()
    a[...] = first
    yield first


def check_each_use(n, dtype, layout, mode):
    """Each use of an array is derived with its elements of then, or refused if it is only compared."""
    kind = dtype if np.dtype(dtype).kind in "fc" else "float64"
    a = in_memory(sizes.values(n, dtype, 1, 9), layout)
    x, ones, uses = tg.ones(n, dtype=kind, requires_grad=True), np.ones(n, kind), []
    with tg.guard(mode):
        for state in states_of(a):
            uses.append((x * a, state))
    is_copied = a.nbytes <= dispatch.COPIED or mode == "copy"
    is_copied |= mode == "checksum" and layout != "plain"
    for state in {id(state): state for _, state in uses}.values():
        a[...] = state
        for y, then in uses:
            if is_copied or mode == "off" or then is state:
                wanted = then if is_copied or mode == "checksum" else state
                (g,) = tg.grad(y, x, ones, retain_graph=True)
                assert np.array_equal(g.numpy(), np.conj(wanted)), (n, then is state)
            else:
                with pytest.raises(MutationError):
                    tg.grad(y, x, ones, retain_graph=True)


NUMBERS = ("float32", "float64", "complex64", "complex128", "longdouble", "int64")


@pytest.mark.parametrize("mode", ["checksum", "copy", "off"])
@pytest.mark.parametrize("dtype", NUMBERS)
def test_each_use_of_any_array_has_its_own_values(dtype, mode):
    limit = dispatch.COPIED // np.dtype(dtype).itemsize
    for layout in ("plain", "strided", "reversed"):
        for n in (1, limit, limit + 1):
            check_each_use(n, dtype, layout, mode)


@pytest.mark.full
@pytest.mark.parametrize("layout", ["plain", "strided", "reversed"])
@pytest.mark.parametrize("dtype", NUMBERS)
def test_each_use_of_arrays_of_all_sizes_has_its_own_values(dtype, layout):
    most = 1 << 20
    for n in (*sizes.counts(dtype, most if layout == "plain" else 1 << 15), most // np.dtype(dtype).itemsize):
        check_each_use(n, dtype, layout, "checksum")


@pytest.mark.parametrize("first", [1000, 2000, LARGE])
def test_arrays_of_one_address_are_told_apart(first):
    """A window copied, the whole with a checksum, other extents, strides and dtypes at the same address."""
    a, x = np.arange(1.0, 2 * LARGE + 1), leaf(2 * LARGE)
    uses = [
        a[:first],
        a,
        a[::2],
        a.reshape(2, -1),
        a.reshape(2, -1).T,
        a[:LARGE],
        a.view("i8")[:first],
        a[:first],
    ]
    for _ in range(2):
        y = sum((x[: u.size].reshape(u.shape) * u).sum() for u in uses)
    wanted = np.zeros(2 * LARGE)
    for u in uses:
        wanted[: u.size] += u.reshape(-1)
    np.testing.assert_allclose(tg.grad(y, x)[0].numpy(), wanted, rtol=1e-14)


@pytest.mark.parametrize("n", [1, SMALL, 512, 513])
def test_copies_that_tapes_have_are_left_alone(n):
    """Memory of copies is used again when their tapes are gone: here of two in three."""
    x, same, kept, every = leaf(n), np.empty(n), [], []
    for k in range(900):
        same[...] = k
        each = np.full(n, k + 0.5)
        y = (x * same * each).sum()
        if k % 3:
            assert tg.grad(y, x)[0].tolist() == n * [k * (k + 0.5)]
        else:
            kept.append((y, k * (k + 0.5)))
        every.append(each if k % 2 else None)  # half of the addresses are new ones
    for y, wanted in kept:
        assert tg.grad(y, x)[0].tolist() == n * [wanted]


@pytest.mark.parametrize("n", [SMALL, LARGE])
def test_guard_copy(n):
    x, a = leaf(n), np.full(n, 2.0)
    with tg.guard("copy"):
        y = (x * a).sum()
    a[:] = 0.0
    y.backward()
    assert x.grad.tolist() == [2.0] * n


def test_guard_off_reads_what_is_there():
    n = LARGE
    x, a = leaf(n), np.full(n, 2.0)

    @tg.guard("off")
    def model():
        return (x * a).sum()

    y = model()
    a[:] = 3.0
    y.backward()
    assert x.grad.tolist() == [3.0] * n


def test_guard_is_restored_and_validated():
    with pytest.raises(ZeroDivisionError), tg.guard("off"):
        raise ZeroDivisionError
    assert "checksum" in tg.show_config()
    with pytest.raises(ValueError, match="'checksum', 'copy', 'off', found 'lock'"), tg.guard("lock"):
        pass


def test_higher_orders_check_too():
    x, a = leaf(LARGE), np.full(LARGE, 2.0)
    (g,) = tg.grad((x * a * x).sum(), x, create_graph=True)
    a[0] = 1.0
    with pytest.raises(MutationError):
        g.sum().backward()
    a[0] = 2.0
    g.sum().backward()
    assert x.grad.tolist() == [4.0] * LARGE
