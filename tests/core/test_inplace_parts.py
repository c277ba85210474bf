"""Writes by views without axes, which are seen, and to parts of complex numbers, refused where lost."""

from contextlib import nullcontext, suppress

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.errors import ReadOnlyError
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
    "of a view": ((2, 3), lambda x: x.T[0][1, ...]),
    "reshape": ((1, 1), lambda x: x.reshape(())),
    "squeeze": ((1,), np.squeeze),
    "transposed": ((3,), lambda x: x[-1, ...].T),
    "again": ((2,), lambda x: x[1, ...].reshape(())),
    "with an axis again": ((2,), lambda x: x[1, ...].reshape(1)),
    "with new axes": ((2,), lambda x: x[1, ...][None, ..., None]),
}
SETS = {
    "ellipsis": lambda v, w: v.__setitem__(..., w),
    "tuple": lambda v, w: v.__setitem__((0,) * v.ndim, w),
    "+=": lambda v, w: v.__iadd__(w),
    "*=": lambda v, w: v.__imul__(w),
    "itself": lambda v, w: v.__setitem__(..., v * v + w),
    "fill": lambda v, w: v.fill(3.0),
    "copyto": lambda v, w: np.copyto(v, w),
}


def _written_by_views(x, w, take, change):
    """What a write by a view makes of what it is of, and one to that of the view; and a sum of all."""
    kept = take(x) * w
    view = take(x)
    other = take(x)
    change(view, w)
    values = [x * 1.0, view * 1.0, other * 1.0]
    x[...] = x * w + 0.5
    values += [x * 1.0, view * 1.0, other * 1.0]
    change(other, w * w)
    del x
    change(view, w)  # what it is of is gone
    values += [view * 1.0, other * 1.0, kept]
    return values, sum(np.sum(v) * (k + 1.0) for k, v in enumerate(values))


@pytest.mark.parametrize("follow", [False, True])
@pytest.mark.parametrize("view", NUMBERS)
def test_views_without_axes_see_writes_and_are_seen(view, follow):
    shape, take = NUMBERS[view]
    start = np.arange(1.0, 1.0 + np.prod(shape)).reshape(shape)
    for change in SETS.values():
        w = tg.tensor(0.75, requires_grad=follow)
        found, total = _written_by_views(tg.tensor(start) * 1.0, w, take, change)
        wanted, _ = _written_by_views(start.copy(), 0.75, take, change)
        for x, y in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(x._v, y)
        if follow:
            total.backward()
            _, step = _written_by_views(start + 0j, 0.75 + 1e-30j, take, change)
            np.testing.assert_allclose(w.grad.item(), step.imag / 1e-30, rtol=1e-13)


def test_writes_to_elements_are_seen_by_views_without_axes():
    x = tg.tensor([1.0, 2.0], requires_grad=True)
    y = x * 1.0
    view, number = y[0, ...], y[0]
    y[0] = 3.0 * x[1]
    assert (view.item(), number.item()) == (6.0, 1.0)
    y[0] += view
    y *= 2.0
    assert view.item() == 24.0
    view.backward()
    assert x.grad.tolist() == [0.0, 12.0]


def test_a_loss_is_changed_where_what_it_was_squeezed_from_is_held():
    x = tg.tensor([[1.0], [2.0]], requires_grad=True)
    r = np.array([[3.0, 4.0]]) @ x
    loss = same = np.squeeze(r)
    loss += x.sum()
    assert loss is same
    assert (r.item(), loss.item()) == (14.0, 14.0)
    (loss + r.sum()).backward()
    assert x.grad.tolist() == [[8.0], [10.0]]


def test_views_without_axes_of_read_only_arrays_are_read_only():
    view = np.broadcast_to(tg.tensor([1.0]), (3,))[0, ...]
    with pytest.raises(tg.errors.ReadOnlyError):
        view += 1.0


def test_views_without_axes_of_memory_that_others_see():
    array = np.zeros(2)
    view = tg.from_numpy(array)[0, ...]
    view += 1.0
    assert (array.tolist(), view.item()) == ([1.0, 0.0], 1.0)
    leaf = tg.from_numpy(array).requires_grad_()
    with tg.no_grad():
        view = leaf[1, ...]
        del leaf  # of which the view alone is left
        view += 2.0
    assert (array.tolist(), view.item()) == ([1.0, 2.0], 2.0)
    x = tg.zeros(2)
    view = np.squeeze(x[:1])
    array = x.numpy()  # to which nothing can be written that the view would not see
    x[0] = 2.0
    assert (not array.flags.writeable, view.item()) == (True, 2.0)
    del view
    x.numpy()[0] = 3.0
    assert x.tolist() == [3.0, 0.0]


