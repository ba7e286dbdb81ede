"""The same answers to the same questions lead to the same end: what a reader does with a changed store is found out
once for all changes that it cannot tell apart.

A reader of a store is deterministic. What it learns of a changed file it learns through few functions of the product,
the questions below: each says what a document says, or that a file is damaged, and in which words. So a run is noted as
the questions that met changed bytes, in their order, with their answers. For the next change of the same file the
product's own functions are asked the noted questions again, with the bytes of that change, in the state in which the
run had asked them. If every answer is one that was heard before, so is the end; with the first new answer the reader
runs as a whole. What meets changed bytes outside of a question is a question itself, whose answer is those bytes.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
from malformed_changes import Files

from holdfast.runtime.simulation.disk import Disk, DiskFiles
from holdfast.state import checkpoint, entries, files, output, pages, sums, verify

QUESTIONS: tuple[Callable[..., Any], ...] = (
    entries.read_document, entries.read_checked, checkpoint.read_manifest, sums._read, output.read, output._there,
    output._wrong_with, verify._output_problem, files.exists,
)  # fmt: skip
METHODS = ((pages.PagedFile, "_directory"), (pages.PagedFile, "_read"))
RAW = (
    *((DiskFiles, each) for each in ("read", "map", "read_parts", "size", "create", "move", "link")),
    *((files.LocalFiles, each) for each in ("read", "map", "read_parts", "size")),
)
"""Where bytes come from."""
Answer = tuple[Any, ...]
Touches = Callable[[Any, str], bool]
"""Whether this file, of these files, is a changed one."""


@dataclass(frozen=True)
class Ear:
    """What a reader is told. ``same``: parts of an error's words that make no difference to it."""

    touches: Touches
    same: re.Pattern[str]

    def answer(self, value: Any, error: BaseException | None, seen: list[Answer]) -> Answer:
        """What tells an answer from others: the error in its words, the value if it is plain, or the bytes it is of."""
        if error is not None:
            return "raised", type(error), self.same.sub("", str(error))
        if value is None or isinstance(value, str | int):
            return "gave", value
        if isinstance(value, pa.Buffer):
            return "bytes", hashlib.sha256(value).digest()
        if isinstance(value, list):
            return "parts", tuple(hashlib.sha256(each).digest() for each in value)
        return "saw", tuple(seen)


class Changed(bytes):
    """The bytes of a changed file on a simulated disk, wherever they are linked or moved to."""

    name: str

    @classmethod
    def of(cls, name: str, data: bytes) -> Changed:
        made = cls(data)
        made.name = name
        return made


def on_disk(where: DiskFiles, name: str) -> bool:
    held = where.disk.get(where._path(name))
    return held is not None and isinstance(held.data, Changed)


@dataclass(frozen=True)
class Question:
    """A function of the product and what it was given. ``disk``: as it was then, if it is a simulated one."""

    function: Callable[..., Any]
    given: tuple[Any, ...]
    named: Mapping[str, Any]
    raw: bool
    disk: Disk | None

    def answered(self, changed: Files, ear: Ear) -> Answer:
        """What the product says to it under another change."""
        memo: dict[int, Any] = {}
        if self.disk is not None:
            disk = Disk(self.disk.now)
            disk.put_back(_with(self.disk, changed))
            memo[id(self.disk)] = disk
        given, named = copy.deepcopy((self.given, self.named), memo)
        watch = Watch(ear, None, keeps=False)
        with watch.installed():
            return watch.ask(self.function, given, named, self.raw)[0]


def _with(disk: Disk, changed: Files) -> dict[str, Any]:
    """What is on a disk, with other bytes where changed ones are."""
    return {
        folder: {
            name: replace(held, data=Changed.of(held.data.name, changed[held.data.name]))
            if isinstance(held.data, Changed)
            else held
            for name, held in there.items()
        }
        for folder, there in disk.folders.items()
    }


@dataclass
class _UnderWay:
    """A question that is being answered. ``kept``: it, once it has met changed bytes, which are ``seen``."""

    function: Callable[..., Any]
    given: tuple[Any, ...]
    named: Mapping[str, Any]
    raw: bool
    met: bool = False
    kept: Question | None = None
    seen: list[Answer] = field(default_factory=list)


