"""A driver on simulated ports, each of which a test may replace; and what has come of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

from driving import chain

from holdfast.errors import HoldfastError
from holdfast.runtime.driver.config import JobConfig
from holdfast.runtime.driver.launch import launch
from holdfast.runtime.driver.ports import Listener, Offer, Output, Ports, Recorder, Runner, Sink
from holdfast.runtime.options import Storage
from holdfast.runtime.settings import Settings
from holdfast.runtime.simulation.cluster import SimulatedNodes, SimulatedRunner
from holdfast.runtime.simulation.disk import Disk
from holdfast.runtime.simulation.loop import Environment, VirtualLoop
from holdfast.runtime.simulation.operators import digest_batches, digesting
from holdfast.runtime.simulation.schedule import Timing
from holdfast.runtime.worker.worker import JobContext
from holdfast.state import Store, Writer
from holdfast.state.origin import Origin

TIMING = Timing(interval=0.0, detect=0.0)


class Recorded:
    """A history in memory."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.closed = False

    def add(self, event: Mapping[str, Any]) -> None:
        self.events.append(dict(event))

    def close(self) -> None:
        self.closed = True


class Batches:
    """Gives one epoch after the other, as soon as the last was released."""

    def __init__(self, host: Alone) -> None:
        self.host = host
        self.released: list[tuple[int, float]] = []
        self.error: HoldfastError | None = None
        self.closed = False
        self._offer: Offer | None = None

    def open(self, offer: Offer, newest: Origin | None) -> None:
        self._offer = offer
        self._next(self.host.first)

    def release(self, epoch: int) -> None:
        self.released.append((epoch, self.host.world.now))
        self._next(epoch + 1)

    def close(self, error: HoldfastError | None) -> None:
        self.closed, self.error = True, error

    def _next(self, epoch: int) -> None:
        assert self._offer is not None
        if epoch < len(self.host.batches) and not self.closed:
            self._offer(epoch, self.host.batches[epoch], self.origin(epoch, True))

    def origin(self, epoch: int, read: bool) -> Origin:
        return Origin(epoch)


class Alone:
    """S -> A x2 -> B on two nodes, unless ``settings`` say otherwise. ``after``: another life upon the same store."""

    def __init__(
        self,
        epochs: int = 6,
        sink: Sink | None = None,
        listeners: Sequence[Listener] = (),
        recorder: Recorder | None = None,
        runner: Callable[[SimulatedRunner], Runner] = lambda usual: usual,
        nodes: type[SimulatedNodes] = SimulatedNodes,
        present: Sequence[str] = ("node-0", "node-1"),
        timing: Timing = TIMING,
        after: Alone | None = None,
        node_count: int = 2,
        **settings: Any,
    ) -> None:
        self.world = Environment()
        self.random = Random(7)
        self.pipeline = digesting(chain(1, 2, 1), ordered=True)
        self.batches = digest_batches(self.pipeline, epochs, seed=11)
        self.recorder = Recorded()
        self.taken: list[Output] = []
        self.ended: list[HoldfastError | None] = []
        self.disk = after.disk if after is not None else Disk(lambda: self.world.now)
        self.first = after.head + 1 if after is not None else 0
        self.nodes = nodes(self.world, timing, {}, None)
        self.nodes.boot(present)
        self.source = Batches(self)
        self.loop = VirtualLoop(self.world, self.random, timing.lag)
        given = {"nodes": node_count, "checkpoint_every": 4, **settings}

        def made(context: JobContext, writer: Writer) -> Runner:
            topology = self.pipeline.coordinated
            return runner(SimulatedRunner(context, self.nodes, self.store, topology, self.random))

        ports = Ports(
            self.loop, self.loop, self.nodes, self.source, self.store("driver"), recorder or self.recorder, made,
            sink or self.taken.append, listeners, on_end=self.ended.append,
        )  # fmt: skip
        storage = Storage(force=after is not None)
        config = JobConfig("alone", self.pipeline, Settings(**given), epochs=epochs, storage=storage)
        self.driver = launch(config, ports)
        self.loop.post(self.driver.begin)

    def store(self, actor: str) -> Store:
        return Store(self.disk.files(actor, "store"), clock=self.loop.wall)

    @property
    def head(self) -> int:
        return self.driver.snapshot.head

    def until(self, so: Callable[[], bool], longest: float = 1000.0) -> Alone:
        """Let things happen until this is so."""
        while not so():
            assert self.world.step() and self.world.now < longest, f"at {self.world.now:g} s: {self.kinds()[-20:]}"
        return self

    def end(self) -> Alone:
        return self.until(lambda: bool(self.ended))

    def kinds(self) -> list[str]:
        return [event["kind"] for event in self.recorder.events]

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.recorder.events if event["kind"] == kind]
