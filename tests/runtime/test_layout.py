"""Layouts and blocks: who works where, what goes to whom, which barrier is missing; packing keeps every block whole."""

from __future__ import annotations

import pyarrow as pa
from driving import chain, task
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.runtime.messages import Run, Work
from holdfast.runtime.worker.blocks import ALIGNED, Block, encode, once, pack, unpack
from holdfast.runtime.worker.plan import absent_barrier, depths, lay_out
from holdfast.topology import Operator, Stream, Task, Topology

PLACES = {"node-0": "p0", "node-1": "p1"}


def work(written: str, node: str, lane: str = "exact", first: int = 3, last: int = 3) -> Work:
    return Work(task(written), node, lane, "local", first - 1, first, last)  # type: ignore[arg-type]


def block(sender: str, receiver: str, epoch: int = 3, piece: int = 0) -> Block:
    return Block(epoch, task(sender), piece, task(receiver), None, 0, b"")


def test_a_level_has_one_slot_for_each_place() -> None:
    topology = chain(1, 2, 2)
    run = Run(
        0, "epoch", (work("A/0", "node-0"), work("A/1", "node-0"), work("B/0", "node-0"), work("B/1", "node-1")), live=3
    )
    layout = lay_out(topology, run, PLACES, {3: 1})
    assert [[(slot.place, len(slot.works)) for slot in level] for level in layout.levels] == [
        [("p0", 2)],
        [("p0", 1), ("p1", 1)],
    ]
    assert depths(topology) == {"S": 0, "A": 1, "B": 2}


def test_blocks_go_to_every_copy_that_processes_their_epoch() -> None:
    topology = chain(1, 1, 1)
    works = (work("A/0", "node-0"), work("A/0", "node-1", "replica"), work("B/0", "node-1"))
    layout = lay_out(topology, Run(0, "epoch", works, live=3), PLACES, {3: 1})
    first = layout.spread([block("S/0", "A/0"), block("S/0", "A/0", epoch=4)], 0)
    assert [len(share) for share in first] == [1, 1], "both copies get epoch 3, nobody asked for epoch 4"
    assert [len(share) for share in layout.spread([block("A/0", "B/0")], 1)] == [1]


def test_blocks_for_later_levels_travel_along() -> None:
    topology = Topology(
        (Operator("S", costs=(0.0,)), Operator("A"), Operator("B")),
        (Stream("S", "A", "full"), Stream("A", "B", "full"), Stream("S", "B", "full")),
    )
    layout = lay_out(topology, Run(0, "epoch", (work("A/0", "node-0"), work("B/0", "node-1")), live=3), PLACES, {3: 1})
    (share,) = layout.spread([block("S/0", "B/0"), block("S/0", "C/0")], 0)
    assert [each.receiver for each in share] == [task("B/0")], "nobody is C"


def test_a_side_and_the_live_copy_of_one_task_get_each_its_epochs() -> None:
    topology = chain(1, 1)
    works = (work("A/0", "node-0", "side", 1, 2), work("A/0", "node-1", "exact", 3, 4))
    layout = lay_out(topology, Run(0, "replay", works), PLACES, dict.fromkeys(range(1, 5), 1))
    shares = layout.spread([block("S/0", "A/0", epoch) for epoch in range(1, 5)], 0)
    assert [[each.epoch for each in share] for share in shares] == [[1, 2], [3, 4]]


def test_the_missing_barrier_is_named() -> None:
    topology = chain(1, 2, 1)
    works = (work("A/0", "node-0"), work("A/1", "node-0", "replica"), work("B/0", "node-1"))
    layout = lay_out(topology, Run(0, "epoch", works, live=3), PLACES, {3: 2})
    assert absent_barrier(topology, layout, task("B/0"), 3, []) == "A/0"
    assert absent_barrier(topology, layout, task("B/0"), 3, [block("A/0", "B/0")]) == "", (
        "A/1 sends nothing in this run"
    )
    assert absent_barrier(topology, layout, task("A/0"), 3, [block("S/0", "A/0")]) == "1 of 2 parts of the batch"
    both = [block("S/0", "A/0"), block("S/0", "A/0", piece=1)]
    assert absent_barrier(topology, layout, task("A/0"), 3, both) == ""


def test_kept_outputs_stand_in_for_their_task() -> None:
    topology = chain(1, 1, 1)
    run = Run(0, "replay", (work("B/0", "node-1", "exact", 3, 4),), buffers={task("A/0"): ("node-0", 3, 4)})
    layout = lay_out(topology, run, PLACES, {})
    assert [[(slot.place, len(slot.works), len(slot.feeds)) for slot in level] for level in layout.levels] == [
        [("p0", 0, 1)],
        [("p1", 1, 0)],
    ]
    assert absent_barrier(topology, layout, task("B/0"), 4, []) == "A/0"


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


@settings(deadline=None, derandomize=True, max_examples=60)
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
