"""Strategies on one node, emulated: each lane is a timeline of its own, all step from failure to failure together.

A node fails at a constant rate whatever it does, so a failure may hit it while it recovers; recovery then starts anew,
with whatever it has meanwhile fallen behind.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from holdfast.resilience.scenario import Floats

Copies = np.ndarray[tuple[int], np.dtype[np.int64]]


class Emulated(Protocol):
    """A strategy at work: carries its lanes' state from step to step."""

    longest: float
    """Recovery after one failure takes at most about so long: bounds what an unseen failure could have cost."""

    def step(self, gaps: Floats, failing: Copies) -> Floats:
        """A copy fails in every lane now; the downtime until the next failure, ``gaps`` later."""
        ...


class Replay:
    """A window is read again; output of the meantime is lost."""

    def __init__(self, window: float, factor: float) -> None:
        self.longest = window / factor

    def step(self, gaps: Floats, failing: Copies) -> Floats:
        return np.minimum(gaps, self.longest)


class ReplayLossless:
    """A window is read again, then all that output is behind by is caught up with."""

    def __init__(self, lanes: int, window: float, factor: float) -> None:
        self.loading = window / factor
        self.gain = factor - 1.0
        self.window = window
        self.longest = window / self.gain
        self.behind = np.zeros(lanes)

    def step(self, gaps: Floats, failing: Copies) -> Floats:
        recovery = (self.window + self.behind) / self.gain
        caught_up = np.maximum(gaps - self.loading, 0.0) * self.gain
        behind = self.behind + np.minimum(gaps, self.loading) - caught_up
        self.behind = np.where(gaps < recovery, np.maximum(behind, 0.0), 0.0)
        return np.minimum(gaps, recovery)


class Periodic:
    """Checkpoints at multiples of the period of the input's own time; the node stops for each and catches up after.

    Checkpoint ``j`` moves in ``moved[j]`` at the input rate, so in U times that. ``now`` is the time of the last
    failure and ``last`` the number of the newest checkpoint that was complete then. Lanes start at ``phase`` (0 to 1)
    of the trace.
    """

    def __init__(self, period: float, factor: float, moved: Floats, phase: Floats) -> None:
        self.spare = 1.0 / factor
        self.late = self.spare / (1.0 - self.spare)
        self.period = period
        self.takes = moved * self.spare
        self.until = np.concatenate([[0.0], np.cumsum(self.takes)])
        self.longest = float(self.takes.max() + self.late * (2.0 * self.takes.max() + period))
        self.now = phase * len(moved) * period
        number = np.floor(self.now / period).astype(np.int64)
        self.last = np.where(self.now - number * period >= self._takes(number), number, number - 1)

    def step(self, gaps: Floats, failing: Copies) -> Floats:
        """Follow each lane checkpoint by checkpoint until it has caught up; from there on the schedule is regular."""
        then = self.now + gaps
        number, done = self.last.copy(), self.now + self._takes(self.last)
        caught = done + self.late * (done - number * self.period)
        while len(rows := np.flatnonzero((caught > (number + 1) * self.period) & (done < then))):
            # Still behind at the next checkpoint: it is taken on the way.
            after = done[rows] + self.period * self.spare + self._takes(number[rows] + 1)
            number[rows] += 1
            self.last[rows] = np.where(after <= then[rows], number[rows], self.last[rows])
            done[rows] = after
            caught[rows] = after + self.late * (after - number[rows] * self.period)

        up = np.maximum(np.minimum(then, (number + 1) * self.period) - caught, 0.0)
        newest = np.floor(then / self.period).astype(np.int64)
        regular = (newest > number) & (caught <= (number + 1) * self.period)
        stopped = self._takes(newest) * (1.0 + self.late)
        between = newest - 1 - number
        whole = between * self.period - (self._until(newest) - self._until(number + 1)) * (1.0 + self.late)
        up += np.where(regular, whole + np.maximum(then - newest * self.period - stopped, 0.0), 0.0)
        complete = np.where(then - newest * self.period >= self._takes(newest), newest, newest - 1)
        self.last = np.where(regular, np.maximum(complete, self.last), self.last)
        self.now = then
        return np.asarray(gaps - up)

    def _takes(self, number: Copies) -> Floats:
        return np.asarray(self.takes[number % len(self.takes)])

    def _until(self, number: Copies) -> Floats:
        """Time that all checkpoints before this one take together; the trace goes round and round."""
        rounds, rest = np.divmod(number, len(self.takes))
        return np.asarray(rounds * self.until[-1] + self.until[rest])