def test_views_without_axes_that_change_their_roles():
    x = tg.tensor([1.0, 2.0])
    view = x[0, ...].requires_grad_()
    (view * view).backward()
    assert view.grad.item() == 2.0
    with tg.no_grad():
        x[0] = 5.0
    assert view.item() == 5.0
    with tg.no_grad():
        view -= 1.0
    assert x.tolist() == [4.0, 2.0]
    view.data = tg.tensor(9.0)
    assert (view.item(), x.tolist()) == (9.0, [4.0, 2.0])


def test_a_view_without_axes_of_a_leaf_is_not_written_to():
    x = tg.tensor([1.0, 2.0], requires_grad=True)
    view = x[0, ...]
    with pytest.raises(tg.errors.GradientError):
        view += 1.0
    with tg.no_grad():
        view += 1.0
    assert (x.tolist(), view.item()) == ([2.0, 2.0], 2.0)
    (view * x[0]).backward()
    assert x.grad.tolist() == [4.0, 0.0]


AXES = {
    "reshape": lambda x: x.reshape(1),
    "index": lambda x: x[None],
    "atleast_1d": np.atleast_1d,
    "ravel": np.ravel,
    "two": lambda x: np.expand_dims(x[...], (0, 1)),
}


@pytest.mark.parametrize("view", AXES.values(), ids=AXES)
def test_views_of_arrays_without_axes(view):
    p = tg.tensor(1.0, requires_grad=True)
    with tg.no_grad():
        seen = view(p)
        seen += 6.0
        assert p.item() == 7.0
        p -= 3.0
        assert seen.tolist() in ([4.0], [[4.0]])
        p[...] = 5.0
    seen = view(p)
    repeated = np.broadcast_to(p, (2,))
    with tg.no_grad():
        p[...] = 2.0
    assert (seen.sum().item(), repeated.tolist()) == (2.0, [2.0, 2.0])
    (p * seen.sum() * repeated[0]).backward()
    assert p.grad.item() == 12.0
    w = tg.tensor(2.0, requires_grad=True)
    a = tg.tensor(0.0)
    a[...] = 3.0 * w
    seen = view(a)
    seen *= w
    a[...] = a + 1.0
    assert (a.item(), seen.sum().item()) == (13.0, 13.0)
    a.backward()
    assert w.grad.item() == 12.0


def _accumulated(a):
    a += 1.5
    return a


MADE = {
    "tensor": lambda lib, a: a,
    "of another dtype": lambda lib, a: lib.zeros((), "f4").astype(float),
    "copy": lambda lib, a: a.copy(),
    "zeros": lambda lib, a: lib.zeros(()),
    "full": lambda lib, a: lib.full((), 2.0),
    "accumulated": lambda lib, a: _accumulated(a),
    "view": lambda lib, a: a.view(),
    "from NumPy": lambda lib, a: lib.asarray(np.array(0.25)),
}
ARRAYS = {**AXES, "T": lambda x: x.T, "squeeze": np.squeeze, "reshape to itself": lambda x: x.reshape(())}


@pytest.mark.parametrize("make", MADE.values(), ids=MADE)
def test_arrays_without_axes_and_their_views_see_each_other(make):
    for view in ARRAYS.values():
        for change in (*SETS.values(), _accumulated):
            for early in (False, True):
                found = []
                for lib, new in ((tg, tg.tensor), (np, np.array)):
                    a = make(lib, new(0.5))
                    if early:
                        a += 0.25
                    seen = view(a)
                    change(*(seen, 0.75)[: change.__code__.co_argcount])
                    found += [np.array(a.tolist()), np.array(seen.tolist())]
                    change(*(a, 0.75)[: change.__code__.co_argcount])
                    found += [np.array(a.tolist()), np.array(seen.tolist())]
                for x, y in zip(found[:4], found[4:], strict=True):
                    np.testing.assert_array_equal(x, y)


