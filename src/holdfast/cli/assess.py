"""``holdfast assess``: which operators the answer depends on, by losing their data on purpose."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as Bar

from holdfast.assessment.campaign import ENGINES, Progress, all_cores, as_groups, run_campaign
from holdfast.assessment.experiments import OUTAGES, RATES, Rate, Settings
from holdfast.assessment.faults import KINDS, parse_fault
from holdfast.assessment.kills import DEADLINE, KILL, Kill
from holdfast.assessment.results import read_assessment
from holdfast.assessment.scores import as_score
from holdfast.cli.assessed import PAGE, charts, read
from holdfast.cli.output import Format, FormatOption, answer, completing, progress, warn
from holdfast.cli.starting import spark_interval, spark_on
from holdfast.cli.subject import Asked, subject_of
from holdfast.errors import Invalid
from holdfast.operators import Pipeline
from holdfast.report.chart import write_charts
from holdfast.workloads import WORKLOADS, Options

LINE_EVERY = 10.0
_LISTED_OUTAGES = ",".join(f"{each:g}" for each in OUTAGES)


def assess(
    what: Annotated[
        str,
        typer.Argument(
            metavar="WORKLOAD|FILE.py:PIPELINE",
            help=f"one of {', '.join(WORKLOADS)}, or your own",
            autocompletion=completing(lambda: WORKLOADS),
        ),
    ],
    score: Annotated[
        str, typer.Option(help="the output's score: total:COLUMN, mean:COLUMN, count, or FILE.py:FUNCTION of a table")
    ] = "count",
    offsets: Annotated[
        str | None,
        typer.Option(help="how many places in the stream to strike, or positions 50000,90000; 5, or 2 to kill at"),
    ] = None,
    outages: Annotated[str, typer.Option(help="seconds that an operator is away")] = _LISTED_OUTAGES,
    repeat: Annotated[
        int | None, typer.Option(help="repetitions of each experiment at most, each a little later; 5, or 1 of kills")
    ] = None,
    at: Annotated[
        float | None, typer.Option(help="the outage for dependency, recovery and impact; the longest by default")
    ] = None,
    rate_of: Annotated[str, typer.Option(help=f"turn seconds into rows at the {' or '.join(RATES)} rate")] = "peak",
    fault: Annotated[str, typer.Option(help=f"{', '.join(KINDS)}:COLUMN[:FACTOR], or {KILL}")] = "loss",
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
    budget: Annotated[
        float | None,
        typer.Option(help=f"with --fault {KILL}: run replicas worth so many average tasks, chosen as it runs"),
    ] = None,
    deadline: Annotated[
        int | None,
        typer.Option(
            help=f"with --fault {KILL}: rows count as they stand so many epochs later; {DEADLINE}; 0: at once"
        ),
    ] = None,
    nodes: Annotated[
        int | None, typer.Option(help=f"with --fault {KILL}: how many; one for each task and replica by default")
    ] = None,
    trigger: Annotated[
        str | None, typer.Option(help=f"with --fault {KILL}: time between epochs, such as 1s; else one after the other")
    ] = None,
    master: Annotated[
        str | None, typer.Option(help="with --engine spark: the Spark master; local[*] by default")
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
    holdfast assess my_job.py:pipeline --input rows.parquet --key id --score mean:price;
    holdfast assess bargain-discovery --score total:gain --fault kill --engine spark --replicas TradeFilter/0,VWAP/0
    """
    asked = Asked(what, Options(input_, epochs, rate, seed, column), parallelism, key, query)
    subject = subject_of(asked)
    wanted = [*_listed(replicas), *_planned(plan)]
    safe = protected(subject.pipeline, wanted)
    kills = _kill(fault, {"deadline": deadline, "nodes": nodes, "budget": budget, "trigger": trigger})
    if kills is not None:
        kills = replace(kills, replicas=_living(subject.pipeline, wanted))
    if engine != "spark" and master is not None:
        raise Invalid(f"--master {master}: it is for --engine spark; got --engine {engine}")
    settings = Settings(
        score=as_score(score),
        offsets=_offsets(offsets or ("5" if kills is None else "2")),
        outages=_numbers(outages, "--outages"),
        repeat=repeat if repeat is not None else 5 if kills is None else 1,
        at=at,
        rate=_rate(rate_of),
        fault=parse_fault(fault if kills is None else "loss", seed),
        groups=as_groups(targets),
        sections=sections if subject.key is not None else min(sections, subject.epochs),
        threshold=threshold,
        percentile=percentile,
        precision=precision,
        protected=safe,
        failover=failover,
        seed=seed,
        golden=golden,
    )
    earlier = read_assessment(before) if before is not None else None
    began = time.monotonic()
    try:
        with ExitStack() as stack:
            shown = stack.enter_context(_Shown(quiet))
            spark = None if master is None else stack.enter_context(spark_on(master, {}))
            result = run_campaign(
                partial(subject_of, asked),
                settings,
                engine=engine,
                cores=cores or all_cores(),
                out=out,
                report=shown.tell,
                spark=spark,
                kill=kills,
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
    answer(content, form, lambda console: read(console, result, earlier, seconds, out))


def _kill(fault: str, given: dict[str, Any]) -> Kill | None:
    """How nodes are killed, if that is the fault; its options mean nothing otherwise."""
    chosen = {name: value for name, value in given.items() if value is not None}
    if fault.strip() != KILL:
        if chosen:
            raise Invalid(f"--{next(iter(chosen))}: it is for --fault {KILL}; got --fault {fault}")
        return None
    if "trigger" in chosen:
        chosen["trigger"] = spark_interval(chosen["trigger"])
    return Kill(**chosen)


def _living(pipeline: Pipeline, replicas: list[str]) -> tuple[str, ...]:
    """The replicas that can be run: a source has no home, so none of it is kept."""
    tasks = pipeline.topology.tasks_of(list(dict.fromkeys(replicas)))
    kept = [task for task in tasks if pipeline.topology.inputs_of(task.operator)]
    for task in tasks:
        if task not in kept:
            warn(f"replica {task}: Spark reads sources anywhere, so it is not run")
    return tuple(str(task) for task in kept)


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
