"""Campaigns: the same result however they run; degenerate ones; protected operators; the user's own score."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

sys.path.insert(0, str(Path(__file__).parent))  # the processes of a campaign must find the subject
from market_subject import counting, market, small

from holdfast import operators as op
from holdfast.assessment.campaign import RUNS, Progress, run_campaign, targets_of
from holdfast.assessment.engines import SparkJobs, TrialHere
from holdfast.assessment.experiments import Grid, Settings, design
from holdfast.assessment.faults import FaultModel
from holdfast.assessment.recording import Subject, record, traces_of
from holdfast.assessment.results import Assessment, read_assessment
from holdfast.assessment.scores import Score, affected, as_score
from holdfast.cli.subject import Asked, subject_of
from holdfast.errors import Invalid
from holdfast.workloads import Options


def finite(content: Any) -> bool:
    return json.loads(json.dumps(content, allow_nan=False)) is not None


@pytest.fixture(scope="module")
def whole() -> Assessment:
    return run_campaign(market, small())


def test_what_a_campaign_answers(whole: Assessment) -> None:
    assert [each.operator for each in whole.operators] == [
        "Source",
        "TradeFilter",
        "QuoteFilter",
        "BargainIndex",
        "VWAP",
    ]
    assert whole["Aggregator"] is whole["TradeFilter"]
    assert whole["TradeQuote"] is whole["Source"]
    assert whole.experiments == 5 * 2 * 3 * 2
    quotes = whole["QuoteFilter"]
    assert quotes.correlation == -1.0
    assert (quotes.deviation, quotes.accepted) == (0.0, True)
    assert [row[-1] for row in quotes.quality] == [0.0, 0.0]
    assert quotes.rows_lost == (1100, 2200, 4400)
    assert whole["Source"].recovery >= whole["BargainIndex"].recovery > 0
    assert whole.golden > 0
    assert finite(whole.content())


FEW = small(groups=(("TradeFilter",), ("QuoteFilter", "VWAP")))
"""Two of the targets: 8 experiments of three outages each."""


@pytest.fixture(scope="module")
def few() -> Assessment:
    return run_campaign(market, FEW)


@pytest.mark.long
def test_other_processes_give_the_same(few: Assessment) -> None:
    assert run_campaign(market, FEW, cores=2) == few


class Stopped(Exception):
    pass


@pytest.mark.parametrize("after", [1, 7])
def test_a_campaign_broken_off_and_resumed_gives_the_same(tmp_path: Path, few: Assessment, after: int) -> None:
    done: list[Progress] = []

    def stop(now: Progress) -> None:
        done.append(now)
        if len(done) == after:
            raise Stopped

    with pytest.raises(Stopped):
        run_campaign(market, FEW, out=tmp_path, report=stop)
    with (tmp_path / RUNS).open("a") as file:
        file.write('{"target": "Source", "offs')  # a crash in the middle of a line
    before = len((tmp_path / RUNS).read_text().splitlines()) - 1
    assert before == after
    done.clear()
    resumed = run_campaign(market, FEW, out=tmp_path, report=done.append)
    assert resumed == few == read_assessment(tmp_path)
    assert len(done) == 8 - after + 1  # and the last word
    assert len((tmp_path / RUNS).read_text().splitlines()) == 8


def test_another_campaign_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    run_campaign(counting, small(offsets=1, outages=(1.0,), repeat=1, sections=10, score=Score("count")), out=tmp_path)
    with pytest.raises(Invalid, match="this campaign has repeat 1, now it is 2; use another folder"):
        run_campaign(
            counting, small(offsets=1, outages=(1.0,), repeat=2, sections=10, score=Score("count")), out=tmp_path
        )


@pytest.mark.long
def test_it_stops_when_sure() -> None:
    settings = small(repeat=6, precision=10.0)
    assert {each.repetitions for each in run_campaign(market, settings).operators} == {3}
    told: list[Progress] = []
    run_campaign(market, replace(settings, groups=(("QuoteFilter",),)), report=told.append)
    assert (told[0].done, told[0].total) == (3, 36)
    assert (told[-1].done, told[-1].total, told[-1].left) == (18, 18, 0.0)


def test_replicas_shorten_the_outage(whole: Assessment) -> None:
    """So short a stream ends before it has recovered; recovery is for the benchmark."""
    settings = small(protected=("TradeFilter", "Aggregator", "VWAP"), failover=0.25)
    after = run_campaign(market, settings)
    for name in ("TradeFilter", "VWAP"):
        assert after[name].impact < whole[name].impact / 5
        assert after[name].rows_lost[-1] == pytest.approx(whole[name].rows_lost[0] / 2, abs=1)
    assert after["QuoteFilter"] == whole["QuoteFilter"]


def test_operators_on_one_node_fail_together(whole: Assessment) -> None:
    found = run_campaign(market, small(groups=(("QuoteFilter", "TradeFilter"), ("QuoteFilter",))))
    assert [each.operator for each in found.operators] == ["TradeFilter+QuoteFilter", "QuoteFilter"]
    both = found["TradeFilter+QuoteFilter"]
    # Losing both branches at once is losing the rows at the source: the same rows go missing.
    assert both.quality == whole["Source"].quality
    assert both.impact == whole["Source"].impact
    assert found["QuoteFilter"].quality == whole["QuoteFilter"].quality


def test_the_rate_is_the_operators_own_share_of_the_input() -> None:
    recording = record(market())
    settings = small()
    targets = targets_of(recording.subject, settings)
    plan = design(traces_of(recording, list(targets)), settings, targets)
    trades = sum(row == "trade" for epoch in range(6) for row in recording.subject.batch(epoch)["kind"].to_pylist())
    seconds = 5 + math.ceil((15_000 - 11_000) / (39_000 / 95))
    assert plan.rates["Source"].peak == 2200
    assert plan.rates["Source"].average == pytest.approx(15_000 / seconds, rel=0.03)
    assert plan.rates["VWAP"].peak == pytest.approx(2200 * trades / 15_000)
    average = design(traces_of(recording, list(targets)), replace(settings, rate="average"), targets)
    assert average.lost("Source", 2.0) == round(2 * plan.rates["Source"].average)


def test_without_a_key_sections_are_epochs() -> None:
    found = run_campaign(counting, Settings(as_score("total:count"), 3, (1.0, 2.0), 2, sections=10))
    assert [each.operator for each in found.operators] == ["words"]
    assert found["count"] is found["words"]
    lost = found["words"]
    assert lost.rows_lost == (20, 40)
    assert lost.correlation == -1.0
    # Running counts never make up for what was lost.
    assert lost.recovery >= 5
    recording = record(counting())
    every = small(score=Score("count"), sections=10, offsets=tuple(recording.epoch_starts()))
    plan = design(traces_of(recording, ["words"]), every, {})
    assert plan.begins == list(range(10))
    assert np.unique(plan.grid.of(plan.traces.golden_at)).tolist() == list(range(10))


def subject(rows: Any, epochs: int = 3, operator: Any = None) -> Subject:
    keep = operator or op.map("key", "gain")
    pipeline = op.Pipeline(op.source("a"), op.step("b", keep, "a"))
    return Subject("tiny", pipeline, epochs, rows, "key")


def rows_of(gain: float) -> Any:
    return lambda epoch: pa.table({"key": range(epoch * 50, epoch * 50 + 50), "gain": [gain] * 50})


@pytest.mark.parametrize(
    ("make", "note"),
    [
        (lambda: subject(rows_of(1.0), operator=op.filter("gain > 5")), "no output"),
        (lambda: subject(rows_of(0.0)), "golden score of what is affected is 0"),
        (lambda: subject(rows_of(-1.0)), None),
        (lambda: subject(lambda epoch: pa.table({"key": [epoch], "gain": [1.0]})), None),
    ],
)
@pytest.mark.parametrize(("offsets", "outages", "repeat"), [(1, (1.0,), 1), (2, (0.1, 1.0), 2)])
def test_degenerate_campaigns_have_an_answer(
    make: Any, note: str | None, offsets: int, outages: Any, repeat: int
) -> None:
    found = run_campaign(make, Settings(as_score("total:gain"), offsets, outages, repeat, sections=7))
    assert finite(found.content())
    notes = " ".join(found["a"].notes)
    if note is not None:
        assert note in notes
        assert (found["a"].impact, found["a"].recovery) == (0.0, 0)
        assert set(sum(found["a"].quality, ())) == {1.0}
    if offsets == 1:
        assert "one offset" in notes
        assert "one outage" in notes
        assert found["a"].accepted


def test_a_subject_for_this_process_alone_is_told() -> None:
    with pytest.raises(Invalid, match="cores 2: other processes cannot be handed this subject"):
        run_campaign(lambda: market(2500), small(), cores=2)


def test_a_function_that_raises_is_told_in_one_line() -> None:
    def picky(batch: pa.Table) -> pa.Table:
        if batch.num_rows == 50 - 1:
            raise ValueError("one is missing")
        return batch

    def always(batch: pa.Table) -> pa.Table:
        raise KeyError("x")

    with pytest.raises(Invalid, match="tiny: the golden run fails in epoch 0: KeyError: 'x'"):
        run_campaign(lambda: subject(rows_of(1.0), operator=always), Settings(Score("count")))
    losing_one = Settings(Score("count"), 1, (0.02,), 1)
    with pytest.raises(Invalid, match="tiny: with loss at a it fails in epoch 1: ValueError: one is missing"):
        run_campaign(lambda: subject(rows_of(1.0), operator=picky), losing_one)


def test_no_input_is_told() -> None:
    with pytest.raises(Invalid, match="the input has no rows"):
        run_campaign(lambda: subject(lambda epoch: pa.table({})), Settings(Score("count")))


def test_other_faults_hurt_too() -> None:
    for kind, worse in (("duplication", 1), ("delay", 0), ("corruption", 1)):
        model = FaultModel(kind, "price" if kind == "corruption" else None, 0.9)  # type: ignore[arg-type]
        found = run_campaign(market, small(fault=model, repeat=1, offsets=1, groups=(("QuoteFilter",),)))
        assert (found["QuoteFilter"].quality[0][-1] > 1) == bool(worse), kind
        assert finite(found.content())


class Shaky(op.Operator):
    """Chance in a pipeline: values are off by this share, differently in every run. It counts its rows, so that a run
    which has lost some never is in the golden state again, and all that follows is its own."""

    by = ()
    tables = {"state": op.StateSchema(pa.schema({"one": pa.int64()}), pa.schema({"rows": pa.int64()}))}  # noqa: RUF012

    def __init__(self, share: float) -> None:
        self.share, self.draws = share, np.random.default_rng(7)

    def process(self, batch: pa.Table, state: op.State) -> pa.Table:
        before = state.lookup(pa.table({"one": [0]}))["rows"][0].as_py() or 0
        state.update(pa.table({"one": [0], "rows": [before + batch.num_rows]}))
        wrong = 1 + self.share * self.draws.standard_normal(batch.num_rows)
        return batch.set_column(1, "gain", pa.array(batch["gain"].to_numpy() * wrong))


def test_chance_is_told_apart_from_damage() -> None:
    def found(share: float, golden: int, **changes: Any) -> Assessment:
        settings = Settings(as_score("total:gain"), 2, (0.5, 2.0), 2, sections=50, golden=golden, **changes)
        return run_campaign(lambda: subject(rows_of(1.0), 10, Shaky(share)), settings)

    alone, among = found(0.5, 1)["a"], found(0.5, 3)
    calm = found(0.0, 3)
    assert (calm.golden_runs, calm.golden_spread, calm.noise) == (3, 0.0, 0.0)
    assert among.golden_spread > 0
    assert among.noise > 0.3
    assert any("no more than golden runs may be" in note for note in among["a"].notes)
    # What was lost, 25 and 100 rows of 500, is there in each; what one golden run shows beyond it is chance.
    assert alone.recovery > 1.5 * calm["a"].recovery
    assert among["a"].recovery == pytest.approx(calm["a"].recovery, abs=1)
    assert among["a"].impact == pytest.approx(calm["a"].impact, rel=0.1)
    assert among["a"].quality[0][-1] == pytest.approx(calm["a"].quality[0][-1], abs=0.05)
    # A fault that strikes nothing is no damage, however much the runs differ.
    none = found(0.5, 3, fault=FaultModel("corruption", "nothing"))["a"]
    assert (none.recovery, none.impact) == (0, 0.0)
    assert set(sum(none.quality, ())) == {1.0}


def test_several_golden_runs_of_a_pipeline_without_chance_change_nothing(few: Assessment) -> None:
    assert run_campaign(market, replace(FEW, golden=2)) == replace(few, golden_runs=2)


SCORED = pa.table({"at": [0, 1, 1, 2, 5], "x": [1.0, 2.0, None, 4.0, 8.0]})
AT = np.array([0.0, 1, 1, 2, 5])


@pytest.mark.parametrize(
    ("score", "value", "local"),
    [
        ("total:x", 15.0, [3.0, 4.0, 8.0]),
        ("mean:x", 3.75, [1.5, 4.0, 8.0]),
        ("count", 5.0, [3.0, 1.0, 1.0]),
        (lambda table: table.num_rows**2, 25.0, [9.0, 1.0, 1.0]),
    ],
)
def test_scores(score: Any, value: float, local: list[float]) -> None:
    made = as_score(score)
    assert made.of(SCORED) == value
    assert made.local(SCORED, Grid(0.0, 2.0, 3).of(AT), 3).tolist() == local
    assert made.of(SCORED.slice(0, 0)) == 0.0


def test_a_score_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def most(table):\n    return max(table['x'].to_pylist(), default=0)\n\nnumber = 3\n")
    assert as_score(f"{file}:most").of(SCORED.slice(3)) == 8.0
    for written, message in (
        (f"{file}:least", "has no 'least'"),
        (f"{file}:number", "a function from a pyarrow.Table"),
        (f"{tmp_path}/none.py:f", "no such file"),
        ("sum:x", "write total:COLUMN"),
        ("total", "write total:COLUMN"),
    ):
        with pytest.raises(Invalid, match=message):
            as_score(written)
    with pytest.raises(Invalid, match="the output has no column 'y'; found: at"):
        as_score("total:y").of(SCORED)
    with pytest.raises(Invalid, match="must give a finite number, got nan"):
        as_score(lambda table: math.nan).of(SCORED)


def test_what_is_affected() -> None:
    faulty = pa.table({"at": [0, 1, 2, 2, 6], "x": [1.0, 2.0, 4.0, 4.0, 8.0]})
    got = affected(SCORED, AT, faulty, np.array([0.0, 1, 2, 2, 6]))
    assert got.tolist() == [1.0, 2.0, 5.0, 6.0]  # a row lost, one doubled, one moved
    assert affected(SCORED, AT, SCORED, AT).tolist() == []
    assert affected(SCORED.slice(0, 0), AT[:0], SCORED, AT).tolist() == [0, 1, 2, 5]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"offsets": 0}, "--offsets: from 1 to"),
        ({"offsets": (5.0, 1e9)}, "--offsets: the stream lies between 0 and 14999"),
        ({"outages": ()}, "--outages: seconds above 0"),
        ({"outages": (1.0, -1.0)}, "--outages: seconds above 0"),
        ({"outages": (1.0, 1.0)}, "--outages: each length once"),
        ({"repeat": 0}, "--repeat"),
        ({"golden": 0}, "--golden: from 1 to"),
        ({"at": 3.0}, "--at: one of the outages is needed"),
        ({"precision": -1.0}, "--precision"),
        ({"percentile": 2.0}, "--percentile"),
        ({"groups": (("Nobody",),)}, "--targets: unknown operator 'Nobody'"),
    ],
)
def test_settings_that_make_no_sense(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(Invalid, match=message):
        run_campaign(market, small(**changes))


@pytest.mark.long
@pytest.mark.spark
def test_spark_gives_the_scores_of_the_trial(spark: Any) -> None:
    made = market(rate=4000, epochs=2)
    groups = (("TradeFilter",), ("BargainIndex", "QuoteFilter"))
    settings = small(offsets=1, outages=(1.0,), repeat=1, groups=groups)
    recording = record(made)
    targets = targets_of(made, settings)
    plan = design(traces_of(recording, ["TradeFilter", "BargainIndex", "QuoteFilter"]), settings, targets)
    units = [plan.unit(target, 0, 0) for target in targets]
    on_spark = list(SparkJobs(spark, made, plan).measure(units))
    here = list(TrialHere(recording, plan).measure(units))
    assert [each.key for each in on_spark] == [each.key for each in here]
    for one, other in zip(on_spark, here, strict=True):
        assert one.quality == pytest.approx(other.quality, rel=1e-12)
        assert np.array(one.local) == pytest.approx(np.array(other.local), rel=1e-12)
        assert one.quality[-1] != 1.0


OWN = """
import pyarrow as pa
from holdfast import operators as op

pipeline = op.Pipeline(op.source("words"), op.step("count", op.aggregate("word", count=op.count()), "words"))

def batch(epoch):
    return pa.table({"word": [f"w{(epoch * i) % 7}" for i in range(30)]})
"""


@pytest.mark.spark
@pytest.mark.long
def test_ones_own_pipeline_on_spark_without_a_key(spark: Any, tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(OWN)
    made = subject_of(Asked(f"{file}:pipeline", Options(epochs=3), None, None, ""))
    settings = small(score=as_score("total:count"), offsets=1, outages=(1.0,), repeat=1, sections=3)
    recording = record(made)
    plan = design(traces_of(recording, ["words"]), settings, targets_of(made, settings))
    units = [plan.unit("words", 0, 0)]
    (there,) = SparkJobs(spark, made, plan).measure(units)
    (here,) = TrialHere(recording, plan).measure(units)
    assert there == here
    assert here.quality[0] < 1
