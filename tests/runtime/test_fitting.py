"""Code and state fit, or are refused by name: what counts as a change of an operator, and what is merely told."""

from __future__ import annotations

import json
import random
from typing import Any

import pyarrow as pa
import pytest

from holdfast import operators as op
from holdfast.errors import Invalid
from holdfast.runtime.driver.fitting import Fit, fit, journalled_otherwise
from holdfast.runtime.worker.blocks import Block
from holdfast.runtime.worker.processing import outgoing, process_source
from holdfast.state import StateSchema
from holdfast.topology import Task

SCHEMA = StateSchema(pa.schema({"page": pa.string()}), pa.schema({"n": pa.int64()}))


def remember(batch: pa.Table, state: op.State) -> pa.Table | None:
    return None


class Own(op.Operator):
    """Compared by name and version: what the tables are is compared beside."""

    by = ("page",)

    def __init__(self, value: pa.Schema = SCHEMA.value, name: str = "state", **more: StateSchema) -> None:
        self.tables = {name: StateSchema(SCHEMA.key, value), **more}


class Newer(Own):
    version = 2


TOTALS = op.aggregate("page", total=op.sum("amount"))
MAXIMA = op.aggregate("page", total=op.max("amount"))
VISITS = op.tumbling("30 s", by="page", time="time", n=op.count())


def clicks(
    totals: op.Operator = TOTALS,
    good: op.Operator | None = None,
    tasks: int = 2,
    sources: int = 1,
    name: str = "totals",
    event_time: str | None = None,
    delay: float = 0.0,
    **stream: Any,
) -> op.Pipeline:
    """clicks -> good -> totals, keyed by page."""
    stream = {"key": "page", **stream}
    return op.Pipeline(
        op.source("clicks", parallelism=sources, event_time=event_time, delay_seconds=delay),
        op.step("good", good or op.filter("amount > 0"), "clicks"),
        op.step(name, totals, op.stream("good", **stream), parallelism=tasks),
    )


def ranked(
    ranks: op.Operator,
    key: str = "page",
    tasks: int = 2,
    weights: tuple[float, ...] = (),
    read: op.Input | None = None,
) -> op.Pipeline:
    """clicks -> counts, keyed; then task by task, without a key of its own, to ranks."""
    counts = op.FunctionOperator(remember)
    read = read or op.stream("counts", partitioning="one-to-one")
    return op.Pipeline(
        op.source("clicks"),
        op.step("counts", counts, op.stream("clicks", key=key, weights=weights), parallelism=tasks),
        op.step("ranks", ranks, read, parallelism=tasks),
    )


def timed(
    event_time: str | None = "time", delay: float = 0.0, size: str = "30 s", tasks: int = 2, time: str = "time"
) -> op.Pipeline:
    visits = op.tumbling(size, by="page", time=time, n=op.count())
    return clicks(visits, event_time=event_time, delay=delay, tasks=tasks)


def fitted(before: op.Pipeline, now: op.Pipeline, *allow_changed: str) -> Fit:
    """As the signature is read back from a file."""
    return fit("X", json.loads(json.dumps(before.signature)), now, allow_changed)


