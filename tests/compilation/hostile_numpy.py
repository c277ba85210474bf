"""More of them: what NumPy's functions take, and arrays of all kinds as operands."""

import math
import warnings

import numpy as np

import tapegrad as tg

from .hostile import hostile, simple

# ------------------------------------------------------------ ufuncs and their methods


@simple
def methods_of_ufuncs(x, k):
    return np.add.reduce(x) * np.multiply.reduce(x) + np.maximum.reduce(x) + np.sum(np.add.accumulate(x))


@simple
def outer_and_accumulate(x, k):
    m = np.multiply.outer(x, x) + np.add.outer(x, np.arange(4.0) * k)
    return np.sum(np.multiply.accumulate(m, axis=k % 2))


@simple
def reduced_over_changing_axes(x, k):
    m = np.outer(x, x + 1.0).reshape(2, 2, 4)
    return np.sum(np.add.reduce(m, axis=[0, 1, 2, (0, 1), (0, 2), None, -1][k % 7])) * np.sum(
        np.maximum.reduce(m, axis=np.int64(k % 3), keepdims=bool(k % 2))
    )


@simple
def reduced_from_a_beginning(x, k):
    y = np.abs(x)
    return np.sum(y, initial=float(k)) + np.max(y, initial=0.6) + np.prod(y, initial=[2, -0.0, 3.5][k % 3])


@simple
def reduced_where_something_holds(x, k):
    mask = np.array([True, k % 2 == 0, k % 3 == 0, True])
    return np.sum(x, where=mask) + np.mean(x * x, where=mask) + np.max(x, where=mask, initial=-1.0)


@simple
def reduced_where_values_say(x, k):
    return np.sum(x * x, where=np.asarray(x.detach()) > 0.1) + np.sum(x, where=x.detach().numpy() < 0.6)


@simple
def reduced_in_another_dtype(x, k):
    y = np.sum(x, dtype=[np.float32, None, np.float64, "f4"][k % 4])
    return y * np.mean(x * x, dtype=np.float64) + np.cumsum(x, dtype=float)[-1]


@simple
def ufunc_in_another_dtype(x, k):
    y = np.multiply(x, 2.0, dtype=np.float32 if k % 2 else np.float64)
    return np.sum(y.astype(float)) + np.sum(np.add(x, 1.0, casting="same_kind"))


@simple
def ufunc_where_something_holds(x, k):
    out = np.zeros(4)
    mask = np.array([True, False, k % 2 == 0, True])
    try:
        y = np.multiply(x, 2.0, where=mask, out=tg.tensor(out))
    except (TypeError, ValueError, NotImplementedError) as error:
        y = x * float(len(type(error).__name__))
    return np.sum(y)


@simple
def ufunc_into_a_tensor(x, k):
    y = x * 1.0
    z = np.multiply(x, 2.0 + k, out=y) if k % 2 else np.multiply(x, 2.0 + k)
    return np.sum(y * z)


@simple
def ufunc_into_an_operand(x, k):
    y = np.sin(x)
    np.add(y, x, out=y)
    np.multiply(y, y, out=y)
    return np.sum(y)


@simple
def reduction_into_a_tensor(x, k):
    y = tg.zeros(2)
    np.sum(np.outer(x, x)[:2], axis=1, out=y)
    return np.sum(y * y)


@simple
def ufuncs_with_two_results(x, k):
    y = x * 3.0
    whole, rest = np.divmod(y, 1.0 + k % 2)
    part, integral = np.modf(y)
    mantissa, exponent = np.frexp(y)
    return np.sum(rest * part) + np.sum(mantissa * x) + np.sum(whole) + np.sum(exponent) + np.sum(integral)


@simple
def steps_and_signs(x, k):
    y = x * 3.0
    return np.sum(np.floor(y) * x + np.ceil(y) + np.trunc(y) + np.rint(y) * x + np.sign(y) * x + np.fix(y))


@simple
def functions_of_two_kinds_of_operands(x, k):
    y = np.ldexp(x, k % 4) + np.copysign(x, [1.0, -1.0, -0.0][k % 3]) + np.heaviside(x, 0.5 * (k % 2))
    return np.sum(y * np.hypot(x, 2.0) + np.arctan2(x, 1.0 + k) + np.logaddexp(x, -x) + np.fmod(x, 0.4))


