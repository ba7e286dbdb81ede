"""``holdfast store`` and ``holdfast state``: what they print, and how they end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

from holdfast.cli.app import app
from holdfast.errors import Invalid
from holdfast.state import Change, Held, StateSchema, Store, TaskState, output
from holdfast.state.verify import verify

SCHEMA = StateSchema(pa.schema([("word", pa.string())]), pa.schema([("n", pa.int64()), ("mean", pa.float64())]))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    root = tmp_path / "run"
    store = Store(root)
    state = TaskState.empty({"counts": SCHEMA, "seen": SCHEMA}, 0)
    no_words = pa.table({"word": pa.array([], pa.string())})
    with store.writer("job", fold_at=0) as writer:
        for epoch in range(1, 6):
            words = [f"w{i}" for i in range(epoch)]
            rows = pa.table({"word": words, "n": [epoch] * epoch, "mean": [float("nan")] * epoch})
            change = {"counts": Change(rows, no_words)}
            state = state.apply(change, epoch)
            if epoch == 1:
                files = store.write_task("count/0", 1, state, token=writer.token)
            else:
                files = store.write_task("count/0", epoch, change, since=epoch - 1, token=writer.token)
            writer.commit_checkpoint(epoch, {"count/0": files})
            writer.journal_commit(epoch, {"S/0": store.journal_write(epoch, "S/0", b"rows", token=writer.token)})
            rows = pa.table({"n": [epoch]})
            output.place(
                store.files, [output.stage(store.files, "1-1", "final", epoch, "count/0", rows, 1.0, True)], True
            )
    return root


def ran(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(a) for a in arguments])


def test_list_verify_and_compact_as_json(place: Path) -> None:
    listed = json.loads(ran("store", place, "--format", "json").stdout)
    assert [row["epoch"] for row in listed["checkpoints"]] == [3, 4, 5]
    assert listed["checkpoints"][-1]["files"] == 6
    assert listed["journal"] == {"epochs": 5, "first": 1, "last": 5}
    assert listed["outputs"] == {"final": 5, "tentative": 0}
    verified = ran("store", "check", place, "--format", "json")
    assert verified.exit_code == 0
    assert json.loads(verified.stdout)["whole"] is True
    compacted = json.loads(ran("store", "compact", place, "--format", "json").stdout)
    assert compacted["folded"] == {"count/0": {"files_before": 6, "files_after": 2}}
    assert Store(place).restore("count/0")[1] == 5
    assert json.loads(ran("store", "check", place, "--format", "json").stdout)["findings"] == []


def test_verify_names_the_damaged_file_and_ends_with_1(place: Path) -> None:
    victim = next((place / "state" / "count-0").glob("000000000005-4-*"))
    victim.write_bytes(victim.read_bytes()[:-9])
    result = ran("store", "check", place, "--format", "json")
    assert result.exit_code == 1
    content = json.loads(result.stdout)
    assert [row["file"] for row in content["findings"]] == [f"state/count-0/{victim.name}"]
    assert {row["epoch"]: row["whole"] for row in content["checkpoints"]} == {3: True, 4: True, 5: False}
    text = ran("store", "check", place)
    assert text.exit_code == 1
    assert "1 damaged" in text.stdout and "whole checkpoints: 3, 4" in text.stdout


def test_a_check_by_many_finds_what_one_finds_and_says_how_far_it_is(place: Path) -> None:
    for path in list((place / "state" / "count-0").iterdir())[:3]:
        path.write_bytes(path.read_bytes()[:-9])
    heard: list[tuple[int, int]] = []
    alone, many = verify(Store(place), 1), verify(Store(place), 8, lambda done, of: heard.append((done, of)))
    assert alone == many and len(many.findings) == 3
    assert heard == [(number, len(heard)) for number in range(1, len(heard) + 1)]
    assert ran("store", "check", place, "--jobs", 2).exit_code == 1


def test_what_is_to_be_done_may_stand_before_or_behind(place: Path) -> None:
    assert (
        ran("store", place, "check", "--format", "json").stdout
        == ran("store", "check", place, "--format", "json").stdout
    )
    error = ran("store", "chek", place).exception
    assert isinstance(error, Invalid) and "did you mean check?" in str(error)


def test_state_in_every_format(place: Path, tmp_path: Path) -> None:
    shown = json.loads(ran("state", place, "--task", "count/0", "--table", "counts", "--format", "json").stdout)
    assert (shown["task"], shown["epoch"], shown["table"], shown["total"]) == ("count/0", 5, "counts", 5)
    assert sorted(shown["rows"], key=lambda row: row["word"])[0] == {"word": "w0", "n": 5, "mean": None}
    older = json.loads(
        ran("state", place, "--task", "count/0", "--table", "counts", "--epoch", 3, "--format", "json").stdout
    )
    assert {row["word"] for row in older["rows"]} == {"w0", "w1", "w2"}
    for form, read in (("csv", pyarrow.csv.read_csv), ("parquet", pq.read_table)):
        out = tmp_path / f"counts.{form}"
        arguments = ("state", place, "--task", "count/0", "--table", "counts", "--format", form)
        assert ran(*arguments, "--out", out).exit_code == 0
        assert sorted(read(out)["word"].to_pylist()) == [f"w{i}" for i in range(5)]
    table = ran("state", place, "--task", "count/0", "--table", "counts", "--limit", 2)
    assert "epoch 5: 2 of 5 rows" in table.stdout
    overview = json.loads(ran("state", place, "--format", "json").stdout)
    assert [(row["task"], row["tables"]) for row in overview["tasks"]] == [("count/0", ["counts", "seen"])]


def test_bad_input_is_said_in_one_line(place: Path, tmp_path: Path) -> None:
    for arguments, kind, words in (
        (("state", place, "--task", "count/9"), Invalid, "--task count/9: no such task, there is count/0"),
        (("state", place, "--task", "count"), Invalid, "no such task, there is count/0"),
        (("state", place, "--task", "count/9", "--epoch", 4), Invalid, "no such task, there is count/0"),
        (("state", place, "--task", "count/0"), Invalid, "choose with --table: counts, seen"),
        (("state", place, "--task", "count/0", "--table", "x"), Invalid, "no table 'x', there is counts, seen"),
        (
            ("state", place, "--task", "count/0", "--epoch", "77"),
            Invalid,
            "no checkpoint of that epoch, there is 3, 4, 5",
        ),
        (("state", tmp_path / "nowhere", "--task", "count/0"), Invalid, "no Holdfast store here"),
        (("store", tmp_path / "nowhere"), Invalid, "no Holdfast store here"),
        (("state", place, "--task", "count/0", "--table", "counts", "--out", "x"), Invalid, "--out goes with"),
        (("state", place, "--format", "csv"), Invalid, "--format csv needs a --task"),
    ):
        error = ran(*arguments).exception
        assert isinstance(error, kind), arguments
        assert words in str(error)
        assert "\n" not in str(error)


def test_compact_is_refused_while_a_writer_is_alive(place: Path) -> None:
    with Store(place).writer("running job"):
        result = ran("store", "compact", place)
        assert isinstance(result.exception, Held)
    assert ran("store", "compact", place).exit_code == 0


def test_a_writer_whose_process_is_gone_does_not_hold_the_store(tmp_path: Path) -> None:
    """A job that was killed can be started again at once; no waiting for its lease to end."""
    code = (
        "import os, sys; from holdfast.state import Store; Store(sys.argv[1]).writer('killed', lease=3600); os._exit(9)"
    )
    killed = subprocess.run([sys.executable, "-c", code, str(tmp_path / "run")], check=False, env=dict(os.environ))
    assert killed.returncode == 9
    with Store(tmp_path / "run").writer("next") as writer:
        assert writer.token == 2


def test_at_the_front_door_damage_is_exit_code_1_and_a_typo_is_2(place: Path) -> None:
    holdfast = [sys.executable, "-c", "from holdfast.cli import main; main()"]
    typo = subprocess.run([*holdfast, "store", str(place), "chekc"], capture_output=True, text=True, check=False)
    assert typo.returncode == 2
    assert "Traceback" not in typo.stderr
    for path in (place / "state" / "count-0").iterdir():
        path.write_bytes(b"")
    gone = subprocess.run(
        [*holdfast, "state", str(place), "--task", "count/0"], capture_output=True, text=True, check=False
    )
    assert gone.returncode == 1
    assert gone.stdout == ""
    assert gone.stderr.startswith("holdfast: store") and gone.stderr.count("\n") == 1
    assert "cannot be restored: checkpoint 5: state/count-0/" in gone.stderr
