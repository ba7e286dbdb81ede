"""Policy, pool and tasks together in virtual time: rates rise and fall, tasks and nodes follow, rows are never lost."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from holdfast.elasticity import CannotScale, Policy, PoolPolicy, ScaleIn, ScaleOut
from holdfast.elasticity.fluid import Costs, Setting, Stage, Trace, run
from holdfast.errors import Invalid

RNG = np.random.default_rng(11)
HASHES = RNG.integers(0, 2**32, 2000).astype(np.uint32)
STAGES = (
    Stage("parse", 5e-6),
    Stage("count", 20e-6, 0.5, 50e6, HASHES, np.ones(2000)),
)


def hill(at: float) -> float:
    """Up to 300,000 rows/s in 600 s, there for 300 s, and down to 10,000."""
    return float(np.interp(at, [0, 600, 900, 1200, 2400], [10_000, 300_000, 300_000, 10_000, 10_000]))


SETTING = Setting(STAGES, hill, 2400.0)


@pytest.fixture(scope="module")
def trace() -> Trace:
    return run(SETTING)


def test_tasks_follow_the_rate_up_and_down(trace: Trace) -> None:
    peak = trace.tasks[950]
    # 1.5 and 3 cores of work at the peak, at most 70 % a task.
    assert peak[0] >= 3
    assert peak[1] >= 5
    assert list(trace.tasks[-1]) == [1, 1]
    assert trace.nodes[-1] == 2
    assert {type(made.decision) for made in trace.decisions} == {ScaleOut, ScaleIn}


def test_every_row_is_done_in_the_end(trace: Trace) -> None:
    assert trace.dropped.sum() == 0
    assert trace.done.sum() == pytest.approx(trace.rate.sum(), rel=1e-3)
    # It was overloaded for no longer than nodes took: answers are late by seconds, not minutes.
    assert trace.percentile(99)[0] < 90
    assert trace.percentile(50)[0] == pytest.approx(2 * SETTING.hop, abs=0.01)


def test_the_same_seed_gives_the_same_run_and_another_one_does_not(trace: Trace) -> None:
    again = run(SETTING)
    assert np.array_equal(again.latency, trace.latency)
    assert again.decisions == trace.decisions
    assert not np.array_equal(run(replace(SETTING, seed=2, seconds=100.0)).rate, trace.rate[:100])


@pytest.mark.parametrize("skew", [0.0, 1.3])
@pytest.mark.parametrize("cores", [0.3, 2.0, 5.0])
def test_a_steady_rate_comes_to_rest_and_nothing_is_undone(skew: float, cores: float) -> None:
    weights = 1 / np.arange(1, 2001) ** skew
    stage = Stage("O", 10e-6, 1.0, 1e6, HASHES, weights)
    found = run(Setting([stage], lambda _: cores / 10e-6, 1200.0, burst=0.0, buffer=1.0, parallelism=[3]))
    assert found.actions(since=600.0) == 0
    assert found.undone() == 0
    stuck = [made for made in found.decisions if isinstance(made.decision, CannotScale)]
    hottest = float(weights[0] / weights.sum()) * cores
    assert bool(stuck) == (hottest > 0.7)


def test_undone_counts_what_it_says(trace: Trace) -> None:
    """The hill is split on the way up and merged on the way down, which is no steady load."""
    assert trace.undone() > 0
    assert trace.undone(since=1200.0) == 0


def test_without_a_policy_an_overloaded_task_falls_behind_as_reckoned() -> None:
    stage = Stage("O", 10e-6)
    found = run(Setting([stage], lambda _: 150_000.0, 100.0, policy=None, burst=0.0, hop=0.0))
    assert not found.decisions
    # Half a second of work too much arrives every second.
    assert found.latency[-1].max() == pytest.approx(50.0, rel=0.01)
    assert found.done[-1] == pytest.approx(100_000)
    two = run(Setting([stage], lambda _: 150_000.0, 100.0, policy=None, burst=0.0, hop=0.0, parallelism=[2]))
    assert two.latency.max() == 0


def test_short_queues_drop_what_does_not_fit() -> None:
    stage = Stage("O", 10e-6)
    found = run(Setting([stage], lambda _: 150_000.0, 100.0, policy=None, burst=0.0, hop=0.0, buffer=2.0))
    assert found.latency.max() == pytest.approx(2.0)
    assert found.dropped[-1] == pytest.approx(50_000)
    assert found.done.sum() + found.dropped.sum() + 200_000 == pytest.approx(15e6, rel=1e-6)


def test_an_empty_pool_makes_a_change_wait_and_a_full_one_does_not() -> None:
    waits = []
    for standby in (0, 4):
        setting = replace(SETTING, seconds=400.0, pool=PoolPolicy(60.0, standby, 16), provisioning=60.0)
        waits.append(run(setting).changes[0][1])
    assert waits == [60.0, 0.0]


def test_larger_state_takes_longer_to_move() -> None:
    took = []
    for size in (1e6, 4e9):
        stages = (Stage("O", 20e-6, 1.0, size, HASHES, np.ones(2000)),)
        setting = Setting(stages, lambda _: 40_000.0, 120.0, pool=PoolPolicy(least=4), burst=0.0)
        took.append(run(replace(setting, costs=Costs(cut=0.004, restore=0.002))).changes[0][2])
    # 4 GB: 16 s to cut and 4 s for each of two to restore its half; the rest is replay.
    assert took[1] - took[0] > 20


def test_limits_on_nodes_hold_in_the_loop() -> None:
    found = run(replace(SETTING, policy=Policy(max_nodes=4), seconds=900.0))
    assert found.tasks.sum(axis=1).max() == 4
    said = [made.decision.why for made in found.decisions if isinstance(made.decision, CannotScale)]
    assert said
    assert all("at most 4 nodes" in why for why in said)


def test_percentiles_count_each_row_once(trace: Trace) -> None:
    plain = replace(trace, weight=np.ones(len(trace.time)))
    chosen = trace.latency[(trace.time >= 100) & (trace.time < 300)].ravel()
    for at, found in zip((5, 50, 95), plain.percentile(5, 50, 95, since=100, until=300), strict=True):
        assert found == pytest.approx(np.percentile(chosen, at, method="inverted_cdf"))
    only = replace(trace, weight=(trace.time == 300).astype(float))
    assert only.percentile(100)[0] == trace.latency[299].max()


def test_nothing_to_simulate_is_refused() -> None:
    with pytest.raises(Invalid, match="needs a stage, a tick and a second or more, got 0 stages"):
        run(Setting((), hill, 10.0))


def test_the_benchmark_runs_and_refuses_what_it_cannot_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(__file__).parents[2] / "benchmarks" / "elasticity.py"
    spec = importlib.util.spec_from_file_location("elasticity_benchmark", path)
    assert spec is not None
    assert spec.loader is not None
    benchmark = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = benchmark
    spec.loader.exec_module(benchmark)
    short = ["--seconds", "120", "--hold", "30", "--expressways", "350", "--keys", "200"]
    for command in ("rise", "latency", "open", "pool"):
        picture = tmp_path / f"{command}.html"
        assert benchmark.main([command, *short, "--plot", str(picture)]) == 0
        assert picture.stat().st_size > 1000
    assert "actions in the last 20 s" in capsys.readouterr().out
    counts = tmp_path / "counts.csv"
    rows = "".join(f"1998-06-01 00:{m:02d}:00,{m}\n1998-06-02 00:{m:02d}:00,{2 * m}\n" for m in range(5))
    counts.write_text(f"period,count\n{rows}")
    assert benchmark.main(["rise", "--profile", str(counts), "--peak", "1000"]) == 0
    assert "profile: 1998-06-02, scaled to a peak of 1,000 rows/s" in capsys.readouterr().out
    counts.write_text("when,what\n1,2\n")
    assert benchmark.main(["rise", "--profile", str(counts)]) == 2
    assert benchmark.main(["rise", "--profile", str(tmp_path / "none.csv")]) == 2
    assert benchmark.main(["rise", "--threshold", "7"]) == 2
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 3
    assert "threshold must be above 0 and at most 1" in told[2]
