"""NumPy's functions that only move elements: one record each, and values NumPy's bit for bit."""

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.numpy_api import rearranging
from tapegrad.tape.record import FIRST_OP
from tapegrad.tape.tape import current

V, M, T = (5,), (3, 4), (2, 3, 4)
INDEX = np.array([3, 0, -1, 3])
MOVES = {
    "roll": (lambda x: np.roll(x, 2), V), "roll, axes": (lambda x: np.roll(x, (1, -1), (0, 1)), M),
    "roll, named": (lambda x: np.roll(x, shift=1, axis=-1), T),
    "repeat": (lambda x: np.repeat(x, 2), V), "repeat, axis": (lambda x: np.repeat(x, 3, axis=1), M),
    "repeat, several": (lambda x: np.repeat(x, (0, 2, 1), axis=0), M),
    "tile": (lambda x: np.tile(x, 2), V), "tile, axes": (lambda x: np.tile(x, (2, 1, 3)), M),
    "resize": (lambda x: np.resize(x, (2, 4)), V),
    "delete": (lambda x: np.delete(x, 1, axis=0), M),
    "tril": (np.tril, M), "triu": (lambda x: np.triu(x, 1), T), "tril, vector": (lambda x: np.tril(x, -1), V),
    "diag, vector": (lambda x: np.diag(x, -1), V), "diagflat": (lambda x: np.diagflat(x, 1), M),
    "diag": (np.diag, M), "diagonal": (lambda x: np.diagonal(x, 1, 2, 1), T),
    "pad": (lambda x: np.pad(x, 1), M), "pad, pairs": (lambda x: np.pad(x, ((1, 2), (0, 3))), M),
    "edge": (lambda x: np.pad(x, 2, "edge"), M), "reflect": (lambda x: np.pad(x, (6, 7), "reflect"), V),
    "symmetric": (lambda x: np.pad(x, 2, mode="symmetric"), M), "wrap": (lambda x: np.pad(x, 9, "wrap"), V),
    "rot90 twice": (lambda x: np.rot90(x, 2), M), "flip": (np.flip, M),
    "flip, axis": (lambda x: np.flip(x, 1), M),
    "sort": (np.sort, V), "sort, axis": (lambda x: np.sort(x, 0), T),
    "partition": (lambda x: np.partition(x, 2), V),
    "take": (lambda x: np.take(x, INDEX), V), "take, axis": (lambda x: np.take(x, INDEX, 1), M),
    "take, wrap": (lambda x: np.take(x, [7, -9], mode="wrap"), V),
    "index": (lambda x: x[INDEX], V), "index of rows": (lambda x: x[np.array([[2, 0], [-1, 2]])], M),
    "take_along_axis": (lambda x: np.take_along_axis(x, np.array([[1], [0], [3]]), 1), M),
}  # fmt: skip
PARTS = {  # of more records, and how many
    "trace": (np.trace, M, 2), "outer": (lambda x: np.outer(x, x), V, 2),
    "kron": (lambda x: np.kron(x, x), V, 3), "tensordot": (lambda x: np.tensordot(x, x.T, 1), M, 2),
    "var": (np.var, V, 5), "std": (np.std, V, 6), "var, axis": (lambda x: np.var(x, 0, ddof=1), M, 5),
    "median of an even number": (np.median, (6,), 2), "median": (np.median, V, 1),
}  # fmt: skip


def records(function, x):
    """How many results of ops a call records."""
    tape = current()
    before = len(tape.log)
    out = function(x)
    assert current() is tape
    assert out.requires_grad
    return sum(opcode >= FIRST_OP for opcode in tape.log[before::4])


def drawn(random, shape, dtype):
    found = random.permutation(np.linspace(-1.3, 1.4, int(np.prod(shape)))).reshape(shape)
    return (found + 1j * found[::-1] if np.dtype(dtype).kind == "c" else found).astype(dtype)


