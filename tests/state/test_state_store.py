"""The durable store end to end: checkpoints, restore, journal, outputs, fencing; local and memory."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest

from holdfast.errors import Invalid, Unrecoverable
from holdfast.state import (
    Change,
    Fenced,
    Held,
    Identity,
    KeyRange,
    Routing,
    StateSchema,
    StateTable,
    Store,
    Sync,
    TaskState,
    Unusable,
    fence,
)
from holdfast.state import remote as remote_module
from holdfast.state import writer as writer_module
from holdfast.state.compaction import length
from holdfast.state.output import KINDS, place, stage

COUNTS = StateSchema(pa.schema([("word", pa.string())]), pa.schema([("count", pa.int64())]))
_unique = itertools.count()


@pytest.fixture(params=["local", "memory", "file", "moving", "s3"])
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A path, a file URL, a service whose puts are atomic, one where files must be moved into place, and S3."""
    if request.param == "s3":
        return str(request.getfixturevalue("s3_url"))
    if request.param == "moving":
        monkeypatch.setattr(remote_module, "_ATOMIC_PUT", frozenset())
    if request.param in ("memory", "moving"):
        return f"memory://store-{next(_unique)}"
    return f"file://{tmp_path}/store" if request.param == "file" else str(tmp_path / "store")


def counted(words: list[str], count: int, gone: list[str] | None = None) -> Change:
    upserts = pa.table({"word": words, "count": pa.array([count] * len(words), pa.int64())})
    return Change(upserts, pa.table({"word": pa.array(gone or [], pa.string())}))


def some_state(epoch: int, words: int = 100) -> TaskState:
    empty = TaskState.empty({"counts": COUNTS}, epoch - 1)
    return empty.apply({"counts": counted([f"w{i}" for i in range(words)], epoch)}, epoch)


def test_incremental_checkpoints_restore_the_state_that_never_failed(url: str) -> None:
    store = Store(url)
    state = some_state(1)
    with store.writer("job", fold_at=0) as writer:
        writer.commit_checkpoint(1, {"O3/0": store.write_task("O3/0", 1, state, token=writer.token)})
        for epoch in range(2, 8):
            change = {"counts": counted([f"w{epoch}", f"new{epoch}"], epoch, gone=[f"w{epoch + 50}"])}
            state = state.apply(change, epoch)
            files = store.write_task("O3/0", epoch, change, since=epoch - 1, token=writer.token)
            done = writer.commit_checkpoint(epoch, {"O3/0": files}, {"O3": Routing.even(1)}, {"offset": epoch})
            assert len(done.tasks["O3/0"]) == epoch
    restored, epoch = Store(url).restore("O3/0")
    assert epoch == 7
    assert restored["counts"] == state["counts"]
    assert [one.epoch for one in store.checkpoints()] == [5, 6, 7]
    assert store.checkpoint(7).extra == {"offset": 7}
    assert store.checkpoint(7).routing["O3"] == Routing.even(1)
    assert Store(url).restore("O3/0", 5)[1] == 5


