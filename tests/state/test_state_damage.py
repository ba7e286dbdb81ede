"""Every file of a store damaged in turn, in every way: detected, named, and the newest whole checkpoint used."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from crashing import Crash, dying

from holdfast.errors import HoldfastError, Unrecoverable
from holdfast.state import (
    Change,
    Damaged,
    LocalState,
    Spill,
    StateSchema,
    Store,
    TaskState,
    Unusable,
    VersionMissing,
    ipc,
)
from holdfast.state.entries import document
from holdfast.state.output import KINDS, clear_staged, place, stage
from holdfast.state.verify import verify

SCHEMA = StateSchema(pa.schema([("k", pa.int64())]), pa.schema([("v", pa.int64())]))
TASKS = ("O3/0", "O3/1")


def change(epoch: int) -> Change:
    rows = pa.table({"k": list(range(epoch, epoch + 5)), "v": [epoch] * 5})
    return Change(rows, pa.table({"k": pa.array([epoch - 1], pa.int64())}))


def states() -> dict[int, TaskState]:
    versions = {0: TaskState.empty({"t": SCHEMA, "u": SCHEMA}, 0)}
    for epoch in range(1, 7):
        versions[epoch] = versions[epoch - 1].apply({"t": change(epoch), "u": change(epoch + 10)}, epoch)
    return versions


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two writers one after the other; checkpoints 2, 4 (chained to 2) and 6 (whole again); journal; outputs."""
    root = tmp_path_factory.mktemp("whole") / "store"
    store = Store(root)
    versions = states()
    for span in ((1, 2), (3, 4, 5, 6)):
        with store.writer("job", fold_at=0) as writer:
            for epoch in span:
                shares = {
                    f"S/{i}": store.journal_write(epoch, f"S/{i}", bytes([epoch, i]), token=writer.token)
                    for i in range(2)
                }
                writer.journal_commit(epoch, shares)
                rows = pa.table({"n": [epoch]})
                made = [stage(store.files, "1", kind, epoch, "O3/0", rows, 0.5, True) for kind in KINDS]
                assert place(store.files, made, True) == [True, True]
                clear_staged(store.files)
                if epoch % 2 == 0:
                    entries = {}
                    for task in TASKS:
                        if epoch == 4:
                            new = {"t": change(3), "u": change(13)}, {"t": change(4), "u": change(14)}
                            both = versions[2].apply(new[0], 3).apply(new[1], 4)
                            assert both["t"] == versions[4]["t"]
                            node = LocalState(root.parent / "node")
                            node.save(task, 3, new[0])
                            node.save(task, 4, new[1])
                            changes = node.changes(task, 2, 4)
                            entries[task] = store.write_task(task, 4, changes, since=2, token=writer.token)
                        else:
                            entries[task] = store.write_task(task, epoch, versions[epoch], token=writer.token)
                    writer.commit_checkpoint(epoch, entries)
    return root


def every_file(root: Path) -> list[Path]:
    return sorted(path.relative_to(root) for path in root.rglob("*") if path.is_file())


def flip(at: float) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        data = bytearray(path.read_bytes() or b"x")
        data[min(int(len(data) * at), len(data) - 1)] ^= 0x10
        path.write_bytes(data)

    return damage


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1] if path.stat().st_size else b"not empty any more")


def empty(path: Path) -> None:
    path.write_bytes(b"" if path.stat().st_size else b"not empty any more")


DAMAGES: dict[str, Callable[[Path], None]] = {
    "first byte": flip(0),
    "middle byte": flip(0.5),
    "last byte": flip(1),
    "one byte short": truncate,
    "empty": empty,
    "missing": lambda path: path.unlink(),
}


@pytest.mark.parametrize(
    ("name", "kind", "content"),
    [
        ("cursor/idle-0000000002.json", "idle", {"before": 0, "epochs": [[1, 2, 3]]}),
        ("cursor/batches-0000000002.json", "batches", {"epoch": 3, "token": 2}),
        ("spark-log.json", "spark-log", {"query": "a"}),
    ],
)
def test_documents_of_plain_queries_are_read_too(
    name: str, kind: str, content: dict[str, Any], whole: Path, tmp_path: Path
) -> None:
    root = tmp_path / "store"
    shutil.copytree(whole, root)
    store = Store(root)
    older = name.replace("-0000000002", "")
    store.files.put(older, b"of no account any more", True)
    store.files.put(name, document(store.files, kind, content), True)
    assert verify(store).whole
    for damage in ("first byte", "middle byte", "last byte", "one byte short", "empty"):
        store.files.put(name, document(store.files, kind, content), True)
        DAMAGES[damage](root / name)
        assert [found.path for found in verify(store).findings] == [name], damage


