"""Where generated sources live and how they are loaded.

Each source is one file named by the hash of its content and of everything else its machine code
depends on. Numba keeps the compiled code beside it, and a seal, written last, has the hash of each of an
entry's files: what a process that died left behind, or a file that changed since, is built again and never
run. A directory that others can write to, or exchange, or that cannot be written, is not used: the source is
then compiled in memory.
Processes that want the same entry at the same time wait for the one that compiles it.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import linecache
import os
import re
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, BinaryIO

from tapegrad.config import bounds, cache_setting
from tapegrad.errors import is_from_signal
from tapegrad.kernels.folders import Folder, read
from tapegrad.kernels.locks import compiling, without_finalizers
from tapegrad.progress import announced

_loaded: dict[tuple[str, str], ModuleType] = {}
LONG_SOURCE = 50_000  # characters, which compile in a second or two
KEPT = "__pycache__"  # where Numba keeps what it compiled
LIMIT_BYTES = 256 << 20
_VERSION = re.compile(r"[0-9a-f]{16}")  # the name of a version's folder, by `_stamp`
_SOURCE = re.compile(r"(<|.*[/\\])tapegrad_\w+_[0-9a-f]{20}(>|\.py)")  # a generated source, by `_run`
_SEAL = hashlib.sha256().digest_size
COMPILE_WAIT = 60.0  # seconds for what another process compiles: it may have been stopped
statistics = {"compiled": 0, "cached": 0}


def _root() -> Path | None:
    """Return where the cache is asked to be; None for nowhere, also where the user has no home."""
    place = cache_setting()
    if place == "off":
        return None
    if not place:
        if sys.platform == "win32":
            base = os.environ.get("LOCALAPPDATA") or tempfile.gettempdir()
        elif sys.platform == "darwin":
            base = os.path.join("~", "Library", "Caches")
        else:
            base = os.environ.get("XDG_CACHE_HOME", "")
            if not os.path.isabs(base):  # to be ignored, says the specification
                base = os.path.join("~", ".cache")
        place = os.path.join(base, "tapegrad")
    place = os.path.expanduser(place)
    return None if place.startswith("~") else Path(os.path.abspath(place))


@functools.cache
def _stamp() -> str:
    """Hash of all that machine code depends on besides its own source."""
    import llvmlite.binding as llvm

    here = Path(__file__).parent
    parts = [version("numba"), version("llvmlite"), version("numpy"), sys.version, llvm.get_host_cpu_name()]
    parts.append(llvm.get_host_cpu_features().flatten())
    parts.append(f"bounds={bounds()}")
    files = "lowering.py", "instructions.py", "whole.py", "linked.py", "libraries.py"
    emitting = *(here / name for name in files), *sorted((here / "vecmath").glob("*.py"))
    parts += [path.read_text("utf-8") for path in emitting]
    parts += [f"{key}={value}" for key, value in sorted(os.environ.items()) if key.startswith("NUMBA_")]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


@functools.cache
def _folder() -> Folder | str:
    """Return the folder in use, made on first call, or why kernels stay in memory."""
    root = _root()
    if root is None:
        return ""
    if "NUMBA_CACHE_LOCATOR_CLASSES" in os.environ:
        return "NUMBA_CACHE_LOCATOR_CLASSES is set"
    try:
        with contextlib.closing(Folder(root)) as above:
            _bound(above.place, _stamp())
        folder = Folder(root / _stamp())
        folder.try_writing()
        os.utime(folder.place)  # in use
    except OSError as error:
        return str(error)
    return folder


def directory() -> Path | None:
    """Return the directory in use, or None when kernels stay in memory."""
    folder = _folder()
    return folder.path if isinstance(folder, Folder) else None


def describe() -> str:
    """Say where kernels are kept, or why they are not."""
    folder = _folder()
    if isinstance(folder, Folder):
        return str(folder.path)
    return f"off (kernels are compiled in memory{': ' * bool(folder)}{folder})"


def _bound(root: Path, mine: str) -> None:
    """Remove versions' kernels, the longest unused first, while all of them together are too large.

    Other processes may do the same, or use what is removed: they then compile in memory.
    """
    found = []
    for entry in root.iterdir():
        with contextlib.suppress(FileNotFoundError):
            status = entry.lstat()
            if stat.S_ISDIR(status.st_mode):
                found.append((entry.name == mine, status.st_mtime, _size(entry), entry))
    total = sum(size for _, _, size, _ in found)
    for _, _, size, entry in sorted(found, key=lambda row: row[:2]):
        if total <= LIMIT_BYTES:
            break
        shutil.rmtree(entry, ignore_errors=True)
        total -= size


def _size(folder: Path) -> int:
    """Bytes of the files below a folder."""
    total = 0
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                total += _size(Path(entry.path))
            else:
                with contextlib.suppress(FileNotFoundError):
                    total += entry.stat(follow_symlinks=False).st_size
    return total


def processor() -> str:
    """Return the processor that code is compiled for, by LLVM's name, and how many there are."""
    import llvmlite.binding as llvm

    return f"{llvm.get_host_cpu_name()}, {os.cpu_count()}"


