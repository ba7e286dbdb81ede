"""Bargain discovery assessed as in paper 001: its findings as relations, what replicas change, what a campaign costs.

Run: .venv/bin/python benchmarks/assessment.py [--quick]. It prints

1. for five seeds of the market (500,000 rows; 5 offsets, outages of 1, 4 and 16 s) the operator table beside the
   paper's, and what replicas of {TradeFilter, Aggregator, VWAP} change;
2. on how many of the seeds each finding of the paper holds;
3. the plan that ``holdfast plan --assessment`` makes with a budget of 3, and shorter failovers;
4. the cost of one experiment: from the start of the stream, as a branch of the recorded golden run, and on Spark, where
   many experiments share one pass; and how far their scores differ;
5. nodes killed on Spark, logical ones of ``local[2]``, so that no process dies: what had been answered in time, without
   replicas and with them.

``--quick``: one seed, no Spark.

What profiling showed: with epochs of 10,000 rows a faulty run spent half its time outside the operators' own work, in
handing small tables over; epochs of 25,000 rows halve it and change no score. Then twelve window expressions in the
aggregator took 40 %; shifting sorted rows does the same for next to nothing. Branches that end when their state is
golden again save most where no state is hurt: a fault at QuoteFilter costs two epochs instead of twenty. With symbols
that hardly ever trade, a fault in front of the aggregator is never forgotten, and its branch runs to the end.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from holdfast.assessment.campaign import all_cores, run_campaign, targets_of
from holdfast.assessment.engines import SparkJobs, measure_by_trial
from holdfast.assessment.experiments import Settings, design
from holdfast.assessment.injection import injected, raw_name
from holdfast.assessment.kills import DEADLINE, Kill
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


SEEDS = range(5)
GROUP = ("TradeFilter", "Aggregator", "VWAP")
"""What the paper's authors replicated."""
SHOWN = ("TradeFilter", "VWAP")
KILLED = ("TradeFilter", "Aggregator", "BargainIndex")
SETTINGS = Settings(as_score("total:gain"), 5, (1.0, 4.0, 16.0), 2, precision=0.0)


def main() -> None:
    quick = "--quick" in sys.argv
    found = {seed: assessed(seed) for seed in (SEEDS[:1] if quick else SEEDS)}
    relations(found)
    loop(found[0][0])
    failovers()
    costs()
    if not quick:
        on_spark()


def market(seed: int, epochs: int = 20, rate: int = 25_000) -> Any:
    return partial(subject_of, Asked("bargain-discovery", Options(epochs=epochs, rate=rate, seed=seed), None, None, ""))


def assessed(seed: int) -> tuple[Assessment, Assessment]:
    """A market without replicas, and with those of the paper; more than one repetition for the first one alone."""
    began, used = time.monotonic(), os.times()
    settings = replace(SETTINGS, seed=seed, repeat=1 if seed else SETTINGS.repeat)
    bare = run_campaign(market(seed), settings, cores=all_cores())
    groups = tuple((name,) for name in SHOWN)
    safe = run_campaign(market(seed), replace(settings, protected=GROUP, groups=groups), cores=all_cores())
    many = bare.experiments + safe.experiments
    print(f"seed {seed}: {many} experiments in {time.monotonic() - began:.0f} s, {_cpu(used):.0f} s of CPU")
    table(bare)
    for name in SHOWN:
        was, now = bare[name], safe[name]
        print(
            f"{name} with replicas, failover 2 s: impact {was.impact:.2f} -> {now.impact:.3f} "
            f"({_times(was.impact, now.impact)}), recovery {was.recovery} -> {now.recovery} "
            f"({_times(was.recovery, now.recovery)})"
        )
    print()
    return bare, safe


def table(result: Assessment) -> None:
    print(f"\n{'operator':14}{'rows lost':>10}{'corr.':>8}{'dev.':>8} {'A':>2}{'recovery':>10}{'impact':>9}    paper")
    for each in result.operators:
        verdict = "A" if each.accepted else "R"
        print(
            f"{each.operator:14}{each.rows_lost[-1]:>10,}{each.correlation:>8.2f}{each.deviation:>8.3f} {verdict:>2}"
            f"{each.recovery:>10}{each.impact:>9.2f}    {PAPER[each.operator]}"
        )
    print(f"{result.experiments} experiments, repetitions {[each.repetitions for each in result.operators]}\n")


def relations(found: Mapping[int, tuple[Assessment, Assessment]]) -> None:
    """On how many seeds each of the paper's findings holds."""
    held = [checks(*pair) for pair in found.values()]
    print(f"{'holds on':>9}  of {len(held)} seeds")
    for what in held[0]:
        print(f"{sum(each[what] for each in held):>9}  {what}")


def checks(bare: Assessment, safe: Assessment) -> dict[str, bool]:
    impacts = {each.operator: each.impact for each in bare.operators}
    recoveries = {each.operator: each.recovery for each in bare.operators}
    quotes = bare["QuoteFilter"]
    longest = max(recoveries.values())
    order = sorted(PAPER, key=lambda name: PAPER[name][-1])
    answer = {
        "targets are Source, TradeFilter, QuoteFilter, VWAP, BargainIndex": set(impacts) == set(PAPER),
        "TradeFilter has the largest impact": max(impacts, key=impacts.__getitem__) == "TradeFilter",
        "QuoteFilter has the smallest impact": min(impacts, key=impacts.__getitem__) == "QuoteFilter",
        "the order of all five impacts is the paper's": sorted(impacts, key=impacts.__getitem__) == order,
        "QuoteFilter: correlation -1, deviation 0": (quotes.correlation, quotes.deviation) == (-1.0, 0.0),
        "Source and TradeFilter share the longest recovery": recoveries["Source"]
        == recoveries["TradeFilter"]
        == longest,
    }
    for name in SHOWN:
        answer[f"replicas cut {name}'s impact by 10 or more"] = safe[name].impact * 10 <= bare[name].impact
        answer[f"replicas cut {name}'s recovery by 10 or more"] = safe[name].recovery * 10 <= bare[name].recovery
    return answer


