"""Which pipeline writes into a store: the signature of the job that was started last, whose blocks the journal holds.

One document, put down at every start; the newest counts. Its name has the writer's token first, as that of a shape.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.state.entries import Damaged, document, read_document
from holdfast.state.files import Files

FOLDER = "signature"
_NAME = re.compile(r"(\d{10})-(\d{10})\.json")


@dataclass(frozen=True, slots=True)
class Started:
    """The pipeline that was started last; epochs from ``since`` on are in the journal as it would put them there."""

    signature: Mapping[str, Any]
    since: int = 0


def names(files: Files) -> list[str]:
    """The documents there are, oldest first."""
    return sorted(f"{FOLDER}/{name}" for name in files.list(FOLDER) if _NAME.fullmatch(name))


def read(files: Files) -> Started | None:
    """The newest one; None if none was ever put down. Damaged, naming the file, if it is not whole."""
    found = names(files)
    if not found:
        return None
    newest = found[-1]
    try:
        body = read_document(files, "signature", newest)
        if newest != _name(body["token"], body["number"]):
            raise Damaged(f"{newest} is of writer {body['token']}: files were swapped")
    except Damaged as error:
        raise Damaged(
            f"store {files.url}: {error}; it says which pipeline wrote the journal. Put it back, or delete it if that "
            "is the one you start"
        ) from None
    return Started(body["signature"], body["since"])


def write(files: Files, started: Started, token: int, number: int, sync: bool) -> None:
    """Put it down as a whole; then the older ones go, those of newer writers stay."""
    mine = _name(token, number)
    content = {"token": token, "number": number, "signature": dict(started.signature), "since": started.since}
    files.put(mine, document("signature", content), sync)
    if older := [name for name in names(files) if name < mine]:
        files.delete_many(older)


def _name(token: int, number: int) -> str:
    return f"{FOLDER}/{token:010d}-{number:010d}.json"
