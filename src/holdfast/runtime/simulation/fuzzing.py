"""The fuzzer: schedule after schedule, each audited; what fails is made as short as it goes and told with its seed.

``python -m holdfast.runtime.simulation.fuzzing`` runs until stopped; ``--seed 17`` runs one, and tells its history.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

from holdfast.errors import Unrecoverable
from holdfast.operators import Pipeline
from holdfast.runtime.coordinator.coordinator import Coordinator
from holdfast.runtime.driver.driver import Watcher
from holdfast.runtime.messages import Event, Instruction, Record, Report, Work
from holdfast.runtime.shape import scalable
from holdfast.runtime.simulation.auditing import audited
from holdfast.runtime.simulation.cluster import SimulatedBatch
from holdfast.runtime.simulation.drawing import drawn_schedule, simpler, with_scalings, with_source_mishaps
from holdfast.runtime.simulation.operators import Output, cut_batches, digest_batches, digesting, undisturbed
from holdfast.runtime.simulation.pipelines import PIPELINES, SKEWED, drawn_batches, skewed_batches
from holdfast.runtime.simulation.schedule import FaultSchedule
from holdfast.runtime.simulation.simulation import JobRefused, Simulation
from holdfast.runtime.simulation.source import watermarked
from holdfast.topology import Task

DULL: tuple[Any, ...] = (0, 0.0, "", None, False, {}, ())
TRIES = 300
"""Simpler schedules tried at most for one that fails."""


@dataclass(frozen=True, slots=True)
class Case:
    """A schedule, and what its tasks do."""

    schedule: FaultSchedule
    pipeline: Pipeline
    batches: Sequence[SimulatedBatch]
    counting: str | None = None
    """An operator that answers how many rows of the source are behind what it says, in a column ``rows``."""

    def expected(self) -> Output:
        outputs = Coordinator(self.pipeline.coordinated, self.schedule.settings).outputs
        return undisturbed(self.pipeline, self.batches[: self.schedule.epochs], outputs)


@dataclass(slots=True)
class Failure:
    """``steps``: every event with its answer, up to the one that broke."""

    case: Case
    error: str
    steps: list[str] = field(default_factory=list)

    def told(self) -> str:
        """The whole story: schedule, history, and what was wrong at its end."""
        return "\n".join([self.case.schedule.told(), "", *self.steps, "", f"BROKEN: {self.error}"])


def digest_case(seed: int) -> Case:
    schedule = drawn_schedule(seed)
    pipeline = digesting(schedule.topology, ordered=True)
    return Case(schedule, pipeline, digest_batches(pipeline, schedule.epochs, seed))


def rows_case(seed: int) -> Case:
    """A pipeline of ready operators."""
    name = sorted(PIPELINES)[seed % len(PIPELINES)]
    pipeline = PIPELINES[name]()
    schedule = drawn_schedule(seed, pipeline.coordinated, epochs=2 + seed % 9)
    return Case(schedule, pipeline, cut_batches(drawn_batches(pipeline, schedule.epochs, seed)))


def watermarked_case(seed: int) -> Case:
    """A pipeline of windows whose sources go by the watermark that the stream keeps; some rows are late."""
    name = ("windows", "joined")[seed % 2]
    pipeline = PIPELINES[name]()
    schedule = with_source_mishaps(drawn_schedule(seed, pipeline.coordinated, epochs=4 + seed % 11))
    drawn = cut_batches(drawn_batches(pipeline, schedule.epochs, seed, late=4))
    return Case(schedule, pipeline, watermarked(pipeline, drawn))


def scaling_case(seed: int) -> Case:
    """Operators are scaled out and in, with nodes that die around it."""
    schedule = drawn_schedule(seed)
    pipeline = digesting(schedule.topology, ordered=False)
    schedule = with_scalings(schedule, sorted(scalable(pipeline)))
    return Case(schedule, pipeline, digest_batches(pipeline, schedule.epochs, seed))


def scaling_rows_case(seed: int) -> Case:
    """A pipeline of ready operators that are scaled."""
    case = rows_case(seed)
    return Case(with_scalings(case.schedule, sorted(scalable(case.pipeline))), case.pipeline, case.batches)


def skewed_case(seed: int) -> Case:
    """Aggregates over aggregates, of keys of which few have nearly all rows."""
    name = sorted(SKEWED)[seed % len(SKEWED)]
    make, counting = SKEWED[name]
    pipeline = make()
    schedule = drawn_schedule(seed, pipeline.coordinated, epochs=6 + seed % 9)
    return Case(schedule, pipeline, cut_batches(skewed_batches(pipeline, schedule.epochs, seed)), counting)


CASES: Mapping[str, Callable[[int], Case]] = {
    "digests": digest_case,
    "rows": rows_case,
    "watermarked": watermarked_case,
    "scaling": scaling_case,
    "scaling-rows": scaling_rows_case,
    "skewed": skewed_case,
}


def mixed_case(seed: int) -> Case:
    """The kinds of cases in turn."""
    return list(CASES.values())[seed % len(CASES)](seed)


def attempt(case: Case, tell: bool = False, history: list[Mapping[str, Any]] | None = None) -> Failure | None:
    """Run a case; what went wrong, if anything did. ``history``: gets what the job told, and "refused" if it was."""
    simulation = Simulation(case.schedule, case.pipeline, list(case.batches[: case.schedule.epochs]))
    steps: list[str] = []
    collecting = gc.isenabled()
    gc.disable()  # it lives for a second: to look for cycles meanwhile takes an eighth of that
    try:
        expected = case.expected()
        if tell:
            simulation.watchers.append(_teller(simulation, steps))
        audited(simulation, expected, case.counting)
    except JobRefused as error:
        if history is not None:
            history.append({"kind": "refused"})
        if not _rightly(case.schedule, error.error):
            return Failure(case, f"{type(error.error).__name__}: {error.error}", steps)
    except Exception as error:
        return Failure(case, f"{type(error).__name__}: {error}", steps)
    finally:
        if collecting:
            gc.enable()
        if history is not None:
            history.extend(simulation.history)
    return None


def _rightly(schedule: FaultSchedule, error: BaseException) -> bool:
    """Whether a job may end with this word: what was damaged may leave nothing to recover from, if that is said.

    A store that is older than the source's own log is refused by the epochs that are missing.
    """
    kinds = {mishap.kind for mishap in schedule.mishaps}
    if "rewind" in kinds and "would be lost" in str(error):
        return True
    damaged = "rewind" in kinds or any(fault.what == "damage" for fault in schedule.faults)
    return damaged and isinstance(error, Unrecoverable)


def _teller(simulation: Simulation, steps: list[str]) -> Watcher:
    def tell(event: Event, answer: list[Instruction]) -> None:
        steps.append(f"{simulation.world.now:9.3f}  {_short(event)}")
        steps.extend(f"{'':9}    -> {_short(each)}" for each in answer if not isinstance(each, Record))

    return tell


def _short(value: Any) -> str:
    text = _plain(value)
    return text if len(text) <= 600 else text[:597] + "..."


def _plain(value: Any) -> str:
    """A value in few words: tasks as O1/0, fields that say nothing left out."""
    if isinstance(value, Task):
        return str(value)
    if isinstance(value, Work):
        lane = f"{value.lane} {value.fork}" if value.lane in ("tentative", "side") else value.lane
        kept = " kept" if value.keep else ""
        return f"{value.task}@{value.node} {lane} {value.first}..{value.last} from {value.origin} {value.start}{kept}"
    if isinstance(value, Report):
        said = "" if value.status == "committed" else f" {value.status}: {value.message}"
        return f"{value.task}@{value.node} {value.lane} {value.reached}{said}"
    if is_dataclass(value):
        named = {each.name: getattr(value, each.name) for each in fields(value)}
        telling = {k: v for k, v in named.items() if v not in DULL or k in ("start", "epoch", "run", "number")}
        shown = ", ".join(f"{k}={_plain(v)}" for k, v in telling.items())
        return f"{type(value).__name__}({shown})"
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(_plain(each) for each in value)}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_plain(k)}: {_plain(v)}" for k, v in value.items()) + "}"
    return str(value)


def shrink(failure: Failure) -> Failure:
    """The simplest schedule found that still fails in the same way, by greedy steps."""
    kind = _kind(failure.error)
    best, tries = failure, 0
    progress = True
    while progress and tries < TRIES:
        progress = False
        for schedule in simpler(best.case.schedule):
            tries += 1
            found = attempt(Case(schedule, best.case.pipeline, best.case.batches))
            if found is not None and _kind(found.error) == kind:
                best, progress = found, True
                break
    return attempt(best.case, tell=True) or best


def _kind(error: str) -> str:
    """What sort of error it is: its words without numbers and names."""
    return " ".join(word for word in error.split()[:14] if word.isalpha())


def fuzz(seeds: Sequence[int] | range, case: Callable[[int], Case] = mixed_case) -> tuple[int, Failure] | None:
    """Run the cases of these seeds; the first that fails, shrunk, with its seed."""
    for seed in seeds:
        failure = attempt(case(seed))
        if failure is not None:
            return seed, shrink(failure)
    return None


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="fuzzer", description="Run random failure schedules until one breaks.")
    parser.add_argument("--seed", type=int, help="run this one alone and tell its history")
    parser.add_argument(
        "--of", choices=[*sorted(CASES), "mixed"], default="mixed", help="what tasks do; rows: ready operators"
    )
    parser.add_argument("--first", type=int, default=0, help="the seed to begin with")
    parser.add_argument("--count", type=int, help="stop after so many; default: run until stopped")
    given = parser.parse_args(arguments)
    if given.count is not None and given.count < 1:
        parser.error(f"--count must be at least 1, got {given.count}")
    make = CASES.get(given.of, mixed_case)
    if given.seed is not None:
        failure = attempt(make(given.seed), tell=True)
        print(failure.told() if failure else f"seed {given.seed}: everything holds")
        return 1 if failure else 0
    began, seed = time.monotonic(), given.first
    while given.count is None or seed < given.first + given.count:
        found = fuzz([seed], make)
        if found is not None:
            print(f"seed {seed} of {given.of} fails; the shortest history found:\n{found[1].told()}")
            return 1
        seed += 1
        if (seed - given.first) % 500 == 0:
            rate = (seed - given.first) / (time.monotonic() - began)
            print(f"{seed - given.first} schedules hold, {rate:.0f} a second", file=sys.stderr)
    print(f"{given.count} schedules hold")
    return 0


if __name__ == "__main__":
    sys.exit(main())
