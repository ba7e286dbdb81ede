"""Files anywhere that fsspec reaches, whole or not at all. S3 has a client of its own (s3.py)."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from holdfast.errors import HoldfastError, Invalid
from holdfast.state.files import TEMPORARY, Durable, Unusable, read_near

_ATOMIC_PUT = frozenset({"memory", "s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "r2", "oss", "oci"})
"""Where a put is atomic by itself; elsewhere a temporary file is moved into place."""
UNKNOWN = "Protocol not known"
"""What fsspec says of a scheme that it has no client for."""


def open_remote(url: str, options: Mapping[str, Any]) -> RemoteFiles:
    """Files under any URL of fsspec's, with the options of its client."""
    import fsspec

    secrets = tuple(sorted(set(_texts(options)), key=len, reverse=True))
    try:
        system, root = fsspec.core.url_to_fs(url, **options)
    except (ValueError, ImportError, TypeError) as error:
        said = _hidden(error, secrets)
        known = "; give a folder, s3://..., or another URL that fsspec knows" if said.startswith(UNKNOWN) else ""
        raise Invalid(f"store {url}: {said}{known}") from None
    except OSError as error:
        if "libjvm" not in str(error) and "libhdfs" not in str(error):
            raise _unopened(url, error, secrets) from None
        raise Invalid(
            f"store {url}: HDFS needs Hadoop's libhdfs and a Java here: set JAVA_HOME, HADOOP_HOME and CLASSPATH "
            "(hadoop classpath --glob) on every machine, or give a folder or s3://..."
        ) from None
    except Exception as error:
        raise _unopened(url, error, secrets) from None
    return RemoteFiles(url, system, root, secrets)


def _unopened(url: str, error: Exception, secrets: Sequence[str]) -> Unusable:
    return Unusable(f"store {url}: cannot open it: {type(error).__name__}: {_hidden(error, secrets)}")


