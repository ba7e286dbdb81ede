"""When to scale which task, how to cut its keys, and how many nodes stand by: pure policy for the runtime."""

from holdfast.elasticity.decisions import CannotScale, Decision, ScaleIn, ScaleOut, operator_of
from holdfast.elasticity.load import LoadReport
from holdfast.elasticity.policy import Policy
from holdfast.elasticity.pool import Pool, PoolPolicy
from holdfast.elasticity.routes import evenly, kept, merge, rerouted, split
from holdfast.elasticity.scaler import Scaler

__all__ = [
    "CannotScale",
    "Decision",
    "LoadReport",
    "Policy",
    "Pool",
    "PoolPolicy",
    "ScaleIn",
    "ScaleOut",
    "Scaler",
    "evenly",
    "kept",
    "merge",
    "operator_of",
    "rerouted",
    "split",
]
