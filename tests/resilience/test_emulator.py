"""The emulator: lanes against plain timelines, closed forms it must meet, and the models' two to five nines."""

from __future__ import annotations

import math

import naive_emulation as naive
import numpy as np
import pyarrow as pa
import pytest

from holdfast.errors import Infeasible, Invalid
from holdfast.resilience import Limits, Prices, Scenario, active_periodic, active_replay, advise_scenario, solve
from holdfast.resilience.downtime import expected_downtime
from holdfast.resilience.emulator import Effort, Emulation, emulate, emulate_option
from holdfast.resilience.emulator.copies import ActivePeriodic, ActiveReplay, OnDemand
from holdfast.resilience.emulator.emulate import interval
from holdfast.resilience.emulator.one_node import Periodic, ReplayLossless
from holdfast.resilience.emulator.query import SCHEMA, count_users, restore, run_query, take
from holdfast.state import StateTable

F = 100.0
LANES, STEPS = 7, 400
MOVED = np.array([1.0, 1.2, 0.9, 1.1, 1.05])


def failures(nodes: int, between: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.exponential(between, (STEPS, LANES)), rng.integers(nodes, size=(STEPS, LANES))


class TestLanesAgainstPlainTimelines:
    """The same failures give the same downtime between any two of them, also when they come thick and fast."""

    @pytest.mark.parametrize("between", [3.0, 30.0])
    def test_replay_lossless(self, between: float) -> None:
        gaps, copies = failures(1, between, 1)
        lanes = ReplayLossless(LANES, 5.0, 2.5)
        got = np.array([lanes.step(gap, copy) for gap, copy in zip(gaps, copies, strict=True)])
        for lane in range(LANES):
            np.testing.assert_allclose(got[:, lane], naive.replay_lossless(list(gaps[:, lane]), 5.0, 2.5), atol=1e-9)

    @pytest.mark.parametrize(("between", "factor", "period"), [(40.0, 3.0, 8.0), (5.0, 2.0, 6.0), (2.0, 8.0, 11.0)])
    def test_periodic(self, between: float, factor: float, period: float) -> None:
        gaps, copies = failures(1, between, 2)
        lanes = Periodic(period, factor, MOVED, np.linspace(0.2, 0.9, LANES))
        start, last = lanes.now.copy(), lanes.last.copy()
        got = np.array([lanes.step(gap, copy) for gap, copy in zip(gaps, copies, strict=True)])
        for lane in range(LANES):
            plain = naive.periodic(
                list(gaps[:, lane]), float(start[lane]), int(last[lane]), period, factor, list(MOVED)
            )
            np.testing.assert_allclose(got[:, lane], plain, atol=1e-6)

    @pytest.mark.parametrize(("between", "nodes"), [(20.0, 2), (4.0, 3), (1.0, 4)])
    def test_active_periodic(self, between: float, nodes: int) -> None:
        gaps, copies = failures(nodes, between, 3)
        lanes = ActivePeriodic(nodes, 7.0, 3.0, MOVED, np.linspace(0.2, 0.9, LANES))
        start = lanes.now.copy()
        got = np.array([lanes.step(gap, copy) for gap, copy in zip(gaps, copies, strict=True)])
        assert got.sum() > 0
        for lane in range(LANES):
            events = list(zip(gaps[:, lane], copies[:, lane], strict=True))
            plain = naive.active_periodic(events, float(start[lane]), nodes, 7.0, 3.0, list(MOVED))
            np.testing.assert_allclose(got[:, lane], plain, atol=1e-6)

    @pytest.mark.parametrize(("between", "nodes"), [(4.0, 3), (1.0, 4), (0.5, 6)])
    def test_on_demand(self, between: float, nodes: int) -> None:
        gaps, copies = failures(nodes, between, 4)
        lanes = OnDemand(LANES, nodes, 2.0, np.array([1.5]))
        got = np.array([lanes.step(gap, copy) for gap, copy in zip(gaps, copies, strict=True)])
        losses = 0
        for lane in range(LANES):
            plain, lost = naive.on_demand(list(zip(gaps[:, lane], copies[:, lane], strict=True)), nodes, 2.0, 1.5)
            np.testing.assert_allclose(got[:, lane], plain, atol=1e-9)
            losses += lost
        assert lanes.losses == losses > 0


class TestAgainstClosedForms:
    """What can be said exactly about the emulated worlds themselves, apart from any model."""

    def test_replay_is_down_while_the_last_failure_is_recent(self) -> None:
        """Failures are a Poisson process: the share of time within T of one is 1 - e^(-T/F)."""
        scenario = Scenario(0.9, F, 10.0)
        found = emulate(scenario, "replay", 1, 1.0, effort=Effort(seed=5))
        assert found.low <= math.exp(-0.1) <= found.high

    @pytest.mark.parametrize("nodes", [2, 3, 5])
    def test_copies_that_replay_fail_independently(self, nodes: int) -> None:
        """So all are down for the power of what one is down; by the model it is a little more."""
        t = 30.0
        lanes = ActiveReplay(4096, nodes, t, 1.0)
        rng = np.random.default_rng(nodes)
        lost, time = np.zeros(4096), np.zeros(4096)
        for _ in range(400):
            gap = rng.exponential(F / nodes, 4096)
            lost += lanes.step(gap, rng.integers(nodes, size=4096))
            time += gap
        share, low, high = interval(lost, time, t)
        exact = (1.0 - math.exp(-t / F)) ** nodes
        assert abs(share - exact) <= high - low  # twice the half width: four standard deviations
        assert exact < expected_downtime("active-replay", Scenario(0.9, F, t), nodes, 1.0)

    def test_a_state_is_lost_when_the_sender_fails_too(self) -> None:
        lanes = OnDemand(1, 3, 2.0, np.array([10.0]))
        for gap, copy in ((1.0, 0), (1.0, 1), (1.0, 2)):
            lanes.step(np.array([gap]), np.array([copy]))
        assert lanes.losses == 1

    def test_nothing_seen_still_has_an_upper_bound(self) -> None:
        share, low, high = interval(np.zeros(100), np.full(100, 1000.0), 5.0)
        assert share == low == 0.0 and high == pytest.approx(3 * 5 / 1e5, rel=0.01)


def promised(found: Emulation) -> bool:
    """Within 1 % of the target uptime or better, and downtime not above what is allowed by more than the interval."""
    return found.error >= -0.01 and found.ratio_low <= 1.0


class TestTheModelsPromise:
    """The paper's range: two to five nines, S from 1.4 to 611, W from 0.01 to 100, F = 100."""

    EFFORT = Effort(precision=0.03, max_failures=6_000_000, seed=11)

    @pytest.mark.parametrize("nines", [2, 3, 4, 5])
    @pytest.mark.parametrize(("s", "w"), [(1.4, 0.01), (611.0, 100.0)])
    def test_one_node(self, nines: int, s: float, w: float) -> None:
        scenario = Scenario(1 - 10.0**-nines, F, w, s)
        for name in ("replay", "replay-lossless", "periodic"):
            solved = solve(scenario, name)
            period = None if math.isnan(float(solved.period)) else float(solved.period)
            found = emulate(scenario, name, 1, float(solved.recovery_factor), period, effort=self.EFFORT)
            assert promised(found)
            assert abs(found.error) < 0.01
            assert found.downtime_ratio == pytest.approx(1.0, abs=0.02)

    @pytest.mark.parametrize("nines", [2, 3, 4, 5])
    @pytest.mark.parametrize("nodes", [2, 3])
    def test_copies(self, nines: int, nodes: int) -> None:
        scenario = Scenario(1 - 10.0**-nines, F, 100.0, 611.0)
        replay = active_replay.of_copies(scenario, Prices(), Limits(), nodes)
        found = emulate(scenario, "active-replay", nodes, float(replay.recovery_factor), effort=self.EFFORT)
        assert promised(found) and abs(found.error) < 0.01
        stored = active_periodic.of_copies(scenario, Prices(), Limits(), nodes)
        found = emulate(
            scenario,
            "active-periodic",
            nodes,
            float(stored.recovery_factor),
            float(stored.period),
            effort=self.EFFORT,
        )
        assert promised(found) and abs(found.error) < 0.01
        assert found.checkpoints > 0

    def test_the_model_of_copies_comes_close_as_recovery_gets_short(self) -> None:
        ratios = []
        for nines in (2, 3, 4, 5):
            scenario = Scenario(1 - 10.0**-nines, F, 100.0)
            factor = float(active_replay.of_copies(scenario, Prices(), Limits(), 2).recovery_factor)
            t = 100.0 / factor
            ratios.append((1.0 - math.exp(-t / F)) ** 2 / 10.0**-nines)
        assert ratios == sorted(ratios) and ratios[0] < 0.95 and 0.99 < ratios[-1] < 1.0

    def test_on_demand_with_few_copies(self) -> None:
        scenario = Scenario(0.999, F, checkpoint=1.4, horizon=3650.0)
        option = advise_scenario(scenario, limits=Limits(max_nodes=5))["on-demand"]
        assert promised(emulate_option(scenario, option, self.EFFORT))

    def test_an_undersized_reservation_is_found_out(self) -> None:
        """Half the bandwidth that the model asks for: the emulator must say so."""
        scenario = Scenario(0.999, F, 100.0, 10.0)
        solved = solve(scenario, "periodic")
        found = emulate(
            scenario, "periodic", 1, float(solved.recovery_factor) / 2, float(solved.period), effort=self.EFFORT
        )
        assert not promised(found) and found.ratio_low > 1.5

    def test_the_same_seed_gives_the_same_answer(self) -> None:
        scenario, effort = Scenario(0.99, F, 100.0, 10.0), Effort(precision=0.1, seed=3)
        option = advise_scenario(scenario)["active-periodic"]
        assert emulate_option(scenario, option, effort) == emulate_option(scenario, option, effort)
        assert emulate_option(scenario, option, effort) != emulate_option(scenario, option, Effort(0.1, seed=4))


class TestQuery:
    def test_counts_are_counts(self) -> None:
        rng = np.random.default_rng(0)
        table, everyone = StateTable.empty(SCHEMA), []
        for epoch in range(1, 6):
            users = rng.integers(0, 1000, 500)
            everyone.append(users)
            table = count_users(table, users, 37, epoch)
        groups, counts = np.unique(np.concatenate(everyone) % 37, return_counts=True)
        got = table.to_table().sort_by("group")
        assert got.equals(pa.table({"group": groups, "count": counts}, schema=got.schema))

    def test_a_checkpoint_restores_the_table(self) -> None:
        table = count_users(StateTable.empty(SCHEMA), np.arange(100) * 7, 31, 4)
        assert restore(take(table), 4) == table

    def test_checkpoints_are_of_the_size_asked_for_and_vary(self) -> None:
        trace = run_query(611.0, 350.0, 1)
        assert trace.moved.mean() == pytest.approx(611.0)
        assert 1.0 < trace.bytes.max() / trace.bytes.min() < 1.5 and trace.restored == len(trace.bytes) - 1
        assert run_query(611.0, 350.0, 1).bytes.tolist() == trace.bytes.tolist()


class TestBadInput:
    def test_parameters_that_cannot_run(self) -> None:
        scenario = Scenario(0.99, F, 10.0, 10.0)
        with pytest.raises(Invalid, match="on-demand needs at least 3 copies, got 2"):
            emulate(scenario, "on-demand", 2, 5.0)
        with pytest.raises(Invalid, match="catches up only with a recovery factor above 1, got 1"):
            emulate(scenario, "periodic", 1, 1.0, 10.0)
        with pytest.raises(Invalid, match="a checkpoint period is needed"):
            emulate(scenario, "periodic", 1, 3.0)
        with pytest.raises(Invalid, match="no model of 'hope'"):
            emulate(scenario, "hope", 1, 3.0)
        with pytest.raises(Infeasible, match="no window was given"):
            emulate(Scenario(0.99, F), "replay", 1, 3.0)
        with pytest.raises(Infeasible, match="no checkpoint size was given"):
            emulate(Scenario(0.99, F), "on-demand", 3, 3.0)

    def test_effort(self) -> None:
        for bad in ({"precision": 0.0}, {"max_failures": 10}, {"seed": -1}):
            with pytest.raises(Invalid, match=next(iter(bad))):
                Effort(**bad)
