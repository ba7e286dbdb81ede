"""The shape of a job in its store: who owns which keys by now. One document, replaced as a whole; the newest counts.

A document's name has its writer's token first: whatever a superseded writer puts in place later is not the newest.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from holdfast.state.entries import Damaged, document, read_document
from holdfast.state.files import Files

FOLDER = "shape"
_NAME = re.compile(r"(\d{10})-(\d{10})\.json")


def names(files: Files) -> list[str]:
    """The documents there are, oldest first."""
    return sorted(f"{FOLDER}/{name}" for name in files.list(FOLDER) if _NAME.fullmatch(name))


def read(files: Files) -> dict[str, Any] | None:
    """The newest shape; None if none was ever put down. Damaged, naming the file, if it is not whole."""
    found = names(files)
    if not found:
        return None
    body = read_document(files, "shape", found[-1])
    if found[-1] != _name(body["token"], body["number"]):
        raise Damaged(f"{found[-1]} is of writer {body['token']}: files were swapped")
    return dict(body["shape"])


def write(files: Files, shape: Mapping[str, Any], *, token: int, number: int, sync: bool) -> None:
    files.put(_name(token, number), document("shape", {"token": token, "number": number, "shape": dict(shape)}), sync)


def forget_older(files: Files, token: int, number: int) -> None:
    """Older documents have been replaced; those of newer writers are none of ours."""
    if older := [name for name in names(files) if name < _name(token, number)]:
        files.delete_many(older)


def _name(token: int, number: int) -> str:
    return f"{FOLDER}/{token:010d}-{number:010d}.json"
