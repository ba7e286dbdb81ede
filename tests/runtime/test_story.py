"""Recoveries as a history tells them: which losses are one failure, and when everything was exact again."""

from __future__ import annotations

from typing import Any

from holdfast.runtime.history.narrative import recoveries


def lost(time: float, *nodes: str, epoch: int = 3, down: tuple[str, ...] = ()) -> dict[str, Any]:
    told = {"time": time, "kind": "nodes lost", "nodes": list(nodes), "cause": "executor lost", "epoch": epoch}
    return {**told, "down": list(down), "alive": 1}


def answer(time: float, epoch: int, absent: int = 0) -> dict[str, Any]:
    fidelity = 1.0 if not absent else 0.5
    return {
        "time": time, "kind": "epoch", "epoch": epoch, "absent": absent, "tentative": 0, "fidelity": fidelity,
    }  # fmt: skip


def published(time: float, of: str = "final") -> dict[str, Any]:
    return {"time": time, "kind": "published", "of": of, "epochs": [3], "tasks": ["A/0"], "run": 1}


def saved(time: float, epoch: int) -> dict[str, Any]:
    return {"time": time, "kind": "checkpoint", "epoch": epoch, "bytes": 1}


def test_losses_close_together_are_one_failure() -> None:
    told = recoveries(
        [lost(10.0, "a", down=("A/0",)), lost(10.2, "b", "c", down=("A/1",)), answer(11.0, 3, 2), answer(12.0, 4)]
    )
    assert len(told) == 1 and told[0].nodes == ["a", "b", "c"] and told[0].down == ["A/0", "A/1"]
    assert (told[0].answered_after, told[0].exact_after) == (1.0, 2.0)


def test_a_loss_behind_an_answer_or_much_later_is_another_failure() -> None:
    assert len(recoveries([lost(10.0, "a"), answer(10.3, 3, 1), lost(10.5, "b")])) == 2
    assert len(recoveries([lost(10.0, "a"), lost(11.5, "b")])) == 2


def test_a_stream_that_ends_before_an_exact_epoch_is_exact_with_its_last_output() -> None:
    events = [lost(10.0, "a"), answer(11.0, 3, 1), published(11.0, "tentative"), published(13.5), saved(14.0, 3)]
    assert recoveries(events)[0].exact_after == 3.5


def test_a_checkpoint_that_was_under_way_at_the_failure_says_nothing() -> None:
    events = [published(9.0), lost(10.0, "a", epoch=3), saved(10.1, 2), answer(11.0, 3, 1)]
    assert recoveries(events)[0].exact_after is None
