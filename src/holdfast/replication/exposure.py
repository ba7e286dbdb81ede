"""What losses of nodes leave of the answer, for many ways of placing replicas at once.

A placing is an array with the node of each task's replica, -1 where it has none. Primaries stay where they are.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from holdfast.fidelity import Flow, Stale, objectives, priorities
from holdfast.placement import Node, slack
from holdfast.replication.problem import BATCH
from holdfast.topology import Topology

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

NOWHERE = -1
SHARPNESS = 20.0
"""How fast a loss set's weight falls with its distance from the worst one: at 0.1 of fidelity it is e**-2."""
DIGITS = 12


class Exposure:
    """``home``: the node of each task's primary, -1 for a task that cannot be lost. ``hit``: [nodes, sets].

    ``merit``: what each task's lone loss would take.
    """

    def __init__(self, topology: Topology, nodes: Sequence[Node], home: Ints, hit: Bools, stale: Stale) -> None:
        self.topology, self.home, self.hit, self.stale = topology, home, hit, stale
        self._loss = stale.loss[:, np.newaxis]
        self.costs = topology.costs
        self.placed = home >= 0
        self.risk = np.where(self.placed[:, np.newaxis], hit[home], False)
        self.saves = ~np.concatenate([hit, np.ones((1, hit.shape[1]), np.bool_)])  # the last row: no replica saves
        self.allowed = _allowed(nodes, home)
        carried = np.bincount(home[self.placed], self.costs[self.placed], len(nodes))
        room = np.array([node.capacity - node.load for node in nodes]) - carried
        self.room = np.array([max(each, 0.0) + slack(each) for each in room])
        self.carried = carried + np.array([node.load for node in nodes])
        self._flow = Flow(topology)
        self._total = float(priorities(topology).sum())
        self._exact = bool((self._loss >= 1).all())
        self.merit = self._flow.worths(np.ones(len(home)))[1][:, 0]

    def values(self, placings: Ints) -> Floats:
        """Fidelity of each placing (a row) for each loss set, [placings, sets]."""
        step = max(1, BATCH // max(self.risk.size, 1))
        found = [self._values(placings[start : start + step]) for start in range(0, len(placings), step)]
        return np.concatenate(found) if found else np.empty((0, self.hit.shape[1]))

    def _values(self, placings: Ints) -> Floats:
        failed = self.risk & ~self.saves[placings]
        flat = failed.transpose(1, 0, 2).reshape(len(self.home), -1)
        each = self._flow.values(~flat) if self._exact else objectives(self.topology, flat.T, self.stale)
        return np.asarray(np.round(each / self._total, DIGITS).reshape(len(placings), -1))

    def worths(self, placing: Ints) -> tuple[Floats, Floats]:
        """Fidelity for each set, [sets], and what each task's being saved brings, [tasks, sets]; 0 where not at risk.

        Exact for one task at a time where `Flow.worths` is; where tasks go on from an old state, an estimate.
        """
        failed = self.risk & ~self.saves[placing]
        lives = np.where(failed, 1.0 - self._loss, 1.0)
        each, worth = self._flow.worths(lives)
        worth = np.where(self.risk, worth * self._loss, 0.0) / self._total
        return (each / self._total if self._exact else self.values(placing[np.newaxis])[0]), np.maximum(worth, 0.0)

    def cost(self, placing: Ints) -> float:
        return float(self.costs[placing >= 0].sum())

    def fits(self, placings: Ints) -> Bools:
        """Is there room on every node for what each placing puts there?"""
        load = np.zeros((len(placings), len(self.room) + 1))
        rows = np.repeat(np.arange(len(placings)), placings.shape[1])
        np.add.at(load, (rows, placings.ravel()), np.tile(self.costs, len(placings)))
        return np.asarray((load[:, :-1] <= self.room).all(axis=1))

    def load(self, placing: Ints) -> Floats:
        """What each node carries, primaries and replicas."""
        held = placing >= 0
        return np.asarray(self.carried + np.bincount(placing[held], self.costs[held], len(self.room)))


def weights_of(values: Floats) -> Floats:
    """How much each loss set counts: the more the nearer it is to the worst."""
    weights = np.exp((values.min() - values) * SHARPNESS)
    return np.asarray(weights / weights.sum())


def standing_of(values: Floats) -> tuple[Floats, Floats]:
    """By what placings are compared: the least over the loss sets (the last axis), then how far all sets stand above.

    The second is a mean in which sets count the more the nearer they are to the worst one.
    """
    least = values.min(axis=-1)
    above = np.exp((least[..., np.newaxis] - values) * SHARPNESS).mean(axis=-1)
    return np.round(least, 9), least - np.log(above) / SHARPNESS


def _allowed(nodes: Sequence[Node], home: Ints) -> Bools:
    """Where each task's replica may live: out of its primary's domain, or where there is but one, off its node."""
    apart = [node.domain for node in nodes]
    if len(set(apart)) < 2:
        apart = [node.name for node in nodes]
    number = {name: place for place, name in enumerate(dict.fromkeys(apart))}
    domain = np.array([number[name] for name in apart])
    return np.asarray((home >= 0)[:, np.newaxis] & (domain[home][:, np.newaxis] != domain))
