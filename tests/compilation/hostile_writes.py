"""More functions of the kind of `hostile`: writes to arrays, seen by other names, views and copies."""

import weakref

import numpy as np

import tapegrad as tg

from .hostile import hostile, simple


@simple
def sum_of_a_loop(x, k):
    total = 0.0
    for q in range(4):
        total += np.sin(x[q]) * q
    return total


@simple
def every_operator_in_place(x, k):
    y = x * 1.0
    y += x
    y -= 0.5
    y *= x[::-1]
    y /= 2.0 + np.sum(x * x)
    y **= 2
    return np.sum(y)


@simple
def scheme_with_slices(x, k):
    u = x.copy()
    for _ in range(6):
        u[1:-1] = u[1:-1] + 0.1 * (u[2:] - 2.0 * u[1:-1] + u[:-2])
    return np.sum(u * u)


@simple
def scheme_with_slices_in_place(x, k):
    u = x * 1.0
    for _ in range(6):
        u[1:-1] += 0.1 * (u[2:] - 2.0 * u[1:-1] + u[:-2])
    return np.sum(u * u)


@simple
def recurrence_of_elements(x, k):
    u = np.zeros_like(x)
    u[0] = x[0]
    for q in range(1, 4):
        u[q] = 0.5 * u[q - 1] + x[q] ** 2
    return np.sum(u * x)


@simple
def in_place_or_not(x, k):
    """By one name both are the same; by the other they are not."""
    a = x * 2.0
    b = a
    if k % 3:
        a /= 1.5
    else:
        a = a / 1.5
    return np.sum(a * b)


@simple
def view_or_copy(x, k):
    a = x * 2.0
    b = a.reshape(4) if k % 3 else a.copy()
    c = a + 1.0
    b[0] = 5.0
    return np.sum(a * b * c)


@simple
def view_or_copy_of_numpy(x, k):
    a = x * 2.0
    b = np.reshape(a, (2, 2)) if k % 3 else np.copy(a)
    b += 1.0
    return np.sum(a * a) * np.sum(b)


@simple
def other_index_at_each_call(x, k):
    a = x * 2.0
    a[k % 4] = np.sin(a[(k + 1) % 4])
    a[k % 2 :] *= 0.5
    return np.sum(a * a)


@hostile
def index_that_changes():
    order = np.array([0, 2])

    def f(x, k):
        a = x * 2.0
        a[order] = x[:2] * 3.0
        order[:] = (order + 1) % 4
        return np.sum(a * a * x)

    return f, order


@hostile
def values_that_change():
    values = np.zeros(2)

    def f(x, k):
        values[:] = k
        a = x * x
        a[1:3] = values
        values[:] = -1.0
        return np.sum(a * x)

    return f, values


@simple
def write_that_hangs_on_a_value(x, k):
    a = x * 2.0
    if a[0] > 0.7:
        a[1] = a[0]
    a *= x
    return np.sum(a)


@simple
def looked_at_before_and_after(x, k):
    a = x * 2.0
    before = float(np.sum(a.detach().numpy()))
    a[1] = before * x[0]
    after = a.detach().numpy().sum()
    a += after
    return np.sum(a * a)


@simple
def array_taken_before(x, k):
    a = x * 2.0
    seen = np.asarray(a.detach())
    first = seen.copy()
    a[0] = 3.0
    return np.sum(a * first)


@simple
def views_written_to(x, k):
    a = np.outer(x, x)
    row, column = a[1], a[:, 2]
    row *= 2.0
    column += x
    return np.sum(a * a) + np.sum(row * column)


@simple
def view_of_a_view(x, k):
    a = np.outer(x, x)
    part = a[1:]
    inner = part[:, 1:]
    inner -= 1.0
    part[0] = x
    return np.sum(a * a) - np.sum(inner)


@simple
def rows_written_to(x, k):
    a = np.outer(x, x)
    for row in a:
        row += x
    return np.sum(a * a)


