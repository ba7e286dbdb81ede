"""An epoch whose run breaks after its rows were journalled is not read from the source again."""

from __future__ import annotations

from typing import Any

import pytest
from driving import chain

from holdfast.runtime.settings import Settings
from holdfast.runtime.simulation.auditing import audited
from holdfast.runtime.simulation.fuzzing import Case
from holdfast.runtime.simulation.operators import digest_batches, digesting
from holdfast.runtime.simulation.schedule import FaultSchedule
from holdfast.runtime.simulation.simulation import Simulation
from holdfast.runtime.worker.worker import Worker

EPOCH = 4
"""Its batch has three pieces with this seed, dealt over three nodes."""


def lost_after(monkeypatch: pytest.MonkeyPatch, pieces: int) -> tuple[Simulation, list[int]]:
    """A job that loses a node once so many pieces of EPOCH are read, not the one that has read the last of them.

    And the epochs of all pieces that were ever read. Piece number n is read on node n.
    """
    pipeline = digesting(chain(3, 3, 2), ordered=True)
    schedule = FaultSchedule(
        pipeline.coordinated, Settings(nodes=3, checkpoint_every=3), nodes=3, epochs=8, replace=3.0
    )
    batches = digest_batches(pipeline, 8, seed=4)
    assert len(batches[EPOCH].pieces) == 3
    simulation, read = Simulation(schedule, pipeline, batches), list[int]()
    ingest = Worker.ingest

    def watched(self: Worker, plan: Any, piece: int, *given: Any, **named: Any) -> Any:
        made = ingest(self, plan, piece, *given, **named)
        read.append(plan.ingest)
        if plan.ingest == EPOCH and read.count(EPOCH) == pieces:
            simulation.world.after(0.0, lambda: simulation.nodes.kill([f"node-{(piece + 1) % 3}"]))
        return made

    monkeypatch.setattr(Worker, "ingest", watched)
    audited(simulation, Case(schedule, pipeline, batches).expected())
    return simulation, read


def test_a_broken_epoch_that_was_journalled_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    simulation, read = lost_after(monkeypatch, pieces=3)
    kinds = [event["kind"] for event in simulation.history]
    assert "nodes lost" in kinds and "run broken" in kinds
    assert [event["epoch"] for event in simulation.history if event["kind"] == "adopted"] == [EPOCH]
    assert all(read.count(epoch) == len(simulation.batches[epoch].pieces) for epoch in range(8))


def test_an_epoch_of_which_a_piece_is_missing_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    simulation, read = lost_after(monkeypatch, pieces=1)
    assert "adopted" not in [event["kind"] for event in simulation.history]
    assert read.count(EPOCH) > 3
