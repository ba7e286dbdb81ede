"""Moves between nodes: what evens loads moves, what would not pay stays, and there is never a reason to move back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.recovery import Node, moves
from holdfast.recovery.balancing import WORTH
from holdfast.topology import Operator, Task, Topology


def tasks_costing(*costs: float) -> Topology:
    return Topology((Operator("O", len(costs), costs=costs),))


def loads(topology: Topology, homes: dict[Task, str], names: list[str]) -> dict[str, float]:
    carried = dict.fromkeys(names, 0.0)
    for task, name in homes.items():
        carried[name] += topology.operator["O"].costs[task.number]
    return carried


def nodes_of(carried: dict[str, float]) -> list[Node]:
    return [Node(name, 1e9, load) for name, load in carried.items()]


def test_a_node_that_came_late_gets_its_share() -> None:
    topology = tasks_costing(1, 1, 1, 1)
    homes = dict(zip(topology.tasks, ["a", "a", "b", "b"], strict=True))
    moved = moves(topology, homes, nodes_of(loads(topology, homes, ["a", "b", "c", "d"])))
    assert sorted(moved.values()) == ["c", "d"]
    assert {homes[task] for task in moved} == {"a", "b"}


def test_the_task_that_evens_the_two_best_is_taken() -> None:
    topology = tasks_costing(5, 3, 1)
    homes = dict.fromkeys(topology.tasks, "a")
    assert moves(topology, homes, nodes_of({"a": 9.0, "b": 0.0})) == {Task("O", 0): "b"}


def test_what_would_hardly_help_stays() -> None:
    topology = tasks_costing(1, 0.05)
    homes = dict.fromkeys(topology.tasks, "a")
    # To move either would leave one of the two nodes with as good as everything.
    assert moves(topology, homes, nodes_of({"a": 1.05, "b": 0.0})) == {}


def test_load_that_cannot_be_moved_counts() -> None:
    topology = tasks_costing(1, 1)
    homes = dict.fromkeys(topology.tasks, "a")
    assert moves(topology, homes, [Node("a", 9, 2.0), Node("b", 9, 2.0)]) == {}
    assert moves(topology, homes, [Node("a", 9, 2.0)]) == {}
    assert moves(topology, {}, [Node("a", 9, 2.0), Node("b", 9, 0.0)]) == {}


@given(
    st.lists(st.sampled_from([0.0, 0.25, 1.0, 1.0, 2.5]), min_size=1, max_size=14),
    st.integers(1, 5),
    st.data(),
)
def test_loads_are_evener_after_and_stay_so(costs: list[float], count: int, data: st.DataObject) -> None:
    topology = tasks_costing(*costs)
    names = [f"n{number}" for number in range(count)]
    homes = {task: data.draw(st.sampled_from(names)) for task in topology.tasks}
    before = loads(topology, homes, names)
    moved = moves(topology, homes, nodes_of(before))
    assert all(homes[task] != name for task, name in moved.items())
    after_homes = {**homes, **moved}
    after = loads(topology, after_homes, names)
    if moved:
        assert sum(x * x for x in after.values()) < sum(x * x for x in before.values())
    assert max(after.values()) <= max(before.values())
    # By trying all: no task that has not moved yet could go from the fullest to the emptiest node and be worth it.
    source, target = max(after, key=lambda n: after[n]), min(after, key=lambda n: after[n])
    least = max(WORTH * sum(after.values()) / count, 1e-9)
    gap = after[source] - after[target]
    for task, name in after_homes.items():
        cost = costs[task.number]
        if name == source and task not in moved:
            assert min(cost, gap - cost) < least + 1e-12
