"""Drives a coordinator by hand: tells it events, answers its runs, and remembers what it said."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any, Literal, TypeVar

from holdfast.runtime.coordinator.coordinator import Coordinator
from holdfast.runtime.coordinator.parts import Parts
from holdfast.runtime.messages import (
    CheckpointDurable,
    CommitShape,
    EpochArrived,
    EpochJournalled,
    Event,
    Instruction,
    NodeInfo,
    NodesSeen,
    Publish,
    Published,
    Record,
    Report,
    Run,
    RunDone,
    ShapeCommitted,
    TakeCheckpoint,
    Work,
)
from holdfast.runtime.settings import Settings
from holdfast.state.output import StagedOutput
from holdfast.topology import Operator, Stream, Task, Topology

Said = TypeVar("Said")
Status = Literal["committed", "missing", "blocked", "damaged", "failed"]


def chain(*widths: int, stateless: tuple[str, ...] = ()) -> Topology:
    """A source S and operators A, B, C... behind it, joined by full streams."""
    names = ["S", *"ABCDEF"[: len(widths) - 1]]
    operators = [Operator("S", widths[0], costs=(0.0,) * widths[0])]
    operators += [
        Operator(name, width, stateful=name not in stateless) for name, width in zip(names[1:], widths[1:], strict=True)
    ]
    return Topology(tuple(operators), tuple(Stream(a, b, "full") for a, b in pairwise(names)))


def task(written: str) -> Task:
    name, _, number = written.partition("/")
    return Task(name, int(number))


class Driver:
    """``said``: what the coordinator answered to the last event.

    ``prompt``: outputs are in their place and shapes in the store at once, as soon as they are asked for.
    """

    def __init__(
        self,
        topology: Topology,
        nodes: int = 2,
        checkpoint: int = -1,
        head: int = -1,
        prompt: bool = True,
        **settings: Any,
    ) -> None:
        settings = {"nodes": nodes, **settings}
        self.prompt = prompt
        self.seen: dict[str, NodeInfo] = {}
        self._incarnations = 0
        self.coordinator = Coordinator(topology, Settings(**settings), checkpoint, head)
        self.said: list[Instruction] = []

    @property
    def parts(self) -> Parts:
        return self.coordinator.parts

    @property
    def runs(self) -> dict[int, Run]:
        return {number: running.run for number, running in self.parts.runs.under_way.items()}

    @property
    def taking(self) -> int | None:
        """The epoch of the checkpoint under way."""
        taking = self.parts.checkpointing.taking
        return taking.epoch if taking is not None else None

    def tell(self, event: Event) -> list[Instruction]:
        self.said, waiting = [], [event]
        while waiting:
            answer = self.coordinator.handle(waiting.pop(0))
            self.coordinator.check()
            self.said += answer
            for each in answer if self.prompt else ():
                if isinstance(each, Publish):
                    waiting.append(Published(each.run, each.kind))
                elif isinstance(each, CommitShape):
                    waiting.append(ShapeCommitted(each.shape.version))
        return self.said

    def join(self, *numbers: int, domains: Mapping[str, str] | None = None) -> list[Instruction]:
        for name in (f"node-{number}" for number in numbers):
            self._incarnations += 1
            self.seen[name] = NodeInfo(str(self._incarnations), (domains or {}).get(name, ""))
        return self.look()

    def lose(self, *numbers: int, answer_due: bool = False) -> list[Instruction]:
        for number in numbers:
            self.seen.pop(f"node-{number}", None)
        return self.look(answer_due)

    def look(self, answer_due: bool = False) -> list[Instruction]:
        return self.tell(NodesSeen(dict(self.seen), answer_due=answer_due))

    def arrive(self, epoch: int) -> list[Instruction]:
        return self.tell(EpochArrived(epoch))

    def finish(self, run: Run, status: Status = "committed", of: str = "", lane: str = "") -> list[Instruction]:
        """The run is over: all of it committed, but for the works named, which end with another status."""
        reports = []
        for work in run.works:
            other = (
                bool(of or lane)
                and str(work.task) in (of, str(work.task) if not of else "")
                and lane in ("", work.lane)
            )
            reports.append(self.report(work, status if other else "committed"))
        return self.done(run, *reports)

    def done(self, run: Run, *reports: Report) -> list[Instruction]:
        """The run is over with these reports; what it ingested is journalled if all of it is committed."""
        if run.ingest is not None and run.kind == "epoch" and all(report.status == "committed" for report in reports):
            assert self.tell(EpochJournalled(run.ingest)) == []
        return self.tell(RunDone(run.number, reports))

    def report(self, work: Work, status: Status = "committed") -> Report:
        says = work.task.operator in self.coordinator.outputs and work.lane in ("exact", "tentative")
        kind = "final" if work.lane == "exact" else "tentative"
        outputs = {e: StagedOutput(e, str(work.task), kind, "", 1, "", 1) for e in work.epochs} if says else {}  # type: ignore[arg-type]
        reached = work.last if status == "committed" else work.start
        return Report(
            work.task, work.lane, work.node, status, reached, rows_out=1, outputs=outputs, message=status
        )  # fmt: skip

    def epoch(self, number: int) -> list[Instruction]:
        """An epoch that goes well, and the checkpoint that may follow."""
        self.arrive(number)
        said = self.finish(self.only(Run))
        for wanted in [each for each in said if isinstance(each, TakeCheckpoint)]:
            self.tell(CheckpointDurable(wanted.epoch))
        return said

    def settle(self) -> None:
        """Answer runs and checkpoints until nothing is under way."""
        while self.runs:
            self.finish(next(iter(self.runs.values())))
            for wanted in [each for each in self.said if isinstance(each, TakeCheckpoint)]:
                self.tell(CheckpointDurable(wanted.epoch))

    def of(self, kind: type[Said]) -> list[Said]:
        return [each for each in self.said if isinstance(each, kind)]

    def only(self, kind: type[Said]) -> Said:
        found = self.of(kind)
        assert len(found) == 1, f"one {kind.__name__} was expected in {self.said}"
        return found[0]

    def records(self, kind: str) -> list[dict[str, Any]]:
        return [dict(each.fields) for each in self.said if isinstance(each, Record) and each.kind == kind]

    def home(self, written: str) -> str:
        return self.parts.assignment.primaries[task(written)].node

    def position(self, written: str) -> int:
        return self.parts.assignment.primaries[task(written)].position


def works(run: Run, lane: str = "exact") -> dict[str, tuple[int, int, str]]:
    """The works of a lane: first and last epoch, and where the state comes from."""
    return {str(work.task): (work.first, work.last, work.origin) for work in run.works if work.lane == lane}


def two_nodes(**settings: object) -> Driver:
    """S -> A/0, A/1 -> B/0, B/1: A/0 and B/0 on node-0, A/1 and B/1 on node-1; five epochs done, no checkpoint."""
    driver = Driver(chain(1, 2, 2), nodes=2, **settings)
    driver.join(0, 1)
    for epoch in range(5):
        driver.epoch(epoch)
    assert {driver.home("A/0"), driver.home("B/0")} == {"node-0"}
    return driver


def down_for_two_epochs(**settings: object) -> Driver:
    """B/1 and A/1 lost after epoch 4, without room anywhere for epochs 5 and 6; then a node joins."""
    driver = two_nodes(capacity=2.0, **settings)
    driver.lose(1)
    for epoch in (5, 6):
        driver.arrive(epoch)
        driver.finish(driver.only(Run))
    driver.join(2)
    return driver