CANNOT = "its state cannot follow. Give it another name, another store, or begin it anew with allow_changed="
LIE = "operator ranks: its rows lie as those of counts do"
REFUSED: dict[str, tuple[op.Pipeline, op.Pipeline, str]] = {
    "function": (
        clicks(),
        clicks(MAXIMA),
        f'store X: operator totals was sum(amount) by page, is max(amount) by page now; {CANNOT}["totals"]',
    ),
    "column": (
        clicks(),
        clicks(op.aggregate("page", total=op.sum("price"))),
        "operator totals was sum(amount) by page, is sum(price) by page now",
    ),
    "one more aggregate": (
        clicks(),
        clicks(op.aggregate("page", total=op.sum("amount"), n=op.count())),
        "operator totals was sum(amount) by page, is sum(amount), count() by page now",
    ),
    "name of an aggregate": (
        clicks(),
        clicks(op.aggregate("page", all=op.sum("amount"))),
        "operator totals had computes.total sum(amount), has none now",
    ),
    "type of a sum": (
        clicks(),
        clicks(op.aggregate("page", total=op.sum("amount", "float64"))),
        "operator totals, table 'state': column 'total' was int64 and is now double",
    ),
    "grouping": (
        clicks(),
        clicks(op.aggregate("user", total=op.sum("amount")), key="user"),
        "operator totals was sum(amount) by page, is sum(amount) by user now",
    ),
    "window": (
        timed(),
        timed(size="1 min"),
        "was count() by page in windows of 30 s of time, is count() by page in windows of 1 min of time now",
    ),
    "time of a window": (
        timed(),
        timed(time="at"),
        "was count() by page in windows of 30 s of time, is count() by page in windows of 30 s of at now",
    ),
    "event time": (
        timed(),
        timed(event_time="at"),
        "operator totals: the event time of clicks was column time, is column at now",
    ),
    "ready for own": (clicks(), clicks(Own()), "operator totals was sum(amount) by page, is Own version 1 now"),
    "version of a class": (clicks(Own()), clicks(Newer()), "operator totals was Own version 1, is Newer version 2 now"),
    "version of a function": (
        clicks(op.FunctionOperator(remember, SCHEMA)),
        clicks(op.FunctionOperator(remember, SCHEMA, version=2)),
        "operator totals was remember version 1, is remember version 2 now",
    ),
    "schema": (
        clicks(Own()),
        clicks(Own(pa.schema({"n": pa.string()}))),
        "operator totals, table 'state': column 'n' was int64 and is now string",
    ),
    "table": (clicks(Own()), clicks(Own(name="other")), "operator totals has no state table 'state' any more"),
    "key of a stream": (
        clicks(op.aggregate(["page", "user"], n=op.count()), key=["page", "user"]),
        clicks(op.aggregate(["page", "user"], n=op.count()), key="page"),
        "operator totals: stream good -> totals was keyed by page, user, is keyed by page now",
    ),
    "key for an only task": (
        clicks(tasks=1),
        clicks(tasks=1, key="user"),
        "operator totals: stream good -> totals was keyed by page, is keyed by user now",
    ),
    "weights": (
        clicks(weights=(1, 3)),
        clicks(weights=(3, 1)),
        "operator totals: stream good -> totals had weights 1, 3, has 3, 1 now",
    ),
    "weights given": (clicks(), clicks(weights=(1, 3)), "good -> totals had weights 1, 1, has 1, 3 now"),
    "partitioning": (
        ranked(TOTALS, read=op.stream("counts", key="page", partitioning="one-to-one")),
        ranked(TOTALS, read=op.stream("counts", key="page")),
        "operator ranks: stream counts -> ranks was one-to-one, is full now",
    ),
    "key upstream of one-to-one": (
        ranked(TOTALS),
        ranked(TOTALS, key="user"),
        f"{LIE}, and stream clicks -> counts was keyed by page, is keyed by user now",
    ),
    "weights upstream of one-to-one": (
        ranked(TOTALS),
        ranked(TOTALS, weights=(1, 2)),
        f"{LIE}, and stream clicks -> counts had weights 1, 1, has 1, 2 now",
    ),
    "parallelism without a key": (
        ranked(TOTALS),
        ranked(TOTALS, tasks=3),
        "ranks: stream counts -> ranks is one-to-one: tasks belong together in pairs, so its parallelism must stay",
    ),
    "stateless under the old name": (
        clicks(),
        clicks(op.map("page")),
        "operator totals has state there, but it keeps none now",
    ),
    "rising top k": (
        clicks(op.top_k(3, "amount", "user", within="page", rising=True)),
        clicks(op.top_k(4, "amount", "user", within="page", rising=True)),
        "operator totals was top 3 by amount of user within page, rising, is top 4",
    ),
}


