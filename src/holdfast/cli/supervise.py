"""``holdfast supervise``: a job that comes back by itself, on one host or with another that stands by."""

from __future__ import annotations

import json
import time
from typing import Annotated, Any

import typer

from holdfast.cli.output import progress
from holdfast.errors import HoldfastError, Invalid

LEASE = 6.0
"""Seconds; with a beat every two, and a few seconds for the next driver to answer, 15 s of silence are kept."""


class GaveUp(HoldfastError):
    """The job crashed too often in a row. Exit code 1."""


class NotStopped(HoldfastError):
    """The job was asked to stop, and failed instead. Exit code 1."""


def supervise(
    job: Annotated[
        str, typer.Argument(metavar="FILE.py:NAME", help="a function of none that starts a job and returns it")
    ],
    lease: Annotated[
        float, typer.Option(help="seconds without a sign of life after which another host's job takes over")
    ] = LEASE,
    crashes: Annotated[int, typer.Option(min=1, help="give up after so many crashes in a row")] = 5,
    pause: Annotated[float, typer.Option(min=0, help="seconds before the first restart; each next pause doubles")] = 1,
    longest_pause: Annotated[float, typer.Option(min=0, help="ceiling of the pauses, in seconds")] = 60.0,
    well_after: Annotated[
        float, typer.Option(min=0, help="a job that ran for so many seconds is well: crashes are counted anew")
    ] = 60.0,
    seed: Annotated[int, typer.Option(help="seed of the jitter in the pauses")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="what happens as lines of JSON on stdout")] = False,
) -> None:
    """Run a job and start it again when it crashes.

    The function starts a job (holdfast.start(...), or .start() of holdfast.writeStream) and returns it. Started on two
    hosts with the same store, the second waits, and takes over when the first is gone. SIGTERM or Ctrl-C stop the job
    after the epoch at hand; a second one kills it. What is wrong with the job itself (exit code 2) is not tried again.

    Examples: holdfast supervise my_job.py:build; holdfast supervise my_job.py:build --lease 4 --crashes 10 --json
    """
    from holdfast.cli.supervision import Pauses, Supervisor
    from holdfast.runtime.environment import LEASE, STANDBY

    if not lease > 0:
        raise Invalid(f"--lease {lease:g}: more than 0 seconds are needed")
    last: dict[str, Any] = {}

    def say(kind: str, fields: dict[str, Any]) -> None:
        last.update(kind=kind, **fields)
        if as_json:
            typer.echo(json.dumps({"time": round(time.time(), 3), "kind": kind, **fields}))
        elif kind not in ("refused", "gave up") and not (kind == "stopped" and "cause" in fields):
            progress.print(_words(kind, fields), highlight=False, markup=False, soft_wrap=True)

    pauses = Pauses(pause, longest_pause, crashes, well_after, seed)
    environment = {LEASE: str(lease), STANDBY: "1"}
    code = Supervisor(job, pauses, say, environment, quiet=as_json).run()
    if last["kind"] == "refused":
        raise Invalid(last["cause"])
    if last["kind"] == "gave up":
        raise GaveUp(f"{job}: given up after {last['crashes']} crashes in a row; the last: {last['cause']}")
    if last["kind"] == "stopped" and code == 1:
        raise NotStopped(f"{job}: it failed when it was to stop: {last['cause']}")
    raise typer.Exit(code)


def _words(kind: str, fields: dict[str, Any]) -> str:
    match kind:
        case "started":
            return f"started, process {fields['process']}"
        case "running":
            return "the job runs"
        case "answered":
            return f"first answer: epoch {fields['epoch']}"
        case "note":
            return str(fields["text"])
        case "crashed":
            return f"crashed after {fields['ran_s']:.1f} s: {fields['cause']}"
        case "waiting":
            return f"crash {fields['crashes']} in a row: starting again in {fields['seconds']:.1f} s"
        case "superseded":
            return f"another driver has the store: {fields['cause']}"
        case "ended":
            return "the job has ended"
        case "stopped":
            return "killed" if fields["killed"] else "stopped"
    return kind
