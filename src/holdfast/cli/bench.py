"""``holdfast bench``: how many expressways of Linear Road this machine sustains, every answer inside five seconds."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from holdfast.cli.output import Format, FormatOption, answer, completing, progress
from holdfast.cli.starting import make_folder, spark_on
from holdfast.errors import Invalid
from holdfast.report.chart import Chart, Series, check_plot_path, write_charts
from holdfast.workloads.linear_road.peak import LIMIT, Load, Peak, run_peak, search
from holdfast.workloads.workload import MOST_EXPRESSWAYS

BENCHMARKS = ("linear-road",)
COLUMNS = ("p50", "p95", "p99", "most")


def bench(
    name: Annotated[
        str,
        typer.Argument(metavar="BENCHMARK", help=", ".join(BENCHMARKS), autocompletion=completing(lambda: BENCHMARKS)),
    ],
    expressways: Annotated[
        int | None, typer.Option(min=1, max=MOST_EXPRESSWAYS, help="only so many; else the most are searched for")
    ] = None,
    minutes: Annotated[float, typer.Option(min=0.1, help="minutes at the peak that are measured, in each run")] = 1.0,
    warm_up: Annotated[float, typer.Option(min=0, help="minutes at the same rate before that, not counted")] = 1.25,
    first: Annotated[int, typer.Option(min=1, max=MOST_EXPRESSWAYS, help="where the search begins")] = 64,
    master: Annotated[str, typer.Option(help="Spark master, as in holdfast run")] = "local[*]",
    nodes: Annotated[int, typer.Option(min=1, help="nodes; logical ones with --master local[...]")] = 2,
    parallelism: Annotated[int, typer.Option(min=1, help="tasks of each operator")] = 2,
    checkpoint_every: Annotated[int, typer.Option(min=1, help="epochs between checkpoints")] = 5,
    seed: Annotated[int, typer.Option(help="seed of the traffic")] = 0,
    rows: Annotated[
        bool, typer.Option("--rows", help="every tuple a row of Spark's; else a row is a pack of them, much cheaper")
    ] = False,
    memory: Annotated[str, typer.Option(help="memory of the Spark driver")] = "4g",
    plot: Annotated[Path | None, typer.Option(help="chart of latencies over time: .html, .png or .svg")] = None,
    out: Annotated[
        Path | None, typer.Option(help="keep every run here, with the latency of each answer; must be empty")
    ] = None,
    form: FormatOption = Format.text,
) -> None:
    """How many expressways of Linear Road this machine sustains.

    Traffic at its peak, 1,700 tuples a second for each expressway, in real time: tuples are due by the clock, whether
    the job keeps up or not. The answer is the largest number of expressways that was sustained: every answer in the
    measured minutes inside 5 seconds. This is not the L-rating of the benchmark (docs/linear-road.md says what lacks).

    Examples:
    holdfast bench linear-road;
    holdfast bench linear-road --expressways 50 --minutes 3 --plot latency.html
    """
    if name not in BENCHMARKS:
        raise Invalid(f"unknown benchmark {name!r}; known: {', '.join(BENCHMARKS)}")
    if plot is not None:
        check_plot_path(plot)
    load = Load(
        round(minutes * 60), round(warm_up * 60), nodes, parallelism, parallelism, checkpoint_every, seed, not rows
    )
    folder = make_folder(out, "holdfast-bench-")
    if any(folder.iterdir()):
        raise Invalid(f"--out {folder}: it is not empty; name a new folder")
    runs: dict[int, Peak] = {}
    try:
        with spark_on(master, {"spark.driver.memory": memory}) as session:

            def sustained(number: int) -> bool:
                progress.print(f"{number} expressways, {load.warm_up + load.seconds} s", style="dim", highlight=False)
                runs[number] = run_peak(session, number, load, folder / f"{number}")
                if out is None:
                    shutil.rmtree(folder / f"{number}")
                progress.print(_line(runs[number]), highlight=False)
                return runs[number].sustained

            most = search(sustained, first) if expressways is None else expressways * sustained(expressways)
    finally:
        if out is None:
            shutil.rmtree(folder, ignore_errors=True)
    best = runs.get(most) or runs[min(runs)]
    if plot is not None:
        write_charts([chart(best)], plot)
    content = report(most, best, list(runs.values()), load, master, searched=expressways is None)
    answer(content, form, lambda console: _read(console, content))


def report(most: int, best: Peak, runs: list[Peak], load: Load, master: str, *, searched: bool) -> dict[str, Any]:
    """The answer as one object; ``most_sustained`` is null when nothing was searched for."""
    return {
        "benchmark": "linear-road",
        "most_sustained": most if searched else None,
        **_told(best),
        "limit_s": LIMIT,
        "minutes": load.seconds / 60,
        "warm_up_minutes": load.warm_up / 60,
        "master": master,
        "nodes": load.nodes,
        "parallelism": load.parallelism,
        "seed": load.seed,
        "checkpoint_every": load.checkpoint_every,
        "packed": load.packed,
        "machine": machine(),
        "runs": [_told(each) for each in runs],
    }


def machine() -> dict[str, Any]:
    """What ran it: cores that this process may use, memory, processor and system."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gib": round(memory, 1),
        "processor": _processor(),
        "python": platform.python_version(),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def chart(peak: Peak) -> Chart:
    """Percentiles of latency over the measured time."""
    seconds = [row[0] for row in peak.series]
    lines = [
        Series(name, seconds, [row[place] for row in peak.series])
        for place, name in enumerate(("median", "95th percentile", "99th percentile", "most"), 1)
    ]
    limit = Series("limit", [seconds[0], seconds[-1]], [LIMIT, LIMIT], dashed=True) if seconds else None
    title = f"Linear Road, {peak.expressways} expressways, {peak.tuples_per_second:,} tuples/s"
    return Chart(title, "second of the run", "latency (s)", [*lines, *([limit] if limit else [])])