@pytest.mark.parametrize("change", REFUSED)
def test_a_change_that_the_state_cannot_follow_is_named_and_can_be_allowed(change: str) -> None:
    before, now, message = REFUSED[change]
    with pytest.raises(Invalid) as caught:
        fitted(before, now)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    (name,) = {"totals", "ranks"} & set(now.by_name)
    with pytest.raises(Invalid):
        fitted(before, now, "good" if "good" in now.by_name else "counts")
    allowed = fitted(before, now, name)
    begins = allowed.removed if change == "stateless under the old name" else allowed.anew
    assert begins == (name,) and allowed.migrates
    # The list may stay in the code: nothing has changed the next time.
    assert fitted(now, now, name) == Fit()


TAKEN: dict[str, tuple[op.Pipeline, op.Pipeline, str]] = {
    "filter upstream": (
        clicks(),
        clicks(good=op.filter("amount > 5")),
        'operator good was filter [(col("amount")) > (dyn int: 0)], is filter [(col("amount")) > (dyn int: 5)] now; '
        "the state of totals stays",
    ),
    "function upstream": (
        clicks(good=op.FunctionOperator(remember)),
        clicks(good=op.FunctionOperator(remember, version=2)),
        "operator good was remember version 1, is remember version 2 now; the state of totals stays",
    ),
    "delay": (
        timed(),
        timed(delay=9.0),
        "operator clicks had delay_seconds 0.0, has 9.0 now; the state of totals stays",
    ),
    "longer ranking": (
        clicks(op.top_k(3, "amount", "user", within="page")),
        clicks(op.top_k(4, "amount", "user", within="page")),
        "operator totals was top 3 by amount of user within page, is top 4 by amount of user within page now; "
        "the state of totals stays",
    ),
    "another step in between": (
        clicks(),
        op.Pipeline(
            op.source("clicks"),
            op.step("good", op.filter("amount > 0"), "clicks"),
            op.step("better", op.filter("amount > 9"), "good"),
            op.step("totals", TOTALS, op.stream("better", key="page"), parallelism=2),
        ),
        "operator totals read good, reads better now",
    ),
}


@pytest.mark.parametrize("change", TAKEN)
def test_a_change_of_what_comes_from_now_on_is_taken_and_told(change: str) -> None:
    before, now, note = TAKEN[change]
    assert fitted(before, now) == Fit(notes=(note,))
    assert not Fit(notes=(note,)).migrates


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (clicks(), clicks()),
        (clicks(weights=(1, 3)), clicks(weights=(2, 6))),
        (clicks(Own()), clicks(Own(pa.schema({"n": pa.int64(), "new": pa.int64()}), more=SCHEMA))),
        (ranked(TOTALS, tasks=1), ranked(TOTALS, tasks=1, weights=(5,))),
        (clicks(tasks=1), clicks(tasks=1, partitioning="one-to-one")),
    ],
)
def test_what_is_the_same_in_effect_is_not_even_told(before: op.Pipeline, now: op.Pipeline) -> None:
    assert fitted(before, now) == Fit()


@pytest.mark.parametrize(
    ("before", "now", "resized"),
    [
        (clicks(tasks=2), clicks(tasks=3), ("totals",)),
        (clicks(tasks=2), clicks(tasks=3, weights=(1, 2, 3)), ("totals",)),
        (clicks(tasks=3), clicks(tasks=1), ("totals",)),
        (clicks(sources=1), clicks(sources=2), ("clicks",)),
        (timed(tasks=2), timed(tasks=1), ("totals",)),
        (timed(tasks=1), timed(tasks=2), ("totals",)),
        (ranked(TOTALS, tasks=2), ranked(TOTALS, tasks=1), ("counts", "ranks")),
    ],
)
def test_another_number_of_tasks_is_taken_where_the_state_can_be_cut(
    before: op.Pipeline, now: op.Pipeline, resized: tuple[str, ...]
) -> None:
    assert fitted(before, now) == Fit(resized=resized)


