"""More functions of the kind of `hostile`: of complex numbers, and what moves, joins and adds up elements."""

import numpy as np

import tapegrad as tg

from .hostile import hostile, simple

N = np.arange(4)


@simple
def spectrum(x, k):
    z = np.fft.fftshift(np.fft.fft(x * np.exp(1j * x[0] * N)))
    return np.sum(np.abs(z) ** 2 * np.angle(z)) + np.real(np.vdot(z, np.roll(z, 1)))


@simple
def characteristic(x, k):
    u = np.linspace(0.1, 5.0, 9)
    d = np.sqrt((x[0] * 1j * u - x[1]) ** 2 + (1j * u + u**2))
    g = (x[1] - d) / (x[1] + d + 3.0)
    return np.sum(np.real(np.log((1 - g * np.exp(-d)) / (1.5 - g)) / (1j * u)))


@simple
def numbers_that_change(x, k):
    return np.sum(np.real(x * (k + 2j) * (1j if k % 3 else 2.0)))


@simple
def a_complex_number_where_a_float_was(x, k):
    factor = 2.0 if k % 4 < 2 else 2.0 + 1j
    return np.sum(np.abs(x * factor) ** 2) + np.sum(np.real((x + 1j) * factor))


@hostile
def complex_array_that_changes():
    phases = np.exp(1j * N)

    def f(x, k):
        phases[k % 4] *= 1j
        return np.sum(np.imag(x * phases)) * (1.0 + np.abs(phases[0]))

    return f, phases


@simple
def lengths_at_zero(x, k):
    z = (x - x[k % 4]) * (1.0 + 1j)
    return np.sum(np.abs(z)) + np.sum(np.abs(z) ** 2)


@simple
def zeros_of_two_signs(x, k):
    z = x * 0.0 * (1.0 + 1j)
    return np.sum(np.arctan2(np.imag(z), np.real(z))) + np.sum(np.angle(-z))


@simple
def products_of_single_numbers(x, k):
    z, w = x[0] + 1j * x[1], x[2] - 2j * x[3]
    return np.real(z * w * z) + np.imag(w / (z + 3.0)) + np.abs(z * w) ** 2


@simple
def branch_on_a_phase(x, k):
    z = np.exp(1j * x * 3.0)
    return np.sum(np.real(z)) if np.angle(z[0]) > 0 else np.sum(np.imag(z * z))


@simple
def complex_products_of_matrices(x, k):
    m = np.outer(x, np.exp(1j * x))
    return np.real(np.trace(m @ m.conj().T @ m)) + np.abs(np.sum(m.T[1:] * m[:, 1:].T))


@simple
def chosen_complex_numbers(x, k):
    z = x * (1.0 + 2j)
    return np.sum(np.real(np.where(x > 0, z, np.conj(z)) + np.where(N % 2 == 0, z, 0.0)))


@simple
def errors_of_complex_numbers(x, k):
    z = x * 1j - (x[0] * 1j if k % 6 == 5 else 3.0)
    return np.sum(np.abs(np.log(z)) + np.abs(1 / z))


@simple
def errors_before_loops_that_clear_flags(x, k):
    y = x - (x[0] if k % 6 == 5 else 3.0)
    return np.sum(np.maximum(np.log(np.abs(y)), -3.0)) + np.max(np.abs(1.0 / (y + (k % 7 != 6))))


@simple
def raised_errors_of_complex_numbers(x, k):
    with np.errstate(divide="raise" if k % 6 == 5 else "ignore"):
        return np.sum(np.real(1j / (x - x[1] + (k % 6 != 5))))


@simple
def standing_one_on_another(x, k):
    rows = np.stack([np.stack([x[0], x[1] * 2.0, 0 * x[2]]), np.stack([x[3], x[0] * x[1], x[2]])])
    columns = np.stack([x, x * x, x[::-1]], axis=1)
    return np.sum(rows.T @ rows) + np.sum(columns[1:] * columns[:-1]) + np.sum(np.stack([x, 2 * x], axis=-1))


@simple
def taken_twice(x, k):
    y = (x * x)[np.array([0, 0, 3])]
    z = np.outer(x, x)[np.triu_indices(4, 1)]
    return np.sum(y * z[:3]) + np.sum(x[np.array([True, False, True, True])]) * x[np.array(2)]


@simple
def indices_that_change(x, k):
    return np.sum((x * x)[np.array([0, k % 3, 3])] * np.arange(1.0, 4.0))


@simple
def running_sums(x, k):
    m = np.outer(x, x)
    return (
        np.sum(np.cumsum(x) * x) + np.sum(np.cumsum(m, axis=0) * m) + np.sum(np.diff(np.cumsum(m.T, axis=1)))
    )


@simple
def lengths_and_means(x, k):
    m = np.outer(x, x + 1.0)
    y = m / np.linalg.norm(m, axis=1, keepdims=True) + np.mean(m, axis=0) - np.std(m, axis=1)
    return np.sum(y * m) + np.linalg.norm(x) * np.var(x) + np.mean(m)


@simple
def length_of_nothing(x, k):
    return np.linalg.norm(x - x * 1.0) + np.linalg.norm(x[:0]) + np.sum(x) + np.sum(np.stack([x[:0], x[:0]]))


@simple
def powers(x, k):
    y = np.abs(x) + 0.5
    whole, halves = np.array([0, 1, 2, 3]), np.array([-1.0, 0.5, 2.0, k * 0.25])
    return np.sum(y**3 + y**-1 + y**0.5 + y**2.0 + y**1 + y**whole + y**halves + y**-2.5) + np.sum(x**3)


@simple
def not_a_number(x, k):
    y = np.where(x > 0, x, np.nan if k % 3 == 2 else -1.0)
    return np.sum(np.cumsum(y)) + np.linalg.norm(y) + np.sum(np.real(y * 1j + y)) + np.mean(np.stack([y, x]))


@simple
def choices_of_other_dtypes(x, k):
    y = np.where(x > 0, x, 0) + np.where(np.array([1, 0, 2, 0]), x, N)
    return np.sum(y) + np.sum(np.where(N > 1, x.astype(np.float32), x))


@simple
def padded_and_moved(x, k):
    y = np.pad(np.roll(x, 1), 2) + np.pad(np.flip(x), (1, 3))
    return np.sum(y * np.tile(x, 2)) + np.sum(np.repeat(x, 2) * y) + np.trace(np.diag(x, 1)[:, 1:])


@simple
def a_row_fails_within(x, k):
    with np.errstate(all="raise" if k % 7 == 6 else "ignore"):
        y = x * (1e200 if k % 7 == 6 else 1.0)
        return np.sum(np.stack([y * 1.0, y * y]), axis=0)[0] + np.linalg.norm(y * y)


@simple
def of_a_tensor_inside(x, k):
    z = tg.tensor(np.array([1.0 + 1j, 2.0, 3j, k])) * x
    return np.sum(np.real(z * np.conj(z)))


@simple
def real_numbers_then_complex_ones(x, k):
    """Of NumPy's kind first, of Python's then."""
    number = np.float64(0.3) if k < 6 else 0.3j
    return np.sum(np.real(x * number) + np.abs(x[0] * 2j + number))
