"""What the user's code raised, as the user is shown it: their exception, their frames, one line that says where.

Exceptions of Spark are known by the attributes that PySpark gives them, so that no room below Spark imports it.
"""

from __future__ import annotations

import builtins
import re
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from holdfast.errors import HoldfastError

LONGEST = 400
"""Characters of a message in one line."""
DEEPEST = 10
"""Causes of an exception of the JVM that are looked at."""
SENT, FRAMES = 8_000, 20
"""Characters of a traceback that a worker sends to the driver, and frames of each exception in it."""
HEADER = "Traceback (most recent call last):\n"
FRAME = re.compile(r'  File "(.+)", line (\d+), in (.+)')
SPARK = re.compile(
    r"[/\\](?:site-packages|dist-packages|python)[/\\](?:pyspark|py4j)[/\\]|pyspark\.zip|py4j-[\d.]+-src"
)
LIBRARY = re.compile(r"[/\\](?:site|dist)-packages[/\\]|[/\\]lib[/\\]python\d|^<frozen ")
OURS = str(Path(__file__).parents[1])
UNLIKE = (BaseExceptionGroup, SyntaxError, UnicodeError)
"""Built-in exceptions that cannot be made from a message alone."""


class Remote(Exception):
    """An exception of another process, made from what that process said of it.

    Each has a class of its own with the name that it had there. One that is built into Python is of that class too.
    """

    def __init__(self, message: str, where: str = "") -> None:
        self.message = message
        self.where = where

    def __str__(self) -> str:
        return self.message


@dataclass(frozen=True, slots=True)
class Thrown:
    """An exception of the JVM: its class without the package, its SQLSTATE if it has one, and its message."""

    name: str
    state: str
    message: str


@dataclass(frozen=True, slots=True)
class Parsed:
    """One exception in the text of a Python traceback. ``frames``: those of the user and of libraries."""

    module: str
    name: str
    message: str
    frames: tuple[str, ...]
    where: str


def line_of(error: BaseException) -> str:
    """Class, message and place in the user's code, in one line."""
    error = plain(error)
    try:
        words = " ".join(str(error).split())[:LONGEST]
    except Exception:  # it may be the user's, or one of Spark's after Spark has ended
        words = ""
    if isinstance(error, HoldfastError):
        return words
    name = type(error).__name__
    return f"{name}: {words}{where_of(error)}" if words else f"{name}{where_of(error)}"


def where_of(error: BaseException) -> str:
    """The last line of the user's that an exception came through; nothing if it came through none."""
    if isinstance(error, Remote):
        return error.where
    found = [
        _where(at.filename, at.lineno or 0, at.name)
        for at in traceback.extract_tb(error.__traceback__)
        if _of_the_user(at.filename)
    ]
    return found[-1] if found else ""


def own(error: BaseException) -> BaseException:
    """The same exception without frames of Spark, py4j and Holdfast, and so those that it came of.

    One that py4j made, whose text is a stack of the JVM, is replaced by one with the message alone.
    """
    seen: set[int] = set()

    def stripped(each: BaseException | None) -> BaseException | None:
        if each is None or id(each) in seen:
            return each
        seen.add(id(each))
        made = plain(each) if _of(each, "py4j") else each
        hidden = each.__suppress_context__
        made.__traceback__ = _kept(each.__traceback__)
        made.__cause__ = stripped(each.__cause__)
        made.__context__ = None if hidden else stripped(each.__context__)
        made.__suppress_context__ = hidden
        return made

    made = stripped(error)
    assert made is not None
    return made


def plain(error: BaseException) -> BaseException:
    """An exception of Spark as what was raised in Python, or thrown by the JVM, underneath; others as they are."""
    chain = thrown(error)
    if not chain:
        return error
    for each in chain:
        if (raised := remote(each.message)) is not None:
            return raised
    messages = list(dict.fromkeys(_message(each) for each in chain))
    places = [found for each in chain for found in re.findall(r"was called from\n(.+):(\d+)", each.message)]
    if not places:
        return _made("", chain[0].name, "; ".join(messages), "")
    file, line = places[0]
    made = _made("", chain[0].name, "; ".join(messages), f" ({Path(file).name}, line {line})")
    made.add_note(f'  File "{file}", line {line}')
    return made


def text_of(error: BaseException) -> str:
    """The traceback of the user's exception, to be sent to another process."""
    text = "".join(traceback.format_exception(own(error), limit=-FRAMES))
    return text if len(text) <= SENT else text[max(0, text.rfind(HEADER)) :][:SENT]


