"""Files that outlive the process: kernel sources, and what Triton compiles them to.

In: bytes and a name, under the folder that FUSER_CACHE_DIR names. Out: the path of a file that
holds exactly those bytes. A file that another user could have written is never used, a damaged one
counts as missing, and where the folder cannot serve, a private one of this process takes its place.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import shutil
import stat
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import triton
from triton.runtime.cache import FileCacheManager

from fuser import config
from fuser.log import get_logger, warn_once

__all__ = ["CheckedCacheManager", "folder", "private_folder", "store_source", "triton_cache"]

SOURCES = "sources"
TRITON = "triton"
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_DIGEST_SUFFIX = ".sha256"

_lock = threading.Lock()
_scope_lock = threading.Lock()
_private: tuple[int, Path] | None = None
_scope_users = 0
_scope = ExitStack()


# **** folders and trust ****


def folder(kind: str) -> Path:
    """A folder for one kind of file that only this user can write to; it exists."""
    try:
        found = _make_folder(config.cache_dir().absolute().resolve() / kind)
    except (OSError, RuntimeError) as error:  # RuntimeError: no home, or links in a circle
        warn_once(
            ("cache unusable", str(error)),
            f"cache: its folder cannot be used ({error}); compiled kernels are kept for this "
            "process only. Set FUSER_CACHE_DIR to a folder that can be written.",
        )
        return private_folder(kind)
    suspect = _first_untrusted(found)
    if suspect is not None:
        warn_once(
            ("cache untrusted", suspect),
            f"cache: {suspect} can be written by other users, so nothing under it is run; compiled "
            "kernels are kept for this process only. Take the permission away (chmod go-w) or set "
            "FUSER_CACHE_DIR to a folder of your own.",
        )
        return private_folder(kind)
    return found


def private_folder(kind: str) -> Path:
    """The same in a temporary folder that goes away with this process."""
    global _private
    with _lock:
        # A forked child gets its own: the parent removes its folder when it ends.
        if _private is None or _private[0] != os.getpid() or not _private[1].is_dir():
            path = Path(tempfile.mkdtemp(prefix="fuser-")).resolve()
            _private = (os.getpid(), path)
            atexit.register(_remove, os.getpid(), path)
        root = _private[1]
    return _make_folder(root / kind)


def _remove(owner: int, path: Path) -> None:
    if os.getpid() == owner:
        shutil.rmtree(path, ignore_errors=True)


def _make_folder(path: Path) -> Path:
    """Make the folder and the missing ones above it, all closed to other users."""
    if not path.is_dir():
        if not path.parent.exists():
            _make_folder(path.parent)
        # Another process may be making it at this moment.
        path.mkdir(mode=0o700, exist_ok=True)
    return path


def _first_untrusted(path: Path) -> Path | None:
    """The folder on the way to `path` through which another user could change it, if any."""
    if not _is_private(path.lstat()):
        return path
    for above in path.parents:
        status = above.lstat()
        # In a folder like /tmp others may add entries, but not rename or remove ours.
        is_sticky = bool(status.st_mode & stat.S_ISVTX)
        if not (_is_private(status) or (is_sticky and _is_owner_trusted(status))):
            return above
    return None


def _is_private(status: os.stat_result) -> bool:
    """Whether nobody but this user (and the administrator) can write it."""
    return _is_owner_trusted(status) and not status.st_mode & _WRITABLE_BY_OTHERS


def _is_owner_trusted(status: os.stat_result) -> bool:
    return status.st_uid in (0, os.geteuid())


# **** files ****


def read_trusted(path: Path) -> bytes | None:
    """The content of a file that nobody else can have written, or None."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    with open(descriptor, "rb") as file:
        # Asked of the open file: a look at the path could be answered by another one.
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or not _is_private(status):
            return None
        try:
            return file.read()
        except OSError:
            return None


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file that readers see whole or not at all."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".writing-")
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def store_source(name: str, source: str) -> Path:
    """The path of a file with this text; equal texts share one file."""
    data = source.encode()
    file_name = f"{name}_{hashlib.sha256(data).hexdigest()[:16]}.py"
    path = folder(SOURCES) / file_name
    # Compared whole: a damaged or foreign file under the right name is written again.
    if read_trusted(path) == data:
        return path
    try:
        write_atomically(path, data)
    except OSError as error:
        get_logger("runtime.cache").info("%s not stored: %s", path, error)
        path = private_folder(SOURCES) / file_name
        if read_trusted(path) != data:
            write_atomically(path, data)
    return path


