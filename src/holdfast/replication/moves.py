"""Steps from one placing of replicas to others: one replica more, one less, one elsewhere, a tree made whole.

What single steps do to every loss set is read off the worth of tasks, so a whole neighbourhood costs one sweep.
"""

from __future__ import annotations

import numpy as np

from holdfast.replication.completion import TIE, Completion, Routes
from holdfast.replication.exposure import NOWHERE, Bools, Exposure, Floats, Ints, standing_of, weights_of

GAIN = 1e-9
LOOKED_AT = 48
"""So many tasks are compared on every node."""


class Moves:
    """``few``: how many of a kind are tried in full."""

    def __init__(self, exposure: Exposure, few: int) -> None:
        self._exposure = exposure
        self._few = few
        self._routes = Routes(exposure.topology)
        self._mean_cost = max(float(exposure.costs.mean()), 1e-12)

    # More

    def additions(self, placing: Ints, extra: float) -> Ints:
        """The most promising single replicas more, several that fill up ``extra``, and whole trees; [n, tasks]."""
        values, worth = self._exposure.worths(placing)
        found = [self._singles(placing, values, worth, extra), *self._trees(placing, values)]
        return self._possible(np.concatenate(found))

    def _singles(self, placing: Ints, values: Floats, worth: Floats, extra: float) -> Ints:
        tasks, targets, density = self._best_additions(placing, values, worth)
        rows = []
        for task, node in zip(tasks[: self._few].tolist(), targets.tolist(), strict=False):
            rows.append(placing.copy())
            rows[-1][task] = node
        together = int(np.searchsorted(np.cumsum(self._exposure.costs[tasks]), extra * (1 + 1e-9), "right"))
        if together > 1 and density[0] > 0:
            rows.append(placing.copy())
            rows[-1][tasks[:together]] = targets[:together]
        return np.array(rows, np.int64).reshape(-1, len(placing))

    def _best_additions(self, placing: Ints, values: Floats, worth: Floats) -> tuple[Ints, Ints, Floats]:
        """Tasks that would gain by a replica, the most for their cost first, each with its best node."""
        exposure = self._exposure
        helps = np.flatnonzero(
            (placing == NOWHERE) & (worth.max(axis=1, initial=0.0) > GAIN) & exposure.allowed.any(axis=1)
        )
        if not len(helps):
            return helps, helps, np.empty(0)
        helps = self._foremost(helps, worth[helps] @ weights_of(values))
        after = values + worth[helps, np.newaxis] * exposure.saves[np.newaxis, :-1]
        least, soft = standing_of(after)
        target = self._targets(placing, helps, least, soft)
        rows = np.arange(len(helps))
        now = standing_of(values)
        costs = np.maximum(exposure.costs[helps], 1e-12)
        density = (soft[rows, target] - now[1]) / costs
        order = np.lexsort((-np.round(density, 12), -np.round((least[rows, target] - now[0]) / costs, 9)))
        return helps[order], target[order], density[order]

    def _foremost(self, tasks: Ints, gains: Floats) -> Ints:
        """The tasks that gain most, in the order of the topology."""
        if len(tasks) <= LOOKED_AT:
            return tasks
        return np.asarray(np.sort(tasks[np.argsort(-np.round(gains, 12), kind="stable")[:LOOKED_AT]]))

    def _targets(self, placing: Ints, tasks: Ints, least: Floats, soft: Floats) -> Ints:
        """The best allowed node for each of these tasks; among equals the one that carries least."""
        room = self._exposure.room - (self._exposure.load(placing) - self._exposure.carried)
        open_to = self._exposure.allowed[tasks] & (self._exposure.costs[tasks, np.newaxis] <= room)
        load = self._exposure.load(placing)
        crowded = load / max(float(load.max()), 1e-12)
        score = np.where(open_to, np.round(least, 9) * 1e3 + np.round(soft, 9) - 1e-9 * crowded, -np.inf)
        return np.asarray(score.argmax(axis=1))

    def _trees(self, placing: Ints, values: Floats) -> list[Ints]:
        """Complete trees for the worst losses: what of a tree is lost then gets a replica that is not."""
        order = np.argsort(values, kind="stable")
        worst = [int(each) for each in order[:2]]
        return [self._trees_for(placing, which) for which in worst]

    def _trees_for(self, placing: Ints, which: int) -> Ints:
        exposure = self._exposure
        lost = exposure.risk[:, which] & ~exposure.saves[placing, which]
        possible = (exposure.allowed & exposure.saves[:-1, which]).any(axis=1)
        prices = np.where(lost, np.where(placing == NOWHERE, exposure.costs, 0.0) + TIE * self._mean_cost, 0.0)
        prices[lost & ~possible] = np.inf
        completion = Completion(self._routes, prices)
        through = np.where(lost & possible, completion.through, np.inf)
        score = np.where(np.isfinite(through), exposure.merit / np.maximum(through, 1e-12), -1.0)
        rows: list[Ints] = []
        seen: set[tuple[int, ...]] = set()
        for task in np.argsort(-score, kind="stable")[: self._few].tolist():
            if score[task] < 0:
                break
            tree = tuple(each for each in completion.tree(task) if lost[each])
            if tree not in seen:
                seen.add(tree)
                rows += self._placed_tree(placing, np.array(tree), which)
        return np.array(rows, np.int64).reshape(-1, len(placing))

    def _placed_tree(self, placing: Ints, tree: Ints, which: int) -> list[Ints]:
        """The lost tasks of a tree on the nodes that live then: spread by load, or together on one of them."""
        exposure = self._exposure
        living = exposure.allowed[tree] & exposure.saves[:-1, which]
        load = exposure.load(placing)
        spread = placing.copy()
        for task, open_to in zip(tree.tolist(), living, strict=True):
            node = int(np.where(open_to, load, np.inf).argmin())
            spread[task] = node
            load[node] += exposure.costs[task]
        rows = [spread]
        if len(tree) > 1:
            for node in np.argsort(-living.sum(axis=0), kind="stable")[:3].tolist():
                together = spread.copy()
                together[tree[living[:, node]]] = node
                rows.append(together)
        return rows

    # Less

    def removals(self, placing: Ints, excess: float) -> Ints:
        """Without the replica that is missed least; without several that free ``excess``; [n, tasks]."""
        values, worth = self._exposure.worths(placing)
        held = np.flatnonzero((placing >= 0) & (self._exposure.costs > 0))
        if not len(held):
            return np.empty((0, len(placing)), np.int64)
        after = values - worth[held] * self._exposure.saves[placing[held]]
        least, soft = standing_of(after)
        costs = self._exposure.costs[held]
        now = standing_of(values)
        missed = np.lexsort((np.round((now[1] - soft) / costs, 12), np.round((now[0] - least) / costs, 9)))
        rows = []
        for place in missed[: self._few].tolist():
            rows.append(placing.copy())
            rows[-1][held[place]] = NOWHERE
        together = 1 + int(np.searchsorted(np.cumsum(costs[missed]), excess * (1 - 1e-9)))
        if together > 1:
            rows.append(placing.copy())
            rows[-1][held[missed[:together]]] = NOWHERE
        return np.array([self.useful(row) for row in rows])

    def useful(self, placing: Ints) -> Ints:
        """The placing without replicas that carry nothing to a query in any loss."""
        _, worth = self._exposure.worths(placing)
        carries = (worth * self._exposure.saves[placing] > GAIN).any(axis=1)
        return np.where(carries, placing, NOWHERE)

    # Elsewhere

    def polished(self, placing: Ints, steps: int, pinned: Bools | None = None) -> Ints:
        """The placing with replicas moved, one at a time, and exchanged, as long as that is better, so often at most.

        ``pinned`` ones move only for a higher floor.
        """
        now = self._standing(placing)
        for _ in range(steps):
            step = self._better(placing, now, self._elsewhere(placing), pinned)
            if step is None:
                step = self._better(placing, now, self._exchanges(placing), pinned)
            if step is None:
                break
            placing, now = step
        return placing

    def _standing(self, placing: Ints) -> tuple[float, float]:
        least, soft = standing_of(self._exposure.values(placing[np.newaxis]))
        return float(least[0]), float(soft[0])

    def _better(
        self, placing: Ints, now: tuple[float, float], rows: Ints, pinned: Bools | None
    ) -> tuple[Ints, tuple[float, float]] | None:
        rows = self._possible(rows)
        if not len(rows):
            return None
        least, soft = standing_of(self._exposure.values(rows))
        if pinned is not None:
            disturbs = (pinned & (rows != placing)).any(axis=1)
            soft = np.where(disturbs & (least <= now[0] + GAIN), -np.inf, soft)
        best = int(np.lexsort((-soft, -least))[0])
        found = (float(least[best]), float(soft[best]))
        if found[0] > now[0] + GAIN or (found[0] >= now[0] and found[1] > now[1] + GAIN):
            return rows[best], found
        return None

    def _elsewhere(self, placing: Ints) -> Ints:
        """The most promising moves of one replica to another node."""
        exposure = self._exposure
        held = np.flatnonzero(placing >= 0)
        if not len(held):
            return np.empty((0, len(placing)), np.int64)
        values, worth = exposure.worths(placing)
        held = self._foremost(held, (worth[held] * ~exposure.saves[placing[held]]) @ weights_of(values))
        without = values - worth[held] * exposure.saves[placing[held]]
        after = without[:, np.newaxis] + worth[held, np.newaxis] * exposure.saves[np.newaxis, :-1]
        least, soft = standing_of(after)
        open_to = exposure.allowed[held].copy()
        open_to[np.arange(len(held)), placing[held]] = False
        least = np.where(open_to, least, -np.inf)
        order = np.lexsort((-soft.ravel(), -least.ravel()))[: self._few]
        rows = []
        for place in order.tolist():
            which, node = divmod(place, least.shape[1])
            if np.isfinite(least[which, node]):
                rows.append(placing.copy())
                rows[-1][held[which]] = node
        return np.array(rows, np.int64).reshape(-1, len(placing))

    def _exchanges(self, placing: Ints) -> Ints:
        """Without one that is missed little, with one that helps for no more cost."""
        exposure = self._exposure
        held = np.flatnonzero(placing >= 0)
        if not len(held):
            return np.empty((0, len(placing)), np.int64)
        values, worth = exposure.worths(placing)
        least, soft = standing_of(values - worth[held] * exposure.saves[placing[held]])
        rows = []
        for place in np.lexsort((-soft, -least))[: self._few].tolist():
            task = int(held[place])
            without = placing.copy()
            without[task] = NOWHERE
            values, worth = exposure.worths(without)
            tasks, targets, _ = self._best_additions(without, values, worth)
            cheap = (exposure.costs[tasks] <= exposure.costs[task] * (1 + 1e-9)) & (tasks != task)
            for other, node in list(zip(tasks[cheap].tolist(), targets[cheap].tolist(), strict=True))[:3]:
                rows.append(without.copy())
                rows[-1][other] = node
        return np.array(rows, np.int64).reshape(-1, len(placing))

    def _possible(self, rows: Ints) -> Ints:
        return rows[self._exposure.fits(rows)] if len(rows) else rows
