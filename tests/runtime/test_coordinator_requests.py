"""An instruction is a request: only an event makes it a fact, and everything that repeats has an end."""

from __future__ import annotations

import pytest
from driving import Driver, chain, task, two_nodes, works

from holdfast.runtime.coordinator.runs import PATIENCE
from holdfast.runtime.messages import (
    CancelCheckpoint,
    CancelRun,
    CheckpointBroken,
    CheckpointDurable,
    CheckpointLost,
    CheckpointWanted,
    CommitShape,
    EpochDone,
    EpochJournalled,
    Halt,
    NodeInfo,
    Publish,
    Published,
    Run,
    RunBroken,
    RunDone,
    ScaleWanted,
    ShapeCommitted,
    TakeCheckpoint,
    TrimJournal,
)


def slow(*widths: int, nodes: int = 1, **settings: object) -> Driver:
    """Outputs and shapes are put in their place only when the test says so."""
    driver = Driver(chain(*widths), nodes=nodes, prompt=False, **settings)
    driver.join(*range(nodes))
    return driver


def test_an_epoch_is_done_and_checkpointed_after_its_outputs_are_in_their_place() -> None:
    driver = slow(1, 1, checkpoint_every=1)
    driver.arrive(0)
    run = driver.only(Run)
    driver.finish(run)
    assert driver.only(Publish) and not driver.of(EpochDone) and not driver.of(TakeCheckpoint)
    driver.tell(Published(run.number, "final"))
    assert driver.only(EpochDone).epoch == 0 and driver.only(TakeCheckpoint).epoch == 0


def test_an_epoch_is_done_even_if_everybody_goes_meanwhile() -> None:
    driver = slow(1, 1)
    driver.arrive(0)
    run = driver.only(Run)
    driver.finish(run)
    driver.lose(0)
    driver.tell(Published(run.number, "final"))
    assert driver.only(EpochDone) == EpochDone(0)
    assert driver.records("epoch")[0]["epoch"] == 0, "it is told when readers have it"


def test_after_a_restart_the_head_given_again_is_done_before_anybody_is_there() -> None:
    driver = Driver(chain(1, 1), checkpoint=3, head=7)
    assert driver.arrive(7) == [EpochDone(7)]


def test_a_gap_ends_the_job() -> None:
    driver = Driver(chain(1, 1), checkpoint=3, head=5)
    driver.join(0)
    driver.arrive(9)
    assert "epochs 6 to 8 would be lost" in driver.only(Halt).message
    assert driver.coordinator.halted and driver.arrive(6) == []


def test_a_journalled_epoch_whose_run_broke_is_run_from_the_journal() -> None:
    driver = two_nodes(capacity=9.0)
    driver.arrive(5)
    run = driver.only(Run)
    assert (run.ingest, run.epoch) == (5, 5)
    driver.lose(1)
    assert driver.only(CancelRun).number == run.number
    driver.tell(EpochJournalled(5))
    driver.tell(RunBroken(run.number, "nodes were lost"))
    again = next(each for each in driver.of(Run) if each.kind == "epoch")
    assert (again.ingest, again.epoch) == (None, 5)
    assert (driver.coordinator.snapshot().head, driver.coordinator.snapshot().journalled) == (4, 5)
    driver.tell(RunDone(again.number, tuple(map(driver.report, again.works))))
    assert driver.only(EpochDone).epoch == 5 and driver.coordinator.snapshot().head == 5


def test_what_is_under_way_when_nodes_go_is_called_off() -> None:
    driver = two_nodes(checkpoint_every=100)
    driver.tell(CheckpointWanted())
    driver.only(TakeCheckpoint)
    driver.arrive(5)
    run = driver.only(Run)
    driver.lose(1)
    assert driver.only(CancelRun).number == run.number and driver.only(CancelCheckpoint)
    assert driver.look() == [], "the same look again"


def test_a_node_with_another_incarnation_has_lost_what_was_there() -> None:
    driver = two_nodes(capacity=9.0)
    driver.seen["node-1"] = NodeInfo("another")
    driver.look()
    assert driver.records("nodes lost")[0]["nodes"] == ["node-1"] == driver.records("nodes joined")[0]["nodes"]
    assert works(driver.only(Run)) == {"A/1": (0, 4, "checkpoint"), "B/1": (0, 4, "checkpoint")}


def scaling() -> tuple[Driver, CommitShape]:
    """A is to have three tasks; they are at the head, and the shape is on its way to the store."""
    driver = Driver(chain(1, 2, 1), nodes=3, checkpoint_every=4, capacity=9.0)
    driver.join(0, 1, 2)
    for epoch in range(6):
        driver.epoch(epoch)
    driver.prompt = False
    driver.tell(ScaleWanted("A", 3))
    driver.finish(driver.only(Run))
    return driver, driver.only(CommitShape)


