"""Files of a store by their relative names: on the local disk here, elsewhere in s3.py and remote.py. Whole or not.

A file appears under its name only when all of it is there. Trouble with the device is told as ``Unusable``.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, Protocol

import pyarrow as pa

from holdfast.errors import HoldfastError, Invalid
from holdfast.state.places import check_readable, on_disk

TEMPORARY = ".tmp-"
FULL = ".full"
TRIES = 5
"""So often a folder is made anew that others take away."""
"""While this file's time lies ahead, a local store takes no more: how trials fill one without filling the disk."""

Durable = bool | Literal["data"]
"""What outlives a machine's crash once a put is done: all of it, nothing for certain, or the bytes without the name
("data"), which is enough for a file that is moved later: moving it makes the name durable."""


class Unusable(HoldfastError):
    """The device said no: full, read-only, gone, or not permitted. What was whole before still is. Exit code 1."""


class Files(Protocol):
    """What a store asks of a place. Names are relative, with slashes; folders come and go with their files.

    Whatever failed may be done again, also what had taken effect before it was refused. What is read is Arrow's own
    memory, not Python's: Arrow's threads may still hold it when Python ends.
    """

    url: str
    store_id: str | None
    """The id of the store whose files these are, once somebody has asked (``entries.store_id``)."""
    at_once: int
    """So many requests may be under way together: where each waits for a service, more than one."""
    far: int
    """So many bytes come in the time that one more request takes."""

    def read(self, name: str) -> pa.Buffer: ...
    def read_parts(self, name: str, spans: Sequence[tuple[int, int]]) -> Sequence[pa.Buffer]:
        """Parts of a file, each by where it begins and its bytes, in ascending order; less where the file ends."""
        ...

    def map(self, name: str) -> pa.Buffer:
        """Like ``read``, without a copy where the place can; the bytes stay though the name may go."""
        ...

    def size(self, name: str) -> int: ...
    def list(self, folder: str) -> list[str]: ...
    def tree(self, folder: str) -> Sequence[str]:
        """The files anywhere below a folder, by their names from there."""
        ...

    def put(self, name: str, data: bytes | pa.Buffer, sync: Durable) -> None: ...
    def create(self, name: str, data: bytes | pa.Buffer, sync: Durable) -> None:
        """Like ``put``, but FileExistsError if other bytes have the name; of two at once exactly one succeeds."""
        ...

    def move(self, name: str, target: str, sync: bool) -> None:
        """Give a file another name, in place of whatever has it. Nothing if it was moved before; FileNotFoundError if
        neither is there. ``sync``: all names in the target's folder are durable then, moved before or not."""
        ...

    def link(self, name: str, target: str, sync: bool = False, size: int | None = None) -> bool:
        """A second name for a file, or a copy of it; False, and nothing is done, if the target is there: of two at
        once exactly one succeeds. ``sync``: all names in the target's folder are durable then. ``size``: what the file
        must have, else it counts as not there."""
        ...

    def delete(self, name: str) -> None: ...
    def delete_many(self, names: Sequence[str]) -> None:
        """All of these, in as few requests as the place allows; in no order."""
        ...

    def delete_folder(self, folder: str) -> None:
        """A folder with the files in it."""
        ...

    def delete_tree(self, folder: str) -> None:
        """A folder with everything below it."""
        ...

    def sweep(self, age: float) -> int: ...
    def within(self, folder: str) -> Files:
        """The files below a folder, by their names from there."""
        ...


def open_files(url: str | os.PathLike[str], options: Mapping[str, Any] | None = None) -> Files:
    """Files under a local path or a URL such as ``s3://bucket/job`` or ``memory://job``.

    ``options``: credentials and the like for whoever opens the URL; without them, what the environment says.
    """
    text = os.fspath(url)
    if (path := on_disk(text)) is not None:
        if options:
            raise Invalid(f"store {text}: storage_options are for a store by URL, this is a folder")
        with told(text, "read", ""):
            check_readable(f"store {text}", path)
        return LocalFiles(path)
    scheme, separator, rest = text.partition("://")
    if not separator:
        scheme, _, rest = text.partition(":")
        raise Invalid(f"store {text}: a URL has two slashes, {scheme}://{rest} or {scheme}://host{rest}")
    who, at, where = rest.partition("/")[0].rpartition("@")
    if at and ":" in who:
        raise Invalid(
            f"store {scheme}://...@{where}: no password in a store's URL, since it is told and written down; use "
            "storage_options or the environment"
        )
    if scheme in ("s3", "s3a"):
        from holdfast.state.s3 import open_s3

        return open_s3(text, options or {})
    from holdfast.state.remote import open_remote

    return open_remote(text, options or {})


