"""How commands answer: one JSON object on stdout with ``--format json``, otherwise something to read."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.console import Console


class Format(StrEnum):
    text = "text"
    json = "json"


FormatOption = Annotated[Format, typer.Option("--format", help="text to read, or one JSON object on stdout")]

progress = Console(stderr=True)
"""Progress, warnings and logs go here, never to stdout."""


def answer(content: Mapping[str, Any], form: Format, read: Callable[[Console], None]) -> None:
    """Print the answer: the object itself as JSON, or what ``read`` shows of it."""
    if form is Format.json:
        typer.echo(json.dumps(content, allow_nan=False))
    else:
        read(Console())


def completing(names: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    """For an argument or option that takes one of these names: what a shell may complete it to."""
    return lambda incomplete: [name for name in names() if name.startswith(incomplete)]


def warn(message: str) -> None:
    progress.print(f"holdfast: warning: {message}", style="yellow", highlight=False, markup=False, soft_wrap=True)