@simple
def at_without_a_result(x, k):
    y = x * 2.0
    np.add.at(y, [0, k % 4], x[:2])
    np.multiply.at(y, slice(0, 2), 3.0)
    return np.sum(y * y)


@hostile
def ufunc_of_a_python_function():
    seen = []

    def half(v):
        seen.append(float(v))
        return v / 2

    def f(x, k):
        values = np.frompyfunc(half, 1, 1)(x.detach().numpy()).astype(float)
        return np.sum(x * values)

    return f, seen


@simple
def vectorized(x, k):
    try:
        y = np.vectorize(lambda v: v * 2.0)(x)
        return np.sum(y)
    except Exception as error:
        return np.sum(x) * float(len(type(error).__name__))


@simple
def along_an_axis(x, k):
    m = np.outer(x, x + 1.0)
    return np.sum(np.apply_along_axis(lambda v: v * v[0], k % 2, m)) + np.sum(
        np.apply_over_axes(np.sum, m, [0, 1])
    )


# ------------------------------------------------------------ indices


@hostile
def index_array_written_between_calls():
    places = np.array([0, 1, 2])

    def f(x, k):
        places[k % 3] = (k * 7) % 4
        return np.sum(x[places] * np.arange(1.0, 4.0))

    return f, places


@hostile
def index_array_written_between_uses():
    places = np.array([0, 1, 2])

    def f(x, k):
        y = x[places]
        places[0] = 3
        z = x[places] * y
        places[0] = 0
        return np.sum(z)

    return f, places


@hostile
def index_list_written_between_calls():
    places = [0, 1, 2]

    def f(x, k):
        places[k % 3] = (k * 5) % 4
        return np.sum(x[places] * np.arange(1.0, 4.0)) + np.sum(np.take(x, places) * [1.0, 3.0, 2.0])

    return f, places


@hostile
def mask_written_between_calls():
    mask = np.array([True, False, True, True])

    def f(x, k):
        mask[k % 4] ^= True
        mask[(k + 1) % 4] ^= True  # as many as before, or not
        return np.sum(x[mask]) + np.sum(np.where(mask, x * x, x)) + np.sum(np.compress(mask, x))

    return f, mask


@hostile
def places_in_functions_written_between_calls():
    places, parts = np.array([[0, 1], [2, 3]]), np.array([1, 3])

    def f(x, k):
        places[k % 2] = places[k % 2, ::-1]
        parts[1] = 2 + k % 2
        y = np.take(x, places) * np.array([[1.0, 2.0], [3.0, 4.0]])
        first, *others = np.split(x * x, parts)
        z = np.take_along_axis(x.reshape(2, 2), places % 2, axis=1)
        return np.sum(y) + np.sum(first) + np.sum(z[0]) + sum(np.sum(part) * 2.0 for part in others)

    return f, [places, parts]


@hostile
def repeats_written_between_calls():
    counts, axes = np.array([1, 2, 0, 1]), [0, 1]

    def f(x, k):
        counts[:] = np.roll(counts, 1)
        axes.reverse()
        y = np.repeat(x, counts)
        return np.sum(y * y) + np.sum(np.transpose(np.outer(x, x + 1.0), axes)[0] * x)

    return f, counts


@simple
def indices_of_all_kinds(x, k):
    m = np.outer(x, x + 1.0)
    index = [
        1, (1, 2), slice(1, None), (slice(None), 2), np.int64(2), (None, 1), Ellipsis, [0, 2], (Ellipsis, -1),
        np.array([1, 3]), (np.array([0, 1]), np.array([2, 3])), np.array(2), slice(None, None, -2), True,
        (slice(1, 3), [0, 3]), np.array([True, False, True, False]), (0, Ellipsis), (), -1, (slice(3, 1),),
    ][k % 20]  # fmt: skip
    return np.sum(m[index] * 2.0) + m[0, 0]


@simple
def index_of_the_call(x, k):
    return x[k % 4] * x[-1 - k % 4] + np.sum(x[k % 2 :: 2]) + x[np.int32(k % 3)]


@simple
def bounds_of_the_call(x, k):
    return np.sum(x[k % 3 : k % 3 + 2] * x[: k % 3 + 1][-1]) + np.sum(
        x[slice(*[(0, 2), (1, None, 2)][k % 2])]
    )


