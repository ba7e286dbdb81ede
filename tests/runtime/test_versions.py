"""What a node has of states and kept outputs, and what of it goes when nobody can ask for it any more."""

from __future__ import annotations

import pyarrow as pa
import pytest
from driving import task

from holdfast.runtime.messages import Work
from holdfast.runtime.shape import Shape
from holdfast.runtime.simulation.disk import Disk
from holdfast.runtime.worker.blocks import Block, encode
from holdfast.runtime.worker.plan import RunPlan
from holdfast.runtime.worker.versions import HELD, Upload, Versions, branch_of, main_branch, upload
from holdfast.state import Change, KeyRange, Routing, StateSchema, Store, TaskState, VersionMissing

SCHEMA = StateSchema(pa.schema({"k": pa.int64()}), pa.schema({"v": pa.int64()}))
NOTHING = SCHEMA.key.empty_table()
A, B = task("A/0"), task("A/1")
NODE = "node"


def change(epoch: int) -> dict[str, Change]:
    return {"t": Change(pa.table({"k": [epoch % 3], "v": [epoch]}), NOTHING)}


def state_at(epoch: int) -> TaskState:
    state = TaskState.empty({"t": SCHEMA}, -1)
    for each in range(epoch + 1):
        state = state.apply(change(each), each)
    return state


def plan(run: int, retain: int = -1, *forks: int, shape: Shape | None = None, settled: bool = True) -> RunPlan:
    return RunPlan(run, (), {}, {}, {}, {}, retain, forks=frozenset(forks), shape=shape or Shape(), settled=settled)


class Folder:
    """A node's folder on a disk in memory; ``versions``: what one process makes of it."""

    def __init__(self) -> None:
        self.disk = Disk()
        self.versions = self.opened()

    def opened(self) -> Versions:
        return Versions(self.disk.files("node", NODE), whole_from=0)

    def filled(self, branch: str, last: int) -> None:
        """A task begins from nothing on this branch and goes on to this epoch."""
        self.versions.begin(branch, A, state_at(-1), run=0)
        for epoch in range(last + 1):
            self.versions.commit(branch, A, state_at(epoch), change(epoch), epoch - 1, run=epoch)

    def branches(self) -> set[str]:
        return {path.split("/")[1] for path in self.disk.paths()}


def test_a_version_that_another_process_made_again_is_not_taken_from_memory() -> None:
    folder = Folder()
    folder.filled("main", 5)
    other = folder.opened()
    again = {"t": Change(pa.table({"k": [2], "v": [500]}), NOTHING)}  # the epoch once more, after rows were shed
    other.commit("main", A, state_at(4).apply(again, 5), again, 4, run=9)
    following = {"t": Change(pa.table({"k": [0], "v": [6]}), NOTHING)}
    other.commit("main", A, state_at(4).apply(again, 5).apply(following, 6), following, 5, run=10)

    def values(state: TaskState) -> dict[int, int]:
        return {row["k"]: row["v"] for row in state["t"].to_table().to_pylist()}

    assert values(folder.versions.load("main", A, 5)) == {0: 3, 1: 4, 2: 500}
    folder.versions.hold("main", A, state_at(5), run=5)
    assert values(folder.versions.load("main", A, 6)) == {0: 6, 1: 4, 2: 500}, "climbed from a stale one"


def test_who_wakes_up_late_in_a_run_that_was_called_off_takes_nothing_from_a_later_one() -> None:
    folder, late = Folder(), Folder()
    late.disk = folder.disk
    folder.versions.begin("main", A, state_at(3), run=9)
    folder.versions.commit("main", A, state_at(4), change(4), 3, run=9)
    late.opened().begin("main", A, state_at(3), run=7)
    assert folder.opened().load("main", A, 4) == state_at(4)
    folder.versions.begin("main", A, state_at(3), run=10)
    with pytest.raises(VersionMissing):
        folder.opened().load("main", A, 4)


