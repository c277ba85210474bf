"""Public results have types: what mypy makes of `tests/typed.py`, and what is there when it runs."""

import runpy
import subprocess
import sys
import types
import typing
from pathlib import Path

import pytest

HERE = Path(__file__).parent
CASES = HERE / "typed.py"


@pytest.mark.full
def test_a_type_checker_sees_them():
    pytest.importorskip("mypy")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", HERE.parent / "pyproject.toml", CASES],
        capture_output=True, text=True, timeout=300, check=False, cwd=HERE.parent,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def kinds(expected):
    """The classes that a type allows."""
    if isinstance(expected, types.UnionType):
        return tuple(kind for part in typing.get_args(expected) for kind in kinds(part))
    return (typing.get_origin(expected) or expected or type(None),)


def test_they_are_there(monkeypatch):
    seen = []

    def check(value, expected):
        assert isinstance(value, kinds(expected)), f"{type(value)}, a checker sees {expected}"
        seen.append(value)

    monkeypatch.setattr(typing, "assert_type", check, raising=False)
    runpy.run_path(str(CASES))
    assert len(seen) == CASES.read_text("utf-8").count("assert_type(") + 1  # a loop runs twice
