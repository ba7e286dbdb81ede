"""The shape in force: it changes once the next one is in the store, and not before."""

from __future__ import annotations

import pytest
from driving import chain, task
from parts_alone import Words, found, heard, kinds, nodes, only, report

from holdfast.runtime.coordinator.answering import Before
from holdfast.runtime.coordinator.facts import Committed, CopiesLost, Copy, FellBack, Joined, Lost, Refused, Reshaped
from holdfast.runtime.coordinator.parts import Parts
from holdfast.runtime.coordinator.rescaling import TRIES
from holdfast.runtime.messages import CommitShape, Record, Run, ScaleWanted, ShapeCommitted
from holdfast.runtime.shape import Shape, resized, routing_of

A = [task(f"A/{number}") for number in range(4)]


def whole(checkpoint: int = 5, **settings: object) -> Parts:
    """S -> A/0, A/1 on nodes a and b, at epoch 5."""
    parts = found(chain(1, 2), checkpoint, 5, **{"recovery": "blocking", "nodes": 2, **settings})
    heard(parts.members, Joined(nodes("a", "b")), parts)
    parts.assignment.primaries.update({A[0]: Copy("a", 5, fresh=False), A[1]: Copy("b", 5, fresh=False)})
    return parts


def want(parts: Parts, to: int, operator: str = "A") -> Words:
    return heard(parts.rescaling, ScaleWanted(operator, to, request="r"), parts)


def advance(parts: Parts) -> Words:
    return list(parts.rescaling.advance(parts))


def begun(parts: Parts, to: int = 3) -> Run:
    """A scaling is under way, and its first replay runs."""
    want(parts, to)
    assert kinds(advance(parts)) == ["scaling begun"]
    return only(Run, list(parts.rescaling.replay(parts)))


def end(parts: Parts, run: Run, status: str = "committed") -> Words:
    del parts.runs.under_way[run.number]
    reports = tuple(report(work, status) for work in run.works)
    if status == "committed":
        counted = tuple(zip(run.works, reports, strict=True))
        return heard(parts.rescaling, Committed(run, reports, counted, current=True), parts)
    return heard(parts.rescaling, Refused(run, reports), parts)


def test_new_tasks_are_built_beside_those_in_force() -> None:
    parts = whole()
    run = begun(parts)
    assert not run.settled and run.shape.version == 1 and {work.born for work in run.works} == {1}
    assert {work.lane for work in run.works} == {"replica"} and parts.rescaling.shape == Shape()
    assert run.attempt == 0


def test_a_shape_is_committed_with_nothing_under_way_and_in_force_once_it_is_in_the_store() -> None:
    parts = whole()
    end(parts, begun(parts))
    parts.answering.publishing.add((1, "final"))
    assert advance(parts) == [], "what was said last is not in its place yet"
    parts.answering.publishing.clear()
    commit = only(CommitShape, advance(parts))
    assert parts.rescaling.shape == Shape() and not parts.acting, "nothing begins meanwhile"
    assert set(commit.shape.done.values()) == {5}
    assert heard(parts.rescaling, ShapeCommitted(7), parts) == [], "that is another one"
    said = heard(parts.rescaling, ShapeCommitted(commit.shape.version), parts)
    assert kinds(said) == ["Reshaped", "scaled"] and parts.rescaling.shape == commit.shape and parts.acting
    assert {copy.position for copy in only(Reshaped, said).primaries.values()} == {5}
    assert heard(parts.rescaling, ShapeCommitted(commit.shape.version), parts) == []


def test_new_tasks_that_are_lost_while_the_shape_is_committed_are_down_in_it() -> None:
    parts = whole()
    end(parts, begun(parts, 4))
    commit = only(CommitShape, advance(parts))
    assert parts.rescaling.shadow is not None
    here = {each for each, copy in parts.rescaling.shadow.copies.items() if copy.node == "a"}
    lost = parts.assignment.lose(Lost(frozenset({"b"})))
    assert heard(parts.rescaling, lost, parts) == [], "it may be in the store already"
    said = heard(parts.rescaling, ShapeCommitted(commit.shape.version), parts)
    assert set(only(Reshaped, said).primaries) == here and len(here) < 4


@pytest.mark.parametrize("what", ["its node", "an old task", "the checkpoint", "a replay"])
def test_what_is_lost_on_the_way_drops_the_new_tasks_and_it_is_begun_again(what: str) -> None:
    parts = whole()
    run = begun(parts)
    match what:
        case "its node":
            said = heard(parts.rescaling, CopiesLost((), (), (), Lost(frozenset({"a", "b"}))), parts)
        case "an old task":
            said = heard(parts.rescaling, CopiesLost((A[1],), (A[1],), (), Lost(frozenset({"x"}))), parts)
        case "the checkpoint":
            said = heard(parts.rescaling, FellBack(5, 2), parts)
        case _:
            said = end(parts, run, "damaged")
    aborted = only(Record, said)
    assert aborted.kind == "scaling aborted" and aborted.fields["again"] and parts.rescaling.shadow is None
    parts.runs.under_way.clear()
    assert kinds(advance(parts)) == ["scaling begun"]
    again = only(Run, list(parts.rescaling.replay(parts)))
    assert again.shape.version == 2 and again.attempt == 1


