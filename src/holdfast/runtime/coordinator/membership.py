"""Who is there: live nodes, their failure domains, and those that are to be given back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from holdfast.recovery import Node
from holdfast.runtime.coordinator.facts import Joined, Lost, NobodyLeaves, Released, Said, Told, record
from holdfast.runtime.coordinator.promising import Outlook, outlook, since
from holdfast.runtime.messages import GiveUp, NodeInfo, NodesSeen, NodesUnneeded, ReleaseNodes

if TYPE_CHECKING:
    from holdfast.runtime.coordinator.parts import Parts


class Membership:
    """``leaving``: nothing new is placed there, and what is there moves. ``released``: given back, or up, by their
    incarnation.

    ``outlook``: how things stood before the last failure; ``missed``: who went since, with no answer between.
    """

    def __init__(self) -> None:
        self.nodes: dict[str, NodeInfo] = {}
        self.leaving: set[str] = set()
        self.released: dict[str, str] = {}
        self.outlook: Outlook | None = None
        self.missed: set[str] = set()

    def hear(self, told: Told, parts: Parts) -> Said:
        match told:
            case NodesSeen():
                yield from self._seen(told, parts)
            case Lost(nodes):
                self.nodes = {name: info for name, info in self.nodes.items() if name not in nodes}
                self.leaving -= nodes
                if self.leaving:
                    yield record("nodes stay", nodes=sorted(self.leaving), why="nodes were lost")
                    self.leaving.clear()
                    yield NobodyLeaves()
            case Joined(came):
                self.nodes.update(came)
                yield record("nodes joined", nodes=list(came), alive=len(self.nodes))
            case NodesUnneeded():
                yield from self._unneeded(told, parts)
            case Released(nodes):
                self.released |= {name: self.nodes.pop(name).incarnation for name in nodes}
                self.leaving -= nodes

    def _seen(self, seen: NodesSeen, parts: Parts) -> Said:
        """Who went and who came. One that was given back or up may be seen for a while: it is not there any more."""
        there = seen.nodes
        self.released = {
            name: held for name, held in self.released.items() if name in there and there[name].incarnation == held
        }
        gone = {
            name
            for name, info in self.nodes.items()
            if name not in there or there[name].incarnation != info.incarnation
        }
        if gone:
            yield Lost(frozenset(gone), seen.cause, seen.answer_due, self._foretold(gone, parts))
        known = (self.nodes.keys() - gone) | self.released.keys()
        if came := {name: info for name, info in there.items() if name not in known}:
            yield Joined(came)

    def give_up(self, nodes: Iterable[str], why: str, parts: Parts) -> Said:
        """Nodes that are seen are lost all the same."""
        held = {name: self.nodes[name].incarnation for name in nodes}
        self.released |= held
        yield Lost(frozenset(held), why, promised=self._foretold(set(held), parts))
        yield GiveUp(tuple(sorted(held.items())))

    def _foretold(self, gone: set[str], parts: Parts) -> float | None:
        """Of the next answer: what is seen bit by bit, with no answer between, is lost together."""
        parts.measurements.weigh(parts)
        if parts.answering.owed == "nothing":
            self.outlook, self.missed = outlook(parts), set()
        self.missed |= gone
        stands = self.outlook is not None and self.outlook.since == since(parts)
        return self.outlook.foretold(self.missed) if self.outlook is not None and stands else None

    def _unneeded(self, event: NodesUnneeded, parts: Parts) -> Said:
        """These may go, as long as somebody stays; in bad times everybody is needed."""
        asked = [name for name in dict.fromkeys(event.nodes) if name in self.nodes and name not in self.leaving]
        stay = len(self.nodes) - len(self.leaving) - len(asked)
        if not asked or stay < 1 or not parts.assignment.all_up:
            return
        self.leaving.update(asked)
        tasks = sorted(str(task) for task, copy in parts.assignment.primaries.items() if copy.node in asked)
        yield record("nodes leaving", nodes=sorted(asked), tasks=tasks, why=event.why)

    def release(self, parts: Parts) -> Said:
        """Between two runs: nodes on which no task lives any more are given back."""
        if not self.leaving or parts.runs.under_way or parts.checkpointing.taking or not parts.assignment.all_up:
            return
        shadow = parts.rescaling.shadow
        used = {copy.node for copy in parts.assignment.primaries.values()}
        used |= {copy.node for copy in shadow.copies.values()} if shadow is not None else set()
        if gone := self.leaving - used:
            yield Released(frozenset(gone))
            yield ReleaseNodes(tuple(sorted(gone)))
            yield record("nodes released", nodes=sorted(gone), alive=len(self.nodes))

    def domain(self, name: str) -> str:
        """What fails together with this node: itself, unless something else is known."""
        return self.nodes[name].domain or name

    def loads(self, capacity: float, parts: Parts) -> list[Node]:
        """The live nodes with what they carry, but for those that are leaving."""
        load = parts.assignment.load()
        return [
            Node(name, capacity, load.get(name, 0.0), self.domain(name))
            for name in self.nodes
            if name not in self.leaving
        ]

    def check(self, parts: Parts) -> list[str]:
        wrong = [f"{name} is to leave, but it is gone" for name in sorted(self.leaving - self.nodes.keys())]
        wrong += [f"{name} was given back, but is there" for name in sorted(self.released.keys() & self.nodes.keys())]
        return wrong + (["every node is to leave"] if self.nodes and not self.nodes.keys() - self.leaving else [])
