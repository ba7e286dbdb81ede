"""Second copies: where replicas go, when tasks move, and who takes over."""

from __future__ import annotations

import pytest
from driving import chain, task
from parts_alone import found, heard, kinds, nodes, only

from holdfast.errors import Invalid
from holdfast.runtime.coordinator.facts import Copy, Joined, NobodyLeaves, Reshaped
from holdfast.runtime.coordinator.parts import Parts
from holdfast.runtime.coordinator.replicating import Replicating, inherited
from holdfast.runtime.messages import EpochArrived, NodeInfo, NodesUnneeded, Record, ReplicasPlanned, Work
from holdfast.runtime.shape import Shape, grown, reshaped, resized, routing_of
from holdfast.topology import Task

A = [task(f"A/{number}") for number in range(4)]


def on_one_node(checkpoint: int = 5, **settings: object) -> Parts:
    """S -> A/0..3, all at epoch 5 on node a; b is empty."""
    parts = found(chain(1, 4), checkpoint, 5, **{"recovery": "blocking", **settings})
    heard(parts.members, Joined(nodes("a", "b")), parts)
    parts.assignment.primaries.update({each: Copy("a", 5, fresh=False) for each in A})
    parts.replicating.balanced_at = checkpoint - 1
    return parts


def moved(parts: Parts) -> set[Task]:
    return {each for each, copy in parts.assignment.primaries.items() if copy.node == "b"}


def test_replicas_are_made_on_other_nodes_just_behind_a_checkpoint() -> None:
    parts = on_one_node(replicas=(A[0],))
    record = only(Record, list(parts.replicating.copy(parts)))
    assert record.fields == {"placed": {"A/0": "b"}} and parts.assignment.replicas == {A[0]: Copy("b", 5, fresh=True)}
    assert list(parts.replicating.copy(parts)) == []
    late = on_one_node(checkpoint=1, replicas=(A[0],))
    assert list(late.replicating.copy(late)) == [], "four epochs would have to be replayed"


def test_no_replica_shares_the_domain_of_its_primary() -> None:
    parts = on_one_node(replicas=(A[0],))
    parts.members.nodes.update({"a": NodeInfo("1", "rack"), "b": NodeInfo("1", "rack")})
    assert list(parts.replicating.copy(parts)) == []


def test_a_copy_that_a_run_still_works_on_is_not_made_again() -> None:
    parts = on_one_node(replicas=(A[0],))
    parts.runs.start("replay", [Work(A[0], "b", "replica", "local", 4, 5, 5)], parts)
    assert list(parts.replicating.copy(parts)) == []


def test_an_answer_that_is_owed_comes_first() -> None:
    parts = on_one_node(replicas=(A[0],))
    parts.answering.owed = "answer"
    heard(parts.answering, EpochArrived(6), parts)
    assert list(parts.replicating.copy(parts)) == []


def test_nodes_that_carry_less_take_tasks_over_once_behind_each_checkpoint() -> None:
    parts = on_one_node()
    assert kinds(list(parts.replicating.move(parts))) == ["moving", "moved"]
    assert len(moved(parts)) == 2 and not parts.assignment.replicas and not parts.replicating.moving
    parts.assignment.primaries.update({each: Copy("a", 5, fresh=False) for each in A})
    assert list(parts.replicating.move(parts)) == [], "until the next checkpoint"


@pytest.mark.parametrize("hindrance", ["rebalance", "standby", "keeping", "age"])
def test_nothing_moves_in_bad_times_or_when_it_shall_not(hindrance: str) -> None:
    settings: dict[str, object] = {"rebalance": {"rebalance": False}, "standby": {"standby": 1}}.get(hindrance, {})
    parts = on_one_node(checkpoint=1 if hindrance == "age" else 5, **settings)
    parts.recovering.keeping = hindrance == "keeping"
    assert list(parts.replicating.move(parts)) == []


