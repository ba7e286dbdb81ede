"""``holdfast report``: a run's folder as one page that can be opened, sent and kept."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.output import Format, FormatOption, answer
from holdfast.errors import Invalid
from holdfast.state.places import check_readable, on_disk


def report(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="folder of a run (its --out), or a store by URL")],
    out: Annotated[
        Path | None, typer.Option(help="the page to write; DIR/report.html by default, report.html for a URL")
    ] = None,
    form: FormatOption = Format.text,
) -> None:
    """Make a page of a run: one HTML file that needs no network.

    It has what happened, the tasks through time, fidelity, outputs, recoveries beside other schedulers, latency, state.
    Answers of other commands that lie in DIR (--format json > DIR/plan.json) become sections of their own.

    Examples:
    holdfast report run-1;
    holdfast report run-1 --out /tmp/monday.html
    """
    from holdfast.report.digest import digest
    from holdfast.report.page import NAME, write_page
    from holdfast.runtime.history.history import understood

    here = on_disk(folder)
    if here is None:
        here = Path()
    else:
        check_readable(folder, here)
    path = out if out is not None else here / NAME
    if not path.parent.is_dir() and out is not None:
        raise Invalid(f"--out {path}: no such folder {path.parent}")
    if path.is_dir():
        raise Invalid(f"--out {path}: this is a folder; name a file, such as {path / NAME}")
    content = digest(folder)
    try:
        with understood(folder):
            write_page(content, path)
    except OSError as error:
        raise Invalid(f"--out {path}: cannot be written: {error.strerror}") from None
    size = path.stat().st_size
    told = {
        "page": str(path),
        "bytes": size,
        "events": len(content["timeline"]),
        "failures": len(content["recoveries"]),
    }
    answer(told, form, lambda console: console.print(f"wrote {path}", highlight=False, markup=False, soft_wrap=True))
