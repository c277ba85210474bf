"""The array API standard: the namespace of a Tensor, and functions that are written for any array."""

import inspect
import os
import subprocess
import sys

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.errors import BorderError

xp = tg.tensor(1.0).__array_namespace__()
X = np.array([[0.5, 1.5, 0.25], [2.0, 0.75, 1.25]])


def test_the_namespace_of_a_tensor():
    assert xp.__name__ == "tapegrad.array_api" and xp.__array_api_version__ >= "2023.12"
    assert tg.tensor([1.0]).__array_namespace__(api_version="2023.12") is xp
    with pytest.raises(ValueError, match="1999"):
        tg.tensor([1.0]).__array_namespace__(api_version="1999.01")
    assert {name for name in dir(xp) if not name.startswith("_")} == set(xp.__all__)
    assert not [name for name in xp.__all__ if not hasattr(xp, name)]


def test_what_is_asked_of_the_library():
    info = xp.__array_namespace_info__()
    assert list(info.devices()) == ["cpu"] and info.default_device() == "cpu"
    assert info.default_dtypes()["real floating"] == xp.float64 and "float32" in info.dtypes(
        kind="real floating"
    )
    assert info.capabilities()["boolean indexing"] is True
    x = tg.tensor([1.0])
    assert x.device == "cpu" and x.to_device("cpu") is x
    assert xp.finfo(x).max == xp.finfo(xp.float64).max and xp.iinfo(xp.asarray([1])).min == -(2**63)
    assert xp.isdtype(x.dtype, "real floating") and xp.result_type(x, xp.float32) == xp.float64


MAKING = {
    "arange": (0, 3), "asarray": ([1.0, 2.0],), "empty": ((2, 3),), "empty_like": (X,), "eye": (2,),
    "full": (2, 7.0), "full_like": (X, 7.0), "linspace": (0.0, 1.0, 3), "ones": (2,), "ones_like": (X,),
    "zeros": (2,), "zeros_like": (X,), "from_dlpack": (X,),
}  # fmt: skip


@pytest.mark.parametrize("name", MAKING)
def test_what_makes_arrays_makes_tensors(name):
    made = getattr(xp, name)(*MAKING[name], device="cpu")
    expected = getattr(np, name)(*MAKING[name])
    assert type(made) is tg.Tensor and made.shape == expected.shape and made.dtype == expected.dtype
    if "empty" not in name:
        assert made.tolist() == expected.tolist()
    with pytest.raises(ValueError, match=rf"{name}.*'cpu'.*'gpu'"):
        getattr(xp, name)(*MAKING[name], device="gpu")
    if name != "from_dlpack":
        assert getattr(xp, name)(*MAKING[name], dtype=xp.float32).dtype == np.float32


def test_asarray_copies_as_asked():
    x = tg.tensor([1.0, 2.0], requires_grad=True)
    assert xp.asarray(x) is x and xp.asarray(x, copy=False) is x and xp.asarray(x, dtype=xp.float64) is x
    y = xp.asarray(x, copy=True)
    assert y is not x and tg.grad(y.sum(), x)[0].tolist() == [1, 1]
    assert tg.grad(xp.asarray([x[0], 2.0 * x[1]]).sum(), x)[0].tolist() == [1, 2]
    a = np.array([1.0, 2.0])
    assert np.shares_memory(xp.asarray(a).numpy(), a) and np.shares_memory(
        xp.asarray(a, copy=False).numpy(), a
    )
    assert not np.shares_memory(xp.asarray(a, copy=True).numpy(), a)
    for data, dtype in ((x, xp.float32), (a, xp.float32), ([1.0], None), (1.0, None)):
        with pytest.raises(ValueError, match="copy"):
            xp.asarray(data, dtype=dtype, copy=False)


def test_memory_goes_to_other_libraries_and_back():
    x = tg.tensor([1.0, 2.0])
    a = np.from_dlpack(x)
    assert np.shares_memory(a, x.numpy()) and x.__dlpack_device__() == a.__dlpack_device__()
    back = xp.from_dlpack(np.arange(3.0))
    assert type(back) is tg.Tensor and back.tolist() == [0, 1, 2]
    assert np.from_dlpack(tg.tensor(2.0)) == 2
    for y in (tg.tensor([1.0], requires_grad=True), tg.tensor([1.0], requires_grad=True) * 2):
        with pytest.raises(BorderError, match="drop its derivative"):
            np.from_dlpack(y)


def test_sorting_in_both_directions():
    x = tg.tensor([3.0, 1.0, 2.0, 1.0], requires_grad=True)
    w = np.array([1.0, 2.0, 3.0, 4.0])
    assert xp.sort(x).tolist() == [1, 1, 2, 3] and xp.sort(x, descending=True).tolist() == [3, 2, 1, 1]
    assert xp.argsort(x).tolist() == [1, 3, 2, 0] and xp.argsort(x, descending=True).tolist() == [0, 2, 1, 3]
    assert tg.grad((xp.sort(x, descending=True) * w).sum(), x)[0].tolist() == [1, 3, 2, 4]
    matrix = xp.asarray(X)
    assert xp.argsort(matrix, axis=0, descending=True).tolist() == [[1, 0, 1], [0, 1, 0]]


