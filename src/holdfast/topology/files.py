"""Topology files: JSON or YAML in, JSON out. Shapes are checked here by pydantic; meaning is checked by the model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, StrictBool, ValidationError

from holdfast.errors import Invalid
from holdfast.topology.model import Inputs, Operator, Partitioning, Query, Stream, Task, Topology

_YAML = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The loader in C where PyYAML was built with it: ten times as fast on a large file."""


class _Row(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=False, coerce_numbers_to_str=False)


class _OperatorRow(_Row):
    name: str
    parallelism: int = Field(1, strict=True)
    rates: list[float] | float = []
    costs: list[float] | float = []
    inputs: Inputs = "independent"
    stateful: StrictBool = False


class _StreamRow(_Row):
    source: str = Field(alias="from")
    target: str = Field(alias="to")
    partitioning: Partitioning
    weights: list[float] = []


class _QueryRow(_Row):
    sink: str
    priority: float = 1.0


class _TopologyFile(_Row):
    operators: list[_OperatorRow]
    streams: list[_StreamRow] = []
    queries: list[_QueryRow] = []
    domains: dict[str, list[str]] = {}


def read_topology(path: str | Path) -> Topology:
    """The topology of a ``.json``, ``.yaml`` or ``.yml`` file; Invalid names the file and the mistake."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except IsADirectoryError:
        raise Invalid(f"{path}: this is a folder; a topology file in JSON or YAML is needed") from None
    except FileNotFoundError:
        raise Invalid(f"{path}: no such file; a topology file in JSON or YAML is needed") from None
    except (OSError, UnicodeDecodeError) as error:
        raise Invalid(f"{path}: cannot be read as text: {error}") from None
    try:
        # YAML contains JSON, but takes far longer to parse: only what says that it is YAML is read as such.
        content = yaml.load(text, _YAML) if path.suffix in (".yaml", ".yml") else json.loads(text)
    except json.JSONDecodeError as error:
        raise Invalid(f"{path}: not JSON: {error.msg} at line {error.lineno} column {error.colno}") from None
    except RecursionError:
        raise Invalid(
            f"{path}: nested too deeply; a topology is an object with operators, streams and queries"
        ) from None
    except yaml.YAMLError as error:
        raise Invalid(f"{path}: not YAML: {' '.join(str(error).split())}") from None
    try:
        return topology_from(content)
    except Invalid as error:
        raise Invalid(f"{path}: {error}") from None


def topology_from(content: Any) -> Topology:
    """The topology that a parsed file describes."""
    if not isinstance(content, Mapping):
        raise Invalid(f"a topology is an object with operators, streams and queries, got {type(content).__name__}")
    try:
        file = _TopologyFile.model_validate(content)
    except ValidationError as error:
        raise Invalid(_first(error)) from None
    operators = tuple(
        Operator(
            row.name,
            row.parallelism,
            _listed(row.rates, row.parallelism),
            _listed(row.costs, row.parallelism),
            row.inputs,
            row.stateful,
        )
        for row in file.operators
    )
    streams = tuple(Stream(row.source, row.target, row.partitioning, tuple(row.weights)) for row in file.streams)
    queries = tuple(Query(row.sink, row.priority) for row in file.queries)
    domains = {name: tuple(_task(name, text) for text in tasks) for name, tasks in file.domains.items()}
    return Topology(operators, streams, queries, domains)


def topology_to(topology: Topology) -> dict[str, Any]:
    """The content of a file from which ``topology_from`` makes an equal topology."""
    content: dict[str, Any] = {
        "operators": [
            {
                "name": operator.name,
                "parallelism": operator.parallelism,
                "rates": list(operator.rates),
                "costs": list(operator.costs),
                "inputs": operator.inputs,
                "stateful": operator.stateful,
            }
            for operator in topology.operators
        ],
        "streams": [
            {
                "from": stream.source,
                "to": stream.target,
                "partitioning": stream.partitioning,
                "weights": list(stream.weights),
            }
            for stream in topology.streams
        ],
        "queries": [{"sink": query.sink, "priority": query.priority} for query in topology.queries],
    }
    if topology.domains:
        content["domains"] = {name: [str(task) for task in tasks] for name, tasks in topology.domains.items()}
    return content


def _listed(values: list[float] | float, count: int) -> tuple[float, ...]:
    return (values,) * max(count, 0) if isinstance(values, float) else tuple(values)


def _task(domain: str, written: str) -> Task:
    name, slash, number = written.rpartition("/")
    if not slash or not number.isdecimal():
        raise Invalid(f"domain {domain}: task {written!r}: write OPERATOR/NUMBER, such as O1/0")
    return Task(name, int(number))


def _first(error: ValidationError) -> str:
    """The first mistake as one line: where, what is wrong, what was found."""
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"] if part not in ("float", "list[float]"))
    if first["type"] == "missing":
        return f"{where}: is missing"
    if first["type"] == "extra_forbidden":
        return f"{where}: no such field; check the spelling"
    found = repr(first["input"])
    found = found if len(found) <= 60 else found[:57] + "..."
    return f"{where}: {first['msg'][0].lower()}{first['msg'][1:]}, got {found}"
