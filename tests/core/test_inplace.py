"""Writing to Tensors: values as NumPy's, derivatives exact, views and versions as torch's."""

import gc
import sys
import tracemalloc
import weakref
from contextlib import nullcontext

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.core import inplace
from tapegrad.errors import DTypeError, GradientError, ShapeError
from tapegrad.kernels import abi
from tapegrad.ops.indexing import numbers
from tapegrad.tape import pool
from tapegrad.tape import tape as tapes


def leaf(data=(1.0, 2.0, 3.0), dtype=float):
    return tg.tensor(np.asarray(data, dtype), requires_grad=True)


def grad(out, *inputs):
    found = tg.grad(np.sum(out), inputs, retain_graph=True, allow_unused=True, materialize_grads=True)
    return [g.tolist() for g in found]


# ---------------------------------------------------------------- semantics E, by number


def test_E4_a_leaf_and_its_views_cannot_be_written_to():
    x = leaf()
    for write in (
        lambda: x.__iadd__(1.0), lambda: x.__setitem__(0, 3.0), lambda: x[:2].mul_(2.0), lambda: x.zero_(),
        lambda: x.T.__setitem__(0, 1.0), lambda: x.copy_(np.zeros(3)), lambda: x.reshape(3, 1).fill_(2.0),
    ):  # fmt: skip
        with pytest.raises(GradientError, match="leaf that requires grad"):
            write()
    assert x.tolist() == [1.0, 2.0, 3.0]
    assert x._version == 0


def test_E4_under_no_grad_a_leaf_can():
    x = leaf()
    v = x[1:]
    with tg.no_grad():
        x += 1.0
        x[0] = 7.0
        v *= 2.0
    assert x.tolist() == [7.0, 6.0, 8.0]
    assert v.tolist() == [6.0, 8.0]
    assert x._version == v._version == 3
    assert x.is_leaf
    assert x.requires_grad
    assert grad(x * x, x) == [[14.0, 12.0, 16.0]]
    assert grad(v * v, x) == [[0.0, 12.0, 16.0]]


def test_E4_under_no_grad_operators_update_a_leaf_of_no_axes():
    """As a loop over parameters means it; elsewhere a scalar is immutable, as NumPy's are."""
    parameters = [leaf(3.0), leaf([1.0, 2.0])]
    (parameters[0] * np.sum(parameters[1])).backward()
    with tg.no_grad():
        for w in parameters:
            w -= 0.5 * w.grad
            w *= 2
    assert [w.tolist() for w in parameters] == [3.0, [-1.0, 1.0]]
    assert all(w.is_leaf and w.requires_grad for w in parameters)
    assert grad(parameters[0] ** 2, parameters[0]) == [6.0]
    x = leaf(3.0)
    before = x * 2
    with tg.no_grad():
        after, other = before, x.detach()
        after += 1.0
        other += 1.0
        with pytest.raises(DTypeError):
            x += 1j
    x += 1.0
    assert before.item() == 6.0
    assert x.grad_fn is not None


@pytest.mark.parametrize("n", [3, 300, 3000, 30_000])
def test_updates_of_what_has_no_history(n):
    """Of parameters under no_grad and of constants: tapes, views, arrays given out see what they should."""
    x, m = leaf(np.ones(n)), tg.tensor(np.full(n, 2.0))
    before, view, given = x * m, m[1:], m.numpy()
    called = []
    x.register_hook(called.append)
    m *= 3.0
    m -= x.detach()
    with tg.no_grad():
        x += m
        x /= 2
    assert x.is_leaf
    assert x.requires_grad
    assert x._version == m._version == 2
    assert [x[-1].item(), m[-1].item(), view[-1].item(), given[-1]] == [3.0, 5.0, 5.0, 5.0]
    assert grad(np.sum(before), x)[0][-1] == 2.0
    assert grad(np.sum(x * m), x)[0][-1] == 5.0
    assert len(called) == 2
    with pytest.raises(GradientError, match="leaf that requires grad"):
        x += m
    whole = tg.tensor(np.zeros((2, n)))
    row = whole[0]
    row += 1.0  # a view writes to what it is a view of
    part = np.broadcast_to(tg.tensor([1.0, 2.0]), (3, 2))
    assert whole.numpy().sum() == n
    with pytest.raises(tg.errors.ReadOnlyError):
        part += 1.0
    with pytest.raises(DTypeError):
        m += 1j
    m += np.ones(n, np.float32)
    assert m.dtype == float


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
        value, gradient = compiled.value_and_grad(x)
        np.testing.assert_allclose(value, function(x), rtol=1e-14)
        step = [function(x + 1e-30j * e).imag / 1e-30 for e in np.eye(2)]
        np.testing.assert_allclose(gradient, step, rtol=1e-13)


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


