"""Reading a running Spark Structured Streaming query: its progress gives the rate and the state, so also the scenario.

Knows the shape of progress JSON and nothing of pyspark: a query is anything with ``recentProgress`` or
``lastProgress``, an entry is a mapping, a JSON text, or an object with a ``json`` attribute.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from holdfast.errors import Invalid
from holdfast.resilience.advisor import Advice, advise_scenario
from holdfast.resilience.quantities import duration, say_duration, say_size, size
from holdfast.resilience.scenario import Limits, Prices, Scenario

ROW_BYTES = 100.0
"""Assumed where nobody says how long an input row is: progress counts rows, not bytes."""
SLA = 0.999
MTBF = "30d"

Entry = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Observed:
    """What the progress of a query tells. ``checkpoint_s`` is the state over the input rate, infinite without state."""

    rows_per_s: float
    bytes_per_s: float
    state_bytes: float
    checkpoint_s: float
    derived: dict[str, str]
    assumed: dict[str, str]


def advise(
    query: Any,
    *,
    sla: float | None = None,
    mtbf: str | float | None = None,
    window: str | float | None = None,
    row_bytes: str | float | None = None,
    prices: Prices | None = None,
    limits: Limits | None = None,
) -> Advice:
    """Which resiliency strategy suits a query: a live ``StreamingQuery``, its progress, or a `Scenario`.

    Durations and sizes may be written ``"10m"`` and ``"200B"``; numbers are seconds and bytes. What had to be assumed
    is listed in the answer. Without ``window``, replay is ruled out: progress does not tell how far back state reaches.
    """
    if isinstance(query, Scenario):
        return advise_scenario(query, prices, limits)
    observed = observe(entries_of(query), None if row_bytes is None else _quantity(row_bytes, size, "row_bytes"))
    assumed = dict(observed.assumed)
    if sla is None:
        sla = SLA
        assumed["sla"] = f"{SLA:g} of the time unaffected by failures"
    if mtbf is None:
        mtbf = MTBF
        assumed["mtbf"] = f"one failure of a node every {MTBF}"
    scenario = Scenario(
        sla=sla,
        mtbf=_quantity(mtbf, duration, "mtbf"),
        window=math.inf if window is None else _quantity(window, duration, "window"),
        checkpoint=observed.checkpoint_s,
    )
    return replace(advise_scenario(scenario, prices, limits), derived=observed.derived, assumed=assumed)


def entries_of(query: Any) -> list[Entry]:
    """The progress entries of a query, of a list of entries, or of a single one; oldest first."""
    if isinstance(query, (str, bytes, Mapping)) or hasattr(query, "numInputRows"):
        return [_entry(query)]
    if isinstance(query, Sequence):
        return [_entry(one) for one in query]
    recent = getattr(query, "recentProgress", None)
    last = getattr(query, "lastProgress", None)
    if recent is None and last is None:
        raise Invalid(f"expected a StreamingQuery, its progress or a Scenario, got {type(query).__name__}")
    entries = [_entry(one) for one in recent or ([last] if last else [])]
    if not entries:
        raise Invalid("the query has made no progress yet; ask again after its first batch")
    return entries


def read_progress(path: Path) -> list[Entry]:
    """Entries in a file: one object, a list, JSON lines, or a log with progress objects between other text."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise Invalid(f"--progress {path}: {error.strerror or error}") from None
    entries = list(_found_in(text))
    if not entries:
        raise Invalid(f"--progress {path}: expected progress JSON of a streaming query (numInputRows ...), found none")
    return entries


def observe(entries: Sequence[Entry], row_bytes: float | None = None) -> Observed:
    """Rate, state size and checkpoint time, with where each came from. Batches without input count as idle time."""
    _one_query(entries)
    if row_bytes is not None and not 0 < row_bytes < math.inf:
        raise Invalid(f"row_bytes must be more than 0 and finite, got {row_bytes:g}")
    derived, assumed = {}, {}
    rows, how = _rate(entries)
    if not rows > 0:
        raise Invalid(f"progress shows no input: {len(entries)} entries, numInputRows 0; ask while data arrives")
    derived["rate"] = f"{rows:.6g} rows/s, {how}"
    if row_bytes is None:
        row_bytes = ROW_BYTES
        assumed["row size"] = f"{ROW_BYTES:g} bytes an input row (progress counts rows only); row-bytes says better"
    state, source = _state(entries[-1])
    if state > 0:
        seconds = state / (rows * row_bytes)
        derived["state"] = f"{say_size(state)}, {source}"
        derived["checkpoint"] = f"{say_duration(seconds)}: the time to move the state at the input rate"
    else:
        seconds = math.inf
        derived["state"] = "none: the last entry has no state operator with memory in use"
    if commit := _mean(sum(_number(one, "commitTimeMs") for one in _operators(entry)) for entry in entries):
        derived["commit"] = f"{say_duration(commit / 1e3)} a batch goes into committing state today"
    if busy := _mean(_number(entry, "processedRowsPerSecond") for entry in entries):
        derived["headroom"] = (
            f"batches run at {busy / rows:.3g} times the input rate; a larger recovery factor needs more machine"
        )
    return Observed(rows, rows * row_bytes, state, seconds, derived, assumed)


