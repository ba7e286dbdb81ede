"""The ports of the driver: what it asks of the world. Spark, threads and disks are behind them, or a simulation.

The driver itself holds no thread, file or clock. Whatever is slow, durable or may fail is asked for here, and answered
by a call on the driver's own thread; nothing that it asks for is a fact before the answer comes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

import pyarrow as pa

from holdfast.errors import HoldfastError
from holdfast.runtime.driver.requests import Request
from holdfast.runtime.messages import NodeInfo, Report
from holdfast.runtime.worker.plan import RunPlan
from holdfast.runtime.worker.versions import Saved, Upload
from holdfast.runtime.worker.worker import JobContext
from holdfast.state import Store, Writer
from holdfast.state.entries import FileEntry
from holdfast.state.origin import Origin

T = TypeVar("T")
Queue = Literal[
    "commit",
    "checkpoint",
    "publish",
    "deliver",
    "history",
    "tidy",
    "lease",
    "nodes",
    "plan",
    "ask",
    "blame",
    "requests",
]
"""Work of one queue is done in order, of different ones side by side."""
Listener = Callable[[dict[str, Any]], None]


@dataclass(frozen=True, slots=True)
class Failed:
    """What escaped."""

    error: BaseException


class CodeFailed(Exception):
    """A run failed by the user's own code, or by their rows; the cause is their exception."""


class Timer(Protocol):
    def cancel(self) -> None: ...


class Clock(Protocol):
    """Time, and the driver's own thread."""

    def now(self) -> float:
        """Monotonic seconds."""
        ...

    def wall(self) -> float:
        """Seconds since 1970, for leases and the history."""
        ...

    def post(self, action: Callable[[], None]) -> None:
        """Call this on the driver's thread, in the order of posting; from any thread."""
        ...

    def after(self, seconds: float, action: Callable[[], None]) -> Timer:
        """Post it later, unless it is cancelled."""
        ...


class Background(Protocol):
    def submit(self, queue: Queue, work: Callable[[], T], done: Callable[[T | Failed], None]) -> None:
        """Do this off the driver's thread, after what was submitted to the queue before; ``done`` is posted once."""
        ...


class Nodes(Protocol):
    """Calls block; the driver makes them in the queue ``nodes``."""

    def look(self) -> Mapping[str, NodeInfo]:
        """Everybody who is there and can work."""
        ...

    def refused(self) -> Sequence[str]:
        """Of whom it turned out since the last call that they cannot work for this job, each in one line."""
        ...

    def kill(self, names: Iterable[str]) -> None:
        """They die together."""
        ...

    def grow(self, count: int) -> bool:
        """Ask for so many more; False: nobody can give any. They are seen when they come."""
        ...

    def release(self, names: Iterable[str]) -> None:
        """Given back: nobody comes in their place."""
        ...

    def give_up(self, nodes: Iterable[tuple[str, str]]) -> None:
        """These, by name and incarnation, are not seen any more; should they be able to work, then as others."""
        ...

    def close(self) -> None:
        """The job has ended: what it left on nodes goes."""
        ...


@dataclass(frozen=True, slots=True)
class RunResult:
    """How every work went, and, of an epoch that was ingested, the files of its parts in the journal."""

    reports: tuple[Report, ...]
    pieces: tuple[FileEntry, ...] = ()


Silence = Literal["mute", "late"]


@dataclass(frozen=True, slots=True)
class Asked:
    """``silent``: places for which a run has to wait. ``pace``: seconds in which those who are well answer now, and the
    driver itself: where that is long, all are short of cores."""

    silent: Mapping[str, Silence]
    pace: float = 0.0


