"""Checkpoints: when one is taken, upon what, and how often one may fail."""

from __future__ import annotations

from driving import chain, task
from parts_alone import found, heard, kinds, nodes, only

from holdfast.runtime.coordinator.facts import CheckpointSaved, Copy, FellBack, Joined, Lost, Unsound
from holdfast.runtime.coordinator.parts import Parts
from holdfast.runtime.messages import (
    CancelCheckpoint,
    CheckpointBroken,
    CheckpointDurable,
    CheckpointLost,
    CheckpointWanted,
    EpochArrived,
    Halt,
    TakeCheckpoint,
    TrimJournal,
)

A, B = task("A/0"), task("B/0")


def due(**settings: object) -> Parts:
    """S -> A/0 -> B/0 on nodes a and b; everything is at epoch 5, the checkpoint at 2, and one is due every 3."""
    parts = found(chain(1, 1, 1), 2, 5, **{"checkpoint_every": 3, "recovery": "blocking", **settings})
    heard(parts.members, Joined(nodes("a", "b")), parts)
    parts.assignment.primaries.update({A: Copy("a", 5, fresh=False), B: Copy("b", 5, fresh=False)})
    return parts


def take(parts: Parts) -> TakeCheckpoint:
    (taken,) = parts.checkpointing.take(parts)
    assert isinstance(taken, TakeCheckpoint)
    return taken


def test_one_is_taken_at_the_head_upon_the_last_one() -> None:
    parts = due()
    assert take(parts) == TakeCheckpoint(5, 2, {A: "a", B: "b"})
    assert list(parts.checkpointing.take(parts)) == [], "one at a time"
    said = heard(parts.checkpointing, CheckpointDurable(5, 77), parts)
    assert kinds(said) == ["checkpoint", "CheckpointSaved", "TrimJournal"]
    assert only(CheckpointSaved, said).epoch == only(TrimJournal, said).epoch == parts.checkpointing.durable == 5


def test_none_is_taken_before_outputs_are_in_their_place() -> None:
    parts = due()
    parts.answering.publishing.add((1, "final"))
    assert list(parts.checkpointing.take(parts)) == []
    parts.answering.publishing.clear()
    parts.answering.publishing.add((1, "tentative"))
    take(parts)


def test_none_is_taken_while_something_is_down_or_behind_or_an_epoch_runs() -> None:
    for trouble in ("down", "behind", "epoch"):
        parts = due()
        if trouble == "down":
            del parts.assignment.primaries[A]
        elif trouble == "behind":
            parts.assignment.primaries[A] = Copy("a", 4, fresh=False)
        else:
            heard(parts.answering, EpochArrived(6), parts)
            assert list(parts.answering.run(parts))
        assert list(parts.checkpointing.take(parts)) == [], trouble


def test_one_that_is_wanted_comes_whatever_its_age_unless_there_is_nothing_to_save() -> None:
    parts = due(checkpoint_every=50)
    assert list(parts.checkpointing.take(parts)) == []
    heard(parts.checkpointing, CheckpointWanted(), parts)
    take(parts)
    heard(parts.checkpointing, CheckpointDurable(5), parts)
    heard(parts.checkpointing, CheckpointWanted(), parts)
    assert not parts.checkpointing.wanted


def test_failures_in_a_row_end_the_job_with_epoch_and_reason() -> None:
    parts = due(checkpoint_tries=3)
    for failures in range(2):
        assert take(parts).attempt == failures
        assert kinds(heard(parts.checkpointing, CheckpointBroken(5, "no space"), parts)) == ["checkpoint broken"]
    take(parts)
    halt = only(Halt, heard(parts.checkpointing, CheckpointBroken(5, "no space"), parts))
    assert halt.message == (
        "3 checkpoints failed in a row, the last one of epoch 5, with 2 the newest durable one: no space"
    )


def test_one_that_succeeds_forgives_those_before_it() -> None:
    parts = due(checkpoint_tries=3)
    take(parts)
    heard(parts.checkpointing, CheckpointBroken(5, "no space"), parts)
    assert take(parts).attempt == 1
    heard(parts.checkpointing, CheckpointDurable(5), parts)
    assert parts.checkpointing.failures == 0


def test_one_that_nodes_took_along_is_called_off_and_does_not_count() -> None:
    parts = due(checkpoint_tries=1)
    take(parts)
    assert heard(parts.checkpointing, Lost(frozenset({"b"})), parts) == [CancelCheckpoint()]
    said = heard(parts.checkpointing, CheckpointBroken(5, "b is gone", (A, B)), parts)
    assert kinds(said) == ["checkpoint broken", "Unsound"] and parts.checkpointing.failures == 0
    assert only(Unsound, said).copies == {A: "a"}, "what b has now is another's"


def test_one_that_spark_asked_the_wrong_nodes_for_is_tried_for_ever_with_longer_pauses() -> None:
    parts = due(checkpoint_tries=2)
    for before in range(9):
        assert take(parts).attempt == before
        said = heard(parts.checkpointing, CheckpointBroken(5, "elsewhere", misplaced=True), parts)
        assert kinds(said) == ["checkpoint broken"], "no copy is given up, and the job goes on"
    assert take(parts).attempt == 9
    heard(parts.checkpointing, CheckpointDurable(5), parts)
    assert parts.checkpointing.misplaced == 0


def test_copies_that_are_not_whole_are_given_up() -> None:
    parts = due()
    take(parts)
    said = heard(parts.checkpointing, CheckpointBroken(5, "a file is cut", (B, task("B/9"))), parts)
    assert only(Unsound, said) == Unsound({B: "b"}, "a file is cut")
    assert parts.checkpointing.wanted and parts.checkpointing.taking is None


def test_the_word_of_another_one_is_passed_over() -> None:
    parts = due()
    assert heard(parts.checkpointing, CheckpointDurable(5), parts) == []
    take(parts)
    assert heard(parts.checkpointing, CheckpointDurable(4), parts) == []
    assert heard(parts.checkpointing, CheckpointBroken(4, "?"), parts) == []


def test_after_a_lost_one_the_next_is_whole_and_what_was_built_upon_it_does_not_count() -> None:
    parts = due()
    take(parts)
    said = heard(parts.checkpointing, CheckpointLost(2, 0), parts)
    assert only(FellBack, said) == FellBack(2, 0) and parts.checkpointing.durable == 0
    assert kinds(heard(parts.checkpointing, CheckpointDurable(5), parts)) == ["checkpoint broken"]
    assert parts.checkpointing.durable == 0
    assert take(parts).since == -1


def test_one_that_is_found_whole_after_all_is_kept() -> None:
    parts = due()
    assert heard(parts.checkpointing, CheckpointLost(2, 2), parts) == []
    assert heard(parts.checkpointing, CheckpointLost(1, 0), parts) == [], "it is not the newest one"
    assert parts.checkpointing.durable == 2 and not parts.checkpointing.whole_next


def test_what_does_not_hold_is_told() -> None:
    parts = due(checkpoint_tries=1)
    take(parts)
    parts.checkpointing.durable, parts.checkpointing.failures = 7, 2
    assert list(parts.checkpointing.check(parts)) == [
        "checkpoint 7 is durable, beyond the head 5",
        "checkpoint 5 is taken after 7, the head is 5",
        "2 checkpoints failed in a row",
    ]
