"""The kernel cache: used when it can be trusted, rebuilt when damaged, done without otherwise."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tapegrad as tg

SLOW = pytest.mark.slow
SUFFIXES = [".nbi", ".nbc", ".py", ".seal"]
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

WHERE = """
from tapegrad.kernels import cache
print(0, 0, cache.directory())
"""


def gradient(directory, code=GRADIENT, **more):
    """Compute a gradient in a new process; (kernels compiled, kernels from the cache, directory used)."""
    environment = os.environ | {
        "PYTHONPATH": str(Path(tg.__file__).parents[1]),
        "TAPEGRAD_CACHE": str(directory),
    }
    environment |= more
    environment = {name: value for name, value in environment.items() if value != ""}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
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


def test_an_inner_directory_others_can_write_to_is_refused(copy):
    for inner in copy.iterdir():
        inner.chmod(0o777)
    assert gradient(copy, WHERE)[2] == "None"


def test_a_link_in_place_of_the_directory_is_refused(copy, tmp_path):
    (tmp_path / "link").symlink_to(copy)
    assert gradient(tmp_path / "link", WHERE)[2] == "None"


def test_an_inner_link_is_refused(copy, tmp_path):
    (inner,) = [p for p in copy.iterdir() if p.is_dir()]
    inner.rename(tmp_path / "elsewhere")
    inner.symlink_to(tmp_path / "elsewhere")
    assert gradient(copy, WHERE)[2] == "None"


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="no owners here")
def test_a_directory_of_somebody_else_is_refused(copy):
    """Root gives its cache away; others take one of root's."""
    if os.getuid() == 0:
        os.chown(copy, 65534, 65534)
    place = copy if os.getuid() == 0 else Path("/usr")
    before = sorted(place.iterdir())
    assert gradient(place, WHERE)[2] == "None"
    assert sorted(place.iterdir()) == before


def test_a_read_only_directory(tmp_path):
    place = tmp_path / "cache"
    place.mkdir(mode=0o500)
    if os.access(place, os.W_OK):  # root may write anywhere but here
        place = Path("/proc/tapegrad")
    assert gradient(place, WHERE)[2] == "None"


def test_no_space_left(tmp_path):
    """Files can be made, but nothing written to them."""
    code = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))" + GRADIENT
    compiled, cached, _ = gradient(tmp_path / "cache", code)
    assert (compiled > 0, cached) == (True, 0)
    assert gradient(tmp_path / "cache")[1] == 0


NOBODY = """
import os, pwd
os.environ.pop("HOME", None)
def getpwuid(uid):
    raise KeyError(uid)
pwd.getpwuid = getpwuid
"""


@pytest.mark.parametrize("setting", ["", "~/somewhere"])
def test_a_user_without_a_home(tmp_path, setting):
    """As in a container that runs under any number: nothing is written, not below a folder `~` either."""
    enter = f"import os; os.chdir({str(tmp_path)!r})"
    assert gradient(setting, enter + NOBODY + WHERE, XDG_CACHE_HOME="")[2] == "None"
    assert not list(tmp_path.iterdir())


def test_home_unset(tmp_path):
    """Without HOME the user's entry in the password file counts."""
    used = gradient("", WHERE, HOME="", XDG_CACHE_HOME=str(tmp_path))[2]
    assert used.startswith(str(tmp_path / "tapegrad"))
    used = gradient("", WHERE, HOME=str(tmp_path / "somebody"), XDG_CACHE_HOME="")[2]
    assert used.startswith(str(tmp_path / "somebody"))


def test_a_relative_directory_stays_where_it_was(copy):
    enter = f"import os, tapegrad; os.chdir({str(copy.parent)!r}); tapegrad.show_config(); os.chdir('/')"
    compiled, _, used = gradient(copy.name, enter + GRADIENT)
    assert (compiled, Path(used).parent) == (0, copy)


