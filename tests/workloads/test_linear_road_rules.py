"""Linear Road's operators against the row-by-row implementation, in any cutting into epochs and any parallelism."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_linear_road import Answer, PlainLinearRoad

from holdfast import operators as op
from holdfast.workloads.linear_road.history import history
from holdfast.workloads.linear_road.pipeline import pipeline
from holdfast.workloads.linear_road.rules import ANSWERS

NAMES = ("type", "time", "vid", "spd", "xway", "lane", "dir", "seg", "pos", "qid", "day")
SCHEMA = pa.schema({name: pa.int32() for name in NAMES})
Row = dict[str, int]


def report(time: int, vid: int, spd: int, place: tuple[int, int, int, int], xway: int = 0) -> Row:
    lane, direction, seg, pos = place
    row = {"time": time, "vid": vid, "spd": spd, "xway": xway, "lane": lane, "dir": direction, "seg": seg, "pos": pos}
    return {**dict.fromkeys(NAMES, -1), **row, "type": 0}


def query(kind: int, time: int, vid: int, qid: int, day: int = -1) -> Row:
    return {**dict.fromkeys(NAMES, -1), "type": kind, "time": time, "vid": vid, "qid": qid, "day": day}


def table(rows: Sequence[Row]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=SCHEMA)


def spent(vid: int, day: int) -> int:
    rows = history([vid]).to_pylist()
    return next((row["expenditure"] for row in rows if row["day"] == day), 0)


def plain(rows: Sequence[Row]) -> list[Answer]:
    return in_order(PlainLinearRoad(spent).answers(rows))


def in_order(answers: list[Answer]) -> list[Answer]:
    return sorted(answers, key=lambda each: str(each[:4] + each[5:]))


def answered(rows: Sequence[Row], epochs: Sequence[int], parallelism: int) -> list[Answer]:
    """What the pipeline answers when an epoch ends before each of these rows."""
    cuts = [0, *sorted(epochs), len(rows)]
    trial = op.Trial(pipeline(parallelism=parallelism))
    found: list[Answer] = []
    for start, stop in pairwise(cuts):
        output = trial.epoch(table(rows[start:stop])).output
        assert output.schema.equals(ANSWERS)
        found += [tuple(row.values()) for row in output.to_pylist()]  # type: ignore[misc]
    return in_order(found)


def check(rows: Sequence[Row], epochs: Sequence[int], parallelism: int) -> list[Answer]:
    expected, found = plain(rows), answered(rows, epochs, parallelism)
    assert [each[:4] + each[5:] for each in found] == [each[:4] + each[5:] for each in expected]
    assert [each[4] is None for each in found] == [each[4] is None for each in expected]
    averages = [[each[4] for each in answers if each[4] is not None] for answers in (found, expected)]
    assert averages[0] == pytest.approx(averages[1], rel=1e-12)
    return expected


def crowd(seed: int, cars: int, minutes: int, segments: int) -> list[Row]:
    """A dense road: cars report every 30 s, stop, exit, come back, turn round and ask; hundreds of them."""
    draw = random.Random(seed)
    rows: list[Row] = []
    at = {vid: (draw.randrange(2), draw.randrange(segments * 5280), 1) for vid in range(cars)}
    slow = {vid: draw.choice([0, 10, 30, 40, 50]) for vid in range(cars)}
    phase = {vid: draw.randrange(30) for vid in range(cars)}
    for time in range(minutes * 60):
        for vid in range(cars):
            if time % 30 != phase[vid]:
                continue
            direction, pos, lane = at[vid]
            if draw.random() < 0.05:
                slow[vid] = draw.choice([0, 0, 20, 35, 40, 60])
            if slow[vid]:
                lane = draw.choice([1, 2, 3, 3, 4]) if draw.random() < 0.3 else lane
                pos = (pos + slow[vid] * 44 * (1 - 2 * direction)) % (segments * 5280)
            elif draw.random() < 0.15:
                lane, pos = 2, pos // 5280 * 5280 + 100  # several cars stop at the same place
            if draw.random() < 0.02:
                direction = 1 - direction
            at[vid] = (direction, pos, lane)
            rows.append(report(time, vid, slow[vid], (lane, direction, pos // 5280, pos)))
            if draw.random() < 0.05:
                rows.append(query(draw.choice([2, 3]), time, draw.randrange(cars), len(rows), draw.randrange(1, 80)))
    return rows


@pytest.mark.parametrize(
    ("seed", "parallelism", "epochs"),
    [(1, 1, 1), (2, 2, 7), (2, 3, 60), pytest.param(2, 2, 150, marks=pytest.mark.long)],
)
def test_a_crowd_gets_the_answers_of_the_plain_rules(seed: int, parallelism: int, epochs: int) -> None:
    rows = crowd(seed, 500, 9, 6)
    answers = check(rows, [len(rows) * i // epochs for i in range(1, epochs)], parallelism)
    kinds = {kind: sum(answer[0] == kind for answer in answers) for kind in ("toll", "accident", "balance")}
    assert min(kinds.values()) > 50
    assert sum((answer[5] or 0) > 0 for answer in answers) > 50
    assert sum(answer[0] == "balance" and (answer[6] or 0) > 0 for answer in answers) > 20


FEW = st.integers(0, 3)
ANY_ROW = st.one_of(
    st.builds(
        lambda vid, spd, lane, direction, pos, xway: (0, vid, spd, lane, direction, pos, xway),
        FEW, st.sampled_from([0, 39, 40, 41]), st.sampled_from([0, 1, 1, 1, 4]), st.integers(0, 1),
        st.sampled_from([5280, 5281, 10560, 15840, 31680]), st.integers(0, 1),
    ),
    st.builds(lambda vid: (2, vid, 0, 0, 0, 0, 0), FEW),
)  # fmt: skip


@settings(deadline=None, derandomize=True, max_examples=30)
@given(
    drawn=st.lists(st.tuples(st.sampled_from([0, 0, 0, 1, 7, 30, 59, 61, 400]), ANY_ROW), min_size=1, max_size=40),
    cuts=st.lists(st.integers(0, 40), max_size=5),
    parallelism=st.sampled_from([1, 2]),
)
def test_few_cars_that_behave_as_no_car_does(drawn: Any, cuts: list[int], parallelism: int) -> None:
    """Many reports a minute, jumps between expressways, coming back to a segment: any order of anything."""
    rows: list[Row] = []
    time = 0
    for step, (kind, vid, spd, lane, direction, pos, xway) in drawn:
        time += step
        if kind:
            rows.append(query(kind, time, vid, len(rows)))
        else:
            rows.append(report(time, vid, spd, (lane, direction, pos // 5280, pos), xway))
    check(rows, [min(cut, len(rows)) for cut in cuts], parallelism)


@pytest.mark.parametrize("cuts", [[], [60], [100, 150, 200]])
@pytest.mark.parametrize("tour", [(1, 2, 1), (1, 2, 3, 1), (1, 2, 3, 2, 1, 1)])
def test_a_car_counts_once_a_minute_however_often_it_comes_back_to_a_segment(
    tour: tuple[int, ...], cuts: list[int]
) -> None:
    rows = [
        report(step, vid, 10 + 7 * step + vid % 3, (1, 0, seg, seg * 5280 + vid))
        for step, seg in enumerate(tour)
        for vid in range(60)
    ]
    rows += [report(30, 70, 0, (1, 0, 1, 5280)), report(61, 71, 20, (1, 0, 1, 5280))]
    answers = check(rows, [min(cut, len(rows)) for cut in cuts], 2)
    entered = next(answer for answer in answers if answer[1] == 61)
    assert entered[5] == 2 * (61 - 50) ** 2


def test_charged_on_the_way_on_but_not_on_the_way_out() -> None:
    """Worked by hand: 60 slow cars make the segments 1 and 2 cost 200; one of them drives on, one leaves by lane 4."""
    rows = [report(0, vid, 20, (1, 0, seg, seg * 5280)) for seg in (1, 2) for vid in range(100 * seg, 100 * seg + 60)]
    rows += [report(60, vid, 20, (1, 0, 1, 5300)) for vid in (1, 2)]
    rows += [query(2, 60, 1, 1)]
    rows += [report(90, 1, 20, (1, 0, 2, 10600)), report(90, 2, 20, (4, 0, 1, 5900))]
    rows += [query(2, 90, 1, 2), query(2, 90, 2, 3)]
    rows += [report(100, 1, 20, (4, 0, 3, 15900)), report(100, 2, 20, (1, 0, 2, 10700)), query(2, 100, 1, 4)]
    answers = check(rows, [125, 127], 2)
    tolls = {(answer[2], answer[3]): (answer[4], answer[5]) for answer in answers if answer[1] in (60, 90)}
    assert tolls[1, 1] == tolls[2, 1] == (20.0, 200)
    assert tolls[1, 2] == (20.0, 200)
    balances = {answer[7]: answer[6] for answer in answers if answer[0] == "balance"}
    assert balances == {1: 0, 2: 200, 3: 0, 4: 400}
