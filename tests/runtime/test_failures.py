"""Which errors may pass, and how what the user's code raised is shown. Pure: exceptions of Spark are made by hand."""

from __future__ import annotations

import socket
import sqlite3
import traceback
import urllib.error
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.errors import Invalid
from holdfast.runtime.failures import Failures, may_pass
from holdfast.runtime.raised import line_of, own, plain, remote, text_of
from holdfast.state import Unusable

HERE = Path(__file__).name


class ServiceUnavailable(Exception):
    pass


class Derived(ServiceUnavailable):
    pass


class BadRow(Exception):
    pass


class Silent(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class FromSpark(Exception):
    """As PySpark's exceptions are: what the JVM threw is in an attribute."""

    __module__ = "pyspark.errors"

    def __init__(self, *thrown: tuple[str, str, str], by: str = "_origin") -> None:
        super().__init__("a stack of the JVM\n\tat py4j.reflection.MethodInvoker.invoke")
        setattr(self, by, _java(list(thrown)))


def _java(thrown: list[tuple[str, str, str]]) -> Any:
    if not thrown:
        return None
    (name, state, message), *rest = thrown
    made = SimpleNamespace(
        getClass=lambda: SimpleNamespace(getSimpleName=lambda: name),
        getMessage=lambda: message,
        getCause=lambda: _java(rest),
    )
    if state:
        made.getSqlState = lambda: state
    return made


def raising(error: BaseException, cause: BaseException | None = None) -> BaseException:
    """The same with a traceback through here; ``cause``: what it was raised from."""
    try:
        raise error from cause
    except type(error) as raised:
        return raised


def while_handling(first: Exception, then: Exception) -> BaseException:
    try:
        try:
            raise first
        except type(first):
            raise then  # noqa: B904
    except type(then) as raised:
        return raised


PYTHON = """[PYTHON_EXCEPTION] An exception was thrown from the Python worker: Traceback (most recent call last):
  File "/x/site-packages/pyspark/python/lib/pyspark.zip/pyspark/worker.py", line 9, in main
    process()
  File "/home/ann/job.py", line 15, in ratio
    return 1.0 / (n - 8)
           ~~~~^~~~~~~~~
  File "/x/lib/python3.11/statistics.py", line 3, in mean
    raise StatisticsError
{}
 SQLSTATE: 38000"""


def from_python(last: str) -> FromSpark:
    return FromSpark(("PythonException", "38000", PYTHON.format(last)))


@pytest.mark.parametrize(
    "error",
    [
        ConnectionResetError("gone"),
        FileNotFoundError("mount"),
        TimeoutError(),
        socket.gaierror("no such host"),
        urllib.error.URLError("refused"),
        sqlite3.OperationalError("database is locked"),
        EOFError(),
        Unusable("503 Slow Down"),
        Derived("by the name of its base"),
        raising(BadRow("could not be stored"), ConnectionError("gone")),
        while_handling(ConnectionError("gone"), BadRow("could not be stored")),
        FromSpark(("SparkException", "XXKDA", "Job 7 cancelled")),
        FromSpark(("SparkException", "", "Job aborted: ExecutorLostFailure")),
        FromSpark(("SparkException", "39000", "a UDF in Java"), ("ConnectException", "", "refused")),
        FromSpark(("SparkException", "KD001", "a file"), ("IOException", "", "reset"), by="java_exception"),
        from_python("requests.exceptions.ConnectionError: no route"),
        from_python("socket.gaierror: [Errno -2] Name or service not known"),
        from_python("TimeoutError"),
    ],
    ids=repr,
)  # fmt: skip
def test_errors_of_io_may_pass(error: BaseException) -> None:
    assert may_pass(error)


@pytest.mark.parametrize(
    "error",
    [
        ZeroDivisionError("division by zero"),
        KeyError("no such column"),
        BadRow("an eight"),
        Invalid("a number is needed"),
        Silent(),
        raising(BadRow("an eight"), ValueError("eight")),
        while_handling(ValueError("eight"), BadRow("an eight")),
        FromSpark(("SparkArithmeticException", "22012", "[DIVIDE_BY_ZERO] Division by zero.")),
        FromSpark(("AnalysisException", "42703", "[UNRESOLVED_COLUMN] no such column")),
        FromSpark(("SparkException", "KD001", "a file"), ("SparkException", "22023", "a row"), by="java_exception"),
        from_python("ZeroDivisionError: float division by zero"),
        from_python("job.BadRow: an eight"),
    ],
    ids=repr,
)  # fmt: skip
def test_others_do_not(error: BaseException) -> None:
    assert not may_pass(error)


def test_what_does_not_pass_has_one_more_try_and_what_may_has_all() -> None:
    failures = Failures(6)
    assert [failures.over(OSError()) for _ in range(6)] == [False] * 5 + [True]
    failures = Failures(6)
    assert [failures.over(each) for each in (OSError(), KeyError(), OSError(), KeyError())] == [False] * 3 + [True]
    assert Failures(6, 1, 1).over(KeyError()) and not Failures(6).over(KeyError())


def test_a_line_says_what_and_where() -> None:
    assert line_of(raising(BadRow("an eight\n  and more"))).startswith(f"BadRow: an eight and more ({HERE}, line ")
    assert line_of(raising(BadRow("an eight"))).endswith(", in raising)")
    assert line_of(BadRow()) == "BadRow" and line_of(Silent()) == "Silent"
    assert line_of(Invalid("a number is needed")) == "a number is needed"
    assert line_of(from_python("job.BadRow: an eight")) == "BadRow: an eight (job.py, line 15, in ratio)"
    called = '[DIVIDE] By zero. SQLSTATE: 22012\n== DataFrame ==\n"div" was called from\n/home/ann/job.py:7\n'
    told = line_of(FromSpark(("SparkArithmeticException", "22012", called)))
    assert told == "SparkArithmeticException: [DIVIDE] By zero (job.py, line 7)"
    chain = FromSpark(
        ("SparkException", "KD001", "reading f.json.  SQLSTATE: KD001"), ("SparkException", "22023", "[BAD]")
    )
    assert line_of(chain) == "SparkException: reading f.json; [BAD]"


def test_a_remote_exception_has_the_class_the_message_and_the_frames_of_the_user() -> None:
    made = plain(from_python("ZeroDivisionError: float division by zero\nby n"))
    assert isinstance(made, ZeroDivisionError)
    assert "".join(traceback.format_exception(made)).splitlines() == [
        "ZeroDivisionError: float division by zero",
        "by n",
        '  File "/home/ann/job.py", line 15, in ratio',
        "    return 1.0 / (n - 8)",
        "           ~~~~^~~~~~~~~",
        '  File "/x/lib/python3.11/statistics.py", line 3, in mean',
        "    raise StatisticsError",
    ]


@pytest.mark.parametrize(
    ("last", "name", "message"),
    [
        ("KeyError: 'missing'", "KeyError", "'missing'"),
        ("UnicodeDecodeError: 'utf-8' codec can't", "UnicodeDecodeError", "'utf-8' codec can't"),
        ("SyntaxError: invalid syntax", "SyntaxError", "invalid syntax"),
        ("ExceptionGroup: two (2 sub-exceptions)", "ExceptionGroup", "two (2 sub-exceptions)"),
        ("AssertionError", "AssertionError", ""),
        ("KeyboardInterrupt", "KeyboardInterrupt", ""),
        ("job.outer.<locals>.BadRow: eight: 8", "BadRow", "eight: 8"),
    ],
)  # fmt: skip
def test_an_exception_of_any_class_can_be_remote(last: str, name: str, message: str) -> None:
    made = plain(from_python(last))
    assert (type(made).__name__, str(made)) == (name, message) and isinstance(made, Exception)
    assert traceback.format_exception_only(made)[0].startswith(last)


def test_what_is_sent_to_another_process_arrives_with_its_causes() -> None:
    error = raising(BadRow("an eight"), raising(ZeroDivisionError("division by zero")))
    made = remote(text_of(error))
    assert made is not None and isinstance(made.__cause__, ZeroDivisionError)
    assert type(made).__name__ == "BadRow" and line_of(made) == line_of(error)
    assert remote("no traceback at all") is None and remote("") is None
    for long in (BadRow("x" * 50_000), raising(BadRow("eight"), BadRow("y" * 50_000))):
        made = remote(text_of(raising(long)))
        assert made is not None and type(made).__name__ == "BadRow" and str(made)[0] == str(long)[0]


def test_an_exception_of_the_user_s_may_have_attributes_of_any_name() -> None:
    class Described(Exception):
        _desc = "ConnectionError: what it is like"
        java_exception = _origin = "mine"

    assert not may_pass(Described("an eight")) and plain(error := Described("an eight")) is error


def test_own_frames_are_kept_and_what_py4j_made_is_replaced() -> None:
    class FromPy4J(FromSpark):
        __module__ = "py4j.protocol"

    by_py4j = FromPy4J(("SparkException", "22023", "[MALFORMED] row"), by="java_exception")
    shown = own(raising(BadRow("an eight"), raising(by_py4j)))
    text = "".join(traceback.format_exception(shown))
    assert isinstance(shown, BadRow) and "py4j" not in text and "SparkException: [MALFORMED] row" in text
    assert text.count(f'{HERE}", line') == 2
    again = own(shown)
    assert again is shown and "".join(traceback.format_exception(again)) == text


def test_exceptions_that_are_each_other_s_cause_come_to_an_end() -> None:
    one, two = BadRow("one"), BadRow("two")
    one.__cause__, two.__cause__ = two, one
    assert not may_pass(one) and own(one) is one


def test_of_the_end_of_a_query_pyspark_has_the_text_alone() -> None:
    class StreamingQueryException(Exception):
        __module__ = "pyspark.errors"
        _origin = None
        _desc = PYTHON.format("ValueError: the queue is gone") + "\n=== Streaming Query ===\nIdentifier: [id = 1]"

    made = plain(StreamingQueryException())
    assert isinstance(made, ValueError) and line_of(made) == "ValueError: the queue is gone (job.py, line 15, in ratio)"
