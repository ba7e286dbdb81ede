"""Operators that look at rows and remember nothing: map, filter, flat map.

Expressions are polars expressions; functions see an Arrow table. A batch without columns passes through as it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias, TypeGuard

import polars as pl
import pyarrow as pa

from holdfast.errors import Invalid
from holdfast.operators.columns import Columns, column, schema_of, sequence_of
from holdfast.operators.contract import Operator, State, as_operator, as_table, columns_read, description_of
from holdfast.operators.description import Description, Version, name_of

Expression: TypeAlias = str | pl.Expr
Row = dict[str, Any]


class Map(Operator):
    """Each row to one row: a function from table to table, or the columns of the output as expressions.

    A function may have a ``version``; beside expressions that is the name of a column like any other.
    """

    passes = False

    def __init__(self, *columns: Callable[[pa.Table], Any] | Expression, **named: Expression | Version) -> None:
        self._function: Callable[[pa.Table], Any] | None = None
        self._columns: list[pl.Expr] = []
        if len(columns) == 1 and named.keys() <= {"version"} and _is_function(columns[0]):
            self._function = columns[0]
            self.version = _version(named, "map")
            return
        if not columns and not named:
            raise Invalid("map: give a function of a table, or the columns of the output")
        self._columns += [_expression(each, "map") for each in columns]
        self._columns += [_expression(each, "map").alias(name) for name, each in named.items()]

    def describe(self) -> Description:
        if self._function is not None:
            return {"kind": "map", "function": name_of(self._function), "version": self.version}
        return {"kind": "map", "columns": [str(each) for each in self._columns]}

    def reads(self, stream: str) -> frozenset[str] | None:
        return None if self._function is not None else _names(self._columns)

    def process(self, batch: pa.Table, state: State) -> pa.Table | None:
        if not batch.num_columns:
            return batch
        if self._function is not None:
            return as_table(self._function(batch))
        return _evaluated("map", batch, lambda frame: frame.select(self._columns))


class Filter(Operator):
    """The rows for which a condition holds; where it is null, it does not.

    The condition is an expression, SQL text such as ``"speed > 40"``, or a function from a table to a boolean array.
    """

    passes = True

    def __init__(self, condition: Callable[[pa.Table], Any] | Expression, *, version: Version = 1) -> None:
        self._function = condition if _is_function(condition) else None
        self.version = version
        self._condition = None
        if self._function is None:
            self._condition = _sql(condition) if isinstance(condition, str) else _expression(condition, "filter")

    def describe(self) -> Description:
        if self._function is not None:
            return {"kind": "filter", "function": name_of(self._function), "version": self.version}
        return {"kind": "filter", "condition": str(self._condition)}

    def reads(self, stream: str) -> frozenset[str] | None:
        return None if self._condition is None else _names([self._condition])

    def process(self, batch: pa.Table, state: State) -> pa.Table:
        if not batch.num_columns:
            return batch
        if self._condition is not None:
            condition = self._condition
            answer = _evaluated("filter", batch, lambda frame: frame.select(condition.alias("keep")))
            return batch.filter(_mask(answer.column("keep"), batch.num_rows))
        assert self._function is not None
        return batch.filter(_mask(self._function(batch), batch.num_rows))


class FlatMap(Operator):
    """Each row to any number of rows: a function from a row to rows, or an expression that gives lists.

    A function may have a ``version``.
    """

    passes = False

    def __init__(
        self,
        function: Callable[[Row], Iterable[Row]] | None = None,
        columns: Columns | None = None,
        keep: str | Iterable[str] = (),
        **lists: Expression | Version,
    ) -> None:
        self._function = function
        self._keep = sequence_of(keep)
        self._schema: pa.Schema | None = None
        self._list: pl.Expr | None = None
        self._name = ""
        if function is not None:
            if not lists.keys() <= {"version"} or not _is_function(function):
                raise Invalid("flat map: give one function of a row, or one named expression of lists, not both")
            if columns is None:
                raise Invalid('flat map: say which columns the function gives, such as columns={"word": "string"}')
            self._schema = schema_of(columns, "flat map")
            self.version = _version(lists, "flat map")
            return
        if len(lists) != 1:
            raise Invalid(
                f"flat map: exactly one named expression of lists is needed, got {', '.join(lists) or 'none'}"
            )
        ((self._name, written),) = lists.items()
        if self._name in self._keep:
            raise Invalid(f"flat map: column {self._name!r} is both kept and made")
        self._list = _expression(written, "flat map").alias(self._name)

    def describe(self) -> Description:
        if self._schema is not None and self._function is not None:
            columns = {field.name: str(field.type) for field in self._schema}
            made = {"function": name_of(self._function), "version": self.version, "columns": columns}
        else:
            made = {"list": str(self._list)}
        return {"kind": "flat_map", **made, "keep": list(self._keep)}

    def reads(self, stream: str) -> frozenset[str] | None:
        found = None if self._list is None else _names([self._list])
        return None if found is None else found.union(self._keep)

    def process(self, batch: pa.Table, state: State) -> pa.Table:
        if not batch.num_columns:
            return batch
        for name in self._keep:
            column(batch, name, "flat map")
        return self._exploded(batch) if self._list is not None else self._called(batch)

    def _exploded(self, batch: pa.Table) -> pa.Table:
        lists = self._list
        answer = _evaluated("flat map", batch, lambda frame: frame.select(*self._keep, lists))
        kind = answer.schema.field(self._name).type
        if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
            raise Invalid(f"flat map: {self._name} must be lists, found {kind}")
        return _evaluated(
            "flat map", answer, lambda frame: frame.explode(self._name, empty_as_null=False, keep_nulls=False)
        )

    def _called(self, batch: pa.Table) -> pa.Table:
        assert self._function is not None and self._schema is not None
        made: list[Row] = []
        for row in batch.to_pylist():
            kept = {name: row[name] for name in self._keep}
            for each in self._function(row):
                if not isinstance(each, Mapping):
                    raise Invalid(f"flat map: the function must give rows as dicts, got {type(each).__name__}")
                made.append({**kept, **each})
        fields = [batch.schema.field(name) for name in self._keep]
        try:
            return pa.Table.from_pylist(made, pa.schema([*fields, *self._schema]))
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            declared = ", ".join(f"{field.name}: {field.type}" for field in self._schema)
            raise Invalid(f"flat map: rows do not fit the columns declared ({declared}): {_line(error)}") from None


class Chain(Operator):
    """Operators without state, one after the other, as one: nothing travels between them."""

    def __init__(self, *operators: Operator | Callable[..., Any]) -> None:
        self._operators = [as_operator(each) for each in operators]
        if not self._operators:
            raise Invalid("chain: name at least one operator")
        if stateful := [each for each in self._operators if each.tables]:
            raise Invalid(f"chain: {type(stateful[0]).__name__} keeps state; make it a step of its own")

    def describe(self) -> Description:
        return {"kind": "chain", "operators": [description_of(each) for each in self._operators]}

    @property
    def passes(self) -> bool:  # type: ignore[override]
        return all(each.passes for each in self._operators)

    def reads(self, stream: str) -> frozenset[str] | None:
        """Up to the first that makes other columns of them."""
        found: frozenset[str] = frozenset()
        for each in self._operators:
            if (mine := columns_read(each, stream)) is None:
                return None
            found |= mine
            if not each.passes:
                break
        return found

    def process(self, batch: pa.Table, state: State) -> pa.Table | None:
        answer: pa.Table | None = batch
        for each in self._operators:
            answer = each.process(answer if answer is not None else pa.table({}), state)
        return answer


def _names(expressions: Iterable[pl.Expr]) -> frozenset[str] | None:
    """The columns that these name; None if one takes those that are there, such as ``pl.all()``.

    Polars does not count a column whose type alone is asked for: as it is found in the text of an expression.
    """
    listed = list(expressions)
    if any(each.meta.has_multiple_outputs() or "dtype_of(" in str(each) for each in listed):
        return None
    return frozenset(name for each in listed for name in each.meta.root_names())


def _is_function(what: object) -> TypeGuard[Callable[..., Any]]:
    return callable(what) and not isinstance(what, pl.Expr)


def _version(named: Mapping[str, Expression | Version], who: str) -> Version:
    version = named.get("version", 1)
    if isinstance(version, pl.Expr):
        raise Invalid(f"{who}: the version of a function is a number or a text, got an expression")
    return version


def _expression(written: object, who: str) -> pl.Expr:
    if isinstance(written, str):
        return pl.col(written)
    if isinstance(written, pl.Expr):
        return written
    raise Invalid(f"{who}: a column name or a polars expression such as pl.col('x') * 2 is needed, got {written!r}")


def _sql(condition: str) -> pl.Expr:
    try:
        return pl.sql_expr(condition)
    except pl.exceptions.PolarsError as error:
        raise Invalid(f"filter: {condition!r} is not a condition: {_line(error)}") from None


def _evaluated(who: str, batch: pa.Table, evaluate: Callable[[pl.DataFrame], pl.DataFrame]) -> pa.Table:
    frame = pl.from_arrow(batch)
    assert isinstance(frame, pl.DataFrame)
    try:
        return evaluate(frame).to_arrow(compat_level=pl.CompatLevel.oldest())
    except pl.exceptions.ColumnNotFoundError as error:
        found = ", ".join(batch.schema.names)
        named = re.search(r'"([^"]+)"', str(error))
        missing = repr(named[1]) if named else _line(error)
        raise Invalid(f"{who}: input has no column {missing}; found: {found}") from None
    except pl.exceptions.PolarsError as error:
        found = ", ".join(f"{field.name}: {field.type}" for field in batch.schema)
        raise Invalid(f"{who}: {_line(error)}; found: {found}") from None


def _mask(answer: Any, rows: int) -> pa.Array | pa.ChunkedArray:
    mask = answer if isinstance(answer, (pa.Array, pa.ChunkedArray)) else pa.array(answer)
    if not pa.types.is_boolean(mask.type):
        raise Invalid(f"filter: the condition must be true or false for each row, found {mask.type}")
    if len(mask) == 1 and rows != 1:
        mask = pa.array([mask[0].as_py()] * rows, pa.bool_())
    if len(mask) != rows:
        raise Invalid(f"filter: the condition must have one value a row, got {len(mask)} for {rows} rows")
    return mask


def _line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
