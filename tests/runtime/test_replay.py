"""What a replay runs: worked by hand, and checked on drawn cases by a validator that knows nothing of the algorithm."""

from __future__ import annotations

from random import Random

import pytest
from driving import chain, task

from holdfast.runtime.coordinator.replay import Buffers, CatchUp, Keep, feeding, replay
from holdfast.runtime.messages import Work
from holdfast.runtime.simulation.drawing import drawn_topology
from holdfast.topology import Operator, Stream, Task, Topology


def line() -> Topology:
    return chain(1, 1, 1, 1)


def spans(works: tuple[Work, ...], lane: str) -> dict[str, tuple[int, int]]:
    return {str(work.task): (work.first, work.last) for work in works if work.lane == lane}


def behind(written: str, position: int, node: str = "new") -> CatchUp:
    return CatchUp(task(written), node, "exact", "checkpoint", position)


def test_ancestors_of_what_was_lost_are_computed_again_and_nothing_below_it() -> None:
    ahead = {task("A/0"): ("a", 9), task("B/0"): ("new", 4), task("C/0"): ("c", 9)}
    works, read = replay(line(), [behind("B/0", 4)], ahead, 4, {}, {}, last=9)
    assert spans(works, "exact") == {"B/0": (5, 9)} and spans(works, "side") == {"A/0": (5, 9)} and not read


def test_two_behind_one_another_share_a_run() -> None:
    ahead = {task("A/0"): ("a", 9), task("B/0"): ("new", 4), task("C/0"): ("new", 4)}
    works, _ = replay(line(), [behind("B/0", 4), behind("C/0", 4)], ahead, 4, {}, {}, last=7)
    assert spans(works, "exact") == {"B/0": (5, 7), "C/0": (5, 7)} and spans(works, "side") == {"A/0": (5, 7)}


def test_one_behind_the_other_by_more_has_the_middle_on_the_side() -> None:
    ahead = {task("A/0"): ("a", 9), task("B/0"): ("b", 6), task("C/0"): ("new", 4)}
    works, _ = replay(
        line(), [CatchUp(task("B/0"), "b", "exact", "local", 6), behind("C/0", 4)], ahead, 4, {}, {}, last=9
    )
    assert spans(works, "exact") == {"B/0": (7, 9), "C/0": (5, 9)}
    assert spans(works, "side") == {"A/0": (5, 9), "B/0": (5, 6)}


def test_a_side_goes_on_where_the_last_replay_left_it() -> None:
    ahead = {task("A/0"): ("a", 9), task("B/0"): ("new", 6), task("C/0"): ("c", 9)}
    works, _ = replay(line(), [behind("B/0", 6)], ahead, 4, {task("A/0"): ("other", 6)}, {}, last=9)
    side = next(work for work in works if work.lane == "side")
    assert (side.node, side.origin, side.start, side.last) == ("other", "local", 6, 9)


def test_a_side_that_went_too_far_begins_at_the_checkpoint_again() -> None:
    ahead = {task("A/0"): ("a", 9), task("B/0"): ("new", 5), task("C/0"): ("c", 9)}
    works, _ = replay(line(), [behind("B/0", 5)], ahead, 4, {task("A/0"): ("other", 8)}, {}, last=9)
    side = next(work for work in works if work.lane == "side")
    assert (side.node, side.origin, side.start) == ("a", "checkpoint", 4)


def test_a_stateless_ancestor_computes_just_what_is_asked_for() -> None:
    topology = chain(1, 1, 1, stateless=("A",))
    ahead = {task("A/0"): ("a", 9), task("B/0"): ("b", 7)}
    works, _ = replay(topology, [CatchUp(task("B/0"), "b", "exact", "local", 7)], ahead, 4, {}, {}, last=9)
    assert spans(works, "side") == {"A/0": (8, 9)}


def test_buffers_spare_the_ancestors() -> None:
    ahead = {task("A/0"): ("a", 9), task("B/0"): ("b", 9), task("C/0"): ("new", 4)}
    works, read = replay(line(), [behind("C/0", 4)], ahead, 4, {}, {task("B/0"): ("b", 5, 9)}, last=9)
    assert spans(works, "side") == {} and read == {task("B/0"): ("b", 5, 9)}
    works, read = replay(line(), [behind("C/0", 4)], ahead, 4, {}, {task("B/0"): ("b", 8, 9)}, last=9)
    assert spans(works, "side") == {"A/0": (5, 7), "B/0": (5, 7)} and read == {task("B/0"): ("b", 8, 9)}


