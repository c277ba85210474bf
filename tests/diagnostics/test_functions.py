"""The table of NumPy's functions: each has a row, and the rows say what is."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.core.functions import FUNCTIONS, UFUNCS
from tapegrad.diagnostics import functions as diagnostics
from tests.tiers import with_newest_numpy


def of(status):
    return {row.name for row in diagnostics.catalog() if row.status == status}


@with_newest_numpy
def test_every_public_function_has_one_row():
    rows = diagnostics.catalog()
    names = [row.name for row in rows]
    assert len(names) == len(set(names)) > 400
    objects = {id(getattr(np, name)) for name in dir(np) if not name.startswith("_")}
    known = {id(function) for function in diagnostics._functions().values()}
    for function in (*FUNCTIONS, *UFUNCS):
        if id(function) in objects:
            assert id(function) in known, function
    assert not [row for row in rows if row.reason == "unknown to this version"]


def test_how_much_there_is():
    differentiable = of("op") | of("composed")
    assert len(differentiable) >= 225
    assert len(of("not supported")) < 0.03 * len(diagnostics.catalog())


@with_newest_numpy
def test_reasons_are_of_the_list():
    rows = [row for row in diagnostics.catalog() if row.status not in ("op", "composed")]
    assert {row.reason for row in rows} <= {*diagnostics.REASONS}
    for reason, names in diagnostics.REASONS.items():
        assert {*names.split()} & (of("op") | of("composed")) == set(), reason


@with_newest_numpy
def test_what_is_not_supported_says_so():
    z = tg.tensor([1j, 2.0], requires_grad=True)
    for name in of("not supported"):
        with pytest.raises(tg.errors.TapeError, match=name):
            getattr(np, name)(z)


def test_the_command_prints_the_table():
    run = [sys.executable, "-m", "tapegrad"]
    found = subprocess.run([*run, "ops"], capture_output=True, text=True, check=True).stdout
    assert found.strip() == diagnostics.table().strip()
    assert "kernel cache" in subprocess.run(run, capture_output=True, text=True, check=True).stdout


@pytest.mark.skipif(not hasattr(signal, "SIGPIPE"), reason="there are no pipes that break")
@pytest.mark.parametrize("what", ["ops", "info"])
def test_a_reader_that_has_enough_ends_it_quietly(what):
    """As `head` closes the pipe: no traceback, and the status of any tool that a broken pipe ended."""
    read, written = os.pipe()
    os.close(read)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "tapegrad", what],
            stdout=written, stderr=subprocess.PIPE, check=False, timeout=60,
            env=os.environ | {"PYTHONPATH": str(Path(tg.__file__).parents[1])},
        )  # fmt: skip
    finally:
        os.close(written)
    assert (done.stderr, done.returncode) == (b"", -signal.SIGPIPE)
