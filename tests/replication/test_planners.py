"""Planners against brute force over all subsets, against each other, and one contract over the whole registry."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume as assume_that
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import Infeasible, Invalid
from holdfast.fidelity import count_trees, minimal_trees, objectives
from holdfast.replication import PLANNERS, decompose, plan, validate_plan
from holdfast.replication import dynamic as dynamic_module
from holdfast.replication.completion import cheapest_tree
from holdfast.replication.exact import exact
from holdfast.topology import Knobs, Operator, Query, Stream, Task, Topology, random_topology, read_topology

TOLERANCE = 1e-9
EXAMPLES = ("hierarchy", "incidents", "join-then-full", "merge-of-two", "three-queries")


def example(name: str) -> Topology:
    return read_topology(f"examples/topologies/{name}.json")


def brute_force(topology: Topology, budget: float, assume: str) -> float:
    """The best objective over all subsets of tasks, with the loss model and nothing else."""
    count = len(topology.tasks)
    subsets = np.array([[subset >> place & 1 for place in range(count)] for subset in range(1 << count)], np.bool_)
    subsets = subsets[subsets @ topology.costs <= budget + TOLERANCE]
    if assume == "all":
        return float(objectives(topology, ~subsets).max())
    each = np.stack([objectives(topology, topology.mask(tasks) & ~subsets) for tasks in topology.domains.values()])
    return float((each.min(axis=0) if assume == "worst-domain" else each.mean(axis=0)).max())


def topologies(**fixed: object) -> st.SearchStrategy[Topology]:
    knobs: dict[str, st.SearchStrategy[object]] = {
        "operators": st.just((2, 6)),
        "parallelism": st.just((1, 3)),
        "queries": st.sampled_from([(1, 1), (1, 3)]),
        "joins": st.sampled_from([0.0, 0.7]),
        "full": st.sampled_from([0.0, 0.4, 1.0]),
        "workload": st.sampled_from(["uniform", "zipf"]),
        "skew": st.just(1.0),
        "costs": st.sampled_from(["unit", "workload"]),
        "domains": st.just(3),
    }
    knobs |= {name: st.just(value) for name, value in fixed.items()}
    return st.builds(random_topology, st.integers(0, 100_000), st.builds(Knobs, **knobs))


small = topologies().filter(lambda topology: len(topology.tasks) <= 11)
budgets = st.sampled_from([0.0, 1.0, 2.5, 4.0, 5.0, 7.3])
assumptions = st.sampled_from(["all", "worst-domain", "average-domain"])


@settings(max_examples=20, deadline=None, derandomize=True)
@given(small, budgets, assumptions)
def test_exact_finds_what_brute_force_finds_and_says_so(topology: Topology, budget: float, assume: str) -> None:
    found = exact(topology, budget, assume)
    validate_plan(topology, found)
    assert found.objective == pytest.approx(brute_force(topology, budget, assume), abs=1e-7)
    assert found.optimal is True


def assume_small(topology: Topology) -> None:
    assume_that(count_trees(topology) <= dynamic_module.MOST_TREES)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(small, budgets, assumptions)
def test_dynamic_finds_what_brute_force_finds(topology: Topology, budget: float, assume: str) -> None:
    assume_small(topology)
    found = plan(topology, budget, "dynamic", assume)
    validate_plan(topology, found)
    assert found.objective == pytest.approx(brute_force(topology, budget, assume), abs=TOLERANCE)


@settings(max_examples=12, deadline=None, derandomize=True)
@given(topologies(operators=(3, 9), parallelism=(1, 4)), st.floats(0, 1), assumptions)
def test_structure_aware_is_never_below_greedy(topology: Topology, share: float, assume: str) -> None:
    budget = share * float(topology.costs.sum())
    mine, simple = plan(topology, budget, "structure-aware", assume), plan(topology, budget, "greedy", assume)
    validate_plan(topology, mine)
    validate_plan(topology, simple)
    assert mine.objective >= simple.objective


@pytest.mark.parametrize("algorithm", PLANNERS)
@settings(max_examples=5, deadline=None, derandomize=True)
@given(topology=topologies(operators=(2, 5)).filter(lambda topology: len(topology.tasks) <= 10), assume=assumptions)
def test_more_budget_is_never_worse(algorithm: str, topology: Topology, assume: str) -> None:
    if algorithm == "dynamic":
        assume_small(topology)
    costs = float(topology.costs.sum())
    found = [plan(topology, costs * step / 7, algorithm, assume) for step in range(8)]
    values = [one.objective for one in found]
    assert all(after >= before - 1e-9 for before, after in pairwise(values)), values
    assert found[-1].fidelity == pytest.approx(1.0)


@settings(max_examples=4, deadline=None, derandomize=True)
@given(topologies(operators=(5, 8), parallelism=(1, 4)), assumptions)
def test_more_budget_is_never_worse_for_structure_aware_on_larger_topologies(topology: Topology, assume: str) -> None:
    costs = float(topology.costs.sum())
    values = [plan(topology, costs * step / 9, assume=assume).objective for step in range(10)]
    assert values == sorted(values)


@pytest.mark.parametrize("algorithm", PLANNERS)
@pytest.mark.parametrize("name", EXAMPLES)
def test_every_planner_keeps_the_contract_on_the_examples(algorithm: str, name: str) -> None:
    topology = example(name)
    first = plan(topology, 6, algorithm)
    validate_plan(topology, first)
    assert first == plan(topology, 6, algorithm)
    assert (first.algorithm, first.budget, first.assume) == (algorithm, 6.0, "all")
    assert first.optimal is (True if algorithm in ("dynamic", "exact") else None)
    nothing = plan(topology, 0, algorithm)
    assert (nothing.replicas, nothing.cost, nothing.fidelity) == ((), 0.0, 0.0)


def test_greedy_ranks_by_lone_failures_and_structure_aware_completes_a_tree() -> None:
    """Alone the tasks nearest the sink matter most, and carry nothing; a path from a source carries a sixteenth."""
    merged = example("hierarchy")
    alone = plan(merged, 5, "greedy")
    assert {str(task) for task in alone.replicas} == {"O4/0", "O3/0", "O3/1", "O2/0", "O2/1"}
    assert alone.fidelity == 0.0
    best = plan(merged, 5)
    assert best.fidelity == pytest.approx(1 / 16)
    assert {task.operator for task in best.replicas} == {"source", "O1", "O2", "O3", "O4"}


def test_costs_of_a_tenth_fill_a_budget_of_three_tenths() -> None:
    sources = Topology((Operator("S", 4, costs=(0.1, 0.1, 0.1, 0.1)),))
    for algorithm in PLANNERS:
        assert plan(sources, 0.3, algorithm).fidelity == pytest.approx(0.75), algorithm


def test_a_budget_that_is_short_by_a_hair_is_short() -> None:
    dear = Topology((Operator("S", 4, rates=(4, 3, 2, 1), costs=(1 + 2e-8,) * 4),))
    for algorithm in PLANNERS:
        found = plan(dear, 3, algorithm)
        validate_plan(dear, found)
        assert found.fidelity == pytest.approx(0.7), algorithm


def test_free_tasks_and_silent_tasks_do_no_harm() -> None:
    odd = Topology(
        (Operator("A", 2, rates=(0, 0), costs=(0, 2)), Operator("B", 2, rates=(0, 3)), Operator("C", 1, costs=(0,))),
        (Stream("A", "B", "one-to-one"), Stream("B", "C", "merge")),
    )
    for algorithm in PLANNERS:
        found = plan(odd, 3, algorithm)
        validate_plan(odd, found)
        assert found.fidelity == (pytest.approx(1.0) if algorithm != "greedy" else pytest.approx(found.fidelity))
    assert plan(odd, 0).fidelity == 0.0


def test_three_queries_share_what_they_can() -> None:
    """A alone is a query of priority 3: its cheap tasks come first, and with everything bought nothing is missing."""
    topology = example("three-queries")
    assert plan(topology, 1, "exact").replicas in ((Task("A", 1),), (Task("A", 2),))
    assert plan(topology, 1).objective == plan(topology, 1, "exact").objective
    assert plan(topology, 11).fidelity == 1.0


def with_virtual_sink(topology: Topology) -> Topology:
    """The paper's conversion, in plain sight: relays at rate priority x share, then one sink that takes from all."""
    operators, streams = list(topology.operators), list(topology.streams)
    for query in topology.queries:
        source = topology.operator[query.sink]
        shares = tuple(query.priority * rate / sum(source.rates) for rate in source.rates)
        operators.append(Operator(f"relay {query.sink}", source.parallelism, shares, (0.0,) * source.parallelism))
        streams.append(Stream(query.sink, f"relay {query.sink}", "one-to-one"))
        streams.append(Stream(f"relay {query.sink}", "virtual", "full"))
    operators.append(Operator("virtual", 1, costs=(0.0,)))
    return Topology(tuple(operators), tuple(streams), (Query("virtual"),))


