"""Folders under those for temporary files, which all users of a machine share, that only this user can look into."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from pathlib import Path

from holdfast.errors import Invalid


def make_private(folder: Path) -> Path:
    """Make a folder of mode 0700 if it is not there; Invalid if it is there and not ours alone.

    Others may have put something there under that name: a folder of theirs, or a link to wherever they like.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise Invalid(
            f"{folder}: a folder that belongs to this user alone (mode 700) is needed, found one of user "
            f"{found.st_uid} with mode {stat.filemode(found.st_mode)}; remove it, or set TMPDIR to another place"
        )
    return folder


def private_folder() -> Path:
    """The one folder of this user for what is kept between processes, such as copies of inputs."""
    return make_private(Path(tempfile.gettempdir()) / f"holdfast-{os.getuid()}")
