"""Every workload, every pair of nodes: the first answer after a failure, on executors. See failover.py --matrix."""

from __future__ import annotations

import json
import os
import random
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import combinations, pairwise, product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lateness import answers_of, outcome, parts, schedule, whole_of
from matrix_table import accuracy, line, parts_table, same, table
from standalone import ARCHIVE, NODES, kill, standalone

BASE = 14
"""Epochs that are there before a run begins, made once for each workload and input."""
KILL_AT = 20
"""Windows of a minute that end every ten seconds close in this epoch, running counts have a past, and the newest
checkpoint, which comes every three to four epochs at this age, is that of epoch 16."""
KNOWN = 40
"""Up to this epoch it is known what every query says undisturbed."""
TRIGGER = 0.5
"""Seconds, unless ``--trigger`` says otherwise."""
LOOKED_BACK = 4
"""So many answers before the kill make the schedule: of the six that there are, the first wait for new executors."""
DEADLINE = 120.0
BRISK = f"{ARCHIVE} -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Half of the executors of each run are new. With one compiler instead of two they are warm after a few epochs."""
KEYS = {
    "word-count": ("key",),
    "hashtags": ("key",),
    "word-frequency": ("word", "start"),
    "top-k": ("page", "start"),
    "traffic-incidents": ("segment", "incident", "start"),
    "bargain-discovery": ("key", "symbol"),
    "linear-road": ("kind", "time", "vid", "segment", "query"),
}
"""By which columns a row of the tentative answer is compared with one of the exact answer."""


@dataclass(frozen=True)
class Case:
    """One run of the matrix."""

    workload: str
    pair: tuple[int, int]
    replicas: str
    seed: int
    rate: int
    interval: float | None = TRIGGER

    @property
    def key(self) -> tuple[Any, ...]:
        return self.seed, self.workload, self.replicas, tuple(self.pair), self.interval

    @property
    def moment(self) -> float:
        """Of the kill, from 0 to 1: that part of an epoch after an answer."""
        return random.Random(repr(self.key)).random()


@dataclass(frozen=True)
class Outcome:
    """Seconds after the kill; ``fidelity`` as it was stamped, ``accuracy`` against the exact answer that followed.

    ``least``: the smallest fidelity of any epoch until all was exact; ``age``: epochs since the checkpoint when nodes
    were killed; ``copies``: replicas that were at the head then; ``same``: final rows are those of an undisturbed run.
    ``late``, ``worst``, ``exact_by``, ``parts``: see lateness.py.
    """

    answer: float | None = None
    fidelity: float | None = None
    least: float | None = None
    accuracy: float | None = None
    exact: float | None = None
    promised: float | None = None
    noticed: float | None = None
    age: int | None = None
    copies: int | None = None
    same: bool | None = None
    late: float | None = None
    worst: float | None = None
    exact_by: int | None = None
    parts: dict[str, float] | None = None
    lost: list[str] = field(default_factory=list)
    """Who, in the words of the history: more than two, where somebody else was given up."""


def judged(
    name: str,
    killed: float,
    events: Iterable[dict[str, Any]],
    tables: dict[str, pa.Table],
    interval: float | None = TRIGGER,
) -> Outcome:
    """What the history and the outputs of a run say of its failure."""
    events = list(events)
    place = next((number for number, event in enumerate(events) if event["kind"] == "nodes lost"), None)
    if place is None:
        return Outcome()
    earlier, later = events[:place], events[place:]
    # What was answered before the loss was noticed may be placed behind it: nothing was promised of that.
    new = [e for e in later if e["kind"] == "published" and max(e["epochs"]) >= events[place]["epoch"]]
    said = next((e for e in new if e["rows"] > 0 and e["fidelity"] > 0), None)
    epochs = [e for e in later if e["kind"] == "epoch"]
    exact = next((e for e in epochs if not e["absent"] and not e["tentative"]), None)
    until = epochs.index(exact) + 1 if exact is not None else len(epochs)
    saved = [e["epoch"] for e in earlier if e["kind"] == "checkpoint"]
    # Who dies together may be noticed apart: what was said last before the answer is of all of them.
    losses = [e for e in later if e["kind"] == "nodes lost"]
    before = [e for e in losses if said is None or (e["time"] <= said["time"] and e["epoch"] <= max(said["epochs"]))]
    answers = answers_of(events)
    known = sum(at <= killed for at in answers.values()) >= LOOKED_BACK
    kept = schedule(answers, killed, interval, LOOKED_BACK) if known else None
    after = None if kept is None else outcome(killed, answers, whole_of(events), kept)
    return Outcome(
        None if said is None else said["time"] - killed,
        None if said is None else said["fidelity"],
        min((e["fidelity"] for e in epochs[:until]), default=None),
        None if said is None else _right(name, said, later, tables),
        None if exact is None else exact["time"] - killed,
        before[-1].get("promised"),
        events[place]["time"] - killed,
        None if not saved else events[place]["epoch"] - 1 - saved[-1],
        next((e["replicas"] for e in reversed(earlier) if e["kind"] == "epoch"), None),
        late=None if after is None else after.late,
        worst=None if after is None else after.worst,
        exact_by=None if after is None else after.exact_by,
        parts=parts(killed, events, None if exact is None else exact["epoch"]),
        lost=[f"{', '.join(e['nodes'])}: {e['cause']}" for e in losses],
    )


