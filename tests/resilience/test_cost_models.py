"""The six models: the paper's numbers, every defining equation at its solution, and brute force beside the solvers."""

from __future__ import annotations

import math

import naive_costs as naive
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import Invalid
from holdfast.resilience import Limits, Prices, Scenario, active_periodic, active_replay, on_demand, solve
from holdfast.resilience.strategies import STRATEGIES

DAY = 86400.0
F = 30 * DAY
reproducible = settings(deadline=None, derandomize=True, max_examples=30)

slas = st.floats(0.3, 6.0).map(lambda nines: 1.0 - 10.0**-nines)
times = st.floats(-3.0, 3.0).map(lambda exponent: DAY * 10.0**exponent)


def scenario(**changes: float) -> Scenario:
    return Scenario(**{"sla": 0.9, "mtbf": F, "window": DAY, "checkpoint": DAY, **changes})


class TestPaper:
    """The checks of the specification, to 1 %; where the paper's text reads otherwise, our own value."""

    def test_single_periodic_with_a_huge_state(self) -> None:
        found = solve(scenario(checkpoint=1000 * DAY), "periodic")
        assert found.recovery_factor == pytest.approx(417, rel=0.01)
        assert found.network == pytest.approx(78.5, rel=0.001)  # "nearly 100x" in figure 15

    def test_single_periodic_with_ten_days_of_state(self) -> None:
        assert solve(scenario(checkpoint=10 * DAY), "periodic").recovery_factor == pytest.approx(12.8, rel=0.01)

    def test_replay_of_a_huge_window(self) -> None:
        found = solve(scenario(window=1000 * DAY), "replay")
        assert found.recovery_factor == pytest.approx(333, rel=0.01)
        assert found.network == pytest.approx(12.08, rel=0.01)

    def test_a_huge_window_with_a_hundredth_of_it_as_state(self) -> None:
        """The right end of figure 16: 3.4x and 13x."""
        found = solve(scenario(window=1000 * DAY, checkpoint=10 * DAY), "periodic")
        assert found.network == pytest.approx(3.28, rel=0.001)
        assert found.recovery_factor == pytest.approx(12.79, rel=0.001)

    def test_five_copies_for_five_nines(self) -> None:
        found = active_periodic.of_copies(scenario(sla=0.99999), Prices(), Limits(), 5)
        assert found.recovery_factor == pytest.approx(2.48, rel=0.01)
        assert found.network == pytest.approx(2.66, rel=0.01)

    def test_five_nines_on_one_node(self) -> None:
        """Figures 17 and 18; the paper reads over 3000 times the cost, almost 20,000, and over 2000 for replay."""
        found = solve(scenario(sla=0.99999), "periodic")
        assert found.network == pytest.approx(4860, rel=0.001)
        assert found.recovery_factor == pytest.approx(29_154, rel=0.001)
        assert solve(scenario(sla=0.99999), "replay").recovery_factor == pytest.approx(3333, rel=0.001)

    def test_what_the_paper_reads_at_five_nines_is_ours_at_a_little_less(self) -> None:
        found = solve(scenario(sla=0.999985), "periodic")
        assert found.network == pytest.approx(3240, rel=0.001)
        assert found.recovery_factor == pytest.approx(19_437, rel=0.001)
        assert solve(scenario(sla=0.999985), "replay").recovery_factor == pytest.approx(2222, rel=0.001)

    def test_two_copies_are_cheaper_than_one_at_one_nine(self) -> None:
        one = solve(scenario(), "periodic")
        two = active_periodic.of_copies(scenario(), Prices(), Limits(), 2)
        assert float(two.network) < float(one.network)

    def test_the_cost_of_two_copies_does_not_depend_on_the_sla(self) -> None:
        found = active_periodic.of_copies(scenario(sla=np.array([0.5, 0.9, 0.99999])), Prices(), Limits(), 2)
        assert np.ptp(found.network) < 1e-12
        assert np.all(np.diff(found.recovery_factor) > 0)

    def test_periodic_is_mostly_cheaper_than_on_demand(self) -> None:
        """Figure 22: at five nines the crossover lies at a ceiling of about 2; above it periodic is cheaper."""
        hard = scenario(sla=0.99999)
        for ceiling in (2.5, 3.0, 5.0, 10.0, 100.0):
            limits = Limits(max_recovery_factor=ceiling)
            assert (
                solve(hard, "active-periodic", limits=limits).network < solve(hard, "on-demand", limits=limits).network
            )

    def test_replay_wins_for_large_state_and_checkpoints_for_long_windows(self) -> None:
        big = scenario(checkpoint=1000 * DAY)
        assert solve(big, "replay").network < solve(big, "periodic").network
        long = scenario(window=1000 * DAY, checkpoint=10 * DAY)
        assert solve(long, "periodic").network < solve(long, "replay").network

    def test_costs_and_reservations_cross_at_about_five_copies(self) -> None:
        """Figure 21."""
        found = [active_periodic.of_copies(scenario(sla=0.99999), Prices(), Limits(), n) for n in range(2, 11)]
        gap = np.array([float(one.recovery_factor - one.network) for one in found])
        assert gap[2] > 0 > gap[3] and np.all(np.diff(gap) < 0)


