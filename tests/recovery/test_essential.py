"""The tasks without which a query would be silent: the lightest, against every subset of tiny failures."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import chain, combinations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from recovery_cases import cost_of, failures, steady

from holdfast.fidelity import query_fidelities
from holdfast.recovery import essential
from holdfast.topology import Operator, Query, Stream, Task, Topology


def speaking(topology: Topology) -> Topology:
    """The same with rates and priorities that are not 0: then a query is silent when no tree of it lives."""
    operators = (replace(each, rates=tuple(rate + 1.0 for rate in each.rates)) for each in topology.operators)
    queries = (replace(query, priority=query.priority + 1.0) for query in topology.queries)
    return replace(topology, operators=tuple(operators), queries=tuple(queries))


def silent(topology: Topology, failed: Iterable[Task]) -> list[str]:
    found = query_fidelities(topology, topology.mask(failed))[0]
    return [query.sink for query, fidelity in zip(topology.queries, found, strict=True) if fidelity <= 1e-12]


def least(topology: Topology, failed: frozenset[Task], sinks: Iterable[str]) -> float:
    """The least cost of any tasks that make these queries speak."""
    wanted, tasks = set(sinks), sorted(failed, key=topology.index.__getitem__)
    subsets = chain.from_iterable(combinations(tasks, size) for size in range(len(tasks) + 1))
    return min(
        cost_of(topology, frozenset(each)) for each in subsets if not wanted & set(silent(topology, failed - set(each)))
    )


def shares_upstream(topology: Topology) -> bool:
    """Whether two inputs of a join have an operator upstream of both."""
    for operator in topology.operators:
        if operator.inputs == "correlated":
            for one, two in combinations(topology.inputs_of(operator.name), 2):
                if set(topology.upstream_of(one.source)) & set(topology.upstream_of(two.source)):
                    return True
    return False


@given(failures(most_operators=4, most_tasks=2))
@steady
def test_no_query_is_silent_and_nothing_is_there_for_nothing(case: tuple[Topology, frozenset[Task], float]) -> None:
    topology, failed = speaking(case[0]), case[1]
    found = frozenset(essential(topology, failed))
    mute = silent(topology, failed)
    assert found <= failed and bool(found) == bool(mute)
    assert silent(topology, failed - found) == []
    assert essential(topology, failed - found) == ()
    alone = sum(least(topology, failed, [sink]) for sink in mute)
    if not shares_upstream(topology):
        assert cost_of(topology, found) <= alone + 1e-6, "never more than for each query by itself"
        if len(mute) == 1:
            assert cost_of(topology, found) == pytest.approx(alone, abs=1e-6)


@given(failures(most_operators=4, most_tasks=2), st.data())
@steady
def test_one_query_costs_the_least_that_gives_it_a_voice(
    case: tuple[Topology, frozenset[Task], float], data: st.DataObject
) -> None:
    topology, failed = speaking(case[0]), case[1]
    one = replace(topology, queries=(data.draw(st.sampled_from(topology.queries)),))
    assume(not shares_upstream(one))
    sinks = [query.sink for query in one.queries]
    found = frozenset(essential(one, failed))
    assert cost_of(one, found) == pytest.approx(least(one, failed, sinks), abs=1e-6)


def sharing(costs: tuple[float, float, float]) -> Topology:
    """Two queries X and Y, each of which can listen to a task of its own or to M, which both share."""
    own_x, own_y, shared = costs
    operators = (
        Operator("P", 1, costs=(own_x,)),
        Operator("Q", 1, costs=(own_y,)),
        Operator("M", 1, costs=(shared,)),
        Operator("X", 1, costs=(1.0,)),
        Operator("Y", 1, costs=(1.0,)),
    )
    streams = (Stream("P", "X", "full"), Stream("M", "X", "full"), Stream("Q", "Y", "full"), Stream("M", "Y", "full"))
    return Topology(operators, streams, (Query("X", 1.0), Query("Y", 1.0)))


def test_what_one_query_has_bought_is_free_for_the_next() -> None:
    topology = sharing((3.0, 1.0, 2.0))
    found = essential(topology, topology.tasks)
    assert set(map(str, found)) == {"M/0", "X/0", "Y/0"}, "Q/0 is lighter than M/0, but M/0 is there"
    assert cost_of(topology, frozenset(found)) == least(topology, frozenset(topology.tasks), ["X", "Y"]) == 4.0


def test_queries_one_after_the_other_may_pay_more_than_together() -> None:
    """M alone serves both for 3; each by itself takes its own task for 2. It is never dearer than that."""
    topology = sharing((2.0, 2.0, 3.0))
    found = frozenset(essential(topology, topology.tasks))
    assert set(map(str, found)) == {"P/0", "Q/0", "X/0", "Y/0"} and cost_of(topology, found) == 6.0
    assert least(topology, frozenset(topology.tasks), ["X", "Y"]) == 5.0


def test_what_both_inputs_of_a_join_share_is_weighed_twice_and_bought_once() -> None:
    """A costs 3 and serves both inputs, B and C cost 2 and serve one each: 3 would do, 4 is found."""

    def joined(costs: tuple[float, float, float]) -> Topology:
        operators = (
            Operator("S", 1, costs=(0.0,)),
            Operator("A", 1, costs=(costs[0],)),
            Operator("B", 1, costs=(costs[1],)),
            Operator("C", 1, costs=(costs[2],)),
            Operator("L", 1, costs=(0.0,)),
            Operator("R", 1, costs=(0.0,)),
            Operator("J", 1, inputs="correlated", costs=(0.0,)),
        )
        pairs = ("SA", "SB", "SC", "AL", "BL", "AR", "CR", "LJ", "RJ")
        return Topology(operators, tuple(Stream(a, b, "full") for a, b in pairs))

    topology = joined((3.0, 2.0, 2.0))
    failed = frozenset(topology.tasks)
    found = frozenset(essential(topology, failed))
    assert cost_of(topology, found) == 4.0 and least(topology, failed, ["J"]) == 3.0
    topology = joined((1.5, 2.0, 2.0))
    found = frozenset(essential(topology, failed))
    assert {str(task) for task in found} == {"S/0", "A/0", "L/0", "R/0", "J/0"}
    assert cost_of(topology, found) == least(topology, failed, ["J"]) == 1.5


def test_live_tasks_cost_nothing_and_are_not_named() -> None:
    operators = (Operator("S", 1), Operator("A", 3, costs=(5.0, 1.0, 2.0)), Operator("B", 2, costs=(4.0, 3.0)))
    topology = Topology(operators, (Stream("S", "A", "full"), Stream("A", "B", "full")))

    def needed(*names: str) -> list[str]:
        return [str(task) for task in essential(topology, topology.tasks_of(names))]

    assert needed() == needed("A/0", "A/1", "B/1") == []
    assert needed("B/0", "B/1") == ["B/1"]
    assert needed("A/0", "A/1", "A/2", "B/1") == ["A/1"]
    assert needed("A/0", "A/1", "A/2", "B/0", "B/1") == ["A/1", "B/1"]
    assert needed("S/0", "A/1") == ["S/0"]


def test_a_query_of_no_priority_has_the_lightest_tree_too() -> None:
    operators = (Operator("S", 1), Operator("A", 2, costs=(5.0, 1.0)), Operator("B", 1))
    topology = Topology(
        operators, (Stream("S", "A", "full"), Stream("S", "B", "full")), (Query("A", 0.0), Query("B", 1.0))
    )
    assert list(map(str, essential(topology, topology.tasks_of("A/0,A/1")))) == ["A/1"]
