"""Requests to a running job: looked for beside the nodes, by a thread that a silent store may hold up."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.runtime.driver.requests import Request
from holdfast.runtime.driver.watching import Watching
from holdfast.runtime.spark.loop import Loop
from holdfast.state import Unusable
from waiting import DEADLINE, until


class Driven:
    """A driver with nothing but nodes to look at, and what has come of it."""

    def __init__(self, loop: Loop, requests: Any) -> None:
        self.looks, self.failed, self.taken = 0, list[BaseException](), list[Request | str]()
        self.ended = False
        self.fail = self.failed.append
        self.autoscaler = SimpleNamespace(look=lambda: None, take=self._take, moved=lambda *_: None)
        self.running = SimpleNamespace(settle_suspects=lambda: None)
        self.snapshot = SimpleNamespace(nodes=())
        self.clock = loop
        nodes = SimpleNamespace(look=self._look, refused=lambda: ())
        self.ports = SimpleNamespace(background=loop, faults=None, nodes=nodes, requests=requests)
        driver: Any = self
        self.watching = Watching(driver)
        self.watching.gathered = True

    def _look(self) -> dict[str, Any]:
        self.looks += 1
        return {}

    def _take(self, asked: Iterable[Request | str]) -> None:
        self.taken += asked

    def watch(self, looks: int) -> None:
        """Until it was looked so often for nodes."""
        upto = self.looks + looks

        def there() -> bool:
            done = threading.Event()
            self.clock.post(self.watching.look)
            self.clock.post(done.set)
            assert done.wait(DEADLINE)
            return self.looks >= upto

        until(there, lambda: f"{self.looks} looks, {self.failed}")


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop()
    yield made
    made.close()


def test_nodes_are_watched_while_the_store_is_silent_and_what_it_says_then_is_taken(loop: Loop) -> None:
    answer = threading.Event()
    request = Request("name", "counts", 3)

    def requests() -> Iterable[Request | str]:
        assert answer.wait(DEADLINE)
        return (request,)

    driven = Driven(loop, requests)
    try:
        driven.watch(10)
        assert driven.taken == []
    finally:
        answer.set()
    while not driven.taken:
        driven.watch(1)
    assert driven.taken[0] == request and driven.failed == []


def test_a_store_that_is_out_of_reach_when_requests_are_looked_for_does_not_end_the_job(loop: Loop) -> None:
    tries: list[int] = []

    def requests() -> Iterable[Request | str]:
        tries.append(1)
        raise Unusable("503 Slow Down")

    driven = Driven(loop, requests)
    while len(tries) < 5:
        driven.watch(1)
    assert driven.failed == []
