"""Map, filter and flat map: functions and expressions, and messages for what does not fit."""

from __future__ import annotations

from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from holdfast import operators as op
from holdfast.errors import Invalid
from holdfast.operators.contract import State
from holdfast.topology import Task

BATCH = pa.table({"x": [1, 2, None, 4], "text": ["a b", "", None, "c"]})


def run(operator: op.Operator, batch: pa.Table = BATCH) -> list[dict[str, Any]]:
    output = operator.process(batch, State({}, Task("o", 0), 1))
    assert output is not None
    rows: list[dict[str, Any]] = output.to_pylist()
    return rows


def test_map_takes_a_function_or_the_columns_of_the_output() -> None:
    expected = [{"y": 2}, {"y": 4}, {"y": None}, {"y": 8}]
    assert run(op.map(y=pl.col("x") * 2)) == expected
    assert run(op.map(lambda t: pa.table({"y": pc.multiply(t["x"], 2)}))) == expected
    assert run(op.map(lambda t: pl.from_arrow(t).select(y=pl.col("x") * 2))) == expected
    assert run(op.map("x", pl.col("text").alias("t")))[0] == {"x": 1, "t": "a b"}


@pytest.mark.parametrize(
    "condition", [pl.col("x") > 1, "x > 1", lambda t: pc.greater(t["x"], 1), lambda t: [False, True, None, True]]
)
def test_filter_keeps_rows_for_which_the_condition_holds(condition: Any) -> None:
    assert [row["x"] for row in run(op.filter(condition))] == [2, 4]


def test_filter_by_a_constant() -> None:
    assert len(run(op.filter(pl.lit(True)))) == 4
    assert run(op.filter(pl.lit(False))) == []


def test_flat_map_by_expression_leaves_out_nulls_and_empty_lists() -> None:
    words = pl.col("text").str.extract_all(r"\S+")
    assert run(op.flat_map(word=words)) == [{"word": "a"}, {"word": "b"}, {"word": "c"}]
    assert run(op.flat_map(word=words, keep="x")) == [
        {"x": 1, "word": "a"},
        {"x": 1, "word": "b"},
        {"x": 4, "word": "c"},
    ]


def test_flat_map_by_function_gives_the_same_rows() -> None:
    def words(row: dict[str, Any]) -> list[dict[str, Any]]:
        return [{"word": word} for word in (row["text"] or "").split()]

    plain = run(op.flat_map(words, columns="word", keep="x"))
    assert plain == run(op.flat_map(word=pl.col("text").str.extract_all(r"\S+"), keep="x"))
    assert plain[0] == {"x": 1, "word": "a"}


def test_a_chain_is_its_operators_one_after_the_other() -> None:
    chain = op.chain(op.filter("x > 1"), lambda t: t.select(["x"]), op.combine({"x": "int64"}, n=op.count()))
    assert run(chain) == [{"x": 2, "n": 1}, {"x": 4, "n": 1}]
    assert run(chain, pa.table({})) == []


@pytest.mark.parametrize(
    ("operator", "message"),
    [
        (op.map(y=pl.col("z")), "map: input has no column 'z'; found: x, text"),
        (op.filter("z > 1"), "filter: input has no column 'z'; found: x, text"),
        (op.filter(pl.col("x") + 1), "filter: the condition must be true or false for each row, found int64"),
        (op.filter(lambda t: [True, False]), "one value a row, got 2 for 4 rows"),
        (op.map(y=pl.col("text").str.to_integer(strict=True)), "map: "),
        (op.map(lambda t: 5), "an operator answers with a pyarrow.Table or None, got int"),
        (op.flat_map(word=pl.col("text")), "flat map: word must be lists, found large_string"),
        (
            op.flat_map(word=pl.col("text").str.split(" "), keep="z"),
            "flat map: input has no column 'z'; found: x, text",
        ),
        (op.flat_map(lambda row: ["a"], columns="word"), "must give rows as dicts, got str"),
        (op.flat_map(lambda row: [{"n": "a"}], columns={"n": "int64"}), "do not fit the columns declared (n: int64)"),
    ],
)
def test_what_goes_wrong_with_a_batch_is_one_line(operator: op.Operator, message: str) -> None:
    with pytest.raises(Invalid) as caught:
        run(operator)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (op.map, "map: give a function of a table, or the columns of the output"),
        (op.chain, "chain: name at least one operator"),
        (lambda: op.chain(op.deduplicate("x")), "chain: Deduplicate keeps state; make it a step of its own"),
        (lambda: op.map(5), "map: a column name or a polars expression"),
        (lambda: op.filter("x >"), "filter: 'x >' is not a condition"),
        (op.flat_map, "flat map: exactly one named expression of lists is needed, got none"),
        (lambda: op.flat_map(lambda row: []), "flat map: say which columns the function gives"),
        (lambda: op.flat_map(x=pl.col("x"), keep="x"), "flat map: column 'x' is both kept and made"),
    ],
)
def test_a_wrong_declaration_is_refused_at_once(make: Any, message: str) -> None:
    with pytest.raises(Invalid) as caught:
        make()
    assert message in str(caught.value)
