"""The schema of a state table: its key columns and its value columns, and how it may change between runs.

Encoded types (dictionary, run-end, views) are held plain, so that batches of any origin fit together.
"""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from holdfast.errors import Invalid
from holdfast.state.keys import check_key_type

RESERVED = "__"
"""Column names that begin so are Holdfast's own (``__hash``, ``__alive``)."""


@dataclass(frozen=True, slots=True)
class StateSchema:
    """Key columns, then value columns. All columns are nullable, keys included."""

    key: pa.Schema
    value: pa.Schema
    arrow: pa.Schema = dataclasses.field(init=False, repr=False, compare=False)
    """Key and value columns together: the schema of a row."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", _plain_schema(self.key))
        object.__setattr__(self, "value", _plain_schema(self.value))
        if not len(self.key):
            raise Invalid("state schema: at least one key column is needed")
        names = [*self.key.names, *self.value.names]
        for name in names:
            if names.count(name) > 1:
                raise Invalid(f"state schema: column {name!r} occurs more than once")
            if name.startswith(RESERVED) or not name:
                raise Invalid(f"state schema: column {name!r}: a name is needed that does not begin with {RESERVED!r}")
        for field in self.key:
            check_key_type(field.name, field.type)
        object.__setattr__(self, "arrow", pa.schema([*self.key, *self.value]))

    def evolve(self, new: StateSchema) -> StateSchema:
        """``new``, if rows of this schema fit it with nulls in the added columns; else Invalid with what changed."""
        if changes := self.differences(new):
            raise Invalid(f"state schema: only new nullable columns may be added; {'; '.join(changes)}")
        return new

    def differences(self, new: StateSchema) -> list[str]:
        """What stands between this schema and ``new``, apart from added nullable value columns."""
        found: list[str] = []
        if self.key.names != new.key.names:
            found.append(f"the key was ({', '.join(self.key.names)}) and is now ({', '.join(new.key.names)})")
        for part, before, after in (("key", self.key, new.key), ("value", self.value, new.value)):
            for field in before:
                if field.name not in after.names:
                    if part == "value":
                        found.append(f"column {field.name!r} ({field.type}) is gone")
                elif after.field(field.name).type != field.type:
                    found.append(f"column {field.name!r} was {field.type} and is now {after.field(field.name).type}")
        return found

    def conform(self, table: pa.Table | pa.RecordBatch, names: list[str], what: str) -> pa.RecordBatch:
        """The named columns of ``table`` as one batch in this schema's order and types; Invalid where they differ.

        Another encoding or width of the same kind of value (large strings, int32 for int64) is converted when no
        value is lost.
        """
        expected = self.key if names == self.key.names else self.arrow
        fields = [expected.field(name) for name in names]
        if table.schema.names != names and sorted(table.schema.names) != sorted(names):
            raise Invalid(
                f"{what}: expected columns {', '.join(names)}, found {', '.join(table.schema.names) or 'none'}"
            )
        columns = []
        for field in fields:
            column = table.column(field.name)
            if isinstance(column, pa.ChunkedArray):
                column = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
                if isinstance(column, pa.ChunkedArray):
                    raise Invalid(f"{what}: column {field.name!r} is over 2 GiB; use a large type or smaller batches")
            columns.append(column if column.type == field.type else _converted(column, field, what))
        return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))

    def to_json(self) -> dict[str, str]:
        """Arrow schemas as base64 of their IPC form."""
        return {"key": _encoded(self.key), "value": _encoded(self.value)}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> StateSchema:
        try:
            key, value = (
                pa.ipc.read_schema(pa.py_buffer(base64.b64decode(content[part], validate=True)))
                for part in ("key", "value")
            )
        except (KeyError, TypeError, ValueError, OSError) as error:
            raise Invalid(f"state schema: expected base64 of Arrow schemas under key and value: {error}") from error
        return cls(key, value)


def _encoded(schema: pa.Schema) -> str:
    return base64.b64encode(schema.serialize().to_pybytes()).decode("ascii")


def _plain_schema(schema: pa.Schema) -> pa.Schema:
    return pa.schema([pa.field(field.name, _plain(field.type)) for field in schema])


def _plain(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return _plain(kind.value_type)
    if pa.types.is_string_view(kind):
        return pa.large_string()
    if pa.types.is_binary_view(kind):
        return pa.large_binary()
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(f.name, _plain(f.type)) for f in kind])
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(_plain(kind.value_type), kind.list_size)
    if pa.types.is_list(kind):
        return pa.list_(_plain(kind.value_type))
    if pa.types.is_large_list(kind):
        return pa.large_list(_plain(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(_plain(kind.key_type), _plain(kind.item_type))
    return kind


def _converted(column: pa.Array, field: pa.Field, what: str) -> pa.Array:
    if not _same_kind(column.type, field.type):
        raise Invalid(f"{what}: column {field.name!r} must be {field.type}, found {column.type}")
    try:
        return column.cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise Invalid(f"{what}: column {field.name!r} does not fit {field.type}: {error}") from error


def _same_kind(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether a conversion keeps the meaning of values: never numbers to text, or text to times."""
    if pa.types.is_dictionary(found) or pa.types.is_run_end_encoded(found):
        return _same_kind(found.value_type, wanted)
    if pa.types.is_null(found) or found.equals(wanted):
        return True
    kinds = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_time, _is_string, _is_bytes)
    if any(same(found) and same(wanted) for same in kinds):
        return True
    if pa.types.is_integer(found) and pa.types.is_floating(wanted):
        return True
    if pa.types.is_timestamp(found) and pa.types.is_timestamp(wanted):
        return bool(found.tz == wanted.tz)
    if pa.types.is_duration(found) and pa.types.is_duration(wanted):
        return True
    return bool(pa.types.is_nested(found) and pa.types.is_nested(wanted))


def _is_string(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind))
