"""An operator for tests of whole jobs whose answers depend on every row before."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from holdfast import operators as op


class Total(op.Operator):
    """Keys that changed so far, and the sum of their counts as they changed: depends on every row before."""

    def __init__(self) -> None:
        key, value = pa.schema([("one", pa.int64())]), pa.schema([("keys", pa.int64()), ("sum", pa.int64())])
        self.tables = {"state": op.StateSchema(key, value)}

    def process(self, batch: pa.Table, state: op.State) -> pa.Table | None:
        if not batch.num_rows:
            return None
        before = state.lookup(pa.table({"one": [1]}))
        keys = (before["keys"][0].as_py() or 0) + batch.num_rows
        total = (before["sum"][0].as_py() or 0) + pc.sum(batch["count"]).as_py()
        state.update(pa.table({"one": [1], "keys": [keys], "sum": [total]}))
        return pa.table({"keys": [keys], "sum": [total]})
