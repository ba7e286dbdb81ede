"""The closed loop in virtual time: rows flow through stages of tasks, loads are reported, the policy scales.

A fluid model: rows are amounts, a task is a queue that one core empties. It knows nothing of operators or Spark; what
a change costs is a parameter. Seeded, so a run can be repeated digit by digit.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from holdfast.elasticity.decisions import CannotScale, Decision, ScaleIn, ScaleOut, operator_of
from holdfast.elasticity.load import LoadReport
from holdfast.elasticity.policy import Policy
from holdfast.elasticity.pool import Pool, PoolPolicy
from holdfast.elasticity.routes import evenly, kept, rerouted
from holdfast.elasticity.scaler import Scaler
from holdfast.errors import Invalid
from holdfast.state import KeyRange, Routing
from holdfast.topology import Task

Floats = NDArray[np.float64]
MB = 1e6


@dataclass(frozen=True, slots=True)
class Stage:
    """One operator of a chain. ``fan``: rows it receives for each row that the stage before has done."""

    name: str
    cpu: float
    fan: float = 1.0
    state: float = 0.0
    hashes: NDArray[np.uint32] = field(default_factory=lambda: np.zeros(0, np.uint32))
    weights: Floats = field(default_factory=lambda: np.zeros(0))

    def share(self, routing: Routing) -> Floats:
        """Part of the rows that each task receives: by its keys, or by the width of its range if none are given."""
        if not len(self.hashes):
            return np.array([r.width for r in routing.ranges]) / 2**32
        owners = routing.route(self.hashes)
        shares: Floats = np.bincount(owners, self.weights, len(routing.ranges)) / self.weights.sum()
        return shares


@dataclass(frozen=True, slots=True)
class Costs:
    """What a change takes, in seconds: on the node, for each MB of state, and at the moment of the switch.

    Until the switch the old task goes on. New ones cut and restore the last checkpoint and replay what came since;
    then the rows of the tasks concerned wait for ``switch`` seconds.
    """

    start: float = 1.0
    cut: float = 0.004
    restore: float = 0.0018
    switch: float = 1.0
    checkpoint_every: float = 5.0


@dataclass(frozen=True, slots=True)
class Setting:
    """All that a run depends on. ``burst``: spread of the rate around its profile; ``hop``: seconds a stage adds."""

    stages: Sequence[Stage]
    rate: Callable[[float], float]
    seconds: float
    policy: Policy | None = field(default_factory=Policy)
    pool: PoolPolicy = field(default_factory=PoolPolicy)
    provisioning: float = 90.0
    costs: Costs = field(default_factory=Costs)
    parallelism: Sequence[int] = ()
    burst: float = 0.15
    burst_seconds: float = 2.0
    hop: float = 0.03
    buffer: float | None = None
    tick: float = 0.25
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Made:
    """A decision, when it was made, and the keys that it is about."""

    at: float
    decision: Decision
    keys: KeyRange


@dataclass(frozen=True, slots=True)
class Trace:
    """What happened, a row every second (``time``); ``done`` and ``dropped`` are in rows of input."""

    time: Floats
    rate: Floats
    done: Floats
    dropped: Floats
    tasks: NDArray[np.int64]
    nodes: NDArray[np.int64]
    standby: NDArray[np.int64]
    latency: Floats
    weight: Floats
    decisions: tuple[Made, ...]
    changes: tuple[tuple[float, float, float], ...]
    """When decided, seconds until all nodes were there, seconds until the switch."""

    def percentile(self, *at: float, since: float = 0.0, until: float = float("inf")) -> list[float]:
        """Latency percentiles of rows that came in this time, each row counting once."""
        chosen = (self.time >= since) & (self.time < until)
        values = self.latency[chosen].ravel()
        weights = np.repeat(self.weight[chosen], self.latency.shape[1])
        if not len(values) or weights.sum() <= 0:
            return [0.0] * len(at)
        order = np.argsort(values, kind="stable")
        upto = np.cumsum(weights[order])
        places = np.searchsorted(upto, np.array(at) / 100 * upto[-1])
        return [float(values[order[min(place, len(order) - 1)]]) for place in places]

    def actions(self, since: float = 0.0) -> int:
        """Decisions to change something, from then on."""
        return sum(1 for made in self.decisions if made.at >= since and not isinstance(made.decision, CannotScale))

    def undone(self, since: float = 0.0) -> int:
        """Splits of what was merged before, and mergers of what was split before, all from then on: oscillation."""
        split: set[tuple[str, KeyRange]] = set()
        merged: set[tuple[str, KeyRange]] = set()
        found = 0
        for made in (one for one in self.decisions if one.at >= since):
            name, keys = operator_of(made.decision), made.keys
            if isinstance(made.decision, ScaleOut):
                found += (name, keys) in merged
                split.add((name, keys))
            elif isinstance(made.decision, ScaleIn):
                found += any(name == of and keys.lo <= r.lo and r.hi <= keys.hi for of, r in split)
                merged.add((name, keys))
        return found


@dataclass(slots=True)
class _Change:
    operator: str
    routing: Routing
    decided: float
    needs: int
    gives_back: int
    got: list[str]
    granted: float = float("inf")
    ready: float = float("inf")


class _Line:
    """A stage as it runs: its routing, and one number a task of what waits, worked, and stands still."""

    def __init__(self, stage: Stage, routing: Routing) -> None:
        self.stage = stage
        self.routing = routing
        self.share = stage.share(routing)
        n = len(self.share)
        self.queue = np.zeros(n)
        self.busy = np.zeros(n)
        self.still = np.zeros(n)
        self.rows = np.zeros(n)
        self.seen = 0.0

    def flow(self, rows: float, now: float, tick: float, buffer: float | None) -> tuple[float, float]:
        """Rows in; rows done and rows dropped."""
        arrived = rows * self.share
        self.queue += arrived
        self.rows += arrived
        self.seen = rows / tick
        could = np.clip(now + tick - self.still, 0.0, tick) / self.stage.cpu
        served = np.minimum(self.queue, could)
        self.queue -= served
        self.busy += served * self.stage.cpu
        dropped = 0.0
        if buffer is not None:
            over = np.maximum(self.queue - buffer / self.stage.cpu, 0.0)
            self.queue -= over
            dropped = float(over.sum())
        return float(served.sum()), dropped

    def delays(self, now: float) -> Floats:
        """Seconds that a row arriving at each task spends there."""
        return self.queue * self.stage.cpu + np.maximum(self.still - now, 0.0)

    def reports(self, now: float, seconds: float) -> list[LoadReport]:
        made = [
            LoadReport(Task(self.stage.name, number), now, seconds, float(busy), int(rows), int(rows))
            for number, (busy, rows) in enumerate(zip(self.busy, self.rows, strict=True))
        ]
        self.busy[:] = 0.0
        self.rows[:] = 0.0
        return made

    def switch(self, routing: Routing, now: float, pause: float) -> None:
        """Queues follow their keys; tasks that did not stay as they were stand still for a moment."""
        same = kept(self.routing, routing)
        starts, ends = ([getattr(r, edge) for r in routing.ranges] for edge in ("lo", "hi"))
        share = self.stage.share(routing)
        queue = np.zeros(len(share))
        for number, old in enumerate(self.routing.ranges):
            inside = [j for j in range(len(share)) if starts[j] < old.hi and ends[j] > old.lo]
            # A range lies within one of the other routing: parts share by their load, a merged one takes all.
            parts = np.array([share[j] for j in inside]) if len(inside) > 1 else np.ones(1)
            parts = parts / parts.sum() if parts.sum() > 0 else np.full(len(inside), 1 / len(inside))
            queue[inside] += self.queue[number] * parts
        still = np.full(len(share), now + pause)
        for old_number, new in same.items():
            still[new] = self.still[old_number]
        self.routing, self.share, self.queue, self.still = routing, share, queue, still
        self.busy, self.rows = np.zeros(len(share)), np.zeros(len(share))


class _Nodes:
    """The provider and the pool: nodes are ordered when the pool wants them and come after a while."""

    def __init__(self, policy: PoolPolicy, provisioning: float) -> None:
        self._names = (f"node-{n}" for n in itertools.count())
        self.pool = Pool(policy, [next(self._names) for _ in range(policy.least)])
        self._takes = provisioning
        self._due: list[float] = []

    def turn(self, now: float) -> list[str]:
        """Order, receive and give back; nodes for those who wait."""
        came = [at for at in self._due if at <= now]
        self._due = [at for at in self._due if at > now]
        handed = self.pool.arrived(now, [next(self._names) for _ in came]) if came else []
        if wanted := self.pool.wanted(now):
            self.pool.ordered(now, wanted)
            self._due += [now + self._takes] * wanted
        self.pool.release(now)
        return handed


def run(setting: Setting) -> Trace:
    """Play the whole profile."""
    if not setting.stages or setting.tick <= 0 or setting.seconds < 1:
        raise Invalid(f"simulation: needs a stage, a tick and a second or more, got {len(setting.stages)} stages")
    first = setting.parallelism or [1] * len(setting.stages)
    start = [
        evenly(Routing.even(1), n, stage.hashes, stage.weights) if n > 1 else Routing.even(1)
        for stage, n in zip(setting.stages, first, strict=True)
    ]
    return _Run(setting, [_Line(stage, routing) for stage, routing in zip(setting.stages, start, strict=True)]).play()


class _Run:
    SAMPLES = 16
    """Rows followed through all stages, each tick."""

    def __init__(self, setting: Setting, lines: list[_Line]) -> None:
        self.setting = setting
        self.lines = {line.stage.name: line for line in lines}
        routings = {name: line.routing for name, line in self.lines.items()}
        self.scaler = Scaler(routings, setting.policy) if setting.policy else None
        self.nodes = _Nodes(setting.pool, setting.provisioning)
        self.changes: list[_Change] = []
        self.decisions: list[Made] = []
        self.done: list[tuple[float, float, float]] = []

    def play(self) -> Trace:
        setting, tick = self.setting, self.setting.tick
        rng = np.random.default_rng(setting.seed)
        ticks = round(setting.seconds / tick)
        bursts = _bursts(ticks, tick, setting.burst, setting.burst_seconds, rng)
        choices = rng.random((ticks, len(self.lines), self.SAMPLES))
        per = round(1 / tick)
        rows: list[tuple[float, ...]] = []
        latency = np.zeros((ticks, self.SAMPLES))
        offered = np.zeros(ticks)
        whole = np.cumprod([line.stage.fan for line in self.lines.values()])  # rows at a stage for a row of input
        spoken = finished = lost = 0.0
        for number in range(ticks):
            now = number * tick
            self._switches(now)
            offered[number] = rate = setting.rate(now) * bursts[number]
            flowing = rate * tick
            for at, line in enumerate(self.lines.values()):
                flowing, dropped = line.flow(flowing * line.stage.fan, now, tick, setting.buffer)
                latency[number] += setting.hop + _follow(line, choices[number, at], now + tick)
                lost += dropped / whole[at]
            finished += flowing / whole[-1]
            ended = now + tick
            every = setting.policy.every if setting.policy else setting.seconds
            if ended - spoken >= every - 1e-9:
                self._speak(ended, ended - spoken)
                spoken = ended
            if (number + 1) % per == 0:
                self._grant(self.nodes.turn(ended), ended)
                in_use = sum(len(line.share) for line in self.lines.values())
                in_use += sum(len(change.got) for change in self.changes)
                counts = [len(line.share) for line in self.lines.values()]
                standby = len(self.nodes.pool.idle) + self.nodes.pool.coming
                rows.append((ended, finished, lost, in_use, standby, *counts))
                finished = lost = 0.0
        return self._trace(np.array(rows), offered, latency, per)

    def _trace(self, rows: Floats, offered: Floats, latency: Floats, per: int) -> Trace:
        seconds = len(rows)
        rate = offered[: seconds * per].reshape(seconds, per).mean(axis=1)
        return Trace(
            time=rows[:, 0],
            rate=rate,
            done=rows[:, 1],
            dropped=rows[:, 2],
            tasks=rows[:, 5:].astype(np.int64),
            nodes=rows[:, 3].astype(np.int64),
            standby=rows[:, 4].astype(np.int64),
            latency=latency[: seconds * per].reshape(seconds, per * self.SAMPLES),
            weight=rate,
            decisions=tuple(self.decisions),
            changes=tuple(self.done),
        )

    def _speak(self, now: float, seconds: float) -> None:
        """Reports to the policy; what it decides begins at once."""
        reports = [report for line in self.lines.values() for report in line.reports(now, seconds)]
        if self.scaler is None:
            return
        decisions = self.scaler.observe(reports)
        for decision in decisions:
            line = self.lines[operator_of(decision)]
            tasks = decision.tasks if isinstance(decision, ScaleIn) else (decision.task,)
            parts = [line.routing.ranges[task.number] for task in tasks]
            self.decisions.append(Made(now, decision, KeyRange(parts[0].lo, parts[-1].hi)))
        for name, line in self.lines.items():
            mine = [d for d in decisions if operator_of(d) == name and not isinstance(d, CannotScale)]
            if not mine:
                continue
            sample = (line.stage.hashes, line.stage.weights)
            samples = dict.fromkeys(line.routing.owners, sample) if len(line.stage.hashes) else {}
            needs = sum(d.into if isinstance(d, ScaleOut) else 1 for d in mine)
            back = sum(1 if isinstance(d, ScaleOut) else 2 for d in mine)
            routing = rerouted(line.routing, mine, samples)
            self.changes.append(_Change(name, routing, now, needs, back, []))
            self._grant(self.nodes.pool.request(now, needs), now)

    def _grant(self, nodes: Sequence[str], now: float) -> None:
        """Nodes go to changes in the order in which they asked."""
        left = list(nodes)
        for change in self.changes:
            took, left = left[: change.needs - len(change.got)], left[change.needs - len(change.got) :]
            change.got += took
            if len(change.got) == change.needs and change.granted == float("inf"):
                change.granted = now
                change.ready = now + self._takes(change, now)

    def _takes(self, change: _Change, now: float) -> float:
        """Seconds from the nodes to the switch: start, restore, and replay until the old task is reached."""
        costs, line = self.setting.costs, self.lines[change.operator]
        fresh = [r not in line.routing.ranges for r in change.routing.ranges]
        share = float(line.stage.share(change.routing)[fresh].sum())
        size = line.stage.state * share / MB
        ready = costs.start + size * costs.cut + size * costs.restore / max(1, change.needs)
        speed = change.needs / line.stage.cpu
        old = min(line.seen * share, change.gives_back / line.stage.cpu)
        behind = old * (ready + now % costs.checkpoint_every)
        # A new task that is hardly faster than the stream catches up slowly, but merged ones are mostly idle.
        return ready + behind / max(speed - old, 0.1 * speed)

    def _switches(self, now: float) -> None:
        for change in [one for one in self.changes if one.ready <= now]:
            line = self.lines[change.operator]
            line.switch(change.routing, now, self.setting.costs.switch)
            self.changes.remove(change)
            self.done.append((change.decided, change.granted - change.decided, now - change.decided))
            assert self.scaler is not None
            self.scaler.finished(change.operator, change.routing, now)
            # The nodes of the old tasks, under whatever name, stand by again.
            old = [f"{change.operator}-{change.routing.version}-{n}" for n in range(change.gives_back)]
            self._grant(self.nodes.pool.returned(old), now)


def _bursts(ticks: int, tick: float, spread: float, seconds: float, rng: np.random.Generator) -> Floats:
    """Factors around 1 that wander: lognormal, correlated over ``seconds``."""
    keep = np.exp(-tick / seconds)
    noise = rng.standard_normal(ticks) * np.sqrt(1 - keep**2)
    wander = np.zeros(ticks)
    for number in range(1, ticks):
        wander[number] = keep * wander[number - 1] + noise[number]
    return np.exp(spread * wander - spread**2 / 2)


def _follow(line: _Line, choices: Floats, now: float) -> Floats:
    """Delay at this stage of rows that go to tasks by their share."""
    which = np.searchsorted(np.cumsum(line.share), choices)
    return line.delays(now)[np.minimum(which, len(line.share) - 1)]