def test_outputs_are_kept_for_receivers_that_stay_behind() -> None:
    topology = Topology(
        (Operator("S", costs=(0.0,)), Operator("A", stateful=True), Operator("B", 2, stateful=True)),
        (Stream("S", "A", "full"), Stream("A", "B", "full")),
    )
    ahead = {task("A/0"): ("a", 4), task("B/0"): ("b", 9)}
    for keep, kept in (("none", False), ("wanted", True), ("all", True)):
        works, _ = replay(topology, [behind("A/0", 4, "a")], ahead, 4, {}, {}, 9, keep)  # type: ignore[arg-type]
        assert works[0].keep is kept, keep
    works, _ = replay(topology, [behind("A/0", 4, "a")], {**ahead, task("B/1"): ("c", 9)}, 4, {}, {}, 9, "wanted")
    assert not works[0].keep, "everybody has it already"


def test_feeding_is_the_senders_of_marked_tasks() -> None:
    topology = Topology(
        (Operator("S", 4, costs=(0.0,) * 4), Operator("A", 2), Operator("B", 4), Operator("C", 4)),
        (Stream("S", "A", "merge"), Stream("A", "B", "split"), Stream("B", "C", "one-to-one")),
    )
    fed = feeding(topology, topology.mask([task("A/1"), task("B/1"), task("C/3")]))
    assert [str(each) for each, marked in zip(topology.tasks, fed, strict=True) if marked] == [
        "S/2",
        "S/3",
        "A/0",
        "B/3",
    ]


def drawn(
    seed: int,
) -> tuple[Topology, list[CatchUp], dict[Task, tuple[str, int]], int, dict[Task, tuple[str, int]], Buffers, int]:
    """A topology in the midst of a recovery: all tasks live, some are behind; some sides and buffers are there."""
    draw = Random(seed)
    topology = drawn_topology(draw)
    checkpoint, head = draw.randint(-1, 3), draw.randint(4, 9)
    copies, ahead = [], {}
    side: dict[Task, tuple[str, int]] = {}
    buffers: dict[Task, tuple[str, int, int]] = {}
    for each in topology.tasks:
        if not topology.inputs_of(each.operator):
            continue
        position = head if draw.random() < 0.6 else draw.randint(checkpoint, head - 1)
        ahead[each] = (f"home of {each}", position)
        if position < head:
            copies.append(CatchUp(each, f"home of {each}", "exact", "local", position))
        if draw.random() < 0.2:
            copies.append(CatchUp(each, "twin", "replica", "checkpoint", draw.randint(checkpoint, head - 1)))
        if draw.random() < 0.3:
            side[each] = ("elsewhere", draw.randint(checkpoint, head))
        if draw.random() < 0.3 and position > checkpoint:
            buffers[each] = ("keeper", draw.randint(checkpoint + 1, position), position)
    last = min(head, min((copy.position for copy in copies), default=head) + draw.randint(1, 8))
    return topology, copies, ahead, checkpoint, side, buffers, last


@pytest.mark.parametrize("keep", ["none", "wanted", "all"])
def test_every_work_of_a_drawn_replay_gets_every_barrier_once(keep: Keep) -> None:
    replays = 0
    for seed in range(400):
        topology, copies, ahead, checkpoint, side, buffers, last = drawn(seed)
        if not copies:
            continue
        replays += 1
        works, read = replay(topology, copies, ahead, checkpoint, side, buffers, last, keep)
        check_barriers(topology, works, read)
        check_starts(topology, works, copies, checkpoint, side, last)
    assert replays > 300


def check_barriers(topology: Topology, works: tuple[Work, ...], read: Buffers) -> None:
    """Each upstream task sends each epoch that somebody processes, and nobody sends one twice."""
    sends: dict[tuple[Task, int], int] = {}
    for work in works:
        for epoch in work.epochs if work.lane != "replica" else ():
            sends[work.task, epoch] = sends.get((work.task, epoch), 0) + 1
    for sender, (_, first, until) in read.items():
        for epoch in range(first, until + 1):
            sends[sender, epoch] = sends.get((sender, epoch), 0) + 1
    assert all(count == 1 for count in sends.values())
    for work in works:
        for stream in topology.inputs_of(work.task.operator):
            if topology.inputs_of(stream.source):
                for number in topology.senders(stream, work.task.number):
                    for epoch in work.epochs:
                        assert (Task(stream.source, number), epoch) in sends, f"{work} misses {stream.source}/{number}"


def check_starts(
    topology: Topology,
    works: tuple[Work, ...],
    copies: list[CatchUp],
    checkpoint: int,
    side: dict[Task, tuple[str, int]],
    last: int,
) -> None:
    """Copies go on from where they are; sides begin at the checkpoint or at a side that is there; none beyond last."""
    wanted = {(copy.task, copy.lane): copy for copy in copies if copy.position < last}
    assert {(work.task, work.lane) for work in works if work.lane != "side"} == set(wanted)
    for work in works:
        assert work.first == work.start + 1 and work.last <= last
        if work.lane != "side":
            assert work.start == wanted[work.task, work.lane].position and work.last == last
        elif work.origin == "local":
            assert side[work.task] == (work.node, work.start)
        elif topology.operator[work.task.operator].stateful:
            assert work.start == checkpoint
