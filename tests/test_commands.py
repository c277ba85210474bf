"""``python -m tapegrad``: each command, run as a program is."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import tapegrad as tg
from tapegrad import batch
from tapegrad.bench import bench
from tapegrad.errors import DTypeError


def run(*words, code=0, **environment):
    environment = os.environ | {"PYTHONPATH": str(Path(tg.__file__).parents[1])} | environment
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "tapegrad", *words], capture_output=True, text=True,
        timeout=300, check=False, env=environment,
    )  # fmt: skip
    assert done.returncode == code, done.stderr[-2000:]
    return done.stdout if code == 0 else done.stderr


def test_info():
    found = run("info")
    for row in ("tapegrad", "numpy", "python", "processor", "kernel cache", "of size", "object layout"):
        assert f"{row:14s} " in found
    assert tg.__version__ in found


def test_cache_is_listed_and_cleared(tmp_path):
    tmp_path.chmod(0o700)
    other, foreign = tmp_path / ("0123456789abcdef"), tmp_path / "notes"
    for folder in (other, foreign):
        folder.mkdir(mode=0o700)
        (folder / "file").write_bytes(b"x" * (1 << 20))
    found = run("cache", TAPEGRAD_CACHE=str(tmp_path))
    assert f"{other}  " in found and "1.0 MiB" in found and "in use" in found and str(foreign) not in found
    assert "removed 1.0 MiB" in run("cache", "clear", TAPEGRAD_CACHE=str(tmp_path))
    assert not other.exists() and (foreign / "file").exists()  # what is no version of ours is left alone
    assert "limit" in run("cache", TAPEGRAD_CACHE="off")


@pytest.mark.full
def test_warm_up():
    assert run("warmup").startswith("compiled ")
    assert batch.warm_up() >= 0
    assert batch.warm_up() == 0  # all is there
    with pytest.raises(DTypeError, match="int8"):
        batch.warm_up(["int8"])


def test_bench():
    lines = bench(rounds=1).splitlines()
    assert len(lines) == 7 and all(float(line.split()[-2]) > 0 for line in lines[1:])


def test_other_words_are_refused():
    assert "invalid choice" in run("nothing", code=2)
