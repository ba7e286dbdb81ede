"""``holdfast store``: look into a durable store, check every file of it, shorten its changelogs."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from holdfast.cli.output import Format, FormatOption, answer, progress
from holdfast.errors import Invalid, instead

if TYPE_CHECKING:
    from holdfast.state import Store


class Action(StrEnum):
    list = "list"
    check = "check"
    compact = "compact"


def store(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[list|check|compact] STORE",
            help="the store: a run's folder or any fsspec URL; list: what is there; check: read and check every file; "
            "compact: fold long changelogs",
        ),
    ],
    jobs: Annotated[
        int | None, typer.Option(min=1, help="check: files read at once; as many as processors by default")
    ] = None,
    force: Annotated[bool, typer.Option(help="compact: take the store over from a writer that still holds it")] = False,
    form: FormatOption = Format.text,
) -> None:
    """Look into a durable store: its checkpoints, journal and outputs.

    Examples: holdfast store runs/wordcount; holdfast store check runs/wordcount;
    holdfast store compact s3://bucket/job

    check ends with exit code 1 if any file is torn, truncated, altered, missing, swapped or of another store, and
    names it.
    """
    from holdfast.state import Store

    action, directory = _asked(words)
    place = Store(directory)
    place.require()
    if action is Action.check:
        _check(place, jobs, form)
    elif action is Action.compact:
        _compact(place, force, form)
    else:
        _list(place, form)


def _asked(words: list[str]) -> tuple[Action, str]:
    """What is to be done with which store; what was typed in the other order means the same."""
    known = [each.value for each in Action]
    if len(words) == 1 and words[0] in known and not Path(words[0]).exists():
        raise Invalid(f"store {words[0]}: which store? such as: holdfast store {words[0]} DIR")
    if len(words) == 1:
        return Action.list, words[0]
    named = [word for word in words if word in known]
    if len(words) != 2 or not named:
        raise Invalid(f"store {' '.join(words)}: {instead(words[0], known, 'one of')}, and then one store, are needed")
    return Action(named[0]), words[1] if words[0] == named[0] else words[0]


def _list(place: Store, form: Format) -> None:
    from holdfast.state import output

    found = place.checkpoints()
    epochs = place.journal_epochs()
    content: dict[str, Any] = {
        "store": place.url,
        "checkpoints": [
            {
                "epoch": one.epoch,
                "writer": one.token,
                "tasks": len(one.tasks),
                "files": sum(len(chain) for chain in one.tasks.values()),
                "bytes": one.nbytes,
            }
            for one in found
        ],
        "journal": {"epochs": len(epochs), "first": min(epochs, default=None), "last": max(epochs, default=None)},
        "outputs": {kind: len(output.written(place.files, kind)) for kind in output.KINDS},
    }

    def read(console: Console) -> None:
        table = Table("checkpoint", "writer", "tasks", "files", "bytes", title=None)
        for row in content["checkpoints"]:
            table.add_row(*(f"{value:,}" for value in row.values()))
        console.print(table)
        span = f" ({min(epochs)} to {max(epochs)})" if epochs else ""
        console.print(f"journal: {len(epochs)} epochs{span}")
        console.print(f"outputs: {content['outputs']['final']} final, {content['outputs']['tentative']} tentative")

    answer(content, form, read)


def _check(place: Store, jobs: int | None, form: Format) -> None:
    from holdfast.state.verify import verify

    columns, piped = Progress.get_default_columns(), not progress.is_terminal
    with Progress(*columns, console=progress, transient=True, disable=piped) as shown:
        bar = shown.add_task("reading files", total=None)
        result = verify(place, jobs, lambda done, of: shown.update(bar, completed=done, total=of))
    content = {
        "store": place.url,
        "whole": result.whole,
        "files": result.files,
        "bytes": result.bytes,
        "checkpoints": [{"epoch": epoch, "whole": whole} for epoch, whole in result.checkpoints.items()],
        "findings": [{"file": one.path, "problem": one.problem} for one in result.findings],
    }

    def read(console: Console) -> None:
        for one in result.findings:
            console.print(f"damaged: {one.problem}", highlight=False, markup=False)
        whole = [str(epoch) for epoch, good in result.checkpoints.items() if good]
        console.print(f"{result.files:,} files, {result.bytes:,} bytes read; {len(result.findings)} damaged")
        console.print(f"whole checkpoints: {', '.join(whole) or 'none'}")

    answer(content, form, read)
    if not result.whole:
        raise typer.Exit(1)


def _compact(place: Store, force: bool, form: Format) -> None:
    with place.writer("holdfast store compact", force=force, fold_at=0) as writer:
        folded = writer.compact()
        swept = place.files.sweep(3600.0)
    content = {
        "store": place.url,
        "folded": {task: {"files_before": before, "files_after": after} for task, (before, after) in folded.items()},
        "temporary_files_deleted": swept,
    }

    def read(console: Console) -> None:
        for task, (before, after) in folded.items():
            console.print(f"{task}: {before} files -> {after}")
        console.print(f"{len(folded)} tasks compacted, {swept} temporary files deleted")

    answer(content, form, read)
