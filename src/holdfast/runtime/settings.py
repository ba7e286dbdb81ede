"""How a job is to be run: what the coordinator decides by."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from operator import index
from typing import Any, Literal

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
    if isinstance(written, str):
        bare = f"{written}s" if _NUMBER.fullmatch(written.strip()) else written
        seconds: float | None = float("inf") if written.strip() == "never" else seconds_of(bare, name)
    else:
        seconds = written
    if seconds is not None and not seconds > 0:
        raise Invalid(f"{name} {written}: more than 0 seconds are needed, or the word never")
    return seconds


def check(values: Any, name: str, right: Callable[[Any], bool], needed: str) -> None:
    """Refuse a field that is not right, by its name; None is right where it is the default."""
    value, usual = getattr(values, name), {field.name: field.default for field in fields(values)}[name]
    try:
        fine = (value is None and usual is None) or right(value)
    except TypeError:
        fine = False
    if not fine:
        raise Invalid(f"{name} must be {needed}, got {value!r}")


@dataclass(frozen=True, slots=True)
class Failover:
    """What is done when nodes are lost. ``recovery``: how tasks come back; ``scheduler``: in which order they do.

    ``capacity`` of a node in the unit of task costs; None: twice its fair share. ``patience``: seconds that lost tasks
    wait for new nodes before those that are left carry everything; ``ceiling``: the share of a node's capacity that
    they may fill until then. ``parallel_recovery``: a lost task whose state can be cut by key and that has a long
    replay before it comes back as so many tasks. ``rebalance``: nodes that carry little, since they came late, take
    tasks over from those with more. ``answer_within``: when an epoch is not answered after such a time ("2s", or
    seconds), executors that are well answer tentatively for those that are silent, who are not given up for that;
    "never", or when None 2.5 times what epochs usually take, one second at least.
    """

    recovery: RecoveryMode = "incremental"
    scheduler: str = "incremental"
    capacity: float | None = None
    ceiling: float = 1.0
    patience: float = 10.0
    parallel_recovery: int = 1
    rebalance: bool = True
    answer_within: str | float | None = None

    def __post_init__(self) -> None:
        check(self, "recovery", lambda mode: mode in RECOVERIES, f"one of {', '.join(RECOVERIES)}")
        check(self, "capacity", lambda costs: costs >= 0, "0 or more, in task costs")
        check(self, "ceiling", lambda share: 0 < share <= 1, "above 0 and at most 1")
        check(self, "patience", lambda seconds: seconds >= 0, "0 seconds or more")
        check(self, "parallel_recovery", lambda tasks: index(tasks) >= 1, "at least 1")
        check(self, "answer_within", lambda time: within_of(time) is not None, "a time such as 2s, seconds, or never")
        if self.scheduler != "incremental":
            from holdfast.recovery import ALGORITHMS

            check(self, "scheduler", lambda name: name in ALGORITHMS, f"one of {', '.join(ALGORITHMS)}")

    @property
    def within(self) -> float | None:
        """Seconds after which who is there answers for who is silent; None: a few times what epochs usually take."""
        return within_of(self.answer_within)


@dataclass(frozen=True, slots=True)
class Settings(Failover):
    """How the coordinator decides: by ``Failover``, and by these.

    ``standby``: so many nodes are left without tasks, if they are. ``checkpoint_tries``: so many checkpoints may fail
    one after the other. ``young``: checkpoints come sooner in the first epochs, so that what is not in one is never
    much of all there was. ``survive``: as in ``Replication``. ``restore_within``: no answer waits longer, in seconds,
    until a state that was lost is back from the store.
    """

    nodes: int = 1
    checkpoint_every: int = 10
    replicas: tuple[Task, ...] = ()
    replay_chunk: int = 8
    standby: int = 0
    checkpoint_tries: int = 20
    young: bool = False
    survive: int | Literal["domain"] | None = None
    restore_within: float = RESTORE_WITHIN

    def __post_init__(self) -> None:
        Failover.__post_init__(self)
        for what in ("nodes", "checkpoint_every", "replay_chunk", "checkpoint_tries"):
            check(self, what, lambda number: index(number) >= 1, "at least 1")

    def oldest(self, head: int) -> int:
        """The epochs, of all up to the head, after which the newest checkpoint is too old."""
        return min(self.checkpoint_every, max(2, (head + 1) // YOUNG)) if self.young else self.checkpoint_every

    @property
    def handover(self) -> int:
        """The epochs that a last replay may take, while the next epoch waits for it."""
        return max(HANDOVER, self.replay_chunk // 2)
