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

__all__ = [
    "INPUTS",
    "PARTITIONINGS",
    "Inputs",
    "Operator",
    "Partitioning",
    "Query",
    "Stream",
    "Task",
    "Topology",
    "read_topology",
    "topology_from",
    "topology_to",
]
