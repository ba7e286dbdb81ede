"""``holdfast run``: a workload on Spark, with a live display, and faults on request."""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import pyarrow.parquet as pq
import typer
from rich.console import Console

from holdfast.cli.display import Display
from holdfast.cli.output import Format, FormatOption, answer, progress
from holdfast.errors import Invalid
from holdfast.runtime.coordinator import RECOVERIES
from holdfast.runtime.faults import parse_faults, read_faults
from holdfast.runtime.history import read_history
from holdfast.workloads import WORKLOADS, Options, workload

SETUP = "run.json"
SUMMARY = "summary.json"


def run(
    name: Annotated[str, typer.Argument(metavar="WORKLOAD", help=f"one of {', '.join(WORKLOADS)}")],
    nodes: Annotated[int | None, typer.Option(min=1, help="nodes; logical ones with --master local[...]")] = None,
    budget: Annotated[
        float | None, typer.Option(min=0, help="replicate tasks within this budget, in average tasks")
    ] = None,
    replicas: Annotated[str, typer.Option(help="replicate these tasks, such as counts/0,counts/1")] = "",
    epochs: Annotated[int | None, typer.Option(min=1, help="how many epochs, 10 by default")] = None,
    fault: Annotated[list[str] | None, typer.Option(help='such as "kill node-1,node-2 at epoch 8"; repeatable')] = None,
    faults: Annotated[Path | None, typer.Option(help="file with a list of faults, JSON or YAML")] = None,
    input_: Annotated[
        Path | None, typer.Option("--input", help="file to read to its end; else rows are generated")
    ] = None,
    column: Annotated[str | None, typer.Option(help="column of --input to read")] = None,
    rate: Annotated[int, typer.Option(min=1, help="generated rows an epoch")] = 10_000,
    seed: Annotated[int, typer.Option(help="seed of the generated rows")] = 0,
    parallelism: Annotated[int | None, typer.Option(min=1, help="tasks of each parallel operator")] = None,
    master: Annotated[
        str, typer.Option(help="Spark master: local[*], local-cluster[4,1,1024], spark://...")
    ] = "local[*]",
    out: Annotated[
        Path | None, typer.Option(help="folder of the run; the same one again goes on where it stopped")
    ] = None,
    checkpoint_every: Annotated[int, typer.Option(min=1, help="epochs between checkpoints")] = 10,
    trigger: Annotated[str | None, typer.Option(help='time between epochs, such as "1 second"')] = None,
    scheduler: Annotated[str, typer.Option(help="order of recovery, as in holdfast schedule")] = "incremental",
    recovery: Annotated[str, typer.Option(help=f"one of {', '.join(RECOVERIES)}")] = "incremental",
    capacity: Annotated[float | None, typer.Option(min=0, help="what a node can carry, in task costs")] = None,
    rejoin_after: Annotated[float, typer.Option(min=0, help="seconds until a lost logical node is replaced")] = 3.0,
    verify: Annotated[bool, typer.Option(help="run every epoch twice and refuse answers that differ")] = False,
    memory: Annotated[str, typer.Option(help="memory of the Spark driver")] = "4g",
    force: Annotated[bool, typer.Option(help="take --out over from a job that still holds it")] = False,
    quiet: Annotated[bool, typer.Option(help="no display")] = False,
    form: FormatOption = Format.text,
) -> None:
    """Run a workload on Spark.

    Examples:
    holdfast run word-count --epochs 20;
    holdfast run word-count --nodes 4 --budget 2 --epochs 20 --fault "kill node-1,node-2 at epoch 8";
    holdfast run hashtags --input tweets.parquet --epochs 10 --out run-1
    """
    chosen = workload(name)
    folder = (out or Path(tempfile.mkdtemp(prefix=f"holdfast-{name}-"))).absolute()
    options = _resumed(folder, name, Options(input_, epochs or 10, rate, seed, column), parallelism, epochs)
    chosen.check(options)
    script = [*parse_faults(fault or []), *(read_faults(faults) if faults is not None else ())]
    if scheduler not in schedulers():
        raise Invalid(f"--scheduler must be one of {', '.join(schedulers())}, got {scheduler!r}")
    if recovery not in RECOVERIES:
        raise Invalid(f"--recovery must be one of {', '.join(RECOVERIES)}, got {recovery!r}")

    from holdfast.runtime.spark import spark_session, start

    pipeline = chosen.pipeline() if parallelism is None else chosen.pipeline(parallelism=parallelism)
    tasks = [part for part in replicas.split(",") if part.strip()]
    pipeline.topology.tasks_of(tasks)
    if not quiet:
        progress.print(f"starting Spark ({master})", style="dim", highlight=False)
    spark = spark_session(master, settings={"spark.driver.memory": memory})
    began = time.monotonic()
    display = Display(f"holdfast run {name}", options.epochs, quiet)
    try:
        with display:
            job = start(
                chosen.stream(spark, options),
                pipeline,
                store=folder,
                nodes=nodes,
                epochs=options.epochs,
                bounded=options.input is not None,
                checkpoint_every=checkpoint_every,
                replicas=tasks,
                budget=budget,
                faults=script,
                rejoin_after=rejoin_after,
                scheduler=scheduler,
                recovery=recovery,
                capacity=capacity,
                trigger=trigger,
                verify=verify,
                force=force,
                listeners=[display.heard],
            )
            _put(folder / SETUP, _setup(name, options, parallelism))
            display.watch(job)
            try:
                job.awaitTermination()
            except KeyboardInterrupt:
                progress.print("stopping after this epoch; run the same command again to go on", highlight=False)
                job.stop()
    finally:
        spark.stop()
    summary = summarise(folder, name, time.monotonic() - began)
    _put(folder / SUMMARY, summary)
    answer(summary, form, lambda console: _read(console, summary))


