"""Every example runs, and says what it should; those with Structured Streaming and with Holdfast agree."""

from __future__ import annotations

import json
import runpy
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
PLANS = """without match/0 and match/1: fidelity 0.500
budget 4: fidelity 0.125, replicas orders/3 payments/1 match/3 fraud/0
budget 6: fidelity 0.250, replicas orders/0 payments/0 payments/1 match/0 fraud/0
budget 8: fidelity 0.500, replicas orders/0 orders/1 payments/0 payments/1 match/0 match/1 fraud/0
arrival 1: recover orders/0 payments/0 payments/1 match/0 fraud/0, fidelity 0.250
arrival 2: recover orders/3 match/3, fidelity 0.500
arrival 3: recover orders/1 orders/2 match/1 match/2, fidelity 1.000
"""


@pytest.fixture
def example(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run an example with these words behind its name; what it printed."""

    def run(name: str, *words: str) -> str:
        monkeypatch.setattr(sys, "argv", [name, *words])
        capsys.readouterr()
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out

    return run


def test_plan_replicas(example: Any) -> None:
    assert example("plan_replicas.py") == PLANS


def test_try_a_pipeline(example: Any) -> None:
    assert example("try_a_pipeline.py") == "epoch 0: tea 4, coffee 2\nepoch 1: cocoa 5, tea 4\n"


@pytest.mark.spark
def test_word_count(example: Any, spark: Any) -> None:
    counts: dict[str, int] = {}
    for line in example("word_count.py").splitlines():
        counts |= {row["word"]: row["count"] for row in eval(line)}  # a list of rows, as Python prints it
    # 3 epochs of 1000 lines: "to be or not to be" and a digit.
    expected = {"to": 6000, "be": 6000, "or": 3000, "not": 3000, **{str(digit): 300 for digit in range(10)}}
    assert counts == expected


@pytest.mark.long
@pytest.mark.spark
def test_the_job_of_the_tutorial_says_the_same_before_and_after(example: Any, spark: Any, tmp_path: Path) -> None:
    folder = tmp_path / "clicks"
    folder.mkdir()
    expected: dict[str, list[float]] = defaultdict(lambda: [0, 0.0])
    for file in range(5):
        rows = [
            {"page": f"/{(file + row) % 3}", "country": "test" if row % 5 == 4 else "fi", "amount": row / 4}
            for row in range(20)
        ]
        (folder / f"{file}.json").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
        for row in rows:
            if row["country"] != "test":
                count, amount = expected[str(row["page"])]
                expected[str(row["page"])] = [count + 1, amount + float(row["amount"])]  # type: ignore[arg-type]
    lines = "".join(f"{page} {count} {round(amount, 2)}\n" for page, (count, amount) in sorted(expected.items()))
    assert example("clicks_structured_streaming.py", str(folder)) == lines
    for name in ("clicks_holdfast.py", "clicks_pipeline.py"):
        assert example(name, str(folder), str(tmp_path / f"{name}-calm")) == lines
        broken = example(name, str(folder), str(tmp_path / f"{name}-broken"), "kill node-0,node-1 at epoch 2")
        assert broken == lines, name
