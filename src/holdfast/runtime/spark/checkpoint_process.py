"""What a checkpoint asks of a node: bring what changed to the durable store, and tidy up the node's own folder.

Executors do it in a Spark task. Where driver and nodes are one machine, a process of its own does it at low priority:
a Spark task would take one of few cores from the epochs beside it. It speaks JSON, a line for each request and answer.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from holdfast.errors import HoldfastError
from holdfast.state import LocalState, Store, Sync
from holdfast.state.compaction import folded_chain
from holdfast.state.entries import FileEntry

NICER = 10
"""How much lower the priority of the process is than that of the job."""


class NotSaved(Exception):
    """A state could not be brought to the store; the message is the process's own word."""


@dataclass(frozen=True, slots=True)
class Saving:
    """Changes of a task in ``(since, epoch]``, from a node's folder; everything when ``since`` is negative.

    ``born``: the shape that the task came with. ``retain``: no version before this one will be asked for again.
    """

    folder: str
    task: str
    since: int
    epoch: int
    born: int
    retain: int


def main_branch(born: int) -> str:
    """Where a node keeps the states of primaries: tasks that came with a scaling are apart from those before them."""
    return f"main-{born}" if born else "main"


def bring(store: Store, token: int, wanted: Saving) -> list[FileEntry]:
    """The files of one task for a checkpoint. What the node need not keep any more goes, if it can be had easily."""
    local = LocalState(Path(wanted.folder) / main_branch(wanted.born))
    if wanted.since < 0:
        state = local.load(wanted.task, wanted.epoch)
        entries = store.write_task(wanted.task, wanted.epoch, state, token=token)
    else:
        changes = local.changes(wanted.task, wanted.since, wanted.epoch)
        entries = store.write_task(wanted.task, wanted.epoch, changes, token=token, since=wanted.since)
    with contextlib.suppress(HoldfastError):
        local.drop(wanted.task, wanted.retain)
    return entries


class Keeper:
    """The process, begun at the latest when it is needed, and again should it end. One thing at a time."""

    def __init__(self, store: str, token: int, sync: Sync) -> None:
        self._told = json.dumps({"store": store, "token": token, "sync": asdict(sync)})
        self._process: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()
        self._closed = False

    def begin(self) -> None:
        """Begin the process now, while nobody waits for it."""
        with self._lock:
            self._begun()

    def save(self, wanted: Sequence[Saving]) -> dict[str, list[FileEntry]]:
        """The files of all these tasks; NotSaved if one of them cannot be had."""
        saved = self._asked({"save": [asdict(each) for each in wanted]})
        return {task: [FileEntry.from_json(entry) for entry in files] for task, files in saved}

    def fold(self, task: str, chain: Sequence[FileEntry]) -> tuple[FileEntry, ...]:
        """A shorter chain of files for the same state of a task: see ``compaction.folded_chain``."""
        try:
            files = self._asked({"fold": task, "chain": [entry.to_json() for entry in chain]})
        except NotSaved as error:
            raise HoldfastError(f"task {task}: its files were not folded: {error}") from error
        return tuple(FileEntry.from_json(entry) for entry in files)

    def close(self) -> None:
        """End it, also in the middle of something: what has no manifest does not exist."""
        self._closed = True
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _asked(self, request: Mapping[str, Any]) -> Any:
        with self._lock:
            process = self._begun()
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                process.stdin.write(json.dumps(request) + "\n")
                process.stdin.flush()
                answer = process.stdout.readline()
            except (OSError, ValueError):
                answer = ""
        if not answer:
            raise NotSaved("the process that brings states to the store has ended")
        said = json.loads(answer)
        if "error" in said:
            raise NotSaved(said["error"])
        return said["done"]

    def _begun(self) -> subprocess.Popen[str]:
        if self._closed:
            raise NotSaved("the job has ended")
        if self._process is None or self._process.poll() is not None:
            command = [sys.executable, "-m", "holdfast.runtime.spark.checkpoint_process", self._told]
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        return self._process


def serve(told: str) -> None:
    """Answer requests until the driver is gone."""
    with contextlib.suppress(OSError):
        os.nice(NICER)
    about = json.loads(told)
    store = Store(about["store"], Sync(**about["sync"]))
    for line in sys.stdin:
        try:
            answer = json.dumps({"done": _carried_out(store, about["token"], json.loads(line))})
        except (HoldfastError, OSError) as error:
            answer = json.dumps({"error": str(error)})
        print(answer, flush=True)


def _carried_out(store: Store, token: int, request: Mapping[str, Any]) -> Any:
    if "fold" in request:
        chain = [FileEntry.from_json(entry) for entry in request["chain"]]
        return [entry.to_json() for entry in folded_chain(store, request["fold"], chain, token)]
    wanted = [Saving(**each) for each in request["save"]]
    return [(each.task, [entry.to_json() for entry in bring(store, token, each)]) for each in wanted]


if __name__ == "__main__":
    serve(sys.argv[1])
