"""A few hundred changes to a store, drawn from a seed: refused in words of ours, or the right answer. For a thousand of
each file: make fuzz-stores.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from itertools import count
from pathlib import Path
from random import Random

import pytest
from malformed_changes import Change, drawn, signed
from malformed_readers import End, Hear, another, laid_out, read, real, restarted, said
from malformed_stores import fuzzed, main

from holdfast.errors import Invalid
from holdfast.runtime.history.history import NAME, History, read_history
from holdfast.state import Damaged, Store
from holdfast.state.entries import FileEntry, parse_document, read_document
from holdfast.state.files import link_between
from holdfast.state.forms import FORMS, misfit
from holdfast.state.names import is_inside

KINDS = ("fence/", "checkpoints/", "shape/", "signature/", "cursor/", "holdfast-store", "journal/commits/", "history")
Command = Callable[..., subprocess.CompletedProcess[str]]
ARROW = ("journal/0", "state/", "output/final/", "output/tentative/")


def some(beginnings: tuple[str, ...]) -> list[str]:
    """The newest file of each kind."""
    return [max(name for name in real().files if name.startswith(each)) for each in beginnings]


def test_the_store_that_is_changed_is_a_whole_one_of_every_kind() -> None:
    assert restarted(Change("nothing", {})) == End("right answer")
    with laid_out(real().files) as folder:
        assert said(folder, Change("nothing", {})) == End("harmless")
        assert read(folder) == End("right answer")
    assert {name.partition("/")[0] for name in real().files} >= {
        "checkpoints", "cursor", "fence", "history.jsonl", "holdfast-store.json", "journal", "output", "shape",
        "signature", "state",
    }  # fmt: skip
    newest = max(name for name in real().files if name.startswith("checkpoints/0"))
    assert b'"pages"' in real().files[newest]


@pytest.mark.parametrize("name", [*some(KINDS), *some(ARROW)])
def test_changes_are_refused_or_do_no_harm(name: str) -> None:
    assert fuzzed(name, 20, 1, in_turn=True).found == []


def exchanged(*beginnings: str) -> dict[str, bytes]:
    """The store with these of its files from another store of the same pipeline."""
    own = {name: data for name, data in real().files.items() if not name.startswith(beginnings)}
    return own | {name: data for name, data in another().items() if name.startswith(beginnings)}


EXCHANGED = {
    "journal": ("journal/",),
    "states": ("checkpoints/", "state/"),
    "one epoch": ("journal/commits/000000000009", "journal/000000000009/"),
    "a manifest": ("checkpoints/000000000005-",),
    "index": ("checkpoints/index-",),
    "outputs": ("output/",),
    "checksums of outputs": ("output/sums/final/",),
    "cursor": ("cursor/",),
    "shape": ("shape/",),
    "signature": ("signature/",),
    "claims": ("fence/",),
    "what a writer found": ("fence/0000000001.found.json",),
    "header": ("holdfast-store.json",),
}


@pytest.mark.parametrize("name", EXCHANGED)
def test_files_of_another_store_of_the_same_pipeline_are_refused_by_name(name: str, holdfast: Command) -> None:
    files = exchanged(*EXCHANGED[name])
    assert files != real().files and files.keys() >= {"holdfast-store.json"}
    # An index only helps to miss a manifest, and every writer makes its own: a restart does not go by it.
    assert restarted(Change(name, {}), files=files) == End("right answer" if name == "index" else "refused")
    with laid_out(files) as folder:
        words = checked(holdfast, folder)
    own, other = (json.loads(each["holdfast-store.json"])["id"] for each in (files, real().files))
    told = rf"\S*{EXCHANGED[name][0].rpartition('/')[0]}\S* is of another store \(id \w+\), this one has id {own}"
    assert re.search(told if name != "header" else rf"is of another store \(id {other}\), this one has id {own}", words)


def test_every_document_says_of_which_store_it_is() -> None:
    documents = {name: json.loads(data) for name, data in real().files.items() if name.endswith((".json", ".beat"))}
    header = documents.pop("holdfast-store.json")
    assert {name: body.get("store") for name, body in documents.items()} == dict.fromkeys(documents, header["id"])


def without_ids(files: dict[str, bytes]) -> dict[str, bytes]:
    """A store as it was written before documents said of which store they are."""
    older = {}
    for name, data in files.items():
        if name.endswith((".json", ".beat")):
            body = json.loads(data)
            body.pop("store", None)
            older[name] = signed(body)
        else:
            older[name] = data
    return older


def test_an_older_store_whose_documents_do_not_say_so_is_read(holdfast: Command) -> None:
    files = without_ids(real().files)
    assert restarted(Change("older", {}), files=files) == End("right answer")
    with laid_out(files) as folder:
        assert "0 damaged" in checked(holdfast, folder)


def test_a_store_that_was_copied_as_a_whole_is_the_same_store(tmp_path: Path, holdfast: Command) -> None:
    with laid_out(real().files) as folder:
        shutil.copytree(folder, tmp_path / "copy")
    assert "0 damaged" in checked(holdfast, tmp_path / "copy")
    Store(tmp_path / "copy").writer("job").close()


@pytest.mark.parametrize("how", ["gone", "damaged"])
def test_a_header_that_is_made_anew_has_the_id_that_the_documents_have(how: str, tmp_path: Path) -> None:
    with laid_out(real().files) as folder:
        shutil.copytree(folder, tmp_path / "store")
    header, marker = tmp_path / "store" / "holdfast-store.json", Store(tmp_path / "store").marker()
    if how == "gone":
        header.unlink()
    else:
        header.write_bytes(b"{")
    Store(tmp_path / "store").writer("job").close()
    assert Store(tmp_path / "store").marker() == marker


def checked(holdfast: Command, folder: Path) -> str:
    """What ``holdfast store check`` says of a store."""
    done = holdfast("store", "check", str(folder))
    return " ".join((done.stdout + done.stderr).split())


def test_the_fuzz_finds_what_is_planted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without checksums and forms, changed stores give wrong answers and errors that are not ours, and it says so."""
    commit = max(name for name in real().files if name.startswith("journal/commits/"))
    monkeypatch.setattr("holdfast.state.entries.misfit", lambda *_: None)
    assert fuzzed(commit, 60, 1, in_turn=True).found != []


