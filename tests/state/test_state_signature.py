"""The signature of the pipeline that writes into a store: the newest counts, and is missed when it is not whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.state import Damaged, signature
from holdfast.state.entries import numbered_names
from holdfast.state.files import LocalFiles
from holdfast.state.signature import Started

ONE, TWO = Started({"totals": {"parallelism": 1}}), Started({"totals": {"parallelism": 2}}, since=7)


def test_the_newest_signature_counts_and_older_ones_go(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    assert signature.read(files) is None
    signature.write(files, ONE, 1, 1, False)
    assert signature.read(files) == ONE
    signature.write(files, TWO, 2, 1, False)
    assert signature.read(files) == TWO
    assert numbered_names(files, "signature") == ["signature/0000000002-0000000001.json"]


def test_a_writer_that_was_superseded_changes_nothing(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    signature.write(files, TWO, 2, 1, False)
    signature.write(files, ONE, 1, 9, False)
    assert signature.read(files) == TWO


@pytest.mark.parametrize("keep", [0, 40, -9])
def test_a_damaged_signature_is_named_with_what_to_do(tmp_path: Path, keep: int) -> None:
    files = LocalFiles(tmp_path)
    signature.write(files, ONE, 1, 1, False)
    path = tmp_path / "signature/0000000001-0000000001.json"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(Damaged, match=r"signature/0000000001-0000000001.json is torn or was altered; it says which"):
        signature.read(files)
    path.unlink()
    assert signature.read(files) is None


def test_a_signature_under_another_name_is_told(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    signature.write(files, ONE, 1, 1, False)
    (tmp_path / "signature/0000000001-0000000001.json").rename(tmp_path / "signature/0000000003-0000000001.json")
    with pytest.raises(Damaged, match="is of writer 1: files were swapped"):
        signature.read(files)
