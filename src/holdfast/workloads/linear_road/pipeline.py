"""Linear Road's operators joined, as in paper 002: what goes to whom, and by which key."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from holdfast import operators as op
from holdfast.operators import Operator, Pipeline, State
from holdfast.workloads.linear_road.account import ASSESSMENT, CALCULATOR, Account
from holdfast.workloads.linear_road.assessment import Assessment
from holdfast.workloads.linear_road.calculator import Calculator
from holdfast.workloads.linear_road.cars import place_of
from holdfast.workloads.linear_road.rules import (
    ANSWERS,
    BALANCE,
    EXPENDITURE,
    KINDS,
    LIMITS,
    POSITION,
    SEGMENT_BITS,
    numbers,
)

FORWARDER, ACCOUNT, COLLECTOR = "forwarder", "balance_account", "collector"
FORWARDED = pa.schema(
    {
        "type": pa.int8(),
        "time": pa.int32(),
        "vid": pa.int32(),
        "spd": pa.int16(),
        "place": pa.int64(),
        "segment": pa.int32(),
    }
)
"""Reports by place and segment code; a query's identity and day are in their stead."""
_NAMES = pa.array(KINDS)


class Forwarder(Operator):
    """Tuples to what the rules look at: where a report came from as two numbers, or what a query asks for."""

    def process(self, batch: pa.Table, state: State) -> pa.Table | None:
        if not batch.num_rows:
            return None
        kind = numbers(batch, "type")
        good = kind == POSITION
        report = good.copy()
        for name, limit in LIMITS.items():
            column = numbers(batch, name)
            good &= (column >= 0) & (column < limit)
        asks = (kind == BALANCE) | (kind == EXPENDITURE)
        if report.sum() != good.sum():
            state.count("malformed", int(report.sum() - good.sum()))
        keep = good | asks
        if not keep.all():
            batch, kind, asks = batch.filter(pa.array(keep)), kind[keep], asks[keep]
        road = numbers(batch, "xway") * 2 + numbers(batch, "dir")
        place = place_of(road, numbers(batch, "lane"), numbers(batch, "pos"))
        segment = (road << SEGMENT_BITS) | numbers(batch, "seg")
        if asks.any():
            place = np.where(asks, numbers(batch, "qid"), place)
            segment = np.where(asks, numbers(batch, "day"), segment)
        return pa.Table.from_arrays(
            [
                pa.array(kind.astype(np.int8)),
                batch.column("time").cast(pa.int32()),
                batch.column("vid").cast(pa.int32()),
                pa.array(numbers(batch, "spd").astype(np.int16)),
                pa.array(place),
                pa.array(segment.astype(np.int32)),
            ],
            schema=FORWARDED,
        )


class Collector(Operator):
    """All answers as users read them, in the order in which they came."""

    def prepare(self, stream: str, batch: pa.Table) -> pa.Table:
        return batch.drop_columns(["rank", "pays"]) if stream == CALCULATOR and batch.num_columns else batch

    def process_inputs(self, inputs: Mapping[str, pa.Table], state: State) -> pa.Table:
        return pa.concat_tables([_answers(batch) for batch in inputs.values()])


def _answers(batch: pa.Table) -> pa.Table:
    if not batch.num_rows:
        return ANSWERS.empty_table()
    columns = []
    for field in ANSWERS:
        if field.name == "kind":
            columns.append(_NAMES.take(batch.column("kind").combine_chunks()))
        elif field.name == "toll" and "toll" in batch.column_names:
            toll = batch.column("toll").to_numpy()
            columns.append(pa.array(toll, mask=batch.column("kind").to_numpy() == KINDS.index("accident")))
        elif field.name in batch.column_names:
            columns.append(batch.column(field.name).cast(field.type))
        else:
            columns.append(pa.nulls(batch.num_rows, field.type))
    return pa.Table.from_arrays(columns, schema=ANSWERS)


def pipeline(parallelism: int = 2, forwarder: Operator | None = None) -> Pipeline:
    """Everything about one car meets by ``vid``, everything about one direction of an expressway by ``road``.

    ``forwarder``: what makes FORWARDED of the stream's rows, where those are not tuples.
    """
    return Pipeline(
        op.source(FORWARDER, forwarder or Forwarder(), parallelism=parallelism),
        op.step(ASSESSMENT, Assessment(), op.stream(FORWARDER, key="vid"), parallelism=parallelism),
        op.step(CALCULATOR, Calculator(), op.stream(ASSESSMENT, key="road"), parallelism=parallelism),
        op.step(
            ACCOUNT,
            Account(),
            [op.stream(ASSESSMENT, key="vid"), op.stream(CALCULATOR, key="vid")],
            parallelism=parallelism,
        ),
        op.step(
            COLLECTOR,
            Collector(),
            [op.stream(CALCULATOR, partitioning="full"), op.stream(ACCOUNT, partitioning="full")],
            parallelism=parallelism,
        ),
    )
