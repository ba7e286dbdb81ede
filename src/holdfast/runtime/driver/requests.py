"""Requests to a running job, through its store: another process asks, the job picks it up, its history answers.

A request is one small JSON file, put in place whole. The job takes it away when it has read it; what became of it is
told in the history, under the request's name.
"""

from __future__ import annotations

import json
import stat
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from holdfast.runtime.history.history import NAME, read_history
from holdfast.state import Fenced, Unusable
from holdfast.state.files import Files, LocalFiles, exists
from holdfast.state.places import on_disk

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


def ask(files: Files, operator: str, to: int) -> Request:
    """Leave a request in the store of a job."""
    request = Request(uuid.uuid4().hex[:12], operator, to)
    files.put(_name(request), json.dumps({"scale": operator, "to": to}).encode(), False)
    return request


def withdraw(files: Files, request: Request) -> bool:
    """Take a request back; False if the job has it already."""
    if not exists(files, _name(request)):
        return False
    files.delete(_name(request))
    return True


def asked(files: Files, check: Callable[[], None] = lambda: None) -> Iterator[Request | str]:
    """The requests that wait, each taken away as it is read; a line that says what is wrong in place of a bad one.

    ``check``: Fenced if the store is another writer's by now, and so are the requests.
    """
    waiting = [name for name in files.list(FOLDER) if name.endswith(".json")]
    try:
        if waiting:
            check()
    except Fenced:
        return
    for name in waiting:
        path = f"{FOLDER}/{name}"
        try:
            if isinstance(files, LocalFiles) and not stat.S_ISREG((files.root / path).lstat().st_mode):
                continue  # nothing that a request is: a pipe would never end, a link may lead anywhere
            data = files.read(path).to_pybytes() if files.size(path) <= LARGEST else b""
            files.delete(path)
            body = json.loads(data)
            operator, to = body["scale"], body["to"]
            if not isinstance(operator, str) or not isinstance(to, int) or isinstance(to, bool) or not to <= MOST:
                raise ValueError
        except (Unusable, FileNotFoundError) as error:
            yield f"request {name} cannot be read: {error}"
        except (ValueError, KeyError, TypeError, RecursionError):
            yield f"request {name}: {{'scale': OPERATOR, 'to': NUMBER}} was expected, NUMBER up to {MOST}"
        else:
            yield Request(name.removesuffix(".json"), operator, to)


def _name(request: Request) -> str:
    return f"{FOLDER}/{request.name}.json"


def answers(directory: str, request: str, skip: int = 0) -> Iterator[dict[str, Any]]:
    """What the history says of a request, from byte ``skip`` on where it is one file."""
    if (folder := on_disk(directory)) is None:
        yield from (event for event in read_history(directory) if event.get("request") == request)
        return
    with (folder / NAME).open("rb") as lines:
        lines.seek(skip)
        for line in lines:
            try:
                event = json.loads(line)
            except ValueError:
                continue
            if isinstance(event, dict) and event.get("request") == request:
                yield event
