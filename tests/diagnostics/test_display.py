"""Displays of Tensors, graphs and profiles in notebooks."""

import re
from itertools import pairwise

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.autograd.profiler import profile, record_function
from tapegrad.autograd.profiler_util import EventList, FunctionEvent
from tapegrad.diagnostics import Graph, flame_chart
from tapegrad.diagnostics.page import DARK, LIGHT, bytes_text, escape, time_text
from tests.diagnostics.pages import HOSTILE, checked


def leaf(*data):
    return tg.tensor(data, dtype=float, requires_grad=True)


def test_tensors():
    x = leaf(1.0, 2.0)
    np.sum(x**2).backward()
    text = checked(x._repr_html_()).text()
    assert "Tensor float64 (2,), 16 B, leaf, requires grad" in text and "tensor([1., 2.]" in text
    assert "grad norm 4.472" in text and "operation" not in text
    text = checked((np.sin(x) * 2.0)._repr_html_()).text()
    assert "from MulBackward" in text and "graph 2 operations, 1 leaf, 1 constant" in text
    text = checked(tg.tensor(np.array([1.0, np.nan, np.inf, np.inf]))._repr_html_()).text()
    assert "1 nan" in text and "2 infs" in text
    text = checked(tg.tensor(np.linspace(0.0, 1.0, 2001))._repr_html_()).text()
    assert "min 0, mean 0.5, max 1" in text


@pytest.mark.parametrize("dtype", ["float32", "complex128", "int64", "bool", "float16", "longdouble"])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 2), (20, 70)])
def test_any_tensor_has_a_display(dtype, shape):
    checked(tg.tensor(np.ones(shape, dtype))._repr_html_())


def test_graphs_open_and_close():
    x = leaf(1.0, 2.0)
    graph = Graph(np.sum(np.sin(x)), {HOSTILE: x})
    found = checked(graph._repr_html_())
    assert found.tags.count("details") == 2 and ("details", "open", "") in found.attributes
    assert "alert(1)" in found.text()
    inside = checked(np.sin(x)._repr_html_())
    assert ("details", "open", "") not in inside.attributes


def test_source_lines_are_escaped(tmp_path):
    file = tmp_path / "a<b>&.py"
    source = "def f(np, x):\n    return np.sin(x) # <script>alert(1)</script> ' \" &\n"
    file.write_text(source)
    space = {}
    exec(compile(source, str(file), "exec"), space)
    with pytest.warns(UserWarning, match="[Aa]nomaly"), tg.autograd.detect_anomaly():
        y = space["f"](np, leaf(1.0))
    found = checked(Graph(y)._repr_html_())
    assert "# <script>alert(1)</script> ' \" &" in found.text() and "a<b>&.py:2" in found.text()
    checked(Graph(y).draw("lines")._repr_html_())


def profiled(name="part"):
    x = leaf(1.0, 2.0)
    with profile(with_flops=True, profile_memory=True, record_shapes=True) as prof, record_function(name):
        np.sum(np.sin(x) * x).backward()
    return prof


def test_profiles():
    prof = profiled(HOSTILE)
    for shown in (prof, prof.function_events, prof.key_averages()):
        assert "SinBackward" in checked(shown._repr_html_()).text()
    assert "svg" in checked(prof._repr_html_()).tags
    assert "svg" not in checked(prof.key_averages()._repr_html_()).tags
    with profile() as empty:
        pass
    assert "no events" in checked(empty._repr_html_()).text()


def test_flame_charts():
    prof = profiled()
    svg = flame_chart(prof).svg
    assert svg.count("<svg") == 1 + len(prof.function_events)
    few = flame_chart(prof.function_events, limit=2).svg
    assert few.count("<svg") == 3 and f"{len(prof.function_events) - 2} shorter events not drawn" in few
    with pytest.raises(ValueError, match="no events"):
        flame_chart(profile())
    with pytest.raises(ValueError, match="limit"):
        flame_chart(prof, limit=0)


@pytest.mark.parametrize("span", [1.0, 3.7, 203e3, 2.1e6, 5e6, 1e9])
def test_labels_of_times_have_room_on_a_phone(span):
    """A seventh of some 360 pixels, also before the right end."""
    svg = flame_chart(EventList([FunctionEvent("sin", 0.0, span)])).svg
    places = [float(x) for x in re.findall(r'<text class="small" x="([\d.]+)%"', svg)]
    assert len(places) >= 2 and places[0] == 0.0
    assert all(after - before > 14 for before, after in pairwise([*places, 102.0]))


def test_words():
    assert [bytes_text(n) for n in (0, 1023, 1024, 1 << 20, 5 << 40)] == [
        "0 B", "1023 B", "1.0 KiB", "1.0 MiB", "5.0 TiB",
    ]  # fmt: skip
    assert [time_text(t) for t in (0.5, 12.34, 5e3, 2.5e6)] == ["0.5 µs", "12.3 µs", "5 ms", "2.5 s"]
    assert [time_text(t) for t in (999.6, 999.6e3, 999.7e6, 4.2e9)] == ["1 ms", "1 s", "1,000 s", "4,200 s"]
    assert escape("a<b>&\"'\x00\u2028é") == "a&lt;b&gt;&amp;&quot;&#x27;\ufffd\ufffdé"


def luminance(colour):
    parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("colours", [LIGHT, DARK], ids=["light", "dark"])
def test_text_is_readable(colours):
    """4.5 to 1, as WCAG 2 wants of text, on every ground that it stands on."""
    for ink in ("ink", "soft"):
        for ground in ("paper", "op", "leaf", "data", "call", "out"):
            one, other = sorted((luminance(colours[ink]), luminance(colours[ground])))
            assert (other + 0.05) / (one + 0.05) >= 4.5, (ink, ground)
