"""A filesystem for fsspec that stands for an object store: a local folder that answers 503 once, if a marker is there.

Its URLs, ``viewfs://tests/PATH``, are known to Hadoop too, so that Spark keeps its own log in the same store.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fsspec.implementations.local import LocalFileSystem

HOST = "viewfs://tests"
MARKER = "refuse-once"
"""In the folder of a store: the next write of a final output takes it away and is refused."""


class RefusingFiles(LocalFileSystem):
    protocol = "viewfs"

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        return super()._strip_protocol(str(path).removeprefix(HOST))

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        if mode != "rb":
            self._refuse(path)
        return super()._open(path, mode, **options)

    def mv(self, path1: str, path2: str, **options: Any) -> None:
        self._refuse(path2)
        super().mv(path1, path2, **options)

    def cp_file(self, path1: str, path2: str, **options: Any) -> None:
        self._refuse(path2)
        super().cp_file(path1, path2, **options)

    def _refuse(self, path: str) -> None:
        store, output, _ = self._strip_protocol(path).partition("/output/final/")
        marker = Path(store) / MARKER
        if output and marker.exists():
            marker.unlink()
            raise OSError(503, "Service Unavailable")