def test_an_array_without_axes_is_bound_anew_where_nothing_sees_it():
    a = b = tg.tensor(0.5)
    a += 1.0
    assert (a.item(), b.item()) == (1.5, 0.5)
    s = t = tg.tensor([1.0, 2.0]).sum()
    seen = np.squeeze(s)
    seen += 1.0
    s += 1.0
    assert (s.item(), t.item(), seen.item()) == (4.0, 3.0, 4.0)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("view", [np.squeeze, lambda a: a.T, lambda a: a.reshape(1)], ids=["", "T", "1"])
@pytest.mark.parametrize("change", [SETS["ellipsis"], SETS["+="]], ids=["set", "+="])
def test_arrays_without_axes_and_their_views_in_programs(late, view, change):
    writes = []

    def function(x, lib=tg):
        a, b = lib.zeros(()), lib.ones(())
        a += x[0] * x[1]
        a *= 2.0
        b = b * x[0]
        seen, number = view(a), np.squeeze(b)
        if writes:
            change(seen, 3.0 * x[1])
            number = number + x[0]
            change(a, 2.0 * x[0])
        return a * np.sum(seen) + number * b

    compiled = tg.compile(function, wait=True)
    for k in range(1, 7):
        writes[:] = [True] * (not late or k in (4, 6))
        x = k * np.array([0.3, -0.2])
        value, gradient = compiled.value_and_grad(x)

        def plain(x):
            class Lib:
                zeros = staticmethod(lambda shape: np.zeros(shape, x.dtype))
                ones = staticmethod(lambda shape: np.ones(shape, x.dtype))

            return function(x, Lib)

        np.testing.assert_allclose(value, plain(x), rtol=1e-14)
        step = [plain(x + 1e-30j * e).imag / 1e-30 for e in np.eye(2)]
        np.testing.assert_allclose(gradient, step, rtol=1e-13)


@pytest.mark.parametrize("view", [v for k, v in AXES.items() if k != "two"])
def test_a_write_that_a_number_would_not_see_is_refused(view):
    s = tg.tensor([1.0, 2.0]).sum()
    seen = view(s)
    with pytest.raises(tg.errors.ReadOnlyError, match=r"\.copy\(\)"):
        seen[...] = 5.0
    with pytest.raises(tg.errors.ReadOnlyError, match="see the write"):
        s[...] = 5.0
    seen.copy()[...] = 5.0
    del s
    seen[...] = 7.0
    assert seen.tolist() == [7.0]


COPIED = {"copy": lambda s, seen: seen.fill(5.0), "number": lambda s, seen: s.fill(5.0)}


@pytest.mark.parametrize("write", COPIED.values(), ids=COPIED)
def test_a_write_that_a_number_would_not_see_is_refused_as_a_program_ends(write):
    writes = []

    def function(x):
        s = np.sum(np.exp(x))
        seen = s.reshape(1)
        if writes:
            write(s, seen)
        return s * np.sum(seen * x)

    compiled = tg.compile(function, wait=True)
    for k in range(1, 6):
        compiled.value_and_grad(k * np.array([0.1, -0.2]))
    writes.append(True)
    for _ in range(3):
        with pytest.raises(tg.errors.ReadOnlyError):
            compiled.value_and_grad(np.array([0.1, -0.2]))


def test_arrays_that_numbers_are_given_out_as():
    x = tg.tensor([1.0, 2.0])
    for a in (tg.tensor(1.0), tg.ones(()), x[0, ...]):
        array = a.numpy()
        assert array == 1.0 and not array.flags.writeable
    assert x.sum().numpy().flags.writeable  # as np.asarray of NumPy's number


def test_a_write_to_a_number_of_a_part_of_complex_numbers_is_not_lost():
    z = tg.tensor([1.0 + 2.0j, 3.0])
    number = z.real[1, ...]
    with pytest.raises(tg.errors.ReadOnlyError):
        number[...] = 7.0
    number = z[1, ...].imag
    with pytest.raises(tg.errors.ReadOnlyError):
        number += 7.0


NO_VIEWS = {
    "error": lambda x: x[77],
    "element": lambda x: x[()],
    "mask": lambda x: x[np.array(True)],
    "shape": lambda x: np.broadcast_to(x, (2, -1)),
    "the same": lambda x: np.broadcast_to(x, ()),
}


@pytest.mark.parametrize("take", NO_VIEWS.values(), ids=NO_VIEWS)
def test_a_number_stays_one_where_no_view_of_it_is_made(take):
    x = before = tg.tensor(2.0, requires_grad=True)
    with suppress(IndexError, ValueError):
        take(x)
    x += 1.0
    assert (before.item(), x.item()) == (2.0, 3.0)


