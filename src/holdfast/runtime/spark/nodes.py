"""Nodes as Spark has them: executors that come and go by themselves, or logical nodes inside one local process.

A replacement takes its predecessor's name as another incarnation: what was stored does not come back with the name.
A node's *place* is where Spark runs its works: an executor, as a location, or the local process.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from pyspark import SparkContext

from holdfast.errors import Invalid
from holdfast.runtime.domains import Domains
from holdfast.runtime.messages import NodeInfo
from holdfast.runtime.spark.folders import let_go
from holdfast.runtime.spark.java import java

REJOIN, SELDOM = 5.0, 60.0
"""An executor that was given up is tried again after so many seconds, each next time after twice as many, up to a
minute."""
WARM_WITHIN = 30.0
"""An executor that has not run a task within so many seconds counts all the same."""
CLEARED_WITHIN = 10.0
"""Seconds that executors have to clear up at the end: one that is cut off may never answer."""
EXECUTOR = "executor_"
HOME = "localhost"


def location(place: str) -> str | None:
    """Where Spark must run the works of a place; None for anywhere."""
    return place if place.startswith(EXECUTOR) else None


def locations(context: SparkContext) -> list[str]:
    """Of all executors that are there; none where driver and executor are one process."""
    listed = context._jsc.sc().statusStore().executorList(True)
    found = {str(each.id()): str(each.hostPort()) for each in (listed.apply(n) for n in range(listed.size()))}
    return [f"{EXECUTOR}{at.rpartition(':')[0]}_{name}" for name, at in sorted(found.items()) if name.isdigit()]


class LogicalNodes:
    """Nodes that share one local Spark process; failing one drops its state. Replacements come when asked for."""

    def __init__(
        self,
        count: int,
        cores: int,
        root: Path,
        rejoin_after: float | None = None,
        domains: Domains | None = None,
    ) -> None:
        """``rejoin_after``: a replacement comes so many seconds after a loss by itself; None: when it is asked for."""
        self._root = root
        self._domains = domains or Domains()
        self._rejoin_after = rejoin_after
        self._died: dict[str, float] = {}
        self._cores = cores
        self._names = [f"node-{number}" for number in range(count)]
        self._lives = dict.fromkeys(self._names, 0)
        self._alive: set[str] = set()
        self._given_back: list[str] = []
        self._alive.update(self._names)
        self._changing = threading.RLock()
        """Faults, looks and whoever has the job change who is alive, each on a thread of its own."""

    def look(self) -> Mapping[str, NodeInfo]:
        now = time.monotonic()
        with self._changing:
            for name, died in list(self._died.items()):
                if self._rejoin_after is not None and now - died >= self._rejoin_after:
                    self.join(name)
            cores = max(1, min(self._cores, len(self._names)))
            names = sorted(self._alive, key=self._names.index)
            domains = self._domains.of(dict.fromkeys(names, HOME))
            return {
                name: NodeInfo(str(self._lives[name]), domains[name], HOME, self._folder(name), HOME, cores)
                for name in names
            }

    def refused(self) -> Sequence[str]:
        return ()

    def _folder(self, node: str) -> str:
        return str(self._root / f"{node}.{self._lives[node]}")

    def kill(self, nodes: Iterable[str]) -> None:
        gone = list(nodes)
        for node in gone:
            _known(node, self._names)
        with self._changing:  # whoever looks sees one failure
            self._died |= dict.fromkeys(gone, time.monotonic())
            self._alive = self._alive.difference(gone)
            folders = [self._folder(node) for node in gone]
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)

    def grow(self, count: int) -> bool:
        with self._changing:
            for _ in range(count):
                if self._given_back:
                    self.join(self._given_back.pop(0))
                    continue
                name = f"node-{len(self._names)}"
                self._names.append(name)
                self._lives[name] = 0
                self._alive.add(name)
        return True

    def release(self, nodes: Iterable[str]) -> None:
        gone = list(nodes)
        with self._changing:
            self._alive = self._alive.difference(gone)
            self._given_back += gone
            folders = [self._folder(node) for node in gone]
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)

    def give_up(self, nodes: Iterable[tuple[str, str]]) -> None:
        self.kill(name for name, life in nodes if str(self._lives[name]) == life)

    def join(self, node: str) -> None:
        """A replacement takes this name; it has none of the old one's state."""
        _known(node, self._names)
        with self._changing:
            if node not in self._alive:
                self._lives[node] += 1
                self._died.pop(node, None)
                self._given_back = [each for each in self._given_back if each != node]
                self._alive.add(node)

    def close(self) -> None:
        let_go(str(self._root))