class Runner(Protocol):
    """``done`` may be called from any thread."""

    def start(self, plan: RunPlan, batch: object, done: Callable[[RunResult | Failed], None]) -> None:
        """Carry a laid-out run out; one ``done``, also when it is cancelled."""
        ...

    def save(self, epoch: int, uploads: Mapping[str, Sequence[Upload]], done: Callable[[Saved | Failed], None]) -> None:
        """Bring states to the store, from each place what is there."""
        ...

    def cancel(self, run: int) -> None:
        """Its ``done`` comes soon."""
        ...

    def silent(self, run: int, places: Sequence[str]) -> Asked:
        """Of these places, those for which a run has to wait: they do not answer, or are alone in not being done.

        Blocks, not for long.
        """
        ...

    def failing(self, run: int, places: Sequence[str]) -> frozenset[str]:
        """Of these places, those by which a run broke though they are there; nobody where that cannot be told."""
        ...

    def cancel_save(self, epoch: int) -> None: ...

    def close(self) -> None: ...


Offer = Callable[[int, object, Origin], None]
"""Takes an epoch, its rows, and the batch that it is. Of an epoch that the journal lacks, the number of the batch is
enough; of one that comes again, the origin has all that tells whether its rows are the same."""


class Source(Protocol):
    def open(self, offer: Offer, newest: Origin | None) -> None:
        """Begin to offer epochs, one at a time; after a restart perhaps one that was offered before.

        ``newest``: the batch of the newest epoch in the journal. The source's watermark continues from there.
        """
        ...

    def origin(self, epoch: int, read: bool) -> Origin:
        """The batch of the epoch at hand, as the journal shall hold it, with the watermark behind it. Blocks.

        The source's own log of the batch is durable on return. ``read``: a run has read all rows of the batch; if not,
        the source reads them for the watermark.
        """
        ...

    def release(self, epoch: int) -> None:
        """The epoch is answered: it may be committed, and the next one offered."""
        ...

    def close(self, error: HoldfastError | None) -> None:
        """Offer no more. Who waits for an epoch ends with this error, if there is one."""
        ...


@dataclass(frozen=True, slots=True)
class Output:
    """What a task of a query says in an epoch. ``(epoch, task, kind)`` identifies it: given again, it is the same."""

    epoch: int
    task: str
    kind: Literal["final", "tentative"]
    fidelity: float
    table: pa.Table

    @property
    def id(self) -> tuple[int, str, str]:
        return self.epoch, self.task, self.kind


Sink = Callable[[Output], None]
"""Given every output at least once, in order for each task: again after it raised, and after a crash."""


class Recorder(Protocol):
    """Where the history goes."""

    def add(self, event: Mapping[str, Any]) -> None: ...
    def close(self) -> None: ...


class Faults(Protocol):
    """What shall go wrong, for trials. Calls block; the driver makes them in the queue ``nodes``."""

    def epoch(self, number: int) -> None:
        """An epoch begins."""
        ...

    def tick(self) -> None:
        """Time has passed."""
        ...


@dataclass(frozen=True)
class Ports:
    """``runner`` is made once the store is claimed. ``requests``: what other processes ask for since the last call.

    ``on_begun``: the stream has begun. ``on_end``: everything is let go of; with what ended the job, if it failed.
    """

    clock: Clock
    background: Background
    nodes: Nodes
    source: Source
    store: Store
    recorder: Recorder
    runner: Callable[[JobContext, Writer], Runner]
    sink: Sink | None = None
    listeners: Sequence[Listener] = ()
    faults: Faults | None = None
    requests: Callable[[], Iterable[Request | str]] | None = None
    on_begun: Callable[[], None] = lambda: None
    on_end: Callable[[HoldfastError | None], None] = lambda _: None


@dataclass(frozen=True, slots=True)
class Retry:
    """How often something is tried again, and after which pause: doubled each time, up to ``most`` seconds."""

    limit: int = 5
    first: float = 0.1
    most: float = 15.0

    def pause(self, attempt: int) -> float:
        """Before try number ``attempt``; the first, number 0, needs none."""
        return min(self.most, self.first * 2.0 ** min(attempt - 1, 30)) if attempt > 0 else 0.0