def test_E4_versions():
    x = leaf() * 1.0
    view, detached, data, clone = x[:2], x.detach(), x.data, x.clone()
    x += 1.0
    assert view._version == detached._version == x._version == 1
    assert clone._version == 0
    detached[0] = 5.0
    assert x._version == 2
    assert x.tolist()[0] == view.tolist()[0] == 5.0
    assert data is not None


def test_E5_what_a_derivative_needs_is_kept():
    """torch refuses these; here the old values are kept and the derivative is exact."""
    x = leaf()
    y = np.exp(x)
    z = y * 1.0
    y += 1.0
    assert grad(z, x)[0] == pytest.approx(np.exp([1.0, 2, 3]))
    assert grad(y, x)[0] == pytest.approx(np.exp([1.0, 2, 3]))
    a, b = leaf() * 1.0, leaf()
    c = a * b
    a *= 5.0
    assert grad(c, b) == [[1.0, 2.0, 3.0]]
    w = x * x
    with tg.no_grad():
        x *= 10.0
    assert grad(w, x) == [[2.0, 4.0, 6.0]]
    k = tg.tensor([1.0, 2.0, 3.0])
    u = k * b
    k[1] = 100.0
    assert grad(u, b) == [[1.0, 2.0, 3.0]]
    t = b * 1.0
    t *= t
    assert grad(t, b) == [[2.0, 4.0, 6.0]]
    d = b * 1.0
    s = np.sin(d)
    d.detach()[0] = 9.0
    assert d.tolist()[0] == 9.0
    assert grad(s, b)[0] == pytest.approx(np.cos([1.0, 2, 3]))


def test_E6_where_nothing_was_kept():
    x = leaf()
    y = x + 1.0
    y.mul_(2.0)
    assert grad(y, x) == [[2.0] * 3]
    y **= 2
    y /= x
    v = np.array([1.0, 2, 3])
    assert grad(y, x)[0] == pytest.approx(8 * (v + 1) / v - 4 * (v + 1) ** 2 / v**2)


def test_E7_a_constant_gets_a_history():
    x = leaf()
    c = tg.zeros(3)
    c += x
    assert c.requires_grad
    assert not c.is_leaf
    assert grad(c, x) == [[1.0] * 3]
    c = tg.zeros(3)
    c[0] = x[1]
    assert grad(c, x) == [[0.0, 1.0, 0.0]]
    c = tg.zeros(3)
    c.copy_(x)
    assert grad(c, x) == [[1.0] * 3]
    y = x * 2.0
    y.zero_()
    assert grad(y, x) == [[0.0] * 3]
    y = x * 2.0
    y.fill_(4.0)
    assert (y.tolist(), grad(y, x)) == ([4.0] * 3, [[0.0] * 3])
    y, v = leaf() * 1.0, leaf((5.0, 6.0))
    y[[0, 0]] = v
    assert y.tolist() == [6.0, 2.0, 3.0]
    assert grad(y, v) == [[0.0, 1.0]]


def test_E8_a_view_and_its_base():
    x = leaf()
    y = x * 1.0
    v = y[:2]
    v.mul_(10.0)
    assert grad(y, x) == [[10.0, 10.0, 1.0]]
    w = y.reshape(3, 1)
    y += x
    assert w.tolist() == [[11.0], [22.0], [6.0]]
    assert grad(w, x) == [[11.0, 11.0, 2.0]]
    assert grad(v * v, x)[0] == pytest.approx([2 * 11 * 11.0, 2 * 22 * 11.0, 0.0])


