"""Which copy lives where and how far it has come: its verbs, one by one."""

from __future__ import annotations

from driving import chain, task
from parts_alone import found, heard, kinds, nodes, only, report

from holdfast.runtime.coordinator.assignment import Assignment
from holdfast.runtime.coordinator.facts import (
    CheckpointSaved,
    Committed,
    CopiesLost,
    Copy,
    FellBack,
    Joined,
    Lost,
    Refused,
    Unsound,
)
from holdfast.runtime.coordinator.parts import Parts
from holdfast.runtime.messages import Lane, Origin, Run, Work

A, B = task("A/0"), task("B/0")


def line(head: int = 5, checkpoint: int = 2) -> Parts:
    """S -> A/0 -> B/0, both at the head, on nodes a and b."""
    parts = found(chain(1, 1, 1), checkpoint, head)
    heard(parts.members, Joined(nodes("a", "b", "c")), parts)
    parts.assignment.primaries.update({A: Copy("a", head, fresh=False), B: Copy("b", head, fresh=False)})
    return parts


def work(of: str, node: str, first: int, last: int, lane: Lane = "exact", origin: Origin = "local") -> Work:
    return Work(task(of), node, lane, origin, first - 1, first, last)


def refused(*works: Work) -> Refused:
    return Refused(Run(0, "epoch", works), tuple(report(each, "missing") for each in works))


def test_a_stateful_task_comes_up_from_the_checkpoint_one_without_state_where_it_was() -> None:
    assignment = Assignment(chain(1, 1, 1, stateless=("B",)))
    assignment.primaries.update({A: Copy("a", 5, fresh=False), B: Copy("b", 5, fresh=False)})
    assignment.drop([A, B])
    for each in (A, B):
        assignment.place(each, "c", checkpoint=2, head=5)
    assert assignment.primaries == {A: Copy("c", 2, fresh=True), B: Copy("c", 5, fresh=True)}
    assert assignment.cold == {A}


def test_a_work_moves_on_only_the_copy_that_stood_where_it_began() -> None:
    assignment = line().assignment
    assignment.advance(work("A/0", "b", 6, 6), failed_at=0)
    assignment.advance(work("A/0", "a", 5, 6), failed_at=0)
    assert assignment.primaries[A].position == 5
    assignment.advance(work("A/0", "a", 6, 6), failed_at=0)
    assert assignment.primaries[A] == Copy("a", 6, fresh=False) and assignment.holds(work("A/0", "a", 6, 6))


def test_a_task_is_cold_until_it_has_come_to_the_failure() -> None:
    assignment = line().assignment
    assignment.drop([A])
    assignment.place(A, "c", checkpoint=2, head=5)
    assignment.advance(work("A/0", "c", 3, 4), failed_at=6)
    assert A in assignment.cold
    assignment.advance(work("A/0", "c", 5, 5), failed_at=6)
    assert A not in assignment.cold


def test_a_replica_takes_over_and_is_cold_if_it_was_behind() -> None:
    parts = line()
    parts.assignment.replicas.update({A: Copy("c", 5, fresh=False), B: Copy("c", 4, fresh=False)})
    lost = only(CopiesLost, heard(parts.assignment, Lost(frozenset({"a", "b"})), parts))
    assert lost.promoted == (A, B) and lost.down == ()
    assert parts.assignment.cold == {B} and not parts.assignment.replicas
    assert parts.assignment.lost_at == {A: 5, B: 5}


def test_a_loss_without_copies_is_told_all_the_same() -> None:
    parts = line()
    lost = Lost(frozenset({"c"}), "why")
    assert heard(parts.assignment, lost, parts) == [CopiesLost((), (), (), lost)]


def test_state_that_is_missing_is_dropped_where_it_was_and_nowhere_else() -> None:
    parts = line()
    parts.assignment.replicas[A] = Copy("c", 5, fresh=False)
    assert kinds(heard(parts.assignment, refused(work("A/0", "c", 6, 6, "replica")), parts)) == ["missing"]
    assert not parts.assignment.replicas and A in parts.assignment.primaries
    for passed in (work("A/0", "c", 6, 6), work("A/0", "a", 3, 4, "side"), work("A/0", "a", 6, 6, "tentative")):
        assert kinds(heard(parts.assignment, refused(passed), parts)) == ["missing"]
        assert A in parts.assignment.primaries, passed
    said = heard(parts.assignment, refused(work("A/0", "a", 6, 6, "tentative", "fork")), parts)
    assert only(CopiesLost, said).down == (A,), "the exact version that a fork was to begin from is not there"