@settings(max_examples=15, deadline=None, derandomize=True)
@given(topologies(queries=(2, 3)), st.randoms(use_true_random=False))
def test_the_objective_is_the_fidelity_of_the_virtual_sink(topology: Topology, chance) -> None:
    single = with_virtual_sink(topology)
    failed = [task for task in topology.tasks if chance.random() < 0.3]
    total = sum(query.priority for query in topology.queries)
    expected = objectives(topology, topology.mask(failed))[0] / total
    assert objectives(single, single.mask(failed))[0] == pytest.approx(expected)


def test_domains_ask_for_other_replicas_than_the_loss_of_everything() -> None:
    pair = Topology(
        (Operator("A", 2), Operator("B", 2)),
        (Stream("A", "B", "one-to-one"),),
        domains={"rack-1": (Task("A", 0), Task("A", 1)), "rack-2": (Task("B", 0),)},
    )
    worst = plan(pair, 1, "exact", "worst-domain")
    assert worst.replicas in ((Task("A", 0),), (Task("A", 1),))
    assert worst.fidelity == pytest.approx(0.5)
    average = plan(pair, 2, "exact", "average-domain")
    assert average.fidelity == pytest.approx(0.75)
    assert average.objective == plan(pair, 2, assume="average-domain").objective
    assert Task("B", 1) not in plan(pair, 4, assume="worst-domain").replicas  # it is in no domain: it never fails


