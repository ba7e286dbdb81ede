"""Advice for a running query: from its progress alone, in every form that Spark hands it out."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import holdfast
from holdfast.errors import Invalid
from holdfast.resilience import Scenario, advise_scenario
from holdfast.resilience.progress import observe, read_progress


def entry(batch: int, rows: int = 60_000, **changes: Any) -> dict[str, Any]:
    """Progress as Spark prints it: 60,000 rows a minute, 40 MB of state in two operators."""
    return {
        "id": "c3f6c1a5-1111-4222-8333-944445555666",
        "runId": "0d5a3d2e-1111-4222-8333-944445555666",
        "name": "counts",
        "timestamp": f"2026-11-15T10:{batch:02d}:00.000Z",
        "batchId": batch,
        "batchDuration": 8000,
        "numInputRows": rows,
        "inputRowsPerSecond": rows / 60,
        "processedRowsPerSecond": rows / 8,
        "durationMs": {"addBatch": 7000, "triggerExecution": 8000},
        "stateOperators": [
            {
                "operatorName": "stateStoreSave",
                "numRowsTotal": 1000,
                "memoryUsedBytes": 30_000_000,
                "commitTimeMs": 200,
            },
            {
                "operatorName": "symmetricHashJoin",
                "numRowsTotal": 500,
                "memoryUsedBytes": 10_000_000,
                "commitTimeMs": 50,
            },
        ],
        **changes,
    }


ENTRIES = [entry(batch) for batch in range(5)]


class TestObserve:
    def test_rate_state_and_checkpoint_time(self) -> None:
        seen = observe(ENTRIES, row_bytes=200.0)
        assert seen.rows_per_s == 1000.0 and seen.bytes_per_s == 200_000.0
        assert seen.state_bytes == 40_000_000
        assert seen.checkpoint_s == 200.0
        assert set(seen.derived) == {"rate", "state", "checkpoint", "commit", "headroom"} and not seen.assumed
        assert "7.5 times" in seen.derived["headroom"] and "250ms" in seen.derived["commit"]

    def test_the_length_of_a_row_is_assumed_unless_given(self) -> None:
        seen = observe(ENTRIES)
        assert seen.checkpoint_s == 400.0 and "100 bytes" in seen.assumed["row size"]

    def test_idle_batches_count_as_time(self) -> None:
        idle = [*ENTRIES, *(entry(batch, rows=0) for batch in range(5, 9))]
        assert observe(idle).rows_per_s == 500.0

    def test_a_single_entry_says_its_rate(self) -> None:
        assert observe(ENTRIES[:1]).rows_per_s == 1000.0
        bare = entry(0, inputRowsPerSecond=float("nan"))
        assert observe([bare]).rows_per_s == 60_000 / 8

    def test_the_current_version_counts_where_the_provider_tells(self) -> None:
        store = {"memoryUsedBytes": 9_000_000, "customMetrics": {"stateOnCurrentVersionSizeBytes": 3_000_000}}
        rocks = {"memoryUsedBytes": 9_000_000, "customMetrics": {"rocksdbSstFileSize": 2_000_000}}
        seen = observe([entry(0, stateOperators=[store, rocks])])
        assert seen.state_bytes == 5_000_000
        assert "stateOnCurrentVersionSizeBytes and rocksdbSstFileSize" in seen.derived["state"]

    def test_what_cannot_be_advised(self) -> None:
        with pytest.raises(Invalid, match="progress shows no input"):
            observe([entry(0, rows=0), entry(1, rows=0)])
        with pytest.raises(Invalid, match=r"progress of 2 queries \(counts, other\)"):
            observe([entry(0), entry(1, id="x", name="other")])
        with pytest.raises(Invalid, match="progress gives no rate"):
            observe([{"numInputRows": 5}])


class TestFiles:
    @pytest.mark.parametrize(
        "text",
        [
            json.dumps(ENTRIES),
            "\n".join(map(json.dumps, ENTRIES)),
            "\n".join(json.dumps({"event": "progress", "progress": one}) for one in ENTRIES),
            "\n".join(
                f"26/11/15 10:00:00 INFO MicroBatchExecution: Query made progress: {json.dumps(one, indent=2)}"
                for one in ENTRIES
            ),
        ],
        ids=["list", "lines", "listener", "log"],
    )
    def test_forms(self, tmp_path: Path, text: str) -> None:
        (tmp_path / "progress").write_text(text)
        assert read_progress(tmp_path / "progress") == ENTRIES

    def test_one_object(self, tmp_path: Path) -> None:
        (tmp_path / "progress.json").write_text(json.dumps(ENTRIES[0], indent=2))
        assert read_progress(tmp_path / "progress.json") == ENTRIES[:1]

    def test_other_files(self, tmp_path: Path) -> None:
        (tmp_path / "other.json").write_text('{"a": {"b": 1}} {broken')
        with pytest.raises(Invalid, match="found none"):
            read_progress(tmp_path / "other.json")
        with pytest.raises(Invalid, match="No such file"):
            read_progress(tmp_path / "missing.json")


class TestLiveQuery:
    EXPECTED = advise_scenario(Scenario(0.9999, 30 * 86400.0, 3600.0, 400.0))

    def options(self, query: Any) -> Any:
        return holdfast.advise(query, sla=0.9999, mtbf="30d", window="1h").options

    def test_dictionaries(self) -> None:
        assert self.options(SimpleNamespace(recentProgress=ENTRIES, lastProgress=ENTRIES[-1])) == self.EXPECTED.options

    def test_progress_objects(self) -> None:
        recent = [SimpleNamespace(json=json.dumps(one)) for one in ENTRIES]
        assert self.options(SimpleNamespace(recentProgress=recent)) == self.EXPECTED.options

    def test_the_last_one_only(self) -> None:
        assert self.options(SimpleNamespace(recentProgress=[], lastProgress=ENTRIES[-1])) == self.EXPECTED.options

    def test_progress_itself(self) -> None:
        assert self.options(ENTRIES) == self.EXPECTED.options
        assert self.options(ENTRIES[0]) == self.EXPECTED.options
        assert self.options(json.dumps(ENTRIES[0])) == self.EXPECTED.options

    def test_without_any_letters(self) -> None:
        advice = holdfast.advise(SimpleNamespace(recentProgress=ENTRIES))
        assert advice.best == "active-periodic" and set(advice.assumed) == {"row size", "sla", "mtbf"}
        assert "derived  rate: 1000 rows/s" in str(advice)
        assert not advice["replay"].feasible

    def test_a_scenario(self) -> None:
        assert holdfast.advise(Scenario(0.9999, 30 * 86400.0, 3600.0, 400.0)) == self.EXPECTED

    def test_what_is_no_query(self) -> None:
        with pytest.raises(Invalid, match="expected a StreamingQuery, its progress or a Scenario, got int"):
            holdfast.advise(7)
        with pytest.raises(Invalid, match="no progress yet"):
            holdfast.advise(SimpleNamespace(recentProgress=[], lastProgress=None))
        with pytest.raises(Invalid, match="expected progress as a mapping or JSON text, got str"):
            holdfast.advise("not json")
        with pytest.raises(Invalid, match="window: expected a duration"):
            holdfast.advise(ENTRIES, window="an hour")
        for name in ("window", "mtbf", "row_bytes"):
            with pytest.raises(Invalid, match=f"{name} must be more than 0.*got 0"):
                holdfast.advise(ENTRIES, **{name: 0.0})
        with pytest.raises(Invalid, match="sla must be between 0 and 1"):
            holdfast.advise(ENTRIES, sla=99.9)
