"""Who is there: everybody is told of at every look, and what changed follows from it."""

from __future__ import annotations

from driving import chain, task
from parts_alone import found, heard, kinds, nodes, only

from holdfast.runtime.coordinator.facts import Copy, Joined, Lost, Released
from holdfast.runtime.coordinator.parts import Parts
from holdfast.runtime.messages import NodeInfo, NodesSeen, NodesUnneeded, ReleaseNodes


def with_nodes(*names: str) -> Parts:
    parts = found(chain(1, 2))
    heard(parts.members, Joined(nodes(*names)), parts)
    return parts


def up(parts: Parts, *where: str) -> None:
    """A/0, A/1... live on these nodes."""
    for number, node in enumerate(where):
        parts.assignment.primaries[task(f"A/{number}")] = Copy(node, -1, fresh=True)


def test_who_is_missing_was_lost_and_who_is_new_joined_losses_first() -> None:
    parts = with_nodes("a", "b")
    said = heard(parts.members, NodesSeen(nodes("b", "c"), "gone", answer_due=True), parts)
    assert said == [Lost(frozenset({"a"}), "gone", answer_due=True), Joined(nodes("c"))]


def test_the_same_look_again_says_nothing() -> None:
    parts = with_nodes("a", "b")
    assert heard(parts.members, NodesSeen(nodes("a", "b")), parts) == []


def test_another_incarnation_was_lost_and_has_joined() -> None:
    parts = with_nodes("a", "b")
    seen = {**nodes("a", of="2"), **nodes("b")}
    lost, joined = heard(parts.members, NodesSeen(seen), parts)
    assert lost == Lost(frozenset({"a"}), "executor lost") and joined == Joined(nodes("a", of="2"))


def test_a_node_that_was_given_back_is_no_ghost_while_it_is_still_seen() -> None:
    parts = with_nodes("a", "b")
    heard(parts.members, Released(frozenset({"b"})), parts)
    assert heard(parts.members, NodesSeen(nodes("a", "b")), parts) == []
    assert parts.members.check(parts) == []
    again = {**nodes("a"), **nodes("b", of="2")}
    assert heard(parts.members, NodesSeen(again), parts) == [Joined(nodes("b", of="2"))], "that is another one"


def test_who_was_given_back_is_forgotten_once_nobody_sees_it() -> None:
    parts = with_nodes("a", "b")
    heard(parts.members, Released(frozenset({"b"})), parts)
    heard(parts.members, NodesSeen(nodes("a")), parts)
    assert parts.members.released == {}
    assert heard(parts.members, NodesSeen(nodes("a", "b")), parts) == [Joined(nodes("b"))]


def test_a_domain_is_the_node_itself_unless_it_is_named() -> None:
    parts = with_nodes("a")
    heard(parts.members, Joined({"b": NodeInfo("1", "rack-1")}), parts)
    assert [parts.members.domain(name) for name in "ab"] == ["a", "rack-1"]


def test_nodes_that_are_not_needed_leave_as_long_as_somebody_stays() -> None:
    parts = with_nodes("a", "b", "c")
    up(parts, "a", "b")
    assert heard(parts.members, NodesUnneeded(("a", "b", "c")), parts) == []
    (leaving,) = heard(parts.members, NodesUnneeded(("b", "c", "x"), "too many"), parts)
    assert leaving.fields == {"nodes": ["b", "c"], "tasks": ["A/1"], "why": "too many"}  # type: ignore[union-attr]
    assert heard(parts.members, NodesUnneeded(("a",)), parts) == [], "somebody stays"
    assert [node.name for node in parts.members.loads(1.0, parts)] == ["a"], "nothing new is placed on the others"


def test_nobody_leaves_while_something_is_down() -> None:
    parts = with_nodes("a", "b")
    up(parts, "a")
    assert heard(parts.members, NodesUnneeded(("b",)), parts) == []


def test_after_a_loss_nobody_leaves() -> None:
    parts = with_nodes("a", "b", "c")
    up(parts, "a", "a")
    heard(parts.members, NodesUnneeded(("b",)), parts)
    said = heard(parts.members, Lost(frozenset({"c"})), parts)
    assert kinds(said) == ["nodes stay", "NobodyLeaves"] and not parts.members.leaving


def test_only_an_empty_node_is_given_back() -> None:
    parts = with_nodes("a", "b", "c")
    up(parts, "a", "b")
    heard(parts.members, NodesUnneeded(("b", "c")), parts)
    said = list(parts.members.release(parts))
    assert only(Released, said).nodes == {"c"} and only(ReleaseNodes, said).nodes == ("c",)


def test_what_does_not_hold_is_told() -> None:
    parts = with_nodes("a")
    parts.members.leaving.update({"a", "x"})
    parts.members.released["a"] = "1"
    assert parts.members.check(parts) == [
        "x is to leave, but it is gone",
        "a was given back, but is there",
        "every node is to leave",
    ]
