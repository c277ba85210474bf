"""Programs notice statements that are wrong, cotangents that stay, and records that are not ended."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.native.mutants import CHECKS, MUTANTS, broken

ROOT = Path(__file__).parents[2]
ALWAYS = ("windows begin at the first element", "arrays begin one statement early")
LIMIT = 600  # seconds of a process, some 30 where nothing else runs; what does not end has not noticed


def found(name):
    """What a process finds whose library is broken so."""
    command = [sys.executable, "-m", "tests.native.mutants", name]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=LIMIT)


def test_what_is_to_be_broken_is_there_once():
    for name in MUTANTS:
        module, text = broken(name)
        compile(text, module, "exec")


@pytest.mark.slow
@pytest.mark.parametrize("check", CHECKS)
def test_nothing_is_noticed_where_nothing_is_broken(check):
    done = found(check)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "name", [n if n in ALWAYS else pytest.param(n, marks=pytest.mark.slow) for n in MUTANTS]
)
def test_what_is_broken_is_noticed(name):
    done = found(name)
    assert done.returncode < 0 or "noticed:" in done.stdout, done.stderr
