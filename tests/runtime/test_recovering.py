"""Recovery: when it is planned, what is kept for it, and who waits for whom."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import pytest
from driving import Driver, chain, task, two_nodes, works
from parts_alone import found, heard, kinds, nodes, only, report

from holdfast.recovery import RecoveryPlan, recover
from holdfast.runtime.coordinator import recovering
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
from holdfast.runtime.coordinator.measurements import LIGHT, READ
from holdfast.runtime.coordinator.parts import Parts
from holdfast.runtime.messages import CapacityLifted, EpochArrived, Record, Run, Work
from holdfast.runtime.shape import Shape
from holdfast.topology import Operator, Stream, Task, Topology

A, B, TWIN = task("A/0"), task("B/0"), task("B/1")


def lost_b(**settings: object) -> Parts:
    """S -> A/0 -> B/0, B/1 at epoch 5, checkpoint 2: A/0 and B/1 live on a; B/0 was on b, which is gone.

    Room for two tasks each. The query can be answered without B/0.
    """
    parts = found(chain(1, 1, 2), 2, 5, **{"capacity": 2.0, **settings})
    heard(parts.members, Joined(nodes("a")), parts)
    parts.assignment.primaries.update({each: Copy("a", 5, fresh=False) for each in (A, TWIN)})
    parts.assignment.primaries[B] = Copy("b", 5, fresh=False)
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
    assert parts.recovering.capacity(parts) == 2.0


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
    assert heard(parts.recovering, replace(told, lost=None), parts) == [promoted], "a copy can be lost alone"
    assert heard(parts.recovering, replace(told, promoted=(), lost=None), parts) == []


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


def without(gone: Collection[str], topology: Topology, homes: Mapping[str, str], **settings: object) -> Parts:
    """At epoch 5, checkpoint 2: tasks live at these homes; the nodes ``gone`` took theirs with them."""
    parts = found(topology, 2, 5, **settings)
    heard(parts.members, Joined(nodes(*sorted(set(homes.values()) - set(gone)))), parts)
    parts.assignment.primaries.update({task(name): Copy(node, 5, fresh=False) for name, node in homes.items()})
    heard(parts.recovering, parts.assignment.lose(Lost(frozenset(gone))), parts)
    return parts


def planned(parts: Parts) -> Mapping[str, Any]:
    return only(Record, list(parts.recovering.place(parts))).fields


def test_what_an_answer_needs_is_placed_whether_there_is_room_or_not() -> None:
    homes = {"A/0": "a", "B/0": "b"}
    parts = without(["b"], chain(1, 1, 1), homes, nodes=2, capacity=1.0)
    plan = planned(parts)
    assert plan["recover"] == {"B/0": "a"} and plan["still_down"] == [] and plan["queries"] == ["B/0"]
    assert plan["capacity"] == 0.0 and parts.assignment.load() == {"a": 2.0}
    assert parts.assignment.primaries[B] == Copy("a", 2, fresh=True) and B in parts.assignment.cold


def test_blocking_recovery_needs_nothing_before_the_rest() -> None:
    parts = without(["b"], chain(1, 1, 1), {"A/0": "a", "B/0": "b"}, nodes=2, capacity=1.0, recovery="blocking")
    assert kinds(list(parts.recovering.place(parts))) == ["waiting"] and parts.assignment.down == (B,)


def test_of_what_is_down_the_lightest_that_gives_an_answer_is_placed_and_the_rest_waits() -> None:
    """Both B are gone, and nobody has room: B/1 is the lighter one, so it alone is placed."""
    topology = Topology(
        (Operator("S", 1, costs=(0.0,)), Operator("A", 1), Operator("B", 2, costs=(3.0, 2.0))),
        (Stream("S", "A", "full"), Stream("A", "B", "full")),
    )
    parts = without(["b", "c"], topology, {"A/0": "a", "B/0": "b", "B/1": "c"}, nodes=3, capacity=1.0)
    plan = planned(parts)
    assert plan["recover"] == {"B/1": "a"} and plan["still_down"] == ["B/0"]
    assert planned_again(parts, "d")["still_down"] == ["B/0"], "room for one, and it costs three"
    assert planned_again(parts, "e", lifted=True)["recover"].keys() == {"B/0"}


def planned_again(parts: Parts, joins: str, lifted: bool = False) -> Mapping[str, Any]:
    join(parts, joins)
    if lifted:
        heard(parts.recovering, CapacityLifted(), parts)
    return planned(parts)


def in_pieces(**settings: object) -> Parts:
    """Of four nodes c and d are gone, with three tasks that cost 2. With a capacity of 4.25 a has 3.25 and b 2.75 left:

    six in all, but after one task for each there is 1.25 and 0.75.
    """
    topology = Topology(
        (Operator("S", 1, costs=(0.0,)), Operator("A", 1), Operator("B", 4, costs=(1.5, 2.0, 2.0, 2.0))),
        (Stream("S", "A", "full"), Stream("A", "B", "full")),
    )
    homes = {"A/0": "a", "B/0": "b", "B/1": "c", "B/2": "c", "B/3": "d"}
    return without(["c", "d"], topology, homes, nodes=4, **settings)


def test_room_that_is_left_in_pieces_keeps_nobody_waiting_unless_a_capacity_was_given() -> None:
    parts = in_pieces()
    assert parts.recovering.capacity(parts) == 4.25
    plan = planned(parts)
    assert plan["capacity"] == 6.0 and plan["recover"] == {"B/1": "a", "B/2": "b", "B/3": "a"}
    assert plan["still_down"] == [] and plan["queries"] == ["B/1", "B/2", "B/3"]
    parts = in_pieces(capacity=4.25)
    plan = planned(parts)
    assert plan["capacity"] == 6.0 and plan["recover"] == {"B/1": "a", "B/2": "b"}
    assert plan["still_down"] == ["B/3"] and plan["queries"] == ["B/1", "B/2"], "who waits is not whole"
    assert max(parts.assignment.load().values()) <= 4.25


def test_no_more_is_placed_than_there_is_room_for_in_all() -> None:
    """One node of three is left: 2 x 7.5 / 3 is what it may carry by default, of which it has 2.5."""
    topology = in_pieces().assignment.topology
    homes = {"A/0": "a", "B/0": "a", "B/1": "c", "B/2": "c", "B/3": "d"}
    plan = planned(without(["c", "d"], topology, homes, nodes=3))
    assert plan["capacity"] == pytest.approx(2 * 8.5 / 3 - 2.5)
    assert len(plan["recover"]) == 1 and len(plan["still_down"]) == 2


def test_the_ceiling_is_a_share_of_the_capacity_that_was_given() -> None:
    parts = in_pieces(capacity=5.0, ceiling=0.85)
    assert planned(parts)["still_down"] == ["B/3"]
    assert planned(in_pieces(capacity=5.0))["still_down"] == []


def test_a_query_is_told_as_completed_when_it_is_whole() -> None:
    """B/0 answers again, but without A/1: it is whole when that is back, too."""
    homes = {"A/0": "a", "A/1": "b", "B/0": "b"}
    parts = without(["b"], chain(1, 2, 1), homes, nodes=2, capacity=1.0)
    plan = planned(parts)
    assert plan["recover"] == {"B/0": "a"} and plan["still_down"] == ["A/1"] and plan["queries"] == []
    assert "completes 0 query partitions" in plan["why"] and plan["why"].startswith("1 of 2 tasks")
    plan = planned_again(parts, "c")
    assert plan["recover"] == {"A/1": "c"} and plan["queries"] == ["B/0"]


def test_the_scheduler_knows_whether_more_nodes_are_to_come(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def asking(topology: Topology, failed: frozenset[Task], capacity: float, name: str, more: bool) -> RecoveryPlan:
        asked.append((set(failed), capacity, more))
        return recover(topology, failed, capacity, name, more)

    monkeypatch.setattr(recovering, "recover", asking)
    parts = without(["b"], chain(1, 2, 1), {"A/0": "a", "A/1": "b", "B/0": "b"}, nodes=2, capacity=1.5)
    planned(parts)
    planned_again(parts, "c")
    assert asked == [
        ({task("A/1")}, 0.0, True),
        ({task("A/1")}, 1.5, False),
    ], "B/0 is placed in any case and has taken the room there was; then both nodes are there"


LARGEST = int(LIGHT * READ)


@pytest.mark.parametrize("size", [LARGEST, LARGEST + 1])
def test_after_the_first_answer_the_next_epoch_waits_for_a_small_state_alone(size: int) -> None:
    """A short replay joins the next epoch, which is exact then; a large state is waited for by nobody."""
    driver = two_nodes(capacity=1000.0, checkpoint_every=3)
    driver.arrive(5)
    run = driver.only(Run)
    driver.done(run, *(replace(driver.report(work), state_bytes=size) for work in run.works))
    assert driver.parts.checkpointing.durable == 2
    driver.lose(1)
    driver.arrive(6)
    answer = driver.parts.runs.of("epoch")
    assert answer is not None and works(answer, "tentative"), "first of all an answer"
    driver.finish(answer)
    driver.arrive(7)
    waits = driver.parts.runs.of("epoch") is None
    assert waits == (size <= LARGEST)
    while waits and (replay := driver.parts.runs.of("replay")) is not None:
        driver.finish(replay)
    exact = driver.parts.runs.of("epoch")
    assert exact is not None and len(works(exact)) == (4 if waits else 1)


def sized(driver: Driver, epoch: int, size: int, took: float = 0.0, restored: int = 0) -> None:
    """An epoch after which states have so many bytes; the first came from the store then, with as many as said."""
    driver.arrive(epoch)
    run = driver.only(Run)
    reports = [replace(driver.report(work), state_bytes=size) for work in run.works]
    if took:
        reports[0] = replace(reports[0], restored=took, state_bytes=restored)
    driver.done(run, *reports)


@pytest.mark.parametrize(
    ("size", "took", "restored", "within", "waits"),
    [
        (int(READ), 0.0, 0, 2.0, True),
        (int(READ * 3), 0.0, 0, 2.0, False),  # by what a store is taken to give
        (int(READ * 3), 1.0, int(READ * 6), 2.0, True),  # this one gives more,
        (int(READ), 1.0, int(READ / 4), 2.0, False),  # and this one less,
        (1000, 3.0, 1000, 2.0, False),  # or it is far away
        (1000, 3.0, 1000, float("inf"), True),
    ],
)
def test_an_answer_waits_for_no_state_that_takes_longer_than_it_may_take_itself(
    size: int, took: float, restored: int, within: float, waits: bool
) -> None:
    driver = two_nodes(capacity=1000.0, checkpoint_every=3, restore_within=within)
    sized(driver, 5, size, took, restored)
    sized(driver, 6, size)
    (plan,) = [each.fields for each in driver.lose(1) if isinstance(each, Record) and each.kind == "recovery plan"]
    driver.arrive(7)
    answer = driver.parts.runs.of("epoch")
    assert answer is not None and answer.works, "those who are there answer"
    assert any(work.origin == "checkpoint" for work in answer.works) == waits
    assert ("answers do without" in plan["why"]) == (not waits)
    driver.finish(answer)
    assert driver.parts.runs.of("replay") is not None, "what nobody waits for is restored all the same"


@pytest.mark.parametrize(
    ("touched", "waits"), [([1000], True), ([None], False), ([None, 1000], False), ([None, *[1000] * 20], True)]
)
def test_an_answer_waits_for_a_fork_by_what_its_epochs_touch(touched: list[int | None], waits: bool) -> None:
    """A large state of which an epoch looks up a few keys is there soon; not if all of it was needed of late."""
    driver = two_nodes(capacity=1000.0, checkpoint_every=100, restore_within=2.0)
    for epoch, size in enumerate(touched, 5):
        driver.arrive(epoch)
        run = driver.only(Run)
        driver.done(run, *(replace(driver.report(work), state_bytes=int(READ * 3), touched=size) for work in run.works))
    driver.lose(1)
    assert bool(driver.parts.measurements.dear(2.0)) != waits


def test_a_state_that_takes_long_is_waited_for_where_nobody_else_has_an_answer() -> None:
    driver = Driver(chain(1, 1), nodes=2, capacity=1000.0, checkpoint_every=3, restore_within=0.1)
    driver.join(0, 1)
    for epoch in range(5):
        driver.epoch(epoch)
    sized(driver, 5, int(READ))
    driver.lose(int(driver.home("A/0").removeprefix("node-")))
    driver.arrive(6)
    answer = driver.parts.runs.of("epoch")
    assert answer is not None and works(answer, "tentative") == {"A/0": (6, 6, "checkpoint")}


@pytest.mark.parametrize("waits", [True, False], ids=["waiting", "computing"])
@pytest.mark.parametrize("seconds", [0.01, 0.2])
def test_epochs_that_take_next_to_nothing_are_replayed_in_one_run_for_which_the_next_epoch_waits(
    seconds: float, waits: bool
) -> None:
    """Ten epochs are a few tenths of a second of work, or many seconds: readers get tentative answers meanwhile."""
    driver = two_nodes(capacity=1000.0, checkpoint_every=100)
    for epoch in range(5, 10):
        driver.arrive(epoch)
        run = driver.only(Run)
        driver.done(
            run,
            *(
                replace(driver.report(work), seconds=0.001 if waits else seconds, took=seconds, state_bytes=1)
                for work in run.works
            ),
        )
    driver.lose(1)
    driver.arrive(10)
    answer = driver.parts.runs.of("epoch")
    assert answer is not None and works(answer, "tentative"), "first of all an answer"
    driver.finish(answer)
    driver.arrive(11)
    epoch_run, replay = driver.parts.runs.of("epoch"), driver.parts.runs.of("replay")
    assert replay is not None and replay.first == 0
    assert replay.last == (9 if seconds < 0.1 else 7) and (epoch_run is None) == (seconds < 0.1)
    while epoch_run is None and (replay := driver.parts.runs.of("replay")) is not None:
        driver.finish(replay)
    answer = driver.parts.runs.of("epoch")
    assert answer is not None and bool(works(answer, "tentative")) == (seconds > 0.1)
