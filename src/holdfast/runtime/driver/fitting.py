"""Whether the state in a store fits the pipeline that is to go on with it. Pure: two signatures in, a verdict out.

State is what an operator made of rows: who makes something else, or gets rows of other keys, cannot go on with it, and
is refused by name. What only changes which rows come from now on is taken and told (docs/design.md has the reasons).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from holdfast.errors import Invalid
from holdfast.operators import Pipeline
from holdfast.operators.description import change, remembers
from holdfast.runtime.driver.placing import cut_otherwise, moved, uncut
from holdfast.state import StateSchema

Signature: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Fit:
    """What has to be done before a pipeline goes on with a store, by operator, and what the history should say.

    ``anew``: it has state there and begins empty. ``resized``: it has another number of tasks than declared before.
    ``added``: it has state and none there yet. ``removed``: its state is let go.
    """

    anew: tuple[str, ...] = ()
    resized: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def migrates(self) -> bool:
        """Whether a checkpoint must be rewritten; one that need not be can serve as it is."""
        return bool(self.anew or self.resized or self.added or self.removed)


def fit(url: str, before: Signature, pipeline: Pipeline, allow_changed: Collection[str] = ()) -> Fit:
    """How a store that a pipeline of signature ``before`` wrote fits this one; Invalid names the operators that do not.

    Operators in ``allow_changed`` begin anew, or their state is let go; one that did not change is not touched, so the
    list may stay in the code.
    """
    now = pipeline.signature
    if unknown := [name for name in allow_changed if name not in now and name not in before]:
        known = ", ".join(dict.fromkeys([*now, *before]))
        raise Invalid(f"allow_changed: {unknown[0]!r} is no operator of the pipeline or of the store; known: {known}")
    changed, removed = _refusals(before, pipeline)
    refused = {name: why for name, why in {**changed, **removed}.items() if why and name not in allow_changed}
    if refused:
        raise Invalid(_refusal(url, refused, now))
    added = tuple(name for name in now if _stateful(now[name]) and not _kept(before, now, name))
    notes = _notes(url, before, now, changed)
    return Fit(tuple(changed), tuple(_resized(before, now)), added, tuple(removed), tuple(notes))


def journalled_otherwise(before: Signature, pipeline: Pipeline) -> str | None:
    """What makes epochs that ``before`` journalled useless to this pipeline; None if it can replay them.

    The journal holds what sources sent: rows cut for the tasks of those who read them, and prepared by those.
    """
    return next(iter(_journalled_otherwise(before, pipeline.signature)), None)


def _stateful(step: Mapping[str, Any]) -> bool:
    return bool(step["tables"] or step.get("timed"))


def _kept(before: Signature, now: Signature, name: str) -> bool:
    """Whether the store has state of this operator; where it does not say who keeps a watermark, who does now did."""
    old = before.get(name)
    return old is not None and bool(old["tables"] or old.get("timed", now.get(name, {}).get("timed")))


def _refusals(before: Signature, pipeline: Pipeline) -> tuple[dict[str, str], dict[str, str]]:
    """Operators whose state cannot follow, and those whose state nobody keeps any more, each with the reason.

    No reason ("") if there are no tables: a watermark alone is nobody's count and comes again with the next rows.
    """
    now = pipeline.signature
    changed: dict[str, str] = {}
    removed: dict[str, str] = {}
    for name, old in before.items():
        if not _kept(before, now, name):
            continue
        if name not in now or not _stateful(now[name]):
            gone = "the pipeline has no such operator any more" if name not in now else "it keeps none now"
            removed[name] = f" has state there, but {gone}" if old["tables"] else ""
        elif why := _why_not(before, pipeline, name):
            changed[name] = why if old["tables"] else ""
    return changed, removed


def _why_not(before: Signature, pipeline: Pipeline, name: str) -> str | None:
    """Why the state of an operator cannot follow, as it would go on after the operator's name."""
    now = pipeline.signature
    old, new = before[name], now[name]
    if old["tables"] and _does_otherwise(old, new):
        return f" {change(old['does'], new['does'])}"
    for table, schema in old["tables"].items():
        if table not in new["tables"]:
            return f" has no state table {table!r} any more"
        differences = StateSchema.from_json(schema).differences(StateSchema.from_json(new["tables"][table]))
        if differences:
            return f", table {table!r}: {'; '.join(differences)}"
    if old.get("timed") and not new["timed"]:
        return " kept a watermark, and nothing that it reads has event time now"
    why = _other_time(before, now, name) if new["timed"] and old.get("timed", True) else None
    if why is None:
        same = old["parallelism"] == new["parallelism"]
        why = moved(before, now, name) if same else uncut(old, pipeline, name)
    return f": {why}" if why else None


