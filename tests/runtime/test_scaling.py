"""Scaling by hand-worked examples, and simulated: out and in, dropped and tried again, recovery into several."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from driving import Driver, chain, task, works

from holdfast.elasticity import Policy
from holdfast.runtime.coordinator.coordinator import Coordinator
from holdfast.runtime.coordinator.rescaling import TRIES
from holdfast.runtime.faults import parse_faults
from holdfast.runtime.messages import (
    CheckpointBroken,
    CheckpointDurable,
    CheckpointLost,
    CommitShape,
    Publish,
    Run,
    RunBroken,
    ScaleWanted,
    TakeCheckpoint,
)
from holdfast.runtime.settings import Settings
from holdfast.runtime.shape import Shape, resized, routing_of, scalable
from holdfast.runtime.simulation.auditing import audited
from holdfast.runtime.simulation.costed import costed
from holdfast.runtime.simulation.fuzzing import Case
from holdfast.runtime.simulation.operators import cut_batches
from holdfast.runtime.simulation.pipelines import PIPELINES, drawn_batches
from holdfast.runtime.simulation.schedule import FaultSchedule, Timing
from holdfast.runtime.simulation.simulation import Simulation
from holdfast.topology import Operator, Stream, Topology


def running(**settings: Any) -> Driver:
    """S -> A x2 -> B x1 on three nodes; six epochs done, of which four are in the checkpoint."""
    driver = Driver(chain(1, 2, 1), nodes=3, **{"checkpoint_every": 4, **settings})
    driver.join(0, 1, 2)
    for epoch in range(6):
        driver.epoch(epoch)
    assert driver.parts.checkpointing.durable == 3
    return driver


def calm(driver: Driver) -> None:
    """Answer runs and checkpoints until nothing is under way."""
    while driver.runs or driver.taking is not None:
        if driver.taking is not None:
            driver.tell(CheckpointDurable(driver.taking))
        else:
            driver.finish(next(iter(driver.runs.values())))


def want(driver: Driver, to: int, operator: str = "A") -> None:
    driver.tell(ScaleWanted(operator, to, request="r"))


def test_scaling_out_partitions_the_checkpoint_replays_and_switches_before_the_next_epoch() -> None:
    driver = running()
    want(driver, 3)
    begun = driver.records("scaling begun")[0]
    run = driver.only(Run)
    new = set(begun["new"])
    assert begun["tasks"] == 3 and len(new) == 2 and begun["checkpoint"] == 3
    # The new tasks restore and replay as replicas do, in the next shape; what is in force is untouched.
    assert not run.settled and run.shape.version == 1 and set(works(run, "replica")) == new
    assert set(works(run, "replica").values()) == {(4, 5, "checkpoint")} and not works(run)
    assert {work.born for work in run.works} == {1}
    assert driver.parts.rescaling.shape == Shape() and len(driver.parts.assignment.primaries) == 3
    driver.finish(run)
    kinds = [type(each) for each in driver.said]
    shape = driver.only(CommitShape).shape
    assert shape.done == dict.fromkeys(map(task, new), 5) and driver.records("scaled")[0]["request"] == "r"
    assert Publish not in kinds
    assert driver.coordinator.topology.operator["A"].parallelism == 3
    wanted = driver.only(TakeCheckpoint)
    assert wanted.whole == set(map(task, new)) and wanted.since == 3 and wanted.shape.version == 1
    driver.tell(CheckpointDurable(5))
    driver.arrive(6)
    live = driver.only(Run)
    assert works(live) == dict.fromkeys(("A/0", "A/1", "A/2", "B/0"), (6, 6, "local"))
    driver.finish(live)
    driver.epoch(7)
    assert driver.parts.answering.head == 7


def test_epochs_go_on_while_new_tasks_restore_and_are_held_only_for_the_handover() -> None:
    driver = running()
    want(driver, 3)
    restoring = driver.only(Run)
    driver.arrive(6)
    live = driver.only(Run)
    assert live.ingest == 6 and live.shape == Shape()
    driver.finish(restoring)
    driver.finish(live)
    handover = driver.only(Run)
    assert not handover.settled and set(works(handover, "replica").values()) == {(6, 6, "local")}
    driver.arrive(7)
    assert not driver.of(Run)
    driver.finish(handover)
    order = [type(each) for each in driver.said]
    assert order.index(CommitShape) < order.index(Run)
    assert driver.only(Run).shape.version == 1 and driver.only(Run).ingest == 7


def test_scaling_in_merges_and_a_second_request_waits_for_the_first() -> None:
    driver = running()
    want(driver, 4)
    want(driver, 2, "B")
    calm(driver)
    assert {n: driver.coordinator.topology.operator[n].parallelism for n in "AB"} == {"A": 4, "B": 2}
    want(driver, 1)
    calm(driver)
    assert driver.coordinator.topology.operator["A"].parallelism == 1
    assert set(driver.parts.assignment.primaries) == set(map(task, ("A/0", "B/0", "B/1")))
    for epoch in range(6, 9):
        driver.epoch(epoch)
    driver.coordinator.check()


@pytest.mark.parametrize("lost", ["new", "old"])
def test_a_node_lost_on_the_way_drops_what_was_begun_and_it_is_tried_again(lost: str) -> None:
    driver = running(capacity=100.0)
    want(driver, 3)
    run = driver.only(Run)
    begun = driver.records("scaling begun")[0]
    (changed_old,) = {"A/0", "A/1"} & set(begun["new"])
    node = next(iter(begun["new"].values())) if lost == "new" else driver.home(changed_old)
    driver.lose(int(node[-1]))
    aborted = driver.records("scaling aborted")[0]
    assert aborted["again"] and node in aborted["reason"] and driver.parts.rescaling.shape == Shape()
    driver.tell(RunBroken(run.number, "nodes were lost"))
    driver.join(int(node[-1]))
    calm(driver)
    assert driver.coordinator.topology.operator["A"].parallelism == 3
    assert driver.parts.rescaling.shape.version == 2  # what the first try left on nodes has a name of its own


def test_a_damaged_checkpoint_drops_what_came_from_it() -> None:
    driver = running()
    want(driver, 3)
    run = driver.only(Run)
    driver.tell(CheckpointLost(3, -1))
    assert "damaged" in driver.records("scaling aborted")[0]["reason"]
    driver.finish(run, "damaged", lane="replica")
    calm(driver)
    assert driver.coordinator.topology.operator["A"].parallelism == 3


def test_a_scaling_that_keeps_failing_is_given_up_and_the_job_goes_on() -> None:
    driver = running()
    want(driver, 3)
    for attempt in range(TRIES):
        run = driver.only(Run)
        driver.finish(run, "failed", lane="replica")
        assert driver.records("scaling aborted")[0]["again"] == (attempt + 1 < TRIES)
    assert not driver.runs and not driver.coordinator.halted
    driver.epoch(6)
    assert driver.coordinator.topology.operator["A"].parallelism == 2


def test_what_is_there_already_and_what_cannot_be_is_said_at_once() -> None:
    driver = running()
    want(driver, 2)
    assert driver.records("scaled")[0]["tasks"] == 2 and not driver.of(Run) and not driver.of(CommitShape)
    want(driver, 2, "S")
    assert "a source" in driver.records("scaling refused")[0]["reason"]
    paired = Topology(
        (Operator("S", 1), Operator("A", 2, stateful=True), Operator("B", 2)),
        (Stream("S", "A", "full"), Stream("A", "B", "one-to-one")),
    )
    other = Driver(paired)
    other.join(0, 1)
    want(other, 3)
    assert "stream A -> B is one-to-one" in other.records("scaling refused")[0]["reason"]


def test_a_routing_that_does_not_follow_the_one_in_force_is_refused() -> None:
    driver = running()
    routing = resized(routing_of(driver.coordinator.declared, Shape(), "A"), 3)
    driver.tell(ScaleWanted("A", routing=replace(routing, version=7)))
    assert "follows version 6, but 0 is in force" in driver.records("scaling refused")[0]["reason"]
    driver.tell(ScaleWanted("A", routing=routing))
    calm(driver)
    assert driver.parts.rescaling.shape.routings["A"] == routing


def test_children_of_replicated_tasks_get_replicas() -> None:
    driver = running(replicas=(task("A/0"), task("A/1")))
    want(driver, 4)
    driver.settle()
    assert set(driver.parts.replicating.wanted) == {task(f"A/{number}") for number in range(4)}
    for epoch in range(6, 12):
        driver.epoch(epoch)
        driver.settle()
    assert set(driver.parts.assignment.replicas) == {task(f"A/{number}") for number in range(4)}


def test_a_lost_task_with_a_long_replay_comes_back_as_several() -> None:
    driver = Driver(chain(1, 2, 1), nodes=3, capacity=100.0, parallel_recovery=2, replay_chunk=3, checkpoint_every=50)
    driver.join(0, 1, 2)
    for epoch in range(6):
        driver.epoch(epoch)
    driver.lose(int(driver.home("A/1")[-1]))
    recovering = driver.records("recovering in parallel")[0]
    assert "A/1" in recovering["tasks"] and recovering["operators"]["A"] == 3
    order = [type(each) for each in driver.said]
    assert order.index(CommitShape) < order.index(Run)
    # What the lost task had published, its parts do not publish again.
    assert set(driver.only(CommitShape).shape.born) >= {task("A/1"), task("A/2")}
    driver.settle()
    assert not driver.parts.assignment.down and driver.position("A/2") == 5


def test_a_short_replay_or_too_few_nodes_is_recovered_as_ever() -> None:
    driver = Driver(chain(1, 2, 1), nodes=3, capacity=100.0, parallel_recovery=2, checkpoint_every=50)
    driver.join(0, 1, 2)
    for epoch in range(6):
        driver.epoch(epoch)
    driver.lose(int(driver.home("A/1")[-1]))
    assert not driver.records("recovering in parallel") and driver.parts.rescaling.shape == Shape()


def test_a_restart_begins_in_the_shape_that_was_put_down() -> None:
    driver = running()
    want(driver, 3)
    driver.finish(driver.only(Run))
    shape = driver.only(CommitShape).shape
    again = Coordinator(chain(1, 2, 1), Settings(nodes=3), 3, 5, shape=shape)
    assert again.topology.operator["A"].parallelism == 3 and again.parts.rescaling.next_version == 2
    assert all(again.parts.answering.published[each] == 5 for each in shape.done)


# Simulated


@pytest.mark.parametrize("name", sorted(PIPELINES))
def test_a_job_scaled_out_and_in_several_times_says_what_one_that_never_was_does(name: str) -> None:
    pipeline = PIPELINES[name]()
    able = sorted(scalable(pipeline))
    batches = cut_batches(drawn_batches(pipeline, 30, seed=7))
    schedule = FaultSchedule(
        pipeline.coordinated,
        Settings(nodes=4, checkpoint_every=5),
        nodes=4,
        epochs=30,
        timing=Timing(interval=0.6, restart=0.5),
        faults=parse_faults(["kill node-2 at epoch 7", "join node-2 after 1s", "restart at epoch 19"]),
        scalings=tuple((1.0 + 3.0 * at, able[at % len(able)], to) for at, to in enumerate((5, 2, 4, 1, 3))),
    )
    simulation = Simulation(schedule, pipeline, batches)
    audited(simulation, Case(schedule, pipeline, batches).expected())
    scaled = [event["tasks"] for event in simulation.history if event["kind"] == "scaled"]
    assert len(scaled) >= 4, scaled


def test_a_large_job_scales_by_its_costs_alone() -> None:
    topology = chain(1, 40, 1)
    schedule = FaultSchedule(
        topology, Settings(nodes=50), nodes=50, epochs=30, scalings=((3.0, "A", 80), (15.0, "A", 30))
    )
    simulation = costed(schedule).run()
    assert [event["tasks"] for event in simulation.history if event["kind"] == "scaled"] == [80, 30]


# By load


def test_a_steady_load_is_scaled_out_once_and_then_left_alone() -> None:
    """A needs 1.6 cores: two tasks at 80 % each become four at 40 %, and nothing happens any more."""
    topology = Topology(
        (Operator("S", 1, costs=(0.0,)), Operator("A", 2, costs=(8.0, 8.0), stateful=True), Operator("B", 1)),
        (Stream("S", "A", "full"), Stream("A", "B", "full")),
    )
    schedule = FaultSchedule(
        topology,
        Settings(nodes=4),
        nodes=4,
        epochs=300,
        timing=Timing(interval=1.0, unit=0.1),
        elastic=Policy(every=5.0, settle=5.0),
    )
    simulation = costed(schedule).run()
    scaled = [event for event in simulation.history if event["kind"] == "scaled"]
    assert [event["tasks"] for event in scaled] == [4]
    assert scaled[0]["time"] < 30 and "above 70%" in scaled[0]["why"]
    assert simulation.driver is not None
    assert simulation.driver.coordinator.topology.operator["A"].costs == pytest.approx((4.0,) * 4)


def test_an_idle_operator_is_scaled_in_and_stays_so() -> None:
    topology = chain(1, 4, 1)
    schedule = FaultSchedule(
        topology,
        Settings(nodes=4),
        nodes=4,
        epochs=400,
        timing=Timing(interval=1.0, unit=0.01),
        elastic=Policy(every=5.0, settle=5.0, per_operator={"A": (2, 8)}),
    )
    scaled = [e["tasks"] for e in costed(schedule).run().history if e["kind"] == "scaled"]
    assert scaled and scaled == sorted(scaled, reverse=True) and scaled[-1] == 2 and len(scaled) <= 2


def tallies(driver: Driver, epoch: int, counts: dict[str, list[int]]) -> None:
    """An epoch that goes well, in which tasks tell how their rows lie over their keys."""
    driver.arrive(epoch)
    run = driver.only(Run)
    reports = [replace(driver.report(work), keys=counts.get(str(work.task), ())) for work in run.works]
    for wanted in [each for each in driver.done(run, *reports) if isinstance(each, TakeCheckpoint)]:
        driver.tell(CheckpointDurable(wanted.epoch))


def test_keys_are_cut_where_the_load_lies() -> None:
    driver = running()
    half = 2**31
    tallies(driver, 6, {"A/0": [0, 0, 0, 10], "A/1": [30, 10, 10, 10]})
    want(driver, 4)
    calm(driver)
    routing = driver.parts.rescaling.shape.routings["A"]
    # A/1 has 60 of 70 rows: cut into three, of 30, 10 and 20 rows; A/0 stays as it is.
    assert [part.hi for part in routing.ranges] == [half, half + half // 4, half + half // 2, 2 * half]


def test_where_some_task_told_nothing_keys_are_cut_evenly() -> None:
    driver = running()
    tallies(driver, 6, {"A/1": [30, 10, 10, 10]})
    want(driver, 4)
    calm(driver)
    assert {part.width for part in driver.parts.rescaling.shape.routings["A"].ranges} == {2**30}


def test_what_was_told_long_ago_counts_less() -> None:
    driver = running()
    for epoch in range(6, 14):
        tallies(driver, epoch, {"A/0": [8, 0] if epoch == 6 else [0, 8], "A/1": [4, 4]})
    hashes, weights = driver.coordinator.samples("A")[0]
    assert list(hashes) == [2**29, 3 * 2**29] and weights is not None
    assert weights[0] == 8 / 2**7 and weights[1] > 15


def test_a_checkpoint_that_is_old_comes_first_so_that_little_is_replayed() -> None:
    driver = running(checkpoint_every=4)
    for epoch in range(6, 8):
        driver.arrive(epoch)
        run = driver.only(Run)
        driver.finish(run)
    assert driver.parts.checkpointing.durable == 3 and driver.taking == 7
    want(driver, 3)
    assert not driver.records("scaling begun"), "a checkpoint is under way"
    driver.tell(CheckpointDurable(7))
    assert driver.records("scaling begun")[0]["checkpoint"] == 7

    driver = Driver(chain(1, 2, 1), nodes=3, checkpoint_every=6)
    driver.join(0, 1, 2)
    for epoch in range(10):
        driver.epoch(epoch)
    assert driver.parts.answering.head - driver.parts.checkpointing.durable == 4
    want(driver, 3)
    assert driver.only(TakeCheckpoint).epoch == 9 and not driver.records("scaling begun")
    driver.tell(CheckpointBroken(9, "no room"))
    again = driver.only(TakeCheckpoint)
    driver.tell(CheckpointDurable(again.epoch))
    assert driver.records("scaling begun")[0]["checkpoint"] == 9


def test_no_checkpoint_comes_between_unless_it_takes_long() -> None:
    driver = running()
    want(driver, 3)
    held = driver.only(Run)
    checkpoints: list[int] = []
    for epoch in range(6, 13):
        driver.arrive(epoch)
        if not driver.of(Run):
            break  # those who are built may catch up first
        driver.finish(driver.only(Run))
        checkpoints += [each.epoch for each in driver.of(TakeCheckpoint)]
    assert checkpoints == [] and driver.parts.answering.head < 3 + 8
    driver.finish(held)
    calm(driver)
    assert driver.coordinator.topology.operator["A"].parallelism == 3
