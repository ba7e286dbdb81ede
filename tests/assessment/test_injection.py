"""Faults on rows, injectors in pipelines, and faulty runs that branch off a golden one against runs from the start."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast import operators as op
from holdfast.assessment.faults import KINDS, Burst, FaultModel, parse_fault, positions, struck
from holdfast.assessment.injection import EXPERIMENT, GOLDEN, injected, raw_name, side_by_side
from holdfast.assessment.recording import Recording, Subject, branch, record
from holdfast.errors import Invalid
from holdfast.workloads import Options, workload

MARKET = workload("bargain-discovery")
OPTIONS = Options(rate=400, epochs=6, seed=2)
TARGETS = ("Source", "TradeFilter", "QuoteFilter", "VWAP", "BargainIndex")


def market(parallelism: int = 1) -> Subject:
    pipeline = MARKET.pipeline(parallelism=parallelism)
    return Subject("market", pipeline, OPTIONS.epochs, lambda epoch: MARKET.batch(OPTIONS, epoch), "key")


def from_the_start(subject: Subject, burst: Burst) -> list[pa.Table]:
    """The plain way: the pipeline with its injector, run from the first epoch to the last."""
    trial = op.Trial(injected(subject.pipeline, burst, subject.key))
    source = raw_name(subject.pipeline.sources[0].name)
    epochs = ({source: subject.batch(epoch)} for epoch in range(subject.epochs))
    return [each.outputs[subject.query] for each in trial.run(epochs, ends=subject.bounded)]


@pytest.fixture(scope="module")
def recordings() -> Mapping[int, Recording]:
    return {parallelism: record(market(parallelism)) for parallelism in (1, 3)}


@given(
    st.sampled_from([1, 3]),
    st.sets(st.sampled_from(TARGETS), min_size=1, max_size=2),
    st.sampled_from(KINDS),
    st.integers(0, 2400),
    st.integers(0, 900),
)
@settings(deadline=None, derandomize=True, max_examples=10)
def test_a_branch_is_the_run_from_the_start(
    recordings: Mapping[int, Recording], parallelism: int, targets: set[str], kind: str, start: int, length: int
) -> None:
    model = FaultModel(kind, column="price" if kind == "corruption" else None, factor=1.5)  # type: ignore[arg-type]
    burst = Burst(tuple(name for name in TARGETS if name in targets), float(start), float(start + length), model)
    recording = recordings[parallelism]
    got, expected = branch(recording, burst), from_the_start(recording.subject, burst)
    assert [table.to_pylist() for table in got] == [table.to_pylist() for table in expected]


def test_a_loss_changes_the_answer_and_an_empty_one_does_not(recordings: Mapping[int, Recording]) -> None:
    recording = recordings[1]
    golden = [recording.output(epoch).to_pylist() for epoch in range(OPTIONS.epochs)]
    for target in TARGETS:
        faulty = [table.to_pylist() for table in branch(recording, Burst((target,), 800.0, 1300.0))]
        assert faulty[:2] == golden[:2]
        assert faulty[2] != golden[2]
        assert [table.to_pylist() for table in branch(recording, Burst((target,), 800.0, 800.0))] == golden
    lost = {
        row["key"] for table in branch(recording, Burst(("QuoteFilter",), 800.0, 1300.0)) for row in table.to_pylist()
    }
    kept = {row["key"] for rows in golden for row in rows if not 800 <= row["key"] < 1300}
    assert lost == kept  # a lost quote costs its own row and no other


def test_experiments_side_by_side_are_those_alone() -> None:
    subject = market()
    bursts = {f"{target}-{stop}": Burst((target,), 500.0, float(stop)) for target in TARGETS for stop in (600, 1500)}
    carried = side_by_side(subject.pipeline, subject.query, bursts, subject.key)
    trial = op.Trial(carried.pipeline)
    source = raw_name("Source")
    rows = pa.concat_tables([trial.epoch({source: subject.batch(epoch)}).output for epoch in range(subject.epochs)])
    plain = op.Trial(subject.pipeline).run(subject.batch(epoch) for epoch in range(subject.epochs))
    expected = {GOLDEN: [each.output for each in plain]}
    expected |= {label: from_the_start(subject, burst) for label, burst in bursts.items()}
    for label, tables in expected.items():
        mine = rows.filter(pa.compute.equal(rows[EXPERIMENT], label)).drop_columns(EXPERIMENT)
        assert mine.to_pylist() == pa.concat_tables(tables).to_pylist(), label


def test_windows_and_watermarks_branch_too() -> None:
    chosen = workload("top-k")
    options = Options(rate=60, epochs=40, seed=1)
    subject = Subject("top-k", chosen.pipeline(2, keep=5), 40, lambda epoch: chosen.batch(options, epoch), bounded=True)
    recording = record(subject)
    for target in ("slices", "top"):
        burst = Burst((target,), 5.25, 9.5)
        got, expected = branch(recording, burst), from_the_start(subject, burst)
        assert [table.to_pylist() for table in got] == [table.to_pylist() for table in expected]
        assert pa.concat_tables(got).to_pylist() != [
            row for epoch in range(40) for row in recording.output(epoch).to_pylist()
        ]


ROWS = pa.table({"key": [10, 11, 12, 13], "n": [1, 2, 3, 4], "x": [0.5, 1.5, 2.5, 3.5]})
HIT = np.array([False, True, True, False])


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (FaultModel("loss"), [10, 13]),
        (FaultModel("delay"), [10, 13]),
        (FaultModel("duplication"), [10, 11, 11, 12, 12, 13]),
    ],
)
def test_faults_on_rows(model: FaultModel, expected: list[int]) -> None:
    assert struck(ROWS, HIT, model, 0)["key"].to_pylist() == expected
    assert struck(ROWS, np.zeros(4, bool), model, 0) is ROWS


def test_reordering_shuffles_within_the_burst_alone() -> None:
    rows = pa.table({"key": range(100)})
    hit = np.arange(100) >= 50
    got = struck(rows, hit, FaultModel("reordering", seed=3), 7)["key"].to_pylist()
    assert got[:50] == list(range(50))
    assert got[50:] != list(range(50, 100))
    assert sorted(got) == list(range(100))
    assert got == struck(rows, hit, FaultModel("reordering", seed=3), 7)["key"].to_pylist()


def test_corruption_multiplies_and_keeps_the_type() -> None:
    got = struck(ROWS, HIT, parse_fault("corruption:n:2.5"), 0)
    assert got["n"].to_pylist() == [1, 5, 8, 4]
    assert got.schema == ROWS.schema
    assert struck(ROWS, HIT, parse_fault("corruption:x"), 0)["x"].to_pylist() == [0.5, 15, 25, 3.5]
    assert struck(ROWS, HIT, parse_fault("corruption:elsewhere"), 0) is ROWS


def test_delayed_rows_come_when_the_burst_is_over() -> None:
    seen = op.map("key", twice=pl.col("key") * 2)
    pipeline = op.Pipeline(op.source("rows"), op.step("seen", seen, "rows"))
    trial = op.Trial(injected(pipeline, Burst(("seen",), 2.0, 5.0, FaultModel("delay")), "key"))
    epochs = [[0, 1, 2], [3, 4], [5, 6], [7]]
    got = [trial.epoch({"rows.input": pa.table({"key": keys})}).output["key"].to_pylist() for keys in epochs]
    assert got == [[0, 1], [], [2, 3, 4, 5, 6], [7]]


def test_positions() -> None:
    assert positions(ROWS, "key", 3, "").tolist() == [10, 11, 12, 13]
    assert positions(ROWS, None, 3, "").tolist() == [3.125, 3.375, 3.625, 3.875]
    with pytest.raises(Invalid, match=r"operator A: rows have no column 'id'.*found: key, n, x"):
        positions(ROWS, "id", 0, "operator A")
    with pytest.raises(Invalid, match="must be numbers without nulls, found string"):
        positions(pa.table({"id": ["a"]}), "id", 0, "")


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("los", "must be one of loss, duplication"),
        ("corruption", "say which column"),
        ("loss:x", "only corruption takes a column"),
        ("corruption:x:much", "must be a number, got 'much'"),
        ("corruption:x:inf", "finite"),
    ],
)
def test_a_fault_that_makes_no_sense(written: str, message: str) -> None:
    with pytest.raises(Invalid, match=message):
        parse_fault(written)


def test_a_target_that_does_not_exist_or_does_not_matter() -> None:
    subject = market()
    with pytest.raises(Invalid, match="operator 'Nobody': unknown; operators are Source"):
        side_by_side(subject.pipeline, subject.query, {"a": Burst(("Nobody",), 0, 1)}, "key")
    two = op.Pipeline(op.source("a"), op.step("b", op.map("key"), "a"), op.step("c", op.map("key"), "a"))
    with pytest.raises(Invalid, match="nothing of it reaches b"):
        side_by_side(two, "b", {"a": Burst(("c",), 0, 1)}, "key")
    with pytest.raises(Invalid, match="it has 2 queries, say which one: b, c"):
        Subject("two", two, 1, lambda epoch: pa.table({}))
    with pytest.raises(Invalid, match="it ends at 1, before 2"):
        Burst(("a",), 2, 1)
