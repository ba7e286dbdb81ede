"""At which task of an operator the rows of a key are, as far as two signatures tell: whether they still are there.

A task's state is of the rows that came to it. Behind a full stream the key decides who gets a row; behind others it
lies where the operator upstream had it, so what leads rows to that one counts as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from holdfast.operators import Pipeline
from holdfast.runtime.shape import stream_key
from holdfast.state import Routing


def moved(before: Mapping[str, Any], now: Mapping[str, Any], name: str) -> str | None:
    """What leads rows to other tasks of an operator than before, though they are as many; None if nothing does.

    Of an only task, too, the key must stay: it is what its state would be cut by.
    """
    old, new = before[name]["inputs"], now[name]["inputs"]
    for source, given in new.items():
        stream, was = f"stream {source} -> {name}", old.get(source)
        if was is not None and was["key"] != given["key"]:
            return _other_key(stream, was["key"], given["key"])
        if now[name]["parallelism"] == 1:
            continue
        if was is None:
            if not any(each["partitioning"] == "full" and not cut_otherwise(each, given) for each in old.values()):
                by = f", keyed by {_names(given['key'])}" if given["key"] else ""
                return f"{stream} is new and {given['partitioning']}{by}, unlike those that were there"
        elif was["partitioning"] != given["partitioning"]:
            return f"{stream} was {was['partitioning']}, is {given['partitioning']} now"
        elif cut_otherwise(was, given):
            return f"{stream} had weights {_numbers(was)}, has {_numbers(given)} now"
        elif given["partitioning"] != "full" and (why := _moved_upstream(before, now, source)):
            return why
    return None


def cut_otherwise(was: Mapping[str, Any], given: Mapping[str, Any]) -> str | None:
    """What makes a stream between equally many tasks share out rows otherwise: its key, partitioning or weights."""
    for part in ("key", "partitioning"):
        if was[part] != given[part]:
            return part
    if given["partitioning"] != "full":
        return None
    routings = [Routing.weighted(tuple(each["weights"])) for each in (was, given)]
    return "weights" if routings[0] != routings[1] else None


def _moved_upstream(before: Mapping[str, Any], now: Mapping[str, Any], name: str) -> str | None:
    counts = [each[name]["parallelism"] for each in (before, now)]
    if counts[0] != counts[1]:
        return f"its rows lie as those of {name} do, which had parallelism {counts[0]}, has {counts[1]} now"
    if counts[0] > 1 and (why := moved(before, now, name)):
        return why if why.startswith("its rows") else f"its rows lie as those of {name} do, and {why}"
    return None


def uncut(old: Mapping[str, Any], pipeline: Pipeline, name: str) -> str | None:
    """Why the state of an operator cannot be cut for another number of tasks; None if it can."""
    step, stays = pipeline.by_name[name], "so its parallelism must stay"
    for given in step.inputs:
        was = old["inputs"].get(given.source)
        if was is not None and was["key"] != list(given.key):
            return _other_key(f"stream {given.source} -> {name}", was["key"], given.key)
    apart = [source for source, given in old["inputs"].items() if given["partitioning"] != "full"]
    if old["parallelism"] > 1 and name in pipeline.timed and apart:
        return f"behind stream {apart[0]} -> {name} its tasks have watermarks of their own, {stays}"
    if step.parallelism == 1:
        return None
    streams = pipeline.topology.inputs_of(name)
    for stream in streams:
        if stream.partitioning != "full":
            return f"stream {stream} is {stream.partitioning}: tasks belong together in pairs, {stays}"
    if len({Routing.weighted(stream.weights) for stream in streams}) > 1:
        return f"its input streams share out keys with different weights, {stays}"
    for table, schema in step.operator.tables.items():
        if stream_key(pipeline, name, schema.key.names) is None:
            key = _names(schema.key.names)
            return f"the key of its table {table!r} ({key}) does not hold that of an input stream, {stays}"
    return None


def _other_key(stream: str, was: Iterable[str], key: Iterable[str]) -> str:
    return f"{stream} was keyed by {_names(was)}, is keyed by {_names(key)} now"


def _numbers(given: Mapping[str, Any]) -> str:
    return ", ".join(f"{weight:g}" for weight in given["weights"])


def _names(names: Iterable[str]) -> str:
    return ", ".join(names) or "nothing"
