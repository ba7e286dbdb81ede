"""Levels that need no exchange are one: in any layout, each work sees the blocks that it is to see, and no others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, cast

import pytest
from driving import chain, task
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.runtime.messages import NodeInfo, Report, Run, Work
from holdfast.runtime.worker.blocks import Block, once
from holdfast.runtime.worker.plan import (
    KeptOutput,
    RunPlan,
    Slot,
    absent_barrier,
    depths,
    lay_out,
    one_part,
    pieces_for,
    source_task,
)
from holdfast.runtime.worker.slot_parts import Cut
from holdfast.runtime.worker.worker import JobContext, Worker
from holdfast.state.entries import FileEntry
from holdfast.state.journal import JournalEpoch, JournalSpan
from holdfast.topology import Operator, Stream, Task, Topology
from holdfast.topology.random import Knobs, random_topology

FIRST, LAST, PIECES = 3, 4, 3
Seen = dict[tuple[Work, int], list[tuple[Task, int]]]


class Recording(Worker):
    """Carries out nothing: notes what each work was given, and sends a block to every receiver."""

    def __init__(self, topology: Topology, seen: Seen) -> None:
        super().__init__(cast(JobContext, None), store=cast(Any, "no store"))
        self._topology, self._seen = topology, seen

    def versions(self, folder: str) -> Any:
        return self

    def sweep(self, plan: RunPlan) -> None: ...

    def _one(
        self, plan: RunPlan, work: Work, waiting: Mapping[tuple[Task, int], list[Block]]
    ) -> tuple[list[Block], Report]:
        for epoch in work.epochs:
            blocks = once(waiting.get((work.task, epoch), ()))
            assert not absent_barrier(self._topology, plan, work.task, epoch, blocks)
            assert (work, epoch) not in self._seen, "a work is carried out once"
            self._seen[work, epoch] = sorted((block.sender, block.piece) for block in blocks)
        epochs = work.epochs if work.lane != "replica" else ()
        sent = [block for epoch in epochs for block in sent_by(self._topology, work.task, epoch)]
        return sent, Report(work.task, work.lane, work.node, "committed", work.last)

    def _kept(self, plan: RunPlan, kept: KeptOutput) -> list[Block]:
        epochs = range(kept.first, kept.last + 1)
        return [block for epoch in epochs for block in sent_by(self._topology, kept.task, epoch)]


def sent_by(topology: Topology, sender: Task, epoch: int, piece: int = 0) -> list[Block]:
    return [
        Block(epoch, sender, piece, Task(stream.target, number), None, 0, b"")
        for stream in topology.outputs_of(sender.operator)
        for number in topology.receivers(stream, sender.number)
    ]


def carried_out(topology: Topology, plan: RunPlan) -> Seen:
    """What each work saw in each epoch, when the levels of a plan are carried out as Spark does: slot by slot, each by
    its own part of the plan."""
    seen: Seen = {}
    worker, cut = Recording(topology, seen), Cut(plan, topology)
    bundles: list[list[list[Block]]] = []
    for index in range(2):
        part = cut.journal(2).of(index)
        blocks = [
            block
            for source in topology.sources
            for epoch, piece in part.reads
            for block in sent_by(topology, source_task(topology, source.name, piece, PIECES), epoch.epoch, piece)
        ]
        bundles.append(part.plan.spread(blocks, 0) if plan.levels else [])
    for number, slots in enumerate(plan.levels):
        parts, arrived, bundles = cut.level(number), bundles, []
        for index, slot in enumerate(slots):
            part = parts.of(index)
            assert part.slot == slot
            sent, _ = worker.work(part.plan, part.slot, [block for each in arrived for block in each[index]])
            bundles.append(part.plan.spread(sent, number + 1) if number + 1 < len(plan.levels) else [])
    return seen


def drawn(seed: int) -> tuple[Topology, Run, dict[str, NodeInfo], JournalSpan]:
    """A topology and a replay of two epochs: primaries, replicas, sides and kept outputs on nodes of some cores."""
    random = Random(seed)
    topology = random_topology(seed, Knobs(operators=(2, 6), parallelism=(1, 4), queries=(1, 2)))
    names = [f"node-{number}" for number in range(random.randint(1, 3))]
    shared = random.random() < 0.5
    nodes = {
        name: NodeInfo("0", name, "host", name, "here" if shared else f"executor_host_{name}", random.randint(1, 3))
        for name in names
    }
    if shared:
        cores = random.randint(1, 3)
        nodes = {name: NodeInfo("0", name, "host", name, "here", cores) for name in names}
    works: list[Work] = []
    buffers: dict[Task, tuple[str, int, int]] = {}
    homes = random.random() < 0.5
    for each in topology.tasks:
        if not topology.inputs_of(each.operator):
            continue
        node = names[each.number % len(names)] if homes else random.choice(names)
        if topology.outputs_of(each.operator) and random.random() < 0.1:
            buffers[each] = (node, FIRST, LAST)
            continue
        if random.random() < 0.1:
            works.append(Work(each, node, "side", "local", FIRST - 1, FIRST, FIRST))
            works.append(Work(each, random.choice(names), "exact", "local", FIRST, FIRST + 1, LAST))
        else:
            works.append(Work(each, node, "exact", "local", FIRST - 1, FIRST, LAST))
        if random.random() < 0.2 and len(names) > 1:
            other = random.choice([name for name in names if name != node])
            works.append(Work(each, other, "replica", "local", FIRST - 1, FIRST, LAST))
    random.shuffle(works)
    pieces = tuple(FileEntry(f"journal/{piece}", 1, "", 0) for piece in range(PIECES))
    epochs = tuple(JournalEpoch(epoch, pieces, {}) for epoch in range(FIRST, LAST + 1))
    return topology, Run(0, "replay", tuple(works), buffers=buffers), nodes, JournalSpan(epochs)


def expected(topology: Topology, run: Run) -> Seen:
    """By definition: of every sender that is computed or kept in the epoch a block, of sources one for each part."""
    present = {(work.task, epoch) for work in run.works if work.lane != "replica" for epoch in work.epochs}
    present |= {(sender, epoch) for sender, (_, first, last) in run.buffers.items() for epoch in range(first, last + 1)}
    seen: Seen = {}
    for work in run.works:
        for epoch in work.epochs:
            came = seen[work, epoch] = []
            for stream in topology.inputs_of(work.task.operator):
                senders = [Task(stream.source, number) for number in topology.senders(stream, work.task.number)]
                if topology.inputs_of(stream.source):
                    came += [(sender, 0) for sender in senders if (sender, epoch) in present]
                else:
                    parts = [(source_task(topology, stream.source, piece, PIECES), piece) for piece in range(PIECES)]
                    came += [part for part in parts if part[0] in senders]
            came.sort()
    return seen


@settings(deadline=None, derandomize=True, max_examples=300)
@given(st.integers(0, 10**6), st.booleans())
def test_every_work_sees_what_it_is_to_see(seed: int, few: bool) -> None:
    topology, run, nodes, span = drawn(seed)
    plan = lay_out(topology, run, nodes, span, few=few)
    assert carried_out(topology, plan) == expected(topology, run)
    slots = [slot for level in plan.levels for slot in level]
    assert sorted(map(repr, (work for slot in slots for work in slot.works))) == sorted(map(repr, run.works))
    assert {kept.task for slot in slots for kept in slot.kept} == set(run.buffers)
    assert all(slot.place == nodes[each.node].place for slot in slots for each in (*slot.works, *slot.kept))
    for level in plan.levels:
        assert len({(slot.place, slot.core) for slot in level}) == len(level)
        for place in {slot.place for slot in level}:
            cores = 1 if few else max(info.cores for info in nodes.values() if info.place == place)
            assert sum(slot.place == place for slot in level) <= cores
    deep = depths(topology)
    for slot in slots:
        assert [deep[work.task.operator] for work in slot.works] == sorted(deep[w.task.operator] for w in slot.works)


def shape(plan: RunPlan) -> list[list[tuple[str, list[str]]]]:
    return [[(slot.place, [str(work.task) for work in slot.works]) for slot in level] for level in plan.levels]


def laid_out(topology: Topology, homes: Mapping[str, str], cores: int = 1, few: bool = False, at: str = "") -> RunPlan:
    """``homes``: of each task the node. ``at``: the place of all nodes; each is one by itself when empty."""
    nodes = {node: NodeInfo("0", place=at or node, folder=node, cores=cores) for node in homes.values()}
    works = tuple(Work(task(each), node, "exact", "local", 2, 3, 3) for each, node in homes.items())
    return lay_out(topology, Run(0, "epoch", works, ingest=3, epoch=3), nodes, JournalSpan(()), few=few)


def paired(kind: Any, first: int, second: int) -> Topology:
    return Topology((Operator("S"), Operator("A", first), Operator("B", second)),
                    (Stream("S", "A", "split" if first > 1 else "one-to-one"), Stream("A", "B", kind)))  # fmt: skip


def test_levels_that_are_one_to_one_on_their_nodes_are_one() -> None:
    homes = {"A/0": "node-0", "A/1": "node-1", "B/0": "node-0", "B/1": "node-1"}
    plan = laid_out(paired("one-to-one", 2, 2), homes)
    assert shape(plan) == [[("node-0", ["A/0", "B/0"]), ("node-1", ["A/1", "B/1"])]]
    assert plan.receivers[task("B/1")] == (0, ((1, 3, 3),))
    apart = laid_out(paired("one-to-one", 2, 2), {**homes, "B/1": "node-0"})
    assert len(apart.levels) == 2, "B/1 is not where A/1 is"


def test_one_place_with_one_slot_needs_no_exchange_at_all() -> None:
    homes = {f"{name}/{number}": f"node-{number % 2}" for name in "ABC" for number in range(4)}
    all_cores = laid_out(chain(2, 4, 4, 4), homes, cores=2, at="here")
    assert [len(level) for level in all_cores.levels] == [2, 2, 2]
    one = laid_out(chain(2, 4, 4, 4), homes, cores=2, few=True, at="here")
    assert [len(level) for level in one.levels] == [1] and len(one.levels[0][0].works) == 12
    assert one.places == ("here", "here"), "what is read is dealt over all cores all the same"


@pytest.mark.parametrize(("cores", "levels"), [(1, 1), (2, 2)])
def test_cores_are_not_given_away_to_save_an_exchange(cores: int, levels: int) -> None:
    homes = {"A/0": "node-0", **{f"B/{number}": "node-0" for number in range(4)}}
    assert len(laid_out(paired("split", 1, 4), homes, cores).levels) == levels


def test_a_replica_elsewhere_needs_the_exchange() -> None:
    topology = paired("one-to-one", 1, 1)
    nodes = {node: NodeInfo("0", place=node, folder=node) for node in ("node-0", "node-1")}
    works = [Work(task(each), "node-0", "exact", "local", 2, 3, 3) for each in ("A/0", "B/0")]

    def levels(*more: Work) -> Sequence[Sequence[Slot]]:
        run = Run(0, "epoch", (*works, *more), ingest=3, epoch=3)
        return lay_out(topology, run, nodes, JournalSpan(())).levels

    copies = [Work(task(each), "node-1", "replica", "local", 2, 3, 3) for each in ("A/0", "B/0")]
    assert len(levels()) == 1 and len(levels(copies[0])) == 1, "a replica sends nothing"
    assert len(levels(copies[1])) == len(levels(*copies)) == 2


@pytest.mark.parametrize(
    ("partitioning", "source", "target", "one"),
    [
        ("full", 2, 3, True), ("full", 1, 1, True), ("one-to-one", 1, 1, True), ("one-to-one", 2, 2, False),
        ("split", 1, 3, True), ("split", 2, 4, False), ("merge", 3, 1, True), ("merge", 4, 2, False),
    ],
)  # fmt: skip
def test_a_batch_may_come_in_one_part_unless_parts_have_receivers_of_their_own(
    partitioning: Any, source: int, target: int, one: bool
) -> None:
    topology = Topology((Operator("S", source), Operator("B", target)), (Stream("S", "B", partitioning),))
    assert one_part(topology) is one
    if one:
        stream = topology.streams[0]
        for receiver in range(target):
            assert pieces_for(topology, stream, receiver, 1) == {0}, "everybody hears of the one part"
