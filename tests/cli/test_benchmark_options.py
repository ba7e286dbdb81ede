"""Scripts in benchmarks/ refuse what cannot be in one line, before they print or start anything."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from subprocess import CompletedProcess

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("failover.py --matrix --pair 1,1", "--pair 1,1: two different nodes of 0 to 3 are needed, such as 1,2"),
        ("failover.py --matrix --pair 1,4", "--pair 1,4: two different nodes of 0 to 3 are needed, such as 1,2"),
        ("failover.py --matrix --seeds 0", "--seeds must be at least 1, got 0"),
        ("failover.py --matrix --rate 0", "--rate must be at least 1, got 0"),
        ("failover.py --repeat 0", "--repeat must be at least 1, got 0"),
        ("failover.py --epochs 0", "--epochs must be at least 1, got 0"),
        ("failover.py --keys 0", "--keys must be at least 1, got 0"),
        ("failover.py --json nowhere/found", "--json nowhere/found: there is no folder nowhere; make it first"),
        (
            "failover.py --trigger 1,soon",
            "argument --trigger: 'soon': seconds from 0.05 to 60 are needed, or none, such as 1,0.2,none",
        ),
        ("failover.py --matrix --json nowhere/runs", "--json nowhere/runs: there is no folder nowhere; make it first"),
        (
            "failover.py --matrix --json LICENSE",
            "--json LICENSE: a line of it is no run of a matrix; name another file",
        ),
        ("large_state.py --limit -1", "--limit must be at least 1, got -1"),
        ("growth.py --driver --keys", "--driver and --keys are two measurements: give one of them"),
        ("before.py nosuch", "no commit 'nosuch' in "),
        ("hosts.py --repeat 0", "--repeat must be at least 1, got 0"),
        ("hosts.py --answer-within soon", "--answer-within 'soon': a time is needed, such as 500ms, 2s"),
        ("hosts.py --table", "--table: name the file that has the runs with --json"),
        ("store_requests.py --epochs 1", "--epochs must be at least 4, got 1"),
        ("limit.py --repeat 0", "--repeat must be at least 1, got 0"),
        ("limit.py --rows 0", "--rows must be at least 1, got 0"),
        ("limit.py --batches 4", "--skip must be below --batches (4), got 5"),
        ("others.py --batches 5", "--skip must be below --batches (5), got 5"),
        ("parts.py --skip 25", "--skip must be below --batches (25), got 25"),
        ("latency.py --rows 0", "--rows must be at least 1, got 0"),
        ("throughput.py --repeat 0", "--repeat must be at least 1, got 0"),
        ("promises.py --jobs 0", "--jobs must be at least 1, got 0"),
        ("fork_reads.py --touched 0", "--touched and --times must be at least 1, and --keys at least --touched"),
        ("forks.py --age 20", "--age must be 0 to 19, got 20"),
    ],
)
def test_what_cannot_be_is_told_in_one_line(
    words: str, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script, *options = words.split()
    monkeypatch.setattr(sys, "argv", [script, *options])
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(BENCHMARKS / script), run_name="__main__")
    told = capsys.readouterr()
    assert ended.value.code == 2 and told.out == ""
    assert f"{script}: error: {message}" in told.err.splitlines()[-1]


def test_faults_of_several_runs_are_told_by_the_median_and_the_worst(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name, notes = "a host frozen for 15 s", tmp_path / "hosts.jsonl"
    lines: list[dict[str, object]] = []
    for number, seconds in enumerate((2.0, 9.0, 3.0, 1.0)):
        lines.append({"id": number, "fault": name, "next_s": seconds, "gap_s": seconds + 1, "exact_s": None})
        if number < 3:  # the last one was broken off
            left = {"w2": ["tmp/holdfast-nodes-1"]} if number else {}
            lines.append({"id": number, "job": "on S3", "faults": [name], "right": True, "left": left})
    notes.write_text("".join(json.dumps(line) + "\n" for line in lines))
    monkeypatch.setattr(sys, "argv", ["hosts.py", "--table", "--json", str(notes)])
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(BENCHMARKS / "hosts.py"), run_name="__main__")
    assert ended.value.code == 0
    assert capsys.readouterr().out.splitlines()[2:] == [
        f"| s3 | {name} | 3 | 3.0 s, 9.0 s | 4.0 s, 10.0 s | not seen in 3 of 3 | yes | in 2 of 3 |"
    ]


def test_a_commit_is_asked_in_the_words_that_its_own_script_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = runpy.run_path(str(BENCHMARKS / "before.py"))["one"]
    asked: list[list[str]] = []

    def told(command: list[str], **_: object) -> CompletedProcess[str]:
        asked.append(command[3:])
        return CompletedProcess(command, 0, "{}\n", "")

    monkeypatch.setattr("subprocess.run", told)
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "throughput.py").write_text("an earlier one, without that option")
    words = ["holdfast", "keyed-count", "200000", "25", "parquet", "10"]
    for tree in (tmp_path, BENCHMARKS.parent):
        one(tree, "throughput.py", words)
    assert asked == [words, [*words, "5"]]
    assert "sink, every, skip = asked.one" in (BENCHMARKS / "throughput.py").read_text()


def test_parts_of_an_epoch_stand_beside_those_of_an_earlier_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []
    before = ["idle, 100 rows", "a micro-batch                  284.4", "      level 0      24.0"]
    now = ["idle, 100 rows", "a micro-batch                  120.0", "      ingest and all levels     60.0"]

    def told(command: list[str], **_: object) -> CompletedProcess[str]:
        asked.append(command[1])
        return CompletedProcess(command, 0, "\n".join(before if str(tmp_path) in command[1] else now) + "\n", "")

    monkeypatch.setattr("subprocess.run", told)
    runpy.run_path(str(BENCHMARKS / "before.py"))["parts"]((tmp_path, BENCHMARKS.parent), 25, 2)
    lines = [line.split("  ") for line in capsys.readouterr().out.splitlines()[1:]]
    cells = [[cell.strip() for cell in line if cell.strip()] for line in lines]
    assert cells == [["a micro-batch", "284", "120"], ["level 0", "24", "-"], ["ingest and all levels", "-", "60"]]
    assert len(asked) == 4
