"""Placement: worst fit below the ceiling, on nodes of different sizes, out of the domains a task must avoid."""

from __future__ import annotations

import heapq
from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recovery_cases import steady

from holdfast.errors import Invalid
from holdfast.recovery import Node, place, room
from holdfast.topology import Operator, Task, Topology


def tasks_costing(*costs: float) -> Topology:
    return Topology((Operator("O", len(costs), costs=costs),))


def test_each_task_goes_where_most_room_is() -> None:
    topology = tasks_costing(4, 3, 2)
    nodes = [Node("small", 5), Node("large", 10), Node("busy", 10, load=7)]
    placed = place(topology, topology.tasks, nodes)
    # Room: 4, 8, 1. The 4 goes to large (4 left, as small), the 3 and the 2 to small and large in turn.
    assert placed.nodes == {Task("O", 0): "large", Task("O", 1): "small", Task("O", 2): "large"}
    assert placed.load == {"small": 3, "large": 6, "busy": 7}
    assert placed.unplaced == ()


def test_the_ceiling_holds_and_what_finds_no_room_is_named() -> None:
    topology = tasks_costing(5, 1)
    assert place(topology, topology.tasks, [Node("one", 5)]).unplaced == (Task("O", 0),)
    assert place(topology, topology.tasks, [Node("one", 6)], ceiling=1.0).unplaced == ()
    assert place(topology, topology.tasks, []).unplaced == topology.tasks


def test_a_domain_to_avoid_is_avoided() -> None:
    topology = tasks_costing(1)
    task = topology.tasks[0]
    nodes = [Node("a", 100, domain="rack-1"), Node("b", 10, domain="rack-2")]
    assert place(topology, [task], nodes, avoid={task: {"rack-1"}}).nodes == {task: "b"}
    assert place(topology, [task], nodes, avoid={task: {"rack-1", "rack-2"}}).unplaced == (task,)


def test_equal_room_spreads_an_operator_over_domains() -> None:
    topology = Topology((Operator("A", 2), Operator("B", 2)))
    nodes = [Node(f"{rack}{number}", 10, domain=rack) for rack in ("x", "y") for number in range(2)]
    placed = place(topology, topology.tasks, nodes)
    for name in ("A", "B"):
        assert {placed.nodes[Task(name, i)][0] for i in range(2)} == {"x", "y"}


@pytest.mark.parametrize("seed", range(40))
def test_where_each_goes_is_what_looking_at_all_nodes_says(seed: int) -> None:
    random = Random(seed)
    costs = [tuple(random.choice([0.0, 1.0, 1.0, 2.0]) for _ in range(8)) for _ in range(3)]
    topology = Topology(tuple(Operator(name, 8, costs=each) for name, each in zip("ABC", costs, strict=True)))
    nodes = [Node(f"n{i}", random.choice([4, 6]), random.choice([0, 0, 1]), random.choice("xyz")) for i in range(6)]
    avoid = {task: random.sample("xyz", random.choice([0, 0, 1, 2])) for task in topology.tasks}
    left, together, expected = {node.name: node.capacity - node.load for node in nodes}, Counter[tuple[str, str]](), {}
    for task in sorted(topology.tasks, key=lambda task: -topology.operator[task.operator].costs[task.number]):
        allowed = [node for node in nodes if node.domain not in avoid[task]]
        cost = topology.operator[task.operator].costs[task.number]
        if allowed:
            best = min(allowed, key=lambda node: (-left[node.name], together[node.domain, task.operator]))
            if cost <= left[best.name]:
                expected[task] = best.name
                left[best.name] -= cost
                together[best.domain, task.operator] += 1
    assert place(topology, topology.tasks, nodes, 1.0, avoid=avoid).nodes == expected


def test_many_tasks_on_many_nodes_take_no_look_at_every_node_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """A restart places all tasks at once, and where they cost the same all nodes have the same room again and again."""
    steps = 0

    def counting(real: object) -> object:
        def act(*given: object) -> object:
            nonlocal steps
            steps += 1
            return real(*given)  # type: ignore[operator]

        return act

    for name in ("heappush", "heappop", "heapreplace"):
        monkeypatch.setattr(heapq, name, counting(getattr(heapq, name)))
    topology = Topology((Operator("A", 1000), Operator("B", 1000)))
    for domains in (1, 10, 200):
        steps = 0
        nodes = [Node(f"n{i}", 1000.0, domain=f"d{i % domains}") for i in range(200)]
        placed = place(topology, topology.tasks, nodes).nodes
        assert set(Counter(placed.values()).values()) == {10}
        assert steps <= 4 * len(topology.tasks), steps


def test_room_is_what_a_plan_may_cost() -> None:
    assert room([Node("a", 10), Node("b", 5, load=1), Node("full", 1, load=3)]) == pytest.approx(8 + 3)


@given(
    st.lists(st.sampled_from([0.0, 0.5, 1.0, 3.0]), min_size=1, max_size=12),
    st.lists(st.tuples(st.floats(0, 10), st.floats(0, 10), st.sampled_from("xyz")), max_size=5),
    st.data(),
)
@steady
def test_placements_are_sound_and_worst_fit(
    costs: list[float], sizes: list[tuple[float, float, str]], data: st.DataObject
) -> None:
    topology = tasks_costing(*costs)
    nodes = [Node(f"node-{i}", size, load, domain) for i, (size, load, domain) in enumerate(sizes)]
    avoid = {task: data.draw(st.sets(st.sampled_from("xyz"), max_size=2)) for task in topology.tasks}
    placed = place(topology, topology.tasks, nodes, avoid=avoid)
    free = {node.name: 0.8 * node.capacity - node.load for node in nodes}
    domain = {node.name: node.domain for node in nodes}
    assert set(placed.nodes) | set(placed.unplaced) == set(topology.tasks)
    for task in sorted(topology.tasks, key=lambda task: (-costs[task.number], task.number)):
        allowed = [free[name] for name in free if domain[name] not in avoid[task]]
        cost = costs[task.number]
        if task in placed.unplaced:
            assert all(space < cost for space in allowed)
            continue
        name = placed.nodes[task]
        assert domain[name] not in avoid[task]
        assert free[name] == pytest.approx(max(allowed))
        assert free[name] >= cost - 1e-8
        free[name] -= cost


