"""How nodes are given back: what lives on them is copied elsewhere, takes over there, and only then they may go.

A part of the coordinator with a file of its own. A copy is brought up as a replica is and promoted as one is, so a node
that is given back takes nothing along, and one that dies meanwhile is an ordinary loss.
"""

from __future__ import annotations

from typing import Any

from holdfast.recovery import place
from holdfast.runtime.events import Instruction, NodesUnneeded, Record, Release, Run
from holdfast.runtime.scaling import AMPLE, Scaling
from holdfast.runtime.standing import Home, Standing
from holdfast.topology import Task, Topology


class Draining:
    """Nodes that are leaving are in ``standing.leaving``: nothing new is placed on them."""

    topology: Topology
    standing: Standing
    scaling: Scaling
    runs: dict[int, Run]
    replicated: tuple[Task, ...]
    _checkpointing: int | None
    _out: list[Instruction]

    def _say(self, what: str, **fields: Any) -> None:
        self._out.append(Record(what, fields))

    def _unneeded(self, event: NodesUnneeded) -> None:
        """These may go, as long as somebody stays; in bad times everybody is needed."""
        standing = self.standing
        asked = [node for node in dict.fromkeys(event.nodes) if node in standing.nodes and node not in standing.leaving]
        stay = len(standing.nodes) - len(standing.leaving) - len(asked)
        if not asked or stay < 1 or not standing.all_up:
            return
        standing.leaving.update(asked)
        moving = sorted(str(task) for task, home in standing.homes.items() if home.node in asked)
        self._say("nodes leaving", nodes=sorted(asked), tasks=moving, why=event.why)

    def _stay(self, why: str) -> None:
        """Nobody leaves after all; copies that were made for it go."""
        if self.standing.leaving:
            self._say("nodes stay", nodes=sorted(self.standing.leaving), why=why)
            self.standing.leaving.clear()
            self.standing.replicas = {t: home for t, home in self.standing.replicas.items() if t in self.replicated}

    def _copy_leaving(self, at_work: set[Task]) -> None:
        """Every task on a node that is leaving gets a second copy elsewhere."""
        standing = self.standing
        moving = [
            task for task, home in standing.homes.items() if home.node in standing.leaving and task not in at_work
        ]
        for task in moving:
            if task in standing.replicas and standing.replicas[task].node in standing.leaving:
                del standing.replicas[task]
        missing = [task for task in moving if task not in standing.replicas]
        if not missing:
            return
        shun = {task: [standing.nodes[standing.homes[task].node]] for task in missing}
        placed = place(self.topology, missing, standing.loads(AMPLE), ceiling=1.0, avoid=shun).nodes
        if len(placed) < len(missing):
            lacking = next(task for task in missing if task not in placed)
            self._stay(f"there is no other place for {lacking}")
            return
        for task, node in placed.items():
            stateful = self.topology.operator[task.operator].stateful
            standing.replicas[task] = Home(
                node, standing.checkpoint if stateful else standing.homes[task].position, True
            )
        self._say("replicas", placed={str(task): node for task, node in placed.items()})

    def _let_go(self) -> None:
        """Between two runs: nodes of which everything lives elsewhere as well are given back."""
        standing = self.standing
        if not standing.leaving or self.runs or self._checkpointing is not None or not standing.all_up:
            return
        shadow = self.scaling.shadow
        building = {home.node for home in shadow.homes.values()} if shadow is not None else set()
        gone = {node for node in standing.leaving if node not in building and self._doubled(node)}
        if not gone:
            return
        _, promoted = standing.lose(gone)
        standing.replicas = {t: home for t, home in standing.replicas.items() if self._copied_for_a_reason(t)}
        self._out.append(Release(tuple(sorted(gone))))
        self._say(
            "nodes released",
            nodes=sorted(gone),
            moved={str(task): standing.homes[task].node for task in promoted},
            alive=len(standing.nodes),
        )

    def _doubled(self, node: str) -> bool:
        """Whether every task of a node has another copy, at the head, with its state in place, on a node that stays."""
        standing = self.standing
        for task, home in standing.homes.items():
            if home.node == node:
                twin = standing.replicas.get(task)
                if twin is None or twin.node in standing.leaving or twin.fresh or twin.position < standing.head:
                    return False
        return True

    def _copied_for_a_reason(self, task: Task) -> bool:
        home = self.standing.homes.get(task)
        return task in self.replicated or (home is not None and home.node in self.standing.leaving)
