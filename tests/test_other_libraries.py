"""What other libraries do with Tensors: each row of the tables of docs/howto/other_libraries.md."""

import contextlib
import operator
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.errors import BorderError, DTypeError, ShapeError, UnsupportedOpError

PAGE = Path(__file__).parent.parent / "docs" / "howto" / "other_libraries.md"
X = np.array([0.7, 1.6, 2.4])
ROWS = []
for section in re.split(r"^## ", PAGE.read_text(), flags=re.M)[1:]:
    library = section.splitlines()[0]
    for number, table in enumerate(section.split("| --- | --- |")[1:]):
        found = re.findall(r"^\| `(.*)` \| ([^:|,]*).* \|$", table, flags=re.M)
        ROWS += [pytest.param(library, number, *row, id=f"{library}-{number}-{row[0]}") for row in found]


def names(library, x):
    """What the code of a row may name."""
    given = {"np": np, "tg": tg, "operator": operator, "x": x, "d": x.detach()}
    if library in ("pandas", "matplotlib"):
        pd = pytest.importorskip("pandas", minversion="2.1")
        given |= {"pd": pd, "s": pd.Series([1.0, 2.0, 3.0], index=[3, 1, 2])}
        given["df"] = pd.DataFrame({"a": [1.0, 2.0, 3.0], "b": [2.0, 0.5, 1.0]})
    if library == "matplotlib":
        pytest.importorskip("matplotlib").use("Agg")
        given["plt"] = pytest.importorskip("matplotlib.pyplot")
    if library == "xarray":
        xr = given["xr"] = pytest.importorskip("xarray")
        given |= {n: xr.DataArray(v, dims="t", coords={"t": [0, 1, 2]}) for n, v in (("a", x), ("b", X**2))}
    if library == "scikit-learn":
        sklearn = pytest.importorskip("sklearn")
        for module in ("utils", "linear_model", "preprocessing", "metrics", "decomposition"):
            given |= vars(pytest.importorskip(f"sklearn.{module}"))
        X2 = np.stack([np.sin(x), x * x], axis=1)
        given |= {"sklearn": sklearn, "X": X2, "D": X2.detach(), "t": np.array([1.0, 0.0, 2.0])}
    if "API" in library:
        given["array_api_compat"] = pytest.importorskip("array_api_compat")
    return given


def value(library, code, x):
    found = eval(code, names(library, x))
    return found.data if library == "xarray" and hasattr(found, "dims") else found


@pytest.mark.full
def test_dispatching_estimators():
    pytest.importorskip("sklearn")
    if os.environ.get("SCIPY_ARRAY_API") != "1":
        run = [sys.executable, "-m", "pytest", "-q", "-m", "full", "-k", "scikit-learn-1", __file__]
        done = subprocess.run(run, env={**os.environ, "SCIPY_ARRAY_API": "1"}, capture_output=True, text=True)
        assert " passed" in done.stdout and done.returncode == 0, done.stdout[-3000:]


@pytest.mark.full
@pytest.mark.parametrize(("library", "number", "code", "outcome"), ROWS)
def test_what_other_libraries_do(library, number, code, outcome):
    x = tg.tensor(X, requires_grad=True)
    mode = contextlib.nullcontext()
    if number:
        sklearn = pytest.importorskip("sklearn")
        if os.environ.get("SCIPY_ARRAY_API") != "1":
            pytest.skip("wants SCIPY_ARRAY_API=1")
        mode = contextlib.ExitStack()
        mode.enter_context(sklearn.config_context(array_api_dispatch=True))
        mode.enter_context(np.errstate(all="ignore"))  # in NumPy's name it divides 0 by 0 so
    with mode:
        if outcome == "refused":
            names(library, x)
            with pytest.raises((BorderError, UnsupportedOpError), match=r"detach|no_grad"):
                value(library, code, x)
            return
        found = value(library, code, x)
        if outcome.startswith("an array"):
            assert not isinstance(found, tg.Tensor)
            return
        assert type(found) is tg.Tensor
        assert found.requires_grad == (outcome == "differentiable")
        if outcome == "differentiable":
            v, h = np.array([0.3, -0.8, 0.5]), 1e-6
            weights = np.cos(np.arange(found.size)).reshape(found.shape)
            (gradient,) = tg.grad(np.sum(found * weights), x)
            ends = [np.sum(value(library, code, tg.tensor(X + s * v)).numpy() * weights) for s in (h, -h)]
            slope = (ends[0] - ends[1]) / (2 * h)
            np.testing.assert_allclose(gradient.numpy() @ v, slope, rtol=1e-7, atol=1e-8)


OPERATORS = ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "lt", "le", "eq", "ne", "gt", "ge"]


@pytest.mark.parametrize("kind", ["Series", "DataFrame", "Index"])
@pytest.mark.parametrize("name", OPERATORS)
def test_operators_of_pandas(name, kind):
    pd = pytest.importorskip("pandas", minversion="2.1")
    operate, x = getattr(operator, name), tg.tensor(X, requires_grad=True)
    data = [[1.5, 2.0], [0.5, 1.6], [3.0, 1.0]] if kind == "DataFrame" else [1.5, 1.6, 3.0]
    labelled, values, y = getattr(pd, kind)(data), np.array(data), x[:, None] if kind == "DataFrame" else x
    for a, b, plain in ((labelled, y, (values, y)), (y, labelled, (y, values))):
        found, expected = operate(a, b), operate(*plain)
        assert type(found) is tg.Tensor and found.requires_grad == expected.requires_grad
        np.testing.assert_array_equal(found.detach(), expected.detach())
        if found.requires_grad:
            gradients = [tg.grad(np.sum(r), x)[0].numpy() for r in (found, expected)]
            np.testing.assert_array_equal(*gradients)


def test_what_pandas_holds_is_an_operand_by_its_values():
    pd = pytest.importorskip("pandas", minversion="2.1")
    x = tg.tensor(X, requires_grad=True)
    with pytest.raises(ShapeError, match="shapes"):
        x * pd.Series([1.0, 2.0])
    with pytest.raises(DTypeError, match="object"):
        x * pd.Series(["a", "b", "c"], dtype=object)
    series = pd.Series([1.0, 2.0, 3.0])
    series += x.detach()  # pandas' own, in place
    assert type(series) is pd.Series and series.tolist() == np.add(X, [1.0, 2.0, 3.0]).tolist()
    y = x * 1.0
    y += series
    assert tg.grad(y.sum(), x)[0].tolist() == [1, 1, 1]
    assert (pd.Series([1, 2, 3], dtype="Int64") * x).tolist() == (X * [1, 2, 3]).tolist()


def test_errors_name_what_was_called():
    pd = pytest.importorskip("pandas")
    x = tg.tensor(X, requires_grad=True)
    holding = pd.Series([1.0, np.nan, 3.0]).fillna(x[0])  # a block that is a Tensor
    with pytest.raises(BorderError, match=r"asked for by pandas\.Series\.to_numpy,"):
        holding.to_numpy()
    with pytest.raises(BorderError, match=r"asked for by pandas\.Series\.(sum|mean)|by pandas,"):
        holding.sum()
    xr = pytest.importorskip("xarray")
    with pytest.raises(BorderError, match=r"asked for by xarray\.DataArray\.values,"):
        xr.DataArray(x, dims="t").values
