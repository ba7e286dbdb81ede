"""What answers from a checkpoint are worth, and what a budget makes of the promise: reckoned without Spark.

    .venv/bin/python benchmarks/forks.py [--workload linear-road] [--age 3] [--rate 5000] [--seed 0]

For each workload: the accuracy of its answer in epoch 20 if all its tasks have missed the last ``age`` epochs, against
the exact one (as failover.py --matrix has it); and what is promised before that epoch if any two of four nodes are
lost, without replicas and with a budget of a quarter of the tasks: the least, and the mean over all pairs.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import pyarrow as pa

from holdfast.operators import Pipeline
from holdfast.runtime.coordinator.promising import Outlook, outlook
from holdfast.runtime.settings import Settings
from holdfast.runtime.simulation.cluster import SimulatedBatch
from holdfast.runtime.simulation.operators import cut_batches
from holdfast.runtime.simulation.schedule import FaultSchedule, Timing
from holdfast.runtime.simulation.simulation import Simulation
from holdfast.runtime.worker.blocks import Block, once
from holdfast.runtime.worker.plan import source_task
from holdfast.runtime.worker.processing import outgoing, process, process_source
from holdfast.state import TaskState
from holdfast.topology import Task
from holdfast.workloads import WORKLOADS, Options, workload
from matrix import KEYS, KILL_AT
from matrix_table import accuracy
from standalone import NODES

States = Mapping[Task, TaskState]


def epoch_of(
    pipeline: Pipeline, states: States, epoch: int, batch: SimulatedBatch, behind: Collection[Task] = ()
) -> tuple[States, pa.Table]:
    """The next states, and what queries say; ``behind``: tasks that answer tentatively."""
    topology, waiting, following, said = pipeline.topology, dict[Task, list[Block]](), dict[Task, TaskState](), []
    for piece, shares in enumerate(batch.pieces):
        for name, rows in shares.items():
            task = source_task(topology, name, piece, len(batch.pieces))
            for block in outgoing(pipeline, task, process_source(pipeline, task, rows, epoch), epoch, {}, piece):
                waiting.setdefault(block.receiver, []).append(block)
    queries = {query.sink for query in topology.queries}
    for task, state in states.items():
        made = process(pipeline, task, state, once(waiting.get(task, ())), epoch, tentative=task in behind)
        following[task] = made.state
        for block in outgoing(pipeline, task, made, epoch, {}):
            waiting.setdefault(block.receiver, []).append(block)
        if task.operator in queries and made.output is not None and made.output.num_rows:
            said.append(made.output)
    return following, pa.concat_tables(said) if said else pa.table({})


def missed(name: str, pipeline: Pipeline, batches: Sequence[SimulatedBatch], age: int) -> tuple[float, int, int]:
    """The accuracy of an answer of which all tasks have missed so many epochs; its rows, and those of the exact one."""
    topology = pipeline.topology
    states: States = {t: pipeline.empty_state(t.operator) for t in topology.tasks if topology.inputs_of(t.operator)}
    versions, exact = [states], pa.table({})
    for epoch, batch in enumerate(batches):
        states, exact = epoch_of(pipeline, states, epoch, batch)
        versions.append(states)
    told = epoch_of(pipeline, versions[-2 - age], len(batches) - 1, batches[-1], states.keys())[1]
    return accuracy(told, exact, KEYS[name]), told.num_rows, exact.num_rows


def promises(pipeline: Pipeline, batches: list[SimulatedBatch]) -> tuple[list[float], list[float]]:
    """What the next answer will be worth whichever two nodes are lost, without and with a quarter for replicas."""
    nodes = Settings(nodes=NODES, young=True)
    schedule = FaultSchedule(pipeline.coordinated, nodes, NODES, len(batches), timing=Timing(unit=0.0))
    simulation, found = Simulation(schedule, pipeline, batches), list[tuple[Outlook, Outlook]]()

    def watch(*_: Any) -> None:
        assert simulation.driver is not None
        coordinator = simulation.driver.coordinator
        parts, topology = coordinator.parts, coordinator.topology
        if parts.answering.head == len(batches) - 2 and not found and (stands := outlook(parts)) is not None:
            quarter = 0.25 * sum(1 for task in topology.tasks if topology.inputs_of(task.operator))
            plan = coordinator.replicas_within(quarter)
            assert plan is not None
            second = plan().nodes
            homes = {t: (*held, second[t]) if t in second else held for t, held in stands.homes.items()}
            found.append((stands, replace(stands, homes=homes)))

    simulation.watchers.append(watch)
    simulation.run()
    pairs = list(combinations([f"node-{number}" for number in range(NODES)], 2))
    without, with_ = ([each.foretold(pair) for pair in pairs] for each in found[0])
    return [value or 0.0 for value in without], [value or 0.0 for value in with_]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--workload", action="append", choices=list(WORKLOADS))
    parser.add_argument("--age", type=int, default=3, help="epochs that were missed")
    parser.add_argument("--rate", type=int, default=5000, help="rows an epoch")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    if not 0 <= asked.age < KILL_AT:
        parser.error(f"--age must be 0 to {KILL_AT - 1}, got {asked.age}")
    if asked.rate < 1:
        parser.error(f"--rate must be at least 1, got {asked.rate}")
    print(f"{'workload':<20}{'accuracy':>9}{'rows':>7}{'exact':>7}   promised for two of four: least, mean; with 25 %")
    for name in asked.workload or WORKLOADS:
        chosen, rows = workload(name), Options(rate=asked.rate, seed=asked.seed, epochs=KILL_AT + 1)
        pipeline = chosen.pipeline()
        (source,) = pipeline.sources
        tables = [{source.name: chosen.batch(rows, epoch)} for epoch in range(KILL_AT + 1)]
        batches = cut_batches(tables, rows.partitions)
        right, told, exact = missed(name, pipeline, batches, asked.age)
        without, with_ = promises(pipeline, batches)
        shown = "; ".join(f"{min(each):.3f}, {sum(each) / len(each):.3f}" for each in (without, with_))
        print(f"{name:<20}{right:>9.3f}{told:>7}{exact:>7}   {shown}", flush=True)


if __name__ == "__main__":
    main()