class Watch:
    """Notes what a run asks of changed files. ``disk``: the simulated one, if it reads one."""

    def __init__(self, ear: Ear, disk: Disk | None, keeps: bool = True) -> None:
        self.steps: list[tuple[Question, Answer]] = []
        self._ear = ear
        self._disk = disk
        self._keeps = keeps
        self._under_way: list[_UnderWay] = []

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Whoever calls these functions within is heard."""
        for place, name, function, raw in _places():
            setattr(place, name, self._heard(function, raw))
        try:
            yield
        finally:
            for place, name, function, _ in _places():
                setattr(place, name, function)

    def ask(
        self, function: Callable[..., Any], given: tuple[Any, ...], named: Mapping[str, Any], raw: bool
    ) -> tuple[Answer, Any, BaseException | None]:
        """Call it; what its answer is known by, and what it gave or raised."""
        mine = _UnderWay(function, given, named, raw)
        self._under_way.append(mine)
        if raw:
            self._meet(mine)
        value, error = _called(function, given, named)
        self._under_way.remove(mine)
        answer = self._ear.answer(value, error, mine.seen)
        if mine.kept is not None:
            self.steps.append((mine.kept, answer))
        return answer, value, error

    def _heard(self, function: Callable[..., Any], raw: bool) -> Callable[..., Any]:
        @functools.wraps(function)
        def heard(*given: Any, **named: Any) -> Any:
            if raw and not self._ear.touches(given[0], given[1]):
                return function(*given, **named)
            if raw and self._under_way:
                # Of a question that has met changed bytes, all that it asks further is a part.
                asking = next((each for each in self._under_way if each.met), self._under_way[-1])
                self._meet(asking)
                value, error = _called(function, given, named)
                asking.seen.append(self._ear.answer(value, error, []))
            else:
                _, value, error = self.ask(function, given, named, raw)
            if error is not None:
                raise error
            return value

        return heard

    def _meet(self, asking: _UnderWay) -> None:
        if asking.met:
            return
        asking.met = True
        if not self._keeps:
            return
        disk, memo = None, dict[int, Any]()
        if self._disk is not None:
            now = self._disk.now()
            disk = memo[id(self._disk)] = Disk(lambda: now)
            disk.put_back(self._disk.folders)
        given, named = copy.deepcopy((asking.given, asking.named), memo)
        asking.kept = Question(asking.function, given, named, asking.raw, disk)


def _called(
    function: Callable[..., Any], given: tuple[Any, ...], named: Mapping[str, Any]
) -> tuple[Any, BaseException | None]:
    try:
        return function(*given, **named), None
    except BaseException as error:
        return None, error


@functools.cache
def _places() -> tuple[tuple[Any, str, Callable[..., Any], bool], ...]:
    """Every name in the product under which a question is called."""
    modules = [module for name, module in sorted(sys.modules.items()) if name.partition(".")[0] == "holdfast"]
    found: list[tuple[Any, str, Callable[..., Any], bool]] = [
        (module, name, value, False)
        for module in modules
        for name, value in sorted(vars(module).items())
        if any(value is each for each in QUESTIONS)
    ]
    found += [(owner, name, vars(owner)[name], False) for owner, name in METHODS]
    return (*found, *((owner, name, vars(owner)[name], True) for owner, name in RAW))


@dataclass
class _Node:
    """What is asked next, and where each answer leads; or the end."""

    end: Any = None
    question: Question | None = None
    answers: dict[Answer, _Node] = field(default_factory=dict)


class Ends:
    """The ends that changes of the same files have come to, by what the reader was told on the way.

    ``sort``: what else an end depends on; whether forged documents may lead to another answer, say.
    """

    def __init__(self) -> None:
        self._roots: dict[tuple[Any, ...], _Node] = {}
        self._same: dict[tuple[Any, ...], Any] = {}

    def known(self, changed: Files, sort: Any, ear: Ear) -> Any:
        """The end of a change, if all that the reader would hear has been heard before; else None."""
        if (end := self._same.get((sort, _print(changed)))) is not None:
            return end
        node = self._roots.get((sort, *sorted(changed)))
        while node is not None and node.question is not None:
            node = node.answers.get(node.question.answered(changed, ear))
        return None if node is None else node.end

    def learn(self, changed: Files, sort: Any, steps: list[tuple[Question, Answer]], end: Any) -> None:
        """How a run under this change went."""
        self._same[sort, _print(changed)] = end
        node = self._roots.setdefault((sort, *sorted(changed)), _Node())
        for question, answer in steps:
            if node.question is None:
                node.question = question
            node = node.answers.setdefault(answer, _Node())
        node.end = end


def _print(changed: Files) -> bytes:
    whole = hashlib.sha256()
    for name, data in sorted(changed.items()):
        whole.update(f"{name} {len(data)} ".encode())
        whole.update(data)
    return whole.digest()