class Executors:
    """Real executors. A new one takes the lowest name that is free: a replacement has its predecessor's name.

    ``warm``: runs something on an executor (given as a location) before it counts as a node, and says what is wrong
    with it, if anything is. Its first Python task takes seconds, and no epoch has to wait for that. Where everybody was
    lost, who comes counts at once. One that was given up counts again when it has run
    something. ``clean``: clears up on the machines of these locations.
    """

    def __init__(self, context: SparkContext, root: Path, domains: Domains | None = None) -> None:
        self._domains = domains or Domains()
        self.warm: Callable[[str, int], str] | None = None
        self.clean: Callable[[Sequence[str]], None] | None = None
        self._context = context
        self._root = root
        self._jsc: Any = context._jsc.sc()
        self._seats: dict[str, tuple[str, int]] = {}
        """Each executor's host, and how many tasks it runs at once."""
        self._known: dict[str, str] = {}
        self._warming: dict[str, float] = {}
        self._ready: set[str] = set()
        self._refused: dict[str, str] = {}
        self._untold: list[str] = []
        self._released: set[str] = set()
        self._given_up: dict[str, tuple[int, float]] = {}
        """How often, and until when nothing is asked of it."""
        self._begun = False

    def look(self) -> Mapping[str, NodeInfo]:
        alive = self._alive()
        for name in [name for name, executor in self._known.items() if executor not in alive]:
            del self._known[name]
        nobody = self._begun and not self._known  # then there are no epochs that could go on without them
        for executor in alive:
            if (
                executor not in self._known.values()
                and executor not in self._refused
                and ((nobody and executor not in self._given_up) or self._is_warm(executor))
            ):
                free = next(name for number in range(10**6) if (name := f"node-{number}") not in self._known)
                self._known[free] = executor
        self._begun |= bool(self._known)
        domains = self._domains.of({name: self._host(executor) for name, executor in self._known.items()})
        return {
            name: NodeInfo(
                self._life(executor), domains[name], host, self._folder(name), self._location(executor), cores
            )
            for name, executor in self._known.items()
            for host, cores in [self._seat(executor)]
        }

    def refused(self) -> Sequence[str]:
        told, self._untold = self._untold, []
        return told

    def _is_warm(self, executor: str) -> bool:
        if self.warm is None or executor in self._ready:
            return True
        if executor not in self._warming:
            if time.monotonic() < self._given_up.get(executor, (0, 0.0))[1]:
                return False
            self._warming[executor] = time.monotonic()
            threading.Thread(target=self._warm_up, args=(executor,), name="holdfast-warm", daemon=True).start()
        if executor in self._given_up:
            return False
        return time.monotonic() - self._warming[executor] > WARM_WITHIN

    def _warm_up(self, executor: str) -> None:
        assert self.warm is not None
        wrong, broke, life = "", False, self._life(executor)
        try:
            wrong = self.warm(self._location(executor), self._seat(executor)[1])
        except Exception:  # one that died meanwhile, that cannot work yet, or a context that is being closed
            broke = True
        if life != self._life(executor):
            return  # it was given up meanwhile, and is tried anew
        if executor in self._given_up and (wrong or broke):
            self._set_aside(executor)  # what it was given up for may not be over
        elif wrong:
            self._refused[executor] = wrong
            self._untold.append(f"executor {executor} on {wrong}")
        else:
            self._ready.add(executor)

    def _alive(self) -> list[str]:
        """Identifiers of live executors that were not given back, in the order of their numbers."""
        # In one text: each call through the gateway takes time, and this is asked ten times a second.
        told = str(self._jsc.schedulerBackend().getExecutorIds().mkString(","))
        found = set(told.split(",") if told else ()) - self._released
        return sorted(found, key=lambda name: (len(name), name))

    def _location(self, executor: str) -> str:
        return f"{EXECUTOR}{self._host(executor)}_{executor}"

    def _life(self, executor: str) -> str:
        times, _ = self._given_up.get(executor, (0, 0.0))
        return f"{executor}.{times}" if times else executor

    def _host(self, executor: str) -> str:
        return self._seat(executor)[0]

    def _seat(self, executor: str) -> tuple[str, int]:
        if executor not in self._seats:
            listed = self._jsc.statusStore().executorList(True)
            for number in range(listed.size()):
                summary = listed.apply(number)
                host = str(summary.hostPort()).rpartition(":")[0]
                self._seats[str(summary.id())] = host, max(1, int(summary.maxTasks()))
        return self._seats.get(executor, (HOME, 1))

    def _folder(self, node: str) -> str:
        return str(self._root / f"{node}.{self._life(self._known[node])}")

    def executor(self, node: str) -> str:
        _known(node, list(self._known))
        return self._known[node]

    def process(self, node: str) -> int | None:
        """The operating system's number of the executor's process, if it runs on this machine."""
        return executor_process(self._context.applicationId or "", self.executor(node))

    def grow(self, count: int) -> bool:
        """Standalone, YARN and Kubernetes can be asked; a local cluster has given all it has at the start."""
        if str(self._context.master).startswith("local-cluster["):
            return False
        try:
            # Spark does not count what it gave unasked, so "so many more" could mean fewer than there are.
            return bool(self._jsc.requestTotalExecutors(len(self._alive()) + count, 0, self._no_hosts))
        except Exception:  # py4j wraps whatever the master throws
            return False

    @property
    def _no_hosts(self) -> Any:
        return getattr(java(self._context).scala.collection.immutable, "Map$").__getattr__("MODULE$").empty()

    def release(self, nodes: Iterable[str]) -> None:
        """Spark is told to want fewer, so nobody comes in their place."""
        jvm = java(self._context)
        gone = [self._known.pop(node) for node in nodes]
        self._released.update(gone)
        ids = jvm.PythonUtils.toSeq(jvm.java.util.ArrayList(gone))
        with contextlib.suppress(Exception):  # py4j wraps whatever the master throws; then they stay, without work
            self._jsc.requestTotalExecutors(len(self._alive()), 0, self._no_hosts)
            self._jsc.schedulerBackend().killExecutors(ids, False, False, True)

    def give_up(self, nodes: Iterable[tuple[str, str]]) -> None:
        """Its executor stays, and is tried again later: what it holds is of no use to the next incarnation."""
        for name, life in nodes:
            if name in self._known and self._life(self._known[name]) == life:
                self._set_aside(self._known.pop(name))

    def _set_aside(self, executor: str) -> None:
        times = self._given_up.get(executor, (0, 0.0))[0] + 1
        pause = min(SELDOM, REJOIN * 2.0 ** min(times - 1, 30))
        self._given_up[executor] = (times, time.monotonic() + pause)
        self._ready.discard(executor)
        self._warming.pop(executor, None)

    def kill(self, nodes: Iterable[str]) -> None:
        processes = {node: self.process(node) for node in nodes}
        for node, number in processes.items():
            if number is None:
                raise Invalid(
                    f"kill {node}: its executor does not run on this machine; only local executors can be killed"
                )
        for number in processes.values():
            if number is not None:
                os.kill(number, signal.SIGKILL)

    def close(self) -> None:
        """Who says nothing, or was given up and has its folder still, is asked to clear up too, but not for long."""
        clearing = threading.Thread(target=self._clear, name="holdfast-clear", daemon=True)
        clearing.start()
        clearing.join(CLEARED_WITHIN)
        let_go(str(self._root))

    def _clear(self) -> None:
        if self.clean is not None:
            with contextlib.suppress(Exception):  # executors that are gone have nothing to clear up
                # Who is warming up has a folder too.
                used = {*self._ready, *self._warming, *self._known.values(), *self._given_up}
                self.clean([self._location(executor) for executor in self._alive() if executor in used])


def executor_process(application: str, executor: str) -> int | None:
    """Find an executor of this application on this machine by its command line."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        pairs = set(pairwise(words))
        ours = (b"--app-id", application.encode()) in pairs and (b"--executor-id", executor.encode()) in pairs
        if ours and b"org.apache.spark.executor.CoarseGrainedExecutorBackend" in words:
            return int(folder.name)
    return None


def _known(node: str, names: list[str]) -> None:
    if node not in names:
        raise Invalid(f"unknown node {node!r}; nodes: {', '.join(sorted(names)) or 'none'}")
