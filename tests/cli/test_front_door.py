"""The front door: commands found and started without the rooms they do not need, and mistakes told in one line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from holdfast.cli import doctor
from holdfast.cli.app import COMMANDS, app, loaded, main
from holdfast.cli.demo import same_rows
from holdfast.cli.starting import spark_interval
from waiting import DEADLINE

ROOT = Path(__file__).parents[2]
TOPOLOGY = str(ROOT / "examples" / "topologies" / "incidents.json")


def said(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command in this process."""
    monkeypatch.setattr(sys, "argv", ["holdfast", *words])
    with pytest.raises(SystemExit) as end:
        main()
    out, err = capsys.readouterr()
    return int(end.value.code or 0), out, err


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_of_commands_says_what_their_help_says(name: str) -> None:
    command = loaded(name)
    assert command.help.splitlines()[0] == COMMANDS[name]
    lines = command.help.splitlines()
    assert any(line.startswith(f"  holdfast {name}") for line in lines), "help teaches by examples, one a line"
    assert not any("; holdfast" in line for line in lines)


@pytest.mark.parametrize(
    ("words", "strangers"),
    [
        (["--help"], {"polars", "pyspark", "scipy", "pyarrow", "numpy", "plotly", "pydantic"}),
        (["fidelity", TOPOLOGY, "--failed", "jam/1"], {"polars", "pyspark", "pyarrow", "plotly", "scipy"}),
        (["plan", TOPOLOGY, "--budget", "3"], {"polars", "pyspark", "pyarrow", "plotly", "matplotlib"}),
        (["history", "--help"], {"polars", "pyspark", "scipy", "plotly"}),
        (["doctor", "--help"], {"polars", "pyspark", "scipy", "numpy"}),
    ],
)
def test_a_small_command_leaves_large_packages_alone(words: list[str], strangers: set[str]) -> None:
    code = (
        "import sys\nfrom holdfast.cli.app import main\ntry:\n    main()\n"
        f"finally:\n    print(sorted({strangers!r} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, timeout=DEADLINE, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1] == "[]"


MISTAKES = [
    (["fidelty"], "no such command 'fidelty'; did you mean fidelity?"),
    (["help"], "no such command 'help'; commands: demo, run, supervise, report"),
    (["fidelity"], "see holdfast fidelity --help"),
    (["run", "word-count", "--trigger", "often"], "--trigger 'often': a time is needed, such as 500ms"),
    (
        ["run", "word-count", "--metrics", "0", "--metrics-host", "0.0.0.0"],
        "others reach that address; give --token",
    ),
    (["run", "word-count", "--ui", "--ui-host", "10.0.0.1"], "--ui-host 10.0.0.1: others reach that address"),
    (["run", "word-count", "--ui", "--token", "short"], "--token: at least 16 letters and digits are needed"),
    (["run", "word-count", "--memory", "lots"], "--memory lots: a size for the JVM is needed"),
    (["run", "word-count", "--out", "/proc/x"], "--out /proc/x: cannot be written"),
    (["run", "word-count", "--nodes", "2", "--fault", "kill node-9 at epoch 3"], "no node 'node-9'"),
    (["run", "word-count", "--nodes", "2", "--fault", "kill node-1 at epoch 30"], "epoch 30 never comes"),
    (["run", "word-count", "--max-nodes", "2", "--pool", "3"], "--max-nodes 2: --nodes and --pool alone are 4 or more"),
    (["run", "word-count", "--nodes", "2", "--max-nodes", "1"], "--max-nodes 1: --nodes and --pool alone are 2"),
    (
        ["run", "word-count", "--budget", "2", "--nodes", "2", "--survive", "5"],
        "--survive 5: must be less than the number of nodes, 2; say how many with --nodes",
    ),
    (["run", "word-count", "--budget", "2", "--survive", "1"], "--survive 1: must be less than the number of nodes, 1"),
    (
        ["run", "word-count", "--budget", "2", "--survive", "4", "--master", "local-cluster[4,1,900]"],
        "--survive 4: must be less than the number of nodes, 4",
    ),
    (["run", "word-count", "--domains", "nowhere.json"], "--domains 'nowhere.json': no such file; give host"),
    (["run", "word-count", "--domains", TOPOLOGY], f"--domains {TOPOLOGY}: a mapping of nodes or hosts to the names"),
    (["run", "word-count", "--domains", str(ROOT / "README.md")], "README.md': neither .json or .yaml nor a program"),
    (["demo", "--kill", "kill node-7 at epoch 3"], "no node 'node-7'"),
    (["demo", "--out", str(ROOT / "README.md")], "cannot be written"),
    (["plan", TOPOLOGY, "--bugdet", "3"], "--bugdet"),
    (["plan", TOPOLOGY], "--budget"),
    (["plan", "nowhere.json", "--budget", "3"], "nowhere.json"),
    (["fidelity", TOPOLOGY, "--failed", "jam/9"], "--failed"),
    (["schedule", TOPOLOGY, "--failed", "all"], "capacity"),
    (["run", "word-cuont"], "unknown workload 'word-cuont'; did you mean word-count? known: word-count, hashtags"),
    (["assess", "word-cuont"], "FILE.py:pipeline; did you mean word-count?"),
    (
        ["run", "word-count", "--scheduler", "topologcal"],
        "--scheduler 'topologcal': did you mean topological? there are",
    ),
    (["run", "word-count", "--recovery", "foo"], "--recovery 'foo': there are: incremental, blocking"),
    (["run", "word-count", "--fault", "kil node-1 at epoch 3"], "unknown fault 'kil'; did you mean kill? known: kill"),
    (["run", "word-count", "--fault", " "], "--fault '': a fault is needed, such as"),
    (["run", "word-count", "--out", str(ROOT / "README.md")], "this is a file, or lies in one; name a folder"),
    (["run", "word-count", "--ui", "--ui-port", "99999"], "--ui-port 99999: a port is from 0"),
    (["run", "word-count", "--log", "xml"], "'xml' is not one of 'display', 'json'; see holdfast run --help"),
    (["fidelity", TOPOLOGY, "--failed", "jma/0"], "unknown task jma/0; did you mean jam/0? operators: locations"),
    (["fidelity", str(ROOT), "--failed", "jam/0"], "this is a folder; a topology file in JSON or YAML is needed"),
    (["plan", TOPOLOGY, "--budget", "3", "--algorithm", "greedyy"], "'greedyy': did you mean greedy? there are"),
    (["emulate", "--strategy", "periodc"], "no strategy 'periodc'; did you mean periodic?"),
    (["run", "word-count", "--epochs", "0"], "'--epochs': Input should be greater than or equal to 1, got 0"),
    (["run", "word-count", "--shed-above", "0"], "--shed-above 0: seconds that an epoch may take are needed"),
    (["store", str(ROOT / "README.md")], "this is a file; a store is a folder"),
    (["run", "word-count", "--replicas", "count/9"], "--replicas"),
    (["run", "word-count", "--replicas", "count/0", "--budget", "2"], "--replicas and --budget"),
    (["run", "word-count", "--fault", "kill everything"], "kill everything"),
    (["run", "word-count", "--scheduler", "best"], "--scheduler 'best': there are: best-density"),
    (["run", "word-count", "--ui-port", "8080"], "--ui-port 8080: it is the port of --ui"),
    (["run", "word-count", "--log", "xml"], "--log"),
    (["run", "word-count", "--input", "nowhere.parquet"], "nowhere.parquet"),
    (["report", "nowhere"], "nowhere: no history.jsonl here; give the folder of a run (its --out)"),
    (["history", "nowhere"], "nowhere: no history.jsonl here"),
    (["demo", "--epochs", "3"], "--epochs"),
    (["demo", "--kill", "burn node-1"], "burn node-1"),
]


@pytest.mark.parametrize(
    ("words", "told"), MISTAKES, ids=lambda value: " ".join(value)[-40:] if isinstance(value, list) else ""
)
def test_a_mistake_is_told_in_one_line(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    code, out, err = said(capsys, monkeypatch, *words)
    assert not list(tmp_path.iterdir()), "what was typed wrong leaves no folder behind"
    assert code == 2 and out == ""
    assert err.startswith("holdfast: ") and len(err.strip().splitlines()) == 1, err
    assert told in err


@pytest.mark.parametrize(
    ("written", "milliseconds"),
    [("500ms", 500), ("2s", 2000), ("1 second", 1000), ("1.5 seconds", 1500), ("1m", 60_000), ("2 minutes", 120_000),
     ("10 milliseconds", 10), ("1 hour", 3_600_000)],
)  # fmt: skip
def test_times_between_epochs(written: str, milliseconds: int) -> None:
    assert spark_interval(written) == f"{milliseconds} milliseconds"


def test_version(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    code, out, _ = said(capsys, monkeypatch, "--version")
    assert code == 0 and out.startswith("holdfast 0.")


def test_completion_knows_commands_and_their_options() -> None:
    def completed(words: str, place: int) -> list[str]:
        import os

        setting = {"_HOLDFAST_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(place)}
        code = "from holdfast.cli import main; main()"
        done = subprocess.run(
            [sys.executable, "-c", f"import sys; sys.argv[0] = 'holdfast'; {code}"],
            capture_output=True, text=True, timeout=DEADLINE, check=False, env={**os.environ, **setting},
        )  # fmt: skip
        return (done.stdout + done.stderr).split()

    assert completed("holdfast re", 1) == ["report"]
    assert "--failed" in completed("holdfast fidelity --", 2)


def test_report_writes_a_page_and_says_where(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "history.jsonl").write_text('{"time": 1.0, "kind": "started", "nodes": 2}\n', encoding="utf-8")
    code, out, _ = said(capsys, monkeypatch, "report", str(tmp_path), "--format", "json")
    told = json.loads(out)
    assert code == 0 and told["page"] == str(tmp_path / "report.html") and told["failures"] == 0
    assert (tmp_path / "report.html").stat().st_size == told["bytes"]
    code, _, err = said(capsys, monkeypatch, "report", str(tmp_path), "--out", str(tmp_path / "no" / "page.html"))
    assert code == 2 and "no such folder" in err


@pytest.mark.parametrize(
    ("output", "status"),
    [
        ('openjdk version "17.0.9" 2023-10-17', "ok"),
        ('openjdk version "21" 2023-09-19', "ok"),
        ('java version "1.8.0_392"', "missing"),
        ('openjdk version "11.0.21" 2023-10-17', "missing"),
        ("something else", "warning"),
        (None, "missing"),
    ],
)
def test_doctor_reads_the_version_of_java(output: str | None, status: str) -> None:
    found = doctor.java(output)
    assert found.status == status and bool(found.advice) == (status != "ok")


def test_doctor_says_what_to_do(tmp_path: Path) -> None:
    assert doctor.python_version((3, 10, 2)).status == "missing"
    assert doctor.memory(2.0).status == doctor.memory(5.0).status == doctor.memory(None).status == "warning"
    assert doctor.memory(16.0).status == "ok"
    assert doctor.package("no_such_package").status == "missing"
    assert doctor.writable(tmp_path / "new" / "folder").status == "ok" and not (tmp_path / "new").exists()
    assert doctor.writable(Path("/proc/nowhere")).status == "missing"


def test_doctor_as_json(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    code, out, _ = said(capsys, monkeypatch, "doctor", "--format", "json")
    told = json.loads(out)
    assert {"Java", "pyspark", "memory", "loopback", "unix sockets", "store"} <= {
        each["check"] for each in told["checks"]
    }
    assert code == (0 if told["ready"] else 1)


def test_doctor_without_java(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    code, out, _ = said(capsys, monkeypatch, "doctor")
    assert code == 1 and "missing Java" in out.replace("  ", " ") and "openjdk-17-jre-headless" in out


def test_the_verdict_of_the_demo_sees_any_difference() -> None:
    rows = pa.table({"epoch": [0, 1], "page": ["a", "b"], "visits": [1, 2]})
    assert same_rows(rows, pa.concat_tables([rows.slice(0, 1), rows.slice(1)]))
    assert not same_rows(rows, rows.slice(0, 1))
    assert not same_rows(rows, rows.set_column(2, "visits", pa.array([1, 3])))
    assert not same_rows(rows.slice(0, 0), rows.slice(0, 0)), "two runs without output say nothing"


def test_the_app_has_every_command_file() -> None:
    files = {path.stem.replace("_", "-") for path in (ROOT / "src" / "holdfast" / "cli").glob("*.py")}
    assert set(COMMANDS) <= files and app.info.name == "holdfast"


def test_the_package_is_a_command_too() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", "--version"], capture_output=True, text=True, timeout=DEADLINE, check=True
    )
    assert done.stdout.startswith("holdfast ")


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("holdfast fi", {"fidelity"}),
        ("holdfast run --ep", {"--epochs"}),
        ("holdfast run word", {"word-count", "word-frequency"}),
        ("holdfast schedule T.json --algorithm in", {"incremental"}),
    ],
)
def test_a_shell_completes_commands_options_and_names(typed: str, offered: set[str]) -> None:
    told = {
        "_HOLDFAST_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(len(typed.split()) - 1),
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "holdfast"], capture_output=True, text=True, timeout=DEADLINE, check=False,
        env={**os.environ, **told},
    )  # fmt: skip
    assert set(done.stdout.split()) == offered, done.stderr


def test_an_action_alone_is_asked_for_its_store(
    holdfast: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = holdfast("store", "check")
    assert done.returncode == 2 and "store check: which store? such as: holdfast store check DIR" in done.stderr
