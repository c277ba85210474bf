"""Arrays of every make, in every place an array can be given: the same numbers, or a clear error.

Over every registered op: as leaf (`from_numpy` and `tensor`), as constant operand and as cotangent. Then as
values written, and as indices.
"""

import datetime
import itertools
import mmap

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

import tapegrad as tg
from tapegrad.errors import DTypeError
from tapegrad.ops import REGISTRY
from tapegrad.ops.primitive import Elementwise
from tests.tiers import every

from . import checks
from .layouts import PLAIN, SCALAR, drawn

NAMES = sorted(REGISTRY)


# ---------------------------------------------------------------- makes: the same values in other arrays


class Own(np.ndarray):
    """A subclass with nothing of its own."""


class Loud(np.ndarray):
    """A subclass whose results would be wrong, were its overrides used where Tensors are computed with."""

    def __array_finalize__(self, obj):
        self.mark = 1

    def __getitem__(self, index):
        return np.ndarray.__getitem__(self, index) + 1000

    def copy(self, order="C"):
        return np.ndarray.copy(self, order) + 1000


def room(a):
    """Memory of twice the extents, filled with a number that would show."""
    return np.full([2 * n + 1 for n in a.shape], 77, a.dtype)


def gaps(a):
    out = room(a)[tuple(slice(0, 2 * n, 2) for n in a.shape)]
    out[...] = a
    return out


def reversed_(a):
    every = (slice(None, None, -1),) * a.ndim
    return np.ascontiguousarray(a[every])[every]


def shifted(a, by=1):
    out = np.ndarray(a.shape, a.dtype, bytearray(a.nbytes + 16), by)
    out[...] = a
    return out


def swapped(a):
    return a.astype(a.dtype.newbyteorder())


def readonly(a):
    a = a.copy()
    a.flags.writeable = False
    return a


def field(a):
    out = np.zeros(a.shape, [("before", "i1"), ("x", a.dtype), ("after", "i2")])
    out["x"] = a
    return out["x"]


def aligned_field(a):
    out = np.zeros(a.shape, np.dtype([("before", "i1"), ("x", a.dtype)], align=True))
    out["x"] = a
    return out["x"]


def mapped(a):
    out = np.frombuffer(mmap.mmap(-1, max(a.nbytes, 1)), a.dtype, a.size).reshape(a.shape)
    out[...] = a
    return out


def rolled(a):
    """Axes in another order in memory than in the shape."""
    order = [*range(1, a.ndim), 0][: a.ndim]
    return np.ascontiguousarray(a.transpose(order)).transpose(np.argsort(order))


def real(a):
    kind = np.complex64 if a.dtype == np.float32 else np.complex128
    return (a + 5j).astype(kind).real


def windows(a):
    """Overlapping rows: equal elements share memory."""
    if a.ndim < 1 or a.size == 0:
        return a
    line = np.resize(a.ravel(), sum(a.shape))
    return as_strided(line, a.shape, line.strides * a.ndim)


def repeated(a):
    """Stride 0 in all axes but the last."""
    return np.broadcast_to(a[(0,) * (a.ndim - 1)], a.shape) if a.size else a


def one(a):
    """Stride 0 in all axes."""
    return np.broadcast_to(a.ravel()[0], a.shape) if a.size else a


def odd_strides(a):
    """Strides of extents 1 may be anything."""
    return as_strided(a, a.shape, [s if n > 1 else 12345 for s, n in zip(a.strides, a.shape, strict=True)])