class TestDefiningEquations:
    """The left side, as the paper prints it, evaluated at the solution gives the right side."""

    @reproducible
    @given(slas, times)
    def test_replay(self, sla: float, w: float) -> None:
        lossy = solve(scenario(sla=sla, window=w), "replay")
        assert w / float(lossy.recovery_factor) == pytest.approx(F * (1 - sla))
        u = 1.0 / float(solve(scenario(sla=sla, window=w), "replay-lossless").recovery_factor)
        series = sum(w * u**i for i in range(1, 100_000)) if u < 0.999 else w * u / (1 - u)
        assert series == pytest.approx(F * (1 - sla), rel=1e-6)

    @reproducible
    @given(slas, times)
    def test_periodic(self, sla: float, s: float) -> None:
        found = solve(scenario(sla=sla, checkpoint=s), "periodic")
        left = naive.periodic_downtime(1.0 / float(found.recovery_factor), s, float(found.period), F)
        assert left == pytest.approx((1 - sla) * F, rel=1e-9)

    @reproducible
    @given(slas, times, st.integers(2, 10))
    def test_active_periodic(self, sla: float, s: float, n: int) -> None:
        found = active_periodic.of_copies(scenario(sla=sla, checkpoint=s), Prices(), Limits(), n)
        left = naive.active_periodic_downtime(1.0 / float(found.recovery_factor), s, float(found.period), F, n - 1)
        assert left == pytest.approx((1 - sla) * F / n, rel=1e-6)

    @reproducible
    @given(slas, times, st.integers(3, 10))
    def test_on_demand(self, sla: float, s: float, n: int) -> None:
        given_ = scenario(sla=sla, checkpoint=s)
        u = 1.0 / float(on_demand.of_copies(given_, Prices(), Limits(), n).recovery_factor)
        uptime = naive.charged(naive.on_demand_recovery(u, s), F, n - 2) / ((1 - sla) * F / n)
        lost = naive.durability_lost(u, s, F, n - 2, given_.horizon) / (1 - given_.durability)
        assert max(uptime, lost) == pytest.approx(1.0, rel=1e-5)  # one binds, the other holds

    @reproducible
    @given(slas, times, st.integers(2, 10))
    def test_active_replay(self, sla: float, w: float, n: int) -> None:
        r = float(active_replay.of_copies(scenario(sla=sla, window=w), Prices(), Limits(), n).recovery_factor)
        left = naive.charged(w / r, F, n - 1)
        if r > 1.0:
            assert left == pytest.approx((1 - sla) * F / n, rel=1e-6)
        else:
            assert left <= (1 - sla) * F / n * (1 + 1e-9)


