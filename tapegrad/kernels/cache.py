"""Where generated sources live and how they are loaded.

Each source is one file named by the hash of its content and of everything else its machine code
depends on. Numba keeps the compiled code beside it. A directory that cannot be trusted or written is
not used: the source is then compiled in memory. A damaged cache entry is removed and built again.
"""

from __future__ import annotations

import functools
import hashlib
import linecache
import logging  # noqa: F401  (its own hook on forks must be older than ours: a compilation may log)
import os
import shutil
import stat
import sys
import tempfile
import threading
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

from tapegrad.config import bounds, cache_setting

lock = threading.RLock()  # held while Numba or SciPy is imported and while anything compiles
_loaded: dict[tuple[str, str], ModuleType] = {}
_SOURCE_TIME = 1_000_000_000  # one mtime for all: Numba's index stamps a source by mtime and size
LIMIT_BYTES = 256 << 20
statistics = {"compiled": 0, "cached": 0}


FORK_WAIT = 60.0  # seconds
_waited: list[bool] = []


def _before_fork() -> None:
    """Wait for what another thread compiles or imports: a child would wait for that thread for ever."""
    _waited.append(lock.acquire(timeout=FORK_WAIT))


def _after_fork() -> None:
    if _waited.pop():
        lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)


def _default() -> Path:
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or tempfile.gettempdir()
    elif sys.platform == "darwin":
        base = os.path.join(os.path.expanduser("~"), "Library", "Caches")
    else:
        base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "tapegrad"


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
    setting = cache_setting()
    if setting == "off":
        return None
    root = Path(setting).expanduser() if setting else _default()
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not _trusted(root):
            return None
        place = root / _stamp()
        place.mkdir(mode=0o700, exist_ok=True)
        if not _trusted(place):
            return None
        with tempfile.TemporaryFile(dir=place):
            pass
        _bound(root, place)
    except OSError:
        return None
    return place


def _bound(root: Path, place: Path) -> None:
    """Remove other versions' kernels, oldest first, while all of them together are too large."""
    others = []
    for entry in root.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            size = sum(f.lstat().st_size for f in entry.rglob("*") if f.is_file())
            others.append((entry == place, entry.lstat().st_mtime, size, entry))
    total = sum(size for _, _, size, _ in others)
    for _, _, size, entry in sorted(others, key=lambda row: row[:2]):
        if total <= LIMIT_BYTES:
            break
        shutil.rmtree(entry, ignore_errors=True)
        total -= size
    place.mkdir(mode=0o700, exist_ok=True)


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
                module = _loaded[name, text] = _build(name, text)
    return module


def _build(name: str, text: str) -> ModuleType:
    unique = f"tapegrad_{name}_{hashlib.sha256((_stamp() + text).encode()).hexdigest()[:20]}"
    place = directory()
    if place is not None:
        try:
            return _run(unique, text, _write(place, unique, text))
        except Exception:  # whatever a damaged entry raises: build it again, then without a cache
            _evict(place, unique)
            try:
                return _run(unique, text, _write(place, unique, text))
            except Exception:
                _evict(place, unique)
    return _run(unique, text, None)


def _write(place: Path, unique: str, text: str) -> Path:
    path = place / f"{unique}.py"
    try:
        if path.read_text("utf-8") == text and path.stat().st_mtime == _SOURCE_TIME:
            return path
    except (OSError, UnicodeDecodeError):
        pass
    handle, temporary = tempfile.mkstemp(dir=place, prefix=unique, suffix=".tmp")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as out:
            out.write(text)
        os.utime(temporary, (_SOURCE_TIME, _SOURCE_TIME))
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return path


def _evict(place: Path, unique: str) -> None:
    for folder in (place, place / "__pycache__"):
        if folder.is_dir():
            for file in folder.glob(f"{unique}*"):
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