def _right(name: str, said: dict[str, Any], later: list[dict[str, Any]], tables: dict[str, pa.Table]) -> float:
    """The accuracy of the first answer, the exact part of it included."""
    epoch = max(said["epochs"])
    answers = {kind: table.filter(pc.equal(table["epoch"], epoch)) for kind, table in tables.items()}
    published = [e for e in later if e["kind"] == "published" and e["run"] == said["run"] and e["of"] == "final"]
    exactly = pa.array([task for event in published for task in event["tasks"]], pa.string())
    told, final = answers["tentative"], answers["final"]
    told = told.drop_columns([c for c in ("fidelity",) if c in told.column_names])
    first = pa.concat_tables([told, final.filter(pc.is_in(final["task"], exactly))], promote_options="permissive")
    return accuracy(first, final, KEYS[name])


class Matrix:
    """Runs in one session, one after the other. ``replaced``: the cluster starts new executors by itself, at once."""

    def __init__(self, spark: Any, rate: int, replaced: bool, folder: Path) -> None:
        self._spark, self._rate, self._replaced, self._folder = spark, rate, replaced, folder
        self._base: tuple[str, int] | None = None
        self._exact: pa.Table | None = None
        self._want(NODES)

    def run(self, case: Case, keep: Path | None = None) -> Outcome:
        """Two nodes are killed when an epoch was answered; how it went on until it was exact again."""
        from holdfast.runtime.history.history import read_history
        from holdfast.runtime.history.outputs import read_output

        self._prepare(case.workload, case.seed)
        store = self._folder / "store"
        shutil.copytree(self._folder / "base", store, symlinks=True)
        try:
            killed = self._failing(case, store, None if case.replicas == "none" else quarter(case.workload))
            events = [event for event in read_history(store) if event["time"] > self._began]
            tables = {kind: read_output(store, kind) for kind in ("tentative", "final")}
        finally:
            if keep is not None:
                shutil.copytree(
                    store, keep / "-".join(map(str, (*case.key[:3], case.interval, *case.pair))), symlinks=True
                )
            shutil.rmtree(store, ignore_errors=True)
        found = judged(case.workload, killed, events, tables, case.interval)
        assert self._exact is not None
        return Outcome(**{**asdict(found), "same": same(tables["final"], self._exact, KNOWN)})

    def _failing(self, case: Case, store: Path, budget: float | None) -> float:
        whole, reached, lost = threading.Event(), threading.Event(), threading.Event()

        answered: list[float] = []

        def listen(event: dict[str, Any]) -> None:
            if event["kind"] == "answered":
                answered.append(event["time"])
                if event["epoch"] >= KILL_AT - 1:
                    reached.set()
            elif event["kind"] == "nodes lost":
                lost.set()
            elif event["kind"] == "epoch" and lost.is_set() and not event["absent"] and not event["tentative"]:
                whole.set()

        self._began = time.time()
        trigger = None if case.interval is None else f"{case.interval * 1000:.0f} milliseconds"
        job = self._start(case.workload, case.seed, store, budget=budget, trigger=trigger, listeners=[listen])
        reached.wait(DEADLINE)
        victims = [job.driver.nodes[f"node-{number}"].incarnation for number in case.pair]
        self._want(NODES - len(victims))
        pace = statistics.median(later - earlier for earlier, later in pairwise(answered[-LOOKED_BACK:]))
        time.sleep(max(0.0, answered[-1] + case.moment * pace - time.time()))
        killed = kill(self._spark.sparkContext.applicationId, victims, False)
        whole.wait(DEADLINE)
        self._want(NODES)  # they start while the job ends and is judged
        job.stop()
        return killed

    def _start(self, name: str, seed: int, store: Path, **options: Any) -> Any:
        from holdfast.runtime.spark import start
        from holdfast.workloads import Options, workload

        chosen = workload(name)
        rows = Options(rate=self._rate, seed=seed, epochs=1000)
        return start(chosen.stream(self._spark, rows), chosen.pipeline(), store=store, nodes=NODES, **options)

    def _want(self, count: int) -> None:
        """So many executors are wanted: who dies is not replaced before more are."""
        if not self._replaced:
            context: Any = self._spark.sparkContext
            none = getattr(context._jvm.scala.collection.immutable, "Map$").__getattr__("MODULE$").empty()
            context._jsc.sc().requestTotalExecutors(count, 0, none)

    def _prepare(self, name: str, seed: int) -> None:
        """A store with the first epochs, and what every query says when nothing fails: without Spark."""
        from holdfast.runtime.simulation.operators import cut_batches, undisturbed
        from holdfast.workloads import Options, workload

        if self._base == (name, seed):
            return
        base, chosen = self._folder / "base", workload(name)
        shutil.rmtree(base, ignore_errors=True)
        self._base = None
        self._start(name, seed, base, epochs=BASE).awaitTermination(DEADLINE)
        rows, pipeline = Options(rate=self._rate, seed=seed, epochs=KNOWN), chosen.pipeline()
        (source,) = pipeline.sources
        batches = cut_batches([{source.name: chosen.batch(rows, epoch)} for epoch in range(KNOWN)], rows.partitions)
        queries = frozenset(query.sink for query in pipeline.topology.queries)
        said = undisturbed(pipeline, batches, queries)
        parts = [each.append_column("epoch", pa.array([epoch] * each.num_rows, pa.int64()))
                 for (epoch, _), each in said.items()]  # fmt: skip
        self._exact, self._base = pa.concat_tables(parts), (name, seed)