class TestAgainstBruteForce:
    @settings(reproducible, max_examples=15)
    @given(slas, times, st.integers(1, 6))
    def test_period_of_one_node(self, sla: float, s: float, k: int) -> None:
        found = solve(scenario(sla=sla, checkpoint=s, storage_copies=k), "periodic")
        best = naive.least(
            lambda c: naive.periodic_cost(s, c, F, k, sla), 1e-3 * math.sqrt(s * F), 1e3 * math.sqrt(s * F)
        )
        assert float(found.network) == pytest.approx(naive.periodic_cost(s, best, F, k, sla), rel=1e-7)

    @settings(reproducible, max_examples=15)
    @given(times, st.integers(1, 6), st.integers(2, 8))
    def test_period_of_copies(self, s: float, k: int, n: int) -> None:
        found = active_periodic.of_copies(scenario(checkpoint=s, storage_copies=k), Prices(), Limits(), n)
        best = naive.least(
            lambda c: naive.active_periodic_cost(s, c, F, k, n), 1e-3 * math.sqrt(s * F), 1e3 * math.sqrt(s * F)
        )
        assert float(found.network) == pytest.approx(naive.active_periodic_cost(s, best, F, k, n), rel=1e-9)

    def test_cost_of_a_priced_period(self) -> None:
        """With every resource priced and processors apart, no period on a fine grid is cheaper than the one found."""
        prices = Prices(storage=2.0, cpu=0.7, memory=0.3)
        given_ = scenario(sla=0.99, checkpoint_cpu=5 * DAY)
        for name in ("periodic", "active-periodic"):
            found = solve(given_, name, prices)
            grid = float(found.period) * np.geomspace(0.05, 20, 401)
            totals = [float(solve(given_, name, prices, Limits(period=float(c), max_nodes=2)).total) for c in grid]
            assert float(found.total) <= min(totals) * (1 + 1e-12)
            assert float(found.total) == pytest.approx(min(totals), rel=1e-3)

    @settings(reproducible, max_examples=20)
    @given(slas, times, st.floats(1.05, 50.0))
    def test_a_ceiling_on_the_reservation(self, sla: float, s: float, ceiling: float) -> None:
        """Within the ceiling, and no period of a grid that keeps to it is cheaper."""
        given_ = scenario(sla=sla, checkpoint=s)
        free = {"periodic": Limits(), "active-periodic": Limits(max_nodes=4)}
        for name, limits in free.items():
            found = solve(given_, name, limits=Limits(limits.max_nodes, ceiling))
            if found.feasible:
                assert float(found.recovery_factor) <= ceiling * (1 + 1e-9)
            middle = float(found.period if found.feasible else solve(given_, name).period)
            for c in middle * np.geomspace(0.01, 100, 41):
                other = solve(given_, name, limits=Limits(limits.max_nodes, ceiling, period=float(c)))
                if other.feasible:
                    assert found.feasible and float(found.total) <= float(other.total) * (1 + 1e-9)


