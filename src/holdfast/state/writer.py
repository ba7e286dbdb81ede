"""The one writer of a store: it holds the fence, commits checkpoints and journal epochs, retires what is old.

Every commit looks for a newer writer before and after: a commit that succeeds was seen by whoever came next. It has no
thread of its own: who holds it for long gives its signs of life (``beat``) and folds its chains (``compact``).
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any

from holdfast.errors import HoldfastError, Invalid
from holdfast.state import checkpoint as checkpoints
from holdfast.state import fence, journal, output, shapes
from holdfast.state.checkpoint import Checkpoint
from holdfast.state.compaction import folded_chain, length
from holdfast.state.entries import HEADER, Damaged, FileEntry, document, header, read_document
from holdfast.state.fence import Identity
from holdfast.state.ranges import Routing

if TYPE_CHECKING:
    from holdfast.state.store import Store

Chains = Mapping[str, tuple[FileEntry, ...]]


class Writer:
    """Use as a context manager, or call ``close``: it releases the store at once instead of when the lease ends."""

    def __init__(self, store: Store, owner: str, *, lease: float, force: bool, keep: int, fold_at: int) -> None:
        if lease <= 0 or keep < 1 or fold_at < 0:
            raise Invalid(f"writer: lease > 0, keep >= 1 and fold_at >= 0 are needed, got {lease}, {keep}, {fold_at}")
        self.store = store
        self._files = store.files
        self._keep = keep
        self.lease = lease
        self.fold_at = fold_at
        self._lock = threading.RLock()
        self._one_compaction = threading.Lock()
        self._beating = threading.Lock()
        self._compacting = False
        self._closed = False
        self.folded: Callable[[Chains], Chains] = lambda chains: {
            task: folded_chain(store, task, chain, self.token) for task, chain in chains.items()
        }
        """Makes chains of files shorter, by task; other processes may do it, since they have to read states."""
        self._shapes = 0
        identity = store.identity or Identity.here()
        self._files.store_id = None  # the store may have been replaced since these files were opened
        if not store.exists():
            with contextlib.suppress(FileExistsError):
                self._files.create(HEADER, header(self._files, identity.unique), store.sync.checkpoints)
        store.require()
        began = fence.running_time()
        self.token = fence.claim(self._files, owner, lease, force, store.clock(), identity, keep).token
        self._guard = fence.Guard(self._files, self.token, lease, began, fence.running_time)
        try:
            self._mend_header(identity)
            self._whole = self._inherited()
        except BaseException:
            with contextlib.suppress(HoldfastError):
                fence.beat(self._files, self.token, store.clock(), released=True)
            raise

    def _mend_header(self, identity: Identity) -> None:
        """Replace a header that is missing or damaged."""
        try:
            read_document(self._files, "store", HEADER)
        except Damaged:
            self._files.put(HEADER, header(self._files, identity.unique), self.store.sync.checkpoints)

    def _inherited(self) -> dict[int, Checkpoint]:
        """Put down what was committed before we came, and take over from there."""
        # Claimed: from here on no older commit succeeds. What has been committed up to now is what we inherit.
        before, found = fence.inherited(self._files, self.token)
        # What older writers staged and did not place in time: gone before anybody looks what was placed.
        output.clear_staged(self._files, lambda path: output.staged_by(path) >= self.token)
        manifests = checkpoints.manifest_names(self._files, found, before)
        # The older writer may just be about to retire what it has beyond those to keep, so we do not count on it.
        keeps = [fence.kept_by(self._files, token) or len(manifests) for token in {before, self.token - 1} - {0}]
        manifests = manifests[max(len(manifests) - min(keeps, default=0), 0) :]
        commits = journal.late_commits(self._files, journal.commit_names(self._files, found, before), self.token)
        names = {"checkpoints": manifests, "journal": list(commits.values())}
        fence.inherit(self._files, self.token, {k: [n.rpartition("/")[2] for n in v] for k, v in names.items()})
        self._put_index(manifests)
        fence.forget_older(self._files, self.token)
        there = [f"{checkpoints.FOLDER}/{name}" for name in self._files.list(checkpoints.FOLDER)]
        mine = checkpoints.index_name(self.token)
        if old := [name for name in there if name.startswith(mine[:-15]) and name < mine]:
            self._files.delete_many(old)
        return {one.epoch: one for one in self.store.checkpoints()}

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the store, after a compaction that is under way in another thread."""
        with self._one_compaction, self._beating:
            if not self._closed:
                self._closed = True
                self._guard.released()
                with contextlib.suppress(HoldfastError):
                    fence.beat(self._files, self.token, self.store.clock(), released=True)

    def beat(self) -> None:
        """A sign of life, due well within every ``lease`` seconds. Fenced if a newer writer has come."""
        self.check()
        # Not under the lock of commits: one that takes long must not look like a writer that is gone.
        with self._beating:
            if not self._closed:
                began = fence.running_time()
                fence.beat(self._files, self.token, self.store.clock())
                self._guard.renewed(began)

    def check(self) -> None:
        """Fenced if a newer writer has come."""
        fence.check(self._files, self.token)

    def guard(self) -> None:
        """Fenced if a newer writer has come. To be called right before user code is; behind a URL it costs less than
        ``check``, see ``fence.Guard``."""
        self._guard.look()

    def commit_checkpoint(
        self,
        epoch: int,
        entries: Mapping[str, Sequence[FileEntry]],
        routing: Mapping[str, Routing] | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> Checkpoint:
        """Put the manifest of ``epoch`` in place, last and atomically. ``entries`` are of every stateful task.

        Changes are chained to the checkpoint they follow; a task with no entries at all has not changed since the
        newest one. Then checkpoints beyond those to keep are retired.
        """
        with self._lock:
            self.check()
            tasks = {str(task): self._chain(str(task), epoch, list(files)) for task, files in entries.items()}
            known = self._whole.get(epoch)
            revision = known.revision + 1 if known is not None and known.token == self.token else 0
            done = Checkpoint(epoch, self.token, revision, tasks, routing or {}, extra or {})
            self._publish(done)
            done = self._whole.get(epoch, done)
            self._retire()
            return done

    def at_hand(self, epoch: int) -> Checkpoint | None:
        """The checkpoint of an epoch, if it is one of those that are kept. Reads no file, and waits for no commit."""
        return self._whole.get(epoch)

    @property
    def needs_folding(self) -> bool:
        """Whether a chain of the newest checkpoint is so long that ``compact(fold_at)`` is due."""
        with self._lock:
            newest = self._newest()
        return (
            bool(self.fold_at) and newest is not None and any(length(c) > self.fold_at for c in newest.tasks.values())
        )

    def journal_commit(
        self, epoch: int, entries: Mapping[str, FileEntry], extra: Mapping[str, Any] | None = None
    ) -> None:
        """Make a source epoch exist, with these pieces. ``Journal.append`` calls it: it knows which epoch is next.

        The fence is looked at afterwards alone: what an older writer puts in place too late does not count anyway.
        """
        journal.commit(self._files, epoch, entries, token=self.token, sync=self.store.sync.journal, extra=extra or {})
        self.check()

    def commit_shape(self, shape: Mapping[str, Any]) -> None:
        """Put down who owns which keys from now on, durably and as a whole; it replaces what was there."""
        with self._lock:
            self.check()
            self._shapes += 1
            sync = self.store.sync.checkpoints
            shapes.write(self._files, shape, token=self.token, number=self._shapes, sync=sync)
            self.check()
            shapes.forget_older(self._files, self.token, self._shapes)

    def trim(self, upto: int | None = None) -> list[int]:
        """Drop journal epochs up to ``upto`` that no retained checkpoint needs for replay; the epochs dropped."""
        with self._lock:
            self.check()
            if not self._whole:
                return []
            # The oldest retained checkpoint is what is left if the newer ones are damaged: it must be able to replay.
            limit = min(self._whole) if upto is None else min(upto, *self._whole)
            commits, pieces = [], []
            for path in self._files.tree(journal.FOLDER):
                folder, _, name = path.rpartition("/")
                if f"{journal.FOLDER}/{folder}" == journal.COMMITS:
                    facts = journal.commit_facts(name)
                    if facts is not None and facts[0] <= limit and facts[1] <= self.token:
                        commits.append((facts[0], f"{journal.FOLDER}/{path}"))
                elif not folder.removeprefix("-").isdecimal() or int(folder) > limit:
                    continue
                elif journal.piece_token(name) <= self.token:
                    pieces.append(f"{journal.FOLDER}/{path}")
            self.check()
            # Commits first: pieces without one are nothing, whether we stop here or they never had one.
            for some in ([path for _, path in commits], pieces):
                if some:
                    self._files.delete_many(some)
            return sorted({epoch for epoch, _ in commits})

    def compact(self, longest: int = 1) -> dict[str, tuple[int, int]]:
        """Fold every chain of the newest checkpoint that has more steps than ``longest``; files before and after.

        May be called by another thread than the one that commits.
        """
        with self._one_compaction:
            with self._lock:
                newest = self._newest()
                if newest is None:
                    return {}
                # Commits go on meanwhile: what we read and write now must not look unused to them.
                self._compacting = True
            try:
                long = {task: chain for task, chain in newest.tasks.items() if length(chain) > longest}
                shorter = self.folded(long) if long else {}
                folded = {task: (long[task], new) for task, new in shorter.items() if len(new) < len(long[task])}
                with self._lock:
                    self.check()
                    self._replace(folded)
            finally:
                self._compacting = False
            with self._lock:
                self._retire()
        return {task: (len(chain), len(short)) for task, (chain, short) in folded.items()}

    def _chain(self, task: str, epoch: int, files: list[FileEntry]) -> tuple[FileEntry, ...]:
        since = {entry.since for entry in files}
        if len(since) > 1 or any(entry.epoch != epoch for entry in files):
            raise Invalid(f"checkpoint {epoch}: the files of task {task} are of different epochs")
        if since == {None}:
            return tuple(files)
        newest = self._newest()
        base = newest if not files else self._whole.get(next(iter(since)) or 0)
        if base is None or task not in base.tasks:
            have = ", ".join(map(str, self._whole)) or "none"
            follows = f"epoch {next(iter(since))}" if files else "the newest checkpoint"
            raise Invalid(f"checkpoint {epoch}: changes of task {task} follow {follows}, which has none of it ({have})")
        return (*base.tasks[task], *files)

    def _newest(self) -> Checkpoint | None:
        return self._whole[max(self._whole)] if self._whole else None

    def _publish(self, done: Checkpoint) -> None:
        while True:
            try:
                self._files.create(
                    done.name, document(self._files, "checkpoint", done.to_json()), self.store.sync.checkpoints
                )
                break
            except FileExistsError:  # put in place by a try that failed behind it, or before that was known
                done = replace(done, revision=done.revision + 1)
        self.check()
        self._whole[done.epoch] = done

    def _replace(self, folded: Mapping[str, tuple[tuple[FileEntry, ...], tuple[FileEntry, ...]]]) -> None:
        """A new revision of the newest checkpoint, with chains that begin with a folded one shortened."""
        newest = self._newest()
        if newest is None or not folded:
            return
        tasks = dict(newest.tasks)
        for task, (chain, short) in folded.items():
            now = tasks.get(task, ())
            if now[: len(chain)] == chain:
                tasks[task] = (*short, *now[len(chain) :])
        if tasks != newest.tasks:
            revision = newest.revision + 1 if newest.token == self.token else 0
            self._publish(Checkpoint(newest.epoch, self.token, revision, tasks, newest.routing, newest.extra))

    def _retire(self) -> None:
        """Delete manifests beyond those to keep, then state files that nothing names. Crashing anywhere is safe.

        Nothing of a newer writer is ever touched: one may have come since we last looked at the fence. What goes it
        does not count on either: it takes over no more checkpoints than we keep.
        """
        kept = dict(sorted(self._whole.items())[-self._keep :])
        names = {one.name for one in kept.values()}
        oldest = min(kept)
        # The index first: whatever it lists is there, before, between and after the deletions.
        self._put_index(sorted(names))
        old = []
        for name in self._files.list(checkpoints.FOLDER):
            path, facts = f"{checkpoints.FOLDER}/{name}", checkpoints.manifest_facts(name)
            if facts is not None and path not in names and facts[0] <= max(kept) and facts[1] <= self.token:
                old.append(path)
        if old:
            self._files.delete_many(old)
        self._whole = kept
        if self._compacting:
            return
        used = {entry.path for one in kept.values() for chain in one.tasks.values() for entry in chain}
        unused = []
        for name in self._files.tree(checkpoints.STATE):
            facts, path = checkpoints.file_facts(name.rpartition("/")[2]), f"{checkpoints.STATE}/{name}"
            # Files of later epochs may be those of a checkpoint in the making, unless their writer is fenced off.
            if facts is None or path in used or facts[1] > self.token:
                continue
            if facts[0] <= oldest or facts[1] < self.token:
                unused.append(path)
        if unused:
            self.check()
            self._files.delete_many(unused)

    def _put_index(self, names: Sequence[str]) -> None:
        listed = [name.rpartition("/")[2] for name in names]
        data = document(self._files, "index", {"token": self.token, "manifests": listed})
        # Not synced: it helps to miss a file, and after a machine's crash the next writer makes it anew.
        self._files.put(checkpoints.index_name(self.token), data, sync=False)
