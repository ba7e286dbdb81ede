"""Recovery: when it is planned, what is kept for it, and who waits for whom."""

from __future__ import annotations

from dataclasses import replace

from driving import chain, task
from parts_alone import found, heard, kinds, nodes, only, report

from holdfast.runtime.coordinator.facts import (
    CheckpointSaved,
    Committed,
    CopiesLost,
    Copy,
    FellBack,
    Joined,
    Lost,
    Refused,
    Released,
    Reshaped,
)
from holdfast.runtime.coordinator.parts import Parts
from holdfast.runtime.messages import CapacityLifted, EpochArrived, Record, Run, Work
from holdfast.runtime.shape import Shape

A, B = task("A/0"), task("B/0")


def lost_b(**settings: object) -> Parts:
    """S -> A/0 -> B/0 at epoch 5, checkpoint 2: A/0 lives on a; B/0 was on b, which is gone. Room for one task each."""
    parts = found(chain(1, 1, 1), 2, 5, **{"capacity": 1.0, **settings})
    heard(parts.members, Joined(nodes("a")), parts)
    parts.assignment.primaries.update({A: Copy("a", 5, fresh=False), B: Copy("b", 5, fresh=False)})
    parts.recovering.keeping = False
    lost = Lost(frozenset({"b"}), "it died")
    heard(parts.recovering, parts.assignment.lose(lost), parts)
    return parts


def join(parts: Parts, *names: str, of: str = "1") -> None:
    for part in (parts.members, parts.recovering):
        heard(part, Joined(nodes(*names, of=of)), parts)


def kept(parts: Parts, node: str, first: int, last: int) -> None:
    """A/0 has processed these epochs, and kept what it said."""
    work = Work(A, node, "exact", "local", first - 1, first, last, keep=True)
    parts.assignment.primaries[A] = Copy(node, last, fresh=False)
    run = Run(0, "epoch", (work,))
    heard(parts.recovering, Committed(run, (), ((work, report(work)),), current=True), parts)


def test_a_situation_is_planned_for_once() -> None:
    parts = lost_b()
    assert parts.recovering.due(parts)
    plan = only(Record, list(parts.recovering.place(parts)))
    assert plan.kind == "recovery plan" and plan.fields["still_down"] == ["B/0"] and plan.fields["epoch"] == 6
    assert list(parts.recovering.place(parts)) == [], "nothing has changed"
    join(parts, "c")
    assert only(Record, list(parts.recovering.place(parts))).fields["recover"] == {"B/0": "c"}
    assert parts.assignment.primaries[B] == Copy("c", 2, fresh=True)


def test_a_node_that_comes_back_as_another_is_another_situation() -> None:
    parts = lost_b()
    list(parts.recovering.place(parts))
    heard(parts.members, Lost(frozenset({"a"})), parts)
    join(parts, "a", of="2")
    assert parts.recovering.due(parts)


def test_capacity_is_lifted_until_somebody_comes() -> None:
    parts = lost_b()
    list(parts.recovering.place(parts))
    heard(parts.recovering, CapacityLifted(), parts)
    assert only(Record, list(parts.recovering.place(parts))).fields["recover"] == {"B/0": "a"}
    join(parts, "c")
    assert parts.recovering.capacity(parts) == 1.0


def test_blocking_recovery_waits_for_room_for_all_and_says_so_once() -> None:
    parts = lost_b(recovery="blocking")
    assert kinds(list(parts.recovering.place(parts))) == ["waiting"]
    assert list(parts.recovering.place(parts)) == [] and parts.assignment.down == (B,)


def test_a_loss_is_told_with_what_it_took() -> None:
    parts = found(chain(1, 1, 1), 2, 5)
    told = CopiesLost((A, B), (B,), (A,), Lost(frozenset({"b"}), "it died"))
    lost, promoted = heard(parts.recovering, told, parts)
    assert isinstance(lost, Record) and isinstance(promoted, Record)
    assert lost.fields["down"] == ["B/0"] and lost.fields["cause"] == "it died" and lost.fields["epoch"] == 6
    assert promoted.fields == {"tasks": ["A/0"], "epoch": 6}
    assert heard(parts.recovering, replace(told, lost=None), parts) == []


def test_outputs_are_kept_from_a_loss_until_a_checkpoint_after_it() -> None:
    parts = lost_b()
    assert parts.recovering.keep == "wanted"
    kept(parts, "a", 6, 6)
    kept(parts, "a", 7, 8)
    assert parts.recovering.kept == {A: ("a", 6, 8)}
    heard(parts.recovering, CheckpointSaved(7), parts)
    assert parts.recovering.kept == {A: ("a", 8, 8)}, "something is still down"
    parts.assignment.primaries[B] = Copy("a", 8, fresh=False)
    heard(parts.recovering, CheckpointSaved(8), parts)
    assert parts.recovering.keep == "none" and parts.recovering.kept == {}


