"""What runs of the matrix are worth: how right an answer is, a line a run, a table of medians and worst cases."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lateness import ANSWER, EXACT

Told = Mapping[str, Any]


def accuracy(tentative: pa.Table, exact: pa.Table, keys: Sequence[str]) -> float:
    """How right an answer is: over all rows of either, 1 less the relative error of its numbers; 0 for one not there.

    Without numbers beside the keys a row is there or it is not.
    """
    names = [name for name in exact.column_names if name not in ("epoch", "task", "fidelity")]
    by = list(keys)
    numbers = [name for name in names if name not in by and pa.types.is_primitive(exact.schema.field(name).type)]
    told, true = (_by_key(table, by, numbers) for table in (tentative, exact))
    total = score = 0.0
    for key in told.keys() | true.keys():
        ours, theirs = told.get(key, []), true.get(key, [])
        total += max(len(ours), len(theirs))
        score += sum(_close(a, b) for a, b in zip(ours, theirs, strict=False))
    return score / total if total else 1.0


def _by_key(table: pa.Table, by: Sequence[str], numbers: Sequence[str]) -> dict[Any, list[tuple[float, ...]]]:
    found: dict[Any, list[tuple[float, ...]]] = {}
    for row in table.to_pylist():
        values = tuple(float(row[name]) if isinstance(row[name], int | float) else math.nan for name in numbers)
        found.setdefault(tuple(row[name] for name in by), []).append(values)
    return found


def _close(one: tuple[float, ...], two: tuple[float, ...]) -> float:
    errors = [
        abs(a - b) / max(abs(a), abs(b)) if max(abs(a), abs(b)) > 0 else 0.0
        for a, b in zip(one, two, strict=True)
        if not (math.isnan(a) or math.isnan(b))
    ]
    return 1.0 - min(1.0, statistics.mean(errors)) if errors else 1.0


def same(final: pa.Table, exact: pa.Table, known: int) -> bool:
    """Whether the rows of every epoch are those of an undisturbed run, in whatever order tasks gave them.

    Sums of floats may differ in their last digits: by the parts in which a batch came.
    """
    until = min(known - 1, pc.max(final["epoch"]).as_py() if final.num_rows else -1)
    ours, theirs = (_ordered(each.select(exact.column_names), until) for each in (final, exact))
    if ours.num_rows != theirs.num_rows:
        return False
    return all(_alike(ours[name], theirs[name]) for name in exact.column_names)


def _ordered(rows: pa.Table, until: int) -> pa.Table:
    """By all columns, those with fractions last."""
    names = sorted(rows.column_names, key=lambda name: pa.types.is_floating(rows.schema.field(name).type))
    mine = rows.filter(pc.less_equal(rows["epoch"], until))
    return mine.sort_by([(name, "ascending") for name in names])


def _alike(one: pa.ChunkedArray, two: pa.ChunkedArray) -> bool:
    if pa.types.is_floating(two.type):
        found, known = (each.cast(pa.float64()).fill_null(math.nan).to_numpy() for each in (one, two))
        return bool(np.allclose(found, known, 1e-9, 1e-9, equal_nan=True))
    return bool(one.cast(two.type).combine_chunks().equals(two.combine_chunks()))


def line(one: Told) -> str:
    first, second = one["pair"]
    return (
        f"{one['workload']:<18}{one['replicas']:>5} seed {one['seed']} nodes {first},{second}: next answer "
        f"{_seconds(one['answer'])}, {_seconds(one['late'])} late, fidelity {_share(one['fidelity'])} "
        f"(promised {_share(one['promised'])}), accuracy {_share(one['accuracy'])}, exact {_seconds(one['exact'])} "
        f"by epoch +{one['exact_by']}, checkpoint {one['age']} old{_marks(one)}"
    )


def _marks(one: Told) -> str:
    marks = []
    if not one["least"]:
        marks.append("SILENT: an epoch with a fidelity of 0")
    if one["answer"] is None:
        marks.append("NO ANSWER")
    if not one["same"]:
        marks.append("FINAL ROWS DIFFER from the undisturbed run")
    return "".join(f"; {mark}" for mark in marks)


def table(found: Iterable[Told]) -> str:
    """One row for each workload and trigger, with and without replicas: the median, then the worst."""
    heads = ("workload", "replicas", "trigger", "runs", "next answer", "late", "latest of three", "its fidelity",
             "its accuracy", "exact", "by epoch", "off promise", "marks")  # fmt: skip
    lines = ["", f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for (name, replicas, trigger), ours in _by_row(found).items():
        off = [abs(one["promised"] - one["fidelity"]) for one in ours if None not in (one["promised"], one["fidelity"])]
        silent, wrong = sum(not one["least"] for one in ours), sum(not one["same"] for one in ours)
        marks = ", ".join(
            f"{count} {what}"
            for count, what in ((silent, "with a fidelity of 0"), (wrong, "not as undisturbed"))
            if count
        )
        cells = [
            _both([one["answer"] for one in ours], _seconds, max),
            _both([one["late"] for one in ours], _seconds, max),
            _both([one["worst"] for one in ours], _seconds, max),
            _both([one["fidelity"] for one in ours], _share, min),
            _both([one["accuracy"] for one in ours], _share, min),
            _both([one["exact"] for one in ours], _seconds, max),
            _both([one["exact_by"] for one in ours], lambda value: f"+{value:g}", max),
            _both([*off, *[None] * (len(ours) - len(off))], _share, max),
            marks or "none",
        ]
        lines.append(f"| {name} | {replicas} | {trigger} | {len(ours)} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def parts_table(found: Iterable[Told]) -> str:
    """Where the time went, in seconds: the median of each part over the runs that have it."""
    names = (*ANSWER, *EXACT)
    lines = ["", f"| workload | replicas | trigger | {' | '.join(names)} |", "|---" * (len(names) + 3) + "|"]
    for row, ours in _by_row(found).items():
        known = [[one["parts"][name] for one in ours if one["parts"] and name in one["parts"]] for name in names]
        cells = [*row, *(f"{statistics.median(each):.2f}" if each else "none" for each in known)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _by_row(found: Iterable[Told]) -> dict[tuple[str, str, str], list[Told]]:
    of: dict[tuple[str, str, str], list[Told]] = {}
    for one in found:
        trigger = "none" if one["interval"] is None else f"{one['interval']:g} s"
        of.setdefault((one["workload"], one["replicas"], trigger), []).append(one)
    return of


def _seconds(value: float | None) -> str:
    return "none" if value is None else f"{value:.2f} s"


def _share(value: float | None) -> str:
    return "none" if value is None else f"{value:.3f}"


def _both(values: Sequence[float | None], form: Callable[[float], str], worst: Callable[[list[float]], float]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "none"
    missing = f" ({len(values) - len(known)} none)" if len(known) < len(values) else ""
    return f"{form(statistics.median(known))}, {form(worst(known))}{missing}"