def versions() -> list[tuple[Path, bool, int, float]]:
    """Return the folder of each version, whether it is in use here, its bytes, and when it was last used."""
    mine, root, found = directory(), _root(), []
    if root is not None and root.is_dir():
        for entry in root.iterdir():
            with contextlib.suppress(FileNotFoundError):
                status = entry.lstat()
                if stat.S_ISDIR(status.st_mode) and _VERSION.fullmatch(entry.name):
                    found.append((entry, entry == mine, _size(entry), status.st_mtime))
    return sorted(found, key=lambda row: -row[3])


def clear() -> int:
    """Remove all versions' kernels and return their bytes; what is at work goes on in memory."""
    found = versions()
    for entry, _, _, _ in found:
        shutil.rmtree(entry, ignore_errors=True)
    return sum(size for _, _, size, _ in found)


observers: list[Callable[[str, int, int], None]] = []  # told of what is compiled or read: name, begin, end


def load(name: str, text: str) -> ModuleType:
    """Return the module made from a source text, executing it once per process.

    Parameters
    ----------
    name : str
        A readable stem; the hash of `text` makes it unique.
    text : str
        The source. Its functions are compiled when they are decorated with a signature; it decorates
        with ``cache=CACHE``, and loops over arrays with ``boundscheck=BOUNDS``.
    """
    module = _loaded.get((name, text))
    if module is None:
        with compiling():
            module = _loaded.get((name, text))
            if module is None:
                begin = time.perf_counter_ns()
                module = _loaded[name, text] = _build(name, text)
                for observer in observers.copy():
                    observer(name, begin, time.perf_counter_ns())
    return module


def is_generated(file: str) -> bool:
    """Whether the code of a file is made from a generated source."""
    return _SOURCE.fullmatch(file) is not None


def _build(name: str, text: str) -> ModuleType:
    unique = f"tapegrad_{name}_{hashlib.sha256((_stamp() + text).encode()).hexdigest()[:20]}"
    folder = _folder()
    if isinstance(folder, Folder):
        try:
            return _cached(folder.place, unique, text)
        except Exception as error:  # no space left, the folder removed, or whatever Numba makes of it
            if is_from_signal(error):
                raise
            with contextlib.suppress(OSError):
                _evict(folder.place, unique)
    with _announced(unique, text):
        return _run(unique, text, None)


def _announced(unique: str, text: str) -> contextlib.AbstractContextManager[None]:
    """Say of a source that takes more than a second what it is."""
    if len(text) < LONG_SOURCE:
        return contextlib.nullcontext()
    kept = "" if directory() is None else f", kept in {directory()}"
    return announced(f"tapegrad's {unique.split('_')[1]}, once{kept}")


def _cached(place: Path, unique: str, text: str) -> ModuleType:
    if not _sealed(place, unique, text):
        with _turn(place, unique):
            if not _sealed(place, unique, text):
                _evict(place, unique)
                _write(place, f"{unique}.py", text)
                with _announced(unique, text):
                    module = _run(unique, text, place)
                _seal(place, unique)
                return module
    return _run(unique, text, place)


@contextlib.contextmanager
def _turn(place: Path, unique: str) -> Iterator[None]:
    """Let one process at a time compile an entry, where there are locks; a lock ends with its process."""
    with _lock_file(place / "lock") as file:
        try:
            import fcntl
        except ImportError:
            yield
            return
        byte = int(unique[-7:], 16)
        end = time.monotonic() + COMPILE_WAIT
        while True:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, byte)
            except (BlockingIOError, PermissionError):
                if time.monotonic() < end:
                    time.sleep(0.01)
                    continue
            except OSError:
                pass
            break
        yield


def _lock_file(path: Path) -> BinaryIO:
    """Open a file to lock parts of; whatever else has its name is removed."""
    if path.is_symlink() or (path.exists() and not path.is_file()):
        path.unlink()
    return open(path, "ab")


def _files(place: Path, unique: str) -> list[Path]:
    return [*place.glob(f"{unique}*"), *(place / KEPT).glob(f"{unique}*")]