def test_what_is_kept_and_recomputed_goes_with_its_node_and_its_copy() -> None:
    parts = lost_b()
    for gone in (Lost(frozenset({"a"})), Released(frozenset({"a"}))):
        kept(parts, "a", 6, 6)
        parts.recovering.side[A] = ("a", 4)
        heard(parts.recovering, gone, parts)
        assert not parts.recovering.kept and not parts.recovering.side
    kept(parts, "a", 6, 6)
    heard(parts.recovering, CopiesLost((A,), (A,), ()), parts)
    assert not parts.recovering.kept


def test_kept_outputs_that_nobody_got_are_not_there() -> None:
    parts = lost_b()
    kept(parts, "a", 6, 6)
    work = Work(B, "a", "exact", "checkpoint", 2, 3, 6)
    run = Run(1, "replay", (work,), buffers={A: ("a", 6, 6)})
    heard(parts.recovering, Refused(run, (report(work, "blocked"), report(work, "missing"))), parts)
    assert parts.recovering.kept, "who failed kept it back"
    heard(parts.recovering, Refused(run, (report(work, "blocked"),)), parts)
    assert not parts.recovering.kept


def test_a_side_is_remembered_as_long_as_its_checkpoint_is_the_newest() -> None:
    parts = lost_b()
    work = Work(A, "a", "side", "checkpoint", 2, 3, 5)
    told = Committed(Run(1, "replay", (work,)), (), ((work, report(work)),), current=True)
    heard(parts.recovering, replace(told, current=False), parts)
    assert not parts.recovering.side
    for over in (CheckpointSaved(5), FellBack(2, 0), Refused(told.run, (report(work, "missing"),))):
        heard(parts.recovering, told, parts)
        assert parts.recovering.side == {A: ("a", 5)}
        heard(parts.recovering, over, parts)
        assert not parts.recovering.side, over


def test_what_was_cut_for_others_is_not_kept_in_another_shape() -> None:
    parts = lost_b()
    kept(parts, "a", 6, 6)
    parts.recovering.side[A] = ("a", 4)
    topology = parts.assignment.topology
    heard(parts.recovering, Reshaped(Shape(), Shape(1, born={B: 1}), topology, frozenset("B")), parts)
    assert not parts.recovering.kept and parts.recovering.side == {A: ("a", 4)}, "A/0 itself is as it was"


def test_no_replay_begins_before_an_answer_that_is_owed() -> None:
    parts = lost_b(capacity=9.0)
    list(parts.recovering.place(parts))
    heard(parts.answering, Lost(frozenset({"b"}), answer_due=True), parts)
    assert list(parts.recovering.replay(parts)) == []
    parts.answering.owed = "answer"
    run = only(Run, list(parts.recovering.replay(parts)))
    assert [(str(work.task), work.lane, work.first, work.last) for work in run.works] == [
        ("A/0", "side", 3, 5),
        ("B/0", "exact", 3, 5),
    ]


def test_those_who_catch_up_are_not_overtaken_for_ever() -> None:
    parts = lost_b(capacity=9.0, replay_chunk=4)
    list(parts.recovering.gain(parts))
    assert parts.recovering.gained_at == 5, "what is down is not behind"
    list(parts.recovering.place(parts))
    for head, overtaken in ((6, False), (7, True)):
        parts.answering.head = head
        list(parts.recovering.gain(parts))
        assert parts.recovering.overtaken(parts) is overtaken
    heard(parts.recovering, Committed(Run(1, "replay", ()), (), (), current=True), parts)
    assert not parts.recovering.overtaken(parts), "a replay has made progress"


def test_an_epoch_is_held_for_those_who_are_nearly_there() -> None:
    parts = lost_b(capacity=9.0)
    parts.assignment.primaries[B] = Copy("a", 4, fresh=False)
    behind = parts.assignment.behind(5)
    heard(parts.answering, EpochArrived(6), parts)
    assert parts.recovering.joins(behind, parts)
    parts.runs.start("replay", [Work(A, "a", "side", "local", 3, 4, 4)], parts)
    assert not parts.recovering.joins(behind, parts), "another replay is in the way"


def test_what_does_not_hold_is_told() -> None:
    parts = lost_b()
    list(parts.recovering.place(parts))
    assert list(parts.recovering.check(parts)) == []
    parts.recovering.keeping, parts.recovering.planned_for = False, None
    parts.recovering.kept[A] = ("b", 6, 6)
    assert list(parts.recovering.check(parts)) == [
        "outputs are kept although nothing is down: ['A/0']",
        "the kept output of A/0 is on b, which is gone",
        "B/0 is down, and nobody planned for it",
    ]
