"""``holdfast history``: what happened to a run; for each recovery the cause, the plan, the reasons and the times."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import typer
from rich.console import Console

from holdfast.cli.output import Format, FormatOption, answer
from holdfast.errors import Invalid, instead
from holdfast.runtime.history.history import read_history, understood
from holdfast.runtime.history.narrative import Recovery, promise, recoveries


def history(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="folder of a run (its --out), or a store by URL")],
    last: Annotated[int, typer.Option(min=1, help="tell the last N recoveries")] = 5,
    task: Annotated[
        str | None, typer.Option(help="tell the story of one task, such as counts/0, event by event")
    ] = None,
    events: Annotated[bool, typer.Option(help="every event, one a line")] = False,
    form: FormatOption = Format.text,
) -> None:
    """Why a run recovered the way it did.

    Examples: holdfast history run-1; holdfast history run-1 --last 1; holdfast history run-1 --task counts/0
    """
    told = list(read_history(folder))
    if task is not None or events:
        kept = [event for event in told if task is None or _speaks_of(event, task)]
        if task is not None and not kept:
            names = sorted({name for event in told if event["kind"] == "recovery plan" for name in event["recover"]})
            raise Invalid(f"--task {task}: nothing is said of it; {instead(task, names, 'tasks')}")
        with understood(folder):
            answer({"events": kept}, form, lambda console: _events(console, kept))
        return
    with understood(folder):
        found = recoveries(told)[-last:]
        standing = promise(told)
        epochs = sum(event["kind"] == "epoch" for event in told)
        content = {"epochs": epochs, "promise": standing or None, "recoveries": [each.as_json() for each in found]}
        answer(content, form, lambda console: _read(console, found, epochs, standing))


def _speaks_of(event: dict[str, Any], task: str) -> bool:
    def within(value: Any) -> bool:
        if isinstance(value, dict):
            return any(within(key) or within(item) for key, item in value.items())
        if isinstance(value, list):
            return any(within(item) for item in value)
        return bool(value == task)

    return within(event)


def _events(console: Console, events: list[dict[str, Any]]) -> None:
    start = events[0]["time"] if events else 0.0
    for event in events:
        rest = ", ".join(f"{key} {value}" for key, value in event.items() if key not in ("time", "kind"))
        line = f"{event['time'] - start:9.3f} s  {event['kind']:<16} {rest}"
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _read(console: Console, found: list[Recovery], epochs: int, standing: str) -> None:
    def say(text: str) -> None:
        console.print(text, highlight=False, markup=False, soft_wrap=True)

    told = "1 recovery told" if len(found) == 1 else f"{len(found)} recoveries told"
    say(f"{epochs} epochs, {told}" if found else f"{epochs} epochs, nothing was lost")
    if standing:
        say(f"fidelity of the next answer, {standing}")
    for number, each in enumerate(found, 1):
        say(f"\n{number}. {', '.join(each.nodes)}: {each.cause} at epoch {each.epoch}")
        say(f"   down: {', '.join(each.down) or 'nothing, replicas took over'}")
        if each.promoted:
            say(f"   promoted: {', '.join(each.promoted)}")
        if each.answered_after is not None and each.answered_fidelity is not None:
            came = "next answer after {:.2f} s" if each.silent is None else "silent for {:.2f} s, then an answer"
            promised = "" if each.promised is None else f", promised {each.promised:.3f}"
            say(f"   {came.format(each.answered_after)} with fidelity {each.answered_fidelity:.3f}{promised}")
        elif each.silent is not None:
            say(f"   silent for {each.silent:.2f} s: no row for anybody since")
        for after, line in sorted(_steps(each), key=lambda step: step[0]):
            say(f"   +{after:.2f} s {line}")
        if each.exact_after is not None:
            say(f"   exact and caught up after {each.exact_after:.2f} s")
        elif each.saved_after is not None:
            say(f"   no exact answer since; all state was exact in the checkpoint after {each.saved_after:.2f} s")
        else:
            say("   not exact again yet")


def _steps(each: Recovery) -> Iterator[tuple[float, str]]:
    """What was done, each with the seconds after the loss."""
    for plan in each.plans:
        placed = ", ".join(f"{task} on {node}" for task, node in plan["recover"].items()) or "nothing fits"
        waiting = f"; waiting: {', '.join(plan['still_down'])}" if plan["still_down"] else ""
        yield plan["after_s"], f"plan ({plan['scheduler']}): {plan['why']}\n       {placed}{waiting}"
    for join in each.joined:
        yield join["after_s"], f"joined: {', '.join(join['nodes'])}"
    for replay in each.replays:
        first, until = replay["epochs"]
        side = f", on the side {', '.join(replay['on_the_side'])}" if replay["on_the_side"] else ""
        kept = f", from buffers {', '.join(replay['from_buffers'])}" if replay["from_buffers"] else ""
        told = f"replay of epochs {first} to {until} in {replay['seconds']:.2f} s: {', '.join(replay['tasks'])}"
        yield replay["after_s"], f"{told}{side}{kept}"
