"""Executors that were given up, without Spark: they are gone until they have run something, and then are others."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.runtime.spark import nodes
from holdfast.runtime.spark.nodes import Executors
from waiting import DEADLINE, until


class Listed(list[Any]):
    """A list as Scala has them. ``calls``: how often anything was asked of any, each time through the gateway."""

    calls = 0

    def size(self) -> int:
        Listed.calls += 1
        return len(self)

    def apply(self, number: int) -> Any:
        Listed.calls += 1
        return self[number]

    def mkString(self, between: str) -> str:
        Listed.calls += 1
        return between.join(self)


def executors(*ids: str) -> Executors:
    summaries = Listed(
        SimpleNamespace(id=lambda name=name: name, hostPort=lambda name=name: f"h{name}:1", maxTasks=lambda: 1)
        for name in ids
    )
    scala = SimpleNamespace(
        schedulerBackend=lambda: SimpleNamespace(getExecutorIds=lambda: Listed(ids)),
        statusStore=lambda: SimpleNamespace(executorList=lambda _: summaries),
    )
    context: Any = SimpleNamespace(_jsc=SimpleNamespace(sc=lambda: scala))
    return Executors(context, Path("folder"))


def test_an_executor_that_was_given_up_is_back_as_another_when_it_has_run_something(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(nodes, "REJOIN", 0.05)
    monkeypatch.setattr(nodes, "WARM_WITHIN", 0.0)
    well, tried = threading.Event(), []

    def warm(at: str, _: int) -> str:
        tried.append(at)
        if at.endswith("_1") and len(tried) > 2 and not well.is_set():
            raise ConnectionError("it hears nothing")
        return ""

    made = executors("0", "1")
    made.warm = warm
    until(lambda: len(made.look()) == 2)
    before = made.look()["node-1"]
    made.give_up([("node-1", "another life")])
    assert made.look()["node-1"] == before, "another was meant"
    made.give_up([("node-1", before.incarnation)])
    assert list(made.look()) == ["node-0"]

    def tried_in_vain() -> bool:
        assert list(made.look()) == ["node-0"], "time alone does not bring it back"
        return len(tried) >= 4

    until(tried_in_vain)
    well.set()
    until(lambda: len(made.look()) == 2)
    after = made.look()["node-1"]
    assert after.place == before.place and after.incarnation != before.incarnation and after.folder != before.folder
    assert list(made.look()) == ["node-0", "node-1"] and made.look()["node-0"].incarnation == "0"


def test_a_look_does_not_ask_spark_more_often_where_there_are_more_executors() -> None:
    def calls(count: int) -> int:
        made = executors(*map(str, range(count)))
        assert [info.place for info in made.look().values()] == [f"executor_h{n}_{n}" for n in range(count)]
        Listed.calls = 0
        assert len(made.look()) == count
        return Listed.calls

    assert calls(40) == calls(2)
    assert not executors().look()


def test_one_that_does_not_see_the_store_yet_is_tried_again_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "REJOIN", 0.05)
    there, tried = threading.Event(), []

    def warm(at: str, _: int) -> str:
        tried.append(at)
        return "h1: no such store" if at.endswith("_1") and len(tried) > 2 and not there.is_set() else ""

    made = executors("0", "1")
    made.warm = warm
    until(lambda: len(made.look()) == 2)
    made.give_up([("node-1", made.look()["node-1"].incarnation)])
    until(lambda: len(made.look()) == 1 and len(tried) >= 4)
    assert not made.refused()
    there.set()
    until(lambda: len(made.look()) == 2)


def test_who_was_given_up_clears_up_too_and_who_says_nothing_does_not_hold_up_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(nodes, "CLEARED_WITHIN", 0.05)
    asked, never, cleared = list[str](), threading.Event(), threading.Event()

    def clean(places: Sequence[str]) -> None:
        asked.extend(places)
        never.wait(DEADLINE)
        cleared.set()

    made = executors("0", "1", "2")
    made.warm, made.clean = (lambda at, _: ""), clean
    until(lambda: len(made.look()) == 3)
    made.give_up([("node-1", made.look()["node-1"].incarnation)])
    made.close()
    assert not cleared.is_set(), "it returns while they still say nothing"
    until(lambda: bool(asked))
    never.set()
    assert asked == ["executor_h0_0", "executor_h1_1", "executor_h2_2"]
