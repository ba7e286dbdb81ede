"""Storage, CPU and memory, prices, sharding, pipelines and caching (paper 003, section 7)."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from holdfast.errors import Infeasible, Invalid
from holdfast.resilience import STRATEGIES, Caching, Limits, Prices, Scenario, Stage, solve, split_budget

DAY = 86400.0
F, K, S, W, SLA = 30 * DAY, 3, 2 * DAY, 5 * DAY, 0.99
HERE = Scenario(SLA, F, W, S)


class TestResources:
    """The factors of section 7.1, written out at the parameters found."""

    def test_replay(self) -> None:
        found, t = solve(HERE, "replay"), F * (1 - SLA)
        r = float(found.recovery_factor)
        assert float(found.storage) == pytest.approx((t * r - t + K * F) / (K * F))
        assert float(found.cpu) == pytest.approx((t * r - t + F) / F)

    def test_active_replay(self) -> None:
        found = solve(HERE, "active-replay")
        n, r = int(found.nodes), float(found.recovery_factor)
        t = W / r
        assert float(found.storage) == pytest.approx((n * (t * r - t) + K * F) / (K * F))
        assert float(found.cpu) == pytest.approx(n * (t * r - t + F) / F)
        assert float(found.memory) == n

    def test_periodic(self) -> None:
        found = solve(HERE, "periodic")
        c = float(found.period)
        assert float(found.storage) == pytest.approx((K * F + S + c / 2 + K * S * F / c) / (K * F))
        assert float(found.cpu) == float(found.recovery_factor) == float(found.cpu_recovery_factor)

    def test_active_periodic(self) -> None:
        e = DAY
        found = solve(Scenario(SLA, F, W, S, checkpoint_cpu=e), "active-periodic", Prices(cpu=1.0))
        n, c = int(found.nodes), float(found.period)
        assert float(found.storage) == pytest.approx((n * (S + c / 2) + K * F + K * S * F / c) / (K * F))
        assert float(found.cpu) == pytest.approx((n * (F + e + c / 2) + e * F / c) / F)
        assert float(found.cpu_recovery_factor) < float(found.recovery_factor)

    def test_processors_may_vary_over_an_array(self) -> None:
        cpu = np.array([DAY, 2 * DAY, 3 * DAY])
        found = solve(Scenario(SLA, F, W, S, checkpoint_cpu=cpu), "periodic", Prices(cpu=1.0))
        assert found.total.shape == (3,) and np.all(np.diff(found.total) > 0)

    def test_on_demand(self) -> None:
        found = solve(Scenario(SLA, F, W, S, checkpoint_cpu=3 * S), "on-demand")
        assert float(found.storage) == 1.0
        assert float(found.cpu) == pytest.approx(int(found.nodes) * float(found.cpu_recovery_factor))
        assert float(found.cpu_recovery_factor) - 1 == pytest.approx(3 * (float(found.recovery_factor) - 1))

    @pytest.mark.parametrize("name", STRATEGIES)
    def test_the_total_weighs_the_parts(self, name: str) -> None:
        prices = Prices(storage=2.0, cpu=0.5, memory=0.25)
        found = solve(HERE, name, prices)
        parts = found.network + 2.0 * found.storage + 0.5 * found.cpu + 0.25 * found.memory
        assert float(found.total) == pytest.approx(float(parts) / 3.75)
        assert float(solve(HERE, name).total) == float(solve(HERE, name).network)

    def test_dear_memory_changes_the_choice_of_copies(self) -> None:
        """Nine copies are fine while only the network is paid for; with memory at a price there are fewer."""
        assert int(solve(HERE, "on-demand", Prices(memory=50.0)).nodes) < int(solve(HERE, "on-demand").nodes)


class TestSharding:
    def test_failures_come_as_often_as_there_are_shards(self) -> None:
        one = solve(Scenario(SLA, F / 8, W, S), "periodic", limits=Limits(period=DAY))
        eight = solve(Scenario(SLA, F, W, S, shards=8), "periodic", limits=Limits(period=DAY))
        assert float(one.recovery_factor) == pytest.approx(float(eight.recovery_factor))

    def test_costs_go_by_the_failures_of_each_node(self) -> None:
        found = solve(Scenario(SLA, F, W, S, shards=8), "replay-lossless")
        assert float(found.network) == pytest.approx(1 + 2 * W / (6 * F))  # the same window is read again, by shares
        lossy, t = solve(Scenario(SLA, F, W, S, shards=8), "replay"), F / 8 * (1 - SLA)
        assert float(lossy.recovery_factor) == pytest.approx(W / t)
        assert float(lossy.network) == pytest.approx((2 * (W - t) + 6 * F) / (6 * F))

    @pytest.mark.parametrize("name", STRATEGIES)
    def test_more_shards_never_cost_less_for_the_same_input(self, name: str) -> None:
        shards = np.array([1.0, 2.0, 8.0, 64.0])
        found = solve(Scenario(SLA, F, W, S, shards=shards), name)
        assert np.all(np.diff(found.total) >= -1e-9)


class TestCaching:
    def test_checkpoints_and_memory_shrink(self) -> None:
        cached = Scenario(SLA, F, W, S, caching=Caching(0.9))
        small = solve(Scenario(SLA, F, W, S * 0.1), "active-periodic")
        found = solve(cached, "active-periodic")
        assert float(found.recovery_factor) == pytest.approx(float(small.recovery_factor))
        assert float(found.network) == pytest.approx(float(small.network))
        assert float(found.memory) == pytest.approx(0.1 * float(small.memory))

    def test_traffic_to_a_store_costs_network_and_storage(self) -> None:
        still = solve(Scenario(SLA, F, W, S, caching=Caching(0.9)), "active-periodic")
        moving = solve(Scenario(SLA, F, W, S, caching=Caching(0.9, out=0.2, back=0.1)), "active-periodic")
        assert float(moving.network - still.network) == pytest.approx((4 * 0.2 + 2 * 0.1) / 6)
        assert float(moving.storage - still.storage) == pytest.approx(0.2 + 0.1 / 3)

    def test_local_disks_save_network_but_successors_fetch_from_other_copies(self) -> None:
        still = solve(Scenario(SLA, F, W, S, caching=Caching(0.9)), "active-periodic")
        local = solve(Scenario(SLA, F, W, S, caching=Caching(0.9, 0.2, 0.1, local=True)), "active-periodic")
        assert float(local.network - still.network) == pytest.approx(2 * 2 * 0.9 * S / F / 6)
        assert not solve(Scenario(SLA, F, W, S, caching=Caching(0.9, local=True)), "periodic").feasible

    def test_shares_are_checked(self) -> None:
        with pytest.raises(Invalid, match="inactive share of the state must be at least 0 and below 1, got 1"):
            Caching(1.0)
        with pytest.raises(Invalid, match="traffic of inactive state"):
            Caching(0.5, out=-1.0)


def least(scenario: Scenario, budget: float, limits: Limits) -> float:
    found = [solve(scenario.with_budget(budget), name, limits=limits) for name in STRATEGIES]
    return min(float(one.total) if one.feasible else np.inf for one in found)


class TestPipeline:
    STAGES = (
        Stage("parse", Scenario(0.5, F, 60.0, 1.0), 4.0),
        Stage("join", Scenario(0.5, F, checkpoint=S / 20), 2.0),
        Stage("sum", Scenario(0.5, F, W, DAY / 4), 1.0),
    )
    LIMITS = Limits(max_recovery_factor=6.0, max_nodes=3)

    def test_the_split_is_the_cheapest_of_a_grid(self) -> None:
        found = split_budget(self.STAGES, 0.999, limits=self.LIMITS)
        assert sum(stage.share for stage in found.stages) == pytest.approx(1.0)
        weights = [stage.rate for stage in self.STAGES]
        parts = 40
        costs = np.array(
            [[least(one.scenario, i / parts * 0.001, self.LIMITS) for i in range(1, parts)] for one in self.STAGES]
        )
        best = min(
            float(np.dot([row[size - 1] for row, size in zip(costs, np.diff([0, *cut, parts]), strict=True)], weights))
            for cut in itertools.combinations(range(1, parts), 2)
        ) / sum(weights)
        assert found.cost_factor <= best * (1 + 1e-6)
        assert found.cost_factor == pytest.approx(best, rel=0.02)
        assert found.even_cost_factor is None or found.cost_factor <= found.even_cost_factor

    def test_each_stage_is_advised_for_its_own_share(self) -> None:
        found = split_budget(self.STAGES, 0.999, limits=self.LIMITS)
        assert [stage.name for stage in found.stages] == ["parse", "join", "sum"]
        for stage in found.stages:
            assert 1 - stage.sla == pytest.approx(stage.share * 0.001, rel=1e-6)
            assert stage.advice.best is not None

    def test_equal_stages_get_equal_shares(self) -> None:
        stage = Scenario(0.5, F, checkpoint=DAY / 10)
        found = split_budget([Stage("a", stage), Stage("b", stage)], 0.9999, limits=Limits(max_nodes=1))
        assert [one.share for one in found.stages] == pytest.approx([0.5, 0.5], abs=1e-4)

    def test_a_sharded_stage_and_its_combining_node(self) -> None:
        shards = Stage("shards", Scenario(0.5, F, W, S / 10, shards=16))
        combine = Stage("combine", Scenario(0.5, F, 60.0, 1.0), 0.1)
        found = split_budget([shards, combine], 0.999, limits=Limits(max_recovery_factor=20.0))
        assert found.stages[0].share > found.stages[1].share

    def test_one_stage_gets_all(self) -> None:
        found = split_budget(self.STAGES[:1], 0.999)
        assert found.stages[0].share == 1.0

    def test_what_cannot_be(self) -> None:
        hard = Stage("hard", Scenario(0.5, F, checkpoint=100 * F))
        with pytest.raises(Infeasible, match="stage hard: no strategy is feasible"):
            split_budget([*self.STAGES, hard], 0.9999, limits=Limits(max_recovery_factor=1.5))
        with pytest.raises(Invalid, match="at least one stage"):
            split_budget([], 0.9)
        with pytest.raises(Invalid, match="sla must be"):
            split_budget(self.STAGES, 1.0)
        with pytest.raises(Invalid, match="stage x: rate"):
            Stage("x", HERE, 0.0)
