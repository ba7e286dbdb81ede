"""Where a stream stood: which batch an epoch was made of, and the watermark that batch left behind.

The journal's entry of an epoch holds it, so a restart need not trust the log of the source: a batch that comes again is
compared with the entry, and the watermark continues from the entry.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from holdfast.errors import Unrecoverable

SHOWN = 60
"""Characters of an offset in a message."""


class BatchChanged(Unrecoverable):
    """The source planned other rows under the number of a batch that the store has already."""


@dataclass(frozen=True, slots=True)
class Origin:
    """The batch of an epoch. Watermarks are milliseconds.

    ``batch``: its number in the log of the source. ``offsets``: the position of each source at its end. ``files``: how
    many files it reads and a digest of their names, of sources that read files. ``idle``: the epoch has no rows; it
    follows this batch because the watermark moved. ``by``: the watermark that the batch went by. ``left``: the
    watermark behind it. ``operators``: the same for each watermark operator of the query, None where no row came yet.
    """

    batch: int
    offsets: tuple[str | None, ...] = ()
    files: str = ""
    idle: bool = False
    by: int | None = None
    left: int | None = None
    operators: tuple[int | None, ...] = ()

    def differs(self, again: Origin) -> str | None:
        """What another plan of the same batch reads instead; None if it reads the same rows."""
        if self.files != again.files:
            return f"it reads {_files(again.files)}, the epoch has {_files(self.files)}"
        if len(self.offsets) != len(again.offsets):
            return f"it has {len(again.offsets)} sources, the epoch has {len(self.offsets)}"
        for number, (had, has) in enumerate(zip(self.offsets, again.offsets, strict=True)):
            if had != has:
                return f"source {number} ends at {_brief(has)}, in the epoch at {_brief(had)}"
        return None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, content: Mapping[str, Any] | None) -> Origin | None:
        """None for an epoch of an earlier version, which kept no origins."""
        if content is None:
            return None
        tuples = {"offsets": tuple(content["offsets"]), "operators": tuple(content["operators"])}
        return cls(**{**content, **tuples})


FORM = {
    "batch": int,
    "offsets": [(str, None)],
    "files": str,
    "idle": bool,
    "by": (int, None),
    "left": (int, None),
    "operators": [(int, None)],
}


def _files(digest: str) -> str:
    count = digest.partition(" ")[0] or "no"
    return f"{count} files ({digest.partition(' ')[2][:8]})" if digest else "no files"


def _brief(offset: str | None) -> str:
    text = "nothing" if offset is None else " ".join(offset.split())
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 3]}..."