def test_dynamic_refuses_with_the_count(monkeypatch: pytest.MonkeyPatch) -> None:
    chain = Topology(
        tuple(Operator(f"O{i}", 9) for i in range(6)), tuple(Stream(f"O{i}", f"O{i + 1}", "full") for i in range(5))
    )
    with pytest.raises(Infeasible, match=f"{9**6} minimal complete trees, more than the limit of 200; use exact"):
        plan(chain, 4, "dynamic")
    monkeypatch.setattr(dynamic_module, "MOST_UNIONS", 10)
    with pytest.raises(Infeasible, match="more than 10 unions of 16 minimal complete trees fit a budget of 9"):
        plan(example("hierarchy"), 9, "dynamic")


def test_exact_gives_its_best_plan_when_time_is_up() -> None:
    large = random_topology(3, Knobs(operators=(12, 12), parallelism=(8, 8), full=1.0, workload="zipf", skew=0.5))
    found = exact(large, 40, time_limit=0.05)
    validate_plan(large, found)
    assert found.optimal is False
    assert found.objective >= plan(large, 40).objective


@pytest.mark.parametrize("budget", [-1, float("nan"), float("inf")])
def test_budgets_that_make_no_sense_are_refused(budget: float) -> None:
    for algorithm in PLANNERS:
        with pytest.raises(Invalid, match="budget must be a finite number, 0 or more, got"):
            plan(example("hierarchy"), budget, algorithm)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(Invalid, match="algorithm must be one of structure-aware, greedy, dynamic, exact, got 'best'"):
        plan(example("hierarchy"), 1, "best")
    with pytest.raises(Invalid, match="assume must be one of all, worst-domain, average-domain, got 'some'"):
        plan(example("hierarchy"), 1, assume="some")
    with pytest.raises(Invalid, match="the topology has no domains"):
        plan(example("hierarchy"), 1, assume="worst-domain")


def test_the_validator_names_every_false_claim() -> None:
    topology = example("hierarchy")
    good = plan(topology, 6)
    validate_plan(topology, good)
    for change, message in [
        ({"replicas": (*good.replicas, Task("O9", 0))}, "unknown task O9/0"),
        ({"replicas": (*good.replicas, good.replicas[0])}, "replicated twice"),
        ({"cost": 1.0}, "cost is 6.0, the plan says 1.0"),
        ({"budget": 2.0}, "above the budget of 2.0"),
        ({"objective": 0.9}, "the plan says 0.9"),
        ({"fidelity": 0.9}, "the plan says 0.9"),
    ]:
        with pytest.raises(Invalid, match=message):
            validate_plan(topology, replace(good, **change))


def test_a_plan_does_not_hold_replicas_that_carry_nothing() -> None:
    topology = example("join-then-full")
    found = plan(topology, 6)
    for task in found.replicas:
        without = topology.mask(t for t in found.replicas if t != task)
        assert objectives(topology, ~without)[0] < found.objective
    assert [part.kind for part in decompose(topology)] == ["structured", "full"]


@settings(max_examples=20, deadline=None, derandomize=True)
@given(topologies(joins=0.0))
def test_the_cheapest_tree_is_the_cheapest_of_all_trees(topology: Topology) -> None:
    assume_small(topology)
    price = {task: topology.costs[place] for task, place in topology.index.items()}
    found = cheapest_tree(topology)
    trees = minimal_trees(topology)
    assert frozenset(found) in trees
    assert sum(map(price.get, found)) == pytest.approx(min(sum(map(price.get, tree)) for tree in trees))
