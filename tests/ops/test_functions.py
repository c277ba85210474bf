"""NumPy's functions and ndarray's methods on Tensors: value, first and second derivatives, refusals."""

import io
import itertools
import warnings

import numpy as np
import pytest

import tapegrad as tg
from tapegrad import errors
from tapegrad.core import functions as fn
from tapegrad.core.indices import plain_index
from tests.numpy_api import (
    rows,
    test_building,
    test_contractions,
    test_histograms,
    test_numerics,
    test_polynomials,
    test_quantiles,
    test_sorting,
    test_statistics,
)
from tests.tiers import every, thinned

from . import calls, calls_linalg, calls_ufuncs

FAMILIES = (
    test_building,
    test_contractions,
    test_histograms,
    test_numerics,
    test_polynomials,
    test_quantiles,
    test_sorting,
    test_statistics,
)
TABLES = {
    "ufuncs": calls.UFUNCS, "reductions": calls.REDUCTIONS, "shapes": calls.SHAPES,
    "choices": calls.CHOICES, "products": calls.PRODUCTS, "elementwise": calls_ufuncs.ROWS,
    "linalg": calls_linalg.LINALG, "fft": calls_linalg.FFT,
}  # fmt: skip
ROWS = [(f"{table}: {name}", f, shapes) for table, rows in TABLES.items() for name, f, shapes in rows]


def drawn(random, shape):
    """Numbers apart from each other and from 0; by name positive, or a matrix that is easy to invert."""
    kind = shape[0] if shape and isinstance(shape[0], str) else None
    shape = shape[1] if kind else shape
    size = int(np.prod(shape))
    found = random.permutation(np.linspace(-1.3, 1.3, 2 * size + 1)[1::2]) + random.uniform(-0.01, 0.01, size)
    found = np.where(np.abs(found) < 0.1, 0.17, found).reshape(shape)
    if kind == calls.POSITIVE:
        return np.abs(found) + 0.4 + 0.003 * found
    return found / 3 + 2 * np.eye(shape[-1]) if kind == calls.SQUARE else found


def leaves(random, shapes):
    return [tg.tensor(drawn(random, s), requires_grad=True) for s in shapes]


class Methods(np.ndarray):
    """An array that has torch's names too, so that one function serves both."""

    def __array_finalize__(self, obj):
        for name in ("exp", "log", "sqrt", "sin", "cos", "tanh", "abs"):
            setattr(self, name, lambda f=getattr(np, name): f(self))


@pytest.mark.parametrize("row", every([(row,) for row in ROWS], 2), ids=[row[0] for row in ROWS])
def test_call(row, random):
    _, function, shapes = row
    inputs = leaves(random, shapes)
    out = function(*inputs)
    assert isinstance(out, tg.Tensor)
    assert out.requires_grad
    wanted = np.asarray(function(*(x.detach().numpy().view(Methods) for x in inputs)))
    assert out.shape == wanted.shape
    assert out.dtype == wanted.dtype
    unit = 1e-12 if row[0].startswith("linalg") else 1e-14
    np.testing.assert_allclose(out.detach().numpy(), wanted, rtol=unit, atol=unit / 10)
    assert tg.gradcheck(function, inputs, atol=1e-7, rtol=1e-6)
    assert tg.gradgradcheck(function, inputs, atol=1e-7, rtol=1e-6)


@pytest.mark.parametrize(
    ("row", "where"), every(itertools.product(ROWS, ("forward", "backward")), 5),
    ids=[f"{row[0]}-{where}" for row in ROWS for where in ("forward", "backward")],
)  # fmt: skip
def test_G14_a_call_out_of_sight_refuses_a_second_derivative(row, where, random):
    """What a Function computes where nothing is recorded must not come back as a constant."""
    _, function, shapes = row

    class E(tg.autograd.Function):
        @staticmethod
        def forward(ctx, *inputs):
            ctx.save_for_backward(*inputs)
            ctx.h = function(*inputs)
            return inputs[0] * 1.0

        @staticmethod
        def backward(ctx, g):
            h = ctx.h if where == "forward" else function(*(x.detach() for x in ctx.saved_tensors))
            return g * abs(h).sum(), *[None for _ in ctx.saved_tensors[1:]]

    inputs = leaves(random, shapes)
    (g,) = tg.grad(E.apply(*inputs).sum(), inputs[0], create_graph=True)
    with pytest.raises(tg.errors.GradientError, match="second derivative"):
        tg.grad(g.sum(), inputs, allow_unused=True)


