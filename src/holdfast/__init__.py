"""Holdfast keeps streaming results flowing when machines fail."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.assessment import assess
    from holdfast.fidelity import output_fidelity
    from holdfast.operators import Operator, Pipeline
    from holdfast.queries import explain, import_state, writeStream
    from holdfast.recovery import schedule
    from holdfast.replication import ReplicationPlan, plan
    from holdfast.resilience import advise
    from holdfast.runtime.history.outputs import read_output
    from holdfast.runtime.options import Drill, Replication, Scaling, Storage
    from holdfast.runtime.settings import Failover
    from holdfast.runtime.spark import Job, spark_session, start
    from holdfast.topology import Task, Topology, read_topology

__all__ = [
    "Drill",
    "Failover",
    "Job",
    "Operator",
    "Pipeline",
    "Replication",
    "ReplicationPlan",
    "Scaling",
    "Storage",
    "Task",
    "Topology",
    "advise",
    "assess",
    "explain",
    "import_state",
    "output_fidelity",
    "plan",
    "read_output",
    "read_topology",
    "schedule",
    "spark_session",
    "start",
    "writeStream",
]

_ROOMS = {
    "holdfast.assessment": ("assess",),
    "holdfast.fidelity": ("output_fidelity",),
    "holdfast.operators": ("Operator", "Pipeline"),
    "holdfast.queries": ("explain", "import_state", "writeStream"),
    "holdfast.recovery": ("schedule",),
    "holdfast.replication": ("ReplicationPlan", "plan"),
    "holdfast.resilience": ("advise",),
    "holdfast.runtime.history.outputs": ("read_output",),
    "holdfast.runtime.options": ("Drill", "Replication", "Scaling", "Storage"),
    "holdfast.runtime.settings": ("Failover",),
    "holdfast.runtime.spark": ("Job", "spark_session", "start"),
    "holdfast.topology": ("Task", "Topology", "read_topology"),
}


def __getattr__(name: str) -> Any:
    """A room is opened when something in it is asked for: to plan needs no Spark, to read a topology no solver."""
    for room, names in _ROOMS.items():
        if name in names:
            return getattr(import_module(room), name)
    raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
