"""Replication planning: which tasks to keep a second live copy of, within a budget."""

from holdfast.replication.decomposition import Segment, SubTopology, Unit, decompose
from holdfast.replication.floor import Floor, Survive, floor
from holdfast.replication.problem import ASSUMPTIONS, Assume, Planner, ReplicationPlan
from holdfast.replication.registry import DEFAULT, PLANNERS, plan
from holdfast.replication.surviving import SurvivingPlan, plan_surviving
from holdfast.replication.validator import validate_plan

__all__ = [
    "ASSUMPTIONS",
    "DEFAULT",
    "PLANNERS",
    "Assume",
    "Floor",
    "Planner",
    "ReplicationPlan",
    "Segment",
    "SubTopology",
    "Survive",
    "SurvivingPlan",
    "Unit",
    "decompose",
    "floor",
    "plan",
    "plan_surviving",
    "validate_plan",
]
