"""Simulated jobs by named examples: virtual time, real rows through failures, what scripts do, large clusters."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from driving import chain, task

from holdfast.errors import Invalid, Unrecoverable
from holdfast.runtime.faults import parse_faults
from holdfast.runtime.history.history import NAME, History, read_history
from holdfast.runtime.settings import RECOVERIES, RecoveryMode, Settings
from holdfast.runtime.simulation.auditing import Breach, audited
from holdfast.runtime.simulation.costed import costed
from holdfast.runtime.simulation.disk import ONLOOKER
from holdfast.runtime.simulation.fuzzing import Case
from holdfast.runtime.simulation.loop import Environment
from holdfast.runtime.simulation.operators import cut_batches, digest_batches, digesting
from holdfast.runtime.simulation.pipelines import PIPELINES, drawn_batches
from holdfast.runtime.simulation.schedule import FaultSchedule, Timing
from holdfast.runtime.simulation.simulation import STORE, JobRefused, Simulation, Unfinished
from holdfast.state import output
from holdfast.state.files import Files
from holdfast.topology import Operator, Stream, Topology

SCRIPTS = {
    "half the nodes at once": "kill node-1,node-2 at epoch 4; join node-1 after 4s; join node-2 after 6s",
    "everything at once": "kill node-0,node-1,node-2,node-3 at epoch 4; join node-0,node-1,node-2,node-3 after 3s",
    "one after the other": "kill node-0 at epoch 3; kill node-1 at epoch 4; join node-0,node-1 at 9s",
    "again while recovering": "kill node-1 at epoch 3 again at epoch 5; join node-1 after 1s",
    "the driver": "restart at epoch 5",
    "the driver while recovering": "kill node-1,node-2 at epoch 3; restart at epoch 4; join node-1,node-2 at 9s",
    "unreachable for a while": "unreachable node-1,node-2 at epoch 3 for 3s",
    "a full store": "fill store at epoch 4 for 2s; kill node-2 at epoch 5; join node-2 after 3s",
    "a damaged checkpoint": "damage checkpoint at epoch 7; kill node-1 at epoch 7; join node-1 after 2s",
    "a slow node": "slow node-1 10x at epoch 2 for 5s; kill node-2 at epoch 3; join node-2 after 2s",
}


def digests(schedule: FaultSchedule) -> Case:
    pipeline = digesting(schedule.topology, ordered=True)
    return Case(schedule, pipeline, digest_batches(pipeline, schedule.epochs, seed=3))


def simulated(case: Case) -> Simulation:
    return Simulation(case.schedule, case.pipeline, list(case.batches))


def run(schedule: FaultSchedule) -> Simulation:
    case = digests(schedule)
    simulation = simulated(case)
    audited(simulation, case.expected())
    return simulation


def kinds(simulation: Simulation) -> list[str]:
    return [event["kind"] for event in simulation.history]


def written(simulation: Simulation, kind: output.Kind) -> set[tuple[int, str]]:
    return set(output.written(simulation.disk.files(ONLOOKER, STORE), kind))


def schedule(script: str = "", **settings: object) -> FaultSchedule:
    given = Settings(nodes=4, checkpoint_every=3, **settings)  # type: ignore[arg-type]
    return FaultSchedule(chain(2, 3, 2, 1), given, 4, 12, parse_faults(script))


@pytest.mark.parametrize(
    ("script", "recovery"),
    [
        pytest.param(SCRIPTS[name], recovery, id=f"{name}, {recovery}", marks=[] if here else [pytest.mark.long])
        for place, name in enumerate(SCRIPTS)
        for number, recovery in enumerate(RECOVERIES)
        for here in [place % len(RECOVERIES) == number or place < 2]
    ],
)
def test_final_output_is_that_of_an_undisturbed_run(script: str, recovery: RecoveryMode) -> None:
    run(schedule(script, recovery=recovery, replicas=(task("B/0"),)))


@pytest.mark.parametrize("name", PIPELINES)
@pytest.mark.parametrize(
    ("script", "happened"), [("half the nodes at once", "replay"), ("the driver while recovering", "driver lost")]
)
def test_real_rows_come_through_failures(name: str, script: str, happened: str) -> None:
    pipeline = PIPELINES[name]()
    settings = Settings(nodes=4, checkpoint_every=3)
    wanted = FaultSchedule(pipeline.coordinated, settings, 4, 10, parse_faults(SCRIPTS[script]))
    case = Case(wanted, pipeline, cut_batches(drawn_batches(pipeline, 10, seed=1)))
    simulation, expected = simulated(case), case.expected()
    audited(simulation, expected)
    assert expected and written(simulation, "final") == set(expected)
    assert happened in kinds(simulation) and kinds(simulation).count("recovery plan") >= 2


def test_the_audit_compares_rows() -> None:
    case = digests(schedule())
    expected = case.expected()
    (epoch, name), rows = next(iter(expected.items()))
    other = rows.set_column(1, "value", pa.array(["something else"] * len(rows)))
    with pytest.raises(Breach, match=f"the final output of {name} in epoch {epoch} is"):
        audited(simulated(case), {**expected, (epoch, name): other})
    with pytest.raises(Breach, match="was lost"):
        audited(simulated(case), {**expected, (99, name): rows})


def test_answers_go_on_tentatively_and_become_final() -> None:
    simulation = run(schedule("kill node-2,node-3 at epoch 4; join node-2,node-3 after 5s", capacity=2.0))
    epochs = {event["epoch"]: event for event in simulation.history if event["kind"] == "epoch"}
    assert epochs[4]["tentative"] > 0 and 0 < epochs[4]["fidelity"] < 1
    assert epochs[11]["fidelity"] == 1.0 and not epochs[11]["absent"]
    tentative = written(simulation, "tentative")
    assert tentative and tentative <= {(epoch, "C/0") for epoch in range(4, 11)}


def test_a_run_that_restores_states_tells_how_long_reading_them_took() -> None:
    simulation = run(schedule("kill node-2,node-3 at epoch 8; join node-2,node-3 after 5s", capacity=2.0))
    (lost,) = [event["time"] for event in simulation.history if event["kind"] == "nodes lost"]
    runs = [event for event in simulation.history if event["kind"] == "run"]
    read = [event["time"] for event in runs if event.get("restored")]
    assert read and min(read) > lost
    assert {event["restored"] for event in runs if "restored" in event} == {simulation.timing.restore}


def test_a_replica_saves_the_tentative_phase() -> None:
    topology = chain(1, 1, 1)
    every = tuple(each for each in topology.tasks if each.operator != "S")
    settings = Settings(nodes=4, replicas=every)
    simulation = run(FaultSchedule(topology, settings, 4, 8, parse_faults("kill node-0 at epoch 4")))
    epochs = [event for event in simulation.history if event["kind"] == "epoch"]
    assert "promoted" in kinds(simulation) and all(event["fidelity"] == 1.0 for event in epochs)
    assert max(answered - arrived for arrived, answered in simulation.times.values()) < 1.0


@pytest.mark.parametrize("script", ["kill node-0,node-1 at epoch 8; join node-0,node-1 after 2s", "restart at epoch 8"])
def test_what_was_said_before_is_not_written_again(script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replay makes states anew; the outputs of the epochs that it goes through are in their place."""
    staged: Counter[tuple[int, str]] = Counter()
    stage = output.stage

    def counted(files: Files, label: str, kind: output.Kind, epoch: int, name: str, *given: Any) -> output.StagedOutput:
        staged[epoch, name] += kind == "final"
        return stage(files, label, kind, epoch, name, *given)

    monkeypatch.setattr(output, "stage", counted)
    given = Settings(nodes=4, checkpoint_every=6)
    simulation = run(FaultSchedule(chain(2, 3, 2), given, 4, 12, parse_faults(script)))
    replays = [event for event in simulation.history if event["kind"] == "replay"]
    passed = {epoch for event in replays for epoch in range(event["first"], event["last"] + 1)} - {8}
    assert {epoch for epoch, _ in written(simulation, "final")} & passed, "something was said of what is replayed"
    again = {key for key, times in staged.items() if times > 1}
    assert {epoch for epoch, _ in again} <= {8}, "the one at hand alone may have been begun twice"


