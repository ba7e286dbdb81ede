"""An aggregate: rows by key, as Spark's planner takes it apart.

No expression is translated. Spark is asked for its own factoring (PhysicalAggregation, by which Structured Streaming
plans): grouping expressions, distinct aggregate functions, result expressions over the two.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame

from holdfast import operators as op
from holdfast.operators import Aggregation, Operator
from holdfast.operators.grouped import Emit, Grouped, Slides
from holdfast.operators.sessions import Sessions
from holdfast.queries.functions import Functions, all_finished, evaluated, finished
from holdfast.queries.plans import Plans, expressions_of, items, kind, nodes_of, type_of, unaliased, uncompared
from holdfast.queries.sliding import newest
from holdfast.queries.stateful import Finish, NotCovered, Stateful, Value

EVERYTHING = "g"
"""The key of an aggregate that has none."""


@dataclass(frozen=True)
class Key:
    """A grouping expression. ``time``: the column by which its groups close, if it is one that a watermark is kept for;
    ``spans``: microseconds of a window.
    """

    value: Value
    time: str | None
    spans: int | None

    @property
    def columns(self) -> tuple[str, ...]:
        return self.value.columns


class Groups(Stateful):
    """``keys`` and ``functions`` of an aggregate. Columns are g* (keys), a* (inputs) and r* (answers).

    ``session``: the columns of a session's start and end, if there are sessions.
    """

    name = "groups"

    def __init__(self, plans: Plans, aggregate: Any) -> None:
        physical = plans.catalyst.planning.PhysicalAggregation.unapply(aggregate)
        if not physical.isDefined():
            raise NotCovered(f"Aggregate: {aggregate.simpleStringWithNodeId()} is of a kind that Spark plans otherwise")
        parts = physical.get()
        super().__init__(plans, parts._4())
        self.session: tuple[str, str] | None = None
        keys, computed = items(parts._1()), items(parts._2())
        self.keys = [self._key(number, each) for number, each in enumerate(keys)]
        functions = Functions(plans, self.arrow, self.columns)
        self.functions = [functions.of(number, each) for number, each in enumerate(computed)]
        self._slides = self._sliding(keys, computed)
        self.alone = not self.keys
        if not self.columns:  # count(*) of everything reads no column, and a stream needs one
            self.columns.append(plans.alias(plans.new("Literal", True, plans.java_type("boolean")), "a"))
        self.meaning = {str(each.name()): str(each.child().sql()) for each in self.columns} | self.meaning
        self.closes = next((key.time for key in self.keys if key.time is not None), None)
        self._answer(parts._3())

    def _sliding(self, keys: list[Any], computed: list[Any]) -> Slides | None:
        """Lets rows come with the newest of their windows; None, and nothing is changed, where they must have all.

        Which row of a window came first nobody can tell once they are grouped by another one; and the operator of
        sessions takes rows with all their windows.
        """
        if self.session is not None or not all(each.unordered for each in self.functions):
            return None
        found = newest(self.plans, self.child, keys, computed)
        if found is None or len(columns := self.keys[found.key].columns) != 2:
            return None
        self.child = found.plan
        start, end = columns
        return Slides(start, end, found.times, found.step)

    def _answer(self, results: Any) -> None:
        plans = self.plans
        self.values, finals = [key.value for key in self.keys], []
        for each in self.functions:
            function, answer = each.expression.aggregateFunction(), each.expression.resultAttribute()
            whole = len(each.answers) == 1
            attributes = [answer] if whole else items(function.aggBufferAttributes())
            self.values += [Value.plain(a, *pair) for a, pair in zip(attributes, each.answers, strict=True)]
            finals.append(answer if whole else plans.alias(function.evaluateExpression(), answer.name(), answer))
        if any(len(each.answers) > 1 for each in self.functions):
            self.projections.append(plans.seq([*(key.value.attribute for key in self.keys), *finals]))
        self.projections.append(results)

    def operator(self, emit: Emit) -> Operator:
        answers: dict[str, Aggregation] = {}
        for each in self.functions:
            answers |= each.kept
        if not answers:
            answers = {"r": op.count()}  # distinct keys: somebody must be counted
        if emit == "append" and self.closes is None:
            raise NotCovered(
                "outputMode append: groups never close; it needs withWatermark, and a grouping by its column or a "
                "window of it; update and complete do without"
            )
        time = self.closes if emit != "complete" else None
        spans = next((key.spans for key in self.keys if key.time is not None), None)
        by = {name: self.arrow(kind) for key in self.keys for name, kind in key.value.shape.columns}
        by = by or {EVERYTHING: pa.int32()}
        if self.session is not None:
            start, end = self.session
            late = self.closes is not None
            return Sessions(by, emit, start, end, time=None, gap=None, meaning=self.meaning, late=late, **answers)
        always = self.alone and emit != "append"
        return Grouped(by, emit, time, spans if time else None, self.meaning, self._slides, always, **answers)

    def idles(self, emit: Emit) -> bool:
        return emit != "complete"

    def described(self) -> str:
        keys = [self.meaning[key.columns[0]].removesuffix(", start") for key in self.keys]
        by = f" by {'; '.join(keys)}" if keys else ", all rows together"
        return f"{', '.join(map(str, self.functions)) or 'the keys'}{by}"

    def finished(self, rows: pa.Table) -> pa.Table:
        for each in self.functions:
            rows = finished(each, rows)
        wanted = [name for key in self.keys for name in key.columns]
        wanted += dict.fromkeys(name for each in self.functions for name, _ in each.columns)
        return rows.select(wanted or [EVERYTHING])

    def finish(self) -> Finish:
        for each in self.functions:
            if each.leaves is not None:
                raise NotCovered(
                    f"aggregate {each.sql} below another node with state is not covered: Spark computes it over the "
                    "values that a group keeps, and is not between the two; use it in the last one"
                )
        bare = [replace(each, leaves=None, expression=None) for each in self.functions]
        return partial(all_finished, bare, self.schema())

    def schema(self) -> pa.Schema:
        columns = dict(pair for key in self.keys for pair in key.value.shape.columns)
        columns |= dict(pair for each in self.functions for pair in each.columns)
        return pa.schema([pa.field(name, self.arrow(kind)) for name, kind in columns.items()])

    def answered(self, answers: DataFrame) -> Any:
        return super().answered(evaluated(self.plans, answers, self.functions))

    def _key(self, number: int, named: Any) -> Key:
        plans, attribute, type_, name = self.plans, named.toAttribute(), type_of(named), f"g{number}"
        metadata = attribute.metadata()
        if uncompared(type_):
            raise NotCovered(f"a grouping key of type {type_.simpleString()} is not covered; group by text or numbers")
        child = plans.floats(unaliased(named))
        marked = bool(metadata.contains("spark.watermarkDelayMs"))
        session = bool(metadata.contains("spark.sessionWindow"))
        window = session or bool(metadata.contains("spark.timeWindow"))
        value = Value(attribute, self.flattened(child, name, window))
        if not window:
            return Key(value, name if marked else None, None)
        span, made = self._window(child)
        proof, columns = hashlib.sha256(made.encode()).hexdigest()[:8], value.columns
        told = "session" if session else "window" if span is None else f"window of {span / 1e6:g} s"
        self.meaning |= {name: f"{told} ({proof}), {name.rpartition('_')[2]}" for name in columns}
        self.session = (columns[0], columns[1]) if session else self.session
        return Key(value, columns[-1] if marked else None, None if session else span)

    def _window(self, window: Any) -> tuple[int | None, str]:
        """Microseconds that a window lasts, and what it is made by: its end is its start plus a constant.

        That is the largest which is added there. Tumbling windows are made by a Project, sliding ones by an Expand;
        other names that it was given on the way are looked through.
        """
        made, nodes = window, nodes_of(self.child)
        while kind(made) == "AttributeReference":
            origin = next(filter(None, (_made_by(node, made) for node in nodes)), None)
            if origin is None:
                break
            made = origin
        ends = [each for each in expressions_of(made) if kind(each) == "Add" and kind(each.right()) == "Literal"]
        spans = [int(each.right().value()) for each in ends if type_of(each.right()).typeName() == "long"]
        return max(spans, default=None), str(made.sql())


def _made_by(node: Any, attribute: Any) -> Any:
    """What a node computes under the name of this attribute; None if it does not."""
    if kind(node) == "Expand":
        places = [n for n, each in enumerate(items(node.output())) if each.exprId().equals(attribute.exprId())]
        return next((node.projections().apply(0).apply(place) for place in places), None)
    listed = {"Project": "projectList", "Aggregate": "aggregateExpressions"}.get(kind(node))
    named = items(getattr(node, listed)()) if listed is not None else []
    same = [each.child() for each in named if kind(each) == "Alias" and each.exprId().equals(attribute.exprId())]
    return same[0] if same else None


def keyed(rows: pa.Table) -> pa.Table:
    """Rows of an aggregate without keys get one, the same for all."""
    return rows.append_column(EVERYTHING, pa.repeat(pa.scalar(0, pa.int32()), rows.num_rows))
