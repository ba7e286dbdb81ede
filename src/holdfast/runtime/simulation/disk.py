"""A disk in memory that does what disks do: refuses, loses what was not synced, tears, forgets, lists late.

Behind it lies the real store code. A name and the bytes behind it are synced apart, as on a real file system: a machine
that goes down may keep, lose, cut or zero what was not.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

import pyarrow as pa

from holdfast.state import Unusable
from holdfast.state.files import Durable


class Crash(BaseException):
    """The process that was writing dies at this very moment."""


@dataclass(slots=True)
class _Bytes:
    data: bytes
    synced: bool
    born: float


Folder = dict[str, _Bytes]
ONLOOKER = "onlooker"
"""Who sees everything as it is, at once."""


@dataclass(slots=True)
class Disk:
    """``now``: virtual time. ``full_until``: takes nothing until then. ``late``: names are listed so much later.

    ``refusals``: counts of writes to come at which the device says no once. ``crashes``: of those of a process
    at which it dies. ``stops``: what happens right before a write of a process, by its count. ``folders``: what is
    there, by folder and name; ``synced``: what of it is on the platter.
    """

    now: Callable[[], float] = lambda: 0.0
    full_until: float = 0.0
    late: float = 0.0
    refusals: set[int] = field(default_factory=set)
    crashes: dict[str, set[int]] = field(default_factory=dict)
    stops: dict[tuple[str, int], Callable[[], None]] = field(default_factory=dict)
    writes: dict[str, int] = field(default_factory=dict)
    folders: dict[str, Folder] = field(default_factory=dict)
    synced: dict[str, Folder] = field(default_factory=dict)

    def files(self, actor: str, root: str = "") -> DiskFiles:
        """The disk as a process sees it."""
        return DiskFiles(self, actor, root)

    def before_write(self, actor: str, name: str) -> None:
        """Count a write: perhaps the device refuses it, or its writer dies before it is done."""
        count = self.writes[actor] = self.writes.get(actor, 0) + 1
        total = self.writes["*"] = self.writes.get("*", 0) + 1
        if count in self.crashes.get(actor, ()):
            raise Crash(actor)
        if (stop := self.stops.pop((actor, count), None)) is not None:
            stop()
        if self.now() < self.full_until:
            raise Unusable(f"store disk: cannot write {name}: No space left on device")
        if total in self.refusals:
            raise Unusable(f"store disk: cannot write {name}: 503 slow down")

    def get(self, path: str) -> _Bytes | None:
        folder, name = posixpath.split(path)
        return self.folders.get(folder, {}).get(name)

    def set(self, path: str, held: _Bytes | None) -> None:
        folder, name = posixpath.split(path)
        if held is not None:
            self.folders.setdefault(folder, {})[name] = held
        elif folder in self.folders:
            self.folders[folder].pop(name, None)
            if not self.folders[folder]:
                del self.folders[folder]

    def put(self, path: str, data: bytes, sync: Durable) -> None:
        self.set(path, _Bytes(data, bool(sync), self.now()))
        if sync is True:
            self.sync_folder(posixpath.dirname(path))

    def sync_folder(self, folder: str) -> None:
        """Make the names in a folder as durable as they stand."""
        if folder in self.folders:
            self.synced[folder] = dict(self.folders[folder])
        else:
            self.synced.pop(folder, None)

    def paths(self) -> list[str]:
        return sorted(posixpath.join(folder, name) for folder, held in self.folders.items() for name in held)

    def power_off(self, random: Random) -> list[str]:
        """The machine goes down: what was not synced is kept, lost, cut or zeroed; the paths that changed."""
        hit = []
        kept: dict[str, Folder] = {}
        for folder in sorted({*self.folders, *self.synced}):
            now, then = self.folders.get(folder, {}), self.synced.get(folder, {})
            for name in sorted({*now, *then}):
                here, there = now.get(name), then.get(name)
                whole = here if here is there or random.random() < 0.5 else there
                changed = whole is not here
                if whole is not None:
                    data = whole.data
                    if not whole.synced:
                        data = (data, data[: len(data) // 2], b"")[random.choice((0, 0, 1, 2))]
                        changed |= data != whole.data
                    kept.setdefault(folder, {})[name] = _Bytes(data, True, whole.born)
                hit += [posixpath.join(folder, name)] if changed else []
        self.folders, self.synced = kept, {folder: dict(held) for folder, held in kept.items()}
        return hit

    def damage(self, path: str, how: str) -> None:
        """A file is not what was written any more: a bit flipped, cut, or gone."""
        held = self.get(path)
        assert held is not None
        data, middle = held.data, len(held.data) // 2
        match how:
            case "flip":
                data = data[:middle] + bytes(byte ^ 0xFF for byte in data[middle : middle + 1]) + data[middle + 1 :]
            case "cut":
                data = data[:middle]
        self.set(path, None if how == "lose" else _Bytes(data, True, held.born))
        self.sync_folder(posixpath.dirname(path))

    def copy(self) -> dict[str, Folder]:
        """What is there now, to be put back another day."""
        return {folder: dict(held) for folder, held in self.folders.items()}

    def put_back(self, folders: Mapping[str, Folder]) -> None:
        self.folders = {folder: dict(held) for folder, held in folders.items()}
        self.synced = {folder: dict(held) for folder, held in folders.items()}


class DiskFiles:
    """``Files`` upon a disk."""

    at_once = 1
    far = 0

    def __init__(self, disk: Disk, actor: str, root: str) -> None:
        self.disk = disk
        self.url = f"disk/{root}" if root else "disk"
        self.store_id: str | None = None
        self._actor = actor
        self._root = root

    def read(self, name: str) -> pa.Buffer:
        return pa.py_buffer(self._held(name).data)

    map = read

    def read_parts(self, name: str, spans: Sequence[tuple[int, int]]) -> Sequence[pa.Buffer]:
        data = self._held(name).data
        return [pa.py_buffer(data[start : start + size]) for start, size in spans]

    def size(self, name: str) -> int:
        return len(self._held(name).data)

    def list(self, folder: str) -> list[str]:
        path = self._path(folder)
        prefix = f"{path}/" if path else ""
        late = self.disk.late if self._actor != ONLOOKER else 0.0
        held = self.disk.folders.get(path, {})
        found = {name for name, each in held.items() if not late or each.born <= self.disk.now() - late}
        found |= {other[len(prefix) :].partition("/")[0] for other in self.disk.folders if other.startswith(prefix)}
        return sorted(found - {""})

    def tree(self, folder: str) -> Sequence[str]:
        top = self._path(folder)
        below = [path for path in self.disk.folders if path == top or path.startswith(f"{top}/")]
        view = DiskFiles(self.disk, self._actor, "")
        found = [f"{path}/{name}" for path in below for name in view.list(path)]
        return sorted(path[len(top) + 1 :] for path in found if self.disk.get(path) is not None)

    def put(self, name: str, data: bytes | pa.Buffer, sync: Durable) -> None:
        self.disk.before_write(self._actor, name)
        self.disk.put(self._path(name), bytes(data), sync)

    def create(self, name: str, data: bytes | pa.Buffer, sync: Durable) -> None:
        self.disk.before_write(self._actor, name)
        held = self.disk.get(self._path(name))
        if held is not None and held.data != bytes(data):
            raise FileExistsError(name)
        self.disk.put(self._path(name), bytes(data), sync)

    def move(self, name: str, target: str, sync: bool) -> None:
        self.disk.before_write(self._actor, target)
        held = self.disk.get(self._path(name))
        if held is None:
            self._held(target)
        else:
            self.disk.set(self._path(name), None)
            self.disk.set(self._path(target), held)
        if sync:
            self.disk.sync_folder(posixpath.dirname(self._path(target)))

    def link(self, name: str, target: str, sync: bool = False, size: int | None = None) -> bool:
        held = self._held(name)
        if size is not None and len(held.data) != size:
            raise FileNotFoundError(name)
        self.disk.before_write(self._actor, target)
        new = self.disk.get(self._path(target)) is None
        if new:
            self.disk.set(self._path(target), held)
        if sync:
            self.disk.sync_folder(posixpath.dirname(self._path(target)))
        return new

    def delete(self, name: str) -> None:
        self.disk.before_write(self._actor, name)
        self.disk.set(self._path(name), None)

    def delete_many(self, names: Sequence[str]) -> None:
        for name in names:
            self.delete(name)

    def delete_folder(self, folder: str) -> None:
        self.delete_tree(folder)

    def delete_tree(self, folder: str) -> None:
        self.disk.before_write(self._actor, folder)
        path = self._path(folder)
        for other in [each for each in self.disk.folders if each == path or each.startswith(f"{path}/")]:
            del self.disk.folders[other]

    def sweep(self, age: float) -> int:
        return 0

    def within(self, folder: str) -> DiskFiles:
        return DiskFiles(self.disk, self._actor, self._path(folder))

    def _path(self, name: str) -> str:
        return "/".join(part for part in (self._root, name) if part)

    def _held(self, name: str) -> _Bytes:
        held = self.disk.get(self._path(name))
        if held is None:
            raise FileNotFoundError(name)
        return held
