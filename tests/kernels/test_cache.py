"""The kernel cache: used when it can be trusted, rebuilt when damaged, done without otherwise."""

import os
import shutil
import stat
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

# One kernel, where what is compiled has no part in what is tested: that of a gradient takes four seconds.
ONE = """
import numpy as np
from tapegrad.kernels import cache, emit
x, y = np.linspace(0.1, 0.9, 5, dtype="f4"), np.zeros(5)
kernel = cache.load("cast", emit.cast_source("float32", "float64")).kernel.ctypes
assert kernel(y.ctypes.data, x.ctypes.data, x.itemsize, x.size) == 1
assert np.array_equal(x, y)
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
    assert gradient(directory, ONE)[0] == 1
    return directory


@pytest.fixture
def copy(filled, tmp_path):
    """A cache of its own for a test to damage; file times are kept, as Numba's index holds them."""
    return Path(shutil.copytree(filled, tmp_path / "cache"))


def entries(directory, suffix):
    found = sorted(directory.rglob(f"*{suffix}"))
    assert found
    return found


@pytest.mark.full
def test_a_second_process_compiles_nothing(filled):
    compiled, cached, _ = gradient(filled)
    assert compiled == 0
    assert cached > 0


@pytest.mark.full
def test_the_directory_is_the_user_s_alone(filled):
    for path in [filled, *[p for p in filled.iterdir() if p.is_dir()]]:
        assert path.stat().st_mode & 0o077 == 0


@pytest.mark.full
def test_off_keeps_kernels_in_memory(tmp_path):
    compiled, cached, used = gradient("off", ONE)
    assert (compiled > 0, cached, used) == (True, 0, "None")


@pytest.mark.full
def test_a_file_in_place_of_the_directory(tmp_path):
    place = tmp_path / "cache"
    place.write_text("not a directory")
    compiled, cached, used = gradient(place, ONE)
    assert (compiled > 0, cached, used) == (True, 0, "None")
    assert place.read_text() == "not a directory"


@pytest.mark.full
@pytest.mark.parametrize("mode", [0o770, pytest.param(0o707, marks=SLOW)])
def test_a_directory_others_can_write_to_is_refused(copy, mode):
    """Loading a kernel runs what lies in the file."""
    copy.chmod(mode)
    compiled, cached, used = gradient(copy, ONE)
    assert (compiled > 0, cached, used) == (True, 0, "None")


@pytest.mark.full
def test_an_inner_directory_others_can_write_to_is_refused(copy):
    for inner in copy.iterdir():
        inner.chmod(0o777)
    assert gradient(copy, WHERE)[2] == "None"


@pytest.mark.full
def test_a_link_in_place_of_the_directory_is_refused(copy, tmp_path):
    (tmp_path / "link").symlink_to(copy)
    assert gradient(tmp_path / "link", WHERE)[2] == "None"


@pytest.mark.full
def test_an_inner_link_is_refused(copy, tmp_path):
    (inner,) = [p for p in copy.iterdir() if p.is_dir()]
    inner.rename(tmp_path / "elsewhere")
    inner.symlink_to(tmp_path / "elsewhere")
    assert gradient(copy, WHERE)[2] == "None"


@pytest.mark.full
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


@pytest.mark.full
def test_no_space_left(tmp_path):
    """Files can be made, but nothing written to them."""
    code = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))" + ONE
    compiled, cached, _ = gradient(tmp_path / "cache", code)
    assert (compiled > 0, cached) == (True, 0)
    assert gradient(tmp_path / "cache", ONE)[1] == 0


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


@pytest.mark.full
def test_a_relative_directory_stays_where_it_was(copy):
    enter = f"import os, tapegrad; os.chdir({str(copy.parent)!r}); tapegrad.show_config(); os.chdir('/')"
    compiled, _, used = gradient(copy.name, enter + GRADIENT)
    assert (compiled, Path(used).parent) == (0, copy)


