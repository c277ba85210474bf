"""Public results have types: what mypy makes of `tests/typed.py`, and what is there when it runs."""

import os
import re
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


@pytest.mark.full
def test_a_program_of_a_user_is_strict(tmp_path):
    """Checked as theirs is: a file outside of the repository, and the library installed."""
    pytest.importorskip("mypy")
    program, installed = tmp_path / "program.py", tmp_path / "site-packages" / "tapegrad"
    program.write_text((HERE / "typed_program.py").read_text("utf-8"), "utf-8")
    installed.parent.mkdir()
    installed.symlink_to(HERE.parent / "tapegrad")
    config = tmp_path / "mypy.ini"
    config.write_text("[mypy]\n[mypy-tapegrad.*]\nfollow_imports = silent\n")  # as what lies in site-packages
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file", config, program],
        env={**os.environ, "MYPYPATH": str(installed.parent)},
        capture_output=True, text=True, timeout=300, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0 and program.read_text("utf-8").count("\n") >= 150, done.stdout + done.stderr
    assert not re.search(r"# type:|\bcast\(", program.read_text("utf-8"))
    run = subprocess.run(
        [sys.executable, program], env={**os.environ, "PYTHONPATH": str(HERE.parent)},
        capture_output=True, text=True, timeout=300, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert run.returncode == 0 and "decay" in run.stdout, run.stdout + run.stderr


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
