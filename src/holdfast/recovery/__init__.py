"""Recovery scheduling: what to recover first when capacity comes back bit by bit, and where to put it."""

from holdfast.placement import CEILING, Node, Placement, place, room
from holdfast.recovery.balancing import moves
from holdfast.recovery.completions import essential
from holdfast.recovery.load import measured_costs, with_costs
from holdfast.recovery.plan import Algorithm, RecoveryPlan, Schedule, Step
from holdfast.recovery.scheduling import ALGORITHMS, DEFAULT, recover, schedule
from holdfast.recovery.validation import validate_schedule

__all__ = [
    "ALGORITHMS",
    "CEILING",
    "DEFAULT",
    "Algorithm",
    "Node",
    "Placement",
    "RecoveryPlan",
    "Schedule",
    "Step",
    "essential",
    "measured_costs",
    "moves",
    "place",
    "recover",
    "room",
    "schedule",
    "validate_schedule",
    "with_costs",
]
