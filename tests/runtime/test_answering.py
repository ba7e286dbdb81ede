"""The epoch at hand: no gap, no epoch done before it is published, finals once."""

from __future__ import annotations

import pytest
from driving import chain, task
from parts_alone import Words, found, heard, kinds, nodes, only, report

from holdfast.runtime.coordinator.facts import Committed, CopiesLost, Copy, Joined, Lost, Refused, Reshaped
from holdfast.runtime.coordinator.lanes import Fork, Memory
from holdfast.runtime.coordinator.ledger import Ledger
from holdfast.runtime.coordinator.parts import Parts
from holdfast.runtime.messages import (
    AnswerOverdue,
    EpochArrived,
    EpochDone,
    EpochJournalled,
    Halt,
    Lane,
    Publish,
    Published,
    Run,
    Work,
)
from holdfast.runtime.shape import Shape

A = task("A/0")


def at(head: int) -> Parts:
    """S -> A/0 on node a, at the head."""
    parts = found(chain(1, 1), -1, head)
    heard(parts.members, Joined(nodes("a")), parts)
    parts.assignment.primaries[A] = Copy("a", head, fresh=False)
    return parts


def answered(parts: Parts, epoch: int, lane: Lane = "exact", number: int = 7) -> Words:
    """A run of this epoch is committed and has output."""
    work = Work(A, "a", lane, "local", epoch - 1, epoch, epoch, fork=number)
    told = report(work, outputs={epoch: "somewhere"})
    if lane == "exact":
        parts.assignment.advance(work, 0)
    run = Run(number, "epoch", (work,), epoch=epoch)
    return heard(parts.answering, Committed(run, (told,), ((work, told),), current=True), parts)


def arrive(parts: Parts, epoch: int) -> Words:
    return heard(parts.answering, EpochArrived(epoch), parts)


def test_the_next_epoch_is_at_hand_and_the_head_again_is_done_at_once() -> None:
    parts = at(5)
    assert arrive(parts, 5) == [EpochDone(5)] and parts.answering.pending is None
    assert arrive(parts, 6) == [] and parts.answering.pending == 6
    assert arrive(parts, 6) == [] and parts.answering.pending == 6, "given again while it is at hand"


def test_an_old_epoch_is_refused() -> None:
    parts = at(5)
    (halt,) = arrive(parts, 3)
    assert isinstance(halt, Halt) and halt.message == (
        "epoch 3 came again, but the store has epochs up to 5: the stream's own log (the folder spark/ of the store) "
        "is gone or belongs to another stream"
    )
    assert parts.answering.pending is None


@pytest.mark.parametrize(
    ("head", "epoch", "has"),
    [
        (5, 9, "the store has epochs up to 5 only: epochs 6 to 8 would be lost;"),
        (5, 7, "the store has epochs up to 5 only: epoch 6 would be lost;"),
        (-1, 1, "the store has none: epoch 0 would be lost;"),
        (-1, 4, "the store has none: epochs 0 to 3 would be lost;"),
    ],
)
def test_a_gap_is_refused_with_what_to_do(head: int, epoch: int, has: str) -> None:
    (halt,) = arrive(at(head), epoch)
    assert isinstance(halt, Halt) and halt.message.startswith(f"epoch {epoch} came, but {has} the store is older")
    assert "put both back from the same day, or start with a new store" in halt.message


def test_a_fresh_store_takes_epoch_0() -> None:
    parts = at(-1)
    assert arrive(parts, 0) == [] and parts.answering.pending == 0


def test_what_is_journalled_leads_the_head_by_one_at_most() -> None:
    parts = at(5)
    arrive(parts, 6)
    assert heard(parts.answering, EpochJournalled(6), parts) == [] and parts.answering.journalled == 6
    assert list(parts.answering.check(parts)) == []
    said = heard(parts.answering, EpochJournalled(7), parts)
    assert only(Halt, said).message.startswith("epoch 7 was journalled, but epoch 6 is at hand, the journal has epochs")


@pytest.mark.parametrize("epoch", [5, 6, 7])
def test_nothing_is_journalled_that_is_not_at_hand(epoch: int) -> None:
    parts = at(5)
    assert "no epoch is at hand" in only(Halt, heard(parts.answering, EpochJournalled(epoch), parts)).message


def test_an_epoch_is_journalled_once() -> None:
    parts = at(5)
    arrive(parts, 6)
    heard(parts.answering, EpochJournalled(6), parts)
    only(Halt, heard(parts.answering, EpochJournalled(6), parts))


def test_a_run_of_a_journalled_epoch_does_not_read_the_source_again() -> None:
    parts = at(5)
    arrive(parts, 6)
    (first,) = parts.answering.run(parts)
    assert isinstance(first, Run) and (first.ingest, first.epoch) == (6, 6)
    parts.runs.under_way.clear()
    heard(parts.answering, EpochJournalled(6), parts)
    (second,) = parts.answering.run(parts)
    assert isinstance(second, Run) and (second.ingest, second.epoch) == (None, 6)


def test_an_epoch_is_done_when_all_that_it_said_is_in_its_place() -> None:
    parts = at(5)
    arrive(parts, 6)
    assert kinds(answered(parts, 6)) == ["Publish"]
    assert parts.answering.finals_unplaced and list(parts.answering.run(parts)) == []
    assert heard(parts.answering, Published(6, "final"), parts) == [], "that is another run's"
    assert heard(parts.answering, Published(7, "tentative"), parts) == []
    assert kinds(heard(parts.answering, Published(7, "final"), parts)) == ["epoch", "EpochDone"]
    assert not parts.answering.finals_unplaced and parts.answering.pending is None


