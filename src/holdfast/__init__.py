"""Holdfast keeps streaming results flowing when machines fail."""

from holdfast.fidelity import output_fidelity
from holdfast.recovery import schedule
from holdfast.replication import ReplicationPlan, plan
from holdfast.resilience import advise
from holdfast.topology import Task, Topology, read_topology

__all__ = ["ReplicationPlan", "Task", "Topology", "advise", "output_fidelity", "plan", "read_topology", "schedule"]
