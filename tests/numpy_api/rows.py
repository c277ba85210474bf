"""What is checked of one row of a table: (name, function of arrays or Tensors, operands).

An operand is a shape, whose array is drawn and requires grad. Values, dtypes and shapes are NumPy's own, of
Tensors with a gradient and without; first and second derivatives are those by differences.
"""

import warnings

import numpy as np

import tapegrad as tg

POSITIVE = "positive"


def drawn(random, shape):
    """Numbers apart from each other and from 0; by name positive, or ascending."""
    kind = shape[0] if shape and isinstance(shape[0], str) else None
    shape = shape[1] if kind else shape
    size = int(np.prod(shape))
    found = random.permutation(np.linspace(-1.3, 1.3, 2 * size + 1)[1::2]) + random.uniform(-0.01, 0.01, size)
    found = np.where(np.abs(found) < 0.1, 0.17, found).reshape(shape)
    if kind == POSITIVE:
        return np.abs(found) + 0.4 + 0.003 * found
    return np.sort(found) if kind else found


def parts(out):
    """The Tensors or arrays in a result."""
    if isinstance(out, (tuple, list)):
        return [x for part in out for x in parts(part)]
    return [out]


def moving(function):
    """The function's results that may have a derivative."""

    def call(*inputs):
        return tuple(x for x in parts(function(*inputs)) if isinstance(x, tg.Tensor) and x.dtype.kind == "f")

    return call


def same(found, wanted, rtol, atol, dtype=True):
    found, wanted = parts(found), parts(wanted)
    assert len(found) == len(wanted)
    for f, w in zip(found, wanted, strict=True):
        w = np.asarray(w)
        if isinstance(f, tg.Tensor):
            assert f.dtype == w.dtype or not dtype
            f = f.detach().numpy()
        assert np.shape(f) == w.shape
        np.testing.assert_allclose(f, w, rtol=rtol, atol=atol)


def check(function, shapes, random, double=True):
    values = [drawn(random, s) for s in shapes]
    inputs = [tg.tensor(v, requires_grad=True) for v in values]
    wanted = function(*(v.copy()[()] for v in values))
    out = function(*inputs)
    same(out, wanted, 1e-13, 1e-14)
    same(function(*(tg.tensor(v) for v in values)), wanted, 1e-13, 1e-14)
    with tg.no_grad():
        same(function(*inputs), wanted, 1e-13, 1e-14)
    call = moving(function)
    assert any(x.requires_grad for x in call(*inputs))
    assert tg.gradcheck(call, inputs, atol=1e-7, rtol=1e-6)
    if double:
        assert tg.gradgradcheck(call, inputs, atol=1e-6, rtol=1e-6)
    single(function, values)


def single(function, values):
    """In single precision: NumPy's dtype, and gradients of the operands' dtype."""
    narrow = [v.astype("f") for v in values]
    inputs = [tg.tensor(v, requires_grad=True) for v in narrow]
    out = function(*inputs)
    same(out, function(*(v[()] for v in narrow)), 2e-5, 2e-5)
    wide = [tg.tensor(v.astype(float), requires_grad=True) for v in narrow]
    outs, exacts = ([x for x in moving(function)(*xs) if x.requires_grad] for xs in (inputs, wide))
    for record in (False, True):
        cts, exact_cts = [np.ones(x.shape, x.dtype) for x in outs], [np.ones(x.shape) for x in exacts]
        found = tg.grad(outs, inputs, cts, create_graph=record, retain_graph=True, allow_unused=True)
        exact = tg.grad(exacts, wide, exact_cts, retain_graph=True, allow_unused=True)
        for f, e in zip(found, exact, strict=True):
            if e is None:
                assert f is None
                continue
            assert f.dtype == np.float32
            np.testing.assert_allclose(f.detach().numpy(), e.numpy(), rtol=1e-3, atol=1e-3)


def holed(x):
    """An array with nan in some places."""
    mask = np.array([[False, True, False], [True, False, False]])
    return np.where(mask if x.ndim == 2 else mask[:, :, None], np.nan, x)


def quietly(function):
    """Without NumPy's warnings of empty slices and the like."""

    def call(*args, **kwargs):
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            return function(*args, **kwargs)

    return call
