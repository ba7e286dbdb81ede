"""What a pipeline of ten operators answers, by a plain loop over the batches that Spark planned (``planned.py``).

In ``restart_job.py`` the pipeline itself: steps of the same names, whose rules are those of docs/operators.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from planned import Answer, Epoch, Row, ordered, sessions, windows


def answers(epochs: Sequence[Epoch], size: int, gap: int, within: int) -> dict[str, dict[int, Answer]]:
    """Of each query of the pipeline; sizes in seconds."""
    events = _each(epochs, lambda row: [row] if row["n"] < 8 else [])
    tags = _each(events, lambda row: [{"k": tag, "at": row["at"], "n": row["n"]} for tag in row["tags"]])
    hot = _each(events, lambda row: [row] if row["n"] >= 6 else [])
    once = _spaced(events, within)
    return {
        "totals": _totals(windows(size)(once)),
        "best": _best(_sliding(tags, size)),
        "sessions": sessions(gap)(events),
        "pairs": _pairs(hot, once, size),
    }


def _each(epochs: Sequence[Epoch], made: Callable[[Row], Sequence[Row]]) -> list[Epoch]:
    return [replace(epoch, rows=([new for row in epoch.rows[0] for new in made(row)],)) for epoch in epochs]


def _spaced(epochs: Sequence[Epoch], within: int) -> list[Epoch]:
    """Of each ``id`` the first row, and then the next that is at least so much later."""
    last: dict[int, int] = {}
    made = []
    for epoch in epochs:
        kept = []
        for row in epoch.rows[0]:
            late = (row["at"] + within) * 1000 <= epoch.late
            if not late and (row["id"] not in last or row["at"] >= last[row["id"]] + within):
                last[row["id"]] = row["at"]
                kept.append(row)
        made.append(replace(epoch, rows=(kept,)))
    return made


def _sliding(epochs: Sequence[Epoch], step: int) -> dict[int, Answer]:
    """Rows by ``k`` and window, two steps long, one beginning at each step: (end, k, rows) once it is over."""
    held: Counter[tuple[int, str]] = Counter()
    told = {}
    for epoch in epochs:
        for row in epoch.rows[0]:
            first = row["at"] // step * step + step
            held.update((end, row["k"]) for end in (first, first + step) if end * 1000 > epoch.late)
        over = [key for key in held if key[0] * 1000 <= epoch.closes]
        told[epoch.number] = [(*key, held.pop(key)) for key in over]
    return told


def _best(windows: dict[int, Answer]) -> dict[int, Answer]:
    """The two keys with most rows of each window: (end, rank, k, rows); of equal ones the lesser key."""
    told = {}
    for number, rows in windows.items():
        ends = {end for end, _, _ in rows}
        ranked = {end: sorted((-count, k) for at, k, count in rows if at == end)[:2] for end in ends}
        told[number] = ordered((end, rank, k, -n) for end in ends for rank, (n, k) in enumerate(ranked[end], 1))
    return told


def _totals(windows: dict[int, Answer]) -> dict[int, Answer]:
    """Of the keys whose windows ended, (k, windows, rows, sum) of all of them so far."""
    held: dict[str, tuple[int, int, int]] = {}
    told = {}
    for number, rows in windows.items():
        for _, k, count, total in rows:
            before = held.get(k, (0, 0, 0))
            held[k] = (before[0] + 1, before[1] + count, before[2] + total)
        told[number] = ordered((k, *held[k]) for k in {row[1] for row in rows})
    return told


def _pairs(left: Sequence[Epoch], right: Sequence[Epoch], size: int) -> dict[int, Answer]:
    """(start, k, n, id) of rows of one ``k`` and window, n from the left and id from the right, once it is over."""
    held: list[list[tuple[int, str, int]]] = [[], []]
    told = {}
    for one, other in zip(left, right, strict=True):
        for rows, epoch, value in ((held[0], one, "n"), (held[1], other, "id")):
            for row in epoch.rows[0]:
                start = row["at"] // size * size
                if (start + size) * 1000 > epoch.late:
                    rows.append((start, row["k"], row[value]))
        over = [[row for row in rows if (row[0] + size) * 1000 <= one.closes] for rows in held]
        held = [[row for row in rows if (row[0] + size) * 1000 > one.closes] for rows in held]
        told[one.number] = ordered((*a, b[2]) for a in over[0] for b in over[1] if a[:2] == b[:2])
    return told
