"""Failed tasks in the order in which they can run: a task is ready when none of its upstream neighbours is failed."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.topology import Stream, Topology


class Frontier:
    """Which failed tasks are ready, as others are recovered. A `full` stream is one counter, not a mesh of edges."""

    def __init__(self, topology: Topology, failed: Iterable[int]) -> None:
        self._topology = topology
        self._failed = set(failed)
        self._operator = [operator.name for operator in topology.operators for _ in range(operator.parallelism)]
        self._lost_senders: dict[tuple[str, str], int] = {}
        self._waiting: dict[int, int] = {}
        for stream in topology.streams:
            if stream.partitioning == "full":
                up = topology.span[stream.source]
                self._lost_senders[stream.source, stream.target] = len(
                    self._failed.intersection(range(up.start, up.stop))
                )
        for task in self._failed:
            self._waiting[task] = sum(self._lost(stream, task) for stream in topology.inputs_of(self._operator[task]))

    @property
    def ready(self) -> list[int]:
        return sorted(task for task, count in self._waiting.items() if count == 0 and task in self._failed)

    def recover(self, task: int) -> list[int]:
        """Take this ready task as recovered; the tasks that become ready through it."""
        self._failed.discard(task)
        freed: list[int] = []
        for stream in self._topology.outputs_of(self._operator[task]):
            freed += self._release(stream, task)
        return freed

    def _lost(self, stream: Stream, task: int) -> int:
        """What this task waits for on this stream: failed senders, or 1 for any failed sender of a `full` stream."""
        if stream.partitioning == "full":
            return int(self._lost_senders[stream.source, stream.target] > 0)
        up, down = self._topology.span[stream.source].start, self._topology.span[stream.target].start
        return sum(up + sender in self._failed for sender in self._topology.senders(stream, task - down))

    def _release(self, stream: Stream, task: int) -> list[int]:
        if stream.partitioning == "full":
            self._lost_senders[stream.source, stream.target] -= 1
            if self._lost_senders[stream.source, stream.target]:
                return []
        down = self._topology.span[stream.target].start
        freed = []
        for receiver in self._topology.receivers(stream, task - self._topology.span[stream.source].start):
            below = down + receiver
            if below in self._failed:
                self._waiting[below] -= 1
                if self._waiting[below] == 0:
                    freed.append(below)
        return freed
