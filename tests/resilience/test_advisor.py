"""The advisor: order, reasons, and how the answer moves with a parameter."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import Invalid
from holdfast.resilience import STRATEGIES, Limits, Prices, Scenario, advise_scenario, solve, sweep

DAY = 86400.0
F = 30 * DAY
FIVE_NINES = Scenario(0.99999, F, DAY, DAY)


class TestAdvice:
    def test_one_row_a_strategy_cheapest_first(self) -> None:
        advice = advise_scenario(FIVE_NINES, limits=Limits(max_recovery_factor=3.0))
        assert sorted(one.strategy for one in advice.options) == sorted(STRATEGIES)
        assert advice.best == advice.options[0].strategy == "active-replay"
        costs = [one.total_factor for one in advice.options if one.feasible]
        assert costs == sorted(costs) and len(costs) == 3
        assert not any(one.feasible for one in advice.options[3:])

    def test_rows_repeat_the_models(self) -> None:
        advice = advise_scenario(FIVE_NINES)
        for name in STRATEGIES:
            row, found = advice[name], solve(FIVE_NINES, name)
            assert row.cost_factor == float(found.network) and row.recovery_factor == float(found.recovery_factor)
            assert row.period_s is None or row.period_s == float(found.period)

    def test_best_is_by_price(self) -> None:
        """Copies are cheap by network alone; where memory is dear a single node wins."""
        only_checkpoints = Scenario(0.9, F, checkpoint=DAY / 100)
        assert advise_scenario(only_checkpoints, Prices(memory=10.0, cpu=10.0)).best == "periodic"
        assert advise_scenario(Scenario(0.999, F, checkpoint=DAY)).best == "active-periodic"

    @pytest.mark.parametrize(
        ("scenario", "limits", "strategy", "why"),
        [
            (FIVE_NINES, Limits(max_recovery_factor=3.0), "replay", "needs at least 3333 times the input rate"),
            (FIVE_NINES, Limits(max_nodes=2), "on-demand", "needs at least 3 copies, at most 2 allowed"),
            (FIVE_NINES, Limits(max_nodes=1), "active-replay", "needs at least 2 copies, at most 1 allowed"),
            (FIVE_NINES, Limits(lossless=True), "active-replay", "may lose output"),
            (FIVE_NINES, Limits(10, 1.05), "active-periodic", "ceiling of 1.05, even with 10 copies"),
            (Scenario(0.9, F, checkpoint=DAY), Limits(), "replay-lossless", "none was given"),
            (Scenario(0.9, F, DAY), Limits(), "periodic", "no size was given"),
            (
                FIVE_NINES,
                Limits(max_recovery_factor=3.0, period=3600.0),
                "active-periodic",
                "a checkpoint takes 8h at 3 times the input rate, too long to keep up with one every 1h",
            ),
        ],
    )
    def test_why_not(self, scenario: Scenario, limits: Limits, strategy: str, why: str) -> None:
        row = advise_scenario(scenario, limits=limits)[strategy]
        assert not row.feasible and row.cost_factor is None and row.nodes is None
        assert why in row.why

    def test_none_feasible(self) -> None:
        advice = advise_scenario(FIVE_NINES, limits=Limits(max_recovery_factor=1.0, lossless=True))
        assert advice.best is None and len(advice.options) == len(STRATEGIES)

    def test_arrays_are_refused(self) -> None:
        with pytest.raises(Invalid, match=r"one scenario, got an array of shape \(2,\)"):
            advise_scenario(Scenario(np.array([0.9, 0.99]), F, DAY, DAY))

    def test_it_reads_as_a_table(self) -> None:
        text = str(advise_scenario(FIVE_NINES, limits=Limits(max_recovery_factor=3.0)))
        assert text.splitlines()[1].startswith("active-replay") and len(text.splitlines()) == 7

    @settings(deadline=None, derandomize=True, max_examples=30)
    @given(st.floats(0.3, 6), st.floats(-3, 3), st.floats(-3, 3), st.floats(1.01, 1000), st.integers(1, 12))
    def test_every_reason_is_one_line_and_every_number_finite(
        self, nines: float, w: float, s: float, top: float, nodes: int
    ) -> None:
        advice = advise_scenario(Scenario(1 - 10**-nines, F, DAY * 10**w, DAY * 10**s), limits=Limits(nodes, top))
        for row in advice.options:
            assert row.why and "\n" not in row.why and "nan" not in row.why and "inf" not in row.why
            assert not row.feasible or all(
                math.isfinite(value) for value in (row.cost_factor, row.recovery_factor, row.total_factor) if value
            )


class TestSweep:
    def test_crossovers_are_where_the_best_changes(self) -> None:
        """Figure 15 and 16 on other numbers: replay for large states, checkpoints for long windows."""
        found = sweep(FIVE_NINES, "window", (60.0, 1000 * DAY), limits=Limits(lossless=True))
        assert [(one.before, one.after) for one in found.crossovers] == [("replay-lossless", "active-periodic")]
        at = found.crossovers[0].at
        for factor, best in ((1 - 1e-6, "replay-lossless"), (1 + 1e-6, "active-periodic")):
            varied = Scenario(0.99999, F, at * factor, DAY)
            assert advise_scenario(varied, limits=Limits(lossless=True)).best == best

    def test_changes_between_two_points_are_all_found(self) -> None:
        limits = Limits(max_recovery_factor=200.0)
        coarse = sweep(FIVE_NINES, "sla", (0.9, 0.9999999), points=2, limits=limits)
        fine = sweep(FIVE_NINES, "sla", (0.9, 0.9999999), points=400, limits=limits)
        assert [one.after for one in coarse.crossovers] == [one.after for one in fine.crossovers]
        assert [one.at for one in coarse.crossovers] == pytest.approx([one.at for one in fine.crossovers])
        assert fine.crossovers

    def test_the_curves_are_those_of_the_models(self) -> None:
        found = sweep(FIVE_NINES, "sla", (0.9, 0.99999), points=5)
        assert found.values[0] == 0.9 and found.values[-1] == 0.99999
        for name in STRATEGIES:
            expected = solve(Scenario(found.values, F, DAY, DAY), name)
            np.testing.assert_array_equal(found.costs[name], expected.total)
            np.testing.assert_array_equal(found.recovery_factors[name], expected.recovery_factor)

    def test_nodes_as_in_figure_21(self) -> None:
        found = sweep(FIVE_NINES, "nodes", (2, 10))
        assert list(found.values) == list(range(2, 11))
        r, cf = found.recovery_factors["active-periodic"], found.costs["active-periodic"]
        assert np.all(np.diff(r) < 0) and np.all(np.diff(cf) > 0)
        assert r[3] == pytest.approx(2.48, rel=0.01) and cf[3] == pytest.approx(2.66, rel=0.01)
        assert math.isnan(found.costs["on-demand"][0])  # two copies are too few

    def test_a_ceiling_as_in_figure_22(self) -> None:
        found = sweep(Scenario(0.99999, F, checkpoint=DAY), "max-recovery-factor", (1.05, 20.0), points=30)
        costs = found.costs["active-periodic"]
        known = costs[np.isfinite(costs)]
        assert np.all(np.diff(known) <= 1e-9)
        assert found.best[0] is None and found.best[-1] == "active-periodic"

    def test_the_crossover_of_figure_22(self) -> None:
        """By uptime alone (a horizon too short to lose the state) on-demand is cheaper below; about 2 in the paper."""
        scenario = Scenario(0.99999, F, checkpoint=DAY, horizon=1.0)
        found = sweep(scenario, "max-recovery-factor", (1.05, 20.0), points=20)
        at, before, after = found.crossovers[-1].at, found.crossovers[-1].before, found.crossovers[-1].after
        assert (before, after) == ("on-demand", "active-periodic") and at == pytest.approx(1.81, abs=0.01)

    @pytest.mark.parametrize(
        ("parameter", "ends", "message"),
        [
            ("colour", (1, 2), "cannot sweep 'colour'"),
            ("sla", (0.9, 1.0), "between 0 and 1"),
            ("sla", (0.99, 0.9), "first end must be below"),
            ("nodes", (2.5, 4), "whole numbers"),
            ("nodes", (1, 4), "from 2 to 100"),
            ("window", (0, 10), "more than 0"),
            ("max-recovery-factor", (0.5, 2), "at least 1"),
        ],
    )
    def test_bad_ranges(self, parameter: str, ends: tuple[float, float], message: str) -> None:
        with pytest.raises(Invalid, match=message):
            sweep(FIVE_NINES, parameter, ends)