def _texts(value: Any) -> Iterator[str]:
    """Every text in a client's options: which of them are credentials, the client alone knows."""
    if isinstance(value, str):
        yield from [value] if value else []
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _texts(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _texts(each)


def _hidden(error: Exception, secrets: Sequence[str]) -> str:
    """What a client says, in one line, without what it was given."""
    said = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    for secret in secrets:
        said = said.replace(secret, "***")
    return " ".join(said.split())


def _arrow(data: bytes) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    sink.write(data)
    return sink.getvalue()


class RemoteFiles:
    """Files behind fsspec. How durable a finished write is, is the service's promise; ``sync`` changes nothing.

    Most clients look whether a name is there and then write: what was created is read again, so that of two who did
    so at once the first is told no unless both had read by then. ``secrets``: what no message may have.
    """

    at_once = 1
    far = 1 << 17

    def __init__(self, url: str, system: Any, root: str, secrets: tuple[str, ...] = ()) -> None:
        self.url = url
        self.store_id: str | None = None
        self._secrets = secrets
        self._system = system
        self._root = root.rstrip("/")
        protocols = system.protocol if isinstance(system.protocol, tuple | list) else (system.protocol,)
        self._atomic = bool(_ATOMIC_PUT.intersection(protocols))

    def read(self, name: str) -> pa.Buffer:
        with self._answered("read", name):
            return _arrow(self._system.cat_file(self._path(name)))

    def read_parts(self, name: str, spans: Sequence[tuple[int, int]]) -> Sequence[pa.Buffer]:
        path = self._path(name)

        def read(some: Sequence[tuple[int, int]]) -> Sequence[pa.Buffer]:
            starts, ends = [start for start, _ in some], [start + size for start, size in some]
            return [_arrow(part) for part in self._ranges(path, starts, ends)]

        with self._answered("read", name):
            return read_near(spans, self.far, read)

    def _ranges(self, path: str, starts: Sequence[int], ends: Sequence[int]) -> Sequence[bytes]:
        """Less where the file ends, of which some clients make an error. Others answer with errors instead of raising
        them."""
        try:
            found = self._system.cat_ranges([path] * len(starts), starts, ends, on_error="raise")
            for part in found:
                if isinstance(part, BaseException):
                    raise part
        except FileNotFoundError:
            raise
        except Exception:
            size = int(self._system.info(path)["size"])
            if all(end <= size for end in ends):
                raise
            inside = [number for number, start in enumerate(starts) if start < size]
            less = self._ranges(path, [starts[n] for n in inside], [min(ends[n], size) for n in inside])
            return [less[inside.index(number)] if number in inside else b"" for number in range(len(starts))]
        return list(found)

    def map(self, name: str) -> pa.Buffer:
        return self.read(name)

    def size(self, name: str) -> int:
        with self._answered("read", name):
            return int(self._system.info(self._path(name))["size"])

    def list(self, folder: str) -> list[str]:
        with self._answered("list", folder):
            try:
                self._system.invalidate_cache(self._path(folder))
                found = self._system.ls(self._path(folder), detail=False)
            except FileNotFoundError:
                return []
            names = (path.rstrip("/").rpartition("/")[2] for path in found)
            return sorted(name for name in names if not name.startswith(TEMPORARY))

    def tree(self, folder: str) -> Sequence[str]:
        with self._answered("list", folder):
            top = self._path(folder).rstrip("/")
            self._system.invalidate_cache(top)
            try:
                found = self._system.find(top)
            except FileNotFoundError:
                return []
            names = (path[path.index(top) + len(top) :].lstrip("/") for path in found)
            return sorted(name for name in names if not name.rpartition("/")[2].startswith(TEMPORARY))

    def put(self, name: str, data: bytes | pa.Buffer, sync: Durable) -> None:
        with self._answered("write", name):
            path = self._path(name)
            if self._atomic:
                self._system.pipe_file(path, bytes(data))
                return
            temporary = self._aside(path, bytes(data))
            try:
                self._system.mv(temporary, path)
            except FileExistsError:
                # Some services do not move onto a name that is taken.
                self._system.rm_file(path)
                self._system.mv(temporary, path)

    def create(self, name: str, data: bytes | pa.Buffer, sync: Durable) -> None:
        path, content = self._path(name), bytes(data)
        with self._answered("write", name):
            try:
                if not self._system.exists(path):
                    self._new(path, content)
            except FileExistsError:
                pass
            if self._system.cat_file(path) != content:
                raise FileExistsError(path)

    def move(self, name: str, target: str, sync: bool) -> None:
        try:
            data = self.read(name)
        except FileNotFoundError:
            self.size(target)
            return
        self.put(target, data, sync)
        self.delete(name)

    def link(self, name: str, target: str, sync: bool = False, size: int | None = None) -> bool:
        with self._answered("link", name):
            if self._system.exists(self._path(target)):
                return False
            data = self.read(name)
            if size is not None and data.size != size:
                raise FileNotFoundError(name)
            self.put(target, data, sync)
            return bool(self._system.cat_file(self._path(target)) == data.to_pybytes())

    def delete(self, name: str) -> None:
        with self._answered("delete", name), contextlib.suppress(FileNotFoundError):
            self._system.rm_file(self._path(name))

    def delete_many(self, names: Sequence[str]) -> None:
        for name in names:
            self.delete(name)

    def delete_folder(self, folder: str) -> None:
        for name in self.list(folder):
            self.delete(f"{folder}/{name}")
        with contextlib.suppress(Exception):  # Where folders are real, an empty one is in nobody's way.
            self._system.rmdir(self._path(folder))

    def delete_tree(self, folder: str) -> None:
        with self._answered("delete", folder), contextlib.suppress(FileNotFoundError):
            self._system.invalidate_cache(self._path(folder))
            self._system.rm(self._path(folder), recursive=True)

    def sweep(self, age: float) -> int:
        """Nothing: where a put is atomic there are no temporary files, and elsewhere their age is not known."""
        return 0

    def within(self, folder: str) -> RemoteFiles:
        return RemoteFiles(f"{self.url.rstrip('/')}/{folder}", self._system, self._path(folder), self._secrets)

    def _aside(self, path: str, content: bytes) -> str:
        """Bytes in a temporary file beside the path that they are for."""
        parent = path.rpartition("/")[0]
        self._system.makedirs(parent, exist_ok=True)
        temporary = f"{parent}/{TEMPORARY}{uuid.uuid4().hex}"
        self._system.pipe_file(temporary, content)
        return temporary

    def _new(self, path: str, content: bytes) -> None:
        if self._atomic:
            self._system.pipe_file(path, content, mode="create")
            return
        temporary = self._aside(path, content)
        try:
            self._system.mv(temporary, path)
        except FileExistsError:
            self._system.rm_file(temporary)
            raise

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root

    @contextlib.contextmanager
    def _answered(self, verb: str, name: str) -> Iterator[None]:
        """As ``told`` does; clients of some services raise errors of their own that are no OSError."""
        try:
            yield
        except (HoldfastError, FileNotFoundError, FileExistsError):
            raise
        except Exception as error:
            kind = "" if isinstance(error, OSError) else f"{type(error).__name__}: "
            why = f"{kind}{_hidden(error, self._secrets)}"
            raise Unusable(f"store {self.url}: cannot {verb} {name or 'it'}: {why}") from None
