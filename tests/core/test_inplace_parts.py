"""Writes to copies of what NumPy has views of, parts and numbers: refused while they would be lost."""

from contextlib import nullcontext

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.kernels import abi

PARTS = {"real": lambda z: z.real, "imag": lambda z: z.imag, "np.real": np.real, "np.imag": np.imag,
         "of a view": lambda z: z[::-1].imag}  # fmt: skip
CHANGES = {
    "element": lambda r: r.__setitem__(0, 5.0),
    "slice": lambda r: r[1:].mul_(2.0),
    "operator": lambda r: r.__iadd__(1.0),
    "method": lambda r: r.fill_(0.0),
    "reshaped": lambda r: r.reshape(1, 3).__imul__(2.0),
    "function": lambda r: np.copyto(r, 0.0),
}


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("follow", [False, True])
def test_a_write_to_a_part_of_complex_numbers_is_not_lost(part, change, follow):
    """NumPy's parts are views: the write would be one of the complex numbers too, here it would be lost."""
    z = tg.tensor(np.array([1.0 + 2.0j, 3.0, 4.0j]), requires_grad=follow) * 1.0
    copied = PARTS[part](z)
    before = copied.tolist()
    with pytest.raises(tg.errors.ReadOnlyError, match=r"copy of a real or imaginary part.*\.copy\(\)"):
        CHANGES[change](copied)
    assert copied.tolist() == before
    CHANGES[change](copied.copy())
    with tg.no_grad(), pytest.raises(tg.errors.ReadOnlyError):
        CHANGES[change](copied)
    del z
    CHANGES[change](copied)  # nobody is there to miss it
    assert copied.tolist() != before
    assert copied.requires_grad == follow


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("view", [lambda z: z[1:], lambda z: z.detach()], ids=["view", "detached"])
def test_a_write_to_a_part_is_refused_while_only_a_view_sees_the_whole(early, view):
    z = tg.tensor(np.array([1.0 + 2.0j, 3.0, 4.0j]), requires_grad=True) * 1.0
    seen = view(z) if early else None
    copied = z.real
    seen = view(z) if seen is None else seen
    del z
    with pytest.raises(tg.errors.ReadOnlyError):
        copied[0] = 5.0
    del seen
    copied[0] = 5.0
    assert copied.tolist()[0] == 5.0


@pytest.mark.parametrize("hold", [False, True])
def test_a_write_to_a_part_of_a_view_that_leaves_a_program(hold):
    writes = []

    def function(x):
        z = np.exp(x * (1.0 + 1.0j))
        part = z[1:].real
        z = z if hold else np.sin(x)
        if writes:
            part[0] = x[0]
        return np.sum(part) + np.sum(np.abs(z))

    compiled = tg.compile(function, wait=True)
    for k in range(1, 7):
        compiled.grad(k * np.array([0.1, -0.2, 0.3]))
    writes.append(True)
    x = np.array([0.1, 0.2, 0.4])
    wanted = np.cos(x) + np.array([1.0, 0.0, np.exp(0.4) * (np.cos(0.4) - np.sin(0.4))])
    for gradient in (tg.func.grad(function), compiled.grad):
        with pytest.raises(tg.errors.ReadOnlyError) if hold else nullcontext():
            np.testing.assert_allclose(gradient(x), wanted, rtol=1e-14)


NUMBERS = {
    "ellipsis": ((2, 2), lambda x: x[0, 1, ...]),
    "ellipsis alone": ((), lambda x: x[...]),
    "of a view": ((2, 3), lambda x: x.T[0][1, ...]),
    "reshape": ((1, 1), lambda x: x.reshape(())),
    "squeeze": ((1,), np.squeeze),
    "again": ((2,), lambda x: x[1, ...].reshape(1)),
}
SETS = {
    "ellipsis": lambda v: v.__setitem__(..., 7.0),
    "tuple": lambda v: v.__setitem__((0,) * v.ndim, 7.0),
    "+=": lambda v: v.__iadd__(1.0),
    "fill": lambda v: v.fill(3.0),
    "copyto": lambda v: np.copyto(v, 3.0),
}


@pytest.mark.parametrize("follow", [False, True])
@pytest.mark.parametrize("view", NUMBERS)
def test_a_write_to_a_number_that_numpy_has_a_view_for_is_not_lost(view, follow):
    shape, take = NUMBERS[view]
    for change in [*SETS.values(), *([] if follow else [lambda v: np.add(v, 1.0, out=v)])]:
        x = tg.tensor(np.ones(shape), requires_grad=follow) * 1.0
        number = take(x)
        for mode in (nullcontext(), tg.no_grad()):
            with mode, pytest.raises(tg.errors.ReadOnlyError, match=r"an element.*\.copy\(\)"):
                change(number)
        assert number.tolist() in (1.0, [1.0]) and x.sum().item() == x.size
        change(number.copy())
        del x
        change(number)  # nobody is there to miss it


def test_a_write_to_a_number_of_an_array_that_others_see_is_not_lost():
    array = np.zeros(2)
    number = tg.from_numpy(array)[0, ...]
    with pytest.raises(tg.errors.ReadOnlyError):
        number += 1.0
    x = tg.zeros(2)
    array = x.numpy()
    number = np.squeeze(x[:1])
    del x
    with pytest.raises(tg.errors.ReadOnlyError):
        number.fill(1.0)
    del array
    number.fill(1.0)
    assert number.item() == 1.0


