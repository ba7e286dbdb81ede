"""Keys that are equal and not the same bits, 0.0 and -0.0 and the NaNs, are one key to every operator that takes keys.

In one epoch, over epochs, from several senders, and where an older version has put several forms into a store.
"""

from __future__ import annotations

import pkgutil
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import plain_operators as naive
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast import operators as op
from holdfast.operators.first_rows import FirstRows
from holdfast.operators.grouped import Grouped
from holdfast.operators.rows import Chain, Filter, FlatMap, Map
from holdfast.operators.stream_join import Half, StreamJoin
from holdfast.state import TaskState
from holdfast.state.table import StateTable

BITS = {
    pa.float64(): [0, 1 << 63, 0x7FF8 << 48, 0x7FF8000000000123, 0xFFF8 << 48, 0x3FF8 << 48],
    pa.float32(): [0, 1 << 31, 0x7FC0 << 16, 0x7FC00123, 0xFFC0 << 16, 0x3FC0 << 16],
}
"""0.0, -0.0, three NaNs, 1.5. The first of those that are equal is how an operator writes the key."""
SAME = [0, 0, 2, 2, 2, 5, None]
TICK = 10
Row = tuple[int | None, int]
"""The place of its key in ``BITS``, and a number that no other row has."""
ROWS = st.lists(st.sampled_from([0, 1, 2, 3, 4, 5, None]), max_size=8)
EPOCHS = st.lists(ROWS, max_size=4)


def numbered(drawn: list[list[int | None]]) -> list[list[Row]]:
    return [[(place, 100 * epoch + n) for n, place in enumerate(rows, 1)] for epoch, rows in enumerate(drawn)]


def array_of(places: list[int | None], kind: pa.DataType) -> pa.Array:
    width = f"{kind.bit_width // 8}"
    bits = np.array([0 if place is None else BITS[kind][place] for place in places], f"u{width}")
    return pa.array(bits.view(f"f{width}"), kind, mask=np.array([place is None for place in places], np.bool_))


def places_of(values: pa.ChunkedArray) -> list[int | None]:
    """The other way round, by all bits."""
    kind, flat = values.type, values.combine_chunks()
    words = np.frombuffer(flat.buffers()[1], f"u{kind.bit_width // 8}")[flat.offset :][: len(flat)]
    there = flat.is_valid().to_pylist()
    return [BITS[kind].index(int(word)) if valid else None for word, valid in zip(words, there, strict=True)]


def same(rows: list[Row]) -> list[Row]:
    return [(None if place is None else SAME[place], n) for place, n in rows]


def table(rows: list[Row], kind: pa.DataType, epoch: int) -> pa.Table:
    return pa.table({
        "k": array_of([place for place, _ in rows], kind), "n": pa.array([n for _, n in rows], pa.int64()),
        "time": pa.array([epoch * TICK] * len(rows), pa.int64()),
        "side": pa.array([n % 2 for _, n in rows], pa.int8()),
        "l": pa.array([None if n % 2 else n for _, n in rows], pa.int64()),
        "r": pa.array([n if n % 2 else None for _, n in rows], pa.int64()),
        "end": pa.array([(epoch + 1) * TICK * 1_000_000] * len(rows), pa.timestamp("us", "UTC")),
    })  # fmt: skip


@dataclass(frozen=True)
class Case:
    """``plain``: what each epoch answers, rows as ``columns`` has them, the key by its place in ``BITS``."""

    make: Callable[[pa.DataType], op.Operator]
    columns: tuple[str, ...]
    plain: Callable[[list[list[Row]]], Iterator[list[tuple[Any, ...]]]]
    keyless: bool = False
    ends: bool = False


def counted(epochs: list[list[Row]]) -> Iterator[list[tuple[Any, ...]]]:
    """Running counts and sums of the keys that changed."""
    groups: dict[Any, list[int]] = defaultdict(list)
    for rows in epochs:
        for key, n in same(rows):
            groups[key].append(n)
        yield [(key, len(groups[key]), sum(groups[key])) for key in {key for key, _ in same(rows)}]


