"""``holdfast run``: a workload on Spark, with a live display, and faults on request."""

from __future__ import annotations

import json
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import pyarrow.parquet as pq
import typer
from rich.console import Console

from holdfast.cli import interrupts
from holdfast.cli.display import Display
from holdfast.cli.output import Format, FormatOption, answer, completing, progress
from holdfast.errors import HoldfastError, Invalid, instead
from holdfast.report.live import LOOPBACK, NEW, LivePage, LiveServer, Route, check_access, check_port, made_token
from holdfast.report.metrics import CONTENT_TYPE, Metrics
from holdfast.runtime.domains import Domains
from holdfast.runtime.faults import expand_faults, parse_faults, read_faults
from holdfast.runtime.history.history import read_history
from holdfast.runtime.settings import RECOVERIES, seconds_of, within_of
from holdfast.workloads import WORKLOADS, Options, Workload, workload

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from holdfast.runtime.driver.ports import Listener

SETUP = "run.json"
SUMMARY = "summary.json"
ROADS = "linear-road"
INTERRUPTED = 130
"""Exit code, as shells know it."""
_MEMORY = re.compile(r"\d+[kmgt]b?", re.IGNORECASE)


class NoSpark(HoldfastError):
    """Spark did not start."""


class Log(StrEnum):
    display = "display"
    json = "json"


def schedulers() -> tuple[str, ...]:
    from holdfast.recovery import ALGORITHMS

    return tuple(ALGORITHMS)


