"""What comes of a run: its reports move tasks forward or drop copies, its outputs are published, its epoch answered.

A part of the coordinator with a file of its own.
"""

from __future__ import annotations

from holdfast.runtime.events import SHED, EpochDone, Halt, Publish, Report, Run, RunDone, Work
from holdfast.runtime.lanes import answered
from holdfast.runtime.moving import Moving
from holdfast.runtime.standing import Fork, Home

PATIENCE = 5
"""A run whose barriers do not come is repeated this often before the job gives up."""


class Outcomes(Moving):
    """Runs under way are in ``runs`` until their reports come, or the word that they broke."""

    halted: bool
    pending: int | None
    _live: int | None
    _blocked: dict[str, int]
    _failed_at: int
    _plan_due: bool
    _answer_first: bool
    _answer_due: bool

    def _buffer_if_down(self) -> None:
        """Adaptive buffering begins when something is down; a checkpoint after recovery ends it."""
        if self.standing.down and self.settings.recovery == "incremental":
            self.buffering = True

    def _forget(self, number: int) -> None:
        self.runs.pop(number, None)
        self._begun.pop(number, None)
        if number == self._live:
            self._live = None
        if number == self._replaying:
            self._replaying = None
        if self.scaling.shadow is not None and self.scaling.shadow.run == number:
            self.scaling.shadow.run = None

    def _done(self, event: RunDone) -> None:
        run = self.runs.get(event.run)
        if run is None:
            return
        checkpoint, went = self._begun[event.run]
        self._forget(event.run)
        if not run.settled:
            self._shadow_done(run, event.reports, went, checkpoint == self.standing.checkpoint)
            return
        if self._uncommitted(run, [report for report in event.reports if report.status != "committed"]):
            return
        if run.live is not None:
            self.standing.head = max(self.standing.head, run.live)
        works = {(work.task, work.lane): work for work in run.works}
        for report in event.reports:
            if (report.task, report.lane) in works:
                work = works[report.task, report.lane]
                if work.node not in went:
                    self._committed(work, report, checkpoint == self.standing.checkpoint)
        self._publish(run, event.reports)
        if run.live is not None:
            self._measurements.sources(r for r in event.reports if not self.topology.inputs_of(r.task.operator))
            self._answered(run, event.reports)
        else:
            self._overtaken = 0

    def _uncommitted(self, run: Run, reports: list[Report]) -> bool:
        """A function that fails ends the job; state that is not where it should be is lost, and the run is repeated."""
        by_status: dict[str, list[Report]] = {}
        for report in reports:
            by_status.setdefault(report.status, []).append(report)
        failed = next((report for report in by_status.get("failed", ()) if report.lane != "tentative"), None)
        for report in by_status.get("failed", ()):
            if report.lane == "tentative":
                # It was given less than it is made for: it has no say until its input is whole again.
                self._mute.add(report.task)
                self._record("mute", task=str(report.task), message=report.message)
        for report in by_status.get("missing", ()):
            self._record("missing", task=str(report.task), lane=report.lane, node=report.node, message=report.message)
            self._drop_copy(run, report)
        if set(by_status) == {"blocked"}:
            # Kept outputs that are not there any more are the one thing that a receiver waits for in vain.
            for task in run.buffers:
                self.standing.buffers.pop(task, None)
            self._blocked[run.kind] += 1
            if self._blocked[run.kind] > PATIENCE:
                failed = by_status["blocked"][0]
        elif not by_status:
            self._blocked[run.kind] = 0
        if failed is not None:
            self.halted = True
            self._record("failed", task=str(failed.task), message=failed.message)
            self._out.append(Halt(failed.message))
        return bool(reports)

    def _drop_copy(self, run: Run, report: Report) -> None:
        standing, task = self.standing, report.task
        if report.lane == "replica":
            twin = standing.replicas.get(task)
            if twin is not None and twin.node == report.node:
                del standing.replicas[task]
                return
        elif report.lane == "side":
            standing.side.pop(task, None)
            return
        elif report.lane == "tentative" and any(
            work.task == task and work.lane == "tentative" and work.origin == "local" for work in run.works
        ):
            standing.forks.pop(task, None)
            return
        if task in standing.homes and standing.homes[task].node == report.node:
            standing.drop_home(task)
            self._plan_due = True
            self._failed_at = self.pending if self.pending is not None else standing.head + 1
            self._buffer_if_down()

    def _committed(self, work: Work, report: Report, side_holds: bool) -> None:
        standing, task = self.standing, work.task
        home = standing.homes.get(task)
        if work.lane == "tentative":
            if home is not None and home.node == work.node:
                fork = standing.forks.get(task)
                base = fork.base if fork is not None and fork.number == work.fork else work.start
                standing.forks[task] = Fork(work.fork, base, work.last, work.fidelity * (work.last - base))
            return
        if work.lane == "side":
            if side_holds:
                standing.side[task] = (work.node, work.last)
            return
        twin = standing.replicas.get(task)
        if twin is not None and (twin.node, twin.position) == (work.node, work.start):
            standing.replicas[task] = Home(work.node, work.last, fresh=False)
        # A replica's work counts for the primary too: it may have been promoted while it ran.
        if home is None or (home.node, home.position) != (work.node, work.start):
            return
        standing.homes[task] = Home(work.node, work.last, fresh=False)
        if work.last >= self._failed_at - 1:
            standing.cold.discard(task)
        if work.last >= standing.head:
            standing.forks.pop(task, None)
            self._mute.discard(task)
        if work.keep and self.buffering:
            held = standing.buffers.get(task)
            grows = held is not None and held[0] == work.node and held[2] == work.first - 1
            standing.buffers[task] = (work.node, held[1] if held and grows else work.first, work.last)
        if standing.all_up:
            self._measurements.task(task, report, work.last - work.first + 1)

    def _publish(self, run: Run, reports: tuple[Report, ...]) -> None:
        final, tentative = [], []
        for report in reports:
            for epoch in sorted(report.outputs):
                if report.lane == "exact" and epoch > self._published.get(report.task, -1):
                    final.append((epoch, report.task))
                elif report.lane == "tentative":
                    tentative.append((epoch, report.task))
        for epoch, task in final:
            self._published[task] = max(epoch, self._published.get(task, -1))
        if final:
            self._out.append(Publish(run.number, tuple(sorted(final)), "final"))
        if tentative:
            self._out.append(Publish(run.number, tuple(sorted(tentative)), "tentative"))

    def _answered(self, run: Run, reports: tuple[Report, ...]) -> None:
        lanes = [work.lane for work in run.works]
        active = {work.task for work in run.works if work.lane in ("exact", "tentative")}
        absent = [task for task in self.standing.tasks if task not in active]
        fidelity, queries = answered(self._measured, run.works) if absent or "tentative" in lanes else (1.0, {})
        sources = [report for report in reports if not self.topology.inputs_of(report.task.operator)]
        rows, shed = sum(r.rows_in for r in sources), sum(r.counters.get(SHED, 0) for r in sources)
        if shed:
            kept = rows / (rows + shed)
            fidelity, queries = fidelity * kept, {name: value * kept for name, value in queries.items()}
        self._record(
            "epoch",
            epoch=run.live,
            exact=lanes.count("exact"),
            tentative=lanes.count("tentative"),
            replicas=lanes.count("replica"),
            absent=len(absent),
            inexact={
                **{str(work.task): "tentative" for work in run.works if work.lane == "tentative"},
                **{str(task): "absent" for task in absent},
            },
            fidelity=fidelity,
            queries=queries,
            rows_in=rows,
            shed=shed,
            state_bytes=sum(report.state_bytes for report in reports if report.lane == "exact"),
            state_rows=sum(report.state_rows for report in reports if report.lane == "exact"),
            state=self._state_by_operator(reports),
            counters=_counted(reports),
        )
        self._answer_first = self._answer_due = False
        self._epoch_done(run.live)

    def _state_by_operator(self, reports: tuple[Report, ...]) -> dict[str, int]:
        sizes: dict[str, int] = {}
        for report in reports:
            if report.lane == "exact" and report.state_bytes:
                sizes[report.task.operator] = sizes.get(report.task.operator, 0) + report.state_bytes
        return sizes

    def _epoch_done(self, epoch: int | None) -> None:
        if epoch is not None and epoch == self.pending:
            self.pending = None
            self._out.append(EpochDone(epoch))


def _counted(reports: tuple[Report, ...]) -> dict[str, dict[str, int]]:
    """What operators counted in this epoch: late rows, and what users count. What was shed is told apart."""
    counted: dict[str, dict[str, int]] = {}
    for report in reports:
        for what, rows in report.counters.items() if report.lane in ("exact", "tentative") else ():
            if rows and what != SHED:
                mine = counted.setdefault(report.task.operator, {})
                mine[what] = mine.get(what, 0) + rows
    return counted
