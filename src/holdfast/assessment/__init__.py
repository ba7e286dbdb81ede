"""Assessment by fault injection: which operators the answer depends on, measured on the job itself (paper 001)."""

from holdfast.assessment.campaign import Progress, run_campaign
from holdfast.assessment.dataframes import assess
from holdfast.assessment.experiments import Settings
from holdfast.assessment.faults import Burst, FaultModel, parse_fault
from holdfast.assessment.injection import injected, side_by_side
from holdfast.assessment.kills import Kill
from holdfast.assessment.placement import behaves_as, injection_targets
from holdfast.assessment.recording import Subject
from holdfast.assessment.results import Assessment, OperatorResult, read_assessment
from holdfast.assessment.scores import Score, as_score

__all__ = [
    "Assessment",
    "Burst",
    "FaultModel",
    "Kill",
    "OperatorResult",
    "Progress",
    "Score",
    "Settings",
    "Subject",
    "as_score",
    "assess",
    "behaves_as",
    "injected",
    "injection_targets",
    "parse_fault",
    "read_assessment",
    "run_campaign",
    "side_by_side",
]
