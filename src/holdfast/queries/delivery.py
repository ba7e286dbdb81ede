"""Whole epochs for whoever asked for batches: each once it is final and complete, in order, at least once.

How far it has come is in the store, so after a crash it goes on with the next epoch: a batch is given again only if its
receiver had taken it and that was not written down yet. Its number tells. Nothing that was taken is let go of before a
look at the fence has shown that whoever comes next reads how far it was.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pyarrow as pa

from holdfast.errors import HoldfastError
from holdfast.runtime.driver.durable import taken
from holdfast.runtime.driver.publishing import BACKLOG, TRIES
from holdfast.runtime.failures import Failures
from holdfast.runtime.raised import line_of, own
from holdfast.state import Writer, cursor, output
from holdfast.state.entries import document, read_document
from holdfast.state.files import Files
from holdfast.state.sums import Sums

KEPT = 200
"""So many outputs that were taken may lie about before they are cleared away."""
LOOK_EVERY = 0.5


class NotTaken(HoldfastError):
    """Whoever was to take a batch would not."""


class Delivery:
    """``give`` gets the rows of an epoch and its number; ``fail`` ends the job, if it runs. One thread.

    ``look``: up to which epoch everything is final, if that is known, and the epoch of the checkpoint. ``error``: why
    no more is given.
    """

    def __init__(
        self,
        files: Files,
        give: Callable[[pa.Table | None, int], None],
        fail: Callable[[HoldfastError], None],
        look: Callable[[], tuple[int | None, int]],
    ) -> None:
        self._files = files
        self._look = look
        self._give = give
        self._fail = fail
        self.error: HoldfastError | None = None
        self._writer: Writer | None = None
        self._older: list[str] = []
        self._given = -1
        self._there: dict[int, set[str]] = {}
        self._listed = False
        """Which tasks have said something finally in an epoch, and whether that is all."""
        self._final = self._safe = -1
        self._ends = self._left = False
        self._over: Callable[[], None] = lambda: None
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="holdfast-batches", daemon=True)

    def begin(self, writer: Writer, again: bool = False) -> None:
        """Go on from where it stopped; now that this writer has the store, nobody else moves that on.

        ``again``: with the last batch that was taken, whose receiver lost it with the process.
        """
        self._writer = writer
        given = max(self._read() - again, -1)
        with self._changed:
            self._given = given
            self._changed.notify_all()
        self._thread.start()

    def heard(self, event: Mapping[str, Any]) -> None:
        """On the driver's thread, before the coordinator hears of it: outputs have their names now."""
        if event["kind"] == "published" and event["of"] == "final":
            with self._changed:
                if len(event["epochs"]) == 1:
                    self._there.setdefault(event["epochs"][0], set()).update(event["tasks"])
                else:
                    self._listed = False

    def finals(self) -> None:
        """Look how far every task has said its last word; up to the checkpoint nothing will be said again."""
        epoch, checkpoint = self._look()
        with self._changed:
            self._safe = max(self._safe, checkpoint)
            if epoch is not None and epoch > self._final:
                self._final = epoch
                self._changed.notify_all()

    def end(self, over: Callable[[], None], begins: bool = True) -> None:
        """Nothing follows; ``over`` is called when all is delivered. ``begins``: ``begin`` or ``leave`` is called."""
        with self._changed:
            self._ends, self._over = True, over
            waits = begins and not self._left
            self._changed.notify_all()
        if self._thread.ident is None and not waits:
            over()

    def leave(self) -> None:
        """``begin`` is not called: what has ended waits for no batch."""
        with self._changed:
            self._left, ended = True, self._ends
        if ended and self._thread.ident is None:
            self._over()

    def wait(self, epoch: int, timeout: float | None = None) -> bool:
        """Until this epoch was delivered, or nothing more will be."""
        with self._changed:
            return self._changed.wait_for(lambda: self._given >= epoch or self._ends, timeout)

    def pace(self) -> None:
        """Whoever could be given more waits until it has taken what is there."""
        with self._changed:
            self._changed.wait_for(lambda: self._final - self._given <= BACKLOG or self._ends)

    def _run(self) -> None:
        try:
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._final > self._given or self._ends, LOOK_EVERY)
                    ended, epoch = self._ends, self._given + 1
                if self._final < epoch:
                    if ended:
                        return
                    self.finals()
                    continue
                self._deliver(epoch)
                taken(partial(self._write, epoch))
                with self._changed:
                    self._given = epoch
                    self._changed.notify_all()
        except HoldfastError as error:
            self.error = error
        except Exception as error:  # no thread ends unseen
            self.error = NotTaken(f"batch {self._given + 1}: {type(error).__name__}: {error}")
        finally:
            if self.error is not None:
                self._fail(self.error)
            with self._changed:
                self._changed.wait_for(lambda: self._ends)
            self._over()

    def _write(self, epoch: int) -> None:
        """Put down how far it has come; if that succeeds, whoever has the store next has read it."""
        assert self._writer is not None
        put_given(self._files, epoch, self._writer.token)
        self._writer.check()
        if self._older:
            self._files.delete_many(self._older)
            self._older = []

    def _deliver(self, epoch: int) -> None:
        assert self._writer is not None
        rows = taken(partial(self._rows, epoch))
        failures = Failures(TRIES.limit)
        while True:
            taken(self._writer.guard)  # the attempt before this one may have lasted for as long as a takeover takes
            try:
                self._give(rows, epoch)
                return
            except Exception as error:
                if failures.over(error):
                    what = f"batch {epoch} was not taken after {failures.count} tries: {line_of(error)}"
                    raise NotTaken(what) from own(error)
            with self._changed:
                self._changed.wait_for(lambda: self._ends, TRIES.pause(failures.count))

    def _rows(self, epoch: int) -> pa.Table | None:
        """What there is of an epoch."""
        assert self._writer is not None
        self._writer.check()
        with self._changed:
            known, self._listed = self._listed, True
        try:
            if not known:
                self._list()
            self._forget(epoch)
        except BaseException:
            self._listed = False
            raise
        with self._changed:
            tasks = sorted(self._there.get(epoch, ()))
        proofs = Sums(self._files)
        tables = [output.read(self._files, "final", epoch, task, proofs) for task in tasks]
        return pa.concat_tables(tables, promote_options="permissive") if tables else None

    def _list(self) -> None:
        found = output.written(self._files, "final")
        with self._changed:
            for at, task in found:
                self._there.setdefault(at, set()).add(task)

    def _forget(self, epoch: int) -> None:
        """What was taken before this epoch and cannot be made again is let go of, once there is much of it."""
        with self._changed:
            gone = min(epoch - 1, self._safe)
            if gone < 0 or sum(len(tasks) for at, tasks in self._there.items() if at < epoch) <= KEPT:
                return
            self._there = {at: tasks for at, tasks in self._there.items() if at > gone}
        output.forget(self._files, "final", gone)

    def _read(self) -> int:
        there = cursor.of_writers(self._files, "batches")
        self._older = [name for token, name in there if self._writer and token < self._writer.token]
        return given(self._files)


def given(files: Files) -> int:
    """Up to which epoch everything was taken; -1 for nothing."""
    there = cursor.of_writers(files, "batches")
    return int(read_document(files, "batches", there[-1][1])["epoch"]) if there else -1


def put_given(files: Files, epoch: int, token: int) -> None:
    """Everything up to this epoch was taken, says this writer."""
    name = f"{cursor.FOLDER}/batches-{token:010d}.json"
    files.put(name, document(files, "batches", {"epoch": epoch, "token": token}), True)