def standardized(x):
    """Each column without mean and of size one, by any array library."""
    xp = x.__array_namespace__()
    centred = x - xp.mean(x, axis=0, keepdims=True)
    weights = xp.astype(xp.asarray([1, 2], device=x.device), x.dtype)
    spread = xp.sqrt(xp.sum(xp.square(centred), axis=0))
    found = xp.matmul(xp.matrix_transpose(centred), xp.permute_dims(centred, (0, 1))) / spread
    parts = xp.concat(
        [xp.expand_dims(weights, axis=1) * centred, xp.where(found > 0, found, xp.zeros_like(found))]
    )
    return xp.sum(xp.pow(parts, 2) + xp.std(x, correction=1.0) + xp.vecdot(centred, centred, axis=0))


def test_a_function_for_any_array():
    assert tg.tensor(X).__array_namespace__() is xp
    value, gradient = tg.func.value_and_grad(standardized)(X)
    assert value == pytest.approx(standardized(X), rel=1e-14)
    step = 1e-6 * np.cos(np.arange(6.0)).reshape(2, 3)
    slope = (standardized(X + step) - standardized(X - step)) / 2
    assert np.sum(gradient * step) == pytest.approx(slope, rel=1e-7)


@pytest.mark.parametrize("name", ["fftfreq", "rfftfreq"])
def test_frequencies_are_tensors(name):
    found = getattr(xp.fft, name)(6, d=0.5, dtype=xp.float32, device="cpu")
    assert type(found) is tg.Tensor and found.dtype == np.float32
    np.testing.assert_allclose(found.numpy(), getattr(np.fft, name)(6, 0.5), rtol=1e-6)
    with pytest.raises(ValueError, match=f"{name}.*'gpu'"):
        getattr(xp.fft, name)(6, device="gpu")
    assert xp.fft.rfft is np.fft.rfft and type(xp.fft.fftfreq(3)) is tg.Tensor


def test_constructors_have_the_standards_parameters():
    of = {name: list(inspect.signature(getattr(xp, name)).parameters) for name in MAKING}
    assert of["arange"] == ["start", "stop", "step", "dtype", "device"]
    assert of["eye"] == ["n_rows", "n_cols", "k", "dtype", "device"]
    assert of["linspace"] == ["start", "stop", "num", "dtype", "device", "endpoint"]
    assert of["full_like"] == ["x", "fill_value", "dtype", "device"]
    x = tg.tensor(2.0, requires_grad=True)
    for made in (xp.full((3,), x), xp.full_like(X, x), xp.linspace(0.0, x, 3), xp.arange(0.0, x, x / 3)):
        assert made.requires_grad


OF_ONE = """
    abs acos acosh asin asinh atan atanh ceil conj cos cosh exp expm1 floor imag isfinite isinf isnan log
    log10 log1p log2 logical_not negative positive real reciprocal round sign signbit sin sinh sqrt square tan
    tanh trunc all any argmax argmin count_nonzero cumulative_prod cumulative_sum diff flip max mean min
    nonzero prod squeeze std sum tril triu unique_all unique_counts unique_inverse unique_values unstack var
    matrix_transpose"""


@pytest.mark.parametrize("name", OF_ONE.split())
def test_functions_of_one_array_take_tensors(name):
    given = {"axis": 0} if name.startswith("cumulative") else {"axis": ()} if name == "squeeze" else {}
    function = getattr(xp, name)
    with np.errstate(all="ignore"):
        found, expected = function(tg.tensor(X), **given), function(X, **given)
    parts = (found, expected) if isinstance(expected, tuple) else ([found], [expected])
    for mine, theirs in zip(*parts, strict=True):
        if not isinstance(theirs, (int, bool)):
            assert isinstance(mine, tg.Tensor), name
        np.testing.assert_array_equal(np.asarray(mine), theirs)


def test_names_of_the_standard_are_numpys():
    """Those that are not made here are the functions that dispatch on Tensors."""
    for name in set(xp.__all__) - set(MAKING) - {"sort", "argsort", "finfo", "iinfo", "fft"}:
        assert getattr(xp, name) is getattr(np, name)
    assert "descending" in inspect.signature(xp.sort).parameters


SCIPY = """
import numpy as np, tapegrad as tg
from scipy import special, stats, integrate
x = tg.tensor([0.5, 1.5, 0.25], requires_grad=True)
for f in (special.logsumexp, stats.zscore, integrate.trapezoid):
    y = f(x)
    assert isinstance(y, tg.Tensor) and y.requires_grad, f
print("ok")
"""


@pytest.mark.full
def test_scipys_functions_for_any_array():
    done = subprocess.run(
        [sys.executable, "-c", SCIPY],
        env={"SCIPY_ARRAY_API": "1", **os.environ},
        capture_output=True,
        text=True,
    )
    assert done.stdout == "ok\n", done.stderr[-2000:]
