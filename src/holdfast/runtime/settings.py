"""How a job is to be run: what the coordinator decides by."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from holdfast.errors import Invalid
from holdfast.topology import Task

RecoveryMode = Literal["incremental", "blocking", "source-replay", "upstream-backup"]
RECOVERIES: tuple[RecoveryMode, ...] = ("incremental", "blocking", "source-replay", "upstream-backup")

HANDOVER = 3
"""Copies at most this many epochs behind are brought up before the next epoch begins, so that they join it."""
YOUNG = 5
"""In a young job a checkpoint is due when so small a part (one over it) of all epochs is not in one."""
RESTORE_WITHIN = 5.0
"""Seconds that an answer waits at most for a state from the store, where no deadline was given."""
AMPLE = 1e12
"""A capacity that holds whatever there is."""

_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_TIME = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|milliseconds?|s|seconds?|m|min|minutes?|h|hours?)")


def seconds_of(written: str, name: str) -> float:
    """A time as people write it: 500ms, 2s, 1.5 seconds, 1 minute. ``name``: the option that it was given to."""
    match = _TIME.fullmatch(written.strip())
    if match is None:
        raise Invalid(f"{name} {written!r}: a time is needed, such as 500ms, 2s, '1 second' or 1m")
    unit = next(unit for unit in ("ms", "milli", "s", "m", "h") if match[2].startswith(unit))
    return float(match[1]) * {"ms": 0.001, "milli": 0.001, "s": 1, "m": 60, "h": 3600}[unit]


def within_of(written: str | float | None, name: str = "answer_within") -> float | None:
    """A deadline: a time, seconds as a number, ``never``, or None for a few times what is usual."""
    if written is None or isinstance(written, (int, float)):
        seconds = written
    else:
        bare = f"{written}s" if _NUMBER.fullmatch(written.strip()) else written
        seconds = float("inf") if written.strip() == "never" else seconds_of(bare, name)
    if seconds is not None and not seconds > 0:
        raise Invalid(f"{name} {written}: more than 0 seconds are needed, or the word never")
    return seconds


@dataclass(frozen=True, slots=True)
class Settings:
    """How the coordinator decides. ``capacity`` of a node in the unit of task costs; None: twice its fair share.

    ``parallel_recovery``: a lost task that can be scaled and has a long replay before it comes back as so many.
    ``rebalance``: nodes that carry much less than others take tasks over from them; ``standby``: so many are left
    without tasks then, if they are. ``checkpoint_tries``: so many checkpoints may fail one after the other.
    ``ceiling``: the share of a node's capacity that recovery may fill. ``young``: checkpoints come sooner in the first
    epochs, so that what is not in one is never much of all there was. ``survive``: replicas are planned for the loss of
    so many nodes, or of a domain; None: of two, or of one where there are only two or three. ``restore_within``: no
    answer waits longer, in seconds, until a state that was lost is back from the store.
    """

    nodes: int = 1
    checkpoint_every: int = 10
    replicas: tuple[Task, ...] = ()
    scheduler: str = "incremental"
    recovery: RecoveryMode = "incremental"
    capacity: float | None = None
    replay_chunk: int = 8
    parallel_recovery: int = 1
    rebalance: bool = True
    standby: int = 0
    checkpoint_tries: int = 20
    ceiling: float = 1.0
    young: bool = False
    survive: int | Literal["domain"] | None = None
    restore_within: float = RESTORE_WITHIN

    def checkpoint_due(self, head: int, age: int) -> bool:
        """Whether the newest checkpoint is too old: so many epochs, of all up to the head."""
        return age >= (min(self.checkpoint_every, max(2, (head + 1) // YOUNG)) if self.young else self.checkpoint_every)

    @property
    def handover(self) -> int:
        """The epochs that a last replay may take, while the next epoch waits for it."""
        return max(HANDOVER, self.replay_chunk // 2)

    def __post_init__(self) -> None:
        for what in ("nodes", "checkpoint_every", "replay_chunk", "parallel_recovery", "checkpoint_tries"):
            if getattr(self, what) < 1:
                raise Invalid(f"{what} must be at least 1, got {getattr(self, what)}")
        if self.survive not in (None, "domain") and (isinstance(self.survive, str) or self.survive < 1):
            raise Invalid(f"survive must be a number of nodes, 1 or more, or domain, got {self.survive!r}")
        if not 0 < self.ceiling <= 1:
            raise Invalid(f"ceiling must be above 0 and at most 1, got {self.ceiling}")
        if self.standby < 0:
            raise Invalid(f"pool must be 0 or more nodes, got {self.standby}")
        if self.recovery not in RECOVERIES:
            raise Invalid(f"recovery must be one of {', '.join(RECOVERIES)}, got {self.recovery!r}")
