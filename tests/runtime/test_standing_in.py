"""Answers by a deadline: who stands in for whom, what is said meanwhile, and that nothing is lost by it."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, pairwise

import pytest
from driving import Driver, chain, task, two_nodes, works

from holdfast.errors import Invalid
from holdfast.runtime.coordinator.giving_up import EXCUSED, FAILURES, PATIENCE, SILENCE
from holdfast.runtime.coordinator.standing_in import SHORT, TRIES
from holdfast.runtime.faults import parse_faults
from holdfast.runtime.messages import AnswerLate, CancelRun, EpochDone, GiveUp, Publish, Run, RunBroken
from holdfast.runtime.settings import Settings, within_of
from holdfast.runtime.simulation.auditing import audited
from holdfast.runtime.simulation.fuzzing import Case
from holdfast.runtime.simulation.operators import digest_batches, digesting
from holdfast.runtime.simulation.schedule import FaultSchedule, Timing
from holdfast.runtime.simulation.simulation import Simulation


def late(driver: Driver, epoch: int, *silent: int) -> Run:
    """The epoch comes, its run does not end, and these nodes say nothing: who stands in?"""
    driver.arrive(epoch)
    driver.tell(AnswerLate(epoch, frozenset(f"node-{number}" for number in silent), 1.5))
    return driver.only(Run)


def test_those_who_are_well_answer_for_the_silent_one_and_keep_away_from_it() -> None:
    driver = two_nodes()
    run = late(driver, 5, 1)
    assert (run.kind, run.ingest, run.epoch, run.avoid) == ("stopgap", 5, None, frozenset({"node-1"}))
    assert {work.node for work in run.works} == {"node-0"} and {work.lane for work in run.works} == {"tentative"}
    assert not driver.of(CancelRun), "the late run goes on"
    own, restored = works(run, "tentative")["A/0"], works(run, "tentative")["A/1"]
    assert (own[2], restored[2]) == ("fork", "checkpoint")
    assert driver.coordinator.snapshot().silent == ("node-1",)
    assert driver.records("answer late")[0] == {"epoch": 5, "seconds": 1.5, "silent": ["node-1"], "alive": 2}


def test_a_stopgap_says_tentatively_what_it_is_worth_and_the_epoch_stays_open() -> None:
    driver = two_nodes()
    run = late(driver, 5, 1)
    exact = driver.parts.runs.of("epoch")
    driver.finish(run)
    said = driver.only(Publish)
    assert said.kind == "tentative" and {str(each) for _, each in said.outputs} == {"B/0", "B/1"}
    told = driver.records("stood in")[0]
    assert said.fidelity == told["fidelity"] and 0 < told["fidelity"] < 1, "the checkpoint is older than the stream"
    assert not driver.of(EpochDone) and driver.parts.answering.head == 4
    assert exact is not None
    driver.finish(exact)
    assert [each.kind for each in driver.of(Publish)] == ["final"] and driver.only(EpochDone).epoch == 5
    assert driver.coordinator.snapshot().silent == ()


def test_a_replica_stands_in_with_all_that_there_is() -> None:
    driver = Driver(chain(1, 1, 1), nodes=2, replicas=(task("A/0"), task("B/0")))
    driver.join(0, 1)
    for epoch in range(3):
        driver.epoch(epoch)
    run = late(driver, 3, int(driver.home("B/0")[-1]))
    assert all(work.fidelity == 1.0 and work.origin == "fork" for work in run.works) and len(run.works) == 2


def test_an_exact_answer_that_comes_after_all_ends_the_stopgap() -> None:
    driver = two_nodes()
    stopgap = late(driver, 5, 1)
    exact = driver.parts.runs.of("epoch")
    assert exact is not None
    driver.finish(exact)
    assert driver.only(CancelRun).number == stopgap.number and driver.only(EpochDone).epoch == 5
    driver.tell(RunBroken(stopgap.number, "cancelled"))
    assert not driver.records("run broken")
    driver.arrive(6)
    assert driver.only(Run).kind == "epoch"


def test_a_stopgap_that_was_called_off_and_has_not_ended_holds_up_the_next_one() -> None:
    driver = two_nodes()
    stopgap = late(driver, 5, 1)
    exact = driver.parts.runs.of("epoch")
    assert exact is not None
    driver.finish(exact)
    driver.arrive(6)
    driver.tell(AnswerLate(6, frozenset({"node-1"})))
    assert not driver.of(Run)
    driver.tell(RunBroken(stopgap.number, "cancelled"))
    assert driver.only(Run).kind == "stopgap"


def test_what_a_stopgap_says_after_the_exact_answer_is_not_published() -> None:
    driver = two_nodes()
    stopgap = late(driver, 5, 1)
    exact = driver.parts.runs.of("epoch")
    assert exact is not None
    driver.finish(exact)
    driver.finish(stopgap)
    assert not driver.of(Publish) and not driver.records("stood in")


def test_one_answer_in_place_of_an_epoch_and_none_where_nobody_is_silent_or_nobody_is_well() -> None:
    driver = two_nodes()
    driver.arrive(5)
    for silent in ((), (0, 1)):
        driver.tell(AnswerLate(5, frozenset(f"node-{number}" for number in silent)))
        assert not driver.of(Run) and driver.records("answer late")
        driver.tell(AnswerLate(5, frozenset(f"node-{number}" for number in silent)))
        assert not driver.records("answer late"), "that is known"
    driver.tell(AnswerLate(5, frozenset({"node-1"})))
    stopgap = driver.only(Run)
    for _ in range(TRIES - 1):
        driver.tell(RunBroken(stopgap.number, "no reason"))
        driver.tell(AnswerLate(5, frozenset({"node-1"})))
        stopgap = driver.only(Run)
        assert stopgap.kind == "stopgap", "one that broke is tried again"
    driver.tell(RunBroken(stopgap.number, "no reason"))
    driver.tell(AnswerLate(5, frozenset({"node-1"})))
    assert not driver.of(Run), "it was tried often enough"
    driver.tell(AnswerLate(4, frozenset({"node-1"})))
    assert not driver.records("answer late"), "that one is answered"


def test_a_late_run_is_called_off_once_where_those_who_stand_in_do_not_get_to_it() -> None:
    """Their cores wait for rows from who says nothing."""
    driver, one = two_nodes(), frozenset({"node-1"})
    driver.arrive(5)
    exact = driver.only(Run)
    driver.tell(AnswerLate(5, one, 1.0, mute=one))
    stopgap = driver.only(Run)
    other = frozenset({"node-0"})
    for mute in (frozenset[str](), other):
        driver.tell(AnswerLate(5, one | mute, 1.75, mute=mute))
        assert not driver.of(CancelRun), "who was silent speaks now, and may only be slow"
    driver.tell(AnswerLate(5, one, 2.0, mute=one))
    assert driver.only(CancelRun).number == exact.number
    driver.tell(RunBroken(exact.number, "cancelled"))
    again = driver.only(Run)
    assert (again.kind, again.epoch, again.attempt) == ("epoch", 5, 0), "nobody is to blame"
    assert driver.records("run broken")[0]["reason"] == "called off"
    driver.tell(AnswerLate(5, one, 2.4, mute=one))
    assert not driver.of(CancelRun), "once"
    driver.finish(stopgap)
    assert driver.records("stood in") and driver.only(Publish).kind == "tentative"
    driver.finish(again)
    assert driver.only(EpochDone).epoch == 5


def test_where_all_are_short_of_cores_one_try_is_enough_and_nothing_is_called_off() -> None:
    """Whether the well take long to answer, or most nodes hold the epoch up."""
    for pace, nodes, silent in ((SHORT, 4, {"node-1"}), (0.0, 3, {"node-1", "node-2"})):
        driver = Driver(chain(1, nodes, nodes), nodes=nodes, capacity=1000.0, checkpoint_every=3)
        driver.join(*range(nodes))
        driver.epoch(0)
        driver.arrive(1)
        late = AnswerLate(1, frozenset(silent), 1.0, mute=frozenset({"node-1"}), pace=pace)
        driver.tell(late)
        stopgap = next(run for run in driver.of(Run) if run.kind == "stopgap")
        driver.tell(replace(late, seconds=1.75))
        assert not driver.of(CancelRun)
        driver.tell(RunBroken(stopgap.number, "no reason"))
        driver.tell(replace(late, seconds=2.5))
        assert not driver.of(Run), "another would take what there is too little of"
        driver.tell(AnswerLate(1, frozenset({"node-1"}), 3.25))
        assert driver.only(Run).kind == "stopgap", "they are well again"


def test_who_wants_exact_answers_only_gets_no_other() -> None:
    driver = two_nodes(recovery="blocking")
    driver.arrive(5)
    driver.tell(AnswerLate(5, frozenset({"node-1"})))
    assert not driver.of(Run)


def test_a_silent_node_that_is_lost_after_all_is_lost_as_any_other() -> None:
    driver = two_nodes(capacity=1000.0)
    stopgap = late(driver, 5, 1)
    driver.finish(stopgap)
    exact = driver.parts.runs.of("epoch")
    assert exact is not None
    driver.lose(1)
    driver.tell(RunBroken(exact.number, "nodes were lost"))
    again = next(run for run in driver.of(Run) if run.kind == "epoch")
    assert again.ingest == 5, "a stopgap journals nothing"
    driver.finish(again)
    assert driver.only(EpochDone).epoch == 5


# Who is given up


def test_who_says_nothing_is_given_up_after_a_while_and_the_epoch_goes_on_without_it() -> None:
    driver = two_nodes(capacity=1000.0)
    one = frozenset({"node-1"})
    driver.arrive(5)
    driver.tell(AnswerLate(5, one, 1.0, mute=one, within=1.0))
    exact = driver.parts.runs.of("epoch")
    assert exact is not None
    driver.tell(AnswerLate(5, one, 0.9 + PATIENCE, mute=one, within=1.0))
    assert not driver.of(GiveUp)
    driver.tell(AnswerLate(5, one, 1.0 + PATIENCE, mute=one, within=2 * PATIENCE))
    assert not driver.of(GiveUp), "epochs have more time than that"
    driver.tell(AnswerLate(5, one, 1.0 + PATIENCE, mute=one, within=1.0))
    assert driver.only(GiveUp).nodes == (("node-1", "2"),) and driver.records("nodes lost")[0]["cause"] == "silent"
    assert exact.number in {each.number for each in driver.of(CancelRun)}
    driver.tell(RunBroken(exact.number, "nodes were lost"))
    again = next(run for run in driver.of(Run) if run.kind == "epoch")
    assert {work.node for work in again.works} == {"node-0"}
    driver.look()  # it is seen as it was for a moment longer
    assert list(driver.parts.members.nodes) == ["node-0"]
    driver.join(1)
    assert sorted(driver.parts.members.nodes) == ["node-0", "node-1"]


def test_who_is_slow_is_given_up_only_after_others_have_done_its_work() -> None:
    driver = two_nodes(capacity=1000.0)
    one = frozenset({"node-1"})
    stopgap = late(driver, 5, 1)
    driver.tell(AnswerLate(5, one, 60.0, within=1.0))
    assert not driver.of(GiveUp), "the epoch may have much to do"
    driver.finish(stopgap)
    driver.tell(AnswerLate(5, one, 61.0, within=1.0))
    driver.tell(AnswerLate(5, one, 60.9 + PATIENCE, within=1.0))
    assert not driver.of(GiveUp)
    driver.tell(AnswerLate(5, one, 61.0 + PATIENCE, within=1.0))
    assert driver.only(GiveUp).nodes == (("node-1", "2"),)


def test_what_others_did_without_one_node_says_nothing_against_another() -> None:
    driver = Driver(chain(1, 3, 3), nodes=3, capacity=1000.0, checkpoint_every=3)
    driver.join(0, 1, 2)
    for epoch in range(5):
        driver.epoch(epoch)
    one, two = frozenset({"node-1"}), frozenset({"node-2"})
    stopgap = late(driver, 5, 1)
    driver.finish(stopgap)
    driver.tell(AnswerLate(5, one, 2.0, within=1.0))
    driver.tell(AnswerLate(5, two, 3.0, within=1.0))
    driver.tell(AnswerLate(5, two, 3.5 + 2 * PATIENCE, within=1.0))
    assert not driver.of(GiveUp), "it took part"
    driver.tell(AnswerLate(5, one, 4.0 + 2 * PATIENCE, within=1.0))
    driver.tell(AnswerLate(5, one, 4.0 + 3 * PATIENCE, within=1.0))
    assert [name for each in driver.of(GiveUp) for name, _ in each.nodes] == ["node-1"]


def test_patience_counts_from_the_question_that_was_never_answered() -> None:
    driver, one, nobody = two_nodes(capacity=1000.0), frozenset({"node-1"}), frozenset[str]()
    driver.arrive(5)
    for number, mute in enumerate((one, nobody, nobody, one)):
        driver.tell(AnswerLate(5, one, 1.0 + number * PATIENCE / 2, mute=mute, within=1.0))
        assert not driver.of(GiveUp), "it spoke in between, and was only slow"
    driver.tell(AnswerLate(5, one, 1.0 + 2.5 * PATIENCE, mute=one, within=1.0))
    assert driver.only(GiveUp).nodes == (("node-1", "2"),)


def test_nobody_is_given_up_as_slow_while_all_are_and_who_says_nothing_has_longer() -> None:
    driver, one = two_nodes(capacity=1000.0), frozenset({"node-1"})
    driver.finish(late(driver, 5, 1))
    for seconds in (2.0, 15.0, 30.0):
        driver.tell(AnswerLate(5, one, seconds, within=1.0, pace=SHORT))
        assert not driver.of(GiveUp)
    driver.tell(AnswerLate(5, one, 29.9 + PATIENCE, within=1.0))
    assert not driver.of(GiveUp), "they were short of cores until then"
    driver.tell(AnswerLate(5, one, 30.0 + PATIENCE, within=1.0))
    assert driver.only(GiveUp).nodes == (("node-1", "2"),)

    driver = two_nodes(capacity=1000.0)
    driver.finish(late(driver, 5, 1))
    for seconds in (2.0, 15.0, 1.9 + EXCUSED * PATIENCE):
        driver.tell(AnswerLate(5, one, seconds, within=1.0, pace=SHORT))
    driver.tell(AnswerLate(5, one, 2.0 + (EXCUSED + 1) * PATIENCE, within=1.0, pace=SHORT))
    assert driver.only(GiveUp).nodes == (("node-1", "2"),), "that all are short of cores excuses nobody for ever"

    driver, pace = two_nodes(capacity=1000.0), PATIENCE / SILENCE + 1
    driver.arrive(5)
    driver.tell(AnswerLate(5, one, 1.0, mute=one, within=1.0, pace=pace))
    driver.tell(AnswerLate(5, one, 0.9 + SILENCE * pace, mute=one, within=1.0, pace=pace))
    assert not driver.of(GiveUp)
    driver.tell(AnswerLate(5, one, 1.0 + SILENCE * pace, mute=one, within=1.0, pace=pace))
    assert driver.only(GiveUp).nodes == (("node-1", "2"),), "but not for ever"


def test_most_nodes_that_are_stuck_are_given_up_too() -> None:
    """They answer questions, and their part of the epoch is never done: as where a disk of a host hangs."""
    driver = Driver(chain(1, 3, 3), nodes=3, capacity=1000.0, checkpoint_every=3)
    driver.join(0, 1, 2)
    for epoch in range(5):
        driver.epoch(epoch)
    driver.finish(late(driver, 5, 1, 2))
    most = frozenset({"node-1", "node-2"})
    for seconds in (2.0, 4.0):
        driver.tell(AnswerLate(5, most, seconds, within=1.0))
        assert not driver.of(GiveUp)
    driver.tell(AnswerLate(5, most, 2.0 + PATIENCE, within=1.0))
    assert {name for name, _ in driver.only(GiveUp).nodes} == most


def test_who_speaks_now_and_then_is_given_up_if_others_speak_at_once() -> None:
    """As one that loses many of its packets does."""
    for other, given_up in ((0, True), (1, True), (2, False)):
        driver = Driver(chain(1, 3, 3), nodes=3, checkpoint_every=3)
        driver.join(0, 1, 2)
        driver.epoch(0)
        driver.arrive(1)
        lossy, busy, nobody = frozenset({"node-1"}), frozenset({"node-2"}), frozenset[str]()
        asked = [lossy, *[busy] * other, nobody, lossy, nobody, lossy]
        for number, silent in enumerate(asked):
            driver.tell(AnswerLate(1, silent, 1.0 + number * PATIENCE / 4, mute=silent, within=1.0))
        assert bool(driver.of(GiveUp)) == given_up, other


def test_nobody_is_given_up_where_nobody_is_well() -> None:
    driver = two_nodes()
    both = frozenset({"node-0", "node-1"})
    driver.arrive(5)
    for seconds in (1.0, 5.0, 50.0):
        driver.tell(AnswerLate(5, both, seconds, mute=both, within=1.0))
        assert not driver.of(GiveUp)


def test_a_node_that_breaks_run_after_run_is_given_up() -> None:
    driver = two_nodes(capacity=1000.0)
    driver.arrive(5)
    for _ in range(FAILURES):
        assert not driver.of(GiveUp)
        run = driver.parts.runs.of("epoch")
        assert run is not None
        driver.tell(RunBroken(run.number, "No space left on device", frozenset({"node-1"})))
    assert driver.only(GiveUp).nodes == (("node-1", "2"),) and driver.records("nodes lost")[0]["cause"] == "failing"


@pytest.mark.parametrize("broke", ["node-1", "node-0"])
def test_who_breaks_an_epoch_that_others_did_without_it_is_given_up_at_once(broke: str) -> None:
    """As a host that the other workers do not hear, but the driver does: each further try takes as long to fail."""
    driver = two_nodes(capacity=1000.0)
    driver.finish(late(driver, 5, 1))
    run = driver.parts.runs.of("epoch")
    assert run is not None
    driver.tell(RunBroken(run.number, "FetchFailed", frozenset({broke})))
    assert bool(driver.of(GiveUp)) == (broke == "node-1"), "who took part is not to blame after one failure"

    driver = two_nodes(capacity=1000.0)
    driver.finish(late(driver, 5, 1))
    driver.finish(driver.parts.runs.of("epoch"))
    driver.arrive(6)
    run = driver.parts.runs.of("epoch")
    assert run is not None
    driver.tell(RunBroken(run.number, "FetchFailed", frozenset({broke})))
    assert not driver.of(GiveUp), "that was another epoch, which came to its end"


@pytest.mark.parametrize("beside", [False, True], ids=["another host is well", "all have one disk"])
def test_a_node_whose_own_disk_is_full_is_given_up_where_another_has_one(beside: bool) -> None:
    driver = two_nodes(capacity=1000.0)
    for name, info in driver.seen.items():
        driver.seen[name] = replace(info, host="one" if beside else name)
    driver.parts.members.nodes.update(driver.seen)
    driver.arrive(5)
    run = driver.only(Run)
    full = [driver.report(work, "unfit" if work.node == "node-1" else "committed") for work in run.works]
    driver.done(run, *full)
    assert [each.nodes for each in driver.of(GiveUp)] == ([] if beside else [(("node-1", "2"),)])
    assert driver.parts.runs.of("epoch") is not None, "it is tried again"


# In virtual time, over the whole shell


def simulated(
    script: str, within: float | None, detect: float = 20.0, epochs: int = 12, timing: Timing | None = None
) -> Simulation:
    """A node that goes silent is given up after 20 seconds only."""
    settings, timing = Settings(nodes=4, checkpoint_every=3), timing or Timing(detect=detect)
    schedule = FaultSchedule(chain(2, 3, 2, 1), settings, 4, epochs, parse_faults(script), timing)
    schedule = replace(schedule, answer_within=within)
    pipeline = digesting(schedule.topology, ordered=False)
    case = Case(schedule, pipeline, digest_batches(pipeline, schedule.epochs, seed=3))
    simulation = Simulation(schedule, pipeline, list(case.batches))
    audited(simulation, case.expected())
    return simulation


def silence(simulation: Simulation, epoch: int) -> float:
    """Seconds from an epoch's arrival until somebody read something of it."""
    arrived = simulation.times[epoch][0]
    said = [e for e in simulation.history if e["kind"] == "published" and epoch in e["epochs"] and e["rows"]]
    return float(said[0]["time"]) - arrived - float(simulation.history[0]["time"])


