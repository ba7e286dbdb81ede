"""Every workload against a plain reference over the same rows, and the files they read."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast import operators as op
from holdfast.errors import Invalid
from holdfast.workloads import WORKLOADS, Options, generated, workload
from holdfast.workloads.files import cut, open_input

OPTIONS = Options(rate=400, epochs=4, seed=11)


def rows_of(name: str, options: Options) -> list[dict[str, Any]]:
    each = workload(name)
    return [row for place in range(options.epochs) for row in each.batch(options, place).to_pylist()]


def outputs(name: str, options: Options, ends: bool = False, **knobs: Any) -> list[list[dict[str, Any]]]:
    each = workload(name)
    trial = op.Trial(each.pipeline(**knobs))
    answers = trial.run((each.batch(options, place) for place in range(options.epochs)), ends=ends)
    for answer in answers:
        assert set(answer.output.schema.names) == set(each.columns)
    return [answer.output.to_pylist() for answer in answers]


@pytest.mark.parametrize("parallelism", [1, 3])
@pytest.mark.parametrize("name", ["word-count", "hashtags"])
def test_the_last_row_of_a_key_is_its_total(name: str, parallelism: int) -> None:
    counts: Counter[str] = Counter()
    each = workload(name)
    for place, answer in enumerate(outputs(name, OPTIONS, parallelism=parallelism)):
        column = each.input.names[0]
        found = [row[column] for row in each.batch(OPTIONS, place).to_pylist()]
        changed = {key for value in found for key in (value if isinstance(value, list) else value.split())}
        for value in found:
            counts.update(value if isinstance(value, list) else value.split())
        assert len(answer) == len(changed)
        assert {row["key"]: row["count"] for row in answer} == {key: counts[key] for key in changed}


@pytest.mark.parametrize("parallelism", [1, 2])
def test_word_frequency_counts_words_in_windows_of_thirty_seconds(parallelism: int) -> None:
    options = Options(rate=20, epochs=8, seed=3)
    expected: Counter[tuple[str, int]] = Counter()
    for row in rows_of("word-frequency", options):
        assert len(row["text"].encode()) == 140
        second = int(row["time"].timestamp())
        for start in range(second // 5 * 5, second - 30, -5):
            expected.update((word, start) for word in row["text"].split())
    got = [row for answer in outputs("word-frequency", options, ends=True, parallelism=parallelism) for row in answer]
    assert {(row["word"], int(row["start"].timestamp())): row["count"] for row in got} == expected
    assert len(got) == len(expected)


@pytest.mark.parametrize("parallelism", [1, 4, 5])
def test_top_k_ranks_the_pages_of_every_window(parallelism: int) -> None:
    options = Options(rate=50, epochs=30, seed=3)
    visits: dict[int, Counter[str]] = defaultdict(Counter)
    for row in rows_of("top-k", options):
        second = int(row["time"].timestamp())
        for start in range(second // 10 * 10, second - 60, -10):
            visits[start][row["page"]] += 1
    expected = [
        (start, rank + 1, page, count)
        for start in sorted(visits)
        for rank, (page, count) in enumerate(sorted(visits[start].items(), key=lambda item: (-item[1], item[0]))[:5])
    ]
    answers = outputs("top-k", options, ends=True, parallelism=parallelism, keep=5)
    got = [row for answer in answers for row in answer]
    assert [(int(row["start"].timestamp()), row["rank"], row["page"], row["visits"]) for row in got] == expected


def test_top_k_is_a_tree_of_three_levels() -> None:
    topology = workload("top-k").pipeline(parallelism=8).topology
    assert [(each.name, each.parallelism) for each in topology.operators] == [("slices", 8), ("merge", 4), ("top", 1)]
    assert [each.partitioning for each in topology.streams] == ["merge", "merge"]


@pytest.mark.parametrize("name", list(WORKLOADS))
def test_generated_rows_follow_the_seed_and_the_row_number_alone(name: str) -> None:
    each = workload(name)
    assert each.batch(OPTIONS, 2).equals(each.batch(Options(rate=400, epochs=9, seed=11, partitions=7), 2))
    assert not each.batch(OPTIONS, 2).equals(each.batch(OPTIONS, 3))
    assert not each.batch(OPTIONS, 2).equals(each.batch(Options(rate=400, seed=12), 2))
    assert each.check(OPTIONS) == 1600


def test_the_hash_is_the_one_that_spark_computes() -> None:
    """Golden values of xxhash64(1L), xxhash64(0L) and xxhash64(-5L, 7L) from Spark 4.3."""
    assert generated.xxhash64(1, 42).view("int64").tolist() == [-7001672635703045582]
    assert generated.xxhash64(0, 42).view("int64").tolist() == [-5252525462095825812]
    assert generated.xxhash64(7, generated.xxhash64(-5, 42)).view("int64").tolist() == [-2546330388943948164]


def test_small_ranks_are_drawn_more_often() -> None:
    import numpy as np

    ranks = generated.rank(generated.draw(np.arange(100_000), 1, 0), 1000, 2)
    assert ranks.min() == 0
    assert ranks.max() == 999
    share = float((ranks < 250).mean())
    assert abs(share - 0.5) < 0.01  # F(r) = sqrt(r / n) for power 2
    assert len(set(generated.words(10_000).to_pylist())) == 10_000


TABLE = pa.table(
    {"page": [f"/p/{i}" for i in range(2500)], "time": list(range(2500)), "n": [i / 2 for i in range(2500)]}
)


def written(path: Path, ending: str = "\n") -> Path:
    rows = TABLE.to_pylist()
    match path.suffix:
        case ".parquet":
            pq.write_table(TABLE, path, row_group_size=700)
        case ".csv":
            lines = ["page,time,n", *(f"{row['page']},{row['time']},{row['n']}" for row in rows)]
            path.write_text("\n".join(lines) + ending)
        case ".jsonl":
            path.write_text("\n".join(json.dumps(row) for row in rows) + ending)
        case _:
            path.write_text("\n".join(TABLE["page"].to_pylist()) + ending)
    return path


@pytest.mark.parametrize("ending", ["", "\n"])
@pytest.mark.parametrize("suffix", ["parquet", "csv", "jsonl", "txt"])
@settings(deadline=None, derandomize=True, max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(span=st.tuples(st.integers(0, 2600), st.integers(0, 2600)))
def test_any_range_of_rows_can_be_read(tmp_path: Path, suffix: str, ending: str, span: tuple[int, int]) -> None:
    path = tmp_path / f"input.{suffix}"
    file = open_input(path if path.exists() else written(path, ending))
    assert file.rows == 2500
    names = ["text"] if suffix == "txt" else ["n", "page"]
    expected = TABLE.select(["page"]).rename_columns(["text"]) if suffix == "txt" else TABLE.select(names)
    start, stop = span
    assert file.read(names, start, stop).equals(expected.slice(start, max(0, stop - start)))


@given(rows=st.integers(0, 1000), epochs=st.integers(1, 50))
@settings(deadline=None, derandomize=True)
def test_epochs_hold_every_row_once_and_nearly_equal_numbers(rows: int, epochs: int) -> None:
    cuts = [cut(rows, epochs, place) for place in range(epochs)]
    assert [stop for _, stop in cuts[:-1]] == [start for start, _ in cuts[1:]]
    assert (cuts[0][0], cuts[-1][1]) == (0, rows)
    sizes = [stop - start for start, stop in cuts]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("suffix", ["parquet", "csv", "jsonl", "txt"])
def test_a_file_gives_the_same_answer_in_any_number_of_epochs(tmp_path: Path, suffix: str) -> None:
    path = written(tmp_path / f"input.{suffix}")
    options = [Options(input=path, epochs=epochs, rate=1) for epochs in (1, 7)]
    answers = [[row for each in outputs("top-k", given, ends=True, keep=3) for row in each] for given in options]
    assert answers[0] == answers[1]
    assert answers[0][0]["start"] == datetime(1969, 12, 31, 23, 59, 10, tzinfo=UTC)


def test_text_with_odd_bytes_and_line_ends_is_read_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "odd.txt"
    path.write_bytes(b"one two\r\n\r\n\xff bad\nl\xc3\xa9gumes")
    file = open_input(path)
    assert file.read(["text"], 0, 9)["text"].to_pylist() == ["one two", "", "� bad", "légumes"]
    assert file.read(["text"], 1, 2)["text"].to_pylist() == [""]


@pytest.mark.parametrize(
    ("name", "content", "options", "message"),
    [
        ("gone.txt", None, {}, "gone.txt: no such file"),
        ("a.gz", b"x", {}, "a.gz: unknown kind of file '.gz'; known: .parquet"),
        ("a.parquet", b"PAR1 but not really", {}, "it cannot be read as parquet"),
        ("a.csv", b"", {}, "the file is empty; its columns cannot be told"),
        ("a.csv", b"a,b\nx,y\n", {}, "a column 'text' of text is needed; name one with --column: a, b"),
        ("a.csv", b"a,b\n1,2\n", {}, "a column 'text' of text is needed; found: a (int64), b (int64)"),
        ("a.csv", b"a,b\nx,2\n", {"column": "c"}, "has no column 'c'; found: a (string), b (int64)"),
        ("a.csv", b"a,b\nx,2\n", {"column": "b"}, "is not a column of text; found: a (string), b (int64)"),
    ],
)
def test_an_input_that_does_not_fit_is_refused_in_one_line(
    tmp_path: Path, name: str, content: bytes | None, options: dict[str, Any], message: str
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(Invalid) as caught:
        workload("word-count").check(Options(input=path, **options))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_row_that_does_not_fit_the_first_ones_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "late.csv"
    path.write_text("a,b\n" + "x,1\n" * 1500 + "y,word\n")
    with pytest.raises(Invalid, match="a row does not fit the columns of the first ones"):
        open_input(path).read(["b"], 1400, 1501)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": 0}, "--epochs: at least 1 is needed, got 0"),
        ({"rate": -1}, "--rate: at least 1 is needed, got -1"),
        ({"seed": 2**63}, "--seed: a 64-bit integer is needed"),
        ({"column": "a"}, "--column: it names a column of --input, but no input is given"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(Invalid) as caught:
        Options(**options)
    assert message in str(caught.value)


def test_an_unknown_workload_is_named_with_those_known() -> None:
    with pytest.raises(
        Invalid,
        match=r"unknown workload 'wordcount'; did you mean word-count\? known: word-count, hashtags, word-frequency",
    ):
        workload("wordcount")