def test_E10_what_does_not_fit():
    x = leaf() * 1.0
    with pytest.raises(ShapeError):
        x += np.ones((2, 3))
    with pytest.raises(ShapeError):
        x[:2] = np.ones(3)
    i = tg.arange(3)
    with pytest.raises(DTypeError):
        i += 0.5
    with pytest.raises(DTypeError):
        i[0] = leaf()[0]
    with pytest.raises(IndexError):
        x[5] = 1.0
    with pytest.raises(ValueError, match="read-only"):
        np.broadcast_to(x, (2, 3))[0, 0] = 1.0
    assert x.tolist() == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("shape", [(), (3,)])
def test_E11_detach_in_place(shape):
    x = tg.ones(shape, requires_grad=True)
    y = x * 2.0
    z = y * y
    y.retain_grad()
    assert y.detach_() is y
    assert y.is_leaf
    assert not y.requires_grad
    assert y.grad_fn is None
    assert not y.retains_grad
    assert grad(z.sum(), x) == [(np.ones(shape) * 8.0).tolist()]  # what was recorded stays
    with pytest.raises(RuntimeError, match="does not require grad"):
        y.sum().backward()
    y.mul_(5.0)
    y.requires_grad_()
    assert grad((y * y).sum(), y) == [(np.ones(shape) * 20.0).tolist()]
    assert y.grad is None


def test_E11_detach_in_place_of_a_leaf():
    x = leaf()
    y = x * 2.0
    assert x.detach_() is x
    assert not x.requires_grad
    assert tg.ones(2).detach_().is_leaf
    y.sum().backward()
    assert x.grad is None  # as C-11


def test_E11_detach_in_place_of_views_and_their_base():
    x = leaf()
    y = x * 1.0
    v = y[:2]
    with pytest.raises(GradientError, match="view"):
        v.detach_()
    with pytest.raises(GradientError, match="view"):
        y.T.detach_()
    y.detach_()
    with tg.no_grad():
        y[0] = 7.0
    assert v.tolist() == [7.0, 2.0]  # memory is shared, histories are apart
    assert y.tolist() == [7.0, 2.0, 3.0]
    assert v.requires_grad
    assert not (y * 2).requires_grad
    assert grad(v, x) in ([[0.0, 1.0, 0.0]], [[1.0, 1.0, 0.0]])
    w = x * 1.0
    d = w.detach()
    assert d.detach_() is d
    w.detach_()
    d[1] = 9.0
    assert w.tolist() == [1.0, 9.0, 3.0]


def test_E11_detach_in_place_of_what_carries_a_tangent():
    fw = tg.autograd.forward_ad
    with fw.dual_level():
        y = fw.make_dual(leaf(), tg.ones(3)) * 2.0
        tangent = fw.unpack_dual(y.detach()).tangent
        y.detach_()
        assert not tg.no_grad()(lambda: fw.unpack_dual(y).primal.requires_grad)()
        found = fw.unpack_dual(y).tangent
        assert (found is None) == (tangent is None)
        assert found is None or found.tolist() == tangent.tolist()


def test_E11_detach_shares_memory():
    x = leaf()
    d = x.detach()
    d[0] = 5.0
    assert x.tolist() == [5.0, 2.0, 3.0]
    assert not d.requires_grad
    assert grad(x * x, x) == [[10.0, 4.0, 6.0]]
    s = leaf(2.0)
    d = s.detach()
    d += 1.0
    assert s.item() == 2.0


def test_D9_a_retained_gradient_is_that_of_the_new_value():
    x = leaf()
    y = x * 2.0
    y.retain_grad()
    y.mul_(3.0)
    np.sum(y * y).backward()
    assert y.grad.tolist() == [12.0, 24.0, 36.0]
    assert x.grad.tolist() == [72.0, 144.0, 216.0]


