"""More functions of the kind of `hostile`: methods, writes and arrays that compiled code compares."""

import operator
import warnings

import numpy as np

import tapegrad as tg

from .hostile import hostile, simple

# ------------------------------------------------------------ methods


@simple
def methods_take_turns(x, k):
    y = x * 2.0
    s = [y.sum, y.max, y.min, y.mean, y.prod][k % 5 if k > 8 else 0]()
    return s * y.sum()


@simple
def method_or_function_or_ufunc(x, k):
    y = np.sin(x)
    return [y.sum, lambda: np.sum(y), lambda: np.add.reduce(y), lambda: tg.Tensor.sum(y)][k % 4]()


@simple
def options_of_a_method_change(x, k):
    y = (x * 2.0).reshape(2, 2)
    how = [{}, {"axis": 0}, {"axis": 1}, {"axis": -1}, {"axis": (0, 1)}, {"axis": 0, "keepdims": True}]
    return np.sum(y.sum(**how[k // 3 % 6]) ** 2)


@simple
def options_by_place_or_name(x, k):
    y = (x * 2.0).reshape(2, 2)
    found = [
        lambda: y.sum(0),
        lambda: y.sum(axis=0),
        lambda: y.sum(0, None),
        lambda: y.sum(keepdims=False, axis=0),
    ]
    return np.sum(found[k % 4]() ** 2)


@simple
def options_that_are_equal_to_others(x, k):
    """1 is True, and is not: nor are integers of NumPy's, or floats."""
    y = (x * 2.0).reshape(2, 2)
    return np.sum(y.sum(axis=[1, True, np.int64(1), np.int8(1), 1.0][k % 5]) ** 2)


@simple
def options_that_are_wrong(x, k):
    y = (x * 2.0).reshape(2, 2)
    try:
        return np.sum(y.sum(axis=[0, 2, "a", 0, None][k % 5]) ** 2)
    except Exception as error:
        return np.sum(y) * len(str(error))


@simple
def names_that_there_are_not(x, k):
    y = x * 2.0
    try:
        return y.sum(**({"axis": None} if k % 3 else {"axes": None}))
    except TypeError as error:
        return np.prod(y) * len(str(error))


@simple
def shapes_in_many_ways(x, k):
    y = x * 2.0
    z = [
        lambda: y.reshape(2, 2),
        lambda: y.reshape((2, 2)),
        lambda: y.reshape([2, 2]),
        lambda: y.reshape(2, -1),
        lambda: y.reshape(-1, 2),
        lambda: y.reshape((2, 2), order="F"),
        lambda: y.reshape(4, 1),
        lambda: y.reshape(1, 4),
        lambda: y.reshape((np.int64(2), 2)),
        lambda: y.reshape(True, 4),
    ][k % 10]()
    return np.sum(z[0] * np.arange(1.0, 1.0 + z.shape[-1])) + np.sum(z[:, 0])


@simple
def shapes_computed_anew(x, k):
    n = 4 if k % 5 < 3 else 2
    y = (x * 2.0).reshape((n, x.size // n))
    return np.sum(y[0]) * np.sum(y[:, 0] ** 2)


@simple
def large_integers(x, k):
    n = 300 + (k >= 14)
    y = np.broadcast_to(x[0], (600,)).reshape(int(str(n - (k >= 14))), 2) + x[1]
    return np.sum(y[int(str(n - 2))] * x[:2]) + np.sum(y[: int(str(n - 10)), 0])


@simple
def transposed_or_not(x, k):
    y = (x * 2.0).reshape(2, 2)
    z = [y.T, y, y.T.T, y.mT, y.transpose(), y.transpose(1, 0), y.transpose((1, 0)), y.swapaxes(0, 1)][k % 8]
    return np.sum(z[0] * np.array([1.0, 3.0]))


@simple
def method_of_another_tensor(x, k):
    y, z = x * 2.0, x * 3.0
    return (y if k % 3 else z).sum() + z.sum()


@simple
def method_by_a_caller(x, k):
    return operator.methodcaller(["sum", "prod"][k > 10])(x * 2.0) * operator.attrgetter("T")(x)[0]


@hostile
def method_is_replaced():
    """By the user, for some calls."""
    before, seen = tg.Tensor.sum, []

    def f(x, k):
        if k % 4 == 3:
            tg.Tensor.sum = lambda self, *args, **kwargs: (
                seen.append(k),
                2.0 * before(self, *args, **kwargs),
            )[1]
        try:
            return (x * x).sum() + (x * x).sum(axis=0)
        finally:
            tg.Tensor.sum = before

    return f, seen


@simple
def result_of_a_method_is_kept(x, k):
    y = x * 2.0
    s = y.sum()
    if k % 4 == 2:
        result_of_a_method_is_kept.kept = s
    return s * y.max()


@simple
def into_an_array(x, k):
    y, out = x * 2.0, np.zeros(())
    try:
        return y.sum(out=out) if k % 4 == 3 else y.sum()
    except Exception as error:
        return y.prod() * len(str(error))


@simple
def clipped_by_other_numbers(x, k):
    return (x * 2.0).clip(-0.1 * (k % 3), [1.0, 1, np.float64(1.5), None][k % 4]).sum()


@simple
def order_of_clipping(x, k):
    low, high = (-0.5, 0.5) if k % 2 else (0.5, -0.5)
    return np.sum((x * 2.0).clip(low, high) * x)


@simple
def real_parts(x, k):
    y = x * (1.0 + 2.0j)
    return np.sum([lambda: y.real, lambda: y.imag, lambda: np.real(y), lambda: (y * 1j).real][k % 4]())


# ------------------------------------------------------------ operators in place


@simple
def in_place_with_what_changes(x, k):
    y = x * 2.0
    y += [
        1.0,
        1,
        np.float64(2.0),
        np.float32(0.1),
        True,
        np.arange(4.0),
        np.arange(4),
        np.arange(8.0)[::2],
        np.arange(4.0)[::-1],
        np.arange(4, dtype=">f8"),
        [1.0, 2.0, 3.0, 4.0],
    ][k % 11]
    return np.sum(y * x)


@simple
def in_place_numbers(x, k):
    y = x * 2.0
    y *= [-0.0, 0.0, np.nan, np.inf, -1.0, 1e308, 5e-324][k % 7]
    return np.sum(y)


@simple
def in_place_by_itself(x, k):
    y = x * 2.0
    z = y if k % 3 else y * 1.0
    y += z
    y *= y
    return np.sum(y * z)


@simple
def in_place_by_a_part_of_itself(x, k):
    y = x * 2.0
    z = y[::-1]
    if k % 3:
        y -= z
    y += 1.0
    return np.sum(y * z)


@simple
def in_place_powers(x, k):
    y = x + 3.0
    y **= [2, 2.0, 3, 3.0, 0.5, -1][k % 6]
    return np.sum(y)


@simple
def in_place_of_another_operator(x, k):
    y = x + 3.0
    if k % 4 == 0:
        y += x
    elif k % 4 == 1:
        y -= x
    elif k % 4 == 2:
        y *= x
    else:
        y = y + x
    return np.sum(y * y)


@simple
def in_place_of_another_shape(x, k):
    y = (x * 2.0).reshape(2, 2) * 1.0
    y += [x[0], x[:2], x.reshape(2, 2), np.ones((1, 2)), np.ones((2, 1)), 1.0][k % 6]
    return np.sum(y * np.arange(4.0).reshape(2, 2))


@simple
def in_place_where_it_does_not_fit(x, k):
    y = x[:2] * 2.0
    try:
        y += x if k % 4 == 3 else x[:2]
    except Exception as error:
        return np.sum(y) * len(str(error))
    return np.sum(y * y)


@simple
def in_place_while_a_view_is_held(x, k):
    y = x * 2.0
    v = y[:2]
    w = v if k % 4 == 1 else None
    del v
    y += 1.0
    y[1] = x[0]
    return np.sum(y * y) + (0.0 if w is None else np.sum(w))


@simple
def in_place_after_a_look(x, k):
    y = x * 2.0
    if k % 3 == 2 and float(y[0].detach()) > 100.0:
        y = y + 1.0
    y += x
    y[1:] *= 3.0
    return np.sum(y * y)


@simple
def in_place_of_numbers(x, k):
    s = x[0] * 2.0
    t = s
    s += x[1] if k % 3 else 1.5
    s *= 2.0
    s -= np.float64(k)
    return s * t


@simple
def in_place_while_it_is_named(x, k):
    y = x * 2.0
    z = y
    y += x
    if k % 4 == 3:
        z = z + 1.0
    return np.sum(y * z)


# ------------------------------------------------------------ writes

VALUES = (
    lambda x: 0.0,
    lambda x: -0.0,
    lambda x: 1,
    lambda x: True,
    lambda x: np.float64(2.5),
    lambda x: np.float32(0.1),
    lambda x: np.nan,
    lambda x: -np.inf,
    lambda x: x[0],
    lambda x: x[:2],
    lambda x: x[1:3] * 1.0,
    lambda x: [1.0, 2.0],
    lambda x: np.arange(2.0),
    lambda x: np.arange(2),
    lambda x: np.arange(4.0)[::2],
    lambda x: np.arange(2.0)[::-1],
    lambda x: np.broadcast_to(3.0, (2,)),
    lambda x: np.arange(2, dtype=">f8"),
    lambda x: np.array(4.0),
    lambda x: np.array([5.0]),
    lambda x: np.array([[5.0]]),
    lambda x: np.arange(2.0, dtype=np.float32),
    lambda x: np.frombuffer(b"\0" + np.array([1.5, 2.5]).tobytes(), np.uint8)[1:].view(np.float64),
    lambda x: 10**30,
    lambda x: 1j,
    lambda x: np.arange(3.0),
    lambda x: x,
    lambda x: "a",
    lambda x: None,
    lambda x: np.matrix([1.0, 2.0]),
    lambda x: np.ma.array([1.0, 2.0], mask=[0, 1]),
)


def _writes_of(name, values, first):
    def function(x, k):
        u = x * 2.0
        try:
            u[1:3] = values[k % len(values) if k > 6 else first](x)
        except Exception as error:
            return np.sum(u) * len(str(error))
        return np.sum(u * u) + np.sum(1.0 / (u + 10.0))

    function.__name__ = name
    simple(function)


for _part in range(3):
    for _first, _name in enumerate(("number", "tensor", "array")):
        _begin = (lambda x: 0.5, lambda x: x[:2] * 1.0, lambda x: np.array([0.5, 0.25]))[_first]
        _writes_of(f"writes_of_what_changes_{_name}_{_part}", (_begin, *VALUES[_part::3]), 0)


@simple
def writes_of_arrays_that_stretch(x, k):
    u = (x * 2.0).reshape(2, 2) * 1.0
    u[...] = [
        np.arange(2.0) + k,
        np.full((2, 1), 1.0 * k),
        np.full((1, 2), 2.0),
        np.full((2, 2), 3.0),
        np.arange(4.0).reshape(2, 2).T,
        np.full((1, 1, 2), 4.0),
    ][k % 6]
    u[0] = x[:2]
    return np.sum(u * u)


@simple
def writes_elsewhere(x, k):
    u = x * 2.0
    i = [1, np.int64(1), -3, True, slice(1, 2), [1], np.array([1]), (1,), (..., 1), None, int("1")]
    u[i[k % 11 if k > 6 else 0]] = 3.0
    return np.sum(u * x)


@simple
def writes_to_slices_computed_anew(x, k):
    u = np.broadcast_to(x[0], (900,)) * 1.0
    n = int("600") + (k > 12)
    u[int("300") : n] = x[1]
    u[n : n + 2] += x[2:]
    return np.sum(u)


@simple
def writes_to_another_tensor(x, k):
    u, v = x * 2.0, x * 3.0
    w = u if k % 3 else v
    w[0] = 5.0
    return np.sum(u * v)


@simple
def part_put_elsewhere(x, k):
    """What an operator in place has changed is written where it lies, or where it does not."""
    u = x * 2.0
    v = u[0:2]
    v += 1.0
    if k % 4 == 3:
        u[2:4] = v
    elif k % 4 == 2:
        u[0:2] = v * 1.0
    else:
        u[0:2] = v
    return np.sum(u * u)


@simple
def part_put_into_another_tensor(x, k):
    u, w = x * 2.0, x * 3.0
    v = u[0:2]
    v *= 2.0
    (w if k % 4 == 3 else u)[0:2] = v
    return np.sum(u * w)


@simple
def part_of_a_part(x, k):
    u = (x * 2.0).reshape(2, 2) * 1.0
    u[0][1] = x[0]
    u[1][:] += x[:2]
    if k % 4 == 3:
        u[1][0] = x[3]
    return np.sum(u * u)


@simple
def written_while_views_are_held(x, k):
    u = x * 2.0
    held = [u[:2], u.reshape(2, 2), u[::-1]][k % 3] if k % 5 > 2 else None
    u[1] = x[0]
    u[2:] = 0.0
    return np.sum(u * u) + (0.0 if held is None else np.sum(held * 3.0))


@simple
def written_view_is_kept(x, k):
    u = x * 2.0
    v = u[1:3]
    v += x[0]
    if k % 4 == 3:
        u[1] = 7.0
        return np.sum(u) * np.sum(v)
    return np.sum(u * u)


@simple
def written_after_comparing(x, k):
    u = x * 2.0
    if x[0] > 0.0:
        u[0] = 1.0
    else:
        u[0] = -1.0
    u[1:] += u[0]
    return np.sum(u * u)


@hostile
def array_written_is_changed_later():
    a = np.arange(2.0)

    def f(x, k):
        u = x * 2.0
        u[:2] = a
        a[...] = a + 1.0
        u[2:] = a
        return np.sum(u * u)

    return f, a


# ------------------------------------------------------------ arrays

TABLE = np.arange(48.0).reshape(4, 4, 3) * 0.1 - 1.0
ARRAYS = (
    lambda: TABLE[:, 1, 2],
    lambda: TABLE[1, :, 0],
    lambda: TABLE[::-1, 0, 0],
    lambda: TABLE[0, ::-1, 2].copy(),
    lambda: np.broadcast_to(0.5, (4,)),
    lambda: TABLE[:, 1, 2].astype(np.float32)[::-1],
    lambda: np.arange(8)[::2],
    lambda: TABLE[:, 1, 2].astype(">f8"),
    lambda: TABLE[:, 1, 2] > 0,
    lambda: np.frombuffer(b"\0" + TABLE.tobytes(), np.uint8)[1:33].view(np.float64),
    lambda: TABLE[:, :1, 2],
    lambda: TABLE[:, 1, 2].view(np.matrix),
    lambda: np.ma.array(TABLE[:, 1, 2], mask=[0, 0, 1, 0]),
    lambda: TABLE[:1, 1, 2],
    lambda: TABLE[:0, 1, 2],
    lambda: TABLE[:, 1, 2].astype(np.float16)[::2],
    lambda: TABLE[0, 0, 0],
    lambda: TABLE[:, 1, 2].astype(complex)[::-1],
    lambda: TABLE[:, 1, 2].astype(np.int8)[::-1],
    lambda: TABLE[:, 1, 2].astype(np.longdouble),
    lambda: TABLE[:, 1, 2] * np.nan,
    lambda: TABLE[:, 1, 2] * -0.0,
)


def _operand(name, use, arrays):
    def function(x, k):
        try:
            return use(x, arrays[k % len(arrays) if k > 6 else 0]())
        except Exception as error:
            return np.sum(x) * len(str(error))

    function.__name__ = name
    simple(function)


for _part in range(2):
    _arrays = (ARRAYS[0], *ARRAYS[_part::2])
    _operand(f"strided_factor_{_part}", lambda x, a: np.real(np.sum(np.sin(x) * a)), _arrays)
    _operand(f"strided_first_{_part}", lambda x, a: np.real(np.sum(np.divide(a, x + 5.0))), _arrays)
    _operand(f"strided_product_{_part}", lambda x, a: np.real(np.sum((x * 2.0) @ a)), _arrays)
    _operand(f"strided_joined_{_part}", lambda x, a: np.real(np.sum(np.concatenate([x, a]) ** 2)), _arrays)

MATRICES = (
    lambda: TABLE[:, :, 1],
    lambda: TABLE[:, :, 1].T,
    lambda: TABLE[:, :, 1].copy(),
    lambda: TABLE[:, :, 1].T.copy(),
    lambda: np.asfortranarray(TABLE[:, :, 1]),
    lambda: TABLE[::-1, :, 1],
    lambda: TABLE[:, ::-1, 1],
    lambda: TABLE[::-1, ::-1, 1],
    lambda: TABLE[:, :1, 1],
    lambda: TABLE[:1, :, 1],
    lambda: np.broadcast_to(TABLE[:, 0, 1], (4, 4)),
    lambda: np.broadcast_to(TABLE[:, :1, 1], (4, 4)),
    lambda: np.broadcast_to(0.25, (4, 4)),
    lambda: TABLE[:, 0],
    lambda: TABLE[0],
)
for _begin in range(4):
    _given = (*MATRICES[_begin:], *MATRICES[:_begin])
    _operand(
        f"matrix_in_any_order_{_begin}",
        lambda x, a: np.sum(np.reshape((x[:, None] * x) * a, -1, order="A")[:9] * np.arange(9.0)),
        _given,
    )
    _operand(f"matrix_summed_{_begin}", lambda x, a: np.sum(np.sum(a * x, axis=0) @ (a @ x)), _given)


@hostile
def strided_array_changes_in_between():
    table = np.arange(16.0).reshape(4, 4)

    def f(x, k):
        y = x * table[:, 1]
        table[:, 1] += 1.0
        y = y * table[:, 1] + table[:, 1]
        table[k % 4, 1] = -0.0
        return np.sum(y / (2.0 + table[:, 1]))

    return f, table


@simple
def large_strided_array(x, k):
    a = np.arange(6000.0).reshape(3000, 2)[:: 1 if k % 2 else -1, k % 2]
    return np.sum(x[0] * a) * 1e-6 + np.sum(a[:2000] * x[1]) * 1e-6


# ------------------------------------------------------------ arrays that the call makes


@simple
def zeros_that_are_filled(x, k):
    u = tg.zeros(6)
    for i in range(4):
        u[i] = x[i] ** 2
    u[4:] = x[:2]
    return np.sum(u * np.arange(6.0))


@simple
def made_in_many_ways(x, k):
    make = [
        lambda: tg.zeros(4),
        lambda: tg.ones(4),
        lambda: tg.zeros((4,)),
        lambda: tg.zeros(4, dtype=np.float32),
        lambda: tg.zeros(4, float),
        lambda: np.zeros_like(x),
        lambda: np.ones_like(x),
        lambda: tg.zeros_like(x),
        lambda: tg.full(4, 0.0),
        lambda: tg.zeros(4, int),
        lambda: tg.zeros(5),
        lambda: tg.zeros((2, 2)),
        lambda: tg.zeros(4, requires_grad=True),
    ][k % 13 if k > 6 else 0]
    u = make()
    try:
        u[1:3] = x[:2]
        u[0] += x[3]
    except Exception as error:
        return np.sum(x) * len(str(error))
    return np.sum(u * u) + np.sum(np.cos(u))


@simple
def made_and_kept(x, k):
    u = tg.zeros(4)
    v = u
    w = u[1:]
    u[0] = x[0]
    if k % 3 == 2:
        w[0] = x[1]
    v[3] = 2.0
    return np.sum(u * u) * np.sum(v) + np.sum(w)


@simple
def made_and_looked_at(x, k):
    u = tg.zeros(4)
    u[0] = x[0]
    if k % 4 == 3 and u.numpy()[1] == 0.0:
        u[1] = x[1]
    u += tg.ones(4)
    return np.sum(u * u)


@simple
def made_twice_of_one(x, k):
    u, v = tg.zeros(4), tg.zeros(4)
    (u if k % 3 else v)[0] = x[0]
    v[1:] = x[1:]
    return np.sum(u * v) + np.sum(u) + 2.0 * np.sum(v)


@hostile
def made_and_returned_to_the_outside():
    kept = []

    def f(x, k):
        u = tg.zeros(4)
        if k % 4 == 3:
            kept.append(u)
        u[0] = x[0]
        u[1:] = 1.0
        return np.sum(u * u)

    return f, kept


@simple
def empty_that_is_filled(x, k):
    u, v = np.empty_like(x), tg.empty_like(x)
    for i in range(4):
        u[i] = np.sin(x[i])
        v[3 - i] = u[i] * x[i] if k % 4 else 0.5
    return np.sum(u * v)


@simple
def a_scalar_tensor_is_written_everywhere(x, k):
    u = x * 2.0
    u[1:] = x[0]
    u[:2] = np.sum(x) if k % 3 else 1.0
    return np.sum(u * u)


@simple
def elements_by_what_is_computed(x, k):
    """A Tensor among the arguments of a function that is no operand of what it does."""
    x = np.roll(x, k)
    i = np.argmax(x)
    y = np.roll(x, i) * np.arange(4.0)
    z = np.repeat(x, np.argsort(x)) * np.arange(6.0)
    return np.sum(y) + np.sum(z) + np.sum(np.delete(x, i) ** 2) + np.sum(x.repeat(np.argsort(-x))[:2])


@simple
def numbers_without_axes_that_are_made(x, k):
    s, t = tg.zeros(()), tg.ones(())
    s += x[0]
    t *= np.sum(x)
    return s * t + tg.zeros((0,)).sum() + np.sum(tg.ones((1, 4)) * x)


# ------------------------------------------------------------ arguments that are to be the same


@simple
def parts_of_other_sizes(x, k):
    y = x * 2.0
    parts = np.split(y, [2, [1], [1, 3], (2,), np.array([3])][k // 3 % 5])
    return sum(np.sum(part**n) for n, part in enumerate(parts, 2))


@simple
def parts_as_views_or_not(x, k):
    """One of several views is not to be written to, others are."""
    y = x * 2.0
    a, b = np.split(y, 2) if k % 4 < 2 else (y[:2], y[2:])
    if k % 3 == 2:
        try:
            a[...] = b * 3.0
        except (ValueError, RuntimeError) as error:
            return np.sum(b) * len(str(error))
    return np.sum(a * b)


@simple
def parts_that_are_kept(x, k, kept=[]):
    parts = np.unstack((x * 2.0).reshape(2, 2))
    if k % 4 == 3:
        kept[:] = [parts, *parts]
    return np.sum(parts[0] * parts[1])


@simple
def parts_in_a_list_that_changes(x, k):
    parts = np.array_split(x * 2.0, 3)
    parts.reverse() if k % 3 else parts.append(x)
    return np.sum(parts[0]) * np.sum(parts[-1])


@simple
def powers_of_many_kinds(x, k):
    y = np.exp(x)
    n = [2.0, 2, np.float64(2.0), np.array(2.0), 3.0, True, -0.0, 0.0, 2.5, y][k // 2 % 10]
    return np.sum(np.power(y, n)) + np.sum(np.power(2.0, y))


WEIGHTS = np.array([0.5, 1.0, 2.0, 0.25])


@simple
def weights_that_are_written_to(x, k):
    WEIGHTS[k % 4] = 0.5 + k // 6
    return np.average(x * 2.0, weights=WEIGHTS) * np.average(np.sin(x), weights=WEIGHTS[::-1])


@simple
def weights_that_sum_to_zero(x, k):
    w = np.array([1.0, -1.0, 1.0, -1.0 if k % 4 == 3 else 1.0])
    try:
        return np.average(x * 2.0, weights=w)
    except ZeroDivisionError as error:
        return np.sum(x) * len(str(error))


@simple
def weights_of_other_dtypes(x, k):
    w = np.array([1, 2, 3, 4], [np.int64, np.float32, np.float64, np.int8, bool][k // 2 % 5])
    return np.average(x * 2.0, weights=w)


@simple
def lists_of_other_numbers(x, k):
    numbers = [0, 2]
    numbers[k % 2] = k // 3 % 4
    return np.sum(np.take(x * 2.0, numbers) ** 2)


@simple
def numbers_of_a_result(x, k):
    """Which elements are taken is told by the values of a Tensor."""
    y = (x * 2.0).reshape(2, 2)
    return np.sum(np.take(y, np.argsort(y, axis=None)[:2]) * np.array([1.0, 2.0]))


@simple
def correlations(x, k):
    y = np.stack([x, np.sin(x) * k, x * (2.0 if k % 3 else 1.0) + (x[::-1] if k % 2 else 0.0)])
    with np.errstate(all="ignore"):
        return np.sum(np.corrcoef(y)[0])


# ------------------------------------------------------------ filters of warnings


def logarithm(x, k):
    """Not a number at each third call."""
    return np.log(x - (20.0 if k % 3 == 2 else -20.0))


@simple
def warnings_are_not_told_inside(x, k):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return np.nansum(logarithm(x, k) * 2.0) + np.sum(x)


@simple
def warnings_are_errors_inside(x, k):
    s = np.sum(x * x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            return s * np.nansum(logarithm(x * 2.0, k))
        except RuntimeWarning as error:
            return s * float(len(str(error)))


@simple
def warnings_are_noted_inside(x, k):
    y = logarithm(x, k + 1)  # told outside
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        s = np.nansum(logarithm(x * 2.0, k) * 2.0)
    return (s + np.nansum(y)) * (1.0 + len(found))


@simple
def warnings_before_and_behind(x, k):
    y = logarithm(x, k)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        z = logarithm(x * 2.0, k + 1)
    return np.nansum(y * z * logarithm(x * 3.0, k + 2))


@simple
def warnings_are_errors_but_none_is_told(x, k):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return np.sum(np.sin(x * 2.0)) * np.var(x)


@simple
def warnings_are_errors_where_a_value_is_looked_at(x, k):
    y = logarithm(x, k)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            return np.nansum(y) if y[0] > 3.0 else np.sum(x * y[1])
        except RuntimeWarning:
            return np.sum(x)


@simple
def filters_that_are_put_back_by_hand(x, k):
    before = warnings.filters[:]
    try:
        warnings.filterwarnings("error", category=RuntimeWarning)
        return np.nansum(logarithm(x, k))
    except RuntimeWarning:
        return np.sum(x)
    finally:
        warnings.filters[:] = before


# ------------------------------------------------------------ orders


@simple
def orders_of_many_kinds(x, k):
    y = np.stack([x, np.sin(3.0 * x), x[::-1]])
    n = k // 4 % 5
    if n == 0:
        return np.sum(np.sort(y, axis=k % 2) * np.arange(12.0).reshape(3, 4))
    if n == 1:
        return np.sum(np.partition(y, [1, 2] if k % 2 else 2, axis=1)[:, 1])
    if n == 2:
        return np.sum(np.percentile(y, 30.0 if k % 2 else 10.0, axis=k % 3 % 2))
    return np.sum(np.median(y, axis=k % 2)) if n == 3 else np.quantile(y, 0.1 * k)


@simple
def orders_of_equal_elements_and_nan(x, k):
    y = np.round(x) + 0.0 * x if k % 3 else np.where(x > 0.2, x, np.nan)
    z = np.stack([y, y * 2.0])
    found = np.sort(z, axis=1)[:, 1], np.median(z, axis=1), np.quantile(z, 0.4, axis=0)
    return sum(np.nansum(part * part) for part in found)


@simple
def orders_that_are_looked_at(x, k):
    y = np.sort(x * 2.0)
    s = np.sum(y * np.arange(4.0)) * (2.0 if y[0] > 0.0 else 1.0)
    return s + np.median(np.stack([y, x]), axis=0)[k % 4]


@simple
def orders_that_are_written_to(x, k):
    y = np.sort(np.sin(x * 2.0))
    y[k % 2] = 0.5
    return np.sum(y * np.arange(4.0)) + np.sum(np.sort(y)[:2])


# ------------------------------------------------------------ lists, and axes of one element


@simple
def lists_as_operands(x, k):
    """Of other numbers, kinds, shapes and types, where there were others."""
    y = [
        [0.5, 1.5, -0.0, 2.5],
        [1.0 * k, 1, 2, np.nan],
        [1, 2, 3, 4],
        (0.5, 1.5, 2.5, np.float64(3.5)),
        [True, 0.5, 1.0, 2.0],
        [0.5],
        [[0.5, 1.0, 2.0, 4.0]],
        [0.5, x[0].item(), 1.0, x[1]],
        [0.5, 2**60 + 1, 0.1, 3.0],
        [0.5, 1.0, 2.0],
        [0.5, 1.0, 2.0, "a"],
        np.array([0.5, 1.5, 2.5, 3.5]),
        2.0,
    ][k % 13 if k > 6 else 0]
    try:
        return np.sum(np.maximum(x * y + y, y) * x)
    except Exception as error:
        return np.sum(x) * len(type(error).__name__)


@simple
def lists_of_whole_numbers(x, k):
    y = [[3, -1, 2**60 + k, k], [3.0, -1, 0, 0], [2**63, 1, 1, 1], [3, 1], np.arange(4)]
    y = y[k % 5 if k > 6 else 0]
    try:
        return np.sum(x.astype(np.float32 if k == 13 else float) * y)
    except Exception as error:
        return np.sum(x) * len(type(error).__name__)


@simple
def lists_in_lists(x, k):
    a = [[1.0, 0.1 * k], [0.2, 1]]
    if k % 4 == 3:
        a[1] = [[0.2, 1.0], (0.3, 2), [0.1], [0.1, [1.0]]][k // 4 % 4]
    try:
        y = a @ x.reshape(2, 2) + a
        return np.sum(np.concatenate([x[:2] * y[0], a[0], [0.5 * k], (1, 2.0)]) * 1.5)
    except Exception as error:
        return np.sum(x) * len(type(error).__name__)


@simple
def lists_where_arrays_lay_otherwise(x, k):
    y = [[1.0, 2.0], [0.3, 4.0]]
    z = x.reshape(2, 2).T * (np.array(y, order="F") if k < 8 or k % 3 == 0 else y)
    return np.sum(np.ravel(z, "K") * x) + len(str(z.detach().numpy().strides))


@simple
def lists_to_choose_from(x, k):
    y = [[1.0, 2.0, 0.5 * k, 0.0], [1, 2, 3, 4], [0.5], 0.5, np.full(4, 1.5)][k % 5 if k > 6 else 0]
    z = np.where(x > 0.4, x, y) + np.where(x > 0.6, y, x * 2.0)
    return np.sum(np.clip(z, [-1.0, 0.0, 0.5, 0.1], [2.0, 1.0 + 0.1 * k, 1.0, 3.0]) * x)


@simple
def list_that_is_changed(x, k):
    y = [0.5, 1.5, 2.5, 3.5]
    z = x * y
    y[k % 4] = 9.0
    return np.sum(z * y * x)


@simple
def lists_of_places(x, k):
    i = [
        [2, 0],
        [2, -4],
        [-2, 0],
        [1, 1],
        [2, 0, 1],
        [[2, 0]],
        [True, False, True, False],
        [2, np.int64(0)],
        [2, False],
        [],
        [2, 9],
        [2.0, 0],
        (2,),
        np.array([2, 0]),
        np.array([2, 0], np.int32),
    ][k % 15 if k > 6 else 0]
    try:
        return np.sum((x * 2.0)[i] * 1.5) * x[0]
    except Exception as error:
        return np.sum(x) * len(str(error))


@simple
def places_along_several_axes(x, k):
    y, i = (x * 2.0).reshape(2, 2), np.array([1, 0])
    if k % 5 == 4:
        i[0] = k % 2
    index = [(i, [0, 1]), ([1, 0], i), (slice(None), i), (slice(0, 2), [1, 0]), (i[:, None], i), (1, i)]
    return np.sum(y[index[k // 3 % 6 if k > 6 else 0]] * 1.5) + np.sum(y[:, i] * y[[0, 1], i])


@simple
def axes_of_one_element(x, k):
    s, y = x[0] * 2.0, x * 3.0
    if k % 4 == 3:
        s = x[0, ...] * 1.0 if k % 8 == 3 else x[0, ...]
    z = s[[None, ..., (None, None), (..., None), ()][k % 5 if k > 6 else 0]]
    w = y[None] if k % 3 else y[:, None]
    return np.sum(z * y) + np.sum(w[0] * s[None]) + (s[None, None] * y)[0, 1]


@simple
def writes_to_axes_of_one_element(x, k):
    """Of a number NumPy copies them; of an array without axes they are a view."""
    s = x[0] * 2.0
    t = x[1:2] * 1.0
    u = s[None] if k % 3 else t[0, ...][None]
    try:
        if k % 4 == 2:
            u[0] = 5.0
            return np.sum(u * s) + t[0]
        v = t[None]
        v[0] += x[1]
    except Exception as error:
        return s * len(type(error).__name__)
    return np.sum(u * s) + t[0] * np.sum(x)


@simple
def lists_of_coefficients(x, k):
    """A list that reads alike from both ends is no hint at what a function makes of another."""
    others = [[0.5, 0.2, 0.1 * k], [0.5, 0.2], [1, 2, 1], (0.5, 0.2, 0.5), 0.5, [0.5, x[0]]]
    a = [0.5, 0.2, 0.5] if k < 8 else others[k % 6]
    try:
        y = np.correlate(x, a, "same") + np.convolve(a, x, "same")
        return np.sum(np.polyval(a, y) * np.append(x, a)[:4]) + np.dot(a, x[: len(a)])
    except Exception as error:
        return np.sum(x) * len(type(error).__name__)


@simple
def blocks(x, k):
    s, y = x[0] * 2.0, x.reshape(2, 2) * 1.0
    one, row = [1.0, [[1.0]], np.ones((1, 1)), np.full((1, 1), 0.5 * k), s, 1][k % 6 if k > 6 else 0], x[:2]
    found = np.block([[y, [[0.5], [0.1 * (k > 12)]]], [row if k % 4 else row[None], one]])
    if k % 5 == 4:
        found[2, 0] = 3.0
    try:
        other = np.block([[y, y], [row]] if k % 7 == 6 else [row, [s, 0.5]][: 1 + (k % 3 > 0)])
    except Exception as error:
        return np.sum(found) * len(str(error))
    return np.sum(found * found) * np.sum(other)


@simple
def block_of_one(x, k):
    y = np.block(x if k % 3 else [x])
    y[0] = 2.0
    return np.sum(x * y)


@hostile
def constants_from_outside():
    """Tensors without histories, of which some are written to, are leaves, or lie in a user's array."""
    array = np.array([0.1, 0.2, 0.3, 0.4])
    a, b, s, shown = tg.tensor(array), tg.tensor(np.eye(4)), tg.tensor(0.5), tg.from_numpy(array)
    leaf, single = tg.tensor(array, requires_grad=True), tg.tensor(array, dtype=np.float32)

    def f(x, k):
        y = [a, leaf, single, shown, 1.0, array, tg.zeros(4), a[::-1], s, tg.tensor([1, 2, 3, 4])]
        y = y[k % 10 if k > 6 else 0]
        if k % 4 == 2:
            a[1] = 0.1 * k
            array[0] = 0.2 * k
        u = (x + y) * s - b @ x
        if k % 4 == 1:
            b[0, 1] = 1.0 * k
        u[1:3] = y[1:3] if k == 12 else a[1:3]
        u[0] = s if k % 3 else leaf[1]
        return np.sum(np.maximum(u, a) * x / s)

    return f, (a, b, array)
