"""Who holds a run up, who broke it, and what is still done for one that was called off; without Spark."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from test_given_up import Listed

from holdfast.runtime.driver import hearing
from holdfast.runtime.driver.hearing import CONTROL
from holdfast.runtime.driver.ports import Silence
from holdfast.runtime.spark import asking
from holdfast.runtime.spark.asking import Asking
from waiting import DEADLINE, until

PLACES = [f"executor_h{number}_{number}" for number in range(4)]


def task(number: int, executor: str, status: str, error: str = "") -> Any:
    told = SimpleNamespace(getOrElse=lambda _: error)
    return SimpleNamespace(taskId=lambda: number, executorId=lambda: executor, status=lambda: status,
                           errorMessage=lambda: told)  # fmt: skip


def unread(number: int, reader: str, source: str) -> Any:
    """A task that could not fetch what another executor has."""
    said = f"FetchFailed(BlockManagerId({source}, h{source}, 7079, None), shuffleId=1, mapIndex=0, mapId=1, reduceId=0)"
    return task(number, reader, "FAILED", said)


def asked(*tasks: Any) -> tuple[Asking, list[tuple[int, bool]]]:
    """Of a job with one stage that has these tasks; and what was killed."""
    killed: list[tuple[int, bool]] = []
    stage = SimpleNamespace(numActiveTasks=1, numFailedTasks=1, currentAttemptId=0)
    scala = SimpleNamespace(
        statusStore=lambda: SimpleNamespace(taskList=lambda *_: Listed(tasks)),
        killTaskAttempt=lambda number, interrupted, _: killed.append((number, interrupted)),
    )
    tracker = SimpleNamespace(
        getJobIdsForGroup=lambda _: [7],
        getJobInfo=lambda _: SimpleNamespace(stageIds=[1]),
        getStageInfo=lambda _: stage,
    )
    context: Any = SimpleNamespace(_jsc=SimpleNamespace(sc=lambda: scala), statusTracker=lambda: tracker)
    return Asking(context), killed


def test_what_still_runs_of_a_job_that_was_called_off_is_interrupted() -> None:
    """It may wait for rows from a host that says nothing, and nothing else would wake it."""
    found, killed = asked(task(1, "0", "SUCCESS"), task(2, "1", "RUNNING"), task(3, "2", "RUNNING"))
    found.end("group")
    assert killed == [(2, True), (3, True)]


@pytest.mark.parametrize(
    "tasks, blamed",
    [
        ([task(1, "2", "FAILED", "java.io.IOException: No space left on device")], {2}),
        ([task(1, "2", "FAILED", "ExecutorLostFailure (executor 2 exited)")], set()),
        ([unread(1, "0", "3")], {3}),
        ([unread(1, "3", "0"), unread(2, "1", "3")], {3}),
        ([unread(1, "1", "9")], set()),
    ],
    ids=["its own", "seen anyway", "read from", "cut off from all others", "gone"],
)
def test_by_whom_a_run_broke(tasks: Sequence[Any], blamed: set[int]) -> None:
    found, _ = asked(*tasks)
    assert found.failing("group", PLACES) == {PLACES[number] for number in blamed}


def test_reads_in_vain_count_over_several_runs_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = [unread(1, "3", "0")]
    found, _ = asked()
    monkeypatch.setattr(found, "_tasks", lambda *_: iter(tasks))
    assert found.failing("group", PLACES) == {PLACES[0]}, "nobody knows better yet"
    tasks[:] = [unread(2, "1", "3")]
    assert found.failing("group", PLACES) == {PLACES[3]}
    tasks[:] = [unread(3, "3", "2")]
    assert found.failing("group", PLACES) == {PLACES[3]}, "it reads in vain from everybody"
    monkeypatch.setattr(asking, "REMEMBERED", 0.0)
    tasks[:] = [unread(4, "0", "1")]
    assert found.failing("group", PLACES) == {PLACES[1]}


def test_who_was_given_up_is_not_blamed_in_the_stead_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = [unread(number, "1", "9") for number in range(3)]
    found, _ = asked()
    monkeypatch.setattr(found, "_tasks", lambda *_: iter(tasks))
    assert found.failing("group", [*PLACES, "executor_h9_9"]) == {"executor_h9_9"}
    tasks[:] = [unread(7, "1", "3")]
    assert found.failing("group", PLACES) == {PLACES[3]}


# Who answers. Every executor has a gate: while it is shut, it does not answer what it is asked.


class Clock(threading.Condition):
    """Time that goes on when it is waited for, and not before all that can be heard was heard: how fast this machine is
    does not matter.
    """

    def __init__(self, heard: Callable[[], bool]) -> None:
        super().__init__()
        self.now = 1000.0
        self.then: dict[float, Callable[[], None]] = {}
        """What happens when."""
        self._heard = heard

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        end = time.monotonic() + DEADLINE
        while not self._heard():
            super().wait(0.01)
            assert time.monotonic() < end
        self.now += timeout
        for when in [when for when in self.then if when <= self.now]:
            self.then.pop(when)()
        return False


class Executors:
    """``answered``: how often each answered."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.gates: dict[str, threading.Event] = defaultdict(self._open)
        self.answered: defaultdict[str, int] = defaultdict(int)
        self.asking, _ = asked()
        self.clock = self.asking._heard = Clock(self._all_heard)
        monkeypatch.setattr(asking, "time", SimpleNamespace(monotonic=lambda: self.clock.now))
        scala = self.asking._context._jsc.sc()
        scala.getExecutorThreadDump = self._dump
        scala.startTime = lambda: self._dump(CONTROL).isDefined()

    def _open(self) -> threading.Event:
        gate = threading.Event()
        gate.set()
        return gate

    def _all_heard(self) -> bool:
        """Whether nobody owes an answer who could give one."""
        free = self.asking._hearing.free
        return all(free(each) for each in list(self.asking._hearing._under_way) if self.gates[each].is_set())

    def _dump(self, executor: str) -> Any:
        assert self.gates[executor].wait(DEADLINE)
        self.answered[executor] += 1
        return SimpleNamespace(isDefined=lambda: executor != "gone")

    def shut(self, executor: str) -> None:
        self.gates[executor] = threading.Event()

    def silent(self) -> Mapping[str, Silence]:
        return self.asking.silent("group", PLACES).silent

    def heard(self, executor: str) -> None:
        """Let it answer what it was asked, too late."""
        self.gates[executor].set()
        until(lambda: self.asking._hearing.free(executor))


