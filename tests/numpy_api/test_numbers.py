"""Functions with an axis of a 0-d Tensor, which NumPy takes for a vector of one here and there."""

import numpy as np
import pytest

import tapegrad as tg

SUMS = [
    "sum", "prod", "max", "min", "amax", "ptp", "nansum", "nanprod", "nanmax", "nanmin", "nanmean", "nanvar",
    "nanstd", "mean", "var", "std", "cumsum", "cumprod", "nancumsum", "nancumprod", "cumulative_sum",
    "cumulative_prod", "add.reduce", "multiply.reduce", "maximum.reduce", "logaddexp.reduce",
    "subtract.reduce", "add.accumulate", "multiply.accumulate", "hypot.accumulate", "repeat 2", "repeat 0",
    "median", "average", "flip", "sort", "any",
]  # fmt: skip
SLOPES = {"repeat 2": 2.0, "repeat 0": 0.0, "ptp": 0.0, "var": 0.0, "std": 0.0, "nanvar": 0.0, "nanstd": 0.0}
AXES = [{"axis": 0}, {"axis": -1}, {"axis": 1}, {"axis": None}, {"axis": (0,)}, {"axis": 0, "keepdims": True}]


def called(name, x, kwargs):
    name, *more = name.split()
    function = np
    for part in name.split("."):
        function = getattr(function, part)
    return function(x, *map(int, more), **kwargs)


@pytest.mark.filterwarnings("ignore:.*degrees of freedom", "ignore:Degrees of freedom")
@pytest.mark.parametrize("name", SUMS)
def test_an_axis_of_a_number(name):
    """Value, shape and dtype are NumPy's, or its error; the derivative is that without an axis."""
    for kwargs in AXES:
        if "keepdims" in kwargs and ("cum" in name or "accumulate" in name or "repeat" in name):
            continue
        if kwargs["axis"] == (0,) and "cumulative" in name:  # taken for a number by NumPy
            continue
        try:
            wanted = called(name, np.array(2.5), kwargs)
        except (TypeError, ValueError):  # an AxisError is one of them
            wanted = None
        for history in (False, True):
            x = tg.tensor(2.5, requires_grad=history)
            if wanted is None:
                with pytest.raises((TypeError, ValueError, tg.errors.TapeError)):
                    called(name, x, kwargs)
                continue
            found = called(name, x, kwargs)
            assert found.shape == np.shape(wanted), (name, kwargs)
            assert found.dtype == np.result_type(wanted)
            assert np.array_equal(found.tolist(), np.asarray(wanted).tolist())
            if history and found.requires_grad:
                (g,) = tg.grad(np.sum(found), x)
                assert g.item() == SLOPES.get(name, 1.0)


def test_methods_of_a_number():
    x = tg.tensor(3.0, requires_grad=True)
    assert [x.sum(axis=0).item(), x.prod(-1).item(), x.max(0).item()] == [3.0, 3.0, 3.0]
    assert x.cumsum(0).tolist() == [3.0]
    assert x.repeat(3).tolist() == x.repeat(3, axis=0).tolist() == [3.0] * 3
    (g,) = tg.grad(np.sum(x.repeat(3, axis=-1)) + x.sum(0) * x.cumprod(axis=0)[0], x)
    assert g.item() == 9.0


@pytest.mark.parametrize(
    "function", [np.imag, np.angle, lambda x: x.imag, lambda x: np.unique_inverse(x).inverse_indices]
)
def test_what_is_no_array_without_axes(function):
    """A number does not change with its name, nor with what is made of it."""
    for x in (tg.tensor(2.5), tg.tensor(2.5, requires_grad=True) * 1.0):
        found = function(x)
        before, part = found, found[...]
        found += 1
        assert before.item() == 0 and part.item() == 0
        with pytest.raises(tg.errors.ReadOnlyError, match="copy of an element"):
            part += 2
