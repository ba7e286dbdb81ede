"""What streaming queries answer, by a plain loop over the batches that Spark planned. No Spark, no Holdfast.

A store tells which rows are in which batch: the offsets in ``spark/offsets``, the files behind them in
``spark/sources``, and ``cursor/idle-*`` for epochs without rows. No watermark is read from any log: it is worked out
from the rows, so one that was set back, or not moved, is found. Times are whole seconds, watermarks milliseconds.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

Row = Mapping[str, Any]
Answer = list[tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Batch:
    """``files``: of each source, those that are in it; none in any: only the watermark has moved."""

    number: int
    files: tuple[tuple[Path, ...], ...]


@dataclass(frozen=True, slots=True)
class Epoch:
    """``rows``: of each source. Rows at or before ``late`` are dropped, what ends at or before ``closes`` is over.

    ``leaves``: the watermark behind it.
    """

    number: int
    rows: tuple[Sequence[Row], ...]
    late: int
    closes: int
    leaves: int


@dataclass(frozen=True, slots=True)
class Marked:
    """The event time of a source, and by how many seconds its watermark stays behind the newest."""

    time: str
    delay: int


def planned(log: Path) -> list[Batch]:
    """The batches in Structured Streaming's own log. All offsets must be retained."""
    named = {int(path.name): path for path in (log / "offsets").iterdir() if path.name.isdecimal()}
    assert sorted(named) == list(range(len(named))), f"offsets of {sorted(named)}"
    files = [_files(folder) for folder in sorted((log / "sources").iterdir(), key=lambda path: int(path.name))]
    ends = [[-1] * len(files)]
    for number in sorted(named):
        ends.append(_ends(named[number], ends[-1]))
    return [
        Batch(number, tuple(_between(*each) for each in zip(files, ends[number], ends[number + 1], strict=True)))
        for number in sorted(named)
    ]


def _ends(path: Path, before: Sequence[int]) -> list[int]:
    """Up to which entry of its own log each source is in this batch."""
    lines = path.read_text().splitlines()[2:]
    assert len(lines) == len(before), path
    found = [json.loads(line) for line in lines]
    return [before[n] if each is None else int(each["logOffset"]) for n, each in enumerate(found)]


def _files(folder: Path) -> list[tuple[int, Path]]:
    """The files that a source has taken, by the number of the entry that has them."""
    entries: set[tuple[int, Path]] = set()
    for path in folder.iterdir():
        if path.name.removesuffix(".compact").isdecimal():
            for line in path.read_text().splitlines()[1:]:
                entry = json.loads(line)
                entries.add((int(entry["batchId"]), Path(unquote(urlparse(entry["path"]).path))))
    return sorted(entries)


def taken(log: Path) -> int:
    """How many files the least read of the sources has come to, as far as it has told."""
    folders = list(log.glob("sources/*"))
    return min((len(_files(folder)) for folder in folders), default=0)


def _between(files: Iterable[tuple[int, Path]], before: int, upto: int) -> tuple[Path, ...]:
    return tuple(path for number, path in files if before < number <= upto)


def idle(store: Path) -> set[tuple[int, int]]:
    """The epochs without rows that a store tells of, each with the batch that it comes behind: (batch, epoch)."""
    documents = sorted((store / "cursor").glob("idle-*.json"))
    return (
        {(batch, epoch) for batch, epoch, _ in json.loads(documents[-1].read_text())["epochs"]} if documents else set()
    )


def with_idle(batches: Iterable[Batch], behind: Sequence[int]) -> list[Batch]:
    """The epochs of a store: its batches, and behind these ones an epoch without rows, numbered anew."""
    files: list[tuple[tuple[Path, ...], ...]] = []
    for batch in batches:
        files += [batch.files, *(tuple(() for _ in batch.files) for _ in range(behind.count(batch.number)))]
    return [Batch(number, each) for number, each in enumerate(files)]


def epochs(batches: Iterable[Batch], marked: Sequence[Marked]) -> list[Epoch]:
    """Their rows, and by which watermarks they go.

    The watermark of a source is its newest time less its delay; the query's is the least of its sources', 0 as long as
    one had no row. It counts from the next batch on, and late rows are judged by the one of the batch before.
    """
    made: list[Epoch] = []
    of_source, late, closes = [0] * len(marked), 0, 0
    for batch in batches:
        rows = tuple([row for path in _as_read(files) for row in _rows(path)] for files in batch.files)
        for number, (each, mark) in enumerate(zip(rows, marked, strict=True)):
            times = [row[mark.time] for row in each]
            if times:
                of_source[number] = max(of_source[number], (max(times) - mark.delay) * 1000)
        leaves = max(closes, min(of_source))
        made.append(Epoch(batch.number, rows, late, closes, leaves))
        late, closes = closes, leaves
    return made