def run(
    name: Annotated[
        str,
        typer.Argument(
            metavar="WORKLOAD", help=f"one of {', '.join(WORKLOADS)}", autocompletion=completing(lambda: WORKLOADS)
        ),
    ],
    nodes: Annotated[int | None, typer.Option(min=1, help="nodes; logical ones with --master local[...]")] = None,
    budget: Annotated[
        float | None, typer.Option(min=0, help="replicate tasks within this budget, in average tasks")
    ] = None,
    replicas: Annotated[str, typer.Option(help="replicate these tasks, such as count/0,count/1")] = "",
    epochs: Annotated[int | None, typer.Option(min=1, help="how many epochs, 10 by default")] = None,
    fault: Annotated[list[str] | None, typer.Option(help='such as "kill node-1,node-2 at epoch 8"; repeatable')] = None,
    faults: Annotated[Path | None, typer.Option(help="file with a list of faults, JSON or YAML")] = None,
    input_: Annotated[
        Path | None, typer.Option("--input", help="file to read to its end; else rows are generated")
    ] = None,
    column: Annotated[str | None, typer.Option(help="column of --input to read")] = None,
    rate: Annotated[int, typer.Option(min=1, help="generated rows an epoch")] = 10_000,
    seed: Annotated[int, typer.Option(help="seed of the generated rows")] = 0,
    expressways: Annotated[
        int | None, typer.Option(min=1, help="linear-road: generate the traffic of so many, 1 by default")
    ] = None,
    parallelism: Annotated[int | None, typer.Option(min=1, help="tasks of each parallel operator")] = None,
    master: Annotated[
        str, typer.Option(help="Spark master: local[*], local-cluster[4,1,1024], spark://...")
    ] = "local[*]",
    out: Annotated[
        Path | None, typer.Option(help="folder of the run; the same one again goes on where it stopped")
    ] = None,
    checkpoint_every: Annotated[
        int | None, typer.Option(min=1, help="epochs between checkpoints; 10 by default, fewer in the first 50 epochs")
    ] = None,
    trigger: Annotated[str | None, typer.Option(help="time between epochs, such as 500ms, 2s or 1m")] = None,
    scheduler: Annotated[
        str,
        typer.Option(help="order of recovery, as in holdfast schedule", autocompletion=completing(schedulers)),
    ] = "incremental",
    recovery: Annotated[
        str, typer.Option(help=f"one of {', '.join(RECOVERIES)}", autocompletion=completing(lambda: RECOVERIES))
    ] = "incremental",
    capacity: Annotated[float | None, typer.Option(min=0, help="what a node can carry, in task costs")] = None,
    ceiling: Annotated[
        float, typer.Option(min=0.01, max=1, help="share of a node's capacity that recovery may fill")
    ] = 1.0,
    patience: Annotated[
        float, typer.Option(min=0, help="seconds that lost tasks wait for new nodes before the others carry all")
    ] = 10.0,
    survive: Annotated[
        str | None,
        typer.Option(help="spend --budget for the loss of any so many nodes, or of a domain; 2 by default"),
    ] = None,
    domains: Annotated[
        str | None,
        typer.Option(help="what fails together: host, a JSON or YAML file of nodes or hosts, or a script given hosts"),
    ] = None,
    parallel_recovery: Annotated[
        int, typer.Option(min=1, help="lost tasks with a long replay come back as so many each")
    ] = 1,
    rebalance: Annotated[bool, typer.Option(help="let nodes that come late take tasks over from fuller ones")] = True,
    elastic: Annotated[bool, typer.Option("--elastic", help="scale operators out and in by their load")] = False,
    scale_above: Annotated[
        float | None, typer.Option(help="share of one core from which --elastic scales a task out, 0.7 by default")
    ] = None,
    max_nodes: Annotated[int | None, typer.Option(min=1, help="nodes that the job may grow to")] = None,
    pool: Annotated[int, typer.Option(min=0, help="nodes that stand by without tasks")] = 0,
    shed_above: Annotated[
        float | None, typer.Option(help="seconds an epoch may take; rows beyond are left out and counted")
    ] = None,
    answer_within: Annotated[
        str | None,
        typer.Option(
            help="time after which nodes that are well answer tentatively for who is silent, such as 2s; or never; "
            "2.5 times what epochs usually take by default, 1 s at least"
        ),
    ] = None,
    rejoin_after: Annotated[float, typer.Option(min=0, help="seconds until a lost logical node is replaced")] = 3.0,
    verify: Annotated[bool, typer.Option(help="run every epoch twice and refuse answers that differ")] = False,
    memory: Annotated[str, typer.Option(help="memory of the Spark driver")] = "4g",
    force: Annotated[bool, typer.Option(help="take --out over from a job that still holds it")] = False,
    ui: Annotated[bool, typer.Option("--ui", help="serve a live page while the job runs")] = False,
    ui_port: Annotated[int, typer.Option(help="port of --ui; 0 takes a free one")] = 0,
    ui_host: Annotated[str, typer.Option(help="address of --ui; others than loopback need --token")] = LOOPBACK,
    metrics: Annotated[
        int | None, typer.Option(help="serve Prometheus metrics on this port; 0 takes a free one")
    ] = None,
    metrics_host: Annotated[
        str, typer.Option(help="address of --metrics; others than loopback need --token")
    ] = LOOPBACK,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="HOLDFAST_TOKEN",
            show_envvar=False,
            help="what callers of --ui and --metrics must show; new makes one and prints it; better in HOLDFAST_TOKEN, "
            "as other users see what is typed",
        ),
    ] = None,
    log: Annotated[Log, typer.Option(help="display to watch, or json: every event as a line on stderr")] = Log.display,
    quiet: Annotated[bool, typer.Option("--quiet", help="no display")] = False,
    form: FormatOption = Format.text,
) -> None:
    """Run a workload on Spark.

    Examples:
    holdfast run word-count --epochs 20;
    holdfast run word-count --nodes 4 --budget 2 --epochs 20 --fault "kill node-1,node-2 at epoch 8";
    holdfast run hashtags --input tweets.parquet --epochs 10 --out run-1;
    holdfast run top-k --epochs 500 --ui --metrics 9400 --log json;
    holdfast run word-count --nodes 2 --max-nodes 6 --pool 1 --elastic --epochs 500 --out run-1
    """
    chosen = workload(name)
    if expressways is not None and (name != ROADS or input_ is not None):
        raise Invalid(f"--expressways {expressways}: it is for the generated traffic of {ROADS}, without --input")
    asked = Options(input_, epochs or 10, rate, seed, column, expressways=expressways or 1)
    options = asked if out is None else _resumed(out.absolute(), name, asked, parallelism, epochs)
    chosen.check(options)
    if "" in map(str.strip, fault or []):
        raise Invalid("--fault '': a fault is needed, such as \"kill node-1,node-2 at epoch 8\"")
    script = [*parse_faults(fault or []), *(read_faults(faults) if faults is not None else ())]
    if nodes is not None:
        expand_faults(script, [f"node-{number}" for number in range(nodes)], options.epochs)
    apart = Domains(domains, "--domains")
    lose = _survive(survive, budget, master, nodes, max_nodes, pool)
    interval = None if trigger is None else spark_interval(trigger)
    within = within_of(answer_within, "--answer-within")
    if shed_above is not None and not shed_above > 0:
        raise Invalid(f"--shed-above {shed_above:g}: seconds that an epoch may take are needed, more than 0")
    if _MEMORY.fullmatch(memory) is None:
        raise Invalid(f"--memory {memory}: a size for the JVM is needed, such as 2g or 1500m")
    if scheduler not in schedulers():
        raise Invalid(f"--scheduler {scheduler!r}: {instead(scheduler, schedulers(), 'there are')}")
    if recovery not in RECOVERIES:
        raise Invalid(f"--recovery {recovery!r}: {instead(recovery, RECOVERIES, 'there are')}")
    pipeline = chosen.pipeline() if parallelism is None else chosen.pipeline(parallelism=parallelism)
    tasks = [part.strip() for part in replicas.split(",") if part.strip()]
    try:
        pipeline.topology.tasks_of(tasks)
    except Invalid as error:
        raise Invalid(f"--replicas: {error}") from None
    if tasks and budget is not None:
        raise Invalid("--replicas and --budget: give one of them; a budget lets the planner choose the replicas")
    policy = _policy(elastic, scale_above, max_nodes, nodes, pool)
    if ui_port and not ui:
        raise Invalid(f"--ui-port {ui_port}: it is the port of --ui, which is not given")
    check_port(ui_port, "--ui-port")
    check_port(metrics or 0, "--metrics")
    shown = made_token(token)
    if ui:
        check_access(ui_host, shown, "--ui-host")
    if metrics is not None:
        check_access(metrics_host, shown, "--metrics-host")
    folder = make_folder(out, f"holdfast-{name}-")

    with ExitStack() as stack:
        display = Display(f"holdfast run {name}", options.epochs, quiet or log is Log.json)
        listeners: list[Listener] = [display.heard]
        if log is Log.json:
            listeners.append(_log_line)
        if token == NEW and (ui or metrics is not None):
            _say(f"token: {shown} (Authorization: Bearer TOKEN, or ?token=TOKEN once in a browser)", log)
        if ui:
            live = LivePage(folder, f"{name} in {folder.name}")
            server = stack.enter_context(LiveServer(live.routes, ui_port, ui_host, "--ui-port", shown))
            listeners.append(live.heard)
            _say(f"live page: {server.url}", log)
        if metrics is not None:
            counted = Metrics()
            routes: dict[str, Route] = {"/metrics": lambda: (CONTENT_TYPE, counted.text())}
            server = stack.enter_context(LiveServer(routes, metrics, metrics_host, "--metrics", shown))
            listeners.append(counted.heard)
            _say(f"metrics: {server.url}metrics", log)
        if not quiet:
            _say(f"starting Spark ({master})", log)
        given = {"spark.driver.memory": memory, **_growing(master, nodes, max_nodes, pool)}
        session = stack.enter_context(spark_on(master, given))
        summary = carry_out(
            chosen, options, folder, session, display, parallelism,
            nodes=nodes, checkpoint_every=checkpoint_every, replicas=tasks, budget=budget, faults=script,
            ceiling=ceiling, patience=patience, domains=apart, survive=lose,
            rejoin_after=rejoin_after, scheduler=scheduler, recovery=recovery, capacity=capacity, trigger=interval,
            verify=verify, force=force, listeners=listeners, parallel_recovery=parallel_recovery,
            rebalance=rebalance, elastic=policy, max_nodes=max_nodes, pool=pool, shed_above=shed_above,
            answer_within=within,
        )  # fmt: skip
    answer(summary, form, lambda console: _read(console, summary))
    if summary["interrupted"]:
        raise typer.Exit(INTERRUPTED)