def test_a_manifest_is_read_alone_and_parsed_once_unless_its_bytes_change(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with store.writer("job") as writer:
        for epoch in (1, 2):
            files = store.write_task("O3/0", epoch, some_state(epoch), token=writer.token)
            done = writer.commit_checkpoint(epoch, {"O3/0": files}, extra={"offset": epoch})
    first = store.checkpoint(1)
    (tmp_path / done.name).write_text("torn")
    assert store.checkpoint(1) is first, "another manifest is none of its business"
    with pytest.raises(
        Unrecoverable, match=r"no checkpoint of epoch 2, there is 1; damaged: .* is torn or was altered"
    ):
        store.checkpoint(2)
    manifest = tmp_path / first.name
    body = json.loads(manifest.read_text())
    manifest.write_text(json.dumps(body, indent=1))
    assert store.checkpoint(1) == first, "however it is written"
    manifest.write_text(manifest.read_text().replace('"offset": 1', '"offset": 7'))
    with pytest.raises(Unrecoverable, match=r"no checkpoint of epoch 1, there is none"):
        store.checkpoint(1)


def test_compaction_shortens_the_chain_and_keeps_the_state(url: str) -> None:
    store = Store(url)
    state = some_state(1, words=2000)
    with store.writer("job", fold_at=3) as writer:
        writer.commit_checkpoint(1, {"O3/0": store.write_task("O3/0", 1, state, token=writer.token)})
        longest = 0
        for epoch in range(2, 16):
            change = {"counts": counted([f"w{epoch}"], epoch, gone=[f"w{epoch + 50}"])}
            state = state.apply(change, epoch)
            files = store.write_task("O3/0", epoch, change, since=epoch - 1, token=writer.token)
            writer.commit_checkpoint(epoch, {"O3/0": files})
            assert writer.needs_folding == (length(store.checkpoint(epoch).tasks["O3/0"]) > 3)
            if writer.needs_folding:
                writer.compact(writer.fold_at)
            longest = max(longest, len(store.checkpoint(epoch).tasks["O3/0"]))
            assert store.restore("O3/0")[0]["counts"] == state["counts"]
        assert 2 <= longest <= 5
        assert len(store.files.list("state/O3-0")) <= 12
        first, *folded = store.checkpoint(15).tasks["O3/0"]
        assert (first.epoch, folded[0].since) == (1, 1), "the small changes are folded, the large state is left alone"


def test_commits_during_a_compaction_lose_nothing(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(url)
    state = some_state(1, words=2000)
    writer = store.writer("job", fold_at=0, keep=1)
    writer.commit_checkpoint(1, {"O3/0": store.write_task("O3/0", 1, state, token=writer.token)})

    def commit(epoch: int) -> None:
        nonlocal state
        change = {"counts": counted([f"w{epoch}"], epoch, gone=[f"w{epoch + 50}"])}
        state = state.apply(change, epoch)
        files = store.write_task("O3/0", epoch, change, since=epoch - 1, token=writer.token)
        writer.commit_checkpoint(epoch, {"O3/0": files})

    def meanwhile(*arguments: Any) -> Any:
        short = real(*arguments)
        for epoch in range(7, 10):
            commit(epoch)
        return short

    for epoch in range(2, 7):
        commit(epoch)
    real = writer_module.folded_chain
    monkeypatch.setattr(writer_module, "folded_chain", meanwhile)
    assert writer.compact() == {"O3/0": (6, 2)}
    assert len(store.checkpoint(9).tasks["O3/0"]) == 5
    assert store.restore("O3/0")[0]["counts"] == state["counts"]
    writer.close()
    assert len(store.files.list("state/O3-0")) == 5


def test_a_second_writer_is_refused_and_an_older_one_fenced(url: str) -> None:
    store = Store(url)
    first = store.writer("first")
    with pytest.raises(Held, match=r"held by first .* --force"):
        store.writer("second")
    files = store.write_task("O3/0", 1, some_state(1), token=first.token)
    second = store.writer("second", force=True)
    with pytest.raises(Fenced, match="superseded by writer 2"):
        first.commit_checkpoint(1, {"O3/0": files})
    with pytest.raises(Fenced):
        first.journal_commit(1, {})
    with pytest.raises(Fenced):
        first.trim(9)
    assert store.checkpoints() == []
    second.commit_checkpoint(2, {"O3/0": store.write_task("O3/0", 2, some_state(2), token=second.token)})
    first.close()
    second.close()
    with store.writer("third") as third:
        assert third.token == 3
        assert [one.epoch for one in store.checkpoints()] == [2]


def test_a_lease_that_ended_can_be_taken_over(url: str) -> None:
    now = [1000.0]
    store = Store(url, clock=lambda: now[0])
    sleeper = store.writer("sleeper", lease=30)
    now[0] += 29
    with pytest.raises(Held):
        store.writer("next")
    now[0] += 2
    with store.writer("next"), pytest.raises(Fenced):
        sleeper.commit_checkpoint(1, {})
    sleeper.close()


def test_what_a_fenced_writer_still_puts_in_place_does_not_exist(url: str) -> None:
    store = Store(url)
    old = store.writer("old")
    old.commit_checkpoint(1, {"O3/0": store.write_task("O3/0", 1, some_state(1), token=old.token)})
    new = store.writer("new", force=True)
    # The old writer stopped between its look at the fence and the rename, and goes on now.
    late = store.write_task("O3/0", 9, some_state(9), token=old.token)
    old.check = lambda: None  # type: ignore[method-assign]
    old.commit_checkpoint(9, {"O3/0": late})
    old.journal_commit(9, {"S/0": store.journal_write(9, "S/0", b"late", token=old.token)})
    assert [one.epoch for one in store.checkpoints()] == [1]
    assert store.journal_epochs() == []
    assert store.restore("O3/0")[1] == 1
    new.close()
    old.close()
    with store.writer("third"):
        assert [one.epoch for one in store.checkpoints()] == [1]


def test_entries_that_do_not_fit_are_refused(url: str) -> None:
    store = Store(url)
    with store.writer("job") as writer:
        state = some_state(4)
        whole = store.write_task("O3/0", 4, state, token=writer.token)
        with pytest.raises(Invalid, match="are of different epochs"):
            writer.commit_checkpoint(5, {"O3/0": whole})
        changes = store.write_task("O3/0", 5, {"counts": counted(["x"], 1)}, since=4, token=writer.token)
        with pytest.raises(Invalid, match="follow epoch 4, which has none of it"):
            writer.commit_checkpoint(5, {"O3/0": changes})
        writer.commit_checkpoint(4, {"O3/0": whole})
        writer.commit_checkpoint(5, {"O3/0": changes})
        same = writer.commit_checkpoint(6, {"O3/0": []})
        assert same.tasks["O3/0"] == writer.commit_checkpoint(5, {"O3/0": changes}).tasks["O3/0"]
        assert store.restore("O3/0")[0].epoch == 6
        with pytest.raises(Invalid, match=r"changes need the epoch they follow, before 5; got since=None"):
            store.write_task("O3/0", 5, {}, token=writer.token)
        with pytest.raises(Invalid, match="without NaN or infinity"):
            writer.commit_checkpoint(7, {}, extra={"x": float("nan")})
    with pytest.raises(Unrecoverable, match=r"no checkpoint of epoch 99, there is 4, 5, 6"):
        store.restore("O3/0", 99)


def test_a_folder_that_is_no_store_is_said_to_be_none(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="no Holdfast store here"):
        Store(tmp_path / "nothing").require()
    with pytest.raises(Unrecoverable, match="there is no checkpoint"):
        Store(tmp_path / "nothing").restore("O3/0")
    assert Store(tmp_path / "nothing").latest() is None
    with pytest.raises(Invalid, match="nosuch"):
        Store("nosuch://bucket/x")


def test_a_task_without_tables_has_checkpoints_too(url: str) -> None:
    store = Store(url)
    with store.writer("job") as writer:
        files = store.write_task("O1/0", 3, TaskState.empty({}, 3), token=writer.token)
        writer.commit_checkpoint(3, {"O1/0": files})
        assert store.restore("O1/0")[0] == TaskState.empty({}, 3)
        assert np.sum([entry.rows for entry in files]) == 0


def test_what_is_synced_before_a_checkpoint_counts(tmp_path: Path) -> None:
    """Data and its folder, then manifest and folder; a journal epoch likewise; names of outputs all at once."""
    story: list[str] = []
    opened: dict[int, str] = {}
    real_open, real_replace, real_link = os.open, Path.replace, os.link

    def opening(path: os.PathLike[str] | str, *args: Any) -> int:
        descriptor = real_open(path, *args)
        opened[descriptor] = os.fspath(path)
        return descriptor

    def syncing(descriptor: int) -> None:
        path = Path(opened[descriptor])
        story.append("sync file" if path.is_file() else f"sync {path.name}")

    def replacing(path: Path, target: Path) -> Path:
        story.append(f"name {target.parent.name}")
        return real_replace(path, target)

    def linking(path: str | Path, target: str | Path) -> None:
        story.append(f"name {Path(target).parent.name}")
        real_link(path, target)

    def told() -> list[str]:
        told, story[:] = list(story), []
        return told

    store = Store(tmp_path)
    writer = store.writer("job", fold_at=0)
    state = some_state(1)
    writer.commit_checkpoint(1, {"O3/0": store.write_task("O3/0", 1, state, token=writer.token)})
    writer.journal_commit(1, {"S/0": store.journal_write(1, "S/0", b"x", token=1)})
    for kind in KINDS:
        place(store.files, [stage(store.files, "1-0", kind, 1, "O5/0", pa.table({"n": [1]}), 1.0, True)], True)
    with (
        mock.patch.object(os, "open", opening),
        mock.patch.object(os, "fsync", syncing),
        mock.patch.object(Path, "replace", replacing),
        mock.patch.object(os, "link", linking),
    ):
        files = store.write_task("O3/0", 2, some_state(2), token=writer.token)
        assert told() == ["sync file", "name O3-0", "sync O3-0"]
        writer.commit_checkpoint(2, {"O3/0": files})
        assert told()[:3] == ["sync file", "name checkpoints", "sync checkpoints"]
        # Two pieces and their commit: the epoch's folder is new, and its name counts as well.
        pieces = {f"S/{i}": store.journal_write(2, f"S/{i}", b"x", token=1) for i in range(2)}
        piece = ["sync file", "name 000000000002", "sync 000000000002"]
        assert told() == ["sync journal", *piece, *piece]
        writer.journal_commit(2, pieces)
        assert told() == ["sync file", "name commits", "sync commits"]
        # Three outputs: the bytes of each; of each kind the checksums, then the names, each folder once for all.
        made = [
            stage(store.files, "1-1", kind, 2, f"O5/{i}", pa.table({"n": [i]}), 1.0, True)
            for kind, i in (("final", 0), ("final", 1), ("tentative", 0))
        ]
        assert told() == ["sync file", "name staged"] * 3
        place(store.files, made, True)
        assert told() == [
            *("sync file", "name final", "sync final"), *("sync file", "name tentative", "sync tentative"),
            *("name final", "name final", "sync final"), *("name tentative", "sync tentative"),
        ]  # fmt: skip
        # Of several epochs: each has its checksums, and their names are synced once.
        made = [
            stage(store.files, "1-2", "final", epoch, "O5/0", pa.table({"n": [1]}), 1.0, True) for epoch in (4, 5, 6)
        ]
        told()
        place(store.files, made, True)
        assert told() == [*["sync file", "name final"] * 3, "sync final", *["name final"] * 3, "sync final"]
        hasty = Store(tmp_path, Sync(False, False, False))
        hasty.journal_write(2, "S/2", b"x", token=1)
        place(store.files, [stage(store.files, "1-1", "final", 3, "O5/0", pa.table({"n": [1]}), 1.0, False)], False)
        assert not [line for line in told() if line.startswith("sync")]
    writer.close()


def test_a_writer_that_died_while_taking_over_changes_nothing(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(url)
    first = store.writer("first")
    first.commit_checkpoint(1, {"O3/0": store.write_task("O3/0", 1, some_state(1), token=1)})
    second = store.writer("second", force=True)
    second.commit_checkpoint(2, {"O3/0": store.write_task("O3/0", 2, some_state(2), token=2)})
    first.check = lambda: None  # type: ignore[method-assign]
    # It goes as far as to retire and to trim: what the newer one has committed stays.
    second.journal_commit(1, {"S/0": store.journal_write(1, "S/0", b"x", token=2)})
    first.commit_checkpoint(9, {"O3/0": store.write_task("O3/0", 9, some_state(9), token=1)})
    first.trim()
    assert store.journal_epochs() == [1]
    assert store.restore("O3/0", 2)[0] == some_state(2)
    assert [one.epoch for one in store.checkpoints()] == [1, 2]
    with monkeypatch.context() as patch, pytest.raises(Unusable, match="pulled"):
        patch.setattr(fence, "inherit", mock.Mock(side_effect=Unusable("the plug was pulled")))
        store.writer("third", force=True)
    assert [one.epoch for one in store.checkpoints()] == [1, 2]
    with store.writer("fourth") as fourth:
        assert fourth.token == 4
        assert [one.epoch for one in store.checkpoints()] == [1, 2]
    for old in (first, second):
        old.close()


def test_of_two_who_claim_at_the_same_moment_one_is_refused(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(url)
    with store.writer("quick") as writer:
        # The other one looked before the first claim was there.
        monkeypatch.setattr(fence, "newest_token", lambda _: 0)
        with pytest.raises(Held, match="at this very moment"):
            fence.claim(store.files, "slow", 30, False, store.clock(), Identity.here())
        monkeypatch.undo()
        writer.check()


@pytest.mark.parametrize("folder", ["checkpoints/0", "journal/commits"])
def test_a_commit_overtaken_while_it_is_written_does_not_report_success(
    url: str, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(url)
    writer = store.writer("slow")
    files = store.write_task("O3/0", 1, some_state(1), token=writer.token)
    real, newer = store.files.create, []

    def overtaken(name: str, data: bytes, sync: bool) -> None:
        if name.startswith(folder) and not newer:
            newer.append(Store(url).writer("quick", force=True))
        real(name, data, sync)

    def commit() -> None:
        if folder == "journal/commits":
            writer.journal_commit(1, {"S/0": store.journal_write(1, "S/0", b"x", token=writer.token)})
        else:
            writer.commit_checkpoint(1, {"O3/0": files})

    monkeypatch.setattr(store.files, "create", overtaken)
    with pytest.raises(Fenced, match="superseded by writer 2"):
        commit()
    monkeypatch.undo()
    assert store.checkpoints() == []
    assert store.journal_epochs() == []
    for one in (writer, *newer):
        one.close()


def test_a_part_of_a_task_is_what_a_slice_of_the_whole_is(tmp_path: Path) -> None:
    """From a chain of a whole state and changes, deletes among them; also a part in which nothing is."""
    schema = StateSchema(pa.schema([("key", pa.int64())]), pa.schema([("count", pa.int64())]))
    draw = np.random.default_rng(5)
    table = StateTable.from_table(schema, pa.table({"key": range(500), "count": range(500)}), 0)
    state = TaskState(0, {"counts": table})
    store = Store(tmp_path)
    with store.writer("test") as writer:
        writer.commit_checkpoint(0, {"O/0": store.write_task("O/0", 0, state, token=writer.token)})
        for epoch in range(1, 4):
            keys = draw.choice(600, 80, replace=False)
            rows = pa.table({"key": keys[:60], "count": draw.integers(0, 9, 60)})
            change = Change(rows, pa.table({"key": keys[60:]}))
            state = state.apply({"counts": change}, epoch)
            files = store.write_task("O/0", epoch, {"counts": change}, token=writer.token, since=epoch - 1)
            writer.commit_checkpoint(epoch, {"O/0": files})
        for part in (*KeyRange.whole().split(3), KeyRange(0, 1), KeyRange.whole()):
            found, _ = store.restore("O/0", 3, {"counts": part})
            assert found["counts"].to_table().equals(state["counts"].slice(part).to_table())
            assert len(found["counts"]) == len(state["counts"].slice(part))
