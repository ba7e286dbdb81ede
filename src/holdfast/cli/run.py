"""``holdfast run``: a workload on Spark, with a live display, and faults on request."""

from __future__ import annotations

import re
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from holdfast.cli.display import Display
from holdfast.cli.output import Format, FormatOption, answer, completing
from holdfast.cli.starting import carry_out, make_folder, resumed, spark_interval, spark_on
from holdfast.cli.summary import Log, log_line, print_summary, say
from holdfast.errors import Invalid, instead
from holdfast.report.live import LOOPBACK, NEW, LivePage, LiveServer, Route, check_access, check_port, made_token
from holdfast.report.metrics import CONTENT_TYPE, Metrics
from holdfast.runtime.domains import Domains
from holdfast.runtime.faults import expand_faults, parse_faults, read_faults
from holdfast.runtime.settings import RECOVERIES, within_of
from holdfast.workloads import WORKLOADS, Options, workload

if TYPE_CHECKING:
    from holdfast.runtime.driver.ports import Listener

ROADS = "linear-road"
INTERRUPTED = 130
"""Exit code, as shells know it."""
_MEMORY = re.compile(r"\d+[kmgt]b?", re.IGNORECASE)


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
    options = asked if out is None else resumed(out.absolute(), name, asked, parallelism, epochs)
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
            listeners.append(log_line)
        if token == NEW and (ui or metrics is not None):
            say(f"token: {shown} (Authorization: Bearer TOKEN, or ?token=TOKEN once in a browser)", log)
        if ui:
            live = LivePage(folder, f"{name} in {folder.name}")
            server = stack.enter_context(LiveServer(live.routes, ui_port, ui_host, "--ui-port", shown))
            listeners.append(live.heard)
            say(f"live page: {server.url}", log)
        if metrics is not None:
            counted = Metrics()
            routes: dict[str, Route] = {"/metrics": lambda: (CONTENT_TYPE, counted.text())}
            server = stack.enter_context(LiveServer(routes, metrics, metrics_host, "--metrics", shown))
            listeners.append(counted.heard)
            say(f"metrics: {server.url}metrics", log)
        if not quiet:
            say(f"starting Spark ({master})", log)
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
    answer(summary, form, lambda console: print_summary(console, summary))
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
