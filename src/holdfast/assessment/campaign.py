"""A campaign: golden run, waves of faulty runs until sure, and the operator table; resumable from its folder.

Waves make it deterministic: a wave is one repetition of all experiments that still run, and whether an operator goes on
is decided between waves. So the result does not depend on which process was faster, nor on an interruption.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from holdfast.assessment.engines import Engine, SparkJobs, TrialHere, TrialProcesses
from holdfast.assessment.experiments import Design, Measured, Settings, design
from holdfast.assessment.kills import Kill, KillJobs, at_epochs, kill_targets
from holdfast.assessment.placement import behaves_as, injection_targets
from holdfast.assessment.recording import Recording, Subject, output_of, record, traces_of
from holdfast.assessment.results import RESULT, Assessment, assessed
from holdfast.errors import Invalid
from holdfast.topology import Topology
from holdfast.topology.files import topology_to

SETUP, RUNS, TOPOLOGY = "campaign.json", "runs.jsonl", "topology.json"
ENOUGH = 3
"""No confidence interval of fewer repetitions than this ends a campaign early."""
ENGINES = ("trial", "spark")


@dataclass(frozen=True, slots=True)
class Progress:
    """``left``: seconds until the end at the pace so far, None while that is not known; less if it ends early."""

    done: int
    total: int
    left: float | None


Report = Callable[[Progress], None]


def run_campaign(
    make: Callable[[], Subject],
    settings: Settings,
    *,
    engine: str = "trial",
    cores: int = 1,
    spark: Any = None,
    out: Path | None = None,
    report: Report | None = None,
    kill: Kill | None = None,
) -> Assessment:
    """Assess what ``make`` makes. With ``cores`` above 1 it must be importable by other processes (a partial will do).

    ``out``: the folder of the campaign; the same one again goes on where it stopped, and other settings are refused.
    ``kill``: nodes are killed for real, on Spark, instead of the settings' fault and outages.
    """
    if engine not in ENGINES:
        raise Invalid(f"--engine must be one of {', '.join(ENGINES)}, got {engine!r}")
    if kill is not None and engine != "spark":
        raise Invalid(f"--fault kill: nodes are killed on Spark alone, use --engine spark; got --engine {engine}")
    subject = make()
    targets = targets_of(subject, settings) if kill is None else kill_targets(subject, settings)
    notes = None if out is None else Notes.opened(out, subject, settings, engine, kill)
    recording = record(subject)
    if kill is not None:
        settings = at_epochs(recording, replace(settings, outages=(1.0,), at=None))
    more = tuple(output_of(record(subject)) for _ in range(settings.golden - 1))
    traces = traces_of(recording, {name for each in targets.values() for name in each}, more)
    plan = design(traces, settings, targets)
    with ExitStack() as stack:
        chosen: Engine
        if kill is not None:
            chosen = KillJobs(_session(spark, stack), subject, plan, kill, recording.epoch_starts())
        elif engine == "spark":
            chosen = SparkJobs(_session(spark, stack), subject, plan)
        elif cores > 1:
            chosen = stack.enter_context(TrialProcesses(make, plan, cores))
        else:
            chosen = TrialHere(recording, plan)
        measured = run_waves(chosen, plan, notes, report)
    if kill is None:
        result = assessed(plan, measured, subject.name, engine, stands_for(subject.pipeline.topology, targets))
    else:
        result = assessed(plan, measured, subject.name, engine, {}, kill.deadline)
    if notes is not None:
        notes.put(RESULT, result.content())
        notes.put(TOPOLOGY, topology_to(measured_topology(recording)))
    return result


def targets_of(subject: Subject, settings: Settings) -> dict[str, tuple[str, ...]]:
    """What fails, by its label: each target by the placement rules, or the groups asked for."""
    topology = subject.pipeline.topology
    towards = topology.upstream_of(subject.query)
    if not settings.groups:
        return {name: (name,) for name in injection_targets(topology) if name in towards}
    for name in (name for group in settings.groups for name in group):
        if name not in subject.pipeline.by_name:
            raise Invalid(f"--targets: unknown operator {name!r}; operators: {', '.join(subject.pipeline.by_name)}")
        if name not in towards:
            raise Invalid(f"--targets: nothing of {name} reaches {subject.query}, whose output is assessed")
    order = {operator.name: place for place, operator in enumerate(topology.operators)}
    groups = [tuple(sorted(set(group), key=order.__getitem__)) for group in settings.groups]
    return {"+".join(group): group for group in groups}


def stands_for(topology: Topology, targets: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """The operators that each target answers for, itself first."""
    same = behaves_as(topology)
    answer = {}
    for label, operators in targets.items():
        others = [name for name, target in same.items() if operators == (target,) and name not in targets]
        answer[label] = (*operators, *(name for name in others if name not in operators))
    return answer


def run_waves(engine: Engine, plan: Design, notes: Notes | None = None, report: Report | None = None) -> list[Measured]:
    """Repetition after repetition of all experiments whose operators are not settled yet."""
    known = {} if notes is None else notes.known()
    outages, offsets, repeat = len(plan.settings.outages), range(len(plan.offsets)), plan.settings.repeat
    total = len(plan.targets) * len(offsets) * repeat
    going = list(plan.targets)
    took: list[Measured] = []
    began, fresh, done = time.monotonic(), 0, 0
    for repetition in range(repeat):
        wave = [(target, offset, repetition) for target in going for offset in offsets]
        there = [known[key] for key in wave if key in known]
        took += there
        done += len(there)
        for each in engine.measure([plan.unit(*key) for key in wave if key not in known]):
            took.append(each)
            if notes is not None:
                notes.add(each)
            fresh, done = fresh + 1, done + 1
            if report is not None:
                pace = (time.monotonic() - began) / fresh
                report(Progress(done * outages, total * outages, pace * (total - done)))
        settled = [target for target in going if is_settled(target, took, plan)]
        going = [target for target in going if target not in settled]
        total -= len(settled) * len(offsets) * (repeat - repetition - 1)
    if report is not None:
        report(Progress(done * outages, total * outages, 0.0))
    return took


def is_settled(target: str, measured: Iterable[Measured], plan: Design) -> bool:
    """Whether the mean quality scores of an operator are known within the precision, with 95 % confidence."""
    mine = sorted((each for each in measured if each.target == target), key=lambda each: each.key)
    if not plan.settings.precision or len({each.repetition for each in mine}) < ENOUGH:
        return False
    quality = np.array([each.quality for each in mine]).reshape(len(plan.offsets), -1, len(plan.settings.outages))
    repetitions = quality.shape[1]
    spread = quality.std(axis=1, ddof=1).max()
    return bool(stats.t.ppf(0.975, repetitions - 1) * spread / np.sqrt(repetitions) <= plan.settings.precision)


def measured_topology(recording: Recording) -> Topology:
    """The subject's topology with the rows an epoch that its tasks sent as rates, for planning."""
    topology, epochs = recording.subject.pipeline.topology, max(recording.subject.epochs, 1)
    rates = {
        operator.name: tuple(
            max(sum(sent[task][0].num_rows for sent in recording.sent) / epochs, 1e-9)
            for task in topology.tasks
            if task.operator == operator.name
        )
        for operator in topology.operators
    }
    return Topology(
        tuple(replace(operator, rates=rates[operator.name]) for operator in topology.operators),
        topology.streams,
        topology.queries,
        topology.domains,
    )