def alone(epochs: list[list[Row]]) -> Iterator[list[tuple[Any, ...]]]:
    """Each epoch by itself: so combined, and so in windows and sessions of one epoch each."""
    for rows in epochs:
        yield from counted([rows])


def whole(epochs: list[list[Row]]) -> Iterator[list[tuple[Any, ...]]]:
    """Every key in every epoch."""
    groups: dict[Any, list[int]] = defaultdict(list)
    for rows in epochs:
        for key, n in same(rows):
            groups[key].append(n)
        yield [(key, len(each), sum(each)) for key, each in groups.items()]


def lasting(epochs: list[list[Row]]) -> Iterator[list[tuple[Any, ...]]]:
    """Keys that are forgotten after 15 seconds."""
    plain, now = naive.Lasting(15), None
    for epoch, rows in enumerate(epochs):
        before, now = now, epoch * TICK if rows else now
        yield list(plain.epoch([(key, epoch * TICK) for key, _ in same(rows)], before, now).items())


def sliding(epochs: list[list[Row]]) -> Iterator[list[tuple[Any, ...]]]:
    """Windows of two epochs, one of which begins with each: those that changed."""
    plain, now = naive.Windows(2 * TICK, TICK), None
    for epoch, rows in enumerate(epochs):
        before, now = now, epoch * TICK if rows else now
        plain.epoch([(-1 if key is None else key, epoch * TICK) for key, _ in same(rows)], before, now)
        yield [(None if key == -1 else key, count) for key, _, count in plain.changed]


def firsts(epochs: list[list[Row]]) -> Iterator[list[tuple[Any, ...]]]:
    """The first row of each key, with the key as it came."""
    seen: set[Any] = set()
    for rows in epochs:
        passed = []
        for (key, n), (place, _) in zip(same(rows), rows, strict=True):
            if key not in seen:
                seen.add(key)
                passed.append((place, n))
        yield passed


def within(epochs: list[list[Row]]) -> Iterator[list[tuple[Any, ...]]]:
    plain, now = naive.Deduplicate(15), None
    for epoch, rows in enumerate(epochs):
        before, now = now, epoch * TICK if rows else now
        passed = dict(reversed(same(rows)))
        fresh = plain.epoch([(key, epoch * TICK) for key, _ in same(rows)], before)
        yield [(next(place for place, n in rows if n == passed[key]), passed[key]) for key, _ in fresh]


def ranking(epochs: list[list[Row]]) -> Iterator[list[tuple[Any, ...]]]:
    """The two keys with the largest latest values, when they change. Values rise, so no two are equal."""
    values: dict[Any, int] = {}
    for rows in epochs:
        values.update(same(rows))
        yield [(key, rank, n) for rank, key, n in naive.top(values, 2)] if rows else []


def rankings(epochs: list[list[Row]]) -> Iterator[list[tuple[Any, ...]]]:
    """The two largest numbers of each key, of the keys where they changed."""
    groups: dict[Any, list[int]] = defaultdict(list)
    for rows in epochs:
        for key, n in same(rows):
            groups[key].append(n)
        keys = {key for key, _ in same(rows)}
        yield [(key, place + 1, n) for key in keys for place, n in enumerate(sorted(groups[key], reverse=True)[:2])]


def closed_ranking(epochs: list[list[Row]]) -> Iterator[list[tuple[Any, ...]]]:
    """Of each epoch the two keys with the largest values, when the next one has begun."""
    for rows in epochs:
        yield [(key, rank, n) for rank, key, n in naive.top(dict(same(rows)), 2)]


def pairs(epochs: list[list[Row]]) -> Iterator[list[tuple[Any, ...]]]:
    """Even and odd numbers with the same key, when the second comes."""
    held: list[Row] = []
    for rows in epochs:
        made = []
        for key, n in same(rows):
            made += [(n, m) if n % 2 == 0 else (m, n) for other, m in held if other == key is not None and (n + m) % 2]
            held.append((key, n))
        yield made


