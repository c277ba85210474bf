"""Where generated sources live and how they are loaded.

Each source is one file named by the hash of its content and of everything else its machine code
depends on. Numba keeps the compiled code beside it, and a seal, written last, has the hash of each of an
entry's files: what a process that died left behind, or a file that changed since, is built again and never
run. A directory that cannot be trusted or written is not used: the source is then compiled in memory.
Processes that want the same entry at the same time wait for the one that compiles it.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import importlib
import json
import linecache
import logging  # noqa: F401  (its own hook on forks must be older than ours: a compilation may log)
import os
import shutil
import stat
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

from tapegrad.config import bounds, cache_setting

lock = threading.RLock()  # held while Numba or SciPy is imported and while anything compiles
_loaded: dict[tuple[str, str], ModuleType] = {}
_SOURCE_TIME = 1_000_000_000  # one mtime for all: Numba's index stamps a source by mtime and size
LIMIT_BYTES = 256 << 20
_SEAL = hashlib.sha256().digest_size
COMPILE_WAIT = 60.0  # seconds for what another process compiles: it may have been stopped
statistics = {"compiled": 0, "cached": 0}


OTHERS_WAIT = 60.0  # seconds for what another thread compiles or imports
_waited: list[bool] = []


def _before_fork() -> None:
    """Wait for other threads' compilations and imports: a child would wait for those threads for ever."""
    _waited.append(lock.acquire(timeout=OTHERS_WAIT))


def _after_fork() -> None:
    if _waited.pop():
        lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)


@atexit.register
def _before_exit() -> None:
    """Wait for them, and let none begin: LLVM aborts in a daemon thread when the process takes it down.

    llvmlite imported by one of them while exit functions run is too late for its own, by which it learns
    that its objects are not to be closed any more.
    """
    lock.acquire(timeout=OTHERS_WAIT)
    getattr(sys.modules.get("llvmlite.binding.common"), "_at_shutdown", lambda: None)()


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


def _trusted(path: Path) -> bool:
    """Whether only this user can write there: loading a cached kernel runs what lies in the file."""
    try:
        found = path.lstat()
    except OSError:
        return False
    if not stat.S_ISDIR(found.st_mode):
        return False
    if hasattr(os, "getuid"):
        return found.st_uid == os.getuid() and not found.st_mode & 0o022
    return True


@functools.cache
def _stamp() -> str:
    """Hash of all that machine code depends on besides its own source."""
    import llvmlite.binding as llvm

    here = Path(__file__).parent
    parts = [version("numba"), version("llvmlite"), version("numpy"), sys.version, llvm.get_host_cpu_name()]
    parts.append(llvm.get_host_cpu_features().flatten())
    parts.append(f"bounds={bounds()}")
    emitting = here / "lowering.py", *sorted((here / "vecmath").glob("*.py"))
    parts += [path.read_text("utf-8") for path in emitting]
    parts += [f"{key}={value}" for key, value in sorted(os.environ.items()) if key.startswith("NUMBA_")]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


@functools.cache
def directory() -> Path | None:
    """Return the directory in use, made on first call, or None when kernels stay in memory."""
    try:
        root = _root()
        if root is None:
            return None
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not _trusted(root):
            return None
        place = root / _stamp()
        place.mkdir(mode=0o700, exist_ok=True)
        if not _trusted(place):
            return None
        with tempfile.TemporaryFile(dir=place):
            pass
        os.utime(place)  # in use
        _bound(root, place)
        place.mkdir(mode=0o700, exist_ok=True)
    except OSError:
        return None
    return place


def _bound(root: Path, place: Path) -> None:
    """Remove versions' kernels, the longest unused first, while all of them together are too large.

    Other processes may do the same, or use what is removed: they then compile in memory.
    """
    found = []
    for entry in root.iterdir():
        with contextlib.suppress(FileNotFoundError):
            status = entry.lstat()
            if stat.S_ISDIR(status.st_mode):
                found.append((entry == place, status.st_mtime, _size(entry), entry))
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
        with lock:
            module = _loaded.get((name, text))
            if module is None:
                begin = time.perf_counter_ns()
                module = _loaded[name, text] = _build(name, text)
                for observer in observers.copy():
                    observer(name, begin, time.perf_counter_ns())
    return module


