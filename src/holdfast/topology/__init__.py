"""The topology: what runs, what flows where, and which outputs people wait for."""

from holdfast.topology.files import read_topology, topology_from, topology_to
from holdfast.topology.model import (
    INPUTS,
    PARTITIONINGS,
    Inputs,
    Operator,
    Partitioning,
    Query,
    Stream,
    Task,
    Topology,
)
from holdfast.topology.random import Knobs, random_topology

__all__ = [
    "INPUTS",
    "PARTITIONINGS",
    "Inputs",
    "Knobs",
    "Operator",
    "Partitioning",
    "Query",
    "Stream",
    "Task",
    "Topology",
    "random_topology",
    "read_topology",
    "topology_from",
    "topology_to",
]
