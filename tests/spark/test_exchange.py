"""Shuffles between levels: every bundle comes to the slot it was made for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from py4j.clientserver import JavaClient

from holdfast import operators as op
from holdfast.runtime.history.outputs import read_output
from holdfast.runtime.spark import start
from holdfast.runtime.spark.exchange import REMEMBERED, Exchange
from holdfast.runtime.spark.java import java
from waiting import DEADLINE

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("widths", [(2, 2, 2), (2, 3, 2), (3, 3, 1)])
def test_bundles_come_to_their_slots_whatever_the_widths_of_levels(spark: Any, widths: tuple[int, ...]) -> None:
    exchange = Exchange(spark.sparkContext)
    level = exchange.located([None] * widths[0])
    for before, width in pairwise(widths):

        def stage(index: int, _: Iterable[bytes], width: int = width) -> list[bytes]:
            return [f"{index} to {slot}".encode() for slot in range(width)]

        level = exchange.shuffle(level, stage, before, [None] * width)
    came = exchange.collect(level, lambda index, arrived: [b"; ".join([str(index).encode(), *sorted(arrived)])])
    senders = range(widths[-2])
    assert [part.decode() for part in came] == [
        "; ".join([str(slot), *(f"{sender} to {slot}" for sender in senders)]) for slot in range(widths[-1])
    ]


def test_a_class_of_the_jvm_is_looked_up_once(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    names, asked = java(spark.sparkContext), list[str]()
    before = names.java.util.ArrayList
    send = JavaClient.send_command

    def counted(client: JavaClient, command: str, *rest: Any, **options: Any) -> Any:
        asked.append(command)
        return send(client, command, *rest, **options)

    monkeypatch.setattr(JavaClient, "send_command", counted)
    assert names.java.util.ArrayList is before and java(spark.sparkContext) is names
    assert asked == []


def test_places_that_were_asked_for_before_are_not_laid_out_anew(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each place takes six calls through the gateway, and every epoch asks for the same ones."""
    exchange, made = Exchange(spark.sparkContext), list[int]()
    laid_out = exchange._located

    def counted(payloads: Sequence[bytes], places: Any) -> Any:
        made.append(len(places))
        return laid_out(payloads, places)

    def through(width: int) -> list[bytes]:
        level = exchange.shuffle(
            exchange.located([None] * 2), lambda index, _: [b"%d" % index] * width, 2, ["host"] * width
        )
        return exchange.collect(level, lambda index, came: [b"%d:" % index + b"".join(sorted(came))])

    monkeypatch.setattr(exchange, "_located", counted)
    assert [through(3), through(3), through(1)] == [[b"0:01", b"1:01", b"2:01"]] * 2 + [[b"0:01"]]
    assert made == [2, 3, 1]


def test_few_arrangements_of_places_are_remembered(spark: Any) -> None:
    """Executors come and go: what was laid out for those that are gone goes too, the oldest first."""
    exchange = Exchange(spark.sparkContext)
    for number in range(REMEMBERED + 5):
        exchange.located([f"executor_host_{number}"])
    names = [places[0][0] for _, places in exchange._known]
    assert names == [f"executor_host_{number}" for number in range(5, REMEMBERED + 5)]


def test_partitions_in_a_row_are_read_in_their_order(spark: Any) -> None:
    exchange = Exchange(spark.sparkContext)
    row = exchange.in_a_row(exchange.dealt([b"one", b"two", b"three"]))
    assert row is not None
    assert exchange.collect(row, lambda index, came: [b"%d" % index, *came]) == [b"0", b"one", b"two", b"three"]


def test_partitions_with_places_of_their_own_are_not_put_in_a_row(spark: Any) -> None:
    """Spark would take those with a place before those without."""
    exchange = Exchange(spark.sparkContext)
    assert exchange.in_a_row(exchange.located([None, "elsewhere", None])) is None


def test_a_session_that_writes_large_texts_to_arrow_is_understood(spark: Any, tmp_path: Path) -> None:
    """The batches themselves do not say how long their offsets are: taken for short ones, texts would be others."""
    session = spark.newSession()
    session.conf.set("spark.sql.execution.arrow.useLargeVarTypes", "true")
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "rows.csv").write_text("abc\nde\nabc\n")
    words = session.readStream.schema("word string").csv(str(tmp_path / "rows"))
    counted = op.Pipeline(op.source("words"), op.step("n", op.aggregate("word", n=op.count()), "words"))
    assert start(words, counted, store=tmp_path / "store", epochs=1).awaitTermination(DEADLINE)
    found = read_output(tmp_path / "store", "final").select(["word", "n"]).to_pylist()
    assert sorted(found, key=str) == [{"word": "abc", "n": 2}, {"word": "de", "n": 1}]
