"""What the coordinator says of checkpoints, replicas and restarts: when they come, and what is damaged or late."""

from __future__ import annotations

from driving import Driver, chain, down_for_two_epochs, task, works

from holdfast.runtime.messages import (
    CheckpointBroken,
    CheckpointDurable,
    CheckpointLost,
    CheckpointWanted,
    EpochDone,
    Publish,
    ReplicasPlanned,
    Run,
    RunBroken,
    TakeCheckpoint,
    TrimJournal,
)


def test_a_checkpoint_comes_in_time_and_trims() -> None:
    driver = Driver(chain(1, 1, 1), nodes=1, checkpoint_every=2)
    driver.join(0)
    driver.arrive(0)
    driver.finish(driver.only(Run))
    assert not driver.of(TakeCheckpoint)
    driver.arrive(1)
    driver.finish(driver.only(Run))
    wanted = driver.only(TakeCheckpoint)
    assert (wanted.epoch, wanted.since) == (1, -1) and set(map(str, wanted.homes)) == {"A/0", "B/0"}
    driver.tell(CheckpointDurable(1))
    assert driver.only(TrimJournal).epoch == 1
    driver.epoch(2)
    driver.arrive(3)
    driver.finish(driver.only(Run))
    assert driver.only(TakeCheckpoint).since == 1


def test_nothing_is_checkpointed_while_something_is_down_and_buffers_go_with_the_next_one() -> None:
    driver = down_for_two_epochs(checkpoint_every=1)
    assert driver.parts.recovering.kept and not driver.of(TakeCheckpoint)
    driver.finish(driver.only(Run))
    wanted = driver.only(TakeCheckpoint)
    assert wanted.epoch == 6
    driver.tell(CheckpointDurable(6))
    assert not driver.parts.recovering.kept and not driver.parts.recovering.keeping


def test_recovered_epochs_become_final_and_the_fork_is_dropped() -> None:
    driver = down_for_two_epochs()
    assert driver.parts.answering.forks
    driver.finish(driver.only(Run))
    published = driver.only(Publish)
    assert published.kind == "final"
    assert published.outputs == ((5, task("B/0")), (5, task("B/1")), (6, task("B/0")), (6, task("B/1")))
    assert not driver.parts.answering.forks


def test_replicas_are_made_anew_after_recovery() -> None:
    driver = Driver(chain(1, 1), nodes=3, replicas=(task("A/0"),), checkpoint_every=1)
    driver.join(0, 1, 2)
    driver.epoch(0)
    driver.lose(int(driver.home("A/0")[-1]))
    driver.settle()
    driver.epoch(1)
    driver.settle()
    assignment = driver.parts.assignment
    assert assignment.replicas[task("A/0")].node != assignment.primaries[task("A/0")].node
    assert assignment.replicas[task("A/0")].position == 1


def test_a_replica_given_up_in_the_midst_of_a_run_is_made_again_after_it() -> None:
    driver = Driver(chain(1, 1), nodes=2, replicas=(task("A/0"),), checkpoint_every=1)
    driver.join(0, 1)
    driver.epoch(0)
    driver.arrive(1)
    run = driver.only(Run)
    driver.tell(ReplicasPlanned(()))
    driver.tell(ReplicasPlanned((task("A/0"),)))
    assert not driver.parts.assignment.replicas, "the run still works on the old one, on the same node"
    driver.finish(run)
    assert task("A/0") in driver.parts.assignment.replicas


def test_a_replica_stays_out_of_the_primarys_domain() -> None:
    driver = Driver(chain(1, 2), nodes=4, replicas=(task("A/0"), task("A/1")))
    racks = {f"node-{number}": f"rack-{number // 2}" for number in range(4)}
    driver.join(*range(4), domains=racks)
    assignment = driver.parts.assignment
    for copied, twin in assignment.replicas.items():
        assert racks[twin.node] != racks[assignment.primaries[copied].node]
    assert len(assignment.replicas) == 2


def test_a_restart_goes_on_at_the_right_epoch() -> None:
    driver = Driver(chain(1, 2, 1), nodes=2, checkpoint=3, head=7)
    driver.join(0, 1)
    replay = driver.only(Run)
    assert set(works(replay).values()) == {(4, 7, "checkpoint")}
    driver.arrive(7)
    assert driver.only(EpochDone).epoch == 7, "it is journalled already"
    driver.arrive(8)
    assert not driver.of(Run), "nobody knows enough yet to answer"
    driver.finish(replay)
    assert driver.only(Publish).outputs == tuple((epoch, task("B/0")) for epoch in range(4, 8))
    assert driver.only(Run).ingest == 8


