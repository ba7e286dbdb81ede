"""Joins of two streams against a plain loop: rows out of order, late, without a key or a time; several tasks."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast import operators as op
from holdfast.errors import Invalid
from holdfast.operators.contract import State
from holdfast.operators.shelf import HELD
from holdfast.operators.stream_join import Comparison, Half, Kind, StreamJoin, _compared
from holdfast.state import KeyRange, TaskState
from holdfast.topology import Task

SECOND = 1_000_000
KINDS: tuple[Kind, ...] = ("inner", "left", "right", "full")
TIME = pa.timestamp("us", "UTC")
Row = tuple[int, str | None, int | None, bool | None, int]
"""Side, key, second, passes, and a number that tells rows apart."""


@dataclass
class Held:
    row: Row
    matched: bool = False


@dataclass
class Plain:
    """As StreamingSymmetricHashJoinExec does it, row by row. A right row matches if it comes 0 to 4 seconds later.

    ``lasts``: seconds after its own time at which a row of each side is forgotten.
    """

    kind: Kind
    lasts: tuple[int | None, int | None] = (4, 0)
    late_by_time: tuple[bool, bool] = (True, True)
    held: tuple[list[Held], list[Held]] = field(default_factory=lambda: ([], []))
    late: int = 0

    def outer(self, side: int) -> bool:
        return self.kind == "full" or self.kind == ("left", "right")[side]

    def over(self, side: int, row: Row, now: int | None) -> bool:
        lasts, time = self.lasts[side], row[2]
        return lasts is not None and now is not None and time is not None and time + lasts <= now

    def epoch(self, rows: list[Row], before: int | None, now: int | None) -> list[tuple[int | None, int | None]]:
        told: list[tuple[int | None, int | None]] = []
        for side in (0, 1):
            for row in (each for each in rows if each[0] == side):
                never = row[3] is not True or row[1] is None
                if never and not self.outer(side):
                    continue
                if self.late_by_time[side] and before is not None and row[2] is not None and row[2] <= before:
                    self.late += 1
                    continue
                if row[3] is not True:
                    told.append(_alone(side, row))
                    continue
                mine = Held(row)
                for other in self.held[1 - side]:
                    if _match(*((row, other.row) if side == 0 else (other.row, row))):
                        mine.matched = other.matched = True
                        told.append((row[4], other.row[4]) if side == 0 else (other.row[4], row[4]))
                self.held[side].append(mine)
        for side in (0, 1):
            gone = [each for each in self.held[side] if self.over(side, each.row, now)]
            self.held[side][:] = [each for each in self.held[side] if each not in gone]
            told += [_alone(side, each.row) for each in gone if self.outer(side) and not each.matched]
        return sorted(told, key=str)


def _alone(side: int, row: Row) -> tuple[int | None, int | None]:
    return (row[4], None) if side == 0 else (None, row[4])


def _match(left: Row, right: Row) -> bool:
    return left[1] == right[1] is not None and None not in (left[2], right[2]) and 0 <= right[2] - left[2] <= 4


def table(rows: list[Row]) -> pa.Table:
    def column(place: int, type_: pa.DataType, side: int | None = None, scale: int = 1) -> pa.Array:
        values = [row[place] if side is None or row[0] == side else None for row in rows]
        return pa.array([each * scale if scale > 1 and each is not None else each for each in values], type_)

    halves = {}
    for side, name in ((0, "l"), (1, "r")):
        passes = pa.array([row[3] if row[0] == side else None for row in rows], pa.bool_())
        halves |= {f"{name}t": column(2, TIME, side, SECOND), f"{name}p": passes}
        halves |= {f"{name}v": column(4, pa.int64(), side)}
    upper = [None if row[0] or row[2] is None else (row[2] + 4) * SECOND for row in rows]
    return pa.table({
        "side": column(0, pa.int8()), "k": column(1, pa.string()), **halves, "lu": pa.array(upper, TIME),
        "time": column(2, pa.int64()),
    })  # fmt: skip


def half(name: str, lasts: int | None, late: bool = True) -> Half:
    types = {"t": TIME, "p": pa.bool_(), "v": pa.int64()} | ({"u": TIME} if name == "l" else {})
    columns = pa.schema([(f"{name}{each}", kind) for each, kind in types.items()])
    over = (f"{name}t", lasts * SECOND) if lasts is not None else None
    return Half(columns, (f"{name}v",), f"{name}t" if late else None, over, f"{name}p")


RANGE: list[tuple[str, Comparison, str]] = [("lt", "<=", "rt"), ("lu", ">=", "rt")]


def join_like(plain: Plain) -> StreamJoin:
    left, right = (half(n, s, late) for n, s, late in zip("lr", plain.lasts, plain.late_by_time, strict=True))
    return StreamJoin({"k": "string"}, left, right, plain.kind, RANGE)


def pipeline(operator: StreamJoin, senders: int, tasks: int) -> op.Pipeline:
    source = op.source("rows", event_time="time", parallelism=senders)
    return op.Pipeline(source, op.step("pairs", operator, "rows", parallelism=tasks))


NAMES, PASSES = st.sampled_from(["a", "a", "b", None]), st.sampled_from([True, True, True, True, False, None])
TIMES = st.one_of(st.none(), st.integers(0, 12))
ROWS = st.lists(st.tuples(st.integers(0, 1), NAMES, TIMES, PASSES), max_size=10)


def numbered(epochs: list[list[tuple[Any, ...]]]) -> list[list[Row]]:
    return [[(*row, 100 * at + place) for place, row in enumerate(rows)] for at, rows in enumerate(epochs)]  # type: ignore[misc]


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None, derandomize=True, max_examples=30)
@given(
    drawn=st.lists(ROWS, max_size=6),
    senders=st.integers(1, 2),
    tasks=st.integers(1, 3),
    lasts=st.sampled_from([(4, 0), (4, 0), (4, None), (None, 0), (None, None)]),
    late=st.sampled_from([(True, True), (True, True), (True, False)]),
)
def test_pairs_and_rows_alone_are_those_of_a_plain_loop(
    kind: Kind,
    drawn: list[list[tuple[Any, ...]]],
    senders: int,
    tasks: int,
    lasts: tuple[int | None, int | None],
    late: tuple[bool, bool],
) -> None:
    plain = Plain(kind, lasts, late)
    running = op.Trial(pipeline(join_like(plain), senders, tasks))
    now: int | None = None
    counted = 0
    for rows in numbered(drawn):
        before = now
        times = [row[2] for row in rows if row[2] is not None]
        now = max([*times, *([] if now is None else [now])], default=None)
        answer = running.epoch(table(rows))
        got = sorted(zip(answer.output["lv"].to_pylist(), answer.output["rv"].to_pylist(), strict=True), key=str)
        assert got == plain.epoch(rows, before, now)
        counted += answer.counters.get("pairs", {}).get("late", 0)
        assert counted == plain.late
    states = [running.states[Task("pairs", number)] for number in range(tasks)]
    for side, name in enumerate(("left", "right")):
        held = sum(len(state[name]) for state in states)
        told = sum(sum(state[f"{name}_keys"].to_table()[HELD].to_pylist()) for state in states)
        assert held == told, "a key knows how many rows it has"
        assert held >= len(plain.held[side]) if not plain.outer(side) else held == len(plain.held[side])


def views(operator: StreamJoin, state: TaskState, epoch: int, before: int, now: int) -> State:
    return State(state.tables, Task("pairs", 0), epoch, now * SECOND, before * SECOND)


@pytest.mark.parametrize("kind", KINDS)
def test_an_epoch_again_gives_the_same_bytes(kind: Kind) -> None:
    operator = join_like(Plain(kind))
    state = TaskState.empty(operator.tables, -1)
    for epoch in range(6):
        rows = [(i % 2, "abcde"[i % 5], epoch * 3 + i % 4, True, 100 * epoch + i) for i in range(20)]
        given = operator.prepare("rows", table(rows))
        first, again = (views(operator, state, epoch, epoch * 3 - 3, epoch * 3) for _ in range(2))
        assert operator.process(given, first).equals(operator.process(given, again))
        changes = {name: view.change for name, view in first.views.items()}
        assert all(changes[name].encode() == view.change.encode() for name, view in again.views.items())
        state = state.apply(changes, epoch)
    assert state["left"].to_table().num_rows


def test_a_state_cut_in_two_goes_on_as_before() -> None:
    """By the hash of the key, as when an operator gets more tasks."""
    operator, plain = join_like(Plain("full")), Plain("full")
    state = TaskState.empty(operator.tables, 0)
    rows: list[Row] = [(i % 2, "abcdefgh"[i % 8], i // 4, True, i) for i in range(16)]
    view = views(operator, state, 0, 0, 1)
    operator.process(operator.prepare("rows", table(rows)), view)
    plain.epoch(rows, 0, 1)
    state = state.apply({name: each.change for name, each in view.views.items()}, 0)
    got = []
    for part in KeyRange.whole().split(2):
        names = ["left_keys", "right_keys"]
        mine = {name: state[name].slice(part) for name in names}
        mine |= {name.removesuffix("_keys"): _of(state[name.removesuffix("_keys")], mine[name]) for name in names}
        last = views(operator, TaskState(0, mine), 1, 1, 60)
        answer = operator.process(operator.prepare("rows", table([])), last)
        got += list(zip(answer["lv"].to_pylist(), answer["rv"].to_pylist(), strict=True))
        assert not any(len(each.table) for each in last.views.values())
    assert sorted(got, key=str) == plain.epoch([], 1, 60)


def _of(rows: Any, keys: Any) -> Any:
    whole = rows.to_table()
    mine = whole.filter(pa.compute.is_in(whole["k"], keys.to_table()["k"].combine_chunks()))
    return type(rows).from_table(rows.schema, mine, rows.epoch)


def test_many_rows_of_a_key_keep_their_numbers_together() -> None:
    """Rows without a time stay for ever; others of their key come and go between them."""
    operator, plain = join_like(Plain("left")), Plain("left")
    state = TaskState.empty(operator.tables, -1)
    for epoch in range(12):
        rows: list[Row] = [(0, "a", None if (epoch + i) % 7 == 0 else epoch, True, 10 * epoch + i) for i in range(5)]
        rows.append((1, "a", epoch, True, 10 * epoch + 9))
        view = views(operator, state, epoch, epoch - 1, epoch)
        answer = operator.process(operator.prepare("rows", table(rows)), view)
        got = sorted(zip(answer["lv"].to_pylist(), answer["rv"].to_pylist(), strict=True), key=str)
        assert got == plain.epoch(rows, epoch - 1, epoch)
        state = state.apply({name: each.change for name, each in view.views.items()}, epoch)
        numbers = sorted(state["left"].to_table()["row.number"].to_pylist())
        assert numbers == list(range(len(plain.held[0])))


NAN = float("nan")


@pytest.mark.parametrize(
    ("left", "right", "holds"),
    [
        ([1, 2, 3, None, None], [2, 2, 2, 2, None], {"<": "t", "<=": "tt", ">": "--t", ">=": "-tt", "!=": "t-t"}),
        ([1, 2, 3, None, None], [2, 2, 2, 2, None], {"=": "-t", "<=>": "-t--t"}),
        (["a", "b"], ["b", "B"], {"<": "t", ">": "-t", "=": "", "!=": "tt"}),
        ([1.0, NAN, NAN, -0.0], [NAN, 1.0, NAN, 0.0], {"<": "t", "<=": "t-tt", ">": "-t", ">=": "-ttt", "=": "--tt"}),
    ],
)
def test_columns_are_compared_as_spark_does(left: list[Any], right: list[Any], holds: dict[Comparison, str]) -> None:
    for comparison, told in holds.items():
        got = _compared(pa.array(left), comparison, pa.array(right))
        assert "".join("t" if each else "-" for each in got).rstrip("-") == told, comparison


def test_what_was_forgotten_matches_nothing_even_while_it_lies_about() -> None:
    """Left rows that nobody waits for go now and then; a right side without a watermark is never late."""
    plain = Plain("inner", (400, 0), (True, False))
    operator = StreamJoin({"k": "string"}, half("l", 400), half("r", 0, False))
    state = TaskState.empty(operator.tables, -1)
    told = []
    for epoch, (rows, now) in enumerate([([(0, "a", 1, True, 1)], 310), ([], 402), ([(1, "a", 1, True, 2)], 403)]):
        view = views(operator, state, epoch, (0, 310, 402)[epoch], now)
        told.append(operator.process(operator.prepare("rows", table(rows)), view).num_rows)
        state = state.apply({name: each.change for name, each in view.views.items()}, epoch)
        plain.epoch(rows, None, now)
    assert not any(told) and not plain.held[0]


def test_keys_of_several_columns_and_a_time_among_them() -> None:
    """The key's own time says when both sides are forgotten."""
    keys = {"k": pa.float64(), "w": TIME}
    sides = [Half(pa.schema([(n, pa.int64())]), (n,), None, ("w", 0)) for n in ("x", "y")]
    operator = StreamJoin(keys, *sides, "full")
    state = TaskState.empty(operator.tables, -1)

    def rows(*given: tuple[int, float | None, int, int]) -> pa.Table:
        return pa.table({
            "side": pa.array([row[0] for row in given], pa.int8()),
            "k": pa.array([row[1] for row in given], pa.float64()),
            "w": pa.array([row[2] * SECOND for row in given], TIME),
            "x": pa.array([None if row[0] else row[3] for row in given], pa.int64()),
            "y": pa.array([row[3] if row[0] else None for row in given], pa.int64()),
        })  # fmt: skip

    epochs = [rows((0, 0.0, 5, 1), (0, None, 5, 2), (1, None, 5, 3)), rows((1, -0.0, 5, 4), (1, 0.0, 6, 5)), rows()]
    told = []
    for epoch, (batch, now) in enumerate(zip(epochs, (1, 2, 6), strict=True)):
        view = views(operator, state, epoch, 0, now)
        told.append(operator.process(operator.prepare("rows", batch), view).to_pylist())
        state = state.apply({name: each.change for name, each in view.views.items()}, epoch)
    alone = [{"x": 2, "y": None}, {"x": None, "y": 3}, {"x": None, "y": 5}]
    assert told[:2] == [[], [{"x": 1, "y": 4}]] and sorted(told[2], key=str) == sorted(alone, key=str)


def test_what_does_not_fit_is_refused_by_name() -> None:
    left, right = half("l", 4), half("r", 0)
    cases: list[tuple[dict[str, Any], str]] = [
        ({"kind": "semi"}, "the kind must be one of inner, left, right, full, got 'semi'"),
        ({"where": [("lt", "~", "rt")]}, "a condition compares by < <= > >= = != <=>, got '~'"),
        ({"where": [("rt", "<", "lt")]}, "compares a left column with a right one, got rt and lt"),
        ({"left": replace(left, output=("z",))}, "no column 'z' among lt, lp, lv, lu"),
        ({"left": replace(left, over=("z", 1))}, "rows are over by 'z', which is not among its columns"),
        ({"right": left}, "column 'lt' would be there twice"),
        ({"by": {"k": pa.struct([("a", pa.int64())])}}, "key 'k' is struct<a: int64>; join by its fields"),
    ]
    for given_, told in cases:
        with pytest.raises(Invalid, match=told.replace("(", r"\(")):
            StreamJoin(**{"by": "k", "left": left, "right": right, **given_})
