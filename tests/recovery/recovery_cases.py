"""Small failures to judge recovery algorithms by, and the slow, plain answers to compare them with."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

from holdfast.recovery.validation import upstream
from holdfast.topology import Operator, Query, Stream, Task, Topology

steady = settings(deadline=None, derandomize=True, max_examples=40)


@st.composite
def topologies(draw: st.DrawFn, most_operators: int = 4, most_tasks: int = 3) -> Topology:
    """Any shape: several sources and sinks, joins and unions, all partitionings, zero costs, rates and priorities."""
    count = draw(st.integers(1, most_operators))
    sizes = [draw(st.integers(1, most_tasks)) for _ in range(count)]
    streams = []
    for target in range(1, count):
        sources = draw(st.sets(st.integers(0, target - 1), min_size=1, max_size=2))
        for source in sorted(sources):
            n1, n2 = sizes[source], sizes[target]
            fitting = "one-to-one" if n1 == n2 else "merge" if n1 > n2 else "split"
            kind = draw(st.sampled_from([fitting, "full"]))
            streams.append(Stream(f"O{source}", f"O{target}", kind))
    fed = {stream.target for stream in streams}
    operators = [
        Operator(
            f"O{number}",
            size,
            rates=tuple(draw(st.sampled_from([0.0, 1.0, 2.0, 5.0])) for _ in range(size)),
            costs=tuple(draw(st.sampled_from([0.0, 0.1, 1.0, 2.0, 3.5])) for _ in range(size)),
            inputs=draw(st.sampled_from(["independent", "correlated"])) if f"O{number}" in fed else "independent",
        )
        for number, size in enumerate(sizes)
    ]
    named = draw(st.sets(st.sampled_from([operator.name for operator in operators]), max_size=3))
    queries = [Query(name, draw(st.sampled_from([0.0, 1.0, 3.0, 10.0]))) for name in sorted(named)]
    if sum(query.priority for query in queries) <= 0:
        queries = []
    return Topology(tuple(operators), tuple(streams), tuple(queries))


@st.composite
def failures(draw: st.DrawFn, **limits: int) -> tuple[Topology, frozenset[Task], float]:
    """A topology, some or all of its tasks failed, and a capacity from nothing to more than enough."""
    topology = draw(topologies(**limits))
    failed = frozenset(topology.tasks)
    if draw(st.booleans()):
        failed = frozenset(draw(st.sets(st.sampled_from(topology.tasks))))
    total = cost_of(topology, failed)
    return topology, failed, draw(st.floats(0.0, 1.2)) * total


def cost_of(topology: Topology, tasks: frozenset[Task]) -> float:
    return sum(topology.operator[task.operator].costs[task.number] for task in tasks)


def needs(topology: Topology, failed: frozenset[Task]) -> dict[Task, frozenset[Task]]:
    """The failed tasks of every broken query partition, by its output task."""
    outputs = [Task(q.sink, i) for q in topology.queries for i in range(topology.operator[q.sink].parallelism)]
    found = {output: upstream(topology, output) & failed for output in outputs}
    return {output: lacking for output, lacking in found.items() if lacking}


def priority_of(topology: Topology, failed: frozenset[Task], recovered: frozenset[Task]) -> float:
    worth = {query.sink: query.priority for query in topology.queries}
    return sum(worth[output.operator] for output, lacking in needs(topology, failed).items() if lacking <= recovered)


def brute_force(topology: Topology, failed: frozenset[Task], capacity: float) -> float:
    """The most priority that any set of query partitions within capacity recovers."""
    lacking = list(set(needs(topology, failed).values()))
    best = 0.0
    for count in range(1, len(lacking) + 1):
        for chosen in combinations(lacking, count):
            recovered = frozenset().union(*chosen)
            if cost_of(topology, recovered) <= capacity + 1e-9 * max(1.0, capacity):
                best = max(best, priority_of(topology, failed, recovered))
    return best


def most_shared(topology: Topology, failed: frozenset[Task]) -> int:
    lacking = set(needs(topology, failed).values())
    return max((sum(task in need for need in lacking) for task in failed), default=1) or 1


def guarantee(topology: Topology, failed: frozenset[Task]) -> float:
    return 1.0 - math.exp(-1.0 / most_shared(topology, failed))


def naive_best_density(topology: Topology, failed: frozenset[Task], capacity: float) -> float:
    """Algorithm 3 of paper 004 with sets, recomputing everything at every step; seeds are all singles and pairs."""
    worth: dict[frozenset[Task], float] = {}
    priority = {query.sink: query.priority for query in topology.queries}
    for output, lacking in needs(topology, failed).items():
        worth[lacking] = worth.get(lacking, 0.0) + priority[output.operator]
    goals = list(worth)
    shared = {task: sum(task in goal for goal in goals) for task in failed}
    limit = capacity + 1e-9 * max(1.0, capacity)

    def charge(goal: frozenset[Task], have: frozenset[Task]) -> float:
        return sum(topology.costs[topology.index[task]] / shared[task] for task in goal - have)

    best = 0.0
    for seed in [*combinations(goals, 1), *combinations(goals, 2)]:
        have = frozenset().union(*seed)
        if cost_of(topology, have) > limit:
            continue
        while True:
            open_goals = [goal for goal in goals if not goal <= have and cost_of(topology, have | goal) <= limit]
            if not open_goals:
                break
            density = [
                worth[goal] / charge(goal, have) if charge(goal, have) > 1e-12 else math.inf for goal in open_goals
            ]
            have |= open_goals[int(np.argmax(density))]
        best = max(best, sum(value for goal, value in worth.items() if goal <= have))
    return best