def _survive(
    asked: str | None, budget: float | None, master: str, nodes: int | None, max_nodes: int | None, pool: int
) -> int | Literal["domain"] | None:
    if asked is None:
        return None
    if budget is None:
        raise Invalid(f"--survive {asked}: it says how --budget is spent, which is not given")
    if asked == "domain":
        return "domain"
    if not asked.isdecimal() or int(asked) < 1:
        raise Invalid(f"--survive {asked}: a number of nodes, 1 or more, or the word domain is needed")
    from holdfast.runtime.spark.session import nodes_of

    there = nodes or nodes_of(master)
    most = max_nodes or (there + pool if there else None)
    if most is not None and int(asked) >= most:
        raise Invalid(f"--survive {asked}: must be less than the number of nodes, {most}; say how many with --nodes")
    return int(asked)


def _growing(master: str, nodes: int | None, max_nodes: int | None, pool: int) -> dict[str, str]:
    """Settings with which Spark gives executors as they are asked for, if more may be."""
    from holdfast.runtime.spark.session import growing

    return growing(master, nodes or 1, max_nodes or (nodes or 1) + pool)


def _policy(
    elastic: bool, above: float | None, max_nodes: int | None, nodes: int | None, pool: int
) -> dict[str, Any] | bool:
    """What ``holdfast.start`` takes for ``elastic``; Invalid for options that do not go together."""
    least = (nodes or 1) + pool
    if max_nodes is not None and max_nodes < least:
        raise Invalid(f"--max-nodes {max_nodes}: --nodes and --pool alone are {least}{'' if nodes else ' or more'}")
    if above is None:
        return elastic
    if not elastic:
        raise Invalid(f"--scale-above {above:g}: it is for --elastic, which is not given")
    if not 0 < above <= 1:
        raise Invalid(f"--scale-above {above:g}: must be above 0 and at most 1, a share of one core")
    return {"threshold": above}


