"""Requests to a running job, through its folder: another process asks, the job picks it up, its history answers.

A request is one small JSON file, put in place whole. The job takes it away when it has read it; what became of it is
told in the history, under the request's name.
"""

from __future__ import annotations

import json
import stat
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.runtime.history.history import NAME

FOLDER = "requests"
LARGEST = 4096
"""Bytes; whatever is larger is not a request."""
MOST = 10_000
"""Tasks that an operator may be asked to have."""
OUTCOMES = ("scaled", "scaling refused", "scaling aborted")


@dataclass(frozen=True, slots=True)
class Request:
    """An operator shall have so many tasks."""

    name: str
    operator: str
    to: int


def ask(directory: Path, operator: str, to: int) -> Request:
    """Leave a request in the folder of a job."""
    request = Request(uuid.uuid4().hex[:12], operator, to)
    folder = directory / FOLDER
    folder.mkdir(exist_ok=True)
    temporary = folder / f".{request.name}.part"
    temporary.write_text(json.dumps({"scale": operator, "to": to}), encoding="utf-8")
    temporary.replace(folder / f"{request.name}.json")
    return request


def withdraw(directory: Path, request: Request) -> bool:
    """Take a request back; False if the job has it already."""
    try:
        (directory / FOLDER / f"{request.name}.json").unlink()
    except FileNotFoundError:
        return False
    return True


def asked(directory: Path) -> Iterator[Request | str]:
    """The requests that wait, each taken away as it is read; a line that says what is wrong in place of a bad one."""
    for path in sorted((directory / FOLDER).glob("*.json")):
        try:
            if not stat.S_ISREG(path.lstat().st_mode):
                continue  # nothing that a request is: a pipe would never end, a link may lead anywhere
            text = path.read_text(encoding="utf-8") if path.stat().st_size <= LARGEST else ""
            path.unlink(missing_ok=True)
            body = json.loads(text)
            operator, to = body["scale"], body["to"]
            if not isinstance(operator, str) or not isinstance(to, int) or isinstance(to, bool) or not to <= MOST:
                raise ValueError
        except OSError as error:
            yield f"request {path.name} cannot be read: {error.strerror}"
        except (ValueError, KeyError, TypeError, RecursionError):
            yield f"request {path.name}: {{'scale': OPERATOR, 'to': NUMBER}} was expected, NUMBER up to {MOST}"
        else:
            yield Request(path.stem, operator, to)


def answers(directory: Path, request: str, skip: int = 0) -> Iterator[dict[str, Any]]:
    """What the history says of a request, from byte ``skip`` on."""
    with (directory / NAME).open("rb") as lines:
        lines.seek(skip)
        for line in lines:
            try:
                event = json.loads(line)
            except ValueError:
                continue
            if isinstance(event, dict) and event.get("request") == request:
                yield event