def remote(text: str) -> Remote | None:
    """The exception whose traceback this text has, with those that it came of; None if it has none."""
    made: Remote | None = None
    for each in parsed(text):
        error = _made(each.module, each.name, each.message, each.where)
        for frame in each.frames:
            error.add_note(frame)
        error.__cause__ = made
        made = error
    return made


def parsed(text: str) -> Iterator[Parsed]:
    """Every exception in the text of a traceback, the one that came first before those that came of it."""
    for part in text.split(HEADER)[1:]:
        lines = part.splitlines()
        frames: list[list[str]] = []
        while lines and lines[0].startswith("  "):
            line = lines.pop(0)
            if FRAME.match(line) or not frames:
                frames.append([])
            frames[-1].append(line)
        message = "\n".join(_until_the_end(lines)).rstrip()
        found = re.match(r"(?:([\w.<>]+)\.)?(\w+)(?:: |$)", message, re.MULTILINE)
        if found is None:
            continue
        known = [(FRAME.match(frame[0]), frame) for frame in frames]
        places = [(at[1], int(at[2]), at[3]) for at, _ in known if at is not None and _of_the_user(at[1])]
        shown = tuple("\n".join(frame) for at, frame in known if at is not None and not _passing_on(at[1]))
        where = _where(*places[-1]) if places else ""
        yield Parsed(found[1] or "builtins", found[2], message[found.end() :], shown, where)


def thrown(error: BaseException) -> list[Thrown]:
    """An exception of Spark and its causes as the JVM has them; empty for any other exception.

    PySpark keeps what the JVM threw as ``_origin``, or its text alone as ``_desc``; py4j as ``java_exception``.
    """
    found: list[Thrown] = []
    if not _of(error, "py4j", "pyspark"):
        return found
    each: Any = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    if each is None and isinstance(text := getattr(error, "_desc", None), str):
        return [Thrown(type(error).__name__, "", text)]
    try:
        while each is not None and len(found) < DEEPEST:
            name = str(each.getClass().getSimpleName())
            found.append(Thrown(name, _state(each), str(each.getMessage() or "")))
            each = each.getCause()
    except Exception:  # the JVM is gone, or never was there
        return found
    return found


def _of(error: BaseException, *packages: str) -> bool:
    """Whether the class of an exception, or a base of it, comes from one of these packages."""
    return any(kind.__module__.partition(".")[0] in packages for kind in type(error).__mro__)


def _state(each: Any) -> str:
    try:
        return str(each.getSqlState() or "")
    except Exception:  # most of what a JVM throws has none
        return ""


def _made(module: str, name: str, message: str, where: str) -> Remote:
    known = vars(builtins).get(name) if module == "builtins" else None
    bases: tuple[type, ...] = (Remote,)
    if isinstance(known, type) and issubclass(known, Exception) and not issubclass(known, UNLIKE):
        bases = (Remote, known)
    made: Remote = type(name, bases, {"__module__": module or "builtins"})(message, where)
    return made


def _message(each: Thrown) -> str:
    """Its first line, without what Spark adds to every message."""
    first = next(iter(each.message.splitlines()), each.name)
    return re.sub(r"\s*SQLSTATE: \w+$", "", first).strip().removesuffix(".")


def _until_the_end(lines: list[str]) -> Iterator[str]:
    """The lines of a message: what follows belongs to another exception, or to the JVM."""
    for line in lines:
        if re.match(r"\s+SQLSTATE: |\tat |(During handling of|The above exception was) ", line):
            return
        yield line


def _kept(trace: TracebackType | None) -> TracebackType | None:
    frames = []
    while trace is not None:
        package = str(trace.tb_frame.f_globals.get("__name__", "")).partition(".")[0]
        if package not in ("py4j", "pyspark", "holdfast") and not _passing_on(trace.tb_frame.f_code.co_filename):
            frames.append(trace)
        trace = trace.tb_next
    made: TracebackType | None = None
    for each in reversed(frames):
        made = TracebackType(made, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return made


def _where(file: str, line: int, function: str) -> str:
    return f" ({Path(file).name}, line {line}, in {function})"


def _passing_on(file: str) -> bool:
    """Whether a file only passes calls on: it is Spark's, py4j's or ours."""
    return SPARK.search(file) is not None or file.startswith(OURS)


def _of_the_user(file: str) -> bool:
    return not _passing_on(file) and LIBRARY.search(file) is None
