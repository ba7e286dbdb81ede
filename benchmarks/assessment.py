"""Bargain discovery assessed as in paper 001: its findings as relations, what replicas change, what a campaign costs.

Run: .venv/bin/python benchmarks/assessment.py [--quick]. It prints

1. the operator table of a campaign over 500,000 rows (5 offsets, 6 outages, up to 5 repetitions), beside the paper's;
2. the paper's findings, each as a relation with the numbers behind it;
3. the plan that ``holdfast plan --assessment`` makes with a budget of 3, and a second campaign with it in force;
4. the cost of one experiment: from the start of the stream, as a branch of the recorded golden run, and on Spark, where
   30 experiments share one pass; and how far their scores differ.

What profiling showed: with epochs of 10,000 rows a faulty run spent half its time outside the operators' own work, in
handing small tables over; epochs of 25,000 rows halve it and change no score. What is left is polars at work in the
aggregator (sorting trades by symbol). Branches that end when their state is golden again make up for most of the rest:
a fault at QuoteFilter costs two epochs instead of twenty.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from holdfast.assessment.campaign import all_cores, run_campaign, targets_of
from holdfast.assessment.engines import SparkJobs, measure_by_trial
from holdfast.assessment.experiments import Settings, design
from holdfast.assessment.injection import injected, raw_name
from holdfast.assessment.recording import branch, record, traces_of
from holdfast.assessment.results import Assessment
from holdfast.assessment.scores import as_score
from holdfast.cli.subject import Asked, subject_of
from holdfast.operators import Trial
from holdfast.replication import PLANNERS
from holdfast.replication.measured import compared, plan_by_measurement
from holdfast.workloads import Options

PAPER = {
    "Source": (-0.38, 0.21, "R", 340, 21.23),
    "TradeFilter": (0.97, 0.76, "R", 340, 48.70),
    "QuoteFilter": (-1.00, 0.00, "A", 6, 6.00),
    "VWAP": (0.99, 0.14, "R", 73, 30.87),
    "BargainIndex": (-0.69, 0.08, "A", 43, 7.89),
}


def main() -> None:
    quick = "--quick" in sys.argv
    asked = Asked("bargain-discovery", Options(epochs=20, rate=25_000, seed=0), None, None, "")
    settings = Settings(as_score("total:gain"), 2 if quick else 5, repeat=1 if quick else 5)
    make = partial(subject_of, asked)
    began, used = time.monotonic(), os.times()
    first = run_campaign(make, settings, cores=all_cores())
    print(f"campaign: {first.experiments} experiments in {time.monotonic() - began:.0f} s, {_cpu(used):.0f} s of CPU")
    table(first)
    relations(first)
    second = loop(make, settings, first)
    table(second)
    for name in ("TradeFilter", "VWAP"):
        was, now = first[name], second[name]
        print(
            f"{name}: impact {was.impact:.2f} -> {now.impact:.3f} ({_times(was.impact, now.impact)}), "
            f"recovery {was.recovery} -> {now.recovery} ({_times(was.recovery, now.recovery)})"
        )
    print(f"\n{'failover':>9} {'TradeFilter: impact, recovery':>32} {'VWAP: impact, recovery':>28}")
    shown = replace(settings, protected=second.protected, groups=(("TradeFilter",), ("VWAP",)))
    for failover in (2.0, 1.0, 0.5):
        found = run_campaign(make, replace(shown, failover=failover), cores=all_cores())
        cells = [f"{found[name].impact:.3f}, {found[name].recovery}" for name in ("TradeFilter", "VWAP")]
        print(f"{failover:>7g} s {cells[0]:>32} {cells[1]:>28}")
    costs(make, settings)


def table(result: Assessment) -> None:
    print(f"\n{'operator':14}{'rows lost':>10}{'corr.':>8}{'dev.':>8} {'A':>2}{'recovery':>10}{'impact':>9}    paper")
    for each in result.operators:
        verdict = "A" if each.accepted else "R"
        print(
            f"{each.operator:14}{each.rows_lost[-1]:>10,}{each.correlation:>8.2f}{each.deviation:>8.3f} {verdict:>2}"
            f"{each.recovery:>10}{each.impact:>9.2f}    {PAPER[each.operator]}"
        )
    print(f"{result.experiments} experiments, repetitions {[each.repetitions for each in result.operators]}\n")


def relations(found: Assessment) -> None:
    impacts = {each.operator: each.impact for each in found.operators}
    recoveries = {each.operator: each.recovery for each in found.operators}
    quotes = found["QuoteFilter"]
    longest = max(recoveries.values())
    checks = {
        "targets are Source, TradeFilter, QuoteFilter, VWAP, BargainIndex": set(impacts) == set(PAPER),
        "TradeFilter has the largest impact": max(impacts, key=impacts.__getitem__) == "TradeFilter",
        "QuoteFilter has the smallest impact": min(impacts, key=impacts.__getitem__) == "QuoteFilter",
        "QuoteFilter: correlation -1, deviation 0, accepted": (quotes.correlation, quotes.deviation, quotes.accepted)
        == (-1.0, 0.0, True),
        "Source and TradeFilter share the longest recovery": recoveries["Source"]
        == recoveries["TradeFilter"]
        == longest,
    }
    for what, holds in checks.items():
        print(f"{'yes' if holds else 'NO ':4} {what}")


def loop(make: Any, settings: Settings, first: Assessment) -> Assessment:
    topology = make().pipeline.topology
    plan = plan_by_measurement(topology, 3, first.impacts(), PLANNERS["structure-aware"])
    replicas = [task.operator for task in plan.plan.replicas]
    print(f"\nplan with a budget of 3: {replicas}, {plan.impact_removed:.0%} of the measured impact")
    alone = PLANNERS["structure-aware"](topology, 3)
    print(f"by fidelity alone: {len(alone.replicas)} replicas, fidelity {alone.fidelity:g}")
    for each in compared(topology, first.impacts()):
        print(f"  {each.operator:14} impact {each.impact:6.2f} (rank {each.impact_rank}), "
              f"fidelity lost alone {each.fidelity_lost:.2f} (rank {each.fidelity_rank})")  # fmt: skip
    return run_campaign(make, replace(settings, protected=tuple(replicas)), cores=all_cores())


def costs(make: Any, settings: Settings) -> None:
    subject = make()
    used = os.times()
    recording = record(subject)
    print(f"\ngolden run: {_cpu(used):.2f} s of CPU")
    targets = targets_of(subject, settings)
    plan = design(traces_of(recording, list(targets)), settings, targets)
    print(f"{'one experiment of 16 s, s of CPU':34}{'from the start':>16}{'as a branch':>14}")
    for target in targets:
        burst = plan.unit(target, 1, 0).bursts[-1]
        used = os.times()
        trial = Trial(injected(subject.pipeline, burst, subject.key))
        source = raw_name("Source")
        expected = [each.output for each in trial.run({source: subject.batch(e)} for e in range(subject.epochs))]
        plain, used = _cpu(used), os.times()
        got = branch(recording, burst)
        fast = _cpu(used)
        same = all(one.equals(other) for one, other in zip(got, expected, strict=True))
        print(f"{target:34}{plain:>16.2f}{fast:>14.2f}   {'same rows' if same else 'ROWS DIFFER'}")
    units = [plan.unit(target, 1, 0) for target in targets]
    began = time.monotonic()
    here = [measure_by_trial(recording, plan, unit) for unit in units]
    trial_seconds = time.monotonic() - began
    from holdfast.runtime.spark import spark_session

    spark = spark_session("local[2]", name="holdfast-benchmark")
    try:
        began = time.monotonic()
        there = list(SparkJobs(spark, subject, plan).measure(units))
        spark_seconds = time.monotonic() - began
    finally:
        spark.stop()
    gap = max(float(np.abs(np.array(a.local) - np.array(b.local)).max()) for a, b in zip(here, there, strict=True))
    quality = max(
        float(np.abs(np.array(a.quality) - np.array(b.quality)).max()) for a, b in zip(here, there, strict=True)
    )
    print(
        f"\n{len(units) * len(settings.outages)} experiments: trial, one process {trial_seconds:.1f} s; "
        f"Spark local[2], one job {spark_seconds:.1f} s; largest difference of a quality score {quality:.2g}, "
        f"of a local score {gap:.2g}"
    )


def _cpu(before: Any) -> float:
    now = os.times()
    return float(sum(now[:4]) - sum(before[:4]))


def _times(before: float, after: float) -> str:
    return f"a factor of {before / after:.0f}" if after else "gone"


if __name__ == "__main__":
    main()
