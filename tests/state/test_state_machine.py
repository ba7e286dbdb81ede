"""State against a plain dict: random upserts, deletes, forks, partitions, merges, checkpoints, restores and crashes."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
from crashing import Crash, dying
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from holdfast.state import (
    Change,
    KeyRange,
    LocalState,
    Spill,
    StateSchema,
    Store,
    TaskState,
    VersionMissing,
    merge_states,
)
from holdfast.state import local as local_module
from holdfast.state import run as run_module
from holdfast.state import table as table_module
from holdfast.state.keys import hash64

TASK = "O3/0"
Rows = dict[Any, int | None]

numbers = st.integers(-8, 8)
texts = st.sampled_from([None, "", "a", "b", "a long key of many bytes", "another quite long key"])
pairs = st.tuples(texts, st.one_of(st.none(), st.sampled_from([0.0, 0.5, float("inf")])))
values = st.one_of(st.none(), st.integers(0, 99))


class StateMachine(RuleBasedStateMachine):
    """One task, one table; the model is a dict for each epoch."""

    key: pa.Schema
    keys: st.SearchStrategy[Any]

    @initialize()
    def start(self) -> None:
        # Small tables would always be one run without an index; with these limits they are like large ones.
        self.patches = [
            mock.patch.object(table_module, "FOLD_ROWS", 3),
            mock.patch.object(run_module, "MIN_INDEXED", 2),
            mock.patch.object(local_module, "FOLD_STEPS", 2),
            *self.more_patches(),
        ]
        for patch in self.patches:
            patch.start()
        self.directory = Path(tempfile.mkdtemp())
        self.schema = StateSchema(self.key, pa.schema([("value", pa.int64())]))
        self.epoch = 0
        self.state = TaskState.empty({"t": self.schema}, 0)
        self.model: dict[int, Rows] = {0: {}}
        self.local = LocalState(self.directory / "node")
        self.local.restore(TASK, self.state)
        self.store = Store(self.directory / "store")
        self.writer = self.store.writer("model", keep=2, fold_at=0, lease=3600)
        self.committed: int | None = None
        self.dropped = 0

    def teardown(self) -> None:
        if hasattr(self, "writer"):
            self.writer.close()
            shutil.rmtree(self.directory)
            for patch in self.patches:
                patch.stop()

    def more_patches(self) -> list[Any]:
        return []

    def row(self, key: Any) -> tuple[Any, ...]:
        return key if isinstance(key, tuple) else (key,)

    def table(self, keys: Sequence[Any], extra: Sequence[int | None] | None = None) -> pa.Table:
        rows = [self.row(key) for key in keys]
        columns = [pa.array([row[i] for row in rows], field.type) for i, field in enumerate(self.key)]
        names = list(self.key.names)
        if extra is not None:
            columns.append(pa.array(extra, pa.int64()))
            names.append("value")
        return pa.table(columns, names=names)

    def rows_of(self, state: TaskState) -> Rows:
        found = state["t"].to_table().to_pylist()
        rows = {tuple(row[name] for name in self.key.names): row["value"] for row in found}
        assert len(rows) == len(found) == len(state["t"]), "a key is there twice, or the count is wrong"
        return rows

    def expected(self, epoch: int) -> Rows:
        return {self.row(key): value for key, value in self.model[epoch].items()}

    @rule(data=st.data())
    def change(self, data: st.DataObject) -> None:
        upserts = data.draw(st.lists(st.tuples(self.keys, values), max_size=12))
        deletes = data.draw(st.lists(self.keys, max_size=4))
        change = Change(self.table([k for k, _ in upserts], [v for _, v in upserts]), self.table(deletes))
        after = {key: value for key, value in self.model[self.epoch].items() if key not in deletes} | dict(upserts)
        self.epoch += 1
        before = self.state
        self.state = before.apply({"t": change}, self.epoch)
        self.model[self.epoch] = after
        self.local.save(TASK, self.epoch, {"t": Change.decode(change.encode())})
        assert self.rows_of(before) == self.expected(self.epoch - 1), "an older version changed"

    @rule(asked=st.data())
    def look_up(self, asked: st.DataObject) -> None:
        keys = asked.draw(st.lists(self.keys, min_size=1, max_size=6))
        found = self.state["t"].find(self.table(keys))
        model = self.model[self.epoch]
        assert found.found.tolist() == [key in model for key in keys]
        assert found.values["value"].to_pylist() == [model.get(key) for key in keys]

    @rule(n=st.integers(1, 5), measured=st.booleans())
    def partition_and_merge(self, n: int, measured: bool) -> None:
        hashes = (self.state["t"].flat().hashes >> np.uint64(32)).astype(np.uint32)
        parts = self.state.partition(KeyRange.whole().split(n, hashes if measured else None))
        assert sum(part.rows for part in parts) == self.state.rows
        merged = merge_states(parts[::-1])
        assert merged == self.state
        assert self.rows_of(merged) == self.expected(self.epoch)

    @rule(back=st.integers(0, 4), drop=st.booleans(), cached=st.booleans())
    def load_on_the_node(self, back: int, drop: bool, cached: bool) -> None:
        epoch = max(self.epoch - back, self.dropped)
        older = self.local.load(TASK, self.dropped) if cached else None
        assert self.rows_of(self.local.load(TASK, epoch, older)) == self.expected(epoch)
        if drop:
            self.local.drop(TASK, epoch)
            self.dropped = epoch
            assert self.rows_of(self.local.load(TASK, self.epoch)) == self.expected(self.epoch)

    @rule(incremental=st.booleans(), crash=st.one_of(st.none(), st.integers(0, 40)), fold=st.booleans())
    def checkpoint(self, incremental: bool, crash: int | None, fold: bool) -> None:
        before = self.committed
        try:
            with dying(crash):
                self._checkpoint(incremental)
                if fold:
                    self.writer.compact()
            self.committed = self.epoch
        except Crash:
            self._start_over(before)

    def _checkpoint(self, incremental: bool) -> None:
        since = self.committed
        changes = self._changes(since) if incremental and since is not None and since < self.epoch else None
        if changes is not None:
            files = self.store.write_task(TASK, self.epoch, changes, since=since, token=self.writer.token)
        else:
            files = self.store.write_task(TASK, self.epoch, self.state, token=self.writer.token)
        self.writer.commit_checkpoint(self.epoch, {TASK: files})

    def _changes(self, since: int) -> dict[str, Change] | None:
        try:
            return self.local.changes(TASK, since, self.epoch)
        except VersionMissing:
            assert since < self.dropped, "only what was let go of may be missing"
            return None

    def _start_over(self, before: int | None) -> None:
        """The process died; another one finds the old checkpoint or the new one, whole, and nothing else."""
        self.store = Store(self.directory / "store")
        self.writer = self.store.writer("next", force=True, keep=2, fold_at=0, lease=3600)
        newest = self.store.latest()
        assert newest is not None or before is None
        if newest is not None:
            assert newest.epoch in (before, self.epoch)
            self.committed = newest.epoch

    @precondition(lambda self: self.committed is not None)
    @rule()
    def restore(self) -> None:
        state, epoch = Store(self.directory / "store").restore(TASK)
        assert epoch == self.committed
        assert self.rows_of(state) == self.expected(epoch)
        for checkpoint in self.store.checkpoints():
            older, _ = self.store.restore(TASK, checkpoint.epoch)
            assert self.rows_of(older) == self.expected(checkpoint.epoch)

    @precondition(lambda self: self.committed is not None and self.committed >= self.dropped)
    @rule()
    def fail_and_replay(self) -> None:
        """The node is lost: what the store has, and the changes since, are the state that never failed."""
        state, epoch = self.store.restore(TASK)
        elsewhere = LocalState(self.directory / "other")
        elsewhere.restore(TASK, state)
        if epoch < self.epoch:
            changes = self.local.changes(TASK, epoch, self.epoch)
            elsewhere.save(TASK, self.epoch, changes, since=epoch)
        assert self.rows_of(elsewhere.load(TASK, self.epoch)) == self.expected(self.epoch)
        elsewhere.forget(TASK)

    @rule(limit=st.sampled_from([0, 200, None]))
    def spill(self, limit: int | None) -> None:
        spilling = None if limit is None else Spill(self.directory / "spill", limit)
        self.state = self.state.with_spill(spilling)
        if limit == 0:
            assert self.state["t"].spilled_bytes == self.state["t"].nbytes

    @invariant()
    def same_as_the_model(self) -> None:
        if hasattr(self, "state"):
            assert self.rows_of(self.state) == self.expected(self.epoch)


class ByNumber(StateMachine):
    key = pa.schema([("id", pa.int64())])
    keys = numbers


class ByPair(StateMachine):
    key = pa.schema([("name", pa.string()), ("weight", pa.float64())])
    keys = pairs


class ByPairWithPoorHash(ByPair):
    """The same with four hashes for all keys: whatever rests on equal hashes meaning equal keys comes to light."""

    def more_patches(self) -> list[Any]:
        def poor(columns: Sequence[pa.Array], rows: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
            return hash64(columns, rows) & np.uint64(0xC000000000000000)

        return [mock.patch.object(run_module, "hash64", poor)]


_often = settings(deadline=None, derandomize=True, max_examples=25, stateful_step_count=25)
TestByNumber = ByNumber.TestCase
TestByNumber.settings = _often
TestByPair = ByPair.TestCase
TestByPair.settings = _often
TestByPairWithPoorHash = ByPairWithPoorHash.TestCase
TestByPairWithPoorHash.settings = _often