def test_a_damaged_checkpoint_is_fallen_back_from() -> None:
    simulation = run(schedule(SCRIPTS["a damaged checkpoint"]))
    (lost,) = [event for event in simulation.history if event["kind"] == "checkpoint lost"]
    assert lost["fallback"] < lost["epoch"]


def test_a_store_with_nothing_whole_is_told() -> None:
    # All that are kept in the end are built upon the first one that was damaged.
    script = "damage checkpoint at epoch 8; damage checkpoint at epoch 46; restart at epoch 47"
    wanted = FaultSchedule(chain(1, 1), Settings(nodes=1, checkpoint_every=6), 1, 48, parse_faults(script))
    with pytest.raises(JobRefused, match="no whole checkpoint is left") as refused:
        run(wanted)
    assert isinstance(refused.value.error, Unrecoverable)


def test_a_job_without_nodes_is_told_to_be_stuck() -> None:
    wanted = replace(schedule("kill node-0,node-1,node-2,node-3 at epoch 3"), longest=60.0)
    with pytest.raises(Unfinished, match=r"60 s have passed, but epoch 3 of 12 is to be answered; .*nodes=\(\)"):
        run(wanted)


def test_replacements_come_by_themselves() -> None:
    simulation = run(replace(schedule("kill node-0,node-1,node-2,node-3 at epoch 3"), replace=2.0))
    assert simulation.finished and kinds(simulation).count("nodes joined") == 2


