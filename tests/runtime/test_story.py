"""Recoveries as a history tells them: which losses are one failure, what counts as an answer, when all was exact."""

from __future__ import annotations

from typing import Any

from holdfast.runtime.history.narrative import recoveries


def lost(time: float, *nodes: str, epoch: int = 3, down: tuple[str, ...] = ()) -> dict[str, Any]:
    told = {"time": time, "kind": "nodes lost", "nodes": list(nodes), "cause": "executor lost", "epoch": epoch}
    return {**told, "down": list(down), "alive": 1}


def published(time: float, of: str = "final", epoch: int = 3, rows: int = 7, fidelity: float = 1.0) -> dict[str, Any]:
    told = {"time": time, "kind": "published", "of": of, "epochs": [epoch], "tasks": ["A/0"], "run": 1}
    return {**told, "rows": rows, "fidelity": fidelity}


def processed(time: float, epoch: int, absent: int = 0, fidelity: float = 1.0) -> dict[str, Any]:
    return {
        "time": time, "kind": "epoch", "epoch": epoch, "absent": absent, "tentative": 0, "fidelity": fidelity,
    }  # fmt: skip


def answer(time: float, epoch: int, absent: int = 0) -> list[dict[str, Any]]:
    """An epoch and its rows, in the order in which the runtime tells them."""
    fidelity = 1.0 if not absent else 0.5
    of = "tentative" if absent else "final"
    return [published(time, of, epoch, fidelity=fidelity), processed(time, epoch, absent, fidelity)]


def saved(time: float, epoch: int) -> dict[str, Any]:
    return {"time": time, "kind": "checkpoint", "epoch": epoch, "bytes": 1}


def replayed(begun: float, time: float, last: int = 3) -> list[dict[str, Any]]:
    told = {"time": begun, "kind": "replay", "run": 9, "first": 3, "last": last, "tasks": ["A/0"]}
    return [
        {**told, "on_the_side": [], "from_buffers": []},
        {"time": time, "kind": "run", "run": 9, "of": "replay", "seconds": time - begun},
    ]


def test_losses_close_together_are_one_failure() -> None:
    told = recoveries(
        [lost(10.0, "a", down=("A/0",)), lost(10.2, "b", "c", down=("A/1",)), *answer(11.0, 3, 2), *answer(12.0, 4)]
    )
    assert len(told) == 1 and told[0].nodes == ["a", "b", "c"] and told[0].down == ["A/0", "A/1"]
    assert (told[0].answered_after, told[0].exact_after) == (1.0, 2.0)
    assert told[0].silent is None


def test_the_last_promise_for_an_epoch_is_for_all_who_were_lost_before_it_and_none_for_the_next_counts() -> None:
    first, second = {**lost(10.0, "a"), "promised": 0.9}, {**lost(10.2, "b"), "promised": 0.7}
    third = {**lost(10.4, "c", epoch=4), "promised": None}
    (told,) = recoveries([first, second, third, *answer(10.6, 3, 2)])
    assert told.nodes == ["a", "b", "c"] and (told.promised, told.answered_fidelity) == (0.7, 0.5)


def test_a_loss_behind_an_answer_or_much_later_is_another_failure() -> None:
    assert len(recoveries([lost(10.0, "a"), *answer(10.3, 3, 1), lost(10.5, "b")])) == 2
    assert len(recoveries([lost(10.0, "a"), lost(11.5, "b")])) == 2


def test_an_answer_with_nothing_in_it_is_no_answer() -> None:
    events = [*answer(9.0, 2), lost(10.0, "a"), processed(10.7, 3, 2, 0.0), processed(11.7, 4, 2, 0.0)]
    (told,) = recoveries(events)
    assert (told.answered_after, told.answered_fidelity) == (None, None)
    assert told.silent == 1.7 and told.least_fidelity == 0.0 and told.exact_after is None
    (told,) = recoveries([*events, *answer(14.5, 5, 1)])
    assert (told.answered_after, told.answered_fidelity, told.silent) == (4.5, 0.5, 4.5)
    said = told.as_json()
    assert said["answered_after_s"] == said["silent_s"] == 4.5 and said["exact_after_s"] is None


def test_rows_count_and_not_the_word_that_something_was_published() -> None:
    """Nor rows of an epoch from before the failure, nor rows that no query asked for."""
    events = [
        lost(10.0, "a"),
        published(10.5, rows=0),
        published(10.6, epoch=2),
        published(10.7, fidelity=0.0),
        processed(11.0, 3, 1, 0.0),
    ]
    (told,) = recoveries(events)
    assert told.answered_after is None and told.silent == 1.0
    (told,) = recoveries([*events, *replayed(11.5, 13.0), published(13.1, rows=4, fidelity=0.25)])
    assert (told.answered_after, told.answered_fidelity) == (3.1, 0.25)


def test_an_exact_epoch_without_rows_is_an_answer_for_it_says_that_there_are_none() -> None:
    (told,) = recoveries([lost(10.0, "a"), processed(10.5, 3)])
    assert (told.answered_after, told.answered_fidelity, told.silent) == (0.5, 1.0, None)


def test_a_stream_that_ends_before_an_exact_epoch_is_exact_with_its_last_output() -> None:
    events = [lost(10.0, "a"), *answer(11.0, 3, 1), published(13.5), saved(14.0, 3)]
    assert recoveries(events)[0].exact_after == 3.5


def test_output_of_the_survivors_does_not_make_exact_what_is_still_being_replayed() -> None:
    events = [lost(10.0, "a"), published(10.7), processed(10.7, 3, 1, 0.5), *replayed(11.0, 13.0), saved(14.0, 3)]
    (told,) = recoveries(events)
    assert (told.answered_after, told.exact_after) == (0.7, 3.0)


def test_a_stream_that_ended_before_it_was_exact_never_was() -> None:
    """Final rows from before the failure say nothing of it: that was told as exact after 0.0 s."""
    events = [*answer(9.0, 2), lost(10.0, "a"), processed(11.0, 3, 1, 0.0), *replayed(11.0, 13.0)]
    stopped = {"time": 11.1, "kind": "stopped", "error": None}
    (told,) = recoveries([*events, stopped, saved(14.0, 3)])
    assert told.exact_after is None and told.as_json()["exact_after_s"] is None
    assert told.saved_after == 4.0 and told.answered_after is None and told.silent == 4.0
    (told,) = recoveries([*events, saved(14.0, 3), *answer(15.0, 4)])
    assert (told.exact_after, told.saved_after) == (5.0, 4.0)


def test_a_checkpoint_that_was_under_way_at_the_failure_says_nothing() -> None:
    events = [published(9.0), lost(10.0, "a", epoch=3), saved(10.1, 2), *answer(11.0, 3, 1)]
    assert recoveries(events)[0].exact_after is None


def test_a_replica_that_takes_over_before_its_node_is_missed_belongs_to_the_failure() -> None:
    promoted = {"time": 9.97, "kind": "promoted", "tasks": ["A/0"], "epoch": 3}
    (failure,) = recoveries([promoted, lost(10.0, "node-1")])
    assert failure.promoted == ["A/0"]
    (failure,) = recoveries([{**promoted, "time": 2.0}, lost(10.0, "node-1")])
    assert failure.promoted == []
