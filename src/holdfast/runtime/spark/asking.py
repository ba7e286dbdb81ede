"""Who holds a run up: executors that do not answer, or that are alone in not having done their part of a level."""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Sequence
from typing import Any

from pyspark import SparkContext

from holdfast.runtime.driver.hearing import CONTROL, MOST, Hearing
from holdfast.runtime.driver.ports import Asked, Silence
from holdfast.runtime.spark.nodes import EXECUTOR

STEP = 0.05
"""Seconds that are waited at a time. What it takes longer than twice that the driver did not get, and counts for nobody
as silence."""
LONGEST = 2 * MOST
"""Seconds after which nobody is waited for any more, whatever the driver got of them."""
FETCH = re.compile(r"FetchFailed\(BlockManagerId\((\d+),")
REMEMBERED = 30.0
"""Seconds that a read in vain is held against both."""
TASKS = 1000
"""So many tasks of a stage are looked at."""


def blamed(in_vain: Iterable[Sequence[str]], last: str) -> str:
    """Of executors from which others read in vain, and those others: who has a part in most; ``last`` if many have.

    Where one is cut off from all others but not from the driver, it reads in vain as others do from it.
    """
    counts = Counter(each for pair in in_vain for each in pair)
    return max(counts, key=lambda each: (counts[each], each == last), default=last)


class Asking:
    """Each executor is asked on a thread of its own, which a silent one may hold up for long: once at a time."""

    def __init__(self, context: SparkContext) -> None:
        self._context = context
        self._hearing = Hearing()
        self._heard = threading.Condition()
        self._in_vain: list[tuple[float, str, str]] = []
        """When, from whom somebody could not read, and who."""

    def silent(self, group: str, places: Sequence[str]) -> Asked:
        """Of these places, those for which the Spark job of this group has to wait."""
        executors = {place.rpartition("_")[2]: place for place in places if place.startswith(EXECUTOR)}
        if not executors:
            return Asked({})
        silent, pace = self._unanswering(list(executors))
        if not silent:
            late = {str(task.executorId()) for task in self._tasks(group, "RUNNING")} & executors.keys()
            if late == executors.keys():
                # All wait for all: who was read from in vain just now is the first that the others may do without.
                late = {blamed(pairs, pairs[-1][0])} if (pairs := self._vain(executors)) else set()
            silent = dict.fromkeys(late, "late")
        return Asked({executors[each]: how for each, how in silent.items()}, pace)

    def end(self, group: str) -> None:
        """What executors still do for the Spark job of this group, which was called off, ends at once.

        A task that waits for rows from a host that says nothing would wait, with its core, for as long as that does.
        """
        for task in self._tasks(group, "RUNNING"):
            self._context._jsc.sc().killTaskAttempt(task.taskId(), True, "called off")

    def failing(self, group: str, places: Sequence[str]) -> frozenset[str]:
        """Of these places, those whose tasks in the Spark job of this group failed, or from where others read in vain.

        Not those that Spark calls lost: that is seen anyway.
        """
        executors = {place.rpartition("_")[2]: place for place in places if place.startswith(EXECUTOR)}
        found, pairs = set[str](), list[tuple[str, str]]()
        for task in self._tasks(group, "FAILED"):
            said, own = str(task.errorMessage().getOrElse(None)), str(task.executorId())
            if read_from := FETCH.match(said):
                pairs.append((read_from[1], own))
            elif not said.startswith("ExecutorLostFailure"):
                found.add(own)
        if pairs:
            now = time.monotonic()
            recent = [each for each in self._in_vain if now - each[0] < REMEMBERED]
            self._in_vain = [*recent, *((now, *pair) for pair in pairs)]
            found.add(blamed(self._vain(executors), pairs[-1][0]))
        return frozenset(executors[each] for each in found & executors.keys())

    def _vain(self, executors: Container[str]) -> list[tuple[str, str]]:
        """Between which of these reads were in vain lately, from whom first.

        Who was given up since, or is gone, is not to blame for what goes wrong now.
        """
        since = time.monotonic() - REMEMBERED
        return [(of, by) for when, of, by in self._in_vain if when > since and of in executors and by in executors]

    def _unanswering(self, executors: Sequence[str]) -> tuple[dict[str, Silence], float]:
        """Those whose process does not answer in time, and how long others take, or how long the driver itself was held
        up. A dump of its threads is the one thing that any executor gives."""
        hearing, waited, held_up = self._hearing, 0.0, 0.0
        with self._heard:
            for each in filter(hearing.free, (CONTROL, *executors)):
                asking = threading.Thread(target=self._ask, args=(each,), name=f"holdfast-ask-{each}", daemon=True)
                asking.start()  # it has nothing to tell before this lock is given back
                hearing.asked(each, time.monotonic())
            began = now = time.monotonic()
            while any(map(hearing.owes, executors)) and waited < hearing.wait(executors, now) and now < began + LONGEST:
                self._heard.wait(STEP)
                took = time.monotonic() - now
                now, waited, held_up = now + took, waited + min(took, 2 * STEP), max(held_up, took - 2 * STEP)
            return hearing.judge(executors), min(MOST, max(held_up, hearing.pace(executors, now)))

    def _ask(self, who: str) -> None:
        answered = False
        try:
            scala: Any = self._context._jsc.sc()
            # Of the driver itself any word will do: its own threads are not stopped for it.
            answered = bool(scala.startTime() if who == CONTROL else scala.getExecutorThreadDump(who).isDefined())
        except Exception:  # py4j wraps whatever Spark throws; who is gone does not answer either
            answered = False
        finally:
            with self._heard:
                if answered:
                    self._hearing.answered(who, time.monotonic())
                self._hearing.over(who)
                self._heard.notify_all()

    def _tasks(self, group: str, status: str) -> Iterator[Any]:
        """Of stages that are under way, or of those that failed."""
        tracker, store = self._context.statusTracker(), self._context._jsc.sc().statusStore()
        for job in tracker.getJobIdsForGroup(group):
            info = tracker.getJobInfo(job)
            for stage in info.stageIds if info is not None else ():
                now = tracker.getStageInfo(stage)
                if now is None or not (now.numActiveTasks or now.numFailedTasks):
                    continue
                tasks = store.taskList(stage, now.currentAttemptId, TASKS)
                listed = (tasks.apply(number) for number in range(tasks.size()))
                yield from (task for task in listed if str(task.status()) == status)
