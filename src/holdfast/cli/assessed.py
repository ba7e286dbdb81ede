"""How an assessment is shown: the operator table, what must be said of it, and its charts."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table

from holdfast.assessment.results import Assessment, OperatorResult
from holdfast.report.chart import Chart, Series

PAGE = "assessment.html"
COLUMNS = ("operator", "rows lost", "corr.", "dev.", "ANOVA", "recovery", "impact")
KILL_COLUMNS = ("operator", "late", "recovery", "impact", "exact", "final")
_LEFT = ("operator", "ANOVA")


def charts(result: Assessment) -> list[Chart]:
    """For each operator its quality score over time, at its worst offset, and against the outage."""
    drawn = []
    for each in result.operators:
        sections = list(range(1, len(each.over_time) + 1))
        lost = f"{_fault(result)} at {_place(result.offsets[each.over_time_offset])}"
        title = f"{each.operator}: quality over time, {lost} (impact {each.impact:.2f}, recovery {each.recovery})"
        marks = [(float(each.recovery), "recovered")] if each.recovery else []
        lines = [
            Series("faulty / golden", sections, list(each.over_time)),
            Series("golden", sections, [1.0] * len(sections), dashed=True),
        ]
        drawn.append(
            Chart(title, f"section after the injection ({_place(result.section)} wide)", "quality score", lines, marks)
        )
        if result.deadline is not None:
            continue
        against = [
            Series(f"offset {_place(offset)}", list(result.outages), list(scores))
            for offset, scores in zip(result.offsets, each.quality, strict=True)
        ]
        verdict = "accepted" if each.accepted else "rejected"
        found = f"correlation {each.correlation:.2f}, deviation {each.deviation:.2f}, {verdict}"
        title = f"{each.operator}: quality against outage ({found})"
        drawn.append(Chart(title, "outage (s)", "quality score of what is affected", against, log_x=True))
    return drawn


def read(console: Console, result: Assessment, earlier: Assessment | None, seconds: float, out: Path | None) -> None:
    """The table for people, and what must be said of it."""
    table = Table(title=f"{result.subject}: {result.score} under {result.fault}", title_justify="left")
    for name in COLUMNS if result.deadline is None else KILL_COLUMNS:
        table.add_column(name, justify="left" if name in _LEFT else "right", no_wrap=True)
    if earlier is not None:
        table.add_column("before", justify="right", no_wrap=True)
        table.add_column("before", justify="right", no_wrap=True)
    for each in result.operators:
        cells = _row(each, result) if result.deadline is None else _killed_row(each)
        table.add_row(*cells, *_before(each, earlier))
    console.print(table)
    for each in result.operators:
        if result.deadline is not None:
            console.print(_went(each), highlight=False, soft_wrap=True)
        others = [name for name in each.stands_for if name not in each.operator.split("+")]
        if others:
            console.print(f"{', '.join(others)}: as {each.operator}", highlight=False)
        for note in each.notes:
            console.print(f"{each.operator}: {note}", highlight=False)
    if result.golden_runs > 1:
        console.print(_golden(result), highlight=False, soft_wrap=True)
    if result.deadline is not None:
        told = "late: rows that were not right in time; exact: time until answers were; final: the final output"
        console.print(told, highlight=False, soft_wrap=True)
    if earlier is not None:
        console.print("before: recovery and impact of the earlier assessment", highlight=False)
    console.print(
        f"recovery in sections of {_place(result.section)}, {_conditions(result)}; "
        f"{result.experiments} experiment{'s' if result.experiments != 1 else ''} in {seconds:g} s"
        + ("" if out is None else f"; results and {PAGE} in {out}"),
        highlight=False,
        soft_wrap=True,
    )


def _golden(result: Assessment) -> str:
    if not result.noise:
        return f"{result.golden_runs} golden runs gave the same"
    return (
        f"{result.golden_runs} golden runs: score {result.golden:g}, deviation {result.golden_spread:.2%}; "
        f"a section that is off by up to {result.noise:.1%} or so is noise"
    )


def _row(each: OperatorResult, result: Assessment) -> list[str]:
    lost = each.rows_lost[result.outages.index(result.at)]
    return [
        each.operator,
        f"{lost:,}",
        f"{each.correlation:.2f}",
        f"{each.deviation:.3f}",
        "accepted" if each.accepted else "rejected",
        str(each.recovery),
        f"{each.impact:.2f}",
    ]


def _killed_row(each: OperatorResult) -> list[str]:
    return [
        each.operator,
        f"{each.rows_lost[0]:,}",
        str(each.recovery),
        f"{each.impact:.2f}",
        "-" if each.seconds is None else f"{each.seconds:.1f} s",
        "-" if each.final_quality is None else f"{each.final_quality:.3f}",
    ]


def _went(each: OperatorResult) -> str:
    parts = [f"tasks lost: {', '.join(each.lost)}"] if each.lost else []
    parts += [f"replicas took over: {', '.join(each.promoted)}"] if each.promoted else []
    return f"{each.operator}: {'; '.join(parts) or 'nothing was lost'}"


def _before(each: OperatorResult, earlier: Assessment | None) -> list[str]:
    if earlier is None:
        return []
    was = {name: one for one in earlier.operators for name in one.stands_for}.get(each.operator)
    return ["-", "-"] if was is None else [str(was.recovery), f"{was.impact:.2f}"]


def _fault(result: Assessment) -> str:
    return f"outage {result.at:g} s" if result.deadline is None else "node killed"


def _conditions(result: Assessment) -> str:
    if result.deadline is None:
        return f"at an outage of {result.at:g} s"
    if not result.deadline:
        return "of the first answers"
    return f"of answers as they stood {result.deadline} epochs later"


def _place(position: float) -> str:
    """Positions are rows, or epochs with a fraction."""
    return f"{position:,.0f}" if position >= 100 else f"{position:.2g}"
