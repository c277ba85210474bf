"""A folder that nobody but its user can write to, and that stays the same whatever is put in its place.

What lies in the kernel cache is run. So the way there must not lead through a folder where somebody else
could exchange the next one; and once looked at, the cache is known by a descriptor, not by its path.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from pathlib import Path

OWNED = hasattr(os, "getuid") and os.open in os.supports_dir_fd
FOLDER = getattr(os, "O_PATH", os.O_RDONLY)  # a folder on the way may be one to pass only
for _name in ("O_DIRECTORY", "O_NOFOLLOW", "O_CLOEXEC"):
    FOLDER |= getattr(os, _name, 0)
FILE = os.O_RDONLY  # O_NONBLOCK: a FIFO would wait for a writer
for _name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY"):
    FILE |= getattr(os, _name, 0)


class Folder:
    """A folder of this user alone, made if need be; an OSError says why there is none."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._open()

    def _open(self) -> None:
        self._descriptor = -1
        if OWNED:
            self._descriptor = _descend(self.path)
            self._status = os.fstat(self._descriptor)
        else:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not stat.S_ISDIR(self.path.lstat().st_mode):
                raise NotADirectoryError(f"{self.path} is a link")

    @property
    def place(self) -> Path:
        """A path to this folder, whatever stands at its own by now, where the system has such paths."""
        if self._descriptor < 0:
            return self.path
        try:
            same = os.path.samestat(os.fstat(self._descriptor), self._status)
        except OSError:
            same = False
        if not same:  # the program has closed all descriptors, as one that becomes a daemon does
            self._open()
        place = Path(f"/proc/self/fd/{self._descriptor}")
        try:
            return place if os.path.samestat(place.stat(), self._status) else self.path
        except OSError:
            return self.path

    def try_writing(self) -> None:
        """See that files can be made."""
        with tempfile.TemporaryFile(dir=self.place):
            pass

    def close(self) -> None:
        """Let go of the descriptor."""
        if self._descriptor >= 0:
            os.close(self._descriptor)


def _descend(path: Path) -> int:
    """Open a folder by way of all that lead there, each looked at; those that are not there are made."""
    path = Path(os.path.realpath(path.parent), path.name)
    at = Path(path.anchor)
    descriptor = os.open(at, FOLDER)
    try:
        for name in path.parts[1:]:
            _look(at, os.fstat(descriptor), (0, os.getuid()), stat.S_ISVTX)
            above, descriptor = descriptor, _enter(descriptor, name)
            os.close(above)
            at /= name
        _look(at, os.fstat(descriptor), (os.getuid(),), 0)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _enter(descriptor: int, name: str) -> int:
    try:
        return os.open(name, FOLDER, dir_fd=descriptor)
    except FileNotFoundError:
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=descriptor)
        return os.open(name, FOLDER, dir_fd=descriptor)


def _look(path: Path, status: os.stat_result, owners: tuple[int, ...], excuse: int) -> None:
    if status.st_uid not in owners:
        raise PermissionError(f"{path} belongs to another user ({status.st_uid})")
    if status.st_mode & 0o022 and not status.st_mode & excuse:
        raise PermissionError(f"others can write to {path}; chmod go-w {path}")


def read(file: Path) -> bytes:
    """Read a file of this user's; an OSError where anything else has its name."""
    with os.fdopen(os.open(file, FILE), "rb") as opened:
        status = os.fstat(opened.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(f"{file} is no file")
        if OWNED:
            _look(file, status, (os.getuid(),), 0)
        return opened.read()