COUNTS: dict[str, Any] = {"rows": op.count(), "sum": op.sum("n")}
COUNTED = ("k", "rows", "sum")
RANKED = ("k", "rank", "n")
HALVES = [Half(pa.schema({name: pa.int64()}), (name,)) for name in "lr"]
CASES = {
    "aggregate": Case(lambda kind: op.aggregate({"k": kind}, **COUNTS), COUNTED, counted),
    "aggregate, ttl": Case(
        lambda kind: op.aggregate({"k": kind}, ttl=15, time="time", rows=op.count()), ("k", "rows"), lasting
    ),
    "combine": Case(lambda kind: op.combine({"k": kind}, **COUNTS), COUNTED, alone, keyless=True),
    "grouped": Case(lambda kind: Grouped({"k": kind}, "update", **COUNTS), COUNTED, counted),
    "grouped, complete": Case(lambda kind: Grouped({"k": kind}, "complete", **COUNTS), COUNTED, whole),
    "windows": Case(lambda kind: op.tumbling(TICK, {"k": kind}, "time", **COUNTS), COUNTED, alone, ends=True),
    "windows, update": Case(
        lambda kind: op.tumbling(TICK, {"k": kind}, "time", emit="update", **COUNTS), COUNTED, alone
    ),
    "windows, sliding": Case(
        lambda kind: op.sliding(2 * TICK, TICK, {"k": kind}, "time", emit="update", rows=op.count()),
        ("k", "rows"),
        sliding,
    ),
    "sessions": Case(lambda kind: op.session(TICK - 1, {"k": kind}, "time", **COUNTS), COUNTED, alone, ends=True),
    "sessions, complete": Case(
        lambda kind: op.session(1000, {"k": kind}, "time", emit="complete", **COUNTS), COUNTED, whole
    ),
    "deduplicate": Case(lambda kind: op.deduplicate({"k": kind}), ("k", "n"), firsts),
    "deduplicate, within": Case(
        lambda kind: op.deduplicate({"k": kind}, time="time", within=15), ("k", "n"), within
    ),
    "first rows": Case(lambda kind: FirstRows({"k": kind}), ("k", "n"), firsts),
    "top": Case(lambda kind: op.top_k(2, "n", {"k": kind}), RANKED, ranking, keyless=True),
    "top, rising": Case(lambda kind: op.top_k(2, "n", {"k": kind}, rising=True), RANKED, ranking, keyless=True),
    "top, within": Case(
        lambda kind: op.top_k(2, "n", {"time": "int64", "side": "int8", "n_": "int64"}, within={"k": kind}),
        RANKED,
        rankings,
    ),
    "top, closed": Case(
        lambda kind: op.top_k(
            2, "n", {"k": kind}, within={"end": pa.timestamp("us", "UTC")}, closes="end"
        ),
        RANKED,
        closed_ranking,
        ends=True,
    ),
    "stream join": Case(lambda kind: StreamJoin({"k": kind}, *HALVES), ("l", "r"), pairs),
}  # fmt: skip


def answers(
    case: Case, kind: pa.DataType, epochs: list[list[Row]], senders: int, tasks: int, older: bool
) -> list[pa.Table]:
    """``older``: before each epoch its state is one that an earlier version has written, with keys in other bits."""
    source = op.source("rows", event_time="time", parallelism=senders)
    step = op.step("o", case.make(kind), "rows", parallelism=1 if case.keyless else tasks)
    trial, outputs = op.Trial(op.Pipeline(source, step)), []
    for epoch, rows in enumerate(epochs):
        if older:
            trial.states = {task: in_other_bits(state) for task, state in trial.states.items()}
        batch = table(rows, kind, epoch)
        batch = batch.append_column("n_", batch["n"])
        outputs.append(trial.epoch(batch, case.ends and epoch == len(epochs) - 1).output)
    return outputs


def in_other_bits(state: TaskState) -> TaskState:
    tables = {}
    for name, held in state.tables.items():
        rows = held.to_table()
        for place, field in enumerate(held.schema.key):
            if field.type in BITS:
                others = [None if p is None else p + (p in (0, 2)) for p in places_of(rows[field.name])]
                rows = rows.set_column(place, field, array_of(others, field.type))
        tables[name] = StateTable.from_table(held.schema, rows, held.epoch)
    return TaskState(state.epoch, tables)


