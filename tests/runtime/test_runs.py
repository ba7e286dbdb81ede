"""Runs under way: what counts of them when they end, and how often the like is tried."""

from __future__ import annotations

from dataclasses import replace

import pytest
from driving import chain, task
from parts_alone import Words, found, heard, kinds, nodes, only, report

from holdfast.runtime.coordinator.facts import Committed, Joined, Lost, Refused
from holdfast.runtime.coordinator.parts import Parts
from holdfast.runtime.coordinator.runs import PATIENCE
from holdfast.runtime.messages import (
    CancelRun,
    EpochArrived,
    EpochJournalled,
    Halt,
    Record,
    Report,
    Run,
    RunBroken,
    RunDone,
    Work,
)

A = Work(task("A/0"), "a", "exact", "local", 5, 6, 6)
B = Work(task("B/0"), "b", "exact", "local", 5, 6, 6)


def at_six() -> tuple[Parts, Run]:
    """Epoch 6 is at hand, and a run of A/0 on node a and B/0 on node b answers it."""
    parts = found(chain(1, 1, 1), 2, 5)
    heard(parts.members, Joined(nodes("a", "b")), parts)
    heard(parts.answering, EpochArrived(6), parts)
    return parts, parts.runs.start("epoch", [A, B], parts, epoch=6, ingest=6)


def end(parts: Parts, run: Run, *reports: Report) -> Words:
    return heard(parts.runs, RunDone(run.number, reports), parts)


def test_a_run_is_under_way_until_it_is_told_of() -> None:
    parts, run = at_six()
    assert parts.runs.of("epoch") == run and parts.runs.of("replay") is None
    assert parts.runs.tasks() == {task("A/0"), task("B/0")}
    heard(parts.answering, EpochJournalled(6), parts)
    (done,) = end(parts, run, report(A), report(B))
    assert isinstance(done, Committed) and [work for work, _ in done.counted] == [A, B] and done.current
    assert not parts.runs.under_way
    assert end(parts, run, report(A), report(B)) == [], "it is over"


def test_what_nodes_did_that_were_lost_meanwhile_is_void() -> None:
    parts, run = at_six()
    assert heard(parts.runs, Lost(frozenset({"b"})), parts) == [CancelRun(run.number)]
    heard(parts.members, Lost(frozenset({"b"})), parts)
    heard(parts.members, Joined(nodes("b", of="2")), parts)
    heard(parts.answering, EpochJournalled(6), parts)
    (done,) = end(parts, run, report(A), report(B))
    assert isinstance(done, Committed) and [work for work, _ in done.counted] == [A], "though its name is back"
    assert len(done.reports) == 2


def test_what_a_lost_node_lacked_is_no_reason_to_give_a_copy_up() -> None:
    parts, run = at_six()
    heard(parts.runs, Lost(frozenset({"b"})), parts)
    (refused,) = end(parts, run, report(A), report(B, "missing"))
    assert refused == Refused(run, ()) and not parts.runs.attempts


def test_an_epoch_that_is_done_before_it_is_journalled_is_a_mistake_of_the_shell() -> None:
    parts, run = at_six()
    with pytest.raises(AssertionError, match="run 0 is done, but its epoch 6 is not journalled"):
        end(parts, run, report(A), report(B))


def test_a_run_that_is_not_whole_need_not_be_journalled() -> None:
    parts, run = at_six()
    assert isinstance(end(parts, run, report(A), report(B, "blocked"))[0], Refused)


@pytest.mark.parametrize("status", ["blocked", "damaged", "missing"])
def test_a_reason_that_comes_again_and_again_ends_the_job_with_what_was_tried(status: str) -> None:
    parts, run = at_six()
    for tried in range(1, PATIENCE + 1):
        assert not any(isinstance(each, Halt) for each in end(parts, run, report(A), report(B, status)))
        run = parts.runs.start("epoch", [A, B], parts, epoch=6, ingest=6)
        assert run.attempt == tried
    message = only(Halt, end(parts, run, report(A), report(B, status))).message
    assert message == f"B/0 was {status} 6 times in a row, in epoch runs up to 5; at last: it is {status}"


def test_several_that_fail_together_end_the_job_once() -> None:
    parts, run = at_six()
    for _ in range(PATIENCE):
        end(parts, run, report(A, "damaged"), report(B, "damaged"))
        run = parts.runs.start("epoch", [A, B], parts, epoch=6)
    assert kinds(end(parts, run, report(A, "damaged"), report(B, "damaged"))).count("Halt") == 1


def test_a_store_that_takes_nothing_is_waited_for() -> None:
    parts, run = at_six()
    for _ in range(3 * PATIENCE):
        assert not any(isinstance(each, Halt) for each in end(parts, run, report(A), report(B, "unusable")))
        run = parts.runs.start("epoch", [A, B], parts, epoch=6, ingest=6)
    assert run.attempt == 0


