"""Holdfast keeps streaming results flowing when machines fail."""

from holdfast.fidelity import output_fidelity
from holdfast.recovery import schedule
from holdfast.topology import Task, Topology, read_topology

__all__ = ["Task", "Topology", "output_fidelity", "read_topology", "schedule"]