@simple
def index_of_numbers_that_are_equal(x, k):
    index = [1, True, np.int64(1), np.array(1)][k % 4]
    m = np.outer(x, x + 2.0)
    return np.sum(m[index]) + np.sum(m[index, 1 if k % 2 else None])


@simple
def axes_that_are_equal(x, k):
    m = np.outer(x, x + 2.0)
    y = np.sum(m, axis=[1, -1, np.int64(1), 0][k % 4])
    return np.sum(y * np.arange(4.0)) + np.sum(
        np.sum(m, axis=(0, 1) if k % 2 else (1, 0), keepdims=k % 3 == 0)
    )


@simple
def choices_by_values(x, k):
    y = np.where(x > 0.2, x, x * 0.1) + np.select([x > 0.5, x > 0.0], [x * 2.0, x * 3.0], x)
    return np.sum(y) + np.sum(np.piecewise(x.detach().numpy(), [x.detach().numpy() > 0], [1.0, 2.0]) * x)


@simple
def orders_by_values(x, k):
    order = np.argsort(x)
    y = x[order] * np.arange(4.0)
    return np.sum(y) + x[np.argmin(x)] * x[np.argmax(np.abs(x))] + np.sum(np.partition(x, 1)[:2])


@simple
def sets_by_values(x, k):
    values = np.unique(np.round(x.detach().numpy(), 1))
    return np.sum(x) * len(values) + np.sum(x * np.digitize(x.detach().numpy(), [0.0, 0.4]))


@simple
def places_of_what_is_not_zero(x, k):
    y = np.maximum(x - 0.3, 0.0)
    return np.sum(y[np.nonzero(y)]) + np.sum(x) * np.count_nonzero(y) + np.sum(np.extract(x > 0.0, x) ** 2)


@simple
def bins_by_values(x, k):
    counts, _ = np.histogram(x.detach().numpy(), bins=3, range=(-1, 1))
    return np.sum(x[:3] * counts) + np.sum(np.interp(x, [-2.0, 0.0, 2.0], [0.0, 1.0, float(k)]))


# ------------------------------------------------------------ shapes and joins


@simple
def every_way_to_rearrange(x, k):
    m = np.outer(x, x + 1.0)
    way = [
        np.ravel, np.transpose, np.fliplr, np.flipud, lambda m: np.rot90(m, k), lambda m: np.roll(m, k, 1),
        lambda m: np.swapaxes(m, 0, 1), lambda m: np.expand_dims(m, 1), lambda m: np.squeeze(m[None]),
        lambda m: np.tile(m, (1, 2)), lambda m: np.repeat(m, 2, 0), lambda m: np.pad(m, k % 3),
        np.tril, np.triu, np.diag, lambda m: np.moveaxis(m[None], 0, -1), np.atleast_3d,
        lambda m: np.broadcast_to(m, (2, 4, 4)), lambda m: np.resize(m, (3, 3)), lambda m: m.reshape(2, -1),
    ][k % 20]  # fmt: skip
    y = way(m)
    return np.sum(y * np.arange(float(y.size)).reshape(y.shape))


@simple
def padded_in_all_ways(x, k):
    mode = ["constant", "edge", "reflect", "wrap", "symmetric", "linear_ramp"][k % 6]
    more = {"constant_values": float(k)} if mode == "constant" else {}
    y = np.pad(x, (1, k % 3), mode=mode, **more)
    return np.sum(y * np.arange(float(len(y))))


@simple
def joined_in_all_ways(x, k):
    other = np.arange(4.0) * k
    y = [np.concatenate, np.hstack, np.vstack, np.stack, np.column_stack, np.dstack][k % 6](
        [x, other, x * 2.0]
    )
    return np.sum(y * y) + np.sum(np.append(x, other)[3:6] * 2.0)


@simple
def joined_and_split(x, k):
    a, b = np.split(x, [1 + k % 3])
    c, d = np.array_split(np.concatenate([b, a]), 2)
    return np.sum(c * 2.0) + np.sum(d * d) + np.sum(np.block([[x[:2], x[2:]], [x[2:], x[:2]]])[0])


@simple
def meshes_and_broadcasts(x, k):
    a, b = np.meshgrid(x, np.arange(2.0 + k % 2))
    c, d = np.broadcast_arrays(x, np.ones((2, 1)) * k)
    return np.sum(a * b) + np.sum(c * d) + np.sum(np.indices((2, 2))[0] * x[:2])