@pytest.mark.parametrize("name", MOVES)
def test_a_move_is_one_record_with_the_values_of_numpy(name, random):
    function, shape = MOVES[name]
    for dtype in ("float64", "float32", "complex128"):
        array = drawn(random, shape, dtype)
        y = tg.tensor(array, requires_grad=True) * 1
        for _ in range(2):
            assert records(function, y) == 1
        for x in (y, tg.tensor(array), y.detach()):
            found = function(x).detach().numpy()
            wanted = function(array)
            assert found.dtype == wanted.dtype
            assert found.shape == wanted.shape
            assert found.tobytes() == wanted.tobytes()


@pytest.mark.parametrize("name", PARTS)
def test_few_records(name, random):
    function, shape, wanted = PARTS[name]
    y = tg.tensor(drawn(random, shape, float), requires_grad=True) * 1
    assert records(function, y) <= wanted


@pytest.mark.parametrize("name", [*MOVES, *PARTS])
def test_derivatives_of_a_move(name, random):
    """By each way there is: compiled, recorded, forward, in batches; of first and second order."""
    function, shape = (MOVES.get(name) or PARTS[name])[:2]
    x = tg.tensor(drawn(random, shape, float), requires_grad=True)
    square = lambda x: function(x * x) * function(x)
    assert tg.gradcheck(square, [x], check_forward_ad=True, check_batched_grad=True)
    assert tg.gradgradcheck(square, [x], check_batched_grad=True)


@pytest.mark.parametrize("name", MOVES)
def test_zeros_that_come_in_are_no_product(name):
    """Neither nan nor a sign of what is left out comes through."""
    function, shape = MOVES[name]
    for fill in (np.nan, -0.0, np.inf):
        array = np.full(shape, fill)
        found = function(tg.tensor(array, requires_grad=True) * 1).detach().numpy()
        assert found.tobytes() == function(array).tobytes()


def test_what_numpy_refuses_is_refused_each_time():
    x = tg.tensor(np.arange(6.0).reshape(2, 3), requires_grad=True)
    for call, kind in (
        (lambda: np.roll(x, 1, 5), tg.errors.AxisError), (lambda: np.tile(x, -1), ValueError),
        (lambda: np.repeat(x, -1), ValueError), (lambda: np.pad(x, -1), ValueError),
        (lambda: np.pad(x, 1, "nothing"), ValueError), (lambda: np.resize(x, -1), ValueError),
        (lambda: np.tril(x, "1"), Exception), (lambda: np.roll(x, None), TypeError),
    ):  # fmt: skip
        for _ in range(2):
            with pytest.raises(kind):
                call()


def test_arguments_that_are_equal_but_not_the_same(random):
    """A Tensor or an array as an argument is read each time; 1 and True and 1.0 are no one."""
    x = tg.tensor(drawn(random, V, float), requires_grad=True)
    count = tg.tensor(np.array(1))
    for n in (1, 2, 3):
        with tg.no_grad():
            count[...] = n
        for repeats in (count, np.array(n), np.array([n]), np.full(5, n)):
            assert np.repeat(x, repeats).tolist() == np.repeat(x.detach().numpy(), n).tolist()
    for shift in (1, 1.0, True, np.int8(1), 1):
        assert np.roll(x, shift).tolist() == np.roll(x.detach().numpy(), shift).tolist()
    assert np.diag(x, True).shape == (6, 6)


