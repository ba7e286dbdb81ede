"""The traffic-incident workload against a plain loop over the same rows, its generator and the files it reads."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyarrow.csv import write_csv

from holdfast import operators as op
from holdfast.errors import Invalid
from holdfast.workloads import Options, workload
from holdfast.workloads.traffic_incidents import JAM, LASTING, traffic

BUSY = traffic(interval=0.25)
Jam = tuple[int, int, int, int, float, int]


def plain(rows: list[dict[str, Any]], window: int, every: int, limit: float = JAM) -> list[Jam]:
    """(end, segment, incident, slices, least speed, reports) of every window, row by row."""
    speeds: dict[tuple[int, int], list[int]] = defaultdict(list)
    reports: dict[tuple[int, int, int], int] = defaultdict(int)
    for row in rows:
        piece = int(row["time"].timestamp()) // every * every
        if row["kind"] == "report":
            reports[piece, row["segment"], row["incident"]] += 1
        else:
            speeds[piece, row["segment"]].append(row["speed"])
    found: dict[tuple[int, int, int], list[tuple[float, int]]] = defaultdict(list)
    for (piece, segment, incident), count in reports.items():
        there = speeds.get((piece, segment))
        if there and sum(there) / len(there) < limit:
            for end in range(piece + every, piece + window + every, every):
                found[end, segment, incident].append((sum(there) / len(there), count))
    return sorted(
        (*key, len(pieces), min(speed for speed, _ in pieces), sum(count for _, count in pieces))
        for key, pieces in found.items()
    )


def answered(options: Options, each: Any = BUSY, **knobs: Any) -> list[Jam]:
    trial = op.Trial(each.pipeline(**knobs))
    answers = trial.run((each.batch(options, place) for place in range(options.epochs)), ends=True)
    assert not any(answer.counters for answer in answers), "nothing is late"
    return sorted(
        (int(row["end"].timestamp()), *(row[name] for name in ("segment", "incident", "slices", "speed", "reports")))
        for answer in answers
        for row in answer.output.to_pylist()
    )


@pytest.mark.parametrize("parallelism", [1, 3, 4])
def test_jams_are_those_of_a_plain_loop(parallelism: int) -> None:
    options = Options(rate=600, epochs=25, seed=5)
    rows = [row for place in range(options.epochs) for row in BUSY.batch(options, place).to_pylist()]
    expected = plain(rows, window=15, every=5)
    assert len(expected) > 20
    assert answered(options, parallelism=parallelism, window="15 seconds", every="5 seconds") == expected


def test_the_windows_of_the_paper_slide_by_ten_seconds_over_five_minutes() -> None:
    options = Options(rate=200, epochs=25, seed=5)
    rows = [row for place in range(options.epochs) for row in BUSY.batch(options, place).to_pylist()]
    expected = plain(rows, window=300, every=10)
    assert expected and answered(options) == expected


def test_the_limit_decides_what_a_jam_is() -> None:
    options = Options(rate=400, epochs=12, seed=1)
    few, many = (answered(options, limit=limit, window=10, every=5) for limit in (5.0, 200.0))
    assert few and {jam[:3] for jam in few} < {jam[:3] for jam in many}
    assert all(jam[4] < 5.0 for jam in few)


def test_the_topology_is_that_of_the_paper() -> None:
    topology = workload("traffic-incidents").pipeline(parallelism=4).topology
    assert {each.name: each.parallelism for each in topology.operators} == {
        "events": 4, "locations": 4, "reports": 2, "speed": 4, "incident": 4, "jam": 4, "total": 1,
    }  # fmt: skip
    shapes = {f"{each.source}-{each.target}": each.partitioning for each in topology.streams}
    assert shapes["locations-speed"] == shapes["reports-incident"] == "full"
    assert shapes["speed-jam"] == shapes["incident-jam"] == "one-to-one"
    assert shapes["jam-total"] == "merge"
    assert topology.operator["jam"].inputs == "correlated"


def test_users_are_spread_by_zipf_and_incidents_follow_them() -> None:
    options = Options(rate=100_000, seed=3)
    table = workload("traffic-incidents").batch(options, 0)
    segments = table["segment"].to_numpy()
    assert abs((segments < 250).mean() - 0.5) < 0.01  # F(s) = sqrt(s / n)
    reported = table.filter(pc.equal(table["kind"], "report"))
    assert 0 < reported.num_rows < 0.01 * table.num_rows
    assert reported["speed"].null_count == reported.num_rows
    assert set(reported["segment"].to_pylist()) == {number >> 20 for number in reported["incident"].to_pylist()}


def test_an_incident_begins_about_every_interval() -> None:
    options = Options(rate=20_000, epochs=4 * LASTING, seed=2)
    seen: set[int] = set()
    for place in range(0, options.epochs, 3):
        seen |= set(workload("traffic-incidents").batch(options, place)["incident"].drop_null().to_pylist())
    begun = (options.epochs + LASTING) / 2.0  # those that had begun before the first row count too
    assert 0.7 < len(seen) / begun < 1.3


def test_a_file_gives_the_same_jams_as_the_generator(tmp_path: Path) -> None:
    made = Options(rate=600, epochs=12, seed=5)
    table = pa.concat_tables([BUSY.batch(made, place) for place in range(made.epochs)])
    pq.write_table(table, tmp_path / "events.parquet")
    write_csv(table.cast(table.schema.set(4, pa.field("time", pa.timestamp("us")))), tmp_path / "events.csv")
    expected = answered(made, window=10, every=5)
    assert expected
    for name in ("events.parquet", "events.csv"):
        options = Options(input=tmp_path / name, epochs=7)
        assert BUSY.check(options) == made.rate * made.epochs
        assert answered(options, window=10, every=5) == expected


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        ("kind,segment,speed\nlocation,1,50\n", {}, "a column 'incident' of whole numbers is needed; found: kind"),
        ("segment,speed,incident\n1,50,\n", {}, "has no column 'kind'"),
        ("kind,segment,speed,incident\nlocation,a,50,\n", {}, "a column 'segment' of whole numbers is needed"),
        (
            "kind,segment,speed,incident\nlocation,1,50,3\n",
            {"column": "kind"},
            "--column: traffic-incidents reads the columns kind, segment, speed and incident, got 'kind'",
        ),
    ],
)
def test_a_file_that_does_not_fit_is_refused(
    tmp_path: Path, content: str, options: dict[str, Any], message: str
) -> None:
    path = tmp_path / "events.csv"
    path.write_text(content)
    with pytest.raises(Invalid) as caught:
        workload("traffic-incidents").check(Options(input=path, **options))
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(Invalid, match="the window must be a multiple of the step, got 25 seconds and 10 seconds"):
        workload("traffic-incidents").pipeline(window="25 seconds")
    with pytest.raises(Invalid, match="interval of incidents must be above 0 seconds, got 0"):
        traffic(interval=0)
