"""Outputs on their last way: what workers have staged is put in its place, durably, and given to the sink.

The sink is told of every output at least once, in order for each task. How far it has come is in the store, so that
after a crash it goes on from there; (epoch, task, kind) tells an output that comes again.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.errors import HoldfastError
from holdfast.runtime.driver.durable import Durable
from holdfast.runtime.driver.ports import Background, Clock, Failed, Output, Retry, Sink
from holdfast.runtime.failures import Failures
from holdfast.runtime.messages import Publish, Published, Report
from holdfast.runtime.raised import line_of, own
from holdfast.state import Fenced, Unusable, cursor, output
from holdfast.state.cursor import Cursor
from holdfast.state.files import Files
from holdfast.state.output import Kind, StagedOutput
from holdfast.state.sums import Sums
from holdfast.topology import Task

BACKLOG = 16
"""So many epochs may wait for the sink before the stream waits for it too."""
TRIES = Retry(limit=6, first=0.1, most=5.0)
"""A sink that raises what may pass is given the output so often."""


class SinkFailed(HoldfastError):
    """The sink would not take an output."""


@dataclass(slots=True)
class _Delivery:
    """Outputs of one publication, by (kind, epoch, task), and how many of them the sink has taken."""

    outputs: Sequence[tuple[Kind, int, str]]
    taken: int = 0
    upto: int = -1
    """Once they were taken, the sink has had all that is final up to this epoch."""
    failed_at: int = -1
    failures: Failures = field(default_factory=lambda: Failures(TRIES.limit))
    """How often the sink has raised over the output number ``failed_at``."""


@dataclass(slots=True)
class Publisher:
    """``tell`` passes an event to the coordinator, ``note`` one to the history, ``fail`` ends the job.

    ``check``: Fenced if a newer writer has the store: nothing is placed or deleted then. ``guard``: the same before
    each call of the sink.
    ``settled``: up to which epoch all that is final is in its place.
    """

    files: Files
    token: int
    sync: bool
    durable: Durable
    clock: Clock
    background: Background
    tell: Callable[[Published], None]
    note: Callable[[str, Mapping[str, Any]], None]
    fail: Callable[[BaseException], None]
    check: Callable[[], None]
    guard: Callable[[], None]
    settled: Callable[[], int]
    sink: Sink | None = None
    on_delivered: Callable[[], None] = lambda: None
    _staged: dict[tuple[int, str, int, Task], StagedOutput] = field(default_factory=dict)
    _placing: list[int] = field(default_factory=list)
    _cursor: Cursor = field(default_factory=Cursor)
    _written: list[str] | None = None
    """The documents of cursors that are there, once they were listed."""
    _queued: Cursor = field(default_factory=Cursor)
    _waiting: deque[_Delivery] = field(default_factory=deque)

    # What is put in place

    def staged(self, run: int, reports: Iterable[Report]) -> None:
        """Workers have written these; whether they count is for the coordinator to say."""
        for report in reports:
            for epoch, staged in report.outputs.items():
                self._staged[run, report.lane, epoch, report.task] = staged

    def place(self, wanted: Publish) -> None:
        """Put the outputs of a run in their place; the others of its lane go."""
        lane = "exact" if wanted.kind == "final" else "tentative"
        chosen = [self._staged.pop((wanted.run, lane, epoch, task)) for epoch, task in wanted.outputs]
        stamps = [wanted.stamps.get(task, 1.0) for _, task in wanted.outputs]
        rest = [self._staged.pop(key) for key in list(self._staged) if key[:2] == (wanted.run, lane)]

        def put() -> list[StagedOutput]:
            self.check()  # what was staged before this is deleted by whoever comes next, before it looks
            placed = output.stamped(self.files, chosen, stamps, self.sync) if wanted.kind == "tentative" else chosen
            output.place(self.files, placed, self.sync)
            return list(placed)

        def done(placed: list[StagedOutput]) -> None:
            self._placed(wanted, placed)
            if spent := list(dict.fromkeys(each.path for each in (*chosen, *placed, *rest))):
                # Nobody waits for this; what is left of it goes with what broken runs left.
                self.background.submit("tidy", lambda: self.files.delete_many(spent), lambda _: None)

        self._placing.append(wanted.run)
        self.durable.submit("publish", put, done)

    def _placed(self, wanted: Publish, chosen: Sequence[StagedOutput]) -> None:
        self._placing.remove(wanted.run)
        epochs = sorted({epoch for epoch, _ in wanted.outputs})
        tasks = sorted({str(task) for _, task in wanted.outputs})
        rows = sum(each.rows for each in chosen)
        told = {"of": wanted.kind, "epochs": epochs, "tasks": tasks, "run": wanted.run}
        self.note("published", {**told, "rows": rows, "fidelity": wanted.fidelity})
        self.tell(Published(wanted.run, wanted.kind))
        self._queue([(each.kind, each.epoch, each.task) for each in chosen])

    def forget(self, run: int) -> None:
        """Nothing of this run will be published; what it staged is cleared later."""
        for key in [key for key in self._staged if key[0] == run]:
            del self._staged[key]

    def oldest(self, newest: int) -> int:
        """The oldest run that has staged what may still be published; ``newest``: of runs, for when none has."""
        return min([*(key[0] for key in self._staged), *self._placing, newest])

    def clear(self, before: int) -> int:
        """Files that earlier runs than this staged and nobody will publish, of earlier writers too. Blocks; how many.

        Those of a newer writer are none of ours.
        """

        def keep(path: str) -> bool:
            token, run = (int(part) for part in path.rpartition("/")[2].split("-", 2)[:2])
            return token > self.token or (token == self.token and run >= before)

        self.check()
        return output.clear_staged(self.files, keep)

    # What the sink is given

    def resume(self, remade: Mapping[str, int]) -> None:
        """Go on from the cursor: what was put in place and not taken yet is given again. Blocks.

        ``remade``: from which epoch on a task's final outputs are placed again, and given then, in their order.
        A sink that is new to a store hears what is published from now on.
        """
        if self.sink is None:
            return
        found = cursor.read(self.files)
        there = [(kind, epoch, task) for kind in output.KINDS for epoch, task in output.written(self.files, kind)]
        if found is None:
            found = Cursor().after(there)
            self._written = cursor.write(self.files, found, self.token, self.sync)
        self._cursor = self._queued = found
        order = {"tentative": 0, "final": 1}
        missed = [
            (kind, epoch, task)
            for kind, epoch, task in there
            if not found.given(kind, task, epoch) and not (kind == "final" and epoch >= remade.get(task, math.inf))
        ]
        self._queue(sorted(missed, key=lambda each: (each[1], order[each[0]], each[2])))

    @property
    def backlog(self) -> int:
        """Epochs whose outputs the sink has not taken yet."""
        return len({epoch for each in self._waiting for _, epoch, _ in each.outputs[each.taken :]})

    def _queue(self, outputs: Sequence[tuple[Kind, int, str]]) -> None:
        if self.sink is None:
            return
        new = [(kind, epoch, task) for kind, epoch, task in outputs if not self._queued.given(kind, task, epoch)]
        if new:
            self._queued = self._queued.after(new)
            self._waiting.append(_Delivery(new))
            if len(self._waiting) == 1:
                self._deliver()

    def _deliver(self) -> None:
        first = self._waiting[0]
        # Where nothing else waits, the sink has had all that was put in place up to now.
        first.upto = self.settled() if len(self._waiting) == 1 else -1
        self.background.submit("deliver", lambda: self._give(first), self._given)

    def _give(self, delivery: _Delivery) -> Cursor:
        """In the queue of deliveries: user code runs here, and nowhere else."""
        assert self.sink is not None
        reached, known = self._cursor.after(delivery.outputs, delivery.upto), Sums(self.files)
        while delivery.taken < len(delivery.outputs):
            kind, epoch, task = delivery.outputs[delivery.taken]
            table = output.read(self.files, kind, epoch, task, known)
            told = table["fidelity"][0].as_py() if "fidelity" in table.column_names and len(table) else 1.0
            self.guard()  # the call before this one may have lasted for as long as a takeover takes
            self.sink(Output(epoch, task, kind, told, table))
            delivery.taken += 1
        self._written = cursor.write(self.files, reached, self.token, self.sync, self._written)
        return reached

    def _given(self, result: Cursor | Failed) -> None:
        first = self._waiting[0]
        if isinstance(result, Failed):
            self._again(first, result.error)
            return
        self._cursor = result
        self._waiting.popleft()
        if self._waiting:
            self._deliver()
        self.on_delivered()

    def _again(self, delivery: _Delivery, error: BaseException) -> None:
        if isinstance(error, Unusable):
            if (pause := self.durable.refused(str(error))) is not None:
                self.clock.after(pause, self._deliver)
            return
        if isinstance(error, Fenced):
            self.fail(error)
            return
        if delivery.failed_at != delivery.taken:
            delivery.failed_at, delivery.failures = delivery.taken, Failures(TRIES.limit)
        over, tries = delivery.failures.over(error), delivery.failures.count
        kind, epoch, task = delivery.outputs[min(delivery.taken, len(delivery.outputs) - 1)]
        what = f"{kind} output of {task} in epoch {epoch}: {line_of(error)}"
        if over:
            failed = SinkFailed(f"the sink was given the {what} ({tries} times)")
            failed.__cause__ = own(error)
            self.fail(failed)
            return
        pause = TRIES.pause(tries)
        self.note("sink failed", {"output": what, "tries": tries, "retry_seconds": pause})
        self.clock.after(pause, self._deliver)