@pytest.mark.parametrize("how", DAMAGES)
def test_every_file_damaged_in_turn_is_named_and_costs_at_most_its_checkpoint(
    how: str, whole: Path, tmp_path: Path
) -> None:
    assert verify(Store(whole)).whole
    versions = states()
    commits = [f for f in every_file(whole) if f.parent.name == "commits"]
    # The last commit missing is an epoch never committed; those up to the oldest checkpoint may be trimmed.
    # Claims of older writers may be gone too.
    claims = [f for f in every_file(whole) if f.parent.name == "fence" and f.suffixes == [".json"]]
    unmissed = {*commits[:2], commits[-1], *claims[:-1]}
    root = tmp_path / "store"
    shutil.copytree(whole, root)
    store = Store(root)
    for name in every_file(whole):
        DAMAGES[how](root / name)
        result = verify(store)
        if not (how == "missing" and (name in unmissed or "sums" in name.parts)):
            assert result.findings, f"{name}: {how} was not noticed"
        assert all(str(name)[:20] in f.path or name.name[:17] in f.problem for f in result.findings), (name, how)
        newest = store.latest()
        assert newest is not None
        spoiled = "state" in name.parts or name.parent.name == "checkpoints"
        assert newest.epoch >= (2 if spoiled else 6)
        for task in TASKS:
            state, epoch = store.restore(task)
            assert epoch >= newest.epoch
            assert state["t"] == versions[epoch]["t"]
            assert state["u"] == versions[epoch]["u"]
        shutil.copy(whole / name, root / name)


def test_files_swapped_with_their_neighbours_are_named(whole: Path, tmp_path: Path) -> None:
    files = every_file(whole)
    pairs = [(a, b) for a, b in pairwise(files) if a.parent == b.parent]
    assert len(pairs) > 20
    root = tmp_path / "store"
    shutil.copytree(whole, root)
    for one, other in pairs:
        first, second = (root / one).read_bytes(), (root / other).read_bytes()
        (root / one).write_bytes(second)
        (root / other).write_bytes(first)
        findings = " ".join(f.path for f in verify(Store(root)).findings)
        if first != second:
            assert one.name in findings and other.name in findings, (one, other)
        (root / one).write_bytes(first)
        (root / other).write_bytes(second)


def test_with_nothing_whole_left_the_message_says_what_was_tried(whole: Path, tmp_path: Path) -> None:
    root = tmp_path / "store"
    shutil.copytree(whole, root)
    for path in (root / "state" / "O3-0").iterdir():
        flip(0.5)(path)
    store = Store(root)
    with pytest.raises(
        Unrecoverable, match=r"task O3/0 cannot be restored: checkpoint 6: state/O3-0/.*altered.*checkpoint 2:"
    ):
        store.restore("O3/0")
    with pytest.raises(Unrecoverable, match="no whole checkpoint is left; tried checkpoint 6"):
        store.latest()
    assert store.restore("O3/1")[1] == 6
    with pytest.raises(Damaged, match="was altered"):
        store.restore("O3/0", 4)


def test_a_later_checkpoint_does_not_need_the_damaged_one_before_it(whole: Path, tmp_path: Path) -> None:
    root = tmp_path / "store"
    shutil.copytree(whole, root)
    for path in (root / "state" / "O3-0").glob("000000000002-*"):
        path.unlink()
    result = verify(Store(root))
    assert result.checkpoints == {2: False, 4: False, 6: True}


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EIO])
@pytest.mark.parametrize("operation", ["write", "open", "fsync", "link"])
def test_a_device_that_refuses_is_reported_and_nothing_whole_is_lost(
    code: int, operation: str, whole: Path, tmp_path: Path
) -> None:
    root = tmp_path / "store"
    shutil.copytree(whole, root)
    store = Store(root)
    writer = store.writer("job", fold_at=0, keep=9)
    before = {path: (root / path).read_bytes() for path in every_file(root)}

    def refuse(*_: Any, **__: Any) -> Any:
        raise OSError(code, os.strerror(code))

    with mock.patch.object(os, operation, refuse), pytest.raises(HoldfastError, match=os.strerror(code)):
        files = store.write_task("O3/0", 8, TaskState.empty({"t": SCHEMA}, 8), token=writer.token)
        writer.commit_checkpoint(8, {"O3/0": files})
        store.files.create("created", b"by linking", True)
    for path, data in before.items():
        if path.name.startswith("index-") and operation == "link":
            continue  # Only what is created is linked: here the commit came through, and its index with it.
        assert (root / path).read_bytes() == data
    assert not list(root.rglob(".tmp-*")), "a failed write left its temporary file behind"
    writer.close()
    assert [one.epoch for one in store.checkpoints()][:3] == [2, 4, 6]