@simple
def arrays_like_tensors(x, k):
    y = np.sin(x)
    made = [np.zeros_like, np.ones_like, lambda v: np.full_like(v, float(k)), lambda v: tg.ones_like(v)][
        k % 4
    ](y)
    return np.sum(y * made) + np.sum(np.ones(y.shape, y.dtype) * y) + np.size(y) + np.ndim(y) + np.shape(y)[0]


@simple
def arrays_of_parts(x, k):
    m = tg.array([[x[0], 1.0], [x[1] * 2.0, float(k)]])
    return np.sum(m @ np.ones(2)) + np.sum(tg.array([x, x * 2.0])[k % 2])


@simple
def empty_arrays(x, k):
    y = x[4:] * 2.0
    return (
        np.sum(y)
        + np.sum(x) * np.prod(y)
        + np.sum(np.concatenate([y, x, np.zeros(0)]))
        + np.sum(x[:0] @ x[:0])
    )


@simple
def arrays_without_axes(x, k):
    a, b = np.array(float(k)), np.array(k)
    return (
        np.sum(x * a)
        + np.sum(x) * b
        + x[0] * a
        + (x[1] + np.array(2.0, np.float32))
        + np.sum(a * x[..., None])
    )


@simple
def numbers_by_broadcasting(x, k):
    return np.sum(x[:1] * np.ones((3, 1)) * x) + np.sum(x[:, None] + np.ones((1, k % 3 + 1)))


@simple
def sliding_windows(x, k):
    windows = np.lib.stride_tricks.sliding_window_view(np.arange(6.0) * k, 4)
    return np.sum(windows @ x) + np.sum(np.convolve(x, np.array([1.0, -1.0, 0.5])[: 1 + k % 3], "same"))


# ------------------------------------------------------------ what is an operand


@simple
def operands_of_every_dtype(x, k):
    kind = "?bBhHiIlLqQefd"[k % 14]
    a = (np.arange(4) % 2).astype(kind)
    return np.sum(x * a) + np.sum(x + a) + np.sum(a @ x) + np.sum(x * a[1])


@simple
def numbers_of_every_dtype(x, k):
    c = np.dtype("?bBhHiIlLqQefd"[k % 14]).type(1)
    return np.sum(x * c) + np.sum(c - x) + np.sum((x.astype(np.float32) * c).astype(float))


@simple
def complex_operands(x, k):
    z = x * np.array([1.0, 1j, 2.0, 1 - 1j]) if k % 3 else x * np.arange(4.0)
    return np.sum(np.abs(z + 2.0)) + np.sum(np.real(z * np.conj(z)))


@simple
def in_single_precision(x, k):
    y = x.astype(np.float32)
    z = y * [2, 2.0, np.float32(2), np.float64(2), np.array(2.0), True][k % 6] + np.ones(4, np.float32)
    return np.sum(np.sin(z)).astype(np.float64)


@simple
def in_half_precision(x, k):
    y = x.astype(np.float16) * np.float16(1.5)
    return np.sum(y.astype(np.float64)) + np.sum((x.astype(np.longdouble) * 2).astype(float))


@simple
def kinds_of_numbers_alternate(x, k):
    y = x.astype([np.float32, np.float64, np.complex128][k % 3])
    return np.sum(np.abs(y * 2.0)).astype(float)


@hostile
def array_is_exchanged_for_its_view():
    a = np.arange(8.0)

    def f(x, k):
        return np.sum(x * [a[:4], a[4:], a[::2], a[::-2], a.reshape(2, 4)[0], a.copy()[:4]][k % 6])

    return f, a


@simple
def arrays_that_only_read(x, k):
    a = np.arange(4.0) * k
    a.flags.writeable = False
    b = np.broadcast_to(float(k), 4)
    return np.sum(x * a) + np.sum(x + b) + np.sum(np.concatenate([a, x]) * 2.0)


@simple
def arrays_in_other_byte_orders(x, k):
    a = np.arange(4.0).astype([">f8", "<f8"][k % 2])
    try:
        return np.sum(x * a)
    except Exception as error:
        return np.sum(x) * float(len(type(error).__name__))


@simple
def fields_of_structures(x, k):
    rows = np.array([(1.0, k), (2.0, 3), (4.0, 5), (6.0, 7)], dtype=[("a", float), ("b", np.int16)])
    return np.sum(x * rows["a"]) + np.sum(x * rows["b"])


