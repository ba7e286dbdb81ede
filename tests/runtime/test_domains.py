"""What fails together: by host, by a mapping, by a script; and what is said of one that cannot be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast.errors import Invalid
from holdfast.runtime.domains import Domains, DomainsFailed
from holdfast.runtime.driver.config import JobConfig
from holdfast.runtime.options import Scaling
from holdfast.runtime.settings import Settings
from holdfast.runtime.simulation.pipelines import counted_words

HOSTS = {"node-0": "a.net", "node-1": "a.net", "node-2": "b.net"}


def script(folder: Path, body: str) -> Path:
    path = folder / "racks"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def test_who_is_in_which_domain(tmp_path: Path) -> None:
    assert Domains().of(HOSTS) == Domains("host").of(HOSTS) == HOSTS
    assert Domains().of(dict.fromkeys(HOSTS, "a.net")) == {node: node for node in HOSTS}, "one host tells nothing apart"
    mapping = {"node-0": "x", "a.net": "y"}
    (tmp_path / "racks.json").write_text(json.dumps(mapping))
    for given in (mapping, tmp_path / "racks.json"):
        assert Domains(given).of(HOSTS) == {"node-0": "x", "node-1": "y", "node-2": "node-2"}, "a node before its host"
    asked = Domains(script(tmp_path, 'for host in "$@"; do echo "rack-$host"; done'))
    assert asked.of(HOSTS) == {node: f"rack-{host}" for node, host in HOSTS.items()}


def test_a_script_that_tells_too_little_is_told_of_by_the_option(tmp_path: Path) -> None:
    path = script(tmp_path, "echo one; echo why >&2; exit 3")
    with pytest.raises(DomainsFailed) as caught:
        Domains(path, "--domains").of(HOSTS)
    told = "it was given 2 hosts (a.net, b.net) and must print a domain for each; it printed 1 and ended with 3: why"
    assert str(caught.value) == f"--domains {path}: {told}"


def test_a_mapping_that_is_none_is_refused() -> None:
    for given in ({}, {"node-0": 3}):
        with pytest.raises(Invalid, match=r"^domains: a mapping of nodes or hosts to the names of domains is needed"):
            Domains(given)  # type: ignore[arg-type]


def test_no_more_nodes_can_be_survived_than_are_left_of() -> None:
    with pytest.raises(Invalid, match=r"^survive must be less than the number of nodes, 2, got 5$"):
        JobConfig("job", counted_words(), Settings(nodes=2, survive=5))
    JobConfig("job", counted_words(), Settings(nodes=2, survive=5), scaling=Scaling(max_nodes=6))
    JobConfig("job", counted_words(), Settings(nodes=2, survive="domain"))
