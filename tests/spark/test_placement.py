"""Whether a task runs where it was sent, without Spark: by the executor that its process comes from."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.runtime.spark import placement, stages
from holdfast.runtime.worker.versions import Saved
from waiting import DEADLINE


@pytest.mark.parametrize(
    ("place", "here", "wrong"),
    [
        ("executor_10.0.0.1_3", "3", False),
        ("executor_10.0.0.1_3", "13", True),
        ("executor_host_with_bars_3", "1", True),
        ("executor_10.0.0.1_3", "", False),
        ("slot-0", "driver", False),
    ],
    ids=["there", "elsewhere", "host with bars", "nobody can tell", "no executor"],
)
def test_a_place_is_an_executor(place: str, here: str, wrong: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "executor_here", lambda: here)
    told = placement.misplaced(place)
    assert bool(told) == wrong and (not wrong or ("spark.locality.wait" in told and "\n" not in told))


def test_an_executor_is_known_by_the_words_its_jvm_was_started_with(tmp_path: Path) -> None:
    """A process named java stands for the JVM; what it starts finds its number."""
    java = tmp_path / "java"
    java.symlink_to(sys.executable)
    ask = "from holdfast.runtime.spark.placement import executor_here; print(executor_here())"
    start = f"import subprocess, sys; sys.exit(subprocess.run([{sys.executable!r}, '-c', {ask!r}]).returncode)"
    words = [str(java), "-c", start, "--app-id", "app-1", "--executor-id", "7", "--cores", "1"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert done.stdout == "7\n", done.stderr


def test_states_that_are_elsewhere_are_not_brought_to_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "executor_here", lambda: "1")
    (said,) = stages.Save("job", None, [[]], ["executor_host_0"])(0, [])  # type: ignore[arg-type]
    saved = Saved.of([Saved({}, {"A/0": "cut"}), Saved.from_json(json.loads(said))])
    assert "on executor 1 instead of 0" in saved.misplaced and saved.missing == {"A/0": "cut"}