def read_near(
    spans: Sequence[tuple[int, int]], gap: int, read: Callable[[Sequence[tuple[int, int]]], Sequence[pa.Buffer]]
) -> Sequence[pa.Buffer]:
    """What ``read_parts`` gives, where parts that lie no further apart than ``gap`` bytes are asked for in one."""
    joined: list[tuple[int, int]] = []
    within: list[int] = []
    for start, size in spans:
        if joined and start - sum(joined[-1]) <= gap:
            first = joined[-1][0]
            joined[-1] = first, max(sum(joined[-1]), start + size) - first
        else:
            joined.append((start, size))
        within.append(len(joined) - 1)
    found = read(joined)
    parts = []
    for (start, size), number in zip(spans, within, strict=True):
        skipped = min(start - joined[number][0], found[number].size)
        parts.append(found[number].slice(skipped, min(size, found[number].size - skipped)))
    return parts


def exists(files: Files, name: str) -> bool:
    """Whether a file has this name. One request, and no listing, which may come late."""
    try:
        return files.size(name) >= 0
    except FileNotFoundError:
        return False


class LocalFiles:
    """Files on a local disk. ``sync`` makes a write outlive the machine's crash, not only the process's."""

    at_once = 1
    far = 0

    def __init__(self, root: Path) -> None:
        self.root = root
        self.url = str(root)
        self.store_id: str | None = None

    def read(self, name: str) -> pa.Buffer:
        with told(self.url, "read", name), open(self._path(name), "rb") as file:
            data = pa.allocate_buffer(os.fstat(file.fileno()).st_size)
            return data.slice(0, file.readinto(memoryview(data)))

    def read_parts(self, name: str, spans: Sequence[tuple[int, int]]) -> Sequence[pa.Buffer]:
        found = []
        with told(self.url, "read", name), open(self._path(name), "rb", buffering=0) as file:
            for start, size in spans:
                data = pa.allocate_buffer(max(0, min(size, os.fstat(file.fileno()).st_size - start)))
                read = 0
                while read < data.size and (more := os.preadv(file.fileno(), [memoryview(data)[read:]], start + read)):
                    read += more
                found.append(data.slice(0, read))
        return found

    def map(self, name: str) -> pa.Buffer:
        with told(self.url, "read", name), pa.memory_map(self._path(name)) as file:
            return file.read_buffer()

    def size(self, name: str) -> int:
        with told(self.url, "read", name):
            return self._looked_at(name).st_size

    def list(self, folder: str) -> list[str]:
        with told(self.url, "list", folder):
            try:
                with os.scandir(self._inside(folder)) as entries:
                    return sorted(entry.name for entry in entries if not entry.name.startswith(TEMPORARY))
            except FileNotFoundError:
                return []

    def tree(self, folder: str) -> Sequence[str]:
        top = self._inside(folder)
        with told(self.url, "list", folder):
            found = [
                Path(at, name) for at, _, names in os.walk(top) for name in names if not name.startswith(TEMPORARY)
            ]
        return sorted(path.relative_to(top).as_posix() for path in found)

    def put(self, name: str, data: bytes | pa.Buffer, sync: Durable) -> None:
        with told(self.url, "write", name), self._written(name, data, sync) as (temporary, target):
            temporary.replace(target)

    def create(self, name: str, data: bytes | pa.Buffer, sync: Durable) -> None:
        with told(self.url, "write", name), self._written(name, data, sync) as (temporary, target):
            try:
                os.link(temporary, target)
            except FileExistsError:
                if target.read_bytes() != memoryview(data):
                    raise
            temporary.unlink()

    def move(self, name: str, target: str, sync: bool) -> None:
        with told(self.url, "move", name):
            source, goal = self._inside(name), self._inside(target, to_the_end=False)
            try:
                _with_folder(lambda: source.replace(goal), goal.parent, sync)
            except FileNotFoundError:
                if not goal.exists():
                    raise
            if sync:
                sync_folder(goal.parent)

    def link(self, name: str, target: str, sync: bool = False, size: int | None = None) -> bool:
        return self.link_into(name, self, target, sync, size)

    def link_into(self, name: str, other: LocalFiles, target: str, sync: bool = False, size: int | None = None) -> bool:
        """Like ``link``, with a name among other files."""
        with told(self.url, "link", name):
            source, goal = f"{self.url}/{name}", other._path(target, to_the_end=False)
            if self._looked_at(name).st_size != size and size is not None:
                raise FileNotFoundError(errno.ENOENT, f"it has not the {size} bytes that it should have", source)
            try:
                _with_folder(lambda: os.link(source, goal), os.path.dirname(goal), sync)
                done = True
            except FileExistsError:
                done = False
            if sync:
                sync_folder(os.path.dirname(goal))
            return done

    def delete(self, name: str) -> None:
        with told(self.url, "delete", name), contextlib.suppress(FileNotFoundError):
            os.unlink(self._path(name, to_the_end=False))

    def delete_many(self, names: Sequence[str]) -> None:
        for name in names:
            self.delete(name)
        for folder in {os.path.dirname(name) for name in names}:
            with contextlib.suppress(OSError):  # others are in it
                os.rmdir(f"{self.url}/{folder}")

    def delete_folder(self, folder: str) -> None:
        with told(self.url, "delete", folder):
            path = self._inside(folder)
            with contextlib.suppress(FileNotFoundError):
                for entry in list(os.scandir(path)):
                    Path(entry.path).unlink(missing_ok=True)
                with contextlib.suppress(OSError):  # somebody has just put something into it
                    path.rmdir()

    def delete_tree(self, folder: str) -> None:
        def gone(_: object, __: str, error: tuple[type[BaseException], BaseException, object]) -> None:
            if not isinstance(error[1], FileNotFoundError):
                raise error[1]

        with told(self.url, "delete", folder):
            shutil.rmtree(self._inside(folder), onerror=gone)

    def within(self, folder: str) -> LocalFiles:
        return LocalFiles(self._inside(folder))

    def sweep(self, age: float) -> int:
        """Delete temporary files, left by processes that died, that are older than ``age`` seconds; how many."""
        gone = 0
        with told(self.url, "sweep", ""):
            for path in self.root.rglob(f"{TEMPORARY}*"):
                with contextlib.suppress(FileNotFoundError):
                    if time.time() - path.stat().st_mtime > age:
                        path.unlink()
                        gone += 1
        return gone

    def _inside(self, name: str, to_the_end: bool = True) -> Path:
        return Path(self._path(name, to_the_end))

    def _path(self, name: str, to_the_end: bool = True) -> str:
        """The path of a name. Links that somebody put into the folder are not followed out of it.

        ``to_the_end``: the last part may not be a link either; without, what has the name is replaced or deleted.
        """
        if not name:
            return self.url  # which may be a link itself: it is what was asked for
        path = f"{self.url}/{name}"
        if not _stays(self.url, os.path.dirname(path)) or (to_the_end and os.path.islink(path)):
            raise self._led_out(name)
        return path

    def _looked_at(self, name: str) -> os.stat_result:
        """What the disk says of a file; one look for its size and whether it is a link."""
        found = os.lstat(self._path(name, to_the_end=False))
        if stat.S_ISLNK(found.st_mode):
            raise self._led_out(name)
        return found

    def _led_out(self, name: str) -> Invalid:
        return Invalid(f"store {self.url}: {name} leads out of the store by a link; put a file or folder there")

    def fill(self, seconds: float) -> None:
        """Be full for so long, whatever process asks."""
        marker = self.root / FULL
        marker.touch()
        until = time.time() + seconds
        os.utime(marker, (until, until))

    def _room(self) -> None:
        try:
            if os.stat(f"{self.url}/{FULL}").st_mtime > time.time():
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except FileNotFoundError:
            return

    @contextlib.contextmanager
    def _written(self, name: str, data: bytes | pa.Buffer, sync: Durable) -> Iterator[tuple[Path, Path]]:
        self._room()
        target = self._inside(name, to_the_end=False)
        temporary = target.parent / f"{TEMPORARY}{uuid.uuid4().hex}"
        try:
            _with_folder(lambda: write_whole(temporary, data, bool(sync)), target.parent, sync is True)
            yield temporary, target
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
        if sync is True:
            sync_folder(target.parent)