@functools.cache
def _import_numba() -> None:
    """Import Numba whole or not at all: what an interrupt leaves half imported would stay so."""
    before = set(sys.modules)
    try:
        importlib.import_module("numba.extending")
    except BaseException:
        for name in set(sys.modules) - before:
            if name.partition(".")[0] in ("numba", "llvmlite"):
                del sys.modules[name]
        raise


def _build(name: str, text: str) -> ModuleType:
    _import_numba()
    unique = f"tapegrad_{name}_{hashlib.sha256((_stamp() + text).encode()).hexdigest()[:20]}"
    place = directory()
    if place is not None:
        try:
            return _cached(place, unique, text)
        except Exception:  # no space left, the folder removed, or whatever Numba makes of it
            _evict(place, unique)
    return _run(unique, text, None)


def _cached(place: Path, unique: str, text: str) -> ModuleType:
    if not _sealed(place, unique):
        with _turn(place, unique):
            if not _sealed(place, unique):
                _evict(place, unique)
                module = _run(unique, text, _source(place, unique, text))
                _seal(place, unique)
                return module
    return _run(unique, text, _source(place, unique, text))


@contextlib.contextmanager
def _turn(place: Path, unique: str) -> Iterator[None]:
    """Let one process at a time compile an entry, where there are locks; a lock ends with its process."""
    with open(place / "lock", "ab") as file:
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


def _files(place: Path, unique: str) -> list[Path]:
    return [*place.glob(f"{unique}*"), *(place / "__pycache__").glob(f"{unique}*")]


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _seal(place: Path, unique: str) -> None:
    digests = {str(file.relative_to(place)): _digest(file) for file in _files(place, unique)}
    _replace(place, f"{unique}.seal", json.dumps(digests))


def _sealed(place: Path, unique: str) -> bool:
    """Whether an entry is whole and as it was made."""
    try:
        digests = json.loads((place / f"{unique}.seal").read_bytes())
        return f"{unique}.py" in digests and all(_digest(place / f) == d for f, d in digests.items())
    except (OSError, ValueError, TypeError, AttributeError):  # none; damaged
        return False


def _source(place: Path, unique: str, text: str) -> Path:
    """Return the file of a source, written if need be; Numba compares its time."""
    path = place / f"{unique}.py"
    try:
        if path.read_text("utf-8") == text and path.stat().st_mtime == _SOURCE_TIME:
            return path
    except (OSError, UnicodeDecodeError):
        pass
    return _replace(place, path.name, text)


def _replace(place: Path, name: str, content: str | bytes) -> Path:
    """Write a file so that it is there as a whole or not at all."""
    handle, temporary = tempfile.mkstemp(dir=place, prefix=name, suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as out:
            out.write(content if isinstance(content, bytes) else content.encode("utf-8"))
        os.utime(temporary, (_SOURCE_TIME, _SOURCE_TIME))
        os.replace(temporary, place / name)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return place / name


def fetch(name: str, content: bytes) -> bytes | None:
    """Return the data kept under a name, if it is of this content and whole; else it is removed."""
    place = directory()
    if place is None:
        return None
    path = place / f"tapegrad_{name}.bin"
    with contextlib.suppress(OSError):
        seal, data = (found := path.read_bytes())[:_SEAL], found[_SEAL:]
        if seal == hashlib.sha256(content + data).digest():
            return data
        path.unlink()
    return None


def keep(name: str, content: bytes, data: bytes) -> None:
    """Keep data under a name: what was compiled of some content, all that tells whether it is to be used."""
    place = directory()
    if place is not None:
        with contextlib.suppress(OSError):
            _replace(place, f"tapegrad_{name}.bin", hashlib.sha256(content + data).digest() + data)


def _evict(place: Path, unique: str) -> None:
    with contextlib.suppress(OSError):
        for file in _files(place, unique):
            if file.is_dir() and not file.is_symlink():
                shutil.rmtree(file, ignore_errors=True)
            else:
                file.unlink(missing_ok=True)


def _run(unique: str, text: str, path: Path | None) -> ModuleType:
    filename = str(path) if path is not None else f"<{unique}>"
    module = ModuleType(unique)
    module.__file__ = filename
    module.__dict__["CACHE"] = path is not None
    module.__dict__["BOUNDS"] = bounds()
    if path is None:
        linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    sys.modules[unique] = module  # before it runs: Numba's cache looks the module up by its name
    try:
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