def _digest(file: Path) -> str:
    return hashlib.sha256(read(file)).hexdigest()


def _seal(place: Path, unique: str) -> None:
    digests = {}
    for file in _files(place, unique):
        file.chmod(0o600)  # whatever new files are by the user's mask
        digests[str(file.relative_to(place))] = _digest(file)
    _write(place, f"{unique}.seal", json.dumps(digests))


def _sealed(place: Path, unique: str, text: str) -> bool:
    """Whether an entry is whole and as it was made, and nothing is there besides that Numba would read."""
    try:
        digests = json.loads(read(place / f"{unique}.seal"))
        if (place / KEPT).is_symlink() or read(place / f"{unique}.py") != text.encode():
            return False
        there = {str(file.relative_to(place)) for file in (place / KEPT).glob(f"{unique}*.nb[ci]")}
        return there < set(digests) and all(_digest(place / f) == d for f, d in digests.items())
    except (OSError, ValueError, TypeError, AttributeError):  # none; damaged
        return False


def _write(place: Path, name: str, content: str | bytes) -> None:
    """Write a file so that it is there as a whole or not at all."""
    handle, temporary = tempfile.mkstemp(dir=place, prefix=name, suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as out:
            out.write(content if isinstance(content, bytes) else content.encode())
        os.replace(temporary, place / name)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def fetch(name: str, content: bytes) -> bytes | None:
    """Return the data kept under a name, if it is of this content and whole; else it is removed."""
    folder = _folder()
    if isinstance(folder, Folder):
        with contextlib.suppress(OSError):
            path = folder.place / f"tapegrad_{name}.bin"
            seal, data = (found := read(path))[:_SEAL], found[_SEAL:]
            if seal == hashlib.sha256(content + data).digest():
                return data
            path.unlink()
    return None


def keep(name: str, content: bytes, data: bytes) -> None:
    """Keep data under a name: what was compiled of some content, all that tells whether it is to be used."""
    folder = _folder()
    if isinstance(folder, Folder):
        with contextlib.suppress(OSError):
            _write(folder.place, f"tapegrad_{name}.bin", hashlib.sha256(content + data).digest() + data)


def _evict(place: Path, unique: str) -> None:
    with contextlib.suppress(OSError):
        if (place / KEPT).is_symlink():
            (place / KEPT).unlink()
        for file in _files(place, unique):
            if file.is_dir() and not file.is_symlink():
                shutil.rmtree(file, ignore_errors=True)
            else:
                file.unlink(missing_ok=True)


_places: dict[str, Path] = {}  # of the entries of modules that Numba is to cache


@functools.cache
def _lead_numba() -> None:
    """Have Numba keep our modules' code in our folder, whatever it is told for others by NUMBA_CACHE_DIR."""
    from numba.core import caching

    classes: list[Any] = caching.CacheImpl._locator_classes

    class Locator(caching._CacheLocator):
        def __init__(self, function: FunctionType) -> None:
            self.place, self.line = _places[function.__module__], function.__code__.co_firstlineno

        def get_cache_path(self) -> str:
            return str(self.place / KEPT)

        def get_source_stamp(self) -> int:
            return 0  # the hash of the source is in its name

        def get_disambiguator(self) -> str:
            return str(self.line)

        @classmethod
        def from_function(cls, function: FunctionType, file: str) -> Locator | None:
            return cls(function) if function.__module__ in _places else None

    classes.insert(0, Locator)


def _run(unique: str, text: str, place: Path | None) -> ModuleType:
    from tapegrad.kernels.libraries import waiting

    filename = f"<{unique}>"
    if place is not None:
        _lead_numba()
        _places[unique] = place
        filename = str((directory() or place) / f"{unique}.py")
    module = ModuleType(unique)
    module.__file__ = filename
    module.__dict__["CACHE"] = place is not None
    module.__dict__["BOUNDS"] = bounds()
    if place is None:
        linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    sys.modules[unique] = module  # before it runs: Numba's cache looks the module up by its name
    try:
        with without_finalizers(), waiting():
            exec(compile(text, filename, "exec"), module.__dict__)
    except BaseException:
        sys.modules.pop(unique, None)
        raise
    for value in module.__dict__.values():
        _count(value)
    return module


def _count(value: Any) -> None:
    """Tell compiled functions from cached ones."""
    if hasattr(value, "stats"):  # a dispatcher
        hits = sum(value.stats.cache_hits.values())
        statistics["cached"] += hits
        statistics["compiled"] += len(value.signatures) - hits
    elif hasattr(value, "cache_hits"):  # a cfunc
        statistics["cached" if value.cache_hits else "compiled"] += 1
