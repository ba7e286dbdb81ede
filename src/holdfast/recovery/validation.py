"""Is this schedule sound? Judged from the topology alone: nothing here knows how any algorithm works."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from holdfast.fidelity import output_fidelity
from holdfast.recovery.plan import Schedule
from holdfast.topology import Task, Topology


def validate_schedule(
    topology: Topology, failed: Iterable[Task], arrivals: Sequence[float], schedule: Schedule
) -> tuple[str, ...]:
    """What is wrong with this schedule, one line each; nothing when it is sound."""
    faults: list[str] = []
    remaining = set(failed)
    closure = {sink: upstream(topology, sink) for sink in _output_tasks(topology)}
    left = 0.0
    if len(schedule.steps) != len(arrivals):
        return (f"{len(schedule.steps)} steps for {len(arrivals)} arrivals",)
    for number, (step, arrived) in enumerate(zip(schedule.steps, arrivals, strict=True), 1):
        where = f"step {number}"
        cost = sum(topology.operator[task.operator].costs[task.number] for task in step.recover)
        for what, found, right in (("capacity", step.capacity, left + arrived), ("cost", step.cost, cost)):
            if not _same(found, right):
                faults.append(f"{where}: {what} is {found}, must be {right}")
        if cost > left + arrived and not _same(cost, left + arrived):
            faults.append(f"{where}: recovers for {cost} with {left + arrived}")
        if len(set(step.recover)) < len(step.recover):
            faults.append(f"{where}: recovers a task twice")
        if not remaining.issuperset(step.recover):
            faults.append(f"{where}: recovers what is not failed: {sorted(set(step.recover) - remaining)}")
        after = remaining.difference(step.recover)
        done = {task for task, needs in closure.items() if needs & remaining and not needs & after}
        if done != set(step.queries) or len(done) != len(step.queries):
            faults.append(f"{where}: completes {sorted(done)}, says {sorted(step.queries)}")
        worth = {query.sink: query.priority for query in topology.queries}
        if not _same(step.priority, sum(worth[task.operator] for task in done)):
            faults.append(f"{where}: priority is {step.priority}")
        if not _same(step.fidelity, output_fidelity(topology, list(after)).fidelity):
            faults.append(f"{where}: fidelity is {step.fidelity}")
        left, remaining = max(0.0, left + arrived - cost), after
    if set(schedule.still_failed) != remaining:
        faults.append(f"still failed are {sorted(remaining)}, says {sorted(schedule.still_failed)}")
    if not _same(schedule.priority, sum(step.priority for step in schedule.steps)):
        faults.append(f"priority {schedule.priority} is not the sum of the steps")
    mean = sum(step.fidelity for step in schedule.steps) / len(schedule.steps)
    if not _same(schedule.average_fidelity, mean):
        faults.append(f"average fidelity is {schedule.average_fidelity}, must be {mean}")
    return tuple(faults)


def upstream(topology: Topology, task: Task) -> frozenset[Task]:
    """This task and everything upstream of it, by walking the streams."""
    found = {task}
    waiting = [task]
    while waiting:
        below = waiting.pop()
        for stream in topology.inputs_of(below.operator):
            above = {Task(stream.source, sender) for sender in topology.senders(stream, below.number)}
            waiting += above - found
            found |= above
    return frozenset(found)


def _output_tasks(topology: Topology) -> list[Task]:
    return [
        Task(query.sink, number)
        for query in topology.queries
        for number in range(topology.operator[query.sink].parallelism)
    ]


def _same(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-9)