@simple
def base_written_to_while_a_view_lives(x, k):
    a = x * 2.0
    v = a[1:3]
    a[1] = x[0]
    return np.sum(v * v) + np.sum(a)


@simple
def element_before_a_write(x, k):
    a = x * 2.0
    first, rest = a[0], a[1:] * 1.0
    a[0] = 7.0
    a[1:] = rest * first
    return np.sum(a * x)


@simple
def exchanged(x, k):
    a = x * 2.0
    a[0], a[1] = a[1], a[0]
    a[[2, 3]] = a[[3, 2]]
    a[1:] = a[:-1]
    return np.sum(a * x)


@hostile
def kept_by_others():
    seen = []

    def f(x, k):
        a = x * 2.0
        held = {"a": [a]}
        a *= 3.0
        held["a"][0] += x
        seen.append(float(np.sum(a.detach().numpy())))
        return np.sum(a * a)

    return f, seen


@hostile
def kept_after_the_call():
    kept = []

    def f(x, k):
        a = x * 2.0
        a += 1.0
        kept[:] = [a] if k % 4 == 3 else []
        a *= x
        return np.sum(a)

    return f, kept


@hostile
def seen_by_a_weak_reference():
    seen = []

    def f(x, k):
        a = x * 2.0
        r = weakref.ref(a)
        a += x
        seen.append(r() is a)
        return np.sum(r() * a)

    return f, seen


@simple
def argument_written_to(x, k):
    x += 1.0
    x[0] = 2.0
    return np.sum(x * x)


@simple
def copy_of_an_argument(x, k):
    y = x.copy()
    y += x
    y[0] = 0.0
    return np.sum(y * x)


@simple
def read_only(x, k):
    a = np.diag(np.outer(x, x))
    if k % 3 == 2:
        a[0] = 1.0
    return np.sum(a)


@simple
def diagonal_of_a_matrix(x, k):
    return np.corrcoef(x, x**3)[0, 1] + np.sum(np.sqrt(np.diag(np.outer(x, x).T + np.eye(4))))


@simple
def broadcast_written_to(x, k):
    a = np.broadcast_to(x, (2, 4))
    if k > 3:
        a = a * 1.0
    a[0] = 1.0
    return np.sum(a)


@simple
def shapes_that_do_not_fit(x, k):
    a = x * 2.0
    try:
        a[1:] = x[: 3 if k % 3 else 2]
    except ValueError:
        a[0] = 4.0
    a[k % 5] = 1.0
    return np.sum(a * x)


@simple
def other_dtypes(x, k):
    a = x.astype(np.float32)
    a[1:] = x[1:]
    a *= 1.1
    b = np.zeros_like(x)
    b[:2] = a[:2]
    b[2] = k
    return np.sum(b * x)


@simple
def unrecorded_write(x, k):
    a = x * 2.0
    with tg.no_grad():
        a[0] = 3.0
        a *= 2.0
    return np.sum(a * x)


@simple
def masks_as_indices(x, k):
    a = x * 2.0
    a[a > 0.5] = 0.25
    a[x < 0.0] *= 3.0
    return np.sum(a * a)


@simple
def functions_that_write(x, k):
    a = np.outer(x, x)
    np.add.at(a, ([0, 0], [1, 1]), x[0])
    np.fill_diagonal(a, x)
    np.copyto(a[1], x)
    a[2].fill_(2.0)
    np.put(a, [3, 4], x[:2])
    return np.sum(a * a)


@hostile
def array_from_outside():
    world = {"a": tg.zeros(4)}

    def f(x, k):
        a = world["a"]
        a[k % 4] = float(x[0])
        world["a"] = a.clone() if k % 5 else tg.zeros(4)
        return np.sum(world["a"] * x)

    return f, world


@simple
def array_of_zeros(x, k):
    a = tg.zeros(4)
    a[:2] = x[2:]
    a[2:] = k * x[0]
    return np.sum(a * x)


