"""Nodes killed for real: what had been answered in time is scored, and in the end nothing is missing."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from market_subject import counting, market, small

from holdfast.assessment.campaign import run_campaign
from holdfast.assessment.kills import Kill, Watch, at_epochs, kill_targets
from holdfast.assessment.recording import record
from holdfast.assessment.results import read_assessment
from holdfast.errors import Invalid
from holdfast.state import output
from holdfast.state.files import open_files
from holdfast.topology import Task

SCHEMA = pa.schema({"word": pa.string(), "count": pa.int64()})
SINK = Task("count", 0)


class Written:
    """Outputs as a job publishes them, one after the other."""

    def __init__(self, store: Path) -> None:
        self.files = open_files(str(store))

    def put(self, kind: Any, epoch: int, count: int) -> None:
        rows = pa.table({"word": ["w"], "count": [count]}, SCHEMA)
        staged = output.stage(self.files, f"1-{epoch}", kind, epoch, str(SINK), rows, 0.5, sync=False)
        output.place(self.files, [staged], sync=False)


def watched(store: Path, deadline: int) -> list[int]:
    """Three epochs; the second is answered tentatively, and made good after the third. What counts of each?"""
    watch = Watch(store, counting(), deadline, (), 99)
    written = Written(store)
    written.put("final", 0, 10)
    watch.heard({"kind": "answered", "epoch": 0})
    written.put("tentative", 1, 1)
    watch.heard({"kind": "answered", "epoch": 1})
    written.put("tentative", 2, 2)
    watch.heard({"kind": "answered", "epoch": 2})
    written.put("final", 1, 11)
    watch.heard({"kind": "answered", "epoch": 3})
    written.put("final", 2, 12)
    watch.heard({"kind": "stopped"})
    written.put("final", 3, 13)
    rows, at = watch.in_time(SCHEMA)
    assert at.tolist() == [0.5, 1.5, 2.5]
    return rows["count"].to_pylist()  # type: ignore[no-any-return]


def test_rows_count_as_they_stand_at_their_deadline(tmp_path: Path) -> None:
    assert watched(tmp_path / "at once", 0) == [10, 1, 2]
    assert watched(tmp_path / "next", 1) == [10, 1, 2]
    assert watched(tmp_path / "after next", 2) == [10, 11, 12]


def test_every_operator_on_a_node_is_a_target() -> None:
    made = market()
    living = ["TradeQuote", "TradeFilter", "QuoteFilter", "Aggregator", "VWAP", "BargainIndex"]
    assert list(kill_targets(made, small())) == living
    assert kill_targets(made, small(groups=(("VWAP", "TradeFilter"),))) == {"TradeFilter+VWAP": ("TradeFilter", "VWAP")}
    with pytest.raises(Invalid, match="'Source' cannot be killed; operators that live on nodes: TradeQuote,"):
        kill_targets(made, small(groups=(("Source",),)))


def test_nodes_die_when_an_epoch_begins() -> None:
    recording = record(market(rate=100, epochs=5))
    assert recording.epoch_starts() == [0, 100, 200, 300, 400]
    assert at_epochs(recording, small(offsets=(250.0, 300.0, 299.0, 7.0))).offsets == (200.0, 300.0, 100.0)
    with pytest.raises(Invalid, match="at least 2 epochs with rows are needed, found 1"):
        at_epochs(record(market(rate=100, epochs=1)), small())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"deadline": -1}, "--deadline: a number of epochs, 0 or more"),
        ({"nodes": 1}, "--nodes: at least 2 are needed"),
        ({"budget": -1.0}, "--budget: a number, 0 or more"),
        ({"budget": 1.0, "replicas": ("VWAP/0",)}, "give one of them"),
    ],
)
def test_kills_that_make_no_sense(changes: Any, message: str) -> None:
    with pytest.raises(Invalid, match=message):
        Kill(**changes)


@pytest.mark.spark
@pytest.mark.long
def test_killing_shows_in_first_answers_and_replicas_prevent_it(spark: Any, tmp_path: Path) -> None:
    def make() -> Any:
        return market(rate=2500, epochs=5)

    settings = small(offsets=(5000.0,), repeat=1, sections=20, groups=(("BargainIndex",),))
    bare = run_campaign(make, settings, engine="spark", spark=spark, kill=Kill(deadline=0), out=tmp_path)
    kept = Kill(deadline=0, replicas=("BargainIndex/0",))
    safe = run_campaign(make, settings, engine="spark", spark=spark, kill=kept)
    for found in (bare, safe):
        (each,) = found.operators
        assert each.final_quality == 1.0
        assert not any("differs" in note for note in each.notes)
        assert each.seconds is not None
    assert bare["BargainIndex"].lost == ("BargainIndex/0",)
    assert bare["BargainIndex"].rows_lost[0] > 0
    assert bare["BargainIndex"].impact > 0
    assert safe["BargainIndex"].promoted == ("BargainIndex/0",)
    assert (safe["BargainIndex"].rows_lost, safe["BargainIndex"].impact) == ((0,), 0.0)
    assert read_assessment(tmp_path) == bare
    again = run_campaign(make, settings, engine="spark", spark=spark, kill=Kill(deadline=0), out=tmp_path)
    assert again == bare  # the folder has it already
    with pytest.raises(Invalid, match="this campaign has kill"):
        run_campaign(make, settings, engine="spark", spark=spark, kill=kept, out=tmp_path)