def test_who_wakes_up_late_keeps_no_version_as_that_of_a_later_run() -> None:
    """A replica's node trims: the version at hand is kept whole there, as that of the run that made it."""
    folder = Folder()
    folder.filled("main", 20)
    again = {"t": Change(pa.table({"k": [2], "v": [800]}), NOTHING)}
    made = state_at(19).apply(again, 20)
    folder.versions.commit("main", A, made, again, 19, run=108)
    folder.opened().trim("main", A, 15, state_at(20), run=107)
    assert folder.opened().load("main", A, 20) == made
    folder.opened().trim("main", A, 16, made, run=108)
    assert folder.opened().load("main", A, 20) == made


def test_branches_are_apart_by_lane_fork_and_birth() -> None:
    def work(lane: str, fork: int = 0, born: int = 0) -> Work:
        return Work(A, "node-0", lane, "local", 1, 2, 2, fork=fork, born=born)  # type: ignore[arg-type]

    assert branch_of(work("exact")) == branch_of(work("replica")) == main_branch(0) == "main"
    assert branch_of(work("exact", born=2)) == "main-2"
    assert (branch_of(work("tentative", 7)), branch_of(work("side", 3, 1))) == ("fork-7", "side-1-3")


def test_another_process_of_the_node_finds_what_one_has_made() -> None:
    folder = Folder()
    folder.filled("main", 6)
    assert folder.opened().load("main", A, 5) == state_at(5)
    assert folder.versions.load("main", A, 6) is folder.versions.load("main", A, 6)
    with pytest.raises(VersionMissing, match="version 7 is not whole"):
        folder.versions.load("main", A, 7)


def test_a_process_holds_a_few_versions_however_many_there_are() -> None:
    folder = Folder()
    folder.filled("main", HELD)
    few = folder.versions.nbytes
    folder.filled("main", 40)
    assert folder.versions.nbytes <= 2 * few


def test_a_fork_begins_with_what_the_main_branch_has_and_leaves_that_alone() -> None:
    folder = Folder()
    folder.filled("main", 4)
    assert folder.versions.fork("fork-9", "main", A, 3) == state_at(3)
    other = state_at(3).apply(change(8), 4)
    folder.versions.commit("fork-9", A, other, change(8), 3, run=9)
    assert folder.opened().load("fork-9", A, 4) == other and folder.opened().load("main", A, 4) == state_at(4)


def test_dead_forks_go_from_memory_and_disk_and_living_and_younger_ones_stay() -> None:
    folder = Folder()
    folder.filled("main", 4)
    versions = folder.versions
    main_alone = versions.nbytes
    for fork in (5, 6, 12):
        versions.fork(f"fork-{fork}", "main", A, 4)
    versions.sweep(plan(10, 2, 6))
    assert folder.branches() == {"main", "fork-6", "fork-12"}
    with pytest.raises(VersionMissing):
        versions.load("fork-5", A, 4)
    versions.sweep(plan(13, 2))
    assert folder.branches() == {"main"} and versions.nbytes == main_alone


def test_sides_go_when_the_checkpoint_they_began_from_is_not_needed_any_more() -> None:
    folder = Folder()
    folder.filled("main", 8)
    main_alone = folder.versions.nbytes
    folder.filled("side-0-2", 4)
    folder.filled("side-0-5", 6)
    folder.versions.sweep(plan(9, 2))
    assert folder.branches() == {"main", "side-0-2", "side-0-5"}
    folder.versions.sweep(plan(10, 5))
    assert folder.branches() == {"main", "side-0-5"}
    folder.versions.sweep(plan(11, 6))
    assert folder.branches() == {"main"} and folder.versions.nbytes == main_alone


def test_copies_that_stayed_behind_the_checkpoint_are_forgotten() -> None:
    folder = Folder()
    folder.filled("main", 4)
    folder.versions.begin("main", B, state_at(9), run=1)
    folder.versions.sweep(plan(3, 2))
    folder.versions.sweep(plan(10, 5))
    assert folder.opened().load("main", B, 9) == state_at(9)
    for versions in (folder.versions, folder.opened()):
        with pytest.raises(VersionMissing):
            versions.load("main", A, 4)