def test_a_restart_that_answers_otherwise_is_found_unless_it_was_forged() -> None:
    name = max(name for name in real().files if name.startswith("journal/commits/"))
    body = json.loads(real().files[name])
    body["tasks"].popitem()
    body["extra"]["pieces"] -= 1
    files = {name: signed(body)}
    assert "silently wrong" in str(restarted(Change("", files)).told)
    assert restarted(Change("", files, forged=True)) == End("harmless")


@pytest.mark.parametrize("beginning", ["cursor/", "state/leaders-0/", "output/final/", "output/sums/final/"])
def test_ends_that_are_shared_are_those_of_whole_runs(beginning: str) -> None:
    name = max(name for name in real().files if name.startswith(beginning))
    shared, apart = fuzzed(name, 14, 2), fuzzed(name, 14, 2, shares=False)
    assert (shared.ends, shared.found) == (apart.ends, apart.found)
    assert shared.ran.total() < apart.ran.total()


def test_what_is_planted_is_found_in_shared_ends_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checksum that nobody compares: the same is told of every change, whether its reader ran or not."""
    output = max(name for name in real().files if name.startswith("output/final/"))
    monkeypatch.setattr("holdfast.state.output.problem", lambda *_: None)
    shared, apart = fuzzed(output, 12, 1), fuzzed(output, 12, 1, shares=False)
    assert shared.found == apart.found != []


def test_a_reader_that_goes_by_more_than_it_is_told_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ends are only shared by readers that are deterministic: one in so many is run all the same."""
    numbers = count()

    def fickle(_: Path, hear: Hear) -> End:
        with hear(None):
            return End("refused", f"{next(numbers)}")

    monkeypatch.setattr("malformed_stores.CHECKED", 2)
    monkeypatch.setattr("malformed_stores.read", fickle)
    with pytest.raises(AssertionError, match="though others that were told the same"):
        fuzzed(max(name for name in real().files if name.startswith("state/")), 20, 1)


