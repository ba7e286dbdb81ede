"""What a running job looks like in a terminal: one live panel, or a line now and then where there is no terminal."""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Any

from rich.console import Group
from rich.live import Live
from rich.text import Text

from holdfast.cli.output import progress
from holdfast.report.frames import Tasks
from holdfast.runtime.history.narrative import promise

LINE_EVERY = 5.0
NEWS = 8
FEWEST = 3
"""So many of the newest are shown whatever else there is to show."""
WIDEST = 40
"""Operators with more tasks than this are summed up instead of drawn."""
STYLES = {"exact": "green", "tentative": "yellow", "catching up": "cyan", "down": "red"}
MARKS = {"exact": "●", "tentative": "◐", "catching up": "◔", "down": "✕"}
BAR = 24


class Display:
    """Listens to a job's history. ``quiet``: says nothing at all. ``brief``: one line, and only in a terminal."""

    def __init__(self, title: str, epochs: int | None, quiet: bool, brief: bool = False) -> None:
        self._title = title
        self._epochs = epochs
        self._quiet = quiet or (brief and not _can_draw())
        self._brief = brief
        self._job: Any = None
        self._tasks = Tasks()
        self._topology: dict[str, Any] = {}
        self._last: dict[str, Any] = {}
        self._seconds = 0.0
        self._published = {"final": 0, "tentative": 0}
        self._checkpoint_at: float | None = None
        self._recovery: dict[str, Any] = {}
        self._news: list[str] = []
        self._began = time.time()
        self._said = 0.0
        self._said_epoch: int | None = None
        self._live: Live | None = None
        self._lock = threading.RLock()  # events come in the job's threads, and the terminal is drawn in another

    def __enter__(self) -> Display:
        self._began = time.time()
        if not self._quiet and _can_draw():
            self._live = Live(
                get_renderable=self._panel, console=progress, refresh_per_second=8, transient=self._brief,
                vertical_overflow="crop",
            )  # fmt: skip
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()
        elif not self._quiet and self._last and error is None:
            self._say_line()

    def watch(self, job: Any) -> None:
        """The job whose replays are asked how far they have come."""
        self._job = job

    def heard(self, event: dict[str, Any]) -> None:
        """A listener for the job's history."""
        with self._lock:
            self._hear(event)

    def _hear(self, event: dict[str, Any]) -> None:
        before = bool(self._last)
        self._tasks.hear(event)
        match event["kind"]:
            case "started":
                self._topology = event["topology"]
            case "epoch":
                self._last = event
                self._recovered(event)
            case "answered":
                self._seconds = event["seconds"]
            case "published":
                self._published[event["of"]] += len(event["epochs"]) * len(event["tasks"])
            case "checkpoint":
                self._checkpoint_at = event["time"]
            case "nodes lost":
                self._recovery = {"at": event["time"], "lost": len(event["down"]), "down": set(event["down"])}
                self._tell(event, f"lost {', '.join(event['nodes'])}: {len(event['down'])} tasks down")
            case "nodes joined" if before:
                self._tell(event, f"joined: {', '.join(event['nodes'])}")
            case "promoted":
                self._tell(event, f"replicas took over: {', '.join(event['tasks'])}")
            case "moved":
                self._tell(event, f"moved to nodes with room: {', '.join(event['tasks'])}")
            case "recovery plan" if before:
                self._tell(event, f"recovery: {event['why']}")
            case "replicas planned":
                self._tell(event, f"replicas: {', '.join(event['tasks']) or 'none'} ({event['why']})")
            case "scaled" if "new" in event:
                self._tell(event, f"{event['operator']} has {event['tasks']} tasks now ({event['why']})")
            case "scaling aborted" | "scaling refused":
                self._tell(event, f"{event['kind']}: {event['operator']}: {event['reason']}")
            case "recovering in parallel":
                self._tell(event, f"{', '.join(event['tasks'])} come back as {event['into']} each: {event['why']}")
            case "cannot scale":
                self._tell(event, str(event["why"]))
            case "nodes wanted" if not event["given"]:
                self._tell(event, f"{event['count']} more nodes are wanted, but this Spark master gives none")
            case "nodes released":
                self._tell(event, f"given back: {', '.join(event['nodes'])}, {event['alive']} are left")
            case "answer late" if event["silent"]:
                self._tell(event, f"epoch {event['epoch']} waits for {', '.join(event['silent'])}")
            case "stood in":
                self._tell(event, f"answered without {', '.join(event['silent'])}: fidelity {event['fidelity']:.3f}")
            case "misplaced":
                self._tell(event, f"{', '.join(event['tasks'])}: {event['message']}")
            case "store unusable":
                self._tell(event, f"waiting for the store: {event['message']}")
            case "store usable":
                self._tell(event, f"the store takes writes again after {event['after_seconds']:.1f} s")
            case "fault":
                self._tell(event, f"fault: {event['fault']}")
        if (
            self._live is None
            and not self._quiet
            and event["kind"] == "answered"
            and time.monotonic() - self._said > LINE_EVERY
        ):
            self._said = time.monotonic()
            self._say_line()

    def _recovered(self, event: dict[str, Any]) -> None:
        if self._recovery and not event["absent"] and not event["tentative"]:
            self._tell(event, f"exact and caught up {event['time'] - self._recovery['at']:.1f} s after the loss")
            self._recovery = {}

    def _tell(self, event: dict[str, Any], news: str) -> None:
        told = f"{max(0.0, event['time'] - self._began):6.1f} s  {news}"
        self._news = [*self._news, told][-NEWS:]
        if self._live is None and not self._quiet:
            progress.print(told, highlight=False, markup=False, soft_wrap=True)

    def _say_line(self) -> None:
        if self._last.get("epoch") != self._said_epoch:
            self._said_epoch = self._last.get("epoch")
            progress.print(self._line(), highlight=False, markup=False, soft_wrap=True)

    def _line(self) -> str:
        done = self._last["epoch"]
        of = f" ({done + 1} of {self._epochs})" if self._epochs is not None else ""
        return (
            f"epoch {done}{of}  {self._rate():,.0f} rows/s  latency {self._seconds:.2f} s  "
            f"state {_size(self._last.get('state_bytes', 0))}  fidelity {_told(self._last.get('fidelity', 1.0))}  "
            f"outputs {self._published['final']} final, {self._published['tentative']} tentative"
        )

    def _rate(self) -> float:
        return float(self._last.get("rows_in", 0) / self._seconds) if self._seconds else 0.0

    def _panel(self) -> Group:
        """As much as fits into the terminal, every line whole; what is newest is never what is left out."""
        with self._lock:
            return Group(*self._drawn())

    def _drawn(self) -> list[Text]:
        done = self._last.get("epoch")
        if self._brief:
            return [_one_line(f"{self._title}  {'starting' if done is None else self._progress(done + 1)}")]
        height = max(8, progress.size.height - 1)
        lines = [_one_line(self._title, "bold"), *self._figures(done)]
        news = [_one_line(told, "dim") for told in self._news]
        room = height - len(lines) - min(len(news), FEWEST) - 1
        lines += self._picture(max(0, room))
        room = height - len(lines) - 1
        return [*lines, Text(""), *news[-room:]] if room > 0 and news else lines

    def _figures(self, done: int | None) -> list[Text]:
        fidelity = self._last.get("fidelity", 1.0)
        age = "none yet" if self._checkpoint_at is None else f"{max(0.0, time.time() - self._checkpoint_at):.0f} s ago"
        size = f"{_size(self._last.get('state_bytes', 0))}, {self._last.get('state_rows', 0):,} rows"
        counted = Text(f"{self._published['final']} final", style="green")
        counted.append(f"   {self._published['tentative']} tentative", style="yellow")
        rows: list[tuple[str, str | Text]] = [
            ("epoch", "starting" if done is None else self._progress(done + 1)),
            ("rows/s", f"{self._rate():,.0f}   latency {self._seconds:.2f} s"),
            ("state", f"{size}   checkpoint {age}"),
            ("fidelity", Text(f"{_bar(fidelity)} {_told(fidelity)}", style="green" if fidelity >= 1 else "yellow")),
            *([("promise", promised)] if (promised := self._promise()) else []),
            ("outputs", counted),
            ("nodes", self._nodes()),
            ("recovery", self._recovering()),
        ]
        return [_one_line(Text.assemble((f"{name:>9}  ", "bold"), told)) for name, told in rows]

    def _promise(self) -> str:
        return promise([self._last]) if self._last else ""

    def _progress(self, done: int) -> str:
        if self._epochs is None:
            return str(done)
        return f"{_bar(done / self._epochs)} {done} of {self._epochs}"

    def _nodes(self) -> Text:
        text = Text()
        for name, alive in sorted(self._tasks.nodes.items()):
            # Not by its colour alone: there are terminals, and readers, without.
            text.append(f"{name}  " if alive else f"✕ {name} lost  ", style="green" if alive else "red")
        return text

    def _recovering(self) -> Text:
        """How many of the tasks that were lost have a home again, how many are exact, how far the last has to go."""
        if not self._recovery:
            return Text("nothing to recover", style="dim")
        lost = self._recovery["down"]
        placed = sum(task in self._tasks.homes for task in lost)
        behind = self._behind(lost)
        if not lost:
            return Text("replicas took over, nothing was lost", style="cyan")
        told = f"{placed} of {len(lost)} tasks placed again"
        return Text(f"{_bar(placed / len(lost))} {told}" + (f", {behind} epochs behind" if behind else ""), "cyan")

    def _behind(self, lost: set[str]) -> int:
        if self._job is None:
            return 0
        seen = self._job.driver.snapshot
        return max((seen.head - reached for task, reached in seen.positions.items() if str(task) in lost), default=0)

    def _picture(self, room: int) -> list[Text]:
        """One line an operator, every task a mark with its node; a task with a replica is underlined."""
        operators = self._topology.get("operators", [])
        width = max((len(each["name"]) for each in operators), default=0)
        fed = {stream["to"] for stream in self._topology.get("streams", [])}
        queries = {query["sink"] for query in self._topology.get("queries", [])}
        lines = []
        for operator in operators:
            name = operator["name"]
            # As many as there are by now: operators are scaled while the job runs.
            count = sum(task.rpartition("/")[0] == name for task in self._tasks.status) or operator["parallelism"]
            text = Text(f"{name:>{max(9, width)}}  ", style="bold")
            if name not in fed:
                text.append("●" * min(count, WIDEST), style="not bold dim")
            elif count > WIDEST:
                self._summed(text, name, count)
            else:
                for number in range(count):
                    self._mark(text, f"{name}/{number}")
            onward = [stream["to"] for stream in self._topology["streams"] if stream["from"] == name]
            text.append(f"  → {', '.join(onward)}" if onward else "", style="not bold dim")
            text.append("  ★ query" if name in queries else "", style="not bold dim")
            lines.append(_one_line(text))
        legend = Text(f"{'':>{max(9, width)}}  ")
        for status, mark in MARKS.items():
            legend.append(f"{mark} {status}  ", style=STYLES[status])
        legend.append("underlined: replica", style="dim underline")
        if room > len(lines):
            return [*lines, *([_one_line(legend)] if lines else [])]
        if room == len(lines) or room < 1:
            return lines[:room]
        return [
            *lines[: room - 1],
            _one_line(f"{'':>{max(9, width)}}  and {len(lines) - room + 1} more operators", "dim"),
        ]

    def _mark(self, text: Text, task: str) -> None:
        status = self._tasks.status.get(task, "down")
        underline = " underline" if task in self._tasks.replicas else ""
        text.append(MARKS[status], style="not bold " + STYLES[status] + underline)
        home = self._tasks.homes.get(task, "")
        text.append(f"{home.removeprefix('node-'):<2}", style="not bold dim" + underline)
        text.append(" ")

    def _summed(self, text: Text, name: str, count: int) -> None:
        standing = [self._tasks.status.get(f"{name}/{number}", "down") for number in range(count)]
        for status, mark in MARKS.items():
            if among := standing.count(status):
                text.append(f"{mark} x {among}  ", style=STYLES[status])


def _can_draw() -> bool:
    """Whether there is a terminal whose lines can be drawn again."""
    return progress.is_terminal and not progress.is_dumb_terminal


def _one_line(told: str | Text, style: str = "") -> Text:
    text = Text(told, style=style) if isinstance(told, str) else told
    text.no_wrap, text.overflow = True, "ellipsis"
    return text


def _bar(share: float) -> str:
    full = round(BAR * min(1.0, max(0.0, share)))
    return "█" * full + "░" * (BAR - full)


def _told(fidelity: float) -> str:
    return f"{fidelity:.3f}" if fidelity > 0 else "0.000: no answer"


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
