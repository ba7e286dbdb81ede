"""The best placing of replicas found at every level of cost, whatever it was reached by."""

from __future__ import annotations

import numpy as np

from holdfast.replication.exposure import NOWHERE, Bools, Exposure, Ints, standing_of
from holdfast.replication.moves import GAIN, Moves

FEW_TASKS = 40
"""Up to so many tasks at risk every number of replicas has a level of its own."""
LEVELS = 20
"""Levels of cost for more tasks than that."""
TRIED, TRIED_OF_MANY = 8, 4
"""So many steps of a kind are tried in full, with few tasks and with many."""
STEPS, STEPS_OF_MANY = 60, 3
"""So often a placing is polished: in the end, and on the way where there are many tasks."""
FINISHED = 2
"""So many of the best levels within the budget are filled up and polished where levels are coarse."""
AGAIN = (0.1, 0.2, 0.3, 0.4)
"""Such shares of the best placing are given up, what is missed least first, and bought anew."""

Standing = tuple[float, float]


class Climb:
    """Comes down from a replica for every task, then climbs; ``best`` is the best level within the limit."""

    def __init__(self, exposure: Exposure, limit: float) -> None:
        self.exposure, self.limit = exposure, limit
        at_risk = exposure.placed & exposure.allowed.any(axis=1)
        costs = exposure.costs[at_risk]
        count = int(at_risk.sum())
        self._few = count <= FEW_TASKS
        uniform = count > 0 and float(np.ptp(costs)) <= 1e-9 * float(costs.max())
        total = float(costs.sum())
        levels = (max(count, 1) if uniform else 2 * max(count, 1)) if self._few else LEVELS
        self._width = total / levels if total > 0 else 1.0
        self.moves = Moves(exposure, TRIED if self._few else TRIED_OF_MANY)
        self._steps = STEPS if self._few else STEPS_OF_MANY
        self._levels: dict[int, tuple[Standing, float, Ints]] = {}
        self._polished: set[bytes] = set()

    def best(self) -> Ints:
        """The best placing within the limit."""
        nothing = np.full(len(self.exposure.home), NOWHERE)
        free = np.where(self.exposure.costs <= 0, self._everywhere(), NOWHERE)
        everything = self.moves.polished(self._everywhere(), self._steps)
        self._offer(np.array([nothing, free, everything, self.moves.useful(everything)]))
        level = max(self._levels)
        while level >= 0:
            if level in self._levels:
                placing = self._polish(level)
                excess = self.exposure.cost(placing) - (level - 1) * self._width
                self._offer(self.moves.removals(placing, excess))
            level -= 1
        level = 0
        while level <= max(self._levels) and (level - 1) * self._width <= self.limit:
            if level in self._levels:
                placing = self._polish(level)
                self._offer(self.moves.additions(placing, (level + 1) * self._width - self.exposure.cost(placing)))
            level += 1
        within = [each for each in self._levels.values() if each[1] <= self.limit]
        within.sort(key=lambda each: each[0], reverse=True)
        finished = [self.filled(each[2]) for each in within[: 1 if self._few else FINISHED]]
        best = finished[0]
        for other in finished[1:]:
            best = self.better(best, other)
        for share in AGAIN:
            fewer = self.moves.removals(best, share * self.exposure.cost(best))
            if len(fewer):
                best = self.better(best, self.filled(fewer[-1]))
        return best

    def filled(self, placing: Ints, pinned: Bools | None = None) -> Ints:
        """With what else fits into the limit and helps, then polished."""
        now = self.standing(placing)
        while True:
            rows = self.moves.additions(placing, self.limit - self.exposure.cost(placing))
            costs = (rows >= 0) @ self.exposure.costs
            stays = (rows == placing) | ~(pinned if pinned is not None else np.zeros(len(placing), np.bool_))
            rows = rows[(costs <= self.limit) & stays.all(axis=1)]
            if not len(rows):
                break
            least, soft = standing_of(self.exposure.values(rows))
            first = int(np.lexsort((-soft, -least))[0])
            found = (float(least[first]), float(soft[first]))
            if found <= (now[0], now[1] + GAIN):
                break
            placing, now = rows[first], found
        return self.moves.polished(placing, STEPS, pinned)

    def from_there(self, kept: Ints) -> Ints:
        """From replicas that are there already, which move only for a higher floor."""
        placing = kept
        while self.exposure.cost(placing) > self.limit:
            rows = self.moves.removals(placing, 0.0)
            least, soft = standing_of(self.exposure.values(rows))
            placing = rows[int(np.lexsort((-soft, -least))[0])]
        return self.filled(placing, placing >= 0)

    def standing(self, placing: Ints) -> Standing:
        least, soft = standing_of(self.exposure.values(placing[np.newaxis]))
        return float(least[0]), float(soft[0])

    def better(self, one: Ints, other: Ints) -> Ints:
        """The one that stands higher; the first where they are equal, or the second costs too much."""
        if self.exposure.cost(other) > self.limit:
            return one
        return other if self.standing(other) > self.standing(one) else one

    def _everywhere(self) -> Ints:
        """A replica for every task that can have one, each on the allowed node that carries least; dearest first."""
        exposure = self.exposure
        placing = np.full(len(exposure.home), NOWHERE)
        load, room = exposure.carried.copy(), exposure.room.copy()
        for task in np.argsort(-exposure.costs, kind="stable").tolist():
            open_to = exposure.allowed[task] & (exposure.costs[task] <= room)
            if open_to.any():
                node = int(np.where(open_to, load, np.inf).argmin())
                placing[task] = node
                load[node] += exposure.costs[task]
                room[node] -= exposure.costs[task]
        return placing

    def _polish(self, level: int) -> Ints:
        placing = self._levels[level][2]
        if placing.tobytes() not in self._polished:
            self._polished.add(placing.tobytes())
            polished = self.moves.polished(placing, self._steps)
            self._polished.add(polished.tobytes())
            self._offer(polished[np.newaxis])
        return self._levels[level][2]

    def _offer(self, rows: Ints) -> None:
        if not len(rows):
            return
        least, soft = standing_of(self.exposure.values(rows))
        for row, floor, above in zip(rows, least.tolist(), soft.tolist(), strict=True):
            cost = self.exposure.cost(row)
            level = int(np.ceil(cost / self._width - 1e-6))
            held = self._levels.get(level)
            found = (floor, round(above, 12))
            if held is None or found > held[0] or (found == held[0] and cost < held[1]):
                self._levels[level] = (found, cost, row)
