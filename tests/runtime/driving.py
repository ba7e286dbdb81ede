"""Drives a coordinator by hand: tells it events, answers its runs, and remembers what it said."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Literal, TypeVar

from holdfast.runtime.coordinator import Coordinator
from holdfast.runtime.events import (
    Checkpoint,
    CheckpointDurable,
    EpochArrived,
    Event,
    Instruction,
    NodesJoined,
    NodesLost,
    Record,
    Report,
    Run,
    RunDone,
    Work,
)
from holdfast.runtime.settings import Settings
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
    """``said``: what the coordinator answered to the last event."""

    def __init__(
        self, topology: Topology, nodes: int = 2, checkpoint: int = -1, head: int = -1, **settings: Any
    ) -> None:
        settings = {"nodes": nodes, **settings}
        self.coordinator = Coordinator(topology, Settings(**settings), checkpoint, head)
        self.said: list[Instruction] = []

    def tell(self, event: Event) -> list[Instruction]:
        self.said = self.coordinator.handle(event)
        self.coordinator.check()
        return self.said

    def join(self, *numbers: int, **domains: str) -> list[Instruction]:
        return self.tell(NodesJoined(tuple(f"node-{number}" for number in numbers), domains=domains))

    def lose(self, *numbers: int) -> list[Instruction]:
        return self.tell(NodesLost(tuple(f"node-{number}" for number in numbers)))

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
        return self.tell(RunDone(run.number, tuple(reports)))

    def report(self, work: Work, status: Status = "committed") -> Report:
        says = work.task in self.coordinator.output_tasks and work.lane in ("exact", "tentative")
        outputs = {epoch: f"{work.lane}-{epoch}-{work.task}" for epoch in work.epochs} if says else {}
        reached = work.last if status == "committed" else work.start
        rows = dict.fromkeys(outputs, 1)
        return Report(
            work.task, work.lane, work.node, status, reached, rows_out=1, outputs=outputs, output_rows=rows,
            message=status,
        )  # fmt: skip

    def epoch(self, number: int) -> list[Instruction]:
        """An epoch that goes well, and the checkpoint that may follow."""
        self.arrive(number)
        said = self.finish(self.only(Run))
        for wanted in [each for each in said if isinstance(each, Checkpoint)]:
            self.tell(CheckpointDurable(wanted.epoch))
        return said

    def settle(self) -> None:
        """Answer runs and checkpoints until nothing is under way."""
        while self.coordinator.runs:
            self.finish(next(iter(self.coordinator.runs.values())))
            for wanted in [each for each in self.said if isinstance(each, Checkpoint)]:
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
        return self.coordinator.standing.homes[task(written)].node

    def position(self, written: str) -> int:
        return self.coordinator.standing.homes[task(written)].position


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
