"""The generator of query topologies: it keeps to its knobs, and to its seed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recovery_cases import needs, steady

from holdfast.errors import Invalid
from holdfast.topology.queries import QueryMix, random_queries


@given(st.integers(0, 10_000), st.integers(1, 20), st.sampled_from([1, 3, 6]), st.sampled_from([0.0, 0.2, 0.5]))
@steady
def test_sizes_and_sharing_are_as_asked(seed: int, queries: int, sharing: int, skew: float) -> None:
    topology = random_queries(QueryMix(queries=queries, size=(3, 7), sharing=sharing, skew=skew), seed)
    lacking = needs(topology, frozenset(topology.tasks))
    assert len(lacking) == queries
    assert all(3 <= len(tasks) <= 7 for tasks in lacking.values())
    assert max(sum(task in tasks for tasks in lacking.values()) for task in topology.tasks) <= sharing
    assert all(1 <= query.priority <= 10 for query in topology.queries)
    assert topology == random_queries(QueryMix(queries=queries, size=(3, 7), sharing=sharing, skew=skew), seed)


def test_rising_priorities_follow_the_work() -> None:
    topology = random_queries(QueryMix(priorities="rising"), 4)
    lacking = needs(topology, frozenset(topology.tasks))
    work = {out.operator: sum(topology.costs[topology.index[t]] for t in tasks) for out, tasks in lacking.items()}
    ranked = [query.priority for query in sorted(topology.queries, key=lambda query: work[query.sink])]
    assert ranked == sorted(ranked)
    assert (ranked[0], ranked[-1]) == (1, 10)


def test_more_skew_shares_less() -> None:
    def shared(skew: float) -> float:
        drawn = [random_queries(QueryMix(sharing=6, skew=skew), seed) for seed in range(20)]
        return sum(len(topology.tasks) for topology in drawn)

    assert shared(0.0) < shared(0.5) < shared(2.0)


def test_parallelism_multiplies_partitions_and_keeps_the_sharing() -> None:
    topology = random_queries(QueryMix(queries=5, sharing=3, parallelism=4), 1)
    lacking = needs(topology, frozenset(topology.tasks))
    assert len(lacking) == 20
    assert max(sum(task in tasks for tasks in lacking.values()) for task in topology.tasks) <= 3


@pytest.mark.parametrize(
    ("knobs", "said"),
    [
        ({"queries": 0}, "queries and parallelism must be 1 or more, got 0 and 1"),
        ({"size": (5, 2)}, "size must be"),
        ({"sharing": 0}, "sharing must be 1 or more, got 0"),
        ({"skew": -1.0}, "skew must be 0 or more, got -1.0"),
        ({"priorities": "none"}, "priorities must be random or rising, got 'none'"),
        ({"costs": (3, 1)}, "costs must be"),
    ],
)
def test_bad_knobs_are_refused(knobs: dict[str, object], said: str) -> None:
    with pytest.raises(Invalid) as caught:
        QueryMix(**knobs)
    assert said in str(caught.value)
