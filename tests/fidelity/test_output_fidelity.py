"""Output fidelity and internal completeness: by hand, and against a naive recursive evaluation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast
from holdfast.errors import Invalid
from holdfast.fidelity import (
    Flow,
    Stale,
    internal_completeness,
    losses,
    objectives,
    query_completeness,
    query_fidelities,
)
from holdfast.topology import Knobs, Operator, Query, Stream, Task, Topology, random_topology, read_topology

SETTINGS = settings(max_examples=30, deadline=None, derandomize=True)


def two_merged(inputs: str) -> Topology:
    operators = (Operator("O1", 2, (1, 2)), Operator("O2", 2, (3, 2)), Operator("O3", 1, inputs=inputs))
    return Topology(operators, (Stream("O1", "O3", "merge"), Stream("O2", "O3", "merge")))


def test_the_specification_by_hand() -> None:
    assert holdfast.output_fidelity(two_merged("correlated"), "O2/1").fidelity == pytest.approx(3 / 5)
    assert holdfast.output_fidelity(two_merged("independent"), "O2/1").fidelity == pytest.approx(3 / 4)
    assert holdfast.output_fidelity(two_merged("independent"), ["O3/0"]).fidelity == 0.0
    assert holdfast.output_fidelity(two_merged("correlated")).fidelity == 1.0


def test_a_join_multiplies_what_is_left_of_its_inputs() -> None:
    found = holdfast.output_fidelity(two_merged("correlated"), "O1/0,O2/1")
    assert found.fidelity == pytest.approx((2 / 3) * (3 / 5))


def test_completeness_knows_no_joins() -> None:
    """The sources take in 3 + 5 and O3 all 8 of it: 16 tuples, of which O2/1 loses 2, and O3 the same 2 again."""
    for inputs in ("correlated", "independent"):
        found = holdfast.output_fidelity(two_merged(inputs), "O2/1", "ic")
        assert found.fidelity == pytest.approx((16 - 4) / 16)


def test_a_failed_task_processes_nothing() -> None:
    assert holdfast.output_fidelity(two_merged("independent"), "O3/0", "ic").fidelity == pytest.approx(8 / 16)


def test_priorities_weigh_queries() -> None:
    topology = read_topology("examples/topologies/three-queries.json")
    found = holdfast.output_fidelity(topology, "B/0")
    assert found.queries == {"A": 1.0, "B": 0.5, "C": 0.5}
    assert found.objective == pytest.approx(3 + 2 * 0.5 + 0.5)
    assert found.fidelity == pytest.approx(found.objective / 6)


def test_weights_decide_how_a_stream_is_divided() -> None:
    """B/0 owns three quarters of A's keys, so its loss weighs on C by that, not by its own rate's share of a half."""
    topology = Topology(
        (Operator("A", 1, (8,)), Operator("S", 2, (2, 2)), Operator("C", 2, (1, 1))),
        (Stream("A", "C", "split", (3, 1)), Stream("S", "C", "one-to-one")),
    )
    lost = query_fidelities(topology, topology.mask([Task("A", 0)]))[0, 0]
    assert lost == pytest.approx(1 - (6 / 8 + 2 / 4) / 2)


def test_unknown_metrics_and_tasks_are_refused() -> None:
    with pytest.raises(Invalid, match="metric must be of or ic, got 'xx'"):
        holdfast.output_fidelity(two_merged("independent"), (), "xx")
    with pytest.raises(Invalid, match="unknown task O9/0"):
        holdfast.output_fidelity(two_merged("independent"), "O9/0")


def naive_loss(topology: Topology, failed: set[Task], task: Task, correlation: bool = True) -> float:
    """Substream by substream, from the definition."""
    if task in failed:
        return 1.0
    streams = topology.inputs_of(task.operator)
    if not streams:
        return 0.0
    found = []
    for stream in streams:
        rates, losses = [], []
        for u in topology.senders(stream, task.number):
            reached = sum(stream.weights[d] for d in topology.receivers(stream, u))
            rates.append(topology.operator[stream.source].rates[u] * stream.weights[task.number] / reached)
            losses.append(naive_loss(topology, failed, Task(stream.source, u), correlation))
        found.append((sum(rates), sum(r * loss for r, loss in zip(rates, losses, strict=True)) / sum(rates)))
    if correlation and topology.operator[task.operator].inputs == "correlated":
        return 1.0 - float(np.prod([1.0 - loss for _, loss in found]))
    return sum(rate * loss for rate, loss in found) / sum(rate for rate, _ in found)


def naive_fidelity(topology: Topology, failed: set[Task], query: Query) -> float:
    rates = topology.operator[query.sink].rates
    losses = [naive_loss(topology, failed, Task(query.sink, number)) for number in range(len(rates))]
    return 1.0 - sum(rate * loss for rate, loss in zip(rates, losses, strict=True)) / sum(rates)


topologies = st.builds(
    random_topology,
    st.integers(0, 100_000),
    st.builds(
        Knobs,
        operators=st.just((2, 7)),
        parallelism=st.sampled_from([(1, 4), (1, 6)]),
        queries=st.sampled_from([(1, 1), (2, 4)]),
        joins=st.sampled_from([0.0, 0.5, 1.0]),
        full=st.sampled_from([0.0, 0.4, 1.0]),
        workload=st.just("zipf"),
        skew=st.sampled_from([0.1, 1.0]),
    ),
)
chances = st.randoms(use_true_random=False)


@SETTINGS
@given(topologies, chances)
def test_fidelity_is_what_the_naive_recursion_says(topology: Topology, chance) -> None:
    failed = {task for task in topology.tasks if chance.random() < 0.3}
    values = query_fidelities(topology, topology.mask(failed))[0]
    assert values == pytest.approx([naive_fidelity(topology, failed, query) for query in topology.queries])
    assert all(0.0 <= value <= 1.0 for value in values)


@SETTINGS
@given(topologies, chances)
def test_more_failures_never_help_in_either_metric(topology: Topology, chance) -> None:
    order = list(range(len(topology.tasks)))
    chance.shuffle(order)
    failed = np.zeros((len(order) + 1, len(order)), np.bool_)
    for row, place in enumerate(order):
        failed[row + 1 :, place] = True
    for measure in (objectives, internal_completeness):
        values = measure(topology, failed)
        assert (np.diff(values) <= 1e-9).all()
        assert values[0] == pytest.approx(sum(query.priority for query in topology.queries))
        assert values[-1] == pytest.approx(0.0)


@SETTINGS
@given(topologies, chances)
def test_many_failure_sets_at_once_are_each_alone(topology: Topology, chance) -> None:
    failed = np.array([[chance.random() < 0.3 for _ in topology.tasks] for _ in range(5)])
    together = objectives(topology, failed)
    assert together == pytest.approx([objectives(topology, row)[0] for row in failed])
    assert query_completeness(topology, failed).shape == (5, len(topology.queries))


@SETTINGS
@given(topologies, chances)
def test_completeness_is_fidelity_over_all_tasks_without_joins(topology: Topology, chance) -> None:
    failed = {task for task in topology.tasks if chance.random() < 0.3}
    for place, query in enumerate(topology.queries):
        arriving = kept = 0.0
        for name in topology.upstream_of(query.sink):
            for number, rate in enumerate(topology.operator[name].rates):
                streams = topology.inputs_of(name)
                taken = sum(_rate_into(topology, stream, number) for stream in streams) if streams else rate
                arriving += taken
                kept += taken * (1 - naive_loss(topology, failed, Task(name, number), correlation=False))
        assert query_completeness(topology, topology.mask(failed))[0, place] == pytest.approx(kept / arriving)


def _rate_into(topology: Topology, stream: Stream, number: int) -> float:
    total = 0.0
    for u in topology.senders(stream, number):
        reached = sum(stream.weights[d] for d in topology.receivers(stream, u))
        total += topology.operator[stream.source].rates[u] * stream.weights[number] / reached
    return total


@SETTINGS
@given(topologies, chances)
def test_the_flow_graph_agrees_with_the_loss_model_and_with_differences(topology: Topology, chance) -> None:
    flow = Flow(topology)
    alive = np.array([chance.random() < 0.8 for _ in topology.tasks])
    value, worth = flow.worths(alive)
    assert value == pytest.approx(objectives(topology, ~alive))
    assert flow.values(alive) == pytest.approx(value)
    if any(operator.inputs == "correlated" for operator in topology.operators) and len(topology.queries) > 1:
        return  # inputs of a join may share tasks: the worth is a slope there
    for place in range(len(alive)):
        other = alive.copy()
        other[place] = ~other[place]
        assert abs(flow.values(other)[0] - value[0]) == pytest.approx(worth[place, 0], abs=1e-9)


def plain_losses(
    topology: Topology, failed: set[Task], stale: dict[Task, float], correlation: bool
) -> dict[Task, float]:
    """From the sources down: a failed task loses what its input lacks, and no less than it is stale."""
    loss: dict[Task, float] = {}
    for operator in topology.operators:
        for number in range(operator.parallelism):
            task, kept, lacking, rows = Task(operator.name, number), 1.0, 0.0, 0.0
            for stream in topology.inputs_of(operator.name):
                came = missed = 0.0
                for u in topology.senders(stream, number):
                    reached = sum(stream.weights[d] for d in topology.receivers(stream, u))
                    rate = topology.operator[stream.source].rates[u] * stream.weights[number] / reached
                    came += rate
                    missed += rate * loss[Task(stream.source, u)]
                kept *= 1.0 - missed / came
                lacking += missed
                rows += came
            arriving = 0.0 if not rows else lacking / rows
            if correlation and operator.inputs == "correlated":
                arriving = 1.0 - kept
            loss[task] = max(stale[task], arriving) if task in failed else arriving
    return loss


@SETTINGS
@given(topologies, chances, st.booleans())
def test_stale_tasks_lose_what_a_plain_loop_says(topology: Topology, chance, correlation: bool) -> None:
    failed = {task for task in topology.tasks if chance.random() < 0.4}
    stale = {task: chance.choice([0.0, 0.2, 0.7, 1.0]) for task in topology.tasks}
    floors = [stale[task] for task in topology.tasks]
    found = losses(topology, topology.mask(failed), correlation, floors)[0]
    plain = plain_losses(topology, failed, stale, correlation)
    assert found == pytest.approx([plain[task] for task in topology.tasks])
    if correlation:
        for place, query in enumerate(topology.queries):
            rates = topology.operator[query.sink].rates
            lost = sum(rate * plain[Task(query.sink, number)] for number, rate in enumerate(rates)) / sum(rates)
            assert query_fidelities(topology, topology.mask(failed), floors)[0, place] == pytest.approx(1.0 - lost)
            assert query_fidelities(topology, topology.mask(failed))[0, place] <= 1.0 - lost + 1e-9, "old is not silent"


@SETTINGS
@given(topologies, chances)
def test_staleness_is_one_number_or_one_for_each_task_or_what_each_still_says(topology: Topology, chance) -> None:
    failed = np.array([[chance.random() < 0.3 for _ in topology.tasks] for _ in range(3)])
    floors = np.array([chance.random() for _ in topology.tasks])
    together = losses(topology, failed, stale=floors)
    for row in range(3):
        assert together[row] == pytest.approx(losses(topology, failed[row], stale=floors)[0])
    assert together == pytest.approx(losses(topology, failed, stale=Stale(1 - floors[None], 0 * floors[None])))
    assert losses(topology, failed, stale=0.25) == pytest.approx(
        losses(topology, failed, stale=np.full(floors.shape, 0.25))
    )
    assert losses(topology, failed, stale=1.0) == pytest.approx(losses(topology, failed))
    assert objectives(topology, failed, 0.0) == pytest.approx(objectives(topology, np.zeros_like(failed)))


def test_stale_tasks_by_hand() -> None:
    """O2/1 has 2 of the 5 rows of its stream, and lacks a quarter of them; O3/0 lacks a half of its own past."""
    topology = two_merged("correlated")
    floors = [0.0, 0.0, 0.0, 0.25, 0.5]
    assert losses(topology, topology.mask([Task("O2", 1)]), stale=floors)[0] == pytest.approx([0, 0, 0, 0.25, 0.1])
    both = topology.mask([Task("O2", 1), Task("O3", 0)])
    assert losses(topology, both, stale=floors)[0, 4] == 0.5, "the greater of the two, not both"
    assert losses(topology, both, stale=[0, 0, 0, 1, 0.1])[0, 4] == pytest.approx(0.4)


def test_stale_tasks_that_get_less_by_hand() -> None:
    """O3/0 has seen 0.3 of what its answer rests on, or 0.1 of it where that is less; the rest of that comes now."""
    topology = two_merged("correlated")
    ones = [1.0, 1.0, 1.0, 0.0]
    stale = Stale(np.array([[*ones, 0.3], [*ones, 0.1]]), np.array([[0, 0, 0, 0, 0.5], [0, 0, 0, 0, 0.8]]))
    assert stale.loss == pytest.approx([0, 0, 0, 1, 0.2])
    assert losses(topology, topology.mask([Task("O3", 0)]), stale=stale)[0, 4] == pytest.approx(1 - 0.8)
    both = topology.mask([Task("O2", 1), Task("O3", 0)])
    assert losses(topology, both, stale=stale)[0, 4] == pytest.approx(1 - min(0.6, 0.3 + 0.5 * 0.6, 0.1 + 0.8 * 0.6))


def test_silent_operators_divide_equally() -> None:
    topology = Topology((Operator("A", 2, (0, 0)), Operator("B", 1)), (Stream("A", "B", "merge"),))
    assert objectives(topology, topology.mask([Task("A", 0)]))[0] == pytest.approx(0.5)
    assert Flow(topology).values(~topology.mask([Task("A", 0)])) == pytest.approx([0.5])
