"""How the coordinator scales: requests begin, are brought forward, take over or are dropped; and recovery in parallel.

A part of the coordinator with a file of its own; it holds no state but what is declared here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import replace
from typing import Any

from holdfast.elasticity import Sample
from holdfast.runtime.coordinator.assignment import Home, Standing
from holdfast.runtime.coordinator.measurements import Measurements
from holdfast.runtime.coordinator.replay import Copy
from holdfast.runtime.coordinator.scaling import Scaling
from holdfast.runtime.messages import CommitShape, Instruction, Record, Report, Run, ScaleWanted
from holdfast.runtime.settings import Settings
from holdfast.runtime.shape import Shape, parents, reshaped, routing_of
from holdfast.topology import Task, Topology

HANDOVER = 3
"""Copies at most this many epochs behind are brought up before the next epoch begins, so that they join it."""


class Rescaling:
    """The shape in force and how it changes. Everything the coordinator knows of tasks follows it."""

    declared: Topology
    topology: Topology
    shape: Shape
    settings: Settings
    standing: Standing
    scaling: Scaling
    runs: dict[int, Run]
    outputs: frozenset[str]
    output_tasks: frozenset[Task]
    replicated: tuple[Task, ...]
    _published: dict[Task, int]
    _found: dict[Task, int]
    _measurements: Measurements
    _measured: Topology
    _mute: set[Task]
    _replaying: int | None
    _checkpointing: int | None
    _checkpoint_wanted: bool
    _checkpointed_for: ScaleWanted | None
    _overtaken: int
    _next_run: int
    _begun: dict[int, tuple[int, set[str]]]
    _out: list[Instruction]
    committing: Shape | None
    _splitting: list[Task]
    _parts: set[Task]
    _publishing: set[tuple[int, str]]
    _attempts: Counter[tuple[str, str, str]]

    def _scale_wanted(self, wanted: ScaleWanted) -> None:
        if why := self.scaling.refused(wanted, self.shape):
            self._record("scaling refused", operator=wanted.operator, request=wanted.request, reason=why)
            return
        for each in self.scaling.want(wanted):
            self._told("scaling aborted", each, reason="another request for the operator came", again=False)
        shadow = self.scaling.shadow
        if shadow is not None and shadow.operator == wanted.operator and self.committing is None:
            self._abort_scaling("another request for the operator came")

    def _scale(self) -> None:
        """Begin what was asked for once everything is up, and let what has come to the head take over."""
        standing, scaling = self.standing, self.scaling
        while scaling.shadow is None and scaling.queue and self._whole() and not self._checkpoint_first():
            self._begin_scaling()
        if scaling.shadow is None:
            return
        scaling.shadow.raise_to_checkpoint(standing.checkpoint)
        if not self.busy and self._whole() and scaling.shadow.at(standing.head):
            shadow = scaling.shadow
            done = {**shadow.shape.done, **dict.fromkeys(shadow.homes, standing.head)}
            self._commit(replace(shadow.shape, done=done))

    @property
    def busy(self) -> bool:
        return bool(self.runs) or self._checkpointing is not None or bool(self._publishing)

    def _commit(self, shape: Shape) -> None:
        self.committing = shape
        self._out.append(CommitShape(shape))

    def _shape_committed(self, version: int) -> None:
        if self.committing is None or self.committing.version != version:
            return
        shape, self.committing = self.committing, None
        if self.scaling.shadow is not None:
            self._switch(shape)
        else:
            self._split(shape)

    def _checkpoint_first(self) -> bool:
        """Whether to wait for a checkpoint: what is in it need not be replayed, beside epochs that want the same cores.

        Once for each request, since epochs that are quick may have gone far again when it is there.
        """
        standing, request = self.standing, self.scaling.queue[0][0]
        if self._checkpointing is not None:
            return True
        if self._checkpointed_for == request:
            return self._checkpoint_wanted and standing.head > standing.checkpoint
        if standing.head - standing.checkpoint <= HANDOVER:
            return False
        self._checkpointed_for = request
        self._checkpoint_wanted = True
        return True

    def _begin_scaling(self) -> None:
        wanted = self.scaling.queue[0][0]
        if why := self.scaling.refused(wanted, self.shape):
            # The shape has changed since it was asked for: lost tasks came back as several.
            self.scaling.queue.popleft()
            self._told("scaling aborted", wanted, reason=why, again=False)
            return
        shadow = self.scaling.begin(self.standing, self.shape, self.samples(wanted.operator))
        if shadow is None:
            tasks = self.topology.operator[wanted.operator].parallelism
            self._told("scaled", wanted, tasks=tasks, epoch=self.standing.head)
            return
        self._told(
            "scaling begun",
            wanted,
            tasks=shadow.topology.operator[wanted.operator].parallelism,
            new={str(task): home.node for task, home in shadow.homes.items()},
            checkpoint=self.standing.checkpoint,
            epoch=self.standing.head,
            tries=shadow.tries,
        )

    def samples(self, name: str) -> dict[int, Sample]:
        """How the load of an operator's tasks lies over their keys, by what they reported."""
        return self._measurements.samples(name, routing_of(self.declared, self.shape, name))

    def _whole(self) -> bool:
        return self.standing.all_up and not self.standing.cold and not self.standing.behind()

    def _switch(self, shape: Shape) -> None:
        """The shadow is at the head, as all others are, and nothing runs: from the next epoch on it is in force."""
        shadow = self.scaling.finish()
        self._checkpointed_for = None
        self._reshape(shape, {shadow.operator})
        for task, home in shadow.homes.items():
            stateful = self.topology.operator[task.operator].stateful
            self.standing.homes[task] = home if stateful else Home(home.node, self.standing.head, fresh=True)
        self._told(
            "scaled",
            shadow.wanted,
            tasks=self.topology.operator[shadow.operator].parallelism,
            new={str(task): home.node for task, home in shadow.homes.items()},
            epoch=self.standing.head,
            version=self.shape.version,
        )

    def _reshape(self, shape: Shape, operators: Collection[str]) -> None:
        """This shape is in force now: everything the coordinator knows of changed tasks is of others."""
        before, self.shape = self.shape, shape
        self.topology = reshaped(self.declared, shape)

        def untouched(task: Task) -> bool:
            there = task in self.topology.index
            return there and shape.born.get(task, 0) == before.born.get(task, 0)

        feeding_them = {stream.source for name in operators for stream in self.topology.inputs_of(name)}
        self.standing = self.standing.reshaped(self.topology, untouched, {*operators, *feeding_them})
        self.output_tasks = frozenset(task for task in self.topology.tasks if task.operator in self.outputs)
        self._published = {task: epoch for task, epoch in self._published.items() if untouched(task)} | {
            task: epoch for task, epoch in shape.done.items() if not untouched(task)
        }
        self._measurements = self._measurements.reshaped(self.topology, untouched)
        self._measured = self._measurements.topology()
        self._mute = {task for task in self._mute if untouched(task)}
        self.replicated = self._inherited(self.replicated, before)
        self._checkpoint_wanted = self.standing.head > self.standing.checkpoint

    def _inherited(self, replicated: tuple[Task, ...], before: Shape) -> tuple[Task, ...]:
        """Who is to have a replica now: a changed task does if one that had some of its keys did."""
        wanted = set(replicated)

        def inherits(task: Task) -> bool:
            now = self.shape.routings.get(task.operator)
            then = routing_of(self.declared, before, task.operator)
            if now is None or now == then:
                return task in wanted
            mine = now.ranges[now.owners.index(task.number)]
            return any(Task(task.operator, old) in wanted for old in parents(then, mine))

        return tuple(task for task in self.standing.tasks if inherits(task))

    def _switch_next(self, behind: list[Copy]) -> bool:
        """Whether to hold the epoch for the shadow: a short replay brings it up, and is under way or can begin."""
        shadow = self.scaling.shadow
        if shadow is None or behind or self._checkpointing is not None:
            return False
        if self._replaying is not None:
            return self._replaying == shadow.run and shadow.last
        head = self.standing.head
        return not shadow.at(head) and shadow.worth_waiting_for(head, self._handover)

    @property
    def _handover(self) -> int:
        return max(HANDOVER, self.settings.replay_chunk // 2)

    def _run_shadow(self) -> None:
        """Bring the new tasks forward, when nothing else is behind."""
        shadow, standing = self.scaling.shadow, self.standing
        if shadow is None or shadow.at(standing.head) or not standing.all_up:
            return
        works = shadow.works(standing, self.settings.replay_chunk)
        if not works:
            return
        run = Run(self._next_run, "replay", works, shape=shadow.shape, settled=False)
        shadow.begin(run.number, standing.head, self._handover)
        self._replaying = self._start(run)
        self._record(
            "replay",
            run=self._replaying,
            first=min(run.first, run.last),
            last=run.last,
            tasks=[str(work.task) for work in works if work.lane == "replica"],
            on_the_side=[str(work.task) for work in works if work.lane == "side"],
            from_buffers=[],
            scaling=shadow.operator,
        )

    def _shadow_done(self, run: Run, reports: tuple[Report, ...], went: set[str], side_holds: bool) -> None:
        shadow = self.scaling.shadow
        works = {(work.task, work.lane): work for work in run.works}
        bad = next((report for report in reports if report.status != "committed"), None)
        for report in reports:
            work = works[report.task, report.lane]
            if work.lane == "side" and report.status == "missing":
                self.standing.side.pop(work.task, None)
            elif work.lane == "side" and bad is None and side_holds and work.node not in went:
                self.standing.side[work.task] = (work.node, work.last)
        if shadow is None or run.shape.version != shadow.shape.version:
            return
        if bad is not None:
            self._abort_scaling(f"{bad.task}: {bad.message}")
            return
        shadow.committed(run.works, self.standing.head)
        self._overtaken = 0

    def _abort_scaling(self, reason: str) -> None:
        assert self.scaling.shadow is not None
        shadow = self.scaling.shadow
        again = self.scaling.drop()
        self._told("scaling aborted", shadow.wanted, reason=reason, again=again, tries=shadow.tries)

    def _split_lost(self, down: Collection[Task]) -> bool:
        """Long replays are shared out: lost tasks come back as several each. True: not yet, runs are under way.

        Only when the replay takes more than one run, there are nodes for the parts, and an operator does not get more
        than so many times the tasks it was declared with.
        """
        into, standing = self.settings.parallel_recovery, self.standing
        long = standing.head - standing.checkpoint > self.settings.replay_chunk
        if into < 2 or not long or len(standing.nodes) < into:
            return False
        chosen: list[Task] = []
        room = {
            name: into * self.declared.operator[name].parallelism - self.topology.operator[name].parallelism
            for name in self.scaling.scalable
        }
        self._parts &= set(down)
        for task in sorted(set(down) - self._parts):
            if room.get(task.operator, 0) >= into - 1 and self.topology.operator[task.operator].stateful:
                room[task.operator] -= into - 1
                chosen.append(task)
        if not chosen:
            return False
        if self.busy:
            return True
        published = {task: max(self._published.get(task, -1), self._found.get(task, -1)) for task in chosen}
        self._splitting = chosen
        self._commit(self.scaling.split(self.shape, chosen, into, published))
        return True

    def _split(self, shape: Shape) -> None:
        chosen, standing, before = self._splitting, self.standing, self.shape.born
        self._parts |= {task for task, version in shape.born.items() if before.get(task) != version}
        self._reshape(shape, {task.operator for task in chosen})
        parallelism = {task.operator: self.topology.operator[task.operator].parallelism for task in chosen}
        self._record(
            "recovering in parallel",
            tasks=[str(task) for task in chosen],
            into=self.settings.parallel_recovery,
            operators=parallelism,
            version=self.shape.version,
            why=f"{standing.head - standing.checkpoint} epochs are to be replayed, more than one run of "
            f"{self.settings.replay_chunk}",
        )

    def _attempt(self, run: Run) -> int:
        if not run.settled:
            return self.scaling.shadow.tries - 1 if self.scaling.shadow is not None else 0
        tasks = {"", *(str(work.task) for work in run.works)}
        return max((n for (kind, _, of), n in self._attempts.items() if kind == run.kind and of in tasks), default=0)

    def _told(self, what: str, wanted: ScaleWanted, **fields: Any) -> None:
        self._record(what, operator=wanted.operator, request=wanted.request, why=wanted.why, **fields)

    def _start(self, run: Run) -> int:
        self._next_run += 1
        shape = run.shape if not run.settled else self.shape
        attempt = self._attempt(run)
        works = (
            tuple(replace(work, born=shape.born.get(work.task, 0)) for work in run.works) if shape.born else run.works
        )
        run = replace(run, shape=shape, works=works, attempt=attempt)
        self.runs[run.number] = run
        self._begun[run.number] = (self.standing.checkpoint, set())
        self._out.append(run)
        return run.number

    def _record(self, what: str, **fields: Any) -> None:
        self._out.append(Record(what, fields))