def test_watermarks_of_single_tasks_cannot_be_put_together() -> None:
    def pipeline(tasks: int) -> op.Pipeline:
        return op.Pipeline(
            op.source("clicks", event_time="time", parallelism=tasks),
            op.step("visits", VISITS, op.stream("clicks", partitioning="one-to-one"), parallelism=tasks),
        )

    with pytest.raises(Invalid, match="visits: behind stream clicks -> visits its tasks have watermarks of their own"):
        fitted(pipeline(2), pipeline(1))


def test_a_new_operator_begins_empty_and_one_that_is_gone_is_named() -> None:
    one, both = clicks(), op.Pipeline(*clicks().steps, op.step("maxima", MAXIMA, op.stream("good", key="page")))
    assert fitted(one, both) == Fit(added=("maxima",))
    with pytest.raises(Invalid) as caught:
        fitted(both, one)
    assert str(caught.value) == (
        "store X: operator maxima has state there, but the pipeline has no such operator any more. Put back what is "
        'gone, take another store, or let the state go with allow_changed=["maxima"]'
    )
    assert fitted(both, one, "maxima") == Fit(removed=("maxima",))
    renamed = clicks(name="sums")
    with pytest.raises(Invalid, match="operator totals has state there"):
        fitted(one, renamed)
    assert fitted(one, renamed, "totals") == Fit(added=("sums",), removed=("totals",))
    stateless = fitted(one, clicks(op.map("page")), "totals")
    assert stateless.notes == ('operator totals was sum(amount) by page, is map col("page") now',)


def test_all_that_do_not_fit_are_told_at_once() -> None:
    def pipeline(total: op.Operator, most: op.Operator) -> op.Pipeline:
        return op.Pipeline(*clicks(total).steps, op.step("most", most, op.stream("good", key="page")))

    before, now = pipeline(TOTALS, MAXIMA), pipeline(MAXIMA, TOTALS)
    with pytest.raises(Invalid) as caught:
        fitted(before, now)
    assert str(caught.value) == (
        "store X: operator totals was sum(amount) by page, is max(amount) by page now; operator most was max(amount) "
        "by page, is sum(amount) by page now; their state cannot follow. Give them other names, another store, or "
        'begin them anew with allow_changed=["totals", "most"]'
    )
    with pytest.raises(Invalid, match=r"begin it anew with allow_changed=\[\"most\"\]"):
        fitted(before, now, "totals")
    assert fitted(before, now, "totals", "most").anew == ("totals", "most")


def test_who_reads_an_operator_that_begins_anew_keeps_its_state_and_is_told() -> None:
    def pipeline(totals: op.Operator, keep: int) -> op.Pipeline:
        ranks = op.top_k(keep, "total", "page", rising=True)
        return op.Pipeline(*clicks(totals).steps, op.step("ranks", ranks, "totals"))

    found = fitted(pipeline(TOTALS, 3), pipeline(MAXIMA, 3), "totals")
    assert found.notes == ("operator totals begins anew; what ranks made of it before stays",)
    assert fitted(pipeline(TOTALS, 3), pipeline(MAXIMA, 4), "totals", "ranks").notes == ()


def test_a_name_that_nobody_has_is_refused() -> None:
    with pytest.raises(Invalid, match="allow_changed: 'totlas' is no operator of the pipeline or of the store; know"):
        fitted(clicks(), clicks(), "totlas")


def both(*names: str, operator: op.Operator, event_time: str | None = "time") -> op.Pipeline:
    return op.Pipeline(
        *(op.source(name, event_time=event_time) for name in names),
        op.step("both", operator, [op.stream(name, key="page") for name in names], parallelism=2),
    )