def test_a_copy_that_is_not_whole_is_dropped_unless_it_was_made_anew() -> None:
    parts = line()
    said = heard(parts.assignment, Unsound({A: "a", B: "c"}, "a file is cut"), parts)
    assert only(CopiesLost, said).tasks == (A,) and B in parts.assignment.primaries
    parts.assignment.place(A, "a", checkpoint=2, head=5)
    assert heard(parts.assignment, Unsound({A: "a"}, "a file is cut"), parts) == []


def test_a_checkpoint_takes_along_who_has_not_come_to_it_but_not_in_the_midst_of_a_replay() -> None:
    parts = line(head=5, checkpoint=2)
    parts.assignment.primaries.update({A: Copy("a", 3, fresh=False), B: Copy("b", 3, fresh=False)})
    parts.assignment.cold.update({A, B})
    parts.runs.start("replay", [work("B/0", "b", 4, 5)], parts)
    heard(parts.assignment, CheckpointSaved(5), parts)
    assert parts.assignment.primaries == {A: Copy("a", 5, fresh=True), B: Copy("b", 3, fresh=False)}
    assert parts.assignment.cold == {B}


def test_what_was_still_in_a_lost_checkpoint_begins_from_the_older_one() -> None:
    parts = line(head=5, checkpoint=2)
    parts.assignment.primaries[A] = Copy("a", 2, fresh=True)
    heard(parts.assignment, FellBack(2, 0), parts)
    assert parts.assignment.primaries == {A: Copy("a", 0, fresh=True), B: Copy("b", 5, fresh=False)}
    assert parts.assignment.cold == {A}


def test_who_can_be_exact_is_behind_and_is_near() -> None:
    assignment = line().assignment
    assert list(assignment.exact(6, 5)) == [True, True, True]
    assignment.primaries[A] = Copy("a", 4, fresh=False)
    assert list(assignment.exact(6, 5)) == [True, False, False], "what is below it gets no input"
    assignment.primaries[B] = Copy("b", 1, fresh=False)
    both = assignment.behind(5)
    assert [(str(copy.task), copy.position) for copy in both] == [("A/0", 4), ("B/0", 1)]
    assert [str(copy.task) for copy in assignment.near(both, 5, 3)] == ["A/0"]
    assignment.drop([A])
    assert assignment.behind(5) == [], "who is below what is down cannot catch up"
    assert assignment.down == (A,) and not assignment.all_up


def test_what_is_far_upstream_keeps_what_is_near_back() -> None:
    assignment = line().assignment
    assignment.primaries.update({A: Copy("a", 0, fresh=False), B: Copy("b", 4, fresh=False)})
    assert assignment.near(assignment.behind(5), 5, 3) == []


def test_what_counts_of_a_run_comes_with_its_word() -> None:
    parts = line()
    done = work("A/0", "a", 6, 6)
    run = Run(0, "epoch", (done, work("B/0", "b", 6, 6)), epoch=6)
    heard(parts.assignment, Committed(run, (), ((done, report(done)),), current=True), parts)
    assert (parts.assignment.primaries[A].position, parts.assignment.primaries[B].position) == (6, 5)


def test_what_does_not_hold_is_told() -> None:
    parts = line()
    assert list(parts.assignment.check(parts)) == []
    parts.assignment.primaries.update({A: Copy("x", 6, fresh=False), B: Copy("b", 1, fresh=False)})
    parts.assignment.replicas.update({B: Copy("b", 5, fresh=False), task("B/7"): Copy("c", 5, fresh=False)})
    parts.assignment.cold.add(task("B/7"))
    assert list(parts.assignment.check(parts)) == [
        "B/0 and its replica share b",
        "B/7 has a replica and no primary",
        "the primary of A/0 lives on x, which is gone",
        "the primary of A/0 is at epoch 6, beyond the head 5",
        "the primary of B/0 is at 1, before the checkpoint 2",
        "there is a replica of B/7, which is no task",
        "B/7 is cold and down",
    ]
