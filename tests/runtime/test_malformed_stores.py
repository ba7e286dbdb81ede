"""A few hundred changes to a store, drawn from a seed: refused in words of ours, or the right answer. For a thousand of
each file: make fuzz-stores.
"""

from __future__ import annotations

from random import Random

import pytest
from malformed_stores import Change, drawn, fuzz, laid_out, looked_at, real, restarted

from holdfast.errors import Invalid
from holdfast.runtime.history.history import NAME, History, read_history
from holdfast.state import Damaged, Store
from holdfast.state.entries import FileEntry
from holdfast.state.files import link_between
from holdfast.state.forms import FORMS, misfit
from holdfast.state.names import is_inside

KINDS = ("fence/", "checkpoints/", "shape/", "signature/", "cursor/", "holdfast-store", "journal/commits/", "history")
ARROW = ("journal/0", "state/", "output/final/", "output/tentative/")


def some(beginnings: tuple[str, ...]) -> list[str]:
    """The newest file of each kind."""
    return [max(name for name in real().files if name.startswith(each)) for each in beginnings]


def test_the_store_that_is_changed_is_a_whole_one_of_every_kind() -> None:
    assert restarted(Change("nothing", {})) is None
    with laid_out(real().files) as folder:
        assert looked_at(folder, Change("nothing", {})) is None
    assert {name.partition("/")[0] for name in real().files} >= {
        "checkpoints", "cursor", "fence", "history.jsonl", "holdfast-store.json", "journal", "output", "shape",
        "signature", "state",
    }  # fmt: skip
    newest = max(name for name in real().files if name.startswith("checkpoints/0"))
    assert b'"pages"' in real().files[newest]


@pytest.mark.parametrize("name", [*some(KINDS), *some(ARROW)])
def test_changes_are_refused_or_do_no_harm(name: str) -> None:
    assert fuzz([name], 20, 1, lambda _: None, in_turn=True) == []


def test_the_fuzz_finds_what_is_planted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without checksums and forms, changed stores give wrong answers and errors that are not ours, and it says so."""
    commit = max(name for name in real().files if name.startswith("journal/commits/"))
    monkeypatch.setattr("holdfast.state.entries.misfit", lambda *_: None)
    assert fuzz([commit], 60, 1, lambda _: None, in_turn=True) != []


def test_a_change_is_drawn_from_its_seed_alone() -> None:
    one, two = (drawn("holdfast-store.json", Random(5), real().files) for _ in range(2))
    assert one == two


@pytest.mark.parametrize(
    "name", ["../x", "/x", "a/../b", "a//b", "./a", "a/.", "..", "", "a\\b", "a\x00b", "a/", "a\n"]
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
        assert not Store(folder).checkpoints()[0].extra.keys() - {"signature", "shape", "rows", "measured"}
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
