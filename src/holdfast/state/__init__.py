"""Operator state as data: state tables and their versions, the key space, a node's own copies, the durable store."""

from holdfast.state.change import Change, compose
from holdfast.state.checkpoint import Checkpoint
from holdfast.state.cursor import Cursor
from holdfast.state.entries import AnotherStore, Damaged, FileEntry
from holdfast.state.fence import Fenced, Held, Identity
from holdfast.state.files import Files, Unusable
from holdfast.state.journal import Gap, Journal, JournalEpoch, JournalSpan
from holdfast.state.keys import hash_keys
from holdfast.state.local import LocalState, VersionMissing
from holdfast.state.output import StagedOutput
from holdfast.state.ranges import KeyRange, Routing
from holdfast.state.schema import StateSchema
from holdfast.state.store import Store, Sync
from holdfast.state.table import Found, Spill, StateTable, merge
from holdfast.state.task import TaskState, merge_states
from holdfast.state.writer import Writer

__all__ = [
    "AnotherStore",
    "Change",
    "Checkpoint",
    "Cursor",
    "Damaged",
    "Fenced",
    "FileEntry",
    "Files",
    "Found",
    "Gap",
    "Held",
    "Identity",
    "Journal",
    "JournalEpoch",
    "JournalSpan",
    "KeyRange",
    "LocalState",
    "Routing",
    "Spill",
    "StagedOutput",
    "StateSchema",
    "StateTable",
    "Store",
    "Sync",
    "TaskState",
    "Unusable",
    "VersionMissing",
    "Writer",
    "compose",
    "hash_keys",
    "merge",
    "merge_states",
]
