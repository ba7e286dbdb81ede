"""Operator state as data: state tables and their versions, the key space, a node's own copies, the durable store."""

from holdfast.state.change import Change, compose
from holdfast.state.checkpoint import Checkpoint
from holdfast.state.entries import Damaged, FileEntry
from holdfast.state.fence import Fenced, Held
from holdfast.state.files import Unusable
from holdfast.state.keys import hash_keys
from holdfast.state.local import LocalState, Missing
from holdfast.state.ranges import KeyRange, Routing
from holdfast.state.schema import StateSchema
from holdfast.state.store import Store, Sync
from holdfast.state.table import Found, Spill, StateTable, merge
from holdfast.state.task import TaskState, merge_states
from holdfast.state.writer import Writer

__all__ = [
    "Change",
    "Checkpoint",
    "Damaged",
    "Fenced",
    "FileEntry",
    "Found",
    "Held",
    "KeyRange",
    "LocalState",
    "Missing",
    "Routing",
    "Spill",
    "StateSchema",
    "StateTable",
    "Store",
    "Sync",
    "TaskState",
    "Unusable",
    "Writer",
    "compose",
    "hash_keys",
    "merge",
    "merge_states",
]