@hostile
def masked_arrays_and_matrices():
    def f(x, k):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            a = [np.ma.masked_array(np.arange(4.0), [0, 1, 0, 0]), np.matrix(np.eye(4)), np.arange(4.0)][
                k % 3
            ]
        try:
            return np.sum(x * a) if k % 3 != 1 else np.sum(a @ x)
        except TypeError:
            return np.sum(x) * 7.0

    return f, None


@hostile
def views_of_bytes():
    memory = bytearray(np.arange(4.0).tobytes())
    a = np.frombuffer(memory)

    def f(x, k):
        memory[:8] = np.float64(k).tobytes()
        return np.sum(x * a)

    return f, memory


@hostile
def arrays_of_all_sizes():
    arrays = [np.linspace(0, 1, n) for n in (511, 512, 513, 2047, 2048, 2049, 4096)]

    def f(x, k):
        a = arrays[k % 7]
        a[k % 3] = float(k)
        return np.sum(a * x[0]) + np.sum(np.sin(x[1] * a)) * 0.1

    return f, None


@hostile
def large_array_between_calls():
    a = np.linspace(0.0, 1.0, 10_000)

    def f(x, k):
        return np.sum(np.outer(a, x)[:, 0] * a) * 1e-3 + np.sum(x * x)

    def g(x, k):
        a[k::100] += 1.0
        return f(x, k)

    return g, None


@hostile
def large_array_is_read_by_two():
    a = np.linspace(0.0, 1.0, 10_000)

    def f(x, k):
        a[0] = float(k)
        return np.sum(a * x[0]) * np.sum(a + x[1]) * 1e-6 + np.sum((a * 2.0) * np.sin(a * x[2])) * 1e-3

    return f, None


@hostile
def large_array_where_no_derivative_reads_it():
    a = np.linspace(0.0, 1.0, 10_000)

    def f(x, k):
        y = np.sum(a + x[0]) + np.sum(x[1] - a)
        a[3] += 1.0
        return y + np.sum(a + x[2])

    return f, None


@hostile
def array_is_freed_and_made_again():
    def f(x, k):
        total = 0.0
        for n in range(3):
            total = total + np.sum(x * np.full(4, float(n + k)))  # often where the one before was
        return total

    return f, None


@hostile
def two_names_of_one_array():
    a = np.arange(4.0)
    b = a

    def f(x, k):
        c = b if k % 3 else a.copy()
        a[0] = float(k)
        return np.sum(x * a) * np.sum(x + c)

    return f, None


# ------------------------------------------------------------ numbers at their limits


@simple
def zeros_with_signs(x, k):
    y = x * 0.0
    return np.sum(np.arctan2(y, [-1.0, 1.0][k % 2])) + np.sum(np.copysign(x, -0.0 if k % 3 else 0.0)) + y[0]


@simple
def attributes_that_are_zero(x, k):
    zero = -0.0 if k % 2 else 0.0
    y = np.nan_to_num(np.where(np.arange(4) == 1, np.nan, x), nan=zero)
    return np.sum(y) + np.sum(np.copysign(2.0, np.clip(x * 0.0, zero, None)) * x)


@simple
def exponents_that_are_zero(x, k):
    return np.sum((x + 2.0) ** (-0.0 if k % 2 else 0.0)) + np.sum(
        np.power(x + 2.0, [0, 1, False, True][k % 4])
    )


@simple
def nan_somewhere(x, k):
    y = x * np.array([1.0, math.nan if k % 3 == 2 else 1.0, 1.0, 1.0])
    return np.nansum(y) + np.sum(np.where(np.isnan(y), 0.0, y)) + np.fmax(y, 0.1)[1] + np.nanmean(y)


@simple
def nan_in_maxima(x, k):
    y = x * (math.nan if k % 4 == 3 else 1.0)
    return np.max(y) + np.min(y) + np.sum(np.maximum(y, 0.1))


@simple
def infinities(x, k):
    c = [1.0, math.inf, -math.inf][k % 3]
    with np.errstate(invalid="ignore", over="ignore"):
        return np.sum(np.tanh(x * c)) + np.sum(np.exp(-np.abs(x * c)))


