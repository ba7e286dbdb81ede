"""How a simulation can end before its job is done."""

from __future__ import annotations


class Unfinished(Exception):
    """The simulation cannot go on although the job is not done."""


class Hopeless(Unfinished):
    """Nothing whole is left in the store to recover from."""
