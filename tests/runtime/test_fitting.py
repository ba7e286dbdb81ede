"""Code and state fit, or are refused by name: what counts as a change of an operator, and what is merely told."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from changed_pipelines import MAXIMA, SCHEMA, TOTALS, VISITS, Newer, Own, both, clicks, ranked, remember, timed

from holdfast import operators as op
from holdfast.errors import Invalid
from holdfast.runtime.driver.fitting import Fit, fit, journalled_otherwise


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
