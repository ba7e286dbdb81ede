"""The journal of source epochs: what replay needs. Any worker writes blocks, the writer commits an epoch.

An epoch that is not committed does not exist. ``sync`` decides whether it outlives a machine's crash (docs/state.md).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import pyarrow as pa

from holdfast.errors import Invalid, Unrecoverable
from holdfast.state.entries import Damaged, FileEntry, checksum, document, read_checked, read_document
from holdfast.state.files import Files
from holdfast.state.ipc import METADATA, Unreadable, decode_batch, encode_batch, note_bytes
from holdfast.state.names import task_folder

FOLDER = "journal"
COMMITS = "journal/commits"
_BLOCK = re.compile(r".+-(\d{10})-[0-9a-f]{32}\.arrow")
_COMMIT = re.compile(r"(-?\d+)-(\d{10})\.json")

Block: TypeAlias = pa.Table | bytes


def write(files: Files, epoch: int, task: str, blocks: Block | Sequence[Block], *, token: int, sync: bool) -> FileEntry:
    """One Arrow file with a source task's blocks: a table as it is, several blocks or bytes as rows of ``block``."""
    about: dict[str, Any] = {"kind": "journal", "task": str(task), "epoch": epoch}
    if isinstance(blocks, pa.Table):
        whole = blocks.combine_chunks().to_batches()
        if len(whole) > 1:
            raise Invalid(f"journal: a table of epoch {epoch} is over 2 GiB; give it in smaller tables")
        batch = whole[0] if whole else pa.RecordBatch.from_pylist([], schema=blocks.schema)
        about["form"] = "table"
        rows = len(batch)
    else:
        many = [blocks] if isinstance(blocks, bytes) else list(blocks)
        about["form"] = "bytes" if isinstance(blocks, bytes) else "blocks"
        data = [_stream(block) if isinstance(block, pa.Table) else block for block in many]
        tables = [isinstance(block, pa.Table) for block in many]
        batch = pa.record_batch({"block": pa.array(data, pa.large_binary()), "table": pa.array(tables, pa.bool_())})
        rows = sum(len(block) for block in many if isinstance(block, pa.Table))
    metadata = {**(batch.schema.metadata or {}), METADATA: note_bytes(about)}
    encoded = encode_batch(batch.replace_schema_metadata(metadata))
    proof = checksum(encoded)
    path = f"{FOLDER}/{epoch:012d}/{task_folder(task)}-{token:010d}-{proof}.arrow"
    files.put(path, encoded, sync)
    return FileEntry(path, encoded.size, proof, rows, "", epoch)


def commit(
    files: Files, epoch: int, entries: Mapping[str, FileEntry], *, token: int, sync: bool, extra: Mapping[str, Any]
) -> None:
    tasks = {str(task): entry.to_json() for task, entry in entries.items()}
    content = {"epoch": epoch, "token": token, "tasks": tasks, "extra": dict(extra)}
    files.put(f"{COMMITS}/{epoch:012d}-{token:010d}.json", document("journal", content), sync)


def commit_facts(name: str) -> tuple[int, int] | None:
    """Epoch and token in a commit's name; None for a file that is none."""
    match = _COMMIT.fullmatch(name)
    return (int(match[1]), int(match[2])) if match else None


def block_token(name: str) -> int:
    """The token in a block's name; 0 for a file that is none."""
    match = _BLOCK.fullmatch(name)
    return int(match[1]) if match else 0


def commit_names(files: Files, found: Mapping[str, Any] | None, newest: int) -> dict[int, str]:
    """For each committed epoch the name of its commit that counts."""
    best: dict[int, tuple[int, str]] = {}
    for name in files.list(COMMITS):
        if (match := _COMMIT.fullmatch(name)) is None:
            continue
        epoch, token = int(match[1]), int(match[2])
        if token < newest and found is not None and name not in found["journal"]:
            continue
        best[epoch] = max(best.get(epoch, (-1, "")), (token, name))
    return {epoch: f"{COMMITS}/{best[epoch][1]}" for epoch in sorted(best)}


def read_commit(files: Files, name: str) -> tuple[dict[str, FileEntry], dict[str, Any]]:
    """The entries and the extra of a committed epoch, or Damaged."""
    body = read_document(files, "journal", name)
    if f"{COMMITS}/{body['epoch']:012d}-{body['token']:010d}.json" != name:
        raise Damaged(f"{name} is of epoch {body['epoch']}: files were swapped")
    return {task: FileEntry.from_json(entry) for task, entry in body["tasks"].items()}, body["extra"]


def read(files: Files, entry: FileEntry, task: str) -> Block | list[Block]:
    """What was written, in the form it was given."""
    try:
        batch, note = decode_batch(read_checked(files, entry))
    except Unreadable as error:
        raise Damaged(f"{entry.path}: {error}") from error
    if (note.get("task"), note.get("epoch")) != (str(task), entry.epoch):
        raise Damaged(f"{entry.path} is of {note.get('task')} at epoch {note.get('epoch')}: files were swapped")
    blocks: list[Block]
    if note["form"] == "table":
        metadata = {k: v for k, v in (batch.schema.metadata or {}).items() if k != METADATA}
        blocks = [pa.Table.from_batches([batch]).replace_schema_metadata(metadata or None)]
        return blocks[0]
    rows = zip(batch.column("block").to_pylist(), batch.column("table").to_pylist(), strict=True)
    blocks = [pa.ipc.open_stream(data).read_all() if table else data for data, table in rows]
    return blocks[0] if note["form"] == "bytes" else blocks


def entry_of(entries: Mapping[str, FileEntry], epoch: int, task: str) -> FileEntry:
    try:
        return entries[str(task)]
    except KeyError:
        have = ", ".join(entries) or "none"
        raise Unrecoverable(f"journal: epoch {epoch} has nothing of task {task}, only of {have}") from None


def _stream(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue().to_pybytes())
