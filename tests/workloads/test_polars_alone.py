"""The limit that benchmarks/limit.py measures against does the whole work: its answers are those of a plain loop."""

from __future__ import annotations

import importlib
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from holdfast.workloads import Options, workload

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("polars_alone")


@pytest.mark.parametrize("stride", [None, 7])
def test_totals_are_those_of_a_loop(alone: Any, stride: int | None) -> None:
    query, right = alone.KeyedCount(), Counter[int]()
    for batch in range(3):
        rows = alone.keys_of(500, batch, 40, stride)
        right.update(rows["key"].to_list())
        changed = query.take(rows)
    assert dict(changed.rows()) == right
    assert stride is None or right == Counter(value * stride % 40 for value in range(1500))


def test_a_window_leaves_when_it_is_over_with_every_word_of_thirty_seconds(alone: Any) -> None:
    query, rate = alone.WordFrequency(), 3
    closed = {batch: query.take(alone.texts_of(rate, batch)) for batch in range(42)}
    texts = workload("word-frequency").rows(np.arange(42 * rate), Options(rate=rate, seed=1))["text"].to_pylist()
    for batch, found in closed.items():
        # Rows of a second are a batch: the window that ends with this second's first row is over.
        past = texts[max(0, batch - 30) * rate : batch * rate] if batch % 5 == 0 else []
        assert dict(found.select("word", "count").rows()) == Counter(word for text in past for word in text.split())


def test_the_first_thirty_batches_are_told_beside_those_that_are_counted(alone: Any) -> None:
    assert alone.young_speed([50.0, *[1.0] * 29, *[0.5] * 30], 10) == 10, "the very first starts processes"
    assert alone.young_speed([2.0, 1.0], 10) == 10 and alone.young_speed([2.0], 10) == 5
    found = alone.measure("keyed-count", 100, 40, 35, 20, 7)
    assert found["young_rows_per_second"] > 0 and found["rows_per_second"] > 0
