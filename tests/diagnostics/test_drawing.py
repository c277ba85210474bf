"""Drawings: boxes, groups, places, and what a million records take."""

import itertools
import re
import sys
import time
import xml.etree.ElementTree as tree
from itertools import pairwise

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.autograd.profiler import profile
from tapegrad.diagnostics import Graph
from tapegrad.diagnostics.drawing import boxes, repeats
from tapegrad.diagnostics.layers import layout
from tests.diagnostics.pages import HOSTILE, checked

SVG = "{http://www.w3.org/2000/svg}"


def leaf(*data):
    return tg.tensor(data, dtype=float, requires_grad=True)


def loop(times, x=None):
    y = leaf(0.5, 1.0) if x is None else x
    for _ in range(times):
        y = np.sin(y) * 1.1
    return np.sum(y)


def lines(call):
    """How many lines of Python a call takes."""
    count, before = itertools.count(), sys.gettrace()

    def trace(*_):
        next(count)
        return trace

    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return next(count)


def texts(picture):
    return ["".join(found.itertext()) for found in tree.fromstring(picture.svg).iter(f"{SVG}text")]


def test_boxes_have_names_shapes_and_numbers():
    x = leaf(1.0, 2.0)
    found = texts(Graph(np.sum(np.sin(x) * 2.0), {"x": x}).draw())
    assert {"x", "sin", "multiply(·, 2)", "sum", "float64 (2,)", "float64 ()"} <= set(found)


def test_a_loop_is_drawn_once():
    scheme = boxes(Graph(loop(100)), "repeats", 80)
    assert [box.lines[0] for box in scheme.boxes] == ["leaf", "sin", "multiply(·, 1.1)", "sum"]
    assert scheme.edges == [(0, 1), (1, 2), (2, 3)] and scheme.carried == [(2, 1)]
    assert [(group.times, group.members) for group in scheme.loops] == [(100, [1, 2])]
    assert "100 times" in texts(Graph(loop(100)).draw())
    every = boxes(Graph(loop(100)), None, 80)
    assert len(every.boxes) == 81 and every.boxes[0].lines == ("121 earlier operations",) and not every.loops


def test_runs():
    key = list("abcabcabcxyyyyz")
    assert repeats(key, key) == [(0, 3, 3), (10, 1, 4)]
    assert repeats(list("abab"), list("abab")) == []
    first = ["a0", "b", "a", "b", "a", "b", "a", "b"]
    assert repeats(first, list("abababab")) == [(0, 2, 4)]
    assert repeats([], []) == []
    assert repeats(list("cabcabcabc"), list("cabcabcabc")) == [(0, 3, 3)]
    assert repeats(list("cabcabcabc"), list("cabcabcabc"), cut=True) == [(1, 3, 3)]
    rng = np.random.default_rng(0)
    for _ in range(50):  # whatever repeats is what was said
        key = rng.integers(0, 3, 40).tolist()
        for start, period, times in repeats(key, key):
            piece = key[start : start + period]
            assert times >= 3 and key[start : start + period * times] == piece * times


def test_boxes_of_lines():
    x = leaf(1.0, 2.0)
    with profile(with_stack=True) as prof:
        h = np.sin(x) * 2.0
        y = np.sum(np.exp(h))
    lines = [box.lines for box in boxes(Graph(y, profile=prof), "lines", 80).boxes]
    assert lines[1][:2] == ("h = np.sin(x) * 2.0", "sin, multiply")
    assert lines[2][:2] == ("y = np.sum(np.exp(h))", "exp, sum")


@pytest.mark.parametrize("group", ["repeats", "lines", None])
def test_all_is_escaped(group):
    x = leaf(1.0)
    graph = Graph(np.sin(x), {HOSTILE: x})
    picture = graph.draw(group)
    root = tree.fromstring(picture.svg)
    assert {found.tag for found in root.iter()} <= {
        SVG + name for name in ("svg", "style", "g", "title", "rect", "text", "path")
    }
    assert "alert(1)" in "".join(root.itertext())
    checked(picture._repr_html_())
    strings = re.compile(r'"(?:[^"\\]|\\.)*"')
    assert "script" in graph.dot(group) and not re.search("script|alert", strings.sub("", graph.dot(group)))