@simple
def long_loop(x, k):
    a, s = x * 1.0, 0.0
    for q in range(30):
        a[q % 4] = 0.9 * a[(q + 1) % 4] + 0.1 * a[q % 4]
        s += a[0] * a[0]
        a[:2] *= 1.01
    return s


@simple
def whole_rows_and_columns(x, k):
    a = np.zeros((4, 3)) + x[:, None]
    a[:, 1] = x * 2.0
    a[2] = x[:3]
    a[..., 0] -= 1.0
    a[1:, 1:] = a[:-1, :-1] * 1.0
    a[:, None, 2] = x[:, None]
    return np.sum(a * a)


@simple
def number_written_to(x, k):
    s = np.sum(x)
    t = s
    s += 1.0
    t[...] = 2.0 * x[0]
    return s * t


@simple
def method_of_writing(x, k):
    a = x * 2.0
    b = a.__iadd__(x)
    a.__setitem__(0, x[1])
    a.mul_(0.5).add_(1.0)
    a.copy_(b * x)
    return np.sum(a * b)


@simple
def diagonals_of_two_kinds(x, k):
    """One is a view that can be written to, the other is not."""
    a = np.outer(x, x) + np.eye(4)
    d = np.diagonal(a) if k % 2 else np.diag(a)
    try:
        d[0] = x[1]
    except ValueError:
        d = d * 2.0
    e = np.diag(a.T) if k // 2 % 2 else np.diagonal(a.T)
    try:
        e[1] = x[0]
    except ValueError:
        e = e * 3.0
    return np.sum(d * d) + np.sum(a * a) + np.sum(e)


@simple
def rolled_by_other_amounts(x, k):
    """What an index takes is another at each call, by a function whose calls are compared."""
    a = np.roll(x, k % 3) * x
    b = np.flip(a) if k % 2 else np.roll(a, 1)
    b[k % 4] = 2.0 * x[0]
    return np.sum(a * b) + a[np.argmax(np.asarray(x.detach()))]


@simple
def part_of_an_array_written_to_another_by_a_view(x, k):
    y = x * 2.0
    a = y[1:]
    a[0:2] = y[0:2]  # by this index the array itself has that part
    return np.sum(y * y * np.arange(4.0))


@simple
def part_of_a_view_in_another_shape_updated(x, k):
    y = np.sin(x)
    a = y.reshape(2, 2).T if k % 2 else y.reshape(2, 2)
    a[0, 1:] -= x[1:2] * k
    return np.sum(y * y * np.arange(4.0))


@hostile
def copy_of_a_number_and_the_number():
    seen = []

    def f(x, k):
        s = x[0] * 1.0
        t = s[...]
        for y in (t, s) if k % 5 == 4 else ():
            try:
                y[...] = x[1]
            except tg.errors.ReadOnlyError:
                seen.append(k)
        return s * t * np.sum(x)

    return f, seen


@simple
def copy_of_a_number_that_nobody_has(x, k):
    s = x[0] * 1.0
    s = s[...]
    if k % 5 == 4:
        s[...] = x[1]
    return s * np.sum(x)


@simple
def number_of_which_a_copy_has_gone(x, k):
    s = np.sum(x)
    t = np.broadcast_to(s, 1) * 1.0 + s[None] + np.atleast_1d(s)
    s[...] = x[0]
    return np.sum(t) * (s + np.sin(x[1]) if k % 5 == 4 else s)


@hostile
def number_of_which_a_copy_is_kept():
    seen, kept = [], []

    def f(x, k):
        s = np.sum(x)
        t = np.broadcast_to(s, 1)
        kept[:] = [t[...]] if k % 2 else [t]
        del t
        try:
            s[...] = x[0]
        except tg.errors.ReadOnlyError:
            seen.append(k)
        return s * kept[0][0]

    return f, seen
