"""``holdfast scale`` where there is nothing to scale, and requests as they lie in a job's folder."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from holdfast.cli.app import main
from holdfast.runtime.driver.requests import answers, ask, asked, withdraw
from holdfast.runtime.history.history import History
from holdfast.state import Store
from holdfast.state.files import LocalFiles


def said(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: str) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["holdfast", *words])
    with pytest.raises(SystemExit) as end:
        main()
    out, err = capsys.readouterr()
    return int(end.value.code or 0), out, err


STARTED = {"topology": {}, "scalable": {"counts": None, "all": "operator all: it cannot"}}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["nobody", "--to", "2"], "no operator 'nobody' in this job; operators: counts, all"),
        (["all", "--to", "2"], "operator all: it cannot"),
        (["counts", "--to", "0"], "--to: an operator needs 1 to 10000 tasks, got 0"),
        (["counts"], "Missing option '--to'"),
    ],
)
def test_what_was_typed_wrong_is_told_in_one_line(
    words: list[str],
    told: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    history = History(tmp_path / "history.jsonl")
    history.add({"time": 1.0, "kind": "started", **STARTED})
    with Store(tmp_path).writer("a job"):
        code, out, err = said(capsys, monkeypatch, "scale", str(tmp_path), *words)
    assert code == 2 and out == "" and told in err and len(err.strip().splitlines()) == 1
    assert not list(asked(LocalFiles(tmp_path)))


def test_without_a_running_job_nothing_is_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, _, err = said(capsys, monkeypatch, "scale", str(tmp_path), "counts", "--to", "2")
    assert code == 2 and "no history.jsonl here" in err
    history = History(tmp_path / "history.jsonl")
    history.add({"time": 1.0, "kind": "started", **STARTED})
    Store(tmp_path).writer("a job that has ended").close()
    code, _, err = said(capsys, monkeypatch, "scale", str(tmp_path), "counts", "--to", "2")
    assert code == 2 and "no job is running here" in err


def test_a_request_that_nobody_takes_up_is_withdrawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    History(tmp_path / "history.jsonl").add({"time": 1.0, "kind": "started", **STARTED})
    with Store(tmp_path).writer("a job"):
        code, out, err = said(capsys, monkeypatch, "scale", str(tmp_path), "counts", "--to", "2", "--timeout", "0")
    assert code == 1 and out == "" and "it is withdrawn" in err and not list(asked(LocalFiles(tmp_path)))


def test_requests_are_taken_once_and_bad_ones_are_named(tmp_path: Path) -> None:
    request = ask(LocalFiles(tmp_path), "counts", 3)
    (tmp_path / "requests" / "zzz.json").write_text('{"scale": 4}')
    found = list(asked(LocalFiles(tmp_path)))
    assert found[0] == request or found[1] == request
    assert "request zzz.json: {'scale': OPERATOR, 'to': NUMBER} was expected, NUMBER up to 10000" in found
    assert not list(asked(LocalFiles(tmp_path))) and not withdraw(LocalFiles(tmp_path), request)


def test_what_is_no_request_is_not_opened_and_none_runs_anything(tmp_path: Path) -> None:
    folder = tmp_path / "requests"
    folder.mkdir()
    os.mkfifo(folder / "pipe.json")
    (folder / "folder.json").mkdir()
    (tmp_path / "elsewhere.json").write_text('{"scale": "counts", "to": 2}')
    (folder / "link.json").symlink_to(tmp_path / "elsewhere.json")
    assert list(asked(LocalFiles(tmp_path))) == []
    for text in (
        '{"scale": "counts", "to": 100000000}',
        '{"scale": "__import__(\'os\').abort()", "to": "2"}',
        '{"scale": ["counts"], "to": 2}',
        "[" * 4000,
        "import os",
    ):
        (folder / "bad.json").write_text(text)
        (told,) = asked(LocalFiles(tmp_path))
        assert isinstance(told, str) and told.startswith("request bad.json: ")
    assert (tmp_path / "elsewhere.json").exists()


def test_only_what_the_history_says_of_a_request_is_its_answer(tmp_path: Path) -> None:
    history = History(tmp_path / "history.jsonl")
    history.add({"time": 1.0, "kind": "scaled", "request": "other"})
    history.add({"time": 2.0, "kind": "scaling aborted", "request": "mine", "again": True, "reason": "node-1 was lost"})
    history.add({"time": 3.0, "kind": "scaled", "request": "mine", "tasks": 3})
    assert [event["kind"] for event in answers(str(tmp_path), "mine")] == ["scaling aborted", "scaled"]
