"""Minimal complete trees: the specification's counts, and counting against enumeration against plain recursion."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import Infeasible, Invalid
from holdfast.fidelity import count_trees, minimal_trees, objectives, tree_counts, trees_through
from holdfast.topology import Knobs, Operator, Stream, Task, Topology, random_topology

SETTINGS = settings(max_examples=30, deadline=None, derandomize=True)


def two_into_a_full_one(inputs: str) -> Topology:
    operators = (Operator("O1", 4), Operator("O2", 4), Operator("O3", 4, inputs=inputs), Operator("O4", 2))
    streams = (Stream("O1", "O3", "one-to-one"), Stream("O2", "O3", "one-to-one"), Stream("O3", "O4", "full"))
    return Topology(operators, streams)


@pytest.mark.parametrize(("inputs", "count"), [("independent", 16), ("correlated", 8)])
def test_the_specification_counts(inputs: str, count: int) -> None:
    topology = two_into_a_full_one(inputs)
    assert count_trees(topology) == count
    assert len(minimal_trees(topology)) == count


def test_trees_of_a_join_hold_a_task_of_each_input() -> None:
    trees = minimal_trees(two_into_a_full_one("correlated"))
    assert frozenset({Task("O1", 1), Task("O2", 1), Task("O3", 1), Task("O4", 0)}) in trees


def test_a_chain_of_full_operators_is_counted_beyond_64_bits_and_never_enumerated() -> None:
    operators = tuple(Operator(f"O{i}", 20) for i in range(30))
    streams = tuple(Stream(f"O{i}", f"O{i + 1}", "full") for i in range(29))
    chain = Topology(operators, streams)
    assert count_trees(chain) == 20**30
    assert trees_through(chain) == [20**29] * 600
    with pytest.raises(Infeasible, match=f"{20**30} minimal complete trees, more than the limit of 1000"):
        minimal_trees(chain, limit=1000)
    with pytest.raises(Invalid, match="at least 1, got 0"):
        minimal_trees(chain, limit=0)


def test_dead_tasks_take_their_trees_with_them() -> None:
    topology = two_into_a_full_one("correlated")
    alive = ~topology.mask(topology.tasks_of("O1/0,O4/1"))
    assert count_trees(topology, alive) == 3
    through = dict(zip(map(str, topology.tasks), trees_through(topology, alive), strict=True))
    assert (through["O2/0"], through["O2/1"], through["O4/0"], through["O4/1"]) == (0, 1, 3, 0)


def test_a_shared_task_chooses_one_substream_for_both_inputs_of_a_join() -> None:
    operators = (Operator("S", 2), Operator("M"), Operator("A"), Operator("B"), Operator("J", inputs="correlated"))
    streams = (
        Stream("S", "M", "merge"),
        Stream("M", "A", "one-to-one"),
        Stream("M", "B", "one-to-one"),
        Stream("A", "J", "one-to-one"),
        Stream("B", "J", "one-to-one"),
    )
    topology = Topology(operators, streams)
    assert count_trees(topology) == 4  # choices: an upper bound here
    assert len(minimal_trees(topology)) == 2


def naive_trees(topology: Topology, task: Task) -> set[frozenset[Task]]:
    """Straight from the definition: every choice, by recursion, then only the minimal sets."""
    streams = topology.inputs_of(task.operator)
    choices = []
    for stream in streams:
        senders = [Task(stream.source, number) for number in topology.senders(stream, task.number)]
        choices.append([tree for sender in senders for tree in naive_trees(topology, sender)])
    if not streams:
        found = {frozenset((task,))}
    elif topology.operator[task.operator].inputs == "correlated":
        found = {frozenset((task,)).union(*chosen) for chosen in product(*choices)}
    else:
        found = {frozenset((task,)) | tree for trees in choices for tree in trees}
    return {tree for tree in found if not any(other < tree for other in found)}


small = st.builds(
    random_topology,
    st.integers(0, 10_000),
    st.builds(
        Knobs,
        operators=st.just((2, 5)),
        parallelism=st.just((1, 3)),
        queries=st.sampled_from([(1, 1), (1, 3)]),
        joins=st.sampled_from([0.0, 0.5, 1.0]),
        full=st.sampled_from([0.0, 0.5, 1.0]),
    ),
)


@SETTINGS
@given(small)
def test_enumeration_finds_what_the_definition_says(topology: Topology) -> None:
    roots = [
        Task(query.sink, n) for query in topology.queries for n in range(topology.operator[query.sink].parallelism)
    ]
    if count_trees(topology) > 500:
        return
    expected = set().union(*(naive_trees(topology, root) for root in roots))
    found = minimal_trees(topology)
    assert len(set(found)) == len(found)
    assert set(found) == expected
    assert count_trees(topology) >= len(found)


@SETTINGS
@given(small, st.randoms(use_true_random=False))
def test_an_answer_flows_exactly_when_a_tree_is_whole(topology: Topology, chance) -> None:
    alive = np.array([chance.random() < 0.7 for _ in topology.tasks])
    assert (count_trees(topology, alive) > 0) == (objectives(topology, ~alive)[0] > 0)


@SETTINGS
@given(small)
def test_trees_through_a_task_add_up_to_those_ending_in_an_output(topology: Topology) -> None:
    counts, through = tree_counts(topology), trees_through(topology)
    for query in topology.queries:
        if topology.outputs_of(query.sink):
            continue
        span = topology.span[query.sink]
        assert through[span] == counts[span]
