"""A run in a few sentences, and how it stands: exact, recovering, ended too soon, failed, or silent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from histories import epoch, half_lost, silent, written

from holdfast.report.digest import digest, digest_events


def until(kind: str, events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The events up to the first of a kind, with it."""
    return events[: next(number for number, event in enumerate(events) if event["kind"] == kind) + 1]


def test_a_recovery_is_told_from_the_loss_to_the_exact_answer() -> None:
    told = digest_events(half_lost(), "run")
    assert told["standing"] == {"level": "good", "text": "Ended in good order, all exact"}
    work, failure, tentative = told["short"]
    assert work == "5 epochs were answered in 6.0 s on 4 nodes."
    assert failure.startswith(
        "At 2.6 s, in epoch 2, node-1 and node-2 were lost, and 2 of 5 tasks with them; replicas took over 1 other. "
        "The next answer came 0.5 s after the loss, with 50% of the whole, by its fidelity."
    )
    assert failure.endswith("after the loss everything was exact and caught up.")
    assert tentative == "1 tentative output went out meanwhile; all of it exact by now."


def test_while_it_recovers_it_says_so() -> None:
    events = half_lost()
    lost = digest_events(until("nodes lost", events), "run")
    assert lost["standing"]["level"] == "fair" and lost["standing"]["text"].startswith("Recovering: ")
    assert lost["short"][1].endswith("It is not exact again yet.")


def test_a_run_that_ended_too_soon_or_failed_is_not_well() -> None:
    events = until("promoted", half_lost())
    events.append(epoch(events[-1]["time"] + 0.5, 2, {"count/1": "absent", "top/0": "tentative"}, 0.5))
    stopped = {"time": events[-1]["time"] + 1, "kind": "stopped", "error": None}
    told = digest_events([*events, stopped], "run")
    assert told["standing"] == {
        "level": "bad",
        "text": "Ended before it had recovered: 2 tasks not exact, fidelity 0.500",
    }
    assert told["short"][1].endswith("The run ended before it was exact again.")
    failed = digest_events([*events, {**stopped, "error": "task count/1: no such column"}], "run")
    assert failed["standing"] == {"level": "bad", "text": "The job failed: task count/1: no such column"}
    checkpoint = {"time": stopped["time"] + 1, "kind": "checkpoint", "epoch": 2, "bytes": 1}
    caught_up = digest_events([*events, stopped, checkpoint], "run")
    assert caught_up["standing"]["level"] == "good", "a checkpoint is the exact state of every task"
    assert caught_up["recoveries"][0]["exact_after_s"] is None, "nobody got an exact answer after the loss"
    assert caught_up["short"][1].endswith("The stream ended before an answer was exact again; its last checkpoint is.")


def test_an_answer_with_nothing_in_it_is_told_as_silence() -> None:
    told = digest_events(silent(), "run")
    work, failure = told["short"][:2]
    assert work.startswith("5 epochs were processed")
    assert "It was silent for 1.3 s; then an answer came, and was exact." in failure and "next answer" not in failure
    events = silent()
    cut = next(number for number, event in enumerate(events) if event["kind"] == "replay")
    failure = digest_events(events[:cut], "run")["short"][1]
    assert "It was silent for 0.7 s: no row came out since." in failure


def test_nodes_that_go_after_the_end_are_no_failure() -> None:
    events = half_lost()
    gone = {
        "time": events[-1]["time"] + 1, "kind": "nodes lost", "nodes": ["node-0"], "cause": "executor lost",
        "epoch": 5, "down": ["count/0"], "alive": 3,
    }  # fmt: skip
    assert len(digest_events([*events, gone], "run")["recoveries"]) == 1


def test_a_history_without_an_end_is_running_or_killed(tmp_path: Path) -> None:
    told = digest(written(tmp_path / "run", until("answered", half_lost())))
    assert told["standing"]["level"] == "fair"
    assert told["standing"]["text"].startswith(
        "Still running, or killed: the history has no end; last heard 1970-01-01"
    )


def test_a_store_that_refuses_is_the_first_thing_to_know() -> None:
    events = until("answered", half_lost())
    refused = {
        "time": events[-1]["time"] + 1,
        "kind": "store unusable",
        "message": "No space left",
        "retry_seconds": 1.0,
    }
    told = digest_events([*events, refused], "run")
    assert told["standing"] == {"level": "bad", "text": "Waiting for the store: No space left"}
    assert told["timeline"][-1]["title"] == "the store takes nothing: the job waits"
    taken = {"time": refused["time"] + 2, "kind": "store usable", "after_seconds": 2.0}
    told = digest_events([*events, refused, taken], "run")
    assert told["standing"]["text"] == "Running, every answer exact"
    assert told["timeline"][-1]["detail"] == "after 2.0 s"
