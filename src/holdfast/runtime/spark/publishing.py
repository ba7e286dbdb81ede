"""Outputs on their last way: what workers have staged is put in its place, once, and handed to whoever wants it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.runtime.events import Publish, Report
from holdfast.runtime.outputs import STAGED, name_of, publish
from holdfast.state.files import Files
from holdfast.topology import Task

Sink = Callable[[pa.Table, int, str, float], None]
"""Given the rows, the epoch, "final" or "tentative", and the fidelity."""


class Publisher:
    """``until_taken``: does something as soon as the store lets it be done. ``note``: tells the history."""

    def __init__(
        self,
        files: Files,
        until_taken: Callable[[Callable[[], None]], None],
        note: Callable[[str, Mapping[str, Any]], None],
        sink: Sink | None = None,
    ) -> None:
        self._files = files
        self._until_taken = until_taken
        self._note = note
        self._sink = sink
        self._staged: dict[tuple[int, str, int, Task], str] = {}

    def staged(self, run: int, reports: Iterable[Report]) -> None:
        for report in reports:
            for epoch, name in report.outputs.items():
                self._staged[run, report.lane, epoch, report.task] = name

    def publish(self, wanted: Publish) -> None:
        lane = "exact" if wanted.kind == "final" else "tentative"
        for epoch, task in wanted.outputs:
            name = self._staged.pop((wanted.run, lane, epoch, task))
            if self._placed(name, wanted, epoch, task) and self._sink is not None:
                self._hand_over(self._sink, wanted.kind, epoch, task)
        for key in [key for key in self._staged if key[0] == wanted.run and key[1] == lane]:
            self._files.delete(self._staged.pop(key))
        epochs = sorted({epoch for epoch, _ in wanted.outputs})
        tasks = sorted({str(task) for _, task in wanted.outputs})
        self._note(
            "published",
            {
                "of": wanted.kind,
                "epochs": epochs,
                "tasks": tasks,
                "run": wanted.run,
                "rows": wanted.rows,
                "fidelity": wanted.fidelity,
            },
        )

    def clean(self) -> None:
        """What an earlier process staged and never published is rubbish: its epochs run again."""
        for name in self._files.list(STAGED):
            self._files.delete(f"{STAGED}/{name}")

    def _placed(self, name: str, wanted: Publish, epoch: int, task: Task) -> bool:
        new: list[bool] = []
        self._until_taken(lambda: new.append(publish(self._files, name, wanted.kind, epoch, task)))
        return any(new)

    def _hand_over(self, sink: Sink, kind: str, epoch: int, task: Task) -> None:
        data = self._files.read(f"output/{kind}/{name_of(epoch, task)}")
        table = pq.read_table(pa.BufferReader(data))
        fidelity = table["fidelity"][0].as_py() if "fidelity" in table.column_names and len(table) else 1.0
        sink(table, epoch, kind, fidelity)
