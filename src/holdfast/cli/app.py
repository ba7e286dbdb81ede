"""The application: commands are registered here; errors become one line on stderr and an exit code."""

from __future__ import annotations

import os
import re
import sys
from difflib import get_close_matches
from importlib import import_module, metadata
from io import TextIOWrapper
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from holdfast.errors import HoldfastError, Invalid

COMMANDS = {
    "demo": "Watch a job lose half of its executors and go on answering.",
    "run": "Run a workload on Spark.",
    "supervise": "Run a job and start it again when it crashes.",
    "report": "Make a page of a run: one HTML file that needs no network.",
    "history": "Why a run recovered the way it did.",
    "scale": "Give an operator of a running job more tasks, or fewer.",
    "explain": "What runs where of a plain streaming query, and what a loss leaves of its answer.",
    "import-state": "Seed a store with the state of a query that Structured Streaming ran.",
    "fidelity": "How much of the answer is left when these tasks fail.",
    "plan": "Which tasks to replicate within a budget.",
    "schedule": "What to recover first while capacity comes back after a failure.",
    "advise": "Which resiliency strategy an uptime SLA calls for, and what it costs.",
    "emulate": "Plays each strategy's model against random failures, and measures its uptime.",
    "assess": "Which operators the answer depends on, measured by losing their data on purpose.",
    "bench": "How many expressways of Linear Road this machine sustains.",
    "generate": "A random topology, with the knobs of the paper's evaluation.",
    "state": "Show a task's state at a checkpoint.",
    "store": "Look into a durable store: its checkpoints, journal and outputs.",
    "doctor": "What this machine has and lacks for running jobs.",
}
"""Every command with the first sentence of its help. Its function, of the same name, is imported when it is called."""


class Commands(TyperGroup):
    """Knows all commands by name and imports one when it is called: a small command shall start fast."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{**settings, "commands": {n: TyperCommand(n, help=told) for n, told in COMMANDS.items()}})

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        if args and args[0] in COMMANDS:
            self.commands[args[0]] = loaded(args[0])
        elif args and not args[0].startswith("-") and not ctx.resilient_parsing:
            near = get_close_matches(args[0], COMMANDS)
            known = f"did you mean {near[0]}?" if near else f"commands: {', '.join(COMMANDS)}"
            raise Invalid(f"no such command {args[0]!r}; {known}")
        return super().resolve_command(ctx, args)


def loaded(name: str) -> Any:
    """The command itself, with its options."""
    alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    module = name.replace("-", "_")
    alone.command(name)(getattr(import_module(f"holdfast.cli.{module}"), module))
    command = get_command(alone)
    command.help = one_example_a_line(command.help or "")
    return command


def one_example_a_line(text: str) -> str:
    """Help whose examples, parted by ; in the source, can be copied line by line: they are not filled as text is."""
    parts = []
    for part in text.split("\n\n"):
        told = " ".join(part.split())
        if re.match("Examples?: ?holdfast ", told):
            parts.append("\n".join(["\b", "Examples:", *(f"  {each}" for each in told.partition(": ")[2].split("; "))]))
        else:
            parts.append(part)
    return "\n\n".join(parts)


app = typer.Typer(
    name="holdfast",
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"holdfast {metadata.version('holdfast')}")
        raise typer.Exit


@app.callback()
def _holdfast(
    version: Annotated[
        bool, typer.Option("--version", help="print the version and exit", is_eager=True, callback=_version)
    ] = False,
) -> None:
    """Keeps streaming results flowing when machines fail.

    To begin with: holdfast doctor; holdfast demo;
    holdfast run word-count --epochs 20 --out run-1; holdfast report run-1.
    Every command tells more with --help, and answers one JSON object with --format json.
    """


def main() -> NoReturn:
    """Exit code 0, 2 for bad input, 1 for a failure at run time, 130 when interrupted."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # as stderr is: the name of a file may be no text
    _keep_stdout()
    try:
        code = app(standalone_mode=False, prog_name="holdfast")
    except (typer.TyperException, Invalid) as error:
        code = _said(error, 2)
    except HoldfastError as error:
        code = _said(error, 1)
    except (typer.Abort, KeyboardInterrupt):
        print("holdfast: interrupted", file=sys.stderr)
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
    context = getattr(error, "ctx", None)
    if "\n\n" in message:
        print(message, file=sys.stderr)
    else:
        line = " ".join(message.split()).replace("Value error, ", "")
        line = line.removesuffix(".") + _found(error, line)
        told = line if context is None else f"{line.removesuffix('.')}; see {context.command_path} --help"
        print(f"holdfast: {told}", file=sys.stderr)
    return code


def _found(error: Exception, told: str) -> str:
    """What was typed, where the option's own message does not repeat it."""
    from pydantic import ValidationError

    cause = error.__cause__
    typed = str(cause.errors()[0]["input"]) if isinstance(cause, ValidationError) else ""
    return f", got {typed}" if typed and repr(typed) not in told else ""
