"""The aggregate of a query as a Holdfast operator, and its answers as Spark expects them."""

from __future__ import annotations

from typing import cast, get_args

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import DataType, StructType

from holdfast import operators as op
from holdfast.errors import Invalid
from holdfast.operators import Aggregation
from holdfast.operators.grouped import Emit, Grouped
from holdfast.queries.split import Function, NotCovered, Split

SOURCE, GROUPS = "rows", "groups"
EVERYTHING = "g"
"""The key of a query that has none."""
NAN = ".nan"


def checked_mode(written: str, name: str) -> Emit:
    """An output mode as Spark takes it, in any case of letters; ``name``: the option that it was given to."""
    for mode in get_args(Emit):
        if str(written).strip().lower() == mode:
            return cast(Emit, mode)
    raise Invalid(f"{name} must be update, append or complete, got {written!r}")


def _columns(split: Split) -> dict[str, pa.DataType]:
    """The key columns; a window is two of them."""
    found: dict[str, pa.DataType] = {}
    for key in split.keys:
        types = [inner.dataType for inner in key.type] if isinstance(key.type, StructType) else [key.type]
        found |= {name: _arrow(kind, split) for name, kind in zip(key.columns, types, strict=True)}
    return found


def pipeline_of(split: Split, emit: Emit, parallelism: int, source_parallelism: int) -> op.Pipeline:
    """Spark's rows come in at a source, and are grouped by tasks that can be lost and come back."""
    by = _columns(split)
    alone = not by
    answers: dict[str, Aggregation] = {}
    for each in split.functions:
        answers |= _answers(each, split)
    if not answers:
        answers = {"r": op.count()}  # distinct keys: somebody must be counted
    if emit == "append" and split.time is None:
        raise NotCovered(
            "outputMode append: groups never close; it needs withWatermark, and a grouping by its column or a window "
            "of it; update and complete do without"
        )
    time = split.time if emit != "complete" else None
    spans = next((key.spans for key in split.keys if key.time is not None), None)
    grouped = Grouped(
        by if by else {EVERYTHING: pa.int32()}, emit, time, spans if time else None, split.meaning, **answers
    )
    entering = op.map(_keyed) if alone else None
    return op.Pipeline(
        op.source(SOURCE, entering, parallelism=source_parallelism, event_time="watermark" if time else None),
        op.step(GROUPS, grouped, SOURCE, parallelism=1 if alone else parallelism),
    )


def _keyed(rows: pa.Table) -> pa.Table:
    return rows.append_column(EVERYTHING, pa.repeat(pa.scalar(0, pa.int32()), rows.num_rows))


def _answers(each: Function, split: Split) -> dict[str, Aggregation]:
    column = each.inputs[0] if each.inputs else ""
    match each.name:
        case "Count":
            made = [op.count(*each.inputs)]
        case "Sum":
            made = [op.sum(column, _arrow(each.input_types[0], split))]
        case "Average":
            # As the type that Spark adds up in, so that means of longs round as its own do.
            made = [op.sum(column, _arrow(each.answer_types[0], split)), op.count(column)]
        case _:
            extreme = op.max if each.name == "Max" else op.min
            try:
                made = [extreme(column, _arrow(each.input_types[0], split))]
            except Invalid as error:
                raise NotCovered(f"aggregate {each.sql}: {error}") from None
    named = dict(zip(each.answers, made, strict=True))
    if each.nan is not None:
        named[each.answers[0] + NAN] = op.max(each.nan, pa.bool_())
    return named


def finished(split: Split, rows: pa.Table) -> pa.Table:
    """What the operator has answered, with the columns that ``Split.above`` takes."""
    for each in split.functions:
        if each.nan is not None:
            # NaN is the largest of all: the largest if there is one, the smallest if there is nothing else.
            name = each.answers[0]
            values, some = rows[name], rows[name + NAN].fill_null(False)
            nan = pa.scalar(float("nan"), values.type)
            values = pc.if_else(some, nan, values) if each.name == "Max" else pc.if_else(
                pc.and_(some, pc.is_null(values, nan_is_null=True)), nan, values
            )  # fmt: skip
            rows = rows.set_column(rows.schema.get_field_index(name), name, values)
    wanted = [name for key in split.keys for name in key.columns]
    wanted += [name for each in split.functions for name in each.answers]
    return rows.select(wanted or [EVERYTHING])


def schema_of(split: Split) -> pa.Schema:
    """The columns of ``finished``, for an epoch in which nobody said anything."""
    fields = [pa.field(name, kind) for name, kind in _columns(split).items()]
    for each in split.functions:
        fields += [pa.field(n, _arrow(t, split)) for n, t in zip(each.answers, each.answer_types, strict=True)]
    return pa.schema(fields or [pa.field(EVERYTHING, pa.int32())])


def _arrow(kind: DataType, split: Split) -> pa.DataType:
    zone = split.below.sparkSession.conf.get("spark.sql.session.timeZone")
    try:
        return to_arrow_type(kind, timezone=zone)
    except Exception as error:
        raise NotCovered(f"a column of type {kind.simpleString()} is not covered: {error}") from None
