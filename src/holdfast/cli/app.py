"""The application: commands are registered here; errors become one line on stderr and an exit code."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

import typer

from holdfast.cli.advise import advise
from holdfast.cli.demo import demo
from holdfast.cli.emulate import emulate
from holdfast.cli.fidelity import fidelity
from holdfast.cli.generate import generate
from holdfast.cli.history import history
from holdfast.cli.plan import plan
from holdfast.cli.report import report
from holdfast.cli.run import run
from holdfast.cli.schedule import schedule
from holdfast.cli.state import state
from holdfast.cli.store import store
from holdfast.errors import HoldfastError, Invalid

app = typer.Typer(
    name="holdfast",
    help="Keeps streaming results flowing when machines fail.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.callback()
def _holdfast() -> None:
    """Keeps streaming results flowing when machines fail."""


app.command()(fidelity)
app.command()(plan)
app.command()(generate)
app.command()(advise)
app.command()(emulate)
app.command()(schedule)
app.command()(run)
app.command()(demo)
app.command()(report)
app.command()(history)
app.command()(store)
app.command()(state)


def main() -> NoReturn:
    """Exit code 0, 2 for bad input, 1 for a failure at run time, 130 when interrupted."""
    _keep_stdout()
    try:
        code = app(standalone_mode=False)
    except (typer.TyperException, Invalid) as error:
        code = _said(error, 2)
    except HoldfastError as error:
        code = _said(error, 1)
    except (typer.Abort, KeyboardInterrupt):
        code = 130
    sys.exit(code if isinstance(code, int) else 0)


def _keep_stdout() -> None:
    """Native libraries (HiGHS, a JVM) print to file descriptor 1 as they please: theirs goes to stderr from here on."""
    if sys.__stdout__ is None or sys.stdout is not sys.__stdout__:
        return  # somebody catches our output in this process
    sys.stdout.flush()
    ours = os.dup(1)
    os.dup2(2, 1)
    sys.stdout = os.fdopen(ours, "w", encoding=sys.stdout.encoding, errors=sys.stdout.errors)


def _said(error: Exception, code: int) -> int:
    message = error.format_message() if isinstance(error, typer.TyperException) else str(error)
    print(message if "\n\n" in message else f"holdfast: {' '.join(message.split())}", file=sys.stderr)
    return code
