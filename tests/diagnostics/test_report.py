"""The report: what is on the page, also after an error, and what a browser makes of it."""

import mmap
import re
import threading
import time

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.autograd.profiler import profile
from tests.diagnostics.pages import CHROMIUM, HOSTILE, checked, opened


def fit(path, steps=5, **options):
    w = tg.tensor(np.ones((20, 3)), requires_grad=True)
    x = np.random.default_rng(0).normal(size=(50, 20))
    with tg.report(path, {HOSTILE: w}, title=HOSTILE, **options) as run:
        for _ in range(steps):
            loss = np.mean(np.tanh(x @ w) ** 2)
            w.grad = None
            loss.backward()
            with tg.no_grad():
                w -= 0.1 * w.grad
            run.log(loss=loss, gradient={"w<b>": w.grad}, bad=np.nan)
    return path.read_text("utf-8")


def test_what_is_there(tmp_path):
    before = set(threading.enumerate())
    found = checked(fit(tmp_path / "run.html", with_stack=True))
    text = found.text()
    for title in ("Logged", "Time", "Time by line", "Memory", "Gradients at the end", "Environment"):
        assert title in text, title
    assert "Graph of the first sweep" in text and "norm of gradient w<b>" in text
    assert "TanhBackward" in text and "5 values not finite" in text and "kernel cache" in text
    assert "4 operations, 1 leaf" in text
    assert set(threading.enumerate()) <= before


def test_a_page_of_nothing(tmp_path):
    with tg.report(tmp_path / "empty.html"):
        pass
    text = checked((tmp_path / "empty.html").read_text("utf-8")).text()
    assert "empty" in text and "Environment" in text and "Graph" not in text


def test_memory_is_told_to_a_tenth_of_a_mebibyte(tmp_path):
    def look(run):  # the thread looks, whenever it comes to that
        known, end = run._memory.samples[-1:], time.monotonic() + 60
        while run._memory.samples[-1:] == known and time.monotonic() < end:
            time.sleep(1e-3)

    with tg.report(tmp_path / "run.html") as run:
        look(run)
        kept = np.frombuffer(mmap.mmap(-1, 2**26), float)  # 64 MiB that the C library has not at hand
        kept[:] = 1.0
        look(run)
        look(run)  # the one before may have begun while pages were written
    text = checked((tmp_path / "run.html").read_text("utf-8")).text()
    low, high = re.search(r"resident memory from ([\d,.]+\.\d) MiB to ([\d,.]+\.\d) MiB", text).groups()
    assert float(high.replace(",", "")) - float(low.replace(",", "")) > kept.nbytes / 2**21


def test_an_error_is_on_the_page_and_goes_on(tmp_path):
    x = tg.tensor([1.0], requires_grad=True)
    path = tmp_path / "run.html"

    def failing():
        with tg.report(path):
            np.sum(x * 2.0).backward()
            raise ZeroDivisionError("<b>")

    with pytest.raises(ZeroDivisionError, match="<b>"):
        failing()
    assert "ZeroDivisionError: <b>" in checked(path.read_text("utf-8")).text()
    with profile():  # nothing is left on
        pass


def test_what_it_refuses(tmp_path):
    with profile(), pytest.raises(tg.errors.TapeError, match="nest"), tg.report(tmp_path / "run.html"):
        pass
    with tg.report(tmp_path / "run.html") as run, pytest.raises(TypeError, match="found str for loss"):
        run.log(loss="large")


def test_gradients_are_what_they_are_without(tmp_path):
    values = []
    for watched in (False, True):
        x = tg.tensor([0.5, 1.5], requires_grad=True)
        if watched:
            with tg.report(tmp_path / "run.html", {"x": x}):
                (g,) = tg.grad(np.sum(np.sin(x) ** 2), x, create_graph=True)
                np.sum(g * g).backward()
        else:
            (g,) = tg.grad(np.sum(np.sin(x) ** 2), x, create_graph=True)
            np.sum(g * g).backward()
        values.append(x.grad.numpy())
    np.testing.assert_array_equal(*values)


@pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on the path")
def test_in_a_browser(tmp_path):
    """No message on the console, nothing wider than a desktop or a phone; the chart can be widened."""
    said, pages = opened(fit(tmp_path / "run.html", with_stack=True), tmp_path)
    assert said == []
    for page in pages:
        assert page["wide"] <= page["room"], page
        assert page["after"] > 3.5 * page["before"] and page["bars"] > 10 and page["scripts"] == 0
