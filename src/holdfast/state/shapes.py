"""The shape of a job in its store: who owns which keys by now. One document, replaced as a whole; the newest counts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.state.entries import document, numbered, numbered_names, read_numbered
from holdfast.state.files import Files

KIND = "shape"


def read(files: Files) -> dict[str, Any] | None:
    """The newest shape; None if none was ever put down. Damaged, naming the file, if it is not whole."""
    found = numbered_names(files, KIND)
    return dict(read_numbered(files, KIND, found[-1])["shape"]) if found else None


def write(files: Files, shape: Mapping[str, Any], *, token: int, number: int, sync: bool) -> None:
    content = {"token": token, "number": number, "shape": dict(shape)}
    files.put(numbered(KIND, token, number), document(files, KIND, content), sync)


def forget_older(files: Files, token: int, number: int) -> None:
    """Older documents have been replaced; those of newer writers are none of ours."""
    if older := [name for name in numbered_names(files, KIND) if name < numbered(KIND, token, number)]:
        files.delete_many(older)