DAMAGE = {
    "empty": lambda data: b"",
    "truncated": lambda data: data[: len(data) // 2],
    "garbage": lambda data: bytes(reversed(data)),
    "first byte": lambda data: b"\xff" + data[1:],
    "one bit": lambda data: data[: (k := len(data) * 2 // 3)] + bytes([data[k] ^ 1]) + data[k + 1 :],
    "zeros": lambda data: data[: (k := len(data) // 2)] + bytes(len(data) - k),
    "missing": None,
    "a directory": None,
}


def spoil(file, damage):
    stamp, spoiled = file.stat(), DAMAGE[damage]
    if spoiled is not None:
        file.write_bytes(spoiled(file.read_bytes()))
        os.utime(file, (stamp.st_atime, stamp.st_mtime))
    else:
        file.unlink()
        if damage == "a directory":
            file.mkdir()


def test_damaged_files_are_built_again(copy):
    """Of each entry another file, in another way."""
    for k, seal in enumerate(whole := entries(copy, ".seal")):
        files = sorted(copy.rglob(f"{seal.stem}*"))
        spoil(files[k % len(files)], list(DAMAGE)[k % len(DAMAGE)])
    compiled, _, used = gradient(copy)
    assert compiled >= len(whole)
    assert used.startswith(str(copy))
    assert gradient(copy)[0] == 0  # the repair was kept


@pytest.mark.slow
@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("damage", DAMAGE)
def test_all_files_damaged_in_one_way(copy, suffix, damage):
    """``pytest -m slow tests/kernels/test_cache.py``."""
    for file in entries(copy, suffix):
        spoil(file, damage)
    assert gradient(copy)[2].startswith(str(copy))
    assert gradient(copy)[0] == 0


@pytest.mark.slow
def test_bits_that_changed_are_never_run(copy):
    """Machine code with a bit changed would end the process, never end, or compute something else."""
    random = np.random.default_rng(0)
    for _ in range(20):
        for file in entries(copy, ".nbc"):
            data = np.fromfile(file, np.uint8)
            data[random.integers(len(data), size=3)] ^= np.uint8(1 << random.integers(8))
            data.tofile(file)
        assert gradient(copy)[0] > 0


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


def older(directory, name, megabytes, used):
    """The folder of another version, last used so many seconds after 1970."""
    old = directory / name
    old.mkdir(mode=0o700)
    with open(old / "large", "wb") as file:
        file.truncate(megabytes << 20)
    os.utime(old, (used, used))
    return old


def test_what_was_not_used_for_longest_is_dropped_when_all_is_too_large(copy):
    (mine,) = [p for p in copy.iterdir() if p.is_dir()]
    os.utime(mine, (1, 1))
    recent, past, last = older(copy, "b", 200, 30), older(copy, "a", 100, 20), older(copy, "c", 50, 10)
    (copy / "a file").write_text("")
    (copy / "a link").symlink_to(copy / "nowhere")
    compiled, _, _ = gradient(copy)
    assert compiled == 0
    assert [p.exists() for p in (recent, past, last)] == [True, False, False]
    assert mine.stat().st_mtime > 30  # it was used


@pytest.mark.slow
def test_a_cache_that_is_too_large_by_itself_is_started_again(copy):
    (mine,) = [p for p in copy.iterdir() if p.is_dir()]
    with open(mine / "large", "wb") as file:
        file.truncate(300 << 20)
    assert gradient(copy)[0] > 0
    assert gradient(copy)[0] == 0


def test_a_directory_removed_while_it_is_used(copy):
    more = """
import shutil
shutil.rmtree(cache.directory())
(h,) = tg.grad(np.sum(np.tanh(x)), x)
assert np.allclose(h.numpy(), 1 / np.cosh([0.5, 1.5]) ** 2, rtol=1e-13, atol=0)
"""
    compiled, cached, _ = gradient(copy, GRADIENT + more)
    assert (compiled, cached > 0) == (0, True)  # as printed before
    assert gradient(copy)[0] > 0
