"""What a running job looks like in a terminal: one live panel, or a line now and then where there is no terminal."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any

from rich.live import Live
from rich.table import Table
from rich.text import Text

from holdfast.cli.output import progress

LINE_EVERY = 5.0
COLOURS = {"exact": "green", "tentative": "yellow", "down": "red", "behind": "cyan"}


class Display:
    """Listens to a job's history. ``quiet``: says nothing at all."""

    def __init__(self, title: str, epochs: int | None, quiet: bool) -> None:
        self._title = title
        self._epochs = epochs
        self._quiet = quiet
        self._job: Any = None
        self._last: dict[str, Any] = {}
        self._seconds = 0.0
        self._published = {"final": 0, "tentative": 0}
        self._checkpoint_at: float | None = None
        self._news: list[str] = []
        self._said = 0.0
        self._live: Live | None = None

    def __enter__(self) -> Display:
        if not self._quiet and progress.is_terminal:
            self._live = Live(self._panel(), console=progress, refresh_per_second=8, transient=False)
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._live is not None:
            self._live.update(self._panel())
            self._live.stop()

    def watch(self, job: Any) -> None:
        self._job = job

    def heard(self, event: dict[str, Any]) -> None:
        """A listener for the job's history."""
        match event["kind"]:
            case "epoch":
                self._last = event
            case "answered":
                self._seconds = event["seconds"]
            case "published":
                self._published[event["of"]] += len(event["epochs"]) * len(event["tasks"])
            case "checkpoint":
                self._checkpoint_at = event["time"]
            case "nodes lost":
                self._tell(f"lost {', '.join(event['nodes'])}: {len(event['down'])} tasks down")
            case "nodes joined":
                self._tell(f"joined: {', '.join(event['nodes'])}")
            case "promoted":
                self._tell(f"replicas took over: {', '.join(event['tasks'])}")
            case "recovery plan":
                self._tell(f"recovery: {event['why']}")
            case "fault":
                self._tell(f"fault: {event['fault']}")
        if self._live is not None:
            self._live.update(self._panel())
        elif not self._quiet and event["kind"] == "answered" and time.monotonic() - self._said > LINE_EVERY:
            self._said = time.monotonic()
            progress.print(self._line(), highlight=False, markup=False)

    def _tell(self, news: str) -> None:
        self._news = [*self._news[-4:], news]
        if self._live is None and not self._quiet:
            progress.print(news, highlight=False, markup=False)

    def _line(self) -> str:
        epochs = f"/{self._epochs - 1}" if self._epochs is not None else ""
        return (
            f"epoch {self._last.get('epoch', '-')}{epochs}  {self._rate():,.0f} rows/s  latency {self._seconds:.2f} s  "
            f"state {_size(self._last.get('state_bytes', 0))}  fidelity {self._last.get('fidelity', 1.0):.3f}"
        )

    def _rate(self) -> float:
        return float(self._last.get("rows_in", 0) / self._seconds) if self._seconds else 0.0

    def _panel(self) -> Table:
        table = Table(title=self._title, show_header=False, title_justify="left", expand=False)
        table.add_column(style="bold")
        table.add_column()
        epochs = f" of {self._epochs}" if self._epochs is not None else ""
        done = self._last.get("epoch")
        table.add_row("epoch", "starting" if done is None else f"{done + 1}{epochs}")
        table.add_row("rows/s", f"{self._rate():,.0f}")
        table.add_row("latency", f"{self._seconds:.2f} s")
        table.add_row("state", f"{_size(self._last.get('state_bytes', 0))}, {self._last.get('state_rows', 0):,} rows")
        age = "none yet" if self._checkpoint_at is None else f"{max(0.0, time.time() - self._checkpoint_at):.1f} s ago"
        table.add_row("checkpoint", age)
        fidelity = self._last.get("fidelity", 1.0)
        table.add_row("fidelity", Text(f"{fidelity:.3f}", style="green" if fidelity >= 1 else "yellow"))
        table.add_row(
            "published", f"{self._published['final']} final, {self._published['tentative']} tentative outputs"
        )
        if self._job is not None:
            table.add_row("tasks", self._tasks())
        for news in self._news:
            table.add_row("", Text(news, style="dim"))
        return table

    def _tasks(self) -> Text:
        """Every task as a mark: green exact, cyan catching up, red down; a ring around those with a replica."""
        standing = self._job.shell.coordinator.standing
        down = set(standing.down)
        text = Text()
        for operator in standing.topology.operators:
            text.append(f"{operator.name} ")
            for number in range(operator.parallelism):
                task = (operator.name, number)
                home = standing.homes.get(task)
                behind = home is not None and home.position < standing.head
                colour = COLOURS["down" if task in down else "behind" if behind else "exact"]
                text.append("◉" if task in standing.replicas else "●", style=colour)
            text.append("  ")
        return text


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