def test_a_full_disk_while_spilling_or_saving_leaves_the_version_as_it_was(tmp_path: Path) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    state = states()[6]
    node = LocalState(tmp_path / "node")
    node.restore("O3/0", state)
    with mock.patch.object(ipc.tempfile, "NamedTemporaryFile", refuse), pytest.raises(Unusable, match="No space left"):
        state.with_spill(Spill(tmp_path / "spill", 0))
    with mock.patch.object(os, "write", refuse), pytest.raises(Unusable, match="No space left"):
        node.save("O3/0", 7, {"t": change(7)})
    assert node.load("O3/0", 6) == state == states()[6]


def test_a_store_that_vanished_says_so(tmp_path: Path) -> None:
    root = tmp_path / "store"
    store = Store(root)
    writer = store.writer("job")
    files = store.write_task("O3/0", 1, TaskState.empty({"t": SCHEMA}, 1), token=writer.token)
    writer.commit_checkpoint(1, {"O3/0": files})
    shutil.rmtree(root)
    with pytest.raises(HoldfastError, match="vanished"):
        writer.commit_checkpoint(2, {"O3/0": []})
    root.write_text("a file where the folder was")
    with pytest.raises(Unusable, match="Not a directory"):
        store.write_task("O3/0", 2, TaskState.empty({"t": SCHEMA}, 2), token=writer.token)


def test_a_commit_cut_anywhere_leaves_the_old_checkpoint_or_the_new(whole: Path, tmp_path: Path) -> None:
    """Not at random: every single file operation of a checkpoint with compaction is the last one once."""
    versions, at, seen = states(), 0, set()
    while True:
        root = tmp_path / str(at)
        shutil.copytree(whole, root, ignore=shutil.ignore_patterns("journal", "output"))
        store = Store(root)
        writer = store.writer("job", keep=2, fold_at=0, lease=3600)
        try:
            with dying(at):
                grown = {"t": change(7), "u": change(17)}
                more = {task: store.write_task(task, 7, grown, since=6, token=writer.token) for task in TASKS}
                writer.commit_checkpoint(7, more)
                writer.compact()
            finished = True
        except Crash:
            finished = False
        with Store(root).writer("next", force=True) as after:
            newest = after.store.latest()
            assert newest is not None
            assert newest.epoch in (6, 7)
            seen.add(newest.epoch)
            expected = versions[6] if newest.epoch == 6 else versions[6].apply(grown, 7)
            for task in TASKS:
                assert after.store.restore(task)[0] == expected
            assert verify(after.store).whole
        shutil.rmtree(root)
        if finished:
            break
        at += 1
    assert seen == {6, 7}
    assert at > 60


@pytest.mark.parametrize("how", DAMAGES)
def test_a_torn_local_file_is_missing_never_wrong(how: str, tmp_path: Path) -> None:
    versions = states()
    node = LocalState(tmp_path)
    node.restore("O3/0", versions[0])
    for epoch in range(1, 7):
        node.save("O3/0", epoch, {"t": change(epoch), "u": change(epoch + 10)})
    node.restore("O3/0", versions[4])
    for path in sorted((tmp_path / "O3-0").iterdir()):
        data = path.read_bytes()
        DAMAGES[how](path)
        for epoch in range(1, 7):
            try:
                assert node.load("O3/0", epoch) == versions[epoch]
            except VersionMissing as error:
                assert f"version {epoch} is not whole" in str(error)
                assert epoch < 4 or int(path.name.split(".")[0]) > 4
        path.write_bytes(data)
    assert node.load("O3/0", 6) == versions[6]