def _as_read(files: Iterable[Path]) -> list[Path]:
    """In the order in which Spark reads small files: the largest first."""
    return sorted(files, key=lambda path: path.stat().st_size, reverse=True)


def _rows(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def ordered(rows: Iterable[tuple[Any, ...]]) -> Answer:
    """Rows in an order that nulls do not break."""
    return sorted(rows, key=str)


Reference = Callable[[Sequence[Epoch]], dict[int, Answer]]


def windows(size: int, update: bool = False) -> Reference:
    """Rows and sum of ``n`` by ``k`` and window of ``at``; ``update``: of those that changed, else of those over."""

    def answers(epochs: Sequence[Epoch]) -> dict[int, Answer]:
        held: dict[tuple[int, str], tuple[int, int]] = {}
        told: dict[int, Answer] = {}
        for epoch in epochs:
            changed = set()
            for row in epoch.rows[0]:
                start = row["at"] // size * size
                if (start + size) * 1000 > epoch.late:
                    rows, total = held.get((start, row["k"]), (0, 0))
                    held[start, row["k"]] = (rows + 1, total + row["n"])
                    changed.add((start, row["k"]))
            over = {key for key in held if (key[0] + size) * 1000 <= epoch.closes}
            told[epoch.number] = ordered((*key, *held[key]) for key in (changed if update else over))
            held = {key: value for key, value in held.items() if key not in over}
        return told

    return answers


def sessions(gap: int) -> Reference:
    """Sessions of ``k``: start, end, key and rows; told when they are over."""

    def answers(epochs: Sequence[Epoch]) -> dict[int, Answer]:
        held: list[tuple[int, int, str, int]] = []
        told: dict[int, Answer] = {}
        for epoch in epochs:
            for row in epoch.rows[0]:
                start, end, rows = row["at"], row["at"] + gap, 1
                if end * 1000 <= epoch.late:
                    continue
                apart = []
                for other in held:
                    if other[2] == row["k"] and start <= other[1] and other[0] <= end:
                        start, end, rows = min(start, other[0]), max(end, other[1]), rows + other[3]
                    else:
                        apart.append(other)
                held = [*apart, (start, end, row["k"], rows)]
            told[epoch.number] = ordered(each for each in held if each[1] * 1000 <= epoch.closes)
            held = [each for each in held if each[1] * 1000 > epoch.closes]
        return told

    return answers


def firsts(*columns: str, within: int | None = None) -> Reference:
    """The first row of each key: ``at`` and ``id``. A key is forgotten ``within`` seconds after the time of its first
    row; None: at that time, which is one of the columns.
    """

    def answers(epochs: Sequence[Epoch]) -> dict[int, Answer]:
        held: dict[tuple[Any, ...], int] = {}
        told: dict[int, Answer] = {}
        for epoch in epochs:
            first: Answer = []
            for row in epoch.rows[0]:
                key = tuple(row[name] for name in columns)
                if row["at"] * 1000 > epoch.late and key not in held:
                    held[key] = (row["at"] + (within or 0)) * 1000
                    first.append((row["at"], row["id"]))
            told[epoch.number] = ordered(first)
            held = {key: forgotten for key, forgotten in held.items() if forgotten > epoch.closes}
        return told

    return answers


def pairs(within: int) -> Reference:
    """Views (``seen``) and the clicks (``clicked``) on the same ``ad`` up to so many seconds later.

    A view that had none comes alone once none can follow.
    """

    def answers(epochs: Sequence[Epoch]) -> dict[int, Answer]:
        views: list[tuple[Row, list[Row]]] = []
        clicks: list[Row] = []
        told: dict[int, Answer] = {}
        for epoch in epochs:
            found: Answer = []
            old = len(views)
            views += [(row, []) for row in epoch.rows[0] if row["seen"] * 1000 > epoch.late]
            new = [row for row in epoch.rows[1] if row["clicked"] * 1000 > epoch.late]
            for number, (view, matched) in enumerate(views):
                for click in (*clicks, *new) if number >= old else new:
                    if click["ad"] == view["ad"] and view["seen"] <= click["clicked"] <= view["seen"] + within:
                        matched.append(click)
                        found.append((view["seen"], view["ad"], click["clicked"]))
            clicks += new
            over = [(view["seen"] + within) * 1000 < epoch.closes for view, _ in views]
            for (view, matched), ended in zip(views, over, strict=True):
                if ended and not matched:
                    found.append((view["seen"], view["ad"], None))
            views = [each for each, ended in zip(views, over, strict=True) if not ended]
            told[epoch.number] = ordered(found)
        return told

    return answers