@simple
def ties(x, k):
    y = np.round(x, 1) * 0.0 + [0.5, 1.0][k % 2]
    return np.max(x - x) + np.sum(np.maximum(x * 0.0, 0.0)) + np.max(np.concatenate([y, y])) + np.sum(x)


@simple
def underflow_and_overflow(x, k):
    with np.errstate(all="ignore"):
        return np.sum(np.exp(x * 800.0 * (k % 2))) + np.sum(x * 1e-310) + np.sum(np.abs(x) * 1e-200 * 1e-200)


@hostile
def errors_that_call():
    seen = []

    def note(kind, flag):
        seen.append((kind, flag))

    def f(x, k):
        before = np.seterrcall(note)
        try:
            with np.errstate(divide="call", invalid="call"):
                return np.sum(np.log(x * (0.0 if k % 3 == 2 else 1.0) + 2.0 * (k % 3 != 2)))
        finally:
            np.seterrcall(before)

    return f, seen


@hostile
def errors_change_on_the_way():
    def f(x, k):
        with np.errstate(divide="ignore"):
            y = 1.0 / (x - x[0])
        z = np.where(np.isinf(y.detach().numpy()), 0.0, 1.0)
        if k % 3 == 2:
            with np.errstate(divide="raise"):
                try:
                    y = 1.0 / (x - x[1])
                except FloatingPointError:
                    return np.sum(x) * 3.0
        return np.sum(x * z)

    return f, None


@simple
def errors_are_set_for_good(x, k):
    before = np.seterr(all="ignore" if k % 2 else "warn")
    y = np.sum(np.log(x * 0.0 + (k % 3)))
    np.seterr(**before)
    return y * np.sum(x) if np.isfinite(y.item()) else np.sum(x)


@simple
def warning_becomes_an_error(x, k):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            return np.sum(np.sqrt(x))
        except RuntimeWarning as warning:
            return np.sum(x) * float(len(str(warning)))


@hostile
def print_options_decide():
    def f(x, k):
        with np.printoptions(precision=1 + k % 3):
            text = str((x * 1.2345).detach().numpy())
        return np.sum(x) * len(text)

    return f, None


# ------------------------------------------------------------ random numbers


@hostile
def global_random_state():
    def f(x, k):
        np.random.seed(k % 5)  # noqa: NPY002
        y = x * np.random.normal(size=4)  # noqa: NPY002
        np.random.seed(3)  # noqa: NPY002
        return np.sum(y) + np.random.rand() * x[0]  # noqa: NPY002

    return f, None


@hostile
def random_shapes():
    random = np.random.default_rng(0)

    def f(x, k):
        a = random.normal(size=(random.integers(1, 4), 4))
        return np.sum((a @ x) ** 2)

    return f, None


@hostile
def random_order():
    random = np.random.default_rng(1)

    def f(x, k):
        order = random.permutation(4)
        return np.sum(x[order] * np.arange(4.0)) + np.sum(random.choice([1.0, 2.0], 4) * x)

    return f, None


@hostile
def random_branch():
    random = np.random.default_rng(2)

    def f(x, k):
        y = np.sin(x) if random.random() < 0.5 else np.cos(x)
        return np.sum(y) + (np.sum(y * y) if random.random() < 0.5 else np.prod(y))

    return f, None


@hostile
def random_numbers_by_values():
    random = np.random.default_rng(4)

    def f(x, k):
        total = np.sum(x)
        for v in x:
            if random.random() < abs(v.item()):
                total = total + v * v
        return total

    return f, None


# ------------------------------------------------------------ linear algebra and transforms


@simple
def norms_of_all_kinds(x, k):
    order = [None, 1, 2, np.inf, -np.inf, 3][k % 6]
    return np.linalg.norm(x + 3.0, order) + np.linalg.norm(
        np.outer(x, x) + np.eye(4), [None, "fro", 1][k % 3]
    )


@simple
def products_of_all_kinds(x, k):
    m = np.outer(x, x + 1.0)
    return (
        np.sum(np.dot(m, x))
        + np.inner(x, x)
        + np.vdot(x, x)
        + np.sum(np.tensordot(m, m, axes=k % 3)) * 0.1
        + np.sum(np.kron(x[:2], x[2:]))
        + np.trace(np.linalg.matrix_power(m, k % 4))
        + np.cross(x[:3], x[1:])[0]
    )


