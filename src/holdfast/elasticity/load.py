"""What a task reports of its load. Pure values; the runtime makes one a task every few seconds."""

from __future__ import annotations

import math
from dataclasses import dataclass

from holdfast.errors import Invalid
from holdfast.topology import Task


@dataclass(frozen=True, slots=True)
class LoadReport:
    """The CPU time that a task's own work took during the ``seconds`` that ended ``at`` (paper 002, 5.1).

    Only user and system time of the task itself counts: waiting does not, nor time stolen by others. Where epochs run
    one after another, a task sleeps while other levels of the pipeline work, so ``seconds`` is the whole interval
    between two reports and not the time in which the task happened to run.
    """

    task: Task
    at: float
    seconds: float
    cpu_seconds: float
    rows_in: int = 0
    rows_out: int = 0

    def __post_init__(self) -> None:
        if not math.isfinite(self.at):
            raise Invalid(f"load of {self.task}: its time must be a number, got {self.at}")
        if not (math.isfinite(self.seconds) and self.seconds > 0):
            raise Invalid(f"load of {self.task}: must cover more than 0 seconds, got {self.seconds:g}")
        for what, value in (("CPU seconds", self.cpu_seconds), ("rows in", self.rows_in), ("rows out", self.rows_out)):
            if not (math.isfinite(value) and value >= 0):
                raise Invalid(f"load of {self.task}: {what} must be 0 or more, got {value:g}")

    @property
    def utilisation(self) -> float:
        """Share of one core; above 1 where the task's own work used several."""
        return self.cpu_seconds / self.seconds

    @property
    def began(self) -> float:
        return self.at - self.seconds