SINGLE = thinned(  # rows in turn, but for factorisations: their kernels compile for seconds in each dtype
    [(row,) for row in ROWS], lambda row: ROWS.index(row) % 4 == 0 and not row[0].startswith("linalg")
)


@pytest.mark.parametrize("row", SINGLE, ids=[row[0] for row in ROWS])
def test_call_in_single_precision(row, random):
    """Results have NumPy's dtype; gradients have that of their operands."""
    _, function, shapes = row
    inputs = [tg.tensor(x.detach().numpy().astype("f"), requires_grad=True) for x in leaves(random, shapes)]
    out = function(*inputs)
    wanted = np.asarray(function(*(x.detach().numpy().view(Methods) for x in inputs)))
    assert out.dtype == wanted.dtype
    np.testing.assert_allclose(out.detach().numpy(), wanted, rtol=1e-5, atol=1e-5)
    wide = [tg.tensor(x.detach().numpy().astype(float), requires_grad=True) for x in inputs]
    ct = np.ones(out.shape)
    for record in (False, True):
        pairs = zip(
            tg.grad(out, inputs, ct, create_graph=record, retain_graph=True),
            tg.grad(function(*wide), wide, ct),
            strict=True,
        )
        for found, exact in pairs:
            assert found.dtype == np.float32
            np.testing.assert_allclose(found.detach().numpy(), exact.numpy(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("ddof", [2, 3, 5])
@pytest.mark.parametrize("function", [np.var, np.std])
def test_too_few_degrees_of_freedom(function, ddof):
    """NumPy divides by 0 then, and never by less."""
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wanted = function(np.array([0.5, 2.0]), ddof=ddof)
        found = function(tg.tensor([0.5, 2.0], requires_grad=True), ddof=ddof)
    np.testing.assert_array_equal(found.detach().numpy(), wanted)


INDICES = [i for _, i in calls.INDEX]


@pytest.mark.parametrize("index", INDICES, ids=[name for name, _ in calls.INDEX])
def test_index(index, random):
    plain = plain_index(index)
    (x,) = leaves(random, [calls.T3])
    out = x[index]
    wanted = x.detach().numpy()[plain]
    assert out.shape == wanted.shape
    np.testing.assert_array_equal(out.detach().numpy(), wanted)
    assert tg.gradcheck(lambda x: x[index], [x])
    assert tg.gradcheck(lambda x: x.T[::-1][index].sum() * 2.0, [x]) or wanted.size == 0
    assert tg.gradgradcheck(lambda x: np.sin(x)[index], [x])
    counted = np.zeros(x.shape)
    np.add.at(counted, plain, 1.0)
    (g,) = tg.grad(np.sum(out), x)
    np.testing.assert_array_equal(g.numpy(), counted)


def test_an_index_array_may_change_after_the_call():
    x, index = tg.tensor([1.0, 2.0, 3.0], requires_grad=True), np.array([0, 0])
    y = x[index]
    index[:] = 2
    (g,) = tg.grad(np.sum(y), x)
    np.testing.assert_array_equal(g.numpy(), [2.0, 0.0, 0.0])


class Place:
    """Stands for an integer."""

    number = 1

    def __index__(self):
        return self.number


INDICES_OF = [lambda i: i, lambda i: (i, 0), lambda i: slice(i, None), lambda i: (0, slice(i))]


@pytest.mark.parametrize("index", INDICES_OF)
def test_what_stands_for_an_integer_may_change_after_the_call(index):
    place, x = Place(), tg.tensor(np.arange(12.0).reshape(3, 4), requires_grad=True)
    wanted = np.zeros((3, 4))
    wanted[index(1)] = 2.0
    y = np.sum(x[index(place)] * 2.0)
    place.number = 2
    np.testing.assert_array_equal(tg.grad(y, x)[0], wanted)


@pytest.mark.parametrize(
    ("function", "count"),
    thinned(
        itertools.product([np.stack, np.concatenate, np.hstack, np.vstack, tg.array], [1, 2, 5, 300, 4097]),
        lambda function, count: count < 4097 or function is np.stack,
    ),
)
def test_many_members(function, count):
    """More than one record can name; each member is of another size where they may differ."""
    x = tg.tensor([1.0, 2.0, 3.0], requires_grad=True)
    uneven = function in (np.concatenate, np.hstack)
    members = [x[: k % 3 + 1] if uneven else x for k in range(count)]
    out = function(members)
    wanted = (np.stack if function is tg.array else function)([m.detach().numpy() for m in members])
    np.testing.assert_array_equal(out.detach().numpy(), wanted)
    weights = np.arange(1.0, out.size + 1).reshape(out.shape)
    (g,) = tg.grad(np.sum(out * weights), x)
    counted = [np.sum(weights[wanted == value]) for value in (1.0, 2.0, 3.0)]
    np.testing.assert_array_equal(g.numpy(), counted)


def test_iteration_and_unpacking():
    x = tg.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    a, b = x
    (g,) = tg.grad(np.sum(a * b), x)
    np.testing.assert_array_equal(g.numpy(), [[3.0, 4.0], [1.0, 2.0]])


ZERO_AXES = [
    np.sum, np.prod, lambda x: np.cumsum(x, axis=0), lambda x: x.reshape(0), lambda x: x.T,
    lambda x: np.concatenate([x, x]), lambda x: np.stack([x, x]), lambda x: np.sin(x) * x,
    lambda x: x[..., None], lambda x: np.where(x > 0, x, 1.0), lambda x: np.sum(x, axis=0),
    lambda x: tg.logsumexp(x, axis=1), lambda x: np.max(x, axis=1), lambda x: x[:, [0, 1]],
]  # fmt: skip


@pytest.mark.parametrize("function", ZERO_AXES)
@pytest.mark.parametrize("record", [False, True])
def test_empty_arrays(function, record):
    x = tg.tensor(np.zeros((0, 3)), requires_grad=True)
    out = function(x)
    (g,) = tg.grad(out, x, np.ones(out.shape), create_graph=record)
    assert g.shape == (0, 3)
    assert g.dtype == x.dtype


# ---------------------------------------------------------------- every handler is called


def test_every_handler_is_called(random, monkeypatch):
    """The tables above, and the list of plain answers below, leave no function out."""
    called = set()

    def watched(key, function):
        def call(*args, **kwargs):
            called.add(key)
            return function(*args, **kwargs)

        return call

    for table in (fn.FUNCTIONS, fn.UFUNCS):
        for key, function in list(table.items()):
            monkeypatch.setitem(table, key, watched(key, function))
    with tg.inference_mode():  # compiled methods pass these calls on
        for _, function, shapes in ROWS:
            function(*leaves(random, shapes))
        for _, function in PLAIN:
            function(tg.tensor([[0.5, 2.0], [-1.5, 2.0]]))
        for module in FAMILIES:
            for _, function, shapes in module.ROWS:
                function(*(tg.tensor(rows.drawn(random, s)) for s in shapes))
            for _, function in getattr(module, "PLAIN", ()):
                function(tg.tensor([[0.5, 2.0, -0.1], [-1.5, 2.5, 0.7]]))
    ours = {u for u in fn.UFUNCS if getattr(np, u.__name__, None) is u}  # SciPy's join once they are called
    missing = {key for key in (*fn.FUNCTIONS, *ours) if key not in called}
    # what no call of NumPy's reaches: operators call these ufuncs' handlers directly
    assert not {f.__name__ for f in missing}


PLAIN = [
    (name, lambda x, f=getattr(np, name): f(x))
    for name in (
        "sign", "floor", "ceil", "rint", "trunc", "isfinite", "isnan", "isinf", "signbit", "logical_not",
        "argmax", "argmin", "argsort", "any", "all", "zeros_like", "ones_like", "shape", "ndim", "size",
        "nonzero", "count_nonzero", "iscomplexobj", "isrealobj", "array_repr", "round", "around",
        "real", "imag", "conjugate", "angle",
    )
] + [
    (f.__name__, lambda x, f=f: f(x, 1.0))
    for f in (np.equal, np.not_equal, np.less, np.less_equal, np.greater, np.greater_equal, np.logical_and,
              np.logical_or, np.logical_xor, np.floor_divide, np.allclose, np.array_equal, np.isclose,
              np.full_like, np.result_type)
] + [
    ("empty_like", lambda x: np.empty_like(x).shape), ("can_cast", lambda x: np.can_cast(x, np.float32)),
    ("searchsorted", lambda x: np.searchsorted(x[0], [1.0])), ("where", lambda x: np.where(x > 0)),
    ("shares_memory", lambda x: np.shares_memory(x, x)), ("sum", lambda x: np.sum(x > 0, where=True)),
    ("may_share_memory", lambda x: np.may_share_memory(x, x)), ("str", lambda x: np.array_str(x)),
    ("array2string", lambda x: np.array2string(x)), ("max", lambda x: np.max(x, initial=9.0)),
    ("maximum.outer", lambda x: np.maximum.outer(x, x)), ("median", np.median),
    ("tile", lambda x: np.tile(x, 2)), ("matrix_rank", lambda x: np.linalg.matrix_rank(x, tol=1e-9)),
    ("save", lambda x: np.save(io.BytesIO(), x)), ("savetxt", lambda x: np.savetxt(io.BytesIO(), x)),
    ("savez", lambda x: np.savez(io.BytesIO(), x)),
    ("savez_compressed", lambda x: np.savez_compressed(io.BytesIO(), x)),
     ("linspace", lambda x: np.linspace(x[0], 1, 3)),
] + calls_ufuncs.PLAIN  # fmt: skip


@pytest.mark.parametrize("row", PLAIN, ids=[name for name, _ in PLAIN])
def test_plain_answers(row):
    name, function = row
    array = np.array([[0.5, 2.0], [-1.5, 2.0]])
    found, wanted = function(tg.tensor(array)), function(array)
    if name == "array_repr":
        return
    pairs = zip(found, wanted, strict=True) if isinstance(wanted, tuple) else [(found, wanted)]
    for f, w in pairs:
        f = f.numpy() if isinstance(f, tg.Tensor) else f
        if isinstance(w, np.ndarray):
            np.testing.assert_array_equal(f, w)
            assert f.dtype == w.dtype
        else:
            assert f == w


# ---------------------------------------------------------------- refusals

X = tg.tensor([[0.5, 2.0], [-1.5, 1.0]], requires_grad=True)
OUT = np.zeros((2, 2))
REFUSED = [
    ("out of a ufunc", lambda: np.add(X, X, out=OUT), errors.UnsupportedOpError, "out="),
    ("out of sum", lambda: np.sum(X, out=OUT), errors.UnsupportedOpError, "out="),
    ("out of a method", lambda: X.mean(out=OUT), errors.UnsupportedOpError, "out="),
    ("out of max", lambda: np.max(X, out=OUT), errors.UnsupportedOpError, "out="),
    ("out of var", lambda: X.var(out=OUT), errors.UnsupportedOpError, "out="),
    ("out of cumsum", lambda: np.cumsum(X, out=OUT), errors.UnsupportedOpError, "out="),
    ("out of the method cumsum", lambda: X.cumsum(0, out=OUT), errors.UnsupportedOpError, "out="),
    ("out of concatenate", lambda: np.concatenate([X, X], out=OUT), errors.UnsupportedOpError, "out="),
    ("out of dot", lambda: np.dot(X, X, out=OUT), errors.UnsupportedOpError, "out="),
    ("out of clip", lambda: np.clip(X, 0, 1, out=OUT), errors.UnsupportedOpError, "out="),
    ("out of einsum", lambda: np.einsum("ij->j", X, out=OUT), errors.UnsupportedOpError, "out="),
    ("out of matmul", lambda: np.matmul(X, X, out=OUT), errors.UnsupportedOpError, "out="),
    ("outer of a ufunc", lambda: np.bitwise_or.outer(X, X), errors.UnsupportedOpError, "outer"),
    ("ufunc with where=", lambda: np.add(X, X, where=X > 0), errors.UnsupportedOpError, "where="),
    ("function without derivative", lambda: np.sort_complex(X), errors.UnsupportedOpError, "sort_complex"),
    ("list of Tensors in kron", lambda: np.kron([X, X], X), errors.BorderError, "list"),
    ("einsum by lists", lambda: np.einsum(X, [0, "a"]), TypeError, "text"),
    ("einsum by lists, numbers", lambda: np.einsum(X, [0, 60]), TypeError, "51"),
    ("einsum, output", lambda: np.einsum("ij->ii", X), errors.ShapeError, "once"),
    ("einsum, output of nothing", lambda: np.einsum("ij->k", X), errors.ShapeError, "once"),
    ("einsum, casting", lambda: np.einsum("ij", X, dtype="f"), TypeError, "casting"),
    ("einsum, lost axes", lambda: np.einsum("...j->j", X), errors.ShapeError, "leaves out"),
    ("axis", lambda: np.sum(X, axis=2), errors.AxisError, "axis 2"),
    ("axis of a method", lambda: X.max(axis=-3), errors.AxisError, "axis -3"),
    ("axis of cumsum", lambda: np.cumsum(X, axis=2), errors.AxisError, "axis 2"),
    ("axis of var", lambda: np.var(X, axis=(0, 2)), errors.AxisError, "axis"),
    ("axis of stack", lambda: np.stack([X, X], axis=3), errors.AxisError, "axis 3"),
    ("axis of flip", lambda: np.flip(X, 2), errors.AxisError, "axis 2"),
    ("axis of expand_dims", lambda: np.expand_dims(X, 4), errors.AxisError, "axis 4"),
    ("axis of squeeze", lambda: np.squeeze(X, 5), errors.AxisError, "axis 5"),
    ("axis of moveaxis", lambda: np.moveaxis(X, 4, 0), errors.AxisError, "moveaxis"),
    ("axis of argmax", lambda: np.argmax(X, axis=2), errors.AxisError, "axis"),
    ("axis twice", lambda: np.sum(X, axis=(0, 0)), ValueError, "axis"),
    ("axis of another type", lambda: np.sum(X, axis=0.5), TypeError, "axis"),
    ("squeeze of two", lambda: np.squeeze(X, 0), errors.ShapeError, "squeeze"),
    ("reshape", lambda: np.reshape(X, (3, 2)), errors.ShapeError, "reshape"),
    ("transpose", lambda: np.transpose(X, (0, 0)), errors.ShapeError, "permutation"),
    ("broadcast_to", lambda: np.broadcast_to(X, (3, 2)), errors.ShapeError, "broadcast_to"),
    ("broadcasting", lambda: X + np.ones(3), errors.ShapeError, "add"),
    ("broadcasting a recorded one", lambda: (X * X) + (X[0, :1] * np.ones(3)), errors.ShapeError, "add"),
    ("comparison", lambda: np.greater(X, np.ones(3)), errors.ShapeError, "greater"),
    ("concatenate", lambda: np.concatenate([X, X[0]]), errors.ShapeError, "concatenate"),
    ("stack", lambda: np.stack([X, X[0]]), errors.ShapeError, "stack"),
    ("matmul", lambda: X @ np.ones(3), errors.ShapeError, "matmul"),
    ("matmul of a scalar", lambda: X @ 2.0, errors.ShapeError, "scalars"),
    ("solve", lambda: np.linalg.solve(X[:1], X[0]), errors.ShapeError, "square"),
    ("solve, sizes", lambda: np.linalg.solve(X, np.ones(3)), errors.ShapeError, "solve"),
    ("solve, singular", lambda: np.linalg.solve(X * 0.0, X), np.linalg.LinAlgError, "ingular"),
    ("einsum, operands", lambda: np.einsum("ij,jk->ik", X), errors.ShapeError, "2 subscripts"),
    ("einsum, rank", lambda: np.einsum("ijk->k", X), errors.ShapeError, "ijk"),
    ("einsum, ellipsis", lambda: np.einsum("ijk...->k", X), errors.ShapeError, "einsum"),
    ("einsum, sizes", lambda: np.einsum("ij,ij->ij", X, np.ones((2, 3))), errors.ShapeError, "einsum"),
    ("matrix_transpose", lambda: X[0].mT, errors.ShapeError, "two dimensions"),
    ("where with one choice", lambda: np.where(X > 0, X), ValueError, "y is missing"),
    ("index", lambda: X[2], IndexError, "index 2"),
    ("too many indices", lambda: X[0, 0, 0], IndexError, "too many"),
    ("index of another type", lambda: X[0.5], IndexError, "0.5"),
    ("mask of another shape", lambda: X[[True, False, True]], IndexError, "boolean"),
    ("list of Tensors as index", lambda: X[[tg.tensor(0), tg.tensor(1)]], errors.BorderError, "list"),
    ("list of Tensors as operand", lambda: np.add(X, [X[0], X[1]]), errors.BorderError, "list"),
    ("list of Tensors in sum", lambda: np.sum([X, X]), errors.BorderError, "list|array|stack"),
    ("complex operand", lambda: np.arctan2(X, 1j), errors.DTypeError, "complex"),
    ("complex exponentials", lambda: tg.logsumexp(X * 1j), errors.DTypeError, "complex"),
    ("unknown operand", lambda: X + "a", TypeError, "operand"),
    ("in place", lambda: X.__iadd__(1.0), errors.GradientError, "a leaf that requires grad"),
    ("assignment", lambda: X.__setitem__(0, 1.0), errors.GradientError, "a leaf that requires grad"),
]  # fmt: skip


@pytest.mark.parametrize("row", REFUSED, ids=[row[0] for row in REFUSED])
def test_refusals(row):
    _, call, error, text = row
    with pytest.raises(error, match=text):
        call()
