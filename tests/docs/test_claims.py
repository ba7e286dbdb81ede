"""Sentences of the docs that a few lines can hold: when one of these fails, the page is wrong or the code is."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from blocks import ROOT, blocks

import holdfast
from holdfast import operators as op
from holdfast.cli.app import loaded
from holdfast.errors import Invalid
from holdfast.runtime.driver.fitting import fit
from holdfast.runtime.faults import expand_faults, parse_faults
from holdfast.runtime.spark.fault_player import FaultPlayer
from holdfast.runtime.spark.nodes import Executors, LogicalNodes
from holdfast.runtime.spark.session import chosen_settings
from holdfast.state import Store
from holdfast.workloads import workload


def prose(page: str) -> str:
    return " ".join((ROOT / page).read_text(encoding="utf-8").split())


def test_the_readmes_greedy_leaves_nothing_with_the_rates_of_the_example() -> None:
    topology = holdfast.read_topology(ROOT / "examples/topologies/incidents.json")
    assert holdfast.plan(topology, 8, "greedy").fidelity == 0
    assert holdfast.plan(topology, 8, "structure-aware").fidelity == pytest.approx(0.2333, abs=5e-5)
    assert "With these rates, which are made up for the example" in prose("README.md")


def test_structured_streaming_repartitions_the_state_of_a_stopped_query() -> None:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import query

    told = " ".join((query.StreamingCheckpointManager.repartition.__doc__ or "").split())
    assert "The streaming query MUST not be running" in told and "experimental" in told
    assert "StreamingCheckpointManager" not in query.__all__ and hasattr(SparkSession, "_streamingCheckpointManager")
    assert "state partitions are fixed" not in prose("README.md")
    assert "`spark._streamingCheckpointManager.repartition`, experimental and not exported" in prose(
        "docs/comparison.md"
    )


TRACE = "System,nodenum,Prob Started,Prob Fixed\n20,1,1/1/2026 00:00,1/2/2026 00:00\n"
FAULTS = re.findall(r"^\| (`.*`) \| .* \| (.*) \|$", (ROOT / "docs/faults.md").read_text(encoding="utf-8"), re.M)


assert len(FAULTS) >= 11, "docs/faults.md: its table is not what it was"


@pytest.mark.parametrize(("sentences", "told"), FAULTS, ids=[each[0] for each in FAULTS])
def test_spark_refuses_of_a_fault_script_what_the_table_says(
    sentences: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("failures.csv").write_text(TRACE, encoding="utf-8")
    taken = {
        (nodes, place)
        for nodes in ("executors", "logical")
        for place in ("local", "remote")
        if taken_by(re.findall("`(.*?)`", sentences), nodes, "store" if place == "local" else "memory://claims")
    }
    everything = {(nodes, place) for nodes in ("executors", "logical") for place in ("local", "remote")}
    expected = {
        "yes": everything,
        "no": set(),
        "executors only": {each for each in everything if each[0] == "executors"},
        "logical nodes only": {each for each in everything if each[0] == "logical"},
        "a store on a local disk": {each for each in everything if each[1] == "local"},
    }
    (said,) = [each for each in expected if re.match(rf"{each}\b", told)]
    assert taken == expected[said]


def taken_by(sentences: list[str], nodes: str, store: str) -> bool:
    """As holdfast.start does it on executors, whose domains are known when a fault is due."""
    cluster: Any = LogicalNodes(4, 2, Path()) if nodes == "logical" else Executors.__new__(Executors)
    try:
        script = expand_faults(parse_faults("; ".join(sentences)), [f"node-{number}" for number in range(4)], 20)
        FaultPlayer(script, cluster, Store(store), lambda kind, fields: None)
    except Invalid as error:
        assert "\n" not in str(error)
        return False
    return True


def pipeline(operator: op.Operator, parallelism: int = 2, **stream: Any) -> op.Pipeline:
    rows = op.stream("rows", **stream) if stream else "rows"
    return op.Pipeline(
        op.source("rows", parallelism=2, event_time="time"), op.step("answer", operator, rows, parallelism=parallelism)
    )


def total(**other: Any) -> op.Operator:
    return op.aggregate("key", **{"x": op.sum("x"), **other})


def window(size: str) -> op.Operator:
    return op.tumbling(size, by="key", time="time", n=op.count())


REFUSED = {
    "an aggregate function": (pipeline(total()), pipeline(total(x=op.max("x")))),
    "its column or name": (pipeline(total()), pipeline(total(x=op.sum("y")))),
    "a window's size": (pipeline(window("10 s")), pipeline(window("60 s"))),
    "partitioning or weights": (pipeline(total(), key="key"), pipeline(total(), key="key", weights=[1, 3])),
    "what is grouped by": (pipeline(total()), pipeline(op.aggregate("other", x=op.sum("x")))),
    "of another type": (pipeline(total()), pipeline(total(x=op.sum("x", "float64")))),
    "an operator with state is gone": (
        pipeline(total()),
        op.Pipeline(op.source("rows"), op.step("other", total(), "rows")),
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_a_restart_refuses_is_said(what: str) -> None:
    before, now = REFUSED[what]
    with pytest.raises(Invalid, match="operator answer"):
        fit("store", json.loads(json.dumps(before.signature)), now)
    refused = [
        line for line in (ROOT / "docs/runtime.md").read_text(encoding="utf-8").splitlines() if "| refused" in line
    ]
    assert any(what in line for line in refused)


def test_the_settings_that_a_session_of_ones_own_should_take_over_are_ours() -> None:
    told = dict(re.findall(r"`(spark\.[\w.]+)=([^`]+)`", (ROOT / "docs/cluster.md").read_text(encoding="utf-8")))
    assert told.items() <= chosen_settings("spark://head:7077", {}).items() and len(told) >= 12


def test_operators_in_examples_of_word_count_are_its_own() -> None:
    known = set(workload("word-count").pipeline(parallelism=2).by_name)
    typed = "".join(each.text for each in blocks(ROOT / "docs/scaling.md"))
    named = [*re.findall(r"holdfast scale run-1 (\S+)", typed), *re.findall(r'job\.scale\("(\w+)"', typed)]
    (replicas,) = [each.help for each in loaded("run").params if "--replicas" in each.opts]
    named += re.findall(r"(\w+)/\d", replicas)
    assert named and set(named) <= known


def test_the_picture_and_the_table_of_the_house_have_every_room() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    rooms = [
        layer.strip("()").removeprefix("holdfast.") for layer in settings["contracts"][0]["layers"] if ":" not in layer
    ]
    drawn = re.findall(r">(\w+)[:,]", (ROOT / "docs/pictures/house.svg").read_text(encoding="utf-8"))
    told = re.findall(r"^\| `(\w+)` \|", (ROOT / "docs/design.md").read_text(encoding="utf-8"), re.M)
    assert "placement" in rooms and set(rooms) <= set(drawn) and told[: len(rooms)] == rooms[::-1]
