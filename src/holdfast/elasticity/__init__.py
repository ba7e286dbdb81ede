"""When to scale which task, how to cut its keys, and how many nodes stand by: pure policy for the runtime."""

from holdfast.elasticity.decisions import CannotScale, Decision, ScaleIn, ScaleOut, operator_of
from holdfast.elasticity.load import LoadReport
from holdfast.elasticity.policy import Policy
from holdfast.elasticity.pool import Pool, PoolPolicy
from holdfast.elasticity.routes import Sample, evenly, kept, merge, rerouted, split
from holdfast.elasticity.scaler import Scaler
from holdfast.elasticity.tallies import PARTS, sample_of, tally

__all__ = [
    "PARTS",
    "CannotScale",
    "Decision",
    "LoadReport",
    "Policy",
    "Pool",
    "PoolPolicy",
    "Sample",
    "ScaleIn",
    "ScaleOut",
    "Scaler",
    "evenly",
    "kept",
    "merge",
    "operator_of",
    "rerouted",
    "sample_of",
    "split",
    "tally",
]
