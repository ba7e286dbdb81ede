"""Topology files: what is read, and the one line that names each mistake a person can make in them."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from holdfast.errors import Invalid
from holdfast.topology import Task, Topology, read_topology, topology_from, topology_to

GOOD: dict[str, Any] = {
    "operators": [
        {"name": "O1", "parallelism": 4, "rates": [1, 1, 1, 1], "costs": [1, 1, 1, 1]},
        {"name": "O2", "parallelism": 4},
        {"name": "O3", "parallelism": 2, "inputs": "correlated", "stateful": True},
    ],
    "streams": [
        {"from": "O1", "to": "O3", "partitioning": "merge", "weights": [3, 1]},
        {"from": "O2", "to": "O3", "partitioning": "full"},
    ],
    "queries": [{"sink": "O3", "priority": 2}],
    "domains": {"rack-1": ["O1/0", "O2/0"], "rack-2": ["O1/1"]},
}


def changed(path: str, value: Any) -> dict[str, Any]:
    """The good file with one thing written otherwise, such as ``operators.0.parallelism``."""
    content = deepcopy(GOOD)
    at: Any = content
    *way, last = path.split(".")
    for step in way:
        at = at[int(step)] if step.isdigit() else at[step]
    if last.isdigit() and int(last) == len(at):
        at.append(value)
    else:
        at[int(last) if last.isdigit() else last] = value
    return content


MISTAKES = [
    (changed("operators", []), "operators: at least one is needed, got none"),
    (changed("streams.0.from", "O9"), "stream O9 -> O3: unknown operator 'O9'; known: O1, O2, O3"),
    (changed("streams.0.to", "O9"), "stream O1 -> O9: unknown operator 'O9'; known: O1, O2, O3"),
    (
        changed("streams.2", {"from": "O3", "to": "O1", "partitioning": "split"}),
        "streams: the graph must have no cycle, found O1 -> O3 -> O1",
    ),
    (
        changed("streams.0.to", "O1"),
        "stream O1 -> O1: an operator cannot feed itself; the graph must have no cycle",
    ),
    (
        changed("streams.0.partitioning", "one-to-one"),
        "stream O1 -> O3: one-to-one needs equal parallelism, got 4 and 2",
    ),
    (
        changed("streams.0.partitioning", "split"),
        "stream O1 -> O3: split needs fewer upstream than downstream tasks, got 4 and 2",
    ),
    (
        changed("operators.0", {"name": "O1", "parallelism": 2}),
        "stream O1 -> O3: merge needs more upstream than downstream tasks, got 2 and 2",
    ),
    (changed("operators.0.rates", [1, 1]), "operator O1: rates must have 4 entries, one for each task, got 2"),
    (changed("operators.0.costs", [1] * 5), "operator O1: costs must have 4 entries, one for each task, got 5"),
    (changed("streams.0.weights", [1]), "stream O1 -> O3: weights must have 2 entries, one for each task, got 1"),
    (changed("streams.0.weights", [0, 0]), "stream O1 -> O3: weights must not all be 0"),
    (changed("operators.0.rates", [1, -1, 1, 1]), "operator O1: rates must be finite and 0 or more, got -1.0"),
    (
        changed("operators.0.rates", [1, float("nan"), 1, 1]),
        "operator O1: rates must be finite and 0 or more, got nan",
    ),
    (
        changed("operators.0.costs", [1, float("inf"), 1, 1]),
        "operator O1: costs must be finite and 0 or more, got inf",
    ),
    (changed("operators.1.name", "O1"), "operator O1: this name is given twice; names must differ"),
    (
        changed("streams.2", {"from": "O1", "to": "O3", "partitioning": "full"}),
        "stream O1 -> O3: given twice; one stream joins two operators",
    ),
    (changed("queries.0.sink", "O9"), "query O9: unknown operator 'O9'; known: O1, O2, O3"),
    (changed("queries.1", {"sink": "O3"}), "query O3: this operator is named by two queries; one query an operator"),
    (changed("queries.0.priority", -1), "query O3: priority must be a finite number, 0 or more, got -1.0"),
    (changed("queries.0.priority", 0), "queries: at least one needs a priority above 0, all are 0"),
    (changed("operators.3", {"name": "O4"}), "operator O4: no source reaches it; it has no stream in or out"),
    (
        changed("operators.0.inputs", "correlated"),
        "operator O1: no source reaches it; correlated inputs need a stream in",
    ),
    (changed("operators.0.parallelism", 0), "operator O1: parallelism must be at least 1, got 0"),
    (
        changed("operators.0.parallelism", 10**9),
        "operator O1: parallelism must be at most 1000000, got 1000000000",
    ),
    (
        changed("operators.0.parallelism", 2.5),
        "operators.0.parallelism: input should be a valid integer, got 2.5",
    ),
    (
        changed("operators.0.inputs", "both"),
        "operators.0.inputs: input should be 'independent' or 'correlated', got 'both'",
    ),
    (
        changed("streams.0.partitioning", "shuffle"),
        "streams.0.partitioning: input should be 'one-to-one', 'split', 'merge' or 'full', got 'shuffle'",
    ),
    (changed("operators.0.paralelism", 4), "operators.0.paralelism: no such field; check the spelling"),
    ({"streams": []}, "operators: is missing"),
    (
        changed("operators.0.name", "a/b"),
        "operator 'a/b': a name is needed, without '/', ',' or spaces around it",
    ),
    (changed("domains.rack-1", ["O1/9"]), "domain rack-1: unknown task O1/9; O1 has tasks 0 to 3"),
    (
        changed("domains.rack-2", ["O1/0"]),
        "domain rack-2: task O1/0 is already in domain rack-1; one domain a task",
    ),
    (
        changed("domains.rack-2", ["O1"]),
        "domain rack-2: task 'O1': write OPERATOR/NUMBER, such as O1/0",
    ),
    ([1, 2], "a topology is an object with operators, streams and queries, got list"),
]


@pytest.mark.parametrize(("content", "message"), MISTAKES, ids=[message[:60] for _, message in MISTAKES])
def test_every_mistake_gets_one_line_that_names_the_file_and_it(content: Any, message: str, tmp_path: Path) -> None:
    file = tmp_path / "topology.json"
    file.write_text(json.dumps(content))
    with pytest.raises(Invalid) as caught:
        read_topology(file)
    assert str(caught.value) == f"{file}: {message}"


def test_the_same_topology_from_json_and_yaml_and_back(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text(json.dumps(GOOD))
    (tmp_path / "t.yaml").write_text(yaml.safe_dump(GOOD))
    topology = read_topology(tmp_path / "t.json")
    assert topology == read_topology(tmp_path / "t.yaml") == topology_from(topology_to(topology))
    assert topology.streams[0].weights == (3.0, 1.0)
    assert topology.domains["rack-1"] == (Task("O1", 0), Task("O2", 0))


def test_what_is_not_said_has_its_default() -> None:
    topology = topology_from(
        {
            "operators": [{"name": "A", "parallelism": 2}, {"name": "B"}],
            "streams": [{"from": "A", "to": "B", "partitioning": "merge"}],
        }
    )
    operator = topology.operator["A"]
    assert (operator.rates, operator.costs, operator.inputs, operator.stateful) == (
        (1, 1),
        (1, 1),
        "independent",
        False,
    )
    assert [(query.sink, query.priority) for query in topology.queries] == [("B", 1.0)]
    assert topology.warnings == ()


def test_one_rate_stands_for_all_tasks() -> None:
    assert topology_from({"operators": [{"name": "A", "parallelism": 3, "rates": 5}]}).operators[0].rates == (5, 5, 5)


def test_a_query_may_feed_others_and_a_sink_without_a_query_is_a_warning() -> None:
    topology = topology_from(changed("queries", [{"sink": "O1"}]))
    assert [query.sink for query in topology.queries] == ["O1"]
    assert topology.warnings == ("operator O3: a sink that no query names; its output counts for nothing",)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("broken.json", '{"operators": [}', "not JSON: Expecting value at line 1 column 16"),
        ("broken.yaml", "operators: [", "not YAML: "),
        ("deep.json", "[" * 100_000, "nested too deeply; a topology is an object"),
        ("empty.yaml", "", "a topology is an object with operators, streams and queries, got NoneType"),
    ],
)
def test_files_that_are_no_topologies(name: str, text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(Invalid) as caught:
        read_topology(tmp_path / name)
    assert str(caught.value).startswith(f"{tmp_path / name}: {message}")
    assert "\n" not in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="no such file; a topology file in JSON or YAML is needed"):
        read_topology(tmp_path / "nowhere.json")
    with pytest.raises(Invalid, match="this is a folder; a topology file"):
        read_topology(tmp_path)
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(Invalid, match="cannot be read as text"):
        read_topology(tmp_path / "binary.json")


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("O1", "task 'O1': write OPERATOR/NUMBER, such as O1/0"),
        ("O1/x", "task 'O1/x': write OPERATOR/NUMBER"),
        ("O1/7", "unknown task O1/7; O1 has tasks 0 to 3"),
        ("O8/0", "unknown task O8/0; operators: O1, O2, O3"),
        ("O1/0,O1/0", "task O1/0: named twice"),
    ],
)
def test_tasks_as_people_write_them(written: str, message: str) -> None:
    with pytest.raises(Invalid, match=message):
        topology_from(GOOD).tasks_of(written)


def test_who_talks_to_whom_agrees_in_all_three_forms() -> None:
    """Pairs, senders and receivers are written apart from each other, each for its own use."""
    for kind, n1, n2 in [("merge", 7, 3), ("split", 3, 7), ("one-to-one", 4, 4), ("full", 3, 5), ("merge", 10, 4)]:
        topology = topology_from(
            {
                "operators": [{"name": "A", "parallelism": n1}, {"name": "B", "parallelism": n2}],
                "streams": [{"from": "A", "to": "B", "partitioning": kind}],
            }
        )
        (stream,) = topology.streams
        expected = {
            "merge": {(i, i * n2 // n1) for i in range(n1)},
            "split": {(d * n1 // n2, d) for d in range(n2)},
            "one-to-one": {(i, i) for i in range(n1)},
            "full": {(i, d) for i in range(n1) for d in range(n2)},
        }[kind]
        assert {(u, d) for d in range(n2) for u in topology.senders(stream, d)} == expected
        assert {(u, d) for u in range(n1) for d in topology.receivers(stream, u)} == expected


def test_ten_thousand_tasks_load(tmp_path: Path) -> None:
    operators = [{"name": f"O{i}", "parallelism": 100, "rates": [1.5] * 100} for i in range(100)]
    streams = [{"from": f"O{i}", "to": f"O{i + 1}", "partitioning": "one-to-one"} for i in range(99)]
    for name, text in [("t.json", json.dumps), ("t.yaml", yaml.safe_dump)]:
        (tmp_path / name).write_text(text({"operators": operators, "streams": streams}))
        topology = read_topology(tmp_path / name)
        assert isinstance(topology, Topology)
        assert len(topology.tasks) == 10_000
