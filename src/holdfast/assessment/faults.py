"""Fault models as data: what happens to the rows that reach an operator while a burst lasts.

A burst is a stretch of positions. A row's position is its ascending key; in a stream without one it is the epoch, and
within it how far the row stands among those that its task was sent: row i of n is at epoch + (i + 0.5) / n.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from holdfast.errors import Invalid

Kind = Literal["loss", "duplication", "reordering", "delay", "corruption"]
KINDS: tuple[Kind, ...] = get_args(Kind)
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class FaultModel:
    """``loss``: rows are gone. ``duplication``: each comes twice. ``reordering``: those of an epoch are shuffled.

    ``delay``: rows wait until the burst is over, and come before the others then. ``corruption``: the number in
    ``column`` is multiplied by ``factor``. The operator's state is as it was: it crashed, came back, and nothing in
    flight was saved.
    """

    kind: Kind = "loss"
    column: str | None = None
    factor: float = 10.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise Invalid(f"fault: must be one of {', '.join(KINDS)}, got {self.kind!r}")
        if self.kind == "corruption" and self.column is None:
            raise Invalid("fault corruption: say which column, such as corruption:price or corruption:price:10")
        if self.kind != "corruption" and self.column is not None:
            raise Invalid(f"fault {self.kind}: only corruption takes a column, got {self.column!r}")
        if not math.isfinite(self.factor):
            raise Invalid(f"fault corruption: the factor must be a finite number, got {self.factor}")

    def __str__(self) -> str:
        return self.kind if self.column is None else f"{self.kind}:{self.column}:{self.factor:g}"


def parse_fault(written: str, seed: int = 0) -> FaultModel:
    """``loss``, ``duplication``, ``reordering``, ``delay``, ``corruption:COLUMN`` or ``corruption:COLUMN:FACTOR``."""
    kind, _, rest = written.strip().partition(":")
    for known in KINDS:
        if kind == known:
            column, _, factor = rest.partition(":")
            try:
                return FaultModel(known, column or None, float(factor) if factor else 10.0, seed)
            except ValueError:
                raise Invalid(f"fault {written!r}: the factor must be a number, got {factor!r}") from None
    raise Invalid(f"fault {written!r}: must be one of {', '.join(KINDS)}, or kill with --engine spark")


@dataclass(frozen=True, slots=True)
class Burst:
    """A fault model over a stretch of positions, at operators that fail together: one, or all that share a node."""

    targets: tuple[str, ...]
    start: float
    stop: float
    model: FaultModel = FaultModel()

    def __post_init__(self) -> None:
        if not self.targets:
            raise Invalid("burst: name at least one operator")
        if not self.start <= self.stop:
            raise Invalid(f"burst at {', '.join(self.targets)}: it ends at {self.stop}, before {self.start}")


def positions(rows: pa.Table, key: str | None, epoch: int, who: str) -> Floats:
    """Where each row stands in the stream."""
    if key is None:
        return np.asarray(epoch + (np.arange(rows.num_rows) + 0.5) / max(rows.num_rows, 1))
    if not rows.num_columns:
        return np.empty(0)
    if key not in rows.column_names:
        found = ", ".join(rows.column_names)
        raise Invalid(f"{who}: rows have no column {key!r} to tell their place by; found: {found}")
    column = rows.column(key)
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)) or column.null_count:
        raise Invalid(f"{who}: column {key!r} must be numbers without nulls, found {column.type}")
    return np.asarray(pc.cast(column, pa.float64(), safe=False).to_numpy())


def struck(rows: pa.Table, hit: NDArray[np.bool_], model: FaultModel, epoch: int) -> pa.Table:
    """The rows after a fault on those that are ``hit``. A delay takes them out; the injector brings them back."""
    if not hit.any():
        return rows
    match model.kind:
        case "loss" | "delay":
            return rows.filter(pa.array(~hit))
        case "duplication":
            return rows.take(pa.array(np.repeat(np.arange(len(hit)), 1 + hit)))
        case "reordering":
            order = np.arange(len(hit))
            order[hit] = np.random.default_rng([abs(model.seed), epoch]).permutation(order[hit])
            return rows.take(pa.array(order))
        case "corruption":
            assert model.column is not None
            return _corrupted(rows, hit, model.column, model.factor)


def _corrupted(rows: pa.Table, hit: NDArray[np.bool_], name: str, factor: float) -> pa.Table:
    if name not in rows.column_names:
        return rows  # the column is not part of this stream
    column = rows.column(name)
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        raise Invalid(f"fault corruption: column {name!r} must be numbers, found {column.type}")
    wrong = pc.multiply(pc.cast(column, pa.float64()), factor)
    if pa.types.is_integer(column.type):
        wrong = pc.round(wrong)
    changed = pc.if_else(pa.array(hit), pc.cast(wrong, column.type, safe=False), column)
    return rows.set_column(rows.column_names.index(name), rows.schema.field(name), changed)