@pytest.mark.parametrize("follow", [False, True])
@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("write", [lambda s: s.add_(1.0), lambda s: s.fill_(3.0)], ids=["add_", "fill_"])
def test_a_number_that_was_written_to_is_changed_in_place(write, recorded, follow):
    s = same = tg.tensor(2.0, requires_grad=follow) * 1.0
    with tg.set_grad_enabled(recorded):
        write(s)
        s *= 2.0
    assert (s.item(), same.item()) == (6.0, 6.0)


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


def test_an_index_of_nothing_is_told_before_copies():
    s = np.sin(tg.tensor(2.0, requires_grad=True))
    part = s.reshape(-1)[:1]
    with pytest.raises(IndexError, match="too many indices"):
        s[1:] = part
    with pytest.raises(ReadOnlyError, match="copies"):
        s[...] = part


@pytest.mark.parametrize("hold", ["never", "always", "late"])
@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("take", [lambda z: z[1, ...], lambda z: np.squeeze(z[1:2])], ids=["[]", "squeeze"])
@pytest.mark.parametrize("late", [False, True])
def test_a_write_to_a_view_without_axes_in_a_program(hold, flat, take, late):
    writes, holds = [] if late else [True], [True] if hold == "always" else []

    def function(x):
        z = np.floor(x) if flat else np.exp(x)
        view = take(z)
        z = z if holds else np.sin(x)
        if writes:
            view[...] = 2.0 * x[0]
        return np.sum(view * x) + np.sum(z)

    compiled = tg.compile(function, wait=True)
    for k in range(1, 7):
        x = k * np.array([0.1, -0.2])
        if k == 6:
            writes.append(True)
            if hold == "late":
                holds.append(True)
        value, gradient = compiled.value_and_grad(x)
        np.testing.assert_allclose(value, function(x), rtol=1e-14)
        np.testing.assert_allclose(gradient, tg.func.grad(function)(x), rtol=1e-14)


def assert_is_computed(function, compiled, x):
    """Compare a call with the function on plain numbers, and its gradient with complex steps."""
    value, gradient = compiled.value_and_grad(x)
    np.testing.assert_allclose(value, function(x), rtol=1e-14)
    step = [function(x + 1e-30j * e).imag / 1e-30 for e in np.eye(len(x))]
    np.testing.assert_allclose(gradient, step, rtol=1e-13)


@pytest.mark.parametrize("take", [lambda z: z[0, ...], lambda z: z[:1].reshape(())], ids=["[]", "reshape"])
@pytest.mark.parametrize("further", [lambda v: v, lambda v: v.T, lambda v: v[None]], ids=["", "T", "None"])
def test_a_write_in_a_program_to_what_a_view_without_axes_is_held_of_later(take, further):
    holds = []

    def function(x):
        z = np.exp(x)
        view = further(take(z))
        before = np.sum(view * x)
        if not holds:
            view = 1.0
        z[0] = 2.0 * x[1]
        return before + np.sum(z * view)

    compiled = tg.compile(function, wait=True)
    for k in range(1, 8):
        holds[:] = [True] * (k in (5, 7))
        x = k * np.array([0.1, -0.2])
        assert_is_computed(function, compiled, x)


def test_a_write_in_a_program_to_a_view_without_axes_that_is_repeated():
    writes = []

    def function(x):
        view = (x * 1.5)[0, ...]
        repeated = np.broadcast_to(view, (2,))
        if writes:
            view[...] = 0.75 * x[1]
        return np.sum(repeated * x) + view

    compiled = tg.compile(function, wait=True)
    for k in range(1, 7):
        writes[:] = [True] * (k in (4, 6))
        x = k * np.array([0.1, -0.2])
        assert_is_computed(function, compiled, x)


def test_an_operator_in_place_where_a_program_knows_one_that_is_not():
    writes, takes = [], [lambda z: z[1, ...], lambda z: np.squeeze(z[1:2]), lambda z: z[1]]
    takes.append(lambda z: z[1, ...][..., None])

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
        for k in range(1, 6):
            compiled.value_and_grad(k * np.array([0.1, -0.2]))
        writes.append(True)
        x = 5.0 * np.array([0.1, -0.2])
        np.testing.assert_allclose(compiled.value_and_grad(x)[0], function(x, take), rtol=1e-14)
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
