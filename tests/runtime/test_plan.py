"""Run plans and blocks: who works where, what goes to whom, which barrier is missing; packing keeps blocks whole."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pytest
from driving import chain, task
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.runtime.messages import NodeInfo, Run, Work
from holdfast.runtime.worker.blocks import ALIGNED, Block, encode, once, pack, unpack
from holdfast.runtime.worker.plan import RunPlan, absent_barrier, depths, epochs_of, lay_out, pieces_for
from holdfast.state.entries import FileEntry
from holdfast.state.journal import JournalEpoch, JournalSpan
from holdfast.topology import Operator, Stream, Task, Topology

NODES = {
    "node-0": NodeInfo("0", place="p0", folder="first"),
    "node-1": NodeInfo("0", place="p1", folder="second"),
}


def work(written: str, node: str, lane: str = "exact", first: int = 3, last: int = 3) -> Work:
    return Work(task(written), node, lane, "local", first - 1, first, last)  # type: ignore[arg-type]


def block(sender: str, receiver: str, epoch: int = 3, piece: int = 0) -> Block:
    return Block(epoch, task(sender), piece, task(receiver), None, 0, b"")


def span(pieces: Mapping[int, int]) -> JournalSpan:
    """Epochs, and into how many pieces the batch of each was cut."""
    return JournalSpan(
        tuple(JournalEpoch(e, tuple(entry(e, piece) for piece in range(count)), {}) for e, count in pieces.items())
    )


def entry(epoch: int, piece: int) -> FileEntry:
    return FileEntry(f"journal/{epoch}/{piece}", 1, "", 0)


def ingesting(topology: Topology, works: tuple[Work, ...], pieces: int = 1) -> RunPlan:
    return lay_out(topology, Run(0, "epoch", works, ingest=3, epoch=3), NODES, JournalSpan(())).ingesting(pieces)


def test_a_level_has_one_slot_for_each_place() -> None:
    topology = chain(1, 2, 2)
    works = (work("A/0", "node-0"), work("A/1", "node-0"), work("B/0", "node-0"), work("B/1", "node-1"))
    plan = ingesting(topology, works)
    assert [[(slot.place, len(slot.works)) for slot in level] for level in plan.levels] == [
        [("p0", 2)],
        [("p0", 1), ("p1", 1)],
    ]
    assert (
        plan.folders == {"node-0": "first", "node-1": "second"} and plan.places == ("p0", "p1") and plan.kind == "epoch"
    )
    assert depths(topology) == {"S": 0, "A": 1, "B": 2}


def test_nothing_that_need_not_be_is_read_on_nodes_that_leave() -> None:
    run = Run(0, "replay", (work("A/0", "node-0"),))
    plan = lay_out(chain(1, 1), run, NODES, span({3: 1}), retain=1, forks=frozenset({7}), leaving={"node-1"})
    assert plan.places == ("p0",) and (plan.retain, plan.forks, plan.kind) == (1, frozenset({7}), "replay")


def test_a_run_reads_back_what_it_processes_and_does_not_ingest() -> None:
    works = (work("A/0", "node-0", "side", 1, 2), work("B/0", "node-1", "exact", 3, 5))
    assert epochs_of(Run(0, "replay", works)) == range(1, 6)
    assert epochs_of(Run(0, "epoch", works, ingest=5)) == range(1, 5)
    assert epochs_of(Run(0, "epoch", (work("A/0", "node-0"),), ingest=3)) == range(0)
    assert epochs_of(Run(0, "replay", (work("A/0", "node-0", "replica", 4, 3),))) == range(0), "it only restores"


def test_what_is_read_back_comes_from_the_span_alone() -> None:
    plan = lay_out(chain(1, 1), Run(0, "replay", (work("A/0", "node-0", first=3, last=4),)), NODES, span({3: 2, 4: 1}))
    assert plan.pieces == {3: 2, 4: 1} and [len(each.pieces) for each in plan.journal] == [2, 1]


def test_blocks_go_to_every_copy_that_processes_their_epoch() -> None:
    topology = chain(1, 1, 1)
    works = (work("A/0", "node-0"), work("A/0", "node-1", "replica"), work("B/0", "node-1"))
    plan = ingesting(topology, works)
    first = plan.spread([block("S/0", "A/0"), block("S/0", "A/0", epoch=4)], 0)
    assert [len(share) for share in first] == [1, 1], "both copies get epoch 3, nobody asked for epoch 4"
    assert [len(share) for share in plan.spread([block("A/0", "B/0")], 1)] == [1]


def test_blocks_for_later_levels_travel_along() -> None:
    topology = Topology(
        (Operator("S", costs=(0.0,)), Operator("A"), Operator("B")),
        (Stream("S", "A", "full"), Stream("A", "B", "full"), Stream("S", "B", "full")),
    )
    plan = ingesting(topology, (work("A/0", "node-0"), work("B/0", "node-1")))
    (share,) = plan.spread([block("S/0", "B/0"), block("S/0", "C/0")], 0)
    assert [each.receiver for each in share] == [task("B/0")], "nobody is C"


def test_a_side_and_the_live_copy_of_one_task_get_each_its_epochs() -> None:
    topology = chain(1, 1)
    works = (work("A/0", "node-0", "side", 1, 2), work("A/0", "node-1", "exact", 3, 4))
    plan = lay_out(topology, Run(0, "replay", works), NODES, span({1: 1, 2: 1, 3: 1, 4: 1}))
    shares = plan.spread([block("S/0", "A/0", epoch) for epoch in range(1, 5)], 0)
    assert [[each.epoch for each in share] for share in shares] == [[1, 2], [3, 4]]


def test_the_missing_barrier_is_named() -> None:
    topology = chain(1, 2, 1)
    works = (work("A/0", "node-0"), work("A/1", "node-0", "replica"), work("B/0", "node-1"))
    plan = ingesting(topology, works, pieces=2)
    assert absent_barrier(topology, plan, task("B/0"), 3, []) == "A/0"
    assert absent_barrier(topology, plan, task("B/0"), 3, [block("A/0", "B/0")]) == "", "A/1 sends nothing in this run"
    assert absent_barrier(topology, plan, task("A/0"), 3, [block("S/0", "A/0")]) == "1 of 2 parts of the batch of S"
    both = [block("S/0", "A/0"), block("S/0", "A/0", piece=1)]
    assert absent_barrier(topology, plan, task("A/0"), 3, both) == ""


def test_kept_outputs_stand_in_for_their_task() -> None:
    topology = chain(1, 1, 1)
    run = Run(0, "replay", (work("B/0", "node-1", "exact", 3, 4),), buffers={task("A/0"): ("node-0", 3, 4)})
    plan = lay_out(topology, run, NODES, span({3: 1, 4: 1}))
    assert [[(slot.place, len(slot.works), len(slot.kept)) for slot in level] for level in plan.levels] == [
        [("p0", 0, 1)],
        [("p1", 1, 0)],
    ]
    assert absent_barrier(topology, plan, task("B/0"), 4, []) == "A/0"


def test_every_source_counts_also_behind_streams_that_are_not_full() -> None:
    topology = Topology(
        (Operator("S", 2, costs=(0.0, 0.0)), Operator("A", 4), Operator("B", 2)),
        (Stream("S", "A", "split"), Stream("S", "B", "one-to-one")),
    )
    plan = ingesting(topology, (work("A/2", "node-0"), work("B/0", "node-1")), pieces=4)
    (split,), (paired,) = topology.inputs_of("A"), topology.inputs_of("B")
    # Pieces 0 and 1 are read by S/0, which feeds A/0, A/1 and B/0; 2 and 3 by S/1.
    assert pieces_for(topology, split, 2, 4) == {2, 3} and pieces_for(topology, paired, 0, 4) == {0, 1}
    one, other = block("S/1", "A/2", piece=2), block("S/1", "A/2", piece=3)
    assert absent_barrier(topology, plan, task("A/2"), 3, [one]) == "1 of 2 parts of the batch of S"
    assert absent_barrier(topology, plan, task("A/2"), 3, [one, other]) == ""
    assert absent_barrier(topology, plan, task("B/0"), 3, [one, other]) == "2 of 2 parts of the batch of S"


def test_an_epoch_of_which_nothing_is_known_is_no_epoch_without_parts() -> None:
    topology = chain(1, 1)
    plan = lay_out(topology, Run(0, "replay", (work("A/0", "node-0", first=3, last=4),)), NODES, span({3: 1}))
    assert absent_barrier(topology, plan, task("A/0"), 3, [block("S/0", "A/0")]) == ""
    with pytest.raises(KeyError, match="4"):
        absent_barrier(topology, plan, task("A/0"), 4, [])


names = st.sampled_from(["A", "B", "long name"])
blocks = st.builds(
    lambda epoch, sender, piece, receiver, stamp, payload: Block(
        epoch, Task(sender, piece), piece, Task(receiver, 1), stamp, len(payload), payload
    ),
    st.integers(0, 2**40),
    names,
    st.integers(0, 99),
    names,
    st.none() | st.integers(-(2**62), 2**62),
    st.binary(max_size=70),
)


@settings(deadline=None, derandomize=True, max_examples=30)
@given(st.lists(blocks, max_size=6))
def test_packed_blocks_come_out_as_they_went_in(given_blocks: list[Block]) -> None:
    found = unpack(pack(given_blocks))
    assert [(b.epoch, b.sender, b.piece, b.receiver, b.stamp, b.rows, bytes(b.payload)) for b in found] == [
        (b.epoch, b.sender, b.piece, b.receiver, b.stamp, b.rows, b.payload) for b in given_blocks
    ]


def test_payloads_are_aligned_and_read_in_place() -> None:
    table = pa.table({"n": [1, 2, 3]})
    sent = [Block(1, task("A/0"), 0, task("B/0"), None, 3, encode(table)) for _ in range(2)]
    bundle = pack(sent)
    assert [each.table() for each in unpack(bundle)] == [table, table]
    assert all(bundle.index(encode(table), at) % ALIGNED == 0 for at in (0,))


def test_a_copy_of_a_block_is_the_same_block_and_order_is_by_sender() -> None:
    a, b, c = block("A/1", "B/0"), block("A/0", "B/0", piece=1), block("A/0", "B/0")
    assert once([a, b, a, c, b]) == [c, b, a]


def test_works_of_a_place_are_dealt_over_its_cores_by_task() -> None:
    topology = chain(1, 5)
    nodes = {
        "node-0": NodeInfo("0", place="p0", folder="first", cores=2),
        "node-1": NodeInfo("0", place="p1", folder="second", cores=4),
    }
    both = [work("A/0", "node-0", last=4), work("A/0", "node-0", "side", first=5, last=6)]
    works = (work("A/3", "node-0"), *both, work("A/1", "node-0"), work("A/2", "node-1"), work("A/4", "node-1"))
    run = Run(0, "replay", works, buffers={task("A/9"): ("node-0", 3, 4)})
    plan = lay_out(topology, run, nodes, span(dict.fromkeys(range(3, 7), 1)))

    slots = [
        (slot.place, slot.core, [str(each.task) for each in slot.works], len(slot.kept)) for slot in plan.levels[0]
    ]
    assert slots == [
        ("p0", 0, ["A/3", "A/0", "A/0"], 1),
        ("p0", 1, ["A/1"], 0),
        ("p1", 0, ["A/2"], 0),
        ("p1", 1, ["A/4"], 0),
    ]
    assert plan.receivers[task("A/0")] == (0, ((0, 3, 4), (0, 5, 6)))
    assert plan.places == ("p0", "p1", "p0", "p1", "p1", "p1")
