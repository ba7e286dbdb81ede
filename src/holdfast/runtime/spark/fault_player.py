"""Carries out fault scripts on a running job: kills executors, stops and slows their processes, damages files."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from holdfast.errors import Invalid
from holdfast.runtime.faults import Fault, in_domain
from holdfast.runtime.spark.nodes import Executors, LogicalNodes
from holdfast.state import Store
from holdfast.state.files import LocalFiles

SLOW_PERIOD = 0.1


class FaultPlayer:
    """Plays the faults of a script: those of an epoch when it begins, those of a time when it comes."""

    def __init__(
        self,
        faults: Iterable[Fault],
        cluster: LogicalNodes | Executors,
        store: Store,
        note: Callable[[str, dict[str, Any]], None],
    ) -> None:
        self._waiting = list(faults)
        self._cluster = cluster
        self._store = store
        self._note = note
        self._began = time.monotonic()
        self._lost_at: dict[str, float] = {}
        self._over: list[tuple[float, Callable[[], None]]] = []
        self._lock = threading.Lock()
        for fault in self._waiting:
            self._check(fault)

    def _check(self, fault: Fault) -> None:
        logical = isinstance(self._cluster, LogicalNodes)
        if fault.what in ("slow", "unreachable") and logical:
            raise Invalid(f"fault {str(fault)!r}: needs real executors; use --master 'local-cluster[4,1,1024]'")
        if fault.what == "join" and not logical:
            raise Invalid(
                f"fault {str(fault)!r}: Spark replaces executors by itself; only logical nodes are told to join"
            )
        if fault.what == "restart":
            raise Invalid(f"fault {str(fault)!r}: stop the command (or kill it) and run it again with the same --out")
        if fault.what in ("fill", "damage") and not isinstance(self._store.files, LocalFiles):
            done = "filled" if fault.what == "fill" else "damaged"
            raise Invalid(f"fault {str(fault)!r}: only a store on a local disk can be {done}, not {self._store.url}")

    def epoch(self, number: int) -> None:
        """An epoch begins."""
        self._play(lambda fault: fault.when.epoch == number)

    def tick(self) -> None:
        """Time has passed."""
        now = time.monotonic()
        self._play(lambda fault: self._due(fault, now))
        with self._lock:
            due = [end for at, end in self._over if at <= now]
            self._over = [(at, end) for at, end in self._over if at > now]
        for end in due:
            end()

    def _due(self, fault: Fault, now: float) -> bool:
        if fault.when.seconds is None:
            return False
        if fault.when.after:
            lost = [self._lost_at[node] for node in fault.nodes if node in self._lost_at]
            return bool(lost) and now - max(lost) >= fault.when.seconds
        return now - self._began >= fault.when.seconds

    def _play(self, due: Callable[[Fault], bool]) -> None:
        with self._lock:
            now = [fault for fault in self._waiting if due(fault)]
            self._waiting = [fault for fault in self._waiting if fault not in now]
        for fault in now:
            self._note("fault", {"fault": str(fault)})
            self._do(in_domain(fault, self._domains()) if fault.domain is not None else fault)

    def _domains(self) -> dict[str, str]:
        return {name: info.domain for name, info in self._cluster.look().items()}

    def _do(self, fault: Fault) -> None:
        match fault.what:
            case "kill":
                self._cluster.kill(fault.nodes)
                self._lost_at |= dict.fromkeys(fault.nodes, time.monotonic())
            case "join":
                assert isinstance(self._cluster, LogicalNodes)
                for node in fault.nodes:
                    self._cluster.join(node)
            case "unreachable":
                for node in fault.nodes:
                    self._stopped(node, fault.seconds or 0.0)
            case "slow":
                for node in fault.nodes:
                    self._slowed(node, fault.seconds or 0.0, fault.factor or 1.0)
            case "fill":
                assert isinstance(self._store.files, LocalFiles)
                self._store.files.fill(fault.seconds or 0.0)
            case "damage":
                self._note("damaged", {"file": damage_checkpoint(self._store)})

    def _process(self, node: str) -> int | None:
        assert isinstance(self._cluster, Executors)
        return self._cluster.process(node)

    def _stopped(self, node: str, seconds: float) -> None:
        """Stop the executor's process: it keeps its connections and says nothing, like a machine cut off."""
        number = self._process(node)
        if number is not None:
            _signal(number, signal.SIGSTOP)
            self._over.append((time.monotonic() + seconds, lambda: _signal(number, signal.SIGCONT)))

    def _slowed(self, node: str, seconds: float, factor: float) -> None:
        """Let the executor's process run one part in ``factor`` of the time."""
        number = self._process(node)
        if number is None:
            return
        until = time.monotonic() + seconds

        def press() -> None:
            while time.monotonic() < until:
                _signal(number, signal.SIGSTOP)
                time.sleep(SLOW_PERIOD * (1 - 1 / factor))
                _signal(number, signal.SIGCONT)
                time.sleep(SLOW_PERIOD / factor)

        threading.Thread(target=press, name=f"holdfast-slow-{node}", daemon=True).start()


def damage_checkpoint(store: Store) -> str:
    """Flip a byte in the middle of a file that the newest checkpoint added, the largest; its name."""
    found = store.checkpoints()
    if not found:
        return ""
    entries = [entry for chain in found[-1].tasks.values() for entry in chain]
    entry = max(entries, key=lambda entry: (entry.epoch, entry.bytes))
    path = Path(store.url) / entry.path
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(bytes(data))
    return entry.path


def _signal(process: int, number: int) -> None:
    try:
        os.kill(process, number)
    except ProcessLookupError:
        return