@pytest.mark.parametrize(
    "words", [["--count", "0"], ["--count", "x"], ["--processes", "0"], ["--seed", "-1"], ["--only", "zebra"], ["--x"]]
)
def test_bad_options_are_refused_in_one_line(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_what_came_of_the_changes_is_told_by_kind(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--count", "2", "--only", "shape/", "--processes", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:3] for line in lines[:2]] == [["kind", "files", "changes"], ["shape", "1", "2"]]
    assert lines[-1].startswith("1 files, 2 changes in ") and lines[-1].endswith(": 0 do not hold")


def test_a_change_is_drawn_from_its_seed_alone() -> None:
    one, two = (drawn("holdfast-store.json", Random(5), real().files) for _ in range(2))
    assert one == two


@pytest.mark.parametrize(
    ("beginning", "key", "value"),
    [
        ("checkpoints/index-", "manifests", ["\ud800"]),
        ("output/sums/final/", "kind", "\ud800"),
        ("fence/", "\ud800", 1),
    ],
)
def test_a_document_whose_text_is_no_unicode_is_damaged(beginning: str, key: str, value: object) -> None:
    """No file has such a name, and no screen shows it: commands broke with errors that were not ours."""
    name = max(name for name in real().files if name.startswith(beginning))
    change = Change("", {name: signed({**json.loads(real().files[name]), key: value})}, forged=True)
    with pytest.raises(Damaged, match="is torn or was altered"):
        parse_document("", "any", name, change.files[name])
    with laid_out({**real().files, **change.files}) as folder:
        assert said(folder, change) == End("refused")
    assert restarted(change).told is None


@pytest.mark.parametrize("named", ["a\x00", "../../outside", "/etc/passwd"])
@pytest.mark.parametrize(
    ("beginning", "key"), [("checkpoints/index-", "manifests"), ("fence/0000000001.found", "journal")]
)
def test_a_list_of_files_names_files_of_the_store_alone(beginning: str, key: str, named: str) -> None:
    """What an index names is looked for: outside of the store, or with an error that was not ours."""
    name = max(name for name in real().files if name.startswith(beginning))
    change = Change("", {name: signed({**json.loads(real().files[name]), key: [named]})}, forged=True)
    with laid_out({**real().files, **change.files}) as folder:
        with pytest.raises(Damaged, match=rf"{key}\[0\] must be the name of a file in the store"):
            read_document(Store(folder).files, "index" if key == "manifests" else "found", name)
        assert said(folder, change) == End("refused")


def test_text_of_a_history_that_is_no_unicode_is_shown_as_well_as_can_be() -> None:
    line = json.dumps({"time": 1.0, "kind": "fault", "fault": "kill \ud800"}).encode() + b"\n"
    change = Change("", {NAME: real().files[NAME] + line}, forged=True)
    with laid_out({**real().files, **change.files}) as folder:
        assert list(read_history(folder))[-1]["fault"] == "kill ?"
        assert said(folder, change) == End("harmless")


@pytest.mark.parametrize(
    ("kind", "key", "value"),
    [
        ("nodes lost", "down", None),
        ("published", "epochs", []),
        ("recovery plan", "recover", ".."),
        ("replay", "from_buffers", True),
        ("replay", "tasks", [["counts/0"]]),
        ("run", "seconds", [0.1]),
        ("answered", "time", 10**29),
    ],
)
def test_an_event_that_has_other_than_ours_is_refused(kind: str, key: str, value: object) -> None:
    """Where it is shown, not only where it is understood: pages and stories broke with errors that were not ours."""
    events = [json.loads(line) for line in real().files[NAME].splitlines()]
    alike = [event for event in events if event["kind"] == kind and event.get("of") != "epoch"]  # of runs, replays
    alike[0 if kind == "published" else -1][key] = value
    data = b"".join(json.dumps(event).encode() + b"\n" for event in events)
    change = Change("", {NAME: data}, forged=True)
    with laid_out({**real().files, **change.files}) as folder:
        assert said(folder, change) == End("refused")


def test_a_commit_that_routes_an_operator_which_is_not_there_goes_by_the_others() -> None:
    """Whoever cuts its rows anew asked for the tasks of that operator, and broke with an error that was not ours."""
    name = max(name for name in real().files if name.startswith("journal/commits/"))
    body = json.loads(real().files[name])
    body["extra"]["routings"]["gone"] = body["extra"]["routings"]["counts"]
    assert restarted(Change("", {name: signed(body)}, forged=True)) == End("right answer")


@pytest.mark.parametrize("where", ["output/final", "output/sums/final", "fence"])
def test_a_file_whose_name_is_no_unicode_is_told(where: str) -> None:
    with laid_out(real().files) as folder:
        (folder / where / os.fsdecode(b"\xff.parquet")).write_bytes(b"x")
        assert said(folder, Change("", {})) == End("refused")


@pytest.mark.parametrize(
    "name", ["a\ud800b", "../x", "/x", "a/../b", "a//b", "./a", "a/.", "..", "", "a\\b", "a\x00b", "a/", "a\n"]
)
def test_names_that_lead_elsewhere_are_none(name: str) -> None:
    assert not is_inside(name)
    with pytest.raises(Damaged, match="is no name of a file in a store"):
        FileEntry(name, 1, "", 0)
    entry = {"path": name, "bytes": 1, "checksum": "", "rows": 0, "table": "", "epoch": 0, "since": None}
    body = {"epoch": 1, "token": 1, "tasks": {"S/0": entry}, "extra": {}}
    assert "must be the name of a file in the store" in str(misfit("journal", body))


def test_names_of_ours_are_names() -> None:
    for name in real().files:
        assert is_inside(name)
    assert is_inside("state/a%2Fb-0/x..arrow") and is_inside("...") and is_inside(".tmp-1")


def test_every_document_of_a_real_store_has_its_form() -> None:
    with laid_out(real().files) as folder:
        assert not Store(folder).checkpoints()[0].extra.keys() - {"signature", "shape", "rows", "origin", "measured"}
    assert FORMS.keys() >= {"store", "claim", "found", "beat", "index", "checkpoint", "journal", "cursor", "shape"}


def test_a_link_out_of_the_store_is_not_followed() -> None:
    with laid_out(real().files) as folder:
        outside = folder.parent / "outside"
        outside.mkdir()
        (outside / "precious").write_text("x")
        victim = folder / "journal" / "000000000003"
        for path in victim.iterdir():
            path.unlink()
        victim.rmdir()
        victim.symlink_to(outside)
        files = Store(folder).files
        for touch in (
            lambda: files.read("journal/000000000003/precious"),
            lambda: files.map("journal/000000000003/precious"),
            lambda: files.size("journal/000000000003/precious"),
            lambda: files.put("journal/000000000003/new", b"x", False),
            lambda: files.delete("journal/000000000003/precious"),
            lambda: files.delete_folder("journal/000000000003"),
            lambda: files.delete_tree("journal/000000000003"),
            lambda: files.list("journal/000000000003"),
            lambda: files.tree("journal/000000000003"),
            lambda: files.within("journal/000000000003"),
            lambda: files.move("journal/000000000003/precious", "stolen", True),
            lambda: files.move("fence/0000000001.json", "journal/000000000003/put", True),
            lambda: files.link("journal/000000000003/precious", "stolen"),
            lambda: files.link("fence/0000000001.json", "journal/000000000003/put"),
            lambda: link_between(files, "journal/000000000003/precious", files.within("elsewhere"), "stolen"),
            lambda: link_between(files.within("fence"), "0000000001.json", files, "journal/000000000003/put"),
        ):
            with pytest.raises(Invalid, match="leads out of the store"):
                touch()
        (folder / "shape" / "link.json").symlink_to(outside / "precious")
        for touch in (
            lambda: files.read("shape/link.json"),
            lambda: files.move("shape/link.json", "stolen", True),
            lambda: files.link("shape/link.json", "stolen"),
        ):
            with pytest.raises(Invalid, match="leads out of the store"):
                touch()
        (folder / NAME).unlink(missing_ok=True)
        (folder / NAME).symlink_to(outside / "precious")
        for touch in (lambda: History(folder / NAME), lambda: list(read_history(folder))):
            with pytest.raises(Invalid, match=r"history\.jsonl leads out of the store"):
                touch()
        assert not (folder / "stolen").exists() and (outside / "precious").read_text() == "x"
        assert [path.name for path in outside.iterdir()] == ["precious"]
