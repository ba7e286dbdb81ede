"""Checkpoints on their way: what nodes bring to the store becomes one by its manifest; then old things go."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from holdfast.errors import HoldfastError
from holdfast.runtime.driver.ports import Failed, Retry, Runner
from holdfast.runtime.driver.telling import told
from holdfast.runtime.messages import CheckpointBroken, CheckpointDurable, TakeCheckpoint
from holdfast.runtime.worker.versions import Saved, Upload
from holdfast.state import Fenced, Unusable, Writer
from holdfast.state.journal import ORIGIN, ROWS, Journal

if TYPE_CHECKING:
    from holdfast.runtime.driver.driver import Driver


PAUSE = Retry()
MEASURED = "measured"


class Checkpoints:
    """``extra`` goes into every manifest."""

    def __init__(
        self, driver: Driver, runner: Runner, journal: Journal, writer: Writer, extra: Mapping[str, Any]
    ) -> None:
        self._driver = driver
        self._runner = runner
        self._journal = journal
        self._writer = writer
        self._extra = dict(extra)
        self._taking: int | None = None

    def request(self, wanted: TakeCheckpoint) -> None:
        """Begin a checkpoint, after a pause if it was tried before."""
        if (pause := PAUSE.pause(wanted.attempt)) > 0:
            self._driver.clock.after(pause, partial(self._take, wanted))
        else:
            self._driver.clock.post(partial(self._take, wanted))

    def _take(self, wanted: TakeCheckpoint) -> None:
        driver = self._driver
        if driver.ended:
            return
        if any(node not in driver.nodes for node in wanted.homes.values()):
            driver.tell(CheckpointBroken(wanted.epoch, "nodes were lost"))
            return
        uploads: dict[str, list[Upload]] = {}
        for task, node in wanted.homes.items():
            if driver.config.pipeline.state_schemas(task.operator):
                info, born = driver.nodes[node], wanted.shape.born.get(task, 0)
                since, retain = wanted.since_of(task), driver.snapshot.retain
                upload = Upload(info.folder, str(task), since, wanted.epoch, born, retain)
                uploads.setdefault(info.place, []).append(upload)
        self._taking = wanted.epoch
        self._runner.save(wanted.epoch, uploads, lambda saved: driver.clock.post(partial(self._saved, wanted, saved)))

    def cancel(self) -> None:
        if self._taking is not None:
            self._runner.cancel_save(self._taking)

    def _saved(self, wanted: TakeCheckpoint, result: Saved | Failed) -> None:
        driver, self._taking = self._driver, None
        if driver.ended:
            return
        if isinstance(result, Failed):
            if isinstance(result.error, HoldfastError) and not isinstance(result.error, Unusable):
                driver.note("checkpoint failed", {"epoch": wanted.epoch, "message": str(result.error)})
                driver.fail(result.error)
            else:
                driver.tell(CheckpointBroken(wanted.epoch, told(result.error)))
            return
        if result.misplaced:
            driver.tell(CheckpointBroken(wanted.epoch, result.misplaced, misplaced=True))
            return
        if result.missing:
            tasks = tuple(task for task in wanted.homes if str(task) in result.missing)
            driver.tell(CheckpointBroken(wanted.epoch, next(iter(result.missing.values())), tasks))
            return
        rows, measured = self._journal.rows_upto(wanted.epoch), driver.coordinator.measured()
        extra = {**self._extra, "shape": wanted.shape.to_json(), ROWS: rows, MEASURED: measured}
        if (origin := self._journal.origin_of(wanted.epoch)) is not None:
            extra[ORIGIN] = origin.to_json()
        size = sum(entry.bytes for files in result.entries.values() for entry in files)

        def commit() -> object:
            return self._writer.commit_checkpoint(wanted.epoch, result.entries, wanted.shape.routings, extra)

        def done(_: object) -> None:
            driver.tell(CheckpointDurable(wanted.epoch, size))
            if self._writer.needs_folding:
                fold = partial(self._writer.compact, self._writer.fold_at)
                driver.ports.background.submit("tidy", fold, self._folded)

        driver.durable.submit("checkpoint", commit, done)

    def _folded(self, result: object) -> None:
        """Chains of files that were not made shorter are tried again after the next checkpoint."""
        if isinstance(result, Failed) and isinstance(result.error, Fenced):
            self._driver.fail(result.error)
        elif isinstance(result, Failed):
            self._driver.note("compaction failed", {"error": told(result.error)})

    def trim(self, epoch: int) -> None:
        """What replay does not need any more goes, but for what a run under way reads; and what broken runs staged."""
        reading = self._driver.running.reads_from
        epoch = epoch if reading is None else min(epoch, reading - 1)
        oldest = self._driver.publisher.oldest(self._driver.running.oldest)

        def tidy() -> list[int]:
            self._driver.publisher.clear(oldest)
            return self._writer.trim(epoch)

        def done(gone: list[int] | Failed) -> None:
            if not isinstance(gone, Failed):
                self._journal.forget(max(gone, default=-1))
            elif isinstance(gone.error, Fenced):
                self._driver.fail(gone.error)
            else:
                self._driver.note("tidying failed", {"error": told(gone.error)})  # the next checkpoint tries again

        self._driver.ports.background.submit("tidy", tidy, done)
