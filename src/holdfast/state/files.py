"""Files of a store by their relative names: on the local disk, or anywhere fsspec reaches. Whole or not at all.

A file appears under its name only when all of it is there. Trouble with the device is told as ``Unusable``.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from holdfast.errors import HoldfastError, Invalid

TEMPORARY = ".tmp-"
FULL = ".full"
"""While this file's time lies ahead, a local store takes no more: how trials fill one without filling the disk."""
_ATOMIC_PUT = frozenset({"memory", "s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "r2", "oss", "oci"})
"""Where a put is atomic by itself; elsewhere a temporary file is moved into place."""


class Unusable(HoldfastError):
    """The device said no: full, read-only, gone, or not permitted. What was whole before still is. Exit code 1."""


class Files(Protocol):
    """What a store asks of a place. Names are relative, with slashes; folders come and go with their files.

    What is read is Arrow's own memory, not Python's: Arrow's threads may still hold it when Python ends.
    """

    url: str

    def read(self, name: str) -> pa.Buffer: ...
    def size(self, name: str) -> int: ...
    def list(self, folder: str) -> list[str]: ...
    def put(self, name: str, data: bytes | pa.Buffer, sync: bool) -> None: ...
    def create(self, name: str, data: bytes | pa.Buffer, sync: bool) -> None: ...
    def delete(self, name: str) -> None: ...
    def delete_folder(self, folder: str) -> None: ...
    def sweep(self, age: float) -> int: ...


def open_files(url: str | os.PathLike[str]) -> Files:
    """Files under a local path or any fsspec URL such as ``s3://bucket/job`` or ``memory://job``."""
    text = os.fspath(url)
    scheme, separator, rest = text.partition("://")
    if not separator or scheme in ("file", "local"):
        path = Path(rest if separator else text)
        if path.exists() and not path.is_dir():
            raise Invalid(f"store {text}: this is a file; a store is a folder")
        return LocalFiles(path)
    import fsspec

    try:
        system, root = fsspec.core.url_to_fs(text)
    except (ValueError, ImportError) as error:
        raise Invalid(f"store {text}: {error}") from error
    return RemoteFiles(text, system, root)


class LocalFiles:
    """Files on a local disk. ``sync`` makes a write outlive the machine's crash, not only the process's."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.url = str(root)

    def read(self, name: str) -> pa.Buffer:
        with _told(self.url, "read", name), (self.root / name).open("rb") as file:
            data = pa.allocate_buffer(os.fstat(file.fileno()).st_size)
            return data.slice(0, file.readinto(memoryview(data)))

    def size(self, name: str) -> int:
        with _told(self.url, "read", name):
            return (self.root / name).stat().st_size

    def list(self, folder: str) -> list[str]:
        with _told(self.url, "list", folder):
            try:
                with os.scandir(self.root / folder) as entries:
                    return sorted(entry.name for entry in entries if not entry.name.startswith(TEMPORARY))
            except FileNotFoundError:
                return []

    def put(self, name: str, data: bytes | pa.Buffer, sync: bool) -> None:
        with _told(self.url, "write", name), self._written(name, data, sync) as (temporary, target):
            temporary.replace(target)

    def create(self, name: str, data: bytes | pa.Buffer, sync: bool) -> None:
        """Like ``put``, but FileExistsError if the name is taken; of two at once exactly one succeeds."""
        with _told(self.url, "write", name), self._written(name, data, sync) as (temporary, target):
            os.link(temporary, target)
            temporary.unlink()

    def delete(self, name: str) -> None:
        with _told(self.url, "delete", name):
            (self.root / name).unlink(missing_ok=True)

    def delete_folder(self, folder: str) -> None:
        """The folder with the files in it (it has no folders)."""
        with _told(self.url, "delete", folder):
            path = self.root / folder
            with contextlib.suppress(FileNotFoundError):
                for entry in list(os.scandir(path)):
                    Path(entry.path).unlink(missing_ok=True)
                path.rmdir()

    def sweep(self, age: float) -> int:
        """Delete temporary files, left by processes that died, that are older than ``age`` seconds; how many."""
        gone = 0
        with _told(self.url, "sweep", ""):
            for path in self.root.rglob(f"{TEMPORARY}*"):
                with contextlib.suppress(FileNotFoundError):
                    if time.time() - path.stat().st_mtime > age:
                        path.unlink()
                        gone += 1
        return gone

    def fill(self, seconds: float) -> None:
        """Be full for so long, whatever process asks."""
        marker = self.root / FULL
        marker.touch()
        until = time.time() + seconds
        os.utime(marker, (until, until))

    def _room(self) -> None:
        try:
            if (self.root / FULL).stat().st_mtime > time.time():
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except FileNotFoundError:
            return

    @contextlib.contextmanager
    def _written(self, name: str, data: bytes | pa.Buffer, sync: bool) -> Iterator[tuple[Path, Path]]:
        self._room()
        target = self.root / name
        temporary = target.parent / f"{TEMPORARY}{uuid.uuid4().hex}"
        try:
            try:
                write_whole(temporary, data, sync)
            except FileNotFoundError:
                target.parent.mkdir(parents=True, exist_ok=True)
                if sync:
                    for folder in target.parent.relative_to(self.root).parents:
                        sync_folder(self.root / folder)
                write_whole(temporary, data, sync)
            yield temporary, target
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
        if sync:
            sync_folder(target.parent)


def write_whole(path: Path, data: bytes | pa.Buffer, sync: bool) -> None:
    """All of ``data`` in a file of that name, on the platter if ``sync``."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_CLOEXEC", 0), 0o666)
    try:
        left = memoryview(data)
        while left:
            left = left[os.write(descriptor, left) :]
        if sync:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder as durable as the files."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class RemoteFiles:
    """Files behind fsspec. How durable a finished write is, is the service's promise; ``sync`` changes nothing."""

    def __init__(self, url: str, system: Any, root: str) -> None:
        self.url = url
        self._system = system
        self._root = root.rstrip("/")
        protocols = system.protocol if isinstance(system.protocol, tuple | list) else (system.protocol,)
        self._atomic = bool(_ATOMIC_PUT.intersection(protocols))

    def read(self, name: str) -> pa.Buffer:
        with _told(self.url, "read", name):
            sink = pa.BufferOutputStream()
            sink.write(self._system.cat_file(self._path(name)))
            return sink.getvalue()

    def size(self, name: str) -> int:
        with _told(self.url, "read", name):
            return int(self._system.info(self._path(name))["size"])

    def list(self, folder: str) -> list[str]:
        with _told(self.url, "list", folder):
            try:
                self._system.invalidate_cache(self._path(folder))
                found = self._system.ls(self._path(folder), detail=False)
            except FileNotFoundError:
                return []
            names = (path.rstrip("/").rpartition("/")[2] for path in found)
            return sorted(name for name in names if not name.startswith(TEMPORARY))

    def put(self, name: str, data: bytes | pa.Buffer, sync: bool) -> None:
        with _told(self.url, "write", name):
            path = self._path(name)
            if self._atomic:
                self._system.pipe_file(path, bytes(data))
                return
            parent = path.rpartition("/")[0]
            self._system.makedirs(parent, exist_ok=True)
            temporary = f"{parent}/{TEMPORARY}{uuid.uuid4().hex}"
            self._system.pipe_file(temporary, bytes(data))
            self._system.mv(temporary, path)

    def create(self, name: str, data: bytes | pa.Buffer, sync: bool) -> None:
        with _told(self.url, "write", name):
            path = self._path(name)
            if not self._atomic:
                self._system.makedirs(path.rpartition("/")[0], exist_ok=True)
            if self._system.exists(path):
                raise FileExistsError(path)
            self._system.pipe_file(path, bytes(data), mode="create")

    def delete(self, name: str) -> None:
        with _told(self.url, "delete", name), contextlib.suppress(FileNotFoundError):
            self._system.rm_file(self._path(name))

    def delete_folder(self, folder: str) -> None:
        for name in self.list(folder):
            self.delete(f"{folder}/{name}")
        with contextlib.suppress(OSError, NotImplementedError):
            self._system.rmdir(self._path(folder))

    def sweep(self, age: float) -> int:
        """Nothing: where a put is atomic there are no temporary files, and elsewhere their age is not known."""
        return 0

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root


@contextlib.contextmanager
def _told(url: str, verb: str, name: str) -> Iterator[None]:
    """Say which file of which store the device refused, and why. Absence and presence are answers, not trouble."""
    try:
        yield
    except (FileNotFoundError, FileExistsError):
        raise
    except OSError as error:
        raise Unusable(f"store {url}: cannot {verb} {name or 'it'}: {error.strerror or error}") from error
