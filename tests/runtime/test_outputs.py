"""What readers see of the outputs of a run: final rows, tentative ones, and which of them are superseded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast.errors import Invalid
from holdfast.runtime.history.history import NAME, History
from holdfast.runtime.history.outputs import read_output
from holdfast.state import Damaged
from holdfast.state.files import open_files
from holdfast.state.output import Kind, output_name, place, stage
from holdfast.state.store import Store

ALL, OTHER = "all/0", "all/1"


def put(folder: Path, kind: Kind, epoch: int, task: str, *words: str) -> None:
    files = open_files(folder)
    staged = stage(files, "1-1", kind, epoch, task, pa.table({"word": list(words)}), 0.5, sync=False)
    assert place(files, [staged], sync=False) == [True]


def answered(folder: Path, *inexact: dict[str, str]) -> None:
    """A history in which these tasks were not exact, epoch by epoch from 0 on."""
    history = History(folder / NAME)
    for epoch, tasks in enumerate(inexact):
        history.add({"time": float(epoch), "kind": "epoch", "epoch": epoch, "inexact": tasks})
    history.close()


def latest(folder: Path) -> list[tuple[int, str, str, float]]:
    rows: list[dict[str, Any]] = read_output(folder).to_pylist()
    return [(row["epoch"], row["task"], row["word"], row["fidelity"]) for row in rows]


def test_final_rows_supersede_tentative_ones_and_the_rest_stands(tmp_path: Path) -> None:
    put(tmp_path, "tentative", 3, ALL, "guess")
    put(tmp_path, "tentative", 3, OTHER, "guess")
    put(tmp_path, "final", 3, ALL, "truth")
    assert latest(tmp_path) == [(3, "all/0", "truth", 1.0), (3, "all/1", "guess", 0.5)]


def test_a_later_final_output_says_that_the_empty_one_before_it_was_final(tmp_path: Path) -> None:
    put(tmp_path, "tentative", 3, ALL, "guess")
    put(tmp_path, "tentative", 5, ALL, "newer guess")
    put(tmp_path, "final", 4, ALL, "truth")
    assert latest(tmp_path) == [(4, "all/0", "truth", 1.0), (5, "all/0", "newer guess", 0.5)]


def test_an_empty_final_output_supersedes_as_soon_as_its_task_is_exact_again(tmp_path: Path) -> None:
    put(tmp_path, "final", 0, ALL, "truth")
    put(tmp_path, "tentative", 1, ALL, "guess")
    answered(tmp_path, {}, {"all/0": "tentative"})
    assert latest(tmp_path)[1:] == [(1, "all/0", "guess", 0.5)]
    answered(tmp_path, {}, {"all/0": "tentative"}, {"all/1": "absent"})
    assert latest(tmp_path)[1:] == []
    assert read_output(tmp_path, "tentative").num_rows == 1, "tentative rows are kept, superseded or not"


def test_a_checkpoint_supersedes_every_tentative_output_up_to_its_epoch(tmp_path: Path) -> None:
    put(tmp_path, "tentative", 1, ALL, "guess")
    put(tmp_path, "tentative", 2, OTHER, "newer guess")
    with Store(tmp_path).writer("test") as writer:
        writer.commit_checkpoint(1, {})
    assert latest(tmp_path) == [(2, "all/1", "newer guess", 0.5)]


def test_nothing_final_yet_is_an_empty_table(tmp_path: Path) -> None:
    put(tmp_path, "tentative", 1, ALL, "guess")
    assert read_output(tmp_path, "final").num_rows == 0


@pytest.mark.parametrize("left", [b"", b"PAR1 and then nothing"])
def test_a_damaged_file_is_named(tmp_path: Path, left: bytes) -> None:
    put(tmp_path, "final", 3, ALL, "truth")
    put(tmp_path, "final", 4, ALL, "truth")
    name = output_name("final", 4, ALL)
    (tmp_path / name).write_bytes(left)
    with pytest.raises(Damaged, match=f"{name} is torn or was altered"):
        read_output(tmp_path)


def test_other_views_and_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="latest, final or tentative, got 'newest'"):
        read_output(tmp_path, "newest")  # type: ignore[arg-type]
    with pytest.raises(Invalid, match="no output here"):
        read_output(tmp_path)
