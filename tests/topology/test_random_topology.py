"""The generator: seeded, within its knobs, and refusing knobs that make no sense."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import Invalid
from holdfast.topology import Knobs, random_topology, topology_from, topology_to

SEEDS = st.integers(0, 10_000)
SETTINGS = settings(max_examples=30, deadline=None, derandomize=True)


@SETTINGS
@given(SEEDS)
def test_the_same_seed_gives_the_same_topology(seed: int) -> None:
    knobs = Knobs(joins=0.5, full=0.3, workload="zipf", queries=(1, 4), domains=3)
    topology = random_topology(seed, knobs)
    assert topology == random_topology(seed, knobs) == topology_from(topology_to(topology))


@SETTINGS
@given(SEEDS, st.sampled_from([0.0, 0.5, 1.0]), st.sampled_from([0.0, 1.0]))
def test_topologies_stay_within_their_knobs(seed: int, joins: float, full: float) -> None:
    topology = random_topology(seed, Knobs((10, 20), (2, 7), (2, 10), joins, full))
    assert 10 <= len(topology.operators) <= 20
    assert all(2 <= operator.parallelism <= 7 for operator in topology.operators)
    assert 2 <= len(topology.queries) <= 10
    assert {query.sink for query in topology.queries} >= {operator.name for operator in topology.sinks}
    assert (joins > 0) or not any(operator.inputs == "correlated" for operator in topology.operators)
    assert all(len(topology.inputs_of(o.name)) > 1 for o in topology.operators if o.inputs == "correlated")
    assert all((stream.partitioning == "full") == (full == 1.0) for stream in topology.streams)


def test_half_of_the_operators_with_inputs_are_joins_on_average() -> None:
    share = []
    for seed in range(200):
        topology = random_topology(seed, Knobs(operators=(10, 10), joins=0.5))
        fed = [operator for operator in topology.operators if topology.inputs_of(operator.name)]
        share.append(sum(operator.inputs == "correlated" for operator in fed) / len(fed))
    assert 0.4 < sum(share) / len(share) < 0.6


@pytest.mark.parametrize(("priorities", "sign"), [("rising", 1), ("falling", -1)])
def test_priorities_follow_what_queries_cost(priorities: str, sign: int) -> None:
    topology = random_topology(4, Knobs((15, 15), queries=(6, 6), priorities=priorities))
    needs = [
        sum(sum(topology.operator[name].costs) for name in topology.upstream_of(query.sink))
        for query in topology.queries
    ]
    pairs = sorted(zip(needs, [sign * query.priority for query in topology.queries], strict=True))
    assert [rank for _, rank in pairs] == sorted(rank for _, rank in pairs)
    assert len(set(needs)) > 1


def test_zipf_rates_fall_with_their_rank() -> None:
    topology = random_topology(1, Knobs(parallelism=(5, 5), workload="zipf", skew=1.0))
    first, *_, last = sorted(topology.operators[0].rates, reverse=True)
    assert first / last == pytest.approx(5.0)


def test_domains_hold_every_task_once() -> None:
    topology = random_topology(1, Knobs(domains=4))
    held = [task for tasks in topology.domains.values() for task in tasks]
    assert sorted(held) == sorted(topology.tasks)
    assert len(topology.domains) == 4


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"operators": (5, 2)}, "operators must be a range from 1 up, such as 5..10, got 5..2"),
        ({"parallelism": (0, 2)}, "parallelism must be a range from 1 up"),
        ({"joins": 1.5}, "joins must be a share from 0 to 1, got 1.5"),
        ({"full": -0.1}, "full must be a share from 0 to 1, got -0.1"),
        ({"skew": float("nan")}, "skew must be finite and 0 or more, got nan"),
        ({"workload": "even"}, "workload must be one of uniform, zipf, got 'even'"),
        ({"domains": -1}, "domains must be 0 or more, got -1"),
        ({"operators": (2, 3), "queries": (5, 6)}, "queries: 5 at least, but there are 3 operators at most"),
    ],
)
def test_knobs_that_make_no_sense_are_refused(knobs: dict[str, object], message: str) -> None:
    with pytest.raises(Invalid, match=message):
        Knobs(**knobs)