class TestEveryStrategy:
    """One contract for the whole registry."""

    @pytest.mark.parametrize("name", STRATEGIES)
    @reproducible
    @given(st.tuples(slas, slas), times, times, st.sampled_from([math.inf, 2.0, 20.0]))
    def test_a_harder_sla_never_costs_less(
        self, name: str, pair: tuple[float, float], w: float, s: float, top: float
    ) -> None:
        sla = np.sort(pair)
        found = solve(scenario(sla=sla, window=w, checkpoint=s), name, limits=Limits(max_recovery_factor=top))
        easy, hard = np.where(found.feasible, found.total, np.inf)
        assert hard >= easy * (1 - 1e-9)
        if top == math.inf and name not in ("active-replay", "on-demand"):  # those may turn to more copies
            assert found.recovery_factor[1] >= found.recovery_factor[0] * (1 - 1e-9)

    @pytest.mark.parametrize("name", STRATEGIES)
    def test_arrays_answer_as_single_scenarios_do(self, name: str) -> None:
        rng = np.random.default_rng(7)
        sla, w, s = (
            1 - 10 ** -rng.uniform(0.3, 6, 40),
            DAY * 10 ** rng.uniform(-3, 3, 40),
            DAY * 10 ** rng.uniform(-3, 3, 40),
        )
        limits = Limits(max_recovery_factor=4.0)
        together = solve(Scenario(sla=sla, mtbf=F, window=w, checkpoint=s), name, limits=limits)
        for i in range(40):
            alone = solve(Scenario(sla=sla[i], mtbf=F, window=w[i], checkpoint=s[i]), name, limits=limits)
            assert bool(alone.feasible) == together.feasible[i]
            assert float(alone.total) == pytest.approx(together.total[i], rel=1e-9, nan_ok=True)

    @pytest.mark.parametrize(
        "field", ["sla", "mtbf", "window", "checkpoint", "storage_copies", "shards", "checkpoint_cpu"]
    )
    @pytest.mark.parametrize("name", STRATEGIES)
    def test_any_one_number_may_be_an_array(self, name: str, field: str) -> None:
        values = np.array([0.9, 0.99, 0.9999]) if field == "sla" else np.array([1.0, 2.0, 7.0])
        values = values * (DAY if field in ("mtbf", "window", "checkpoint", "checkpoint_cpu") else 1.0)
        plain = {"sla": 0.99, "mtbf": F, "window": DAY, "checkpoint": DAY, "checkpoint_cpu": 2 * DAY}
        prices = Prices(storage=1.0, cpu=2.0, memory=0.5)
        for limits in (Limits(), Limits(max_recovery_factor=5.0), Limits(period=DAY)):
            together = solve(Scenario(**{**plain, field: values}), name, prices, limits)
            for i, value in enumerate(values):
                alone = solve(Scenario(**{**plain, field: value}), name, prices, limits)
                assert together.total[i] == pytest.approx(float(alone.total), rel=1e-9, nan_ok=True)

    @pytest.mark.parametrize("name", STRATEGIES)
    def test_more_copies_allowed_and_a_higher_ceiling_are_never_worse(self, name: str) -> None:
        rng = np.random.default_rng(11)
        given_ = Scenario(
            sla=1 - 10 ** -rng.uniform(0.3, 6, 200),
            mtbf=F,
            window=DAY * 10 ** rng.uniform(-3, 3, 200),
            checkpoint=DAY * 10 ** rng.uniform(-3, 3, 200),
        )
        before = np.full(200, np.inf)
        for limits in (Limits(3, 1.5), Limits(6, 1.5), Limits(6, 8.0), Limits(10, math.inf)):
            found = solve(given_, name, limits=limits)
            now = np.where(found.feasible, found.total, np.inf)
            assert np.all(now <= before * (1 + 1e-9))
            before = now

    @pytest.mark.parametrize("name", STRATEGIES)
    def test_time_has_no_unit(self, name: str) -> None:
        """Days or seconds: factors stay, times scale (the durability horizon with them)."""
        one = solve(Scenario(0.999, 30.0, 2.0, 3.0, horizon=3650.0), name)
        two = solve(Scenario(0.999, 30.0 * DAY, 2.0 * DAY, 3.0 * DAY, horizon=3650.0 * DAY), name)
        assert float(one.total) == pytest.approx(float(two.total), rel=1e-12)
        assert float(one.period) * DAY == pytest.approx(float(two.period), rel=1e-9, nan_ok=True)

    @pytest.mark.parametrize("name", STRATEGIES)
    def test_what_is_not_known_is_not_feasible(self, name: str) -> None:
        found = solve(Scenario(0.999, F), name)
        assert not found.feasible and math.isnan(float(found.total)) and math.isinf(float(found.needed_factor))


class TestBadInput:
    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"sla": 1.0}, "sla must be between 0 and 1"),
            ({"sla": 0.0}, "sla must be between 0 and 1"),
            ({"sla": np.array([0.9, 1.5])}, "got 1.5"),
            ({"sla": math.nan}, "got nan"),
            ({"mtbf": 0.0}, "mtbf must be more than 0"),
            ({"window": -1.0}, "window must be more than 0, got -1"),
            ({"checkpoint": 0.0}, "checkpoint must be more than 0, got 0"),
            ({"storage_copies": 0}, "storage_copies must be at least 1, got 0"),
            ({"shards": 0.5}, "shards must be at least 1, got 0.5"),
            ({"durability": 1.0}, "durability must be between 0 and 1"),
        ],
    )
    def test_a_scenario(self, changes: dict[str, float], message: str) -> None:
        with pytest.raises(Invalid, match=message):
            scenario(**changes)

    def test_limits_and_prices(self) -> None:
        with pytest.raises(Invalid, match="max_nodes must be from 1 to 100, got 0"):
            Limits(max_nodes=0)
        with pytest.raises(Invalid, match="max_recovery_factor"):
            Limits(max_recovery_factor=math.nan)
        with pytest.raises(Invalid, match="price of cpu"):
            Prices(cpu=-1)
        with pytest.raises(Invalid, match="no strategy 'hope'"):
            solve(scenario(), "hope")