def test_an_executor_that_answers_every_question_too_late_is_mute_once(monkeypatch: pytest.MonkeyPatch) -> None:
    executors = Executors(monkeypatch)
    assert executors.silent() == {}
    found = list[Silence]()
    for _ in range(5):
        executors.shut("2")
        found += executors.silent().values()
        executors.heard("2")
    assert found == ["mute", *["late"] * 4]


def test_where_all_wait_for_all_the_one_that_was_read_from_in_vain_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """One host and the others do not hear one another: it waits for their rows, and they for its."""
    executors = Executors(monkeypatch)
    running = [task(number, str(number), "RUNNING") for number in range(4)]
    tasks = list(running)
    monkeypatch.setattr(executors.asking, "_tasks", lambda _, status: (t for t in tasks if t.status() == status))
    assert executors.silent() == {}, "nobody knows yet"
    tasks[:] = [unread(9, "1", "2")]
    assert executors.asking.failing("group", PLACES) == {PLACES[2]}
    tasks[:] = running
    assert executors.silent() == {PLACES[2]: "late"}
    tasks[:] = running[:2]
    assert executors.silent() == {PLACES[0]: "late", PLACES[1]: "late"}, "these alone have not done their part"
    tasks[:] = running
    monkeypatch.setattr(asking, "REMEMBERED", 0.0)
    assert executors.silent() == {}, "long ago"


def test_one_that_does_not_answer_is_asked_once_and_stays_mute(monkeypatch: pytest.MonkeyPatch) -> None:
    executors = Executors(monkeypatch)
    assert executors.silent() == {}
    executors.shut("2")
    for _ in range(3):
        assert executors.silent() == {PLACES[2]: "mute"}, "at once, as others are well"
    executors.heard("2")
    assert executors.answered["2"] == 2 and executors.answered["1"] == 4
    assert executors.silent() == {}


def test_while_the_driver_does_not_answer_itself_nobody_is_silent_before_the_most_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    executors = Executors(monkeypatch)
    for each in (CONTROL, "1", "2"):
        executors.shut(each)
    began = executors.clock.now

    def answer() -> None:
        for each in ("1", "2", CONTROL):
            executors.gates[each].set()

    executors.clock.then[began + 4 * hearing.ANSWER] = answer
    found = executors.asking.silent("group", PLACES)
    assert found.silent == {} and found.pace >= 4 * hearing.ANSWER
    assert executors.clock.now >= began + 4 * hearing.ANSWER


def test_who_could_not_be_asked_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    executors = Executors(monkeypatch)
    context = executors.asking._context
    jvm, context._jsc = context._jsc, SimpleNamespace()  # every call fails
    assert executors.asking._unanswering(["1"])[0] == {"1": "mute"}
    until(lambda: executors.asking._hearing.free("1") and executors.asking._hearing.free(CONTROL))
    context._jsc = jvm
    assert executors.silent() == {}


def test_an_executor_that_spark_knows_nothing_of_is_mute(monkeypatch: pytest.MonkeyPatch) -> None:
    executors = Executors(monkeypatch)
    for _ in range(2):
        assert executors.asking.silent("group", [*PLACES, "executor_h_gone"]).silent == {"executor_h_gone": "mute"}
