"""Strategies with several running copies, emulated: the query is down while no copy is up to date.

Lanes step together from failure to failure of any copy. ``ready[n]`` is when copy n is up to date again, in the past
if it is; a copy that fails while it recovers starts anew.
"""

from __future__ import annotations

import numpy as np

from holdfast.resilience.scenario import Flags, Floats, Ints

Copies = np.ndarray[tuple[int], np.dtype[np.int64]]


class ActiveReplay:
    """A failed copy reads a window again."""

    def __init__(self, lanes: int, nodes: int, window: float, factor: float) -> None:
        self.longest = window / factor
        self.ready = np.full((nodes, lanes), -np.inf)
        self.now = np.zeros(lanes)
        self.lanes = np.arange(lanes)

    def step(self, gaps: Floats, failing: Copies) -> Floats:
        self.ready[failing, self.lanes] = self.now + self.longest
        down = np.clip(self.ready.min(axis=0) - self.now, 0.0, gaps)
        self.now += gaps
        return np.asarray(down)


class ActivePeriodic:
    """A failed copy restores the newest complete checkpoint and catches up.

    A checkpoint is sent in the background, as the immutable versions of a state table allow: the copy that sends it,
    the one up the longest, goes on answering. This is what k = N - 1 others stand for in the model. It is due at
    multiples of the period; if no copy is up then, the first that is takes it, and if the sender fails, the next one.
    """

    def __init__(self, nodes: int, period: float, factor: float, moved: Floats, phase: Floats) -> None:
        self.spare = 1.0 / factor
        self.late = self.spare / (1.0 - self.spare)
        self.period = period
        self.takes = moved * self.spare
        self.longest = float(self.takes.max() + self.late * (2.0 * self.takes.max() + period))
        self.ready = np.full((nodes, len(phase)), -np.inf)
        self.lanes = np.arange(len(phase))
        self.now = phase * len(moved) * period
        number = np.floor(self.now / period).astype(np.int64)
        complete = self.now - number * period >= self._takes(number)
        self.due = np.where(complete, number + 1, number)
        self.newest = (self.due - 1) * period
        self.started = np.where(complete, np.inf, number * period)

    def step(self, gaps: Floats, failing: Copies) -> Floats:
        now = self.now
        sender = self.ready.argmin(axis=0)
        restoring = self._takes(np.floor(self.newest / self.period).astype(np.int64))
        self.ready[failing, self.lanes] = now + restoring + self.late * (now - self.newest + restoring)
        self.started[failing == sender] = np.inf
        first_up = self.ready.min(axis=0)
        self._checkpoint(np.maximum(first_up, now), now + gaps)
        self.now = now + gaps
        return np.asarray(np.clip(first_up - now, 0.0, gaps))

    def _checkpoint(self, up: Floats, then: Floats) -> None:
        """Take what checkpoints are due until ``then``, with a copy up from ``up`` on and no failure meanwhile."""
        start = np.where(np.isfinite(self.started), self.started, np.maximum(self.due * self.period, up))
        number = np.floor(start / self.period).astype(np.int64)
        done = start + self._takes(number) <= then
        last = np.floor(then / self.period).astype(np.int64)
        last = np.where(last * self.period + self._takes(last) <= then, last, last - 1)
        later = done & (last > number)
        self.newest = np.where(later, last * self.period, np.where(done, start, self.newest))
        self.due = np.where(later, last + 1, np.where(done, number + 1, self.due))
        begun = np.where(done, self.due * self.period, start)
        self.started = np.where(begun <= then, begun, np.inf)

    def _takes(self, number: Ints) -> Floats:
        return np.asarray(self.takes[number % len(self.takes)])


class OnDemand:
    """A running copy stops, sends its state to the successor of the failed one, and both catch up.

    The only copy that is up goes on answering: a successor then waits for the next copy to be ready, unless there is
    none. A copy holds the state from ``holds`` on; if its sender fails before, another is found. If no copy holds the
    state any more it is lost: counted in ``losses``, and the lane starts afresh.
    """

    def __init__(self, lanes: int, nodes: int, factor: float, moved: Floats) -> None:
        self.spare = 1.0 / factor
        self.moved = moved
        self.longest = float(moved.max() * self.spare / (1.0 - self.spare))
        self.ready = np.full((nodes, lanes), -np.inf)
        self.holds = np.full((nodes, lanes), -np.inf)
        self.sender = np.full((nodes, lanes), -1)
        self.now = np.zeros(lanes)
        self.lanes = np.arange(lanes)
        self.taken = 0
        self.losses = 0

    def step(self, gaps: Floats, failing: Copies) -> Floats:
        self.holds[failing, self.lanes] = self.ready[failing, self.lanes] = np.inf
        cut_off = self._cut_off(failing)
        self.holds[cut_off] = self.ready[cut_off] = np.inf
        lost: Flags = np.asarray(~(self.holds <= self.now).any(axis=0))
        self._start(failing, ~lost)
        again = np.asarray(cut_off & ~lost)
        for copy in np.flatnonzero(again.any(axis=1)):
            self._start(np.full_like(failing, copy), np.asarray(again[copy]))
        if lost.any():
            self.losses += int(lost.sum())
            self.ready[:, lost] = self.holds[:, lost] = -np.inf
        down = np.clip(self.ready.min(axis=0) - self.now, 0.0, gaps)
        self.now += gaps
        return np.asarray(down)

    def _cut_off(self, failing: Copies) -> Flags:
        """Copies that wait for the state of a failed one, or of one that is cut off itself."""
        waiting = np.isfinite(self.holds) & (self.holds > self.now)
        found: Flags = np.asarray(waiting & (self.sender == failing))
        front = found
        while len(lanes := np.flatnonzero(front.any(axis=0))):
            behind = np.take_along_axis(front[:, lanes], self.sender[:, lanes], axis=0)
            front = np.zeros_like(found)
            front[:, lanes] = behind & waiting[:, lanes] & ~found[:, lanes]
            found = found | front
        return found

    def _start(self, copy: Copies, where: Flags) -> None:
        """Find a sender for these copies and the time at which it is free to stop."""
        rows = self.lanes[where]
        if not len(rows):
            return
        copy, now, ready = copy[where], self.now[where], self.ready[:, rows]
        up = ready <= now
        spared = up & (up.sum(axis=0) == 1)
        first = np.where(spared, np.inf, ready)
        alone = np.isinf(first.min(axis=0))
        sender = np.where(alone, ready.argmin(axis=0), first.argmin(axis=0))
        start = np.maximum(ready[sender, np.arange(len(rows))], now)
        takes = self.moved[(self.taken + np.arange(len(rows))) % len(self.moved)] * self.spare
        self.taken += len(rows)
        self.holds[copy, rows] = start + takes
        self.sender[copy, rows] = sender
        self.ready[copy, rows] = self.ready[sender, rows] = start + takes / (1.0 - self.spare)