def _told(peak: Peak) -> dict[str, Any]:
    kept = asdict(peak)
    kept.pop("series")
    latency = {f"latency_{name}_s": _rounded(kept.pop(name)) for name in COLUMNS}
    behind = _rounded(kept.pop("behind"))
    return {**kept, **latency, "behind_s": behind, "sustained": peak.sustained}


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def _line(peak: Peak) -> str:
    if peak.behind is not None:
        return f"{peak.expressways} expressways: given up when an answer was {peak.behind:.1f} s late"
    if peak.most is None:
        return f"{peak.expressways} expressways: no answers in the measured time"
    told = "every answer" if peak.sustained else "not every answer"
    return (
        f"{peak.expressways} expressways: {peak.answers:,} answers, median {peak.p50:.2f} s, 99 % {peak.p99:.2f} s, "
        f"most {peak.most:.2f} s: {told} inside {LIMIT:g} s"
    )


def _read(console: Console, content: Mapping[str, Any]) -> None:
    table = Table(box=None, pad_edge=False)
    for column in (
        "expressways",
        "tuples/s",
        "answers",
        "p50 s",
        "p95 s",
        "p99 s",
        "most s",
        f"all inside {LIMIT:g} s",
    ):
        table.add_column(column, justify="right")
    for each in sorted(content["runs"], key=lambda run: run["expressways"]):
        latencies = [each[f"latency_{name}_s"] for name in COLUMNS]
        cells = ["-" if value is None else f"{value:.2f}" for value in latencies]
        verdict = "yes" if each["sustained"] else "no" if each["behind_s"] is None else "no, given up"
        table.add_row(
            f"{each['expressways']}", f"{each['tuples_per_second']:,}", f"{each['answers']:,}", *cells, verdict
        )
    console.print(table)
    made = content["machine"]
    where = f"{made['cores']} cores ({made['processor']}), {made['memory_gib']} GiB, {content['master']}"
    told = f"{content['expressways' if content['most_sustained'] is None else 'most_sustained']} expressways"
    how = f"{content['minutes']:g} min at the peak after {content['warm_up_minutes']:g} min of warm-up"
    console.print(f"{told} on {where}; {how}", highlight=False, soft_wrap=True)