def test_shifts_as_numpy_reads_them():
    """One or several, in sequences and arrays, cut off to integers; axes are integers."""
    x = tg.tensor(np.arange(12.0).reshape(3, 4), requires_grad=True)
    several = [1.5], (2,), np.array([1.5]), np.array([-2]), tg.tensor([3.7]), [1, 2], np.array([1, 2]), []
    for shift in several:
        for axis in (None, 1, (0, 1) if np.size(shift) else 0):
            found = np.roll(x, shift, axis)
            assert found.tolist() == np.roll(x.detach().numpy(), np.asarray(shift), axis).tolist()
            if np.size(shift):
                (g,) = tg.grad(found, x, np.arange(12.0).reshape(3, 4))
                back = -np.trunc(np.asarray(shift))
                assert g.tolist() == np.roll(np.arange(12.0).reshape(3, 4), back, axis).tolist()
    for axis in (None, 0):
        y = x * 1.0
        np.roll(y, [], axis)[...] = 5.0
        assert y.tolist() == x.tolist()
    for shift, axis in ((np.ones((2, 2)), None), ([[1]], 0), (1, 0.0), (1, np.array([0.0]))):
        for operand in (x, x.detach().numpy()):
            with pytest.raises((ValueError, TypeError)):
                np.roll(operand, shift, axis)


def test_places_are_kept_for_few_elements_only():
    rearranging.places_of.cache_clear()
    most = rearranging.MEMOIZED
    for n in (most - 1, most, most + 1):
        x = tg.tensor(np.arange(float(n)), requires_grad=True)
        (g,) = tg.grad(np.roll(x, 1), x, np.arange(float(n)))
        assert g.tolist() == np.roll(np.arange(float(n)), -1).tolist()
    kept = rearranging.places_of(np.roll, (most,), 1), rearranging.places_of(np.roll, (most + 1,), 1)
    assert kept[0]["places"].size == most
    assert kept[1] is None
    assert rearranging.places_of(np.repeat, (2,), most) is None


def test_a_written_index_changes_no_derivative():
    x = tg.tensor([1.0, 2.0, 3.0], requires_grad=True)
    y, index = x * 1, np.array([2, 0])
    outs = y[index], np.take(y, index), np.take_along_axis(y, index, 0)
    index[:] = 1
    for out in outs:
        (g,) = tg.grad(out, x, np.array([1.0, 10.0]), retain_graph=True)
        assert g.tolist() == [10.0, 0.0, 1.0]


def test_views_stay_views():
    y = tg.tensor(np.arange(9.0).reshape(3, 3), requires_grad=True) * 1
    for see in (np.diagonal, np.diag, lambda x: np.flip(x), lambda x: np.rot90(x)):
        z = y * 1
        seen = see(z)
        z[0, 0] = 7.0
        assert 7.0 in np.ravel(seen).tolist()
        (g,) = tg.grad(np.sum(seen), y)
        assert g[0, 0].item() == 0.0
        assert g[1, 1].item() == 1.0
    assert not np.diag(y).detach().numpy().flags.writeable


@pytest.mark.parametrize("move", [
    lambda x: np.repeat(x, np.array(2.5)), lambda x: np.repeat(x, np.array([2.5])),
    lambda x: np.repeat(x, 1 + 0j), lambda x: np.repeat(x, np.array([2.0]), axis=0),
    lambda x: np.tile(x, 2.5), lambda x: np.tile(x, [2.0]), lambda x: np.tile(x, np.array([2.5])),
    lambda x: np.split(x, [1.5]), lambda x: np.array_split(x, np.array([1.0])),
    lambda x: np.tensordot(x, x, 1.0), lambda x: np.tensordot(x, x, ([0.5], [0])),
])  # fmt: skip
def test_counts_that_are_no_integers_are_refused_as_by_numpy(move):
    for x in (np.ones(3), tg.tensor(np.ones(3), requires_grad=True)):
        with pytest.raises(TypeError):
            move(x)


@pytest.mark.parametrize("move", [
    lambda x, n: np.tile(x, (n, 2)), lambda x, n: np.fft.fft2(x, (n, 2)),
    lambda x, n: np.fft.fftn(x, axes=(n,)),
])  # fmt: skip
def test_a_call_before_makes_no_integer_of_a_fraction(move):
    """1.0 == 1, but only one of them is a count: what is kept for a call is not for the other."""
    x = tg.tensor(np.ones((2, 2)), requires_grad=True)
    move(x, 1)
    with pytest.raises(TypeError):
        move(x, 1.0)