def test_capacity_is_lifted_when_nobody_comes() -> None:
    wanted = schedule("kill node-0,node-1,node-2 at epoch 3", capacity=2.0)
    simulation = run(replace(wanted, timing=Timing(patience=3.0)))
    assert "capacity lifted" in kinds(simulation)


def test_a_failure_takes_virtual_time_alone() -> None:
    calm, rough = run(schedule()), run(schedule(SCRIPTS["half the nodes at once"]))
    assert calm.times[11][1] == pytest.approx(11.3, abs=0.4)
    assert rough.times[11][1] == pytest.approx(calm.times[11][1], abs=1.0), "it has caught up by the end"


def test_a_large_cluster_loses_half_its_nodes() -> None:
    width = 100
    topology = Topology(
        (
            Operator("S", width, costs=(0.0,) * width),
            Operator("A", 4 * width, stateful=True),
            Operator("B", 4 * width, stateful=True),
            Operator("C", width, stateful=True),
        ),
        (Stream("S", "A", "split"), Stream("A", "B", "one-to-one"), Stream("B", "C", "merge")),
    )
    dying = ",".join(f"node-{number}" for number in range(50))
    faults = parse_faults(f"kill {dying} at epoch 4; join {dying} after 3s")
    settings = Settings(nodes=100, checkpoint_every=5, scheduler="best-density")
    simulation = costed(FaultSchedule(topology, settings, 100, 12, faults))
    audited(simulation, None)
    assert len(written(simulation, "final")) == 12 * width


def test_the_history_is_written_in_virtual_time(tmp_path: Path) -> None:
    case = digests(schedule(SCRIPTS["half the nodes at once"]))
    record = History(tmp_path / NAME)
    simulation = Simulation(case.schedule, case.pipeline, list(case.batches), record=record).run()
    record.close()
    assert list(read_history(tmp_path)) == json.loads(json.dumps(simulation.history, default=str))


def test_actions_happen_in_order_and_cancelled_ones_never() -> None:
    clock, seen = Environment(), list[str]()

    def note(what: str) -> Callable[[], None]:
        return lambda: seen.append(f"{what} at {clock.now:g}")

    clock.after(2, note("late"))
    clock.after(1, note("first"))
    clock.after(1, note("second"))
    clock.after(1.5, note("never")).cancel()
    while clock.step():
        pass
    assert seen == ["first at 1", "second at 1", "late at 2"] and clock.now == 2


def test_schedules_that_make_no_sense_are_refused() -> None:
    with pytest.raises(Invalid, match="nodes must be at least 1, got 0"):
        FaultSchedule(chain(1, 1), nodes=0)
    with pytest.raises(Invalid, match="interval must be 0 seconds or more, got -1"):
        Timing(interval=-1)
    with pytest.raises(Invalid, match="a run must take time"):
        Timing(run=0, level=0)
    with pytest.raises(Invalid, match="no node 'node-7'"):
        run(schedule("kill node-7 at epoch 3"))