# **** Triton's files ****


class CheckedCacheManager(FileCacheManager):  # type: ignore[misc]
    """Triton's file cache with a digest beside each file: what does not match is compiled again."""

    def __init__(self, key: str, override: bool = False, dump: bool = False) -> None:
        # Dumps and overrides are for people to read and edit: no digests there.
        self.is_checked = not (override or dump)
        try:
            super().__init__(key, override, dump)
            if self.is_checked:
                os.chmod(self.cache_dir, 0o700)
        except OSError:
            if not self.is_checked:
                raise
            self._go_private(key)

    def get_file(self, filename: str) -> str | None:
        if not self.is_checked:
            found: str | None = super().get_file(filename)
            return found
        path = Path(self.cache_dir, filename)
        data = read_trusted(path)
        digest = read_trusted(Path(f"{path}{_DIGEST_SUFFIX}"))
        if data is None or digest != _digest(data):
            return None
        return str(path)

    def put(self, data: bytes | str, filename: str, binary: bool = True) -> str:
        if not self.is_checked:
            return str(super().put(data, filename, binary))
        content = data if isinstance(data, bytes) else str(data).encode()
        try:
            return self._put_checked(content, filename)
        except OSError as error:
            get_logger("runtime.cache").info("%s not stored: %s", filename, error)
            self._go_private(self.key)
            return self._put_checked(content, filename)

    def get_group(self, filename: str) -> dict[str, str] | None:
        if not self.is_checked:
            group: dict[str, str] | None = super().get_group(filename)
            return group
        listing = self.get_file(f"__grp__{filename}")
        if listing is None:
            return None
        names = json.loads(Path(listing).read_bytes())["child_paths"]
        # By name and not by the stored path, so that a cache can be moved. One damaged file makes
        # the whole group a miss.
        found = {name: self.get_file(name) for name in names}
        present = {name: path for name, path in found.items() if path is not None}
        return present if len(present) == len(found) else None

    def put_group(self, filename: str, group: Mapping[str, str]) -> str:
        listing = json.dumps({"child_paths": dict(group)})
        return self.put(listing, f"__grp__{filename}", binary=False)

    def _put_checked(self, content: bytes, filename: str) -> str:
        path = Path(self.cache_dir, filename)
        write_atomically(path, content)
        write_atomically(Path(f"{path}{_DIGEST_SUFFIX}"), _digest(content))
        return str(path)

    def _go_private(self, key: str) -> None:
        self.key = key
        self.cache_dir = str(_make_folder(private_folder(TRITON) / key))
        self.lock_path = str(Path(self.cache_dir, "lock"))


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()


@contextmanager
def triton_cache() -> Iterator[None]:
    """While the body runs, Triton keeps its files in fuser's cache, checked.

    Triton's setting is global. The first of several threads sets it and the last one to leave puts
    it back, so that compilations may overlap.
    """
    global _scope_users
    with _scope_lock:
        if _scope_users == 0:
            _enter_scope()
        _scope_users += 1
    try:
        yield
    finally:
        with _scope_lock:
            _scope_users -= 1
            if _scope_users == 0:
                _scope.close()


def _enter_scope() -> None:
    knobs: Any = getattr(getattr(triton, "knobs", None), "cache", None)
    if not hasattr(knobs, "scope"):
        warn_once("triton cache", "cache: this Triton cannot be given a cache; it uses its own.")
        return
    place = str(folder(TRITON))
    _scope.enter_context(knobs.scope())
    knobs.dir = place
    knobs.manager_class = CheckedCacheManager
