"""Graphs: which records there are, in what order, with which times, lines and states."""

import weakref

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.autograd.profiler import profile
from tapegrad.diagnostics import Graph


def leaf(*data):
    return tg.tensor(data, dtype=float, requires_grad=True)


def names(graph):
    return [entry.name for entry in graph.records if entry.kind in ("operation", "call")]


def test_records_are_those_that_a_result_needs():
    x, a = leaf(1.0, 2.0), np.array([3.0, 4.0])
    np.exp(x)  # nothing that y needs
    y = np.sum(np.sin(x) * 2.0 + a)
    graph = Graph(y, {"x": x})
    assert names(graph) == ["sin", "multiply", "add", "sum"]
    assert graph.counts == {"sin": 1, "multiply": 1, "add": 1, "sum": 1}
    assert graph.complete and graph.operations == 4
    x_, *constants, sin, multiply, add, total = graph.records
    assert (x_.kind, x_.name, x_.dtype, x_.shape, x_.nbytes) == ("leaf", "x", "float64", (2,), 16)
    assert sorted(c.name for c in constants) == ["", "2"]
    at = graph.records.index
    assert sin.operands == (at(x_),)
    assert set(multiply.operands) == {at(sin), at(next(c for c in constants if c.is_number))}
    assert at(multiply) in add.operands and total.operands == (at(add),)
    assert graph.outputs == [at(total)]


def test_a_graph_crosses_tapes():
    x = leaf(0.5)
    y = x
    for _ in range(3000):
        y = np.sin(y) + 1.0
    graph = Graph(y, limit=10_000)
    assert graph.complete and graph.counts == {"sin": 3000, "add": 3000}
    assert all(j < k for k, entry in enumerate(graph.records) for j in entry.operands)
    part = Graph(y, limit=100)
    assert not part.complete and len(names(part)) == 100
    assert part.operations >= 6000 and -1 in part.records[-100].operands


def test_leaves_results_and_constants_as_outputs():
    x = leaf(1.0)
    assert [entry.kind for entry in Graph(x).records] == ["leaf"]
    plain = Graph(tg.tensor([1.0, 2.0]))
    assert [entry.kind for entry in plain.records] == ["constant"] and plain.operations == 0
    assert len(Graph([x * 2.0, x * 3.0]).outputs) == 2
    for wrong in (np.ones(2), [1.0], [x, None]):
        with pytest.raises(TypeError, match="Graph takes Tensors"):
            Graph(wrong)
    for wrong in (0, 1.5, True):
        with pytest.raises(ValueError, match="limit"):
            Graph(x, limit=wrong)


def test_views_and_writes():
    x = leaf(1.0, 2.0, 3.0)
    z = x * 1.0
    z[1] = x[0] * 5.0
    assert "assign" in names(Graph(z)) and "multiply" in names(Graph(z[1]))


def test_calls_bear_the_name_of_what_is_called():
    class Cube(tg.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx, g):
            return g * 3 * ctx.saved_tensors[0] ** 2

    assert names(Graph(Cube.apply(leaf(2.0)))) == ["Cube"]


def test_what_a_sweep_released():
    x = leaf(1.0, 2.0)
    y = np.sum(np.sin(x) * x)
    y.backward()
    graph = Graph(y)
    assert names(graph) == ["sin", "multiply", "sum"]
    assert [entry.state for entry in graph.records if entry.name == "sin"] == ["released"]


def test_lines_are_those_of_anomaly_mode():
    x = leaf(1.0, 2.0)
    with pytest.warns(UserWarning, match="[Aa]nomaly"), tg.autograd.detect_anomaly():
        y = np.sin(x)  # here
    (entry,) = [entry for entry in Graph(y).records if entry.name == "sin"]
    assert entry.line.file == __file__ and entry.line.text == "y = np.sin(x)  # here"
    assert Graph(np.cos(x)).records[-1].line is None


def test_times_and_lines_of_a_profile():
    x = leaf(1.0, 2.0)
    with profile(with_stack=True) as prof:
        y = np.sum(np.sin(x))
        y.backward(retain_graph=True)
    sin, total = Graph(y, profile=prof).records[-2:]
    assert sin.forward > 0 and sin.backward > 0 and total.forward > 0
    assert sin.line.text == "y = np.sum(np.sin(x))"
    assert Graph(y).records[-1].forward is None


def test_a_graph_keeps_nothing_alive():
    x = leaf(1.0, 2.0)
    y = np.sin(x)
    graph, tape = Graph(y, {"x": x}), weakref.ref(y._tape)
    del y
    tg.tape.tape.leave(tape())
    assert tape() is None and names(graph) == ["sin"]


def test_looking_records_nothing_and_changes_nothing():
    x = leaf(1.0, 2.0)
    y = np.sum(np.sin(x) * x)
    before = str(y._tape.show())
    repr(Graph(y)), y._repr_html_(), Graph(y).draw(), Graph(y).dot()
    assert y._tape.show() == before
    y.backward()
    np.testing.assert_allclose(x.grad.numpy(), np.cos([1, 2]) * [1, 2] + np.sin([1, 2]))


def test_dual_numbers_and_inference():
    x = leaf(1.0, 2.0)
    with tg.autograd.forward_ad.dual_level():
        d = tg.autograd.forward_ad.make_dual(x, tg.ones(2))
        y = np.sin(d) * 2.0
        assert names(Graph(y))[-2:] == ["sin", "multiply"]
        assert "tangent" in y._repr_html_()
    with tg.inference_mode():
        assert Graph(np.sin(x)).operations == 0


def test_text():
    x = leaf(1.0, 2.0)
    y = x
    for _ in range(50):
        y = np.sin(y) * 1.5
    text = str(Graph(np.sum(y), {"x": x}))
    lines = text.splitlines()
    assert lines[0] == "101 operations, 1 leaf, 1 constant"
    assert lines[1].split() == ["%0", "leaf", "x", "float64", "(2,)", "kept"]
    assert "... the last 2 operations another 49 times" in lines
    assert len(lines) == 6 and lines[-1].startswith("%101  sum(%100)")
