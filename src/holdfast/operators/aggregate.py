"""Keyed aggregates: running ones, which remember every key, and those of one epoch, which remember nothing."""

from __future__ import annotations

import pyarrow as pa

from holdfast.operators.aggregations import Aggregation, Aggregations
from holdfast.operators.columns import Columns, conformed, schema_of
from holdfast.operators.contract import DEFAULT_TABLE, Operator, State
from holdfast.operators.description import Description
from holdfast.state import StateSchema


class Aggregate(Operator):
    """Running aggregates by key. An epoch's output: the keys that changed, with their new values.

    Senders combine their rows before they send them, so a key travels once from each sender. The order of the output
    follows from the rows alone. A null key is a key like any other.
    """

    def __init__(self, by: Columns, **aggregations: Aggregation) -> None:
        self._keys = schema_of(by, "aggregate")
        self._who = f"aggregate by {', '.join(self._keys.names)}"
        self._aggregations = Aggregations(aggregations, self._keys.names, self._who)
        self.by = tuple(self._keys.names)
        stored = pa.schema(self._aggregations.stored)
        self.tables = {DEFAULT_TABLE: StateSchema(self._keys, stored)}
        self._travelling = pa.schema([*self._keys, *stored])

    def describe(self) -> Description:
        return {"kind": "aggregate", "computes": self._aggregations.describe(), "by": list(self.by)}

    def prepare(self, stream: str, batch: pa.Table) -> pa.Table:
        who = f"{self._who}, input {stream}"
        keys = conformed(batch, self._keys, who, _say(self._keys))
        return self._aggregations.begin(keys, batch)

    def process(self, batch: pa.Table, state: State) -> pa.Table:
        names = self._keys.names
        rows = self._aggregations.fold(conformed(batch, self._travelling, self._who), names)
        if rows.num_rows:
            rows = self._aggregations.with_old(rows, state.lookup(rows.select(names)))
            state.update(rows)
        return self._aggregations.finish(rows, names)


class Combine(Operator):
    """Aggregates by key over the rows of one epoch alone: a smaller stream of the same totals, without state.

    It may stand in a source, or wherever less should travel. Columns that are not grouped by or computed are dropped.
    """

    def __init__(self, by: Columns, **aggregations: Aggregation) -> None:
        self._keys = schema_of(by, "combine")
        self._who = f"combine by {', '.join(self._keys.names)}"
        self._aggregations = Aggregations(aggregations, self._keys.names, self._who)

    def describe(self) -> Description:
        return {"kind": "combine", "computes": self._aggregations.describe(), "by": self._keys.names}

    def process(self, batch: pa.Table, state: State) -> pa.Table:
        keys = conformed(batch, self._keys, self._who, _say(self._keys))
        return self._aggregations.finish(self._aggregations.begin(keys, batch), self._keys.names)


def _say(keys: pa.Schema) -> str:
    declared = ", ".join(f"{field.name!r}: {str(field.type)!r}" for field in keys)
    return f"keys are declared as {{{declared}}}; give by= the type it has"
