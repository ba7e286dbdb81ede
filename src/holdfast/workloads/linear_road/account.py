"""The balance account: what every car has been charged, and what it will be when it leaves the segment it is in.

Keyed by car. Answers queries, of the balance and of an earlier day's expenditure.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from holdfast.operators import Operator, State, StateSchema
from holdfast.workloads.linear_road.cars import by_hash
from holdfast.workloads.linear_road.history import expenditure
from holdfast.workloads.linear_road.rules import ASKS, BALANCE, KINDS, LEAVES, Ints, numbers, of_kind

ASSESSMENT, CALCULATOR = "toll_assessment", "toll_calculator"
ACCOUNTS = "accounts"
REPLIES = pa.schema(
    {"kind": pa.int8(), "time": pa.int32(), "vid": pa.int32(), "balance": pa.int64(), "query": pa.int32()}
)
"""Answers to queries."""


class Account(Operator):
    """Tolls told to cars, exits and queries in, REPLIES out."""

    by = ("vid",)

    def __init__(self) -> None:
        amounts = pa.schema({"balance": pa.int64(), "pending": pa.int64()})
        self.tables = {ACCOUNTS: StateSchema(pa.schema({"vid": pa.int32()}), amounts)}

    def prepare(self, stream: str, batch: pa.Table) -> pa.Table:
        if not batch.num_columns:
            return batch
        if stream == ASSESSMENT:
            return of_kind(batch, LEAVES, ASKS).drop_columns(["road"])
        return batch.select(["vid", "rank", "toll", "pays"])

    def process_inputs(self, inputs: Mapping[str, pa.Table], state: State) -> pa.Table:
        told, events = inputs[CALCULATOR], inputs[ASSESSMENT]
        vid = np.concatenate([_column(told, "vid"), _column(events, "vid")])
        if not len(vid):
            return REPLIES.empty_table()
        rank = np.concatenate([_column(told, "rank"), _column(events, "rank")])
        tolls = np.concatenate([_column(told, "toll"), np.zeros(events.num_rows, np.int64)])
        asks = np.concatenate([np.zeros(told.num_rows, np.bool_), _column(events, "kind") == ASKS])
        pays = np.concatenate([_column(told, "pays"), _column(events, "number")]).astype(np.bool_) & ~asks
        order = np.argsort(rank)
        order = order[by_hash(vid[order])]
        vid, tolls, asks, pays = vid[order], tolls[order], asks[order], pays[order]

        first = np.concatenate([[True], vid[1:] != vid[:-1]])
        car = np.cumsum(first) - 1
        starts = np.flatnonzero(first)
        keys = pa.table({"vid": vid[starts].astype(np.int32)})
        known = state.table(ACCOUNTS).lookup(keys)
        balance, pending = (known.column(name).fill_null(0).to_numpy() for name in ("balance", "pending"))

        # What is pending at a row was set by the car's last row that was not a query, or before this epoch.
        sets = np.maximum.accumulate(np.where(asks, -1, np.arange(len(vid))))
        last = np.concatenate([[-1], sets[:-1]])
        due = np.where(last >= starts[car], tolls[last], pending[car])
        charged = np.cumsum(np.where(pays, due, 0))
        paid = charged - (charged - np.where(pays, due, 0))[starts][car]

        ends = np.append(starts[1:], len(vid)) - 1
        owed = np.where(sets[ends] >= starts, tolls[sets[ends]], pending)
        total = balance + paid[ends]
        changed = (owed != pending) | (total != balance)
        if changed.any():
            rows = {"vid": vid[starts].astype(np.int32), "balance": total, "pending": owed}
            state.table(ACCOUNTS).update(pa.table({name: values[changed] for name, values in rows.items()}))
        asked = np.flatnonzero(asks)
        return _replies(events, order[asked] - told.num_rows, (balance[car] + paid)[asked])


def _column(batch: pa.Table, name: str) -> Ints:
    return numbers(batch, name) if batch.num_columns else np.empty(0, np.int64)


def _replies(events: pa.Table, rows: Ints, balances: Ints) -> pa.Table:
    if not len(rows):
        return REPLIES.empty_table()
    asked = events.take(pa.array(rows))
    of_balance = numbers(asked, "seg") == BALANCE
    earlier = expenditure(numbers(asked, "vid"), numbers(asked, "amount"))
    kinds = np.where(of_balance, KINDS.index("balance"), KINDS.index("expenditure"))
    return pa.Table.from_arrays(
        [
            pa.array(kinds.astype(np.int8)),
            asked.column("time"),
            asked.column("vid"),
            pa.array(np.where(of_balance, balances, earlier)),
            asked.column("number"),
        ],
        schema=REPLIES,
    )
