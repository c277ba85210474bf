"""More functions of the kind of `hostile`: Tensors from outside without a derivative in calls."""

import numpy as np
import scipy.sparse

import tapegrad as tg
import tapegrad.scipy as ts

from .hostile import hostile, simple

CALLS_OF = (
    lambda x, c, m: np.where(m, x, c),
    lambda x, c, m: np.where(m, x * 2.0, 0.5),
    lambda x, c, m: np.concatenate([x, c])[2:6],
    lambda x, c, m: np.stack([c, x], axis=1)[:, 1],
    lambda x, c, m: np.dot(c, x) * x,
    lambda x, c, m: np.clip(x, -0.5, np.abs(c)),
    lambda x, c, m: np.maximum(x, c) * (x < c),
    lambda x, c, m: x * np.trapezoid(x, c),
    lambda x, c, m: np.average(x, weights=np.abs(c) + 1.0) + x,
    lambda x, c, m: np.linalg.solve(np.diag(x + 3.0), c),
    lambda x, c, m: np.convolve(x, c, mode="same"),
    lambda x, c, m: np.einsum("i,j->ij", x, c)[1],
    lambda x, c, m: np.interp(x, np.sort(c), x),
    lambda x, c, m: np.add(*np.broadcast_arrays(c, x)),
    lambda x, c, m: np.select([m, x > c], [x, c], x * 0.5),
    lambda x, c, m: np.polyval(c, x),
    lambda x, c, m: np.power(np.abs(x) + 0.1, c),
    lambda x, c, m: x.clip(c - 1.0, c + 1.0),
    lambda x, c, m: x.dot(c) + x,
)


def composed(x, c, m):
    return sum(np.sum(np.sin(function(x, c, m))) for function in CALLS_OF)


@simple
def constants_that_are_tensors(x, k):
    c = tg.tensor(np.linspace(-1.0, 1.0, 4) + 0.1 * (k % 3))
    return composed(x, c, tg.tensor([True, k % 2 == 0, False, True]))


@simple
def constants_that_are_now_arrays_and_then_tensors(x, k):
    c = np.linspace(-1.0, 1.0, 4) + 0.1 * (k % 3)
    m = np.array([True, k % 2 == 0, False, True])
    return composed(x, *((tg.tensor(c), m), (c, tg.tensor(m)), (c, m), (c, m))[k % 4])


@hostile
def constants_that_are_written_to():
    effects = {"c": tg.tensor(np.linspace(-1.0, 1.0, 4))}
    m = tg.tensor([True, False, False, True])

    def f(x, k):
        c = effects["c"]
        y = composed(x, c, m)
        c[k % 4] += 0.25
        return y + composed(x, c, m)

    return f, effects


@simple
def constants_that_come_to_require_grad(x, k):
    c = tg.tensor(np.linspace(-1.0, 1.0, 4), requires_grad=k % 6 == 3)
    y = np.where(tg.tensor([True, False, True, False]), x, c) * np.dot(c, x)
    return np.sum(np.concatenate([y, c * 0.5]))


@simple
def constants_of_other_dtypes_and_shapes(x, k):
    c = [
        tg.tensor([1, 2, 3, 4]),
        tg.tensor(np.linspace(0.0, 1.0, 4, dtype=np.float32)),
        tg.tensor(np.linspace(0.0, 1.0, 4)),
        tg.tensor(np.linspace(0.0, 1.0, 8))[::2],
        tg.tensor(0.5),
        tg.tensor([[0.5], [1.5]]),
        tg.tensor([True, False, True, True]),
        tg.from_numpy(np.linspace(0.0, 1.0, 4)),
    ][k % 8 if k > 8 else 2]
    y = np.where(x > 0.0, x, c) + np.maximum(x, c) + np.multiply(np.clip(x, -0.5, c), c)
    return np.sum(y) * np.sum(np.dot(c, x) if c.shape == (4,) else x)


@simple
def values_of_the_call_as_constants(x, k):
    y = x * 2.0
    c = y.detach() if k % 3 else y
    y = np.where(c > 0.5, y, c) + np.concatenate([c, y])[2:6]
    with tg.no_grad():
        z = np.sin(x)
    return np.sum(np.maximum(y, z) * np.dot(z, c))


@hostile
def a_constant_of_a_list_in_a_list():
    c, parts = tg.tensor(np.ones(4)), [tg.tensor(2.0), tg.tensor(0.5)]

    def f(x, k):
        parts[k % 2] = tg.tensor(0.1 * k)
        y = np.stack([x[0], parts[0], x[1], parts[1]])
        z = np.concatenate([[0.1 * k, 2.0], x])[:4] if k % 2 else np.concatenate([x[:2], c[:2]])
        return np.sum(y * z) + np.sum(np.stack([x, c, x], axis=k % 2))

    return f, {}


@simple
def a_constant_of_inference_mode(x, k):
    with tg.inference_mode():
        c = tg.tensor(np.ones(4)) * (1.0 + k)
    if k % 5 == 3:
        return np.sum(np.concatenate([x, c]) * 2.0)
    return np.sum(np.concatenate([x, tg.tensor(np.ones(4))]) * 2.0)


