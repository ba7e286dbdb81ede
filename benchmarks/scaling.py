"""What scaling a running job costs, and what recovery into two tasks gains over recovery into one.

    .venv/bin/python benchmarks/scaling.py                       # all four, 2 cores
    .venv/bin/python benchmarks/scaling.py --only recovery --repeat 1

``scaling``: a keyed count over ``--keys`` keys goes from 2 to 4 tasks and back. The longest time between two answers
around the change is set against that of the plain way: stop the job, start it again with another parallelism (its store
is migrated), within one program, so that Spark need not be started again. Without a change the longest time between two
answers is in the first row.

``recovery``: the one task of an operator is lost after ``--epochs`` epochs without a checkpoint, on ``local[2]`` with
logical nodes, so that its replay is all there is to do and two cores are there to do it. Seconds from the loss until
every answer is exact and caught up, with ``parallel_recovery`` 1 and 2. The replayed operator spends its time in Python
on its own rows, as a long replay does that parallel recovery is for.

``reading``: where the time of a change goes, without Spark: to cut a task's state of ``--keys`` keys out of a
checkpoint of 2 tasks for 4 (a slice, since the table is sorted by the hash that routes), against reading it whole, and
against the plain way: read all, hash every row, filter.

``cutting``: a task over keys whose load is Zipf is split in two, by equal intervals of the ring or by what it counted
of its keys in one epoch, without Spark: the share of the load that the fuller part gets, and what counting costs.

Learned: a part costs what reading its parents' files costs, since a chain of files is read whole; the cut itself is a
slice and costs nothing. Only where a table's key is more than the stream's key are rows hashed and filtered.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast import operators as op
from holdfast.elasticity import ScaleOut, rerouted, sample_of, tally
from holdfast.operators import Pipeline
from holdfast.runtime.history.history import read_history
from holdfast.runtime.history.narrative import recoveries
from holdfast.runtime.history.outputs import read_output
from holdfast.runtime.shape import Shape, grown, resized, routing_of
from holdfast.runtime.worker.repartition import assembled, restored
from holdfast.state import KeyRange, Routing, StateSchema, StateTable, Store, TaskState, hash_keys
from holdfast.topology import Task


def counting(keys: int, parallelism: int) -> Pipeline:
    def keyed(batch: pa.Table) -> pa.Table:
        spread = np.asarray(batch["value"]) * 2654435761 % keys
        return pa.table({"key": pa.array(spread, pa.int64())})

    count = op.aggregate({"key": pa.int64()}, count=op.count())
    return Pipeline(
        op.source("rows", keyed), op.step("counts", count, op.stream("rows", key="key"), parallelism=parallelism)
    )


def chained(keys: int) -> Pipeline:
    """One task that goes row by row in Python: what it did before decides what it says."""
    schema = StateSchema(pa.schema([("key", pa.int64())]), pa.schema([("chain", pa.int64())]))

    def follow(batch: pa.Table, state: op.State) -> pa.Table | None:
        if not batch.num_rows:
            return None
        before = state.lookup(batch.select(["key"]))["chain"].to_pylist()
        chains: dict[int, int] = {}
        for key, value, held in zip(batch["key"].to_pylist(), batch["value"].to_pylist(), before, strict=True):
            chains[key] = (31 * chains.get(key, held or 0) + value) % 1_000_003
        answer = pa.table({"key": pa.array(chains, pa.int64()), "chain": pa.array(chains.values(), pa.int64())})
        state.update(answer)
        return pa.table({"chains": [pc.sum(answer["chain"]).as_py()], "keys": [len(chains)]})

    def keyed(batch: pa.Table) -> pa.Table:
        return pa.table({"key": pc.bit_wise_and(batch["value"], keys - 1), "value": batch["value"]})

    return Pipeline(
        op.source("rows", keyed), op.step("chains", op.FunctionOperator(follow, schema), op.stream("rows", key="key"))
    )


def stream(spark: Any, rows: int) -> Any:
    read = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", rows).option("numPartitions", 2)
    return read.load().select("value")


def gaps(folder: Path, begin: float, end: float) -> float:
    """The longest time without an answer between these moments.

    A job that starts again may be given an epoch once more that was answered before: that is no answer.
    """
    first: dict[int, float] = {}
    for event in read_history(folder):
        if event["kind"] == "answered":
            first.setdefault(event["epoch"], event["time"])
    times = sorted(first.values())
    inside = [t for t in times if begin <= t <= end]
    around = [
        max([t for t in times if t < begin], default=begin),
        *inside,
        min([t for t in times if t > end], default=end),
    ]
    return max(later - earlier for earlier, later in pairwise(around))


def scaling(spark: Any, keys: int, rows: int, repeat: int) -> None:
    from holdfast.runtime.spark import start

    quiet, out, back, took, stopped = [], [], [], [], []
    for _ in range(repeat):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            job = start(stream(spark, rows), counting(keys, 2), store=folder, nodes=4, checkpoint_every=10)
            answered(job, 15)
            calm = time.time()
            answered(job, 30)
            quiet.append(gaps(folder, calm, time.time()))
            for to, found in ((4, out), (2, back)):
                began = time.time()
                job.scale("counts", to, timeout=120)
                took.append(time.time() - began)
                answered(job, job.status["epoch"] + 10)
                found.append(gaps(folder, began, time.time()))
            began = time.time()
            job.stop()
            again = start(stream(spark, rows), counting(keys, 4), store=folder, nodes=4, checkpoint_every=10)
            answered(again, again.status["epoch"] + 5)
            stopped.append(gaps(folder, began, time.time()))
            again.stop()
    print(f"\nscaling counts of {keys:,} keys, {rows:,} rows an epoch, 4 logical nodes; median of {repeat}")
    print(f"{'':44}{'longest gap between answers':>30}")
    for what, values in (
        ("no change", quiet),
        ("2 to 4 tasks while running", out),
        ("4 to 2 tasks while running", back),
        ("stop, start with another parallelism", stopped),
    ):
        print(f"{what:44}{statistics.median(values):28.2f} s")
    print(f"from request to switch: median {statistics.median(took):.2f} s, most {max(took):.2f} s")


def answered(job: Any, epoch: int) -> None:
    """Wait until an epoch is answered."""
    done = threading.Event()
    job.add_listener(lambda event: done.set() if event["kind"] == "answered" and event["epoch"] >= epoch else None)
    if job.status["epoch"] < epoch and not done.wait(300):
        raise SystemExit(f"epoch {epoch} was not answered in 300 s: {job.status}")


def recovery(spark: Any, epochs: int, rows: int, repeat: int) -> None:
    from holdfast.runtime.faults import parse_faults
    from holdfast.runtime.spark import start

    print(f"\nrecovery of an operator's one task, {epochs} epochs of {rows:,} rows to replay, local[2]; {repeat} runs")
    print(f"{'parallel_recovery':>18}{'median':>10}{'least':>10}{'most':>10}")
    reference: list[Any] = []
    for into in (1, 2):
        times = []
        for _ in range(repeat):
            with tempfile.TemporaryDirectory() as name:
                folder = Path(name)
                job = start(
                    stream(spark, rows), chained(1 << 14), store=folder, nodes=4, epochs=epochs + 2,
                    checkpoint_every=10_000, parallel_recovery=into, rejoin_after=3600.0,
                    faults=parse_faults([f"kill node-0 at epoch {epochs}"]),
                )  # fmt: skip
                job.awaitTermination(600)
                (told,) = recoveries(read_history(folder))
                assert told.exact_after is not None, "it did not recover"
                times.append(told.exact_after)
                table = read_output(folder, "final").group_by("epoch").aggregate([("chains", "sum"), ("keys", "sum")])
                reference.append(table.sort_by("epoch").to_pylist())
        print(f"{into:18}{statistics.median(times):8.2f} s{min(times):8.2f} s{max(times):8.2f} s")
    same = all(each == reference[0] for each in reference)
    print(f"answers of all runs equal, epoch by epoch: {'yes' if same else 'NO'}")


def reading(keys: int) -> None:
    pipeline = counting(keys, 2)
    step = pipeline.by_name["counts"].operator
    with tempfile.TemporaryDirectory() as name:
        store = Store(name)
        draw = np.random.default_rng(1)
        ((table, schema),) = step.tables.items()
        rows = pa.table(
            {each.name: pa.array(draw.permutation(keys), pa.int64()).cast(each.type) for each in schema.arrow}
        )
        routing = routing_of(pipeline.topology, Shape(), "counts")
        owners = routing.route(hash_keys(rows, ("key",)))
        with store.writer("benchmark") as writer:
            entries = {}
            for number in routing.owners:
                mine = StateTable.from_table(schema, rows.filter(pa.array(owners == number)), 9)
                state = TaskState(9, {table: mine})
                entries[f"counts/{number}"] = store.write_task(f"counts/{number}", 9, state, token=writer.token)
            writer.commit_checkpoint(9, entries)
        four = grown(pipeline.topology, Shape(), "counts", resized(routing, 4), 1, {})
        part = Task("counts", 3)

        def plainly() -> int:
            whole = pa.concat_tables(store.restore(str(Task("counts", n)), 9)[0][table].to_table() for n in (0, 1))
            mine = whole.filter(pa.array(four.routings["counts"].route(hash_keys(whole, ("key",))) == 3))
            return len(StateTable.from_table(schema, mine, 9))

        def cut() -> int:
            return len(restored(store, pipeline, four, part, 9)[table])

        assert plainly() == cut()
        whole = store.restore("counts/0", 9)[0]
        to_merge = [store.restore(f"counts/{n}", 9)[0] for n in routing.owners]
        print(f"\none of 4 tasks out of a checkpoint of 2, {keys:,} keys in all; median of 5")
        for what, action in (
            ("read a task whole", lambda: len(store.restore("counts/0", 9)[0].tables)),
            ("read, and cut by interval", cut),
            ("read all, hash and filter every row", plainly),
            ("cut alone", lambda: len(whole[table].slice(four.routings["counts"].owned(3)[0]))),
            (
                "merge 2 tasks into 1",
                lambda: len(assembled(pipeline, "counts", KeyRange.whole(), routing.ranges, to_merge).tables),
            ),
        ):
            print(f"{what:44}{measured(action) * 1000:12.1f} ms")


def cutting(rows: int) -> None:
    print(f"\na task over 100,000 keys of Zipf load is split in two; {rows:,} rows an epoch; 100 draws")
    print(
        f"{'skew':>6}{'hottest key':>14}{'fuller part, by keys':>24}{'by load':>12}{'most, by keys':>16}{'by load':>12}"
    )
    whole = Routing.even(1)
    out = [ScaleOut(Task("counts", 0), 2, "")]
    for skew in (0.0, 0.5, 0.8, 1.0, 1.2):
        found: dict[str, list[float]] = {"keys": [], "load": []}
        loads = 1.0 / np.arange(1, 100_001) ** skew
        loads /= loads.sum()
        for seed in range(100):
            draw = np.random.default_rng(seed)
            places = hash_keys(pa.table({"key": draw.integers(0, 2**60, len(loads))}), ("key",))
            came = draw.choice(places, rows, p=loads)
            sample = {0: sample_of(whole.ranges[0], tally(whole.ranges[0], came))}
            for what, after in (("keys", rerouted(whole, out)), ("load", rerouted(whole, out, sample))):
                found[what].append(max(float(loads[each.contains(places)].sum()) for each in after.ranges))
        by_keys, by_load = found["keys"], found["load"]
        print(
            f"{skew:6.1f}{loads[0]:13.1%} {np.mean(by_keys):23.1%} {np.mean(by_load):11.1%} {max(by_keys):15.1%} "
            f"{max(by_load):11.1%}"
        )
    table = pa.table({"key": np.random.default_rng(1).integers(0, 2**60, rows)})
    print(
        f"to count {rows:,} rows: {measured(lambda: tally(whole.ranges[0], hash_keys(table, ('key',)))) * 1000:.2f} ms"
    )


def measured(action: Callable[[], object]) -> float:
    times = []
    for _ in range(5):
        began = time.perf_counter()
        action()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description="What scaling costs and parallel recovery gains.")
    parser.add_argument("--only", choices=("scaling", "recovery", "reading", "cutting"))
    parser.add_argument("--keys", type=int, default=2_000_000)
    parser.add_argument("--rows", type=int, default=50_000, help="rows an epoch of scaling")
    parser.add_argument("--epochs", type=int, default=40, help="epochs to replay of recovery")
    parser.add_argument("--replayed-rows", type=int, default=60_000, help="rows an epoch of recovery")
    parser.add_argument("--repeat", type=int, default=3)
    given = parser.parse_args()
    if given.only in (None, "reading"):
        reading(given.keys)
    if given.only in (None, "cutting"):
        cutting(given.rows)
    if given.only in ("reading", "cutting"):
        return
    from holdfast.runtime.spark import spark_session

    session = spark_session("local[2]", name="scaling")
    try:
        if given.only in (None, "scaling"):
            scaling(session, given.keys, given.rows, given.repeat)
        if given.only in (None, "recovery"):
            recovery(session, given.epochs, given.replayed_rows, given.repeat)
    finally:
        session.stop()


if __name__ == "__main__":
    main()
