"""``holdfast scale``: another number of tasks for an operator of a job that is running."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from holdfast.cli.output import Format, FormatOption, answer, progress
from holdfast.errors import Infeasible, Invalid
from holdfast.runtime.driver.requests import MOST, OUTCOMES, Request, answers, ask, withdraw
from holdfast.runtime.history.history import NAME, read_history
from holdfast.state import Store
from holdfast.state.fence import held
from holdfast.state.files import open_files
from holdfast.state.places import on_disk

LOOK_EVERY, REMOTE_EVERY = 0.1, 1.0


def scale(
    folder: Annotated[
        str, typer.Argument(metavar="DIR", help="folder of a running job (its --out), or its store by URL")
    ],
    operator: Annotated[str, typer.Argument(metavar="OPERATOR", help="the operator, such as counts")],
    to: Annotated[int, typer.Option(help="how many tasks it shall have")],
    timeout: Annotated[float, typer.Option(min=0, help="seconds to wait until it is done")] = 60.0,
    form: FormatOption = Format.text,
) -> None:
    """Give an operator of a running job more tasks, or fewer.

    The job goes on while new tasks are made from its last checkpoint; then they take over, between two epochs. Answers
    stay what they would have been.

    Examples: holdfast scale run-1 counts --to 4; holdfast scale run-1 counts --to 1 --timeout 10
    """
    started = running(folder)
    _check(started, operator, to)
    here = on_disk(folder)
    skip = 0 if here is None else (here / NAME).stat().st_size
    request = ask(open_files(folder), operator, to)
    told = _awaited(folder, request, timeout, skip)
    if told["kind"] != "scaled":
        raise Infeasible(f"operator {operator} to {to} tasks: {told['reason']}")
    content = {
        "operator": operator,
        "tasks": told["tasks"],
        "epoch": told["epoch"],
        "new": told.get("new", {}),
        "changed": "new" in told,
    }
    answer(content, form, lambda console: console.print(_said(content), highlight=False, soft_wrap=True))


def running(folder: str) -> dict[str, Any]:
    """What the job that runs in a folder said when it started; Invalid if none does."""
    events = [event for event in read_history(folder) if event["kind"] in ("started", "stopped")]
    if not held(Store(folder).files, time.time()) or not events or events[-1]["kind"] == "stopped":
        raise Invalid(f"{folder}: no job is running here; start one with holdfast run ... --out {folder}")
    return events[-1]


def _check(started: dict[str, Any], operator: str, to: int) -> None:
    able: dict[str, str | None] = started.get("scalable", {})
    if operator not in able:
        raise Invalid(f"no operator {operator!r} in this job; operators: {', '.join(able)}")
    if (why := able[operator]) is not None:
        raise Invalid(why)
    if not 1 <= to <= MOST:
        raise Invalid(f"--to: an operator needs 1 to {MOST} tasks, got {to}")


def _awaited(folder: str, request: Request, timeout: float, skip: int) -> dict[str, Any]:
    """The event that tells what became of a request. Tries that fail and begin again are told on the way."""
    until = time.monotonic() + timeout
    heard = 0
    while True:
        events = list(answers(folder, request.name, skip))
        for event in events[heard:]:
            if event["kind"] in OUTCOMES and not event.get("again"):
                return event
            _progress(event)
        heard = len(events)
        if time.monotonic() > until:
            break
        if not held(Store(folder).files, time.time()):
            raise Infeasible(f"operator {request.operator} to {request.to} tasks: the job ended before it was done")
        time.sleep(LOOK_EVERY if "://" not in folder else REMOTE_EVERY)
    if withdraw(open_files(folder), request):
        raise Infeasible(f"the job did not take the request up within {timeout:g} s; it is withdrawn")
    raise Infeasible(f"not done after {timeout:g} s; it may still be, holdfast history {folder} --events tells")


def _progress(event: dict[str, Any]) -> None:
    if event["kind"] == "scaling begun":
        placed = ", ".join(f"{task} on {node}" for task, node in event["new"].items())
        text = f"new tasks from checkpoint {event['checkpoint']}: {placed}"
    else:
        text = f"{event['kind']}: {event.get('reason', '')}"
    progress.print(text, style="dim", highlight=False, markup=False, soft_wrap=True)


def _said(content: dict[str, Any]) -> str:
    if not content["changed"]:
        return f"{content['operator']} has {content['tasks']} tasks already"
    return (
        f"{content['operator']} has {content['tasks']} tasks after epoch {content['epoch']}; "
        f"new: {', '.join(f'{task} on {node}' for task, node in content['new'].items())}"
    )