def test_what_comes_first_is_placed_whether_there_is_room_or_not() -> None:
    topology = tasks_costing(4, 1, 2)
    nodes = [Node("a", 3), Node("b", 2)]
    light, middle, dear = Task("O", 1), Task("O", 2), Task("O", 0)
    placed = place(topology, topology.tasks, nodes, ceiling=1.0)
    assert placed.nodes == {middle: "a", light: "b"} and placed.unplaced == (dear,), (
        "without it the dearest comes first"
    )
    placed = place(topology, topology.tasks, nodes, ceiling=1.0, first=[light])
    assert placed.nodes == {light: "a", middle: "a"} and placed.unplaced == (dear,), (
        "light takes the most room there is"
    )
    placed = place(topology, topology.tasks, nodes, ceiling=1.0, first=[dear, light])
    assert placed.nodes == {dear: "a", light: "b"} and placed.unplaced == (middle,), "the dearest of them before others"
    assert placed.load == {"a": 4, "b": 1}
    full = [Node("a", 1, load=1), Node("b", 1, load=3)]
    assert place(topology, topology.tasks, full, first=[dear]).nodes == {dear: "a"}, "where it overflows least"
    assert place(topology, topology.tasks, [], first=[dear]).unplaced == (dear, middle, light)


def test_what_comes_first_stays_out_of_domains_all_the_same() -> None:
    topology = tasks_costing(1)
    task = topology.tasks[0]
    nodes = [Node("a", 9, domain="x"), Node("b", 1, load=5, domain="y")]
    assert place(topology, [task], nodes, avoid={task: {"x"}}, first=[task]).nodes == {task: "b"}
    assert place(topology, [task], nodes, avoid={task: {"x", "y"}}, first=[task]).unplaced == (task,)


def test_a_node_with_any_room_takes_one_task_more_where_that_is_soft() -> None:
    topology = tasks_costing(2, 2, 2)
    nodes = [Node("a", 3.25), Node("b", 2.75)]
    assert place(topology, topology.tasks, nodes, ceiling=1.0).unplaced == (Task("O", 2),)
    placed = place(topology, topology.tasks, nodes, ceiling=1.0, soft=True)
    assert placed.nodes == {Task("O", 0): "a", Task("O", 1): "b", Task("O", 2): "a"} and not placed.unplaced
    assert placed.load == {"a": 4, "b": 2}
    four = tasks_costing(2, 2, 2, 2, 2)
    assert place(four, four.tasks, nodes, ceiling=1.0, soft=True).unplaced == (Task("O", 4),), "one more for each"
    full = [Node("a", 1, load=1), Node("b", 1, load=2)]
    assert len(place(topology, topology.tasks, full, ceiling=1.0, soft=True).unplaced) == 3, "no room is no room"


@given(
    st.lists(st.sampled_from([0.5, 1.0, 1.7, 3.0]), min_size=1, max_size=12),
    st.lists(st.tuples(st.floats(0, 10), st.floats(0, 10)), min_size=1, max_size=5),
    st.data(),
)
@steady
def test_soft_placements_use_all_room_there_is_and_overfill_a_node_by_one_task(
    costs: list[float], sizes: list[tuple[float, float]], data: st.DataObject
) -> None:
    topology = tasks_costing(*costs)
    nodes = [Node(f"node-{i}", size, load) for i, (size, load) in enumerate(sizes)]
    first = data.draw(st.sets(st.sampled_from(topology.tasks)))
    placed = place(topology, topology.tasks, nodes, ceiling=1.0, first=first, soft=True)
    assert first <= placed.nodes.keys() and not first & set(placed.unplaced)
    assert set(placed.nodes) | set(placed.unplaced) == set(topology.tasks)
    left = {node.name: node.capacity - placed.load[node.name] for node in nodes}
    if placed.unplaced:
        assert all(space <= 1e-8 for space in left.values()), "who waits does so for want of any room"
    if sum(costs) <= room(nodes, ceiling=1.0) - 1e-6:
        assert not placed.unplaced, "what fits in all is placed"
    if not first:
        for node in nodes:
            mine = [costs[task.number] for task, name in placed.nodes.items() if name == node.name]
            assert not mine or left[node.name] + min(mine) > 0, "the last one came when there was room"


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda t: Node("a", -1), "node a: capacity must be a finite number, 0 or more, got -1"),
        (lambda t: place(t, t.tasks, [Node("a", 1)], ceiling=1.5), "ceiling must be above 0 and at most 1, got 1.5"),
        (lambda t: place(t, t.tasks, [Node("a", 1), Node("a", 1)]), "node a: named twice"),
        (lambda t: place(t, [Task("X", 0)], [Node("a", 1)]), "unknown task X/0"),
    ],
)
def test_bad_placements_are_refused(make: object, said: str) -> None:
    with pytest.raises(Invalid) as caught:
        make(tasks_costing(1))
    assert said in str(caught.value)
