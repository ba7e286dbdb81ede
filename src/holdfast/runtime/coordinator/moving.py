"""How tasks move: to nodes that carry less, and away from nodes that are to be given back, which then may go.

A part of the coordinator with a file of its own. A copy is brought up as a replica is, and takes over when it has come
to the head; until then nothing has changed. A node that dies meanwhile is an ordinary loss.
"""

from __future__ import annotations

from holdfast.recovery import moves, place
from holdfast.runtime.coordinator.rescaling import HANDOVER, Rescaling
from holdfast.runtime.coordinator.scaling import AMPLE
from holdfast.runtime.messages import NodesUnneeded, ReleaseNodes
from holdfast.topology import Task


class Moving(Rescaling):
    """``standing.moving``: tasks that move; ``standing.leaving``: nodes that leave, where nothing new is placed."""

    buffering: bool
    _balance_due: bool
    _released: dict[str, str]

    def _move(self) -> None:
        """Begin what is to move, hand over what has arrived, and give back nodes that are empty."""
        if self.standing.all_up and not self.standing.cold and self._checkpointing is None:
            self._empty_leaving()
            self._balance()
        self._hand_over()
        self._let_go()

    @property
    def _given_up(self) -> set[Task]:
        """A copy that was given up while a run works on it is made again when that run is over: both use one folder."""
        return {work.task for run in self.runs.values() for work in run.works if work.lane == "replica"}

    def _hand_over(self) -> None:
        """Where both copies are at the head, and no run brings the old one further, the new one is the task now."""
        standing = self.standing
        if not standing.moving:
            return
        homes, replicas, head = standing.homes, standing.replicas, standing.head
        at_work = {work.task for run in self.runs.values() for work in run.works}
        waiting = sorted(standing.moving - at_work)
        arrived = [task for task in waiting if homes[task].position == replicas[task].position == head]
        moved = {str(task): [homes[task].node, replicas[task].node] for task in arrived}
        for task in arrived:
            standing.take_over(task)
        if moved:
            self._record("moved", tasks=moved, epoch=head)

    # Nodes that are given back

    def _unneeded(self, event: NodesUnneeded) -> None:
        """These may go, as long as somebody stays; in bad times everybody is needed."""
        standing = self.standing
        asked = [node for node in dict.fromkeys(event.nodes) if node in standing.nodes and node not in standing.leaving]
        stay = len(standing.nodes) - len(standing.leaving) - len(asked)
        if not asked or stay < 1 or not standing.all_up:
            return
        standing.leaving.update(asked)
        tasks = sorted(str(task) for task, home in standing.homes.items() if home.node in asked)
        self._record("nodes leaving", nodes=sorted(asked), tasks=tasks, why=event.why)

    def _stay(self, why: str) -> None:
        """Nobody leaves after all; copies that were made for it go."""
        if self.standing.leaving:
            self._record("nodes stay", nodes=sorted(self.standing.leaving), why=why)
            self.standing.leaving.clear()
            self.standing.stay(self.standing.moving)

    def _empty_leaving(self) -> None:
        """Every task on a node that is leaving moves: to its replica, if it has one that stays, else to a new copy."""
        standing = self.standing
        if not standing.leaving:
            return
        given_up = self._given_up
        leave = [task for task, home in standing.homes.items() if home.node in standing.leaving]
        for task in leave:
            if task in standing.replicas and standing.replicas[task].node in standing.leaving:
                standing.stay([task])
        standing.moving.update(task for task in leave if task in standing.replicas)
        missing = [task for task in leave if task not in standing.replicas and task not in given_up]
        self._begin(dict(place(self.topology, missing, standing.loads(AMPLE), ceiling=1.0).nodes), "nodes are leaving")

    def _let_go(self) -> None:
        """Between two runs: nodes on which no task lives any more are given back."""
        standing = self.standing
        if not standing.leaving or self.busy or not standing.all_up:
            return
        shadow = self.scaling.shadow
        used = {home.node for home in standing.homes.values()}
        used |= {home.node for home in shadow.homes.values()} if shadow is not None else set()
        if gone := standing.leaving - used:
            self._released.update({name: standing.nodes[name].incarnation for name in gone})
            standing.lose(gone)
            self._out.append(ReleaseNodes(tuple(sorted(gone))))
            self._record("nodes released", nodes=sorted(gone), alive=len(standing.nodes))

    # Nodes that carry less

    def _balance(self) -> None:
        """Nodes that carry much less than others take tasks over.

        Begun just behind a checkpoint, when a new copy has next to nothing to replay, one set of moves at a time.
        """
        standing = self.standing
        if not self._balance_due or standing.moving:
            return
        self._balance_due = False
        busy = self.scaling.shadow is not None or self.scaling.queue or self.buffering or standing.leaving
        if busy or standing.head - standing.checkpoint > HANDOVER:
            return
        homes = {task: home.node for task, home in standing.homes.items() if task not in standing.replicas}
        by_load = sorted(standing.loads(AMPLE), key=lambda node: -node.load)
        chosen = moves(self.topology, homes, by_load[: len(by_load) - self.settings.standby])
        given_up = self._given_up
        begun = {task: node for task, node in chosen.items() if task not in given_up}
        self._begin(begun, "some nodes carry much more than others")

    def _begin(self, chosen: dict[Task, str], why: str) -> None:
        if chosen:
            told = {str(task): [self.standing.homes[task].node, node] for task, node in chosen.items()}
            for task, node in chosen.items():
                self.standing.move(task, node)
            self._record("moving", tasks=told, why=why)