def run(cases: Sequence[Case], where: str, lines: Path | None = None, keep: Path | None = None) -> None:
    """All of it in one session; a line a run, then a table with medians and worst cases.

    ``standalone``: others come when the run is over, as on other machines; ``local-cluster``: Spark starts new
    executors at once, which take CPU from the survivors. ``lines``: a JSON line for each run as it ends; those that it
    has are not run again. ``keep``: stores stay there.
    """
    found = recorded(lines, cases)
    left = [case for case in cases if case.key not in found]
    scratch = tempfile.TemporaryDirectory(prefix="holdfast-matrix-", ignore_cleanup_errors=True)
    with scratch as name:
        folder = Path(name)
        try:
            if not left:
                pass
            elif where == "standalone":
                with standalone(folder) as cluster:
                    _run(left, cluster.url, folder, found, lines, keep)
            else:
                _run(left, f"local-cluster[{NODES},1,1024]", folder, found, lines, keep)
        finally:
            # Of what there is, if it was broken off.
            print(table(found.values()), parts_table(found.values()), sep="\n", flush=True)


def _run(
    left: Sequence[Case],
    master: str,
    folder: Path,
    found: dict[Any, dict[str, Any]],
    lines: Path | None,
    keep: Path | None,
) -> None:
    from holdfast.runtime.spark import spark_session

    settings = {"spark.sql.session.timeZone": "UTC"}
    if master.startswith("spark://"):
        settings |= {"spark.executor.memory": "1g", "spark.executor.extraJavaOptions": BRISK}
    spark = spark_session(master, settings=settings)
    matrix = Matrix(spark, left[0].rate, not master.startswith("spark://"), folder)
    began = time.monotonic()
    for number, case in enumerate(left, 1):
        one = {**asdict(case), **asdict(matrix.run(case, keep)), "at": time.strftime("%F %T")}
        found[case.key] = one
        if lines is not None:
            with lines.open("a", encoding="utf-8") as file:
                file.write(json.dumps(one) + "\n")
        rest = (time.monotonic() - began) / number * (len(left) - number)
        print(f"{line(one)}; {number} of {len(left)}, {rest / 60:.0f} min left", flush=True)
    spark.stop()


def recorded(lines: Path | None, cases: Sequence[Case]) -> dict[Any, dict[str, Any]]:
    """Runs of earlier times; a last line that broke off does not count."""
    wanted = {case.key: case for case in cases}
    found: dict[Any, dict[str, Any]] = {}
    if lines is None or not lines.exists():
        return found
    whole, _, broken = lines.read_text(encoding="utf-8").rpartition("\n")
    for text in whole.splitlines():
        body = json.loads(text)
        case = Case(**{name: body[name] for name in ("workload", "pair", "replicas", "seed", "rate", "interval")})
        if case.key in wanted and case.rate != wanted[case.key].rate:
            raise SystemExit(f"--json {lines}: has runs with --rate {case.rate}, asked for is {wanted[case.key].rate}")
        found[case.key] = body
    if not '{"workload": '.startswith(broken[:13]):
        raise ValueError(f"{lines} is none of ours")
    if broken:
        os.truncate(lines, len(whole.encode()) + 1 if whole else 0)
    return found


def all_cases(
    names: Sequence[str],
    pairs: Sequence[tuple[int, int]],
    seeds: int,
    rate: int,
    replicas: Sequence[str],
    intervals: Sequence[float | None] = (TRIGGER,),
) -> list[Case]:
    """An input at a time, so that what is broken off has some of everything.

    A budget that buys no task at all is left out: it would be the same run again.
    """
    return [
        Case(name, pair, copies, seed, rate, interval)
        for seed, interval, name, copies, pair in product(range(seeds), intervals, names, replicas, pairs)
        if copies == "none" or quarter(name) >= 1
    ]


def quarter(name: str) -> float:
    """Of the tasks of a workload, in average tasks."""
    from holdfast.workloads import workload

    topology = workload(name).pipeline().coordinated
    return 0.25 * sum(1 for task in topology.tasks if topology.inputs_of(task.operator))


def all_pairs() -> list[tuple[int, int]]:
    return list(combinations(range(NODES), 2))