@lru_cache(maxsize=4096)
def _stays(root: str, folder: str) -> bool:
    """Whether a folder below another is really there. Asked once: a store is not expected to change its folders."""
    return folder == root or Path(os.path.realpath(folder)).is_relative_to(os.path.realpath(root))


def _with_folder(action: Callable[[], object], wanted: Path | str, sync: bool) -> None:
    """Do it; if it fails since the folder is not there, make the folder and do it again.

    Another process may have made it meanwhile: that it is there now does not mean that it was. And another may take it
    away again, when it was empty for a moment.
    """
    for _ in range(TRIES):
        try:
            action()
            return
        except FileNotFoundError:
            folder = Path(wanted)
            made = [folder, *(each for each in folder.parents if not each.exists())]
            folder.mkdir(parents=True, exist_ok=True)
            if sync:
                for each in made:
                    sync_folder(each.parent)
    action()


def write_whole(path: Path, data: bytes | pa.Buffer, sync: bool) -> None:
    """All of ``data`` in a file of that name, on the platter if ``sync``; an empty file has nothing to wait for."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_CLOEXEC", 0), 0o666)
    try:
        left = memoryview(data)
        some = len(left) > 0
        while left:
            left = left[os.write(descriptor, left) :]
        if sync and some:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(folder: Path | str) -> None:
    """Make the names in a folder as durable as the files."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def link_between(files: Files, name: str, other: Files, target: str) -> None:
    """A file of one place under a name of another: a link if both are on local disks, else a copy."""
    if isinstance(files, LocalFiles) and isinstance(other, LocalFiles):
        files.link_into(name, other, target)
    elif not exists(other, target):
        other.put(target, files.read(name), sync=False)


@contextlib.contextmanager
def told(url: str, verb: str, name: str) -> Iterator[None]:
    """Say which file of which store the device refused, and why. Absence and presence are answers, not trouble."""
    try:
        yield
    except (FileNotFoundError, FileExistsError):
        raise
    except OSError as error:
        raise Unusable(f"store {url}: cannot {verb} {name or 'it'}: {error.strerror or error}") from error
