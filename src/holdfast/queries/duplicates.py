"""dropDuplicates and dropDuplicatesWithinWatermark: the first row of each key, with all its columns."""

from __future__ import annotations

from typing import Any

from holdfast.operators import Operator
from holdfast.operators.first_rows import FirstRows
from holdfast.operators.grouped import Emit
from holdfast.queries.plans import Plans, items, kind, type_of, uncompared
from holdfast.queries.stateful import NotCovered, Stateful, Value

DELAY = "spark.watermarkDelayMs"


class Duplicates(Stateful):
    """Columns are c* (the rows) and k* (their keys)."""

    name = "firsts"

    def __init__(self, plans: Plans, node: Any) -> None:
        super().__init__(plans, node.child())
        output, keys = items(node.child().output()), items(node.keys())
        self.values = [Value.plain(each, f"c{number}") for number, each in enumerate(output)]
        self.columns = [plans.alias(each.attribute, each.columns[0]) for each in self.values]
        for number, key in enumerate(keys):
            type_ = type_of(key)
            if uncompared(type_):
                raise NotCovered(f"{kind(node)} by {key.sql()}: a {type_.simpleString()} is not compared here")
            self.flattened(key, f"k{number}", bool(key.metadata().contains("spark.timeWindow")))
        self._keys = [each for each in self.columns if each.name()[0] == "k"]
        self._sql = ", ".join(key.sql() for key in keys)
        self.meaning = {str(each.name()): str(each.child().sql()) for each in self._keys}
        timed = next((n for n, each in enumerate(output) if each.metadata().contains(DELAY)), None)
        self._time: str | None = None
        self._keeps: int | None = None
        self._struct = False
        if timed is not None:
            self._go_by(f"c{timed}", output[timed], kind(node) == "DeduplicateWithinWatermark", keys)

    def _go_by(self, column: str, time: Any, within: bool, keys: list[Any]) -> None:
        """Late rows are dropped by this time; by it keys are forgotten too, if they have it or are to be."""
        self._time, self._struct = column, type_of(time).typeName() == "struct"
        if within:
            self._keeps = int(time.metadata().getLong(DELAY)) * 1000
        elif any(key.exprId().equals(time.exprId()) for key in keys):
            self._keeps = 0
        if self._keeps is not None:
            self.closes, self.meaning[column] = column, str(time.sql())

    def operator(self, emit: Emit) -> Operator:
        if self._struct:
            raise NotCovered("dropDuplicates of rows whose event time is a window is not covered; keep its end alone")
        by = {str(each.name()): self.arrow(type_of(each)) for each in self._keys}
        return FirstRows(by, self._time, self._keeps, self.meaning)

    def described(self) -> str:
        return f"the first row of each {self._sql}"