def test_what_spark_runs_elsewhere_is_told_and_repeated_after_pauses_as_often_as_it_takes() -> None:
    parts, run = at_six()
    for tries in range(PATIENCE + 3):
        assert run.attempt == tries
        said = end(parts, run, report(A), report(B, "misplaced"))
        assert only(Record, said).fields["tasks"] == ["B/0"] and "Halt" not in kinds(said)
        assert not list(parts.runs.check(parts))
        run = parts.runs.start("epoch", [A, B], parts, epoch=6, ingest=6)
    heard(parts.answering, EpochJournalled(6), parts)
    end(parts, run, report(A), report(B))
    assert parts.runs.start("epoch", [A, B], parts, epoch=7, ingest=7).attempt == 0


def test_success_forgives_those_who_took_part_and_nobody_else() -> None:
    parts, run = at_six()
    end(parts, run, report(A, "damaged"), report(B, "damaged"))
    heard(parts.answering, EpochJournalled(6), parts)
    alone = parts.runs.start("epoch", [A], parts, epoch=6)
    assert alone.attempt == 1
    end(parts, alone, report(A))
    assert dict(parts.runs.attempts) == {("epoch", "damaged", "B/0"): 1}
    assert parts.runs.start("replay", [B], parts).attempt == 0, "another kind of run"


def test_a_barrier_that_does_not_come_where_others_failed_does_not_count() -> None:
    parts, run = at_six()
    end(parts, run, report(A, "missing"), report(B, "blocked"))
    assert set(parts.runs.attempts) == {("epoch", "missing", "A/0")}


def test_runs_that_break_for_no_reason_end_the_job_at_last() -> None:
    parts, run = at_six()
    for _ in range(PATIENCE):
        assert kinds(heard(parts.runs, RunBroken(run.number, "who knows"), parts)) == ["run broken"]
        run = parts.runs.start("epoch", [A, B], parts, epoch=6)
    said = heard(parts.runs, RunBroken(run.number, "who knows"), parts)
    assert only(Halt, said).message == "runs were broken 6 times in a row, in epoch runs up to 5; at last: who knows"


def test_runs_that_break_because_nodes_went_are_repeated_as_often_as_it_takes() -> None:
    parts, run = at_six()
    for _ in range(3 * PATIENCE):
        heard(parts.runs, Lost(frozenset({"b"})), parts)
        assert kinds(heard(parts.runs, RunBroken(run.number, "nodes were lost"), parts)) == ["run broken"]
        run = parts.runs.start("epoch", [A, B], parts, epoch=6)
    assert run.attempt == 0


def test_a_function_that_raises_is_tried_once_more_and_one_of_io_as_often_as_anything() -> None:
    parts, run = at_six()
    raised = report(B, "failed", raised="its traceback")
    for _ in range(PATIENCE):
        said = end(parts, run, report(A), report(B, "failed", raised="its traceback", may_pass=True))
        assert kinds(said) == ["Refused", "run broken"]
        run = parts.runs.start("epoch", [A, B], parts, epoch=6, ingest=6)
    assert run.attempt == PATIENCE and kinds(end(parts, run, report(A), raised)) == ["Refused", "run broken"]
    run = parts.runs.start("epoch", [A, B], parts, epoch=6, ingest=6)
    assert only(Halt, end(parts, run, report(A), raised)) == Halt("it is failed", "its traceback")
    parts, run = at_six()
    for _ in range(3):
        end(parts, run, report(A), raised)
        run = parts.runs.start("epoch", [A, B], parts, epoch=6, ingest=6)
        heard(parts.answering, EpochJournalled(6), parts)
        assert "Halt" not in kinds(end(parts, run, report(A), report(B))), "what succeeds is forgiven"
        run = parts.runs.start("epoch", [A, B], parts, epoch=6)


def test_a_function_that_breaks_its_contract_ends_the_job_at_once_but_for_a_fork() -> None:
    parts, run = at_six()
    assert kinds(end(parts, run, report(A), report(B, "failed"))) == ["Refused", "failed", "Halt"]
    parts, _ = at_six()
    fork = replace(B, lane="tentative")
    run = parts.runs.start("epoch", [A, fork], parts, epoch=6)
    assert kinds(end(parts, run, report(A), report(fork, "failed"))) == ["Refused"]


def test_what_does_not_hold_is_told() -> None:
    parts, _ = at_six()
    assert list(parts.runs.check(parts)) == []
    parts.runs.start("epoch", [A], parts, epoch=6)
    parts.runs.attempts["epoch", "damaged", "A/0"] = PATIENCE + 2
    assert list(parts.runs.check(parts)) == [
        "2 epoch runs are under way at once",
        "the exact copy of A/0 on a is worked on by 2 runs at once",
        "epoch damaged A/0: tried 7 times",
    ]
