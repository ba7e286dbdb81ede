"""Folders among everybody's temporary ones: ours alone, or refused."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from holdfast.errors import Invalid
from holdfast.private import make_private


def test_a_folder_is_made_for_this_user_alone_and_found_again(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        made = make_private(tmp_path / "a" / "ours")
    finally:
        os.umask(before)
    assert stat.S_IMODE(made.stat().st_mode) == 0o700
    assert make_private(made) == made


def test_what_others_can_see_or_lead_elsewhere_is_refused(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir(mode=0o755)
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "file").touch()
    for name in ("open", "link", "file"):
        with pytest.raises(Invalid, match="a folder that belongs to this user alone"):
            make_private(tmp_path / name)
