"""When the policy scales, when it does not, what it says, and that a steady load never makes it oscillate."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from steady_load import Keys, drive, range_of

from holdfast.elasticity import CannotScale, Decision, LoadReport, Policy, ScaleIn, ScaleOut, Scaler, rerouted, split
from holdfast.errors import Invalid
from holdfast.state import KeyRange, Routing
from holdfast.state.ranges import RING
from holdfast.topology import Task

SOME = settings(deadline=None, derandomize=True, max_examples=25)
FEW = settings(deadline=None, derandomize=True, max_examples=25)


def rounds(scaler: Scaler, *rows: list[float], operator: str = "O", start: float = 0.0) -> list[list[Decision]]:
    """One answer for each row: the utilisations of tasks 0, 1, ... five seconds apart."""
    answers = []
    for turn, row in enumerate(rows, 1):
        at = start + 5.0 * turn
        answers.append(scaler.observe([LoadReport(Task(operator, i), at, 5.0, 5 * u) for i, u in enumerate(row)]))
    return answers


def scaler_of(tasks: int, **policy: object) -> Scaler:
    return Scaler({"O": Routing.even(tasks)}, Policy(**policy))


def test_two_reports_above_seventy_percent_make_a_bottleneck() -> None:
    answers = rounds(scaler_of(2), [0.72, 0.3], [0.9, 0.3])
    assert answers[0] == []
    assert answers[1] == [
        ScaleOut(Task("O", 0), 2, "O/0 was at 72% to 90% in 2 reports, above 70%: into 2"),
    ]


def test_a_report_at_the_threshold_or_a_dip_in_between_is_none() -> None:
    assert rounds(scaler_of(1), [0.7], [0.7], [0.9], [0.6], [0.9]) == [[]] * 5


def test_reports_around_a_gap_are_not_consecutive() -> None:
    """A task that was down, or moved, starts afresh; one that reports a little late does not."""
    scaler = scaler_of(1)
    assert rounds(scaler, [0.9]) == [[]]
    assert rounds(scaler, [0.9], start=60.0) == [[]]
    assert len(rounds(scaler, [0.9], start=66.0)[0]) == 1


def test_the_same_report_twice_counts_once() -> None:
    scaler = scaler_of(1)
    report = LoadReport(Task("O", 0), 5.0, 5.0, 4.5)
    assert scaler.observe([report]) == scaler.observe([report]) == []


def test_nothing_is_decided_while_a_change_is_under_way_nor_from_reports_of_before_it() -> None:
    scaler = scaler_of(1, settle=0.0)
    assert rounds(scaler, [0.9], [0.9])[1]
    assert scaler.under_way == {"O"}
    assert rounds(scaler, [0.9], [0.9], start=10) == [[], []]
    scaler.finished("O", split(Routing.even(1), 0, 2), at=23.0)
    assert not scaler.under_way
    # The report that ends at 25 began at 20, before the change.
    assert rounds(scaler, [0.9, 0.9], [0.9, 0.9], start=20) == [[], []]
    assert [type(d) for d in rounds(scaler, [0.9, 0.9], start=30)[0]] == [ScaleOut, ScaleOut]


def test_several_bottlenecks_of_an_operator_are_one_change_and_the_busiest_comes_first() -> None:
    routing = Routing.even(3)
    scaler = scaler_of(3)
    decisions = rounds(scaler, [0.8, 0.1, 0.9], [0.8, 0.1, 0.9])[1]
    assert [d.task.number for d in decisions if isinstance(d, ScaleOut)] == [2, 0]
    after = rerouted(routing, decisions)
    assert len(after.ranges) == 5
    assert after.version == 1


def test_other_operators_are_scaled_meanwhile() -> None:
    scaler = Scaler({"A": Routing.even(1), "B": Routing.even(1)})
    assert rounds(scaler, [0.9], [0.9], operator="A")[1]
    assert rounds(scaler, [0.9], [0.9], operator="B")[1]
    assert scaler.under_way == {"A", "B"}


def test_idle_neighbours_are_merged_after_six_reports() -> None:
    answers = rounds(scaler_of(3), *[[0.3, 0.1, 0.2]] * 6)
    assert answers[:5] == [[]] * 5
    # 0 and 1 together have 40 %, 1 and 2 have 30 %, which is below 35 %.
    why = "O/1 and O/2 together were at 30.0% or less in 6 reports, below 35%: into 1"
    assert answers[5] == [ScaleIn((Task("O", 1), Task("O", 2)), why)]


def test_one_busy_report_spoils_a_merger() -> None:
    rows = [[0.1, 0.1]] * 5 + [[0.1, 0.4]] + [[0.1, 0.1]] * 5
    assert rounds(scaler_of(2), *rows) == [[]] * 11


def test_pairs_are_disjoint_and_leave_the_least_parallelism() -> None:
    found = rounds(scaler_of(5), *[[0.01, 0.02, 0.03, 0.04, 0.05]] * 6)[5]
    assert [tuple(t.number for t in d.tasks) for d in found if isinstance(d, ScaleIn)] == [(0, 1), (2, 3)]
    found = rounds(scaler_of(5, min_parallelism=4), *[[0.01] * 5] * 6)[5]
    assert len(found) == 1
    assert rounds(scaler_of(5, per_operator={"O": (5, 9)}), *[[0.01] * 5] * 6)[5] == []


def test_limits_hold_and_are_said_once() -> None:
    scaler = scaler_of(2, max_parallelism=3)
    answers = rounds(scaler, [0.8, 0.9], [0.8, 0.9])
    assert [type(d) for d in answers[1]] == [ScaleOut, CannotScale]
    stuck = answers[1][1]
    assert isinstance(stuck, CannotScale)
    assert stuck.why == "O/0 stays at 80%: O may have at most 3 tasks"
    scaler.finished("O", rerouted(Routing.even(2), answers[1]), at=10.0)
    assert rounds(scaler, *[[0.8, 0.45, 0.45]] * 8, start=15) == [[]] * 8


def test_no_more_nodes_than_allowed_over_all_operators() -> None:
    policy = Policy(max_nodes=2, tasks_per_node=2)
    scaler = Scaler({"A": Routing.even(2), "B": Routing.even(1)}, policy)
    reports = [LoadReport(Task(o, n), t, 5.0, u * 5) for t in (5.0, 10.0) for o, n, u in (("A", 0, 0.8), ("B", 0, 0.9))]
    decisions = [*scaler.observe(reports[:2]), *scaler.observe(reports[2:])]
    assert [type(d) for d in decisions] == [ScaleOut, CannotScale]
    assert isinstance(decisions[0], ScaleOut)
    assert decisions[0].task == Task("B", 0)
    assert isinstance(decisions[1], CannotScale)
    assert "at most 2 nodes, 2 tasks each" in decisions[1].why
    assert policy.nodes(scaler.tasks) == 2


def test_a_change_that_fails_is_tried_again_ever_more_rarely() -> None:
    scaler = scaler_of(1, retry=10.0)
    waits, at = [], 0.0
    for _ in range(7):
        begun, answer = at, []
        while not answer:
            at += 5.0
            answer = scaler.observe([LoadReport(Task("O", 0), at, 5.0, 4.5)])
        waits.append(at - begun)
        scaler.abandoned("O", at)
    assert waits == [10, 20, 30, 50, 90, 170, 310]


def test_one_hot_key_is_given_up_with_the_reason() -> None:
    keys = Keys(np.array([123456789], np.uint32), np.array([3.0]))
    for measured in (False, True):
        scaler, made = drive({"O": (Routing.even(1), keys)}, Policy(), 200, measured=measured)
        kinds = [type(decision) for _, decision, _ in made]
        assert kinds.count(ScaleOut) == 3
        last = [d for _, d, _ in made if isinstance(d, CannotScale)]
        assert len(last) == 1
        assert last[0].why.endswith(
            "stays at 100%: each of the last 3 splits left at least 90% of the load in one part, so most of it must be "
            "one key, which cannot be split"
        )
        # Two empty tasks beside it were merged again; the rest of the ring is not cut any further.
        assert len(scaler.routings["O"].ranges) <= 4


def test_a_hot_key_that_cools_down_and_heats_up_again_is_tried_again() -> None:
    scaler = scaler_of(2, attempts=1, low_reports=9)
    routing = rerouted(Routing.even(2), rounds(scaler, [0.9, 0.6], [0.9, 0.6])[1])
    scaler.finished("O", routing, at=10.0)
    hot, cool = [0.9, 0.0, 0.6], [0.1, 0.3, 0.6]
    first = rounds(scaler, hot, hot, hot, start=15)
    assert [len(answer) for answer in first] == [0, 1, 0]
    assert isinstance(first[1][0], CannotScale)
    assert rounds(scaler, cool, cool, start=30) == [[], []]
    again = rounds(scaler, hot, hot, start=40)
    assert [type(d) for d in again[1]] == [ScaleOut]


def test_an_overload_of_many_cores_is_not_taken_for_a_hot_key() -> None:
    rng = np.random.default_rng(5)
    keys = Keys(rng.integers(0, RING, 2000).astype(np.uint32), np.full(2000, 12 / 2000))
    scaler, made = drive({"O": (Routing.even(1), keys)}, Policy(), 120)
    assert not [d for _, d, _ in made if isinstance(d, CannotScale)]
    assert max(keys.of(r) for r in scaler.routings["O"].ranges) <= 0.7


def test_splitting_by_the_measured_load_gets_there_in_fewer_changes_and_more_evenly() -> None:
    rng = np.random.default_rng(6)
    hashes = (rng.beta(2, 30, 3000) * RING).astype(np.uint32)
    keys = Keys(hashes, np.full(3000, 6 / 3000))
    by_hash, _ = drive({"O": (Routing.even(1), keys)}, Policy(), 200)
    by_load, made = drive({"O": (Routing.even(1), keys)}, Policy(), 200, measured=True)
    busiest = [max(keys.of(r) for r in one.routings["O"].ranges) for one in (by_load, by_hash)]
    assert by_load.routings["O"].version == 4 < by_hash.routings["O"].version
    # Four rounds of halving: 6 cores on 16 tasks, all alike.
    assert busiest[0] == pytest.approx(6 / 16, rel=0.01)
    assert busiest[0] < busiest[1]
    assert {type(d) for _, d, _ in made} == {ScaleOut}


LOADS = st.lists(
    st.tuples(st.integers(0, RING - 1), st.sampled_from([0.001, 0.02, 0.1, 0.3, 0.34, 0.36, 0.69, 0.71, 1.5])),
    min_size=1,
    max_size=25,
)
CUTS = st.lists(st.integers(1, RING - 1), max_size=6, unique=True)


def keys_of(points: list[tuple[int, float]]) -> Keys:
    return Keys(np.array([h for h, _ in points], np.uint32), np.array([u for _, u in points]))


def routing_of(cuts: list[int]) -> Routing:
    edges = [0, *sorted(cuts), RING]
    ranges = tuple(KeyRange(lo, hi) for lo, hi in itertools.pairwise(edges))
    return Routing(0, ranges, tuple(range(len(ranges))))


def check_settles(made: list[tuple[int, Decision, Routing]], length: int) -> None:
    """Quiet in the second half, and no split was ever undone: what was split is in nothing that was merged later."""
    assert all(turn <= length // 2 for turn, _, _ in made)
    split_before: list[KeyRange] = []
    merged_before: list[KeyRange] = []
    for _, decision, routing in made:
        match decision:
            case ScaleOut(task, _, _):
                (whole,) = routing.owned(task.number)
                assert whole not in merged_before
                split_before.append(whole)
            case ScaleIn(tasks, _):
                joined = range_of(routing, tasks)
                assert not any(joined.lo <= s.lo and s.hi <= joined.hi for s in split_before)
                merged_before.append(joined)


@SOME
@given(LOADS, CUTS, st.booleans(), st.sampled_from([2, 3, 4]), st.integers(0, 2))
def test_any_steady_load_comes_to_rest(
    points: list[tuple[int, float]], cuts: list[int], measured: bool, into: int, slow: int
) -> None:
    length = 600
    _, made = drive({"O": (routing_of(cuts), keys_of(points))}, Policy(into=into), length, measured=measured, slow=slow)
    check_settles(made, length)


@FEW
@given(LOADS, CUTS, st.integers(0, 2**31), st.sampled_from([0.3, 0.5, 0.7]))
def test_no_change_is_undone_though_reports_are_off_by_as_much_as_promised(
    points: list[tuple[int, float]], cuts: list[int], seed: int, low: float
) -> None:
    policy = Policy(low=low)
    rng = np.random.default_rng(seed)

    def noise() -> float:
        return float(rng.uniform(1 - 0.999 * policy.steady, 1 + 0.999 * policy.steady))

    length = 600
    _, made = drive({"O": (routing_of(cuts), keys_of(points))}, policy, length, noise=noise)
    outs = [whole for _, d, r in made if isinstance(d, ScaleOut) for whole in r.owned(d.task.number)]
    joined = [range_of(r, d.tasks) for _, d, r in made if isinstance(d, ScaleIn)]
    assert len(set(outs)) == len(outs)
    assert not set(outs) & set(joined)
    assert not any(m.lo <= s.lo and s.hi <= m.hi for m in joined for s in outs)


@FEW
@given(LOADS, st.integers(1, 12), st.integers(1, 9))
def test_limits_hold_for_any_load(points: list[tuple[int, float]], most: int, nodes: int) -> None:
    policy = Policy(max_parallelism=most, max_nodes=nodes)
    operators = {name: (Routing.even(1), keys_of(points)) for name in ("A", "B")}
    _, made = drive(operators, policy, 300)
    for _, _, routing in made:
        assert len(routing.ranges) <= most
    tasks = {"A": 1, "B": 1}
    for _, decision, _ in made:
        match decision:
            case ScaleOut(task, into, _):
                tasks[task.operator] += into - 1
            case ScaleIn(pair, _):
                tasks[pair[0].operator] -= 1
        assert max(tasks.values()) <= most
        assert sum(tasks.values()) <= max(nodes, 2)


def naive_first_decision(rows: list[list[float]], policy: Policy) -> tuple[int, list[int]] | None:
    """Plainly from all reports: the first round with bottlenecks or idle pairs, and the tasks that are split in it."""
    for turn in range(1, len(rows) + 1):
        seen = rows[:turn]
        hot = [
            i
            for i in range(len(rows[0]))
            if turn >= policy.reports and all(row[i] > policy.threshold for row in seen[-policy.reports :])
        ]
        idle = turn >= policy.low_reports and any(
            all(row[i] + row[i + 1] < policy.merge_below for row in seen[-policy.low_reports :])
            for i in range(len(rows[0]) - 1)
        )
        if hot or idle:
            return turn, sorted(hot)
    return None


@SOME
@given(
    st.integers(1, 5).flatmap(
        lambda n: st.lists(
            st.lists(st.sampled_from([0.05, 0.15, 0.2, 0.5, 0.7, 0.71, 0.9]), min_size=n, max_size=n),
            min_size=1,
            max_size=12,
        )
    ),
    st.integers(1, 3),
    st.integers(3, 5),
)
def test_detection_agrees_with_the_plain_reading(rows: list[list[float]], reports: int, low_reports: int) -> None:
    policy = Policy(reports=reports, low_reports=low_reports)
    answers = rounds(Scaler({"O": Routing.even(len(rows[0]))}, policy), *rows)
    found = next(
        (
            (turn, sorted(d.task.number for d in answer if isinstance(d, ScaleOut)))
            for turn, answer in enumerate(answers, 1)
            if answer
        ),
        None,
    )
    assert found == naive_first_decision(rows, policy)


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ({"threshold": 1.2}, "threshold must be above 0 and at most 1, a share of one core, got 1.2"),
        ({"threshold": float("nan")}, "threshold must be above 0"),
        ({"low": 1.0}, "low must be above 0 and below 1, or merged tasks would be split again, got 1"),
        ({"into": 5}, r"into must be 2 to 4 \(2 / low\), or the parts would be merged again, got 5"),
        ({"into": 1}, "into must be 2 to 4"),
        ({"reports": 0}, "reports must be 1 or more, got 0"),
        ({"reports": 7}, "low_reports must be at least reports = 7, got 6"),
        ({"every": 0}, "every must be more than 0 seconds, got 0"),
        ({"max_nodes": 0}, "max_nodes must be 1 or more, got 0"),
        ({"min_parallelism": 3, "max_parallelism": 2}, "max_parallelism must allow 1 task or more, got 3 to 2"),
        ({"per_operator": {"O": (2, 1)}}, "per_operator O must allow 1 task or more, got 2 to 1"),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(policy: dict[str, object], message: str) -> None:
    with pytest.raises(Invalid, match=f"^scaling policy: {message}"):
        Policy(**policy)  # type: ignore[arg-type]


def test_bad_reports_and_names_are_refused() -> None:
    with pytest.raises(Invalid, match="load of O/0: must cover more than 0 seconds, got 0"):
        LoadReport(Task("O", 0), 1.0, 0.0, 0.0)
    with pytest.raises(Invalid, match="load of O/0: CPU seconds must be 0 or more, got -1"):
        LoadReport(Task("O", 0), 1.0, 5.0, -1.0)
    with pytest.raises(Invalid, match="load of O/0: its time must be a number, got nan"):
        LoadReport(Task("O", 0), float("nan"), 5.0, 1.0)
    with pytest.raises(Invalid, match="no operator 'P' to scale, there is O"):
        scaler_of(1, per_operator={"P": (1, 2)})
    with pytest.raises(Invalid, match="scaling: no operator 'P', there is O"):
        scaler_of(1).abandoned("P", 0.0)
    with pytest.raises(Invalid, match="operator O has a task with several key ranges"):
        Scaler({"O": Routing(0, KeyRange.even(3), (0, 1, 0))})
    # A source, which nobody scales, may report all the same; so may a task that was merged away.
    assert rounds(scaler_of(1), [0.9], [0.9], operator="S") == [[], []]
