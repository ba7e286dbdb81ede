"""What a path or URL of a store names, and whether there can be a store on the local disk."""

from __future__ import annotations

import errno
import os
import re
import stat
import tempfile
from pathlib import Path

from holdfast.errors import Invalid

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
_CLOSED = (errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENAMETOOLONG)
_EFFECTIVE = os.access in os.supports_effective_ids


def on_disk(text: str) -> Path | None:
    """The local path that a text names, plainly or as a ``file:`` URL with one slash or three; None for other URLs."""
    if _URL.match(text) is None:
        return Path(text)
    scheme, _, rest = text.partition(":")
    return Path(rest.removeprefix("//")) if scheme in ("file", "local") else None


def check_readable(what: str, folder: Path) -> None:
    """Invalid if no store can be read there: a part of the path is a file, or closed to this user.

    That nothing is there yet is fine.
    """
    for part in (folder, *folder.parents):
        try:
            found = part.stat()
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            if error.errno not in _CLOSED:
                raise
            raise Invalid(f"{what}: cannot be read: {error.strerror}") from None
        if not stat.S_ISDIR(found.st_mode):
            raise Invalid(f"{what}: {'this' if part == folder else part} is a file; a store is a folder")
        if part == folder and not os.access(part, os.R_OK | os.X_OK, effective_ids=_EFFECTIVE):
            raise Invalid(f"{what}: cannot be read: {os.strerror(errno.EACCES)}")
        return


def check_writable(what: str, folder: Path) -> None:
    """Invalid if the folder cannot be written, or made where it is not there. Leaves nothing behind."""
    there = next((part for part in (folder, *folder.parents) if part.exists()), folder)
    try:
        if there == folder:
            with tempfile.TemporaryFile(dir=folder):
                return
        Path(tempfile.mkdtemp(prefix=".holdfast-", dir=there)).rmdir()
    except OSError as error:
        raise Invalid(f"{what}: cannot be written: {error.strerror or error}; name another folder") from None
