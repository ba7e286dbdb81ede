"""The application: commands are registered here; errors become one line on stderr and an exit code."""

from __future__ import annotations

import sys
from typing import NoReturn

import typer

from holdfast.cli.fidelity import fidelity
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


def main() -> NoReturn:
    """Exit code 0, 2 for bad input, 1 for a failure at run time, 130 when interrupted."""
    try:
        code = app(standalone_mode=False)
    except (typer.TyperException, Invalid) as error:
        code = _said(error, 2)
    except HoldfastError as error:
        code = _said(error, 1)
    except (typer.Abort, KeyboardInterrupt):
        code = 130
    sys.exit(code if isinstance(code, int) else 0)


def _said(error: Exception, code: int) -> int:
    message = error.format_message() if isinstance(error, typer.TyperException) else str(error)
    print(message if "\n\n" in message else f"holdfast: {' '.join(message.split())}", file=sys.stderr)
    return code
