"""``holdfast demo``: a job loses half of its executors, goes on answering, and ends with the exact answer."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import pyarrow as pa
import typer
from rich.console import Console

from holdfast.cli import interrupts
from holdfast.cli.display import Display
from holdfast.cli.output import Format, FormatOption, answer, progress, warn
from holdfast.cli.run import INTERRUPTED
from holdfast.cli.shop import SHOP
from holdfast.cli.starting import carry_out, make_folder, spark_on
from holdfast.errors import HoldfastError, Invalid
from holdfast.report.digest import digest
from holdfast.report.page import NAME, write_page
from holdfast.runtime.faults import expand_faults, parse_faults
from holdfast.runtime.history.history import NAME as HISTORY
from holdfast.runtime.history.outputs import read_output
from holdfast.workloads import Options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NODES = 4
VERDICT = "verdict.json"
QUESTION = "final output identical to the undisturbed run"
SETTINGS = {"spark.driver.memory": "2g"}


class NoExecutors(HoldfastError):
    """Spark runs, but without executors that could be killed."""


def demo(
    out: Annotated[Path | None, typer.Option(help="folder of the run and its page; a new one by default")] = None,
    epochs: Annotated[int, typer.Option(min=12, help="epochs, at most one a second")] = 20,
    rate: Annotated[int, typer.Option(min=1, help="rows an epoch")] = 20_000,
    budget: Annotated[float, typer.Option(min=0, help="replicas, in average tasks")] = 6.0,
    kill: Annotated[str, typer.Option(help="what goes wrong, as in holdfast run --fault")] = "",
    logical: Annotated[bool, typer.Option("--logical", help="logical nodes in one process, no executors")] = False,
    form: FormatOption = Format.text,
) -> None:
    """Watch a job lose half of its executors and go on answering.

    Counts visits to a shop's pages on four real Spark executors, with replicas planned under a budget, kills two
    of them in the middle, and compares the final output, row by row, with a run that nothing happened to.

    Examples:
    holdfast demo;
    holdfast demo --logical --epochs 20;
    holdfast demo --kill "kill node-0 at epoch 5"
    """
    if out is not None and (out / HISTORY).exists():
        raise Invalid(f"--out {out}: there is a run in it already; name a new folder")
    script = parse_faults([kill or f"kill node-1,node-2 at epoch {epochs // 3}"])
    expand_faults(script, [f"node-{number}" for number in range(NODES)], epochs)
    folder = make_folder(out, "holdfast-demo-")
    options = Options(epochs=epochs, rate=rate, seed=7)
    began = time.monotonic()
    with _spark(logical) as (session, real):
        display = Display(f"a shop's visits on {NODES} {'executors' if real else 'logical nodes'}", epochs, False)
        summary = carry_out(
            SHOP, options, folder, session, display, None,
            nodes=NODES, budget=budget, rejoin_after=4.0, checkpoint_every=10, faults=script, trigger="1 second",
            listeners=[display.heard],
        )  # fmt: skip
        _unless_interrupted(summary, folder)
        _say("the same job again, undisturbed, without replicas and checkpoints, as fast as it goes, to compare")
        calm = Display("undisturbed", epochs, False, brief=True)
        # Nothing will fail, so it needs neither replicas nor checkpoints but the last one; its answers are the same.
        again = carry_out(
            SHOP, options, folder / "undisturbed", session, calm, None,
            nodes=NODES, checkpoint_every=epochs, listeners=[calm.heard],
        )  # fmt: skip
        _unless_interrupted(again, folder)
    verdict = compared(folder, folder / "undisturbed", real, summary)
    (folder / VERDICT).write_text(json.dumps(verdict, indent=1) + "\n", encoding="utf-8")
    write_page(digest(folder), folder / NAME)
    told = {**verdict, **summary, "page": str(folder / NAME), "seconds": round(time.monotonic() - began, 1)}
    answer(told, form, lambda console: _read(console, told))
    if not verdict["identical"]:
        raise typer.Exit(1)


def _unless_interrupted(summary: Mapping[str, Any], folder: Path) -> None:
    if summary["interrupted"]:
        _say(f"interrupted, so there is no verdict; holdfast report {folder} makes a page of what there is")
        raise typer.Exit(INTERRUPTED)


@contextmanager
def _spark(logical: bool) -> Iterator[tuple[SparkSession, bool]]:
    """A Spark with four executors if it can be had, else one process; and which of the two it is."""
    with ExitStack() as stack:
        if not logical:
            _say(f"starting Spark with {NODES} executors")
            try:
                session = stack.enter_context(spark_on(f"local-cluster[{NODES},1,1024]", SETTINGS))
                _wait_for_executors(session)
                yield session, True
                return
            except NoExecutors as error:
                stack.close()
                warn(f"executors cannot be started or killed here: {error}; using logical nodes instead")
        _say(f"starting Spark with {NODES} logical nodes in one process")
        yield stack.enter_context(spark_on("local[*]", SETTINGS)), False


def _wait_for_executors(session: SparkSession, deadline: float = 90.0) -> None:
    """Until all are there; NoExecutors if they do not come, or if their processes cannot be found to be killed."""
    from holdfast.runtime.spark.nodes import Executors

    executors = Executors(session.sparkContext, Path("holdfast-none"))
    until = time.monotonic() + deadline
    while len(names := list(executors.look())) < NODES:
        interrupts.check()
        if time.monotonic() > until:
            raise NoExecutors(f"{len(names)} of {NODES} came within {deadline:.0f} s")
        time.sleep(0.1)
    if any(executors.process(name) is None for name in names):
        raise NoExecutors("their processes are not to be seen in /proc")


def compared(folder: Path, calm: Path, real: bool, summary: dict[str, Any]) -> dict[str, Any]:
    """Whether the final outputs of the two runs are the same, row for row, epoch for epoch, task for task."""
    ours, theirs = read_output(folder, "final"), read_output(calm, "final")
    return {
        "text": QUESTION,
        "identical": same_rows(ours, theirs) and summary["epochs"] > 0,
        "rows_compared": ours.num_rows,
        "rows_undisturbed": theirs.num_rows,
        "nodes": "executors" if real else "logical",
    }


def same_rows(ours: pa.Table, theirs: pa.Table) -> bool:
    """The same rows in the same order; outputs are read in the order of epoch and task."""
    return bool(ours.num_rows > 0 and ours.schema == theirs.schema and ours.equals(theirs))


def _say(text: str) -> None:
    progress.print(text, style="dim", highlight=False, markup=False, soft_wrap=True)


def _read(console: Console, told: dict[str, Any]) -> None:
    def say(text: str, style: str = "") -> None:
        console.print(text, style=style, highlight=False, markup=False, soft_wrap=True)

    lost = ", ".join(told["nodes_lost"]) or "nothing"
    say(f"lost {lost}; {told['epochs']} epochs, {told['rows']:,} rows in, {told['seconds']:.0f} s in all")
    say(f"{told['tentative_rows']:,} tentative rows while recovering, {told['final_rows']:,} final rows")
    if told["nodes"] == "logical":
        say("(on logical nodes: no process was killed)")
    say(f"{QUESTION}: {'yes' if told['identical'] else 'NO'}", "bold green" if told["identical"] else "bold red")
    say(f"the page: {told['page']}")