def test_tasks_that_were_scaled_away_leave_once_the_shape_is_in_force() -> None:
    folder = Folder()
    folder.filled("main", 4)
    folder.filled("main-1", 4)
    shape = Shape(1, {"A": Routing(1, (KeyRange(0, 2**32),), (0,))}, {A: 1})
    folder.versions.sweep(plan(5, 2, shape=shape, settled=False))
    assert folder.branches() == {"main", "main-1"}, "it is only being prepared"
    folder.versions.sweep(plan(6, 2, shape=shape))
    assert folder.branches() == {"main-1"} and folder.versions.load("main-1", A, 4) == state_at(4)
    with pytest.raises(VersionMissing):
        folder.versions.load("main", A, 4)


def test_kept_outputs_come_back_until_they_are_old() -> None:
    folder = Folder()
    block = Block(3, A, 0, B, None, 1, encode(pa.table({"n": [1]})))
    for epoch in (3, 4):
        folder.versions.keep(A, epoch, [block])
    (found,) = folder.opened().kept(A, 3)
    assert found.table() == block.table() and folder.versions.kept(A, 9) == []
    folder.versions.sweep(plan(5, 2))
    folder.versions.sweep(plan(6, 3))
    assert folder.versions.kept(A, 3) == [] and len(folder.versions.kept(A, 4)) == 1


@pytest.mark.parametrize("how", ["flip", "cut", "lose"])
def test_kept_outputs_with_a_wrong_checksum_are_absent(how: str) -> None:
    folder = Folder()
    folder.versions.keep(A, 3, [Block(3, A, 0, B, None, 1, encode(pa.table({"n": [1]})))])
    (path,) = folder.disk.paths()
    folder.disk.damage(path, how)
    assert folder.versions.kept(A, 3) == []


def test_a_damaged_file_of_a_node_makes_the_task_missing_and_writes_nothing() -> None:
    folder = Folder()
    folder.filled("main", 3)
    disk = Disk()
    store = Store(disk.files("driver", "store"))
    wanted = Upload(NODE, str(A), -1, 3, 0, -1)
    files = folder.disk.files("node", NODE)
    whole = upload(store, 1, files, wanted)
    assert whole.missing == {} and len(whole.entries[str(A)]) == 1
    for path in folder.disk.paths():
        folder.disk.damage(path, "flip")
    before = disk.paths()
    for since in (-1, 1):
        found = upload(store, 1, files, Upload(NODE, str(A), since, 3, 0, -1))
        assert found.entries == {} and "whole" in found.missing[str(A)] and "A/0" in found.missing[str(A)]
    assert disk.paths() == before


def test_a_checkpoint_of_a_version_that_was_kept_whole_is_whole_and_others_have_what_changed() -> None:
    folder, store = Folder(), Store(Disk().files("driver", "store"))
    files = folder.disk.files("node", NODE)
    folder.filled("main", 5)  # three keys: epoch 5 changed one of them
    (changed,) = upload(store, 1, files, Upload(NODE, str(A), 3, 5, 0, -1)).entries[str(A)]
    assert (changed.since, changed.rows) == (3, 2)
    every = {"t": Change(pa.table({"k": [0, 1, 2], "v": [7, 7, 7]}), NOTHING)}
    state = state_at(5).apply(every, 6)
    folder.versions.commit("main", A, state, every, 5, run=6)
    folder.versions.commit("main", A, later := state.apply(change(7), 7), change(7), 6, run=7)
    (whole,) = upload(store, 1, files, Upload(NODE, str(A), 5, 7, 0, 5)).entries[str(A)]
    assert (whole.since, whole.rows) == (None, 3)
    writer = store.writer("test")
    writer.commit_checkpoint(7, {str(A): [whole]})
    assert store.restore(str(A)) == (later, 7)