def told(case: Case, output: pa.Table) -> Counter[tuple[Any, ...]]:
    columns = [places_of(output[name]) if name == "k" else output[name].to_pylist() for name in case.columns]
    return Counter(zip(*columns, strict=True))


@pytest.mark.parametrize("name", CASES)
@settings(deadline=None, derandomize=True, max_examples=40)
@given(
    drawn=EPOCHS, kind=st.sampled_from([*BITS]), senders=st.integers(1, 3), tasks=st.integers(1, 2), older=st.booleans()
)
def test_equal_keys_of_different_bits_are_one_key(
    name: str, drawn: list[list[int | None]], kind: pa.DataType, senders: int, tasks: int, older: bool
) -> None:
    case, epochs = CASES[name], numbered(drawn)
    got = [told(case, output) for output in answers(case, kind, epochs, senders, tasks, older)]
    expected = [Counter(rows) for rows in case.plain(epochs)]
    if case.ends:  # what closes is told when the next rows have come
        got, expected = [sum(got, Counter())], [sum(expected, Counter())]
    assert got == expected


def test_floats_within_structs_are_one_key() -> None:
    """Of those that take structs as keys."""
    kind = pa.struct([("a", pa.float64()), ("b", pa.string())])
    keys = [{"a": -0.0, "b": "x"}, {"a": 0.0, "b": "x"}, None, {"a": 0.0, "b": None}]
    batch = pa.table({"k": pa.array(keys, kind), "n": [1, 2, 3, 4], "time": [0] * 4})
    step = op.step("o", op.session(TICK, {"k": kind}, "time", emit="complete", **COUNTS), "rows")
    output = op.Trial(op.Pipeline(op.source("rows", event_time="time"), step)).epoch(batch).output
    told = {str(row["k"]): (row["rows"], row["sum"]) for row in output.to_pylist()}
    assert told == {str(keys[1]): (2, 3), "None": (1, 3), str(keys[3]): (1, 4)}


def test_every_operator_with_keys_is_among_them() -> None:
    import holdfast.operators

    for module in pkgutil.iter_modules(holdfast.operators.__path__):
        import_module(f"holdfast.operators.{module.name}")
    made = {type(case.make(pa.float64())) for case in CASES.values()} | {type(joined(pa.float64()))}
    keyless = {Map, Filter, FlatMap, Chain, op.FunctionOperator}
    ours = {each for each in _subclasses(op.Operator) if each.__module__.startswith("holdfast.operators")}
    assert made == ours - keyless


def _subclasses(kind: type) -> set[type]:
    return {each for child in kind.__subclasses__() for each in (child, *_subclasses(child))}


def joined(kind: pa.DataType) -> op.Operator:
    left, right = (op.side(name, {"n": "int64"} if name == "a" else {"m": "int64"}, time="time") for name in "ab")
    return op.join(left, right, on={"k": kind}, size=TICK, how="outer")


@settings(deadline=None, derandomize=True, max_examples=40)
@given(left=ROWS, right=ROWS, kind=st.sampled_from([*BITS]), tasks=st.integers(1, 2))
def test_a_windowed_join_pairs_equal_keys_of_different_bits(
    left: list[int | None], right: list[int | None], kind: pa.DataType, tasks: int
) -> None:
    rows, others = numbered([left])[0], numbered([right])[0]
    sources = [op.source(name, event_time="time") for name in "ab"]
    trial = op.Trial(op.Pipeline(*sources, op.step("o", joined(kind), ["a", "b"], parallelism=tasks)))
    theirs = table(others, kind, 0)
    (epoch,) = trial.run([{"a": table(rows, kind, 0), "b": theirs.append_column("m", theirs["n"])}], ends=True)
    got = Counter(zip(places_of(epoch.output["k"]), *(epoch.output[c].to_pylist() for c in "nm"), strict=True))
    expected = Counter((key, n, m) for key, n in same(rows) for other, m in same(others) if key == other is not None)
    expected += Counter((key, n, None) for key, n in same(rows) if key is None or key not in dict(same(others)))
    expected += Counter((key, None, m) for key, m in same(others) if key is None or key not in dict(same(rows)))
    assert got == expected
