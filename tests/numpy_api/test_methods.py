"""The methods of ndarray, and what of them a Tensor does not have."""

import inspect
import io

import numpy as np
import pytest

import tapegrad as tg
from tapegrad import errors
from tapegrad.core import functions as fn
from tests.tiers import with_newest_numpy

from .rows import check

A, V, S = (2, 3), (3,), ()
B = np.array([[True, False, True], [False, True, True]])

ROWS = [
    ("flat", lambda x: np.stack(list(x.flat)) * 2, [A]),
    ("flat[...]", lambda x: x.flat[2] * x.T.flat[1:4], [A]),
    ("view", lambda x: x.view() * x.view(x.dtype), [A]), ("view of 0-d", lambda x: x.view() * 2, [S]),
    ("flatten", lambda x: x.flatten() * x.flatten(order="F"), [A]),
    ("copy", lambda x: x.copy() * x.copy(order="F"), [A]),
    ("astype", lambda x: x.astype(float, copy=False) * x.astype(np.float64, "C", "safe"), [A]),
    ("to_device", lambda x: x.to_device("cpu") * 2, [A]),
    ("reshape", lambda x: x.reshape(-1) * x.reshape((6,), order="F", copy=True), [A]),
    ("clip", lambda x: x.clip(-0.5, 0.5), [A]), ("dot", lambda x: x.dot(x.T), [A]),
    ("choose", lambda x: np.array([1, 0, 1]).choose([x[0], x[1]]) if isinstance(x, np.ndarray) else
     tg.tensor([1, 0, 1]).choose([x[0], x[1]]), [A]),
    ("sums of some", lambda x: x.sum(0, where=B) + x.mean(0, where=B) + x.prod(0, initial=2.0), [A]),
    ("lengths of one", lambda x: np.hypot.reduce(-x[:1], initial=None) + np.hypot.reduce(x[:1]) ** 2, [A]),
    ("spread", lambda x: x.var(1, ddof=1, where=B) + x.std(1, mean=np.mean(x, 1, keepdims=True)), [A]),
]  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_call(row, random):
    check(*row[1:], random)


# base and ctypes are addresses; arithmetic on complex numbers and writing have tests of their own
OTHERS = {"base", "ctypes", "conj", "conjugate", "real", "imag", "fill", "put", "cumprod"}


@with_newest_numpy
def test_every_public_method_of_ndarray_is_there():
    public = {name for name in dir(np.ndarray) if not name.startswith("_")}
    assert public - set(dir(tg.Tensor)) <= OTHERS


def parameters(function):
    try:
        return list(inspect.signature(function).parameters.values())
    except ValueError:
        return None


@with_newest_numpy
@pytest.mark.parametrize("function", [f for f in fn.FUNCTIONS if parameters(f)], ids=lambda f: f.__name__)
def test_parameters_have_numpys_names(function):
    """Each can be given by name as to NumPy, where it is not positional only."""
    own = parameters(inspect.unwrap(fn.FUNCTIONS[function]))
    if any(p.kind is p.VAR_KEYWORD for p in own):
        return
    assert own is not None
    names = {p.name for p in own if p.kind is not p.POSITIONAL_ONLY}
    wanted = {p.name for p in parameters(function) if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    assert wanted - names <= {"like", "subok", "device"}


def test_flat_is_written_to():
    x = tg.zeros((2, 3))
    x.flat[1:3] = 5.0
    x.flat[-1] = 7.0
    x.T.flat[1] = 3.0
    assert x.tolist() == [[0.0, 5.0, 5.0], [3.0, 0.0, 7.0]]
    x.flat = [1.0, 2.0]
    assert x.tolist() == [[1.0, 2.0, 1.0], [2.0, 1.0, 2.0]]
    y = tg.tensor([1.0, 2.0], requires_grad=True)
    x.flat[::3] = y * y
    assert len(x.flat) == 6
    assert tg.grad(np.sum(x), y)[0].tolist() == [2.0, 4.0]


def test_copies_are_copies():
    for copy in (
        lambda x: x.flatten(),
        lambda x: x.astype(float),
        lambda x: np.astype(x, float),
        lambda x: x.copy(),
    ):
        x = tg.zeros(3)
        copy(x)[0] = 1.0
        assert x.tolist() == [0.0, 0.0, 0.0]
    x.view()[0] = x.ravel()[1] = 2.0
    assert x.tolist() == [2.0, 2.0, 0.0]


def test_memory():
    array = np.arange(6.0).reshape(2, 3)
    x = tg.tensor(array, requires_grad=True)
    assert x.tobytes() == array.tobytes()
    assert x.T.flags.f_contiguous
    assert not x.T.flags.c_contiguous
    assert x[0, 0].flags.c_contiguous
    assert x.device == "cpu"
    np.testing.assert_array_equal(np.load(io.BytesIO(x.dumps()), allow_pickle=True), array)
    file = io.BytesIO()
    x.dump(file)
    np.testing.assert_array_equal(np.load(io.BytesIO(file.getvalue()), allow_pickle=True), array)


def test_a_file_of_numbers(tmp_path):
    x = tg.tensor([1.0, 2.0], requires_grad=True)
    x.tofile(tmp_path / "numbers")
    assert np.fromfile(tmp_path / "numbers").tolist() == [1.0, 2.0]


REFUSED = [
    ("resize", lambda x: x.resize(3, 2), errors.UnsupportedOpError, "np.resize"),
    ("byteswap", lambda x: x.byteswap(), errors.UnsupportedOpError, "numpy"),
    ("getfield", lambda x: x.getfield("f"), errors.UnsupportedOpError, "numpy"),
    ("setfield", lambda x: x.setfield(1.0, "f"), errors.UnsupportedOpError, "numpy"),
    ("setflags", lambda x: x.setflags(write=False), errors.UnsupportedOpError, "numpy"),
    ("view as bits", lambda x: x.view(np.int64), errors.UnsupportedOpError, "bits"),
    ("view of a shape", lambda x: x.view((3, 2)), TypeError, "reshape"),
    ("to_device", lambda x: x.to_device("cuda"), ValueError, "cpu"),
    ("astype, casting", lambda x: x.astype("f", casting="safe"), TypeError, "casting"),
    ("var, out", lambda x: x.var(out=np.zeros(())), errors.UnsupportedOpError, "out="),
    ("trace, axis", lambda x: x.trace(axis1=5), errors.AxisError, "axis 5"),
    ("writing to flat", lambda x: x.flat.__setitem__(0, 1.0), errors.GradientError, "leaf"),
]  # fmt: skip


@pytest.mark.parametrize("row", REFUSED, ids=[row[0] for row in REFUSED])
def test_refusals(row):
    with pytest.raises(row[2], match=row[3]):
        row[1](tg.tensor([[0.5, 2.0, 3.0], [-1.5, 1.0, 0.2]], requires_grad=True))
