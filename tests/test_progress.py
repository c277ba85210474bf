"""Bars and notes: there for whoever looks, never in the way of what is computed."""

import io
import logging
import os
import subprocess
import sys
import types
from pathlib import Path
from unittest import TestCase

import numpy as np
import pytest

import tapegrad as tg
from tapegrad import progress
from tapegrad.kernels import cache
from tapegrad.native.analysis.notes import announce


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def terminal(monkeypatch):
    """Standard error as if it were a terminal's, whatever pytest makes of it."""
    stream = Terminal()
    monkeypatch.setattr(progress, "sys", types.SimpleNamespace(stderr=stream, modules=sys.modules))
    return stream


def test_who_looks(monkeypatch, terminal):
    assert progress.watched()
    monkeypatch.setattr(progress.sys, "stderr", io.StringIO())
    assert not progress.watched()
    monkeypatch.setattr(progress.sys, "stderr", None)
    assert not progress.watched()
    shells = (types.SimpleNamespace(kernel=1), True), (types.SimpleNamespace(), False), (None, False)
    for shell, there in shells:
        notebook = types.SimpleNamespace(get_ipython=lambda shell=shell: shell)
        monkeypatch.setitem(sys.modules, "IPython", notebook)
        assert progress.watched() == there
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(progress.sys, "stderr", closed)
    assert not progress.watched()


def test_nothing_is_shown_to_nobody(monkeypatch, terminal):
    items = [1, 2]
    assert progress.progress(items, "what", False) is items
    monkeypatch.setattr(progress.sys, "stderr", io.StringIO())
    assert progress.progress(items, "what", True) is items
    assert terminal.getvalue() == progress.sys.stderr.getvalue() == ""


def test_tqdm_if_there_is_one(monkeypatch, terminal):
    asked = []
    bar = types.SimpleNamespace(tqdm=lambda items, **how: asked.append(how) or items)
    monkeypatch.setitem(sys.modules, "tqdm.auto", bar)
    monkeypatch.setitem(sys.modules, "tqdm", types.ModuleType("tqdm"))
    assert list(progress.progress([1, 2], "rows", True)) == [1, 2]
    assert list(progress.progress(iter([1, 2]), "rows", True)) == [1, 2]
    assert list(progress.progress(iter([1, 2]), "rows", True, 2)) == [1, 2]
    assert asked == [{"desc": "rows", "total": n} for n in (2, None, 2)]


def test_a_line_without_tqdm(monkeypatch, terminal):
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    monkeypatch.setattr(progress, "INTERVAL", 0.0)
    assert list(progress.progress(range(3), "rows", True)) == [0, 1, 2]
    lines = terminal.getvalue().split("\r")
    assert [line.partition(",")[0] for line in lines] == ["", *(f"rows: {k} of 3" for k in (1, 2, 3, 3))]
    assert terminal.getvalue().endswith(" s\n")
    found = progress.progress(iter("abc"), "parts", True)
    next(iter(found))
    found.close()  # the line ends where the loop is left
    assert terminal.getvalue().endswith(" s\n") and "parts: 0," in terminal.getvalue()


def test_compilations_are_announced_before_they_begin(monkeypatch, terminal):
    monkeypatch.setattr(progress, "LONG", -1.0)
    seen = []

    def compile(args, return_type):
        seen.append(terminal.getvalue())
        with progress.announced("a part"):
            return args

    form = types.SimpleNamespace(_compiler=types.SimpleNamespace(compile=compile))
    announce(form, "grad(f)", False)
    with TestCase().assertLogs("tapegrad", logging.INFO) as told:
        assert form._compiler.compile("args", None) == "args"
    assert seen == ["tapegrad: compiling grad(f); tg.njit(cache=True) keeps it for later processes\n"]
    assert terminal.getvalue().splitlines()[1:] == ["tapegrad: compiled grad(f) in 0.0 s"]
    assert [record.levelname for record in told.records] == ["INFO", "INFO"]
    with TestCase().assertNoLogs("tapegrad", logging.ERROR):
        form._compiler.compile("args", None)
    assert seen[-1] == terminal.getvalue() and len(terminal.getvalue().splitlines()) == 2


def test_large_sources_are_announced_when_they_are_compiled(monkeypatch, terminal):
    monkeypatch.setattr(cache, "_folder", lambda: "")
    monkeypatch.setattr(cache, "LONG_SOURCE", 20)
    for text in ("x = 1", "x = 1  # and some words", "x = 1  # and some words"):
        assert cache.load("demo", text).x == 1
    assert terminal.getvalue() == "tapegrad: compiling tapegrad's demo, once\n"


def test_an_error_in_a_compilation_leaves_nothing_on(terminal):
    for _ in range(2):
        with pytest.raises(ZeroDivisionError), progress.announced("it"):
            raise ZeroDivisionError
    assert terminal.getvalue() == "tapegrad: compiling it\n" * 2


def test_functions_show_their_progress(monkeypatch, terminal):
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    x = np.linspace(0.0, 1.0, 4)
    np.testing.assert_array_equal(tg.func.vmap(np.sum, progress=True)(np.eye(3)), np.ones(3))
    assert "vmap: 3 of 3" in terminal.getvalue()
    plan = tg.func.sparse_jacobian(lambda x: x**2, progress=True)
    np.testing.assert_array_equal(plan(x).toarray(), np.diag(2 * x))
    assert "tapes: 1 of 1" in terminal.getvalue()
    before = terminal.getvalue()
    tg.func.sparse_hessian(lambda x: np.sum(x**3))(x)
    plan(x + 1.0)
    assert terminal.getvalue() == before


CODE = """
import sys, numpy as np, tapegrad as tg
sys.modules["tqdm.auto"] = None
tg.func.jacrev(np.sin, chunk_size=1, progress=True)(np.ones(3))
@tg.njit
def cube(x):
    return x * x * x
print(tg.func.grad(cube)(2.0))
"""


@pytest.mark.full
@pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudoterminals")
@pytest.mark.parametrize("looked_at", [True, False], ids=["terminal", "pipe"])
def test_in_a_process(looked_at):
    """A process with a terminal for its standard error, and one with a pipe, which stays empty."""
    environment = os.environ | {"PYTHONPATH": str(Path(tg.__file__).parents[1])}
    near, far = os.openpty() if looked_at else os.pipe()
    run = [sys.executable, "-c", CODE]
    done = subprocess.run(run, stderr=far, stdout=subprocess.PIPE, env=environment, timeout=120, check=True)
    os.set_blocking(near, False)
    try:
        said = os.read(near, 1 << 16).decode()
    except BlockingIOError:
        said = ""
    os.close(near)
    os.close(far)
    assert done.stdout.strip() == b"12.0"
    if looked_at:
        assert -1 < said.find("jacrev: 3 of 3") < said.find("tapegrad: compiling grad(cube)")
    else:
        assert said == ""
