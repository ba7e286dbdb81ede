"""Who holds a store: identities that are given, signs of life without threads, and the store's own id."""

from __future__ import annotations

import itertools
import shutil
import socket
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest

from holdfast.errors import Invalid
from holdfast.state import (
    Cursor,
    Damaged,
    Fenced,
    Held,
    Identity,
    Journal,
    JournalEpoch,
    Store,
    TaskState,
    Unusable,
    cursor,
)
from holdfast.state.entries import HEADER
from holdfast.state.fence import Guard, held, is_running
from holdfast.state.files import Files, open_files
from holdfast.state.journal import piece_name
from holdfast.state.output import place, stage
from holdfast.state.verify import verify


class Drivers:
    """Two drivers on machines that are played, with a clock of their own and ids in their order."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.running: set[str] = set()
        self._ids = itertools.count()

    def on(self, files: Files, host: str, process: str) -> Store:
        self.running.add(process)
        identity = Identity(host, process, self.running.__contains__, lambda: f"id-{next(self._ids)}")
        return Store(files, clock=lambda: self.now, identity=identity)


def test_a_driver_that_died_on_the_same_machine_holds_nothing_and_on_another_until_its_lease_ends(
    tmp_path: Path,
) -> None:
    files, drivers = open_files(tmp_path), Drivers()
    drivers.on(files, "a", "driver-1").writer("one", lease=30)
    for host in ("a", "b"):
        with pytest.raises(Held, match=r"held by one \(process driver-1\)"):
            drivers.on(files, host, "driver-2").writer("two")
    drivers.running.remove("driver-1")
    with pytest.raises(Held):
        drivers.on(files, "b", "driver-2").writer("two")
    assert held(files, drivers.now, Identity("b", "x")) and not held(files, drivers.now, Identity("a", "x"))
    assert drivers.on(files, "a", "driver-2").writer("two", lease=30).token == 2
    drivers.now += 31
    assert drivers.on(files, "b", "driver-3").writer("three").token == 3


def test_a_claim_holds_the_store_before_its_first_sign_of_life(tmp_path: Path) -> None:
    files, drivers = open_files(tmp_path), Drivers()
    drivers.on(files, "a", "driver-1").writer("one", lease=30)
    files.delete("fence/0000000001.beat")
    other = drivers.on(files, "b", "driver-2")
    with pytest.raises(Held, match="held by one"):
        other.writer("two")
    drivers.now += 31
    assert other.writer("two").token == 2


def test_signs_of_life_are_given_by_whoever_holds_the_writer(tmp_path: Path) -> None:
    files, drivers = open_files(tmp_path), Drivers()
    threads = threading.active_count()
    writer = drivers.on(files, "a", "driver-1").writer("one", lease=30)
    assert threading.active_count() == threads
    other = drivers.on(files, "b", "driver-2")
    for _ in range(5):
        drivers.now += 29
        writer.beat()
        with pytest.raises(Held):
            other.writer("two")
    drivers.now += 31
    newer = other.writer("two")
    with pytest.raises(Fenced, match="superseded by writer 2"):
        writer.beat()
    writer.close()
    newer.close()
    newer.beat()
    assert other.writer("three").token == 3, "a sign of life after letting go does not take it back"


def test_this_process_is_known_to_be_running_and_one_that_is_not_is_not() -> None:
    here = Identity.here()
    assert is_running(here.process)
    assert not is_running("999999999@1") and not is_running("driver-1")
    assert not is_running(f"{here.process.partition('@')[0]}@1"), "the number of a process is used again"


def test_the_same_acts_leave_the_same_bytes(tmp_path: Path) -> None:
    """Nothing of the time, the machine or chance is in a store but what it was given."""

    def act(root: Path) -> dict[str, bytes]:
        drivers = Drivers()
        store = drivers.on(open_files(root), "a", "driver-1")
        writer = store.writer("one")
        known = Journal.load(store, -1)
        piece = store.journal_write(0, piece_name(1, 0, 1), b"rows", token=writer.token)
        known.append(writer, JournalEpoch(0, (piece,), {}))
        place(store.files, [stage(store.files, "1-1", "final", 0, "O/0", pa.table({"n": [1]}), 1.0, True)], True)
        writer.commit_checkpoint(0, {"O/0": store.write_task("O/0", 0, TaskState.empty({}, 0), token=writer.token)})
        cursor.write(store.files, Cursor().with_("final", "O/0", 0), writer.token, True)
        return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}

    first = act(tmp_path / "one")
    assert first == act(tmp_path / "two")
    assert len(first) > 8


def test_a_store_is_known_by_its_id_wherever_it_is_seen(tmp_path: Path) -> None:
    store, other = Store(tmp_path / "store"), Store(tmp_path / "other")
    with pytest.raises(Damaged, match=f"{HEADER} is missing"):
        store.marker()
    for each in (store, other):
        each.writer("job").close()
    marker = store.marker()
    assert marker != other.marker()
    Store(tmp_path / "store").check_marker(marker)
    words = rf"store {tmp_path}/other: host {socket.gethostname()} does not see the store of this job \({marker}\)"
    with pytest.raises(Invalid, match=rf"{words}: the store there has id {other.marker()}; give a path or URL"):
        other.check_marker(marker)
    with pytest.raises(Invalid, match=rf"{tmp_path}/nowhere: host .*: {HEADER} is missing"):
        Store(tmp_path / "nowhere").check_marker(marker)
    store.writer("again").close()
    assert store.marker() == marker


def test_a_store_that_is_made_anew_in_the_same_place_has_an_id_of_its_own(tmp_path: Path) -> None:
    store, reader = Store(tmp_path / "store"), Store(tmp_path / "store")
    store.writer("first").close()
    assert store.journal_epochs() == reader.journal_epochs() == []
    before = store.marker()
    shutil.rmtree(tmp_path / "store")
    store.writer("second").close()
    assert store.marker() != before
    for each in (store, reader, Store(tmp_path / "store")):
        assert each.journal_epochs() == [] and verify(each).whole


@pytest.mark.parametrize("how", ["damaged", "gone"])
def test_a_header_that_is_not_whole_is_made_anew_by_the_next_writer(how: str, tmp_path: Path) -> None:
    store = Store(tmp_path)
    with store.writer("job") as writer:
        writer.commit_checkpoint(0, {})
    path = tmp_path / HEADER
    path.write_bytes(path.read_bytes()[:-30])
    if how == "gone":
        path.unlink()
    with pytest.raises(Invalid, match=f"{HEADER} is"):
        store.check_marker("x")
    store.writer("next").close()
    store.check_marker(store.marker())


def test_a_checkpoint_whose_first_try_failed_behind_its_manifest_has_another_revision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is tried again may say something else, such as how long it has taken."""
    store = Store(tmp_path)
    with store.writer("job") as writer:
        entries = {"O/0": store.write_task("O/0", 1, TaskState.empty({}, 1), token=writer.token)}
        checks = iter([None, Unusable("503 Slow Down")])

        def check() -> None:
            if (error := next(checks, None)) is not None:
                raise error

        monkeypatch.setattr(writer, "check", check)
        with pytest.raises(Unusable):
            writer.commit_checkpoint(1, entries, extra={"rows": 1})
        done = writer.commit_checkpoint(1, entries, extra={"rows": 2})
    assert done.revision == 1 and store.checkpoints() == [done] and done.extra == {"rows": 2}
    assert len([name for name in store.files.list("checkpoints") if name[0].isdecimal()]) == 1