def test_graphviz():
    x = leaf(1.0)
    text = Graph(loop(5, x), {'a "b" \\': x}).dot()
    assert text.startswith("digraph {") and text.rstrip().endswith("}")
    assert '[label="a \\"b\\" \\\\\\nfloat64 (1,)"' in text
    assert 'subgraph cluster_0 { label="5 times" style=dashed; b1; b2 }' in text
    assert "  b2 -> b1 [style=dashed constraint=false]" in text
    assert text.count("{") == text.count("}")


def test_saved(tmp_path):
    picture = Graph(loop(3)).draw()
    for name in ("a.svg", "a.html"):
        picture.save(tmp_path / name)
    assert (tmp_path / "a.svg").read_text("utf-8") == picture.svg
    checked((tmp_path / "a.html").read_text("utf-8"))


def test_wrong_arguments():
    graph = Graph(loop(3))
    with pytest.raises(ValueError, match="group takes 'repeats', 'lines' or None, found 'ops'"):
        graph.draw("ops")
    with pytest.raises(ValueError, match="limit"):
        graph.dot(limit=0)


def random_edges(rng, n):
    pairs = [sorted(rng.choice(n, 2, replace=False).tolist()) for _ in range(2 * n * (n > 1))]
    return sorted({tuple(pair) for pair in pairs})


@pytest.mark.parametrize("n", [0, 1, 2, 10, 40])
def test_nothing_overlaps(n):
    rng = np.random.default_rng(n)
    sizes = [(float(w), float(h)) for w, h in rng.uniform(20, 150, (n, 2))]
    edges = random_edges(rng, n)
    places = layout(sizes, edges)
    boxes_ = [
        (x - w / 2, y - h / 2, x + w / 2, y + h / 2)
        for (x, y), (w, h) in zip(places.centres, sizes, strict=True)
    ]
    for k, (a0, b0, a1, b1) in enumerate(boxes_):
        assert a0 >= -1e-6 and b0 >= -1e-6 and a1 <= places.width + 1e-6 and b1 <= places.height + 1e-6
        for c0, d0, c1, d1 in boxes_[:k]:
            assert a1 <= c0 + 1e-6 or c1 <= a0 + 1e-6 or b1 <= d0 + 1e-6 or d1 <= b0 + 1e-6
    for (source, target), path in zip(edges, places.paths, strict=True):
        assert path[0][1] == pytest.approx(boxes_[source][3])
        assert path[-1][1] == pytest.approx(boxes_[target][1])
        assert all(y1 > y0 for (_, y0), (_, y1) in pairwise(path))  # always down


@pytest.mark.full
def test_a_million_records():
    y, small = loop(500_000), loop(5000)
    found, others = [], []
    for _ in range(5):  # beside each other, so that a busy machine lengthens both
        for result, times in ((small, others), (y, found)):
            begin = time.thread_time()
            graph = Graph(result)
            svg = graph.draw().svg
            times.append(time.thread_time() - begin)
    print(f"1,000,001 records: {1e3 * min(found):.1f} ms, {len(svg.encode()) / 1024:.1f} KiB")
    assert min(found) < 4 * min(others)  # of 10,001 records
    assert lines(lambda: Graph(y).draw().svg) < 300_000  # some 20 ms
    assert max(len(graph.draw(None).svg.encode()), len(graph.dot(None)), len(svg)) < 200 * 1024
    assert len(graph._repr_html_().encode()) < 200 * 1024 and len(y._repr_html_()) < 200 * 1024
    assert graph.operations >= 1_000_001  # with what else stands on these tapes