@pytest.mark.parametrize(
    "script", ["unreachable node-1,node-2 at epoch 8 for 3s", "slow node-1 150x at epoch 8 for 5s"]
)
def test_a_host_that_is_frozen_or_slow_does_not_keep_readers_waiting(script: str) -> None:
    waited = simulated(script, float("inf"))
    assert silence(waited, 8) > 1.5 and not [e for e in waited.history if e["kind"] == "answer late"]
    simulation = simulated(script, 1.0)
    kinds = [event["kind"] for event in simulation.history]
    assert silence(simulation, 8) < 1.5 and "stood in" in kinds and "nodes lost" not in kinds


@pytest.mark.parametrize(
    "script, silent", [("unreachable node-1 at epoch 8 for 15s", 6.0), ("slow node-1 500x at epoch 8 for 15s", 6.0)]
)
def test_a_host_that_half_works_for_long_does_not_keep_readers_waiting_for_later_epochs(
    script: str, silent: float
) -> None:
    """Its heartbeats come all the while: nobody else notices anything."""
    simulation = simulated(script, None, detect=60.0, epochs=30)
    said = [e["time"] for e in simulation.history if e["kind"] == "published" and e["rows"]]
    assert max(b - a for a, b in pairwise(said)) < silent
    kinds = [event["kind"] for event in simulation.history]
    assert "nodes lost" in kinds and kinds.index("stood in") < kinds.index("nodes lost") < kinds.index(
        "nodes joined", 9
    )