def schedulers() -> tuple[str, ...]:
    from holdfast.recovery import ALGORITHMS

    return tuple(ALGORITHMS)


def summarise(folder: Path, name: str, seconds: float) -> dict[str, Any]:
    """What the history and the outputs of a run say."""
    rows = failures = tentative_epochs = 0
    epochs: set[int] = set()
    lost: list[str] = []
    latencies = []
    recovered = True
    for event in read_history(folder):
        match event["kind"]:
            case "epoch":
                if event["epoch"] not in epochs:
                    rows += event["rows_in"]
                epochs.add(event["epoch"])
                tentative_epochs += event["tentative"] > 0
                recovered = not event["absent"] and not event["tentative"]
            case "nodes lost":
                failures += 1
                lost += event["nodes"]
                recovered = False
            case "answered":
                latencies.append(event["seconds"])
            case "checkpoint":
                recovered = True
    ordered = sorted(latencies)
    return {
        "workload": name,
        "epochs": len(epochs),
        "rows": rows,
        "final_rows": _rows(folder / "output" / "final"),
        "tentative_rows": _rows(folder / "output" / "tentative"),
        "failures": failures,
        "nodes_lost": lost,
        "recovered": recovered,
        "tentative_epochs": tentative_epochs,
        "latency_median_s": ordered[len(ordered) // 2] if ordered else None,
        "latency_max_s": ordered[-1] if ordered else None,
        "seconds": round(seconds, 3),
        "out": str(folder),
    }


def _rows(folder: Path) -> int:
    return sum(pq.read_metadata(path).num_rows for path in folder.glob("*.parquet"))


def _setup(name: str, options: Options, parallelism: int | None) -> dict[str, Any]:
    return {
        "workload": name,
        "input": None if options.input is None else str(Path(options.input).absolute()),
        "epochs": options.epochs,
        "rate": options.rate,
        "seed": options.seed,
        "column": options.column,
        "parallelism": parallelism,
    }


def _resumed(folder: Path, name: str, options: Options, parallelism: int | None, epochs: int | None) -> Options:
    """The options of a run that goes on; Invalid if what is asked for now does not fit what is there."""
    try:
        before = json.loads((folder / SETUP).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return options
    except (OSError, ValueError) as error:
        raise Invalid(f"--out {folder}: {SETUP} cannot be read: {error}") from None
    now = _setup(name, options, parallelism)
    if options.input is None or epochs is None:
        # A generator may go on for longer; a file is cut into as many epochs as it was at first.
        now["epochs"] = before["epochs"] if epochs is None else epochs
        before = {**before, "epochs": now["epochs"]}
    for key, value in before.items():
        if key != "parallelism" and now.get(key) != value:
            raise Invalid(
                f"--out {folder}: this run has {key} {value!r}, now it is {now.get(key)!r}; use another folder"
            )
    return Options(options.input, now["epochs"], options.rate, options.seed, options.column)


def _put(path: Path, content: dict[str, Any]) -> None:
    temporary = path.with_name(f".{path.name}.part")
    temporary.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    temporary.replace(path)


def _read(console: Console, summary: dict[str, Any]) -> None:
    console.print(
        f"{summary['epochs']} epochs, {summary['rows']:,} rows in, {summary['final_rows']:,} final and "
        f"{summary['tentative_rows']:,} tentative rows out, {summary['failures']} failures"
        + ("" if summary["recovered"] else ", not recovered"),
        highlight=False,
    )
    if summary["latency_median_s"] is not None:
        console.print(
            f"latency of an epoch: median {summary['latency_median_s']:.2f} s, most {summary['latency_max_s']:.2f} s",
            highlight=False,
        )
    console.print(f"output, history and summary in {summary['out']}", highlight=False, soft_wrap=True)