def _entry(one: Any) -> Entry:
    if isinstance(one, Mapping):
        return one
    text = one if isinstance(one, (str, bytes)) else getattr(one, "json", None)
    if callable(text):
        text = text()
    try:
        entry = json.loads(text) if isinstance(text, (str, bytes)) else None
    except ValueError:
        entry = None
    if not isinstance(entry, dict):
        raise Invalid(f"expected progress as a mapping or JSON text, got {type(one).__name__}")
    return entry


def _found_in(text: str) -> Iterable[Entry]:
    """Every progress object in the text, also inside a list or under ``progress`` as a listener's event has it."""
    decoder, at = json.JSONDecoder(), 0
    while (at := text.find("{", at)) >= 0:
        try:
            value, end = decoder.raw_decode(text, at)
        except ValueError:
            at += 1
            continue
        if isinstance(inner := value.get("progress"), dict):
            value = inner
        if "numInputRows" in value:
            yield value
        at = end


def _one_query(entries: Sequence[Entry]) -> None:
    names = {str(entry["id"]): str(entry.get("name") or entry["id"]) for entry in entries if entry.get("id")}
    if len(names) > 1:
        raise Invalid(f"progress of {len(names)} queries ({', '.join(sorted(names.values()))}); give that of one")


def _rate(entries: Sequence[Entry]) -> tuple[float, str]:
    """Rows a second: what arrived between the first and the last trigger, or what the last entry says."""
    times = [_time(entry) for entry in entries]
    first, last = times[0], times[-1]
    if first is not None and last is not None and (span := last - first) > 0:
        rows = sum(_number(entry, "numInputRows") for entry in entries[1:])
        return rows / span, f"from numInputRows of {len(entries)} entries over {say_duration(span)}"
    said = _number(entries[-1], "inputRowsPerSecond")
    if said > 0:
        return said, "from inputRowsPerSecond of the last entry"
    busy = entries[-1].get("durationMs")
    spent = _number(busy, "triggerExecution") / 1e3 if isinstance(busy, Mapping) else 0.0
    if spent > 0:
        return _number(entries[-1], "numInputRows") / spent, "from numInputRows over the time of the batch"
    raise Invalid("progress gives no rate: it needs two entries with timestamps, inputRowsPerSecond or durationMs")


def _state(entry: Entry) -> tuple[float, str]:
    """Bytes of state: of the current version where the provider tells, otherwise of memory in use."""
    total, sources = 0.0, []
    for operator in _operators(entry):
        custom = operator.get("customMetrics")
        custom = custom if isinstance(custom, Mapping) else {}
        for name in ("stateOnCurrentVersionSizeBytes", "rocksdbSstFileSize"):
            if _number(custom, name) > 0:
                total += _number(custom, name)
                sources.append(name)
                break
        else:
            total += _number(operator, "memoryUsedBytes")
            sources.append("memoryUsedBytes")
    return total, f"from {' and '.join(dict.fromkeys(sources))} of {len(sources)} state operators in the last entry"


def _operators(entry: Entry) -> list[Entry]:
    found = entry.get("stateOperators")
    return [one for one in found if isinstance(one, Mapping)] if isinstance(found, Sequence) else []


def _number(entry: Any, name: str) -> float:
    value = entry.get(name)
    good = isinstance(value, (int, float)) and math.isfinite(value) and value >= 0
    return float(value) if good else 0.0


def _mean(values: Iterable[float]) -> float:
    some = [value for value in values if value > 0]
    return sum(some) / len(some) if some else 0.0


def _time(entry: Entry) -> float | None:
    try:
        return datetime.fromisoformat(str(entry["timestamp"])).timestamp()
    except (KeyError, ValueError):
        return None


def _quantity(value: str | float, read: Callable[[str, str], float], name: str) -> float:
    return read(value, name) if isinstance(value, str) else value
