"""How late an answer is after a failure (benchmarks/failover.py), and what its two systems are started with."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def lateness(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return pytest.importorskip("lateness")


@pytest.fixture
def failover(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return pytest.importorskip("failover")


def answered(pace: float, count: int, jitter: float = 0.0, begin: float = 100.0) -> dict[int, float]:
    drawn = random.Random(1)
    return {epoch: begin + epoch * pace + drawn.uniform(-jitter, jitter) for epoch in range(count)}


@pytest.mark.parametrize(
    ("interval", "pace"), [(1.0, 1.0), (0.2, 0.2), (None, 0.37), (0.2, 0.5)], ids=["1 s", "0.2 s", "none", "too fast"]
)
def test_an_answer_on_schedule_is_not_late_whatever_the_trigger(
    lateness: Any, interval: float | None, pace: float
) -> None:
    answers = answered(pace, 20, jitter=0.005)
    killed = answers[11] + 0.3 * pace
    kept = lateness.schedule(answers, killed, interval)
    assert kept.pace == (interval if interval == pace else pytest.approx(pace, abs=0.01))
    found = lateness.outcome(killed, answers, answers, kept)
    assert found.late == pytest.approx(0.0, abs=0.05) and found.worst == pytest.approx(0.0, abs=0.05)
    assert found.answer == pytest.approx(0.7 * pace, abs=0.02) and found.exact_by == 1


def test_the_wait_for_the_next_trigger_is_in_the_answer_and_not_in_its_lateness(lateness: Any) -> None:
    answers = answered(1.0, 10)
    killed = answers[9] + 0.01
    kept = lateness.schedule(answers, killed, 1.0)
    found = lateness.outcome(killed, answers | {10: answers[9] + 1.15}, {10: answers[9] + 1.15}, kept)
    assert found.answer == pytest.approx(1.14) and found.late == pytest.approx(0.15)


def test_the_latest_of_three_answers_is_told_beside_the_next_one(lateness: Any) -> None:
    answers = answered(1.0, 10)
    killed = answers[9] + 0.5
    after = {10: answers[9] + 1.0, 11: answers[9] + 4.5, 12: answers[9] + 5.0, 13: answers[9] + 90.0}
    found = lateness.outcome(killed, answers | after, answers | after, lateness.schedule(answers, killed, 1.0))
    assert (found.late, found.worst) == (pytest.approx(0.0), pytest.approx(2.5))


def test_exact_is_the_first_epoch_behind_which_nothing_lacks(lateness: Any) -> None:
    answers = answered(1.0, 14)
    killed = answers[9] + 0.5
    kept = lateness.schedule(answers, killed, 1.0)
    whole = {**answers, 11: None}  # the answer of epoch 10 was on its way already when nodes died
    found = lateness.outcome(killed, answers, whole, kept)
    assert found.exact_by == 3 and found.exact == pytest.approx(answers[12] - killed)
    never = lateness.outcome(killed, answers, {**answers, 13: None}, kept)
    assert (never.exact, never.exact_by) == (None, None) and never.late is not None
    silent = lateness.outcome(killed, answered(1.0, 10), whole, kept)
    assert (silent.answer, silent.late, silent.exact) == (None, None, None)


def test_few_answers_make_no_schedule(lateness: Any) -> None:
    with pytest.raises(ValueError, match="7 answers before the kill make no schedule, 8 are needed"):
        lateness.schedule(answered(1.0, 20), 106.5, 1.0)


def history() -> list[dict[str, Any]]:
    """Killed at 10.0, in the middle of epoch 7."""
    whole = {"absent": 0, "tentative": 0}
    said = {"kind": "published", "rows": 5, "of": "tentative", "fidelity": 0.9}
    return [
        {**said, "time": 9.0, "epochs": [6], "run": 6, "fidelity": 1.0},
        {"kind": "epoch", "time": 9.0, "epoch": 6, **whole},
        {"kind": "nodes lost", "time": 10.1, "nodes": ["node-1"]},
        {"kind": "nodes lost", "time": 10.15, "nodes": ["node-2"]},
        {"kind": "run broken", "time": 10.25, "run": 7},
        {"kind": "run", "time": 10.8, "run": 8, "of": "epoch", "seconds": 0.5, "restored": 0.2},
        {**said, "time": 10.85, "epochs": [7], "run": 8},
        {"kind": "answered", "time": 10.86, "epoch": 7, "seconds": 0.96},
        {"kind": "epoch", "time": 10.86, "epoch": 7, "absent": 0, "tentative": 2},
        {"kind": "run", "time": 11.3, "run": 9, "of": "replay", "seconds": 0.4},
        {**said, "time": 11.32, "epochs": [5, 6, 7], "run": 9, "of": "final"},
        {"kind": "run", "time": 12.3, "run": 10, "of": "epoch", "seconds": 0.4},
        {**said, "time": 12.35, "epochs": [8], "run": 10, "of": "final", "fidelity": 1.0},
        {"kind": "answered", "time": 12.36, "epoch": 8, "seconds": 0.46},
        {"kind": "epoch", "time": 12.36, "epoch": 8, **whole},
    ]


def test_where_the_time_of_a_recovery_went_adds_up(lateness: Any) -> None:
    events = history()
    assert lateness.answers_of(events) == {6: 9.0, 7: 10.85, 8: 12.35}, "a replay is not the answer of its epoch"
    assert lateness.whole_of(events) == {6: 9.0, 7: None, 8: 12.36}
    found = lateness.parts(10.0, events, 8)
    assert list(found) == [*lateness.ANSWER, *lateness.EXACT]
    assert list(found.values()) == pytest.approx([0.15, 0.1, 0.0, 0.05, 0.2, 0.3, 0.05, 0.4, 0.6, 0.51])
    assert sum(found.values()) == pytest.approx(12.36 - 10.0)
    assert list(lateness.parts(10.0, events, None)) == list(lateness.ANSWER)
    assert lateness.parts(10.0, events[:2], None) is None and lateness.parts(10.0, events[:6], None) is None


def test_time_until_the_next_trigger_is_no_part_of_a_decision(lateness: Any) -> None:
    events = [event for event in history() if event["kind"] != "run broken"]
    came = [
        event | ({"seconds": 0.6} if event["kind"] == "answered" and event["epoch"] == 7 else {}) for event in events
    ]
    found = lateness.parts(10.0, came, 8)
    assert (found["called off"], found["not due"], found["decided"]) == pytest.approx((0.0, 0.11, 0.04))


def test_the_same_settings_are_the_same(failover: Any) -> None:
    from failing import settings_of

    one, two = (settings_of(system, "same") for system in failover.SYSTEMS)
    assert one == two and "spark.shuffle.io.maxRetries" in one
    assert settings_of("holdfast", "chosen") != settings_of("structured", "chosen")


def test_systems_meet_the_same_moments_by_turns_and_all_of_an_epoch(failover: Any) -> None:
    asked = Namespace(repeat=4, trigger=[1.0, 0.2, None], seed=3, epochs=10, seconds=6.0)
    made = list(failover.turns(asked, "same", 100_000))
    assert made == list(failover.turns(asked, "same", 100_000)), "the seed decides"
    assert made != list(failover.turns(Namespace(**{**vars(asked), "seed": 4}), "same", 100_000))
    for one, two in made:
        assert {one.system, two.system} == set(failover.SYSTEMS)
        assert (one.moment, one.victims, one.interval) == (two.moment, two.victims, two.interval)
    assert [each[0].system for each in made] == ["structured"] * 3 + ["holdfast"] * 3 + ["structured"] * 3 + [
        "holdfast"
    ] * 3
    for interval in asked.trigger:
        moments = [each[0].moment for each in made if each[0].interval == interval]
        assert [int(moment * 4) for moment in moments] == [0, 1, 2, 3], "each quarter of an epoch has its kill"


def test_runs_that_were_never_answered_count_as_the_deadline(failover: Any) -> None:
    well = {"answer": 1.0, "late": 0.1, "worst": 0.2, "exact": 2.0, "exact_by": 2, "pace": 1.0, "fidelity": 0.9,
            "parts": {"noticed": 0.1}}  # fmt: skip
    never = {**dict.fromkeys(well), "pace": 1.0}
    found = failover.summary([well, never])
    assert found["late"] == {"median": 30.05, "least": 0.1, "most": 60.0} and found["unanswered"] == 1
    assert found["exact_by"]["most"] == 2 and found["parts"] == {"noticed": 0.1}
    assert "unanswered" not in failover.summary([well])


@pytest.mark.long
def test_both_systems_answer_and_become_exact(tmp_path: Path) -> None:
    script = [sys.executable, str(BENCHMARKS / "failover.py"), "--quick", "--settings", "same"]
    subprocess.run([*script, "--json", str(tmp_path / "found.json")], check=True, timeout=280)
    (row,) = json.loads((tmp_path / "found.json").read_text())["rows"]
    assert row["turns"] == 1 and list(row["systems"]) == ["structured", "holdfast"]
    for found in row["systems"].values():
        assert "unanswered" not in found and found["exact_by"]["median"] >= 1
    parts = row["systems"]["holdfast"]["parts"]
    assert parts["noticed"] > 0 and "caught up" in parts, "two of four tasks were lost and had to catch up"
