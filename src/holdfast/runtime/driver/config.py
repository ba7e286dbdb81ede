"""What a job is to do and how: everything a launch needs to know beside its ports. Values, checked once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.elasticity import Policy
from holdfast.errors import Invalid
from holdfast.operators import Pipeline
from holdfast.runtime.settings import Settings
from holdfast.runtime.shape import check_scalable
from holdfast.topology import Topology, topology_to

Elasticity = Policy | Mapping[str, Any] | bool
"""A policy, what departs from the usual one, or whether to have the usual one at all."""


@dataclass(frozen=True)
class JobConfig:
    """``epochs``: the job ends after so many. ``budget``: so many average tasks' worth of replicas, chosen by rates.

    ``outputs``: False keeps no output. ``allow_changed``: operators that may begin anew. ``patience``: seconds that
    tasks stay down before the nodes that are there carry everything; ``gather``: that the start waits for nodes.
    ``told``: what else the history shall say of the job.
    """

    job: str
    pipeline: Pipeline
    settings: Settings
    epochs: int | None = None
    budget: float | None = None
    outputs: bool = True
    allow_changed: tuple[str, ...] = ()
    verify: bool = False
    memory_limit: int | None = None
    shed_above: float | None = None
    answer_within: float | None = None
    """Seconds after which those who are there answer for who is silent; None: a few times what epochs usually take."""
    elastic: Elasticity = False
    max_nodes: int = 0
    pool: int = 0
    patience: float = 10.0
    gather: float = 60.0
    force: bool = False
    owner: str = "holdfast job"
    local: str = ""
    """The folder under which nodes keep their states."""
    told: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.budget is not None and self.settings.replicas:
            raise Invalid("replicas and budget: give one of them; a budget lets the planner choose the replicas")
        if self.epochs is not None and self.epochs < 1:
            raise Invalid(f"epochs must be at least 1, got {self.epochs}")
        least = self.settings.nodes + self.pool
        if self.max_nodes and self.max_nodes < least:
            raise Invalid(f"max_nodes must be at least nodes and pool together, {least}, got {self.max_nodes}")
        survive = self.settings.survive
        if isinstance(survive, int) and survive >= self.most_nodes:
            raise Invalid(f"survive must be less than the number of nodes, {self.most_nodes}, got {survive}")

    @property
    def most_nodes(self) -> int:
        return self.max_nodes or self.settings.nodes + self.pool

    def described(self, topology: Topology) -> dict[str, Any]:
        """What a reader of the history must know of the job to make sense of the rest."""
        settings = self.settings
        return {
            "job": self.job,
            "nodes": settings.nodes,
            "epochs": self.epochs,
            **{name: value for name, value in self.told.items() if name != "trigger"},
            "topology": topology_to(topology),
            "scalable": {step.name: _why_not(self.pipeline, step.name) for step in self.pipeline.steps},
            "settings": {
                "checkpoint_every": settings.checkpoint_every,
                "budget": self.budget,
                "replicas": [str(task) for task in settings.replicas],
                "scheduler": settings.scheduler,
                "recovery": settings.recovery,
                "capacity": settings.capacity,
                "parallel_recovery": settings.parallel_recovery,
                "rebalance": settings.rebalance,
                "trigger": self.told.get("trigger"),
            },
        }


def _why_not(pipeline: Pipeline, name: str) -> str | None:
    try:
        check_scalable(pipeline, name)
    except Invalid as error:
        return str(error)
    return None