def spark_interval(written: str) -> str:
    """A time between epochs as Spark writes it: 500ms, 2s, 1.5 seconds, 1 minute."""
    return f"{round(seconds_of(written, '--trigger') * 1000)} milliseconds"


def make_folder(out: Path | None, prefix: str) -> Path:
    """Make the folder of a run now, or a new one: to be told after a minute that it cannot be written is no fun."""
    if out is None:
        return Path(tempfile.mkdtemp(prefix=prefix)).absolute()
    folder = out.absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise Invalid(f"--out {folder}: cannot be written: {error.strerror or error}; name another folder") from None
    return folder


@contextmanager
def spark_on(master: str, settings: dict[str, str]) -> Iterator[SparkSession]:
    """A Spark of our own, stopped in the end."""
    from holdfast.runtime.spark import spark_session

    with interrupts.held():
        try:
            session = spark_session(master, settings=settings)
        except HoldfastError:
            raise
        except Exception as error:
            interrupts.check()
            why = " ".join(str(error).split())[:200]
            raise NoSpark(f"Spark cannot be started on {master}: {why}; holdfast doctor says what is missing") from None
        try:
            interrupts.take()
            interrupts.check()
            yield session
        finally:
            session.stop()


def carry_out(
    chosen: Workload,
    options: Options,
    folder: Path,
    session: SparkSession,
    display: Display,
    parallelism: int | None,
    **settings: Any,
) -> dict[str, Any]:
    """Run the job to its end, watched by this display; ``settings`` are those of ``holdfast.start``. Its summary.

    Interrupted, the job ends after the epoch at hand, so that it can go on later; the summary says so.
    """
    from holdfast.runtime.spark import start

    began = time.monotonic()
    interrupted = False
    pipeline = chosen.pipeline() if parallelism is None else chosen.pipeline(parallelism=parallelism)
    with display:
        job = start(
            chosen.stream(session, options),
            pipeline,
            store=folder,
            epochs=options.epochs,
            bounded=options.input is not None,
            **settings,
        )
        _put(folder / SETUP, _setup(chosen.name, options, parallelism))
        display.watch(job)
        try:
            interrupts.check()
            job.awaitTermination()
        except KeyboardInterrupt:
            interrupted = True
            progress.print("interrupted: stopping after this epoch; again to stop at once", highlight=False)
            job.stop()
    summary = {**summarise(folder, chosen.name, time.monotonic() - began), "interrupted": interrupted}
    _put(folder / SUMMARY, summary)
    return summary