@simple
def operators_in_place_by_constants(x, k):
    c, y = tg.tensor(np.linspace(0.5, 1.0, 4) + 0.1 * k), x * 1.0
    y += c
    y *= tg.tensor(2.0) if k % 3 else c
    y[1:] = c[1:] * x[0]
    y[:2] = c[:2] if k % 4 == 1 else y[:2] * 0.5
    return np.sum(y * y)


@simple
def whole_numbers_that_are_compared(x, k):
    y, found = x, 0
    for j in range(6):
        at = np.argmax(y)
        limit = [2, True, 2.5, np.int64(1), 2**70, -(2**63), 1, tg.tensor(2)][(k // 3 + (j == 5)) % 8]
        found = at * 2 + found if j else at + k
        y = np.sin(y) * 1.5 if at > limit or found == j + k else y[::-1] * 0.9
    return np.sum(y) + 0.0 * int(found)


@hostile
def zeros_and_ones_that_are_written_to():
    kept = []

    def f(x, k):
        y = x
        for j in range(4):
            shape = (2, 4) if k % 7 == 6 and j == 2 else 4
            z = tg.zeros(shape) if j % 2 else tg.ones(shape, dtype=np.float32 if k % 5 == 3 else float)
            if z.shape == (4,):
                z = z + 0.0 * y
                z[1:] = np.sin(y[1:])
            y = z.sum(axis=0) if z.ndim == 2 else z * 0.5 + tg.zeros(1) * y
            y = y + (x if j == 3 else 0.0)
        if k in (11, 17):
            kept.append(tg.zeros(4))
            kept[-1][0] = 1.0 * k
            y = y * kept[-1] + kept[0]
        return np.sum(y) + np.sum(tg.zeros([4], requires_grad=k == 13))

    return f, kept


@simple
def sparse_systems(x, k):
    """Of matrices made anew, with other values, another pattern, and factors that are kept or not."""
    dense = np.diag([4.0, 5.0, 6.0, 7.0]) + 0.1 * (k % 3) * np.eye(4, k=1 if k % 7 == 6 else -1)
    matrix, factors = scipy.sparse.csc_array(dense), ts.sparse.linalg.splu(scipy.sparse.csc_array(dense.T))
    y = ts.sparse.linalg.spsolve(matrix, np.sin(x)) * 2.0
    y = y + factors.solve(x * y) + ts.sparse.linalg.cg(scipy.sparse.csr_array(np.diag(np.diag(dense))), y)[0]
    return np.sum(y * ts.sparse.linalg.spsolve(matrix * (1.0 + k), x))


@simple
def singular_systems(x, k):
    """In functions that go on after an error, beside another handling of errors of numbers."""
    y, a = x * 1.0, (np.diag(x) + x[:, None] * x) * (1.0 if k % 4 != 2 else 0.0)
    for function in (np.linalg.solve, np.linalg.inv, np.linalg.cholesky):
        with np.errstate(all=["warn", "ignore"][k % 2], divide="ignore"):
            y = y / (np.abs(y) + 1.0)
            try:
                y = function(a, y) if function is np.linalg.solve else function(a) @ y
            except np.linalg.LinAlgError as error:
                y = y * len(str(error))
        y = y / np.abs(y).max()
    return np.sum(y * x)


@simple
def handlings_of_errors_in_a_loop(x, k):
    y, seen = x, []
    for j in range(5):
        with np.errstate(divide="ignore", invalid="ignore" if j % 2 else "warn"):
            y = np.sin(y) / (y + 1.0)
            seen.append(f"{y[0]:.2f}{int(np.argmax(y))}{y[1].item() > 0.1}")
            if k % 6 == 5 and j == 3:
                y = np.log(y - y[0]) + x
        y = np.where(np.isfinite(y), y, x) + 0.1
    return np.sum(y) * len("".join(seen))


@simple
def numbers_of_some_types(x, k):
    """The type tells the dtype, and whether it gives way to that of an array."""
    y, z = x, x.astype(np.float32)
    for j in range(4):
        kinds = np.float32, np.float64, float, np.int64, np.complex128, complex, np.longdouble, np.uint8, bool
        number = kinds[(k // 2 if k > 9 and j == 2 else j) % len(kinds)](j + 1)
        y, z = np.sin(y) * number - k * 0.1j, z * number + np.float32(0.1 * k)
        y, z = np.real(y * np.complex128(0.3 + k)).astype(float), np.real(z).astype(np.float32)
    found = np.argmax(x) + np.int64(k) + (np.uint8(3) if k % 5 == 4 else np.int64(2))
    return np.sum(y * (found > np.int64(k + 3))) + np.sum(z).astype(float) ** np.float64(1.0 + k % 2)


@simple
def running_extremes(x, k):
    y = np.stack([x, x[::-1] * 0.5, np.sin(x * k), np.where(x > 0.4, np.nan if k % 6 == 5 else x, 1.0)])
    for j in range(3):
        y = np.maximum.accumulate(y, axis=j % 2) * 0.9 - np.minimum.accumulate(y, axis=k % 2)
    return np.sum(np.nan_to_num(y)) + np.maximum.accumulate(np.round(x * 2.0) / 2.0 * x)[2]
