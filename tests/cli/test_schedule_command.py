"""``holdfast schedule`` as people and programs call it: one object on stdout, one line on stderr, the exit code."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.cli.app import main
from holdfast.recovery import ALGORITHMS

TOPOLOGY = {
    "operators": [
        {"name": "A", "parallelism": 4, "costs": [2, 1, 1, 2]},
        {"name": "B", "parallelism": 2},
        {"name": "C", "costs": [3]},
    ],
    "streams": [
        {"from": "A", "to": "B", "partitioning": "merge"},
        {"from": "B", "to": "C", "partitioning": "merge"},
    ],
    "queries": [{"sink": "A", "priority": 3}, {"sink": "B", "priority": 2}, {"sink": "C", "priority": 1}],
}


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Run the command on a topology of three queries: exit code, stdout, stderr."""
    file = tmp_path / "three.json"
    file.write_text(json.dumps(TOPOLOGY))

    def run(*options: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["holdfast", "schedule", str(file), *options])
        with pytest.raises(SystemExit) as done:
            main()
        out, err = capsys.readouterr()
        return int(done.value.code or 0), out, err

    return run


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_one_object_holds_the_contract(call, algorithm: str) -> None:
    code, out, err = call("--failed", "all", "--arrivals", "3,3,3,2", "--algorithm", algorithm, "--format", "json")
    answer = json.loads(out)
    assert (code, err) == (0, "")
    assert answer["algorithm"] == algorithm
    assert [set(step) >= {"capacity", "recover", "queries", "fidelity"} for step in answer["steps"]] == [True] * 4
    assert sorted(task for step in answer["steps"] for task in step["recover"]) == [
        "A/0", "A/1", "A/2", "A/3", "B/0", "B/1", "C/0",
    ]  # fmt: skip
    assert answer["priority"] == 4 * 3 + 2 * 2 + 1
    assert answer["average_fidelity"] == pytest.approx(sum(step["fidelity"] for step in answer["steps"]) / 4)


def test_the_table_says_what_is_recovered_and_what_that_completes(call) -> None:
    code, out, _ = call("--failed", "all", "--arrivals", "3,3", "--algorithm", "exact")
    assert code == 0
    assert "A/1 A/2" in out
    assert "3 + 1" in out
    assert "recovered priority" in out
    assert "optimal at each step" in out
    assert "average fidelity" in out
    assert "still failed" in out


def test_obvious_answers(call) -> None:
    assert "nothing failed" in call("--failed", "", "--capacity", "5")[1]
    assert "recovered priority 0" in call("--failed", "all", "--capacity", "0")[1]
    assert "still failed" not in call("--failed", "all", "--capacity", "11")[1]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--failed", "all"], "either --capacity 5 or --arrivals 2,2,2 is needed, got neither"),
        (["--failed", "all", "--capacity", "1", "--arrivals", "1"], "got both"),
        (["--failed", "all", "--capacity", "-1"], "--capacity must be a finite number, 0 or more, got -1.0"),
        (["--failed", "all", "--capacity", "nan"], "--capacity must be a finite number"),
        (["--failed", "all", "--capacity", "many"], "--capacity"),
        (["--failed", "all", "--arrivals", "2,two"], "--arrivals: 'two' is not a number; write 2,2,2"),
        (
            ["--failed", "all", "--arrivals", "2,-2"],
            "--arrivals: arrival 2 must be a finite number, 0 or more, got -2.0",
        ),
        (["--failed", "all", "--arrivals", ""], "--arrivals: '' is not a number"),
        (["--failed", "Z/0", "--capacity", "1"], "--failed: unknown task Z/0; operators: A, B, C"),
        (["--failed", "A/0,A/0", "--capacity", "1"], "--failed: task A/0: named twice"),
        (["--failed", "A", "--capacity", "1"], "--failed: task 'A': write OPERATOR/NUMBER, such as A/0"),
        (["--capacity", "1"], "--failed"),
        (["--failed", "all", "--capacity", "1", "--algorithm", "luck"], "--algorithm 'luck': there are: best-density"),
        (["--failed", "all", "--capacity", "1", "--plot", "x.pdf"], "--plot x.pdf: must end in .html, .png, .svg"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(call, options: list[str], said: str) -> None:
    code, out, err = call(*options)
    assert (code, out) == (2, "")
    assert said in err
    assert len(err.splitlines()) == 1


def test_a_refusal_of_the_solver_is_exit_1(tmp_path: Path, monkeypatch, capsys) -> None:
    file = tmp_path / "wide.json"
    file.write_text(json.dumps({"operators": [{"name": "Q", "parallelism": 25}]}))
    arguments = ["holdfast", "schedule", str(file), "--failed", "all", "--capacity", "3", "--algorithm", "dynamic"]
    monkeypatch.setattr(sys, "argv", arguments)
    with pytest.raises(SystemExit) as done:
        main()
    assert done.value.code == 1
    assert "dynamic: 25 failed query partitions" in capsys.readouterr().err


@pytest.mark.parametrize("suffix", [".html", ".svg"])
def test_the_plot_has_a_line_for_every_algorithm(call, tmp_path: Path, suffix: str) -> None:
    target = tmp_path / f"plot{suffix}"
    code, out, _ = call("--failed", "all", "--capacity", "5", "--plot", str(target), "--format", "json")
    assert code == 0
    json.loads(out)
    drawn = target.read_text()
    for algorithm in ALGORITHMS:
        assert algorithm in drawn


def test_what_native_code_prints_stays_out_of_the_answer() -> None:
    """HiGHS prints to file descriptor 1 now and then; a caller parses stdout."""
    script = (
        "import os, sys\n"
        "from holdfast.cli import app\n"
        "app.app = lambda **_: (os.write(1, b'noise\\n'), print('answer'))[1]\n"
        "app.main()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("answer\n", "noise\n")
