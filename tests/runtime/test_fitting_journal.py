"""Epochs of the journal serve another pipeline only if it would have journalled them just so."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest
from changed_pipelines import MAXIMA, SCHEMA, Own, clicks, remember, straight

from holdfast import operators as op
from holdfast.runtime.driver.fitting import journalled_otherwise
from holdfast.runtime.worker.blocks import Block
from holdfast.runtime.worker.processing import outgoing, process_source
from holdfast.topology import Task


def sent(pipeline: op.Pipeline) -> list[tuple[Any, ...]]:
    """The blocks of an epoch of drawn rows, of every source task."""
    draw = random.Random(11)
    rows = pa.table(
        {
            "page": [draw.choice("abcdefgh") for _ in range(60)],
            "user": [draw.choice("uvwxyz") for _ in range(60)],
            "amount": [draw.randint(-5, 50) for _ in range(60)],
            "price": [draw.randint(1, 9) for _ in range(60)],
        }
    )
    blocks: list[Block] = []
    for step in pipeline.sources:
        for number in range(step.parallelism):
            task = Task(step.name, number)
            reads = pipeline.columns_of(step.name)
            read = rows.select([name for name in rows.column_names if reads is None or name in reads])
            blocks += outgoing(pipeline, task, process_source(pipeline, task, read, 0), 0, {})
    return [(block.sender, block.receiver, block.rows, block.table().to_pylist()) for block in blocks]


STREAM = "(stream clicks -> totals)"
SENT: dict[str, tuple[op.Pipeline, op.Pipeline, str]] = {
    "function": (straight(), straight(MAXIMA), f"what totals makes of rows before they are sent {STREAM}"),
    "column": (
        straight(),
        straight(op.aggregate("page", total=op.sum("price"))),
        f"what totals makes of rows before they are sent {STREAM}",
    ),
    "parallelism": (straight(), straight(tasks=3), "the parallelism of totals"),
    "sources": (straight(), straight(sources=2), "the parallelism of clicks"),
    "weights": (straight(), straight(weights=(1, 3)), "the weights of stream clicks -> totals"),
    "key": (
        straight(op.aggregate(["page", "user"], n=op.count()), key="page"),
        straight(op.aggregate(["page", "user"], n=op.count()), key="user"),
        "the key of stream clicks -> totals",
    ),
    "a reader more": (
        straight(),
        op.Pipeline(*straight().steps, op.step("all", op.map("page"), "clicks")),
        "who reads source clicks (stream clicks -> all)",
    ),
    "a reader less": (
        op.Pipeline(*straight().steps, op.step("all", op.map("page"), "clicks")),
        straight(),
        "who reads source clicks (stream clicks -> all)",
    ),
    "a filter by another column": (
        clicks(),
        clicks(good=op.filter("price < 2")),
        "what is read of source clicks (price too)",
    ),
    "all columns": (
        clicks(),
        op.Pipeline(*clicks().steps, op.step("all", lambda rows: rows, "good")),
        "what is read of source clicks (all columns, not amount and page alone)",
    ),
    "a source with a function": (
        clicks(),
        op.Pipeline(op.source("clicks", lambda rows: rows), *clicks().steps[1:]),
        "what is read of source clicks (all columns, not amount and page alone)",
    ),
    "a source with columns of its own": (
        clicks(),
        op.Pipeline(op.source("clicks", op.map("page", "amount", "price")), *clicks().steps[1:]),
        "what is read of source clicks (all columns, not amount and page alone)",
    ),
}


@pytest.mark.parametrize("change", SENT)
def test_what_was_journalled_otherwise_is_not_replayed(change: str) -> None:
    before, now, what = SENT[change]
    assert sent(before) != sent(now), "an example in which nothing changes"
    assert journalled_otherwise(before.signature, now) == what


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (clicks(), clicks(MAXIMA)),
        (clicks(), clicks(good=op.filter("amount > 5"))),
        (clicks(), clicks(op.map("page"))),
        (clicks(), op.Pipeline(*clicks().steps, op.step("maxima", MAXIMA, op.stream("good", key="page")))),
        (straight(weights=(1, 3)), straight(weights=(2, 6))),
        (straight(Own()), straight(op.FunctionOperator(remember, SCHEMA))),
    ],
)
def test_what_is_made_anew_from_the_same_blocks_is_replayed(before: op.Pipeline, now: op.Pipeline) -> None:
    assert sent(before) == sent(now)
    assert journalled_otherwise(before.signature, now) is None


def test_what_was_journalled_with_more_columns_than_are_read_now_is_replayed() -> None:
    by_user = op.Pipeline(*clicks().steps, op.step("users", op.aggregate("user", n=op.count()), "good"))
    assert sent(by_user) != sent(clicks())
    assert journalled_otherwise(by_user.signature, clicks()) is None
    earlier = {name: {**step} for name, step in clicks().signature.items()}
    del earlier["clicks"]["columns"]  # from before columns were left out
    assert journalled_otherwise(earlier, by_user) is None


BOTH = op.aggregate(["page", "user"], n=op.count())


@pytest.mark.parametrize(
    ("before", "now", "what"),
    [
        (clicks(), clicks(tasks=3), "the parallelism of totals"),
        (clicks(), clicks(weights=(1, 2)), "the weights of stream good -> totals"),
        (clicks(BOTH), clicks(BOTH, key="user"), "the key of stream good -> totals"),
    ],
)
def test_rows_that_would_come_out_at_other_tasks_are_not_replayed_either(
    before: op.Pipeline, now: op.Pipeline, what: str
) -> None:
    """Some of an epoch's outputs may be published: with keys at other tasks, rows would be doubled or missing."""
    assert sent(before) == sent(now)
    assert journalled_otherwise(before.signature, now) == what
