"""Options that describe a scenario, shared by ``advise`` and ``emulate``, and what is made of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from holdfast.errors import Invalid
from holdfast.resilience import Caching, Limits, Prices, Scenario
from holdfast.resilience.pipeline_file import checkpoint_time
from holdfast.resilience.progress import MTBF, SLA, Observed, observe, read_progress
from holdfast.resilience.quantities import duration, number, rate, size

WindowOption = Annotated[
    str | None, typer.Option(help="input that replay needs, such as 10m; without it replay is ruled out")
]
CheckpointOption = Annotated[
    str | None, typer.Option(help="a checkpoint: time to move it at the input rate, such as 5m, or a size with --rate")
]
RateOption = Annotated[str | None, typer.Option(help="input rate, such as 50MB/s; with --checkpoint 2GiB")]
SlaOption = Annotated[str | None, typer.Option(help="share of time unaffected by failures: 0.999 or 99.9%")]
MtbfOption = Annotated[str | None, typer.Option(help="mean time between failures of one node, such as 30d")]
StorageCopiesOption = Annotated[int, typer.Option(help="copies in replicated storage")]
MaxNodesOption = Annotated[int, typer.Option(help="running copies at most")]
MaxRecoveryFactorOption = Annotated[
    float | None, typer.Option(help="ceiling on the recovery bandwidth, in multiples of the input rate, such as 2")
]
PeriodOption = Annotated[str | None, typer.Option(help="take checkpoints this often, such as 10m; else the cheapest")]
LosslessOption = Annotated[bool, typer.Option("--lossless", help="rule out strategies that may lose output")]
ShardsOption = Annotated[int, typer.Option(help="nodes that the input is split over; any of them stalls the query")]
PriceOption = Annotated[
    str, typer.Option(help="prices beside the network's 1, such as storage=2,cpu=1,memory=0.5; 0 if not named")
]
CheckpointCpuOption = Annotated[
    str | None, typer.Option(help="processor time of a checkpoint, in time of processing input; else as --checkpoint")
]
InactiveOption = Annotated[
    float, typer.Option(help="share of the state that is inactive and kept out of memory and checkpoints, such as 0.9")
]
InactiveTrafficOption = Annotated[
    str, typer.Option(help="inactive state moved out and back, in multiples of the input rate, such as 0.1,0.02")
]
InactiveLocalOption = Annotated[
    bool, typer.Option("--inactive-local", help="inactive state on the copies' own disks, not in a replicated store")
]
DurabilityOption = Annotated[
    float, typer.Option(help="chance that on-demand keeps the state for the whole --horizon; it stores none")
]
HorizonOption = Annotated[str, typer.Option(help="time that --durability is about")]
ProgressOption = Annotated[
    Path | None,
    typer.Option(help="progress JSON of a Spark streaming query (object, list, lines, log): gives rate and checkpoint"),
]
RowBytesOption = Annotated[str | None, typer.Option(help="bytes of an input row, such as 200B; with --progress")]


@dataclass(frozen=True, slots=True)
class Described:
    """The scenario that the options describe, and what of it was read from progress or had to be assumed."""

    scenario: Scenario
    derived: dict[str, str]
    assumed: dict[str, str]


def describe(
    *,
    window: str | None,
    checkpoint: str | None,
    rate_: str | None,
    sla: str | None,
    mtbf: str | None,
    storage_copies: int,
    shards: int,
    checkpoint_cpu: str | None,
    durability: float,
    horizon: str,
    caching: Caching | None,
    progress: Path | None,
    row_bytes: str | None,
) -> Described:
    """The scenario; Invalid names the option that is wrong."""
    observed = _observed(progress, row_bytes, checkpoint, rate_)
    speed = rate(rate_, "--rate") if rate_ else None
    if speed is not None and checkpoint is None:
        raise Invalid("--rate: goes with --checkpoint as a size, such as --checkpoint 2GiB; there is no --checkpoint")
    moved = observed.checkpoint_s if observed else math.inf
    if checkpoint:
        moved = checkpoint_time(checkpoint, speed, "--checkpoint")
    assumed = dict(observed.assumed) if observed else {}
    if sla is None:
        assumed["sla"] = f"{SLA:g} of the time unaffected by failures; --sla says better"
    if mtbf is None:
        assumed["mtbf"] = f"one failure of a node every {MTBF}; --mtbf says better"
    if window is None and not math.isfinite(moved):
        raise Invalid("--checkpoint, --window or --progress is needed: without any of them there is nothing to compare")
    try:
        scenario = Scenario(
            sla=share(sla, "--sla") if sla else SLA,
            mtbf=duration(mtbf or MTBF, "--mtbf"),
            window=duration(window, "--window") if window else math.inf,
            checkpoint=moved,
            storage_copies=storage_copies,
            shards=shards,
            checkpoint_cpu=duration(checkpoint_cpu, "--checkpoint-cpu") if checkpoint_cpu else None,
            durability=durability,
            horizon=duration(horizon, "--horizon"),
            caching=caching,
        )
    except Invalid as error:
        raise Invalid(_as_option(error)) from None
    return Described(scenario, observed.derived if observed else {}, assumed)


def share(text: str, name: str) -> float:
    """``0.999`` or ``99.9%``."""
    written = text.strip()
    return number(written[:-1], name) / 100.0 if written.endswith("%") else number(written, name)


def limits_of(max_nodes: int, max_recovery_factor: float | None, period: str | None, lossless: bool) -> Limits:
    try:
        return Limits(
            max_nodes,
            math.inf if max_recovery_factor is None else max_recovery_factor,
            duration(period, "--period") if period else None,
            lossless,
        )
    except Invalid as error:
        raise Invalid(_as_option(error)) from None


def prices_of(text: str) -> Prices:
    """``storage=2,cpu=1``."""
    found: dict[str, float] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = part.partition("=")
        if not equals or name not in ("storage", "cpu", "memory"):
            raise Invalid(f"--price: expected storage=NUMBER,cpu=NUMBER,memory=NUMBER, got {part!r}")
        found[name] = number(value, f"--price {name}")
    try:
        return Prices(**found)
    except Invalid as error:
        raise Invalid(f"--price: {error}") from None


def caching_of(inactive: float, traffic: str, local: bool) -> Caching | None:
    if not inactive:
        if traffic or local:
            raise Invalid("--inactive-traffic and --inactive-local: go with --inactive, such as --inactive 0.9")
        return None
    parts = traffic.split(",") if traffic else ["0", "0"]
    if len(parts) != 2:
        raise Invalid(f"--inactive-traffic: expected two factors of the input rate, OUT,BACK, got {traffic!r}")
    out, back = (number(part, "--inactive-traffic") for part in parts)
    try:
        return Caching(inactive, out, back, local)
    except Invalid as error:
        raise Invalid(f"--inactive: {error}") from None


def _observed(path: Path | None, row_bytes: str | None, checkpoint: str | None, rate_: str | None) -> Observed | None:
    if path is None:
        if row_bytes is not None:
            raise Invalid("--row-bytes: goes with --progress; there is none")
        return None
    if checkpoint or rate_:
        raise Invalid("--progress: gives rate and checkpoint itself; leave out --checkpoint and --rate")
    length = size(row_bytes, "--row-bytes") if row_bytes else None
    try:
        return observe(read_progress(path), length)
    except Invalid as error:
        raise Invalid(str(error) if str(error).startswith("--") else f"--progress {path}: {error}") from None


def _as_option(error: Invalid) -> str:
    """The library says ``max_nodes must ...``; whoever typed it knows it as ``--max-nodes``."""
    text = str(error)
    if text.startswith("--"):
        return text
    name, _, rest = text.partition(" ")
    return f"--{name.replace('_', '-')} {rest}"
