"""Files that a command is pointed at: what they may hold, what is told of those that fail, and how they travel."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.errors import Invalid
from holdfast.loading import loaded
from holdfast.runtime.spark.shipping import as_bytes

ROWS = """
from __future__ import annotations
from dataclasses import dataclass

@dataclass
class Row:
    key: str
    n: int = 0

def twice(n: int) -> int:
    return Row("a", n).n * 2

def nested():
    @dataclass
    class Inner:
        n: int
    return lambda n: Inner(twice(n)).n
"""
ELSEWHERE = "import sys; from pyspark import cloudpickle; print(cloudpickle.loads(sys.stdin.buffer.read())(21))"


def test_what_a_file_defines_is_whole_and_travels_to_where_the_file_is_not(tmp_path: Path) -> None:
    from pyspark import cloudpickle

    (tmp_path / "rows.py").write_text(ROWS)
    nested = loaded(f"{tmp_path / 'rows.py'}:nested", "job")
    for function in (loaded(f"{tmp_path / 'rows.py'}:twice", "job"), nested()):
        done = subprocess.run(
            [sys.executable, "-c", ELSEWHERE], input=cloudpickle.dumps(function), capture_output=True, check=True
        )
        assert done.stdout.strip() == b"42"


def test_it_still_travels_after_a_job_was_sent_with_it(tmp_path: Path) -> None:
    from pyspark import cloudpickle

    tool: Any = cloudpickle
    (tmp_path / "sent.py").write_text(ROWS)
    operator = SimpleNamespace(function=loaded(f"{tmp_path / 'sent.py'}:twice", "job"))
    context: Any = SimpleNamespace(pipeline=SimpleNamespace(steps=[SimpleNamespace(operator=operator)]))
    as_bytes(context)
    assert "holdfast_sent" in tool.list_registry_pickle_by_value()


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("broken", "build = 1", "a file of Python is needed, such as broken.py:build, got"),
        ("broken.py", "import sys\nsys.exit()", "fails: SystemExit"),
        ("broken.py", "1 / 0", "fails: ZeroDivisionError"),
    ],
)
def test_files_that_cannot_be_read_are_refused(tmp_path: Path, name: str, text: str, told: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(Invalid, match=told):
        loaded(f"{tmp_path / name}:build", "job")
    assert "holdfast_broken" not in sys.modules
