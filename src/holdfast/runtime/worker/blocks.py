"""Blocks: the rows that one task sends another in one epoch, and the word that these are all. Arrow IPC on the way.

A block is sent even when it holds no rows: it is the barrier. Its identity is sender, piece and epoch; a second copy of
a block is the same block. Bundles are the blocks that travel together from one slot to another.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from holdfast.state.ipc import PLAIN
from holdfast.topology import Task

ALIGNED = 16
"""Payloads begin at multiples of this, as Python's own bytes do, so that Arrow can use them where they lie."""


@dataclass(frozen=True, slots=True)
class Block:
    """``piece``: of a source, which part of the batch. ``stamp``: the sender's watermark in microseconds, if known."""

    epoch: int
    sender: Task
    piece: int
    receiver: Task
    stamp: int | None
    rows: int
    payload: bytes | memoryview

    def table(self) -> pa.Table:
        with pa.ipc.open_stream(pa.py_buffer(self.payload)) as reader:
            return reader.read_all()

    @property
    def order(self) -> tuple[int, int]:
        """Rows are processed by sender, then by piece, then by position."""
        return self.sender.number, self.piece


def encode(table: pa.Table) -> memoryview:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=PLAIN) as writer:
        writer.write_table(table)
    return memoryview(sink.getvalue()).cast("B")


def pack(blocks: Sequence[Block], before: bytes = b"") -> bytes:
    """Blocks as one string of bytes: a header in JSON that describes them, then their payloads, each aligned.

    ``before``: what the string begins with, of an aligned length. Each payload is copied once.
    """
    header = json.dumps(
        [[b.epoch, *b.sender, b.piece, *b.receiver, b.stamp, b.rows, len(b.payload)] for b in blocks],
        separators=(",", ":"),
    ).encode()
    parts: list[bytes | memoryview] = [before, struct.pack("<I", len(header)), header]
    parts.append(bytes(-(4 + len(header)) % ALIGNED))
    for block in blocks:
        parts += [block.payload, bytes(-len(block.payload) % ALIGNED)]
    return b"".join(parts)


def unpack(bundle: bytes | memoryview) -> list[Block]:
    """The blocks of a bundle; payloads are views into it."""
    view = memoryview(bundle)
    (length,) = struct.unpack_from("<I", view)
    at = 4 + length
    described = json.loads(bytes(view[4:at]))
    at += -at % ALIGNED
    blocks = []
    for epoch, sender, number, piece, receiver, index, stamp, rows, size in described:
        blocks.append(
            Block(epoch, Task(sender, number), piece, Task(receiver, index), stamp, rows, view[at : at + size])
        )
        at += size + -size % ALIGNED
    return blocks


def once(blocks: Iterable[Block]) -> list[Block]:
    """Each block once, in the order in which rows are processed."""
    seen = {(block.sender, block.piece, block.epoch): block for block in blocks}
    return sorted(seen.values(), key=lambda block: (block.epoch, block.order))
