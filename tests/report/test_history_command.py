"""``holdfast history`` in words: an answer with nothing in it is told as silence, and never exact is not 0.0 s."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from histories import half_lost, silent, written
from typer.testing import CliRunner

from holdfast.cli.app import app
from holdfast.cli.summary import summarise
from holdfast.report.digest import digest

KEYS = {
    "epoch", "nodes", "down", "promoted", "answered_after_s", "answered_fidelity", "least_fidelity",
    "promised_fidelity", "exact_after_s",
}  # fmt: skip


def told(folder: Path, *options: str) -> str:
    done = CliRunner().invoke(app, ["history", str(folder), *options])
    assert done.exit_code == 0, done.output
    return done.stdout


def recovery(folder: Path) -> dict[str, Any]:
    (found,) = json.loads(told(folder, "--format", "json"))["recoveries"]
    assert set(found) >= KEYS
    return dict(found)


def ended_silent() -> list[dict[str, Any]]:
    """It ends with epoch 2, which nobody was answered, and the replay after it has no row to tell."""
    events = silent()
    cut = next(number for number, event in enumerate(events) if event["kind"] == "nodes joined" and number > 1)
    at = events[cut]["time"]
    return [
        *(event for event in events[:cut]),
        {"time": at, "kind": "stopped", "error": None},
        {"time": at + 1.0, "kind": "checkpoint", "epoch": 2, "bytes": 1},
    ]


@pytest.mark.parametrize(
    ("events", "answer", "exact"),
    [
        (
            half_lost(),
            "next answer after 0.50 s with fidelity 0.500, promised 0.480",
            "exact and caught up after 1.90 s",
        ),
        (
            silent(),
            "silent for 1.30 s, then an answer with fidelity 1.000, promised 0.480",
            "exact and caught up after 1.90 s",
        ),
        (
            ended_silent(),
            "silent for 1.70 s: no row for anybody since",
            "no exact answer since; all state was exact in the checkpoint after 1.70 s",
        ),
    ],
    ids=["answered", "silent", "ended silent"],
)
def test_what_came_and_when(tmp_path: Path, events: list[dict[str, Any]], answer: str, exact: str) -> None:
    text = told(written(tmp_path, events))
    assert f"   {answer}\n" in text and f"   {exact}\n" in text


def test_what_is_promised_is_told_until_something_else_happens(tmp_path: Path) -> None:
    """In a history without an end: of one that has ended nothing is promised any more."""
    events = half_lost()
    stands = "fidelity of the next answer, if any 2 nodes are lost now: at least 0.610\n"
    last = max(number for number, event in enumerate(events) if event["kind"] == "answered")
    lost = next(number for number, event in enumerate(events) if event["kind"] == "nodes lost")
    for number, (kept, there) in enumerate([(last, True), (lost - 1, True), (lost, False), (len(events), False)]):
        folder = written(tmp_path / str(number), events[: kept + 1])
        assert (stands in told(folder)) is there
        assert (json.loads(told(folder, "--format", "json"))["promise"] is not None) is there
        assert (stands[1:-1] in " ".join(digest(folder)["short"])) is there
    shown = digest(written(tmp_path / "all", events))
    assert [each["floor"] for each in shown["epochs"]] == [0.61, 0.61, None, 0.61, 0.61]
    assert shown["floor_of"] == "any 2 nodes are lost" and shown["recoveries"][0]["promised_fidelity"] == 0.48


def test_null_is_what_did_not_happen(tmp_path: Path) -> None:
    found = recovery(written(tmp_path / "a", silent()))
    assert (found["answered_after_s"], found["answered_fidelity"], found["exact_after_s"]) == (1.3, 1.0, 1.9)
    found = recovery(written(tmp_path / "b", ended_silent()))
    assert (found["answered_after_s"], found["answered_fidelity"], found["exact_after_s"]) == (None, None, None)
    assert (found["silent_s"], found["saved_after_s"], found["least_fidelity"]) == (1.7, 1.7, 0.0)


def test_a_checkpoint_that_was_under_way_at_the_loss_recovers_nothing(tmp_path: Path) -> None:
    events = silent()
    cut = next(number for number, event in enumerate(events) if event["kind"] == "promoted")
    late = {"time": events[cut]["time"], "kind": "checkpoint", "epoch": 1, "bytes": 1}
    assert not summarise(written(tmp_path / "a", [*events[: cut + 1], late]), "word-count", 1.0)["recovered"]
    assert summarise(written(tmp_path / "b", ended_silent()), "word-count", 1.0)["recovered"]
