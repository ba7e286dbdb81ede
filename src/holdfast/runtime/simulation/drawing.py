"""Fault schedules drawn from a seed: topologies, settings, timings, fault scripts and mishaps, for the fuzzer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from holdfast.runtime.faults import Fault, When
from holdfast.runtime.settings import RECOVERIES, Settings
from holdfast.runtime.simulation.schedule import FaultSchedule, Mishap, MishapKind, Timing
from holdfast.topology import Inputs, Operator, Partitioning, Query, Stream, Task, Topology

SCHEDULERS = ("incremental", "incremental", "best-density", "operator-centric", "topological", "dynamic")


def drawn_schedule(seed: int, topology: Topology | None = None, epochs: int | None = None) -> FaultSchedule:
    """The schedule of this seed; always the same one. Given a topology, only the rest is drawn."""
    draw = Random(seed)
    topology = topology or drawn_topology(draw)
    nodes = draw.randint(1, 6)
    names = [f"node-{number}" for number in range(nodes)]
    epochs = epochs or draw.choice((draw.randint(2, 8), draw.randint(8, 24)))
    timing = _timing(draw)
    racks = draw.choice((0, 0, 2, 3))
    domains = {name: f"rack-{number % racks}" for number, name in enumerate(names)} if racks else {}
    span = max(epochs * timing.interval, epochs * 0.3)
    faults = [_fault(draw, names, epochs, span, domains) for _ in range(draw.choice((0, 1, 1, 2, 3, 4, 6, 8)))]
    # Whoever was killed is back in the end, so that the job can come to its end.
    back = draw.choice((None, None, 0.02, round(draw.uniform(0.2, 5), 3)))
    if back is None and any(fault.when.epoch is not None for fault in faults):
        back = 3.0
    spoilt = Random(f"{seed} spoilt")
    if spoilt.random() < 0.15:
        faults += _spoilt_restart(spoilt, names, epochs)
        back = back or 0.5
    faults.append(Fault("join", When(seconds=round(span + draw.uniform(1, 20), 3)), tuple(names)))
    return FaultSchedule(
        topology,
        replace(_settings(draw, topology, nodes), restore_within=Random(f"{seed} dear").choice((5.0, 5.0, 0.01))),
        nodes,
        epochs,
        tuple(faults),
        timing,
        domains,
        replace=back,
        replans=_replans(draw, topology, span) if draw.random() < 0.2 else (),
        seed=seed,
        longest=5000.0,
        mishaps=_mishaps(Random(f"{seed} mishaps"), span) + _stops(Random(f"{seed} still stopped"), span),
        late_listing=draw.choice((0.0, 0.0, 0.0, 0.04)),
        answer_within=Random(f"{seed} late").choice((None, float("inf"), 0.05, 0.3, 1.0)),
        cores=Random(f"{seed} cores").choice((1, 1, 1, 2, 3)),
    )


def with_scalings(schedule: FaultSchedule, able: Sequence[str]) -> FaultSchedule:
    """The schedule with requests to scale at random moments, nodes that die soon after some of them, and recovery in
    parallel in some; ``able``: operators that can be scaled.
    """
    draw = Random(schedule.seed + 1_000_003)
    span = max(schedule.epochs * schedule.timing.interval, schedule.epochs * 0.3)
    scalings, faults = [], list(schedule.faults[:-1])
    for _ in range(draw.randint(1, 5)) if able else ():
        moment = round(draw.uniform(0, span), 3)
        scalings.append((moment, draw.choice(list(able)), draw.randint(1, 6)))
        for _ in range(draw.choice((0, 0, 1, 2))):
            when = When(seconds=round(moment + draw.uniform(0, draw.choice((0.2, 1.0, 4.0))), 3))
            whom = tuple(sorted(draw.sample(schedule.names, draw.randint(1, max(1, schedule.nodes // 2)))))
            what = draw.choice(("kill", "kill", "kill", "restart", "damage", "unreachable"))
            if what in ("restart", "damage"):
                faults.append(Fault("restart" if what == "restart" else "damage", when))
            else:
                lasting = round(draw.uniform(0.05, 3), 3) if what == "unreachable" else None
                faults.append(Fault("kill" if what == "kill" else "unreachable", when, whom, seconds=lasting))
    back = schedule.replace
    if back is None and draw.random() < 0.7:
        back = round(draw.uniform(0.05, 3), 3)
    return replace(
        schedule,
        settings=replace(schedule.settings, parallel_recovery=draw.choice((1, 1, 2, 3))),
        scalings=tuple(sorted(scalings)),
        faults=(*faults, schedule.faults[-1]),
        replace=back,
        drains=_drains(draw, schedule.names, span),
    )


def _drains(draw: Random, names: Sequence[str], span: float) -> tuple[tuple[float, tuple[str, ...]], ...]:
    """In some schedules nodes are given back at random moments."""
    count = draw.choice((0, 0, 1, 2, 3)) if len(names) > 1 else 0
    moments = sorted(round(draw.uniform(0, span), 3) for _ in range(count))
    return tuple((at, tuple(sorted(draw.sample(list(names), draw.randint(1, len(names) - 1))))) for at in moments)


def drawn_topology(draw: Random) -> Topology:
    """One or two sources and up to four operators behind them, with every kind of stream."""
    widths = [draw.randint(1, 3) for _ in range(draw.choice((1, 1, 2)))]
    sources = [Operator(f"S{number}", width, costs=(0.0,) * width) for number, width in enumerate(widths)]
    operators: list[Operator] = list(sources)
    streams: list[Stream] = []
    unread = [operator.name for operator in sources]
    count = draw.randint(max(1, len(sources) - 1), draw.choice((2, 4, 6)))
    for number in range(count):
        width = draw.choice((1, 2, 2, 3, 4))
        fan = 2 if len(operators) > 1 and draw.random() < 0.35 else 1
        if number == count - 1:
            fan = max(fan, len([name for name in unread if name.startswith("S")]))
        ranked = [((each.name not in unread, each not in sources, draw.random()), each) for each in operators]
        chosen = [each for _, each in sorted(ranked, key=lambda pair: pair[0])][:fan]
        name = f"O{number}"
        costs = tuple(float(draw.choice((1, 1, 1, 2))) for _ in range(width))
        inputs: Inputs = "correlated" if len(chosen) > 1 and draw.random() < 0.5 else "independent"
        operators.append(Operator(name, width, costs=costs, inputs=inputs, stateful=draw.random() < 0.7))
        for source in chosen:
            streams.append(Stream(source.name, name, _partitioning(draw, source.parallelism, width)))
            if source.name in unread:
                unread.remove(source.name)
        unread.append(name)
    fed = {stream.source for stream in streams}
    queries = [
        Query(operator.name, float(draw.randint(1, 3)))
        for operator in operators
        if not operator.name.startswith("S") and (operator.name not in fed or draw.random() < 0.2)
    ]
    return Topology(tuple(operators), tuple(streams), tuple(queries))


def _partitioning(draw: Random, upstream: int, downstream: int) -> Partitioning:
    if draw.random() < 0.5:
        return "full"
    if upstream == downstream:
        return "one-to-one"
    return "merge" if upstream > downstream else "split"


def _timing(draw: Random) -> Timing:
    return Timing(
        interval=draw.choice((0.0, 0.2, 1.0)),
        run=round(draw.uniform(0.01, 0.2), 3),
        level=round(draw.uniform(0.01, 0.1), 3),
        unit=round(draw.uniform(0.0, 0.1), 3),
        restore=round(draw.choice((0.0, 0.5, 2.0)) * draw.random(), 3),
        checkpoint=round(draw.choice((0.05, 0.5, 2.0)), 3),
        detect=round(draw.choice((0.01, 0.1, 0.5)), 3),
        report=draw.choice((0.001, 0.05, 0.5)),
        patience=round(draw.choice((1.0, 10.0)), 3),
        restart=round(draw.uniform(0.1, 2.0), 3),
    )


def _settings(draw: Random, topology: Topology, nodes: int) -> Settings:
    tasks = [task for task in topology.tasks if topology.inputs_of(task.operator)]
    total = sum(topology.operator[task.operator].costs[task.number] for task in tasks)
    replicas = tuple(draw.sample(tasks, draw.randint(0, len(tasks)))) if draw.random() < 0.6 else ()
    return Settings(
        nodes=nodes,
        checkpoint_every=draw.randint(1, 8),
        replicas=replicas,
        scheduler=draw.choice(SCHEDULERS),
        recovery=draw.choice((RECOVERIES[0], RECOVERIES[0], *RECOVERIES)),
        capacity=draw.choice((None, round(total / nodes * draw.uniform(1, 1.5), 3), 1000.0)),
        replay_chunk=draw.choice((1, 2, 3, 8)),
        rebalance=draw.random() < 0.8,
        standby=draw.choice((0, 0, 0, 1)),
    )


KINDS: tuple[MishapKind, ...] = (
    "refuse",
    "refuse",
    "crash",
    "crash",
    "crash",
    "node crash",
    "power",
    "power",
    "rewind",
    "flake",
    "sink",
    "sink storm",
    "listener",
    "local",
    "local",
    "output",
    "changed",
)


def _mishaps(draw: Random, span: float) -> tuple[Mishap, ...]:
    """In every other schedule a few things beside the nodes go wrong."""
    count = draw.choice((0, 0, 0, 1, 1, 2, 3, 5))
    moments = sorted(round(draw.uniform(0, span), 3) for _ in range(count))
    drawn = [Mishap(draw.choice(KINDS), at, draw.choice((1, 2, 3, 5, 8, 13, 30))) for at in moments]
    # Half of the outputs that are damaged are so while the sink is behind.
    behind = [
        Mishap("sink", max(0.0, each.at - 1.0), 5) for each in drawn if each.kind == "output" and each.count % 3 == 2
    ]
    return tuple(sorted([*drawn, *behind], key=lambda each: each.at))


def with_source_mishaps(schedule: FaultSchedule) -> FaultSchedule:
    """The schedule with a source that loses its log, or a job that is stopped and started, in two of three."""
    draw = Random(f"{schedule.seed} source")
    span = max(schedule.epochs * schedule.timing.interval, schedule.epochs * 0.3)
    kinds: list[MishapKind] = [draw.choice(("log", "stop", "stop")) for _ in range(draw.choice((0, 1, 2)))]
    drawn = [Mishap(kind, round(draw.uniform(0, span), 3)) for kind in kinds]
    return replace(schedule, mishaps=tuple(sorted([*schedule.mishaps, *drawn], key=lambda each: each.at)))


def _stops(draw: Random, span: float) -> tuple[Mishap, ...]:
    """In one of seven schedules the driver is stopped in the middle of something, and resumed when it is superseded."""
    if draw.random() >= 0.15:
        return ()
    kinds: tuple[MishapKind, ...] = ("stopped in sink", "stopped at write")
    moments = sorted(round(draw.uniform(0, span), 3) for _ in range(draw.choice((1, 1, 2))))
    return tuple(Mishap(draw.choice(kinds), at, draw.choice((1, 2, 3, 5, 8, 13))) for at in moments)


def _replans(draw: Random, topology: Topology, span: float) -> tuple[tuple[float, tuple[Task, ...]], ...]:
    tasks = [task for task in topology.tasks if topology.inputs_of(task.operator)]
    moments = sorted(round(draw.uniform(0, span), 3) for _ in range(draw.randint(1, 2)))
    return tuple((moment, tuple(draw.sample(tasks, draw.randint(0, len(tasks))))) for moment in moments)


def _fault(draw: Random, names: list[str], epochs: int, span: float, domains: dict[str, str]) -> Fault:
    whom = tuple(sorted(draw.sample(names, draw.randint(1, len(names)))))
    when = When(seconds=round(draw.uniform(0, span), 3))
    if draw.random() < 0.3:
        when = When(epoch=draw.randrange(epochs))
    what = draw.choice(("kill", "kill", "kill", "kill", "join", "slow", "unreachable", "fill", "damage", "restart"))
    lasting = round(draw.uniform(0.05, 5), 3)
    match what:
        case "kill" if domains and draw.random() < 0.3:
            return Fault("kill", when, domain=draw.choice(sorted(set(domains.values()))))
        case "kill" | "join":
            return Fault(what, when, whom)
        case "slow":
            return Fault("slow", when, whom, seconds=lasting, factor=float(draw.choice((2, 5, 20))))
        case "unreachable":
            return Fault("unreachable", when, whom, seconds=lasting)
        case "fill":
            return Fault("fill", when, seconds=lasting)
        case "damage":
            return Fault("damage", when)
    return Fault("restart", when)


def _spoilt_restart(draw: Random, names: list[str], epochs: int) -> list[Fault]:
    """The driver dies; when it is back, what it began from turns out damaged, and everybody has to be restored."""
    epoch = draw.randrange(epochs)
    restart = Fault("restart", When(epoch=epoch))
    damage = Fault("damage", When(epoch=min(epochs - 1, epoch + draw.choice((1, 1, 2)))))
    kill = Fault("kill", When(epoch=min(epochs - 1, epoch + draw.choice((1, 2, 3)))), tuple(names))
    return [restart, damage, kill]


def simpler(schedule: FaultSchedule) -> list[FaultSchedule]:
    """Schedules that are a little simpler than this one, the greatest steps first; the last fault, a join, stays."""
    found: list[FaultSchedule] = []
    count = len(schedule.faults) - 1
    for size in (count // 2, 1):
        for start in range(0, count, size) if size else ():
            kept = schedule.faults[:start] + schedule.faults[start + size :]
            found.append(replace(schedule, faults=kept))
    least = 1 + max((fault.when.epoch or 0 for fault in schedule.faults), default=0)
    shorter = sorted({max(schedule.epochs // 2, least), schedule.epochs - 1})
    found += [replace(schedule, epochs=epochs) for epochs in shorter if least <= epochs < schedule.epochs]
    settings, plain = schedule.settings, Settings(nodes=schedule.settings.nodes)
    for what in (
        "replicas",
        "capacity",
        "scheduler",
        "recovery",
        "replay_chunk",
        "checkpoint_every",
        "parallel_recovery",
        "rebalance",
        "standby",
        "restore_within",
    ):
        usual = replace(settings, **{what: getattr(plain, what)})
        found += [replace(schedule, settings=usual)] if usual != settings else []
    for number, fault in enumerate(schedule.faults):
        for node in fault.nodes if len(fault.nodes) > 1 and number < count else ():
            fewer = replace(fault, nodes=tuple(each for each in fault.nodes if each != node))
            found.append(replace(schedule, faults=(*schedule.faults[:number], fewer, *schedule.faults[number + 1 :])))
    for number in range(len(schedule.scalings)):
        found.append(replace(schedule, scalings=schedule.scalings[:number] + schedule.scalings[number + 1 :]))
    for number in range(len(schedule.drains)):
        found.append(replace(schedule, drains=schedule.drains[:number] + schedule.drains[number + 1 :]))
    for number in range(len(schedule.mishaps)):
        found.append(replace(schedule, mishaps=schedule.mishaps[:number] + schedule.mishaps[number + 1 :]))
    if schedule.answer_within != float("inf"):
        found.append(replace(schedule, answer_within=float("inf")))
    if schedule.cores > 1:
        found.append(replace(schedule, cores=1))
    if schedule.late_listing:
        found.append(replace(schedule, late_listing=0.0))
    if schedule.replans:
        found.append(replace(schedule, replans=schedule.replans[1:]))
    if schedule.domains:
        found.append(replace(schedule, domains={}))
    if schedule.replace is not None and all(fault.when.epoch is None for fault in schedule.faults):
        found.append(replace(schedule, replace=None))
    return found