def test_C10_a_gradient_of_what_was_written_to():
    x = leaf()
    y = 3.0 * x
    y *= 5.0
    assert grad(y**2, y) == [[30.0, 60.0, 90.0]]


def test_a_detached_tensor_takes_no_history():
    x, y = leaf(), leaf()
    d = (x * 1.0).detach()
    with pytest.raises(GradientError, match="detached"):
        d += y
    d.requires_grad_()
    with pytest.raises(GradientError, match="leaf"):
        d += 1.0


def test_a_constant_that_becomes_a_leaf():
    c = tg.zeros(3)
    v = c[:2]
    c.requires_grad_()
    with pytest.raises(GradientError, match="leaf"):
        v[0] = 1.0
    c = tg.zeros(3)
    v = c[:2].requires_grad_()
    before = v * 2.0
    with pytest.raises(GradientError, match="leaf"):
        v[0] = 1.0
    c[0] = 4.0
    assert v.tolist() == [4.0, 0.0]
    assert grad(v * v, v) == [[8.0, 0.0]]
    assert grad(before, v) == [[2.0, 2.0]]


@pytest.mark.parametrize("leaf_of", ["detach", "a view under no_grad"])
@pytest.mark.parametrize("origin", ["result", "leaf"])
def test_another_leaf_in_the_same_memory(leaf_of, origin):
    """What it is a leaf of keeps its own history, through writes and in its views."""
    x = leaf()
    y = x * 2.0 if origin == "result" else x
    v = y[1:]
    with tg.no_grad():
        d = (y.detach() if leaf_of == "detach" else y[:]).requires_grad_()
        y += 1.0
    scale = 2.0 if origin == "result" else 1.0
    gx, gd = tg.grad(np.sum(y * y), (x, d), allow_unused=True, retain_graph=True)
    assert gx.tolist() == [2 * scale * (scale * t + 1) for t in (1.0, 2.0, 3.0)]
    assert gd is None
    gx, gd = tg.grad(np.sum(v), (x, d), allow_unused=True)
    assert gx.tolist() == [0.0, scale, scale]
    assert gd is None
    assert tg.grad(np.sum(d * d), d)[0].tolist() == [2 * (scale * t + 1) for t in (1.0, 2.0, 3.0)]


def test_a_leaf_beside_a_result_does_not_stop_its_writes():
    x = leaf()
    y = x * 2.0
    d = y.detach().requires_grad_()
    y *= 3.0
    assert grad(y, x) == [[6.0] * 3]
    assert d.tolist() == [6.0, 12.0, 18.0]


def test_data_leaves_the_memory():
    x = leaf()
    v = x[1:]
    x.data = tg.tensor([7.0, 8.0, 9.0])
    with tg.no_grad():
        v *= 2.0
    assert x.tolist() == [7.0, 8.0, 9.0]
    assert v.tolist() == [4.0, 6.0]


# ---------------------------------------------------------------- beside NumPy


INDICES = [
    0, -1, slice(None), slice(1, None), slice(None, None, -1), slice(None, None, 2), Ellipsis, (0, 1),
    (1, -1), (slice(None), 0), (slice(None), slice(1, 3)), (Ellipsis, 2), [0, 2], [1, 1],
    (slice(None), [2, 0]), ([0, 1], [1, 2]), None,
]  # fmt: skip
VIEWS = [
    lambda a: a, lambda a: a[1:], lambda a: a.T, lambda a: a[:, ::2], lambda a: a[::-1],
    lambda a: a.reshape(-1)[2:8], lambda a: a[1], lambda a: a.T[1:, ::-1],
    lambda a: a[None, ..., 1:3], lambda a: a.swapaxes(0, 1)[2],
]  # fmt: skip


