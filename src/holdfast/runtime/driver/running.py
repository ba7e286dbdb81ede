"""Runs: laid out over what the journal gives, handed to the runner, journalled, reported; or broken, and why.

No run passes over an epoch: what it reads comes from ``Journal.span``, which gives all of it or ends the job.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from holdfast.errors import HoldfastError, Invalid
from holdfast.runtime.coordinator.giving_up import FAILURES
from holdfast.runtime.driver.migration import serves
from holdfast.runtime.driver.ports import CodeFailed, Failed, Retry, Runner, RunResult
from holdfast.runtime.driver.telling import told
from holdfast.runtime.failures import ONCE_MORE
from holdfast.runtime.messages import CheckpointLost, EpochJournalled, Report, Run, RunBroken, RunDone
from holdfast.runtime.shape import reshaped_pipeline
from holdfast.runtime.worker.plan import epochs_of, lay_out
from holdfast.runtime.worker.stored import StoredState, stored_states
from holdfast.runtime.worker.worker import newest_time
from holdfast.state import Checkpoint, Writer
from holdfast.state.journal import Journal, JournalEpoch, JournalSpan
from holdfast.topology import Task, Topology

if TYPE_CHECKING:
    from holdfast.runtime.driver.driver import Driver

PAUSE = Retry()
SUSPICION = 2.0
"""A run that broke for no reason that can be seen: so many seconds are given for a lost node to be noticed."""
TRIES = 3
"""A run that cannot be finished although no node was lost is tried so often."""
FEW, MOST, LAST = 0.1, 0.25, 3
"""While each of the last epochs took fewer seconds than the first, all its tasks one after the other, or less than all
else about its run did and than the second, one slot for each place is enough: an exchange and another Spark task cost
more than a second core saves. On a busy machine tasks take longer, but so does all else."""


class RunFailed(HoldfastError):
    """The job cannot go on; the message is the coordinator's or Spark's own word."""


class Running:
    """The runs under way of one driver."""

    def __init__(self, driver: Driver, runner: Runner, journal: Journal, writer: Writer) -> None:
        self._driver = driver
        self._runner = runner
        self._journal = journal
        self._writer = writer
        self._topologies: dict[int, Topology] = {}
        self._newest = -1
        self._requested: set[int] = set()
        self._begun: dict[int, tuple[Run, float]] = {}
        self._cancelled: set[int] = set()
        self._suspects: dict[int, tuple[BaseException, float, frozenset[str]]] = {}
        self._strikes = 0
        self._code_failed = 0
        """How often in a row a run failed for no reason that can be seen, and by the user's own code."""
        self._small: deque[bool] = deque(maxlen=LAST)
        """Whether there was little to do in each of the last epochs."""

    @property
    def oldest(self) -> int:
        """The oldest run that is under way, or the next one to come."""
        return min([*self._begun, *self._requested, self._newest + 1])

    @property
    def reads_from(self) -> int | None:
        """The oldest epoch that a run under way may still read from the journal."""
        return min((epochs.start for run, _ in self._begun.values() if (epochs := epochs_of(run))), default=None)

    def topology(self, run: Run) -> Topology:
        """The topology of a run's shape, as workers have it."""
        if run.shape.version not in self._topologies:
            pipeline = self._driver.config.pipeline
            self._topologies[run.shape.version] = reshaped_pipeline(pipeline, run.shape).topology
        return self._topologies[run.shape.version]

    def of_epoch(self, epoch: int) -> int | None:
        """The run under way that is to answer an epoch."""
        return next((number for number, (run, _) in self._begun.items() if run.epoch == epoch), None)

    def request(self, run: Run) -> None:
        """Begin a run, after a pause if it was tried before; what else was decided together with it comes first."""
        self._newest = run.number
        self._requested.add(run.number)
        if (pause := PAUSE.pause(run.attempt)) > 0:
            self._driver.clock.after(pause, partial(self._start, run))
        else:
            self._driver.clock.post(partial(self._start, run))

    def _start(self, run: Run) -> None:
        driver = self._driver
        if driver.ended:
            return
        self._requested.discard(run.number)
        if self._lost(run):
            self._cancelled.discard(run.number)
            driver.tell(RunBroken(run.number, "nodes were lost"))
            return
        epochs = epochs_of(run)
        try:
            span = self._journal.span(epochs.start, epochs.stop - 1) if epochs else JournalSpan(())
        except HoldfastError as error:
            driver.fail(error)
            return
        snapshot = driver.snapshot
        allowed = driver.shedder.allowed if driver.shedder is not None and run.ingest is not None else None
        leaving = {*snapshot.leaving, *(driver.nodes.keys() - set(snapshot.nodes))}
        topology, retain, forks = self.topology(run), snapshot.retain, snapshot.forks
        few = run.kind == "epoch" and not epochs and len(self._small) == LAST and all(self._small)
        plan = lay_out(topology, run, driver.nodes, span, retain, forks, allowed, leaving, few)
        plan = replace(plan, stored=self._stored(run))
        batch = driver.batch(run.ingest) if run.ingest is not None else None
        self._begun[run.number] = (run, driver.clock.now())
        self._runner.start(plan, batch, lambda result: driver.clock.post(partial(self._ended, run, result)))

    def _stored(self, run: Run) -> dict[tuple[Task, int], StoredState]:
        """What gives the states that works begin with, of checkpoints at hand; of others, workers read the manifest."""
        pipeline = self._driver.config.pipeline
        keeping = {step.name for step in pipeline.steps if pipeline.state_schemas(step.name)}
        wanted: dict[int, set[Task]] = {}
        for work in run.works:
            if work.origin == "checkpoint" and work.start >= 0 and work.task.operator in keeping:
                wanted.setdefault(work.start, set()).add(work.task)
        found: dict[tuple[Task, int], StoredState] = {}
        for epoch, tasks in wanted.items():
            # Where a task is missing, who is to restore it says so.
            with contextlib.suppress(Invalid):
                if (checkpoint := self._writer.at_hand(epoch)) is not None:
                    states = stored_states(pipeline.topology, run.shape, checkpoint, tasks)
                    found |= {(task, epoch): state for task, state in states.items()}
        return found

    def cancel(self, number: int) -> None:
        if number in self._begun:
            self._runner.cancel(number)
        if number in self._begun or number in self._requested:
            self._cancelled.add(number)

    def cancel_all(self) -> None:
        for number in self._begun:
            self._runner.cancel(number)

    def _lost(self, run: Run) -> bool:
        used = {work.node for work in run.works} | {node for node, _, _ in run.buffers.values()}
        return run.number in self._cancelled or not used <= self._driver.nodes.keys()

    def _ended(self, run: Run, result: RunResult | Failed) -> None:
        driver, (_, began) = self._driver, self._begun[run.number]
        if driver.ended:
            return
        if isinstance(result, Failed):
            self._failed(run, result.error)
            return
        del self._begun[run.number]
        self._strikes = self._code_failed = 0
        self._cancelled.discard(run.number)
        seconds = driver.clock.now() - began
        restored = max((report.restored for report in result.reports), default=0.0)
        read = {"restored": round(restored, 6)} if restored > 0 else {}
        driver.note("run", {"run": run.number, "of": run.kind, "seconds": round(seconds, 6), **read})
        driver.publisher.staged(run.number, result.reports)
        whole = all(report.status == "committed" for report in result.reports)
        if run.kind == "epoch" and whole:
            worked = sum(report.took for report in result.reports if report.node)
            self._small.append(worked < max(FEW, min(MOST, seconds - worked)))
        if run.ingest is not None and run.kind == "epoch" and whole:
            self._append(run, run.ingest, result, lambda: self._report(run, result))
        else:
            self._report(run, result)

    def _append(self, run: Run, epoch: int, result: RunResult, then: Callable[[], None]) -> None:
        """Make the epoch that a run has ingested exist."""
        time = newest_time(self._driver.config.pipeline, result.reports)
        entry = self._journal.next(epoch, result.pieces, dict(run.shape.routings), time)

        def done(whole: JournalEpoch) -> None:
            self._journal.learn(whole)
            rows = whole.rows if whole.pieces else None
            self._driver.tell(EpochJournalled(epoch, rows, whole.time))
            then()

        self._driver.durable.submit("commit", partial(self._commit, entry, True), done)

    def _commit(self, entry: JournalEpoch, read: bool) -> JournalEpoch:
        """Make an epoch exist, with the batch that it was made of. ``read``: a run has read all of that batch."""
        whole = replace(entry, origin=self._driver.ports.source.origin(entry.epoch, read))
        self._journal.commit(self._writer, whole)
        return whole

    def _report(self, run: Run, result: RunResult) -> None:
        driver, reports = self._driver, result.reports

        # What an epoch run has read, the journal tells.
        reads = run.kind == "stopgap" and run.ingest is not None
        time = newest_time(driver.config.pipeline, reports) if reads else None

        def done() -> None:
            driver.tell(RunDone(run.number, reports, time))
            driver.publisher.forget(run.number)  # what nobody asked to publish by now will not be

        if run.kind == "stopgap":
            done()
            return
        if any(report.status != "committed" for report in reports):
            driver.publisher.forget(run.number)
        elif run.epoch is not None:
            driver.answered_by(reports)
        if refused := self._refused(reports):
            if (pause := driver.durable.refused(refused.message)) is not None:
                driver.clock.after(pause, done)
        elif damaged := [report.reached for report in reports if report.status == "damaged"]:
            self._check_checkpoint(min(damaged), done)
        else:
            done()

    def _refused(self, reports: Sequence[Report]) -> Report | None:
        """Somebody whom a disk told no, if that is to be waited for: not where others have disks that may be well."""
        snapshot = self._driver.snapshot
        staying = set(snapshot.nodes) - set(snapshot.leaving)
        nodes = {name: info for name, info in self._driver.nodes.items() if name in staying}
        full = {nodes[report.node].host for report in reports if report.status == "unfit" and report.node in nodes}
        waiting = ("unusable",) if any(info.host not in full for info in nodes.values()) else ("unusable", "unfit")
        return next((report for report in reports if report.status in waiting), None)

    def _check_checkpoint(self, epoch: int, then: Callable[[], None]) -> None:
        """A checkpoint is said not to be whole: the newest one that is, and that the journal reaches, is next."""

        def found(checkpoint: Checkpoint | None) -> None:
            self._driver.tell(CheckpointLost(epoch, -1 if checkpoint is None else checkpoint.epoch))
            then()

        self._driver.durable.submit("checkpoint", partial(self._writer.store.latest, self._usable), found)

    def _usable(self, epoch: int) -> bool:
        """Whether the job can go on from a checkpoint: the journal reaches it, and its states fit."""
        store = self._writer.store
        return self._journal.reaches(epoch) and serves(store, self._driver.config.pipeline, store.checkpoint(epoch))

    # Runs that did not finish

    def _failed(self, run: Run, error: BaseException) -> None:
        """Because nodes went (noticed here at the latest), or for no good reason."""
        if run.kind == "stopgap":
            self._broken(run, told(error))
        elif isinstance(error, HoldfastError):
            self._driver.fail(error)
        elif run.number in self._cancelled:
            self._broken(run, "nodes were lost")
        elif isinstance(error, CodeFailed):
            self._by_code(run, error)
        else:
            self._ask_by_whom(run, error)

    def _by_code(self, run: Run, error: CodeFailed) -> None:
        """No node is to blame: it is tried once more, in case that it was a race."""
        self._code_failed += 1
        if self._code_failed < ONCE_MORE:
            self._broken(run, str(error))
            return
        failed = RunFailed(f"epoch {run.ingest} failed in {self._code_failed} tries: {error}")
        failed.__cause__ = error.__cause__
        self._driver.fail(failed)

    def _ask_by_whom(self, run: Run, error: BaseException) -> None:
        """Nodes by which it broke are there: then nobody is waited for who may turn out lost."""
        driver = self._driver
        nodes = {name: info.place for name, info in driver.nodes.items() if name in driver.snapshot.nodes}

        def found(places: frozenset[str] | Failed) -> None:
            if driver.ended:
                return
            failing = frozenset(
                name for name, place in nodes.items() if not isinstance(places, Failed) and place in places
            )
            patience = 0.0 if failing else SUSPICION
            self._suspects[run.number] = (error, driver.clock.now() + patience, failing)
            driver.watching.look()

        driver.ports.background.submit(
            "blame", lambda: self._runner.failing(run.number, sorted(set(nodes.values()))), found
        )

    def settle_suspects(self) -> None:
        """After a look: of runs that failed, a lost node was noticed by now, or there was none."""
        for number, (error, until, failing) in list(self._suspects.items()):
            run, _ = self._begun[number]
            gone = self._lost(run)
            if not gone and self._driver.clock.now() < until:
                continue
            del self._suspects[number]
            self._strikes = 0 if gone else self._strikes + 1
            # Where nodes are to blame, each may be given up before it is said that nobody can.
            tries = TRIES + FAILURES * len(self._driver.nodes) if failing else TRIES
            if self._strikes > tries:
                self._driver.fail(RunFailed(f"Spark could not finish a run in {tries} tries: {told(error)}"))
            else:
                self._broken(run, *(("nodes were lost",) if gone else (told(error), failing)))

    def _broken(self, run: Run, reason: str, failing: frozenset[str] = frozenset()) -> None:
        """Nothing of the run counts, but what it has written of the journal, if that is all of the epoch."""
        driver = self._driver
        del self._begun[run.number]
        self._cancelled.discard(run.number)
        driver.publisher.forget(run.number)
        if run.ingest is None or run.kind == "stopgap":
            driver.tell(RunBroken(run.number, reason, failing))
            return
        epoch, routings = run.ingest, dict(run.shape.routings)

        def adopt() -> JournalEpoch | None:
            entry = self._journal.adopt(self._writer.store, self._writer.token, epoch, run.number, routings)
            return None if entry is None else self._commit(entry, False)

        def done(adopted: JournalEpoch | None) -> None:
            if adopted is not None:
                self._journal.learn(adopted)
                driver.note("adopted", {"epoch": epoch, "run": run.number})
                driver.tell(EpochJournalled(epoch, adopted.rows, adopted.time))
            driver.tell(RunBroken(run.number, reason, failing))

        driver.durable.submit("commit", adopt, done)
