"""How tasks and tables are written in file names: ``O3/0`` is ``O3-0``, anything unusual percent-encoded.

And what a name of a file in a store may be: whatever a document says becomes a path only if it is one.
"""

from __future__ import annotations

import re
from functools import lru_cache
from urllib.parse import quote, unquote

from holdfast.errors import Invalid

_LONGEST = 150
_PART = r"(?!\.{1,2}(?:/|$))[^/\\\x00-\x1f\ud800-\udfff]+"
_INSIDE = re.compile(rf"{_PART}(?:/{_PART})*")


def is_inside(name: str) -> bool:
    """Whether this names a file below the folder it is looked up in: relative, without ``..``, ``.`` or oddities."""
    return _INSIDE.fullmatch(name) is not None


@lru_cache(maxsize=1 << 14)
def task_folder(task: str) -> str:
    """The folder name of a task written ``O3/0``."""
    operator, slash, number = str(task).rpartition("/")
    if not slash or not operator or not number.isdecimal():
        raise Invalid(f"task {str(task)!r}: expected operator/number, such as O3/0")
    return f"{table_label(operator)}-{int(number)}"


@lru_cache(maxsize=1 << 14)
def folder_task(folder: str) -> str:
    """The inverse of ``task_folder``."""
    operator, _, number = folder.rpartition("-")
    return f"{unquote(operator)}/{number}"


def table_label(name: str) -> str:
    """A name as part of a file name."""
    label = quote(name, safe="").replace(".", "%2E")
    if len(label) > _LONGEST:
        raise Invalid(f"name {name[:40]!r}...: takes {len(label)} bytes in a file name, {_LONGEST} is the most")
    return label
