"""What a job is to do and how: everything a launch needs to know beside its ports. Values, checked once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from operator import index
from typing import Any, Self

from holdfast.errors import Invalid
from holdfast.operators import Pipeline
from holdfast.runtime.options import Options, Scaling, Storage
from holdfast.runtime.settings import RESTORE_WITHIN, Settings, check
from holdfast.runtime.shape import check_scalable
from holdfast.runtime.worker.versions import WHOLE_FROM
from holdfast.topology import Topology, topology_to


@dataclass(frozen=True)
class JobConfig:
    """``epochs``: the job ends after so many. ``budget``: so many average tasks' worth of replicas, chosen by rates.

    ``verify``: every epoch runs twice. ``gather``: seconds that the start waits for nodes. ``local``: the folder under
    which nodes keep their states, ``whole_from``: the bytes from which on they may keep a version whole. ``told``: what
    else the history shall say of the job.
    """

    job: str
    pipeline: Pipeline
    settings: Settings
    epochs: int | None = None
    budget: float | None = None
    scaling: Scaling = Options().scaling
    storage: Storage = Options().storage
    verify: bool = False
    gather: float = 60.0
    owner: str = "holdfast job"
    local: str = ""
    whole_from: int = WHOLE_FROM
    watermarked: bool = False
    told: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, job: str, pipeline: Pipeline, nodes: int, options: Options, **rest: Any) -> Self:
        """What these options mean for this pipeline on so many nodes."""
        replication, failover, storage = options.replication, options.failover, options.storage
        settings = Settings(
            **asdict(failover),
            nodes=nodes,
            checkpoint_every=storage.checkpoint_every or 10,
            young=storage.checkpoint_every is None,
            replicas=tuple(pipeline.topology.tasks_of(list(replication.replicas))),
            survive=replication.survive,
            standby=options.scaling.pool,
            restore_within=failover.within or RESTORE_WITHIN,
        )
        return cls(
            job, pipeline, settings, budget=replication.budget, scaling=options.scaling, storage=storage,
            verify=options.drill.verify, **rest,
        )  # fmt: skip

    def __post_init__(self) -> None:
        check(self, "epochs", lambda epochs: index(epochs) >= 1, "at least 1")
        if self.most_nodes < (least := self.settings.nodes + self.scaling.pool):
            raise Invalid(f"max_nodes must be at least nodes and pool together, {least}, got {self.most_nodes}")
        survive = self.settings.survive
        if isinstance(survive, int) and survive >= self.most_nodes:
            raise Invalid(f"survive must be less than the number of nodes, {self.most_nodes}, got {survive}")

    @property
    def most_nodes(self) -> int:
        return self.scaling.max_nodes or self.settings.nodes + self.scaling.pool

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