def test_a_restart_with_few_nodes_keeps_what_others_will_miss() -> None:
    driver = Driver(chain(1, 1, 2), nodes=2, checkpoint=3, head=7, capacity=1.0, scheduler="operator-centric")
    driver.join(0)
    first = driver.only(Run)
    assert works(first) == {"A/0": (4, 7, "checkpoint"), "B/0": (4, 7, "checkpoint")}, "an answer needs both"
    assert [str(work.task) for work in first.works if work.keep] == ["A/0"]
    driver.finish(first)
    driver.join(1)
    second = driver.only(Run)
    assert works(second) == {"B/1": (4, 7, "checkpoint")} and not works(second, "side")
    assert dict(second.buffers) == {task("A/0"): ("node-0", 4, 7)}


def test_a_damaged_checkpoint_gives_way_to_an_older_one() -> None:
    driver = Driver(chain(1, 1, 1), nodes=3, checkpoint_every=2, capacity=2.0)
    driver.join(0, 1, 2)
    for epoch in range(5):
        driver.epoch(epoch)
    assert driver.parts.checkpointing.durable == 3
    driver.lose(int(driver.home("B/0")[-1]))
    replay = driver.only(Run)
    assert works(replay) == {"B/0": (4, 4, "checkpoint")}
    driver.tell(CheckpointLost(3, 1))
    assert not driver.of(Run)
    driver.finish(replay, "damaged", of="B/0")
    again = driver.only(Run)
    assert works(again) == {"B/0": (2, 4, "checkpoint")} and works(again, "side") == {"A/0": (2, 4, "checkpoint")}
    driver.finish(again)
    wanted = driver.only(TakeCheckpoint)
    assert (wanted.epoch, wanted.since) == (4, -1), "whole: there is nothing sound to add to"
    driver.tell(CheckpointDurable(4))
    assert driver.parts.checkpointing.durable == 4


def test_a_copy_that_falls_back_in_the_midst_of_a_run_waits_for_its_end() -> None:
    driver = Driver(chain(1, 1), nodes=1, checkpoint=3, head=3)
    driver.join(0)
    driver.arrive(4)
    live = driver.only(Run)
    driver.tell(CheckpointLost(3, 1))
    assert not driver.of(Run), "two runs on one copy at once would spoil it"
    driver.finish(live, "damaged", of="A/0")
    assert works(driver.only(Run)) == {"A/0": (2, 3, "checkpoint")}


def test_a_checkpoint_built_upon_a_damaged_one_does_not_count() -> None:
    driver = Driver(chain(1, 1), nodes=2, checkpoint_every=2)
    driver.join(0, 1)
    for epoch in range(3):
        driver.epoch(epoch)
    driver.arrive(3)
    driver.finish(driver.only(Run))
    assert driver.only(TakeCheckpoint).since == 1
    driver.tell(CheckpointLost(1, -1))
    driver.tell(CheckpointDurable(3))
    assert driver.parts.checkpointing.durable == -1 and not driver.of(TrimJournal)
    assert driver.only(TakeCheckpoint).since == -1


def test_a_broken_checkpoint_is_made_again() -> None:
    driver = Driver(chain(1, 1), nodes=1, checkpoint_every=9)
    driver.join(0)
    driver.epoch(0)
    driver.tell(CheckpointWanted())
    wanted = driver.only(TakeCheckpoint)
    driver.tell(CheckpointBroken(wanted.epoch, "no space"))
    assert driver.only(TakeCheckpoint).epoch == 0


def test_a_checkpoint_that_comes_after_a_loss_moves_what_was_placed_anew() -> None:
    driver = Driver(chain(1, 1, 1), nodes=3, checkpoint_every=2, capacity=2.0)
    driver.join(0, 1, 2)
    driver.epoch(0)
    driver.arrive(1)
    driver.finish(driver.only(Run))
    wanted = driver.only(TakeCheckpoint)
    driver.lose(int(driver.home("B/0")[-1]))
    replay = driver.only(Run)
    driver.tell(CheckpointDurable(wanted.epoch))
    driver.tell(RunBroken(replay.number))
    assert driver.position("B/0") == 1 and not driver.of(Run), "the new checkpoint holds all it missed"
