"""What an operator answers an epoch with: upserts (whole rows) and deletes (keys). Encoded as one Arrow IPC file."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from holdfast.errors import Invalid
from holdfast.state.ipc import Unreadable, decode_run, encode_run
from holdfast.state.run import SortedRun, overlay
from holdfast.state.schema import StateSchema


class Change:
    """Upserts and deletes of one epoch. Deletes come first; of several upserts of one key the last one counts.

    ``deletes`` has the key columns alone and may be empty; without it, the table that the change is applied to says
    which columns are the key. The sorted form is made once and kept, so applying, saving and sending share it.
    """

    __slots__ = ("_deletes", "_run", "_schema", "_upserts")

    def __init__(self, upserts: pa.Table, deletes: pa.Table | None = None) -> None:
        self._upserts: pa.Table | None = upserts
        self._deletes: pa.Table | None = deletes
        self._schema: StateSchema | None = None
        self._run: SortedRun | None = None

    @classmethod
    def of_run(cls, schema: StateSchema, run: SortedRun) -> Change:
        """A change from its sorted form."""
        change = cls.__new__(cls)
        change._upserts = change._deletes = None
        change._schema, change._run = schema, run
        return change

    @classmethod
    def none(cls, schema: StateSchema) -> Change:
        """No change."""
        return cls(schema.arrow.empty_table(), schema.key.empty_table())

    @property
    def schema(self) -> StateSchema:
        if self._schema is not None:
            return self._schema
        if self._deletes is None or self._upserts is None:
            raise Invalid("change: give the deletes too (an empty table with the key columns), they name the key")
        key = self._deletes.schema
        value = [field for field in self._upserts.schema if field.name not in key.names]
        return StateSchema(pa.schema([self._upserts.schema.field(name) for name in key.names]), pa.schema(value))

    @property
    def upserts(self) -> pa.Table:
        """Whole rows; in the order given, or by hash if the change was decoded."""
        if self._upserts is not None:
            return self._upserts
        run = self.run(self.schema)
        return pa.Table.from_batches([run.without_tombstones().rows], self.schema.arrow)

    @property
    def deletes(self) -> pa.Table:
        """Keys; in the order given, or by hash if the change was decoded."""
        if self._deletes is not None:
            return self._deletes
        if self._upserts is not None:
            return self.schema.key.empty_table()
        run = self.run(self.schema)
        dead = run.rows.slice(0, 0) if run.alive is None else run.select(~run.alive).rows
        return pa.Table.from_batches([dead.select(self.schema.key.names)], self.schema.key)

    def run(self, schema: StateSchema, like: SortedRun | None = None) -> SortedRun:
        """The sorted form under ``schema``; Invalid if columns do not fit it. ``like``: see ``SortedRun.sorted``."""
        if self._run is not None and self._schema == schema:
            return self._run
        if self._run is not None and self._schema is not None and self._upserts is None:
            self._schema.evolve(schema)
            return self._run.evolved(schema.arrow)
        assert self._upserts is not None
        rows = schema.conform(self._upserts, schema.arrow.names, "upserts")
        alive = None
        if self._deletes is not None and len(self._deletes):
            keys = schema.conform(self._deletes, schema.key.names, "deletes")
            empty = [pa.nulls(len(keys), field.type) for field in schema.value]
            dead = pa.RecordBatch.from_arrays([*keys.columns, *empty], schema=schema.arrow)
            alive = np.concatenate([np.zeros(len(dead), np.bool_), np.ones(len(rows), np.bool_)])
            rows = pa.concat_batches([dead, rows])
        self._schema, self._run = schema, SortedRun.sorted(rows, len(schema.key), alive, like)
        return self._run

    def encode(self) -> bytes:
        """One Arrow IPC file, the same bytes for the same change."""
        run = self.run(self.schema)
        return bytes(encode_run(self.schema, run, {"kind": "change"}))

    @classmethod
    def decode(cls, data: bytes | pa.Buffer) -> Change:
        try:
            schema, run, _ = decode_run(data)
        except Unreadable as error:
            raise Invalid(f"change: {error}") from error
        return cls.of_run(schema, run)


def compose(changes: Sequence[Change]) -> Change:
    """Changes of successive epochs, oldest first, as one: the last word on each key."""
    if not changes:
        raise Invalid("compose: at least one change is needed")
    schema = changes[-1].schema
    run = changes[0].run(schema)
    for change in changes[1:]:
        run = overlay(run, change.run(schema))
    return Change.of_run(schema, run)
