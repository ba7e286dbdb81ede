"""A run in a few sentences: what somebody who was woken up wants to know first. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.report.timeline import names
from holdfast.runtime.history.narrative import Recovery

TOLD = 3
"""So many of the last failures are told; of more, only how many there were."""


def standing(last: Mapping[str, Any] | None, error: str | None, running: bool, down: int) -> dict[str, str]:
    """How the job stands, in a line, and how good that is: good, fair or bad. ``last``: its newest epoch."""
    if error:
        return {"level": "bad", "text": f"The job failed: {error}"}
    if last is None:
        return {"level": "fair", "text": "The job is starting" if running else "The job ended before its first answer"}
    behind = last["absent"] + last["tentative"]
    if down or behind:
        what = f"{_count(behind, 'task')} not exact" if behind else f"{_count(down, 'task')} down"
        now = "Recovering" if running else "Ended before it had recovered"
        return {"level": "fair" if running else "bad", "text": f"{now}: {what}, fidelity {last['fidelity']:.3f}"}
    return {"level": "good", "text": "Running, every answer exact" if running else "Ended in good order, all exact"}


def in_short(content: Mapping[str, Any], found: Sequence[Recovery]) -> list[str]:
    """The sentences. ``content``: the digest as far as it is made."""
    told = [_work(content)]
    if content["promise"]:
        told.append(f"Fidelity of the next answer, {content['promise']}.")
    if not found:
        return [*told, "Nothing was lost."]
    if len(found) > TOLD:
        told.append(f"Nodes were lost {len(found)} times; the last {TOLD}:")
    tasks = (
        sum(each["tasks"] for each in content["topology"]["operators"] if not each["source"])
        if content["topology"]
        else 0
    )
    told += [
        _failure(each, entry["t"], tasks, content)
        for each, entry in list(zip(found, content["recoveries"], strict=True))[-TOLD:]
    ]
    published = content["outputs"][-1] if content["outputs"] else {"tentative": 0}
    if published["tentative"]:
        later = "all of it exact by now" if _over(found) else "exact output follows"
        told.append(f"{_count(published['tentative'], 'tentative output')} went out meanwhile; {later}.")
    return told


def _work(content: Mapping[str, Any]) -> str:
    epochs = content["epochs"]
    if not epochs:
        return "No epoch was answered yet." if content["running"] else "No epoch was answered."
    answered = epochs[-1]["epoch"] + 1
    of = f" of {content['wanted_epochs']:,}" if content["wanted_epochs"] and answered < content["wanted_epochs"] else ""
    where = f" on {_count(content['nodes'], 'node')}" if content["nodes"] else ""
    done = "answered" if all(each["fidelity"] > 0 for each in epochs) else "processed"
    return f"{answered:,}{of} epochs were {done} in {_seconds(content['seconds'])}{where}."


def _failure(each: Recovery, at: float, tasks: int, content: Mapping[str, Any]) -> str:
    epoch = f", in epoch {each.epoch}," if each.epoch is not None else ""
    one = len(each.nodes) == 1
    told = f"At {_seconds(at)}{epoch} {_and(each.nodes)} {'was' if one else 'were'} lost"
    if each.down:
        of = f" of {_count(tasks, 'task')}" if tasks else " tasks"
        told += f", and {len(each.down)}{of} with {'it' if one else 'them'}"
    if each.promoted:
        told += f"; replicas took over {_count(len(each.promoted), 'other' if each.down else 'task')}"
    told += "."
    told += _next_answer(each)
    if each.exact_after is not None:
        told += f" {_seconds(each.exact_after)} after the loss everything was exact and caught up."
    elif content["running"]:
        told += " It is not exact again yet."
    elif each.saved_after is not None:
        told += " The stream ended before an answer was exact again; its last checkpoint is."
    else:
        told += " The run ended before it was exact again."
    return told


def _next_answer(each: Recovery) -> str:
    """An answer with nothing in it is none: then the job was silent, and for how long."""
    if each.answered_after is None or each.answered_fidelity is None:
        return "" if each.silent is None else f" It was silent for {_seconds(each.silent)}: no row came out since."
    fidelity = each.answered_fidelity
    good = "and was exact" if fidelity >= 1 else f"with {fidelity:.0%} of the whole, by its fidelity"
    if each.silent is not None:
        return f" It was silent for {_seconds(each.answered_after)}; then an answer came, {good}."
    return f" The next answer came {_seconds(each.answered_after)} after the loss, {good}."


def _over(found: Sequence[Recovery]) -> bool:
    return all(each.exact_after is not None or each.saved_after is not None for each in found)


def _seconds(value: float) -> str:
    """As the charts count, for as long as that can be read."""
    if value < 1000:
        return f"{value:.1f} s"
    hours, minutes = divmod(round(value / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


def _and(given: Sequence[str]) -> str:
    return f"{given[0]} and {given[1]}" if len(given) == 2 else names(given)


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" + ("" if number == 1 else "s")