MAKES = {
    "gaps": gaps,
    "reversed": reversed_,
    "Fortran": np.asfortranarray,
    "rolled axes": rolled,
    "misaligned": shifted,
    "aligned to half": lambda a: shifted(a, a.itemsize // 2),
    "byte-swapped": swapped,
    "byte-swapped, misaligned and reversed": lambda a: reversed_(shifted(swapped(a), 3)),
    "read-only": readonly,
    "read-only bytes": lambda a: np.frombuffer(a.tobytes() or b"\0" * 8, a.dtype, a.size).reshape(a.shape),
    "mapped": mapped,
    "field": field,
    "aligned field": aligned_field,
    "real part": real,
    "windows": windows,
    "repeated rows": repeated,
    "one element": one,
    "odd strides": odd_strides,
    "subclass": lambda a: a.copy().view(Own),
    "subclass with overrides": lambda a: a.copy().view(Loud),
    "byte-swapped subclass": lambda a: swapped(a).view(Own),
    "dtype of its own": lambda a: a.astype(OWN_DTYPES["metadata"](a.dtype)),
}


OWN_DTYPES = {  # equal to NumPy's, and other objects
    "back from the other byte order": lambda dtype: dtype.newbyteorder().newbyteorder("="),
    "metadata": lambda dtype: np.dtype(dtype, metadata={"unit": "m"}),
}


def usual(a):
    """The same values in an array of the usual make."""
    return np.array(a.tolist(), a.dtype.newbyteorder("=")).reshape(a.shape)


def same(found, wanted, dtype):
    tolerance = {"rtol": 1e-12, "atol": 1e-13} if dtype == "float64" else {"rtol": 2e-5, "atol": 1e-6}
    found, wanted = checks.plain(found), checks.plain(wanted)
    assert type(found) is np.ndarray
    assert found.dtype == wanted.dtype
    assert found.shape == wanted.shape
    np.testing.assert_allclose(found, wanted, **tolerance)


def outcome(case, operands, seed=None):
    """Value, gradients, and the gradients of the recorded sweep and of those, or "singular"."""
    try:
        return derivatives(case, operands, seed)
    except np.linalg.LinAlgError:  # in the derivative only, where a factor has rounded to a singular one
        return "singular"


def derivatives(case, operands, seed):
    inputs = [x for x in operands if isinstance(x, tg.Tensor) and x.requires_grad]
    out = case.call(*operands)
    if not inputs:
        return [out]
    ct = checks.cotangent(case, out) if seed is None else seed
    firsts = tg.grad(out, inputs, ct, create_graph=True)
    total = sum(np.sum(g * g) for g in firsts)
    if total.requires_grad:
        firsts += tg.grad(total, inputs, materialize_grads=True, retain_graph=True)
    return [out, *firsts, *tg.grad(out, inputs, ct)]


def agree(found, wanted, dtype):
    if wanted == "singular":
        assert found == wanted
        return
    assert len(found) == len(wanted)
    for a, b in zip(found, wanted, strict=True):
        same(a, b, dtype)


def remade(case, make, wrap):
    """The operands, those that move made otherwise and wrapped; and the same values in plain arrays."""
    made, plain = list(case.operands), list(case.operands)
    for k in case.moves:
        array = make(np.array(case.values[k]))
        made[k] = wrap(array)
        plain[k] = tg.tensor(usual(array), requires_grad=True)
    return made, plain


LEAVES = {
    "from_numpy": lambda a: tg.from_numpy(a).requires_grad_(),
    "tensor": lambda a: tg.tensor(a, requires_grad=True),
    "asarray": lambda a: tg.asarray(a).requires_grad_(),
}


@pytest.mark.parametrize(("name", "make"), every(itertools.product(NAMES, MAKES), 8))
def test_leaves_constants_and_cotangents(name, make):
    made_of = MAKES[make]
    for dtype in ("float64", "float32")[: 2 if make in ("misaligned", "byte-swapped", "reversed") else 1]:
        for case in checks.sample(name, PLAIN, dtype)[:2]:
            for wrap in list(LEAVES.values())[: 3 if make in ("misaligned", "subclass") else 2]:
                made, plain = remade(case, made_of, wrap)
                agree(outcome(case, made), wanted := outcome(case, plain), dtype)
            if wanted == "singular":
                continue
            for k in case.moves[1:]:  # one operand a constant
                given = [made_of(np.array(v)) if j == k else plain[j] for j, v in enumerate(case.values)]
                wanted = outcome(case, [x.detach() if j == k else x for j, x in enumerate(plain)])
                agree(outcome(case, given), wanted, dtype)
            out = case.call(*case.operands)
            if case.moves and out.ndim:
                seed = made_of(checks.cotangent(case, out))
                wanted = outcome(case, case.operands, usual(seed))
                for given in (seed, tg.from_numpy(seed)):
                    agree(outcome(case, case.operands, given), wanted, dtype)


@pytest.mark.parametrize("dtype", ["float64", "float32", "complex128"])
@pytest.mark.parametrize("own", OWN_DTYPES)
def test_a_constant_first_whose_dtype_is_an_object_of_its_own(own, dtype):
    """NumPy gives that to the result: it was no record to a sweep, nor was what the thread recorded later."""
    for n in (1, 5, 600, 6000):
        c = (np.arange(1, n + 1) / n).astype(OWN_DTYPES[own](np.dtype(dtype)))
        assert c.dtype == dtype
        assert c.dtype is not np.dtype(dtype)
        for function in (np.multiply, np.add, np.subtract, np.divide, np.power, np.matmul):
            x = tg.tensor(np.linspace(0.5, 1.0, n).astype(dtype), requires_grad=True)
            found = derivatives_by(function, c, x)
            for a, b in zip(found, derivatives_by(function, usual(c), x), strict=True):
                np.testing.assert_array_equal(a, b)


def derivatives_by(function, c, x):
    out = function(c, x)
    (g,) = tg.grad(out, x, np.ones_like(out.detach().numpy()), create_graph=True)
    more = tg.grad(np.sum(np.abs(g * x) ** 2), x)
    return [v.detach().numpy() for v in (out, g, *more)]


@pytest.mark.parametrize("name", NAMES)
def test_arrays_of_no_dimension(name):
    """A 0-d ndarray, also byte-swapped, misaligned and of a subclass, is the scalar it holds."""
    cases = checks.sample(name, SCALAR, "float64")
    for case in cases if isinstance(cases, list) else []:
        for make in (swapped, shifted, readonly, field, MAKES["subclass"]):
            for wrap in LEAVES.values():
                made, plain = remade(case, make, wrap)
                agree(outcome(case, made), outcome(case, plain), "float64")


def test_a_file_in_memory(tmp_path):
    a = np.arange(1.0, 7.0).reshape(2, 3)
    a.tofile(tmp_path / "a")
    for mode in ("r", "r+", "c"):
        given = np.memmap(tmp_path / "a", float, mode, shape=(2, 3))
        x = tg.from_numpy(given).requires_grad_()
        y = np.sum(np.exp(x * 0.1) * given)
        (g,) = tg.grad(y, x)
        same(g, 0.1 * np.exp(0.1 * a) * a, "float64")
    assert np.fromfile(tmp_path / "a").tolist() == a.ravel().tolist()


# ---------------------------------------------------------------- arrays that are refused

REFUSED = {
    "objects": lambda a: a.astype(object),
    "structured": lambda a: np.zeros(a.shape, [("x", "f8"), ("y", "f8")]),
    "masked": lambda a: np.ma.array(a, mask=a > 0.5),
    "unmasked": lambda a: np.ma.array(a),
    "matrix": lambda a: a.reshape(1, -1).view(np.matrix),
    "text": lambda a: a.astype(str),
    "bytes": lambda a: a.astype("S8"),
    "dates": lambda a: np.full(a.shape, np.datetime64(datetime.date(2020, 1, 1))),
    "spans": lambda a: np.full(a.shape, np.timedelta64(3, "s")),
    "void": lambda a: np.zeros(a.shape, "V8"),
}


@pytest.mark.parametrize(("name", "make"), every(itertools.product(NAMES, REFUSED), 3))
def test_refused_as_operand_and_cotangent(name, make):
    for case in checks.sample(name, PLAIN, "float64")[:2]:
        for k in case.moves:
            bad = REFUSED[make](np.array(case.values[k]))
            with pytest.raises(DTypeError):
                tg.from_numpy(bad)
            if len(case.moves) > 1:
                given = list(case.operands)
                given[k] = bad
                with pytest.raises(DTypeError, match=r"dtype|rules of its own|no derivative"):
                    case.call(*given)
        if case.moves:
            out = case.call(*case.operands)
            with pytest.raises(DTypeError, match="gradient 0"):
                tg.grad(out, case.operands[case.moves[0]], REFUSED[make](np.ones(out.shape)))


# ---------------------------------------------------------------- sizes


@pytest.mark.parametrize("name", [n for n in NAMES if isinstance(REGISTRY[n], Elementwise)])
def test_64_dimensions(name):
    """As many as NumPy has."""
    shape = (1,) * 31 + (2,) + (1,) * 31 + (3,)
    case = checks.sample(name, PLAIN, "float64")[0]
    if name == "broadcast_to":  # to a shape of its own
        return
    wide, _ = remade(case, lambda a: a.reshape(shape), LEAVES["tensor"])
    turned, _ = remade(case, lambda a: a.reshape(shape).T, LEAVES["tensor"])
    for k, x in enumerate(case.operands):
        if k not in case.moves:  # a condition
            wide[k], turned[k] = x.reshape(shape), x.reshape(shape).T
    wanted = outcome(case, list(case.operands))
    found = outcome(case, wide, checks.cotangent(case, wanted[0]).reshape(shape))
    back = outcome(case, [x.T for x in turned], checks.cotangent(case, wanted[0]).reshape(shape))
    for a, b, c in zip(found, back, wanted, strict=True):
        same(checks.plain(a).reshape(2, 3), checks.plain(c), "float64")
        same(checks.plain(b).reshape(2, 3), checks.plain(c), "float64")


def test_64_dimensions_in_shapes_sums_and_indices():
    a = np.arange(1.0, 5.0)
    x = tg.tensor(a, requires_grad=True)
    wide = x.reshape((2,) + (1,) * 62 + (2,))
    for f in (
        lambda w: w.T, lambda w: np.sum(w, axis=tuple(range(1, 63))), lambda w: w[..., ::-1], lambda w: w * w,
        lambda w: np.broadcast_to(w, (2, *(1,) * 60, 2, 1, 2)), lambda w: np.squeeze(w),
        lambda w: np.max(w, axis=0), lambda w: np.concatenate([w, w], axis=63),
        lambda w: np.cumsum(w, axis=63), lambda w: w @ np.swapaxes(w, -1, -2),
    ):  # fmt: skip
        y = f(wide)
        np.testing.assert_array_equal(checks.plain(y), f(a.reshape(wide.shape)))
        (g,) = tg.grad(np.sum(y * y), x, retain_graph=True)
        (h,) = tg.grad(np.sum(y * y), x, create_graph=True)
        same(g, h, "float64")
    for call in (lambda: wide[None], lambda: np.stack([wide, wide]), lambda: np.expand_dims(wide, 0)):
        with pytest.raises((ValueError, IndexError), match=r"64|dim"):
            call()


# ---------------------------------------------------------------- values written, and indices


@pytest.mark.parametrize("make", MAKES)
def test_values_written(make, random):
    a = drawn(random, (2, 3), (-np.inf, np.inf), "float64")
    given = MAKES[make](a)
    plain = usual(given)
    for write in (
        lambda y, v: y.__setitem__(..., v), lambda y, v: y.__setitem__((slice(None), [2, 1, 0]), v),
        lambda y, v: y.__iadd__(v), lambda y, v: y.__imul__(v), lambda y, v: y.copy_(v),
        lambda y, v: y.T.__setitem__(slice(None, None, -1), v.T),
    ):  # fmt: skip
        found = []
        for value in (given, tg.from_numpy(given), plain):
            x = tg.tensor(np.full((2, 3), 1.5), requires_grad=True)
            y = x * 2.0
            write(y, value)
            found.append([y, *tg.grad(np.sum(y * y * y), x, materialize_grads=True)])
        for other in found[:2]:
            agree(other, found[2], "float64")


@pytest.mark.parametrize("make", [m for m in MAKES if m not in ("real part", "subclass with overrides")])
def test_indices(make):
    x = tg.tensor(np.arange(1.0, 13.0).reshape(3, 4), requires_grad=True)
    rows, mask = np.array([[2, 0, 2], [1, 1, 0]]), np.arange(12).reshape(3, 4) % 3 == 0
    for plain in (rows, rows.astype("i2"), rows.astype("u1"), rows[0] - 1, mask):
        given = MAKES[make](plain)
        for at in (given, tg.from_numpy(given)):
            read, written = [], []
            for i in (at, usual(given)):
                y = x * 1.0
                total = np.sum(y[i] ** 2)
                read.append([y[i], *tg.grad(total, x, retain_graph=True, materialize_grads=True)])
                y[i] = 5.0
                written.append([y, *tg.grad(np.sum(y * y), x)])
            agree(*read, "float64")
            agree(*written, "float64")


@pytest.mark.parametrize(
    "bad",
    [np.array(v) for v in ([0.0, 1.0], ["0"], [1j])] + [np.array([0, 1], object), np.zeros(2, [("x", "i4")])],
)
def test_indices_refused(bad):
    x = tg.tensor(np.arange(3.0), requires_grad=True)
    y = x * 1.0
    for call in (lambda: x[bad], lambda: y.__setitem__(bad, 1.0)):
        with pytest.raises((IndexError, TypeError)):
            call()
    assert y.tolist() == [0.0, 1.0, 2.0]


def test_what_is_recorded_of_an_operand_is_a_copy_whatever_its_make(random):
    """Written to after use, through every make that shares memory."""
    for name, make in MAKES.items():
        a = make(drawn(random, (2, 3), (-np.inf, np.inf), "float64"))
        if not a.flags.writeable or name in ("windows", "subclass with overrides"):
            continue
        before = usual(a)
        x, shared = tg.tensor(np.ones((2, 3)), requires_grad=True), tg.from_numpy(a).requires_grad_()
        y = np.sum(x * a * shared)
        a[...] = 1e9
        (g, h) = tg.grad(y, (x, shared))
        same(g, before * before, "float64")
        same(h, before, "float64")
