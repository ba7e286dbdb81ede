"""Which outputs the sink has been given: for each task the newest epoch, final and tentative apart.

Two documents are kept: if the newest is damaged the one before counts, and the sink is given some outputs again.
Plain queries have documents of their own here (``PLAIN``), one for each writer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from holdfast.state.entries import Damaged, document, numbered, numbered_names, read_numbered
from holdfast.state.files import Files
from holdfast.state.output import Kind

FOLDER = "cursor"
KEPT = 2
PLAIN = ("batches", "idle")


@dataclass(frozen=True, slots=True)
class Cursor:
    """Up to which epoch each task's outputs have been delivered; they are delivered in the order of their epochs.

    ``upto``: whatever was final of all epochs up to this one has been delivered, whoever said it.
    """

    final: Mapping[str, int] = field(default_factory=dict)
    tentative: Mapping[str, int] = field(default_factory=dict)
    upto: int = -1

    def given(self, kind: Kind, task: str, epoch: int) -> bool:
        """Whether the sink has had this output."""
        newest = self._of(kind).get(str(task))
        return newest is not None and epoch <= newest

    def with_(self, kind: Kind, task: str, epoch: int) -> Cursor:
        """The cursor after this output; it never goes back."""
        return self.after([(kind, epoch, task)])

    def after(self, outputs: Iterable[tuple[Kind, int, str]], upto: int = -1) -> Cursor:
        """The cursor after these outputs; it never goes back."""
        moved = {"final": dict(self.final), "tentative": dict(self.tentative)}
        for kind, epoch, task in outputs:
            reached = moved[kind]
            reached[str(task)] = max(epoch, reached.get(str(task), epoch))
        return Cursor(moved["final"], moved["tentative"], max(upto, self.upto))

    def _of(self, kind: Kind) -> Mapping[str, int]:
        return self.final if kind == "final" else self.tentative


def of_writers(files: Files, kind: str) -> list[tuple[int, str]]:
    """The documents of a kind that each writer has one of, by its token, oldest first; 0: from before they had any."""
    pattern = re.compile(rf"{kind}(?:-(\d{{10}}))?\.json")
    found = [match for name in files.list(FOLDER) if (match := pattern.fullmatch(name)) is not None]
    return sorted((int(match[1] or 0), f"{FOLDER}/{match[0]}") for match in found)


def read(files: Files) -> Cursor | None:
    """The newest cursor that is whole; None if there never was a sink. Damaged if there are some and none is whole."""
    problems: list[str] = []
    for name in reversed(numbered_names(files, FOLDER)):
        try:
            body = read_numbered(files, FOLDER, name)
            return Cursor(body["final"], body["tentative"], body.get("upto", -1))
        except Damaged as error:
            problems.append(str(error))
    if problems:
        raise Damaged(f"store {files.url}: which outputs the sink was given is not known: {'; '.join(problems)}")
    return None


def write(files: Files, cursor: Cursor, token: int, sync: bool, there: list[str] | None = None) -> list[str]:
    """Put the cursor down, as writer ``token``; the one before it stays, older ones go. The documents there are now.

    ``there``: what the call before this one returned; without it they are listed.
    """
    there = numbered_names(files, FOLDER) if there is None else there
    mine = [name for name in there if name.startswith(numbered(FOLDER, token, 0)[: len(FOLDER) + 11])]
    number = int(mine[-1][-15:-5]) + 1 if mine else 1
    name = numbered(FOLDER, token, number)
    given = {"final": dict(cursor.final), "tentative": dict(cursor.tentative), "upto": cursor.upto}
    files.put(name, document(files, FOLDER, {"token": token, "number": number, **given}), sync)
    # Documents of newer writers are none of ours.
    older = [each for each in there if each < name]
    gone = older[: max(len(older) + 1 - KEPT, 0)]
    if gone:
        files.delete_many(gone)
    return sorted({*there, name} - {*gone})
