"""A node's copies used by several workers at once, and how files stay few."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from holdfast.errors import HoldfastError, Invalid
from holdfast.state import Change, LocalState, StateSchema, TaskState, VersionMissing
from holdfast.state.files import open_files

SCHEMA = StateSchema(pa.schema([("k", pa.int64())]), pa.schema([("v", pa.int64())]))
NOTHING = pa.table({"k": pa.array([], pa.int64())})


def change(epoch: int, rows: int = 20) -> Change:
    keys = np.random.default_rng(epoch).permutation(60)[:rows]
    return Change(pa.table({"k": keys, "v": np.full(rows, epoch)}), NOTHING)


def test_a_worker_loads_while_another_saves_and_folds(tmp_path: Path) -> None:
    versions = {0: TaskState.empty({"t": SCHEMA}, 0)}
    for epoch in range(1, 61):
        versions[epoch] = versions[epoch - 1].apply({"t": change(epoch)}, epoch)
    LocalState(tmp_path).restore("O/0", versions[0])
    saved, trouble = [0], list[str]()
    finished = threading.Event()

    def save() -> None:
        node = LocalState(tmp_path)
        for epoch in range(1, 61):
            node.save("O/0", epoch, {"t": change(epoch)})
            saved[0] = epoch
            node.drop("O/0", max(epoch - 12, 0))
        finished.set()

    def load() -> None:
        node, cached, turns = LocalState(tmp_path), None, 0
        while not finished.is_set() or turns < 5:
            turns += 1
            epoch = saved[0]
            try:
                state = node.load("O/0", epoch, cached)
            except HoldfastError as error:
                # Meanwhile the other one may have let go of it; whoever is that slow has to ask again.
                if epoch > saved[0] - 12:
                    trouble.append(str(error))
                continue
            if state != versions[epoch]:
                trouble.append(f"version {epoch} is wrong")
            cached = state if turns % 3 else None

    threads = [threading.Thread(target=save), threading.Thread(target=load), threading.Thread(target=load)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert trouble == []
    assert LocalState(tmp_path).load("O/0", 60) == versions[60]


def test_changes_are_put_together_before_they_meet_the_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node, state = LocalState(tmp_path), TaskState.empty({"t": SCHEMA}, 0)
    node.restore("O/0", state)
    for epoch in range(1, 8):
        gone = Change(SCHEMA.arrow.empty_table(), pa.table({"k": [epoch]}))
        changes = {"t": gone if epoch == 5 else change(epoch)}
        state = state.apply(changes, epoch)
        node.save("O/0", epoch, changes)
    applied, real = list[int](), TaskState.apply

    def counted(self: TaskState, changes: Mapping[str, Change], epoch: int) -> TaskState:
        applied.append(epoch)
        return real(self, changes, epoch)

    monkeypatch.setattr(TaskState, "apply", counted)
    assert node.load("O/0", 7) == state
    assert applied == [7], "one look into the state, however many changes"


def test_files_stay_few_and_bytes_follow_the_changes(tmp_path: Path) -> None:
    node = LocalState(tmp_path)
    rows = pa.table({"k": np.arange(20_000), "v": np.zeros(20_000, np.int64)})
    state = TaskState.empty({"t": SCHEMA}, 0).apply({"t": Change(rows, NOTHING)}, 0)
    node.restore("O/0", state)

    def held() -> int:
        return sum(path.stat().st_size for path in tmp_path.rglob("*.arrow"))

    whole = held()
    most = 0
    for epoch in range(1, 201):
        state = state.apply({"t": change(epoch)}, epoch)
        node.save("O/0", epoch, {"t": change(epoch)})
        node.drop("O/0", epoch - 1)
        most = max(most, len(list((tmp_path / "O-0").iterdir())))
    assert node.load("O/0", 200) == state
    assert most <= 20
    assert held() < 1.2 * whole
    assert node.tasks() == ["O/0"]
    with pytest.raises(VersionMissing, match="version 3 is not whole"):
        node.load("O/0", 3)
    node.forget("O/0")
    assert held() == 0


def test_a_version_at_hand_becomes_the_snapshot_and_what_is_still_needed_stays(tmp_path: Path) -> None:
    node = LocalState(tmp_path)
    versions = {0: TaskState.empty({"t": SCHEMA}, 0)}
    node.restore("O/0", versions[0])
    most = 0
    for epoch in range(1, 101):
        versions[epoch] = versions[epoch - 1].apply({"t": change(epoch)}, epoch)
        node.save("O/0", epoch, {"t": change(epoch)})
        if epoch % 12 == 0:
            node.drop("O/0", epoch - 3, versions[epoch])
            for needed in range(epoch - 3, epoch + 1):
                assert LocalState(tmp_path).load("O/0", needed) == versions[needed]
            assert node.changes("O/0", epoch - 3, epoch)["t"].encode()
        most = max(most, len(list((tmp_path / "O-0").iterdir())))
    assert most <= 40


def test_of_several_runs_the_last_counts_as_a_whole(tmp_path: Path) -> None:
    node = LocalState(tmp_path)
    node.restore("O/0", TaskState.empty({"t": SCHEMA, "u": SCHEMA}, 0))
    node.save("O/0", 1, {"t": change(1), "u": change(2)}, run=9)
    # Written later by an earlier run, and with more or fewer tables: the number decides, not the time.
    node.save("O/0", 1, {"t": change(3, 7)}, run=8)
    node.save("O/0", 1, {"t": change(3, 7), "u": change(4, 7)}, run=7)
    assert len(node.load("O/0", 1)["t"]) == len(node.load("O/0", 1)["u"]) == 20
    node.save("O/0", 1, {"t": change(3, 7)}, run=10)
    assert len(node.load("O/0", 1)["t"]) == 7 and len(node.load("O/0", 1)["u"]) == 0
    assert len(node.changes("O/0", 0, 1)["t"].upserts) == 7
    node.save("O/0", 2, {}, run=10)
    assert node.load("O/0", 2).epoch == 2
    # Half of what run 11 would have made: it died, and what run 10 made still counts.
    node.save("O/0", 1, {"t": change(5, 3), "u": change(5, 3)}, run=11)
    (tmp_path / next(str(path) for path in (tmp_path / "O-0").glob("1.0.0of2.11.*"))).unlink()
    assert len(node.load("O/0", 1)["t"]) == 7


def test_of_steps_that_lead_to_one_version_that_of_the_later_run_is_taken(tmp_path: Path) -> None:
    node = LocalState(tmp_path)
    older = TaskState.empty({"t": SCHEMA}, 0).apply({"t": change(1, 5)}, 1)
    node.restore("O/0", older)
    node.save("O/0", 2, {"t": change(2, 5)}, since=0, run=5)
    node.save("O/0", 2, {"t": change(3, 40)}, since=1, run=9)
    node.save("O/0", 4, {"t": change(4, 5)}, since=3, run=5)
    node.save("O/0", 4, {"t": change(5, 40)}, since=2, run=9)
    right = older.apply({"t": change(3, 40)}, 2)
    assert node.load("O/0", 2, older) == node.load("O/0", 2) == right
    assert node.load("O/0", 4) == right.apply({"t": change(5, 40)}, 4)
    assert len(node.changes("O/0", 1, 2)["t"].upserts) == len(node.changes("O/0", 2, 4)["t"].upserts) == 40


def test_letting_go_takes_what_other_runs_left_too(tmp_path: Path) -> None:
    node = LocalState(tmp_path)
    versions = {0: TaskState.empty({"t": SCHEMA}, 0)}
    node.restore("O/0", versions[0])
    for epoch in range(1, 31):
        versions[epoch] = versions[epoch - 1].apply({"t": change(epoch)}, epoch)
        node.save("O/0", epoch, {"t": change(epoch + 100, 5)}, run=1)
        node.save("O/0", epoch, {"t": change(epoch)}, run=2)
        node.save("O/0", epoch, {"t": change(epoch + 200, 5), "u": change(1)}, run=3)
        next((tmp_path / "O-0").glob(f"{epoch}.*.1of2.3.*")).unlink()
        node.drop("O/0", epoch - 2)
        for needed in range(max(epoch - 2, 0), epoch + 1):
            assert LocalState(tmp_path).load("O/0", needed) == versions[needed]
    assert len(list((tmp_path / "O-0").iterdir())) < 50
    node.restore("O/0", versions[30], run=4)
    node.drop("O/0", 30)
    assert len(list((tmp_path / "O-0").iterdir())) == 1


@pytest.mark.parametrize("how", ["cut", "altered", "empty", "gone"])
def test_one_damaged_changelog_file_makes_the_version_missing(how: str, tmp_path: Path) -> None:
    node = LocalState(tmp_path)
    node.restore("O/0", TaskState.empty({"t": SCHEMA}, 0))
    for epoch in (1, 2, 3):
        node.save("O/0", epoch, {"t": change(epoch + 50)}, run=epoch)
        node.save("O/0", epoch, {"t": change(epoch)}, run=epoch + 10)
    path = next((tmp_path / "O-0").glob("2.1.*.12.*"))
    data = path.read_bytes()
    if how == "gone":
        path.unlink()
        next((tmp_path / "O-0").glob("2.1.*.2.*")).unlink()
    else:
        path.write_bytes({"cut": data[:-1], "altered": bytes([data[0] ^ 1]) + data[1:], "empty": b""}[how])
    for epoch in (2, 3):
        with pytest.raises(VersionMissing, match=f"task O/0: version {epoch} is not whole in {tmp_path}"):
            node.load("O/0", epoch)
        with pytest.raises(VersionMissing, match=rf"the changes of \(0, {epoch}\] are not all whole in {tmp_path}"):
            node.changes("O/0", 0, epoch)
    assert len(node.load("O/0", 1)["t"]) == 20


@pytest.mark.parametrize("place", ["local", "memory"])
def test_a_fork_has_the_files_of_its_origin_and_goes_its_own_way(place: str, tmp_path: Path) -> None:
    files = open_files(tmp_path if place == "local" else "memory://forks")
    main, fork = LocalState(files.within("main")), LocalState(files.within("fork-3"))
    state = TaskState.empty({"t": SCHEMA}, 0)
    main.restore("O/0", state)
    main.restore("O/1", state)
    for epoch in (1, 2):
        main.save("O/0", epoch, {"t": change(epoch)}, run=epoch)
    main.link("O/0", fork)
    main.link("O/0", fork)
    assert fork.tasks() == ["O/0"] and fork.load("O/0", 2) == main.load("O/0", 2)
    if place == "local":
        for path in (tmp_path / "main/O-0").iterdir():
            assert (tmp_path / "fork-3/O-0" / path.name).samefile(path)
    fork.save("O/0", 2, {"t": change(9, 3)}, run=3)
    assert len(fork.load("O/0", 2)["t"]) != len(main.load("O/0", 2)["t"])
    before = main.load("O/0", 2)
    files.delete_tree("fork-3")
    assert fork.tasks() == [] and main.load("O/0", 2) == before


def test_names_of_any_kind_are_told_apart(tmp_path: Path) -> None:
    node = LocalState(tmp_path)
    names = ["a-1/0", "a/10", "a%2F/0", "straße 7/3", "../up/0"]
    for number, task in enumerate(names):
        node.restore(task, TaskState(number, {"t.x/%": TaskState.empty({"t": SCHEMA}, number)["t"]}))
    assert sorted(node.tasks()) == sorted(names)
    for number, task in enumerate(names):
        assert list(node.load(task, number).tables) == ["t.x/%"]
    assert {path.parent for path in tmp_path.rglob("*.arrow")} == {tmp_path / path.name for path in tmp_path.iterdir()}
    for bad in ("O3", "/0", "O3/x", ""):
        with pytest.raises(Invalid, match="expected operator/number, such as O3/0"):
            node.epochs(bad)
    with pytest.raises(Invalid, match="is the most"):
        node.epochs("x" * 300 + "/0")


@pytest.mark.parametrize("whole_first", [True, False])
def test_of_a_whole_version_and_a_change_that_leads_to_it_the_later_run_counts(
    whole_first: bool, tmp_path: Path
) -> None:
    """An epoch is made again with other rows: once it had every key, once a few."""
    node, first = LocalState(tmp_path), TaskState.empty({"t": SCHEMA}, 0).apply({"t": change(0, 60)}, 1)
    node.restore("O/0", first, run=1)
    every, few = change(2, 60), change(3, 5)
    made = [(every, first.apply({"t": every}, 2)), (few, first.apply({"t": few}, 2))]
    for run, (what, version) in enumerate(made if whole_first else made[::-1]):
        node.save("O/0", 2, {"t": what}, run=2 + run, state=version)
    last = (made if whole_first else made[::-1])[-1][1]
    then = last.apply({"t": change(4, 5)}, 3)
    node.save("O/0", 3, {"t": change(4, 5)}, run=4, state=then)
    for cached in (None, first, last):
        assert LocalState(tmp_path).load("O/0", 3, cached) == then
    assert LocalState(tmp_path).load("O/0", 2) == last


def test_a_version_that_is_hardly_more_than_its_change_is_kept_whole(tmp_path: Path) -> None:
    node, state = LocalState(tmp_path), TaskState.empty({"t": SCHEMA}, 0)
    node.restore("O/0", state)
    for epoch in range(1, 11):
        what = change(epoch, 60)
        state = state.apply({"t": what}, epoch)
        node.save("O/0", epoch, {"t": what}, state=state)
    with pytest.raises(VersionMissing):
        node.changes("O/0", 0, 10)
    node.drop("O/0", before=10)
    assert [path.name.split(".")[:2] for path in (tmp_path / "O-0").iterdir()] == [["10", "full"]]
    assert node.load("O/0", 10) == state