CONFIG = """
import tapegrad
print(0, 0, next(line for line in tapegrad.show_config().split("\\n") if "cache" in line).replace(" ", "_"))
"""


@pytest.mark.full
@pytest.mark.skipif(not hasattr(os, "getuid"), reason="no owners here")
@pytest.mark.parametrize("mode", [0o775, pytest.param(0o777, marks=SLOW)])
def test_a_cache_that_others_could_exchange_is_refused(filled, tmp_path, mode):
    """They could move it and put another in its place: those above it matter too, and links to it."""
    above = tmp_path / "above"
    (above / "between").mkdir(parents=True)
    shutil.copytree(filled, above / "between" / "cache")
    link = tmp_path / "link"
    link.symlink_to(above / "between")
    assert gradient(link / "cache", WHERE)[2] == str(link / "cache" / next(filled.iterdir()).name)
    above.chmod(mode)
    for way in (above / "between", link):
        told = gradient(way / "cache", CONFIG)[2]
        assert "in_memory" in told and f"others_can_write_to_{above};" in told
    above.chmod(0o1777)  # as /tmp: what is in it is its owner's
    assert gradient(link / "cache", WHERE)[2] != "None"


@pytest.mark.full
@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="only root gives folders away")
def test_a_cache_below_the_folder_of_somebody_else_is_refused(copy):
    os.chown(copy.parent, 65534, 65534)
    told = gradient(copy, CONFIG)[2]
    assert "in_memory" in told and "another_user" in told


def test_folders_on_the_way_are_made_for_the_user_alone(tmp_path):
    code = "import os; os.umask(0)" + WHERE
    assert gradient(tmp_path / "a" / "b", code)[2] != "None"
    assert all(path.stat().st_mode & 0o077 == 0 for path in tmp_path.rglob("*") if path.is_dir())


@pytest.mark.full
def test_a_missing_directory_is_made_and_its_files_are_the_user_s_whatever_the_mask(tmp_path):
    code, place = "import os; os.umask(0)" + ONE, tmp_path / "a" / "b"
    compiled, _, used = gradient(place, code)
    assert compiled > 0
    assert used.startswith(str(place))
    assert gradient(place, code)[0] == 0


EXCHANGED = """
import json, hashlib, os, pickle, shutil
from pathlib import Path

class Run:
    def __reduce__(self):
        return exec, ("import os; os.trespassed = True",)

place = Path(cache.directory())
aside, evil = place.parents[1] / "aside", place.parents[1] / "evil"
for index in (evil / place.name).rglob("*.nbi"):
    index.write_bytes(pickle.dumps(Run()))
for seal in (evil / place.name).glob("*.seal"):
    known = json.loads(seal.read_bytes())
    files = {f: hashlib.sha256((seal.parent / f).read_bytes()).hexdigest() for f in known}
    seal.write_text(json.dumps(files))
place.parent.rename(aside)
evil.rename(place.parent)
(h,) = tg.grad(np.sum(np.arctan(x)), x)
assert np.allclose(h.numpy(), 1 / (1 + np.array([0.5, 1.5]) ** 2), rtol=1e-13, atol=0)
assert not hasattr(os, "trespassed")
"""


@pytest.mark.full
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs paths by descriptor")
def test_a_directory_exchanged_after_it_was_looked_at(copy):
    """What was loaded stays, and what is loaded comes from the directory that was looked at."""
    gradient(copy, GRADIENT + "tg.grad(np.sum(np.arctan(x)), x)")
    shutil.copytree(copy, copy.parent / "evil")
    gradient(copy, GRADIENT + EXCHANGED)


