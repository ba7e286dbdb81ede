"""``holdfast assess``: which operators the answer depends on, by losing their data on purpose."""

from __future__ import annotations

import json
import time
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as Bar
from rich.table import Table

from holdfast.assessment.campaign import ENGINES, Progress, all_cores, as_groups, run_campaign
from holdfast.assessment.experiments import OUTAGES, RATES, Rate, Settings
from holdfast.assessment.faults import KINDS, parse_fault
from holdfast.assessment.results import Assessment, OperatorResult, read_assessment
from holdfast.assessment.scores import as_score
from holdfast.cli.output import Format, FormatOption, answer, progress, warn
from holdfast.cli.subject import Asked, subject_of
from holdfast.errors import Invalid
from holdfast.operators import Pipeline
from holdfast.report.chart import Chart, Series, write_charts
from holdfast.workloads import WORKLOADS, Options

PAGE = "assessment.html"
LINE_EVERY = 10.0
_LISTED_OUTAGES = ",".join(f"{each:g}" for each in OUTAGES)


def assess(
    what: Annotated[
        str, typer.Argument(metavar="WORKLOAD|FILE.py:PIPELINE", help=f"one of {', '.join(WORKLOADS)}, or your own")
    ],
    score: Annotated[
        str, typer.Option(help="the output's score: total:COLUMN, mean:COLUMN, count, or FILE.py:FUNCTION of a table")
    ] = "count",
    offsets: Annotated[
        str, typer.Option(help="how many places in the stream to strike, or positions 50000,90000")
    ] = "5",
    outages: Annotated[str, typer.Option(help="seconds that an operator is away")] = _LISTED_OUTAGES,
    repeat: Annotated[int, typer.Option(help="repetitions of each experiment at most, each a little later")] = 5,
    at: Annotated[
        float | None, typer.Option(help="the outage for dependency, recovery and impact; the longest by default")
    ] = None,
    rate_of: Annotated[str, typer.Option(help=f"turn seconds into rows at the {' or '.join(RATES)} rate")] = "peak",
    fault: Annotated[str, typer.Option(help=f"{', '.join(KINDS)}:COLUMN[:FACTOR]")] = "loss",
    targets: Annotated[
        str, typer.Option(help="operators to strike, such as A,B; A+B fail together; chosen by the graph by default")
    ] = "",
    sections: Annotated[int, typer.Option(help="local sections that the stream is cut into")] = 100,
    threshold: Annotated[float, typer.Option(help="a section is wrong above this relative error")] = 0.03,
    percentile: Annotated[float, typer.Option(help="recovered when this share of wrong sections has passed")] = 0.9,
    precision: Annotated[
        float, typer.Option(help="stop repeating when quality scores are known this well (95 % confidence); 0: never")
    ] = 0.05,
    golden: Annotated[
        int, typer.Option(help="runs without a fault; what they differ by is the pipeline's own noise and no damage")
    ] = 1,
    replicas: Annotated[str, typer.Option(help="assess with these replicas in force, such as A/0,B/0")] = "",
    plan: Annotated[
        Path | None, typer.Option(help="assess with the replicas of holdfast plan --format json in force")
    ] = None,
    failover: Annotated[float, typer.Option(help="seconds until a replica takes over")] = 2.0,
    before: Annotated[Path | None, typer.Option(help="folder of an earlier assessment to compare with")] = None,
    engine: Annotated[
        str, typer.Option(help=f"{', '.join(ENGINES)}; the same scores: trial needs no JVM and is faster")
    ] = "trial",
    cores: Annotated[
        int | None, typer.Option(min=1, help="processes of the trial engine; all cores by default")
    ] = None,
    epochs: Annotated[int, typer.Option(min=1, help="epochs of the input")] = 20,
    rate: Annotated[int, typer.Option(min=1, help="generated rows an epoch")] = 25_000,
    seed: Annotated[int, typer.Option(help="seed of the generated rows, and of the experiments")] = 0,
    input_: Annotated[Path | None, typer.Option("--input", help="file to read; else rows are generated")] = None,
    column: Annotated[str | None, typer.Option(help="column of --input to read")] = None,
    parallelism: Annotated[int | None, typer.Option(min=1, help="tasks of each parallel operator")] = None,
    key: Annotated[
        str | None, typer.Option(help="column with the ascending key that rows carry; without one, sections are epochs")
    ] = None,
    query: Annotated[str, typer.Option(help="the operator whose output is scored, if there are several")] = "",
    out: Annotated[
        Path | None, typer.Option(help=f"folder for results and {PAGE}; the same one again goes on where it stopped")
    ] = None,
    quiet: Annotated[bool, typer.Option(help="no progress")] = False,
    form: FormatOption = Format.text,
) -> None:
    """Which operators the answer depends on, measured by losing their data on purpose.

    Examples:
    holdfast assess bargain-discovery --score total:gain --offsets 5 --outages 0.5,1,2,4,8,16 --repeat 5 --out a1;
    holdfast assess my_job.py:pipeline --input rows.parquet --key id --score mean:price
    """
    asked = Asked(what, Options(input_, epochs, rate, seed, column), parallelism, key, query)
    subject = subject_of(asked)
    settings = Settings(
        score=as_score(score),
        offsets=_offsets(offsets),
        outages=_numbers(outages, "--outages"),
        repeat=repeat,
        at=at,
        rate=_rate(rate_of),
        fault=parse_fault(fault, seed),
        groups=as_groups(targets),
        sections=sections if subject.key is not None else min(sections, subject.epochs),
        threshold=threshold,
        percentile=percentile,
        precision=precision,
        protected=protected(subject.pipeline, [*_listed(replicas), *_planned(plan)]),
        failover=failover,
        seed=seed,
        golden=golden,
    )
    earlier = read_assessment(before) if before is not None else None
    began = time.monotonic()
    try:
        with _Shown(quiet) as shown:
            result = run_campaign(
                partial(subject_of, asked),
                settings,
                engine=engine,
                cores=cores or all_cores(),
                out=out,
                report=shown.tell,
            )
    except KeyboardInterrupt:
        if out is not None:
            progress.print("stopped; run the same command again to go on", highlight=False)
        raise
    seconds = round(time.monotonic() - began, 1)
    if out is not None:
        write_charts(charts(result), out / PAGE)
    content: dict[str, Any] = {**result.content(), "seconds": seconds}
    if earlier is not None:
        content["before"] = {
            each.operator: {"impact": each.impact, "recovery": each.recovery} for each in earlier.operators
        }
    answer(content, form, lambda console: _read(console, result, earlier, seconds, out))