@pytest.mark.parametrize("n", [3, 40])
@pytest.mark.parametrize("index", INDICES, ids=repr)
def test_an_assignment_is_numpys(n, index):
    shape = (3, n, 4) if n > 3 else (3, 4)
    base = np.linspace(0.5, 1.5, int(np.prod(shape))).reshape(shape)
    new = np.linspace(2.0, 3.0, base[index].size).reshape(base[index].shape)
    x, v = leaf(base), leaf(new)
    y = x * 2.0
    y[index] = v
    plain = base * 2.0
    plain[index] = new
    np.testing.assert_array_equal(y.detach().numpy(), plain)
    kept = np.ones(base.shape)
    kept[index] = 0.0
    (gx,) = tg.grad(np.sum(y * y), x, retain_graph=True)
    np.testing.assert_allclose(gx.numpy(), 8 * base * kept)
    (gv,) = tg.grad(np.sum(y * y), v, create_graph=True)
    last = np.arange(float(new.size)).reshape(new.shape)
    numbers = np.full(base.shape, -1.0)
    numbers[index] = last
    stays = np.isin(last, numbers)
    np.testing.assert_allclose(gv.detach().numpy(), np.where(stays, 2 * new, 0.0))
    if stays.any():
        (h,) = tg.grad(np.sum(gv), v)
        np.testing.assert_allclose(h.numpy(), np.where(stays, 2.0, 0.0))


LINES = [lambda a: a[::-1] if a.ndim else a[None], lambda a: a[-1, ...] if a.ndim else a.T]


def plan(rng, steps):
    """A random program of writes and views, as functions of a list of arrays."""
    found = []
    for _ in range(steps):
        kind = rng.integers(7)
        found.append((kind, int(rng.integers(100)), int(rng.integers(100)), float(rng.uniform(0.5, 1.5))))
    return found


def run(program, x, w, m, keep):
    """Run it on arrays or Tensors: `pool` are views and bases, `sums` what was computed on the way."""
    pool, sums = [x * 1.0], []
    for kind, i, j, number in program:
        a = pool[i % len(pool)]
        if kind == 0:
            pool.append(
                VIEWS[j % len(VIEWS)](a) if a.ndim == 2 else LINES[j % 2](a) if a.ndim < 2 else a[..., 0]
            )
        elif kind == 1:
            a *= number
        elif kind == 2:
            sums.append(m.sum(m.sin(a) * number))
        elif kind == 3:
            a[...] = m.cos(a) * a
        elif kind == 4 and a.ndim and a.shape[0] > 0:
            a[j % a.shape[0]] = w[i % 4] * number
        elif kind == 5:
            pool.append((a if a.ndim else a[None]) * w[j % 4])
        elif kind == 6:
            a += w[i % 4]
        pool = [b for b in pool if b.size][-keep:]
    return sum((m.sum(m.sin(a)) for a in pool), sum(sums, 0.0 * m.sum(x)))


@pytest.mark.parametrize("records", [16, 4096])
@pytest.mark.parametrize("shape", [(3, 4), (30, 40)])
def test_random_programs_of_writes_and_views(monkeypatch, records, shape):
    """Beside complex steps through the same program on NumPy's own arrays."""
    monkeypatch.setattr(tapes, "MAX_RECORDS", records)
    rng = np.random.default_rng(sum(shape) + records)
    for _ in range(60 if shape == (3, 4) else 25):
        program = plan(rng, int(rng.integers(3, 16)))
        at, weights = rng.uniform(0.3, 1.2, shape), rng.uniform(0.5, 1.0, 4)
        x, w = leaf(at), leaf(weights)
        with np.errstate(all="ignore"):
            try:
                value = run(program, at, weights, np, 4)
            except (ValueError, IndexError):  # a view too small for the next
                continue
            loss = run(program, x, w, np, 4)
            assert loss.item() == pytest.approx(value, rel=1e-12)
            gx, gw = tg.grad(loss, (x, w), create_graph=bool(rng.integers(2)), allow_unused=True,
                             materialize_grads=True)  # fmt: skip
            ux, uw = rng.uniform(-1, 1, shape), rng.uniform(-1, 1, 4)
            stepped = run(program, at + 1e-30j * ux, weights + 1e-30j * uw, np, 4)
        wanted = np.imag(stepped) / 1e-30
        found = np.sum(gx.detach().numpy() * ux) + np.sum(gw.detach().numpy() * uw)
        scale = np.sum(np.abs(gx.detach().numpy() * ux)) + np.sum(np.abs(gw.detach().numpy() * uw))
        assert found == pytest.approx(wanted, rel=1e-9, abs=1e-11 * (1 + scale)), program