def test_nobody_is_lost_where_all_nodes_are_slow_together() -> None:
    simulation = simulated("slow node-0,node-1,node-2,node-3 200x at epoch 8 for 20s", None, detect=60.0)
    kinds = [event["kind"] for event in simulation.history]
    assert "answer late" in kinds and "nodes lost" not in kinds


@pytest.mark.parametrize("lost", [f"node-{one},node-{two}" for one, two in combinations(range(4), 2)])
def test_of_two_who_are_left_the_last_to_be_done_is_not_silent(lost: str) -> None:
    """Each carries twice as much, and states come from the store: the first to be done stood in for the other and took
    from it what it needed; at times its word was the first, with less than was promised."""
    timing = Timing(interval=3.0, unit=0.15, restore=0.15, detect=0.4)
    history = simulated(f"kill {lost} at epoch 8", None, timing=timing).history
    began = next(number for number, event in enumerate(history) if event["kind"] == "nodes lost")
    answer = next(number for number, event in enumerate(history) if event["kind"] == "epoch" and event["epoch"] == 8)
    assert not [event for event in history[began:answer] if event["kind"] in ("answer late", "stood in")]
    assert history[answer]["time"] - history[began]["time"] > 1.0, "else it says nothing"
    assert abs(history[began]["promised"] - history[answer]["fidelity"]) <= 0.02