def protected(pipeline: Pipeline, replicas: list[str]) -> tuple[str, ...]:
    """The operators all of whose tasks have a replica; one without a replica leaves its operator exposed."""
    topology = pipeline.topology
    try:
        tasks = set(topology.tasks_of(list(dict.fromkeys(replicas))))
    except Invalid as error:
        raise Invalid(f"--replicas: {error}") from None
    names = []
    for operator in topology.operators:
        mine = [task in tasks for task in topology.tasks if task.operator == operator.name]
        if all(mine):
            names.append(operator.name)
        elif any(mine):
            warn(f"operator {operator.name}: {sum(mine)} of {len(mine)} tasks have replicas; it counts as unprotected")
    return tuple(names)


def charts(result: Assessment) -> list[Chart]:
    """For each operator its quality score over time, at its worst offset, and against the outage."""
    drawn = []
    for each in result.operators:
        sections = list(range(1, len(each.over_time) + 1))
        lost = f"outage {result.at:g} s at {_place(result.offsets[each.over_time_offset])}"
        title = f"{each.operator}: quality over time, {lost} (impact {each.impact:.2f}, recovery {each.recovery})"
        marks = [(float(each.recovery), "recovered")] if each.recovery else []
        lines = [
            Series("faulty / golden", sections, list(each.over_time)),
            Series("golden", sections, [1.0] * len(sections), dashed=True),
        ]
        drawn.append(
            Chart(title, f"section after the injection ({_place(result.section)} wide)", "quality score", lines, marks)
        )
        against = [
            Series(f"offset {_place(offset)}", list(result.outages), list(scores))
            for offset, scores in zip(result.offsets, each.quality, strict=True)
        ]
        verdict = "accepted" if each.accepted else "rejected"
        found = f"correlation {each.correlation:.2f}, deviation {each.deviation:.2f}, {verdict}"
        title = f"{each.operator}: quality against outage ({found})"
        drawn.append(Chart(title, "outage (s)", "quality score of what is affected", against, log_x=True))
    return drawn