def _say(text: str, log: Log) -> None:
    """To stderr; as a line of JSON where all lines are."""
    if log is Log.json:
        _log_line({"time": round(time.time(), 6), "kind": "note", "text": text})
    else:
        progress.print(text, style="dim", highlight=False, markup=False, soft_wrap=True)


def _log_line(event: dict[str, Any]) -> None:
    print(json.dumps(event, default=str, allow_nan=False), file=sys.stderr, flush=True)


def summarise(folder: Path, name: str, seconds: float) -> dict[str, Any]:
    """What the history and the outputs of a run say."""
    rows = shed = failures = tentative_epochs = 0
    epochs: set[int] = set()
    lost: list[str] = []
    latencies = []
    recovered, over, lost_at = True, False, -1
    for event in read_history(folder):
        match event["kind"]:
            case "epoch":
                if event["epoch"] not in epochs:
                    rows += event["rows_in"]
                    shed += event.get("shed", 0)
                epochs.add(event["epoch"])
                tentative_epochs += event["tentative"] > 0
                recovered = not event["absent"] and not event["tentative"]
            case "stopped":
                over = True
            case "started":
                over = False
            case "nodes lost":
                failures += 1
                lost += event["nodes"]
                recovered = recovered and over  # what goes when the job has ended takes nothing with it
                lost_at = event["epoch"] if not over else lost_at
            case "answered":
                latencies.append(event["seconds"])
            case "checkpoint":
                recovered = recovered or event["epoch"] >= lost_at  # an older one was under way when nodes were lost
    ordered = sorted(latencies)
    return {
        "workload": name,
        "epochs": len(epochs),
        "rows": rows,
        "shed_rows": shed,
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
        "expressways": options.expressways,
        "parallelism": parallelism,
    }


def _resumed(folder: Path, name: str, options: Options, parallelism: int | None, epochs: int | None) -> Options:
    """The options of a run that goes on; Invalid if what is asked for now does not fit what is there."""
    try:
        before = json.loads((folder / SETUP).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return options
    except NotADirectoryError:
        raise Invalid(f"--out {folder}: this is a file, or lies in one; name a folder") from None
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
    return replace(options, epochs=now["epochs"])


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
    if summary["shed_rows"]:
        share = summary["shed_rows"] / (summary["shed_rows"] + summary["rows"])
        console.print(
            f"{summary['shed_rows']:,} rows ({share:.1%}) were left out to keep up: the output is that of the rest",
            highlight=False,
        )
    if summary["latency_median_s"] is not None:
        console.print(
            f"latency of an epoch: median {summary['latency_median_s']:.2f} s, most {summary['latency_max_s']:.2f} s",
            highlight=False,
        )
    console.print(f"output, history and summary in {summary['out']}", highlight=False, soft_wrap=True)
    if summary["interrupted"]:
        console.print("it was interrupted; the same command with that --out goes on", highlight=False, soft_wrap=True)
    console.print(f"holdfast report {summary['out']} makes a page of it", highlight=False, soft_wrap=True)
