"""Recovery with nodes that arrive over minutes, in simulation: incremental against blocking and operator-centric.

The setting is that of paper 004, section 7.2 (figures 7, 9 and 12): a source and a parser, fifteen aggregates of one
task each, every one a query's output; the parser on a node of its own, the aggregates on eight others, which all die
at once; eight new ones arrive two to six minutes later. A query counts as available when it is exact and no more than
two epochs behind the source. Reported: when the first and the last query is available again (600 s: not within the ten
minutes looked at), and, averaged over these ten minutes, the share of query priority available and the fidelity of what
is answered.

Second table: how long 1,000 nodes and 10,000 tasks take to simulate, half of the nodes lost and back again.

Learned from profiling: with 10,000 tasks two thirds of the time went into asking, after every report, which tasks are
down; that question is answered by a count now. What is left is some fifteen microseconds for each work of a run, and a
quarter goes, at the start and when nodes go or come, into placing thousands of tasks on nodes with equal room.

    python benchmarks/incremental_recovery.py [--plot recovery.html] [--quick]
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from holdfast.report.chart import Chart, Series, check_plot_path, write_charts
from holdfast.runtime.faults import Fault, When
from holdfast.runtime.messages import Event, Instruction, Publish
from holdfast.runtime.settings import Settings
from holdfast.runtime.simulation.costed import costed
from holdfast.runtime.simulation.schedule import FaultSchedule, Timing
from holdfast.topology import Operator, Query, Stream, Topology

FAILURE = 60.0
AFTER = 600.0
EPOCH = 2.0
LATE = 2
"""A query is available while its exact output is at most this many epochs behind the source."""
UNIT = 0.05
"""Seconds that a task of cost 1 takes for an epoch. It decides how fast those behind can catch up: see ``--unit``."""
SETTLED = 10.0
"""Seconds after the failure in which answers from before it may still count as recent."""


@dataclass(frozen=True, slots=True)
class Way:
    """A way to recover: its settings, and whether the new nodes stand by already."""

    name: str
    settings: Settings
    standby: bool = False


def paper_topology() -> Topology:
    """Figure 9: Source -> Parser -> O1..O4, window aggregates; O5..O15 each keep those they subscribe to."""
    names = [f"O{number}" for number in range(1, 16)]
    priorities = Random(9).sample(range(1, 16), 15)
    operators = [Operator("Source", costs=(0.0,)), Operator("Parser", costs=(2.0,))]
    operators += [Operator(name, stateful=True, costs=(1.0,)) for name in names]
    streams = [Stream("Source", "Parser", "full"), *(Stream("Parser", name, "full") for name in names[:4])]
    for number, name in enumerate(names[4:]):
        subscribed = {names[number % 4], names[(number + 1 + number // 4) % 4]}
        streams += [Stream(source, name, "full") for source in sorted(subscribed)]
    queries = [Query(name, float(priority)) for name, priority in zip(names, priorities, strict=True)]
    return Topology(tuple(operators), tuple(streams), tuple(queries))


def arrivals(seed: int) -> list[float]:
    """Seconds after the failure at which the eight new nodes are ready: two to six minutes (figure 7)."""
    draw = Random(seed)
    return sorted(round(draw.uniform(120, 360), 1) for _ in range(8))


def schedule(way: Way, seed: int, epochs: int, unit: float = UNIT) -> FaultSchedule:
    """The parser fills one node; the eight with the aggregates, two to a node, die and are replaced one by one."""
    topology = paper_topology()
    dying = tuple(f"node-{number}" for number in range(1, 9))
    came = [1.0] * 8 if way.standby else arrivals(seed)
    faults = [Fault("kill", When(seconds=FAILURE), dying)]
    faults += [Fault("join", When(seconds=FAILURE + at), (name,)) for name, at in zip(dying, came, strict=True)]
    timing = Timing(interval=EPOCH, run=0.1, level=0.02, unit=unit, restore=2.0, checkpoint=1.0, patience=1e5)
    return FaultSchedule(topology, way.settings, 9, epochs, tuple(faults), timing, seed=seed)


@dataclass(slots=True)
class Outcome:
    """``available`` and ``fidelity``: over seconds since the failure."""

    moments: list[float]
    available: list[float]
    fidelity: list[float]
    first: float
    last: float
    latency: float
    replays: int

    @property
    def average_available(self) -> float:
        return sum(self.available) / len(self.available)

    @property
    def average_fidelity(self) -> float:
        return sum(self.fidelity) / len(self.fidelity)


def measure(wanted: FaultSchedule) -> Outcome:
    """Run it, and read from its history what was available when."""
    simulation = costed(wanted)
    final: dict[str, list[tuple[float, int]]] = {}

    def watch(_: Event, answer: list[Instruction]) -> None:
        for said in answer:
            for epoch, task in said.outputs if isinstance(said, Publish) and said.kind == "final" else ():
                final.setdefault(task.operator, []).append((simulation.world.now, epoch))

    simulation.watchers.append(watch)
    simulation.run()
    answers = [
        (event["time"], event["epoch"], event["fidelity"]) for event in simulation.history if event["kind"] == "epoch"
    ]
    priority = {query.sink: query.priority for query in wanted.topology.queries}
    total = sum(priority.values())
    moments = [float(second) for second in range(0, int(AFTER))]
    available: list[float] = []
    fidelity: list[float] = []
    back: dict[str, float] = {}
    for moment in moments:
        now = FAILURE + moment
        source = int(now / EPOCH)
        fresh = {
            query
            for query, said in final.items()
            if max((epoch for at, epoch in said if at <= now), default=-1) >= source - 1 - LATE
        }
        for query in fresh if moment > SETTLED else ():
            back.setdefault(query, moment)
        available.append(sum(priority[query] for query in fresh) / total)
        recent = [value for at, epoch, value in answers if at <= now and epoch >= source - 1 - LATE]
        fidelity.append(recent[-1] if recent else 0.0)
    waits = [answered - arrived for arrived, answered in simulation.times.values() if arrived >= FAILURE]
    first = min(back.values(), default=AFTER)
    last = max(back.values()) if len(back) == len(priority) else AFTER
    replays = sum(event["kind"] == "replay" for event in simulation.history)
    return Outcome(moments, available, fidelity, first, last, sum(waits) / len(waits), replays)


def ways() -> list[Way]:
    plain = Settings(nodes=9, checkpoint_every=5, capacity=2.0, replay_chunk=8)
    return [
        Way("best case (standby)", replace(plain, scheduler="best-density"), standby=True),
        Way("incremental, best-density", replace(plain, scheduler="best-density")),
        Way("incremental, fidelity", replace(plain, scheduler="incremental")),
        Way("incremental, source replay", replace(plain, scheduler="best-density", recovery="source-replay")),
        Way("operator-centric", replace(plain, scheduler="operator-centric")),
        Way("blocking", replace(plain, scheduler="best-density", recovery="blocking")),
    ]


def compare(seeds: range, epochs: int, unit: float) -> list[tuple[str, list[Outcome]]]:
    print(f"15 queries, all 8 nodes of their tasks lost, new ones after 2 to 6 minutes; mean of {len(seeds)} draws")
    head = (
        f"{'':28} {'first back s':>12} {'all back s':>11} {'priority':>9} {'fidelity':>9} {'wait s':>8} {'replays':>8}"
    )
    print(head)
    found = []
    for way in ways():
        outcomes = [measure(schedule(way, seed, epochs, unit)) for seed in seeds]
        found.append((way.name, outcomes))

        def mean(name: str, outcomes: list[Outcome] = outcomes) -> float:
            return sum(getattr(outcome, name) for outcome in outcomes) / len(outcomes)

        print(
            f"{way.name:28} {mean('first'):12.0f} {mean('last'):11.0f} {mean('average_available'):9.3f} "
            f"{mean('average_fidelity'):9.3f} {mean('latency'):8.1f} {mean('replays'):8.1f}"
        )
    return found


def plot(found: list[tuple[str, list[Outcome]]], path: Path) -> None:
    marks = [(at, "node") for at in arrivals(0)]
    charts = []
    for what, title in (("available", "query priority available"), ("fidelity", "fidelity of the answer")):
        series = [Series(name, runs[0].moments[::5], getattr(runs[0], what)[::5]) for name, runs in found]
        charts.append(
            Chart(f"All nodes of 15 queries lost: {title}", "seconds after the failure", title, series, marks)
        )
    write_charts(charts, path)
    print(f"chart: {path}")


def large_topology(width: int) -> Topology:
    """Eleven tasks for each unit of width, in five levels."""
    names = [("S", 1), ("A", 4), ("B", 4), ("C", 1), ("D", 1)]
    operators = tuple(
        Operator(name, times * width, costs=(0.0 if name == "S" else 1.0,) * (times * width), stateful=name != "S")
        for name, times in names
    )
    streams = (
        Stream("S", "A", "split"),
        Stream("A", "B", "one-to-one"),
        Stream("B", "C", "merge"),
        Stream("C", "D", "one-to-one"),
    )
    return Topology(operators, streams)


def scale(epochs: int) -> None:
    print(f"\nhalf of the nodes lost at epoch {epochs // 3} and back 5 s later; {epochs} epochs of 1 s")
    print(f"{'nodes':>6} {'tasks':>7} {'CPU s':>8} {'CPU ms an epoch':>16} {'virtual s':>10}")
    for nodes, width in ((10, 10), (100, 100), (1000, 910)):
        topology = large_topology(width)
        dying = tuple(f"node-{number}" for number in range(nodes // 2))
        faults = (
            Fault("kill", When(epoch=epochs // 3), dying),
            Fault("join", When(seconds=5.0, after=True), dying),
        )
        settings = Settings(nodes=nodes, checkpoint_every=10, scheduler="best-density")
        began = time.process_time()
        simulation = costed(FaultSchedule(topology, settings, nodes, epochs, faults)).run()
        spent = time.process_time() - began
        print(
            f"{nodes:6} {len(topology.tasks):7} {spent:8.2f} {1000 * spent / epochs:16.1f} {simulation.world.now:10.1f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--plot", type=Path, help="write the curves of the first draw here: .html, .png or .svg")
    parser.add_argument("--quick", action="store_true", help="one draw and a short large run")
    parser.add_argument("--unit", type=float, default=UNIT, help="seconds that a task of cost 1 takes for an epoch")
    given = parser.parse_args()
    if given.plot is not None:
        check_plot_path(given.plot)
    found = compare(range(1 if given.quick else 5), epochs=int((FAILURE + AFTER) / EPOCH), unit=given.unit)
    if given.plot is not None:
        plot(found, given.plot)
    scale(15 if given.quick else 60)


if __name__ == "__main__":
    main()
