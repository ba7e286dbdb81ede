"""``holdfast emulate``: the uptime of each strategy of the advisor when its model is played against random failures."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from holdfast.cli import scenario as given
from holdfast.cli.output import Format, FormatOption, answer, completing
from holdfast.cli.output import progress as messages
from holdfast.errors import Infeasible, Invalid, instead
from holdfast.resilience import STRATEGIES, Advice, Scenario, advise_scenario
from holdfast.resilience.emulator import Effort, Emulation, emulate_option


def emulate(
    window: given.WindowOption = None,
    checkpoint: given.CheckpointOption = None,
    rate: given.RateOption = None,
    sla: given.SlaOption = None,
    mtbf: given.MtbfOption = None,
    storage_copies: given.StorageCopiesOption = 3,
    max_nodes: given.MaxNodesOption = 10,
    max_recovery_factor: given.MaxRecoveryFactorOption = None,
    period: given.PeriodOption = None,
    shards: given.ShardsOption = 1,
    progress: given.ProgressOption = None,
    row_bytes: given.RowBytesOption = None,
    strategy: Annotated[
        list[str] | None,
        typer.Option(
            help=f"only this one, may be repeated: {', '.join(STRATEGIES)}",
            autocompletion=completing(lambda: STRATEGIES),
        ),
    ] = None,
    precision: Annotated[
        float, typer.Option(help="stop when the interval is within this share of the downtime")
    ] = 0.01,
    max_failures: Annotated[int, typer.Option(help="failures to emulate at most, for each strategy")] = 20_000_000,
    seed: Annotated[int, typer.Option(help="the same seed gives the same answer")] = 0,
    form: FormatOption = Format.text,
) -> None:
    """Plays each strategy's model against random failures, and measures its uptime.

    Virtual time, failures at random, also during recovery. No process dies and nothing is moved; the spread of
    checkpoint sizes is measured on a grouped count (docs/advisor.md).

    Example: holdfast emulate --window 1h --checkpoint 10m --sla 0.9999 --mtbf 30d
    """
    wanted = strategy or list(STRATEGIES)
    if unknown := [name for name in wanted if name not in STRATEGIES]:
        raise Invalid(f"--strategy: no strategy {unknown[0]!r}; {instead(unknown[0], STRATEGIES, 'there are')}")
    effort = _effort(precision, max_failures, seed)
    described = given.describe(
        window=window,
        checkpoint=checkpoint,
        rate_=rate,
        sla=sla,
        mtbf=mtbf,
        storage_copies=storage_copies,
        shards=shards,
        checkpoint_cpu=None,
        durability=0.99999,
        horizon="10y",
        caching=None,
        progress=progress,
        row_bytes=row_bytes,
    )
    limits = given.limits_of(max_nodes, max_recovery_factor, period, lossless=False)
    advice = advise_scenario(described.scenario, limits=limits)
    skipped = [one for one in advice.options if one.strategy in wanted and not one.feasible]
    if len(skipped) == len(set(wanted)):
        raise Infeasible(f"nothing to emulate: {'; '.join(f'{one.strategy} {one.why}' for one in skipped)}")
    found = _emulated(described.scenario, advice, wanted, effort)
    content: dict[str, Any] = {
        "target": 1.0 - float(described.scenario.budget),
        "seed": seed,
        "emulations": [asdict(one) | {"error": one.error} for one in found],
        "skipped": [{"strategy": one.strategy, "why": one.why} for one in skipped],
        "derived": described.derived,
        "assumed": described.assumed,
    }

    def read(console: Console) -> None:
        _read(console, found)
        for one in skipped:
            console.print(f"{one.strategy}: {one.why}", highlight=False)
        for name, text in described.assumed.items():
            console.print(f"assumed  {name}: {text}", highlight=False)

    answer(content, form, read)


def _effort(precision: float, max_failures: int, seed: int) -> Effort:
    try:
        return Effort(precision, max_failures, seed)
    except Invalid as error:
        name, _, rest = str(error).partition(" ")
        raise Invalid(f"--{name.replace('_', '-')} {rest}") from None


def _emulated(scenario: Scenario, advice: Advice, wanted: list[str], effort: Effort) -> list[Emulation]:
    found = []
    for option in advice.options:
        if option.feasible and option.strategy in wanted:
            with messages.status(f"emulating {option.strategy}"):
                found.append(emulate_option(scenario, option, effort))
    return found


def _read(console: Console, found: list[Emulation]) -> None:
    console.print(f"target {found[0].target:.10g}; intervals are of 95 % confidence", highlight=False)
    table = Table(box=None, pad_edge=False)
    for column in ("strategy", "copies", "achieved uptime", "downtime/allowed", "failures"):
        table.add_column(column, justify="left" if column == "strategy" else "right")
    for one in found:
        digits = math.ceil(-math.log10(1.0 - one.target)) + 3
        table.add_row(
            one.strategy,
            str(one.nodes),
            f"{one.uptime:.{digits}f} +- {(one.high - one.low) / 2.0:.{digits}f}",
            f"{one.downtime_ratio:.3f} +- {(one.ratio_high - one.ratio_low) / 2.0:.3f}",
            f"{one.failures / 1e6:.1f}M",
        )
    console.print(table)
    for one in found:
        if one.losses:
            console.print(
                f"{one.strategy}: lost its state {one.losses} times in {one.failures:,} failures; nothing was stored",
                highlight=False,
            )
        if one.ratio_low > 1.05:
            console.print(
                f"{one.strategy}: falls short of its target: {one.downtime_ratio:.3g} times the downtime allowed",
                highlight=False,
            )