class Notes:
    """The folder of a campaign: what was asked, and each experiment as it ends, a line of JSON each."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @classmethod
    def opened(cls, folder: Path, subject: Subject, settings: Settings, engine: str, kill: Kill | None) -> Notes:
        """Begin a campaign here, or go on with it; Invalid if the folder holds another one."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise Invalid(f"--out {folder}: a folder cannot be made there: {error.strerror}") from None
        notes = cls(folder)
        now = _setup(subject, settings, engine, kill)
        path = folder / SETUP
        if not path.exists():
            notes.put(SETUP, now)
            return notes
        try:
            before = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise Invalid(f"--out {folder}: {SETUP} cannot be read: {error}") from None
        for name in now:
            if before.get(name) != now[name]:
                raise Invalid(
                    f"--out {folder}: this campaign has {name} {before.get(name)!r:.80}, now it is {now[name]!r:.80}; "
                    f"use another folder"
                )
        return notes

    def known(self) -> dict[tuple[str, int, int], Measured]:
        """The experiments that have ended already. A line that was cut off by a crash does not count."""
        found: dict[tuple[str, int, int], Measured] = {}
        path = self._folder / RUNS
        if not path.exists():
            return found
        data = path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        if len(whole) < len(data):
            with path.open("r+b") as file:
                file.truncate(len(whole))
        for line in whole.splitlines():
            content: dict[str, Any] = json.loads(line)
            content |= {name: tuple(content[name]) for name in ("rows", "quality", "lost", "promoted")}
            each = Measured(**{**content, "local": tuple(tuple(values) for values in content["local"])})
            found[each.key] = each
        return found

    def add(self, measured: Measured) -> None:
        with (self._folder / RUNS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(measured), allow_nan=False) + "\n")

    def put(self, name: str, content: Mapping[str, Any]) -> None:
        temporary = self._folder / f".{name}.part"
        temporary.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", encoding="utf-8")
        temporary.replace(self._folder / name)


def _setup(subject: Subject, settings: Settings, engine: str, kill: Kill | None) -> dict[str, Any]:
    """What must be the same for a campaign to go on, as JSON."""
    content = {**asdict(settings), "score": str(settings.score), "fault": str(settings.fault)}
    content |= {"subject": subject.name, "engine": engine, "epochs": subject.epochs, "key": subject.key}
    content |= {"query": subject.query, "kill": None if kill is None else asdict(kill)}
    loaded: dict[str, Any] = json.loads(json.dumps(content))
    return loaded


def _session(spark: Any, stack: ExitStack) -> Any:
    if spark is not None:
        return spark
    from holdfast.runtime.spark import spark_session

    made = spark_session(f"local[{os.cpu_count() or 2}]", name="holdfast-assess")
    stack.callback(made.stop)
    return made


def all_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def as_groups(written: str) -> tuple[tuple[str, ...], ...]:
    """``TradeFilter,VWAP`` as targets; ``TradeFilter+VWAP`` as operators on one node, which fail together."""
    groups: Sequence[str] = [part.strip() for part in written.split(",") if part.strip()]
    return tuple(tuple(name.strip() for name in group.split("+") if name.strip()) for group in groups)
