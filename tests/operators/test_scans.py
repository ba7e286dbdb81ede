"""No ready operator looks through its state to look up keys, or to find what is due or what ranks first."""

from __future__ import annotations

import pyarrow as pa
import pytest

from holdfast import operators as op
from holdfast.operators.contract import TableView
from holdfast.state import StateTable

BY = {"key": "string"}
OPERATORS = {
    "aggregate": op.aggregate(BY, n=op.count()),
    "once": op.deduplicate(BY),
    "tumbling": op.tumbling(2, BY, "time", n=op.count()),
    "sliding": op.sliding(4, 2, BY, "time", n=op.count()),
    "session": op.session(2, BY, "time", n=op.count()),
    "deduplicate": op.deduplicate(BY, time="time", within=2),
    "ttl": op.aggregate(BY, time="time", ttl=2, n=op.count()),
    "top": op.top_k(2, "n", BY),
    "top of groups": op.top_k(1, "n", BY, within={"time": "int64"}),
    "top of what closes": op.top_k(1, "n", BY, within={"time": "int64"}, closes="time"),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_keys_and_what_is_due_are_found_without_a_scan(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def scan(self: object, *_: object) -> pa.Table:
        raise AssertionError("all of a state was looked through")

    monkeypatch.setattr(TableView, "scan", scan)
    monkeypatch.setattr(StateTable, "flat", scan)
    monkeypatch.setattr(StateTable, "scan", scan)
    running = op.Trial(op.Pipeline(op.source("rows", event_time="time"), op.step("it", OPERATORS[name], "rows")))
    answered = 0
    for epoch in range(8):
        rows = pa.table({"key": ["a", "b", f"c{epoch}"], "n": [epoch, 7 - epoch, 3], "time": [epoch * 2] * 3})
        answered += running.epoch(rows).output.num_rows
    assert answered > 5
