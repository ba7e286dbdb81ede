"""How nodes are given back: what lives on them moves elsewhere, and only then they may go.

A part of the coordinator with a file of its own. Tasks leave as they do for balance: a replica comes up on another node
and takes over. So a node that is given back takes nothing along, and one that dies meanwhile is an ordinary loss.
"""

from __future__ import annotations

from typing import Any

from holdfast.recovery import place
from holdfast.runtime.events import Instruction, NodesUnneeded, Record, Release, Run
from holdfast.runtime.scaling import AMPLE, Scaling
from holdfast.runtime.standing import Standing
from holdfast.topology import Task, Topology


class Draining:
    """Nodes that are leaving are in ``standing.leaving``: nothing new is placed on them."""

    topology: Topology
    standing: Standing
    scaling: Scaling
    runs: dict[int, Run]
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
        on_them = sorted(str(task) for task, home in standing.homes.items() if home.node in asked)
        self._say("nodes leaving", nodes=sorted(asked), tasks=on_them, why=event.why)

    def _stay(self, why: str) -> None:
        """Nobody leaves after all; what has begun to move moves on."""
        if self.standing.leaving:
            self._say("nodes stay", nodes=sorted(self.standing.leaving), why=why)
            self.standing.leaving.clear()

    def _empty_leaving(self, given_up: set[Task]) -> None:
        """Every task on a node that is leaving moves to one that stays; replicas there are made anew elsewhere.

        ``given_up``: copies that a run still works on, though nobody wants them any more.
        """
        standing = self.standing
        if not standing.leaving or standing.down or self._checkpointing is not None:
            return
        for task in [task for task, home in standing.replicas.items() if home.node in standing.leaving]:
            standing.stay([task])
        moving = []
        for task, home in standing.homes.items():
            if home.node in standing.leaving and task in standing.replicas:
                standing.moving.add(task)
            elif home.node in standing.leaving and task not in given_up:
                moving.append(task)
        if not moving:
            return
        placed = place(self.topology, moving, standing.loads(AMPLE), ceiling=1.0).nodes
        told = {str(task): [standing.homes[task].node, node] for task, node in placed.items()}
        for task, node in placed.items():
            standing.move(task, node)
        self._say("moving", tasks=told, why="their nodes are leaving")

    def _let_go(self) -> None:
        """Between two runs: nodes on which nothing lives any more are given back."""
        standing = self.standing
        if not standing.leaving or self.runs or self._checkpointing is not None or not standing.all_up:
            return
        gone = {node for node in standing.leaving if self._empty(node)}
        if not gone:
            return
        standing.lose(gone)
        self._out.append(Release(tuple(sorted(gone))))
        self._say("nodes released", nodes=sorted(gone), alive=len(standing.nodes))

    def _empty(self, node: str) -> bool:
        shadow = self.scaling.shadow
        copies = [self.standing.homes, self.standing.replicas, shadow.homes if shadow is not None else {}]
        return all(home.node != node for homes in copies for home in homes.values())
