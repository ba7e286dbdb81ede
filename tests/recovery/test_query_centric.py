"""Query-centric recovery: whole query partitions within a capacity, judged against brute force and by hand."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from recovery_cases import (
    brute_force,
    cost_of,
    failures,
    guarantee,
    naive_best_density,
    needs,
    steady,
)

from holdfast.errors import Infeasible, Invalid
from holdfast.recovery import ALGORITHMS, recover, schedule, validate_schedule
from holdfast.recovery.demand import demand
from holdfast.recovery.density import densest_goals, upper_bound
from holdfast.recovery.density import guarantee as promised
from holdfast.recovery.exact import exact
from holdfast.topology import Operator, Query, Stream, Task, Topology
from holdfast.topology.queries import QueryMix, random_queries

QUERY_CENTRIC = ("best-density", "dynamic", "exact")


def traffic() -> Topology:
    """Figure 1 of paper 004: speeds (O1 -> O3) and incidents (O2 -> O4) joined in O5; O3, O4, O5 are all queries."""
    return Topology(
        (
            Operator("O1", 3),
            Operator("O2", 3),
            Operator("O3", 3),
            Operator("O4", 3),
            Operator("O5", 3, inputs="correlated"),
        ),
        (
            Stream("O1", "O3", "one-to-one"),
            Stream("O2", "O4", "one-to-one"),
            Stream("O3", "O5", "one-to-one"),
            Stream("O4", "O5", "one-to-one"),
        ),
        (Query("O3"), Query("O4"), Query("O5", 4)),
    )


def test_a_query_partition_is_an_output_task_and_all_upstream() -> None:
    topology = traffic()
    lacking = needs(topology, frozenset(topology.tasks))
    assert len(lacking) == 9
    assert lacking[Task("O5", 1)] == {Task(name, 1) for name in ("O1", "O2", "O3", "O4", "O5")}


@pytest.mark.parametrize("algorithm", QUERY_CENTRIC)
def test_shared_tasks_are_paid_once(algorithm: str) -> None:
    """Five units complete O3/i, O4/i and O5/i together: 1 + 1 + 4; apart they would cost 2 + 2 + 5."""
    plan = recover(traffic(), "all", 5, algorithm)
    assert plan.cost == 5
    assert plan.priority == 6
    assert [task.operator for task in plan.queries] == ["O3", "O4", "O5"]
    assert len({task.number for task in plan.recover}) == 1


def test_operator_centric_recovers_sources_first_and_no_query() -> None:
    plan = recover(traffic(), "all", 5, "operator-centric")
    assert [str(task) for task in plan.recover] == ["O1/0", "O1/1", "O1/2", "O2/0", "O2/1"]
    assert plan.priority == 0


@given(failures())
@steady
def test_every_plan_of_every_algorithm_is_sound(case: tuple[Topology, frozenset[Task], float]) -> None:
    topology, failed, capacity = case
    for algorithm in ALGORITHMS:
        once = schedule(topology, failed, capacity, algorithm=algorithm)
        assert validate_schedule(topology, failed, [capacity], once) == ()
        assert once == schedule(topology, sorted(failed), capacity, algorithm=algorithm)


@given(failures(), st.integers(1, 5))
@steady
def test_capacity_for_everything_recovers_everything(case: tuple[Topology, frozenset[Task], float], parts: int) -> None:
    topology, failed, _ = case
    arrivals = [cost_of(topology, failed) / parts] * parts
    for algorithm in ALGORITHMS:
        result = schedule(topology, failed, arrivals=arrivals, algorithm=algorithm)
        assert validate_schedule(topology, failed, arrivals, result) == ()
        assert result.still_failed == ()
        assert result.steps[-1].fidelity == pytest.approx(1.0)


@given(failures())
@steady
def test_exact_and_dynamic_find_the_optimum(case: tuple[Topology, frozenset[Task], float]) -> None:
    topology, failed, capacity = case
    best = brute_force(topology, failed, capacity)
    for algorithm in ("exact", "dynamic"):
        plan = recover(topology, failed, capacity, algorithm)
        assert plan.optimal is True
        assert plan.priority == pytest.approx(best)


@given(failures())
@steady
def test_best_density_keeps_its_guarantee(case: tuple[Topology, frozenset[Task], float]) -> None:
    topology, failed, capacity = case
    best = brute_force(topology, failed, capacity)
    found = recover(topology, failed, capacity).priority
    assert found >= guarantee(topology, failed) * best - 1e-9
    wanted = demand(topology, failed)
    assert upper_bound(wanted, capacity) >= best - 1e-6
    # With the bounded candidates of large failures, too.
    few = sum(wanted.priorities[goal] for goal in densest_goals(wanted, capacity, all_pairs=1))
    assert few >= promised(wanted) * best - 1e-9 if len(wanted.costs) else few == 0


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("share", [0.25, 0.6])
def test_best_density_equals_the_naive_version(seed: int, share: float) -> None:
    topology = random_queries(QueryMix(queries=9, size=(2, 6), sharing=4, costs=(1, 1000)), seed)
    failed = frozenset(topology.tasks)
    capacity = share * float(topology.costs.sum())
    assert recover(topology, failed, capacity).priority == naive_best_density(topology, failed, capacity)


@pytest.mark.parametrize("seed", range(4))
def test_exact_never_gets_worse_with_more_capacity(seed: int) -> None:
    topology = random_queries(QueryMix(queries=12, sharing=6), seed)
    total = float(topology.costs.sum())
    found = [recover(topology, "all", total * share, "exact").priority for share in np.linspace(0, 1, 11)]
    assert found == sorted(found)
    assert found[0] == 0
    assert found[-1] == sum(query.priority for query in topology.queries)


def test_singles_are_candidates_or_the_guarantee_fails() -> None:
    """The densest single query (2 for 1) leaves no room for the dear one (10 for 10), and no pair fits."""
    topology = Topology(
        (Operator("S", 1, costs=(0.0,)), Operator("A", 1, costs=(10.0,)), Operator("B", 1, costs=(1.0,))),
        (Stream("S", "A", "one-to-one"), Stream("S", "B", "one-to-one")),
        (Query("A", 10), Query("B", 2)),
    )
    assert recover(topology, "A/0,B/0", 10).priority == 10


def test_many_goals_take_the_bounded_path_and_stay_close() -> None:
    """Beyond 60 goals not all pairs are tried; what is lost by that is small."""
    topology = random_queries(QueryMix(queries=80, sharing=4), 3)
    wanted = demand(topology, topology.tasks)
    for share in (0.2, 0.5, 0.8):
        capacity = share * float(topology.costs.sum())
        bounded = wanted.priorities[densest_goals(wanted, capacity)].sum()
        thorough = wanted.priorities[densest_goals(wanted, capacity, all_pairs=80)].sum()
        assert bounded >= 0.97 * thorough


def test_dynamic_refuses_what_it_cannot_finish() -> None:
    topology = random_queries(QueryMix(queries=30), 1)
    with pytest.raises(Infeasible, match="30 failed query partitions to choose from, at most 18; use exact"):
        recover(topology, "all", 50, "dynamic")


def test_exact_says_when_it_ran_out_of_time() -> None:
    topology = random_queries(QueryMix(queries=400, sharing=6, priorities="rising"), 1)
    capacity = 0.5 * float(topology.costs.sum())
    plan = exact(topology, frozenset(topology.tasks), capacity, time_limit_s=0.0)
    assert plan.optimal is False
    assert plan.priority >= recover(topology, "all", capacity).priority
    assert plan.cost <= capacity


def test_tasks_that_no_query_needs_come_last() -> None:
    topology = Topology(
        (Operator("S"), Operator("Q", costs=(3.0,)), Operator("X", 2)),
        (Stream("S", "Q", "one-to-one"), Stream("S", "X", "split")),
        (Query("Q"),),
    )
    assert [str(task) for task in recover(topology, "all", 3).recover] == []
    assert [str(task) for task in recover(topology, "all", 4).recover] == ["S/0", "Q/0"]
    assert [str(task) for task in recover(topology, "all", 5).recover] == ["S/0", "Q/0", "X/0"]
    assert len(recover(topology, "all", 6).recover) == 4


def test_leftover_capacity_is_carried_over() -> None:
    topology = Topology((Operator("Q", 3, costs=(2.0, 2.0, 2.0)),))
    result = schedule(topology, "all", arrivals=[3, 1, 2])
    assert [step.capacity for step in result.steps] == [3, 2, 2]
    assert [len(step.recover) for step in result.steps] == [1, 1, 1]
    assert result.average_fidelity == pytest.approx((1 / 3 + 2 / 3 + 1) / 3)


def test_nothing_failed_and_nothing_to_spend() -> None:
    for algorithm in ALGORITHMS:
        nothing = schedule(traffic(), "", 5, algorithm=algorithm)
        assert (nothing.steps[0].recover, nothing.priority, nothing.average_fidelity) == ((), 0.0, 1.0)
        broke = schedule(traffic(), "all", 0, algorithm=algorithm)
        assert (broke.steps[0].recover, broke.priority, broke.average_fidelity) == ((), 0.0, 0.0)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"failed": "O9/0", "capacity": 1}, "failed: unknown task O9/0"),
        ({"failed": "O1/0,O1/0", "capacity": 1}, "failed: task O1/0: named twice"),
        ({"failed": "all", "capacity": -1}, "capacity must be a finite number, 0 or more, got -1"),
        ({"failed": "all", "capacity": float("nan")}, "got nan"),
        ({"failed": "all", "capacity": "5"}, "capacity must be a number, 0 or more, got '5'"),
        ({"failed": "all", "arrivals": [1, float("inf")]}, "arrival 2 must be a finite number"),
        ({"failed": "all", "arrivals": []}, "arrivals: at least one"),
        ({"failed": "all"}, "either capacity or arrivals is needed, got neither"),
        ({"failed": "all", "capacity": 1, "arrivals": [1]}, "got both"),
        ({"failed": "all", "capacity": 1, "algorithm": "best"}, "algorithm must be one of best-density, dynamic"),
    ],
)
def test_bad_questions_are_refused_in_one_line(asked: dict[str, object], said: str) -> None:
    with pytest.raises(Invalid, match=r"^[^\n]*$") as caught:
        schedule(traffic(), **asked)
    assert said in str(caught.value)


def test_the_validator_catches_lies() -> None:
    from dataclasses import replace

    topology = traffic()
    failed = frozenset(topology.tasks)
    sound = schedule(topology, failed, 5)
    step = sound.steps[0]
    lies = [
        replace(step, queries=step.queries[:1]),
        replace(step, recover=(*step.recover, Task("O1", 1) if Task("O1", 1) not in step.recover else Task("O1", 2))),
        replace(step, fidelity=1.0),
        replace(step, priority=99.0),
        replace(step, capacity=50.0),
        replace(step, recover=(*step.recover, step.recover[0])),
    ]
    assert validate_schedule(topology, failed, [5.0], sound) == ()
    for lie in lies:
        assert validate_schedule(topology, failed, [5.0], replace(sound, steps=(lie,)))
    assert validate_schedule(topology, failed - {step.recover[0]}, [5.0], sound)
    assert validate_schedule(topology, failed, [5.0, 1.0], sound)
    assert validate_schedule(topology, failed, [5.0], replace(sound, still_failed=()))
    assert validate_schedule(topology, failed, [5.0], replace(sound, average_fidelity=0.9))


def test_the_solver_does_not_speak_where_json_is_promised(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    import scipy.optimize

    milp = scipy.optimize.milp

    def talkative(*given: Any, **named: Any) -> Any:
        os.write(1, b"HighsMipSolverData::transformNewIntegerFeasibleSolution tmpSolver.run();\n")
        return milp(*given, **named)

    monkeypatch.setattr(scipy.optimize, "milp", talkative)
    topology = random_queries(QueryMix(), seed=1)
    assert recover(topology, "all", 0.5 * float(topology.costs.sum()), "exact").recover
    assert capfd.readouterr().out == ""
