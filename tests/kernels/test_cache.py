"""The kernel cache: used when it can be trusted, rebuilt when damaged, done without otherwise."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tapegrad as tg

SLOW = pytest.mark.slow
GRADIENT = """
import os, sys, numpy as np, tapegrad as tg
from tapegrad.kernels import cache
def f(x):
    y = np.sin(x) * x + np.exp(-x) / (1.0 + x * x)
    return np.sum(np.sqrt(y * y + 1.0))
def by_complex_step(at):
    return f(at + 1e-30j).imag / 1e-30
x = tg.tensor([0.5, 1.5], requires_grad=True)
(g,) = tg.grad(f(x), x)
expected = [by_complex_step(np.array([0.5])), by_complex_step(np.array([1.5]))]
assert np.allclose(g.numpy(), expected, rtol=1e-13, atol=0), (g, expected)
print(cache.statistics["compiled"], cache.statistics["cached"], cache.directory())
"""


def gradient(directory, **more):
    """Compute a gradient in a new process; (kernels compiled, kernels from the cache, directory used)."""
    environment = os.environ | {
        "PYTHONPATH": str(Path(tg.__file__).parents[1]),
        "TAPEGRAD_CACHE": str(directory),
    }
    environment |= more
    environment = {name: value for name, value in environment.items() if value != ""}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", GRADIENT],
        capture_output=True, text=True, timeout=300, check=False, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stderr == ""
    compiled, cached, used = done.stdout.split()
    return int(compiled), int(cached), used


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    """A cache directory that one process has filled."""
    directory = tmp_path_factory.mktemp("filled") / "cache"
    compiled, _, used = gradient(directory)
    assert compiled > 0
    assert used.startswith(str(directory))
    return directory


@pytest.fixture
def copy(filled, tmp_path):
    """A cache of its own for a test to damage; file times are kept, as Numba's index holds them."""
    return Path(shutil.copytree(filled, tmp_path / "cache"))


def entries(directory, suffix):
    found = sorted(directory.rglob(f"*{suffix}"))
    assert found
    return found


def test_a_second_process_compiles_nothing(filled):
    compiled, cached, _ = gradient(filled)
    assert compiled == 0
    assert cached > 0


def test_the_directory_is_the_user_s_alone(filled):
    for path in [filled, *[p for p in filled.iterdir() if p.is_dir()]]:
        assert path.stat().st_mode & 0o077 == 0


def test_a_missing_directory_is_made(tmp_path):
    compiled, _, used = gradient(tmp_path / "a" / "b")
    assert compiled > 0
    assert used.startswith(str(tmp_path / "a" / "b"))


def test_off_keeps_kernels_in_memory(tmp_path):
    compiled, cached, used = gradient("off")
    assert (compiled > 0, cached, used) == (True, 0, "None")


def test_a_file_in_place_of_the_directory(tmp_path):
    place = tmp_path / "cache"
    place.write_text("not a directory")
    compiled, cached, used = gradient(place)
    assert (compiled > 0, cached, used) == (True, 0, "None")
    assert place.read_text() == "not a directory"


@pytest.mark.parametrize("mode", [0o770, pytest.param(0o707, marks=SLOW)])
def test_a_directory_others_can_write_to_is_refused(copy, mode):
    """Loading a kernel runs what lies in the file."""
    copy.chmod(mode)
    compiled, cached, used = gradient(copy)
    assert (compiled > 0, cached, used) == (True, 0, "None")


@pytest.mark.slow
def test_an_inner_directory_others_can_write_to_is_refused(copy):
    for inner in copy.iterdir():
        inner.chmod(0o777)
    assert gradient(copy)[1:] == (0, "None")


@pytest.mark.slow
def test_a_link_in_place_of_the_directory_is_refused(copy, tmp_path):
    (tmp_path / "link").symlink_to(copy)
    assert gradient(tmp_path / "link")[1:] == (0, "None")


@pytest.mark.slow
def test_an_inner_link_is_refused(copy, tmp_path):
    (inner,) = [p for p in copy.iterdir() if p.is_dir()]
    inner.rename(tmp_path / "elsewhere")
    inner.symlink_to(tmp_path / "elsewhere")
    assert gradient(copy)[1:] == (0, "None")


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() == 0, reason="root may write anywhere")
def test_a_read_only_directory(tmp_path):
    place = tmp_path / "cache"
    place.mkdir(mode=0o500)
    assert gradient(place)[1:] == (0, "None")


def test_home_unset(tmp_path):
    """Without HOME the user's entry in the password file counts; the gradient is right either way."""
    compiled, cached, _ = gradient("", HOME="", XDG_CACHE_HOME=str(tmp_path))
    assert compiled + cached > 0
    compiled, cached, used = gradient("", HOME=str(tmp_path / "nobody"), XDG_CACHE_HOME="")
    assert used.startswith(str(tmp_path / "nobody"))


DAMAGE = {
    "empty": lambda data: b"",
    "truncated": lambda data: data[: len(data) // 2],
    "garbage": lambda data: bytes(reversed(data)),
    "first byte": lambda data: b"\xff" + data[1:],
}


def spoil(file, damage):
    stamp = file.stat()
    file.write_bytes(DAMAGE[damage](file.read_bytes()))
    os.utime(file, (stamp.st_atime, stamp.st_mtime))


@pytest.mark.parametrize("suffix", [".nbi", ".nbc", ".py"])
def test_damaged_files_are_built_again(copy, suffix):
    """Each file is damaged in another way."""
    for k, file in enumerate(entries(copy, suffix)):
        spoil(file, list(DAMAGE)[k % len(DAMAGE)])
    assert gradient(copy)[2].startswith(str(copy))
    assert gradient(copy)[0] == 0  # the repair was kept


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".nbi", ".nbc", ".py"])
@pytest.mark.parametrize("damage", DAMAGE)
def test_all_files_damaged_in_one_way(copy, suffix, damage):
    """``pytest -m slow tests/kernels/test_cache.py``."""
    for file in entries(copy, suffix):
        spoil(file, damage)
    assert gradient(copy)[2].startswith(str(copy))
    assert gradient(copy)[0] == 0


@pytest.mark.parametrize(
    "suffix", [".py", pytest.param(".nbi", marks=SLOW), pytest.param(".nbc", marks=SLOW)]
)
def test_a_file_that_cannot_be_replaced(copy, suffix):
    """A directory stands where a file should be."""
    for file in entries(copy, suffix):
        file.unlink()
        file.mkdir()
    compiled, _, _ = gradient(copy)
    assert compiled >= 0


def test_leftovers_of_a_writer_that_died_do_no_harm(copy):
    (inner,) = [p for p in copy.iterdir() if p.is_dir()]
    for file in entries(copy, ".py"):
        (inner / f"{file.stem}abc.tmp").write_text("half of it")
    assert gradient(copy)[0] == 0


@pytest.mark.slow
def test_other_options_of_numba_do_not_share_kernels(filled):
    compiled, cached, _ = gradient(filled, NUMBA_OPT="1")
    assert compiled > 0
    assert cached == 0


def test_old_versions_are_dropped_when_all_is_too_large(copy):
    old = copy / "0123456789abcdef"
    old.mkdir(mode=0o700)
    with open(old / "large", "wb") as file:
        file.truncate(300 << 20)
    os.utime(old, (1, 1))
    compiled, _, _ = gradient(copy)
    assert compiled == 0
    assert not old.exists()