def test_a_loss_that_takes_nothing_leaves_it_alone() -> None:
    parts = whole()
    begun(parts)
    assert heard(parts.rescaling, CopiesLost((), (), (), Lost(frozenset({"x"}))), parts) == []
    assert parts.rescaling.shadow is not None


def test_a_store_that_takes_nothing_does_not_use_up_tries() -> None:
    parts = whole()
    assert end(parts, begun(parts), "unusable") == [] and parts.rescaling.shadow is not None


def test_it_is_given_up_after_some_tries() -> None:
    parts = whole()
    want(parts, 3)
    for tried in range(1, TRIES + 1):
        advance(parts)
        run = only(Run, list(parts.rescaling.replay(parts)))
        assert only(Record, end(parts, run, "failed")).fields["again"] is (tried < TRIES)
    assert advance(parts) == [] and not parts.rescaling.queue


def test_another_request_for_an_operator_replaces_the_one_before() -> None:
    parts = whole()
    begun(parts)
    aborted = only(Record, want(parts, 4))
    assert aborted.kind == "scaling aborted" and not aborted.fields["again"]
    assert kinds(want(parts, 3)) == ["scaling aborted"], "the one that waits"
    assert [wanted.to for wanted, _ in parts.rescaling.queue] == [3]


def test_a_request_that_comes_while_a_shape_is_committed_waits() -> None:
    parts = whole()
    end(parts, begun(parts))
    advance(parts)
    assert want(parts, 4) == [] and parts.rescaling.committing is not None and parts.rescaling.shadow is not None


def test_what_cannot_be_is_refused() -> None:
    parts = whole()
    assert "at least 1 task, got 0" in only(Record, want(parts, 0)).fields["reason"]
    assert "a source" in only(Record, want(parts, 2, "S")).fields["reason"]
    routing = resized(resized(routing_of(parts.declared, Shape(), "A"), 3), 4)
    said = heard(parts.rescaling, ScaleWanted("A", routing=routing), parts)
    assert "follows version 1, but 0 is in force" in only(Record, said).fields["reason"]


def test_an_old_checkpoint_is_renewed_first_once() -> None:
    parts = whole(checkpoint=1)
    want(parts, 3)
    assert advance(parts) == [] and parts.checkpointing.wanted
    parts.checkpointing.durable, parts.checkpointing.wanted, parts.answering.head = 5, False, 9
    parts.assignment.primaries.update({each: Copy("a", 9, fresh=False) for each in A[:2]})
    assert kinds(advance(parts)) == ["scaling begun"], "epochs have gone far again"


def long_loss() -> Parts:
    """A/1 was lost with 5 epochs to replay, two at a time."""
    parts = whole(checkpoint=0, replay_chunk=2, parallel_recovery=2, capacity=9.0)
    heard(parts.rescaling, parts.assignment.drop([A[1]]), parts)
    return parts


def test_a_lost_task_comes_back_as_several_once_that_is_in_the_store() -> None:
    parts = long_loss()
    parts.answering.publishing.add((1, "final"))
    assert list(parts.rescaling.split(parts)) == [] and list(parts.recovering.place(parts)) == []
    parts.answering.publishing.clear()
    commit = only(CommitShape, list(parts.rescaling.split(parts)))
    said = heard(parts.rescaling, ShapeCommitted(commit.shape.version), parts)
    assert kinds(said) == ["Reshaped", "recovering in parallel"] and not only(Reshaped, said).primaries
    for part in parts.all:
        heard(part, only(Reshaped, said), parts)
    assert set(parts.assignment.down) == {A[1], A[2]}
    assert parts.rescaling.to_split(parts) == [], "not once more"


def test_what_was_published_before_is_not_said_again_by_the_parts() -> None:
    parts = long_loss()
    parts.answering.published[A[1]], parts.answering.before = 1, Before({A[1]: 4})
    commit = only(CommitShape, list(parts.rescaling.split(parts)))
    assert commit.shape.done == {A[1]: 4, A[2]: 4}


def test_a_scaling_under_way_gives_way_to_a_recovery_in_parallel() -> None:
    parts = whole(replay_chunk=2, parallel_recovery=2, capacity=9.0)
    begun(parts)
    parts.checkpointing.durable = 0
    heard(parts.rescaling, parts.assignment.drop([A[1]]), parts)
    assert kinds(list(parts.rescaling.split(parts))) == ["scaling aborted"], "its replay is still under way"
    parts.runs.under_way.clear()
    assert kinds(list(parts.rescaling.split(parts))) == ["CommitShape"]


def test_what_does_not_hold_is_told() -> None:
    parts = whole()
    run = begun(parts)
    assert list(parts.rescaling.check(parts)) == []
    end(parts, run)
    advance(parts)
    parts.answering.publishing.add((1, "final"))
    assert parts.rescaling.shadow is not None
    parts.rescaling.shadow.tries, parts.rescaling.shadow.copies = TRIES + 1, {A[2]: Copy("x", 5, fresh=False)}
    assert list(parts.rescaling.check(parts)) == [
        "shape 1 is being committed while something is under way",
        "the new task A/2 lives on x, which is gone",
        "the scaling of A was begun 6 times",
    ]