def _read(console: Console, result: Assessment, earlier: Assessment | None, seconds: float, out: Path | None) -> None:
    table = Table(title=f"{result.subject}: {result.score} under {result.fault}", title_justify="left")
    for name in ("operator", "rows lost", "corr.", "dev.", "ANOVA", "recovery", "impact"):
        table.add_column(name, justify="left" if name in ("operator", "ANOVA") else "right", no_wrap=True)
    if earlier is not None:
        table.add_column("before", justify="right")
        table.add_column("before", justify="right")
    for each in result.operators:
        table.add_row(*_row(each, result, earlier))
    console.print(table)
    for each in result.operators:
        others = [name for name in each.stands_for if name not in each.operator.split("+")]
        if others:
            console.print(f"{', '.join(others)}: as {each.operator}", highlight=False)
        for note in each.notes:
            console.print(f"{each.operator}: {note}", highlight=False)
    if result.golden_runs > 1:
        console.print(_golden(result), highlight=False, soft_wrap=True)
    if earlier is not None:
        console.print("before: recovery and impact of the earlier assessment", highlight=False)
    console.print(
        f"recovery in sections of {_place(result.section)}, at an outage of {result.at:g} s; "
        f"{result.experiments} experiments in {seconds:g} s"
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


def _row(each: OperatorResult, result: Assessment, earlier: Assessment | None) -> list[str]:
    lost = each.rows_lost[result.outages.index(result.at)]
    cells = [
        each.operator,
        f"{lost:,}",
        f"{each.correlation:.2f}",
        f"{each.deviation:.3f}",
        "accepted" if each.accepted else "rejected",
        str(each.recovery),
        f"{each.impact:.2f}",
    ]
    if earlier is not None:
        known = {name: one for one in earlier.operators for name in one.stands_for}
        was = known.get(each.operator)
        cells += ["-", "-"] if was is None else [str(was.recovery), f"{was.impact:.2f}"]
    return cells


def _place(position: float) -> str:
    """Positions are rows, or epochs with a fraction."""
    return f"{position:,.0f}" if position >= 100 else f"{position:.2g}"


class _Shown:
    """Progress with the time left: a bar, or a line now and then where there is no terminal."""

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet
        self._bar: Bar | None = None
        self._said = time.monotonic()

    def __enter__(self) -> _Shown:
        if not self._quiet and progress.is_terminal:
            columns = (TextColumn("experiments"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[left]}"))
            self._bar = Bar(*columns, console=progress)
            self._bar.start()
            self._task = self._bar.add_task("", total=None, left="")
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def tell(self, now: Progress) -> None:
        left = "" if now.left is None else f"at most {now.left:.0f} s left"
        if self._bar is not None:
            self._bar.update(self._task, completed=now.done, total=now.total, left=left)
        elif not self._quiet and time.monotonic() - self._said > LINE_EVERY:
            self._said = time.monotonic()
            progress.print(f"{now.done} of {now.total} experiments, {left}", highlight=False, markup=False)


def _rate(written: str) -> Rate:
    for known in RATES:
        if written == known:
            return known
    raise Invalid(f"--rate-of must be one of {', '.join(RATES)}, got {written!r}")


def _offsets(written: str) -> int | tuple[float, ...]:
    if "," not in written:
        try:
            return int(written)
        except ValueError:
            raise Invalid(
                f"--offsets: a number of offsets, or positions 50000,90000, is needed, got {written!r}"
            ) from None
    return _numbers(written, "--offsets")


def _numbers(written: str, option: str) -> tuple[float, ...]:
    return tuple(_number(part, option, written) for part in _listed(written))


def _number(part: str, option: str, written: str) -> float:
    try:
        return float(part)
    except ValueError:
        raise Invalid(f"{option}: numbers with commas between are needed, got {written!r}") from None


def _listed(written: str) -> list[str]:
    return [part.strip() for part in written.split(",") if part.strip()]


def _planned(path: Path | None) -> list[str]:
    if path is None:
        return []
    try:
        return [str(task) for task in json.loads(path.read_text(encoding="utf-8"))["replicas"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Invalid(f"--plan {path}: not what holdfast plan --format json writes: {error}") from None