def test_nothing_begins_until_the_next_shape_is_in_the_store() -> None:
    driver, commit = scaling()
    assert driver.coordinator.snapshot().shape.version == 0
    driver.arrive(6)
    driver.tell(CheckpointWanted())
    driver.join(7)
    assert not driver.of(Run) and not driver.of(TakeCheckpoint)
    driver.tell(ShapeCommitted(commit.shape.version))
    live = driver.only(Run)
    assert live.shape == commit.shape and set(works(live)) == {"A/0", "A/1", "A/2", "B/0"}


@pytest.mark.parametrize("back", [False, True])
def test_nodes_that_go_while_a_shape_is_committed_are_lost_in_it(back: bool) -> None:
    driver, commit = scaling()
    shadow = driver.parts.rescaling.shadow
    assert shadow is not None
    (lost, copy), *_ = shadow.copies.items()
    driver.lose(int(copy.node[-1]))
    if back:
        driver.join(int(copy.node[-1]))
    assert not driver.of(Run) and driver.coordinator.snapshot().shape.version == 0
    driver.tell(ShapeCommitted(commit.shape.version))
    replay = driver.only(Run)
    assert works(replay)[str(lost)] == (4, 5, "checkpoint") and replay.shape == commit.shape
    driver.prompt = True
    driver.settle()
    assert driver.parts.whole


def test_a_checkpoint_that_seems_damaged_and_is_found_whole_ends_the_job_at_last() -> None:
    driver = Driver(chain(1, 1, 1), nodes=3, checkpoint_every=2, capacity=2.0)
    driver.join(0, 1, 2)
    for epoch in range(5):
        driver.epoch(epoch)
    driver.lose(int(driver.home("B/0")[-1]))
    for tried in range(PATIENCE + 1):
        replay = driver.only(Run)
        assert replay.attempt == tried
        driver.tell(CheckpointLost(3, 3))
        driver.finish(replay, "damaged", of="B/0")
    assert driver.only(Halt).message == (
        f"B/0 was damaged 6 times in a row, in replay runs up to {replay.number}; at last: damaged"
    )


def test_one_bad_state_on_a_node_is_dropped_and_recovered_and_the_checkpoint_succeeds() -> None:
    driver = Driver(chain(1, 1, 1), nodes=2, checkpoint_every=100)
    driver.join(0, 1)
    for epoch in range(3):
        driver.epoch(epoch)
    driver.tell(CheckpointWanted())
    wanted = driver.only(TakeCheckpoint)
    driver.tell(CheckpointBroken(wanted.epoch, "changelog 2 is cut", (task("B/0"),)))
    assert driver.records("missing")[0]["task"] == "B/0" and not driver.of(TakeCheckpoint)
    replay = driver.only(Run)
    assert works(replay) == {"B/0": (0, 2, "checkpoint")}
    driver.finish(replay)
    again = driver.only(TakeCheckpoint)
    assert (again.epoch, again.attempt) == (2, 1)
    driver.tell(CheckpointDurable(2))
    assert driver.only(TrimJournal).epoch == 2


def test_checkpoints_that_keep_failing_end_the_job() -> None:
    driver = Driver(chain(1, 1), nodes=1, checkpoint_every=1, checkpoint_tries=4)
    driver.join(0)
    driver.arrive(0)
    driver.finish(driver.only(Run))
    for _ in range(4):
        driver.tell(CheckpointBroken(driver.only(TakeCheckpoint).epoch, "no space"))
    assert driver.only(Halt).message.startswith("4 checkpoints failed in a row, the last one of epoch 0")


def test_a_snapshot_says_where_things_stand() -> None:
    driver = two_nodes(capacity=2.0, replicas=())
    driver.lose(1)
    driver.arrive(5)
    now = driver.coordinator.snapshot()
    assert (now.head, now.journalled, now.checkpoint, now.pending) == (4, 4, -1, 5)
    assert now.nodes == ("node-0",) and now.down == (task("A/1"), task("B/1")) and not now.idle
    assert now.homes == {task("A/0"): "node-0", task("B/0"): "node-0"} and set(now.positions.values()) == {4}
    assert now.tasks == {"S": 1, "A": 2, "B": 2} and now.checkpoint_needed and now.behind == 0
    assert len(now.forks) == 1 and now.scaling is None and now.queued_scalings == 0
    driver.finish(driver.only(Run))
    assert (now.head, now.pending) == (4, 5), "it does not change with what it was taken of"


def test_a_snapshot_knows_of_scaling_and_replicas() -> None:
    driver = Driver(chain(1, 2), nodes=2, replicas=(task("A/0"),), checkpoint_every=100)
    driver.join(0, 1)
    for epoch in range(3):
        driver.epoch(epoch)
    driver.tell(ScaleWanted("A", 3))
    driver.tell(ScaleWanted("A", 4))
    now = driver.coordinator.snapshot()
    assert now.scaling == ("A", 1) and now.queued_scalings == 0
    node, behind = now.replicas[task("A/0")]
    assert node != now.homes[task("A/0")] and behind == 0