def test_an_epoch_that_says_nothing_is_done_at_once() -> None:
    parts = at(5)
    arrive(parts, 6)
    work = Work(A, "a", "exact", "local", 5, 6, 6)
    told = Committed(Run(1, "epoch", (work,), epoch=6), (report(work),), ((work, report(work)),), current=True)
    assert kinds(heard(parts.answering, told, parts)) == ["epoch", "EpochDone"]


def test_a_final_output_is_published_once_and_tentative_ones_are_no_finals() -> None:
    parts = at(5)
    arrive(parts, 6)
    said = answered(parts, 6, "tentative")
    assert only(Publish, said).kind == "tentative" and parts.answering.forks[A] == Fork(7, 5, 6, ((6, 1.0),))
    heard(parts.answering, Published(7, "tentative"), parts)
    work = Work(A, "a", "exact", "local", 5, 6, 6)
    told = report(work, outputs={6: "somewhere"})
    parts.assignment.advance(work, 0)
    replayed = Committed(Run(8, "replay", (work,)), (told,), ((work, told),), current=True)
    assert only(Publish, heard(parts.answering, replayed, parts)) == Publish(8, ((6, A),), "final")
    assert not parts.answering.forks, "it is exact again"
    assert heard(parts.answering, replayed, parts) == []


def test_a_fork_knows_the_rows_it_got_in_each_epoch() -> None:
    """5 rows came with epoch 6, of which half came to it, and 8 with epoch 7: all of them."""
    parts = at(5)
    parts.measurements.memory = Memory(Ledger({5: (20, 5000)}), {})
    for epoch, rows, given in ((6, 5, 0.5), (7, 8, 1.0)):
        arrive(parts, epoch)
        heard(parts.measurements, EpochJournalled(epoch, rows, 1000 * epoch), parts)
        work = Work(A, "a", "tentative", "local", epoch - 1, epoch, epoch, fidelity=0.1, given=given, fork=7)
        run, there = Run(epoch, "epoch", (work,), epoch=epoch), dict(parts.answering.forks)
        parts.answering.forks.clear()  # a replay has made it needless meanwhile; what it has seen, it has
        told = Committed(run, (), ((work, report(work)),), current=True, forks=there)
        heard(parts.answering, told, parts)
    assert parts.answering.forks[A] == Fork(7, 5, 7, ((6, 2.5), (7, 8.0)))
    assert parts.measurements.memory.ledger.time(7) == 7000
    work = Work(A, "a", "tentative", "fork", 5, 8, 8, given=1.0, fork=8)
    told = Committed(Run(8, "epoch", (work,), epoch=8), (), ((work, report(work)),), current=True)
    heard(parts.answering, told, parts)
    assert parts.answering.forks[A] == Fork(8, 5, 8, ((8, 8.0),)), "one that is begun anew has got nothing yet"


def test_an_answer_is_owed_after_a_loss_until_it_is_given() -> None:
    parts = at(5)
    heard(parts.answering, Lost(frozenset({"b"}), answer_due=True), parts)
    assert parts.answering.owed == "answer soon"
    heard(parts.answering, AnswerOverdue(), parts)
    assert parts.answering.owed == "answer"
    arrive(parts, 6)
    answered(parts, 6)
    assert parts.answering.owed == "nothing"
    heard(parts.answering, AnswerOverdue(), parts)
    assert parts.answering.owed == "nothing"


def test_a_fork_goes_with_its_copy_and_a_mute_one_speaks_when_it_is_whole_again() -> None:
    parts = at(5)
    arrive(parts, 6)
    answered(parts, 6, "tentative")
    fork = Work(A, "a", "tentative", "local", 6, 7, 7)
    run = Run(8, "epoch", (fork,), epoch=7)
    assert kinds(heard(parts.answering, Refused(run, (report(fork, "failed"),)), parts)) == ["mute"]
    heard(parts.answering, CopiesLost((A,), (A,), ()), parts)
    assert not parts.answering.forks and parts.answering.mute == {A}
    work = Work(A, "a", "exact", "local", 5, 6, 6)
    parts.assignment.advance(work, 0)
    heard(parts.answering, Committed(Run(9, "replay", (work,)), (), ((work, report(work)),), current=True), parts)
    assert not parts.answering.mute


def test_in_another_shape_tasks_have_published_what_those_before_them_had() -> None:
    parts = at(5)
    parts.answering.published[A] = 5
    shape = Shape(1, born={A: 1}, done={A: 3})
    heard(parts.answering, Reshaped(Shape(), shape, chain(1, 1), frozenset("A")), parts)
    assert parts.answering.published == {A: 3}


def test_what_does_not_hold_is_told() -> None:
    parts = at(5)
    parts.answering.journalled, parts.answering.pending = 7, 9
    parts.answering.published[A] = 6
    parts.answering.forks[task("A/1")] = Fork(1, 2, 3, ((3, 1.0),))
    assert list(parts.answering.check(parts)) == [
        "epochs up to 7 are journalled, but those up to 5 are answered",
        "epoch 9 is at hand after 5",
        "A/1 is down and has a fork",
        "A/0 has published epoch 6, beyond the head 5",
    ]
