"""The display of a running job: every task as a mark, what is lost, how far the recovery has come."""

from __future__ import annotations

import io
from typing import Any

import pytest
from histories import half_lost, silent
from rich.console import Console

from holdfast.cli import display as module
from holdfast.cli.display import Display


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    written = io.StringIO()
    monkeypatch.setattr(module, "progress", Console(file=written, width=120))
    return written


def upto(kind: str, which: int = 0) -> list[dict[str, Any]]:
    events = half_lost()
    places = [number for number, event in enumerate(events) if event["kind"] == kind]
    return events[: places[which] + 1]


def shown(events: list[dict[str, Any]]) -> str:
    """The panel after these events, as plain text."""
    display = Display("word count", 5, quiet=True)
    for event in events:
        display.heard(event)
    console = Console(file=io.StringIO(), width=120)
    console.print(display._panel())
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_before_anything_failed() -> None:
    text = shown(upto("epoch", 1))
    assert "2 of 5" in text and "1.000" in text and "nothing to recover" in text
    assert "count  ●0  ●1  ●2  ●1    → top" in text and "★ query" in text
    assert "2 final   0 tentative" in text


def test_right_after_the_loss() -> None:
    text = shown(upto("promoted"))
    assert "count  ●0  ✕   ✕   ●0" in text
    assert "0 of 2 tasks placed again" in text
    assert "lost node-1, node-2: 2 tasks down" in text and "replicas took over: count/3" in text


def test_while_it_answers_tentatively() -> None:
    text = shown(upto("answered", 2))
    assert "count  ●0  ◔0  ✕   ●0" in text and "top  ◐3" in text
    assert "0.500" in text and "1 of 2 tasks placed again" in text and "2 final   1 tentative" in text


def test_a_fidelity_of_0_is_no_answer() -> None:
    events = silent()
    place = next(number for number, event in enumerate(events) if event.get("fidelity") == 0.0)
    assert "0.000: no answer" in shown(events[: place + 1]) and "no answer" not in shown(half_lost())


def test_when_all_is_exact_again() -> None:
    text = shown(half_lost())
    assert "exact and caught up 1.9 s after the loss" in text and "nothing to recover" in text
    assert "5 final   1 tentative" in text


def test_without_a_terminal_there_are_lines(screen: io.StringIO) -> None:
    with Display("word count", 5, quiet=False) as display:
        for event in half_lost():
            display.heard(event)
    text = screen.getvalue()
    assert "lost node-1, node-2: 2 tasks down" in text and "\x1b" not in text
    assert text.count("epoch 4 (5 of 5)") == 1 and text.splitlines()[-1].startswith("epoch 4 (5 of 5)")


def test_quiet_says_nothing(screen: io.StringIO) -> None:
    with Display("word count", 5, quiet=True) as display:
        for event in half_lost():
            display.heard(event)
    assert screen.getvalue() == ""


@pytest.mark.parametrize(("width", "height"), [(80, 24), (80, 16), (60, 12), (200, 50)])
def test_it_fits_the_terminal_and_shows_what_is_newest(
    monkeypatch: pytest.MonkeyPatch, width: int, height: int
) -> None:
    monkeypatch.setattr(module, "progress", Console(file=io.StringIO(), width=width, height=height))
    display = Display("word count", 5, quiet=True)
    for event in upto("recovery plan", 1):
        display.heard(event)
    console = Console(file=io.StringIO(), width=width)
    console.print(display._panel())
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert len(lines) < height and max(map(len, lines)) <= width
    assert "recovery: 1 of 2 fits" in lines[-1]
    assert any("✕ node-1 lost" in line for line in lines), "lost nodes are told in words, not by colour alone"


def test_a_terminal_that_cannot_be_drawn_on_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.StringIO()
    dumb = Console(file=written, width=80, force_terminal=True, _environ={"TERM": "dumb"})
    monkeypatch.setattr(module, "progress", dumb)
    with Display("word count", 5, quiet=False) as display:
        for event in half_lost():
            display.heard(event)
    assert "lost node-1, node-2: 2 tasks down" in written.getvalue() and "\x1b[" not in written.getvalue()


def test_a_brief_display_is_for_terminals_alone(screen: io.StringIO) -> None:
    with Display("undisturbed", 5, quiet=False, brief=True) as display:
        for event in half_lost():
            display.heard(event)
    assert screen.getvalue() == ""


def test_many_tasks_are_summed_up() -> None:
    events = upto("started")
    events[0]["topology"]["operators"][1]["parallelism"] = 100
    text = shown(events)
    assert "✕ x 100" in text
    events[0]["topology"]["operators"][1]["parallelism"] = 4  # the topology is shared by all histories


def test_a_store_that_refuses_is_told() -> None:
    events = upto("answered")
    refused = {"time": events[-1]["time"], "kind": "store unusable", "message": "No space left", "retry_seconds": 1.0}
    assert "waiting for the store: No space left" in shown([*events, refused])