def test_the_usual_time_of_epochs_says_what_is_late() -> None:
    simulation = simulated("unreachable node-1,node-2 at epoch 8 for 6s", None)
    said = [event for event in simulation.history if event["kind"] == "answer late"]
    assert said and said[0]["epoch"] == 8 and said[0]["silent"] == ["node-1", "node-2"] and said[0]["seconds"] < 2
    assert not [event for event in simulated("", None).history if event["kind"] == "answer late"]


def test_a_silent_host_that_stays_silent_is_lost_and_everything_is_exact_in_the_end() -> None:
    simulation = simulated("unreachable node-1 at epoch 8 for 30s; join node-1 at 60s", 0.5, detect=5.0)
    kinds = [event["kind"] for event in simulation.history]
    assert kinds.index("stood in") < kinds.index("nodes lost")


@pytest.mark.parametrize(
    "written, seconds", [("2s", 2.0), ("500 ms", 0.5), ("1.5", 1.5), (3, 3.0), (None, None), ("never", float("inf"))]
)
def test_a_deadline_as_people_write_it(written: str | float | None, seconds: float | None) -> None:
    assert within_of(written) == seconds


@pytest.mark.parametrize("written", ["soon", "0s", -1, 0])
def test_a_deadline_that_is_none_is_refused_by_name(written: str | float) -> None:
    with pytest.raises(Invalid, match="answer_within"):
        within_of(written)