def loop(first: Assessment) -> None:
    topology = market(0)().pipeline.topology
    plan = plan_by_measurement(topology, 3, first.impacts(), PLANNERS["structure-aware"])
    replicas = [task.operator for task in plan.plan.replicas]
    print(f"\nplan with a budget of 3: {replicas}, {plan.impact_removed:.0%} of the measured impact")
    alone = PLANNERS["structure-aware"](topology, 3)
    print(f"by fidelity alone: {len(alone.replicas)} replicas, fidelity {alone.fidelity:g}")
    for each in compared(topology, first.impacts()):
        print(f"  {each.operator:14} impact {each.impact:6.2f} (rank {each.impact_rank}), "
              f"fidelity lost alone {each.fidelity_lost:.2f} (rank {each.fidelity_rank})")  # fmt: skip


def failovers() -> None:
    print(f"\n{'failover':>9} {'TradeFilter: impact, recovery':>32} {'VWAP: impact, recovery':>28}")
    settings = replace(SETTINGS, protected=GROUP, outages=(16.0,), groups=tuple((name,) for name in SHOWN))
    for failover in (1.0, 0.5):
        found = run_campaign(market(0), replace(settings, failover=failover), cores=all_cores())
        cells = [f"{found[name].impact:.3f}, {found[name].recovery}" for name in SHOWN]
        print(f"{failover:>7g} s {cells[0]:>32} {cells[1]:>28}")


def costs() -> None:
    subject = market(0)()
    used = os.times()
    recording = record(subject)
    print(f"\ngolden run: {_cpu(used):.2f} s of CPU")
    targets = targets_of(subject, SETTINGS)
    plan = design(traces_of(recording, list(targets)), SETTINGS, targets)
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


def on_spark() -> None:
    from holdfast.runtime.spark import spark_session

    spark = spark_session("local[2]", name="holdfast-benchmark")
    try:
        side_by_side(spark)
        kills(spark)
    finally:
        spark.stop()


def side_by_side(spark: Any) -> None:
    """Ten experiments, five targets and two outages, over a shorter stream: by trial, and in one Spark job."""
    subject = market(0, epochs=8)()
    settings = replace(SETTINGS, outages=(4.0, 16.0))
    recording = record(subject)
    targets = targets_of(subject, settings)
    plan = design(traces_of(recording, list(targets)), settings, targets)
    units = [plan.unit(target, 1, 0) for target in targets]
    began = time.monotonic()
    here = [measure_by_trial(recording, plan, unit) for unit in units]
    trial_seconds, began = time.monotonic() - began, time.monotonic()
    there = list(SparkJobs(spark, subject, plan).measure(units))
    spark_seconds = time.monotonic() - began
    pairs = list(zip(here, there, strict=True))
    gap = max(float(np.abs(np.array(one.local) - np.array(other.local)).max()) for one, other in pairs)
    quality = max(float(np.abs(np.array(one.quality) - np.array(other.quality)).max()) for one, other in pairs)
    print(
        f"\n{len(units) * len(settings.outages)} experiments, 200,000 rows: trial, one process {trial_seconds:.1f} s; "
        f"Spark local[2], one job {spark_seconds:.1f} s; largest difference of a quality score {quality:.2g}, "
        f"of a local score {gap:.2g}\n"
    )


def kills(spark: Any) -> None:
    """Nodes killed for real, one for each task, an epoch a second: what users saw, without replicas and with them."""
    settings = replace(SETTINGS, offsets=(40_000.0,), repeat=1, groups=tuple((name,) for name in KILLED))
    replicas = tuple(f"{name}/0" for name in KILLED)
    heads = f"{'replicas':>9}{'deadline':>9}{'rows late':>10}{'recovery':>9}{'impact':>8}{'exact after':>12}"
    print(f"{'killed':13}{heads} final")
    for deadline, kept in ((0, ()), (0, replicas), (DEADLINE, ()), (DEADLINE, replicas)):
        kill = Kill(deadline=deadline, replicas=kept, trigger="1 second")
        found = run_campaign(market(0, 8, 10_000), settings, engine="spark", spark=spark, kill=kill)
        for each in found.operators:
            after = "-" if each.seconds is None else f"{each.seconds:.1f} s"
            print(
                f"{each.operator:13}{'yes' if kept else 'no':>9}{deadline:>9}{each.rows_lost[0]:>10,}"
                f"{each.recovery:>9}{each.impact:>8.2f}{after:>12} {each.final_quality:.3f}",
                *each.notes,
                flush=True,
            )


def _cpu(before: Any) -> float:
    now = os.times()
    return float(sum(now[:4]) - sum(before[:4]))


def _times(before: float, after: float) -> str:
    return f"a factor of {before / after:.0f}" if after else "gone"


if __name__ == "__main__":
    main()