def test_a_copy_takes_over_when_it_is_at_the_head_and_nobody_works_on_the_task() -> None:
    parts = on_one_node(checkpoint=4)
    assert kinds(list(parts.replicating.move(parts))) == ["moving"], "an epoch is to be replayed"
    chosen = sorted(parts.replicating.moving)
    for each in chosen:
        parts.assignment.replicas[each] = Copy("b", 5, fresh=False)
    run = parts.runs.start("epoch", [Work(chosen[0], "a", "exact", "local", 5, 6, 6)], parts, epoch=6)
    list(parts.replicating.move(parts))
    assert moved(parts) == {chosen[1]} and parts.replicating.moving == {chosen[0]}
    del parts.runs.under_way[run.number]
    list(parts.replicating.move(parts))
    assert moved(parts) == set(chosen)


def test_what_is_on_a_leaving_node_moves_and_stays_if_nobody_leaves() -> None:
    parts = on_one_node(checkpoint=4, rebalance=False)
    heard(parts.members, NodesUnneeded(("a",)), parts)
    list(parts.replicating.move(parts))
    assert parts.replicating.moving == set(A) == set(parts.assignment.replicas)
    heard(parts.replicating, NobodyLeaves(), parts)
    assert not parts.replicating.moving and not parts.assignment.replicas


def test_a_replica_that_stays_takes_over_from_a_leaving_node_and_one_that_leaves_goes() -> None:
    parts = on_one_node(checkpoint=4, rebalance=False)
    heard(parts.members, Joined(nodes("c")), parts)
    parts.assignment.replicas.update({A[0]: Copy("b", 4, fresh=False), A[1]: Copy("c", 4, fresh=False)})
    heard(parts.members, NodesUnneeded(("a", "c")), parts)
    list(parts.replicating.move(parts))
    assert parts.assignment.replicas[A[0]] == Copy("b", 4, fresh=False)
    assert parts.assignment.replicas[A[1]] == Copy("b", 4, fresh=True)
    assert parts.replicating.moving == set(A)


def test_a_new_plan_drops_what_it_does_not_name_and_ends_moves() -> None:
    parts = on_one_node(checkpoint=4)
    list(parts.replicating.move(parts))
    parts.assignment.replicas.update({each: Copy("b", 4, fresh=False) for each in A})
    parts.replicating.moving -= {A[3]}
    moving = set(parts.replicating.moving)
    heard(parts.replicating, ReplicasPlanned(tuple(A[1:])), parts)
    assert set(parts.assignment.replicas) == set(A[1:]) - moving and not parts.replicating.moving
    with pytest.raises(Invalid, match="replica S/0: only tasks with inputs"):
        heard(parts.replicating, ReplicasPlanned((task("S/0"),)), parts)


def test_a_move_ends_with_its_copy() -> None:
    parts = on_one_node(checkpoint=4)
    list(parts.replicating.move(parts))
    parts.assignment.drop_replicas(A)
    heard(parts.replicating, Joined({}), parts)
    assert not parts.replicating.moving


def test_changed_tasks_inherit_what_is_wanted_of_those_before_them() -> None:
    declared = chain(1, 2)
    routing = resized(routing_of(declared, Shape(), "A"), 4)
    shape = grown(declared, Shape(), "A", routing, 1, {})
    topology = reshaped(declared, shape)
    children = inherited((task("A/0"),), declared, Shape(), shape, topology)
    half = [number for number, part in zip(routing.owners, routing.ranges, strict=True) if part.hi <= 2**31]
    assert set(children) == {Task("A", number) for number in half} and len(children) == 2
    parts = found(declared, replicas=(task("A/0"),))
    heard(parts.replicating, Reshaped(Shape(), shape, topology, frozenset("A")), parts)
    assert parts.replicating.wanted == children
    assert Replicating((task("A/0"),), declared, topology, shape, -1).wanted == children, "after a restart, too"


def test_what_does_not_hold_is_told() -> None:
    parts = on_one_node()
    parts.replicating.moving.add(A[0])
    parts.replicating.wanted = (task("A/9"),)
    assert list(parts.replicating.check(parts)) == [
        "A/0 moves and has no replica",
        "A/9 is to have a replica and is no task",
    ]