def test_a_watermark_alone_comes_again_and_is_never_a_reason_to_refuse() -> None:
    def union(table: pa.Table) -> pa.Table:
        return table

    two, three = (both(*names, operator=op.map(union)) for names in ("ab", "abc"))
    assert two.timed == {"both"}
    assert fitted(two, three).anew == ("both",)
    assert fitted(two, op.Pipeline(*two.sources)) == Fit(removed=("both",))
    assert fitted(op.Pipeline(*two.sources), two) == Fit(added=("both",))


def test_a_watermark_that_knows_nothing_of_a_new_input_would_open_closed_windows_again() -> None:
    two, three = (both(*names, operator=Own()) for names in ("ab", "abc"))
    with pytest.raises(Invalid, match="operator both: it reads c now and did not before, so its watermark knows noth"):
        fitted(two, three)
    assert fitted(three, two).notes == ("operator both read a, b and c, reads a and b now",)


def test_whoever_keeps_a_watermark_no_more_is_named() -> None:
    before, now = (both("a", "b", operator=Own(), event_time=time) for time in ("time", None))
    with pytest.raises(Invalid, match="operator both kept a watermark, and nothing that it reads has event time now"):
        fitted(before, now)
    assert not fitted(now, before).migrates, "a watermark that begins is an empty table more"


def test_only_sources_have_the_event_time() -> None:
    class Shift(op.Operator):
        def __init__(self, event_time: str) -> None:
            self.event = event_time

        def describe(self) -> dict[str, Any]:
            return {**super().describe(), "event_time": self.event}

    before, now = (clicks(VISITS, Shift(to), event_time="time") for to in ("a", "b"))
    (note,) = fitted(before, now).notes
    assert note == "operator good had event_time a, has b now; the state of totals stays"


def test_a_store_without_descriptions_is_taken_with_one_line() -> None:
    def earlier(pipeline: op.Pipeline) -> dict[str, Any]:
        kept = ("parallelism", "inputs", "tables")
        return {name: {part: step[part] for part in kept} for name, step in pipeline.signature.items()}

    note = (
        "store X was written by an earlier version, which did not put down what its operators do; they are taken as "
        "unchanged"
    )
    assert fit("X", earlier(clicks()), clicks(MAXIMA)) == Fit(notes=(note,))
    assert fit("X", earlier(timed()), timed()) == Fit(notes=(note,))
    union = both("a", "b", operator=op.map(lambda table: table))
    assert fit("X", earlier(union), union) == Fit(notes=(note,))
    assert fit("X", earlier(clicks()), clicks(tasks=3)) == Fit(resized=("totals",), notes=(note,))
    with pytest.raises(Invalid, match="operator totals: stream good -> totals had weights 1, 1, has 1, 2 now"):
        fit("X", earlier(clicks()), clicks(weights=(1, 2)))
    assert journalled_otherwise(earlier(clicks()), clicks(MAXIMA)) is None


# The journal: what was sent is what would be sent now


def straight(totals: op.Operator = TOTALS, tasks: int = 2, sources: int = 1, **stream: Any) -> op.Pipeline:
    """The aggregate reads the source itself: rows are combined before they are journalled."""
    stream = {"key": "page", **stream}
    return op.Pipeline(
        op.source("clicks", parallelism=sources),
        op.step("totals", totals, op.stream("clicks", **stream), parallelism=tasks),
    )


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
            blocks += outgoing(pipeline, task, process_source(pipeline, task, rows, 0), 0, {})
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


@pytest.mark.parametrize(
    ("now", "what"),
    [
        (clicks(tasks=3), "the parallelism of totals"),
        (clicks(weights=(1, 2)), "the weights of stream good -> totals"),
        (clicks(op.aggregate("user", total=op.sum("amount")), key="user"), "the key of stream good -> totals"),
    ],
)
def test_rows_that_would_come_out_at_other_tasks_are_not_replayed_either(now: op.Pipeline, what: str) -> None:
    """Some of an epoch's outputs may be published: with keys at other tasks, rows would be doubled or missing."""
    assert sent(clicks()) == sent(now)
    assert journalled_otherwise(clicks().signature, now) == what