def test_a_write_to_a_number_of_a_part_of_complex_numbers_is_not_lost():
    z = tg.tensor([1.0 + 2.0j, 3.0])
    number = z.real[1, ...]
    with pytest.raises(tg.errors.ReadOnlyError):
        number[...] = 7.0
    number = z[1, ...].imag
    with pytest.raises(tg.errors.ReadOnlyError):
        number += 7.0


@pytest.mark.parametrize("follow", [False, True])
def test_numbers_that_numpy_copies_are_written_to(follow):
    x = tg.tensor([[2.0]], requires_grad=follow) * 1.0
    z = x + 0j
    copied = x[np.array(0), ..., 0], np.max(x), x.sum().reshape(()), z.sum().real
    for s in (x[0, 0], x.sum(), next(iter(x[0])), *copied):
        before = s
        s += 1.0
        assert (before.item(), s.item()) == (2.0, 3.0)
        before[...] = 5.0
        s.fill(7.0)
        assert (before.item(), s.item(), x.item()) == (5.0, 7.0, 2.0)


@pytest.mark.parametrize("hold", [False, True])
@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("take", [lambda z: z[1, ...], lambda z: np.squeeze(z[1:2])], ids=["[]", "squeeze"])
@pytest.mark.parametrize("late", [False, True])
def test_a_write_to_a_number_in_a_program(hold, flat, take, late):
    writes = [] if late else [True]

    def function(x):
        z = np.floor(x) if flat else np.exp(x)
        number = take(z)
        z = z if hold else np.sin(x)
        if writes:
            number[...] = 2.0 * x[0]
        return np.sum(number * x) + np.sum(z)

    def expected(x):
        z = np.floor(x) if flat else np.exp(x)
        number = 2.0 * x[0] if writes else z[1]
        return np.sum(number * x) + np.sum(z if hold else np.sin(x))

    compiled = tg.compile(function, wait=True)
    for k in range(1, 7):
        x = k * np.array([0.1, -0.2])
        if k == 6 and late:
            writes.append(True)
        with pytest.raises(tg.errors.ReadOnlyError) if hold and writes else nullcontext():
            found = compiled.value_and_grad(x)[0]
            np.testing.assert_allclose(found, expected(x), rtol=1e-14)


def test_an_operator_in_place_where_a_program_knows_one_that_is_not():
    writes, takes = [], [lambda z: z[1, ...], lambda z: np.squeeze(z[1:2]), lambda z: z[1]]

    def function(x, take):
        z = np.exp(x)
        number = take(z)
        if writes:
            number += 1.0
        else:
            number = number + 1.0
        return np.sum(number * x) + np.sum(z)

    for take in takes:
        compiled = tg.compile(lambda x, take=take: function(x, take), wait=True)
        wanted = [compiled.value_and_grad(k * np.array([0.1, -0.2]))[0] for k in range(1, 6)]
        writes.append(True)
        with nullcontext() if take is takes[-1] else pytest.raises(tg.errors.ReadOnlyError):
            assert compiled.value_and_grad(5.0 * np.array([0.1, -0.2]))[0] == wanted[-1]
        writes.clear()


def test_a_write_to_a_part_without_a_derivative_in_a_program_is_not_lost():
    def function(x):
        z = np.sign(x) * (1.0 + 1.0j)
        part = z.real
        part[0] = 5.0
        return np.sum(part * x) + np.sum(np.abs(z))

    compiled = tg.compile(function, wait=True)
    for _ in range(5):
        with pytest.raises(tg.errors.ReadOnlyError):
            compiled.value_and_grad(np.array([0.1, 0.2]))


@pytest.mark.skipif(not abi.native(), reason="nothing is compiled")
def test_a_write_to_a_part_is_refused_while_a_compiled_function_is_there():
    compiled = tg.compile(lambda x: np.sum(np.sin(x) * x), wait=True)
    for k in range(4):
        compiled.value_and_grad(np.array([0.1, 0.2]) + k)
    z = tg.tensor(np.array([1.0 + 2.0j, 3.0]), requires_grad=True) * 1.0
    with pytest.raises(tg.errors.ReadOnlyError):
        z.real[0] = 5.0


def test_parts_of_results_that_are_gone_are_written_to():
    def written(x):
        y = np.exp(x * (1.0 + 1.0j)).real
        y[0] = x[1]
        y *= x
        return np.sum(y)

    def joined(x):
        return np.sum(x * np.concatenate([x[1:2], np.exp(x[1:]) * np.cos(x[1:])]))

    compiled = tg.compile(written, wait=True)
    for k in range(1, 7):
        x = k * np.array([0.1, -0.2, 0.3])
        expected = tg.func.grad(joined)(x)
        np.testing.assert_allclose(tg.func.grad(written)(x), expected, rtol=1e-14)
        np.testing.assert_allclose(compiled.grad(x), expected, rtol=1e-14)


def test_parts_are_not_set():
    z = tg.tensor([1.0 + 2.0j])
    with pytest.raises(AttributeError, match=r"x\[...\] = value \+ 1j \* x.imag"):
        z.real = 1.0
    with pytest.raises(AttributeError, match=r"x\[...\] = x.real \+ 1j \* value"):
        z.imag = 1.0
