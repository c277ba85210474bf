"""Plots of gradients and of patterns."""

import sys

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.diagnostics import plot_gradient_flow, plot_sparsity


@pytest.fixture
def axes():
    figure = pytest.importorskip("matplotlib.figure", reason="there is no matplotlib").Figure()
    pytest.importorskip("matplotlib.backends.backend_agg").FigureCanvasAgg(figure)
    return figure.add_subplot()


def test_gradient_flow(axes):
    w, b = (tg.tensor(np.arange(1.0, n), requires_grad=True) for n in (4, 3))
    np.sum(w**2).backward()
    given = {"w": w, "dead": np.zeros(2), "bad": np.array([1.0, np.nan]), "array": b.detach(), "empty": []}
    assert plot_gradient_flow(given, axes) is axes
    assert [label.get_text() for label in axes.get_yticklabels()] == list(given)
    assert [text.get_text() for text in axes.texts] == ["zero", "nan", "zero"]
    rms, largest = (points.get_offsets()[:, 0].tolist() for points in axes.collections[1:])
    np.testing.assert_allclose(rms, [np.sqrt(56 / 3), np.sqrt(5 / 2)])
    assert largest == [6.0, 2.0]
    axes.figure.canvas.draw()
    with pytest.raises(ValueError, match=r"b has no \.grad"):
        plot_gradient_flow({"b": b}, axes)
    with pytest.raises(ValueError, match="one gradient or more"):
        plot_gradient_flow([], axes)


def test_sparsity(axes):
    import scipy.sparse

    plan = tg.func.sparse_jacobian(lambda x: x[1:] ** 2 - x[:-1])
    with pytest.raises(ValueError, match="not known yet"):
        plot_sparsity(plan, axes)
    plan(np.arange(1.0, 6.0))
    plot_sparsity(plan, axes)
    assert axes.get_title() == "4 by 5, 8 elements (40.00%), 2 products"
    image = axes.images[0].get_array().filled(0.0)
    np.testing.assert_array_equal(image, np.eye(4, 5) + np.eye(4, 5, 1))
    big = scipy.sparse.eye(3000, format="csr")
    plot_sparsity(big, axes)
    found = axes.images[-1].get_array().filled(0.0)
    assert found.shape == (400, 400) and np.all(np.diag(found) > 0) and np.count_nonzero(found) < 1000
    for matrix in (np.eye(2), tg.eye(2), [[0.0, 1.0]]):
        plot_sparsity(matrix, axes)
    axes.figure.canvas.draw()
    for wrong in (np.ones(3), 1.0):
        with pytest.raises(ValueError, match="takes a matrix"):
            plot_sparsity(wrong, axes)


def test_without_matplotlib(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(ImportError, match="plot_sparsity draws with matplotlib; install matplotlib"):
        plot_sparsity(np.eye(2))
    with pytest.raises(ImportError, match="install matplotlib"):
        plot_gradient_flow([np.ones(2)])
