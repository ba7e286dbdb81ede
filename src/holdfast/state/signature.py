"""Which pipeline writes into a store: the signature of the job that was started last, whose blocks the journal holds.

One document, put down at every start; the newest counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.state.entries import Damaged, document, numbered, numbered_names, read_numbered
from holdfast.state.files import Files

KIND = "signature"


@dataclass(frozen=True, slots=True)
class Started:
    """The pipeline that was started last; epochs from ``since`` on are in the journal as it would put them there."""

    signature: Mapping[str, Any]
    since: int = 0


def read(files: Files) -> Started | None:
    """The newest one; None if none was ever put down. Damaged, naming the file, if it is not whole."""
    found = numbered_names(files, KIND)
    if not found:
        return None
    try:
        body = read_numbered(files, KIND, found[-1])
    except Damaged as error:
        raise Damaged(
            f"store {files.url}: {error}; it says which pipeline wrote the journal. Put it back, or delete it if that "
            "is the one you start"
        ) from None
    return Started(body["signature"], body["since"])


def write(files: Files, started: Started, token: int, number: int, sync: bool) -> None:
    """Put it down as a whole; then the older ones go, those of newer writers stay."""
    mine = numbered(KIND, token, number)
    content = {"token": token, "number": number, "signature": dict(started.signature), "since": started.since}
    files.put(mine, document(files, KIND, content), sync)
    if older := [name for name in numbered_names(files, KIND) if name < mine]:
        files.delete_many(older)