# ---------------------------------------------------------------- memory


OVERLAPS = {  # what is written to, and what is read, of n elements
    "every second": lambda n: (np.s_[::2], np.s_[: (n + 1) // 2]),
    "the first half": lambda n: (np.s_[: (n + 1) // 2], np.s_[::2]),
    "behind": lambda n: (np.s_[1:], np.s_[:-1]),
    "ahead": lambda n: (np.s_[:-1], np.s_[1:]),
    "backwards": lambda n: (np.s_[:], np.s_[::-1]),
}
WRITES = {
    "setitem": lambda y, to, of: y.__setitem__(to, y[of]),
    "copyto": lambda y, to, of: np.copyto(y[to], y.reshape(-1)[of]),
    "put": lambda y, to, of: np.put(y, np.arange(y.size)[to], y[of]),
    "copy_": lambda y, to, of: y[to].copy_(y[of]),
}


@pytest.mark.parametrize("requires_grad", [True, False])
@pytest.mark.parametrize("n", [10, 999, 5000])
@pytest.mark.parametrize("how", WRITES)
@pytest.mark.parametrize("name", OVERLAPS)
def test_what_is_written_is_what_was_there_before(name, how, n, requires_grad):
    """NumPy itself writes a[::2] = a[:n] element by element: part of what it reads is gone by then."""
    to, of = OVERLAPS[name](n)
    source, weights = np.arange(n), np.arange(1.0, n + 1)
    source[to] = np.arange(n)[of]
    x = tg.tensor(np.linspace(0.1, 1.0, n), requires_grad=requires_grad)
    y = x * 1.0
    WRITES[how](y, to, of)
    assert y.tolist() == x.detach().numpy()[source].tolist()
    if requires_grad:
        (g,) = tg.grad(y, x, weights)
        assert g.tolist() == np.bincount(source, weights, n).tolist()


def test_large_arrays_are_written_in_place_where_nothing_needs_them():
    x = leaf(np.ones(10_000))
    y = x * 2.0
    y[0] = x[1]
    place = y._v.__array_interface__["data"][0]
    for i in range(100):
        y[i] = x[i] * 3.0
    assert y._v.__array_interface__["data"][0] == place
    z = np.sin(y)
    y[5] = 0.0  # sin reads the old values
    assert y._v.__array_interface__["data"][0] != place
    assert tg.grad(np.sum(z), x)[0].numpy()[5] == pytest.approx(3 * np.cos(3.0))


def test_an_array_that_numpy_shares():
    a = np.zeros(3)
    t = tg.from_numpy(a)
    t += 1.0
    t[0] = 5.0
    assert a.tolist() == [5.0, 1.0, 1.0]
    x = leaf()
    t += x
    assert grad(t, x) == [[1.0] * 3]
    assert t.tolist() == [6.0, 3.0, 4.0]


def test_no_cycles_are_left():
    gc.collect()
    gc.disable()
    try:
        x = leaf(np.ones((30, 40)))
        y = x * 1.0
        v, t = y[1:], y.T
        v *= 2.0
        t[0] = x[0, 0]
        references = [weakref.ref(h) for h in (y, v, t, y._v)]
        del y, v, t
        assert [r() for r in references] == [None] * 4
    finally:
        gc.enable()


def test_a_training_loop_keeps_no_cells():
    w = leaf(np.ones(100))
    for _ in range(50):
        np.sum(w * w).backward()
        with tg.no_grad():
            w -= 0.01 * w.grad
        w.grad = None
    assert len(w._extra.cells) < 10
    assert sys.getrefcount(w) < 5


# ---------------------------------------------------------------- several histories in one memory


@pytest.mark.parametrize("part", [slice(None), slice(5)])
def test_a_leaf_made_of_a_detached_part_keeps_its_views(part):
    """A write to the memory from elsewhere changes values; what is a view of the leaf stays one."""
    w = tg.zeros(10)
    x = w[part].detach().requires_grad_()
    v = x[1:3]
    for mode in (tg.no_grad, tg.enable_grad):
        with mode():
            w[2] = w[2].item() + 1.0
    assert v.tolist() == [0.0, 2.0]
    assert v.requires_grad
    assert not w.requires_grad
    assert grad(v * v, x)[0][2] == 4.0


def test_a_leaf_and_its_source_have_each_their_own_history():
    x, t = leaf([2.0]), tg.zeros(3)
    a = t.detach().requires_grad_()
    u, v = t[:2], a[:2]
    t[:1] = x
    assert u.requires_grad
    assert v.requires_grad
    assert a.is_leaf
    assert a.tolist() == t.tolist() == [2.0, 0.0, 0.0]
    gx, ga = tg.grad(np.sum(u * 3.0) + np.sum(v * v), (x, a))
    assert gx.tolist() == [3.0]
    assert ga.tolist() == [4.0, 0.0, 0.0]


def test_a_leaf_that_is_none_any_more():
    x = leaf()
    v = x[:2]
    x.requires_grad_(False)
    x[0] = 5.0
    assert v.tolist() == [5.0, 2.0]
    assert v.requires_grad
    assert not x.requires_grad
    x.requires_grad_()
    assert grad(v, x) == [[1.0, 1.0, 0.0]]  # of what x was then, and is still the same Tensor


def test_E9_a_view_made_while_nothing_is_recorded():
    x = leaf()
    y = x * 2.0
    with tg.no_grad():
        v = y[:2]
    with pytest.raises(GradientError, match="while nothing was recorded"):
        v[0] = 3.0
    assert y.tolist() == [2.0, 4.0, 6.0]
    y[0] = 5.0  # from here on it is a view with the history of what it sees
    assert v.tolist() == [5.0, 4.0]
    assert grad(v, x) == [[0.0, 2.0, 0.0]]


def test_a_view_of_a_detached_tensor_is_detached():
    x = leaf()
    y = x * 2.0
    d = y.detach()[1:]
    d[0] = 7.0
    assert y.tolist() == [2.0, 7.0, 6.0]
    assert not d.requires_grad
    with pytest.raises(GradientError, match="detached"):
        d[0] = x[0]
    assert grad(y, x) == [[2.0, 2.0, 2.0]]


def test_versions_survive_the_first_view():
    x = tg.zeros(3)
    x += 1.0
    v = x[1:]
    v += 1.0
    assert x._version == v._version == 2


# ---------------------------------------------------------------- interrupts


def cut_off(monkeypatch, y, value):
    """Write to y[0], and be interrupted after the value has changed: in Python, by an index of NumPy's."""

    def interrupted(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("tapegrad.core.inplace.record", interrupted)
        with pytest.raises(KeyboardInterrupt):
            y[np.intp(0)] = value


@pytest.mark.parametrize("view", [lambda y: y, lambda y: y[:2], lambda y: y.detach()[:2]])
def test_a_write_cut_off_is_not_forgotten(view, monkeypatch):
    """Values changed and no record of it: the next derivative says so."""
    x = leaf()
    y = x * 2.0
    v = view(y)
    before = y * y
    cut_off(monkeypatch, y, x[1])
    assert "interrupted" in repr(y)
    for use in (
        lambda: y * 1.0, lambda: tg.grad(y.sum(), x), lambda: (v if v.requires_grad else y) * 2.0,
        lambda: y.__setitem__(1, 0.0),
    ):  # fmt: skip
        with pytest.raises(GradientError, match="interrupted"):
            use()
    assert y.detach().shape == (3,)
    assert grad(before, x) == [[8.0, 16.0, 24.0]]


@pytest.mark.parametrize("early", [False, True])
def test_a_write_cut_off_is_not_forgotten_when_others_write_to_the_memory(early, monkeypatch):
    x = leaf()
    y = x * 2.0
    known = y.detach() if early else None
    cut_off(monkeypatch, y, x[1])
    detached = y.detach() if known is None else known
    detached[2] = 7.0
    detached += 1.0
    assert detached.tolist() == y.tolist()
    for use in (lambda: y * 1.0, lambda: tg.grad(y.sum(), x), lambda: y.__setitem__(1, 0.0)):
        with pytest.raises(GradientError, match="interrupted"):
            use()
    assert (detached * x).requires_grad


def test_a_write_refused_leaves_views_as_they_were():
    x = leaf()
    y = x * 2.0
    with tg.no_grad():
        v = y[:2]
    d = v.detach()
    with pytest.raises(ShapeError):
        d[:] = np.ones(5)
    with pytest.raises(GradientError, match="while nothing was recorded"):
        v[0] = 1.0


@pytest.mark.parametrize("shape", [(), (1,), (2,)])
def test_E7_what_is_written_over_has_a_gradient_of_zero(shape):
    x, w = leaf(np.full(shape, 2.0)), leaf(np.full(shape, 3.0))
    y = x * x
    y.copy_(w)
    gx, gw = tg.grad(y.sum(), (x, w))
    assert gx.tolist() == np.zeros(shape).tolist()
    assert gw.tolist() == np.ones(shape).tolist()


def test_a_write_costs_what_it_writes():
    """Neither is the memory copied, which nothing else sees, nor are all elements numbered."""
    n = 1 << 19
    y = leaf(np.linspace(0.0, 1.0, n)) * 2.0
    for index in (5, slice(2, 9), (slice(None, None, 1 << 17),), np.array([3, -1, 3]), [0, 7]):
        y[index] = 1.0
        place = y._v.__array_interface__["data"][0]
        tracemalloc.start()
        y[index] = 2.0
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert y._v.__array_interface__["data"][0] == place
        assert peak < 2 * n  # a mark each is reserved for elements written several times, and not touched


@pytest.mark.parametrize("shape", [(7,), (5, 2, 3), (4, 0)])
@pytest.mark.parametrize("dtype", [np.int64, np.int8, np.uint64])
def test_numbers_of_what_an_index_takes(shape, dtype):
    for index in ([3, 0, 3], [[1], [2]], 2, []):
        index = np.array(index, dtype)
        wanted = np.arange(int(np.prod(shape))).reshape(shape)
        np.testing.assert_array_equal(numbers(shape, index), wanted[index])
        if dtype != np.uint64 and index.size:
            np.testing.assert_array_equal(numbers(shape, -index), wanted[-index])


def test_a_tape_that_is_closed_in_the_middle_of_a_write(monkeypatch):
    """As by a finalizer that sweeps: what the write's record is to link to is not pruned before it does."""
    write = inplace._set

    def closing(*args):
        tape = tapes.local.tape
        tapes.close(tape)
        tape.prune()
        write(*args)

    x = leaf(np.arange(1.0, 6.0))
    y, values = x * 2.0, np.sin(x[:2])
    with monkeypatch.context() as patch:
        patch.setattr(pool, "alone", lambda *_: False)  # copied, so the record before has no handle
        patch.setattr(inplace, "_set", closing)
        y[1:3] = values
    (g,) = tg.grad(np.sum(y * y), x)
    a = np.arange(1.0, 6.0)
    expected = 8.0 * a
    expected[1:3] = 0.0
    expected[:2] += 2.0 * np.sin(a[:2]) * np.cos(a[:2])
    np.testing.assert_allclose(g.numpy(), expected, rtol=1e-14)


@pytest.mark.parametrize("mask", [True, np.True_, np.array(True), (..., True), None, False, np.array(False)])
def test_a_mask_chooses_the_element_of_a_scalar_or_none(mask):
    expected = np.array(2.0)
    expected[mask] = 5.0
    x, v = tg.tensor(2.0), tg.tensor(5.0, requires_grad=True)
    x[mask] = 5.0
    assert x.item() == expected
    y = v * 0.4
    y[mask] = v
    assert y.item() == expected and tg.grad(y, v)[0].item() == (1.0 if expected == 5 else 0.4)
    with pytest.raises(ValueError, match="shape"):
        x[mask] = [1.0, 2.0]
