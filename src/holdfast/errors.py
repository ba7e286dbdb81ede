"""What can go wrong, by meaning. Every message is one line: what was wrong, what was found, what would be right."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class HoldfastError(Exception):
    """Anything that Holdfast itself reports."""


class Invalid(HoldfastError):
    """What somebody wrote or typed is wrong; nothing was done. Exit code 2."""


class Infeasible(HoldfastError):
    """The question is well put but has no answer within the limits given. Exit code 1."""


class StreamEnded(HoldfastError):
    """What a job reads from has failed or was stopped; starting it again may help. Exit code 1."""


class Unrecoverable(HoldfastError):
    """What is needed to go on is gone or damaged; the message says what was tried. Exit code 1."""


def instead(found: str, names: Iterable[str], what: str = "known") -> str:
    """What would be right in place of a name that nobody knows: the one it looks like, or else all there are."""
    there = list(names)
    near = get_close_matches(found, there, n=1)
    return f"did you mean {near[0]}? {what}: {', '.join(there)}" if near else f"{what}: {', '.join(there)}"