@simple
def stacks_of_matrices(x, k):
    m = np.outer(x, x).reshape(1, 4, 4) + np.eye(4) * np.arange(1.0, 4.0)[:, None, None]
    return np.sum(m @ m @ x) + np.sum(np.linalg.solve(m, np.ones((4, 1 + k % 2)))) + np.sum(np.linalg.det(m))


@simple
def contractions_that_change(x, k):
    m = np.outer(x, x + 1.0)
    text = ["ij,j->i", "ij,ij->", "ij,ji->i", "ii,i->i", "ij,kj->ik"][k % 5]
    other = x if text.split(",")[1][0] in "j" and "->i" in text and len(text) == 7 else m
    other = x if text in ("ij,j->i", "ii,i->i") else other
    return np.sum(np.einsum(text, m, other, optimize=bool(k % 2)))


@simple
def least_squares(x, k):
    a = np.vander(np.linspace(0, 1, 4), 2)
    found = np.linalg.lstsq(a, x * float(1 + k), rcond=None)[0]
    return np.sum(found * found) + np.sum(np.linalg.pinv(np.outer(x, [1.0, 2.0]) + a))


@simple
def singular_values(x, k):
    m = np.outer(x, x + 1.0) + np.diag(np.arange(1.0, 5.0))
    return np.sum(np.linalg.svd(m, compute_uv=False)) + np.sum(np.abs(np.linalg.svd(m)[0]) if k % 2 else 0.0)


@simple
def singular_matrix_at_times(x, k):
    m = np.outer(x, x) if k % 3 == 2 else np.outer(x, x) + np.eye(4)
    try:
        return np.sum(np.linalg.inv(m - (m if k % 3 == 2 else 0.0)))
    except np.linalg.LinAlgError as error:
        return np.sum(x) * float(len(str(error)))


@simple
def transforms_of_all_lengths(x, k):
    y = np.fft.rfft(x, n=3 + k % 4)
    return np.sum(np.abs(y) ** 2) + np.sum(np.fft.irfft(y, n=4) * x) + np.fft.fftshift(x)[0]


@simple
def polynomials_and_sums(x, k):
    return (
        np.polyval(x, 0.5 + k)
        + np.trapezoid(x, dx=0.1)
        + np.sum(np.diff(x, n=1 + k % 2))
        + np.sum(np.gradient(x))
        + np.sum(np.cumprod(x + 1.0))
        + np.sum(np.ediff1d(x))
        + np.sum(np.correlate(x, x[:2]))
    )


@simple
def statistics(x, k):
    m = np.outer(x, x + 1.0)
    return (
        np.percentile(x, [25, 50, 80][k % 3])
        + np.quantile(x, 0.3 + 0.05 * (k % 4))
        + np.average(x, weights=[1, 2, 3, k])
        + np.sum(np.cov(m[:2]))
        + np.ptp(x)
        + np.std(x, ddof=k % 2)
        + np.var(m, axis=k % 2)[0]
        + np.median(m, axis=0)[1]
    )


@simple
def special_functions(x, k):
    return (
        np.sum(np.sinc(x)) + np.sum(np.i0(x)) + np.sum(np.unwrap(x * 10.0)) + np.sum(np.cbrt(x) + np.exp2(x))
    )


@simple
def exponent_that_is_computed(x, k):
    s = np.sum(x).item()
    y = np.abs(x) + 0.5
    return np.sum(y**s) + np.sum(np.power(y, s * 0.5)) * y[0] ** (s + 0.5) + y[1] ** 1.5


@simple
def exponents_of_some_kinds(x, k):
    y = np.abs(x) + 0.5
    p = [0.5, -1.0, np.float64(0.5), 3, 1.0, 0.25, 2.5, np.float64(2.5), np.float32(0.5), 0.0][k % 10]
    return np.sum(y**p) * y[0] ** p


@simple
def exponent_is_a_square_at_times(x, k):
    return np.sum((x * x + 0.1) ** [1.5, 2.0, 2.5, 0.3][k % 4])


@simple
def numbers_in_single_precision_then_others(x, k):
    """Of which Python's are doubles beside doubles."""
    number = np.float32(0.3) if k < 6 else [0.3, 2**40 + 1, np.array(0.3, np.float32), 1e300][k % 4]
    y = x[0] * 0.0 + 0.300000001
    return np.sum(x * number) + np.sum(np.where(x > 0.2, x, number)) + y * (y > number) + x[1] / number
