"""Nodes are given back: what is on them moves first, nothing is lost, and in bad times nobody leaves."""

from __future__ import annotations

from driving import Driver, chain

from holdfast.runtime.messages import NodesUnneeded, ReleaseNodes, Run, ScaleWanted
from holdfast.topology import Task


def working(nodes: int = 3, **settings: object) -> Driver:
    driver = Driver(chain(1, 3), nodes, **settings)
    driver.join(*range(nodes))
    driver.epoch(0)
    return driver


def until_released(driver: Driver, epochs: int = 6) -> tuple[str, ...]:
    """Go on until nodes are given back; which."""
    for _ in range(epochs):
        while driver.runs:
            driver.finish(next(iter(driver.runs.values())))
            if found := driver.of(ReleaseNodes):
                return found[0].nodes
        driver.arrive(driver.parts.answering.head + 1)
    return ()


def test_a_node_without_tasks_goes_at_once() -> None:
    driver = working()
    driver.join(7)
    driver.tell(NodesUnneeded(("node-7",), "too many"))
    assert driver.only(ReleaseNodes).nodes == ("node-7",)
    assert "node-7" not in driver.parts.members.nodes
    assert not driver.records("moving")
    assert driver.records("nodes leaving")[0]["why"] == "too many"


def test_what_is_on_a_node_moves_before_it_goes() -> None:
    driver = working()
    before = dict(driver.parts.assignment.primaries)
    (moving,) = [task for task, home in before.items() if home.node == "node-1"]
    driver.tell(NodesUnneeded(("node-1",)))
    assert not driver.of(ReleaseNodes), "it still has a task"
    assert until_released(driver) == ("node-1",)
    after = driver.parts.assignment.primaries
    assert after[moving].node in ("node-0", "node-2") and after[moving].position == driver.parts.answering.head
    assert driver.parts.assignment.replicas == {}
    assert not driver.parts.assignment.down and not driver.parts.assignment.cold


def test_the_last_node_stays_and_nobody_is_asked_twice() -> None:
    driver = working(2)
    driver.tell(NodesUnneeded(("node-0", "node-1")))
    assert not driver.said
    driver.tell(NodesUnneeded(("node-5",)))
    assert not driver.said
    driver.tell(NodesUnneeded(("node-0",)))
    driver.tell(NodesUnneeded(("node-1", "node-0")))
    assert driver.parts.members.leaving == {"node-0"}


def test_when_somebody_is_lost_everybody_stays() -> None:
    driver = working()
    driver.tell(NodesUnneeded(("node-1",)))
    driver.lose(2)
    assert driver.records("nodes stay")[0]["nodes"] == ["node-1"]
    assert until_released(driver) == ()
    assert set(driver.parts.members.nodes) == {"node-0", "node-1"}
    assert not driver.parts.assignment.down and not driver.parts.assignment.replicas


def test_a_task_with_a_replica_is_handed_over_and_gets_another_replica() -> None:
    driver = working(3, replicas=(Task("A", 0),), checkpoint_every=1)
    for epoch in range(1, 4):
        driver.epoch(epoch)
        driver.settle()
    home, twin = driver.home("A/0"), driver.parts.assignment.replicas[Task("A", 0)].node
    driver.tell(NodesUnneeded((home,)))
    while not driver.of(ReleaseNodes):
        assert until_released(driver) == (home,)
    assert driver.home("A/0") == twin
    head = driver.parts.answering.head
    for epoch in range(head + 1, head + 3):
        if driver.parts.answering.pending is None:
            driver.arrive(epoch)
        driver.settle()
    assert driver.parts.assignment.replicas[Task("A", 0)].node not in (home, twin)


def test_new_tasks_do_not_go_to_a_node_that_leaves() -> None:
    driver = working(4, checkpoint_every=1)
    driver.tell(NodesUnneeded(("node-3",)))
    driver.tell(ScaleWanted("A", 6))
    for epoch in range(1, 5):
        if driver.parts.answering.pending is None:
            driver.arrive(epoch)
        driver.settle()
    assert driver.coordinator.topology.operator["A"].parallelism == 6
    assert "node-3" not in {home.node for home in driver.parts.assignment.primaries.values()}


def test_a_run_on_the_node_holds_it() -> None:
    driver = working()
    driver.join(7)
    run = driver.arrive(1)
    driver.tell(NodesUnneeded(("node-7",)))
    assert not driver.of(ReleaseNodes), "a run is under way"
    (live,) = [each for each in run if isinstance(each, Run)]
    driver.finish(live)
    assert driver.only(ReleaseNodes).nodes == ("node-7",)