def _other_time(before: Signature, now: Signature, name: str) -> str | None:
    """What makes the watermark that an operator keeps one of another time."""
    for source in sorted(_upstream(now, name) & _upstream(before, name)):
        if now[source]["inputs"]:
            continue
        was, time = (each[source].get("does", {}).get("event_time") for each in (before, now))
        if was is not None and was != time:
            return f"the event time of {source} was column {was}, is {f'column {time}' if time else 'none'} now"
    if fresh := [source for source in now[name]["inputs"] if source not in before[name]["inputs"]]:
        return f"it reads {fresh[0]} now and did not before, so its watermark knows nothing of it"
    return None


def _refusal(url: str, refused: Mapping[str, str], now: Signature) -> str:
    said = "; ".join(f"operator {name}{why}" for name, why in refused.items())
    allow = f"allow_changed={json.dumps(list(refused))}"
    if all(name not in now for name in refused):
        return f"store {url}: {said}. Put back what is gone, take another store, or let the state go with {allow}"
    if len(refused) == 1:
        follow, begin = "its state cannot follow. Give it another name", "begin it anew"
    else:
        follow, begin = "their state cannot follow. Give them other names", "begin them anew"
    return f"store {url}: {said}; {follow}, another store, or {begin} with {allow}"


def _notes(url: str, before: Signature, now: Signature, anew: Collection[str]) -> Iterable[str]:
    """What changed without harm to any state, a line each."""
    if any("does" not in old for old in before.values()):
        yield (
            f"store {url} was written by an earlier version, which did not put down what its operators do; "
            "they are taken as unchanged"
        )

    def stays(name: str) -> bool:
        return _kept(before, now, name) and _stateful(now[name])

    for name, new in now.items():
        old = before.get(name)
        if name in anew:
            if staying := [each for each in _behind(now, name) if each not in anew and stays(each)]:
                yield f"operator {name} begins anew; what {_listed(staying)} made of it before stays"
        elif old is not None:
            if old.get("does", new["does"]) != new["does"]:
                staying = [each for each in [name, *_behind(now, name)] if each not in anew and stays(each)]
                whose = f"; the state of {_listed(staying)} stays" if staying else ""
                yield f"operator {name} {change(old['does'], new['does'])}{whose}"
            if old["inputs"].keys() != new["inputs"].keys():
                yield f"operator {name} read {_listed(old['inputs'])}, reads {_listed(new['inputs'])} now"


def _journalled_otherwise(before: Signature, now: Signature) -> Iterable[str]:
    """What of the rows that sources sent, or of those made of them when they are replayed, is another now."""
    if resized := _resized(before, now):
        yield f"the parallelism of {', '.join(resized)}"
    was, streams = (dict(_streams(each)) for each in (before, now))
    for source, name in {**was, **streams}:
        stream = f"stream {source} -> {name}"
        ends = [(source, name) in was, (source, name) in streams]
        read = [there and not each[source]["inputs"] for there, each in zip(ends, (before, now), strict=True)]
        if read[0] != read[1]:
            yield f"who reads source {source} ({stream})"
        elif all(ends):
            if now[name]["parallelism"] > 1 and (part := cut_otherwise(was[source, name], streams[source, name])):
                yield f"the {part} of {stream}"
            prepares = before[name].get("prepares") or now[name]["prepares"]
            if read[1] and prepares and _does_otherwise(before[name], now[name]):
                yield f"what {name} makes of rows before they are sent ({stream})"
    for source in before.keys() & now.keys():
        if (more := _looked_at(before[source], now[source])) is not None:
            yield f"what is read of source {source} ({more})"


def _looked_at(old: Mapping[str, Any], new: Mapping[str, Any]) -> str | None:
    """What is looked at in a source's rows now, and was not read of them before."""
    if (kept := old.get("columns")) is None:
        return None
    # A source that has an operator now sends what that makes, of columns that may not have been read.
    if (wanted := new.get("columns")) is None:
        return f"all columns, not {_listed(kept)} alone"
    more = sorted(set(wanted) - set(kept))
    return f"{_listed(more)} too" if more else None


def _resized(before: Signature, now: Signature) -> list[str]:
    return [name for name in now if name in before and before[name]["parallelism"] != now[name]["parallelism"]]


def _does_otherwise(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    return "does" in old and remembers(old["does"]) != remembers(new["does"])


def _streams(signature: Signature) -> Iterable[tuple[tuple[str, str], Mapping[str, Any]]]:
    for name, step in signature.items():
        for source, given in step["inputs"].items():
            yield (source, name), given


def _upstream(signature: Signature, name: str) -> set[str]:
    found: set[str] = set()
    wanted = [name]
    while wanted:
        for source in signature[wanted.pop()]["inputs"]:
            if source not in found:
                found.add(source)
                wanted.append(source)
    return found


def _behind(signature: Signature, name: str) -> list[str]:
    return [each for each in signature if name in _upstream(signature, each)]


def _listed(names: Iterable[str]) -> str:
    *most, last = list(names) or ["nothing"]
    return f"{', '.join(most)} and {last}" if most else last
