"""Nothing grows without bound: a long job with a failure every 25 epochs has no more at its end than in its youth.

``HOLDFAST_BOUNDS_EPOCHS=2000`` runs it as long as the promise says; the suite is content with less.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sized
from pathlib import Path
from typing import Any

import pytest
from driving import chain, task

from holdfast.runtime.coordinator.checkpointing import Checkpointing
from holdfast.runtime.coordinator.parts import Parts
from holdfast.runtime.driver.driver import Driver
from holdfast.runtime.faults import Fault, When
from holdfast.runtime.history.history import NAME, History
from holdfast.runtime.messages import EpochDone, Event, Instruction
from holdfast.runtime.settings import Settings
from holdfast.runtime.simulation.auditing import audited
from holdfast.runtime.simulation.operators import digest_batches, digesting
from holdfast.runtime.simulation.schedule import FaultSchedule, Mishap, Timing
from holdfast.runtime.simulation.simulation import STORE, Simulation, Unfinished

EPOCHS = int(os.environ.get("HOLDFAST_BOUNDS_EPOCHS", "240"))
EVERY = 25
"""Where tasks live, and with it what nodes hold, comes round with the nodes that are killed and the restarts: a quarter
of the epochs has room for that."""
OUTPUTS = ("output/final", "output/tentative", "output/sums")
"""What a job has said stays for ever: these may grow."""
SLACK = 1.3


def sizes_within(whole: Any) -> int:
    """How many things lie in the containers that an object has for fields."""
    names = [*getattr(whole, "__dict__", ()), *getattr(whole, "__slots__", ())]
    fields = [getattr(whole, name) for name in names if hasattr(whole, name)]
    return sum(len(each) for each in fields if isinstance(each, Sized) and not isinstance(each, str))


def of_coordinator(parts: Parts) -> int:
    every = (
        parts.members, parts.assignment, parts.runs, parts.answering, parts.recovering, parts.replicating,
        parts.rescaling, parts.checkpointing, parts.measurements,
    )  # fmt: skip
    return sum(sizes_within(part) for part in every)


def of_driver(driver: Driver) -> int:
    every = (driver, driver.running, driver.publisher, driver.durable, driver.checkpoints, driver.telling)
    journal = driver.running._journal
    return sum(sizes_within(part) for part in (*every, journal))


def measure(simulation: Simulation, history: Path) -> Counter[str]:
    assert simulation.driver is not None
    found: Counter[str] = Counter()
    for path in simulation.disk.paths():
        name = path.removeprefix(f"{STORE}/")
        if not name.startswith(OUTPUTS):
            found["files in the store"] += 1
    for node in simulation.nodes.here.values():
        found["files on nodes"] += len(node.disk.paths())
        for versions in (each for worker in node.workers.values() for each in worker._versions.values()):
            found["versions in memory"] += sum(len(held) for held in versions._held.values())
            found["bytes in memory"] += versions.nbytes
    found["in the coordinator"] = of_coordinator(simulation.driver.coordinator.parts)
    found["in the driver"] = of_driver(simulation.driver)
    found["parts of the history"] = len(list(history.glob("history*.jsonl")))
    found["bytes of the history"] = sum(path.stat().st_size for path in history.glob("history*.jsonl"))
    return found


def soaked(folder: Path, epochs: int) -> list[Counter[str]]:
    """What there is after every epoch of a job that loses a node every so often, and now and then its driver."""
    pipeline = digesting(chain(1, 2, 1), ordered=True)
    names = [f"node-{number}" for number in range(3)]
    faults = [
        Fault("kill", When(epoch=epoch), (names[number % 3],))
        for number, epoch in enumerate(range(EVERY // 2, epochs, EVERY))
    ]
    faults += [Fault("restart", When(epoch=epoch)) for epoch in range(2 * EVERY + 10, epochs, 4 * EVERY)]
    schedule = FaultSchedule(
        pipeline.coordinated,
        Settings(nodes=3, checkpoint_every=5, capacity=1.0, replicas=(task("A/0"),)),
        nodes=3,
        epochs=epochs,
        faults=tuple(faults),
        timing=Timing(interval=0.3, patience=60.0, restart=0.2),
        replace=1.5,
        mishaps=tuple(Mishap("local", 0.3 * epoch, epoch) for epoch in range(3 * EVERY, epochs, 3 * EVERY)),
        seed=5,
    )
    record = History(folder / NAME, part_bytes=20_000, parts=3)
    simulation = Simulation(schedule, pipeline, digest_batches(pipeline, epochs, seed=5), record)
    found: list[Counter[str]] = []

    def watch(_: Event, answer: list[Instruction]) -> None:
        if any(isinstance(each, EpochDone) for each in answer):
            found.append(measure(simulation, folder))

    simulation.watchers.append(watch)
    audited(simulation, None)
    record.close()
    kinds = Counter(event["kind"] for event in simulation.history)
    assert kinds["nodes lost"] >= len(range(EVERY // 2, epochs, EVERY)) and kinds["driver lost"] >= 1
    assert any(event["kind"] == "epoch" and event["tentative"] for event in simulation.history), "forks were made"
    return found


def test_a_long_job_has_no_more_at_its_end_than_in_its_youth(tmp_path: Path) -> None:
    found = soaked(tmp_path, EPOCHS)
    quarter = len(found) // 4
    young, old = found[quarter : 2 * quarter], found[-quarter:]
    for what in found[-1]:
        before, after = (max(each[what] for each in part) for part in (young, old))
        assert before > 0, what
        assert after <= SLACK * before, f"{what}: at most {before} in the second quarter, {after} in the last"


def test_the_measure_would_notice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a checkpoint the journal, the changelogs of nodes and what the driver knows grow with every epoch."""
    monkeypatch.setattr(Checkpointing, "take", lambda self, parts: ())
    pipeline = digesting(chain(1, 2, 1), ordered=True)
    schedule = FaultSchedule(pipeline.coordinated, Settings(nodes=2), nodes=2, epochs=60, longest=20.0)
    simulation = Simulation(schedule, pipeline, digest_batches(pipeline, 60, seed=5))
    found: list[Counter[str]] = []
    simulation.watchers.append(
        lambda _, answer: found.append(measure(simulation, tmp_path)) if any(map(_is_done, answer)) else None
    )
    with pytest.raises(Unfinished, match="20 s have passed"):
        simulation.run()
    for what in ("files in the store", "files on nodes", "in the driver"):
        assert found[-1][what] > SLACK * found[len(found) // 2][what], what


def _is_done(instruction: Instruction) -> bool:
    return isinstance(instruction, EpochDone)