@pytest.mark.full
def test_a_process_that_closes_all_descriptors(copy):
    more = """
os.closerange(3, 100)
null = [os.open(os.devnull, os.O_RDONLY) for _ in range(20)]  # in their places
(h,) = tg.grad(np.sum(np.arctan(x)), x)
assert np.allclose(h.numpy(), 1 / (1 + np.array([0.5, 1.5]) ** 2), rtol=1e-13, atol=0)
before = len(os.listdir(cache.directory()))
(h,) = tg.grad(np.sum(np.cbrt(x)), x)
assert len(os.listdir(cache.directory())) > before
"""
    gradient(copy, GRADIENT + more)


@pytest.mark.full
@pytest.mark.parametrize(
    "setting", ["NUMBA_CACHE_DIR", pytest.param("NUMBA_CACHE_LOCATOR_CLASSES", marks=SLOW)]
)
def test_settings_of_numba_s_cache_are_for_others(tmp_path, setting):
    """Kernels stay where they are sealed, or in memory."""
    value = str(tmp_path / "numba") if setting == "NUMBA_CACHE_DIR" else "InTreeCacheLocator"
    compiled, _, used = gradient(tmp_path / "cache", ONE, **{setting: value})
    assert compiled > 0
    assert not (tmp_path / "numba").exists()
    assert (used == "None") == (setting == "NUMBA_CACHE_LOCATOR_CLASSES")


def fifo(file):
    os.mkfifo(file)


def link(file):
    file.with_name("elsewhere").write_bytes(b"")
    file.symlink_to("elsewhere")


def device(file):
    try:
        os.mknod(file, stat.S_IFCHR | 0o600, os.makedev(1, 5))  # endless zeros
    except PermissionError:
        file.symlink_to("/dev/zero")


def given_away(file):
    file.write_bytes(b"")
    os.chown(file, 65534, 65534)


KINDS = [fifo, *(pytest.param(kind, marks=SLOW) for kind in (link, device))]
if getattr(os, "getuid", lambda: 1)() == 0:  # only root gives files away
    KINDS.append(pytest.param(given_away, marks=SLOW))


@pytest.mark.full
@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no FIFOs here")
@pytest.mark.parametrize("make", KINDS)
def test_what_is_no_file_is_neither_read_nor_waited_for(copy, make):
    """Of each entry another name is taken, and the name of the file of locks; all are built again."""
    names = entries(copy, ".seal")
    for k, seal in enumerate(names):
        file = sorted(copy.rglob(f"{seal.stem}*"))[k % 4]
        content = file.read_bytes()
        file.unlink()
        make(file)
        if make is link:
            file.with_name("elsewhere").write_bytes(content)
        elif make is given_away:
            file.write_bytes(content)
    lock = names[0].with_name("lock")
    lock.unlink(missing_ok=True)
    make(lock)
    compiled, _, used = gradient(copy)
    assert compiled + gradient(copy, ONE)[0] >= len(names)
    assert used.startswith(str(copy))
    assert gradient(copy)[0] == 0


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


@pytest.mark.full
def test_damaged_files_are_built_again(copy):
    """Of each entry another file, in another way."""
    for k, seal in enumerate(whole := entries(copy, ".seal")):
        files = sorted(copy.rglob(f"{seal.stem}*"))
        spoil(files[k % len(files)], list(DAMAGE)[k % len(DAMAGE)])
    compiled, _, used = gradient(copy)
    assert compiled + gradient(copy, ONE)[0] >= len(whole)
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


@pytest.mark.full
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


@pytest.mark.full
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


@pytest.mark.full
def test_a_directory_removed_while_it_is_used(copy):
    more = """
import shutil
shutil.rmtree(cache.directory())
(h,) = tg.grad(np.sum(np.tanh(x)), x)
assert np.allclose(h.numpy(), 1 / np.cosh([0.5, 1.5]) ** 2, rtol=1e-13, atol=0)
"""
    compiled, cached, _ = gradient(copy, GRADIENT + more)
    assert (compiled, cached > 0) == (0, True)  # as printed before
    assert gradient(copy, ONE)[0] == 1
