"""Tasks move to nodes that come late: as replicas first, then for good; whatever goes on meanwhile."""

from __future__ import annotations

from collections import Counter
from typing import Any

from driving import Driver, chain, task, works

from holdfast.runtime.messages import CheckpointDurable, Instruction, ReplicasPlanned, Run, ScaleWanted, TakeCheckpoint


def crowded(**settings: Any) -> Driver:
    """S -> A/0..3: node-1 died, node-0 has all four, everything is caught up, node-1 is back; a checkpoint is due."""
    driver = Driver(chain(1, 4), nodes=2, capacity=100.0, checkpoint_every=4, **settings)
    driver.join(0, 1)
    driver.epoch(0)
    driver.lose(1)
    driver.settle()
    driver.epoch(1)
    driver.settle()
    assert set(homes(driver).values()) == {"node-0"}
    driver.join(1)
    return driver


def homes(driver: Driver) -> dict[str, str]:
    return {str(each): home.node for each, home in driver.parts.assignment.primaries.items()}


def until_asked(driver: Driver, epoch: int) -> tuple[int, TakeCheckpoint]:
    """Epochs until a checkpoint is asked for; the next epoch."""
    while True:
        driver.arrive(epoch)
        said = driver.finish(driver.only(Run))
        epoch += 1
        if wanted := [each for each in said if isinstance(each, TakeCheckpoint)]:
            return epoch, wanted[0]


def until_checkpoint(driver: Driver, epoch: int) -> int:
    """Epochs until a checkpoint is asked for, which then succeeds; the next epoch."""
    epoch, wanted = until_asked(driver, epoch)
    driver.tell(CheckpointDurable(wanted.epoch))
    return epoch


def hand_over(driver: Driver) -> list[Instruction]:
    """Answer the replay of the new copies."""
    assert driver.parts.replicating.moving
    said: list[Instruction] = []
    while driver.runs:
        said += driver.finish(next(iter(driver.runs.values())))
    return said


def test_a_node_that_comes_back_takes_half_of_the_tasks() -> None:
    driver = crowded()
    epoch = until_checkpoint(driver, 2)
    told = driver.records("moving")[0]["tasks"]
    assert len(told) == 2 and all(pair == ["node-0", "node-1"] for pair in told.values())
    # The new copies are at the checkpoint, which is the head: nothing is to be replayed, and they are the tasks now.
    assert not driver.runs
    driver.arrive(epoch)
    assert Counter(homes(driver).values()) == {"node-0": 2, "node-1": 2}
    run = driver.only(Run)
    assert {str(work.task) for work in run.works if work.node == "node-1"} == set(told)
    assert {origin for name, (_, _, origin) in works(run).items() if name in told} == {"checkpoint"}
    driver.finish(run)
    assert driver.records("epoch")[0]["fidelity"] == 1.0 and driver.records("epoch")[0]["absent"] == 0


def test_an_epoch_under_way_does_not_keep_tasks_from_moving() -> None:
    driver = crowded()
    epoch, wanted = until_asked(driver, 2)
    driver.arrive(epoch)
    live = driver.only(Run)
    driver.tell(CheckpointDurable(wanted.epoch))
    moving = driver.records("moving")[0]["tasks"]
    assert Counter(homes(driver).values()) == {"node-0": 4}
    driver.finish(live)
    hand_over(driver)
    assert not driver.parts.replicating.moving and not driver.parts.assignment.replicas
    assert {name for name, node in homes(driver).items() if node == "node-1"} == set(moving)


def behind_by_one(**settings: Any) -> tuple[Driver, list[str]]:
    """Tasks are moving, and the new copies have an epoch to replay: the replay is under way."""
    driver = crowded(**settings)
    epoch, wanted = until_asked(driver, 2)
    driver.epoch(epoch)
    driver.tell(CheckpointDurable(wanted.epoch))
    assert [run.kind for run in driver.runs.values()] == ["replay"]
    return driver, list(driver.records("moving")[0]["tasks"])


def test_the_target_dies() -> None:
    driver, _ = behind_by_one()
    driver.lose(1)
    assert not driver.parts.replicating.moving and not driver.parts.assignment.replicas
    assert set(homes(driver).values()) == {"node-0"}
    driver.settle()
    assert driver.parts.idle


def test_the_source_dies_and_the_new_copies_are_promoted() -> None:
    driver, moving = behind_by_one()
    driver.lose(0)
    assert set(driver.records("promoted")[0]["tasks"]) == set(moving)
    driver.settle()
    assert set(homes(driver).values()) == {"node-1"} and driver.parts.idle


def test_a_plan_for_replicas_ends_moves() -> None:
    driver, moving = behind_by_one()
    driver.tell(ReplicasPlanned((task(moving[0]),), "a new plan"))
    assert not driver.parts.replicating.moving
    assert moving[1] not in {str(each) for each in driver.parts.assignment.replicas}
    driver.settle()
    assert set(homes(driver).values()) == {"node-0"}


def test_a_scaling_that_is_asked_for_meanwhile_waits_and_happens() -> None:
    driver, _ = behind_by_one()
    driver.tell(ScaleWanted("A", 5, request="r"))
    driver.settle()
    epoch = driver.parts.answering.head + 1
    while driver.coordinator.topology.operator["A"].parallelism != 5:
        driver.arrive(epoch)
        driver.settle()
        epoch += 1
    assert not driver.parts.replicating.moving


def test_nothing_moves_when_it_shall_not() -> None:
    driver = crowded(rebalance=False)
    epoch = until_checkpoint(driver, 2)
    until_checkpoint(driver, epoch)
    assert set(homes(driver).values()) == {"node-0"}


def test_nodes_that_stand_by_are_left_alone() -> None:
    driver = crowded(standby=1)
    until_checkpoint(driver, 2)
    assert not driver.parts.replicating.moving and set(homes(driver).values()) == {"node-0"}
    driver.join(2)
    epoch = driver.parts.answering.head + 1
    until_checkpoint(driver, epoch)
    assert len(driver.records("moving")[0]["tasks"]) == 2


def test_every_epoch_is_exact_while_tasks_move() -> None:
    driver, moving = behind_by_one()
    replay = next(iter(driver.runs.values()))
    assert {driver.home(name) for name in moving} == {"node-0"}
    driver.arrive(driver.parts.answering.head + 1)
    # The epoch under way has the old copies alone: the new ones are at the head now, and behind when it ends.
    driver.finish(replay)
    assert {driver.home(name) for name in moving} == {"node-0"}
    while driver.runs:
        run = next(iter(driver.runs.values()))
        assert run.kind == "epoch" or not works(run)
        driver.finish(run)
        for epoch in driver.records("epoch"):
            assert epoch["exact"] == 4 and epoch["absent"] == epoch["tentative"] == 0
    assert {driver.home(name) for name in moving} == {"node-1"}
