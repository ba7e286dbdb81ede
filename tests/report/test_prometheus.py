"""Metrics are what the history says, in Prometheus' text format."""

from __future__ import annotations

import re

from histories import half_lost

from holdfast.report.metrics import Metrics

LINE = re.compile(r'holdfast_\w+(\{\w+="[^"]*"(,\w+="[^"]*")*\})? -?[\d.e+]+')


def scraped(metrics: Metrics) -> dict[str, float]:
    lines = [line for line in metrics.text().splitlines() if not line.startswith("#")]
    assert all(LINE.fullmatch(line) for line in lines), lines
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def test_before_anything_happened() -> None:
    told = scraped(Metrics())
    assert told["holdfast_up"] == 0 and told["holdfast_epoch"] == -1 and told["holdfast_rows_total"] == 0


def test_in_the_middle_of_a_recovery() -> None:
    metrics = Metrics()
    events = half_lost()
    upto = next(i for i, event in enumerate(events) if event["kind"] == "nodes joined" and event["alive"] == 3)
    for event in events[: upto + 1]:
        metrics.heard(event)
    told = scraped(metrics)
    assert told["holdfast_up"] == 1 and told["holdfast_nodes"] == 3 and told["holdfast_fidelity"] == 0.5
    assert told['holdfast_query_fidelity{query="top"}'] == 0.5
    assert told['holdfast_tasks{status="down"}'] == 1 and told['holdfast_tasks{status="tentative"}'] == 1
    assert told["holdfast_promotions_total"] == 1 and told["holdfast_nodes_lost_total"] == 2


def test_after_the_end() -> None:
    metrics = Metrics()
    for event in half_lost():
        metrics.heard(event)
    told = scraped(metrics)
    assert told["holdfast_up"] == 0 and told["holdfast_epochs_total"] == 5 and told["holdfast_rows_total"] == 5000
    assert told['holdfast_outputs_total{kind="final"}'] == 5 and told['holdfast_outputs_total{kind="tentative"}'] == 1
    assert told['holdfast_epoch_latency_seconds_bucket{le="0.5"}'] == 4
    assert told['holdfast_epoch_latency_seconds_bucket{le="2.5"}'] == 5
    assert told['holdfast_epoch_latency_seconds_bucket{le="+Inf"}'] == told["holdfast_epoch_latency_seconds_count"] == 5
    assert told["holdfast_checkpoint_bytes_total"] == 3072 and told['holdfast_state_bytes{operator="count"}'] == 4004


def test_what_operators_count_adds_up() -> None:
    metrics = Metrics()
    epochs = [event for event in half_lost() if event["kind"] == "epoch"]
    for event, late in zip(epochs, (3, 0, 4), strict=False):
        metrics.heard({**event, "counters": {"count": {"late": late}} if late else {}})
    assert scraped(metrics)['holdfast_counted_rows_total{operator="count",what="late"}'] == 7


def test_every_family_is_declared_once_before_its_samples() -> None:
    metrics = Metrics()
    for event in half_lost():
        metrics.heard(event)
    kinds = re.findall(r"^# TYPE (\S+) (\S+)$", metrics.text(), re.MULTILINE)
    assert len({name for name, _ in kinds}) == len(kinds)
    assert all(name.endswith("_total") for name, kind in kinds if kind == "counter")
