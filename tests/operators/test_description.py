"""What operators say of themselves: everything that their state is made of, in plain data and in words."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from holdfast import operators as op
from holdfast.errors import Invalid
from holdfast.operators.contract import description_of
from holdfast.operators.description import ANSWERS, as_json, change, remembers, told
from holdfast.operators.first_rows import FirstRows
from holdfast.operators.grouped import Grouped
from holdfast.operators.stream_join import Half, StreamJoin
from holdfast.state import StateSchema

LEFT, RIGHT = op.side("a", {"x": "int64"}, time="t"), op.side("b", {"y": "int64"}, time="t")
SCHEMA = StateSchema(pa.schema({"k": pa.string()}), pa.schema({"n": pa.int64()}))
ONE, TWO = (Half(pa.schema([(name, pa.timestamp("us"))]), (name,), name, (name, 5)) for name in ("a", "b"))


def first(batch: pa.Table) -> pa.Table:
    return batch.slice(0, 1)


def words(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield row


class Own(op.Operator):
    pass


class Newer(op.Operator):
    version = "2024-05"


class Set(op.Operator):
    def __init__(self, limit: Any) -> None:
        self.limit = limit

    def describe(self) -> Any:
        return {**super().describe(), "limit": self.limit}


class Derived(op.aggregate):
    version = 3


READY: list[tuple[op.Operator, str]] = [
    (op.aggregate("page", total=op.sum("amount")), "sum(amount) by page"),
    (
        op.aggregate(["page", "user"], n=op.count(), v=op.count("v"), two=op.largest(2, "v"), m=op.mean("v")),
        "count(), count(v), largest(2, v), mean(v) by page, user",
    ),
    (
        op.aggregate("page", n=op.count(), ttl="1 h", time="t"),
        "count() by page, forgotten 1 h of t after their last row",
    ),
    (op.combine("page", low=op.min("v"), high=op.max("v")), "min(v), max(v) by page within an epoch"),
    (op.tumbling("30 seconds", by="w", time="t", n=op.count()), "count() by w in windows of 30 s of t"),
    (
        op.sliding("1 h", "90 s", by="w", time="t", top=(3, "n"), n=op.count()),
        "count() by w in windows of 1 h every 90 s of t, the 3 with the largest n",
    ),
    (op.tumbling("1 s", by=None, time="t", n=op.count(), emit="update"), "count() in windows of 1 s of t, emit update"),
    (op.session("30 s", by="u", time="t", n=op.count()), "count() by u in sessions of t, gap 30 s"),
    (
        op.Sessions({"u": "int64"}, "complete", "from", "to", meaning={"u": "user"}, n=op.count()),
        "count() by u in sessions from from to to; u is user, emit complete",
    ),
    (op.join(LEFT, RIGHT, on="k", size="500ms", how="left"), "left join of a and b by k in windows of 500 ms"),
    (op.top_k(5, "n", "k"), "top 5 by n of k"),
    (
        op.top_k(5, "n", "k", within={"end": "timestamp[us]"}, closes="end", rising=True),
        "top 5 by n of k within end, closed by end, rising",
    ),
    (op.deduplicate("id"), "the first row by id"),
    (op.deduplicate("id", time="t", within="2 days"), "the first row by id within 2 d of t"),
    (op.map("a", b=pl.col("c")), 'map col("a"), col("c").alias("b")'),
    (op.map(first, version=2), "map first version 2"),
    (op.filter(pl.col("a")), 'filter col("a")'),
    (op.filter(first, version=4), "filter first version 4"),
    (op.flat_map(w=pl.col("t"), keep="u"), 'flat map col("t").alias("w")'),
    (op.flat_map(words, columns={"w": "string"}, version="b"), "flat map words version b"),
    (op.chain(first, op.filter(pl.col("a"))), 'first version 1, then filter col("a")'),
    (op.FunctionOperator(first, SCHEMA, version=7), "first version 7"),
    (Grouped("word", "update", None, None, {"word": "lower(w)"}, n=op.count()), "count() by word; word is lower(w)"),
    (
        StreamJoin("k", ONE, TWO, "left", [("a", "<", "b")], {"a": "at + 1"}),
        "left join of two streams by k, a < b; a is at + 1",
    ),
    (
        FirstRows("word", "t", 5_000_000, {"word": "lower(w)"}),
        "the first row by word, forgotten 5 s after t; word is lower(w)",
    ),
    (Own(), "Own version 1"),
    (Newer(), "Newer version 2024-05"),
]


@pytest.mark.parametrize(("operator", "expected"), READY, ids=[expected for _, expected in READY])
def test_an_operator_is_told_in_a_few_words_after_a_walk_through_a_file(operator: op.Operator, expected: str) -> None:
    there = json.loads(json.dumps(operator.describe()))
    assert told(there) == expected
    assert there == as_json(operator.describe(), "o")


def test_every_ready_operator_describes_itself() -> None:
    def subclasses(of: type[op.Operator]) -> Iterator[type[op.Operator]]:
        for each in of.__subclasses__():
            yield each
            yield from subclasses(each)

    ready = {each for each in subclasses(op.Operator) if each.__module__.startswith("holdfast.operators.")}
    assert {each for each in ready if "describe" not in vars(each)} == set()
    assert ready == {type(operator) for operator, _ in READY} - {Own, Newer}, "one without an example above"


WINDOW: dict[str, Any] = {"what": "window", "size": "30 s", "every": "10 s", "by": "w", "time": "t", "n": op.count()}
CHANGES: list[tuple[Callable[..., op.Operator], dict[str, Any], dict[str, Any], set[str]]] = [
    (
        op.aggregate,
        {"by": "k", "n": op.sum("v"), "ttl": "1 s", "time": "t"},
        {"by": "j", "n": op.max("v"), "aggregations": (), "ttl": "2 s", "time": "u"},
        set(),
    ),
    (
        op.aggregate,
        {"by": "k", "n": op.sum("v")},
        {"by": ["k", "j"], "n": op.sum("w"), "aggregations": (), "ttl": None, "time": None},
        set(),
    ),
    (op.combine, {"by": "k", "n": op.sum("v")}, {"by": "j", "n": op.min("v"), "aggregations": ()}, set()),
    (
        op.Windowed,
        {**WINDOW, "top": (3, "n"), "emit": "append"},
        {"size": "40 s", "every": "15 s", "by": "v", "time": "u", "n": op.count("v"), "top": (4, "n")}
        | {"what": None, "aggregations": (), "emit": None},
        {"top"},
    ),
    (
        op.Windowed,
        {**WINDOW, "emit": "append"},
        {"emit": "update", "by": None, "what": None, "size": None, "every": None, "time": None, "top": None}
        | {"aggregations": ()},
        {"emit"},
    ),
    (
        op.Sessions,
        {
            "by": "k",
            "emit": "append",
            "start": "s",
            "end": "e",
            "time": "t",
            "gap": "1 s",
            "meaning": {},
            "late": False,
            "n": op.count(),
        },
        {"by": "j", "emit": "update", "start": "a", "end": "b", "time": "u", "gap": "2 s", "meaning": {"k": "x"}}
        | {"n": op.count("v"), "late": None, "aggregations": ()},
        {"emit"},
    ),
    (
        op.top_k,
        {"keep": 3, "value": "n", "key": "k", "within": {"end": "int64"}, "closes": "end", "rising": False},
        {"keep": 4, "value": "m", "key": "j", "within": ["end", "x"], "closes": None, "rising": True, "type": None},
        {"keep"},
    ),
    (
        op.top_k,
        {"keep": 3, "value": "n", "key": "k", "rising": True},
        {"keep": 4, "value": "m", "key": "j", "within": "end"} | {"rising": False, "type": None, "closes": None},
        set(),
    ),
    (
        op.deduplicate,
        {"by": "k", "time": "t", "within": "1 s"},
        {"by": "j", "time": "u", "within": "2 s"},
        set(),
    ),
    (
        op.join,
        {"left": LEFT, "right": RIGHT, "on": "k", "size": "2 s", "every": "1 s", "how": "inner"},
        {"left": op.side("a", {"z": "int64"}, time="t"), "right": op.side("b", {"y": "int64"}, time="u"), "on": "j"}
        | {"size": "3 s", "every": "2 s", "how": "outer"},
        {"how"},
    ),
    (
        StreamJoin,
        {"by": "k", "left": ONE, "right": TWO, "kind": "inner", "where": [("a", "<", "b")], "meaning": {"a": "x"}},
        {"by": "j", "left": replace(ONE, time=None), "right": replace(TWO, over=None), "kind": "full"}
        | {"where": [("a", "<=", "b")], "meaning": {"a": "y"}},
        set(),
    ),
]


@pytest.mark.parametrize(("make", "given", "others", "answers"), CHANGES)
def test_whatever_is_given_to_a_stateful_operator_is_described(
    make: Callable[..., op.Operator], given: dict[str, Any], others: dict[str, Any], answers: set[str]
) -> None:
    """None: it is only a word in messages, is told by the schema of the state, or cannot change by itself."""
    assert set(inspect.signature(make).parameters) <= set(others), "an argument without an example"
    base = make(**given).describe()
    for name, value in others.items():
        if value in (None, ()):
            continue
        now = make(**{**given, name: value}).describe()
        assert now != base, f"{name} is not described"
        assert (remembers(now) == remembers(base)) == (name in answers), name
        assert set(now.get(ANSWERS, {})) == set(base.get(ANSWERS, {})) or name == "rising"


def test_what_words_do_not_show_is_named_by_its_place() -> None:
    old = op.aggregate("page", total=op.sum("amount")).describe()
    assert change(old, op.aggregate("page", total=op.max("amount")).describe()) == (
        "was sum(amount) by page, is max(amount) by page now"
    )
    assert change(old, op.aggregate("page", all=op.sum("amount")).describe()) == (
        "had computes.total sum(amount), has none now, had computes.all none, has sum(amount) now"
    )
    assert told({"kind": "from the future", "x": 1}) == '{"kind": "from the future", "x": 1}'


def test_functions_are_compared_by_name_and_version_alone() -> None:
    def describe(function: Callable[..., Any]) -> str:
        return str(op.FunctionOperator(function).describe()["function"])

    class Called:
        def __call__(self, batch: pa.Table) -> pa.Table:
            return batch

    assert describe(first) == describe(functools.partial(first)) == "first"
    assert describe(len) == "len"
    assert describe(Called()).endswith(".Called")
    # Two lambdas of one place are the same to whoever only knows their name; nothing with an address is put down.
    assert describe(lambda batch: batch) == describe(lambda batch: None) == f"{_here()}.<locals>.<lambda>"


def _here() -> str:
    return test_functions_are_compared_by_name_and_version_alone.__qualname__


def test_a_class_derived_from_a_described_one_adds_its_name_and_version() -> None:
    plain, derived = op.aggregate("k", n=op.count()), Derived("k", n=op.count())
    assert description_of(plain) == plain.describe()
    assert description_of(derived) == {**plain.describe(), "class": "Derived", "version": 3}
    assert description_of(op.chain(Own()))["operators"] == [{"kind": "operator", "class": "Own", "version": 1}]


def test_version_is_a_column_beside_expressions_and_a_version_beside_functions() -> None:
    trial = op.Trial(op.Pipeline(op.source("s", op.map("v", version=pl.col("v") + 1))))
    assert trial.epoch(pa.table({"v": [1]})).output.to_pylist() == [{"v": 1, "version": 2}]
    lists = op.Trial(op.Pipeline(op.source("s", op.flat_map(version=pl.col("vs")))))
    assert lists.epoch(pa.table({"vs": [[1, 2]]})).output.to_pylist() == [{"version": 1}, {"version": 2}]
    for make in (
        lambda: op.map(first, version=pl.col("v")),
        lambda: op.flat_map(words, {"w": "string"}, version=pl.col("v")),
    ):
        with pytest.raises(Invalid, match="the version of a function is a number or a text, got an expression"):
            make()
    with pytest.raises(Invalid, match="map: a column name or a polars expression"):
        op.map("v", version=2)


def test_a_signature_says_what_every_step_does() -> None:
    pipeline = op.Pipeline(
        op.source("clicks", event_time="time", delay_seconds=5),
        op.step("good", op.filter(pl.col("ok")), "clicks"),
        op.step("totals", op.tumbling("3 s", by="page", time="time", n=op.count()), "good"),
    )
    signature = pipeline.signature
    assert signature == json.loads(json.dumps(signature))
    assert signature["clicks"]["does"] == {
        "kind": "source",
        "operator": {"kind": "function", "function": "as_they_are", "version": 1},
        "event_time": "time",
        "delay_seconds": 5,
    }
    assert [signature[name]["timed"] for name in ("clicks", "good", "totals")] == [False, False, True]
    assert [signature[name]["prepares"] for name in ("clicks", "good", "totals")] == [False, False, True]
    assert signature["totals"]["does"]["size_us"] == 3_000_000


@pytest.mark.parametrize("limit", [float("nan"), {1, 2}, object()])
def test_what_cannot_be_put_down_is_refused_by_name(limit: object) -> None:
    assert op.Pipeline(op.source("s"), op.step("o", Set(5), "s")).signature["o"]["does"]["limit"] == 5
    with pytest.raises(Invalid, match="operator o: describe must give JSON"):
        _ = op.Pipeline(op.source("s"), op.step("o", Set(limit), "s")).signature