class Looks:
    """A folder that counts how often it is asked whether a file is there, and may be as far away as an object store."""

    def __init__(self, files: Files, far: int) -> None:
        self._files, self.far, self.asked = files, far, 0

    def size(self, name: str) -> int:
        self.asked += 1
        return self._files.size(name)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)


def looks_before_calls(tmp_path: Path, far: int, seconds: Sequence[float], renewed: float, released: bool) -> int:
    """How often the fence is looked at before calls at these seconds, with a lease of 10 s."""
    writer = Store(tmp_path).writer("job")
    files, clock = Looks(writer.store.files, far), iter(seconds)
    guard = Guard(cast(Files, files), writer.token, 10.0, renewed, lambda: next(clock))
    if released:
        guard.released()
    for _ in seconds:
        guard.look()
    return files.asked // 2


@pytest.mark.parametrize(
    ("far", "seconds", "renewed", "released", "looks"),
    [
        (0, (1.0, 1.0, 1.0, 1.01), 0.0, False, 4),
        (1, (1.0, 1.0, 1.1, 1.19, 1.2, 1.3), 0.0, False, 2),
        (1, (1.0, 1.01, 9.0, 9.01), 8.0, False, 2),
        (1, (4.9, 4.95, 5.0, 5.01, 5.02), 0.0, False, 4),
        (1, (1.0, 1.01, 1.02), 0.0, True, 3),
    ],
    ids=["folder", "url", "stopped", "lease not renewed", "released"],
)
def test_the_fence_is_looked_at_before_calls_of_user_code(
    tmp_path: Path, far: int, seconds: Sequence[float], renewed: float, released: bool, looks: int
) -> None:
    """Behind a URL a look counts for 0.2 s, while the first half of a renewed lease lasts; in a folder never."""
    assert looks_before_calls(tmp_path, far, seconds, renewed, released) == looks


def test_a_process_that_was_stopped_looks_before_its_next_call(tmp_path: Path) -> None:
    """Its clock has gone on meanwhile: the look from before it was stopped counts no more."""
    store = Store(tmp_path)
    writer = store.writer("old", lease=10.0)
    now = [0.0]
    guard = Guard(cast(Files, Looks(store.files, 1)), writer.token, 10.0, 0.0, lambda: now[0])
    guard.look()
    Store(tmp_path).writer("new", force=True)
    now[0] = 10.0
    with pytest.raises(Fenced, match="superseded by writer 2"):
        guard.look()
