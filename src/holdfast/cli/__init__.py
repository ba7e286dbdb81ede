"""The front door: one file a command. ``main`` turns what went wrong into one line and an exit code."""

from holdfast.cli.app import main

__all__ = ["main"]
